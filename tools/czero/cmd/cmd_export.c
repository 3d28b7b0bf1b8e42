/* czero export: writes a checkpoint as a Hugging Face folder. Checkpoints hold no config.json, so
 * it comes from the model that --save described, or from --model; that it fits the weights is
 * checked before anything is written. */
#include "base/clock.h"

#include "base/dtype.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/size.h"
#include "base/status.h"
#include "checkpoint/read/checkpoint.h"
#include "checkpoint/read/names.h"
#include "data/chat/chat_template.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/folder_lock.h"
#include "formats/json/json.h"
#include "formats/output.h"
#include "formats/safetensors/safetensors.h"
#include "model/model.h"
#include "tools/czero/args.h"
#include "tools/czero/bar.h"
#include "tools/czero/commands.h"
#include "tools/czero/consolidated.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/saver.h"
#include <czero/checkpoint.h>
#include <czero/data.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct export_options {
    const char *dir, *out_dir, *model, *tag, *dtype, *max_shard_size, *adapter_config;
    bool verify, quiet, json, merge, adapter, force;
};

enum { ADAPTER_PIECE = 1 << 20 };

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
     "type of the written weights (default: fp32; of --adapter from DeepSpeed's checkpoints: the "
     "model's)",
     0, false},
    {"--max-shard-size", ARG_STRING, FIELD(max_shard_size), "SIZE",
     "start a new file before one exceeds SIZE, such as 5GB, 200MB, none (default: 5GB)", 0, false},
    {"--merge", ARG_FLAG, FIELD(merge), NULL,
     "add the adapter of this folder into the weights of --model (default: its base)", 0, false},
    {"--adapter", ARG_FLAG, FIELD(adapter), NULL,
     "write the adapter (LoRA) that the checkpoint holds, as PEFT saves it", 0, false},
    {"--adapter-config", ARG_STRING, FIELD(adapter_config), "FILE",
     "its adapter_config.json (default: the one beside the checkpoints)", 0, false},
    {"--force", ARG_FLAG, FIELD(force), NULL,
     "replace the model that OUT_DIR holds; merge an adapter of another base", 0, false},
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
                "  czero export --adapter checkpoints/ adapter/\n"
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

/* No trained weight would be lost by loading the folder as this model. A stored alias is the second
 * bias of an untied masked LM, which transformers keeps and does not compute with. */
static cz_status check_tensors(const struct ckpt *ck, const struct cz_model *m)
{
    const struct param_table *params = model_params(m);
    for (size_t i = 0; i < ckpt_count(ck); i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        bool known = t->kind == CKPT_BUFFER;
        for (size_t p = 0; p < params->n_params && !known; p++)
            known = strcmp(params->params[p].name, t->name) == 0;
        for (size_t a = 0; a < params->n_aliases && !known; a++)
            known = params->aliases[a].is_stored && strcmp(params->aliases[a].name, t->name) == 0;
        if (!known)
            return err_set(CZ_INVALID, 0, "--model: the checkpoint has %s, but %s does not",
                           t->name, cz_model_name(m));
    }
    return CZ_OK;
}

/* Branches are no model: --adapter writes them, --merge adds them to one. */
static cz_status refuse_adapter(const struct export_options *o, const struct ckpt *ck)
{
    for (size_t i = 0; i < ckpt_count(ck); i++)
        if (ckpt_at(ck, i)->kind == CKPT_TRAINED && strstr(ckpt_at(ck, i)->name, ".lora_A."))
            return err_set(CZ_INVALID, 0,
                           "%s holds an adapter's checkpoint: write the adapter first, with czero "
                           "export --adapter %s DIR; czero export DIR OUT_DIR --merge then adds it "
                           "to its model",
                           o->dir, o->dir);
    return CZ_OK;
}

/* Both directions: no parameter without a tensor, no trained tensor without a parameter. */
static cz_status check_model(const struct export_options *o, const struct cz_model *m)
{
    struct ckpt *ck;
    const struct ckpt_open_options open = {.dir = o->dir, .tag = o->tag, .weights_only = true};
    TRY(ckpt_open(&open, &ck));
    cz_status st = refuse_adapter(o, ck);
    if (st == CZ_OK) st = check_params(ck, m);
    if (st == CZ_OK) st = check_tensors(ck, m);
    ckpt_close(ck);
    return st;
}

/* Before anything is written. */
static cz_status check_out(const struct export_options *o, const char *model, const char *adapter)
{
    const struct output_model out = {"OUT_DIR", o->out_dir, model, adapter, o->force};
    return output_check_model(&out);
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
                                             .dtype = args_dtype(o->dtype, DTYPE_F32),
                                             .verify = o->verify,
                                             .finite = true,
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

/* The tokenizer and the chat template, each of the first folder that has one: what the weights were
 * trained with, then what their base came with. NULL: no such folder. */
static cz_status export_text(const struct export_options *o, const char *trained, const char *base)
{
    const char *const places[] = {trained, base};
    const char *tokens = NULL, *chat = NULL;
    struct cz_tokenizer *tokenizer = NULL;
    struct chat_template *t = NULL;
    struct out_folder folder = {.path = NULL};
    cz_status st = CZ_OK;
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++) {
        if (places[i] && !tokens && cz_tokenizer_is_in(places[i])) tokens = places[i];
        if (places[i] && !chat && chat_template_is_in(places[i])) chat = places[i];
    }
    if (tokens) TRY(cz_tokenizer_open(tokens, &tokenizer));
    if (chat && (!tokens || strcmp(tokens, chat) != 0))
        TRY_GOTO(chat_template_open(chat, NULL, &t), done);
    if (!tokenizer && !t) return CZ_OK;
    TRY_GOTO(out_folder_open(o->out_dir, &folder), done);
    TRY_GOTO(chat_template_export(t, tokenizer, &folder), done);
done:
    out_folder_close(&folder);
    chat_template_close(t);
    cz_tokenizer_close(tokenizer);
    return st;
}

/* The config last: without it the folder is no model yet. */
static cz_status export(const struct export_options *o, const struct cz_model *m,
                        const char *described)
{
    struct cz_consolidate_result result = {.size = sizeof result};
    const int64_t begin = clock_now_ns();
    TRY(check_model(o, m));
    TRY(check_out(o, o->model, NULL));
    TRY(write_weights(o, &result));
    struct out_folder folder;
    TRY(out_folder_open(o->out_dir, &folder));
    cz_status st = model_export_config(m, &folder, args_dtype(o->dtype, DTYPE_F32));
    out_folder_close(&folder);
    TRY(st);
    TRY(export_text(o, described, o->model));
    const double seconds = (double)(clock_now_ns() - begin) * 1e-9;
    if (o->json) return put_consolidated(&result, o->out_dir, seconds, o->verify);
    if (o->quiet) return CZ_OK;
    printable_print(
        stdout,
        "wrote %s: config.json and %zu file%s of weights, %zu tensor%s, %.2f MB, in %.1f s%s\n",
        o->out_dir, result.n_files, plural(result.n_files), result.n_tensors,
        plural(result.n_tensors), (double)result.nbytes * 1e-6, seconds,
        o->verify ? ", verified" : "");
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

/* ---- an adapter out of a checkpoint ---------------------------------------------------------- */

#define ADAPTER_PREFIX "base_model.model."

/* PEFT's name in its file: without the adapter's own ("default"), and of a module that is trained
 * whole without what wraps it. NULL: not enough memory. */
static char *adapter_name(const char *name)
{
    static const char *const dropped[] = {"modules_to_save.default.", "default."};
    const size_t n = strlen(ADAPTER_PREFIX) + strlen(name) + 1;
    char *out = malloc(n);
    if (!out) return NULL;
    snprintf(out, n, "%s%s",
             strncmp(name, ADAPTER_PREFIX, strlen(ADAPTER_PREFIX)) == 0 ? "" : ADAPTER_PREFIX,
             name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(dropped); i++) {
        char *at = strstr(out, dropped[i]);
        if (!at || (at != out && at[-1] != '.')) continue;
        memmove(at, at + strlen(dropped[i]), strlen(at + strlen(dropped[i])) + 1);
    }
    char *length = strstr(out, ".lora_magnitude_vector.weight");
    if (length) length[strlen(".lora_magnitude_vector")] = '\0'; /* of DoRA */
    return out;
}

/* What the run held its parameters in: PEFT saves that. */
static enum cz_dtype adapter_dtype(const struct export_options *o, const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    if (o->dtype) return args_dtype(o->dtype, DTYPE_F32);
    const bool is_narrow = info->model_dtype && info->model_dtype->has_base &&
                           dtype_size(info->model_dtype->base) == 2;
    return is_narrow && !info->is_ours ? info->model_dtype->base : DTYPE_F32;
}

/* Masters, rounded in place: 16-bit parameters are just that. */
static cz_status write_adapter_tensor(struct safetensors_writer *w, size_t decl, struct ckpt *ck,
                                      size_t idx, enum cz_dtype dtype, float *piece)
{
    const uint64_t numel = ckpt_at(ck, idx)->numel;
    for (uint64_t off = 0, n; off < numel; off += n) {
        n = numel - off < ADAPTER_PIECE ? numel - off : ADAPTER_PIECE;
        TRY(ckpt_read(ck, idx, CKPT_MASTER, off, n, piece));
        for (size_t k = 0; dtype != DTYPE_F32 && k < n; k++) dtype_put(piece, k, dtype, piece[k]);
        TRY(safetensors_write(w, decl, off, n, piece));
    }
    return CZ_OK;
}

/* The hash of the frozen weights, which a run of czero records. */
static bool read_base_hash(const struct ckpt *ck, uint64_t *out)
{
    struct json_doc *doc;
    const char *text = NULL, *dir = ckpt_get_info(ck)->tag_dir;
    bool is_there = false;
    if (!beneath_is_there(dir, CKPT_STATE)) return false;
    cz_status st = json_load_in(dir, CKPT_STATE, JSON_STRICT, &doc);
    if (st == CZ_OK) {
        st = json_opt_string(json_root(doc), "adapter_base", NULL, &text);
        is_there = st == CZ_OK && text && model_base_hash_parse(text, out);
        json_free(doc);
    }
    if (st != CZ_OK) err_clear();
    return is_there;
}

/* The trained tensors of a run whose others are frozen: its adapter. */
static cz_status write_adapter(const struct export_options *o, struct ckpt *ck, const char *path,
                               size_t *n_written)
{
    const size_t n_all = ckpt_count(ck);
    const enum cz_dtype dtype = adapter_dtype(o, ck);
    struct safetensors_decl *decls = calloc(n_all + 1, sizeof *decls);
    char **names = calloc(n_all + 1, sizeof *names);
    size_t *from = calloc(n_all + 1, sizeof *from), n = 0;
    float *piece = malloc(ADAPTER_PIECE * sizeof *piece);
    struct safetensors_writer *w = NULL;
    uint64_t hash = 0;
    bool has_branch = false, has_hash = false;
    cz_status st = decls && names && from && piece
                       ? CZ_OK
                       : err_set(CZ_NOMEM, 0, "no memory to export an adapter");
    for (size_t i = 0; i < n_all && st == CZ_OK; i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        if (t->kind != CKPT_TRAINED) continue;
        has_branch = has_branch || strstr(t->name, ".lora_A.");
        names[n] = adapter_name(t->name);
        if (!names[n]) st = err_set(CZ_NOMEM, 0, "no memory to export an adapter");
        decls[n] = (struct safetensors_decl){names[n], safetensors_dtype_from_base(dtype), t->shape,
                                             (size_t)t->ndim};
        from[n++] = i;
    }
    if (st == CZ_OK && !has_branch)
        st = err_set(CZ_INVALID, 0,
                     "--adapter: %s has no trained tensor of an adapter (lora_A): it is a whole "
                     "model's checkpoint",
                     ckpt_get_info(ck)->tag_dir);
    if (st == CZ_OK) st = file_make_dirs(o->out_dir);
    if (st == CZ_OK) has_hash = read_base_hash(ck, &hash);
    if (st == CZ_OK) st = model_create_adapter(path, decls, n, has_hash ? &hash : NULL, &w);
    for (size_t k = 0; k < n && st == CZ_OK; k++)
        st = write_adapter_tensor(w, k, ck, from[k], dtype, piece);
    if (st == CZ_OK) st = safetensors_finish(w);
    safetensors_writer_destroy(w);
    for (size_t k = 0; names && k < n; k++) free(names[k]);
    free(piece);
    free(from);
    free(names);
    free(decls);
    *n_written = n;
    return st;
}

/* Trainers write it beside their checkpoints, czero train --save into model/. *text is the
 * caller's. */
static bool find_adapter_config(const struct export_options *o, char folder[PATH_MAX])
{
    static const char *const places[] = {"", "model/", "../", "../model/", "../../"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++)
        if (snprintf(folder, PATH_MAX, "%s/%s", o->dir, places[i]) < PATH_MAX &&
            beneath_is_there(folder, "adapter_config.json"))
            return true;
    return false;
}

static cz_status read_adapter_config(const struct export_options *o, char **text, size_t *nbytes)
{
    const size_t most = JSON_NAMED_NBYTES_MAX;
    char folder[PATH_MAX];
    if (o->adapter_config) return file_load_named(o->adapter_config, most, text, nbytes);
    if (find_adapter_config(o, folder)) {
        int fd;
        uint64_t size;
        TRY(beneath_open(folder, "adapter_config.json", &fd, &size));
        return file_load_opened(fd, folder, size, most, text, nbytes);
    }
    return err_set(CZ_NOTFOUND, 0,
                   "--adapter: there is no adapter_config.json in %s or beside it, which says what "
                   "the adapter's alpha is; --adapter-config names one",
                   o->dir);
}

/* The end tokens that the run's answers taught, where there are any beside adapter_config.json. */
static cz_status export_generation(const struct export_options *o, const struct out_folder *in)
{
    char folder[PATH_MAX];
    char *text = NULL;
    size_t nbytes;
    if (o->adapter_config || !find_adapter_config(o, folder)) return CZ_OK;
    if (!beneath_is_there(folder, "generation_config.json")) return CZ_OK;
    TRY(beneath_load(folder, "generation_config.json", JSON_NAMED_NBYTES_MAX, &text, &nbytes));
    cz_status st = file_save_in(in, "generation_config.json", text, nbytes);
    free(text);
    return st;
}

/* An adapter is of use without them: its base has its own. */
static cz_status export_adapter_text(const struct export_options *o)
{
    char folder[PATH_MAX];
    if (!find_adapter_config(o, folder)) return CZ_OK;
    const cz_status st = export_text(o, folder, NULL);
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    LOGV(LOG_WARN, SUB_DATA, "not exported: %s", cz_last_error());
    err_clear();
    return CZ_OK;
}

/* --adapter: the config last, as in all folders. */
static cz_status export_adapter(const struct export_options *o)
{
    const struct ckpt_open_options open = {.dir = o->dir, .tag = o->tag, .weights_only = true};
    const int64_t begin = clock_now_ns();
    struct ckpt *ck = NULL;
    struct out_folder folder = {.path = NULL};
    char *text = NULL, *path = NULL;
    size_t nbytes = 0, n = 0;
    cz_status st;
    if (o->model || o->verify || o->max_shard_size || o->json || o->merge)
        return err_set(
            CZ_INVALID, 0,
            "--adapter takes no --model, --merge, --verify, --max-shard-size and --json");
    TRY_GOTO(check_out(o, NULL, NULL), done);
    TRY_GOTO(read_adapter_config(o, &text, &nbytes), done);
    TRY_GOTO(ckpt_open(&open, &ck), done);
    path = file_join(o->out_dir, "adapter_model.safetensors");
    if (!path) TRY_GOTO(err_set(CZ_NOMEM, 0, "no memory for a path"), done);
    TRY_GOTO(write_adapter(o, ck, path, &n), done);
    TRY_GOTO(out_folder_open(o->out_dir, &folder), done);
    TRY_GOTO(export_generation(o, &folder), done);
    TRY_GOTO(export_adapter_text(o), done);
    TRY_GOTO(file_save_in(&folder, "adapter_config.json", text, nbytes), done);
    if (!o->quiet)
        printable_print(stdout, "wrote %s: the adapter of %s, %zu tensor%s, %s, in %.1f s\n",
                        o->out_dir, ckpt_get_info(ck)->tag_dir, n, plural(n),
                        dtype_name(adapter_dtype(o, ck)), (double)(clock_now_ns() - begin) * 1e-9);
done:
    out_folder_close(&folder);
    ckpt_close(ck);
    free(path);
    free(text);
    return st;
}

/* ---- an adapter into its model --------------------------------------------------------------- */

static cz_status fetch_weights(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, off, numel, dst);
}

/* --merge: an adapter and its model become a model. */
static cz_status merge(struct export_options *o)
{
    struct model_ends ends = {0};
    const int64_t begin = clock_now_ns();
    const char *model = o->dir, *adapter = NULL;
    if (!o->model) TRY(adapter_find_base(&model, &adapter));
    if (!o->model && !adapter)
        return err_set(CZ_INVALID, 0, "--merge: %s is no adapter's folder (adapter_config.json)",
                       o->dir);
    if (!o->model) o->model = model;
    if (o->tag || o->verify || o->max_shard_size || o->json)
        return err_set(CZ_INVALID, 0,
                       "--merge takes no --tag, --verify, --max-shard-size and --json");
    TRY(check_out(o, o->model, o->dir));
    struct cz_model *m = adapter_open(o->model, o->dir);
    if (!m) return cz_last_status();
    if (model_has_other_base(m) && !o->force) {
        cz_model_destroy(m);
        return err_set(CZ_INVALID, 0,
                       "--merge: the adapter %s was trained on other weights than those of %s; "
                       "--force merges it all the same",
                       o->dir, o->model);
    }
    cz_status st = model_read_ends(o->dir, "generation_config.json", &ends);
    for (size_t i = 0; i < ends.n; i++) model_add_end(m, ends.ids[i]);
    const enum cz_dtype dtype = args_dtype(o->dtype, model_weights_dtype(m));
    if (st == CZ_OK && !cz_model_has_weights(m))
        st = err_set(CZ_NOTFOUND, 0, "%s has no weights to merge into", o->model);
    if (st == CZ_OK) st = model_export_merged(m, o->out_dir, dtype, fetch_weights, m);
    cz_model_destroy(m);
    if (st == CZ_OK) st = export_text(o, o->dir, o->model);
    if (st != CZ_OK || o->quiet) return st;
    printable_print(stdout, "wrote %s: %s with the adapter %s in its weights, %s, in %.1f s\n",
                    o->out_dir, o->model, o->dir, dtype_name(dtype),
                    (double)(clock_now_ns() - begin) * 1e-9);
    return CZ_OK;
}

static cz_status run_in_folder(struct export_options *o)
{
    char described[PATH_MAX] = "";
    if (o->adapter) return export_adapter(o);
    if (o->adapter_config) return err_set(CZ_INVALID, 0, "--adapter-config is for --adapter");
    if (o->merge) return merge(o);
    cz_status st = find_described(o->dir, described);
    if (!o->model) TRY(st);
    err_clear(); /* --model describes it as well */
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
    st = export(o, m, *described ? described : NULL);
    cz_model_destroy(m);
    return st;
}

/* Two exports into one folder would mix their files. */
static cz_status run(struct export_options *o)
{
    struct folder_lock lock;
    if (access(o->dir, F_OK) != 0)
        return err_set(CZ_NOTFOUND, 0, "%s: there is no such folder", o->dir);
    TRY(folder_lock_take(&lock, o->out_dir));
    const cz_status st = run_in_folder(o);
    folder_lock_release(&lock);
    return st;
}

int cmd_export(int argc, char **argv)
{
    struct export_options o = {0};
    enum args_result parsed = args_parse(&export_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(o.quiet);
    if (output_check_folder("OUT_DIR", o.out_dir) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
