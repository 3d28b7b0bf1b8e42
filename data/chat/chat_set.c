/* Files of rows to tokens. All threads encode a block of rows while one of them takes over the
 * block before and cuts the next one out of the file; examples keep the order of the rows, so that
 * the result does not depend on the threads. */
#include "data/chat/chat_set.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text/unread.h"
#include "base/threads.h"
#include "data/chat/chat_cache.h"
#include "data/source/json_stream.h"
#include "data/source/paths.h"
#include "data/source/split.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 2048, NAMED_MAX = 5 };
/* Beginnings of answers cost a rendering: they are looked at in the first lines, then in every so
 * many. */
enum { LOOKED_AT = 256, LOOKED_EVERY = 16 };
#define BLOCK_NBYTES   ((size_t)32 << 20)
#define ROW_NBYTES_MAX ((size_t)64 << 20)

/* A row that waits to be encoded, and what became of it. */
struct waiting {
    size_t begin, n; /* in block.text */
    uint64_t line;
    int32_t *tokens; /* (n_tokens) with CHAT_TRAINED */
    size_t n_tokens;
    size_t n_trained, n_trained_uncut; /* up to max_len, and of all */
    bool lacks_end, has_empty, is_excluded;
    bool is_kept;           /* tokens came from the cache */
    struct text_buf unread; /* names, each ended by NUL */
    bool has_start;
    struct text_buf start; /* as in chat_tokens */
    cz_status status;
    enum chat_fault fault; /* CZ_INVALID */
    struct err *err;
};

struct block {
    struct text_buf text;
    struct waiting *rows; /* BLOCK_ROWS */
    size_t n_rows;
};

struct reader {
    const struct chat_set_options *o;
    struct chat_set *set;
    struct chat_cache *cache; /* NULL: none */
    struct text_source in;
    const char *shown;
    bool started, is_list, ended;
    struct block blocks[3];
    unsigned n_named[CHAT_N_FAULTS];
    struct unread unread;
    uint64_t first_empty; /* line of the first row with an answer that says nothing, */
    size_t first_empty_file;
};

/* ---- rows
 * ---------------------------------------------------------------------------------------- */

/* The next row, or r->ended. */
static cz_status take_row(struct reader *r, struct block *block)
{
    struct text_source *in = &r->in;
    int c = json_stream_peek(in);
    if (!r->started && c == '[') {
        text_source_skip(in);
        c = json_stream_peek(in);
        r->is_list = true;
        r->ended = c == ']';
    }
    r->started = true;
    if (c < 0 && in->status != CZ_OK) return in->status;
    if (c < 0 && !r->is_list) r->ended = true;
    if (r->ended) return CZ_OK;
    if (c != '{') return json_stream_fail(in, c, "a row: an object");
    struct waiting *row = &block->rows[block->n_rows];
    *row = (struct waiting){.begin = block->text.n, .line = in->line};
    TRY(json_stream_object(in, ROW_NBYTES_MAX, &block->text));
    row->n = block->text.n - row->begin;
    block->n_rows++;
    if (!r->is_list) return CZ_OK;
    return json_stream_separator(in, ']', &r->ended);
}

/* The next rows of the file; none behind its end. */
static cz_status take_block(struct reader *r, struct block *block)
{
    block->n_rows = 0;
    block->text.n = 0;
    while (!r->ended && block->n_rows < BLOCK_ROWS && block->text.n < BLOCK_NBYTES)
        TRY(take_row(r, block));
    return CZ_OK;
}

static void count_trained(const struct reader *r, struct waiting *row)
{
    const size_t max_len = (size_t)r->o->max_len;
    size_t n = 0, i = 1;
    for (; i < row->n_tokens && i < max_len; i++) n += row->tokens[i] < 0;
    row->n_trained = n;
    for (; i < row->n_tokens; i++) n += row->tokens[i] < 0;
    row->n_trained_uncut = n;
}

static void encode_one(const struct reader *r, struct chat_scratch *scratch, const char *text,
                       struct waiting *row)
{
    const struct chat_encoder *e = &r->o->encoder;
    const struct chat_reading reading = {.chat = e->chat, .trains_all = e->loss == CHAT_LOSS_ALL};
    struct chat_row read;
    struct chat_tokens t = {0};
    char where[600];
    snprintf(where, sizeof where, "%s:%" PRIu64, r->shown, row->line);
    row->status = chat_row_read(text + row->begin, row->n, where, &reading, &read);
    bool is_form = row->status == CZ_OK || read.is_unseen;
    row->fault = CHAT_UNSEEN;
    if (row->status == CZ_OK) {
        scratch->skips_start = row->line > LOOKED_AT && row->line % LOOKED_EVERY != 0;
        row->status = chat_encode_in(scratch, e, &read, where, &t);
        row->fault = t.fault;
    }
    row->unread = read.unread;
    row->is_excluded = read.is_excluded || t.is_excluded;
    read.unread = (struct text_buf){0};
    chat_row_free(&read);
    if (row->status == CZ_OK) {
        for (size_t i = 0; i < t.n; i++) t.ids[i] |= t.trained[i] ? CHAT_TRAINED : 0;
        row->tokens = t.ids;
        row->n_tokens = t.n;
        row->lacks_end = t.lacks_end;
        row->has_empty = t.has_empty;
        row->has_start = t.has_start;
        row->start = t.start;
        t.start = (struct text_buf){0};
        t.ids = NULL;
        count_trained(r, row);
    }
    chat_tokens_free(&t);
    if (row->status == CZ_OK) return;
    row->err = malloc(sizeof *row->err);
    if (row->err) err_capture(row->err);
    /* A row of no form ends the run; one that its template refuses is left out. */
    if (row->status == CZ_INVALID && !is_form) row->status = CZ_CORRUPT;
}

/* ---- examples
 * ------------------------------------------------------------------------------------ */

static cz_status grow(void **at, size_t n, size_t more, size_t *cap, size_t size)
{
    if (*cap - n >= more) return CZ_OK;
    size_t wanted = 2 * *cap + more + 1024;
    void *grown = wanted < SIZE_MAX / size / 2 ? realloc(*at, wanted * size) : NULL;
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu tokens of the data", wanted);
    *at = grown;
    *cap = wanted;
    return CZ_OK;
}

const char *chat_fault_text(const struct chat_set *s, enum chat_fault fault, char *buf)
{
    static const char *const reasons[] = {
        [CHAT_REFUSED] = "its template refuses this row",
        [CHAT_UNFOUND] = "an answer cannot be found in the text",
        [CHAT_UNSEEN] = "the model cannot read a part of this row",
        [CHAT_UNTRAINED] =
            "nothing of this row is trained: it has no answer, or its flags exclude every answer",
    };
    if (fault == CHAT_CUT_AWAY)
        snprintf(buf, CHAT_FAULT_NBYTES, "the answer begins after token %" PRId64 " (--seq-len)",
                 s->max_len);
    else
        snprintf(buf, CHAT_FAULT_NBYTES, "%s", reasons[fault]);
    return buf;
}

uint64_t chat_set_n_left_out(const struct chat_set *s)
{
    uint64_t n = 0;
    for (int i = 0; i < CHAT_N_FAULTS; i++) n += s->n_faults[i];
    return n;
}

const char *chat_set_reason(const struct chat_set *s, enum chat_fault fault, char *buf)
{
    static const char *const reasons[][2] = {
        /* of one row, of several */
        [CHAT_REFUSED] = {"is refused by the template", "are refused by the template"},
        [CHAT_UNFOUND] = {"has an answer that cannot be found in the text",
                          "have an answer that cannot be found in the text"},
        [CHAT_UNSEEN] = {"has parts that the model cannot read",
                         "have parts that the model cannot read"},
        [CHAT_UNTRAINED] = {"has nothing to train", "have nothing to train"},
        [CHAT_CUT_AWAY] = {"has its answer after token", "have their answer after token"},
    };
    const uint64_t n = s->n_faults[fault];
    char place[48] = "";
    if (fault == CHAT_CUT_AWAY)
        snprintf(place, sizeof place, " %" PRId64 " (--seq-len)", s->max_len);
    snprintf(buf, CHAT_REASONS_NBYTES, "%" PRIu64 " %s%s", n, reasons[fault][n != 1], place);
    return buf;
}

const char *chat_set_reasons(const struct chat_set *s, char *buf)
{
    char one[CHAT_REASONS_NBYTES];
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < CHAT_N_FAULTS; i++)
        if (s->n_faults[i] > 0)
            at += (size_t)snprintf(buf + at, CHAT_REASONS_NBYTES - at, "%s%s", at > 0 ? ", " : "",
                                   chat_set_reason(s, (enum chat_fault)i, one));
    return buf;
}

/* The end of a text, with its line feeds as escapes. */
static const char *show_end(const char *text, char *buf, size_t nbytes)
{
    enum { SHOWN = 60 };
    size_t n = strlen(text), at = 0;
    const bool is_cut = n > SHOWN;
    if (is_cut) text += n - SHOWN;
    while (is_cut && ((unsigned char)*text & 0xC0) == 0x80) text++;
    buf[0] = '\0';
    for (; *text && at + 3 < nbytes; text++)
        at += (size_t)snprintf(buf + at, nbytes - at, *text == '\n' ? "\\n" : "%c", *text);
    return buf;
}

const char *chat_set_start(const struct chat_set *s, char *buf)
{
    char before[160], prompt[160];
    if (s->n_other_starts == 0) return NULL;
    show_end(s->start.s, before, sizeof before);
    show_end(s->start.s + strlen(s->start.s) + 1, prompt, sizeof prompt);
    if (!*prompt)
        snprintf(buf, CHAT_START_NBYTES,
                 "the template writes no generation prompt (add_generation_prompt), so \"%s\" is "
                 "trained as part of the answers and generate begins without it (%" PRIu64
                 " of %" PRIu64 " row%s)",
                 before, s->n_other_starts, s->n_starts, plural(s->n_starts));
    else if (!*before)
        snprintf(buf, CHAT_START_NBYTES,
                 "answers do not follow the generation prompt \"%s\": generate will not begin as "
                 "trained (%" PRIu64 " of %" PRIu64 " row%s)",
                 prompt, s->n_other_starts, s->n_starts, plural(s->n_starts));
    else
        snprintf(buf, CHAT_START_NBYTES,
                 "answers follow \"%s\", but the generation prompt is \"%s\": generate will not "
                 "begin as trained (%" PRIu64 " of %" PRIu64 " row%s)",
                 before, prompt, s->n_other_starts, s->n_starts, plural(s->n_starts));
    return buf;
}

bool chat_set_is_refused(const struct chat_set *s)
{
    const uint64_t n = chat_set_n_left_out(s);
    return 2 * (n - s->n_excluded) > s->n_rows || n == s->n_rows;
}

/* A row that is left out: named or, for a look at the data, noted. */
static cz_status leave_out(struct reader *r, enum chat_fault fault, const struct waiting *row)
{
    struct chat_set *s = r->set;
    const bool has_sentence = fault <= CHAT_UNSEEN;
    char text[CHAT_FAULT_NBYTES];
    s->n_faults[fault]++;
    s->n_excluded += fault == CHAT_UNTRAINED && row->is_excluded;
    if (r->o->keeps_all) {
        TRY(grow((void **)&s->left_out, s->n_left_out, 1, &s->left_out_cap, sizeof *s->left_out));
        struct chat_left_out *left = &s->left_out[s->n_left_out++];
        *left = (struct chat_left_out){.fault = fault,
                                       .file = (uint32_t)(s->n_files - 1),
                                       .line = row->line,
                                       .example = SIZE_MAX};
        if (!has_sentence) {
            left->example = s->n_examples; /* add_example() puts it there */
            return CZ_OK;
        }
        left->sentence = strdup(row->err ? row->err->text : chat_fault_text(s, fault, text));
        return left->sentence ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for what is left out");
    }
    if (row->is_excluded && fault == CHAT_UNTRAINED) return CZ_OK; /* as the row has it */
    if (r->n_named[fault]++ >= NAMED_MAX) return CZ_OK;
    if (has_sentence)
        LOGV(LOG_WARN, SUB_DATA, "data: %s; the row is left out", row->err ? row->err->text : "");
    else
        LOGV(LOG_WARN, SUB_DATA, "data: %s:%" PRIu64 ": %s; it is left out", r->shown, row->line,
             chat_fault_text(s, fault, text));
    return CZ_OK;
}

/* A row's tokens, cut, into the set. */
static cz_status add_example(struct reader *r, const struct waiting *row)
{
    struct chat_set *s = r->set;
    const size_t max_len = (size_t)r->o->max_len, n_full = row->n_tokens;
    const size_t n = n_full < max_len ? n_full : max_len, n_kept = r->o->keeps_all ? n_full : n;
    s->n_rows++;
    s->n_cut += n < n_full;
    s->n_without_end += row->lacks_end;
    if (row->n_trained == 0) {
        TRY(leave_out(r, row->n_trained_uncut > 0 ? CHAT_CUT_AWAY : CHAT_UNTRAINED, row));
        if (!r->o->keeps_all) return CZ_OK;
    } else if (row->has_empty && s->n_empty++ == 0) {
        r->first_empty = row->line;
        r->first_empty_file = s->n_files - 1;
    }
    TRY(grow((void **)&s->tokens, s->n_tokens, n_kept, &s->tokens_cap, sizeof *s->tokens));
    TRY(grow((void **)&s->examples, s->n_examples, 1, &s->examples_cap, sizeof *s->examples));
    if (n_kept > 0) memcpy(s->tokens + s->n_tokens, row->tokens, n_kept * sizeof *s->tokens);
    s->examples[s->n_examples++] = (struct chat_example){.begin = s->n_tokens,
                                                         .n = n,
                                                         .n_full = n_full,
                                                         .n_trained = row->n_trained,
                                                         .has_empty = row->has_empty,
                                                         .file = (uint32_t)(s->n_files - 1),
                                                         .line = row->line};
    s->n_tokens += n_kept;
    s->n_trained += row->n_trained;
    return CZ_OK;
}

static void waiting_free(struct waiting *row)
{
    free(row->tokens);
    free(row->err);
    text_buf_free(&row->unread);
    text_buf_free(&row->start);
    row->tokens = NULL;
    row->err = NULL;
}

/* ---- kept tokens ------------------------------------------------------------------------------
 */

/* Of each row the number of its tokens, UINT32_MAX where it was refused and has to be tried again,
 * KEPT_…, the bytes of names of members that nothing uses and of the texts of another beginning;
 * the tokens, and both. */
enum { KEPT_LACKS_END = 1, KEPT_HAS_EMPTY = 2, KEPT_IS_EXCLUDED = 4, KEPT_HAS_START = 8 };
struct kept_head {
    uint32_t n, flags, n_unread, n_start;
};

/* Nothing, or two texts, each ended by NUL. */
static bool has_two_texts(const struct text_buf *t)
{
    const size_t n = t->n > 0 ? strlen(t->s) + 1 : 0;
    return t->n == 0 || (n < t->n && n + strlen(t->s + n) + 1 == t->n);
}

/* n bytes that end in NUL, if any. */
static bool take_kept_text(struct text_buf *to, const char **at, size_t n)
{
    if (n > 0 && (text_buf_put(to, *at, n) != CZ_OK || to->s[n - 1] != '\0')) return false;
    *at += n;
    return true;
}

/* One row's tokens from [*at, end): false when they are not all there. */
static bool take_kept(const struct reader *r, struct waiting *row, const char **at, const char *end)
{
    struct kept_head head;
    if ((size_t)(end - *at) < sizeof head) return false;
    memcpy(&head, *at, sizeof head);
    *at += sizeof head;
    if (head.n == UINT32_MAX) return true;
    if ((size_t)(end - *at) / sizeof *row->tokens < head.n ||
        (size_t)(end - *at) - head.n * sizeof *row->tokens < (size_t)head.n_unread + head.n_start)
        return false;
    const size_t nbytes = head.n * sizeof *row->tokens;
    row->tokens = malloc(nbytes + 1);
    if (!row->tokens) return false;
    memcpy(row->tokens, *at, nbytes);
    *at += nbytes;
    if (!take_kept_text(&row->unread, at, head.n_unread) ||
        !take_kept_text(&row->start, at, head.n_start) || !has_two_texts(&row->start))
        return false;
    row->n_tokens = head.n;
    row->lacks_end = head.flags & KEPT_LACKS_END;
    row->has_empty = head.flags & KEPT_HAS_EMPTY;
    row->is_excluded = head.flags & KEPT_IS_EXCLUDED;
    row->has_start = head.flags & KEPT_HAS_START;
    row->is_kept = true;
    count_trained(r, row);
    return true;
}

static cz_status get_kept(const struct reader *r, struct block *block, bool *found)
{
    char *kept;
    size_t n;
    *found = false;
    if (!r->cache) return CZ_OK;
    TRY(chat_cache_get(r->cache, block->text.s, block->text.n, block->n_rows, &kept, &n));
    if (!kept) return CZ_OK;
    const char *at = kept, *end = kept + n;
    *found = true;
    for (size_t i = 0; i < block->n_rows && *found; i++)
        *found = take_kept(r, &block->rows[i], &at, end);
    *found = *found && at == end;
    free(kept);
    for (size_t i = 0; i < block->n_rows && !*found; i++) {
        waiting_free(&block->rows[i]);
        block->rows[i].is_kept = false;
    }
    return CZ_OK;
}

/* A block with an error that ends the run is not kept. */
static cz_status put_kept(struct reader *r, const struct block *block)
{
    struct text_buf kept = {0};
    cz_status st = CZ_OK;
    for (size_t i = 0; i < block->n_rows; i++)
        if (block->rows[i].status != CZ_OK && block->rows[i].status != CZ_INVALID) return CZ_OK;
    for (size_t i = 0; i < block->n_rows && st == CZ_OK; i++) {
        const struct waiting *row = &block->rows[i];
        const size_t n = row->n_tokens;
        const bool is_known = row->status == CZ_OK && n < UINT32_MAX &&
                              row->unread.n < UINT32_MAX && row->start.n < UINT32_MAX;
        const uint32_t flags =
            (row->lacks_end ? KEPT_LACKS_END : 0) | (row->has_empty ? KEPT_HAS_EMPTY : 0) |
            (row->is_excluded ? KEPT_IS_EXCLUDED : 0) | (row->has_start ? KEPT_HAS_START : 0);
        const struct kept_head head = {is_known ? (uint32_t)n : UINT32_MAX, flags,
                                       is_known ? (uint32_t)row->unread.n : 0,
                                       is_known ? (uint32_t)row->start.n : 0};
        st = text_buf_put(&kept, (const char *)&head, sizeof head);
        if (st == CZ_OK && is_known)
            st = text_buf_put(&kept, (const char *)row->tokens, n * sizeof *row->tokens);
        if (st == CZ_OK && is_known && row->unread.n > 0)
            st = text_buf_put(&kept, row->unread.s, row->unread.n);
        if (st == CZ_OK && is_known && row->start.n > 0)
            st = text_buf_put(&kept, row->start.s, row->start.n);
    }
    if (st == CZ_OK)
        chat_cache_put(r->cache, block->text.s, block->text.n, block->n_rows, kept.s, kept.n);
    text_buf_free(&kept);
    return st;
}

/* Of rows that are trained. */
static void note_start(struct chat_set *s, struct waiting *row)
{
    if (!row->has_start || row->n_trained == 0) return;
    s->n_starts++;
    if (row->start.n == 0 || s->n_other_starts++ > 0) return;
    s->start = row->start;
    row->start = (struct text_buf){0};
}

static void note_unread(struct reader *r, const struct waiting *row)
{
    const struct text_buf *names = &row->unread;
    for (size_t at = 0; at < names->n; at += strlen(names->s + at) + 1)
        unread_add(&r->unread, names->s + at, "line %" PRIu64, row->line);
}

/* Take encoded rows over in their order. */
static cz_status end_block(struct reader *r, struct block *block)
{
    cz_status st = CZ_OK;
    for (size_t i = 0; i < block->n_rows; i++) {
        struct waiting *row = &block->rows[i];
        note_unread(r, row);
        if (st == CZ_OK && row->status == CZ_INVALID) {
            r->set->n_rows++;
            st = leave_out(r, row->fault, row);
        } else if (st == CZ_OK && row->status != CZ_OK) {
            st = row->err ? err_restore(row->err)
                          : err_set(row->status, 0, "%s:%" PRIu64 ": a row cannot be read",
                                    r->shown, row->line);
        } else if (st == CZ_OK) {
            r->set->n_kept += row->is_kept;
            note_start(r->set, row);
            st = add_example(r, row);
        }
        waiting_free(row);
    }
    block->n_rows = 0;
    return st;
}

/* After an error rows may still wait. */
static void block_free(struct block *block)
{
    for (size_t i = 0; block->rows && i < block->n_rows; i++) waiting_free(&block->rows[i]);
    text_buf_free(&block->text);
    free(block->rows);
}

/* What a part of a block's work came to, with its sentence, as errors belong to threads. */
struct outcome {
    cz_status st;
    struct err why;
};

static void note(struct outcome *o, cz_status st)
{
    o->st = st;
    if (st != CZ_OK) err_capture(&o->why);
}

/* Encode a block, while the caller's thread takes over the rows of the block before and cuts the
 * next one out of the file. */
static void encode_block(struct reader *r, struct block *before, struct block *block,
                         struct block *next, struct outcome *ended, struct outcome *taken)
{
    (void)threads_count(); /* the workers get the entry's floating-point settings */
#pragma omp parallel
    {
        struct chat_scratch scratch = {0};
#pragma omp master
        {
            note(ended, end_block(r, before));
            note(taken, take_block(r, next));
        }
#pragma omp for schedule(dynamic, 8)
        for (size_t i = 0; i < block->n_rows; i++)
            if (!block->rows[i].is_kept) encode_one(r, &scratch, block->text.s, &block->rows[i]);
        chat_scratch_free(&scratch);
    }
}

/* ---- files
 * --------------------------------------------------------------------------------------- */

static cz_status add_file(struct chat_set *s, const char *name)
{
    char **files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    if (!files) return err_set(CZ_NOMEM, 0, "no memory for the names of files");
    s->files = files;
    s->files[s->n_files] = strdup(name);
    return s->files[s->n_files++] ? CZ_OK
                                  : err_set(CZ_NOMEM, 0, "no memory for the names of files");
}

static cz_status read_file(struct reader *r, const struct data_path *path)
{
    TRY(add_file(r->set, path->shown));
    r->shown = path->shown;
    r->started = r->is_list = r->ended = false;
    TRY(text_source_open(&r->in, path->dir, path->name, path->shown, r->o->encoding));
    struct outcome ended, taken;
    struct block *before = &r->blocks[0], *block = &r->blocks[1], *next = &r->blocks[2];
    TRY(take_block(r, block));
    while (block->n_rows > 0) {
        bool found;
        TRY(get_kept(r, block, &found));
        encode_block(r, before, block, next, &ended, &taken);
        if (ended.st != CZ_OK) return err_restore(&ended.why);
        TRY(r->cache && !found ? put_kept(r, block) : CZ_OK);
        if (taken.st != CZ_OK) {
            TRY(end_block(r, block)); /* what is wrong there comes first */
            return err_restore(&taken.why);
        }
        struct block *free_one = before;
        before = block;
        block = next;
        next = free_one;
    }
    TRY(end_block(r, before));
    return unread_report(&r->unread, path->shown);
}

static cz_status check_faults(const struct chat_set *s, const struct chat_set_options *o)
{
    const uint64_t n = chat_set_n_left_out(s);
    char reasons[CHAT_REASONS_NBYTES];
    if (s->n_rows == 0) return err_set(CZ_INVALID, 0, "%s: no rows", o->paths[0]);
    if (n == 0 || o->keeps_all) return CZ_OK;
    chat_set_reasons(s, reasons);
    if (chat_set_is_refused(s))
        return err_set(CZ_INVALID, 0,
                       "%" PRIu64 " of %" PRIu64
                       " rows cannot be trained on: %s; czero data show FILE shows them%s%s%s",
                       n, s->n_rows, reasons, o->look ? " (" : "", o->look ? o->look : "",
                       o->look ? ")" : "");
    LOGV(LOG_WARN, SUB_DATA, "data: %" PRIu64 " of %" PRIu64 " rows %s left out: %s", n, s->n_rows,
         n == 1 ? "is" : "are", reasons);
    return CZ_OK;
}

static void say_empty(const struct reader *r)
{
    const struct chat_set *s = r->set;
    if (s->n_empty == 0) return;
    LOGV(
        LOG_WARN, SUB_DATA,
        "data: %" PRIu64 " of %" PRIu64 " rows %s an empty answer (first: %s:%" PRIu64
        "): only the end of the turn is trained there; \"train\": false in such a turn excludes it",
        s->n_empty, s->n_rows, s->n_empty == 1 ? "has" : "have", s->files[r->first_empty_file],
        r->first_empty);
}

/* An example at the end of a set, of its own or of another one's. */
static cz_status move_example(struct chat_set *to, const struct chat_set *from,
                              struct chat_example e)
{
    TRY(grow((void **)&to->tokens, to->n_tokens, e.n, &to->tokens_cap, sizeof *to->tokens));
    TRY(grow((void **)&to->examples, to->n_examples, 1, &to->examples_cap, sizeof *to->examples));
    memmove(to->tokens + to->n_tokens, from->tokens + e.begin, e.n * sizeof *to->tokens);
    e.begin = to->n_tokens;
    to->examples[to->n_examples++] = e;
    to->n_tokens += e.n;
    to->n_trained += e.n_trained;
    to->n_cut += e.n < e.n_full;
    return CZ_OK;
}

/* Move a share of the examples to a set of their own. */
static cz_status hold_out(struct chat_set *s, const struct chat_set_options *o)
{
    const size_t n_all = s->n_examples;
    struct chat_set *held = calloc(1, sizeof *held);
    *o->held = held;
    if (!held) return err_set(CZ_NOMEM, 0, "no memory for the data");
    held->max_len = s->max_len;
    s->n_examples = s->n_tokens = s->n_trained = s->n_cut = 0;
    for (size_t i = 0; i < n_all; i++) {
        const bool takes = split_takes(o->split_share, o->split_seed, 0, n_all, i);
        TRY(move_example(takes ? held : s, s, s->examples[i]));
    }
    held->n_rows = held->n_examples;
    s->n_rows -= held->n_rows;
    if (held->n_examples == 0)
        return err_set(CZ_INVALID, 0, "%s: a share of %g takes none of %zu rows", o->paths[0],
                       o->split_share, n_all);
    for (size_t i = 0; i < s->n_files; i++) TRY(add_file(held, s->files[i]));
    return chat_set_pack(held, o->max_len, o->packs);
}

static cz_status read_all(struct reader *r)
{
    struct data_paths paths = {0};
    const struct chat_set_options *o = r->o;
    for (size_t i = 0; i < CZ_ARRAY_LEN(r->blocks); i++) {
        r->blocks[i].rows = calloc(BLOCK_ROWS, sizeof *r->blocks[i].rows);
        if (!r->blocks[i].rows) return err_set(CZ_NOMEM, 0, "no memory for rows");
    }
    if (o->cache_dir) TRY(chat_cache_open(o->cache_dir, &o->encoder, &r->cache));
    cz_status st = data_paths_expand(o->paths, o->n_paths, data_row_suffixes, &paths);
    for (size_t i = 0; i < paths.n && st == CZ_OK; i++) {
        st = read_file(r, &paths.items[i]);
        text_source_close(&r->in);
    }
    data_paths_free(&paths);
    TRY(st);
    TRY(check_faults(r->set, o));
    if (!o->keeps_all) say_empty(r);
    if (r->set->n_without_end > 0)
        LOGV(
            LOG_WARN, SUB_DATA,
            "data: the token that ends an answer is not trained in %" PRIu64 " of %" PRIu64
            " rows, since the template leaves it outside of {%% generation %%}: the model will not "
            "learn to stop",
            r->set->n_without_end, r->set->n_rows);
    if (o->split_share > 0) TRY(hold_out(r->set, o));
    return chat_set_pack(r->set, o->max_len, o->packs);
}

cz_status chat_set_open(const struct chat_set_options *options, struct chat_set **out)
{
    struct reader r = {.o = options, .unread = {.what = "members of rows"}};
    *out = NULL;
    if (options->held) *options->held = NULL;
    r.set = calloc(1, sizeof *r.set);
    if (!r.set) return err_set(CZ_NOMEM, 0, "no memory for the data");
    r.set->max_len = options->max_len;
    cz_status st = read_all(&r);
    for (size_t i = 0; i < CZ_ARRAY_LEN(r.blocks); i++) block_free(&r.blocks[i]);
    chat_cache_close(r.cache);
    if (st != CZ_OK) {
        chat_set_close(r.set);
        if (options->held) chat_set_close(*options->held);
        if (options->held) *options->held = NULL;
        return st;
    }
    *out = r.set;
    return CZ_OK;
}

void chat_set_close(struct chat_set *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_files; i++) free(s->files[i]);
    free(s->files);
    for (size_t i = 0; i < s->n_left_out; i++) free(s->left_out[i].sentence);
    free(s->left_out);
    free(s->tokens);
    free(s->examples);
    text_buf_free(&s->start);
    free(s->order);
    free(s->bins);
    free(s);
}

uint64_t chat_set_hash(const struct chat_set *s)
{
    uint64_t h = hash_fixed(HASH_FIXED_BEGIN, &s->n_examples, sizeof s->n_examples);
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        h = hash_fixed(h, &e->n, sizeof e->n);
        h = hash_fixed(h, s->tokens + e->begin, e->n * sizeof *s->tokens);
    }
    return h;
}
