/* czero export: writes a checkpoint as a Hugging Face folder. Checkpoints hold no config.json, so
 * it comes from the model that --save described, or from --model; that it fits the weights is
 * checked before anything is written. */
#include "base/clock.h"

#include "base/dtype.h"
#include "base/printable.h"
#include "base/status.h"
#include "checkpoint/read/checkpoint.h"
#include "formats/beneath.h"
#include "model/model.h"
#include "tools/czero/args.h"
#include "tools/czero/bar.h"
#include "tools/czero/commands.h"
#include "tools/czero/consolidated.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/saver.h"
#include <czero/checkpoint.h>
#include <czero/data.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct export_options {
    const char *dir, *out_dir, *model, *tag, *dtype, *max_shard_size;
    bool verify, quiet, json, merge;
};

#define FIELD(name) offsetof(struct export_options, name)

static const struct arg_spec specs[] = {
    {"CHECKPOINT_DIR", ARG_STRING, FIELD(dir), NULL,
     "checkpoint folder of czero or DeepSpeed, or the folder of one tag; with --merge an adapter's",
     0, true},
    {"OUT_DIR", ARG_STRING, FIELD(out_dir), NULL, "output folder; created if missing", 0, true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "model of the checkpoint: a folder with config.json, or a preset (default: the model that "
     "czero train --save stored with the checkpoints)",
     0, false},
    {"--tag", ARG_STRING, FIELD(tag), "TAG",
     "tag, such as global_step100 (default: the one that `latest` names)", 0, false},
    {"--dtype", ARG_CHOICE, FIELD(dtype), "fp32|bf16|fp16",
     "type of the written weights (default: fp32)", 0, false},
    {"--max-shard-size", ARG_STRING, FIELD(max_shard_size), "SIZE",
     "start a new file before one exceeds SIZE, such as 5GB, 200MB, none (default: 5GB)", 0, false},
    {"--merge", ARG_FLAG, FIELD(merge), NULL,
     "add the adapter of this folder into the weights of --model", 0, false},
    {"--verify", ARG_FLAG, FIELD(verify), NULL,
     "read the output and compare every tensor with the shards", 0, false},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print errors only", 0, false},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object about what was written"},
};

const struct arg_command export_command = {
    .name = "czero export",
    .summary = "Write a checkpoint as a Hugging Face folder: config.json and model.safetensors.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "The weights are the fp32 masters, rounded to --dtype. The memory needed does not\n"
                "depend on the size of the model.",
    .examples = "  czero export runs/a out/ --dtype bf16\n"
                "  czero export checkpoints/ out/ --model gpt2\n"
                "  czero export adapter/ out/ --merge --model path/to/llama",
};

/* "(50257, 768)" */
static const char *shape_text(const int64_t *shape, int ndim, char *text, size_t nbytes)
{
    size_t used = (size_t)snprintf(text, nbytes, "(");
    for (int d = 0; d < ndim && used < nbytes; d++)
        used += (size_t)snprintf(text + used, nbytes - used, d > 0 ? ", %lld" : "%lld",
                                 (long long)shape[d]);
    if (used < nbytes) snprintf(text + used, nbytes - used, ")");
    return text;
}

/* Every parameter of the model is there, of its shape, and under its own name. */
static cz_status check_params(const struct ckpt *ck, const struct cz_model *m)
{
    const struct param_table *params = model_params(m);
    for (size_t i = 0; i < params->n_params; i++) {
        const struct param_info *p = &params->params[i];
        size_t idx = ckpt_find(ck, p->name);
        if (idx == ckpt_count(ck))
            return err_set(CZ_INVALID, 0, "--model: %s has %s, which the checkpoint lacks",
                           cz_model_name(m), p->name);
        const struct ckpt_tensor *t = ckpt_at(ck, idx);
        if (strcmp(t->name, p->name) != 0)
            return err_set(CZ_INVALID, 0,
                           "--model: %s has a separate %s, but the checkpoint ties it to %s",
                           cz_model_name(m), p->name, t->name);
        char here[256], there[256];
        if (t->ndim != p->ndim ||
            memcmp(t->shape, p->shape, (size_t)t->ndim * sizeof *t->shape) != 0)
            return err_set(CZ_INVALID, 0, "--model: %s of %s is %s, in the checkpoint %s", p->name,
                           cz_model_name(m), shape_text(p->shape, p->ndim, here, sizeof here),
                           shape_text(t->shape, t->ndim, there, sizeof there));
    }
    return CZ_OK;
}

/* No trained weight would be lost by loading the folder as this model. */
static cz_status check_tensors(const struct ckpt *ck, const struct cz_model *m)
{
    const struct param_table *params = model_params(m);
    for (size_t i = 0; i < ckpt_count(ck); i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        bool known = t->kind == CKPT_BUFFER;
        for (size_t p = 0; p < params->n_params && !known; p++)
            known = strcmp(params->params[p].name, t->name) == 0;
        if (!known)
            return err_set(CZ_INVALID, 0, "--model: the checkpoint has %s, but %s does not",
                           t->name, cz_model_name(m));
    }
    return CZ_OK;
}

/* Both directions: no parameter without a tensor, no trained tensor without a parameter. */
static cz_status check_model(const struct export_options *o, const struct cz_model *m)
{
    struct ckpt *ck;
    const struct ckpt_open_options open = {.dir = o->dir, .tag = o->tag, .weights_only = true};
    TRY(ckpt_open(&open, &ck));
    cz_status st = check_params(ck, m);
    if (st == CZ_OK) st = check_tensors(ck, m);
    ckpt_close(ck);
    return st;
}

static enum cz_dtype parse_dtype(const char *name)
{
    if (name && strcmp(name, "bf16") == 0) return DTYPE_BF16;
    return name && strcmp(name, "fp16") == 0 ? DTYPE_F16 : DTYPE_F32;
}

/* Streams shard by shard; the memory needed does not depend on the model. */
static cz_status write_weights(const struct export_options *o, struct cz_consolidate_result *result)
{
    struct bar bar;
    struct cz_consolidate_options options = {.size = sizeof options,
                                             .dir = o->dir,
                                             .tag = o->tag,
                                             .out_dir = o->out_dir,
                                             .format = CZ_CONSOLIDATE_SAFETENSORS,
                                             .has_dtype = true,
                                             .dtype = parse_dtype(o->dtype),
                                             .verify = o->verify,
                                             .progress = bar_update,
                                             .user = &bar};
    const char *size = o->max_shard_size ? o->max_shard_size : "5GB";
    if (strcmp(size, "none") != 0 && cz_parse_size(size, &options.shard_nbytes_max) != CZ_OK)
        return err_prefix("--max-shard-size");
    bar_begin(&bar, "writing", o->quiet);
    cz_status st = cz_consolidate(&options, result);
    bar_end(&bar);
    return st;
}

/* A folder without a tokenizer exports without one. */
static cz_status export_tokenizer(const struct export_options *o)
{
    struct cz_tokenizer *tokenizer;
    if (!cz_tokenizer_is_in(o->model)) return CZ_OK;
    TRY(cz_tokenizer_open(o->model, &tokenizer));
    cz_status st = cz_tokenizer_export(tokenizer, o->out_dir);
    cz_tokenizer_close(tokenizer);
    return st;
}

/* The config last: without it the folder is no model yet. */
static cz_status export(const struct export_options *o, const struct cz_model *m)
{
    struct cz_consolidate_result result = {.size = sizeof result};
    const int64_t begin = clock_now_ns();
    TRY(check_model(o, m));
    TRY(write_weights(o, &result));
    TRY(model_export_config(m, o->out_dir, parse_dtype(o->dtype)));
    TRY(export_tokenizer(o));
    const double seconds = (double)(clock_now_ns() - begin) * 1e-9;
    if (o->json) return put_consolidated(&result, o->out_dir, seconds, o->verify);
    if (o->quiet) return CZ_OK;
    printable_print(
        stdout,
        "wrote %s: config.json and %zu file%s of weights, %zu tensors, %.2f MB, in %.1f s%s\n",
        o->out_dir, result.n_files, result.n_files == 1 ? "" : "s", result.n_tensors,
        (double)result.nbytes * 1e-6, seconds, o->verify ? ", verified" : "");
    return CZ_OK;
}

/* Beside the checkpoints; CHECKPOINT_DIR may be one of them, or the best one's folder. *path is ""
 * where there is none. A folder that is a link to elsewhere is not the checkpoint's to name. */
static cz_status find_described(const char *dir, char path[PATH_MAX])
{
    static const char *const places[] = {"", "../", "../../"};
    char folder[PATH_MAX];
    struct stat info;
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++) {
        *path = '\0';
        if (snprintf(folder, sizeof folder, "%s/%s", dir, places[i]) >= PATH_MAX ||
            !beneath_is_there(folder, SAVER_MODEL_FOLDER "/config.json"))
            continue;
        TRY(beneath_stat(folder, SAVER_MODEL_FOLDER "/config.json", &info));
        if (snprintf(path, PATH_MAX, "%s" SAVER_MODEL_FOLDER, folder) < PATH_MAX) return CZ_OK;
    }
    return CZ_OK;
}

static cz_status fetch_weights(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, off, numel, dst);
}

/* --merge: an adapter and its model become a model. */
static cz_status merge(const struct export_options *o)
{
    const int64_t begin = clock_now_ns();
    if (!o->model)
        return err_set(CZ_INVALID, 0, "--merge needs --model, the folder of the adapter's model");
    if (o->tag || o->verify || o->max_shard_size || o->json)
        return err_set(CZ_INVALID, 0,
                       "--merge takes no --tag, --verify, --max-shard-size and --json");
    struct cz_model *m = adapter_open(o->model, o->dir);
    if (!m) return cz_last_status();
    const enum cz_dtype dtype = o->dtype ? parse_dtype(o->dtype) : model_weights_dtype(m);
    cz_status st = cz_model_has_weights(m)
                       ? model_export_merged(m, o->out_dir, dtype, fetch_weights, m)
                       : err_set(CZ_NOTFOUND, 0, "%s has no weights to merge into", o->model);
    cz_model_destroy(m);
    if (st == CZ_OK) st = export_tokenizer(o);
    if (st != CZ_OK || o->quiet) return st;
    printable_print(stdout, "wrote %s: %s with the adapter %s in its weights, %s, in %.1f s\n",
                    o->out_dir, o->model, o->dir, dtype_name(dtype),
                    (double)(clock_now_ns() - begin) * 1e-9);
    return CZ_OK;
}

static cz_status run(struct export_options *o)
{
    char described[PATH_MAX] = "";
    if (access(o->dir, F_OK) != 0)
        return err_set(CZ_NOTFOUND, 0, "%s: there is no such folder", o->dir);
    if (o->merge) return merge(o);
    if (!o->model) TRY(find_described(o->dir, described));
    if (!o->model && !*described)
        return err_set(
            CZ_INVALID, 0,
            "--model is missing: %s does not name its model (folders of czero train --save do)",
            o->dir);
    if (!o->model) o->model = described;
    const struct cz_model_options look = {.size = sizeof look,
                                          .config_only = true}; /* weights are the checkpoint's */
    struct cz_model *m = cz_model_open_ex(o->model, &look);
    if (!m) return cz_last_status();
    cz_status st = export(o, m);
    cz_model_destroy(m);
    return st;
}

int cmd_export(int argc, char **argv)
{
    struct export_options o = {0};
    enum args_result parsed = args_parse(&export_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(o.quiet);
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
