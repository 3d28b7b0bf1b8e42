/* The scanner: checks, comments, optional commas, the place of each value, and decoded strings.
 *
 * Everything that may be wrong with a text is reported here, by line and column. Limits (depth,
 * UTF-8, no NUL) are checked here as well, which is what lets the rest of the module rely on
 * them. */
#include "base/host/cgroup.h"
#include "base/text/encoding.h"
#include "formats/eight.h"
#include "formats/json/json_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    struct json_doc *doc;
    const char *s; /* doc->text, NUL-terminated past n */
    size_t n;
    size_t at;
    size_t strings_n; /* bytes of doc->strings in use */
    int depth;
    uint32_t parent;  /* number of the container being read */
    uint32_t key_off; /* of the member being read */
};

static cz_status scan_value(struct scan *c);

/* From the nearest mark before. Columns are characters, not bytes. */
void json_locate(const struct json_doc *doc, size_t off, int *line, int *column)
{
    size_t mark = off / JSON_MARK_NBYTES, i = 0;
    uint32_t l = 1, c = 1;
    if (doc->n_marks > 0) {
        if (mark >= doc->n_marks) mark = doc->n_marks - 1;
        l = doc->marks[mark].line;
        c = doc->marks[mark].column;
        i = mark * JSON_MARK_NBYTES;
    }
    for (; i < off && i < doc->nbytes; i++) {
        if (doc->text[i] == '\n')
            l++, c = 1;
        else if (((unsigned char)doc->text[i] & 0xc0u) != 0x80u)
            c++;
    }
    *line = (int)l;
    *column = (int)c;
}

/* In configs a mistake is the user's (CZ_INVALID); in files that a program wrote it is damage. */
cz_status json_fail(const struct json_doc *doc, size_t off, cz_status status, const char *fmt, ...)
{
    char what[768];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    int line, column;
    json_locate(doc, off, &line, &column);
    if (status == CZ_CORRUPT && doc->dialect == JSON_CONFIG) status = CZ_INVALID;
    return err_set(status, 0, "%s:%d:%d: %s", doc->name, line, column, what);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at p (n bytes left), or 0: overlong, surrogate, cut, or no UTF-8. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    size_t want = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n < want) return 0;
    for (size_t i = 1; i < want; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] > 0x9f) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0;
    return want;
}

static char peek(const struct scan *c)
{
    return c->at < c->n ? c->s[c->at] : '\0';
}

static bool at_end(const struct scan *c)
{
    return c->at >= c->n;
}

static bool looking_at(const struct scan *c, const char *word)
{
    size_t len = strlen(word);
    return c->n - c->at >= len && memcmp(c->s + c->at, word, len) == 0;
}

static bool is_comment_start(const struct scan *c)
{
    return peek(c) == '#' || looking_at(c, "//") || looking_at(c, "/*");
}

static void skip_white(struct scan *c)
{
    while (!at_end(c)) {
        const char ch = c->s[c->at];
        if (ch != ' ' && ch != '\t' && ch != '\r' && ch != '\n') return;
        c->at++;
    }
}

/* Line comments run to the end of the line, block comments across lines. DeepSpeed reads configs
 * with hjson, which has all three kinds (docs/deepspeed-behaviour.md, "JSON dialect"). */
static cz_status skip_comment(struct scan *c)
{
    size_t start = c->at;
    if (!looking_at(c, "/*")) {
        while (!at_end(c) && peek(c) != '\n' && peek(c) != '\r') c->at++;
        return CZ_OK;
    }
    for (c->at += 2; !at_end(c); c->at++) {
        if (!looking_at(c, "*/")) continue;
        c->at += 2;
        return CZ_OK;
    }
    return json_fail(c->doc, start, CZ_CORRUPT, "this comment never ends: \"*/\" is missing");
}

static cz_status skip_blank(struct scan *c)
{
    skip_white(c);
    while (is_comment_start(c)) {
        if (c->doc->dialect == JSON_STRICT)
            return json_fail(c->doc, c->at, CZ_CORRUPT, "comments are not allowed in this file");
        TRY(skip_comment(c));
        skip_white(c);
    }
    return CZ_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* More nodes than memory allows are refused before they are asked for: what the host has left is
 * looked up at each doubling from here on. */
#define NODES_UNASKED ((size_t)1 << 20)

static cz_status grow_nodes(struct json_doc *doc)
{
    size_t capacity = doc->nodes_capacity ? doc->nodes_capacity * 2 : 64;
    size_t nbytes = sizeof *doc->nodes + capacity * sizeof doc->nodes->at[0];
    bool is_short = capacity > NODES_UNASKED && nbytes / 2 > host_memory_left() / 2;
    struct json_nodes *grown = is_short ? NULL : realloc(doc->nodes, nbytes);
    if (!grown)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu JSON values", doc->name, capacity);
    grown->doc = doc;
    doc->nodes = grown;
    doc->nodes_capacity = capacity;
    return CZ_OK;
}

/* Nodes are numbered in the order of the text. */
static cz_status add_node(struct scan *c, enum json_type type, uint32_t *idx)
{
    struct json_doc *doc = c->doc;
    if (doc->n_nodes == doc->nodes_capacity) TRY(grow_nodes(doc));
    *idx = (uint32_t)doc->n_nodes++;
    doc->nodes->at[*idx] = (struct json_node){.idx = *idx,
                                              .parent = c->parent,
                                              .text_off = (uint32_t)c->at,
                                              .type = (unsigned)type & 7,
                                              .key_off = c->key_off};
    if (*idx > 0) doc->nodes->at[c->parent].n_children++;
    return CZ_OK;
}

/* The length is known only at the end of the value: containers are noted when they begin. */
static void close_node(struct scan *c, uint32_t idx)
{
    struct json_node *node = &c->doc->nodes->at[idx];
    node->text_nbytes = (uint32_t)(c->at - node->text_off) & JSON_NBYTES_MAX;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* -1: not four hexadecimal digits. */
static int hex4(const char *p, size_t n)
{
    int value = 0;
    for (size_t i = 0; i < 4; i++) {
        char ch = i < n ? p[i] : '\0';
        int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* A decoded string has no more bytes than its text, so there is always space. */
static void put(struct scan *c, unsigned byte)
{
    c->doc->strings[c->strings_n++] = (char)byte;
}

static void put_utf8(struct scan *c, unsigned code)
{
    if (code < 0x80) {
        put(c, code);
        return;
    }
    if (code < 0x800) {
        put(c, 0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(c, 0xe0 | code >> 12);
        } else {
            put(c, 0xf0 | code >> 18);
            put(c, 0x80 | (code >> 12 & 0x3f));
        }
        put(c, 0x80 | (code >> 6 & 0x3f));
    }
    put(c, 0x80 | (code & 0x3f));
}

/* At "\u": one code point, possibly a surrogate pair. \u0000 would end the C string that readers
 * get. */
static cz_status scan_unicode_escape(struct scan *c)
{
    size_t start = c->at;
    int unit = hex4(c->s + c->at + 2, c->n - c->at - 2);
    if (unit < 0) return json_fail(c->doc, start, CZ_CORRUPT, "\\u needs four hexadecimal digits");
    if (unit == 0)
        return json_fail(c->doc, start, CZ_CORRUPT, "\\u0000 is not supported in strings");
    if (unit >= 0xd800 && unit <= 0xdbff) {
        bool pair = c->n - c->at >= 12 && c->s[c->at + 6] == '\\' && c->s[c->at + 7] == 'u';
        int low = pair ? hex4(c->s + c->at + 8, 4) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return json_fail(c->doc, start, CZ_CORRUPT, "half of a surrogate pair");
        put_utf8(c, 0x10000u + ((unsigned)(unit - 0xd800) << 10) + (unsigned)(low - 0xdc00));
        c->at += 12;
        return CZ_OK;
    }
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return json_fail(c->doc, start, CZ_CORRUPT, "half of a surrogate pair");
    put_utf8(c, (unsigned)unit);
    c->at += 6;
    return CZ_OK;
}

/* \' is accepted in configs; JSON has no such escape. */
static cz_status scan_escape(struct scan *c)
{
    static const char letters[] = "\"\\/bfnrt'", values[] = "\"\\/\b\f\n\r\t'";
    char ch = c->at + 1 < c->n ? c->s[c->at + 1] : '\0';
    if (ch == 'u') return scan_unicode_escape(c);
    const char *found = ch != '\0' ? strchr(letters, ch) : NULL;
    if (!found || (ch == '\'' && c->doc->dialect != JSON_CONFIG))
        return json_fail(c->doc, c->at, CZ_CORRUPT, "\"\\%.1s\" is not an escape sequence of JSON",
                         ch >= 0x20 && ch < 0x7f ? c->s + c->at + 1 : "");
    put(c, (unsigned char)values[found - letters]);
    c->at += 2;
    return CZ_OK;
}

/* Bytes from `at` on that stand for themselves. */
static size_t plain_length(const struct scan *c)
{
    size_t at = c->at;
    for (uint64_t v; c->n - at >= 8; at += 8) {
        v = eight_at(c->s + at);
        if (eight_have(v, '"') || eight_have(v, '\\') || eight_below(v, 0x20)) break;
    }
    while (at < c->n && c->s[at] != '"' && c->s[at] != '\\' && (unsigned char)c->s[at] >= 0x20)
        at++;
    return at - c->at;
}

/* Decodes the string into doc->strings; *off: where it is. */
static cz_status scan_string(struct scan *c, uint32_t *off)
{
    size_t start = c->at++;
    *off = (uint32_t)c->strings_n;
    while (!at_end(c)) {
        size_t n = plain_length(c);
        memcpy(c->doc->strings + c->strings_n, c->s + c->at, n);
        c->strings_n += n;
        c->at += n;
        if (at_end(c)) break;
        char ch = c->s[c->at];
        if (ch == '"') {
            c->at++;
            put(c, 0);
            return CZ_OK;
        }
        if (ch == '\\') {
            TRY(scan_escape(c));
            continue;
        }
        if (ch == '\n' || ch == '\r')
            return json_fail(c->doc, start, CZ_CORRUPT, "this string has no closing quote");
        return json_fail(c->doc, c->at, CZ_CORRUPT,
                         "control character 0x%02x inside a string: write it as an escape",
                         (unsigned)ch);
    }
    return json_fail(c->doc, start, CZ_CORRUPT, "this string has no closing quote");
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static size_t digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

/* JSON's grammar, which is narrower than strtod()'s: no "+1", no "01", no "1.", no "inf". The
 * digits are left to the readers, which need them exactly: 0.1 as text, integers beyond 2⁵³. */
static bool is_number(const char *s, size_t n, enum json_type *type)
{
    size_t i = n > 0 && s[0] == '-';
    size_t whole = digits(s + i, n - i);
    if (whole == 0 || (whole > 1 && s[i] == '0')) return false;
    i += whole;
    *type = i == n ? JSON_INT : JSON_FLOAT;
    if (i < n && s[i] == '.') {
        size_t fraction = digits(s + i + 1, n - i - 1);
        if (fraction == 0) return false;
        i += 1 + fraction;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        size_t exponent = digits(s + i, n - i);
        if (exponent == 0) return false;
        i += exponent;
    }
    return i == n;
}

static bool word_is(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* A value with a key behind it: "8 \"optimizer\": …" */
static bool lacks_comma(const char *s, size_t n, int *n_value)
{
    enum json_type type;
    size_t end = 0, next;
    while (end < n && s[end] != ' ' && s[end] != '\t') end++;
    for (next = end; next < n && (s[next] == ' ' || s[next] == '\t');) next++;
    *n_value = (int)end;
    return next < n && s[next] == '"' &&
           (word_is(s, end, "true") || word_is(s, end, "false") || word_is(s, end, "null") ||
            is_number(s, end, &type));
}

/* What a word without quotes might have been meant to be. Written to buf where it names a part. */
static const char *word_hint(const char *s, size_t n, char buf[64])
{
    int n_value;
    if (lacks_comma(s, n, &n_value) && n_value < 24) {
        snprintf(buf, 64, "; a comma is missing after %.*s", n_value, s);
        return buf;
    }
    if (word_is(s, n, "True") || word_is(s, n, "TRUE")) return "; write true";
    if (word_is(s, n, "False") || word_is(s, n, "FALSE")) return "; write false";
    if (word_is(s, n, "None") || word_is(s, n, "NULL") || word_is(s, n, "nil"))
        return "; write null";
    if (n > 0 && (s[0] == '$' || s[0] == '{' || s[0] == '<'))
        return "; this looks like an unfilled template";
    if (n > 0 && strchr("+.0123456789-", s[0]))
        return "; a number is written like 1, -2, 0.5 or 1e-3";
    return "; strings need double quotes";
}

/* The text shown is cut between characters, so that a message stays UTF-8. */
static cz_status fail_word(struct scan *c, size_t n)
{
    const char *s = c->s + c->at;
    char hint[64];
    int shown = n > 40 ? 40 : (int)n;
    while (shown > 0 && ((unsigned char)s[shown] & 0xc0u) == 0x80u) shown--;
    if (n == 0 || s[0] == ':')
        return json_fail(c->doc, c->at, CZ_CORRUPT,
                         at_end(c) ? "the file ends where a value is expected"
                                   : "a value is missing before \"%.1s\"",
                         s);
    if (c->doc->dialect == JSON_STRICT)
        return json_fail(c->doc, c->at, CZ_CORRUPT, "\"%.*s\" is not a JSON value%s", shown, s,
                         word_hint(s, n, hint));
    return json_fail(c->doc, c->at, CZ_UNSUPPORTED,
                     "not supported: \"%.*s\", a value without quotes%s", shown, s,
                     word_hint(s, n, hint));
}

/* Bytes of a bare word: up to a comma, a closing bracket, a comment or the end of the line. Only
 * for the message. */
static size_t word_length(struct scan *c)
{
    size_t start = c->at, n;
    while (!at_end(c) && !strchr(",}]\r\n", c->s[c->at]) && !is_comment_start(c)) c->at++;
    n = c->at - start;
    c->at = start;
    while (n > 0 && (c->s[start + n - 1] == ' ' || c->s[start + n - 1] == '\t')) n--;
    return n;
}

/* true, false, null or a number; anything else gets a hint about what may have been meant. */
static cz_status scan_word(struct scan *c)
{
    const char *s = c->s + c->at;
    size_t n = word_length(c);
    enum json_type type = JSON_NULL;
    if (word_is(s, n, "true") || word_is(s, n, "false")) {
        type = JSON_BOOL;
    } else if (!word_is(s, n, "null") && !is_number(s, n, &type)) {
        return fail_word(c, n);
    }
    uint32_t idx;
    TRY(add_node(c, type, &idx));
    c->at += n;
    close_node(c, idx);
    return CZ_OK;
}

/* ---- containers ------------------------------------------------------------------------------ */

/* A config's key without quotes is CZ_UNSUPPORTED and not damage: hjson allows it, czero does
 * not. */
static cz_status scan_key(struct scan *c)
{
    if (peek(c) == '"') return scan_string(c, &c->key_off);
    if (at_end(c))
        return json_fail(c->doc, c->doc->nodes->at[c->parent].text_off, CZ_CORRUPT,
                         "this object never ends: \"}\" is missing");
    char ch = peek(c);
    if (strchr("{}[],:", ch))
        return json_fail(c->doc, c->at, CZ_CORRUPT, "expected a key in double quotes before \"%c\"",
                         ch);
    if (c->doc->dialect == JSON_STRICT)
        return json_fail(c->doc, c->at, CZ_CORRUPT, "keys need double quotes");
    return json_fail(c->doc, c->at, CZ_UNSUPPORTED, "not supported: a key without double quotes");
}

/* Configs may leave commas out or have one too many (docs/deepspeed-behaviour.md, "JSON dialect").
 */
static cz_status scan_separator(struct scan *c, char close, bool *done)
{
    TRY(skip_blank(c));
    bool comma = peek(c) == ',';
    size_t comma_at = c->at;
    if (comma) {
        c->at++;
        TRY(skip_blank(c));
    }
    *done = peek(c) == close && !at_end(c);
    if (c->doc->dialect == JSON_STRICT) {
        if (comma && *done)
            return json_fail(c->doc, comma_at, CZ_CORRUPT, "a comma before \"%c\"", close);
        if (!comma && !*done && !at_end(c))
            return json_fail(c->doc, c->at, CZ_CORRUPT, "expected a comma or \"%c\" here", close);
    }
    if (!*done) {
        if (at_end(c))
            return json_fail(c->doc, c->doc->nodes->at[c->parent].text_off, CZ_CORRUPT,
                             "this %s never ends: \"%c\" is missing",
                             close == '}' ? "object" : "array", close);
    }
    return CZ_OK;
}

/* Duplicates are found when the tree is linked. */
static cz_status scan_member(struct scan *c)
{
    TRY(scan_key(c));
    TRY(skip_blank(c));
    if (peek(c) != ':')
        return json_fail(c->doc, c->at, CZ_CORRUPT, "expected \":\" between key and value");
    c->at++;
    TRY(skip_blank(c));
    return scan_value(c);
}

/* Depth is limited, because the scanner and the readers recurse. */
static cz_status scan_container(struct scan *c, enum json_type type)
{
    char close = type == JSON_OBJECT ? '}' : ']';
    if (c->depth == JSON_DEPTH_MAX)
        return json_fail(c->doc, c->at, CZ_CORRUPT, "more than %d levels of nesting",
                         JSON_DEPTH_MAX);
    uint32_t idx, outer = c->parent;
    TRY(add_node(c, type, &idx));
    c->parent = idx;
    c->depth++;
    c->at++;
    TRY(skip_blank(c));
    for (bool done = peek(c) == close && !at_end(c); !done;) {
        TRY(type == JSON_OBJECT ? scan_member(c) : scan_value(c));
        TRY(scan_separator(c, close, &done));
    }
    c->at++;
    c->depth--;
    c->parent = outer;
    close_node(c, idx);
    return CZ_OK;
}

static cz_status scan_value(struct scan *c)
{
    switch (peek(c)) {
    case '{': return scan_container(c, JSON_OBJECT);
    case '[': return scan_container(c, JSON_ARRAY);
    case '"': {
        uint32_t idx, off;
        TRY(add_node(c, JSON_STRING, &idx));
        TRY(scan_string(c, &off));
        c->doc->nodes->at[idx].string_off = off;
        close_node(c, idx);
        return CZ_OK;
    }
    case '\'':
        return json_fail(c->doc, c->at,
                         c->doc->dialect == JSON_CONFIG ? CZ_UNSUPPORTED : CZ_CORRUPT, "%s",
                         looking_at(c, "'''") ? "not supported: strings in triple quotes"
                                              : "not supported: strings in single quotes; write "
                                                "them in double quotes");
    default: return scan_word(c);
    }
}

/* Checks UTF-8 over the whole text, so that nothing after it has to, and notes the marks. */
static cz_status check_text(struct scan *c)
{
    struct json_doc *doc = c->doc;
    struct json_mark now = {1, 1};
    size_t next = 0; /* where the next mark is due */
    for (size_t i = 0; i < c->n;) {
        for (; next <= i; next += JSON_MARK_NBYTES)
            doc->marks[doc->n_marks++] = now; /* also of a byte inside the character before */
        if (c->n - i >= 8 && next - i >= 8) {
            const uint64_t v = eight_at(c->s + i);
            if (eight_are_ascii(v) && !eight_have(v, '\0') && !eight_have(v, '\n')) {
                now.column += 8;
                i += 8;
                continue;
            }
        }
        size_t len = utf8_length((const unsigned char *)c->s + i, c->n - i);
        if (len == 0 || c->s[i] == '\0') {
            const char *guess = encoding_guess(c->s, c->n < 65536 ? c->n : 65536, true);
            if (guess && strcmp(guess, "utf-8") == 0) guess = NULL; /* with a few damaged bytes */
            return json_fail(doc, i, CZ_CORRUPT, "byte 0x%02x is not UTF-8 text%s%s%s",
                             (unsigned)(unsigned char)c->s[i],
                             guess ? "; the file looks like " : "", guess ? guess : "",
                             guess ? ": save it as UTF-8" : "");
        }
        if (c->s[i] == '\n')
            now = (struct json_mark){now.line + 1, 1};
        else
            now.column++;
        i += len;
    }
    return CZ_OK;
}

/* Editors of Windows write a byte-order mark into configs, where it is skipped; in files that
 * programs write, other readers refuse it. */
static cz_status scan_document(struct scan *c)
{
    TRY(check_text(c));
    if (looking_at(c, "\xef\xbb\xbf")) {
        if (c->doc->dialect == JSON_STRICT)
            return json_fail(c->doc, 0, CZ_CORRUPT, "a byte-order mark: JSON has none");
        c->at += 3;
    }
    TRY(skip_blank(c));
    if (at_end(c)) return json_fail(c->doc, c->at, CZ_CORRUPT, "the file contains no value");
    if (c->doc->dialect == JSON_CONFIG && peek(c) != '{' && peek(c) != '[') {
        if (strchr("}],:", peek(c)))
            return json_fail(c->doc, c->at, CZ_CORRUPT, "\"%c\" before any \"{\"", peek(c));
        return json_fail(c->doc, c->at, CZ_UNSUPPORTED,
                         "not supported: settings without braces around them; the file must start "
                         "with \"{\"");
    }
    TRY(scan_value(c));
    TRY(skip_blank(c));
    if (!at_end(c)) return json_fail(c->doc, c->at, CZ_CORRUPT, "text after the end of the value");
    return CZ_OK;
}

cz_status json_scan(struct json_doc *doc)
{
    struct scan c = {.doc = doc, .s = doc->text, .n = doc->nbytes};
    doc->marks = malloc((doc->nbytes / JSON_MARK_NBYTES + 2) * sizeof *doc->marks);
    doc->strings = malloc(doc->nbytes + 1);
    if (!doc->marks || !doc->strings)
        return err_set(CZ_NOMEM, 0, "%s: no memory to read %zu bytes", doc->name, doc->nbytes);
    return scan_document(&c);
}
