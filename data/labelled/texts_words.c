/* Examples of words with a class each (token classification): CoNLL's columns, lists in JSON, and
 * raw text that is split. Words are stored in the example's text, one space between them, so that
 * all else about texts stays as it is. */
#include "base/host/entry.h"
#include "data/labelled/texts_impl.h"

#include "base/log.h"

#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------------------- */

/* Grows by half, as examples do. */
static cz_status reserve_words(struct texts_reader *r, size_t n)
{
    struct cz_texts *t = r->t;
    if (n <= t->words_cap - t->n_words) return CZ_OK;
    size_t cap = t->words_cap + t->words_cap / 2;
    if (cap < t->n_words + n) cap = t->n_words + n + 1024;
    if (cap > INT64_MAX / sizeof *t->words)
        return err_set(CZ_NOMEM, 0, "%s: too many words", r->in.path);
    struct cz_text_word *grown = realloc(t->words, cap * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu words", r->in.path, cap);
    t->words = grown;
    t->words_cap = cap;
    return CZ_OK;
}

/* The number that PyTorch's losses ignore stands for "no class" in lists of integers. */
static bool is_ignored(const struct text_row *row)
{
    return row->label_kind == LABEL_INT && row->label.n == 4 &&
           memcmp(row->label.s, "-100", 4) == 0;
}

/* A word, with r->row's label, behind those of the example that is being read. */
static cz_status add_word(struct texts_reader *r, const char *s, size_t n)
{
    struct text_row *row = &r->row;
    size_t entry_idx;
    int32_t label = -1;
    TRY(reserve_words(r, 1));
    if (r->t->n_words > r->n_words) TRY(text_buf_put_char(&row->text, ' '));
    const size_t begin = row->text.n;
    TRY(text_buf_put(&row->text, s, n));
    if (row->text.n >= UINT32_MAX)
        return text_source_fail(&r->in, CZ_INVALID, "an example of more than 4 GiB");
    if (row->label_kind != LABEL_NONE && !r->o->labels_ignored && !is_ignored(row)) {
        TRY(label_table_intern(&r->labels, &r->in, row->label_kind, row->label.s, row->label.n,
                               &entry_idx));
        label = (int32_t)entry_idx;
    }
    r->t->words[r->t->n_words++] = (struct cz_text_word){
        .begin = (uint32_t)begin, .nbytes = (uint32_t)(row->text.n - begin), .label = label};
    return CZ_OK;
}

/* What add_word() was given since becomes an example. */
static cz_status end_words(struct texts_reader *r)
{
    struct text_example *e;
    r->row.has_pair = false;
    if (r->lacks_class) { /* of a line of CoNLL: the sentence is left out */
        r->lacks_class = false;
        r->t->n_words = r->n_words;
        r->row.text.n = 0;
        return CZ_OK;
    }
    TRY(texts_take_example(r, &e));
    e->first_word = r->n_words;
    e->n_words = (uint32_t)(r->t->n_words - r->n_words);
    r->n_words = r->t->n_words;
    r->row.text.n = 0;
    return CZ_OK;
}

/* ---- raw text -------------------------------------------------------------------------------- */

/* A character that is a word by itself wherever it stands, or only at the ends of others. */
enum word_char { CHAR_OF_WORD, CHAR_OUTSIDE, CHAR_ALONE, CHAR_AT_END };

static enum word_char word_char_at(const char *s, size_t n, size_t *len)
{
    const uint32_t c = (uint32_t)chars_at(s, n, len);
    if (wp_is_chinese(c)) return CHAR_ALONE;
    const enum wp_action action = c < ' ' || c == 0x7F ? WP_SPACE : wp_split(c);
    return action == WP_SPACE ? CHAR_OUTSIDE : action == WP_ALONE ? CHAR_AT_END : CHAR_OF_WORD;
}

/* Words that grow by half. */
struct word_list {
    struct cz_text_word *at;
    size_t n, cap;
};

static cz_status list_word(struct word_list *l, size_t begin, size_t end)
{
    if (l->n == l->cap) {
        const size_t cap = l->cap ? l->cap + l->cap / 2 : 32;
        struct cz_text_word *grown = realloc(l->at, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu words", cap);
        l->at = grown;
        l->cap = cap;
    }
    l->at[l->n++] = (struct cz_text_word){
        .begin = (uint32_t)begin, .nbytes = (uint32_t)(end - begin), .label = -1};
    return CZ_OK;
}

/* A run without white space or Chinese: marks at its ends are words. */
static cz_status split_run(struct word_list *l, const char *text, size_t begin, size_t end)
{
    size_t len, last = end;
    while (begin < end && word_char_at(text + begin, end - begin, &len) == CHAR_AT_END) {
        TRY(list_word(l, begin, begin + len));
        begin += len;
    }
    for (size_t at = begin; at < end; at += len)
        if (word_char_at(text + at, end - at, &len) == CHAR_OF_WORD) last = at + len;
    if (begin == end) return CZ_OK;
    TRY(list_word(l, begin, last));
    for (; last < end; last += len) {
        word_char_at(text + last, end - last, &len);
        TRY(list_word(l, last, last + len));
    }
    return CZ_OK;
}

static cz_status split_words(struct word_list *l, const char *text, size_t nbytes)
{
    size_t begin = 0, len;
    for (size_t at = 0; at < nbytes; at += len) {
        const enum word_char kind = word_char_at(text + at, nbytes - at, &len);
        if (kind != CHAR_OUTSIDE && kind != CHAR_ALONE) continue;
        TRY(split_run(l, text, begin, at));
        if (kind == CHAR_ALONE) TRY(list_word(l, at, at + len));
        begin = at + len;
    }
    return split_run(l, text, begin, nbytes);
}

cz_status cz_text_split(const char *text, size_t nbytes, struct cz_text_word **words,
                        size_t *n_words)
{
    API_ENTRY;
    NEED(text || nbytes == 0, "text");
    NEED(words, "words");
    NEED(n_words, "n_words");
    struct word_list l = {0};
    *words = NULL;
    *n_words = 0;
    if (nbytes >= UINT32_MAX) return err_set(CZ_INVALID, 0, "a text of 4 GiB or more");
    cz_status st = split_words(&l, text, nbytes);
    if (st != CZ_OK) {
        free(l.at);
        return st;
    }
    *words = l.at;
    *n_words = l.n;
    return CZ_OK;
}

cz_status texts_take_raw_words(struct texts_reader *r, struct text_example *e)
{
    struct cz_text_word *words;
    size_t n;
    TRY(cz_text_split(e->text, e->nbytes, &words, &n));
    cz_status st = reserve_words(r, n);
    if (st == CZ_OK) {
        if (n > 0) memcpy(r->t->words + r->t->n_words, words, n * sizeof *words);
        e->first_word = r->t->n_words;
        e->n_words = (uint32_t)n;
        r->n_words = r->t->n_words += n;
    }
    free(words);
    return st;
}

/* ---- lists in JSON --------------------------------------------------------------------------- */

static cz_status list_reserve(struct text_list *l)
{
    if (l->n < l->cap) return CZ_OK;
    const size_t cap = l->cap ? 2 * l->cap : 64;
    size_t *ends = realloc(l->ends, cap * sizeof *ends);
    if (ends) l->ends = ends;
    enum json_type *types = realloc(l->types, cap * sizeof *types);
    if (types) l->types = types;
    if (!ends || !types) return err_set(CZ_NOMEM, 0, "no memory for a list of %zu items", cap);
    l->cap = cap;
    return CZ_OK;
}

cz_status text_list_add(struct text_list *list, const char *s, size_t n, enum json_type type)
{
    TRY(list_reserve(list));
    TRY(text_buf_put(&list->bytes, s, n));
    list->types[list->n] = type;
    list->ends[list->n++] = list->bytes.n;
    return CZ_OK;
}

void text_list_free(struct text_list *list)
{
    text_buf_free(&list->bytes);
    free(list->ends);
    free(list->types);
    memset(list, 0, sizeof *list);
}

static const char *list_item(const struct text_list *l, size_t i, size_t *nbytes)
{
    const size_t begin = i ? l->ends[i - 1] : 0;
    *nbytes = l->ends[i] - begin;
    return *nbytes ? l->bytes.s + begin : "";
}

cz_status texts_read_list(struct texts_reader *r, struct text_list *list)
{
    bool done = json_stream_peek(&r->in) == ']';
    list->n = list->bytes.n = 0;
    if (done) text_source_skip(&r->in);
    while (!done) {
        enum json_type type;
        TRY(json_stream_scalar(&r->in, &r->value, &type));
        if (type == JSON_ARRAY || type == JSON_OBJECT)
            return text_source_fail(&r->in, CZ_INVALID,
                                    "item %zu of the list is %s: a word or its class is expected",
                                    list->n + 1, json_type_name(type));
        TRY(text_list_add(list, r->value.s, r->value.n, type));
        TRY(json_stream_separator(&r->in, ']', &done));
    }
    return CZ_OK;
}

cz_status texts_take_lists(struct texts_reader *r, bool has_labels)
{
    const struct text_list *words = &r->lists[0], *labels = &r->lists[1];
    struct text_row *row = &r->row;
    size_t n;
    if (has_labels && labels->n != words->n)
        return text_source_fail(&r->in, CZ_INVALID, "%zu classes for %zu words", labels->n,
                                words->n);
    row->text.n = 0;
    row->label_kind = LABEL_NONE;
    for (size_t i = 0; i < words->n; i++) {
        if (words->types[i] != JSON_STRING)
            return text_source_fail(&r->in, CZ_INVALID, "word %zu is %s, not a string", i + 1,
                                    json_type_name(words->types[i]));
        if (has_labels) {
            const char *label = list_item(labels, i, &n);
            row->label.n = 0;
            TRY(text_buf_put(&row->label, label, n));
            TRY(text_buf_put_char(&row->label, '\0'));
            row->label.n--;
            TRY(texts_set_label(r, labels->types[i]));
        }
        const char *word = list_item(words, i, &n);
        TRY(add_word(r, word, n));
    }
    return end_words(r);
}

/* ---- CoNLL ----------------------------------------------------------------------------------- */

/* A line's columns, in r->value. */
struct columns {
    size_t begin, end; /* of the last one that was found */
    size_t n;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next line without white space at its end. */
static cz_status read_line(struct texts_reader *r)
{
    struct text_buf *line = &r->value;
    line->n = 0;
    for (int c = text_source_take(&r->in); c >= 0 && c != '\n'; c = text_source_take(&r->in))
        TRY(text_buf_put_char(line, (char)c));
    while (line->n > 0 && is_blank(line->s[line->n - 1])) line->n--;
    return r->in.status;
}

/* The next column at or behind `at`; false: there is none. Columns are between tabs, or between
 * runs of spaces in a line without a tab. */
static bool next_column(const struct text_buf *line, bool has_tab, size_t at, struct columns *c)
{
    while (!has_tab && at < line->n && line->s[at] == ' ') at++;
    if (at > line->n || (at == line->n && c->n > 0) || line->n == 0) return false;
    size_t end = at;
    while (end < line->n && line->s[end] != (has_tab ? '\t' : ' ')) end++;
    c->begin = at;
    c->end = end;
    c->n++;
    return true;
}

/* The number of a column that an option names, from 1; 0: none is named. */
static cz_status column_number(const struct texts_reader *r, enum text_role role, size_t *number)
{
    const char *name = texts_given_name(r->o, role);
    char *end;
    *number = 0;
    if (!name) return CZ_OK;
    const unsigned long n = strtoul(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end != '\0' || n < 1 || n > 1000)
        return text_source_fail(&r->in, CZ_INVALID,
                                "columns of CoNLL have no names: \"%s\" for the %s is not a number "
                                "from 1",
                                name, texts_role_name(role));
    *number = n;
    return CZ_OK;
}

static bool begins_with(const struct text_buf *line, const char *text)
{
    const size_t n = strlen(text);
    return line->n >= n && memcmp(line->s, text, n) == 0;
}

/* "# text = …": of the Universal Dependencies, and others'. A word "#" has its class behind it. */
static bool is_comment(const struct text_buf *line)
{
    return begins_with(line, "# ") && memchr(line->s, '=', line->n) != NULL;
}

static bool is_number_column(const struct text_buf *line)
{
    size_t n = 0;
    while (n < line->n && line->s[n] >= '0' && line->s[n] <= '9') n++;
    return n > 0 && n < line->n && (line->s[n] == '\t' || line->s[n] == ' ');
}

/* If no option names the column, the class is the last one. A line with fewer columns would then
 * give another column as its class. CoNLL-U begins each line with the word's number. */
static cz_status check_columns(struct texts_reader *r, size_t n, const struct text_buf *line,
                               size_t word_at, size_t label_at)
{
    const bool is_first = r->n_columns == 0;
    if (is_first) r->n_columns = n;
    if (label_at == 0 && n > 1 && n != r->n_columns)
        return text_source_fail(&r->in, CZ_CORRUPT,
                                "%zu columns, where the lines before have %zu: the class is the "
                                "last one; name its column by --label-column",
                                n, r->n_columns);
    if (is_first && word_at == 0 && n >= 8 && is_number_column(line))
        return text_source_fail(
            &r->in, CZ_INVALID,
            "%zu columns that begin with a number, as CoNLL-U has them: name the "
            "columns, such as --text-column 2 --label-column 4",
            n);
    if (is_first && n > 2 && (word_at == 0 || label_at == 0))
        LOGV(LOG_INFO, SUB_DATA,
             "data: %s: %zu columns; words are column %zu, classes column %zu (--text-column, "
             "--label-column)",
             r->in.path, n, word_at ? word_at : 1, label_at ? label_at : n);
    return CZ_OK;
}

/* A word and its class from a line that is not empty. word_at, label_at: their columns' numbers; 0:
 * the first, the last. */
static cz_status take_line(struct texts_reader *r, size_t word_at, size_t label_at)
{
    const struct text_buf *line = &r->value;
    const bool has_tab = memchr(line->s, '\t', line->n) != NULL;
    struct columns c = {0}, word = {0}, label = {0};
    for (size_t at = 0; next_column(line, has_tab, at, &c); at = c.end + 1) {
        if (c.n == (word_at ? word_at : 1)) word = c;
        if (label_at ? c.n == label_at : c.n > 1) label = c;
    }
    if (!r->o->labels_optional) TRY(check_columns(r, c.n, line, word_at, label_at));
    r->row.label.n = 0;
    r->row.label_kind = LABEL_NONE;
    if (word.n == 0 || word.begin == word.end)
        return text_source_fail(&r->in, CZ_CORRUPT, "column %zu, the word, is missing",
                                word_at ? word_at : 1);
    if (label.n > 0 && label.begin < label.end) {
        TRY(text_buf_put(&r->row.label, line->s + label.begin, label.end - label.begin));
        r->row.label_kind = LABEL_CELL;
    } else if (!r->o->labels_optional) {
        if (!r->lacks_class)
            TRY(texts_miss_label(r, text_source_fail(&r->in, CZ_CORRUPT,
                                                     "a word without a class: expected columns "
                                                     "such as \"Paris B-LOC\"")));
        r->lacks_class = true;
    }
    return add_word(r, line->s + word.begin, word.end - word.begin);
}

cz_status texts_read_conll(struct texts_reader *r)
{
    size_t word_at, label_at;
    TRY(column_number(r, TEXT_ROLE_TEXT, &word_at));
    TRY(column_number(r, TEXT_ROLE_LABEL, &label_at));
    r->row.text.n = r->n_columns = 0;
    while (text_source_peek(&r->in) >= 0) {
        const uint64_t line = r->in.line;
        TRY(read_line(r));
        const uint64_t next = r->in.line;
        const bool is_open = r->t->n_words > r->n_words;
        const bool ends = r->value.n == 0 || begins_with(&r->value, "-DOCSTART-");
        r->in.line = line;
        if (ends && is_open) TRY(end_words(r));
        if (!ends && (is_open || !is_comment(&r->value))) TRY(take_line(r, word_at, label_at));
        r->in.line = next;
    }
    if (r->t->n_words > r->n_words) TRY(end_words(r));
    return r->in.status;
}
