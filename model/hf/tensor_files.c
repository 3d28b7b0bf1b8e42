/* The tensors of a model folder, whatever files hold them (safetensors or PyTorch pickles, single
 * or in shards), under the names that models use: wrappers' prefixes and old spellings are taken
 * off. A folder whose weights no reader here understands is an error, since training from random
 * weights would look like a bad model. */
#include "model/hf/tensor_files_impl.h"

#include "formats/beneath.h"
#include "formats/safetensors/shards.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tensor_files {
    struct safetensors *st; /* or: */
    struct pt **pts;
    size_t n_pts;
    struct tensor_entry *entries; /* by name, then by stored name */
    size_t n, cap;
};

/* ---- names ---------------------------------------------------------------------------------- */

static bool skip(const char **name, const char *part)
{
    const size_t n = strlen(part);
    if (strncmp(*name, part, n) != 0) return false;
    *name += n;
    return true;
}

/* Past what wrappers call the model they hold: torch.compile and FSDP at any depth, DataParallel
 * only in front, as "module" is a name that models use themselves. */
static const char *skip_wrappers(const char *name, bool in_front)
{
    while (skip(&name, "_orig_mod.") || skip(&name, "_fsdp_wrapped_module.") ||
           skip(&name, "_checkpoint_wrapped_module.") || (in_front && skip(&name, "module.")))
        continue;
    return name;
}

/* Names of the first BERT files: gamma and beta. */
static void replace_ending(char *name, const char *old, const char *now)
{
    const size_t n = strlen(name), n_old = strlen(old);
    if (n > n_old && strcmp(name + n - n_old, old) == 0) strcpy(name + n - n_old, now);
}

/* Each part of the name is unwrapped, since wrappers may wrap inner modules. */
static char *plain_name(const char *stored)
{
    char *name = malloc(strlen(stored) + sizeof ".weight"), *end = name;
    if (!name) return NULL;
    const char *part = skip_wrappers(stored, true);
    while (*part) {
        const size_t n = strcspn(part, ".") + 1; /* with its dot */
        const bool is_last = part[n - 1] == '\0';
        memcpy(end, part, n);
        end += n;
        if (is_last) break;
        part = skip_wrappers(part + n, false);
    }
    *end = '\0';
    replace_ending(name, ".gamma", ".weight");
    replace_ending(name, ".beta", ".bias");
    return name;
}

/* ---- entries -------------------------------------------------------------------------------- */

/* Grows by doubling; names are owned, the rest points into the open files. */
static cz_status entry_add(struct tensor_files *files, const struct tensor_entry *entry)
{
    if (files->n == files->cap) {
        const size_t cap = files->cap ? 2 * files->cap : 64;
        struct tensor_entry *grown = realloc(files->entries, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "%s: no memory for its tensors", entry->path);
        files->entries = grown;
        files->cap = cap;
    }
    struct tensor_entry *added = &files->entries[files->n];
    *added = *entry;
    added->name = plain_name(entry->stored_name);
    if (!added->name) return err_set(CZ_NOMEM, 0, "%s: no memory for a name", entry->path);
    files->n++;
    return CZ_OK;
}

/* The order of two entries with one plain name is fixed, whatever order the files have. */
static int by_name(const void *left, const void *right)
{
    const struct tensor_entry *a = left, *b = right;
    const int order = strcmp(a->name, b->name);
    if (order != 0) return order;
    return strcmp(a->stored_name, b->stored_name);
}

/* Integers are buffers. */
static bool is_weight_dtype(enum cz_dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F64;
}

/* ---- pytorch_model.bin ---------------------------------------------------------------------- */

/* The dict of tensors: the file's root, or where training loops put it. */
static const struct pickle_node *state_dict(const struct pt *pt)
{
    static const char *const keys[] = {"state_dict", "module", "model"};
    const struct pickle_node *root = pt_root(pt);
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        const struct pickle_node *inner = pickle_get(root, keys[i]);
        if (pickle_is(inner, PICKLE_DICT)) return inner;
    }
    return pickle_is(root, PICKLE_DICT) ? root : NULL;
}

/* The tensors of one file. With an index, a tensor that it places elsewhere is left out. */
static cz_status add_pt(struct tensor_files *files, const struct pt *pt,
                        const struct shards_index *index, const char *file)
{
    const struct pickle_node *dict = state_dict(pt);
    if (!dict)
        return err_set(CZ_UNSUPPORTED, 0, "%s: contains %s, not a dict of tensors", pt_path(pt),
                       pickle_kind_name(pt_root(pt)->kind));
    for (size_t i = 0; i < dict->n_pairs; i++) {
        const char *name = pickle_to_string(dict->pairs[i].key);
        const struct pickle_tensor *t = dict->pairs[i].value->tensor;
        if (!name || !pickle_is(dict->pairs[i].value, PICKLE_TENSOR)) continue;
        const char *home = index ? shards_index_file(index, name) : NULL;
        if (home && strcmp(home, file) != 0) continue;
        const struct tensor_entry entry = {.stored_name = name,
                                           .path = pt_path(pt),
                                           .ndim = (size_t)t->ndim,
                                           .shape = t->shape,
                                           .dtype_name = t->dtype->torch_name,
                                           .is_weight = t->dtype->has_base &&
                                                        is_weight_dtype(t->dtype->base),
                                           .tensor = t,
                                           .pt = pt};
        TRY(entry_add(files, &entry));
    }
    return CZ_OK;
}

/* The file stays open: tensors are read from it piece by piece. */
static cz_status open_pt(struct tensor_files *files, size_t idx, const char *dir,
                         const struct shards_index *index, const char *file)
{
    TRY(pt_open_in(dir, file, &files->pts[idx]));
    return add_pt(files, files->pts[idx], index, file);
}

/* n_pts is set with the array, so that closing accepts a half-filled one. */
static cz_status alloc_pts(struct tensor_files *files, size_t n)
{
    files->pts = calloc(n, sizeof(struct pt *));
    if (!files->pts) return err_set(CZ_NOMEM, 0, "no memory for %zu files", n);
    files->n_pts = n;
    return CZ_OK;
}

static cz_status open_single_pt(struct tensor_files *files, const char *dir, const char *name)
{
    TRY(alloc_pts(files, 1));
    return open_pt(files, 0, dir, NULL, name);
}

static void sort_entries(struct tensor_files *files)
{
    if (files->n) qsort(files->entries, files->n, sizeof *files->entries, by_name);
}

/* A tensor that the index does not place may be in one file only. */
static cz_status check_once(const struct tensor_files *files)
{
    for (size_t i = 1; i < files->n; i++) {
        const struct tensor_entry *a = &files->entries[i - 1], *b = &files->entries[i];
        if (strcmp(a->stored_name, b->stored_name) == 0)
            return err_set(CZ_CORRUPT, 0, "%s: tensor %s is also in %s", b->path, b->stored_name,
                           a->path);
    }
    return CZ_OK;
}

/* The index tells which file holds what; both must agree. */
static cz_status open_pt_index(struct tensor_files *files, const char *dir, const char *name)
{
    struct shards_index index;
    cz_status st;
    TRY(shards_index_load(dir, name, &index));
    TRY_GOTO(alloc_pts(files, index.n_files), done);
    for (size_t i = 0; i < index.n_files; i++)
        TRY_GOTO(open_pt(files, i, dir, &index, index.files[i]), done);
    sort_entries(files);
    TRY_GOTO(check_once(files), done);
    /* The index must agree with the files: a half-copied folder would otherwise load with holes. */
    for (size_t i = 0; i < json_count(index.map); i++) {
        const char *tensor = json_key(json_child(index.map, i));
        const struct tensor_entry *e;
        TRY_GOTO(tensor_files_find(files, tensor, &e), done);
        if (!e || strcmp(e->stored_name, tensor) != 0)
            TRY_GOTO(err_set(CZ_CORRUPT, 0, "%s/%s: tensor %s should be in %s and is not", dir,
                             name, tensor, shards_index_file(&index, tensor)),
                     done);
    }
done:
    shards_index_free(&index);
    return st;
}

/* ---- folders -------------------------------------------------------------------------------- */

/* Weights that would be overlooked: other formats, and files that lack their index or name. */
static bool looks_like_weights(const char *name)
{
    static const char *const patterns[] = {
        "model*.safetensors",  "pytorch_model*.bin", "consolidated*.safetensors",
        "consolidated.*.pth",  "tf_model.h5",        "tf_model*.h5",
        "flax_model*.msgpack", "model.ckpt*",        "*.gguf",
        "model.onnx"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(patterns); i++)
        if (fnmatch(patterns[i], name, 0) == 0) return true;
    return false;
}

static cz_status open_safetensors(struct tensor_files *files, const char *dir)
{
    TRY(safetensors_dir_open(dir, &files->st));
    TRY(safetensors_check_format(files->st));
    /* All tensors are listed, also those of types that are no weights: they are refused by name
     * when they are needed. */
    for (size_t i = 0; i < safetensors_count(files->st); i++) {
        const struct safetensors_info *t = safetensors_at(files->st, i);
        enum cz_dtype dtype = DTYPE_I64;
        const bool is_known = safetensors_dtype_to_base(t->dtype, &dtype);
        const struct tensor_entry entry = {.stored_name = t->name,
                                           .path = t->path,
                                           .ndim = t->ndim,
                                           .shape = t->shape,
                                           .dtype_name = safetensors_dtype_name(t->dtype),
                                           .is_weight = is_known && is_weight_dtype(dtype),
                                           .info = t};
        TRY(entry_add(files, &entry));
    }
    return CZ_OK;
}

/* What the folder holds, into `files`. */
static cz_status open_any(struct tensor_files *files, const char *dir, bool *found)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
    size_t i = 0;
    while (i < CZ_ARRAY_LEN(names) && !beneath_is_there(dir, names[i])) i++;
    *found = i < CZ_ARRAY_LEN(names);
    if (!*found) return CZ_OK;
    if (i < 2) return open_safetensors(files, dir);
    return i == 2 ? open_single_pt(files, dir, names[i]) : open_pt_index(files, dir, names[i]);
}

/* The folder's weights are in no file that is read: in one of another name, or in one that cannot
 * be opened, such as a link that leads nowhere. */
static cz_status fail_other_weights(const char *dir, const char *name)
{
    int fd;
    TRY(beneath_open(dir, name, &fd, NULL));
    close(fd);
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: the weights in %s are not read; czero reads model.safetensors, "
                   "pytorch_model.bin, and shards of either with their index",
                   dir, name);
}

/* Order of preference as in transformers: safetensors before pickles, single files before
 * shards. */
cz_status tensor_files_open(const char *dir, bool required, struct tensor_files **out)
{
    bool found = false;
    cz_status st;
    *out = NULL;
    struct tensor_files *files = calloc(1, sizeof *files);
    if (!files) return err_set(CZ_NOMEM, 0, "%s: no memory to read weights", dir);
    TRY_GOTO(open_any(files, dir, &found), fail);
    if (!found) {
        tensor_files_close(files);
        /* No known weight file is there: complain when an unknown one is, or when one is required.
         */
        char other[256] = "";
        DIR *listing = opendir(dir);
        for (struct dirent *d; listing && !other[0] && (d = readdir(listing));)
            if (looks_like_weights(d->d_name)) snprintf(other, sizeof other, "%s", d->d_name);
        if (listing) closedir(listing);
        if (other[0]) return fail_other_weights(dir, other);
        if (!required) return CZ_OK;
        return err_set(
            CZ_NOTFOUND, 0,
            "%s: contains neither model.safetensors nor pytorch_model.bin, nor an index of shards",
            dir);
    }
    sort_entries(files);
    *out = files;
    return CZ_OK;
fail:
    tensor_files_close(files);
    return st;
}

void tensor_files_close(struct tensor_files *files)
{
    if (!files) return;
    for (size_t i = 0; i < files->n; i++) free(files->entries[i].name);
    free(files->entries);
    for (size_t i = 0; i < files->n_pts; i++) pt_close(files->pts[i]);
    free(files->pts);
    safetensors_close(files->st);
    free(files);
}

/* ---- looking and reading -------------------------------------------------------------------- */

size_t tensor_files_count(const struct tensor_files *files)
{
    return files->n;
}

const struct tensor_entry *tensor_files_at(const struct tensor_files *files, size_t idx)
{
    return &files->entries[idx];
}

/* The first entry whose name is not before `name`. */
static size_t lower_bound(const struct tensor_files *files, const char *name)
{
    size_t low = 0, high = files->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (strcmp(files->entries[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

cz_status tensor_files_find(const struct tensor_files *files, const char *name,
                            const struct tensor_entry **out)
{
    const struct tensor_entry *found = NULL;
    char *plain = plain_name(name);
    *out = NULL;
    if (!plain) return err_set(CZ_NOMEM, 0, "no memory to look for a tensor");
    for (size_t i = lower_bound(files, plain); i < files->n; i++) {
        const struct tensor_entry *e = &files->entries[i];
        if (strcmp(e->name, plain) != 0) break;
        if (!found || strcmp(e->stored_name, name) == 0) found = e;
    }
    free(plain);
    *out = found;
    return CZ_OK;
}

/* Converted to fp32 piece by piece: callers never hold a whole tensor. */
cz_status tensor_files_read(const struct tensor_files *files, const struct tensor_entry *entry,
                            size_t elem_off, size_t numel, float *dst)
{
    if (!entry->is_weight)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: tensor %s is %s; weights may be F32, BF16, F16 or F64", entry->path,
                       entry->stored_name, entry->dtype_name);
    if (entry->info) return safetensors_read_f32(files->st, entry->info, elem_off, numel, dst);
    if (pt_read_f32(entry->pt, entry->tensor, elem_off, numel, dst) != CZ_OK)
        return err_prefix("tensor %s", entry->stored_name);
    return CZ_OK;
}

const struct safetensors *tensor_files_safetensors(const struct tensor_files *files)
{
    return files->st;
}
