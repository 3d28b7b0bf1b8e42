/* Cross-entropy fused with the projection on the vocabulary: blocks of rows, panels of columns.
 *
 * A block has up to block_rows_max() rows, so that its logits (R,V) stay within 64 MiB; a panel has
 * up to PANEL words of the vocabulary, and is a dense matrix in memory. For each block:
 *   1. each panel:  z_p = x·w_pᵀ [+ bias_p], log Σ exp of its rows     → lse, loss of each row
 *   2. each panel:  dz_p = factor·(softmax(z_p) − onehot);  dx += dz_p·w_p;  dw_p [+]= dz_pᵀ·x
 * That is 6·N·C·V operations, as many as without fusion. A panel of z, of w and of dw fits the
 * last-level cache, and all products are dense. Limit: multiply-adds.
 *
 * dx is summed over panels in fp32 and rounded once. dw is summed over a block's rows in fp32 and
 * rounded per block: with a 16-bit grad_dtype, and more rows than a block has, as accumulation over
 * micro-batches rounds it. */
#include "ops/cross_entropy/cross_entropy_head_impl.h"
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "ops/table_impl.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

#define PANEL 2048
#define ALIGN ((size_t)64)

static inline int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* ---- blocks and panels ----------------------------------------------------------------------- */

static int64_t block_rows_max(int64_t V)
{
    return ce_head_rows_max(CE_HEAD_LOGITS_NUMEL_MAX, V);
}

static int64_t n_panels_of(int64_t V)
{
    return (V + PANEL - 1) / PANEL;
}

static bool makes_dx(const struct ce_head_args *a)
{
    return !a->dx_unwanted && !a->dz_given;
}

/* dx goes to its place at once when it is fp32 or needs no summing over panels. */
static bool dx_is_direct(const struct ce_head_args *a)
{
    return a->dtype == DTYPE_F32 || a->V <= PANEL;
}

/* ---- products -------------------------------------------------------------------------------- */

/* z (n,v) = x·wᵀ [+ bias] */
static struct matmul_args logits_product(const struct ce_head_args *a, int64_t n, int64_t v)
{
    return (struct matmul_args){.m = n,
                                .n = v,
                                .k = a->C,
                                .dtype = a->dtype,
                                .c_dtype = DTYPE_F32,
                                .trans_b = true,
                                .b_stays = true};
}

/* dx (n,C) [+]= dz·w */
static struct matmul_args dx_product(const struct ce_head_args *a, int64_t n, int64_t v,
                                     bool accumulate)
{
    return (struct matmul_args){.m = n,
                                .n = a->C,
                                .k = v,
                                .dtype = a->dtype,
                                .c_dtype = dx_is_direct(a) ? a->dtype : DTYPE_F32,
                                .accumulate = accumulate,
                                .b_stays = true};
}

/* dw (v,C) [+]= dzᵀ·x */
static struct matmul_args dw_product(const struct ce_head_args *a, int64_t n, int64_t v,
                                     bool accumulate)
{
    return (struct matmul_args){.m = v,
                                .n = a->C,
                                .k = n,
                                .dtype = a->dtype,
                                .c_dtype = a->grad_dtype,
                                .trans_a = true,
                                .accumulate = accumulate};
}

/* dbias (v) [+]= Σ over rows of dz, as a product with a row of n ones */
static struct matmul_args dbias_product(const struct ce_head_args *a, int64_t n, int64_t v,
                                        bool accumulate)
{
    return (struct matmul_args){.m = 1,
                                .n = v,
                                .k = n,
                                .dtype = a->dtype,
                                .c_dtype = a->grad_dtype,
                                .accumulate = accumulate};
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* Offsets in bytes. Sizes are those of the largest block of any N up to this one. */
struct layout {
    int64_t R; /* rows of a block here */
    size_t z, dz, dx, lse, panel_lse, z_label, z_max, losses, ones, scratch;
    size_t scratch_nbytes, nbytes;
};

static cz_status take(struct layout *l, int64_t rows, int64_t cols, size_t unit, size_t *off)
{
    size_t numel, nbytes;
    *off = l->nbytes;
    TRY(size_mul((size_t)rows, (size_t)cols, &numel));
    TRY(size_mul(numel, unit, &nbytes));
    TRY(size_add(nbytes, ALIGN - 1, &nbytes));
    return size_add(l->nbytes, nbytes / ALIGN * ALIGN, &l->nbytes);
}

static cz_status raise_to(struct ops *ops, struct matmul_args product, size_t *most)
{
    size_t nbytes;
    TRY(ops_matmul_workspace(ops, &product, &nbytes));
    size_raise(most, nbytes);
    return CZ_OK;
}

static cz_status raise_panel(struct ops *ops, const struct ce_head_args *a, int64_t n, int64_t v,
                             size_t *most)
{
    TRY(raise_to(ops, logits_product(a, n, v), most));
    if (!ce_head_has_gradients(a)) return CZ_OK;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        TRY(raise_to(ops, dx_product(a, n, v, accumulate), most));
        if (a->dw) TRY(raise_to(ops, dw_product(a, n, v, accumulate), most));
        if (a->dbias) TRY(raise_to(ops, dbias_product(a, n, v, accumulate), most));
    }
    return CZ_OK;
}

/* Scratch of the products of n rows: full and last panel, or all columns at once. */
static cz_status raise_rows(struct ops *ops, const struct ce_head_args *a, int64_t n, size_t *most)
{
    if (n == 0 || !a->labels) return CZ_OK;
    const int64_t last = a->V - (n_panels_of(a->V) - 1) * PANEL;
    if (a->V > PANEL) TRY(raise_panel(ops, a, n, PANEL, most));
    return raise_panel(ops, a, n, last, most);
}

/* Sizes are those of the largest block that any smaller batch can have, so that one workspace
 * serves all. */
static cz_status make_layout(struct ops *ops, const struct ce_head_args *a, struct layout *l)
{
    const int64_t most = least(a->N, block_rows_max(a->V)), panel = least(a->V, PANEL);
    const bool gradients = ce_head_has_gradients(a), narrow = a->dtype != DTYPE_F32;
    const int64_t rows = a->labels ? most : 0;
    *l = (struct layout){.R = ce_head_rows(a->N, block_rows_max(a->V))};
    TRY(take(l, rows, gradients ? a->V : panel, sizeof(float), &l->z));
    TRY(take(l, gradients && narrow ? rows : 0, panel, dtype_size(a->dtype), &l->dz));
    TRY(take(l, gradients && !dx_is_direct(a) ? rows : 0, a->C, sizeof(float), &l->dx));
    TRY(take(l, rows, 1, sizeof(float), &l->lse));
    TRY(take(l, rows, n_panels_of(a->V), sizeof(float), &l->panel_lse));
    TRY(take(l, rows, 1, sizeof(float), &l->z_label));
    TRY(take(l, a->hits ? rows : 0, 1, sizeof(float), &l->z_max));
    TRY(take(l, a->labels ? a->N : 0, 1, sizeof(double), &l->losses));
    TRY(take(l, gradients && a->dbias ? rows : 0, 1, dtype_size(a->dtype), &l->ones));
    l->scratch = l->nbytes;
    if (a->logits && a->N > 0)
        TRY(raise_to(ops, logits_product(a, a->N, a->V), &l->scratch_nbytes));
    TRY(raise_rows(ops, a, most, &l->scratch_nbytes));
    TRY(raise_rows(ops, a, l->R, &l->scratch_nbytes));
    if (l->R > 0) TRY(raise_rows(ops, a, a->N % l->R, &l->scratch_nbytes));
    TRY(size_add(l->nbytes, ALIGN, &l->nbytes)); /* the workspace may start anywhere */
    return size_add(l->nbytes, l->scratch_nbytes, &l->nbytes);
}

/* ---- one block of rows ----------------------------------------------------------------------- */

struct block {
    struct ops *ops;
    struct dev_stream *stream;
    const struct ce_head_args *a;
    const struct layout *l;
    int64_t first, n;                 /* rows */
    const void *x;                    /* (n,C) */
    float *z;                         /* panels one after another, (n,v) each */
    void *dz;                         /* (n,PANEL), or NULL: over z */
    float *lse, *panel_lse, *z_label; /* (n) (panels,n) (n) */
    float *z_max;                     /* (n), where hits are counted */
    double *losses;                   /* (n) */
    double scale;                     /* dloss/Σω */
    int64_t n_hits;
};

/* Columns [v0, v0 + v) of the vocabulary. */
struct panel {
    int64_t idx, v0, v;
    float *z;
};

static void *at(const struct block *b, size_t off)
{
    return (char *)size_round_up((uintptr_t)b->a->workspace, ALIGN) + off;
}

/* With gradients all panels' logits of a block are kept, because dz needs the sum over all of them
 * first; without, each panel takes the place of the last. */
static struct panel panel_of(const struct block *b, int64_t idx)
{
    struct panel p = {.idx = idx, .v0 = idx * PANEL, .z = b->z};
    p.v = least(PANEL, b->a->V - p.v0);
    if (ce_head_has_gradients(b->a))
        p.z += b->n * p.v0; /* else each panel takes the place of the last */
    return p;
}

static cz_status run_product(const struct block *b, struct matmul_args *product, const void *left,
                             const void *right, void *out)
{
    product->a = left;
    product->b = right;
    product->c = out;
    product->workspace = b->l->scratch_nbytes ? at(b, b->l->scratch) : NULL;
    product->workspace_nbytes = b->l->scratch_nbytes;
    return b->ops->matmul(b->ops, b->stream, product);
}

static const void *w_of(const struct block *b, int64_t v0)
{
    return (const char *)b->a->w + (size_t)(v0 * b->a->C) * dtype_size(b->a->dtype);
}

static int32_t label_of(const struct block *b, int64_t n)
{
    return b->a->labels[b->first + n];
}

static double weight_of(const struct block *b, int64_t n)
{
    return b->a->loss_weights ? (double)b->a->loss_weights[b->first + n] : 1.0;
}

static bool label_in(const struct panel *p, int32_t label)
{
    return label >= p->v0 && label < p->v0 + p->v;
}

/* Rows of a matrix of logits (n,v). */
static void cap_rows(struct ops *ops, const struct ce_head_args *a, float *z, int64_t n, int64_t v)
{
    int n_parts = a->softcap > 0 ? ops_n_parts((size_t)(n * v), OPS_GRAIN) : 0;
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t i = 0; i < (n_parts > 0 ? n : 0); i++)
        ops->cross_entropy_row->cap(z + i * v, (size_t)v, a->softcap);
}

static cz_status panel_logits(const struct block *b, const struct panel *p)
{
    const struct ce_head_args *a = b->a;
    if (a->logits) {
        for (int64_t n = 0; n < b->n; n++)
            memcpy(p->z + n * p->v, a->logits + (b->first + n) * a->V + p->v0,
                   (size_t)p->v * sizeof(float));
        return CZ_OK;
    }
    struct matmul_args product = logits_product(a, b->n, p->v);
    if (a->bias) product.bias = (const char *)a->bias + (size_t)p->v0 * dtype_size(a->dtype);
    TRY(run_product(b, &product, b->x, w_of(b, p->v0), p->z));
    cap_rows(b->ops, a, p->z, b->n, p->v);
    return CZ_OK;
}

/* The largest of v > 0 logits and of `most`: four at a time, because a maximum waits for the one
 * before it. Comparisons with NaN leave it out. */
static float largest_of(const float *z, int64_t v, float most)
{
    float by[4] = {most, most, most, most};
    int64_t i = 0;
    for (; i + 4 <= v; i += 4)
        for (int k = 0; k < 4; k++) by[k] = z[i + k] > by[k] ? z[i + k] : by[k];
    for (; i < v; i++) by[0] = z[i] > by[0] ? z[i] : by[0];
    for (int k = 1; k < 4; k++) by[0] = by[k] > by[0] ? by[k] : by[0];
    return by[0];
}

static void panel_statistics(const struct block *b, const struct panel *p)
{
    const struct cross_entropy_row *row = b->ops->cross_entropy_row;
    int n_parts = ops_n_parts((size_t)(b->n * p->v), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t n = 0; n < b->n; n++) {
        const float *z = p->z + n * p->v;
        const int32_t label = label_of(b, n);
        if (label == CZ_IGNORE_LABEL) continue;
        b->panel_lse[p->idx * b->n + n] = row->log_sum_exp(z, (size_t)p->v);
        if (label_in(p, label)) b->z_label[n] = z[label - p->v0];
        if (b->a->hits) b->z_max[n] = largest_of(z, p->v, p->idx > 0 ? b->z_max[n] : -INFINITY);
    }
}

/* log Σ exp over the panels of row n. The maximum is taken out first, and NaN and infinities are
 * passed on. */
static float combine(const struct block *b, int64_t n)
{
    const int64_t n_panels = n_panels_of(b->a->V);
    const float *lse = b->panel_lse + n;
    float most = -INFINITY;
    for (int64_t p = 0; p < n_panels; p++)
        if (lse[p * b->n] > most || isnan(lse[p * b->n])) most = lse[p * b->n];
    if (n_panels == 1 || isnan(most) || isinf(most)) return most;
    double sum = 0;
    for (int64_t p = 0; p < n_panels; p++) sum += exp((double)(lse[p * b->n] - most));
    return most + (float)log(sum);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void panel_dz_row(const struct block *b, const struct panel *p, int64_t n, void *dz)
{
    const enum cz_dtype dtype = b->a->dtype;
    const int32_t label = label_of(b, n);
    if (label == CZ_IGNORE_LABEL) {
        memset(dz, 0, (size_t)p->v * dtype_size(dtype));
        return;
    }
    const float factor = (float)(b->scale * weight_of(b, n)), lse = b->lse[n];
    const float cap = b->a->softcap, part = cap > 0 ? b->z_label[n] / cap : 0.0f;
    b->ops->cross_entropy_row->softmax_grad(p->z + n * p->v, (size_t)p->v, lse, factor, cap, dtype,
                                            dz);
    if (label_in(p, label)) /* from the fp32 value: p − 1 is rounded once */
        dtype_put(dz, (size_t)(label - p->v0), dtype,
                  factor * (expf(b->z_label[n] - lse) - 1.0f) * (1.0f - part * part));
}

/* The panel's part of the dz that is kept: panels one after another, block by block. */
static void *kept_dz(const struct block *b, const struct panel *p)
{
    const struct ce_head_args *a = b->a;
    return (char *)a->dz + (size_t)(b->first * a->V + b->n * p->v0) * dtype_size(a->dtype);
}

static void *panel_dz(const struct block *b, const struct panel *p)
{
    if (b->a->dz_given) return kept_dz(b, p);
    char *dz = b->a->dz ? kept_dz(b, p) : b->dz ? b->dz : (void *)p->z;
    const size_t row_nbytes = (size_t)p->v * dtype_size(b->a->dtype);
    int n_parts = ops_n_parts((size_t)(b->n * p->v), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t n = 0; n < b->n; n++) panel_dz_row(b, p, n, dz + (size_t)n * row_nbytes);
    return dz;
}

static void *grad_at(const struct ce_head_args *a, void *grad, int64_t idx)
{
    return (char *)grad + (size_t)idx * dtype_size(a->grad_dtype);
}

/* dx and dw gather over panels and blocks by accumulation, in an order that does not depend on
 * threads. */
static cz_status panel_gradients(const struct block *b, const struct panel *p, void *dx)
{
    const struct ce_head_args *a = b->a;
    const void *dz = panel_dz(b, p);
    struct matmul_args to_dx = dx_product(a, b->n, p->v, p->idx > 0);
    if (makes_dx(a)) TRY(run_product(b, &to_dx, dz, w_of(b, p->v0), dx));
    if (a->dw) {
        struct matmul_args to_dw = dw_product(a, b->n, p->v, b->first > 0 || a->dw_accumulate);
        TRY(run_product(b, &to_dw, dz, b->x, grad_at(a, a->dw, p->v0 * a->C)));
    }
    if (!a->dbias) return CZ_OK;
    struct matmul_args to_dbias = dbias_product(a, b->n, p->v, b->first > 0 || a->dbias_accumulate);
    return run_product(b, &to_dbias, at(b, b->l->ones), dz, grad_at(a, a->dbias, p->v0));
}

static cz_status block_gradients(const struct block *b)
{
    const struct ce_head_args *a = b->a;
    void *dx = (char *)a->dx + (size_t)(b->first * a->C) * dtype_size(a->dtype);
    float *sums = at(b, b->l->dx);
    const bool direct = dx_is_direct(a);
    for (int64_t n = 0; a->dbias && n < b->n; n++)
        dtype_put(at(b, b->l->ones), (size_t)n, a->dtype, 1.0f);
    for (int64_t idx = 0; idx < n_panels_of(a->V); idx++) {
        struct panel p = panel_of(b, idx);
        TRY(panel_gradients(b, &p, direct ? dx : sums));
    }
    if (direct || !makes_dx(a)) return CZ_OK;
    struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                   .y_dtype = a->dtype,
                                   .numel = (size_t)(b->n * a->C),
                                   .alpha = 1.0f,
                                   .x = sums,
                                   .y = dx};
    return b->ops->cast_scale(b->ops, b->stream, &cast);
}

static cz_status block_run(struct block *b)
{
    if (b->a->dz_given) return block_gradients(b);
    for (int64_t idx = 0; idx < n_panels_of(b->a->V); idx++) {
        struct panel p = panel_of(b, idx);
        TRY(panel_logits(b, &p));
        panel_statistics(b, &p);
    }
    for (int64_t n = 0; n < b->n; n++) {
        float *log_prob = b->a->log_probs ? &b->a->log_probs[b->first + n] : NULL;
        b->losses[n] = 0;
        if (log_prob) *log_prob = 0;
        if (label_of(b, n) == CZ_IGNORE_LABEL) continue;
        b->lse[n] = combine(b, n);
        const double loss = (double)b->lse[n] - (double)b->z_label[n];
        b->losses[n] = weight_of(b, n) * loss;
        if (log_prob) *log_prob = (float)-loss;
        if (b->a->hits) b->n_hits += b->z_label[n] == b->z_max[n];
    }
    return ce_head_has_gradients(b->a) ? block_gradients(b) : CZ_OK;
}

/* ---- entry points ---------------------------------------------------------------------------- */

cz_status cross_entropy_head_workspace(struct ops *ops, const struct ce_head_args *a,
                                       size_t *nbytes)
{
    *nbytes = 0;
    TRY(ce_head_check_shape(a));
    struct layout layout;
    TRY(make_layout(ops, a, &layout));
    *nbytes = layout.nbytes;
    return CZ_OK;
}

/* Nothing to learn from an empty batch: gradients that would be overwritten become zero. */
static void clear_gradients(const struct ce_head_args *a)
{
    size_t unit = dtype_size(a->grad_dtype);
    if (!ce_head_has_gradients(a)) return;
    if (a->dw && !a->dw_accumulate) memset(a->dw, 0, (size_t)(a->V * a->C) * unit);
    if (a->dbias && !a->dbias_accumulate) memset(a->dbias, 0, (size_t)a->V * unit);
}

static struct block block_of(struct ops *ops, struct dev_stream *stream,
                             const struct ce_head_args *a, const struct layout *l)
{
    struct block b = {.ops = ops, .stream = stream, .a = a, .l = l};
    b.z = at(&b, l->z);
    if (a->dtype != DTYPE_F32) b.dz = at(&b, l->dz);
    b.lse = at(&b, l->lse);
    b.panel_lse = at(&b, l->panel_lse);
    b.z_label = at(&b, l->z_label);
    b.z_max = at(&b, l->z_max);
    return b;
}

static cz_status all_logits(const struct block *b)
{
    const struct ce_head_args *a = b->a;
    struct matmul_args product = logits_product(a, a->N, a->V);
    product.bias = a->bias;
    TRY(run_product(b, &product, a->x, a->w, a->logits));
    cap_rows(b->ops, a, a->logits, a->N, a->V);
    return CZ_OK;
}

/* Losses are summed in the order of the rows, in double. */
static cz_status all_blocks(struct block *b)
{
    const struct ce_head_args *a = b->a;
    double *losses = at(b, b->l->losses), sum = 0;
    const double divisor = cross_entropy_divisor(a->labels, a->loss_weights, a->N, a->divisor);
    b->scale = divisor != 0 ? (double)a->dloss / divisor : 0;
    for (b->first = 0; b->first < a->N; b->first += b->l->R) {
        b->n = least(b->l->R, a->N - b->first);
        b->x = (const char *)a->x + (size_t)(b->first * a->C) * dtype_size(a->dtype);
        b->losses = losses + b->first;
        TRY(block_run(b));
    }
    if (a->dz_given) return CZ_OK;
    for (int64_t n = 0; n < a->N; n++) sum += losses[n];
    *a->loss = divisor != 0 ? (float)(sum / divisor) : 0.0f;
    if (a->hits) *a->hits = (float)b->n_hits;
    return CZ_OK;
}

cz_status cross_entropy_head(struct ops *ops, struct dev_stream *stream,
                             const struct ce_head_args *a)
{
    TRY(ce_head_check(a));
    if (a->labels) TRY(cross_entropy_check_labels("ce_head", a->labels, a->N, a->V));
    struct layout layout;
    TRY(make_layout(ops, a, &layout));
    TRY(ops_check_workspace("ce_head", a->workspace, a->workspace_nbytes, layout.nbytes));
    if (a->N == 0) clear_gradients(a);
    struct block b = block_of(ops, stream, a, &layout);
    if (a->logits && a->N > 0) TRY(all_logits(&b));
    return a->labels ? all_blocks(&b) : CZ_OK;
}
