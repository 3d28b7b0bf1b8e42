/* Which of the checkpoint's tensors and states belong to which of the model's. By name only: order,
 * groups, stage and world size may all differ. Nothing is read here but descriptions, so a mismatch
 * costs no I/O and leaves the run as it was. */
#include "base/size.h"
#include "engine/state/load_impl.h"

#include "base/log.h"
#include "optim/onebit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which tensor is which ------------------------------------------------------------------ */

/* PEFT's names, under which DeepSpeed stores an adapter that it trains: "<prefix>X.lora_A.default.
 * weight", "<prefix>X.base_layer.weight", "<prefix>X.modules_to_save.default.weight". */
static size_t find_by_peft_name(const struct load *l, const char *name)
{
    static const char prefix[] = "base_model.model.";
    static const char *const inserts[] = {"", "default.", "base_layer.",
                                          "modules_to_save.default."};
    const char *dot = strrchr(name, '.');
    char peft[512];
    for (size_t i = 0; dot && i < CZ_ARRAY_LEN(inserts); i++) {
        snprintf(peft, sizeof peft, "%s%.*s%s%s", prefix, (int)(dot + 1 - name), name, inserts[i],
                 dot + 1);
        const size_t idx = load_find(l, peft);
        if (idx < ckpt_count(l->ck)) return idx;
    }
    return ckpt_count(l->ck);
}

/* What modules_to_save stand for in PEFT's models is stored beside them. */
static bool is_replaced_module(const char *name)
{
    return strncmp(name, "base_model.model.", 17) == 0 && strstr(name, ".original_module.");
}

/* By the parameter's name, or by one of the names it is tied to. */
static size_t find_tensor(const struct load *l, size_t param_idx)
{
    const struct param_table *table = model_params(l->e->desc.model);
    size_t idx = load_find(l, table->params[param_idx].name);
    for (size_t a = 0; idx == ckpt_count(l->ck) && a < table->n_aliases; a++)
        if (table->aliases[a].param_idx == param_idx) idx = load_find(l, table->aliases[a].name);
    if (idx == ckpt_count(l->ck) && cz_model_has_adapter(l->e->desc.model))
        idx = find_by_peft_name(l, table->params[param_idx].name);
    return idx;
}

/* The model of an adapter may be missing: it is in its own folder. */
static bool may_be_missing(const struct load *l, size_t param_idx)
{
    return cz_model_has_adapter(l->e->desc.model) &&
           !model_params(l->e->desc.model)->params[param_idx].trainable;
}

static bool lacks_some(const struct load *l)
{
    for (size_t i = 0; i < model_params(l->e->desc.model)->n_params; i++)
        if (find_tensor(l, i) == ckpt_count(l->ck) && !may_be_missing(l, i)) return true;
    return false;
}

/* Others may be missing only in a lenient load. */
static cz_status find_weights(struct load *l)
{
    const struct param_table *table = model_params(l->e->desc.model);
    size_t n_missing = 0;
    const char *missing = NULL;
    TRY(load_names(l, false));
    if (lacks_some(l)) TRY(load_names(l, true));
    for (size_t i = 0; i < table->n_params; i++) {
        l->tensor_of[i] = find_tensor(l, i);
        l->weights[i] = l->tensor_of[i] < ckpt_count(l->ck);
        if (l->weights[i]) {
            /* A universal checkpoint flattens its tensors: there only the number of elements can be
             * compared. */
            const struct param_info *p = &table->params[i];
            const struct ckpt_tensor *t = ckpt_at(l->ck, l->tensor_of[i]);
            bool same = t->ndim == p->ndim;
            for (int d = 0; same && d < p->ndim; d++) same = t->shape[d] == p->shape[d];
            if (!same &&
                (!(ckpt_get_info(l->ck)->is_universal) || t->ndim != 1 || t->numel != p->numel)) {
                char saved[128] = "", ours[128] = "";
                for (int d = 0, at = 0; d < t->ndim && at < 100; d++)
                    at += snprintf(saved + at, sizeof saved - (size_t)at, "%s%lld", d ? ", " : "",
                                   (long long)t->shape[d]);
                for (int d = 0, at = 0; d < p->ndim && at < 100; d++)
                    at += snprintf(ours + at, sizeof ours - (size_t)at, "%s%lld", d ? ", " : "",
                                   (long long)p->shape[d]);
                return err_set(CZ_INVALID, 0, "%s: %s is (%s) there and (%s) in the model",
                               ckpt_get_info(l->ck)->tag_dir, p->name, saved, ours);
            }
            l->n_restored++;
        } else if (!may_be_missing(l, i) && n_missing++ == 0) {
            missing = table->params[i].name;
        }
    }
    if (n_missing == 0 || l->options->lenient) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s has %zu of the model's %zu parameter%s: %s is missing; a lenient load "
                   "(load_module_strict=False) does not change such weights",
                   ckpt_get_info(l->ck)->tag_dir, l->n_restored, table->n_params,
                   plural(table->n_params), missing);
}

/* ---- the optimizer's states ----------------------------------------------------------------- */

/* By the names that the file gives its states. */
static bool find_state(const struct ckpt_info *info, const char *name, size_t *idx)
{
    for (*idx = 0; *idx < info->n_states; ++*idx)
        if (strcmp(info->states[*idx], name) == 0) return true;
    return false;
}

static bool is_taken(const struct load *l, size_t saved_state)
{
    const struct cz_engine *e = l->e;
    for (size_t g = 0; g < e->desc.n_groups; g++)
        for (size_t s = 0; s < optim_n_states(&e->desc.groups[g].hyper); s++)
            if (l->state_of[g][s] == saved_state) return true;
    return false;
}

/* A state that is left over tells of another optimizer: it may mean something else by the names
 * that both have. */
static void warn_of_others(const struct load *l)
{
    const struct cz_engine *e = l->e;
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    char names[256], dropped[256] = "";
    size_t n = 0, at = 0;
    for (size_t i = 0; i < info->n_states; i++) {
        if (is_taken(l, i)) continue;
        if (at < sizeof dropped)
            at += (size_t)snprintf(dropped + at, sizeof dropped - at, "%s%s", n > 0 ? ", " : "",
                                   info->states[i]);
        n++;
    }
    if (n == 0 || e->desc.comm->rank != 0) return;
    LOGV(LOG_WARN, SUB_CKPT,
         "%s has the optimizer state%s %s, which %s does not keep: dropped; did another optimizer "
         "save %s?",
         info->tag_dir, n == 1 ? "" : "s", dropped,
         optim_group_names(e->desc.groups, e->desc.n_groups, names, sizeof names),
         n == 1 ? "it" : "them");
}

/* Under the class' name, or, alone there, under the one that another of its forms gives the first
 * state: Adagrad's sum is exp_avg_sq there, which is also a state of Adam's. */
static bool find_state_of(const struct ckpt_info *info, const struct optim_hyper *hyper, size_t s,
                          size_t *idx)
{
    const struct optim_class *cls = hyper->cls;
    if (find_state(info, cls->state_names[s], idx)) return true;
    for (size_t i = 0; s == 0 && info->n_states == 1 && i < cls->n_saved; i++)
        if (cls->saved[i].first_state && find_state(info, cls->saved[i].first_state, idx))
            return true;
    return false;
}

static cz_status find_states(struct load *l)
{
    const struct cz_engine *e = l->e;
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    for (size_t g = 0; g < e->desc.n_groups; g++) {
        const struct optim_hyper *hyper = &e->desc.groups[g].hyper;
        for (size_t s = 0; s < optim_n_states(hyper); s++) {
            if (find_state_of(info, hyper, s, &l->state_of[g][s])) continue;
            l->state_of[g][s] = LOAD_NO_STATE;
            if (optim_is_onebit(hyper) && s >= 2) continue; /* Adam and Lamb lead there */
            return err_set(
                CZ_INVALID, 0,
                "%s has no \"%s\", which %s needs: another optimizer saved it; load it "
                "without the optimizer's states (load_optimizer_states=False; czero train --init)",
                info->tag_dir, hyper->cls->state_names[s], hyper->cls->name);
        }
    }
    warn_of_others(l);
    return CZ_OK;
}

/* A parameter that trains now but had no states then. */
static cz_status check_states(const struct load *l)
{
    const struct cz_engine *e = l->e;
    const struct param_table *table = model_params(e->desc.model);
    for (size_t i = 0; i < table->n_params; i++) {
        if (!l->weights[i] || !table->params[i].trainable) continue;
        const size_t g = e->desc.group_of[i];
        const struct optim_hyper *hyper = &e->desc.groups[g].hyper;
        for (size_t s = 0; s < optim_n_states(hyper); s++)
            if (l->state_of[g][s] != LOAD_NO_STATE &&
                !ckpt_has_state(l->ck, l->tensor_of[i], l->state_of[g][s]))
                return err_set(
                    CZ_INVALID, 0,
                    "%s has no %s of %s: it was not trained there; load it without the "
                    "optimizer's states (load_optimizer_states=False; czero train --init)",
                    ckpt_get_info(l->ck)->tag_dir, hyper->cls->state_names[s],
                    table->params[i].name);
    }
    return CZ_OK;
}

static bool keeps_states(const struct cz_engine *e)
{
    for (size_t g = 0; g < e->desc.n_groups; g++)
        if (optim_n_states(&e->desc.groups[g].hyper) > 0) return true;
    return false;
}

/* What becomes of the states is decided before anything is read: taken, fresh, or an error that
 * names the way out. */
static cz_status plan_states(struct load *l)
{
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    l->with_states = !l->options->no_optimizer_states && !l->options->module_only;
    if (!l->with_states) return CZ_OK;
    bool no_update_yet = l->has_run_state ? l->run.n_updates == 0 : !info->has_states;
    l->fresh_states = no_update_yet || !keeps_states(l->e);
    l->drops_states = !keeps_states(l->e) && info->has_states && info->n_states > 0;
    if (l->drops_states) warn_of_others(l);
    if (l->fresh_states) return CZ_OK;
    if (!info->has_states)
        return err_set(CZ_INVALID, 0,
                       "%s has no optimizer states; load only its weights (load_module_only; czero "
                       "train --init)",
                       info->tag_dir);
    TRY(find_states(l));
    return check_states(l);
}

cz_status load_match(struct load *l)
{
    TRY(find_weights(l));
    /* What the checkpoint holds and the model does not. */
    size_t n_strangers = 0, n = ckpt_count(l->ck);
    const char *stranger = NULL;
    bool *known = calloc(n + 1, sizeof *known);
    if (!known) return err_set(CZ_NOMEM, 0, "no memory for %zu tensors", n);
    for (size_t i = 0; i < model_params(l->e->desc.model)->n_params; i++)
        known[l->tensor_of[i]] = true;
    for (size_t t = 0; t < n; t++) {
        if (known[t] || ckpt_at(l->ck, t)->kind == CKPT_BUFFER) continue;
        if (cz_model_has_adapter(l->e->desc.model) && is_replaced_module(ckpt_at(l->ck, t)->name))
            continue;
        if (n_strangers++ == 0) stranger = ckpt_at(l->ck, t)->name;
    }
    free(known);
    if (n_strangers != 0 && !l->options->lenient)
        return err_set(CZ_INVALID, 0,
                       "%s has %zu tensor%s that the model does not have, such as %s; a lenient "
                       "load (load_module_strict=False) ignores them",
                       ckpt_get_info(l->ck)->tag_dir, n_strangers, plural(n_strangers), stranger);
    /* load_from_fp32_weights false: masters begin as the 16-bit weights, where those are whole. As
     * in DeepSpeed the key is about stages 1 and 2. */
    const struct config_zero *zero = &l->e->desc.config->zero;
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    bool is_whole = !info->is_universal && info->stage < 3;
    bool from_module = !zero->load_from_fp32_weights && zero->stage > 0 && zero->stage < 3;
    l->weight_what = from_module && is_whole ? CKPT_MODULE : CKPT_MASTER;
    TRY(plan_states(l));
    load_onebit_plan(l);
    return CZ_OK;
}
