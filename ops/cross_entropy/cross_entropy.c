/* Cross-entropy over given logits, for classification heads: few classes, so one thread is
 * enough. */
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "ops/table_impl.h"

#include <math.h>
#include <string.h>

static const struct cross_entropy_row *const rows[] = {
    &cross_entropy_scalar,
    &cross_entropy_avx2,
    &cross_entropy_avx512,
};

const struct cross_entropy_row *const *cross_entropy_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* 0 only if no row counts; the loss is then 0 and there are no gradients. */
double cross_entropy_divisor(const int32_t *labels, const float *weights, int64_t N, float divisor)
{
    double sum = (double)divisor;
    for (int64_t n = 0; n < N && divisor == 0; n++)
        if (labels[n] != CZ_IGNORE_LABEL) sum += weights ? (double)weights[n] : 1.0;
    return sum;
}

/* Loss of row n; its gradient to dz unless NULL. */
static double row_loss(const struct cross_entropy_row *row, const struct cross_entropy_args *a,
                       int64_t n, double scale, float *dz)
{
    const size_t V = (size_t)a->V;
    const float *z = a->logits + n * a->V;
    if (a->labels[n] == CZ_IGNORE_LABEL) {
        if (dz) memset(dz, 0, V * sizeof *dz);
        return 0;
    }
    const double weight = a->loss_weights ? (double)a->loss_weights[n] : 1.0;
    const float z_label = z[a->labels[n]], lse = row->log_sum_exp(z, V);
    if (dz) {
        const float factor = (float)(scale * weight);
        row->softmax_grad(z, V, lse, factor, 0, DTYPE_F32, dz);
        dz[a->labels[n]] = factor * (expf(z_label - lse) - 1.0f);
    }
    return weight * ((double)lse - (double)z_label);
}

static cz_status cross_entropy(struct ops *ops, struct dev_stream *stream,
                               const struct cross_entropy_args *a)
{
    (void)stream;
    TRY(cross_entropy_check(a));
    TRY(cross_entropy_check_labels("cross_entropy", a->labels, a->N, a->V));
    const double divisor = cross_entropy_divisor(a->labels, a->loss_weights, a->N, a->divisor);
    const double scale = divisor != 0 ? (double)a->dloss / divisor : 0;
    double sum = 0;
    for (int64_t n = 0; n < a->N; n++) /* classification heads are small: one thread */
        sum += row_loss(ops->cross_entropy_row, a, n, scale,
                        a->dlogits ? a->dlogits + n * a->V : NULL);
    *a->loss = divisor != 0 ? (float)(sum / divisor) : 0.0f;
    return CZ_OK;
}

cz_status ops_ce_head_workspace(struct ops *ops, const struct ce_head_args *a, size_t *nbytes)
{
    return ops->ce_head_workspace ? ops->ce_head_workspace(ops, a, nbytes)
                                  : ops_missing(ops, "ce_head");
}

cz_status cross_entropy_wire(struct ops *ops, uint32_t features)
{
    ops->cross_entropy_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->cross_entropy = cross_entropy;
    ops->ce_head = cross_entropy_head;
    ops->ce_head_workspace = cross_entropy_head_workspace;
    return CZ_OK;
}
