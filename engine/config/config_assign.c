/* --set path=value and --auto NAME=VALUE, applied to the tree before it is resolved, so that both
 * take the same checks as the file and messages can name the flag as the origin. */
#include "engine/config/config_impl.h"

#include <math.h>
#include <string.h>

/* Split "path=value". */
static cz_status split(struct config_impl *c, const char *flag, const char *text, const char **path,
                       const char **value)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return err_set(CZ_INVALID, 0, "%s %s: write %s NAME=VALUE", flag, text, flag);
    *path = cv_text(&c->pool, "%.*s", (int)(equals - text), text);
    *value = equals + 1;
    return CZ_OK;
}

/* The object that holds the last name of `path`, made on the way when `make` is set. */
static cz_status find_parent(struct config_impl *c, const char *path, bool make, struct cv **parent,
                             const char **last)
{
    struct cv *at = c->given;
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        const char *name = cv_text(&c->pool, "%.*s", (int)(dot - path), path);
        struct cv *next = cv_get(at, name);
        if (!next && make) {
            next = cv_new(&c->pool, CV_DICT, CV_SET);
            cv_put(&c->pool, at, name, next);
        }
        if (next && next->kind != CV_DICT && make)
            return err_set(CZ_INVALID, 0, "%s: \"%s\" is not an object, so it has no \"%s\"",
                           config_place(c, next, ""), name, dot + 1);
        at = next;
        path = dot + 1;
    }
    *parent = at;
    *last = path;
    return CZ_OK;
}

/* Missing sections are made on the way: --set works on an empty config. */
cz_status config_apply_sets(struct config_impl *c, const struct config_options *options)
{
    for (size_t i = 0; i < options->n_sets; i++) {
        const char *path = NULL, *value = NULL, *last = NULL;
        struct cv *parent = NULL;
        TRY(split(c, "--set", options->sets[i], &path, &value));
        TRY(find_parent(c, path, true, &parent, &last));
        if (!last[0]) return err_set(CZ_INVALID, 0, "--set %s: the path ends in a dot", path);
        cv_put(&c->pool, parent, last, cv_parse(&c->pool, value, CV_SET));
    }
    return CZ_OK;
}

/* Put `value` where the file says "auto"; anything else stays. */
static void fill(struct config_impl *c, const char *path, struct cv *value)
{
    struct cv *parent = NULL;
    const char *last = NULL;
    if (find_parent(c, path, false, &parent, &last) != CZ_OK) return;
    const struct cv *old = cv_get(parent, last);
    if (!cv_is_string(old, CONFIG_AUTO)) return;
    value = cv_copy(&c->pool, value);
    value->node = old->node;
    cv_put(&c->pool, parent, last, value);
}

/* The message names the flag of `czero train` that fills the key: Hugging Face's configs are full
 * of "auto", and users meet this first. */
const char *config_auto_text(struct config_impl *c, const char *path)
{
    static const struct {
        const char *path, *flag; /* of `czero train` */
    } flags[] = {
        {"train_batch_size", "--micro-batch and --accumulation"},
        {"train_micro_batch_size_per_gpu", "--micro-batch"},
        {"gradient_accumulation_steps", "--accumulation"},
        {"gradient_clipping", "--max-grad-norm"},
        {"optimizer.params.lr", "--lr"},
        {"optimizer.params.weight_decay", "--weight-decay"},
        {"scheduler.params.warmup_max_lr", "--lr"},
        {"scheduler.params.warmup_num_steps", "--warmup-steps"},
        {"scheduler.params.total_num_steps", "--steps"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(flags); i++)
        if (strcmp(flags[i].path, path) == 0)
            return cv_text(&c->pool,
                           "\"auto\" must be filled in; give --auto %s=VALUE (to czero train: %s)",
                           path, flags[i].flag);
    return cv_text(&c->pool, "\"auto\" must be filled in; give --auto %s=VALUE", path);
}

/* Bounded to 2^30, so that its square is an int64 (docs/deepspeed-behaviour.md,
 * "The string auto"). */
cz_status config_apply_autos(struct config_impl *c, const struct config_options *options)
{
    for (size_t i = 0; i < options->n_autos; i++) {
        const char *path = NULL, *text = NULL;
        TRY(split(c, "--auto", options->autos[i], &path, &text));
        struct cv *value = cv_parse(&c->pool, text, CV_AUTO);
        if (strcmp(path, "hidden_size") == 0) {
            /* The sizes that the Hugging Face integration derives from the model's width. */
            if (value->kind != CV_INT || value->digits || value->integer < 1 ||
                value->integer > (int64_t)1 << 30)
                return err_set(CZ_INVALID, 0,
                               "--auto hidden_size: expected a positive integer, got %s",
                               cv_show(&c->pool, value));
            int64_t width = value->integer;
            fill(c, "zero_optimization.reduce_bucket_size",
                 cv_int(&c->pool, width * width, CV_AUTO));
            const struct cv *stage = config_at(c->given, "zero_optimization.stage");
            bool is_3 =
                stage && ((cv_is_number(stage) && stage->real == 3) || cv_is_string(stage, "3"));
            if (is_3) {
                int64_t prefetch = (int64_t)floor(0.9 * (double)width * (double)width);
                fill(c, "zero_optimization.stage3_prefetch_bucket_size",
                     cv_int(&c->pool, prefetch, CV_AUTO));
                fill(c, "zero_optimization.stage3_param_persistence_threshold",
                     cv_int(&c->pool, 10 * width, CV_AUTO));
            }
        } else {
            fill(c, path, value);
        }
    }
    return CZ_OK;
}
