/* Command-line options from a table: the same rows parse, check and print the help, the manual page
 * (manual.h) and the completion of shells (completion.h). */
#ifndef CZ_TOOLS_ARGS_H
#define CZ_TOOLS_ARGS_H

#include "base/dtype.h"

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
    ARG_REST,   /* char **: the first word that is no option, in argv, and all after it; a "--" in
                   front of it is left out. Parsing ends there. */
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
    const char *alone; /* the value when another option follows, or nothing; NULL: one is needed */
};

struct arg_command {
    const char *name;    /* "czero train" */
    const char *summary; /* one sentence */
    const struct arg_spec *specs;
    size_t n_specs;
    const char *epilogue; /* paragraphs below the options; may be NULL, as all that follow */
    const char *examples; /* lines of commands, indented by two */
    const char *exits;    /* exit codes, where they are not czero's */
    const char *one_of;   /* options of which one is required: "--steps|--epochs" */
    const struct arg_command *actions; /* "czero config show", … */
    size_t n_actions;
    bool silent; /* prints neither help nor sentences: another rank does */
};

enum args_result { ARGS_OK = 0, ARGS_HELP = 1, ARGS_BAD = 2 };

/* A row of all commands that read data. */
#define ENCODING_OPTION(field_offset)                                                              \
    {                                                                                              \
        "--encoding", ARG_STRING, (field_offset), "NAME",                                          \
            "encoding of the data, such as gb18030, latin-1, utf-16 (default: utf-8)", 0, false    \
    }

#define SKIP_UNLABELLED_OPTION(field_offset)                                                       \
    {                                                                                              \
        "--skip-unlabelled", ARG_FLAG, (field_offset), NULL,                                       \
            "leave out rows without a label (default: they are an error)", 0, false                \
    }

/* The dtype of an option "fp32|bf16|fp16"; NULL (not given): otherwise. */
enum cz_dtype args_dtype(const char *value, enum cz_dtype otherwise);

/* Fill `options` (zeroed or preset with defaults by the caller) from argv[1…]. ARGS_HELP: --help or
 * --version was asked for and printed on stdout (exit 0). ARGS_BAD: a sentence went to stderr (exit
 * 2). Both "--name value" and "--name=value" are accepted; -v, --verbose, -S, --strict and
 * -V, --version are options of every command. Strings are borrowed from argv. */
enum args_result args_parse(const struct arg_command *command, int argc, char **argv,
                            void *options);

/* How often -v was given; 0 before args_parse(). */
int args_verbosity(void);

/* The help text on stdout. */
void args_print_help(const struct arg_command *command);

/* Pieces of help, for manual pages and completion: what follows the name in the usage line; an
 * explanation with its list; " …" behind what takes several words, else "". */
void args_usage(const struct arg_command *command, char *buf, size_t nbytes);
const char *args_help_of(const struct arg_spec *spec, char *buf, size_t nbytes);
const char *args_more(const struct arg_spec *spec);

/* The options that every command has; `values` is the short form. */
#define ARGS_N_COMMON 4
extern const struct arg_spec args_common[ARGS_N_COMMON];

/* args_foreign.c: what other programs call an option (name; with dashes), or how they write the
 * value of one that czero has, too. option NULL: the sentence says all. */
struct arg_foreign {
    const char *name, *option, *sentence, *value;
};
extern const struct arg_foreign args_foreign[];
extern const size_t args_n_foreign;

#endif
