/* What a checkpoint says of a parameter group: the settings that the group's form lists (struct
 * optim_saved), in that order, with their values. DeepSpeed takes the saved dictionaries as they
 * are, so a class whose form is unknown is refused rather than saved as another. */
#include "engine/state/save_impl.h"

#include <stddef.h>
#include <string.h>

/* Where the value of an entry of param_groups comes from. */
static const struct field {
    const char *name;
    enum {
        FIELD_LR = 0,
        FIELD_BETAS,
        FIELD_NUMBER,
        FIELD_FLAG,
        FIELD_ZERO,
        FIELD_NOUGHT, /* 0.0 */
        FIELD_OFF,
        FIELD_NONE
    } kind;        /* ZERO, NOUGHT, OFF, NONE: the value that czero knows no other of */
    size_t offset; /* NUMBER, FLAG: into struct optim_hyper */
} fields[] = {
    {"lr", FIELD_LR, 0},
    {"betas", FIELD_BETAS, 0},
    {"eps", FIELD_NUMBER, offsetof(struct optim_hyper, eps)},
    {"weight_decay", FIELD_NUMBER, offsetof(struct optim_hyper, weight_decay)},
    {"bias_correction", FIELD_FLAG, offsetof(struct optim_hyper, bias_correction)},
    {"decoupled_weight_decay", FIELD_FLAG, offsetof(struct optim_hyper, adam_w_mode)},
    {"max_coeff", FIELD_NUMBER, offsetof(struct optim_hyper, max_coeff)},
    {"min_coeff", FIELD_NUMBER, offsetof(struct optim_hyper, min_coeff)},
    {"lr_decay", FIELD_NUMBER, offsetof(struct optim_hyper, lr_decay)},
    {"initial_accumulator_value", FIELD_NUMBER,
     offsetof(struct optim_hyper, initial_accumulator_value)},
    {"momentum", FIELD_NUMBER, offsetof(struct optim_hyper, momentum)},
    {"dampening", FIELD_NUMBER, offsetof(struct optim_hyper, dampening)},
    {"nesterov", FIELD_FLAG, offsetof(struct optim_hyper, nesterov)},
    {"step", FIELD_ZERO, 0},
    {"max_grad_norm", FIELD_NOUGHT, 0},
    {"amsgrad", FIELD_OFF, 0},
    {"maximize", FIELD_OFF, 0},
    {"capturable", FIELD_OFF, 0},
    {"differentiable", FIELD_OFF, 0},
    {"foreach", FIELD_NONE, 0},
    {"fused", FIELD_NONE, 0},
};

/* torch makes a tuple of what the config holds as a list; DeepSpeed's classes keep the list. */
static bool keeps_list(const struct optim_hyper *hyper)
{
    return hyper->dialect != OPTIM_TORCH && optim_hyper_given(hyper, "betas");
}

static struct ckpt_setting setting_of(const struct optim_group *group, const struct field *f)
{
    const char *value = (const char *)&group->hyper + f->offset;
    struct ckpt_setting s = {.name = f->name, .kind = CKPT_NUMBER};
    switch (f->kind) {
    case FIELD_LR: s.value[0] = group->lr; break;
    case FIELD_BETAS:
        s.kind = keeps_list(&group->hyper) ? CKPT_PAIR_LIST : CKPT_PAIR;
        s.value[0] = group->betas[0];
        s.value[1] = group->betas[1];
        break;
    case FIELD_NUMBER: s.value[0] = *(const double *)(const void *)value; break;
    case FIELD_FLAG:
        s.kind = CKPT_BOOL;
        s.value[0] = *(const bool *)value;
        break;
    case FIELD_ZERO: s.kind = CKPT_INT; break;
    case FIELD_NOUGHT: break;
    case FIELD_OFF: s.kind = CKPT_BOOL; break;
    case FIELD_NONE: s.kind = CKPT_NONE; break;
    }
    return s;
}

static const struct field *find_field(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fields); i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

cz_status save_describe_class(const struct optim_group *group, struct ckpt_group *g,
                              struct ckpt_setting room[SAVE_SETTINGS_MAX])
{
    const struct optim_hyper *hyper = &group->hyper;
    const struct optim_saved *saved = optim_saved_as(hyper);
    if (!saved)
        return err_set(CZ_UNSUPPORTED, 0,
                       "optimizer %s: no form is known in which a checkpoint holds its states",
                       hyper->cls->name);
    g->settings = room;
    g->n_settings = 0;
    for (size_t i = 0; saved->settings[i]; i++) {
        const struct field *f = find_field(saved->settings[i]);
        if (!f)
            return err_set(CZ_UNSUPPORTED, 0,
                           "optimizer %s: %s saves \"%s\", and no value is known for it",
                           hyper->cls->name, saved->name, saved->settings[i]);
        room[g->n_settings++] = setting_of(group, f);
    }
    for (size_t s = 0; s < g->n_states; s++)
        g->states[s] =
            s == 0 && saved->first_state ? saved->first_state : hyper->cls->state_names[s];
    g->step_is_tensor = saved->step == OPTIM_STEP_TENSOR;
    g->no_step = saved->step == OPTIM_STEP_NONE;
    return CZ_OK;
}

cz_status save_check_class(const struct optim_group *group)
{
    struct ckpt_setting room[SAVE_SETTINGS_MAX];
    struct ckpt_group g = {.n_states = optim_n_states(&group->hyper)};
    return save_describe_class(group, &g, room);
}
