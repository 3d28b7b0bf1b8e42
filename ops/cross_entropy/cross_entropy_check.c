/* What the front door of the plain cross-entropy refuses, on the host and on a GPU. */
#include "ops/cross_entropy/cross_entropy_impl.h"

cz_status cross_entropy_check(const struct cross_entropy_args *a)
{
    if (a->N < 0 || a->V < 1)
        return err_set(CZ_INVALID, 0, "cross_entropy: %lld rows of %lld logits", (long long)a->N,
                       (long long)a->V);
    if (!a->loss || (a->N > 0 && (!a->labels || !a->logits)))
        return err_set(CZ_INVALID, 0, "cross_entropy: logits, labels and loss are needed");
    return CZ_OK;
}
