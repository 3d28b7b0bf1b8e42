/* JSON lists and JSON lines, read as they stream: one row at a time is held.
 *
 * The grammar is RFC 8259's, but for what files of texts bring with them: bytes that are no UTF-8
 * and halves of surrogate pairs (replaced by U+FFFD), and NaN and Infinity, which Python writes. */
#include "data/labelled/texts_impl.h"
#include "formats/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_NBYTES_MAX ((size_t)400) /* of a number or literal */
#define NAMES_NBYTES    ((size_t)300) /* of a sentence that lists members */

static int peek_value(struct texts_reader *r)
{
    for (;;) {
        int c = text_source_peek(&r->in);
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
        text_source_skip(&r->in);
    }
}

/* An error at a byte that should not be there (c), or at the end of the file (−1). */
static cz_status fail_at(struct texts_reader *r, int c, const char *wanted)
{
    if (c < 0)
        return text_source_fail(&r->in, CZ_CORRUPT, "the file ends where %s is expected", wanted);
    if (c > ' ' && c < 0x7F)
        return text_source_fail(&r->in, CZ_CORRUPT, "\"%c\" where %s is expected", c, wanted);
    return text_source_fail(&r->in, CZ_CORRUPT, "byte 0x%02x where %s is expected", (unsigned)c,
                            wanted);
}

/* ---- strings --------------------------------------------------------------------------------- */

static cz_status put_code_point(struct text_buf *out, unsigned c)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)(lead[n] | c);
    return text_buf_put(out, s, n);
}

/* Four hexadecimal digits. */
static cz_status read_unit(struct texts_reader *r, unsigned *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int c = text_source_peek(&r->in);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return fail_at(r, c, "a hexadecimal digit of \\u");
        text_source_skip(&r->in);
        *unit = *unit * 16 + (unsigned)digit;
    }
    return CZ_OK;
}

/* After a backslash. `high`: the first half of a surrogate pair that waits for its second, or 0; a
 * half that stays alone becomes U+FFFD. */
static cz_status read_escape(struct texts_reader *r, unsigned *high, struct text_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = text_source_peek(&r->in);
    unsigned unit, waiting = *high;
    *high = 0;
    if (c == 'u') {
        text_source_skip(&r->in);
        TRY(read_unit(r, &unit));
        bool is_low = unit >= 0xDC00 && unit <= 0xDFFF;
        if (waiting && is_low)
            return put_code_point(out, 0x10000 + ((waiting - 0xD800) << 10) + (unit - 0xDC00));
        if (waiting) TRY(put_code_point(out, 0xFFFD));
        if (unit >= 0xD800 && unit <= 0xDBFF) {
            *high = unit;
            return CZ_OK;
        }
        return put_code_point(out, is_low ? 0xFFFD : unit);
    }
    if (waiting) TRY(put_code_point(out, 0xFFFD));
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (!found) return fail_at(r, c, "one of \"\\/bfnrtu, the escapes of JSON");
    text_source_skip(&r->in);
    return text_buf_put_char(out, to[found - from]);
}

/* Most of a string needs no work: it is copied block by block. */
static size_t plain_run(const struct text_source *in)
{
    size_t at = in->at;
    while (at < in->n) {
        unsigned char c = (unsigned char)in->block[at];
        if (c < 0x20 || c == '"' || c == '\\') break;
        at++;
    }
    return at - in->at;
}

/* At the opening quote; replaces what `out` holds. */
static cz_status read_string(struct texts_reader *r, struct text_buf *out)
{
    unsigned high = 0;
    out->n = 0;
    text_source_skip(&r->in);
    for (;;) {
        int c = text_source_peek(&r->in);
        size_t n = c < 0 ? 0 : plain_run(&r->in);
        if (c == '\\') {
            text_source_skip(&r->in);
            TRY(read_escape(r, &high, out));
            continue;
        }
        if (high) TRY(put_code_point(out, 0xFFFD));
        high = 0;
        TRY(text_buf_put(out, r->in.block + r->in.at, n));
        r->in.at += n; /* no line ends among them */
        if (n > 0) continue;
        if (c < 0 || c == '\n' || c == '\r')
            return text_source_fail(&r->in, CZ_CORRUPT, "a string has no closing quote");
        if (c != '"')
            return text_source_fail(
                &r->in, CZ_CORRUPT,
                "a string contains control character 0x%02x; JSON writes it \\u%04x", (unsigned)c,
                (unsigned)c);
        text_source_skip(&r->in);
        return CZ_OK;
    }
}

/* ---- other values ---------------------------------------------------------------------------- */

static size_t n_digits(const char *s)
{
    return strspn(s, "0123456789");
}

static bool is_number(const char *s, enum json_type *type)
{
    if (*s == '-') s++;
    size_t n = n_digits(s);
    if (n == 0 || (n > 1 && s[0] == '0')) return false;
    s += n;
    *type = *s ? JSON_FLOAT : JSON_INT;
    if (*s == '.') {
        n = n_digits(++s);
        if (n == 0) return false;
        s += n;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-') s++;
        n = n_digits(s);
        if (n == 0) return false;
        s += n;
    }
    return *s == '\0';
}

/* A number, true, false, null; NaN counts as null. The word stays in `out`, terminated. */
static cz_status read_word(struct texts_reader *r, struct text_buf *out, enum json_type *type)
{
    int c;
    out->n = 0;
    while ((c = text_source_peek(&r->in)) > ' ' && !strchr(",:]}[{\"", c)) {
        if (out->n == WORD_NBYTES_MAX) return fail_at(r, c, "the end of a number");
        TRY(text_buf_put_char(out, (char)c));
        text_source_skip(&r->in);
    }
    if (out->n == 0) return fail_at(r, c, "a value");
    TRY(text_buf_put_char(out, '\0'));
    out->n--;
    const char *s = out->s;
    *type = JSON_NULL;
    if (strcmp(s, "null") == 0 || strcmp(s, "NaN") == 0) return CZ_OK;
    *type = JSON_BOOL;
    if (strcmp(s, "true") == 0 || strcmp(s, "false") == 0) return CZ_OK;
    *type = JSON_FLOAT;
    if (strcmp(s, "Infinity") == 0 || strcmp(s, "-Infinity") == 0) return CZ_OK;
    if (is_number(s, type)) return CZ_OK;
    return text_source_fail(&r->in, CZ_CORRUPT, "\"%.32s\" is not a JSON value", s);
}

/* Reads a value without parts into `out`; of lists and objects only the type, and they stay
 * unread. */
static cz_status read_scalar(struct texts_reader *r, struct text_buf *out, enum json_type *type)
{
    int c = peek_value(r);
    *type = c == '"' ? JSON_STRING : c == '[' ? JSON_ARRAY : JSON_OBJECT;
    if (c == '"') return read_string(r, out);
    if (c == '[' || c == '{') return CZ_OK;
    return read_word(r, out, type);
}

/* After an item: "," (another follows) or the end. */
static cz_status read_separator(struct texts_reader *r, char close, bool *done)
{
    int c = peek_value(r);
    *done = c == close;
    if (c != ',' && !*done)
        return fail_at(r, c, close == ']' ? "\",\" or \"]\"" : "\",\" or \"}\"");
    text_source_skip(&r->in);
    if (!*done && peek_value(r) == close) return fail_at(r, close, "another value");
    return CZ_OK;
}

static cz_status read_key(struct texts_reader *r, struct text_buf *out)
{
    int c = peek_value(r);
    if (c != '"') return fail_at(r, c, "a name in double quotes");
    TRY(read_string(r, out));
    c = peek_value(r);
    if (c != ':') return fail_at(r, c, "\":\"");
    text_source_skip(&r->in);
    return CZ_OK;
}

/* Reads over a value that is not needed. */
static cz_status skip_value(struct texts_reader *r, int depth)
{
    enum json_type type;
    TRY(read_scalar(r, &r->value, &type));
    if (type != JSON_ARRAY && type != JSON_OBJECT) return CZ_OK;
    if (depth == JSON_DEPTH_MAX)
        return text_source_fail(&r->in, CZ_CORRUPT, "more than %d levels of nesting",
                                JSON_DEPTH_MAX);
    char close = type == JSON_ARRAY ? ']' : '}';
    text_source_skip(&r->in);
    bool done = peek_value(r) == close;
    if (done) text_source_skip(&r->in);
    while (!done) {
        if (type == JSON_OBJECT) TRY(read_key(r, &r->value));
        TRY(skip_value(r, depth + 1));
        TRY(read_separator(r, close, &done));
    }
    return CZ_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The row's label from r->row.label, whose type this is. */
static cz_status set_label(struct texts_reader *r, enum json_type type)
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
        if (number != floor(number) || fabs(number) > 0x1p53)
            return text_source_fail(
                &r->in, CZ_INVALID,
                "the label %.32s is not a class: expected an integer, a string, true or false",
                row->label.s);
        int n = snprintf(digits, sizeof digits, "%.0f", number + 0.0);
        row->label.n = 0;
        return text_buf_put(&row->label, digits, (size_t)n);
    case JSON_STRING: row->label_kind = row->label.n ? LABEL_STRING : LABEL_NONE; return CZ_OK;
    case JSON_ARRAY:
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
    if (peek_value(r) == ']') return text_source_fail(&r->in, CZ_CORRUPT, "a row is empty");
    for (bool done = false; !done; n++) {
        if (n == 3)
            return text_source_fail(&r->in, CZ_CORRUPT,
                                    "a row has more than three items: [text, label] and "
                                    "[text, pair, label] are read");
        TRY(read_scalar(r, into[n], &types[n]));
        if (types[n] == JSON_ARRAY || types[n] == JSON_OBJECT)
            return n == 0 ? need_string(r, TEXT_ROLE_TEXT, types[n]) : set_label(r, types[n]);
        TRY(read_separator(r, ']', &done));
    }
    TRY(need_string(r, TEXT_ROLE_TEXT, types[0]));
    row->has_pair = n == 3 && types[1] != JSON_NULL;
    if (row->has_pair) TRY(need_string(r, TEXT_ROLE_PAIR, types[1]));
    if (n == 2) text_buf_swap(&row->pair, &row->label);
    TRY(set_label(r, n == 1 ? JSON_NULL : types[n - 1]));
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
    return text_clean(r->key.s, r->key.n, false, &r->names);
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

static cz_status read_member(struct texts_reader *r, struct found found[TEXT_N_ROLES])
{
    struct text_buf *const into[] = {&r->row.text, &r->row.pair, &r->row.label};
    enum text_role role;
    size_t rank;
    TRY(read_key(r, &r->key));
    TRY(note_name(r));
    if (!find_role(r, &role, &rank) || rank > found[role].rank) return skip_value(r, 2);
    if (rank == found[role].rank)
        return text_source_fail(&r->in, CZ_CORRUPT, "an object has two members \"%.*s\"",
                                (int)r->key.n, r->key.s);
    enum json_type type;
    TRY(read_scalar(r, &r->clean, &type));
    if (type == JSON_ARRAY || type == JSON_OBJECT) TRY(skip_value(r, 2));
    if (type == JSON_NULL) {
        found[role].was_null = true;
        return CZ_OK;
    }
    text_buf_swap(&r->clean, into[role]);
    found[role].rank = rank;
    found[role].type = type;
    return CZ_OK;
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
        return texts_fail_missing(r, TEXT_ROLE_LABEL, "member");
    TRY(set_label(r, label->rank == SIZE_MAX ? JSON_NULL : label->type));
    return texts_take_row(r);
}

/* Behind the "{" of a row. */
static cz_status read_object_row(struct texts_reader *r)
{
    struct found found[TEXT_N_ROLES];
    for (int k = 0; k < TEXT_N_ROLES; k++) found[k] = (struct found){.rank = SIZE_MAX};
    r->names.n = 0;
    bool done = peek_value(r) == '}';
    if (done) text_source_skip(&r->in);
    while (!done) {
        TRY(read_member(r, found));
        TRY(read_separator(r, '}', &done));
    }
    return take_object(r, found);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A row, if c can begin one. */
static cz_status read_row(struct texts_reader *r, int c)
{
    if (c != '[' && c != '{')
        return fail_at(r, c, "a row: [text, label] or an object with members");
    text_source_skip(&r->in);
    return c == '[' ? read_list_row(r) : read_object_row(r);
}

cz_status texts_read_json(struct texts_reader *r)
{
    int c = peek_value(r);
    if (c == '[') {
        text_source_skip(&r->in);
        if (peek_value(r) != '"') {
            /* Behind the "[" of a list of rows. */
            bool done = peek_value(r) == ']';
            if (done) text_source_skip(&r->in);
            for (r->in.item = 1; !done; r->in.item++) {
                TRY(read_row(r, peek_value(r)));
                TRY(read_separator(r, ']', &done));
            }
            r->in.item = 0;
            if (peek_value(r) >= 0)
                return text_source_fail(&r->in, CZ_CORRUPT,
                                        "the file continues after the end of the list");
            return r->in.status;
        }
        TRY(read_list_row(r)); /* a line: ["text", … */
    }
    while ((c = peek_value(r)) >= 0) TRY(read_row(r, c));
    return r->in.status;
}
