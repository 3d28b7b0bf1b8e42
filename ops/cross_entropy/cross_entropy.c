/* Front doors of ce_head and cross_entropy: checks, row blocks, threads.
 *
 * ce_head walks over blocks of rows. A block's logits (R,V) are made by one product, turned into
 * losses and, in place, into gradients, and spent on two more products: 6·N·C·V operations in all,
 * as many as without fusion, while only R·V logits exist. Limit: the three products at the cores'
 * multiply-add rate; the softmax adds one pass over memory each way. */
#include "ops/cross_entropy/cross_entropy_impl.h"

#include "base/batch.h"
#include "base/size.h"

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

/* ---- losses and gradients of a block of logits ------------------------------------------------
 */

/* Rows [0, n) of a block: z (n,V) fp32 with `first` the block's first row in labels and weights. */
struct block {
    const struct cross_entropy_row *row;
    int64_t n, V, first;
    float *z;
    const int32_t *labels;
    const float *weights;
    double scale;      /* dloss/Σω: times ω_n is the gradient's factor */
    enum dtype dtype;  /* of dz */
    void *dz;          /* rows of dz_stride elements, may lie over z; NULL: losses only */
    int64_t dz_stride; /* elements */
    double *losses;    /* (n) ω·(lse − z[label]); 0 for ignored rows */
};

static bool is_counted(const struct block *b, int64_t n)
{
    return b->labels[b->first + n] != BATCH_IGNORE_LABEL;
}

static float weight_of(const struct block *b, int64_t n)
{
    return b->weights ? b->weights[b->first + n] : 1.0f;
}

static void *dz_row(const struct block *b, int64_t n)
{
    return (char *)b->dz + (size_t)(n * b->dz_stride) * dtype_size(b->dtype);
}

static void block_row(const struct block *b, int64_t n)
{
    float *z = b->z + n * b->V;
    if (!is_counted(b, n)) {
        b->losses[n] = 0;
        if (b->dz) memset(dz_row(b, n), 0, (size_t)b->V * dtype_size(b->dtype));
        return;
    }
    const int32_t label = b->labels[b->first + n];
    const float weight = weight_of(b, n), z_label = z[label];
    const float lse = b->row->log_sum_exp(z, (size_t)b->V);
    b->losses[n] = (double)weight * ((double)lse - (double)z_label);
    if (!b->dz) return;
    const float scale = (float)(b->scale * (double)weight);
    b->row->softmax_grad(z, (size_t)b->V, lse, scale, b->dtype, dz_row(b, n));
    /* −scale at the label, from the fp32 value: 1 − p is rounded once. */
    ops_put(dz_row(b, n), (size_t)label, b->dtype, scale * (expf(z_label - lse) - 1.0f));
}

static void block_run(const struct block *b)
{
    int n_parts = ops_n_parts((size_t)(b->n * b->V), OPS_GRAIN);
#pragma omp parallel for schedule(static) num_threads(n_parts) if (n_parts > 1)
    for (int64_t n = 0; n < b->n; n++) block_row(b, n);
}

/* Σω over counted rows, in row order. */
static double weight_sum(const int32_t *labels, const float *weights, int64_t N)
{
    double sum = 0;
    for (int64_t n = 0; n < N; n++)
        if (labels[n] != BATCH_IGNORE_LABEL) sum += weights ? (double)weights[n] : 1.0;
    return sum;
}

static cz_status check_labels(const char *op, const int32_t *labels, int64_t N, int64_t V)
{
    for (int64_t n = 0; n < N; n++)
        if (labels[n] != BATCH_IGNORE_LABEL && (labels[n] < 0 || labels[n] >= V))
            return err_set(CZ_INVALID, 0, "%s: label %d of row %lld is outside 0 … %lld", op,
                           labels[n], (long long)n, (long long)V - 1);
    return CZ_OK;
}

/* ---- the plain form ---------------------------------------------------------------------------
 */

static cz_status cross_entropy(struct ops *ops, struct dev_stream *stream,
                               const struct cross_entropy_args *a)
{
    (void)stream;
    if (a->N < 0 || a->V < 1)
        return err_set(CZ_INVALID, 0, "cross_entropy: %lld rows of %lld logits", (long long)a->N,
                       (long long)a->V);
    if (!a->loss || !a->labels || (a->N > 0 && !a->logits))
        return err_set(CZ_INVALID, 0, "cross_entropy: logits, labels and loss are needed");
    TRY(check_labels("cross_entropy", a->labels, a->N, a->V));
    const double weights = weight_sum(a->labels, a->loss_weights, a->N);
    double sum = 0;
    for (int64_t n = 0; n < a->N; n++) { /* classification heads are small: row by row */
        double loss = 0;
        const struct block b = {
            .row = ops->cross_entropy_row,
            .n = 1,
            .V = a->V,
            .first = n,
            .z = (float *)a->logits + n * a->V, /* only read: dz is elsewhere or the same floats */
            .labels = a->labels,
            .weights = a->loss_weights,
            .scale = weights > 0 ? (double)a->dloss / weights : 0,
            .dtype = DTYPE_F32,
            .dz = a->dlogits ? a->dlogits + n * a->V : NULL,
            .dz_stride = a->V,
            .losses = &loss,
        };
        block_row(&b, 0);
        sum += loss;
    }
    *a->loss = weights > 0 ? (float)(sum / weights) : 0.0f;
    return CZ_OK;
}

/* ---- fused with the projection ----------------------------------------------------------------
 */

/* A block's logits take at most this, unless one row of a huge vocabulary does not fit. */
#define BLOCK_NBYTES_MAX ((size_t)64 << 20)

static int64_t block_rows(const struct ce_head_args *a)
{
    int64_t most = (int64_t)(BLOCK_NBYTES_MAX / sizeof(float)) / (a->V > 0 ? a->V : 1);
    if (most < 1) most = 1;
    if (most >= a->N) return a->N > 0 ? a->N : 1;
    int64_t n_blocks = (a->N + most - 1) / most; /* equal blocks: one shape of product, or two */
    int64_t even = (a->N + n_blocks - 1) / n_blocks;
    int64_t rounded = (even + 15) / 16 * 16;
    return rounded <= most ? rounded : even;
}

/* z (n,V) = x·wᵀ [+ bias] */
static struct matmul_args logits_product(const struct ce_head_args *a, int64_t n)
{
    return (struct matmul_args){.m = n,
                                .n = a->V,
                                .k = a->C,
                                .dtype = a->dtype,
                                .c_dtype = DTYPE_F32,
                                .trans_b = true,
                                .b = a->w,
                                .bias = a->bias};
}

/* dz lies over the fp32 logits: its rows keep their distance in bytes. */
static int64_t dz_stride(const struct ce_head_args *a)
{
    return a->V * (int64_t)(sizeof(float) / dtype_size(a->dtype));
}

/* dx (n,C) = dz·w */
static struct matmul_args dx_product(const struct ce_head_args *a, int64_t n)
{
    return (struct matmul_args){.m = n,
                                .n = a->C,
                                .k = a->V,
                                .dtype = a->dtype,
                                .c_dtype = a->dtype,
                                .lda = dz_stride(a),
                                .b = a->w};
}

/* dw (V,C) [+]= dzᵀ·x */
static struct matmul_args dw_product(const struct ce_head_args *a, int64_t n, bool accumulate)
{
    return (struct matmul_args){.m = a->V,
                                .n = a->C,
                                .k = n,
                                .dtype = a->dtype,
                                .c_dtype = a->grad_dtype,
                                .trans_a = true,
                                .accumulate = accumulate,
                                .lda = dz_stride(a)};
}

/* How the workspace is shared out: logits of a block, losses of all rows, a row of ones for dbias,
 * scratch of the products. */
struct layout {
    int64_t R;
    size_t losses_off, ones_off, scratch_off, scratch_nbytes, nbytes;
};

/* dbias (V) [+]= Σ over rows of dz, as a product with a row of n ones. */
static struct matmul_args dbias_product(const struct ce_head_args *a, int64_t n, bool accumulate)
{
    return (struct matmul_args){.m = 1,
                                .n = a->V,
                                .k = n,
                                .dtype = a->dtype,
                                .c_dtype = a->grad_dtype,
                                .accumulate = accumulate,
                                .ldb = dz_stride(a)};
}

static cz_status raise_to(struct ops *ops, struct matmul_args product, size_t *most)
{
    size_t nbytes;
    TRY(ops_matmul_workspace(ops, &product, &nbytes));
    if (nbytes > *most) *most = nbytes;
    return CZ_OK;
}

static cz_status products_scratch(struct ops *ops, const struct ce_head_args *a, int64_t n,
                                  size_t *most)
{
    TRY(raise_to(ops, logits_product(a, n), most));
    if (!a->dx) return CZ_OK;
    TRY(raise_to(ops, dx_product(a, n), most));
    for (int accumulate = 0; a->dw && accumulate < 2; accumulate++)
        TRY(raise_to(ops, dw_product(a, n, accumulate), most));
    for (int accumulate = 0; a->dbias && accumulate < 2; accumulate++)
        TRY(raise_to(ops, dbias_product(a, n, accumulate), most));
    return CZ_OK;
}

static cz_status make_layout(struct ops *ops, const struct ce_head_args *a, struct layout *out)
{
    size_t logits_numel, logits_nbytes;
    out->R = block_rows(a);
    TRY(size_mul((size_t)out->R, (size_t)a->V, &logits_numel));
    TRY(size_mul(logits_numel, sizeof(float), &logits_nbytes));
    out->losses_off = size_round_up(logits_nbytes, 64);
    out->ones_off = size_round_up(out->losses_off + (size_t)a->N * sizeof(double), 64);
    size_t ones_numel = a->dbias ? (size_t)out->R : 0;
    out->scratch_off = size_round_up(out->ones_off + ones_numel * sizeof(float), 64);
    out->scratch_nbytes = 0;
    TRY(products_scratch(ops, a, out->R, &out->scratch_nbytes));
    if (a->N % out->R != 0) TRY(products_scratch(ops, a, a->N % out->R, &out->scratch_nbytes));
    out->nbytes = out->scratch_off + out->scratch_nbytes;
    return CZ_OK;
}

cz_status ops_ce_head_workspace(struct ops *ops, const struct ce_head_args *a, size_t *nbytes)
{
    struct layout layout;
    TRY(make_layout(ops, a, &layout));
    *nbytes = layout.nbytes;
    return CZ_OK;
}

static cz_status check_ce_head(const struct ce_head_args *a)
{
    TRY(ops_check_dtype("ce_head", a->dtype));
    if (a->N < 0 || a->C < 1 || a->V < 1)
        return err_set(CZ_INVALID, 0, "ce_head: %lld rows, %lld channels, vocabulary of %lld",
                       (long long)a->N, (long long)a->C, (long long)a->V);
    if (a->N > 0 && (!a->x || !a->w)) return err_set(CZ_INVALID, 0, "ce_head: x and w are needed");
    if (a->labels && !a->loss)
        return err_set(CZ_INVALID, 0, "ce_head: labels without a place for the loss");
    if (!a->labels && (a->dx || !a->logits))
        return err_set(CZ_INVALID, 0, "ce_head: without labels it makes logits alone");
    if (a->dx && a->grad_dtype != a->dtype && a->grad_dtype != DTYPE_F32)
        return err_set(CZ_INVALID, 0, "ce_head: gradients in %s for a %s model",
                       dtype_name(a->grad_dtype), dtype_name(a->dtype));
    return a->labels ? check_labels("ce_head", a->labels, a->N, a->V) : CZ_OK;
}

static cz_status run_product(struct ops *ops, struct dev_stream *stream, struct matmul_args product,
                             const struct ce_head_args *a, const struct layout *l)
{
    product.workspace = l->scratch_nbytes ? (char *)a->workspace + l->scratch_off : NULL;
    product.workspace_nbytes = l->scratch_nbytes;
    return ops->matmul(ops, stream, &product);
}

/* Spend a block's dz: dx, dw and dbias. */
static cz_status spend_block(struct ops *ops, struct dev_stream *stream,
                             const struct ce_head_args *a, const struct layout *l, int64_t first,
                             int64_t n, const void *x, const void *dz)
{
    struct matmul_args dx = dx_product(a, n);
    dx.a = dz;
    dx.c = (char *)a->dx + (size_t)(first * a->C) * dtype_size(a->dtype);
    TRY(run_product(ops, stream, dx, a, l));
    if (a->dw) {
        struct matmul_args dw = dw_product(a, n, first > 0 || a->dw_accumulate);
        dw.a = dz;
        dw.b = x;
        dw.c = a->dw;
        TRY(run_product(ops, stream, dw, a, l));
    }
    if (!a->dbias) return CZ_OK;
    struct matmul_args dbias = dbias_product(a, n, first > 0 || a->dbias_accumulate);
    void *ones = (char *)a->workspace + l->ones_off;
    for (int64_t i = 0; i < n; i++) ops_put(ones, (size_t)i, a->dtype, 1.0f);
    dbias.a = ones;
    dbias.b = dz;
    dbias.c = a->dbias;
    return run_product(ops, stream, dbias, a, l);
}

static cz_status ce_head_block(struct ops *ops, struct dev_stream *stream,
                               const struct ce_head_args *a, const struct layout *l, int64_t first,
                               int64_t n, double weights)
{
    const void *x = (const char *)a->x + (size_t)(first * a->C) * dtype_size(a->dtype);
    float *z = a->logits ? a->logits + first * a->V : a->workspace;
    struct matmul_args logits = logits_product(a, n);
    logits.a = x;
    logits.c = z;
    TRY(run_product(ops, stream, logits, a, l));
    if (!a->labels) return CZ_OK;
    const struct block b = {
        .row = ops->cross_entropy_row,
        .n = n,
        .V = a->V,
        .first = first,
        .z = z,
        .labels = a->labels,
        .weights = a->loss_weights,
        .scale = weights > 0 ? (double)a->dloss / weights : 0,
        .dtype = a->dtype,
        .dz = a->dx ? a->workspace : NULL,
        .dz_stride = dz_stride(a),
        .losses = (double *)(void *)((char *)a->workspace + l->losses_off) + first,
    };
    block_run(&b);
    return a->dx ? spend_block(ops, stream, a, l, first, n, x, b.dz) : CZ_OK;
}

/* Nothing to learn from an empty batch: gradients that would be overwritten become zero. */
static void clear_gradients(const struct ce_head_args *a)
{
    size_t unit = dtype_size(a->grad_dtype);
    if (a->dx && a->dw && !a->dw_accumulate) memset(a->dw, 0, (size_t)(a->V * a->C) * unit);
    if (a->dx && a->dbias && !a->dbias_accumulate) memset(a->dbias, 0, (size_t)a->V * unit);
}

static cz_status ce_head(struct ops *ops, struct dev_stream *stream, const struct ce_head_args *a)
{
    TRY(check_ce_head(a));
    struct layout layout;
    TRY(make_layout(ops, a, &layout));
    TRY(ops_check_workspace("ce_head", a->workspace, a->workspace_nbytes, layout.nbytes));
    if (a->N == 0) clear_gradients(a);
    const double weights = a->labels ? weight_sum(a->labels, a->loss_weights, a->N) : 0;
    for (int64_t first = 0; first < a->N; first += layout.R) {
        int64_t n = a->N - first < layout.R ? a->N - first : layout.R;
        TRY(ce_head_block(ops, stream, a, &layout, first, n, weights));
    }
    if (!a->labels) return CZ_OK;
    const double *losses = (const double *)(const void *)((char *)a->workspace + layout.losses_off);
    double sum = 0;
    for (int64_t n = 0; n < a->N; n++) sum += losses[n];
    *a->loss = weights > 0 ? (float)(sum / weights) : 0.0f;
    return CZ_OK;
}

cz_status cross_entropy_wire(struct ops *ops, uint32_t features)
{
    ops->cross_entropy_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->ce_head = ce_head;
    ops->cross_entropy = cross_entropy;
    return CZ_OK;
}
