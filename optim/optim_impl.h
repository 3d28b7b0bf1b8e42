/* Inside optim/: what each class file gives to the registry. */
#ifndef CZ_OPTIM_OPTIM_IMPL_H
#define CZ_OPTIM_OPTIM_IMPL_H

#include "ops/lamb/lamb.h"
#include "optim/optim.h"

/* A class, the parameters its config takes, and the check of their ranges. */
struct optim_class_entry {
    struct optim_class cls; /* first: a pointer to it is a pointer to the entry */
    const struct setting_table *settings;
    cz_status (*check)(
        const struct optim_hyper *hyper); /* NULL: nothing beyond the common ranges */
};

extern const struct optim_class_entry optim_adam, optim_lamb, optim_lion, optim_adagrad, optim_sgd;
extern const struct optim_class_entry optim_onebit_adam, optim_zero_one_adam, optim_onebit_lamb;

#define OPTIM_IN_FUSED   (1u << OPTIM_FUSED)
#define OPTIM_IN_OFFLOAD (1u << OPTIM_OFFLOAD)
#define OPTIM_IN_TORCH   (1u << OPTIM_TORCH)

/* CZ_INVALID: a type that no table knows, with those that work. */
cz_status optim_type_unknown(const char *text);

/* A class' list of names, and its forms in checkpoints. */
#define OPTIM_OPS(...)                                                                             \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define OPTIM_SAVED(list)  .saved = list, .n_saved = CZ_ARRAY_LEN(list)
#define OPTIM_STAGES(list) .stages = list, .n_stages = CZ_ARRAY_LEN(list)
#define OPTIM_FROZEN(list) .frozen_stages = list, .n_frozen_stages = CZ_ARRAY_LEN(list)

/* The stages of a class whose update is one step op. */
extern const struct optim_stage optim_elements[1];

/* Rows of a settings table; `in` is 0 (everywhere) or OPTIM_IN_* bits. */
#define OPTIM_NUMBER(key, field, value, in, text)                                                  \
    {                                                                                              \
        .name = key, .type = SETTING_NUMBER, .offset = offsetof(struct optim_hyper, field),        \
        .defaults = {value}, .dialects = in, .help = text                                          \
    }
#define OPTIM_COUNT(key, field, value, text)                                                       \
    {                                                                                              \
        .name = key, .type = SETTING_NUMBER, .offset = offsetof(struct optim_hyper, field),        \
        .defaults = {value}, .is_count = true, .help = text                                        \
    }
#define OPTIM_BOOL(key, field, value, in, text)                                                    \
    {                                                                                              \
        .name = key, .type = SETTING_BOOL, .offset = offsetof(struct optim_hyper, field),          \
        .defaults = {value}, .dialects = in, .help = text                                          \
    }
#define OPTIM_BETAS                                                                                \
    {                                                                                              \
        .name = "betas", .type = SETTING_PAIR, .offset = offsetof(struct optim_hyper, betas),      \
        .defaults = {0.9, 0.999}, .help = "decay of the running means"                             \
    }

/* The switches that torch's classes take and that change nothing here. */
#define OPTIM_TORCH_SWITCHES(in)                                                                   \
    OPTIM_BOOL("foreach", no_effect, 0, in, "no effect here"),                                     \
        OPTIM_BOOL("differentiable", no_effect, 0, in, "no effect here"),                          \
        OPTIM_BOOL("fused", no_effect, 0, in, "no effect here"),                                   \
        OPTIM_BOOL("maximize", maximize, 0, in, "not supported")

/* CZ_INVALID unless `v` ≥ 0. */
cz_status optim_check_not_negative(const char *name, double v);

/* A range's step with a group's constants. Bias corrections and decays of the rate are in the
 * scalars, so that a GPU's kernel arguments do not change from step to step. */
struct step_args optim_step_args(enum step_op op, const struct optim_hyper *hyper,
                                 const struct step_scalars *scalars,
                                 const struct optim_range *range);
struct lamb_args optim_lamb_args(const struct optim_hyper *hyper,
                                 const struct step_scalars *scalars,
                                 const struct optim_range *range);

/* optim_class.step of the classes with `elements`. */

/* Of Lamb and OneBitLamb: 0 ≤ min_coeff ≤ max_coeff, and the trust ratios between them. */
cz_status optim_check_coeffs(const struct optim_hyper *hyper);
void optim_lamb_ratios(const struct optim_hyper *hyper, const struct lamb_sums *sums,
                       size_t n_tensors, float *ratios);

#endif
