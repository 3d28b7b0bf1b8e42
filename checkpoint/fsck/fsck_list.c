/* Which files there are to check, and which should be there. With a manifest its list decides, and
 * shards that it does not list are findings; without one, everything that looks like a shard or a
 * weight is checked. */
#include "checkpoint/fsck/fsck_impl.h"

#include "checkpoint/read/names.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/safetensors/shards.h"

#include <stdlib.h>
#include <string.h>

/* The size is taken here, before any thread starts, because the total is what progress is measured
 * against. A file that is missing, or refused, counts 0 bytes and is reported when it is opened. */
cz_status fsck_add_file(struct fsck_files *files, const char *dir, const char *name,
                        enum fsck_kind kind, const struct manifest_file *listed)
{
    if (files->n == files->cap) {
        const size_t cap = files->cap ? files->cap * 2 : 16;
        struct fsck_file *items = realloc(files->items, cap * sizeof *items);
        if (!items) return err_set(CZ_NOMEM, 0, "%s: out of memory", name);
        files->items = items;
        files->cap = cap;
    }
    struct stat info;
    struct fsck_file *file = &files->items[files->n];
    memset(file, 0, sizeof *file);
    file->path = dir ? file_join(dir, name) : strdup(name);
    if (!file->path) return err_set(CZ_NOMEM, 0, "%s: out of memory", name);
    file->dir = dir;
    file->name = file->path + strlen(file->path) - strlen(name);
    file->kind = kind;
    file->listed = listed;
    file->nbytes = beneath_stat(dir, name, &info) == CZ_OK ? (uint64_t)info.st_size : 0;
    err_clear();
    files->n++;
    return CZ_OK;
}

void fsck_files_free(struct fsck_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->items[i].path);
        fsck_findings_free(&files->items[i].findings);
    }
    free(files->items);
    memset(files, 0, sizeof *files);
}

/* Every file of dir/sub (sub "": dir) that ends in suffix, except hidden ones: those are temporary
 * files of a save under way. A folder that a link moves elsewhere is a finding. */
static cz_status add_ending(struct fsck_files *files, const char *dir, const char *sub,
                            const char *suffix, enum fsck_kind kind, struct fsck_findings *findings)
{
    struct ckpt_list list;
    cz_status st =
        *sub ? ckpt_list_files_in(dir, sub, suffix, &list) : ckpt_list_files(dir, suffix, &list);
    if (st == CZ_CORRUPT) return fsck_note_error(findings, dir);
    TRY(st);
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) {
        if (list.names[i][0] == '.') continue;
        char *name = file_join(sub, list.names[i]);
        st = name ? fsck_add_file(files, dir, name, kind, NULL)
                  : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        free(name);
    }
    ckpt_list_free(&list);
    return st;
}

/* ---- a tag ----------------------------------------------------------------------------------- */

/* zero/PARAMETER/fp32.pt … and zero/optimizer_state.pt of a universal checkpoint
 * (docs/deepspeed-behaviour.md, "Universal folders"). Other tags have no folder `zero`. */
static cz_status add_universal(struct fsck_files *files, const char *tag_dir,
                               struct fsck_findings *findings)
{
    struct ckpt_list list;
    cz_status st = CZ_OK;
    struct stat info;
    if (beneath_stat(tag_dir, "zero", &info) == CZ_CORRUPT)
        return fsck_note_error(findings, tag_dir);
    err_clear();
    if (!beneath_is_folder(tag_dir, "zero")) return CZ_OK;
    TRY(add_ending(files, tag_dir, "zero", ".pt", FSCK_ZIP, findings));
    TRY(ckpt_list_files_in(tag_dir, "zero", "", &list));
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) {
        char *name = file_join("zero", list.names[i]);
        if (!name)
            st = err_set(CZ_NOMEM, 0, "%s: out of memory", tag_dir);
        else if (list.names[i][0] != '.' && beneath_stat(tag_dir, name, &info) == CZ_CORRUPT)
            st = fsck_note_error(findings, tag_dir);
        else if (list.names[i][0] != '.' && beneath_is_folder(tag_dir, name))
            st = add_ending(files, tag_dir, name, ".pt", FSCK_ZIP, findings);
        free(name);
    }
    ckpt_list_free(&list);
    return st;
}

static bool ends_in(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

/* Shards that the manifest does not list, as a save with more ranks under the same tag leaves them
 * in DeepSpeed: its loader and scripts go by names and would take them for part of the
 * checkpoint. */
static cz_status find_stale(const char *tag_dir, const struct manifest *m,
                            struct fsck_findings *findings)
{
    struct ckpt_list list;
    TRY(ckpt_list_files(tag_dir, ".pt", &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) {
        if (manifest_find(m, list.names[i])) continue;
        char *path = file_join(tag_dir, list.names[i]);
        st = path ? fsck_note(findings, path, "", 0, 0,
                              "stale: the checkpoint's manifest does not list it%s",
                              ends_in(list.names[i], "_states.pt")
                                  ? "; tools that go by names would take it for a shard"
                                  : "")
                  : err_set(CZ_NOMEM, 0, "%s: out of memory", tag_dir);
        free(path);
    }
    ckpt_list_free(&list);
    return st;
}

cz_status fsck_list_tag(const char *tag_dir, const struct manifest *m, struct fsck_files *files,
                        struct fsck_findings *findings)
{
    for (size_t i = 0; m && i < m->n_files; i++)
        TRY(fsck_add_file(files, tag_dir, m->files[i].name, FSCK_LISTED, &m->files[i]));
    if (m) return find_stale(tag_dir, m, findings);
    TRY(add_ending(files, tag_dir, "", ".pt", FSCK_ZIP, findings));
    return add_universal(files, tag_dir, findings);
}

/* ---- a folder of weights --------------------------------------------------------------------- */

/* Every file that a model.safetensors.index.json or pytorch_model.bin.index.json names is there. */
static cz_status check_index(const char *dir, const char *name, struct fsck_findings *findings)
{
    struct shards_index index;
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    cz_status st = shards_index_load(dir, name, &index);
    for (size_t i = 0; st == CZ_OK && i < index.n_files; i++) {
        struct stat info;
        char *shard = file_join(dir, index.files[i]);
        const cz_status found = beneath_stat(dir, index.files[i], &info);
        if (found != CZ_CORRUPT) err_clear();
        if (!shard)
            st = err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        else if (found == CZ_CORRUPT)
            st = fsck_note_error(findings, shard);
        else if (found != CZ_OK)
            st = fsck_note(findings, shard, "", 0, 0, "missing: %s lists it", name);
        free(shard);
    }
    if (st == CZ_CORRUPT) st = fsck_note_error(findings, path);
    shards_index_free(&index);
    free(path);
    return st;
}

cz_status fsck_list_weights(const char *dir, struct fsck_files *files,
                            struct fsck_findings *findings)
{
    TRY(add_ending(files, dir, "", ".safetensors", FSCK_SAFETENSORS, findings));
    TRY(add_ending(files, dir, "", ".bin", FSCK_ZIP, findings));
    TRY(add_ending(files, dir, "", ".pt", FSCK_ZIP, findings));
    struct ckpt_list list;
    TRY(ckpt_list_files(dir, ".index.json", &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++)
        st = check_index(dir, list.names[i], findings);
    ckpt_list_free(&list);
    /* An index alone, with all its weights missing, is not "nothing to check": the findings say
     * so. */
    TRY(st);
    if (files->n > 0 || findings->n > 0) return CZ_OK;
    TRY(ckpt_check_trainer(dir));
    return err_set(CZ_NOTFOUND, 0,
                   "%s: nothing to check here: no checkpoint (a file 'latest', or "
                   "*_model_states.pt), and no weights (*.safetensors, *.bin, *.pt)",
                   dir);
}
