/* A model's chain with its memory on one device, driven manually: for comparing devices. Parameters
 * are the model's weights in the chain's dtype, gradients fp32. Batches, losses, logits and
 * gradients are host memory here, as for the engine. */
#ifndef CZ_TESTS_CHAIN_SIDE_H
#define CZ_TESTS_CHAIN_SIDE_H

#include "base/threads.h"
#include "engine/batch_stage.h"
#include "engine/chain/chain.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

enum { SIDE_ACTIVATIONS, SIDE_WORKSPACE, SIDE_GRADIENTS, SIDE_CACHE, SIDE_BATCH, SIDE_N_BLOCKS };

struct side {
    struct device *device;
    struct ops *ops;
    struct dev_stream *stream, *copies;
    struct cz_model *model; /* borrowed */
    struct chain *chain;
    struct batch_stage stage;
    void *blocks[SIDE_N_BLOCKS];
    size_t nbytes[SIDE_N_BLOCKS];
    void *batch_seen, *kept; /* page-locked host memory */
    size_t batch_seen_nbytes, kept_nbytes;
    enum cz_dtype dtype;
    void *weights, *gradients; /* all of them, 256 bytes apart */
    size_t weights_nbytes, gradients_nbytes;
    const void **params;
    void **grads;
};

static inline void *side_pinned(struct side *s, size_t *nbytes)
{
    *nbytes = (*nbytes + 4095) / 4096 * 4096;
    if (*nbytes == 0) return NULL;
    void *p = aligned_alloc(4096, *nbytes);
    ck_assert_ptr_nonnull(p);
    memset(p, 0xA5, *nbytes);
    ck_ok(s->device->ops->host_register(s->device, p, *nbytes));
    return p;
}

/* Memory on the device, every byte 0xFF. */
static inline void *side_block(struct side *s, size_t nbytes)
{
    void *p, *dirt = malloc(nbytes + 1);
    ck_assert_ptr_nonnull(dirt);
    memset(dirt, 0xFF, nbytes);
    ck_ok(s->device->ops->mem_alloc(s->device, nbytes, "a side", &p));
    ck_ok(s->device->ops->copy(s->device, s->stream, p, dirt, nbytes));
    ck_ok(s->device->ops->stream_sync(s->device, s->stream));
    free(dirt);
    return p;
}

static inline void side_load(struct side *s, size_t i, void *dst)
{
    const size_t numel = model_params(s->model)->params[i].numel, elem = dtype_size(s->dtype);
    float *w = malloc(numel * sizeof *w);
    unsigned char *narrow = malloc(numel * elem);
    ck_assert(w && narrow);
    ck_ok(model_read_weights(s->model, i, 0, numel, w));
    for (size_t k = 0; k < numel; k++) dtype_put(narrow, k, s->dtype, w[k]);
    ck_ok(s->device->ops->copy(s->device, s->stream, dst, narrow, numel * elem));
    ck_ok(s->device->ops->stream_sync(s->device, s->stream));
    free(narrow);
    free(w);
}

static inline size_t side_piece(size_t nbytes)
{
    return (nbytes + 255) / 256 * 256;
}

static inline void side_open_params(struct side *s, bool training)
{
    const struct param_table *t = model_params(s->model);
    const size_t elem = dtype_size(s->dtype);
    size_t w_off = 0, g_off = 0;
    for (size_t i = 0; i < t->n_params; i++) {
        s->weights_nbytes += side_piece(t->params[i].numel * elem);
        s->gradients_nbytes += training ? side_piece(t->params[i].numel * sizeof(float)) : 0;
    }
    s->weights = side_block(s, s->weights_nbytes);
    s->gradients = side_block(s, s->gradients_nbytes);
    s->params = calloc(t->n_params, sizeof *s->params);
    s->grads = calloc(t->n_params, sizeof *s->grads);
    ck_assert(s->params && s->grads);
    for (size_t i = 0; i < t->n_params; i++) {
        void *w = (unsigned char *)s->weights + w_off;
        side_load(s, i, w);
        s->params[i] = w;
        if (training) s->grads[i] = (unsigned char *)s->gradients + g_off;
        w_off += side_piece(t->params[i].numel * elem);
        g_off += side_piece(t->params[i].numel * sizeof(float));
    }
}

/* B, T and what differs from inference come in `options`. */
static inline struct side side_open(const char *device, struct cz_model *model,
                                    struct chain_options options)
{
    struct side s = {.model = model, .dtype = options.dtype};
    threads_init(1);
    ck_ok(device_open_named(device, 0, &s.device));
    ck_ok(ops_create(s.device, &s.ops));
    ck_ok(s.device->ops->stream_create(s.device, &s.stream));
    ck_ok(s.device->ops->stream_create(s.device, &s.copies));
    options.ops = s.ops;
    options.grad_dtype = DTYPE_F32;
    ck_ok(chain_create(model, &options, &s.chain));
    const enum device_kind kind = s.device->ops->kind;
    const struct chain_sizes sizes = chain_sizes(s.chain);
    s.nbytes[SIDE_ACTIVATIONS] = sizes.activations;
    s.nbytes[SIDE_WORKSPACE] = sizes.workspace;
    s.nbytes[SIDE_GRADIENTS] = sizes.gradients;
    s.nbytes[SIDE_CACHE] = sizes.cache;
    s.nbytes[SIDE_BATCH] = batch_stage_nbytes(kind, model, options.B, options.T);
    for (int b = 0; b < SIDE_N_BLOCKS; b++) s.blocks[b] = side_block(&s, s.nbytes[b]);
    s.kept_nbytes = sizes.kept;
    s.kept = side_pinned(&s, &s.kept_nbytes);
    s.batch_seen_nbytes = batch_stage_host_nbytes(kind, model, options.B, options.T);
    s.batch_seen = side_pinned(&s, &s.batch_seen_nbytes);
    ck_ok(batch_stage_bind(&s.stage, model, options.B, options.T, s.device, s.stream,
                           s.blocks[SIDE_BATCH], s.batch_seen));
    side_open_params(&s, options.training);
    const struct chain_memory memory = {.activations = s.blocks[SIDE_ACTIVATIONS],
                                        .workspace = s.blocks[SIDE_WORKSPACE],
                                        .gradients = s.blocks[SIDE_GRADIENTS],
                                        .cache = s.blocks[SIDE_CACHE],
                                        .kept = s.kept,
                                        .copies = s.copies,
                                        .params = s.params,
                                        .grads = s.grads};
    chain_bind(s.chain, &memory);
    return s;
}

static inline void side_wait(struct side *s)
{
    ck_ok(s->device->ops->stream_sync(s->device, s->stream));
    ck_ok(s->device->ops->stream_sync(s->device, s->copies));
}

static inline void side_close(struct side *s)
{
    struct device *d = s->device;
    side_wait(s);
    batch_stage_free(&s->stage);
    chain_destroy(s->chain);
    for (int b = 0; b < SIDE_N_BLOCKS; b++) d->ops->mem_free(d, s->blocks[b], s->nbytes[b]);
    d->ops->mem_free(d, s->weights, s->weights_nbytes);
    d->ops->mem_free(d, s->gradients, s->gradients_nbytes);
    if (s->kept) d->ops->host_unregister(d, s->kept, s->kept_nbytes);
    if (s->batch_seen) d->ops->host_unregister(d, s->batch_seen, s->batch_seen_nbytes);
    free(s->kept);
    free(s->batch_seen);
    free(s->params);
    free(s->grads);
    d->ops->stream_destroy(d, s->stream);
    d->ops->stream_destroy(d, s->copies);
    ops_destroy(s->ops);
    device_close(d);
}

/* A forward pass; what `run` wants of loss, logits and hidden states is in host memory. */
static inline void side_forward(struct side *s, const struct cz_batch *batch, struct chain_run run,
                                float *loss)
{
    ck_ok(batch_stage_copy(&s->stage, s->model, batch, loss != NULL));
    run.stream = s->stream;
    run.batch = &s->stage.batch;
    run.loss = loss ? s->stage.loss : NULL;
    ck_ok(chain_forward(s->chain, &run));
    if (loss) ck_ok(batch_stage_loss(&s->stage, loss, NULL));
    if (!loss) side_wait(s);
}

/* Forward and backward of one micro-batch. */
static inline float side_step(struct side *s, const struct cz_batch *batch, struct chain_run run)
{
    float loss;
    run.mode = LAYER_TRAIN;
    run.dloss = 1;
    side_forward(s, batch, run, &loss);
    ck_ok(chain_backward(s->chain));
    side_wait(s);
    return loss;
}

/* The gradient of a parameter, to be freed. */
static inline float *side_grad(struct side *s, size_t param_idx)
{
    const size_t nbytes = model_params(s->model)->params[param_idx].numel * sizeof(float);
    float *g = malloc(nbytes);
    ck_assert_ptr_nonnull(g);
    ck_ok(s->device->ops->copy(s->device, s->stream, g, s->grads[param_idx], nbytes));
    side_wait(s);
    return g;
}

/* The largest difference, relative to the largest value of `want`; NaN when one is not finite. */
static inline double side_difference(const float *got, const float *want, size_t n)
{
    double largest = 1e-6, worst = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= worst)) worst = d;
        if (isnan(d)) break;
    }
    return worst / largest;
}

#endif
