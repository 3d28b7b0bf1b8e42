/* Labelled texts: which reader a file needs, and the examples in memory. */
#include "base/options.h"
#include "data/labelled/texts_impl.h"

#include "base/log.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BLOCK_NBYTES ((size_t)1 << 20)

struct text_block {
    struct text_block *next;
    size_t n, cap;
    char bytes[];
};

/* A text, NUL, and with a pair that and a NUL. */
struct text_example {
    const char *text;
    uint32_t nbytes, pair_nbytes;
    int32_t label; /* while reading: the label's entry */
    bool has_pair;
};

struct cz_texts {
    struct text_block *blocks; /* the one that is being filled first */
    struct text_example *examples;
    size_t n, cap;
    char **names; /* (n_labels) */
    size_t n_labels;
    size_t *n_of_label; /* (n_labels) */
    uint64_t nbytes;    /* of all texts */
};

/* ---- names ------------------------------------------------------------------------------------
 */

static const char *const role_names[TEXT_N_ROLES] = {"text", "second text", "label"};
static const char *const usual_names[TEXT_N_ROLES][TEXT_NAMES_MAX] = {
    {"text", "sentence", "sentence1", "content", "review"},
    {"pair", "sentence2", "text_pair"},
    {"label", "labels", "class", "target", "category"}};

const char *texts_role_name(enum text_role role)
{
    return role_names[role];
}

static const char *given_name(const struct cz_texts_options *o, enum text_role role)
{
    return role == TEXT_ROLE_TEXT   ? o->text_column
           : role == TEXT_ROLE_PAIR ? o->pair_column
                                    : o->label_column;
}

bool texts_is_given(const struct cz_texts_options *o, enum text_role role)
{
    return given_name(o, role) != NULL;
}

size_t texts_names_of(const struct cz_texts_options *o, enum text_role role,
                      const char *names[TEXT_NAMES_MAX])
{
    size_t n = 0;
    names[0] = given_name(o, role);
    if (names[0]) return 1;
    for (; n < TEXT_NAMES_MAX && usual_names[role][n]; n++) names[n] = usual_names[role][n];
    return n;
}

cz_status texts_fail_missing(struct texts_reader *r, enum text_role role, const char *what)
{
    const char *names[TEXT_NAMES_MAX];
    char wanted[256] = "";
    size_t n = texts_names_of(r->o, role, names), used = 0;
    for (size_t i = 0; i < n && used < sizeof wanted; i++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\"%s\"",
                                 i == 0       ? ""
                                 : i == n - 1 ? " or "
                                              : ", ",
                                 names[i]);
    bool none = r->names.n <= 2;
    return text_source_fail(&r->in, CZ_INVALID, "no %s %s for the %s; there is %.*s", what, wanted,
                            role_names[role], none ? 7 : (int)(r->names.n - 2),
                            none ? "nothing" : r->names.s + 2);
}

/* ---- examples ---------------------------------------------------------------------------------
 */

/* Room for nbytes in the blocks; a text never lies in two. NULL: no memory. */
static char *take_bytes(struct cz_texts *t, size_t nbytes)
{
    struct text_block *b = t->blocks;
    if (!b || nbytes > b->cap - b->n) {
        size_t cap = nbytes > BLOCK_NBYTES / 4 ? nbytes : BLOCK_NBYTES;
        struct text_block *fresh = malloc(sizeof *fresh + cap);
        if (!fresh) return NULL;
        fresh->n = 0;
        fresh->cap = cap;
        bool behind = b && cap != BLOCK_NBYTES; /* a large text leaves the open block open */
        fresh->next = behind ? b->next : b;
        if (behind)
            b->next = fresh;
        else
            t->blocks = fresh;
        b = fresh;
    }
    char *at = b->bytes + b->n;
    b->n += nbytes;
    return at;
}

static cz_status reserve_example(struct texts_reader *r)
{
    struct cz_texts *t = r->t;
    if (t->n < t->cap) return CZ_OK;
    size_t cap = t->cap ? t->cap + t->cap / 2 : 1024;
    if (cap > INT64_MAX / sizeof *t->examples)
        return err_set(CZ_NOMEM, 0, "%s: too many examples", r->in.path);
    struct text_example *grown = realloc(t->examples, cap * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu examples", r->in.path, cap);
    t->examples = grown;
    t->cap = cap;
    return CZ_OK;
}

/* *b as valid UTF-8, and without white space if the options say so. */
static cz_status clean(struct texts_reader *r, struct text_buf *b)
{
    if (!r->o->strip_spaces && utf8_is_valid(b->s, b->n)) return CZ_OK;
    r->clean.n = 0;
    TRY(text_clean(b->s, b->n, r->o->strip_spaces, &r->clean));
    text_buf_swap(b, &r->clean);
    return CZ_OK;
}

static cz_status take_texts(struct texts_reader *r, struct text_example *e)
{
    struct text_row *row = &r->row;
    TRY(clean(r, &row->text));
    if (row->has_pair)
        TRY(clean(r, &row->pair));
    else
        row->pair.n = 0;
    if (row->text.n >= UINT32_MAX || row->pair.n >= UINT32_MAX)
        return text_source_fail(&r->in, CZ_INVALID, "a text of more than 4 GiB");
    size_t n = row->text.n, n_pair = row->pair.n;
    char *at = take_bytes(r->t, n + n_pair + 2);
    if (!at) return err_set(CZ_NOMEM, 0, "%s: no memory for its texts", r->in.path);
    if (n > 0) memcpy(at, row->text.s, n);
    at[n] = '\0';
    if (n_pair > 0) memcpy(at + n + 1, row->pair.s, n_pair);
    at[n + 1 + n_pair] = '\0';
    *e = (struct text_example){.text = at,
                               .nbytes = (uint32_t)n,
                               .pair_nbytes = (uint32_t)n_pair,
                               .has_pair = row->has_pair,
                               .label = -1};
    r->t->nbytes += n + n_pair;
    return CZ_OK;
}

cz_status texts_take_row(struct texts_reader *r)
{
    struct text_row *row = &r->row;
    struct text_example e;
    size_t entry_idx;
    if (r->o->labels_ignored) row->label_kind = LABEL_NONE;
    if (row->label_kind == LABEL_NONE && !r->o->labels_optional)
        return text_source_fail(&r->in, CZ_INVALID, "the example has no label");
    TRY(reserve_example(r));
    TRY(take_texts(r, &e));
    if (row->label_kind != LABEL_NONE) {
        r->clean.n = 0;
        TRY(text_clean(row->label.s, row->label.n, false, &r->clean));
        TRY(label_table_intern(&r->labels, &r->in, row->label_kind, r->clean.s, r->clean.n,
                               &entry_idx));
        e.label = (int32_t)entry_idx;
    }
    r->t->examples[r->t->n++] = e;
    return CZ_OK;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static bool ends_with(const char *path, const char *suffix)
{
    size_t n = strlen(path), n_suffix = strlen(suffix);
    return n > n_suffix && strcasecmp(path + n - n_suffix, suffix) == 0;
}

static int first_character(struct text_source *in)
{
    int c = text_source_peek(in);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        text_source_skip(in);
        c = text_source_peek(in);
    }
    return c;
}

static cz_status read_open_file(struct texts_reader *r)
{
    const char *path = r->in.path;
    if (r->o->plain || r->in.is_input || ends_with(path, ".txt")) {
        if (!r->o->labels_optional)
            return err_set(CZ_INVALID, 0, "%s: plain lines of text have no labels", path);
        return texts_read_plain(r);
    }
    if (ends_with(path, ".csv")) return texts_read_table(r, ',', true);
    if (ends_with(path, ".tsv")) return texts_read_table(r, '\t', false);
    int c = first_character(&r->in);
    if (c == '[' || c == '{') return texts_read_json(r);
    if (c < 0) return r->in.status; /* empty: other files may have examples */
    return text_source_fail(
        &r->in, CZ_CORRUPT,
        "begins neither with \"[\" (a JSON list) nor with \"{\" (JSON lines); tables "
        "are named .csv or .tsv, lines of text .txt");
}

static cz_status read_file(struct texts_reader *r, const char *path)
{
    size_t before = r->t->n;
    cz_status st = text_source_open(&r->in, path);
    if (st == CZ_OK) st = read_open_file(r);
    text_source_close(&r->in);
    if (st == CZ_OK) LOGV(LOG_INFO, SUB_DATA, "data: %s: %zu texts", path, r->t->n - before);
    return st;
}

static cz_status check_options(const struct cz_texts_options *o)
{
    if (o->n_paths == 0) return err_set(CZ_INVALID, 0, "no data: give at least one path");
    for (int a = 0; a < TEXT_N_ROLES; a++)
        for (int b = 0; b < a; b++) {
            const char *x = given_name(o, (enum text_role)a), *y = given_name(o, (enum text_role)b);
            if (x && y && strcmp(x, y) == 0)
                return err_set(CZ_INVALID, 0, "\"%s\" cannot be both the %s and the %s", x,
                               role_names[b], role_names[a]);
        }
    return CZ_OK;
}

/* Labels' entries become classes. */
static cz_status number_examples(struct texts_reader *r)
{
    struct cz_texts *t = r->t;
    TRY(label_table_finish(&r->labels, &t->names, &t->n_labels));
    t->n_of_label = calloc(t->n_labels + 1, sizeof *t->n_of_label);
    if (!t->n_of_label) return err_set(CZ_NOMEM, 0, "no memory for %zu classes", t->n_labels);
    for (size_t i = 0; i < t->n; i++) {
        int32_t *label = &t->examples[i].label;
        if (*label < 0) continue;
        *label = r->labels.entries[*label].cls;
        t->n_of_label[*label]++;
    }
    if (r->o->n_labels == 0 && t->n_labels > 100 && t->n_labels > t->n / 2)
        LOGV(LOG_WARN, SUB_DATA,
             "data: %zu classes among %zu examples, \"%s\" to \"%s\": is it labels that were read?",
             t->n_labels, t->n, t->names[0], t->names[t->n_labels - 1]);
    return CZ_OK;
}

static cz_status read_all(struct texts_reader *r)
{
    const struct cz_texts_options *o = r->o;
    struct cz_texts *t = r->t;
    TRY(label_table_init(&r->labels, o));
    for (size_t i = 0; i < o->n_paths; i++) TRY(read_file(r, o->paths[i]));
    if (t->n == 0)
        return err_set(CZ_INVALID, 0, "%s%s: no example at all", o->paths[0],
                       o->n_paths > 1 ? " and the other files" : "");
    struct text_example *fitted = realloc(t->examples, t->n * sizeof *fitted);
    if (fitted) t->examples = fitted;
    return number_examples(r);
}

static void free_reader(struct texts_reader *r)
{
    text_buf_free(&r->row.text);
    text_buf_free(&r->row.pair);
    text_buf_free(&r->row.label);
    text_buf_free(&r->clean);
    text_buf_free(&r->value);
    text_buf_free(&r->key);
    text_buf_free(&r->names);
    free(r->field_ends);
    label_table_free(&r->labels);
}

cz_status cz_texts_open(const struct cz_texts_options *options, struct cz_texts **out)
{
    struct cz_texts_options o;
    struct texts_reader r = {.o = &o};
    *out = NULL;
    TRY(OPTIONS_TAKE(cz_texts_options, &o, options));
    TRY(check_options(&o));
    r.t = calloc(1, sizeof *r.t);
    if (!r.t) return err_set(CZ_NOMEM, 0, "no memory for texts");
    cz_status st = read_all(&r);
    free_reader(&r);
    if (st != CZ_OK) {
        cz_texts_close(r.t);
        return st;
    }
    LOGV(LOG_INFO, SUB_DATA, "data: %zu texts of %" PRIu64 " bytes, %zu classes", r.t->n,
         r.t->nbytes, r.t->n_labels);
    *out = r.t;
    return CZ_OK;
}

void cz_texts_close(struct cz_texts *t)
{
    if (!t) return;
    while (t->blocks) {
        struct text_block *next = t->blocks->next;
        free(t->blocks);
        t->blocks = next;
    }
    free(t->examples);
    free(t->names);
    free(t->n_of_label);
    free(t);
}

/* ---- looking ----------------------------------------------------------------------------------
 */

size_t cz_texts_count(const struct cz_texts *t)
{
    return t->n;
}

struct cz_tokenizer_input cz_texts_at(const struct cz_texts *t, size_t i)
{
    const struct text_example *e = &t->examples[i];
    return (struct cz_tokenizer_input){.text = e->text,
                                       .nbytes = e->nbytes,
                                       .pair = e->has_pair ? e->text + e->nbytes + 1 : NULL,
                                       .pair_nbytes = e->pair_nbytes};
}

int32_t cz_texts_label(const struct cz_texts *t, size_t i)
{
    return t->examples[i].label;
}

size_t cz_texts_n_labels(const struct cz_texts *t)
{
    return t->n_labels;
}

const char *const *cz_texts_labels(const struct cz_texts *t)
{
    return (const char *const *)t->names;
}

size_t cz_texts_n_of_label(const struct cz_texts *t, size_t k)
{
    return t->n_of_label[k];
}
