/* Typed values by the rules of pydantic (2.14, lax mode), which DeepSpeed's sections follow: "4" is
 * an integer, 1e6 is one, true is one unless the key forbids it. A config that DeepSpeed takes must
 * not fail here, and one that it refuses must not train differently; hence the detail. */
#include "engine/config/config_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define INT_DIGITS_MAX 4300

/* ---- numbers in quotes ---------------------------------------------------------------------- */

struct slice {
    const char *s;
    size_t n;
};

/* Python's strip(): all white space, at both ends. */
static struct slice trimmed(const char *s)
{
    struct slice out = {s, strlen(s)};
    while (out.n && isspace((unsigned char)out.s[0])) out.s++, out.n--;
    while (out.n && isspace((unsigned char)out.s[out.n - 1])) out.n--;
    return out;
}

/* Copy without underscores. They may not lead, end or repeat; `between_digits`: nor stand
 * elsewhere. */
static char *without_underscores(struct cv_pool *pool, struct slice in, bool between_digits)
{
    char *out = cv_alloc(pool, in.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        if (in.s[i] != '_') {
            out[n++] = in.s[i];
            continue;
        }
        if (i == 0 || i + 1 == in.n || in.s[i + 1] == '_') return NULL;
        bool inside = isdigit((unsigned char)in.s[i - 1]) && isdigit((unsigned char)in.s[i + 1]);
        if (between_digits && !inside) return NULL;
    }
    return out;
}

/* [+-]digits[.zeros], underscores between digits; `plain`: without the zeros. */
static struct cv *int_from_text(struct cv_pool *pool, const char *text, bool plain)
{
    struct slice in = trimmed(text);
    if (in.n > INT_DIGITS_MAX) return NULL;
    const char *dot = memchr(in.s, '.', in.n);
    if (dot) {
        size_t zeros = in.n - (size_t)(dot - in.s) - 1;
        if (plain || zeros == 0 || strspn(dot + 1, "0") < zeros) return NULL;
        in.n = (size_t)(dot - in.s);
    }
    bool negative = in.n && in.s[0] == '-';
    if (in.n && (in.s[0] == '-' || in.s[0] == '+')) in.s++, in.n--;
    char *digits = in.n ? without_underscores(pool, in, true) : NULL;
    if (!digits || strspn(digits, "0123456789") != strlen(digits)) return NULL;
    while (digits[0] == '0' && digits[1]) digits++;
    const char *number = cv_text(pool, "%s%s", negative ? "-" : "", digits);
    struct cv *out = cv_parse(pool, strcmp(number, "-0") ? number : "0", CV_FILE);
    return out->kind == CV_INT ? out : NULL;
}

/* The grammar of Rust's and of Python's float(): no hexadecimal, "inf" and "nan" in any case. */
static bool is_float_text(const char *s)
{
    if (*s == '+' || *s == '-') s++;
    if (!strcasecmp(s, "inf") || !strcasecmp(s, "infinity") || !strcasecmp(s, "nan")) return true;
    size_t whole = strspn(s, "0123456789"), fraction = 0;
    s += whole;
    if (*s == '.') {
        fraction = strspn(s + 1, "0123456789");
        s += 1 + fraction;
    }
    if (whole + fraction == 0) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-') s++;
        size_t exponent = strspn(s, "0123456789");
        if (exponent == 0) return false;
        s += exponent;
    }
    return *s == '\0';
}

/* pydantic allows underscores anywhere between characters, Python's float() between digits only. */
static bool float_from_text(struct cv_pool *pool, const char *text, bool python, double *out)
{
    char *plain = without_underscores(pool, trimmed(text), python);
    if (!plain || !is_float_text(plain)) return false;
    *out = strtod(plain, NULL);
    return true;
}

/* ---- one type each -------------------------------------------------------------------------- */

static void expected(struct config_impl *c, const struct cv *value, const char *path,
                     const char *what)
{
    config_error(c, value, path, "expected %s, got %s", what, cv_show(&c->pool, value));
}

/* The words are pydantic's, the first half true. */
static struct cv *coerce_bool(struct config_impl *c, const struct cv *value, const char *path)
{
    static const char *const words[] = {"true",  "yes", "on",  "t", "y", "1",
                                        "false", "no",  "off", "f", "n", "0"};
    bool number = value->kind == CV_INT || value->kind == CV_FLOAT;
    if (value->kind == CV_BOOL) return cv_copy(&c->pool, value);
    if (number && !value->digits && (value->real == 0.0 || value->real == 1.0))
        return cv_bool(&c->pool, value->real == 1.0, value->origin);
    if (value->kind == CV_STRING)
        for (size_t i = 0; i < CZ_ARRAY_LEN(words); i++)
            if (!strcasecmp(value->string, words[i]))
                return cv_bool(&c->pool, i < CZ_ARRAY_LEN(words) / 2, value->origin);
    expected(c, value, path, "true or false");
    return NULL;
}

static struct cv *coerce_int(struct config_impl *c, const struct config_key *key,
                             const struct cv *value, const char *path)
{
    struct cv *out = NULL;
    switch (value->kind) {
    case CV_BOOL:
        if (!(key->flags & KEY_NO_BOOL)) return cv_int(&c->pool, value->boolean, value->origin);
        break;
    case CV_INT:
        out = cv_copy(&c->pool, value);
        out->as_float = false;
        return out;
    case CV_FLOAT: /* JSON writes 1e6 for an integer: a float counts as one while it is exact. */
        if (value->real == floor(value->real) && fabs(value->real) < 0x1p63)
            return cv_int(&c->pool, (int64_t)value->real, value->origin);
        expected(c, value, path,
                 value->real == floor(value->real)
                     ? "an integer (a float beyond 2^63 does not count as one)"
                     : "an integer");
        return NULL;
    case CV_STRING:
        out = int_from_text(&c->pool, value->string, key->flags & KEY_PLAIN_INT);
        if (out) out->origin = value->origin;
        if (out) return out;
        break;
    default: break;
    }
    expected(c, value, path, key->type == KEY_STAGE ? "0, 1, 2 or 3" : "an integer");
    return NULL;
}

/* + 0.0: −0 becomes 0, as it prints in DeepSpeed's dump. */
static struct cv *coerce_float(struct config_impl *c, const struct config_key *key,
                               const struct cv *value, const char *path)
{
    double number = value->real;
    bool ok = cv_is_number(value) && !(value->kind == CV_BOOL && (key->flags & KEY_NO_BOOL));
    if (value->kind == CV_STRING)
        ok = float_from_text(&c->pool, value->string, key->flags & KEY_PYTHON_FLOAT, &number);
    if (ok && isfinite(number)) return cv_float(&c->pool, number + 0.0, value->origin);
    expected(c, value, path, "a finite number");
    return NULL;
}

/* As pathlib: "//" and "/./" collapse, a trailing "/" goes, "" is ".". Two leading slashes stay. */
static const char *normal_path(struct cv_pool *pool, const char *in)
{
    size_t n = 0, slashes = strspn(in, "/");
    char *out = cv_alloc(pool, strlen(in) + 2);
    for (size_t i = 0; i < (slashes == 2 ? 2u : slashes > 0 ? 1u : 0u); i++) out[n++] = '/';
    size_t root = n;
    while (*in) {
        size_t len = strcspn(in, "/");
        if (len > 0 && !(len == 1 && in[0] == '.')) {
            if (n > root) out[n++] = '/';
            memcpy(out + n, in, len);
            n += len;
        }
        in += len;
        in += strspn(in, "/");
    }
    if (n == 0) out[n++] = '.';
    out[n] = '\0';
    return out;
}

static struct cv *coerce_string(struct config_impl *c, const struct config_key *key,
                                const struct cv *value, const char *path)
{
    if (value->kind != CV_STRING) {
        expected(c, value, path, "a string");
        return NULL;
    }
    struct cv *out = cv_copy(&c->pool, value);
    if (key->type == KEY_PATH) out->string = normal_path(&c->pool, value->string);
    return out;
}

/* For messages only; lists have a handful of members. */
static const char *list_choices(struct cv_pool *pool, const char *const *choices)
{
    const char *out = "";
    for (; *choices; choices++) out = cv_text(pool, "%s%s\"%s\"", out, *out ? ", " : "", *choices);
    return out;
}

/* The table's spelling is stored, so that later comparisons need no second look at case. */
static struct cv *coerce_choice(struct config_impl *c, const struct config_key *key,
                                const struct cv *value, const char *path)
{
    bool any_case = key->flags & KEY_ANY_CASE;
    for (const char *const *choice = key->choices; value->kind == CV_STRING && *choice; choice++) {
        bool same =
            any_case ? !strcasecmp(value->string, *choice) : !strcmp(value->string, *choice);
        if (same) return cv_string(&c->pool, *choice, value->origin);
    }
    config_error(c, value, path, "%s is not one of %s", cv_show(&c->pool, value),
                 list_choices(&c->pool, key->choices));
    return NULL;
}

/* Its own message: "0..3" says more than a type. */
static struct cv *coerce_stage(struct config_impl *c, const struct config_key *key,
                               const struct cv *value, const char *path)
{
    struct cv *out = coerce_int(c, key, value, path);
    if (!out) return NULL;
    if (!out->digits && out->integer >= 0 && out->integer <= 3) return out;
    config_error(c, value, path, "%s is outside 0..3", cv_show(&c->pool, value));
    return NULL;
}

/* Lists beyond any real one keep their duplicates: looking for them would take too long. */
static bool contains(const struct cv *list, const struct cv *value)
{
    if (list->n > 1000) return false;
    for (size_t i = 0; i < list->n; i++)
        if (cv_equal(list->items[i], value)) return true;
    return false;
}

/* One string stands for a list of one. */
static struct cv *coerce_strings(struct config_impl *c, const struct cv *value, const char *path)
{
    struct cv *out = cv_new(&c->pool, CV_LIST, value->origin);
    if (value->kind == CV_STRING) {
        cv_append(&c->pool, out, cv_copy(&c->pool, value));
        return out;
    }
    bool ok = value->kind == CV_LIST;
    for (size_t i = 0; ok && i < value->n; i++) {
        ok = value->items[i]->kind == CV_STRING;
        if (ok && !contains(out, value->items[i])) cv_append(&c->pool, out, value->items[i]);
    }
    if (ok) return out;
    expected(c, value, path, "a list of strings");
    return NULL;
}

static struct cv *coerce_choices(struct config_impl *c, const struct config_key *key,
                                 const struct cv *value, const char *path)
{
    bool ok = value->kind == CV_LIST;
    for (size_t i = 0; ok && i < value->n; i++) {
        bool found = false;
        for (const char *const *choice = key->choices; *choice; choice++)
            found |= cv_is_string(value->items[i], *choice);
        ok = found;
    }
    if (ok) return cv_copy(&c->pool, value);
    config_error(c, value, path, "expected a list out of %s, got %s",
                 list_choices(&c->pool, key->choices), cv_show(&c->pool, value));
    return NULL;
}

static struct cv *coerce_int_or_auto(struct config_impl *c, const struct config_key *key,
                                     const struct cv *value, const char *path)
{
    if (value->kind != CV_STRING) return coerce_int(c, key, value, path);
    if (cv_is_string(value, CONFIG_AUTO)) return cv_copy(&c->pool, value);
    expected(c, value, path, "an integer or \"auto\"");
    return NULL;
}

static struct cv *coerce_kind(struct config_impl *c, enum cv_kind kind, const struct cv *value,
                              const char *path)
{
    if (value->kind == kind) return cv_copy(&c->pool, value);
    expected(c, value, path, kind == CV_LIST ? "a list" : "an object");
    return NULL;
}

/* ---- bounds --------------------------------------------------------------------------------- */

static const char *bounds_text(struct cv_pool *pool, const struct config_key *key)
{
    if (key->has_high && key->low_open)
        return cv_text(pool, "above %g and below %g", key->low, key->high);
    if (key->has_high) return cv_text(pool, "within %g..%g", key->low, key->high);
    return cv_text(pool, "%s %g", key->low_open ? "above" : "at least", key->low);
}

/* Written so that NaN is outside of every bound. */
static bool in_bounds(const struct config_key *key, double x)
{
    if (key->has_low && (key->low_open ? !(x > key->low) : !(x >= key->low))) return false;
    if (key->has_high && (key->high_open ? !(x < key->high) : !(x <= key->high))) return false;
    return true;
}

static struct cv *bounded(struct config_impl *c, const struct config_key *key, struct cv *out,
                          const struct cv *given, const char *path)
{
    if (!out || (out->kind != CV_INT && out->kind != CV_FLOAT) || in_bounds(key, out->real))
        return out;
    config_error(c, given, path, "%s is out of range; it must be %s", cv_show(&c->pool, given),
                 bounds_text(&c->pool, key));
    return NULL;
}

static struct cv *coerce(struct config_impl *c, const struct config_key *key,
                         const struct cv *value, const char *path)
{
    if (value->kind == CV_NULL && (key->flags & KEY_NULLABLE)) return cv_copy(&c->pool, value);
    struct cv *out = NULL;
    switch (key->type) {
    case KEY_BOOL: return coerce_bool(c, value, path);
    case KEY_INT: out = coerce_int(c, key, value, path); break;
    case KEY_FLOAT: out = coerce_float(c, key, value, path); break;
    case KEY_STRING:
    case KEY_PATH: return coerce_string(c, key, value, path);
    case KEY_CHOICE: return coerce_choice(c, key, value, path);
    case KEY_STAGE: return coerce_stage(c, key, value, path);
    case KEY_STRINGS: return coerce_strings(c, value, path);
    case KEY_CHOICES: return coerce_choices(c, key, value, path);
    case KEY_LIST: return coerce_kind(c, CV_LIST, value, path);
    case KEY_DICT: return coerce_kind(c, CV_DICT, value, path);
    case KEY_INT_OR_AUTO: out = coerce_int_or_auto(c, key, value, path); break;
    case KEY_ANY:
    case KEY_SECTION: return cv_copy(&c->pool, value);
    }
    return bounded(c, key, out, value, path);
}

/* Origin and place in the file survive the conversion: later notes point at the line. */
struct cv *config_coerce(struct config_impl *c, const struct config_key *key,
                         const struct cv *value, const char *path)
{
    struct cv *out = coerce(c, key, value, path);
    if (!out) return NULL;
    out->origin = value->origin;
    out->node = value->node;
    return out;
}
