/* What cross-entropy refuses, on the host and on a GPU. Labels can be looked at on the host
 * only. */
#include "ops/cross_entropy/cross_entropy_impl.h"

cz_status cross_entropy_check_labels(const char *op, const int32_t *labels, int64_t N, int64_t V)
{
    for (int64_t n = 0; n < N; n++)
        if (labels[n] != CZ_IGNORE_LABEL && (labels[n] < 0 || labels[n] >= V))
            return err_set(CZ_INVALID, 0, "%s: label %d of row %lld is outside 0 … %lld", op,
                           labels[n], (long long)n, (long long)V - 1);
    return CZ_OK;
}

cz_status cross_entropy_check(const struct cross_entropy_args *a)
{
    if (a->N < 0 || a->V < 1)
        return err_set(CZ_INVALID, 0, "cross_entropy: %lld rows of %lld logits", (long long)a->N,
                       (long long)a->V);
    if (!a->loss || (a->N > 0 && (!a->labels || !a->logits)))
        return err_set(CZ_INVALID, 0, "cross_entropy: logits, labels and loss are needed");
    return CZ_OK;
}
