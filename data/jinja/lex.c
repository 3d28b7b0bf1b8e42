/* Templates to tokens, as Jinja's lexer cuts them: text up to the next tag, with the white space
 * that trim_blocks, lstrip_blocks and the signs - and + of tags remove; then the tokens inside of
 * the tag. A bracket that is open hides the end of a tag. */
#include "data/jinja/jinja_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>

struct lexer {
    struct jinja_template *t;
    struct jinja_tokens *out;
    const char *s, *end, *at;
    int line;
    bool at_line_start; /* what was read last ended a line */
};

cz_status jinja_fail(const char *name, int line, cz_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_vset(status, fmt, ap);
    va_end(ap);
    return err_prefix("%s:%d", name, line);
}

cz_status jinja_no_memory(const struct jinja_template *t, int line)
{
    if (t->pool.lacks_memory)
        return jinja_fail(t->name, line, CZ_NOMEM, "no memory is left for the template");
    return jinja_fail(t->name, line, CZ_INVALID, "the template needs more than %zu bytes of memory",
                      t->pool.nbytes_max);
}

#define LEX_FAIL(x, ...) jinja_fail((x)->t->name, (x)->line, CZ_INVALID, __VA_ARGS__)

static cz_status push(struct lexer *x, struct jinja_token token)
{
    struct jinja_tokens *o = x->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 256;
        struct jinja_token *at = realloc(o->at, cap * sizeof *at);
        x->t->pool.lacks_memory = !at;
        if (!at) return jinja_no_memory(x->t, x->line);
        o->at = at;
        o->cap = cap;
    }
    token.line = x->line;
    o->at[o->n++] = token;
    return CZ_OK;
}

static void advance(struct lexer *x, const char *to)
{
    for (; x->at < to; x->at++)
        if (*x->at == '\n') x->line++;
}

static const char *skip_space(const char *s, const char *end)
{
    while (s < end) {
        size_t len;
        if (!str_is_space(chars_at(s, (size_t)(end - s), &len))) break;
        s += len;
    }
    return s;
}

static bool starts(const struct lexer *x, const char *s, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(x->end - s) >= n && memcmp(s, what, n) == 0;
}

/* The length of "%}" or "#}" with its sign at s and what it removes behind; 0: it is not there. */
static size_t tag_end(const struct lexer *x, const char *s, const char *close)
{
    const char *p = s;
    char sign = 0;
    if (p < x->end && (*p == '-' || *p == '+')) sign = *p++;
    if (!starts(x, p, close)) return 0;
    p += 2;
    if (sign == '-') p = skip_space(p, x->end);
    if (sign == 0 && p < x->end && *p == '\n') p++; /* trim_blocks */
    return (size_t)(p - s);
}

/* Push the text up to `tag`, without what the tag's sign removes before it. */
static cz_status push_text(struct lexer *x, const char *tag, char sign, bool is_block)
{
    const char *s = x->at;
    size_t n = (size_t)(tag - s);
    if (sign == '-') {
        n = str_strip(jv_of_str(s, n), STR_RIGHT).n;
    } else if (sign != '+' && is_block) { /* lstrip_blocks */
        const char *start = tag;
        while (start > s && start[-1] != '\n') start--;
        if ((start > s || x->at_line_start) && skip_space(start, tag) == tag)
            n = (size_t)(start - s);
    }
    if (n > 0) TRY(push(x, (struct jinja_token){.type = JT_TEXT, .value = jv_of_str(s, n)}));
    advance(x, tag);
    return CZ_OK;
}

static bool is_name_start(int32_t c)
{
    return c == '_' || (c < 0x80 ? (c | 32) >= 'a' && (c | 32) <= 'z' : chars_is_word(c));
}

/* ---- string and number literals ---------------------------------------------------------------
 */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The character behind a backslash at *s, into dst; Python's escapes. */
static cz_status read_escape(struct lexer *x, const char **s, const char *end, char **dst)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = *(*s)++;
    if (c == '\n') return CZ_OK;
    for (const char *p = plain; *p; p += 2)
        if (*p == c) {
            *(*dst)++ = p[1];
            return CZ_OK;
        }
    uint32_t code = 0;
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *s < end && **s >= '0' && **s <= '7'; i++)
            code = code * 8 + (uint32_t)(*(*s)++ - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        for (int i = 0; i < n; i++, (*s)++) {
            int digit = *s < end ? hex_value(**s) : -1;
            if (digit < 0) return LEX_FAIL(x, "\\%c in a string wants %d hexadecimal digits", c, n);
            code = code * 16 + (uint32_t)digit;
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            return LEX_FAIL(x, "a string has an escape that is no character");
    } else if (c == 'N') {
        return jinja_fail(x->t->name, x->line, CZ_UNSUPPORTED,
                          "names of characters (\\N{…}) are not supported");
    } else {
        *(*dst)++ = '\\';
        (*s)--;
        return CZ_OK;
    }
    *dst += utf8_encode(code, *dst);
    return CZ_OK;
}

static cz_status lex_string(struct lexer *x)
{
    const char *s = x->at + 1, quote = *x->at, *end = s;
    while (end < x->end && *end != quote) end += *end == '\\' && end + 1 < x->end ? 2 : 1;
    if (end >= x->end) return LEX_FAIL(x, "a string does not end");
    /* "\0" is the shortest escape; no escape is shorter than the character it stands for. */
    char *text = jinja_take_text(&x->t->pool, (size_t)(end - s) + 1), *dst = text;
    if (!text) return jinja_no_memory(x->t, x->line);
    while (s < end) {
        if (*s != '\\') {
            *dst++ = *s++;
            continue;
        }
        s++;
        TRY(read_escape(x, &s, end, &dst));
    }
    TRY(push(x,
             (struct jinja_token){.type = JT_STR, .value = jv_of_str(text, (size_t)(dst - text))}));
    advance(x, end + 1);
    return CZ_OK;
}

static bool is_digit(const char *s, const char *end)
{
    return s < end && *s >= '0' && *s <= '9';
}

/* Digits with single underscores between them; the place behind. */
static const char *skip_digits(const char *s, const char *end)
{
    while (is_digit(s, end)) s += s + 1 < end && s[1] == '_' && is_digit(s + 2, end) ? 2 : 1;
    return s;
}

static cz_status lex_number(struct lexer *x)
{
    const char *s = x->at, *p = skip_digits(s, x->end);
    bool is_float = false;
    if (*s == '0' && p == s + 1 && p < x->end && strchr("xXoObB", *p))
        return jinja_fail(x->t->name, x->line, CZ_UNSUPPORTED,
                          "numbers in base 2, 8 or 16 are not supported");
    if (p < x->end && *p == '.' && is_digit(p + 1, x->end)) {
        p = skip_digits(p + 1, x->end);
        is_float = true;
    }
    if (p < x->end && (*p == 'e' || *p == 'E')) {
        const char *e = p + 1;
        if (e < x->end && (*e == '+' || *e == '-')) e++;
        if (is_digit(e, x->end)) {
            p = skip_digits(e, x->end);
            is_float = true;
        }
    }
    char digits[512];
    size_t n = 0;
    for (const char *d = s; d < p && n < sizeof digits; d++)
        if (*d != '_') digits[n++] = *d;
    struct jinja_token token = {.type = is_float ? JT_FLOAT : JT_INT};
    if (is_float) {
        token.value.type = JV_FLOAT;
        if (n == sizeof digits || !str_to_float(digits, n, &token.value.f))
            return LEX_FAIL(x, "a number is too long");
    } else {
        const char *zeros = s;
        while (zeros < p && (*zeros == '0' || *zeros == '_')) zeros++;
        if (*s == '0' && zeros < p) return LEX_FAIL(x, "an integer begins with 0");
        token.value.type = JV_INT;
        if (n == sizeof digits || !str_to_int(digits, n, 10, &token.value.i))
            return LEX_FAIL(x, "an integer is outside of 64 bits");
    }
    TRY(push(x, token));
    advance(x, p);
    return CZ_OK;
}

/* ---- tags --------------------------------------------------------------------------------------
 */

static cz_status lex_operator(struct lexer *x, char *open, size_t *n_open)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    struct jinja_token token = {.type = JT_OP};
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(x, x->at, two[i])) n = 2;
    char c = *x->at;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c)))
        return LEX_FAIL(x, "unexpected character %.*s",
                        (int)utf8_length(x->at, (size_t)(x->end - x->at)), x->at);
    memcpy(token.op, x->at, n);
    if (c == '(' || c == '[' || c == '{') {
        if (*n_open == JINJA_DEPTH_MAX) return LEX_FAIL(x, "too many brackets are open");
        open[(*n_open)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (*n_open == 0 || open[*n_open - 1] != c) return LEX_FAIL(x, "unexpected '%c'", c);
        --*n_open;
    }
    TRY(push(x, token));
    advance(x, x->at + n);
    return CZ_OK;
}

static cz_status lex_tag(struct lexer *x, bool is_block)
{
    char open[JINJA_DEPTH_MAX];
    size_t n_open = 0;
    TRY(push(x, (struct jinja_token){.type = is_block ? JT_BLOCK_BEGIN : JT_OUT_BEGIN}));
    for (;;) {
        const char *s = x->at;
        if (s >= x->end) return LEX_FAIL(x, "a tag does not end");
        size_t n = 0;
        if (n_open == 0) {
            if (is_block) {
                n = tag_end(x, s, "%}");
            } else if (starts(x, s, "-}}")) {
                n = (size_t)(skip_space(s + 3, x->end) - s);
            } else if (starts(x, s, "}}")) {
                n = 2;
            }
        }
        if (n > 0) {
            TRY(push(x, (struct jinja_token){.type = is_block ? JT_BLOCK_END : JT_OUT_END}));
            advance(x, s + n);
            x->at_line_start = x->at[-1] == '\n';
            return CZ_OK;
        }
        size_t len;
        int32_t c = chars_at(s, (size_t)(x->end - s), &len);
        if (str_is_space(c)) {
            advance(x, s + len);
        } else if (is_name_start(c)) {
            const char *p = s;
            do {
                p += len;
                if (p == x->end) break;
                c = chars_at(p, (size_t)(x->end - p), &len);
            } while (is_name_start(c) || is_digit(p, x->end));
            struct jv name = jv_of_str(s, (size_t)(p - s));
            TRY(push(x, (struct jinja_token){.type = JT_NAME, .value = name}));
            advance(x, p);
        } else if (c >= '0' && c <= '9') {
            TRY(lex_number(x));
        } else if (c == '"' || c == '\'') {
            TRY(lex_string(x));
        } else {
            TRY(lex_operator(x, open, &n_open));
        }
    }
}

static cz_status lex_comment(struct lexer *x)
{
    const char *s = x->at + 2;
    size_t n = 0;
    while (s < x->end && (n = tag_end(x, s, "#}")) == 0) s++;
    if (n == 0) return LEX_FAIL(x, "a comment does not end");
    advance(x, s + n);
    x->at_line_start = x->at[-1] == '\n';
    return CZ_OK;
}

/* Behind "{%" and a sign: the place behind the word and the tag's end, or NULL. */
static const char *word_tag(const struct lexer *x, const char *s, const char *word)
{
    s = skip_space(s, x->end);
    if (!starts(x, s, word)) return NULL;
    return skip_space(s + strlen(word), x->end);
}

/* {% raw %} … {% endraw %}, where x->at is at the tag. *is_raw: it was one. */
static cz_status lex_raw(struct lexer *x, char sign, bool *is_raw)
{
    const char *s = word_tag(x, x->at + 2 + (sign ? 1 : 0), "raw");
    *is_raw = s && (starts(x, s, "%}") || starts(x, s, "-%}"));
    if (!*is_raw) return CZ_OK;
    s = *s == '-' ? skip_space(s + 3, x->end) : s + 2;
    advance(x, s);
    x->at_line_start = x->at[-1] == '\n';
    for (; s + 1 < x->end; s++) {
        if (s[0] != '{' || s[1] != '%') continue;
        char end_sign = s + 2 < x->end && (s[2] == '-' || s[2] == '+') ? s[2] : 0;
        const char *p = word_tag(x, s + 2 + (end_sign ? 1 : 0), "endraw");
        size_t n = p ? tag_end(x, p, "%}") : 0;
        if (n == 0) continue;
        TRY(push_text(x, s, end_sign, true));
        advance(x, p + n);
        x->at_line_start = x->at[-1] == '\n';
        return CZ_OK;
    }
    return LEX_FAIL(x, "{%% raw %%} does not end");
}

/* Line ends become \n, and one at the end goes. */
static cz_status normalize(struct jinja_template *t, const char *text, size_t n, struct jv *out)
{
    char *copy = jinja_take_text(&t->pool, n + 1), *dst = copy;
    if (!copy) return jinja_no_memory(t, 1);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            *dst++ = '\n';
            if (i + 1 < n && text[i + 1] == '\n') i++;
        } else {
            *dst++ = text[i];
        }
    }
    if (dst > copy && dst[-1] == '\n') dst--;
    *out = jv_of_str(copy, (size_t)(dst - copy));
    return CZ_OK;
}

cz_status jinja_lex(struct jinja_template *t, const char *text, size_t n, struct jinja_tokens *out)
{
    struct jv source = {0};
    if (n > JINJA_TEMPLATE_NBYTES_MAX)
        return jinja_fail(t->name, 1, CZ_INVALID, "the template is longer than %zu bytes",
                          JINJA_TEMPLATE_NBYTES_MAX);
    if (!utf8_is_valid(text, n)) return jinja_fail(t->name, 1, CZ_INVALID, "it is not UTF-8");
    TRY(normalize(t, text, n, &source));
    struct lexer lexer = {.t = t,
                          .out = out,
                          .s = source.s,
                          .at = source.s,
                          .end = source.s + source.n,
                          .line = 1,
                          .at_line_start = true};
    struct lexer *x = &lexer;
    while (x->at < x->end) {
        const char *tag = x->at;
        while (tag + 1 < x->end &&
               !(tag[0] == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
            tag++;
        if (tag + 1 >= x->end) tag = x->end;
        if (tag == x->end) {
            struct jv rest = jv_of_str(x->at, (size_t)(tag - x->at));
            TRY(push(x, (struct jinja_token){.type = JT_TEXT, .value = rest}));
            advance(x, tag);
            break;
        }
        char kind = tag[1], sign = 0;
        if (tag + 2 < x->end && (tag[2] == '-' || tag[2] == '+')) sign = tag[2];
        bool is_raw = false;
        TRY(push_text(x, tag, sign, kind != '{'));
        if (kind == '#') {
            TRY(lex_comment(x));
            continue;
        }
        if (kind == '%') TRY(lex_raw(x, sign, &is_raw));
        if (is_raw) continue;
        advance(x, tag + 2 + (sign ? 1 : 0));
        TRY(lex_tag(x, kind == '%'));
    }
    return push(x, (struct jinja_token){.type = JT_END});
}
