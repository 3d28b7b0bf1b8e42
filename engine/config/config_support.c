/* What config_check() refuses beyond the parser: one table. A feature that arrives deletes its row.
 */
#include "engine/config/config_impl.h"
#include "offload/swap.h"

#include <math.h>
#include <string.h>

struct refusal {
    const char *path; /* where the blame goes */
    bool (*applies)(const struct ds_config *);
    enum config_note_kind kind;
    const char *text;
};

/* ---- not here, or not yet ------------------------------------------------------------------- */

static bool sequence_parallel(const struct ds_config *d)
{
    const struct cv *size = config_at(d->impl->resolved, "sequence_parallel_size");
    return size && size->kind == CV_INT && size->integer > 1;
}

/* ---- what DeepSpeed's engine refuses -------------------------------------------------------- */

static bool reduce_scatter_stage(const struct ds_config *d)
{
    return d->zero.stage >= 2 && d->zero.reduce_scatter && !d->gradient_allreduce_sum;
}

static bool prescaled(const struct ds_config *d)
{
    return reduce_scatter_stage(d) && d->prescale_gradients;
}

static bool predivided(const struct ds_config *d)
{
    return reduce_scatter_stage(d) && d->gradient_predivide_factor != 1.0;
}

static bool odd_bucket(const struct ds_config *d)
{
    return (d->zero.stage == 1 || d->zero.stage == 2) && d->zero.allgather_bucket_size % 2 != 0;
}

static bool legacy_stage1(const struct ds_config *d)
{
    return cv_is_true(config_at(d->impl->resolved, "zero_optimization.legacy_stage1"));
}

static bool untested(const struct ds_config *d)
{
    return d->optimizer.usable && d->zero.stage > 0 && !d->zero_allow_untested_optimizer &&
           !(d->optimizer.hyper.cls->flags & OPTIM_ZERO_TESTED);
}

static bool lamb_with_static_scale(const struct ds_config *d)
{
    const struct optim_type *type = d->optimizer.type ? optim_type_find(d->optimizer.type) : NULL;
    return type && type->cls && type->cls->flags & OPTIM_DYNAMIC_SCALE && d->fp16.loss_scale != 0;
}

static bool accumulates_apart(const struct ds_config *d)
{
    return d->zero.stage == 0 && d->grad_accum_dtype != d->model_dtype;
}

/* Gradients are kept in the model's type or in fp32. */
static bool accumulates_narrower(const struct ds_config *d)
{
    return d->zero.stage > 0 && d->grad_accum_dtype != d->model_dtype &&
           d->grad_accum_dtype != DTYPE_F32;
}

static bool huge_scale(const struct ds_config *d)
{
    int64_t power = d->fp16.initial_scale_power;
    return d->fp16.enabled && d->fp16.loss_scale == 0 && (power > 127 || power < -126);
}

static bool no_hysteresis(const struct ds_config *d)
{
    return d->fp16.enabled && d->fp16.loss_scale == 0 && d->fp16.hysteresis < 1;
}

static bool unmanaged_overlap(const struct ds_config *d)
{
    return !d->managed_gradient_accumulation && d->zero.stage < 2 && d->zero.overlap_comm;
}

static bool nvme_without_path(const struct ds_config *d)
{
    const struct config_offload_optimizer *o = &d->zero.offload_optimizer;
    return o->device == CONFIG_OFFLOAD_NVME && !o->nvme_path && d->czero.n_nvme_paths == 0;
}

static bool param_nvme_without_path(const struct ds_config *d)
{
    const struct config_offload_param *o = &d->zero.offload_param;
    return o->device == CONFIG_OFFLOAD_NVME && !o->nvme_path && d->czero.n_nvme_paths == 0;
}

/* A path of DeepSpeed's that the list does not have. */
static bool is_elsewhere(const struct ds_config *d, enum config_offload_device device,
                         const char *path)
{
    if (device != CONFIG_OFFLOAD_NVME || !path || d->czero.n_nvme_paths == 0) return false;
    for (size_t i = 0; i < d->czero.n_nvme_paths; i++)
        if (strcmp(d->czero.nvme_paths[i], path) == 0) return false;
    return true;
}

static bool nvme_path_elsewhere(const struct ds_config *d)
{
    const struct config_offload_optimizer *o = &d->zero.offload_optimizer;
    return is_elsewhere(d, o->device, o->nvme_path);
}

static bool param_nvme_path_elsewhere(const struct ds_config *d)
{
    const struct config_offload_param *o = &d->zero.offload_param;
    return is_elsewhere(d, o->device, o->nvme_path);
}

static bool many_nvme_paths(const struct ds_config *d)
{
    return config_at(d->impl->resolved, "czero.nvme_paths")->n > CONFIG_NVME_PATHS_MAX;
}

static bool odd_nvme_rates(const struct ds_config *d)
{
    const struct cv *rates = config_at(d->impl->resolved, "czero.nvme_rates");
    const struct cv *paths = config_at(d->impl->resolved, "czero.nvme_paths");
    for (size_t i = 0; i < rates->n; i++) {
        const struct cv *r = rates->items[i];
        bool is_number = r->kind == CV_INT || r->kind == CV_FLOAT;
        if (!is_number || !(r->real > 0) || !isfinite(r->real)) return true;
    }
    return rates->n > 0 && rates->n != paths->n;
}

static bool uses_nvme(const struct ds_config *d)
{
    return d->zero.offload_optimizer.device == CONFIG_OFFLOAD_NVME ||
           d->zero.offload_param.device == CONFIG_OFFLOAD_NVME;
}

static bool large_blocks(const struct ds_config *d)
{
    return uses_nvme(d) && d->aio.block_size > (int64_t)SWAP_BLOCK_NBYTES_MAX;
}

static bool deep_queue(const struct ds_config *d)
{
    return uses_nvme(d) && d->aio.queue_depth > SWAP_QUEUE_DEPTH_MAX;
}

static bool fraction_train(const struct ds_config *d)
{
    return config_at(d->impl->resolved, "train_batch_size")->kind == CV_FLOAT;
}

static bool fraction_micro(const struct ds_config *d)
{
    return config_at(d->impl->resolved, "train_micro_batch_size_per_gpu")->kind == CV_FLOAT;
}

static bool fraction_steps(const struct ds_config *d)
{
    return config_at(d->impl->resolved, "gradient_accumulation_steps")->kind == CV_FLOAT;
}

#define NOT_YET CONFIG_NOTE_UNSUPPORTED, "not supported yet: "
#define REJECTS CONFIG_NOTE_ENGINE_REJECTS

static const struct refusal refusals[] = {
    {"data_types.grad_accum_dtype", accumulates_narrower,
     NOT_YET "gradients of another type than the model's; the model's type and fp32 work"},
    {"sequence_parallel_size", sequence_parallel, CONFIG_NOTE_UNSUPPORTED,
     "not supported: sequence parallelism; set it to 1"},

    {"prescale_gradients", prescaled, REJECTS,
     "true does not go with reduce_scatter at stages 2 and 3; set "
     "zero_optimization.reduce_scatter to false"},
    {"gradient_predivide_factor", predivided, REJECTS,
     "must be 1.0 with reduce_scatter at stages 2 and 3; set "
     "zero_optimization.reduce_scatter to false"},
    {"zero_optimization.allgather_bucket_size", odd_bucket, REJECTS, "must be even"},
    {"zero_optimization.legacy_stage1", legacy_stage1, REJECTS,
     "true has not been supported since DeepSpeed 0.5.9; remove it"},
    {"optimizer.type", untested, REJECTS,
     "DeepSpeed has not tested this optimizer under ZeRO; to use it all the same, set "
     "zero_allow_untested_optimizer to true"},
    {"fp16.loss_scale", lamb_with_static_scale, REJECTS,
     "Lamb and OneBitLamb need dynamic loss scaling; set it to 0"},
    {"data_types.grad_accum_dtype", accumulates_apart, REJECTS,
     "must be the model's type at stage 0; set zero_optimization.stage to 1 or 2, or remove it"},
    {"fp16.initial_scale_power", huge_scale, REJECTS,
     "2 to this power does not fit in fp32; it must be within -126..127"},
    {"fp16.hysteresis", no_hysteresis, REJECTS, "must be at least 1"},
    {"managed_gradient_accumulation", unmanaged_overlap, REJECTS,
     "false does not go with zero_optimization.overlap_comm below stage 2"},
    {"zero_optimization.offload_optimizer.nvme_path", nvme_without_path, REJECTS,
     "is missing; the device nvme needs the folder of its swap file"},
    {"zero_optimization.offload_param.nvme_path", param_nvme_without_path, REJECTS,
     "is missing; the device nvme needs the folder of its swap file"},
    {"zero_optimization.offload_optimizer.nvme_path", nvme_path_elsewhere, REJECTS,
     "is none of czero.nvme_paths, over which the swap file is striped; add it there, or remove "
     "it"},
    {"zero_optimization.offload_param.nvme_path", param_nvme_path_elsewhere, REJECTS,
     "is none of czero.nvme_paths, over which the swap file is striped; add it there, or remove "
     "it"},
    {"czero.nvme_paths", many_nvme_paths, CONFIG_NOTE_UNSUPPORTED,
     "not supported: more than 8 folders for a swap file"},
    {"czero.nvme_rates", odd_nvme_rates, REJECTS,
     "must have one number above 0 for each folder of czero.nvme_paths"},
    {"aio.block_size", large_blocks, CONFIG_NOTE_UNSUPPORTED,
     "not supported: blocks above 1 GiB; 1048576 is a good size"},
    {"aio.queue_depth", deep_queue, CONFIG_NOTE_UNSUPPORTED,
     "not supported: more than 4096 blocks in flight; 8 to 32 keep a disk busy"},
    {"train_batch_size", fraction_train, REJECTS, "must be a whole number below 1e10"},
    {"train_micro_batch_size_per_gpu", fraction_micro, REJECTS,
     "must be a whole number below 1e10"},
    {"gradient_accumulation_steps", fraction_steps, REJECTS, "must be a whole number below 1e10"},
};

/* ---- decisions worth a line ----------------------------------------------------------------- */

/* Values with DeepSpeed's default, where the file says nothing, are not what a run here should
 * have: pipelines cost nothing, a model that fits into max_in_cpu would never leave memory, and a
 * late update would have to be as far ahead as gathers are. */
static void choose_offload(struct ds_config *d)
{
    const struct cv *top = d->impl->resolved;
    struct config_offload_optimizer *o = &d->zero.offload_optimizer;
    static const char section[] = "zero_optimization.offload_optimizer";
    const struct cv *optimizer = config_at(top, section);
    if (!cv_is_given(cv_get(optimizer, "pipeline_read"))) o->pipeline_read = true;
    if (!cv_is_given(cv_get(optimizer, "pipeline_write"))) o->pipeline_write = true;
    if (!cv_is_given(config_at(top, "zero_optimization.offload_param.max_in_cpu")))
        d->zero.offload_param.max_in_cpu = 0;
    bool has_params = d->zero.offload_param.device == CONFIG_OFFLOAD_NVME;
    bool is_late = o->device == CONFIG_OFFLOAD_NVME && d->czero.late_update;
    if (!cv_is_given(config_at(top, "zero_optimization.stage3_prefetch_bucket_size")) &&
        (has_params || is_late))
        d->zero.prefetch_bucket_size = -1;
    if (!has_params) return;
    if (!cv_is_given(config_at(top, "zero_optimization.stage3_max_live_parameters")))
        d->zero.max_live_parameters = -1;
    if (!cv_is_given(config_at(top, "zero_optimization.stage3_max_reuse_distance")))
        d->zero.max_reuse_distance = -1;
}

/* Keys that DeepSpeed needs and czero does not. */
static void note_buffers(struct config_impl *c, const struct ds_config *d)
{
    static const struct {
        const char *path, *why;
        bool of_nvme; /* has no effect elsewhere, without a note */
    } keys[] = {
        {"zero_optimization.offload_optimizer.buffer_count", "buffers follow from the model"},
        {"zero_optimization.offload_param.buffer_count", "buffers follow from the model"},
        {"zero_optimization.offload_param.buffer_size", "buffers follow from the model"},
        {"zero_optimization.offload_optimizer.fast_init", "masters are always made in the file",
         true},
        {"aio.overlap_events", "requests are always submitted while others complete", true},
    };
    bool offloads = d->zero.offload_optimizer.device != CONFIG_OFFLOAD_NONE ||
                    d->zero.offload_param.device != CONFIG_OFFLOAD_NONE;
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        const struct cv *value = config_at(c->resolved, keys[i].path);
        if (cv_is_given(value) && (keys[i].of_nvme ? uses_nvme(d) : offloads))
            config_say(c, CONFIG_NOTE_NO_EFFECT, value, keys[i].path, "has no effect: %s",
                       keys[i].why);
    }
}

/* What decides between memory and elsewhere, where all of it is memory. */
static void note_shares(struct config_impl *c, const struct ds_config *d)
{
    static const char ratio[] = "zero_optimization.offload_optimizer.ratio";
    static const char kept[] = "zero_optimization.offload_param.max_in_cpu";
    const struct cv *r = config_at(c->resolved, ratio), *k = config_at(c->resolved, kept);
    if (!c->on_gpu && d->zero.offload_optimizer.device == CONFIG_OFFLOAD_CPU && cv_is_given(r) &&
        d->zero.offload_optimizer.ratio < 1)
        config_say(c, CONFIG_NOTE_NO_EFFECT, r, ratio,
                   "has no effect on the CPU device: both parts are in host memory");
    if (d->zero.offload_param.device == CONFIG_OFFLOAD_CPU && cv_is_given(k))
        config_say(c, CONFIG_NOTE_NO_EFFECT, k, kept,
                   "has no effect: it is for the device nvme, which this file does not choose");
}

static void note_gradients(struct config_impl *c, const struct ds_config *d)
{
    static const char path[] = "czero.offload_gradients";
    const char *why = NULL;
    if (!d->czero.offload_gradients) return;
    if (c->on_gpu)
        why = "a GPU's gradients leave it for host memory";
    else if (d->zero.offload_optimizer.device != CONFIG_OFFLOAD_NVME)
        why = "the optimizer is not on NVMe";
    else if (c->world_size > 1)
        why = "several ranks keep their gradients in memory";
    else if (d->communication_dtype != d->grad_accum_dtype)
        why = "communication_data_type is not the gradients' type";
    if (why)
        config_say(c, CONFIG_NOTE_NO_EFFECT, config_at(c->resolved, path), path,
                   "has no effect: %s", why);
}

static void note_paths(struct config_impl *c, const struct ds_config *d)
{
    static const char path[] = "zero_optimization.offload_param.nvme_path";
    const struct config_offload_optimizer *o = &d->zero.offload_optimizer;
    const struct config_offload_param *p = &d->zero.offload_param;
    if (o->device != CONFIG_OFFLOAD_NVME || p->device != CONFIG_OFFLOAD_NVME) return;
    if (d->czero.n_nvme_paths > 0 || !o->nvme_path || !p->nvme_path ||
        strcmp(o->nvme_path, p->nvme_path) == 0)
        return;
    config_say(c, CONFIG_NOTE_NO_EFFECT, config_at(c->resolved, path), path,
               "has no effect: a rank has one swap file, in offload_optimizer.nvme_path");
}

static void note_offload(struct ds_config *d)
{
    struct config_impl *c = d->impl;
    static const char optimizer[] = "zero_optimization.offload_optimizer.device";
    static const char param[] = "zero_optimization.offload_param.device";
    static const char kept[] = "activation_checkpointing.cpu_checkpointing";
    enum config_offload_device device = d->zero.offload_optimizer.device;
    enum config_offload_device param_device = d->zero.offload_param.device;
    const struct cv *value = config_at(c->resolved, optimizer);
    if (device == CONFIG_OFFLOAD_NVME && d->zero.stage < 3)
        config_say(c, CONFIG_NOTE_CHOICE, value, optimizer,
                   "\"nvme\" works at stage %d too; DeepSpeed %s", d->zero.stage,
                   d->zero.stage == 0 ? "ignores it there" : "uses \"cpu\" instead");
    if (device == CONFIG_OFFLOAD_CPU && !c->on_gpu)
        config_say(c, CONFIG_NOTE_CHOICE, value, optimizer,
                   "on the CPU device the optimizer states are in host memory already");
    if (device == CONFIG_OFFLOAD_CPU && c->on_gpu && d->zero.stage == 0)
        config_say(c, CONFIG_NOTE_NO_EFFECT, value, optimizer,
                   "\"cpu\" has no effect at stage 0, as in DeepSpeed");
    bool is_done = !c->on_gpu || c->world_size == 1; /* refused otherwise */
    if (param_device == CONFIG_OFFLOAD_NVME && d->zero.stage < 3 && is_done)
        config_say(c, CONFIG_NOTE_CHOICE, config_at(c->resolved, param), param,
                   "\"nvme\" works at stage %d too; DeepSpeed supports it at stage 3 only",
                   d->zero.stage);
    if (param_device == CONFIG_OFFLOAD_CPU && !c->on_gpu)
        config_say(c, CONFIG_NOTE_CHOICE, config_at(c->resolved, param), param,
                   "on the CPU device the parameters are in host memory already");
    if (param_device == CONFIG_OFFLOAD_CPU && c->on_gpu && d->zero.stage < 3)
        config_say(c, CONFIG_NOTE_NO_EFFECT, config_at(c->resolved, param), param,
                   "\"cpu\" has no effect at stage %d, as in DeepSpeed", d->zero.stage);
    if (d->activation_checkpointing.cpu_checkpointing && !c->on_gpu)
        config_say(c, CONFIG_NOTE_CHOICE, config_at(c->resolved, kept), kept,
                   "on the CPU device activations are in host memory already");
    note_buffers(c, d);
    note_shares(c, d);
    note_gradients(c, d);
    note_paths(c, d);
}

/* What the optimizer's class does not go with (optim/optim.h); zero_create() asks the same table.
 */
static void refuse_use(struct ds_config *d)
{
    const struct optim_use use = {
        .stage = d->zero.stage,
        .states_offloaded = d->zero.offload_optimizer.device != CONFIG_OFFLOAD_NONE,
        .params_offloaded = d->zero.offload_param.device != CONFIG_OFFLOAD_NONE,
        .sums = d->gradient_allreduce_sum,
        .fp16_states = d->fp16.fp16_master_weights_and_grads,
        .bf16_states = d->bf16.bf16_master_weights_and_grads};
    const struct optim_class *cls = d->optimizer.usable ? d->optimizer.hyper.cls : NULL;
    const struct optim_limit *limit;
    for (size_t i = 0; cls && (limit = optim_limit_next(cls, &use, &i)) != NULL;)
        config_say(d->impl, CONFIG_NOTE_UNSUPPORTED, config_at(d->impl->resolved, limit->key),
                   limit->key, "not supported with %s: %s", cls->name, limit->why);
}

/* Below stage 3 every GPU would keep all parameters and every rank a file of them: zero_gpu_check()
 * refuses that, too. */
static void refuse_shared_nvme(struct ds_config *d)
{
    static const char path[] = "zero_optimization.offload_param.device";
    const struct config_impl *c = d->impl;
    if (!c->on_gpu || c->world_size == 1 || d->zero.stage == 3 ||
        d->zero.offload_param.device != CONFIG_OFFLOAD_NVME)
        return;
    config_say(d->impl, CONFIG_NOTE_UNSUPPORTED, config_at(c->resolved, path), path,
               "not supported: \"nvme\" with %lld GPUs is for stage 3, at which ranks share the "
               "parameters; stage %d keeps all of them on each",
               (long long)c->world_size, d->zero.stage);
}

void config_check_support(struct ds_config *d)
{
    struct config_impl *c = d->impl;
    choose_offload(d);
    for (size_t i = 0; i < CZ_ARRAY_LEN(refusals); i++)
        if (refusals[i].applies(d))
            config_say(c, refusals[i].kind, config_at(c->resolved, refusals[i].path),
                       refusals[i].path, "%s", refusals[i].text);
    refuse_shared_nvme(d);
    note_offload(d);
    refuse_use(d);
    config_check_onebit(d);
}
