/* The best evaluations of a run: their checkpoints in SAVE/best, and loading the best again at the
 * end. SAVE/best is a checkpoint folder of its own, whose `latest` names the best. */
#include "tools/czero/train/train.h"

#include "base/log.h"
#include "checkpoint/read/names.h"
#include "formats/json/json.h"
#include "formats/output.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run_place run_tell(const struct run *r)
{
    struct run_place place;
    r->task->tell(r, &place.cursor);
    char best[ENGINE_BEST_NBYTES];
    engine_best_to_json(&r->best, best);
    snprintf(place.state_json, sizeof place.state_json,
             "{\"czero_train\": [%.17g, %.17g, %.17g, %.17g, %d], "
             "\"czero_data\": \"%016" PRIx64 "\"%s%s}",
             r->since.loss, r->since.weight, r->since.n_hits, r->since.n_examples,
             r->since.evaluation_is_owed, r->data_hash, *best ? ", " : "", best);
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
int run_place_best(struct run *r, const struct evaluation *e)
{
    if (!r->best.metric) return -1;
    const double value = isfinite(e->loss) ? metric_of(r, e) : (double)NAN;
    return engine_best_update(&r->best, value, r->last_step);
}

static cz_status best_dir(const struct run *r, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/" SAVER_BEST_FOLDER, r->options->save) >= PATH_MAX)
        return err_set(CZ_INVALID, 0, "--save: the path is too long");
    return CZ_OK;
}

/* Before training: a run folder from elsewhere may hold a link of this name. */
cz_status run_check_best(const struct run *r)
{
    struct out_folder save, best;
    TRY(out_folder_open(r->options->save, &save));
    cz_status st = out_folder_below(&save, SAVER_BEST_FOLDER, false, &best);
    out_folder_close(&best);
    out_folder_close(&save);
    if (st != CZ_NOTFOUND) return st == CZ_OK ? CZ_OK : err_prefix("--save");
    err_clear();
    return CZ_OK;
}

/* Tags have DeepSpeed's names. */
static void tag_of(int64_t step, char tag[CKPT_NAME_MAX])
{
    snprintf(tag, CKPT_NAME_MAX, "global_step%lld", (long long)step);
}

/* Whether `latest` in SAVE/best names the weights of `step` (any, if negative). */
static bool best_is(const char *dir, int64_t step)
{
    char *named = NULL, tag[CKPT_NAME_MAX];
    tag_of(step, tag);
    const bool yes =
        ckpt_latest_read(dir, false, &named) == CZ_OK && (step < 0 || strcmp(named, tag) == 0);
    err_clear();
    free(named);
    return yes;
}

/* Without a common file system one rank may lack what another has, and all must agree before a
 * collective load. */
static cz_status all_see(const struct run *r, bool mine, bool *out)
{
    const double sees = mine;
    double all;
    TRY(engine_gather_metrics(r->engine, &sees, 1, &all));
    *out = all == (double)engine_get_world_size(r->engine);
    return CZ_OK;
}

static cz_status best_is_there(const struct run *r, int64_t step, bool *out)
{
    char dir[PATH_MAX];
    TRY(best_dir(r, dir));
    return all_see(r, best_is(dir, step), out);
}

/* The run that this one continues may have trained further and replaced some. The best itself stays
 * in the list: its evaluation will be made again. */
static cz_status drop_replaced(struct run *r)
{
    char dir[PATH_MAX], tag[CKPT_NAME_MAX];
    struct engine_best *b = &r->best;
    TRY(best_dir(r, dir));
    size_t n = b->n_kept > 0 ? 1 : 0;
    for (size_t i = 1; i < b->n_kept; i++) {
        char *tag_dir, *name;
        bool is_there = false;
        tag_of(b->kept[i].step, tag);
        const bool found = ckpt_locate(dir, tag, &tag_dir, &name) == CZ_OK;
        err_clear();
        if (found) free(tag_dir), free(name);
        TRY(all_see(r, found, &is_there));
        if (is_there) b->kept[n++] = b->kept[i];
    }
    b->n_kept = n;
    return CZ_OK;
}

/* Older checkpoints, and other programs', have none. */
static cz_status read_means(const struct run *r, const char *text, struct run_means *out)
{
    char hash[24];
    const char *saved;
    struct json_doc *doc;
    double sums[5] = {0};
    if (!text) return CZ_OK;
    TRY(json_parse(text, strlen(text), "client state", JSON_STRICT, &doc));
    const struct json_node *list = json_get(json_root(doc), "czero_train");
    cz_status st = CZ_OK;
    bool is_ours = list && json_type(list) == JSON_ARRAY && json_count(list) == CZ_ARRAY_LEN(sums);
    for (size_t i = 0; is_ours && i < CZ_ARRAY_LEN(sums) && st == CZ_OK; i++)
        st = json_as_double(json_child(list, i), &sums[i]);
    *out = (struct run_means){sums[0], sums[1], sums[2], sums[3], sums[4] > 0};
    snprintf(hash, sizeof hash, "%016" PRIx64, r->data_hash);
    if (st == CZ_OK) st = json_opt_string(json_root(doc), "czero_data", hash, &saved);
    if (st == CZ_OK && strcmp(saved, hash) != 0 && run_is_first_rank(r))
        LOGV(
            LOG_WARN, SUB_CKPT,
            "--data holds other rows than the run that is resumed: some rows may be trained twice, "
            "others never");
    json_free(doc);
    return st;
}

/* Without the weights of the best so far the record is worthless: it starts anew. */
cz_status run_resume_best(struct run *r, const char *state_json)
{
    bool there;
    TRY(read_means(r, state_json, &r->since));
    TRY(engine_best_from_json(&r->best, state_json));
    if (!r->best.metric || !r->options->save || isnan(r->best.value)) return CZ_OK;
    TRY(best_is_there(r, -1, &there));
    if (there) return drop_replaced(r);
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT,
             "%s/best does not contain the best weights so far (%s %.6g at step %lld): searching "
             "for the best evaluation anew",
             r->options->save, r->best.metric, r->best.value, (long long)r->best.step);
    engine_best_init(&r->best, r->best.metric, r->best.smaller_is_better, r->best.n_keep);
    return CZ_OK;
}

/* Written in the background like any save; run_take_best() waits for it. */
static cz_status save_best(struct run *r, int place)
{
    char dir[PATH_MAX], tags[ENGINE_BEST_MAX][CKPT_NAME_MAX];
    const char *kept[ENGINE_BEST_MAX + 1] = {NULL};
    if (!r->options->save) return CZ_OK;
    TRY(best_dir(r, dir));
    for (size_t i = 0; i < r->best.n_kept; i++) {
        tag_of(r->best.kept[i].step, tags[i]);
        kept[i] = tags[i];
    }
    const struct run_place here = run_tell(r);
    const struct cz_save_options options = {.size = sizeof options,
                                            .cursor = &here.cursor,
                                            .client_state_json = here.state_json,
                                            .keep_latest = place > 0,
                                            .keep_tags = kept,
                                            .weights_only = r->options->save_weights_only};
    return engine_save_begin(r->engine, dir, &options);
}

/* As with a periodic save, a failure is a warning and the run continues. */
void run_keep_best(struct run *r, int place)
{
    if (save_best(r, place) == CZ_OK) return;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT,
             "step %lld, one of the best so far, was not saved, but the run continues: %s",
             (long long)r->last_step, cz_last_error());
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
