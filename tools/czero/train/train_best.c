/* The best evaluation of a run: its checkpoint in SAVE/best, and loading it again at the end.
 * SAVE/best is a checkpoint folder of its own, so that `latest` and --save-keep do not see it. */
#include "tools/czero/train/train.h"

#include "base/log.h"
#include "checkpoint/read/names.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run_place run_tell(const struct run *r)
{
    struct run_place place;
    r->task->tell(r, &place.cursor);
    engine_best_to_json(&r->best, place.state_json);
    return place;
}

static double metric_of(const struct run *r, const struct evaluation *e)
{
    const char *name = r->best.metric;
    if (strcmp(name, "loss") == 0) return e->loss;
    if (e->has_tokens) return e->token_accuracy;
    if (e->has_values) return value_report_metric(&e->values, name);
    const double value = e->has_entities ? entity_report_metric(&e->entities, name) : NAN;
    return isnan(value) ? class_report_metric(&e->classes, name) : value;
}

/* Every rank has the same figures, so all answer the same. */
bool run_is_best(struct run *r, const struct evaluation *e)
{
    if (!r->best.metric) return false;
    const double value = isfinite(e->loss) ? metric_of(r, e) : (double)NAN;
    return engine_best_update(&r->best, value, r->last_step);
}

/* SAVE/best: a checkpoint folder of its own, so that `latest` and --save-keep do not see it. */
static cz_status best_dir(const struct run *r, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/best", r->options->save) >= PATH_MAX)
        return err_set(CZ_INVALID, 0, "--save: the path is too long");
    return CZ_OK;
}

/* The step whose weights are in SAVE/best, −1 without any. */
static int64_t step_of_best(const char *dir)
{
    char *tag = NULL;
    long long step;
    int n = 0;
    if (ckpt_latest_read(dir, false, &tag) != CZ_OK ||
        sscanf(tag, "global_step%lld%n", &step, &n) != 1 || tag[n] != '\0')
        step = -1;
    err_clear();
    free(tag);
    return step;
}

/* Whether every rank sees in SAVE/best the weights of `step` (any, if negative): without a common
 * file system one rank may lack the folder, and all must agree before a collective load. */
static cz_status best_is_there(const struct run *r, int64_t step, bool *out)
{
    char dir[PATH_MAX];
    TRY(best_dir(r, dir));
    const int64_t found = step_of_best(dir);
    const double mine = step < 0 ? found >= 0 : found == step;
    double all;
    TRY(engine_gather_metrics(r->engine, &mine, 1, &all));
    *out = all == (double)engine_get_world_size(r->engine);
    return CZ_OK;
}

/* Without the weights of the best so far the record is worthless: it starts anew. */
cz_status run_resume_best(struct run *r, const char *state_json)
{
    bool there;
    TRY(engine_best_from_json(&r->best, state_json));
    if (!r->best.metric || !r->options->save || isnan(r->best.value)) return CZ_OK;
    TRY(best_is_there(r, -1, &there));
    if (there) return CZ_OK;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT,
             "%s/best does not contain the best weights so far (%s %.6g at step %lld): searching "
             "for the best evaluation anew",
             r->options->save, r->best.metric, r->best.value, (long long)r->best.step);
    engine_best_init(&r->best, r->best.metric, r->best.smaller_is_better);
    return CZ_OK;
}

/* Written in the background like any save; run_take_best() waits for it. */
static cz_status save_best(struct run *r)
{
    char dir[PATH_MAX];
    if (!r->options->save) return CZ_OK;
    TRY(best_dir(r, dir));
    const struct run_place place = run_tell(r);
    const struct cz_save_options options = {.size = sizeof options,
                                            .cursor = &place.cursor,
                                            .client_state_json = place.state_json,
                                            .keep = 1};
    return engine_save_begin(r->engine, dir, &options);
}

/* As with a periodic save, a failure is a warning and the run continues. */
void run_keep_best(struct run *r)
{
    if (save_best(r) == CZ_OK) return;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT,
             "the best checkpoint so far, step %lld, was not saved, but the run continues: %s",
             (long long)r->best.step, cz_last_error());
    err_clear();
}

/* Only weights, after the last checkpoint was saved: what is exported and reported is the best,
 * what is resumed is the last step. */
cz_status run_take_best(struct run *r)
{
    char dir[PATH_MAX];
    bool there;
    if (!r->best.metric || !r->options->save || isnan(r->best.value)) return CZ_OK;
    if (r->best.step == engine_get_global_steps(r->engine)) return CZ_OK;
    TRY(engine_save_wait(r->engine));
    TRY(best_dir(r, dir));
    TRY(best_is_there(r, r->best.step, &there));
    if (!there) {
        if (run_is_first_rank(r))
            LOGV(LOG_WARN, SUB_CKPT,
                 "%s does not contain the weights of step %lld, the best: keeping those of the "
                 "last step",
                 dir, (long long)r->best.step);
        return CZ_OK;
    }
    if (run_is_first_rank(r))
        LOGV(LOG_INFO, SUB_ENGINE, "the best %s was %.6g, at step %lld: restoring those weights",
             r->best.metric, r->best.value, (long long)r->best.step);
    r->last_step = -1; /* of other weights */
    r->went_back = true;
    return init_weights(dir, NULL, r->engine);
}
