/* The loader of a language model's corpus: which rows make up a micro-batch, and where the run is.
 *
 * A running number counts samples over all ranks and epochs; row_of() maps it to a row of the data.
 * So the order depends on the seed alone, not on the number of ranks or on how often the run was
 * resumed, and a cursor is one number. */
#include "base/hash.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/status.h"
#include "data/corpus/masking_impl.h"
#include "data/corpus/store_impl.h"
#include <czero/data.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB_ANY           ((int64_t)INT32_MAX + 1) /* ids are int32 from here on */
#define CHECK_N_TOKENS_MAX  ((uint64_t)256 << 20)    /* searched at once by cz_data_check_vocab */
#define CHECK_BLOCK_NTOKENS ((size_t)1 << 16)

struct cz_data_loader {
    struct data_paths paths;
    struct token_file *files;
    struct token_store store;
    int64_t T, B, rank, world_size;
    bool shuffle, once;
    uint64_t seed;
    uint64_t n_rows;         /* whole rows in the data */
    uint64_t rows_per_epoch; /* of these, used in each epoch */
    uint64_t next;           /* running number of the next micro-batch's first sample, all ranks */
    uint64_t end;            /* the first sample that is not taken; UINT64_MAX: none */
    uint64_t accumulation, in_step; /* micro-batches of a step, and of this one so far */
    uint64_t labels_from, n_labels; /* of the incomplete step that begins there; UINT64_MAX: none */
    int64_t vocab_size;
    struct cz_masking masking;
    uint64_t row_step;     /* tokens from one row to the next */
    uint64_t row_ntokens;  /* that a row reads */
    int32_t *row;          /* (row_ntokens) */
    int32_t *ids, *labels; /* (B,T) */
    int32_t end_id;        /* that ends a document; −1: rows are not cut into documents */
    int32_t *documents, *positions; /* (B,T); NULL without */
};

static uint64_t samples_per_batch(const struct cz_data_loader *l)
{
    return (uint64_t)l->B * (uint64_t)l->world_size;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* "FILE", or "FILE and 2 more". */
static const char *name_data(const struct cz_data_options *o, char *buf, size_t buf_nbytes)
{
    if (o->n_paths == 1)
        snprintf(buf, buf_nbytes, "%s", o->paths[0]);
    else
        snprintf(buf, buf_nbytes, "%s and %zu more", o->paths[0], o->n_paths - 1);
    return buf;
}

/* Rows overlap by one token, because the last target of a row is the first token of the next. With
 * masking there is no shift, and a row is what fits between the first and last token. */
static cz_status count_rows(struct cz_data_loader *l, const struct cz_data_options *o)
{
    char name[512];
    uint64_t batch = samples_per_batch(l), n = l->row_ntokens;
    if (l->store.n_tokens < n)
        return err_set(
            CZ_INVALID, 0,
            "%s: %" PRIu64 " token%s too few for one row of %" PRId64
            "%s; a sequence length up to %" PRIu64 " would work",
            name_data(o, name, sizeof name), l->store.n_tokens,
            l->store.n_tokens == 1 ? " is" : "s are", l->T,
            n > l->row_step ? " and its shifted targets" : "",
            l->store.n_tokens + (uint64_t)l->T > n ? l->store.n_tokens + (uint64_t)l->T - n : 0);
    l->n_rows = (l->store.n_tokens - (n - l->row_step)) / l->row_step;
    l->rows_per_epoch = o->drop_last ? l->n_rows / batch * batch : l->n_rows;
    if (l->rows_per_epoch == 0)
        return err_set(CZ_INVALID, 0,
                       "%s: %" PRIu64 " row%s not fill one micro-batch of %" PRId64 " on %" PRId64
                       " ranks, and dataloader_drop_last drops what does not",
                       name_data(o, name, sizeof name), l->n_rows,
                       l->n_rows == 1 ? " does" : "s do", l->B, l->world_size);
    return CZ_OK;
}

/* The end of a run of so many epochs. */
static cz_status set_end(struct cz_data_loader *l, const struct cz_data_options *o)
{
    /* 1.1 times 10 is 11, not a little more */
    const double end = ceil(o->epochs * (double)l->rows_per_epoch * (1 - 1e-12));
    if (!(o->epochs >= 0))
        return err_set(CZ_INVALID, 0, "%g epochs: a number above 0 is needed, or 0 for no end",
                       o->epochs);
    l->end = UINT64_MAX;
    if (o->epochs == 0) return CZ_OK;
    if (!(end >= 1 && end < 0x1p53))
        return err_set(CZ_INVALID, 0, "%g epochs: too many steps", o->epochs);
    l->end = (uint64_t)end;
    return CZ_OK;
}

static cz_status alloc_batch(struct cz_data_loader *l)
{
    size_t numel, nbytes;
    TRY(size_mul((size_t)l->B, (size_t)l->T, &numel));
    TRY(size_mul(numel, sizeof(int32_t), &nbytes));
    l->row = malloc((size_t)l->row_ntokens * sizeof *l->row);
    l->ids = malloc(nbytes);
    l->labels = malloc(nbytes);
    if (l->end_id >= 0) {
        l->documents = malloc(nbytes);
        l->positions = malloc(nbytes);
    }
    if (!l->row || !l->ids || !l->labels || (l->end_id >= 0 && (!l->documents || !l->positions)))
        return err_set(CZ_NOMEM, 0,
                       "no memory for a micro-batch of %" PRId64 " × %" PRId64 " tokens", l->B,
                       l->T);
    return CZ_OK;
}

cz_status cz_data_open(const struct cz_data_options *options, struct cz_data_loader **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_data_options ours, *o = &ours;
    struct cz_masking masking;
    char name[512];
    cz_status st;
    *out = NULL;
    NEED(options, "options");
    TRY(OPTIONS_TAKE(cz_data_options, o, options));
    TRY(OPTIONS_TAKE(cz_masking, &masking, o->masking));
    o->masking = &masking;
    const int64_t world_size = o->world_size == 0 ? 1 : o->world_size;
    if (o->n_paths == 0) return err_set(CZ_INVALID, 0, "no data: give at least one path");
    if (o->seq_len < 1 || o->seq_len >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "a sequence length of %" PRId64 " is impossible", o->seq_len);
    if (o->micro_batch < 1 || o->micro_batch >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "a micro-batch of %" PRId64 " rows is impossible",
                       o->micro_batch);
    if (world_size < 1 || world_size >= INT32_MAX || o->rank < 0 || o->rank >= world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %" PRId64 " in a world of %" PRId64,
                       o->rank, world_size);
    if (o->accumulation < 0 || o->accumulation >= INT32_MAX)
        return err_set(CZ_INVALID, 0, "%" PRId64 " micro-batches in a step are impossible",
                       o->accumulation);
    TRY(masking_check(&masking, o->seq_len));
    if (o->per_document && masking.probability > 0)
        return err_set(CZ_INVALID, 0, "documents are kept apart for next-token models only");
    if (o->per_document && (!o->tokenizer || cz_tokenizer_end_id(o->tokenizer) < 0))
        return err_set(
            CZ_INVALID, 0,
            "the tokenizer has no end-of-text token, so nothing says where documents end");
    struct cz_data_loader *l = calloc(1, sizeof *l);
    if (!l) return err_set(CZ_NOMEM, 0, "no memory for a data loader");
    l->T = o->seq_len;
    l->B = o->micro_batch;
    l->rank = o->rank;
    l->world_size = world_size;
    l->shuffle = o->shuffle;
    l->once = o->once;
    l->accumulation = o->accumulation == 0 ? 1 : (uint64_t)o->accumulation;
    l->labels_from = UINT64_MAX;
    l->seed = o->seed;
    l->vocab_size = VOCAB_ANY;
    l->masking = masking;
    l->end_id = o->per_document ? (int32_t)cz_tokenizer_end_id(o->tokenizer) : -1;
    bool masks = masking.probability > 0;
    l->row_step = (uint64_t)(masks ? masking_row_ntokens(&masking, l->T) : l->T);
    l->row_ntokens = l->row_step + (masks ? 0 : 1); /* the last target */
    TRY_GOTO(data_paths_expand(o->paths, o->n_paths, store_suffixes, &l->paths), fail);
    l->files = calloc(l->paths.n, sizeof *l->files);
    if (!l->files) {
        st = err_set(CZ_NOMEM, 0, "no memory for %zu data files", l->paths.n);
        goto fail;
    }
    store_init(&l->store, l->files);
    l->store.ends_texts = l->end_id >= 0;
    l->store.encoding = o->encoding;
    for (size_t i = 0; i < l->paths.n; i++)
        TRY_GOTO(store_add(&l->store, &l->paths.items[i], o->tokenizer), fail);
    TRY_GOTO(count_rows(l, o), fail);
    TRY_GOTO(set_end(l, o), fail);
    TRY_GOTO(alloc_batch(l), fail);
    LOGV(LOG_INFO, SUB_DATA, "data: %s: %" PRIu64 " token%s, %" PRIu64 " row%s of %" PRId64,
         name_data(o, name, sizeof name), l->store.n_tokens, plural(l->store.n_tokens), l->n_rows,
         plural(l->n_rows), l->T);
    *out = l;
    return CZ_OK;
fail:
    cz_data_close(l);
    return st;
}

void cz_data_close(struct cz_data_loader *l)
{
    API_ENTRY;
    if (!l) return;
    store_free(&l->store);
    data_paths_free(&l->paths);
    free(l->files);
    free(l->row);
    free(l->ids);
    free(l->labels);
    free(l->documents);
    free(l->positions);
    free(l);
}

/* The largest id of the token type may be far above the vocabulary, so the data is searched, up to
 * CHECK_N_TOKENS_MAX; ids beyond that are checked as they are read. It costs seconds at the start
 * instead of a failure after hours. */
cz_status cz_data_check_vocab(struct cz_data_loader *l, int64_t vocab_size)
{
    API_ENTRY;
    NEED(l, "loader");
    if (vocab_size < 1 || vocab_size > VOCAB_ANY)
        return err_set(CZ_INVALID, 0, "a vocabulary of %" PRId64 " is impossible", vocab_size);
    if (store_id_max(&l->store) >= vocab_size) {
        int32_t *block = malloc(CHECK_BLOCK_NTOKENS * sizeof *block);
        uint64_t n =
            l->store.n_tokens < CHECK_N_TOKENS_MAX ? l->store.n_tokens : CHECK_N_TOKENS_MAX;
        cz_status st = block ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory to check the data");
        for (uint64_t at = 0; st == CZ_OK && at < n; at += CHECK_BLOCK_NTOKENS) {
            size_t take = n - at < CHECK_BLOCK_NTOKENS ? (size_t)(n - at) : CHECK_BLOCK_NTOKENS;
            st = store_read(&l->store, at, take, vocab_size, block);
        }
        free(block);
        TRY(st);
    }
    l->vocab_size = vocab_size;
    return CZ_OK;
}

/* ---- the order ------------------------------------------------------------------------------- */

/* The permutation is of all rows, so that with drop_last each epoch drops others. */
static uint64_t row_of(const struct cz_data_loader *l, uint64_t sample)
{
    uint64_t epoch = sample / l->rows_per_epoch, idx = sample % l->rows_per_epoch;
    return l->shuffle ? rng_permute(l->seed, epoch, l->n_rows, idx) : idx;
}

/* Rows of this rank's micro-batch: all of them, except at the end of a single epoch. */
static int64_t rows_left(const struct cz_data_loader *l, uint64_t first)
{
    if (!l->once) return l->B;
    if (first >= l->rows_per_epoch) return 0;
    uint64_t left = l->rows_per_epoch - first;
    return left < (uint64_t)l->B ? (int64_t)left : l->B;
}

/* Row b of the micro-batch: ids and labels (T each) of a sample. */
static cz_status fill_row(struct cz_data_loader *l, uint64_t sample, int64_t b)
{
    const size_t T = (size_t)l->T;
    int32_t *ids = l->ids + (size_t)b * T, *labels = l->labels + (size_t)b * T;
    TRY(store_read(&l->store, row_of(l, sample) * l->row_step, (size_t)l->row_ntokens,
                   l->vocab_size, l->row));
    if (l->masking.probability > 0) {
        masking_fill(&l->masking, l->seed, sample, l->row, l->T, ids, labels);
        return CZ_OK;
    }
    memcpy(ids, l->row, T * sizeof *ids);
    memcpy(labels, l->row + 1, T * sizeof *labels);
    for (size_t t = 0, first = 0, at = (size_t)b * T; l->end_id >= 0 && t < T; t++, at++) {
        const bool begins = t > 0 && ids[t - 1] == l->end_id;
        if (begins) first = t;
        l->documents[at] = t > 0 ? l->documents[at - 1] + begins : 0;
        l->positions[at] = (int32_t)(t - first);
    }
    return CZ_OK;
}

/* Labels of the n rows from `first` on, over all ranks. Masked rows differ in theirs. */
static cz_status count_labels(struct cz_data_loader *l, uint64_t first, uint64_t n)
{
    if (l->labels_from == first) return CZ_OK;
    l->n_labels = n * (uint64_t)l->T;
    if (l->masking.probability > 0) {
        l->n_labels = 0;
        for (uint64_t i = 0; i < n; i++) {
            TRY(fill_row(l, first + i, 0));
            for (int64_t t = 0; t < l->T; t++) l->n_labels += l->labels[t] != CZ_IGNORE_LABEL;
        }
    }
    l->labels_from = first;
    return CZ_OK;
}

/* The run ends inside this step, which began at sample `begin`: its rows are dealt evenly over all
 * micro-batches, so that no rank has all of them. */
static cz_status fill_dealt(struct cz_data_loader *l, uint64_t begin, struct cz_batch *next)
{
    const uint64_t n_parts = l->accumulation * (uint64_t)l->world_size, n = l->end - begin;
    const uint64_t part = l->in_step * (uint64_t)l->world_size + (uint64_t)l->rank;
    const uint64_t first = begin + n * part / n_parts, last = begin + n * (part + 1) / n_parts;
    TRY(count_labels(l, begin, n));
    next->sample = first;
    next->B = (int64_t)(last - first);
    next->loss_divisor = (float)((double)l->n_labels / (double)n_parts);
    for (int64_t b = 0; b < next->B; b++) TRY(fill_row(l, first + (uint64_t)b, b));
    if (next->B > 0) return CZ_OK;
    next->B = 1; /* collective operations need every rank */
    TRY(fill_row(l, begin, 0));
    for (int64_t t = 0; t < l->T; t++) l->labels[t] = CZ_IGNORE_LABEL;
    return CZ_OK;
}

/* Each rank reads its own B rows of the W·B that the step takes. */
cz_status cz_data_next(struct cz_data_loader *l, struct cz_batch *batch)
{
    API_ENTRY;
    NEED(l, "loader");
    NEED(batch, "batch");
    const uint64_t begin = l->next - l->in_step * samples_per_batch(l);
    const uint64_t step_size = l->accumulation * samples_per_batch(l);
    const bool is_cut = l->end < UINT64_MAX && begin < l->end && l->end - begin < step_size;
    const uint64_t first = l->next + (uint64_t)l->rank * (uint64_t)l->B;
    struct cz_batch next = {
        .B = begin < l->end ? rows_left(l, first) : 0, .T = l->T, .sample = first};
    if (is_cut)
        TRY(fill_dealt(l, begin, &next));
    else
        for (int64_t b = 0; b < next.B; b++) TRY(fill_row(l, first + (uint64_t)b, b));
    if (next.B > 0) {
        next.ids = l->ids;
        next.labels = l->labels;
        next.documents = l->documents;
        next.positions = l->positions;
    }
    TRY(OPTIONS_GIVE(cz_batch, batch, &next));
    if (cz_data_is_done(l)) return CZ_OK;
    l->next += samples_per_batch(l);
    if (++l->in_step < l->accumulation) return CZ_OK;
    l->in_step = 0;
    if (is_cut) l->next = l->end;
    return CZ_OK;
}

bool cz_data_is_done(const struct cz_data_loader *l)
{
    NEED_OR(l, true);
    if (l->once) return l->next >= l->rows_per_epoch;
    return l->next - l->in_step * samples_per_batch(l) >= l->end;
}

/* ---- the place ------------------------------------------------------------------------------- */

void cz_data_tell(const struct cz_data_loader *l, struct cz_data_cursor *out)
{
    if (!l || !out) return;
    *out = (struct cz_data_cursor){.epoch = l->next / l->rows_per_epoch,
                                   .sample = l->next % l->rows_per_epoch,
                                   .n_rows = l->n_rows,
                                   .seed = l->seed,
                                   .shuffle = l->shuffle};
}

/* A cursor of other data, another sequence length or another seed would silently repeat and skip
 * samples, so it is refused. The beginning fits any data. */
cz_status cz_data_seek(struct cz_data_loader *l, const struct cz_data_cursor *c)
{
    API_ENTRY;
    NEED(l, "loader");
    NEED(c, "cursor");
    uint64_t next;
    bool is_start = c->n_rows == 0 && c->epoch == 0 && c->sample == 0;
    if (!is_start && c->n_rows != l->n_rows)
        return err_set(CZ_INVALID, 0,
                       "the saved position belongs to data of %" PRIu64
                       " rows; this data has %" PRIu64 " (other files, or another sequence length)",
                       c->n_rows, l->n_rows);
    if (!is_start && c->shuffle != l->shuffle)
        return err_set(CZ_INVALID, 0, "the saved position belongs to a run with shuffling %s",
                       c->shuffle ? "on" : "off");
    if (!is_start && c->shuffle && c->seed != l->seed)
        return err_set(CZ_INVALID, 0,
                       "the saved position belongs to shuffle seed %" PRIu64
                       ", this run has %" PRIu64,
                       c->seed, l->seed);
    if (__builtin_mul_overflow(c->epoch, l->rows_per_epoch, &next) ||
        __builtin_add_overflow(next, c->sample, &next) || next > INT64_MAX)
        return err_set(CZ_INVALID, 0,
                       "epoch %" PRIu64 ", sample %" PRIu64 " is not a position in a run", c->epoch,
                       c->sample);
    l->next = next;
    l->in_step = 0;
    return CZ_OK;
}

#define HASH_PIECE    4096 /* tokens */
#define HASH_N_PIECES 1024

/* All pieces of few tokens; evenly spread ones, the first and the last among them, of many. */
cz_status cz_data_hash(struct cz_data_loader *l, uint64_t *hash)
{
    API_ENTRY;
    NEED(l, "loader");
    NEED(hash, "hash");
    const uint64_t n = l->store.n_tokens, n_pieces = (n + HASH_PIECE - 1) / HASH_PIECE;
    const uint64_t n_taken = n_pieces < HASH_N_PIECES ? n_pieces : HASH_N_PIECES;
    int32_t *tokens = malloc(HASH_PIECE * sizeof *tokens);
    if (!tokens) return err_set(CZ_NOMEM, 0, "no memory to compare data");
    cz_status st = CZ_OK;
    *hash = hash_fixed(HASH_FIXED_BEGIN, &n, sizeof n);
    for (uint64_t i = 0; i < n_taken && st == CZ_OK; i++) {
        const uint64_t piece = n_taken > 1 ? i * (n_pieces - 1) / (n_taken - 1) : 0;
        const uint64_t left = n - piece * HASH_PIECE;
        const size_t n_here = left < HASH_PIECE ? (size_t)left : HASH_PIECE;
        st = store_read(&l->store, piece * HASH_PIECE, n_here, l->vocab_size, tokens);
        if (st == CZ_OK) *hash = hash_fixed(*hash, tokens, n_here * sizeof *tokens);
    }
    free(tokens);
    return st;
}

uint64_t cz_data_n_tokens(const struct cz_data_loader *l)
{
    NEED_OR(l, 0);
    return l->store.n_tokens;
}

uint64_t cz_data_n_rows(const struct cz_data_loader *l)
{
    NEED_OR(l, 0);
    return l->n_rows;
}

uint64_t cz_data_rows_per_epoch(const struct cz_data_loader *l)
{
    NEED_OR(l, 0);
    return l->rows_per_epoch;
}

uint64_t cz_data_n_batches(const struct cz_data_loader *l)
{
    NEED_OR(l, 0);
    uint64_t batch = samples_per_batch(l);
    return l->rows_per_epoch / batch + (l->rows_per_epoch % batch != 0);
}
