/* Learning-rate schedules: the five of DeepSpeed and those of transformers, exactly.
 *
 * Life cycle:
 *   schedule_params_begin(type) → schedule_params_set*() → schedule_params_finish()
 *   schedule_init(groups)        writes the first lr (and betas) into the groups
 *   schedule_step(groups)        after each applied update: i += 1, new lr into the groups
 * The index i starts at -1, so update number k (from 0) runs with lr(i = k − 1); transformers
 * counts the same update as step k. Steps skipped for overflow do not step the schedule. Its whole
 * state is i: after schedule_restore() the groups keep the lr that came with the optimizer's state
 * until the next schedule_step(), as in DeepSpeed. */
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
    SCHEDULE_HF_INVERSE_SQRT
};

enum schedule_warmup { SCHEDULE_LOG = 0, SCHEDULE_LINEAR = 1 };

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
};

/* Whether the schedule is one of transformers'. */
bool schedule_is_hf(enum schedule_kind kind);

/* All types by the names that a config has for them, and the same as a text: "A, B or C". The text
 * is written to buf and returned. */
#define SCHEDULE_TYPES_MAX 16
size_t schedule_types(const char *names[SCHEDULE_TYPES_MAX]);
const char *schedule_type_names(char *buf, size_t nbytes);

/* `type` is case-sensitive and one of schedule_types(); CZ_INVALID for anything else, with the
 * names. */
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

/* Fill in defaults, check what DeepSpeed's constructors check. CZ_INVALID. */
cz_status schedule_params_finish(struct schedule_params *params);

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

/* i += 1 and write lr (and betas) of the new i into the groups. */
void schedule_step(struct schedule *s, struct optim_group *groups);

/* Continue from a checkpoint: sets i alone. */
void schedule_restore(struct schedule *s, int64_t last_batch_iteration);

/* Write lr and betas of the present i into group `group`: for checkpoints that hold i, but no
 * rates. */
void schedule_write_lr(const struct schedule *s, size_t group, struct optim_group *out);
void schedule_write_betas(struct schedule *s, size_t group, struct optim_group *out);

/* The formula: lr of group `group` at index i ≥ -1. Pure. */
double schedule_lr(const struct schedule *s, int64_t i, size_t group);

/* The formula of OneCycle's beta1, unclamped; beta2 is 0.99 throughout (DeepSpeed's). */
double schedule_beta1(const struct schedule *s, int64_t i, size_t group);

/* The largest beta1 that OneCycle hands to an optimizer; its growth after the cycle would pass 1.
 */
#define SCHEDULE_BETA1_MAX 0.9999

CZ_EXTERN_C_END
#endif
