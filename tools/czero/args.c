/* Command-line options from a table: parsing, checks, messages and the help text. One table per
 * command makes all four, so that help cannot disagree with what is parsed. */
#include "args.h"

#include "base/status.h"
#include "base/text/nearest.h"
#include "terminal.h"
#include "tool.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define HELP_COLUMNS  80 /* the longest line of a help text */
#define ASCII_COLUMNS 76 /* before "…" becomes "...", twice */

/* Silent parsing exists for commands that every rank parses: one of them complains. */
#define COMPLAIN(c, ...)                                                                           \
    do {                                                                                           \
        if (!(c)->silent) tool_complain((c)->name, __VA_ARGS__);                                   \
    } while (0)

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

/* The last positional of kind ARG_WORDS or ARG_REST takes all words that are left. */
static const struct arg_spec *find_positional(const struct arg_command *c, size_t wanted)
{
    size_t position = 0;
    for (size_t i = 0; i < c->n_specs; i++)
        if (c->specs[i].kind != ARG_HEADING && c->specs[i].name[0] != '-') {
            if (position == wanted || c->specs[i].kind == ARG_WORDS || c->specs[i].kind == ARG_REST)
                return &c->specs[i];
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

/* What another program means by this value; a value that ends in a dot is a beginning. NULL: not
 * known. */
static const char *foreign_value(const char *name, const char *value)
{
    for (size_t i = 0; i < args_n_foreign; i++) {
        const char *theirs = args_foreign[i].value;
        if (!theirs || strcmp(name, args_foreign[i].name) != 0) continue;
        const size_t n = strlen(theirs);
        if (theirs[n - 1] == '.' ? strncmp(value, theirs, n) == 0 : strcmp(value, theirs) == 0)
            return args_foreign[i].sentence;
    }
    return NULL;
}

static bool bad(const struct arg_command *c, const char *what, const char *value,
                const char *wanted)
{
    const char *sentence = foreign_value(what, value);
    COMPLAIN(c, "%s: \"%s\" is not %s%s%s", what, value, wanted, sentence ? "; " : "",
             sentence ? sentence : "");
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
        COMPLAIN(c, "%s: %lld is less than %lld", s->name, n, (long long)s->min);
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
        COMPLAIN(c, "%s: more than %d values", s->name, ARG_LIST_MAX);
        return false;
    }
    list->items[list->n++] = value;
    return true;
}

/* "val_acc", as Lightning says, is closest to accuracy. */
static void complain_choice(const struct arg_command *c, const struct arg_spec *s,
                            const char *value)
{
    static const char *const prefixes[] = {"val_", "valid_", "eval_", "test_", "train_"};
    const char *wanted = value;
    for (size_t i = 0; i < CZ_ARRAY_LEN(prefixes); i++)
        if (strncmp(value, prefixes[i], strlen(prefixes[i])) == 0)
            wanted = value + strlen(prefixes[i]);
    struct nearest search = nearest_begin(strcmp(wanted, "acc") == 0 ? "accuracy" : wanted);
    char choices[512], *rest = choices;
    snprintf(choices, sizeof choices, "%s", s->values);
    for (char *item; (item = strsep(&rest, "|"));) nearest_consider(&search, item);
    const char *sentence = foreign_value(s->name, value);
    if (sentence)
        COMPLAIN(c, "%s: \"%s\" is not one of %s; %s", s->name, value, s->values, sentence);
    else if (search.best)
        COMPLAIN(c, "%s: \"%s\" is not one of %s; did you mean %s?", s->name, value, s->values,
                 search.best);
    else
        COMPLAIN(c, "%s: \"%s\" is not one of %s", s->name, value, s->values);
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
            complain_choice(c, s, value);
            return false;
        }
        /* fall through */
    case ARG_STRING: *(const char **)field = value; return true;
    case ARG_LIST:
    case ARG_WORDS: return store_item(c, s, value, field);
    case ARG_REST: /* args_parse() stores it */
    case ARG_FLAG:
    case ARG_HEADING: break;
    }
    return false;
}

enum cz_dtype args_dtype(const char *value, enum cz_dtype otherwise)
{
    if (!value) return otherwise;
    return strcmp(value, "bf16") == 0   ? DTYPE_BF16
           : strcmp(value, "fp16") == 0 ? DTYPE_F16
                                        : DTYPE_F32;
}

/* ---- options of other programs -------------------------------------------------------------- */

/* Of the rows with its name the first whose option the command has, or that has none. False: no
 * other program has this option, or nothing here stands for it. */
static bool complain_foreign(const struct arg_command *c, const char *word, const char *name)
{
    for (size_t i = 0; i < args_n_foreign; i++) {
        const char *option = args_foreign[i].option, *sentence = args_foreign[i].sentence;
        if (args_foreign[i].value || strcmp(name, args_foreign[i].name) != 0) continue;
        if (!option)
            COMPLAIN(c, "unknown option %s: %s", word, sentence);
        else if (find_option(c, option, strlen(option)))
            COMPLAIN(c, "unknown option %s; did you mean %s?", word, sentence ? sentence : option);
        else
            continue;
        return true;
    }
    return false;
}

/* Other programs' options come first: what is nearest to "--num_gpus" is not what it means. */
static void complain_unknown(const struct arg_command *c, const char *word)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    const struct arg_spec *dashed = find_option(c, name, strlen(name)); /* --seq_len */
    if (!dashed && complain_foreign(c, word, name)) return;
    struct nearest search = nearest_begin(name + strspn(name, "-"));
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind != ARG_HEADING && strncmp(s->name, "--", 2) == 0)
            nearest_consider(&search, s->name + 2);
    }
    if (search.best)
        COMPLAIN(c, "unknown option %s; did you mean --%s?", word, search.best);
    else
        COMPLAIN(c, "unknown option %s (see %s --help)", word, c->name);
}

/* Other programs have "--packing true"; a file may be called so. */
static bool is_truth(const char *word)
{
    return (strcasecmp(word, "true") == 0 || strcasecmp(word, "false") == 0) &&
           access(word, F_OK) != 0;
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
        complain_unknown(c, word);
        return -1;
    }
    if (s->kind == ARG_FLAG) {
        const char *value = equals                                  ? equals + 1
                            : i + 1 < argc && is_truth(argv[i + 1]) ? argv[i + 1]
                                                                    : NULL;
        if (value) {
            COMPLAIN(c, "%s takes no value: %s", s->name,
                     strcasecmp(value, "false") == 0 ? "leave the option out" : "remove the value");
            return -1;
        }
        *(bool *)field_of(s, options) = true;
        return i + 1;
    }
    if (equals) return store_value(c, s, equals + 1, options) ? i + 1 : -1;
    if (s->alone && (i + 1 >= argc || is_option(argv[i + 1])))
        return store_value(c, s, s->alone, options) ? i + 1 : -1;
    if (i + 1 >= argc) {
        COMPLAIN(c, "%s needs a value (%s)", s->name, s->values);
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
    case ARG_REST: return *(char **const *)field != NULL;
    case ARG_INT: return *(const int64_t *)field >= s->min; /* a required number starts below min */
    case ARG_DOUBLE:
        return !isnan(*(const double *)field); /* a number that may be left out is NAN */
    case ARG_FLAG:
    case ARG_HEADING: break;
    }
    return true;
}

static bool has_one_of(const struct arg_command *c, const void *options)
{
    for (size_t i = 0; i < c->n_specs; i++)
        if (c->specs[i].kind != ARG_HEADING && choice_contains(c->one_of, c->specs[i].name) &&
            is_set(&c->specs[i], options))
            return true;
    return false;
}

/* All that is missing, in one sentence. */
static bool has_required(const struct arg_command *c, const void *options)
{
    char one_of[128] = "";
    const char *missing[32];
    size_t n = 0, used = 0;
    for (size_t i = 0; i < c->n_specs && n + 1 < CZ_ARRAY_LEN(missing); i++)
        if (c->specs[i].required && !is_set(&c->specs[i], options)) missing[n++] = c->specs[i].name;
    if (c->one_of && !has_one_of(c, options)) {
        for (const char *p = c->one_of; *p && used + 5 < sizeof one_of; p++)
            used += (size_t)snprintf(one_of + used, sizeof one_of - used, *p == '|' ? " or " : "%c",
                                     *p);
        missing[n++] = one_of;
    }
    if (n == 0) return true;
    char text[512] = "";
    used = 0;
    for (size_t i = 0; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 i == 0       ? ""
                                 : i + 1 == n ? " and "
                                              : ", ",
                                 missing[i]);
    COMPLAIN(c, "%s %s missing (see %s --help)", text, n == 1 ? "is" : "are", c->name);
    return false;
}

/* ---- options of every command --------------------------------------------------------------- */

const struct arg_spec args_common[ARGS_N_COMMON] = {
    {"--help", ARG_FLAG, 0, "-h", "show this text"},
    {"--verbose", ARG_FLAG, 0, "-v", "log more; twice, still more (see CZERO_LOG)"},
    {"--strict", ARG_FLAG, 0, "-S",
     "an error, not a warning, where a file holds what czero ignores"},
    {"--version", ARG_FLAG, 0, "-V", "print the version"},
};

static int verbosity;

int args_verbosity(void)
{
    return verbosity;
}

/* "-v" and "--verbose" count one, "-vv" two; 0: another option. */
static int verbose_count(const char *word)
{
    if (strcmp(word, "--verbose") == 0) return 1;
    const size_t n = strspn(word + 1, "v");
    return word[0] == '-' && n > 0 && word[n + 1] == '\0' ? (int)n : 0;
}

static bool is_strict(const char *word)
{
    return strcmp(word, "--strict") == 0 || strcmp(word, "-S") == 0;
}

/* ARGS_HELP: everything has been printed. */
static enum args_result common_option(const struct arg_command *c, const char *word)
{
    const bool help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
    const bool version = strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0;
    if (help && !c->silent) args_print_help(c);
    if (version && !c->silent) tool_print_version();
    return help || version ? ARGS_HELP : ARGS_OK;
}

/* Commands take their model and their data by options. */
static void complain_word(const struct arg_command *c, const char *word)
{
    struct stat info;
    const bool is_there = stat(word, &info) == 0;
    const char *option = !is_there ? NULL : S_ISDIR(info.st_mode) ? "--model" : "--data";
    if (option && find_option(c, option, strlen(option)))
        COMPLAIN(c, "unexpected word \"%s\"; did you mean %s %s?", word, option, word);
    else
        COMPLAIN(c, "unexpected word \"%s\"", word);
}

/* Options and positionals may come in any order. Required ones are checked at the end, so that
 * --help works without them. */
enum args_result args_parse(const struct arg_command *c, int argc, char **argv, void *options)
{
    size_t n_positional = 0;
    verbosity = 0;
    for (int i = 1; i < argc;) {
        const struct arg_spec *s = find_positional(c, n_positional);
        const bool has_rest = s && s->kind == ARG_REST;
        const int n_verbose = verbose_count(argv[i]);
        if (common_option(c, argv[i]) == ARGS_HELP) return ARGS_HELP;
        if (n_verbose > 0) {
            verbosity += n_verbose;
            i++;
            continue;
        }
        if (is_strict(argv[i])) {
            cz_set_strict(true);
            /* A command whose config is strict, too, has a row of its own. */
            const struct arg_spec *own = find_option(c, "--strict", strlen("--strict"));
            if (own) *(bool *)field_of(own, options) = true;
            i++;
            continue;
        }
        const bool is_mark = has_rest && strcmp(argv[i], "--") == 0;
        if (is_option(argv[i]) && !is_mark) {
            i = take_option(c, argc, argv, i, options);
            if (i < 0) return ARGS_BAD;
            continue;
        }
        if (has_rest) {
            i += is_mark;
            if (i < argc) *(char ***)field_of(s, options) = argv + i;
            break;
        }
        n_positional++;
        if (!s) {
            complain_word(c, argv[i]);
            return ARGS_BAD;
        }
        if (!store_value(c, s, argv[i++], options)) return ARGS_BAD;
    }
    return has_required(c, options) ? ARGS_OK : ARGS_BAD;
}

/* Columns of UTF-8 text: bytes that begin a character. */
static size_t columns(const char *text, size_t nbytes)
{
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Print `text` from column `indent` on, wrapped at spaces. */
static void print_wrapped(FILE *out, const char *text, size_t indent)
{
    terminal_put_words(out, text, strlen(text), indent, indent,
                       terminal_is_utf8() ? HELP_COLUMNS : ASCII_COLUMNS);
    fputc('\n', out);
}

const char *args_more(const struct arg_spec *s)
{
    if (s->kind != ARG_WORDS && s->kind != ARG_REST) return "";
    return terminal_is_utf8() ? " …" : " ...";
}

void args_usage(const struct arg_command *c, char *buf, size_t nbytes)
{
    bool any_optional = false;
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < c->n_specs && used < nbytes; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind == ARG_HEADING) continue;
        if (s->name[0] == '-' && !s->required) {
            any_optional = true;
            continue;
        }
        if (s->kind == ARG_REST && any_optional && used < nbytes) {
            used += (size_t)snprintf(buf + used, nbytes - used, " [options]");
            any_optional = false; /* behind it they would be the command's */
        }
        if (used >= nbytes) break;
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%s%s%s%s%s",
                                 s->required ? " " : " [", s->name, s->name[0] == '-' ? " " : "",
                                 s->name[0] == '-' ? s->values : "", args_more(s),
                                 s->required ? "" : "]");
    }
    if (c->n_actions > 0 && used < nbytes)
        used += (size_t)snprintf(buf + used, nbytes - used, " ACTION");
    if ((any_optional || c->n_actions > 0) && used < nbytes)
        snprintf(buf + used, nbytes - used, " [options]");
}

/* What stands left of the explanation: "--model DIR|PRESET". */
static void print_row(FILE *out, const char *left, const char *help)
{
    size_t wide = columns(left, strlen(left));
    if (wide > 28)
        fprintf(out, "  %s\n%31s", left, "");
    else
        fprintf(out, "  %s%*s", left, (int)(29 - wide), "");
    print_wrapped(out, help, 31);
}

const char *args_help_of(const struct arg_spec *s, char *buf, size_t nbytes)
{
    size_t used = (size_t)snprintf(buf, nbytes, "%s", s->help);
    if (s->list && used < nbytes) s->list(buf + used, nbytes - used);
    return buf;
}

/* Choices that are too many for a line go to the end of the help: "…; one of a, b, c". */
static const char *move_choices(const char *values, char *text, size_t nbytes)
{
    size_t n = strlen(text);
    n += (size_t)snprintf(text + n, nbytes - n, "; one of ");
    for (; *values && n + 3 < nbytes; values++) {
        text[n++] = *values == '|' ? ',' : *values;
        if (*values == '|') text[n++] = ' ';
    }
    text[n] = '\0';
    return "CHOICE";
}

static void print_help(FILE *out, const struct arg_command *c)
{
    char usage[256], left[128], text[768];
    args_usage(c, usage, sizeof usage);
    fprintf(out, "Usage: %s%s\n\n%s\n\n", c->name, usage, c->summary);
    for (size_t i = 0; i < c->n_specs; i++) {
        const struct arg_spec *s = &c->specs[i];
        if (s->kind == ARG_HEADING) {
            fprintf(out, "\n%s\n", s->help);
            continue;
        }
        const char *values = s->name[0] == '-' && s->values ? s->values : "";
        args_help_of(s, text, sizeof text);
        if (s->kind == ARG_CHOICE && strlen(s->name) + strlen(values) > HELP_COLUMNS - 3)
            values = move_choices(values, text, sizeof text);
        snprintf(left, sizeof left, "%s%s%s%s", s->name, *values ? " " : "", values, args_more(s));
        print_row(out, left, text);
    }
    for (size_t i = 0; i < c->n_actions; i++)
        print_row(out, strrchr(c->actions[i].name, ' ') + 1, c->actions[i].summary);
    for (size_t i = 0; i < ARGS_N_COMMON; i++) {
        snprintf(left, sizeof left, "%s, %s", args_common[i].values, args_common[i].name);
        print_row(out, left, args_common[i].help);
    }
    if (c->epilogue) fprintf(out, "\n%s\n", c->epilogue);
    if (c->examples) fprintf(out, "\nExamples:\n%s\n", c->examples);
    if (c->exits) fprintf(out, "\nExit codes: %s\n", c->exits);
}

/* Made in memory first, for readers without UTF-8. */
void args_print_help(const struct arg_command *c)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);
    if (out) print_help(out, c);
    if (out && fclose(out) == 0) terminal_put(stdout, text);
    free(text);
}
