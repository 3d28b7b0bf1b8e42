/* Output as torch.save's .bin files: a dict of name → tensor in each. Tied names share a storage.
 * DeepSpeed writes the whole flat vector of a group into every file (docs/deepspeed-behaviour.md,
 * "Consolidation"); here each tensor has a storage of its own size. */
#include "checkpoint/consolidate/consolidate_impl.h"
#include "formats/file_io.h"
#include "formats/output.h"
#include "formats/pt/pt.h"
#include "formats/safetensors/shards.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct shards_kind shards = {"pytorch_model", ".bin"};

/* n_renamed counts the files that have their final names, for the case that a later rename
 * fails. */
struct bin {
    const struct cons_plan *plan;
    struct pt_writer **files; /* (n_files) */
    struct out_folder folder;
    size_t n_files, n_renamed;
    struct file_durable index;
    bool has_index, done;
};

/* An unfinished run removes the files that it has renamed already: a folder with some new and some
 * old shards would load as a mixture. */
static void bin_destroy(void *sink)
{
    struct bin *b = sink;
    if (!b) return;
    for (size_t f = 0; f < b->n_files; f++) {
        if (b->files && f < b->n_renamed && !b->done) pt_take_back(b->files[f]);
        if (b->files) pt_writer_destroy(b->files[f]);
    }
    if (b->has_index) file_durable_abort(&b->index);
    out_folder_close(&b->folder);
    free(b->files);
    free(b);
}

/* ---- creating -------------------------------------------------------------------------------- */

/* Contiguous, from the storage's first element: shards hold pieces, the output whole tensors. */
static void put_tensor(struct pickle_writer *w, const char *name, const struct cons_tensor *t)
{
    const struct pickle_tensor_desc desc = {
        .torch_dtype = t->dtype,
        .storage_idx = t->storage_idx,
        .storage_numel = t->tensor->numel,
        .ndim = t->tensor->ndim,
        .shape = t->tensor->shape,
    };
    pickle_put_string(w, name);
    pickle_put_tensor(w, &desc);
}

/* To Hugging Face's split, empty tensors share one storage, that of address 0: it treats all but the
 * first like aliases of that one. The index of the first, or plan->n. */
static size_t first_empty(const struct cons_plan *plan)
{
    size_t i = 0;
    while (i < plan->n && plan->tensors[i].nbytes > 0) i++;
    return i;
}

static bool is_later_empty(const struct cons_plan *plan, size_t first, size_t i)
{
    return i > first && plan->tensors[i].nbytes == 0;
}

/* Aliases come after everything else, as DeepSpeed's script adds them. An alias names the same
 * storage, so torch.load gives tied tensors again. */
static cz_status make_pickle(const struct cons_plan *plan, size_t file_idx, unsigned char **bytes,
                             size_t *nbytes)
{
    struct pickle_writer *w = pickle_writer_create();
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", plan->n);
    const size_t empty = first_empty(plan);
    pickle_dict_begin(w);
    for (size_t i = 0; i < plan->n; i++)
        if (plan->tensors[i].file_idx == file_idx && !is_later_empty(plan, empty, i))
            put_tensor(w, plan->tensors[i].tensor->name, &plan->tensors[i]);
    for (size_t i = 0; i < plan->n; i++) {
        const struct cons_tensor *t = &plan->tensors[i];
        for (size_t k = i + 1; i == empty && t->file_idx == file_idx && k < plan->n; k++)
            if (is_later_empty(plan, empty, k))
                put_tensor(w, plan->tensors[k].tensor->name, &plan->tensors[k]);
        for (size_t a = 0; t->file_idx == file_idx && a < t->tensor->n_aliases; a++)
            put_tensor(w, t->tensor->aliases[a], t);
    }
    pickle_dict_end(w);
    cz_status st = pickle_writer_take(w, bytes, nbytes);
    pickle_writer_destroy(w);
    return st;
}

/* nbytes: space for the sizes of all tensors. The layout tells where in the file each tensor goes,
 * by which the work is dealt. */
static cz_status create_file(struct bin *b, struct cons_plan *plan, size_t f, uint64_t *nbytes)
{
    char name[SHARDS_NAME_NBYTES];
    unsigned char *pickle = NULL;
    size_t pickle_nbytes, n = 0;
    for (size_t i = 0; i < plan->n; i++)
        if (plan->tensors[i].file_idx == f) {
            nbytes[n] = plan->tensors[i].nbytes;
            plan->tensors[i].storage_idx = n++;
        }
    char *path = file_join(b->folder.path, shards_file_name(&shards, f, b->n_files, name));
    cz_status st = path ? make_pickle(plan, f, &pickle, &pickle_nbytes)
                        : err_set(CZ_NOMEM, 0, "no memory for a file's name");
    const struct pt_create_options options = {.path = path,
                                              .folder = &b->folder,
                                              .pickle = pickle,
                                              .pickle_nbytes = pickle_nbytes,
                                              .storage_nbytes = nbytes,
                                              .n_storages = n,
                                              .unbuffered = true};
    if (st == CZ_OK) st = pt_create(&options, &b->files[f]);
    free(pickle);
    free(path);
    TRY(st);
    for (size_t i = 0; i < plan->n; i++) {
        struct cons_tensor *t = &plan->tensors[i];
        if (t->file_idx == f) t->file_off = pt_storage_off(b->files[f], t->storage_idx);
    }
    return CZ_OK;
}

/* Sizes in the order of the plan, by which Hugging Face's split works; storages are numbered per
 * file. */
static cz_status create_files(struct bin *b, struct cons_plan *plan)
{
    uint64_t *nbytes = malloc((plan->n + 1) * sizeof *nbytes);
    size_t *file_of = malloc((plan->n + 1) * sizeof *file_of);
    cz_status st = CZ_OK;
    if (!nbytes || !file_of) goto no_memory;
    /* Which file holds which tensor. */
    const size_t empty = first_empty(plan);
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++)
        if (!is_later_empty(plan, empty, i)) nbytes[n++] = plan->tensors[i].nbytes;
    shards_split(nbytes, n, plan->options->shard_nbytes_max, file_of, &b->n_files);
    for (size_t i = 0, k = 0; i < plan->n; i++)
        plan->tensors[i].file_idx =
            is_later_empty(plan, empty, i) ? plan->tensors[empty].file_idx : file_of[k++];
    b->files = calloc(b->n_files, sizeof(struct pt_writer *));
    if (!b->files) goto no_memory;
    for (size_t f = 0; f < b->n_files && st == CZ_OK; f++) st = create_file(b, plan, f, nbytes);
    goto done;
no_memory:
    st = err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", plan->n);
done:
    free(nbytes);
    free(file_of);
    return st;
}

/* Aliases are listed in the index, as any other name; total_size counts their storage once. */
static size_t list_entries(const struct cons_plan *plan, struct shards_entry *entries)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++) {
        const struct cons_tensor *t = &plan->tensors[i];
        entries[n++] = (struct shards_entry){t->tensor->name, t->file_idx};
        for (size_t a = 0; a < t->tensor->n_aliases; a++)
            entries[n++] = (struct shards_entry){t->tensor->aliases[a], t->file_idx};
    }
    return n;
}

static cz_status create_index(struct bin *b, const struct cons_plan *plan)
{
    char name[SHARDS_NAME_NBYTES], *text = NULL;
    size_t nbytes;
    cz_status st;
    struct shards_entry *entries = malloc((plan->n + plan->n_aliases) * sizeof *entries);
    if (!entries) {
        st = err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", plan->n);
        goto done;
    }
    TRY_GOTO(shards_index_text(&shards, entries, list_entries(plan, entries), b->n_files,
                               plan->nbytes, &text, &nbytes),
             done);
    TRY_GOTO(file_durable_create_in(&b->index, &b->folder, shards_index_name(&shards, name),
                                    nbytes),
             done);
    b->has_index = true;
    TRY_GOTO(file_pwrite(b->index.fd, b->index.path, text, nbytes, 0), done);
done:
    free(text);
    free(entries);
    return st;
}

static cz_status bin_create(struct cons_plan *plan, void **sink)
{
    cz_status st;
    for (size_t i = 0; i < plan->n; i++)
        if (!pickle_storage_of_dtype(plan->tensors[i].dtype))
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: czero writes no .bin with %s; safetensors may do",
                           plan->tensors[i].tensor->name, plan->tensors[i].dtype->torch_name);
    struct bin *b = calloc(1, sizeof *b);
    if (!b) return err_set(CZ_NOMEM, 0, "no memory for a writer");
    b->plan = plan;
    TRY_GOTO(out_folder_open(plan->options->out_dir, &b->folder), fail);
    TRY_GOTO(create_files(b, plan), fail);
    if (b->n_files > 1) TRY_GOTO(create_index(b, plan), fail);
    *sink = b;
    return CZ_OK;
fail:
    bin_destroy(b);
    return st;
}

/* ---- writing and finishing ------------------------------------------------------------------- */

static size_t bin_n_files(const void *sink)
{
    return ((const struct bin *)sink)->n_files;
}

/* From any thread: pieces do not overlap. */
static cz_status bin_write(void *sink, const struct cons_tensor *t, uint64_t elem_off, size_t numel,
                           const void *src)
{
    struct bin *b = sink;
    const size_t size = t->dtype->size;
    return pt_write(b->files[t->file_idx], t->storage_idx, elem_off * size, numel * size, src,
                    NULL);
}

/* An older index of equally many shards is removed before the first rename, so an index never names
 * a mixture of two sets. The new one comes last. */
static cz_status bin_finish(void *sink)
{
    struct bin *b = sink;
    struct pt_written written;
    char first[SHARDS_NAME_NBYTES];
    for (size_t f = 0; f < b->n_files; f++) TRY(pt_finish(b->files[f], false, &written));
    if (b->has_index) {
        TRY(file_durable_sync(&b->index));
        if (out_is_there(&b->folder, shards_file_name(&shards, 0, b->n_files, first)))
            TRY(out_remove(&b->folder, b->index.name));
    }
    while (b->n_renamed < b->n_files) {
        const struct pt_writer *w = b->files[b->n_renamed];
        cz_status st = pt_rename(b->files[b->n_renamed]);
        b->n_renamed += pt_is_renamed(w);
        TRY(st);
    }
    if (b->has_index) TRY(file_durable_rename(&b->index));
    b->done = true;
    TRY(shards_remove_replaced(&shards, &b->folder, b->n_files));
    return out_folder_sync(&b->folder);
}

/* ---- the output again ------------------------------------------------------------------------ */

struct bin_output {
    size_t n_files;
    struct pt *files[];
};

static void bin_close(void *output)
{
    struct bin_output *o = output;
    for (size_t f = 0; o && f < o->n_files; f++) pt_close(o->files[f]);
    free(o);
}

/* Opens what was written by its names, as a user's program would. */
static cz_status bin_open(const struct cons_plan *plan, void **output)
{
    size_t n_files = 0;
    for (size_t i = 0; i < plan->n; i++)
        if (plan->tensors[i].file_idx >= n_files) n_files = plan->tensors[i].file_idx + 1;
    struct bin_output *o = calloc(1, sizeof *o + n_files * sizeof(struct pt *));
    if (!o) return err_set(CZ_NOMEM, 0, "no memory for %zu files", n_files);
    cz_status st = CZ_OK;
    for (; o->n_files < n_files && st == CZ_OK; o->n_files++) {
        char name[SHARDS_NAME_NBYTES];
        char *path =
            file_join(plan->options->out_dir, shards_file_name(&shards, o->n_files, n_files, name));
        st = path ? pt_open(path, &o->files[o->n_files])
                  : err_set(CZ_NOMEM, 0, "no memory for a file's name");
        free(path);
    }
    if (st != CZ_OK) {
        bin_close(o);
        return st;
    }
    *output = o;
    return CZ_OK;
}

/* By name and dtype, which also checks the pickle that was written. */
static cz_status bin_read(const void *output, const struct cons_tensor *t, uint64_t elem_off,
                          size_t numel, void *dst)
{
    const struct bin_output *o = output;
    const struct pt *pt = o->files[t->file_idx];
    const struct pickle_node *node = pickle_get(pt_root(pt), t->tensor->name);
    if (!pickle_is(node, PICKLE_TENSOR) || node->tensor->numel != t->tensor->numel ||
        node->tensor->dtype != t->dtype)
        return err_set(CZ_CORRUPT, 0, "%s: %s is missing, or differs from the one that was written",
                       pt_path(pt), t->tensor->name);
    return pt_read(pt, node->tensor, elem_off, numel, dst);
}

const struct cons_sink_class cons_sink_bin = {
    bin_create, bin_n_files, bin_write, bin_finish, bin_destroy, bin_open, bin_read, bin_close,
};
