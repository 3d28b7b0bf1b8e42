/* Labelled texts in memory: columns by their names, examples in blocks, what a loader asks for. */
#include "data/labelled/texts_impl.h"

#include "base/hash.h"
#include "base/host/entry.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BLOCK_NBYTES ((size_t)1 << 20)

/* ---- names ----------------------------------------------------------------------------------- */

static const char *const role_names[TEXT_N_ROLES] = {"text", "second text", "label"};
static const char *const usual_names[TEXT_N_ROLES][TEXT_NAMES_MAX] = {
    {"text", "sentence", "sentence1", "content", "review"},
    {"pair", "sentence2", "text_pair"},
    {"label", "labels", "class", "target", "category"}};
static const char *const usual_word_names[TEXT_N_ROLES][TEXT_NAMES_MAX] = {
    {"tokens", "words", "text", "sentence"}, {NULL}, {"ner_tags", "tags", "labels", "label"}};

const char *texts_role_name(enum text_role role)
{
    return role_names[role];
}

const char *texts_given_name(const struct cz_texts_options *o, enum text_role role)
{
    return role == TEXT_ROLE_TEXT   ? o->text_column
           : role == TEXT_ROLE_PAIR ? o->pair_column
                                    : o->label_column;
}

bool texts_is_given(const struct cz_texts_options *o, enum text_role role)
{
    return texts_given_name(o, role) != NULL;
}

size_t texts_names_of(const struct cz_texts_options *o, enum text_role role,
                      const char *names[TEXT_NAMES_MAX])
{
    size_t n = 0;
    const char *const *usual = o->words ? usual_word_names[role] : usual_names[role];
    names[0] = texts_given_name(o, role);
    if (names[0]) return 1;
    for (; n < TEXT_NAMES_MAX && usual[n]; n++) names[n] = usual[n];
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
    return text_source_fail(&r->in, CZ_INVALID, "no %s %s for the %s; found: %.*s", what, wanted,
                            role_names[role], none ? 7 : (int)(r->names.n - 2),
                            none ? "nothing" : r->names.s + 2);
}

/* Columns that identify a row or say where it comes from. No model reads them. */
static const char *const harmless[] = {
    "",     "id",      "idx",      "index", "guid",       "uid",  "uuid",      "key",
    "row",  "source",  "url",      "date",  "lang",       "time", "timestamp", "author",
    "user", "user_id", "language", "split", "Unnamed: 0", "ID",   "Id"};

void texts_note_unread(struct texts_reader *r, const char *name, size_t nbytes)
{
    char text[UNREAD_NAME_NBYTES];
    if (r->o->labels_optional) return; /* it predicts, or makes a vocabulary */
    const size_t n = text_cut(name, nbytes, sizeof text - 1);
    if (n > 0) memcpy(text, name, n);
    text[n] = '\0';
    for (size_t i = 0; i < CZ_ARRAY_LEN(harmless); i++)
        if (strcmp(text, harmless[i]) == 0) return;
    unread_add(&r->unread, text, "%s:%" PRIu64, r->in.path, r->in.line);
}

/* ---- rows without a label -------------------------------------------------------------------- */

cz_status texts_miss_label(struct texts_reader *r, cz_status why)
{
    char *places = r->unlabelled.places;
    const size_t used = strlen(places);
    if (r->in.status != CZ_OK) return why;
    if (r->unlabelled.n == 0) err_capture(&r->unlabelled.first);
    err_clear();
    if (r->unlabelled.n < TEXT_PLACES_MAX) {
        snprintf(places + used, TEXT_PLACES_NBYTES - used, "%s%.80s:%" PRIu64, used ? ", " : "",
                 r->in.path, r->in.line);
        if (r->in.item > 0)
            snprintf(places + strlen(places), TEXT_PLACES_NBYTES - strlen(places), " item %" PRIu64,
                     (uint64_t)r->in.item);
    }
    r->unlabelled.n++;
    for (size_t k = 0; k < r->o->n_keep; k++) r->kept[k].is_there = false;
    return CZ_OK;
}

/* Where no row has a label, or one alone has none, the first one's sentence says more. */
cz_status texts_report_unlabelled(struct texts_reader *r)
{
    const uint64_t n = r->unlabelled.n;
    const char *more = n > TEXT_PLACES_MAX ? ", …" : "";
    if (n == 0) return CZ_OK;
    if (r->t->n == 0 || (n == 1 && !r->o->skip_unlabelled))
        return err_restore(&r->unlabelled.first);
    if (!r->o->skip_unlabelled)
        return err_set(CZ_INVALID, 0,
                       "%s: %" PRIu64
                       " rows have no label: %s%s: give them one, remove them, or leave "
                       "them out with --skip-unlabelled",
                       r->o->paths[0], n, r->unlabelled.places, more);
    LOGV(LOG_WARN, SUB_DATA, "data: %" PRIu64 " row%s without a label %s left out: %s%s", n,
         n == 1 ? "" : "s", n == 1 ? "is" : "are", r->unlabelled.places, more);
    return CZ_OK;
}

/* ---- examples -------------------------------------------------------------------------------- */

/* Space for nbytes in the blocks; a text is never split over two. NULL: no memory. */
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

/* Grows by half: data sets are large, and doubling would waste as much as it holds. */
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
    if (t->n_keep > 0) {
        struct text_kept *kept = cap > SIZE_MAX / sizeof *kept / t->n_keep
                                     ? NULL
                                     : realloc(t->kept, cap * t->n_keep * sizeof *kept);
        if (!kept) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu examples", r->in.path, cap);
        t->kept = kept;
    }
    t->cap = cap;
    return CZ_OK;
}

/* *b without white space if the options say so. */
static cz_status clean(struct texts_reader *r, struct text_buf *b)
{
    if (!r->o->strip_spaces) return CZ_OK;
    r->clean.n = 0;
    TRY(text_put_stripped(b->s, b->n, &r->clean));
    text_buf_swap(b, &r->clean);
    return CZ_OK;
}

/* Text and pair are stored one after the other, each with a NUL. */
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

/* A value of JSON may stand on several lines: white space between its parts becomes a space. */
static cz_status take_kept(struct texts_reader *r)
{
    for (size_t k = 0; k < r->o->n_keep; k++) {
        struct kept_value *v = &r->kept[k];
        struct text_kept *out = &r->t->kept[r->t->n * r->o->n_keep + k];
        *out = (struct text_kept){.n = v->text.n, .is_json = v->column == SIZE_MAX};
        if (!v->is_there) continue;
        char *at = take_bytes(r->t, v->text.n + 1);
        if (!at) return err_set(CZ_NOMEM, 0, "%s: no memory for what is kept", r->in.path);
        if (v->text.n > 0) memcpy(at, v->text.s, v->text.n);
        at[v->text.n] = '\0';
        for (size_t i = 0; out->is_json && i < v->text.n; i++)
            if (at[i] == '\n' || at[i] == '\r') at[i] = ' ';
        out->s = at;
        v->is_there = false;
        v->was_met = true;
    }
    return CZ_OK;
}

cz_status texts_take_example(struct texts_reader *r, struct text_example **e)
{
    struct cz_texts *t = r->t;
    TRY(reserve_example(r));
    TRY(take_texts(r, &t->examples[t->n]));
    TRY(take_kept(r));
    *e = &t->examples[t->n++];
    return CZ_OK;
}

cz_status texts_take_row(struct texts_reader *r)
{
    struct text_row *row = &r->row;
    struct text_example *e;
    size_t entry_idx;
    if (r->o->labels_ignored) row->label_kind = LABEL_NONE;
    if (row->label_kind == LABEL_NONE && !r->o->labels_optional)
        return texts_miss_label(
            r, text_source_fail(&r->in, CZ_INVALID,
                                "the example has no label: give it one, remove the row, or leave "
                                "it out with --skip-unlabelled"));
    TRY(texts_take_example(r, &e));
    if (r->o->words) return texts_take_raw_words(r, e);
    const bool is_set = row->label_kind == LABEL_SET;
    if (row->label_kind != LABEL_NONE) {
        r->has_sets = r->has_sets || is_set;
        r->has_singles = r->has_singles || !is_set;
        if (r->has_sets && r->has_singles)
            return text_source_fail(&r->in, CZ_INVALID,
                                    "the label is %s list, those before it are not: one class per "
                                    "example, or a list for each",
                                    is_set ? "a" : "no");
    }
    if (is_set) return texts_take_set(r, e);
    if (row->label_kind != LABEL_NONE) {
        TRY(label_table_intern(&r->labels, &r->in, row->label_kind, row->label.s, row->label.n,
                               &entry_idx));
        e->label = (int32_t)entry_idx;
    }
    return CZ_OK;
}

const char *cz_texts_kept(const struct cz_texts *t, size_t i, size_t k, size_t *nbytes,
                          bool *is_json)
{
    NEED_OR(t && nbytes && is_json && i < t->n && k < t->n_keep, NULL);
    const struct text_kept *kept = &t->kept[i * t->n_keep + k];
    *nbytes = kept->s ? kept->n : 0;
    *is_json = kept->is_json;
    return kept->s;
}

void cz_texts_close(struct cz_texts *t)
{
    API_ENTRY;
    if (!t) return;
    while (t->blocks) {
        struct text_block *next = t->blocks->next;
        free(t->blocks);
        t->blocks = next;
    }
    free(t->kept);
    free(t->examples);
    free(t->words);
    free(t->sets);
    free(t->values);
    free(t->names);
    free(t->n_of_label);
    free(t);
}

/* ---- looking --------------------------------------------------------------------------------- */

size_t cz_texts_count(const struct cz_texts *t)
{
    NEED_OR(t, 0);
    return t->n;
}

struct cz_tokenizer_input cz_texts_at(const struct cz_texts *t, size_t i)
{
    NEED_OR(t && i < t->n, (struct cz_tokenizer_input){0});
    const struct text_example *e = &t->examples[i];
    return (struct cz_tokenizer_input){.text = e->text,
                                       .nbytes = e->nbytes,
                                       .pair = e->has_pair ? e->text + e->nbytes + 1 : NULL,
                                       .pair_nbytes = e->pair_nbytes};
}

int32_t cz_texts_label(const struct cz_texts *t, size_t i)
{
    NEED_OR(t && i < t->n, -1);
    return t->examples[i].label;
}

const struct cz_text_word *cz_texts_words(const struct cz_texts *t, size_t i, size_t *n)
{
    NEED_OR(t && n && i < t->n, NULL);
    static const struct cz_text_word none;
    const struct text_example *e = &t->examples[i];
    *n = e->n_words;
    if (!t->has_words) return NULL;
    return t->words ? t->words + e->first_word : &none;
}

size_t cz_texts_n_labels(const struct cz_texts *t)
{
    NEED_OR(t, 0);
    return t->n_labels;
}

const char *const *cz_texts_labels(const struct cz_texts *t)
{
    NEED_OR(t, NULL);
    return (const char *const *)t->names;
}

#define HASH_NBYTES_MAX ((uint64_t)64 << 20) /* of texts that are hashed as a whole */
#define HASH_BEGINNING  256                  /* of each, where there are more */

static uint64_t hash_part(uint64_t h, const char *text, size_t nbytes, bool whole)
{
    h = hash_fixed(h, &nbytes, sizeof nbytes);
    return hash_fixed(h, text, whole || nbytes < HASH_BEGINNING ? nbytes : HASH_BEGINNING);
}

/* Words are their place in the text and their label. */
uint64_t cz_texts_hash(const struct cz_texts *t)
{
    API_ENTRY;
    NEED_OR(t, 0);
    const bool whole = t->nbytes <= HASH_NBYTES_MAX;
    uint64_t h = hash_fixed(HASH_FIXED_BEGIN, &t->n, sizeof t->n);
    for (size_t k = 0; k < t->n_labels; k++)
        h = hash_fixed(h, t->names[k], strlen(t->names[k]) + 1);
    for (size_t i = 0; i < t->n; i++) {
        const struct cz_tokenizer_input in = cz_texts_at(t, i);
        h = hash_part(h, in.text, in.nbytes, whole);
        if (in.pair) h = hash_part(h, in.pair, in.pair_nbytes, whole);
        h = hash_fixed(h, &t->examples[i].label, sizeof t->examples[i].label);
        if (t->n_sets > 0)
            h = hash_fixed(h, &t->examples[i].n_words, sizeof t->examples[i].n_words);
    }
    h = hash_fixed(h, t->words, t->n_words * sizeof *t->words);
    h = hash_fixed(h, t->sets, t->n_sets * sizeof *t->sets);
    return t->values ? hash_fixed(h, t->values, t->n * sizeof *t->values) : h;
}

size_t cz_texts_n_of_label(const struct cz_texts *t, size_t k)
{
    NEED_OR(t && k < t->n_labels, 0);
    return t->n_of_label[k];
}
