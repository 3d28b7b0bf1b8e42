/* The 1-bit family's schedule: what each update does, from counters alone.
 *
 * OneBitAdam and OneBitLamb average gradients until the variance freezes at freeze_step; from then
 * on ranks exchange compressed momenta. ZeroOneAdam averages gradients at growing intervals
 * and exchanges compressed gradients in between, until var_freeze_step; then ranks move on their
 * own and settle at growing intervals. Counters and their names are DeepSpeed's (0.16.9); pure
 * arithmetic, the same on all ranks. */
#ifndef CZ_OPTIM_ONEBIT_H
#define CZ_OPTIM_ONEBIT_H

#include "ops/lamb/lamb.h"
#include "optim/optim.h"

CZ_EXTERN_C_BEGIN

enum onebit_act {
    ONEBIT_INIT = 0, /* changes nothing: DeepSpeed's first call only sets up its buffers */
    ONEBIT_FULL,     /* gradients averaged; both moments and the weights, as Adam or Lamb */
    ONEBIT_MOMENTUM, /* momenta exchanged, the variance frozen (OneBitAdam, OneBitLamb) */
    ONEBIT_GRADIENT, /* gradients exchanged into the momentum, the variance kept (ZeroOneAdam) */
    ONEBIT_LOCAL,    /* this rank moves by its own gradient (ZeroOneAdam) */
    ONEBIT_SETTLE    /* the same, then the moves are exchanged (ZeroOneAdam) */
};

/* The counters behind the state keys of the same names; all tensors of a run share them. */
struct onebit_clock {
    uint64_t step; /* calls so far; the first one is ONEBIT_INIT */
    bool frozen;
    uint64_t var_interval, var_counter;               /* ZeroOneAdam until it freezes */
    uint64_t local_step_interval, local_step_counter; /* ZeroOneAdam since then */
};

/* Whether the optimizer is of this family. */
static inline bool optim_is_onebit(const struct optim_hyper *hyper)
{
    return hyper->cls && optim_stage_of(hyper->cls, OPTIM_EXCHANGE);
}

/* Whether ranks move weights alone between exchanges, and so hold all of the state. */
static inline bool optim_moves_alone(const struct optim_hyper *hyper)
{
    return optim_is_onebit(hyper) && optim_stage_of(hyper->cls, OPTIM_EXCHANGE)->moves_alone;
}

/* The hyper-parameters that set a run's 1-bit schedule: those of the first group of this family;
 * NULL if there is none. zero_create() allows no other class in the same run. */
static inline const struct optim_hyper *onebit_of(const struct optim_group *groups, size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++)
        if (optim_is_onebit(&groups[g].hyper)) return &groups[g].hyper;
    return NULL;
}

/* The start of a run. In fp32 DeepSpeed's first engine.step() is spent on ONEBIT_INIT; its 16-bit
 * wrapper makes that call when it is built, so that training begins with call 2. */
struct onebit_clock onebit_clock_start(bool is_16bit);

/* What the next update does. */
enum onebit_act onebit_next(const struct optim_hyper *hyper, const struct onebit_clock *clock);

/* That update is done. Returns true when it was the last before the variance is frozen. */
bool onebit_advance(const struct optim_hyper *hyper, struct onebit_clock *clock);

/* The call after whose update the variance is frozen: 2 or later. */
uint64_t onebit_freezes_at(const struct optim_hyper *hyper);

/* Whether an act wants gradients averaged over ranks; otherwise each rank keeps its own. */
static inline bool onebit_averages(enum onebit_act act)
{
    return act == ONEBIT_FULL || act == ONEBIT_INIT;
}

/* Whether an act sends compressed signs. */
static inline bool onebit_exchanges(enum onebit_act act)
{
    return act == ONEBIT_MOMENTUM || act == ONEBIT_GRADIENT || act == ONEBIT_SETTLE;
}

/* A variance that counts as none: at or below it, against the largest of its tensor, an element's
 * gradients were rounding noise (a key bias under softmax) or always zero, and the element is
 * masked: one bit cannot say "nothing", and a frozen variance near zero would blow that bit up. */
#define ONEBIT_MASK_RATIO 0x1p-40f /* of the variance: 2^-20 of its root */

/* OneBitLamb's values of one tensor, under DeepSpeed's names. */
struct onebit_tensor {
    float lamb_coeff_freeze; /* running mean of the trust ratio, kept since the freeze */
    float last_factor;
    float scaling_coeff; /* brings the tensors' momenta to one scale; 0 before the freeze */
};

/* 1-bit Lamb, host side, per tensor. */
void onebit_lamb_warm(const struct optim_hyper *hyper, float ratio,
                      struct onebit_tensor *t); /* after a FULL update with this ratio */

/* scaling_coeff of n tensors from the norms of their momenta: mean of ‖m‖/√numel over tensors,
 * divided by the tensor's own; 1 for a tensor whose momentum is zero, or so near it that the
 * quotient is no fp32 number (DeepSpeed divides all the same). */
void onebit_lamb_scale(const double *norms, const size_t *numels, size_t n,
                       struct onebit_tensor *tensors);

/* The factor of a compressed step from onebit_lamb_norms(), bounded by factor_min, factor_max and
 * factor_threshold around the last one; updates *t and returns lamb_coeff_freeze·factor. A tensor
 * without unmasked elements (factor 0) keeps its last factor. */
float onebit_lamb_ratio(const struct optim_hyper *hyper, const struct lamb_sums *sums, float factor,
                        struct onebit_tensor *t);

CZ_EXTERN_C_END
#endif
