/* Which model an adapter belongs to: its config names a folder, and a hash of the weights that were
 * frozen while it was trained stands in the metadata of its tensors, which PEFT does not read. An
 * adapter on another model gives wrong results without any other sign. */
#include "base/hash.h"
#include "base/log.h"
#include "base/text/unread.h"
#include "formats/beneath.h"
#include "formats/json/json.h"
#include "model/hf/tensor_files_impl.h"
#include "model/lora/lora_impl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HASH_KEY     "czero_base_hash"
#define CONFIG_NAME  "adapter_config.json"
#define TENSORS_NAME "adapter_model.safetensors"

/* ---- its folder ------------------------------------------------------------------------------ */

/* PEFT looks in the working folder; adapters that were moved stand beside their base, or above it.
 */
static cz_status find_folder(const char *dir, const char *name, char **out)
{
    static const char *const from[] = {"", "/", "/../"}; /* behind dir, but for the first */
    *out = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(from) && (i == 0 || name[0] != '/'); i++) {
        const size_t nbytes = strlen(dir) + strlen(from[i]) + strlen(name) + 1;
        char *path = malloc(nbytes);
        if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
        snprintf(path, nbytes, "%s%s%s", i ? dir : "", from[i], name);
        if (beneath_is_there(path, "config.json")) {
            *out = path;
            return CZ_OK;
        }
        free(path);
    }
    return CZ_OK;
}

cz_status model_adapter_base(const char *dir, char **folder, char **name)
{
    struct json_doc *config;
    const char *text = NULL;
    *folder = *name = NULL;
    TRY(model_refuse_adapter_run(dir));
    if (!beneath_is_there(dir, CONFIG_NAME))
        return err_set(CZ_NOTFOUND, 0, "%s has no " CONFIG_NAME ": it is no adapter's folder", dir);
    TRY(json_load_in(dir, CONFIG_NAME, JSON_STRICT, &config));
    cz_status st = json_opt_string(json_root(config), "base_model_name_or_path", NULL, &text);
    if (st == CZ_OK && text && *text) {
        *name = strdup(text);
        st = *name ? find_folder(dir, text, folder) : err_set(CZ_NOMEM, 0, "no memory for a path");
    }
    json_free(config);
    if (st == CZ_OK) return CZ_OK;
    free(*name);
    *name = NULL;
    return st;
}

/* ---- a run that trains one ------------------------------------------------------------------- */

static bool has_below(const char *dir, const char *below, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, below) < PATH_MAX &&
           beneath_is_there(path, name);
}

/* RUN and RUN/best hold tags, RUN/model config and tokenizer, which are given for the adapter, too.
 */
cz_status model_refuse_adapter_run(const char *dir)
{
    const bool is_run = beneath_is_there(dir, "latest"), is_tag = has_below(dir, "..", "latest"),
               is_described = beneath_is_there(dir, CONFIG_NAME);
    if (beneath_is_there(dir, TENSORS_NAME) || beneath_is_there(dir, "model.safetensors") ||
        beneath_is_there(dir, "model.safetensors.index.json"))
        return CZ_OK;
    const bool holds_one = (is_run && has_below(dir, "model", CONFIG_NAME)) ||
                           ((is_run || is_tag) && has_below(dir, "../model", CONFIG_NAME)) ||
                           (is_tag && has_below(dir, "../../model", CONFIG_NAME));
    if (!holds_one && !(is_tag && is_described)) return CZ_OK;
    size_t n = strlen(dir); /* of the run's name, which is in front of "/model" */
    while (is_described && n > 0 && dir[n - 1] == '/') n--;
    while (is_described && n > 0 && dir[n - 1] != '/') n--;
    return err_set(CZ_NOTFOUND, 0,
                   "%s holds an adapter's checkpoint: write the adapter first, with czero export "
                   "--adapter %.*s DIR",
                   dir, n > 0 ? (int)n : 1, n > 0 ? dir : ".");
}

/* ---- its weights ----------------------------------------------------------------------------- */

/* In pieces, each hashed under the hash of those before it. */
static cz_status hash_frozen(struct cz_model *m, const struct lora_names *saved, uint64_t *out)
{
    uint64_t h = 0;
    cz_status st = CZ_OK;
    float *piece = malloc(EXPORT_PIECE_NUMEL * sizeof *piece);
    if (!piece) return err_set(CZ_NOMEM, 0, "no memory to hash a model");
    for (size_t i = 0; i < m->params.n_params && st == CZ_OK; i++) {
        const struct param_info *p = &m->params.params[i];
        if (p->is_adapter || lora_names_hold(saved, p->name)) continue;
        h = hash_sip(1, 3, h, i, p->name, strlen(p->name));
        h = hash_sip(1, 3, h, (uint64_t)p->ndim, p->shape, (size_t)p->ndim * sizeof *p->shape);
        for (size_t off = 0, n; off < p->numel && st == CZ_OK; off += n) {
            n = p->numel - off < EXPORT_PIECE_NUMEL ? p->numel - off : EXPORT_PIECE_NUMEL;
            st = model_read_weights(m, i, off, n, piece);
            h = hash_sip(1, 3, h, off, piece, st == CZ_OK ? n * sizeof *piece : 0);
        }
    }
    free(piece);
    *out = h;
    return st;
}

cz_status model_base_hash(struct cz_model *m, uint64_t *out)
{
    struct model_lora *lora = m->lora;
    if (!lora) return err_set(CZ_INVALID, 0, "%s has no adapter", m->name);
    if (!lora->has_hash) TRY(hash_frozen(m, &lora->saved, &lora->hash));
    lora->has_hash = true;
    *out = lora->hash;
    return CZ_OK;
}

bool model_base_hash_parse(const char *text, uint64_t *out)
{
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

cz_status model_create_adapter(const char *path, const struct safetensors_decl *decls, size_t n,
                               const uint64_t *base_hash, struct safetensors_writer **out)
{
    char text[20];
    const struct safetensors_metadata metadata[] = {{HASH_KEY, text}, {"format", "pt"}};
    if (!base_hash) return safetensors_create(path, decls, n, NULL, 0, out);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)*base_hash);
    return safetensors_create(path, decls, n, metadata, CZ_ARRAY_LEN(metadata), out);
}

/* ---- are these they? ------------------------------------------------------------------------- */

/* By the inode of their configs: both are models' folders. */
static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;
    if (!beneath_is_there(a, "config.json") || !beneath_is_there(b, "config.json")) return false;
    const bool same = beneath_stat(a, "config.json", &x) == CZ_OK &&
                      beneath_stat(b, "config.json", &y) == CZ_OK && x.st_dev == y.st_dev &&
                      x.st_ino == y.st_ino;
    err_clear();
    return same;
}

/* Two tensors of one name; elements are read until some differ. pieces: space for two. */
static cz_status compare(const struct cz_model *m, const struct tensor_entry *own,
                         const struct tensor_files *files, const struct tensor_entry *other,
                         float *pieces, bool *differs)
{
    uint64_t numel = 1;
    float *second = pieces + EXPORT_PIECE_NUMEL;
    *differs = own->ndim != other->ndim ||
               memcmp(own->shape, other->shape, own->ndim * sizeof *own->shape) != 0;
    for (size_t d = 0; d < own->ndim; d++) numel *= (uint64_t)own->shape[d];
    for (uint64_t off = 0, n; off < numel && !*differs; off += n) {
        n = numel - off < EXPORT_PIECE_NUMEL ? numel - off : EXPORT_PIECE_NUMEL;
        TRY(tensor_files_read(m->weights.files, own, off, n, pieces));
        TRY(tensor_files_read(files, other, off, n, second));
        *differs = memcmp(pieces, second, n * sizeof *pieces) != 0;
    }
    return CZ_OK;
}

/* Whether a frozen tensor of the model has other values in that folder. Tensors that only one of
 * them has belong to a head, or to a model that the adapter does not fit either. */
static cz_status compare_folder(const struct cz_model *m, const struct lora_names *saved,
                                const char *dir, bool *differs)
{
    struct tensor_files *files = NULL;
    const struct tensor_entry *other;
    cz_status st;
    float *pieces = malloc(2 * EXPORT_PIECE_NUMEL * sizeof *pieces);
    if (!pieces) return err_set(CZ_NOMEM, 0, "no memory to compare models");
    TRY_GOTO(tensor_files_open(dir, true, &files), done);
    for (size_t i = 0; i < m->params.n_params && !*differs; i++) {
        const struct tensor_entry *own = m->weights.tensor[i];
        if (!own || lora_names_hold(saved, m->params.params[i].name)) continue;
        TRY_GOTO(tensor_files_find(files, own->name, &other), done);
        if (!other || !own->is_weight || !other->is_weight) continue;
        TRY_GOTO(compare(m, own, files, other, pieces, differs), done);
    }
done:
    tensor_files_close(files);
    free(pieces);
    return st;
}

static cz_status differ(const struct cz_model *m, const char *dir, const char *named)
{
    char text[1024];
    snprintf(text, sizeof text,
             "%s: the adapter was trained on other weights than those of %s: its results are not "
             "those of its training; %s%s",
             dir, m->weights.place,
             named ? "use its base, " : "use the model that it was trained on", named ? named : "");
    if (unread_is_strict()) return err_set(CZ_INVALID, 0, "%s", text);
    LOGV(LOG_WARN, SUB_MODEL, "%s", text);
    return CZ_OK;
}

/* The hash covers the head, too: it says something about a model of the same task. */
static cz_status has_own_task(const struct cz_model *m, const char *dir, bool *out)
{
    struct json_doc *config;
    const char *type = NULL, *own = lora_task_type(m);
    TRY(json_load_in(dir, CONFIG_NAME, JSON_STRICT, &config));
    const struct json_node *node = json_get(json_root(config), "task_type");
    cz_status st = CZ_OK;
    if (node && json_type(node) == JSON_STRING) st = json_as_string(node, &type);
    *out = type && own && strcmp(type, own) == 0;
    json_free(config);
    return st;
}

bool model_has_other_base(const struct cz_model *m)
{
    return m->lora && m->lora->other_base;
}

cz_status lora_check_base(struct cz_model *m, struct model_lora *lora, const char *dir)
{
    const char *text = safetensors_metadata(lora->files, HASH_KEY);
    uint64_t wanted;
    bool is_own = false, differs = false;
    char *folder = NULL, *name = NULL;
    if (!cz_model_has_weights(m)) return CZ_OK; /* they come later, and are compared then */
    TRY(has_own_task(m, dir, &is_own));
    TRY(model_adapter_base(dir, &folder, &name));
    const bool is_here = folder && is_same_folder(folder, m->weights.place);
    cz_status st = CZ_OK;
    if (is_own && text && model_base_hash_parse(text, &wanted)) {
        st = hash_frozen(m, &lora->saved, &lora->hash);
        lora->has_hash = st == CZ_OK;
        differs = st == CZ_OK && lora->hash != wanted;
    } else if (folder && !is_here) {
        if (compare_folder(m, &lora->saved, folder, &differs) != CZ_OK) err_clear();
    }
    lora->other_base = differs;
    if (differs) st = differ(m, dir, is_here ? NULL : folder);
    free(folder);
    free(name);
    return st;
}
