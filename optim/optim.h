/* Optimizers as algorithms: states, passes, hyper-parameters per group. No ranks, no files.
 *
 * Life cycle:
 *   optim_hyper_begin(type, dialect) → optim_hyper_set*() → optim_hyper_finish()   from the config
 *   optim_group_init()                       one per parameter group, carries the current lr, betas
 *   each step: optim_step_scalars() per group, then its class's stages in order
 *
 * Everything is plain data owned by the caller; calls are thread-safe on distinct objects. */
#ifndef CZ_OPTIM_OPTIM_H
#define CZ_OPTIM_OPTIM_H

#include "ops/ops.h"
#include "ops/step/step.h"
#include "optim/settings.h"

CZ_EXTERN_C_BEGIN

struct lamb_segment; /* ops/lamb/lamb.h */
struct lamb_sums;

#define OPTIM_STATES_MAX STEP_STATES_MAX

/* Which of DeepSpeed's classes the config would build. Names and defaults differ; the arithmetic
 * here is the same for all. */
enum optim_dialect {
    OPTIM_FUSED = 0,   /* the device class: FusedAdam, FusedLamb, FusedLion; torch's Adagrad, SGD */
    OPTIM_OFFLOAD = 1, /* offload_optimizer is set: CPUAdam, CPUAdagrad, CPULion */
    OPTIM_TORCH = 2    /* torch_adam: torch's Adam and AdamW; chosen by optim_hyper_finish() */
};

enum optim_flag {
    OPTIM_ZERO_TESTED = 1 << 0,   /* runs under ZeRO without zero_allow_untested_optimizer */
    OPTIM_DYNAMIC_SCALE = 1 << 1, /* DeepSpeed refuses it with a static loss scale */
    OPTIM_16BIT_MASTERS = 1 << 2  /* DeepSpeed takes 16-bit masters with it under offload */
};

struct optim_class;
struct optim_type;

/* The hyper-parameters of one group. Which fields count depends on the class. */
struct optim_hyper {
    const struct optim_class *cls;
    enum optim_dialect dialect;
    const struct optim_type *type; /* what the config said: a class may have several names */
    /* bit i: settings[i] of `given_in` was set: a mask means nothing in another class' table */
    uint64_t given;
    const struct setting_table *given_in;

    double lr;
    double betas[2];
    double eps;
    double weight_decay;
    bool bias_correction;
    bool adam_w_mode; /* after finish: true = decoupled decay */
    bool torch_adam;
    bool amsgrad; /* true is refused */
    bool fp32_optimizer_states;
    bool eps_inside_sqrt;
    double max_coeff, min_coeff;                /* Lamb */
    double lr_decay, initial_accumulator_value; /* Adagrad */
    double momentum, dampening;                 /* SGD */
    bool nesterov;                              /* SGD */
    /* The 1-bit family (optim/onebit.h). Steps are whole numbers ≥ 1. */
    double freeze_step;                              /* OneBitAdam, OneBitLamb */
    double var_freeze_step, var_update_scaler;       /* ZeroOneAdam */
    double local_step_scaler, local_step_clipper;    /* ZeroOneAdam */
    double coeff_beta;                               /* OneBitLamb */
    double factor_max, factor_min, factor_threshold; /* OneBitLamb */
    int comm_backend; /* nccl, mpi, hccl, compressed: what the run has */
    bool cuda_aware;  /* of the mpi backend on a GPU */
    bool maximize;    /* torch's classes; true is refused */
    bool no_effect;   /* where switches without effect here end up */
};

/* One parameter group: its constants and what the schedule (or the user) changes. */
struct optim_group {
    struct optim_hyper hyper;
    double lr;       /* current: what the next step uses */
    double betas[2]; /* current */
};

/* A rule that makes a group: parameters whose name matches (first match wins). NAN keeps the
 * config's value. */
struct optim_group_rule {
    const char *name_regex; /* base/text/regex.h, searched anywhere in the name */
    double lr, weight_decay, beta1, beta2;
};

/* ---- hyper-parameters ----------------------------------------------------------------------- */

/* Start from nothing given. `type` as in the config's optimizer.type: DeepSpeed's built-in names in
 * any case ("adam", "AdamW", "Lamb", "OneBitAdam" …), torch's names exactly ("SGD").
 * Errors: CZ_UNSUPPORTED (a name DeepSpeed knows and czero does not do), CZ_INVALID (unknown name,
 * with those that work). */
cz_status optim_hyper_begin(const char *type, enum optim_dialect dialect, struct optim_hyper *out);

/* The table of parameters that this type takes in this dialect. Offsets are into optim_hyper. */
const struct setting_table *optim_settings(const struct optim_hyper *hyper);

/* Set one parameter by the config's name. Errors: CZ_INVALID (unknown name, with the nearest one;
 * max_grad_norm, which DeepSpeed refuses in favour of gradient_clipping; a wrong type).
 * Sentences begin with the parameter's name. */
cz_status optim_hyper_set(struct optim_hyper *hyper, const char *name,
                          const struct setting_value *value);
cz_status optim_hyper_set_number(struct optim_hyper *hyper, const char *name, double value);
cz_status optim_hyper_set_bool(struct optim_hyper *hyper, const char *name, bool value);
cz_status optim_hyper_set_pair(struct optim_hyper *hyper, const char *name, double a, double b);

/* Whether the config set this parameter. */
bool optim_hyper_given(const struct optim_hyper *hyper, const char *name);

/* Fill in the defaults and check ranges. Errors: CZ_INVALID (lr < 0, betas outside [0, 1), NaN,
 * nesterov without momentum …), CZ_UNSUPPORTED (amsgrad, maximize). */
cz_status optim_hyper_finish(struct optim_hyper *hyper);

/* ---- groups --------------------------------------------------------------------------------- */

/* A group from the config's hyper-parameters and a rule's overrides (rule may be NULL).
 * CZ_INVALID when an override is out of range. */
cz_status optim_group_init(struct optim_group *group, const struct optim_hyper *base,
                           const struct optim_group_rule *rule);

/* Check the group as it is now by the rules for a config, for values that did not come from one: a
 * checkpoint's. CZ_INVALID. */
cz_status optim_group_check(const struct optim_group *group);

/* ---- the step ------------------------------------------------------------------------------- */

/* The factor that gradients are clipped by: max(1, (norm/loss_scale + 1e-6)/max_norm), where `norm`
 * is the global norm of the gradients still scaled; 1 when max_norm ≤ 0. */
double optim_clip_factor(double norm, double loss_scale, double max_norm);

/* All scalars of update t ≥ 1 of a group. Pure: equal arguments give equal bits. */
void optim_step_scalars(const struct optim_group *group, uint64_t t, double loss_scale,
                        double clip_factor, struct step_scalars *out);

/* A range of one group's partition: at most one tile. Pointers are in the device's memory. */
struct optim_range {
    struct step_tensors tensors;         /* states in the class's order; unused ones NULL */
    const struct lamb_segment *segments; /* of classes with OPTIM_TENSOR_SUMS: its tensors */
    size_t n_segments;
    struct lamb_sums *sums; /* per tensor of the group, zeroed before that stage */
    const float *ratios;    /* per tensor of the group, after it */
};

/* Kinds of stages. In all but the first, ranks wait for each other: a rank that has failed still
 * takes part. */
enum optim_stage_kind {
    OPTIM_ELEMENTS = 0, /* each element by itself, in ranges of any size */
    OPTIM_TENSOR_SUMS,  /* the same, and sums of whole tensors, from which ratios follow */
    OPTIM_EXCHANGE      /* what ranks exchange in the place of averaged gradients (zero/onebit/):
                           optim/onebit.h says when they want those */
};

struct optim_stage {
    enum optim_stage_kind kind;
    /* Over one range; asynchronous on the stream. scalars: the group's, in device memory. NULL: an
     * exchange. Errors: CZ_INVALID, CZ_UNSUPPORTED from the kernels' argument checks. */
    cz_status (*run)(struct ops *ops, struct dev_stream *stream, const struct optim_hyper *hyper,
                     const struct step_scalars *scalars, const struct optim_range *range);
    /* OPTIM_TENSOR_SUMS, host side: ratios of n tensors from the sums over all ranks. */
    void (*ratios)(const struct optim_hyper *hyper, const struct lamb_sums *sums, size_t n_tensors,
                   float *ratios);
    bool moves_alone; /* OPTIM_EXCHANGE: ranks move weights alone between exchanges */
};

static inline bool optim_stage_waits(const struct optim_stage *stage)
{
    return stage->kind != OPTIM_ELEMENTS;
}

/* How checkpoints hold a group of this class: as one of DeepSpeed's or torch's classes does, whose
 * saved dictionaries DeepSpeed takes as they are. */
#define OPTIM_SAVED_SETTINGS_MAX 12
enum optim_saved_step { OPTIM_STEP_INT = 0, OPTIM_STEP_TENSOR, OPTIM_STEP_NONE };

struct optim_saved {
    const char *name;  /* "FusedAdam" */
    unsigned dialects; /* under which it is built: bits 1 << optim_dialect; 0: the others */
    enum optim_saved_step step; /* how the number of updates is written beside the states */
    bool flat_masters;       /* in 16 bits at stage 0 DeepSpeed's wrapper keeps the masters flat */
    const char *first_state; /* the name of state 0; NULL: state_names[0] */
    const char *settings[OPTIM_SAVED_SETTINGS_MAX + 1]; /* of param_groups, in order; then NULL */
};

/* The run that a class is asked to be part of. */
struct optim_use {
    int stage;
    bool states_offloaded, params_offloaded;
    bool sums;                     /* gradients are added up over ranks, not averaged */
    bool fp16_states, bf16_states; /* masters or states in 16 bits */
};

/* A run that a class refuses: config_check() and zero_create() both ask this table. */
struct optim_limit {
    const char *key; /* of the config: where the blame goes */
    bool (*applies)(const struct optim_use *use);
    const char *why;
};

struct optim_class {
    const char *name;                          /* "Adam", "Lamb", …, "OneBitAdam" */
    unsigned flags;                            /* bits of enum optim_flag */
    bool has_betas;                            /* OneCycle can cycle beta1 */
    const char *state_names[OPTIM_STATES_MAX]; /* as torch names them, in order */
    enum step_op elements;                     /* of classes whose update is one step op */
    const char *const *ops;          /* that it calls, as ops_require() knows them; NULL */
    const struct optim_saved *saved; /* the first that fits the dialect counts */
    size_t n_saved;
    const struct optim_limit *limits; /* NULL: it takes every run */
    size_t n_limits;

    /* States kept with these hyper-parameters (SGD without momentum keeps none); NULL: all. */
    size_t (*n_states)(const struct optim_hyper *hyper);

    /* What a state is filled with before the first step; NULL: zeros. */
    double (*state_init)(const struct optim_hyper *hyper, size_t state_idx);

    /* An update's, in order; the last one changes the weights. */
    const struct optim_stage *stages;
    size_t n_stages;
    /* The 1-bit family's once the variance is frozen: an exchange, then elements from the momentum
     * and ratios per tensor. NULL for the others. */
    const struct optim_stage *frozen_stages;
    size_t n_frozen_stages;
};

/* The first stage of a kind, of either list; NULL: the class has none. */
const struct optim_stage *optim_stage_of(const struct optim_class *cls, enum optim_stage_kind kind);

/* The classes of the groups, each once: "Adam", or "Adam, SGD". Returns `buf`. */
CZ_API const char *optim_group_names(const struct optim_group *groups, size_t n_groups, char *buf,
                                     size_t nbytes);

/* States kept by a group's optimizer, 0 … OPTIM_STATES_MAX. */
size_t optim_n_states(const struct optim_hyper *hyper);

/* The fill value of a state before the first step (0, or Adagrad's initial_accumulator_value). */
double optim_state_init(const struct optim_hyper *hyper, size_t state_idx);

/* How checkpoints hold a group; NULL: unknown for this class in this dialect. */
const struct optim_saved *optim_saved_as(const struct optim_hyper *hyper);

/* The first limit of the class that the run breaks; NULL: none. *from: where to look on, 0 at
 * first. */
const struct optim_limit *optim_limit_next(const struct optim_class *cls,
                                           const struct optim_use *use, size_t *from);

/* ---- the table ------------------------------------------------------------------------------ */

/* Whose name it is decides how a config may write it. */
enum optim_origin {
    OPTIM_OF_DEEPSPEED = 0,  /* of 0.19: in any case, shown in lower case */
    OPTIM_OF_DEEPSPEED_0_16, /* of 0.16 alone: in any case, shown as written */
    OPTIM_OF_TORCH           /* of torch.optim: exactly as here */
};

/* A value of optimizer.type. One table of them (optim/types.c) makes the config's lists, refusals,
 * docs/config.md and what `czero init` writes; docs that list them manually are compared with it.
 */
struct optim_type {
    const char *name;              /* "AdamW" */
    const struct optim_class *cls; /* NULL: DeepSpeed has it, czero does not */
    enum optim_origin origin;
    bool decoupled;      /* weight decay apart from the gradient, whatever adam_w_mode says */
    bool is_default;     /* what `czero init` and `czero tune` write */
    const char *same_as; /* takes the parameters of that type */
    const char *text;    /* a line for lists */
};

/* types[0 … *n). */
const struct optim_type *optim_types(size_t *n);

/* The type that a config's text names, as optim_hyper_begin() matches it; NULL: none. */
const struct optim_type *optim_type_find(const char *text);

const struct optim_type *optim_type_default(void);

/* "Adam, AdamW, …, OneBitLamb": those that czero has. Returns `buf`. */
const char *optim_type_names(char *buf, size_t nbytes);

CZ_EXTERN_C_END
#endif
