/* Command-line options from a table: parsing, checks, messages and the help text. One table per
 * command makes all four, so that help cannot disagree with what is parsed. */
#include "args.h"

#include "base/printable.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMNS 80 /* the longest line of a help text */

static void complain(const struct arg_command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Silent parsing exists for commands that try several tables on the same words. */
static void complain(const struct arg_command *c, const char *fmt, ...)
{
    va_list ap;
    if (c->silent) return;
    va_start(ap, fmt);
    printable_vprint(stderr, fmt, ap);
    va_end(ap);
}

/* A lone "-" is a word: it often means standard input. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

static void *field_of(const struct arg_spec *spec, void *options)
{
    return (char *)options + spec->offset;
}

static const struct arg_spec *find_option(const struct arg_command *c, const char *name, size_t len)
{
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind != ARG_HEADING && s->name[0] == '-' && strlen(s->name) == len &&
            strncmp(s->name, name, len) == 0)
            return s;
    }
    return NULL;
}

/* The last positional of kind ARG_WORDS takes all words that are left. */
static const struct arg_spec *find_positional(const struct arg_command *c, size_t wanted)
{
    size_t position = 0;
    for (size_t i = 0; i < c->n_specs; i++)
        if (c->specs[i].kind != ARG_HEADING && c->specs[i].name[0] != '-') {
            if (position == wanted || c->specs[i].kind == ARG_WORDS) return &c->specs[i];
            position++;
        }
    return NULL;
}

static bool choice_contains(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strcspn(p, "|") == len && strncmp(p, value, len) == 0) return true;
    return false;
}

static bool bad(const struct arg_command *c, const char *what, const char *value,
                const char *wanted)
{
    complain(c, "%s: %s: \"%s\" is not %s\n", c->name, what, value, wanted);
    return false;
}

/* Numbers are parsed to the last character: "10x" or an overflow must not become 10. */
static bool store_int(const struct arg_command *c, const struct arg_spec *s, const char *value,
                      int64_t *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0) return bad(c, s->name, value, "a whole number");
    if (n < s->min) {
        complain(c, "%s: %s: %lld is less than %lld\n", c->name, s->name, n, (long long)s->min);
        return false;
    }
    *out = n;
    return true;
}

/* NaN and infinity are refused here, so that no command has to. */
static bool store_double(const struct arg_command *c, const struct arg_spec *s, const char *value,
                         double *out)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(x)) return bad(c, s->name, value, "a number");
    *out = x;
    return true;
}

static bool store_item(const struct arg_command *c, const struct arg_spec *s, const char *value,
                       struct arg_list *list)
{
    if (list->n == ARG_LIST_MAX) {
        complain(c, "%s: %s: more than %d values\n", c->name, s->name, ARG_LIST_MAX);
        return false;
    }
    list->items[list->n++] = value;
    return true;
}

/* ARG_CHOICE is checked before it is stored, then treated as a string. */
static bool store_value(const struct arg_command *c, const struct arg_spec *s, const char *value,
                        void *options)
{
    void *field = field_of(s, options);
    switch (s->kind) {
    case ARG_INT: return store_int(c, s, value, field);
    case ARG_DOUBLE: return store_double(c, s, value, field);
    case ARG_CHOICE:
        if (!choice_contains(s->values, value)) {
            complain(c, "%s: %s: \"%s\" is not one of %s\n", c->name, s->name, value, s->values);
            return false;
        }
        /* fall through */
    case ARG_STRING: *(const char **)field = value; return true;
    case ARG_LIST:
    case ARG_WORDS: return store_item(c, s, value, field);
    case ARG_FLAG:
    case ARG_HEADING: break;
    }
    return false;
}

/* The option that shares the longest beginning with a mistyped one; "--" and one more letter prove
 * nothing. */
static const char *nearest_option(const struct arg_command *c, const char *word)
{
    const char *best = NULL;
    size_t best_common = 3; /* "--" and one letter say nothing */
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind == ARG_HEADING || s->name[0] != '-') continue;
        size_t common = 0;
        while (s->name[common] && s->name[common] == word[common]) common++;
        if (common > best_common) {
            best_common = common;
            best = s->name;
        }
    }
    return best;
}

/* Take the option at argv[i] and its values; gives the index of the next word, or -1. */
static int take_option(const struct arg_command *c, int argc, char **argv, int i, void *options)
{
    const char *word = argv[i];
    bool is_short = word[1] != '-' && strlen(word) > 2; /* -tTAG */
    const char *equals = strchr(word, '=');             /* the value is behind it */
    if (is_short) equals = word[2] == '=' ? word + 2 : word + 1;
    size_t len = is_short ? 2 : equals ? (size_t)(equals - word) : strlen(word);
    const struct arg_spec *s = find_option(c, word, len);
    if (!s) {
        /* The nearest option is named when a typo is likely. */
        const char *near = nearest_option(c, word);
        if (near)
            complain(c, "%s: unknown option %s; did you mean %s?\n", c->name, word, near);
        else
            complain(c, "%s: unknown option %s (see %s --help)\n", c->name, word, c->name);
        return -1;
    }
    if (s->kind == ARG_FLAG) {
        if (equals) {
            complain(c, "%s: %s takes no value\n", c->name, s->name);
            return -1;
        }
        *(bool *)field_of(s, options) = true;
        return i + 1;
    }
    if (equals) return store_value(c, s, equals + 1, options) ? i + 1 : -1;
    if (i + 1 >= argc) {
        complain(c, "%s: %s needs a value (%s)\n", c->name, s->name, s->values);
        return -1;
    }
    if (!store_value(c, s, argv[i + 1], options)) return -1;
    i += 2;
    while (s->kind == ARG_WORDS && i < argc && !is_option(argv[i]))
        if (!store_value(c, s, argv[i++], options)) return -1;
    return i;
}

static bool is_set(const struct arg_spec *s, const void *options)
{
    const void *field = (const char *)options + s->offset;
    switch (s->kind) {
    case ARG_STRING:
    case ARG_CHOICE: return *(const char *const *)field != NULL;
    case ARG_LIST:
    case ARG_WORDS: return ((const struct arg_list *)field)->n > 0;
    case ARG_INT: return *(const int64_t *)field >= s->min; /* a required number starts below min */
    case ARG_DOUBLE:
    case ARG_FLAG:
    case ARG_HEADING: break;
    }
    return true;
}

/* Options and positionals may come in any order. Required ones are checked at the end, so that
 * --help works without them. */
enum args_result args_parse(const struct arg_command *c, int argc, char **argv, void *options)
{
    size_t n_positional = 0;
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            if (!c->silent) args_print_help(c);
            return ARGS_HELP;
        }
        if (is_option(argv[i])) {
            i = take_option(c, argc, argv, i, options);
            if (i < 0) return ARGS_BAD;
            continue;
        }
        const struct arg_spec *s = find_positional(c, n_positional++);
        if (!s) {
            complain(c, "%s: unexpected word \"%s\"\n", c->name, argv[i]);
            return ARGS_BAD;
        }
        if (!store_value(c, s, argv[i++], options)) return ARGS_BAD;
    }
    for (size_t i = 0; i < c->n_specs; i++)
        if (c->specs[i].required && !is_set(&c->specs[i], options)) {
            complain(c, "%s: %s is missing (see %s --help)\n", c->name, c->specs[i].name, c->name);
            return ARGS_BAD;
        }
    return ARGS_OK;
}

/* Columns of UTF-8 text: bytes that begin a character. */
static size_t columns(const char *text, size_t nbytes)
{
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Print `text` from column `indent` on, wrapped at spaces to lines of HELP_COLUMNS. */
static void print_wrapped(const char *text, int indent)
{
    size_t at = (size_t)indent;
    for (bool first = true; *text; first = false) {
        size_t n = strcspn(text, " "), wide = columns(text, n);
        if (!first && at + 1 + wide > HELP_COLUMNS) {
            printf("\n%*s", indent, "");
            at = (size_t)indent;
        } else if (!first) {
            printf(" ");
            at++;
        }
        printf("%.*s", (int)n, text);
        at += wide;
        text += n + (text[n] == ' ');
    }
    printf("\n");
}

/* Two passes over the table: the usage line holds what is required, the list below it explains
 * everything. */
void args_print_help(const struct arg_command *c)
{
    /* Required words stand in the usage line, options in the table below it. */
    printf("Usage: %s", c->name);
    bool any_optional = false;
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind == ARG_HEADING) continue;
        const char *more = s->kind == ARG_WORDS ? " …" : "";
        if (s->name[0] != '-')
            printf(s->required ? " %s%s" : " [%s%s]", s->name, more);
        else if (s->required)
            printf(" %s %s%s", s->name, s->values, more);
        else
            any_optional = true;
    }
    printf("%s\n\n%s\n", any_optional ? " [options]" : "", c->summary);
    printf("\n");
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind == ARG_HEADING) {
            printf("\n%s\n", s->help);
            continue;
        }
        char left[128], text[768];
        const char *values = s->name[0] == '-' && s->values ? s->values : "";
        snprintf(left, sizeof left, "%s%s%s%s", s->name, *values ? " " : "", values,
                 s->kind == ARG_WORDS ? " …" : "");
        size_t wide = columns(left, strlen(left));
        if (wide > 28)
            printf("  %s\n%31s", left, "");
        else
            printf("  %s%*s", left, (int)(29 - wide), "");
        size_t used = (size_t)snprintf(text, sizeof text, "%s", s->help);
        if (s->list) s->list(text + used, sizeof text - used);
        print_wrapped(text, 31);
    }
    printf("  %-28s %s\n", "--help", "show this text");
    if (c->epilogue) printf("\n%s\n", c->epilogue);
}
