/* Hyper-parameters, groups, and the scalars of a step. */
#include "optim/optim_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct optim_class_entry *entry_of(const struct optim_hyper *hyper)
{
    return (const struct optim_class_entry *)(const void *)hyper->cls;
}

cz_status optim_hyper_begin(const char *type, enum optim_dialect dialect, struct optim_hyper *out)
{
    char known[256];
    memset(out, 0, sizeof *out);
    const struct optim_type *t = optim_type_find(type);
    if (t && !t->cls)
        return err_set(CZ_UNSUPPORTED, 0, "optimizer.type: %s is not supported; czero has %s", type,
                       optim_type_names(known, sizeof known));
    if (!t) return optim_type_unknown(type);
    out->cls = t->cls;
    out->dialect = dialect;
    out->type = t;
    out->given_in = optim_settings(out);
    return CZ_OK;
}

const struct setting_table *optim_settings(const struct optim_hyper *hyper)
{
    return entry_of(hyper)->settings;
}

static const char *type_name(const struct optim_hyper *hyper)
{
    return hyper->type->name;
}

cz_status optim_hyper_set(struct optim_hyper *hyper, const char *name,
                          const struct setting_value *value)
{
    if (strcmp(name, "max_grad_norm") == 0)
        return err_set(CZ_INVALID, 0,
                       "max_grad_norm: not a parameter of an optimizer; set the top-level key "
                       "gradient_clipping instead");
    assert(hyper->given_in == optim_settings(hyper));
    return settings_set(optim_settings(hyper), type_name(hyper), hyper, &hyper->given, name, value,
                        false);
}

cz_status optim_hyper_set_number(struct optim_hyper *hyper, const char *name, double value)
{
    struct setting_value v = {.type = SETTING_NUMBER, .number = value};
    return optim_hyper_set(hyper, name, &v);
}

cz_status optim_hyper_set_bool(struct optim_hyper *hyper, const char *name, bool value)
{
    struct setting_value v = {.type = SETTING_BOOL, .number = value};
    return optim_hyper_set(hyper, name, &v);
}

cz_status optim_hyper_set_pair(struct optim_hyper *hyper, const char *name, double a, double b)
{
    double pair[2] = {a, b};
    struct setting_value v = {.type = SETTING_PAIR, .list = pair, .n = 2};
    return optim_hyper_set(hyper, name, &v);
}

/* Kernels take these in fp32; written so that NaN fails. */
cz_status optim_check_not_negative(const char *name, double v)
{
    if (!(v >= 0)) return err_set(CZ_INVALID, 0, "%s: %g must not be negative", name, v);
    if (isfinite((float)v)) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: %g is beyond the range of fp32", name, v);
}

static cz_status check_beta(double beta)
{
    if (beta >= 0 && beta < 1) return CZ_OK;
    return err_set(CZ_INVALID, 0, "betas: %g is outside [0, 1)", beta);
}

/* The ranges that torch's constructors check; DeepSpeed's own classes take anything. */
static cz_status check(const struct optim_hyper *hyper)
{
    TRY(optim_check_not_negative("lr", hyper->lr));
    TRY(optim_check_not_negative("weight_decay", hyper->weight_decay));
    TRY(optim_check_not_negative("eps", hyper->eps));
    if (hyper->cls->has_betas) {
        TRY(check_beta(hyper->betas[0]));
        TRY(check_beta(hyper->betas[1]));
    }
    if (hyper->amsgrad)
        return err_set(CZ_UNSUPPORTED, 0, "amsgrad: true is not supported, as in DeepSpeed");
    if (hyper->maximize)
        return err_set(CZ_UNSUPPORTED, 0, "maximize: true is not supported; negate the loss");
    const struct optim_class_entry *entry = entry_of(hyper);
    return entry->check ? entry->check(hyper) : CZ_OK;
}

static unsigned resolved_dialect(const struct optim_hyper *hyper)
{
    return hyper->torch_adam ? OPTIM_TORCH : (unsigned)hyper->dialect;
}

bool optim_hyper_given(const struct optim_hyper *hyper, const char *name)
{
    int idx = hyper->given_in ? settings_find(hyper->given_in, name) : -1;
    return idx >= 0 && (hyper->given >> idx & 1u);
}

cz_status optim_hyper_finish(struct optim_hyper *hyper)
{
    unsigned dialect = resolved_dialect(hyper);
    assert(hyper->given_in == optim_settings(hyper));
    TRY(settings_fill(optim_settings(hyper), type_name(hyper), hyper, hyper->given, dialect));
    hyper->dialect = (enum optim_dialect)dialect;
    if (hyper->type->decoupled) hyper->adam_w_mode = true;
    if (dialect == OPTIM_TORCH) { /* torch always corrects, and its AdamW decays by default */
        hyper->bias_correction = true;
        if (hyper->adam_w_mode && !optim_hyper_given(hyper, "weight_decay"))
            hyper->weight_decay = 0.01;
    }
    return check(hyper);
}

/* ---- groups --------------------------------------------------------------------------------- */

static void override(double *field, double value)
{
    if (!isnan(value)) *field = value;
}

cz_status optim_group_init(struct optim_group *group, const struct optim_hyper *base,
                           const struct optim_group_rule *rule)
{
    group->hyper = *base;
    if (rule) {
        override(&group->hyper.lr, rule->lr);
        override(&group->hyper.weight_decay, rule->weight_decay);
        override(&group->hyper.betas[0], rule->beta1);
        override(&group->hyper.betas[1], rule->beta2);
        cz_status st = check(&group->hyper);
        if (st != CZ_OK) return err_prefix("parameter group \"%s\"", rule->name_regex);
    }
    group->lr = group->hyper.lr;
    group->betas[0] = group->hyper.betas[0];
    group->betas[1] = group->hyper.betas[1];
    return CZ_OK;
}

cz_status optim_group_check(const struct optim_group *group)
{
    struct optim_hyper now = group->hyper;
    now.lr = group->lr;
    memcpy(now.betas, group->betas, sizeof now.betas);
    return check(&now);
}

/* ---- the step ------------------------------------------------------------------------------- */

double optim_clip_factor(double norm, double loss_scale, double max_norm)
{
    if (!(max_norm > 0)) return 1;
    double factor = (norm / loss_scale + 1e-6) / max_norm;
    return factor > 1 ? factor : 1;
}

void optim_step_scalars(const struct optim_group *group, uint64_t t, double loss_scale,
                        double clip_factor, struct step_scalars *out)
{
    const struct optim_hyper *h = &group->hyper;
    memset(out, 0, sizeof *out); /* padding too: equal arguments, equal bytes */
    out->grad_scale = (float)(1 / (loss_scale * clip_factor));
    out->lr = (float)group->lr;
    out->beta1 = (float)group->betas[0];
    out->beta2 = (float)group->betas[1];
    /* From the rounded betas, so that the weights 1 − beta sum to exactly what is divided out. */
    double bias1 = 1, bias2 = 1;
    bool own = optim_stage_of(h->cls, OPTIM_EXCHANGE) != NULL; /* the 1-bit family never corrects */
    if (h->bias_correction && !own) {
        bias1 = 1 - pow((double)out->beta1, (double)t);
        bias2 = 1 - pow((double)out->beta2, (double)t);
    }
    out->inv_bias1 = (float)(1 / bias1);
    out->inv_sqrt_bias2 = (float)(1 / sqrt(bias2));
    out->step_size = (float)(group->lr * sqrt(bias2) / bias1 / (1 + (double)(t - 1) * h->lr_decay));
    out->is_first = t == 1;
    out->step = t;
}

struct step_args optim_step_args(enum step_op op, const struct optim_hyper *hyper,
                                 const struct step_scalars *scalars,
                                 const struct optim_range *range)
{
    return (struct step_args){
        .op = op,
        .t = range->tensors,
        .scalars = scalars,
        .eps = (float)hyper->eps,
        .weight_decay = (float)hyper->weight_decay,
        .momentum = (float)hyper->momentum,
        .dampening = (float)hyper->dampening,
        .decoupled = hyper->adam_w_mode,
        .nesterov = hyper->nesterov,
    };
}

static cz_status step_elements(struct ops *ops, struct dev_stream *stream,
                               const struct optim_hyper *hyper, const struct step_scalars *scalars,
                               const struct optim_range *range)
{
    const struct step_args args = optim_step_args(hyper->cls->elements, hyper, scalars, range);
    return ops_step(ops, stream, &args);
}

const struct optim_stage optim_elements[1] = {{.kind = OPTIM_ELEMENTS, .run = step_elements}};

const struct optim_stage *optim_stage_of(const struct optim_class *cls, enum optim_stage_kind kind)
{
    for (size_t i = 0; i < cls->n_stages; i++)
        if (cls->stages[i].kind == kind) return &cls->stages[i];
    for (size_t i = 0; i < cls->n_frozen_stages; i++)
        if (cls->frozen_stages[i].kind == kind) return &cls->frozen_stages[i];
    return NULL;
}

const char *optim_group_names(const struct optim_group *groups, size_t n_groups, char *buf,
                              size_t nbytes)
{
    size_t used = 0;
    for (size_t g = 0; g < n_groups; g++) {
        bool is_new = true;
        for (size_t i = 0; i < g; i++) is_new &= groups[i].hyper.cls != groups[g].hyper.cls;
        if (is_new && used < nbytes)
            used += (size_t)snprintf(buf + used, nbytes - used, "%s%s", used ? ", " : "",
                                     groups[g].hyper.cls->name);
    }
    return buf;
}

size_t optim_n_states(const struct optim_hyper *hyper)
{
    const struct optim_class *cls = hyper->cls;
    size_t n = 0;
    if (cls->n_states) return cls->n_states(hyper);
    while (n < OPTIM_STATES_MAX && cls->state_names[n]) n++;
    return n;
}

double optim_state_init(const struct optim_hyper *hyper, size_t state_idx)
{
    return hyper->cls->state_init ? hyper->cls->state_init(hyper, state_idx) : 0;
}
