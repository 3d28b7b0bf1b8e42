/* Masters and optimizer states in fewer than 32 bits: which switches mean what, as DeepSpeed 0.19.8
 * has it (docs/compatibility.md).
 *
 *   masters   fp32; the model's type with fp16_ or bf16_master_weights_and_grads
 *   states    fp32; the masters' type with bf16_optimizer_states, or under offload, where DeepSpeed
 *             builds its CPU classes, with the optimizer's fp32_optimizer_states false */
#include "engine/config/config_impl.h"
#include "optim/onebit.h"

#include <string.h>

#define FP16_MASTERS "fp16.fp16_master_weights_and_grads"
#define BF16_MASTERS "bf16.bf16_master_weights_and_grads"
#define FP32_STATES  "optimizer.params.fp32_optimizer_states"

static const struct cv *value_at(const struct ds_config *d, const char *path)
{
    return config_at(d->impl->resolved, path);
}

/* Stage 0 has no partition to offload: DeepSpeed ignores the section there. */
static bool is_offloaded(const struct ds_config *d)
{
    return d->zero.stage > 0 && d->zero.offload_optimizer.device != CONFIG_OFFLOAD_NONE;
}

/* DeepSpeed's CPU Adam, the only class it lets near 16-bit masters under offload. */
static bool is_cpu_adam(const struct ds_config *d)
{
    const struct optim_hyper *hyper = &d->optimizer.hyper;
    return is_offloaded(d) && d->optimizer.usable && hyper->dialect == OPTIM_OFFLOAD &&
           (hyper->cls->flags & OPTIM_16BIT_MASTERS);
}

static void reject(struct ds_config *d, const char *path, const char *text)
{
    config_say(d->impl, CONFIG_NOTE_ENGINE_REJECTS, value_at(d, path), path, "%s", text);
}

/* What DeepSpeed's engine asserts, in its order; its parser has looked at stage 0 already. */
static void check_masters(struct ds_config *d)
{
    static const char needs_adam[] =
        "needs zero_optimization.offload_optimizer and the optimizer Adam or AdamW";
    const bool fp16 = d->fp16.fp16_master_weights_and_grads;
    const bool bf16 = d->bf16.bf16_master_weights_and_grads;
    if (d->zero.stage == 0) return; /* the parser refused them */
    if (fp16 && bf16) reject(d, BF16_MASTERS, "does not go with " FP16_MASTERS);
    if (fp16 && !d->fp16.enabled)
        config_say(d->impl, CONFIG_NOTE_UNSUPPORTED, value_at(d, FP16_MASTERS), FP16_MASTERS,
                   "not supported: fp16 masters of another model; turn fp16.enabled on");
    if (bf16 && !d->bf16.enabled)
        config_say(d->impl, CONFIG_NOTE_UNSUPPORTED, value_at(d, BF16_MASTERS), BF16_MASTERS,
                   "not supported: bf16 masters of another model; turn bf16.enabled on");
    if (!d->optimizer.usable || is_cpu_adam(d)) return;
    if (optim_is_onebit(&d->optimizer.hyper)) return; /* config_onebit.c refuses them */
    if (fp16) reject(d, FP16_MASTERS, needs_adam);
    if (bf16 && is_offloaded(d))
        reject(d, BF16_MASTERS, "goes with the optimizer Adam or AdamW under offload_optimizer");
    else if (bf16 && !d->bf16.bf16_optimizer_states)
        reject(d, BF16_MASTERS,
               "needs zero_optimization.offload_optimizer and the optimizer Adam or AdamW, or "
               "bf16.bf16_optimizer_states to be true");
}

static void note_states(struct ds_config *d, const struct cv *given)
{
    struct config_impl *c = d->impl;
    const bool wants_fp32 = d->optimizer.hyper.fp32_optimizer_states;
    if (wants_fp32 && d->bf16.bf16_optimizer_states)
        config_say(c, CONFIG_NOTE_CHOICE, given, FP32_STATES,
                   "is overridden by bf16.bf16_optimizer_states, as in DeepSpeed");
    if (wants_fp32 || d->bf16.bf16_optimizer_states) return;
    if (d->optimizer.hyper.dialect != OPTIM_OFFLOAD)
        config_say(c, CONFIG_NOTE_NO_EFFECT, given, FP32_STATES,
                   "has no effect here: it is a switch of the optimizers of offload_optimizer");
    else if (d->master_dtype == DTYPE_F32)
        config_say(c, CONFIG_NOTE_NO_EFFECT, given, FP32_STATES,
                   "has no effect here: false keeps the states in the masters' type, and the "
                   "masters are fp32");
}

void config_fill_state_dtypes(struct ds_config *d)
{
    const bool masters_are_16bit =
        d->fp16.fp16_master_weights_and_grads || d->bf16.bf16_master_weights_and_grads;
    const struct cv *given = d->optimizer.usable ? value_at(d, FP32_STATES) : NULL;
    d->master_dtype = masters_are_16bit ? d->model_dtype : DTYPE_F32;
    const bool low = given && !d->optimizer.hyper.fp32_optimizer_states &&
                     d->optimizer.hyper.dialect == OPTIM_OFFLOAD;
    d->state_dtype = d->bf16.bf16_optimizer_states || low ? d->master_dtype : DTYPE_F32;
    check_masters(d);
    if (given) note_states(d, given);
}
