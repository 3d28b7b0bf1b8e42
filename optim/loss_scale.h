/* The loss scaler: one algorithm for every ZeRO stage.
 *
 * scale_loss → backward → at the boundary loss_scale_update(finite?) → skip or apply.
 * The unscaling of a step uses the scale its gradients were made with: read `scale` before
 * loss_scale_update(). All fields are public, because a checkpoint stores them. */
#ifndef CZ_OPTIM_LOSS_SCALE_H
#define CZ_OPTIM_LOSS_SCALE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct loss_scale_options {
    bool fp16;                   /* false (bf16, fp32): the scale is 1 and never moves */
    double static_scale;         /* fp16.loss_scale: > 0 fixed, 0 dynamic */
    int64_t initial_power;       /* first scale 2^power; 16 */
    int64_t window;              /* clean steps before doubling; 1000, > 0 when dynamic */
    double min_scale;            /* floor; 1, > 0 when dynamic */
    int64_t hysteresis;          /* overflows tolerated before halving; 2, ≥ 1 */
    bool consecutive_hysteresis; /* every clean step refills the tolerance */
    bool growth_0_16; /* doubles on the window-th clean step (0.16), not on the next (0.19) */
};

/* The defaults of the fp16 section. `compat_0_16` with none of the five dynamic parameters in the
 * file is DeepSpeed 0.16's ZeRO scaler: first scale 2^32, hysteresis 1. */
struct loss_scale_options loss_scale_defaults(bool fp16, bool compat_0_16, bool none_given);

/* Names of the fields in DeepSpeed's scaler object stand in the comments. */
struct loss_scale {
    bool dynamic;
    bool growth_0_16;
    bool consecutive_hysteresis;
    double scale;               /* cur_scale */
    double factor;              /* scale_factor: 2 */
    int64_t iter;               /* cur_iter: updates seen, skipped ones included */
    int64_t last_overflow_iter; /* -1: none yet */
    int64_t window;             /* scale_window */
    double min_scale;           /* min_scale */
    int64_t delayed_shift;      /* the hysteresis asked for */
    int64_t hysteresis;         /* cur_hysteresis: what is left of it */
};

/* Errors: CZ_INVALID (values that DeepSpeed's config check refuses). */
cz_status loss_scale_init(struct loss_scale *s, const struct loss_scale_options *options);

/* Whether values from a file are valid. Errors: CZ_CORRUPT names the first one that is not. */
cz_status loss_scale_check(const struct loss_scale *s);

/* One boundary. *skip_step: gradients were not finite, the update must not be applied (at any
 * precision). Errors: CZ_INVALID when the scale stands at its minimum and the hysteresis is used
 * up: training cannot continue; the state is then unchanged. */
cz_status loss_scale_update(struct loss_scale *s, bool grads_finite, bool *skip_step);

CZ_EXTERN_C_END
#endif
