/* Bins in their order as rows of a batch. All tokens are in memory, so that a batch is a copy. */
#include "data/chat/chat_loader.h"

#include "base/rng.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND = 8 };

struct chat_loader {
    struct chat_loader_options o;
    uint64_t n_parts, step_size, n_steps;
    uint64_t next; /* micro-batch of this rank, over all epochs */
    int32_t *ids, *labels, *positions, *documents;
    uint8_t *key_mask;
};

cz_status chat_loader_open(const struct chat_loader_options *options, struct chat_loader **out)
{
    struct chat_loader *l = calloc(1, sizeof *l);
    size_t numel;
    *out = NULL;
    if (!l) return err_set(CZ_NOMEM, 0, "no memory for a data loader");
    l->o = *options;
    l->n_parts = (uint64_t)l->o.accumulation * (uint64_t)l->o.world_size;
    l->step_size = l->n_parts * (uint64_t)l->o.micro_batch;
    l->n_steps = l->o.set->n_bins / l->step_size;
    if (!l->o.drop_last && l->o.set->n_bins % l->step_size != 0) l->n_steps++;
    cz_status st = CZ_OK;
    if (l->n_steps == 0)
        st = err_set(CZ_INVALID, 0,
                     "%zu rows do not fill one step of %" PRIu64
                     ", and incomplete steps are to be dropped",
                     l->o.set->n_bins, l->step_size);
    if (st == CZ_OK)
        st = size_mul((size_t)l->o.micro_batch, size_round_up((size_t)l->o.max_len, ROUND), &numel);
    if (st == CZ_OK) {
        l->ids = malloc(numel * sizeof *l->ids);
        l->labels = malloc(numel * sizeof *l->labels);
        l->positions = malloc(numel * sizeof *l->positions);
        l->documents = malloc(numel * sizeof *l->documents);
        l->key_mask = malloc(numel);
        if (!l->ids || !l->labels || !l->positions || !l->documents || !l->key_mask)
            st = err_set(CZ_NOMEM, 0, "no memory for a micro-batch of %zu tokens", numel);
    }
    if (st != CZ_OK) {
        chat_loader_close(l);
        return st;
    }
    *out = l;
    return CZ_OK;
}

void chat_loader_close(struct chat_loader *l)
{
    if (!l) return;
    free(l->ids);
    free(l->labels);
    free(l->positions);
    free(l->documents);
    free(l->key_mask);
    free(l);
}

/* ---- batches
 * ------------------------------------------------------------------------------------- */

/* Bin number i of an epoch's order. */
static const struct chat_bin *bin_at(const struct chat_loader *l, uint64_t epoch, uint64_t i)
{
    const struct chat_set *s = l->o.set;
    if (l->o.shuffle) i = rng_permute(l->o.seed, epoch, s->n_bins, i);
    return &s->bins[i];
}

/* An example's tokens into a row, from place `at` on. */
static void put_example(struct chat_loader *l, size_t at, const struct chat_example *e,
                        int32_t number)
{
    const int32_t *tokens = l->o.set->tokens + e->begin;
    for (size_t i = 0; i < e->n; i++) {
        bool is_target = i + 1 < e->n && tokens[i + 1] < 0;
        l->ids[at + i] = tokens[i] & INT32_MAX;
        l->labels[at + i] = is_target ? tokens[i + 1] & INT32_MAX : CZ_IGNORE_LABEL;
        l->positions[at + i] = (int32_t)i;
        l->documents[at + i] = number;
        l->key_mask[at + i] = 1;
    }
}

/* A row of width T; bin NULL: padding alone, but for one token, since a row has one. */
static void put_row(struct chat_loader *l, size_t row, size_t T, const struct chat_bin *bin)
{
    const struct chat_set *s = l->o.set;
    size_t at = row * T, end = at + T;
    int32_t number = 0;
    for (size_t i = 0; bin && i < bin->n; i++) {
        const struct chat_example *e = &s->examples[s->order[bin->begin + i]];
        put_example(l, at, e, number++);
        at += e->n;
    }
    for (size_t first = at; at < end; at++) {
        l->ids[at] = l->o.pad_id;
        l->labels[at] = CZ_IGNORE_LABEL;
        l->positions[at] = (int32_t)(at - first);
        l->documents[at] = number;
        l->key_mask[at] = !bin && at == first;
    }
}

void chat_loader_next(struct chat_loader *l, struct cz_batch *batch)
{
    const struct chat_set *s = l->o.set;
    *batch = (struct cz_batch){.size = sizeof *batch};
    if (chat_loader_is_done(l)) return;
    uint64_t A = (uint64_t)l->o.accumulation, step = l->next / A;
    uint64_t part = l->next % A * (uint64_t)l->o.world_size + (uint64_t)l->o.rank;
    uint64_t epoch = step / l->n_steps, first = step % l->n_steps * l->step_size;
    uint64_t n = s->n_bins - first, n_trained = 0;
    if (n > l->step_size) n = l->step_size;
    /* An incomplete step is dealt evenly, so that no rank has all of it. */
    uint64_t begin = n == l->step_size ? part * (uint64_t)l->o.micro_batch : n * part / l->n_parts;
    uint64_t end =
        n == l->step_size ? begin + (uint64_t)l->o.micro_batch : n * (part + 1) / l->n_parts;
    size_t B = (size_t)(end - begin), T = 1;
    for (uint64_t i = 0; i < n; i++) n_trained += bin_at(l, epoch, first + i)->n_trained;
    for (uint64_t i = begin; i < end; i++) {
        size_t n_tokens = bin_at(l, epoch, first + i)->n_tokens;
        if (n_tokens > T) T = n_tokens;
    }
    T = size_round_up(T, ROUND);
    if (T > (size_t)l->o.max_len) T = (size_t)l->o.max_len;
    for (size_t row = 0; row < B; row++) put_row(l, row, T, bin_at(l, epoch, first + begin + row));
    if (B == 0) put_row(l, 0, T, NULL);
    *batch = (struct cz_batch){
        .size = sizeof *batch,
        .B = B > 0 ? (int64_t)B : 1,
        .T = (int64_t)T,
        .ids = l->ids,
        .labels = l->labels,
        .key_mask = l->key_mask,
        .positions = l->o.is_packed ? l->positions : NULL,
        .documents = l->o.is_packed ? l->documents : NULL,
        .loss_divisor = (float)((double)(n_trained ? n_trained : 1) / (double)l->n_parts),
        .sample = step * l->step_size + part * (uint64_t)l->o.micro_batch};
    l->next++;
}

bool chat_loader_is_done(const struct chat_loader *l)
{
    return l->o.once && l->next >= l->n_steps * (uint64_t)l->o.accumulation;
}

uint64_t chat_loader_steps_per_epoch(const struct chat_loader *l)
{
    return l->n_steps;
}

uint64_t chat_loader_rows_per_epoch(const struct chat_loader *l)
{
    const uint64_t n = l->n_steps * l->step_size;
    return n < l->o.set->n_bins ? n : l->o.set->n_bins;
}

/* ---- the place
 * ----------------------------------------------------------------------------------- */

void chat_loader_tell(const struct chat_loader *l, struct cz_data_cursor *out)
{
    uint64_t A = (uint64_t)l->o.accumulation, steps = l->next / A + (l->next % A != 0);
    *out = (struct cz_data_cursor){.epoch = steps / l->n_steps,
                                   .sample = steps % l->n_steps * l->step_size,
                                   .n_rows = l->o.set->n_bins,
                                   .seed = l->o.seed,
                                   .shuffle = l->o.shuffle};
}

cz_status chat_loader_seek(struct chat_loader *l, const struct cz_data_cursor *c)
{
    uint64_t step;
    if (c->n_rows == 0 && c->epoch == 0 && c->sample == 0) {
        l->next = 0;
        return CZ_OK;
    }
    if (c->n_rows != l->o.set->n_bins)
        return err_set(CZ_INVALID, 0,
                       "the saved position belongs to data of %" PRIu64
                       " rows; this data makes %zu (--seq-len, --packing and --loss-on count, too)",
                       c->n_rows, l->o.set->n_bins);
    if (c->shuffle != l->o.shuffle || (c->shuffle && c->seed != l->o.seed))
        return err_set(CZ_INVALID, 0, "the saved position belongs to a run with another order");
    if (c->sample >= c->n_rows || __builtin_mul_overflow(c->epoch, l->n_steps, &step) ||
        __builtin_add_overflow(step, c->sample / l->step_size, &step) ||
        step > (uint64_t)INT64_MAX / l->step_size)
        return err_set(CZ_INVALID, 0,
                       "epoch %" PRIu64 ", row %" PRIu64 " is not a position in a run", c->epoch,
                       c->sample);
    l->next = step * (uint64_t)l->o.accumulation;
    return CZ_OK;
}
