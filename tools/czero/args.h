/* Command-line options from a table: the same rows parse, check and print the help. */
#ifndef CZ_TOOLS_ARGS_H
#define CZ_TOOLS_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_kind {
    ARG_FLAG,   /* bool: present or not */
    ARG_STRING, /* const char * */
    ARG_INT,    /* int64_t, decimal, at least arg_spec.min */
    ARG_DOUBLE, /* double, finite */
    ARG_CHOICE, /* const char *: one of arg_spec.values, separated by '|' */
    ARG_LIST,   /* struct arg_list: one value per use of the option */
    ARG_WORDS,  /* struct arg_list: all following words up to the next option; repeatable */
    ARG_HEADING /* no option: a line in the help */
};

#define ARG_LIST_MAX 256

struct arg_list {
    const char *items[ARG_LIST_MAX + 1]; /* NULL-terminated */
    size_t n;
};

struct arg_spec {
    const char *name; /* "--steps"; "FILE" (no dash): the next positional word, in table order */
    enum arg_kind kind;
    size_t offset;      /* of the field in the options struct */
    const char *values; /* placeholder in the help ("N"), or the choices */
    const char *help;
    int64_t min; /* ARG_INT */
    bool required;
    const char *(*list)(char *buf, size_t nbytes); /* appended to `help`; NULL: nothing */
};

struct arg_command {
    const char *name;    /* "czero train" */
    const char *summary; /* one sentence */
    const struct arg_spec *specs;
    size_t n_specs;
    const char *epilogue; /* examples, exit codes; may be NULL */
    bool silent;          /* prints neither help nor sentences: another rank does */
};

enum args_result { ARGS_OK = 0, ARGS_HELP = 1, ARGS_BAD = 2 };

/* Fill `options` (zeroed or preset with defaults by the caller) from argv[1…]. ARGS_HELP: --help
 * was asked for and printed on stdout (exit 0). ARGS_BAD: a sentence went to stderr (exit 2). Both
 * "--name value" and "--name=value" are accepted. Strings are borrowed from argv. */
enum args_result args_parse(const struct arg_command *command, int argc, char **argv,
                            void *options);

/* The help text on stdout. */
void args_print_help(const struct arg_command *command);

#endif
