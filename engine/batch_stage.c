/* A micro-batch is checked and copied once, so that a caller may reuse its arrays at once and
 * layers may trust every id. On a GPU all arrays travel in one asynchronous copy out of two
 * page-locked places in turn: the host waits only when both are still in use. */
#include "engine/batch_stage.h"
#include "base/host/entry.h"
#include "base/options.h"

#include "base/size.h"
#include "engine/batch_check.h"
#include "engine/chain/chain.h"
#include "ops/matmul/matmul.h"

#include <string.h>

/* ---- memory --------------------------------------------------------------------------------- */

/* Bytes of one array of n elements, and where the next one begins. */
static size_t piece(size_t n, size_t elem_nbytes)
{
    return size_round_up(n * elem_nbytes, CHAIN_ALIGN);
}

/* ids, labels, types, positions, documents, loss weights, key mask, targets, starts and numbers of
 * rows; a GPU's: the four of the labelled rows. */
static size_t arrays_nbytes(enum device_kind kind, const struct cz_model *model, int64_t B,
                            int64_t T)
{
    const size_t n = (size_t)B * (size_t)T, n_words = kind == DEVICE_HOST ? 6 : 10;
    const size_t n_targets = (size_t)B * (size_t)model_n_targets(model);
    return n_words * piece(n, sizeof(int32_t)) + piece(n, 1) + piece(n_targets, sizeof(float)) +
           2 * piece((size_t)B + 1, sizeof(int32_t));
}

/* A classifier's head has logits instead. */
static size_t n_log_probs(const struct cz_model *model, int64_t B, int64_t T)
{
    return cz_model_n_classes(model) > 0 ? 0 : 2 * (size_t)B * (size_t)T;
}

size_t batch_stage_nbytes(enum device_kind kind, const struct cz_model *model, int64_t B, int64_t T)
{
    return arrays_nbytes(kind, model, B, T) + CHAIN_ALIGN + /* loss and hits */
           piece(n_log_probs(model, B, T), sizeof(float));
}

/* An objective reads log-probabilities of positions, or logits. */
static size_t n_values(const struct cz_model *model, int64_t B, int64_t T)
{
    const int64_t K = cz_model_n_classes(model);
    return (size_t)((model_is_by_row(model) ? B : B * T) * (K == 0 ? 1 : K));
}

size_t batch_stage_host_nbytes(enum device_kind kind, const struct cz_model *model, int64_t B,
                               int64_t T)
{
    if (kind == DEVICE_HOST) return 0;
    return 2 * arrays_nbytes(kind, model, B, T) + piece(STAGE_LOSSES_MAX, sizeof(float)) +
           piece(2 * n_values(model, B, T), sizeof(float));
}

cz_status batch_stage_bind(struct batch_stage *s, const struct cz_model *model, int64_t B,
                           int64_t T, struct device *device, struct dev_stream *stream,
                           void *memory, void *host_memory)
{
    const enum device_kind kind = device->ops->kind;
    const size_t nbytes = arrays_nbytes(kind, model, B, T);
    memset(s, 0, sizeof *s);
    s->B = B;
    s->T = T;
    s->device = device;
    s->stream = stream;
    s->memory = memory;
    s->loss = (float *)(void *)(s->memory + nbytes);
    if (n_log_probs(model, B, T) > 0)
        s->log_probs = (float *)(void *)(s->memory + nbytes + CHAIN_ALIGN);
    if (kind == DEVICE_HOST) return CZ_OK;
    s->host[0] = host_memory;
    s->host[1] = s->host[0] + nbytes;
    s->losses = (float *)(void *)(s->host[1] + nbytes);
    s->values = (float *)(void *)(s->host[1] + nbytes + piece(STAGE_LOSSES_MAX, sizeof(float)));
    for (int i = 0; i < 2; i++) {
        TRY(device->ops->event_create(device, &s->copied[i]));
        TRY(device->ops->event_record(device, s->copied[i], stream));
    }
    return CZ_OK;
}

void batch_stage_free(struct batch_stage *s)
{
    for (int i = 0; i < 2; i++)
        if (s->copied[i]) s->device->ops->event_destroy(s->device, s->copied[i]);
    memset(s, 0, sizeof *s);
}

void batch_stage_unpad(struct batch_stage *s, bool fills_sizes)
{
    s->unpads = true;
    s->fills_sizes = fills_sizes;
}

/* ---- the batch ------------------------------------------------------------------------------ */

/* Arrays one behind the other in host memory: on the host the copy that layers read. */
struct packing {
    unsigned char *base;
    size_t used;
};

/* Pieces are aligned as the chain's are: kernels load them in vectors. */
static void *take(struct packing *p, size_t n, size_t elem_nbytes)
{
    void *at = p->base + p->used;
    p->used += piece(n, elem_nbytes);
    return at;
}

/* Copy an optional array; the layers see NULL when it is absent. */
static const void *put(struct packing *p, const void *src, size_t n, size_t elem_nbytes)
{
    if (!src) return NULL;
    return memcpy(take(p, n, elem_nbytes), src, n * elem_nbytes);
}

/* ---- without padding ------------------------------------------------------------------------ */

/* Tokens in front of a row's padding; -1: padding is elsewhere, or there is nothing else. */
static int64_t row_tokens(const uint8_t *mask, int64_t T)
{
    int64_t n = 0;
    while (n < T && mask[n]) n++;
    for (int64_t t = n; t < T; t++)
        if (mask[t]) return -1;
    return n > 0 ? n : -1;
}

/* Whether a position of padding has a label: it counts in the loss then, and must be computed. */
static bool pads_count(const struct cz_model *model, const struct cz_batch *b)
{
    if (model_is_by_row(model) || !b->labels) return false;
    for (int64_t i = 0; i < b->B * b->T; i++)
        if (!b->key_mask[i] && b->labels[i] != CZ_IGNORE_LABEL) return true;
    return false;
}

/* Callers look for logits by position; evaluations give the bits of cz_infer, which computes
 * padding. */
static bool may_unpad(const struct batch_stage *s, const struct cz_model *model,
                      const struct cz_batch *b, unsigned results)
{
    return s->unpads && b->key_mask && !b->documents &&
           !(results & (BATCH_EVAL | BATCH_AS_GIVEN)) &&
           (model_is_by_row(model) || !(results & BATCH_LOGITS)) && !pads_count(model, b);
}

/* How a batch is copied: B rows of T, or one of N tokens in which row b begins at starts[b]. */
struct layout {
    int64_t B, T, N;
    const int32_t *starts; /* (B+1); NULL: rows as they are */
};

/* Eight tokens are a vector of most kernels. */
static int64_t n_filled(const struct batch_stage *s, int64_t n_tokens)
{
    return s->fills_sizes ? matmul_rows_filled(n_tokens) : (n_tokens + 7) / 8 * 8;
}

static struct layout layout_of(const struct batch_stage *s, const struct cz_model *model,
                               const struct cz_batch *b, unsigned results, struct packing *p)
{
    const struct layout padded = {.B = b->B, .T = b->T, .N = b->B * b->T};
    struct layout l = padded;
    if (!may_unpad(s, model, b, results)) return padded;
    int32_t *starts = take(p, (size_t)b->B + 1, sizeof *starts);
    starts[0] = 0;
    for (int64_t i = 0; i < b->B; i++) {
        const int64_t n = row_tokens(b->key_mask + i * b->T, b->T);
        if (n < 0) return padded;
        starts[i + 1] = starts[i] + (int32_t)n;
    }
    l.N = n_filled(s, starts[b->B]);
    l.starts = starts;
    return l.N < padded.N ? l : padded;
}

/* Copy an optional array of one number for each token; fillers get `filler`. */
static const void *put_tokens(struct packing *p, const struct layout *l, const void *src,
                              int32_t filler)
{
    const size_t word = sizeof(int32_t);
    if (!src || !l->starts) return put(p, src, (size_t)l->N, word);
    int32_t *to = take(p, (size_t)l->N, word);
    for (int64_t b = 0; b < l->B; b++)
        memcpy(to + l->starts[b], (const unsigned char *)src + (size_t)(b * l->T) * word,
               (size_t)(l->starts[b + 1] - l->starts[b]) * word);
    for (int64_t i = l->starts[l->B]; i < l->N; i++) to[i] = filler;
    return to;
}

/* The number of each token's row; fillers are one of their own. */
static const int32_t *put_documents(struct packing *p, const struct layout *l,
                                    const struct cz_batch *b)
{
    if (!l->starts) return put(p, b->documents, (size_t)l->N, sizeof(int32_t));
    int32_t *to = take(p, (size_t)l->N, sizeof *to);
    for (int64_t row = 0, i = 0; i < l->N; i++) {
        while (row < l->B && i >= l->starts[row + 1]) row++;
        to[i] = (int32_t)row;
    }
    return to;
}

static const int32_t *put_numbers(struct packing *p, const struct layout *l)
{
    if (!l->starts) return NULL;
    int32_t *to = take(p, (size_t)l->B, sizeof *to);
    for (int64_t row = 0; row < l->B; row++) to[row] = (int32_t)row;
    return to;
}

static void count_positions(const struct cz_model *model, const int32_t *ids, int64_t n,
                            int32_t *positions)
{
    if (model_counts_positions(model))
        model_count_positions(model, ids, 1, n, positions);
    else
        for (int64_t t = 0; t < n; t++) positions[t] = (int32_t)t;
}

/* Those of a model that counts in its own way are made here, where every batch passes, and those of
 * a batch without padding, which do not follow from where tokens stand. */
static const int32_t *put_positions(struct packing *p, const struct cz_model *model,
                                    const struct layout *l, const struct cz_batch *b)
{
    if (b->positions) return put_tokens(p, l, b->positions, 0);
    if (!l->starts && !model_counts_positions(model)) return NULL;
    int32_t *to = take(p, (size_t)l->N, sizeof *to);
    for (int64_t row = 0; row < l->B; row++) {
        const int64_t begin = l->starts ? l->starts[row] : row * l->T;
        const int64_t n = l->starts ? l->starts[row + 1] - begin : l->T;
        count_positions(model, b->ids + row * l->T, n, to + begin);
    }
    for (int64_t i = l->starts ? l->starts[l->B] : l->N; i < l->N; i++) to[i] = 0;
    return to;
}

/* ---- the copy ------------------------------------------------------------------------------- */

/* Labels or their weights: one per row, or one per token. */
static const void *put_labels(struct packing *p, const struct cz_model *model,
                              const struct layout *l, const void *src, int32_t filler)
{
    return model_is_by_row(model) ? put(p, src, (size_t)l->B, sizeof(int32_t))
                                  : put_tokens(p, l, src, filler);
}

/* Without padding there is no mask. */
static void pack(struct batch_stage *s, const struct cz_model *model, const struct cz_batch *b,
                 unsigned results, struct packing *p)
{
    const struct layout l = layout_of(s, model, b, results, p);
    const size_t n_targets = (size_t)(b->B * model_n_targets(model));
    s->texts = (struct batch_texts){.n = b->B, .starts = l.starts, .numbers = put_numbers(p, &l)};
    s->host_batch = (struct batch){
        .B = l.starts ? 1 : b->B,
        .T = l.starts ? l.N : b->T,
        .ids = put_tokens(p, &l, b->ids, 0),
        .labels = n_targets ? NULL : put_labels(p, model, &l, b->labels, CZ_IGNORE_LABEL),
        .types = put_tokens(p, &l, b->types, 0),
        .positions = put_positions(p, model, &l, b),
        .key_mask = l.starts ? NULL : put(p, b->key_mask, (size_t)l.N, 1),
        .documents = put_documents(p, &l, b),
        .loss_weights = put_labels(p, model, &l, b->loss_weights, 0),
        .targets = n_targets ? put(p, b->targets, n_targets, sizeof(float)) : NULL,
        .loss_divisor = b->loss_divisor,
        .sample = b->sample,
        .texts = l.starts ? &s->texts : NULL};
}

/* A masked language model's labels are few: only their rows go through the vocabulary's projection.
 * The lists are filled up to N with rows that count nothing, since a GPU's kernels run over a fixed
 * number of rows. */
static void pack_labelled(const struct batch *b, struct packing *p, struct batch_labelled *out)
{
    const int64_t N = b->B * b->T;
    int32_t *rows = take(p, (size_t)N, sizeof *rows), *places = take(p, (size_t)N, sizeof *places);
    int32_t *labels = take(p, (size_t)N, sizeof *labels), n = 0;
    float *weights = b->loss_weights ? take(p, (size_t)N, sizeof *weights) : NULL;
    for (int64_t i = 0; i < N; i++) {
        const bool has_label = b->labels[i] != CZ_IGNORE_LABEL;
        places[i] = has_label ? n : (int32_t)(N - 1);
        if (!has_label) continue;
        rows[n] = (int32_t)i;
        labels[n] = b->labels[i];
        if (weights) weights[n] = b->loss_weights[i];
        n++;
    }
    *out = (struct batch_labelled){
        .n = n, .rows = rows, .places = places, .labels = labels, .loss_weights = weights};
    for (int64_t i = n; i < N; i++) {
        rows[i] = 0;
        labels[i] = CZ_IGNORE_LABEL;
        if (weights) weights[i] = 0.0f;
    }
}

/* Where an array of the host's copy is in the device's. */
static const void *there(const struct batch_stage *s, const struct packing *p, const void *array)
{
    return array ? s->memory + ((const unsigned char *)array - p->base) : NULL;
}

/* The device's copy mirrors the host's: pointers are moved, not packed a second time. batch.host
 * lets layers look at ids without asking the device. */
static void address(struct batch_stage *s, const struct packing *p, bool has_labelled)
{
    const struct batch *h = &s->host_batch;
    struct batch_labelled *l = &s->labelled;
    s->batch = *h;
    s->batch.ids = there(s, p, h->ids);
    s->batch.labels = there(s, p, h->labels);
    s->batch.types = there(s, p, h->types);
    s->batch.positions = there(s, p, h->positions);
    s->batch.key_mask = there(s, p, h->key_mask);
    s->batch.documents = there(s, p, h->documents);
    s->batch.loss_weights = there(s, p, h->loss_weights);
    s->batch.targets = there(s, p, h->targets);
    s->batch.host = h;
    s->texts.numbers = there(s, p, s->texts.numbers);
    s->batch.labelled = has_labelled ? l : NULL;
    if (!has_labelled) return;
    l->rows = there(s, p, l->rows);
    l->places = there(s, p, l->places);
    l->labels = there(s, p, l->labels);
    l->loss_weights = there(s, p, l->loss_weights);
}

cz_status batch_stage_copy(struct batch_stage *s, const struct cz_model *model,
                           const struct cz_batch *batch, unsigned results)
{
    struct cz_batch ours, *b = &ours;
    NEED(batch, "batch");
    TRY(OPTIONS_TAKE(cz_batch, b, batch));
    /* What was planned may be less than what the model takes. */
    if (b->B > s->B)
        return err_set(CZ_INVALID, 0,
                       "the batch has %lld rows; the config's train_micro_batch_size_per_gpu "
                       "planned memory for %lld",
                       (long long)b->B, (long long)s->B);
    if (b->T > s->T)
        return err_set(CZ_INVALID, 0,
                       "the batch has %lld tokens per row; the model was bounded to %lld",
                       (long long)b->T, (long long)s->T);
    TRY(batch_check(model, b, results & BATCH_LOSS));
    s->lacks_labels = (results & BATCH_LOSS) && b->loss_divisor == 0 && !batch_has_labels(model, b);
    /* The copy out of this place two batches ago must be over before it is written again. */
    if (s->device->ops->kind != DEVICE_HOST) {
        struct device *device = s->device;
        struct dev_event *copied = s->copied[s->turn];
        struct packing p = {.base = s->host[s->turn]};
        const bool has_labelled = cz_model_labels(model) == CZ_LABELS_SAME && b->labels;
        TRY(device->ops->event_wait_host(device, copied));
        pack(s, model, b, results, &p);
        if (has_labelled) pack_labelled(&s->host_batch, &p, &s->labelled);
        address(s, &p, has_labelled);
        TRY(device->ops->copy(device, s->stream, s->memory, p.base, p.used));
        s->turn = 1 - s->turn;
        return device->ops->event_record(device, copied, s->stream);
    }
    struct packing p = {.base = s->memory};
    pack(s, model, b, results, &p);
    s->batch = s->host_batch;
    return CZ_OK;
}

/* ---- losses --------------------------------------------------------------------------------- */

cz_status batch_stage_losses(struct batch_stage *s, double *sum)
{
    if (s->n_losses == 0) return CZ_OK;
    TRY(s->device->ops->stream_sync(s->device, s->stream));
    for (size_t i = 0; i < s->n_losses; i++)
        if (sum) *sum += (double)s->losses[i];
    s->n_losses = 0;
    return CZ_OK;
}

/* On a GPU the loss is copied and not waited for, so that a caller that does not ask for it does
 * not stall the stream; up to STAGE_LOSSES_MAX wait together. */
cz_status batch_stage_loss(struct batch_stage *s, float *loss, double *sum)
{
    struct device *device = s->device;
    if (device->ops->kind == DEVICE_HOST) {
        if (sum) *sum += (double)*s->loss;
        if (loss) *loss = *s->loss;
        return CZ_OK;
    }
    if (s->n_losses == STAGE_LOSSES_MAX) TRY(batch_stage_losses(s, sum));
    float *at = &s->losses[s->n_losses++];
    TRY(device->ops->copy(device, s->stream, at, s->loss, sizeof *at));
    if (!loss) return CZ_OK;
    TRY(batch_stage_losses(s, sum));
    *loss = *at;
    return CZ_OK;
}

cz_status batch_stage_hits(struct batch_stage *s, float *hits)
{
    struct device *device = s->device;
    if (device->ops->kind == DEVICE_HOST) {
        *hits = s->loss[1];
        return CZ_OK;
    }
    TRY(device->ops->copy(device, s->stream, s->losses, s->loss + 1, sizeof *hits));
    TRY(device->ops->stream_sync(device, s->stream));
    *hits = s->losses[0];
    return CZ_OK;
}

cz_status batch_stage_log_probs(struct batch_stage *s, const float **out)
{
    *out = s->log_probs;
    if (s->device->ops->kind == DEVICE_HOST) return CZ_OK;
    *out = s->values;
    const size_t n = (size_t)s->batch.B * (size_t)s->batch.T;
    TRY(s->device->ops->copy(s->device, s->stream, s->values, s->log_probs, n * sizeof **out));
    return s->device->ops->stream_sync(s->device, s->stream);
}
