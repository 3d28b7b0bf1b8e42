/* The 1-bit family's schedule of steps, and 1-bit Lamb's arithmetic per tensor. Which kind of step
 * is next follows from counters alone (docs/deepspeed-behaviour.md, "The 1-bit family"), so ranks
 * that count alike never disagree on a collective. */
#include "optim/onebit.h"

#include "optim/optim_impl.h"

#include <math.h>

/* ---- the schedule of steps ------------------------------------------------------------------ */

/* The last call with averaged gradients. */
uint64_t onebit_freezes_at(const struct optim_hyper *hyper)
{
    if (optim_moves_alone(hyper)) return (uint64_t)hyper->var_freeze_step + 1;
    return hyper->freeze_step > 2 ? (uint64_t)hyper->freeze_step
                                  : 2; /* the first call is no update */
}

/* In 16 bits DeepSpeed's first call sets up its flat buffers and is none of the optimizer's
 * steps. */
struct onebit_clock onebit_clock_start(bool is_16bit)
{
    return (struct onebit_clock){
        .step = is_16bit ? 1 : 0,
        .var_interval = 1,
        .local_step_interval = 1,
    };
}

/* The kind of the coming step; asking changes nothing. */
enum onebit_act onebit_next(const struct optim_hyper *hyper, const struct onebit_clock *clock)
{
    uint64_t step = clock->step + 1;
    if (step == 1) return ONEBIT_INIT;
    if (!optim_moves_alone(hyper)) return clock->frozen ? ONEBIT_MOMENTUM : ONEBIT_FULL;
    if (clock->frozen) return step % clock->local_step_interval ? ONEBIT_LOCAL : ONEBIT_SETTLE;
    return step % clock->var_interval ? ONEBIT_GRADIENT : ONEBIT_FULL;
}

/* True when the variance was frozen by this step. */
bool onebit_advance(const struct optim_hyper *hyper, struct onebit_clock *clock)
{
    enum onebit_act act = onebit_next(hyper, clock);
    clock->step++;
    if (act == ONEBIT_INIT) return false;
    if (clock->frozen) {
        /* Steps without exchange or with count alike: after every local_step_scaler of them
         * exchanges are twice as far apart, up to local_step_clipper. */
        if (optim_moves_alone(hyper)) {
            clock->local_step_counter++;
            if ((double)clock->local_step_counter >= hyper->local_step_scaler) {
                uint64_t interval = 2 * clock->local_step_interval;
                bool clipped = (double)interval > hyper->local_step_clipper;
                clock->local_step_counter = 0;
                clock->local_step_interval =
                    clipped ? (uint64_t)hyper->local_step_clipper : interval;
            }
        }
        return false;
    }
    /* A variance update was done: after every var_update_scaler of them the next are twice as far
     * apart. */
    if (optim_moves_alone(hyper) && act == ONEBIT_FULL) {
        clock->var_counter++;
        if ((double)clock->var_counter >= hyper->var_update_scaler) {
            clock->var_counter = 0;
            clock->var_interval *= 2;
        }
    }
    clock->frozen = clock->step >= onebit_freezes_at(hyper);
    return clock->frozen;
}

/* ---- 1-bit Lamb ----------------------------------------------------------------------------- */

void onebit_lamb_warm(const struct optim_hyper *hyper, float ratio, struct onebit_tensor *t)
{
    if (ratio == 1) return; /* as good as always: a norm of zero, not a ratio */
    double beta = hyper->coeff_beta;
    t->lamb_coeff_freeze = (float)(beta * t->lamb_coeff_freeze + (1 - beta) * ratio);
}

static double root_mean_square(double norm, size_t numel)
{
    return numel > 0 ? norm / sqrt((double)numel) : 0;
}

/* Momenta of all tensors are brought to one scale before they share a sign exchange; a tensor of
 * zeros keeps its own. */
void onebit_lamb_scale(const double *norms, const size_t *numels, size_t n,
                       struct onebit_tensor *tensors)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++) mean += root_mean_square(norms[i], numels[i]) / (double)n;
    for (size_t i = 0; i < n; i++) {
        double own = root_mean_square(norms[i], numels[i]);
        float coeff = own > 0 ? (float)(mean / own) : 1;
        tensors[i].scaling_coeff = isfinite(coeff) ? coeff : 1; /* own all but zero */
    }
}

static double clamp(double value, double low, double high)
{
    if (value > high) value = high;
    return value < low ? low : value;
}

/* The decay's part of the update did not shrink with the variance: it counts with factor 1. */
static double blend_decay(double factor, const struct lamb_sums *sums)
{
    double norm = sqrt(lamb_sum(sums->u));
    double share = norm > 0 ? sqrt(lamb_sum(sums->p)) / norm : 1;
    if (share > 1) share = 1;
    return factor * share + (1 - share);
}

/* The frozen ratio moves with the variance it was made with, within two bounds: absolute, and
 * relative to the last step's. */
float onebit_lamb_ratio(const struct optim_hyper *hyper, const struct lamb_sums *sums, float factor,
                        struct onebit_tensor *t)
{
    if (factor > 0) {
        double last = t->last_factor, f = factor;
        if (hyper->weight_decay > 0) f = blend_decay(f, sums);
        f = clamp(f, hyper->factor_min, hyper->factor_max);
        f = clamp(f, last * (1 - hyper->factor_threshold), last * (1 + hyper->factor_threshold));
        t->last_factor = (float)f;
    }
    return t->lamb_coeff_freeze * t->last_factor;
}
