#include "engine/infer.h"

#include "base/arena.h"
#include "base/size.h"
#include "base/threads.h"
#include "engine/batch_check.h"
#include "engine/chain.h"

#include <stdlib.h>
#include <string.h>

struct infer {
    struct model *model;
    struct infer_options options;
    struct device *device;
    struct ops *ops;
    struct chain *chain;
    struct arena arena;
    const void **params; /* by parameter index, in the arena */
    void **grads;        /* NULL entries: frozen; NULL: no gradients */
    bool has_gradients;
};

enum { STAGE_NUMEL = 1 << 18 }; /* weights pass through fp32 pieces of this size */

/* ---- planning ---------------------------------------------------------------------------------
 */

static cz_status plan_add(size_t *total, size_t nbytes)
{
    if (nbytes > SIZE_MAX / 2) return err_set(CZ_NOMEM, 0, "this model is beyond any memory");
    return size_add(*total, arena_piece(nbytes), total);
}

/* The arena's bytes, in the order that place() takes them. */
static cz_status plan(const struct infer *in, size_t *total)
{
    const struct param_table *t = model_params(in->model);
    const struct chain_sizes s = chain_sizes(in->chain);
    *total = 0;
    for (size_t i = 0; i < t->n_params; i++) {
        size_t nbytes = 0;
        TRY(size_mul(t->params[i].numel, dtype_size(in->options.dtype), &nbytes));
        TRY(plan_add(total, nbytes));
        if (in->options.gradients) TRY(plan_add(total, t->params[i].numel * sizeof(float)));
    }
    TRY(plan_add(total, s.activations));
    TRY(plan_add(total, s.workspace));
    TRY(plan_add(total, s.gradients));
    return plan_add(total, s.cache);
}

/* Refuse before the kernel's out-of-memory killer would. */
static cz_status check_fits(const struct infer *in, size_t nbytes)
{
    size_t free_nbytes = 0, total_nbytes = 0;
    char need[24], have[24];
    TRY(in->device->ops->mem_info(in->device, &free_nbytes, &total_nbytes));
    if (nbytes <= free_nbytes) return CZ_OK;
    return err_set(CZ_NOMEM, 0,
                   "%s in %s with %lld×%lld tokens needs %s of memory, %s are free: a shorter "
                   "sequence or a 16-bit dtype would need less",
                   model_name(in->model), dtype_name(in->options.dtype), (long long)in->options.B,
                   (long long)in->options.T, size_human(nbytes, need, sizeof need),
                   size_human(free_nbytes, have, sizeof have));
}

static cz_status place(struct infer *in)
{
    const struct param_table *t = model_params(in->model);
    const struct chain_sizes s = chain_sizes(in->chain);
    struct chain_memory memory = {.params = in->params, .grads = in->grads};
    for (size_t i = 0; i < t->n_params; i++) {
        const struct param_info *p = &t->params[i];
        void *w, *g;
        TRY(arena_take(&in->arena, p->numel * dtype_size(in->options.dtype), p->name, &w));
        in->params[i] = w;
        if (!in->options.gradients) continue;
        TRY(arena_take(&in->arena, p->numel * sizeof(float), p->name, &g));
        in->grads[i] = p->trainable ? g : NULL;
    }
    TRY(arena_take(&in->arena, s.activations, "activations", &memory.activations));
    TRY(arena_take(&in->arena, s.workspace, "workspace", &memory.workspace));
    TRY(arena_take(&in->arena, s.gradients, "activation gradients", &memory.gradients));
    TRY(arena_take(&in->arena, s.cache, "key/value cache", &memory.cache));
    chain_bind(in->chain, &memory);
    return CZ_OK;
}

/* ---- weights ----------------------------------------------------------------------------------
 */

static cz_status read_param(struct infer *in, size_t idx, float *stage)
{
    const size_t numel = model_params(in->model)->params[idx].numel;
    unsigned char *dst = (unsigned char *)(uintptr_t)in->params[idx];
    if (in->options.dtype == DTYPE_F32)
        return model_read_weights(in->model, idx, 0, numel, (float *)(void *)dst);
    for (size_t off = 0; off < numel; off += STAGE_NUMEL) {
        const size_t n = numel - off < STAGE_NUMEL ? numel - off : STAGE_NUMEL;
        TRY(model_read_weights(in->model, idx, off, n, stage));
        const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                             .y_dtype = in->options.dtype,
                                             .numel = n,
                                             .alpha = 1.0f,
                                             .x = stage,
                                             .y = dst + off * dtype_size(in->options.dtype)};
        TRY(in->ops->cast_scale(in->ops, NULL, &cast));
    }
    return CZ_OK;
}

static cz_status read_params(struct infer *in)
{
    float *stage = malloc(STAGE_NUMEL * sizeof *stage);
    if (!stage) return err_set(CZ_NOMEM, 0, "no memory to read weights");
    cz_status st = CZ_OK;
    for (size_t i = 0; i < model_params(in->model)->n_params && st == CZ_OK; i++)
        st = read_param(in, i, stage);
    free(stage);
    return st;
}

/* ---- life -------------------------------------------------------------------------------------
 */

static cz_status infer_init(struct infer *in)
{
    const struct infer_options *o = &in->options;
    const size_t n_params = model_params(in->model)->n_params;
    size_t nbytes = 0;
    if (o->T > model_t_max(in->model))
        return err_set(CZ_INVALID, 0, "%s takes sequences of up to %lld tokens, not %lld",
                       model_name(in->model), (long long)model_t_max(in->model), (long long)o->T);
    if (o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16)
        return err_set(CZ_INVALID, 0, "weights can be fp32, bf16 or fp16, not %s",
                       dtype_name(o->dtype));
    threads_init(1);
    TRY(device_open("cpu", 0, &in->device));
    TRY(ops_create(in->device, &in->ops));
    const struct chain_options chain = {.ops = in->ops,
                                        .B = o->B,
                                        .T = o->T,
                                        .dtype = o->dtype,
                                        .grad_dtype = DTYPE_F32,
                                        .training = o->gradients,
                                        .cache = o->cache};
    TRY(chain_create(in->model, &chain, &in->chain));
    in->params = calloc(n_params, sizeof *in->params);
    if (o->gradients) in->grads = calloc(n_params, sizeof *in->grads);
    if (!in->params || (o->gradients && !in->grads))
        return err_set(CZ_NOMEM, 0, "no memory for %zu parameters", n_params);
    TRY(plan(in, &nbytes));
    TRY(check_fits(in, nbytes));
    TRY(arena_init(&in->arena, "inference", nbytes));
    TRY(place(in));
    return read_params(in);
}

cz_status infer_create(struct model *model, const struct infer_options *options, struct infer **out)
{
    *out = NULL;
    struct infer *in = calloc(1, sizeof *in);
    if (!in) return err_set(CZ_NOMEM, 0, "no memory to run %s", model_name(model));
    in->model = model;
    in->options = *options;
    cz_status st = infer_init(in);
    if (st != CZ_OK) {
        infer_destroy(in);
        return st;
    }
    *out = in;
    return CZ_OK;
}

void infer_destroy(struct infer *in)
{
    if (!in) return;
    arena_free(&in->arena);
    free(in->params);
    free(in->grads);
    chain_destroy(in->chain);
    ops_destroy(in->ops);
    device_close(in->device);
    free(in);
}

/* ---- running ----------------------------------------------------------------------------------
 */

cz_status infer_forward(struct infer *in, const struct batch *batch, float *loss, float *logits)
{
    TRY(batch_check(in->model, batch, loss != NULL));
    const struct chain_run run = {
        .batch = batch, .mode = LAYER_EVAL, .loss = loss, .logits = logits};
    return chain_forward(in->chain, &run);
}

cz_status infer_hidden(struct infer *in, const struct batch *batch, float *hidden)
{
    TRY(batch_check(in->model, batch, false));
    const struct chain_run run = {.batch = batch, .mode = LAYER_EVAL, .hidden = hidden};
    return chain_forward(in->chain, &run);
}

cz_status infer_gradients(struct infer *in, const struct batch *batch, float *loss)
{
    TRY(batch_check(in->model, batch, true));
    const struct chain_run run = {
        .batch = batch, .mode = LAYER_TRAIN, .no_dropout = true, .dloss = 1.0f, .loss = loss};
    TRY(chain_forward(in->chain, &run));
    TRY(chain_backward(in->chain));
    in->has_gradients = true;
    return CZ_OK;
}

const float *infer_gradient(const struct infer *in, size_t param_idx)
{
    if (!in->has_gradients || param_idx >= model_params(in->model)->n_params) return NULL;
    return in->grads[param_idx];
}

bool infer_can_decode(const struct infer *in)
{
    return chain_can_decode(in->chain);
}

cz_status infer_decode(struct infer *in, const struct batch *batch, int64_t position, float *logits)
{
    TRY(batch_check(in->model, batch, false));
    return chain_decode(in->chain, NULL, batch, position, logits);
}

size_t infer_nbytes(const struct infer *in)
{
    return in->arena.nbytes;
}
