/* A model whose branches are added into its weights: W + scale·B·A, made piece by piece in fp32
 * while the folder is written, so that no weight is in memory whole. */
#include "model/lora/lora_impl.h"

#include <stdlib.h>
#include <string.h>

/* The branch of one weight (rows, cols) as left (rows,R) · right (R,cols): B·A where the weight is
 * (out,in), Aᵀ·Bᵀ where it is (in,out). */
struct product {
    size_t param_idx; /* of the weight; SIZE_MAX: none yet */
    int64_t rank;
    float scale;
    float *left, *right;
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

/* A and B are small: both are held whole. */
static cz_status take_product(struct merge *g, size_t param_idx)
{
    const struct layer_branch *b = g->branch_of[param_idx];
    const struct model_layer *layer = g->layer_of[param_idx];
    const size_t a_idx = layer->param_idx[b->a], b_idx = layer->param_idx[b->b];
    const struct param_info *A = &g->m->params.params[a_idx], *B = &g->m->params.params[b_idx];
    struct product *p = &g->product;
    if (p->param_idx == param_idx) return CZ_OK;
    free(p->left);
    free(p->right);
    *p = (struct product){.param_idx = SIZE_MAX, .rank = b->rank, .scale = b->scale};
    p->left = malloc((A->numel > B->numel ? A->numel : B->numel) * sizeof *p->left);
    p->right = malloc((A->numel > B->numel ? A->numel : B->numel) * sizeof *p->right);
    if (!p->left || !p->right) return err_set(CZ_NOMEM, 0, "no memory to merge an adapter");
    if (layer->cls->flags & LAYER_MAPS_IN_OUT) {
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
#pragma omp parallel for schedule(static) if (numel > 65536)
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

static cz_status fetch_merged(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    struct merge *g = user;
    TRY(g->fetch(g->user, param_idx, off, numel, dst));
    if (!g->branch_of[param_idx] || numel == 0) return CZ_OK;
    TRY(take_product(g, param_idx));
    add_product(&g->product, (size_t)g->m->params.params[param_idx].shape[1], off, numel, dst);
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
    free(g.product.left);
    free(g.product.right);
    free(g.branch_of);
    free(g.layer_of);
    return st;
}
