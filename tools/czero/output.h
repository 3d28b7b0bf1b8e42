/* Checks output paths before a command writes: a file with other content, an input of the same
 * command, a folder named like a file. */
#ifndef CZ_TOOLS_CZERO_OUTPUT_H
#define CZ_TOOLS_CZERO_OUTPUT_H

#include "base/status.h"
#include "formats/file_io.h"
#include "tools/czero/args.h"

#include <stdio.h>

/* What a file of each kind begins with. */
enum output_kind {
    OUTPUT_CURVE = 0,   /* --curve */
    OUTPUT_METRICS,     /* --metrics */
    OUTPUT_PICTURE,     /* SVG or PNG */
    OUTPUT_CONFIG,      /* a ds_config.json */
    OUTPUT_PREDICTIONS, /* of czero predict */
    OUTPUT_NUMPY,       /* .npy */
    OUTPUT_CHATS,       /* conversations, as JSON lines */
    OUTPUT_VECTORS      /* of czero embed --json */
};

/* Data that the command reads; a folder stands for the files in it. Files of models are told by
 * what they hold. */
#define OUTPUT_INPUTS_MAX (2 * ARG_LIST_MAX + 16)
struct output_inputs {
    const char *paths[OUTPUT_INPUTS_MAX];
    size_t n;
};
void output_add_input(struct output_inputs *in, const char *path); /* NULL: nothing */
void output_add_inputs(struct output_inputs *in, const struct arg_list *paths);

/* CZ_INVALID: the file is one of the inputs, by its inode. */
cz_status output_check_inputs(const char *option, const char *path,
                              const struct output_inputs *inputs);

/* A file that may be written: it is not there, empty, no regular file (/dev/stdout), or one that
 * this option wrote before. inputs may be NULL. `option` is for the sentence. Errors: CZ_INVALID
 * (an input, a folder), CZ_CORRUPT (another kind of file; it stays as it is). */
cz_status output_check_file(const char *option, const char *path, enum output_kind kind,
                            const struct output_inputs *inputs);

/* A table that a run began: CZ_INVALID where it has rows, of another run; NULL and files that are
 * not there have none. `option` is for the sentence. */
cz_status output_check_rows(const char *option, const char *path);

/* The same of a folder of TensorBoard's events. */
cz_status output_check_events(const char *option, const char *dir);

/* Such a table gets the name FILE.earlier-N, the first that is free, and a line of the log says so.
 * Errors: CZ_IO. */
cz_status output_set_rows_aside(const char *option, const char *path);

/* Standard output (path NULL), or a file that keeps its content until all is written. Pipes and
 * devices are written directly. */
struct output_file {
    FILE *stream;
    const char *path;
    struct file_durable file;
};
cz_status output_open(struct output_file *f, const char *path);

/* Puts the file into its place if `st`, that of the writing, is CZ_OK. Returns the first error.
 * Accepts a zeroed one. */
cz_status output_close(struct output_file *f, cz_status st);

/* A folder that files may be written into: it is there, or its name is not that of a file, such as
 * model.safetensors. CZ_INVALID. */
cz_status output_check_folder(const char *option, const char *path);

/* Whether two names are of one folder; a missing one (or NULL) is none. */
bool output_is_same(const char *a, const char *b);

/* Whether a folder holds weights that transformers, or czero, would load. */
bool output_holds_model(const char *dir);

/* A folder that a model, or an adapter, may be written into: it holds none, or `force`.
 * CZ_INVALID. */
struct output_model {
    const char *option, *dir;
    const char *model, *adapter; /* what the command reads, for the sentence; may be NULL */
    bool force;
};
cz_status output_check_model(const struct output_model *out);

#endif
