/* The manifest in memory: files, and the runs of tensors in them by rising offset and without
 * overlap. Both invariants are kept by every insertion, so readers of a manifest (fsck's single
 * pass, consolidation) need not check them. */
#include "checkpoint/store/manifest_impl.h"

#include "base/utf8.h"
#include "checkpoint/read/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void manifest_init(struct manifest *m)
{
    memset(m, 0, sizeof *m);
}

static void file_free(struct manifest_file *file)
{
    for (size_t i = 0; i < file->n_tensors; i++) {
        free(file->tensors[i].name);
        free(file->tensors[i].what);
    }
    free(file->tensors);
    free(file->name);
}

void manifest_free(struct manifest *m)
{
    for (size_t i = 0; i < m->n_files; i++) file_free(&m->files[i]);
    free(m->files);
    hash_index_free(&m->names);
    memset(m, 0, sizeof *m);
}

/* Grows by doubling. The pointer is passed as a copy, since a `struct manifest_file *` is no `void
 * *` to the compiler's aliasing rules. */
static cz_status reserve(void **items, size_t n, size_t *cap, size_t nbytes)
{
    if (n < *cap) return CZ_OK;
    size_t grown = *cap ? *cap * 2 : 16;
    void *moved = grown <= SIZE_MAX / nbytes ? realloc(*items, grown * nbytes) : NULL;
    if (!moved) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's manifest");
    *items = moved;
    *cap = grown;
    return CZ_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A name is joined to the tag's folder when it is read back, so one with `/` or `..` would let a
 * manifest point outside of it. */
const char *manifest_name_fault(const char *name)
{
    size_t n = strlen(name);
    if (n == 0) return "it is empty";
    if (n > MANIFEST_NBYTES_FILE) return "it is longer than 255 bytes";
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return "it leaves the folder";
    if (strcmp(name, CKPT_MANIFEST) == 0) return "a manifest does not list itself";
    if (!utf8_is_valid(name, n)) return "it is not UTF-8";
    for (const char *at = name; *at; at++) {
        if (*at == '/') return "it leaves the folder";
        if ((unsigned char)*at < 0x20 || *at == 0x7f) return "it contains a control character";
    }
    return NULL;
}

struct wanted {
    const struct manifest *m;
    const char *name;
};

static bool has_name(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->m->files[item].name, w->name) == 0;
}

const struct manifest_file *manifest_find(const struct manifest *m, const char *name)
{
    size_t i = hash_index_find(&m->names, hash_text(name), has_name, &(struct wanted){m, name});
    return i == HASH_NONE ? NULL : &m->files[i];
}

cz_status manifest_add_file(struct manifest *m, const char *name, uint64_t nbytes, uint32_t crc,
                            struct manifest_file **file)
{
    if (file) *file = NULL;
    const char *fault = manifest_name_fault(name);
    if (fault)
        return err_set(CZ_INVALID, 0, "'%.255s' cannot be a file of a checkpoint: %s", name, fault);
    if (manifest_find(m, name))
        return err_set(CZ_INVALID, 0, "the file %s is in the manifest already", name);
    if (nbytes > INT64_MAX)
        return err_set(CZ_INVALID, 0, "the file %s cannot have %" PRIu64 " bytes", name, nbytes);
    void *files = m->files;
    TRY(reserve(&files, m->n_files, &m->cap_files, sizeof *m->files));
    m->files = files;
    struct manifest_file *added = &m->files[m->n_files];
    *added = (struct manifest_file){.name = strdup(name), .nbytes = nbytes, .crc = crc};
    if (!added->name) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's manifest");
    cz_status st = hash_index_add(&m->names, hash_text(name), m->n_files);
    if (st != CZ_OK) {
        free(added->name);
        return st;
    }
    m->n_files++;
    if (file) *file = added;
    return CZ_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Where a run that begins at `off` belongs: after all that begin there or before. Writers add runs
 * by rising offset, so the search is skipped for them. */
static size_t place_of(const struct manifest_file *file, uint64_t off)
{
    size_t lo = 0, hi = file->n_tensors;
    if (hi > 0 && file->tensors[hi - 1].off <= off) return hi; /* as writers add them */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (file->tensors[mid].off <= off)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Neighbours suffice to find an overlap, because the list is sorted and was free of overlaps
 * before. */
static cz_status check_run(const struct manifest_file *file, size_t place,
                           const struct manifest_tensor *run)
{
    const struct manifest_tensor *before = place > 0 ? &file->tensors[place - 1] : NULL;
    const struct manifest_tensor *after = place < file->n_tensors ? &file->tensors[place] : NULL;
    if (run->nbytes > file->nbytes || run->off > file->nbytes - run->nbytes)
        return err_set(
            CZ_INVALID, 0,
            "%s, %s: bytes %" PRIu64 " to %" PRIu64 " are not inside %s, which has %" PRIu64,
            run->name, run->what, run->off, run->off + run->nbytes, file->name, file->nbytes);
    if (before && before->off + before->nbytes > run->off)
        after = before;
    else if (!after || run->off + run->nbytes <= after->off)
        return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: %s, %s and %s, %s share bytes", file->name, after->name,
                   after->what, run->name, run->what);
}

/* Empty runs are placeholders of stage 3, where the model file holds no values; they have no bytes
 * to check. */
cz_status manifest_add_tensor(struct manifest_file *file, const char *name, const char *what,
                              uint64_t off, uint64_t nbytes, uint32_t crc)
{
    struct manifest_tensor run = {(char *)name, (char *)what, off, nbytes, crc};
    if (!utf8_is_valid(name, strlen(name)) || !utf8_is_valid(what, strlen(what)))
        return err_set(CZ_INVALID, 0, "%s: a tensor's name is not UTF-8", file->name);
    if (nbytes == 0) return CZ_OK; /* a placeholder of stage 3 */
    size_t place = place_of(file, off);
    TRY(check_run(file, place, &run));
    void *tensors = file->tensors;
    TRY(reserve(&tensors, file->n_tensors, &file->cap_tensors, sizeof *file->tensors));
    file->tensors = tensors;
    run.name = strdup(name);
    run.what = strdup(what);
    if (!run.name || !run.what) {
        free(run.name);
        free(run.what);
        return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's manifest");
    }
    struct manifest_tensor *at = &file->tensors[place];
    memmove(at + 1, at, (file->n_tensors - place) * sizeof *at);
    *at = run;
    file->n_tensors++;
    return CZ_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Rank 0 merges every rank's part. Nothing is moved before all names are known to differ, so that
 * on an error both manifests still own their files. */
cz_status manifest_merge(struct manifest *m, struct manifest *from)
{
    if (m->world_size == 0) m->world_size = from->world_size, m->stage = from->stage;
    if (from->world_size != 0 && (from->world_size != m->world_size || from->stage != m->stage))
        return err_set(
            CZ_INVALID, 0,
            "parts of one checkpoint differ: world size %d, stage %d, and world size %d, "
            "stage %d",
            m->world_size, m->stage, from->world_size, from->stage);
    for (size_t i = 0; i < from->n_files; i++)
        if (manifest_find(m, from->files[i].name))
            return err_set(CZ_INVALID, 0, "two ranks wrote the file %s", from->files[i].name);
    TRY(hash_index_reserve(&m->names, m->n_files + from->n_files));
    for (size_t i = 0; i < from->n_files; i++) {
        void *files = m->files;
        TRY(reserve(&files, m->n_files + i, &m->cap_files, sizeof *m->files));
        m->files = files;
        m->files[m->n_files + i] = from->files[i];
    }
    /* Only now, when nothing can fail any more: until here `from` owned them. */
    for (size_t i = 0; i < from->n_files; i++)
        TRY(hash_index_add(&m->names, hash_text(from->files[i].name), m->n_files++));
    from->n_files = 0;
    manifest_free(from);
    return CZ_OK;
}
