/* zero_to_fp32: consolidates a folder of DeepSpeed's shards to fp32 weights. It has the options of
 * DeepSpeed's script of that name, with the same spelling (underscores), and more: scripts that
 * call the original keep working. */
#include "base/clock.h"

#include "base/dtype.h"
#include "base/printable.h"
#include "base/status.h"
#include "checkpoint/read/checkpoint.h"
#include "details.h"
#include "tools/czero/args.h"
#include "tools/czero/bar.h"
#include "tools/czero/tool.h"
#include <czero/checkpoint.h>

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

struct options {
    const char *dir, *out_dir, *tag, *max_shard_size, *dtype;
    bool safetensors, exclude_frozen, debug, verify, quiet;
};

#define FIELD(name) offsetof(struct options, name)

static const struct arg_spec specs[] = {
    {"CHECKPOINT_DIR", ARG_STRING, FIELD(dir), NULL,
     "checkpoint folder, as passed to save_checkpoint(), or the folder of one tag", 0, true},
    {"OUTPUT_DIR", ARG_STRING, FIELD(out_dir), NULL, "output folder; created if missing", 0, true},
    {"--max_shard_size", ARG_STRING, FIELD(max_shard_size), "SIZE",
     "start a new file before one exceeds SIZE, such as 5GB, 200MB, none (default: 5GB)", 0, false},
    {"--safe_serialization", ARG_FLAG, FIELD(safetensors), NULL,
     "write model.safetensors instead of pytorch_model.bin", 0, false},
    {"--tag", ARG_STRING, FIELD(tag), "TAG",
     "tag, such as global_step1 (default: the one that `latest` names)", 0, false},
    {"-t", ARG_STRING, FIELD(tag), "TAG", "same as --tag", 0, false},
    {"--exclude_frozen_parameters", ARG_FLAG, FIELD(exclude_frozen), NULL,
     "omit weights that were not trained", 0, false},
    {"--dtype", ARG_CHOICE, FIELD(dtype), "float32|fp32|float16|fp16|bfloat16|bf16",
     "type of the written weights (default: fp32)", 0, false},
    {"--verify", ARG_FLAG, FIELD(verify), NULL,
     "read the output and compare every tensor with the shards", 0, false},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print errors only", 0, false},
    {"--debug", ARG_FLAG, FIELD(debug), NULL,
     "print the location of every tensor in the shards to stderr", 0, false},
    {"-d", ARG_FLAG, FIELD(debug), NULL, "same as --debug", 0, false},
    {"--version", ARG_HEADING, 0, NULL, "  --version                    print the version", 0,
     false},
};

static const struct arg_command command = {
    .name = "zero_to_fp32",
    .summary = "Consolidate the shards of a DeepSpeed checkpoint (stages 0-3) to fp32 weights.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "No file appears in OUTPUT_DIR before the whole output is complete and on disk.\n"
                "The memory needed does not depend on the size of the model.\n"
                "\n"
                "Examples:\n"
                "  zero_to_fp32 checkpoints/ out/\n"
                "  zero_to_fp32 checkpoints/ out/ -t global_step100 --safe_serialization\n"
                "\n"
                "Exit codes: 0 success, 1 run-time failure, 2 usage (no such folder or tag),\n"
                "            3 out of memory, 4 damaged or incomplete checkpoint.",
};

/* The long names are torch's, the short ones czero's. */
static enum cz_dtype parse_dtype(const char *name)
{
    if (strcmp(name, "float16") == 0 || strcmp(name, "fp16") == 0) return DTYPE_F16;
    if (strcmp(name, "bfloat16") == 0 || strcmp(name, "bf16") == 0) return DTYPE_BF16;
    return DTYPE_F32;
}

/* Options as the library takes them; only --max_shard_size can be malformed. */
static cz_status to_library(const struct options *o, struct bar *bar,
                            struct cz_consolidate_options *out)
{
    *out = (struct cz_consolidate_options){
        .size = sizeof(struct cz_consolidate_options),
        .dir = o->dir,
        .tag = o->tag,
        .out_dir = o->out_dir,
        .format = o->safetensors ? CZ_CONSOLIDATE_SAFETENSORS : CZ_CONSOLIDATE_BIN,
        .exclude_frozen = o->exclude_frozen,
        .has_dtype = o->dtype != NULL,
        .dtype = o->dtype ? parse_dtype(o->dtype) : DTYPE_F32,
        .verify = o->verify,
        .progress = bar_update,
        .user = bar,
    };
    const char *size = o->max_shard_size ? o->max_shard_size : "5GB";
    if (strcmp(size, "none") == 0 || strcmp(size, "None") == 0) return CZ_OK;
    if (cz_parse_size(size, &out->shard_nbytes_max) != CZ_OK) return err_prefix("--max_shard_size");
    return CZ_OK;
}

/* Every output file stays open until it is complete. */
static void allow_many_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* refused: as many as before */
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void print_result(const struct options *o, const struct cz_consolidate_result *r,
                         double seconds)
{
    printable_print(stdout, "wrote %zu file%s, %zu tensor%s", r->n_files, plural(r->n_files),
                    r->n_tensors, plural(r->n_tensors));
    if (r->n_aliases > 0)
        printable_print(stdout, " (and %zu tied name%s)", r->n_aliases, plural(r->n_aliases));
    printable_print(stdout, ", %llu parameters, %.2f MB, to %s in %.1f s%s\n",
                    (unsigned long long)r->numel, (double)r->nbytes * 1e-6, o->out_dir, seconds,
                    o->verify ? ", verified" : "");
}

static int run(const struct options *o)
{
    struct bar bar;
    struct cz_consolidate_options options;
    struct cz_consolidate_result result = {.size = sizeof result};
    bar_begin(&bar, "writing", o->quiet);
    if (to_library(o, &bar, &options) != CZ_OK) return tool_fail();
    if (o->debug && details_print(o->dir, o->tag, stderr) != CZ_OK) return tool_fail();
    cz_status st = cz_consolidate(&options, &result);
    bar_end(&bar);
    if (st != CZ_OK) return tool_fail();
    if (!o->quiet) print_result(o, &result, (double)(clock_now_ns() - bar.start_ns) * 1e-9);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    tool_begin("zero_to_fp32");
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--version") == 0) {
            printable_print(stdout, "zero_to_fp32 (czero) %s\n", CZERO_VERSION);
            return tool_finish_stdout(EXIT_OK);
        }
    enum args_result parsed = args_parse(&command, argc, argv, &o);
    if (parsed == ARGS_HELP) return tool_finish_stdout(EXIT_OK);
    if (parsed != ARGS_OK) return EXIT_USAGE;
    tool_log_init(o.quiet);
    allow_many_files();
    return tool_finish_stdout(run(&o));
}
