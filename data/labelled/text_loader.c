/* The text loader: rows of tokens, made by a thread that runs a few micro-batches ahead, because a
 * tokenizer takes longer than a small model's step.
 *
 * Slots form a ring. The thread fills slot n_filled mod N_SLOTS, the caller holds slot (n_given -
 * 1) mod N_SLOTS until its next call. cz_text_loader_seek() discards what was filled ahead
 * (n_filled = n_given); what the thread has under way at that moment carries an old generation and
 * is thrown away. */
#include "base/host/entry.h"
#include "base/options.h"
#include "data/labelled/text_loader_impl.h"

#include "base/clock.h"
#include "base/host/processors.h"
#include "base/host/thread.h"
#include "base/log.h"
#include "base/size.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define N_SLOTS 4 /* one with the caller, three ahead */

struct slot {
    struct cz_batch batch;
    int32_t *ids, *types; /* (micro_batch, width_max) */
    uint8_t *key_mask;    /* the same */
    int32_t *labels;      /* (micro_batch); of texts with words as ids */
    int32_t *words;       /* as ids; NULL: these texts have none */
    float *targets;       /* (micro_batch,n_targets) */
    size_t *rows;         /* (micro_batch) */
    int64_t *n_ids;       /* (micro_batch) */
    uint64_t n_cut;
};

struct cz_text_loader {
    const struct cz_texts *texts;
    const struct cz_tokenizer *tokenizer;
    int64_t max_len, accumulation, rank, world_size;
    int32_t pad_id;
    bool once, has_words;
    size_t n_targets; /* of an example; 0: it has a label */
    struct slot slots[N_SLOTS];
    void *memory; /* of the slots */

    struct text_order order; /* the thread's */

    pthread_t thread;
    bool has_thread;
    unsigned process;             /* that has the thread: entry_generation() */
    pthread_mutex_t lock;         /* of what follows */
    pthread_cond_t filled, freed; /* a slot was */
    uint64_t n_filled, n_given;
    uint64_t to_fill;    /* micro-batch of this rank that the thread makes next, over all epochs */
    uint64_t generation; /* of to_fill: how often it was set by others */
    bool stop, failed;
    struct err err;

    /* The caller's. */
    uint64_t next; /* micro-batch given next */
    uint64_t n_cut;
    bool warm; /* the first micro-batch is there */
    int64_t waited_ns;
};

/* ---- a micro-batch --------------------------------------------------------------------------- */

/* A row without tokens would have nothing to attend to: it gets one pad token that counts. */
static void fill_empty(const struct cz_text_loader *l, struct slot *s, size_t row)
{
    size_t at = row * (size_t)l->max_len;
    if (s->n_ids[row] > 0) return;
    s->ids[at] = l->pad_id;
    s->types[at] = 0;
    if (s->words) s->words[at] = -1;
    s->n_ids[row] = 1;
}

static cz_status encode_row(const struct cz_text_loader *l, struct slot *s, size_t row,
                            const struct cz_tokenizer_input *in)
{
    size_t at = row * (size_t)l->max_len, n_cut;
    TRY(cz_tokenizer_encode_input(l->tokenizer, in, l->max_len, s->ids + at, s->types + at,
                                  &s->n_ids[row], &n_cut));
    s->n_cut += n_cut > 0;
    fill_empty(l, s, row);
    return CZ_OK;
}

/* Tokens of an example of words, and where these begin. */
static cz_status encode_words(const struct cz_text_loader *l, struct slot *s, size_t row,
                              size_t example)
{
    size_t at = row * (size_t)l->max_len, n_cut;
    TRY(text_words_encode(l->texts, l->tokenizer, example, l->max_len, s->ids + at, s->types + at,
                          s->words + at, &s->n_ids[row], &n_cut));
    s->n_cut += n_cut > 0;
    fill_empty(l, s, row);
    return CZ_OK;
}

/* Rows of max_len become rows of the width that the longest needs, rounded up so that kernels see
 * few different shapes. In place and forward: a row never moves to the right. */
static void pad_rows(const struct cz_text_loader *l, struct slot *s, size_t B)
{
    size_t longest = 0, max_len = (size_t)l->max_len;
    for (size_t b = 0; b < B; b++)
        if ((size_t)s->n_ids[b] > longest) longest = (size_t)s->n_ids[b];
    size_t T = size_round_up(longest, TEXT_LOADER_ROUND);
    if (T > max_len) T = max_len;
    for (size_t b = 0; b < B; b++) {
        size_t n = (size_t)s->n_ids[b];
        memmove(s->ids + b * T, s->ids + b * max_len, n * sizeof *s->ids);
        memmove(s->types + b * T, s->types + b * max_len, n * sizeof *s->types);
        for (size_t t = n; t < T; t++) s->ids[b * T + t] = l->pad_id;
        memset(s->types + b * T + n, 0, (T - n) * sizeof *s->types);
        if (s->words) memmove(s->words + b * T, s->words + b * max_len, n * sizeof *s->words);
        for (size_t t = n; s->words && t < T; t++) s->words[b * T + t] = -1;
        memset(s->key_mask + b * T, 1, n);
        memset(s->key_mask + b * T + n, 0, T - n);
    }
    s->batch.B = (int64_t)B;
    s->batch.T = (int64_t)T;
}

/* The first token of a word has its label, all others have none. */
static void label_tokens(const struct cz_text_loader *l, struct slot *s)
{
    const size_t T = (size_t)s->batch.T;
    for (size_t i = 0; i < (size_t)s->batch.B * T; i++) {
        int32_t label = -1;
        size_t n_words;
        if (s->words[i] >= 0)
            label = cz_texts_words(l->texts, s->rows[i / T], &n_words)[s->words[i]].label;
        s->labels[i] = label >= 0 ? label : CZ_IGNORE_LABEL;
    }
}

/* A part without examples (the end of an epoch on some ranks) gets one empty row without a label:
 * all ranks must take the same number of steps. */
static cz_status make_batch(struct cz_text_loader *l, uint64_t micro, struct slot *s)
{
    struct text_part part;
    uint64_t A = (uint64_t)l->accumulation;
    TRY(text_order_part(&l->order, micro / A,
                        micro % A * (uint64_t)l->world_size + (uint64_t)l->rank, &part));
    s->n_cut = 0;
    for (size_t b = 0; b < part.n; b++) {
        size_t example = part.entries[b].example;
        struct cz_tokenizer_input in = cz_texts_at(l->texts, example);
        int32_t label = cz_texts_label(l->texts, example);
        s->rows[b] = example;
        if (!l->has_words) s->labels[b] = label >= 0 ? label : CZ_IGNORE_LABEL;
        if (l->n_targets) cz_texts_targets(l->texts, example, s->targets + b * l->n_targets);
        TRY(l->has_words ? encode_words(l, s, b, example) : encode_row(l, s, b, &in));
    }
    if (part.n == 0) {
        s->rows[0] = SIZE_MAX;
        s->labels[0] = CZ_IGNORE_LABEL;
        if (l->n_targets) s->targets[0] = NAN;
        for (int64_t t = 0; l->has_words && t < l->max_len; t++) s->words[t] = -1;
        TRY(encode_row(l, s, 0, &(struct cz_tokenizer_input){.text = ""}));
    }
    s->batch = (struct cz_batch){.size = sizeof(struct cz_batch),
                                 .ids = s->ids,
                                 .types = s->types,
                                 .key_mask = s->key_mask,
                                 .labels = s->labels,
                                 .targets = l->n_targets ? s->targets : NULL,
                                 .loss_divisor = part.divisor,
                                 .sample = part.sample};
    pad_rows(l, s, part.n ? part.n : 1);
    if (l->has_words) label_tokens(l, s);
    return CZ_OK;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* All micro-batches of an epoch that is the only one have been made. */
static bool is_past_end(const struct cz_text_loader *l, uint64_t micro)
{
    return l->once && micro / (uint64_t)l->accumulation >= l->order.n_steps;
}

/* All slots but the one that the caller holds. */
static bool may_fill(const struct cz_text_loader *l)
{
    uint64_t n_released = l->n_given > 0 ? l->n_given - 1 : 0;
    return !l->failed && !is_past_end(l, l->to_fill) && l->n_filled - n_released < N_SLOTS;
}

/* Called and left with the lock held; it is given up while tokens are made. */
static void fill_one(struct cz_text_loader *l)
{
    uint64_t micro = l->to_fill, generation = l->generation;
    struct slot *s = &l->slots[l->n_filled % N_SLOTS];
    pthread_mutex_unlock(&l->lock);
    cz_status st = make_batch(l, micro, s);
    pthread_mutex_lock(&l->lock);
    if (generation != l->generation) return;
    if (st != CZ_OK) {
        err_capture(&l->err);
        l->failed = true;
    } else {
        l->n_filled++;
        l->to_fill++;
    }
    pthread_cond_signal(&l->filled);
}

static void *run(void *arg)
{
    struct cz_text_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (may_fill(l))
            fill_one(l);
        else
            pthread_cond_wait(&l->freed, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* The opening thread may be bound to one processor, which computes; the reading thread may use all
 * that the process has. */
static void set_processors(pthread_attr_t *attr)
{
    struct processors allowed;
    cpu_set_t *set = CPU_ALLOC(PROCESSORS_MAX);
    size_t nbytes = CPU_ALLOC_SIZE(PROCESSORS_MAX);
    if (!set) return;
    CPU_ZERO_S(nbytes, set);
    processors_allowed(&allowed);
    for (int cpu = 0; cpu < PROCESSORS_MAX; cpu++)
        if (processors_has(&allowed, cpu)) CPU_SET_S((size_t)cpu, nbytes, set);
    pthread_attr_setaffinity_np(attr, nbytes, set);
    CPU_FREE(set);
}

static cz_status start_thread(struct cz_text_loader *l)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    set_processors(&attr);
    int error = thread_start(&l->thread, &attr, run, l);
    pthread_attr_destroy(&attr);
    if (error) return err_set(CZ_NOMEM, error, "the thread that reads texts cannot start");
    l->has_thread = true;
    return CZ_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Whether max_len holds the special tokens of one text, and of two if some example has two. */
static cz_status check_frames(const struct cz_text_loader *l, struct slot *s)
{
    struct cz_tokenizer_input in = {.text = ""};
    for (size_t i = 0; !in.pair && i < cz_texts_count(l->texts); i++)
        if (cz_texts_at(l->texts, i).pair) in.pair = "";
    return encode_row(l, s, 0, &in);
}

/* One allocation for all slots, the widest items first, so that everything is aligned. */
static cz_status alloc_slots(struct cz_text_loader *l, size_t B)
{
    size_t numel, nbytes;
    TRY(size_mul(B, size_round_up((size_t)l->max_len, TEXT_LOADER_ROUND), &numel));
    size_t per_row = sizeof *l->slots->rows + sizeof *l->slots->n_ids + sizeof *l->slots->labels;
    size_t per_token = sizeof *l->slots->ids + sizeof *l->slots->types + 1 +
                       (l->has_words ? sizeof *l->slots->labels + sizeof *l->slots->words : 0);
    TRY(size_mul(numel, per_token + per_row, &nbytes)); /* more than enough: numel ≥ 8 · B */
    size_t target_nbytes;
    TRY(size_mul(B, l->n_targets * sizeof *l->slots->targets, &target_nbytes));
    TRY(size_add(nbytes, target_nbytes, &nbytes));
    TRY(size_mul(nbytes, N_SLOTS, &nbytes));
    l->memory = malloc(nbytes);
    if (!l->memory)
        return err_set(CZ_NOMEM, 0, "no memory for micro-batches of %zu × %" PRId64 " tokens", B,
                       l->max_len);
    char *at = l->memory; /* widest items first: all are aligned */
    for (size_t i = 0; i < N_SLOTS; i++, at += B * sizeof *l->slots->rows)
        l->slots[i].rows = (size_t *)(void *)at;
    for (size_t i = 0; i < N_SLOTS; i++, at += B * sizeof *l->slots->n_ids)
        l->slots[i].n_ids = (int64_t *)(void *)at;
    const size_t n_labels = l->has_words ? numel : B;
    for (size_t i = 0; i < N_SLOTS; i++, at += n_labels * sizeof *l->slots->labels)
        l->slots[i].labels = (int32_t *)(void *)at;
    for (size_t i = 0; l->has_words && i < N_SLOTS; i++, at += numel * sizeof *l->slots->words)
        l->slots[i].words = (int32_t *)(void *)at;
    for (size_t i = 0; i < N_SLOTS; i++, at += target_nbytes)
        l->slots[i].targets = (float *)(void *)at;
    for (size_t i = 0; i < N_SLOTS; i++, at += numel * sizeof *l->slots->ids)
        l->slots[i].ids = (int32_t *)(void *)at;
    for (size_t i = 0; i < N_SLOTS; i++, at += numel * sizeof *l->slots->types)
        l->slots[i].types = (int32_t *)(void *)at;
    for (size_t i = 0; i < N_SLOTS; i++, at += numel) l->slots[i].key_mask = (uint8_t *)at;
    return CZ_OK;
}

cz_status cz_text_loader_open(const struct cz_text_loader_options *options,
                              struct cz_text_loader **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_text_loader_options o;
    cz_status st;
    *out = NULL;
    NEED(options, "options");
    TRY(OPTIONS_TAKE(cz_text_loader_options, &o, options));
    if (o.world_size == 0) o.world_size = 1;
    if (o.once) o.accumulation = 1;
    if (o.max_len < 1 || o.max_len >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "rows of %" PRId64 " tokens are impossible", o.max_len);
    if (o.micro_batch < 1 || o.micro_batch >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "a micro-batch of %" PRId64 " rows is impossible",
                       o.micro_batch);
    if (o.accumulation < 1 || o.accumulation >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "%" PRId64 " micro-batches in a step are impossible",
                       o.accumulation);
    if (o.world_size < 1 || o.world_size >= INT32_MAX || o.rank < 0 || o.rank >= o.world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %" PRId64 " in a world of %" PRId64, o.rank,
                       o.world_size);
    struct cz_text_loader *l = calloc(1, sizeof *l);
    if (!l) return err_set(CZ_NOMEM, 0, "no memory for a text loader");
    l->texts = o.texts;
    l->tokenizer = o.tokenizer;
    l->max_len = o.max_len;
    l->accumulation = o.accumulation;
    l->rank = o.rank;
    l->world_size = o.world_size;
    l->once = o.once;
    size_t n_words;
    l->has_words = cz_texts_count(o.texts) > 0 && cz_texts_words(o.texts, 0, &n_words) != NULL;
    const enum cz_problem problem = cz_texts_problem(o.texts);
    l->n_targets = problem == CZ_PROBLEM_REGRESSION    ? 1
                   : problem == CZ_PROBLEM_MULTI_LABEL ? cz_texts_n_labels(o.texts)
                                                       : 0;
    l->process = entry_generation();
    l->pad_id = cz_tokenizer_padding_id(o.tokenizer);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->filled, NULL);
    pthread_cond_init(&l->freed, NULL);
    TRY_GOTO(text_order_init(&l->order, &o), fail);
    TRY_GOTO(alloc_slots(l, (size_t)o.micro_batch), fail);
    TRY_GOTO(check_frames(l, &l->slots[0]), fail);
    TRY_GOTO(start_thread(l), fail);
    *out = l;
    return CZ_OK;
fail:
    cz_text_loader_close(l);
    return st;
}

void cz_text_loader_close(struct cz_text_loader *l)
{
    API_ENTRY;
    if (!l || l->process != entry_generation()) return; /* in a forked child: the parent's */
    if (l->has_thread) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->freed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_cond_destroy(&l->freed);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->lock);
    text_order_free(&l->order);
    free(l->memory);
    free(l);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* waited_ns counts time in which the step waited for data, without the first batch, which always
 * waits. */
cz_status cz_text_loader_next(struct cz_text_loader *l, struct cz_batch *batch)
{
    API_ENTRY;
    NEED(l, "text loader");
    NEED(batch, "batch");
    const struct cz_batch none = {0};
    TRY(entry_check_process(l->process, "this loader"));
    TRY(OPTIONS_GIVE(cz_batch, batch, &none));
    if (cz_text_loader_is_done(l)) return CZ_OK;
    pthread_mutex_lock(&l->lock);
    if (l->n_filled == l->n_given) {
        int64_t since = clock_now_ns();
        while (l->n_filled == l->n_given && !l->failed) pthread_cond_wait(&l->filled, &l->lock);
        if (l->warm) l->waited_ns += clock_now_ns() - since;
        l->warm = true;
    }
    bool there = l->n_filled > l->n_given;
    if (there) l->n_given++; /* the slot held before is free now */
    pthread_cond_signal(&l->freed);
    pthread_mutex_unlock(&l->lock);
    if (!there) return err_restore(&l->err); /* the thread waits for a seek or the end */
    const struct slot *s = &l->slots[(l->n_given - 1) % N_SLOTS];
    TRY(OPTIONS_GIVE(cz_batch, batch, &s->batch));
    l->n_cut += s->n_cut;
    l->next++;
    return CZ_OK;
}

const size_t *cz_text_loader_rows(const struct cz_text_loader *l)
{
    NEED_OR(l, NULL);
    return l->n_given > 0 ? l->slots[(l->n_given - 1) % N_SLOTS].rows : NULL;
}

const int32_t *cz_text_loader_words(const struct cz_text_loader *l)
{
    NEED_OR(l, NULL);
    return l->n_given > 0 ? l->slots[(l->n_given - 1) % N_SLOTS].words : NULL;
}

bool cz_text_loader_is_done(const struct cz_text_loader *l)
{
    NEED_OR(l, true);
    return is_past_end(l, l->next);
}

uint64_t cz_text_loader_steps_per_epoch(const struct cz_text_loader *l)
{
    NEED_OR(l, 0);
    return l->order.n_steps;
}

uint64_t cz_text_loader_n_examples(const struct cz_text_loader *l)
{
    NEED_OR(l, 0);
    return l->order.n;
}

uint64_t cz_text_loader_rows_per_epoch(const struct cz_text_loader *l)
{
    NEED_OR(l, 0);
    const uint64_t n = l->order.n_steps * l->order.step_size;
    return n < l->order.n ? n : l->order.n;
}

uint64_t cz_text_loader_n_cut(const struct cz_text_loader *l)
{
    NEED_OR(l, 0);
    return l->n_cut;
}

double cz_text_loader_waited_s(const struct cz_text_loader *l)
{
    NEED_OR(l, NAN);
    return (double)l->waited_ns / 1e9;
}

/* ---- the place ------------------------------------------------------------------------------- */

/* A cursor is at the beginning of a step: a step that was begun counts as done. */
void cz_text_loader_tell(const struct cz_text_loader *l, struct cz_data_cursor *out)
{
    if (!l || !out) return;
    uint64_t A = (uint64_t)l->accumulation, steps = l->next / A + (l->next % A != 0);
    *out = (struct cz_data_cursor){.epoch = steps / l->order.n_steps,
                                   .sample = steps % l->order.n_steps * l->order.step_size,
                                   .n_rows = l->order.n,
                                   .seed = l->order.seed,
                                   .shuffle = l->order.shuffle};
}

/* As for the corpus: other data, seed or order would repeat and skip examples. */
static cz_status check_cursor(const struct text_order *o, const struct cz_data_cursor *c)
{
    if (c->n_rows == 0 && c->epoch == 0 && c->sample == 0) return CZ_OK; /* any data's start */
    if (c->n_rows != o->n)
        return err_set(CZ_INVALID, 0,
                       "the saved position belongs to data of %" PRIu64
                       " examples; this data has %" PRIu64,
                       c->n_rows, o->n);
    if (c->shuffle != o->shuffle)
        return err_set(CZ_INVALID, 0, "the saved position belongs to a run with shuffling %s",
                       c->shuffle ? "on" : "off");
    if (c->shuffle && c->seed != o->seed)
        return err_set(CZ_INVALID, 0,
                       "the saved position belongs to shuffle seed %" PRIu64
                       ", this run has %" PRIu64,
                       c->seed, o->seed);
    if (c->sample >= o->n)
        return err_set(CZ_INVALID, 0, "example %" PRIu64 " is beyond the epoch of %" PRIu64,
                       c->sample, o->n);
    return CZ_OK;
}

cz_status cz_text_loader_seek(struct cz_text_loader *l, const struct cz_data_cursor *cursor)
{
    API_ENTRY;
    NEED(l, "text loader");
    NEED(cursor, "cursor");
    uint64_t step;
    TRY(entry_check_process(l->process, "this loader"));
    TRY(check_cursor(&l->order, cursor));
    /* The step, over all epochs, that holds the cursor's example; one that drop_last leaves out
     * stands for the next epoch. */
    const struct text_order *o = &l->order;
    uint64_t in_epoch = cursor->sample / o->step_size;
    if (__builtin_mul_overflow(cursor->epoch, o->n_steps, &step) ||
        __builtin_add_overflow(step, in_epoch < o->n_steps ? in_epoch : o->n_steps, &step) ||
        step > (uint64_t)INT64_MAX / o->step_size)
        return err_set(CZ_INVALID, 0,
                       "epoch %" PRIu64 ", example %" PRIu64 " is not a position in a run",
                       cursor->epoch, cursor->sample);
    if (l->rank == 0 && in_epoch < o->n_steps && cursor->sample % o->step_size != 0)
        LOGV(LOG_WARN, SUB_DATA,
             "data: the saved place, example %" PRIu64 ", is inside a step of %" PRIu64
             " examples: continuing with the complete step, from example %" PRIu64,
             cursor->sample, o->step_size, in_epoch * o->step_size);
    l->next = step * (uint64_t)l->accumulation;
    l->warm = false;
    pthread_mutex_lock(&l->lock);
    l->to_fill = l->next;
    l->n_filled = l->n_given;
    l->generation++;
    l->failed = false;
    pthread_cond_signal(&l->freed);
    pthread_mutex_unlock(&l->lock);
    return CZ_OK;
}
