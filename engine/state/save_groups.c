/* What DeepSpeed's and torch's optimizer classes keep in their param_groups and states, in their
 * order: DeepSpeed takes the saved dictionaries as they are. */
#include "engine/state/save_impl.h"

#include <stddef.h>
#include <string.h>

#define NAMES_MAX 12

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

#define IN(dialect) (1u << (dialect))
#define ANYWHERE    (IN(OPTIM_FUSED) | IN(OPTIM_OFFLOAD) | IN(OPTIM_TORCH))

/* One class of theirs. Of rows that fit the first counts. */
static const struct row {
    const char *class_name; /* ours */
    unsigned dialects;
    enum { STEP_INT = 0, STEP_TENSOR, STEP_NONE } step;
    const char *first_state; /* NULL: as ours is called */
    const char *names[NAMES_MAX];
} rows[] = {
    /* torch's Adam and AdamW */
    {"Adam",
     IN(OPTIM_TORCH),
     STEP_TENSOR,
     NULL,
     {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
      "differentiable", "fused", "decoupled_weight_decay"}},
    /* FusedAdam */
    {"Adam",
     IN(OPTIM_FUSED),
     STEP_INT,
     NULL,
     {"lr", "bias_correction", "betas", "eps", "weight_decay", "step"}},
    /* DeepSpeedCPUAdam */
    {"Adam",
     IN(OPTIM_OFFLOAD),
     STEP_INT,
     NULL,
     {"lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad"}},
    /* FusedLamb */
    {"Lamb",
     ANYWHERE,
     STEP_INT,
     NULL,
     {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm", "max_coeff",
      "min_coeff"}},
    /* OnebitAdam, ZeroOneAdam, OnebitLamb of DeepSpeed 0.16.9 */
    {"OneBitAdam",
     ANYWHERE,
     STEP_INT,
     NULL,
     {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm"}},
    {"ZeroOneAdam",
     ANYWHERE,
     STEP_INT,
     NULL,
     {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm"}},
    {"OneBitLamb",
     ANYWHERE,
     STEP_INT,
     NULL,
     {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm", "max_coeff",
      "min_coeff"}},
    /* FusedLion */
    {"Lion", IN(OPTIM_FUSED), STEP_INT, NULL, {"lr", "betas", "weight_decay", "step"}},
    /* DeepSpeedCPULion */
    {"Lion", ANYWHERE, STEP_INT, NULL, {"lr", "betas", "weight_decay"}},
    /* DeepSpeedCPUAdagrad */
    {"Adagrad",
     IN(OPTIM_OFFLOAD),
     STEP_INT,
     "exp_avg_sq",
     {"lr", "eps", "weight_decay", "amsgrad"}},
    /* torch's Adagrad */
    {"Adagrad",
     ANYWHERE,
     STEP_TENSOR,
     NULL,
     {"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach", "maximize",
      "differentiable", "fused"}},
    /* torch's SGD */
    {"SGD",
     ANYWHERE,
     STEP_NONE,
     NULL,
     {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach",
      "differentiable", "fused"}},
};

static const struct row *row_of(const struct optim_hyper *hyper)
{
    size_t i = 0;
    while (i + 1 < CZ_ARRAY_LEN(rows) && (strcmp(rows[i].class_name, hyper->cls->name) != 0 ||
                                          !(rows[i].dialects & IN(hyper->dialect))))
        i++;
    return &rows[i];
}

/* torch makes a tuple of what the config holds as a list; DeepSpeed's classes keep the list. */
static bool keeps_list(const struct optim_hyper *hyper)
{
    int idx = settings_find(optim_settings(hyper), "betas");
    return hyper->dialect != OPTIM_TORCH && idx >= 0 && (hyper->given >> idx & 1);
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

const char *save_state_name(const struct optim_hyper *hyper, size_t state_idx)
{
    const char *other = row_of(hyper)->first_state;
    return other && state_idx == 0 ? other : hyper->cls->state_names[state_idx];
}

bool save_is_fused(const struct optim_hyper *hyper)
{
    bool is_adam = strcmp(hyper->cls->name, "Adam") == 0 && hyper->dialect == OPTIM_FUSED;
    return is_adam || strcmp(hyper->cls->name, "OneBitAdam") == 0 ||
           strcmp(hyper->cls->name, "ZeroOneAdam") == 0;
}

void save_describe_class(const struct optim_group *group, struct ckpt_group *g,
                         struct ckpt_setting room[SAVE_SETTINGS_MAX])
{
    const struct row *row = row_of(&group->hyper);
    g->settings = room;
    g->n_settings = 0;
    for (size_t i = 0; i < NAMES_MAX && row->names[i]; i++)
        for (size_t f = 0; f < CZ_ARRAY_LEN(fields); f++)
            if (strcmp(fields[f].name, row->names[i]) == 0)
                room[g->n_settings++] = setting_of(group, &fields[f]);
    g->step_is_tensor = row->step == STEP_TENSOR;
    g->no_step = row->step == STEP_NONE;
}
