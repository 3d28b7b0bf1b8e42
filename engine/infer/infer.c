/* A model's forward without a run: evaluation, hidden states, gradients for comparison, decoding.
 * Whole weights on one device and no optimizer; everything is allocated at creation, after a check
 * that it fits. On the host layers read the caller's batch in place. */
#include "ops/elementwise/elementwise.h"

#include <czero/infer.h>

#include "base/arena.h"
#include "base/host/entry.h"
#include "base/options.h"
#include "base/size.h"
#include "base/threads.h"
#include "engine/batch_check.h"
#include "engine/batch_stage.h"
#include "engine/chain/chain.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

struct cz_infer {
    struct cz_model *model;
    struct cz_infer_options options;
    struct device *device;
    struct ops *ops;
    struct chain *chain;
    struct arena arena; /* the host: everything; a GPU: what the host sees of it */
    unsigned char *gpu; /* a GPU's memory */
    size_t gpu_nbytes, gpu_used;
    const void **params;      /* by parameter index, on the device */
    void **grads;             /* NULL entries: frozen; NULL: no gradients */
    void **seen_grads;        /* the same for the host to read */
    float *fp32;              /* a GPU's: weights of 16 bits pass through here */
    struct batch_stage stage; /* a GPU's */
    struct batch batch;       /* the host: the caller's, as layers read it */
    int32_t *positions;       /* the host: of a model that counts them in its own way (B,T) */
    bool has_gradients;
};

enum { STAGE_NUMEL = 1 << 18 }; /* weights pass through fp32 pieces of this size */

static bool is_host(const struct cz_infer *in)
{
    return in->device->ops->kind == DEVICE_HOST;
}

/* ---- planning ------------------------------------------------------------------------------- */

/* A bound below overflow of any later sum. */
static cz_status plan_add(size_t *total, size_t nbytes)
{
    if (nbytes > SIZE_MAX / 2) return err_set(CZ_NOMEM, 0, "this model is beyond any memory");
    return size_add(*total, arena_piece(nbytes), total);
}

/* Only weights of 16 bits need a place to be narrowed in. */
static size_t fp32_nbytes(const struct cz_infer *in)
{
    return in->options.dtype == DTYPE_F32 ? 0 : STAGE_NUMEL * sizeof(float);
}

/* The host reads the caller's arrays in place, so this one has no other memory. */
static size_t positions_nbytes(const struct cz_infer *in)
{
    return model_counts_positions(in->model)
               ? (size_t)in->options.B * (size_t)in->options.T * sizeof(int32_t)
               : 0;
}

/* Bytes on a GPU besides what the host would need, and of what the host sees of it. */
static cz_status plan_gpu(const struct cz_infer *in, size_t *total, size_t *seen)
{
    const struct param_table *t = model_params(in->model);
    const int64_t B = in->options.B, T = in->options.T;
    const enum device_kind kind = in->device->ops->kind;
    TRY(plan_add(total, batch_stage_nbytes(kind, in->model, B, T)));
    TRY(plan_add(total, fp32_nbytes(in)));
    TRY(plan_add(seen, batch_stage_host_nbytes(kind, in->model, B, T)));
    for (size_t i = 0; in->options.gradients && i < t->n_params; i++)
        TRY(plan_add(seen, t->params[i].numel * sizeof(float)));
    return CZ_OK;
}

/* The device's bytes, in the order in which infer_init() takes them; then those of plan_gpu(). */
static cz_status plan(const struct cz_infer *in, size_t *total, size_t *seen)
{
    const struct param_table *t = model_params(in->model);
    const struct chain_sizes s = chain_sizes(in->chain);
    *total = *seen = 0;
    for (size_t i = 0; i < t->n_params; i++) {
        size_t nbytes = 0;
        TRY(size_mul(t->params[i].numel, dtype_size(in->options.dtype), &nbytes));
        TRY(plan_add(total, nbytes));
        if (in->options.gradients) TRY(plan_add(total, t->params[i].numel * sizeof(float)));
    }
    TRY(plan_add(total, s.activations));
    TRY(plan_add(total, s.workspace));
    TRY(plan_add(total, s.gradients));
    TRY(plan_add(total, s.cache));
    return is_host(in) ? plan_add(total, positions_nbytes(in)) : plan_gpu(in, total, seen);
}

/* Memory of both, of which no piece has been taken. */
static cz_status allocate(struct cz_infer *in)
{
    size_t nbytes, seen_nbytes;
    TRY(plan(in, &nbytes, &seen_nbytes));
    /* Refuse before the kernel's out-of-memory killer would. */
    size_t free_nbytes = 0, total_nbytes = 0;
    char need[24], have[24];
    TRY(in->device->ops->mem_info(in->device, &free_nbytes, &total_nbytes));
    if (nbytes > free_nbytes)
        return err_set(
            CZ_NOMEM, 0,
            "%s in %s with %lld×%lld tokens needs %s of %smemory, %s are free: a shorter "
            "sequence or a 16-bit dtype would need less",
            cz_model_name(in->model), dtype_name(in->options.dtype), (long long)in->options.B,
            (long long)in->options.T, size_human(nbytes, need, sizeof need),
            is_host(in) ? "" : "GPU ", size_human(free_nbytes, have, sizeof have));
    if (is_host(in)) return arena_init(&in->arena, "inference", nbytes);
    TRY(arena_init(&in->arena, "inference", seen_nbytes));
    in->gpu_nbytes = nbytes;
    return in->device->ops->mem_alloc(in->device, nbytes, "inference", (void **)&in->gpu);
}

/* The next piece of the device's memory. */
static cz_status take(struct cz_infer *in, size_t nbytes, const char *what, void **out)
{
    if (is_host(in)) return arena_take(&in->arena, nbytes, what, out);
    *out = in->gpu + in->gpu_used;
    in->gpu_used += arena_piece(nbytes);
    return CZ_OK;
}

/* Gradients are fp32 whatever the weights' type: they are compared, not trained with. */
static cz_status place_params(struct cz_infer *in)
{
    const struct param_table *t = model_params(in->model);
    for (size_t i = 0; i < t->n_params; i++) {
        const struct param_info *p = &t->params[i];
        void *w, *g;
        TRY(take(in, p->numel * dtype_size(in->options.dtype), p->name, &w));
        in->params[i] = w;
        if (!in->options.gradients) continue;
        TRY(take(in, p->numel * sizeof(float), p->name, &g));
        in->grads[i] = in->seen_grads[i] = p->trainable ? g : NULL;
    }
    return CZ_OK;
}

/* A second copy of gradients in the host: the caller reads them there. */
static cz_status place_gpu(struct cz_infer *in)
{
    const struct param_table *t = model_params(in->model);
    const int64_t B = in->options.B, T = in->options.T;
    const enum device_kind kind = in->device->ops->kind;
    void *batch, *fp32, *seen;
    TRY(take(in, batch_stage_nbytes(kind, in->model, B, T), "micro-batch", &batch));
    TRY(take(in, fp32_nbytes(in), "weights on their way", &fp32));
    in->fp32 = fp32;
    TRY(arena_take(&in->arena, batch_stage_host_nbytes(kind, in->model, B, T), "micro-batch",
                   &seen));
    TRY(batch_stage_bind(&in->stage, in->model, B, T, in->device, NULL, batch, seen));
    for (size_t i = 0; in->options.gradients && i < t->n_params; i++) {
        TRY(arena_take(&in->arena, t->params[i].numel * sizeof(float), t->params[i].name, &seen));
        if (in->grads[i]) in->seen_grads[i] = seen;
    }
    return CZ_OK;
}

/* ---- weights -------------------------------------------------------------------------------- */

/* On a GPU the cast runs there: half of the bytes would otherwise be converted by one host
 * thread. */
static cz_status put_weights(struct cz_infer *in, const float *src, size_t n, void *dst)
{
    struct device *device = in->device;
    const void *x = src;
    if (!is_host(in)) {
        x = in->options.dtype == DTYPE_F32 ? dst : in->fp32;
        TRY(device->ops->copy(device, NULL, (void *)(uintptr_t)x, src, n * sizeof *src));
        if (x == dst) return CZ_OK;
    }
    const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                         .y_dtype = in->options.dtype,
                                         .numel = n,
                                         .alpha = 1.0f,
                                         .x = x,
                                         .y = dst};
    return ops_cast_scale(in->ops, NULL, &cast);
}

static cz_status read_param(struct cz_infer *in, size_t idx, float *stage)
{
    const size_t numel = model_params(in->model)->params[idx].numel;
    unsigned char *dst = (unsigned char *)(uintptr_t)in->params[idx];
    if (in->options.dtype == DTYPE_F32 && is_host(in))
        return model_read_weights(in->model, idx, 0, numel, (float *)(void *)dst);
    for (size_t off = 0; off < numel; off += STAGE_NUMEL) {
        const size_t n = numel - off < STAGE_NUMEL ? numel - off : STAGE_NUMEL;
        TRY(model_read_weights(in->model, idx, off, n, stage));
        TRY(put_weights(in, stage, n, dst + off * dtype_size(in->options.dtype)));
    }
    return CZ_OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Checked first against what the model takes, then planned, allocated and filled. */
static cz_status infer_init(struct cz_infer *in)
{
    const struct cz_infer_options *o = &in->options;
    const size_t n_params = model_params(in->model)->n_params;
    if (o->T > cz_model_t_max(in->model))
        return err_set(CZ_INVALID, 0, "%s takes sequences of up to %lld tokens, not %lld",
                       cz_model_name(in->model), (long long)cz_model_t_max(in->model),
                       (long long)o->T);
    if (o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16)
        return err_set(CZ_INVALID, 0, "weights can be fp32, bf16 or fp16, not %s",
                       dtype_name(o->dtype));
    threads_init(1);
    TRY(device_open_named(o->device, 0, &in->device));
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
    if (o->gradients) in->seen_grads = calloc(n_params, sizeof *in->seen_grads);
    if (!in->params || (o->gradients && (!in->grads || !in->seen_grads)))
        return err_set(CZ_NOMEM, 0, "no memory for %zu parameters", n_params);
    TRY(allocate(in));
    /* Blocks are cut from the one allocation, in the order in which they were planned. */
    const struct chain_sizes s = chain_sizes(in->chain);
    struct chain_memory memory = {.params = in->params, .grads = in->grads};
    TRY(place_params(in));
    TRY(take(in, s.activations, "activations", &memory.activations));
    TRY(take(in, s.workspace, "workspace", &memory.workspace));
    TRY(take(in, s.gradients, "activation gradients", &memory.gradients));
    TRY(take(in, s.cache, "key/value cache", &memory.cache));
    chain_bind(in->chain, &memory);
    void *positions = NULL;
    if (is_host(in)) TRY(take(in, positions_nbytes(in), "positions", &positions));
    in->positions = positions;
    if (!is_host(in)) TRY(place_gpu(in));
    /* Weights come through a staging buffer, piece by piece: the file may be larger than the host's
     * free memory. */
    float *stage = malloc(STAGE_NUMEL * sizeof *stage);
    if (!stage) return err_set(CZ_NOMEM, 0, "no memory to read weights");
    cz_status st = CZ_OK;
    for (size_t i = 0; i < model_params(in->model)->n_params && st == CZ_OK; i++)
        st = read_param(in, i, stage);
    if (st == CZ_OK) st = in->device->ops->stream_sync(in->device, NULL);
    free(stage);
    return st;
}

cz_status cz_infer_create(struct cz_model *model, const struct cz_infer_options *options,
                          struct cz_infer **out)
{
    API_ENTRY;
    NEED(out, "out");
    *out = NULL;
    NEED(model, "model");
    NEED(options, "options");
    struct cz_infer *in = calloc(1, sizeof *in);
    if (!in) return err_set(CZ_NOMEM, 0, "no memory to run %s", cz_model_name(model));
    in->model = model;
    cz_status st = OPTIONS_TAKE(cz_infer_options, &in->options, options);
    if (st == CZ_OK) st = infer_init(in);
    if (st != CZ_OK) {
        cz_infer_destroy(in);
        return st;
    }
    *out = in;
    return CZ_OK;
}

/* The device outlives everything that was allocated on it. */
void cz_infer_destroy(struct cz_infer *in)
{
    API_ENTRY;
    if (!in) return;
    batch_stage_free(&in->stage);
    if (in->gpu) in->device->ops->mem_free(in->device, in->gpu, in->gpu_nbytes);
    arena_free(&in->arena);
    free(in->params);
    free(in->grads);
    free(in->seen_grads);
    chain_destroy(in->chain);
    ops_destroy(in->ops);
    device_close(in->device);
    free(in);
}

/* ---- running -------------------------------------------------------------------------------- */

/* A GPU's batch is copied; the host's is only checked. */
static cz_status stage_batch(struct cz_infer *in, const struct cz_batch *batch, bool need_labels,
                             const struct batch **staged)
{
    const struct cz_infer_options *o = &in->options;
    struct cz_batch ours;
    TRY(OPTIONS_TAKE(cz_batch, &ours, batch));
    batch = &ours;
    *staged = is_host(in) ? &in->batch : &in->stage.batch;
    if (is_host(in)) { /* layers read the caller's arrays in place */
        in->batch = batch_of(batch);
        TRY(batch_check(in->model, batch, need_labels));
        if (batch->positions || !model_counts_positions(in->model)) return CZ_OK;
    }
    if (batch->B > o->B || batch->T > o->T)
        return err_set(CZ_INVALID, 0,
                       "a batch of %lld rows × %lld tokens is outside what was planned (1…%lld × "
                       "1…%lld)",
                       (long long)batch->B, (long long)batch->T, (long long)o->B, (long long)o->T);
    if (!is_host(in))
        return batch_stage_copy(&in->stage, in->model, batch, need_labels ? BATCH_LOSS : 0u);
    model_count_positions(in->model, batch->ids, batch->B, batch->T, in->positions);
    in->batch.positions = in->positions;
    return CZ_OK;
}

/* Where the chain puts a loss that is wanted at `loss`. */
static float *loss_place(const struct cz_infer *in, float *loss)
{
    return loss && !is_host(in) ? in->stage.loss : loss;
}

/* A GPU's results are in host memory when this returns. */
static cz_status wait_for(struct cz_infer *in, float *loss)
{
    if (is_host(in)) return CZ_OK;
    if (loss) TRY(batch_stage_loss(&in->stage, loss, NULL));
    return in->device->ops->stream_sync(in->device, NULL);
}

cz_status cz_infer_forward(struct cz_infer *in, const struct cz_batch *batch, float *loss,
                           float *logits)
{
    API_ENTRY;
    NEED(in, "infer");
    NEED(batch, "batch");
    struct chain_run run = {.mode = LAYER_EVAL, .loss = loss_place(in, loss), .logits = logits};
    TRY(stage_batch(in, batch, loss != NULL, &run.batch));
    TRY(chain_forward(in->chain, &run));
    return wait_for(in, loss);
}

cz_status cz_infer_tokens(struct cz_infer *in, const struct cz_batch *batch, float *loss,
                          int64_t *n_right)
{
    API_ENTRY;
    NEED(in, "infer");
    NEED(batch, "batch");
    NEED(loss, "loss");
    NEED(n_right, "n_right");
    float hits = 0;
    struct chain_run run = {.mode = LAYER_EVAL, .loss = loss_place(in, loss)};
    run.hits = is_host(in) ? &hits : in->stage.loss + 1;
    TRY(model_check_counts_hits(in->model));
    TRY(stage_batch(in, batch, true, &run.batch));
    TRY(chain_forward(in->chain, &run));
    TRY(wait_for(in, loss));
    if (!is_host(in)) TRY(batch_stage_hits(&in->stage, &hits));
    *n_right = (int64_t)hits;
    return CZ_OK;
}

cz_status cz_infer_hidden(struct cz_infer *in, const struct cz_batch *batch, float *hidden)
{
    API_ENTRY;
    NEED(in, "infer");
    NEED(batch, "batch");
    NEED(hidden, "hidden");
    struct chain_run run = {.mode = LAYER_EVAL, .hidden = hidden};
    TRY(stage_batch(in, batch, false, &run.batch));
    TRY(chain_forward(in->chain, &run));
    return wait_for(in, NULL);
}

/* Without dropout, and with a loss gradient of 1: what other frameworks call the gradient of the
 * loss. */
cz_status cz_infer_gradients(struct cz_infer *in, const struct cz_batch *batch, float *loss)
{
    API_ENTRY;
    NEED(in, "infer");
    NEED(batch, "batch");
    struct chain_run run = {
        .mode = LAYER_TRAIN, .no_dropout = true, .dloss = 1.0f, .loss = loss_place(in, loss)};
    TRY(stage_batch(in, batch, true, &run.batch));
    TRY(chain_forward(in->chain, &run));
    TRY(chain_backward(in->chain));
    /* A GPU's gradients are copied to where the caller reads them. */
    const struct param_table *t = model_params(in->model);
    for (size_t i = 0; !is_host(in) && i < t->n_params; i++)
        if (in->grads[i])
            TRY(in->device->ops->copy(in->device, NULL, in->seen_grads[i], in->grads[i],
                                      t->params[i].numel * sizeof(float)));
    TRY(wait_for(in, loss));
    in->has_gradients = true;
    return CZ_OK;
}

const float *cz_infer_gradient(const struct cz_infer *in, size_t param_idx)
{
    NEED_OR(in, NULL);
    if (!in->has_gradients || param_idx >= model_params(in->model)->n_params) return NULL;
    return in->seen_grads[param_idx];
}

bool cz_infer_can_decode(const struct cz_infer *in)
{
    NEED_OR(in, false);
    return chain_can_decode(in->chain);
}

cz_status cz_infer_decode(struct cz_infer *in, const struct cz_batch *batch, int64_t position,
                          float *logits)
{
    API_ENTRY;
    NEED(in, "infer");
    NEED(batch, "batch");
    const struct batch *staged = NULL;
    TRY(stage_batch(in, batch, false, &staged));
    TRY(chain_decode(in->chain, NULL, staged, position, logits));
    return wait_for(in, NULL);
}

/* What was really allocated, for --memory style reports. */
size_t cz_infer_nbytes(const struct cz_infer *in)
{
    NEED_OR(in, 0);
    return in->arena.nbytes + in->gpu_nbytes;
}
