/* What kinds of files a tag's folder holds, by their names (docs/deepspeed-behaviour.md, "Files"),
 * and whether they can belong to one save. DeepSpeed leaves the files of other ranks when a tag is
 * saved again by fewer of them, and its own script then fails or mixes them; here missing and stale
 * files are named. */
#include "checkpoint/read/checkpoint_impl.h"
#include "formats/beneath.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_SHOWN 16

/* ---- one name -------------------------------------------------------------------------------- */

struct shard_name {
    int dp, mp; /* dp -1: no zero_pp_rank_ */
    bool bf16;
};

/* Steps over `word` if the text begins with it. */
static bool take(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0) return false;
    *at += n;
    return true;
}

/* At most nine digits, so that the value cannot overflow. */
static bool take_number(const char **at, int *out)
{
    int value = 0, n_digits = 0;
    for (; **at >= '0' && **at <= '9' && n_digits < 9; ++*at, n_digits++)
        value = value * 10 + (**at - '0');
    *out = value;
    return n_digits > 0;
}

/* [bf16_|fp16_][zero_pp_rank_R_]mp_rank_MM[_]<kind>_states.pt */
static bool parse_name(const char *name, const char *kind, struct shard_name *out)
{
    *out = (struct shard_name){.dp = -1};
    out->bf16 = take(&name, "bf16_");
    if (!out->bf16) take(&name, "fp16_");
    if (take(&name, "zero_pp_rank_") && (!take_number(&name, &out->dp) || !take(&name, "_")))
        return false;
    if (!take(&name, "mp_rank_") || !take_number(&name, &out->mp)) return false;
    take(&name, "_"); /* very old optimizer files lack it */
    return strcmp(name, kind) == 0;
}

/* ---- the lists ------------------------------------------------------------------------------- */

/* One by one: a folder has a file per rank, and realloc() of that few entries costs nothing beside
 * opening them. */
static cz_status add_shard(struct ckpt_shard_file **files, size_t *n, const char *name,
                           const struct shard_name *parsed)
{
    struct ckpt_shard_file *grown = realloc(*files, (*n + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown) *files = grown;
    if (!grown || !copy) {
        free(copy);
        return err_set(CZ_NOMEM, 0, "out of memory");
    }
    grown[(*n)++] = (struct ckpt_shard_file){copy, parsed->dp, parsed->bf16};
    return CZ_OK;
}

static cz_status refuse(const char *dir, const char *name, const char *what)
{
    return err_set(CZ_UNSUPPORTED, 0, "%s/%s: a file of %s parallelism, which is not read here",
                   dir, name, what);
}

/* A file that is no shard is ignored, unless its name shows a kind of parallelism that is not
 * supported: then weights would be missing without a word. */
static cz_status take_file(const char *dir, const char *name, struct ckpt_folder *folder)
{
    struct shard_name parsed;
    bool is_model = parse_name(name, "model_states.pt", &parsed);
    bool is_optim = !is_model && parse_name(name, "optim_states.pt", &parsed);
    if (!is_model && !is_optim) {
        if (strncmp(name, "layer_", 6) == 0 || strncmp(name, "expp_rank_", 10) == 0)
            return refuse(dir, name, strstr(name, "exp") ? "expert" : "pipeline");
        return CZ_OK;
    }
    if (parsed.mp != 0) return refuse(dir, name, "tensor");
    if (is_optim && parsed.dp >= 0)
        return add_shard(&folder->optims, &folder->n_optims, name, &parsed);
    if (is_model && parsed.dp >= 0)
        return add_shard(&folder->models, &folder->n_models, name, &parsed);
    if (is_model && !folder->whole_model) {
        folder->whole_model = strdup(name);
        if (!folder->whole_model) return err_set(CZ_NOMEM, 0, "out of memory");
    }
    return CZ_OK;
}

static cz_status take_files(const char *dir, const char *suffix, struct ckpt_folder *folder)
{
    struct ckpt_list list;
    TRY(ckpt_list_files(dir, suffix, &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) st = take_file(dir, list.names[i], folder);
    ckpt_list_free(&list);
    return st;
}

/* By rank, so that file r of a complete list is rank r's. */
static int by_rank(const void *left, const void *right)
{
    const struct ckpt_shard_file *a = left, *b = right;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void sort_shards(struct ckpt_shard_file *files, size_t n)
{
    if (n > 1) qsort(files, n, sizeof *files, by_rank);
}

/* ---- do they belong together? ---------------------------------------------------------------- */

/* Both `bf16_zero_pp_rank_…` and `zero_pp_rank_…`: a tag that was saved in two precisions. Either
 * set alone could be read, and nothing tells which one is newer. */
static cz_status check_precision(const char *dir, const struct ckpt_folder *folder)
{
    const char *bf16 = NULL, *plain = NULL;
    for (size_t i = 0; i < folder->n_optims; i++) {
        const struct ckpt_shard_file *file = &folder->optims[i];
        if (file->bf16 && !bf16) bf16 = file->name;
        if (!file->bf16 && !plain) plain = file->name;
    }
    if (!bf16 || !plain) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: holds %s as well as %s: optimizer files of two saves with different "
                   "precision; move the older files away",
                   dir, bf16, plain);
}

/* The same rank under two names, such as bf16_ and fp16_. The lists are sorted, so equal ranks are
 * neighbours. */
static cz_status check_twice(const char *dir, const struct ckpt_shard_file *files, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (files[i].rank == files[i - 1].rank)
            return err_set(CZ_CORRUPT, 0, "%s: holds %s as well as %s, both of rank %d", dir,
                           files[i - 1].name, files[i].name, files[i].rank);
    return CZ_OK;
}

/* At least one model file must be there: it has the shapes, without which no other file can be
 * interpreted. */
static cz_status scan(const char *dir, struct ckpt_folder *folder)
{
    TRY(take_files(dir, "model_states.pt", folder));
    TRY(take_files(dir, "optim_states.pt", folder));
    sort_shards(folder->models, folder->n_models);
    sort_shards(folder->optims, folder->n_optims);
    struct stat info;
    cz_status st = beneath_stat(dir, "zero", &info);
    if (st == CZ_CORRUPT) return st;
    folder->is_universal = st == CZ_OK && S_ISDIR(info.st_mode);
    if (st != CZ_OK) err_clear();
    if (!folder->whole_model && folder->n_models == 0)
        return err_set(CZ_CORRUPT, 0, "%s: there is no *_model_states.pt in it", dir);
    if (folder->whole_model && folder->n_models > 0)
        return err_set(CZ_CORRUPT, 0,
                       "%s: holds %s (stages 0 to 2) as well as %s (stage 3): files of two saves; "
                       "move the older files away",
                       dir, folder->whole_model, folder->models[0].name);
    TRY(check_precision(dir, folder));
    TRY(check_twice(dir, folder->models, folder->n_models));
    return check_twice(dir, folder->optims, folder->n_optims);
}

cz_status ckpt_folder_scan(const char *dir, struct ckpt_folder *out)
{
    memset(out, 0, sizeof *out);
    cz_status st = scan(dir, out);
    if (st != CZ_OK) ckpt_folder_free(out);
    return st;
}

void ckpt_folder_free(struct ckpt_folder *folder)
{
    for (size_t i = 0; i < folder->n_models; i++) free(folder->models[i].name);
    for (size_t i = 0; i < folder->n_optims; i++) free(folder->optims[i].name);
    free(folder->models);
    free(folder->optims);
    free(folder->whole_model);
    memset(folder, 0, sizeof *folder);
}

/* ---- missing and stale ranks ----------------------------------------------------------------- */

/* Names joined by commas; beyond NAMES_SHOWN only how many more there are. */
struct names_text {
    char text[2048];
    size_t used, n;
};

static void names_add(struct names_text *t, const char *name)
{
    if (t->n++ >= NAMES_SHOWN || t->used + 1 >= sizeof t->text) return;
    size_t room = sizeof t->text - t->used;
    int put = snprintf(t->text + t->used, room, "%s%s", t->used ? ", " : "", name);
    t->used += (size_t)put < room ? (size_t)put : room - 1;
}

static void names_end(struct names_text *t)
{
    if (t->n <= NAMES_SHOWN) return;
    snprintf(t->text + t->used, sizeof t->text - t->used, " and %zu more", t->n - NAMES_SHOWN);
}

/* Which of the files that world_size ranks write are not there. The names are made as a writer
 * makes them, to be copied into a search. */
static cz_status missing(const struct ckpt *ck, const struct ckpt_shard_file *files, size_t n,
                         int world_size, const char *what)
{
    struct names_text t = {.n = 0};
    bool bf16 =
        n > 0 ? files[0].bf16
              : ck->info.model_dtype && strcmp(ck->info.model_dtype->torch_name, "bfloat16") == 0;
    size_t at = 0;
    for (int r = 0; r < world_size; r++) {
        char name[CKPT_NAME_MAX];
        while (at < n && files[at].rank < r) at++;
        if (at < n && files[at].rank == r) continue;
        if (strcmp(what, "model") == 0)
            ckpt_model_file(3, r, name);
        else
            ckpt_optim_file(bf16, r, name);
        names_add(&t, name);
    }
    if (t.n == 0) return CZ_OK;
    names_end(&t);
    return err_set(CZ_CORRUPT, 0, "%s: %zu of %d %s files are missing: %s", ck->tag_dir, t.n,
                   world_size, what, t.text);
}

/* Missing files first: a folder with both missing and surplus ranks is most likely incomplete. */
cz_status ckpt_folder_check(const struct ckpt *ck, const struct ckpt_shard_file *files, size_t n,
                            int world_size, const char *what)
{
    TRY(missing(ck, files, n, world_size, what));
    struct names_text t = {.n = 0};
    for (size_t i = 0; i < n; i++)
        if (files[i].rank >= world_size) names_add(&t, files[i].name);
    if (t.n == 0) return CZ_OK;
    names_end(&t);
    return err_set(CZ_CORRUPT, 0,
                   "%s: stale %s file%s %s: the checkpoint was saved by %d rank%s; move the files "
                   "of the earlier save away",
                   ck->tag_dir, what, t.n == 1 ? "" : "s", t.text, world_size,
                   world_size == 1 ? "" : "s");
}
