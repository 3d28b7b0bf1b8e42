/* In what a saved run differs from the one that continues it, one line each. A checkpoint holds the
 * config that its run had; whatever of it the new config changes would otherwise go unnoticed.
 * What changes the training is a warning, how it is carried out (stage, offload) is information. */
#include "engine/state/client_state_impl.h"
#include "engine/state/load_impl.h"

#include "base/log.h"
#include "engine/config/config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum weight { SAID = 0, INFORMS, WARNS }; /* SAID: another line says it */

/* The first row that a path begins with counts. */
static const struct {
    const char *path;
    enum weight weight;
} kinds[] = {
    {"train_batch_size", SAID},
    {"train_micro_batch_size_per_gpu", SAID},
    {"gradient_accumulation_steps", SAID},
    {"fp16.enabled", SAID},
    {"bf16.enabled", SAID},
    {"optimizer.params.betas", SAID}, /* load_run() says which are used */
    {"optimizer.params.eps", SAID},
    {"optimizer.params.weight_decay", SAID},
    {"optimizer.", WARNS},
    {"scheduler.", WARNS},
    {"gradient_clipping", WARNS},
    {"fp16.", WARNS},
    {"bf16.", WARNS},
    {"czero.lora", WARNS},
    {"", INFORMS},
};

static enum weight weight_of(const char *path)
{
    size_t i = 0;
    while (strncmp(path, kinds[i].path, strlen(kinds[i].path)) != 0) i++;
    return kinds[i].weight;
}

static const char *name_or_none(const char *type)
{
    return type ? type : "none";
}

/* Another type: the parameters of both are not worth a line each. */
static bool say_type(const char *what, const char *saved, const char *ours)
{
    if (strcasecmp(name_or_none(saved), name_or_none(ours)) == 0) return false;
    LOGV(LOG_WARN, SUB_CKPT, "%s: %s in the checkpoint; %s%s is used", what, name_or_none(saved),
         ours ? "the config's " : "", name_or_none(ours));
    return true;
}

/* What other lines say already. */
struct compared {
    const struct load *l;
    bool other_optimizer, other_schedule;
};

static void say_difference(void *user, const char *path, const char *saved, const char *ours)
{
    const struct compared *c = user;
    if (c->other_optimizer && strncmp(path, "optimizer", 9) == 0) return;
    if (c->other_schedule && strncmp(path, "scheduler", 9) == 0) return;
    /* Without a schedule the checkpoint's rate is used, and load_run() says so. */
    if (strcmp(path, "optimizer.params.lr") == 0 && !c->l->e->desc.config->scheduler.usable) return;
    switch (weight_of(path)) {
    case SAID: break;
    case INFORMS:
        LOGV(LOG_INFO, SUB_CKPT, "%s: %s in the checkpoint, %s in the config", path, saved, ours);
        break;
    case WARNS:
        LOGV(LOG_WARN, SUB_CKPT, "%s: %s in the checkpoint; the config's %s is used", path, saved,
             ours);
        break;
    }
}

static void say_batch(const struct ds_config *saved, const struct ds_config *ours)
{
    if (saved->train_batch_size == ours->train_batch_size &&
        saved->train_micro_batch_size_per_gpu == ours->train_micro_batch_size_per_gpu &&
        saved->gradient_accumulation_steps == ours->gradient_accumulation_steps)
        return;
    LOGV(saved->train_batch_size == ours->train_batch_size ? LOG_INFO : LOG_WARN, SUB_CKPT,
         "batch: %lld = %lld x %lld x %lld in the checkpoint; %lld = %lld x %lld x %lld is used",
         (long long)saved->train_batch_size, (long long)saved->train_micro_batch_size_per_gpu,
         (long long)saved->gradient_accumulation_steps, (long long)saved->world_size,
         (long long)ours->train_batch_size, (long long)ours->train_micro_batch_size_per_gpu,
         (long long)ours->gradient_accumulation_steps, (long long)ours->world_size);
}

static void say_precision(const struct load *l)
{
    const struct pickle_dtype *saved = ckpt_get_info(l->ck)->model_dtype;
    if (saved && saved->has_base && saved->base != l->e->desc.dtype)
        LOGV(LOG_WARN, SUB_CKPT, "precision: %s in the checkpoint; the config's %s is used",
             dtype_name(saved->base), dtype_name(l->e->desc.dtype));
}

static void say_groups(const struct load *l)
{
    const size_t n = ckpt_get_info(l->ck)->n_groups;
    if (n > 0 && n != l->e->desc.n_groups)
        LOGV(LOG_WARN, SUB_CKPT,
             "parameter groups: %zu in the checkpoint, %zu here; each takes the settings that its "
             "first parameter had",
             n, l->e->desc.n_groups);
}

static cz_status say_configs(const struct load *l, const struct ds_config *saved)
{
    const struct ds_config *ours = l->e->desc.config;
    /* A schedule that a program made itself is not in its config. */
    const bool has_own =
        !saved->scheduler.type &&
        pickle_is(pickle_get(ckpt_model_states(l->ck), "lr_scheduler"), PICKLE_DICT);
    struct compared c = {.l = l};
    c.other_optimizer = say_type("optimizer", saved->optimizer.type, ours->optimizer.type);
    c.other_schedule = has_own || l->options->no_lr_scheduler ||
                       say_type("scheduler", saved->scheduler.type, ours->scheduler.type);
    say_batch(saved, ours);
    return config_diff_walk(saved, ours, say_difference, &c);
}

/* A config that is not there, or that this build does not read, is not compared. */
static cz_status load_saved_config(const struct load *l, struct ds_config **out)
{
    const struct pickle_node *node = pickle_get(ckpt_model_states(l->ck), "ds_config");
    struct config_options options = config_options_default();
    char *text;
    *out = NULL;
    if (!pickle_is(node, PICKLE_DICT)) return CZ_OK;
    options.world_size = ckpt_get_info(l->ck)->world_size;
    options.compat = l->e->desc.config->compat;
    TRY(client_state_value_json(node, &text));
    const cz_status st =
        config_load_text(text, strlen(text), "the checkpoint's config", &options, out);
    free(text);
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    LOGV(LOG_STEP, SUB_CKPT, "the checkpoint's config is not compared: %s", cz_last_error());
    err_clear();
    return CZ_OK;
}

cz_status load_compare(const struct load *l)
{
    struct ds_config *saved;
    if (l->options->module_only || l->e->desc.comm->rank != 0) return CZ_OK;
    say_precision(l);
    say_groups(l);
    TRY(load_saved_config(l, &saved));
    const cz_status st = saved ? say_configs(l, saved) : CZ_OK;
    config_free(saved);
    return st;
}
