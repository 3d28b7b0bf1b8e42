/* zero_to_fp32: consolidates a folder of DeepSpeed's shards to fp32 weights. It has the options of
 * DeepSpeed's script of that name, with the same spelling (underscores), and more: scripts that
 * call the original keep working. */
#include "base/clock.h"

#include "base/dtype.h"
#include "base/host/launchers.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/size.h"
#include "base/status.h"
#include "checkpoint/read/checkpoint.h"
#include "command.h"
#include "details.h"
#include "tools/czero/args.h"
#include "tools/czero/bar.h"
#include "tools/czero/consolidated.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"
#include <czero/checkpoint.h>

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* The long names are torch's, the short ones czero's. */
static enum cz_dtype parse_dtype(const char *name)
{
    if (strcmp(name, "float16") == 0 || strcmp(name, "fp16") == 0) return DTYPE_F16;
    if (strcmp(name, "bfloat16") == 0 || strcmp(name, "bf16") == 0) return DTYPE_BF16;
    return DTYPE_F32;
}

/* Options as the library takes them; only --max_shard_size can be malformed. */
static cz_status to_library(const struct fp32_options *o, struct bar *bar,
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

static void print_result(const struct fp32_options *o, const struct cz_consolidate_result *r,
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

static int run(const struct fp32_options *o)
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
    const double seconds = (double)(clock_now_ns() - bar.start_ns) * 1e-9;
    if (o->json)
        return put_consolidated(&result, o->out_dir, seconds, o->verify) == CZ_OK ? EXIT_OK
                                                                                  : tool_fail();
    if (!o->quiet) print_result(o, &result, seconds);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    struct fp32_options o = {0};
    tool_begin("zero_to_fp32", "zero_to_fp32 (czero) " CZERO_VERSION);
    if (!tool_environment_is_valid()) return EXIT_USAGE;
    enum args_result parsed = args_parse(&zero_to_fp32_command, argc, argv, &o);
    if (parsed == ARGS_HELP) return tool_finish_stdout(EXIT_OK);
    if (parsed != ARGS_OK) return EXIT_USAGE;
    if (launchers_rank() > 0) return EXIT_OK; /* rank 0 does it for all */
    tool_log_init(o.quiet);
    if (output_check_folder("OUTPUT_DIR", o.out_dir) != CZ_OK) return tool_fail();
    if (output_holds_model(o.out_dir)) /* as DeepSpeed's script, which scripts call again */
        LOGV(LOG_WARN, SUB_CKPT, "%s: holds a model already; its weights are replaced, or mixed",
             o.out_dir);
    allow_many_files();
    return tool_finish_stdout(run(&o));
}
