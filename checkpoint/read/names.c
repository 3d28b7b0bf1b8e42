/* Names of files and tags: how DeepSpeed calls them (docs/deepspeed-behaviour.md, "Files"), and
 * where a user's DIR and TAG lead. A tag becomes a path and a line of `latest`, so what it may be
 * is decided here, for writers and readers alike. */
#include "checkpoint/read/names.h"

#include "formats/beneath.h"
#include "formats/file_io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TAG_NBYTES_MAX    200u  /* leaves space for ".TAG.deleting" in a name of 255 bytes */
#define PATH_NBYTES_MAX   1000u /* of a tag with slashes */
#define LATEST_NBYTES_MAX 4096u /* far more than a tag and its white space */
#define TAGS_SHOWN        5

/* Stages 0 to 2 have one model file, written by rank 0; in stage 3 each rank has parts of the
 * parameters and so a file. */
void ckpt_model_file(int stage, int rank, char out[CKPT_NAME_MAX])
{
    if (stage < 3)
        snprintf(out, CKPT_NAME_MAX, "mp_rank_00_model_states.pt");
    else
        snprintf(out, CKPT_NAME_MAX, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
}

/* DeepSpeed prefixes the files of bf16 runs; one folder has files of one precision only
 * (folder.c). */
void ckpt_optim_file(bool bf16, int rank, char out[CKPT_NAME_MAX])
{
    snprintf(out, CKPT_NAME_MAX, "%szero_pp_rank_%d_mp_rank_00_optim_states.pt",
             bf16 ? "bf16_" : "", rank);
}

void ckpt_onebit_name(int rank, char out[CKPT_NAME_MAX])
{
    snprintf(out, CKPT_NAME_MAX, CKPT_ONEBIT_PREFIX "%05d.pt", rank);
}

/* ---- tags ------------------------------------------------------------------------------------ */

/* Why `tag` cannot be one; NULL when it can. A slash would lead out of the folder, and dots and
 * control characters into hidden or unprintable names. */
static const char *tag_fault(const char *tag)
{
    const size_t n = strlen(tag);
    if (n == 0) return "it is empty";
    if (strchr(tag, '/')) return "it contains a slash";
    if (tag[0] == '.') return "it begins with a dot";
    if (n > TAG_NBYTES_MAX) return "it is longer than 200 bytes";
    if (strcmp(tag, CKPT_LATEST) == 0 || strcmp(tag, CKPT_LATEST_UNIVERSAL) == 0)
        return "this is the name of the file that names the newest checkpoint";
    /* Readers of `latest` (DeepSpeed's, too) drop white space around what it names. */
    if (tag[0] == ' ' || tag[n - 1] == ' ') return "it begins or ends with a space";
    for (const char *at = tag; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f) return "it contains a control character";
    return NULL;
}

/* The same of a tag to read: DeepSpeed joins "run/step4" to the folder, so each part is a tag's
 * name. No part begins with a dot, so none leads upwards. */
static const char *path_fault(const char *tag)
{
    char part[TAG_NBYTES_MAX + 2];
    if (strlen(tag) > PATH_NBYTES_MAX) return "it is longer than 1000 bytes";
    for (const char *at = tag;; at++) {
        const size_t n = strcspn(at, "/");
        snprintf(part, sizeof part, "%.*s", (int)(n < sizeof part ? n : sizeof part), at);
        const char *fault = tag_fault(part);
        if (fault) return n < strlen(tag) && n == 0 ? "a part of its path is empty" : fault;
        at += n;
        if (*at == '\0') return NULL;
    }
}

cz_status ckpt_tag_check(const char *tag)
{
    const char *fault = tag_fault(tag);
    if (!fault) return CZ_OK;
    return err_set(CZ_INVALID, 0, "'%.200s' cannot be a checkpoint's tag: %s", tag, fault);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cut white space off both ends of text (n bytes), in place. */
static char *trim(char *text, size_t n)
{
    while (n > 0 && is_space(text[n - 1])) n--;
    text[n] = '\0';
    while (is_space(*text)) text++;
    return text;
}

/* A user or DeepSpeed may have written `latest`: white space around the tag is allowed, anything
 * that is not a tag is damage. */
static cz_status latest_parse(const char *path, char *text, size_t n, char **tag)
{
    bool holds_nul = strlen(text) != n;
    const char *name = trim(text, n);
    const char *fault = holds_nul ? "it contains a control character" : path_fault(name);
    if (fault)
        return err_set(CZ_CORRUPT, 0,
                       "%s: does not name a tag: %s; name one yourself, or repair it", path, fault);
    *tag = strdup(name);
    return *tag ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: out of memory", path);
}

cz_status ckpt_latest_read(const char *dir, bool universal, char **tag)
{
    *tag = NULL;
    char *path = file_join(dir, universal ? CKPT_LATEST_UNIVERSAL : CKPT_LATEST);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    char *text = NULL;
    size_t n = 0;
    cz_status st = beneath_load(dir, universal ? CKPT_LATEST_UNIVERSAL : CKPT_LATEST,
                                LATEST_NBYTES_MAX, &text, &n);
    if (st == CZ_INVALID)
        st = err_set(CZ_CORRUPT, 0, "%s: does not name a tag: it is longer than %u bytes", path,
                     LATEST_NBYTES_MAX);
    if (st == CZ_OK) st = latest_parse(path, text, n, tag);
    free(text);
    free(path);
    /* A tag that is not there, or is a file, is for the caller to judge. */
    struct stat info;
    if (st == CZ_OK && beneath_stat(dir, *tag, &info) == CZ_CORRUPT) {
        free(*tag);
        *tag = NULL;
        return CZ_CORRUPT;
    }
    if (st == CZ_OK) err_clear();
    return st;
}

/* ---- where a user's DIR and TAG lead --------------------------------------------------------- */

/* A disk that fails is no folder that is not there: a run would begin again from nothing. */
static cz_status find_folder(const char *path, bool *found)
{
    struct stat info;
    const bool is_there = stat(path, &info) == 0;
    *found = is_there && S_ISDIR(info.st_mode);
    if (is_there || errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG)
        return CZ_OK;
    return err_set(CZ_IO, errno, "%s: cannot be examined", path);
}

/* Whether a folder holds what a tag's folder does. A universal checkpoint has no model file at its
 * top, but the folder zero. Errors: CZ_NOMEM, CZ_IO. */
static cz_status find_tag_files(const char *dir, bool *found)
{
    struct ckpt_list list;
    TRY(find_folder(dir, found));
    if (!*found) return CZ_OK;
    TRY(ckpt_list_files(dir, "_model_states.pt", &list));
    *found = list.n > 0 || beneath_is_folder(dir, "zero");
    ckpt_list_free(&list);
    return CZ_OK;
}

bool ckpt_is_tag_folder(const char *path)
{
    bool yes = false;
    if (find_tag_files(path, &yes) != CZ_OK) err_clear();
    return yes;
}

/* Hidden folders are those of a save under way. */
static bool holds_tag(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    const bool yes =
        path && name[0] != '.' && beneath_is_folder(dir, name) && ckpt_is_tag_folder(path);
    free(path);
    return yes;
}

/* "; tags in this folder: a, b, …", or "" when there are none. Only for messages, so it never
 * fails: what cannot be read is left out. */
static void tags_text(const char *dir, char *text, size_t n)
{
    struct ckpt_list list;
    size_t used = 0, shown = 0;
    text[0] = '\0';
    if (ckpt_list_files(dir, "", &list) != CZ_OK) return;
    for (size_t i = list.n; i-- > 0 && shown <= TAGS_SHOWN && used < n;) { /* the newest first */
        if (!holds_tag(dir, list.names[i])) continue;
        const char *lead = shown == 0 ? "; tags in this folder: " : ", ";
        used += (size_t)snprintf(text + used, n - used, "%s%s", lead,
                                 shown < TAGS_SHOWN ? list.names[i] : "…");
        shown++;
    }
    ckpt_list_free(&list);
}

/* Tells what is there instead, since the usual mistake is a folder one level too high or too
 * low. */
static cz_status no_tag(const char *dir, const char *tag, const char *source)
{
    char tags[1024];
    bool is_folder;
    TRY(find_folder(dir, &is_folder));
    if (!is_folder) return err_set(CZ_NOTFOUND, 0, "%s: there is no such folder", dir);
    tags_text(dir, tags, sizeof tags);
    if (!tag)
        return err_set(CZ_NOTFOUND, 0,
                       "%s: no checkpoint here: neither a file 'latest' nor *_model_states.pt%s",
                       dir, tags);
    return err_set(CZ_NOTFOUND, 0, "%s: there is no tag '%s'%s%s", dir, tag, source, tags);
}

/* DIR/tag, which must be a folder. Takes over tag. source names the origin of the tag for
 * messages: a user that gave no tag must learn of `latest`. */
static cz_status locate_tag(const char *dir, char *tag, const char *source, char **tag_dir,
                            char **tag_out)
{
    char *path = file_join(dir, tag);
    bool found = false;
    cz_status st =
        path ? find_folder(path, &found) : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    if (st == CZ_OK && !found) st = no_tag(dir, tag, source);
    if (st == CZ_OK) {
        *tag_dir = path;
        *tag_out = tag;
        return CZ_OK;
    }
    free(path);
    free(tag);
    return st;
}

/* The step of Trainer's "checkpoint-500"; -1: it is another name. */
static long long trainer_step(const char *name)
{
    static const char prefix[] = "checkpoint-";
    const char *digits = name + sizeof prefix - 1;
    char *end;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || *digits < '0' || *digits > '9') return -1;
    errno = 0;
    const long long step = strtoll(digits, &end, 10);
    return *end || errno ? -1 : step;
}

/* Trainer keeps a folder of checkpoints per save: checkpoint-500/global_step500. */
cz_status ckpt_check_trainer(const char *dir)
{
    struct ckpt_list list;
    char names[256] = "";
    const char *newest = NULL;
    size_t n = 0, at = 0;
    if (ckpt_list_files(dir, "", &list) != CZ_OK) {
        if (cz_last_status() != CZ_NOTFOUND) return cz_last_status();
        err_clear();
        return CZ_OK;
    }
    for (size_t i = 0; i < list.n; i++) {
        const char *name = list.names[i];
        const long long step = trainer_step(name);
        if (step < 0 || !beneath_is_folder(dir, name)) continue;
        if (at < 200)
            at +=
                (size_t)snprintf(names + at, sizeof names - at, "%s%.32s", n > 0 ? ", " : "", name);
        if (!newest || step > trainer_step(newest)) newest = name;
        n++;
    }
    const cz_status st =
        n == 0 ? CZ_OK
               : err_set(CZ_NOTFOUND, 0,
                         "%s: is the output folder of a trainer, with a folder per checkpoint "
                         "(%s%s): name one of them, such as %s/%s",
                         dir, names, at >= 200 ? ", …" : "", dir, newest);
    ckpt_list_free(&list);
    return st;
}

/* DIR itself; its own name is the tag, also for "." and "a/..". */
static cz_status locate_self(const char *dir, char **tag_dir, char **tag_out)
{
    bool found;
    TRY(find_tag_files(dir, &found));
    if (!found) {
        TRY(ckpt_check_trainer(dir));
        return no_tag(dir, NULL, "");
    }
    char *real = realpath(dir, NULL);
    if (!real) return err_set(CZ_IO, errno, "%s: cannot be examined", dir);
    const char *slash = strrchr(real, '/');
    *tag_out = strdup(slash ? slash + 1 : real);
    *tag_dir = strdup(dir);
    free(real);
    if (*tag_out && *tag_dir) return CZ_OK;
    free(*tag_out);
    free(*tag_dir);
    *tag_out = *tag_dir = NULL;
    return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
}

cz_status ckpt_no_file(const char *dir)
{
    struct stat info;
    if (stat(dir, &info) != 0 || S_ISDIR(info.st_mode)) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: is a file; a folder of checkpoints, or a tag's, is needed",
                   dir);
}

/* A tag that was given wins over `latest`, `latest` over latest_universal, and both over the folder
 * itself. */
cz_status ckpt_locate(const char *dir, const char *tag, char **tag_dir, char **tag_out)
{
    *tag_dir = *tag_out = NULL;
    TRY(ckpt_no_file(dir));
    if (tag) {
        const char *fault = path_fault(tag);
        if (fault)
            return err_set(CZ_INVALID, 0, "'%.200s' cannot be a checkpoint's tag: %s", tag, fault);
        char *copy = strdup(tag);
        if (!copy) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        return locate_tag(dir, copy, "", tag_dir, tag_out);
    }
    for (int universal = 0; universal < 2; universal++) {
        char *named = NULL;
        cz_status st = ckpt_latest_read(dir, universal != 0, &named);
        const char *source =
            universal ? ", which 'latest_universal' names" : ", which 'latest' names";
        if (st == CZ_OK) return locate_tag(dir, named, source, tag_dir, tag_out);
        if (st != CZ_NOTFOUND) return st;
        err_clear();
    }
    return locate_self(dir, tag_dir, tag_out);
}

/* ---- the dictionary ------------------------------------------------------------------------- */

static const char *const own_keys[] = {"module",
                                       "buffer_names",
                                       "optimizer",
                                       "param_shapes",
                                       "frozen_param_shapes",
                                       "shared_params",
                                       "frozen_param_fragments",
                                       "lr_scheduler",
                                       "data_sampler",
                                       "random_ltd",
                                       "sparse_tensor_module_names",
                                       "csr_tensor_module_names",
                                       "skipped_steps",
                                       "global_steps",
                                       "global_samples",
                                       "dp_world_size",
                                       "mp_world_size",
                                       "checkpoint_parallel_dimensions",
                                       "ds_config",
                                       "ds_version",
                                       "universal_checkpoint_info"};

/* At the top of the dictionary only: a user's own may use the same words. */
bool ckpt_is_own_key(const char *key)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(own_keys); i++)
        if (strcmp(own_keys[i], key) == 0) return true;
    return false;
}
