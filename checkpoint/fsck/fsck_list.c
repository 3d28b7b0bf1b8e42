/* Which files there are to check, and which should be there. With a manifest its list decides, and
 * shards that it does not list are findings; without one, everything that looks like a shard or a
 * weight is checked. */
#include "checkpoint/fsck/fsck_impl.h"

#include "checkpoint/read/names.h"
#include "formats/file_io.h"
#include "formats/json/json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The size is taken here, before any thread starts, because the total is what progress is measured
 * against. A file that is missing counts 0 bytes and is reported when it is opened. */
cz_status fsck_add_file(struct fsck_files *files, const char *path, enum fsck_kind kind,
                        const struct manifest_file *listed)
{
    if (files->n == files->cap) {
        const size_t cap = files->cap ? files->cap * 2 : 16;
        struct fsck_file *items = realloc(files->items, cap * sizeof *items);
        if (!items) return err_set(CZ_NOMEM, 0, "%s: out of memory", path);
        files->items = items;
        files->cap = cap;
    }
    struct stat info;
    struct fsck_file *file = &files->items[files->n];
    memset(file, 0, sizeof *file);
    file->path = strdup(path);
    file->kind = kind;
    file->listed = listed;
    file->nbytes = stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
    if (!file->path) return err_set(CZ_NOMEM, 0, "%s: out of memory", path);
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

static cz_status add_in(struct fsck_files *files, const char *dir, const char *name,
                        enum fsck_kind kind, const struct manifest_file *listed)
{
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    cz_status st = fsck_add_file(files, path, kind, listed);
    free(path);
    return st;
}

/* Every file of `dir` that ends in suffix, except hidden ones: those are temporary files of a save
 * under way. */
static cz_status add_ending(struct fsck_files *files, const char *dir, const char *suffix,
                            enum fsck_kind kind)
{
    struct ckpt_list list;
    TRY(ckpt_list_files(dir, suffix, &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++)
        if (list.names[i][0] != '.') st = add_in(files, dir, list.names[i], kind, NULL);
    ckpt_list_free(&list);
    return st;
}

/* ---- a tag ----------------------------------------------------------------------------------- */

/* zero/PARAMETER/fp32.pt … and zero/optimizer_state.pt of a universal checkpoint
 * (docs/deepspeed-behaviour.md, "Universal folders"). Other tags have no folder `zero`. */
static cz_status add_universal(struct fsck_files *files, const char *tag_dir)
{
    struct ckpt_list list = {NULL, 0};
    struct stat info;
    char *zero = file_join(tag_dir, "zero");
    cz_status st = zero ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: out of memory", tag_dir);
    if (st != CZ_OK || stat(zero, &info) != 0 || !S_ISDIR(info.st_mode)) goto done;
    TRY_GOTO(add_ending(files, zero, ".pt", FSCK_ZIP), done);
    TRY_GOTO(ckpt_list_files(zero, "", &list), done);
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) {
        char *path = file_join(zero, list.names[i]);
        if (!path)
            st = err_set(CZ_NOMEM, 0, "%s: out of memory", zero);
        else if (list.names[i][0] != '.' && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            st = add_ending(files, path, ".pt", FSCK_ZIP);
        free(path);
    }
done:
    ckpt_list_free(&list);
    free(zero);
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
                              "stale: no file of this checkpoint, its manifest does not list it%s",
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
        TRY(add_in(files, tag_dir, m->files[i].name, FSCK_LISTED, &m->files[i]));
    if (m) return find_stale(tag_dir, m, findings);
    TRY(add_ending(files, tag_dir, ".pt", FSCK_ZIP));
    return add_universal(files, tag_dir);
}

/* ---- a folder of weights --------------------------------------------------------------------- */

/* A file that an index names is missing. An index names the same file once per tensor, so a file
 * that was noted before is not noted again. */
static cz_status check_listed_name(const char *dir, const char *index, const struct json_node *item,
                                   struct fsck_findings *findings)
{
    const char *name;
    struct stat info;
    TRY(json_as_string(item, &name));
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    cz_status st = CZ_OK;
    bool noted = false;
    for (size_t i = 0; i < findings->n && !noted; i++)
        noted = strcmp(findings->items[i].path, path) == 0;
    if (!noted && stat(path, &info) != 0)
        st = fsck_note(findings, path, "", 0, 0, "missing: %s lists it", index);
    free(path);
    return st;
}

/* Every file that a model.safetensors.index.json or pytorch_model.bin.index.json names is there. */
static cz_status check_index(const char *dir, const char *name, struct fsck_findings *findings)
{
    struct json_doc *doc = NULL;
    const struct json_node *map = NULL;
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    cz_status st = json_load(path, JSON_STRICT, &doc);
    if (st == CZ_OK) st = json_need(json_root(doc), "weight_map", JSON_OBJECT, &map);
    for (size_t i = 0; st == CZ_OK && i < json_count(map); i++)
        st = check_listed_name(dir, name, json_child(map, i), findings);
    if (st == CZ_CORRUPT) st = fsck_note_error(findings, path);
    json_free(doc);
    free(path);
    return st;
}

cz_status fsck_list_weights(const char *dir, struct fsck_files *files,
                            struct fsck_findings *findings)
{
    TRY(add_ending(files, dir, ".safetensors", FSCK_SAFETENSORS));
    TRY(add_ending(files, dir, ".bin", FSCK_ZIP));
    TRY(add_ending(files, dir, ".pt", FSCK_ZIP));
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
    return err_set(CZ_NOTFOUND, 0,
                   "%s: nothing to check here: no checkpoint (a file 'latest', or "
                   "*_model_states.pt), and no weights (*.safetensors, *.bin, *.pt)",
                   dir);
}
