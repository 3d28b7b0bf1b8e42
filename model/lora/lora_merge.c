/* A model whose branches are added into its weights: W + scale·B·A, made piece by piece in fp32
 * while the folder is written, so that no weight is in memory whole. DoRA's rows are then scaled to
 * their lengths, for which the weight is gone over once more before. */
#include "model/lora/lora_impl.h"

#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The branch of one weight (rows, cols) as left (rows,R) · right (R,cols): B·A where the weight is
 * (out,in), Aᵀ·Bᵀ where it is (in,out). */
struct product {
    size_t param_idx; /* of the weight; SIZE_MAX: none yet */
    int64_t rank;
    float scale;
    float *left, *right;
    float *factor; /* (out) of its rows; NULL: without DoRA */
    bool in_out;
};

struct merge {
    const struct cz_model *m;
    model_fetch fetch;
    void *user;
    const struct layer_branch **branch_of; /* (n_params) of a weight; NULL: none */
    const struct model_layer **layer_of;   /* (n_params) */
    struct product product;                /* of the weight that was asked for last */
};

static void transpose(const float *x, int64_t rows, int64_t cols, float *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) y[j * rows + i] = x[i * cols + j];
}

static void product_free(struct product *p)
{
    free(p->left);
    free(p->right);
    free(p->factor);
    *p = (struct product){.param_idx = SIZE_MAX};
}

/* A and B are small: both are held whole. */
static cz_status take_product(struct merge *g, size_t param_idx)
{
    const struct layer_branch *b = g->branch_of[param_idx];
    const struct model_layer *layer = g->layer_of[param_idx];
    const size_t a_idx = layer->param_idx[b->a], b_idx = layer->param_idx[b->b];
    const struct param_info *A = &g->m->params.params[a_idx], *B = &g->m->params.params[b_idx];
    struct product *p = &g->product;
    product_free(p);
    p->rank = b->rank;
    p->scale = b->scale;
    p->in_out = layer->cls->flags & LAYER_MAPS_IN_OUT;
    p->left = malloc((A->numel > B->numel ? A->numel : B->numel) * sizeof *p->left);
    p->right = malloc((A->numel > B->numel ? A->numel : B->numel) * sizeof *p->right);
    if (!p->left || !p->right) return err_set(CZ_NOMEM, 0, "no memory to merge an adapter");
    if (p->in_out) {
        TRY(g->fetch(g->user, a_idx, 0, A->numel, p->right));
        transpose(p->right, A->shape[0], A->shape[1], p->left);
        float *untransposed = malloc(B->numel * sizeof *untransposed);
        if (!untransposed) return err_set(CZ_NOMEM, 0, "no memory to merge an adapter");
        cz_status st = g->fetch(g->user, b_idx, 0, B->numel, untransposed);
        if (st == CZ_OK) transpose(untransposed, B->shape[0], B->shape[1], p->right);
        free(untransposed);
        TRY(st);
    } else {
        TRY(g->fetch(g->user, b_idx, 0, B->numel, p->left));
        TRY(g->fetch(g->user, a_idx, 0, A->numel, p->right));
    }
    p->param_idx = param_idx;
    return CZ_OK;
}

/* Elements [off, off + numel) of the product, added to dst. */
static void add_product(const struct product *p, size_t cols, size_t off, size_t numel, float *dst)
{
    const size_t end = off + numel;
#pragma omp parallel for schedule(static) if (numel > 65536 && threads_count() > 1)
    for (size_t row = off / cols; row <= (end - 1) / cols; row++) {
        const size_t first = row * cols > off ? row * cols : off;
        const size_t last = (row + 1) * cols < end ? (row + 1) * cols : end;
        const float *left = p->left + row * (size_t)p->rank;
        for (size_t e = first; e < last; e++) {
            float sum = 0.0f;
            for (size_t r = 0; r < (size_t)p->rank; r++)
                sum += left[r] * p->right[r * cols + e % cols];
            dst[e - off] += p->scale * sum;
        }
    }
}

/* m over the lengths that the sum has. */
static cz_status take_factors(struct merge *g, size_t param_idx)
{
    const struct layer_branch *b = g->branch_of[param_idx];
    const struct param_info *w = &g->m->params.params[param_idx];
    struct product *p = &g->product;
    const size_t rows = (size_t)w->shape[0], cols = (size_t)w->shape[1];
    const size_t n_out = p->in_out ? cols : rows;
    if (!b->is_dora) return CZ_OK;
    p->factor = malloc(n_out * sizeof *p->factor);
    float *row = malloc(cols * sizeof *row);
    double *sums = calloc(n_out, sizeof *sums);
    cz_status st =
        p->factor && row && sums ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory to merge an adapter");
    for (size_t i = 0; i < rows && st == CZ_OK; i++) {
        st = g->fetch(g->user, param_idx, i * cols, cols, row);
        if (st == CZ_OK) add_product(p, cols, i * cols, cols, row);
        for (size_t k = 0; k < cols && st == CZ_OK; k++)
            sums[p->in_out ? k : i] += (double)row[k] * (double)row[k];
    }
    if (st == CZ_OK)
        st = g->fetch(g->user, g->layer_of[param_idx]->param_idx[b->m], 0, n_out, p->factor);
    for (size_t o = 0; o < n_out && st == CZ_OK; o++)
        p->factor[o] = sums[o] > 0 ? (float)((double)p->factor[o] / sqrt(sums[o])) : 0.0f;
    free(row);
    free(sums);
    return st;
}

static cz_status fetch_merged(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    struct merge *g = user;
    TRY(g->fetch(g->user, param_idx, off, numel, dst));
    if (!g->branch_of[param_idx] || numel == 0) return CZ_OK;
    const size_t cols = (size_t)g->m->params.params[param_idx].shape[1];
    if (g->product.param_idx != param_idx) {
        TRY(take_product(g, param_idx));
        TRY(take_factors(g, param_idx));
    }
    const struct product *p = &g->product;
    add_product(p, cols, off, numel, dst);
    for (size_t e = off; p->factor && e < off + numel; e++)
        dst[e - off] *= p->factor[p->in_out ? e % cols : e / cols];
    return CZ_OK;
}

cz_status model_export_merged(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                              model_fetch fetch, void *user)
{
    struct merge g = {.m = m, .fetch = fetch, .user = user, .product = {.param_idx = SIZE_MAX}};
    if (!m->lora) return err_set(CZ_INVALID, 0, "%s has no adapter to merge", m->name);
    g.branch_of = calloc(m->params.n_params, sizeof *g.branch_of);
    g.layer_of = calloc(m->params.n_params, sizeof *g.layer_of);
    cz_status st =
        g.branch_of && g.layer_of ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory to merge an adapter");
    for (size_t i = 0; i < m->n_layers && st == CZ_OK; i++)
        for (size_t k = 0; k < m->layers[i].n_branches; k++) {
            const size_t idx = m->layers[i].param_idx[m->layers[i].branches[k].w];
            g.branch_of[idx] = &m->layers[i].branches[k];
            g.layer_of[idx] = &m->layers[i];
        }
    if (st == CZ_OK) st = model_export_hf(m, dir, dtype, fetch_merged, &g);
    product_free(&g.product);
    free(g.branch_of);
    free(g.layer_of);
    return st;
}
