/* Learning-rate schedules: the five of DeepSpeed, those of transformers and those of torch.optim
 * that a config can describe, exactly.
 *
 * Life cycle:
 *   schedule_params_begin(type) → schedule_params_set*() → schedule_params_finish()
 *   schedule_init(groups)        writes the first lr (and betas) into the groups
 *   schedule_step(groups)        after each applied update: i += 1, new lr into the groups
 * The index i starts at -1, so update number k (from 0) runs with lr(i = k − 1); transformers
 * counts the same update as step k, torch as last_epoch = i + 1. Steps skipped for overflow do not
 * step the schedule. Its whole state is i: after schedule_restore() the groups keep the lr that
 * came with the optimizer's state until the next schedule_step(), as in DeepSpeed. Some of torch's
 * (StepLR, MultiStepLR, ConstantLR, LinearLR, ExponentialLR, PolynomialLR, CosineAnnealingLR) make
 * the next lr from the group's lr of now; the others compute it from i. */
#ifndef CZ_OPTIM_SCHEDULE_H
#define CZ_OPTIM_SCHEDULE_H

#include "optim/optim.h"

CZ_EXTERN_C_BEGIN

enum schedule_kind {
    SCHEDULE_WARMUP = 0,
    SCHEDULE_WARMUP_DECAY,
    SCHEDULE_WARMUP_COSINE,
    SCHEDULE_RANGE_TEST,
    SCHEDULE_ONE_CYCLE,
    /* Of transformers (get_scheduler): multiples of the optimizer's lr. */
    SCHEDULE_HF_LINEAR,
    SCHEDULE_HF_COSINE,
    SCHEDULE_HF_RESTARTS,
    SCHEDULE_HF_MIN_LR,
    SCHEDULE_HF_POLYNOMIAL,
    SCHEDULE_HF_CONSTANT,
    SCHEDULE_HF_WARMUP,
    SCHEDULE_HF_INVERSE_SQRT,
    /* Of torch.optim.lr_scheduler, which DeepSpeed takes by their names. */
    SCHEDULE_TORCH_STEP,
    SCHEDULE_TORCH_MULTI_STEP,
    SCHEDULE_TORCH_CONSTANT,
    SCHEDULE_TORCH_LINEAR,
    SCHEDULE_TORCH_EXPONENTIAL,
    SCHEDULE_TORCH_POLYNOMIAL,
    SCHEDULE_TORCH_COSINE,
    SCHEDULE_TORCH_RESTARTS,
    SCHEDULE_TORCH_CYCLIC,
    SCHEDULE_TORCH_ONE_CYCLE
};

enum schedule_warmup { SCHEDULE_LOG = 0, SCHEDULE_LINEAR = 1 };

/* The parameters of torch's, under torch's names; T_cur, T_i, total_size, step_ratio, phase_ends
 * and use_beta1 are what torch computes and keeps beside them. */
#define SCHEDULE_PHASES_MAX 3
struct schedule_torch {
    double step_size, gamma;
    struct setting_list milestones;
    double factor, start_factor, end_factor, total_iters, power;
    double T_max, eta_min;
    int64_t T_0, T_mult, T_cur, T_i;
    struct setting_list base_lr, max_lr, base_momentum, max_momentum;
    double step_size_up, step_size_down, total_size, step_ratio;
    int mode, scale_mode, anneal_strategy;
    bool cycle_momentum, use_beta1, three_phase;
    int64_t total_steps, epochs, steps_per_epoch; /* 0: not given */
    double pct_start, div_factor, final_div_factor;
    double phase_ends[SCHEDULE_PHASES_MAX];
    double last_epoch; /* -1 */
    int no_effect;
};

struct schedule_params {
    enum schedule_kind kind;
    bool compat_0_16; /* 0.16: no argument checks, WarmupLR to 0.001, the cosine is not clamped at
                         its end, OneCycle has no stairs */
    uint64_t given;   /* bit i: settings[i] of schedule_settings() */
    int64_t last_batch_iteration; /* -1 */

    struct setting_list warmup_min_lr, warmup_max_lr; /* max n 0: each group's own lr */
    int64_t warmup_num_steps;                         /* after finish: ≥ 2 */
    int warmup_type;                                  /* enum schedule_warmup */
    double total_num_steps;
    double warmup_min_ratio, cos_min_ratio;

    struct setting_list range_min_lr;
    int64_t range_step_size;
    double range_step_rate;
    bool range_staircase;

    struct setting_list cycle_min_lr, cycle_max_lr, cycle_min_mom, cycle_max_mom;
    double cycle_first_step_size, cycle_second_step_size;
    double cycle_first_stair_count, cycle_second_stair_count;
    double decay_step_size, decay_lr_rate, decay_mom_rate;
    bool cycle_momentum;

    double num_cycles, power, lr_end, min_lr, min_lr_rate;
    int64_t timescale; /* after finish: ≥ 1 */

    struct schedule_torch torch;
};

/* Whether the schedule is one of transformers', or one of torch's. */
bool schedule_is_hf(enum schedule_kind kind);
bool schedule_is_torch(enum schedule_kind kind);

/* All types by the names that a config has for them, and the same as a text: "A, B or C". The text
 * is written to buf and returned. */
#define SCHEDULE_TYPES_MAX 32
size_t schedule_types(const char *names[SCHEDULE_TYPES_MAX]);
const char *schedule_type_names(char *buf, size_t nbytes);

/* `type` is case-sensitive and one of schedule_types(). CZ_UNSUPPORTED: a class of torch that a
 * config cannot describe, with the reason. CZ_INVALID: anything else, with the names. */
cz_status schedule_params_begin(const char *type, bool compat_0_16, struct schedule_params *out);
const struct setting_table *schedule_settings(const struct schedule_params *params);

/* Set a parameter by the config's name. CZ_INVALID: unknown (with the nearest), or a wrong type:
 * under 0.19 the step counts of the warm-ups and of LRRangeTest must be integers (1e3 is not). */
cz_status schedule_params_set(struct schedule_params *params, const char *name,
                              const struct setting_value *value);
cz_status schedule_params_set_number(struct schedule_params *params, const char *name,
                                     double value);
cz_status schedule_params_set_int(struct schedule_params *params, const char *name, int64_t value);
cz_status schedule_params_set_bool(struct schedule_params *params, const char *name, bool value);
cz_status schedule_params_set_list(struct schedule_params *params, const char *name,
                                   const double *values, size_t n);
cz_status schedule_params_set_name(struct schedule_params *params, const char *name,
                                   const char *value);

/* Fill in defaults, check what DeepSpeed's and torch's constructors check. CZ_INVALID. */
cz_status schedule_params_finish(struct schedule_params *params);

/* What CyclicLR and OneCycleLR do to an optimizer when they are made: SGD's momentum becomes
 * theirs, so that it has a buffer from the first update on; others are left alone. CZ_INVALID: they
 * cycle the momentum of an optimizer that has none, or SGD's through 0. */
cz_status schedule_fit_optimizer(const struct schedule_params *params, struct optim_hyper *hyper);

struct schedule {
    struct schedule_params params;
    size_t n_groups;
    int64_t last_batch_iteration;     /* i */
    bool cycles_momentum;             /* OneCycle on an optimizer with betas */
    bool warned_momentum;             /* beta1 reached 1 and was clamped (said once) */
    double base_lr[OPTIM_GROUPS_MAX]; /* the groups' own lr, before the schedule */
};

/* Take over `groups` (n_groups ≤ OPTIM_GROUPS_MAX): remembers their lr as the base and writes the
 * first lr, and for OneCycle the first betas, into them.
 * CZ_INVALID: a per-group list whose length is not n_groups. */
cz_status schedule_init(struct schedule *s, const struct schedule_params *params,
                        struct optim_group *groups, size_t n_groups);

/* i += 1 and write lr (and betas) of the new i into the groups. CZ_INVALID: OneCycleLR's
 * total_steps are over, or a rate is not finite; the groups then hold rates that nothing must be
 * updated with.
 */
cz_status schedule_step(struct schedule *s, struct optim_group *groups);

/* Continue from a checkpoint: sets i alone. */
void schedule_restore(struct schedule *s, int64_t last_batch_iteration);

/* Write lr and betas of the present i into group `group`: for checkpoints that hold i, but no
 * rates. */
void schedule_write_lr(const struct schedule *s, size_t group, struct optim_group *out);
void schedule_write_betas(struct schedule *s, size_t group, struct optim_group *out);

/* The formula: lr of group `group` at index i ≥ -1. Pure. Of schedules that torch computes from the
 * rate before, the closed form, which differs from steps by their rounding. */
double schedule_lr(const struct schedule *s, int64_t i, size_t group);

/* The formula of OneCycle's beta1, unclamped; beta2 is 0.99 throughout (DeepSpeed's). */
double schedule_beta1(const struct schedule *s, int64_t i, size_t group);

/* ---- checkpoints: torch's state_dict() ------------------------------------------------------- */

enum schedule_entry_kind {
    SCHEDULE_ENTRY_NUMBER = 0, /* double */
    SCHEDULE_ENTRY_WHOLE,      /* double, an int in Python when it has no fraction */
    SCHEDULE_ENTRY_INT,        /* int64_t */
    SCHEDULE_ENTRY_BOOL,       /* bool */
    SCHEDULE_ENTRY_NAME,       /* int, index into names */
    SCHEDULE_ENTRY_RATES,      /* struct setting_list: one number per group */
    SCHEDULE_ENTRY_COUNTS,     /* struct setting_list: a Counter of its values */
    SCHEDULE_ENTRY_PHASES      /* OneCycleLR's _schedule_phases: ends[SCHEDULE_PHASES_MAX] */
};

/* An entry before "base_lrs", in the dictionary's order. */
struct schedule_entry {
    const char *key;
    enum schedule_entry_kind kind;
    size_t offset; /* into struct schedule_torch */
    const char *const *names;
    bool of_momentum; /* only with cycle_momentum */
};

/* entries[0 … *n) of one of torch's schedules; NULL and 0 for the others. */
const struct schedule_entry *schedule_entries(enum schedule_kind kind, size_t *n);

/* What torch's schedules keep in the optimizer's param_groups: names[i] and values[i] of `group`,
 * in order. Returns how many there are; 0 for DeepSpeed's schedules. */
#define SCHEDULE_KEPT_MAX 5
size_t schedule_kept(const struct schedule *s, size_t group, const char *names[SCHEDULE_KEPT_MAX],
                     double values[SCHEDULE_KEPT_MAX]);

/* The largest beta1 that OneCycle hands to an optimizer; its growth after the cycle would pass 1.
 */
#define SCHEDULE_BETA1_MAX 0.9999

CZ_EXTERN_C_END
#endif
