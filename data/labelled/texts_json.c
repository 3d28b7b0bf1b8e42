/* Labelled texts in JSON lists and JSON lines: rows of texts and a label. */
#include "data/labelled/texts_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_NBYTES ((size_t)300) /* of a sentence that lists members */

/* ---- rows ------------------------------------------------------------------------------------ */

/* The row's label from r->row.label, whose type this is. */
cz_status texts_set_label(struct texts_reader *r, enum json_type type)
{
    struct text_row *row = &r->row;
    row->label_kind = LABEL_NONE;
    switch (type) {
    case JSON_NULL: return CZ_OK;
    case JSON_BOOL: row->label_kind = LABEL_BOOL; return CZ_OK;
    case JSON_INT:
        row->label_kind = LABEL_INT;
        if (row->label.n == 2 && memcmp(row->label.s, "-0", 2) == 0) {
            row->label.s[0] = '0';
            row->label.n = 1;
        }
        return CZ_OK;
    case JSON_FLOAT:
        row->label_kind = LABEL_INT;
        /* 1.0 and 2e0 are integers that a program wrote as numbers. */
        char digits[32];
        double number = strtod(row->label.s, NULL);
        if (number != floor(number) || fabs(number) > 0x1p53) {
            row->label_kind = LABEL_FLOAT;
            return CZ_OK;
        }
        int n = snprintf(digits, sizeof digits, "%.0f", number + 0.0);
        row->label.n = 0;
        return text_buf_put(&row->label, digits, (size_t)n);
    case JSON_STRING: row->label_kind = row->label.n ? LABEL_STRING : LABEL_NONE; return CZ_OK;
    case JSON_ARRAY: row->label_kind = LABEL_SET; return CZ_OK;
    case JSON_OBJECT: break;
    }
    return text_source_fail(&r->in, CZ_INVALID, "the label is %s: an example has one class",
                            json_type_name(type));
}

static cz_status need_string(struct texts_reader *r, enum text_role role, enum json_type type)
{
    if (type == JSON_STRING) return CZ_OK;
    return text_source_fail(&r->in, CZ_CORRUPT, "the %s is %s, not a string", texts_role_name(role),
                            json_type_name(type));
}

/* After the "[" of a row: [text], [text, label], [text, pair, label]. */
static cz_status read_list_row(struct texts_reader *r)
{
    struct text_row *row = &r->row;
    enum json_type types[3] = {JSON_NULL, JSON_NULL, JSON_NULL};
    struct text_buf *const into[3] = {&row->text, &row->pair, &row->label};
    size_t n = 0;
    if (json_stream_peek(&r->in) == ']')
        return text_source_fail(&r->in, CZ_CORRUPT, "a row is empty");
    for (bool done = false; !done; n++) {
        if (n == 3)
            return text_source_fail(&r->in, CZ_CORRUPT,
                                    "a row has more than three items: [text, label] and "
                                    "[text, pair, label] are read");
        TRY(json_stream_scalar(&r->in, into[n], &types[n]));
        if (n > 0 && types[n] == JSON_ARRAY)
            return text_source_fail(&r->in, CZ_INVALID,
                                    "the label is an array: several labels are a member of an "
                                    "object, \"labels\": [...]");
        if (types[n] == JSON_ARRAY || types[n] == JSON_OBJECT)
            return n == 0 ? need_string(r, TEXT_ROLE_TEXT, types[n]) : texts_set_label(r, types[n]);
        TRY(json_stream_separator(&r->in, ']', &done));
    }
    TRY(need_string(r, TEXT_ROLE_TEXT, types[0]));
    row->has_pair = n == 3 && types[1] != JSON_NULL;
    if (row->has_pair) TRY(need_string(r, TEXT_ROLE_PAIR, types[1]));
    if (n == 2) text_buf_swap(&row->pair, &row->label);
    TRY(texts_set_label(r, n == 1 ? JSON_NULL : types[n - 1]));
    return texts_take_row(r);
}

/* What an object's members have given so far. */
struct found {
    size_t rank; /* among the names of its role; SIZE_MAX: none */
    enum json_type type;
    bool was_null;
};

static cz_status note_name(struct texts_reader *r)
{
    if (r->names.n + r->key.n + 2 > NAMES_NBYTES) return CZ_OK;
    TRY(text_buf_put(&r->names, ", ", 2));
    return text_buf_put(&r->names, r->key.s, r->key.n);
}

/* Which role a member has, and how good its name is; false: none. An earlier name in the list wins
 * over a later one. */
static bool find_role(const struct texts_reader *r, enum text_role *role, size_t *rank)
{
    const char *names[TEXT_NAMES_MAX];
    for (int k = 0; k < TEXT_N_ROLES; k++) {
        size_t n = texts_names_of(r->o, (enum text_role)k, names);
        for (size_t i = 0; i < n; i++) {
            if (strlen(names[i]) != r->key.n || memcmp(names[i], r->key.s, r->key.n) != 0) continue;
            *role = (enum text_role)k;
            *rank = i;
            return true;
        }
    }
    return false;
}

static struct kept_value *find_kept(struct texts_reader *r)
{
    for (size_t k = 0; k < r->o->n_keep; k++)
        if (strlen(r->o->keep[k]) == r->key.n && memcmp(r->o->keep[k], r->key.s, r->key.n) == 0)
            return &r->kept[k];
    return NULL;
}

/* The value of a member called r->key. */
static cz_status read_value(struct texts_reader *r, struct found found[TEXT_N_ROLES])
{
    struct text_buf *const into[] = {&r->row.text, &r->row.pair, &r->row.label};
    enum text_role role;
    size_t rank;
    if (!find_role(r, &role, &rank) || rank > found[role].rank) {
        if (!find_kept(r)) texts_note_unread(r, r->key.s, r->key.n);
        return json_stream_skip(&r->in, &r->value, 2);
    }
    if (rank == found[role].rank)
        return text_source_fail(&r->in, CZ_CORRUPT, "an object has two members \"%.*s\"",
                                (int)r->key.n, r->key.s);
    enum json_type type;
    TRY(json_stream_scalar(&r->in, &r->clean, &type));
    const bool is_list =
        type == JSON_ARRAY && (role == TEXT_ROLE_LABEL || (r->o->words && role == TEXT_ROLE_TEXT));
    if (is_list) {
        text_source_skip(&r->in);
        TRY(texts_read_list(r, &r->lists[role == TEXT_ROLE_LABEL]));
    } else if (type == JSON_ARRAY || type == JSON_OBJECT)
        TRY(json_stream_skip(&r->in, &r->value, 2));
    if (type == JSON_NULL) {
        found[role].was_null = true;
        return CZ_OK;
    }
    if (found[role].rank != SIZE_MAX) { /* a better name comes later */
        const char *names[TEXT_NAMES_MAX];
        texts_names_of(r->o, role, names);
        texts_note_unread(r, names[found[role].rank], strlen(names[found[role].rank]));
    }
    text_buf_swap(&r->clean, into[role]);
    found[role].rank = rank;
    found[role].type = type;
    return CZ_OK;
}

static cz_status read_member(struct texts_reader *r, struct found found[TEXT_N_ROLES])
{
    TRY(json_stream_key(&r->in, &r->key));
    TRY(note_name(r));
    struct kept_value *kept = find_kept(r);
    if (!kept) return read_value(r, found);
    json_stream_peek(&r->in); /* without white space in front */
    kept->text.n = 0;
    kept->is_there = true;
    kept->column = SIZE_MAX;
    text_source_copy_begin(&r->in, &kept->text);
    cz_status st = read_value(r, found);
    return st == CZ_OK ? text_source_copy_end(&r->in) : st;
}

/* A list of words and one of as many labels; a text without labels is split into words. */
static cz_status take_words(struct texts_reader *r, const struct found found[TEXT_N_ROLES])
{
    const struct found *text = &found[TEXT_ROLE_TEXT], *label = &found[TEXT_ROLE_LABEL];
    const bool has_labels = label->rank != SIZE_MAX && !r->o->labels_ignored;
    if (text->rank == SIZE_MAX) return texts_fail_missing(r, TEXT_ROLE_TEXT, "member");
    if (!has_labels && !r->o->labels_optional)
        return texts_miss_label(r, texts_fail_missing(r, TEXT_ROLE_LABEL, "member"));
    if (has_labels && label->type != JSON_ARRAY)
        return text_source_fail(&r->in, CZ_INVALID,
                                "the label is %s: a list is needed, with a class for each word",
                                json_type_name(label->type));
    if (text->type == JSON_ARRAY) return texts_take_lists(r, has_labels);
    if (has_labels || text->type != JSON_STRING)
        return text_source_fail(&r->in, CZ_INVALID,
                                "the text is %s: a list of words is needed, as many as classes",
                                json_type_name(text->type));
    r->row.has_pair = false;
    r->row.label_kind = LABEL_NONE;
    return texts_take_row(r);
}

/* A member that happens to be called "pair" may be anything, unless the options name it. */
static cz_status take_object(struct texts_reader *r, const struct found found[TEXT_N_ROLES])
{
    const struct found *text = &found[TEXT_ROLE_TEXT], *pair = &found[TEXT_ROLE_PAIR];
    const struct found *label = &found[TEXT_ROLE_LABEL];
    bool pair_is_given = texts_is_given(r->o, TEXT_ROLE_PAIR);
    if (text->rank == SIZE_MAX && text->was_null) return need_string(r, TEXT_ROLE_TEXT, JSON_NULL);
    if (text->rank == SIZE_MAX) return texts_fail_missing(r, TEXT_ROLE_TEXT, "member");
    TRY(need_string(r, TEXT_ROLE_TEXT, text->type));
    if (pair_is_given && pair->rank == SIZE_MAX && !pair->was_null)
        return texts_fail_missing(r, TEXT_ROLE_PAIR, "member");
    r->row.has_pair = pair->rank != SIZE_MAX && (pair_is_given || pair->type == JSON_STRING);
    if (r->row.has_pair) TRY(need_string(r, TEXT_ROLE_PAIR, pair->type));
    if (label->rank == SIZE_MAX && !label->was_null && !r->o->labels_optional)
        return texts_miss_label(r, texts_fail_missing(r, TEXT_ROLE_LABEL, "member"));
    TRY(texts_set_label(r, label->rank == SIZE_MAX ? JSON_NULL : label->type));
    return texts_take_row(r);
}

/* Behind the "{" of a row. */
static cz_status read_object_row(struct texts_reader *r)
{
    struct found found[TEXT_N_ROLES];
    for (int k = 0; k < TEXT_N_ROLES; k++) found[k] = (struct found){.rank = SIZE_MAX};
    r->names.n = 0;
    bool done = json_stream_peek(&r->in) == '}';
    if (done) text_source_skip(&r->in);
    while (!done) {
        TRY(read_member(r, found));
        TRY(json_stream_separator(&r->in, '}', &done));
    }
    return r->o->words ? take_words(r, found) : take_object(r, found);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A row, if c can begin one. */
static cz_status read_row(struct texts_reader *r, int c)
{
    if (c != '[' && c != '{')
        return json_stream_fail(&r->in, c, "a row: [text, label] or an object with members");
    if (c == '[' && r->o->words)
        return text_source_fail(&r->in, CZ_CORRUPT,
                                "a row of words is an object with the members \"tokens\" and "
                                "\"ner_tags\"");
    text_source_skip(&r->in);
    return c == '[' ? read_list_row(r) : read_object_row(r);
}

cz_status texts_read_json(struct texts_reader *r)
{
    int c = json_stream_peek(&r->in);
    if (c == '[') {
        text_source_skip(&r->in);
        if (json_stream_peek(&r->in) != '"' || r->o->words) {
            /* Behind the "[" of a list of rows. */
            bool done = json_stream_peek(&r->in) == ']';
            if (done) text_source_skip(&r->in);
            for (r->in.item = 1; !done; r->in.item++) {
                TRY(read_row(r, json_stream_peek(&r->in)));
                TRY(json_stream_separator(&r->in, ']', &done));
            }
            r->in.item = 0;
            if (json_stream_peek(&r->in) >= 0)
                return text_source_fail(&r->in, CZ_CORRUPT,
                                        "the file continues after the end of the list");
            return r->in.status;
        }
        TRY(read_list_row(r)); /* a line: ["text", … */
    }
    while ((c = json_stream_peek(&r->in)) >= 0) TRY(read_row(r, c));
    return r->in.status;
}
