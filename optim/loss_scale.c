/* Loss scaling for fp16, static or dynamic, with DeepSpeed's schedule (docs/deepspeed-behaviour.md,
 * "Loss scale"): the scale falls on overflow, after `hysteresis` of them, and doubles after
 * `window` good steps. A scale at its minimum that overflows again ends the run, as DeepSpeed
 * does. */
#include "optim/loss_scale.h"

#include <math.h>
#include <string.h>

#define COUNT_MAX ((int64_t)1 << 53) /* no run gets there; sums of two cannot overflow */

/* 0.16 and 0.19 differ in what a config without keys means. */
struct loss_scale_options loss_scale_defaults(bool fp16, bool compat_0_16, bool none_given)
{
    struct loss_scale_options o = {
        .fp16 = fp16,
        .initial_power = 16,
        .window = 1000,
        .min_scale = 1,
        .hysteresis = 2,
        .growth_0_16 = compat_0_16,
    };
    if (compat_0_16 && none_given) {
        o.initial_power = 32;
        o.hysteresis = 1;
    }
    return o;
}

static cz_status check_dynamic(const struct loss_scale_options *o)
{
    if (o->window < 1)
        return err_set(CZ_INVALID, 0, "fp16.loss_scale_window: %lld must be 1 or more",
                       (long long)o->window);
    if (!(o->min_scale > 0) || !isfinite(o->min_scale))
        return err_set(CZ_INVALID, 0, "fp16.min_loss_scale: %g must be above 0", o->min_scale);
    if (o->hysteresis < 1)
        return err_set(CZ_INVALID, 0,
                       "fp16.hysteresis: %lld would never lower the loss scale; use 1 or more",
                       (long long)o->hysteresis);
    if (o->initial_power < -126 || o->initial_power > 127)
        return err_set(CZ_INVALID, 0, "fp16.initial_scale_power: 2^%lld is outside -126 to 127",
                       (long long)o->initial_power);
    return CZ_OK;
}

/* A static scale is a dynamic one that never moves. */
cz_status loss_scale_init(struct loss_scale *s, const struct loss_scale_options *o)
{
    memset(s, 0, sizeof *s);
    s->scale = 1;
    s->factor = 2;
    s->last_overflow_iter = -1;
    if (!o->fp16) return CZ_OK;
    if (!(o->static_scale >= 0) || !isfinite(o->static_scale))
        return err_set(CZ_INVALID, 0, "fp16.loss_scale: %g must be 0 (dynamic) or above",
                       o->static_scale);
    if (o->static_scale > 0) {
        s->scale = o->static_scale;
        return CZ_OK;
    }
    TRY(check_dynamic(o));
    s->dynamic = true;
    s->scale = ldexp(1, (int)o->initial_power);
    s->growth_0_16 = o->growth_0_16;
    s->consecutive_hysteresis = o->consecutive_hysteresis;
    s->window = o->window;
    s->min_scale = o->min_scale;
    s->delayed_shift = o->hysteresis;
    s->hysteresis = o->hysteresis;
    return CZ_OK;
}

/* Values of a checkpoint: counts that no run reaches are damage. */
static cz_status check_count(const char *name, int64_t value, int64_t least)
{
    if (value >= least && value <= COUNT_MAX) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s cannot be %lld", name, (long long)value);
}

static cz_status check_above(const char *name, double value, double bound)
{
    if (value > bound && isfinite(value)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s cannot be %g", name, value);
}

/* For state from a file, before it is used. */
cz_status loss_scale_check(const struct loss_scale *s)
{
    TRY(check_above("scale", s->scale, 0));
    if (!s->dynamic) return CZ_OK;
    TRY(check_above("factor", s->factor, 1));
    TRY(check_above("min_scale", s->min_scale, 0));
    TRY(check_count("window", s->window, 1));
    TRY(check_count("delayed_shift", s->delayed_shift, 1));
    TRY(check_count("hysteresis", s->hysteresis, 1));
    TRY(check_count("last_overflow_iter", s->last_overflow_iter, -1));
    return check_count("iter", s->iter, 0);
}

/* Hysteresis forgives the first overflows; delayed_shift 1 switches that off. */
static cz_status lower(struct loss_scale *s)
{
    if (s->delayed_shift != 1 && s->hysteresis != 1) {
        s->hysteresis--;
        return CZ_OK;
    }
    if (s->scale == s->min_scale)
        return err_set(CZ_INVALID, 0,
                       "the loss scale is at its minimum of %g and the gradients still overflow: "
                       "training cannot continue; look for NaN in the data or the loss, "
                       "lower the learning rate, or train in bf16",
                       s->min_scale);
    s->scale = fmax(s->scale / s->factor, s->min_scale);
    return CZ_OK;
}

/* 0.19 counts from the step after the overflow, 0.16 from the overflow itself. */
static bool time_to_grow(const struct loss_scale *s)
{
    if (s->growth_0_16) return (s->iter - s->last_overflow_iter) % s->window == 0;
    int64_t stable = s->iter - s->last_overflow_iter - 1;
    return stable > 0 && stable % s->window == 0;
}

/* skip_step also without scaling: a step with NaN is skipped whatever made it. */
cz_status loss_scale_update(struct loss_scale *s, bool grads_finite, bool *skip_step)
{
    *skip_step = !grads_finite;
    if (!s->dynamic) return CZ_OK;
    if (!grads_finite) {
        TRY(lower(s));
        s->last_overflow_iter = s->iter;
    } else {
        bool grows = time_to_grow(s);
        if (s->consecutive_hysteresis || grows) s->hysteresis = s->delayed_shift;
        if (grows) s->scale *= s->factor;
    }
    s->iter++;
    return CZ_OK;
}
