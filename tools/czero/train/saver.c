/* --save, --resume and --init of czero train. A failed periodic save is a warning, since the run is
 * worth more than one checkpoint; a failed last save is an error. All ranks must come to the same
 * decision, or the next collective call would hang: what only one rank can see is gathered
 * first. */
#include "tools/czero/train/saver.h"

#include "base/log.h"
#include "checkpoint/read/names.h"
#include "checkpoint/store/store.h"
#include "formats/output.h"
#include "tools/czero/output.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Before training, not after hours of it. */
cz_status saver_check(const struct saver *s)
{
    if (!s->dir || store_check(s->dir) == CZ_OK) return CZ_OK;
    return err_prefix("--save");
}

/* The config and the tokenizer of saver_describe() would replace those of a model. */
static cz_status check_described(const struct saver *s)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/" SAVER_MODEL_FOLDER, s->dir) >= PATH_MAX) return CZ_OK;
    return output_check_model(&(struct output_model){"--save", path, .force = false});
}

/* The best evaluations of a run that was killed before its first save are checkpoints, too. */
static cz_status find_earlier(const struct saver *s, struct ckpt_list *run)
{
    static const char *const others[] = {SAVER_BEST_FOLDER, NULL};
    return store_find_run(s->dir, others, run);
}

/* Refuse, and say what --resume continues: the newest checkpoint, or the best. */
static cz_status refuse(const struct saver *s)
{
    char *tag_dir = NULL, *tag = NULL;
    const bool has_latest = ckpt_locate(s->dir, NULL, &tag_dir, &tag) == CZ_OK;
    err_clear();
    if (has_latest)
        err_set(CZ_INVALID, 0,
                "--save %s: holds checkpoints already (the latest is %s): --resume continues their "
                "run, --force moves them to a folder %s/earlier-N and starts a new one",
                s->dir, tag, s->dir);
    else
        err_set(CZ_INVALID, 0,
                "--save %s: holds checkpoints of a run already, but none is named as the latest: "
                "--resume %s:TAG or %s/" SAVER_BEST_FOLDER
                " continues it, --force moves them to a folder %s/earlier-N and starts a new one",
                s->dir, s->dir, s->dir, s->dir);
    free(tag_dir);
    free(tag);
    return CZ_INVALID;
}

cz_status saver_check_unused(const struct saver *s)
{
    struct ckpt_list run;
    if (!s->dir) return CZ_OK;
    TRY(find_earlier(s, &run));
    const bool is_used = run.n > 0;
    ckpt_list_free(&run);
    return is_used ? refuse(s) : check_described(s);
}

cz_status saver_set_aside(const struct saver *s)
{
    static const char *const all[] = {SAVER_BEST_FOLDER, SAVER_MODEL_FOLDER, NULL};
    struct ckpt_list run;
    char name[32];
    if (!s->dir) return CZ_OK;
    TRY(find_earlier(s, &run));
    bool is_used = run.n > 0 || check_described(s) != CZ_OK;
    err_clear();
    ckpt_list_free(&run);
    if (!is_used) return CZ_OK;
    TRY(store_find_run(s->dir, all, &run));
    cz_status st = store_set_aside(s->dir, &run, name);
    ckpt_list_free(&run);
    if (st != CZ_OK) return err_prefix("--save");
    LOGV(LOG_INFO, SUB_CKPT, "--save %s: the checkpoints of the earlier run are in %s/%s now",
         s->dir, s->dir, name);
    return CZ_OK;
}

/* config.json and tokenizer next to the checkpoints: DeepSpeed's files hold neither, and `czero
 * export` needs both. */
cz_status saver_describe(const struct saver *s, const struct cz_model *model,
                         const struct cz_tokenizer *tokenizer, const struct chat_template *chat)
{
    struct out_folder run = {.path = NULL}, in = {.path = NULL};
    cz_status st;
    if (!s->dir) return CZ_OK;
    TRY_GOTO(out_folder_open(s->dir, &run), done);
    TRY_GOTO(out_folder_below(&run, SAVER_MODEL_FOLDER, true, &in), done);
    TRY_GOTO(model_export_config(model, &in, DTYPE_F32), done);
    if (cz_model_has_adapter(model)) TRY_GOTO(model_export_adapter_config(model, &in), done);
    TRY_GOTO(chat_template_export(chat, tokenizer, &in), done);
done:
    out_folder_close(&in);
    out_folder_close(&run);
    return st == CZ_OK ? CZ_OK : err_prefix("--save");
}

/* Whether `latest` in dir names the folder tag_dir; compared by inode, because paths to one folder
 * can differ (links, "./"). */
static bool latest_is(const char *dir, const char *tag_dir)
{
    char *tag = NULL, path[PATH_MAX];
    struct stat a, b;
    bool same = ckpt_latest_read(dir, false, &tag) == CZ_OK &&
                snprintf(path, sizeof path, "%s/%s", dir, tag) < (int)sizeof path &&
                stat(path, &a) == 0 && stat(tag_dir, &b) == 0 && a.st_dev == b.st_dev &&
                a.st_ino == b.st_ino;
    err_clear();
    free(tag);
    return same;
}

/* A run that resumes and ends at the same step need not write the same checkpoint again, if every
 * rank sees it so. */
cz_status saver_resumed(struct saver *s, struct cz_engine *engine, const char *tag_dir)
{
    double same = s->dir && latest_is(s->dir, tag_dir), n_same;
    TRY(engine_gather_metrics(engine, &same, 1, &n_same));
    if (n_same == (double)engine_get_world_size(engine))
        s->saved_step = engine_get_global_steps(engine);
    return CZ_OK;
}

static cz_status save(struct saver *s, struct cz_engine *engine,
                      const struct cz_data_cursor *cursor, const char *state_json)
{
    const struct cz_save_options options = {.size = sizeof options,
                                            .cursor = cursor,
                                            .client_state_json = state_json,
                                            .keep = s->keep,
                                            .weights_only = s->weights_only};
    TRY(engine_save_begin(engine, s->dir, &options));
    s->saved_step = engine_get_global_steps(engine);
    return CZ_OK;
}

bool saver_is_due(const struct saver *s, const struct cz_engine *engine)
{
    return s->dir && s->interval > 0 && engine_get_global_steps(engine) % s->interval == 0;
}

/* Warns and continues; the next interval tries again. */
void saver_step(struct saver *s, struct cz_engine *engine, const struct cz_data_cursor *cursor,
                const char *state_json)
{
    int64_t step = engine_get_global_steps(engine);
    if (save(s, engine, cursor, state_json) == CZ_OK) return;
    if (engine_get_rank(engine) == 0)
        LOGV(LOG_WARN, SUB_CKPT, "step %lld was not saved, but the run continues: %s",
             (long long)step, cz_last_error());
    err_clear();
}

cz_status saver_end(struct saver *s, struct cz_engine *engine, const struct cz_data_cursor *cursor,
                    const char *state_json)
{
    /* Stopped before the first step: `latest` of an earlier run is worth more than step 0. */
    if (!s->dir || engine_get_global_steps(engine) == 0) return CZ_OK;
    bool is_saved = s->saved_step == engine_get_global_steps(engine);
    if (is_saved && engine_save_wait(engine) == CZ_OK) return CZ_OK;
    TRY(save(s, engine, cursor, state_json));
    return engine_save_wait(engine);
}

/* ---- resuming -------------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The colon between DIR and TAG, both of which may hold some: what is before it is a folder. NULL:
 * there is no tag. */
static const char *find_colon(const char *text)
{
    const char *found = NULL;
    if (access(text, F_OK) == 0) return NULL;
    for (const char *at = strchr(text, ':'); at; at = strchr(at + 1, ':')) {
        if (at == text || at[1] == '\0' || strchr(at, '/')) continue; /* no tag holds a slash */
        char *dir = strndup(text, (size_t)(at - text));
        if (!found || (dir && is_folder(dir))) found = at;
        free(dir);
    }
    return found;
}

/* A folder that does not load is no error here: loading reports it in full. */
cz_status resume_parse(const char *text, struct resume_point *p)
{
    const char *colon = find_colon(text);
    memset(p, 0, sizeof *p);
    p->dir = colon ? strndup(text, (size_t)(colon - text)) : strdup(text);
    p->tag = colon ? strdup(colon + 1) : NULL;
    if (!p->dir || (colon && !p->tag)) return err_set(CZ_NOMEM, 0, "no memory for --resume");
    p->run.size = sizeof p->run;
    cz_status st = cz_saved_run_read(p->dir, p->tag, &p->run);
    p->has_run = st == CZ_OK;
    if (st == CZ_IO || st == CZ_NOMEM) return st; /* loading may succeed, without this seed */
    err_clear();                                  /* what else is wrong with it, loading says */
    return CZ_OK;
}

void resume_free(struct resume_point *p)
{
    free(p->dir);
    free(p->tag);
    memset(p, 0, sizeof *p);
}

cz_status resume_load(const struct resume_point *p, struct cz_engine *engine,
                      struct cz_load_result *result)
{
    const struct cz_load_options options = {
        .size = sizeof options, .tag = p->tag, .renames = p->renames};
    return engine_load_checkpoint_ex(engine, p->dir, &options, result);
}

/* Locating is enough; loading would read gigabytes. */
cz_status find_checkpoint(const char *dir, bool *found)
{
    char *tag_dir, *tag;
    cz_status st = ckpt_locate(dir, NULL, &tag_dir, &tag);
    *found = st == CZ_OK;
    if (st == CZ_NOTFOUND || st == CZ_INVALID) {
        err_clear();
        return CZ_OK;
    }
    if (st != CZ_OK) return st;
    free(tag_dir);
    free(tag);
    return CZ_OK;
}

/* Weights only: optimizer state and counters belong to the earlier run. */
cz_status init_weights(const char *dir, const char *const *renames, struct cz_engine *engine)
{
    const struct cz_load_options options = {
        .size = sizeof options, .module_only = true, .renames = renames};
    return engine_load_checkpoint_ex(engine, dir, &options, NULL);
}

/* DeepSpeed's checkpoints have no data cursor. The number of samples so far gives the place,
 * assuming the same data and batch. */
cz_status resume_data(const struct cz_load_result *result, const struct cz_engine *engine,
                      bool drop_last, struct cz_data_loader *data)
{
    struct cz_data_cursor cursor;
    if (result->has_cursor) return cz_data_seek(data, &result->cursor);
    cz_data_tell(data, &cursor);
    uint64_t rows = cursor.n_rows, samples = (uint64_t)engine_get_global_samples(engine);
    uint64_t per_batch = (uint64_t)(engine_get_micro_batch(engine) * engine_get_world_size(engine));
    if (drop_last) rows -= rows % per_batch;
    if (rows == 0) return CZ_OK;
    cursor.epoch = samples / rows;
    cursor.sample = samples % rows;
    return cz_data_seek(data, &cursor);
}
