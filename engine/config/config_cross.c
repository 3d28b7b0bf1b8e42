/* What DeepSpeed's parser checks across keys, or manually in raw sections
 * (docs/deepspeed-behaviour.md, "Checks across keys"). */
#include "engine/config/config_impl.h"

#include <math.h>
#include <string.h>

static const struct cv *at(const struct cv *top, const char *path)
{
    return config_at(top, path);
}

static bool is_on(const struct cv *top, const char *path)
{
    const struct cv *value = at(top, path);
    return value && cv_is_true(value);
}

static int64_t stage_of(const struct cv *top)
{
    const struct cv *stage = at(top, "zero_optimization.stage");
    return stage ? stage->integer : 0;
}

/* ---- precision ------------------------------------------------------------------------------ */

static void check_precision(struct config_impl *c, const struct cv *top)
{
    if (is_on(top, "fp16.enabled") && is_on(top, "bf16.enabled"))
        config_error(c, at(top, "bf16.enabled"), "bf16.enabled",
                     "fp16 and bf16 cannot both be enabled; turn one of them off");
    static const char *const needs_zero[] = {"fp16.fp16_master_weights_and_grads",
                                             "bf16.bf16_master_weights_and_grads",
                                             "bf16.bf16_optimizer_states"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(needs_zero); i++)
        if (is_on(top, needs_zero[i]) && stage_of(top) == 0)
            config_error(c, at(top, needs_zero[i]), needs_zero[i],
                         "needs ZeRO; set zero_optimization.stage to 1, 2 or 3");
    if (is_on(top, "bf16.bf16_optimizer_states") &&
        !is_on(top, "bf16.bf16_master_weights_and_grads"))
        config_error(c, at(top, "bf16.bf16_optimizer_states"), "bf16.bf16_optimizer_states",
                     "needs bf16.bf16_master_weights_and_grads to be true");
}

/* Unused values of a static scale may be nonsense; a dynamic one needs both above 0. */
static void check_loss_scale(struct config_impl *c, const struct cv *top)
{
    static const char *const positive[] = {"fp16.loss_scale_window", "fp16.min_loss_scale"};
    const struct cv *scale = at(top, "fp16.loss_scale");
    if (!is_on(top, "fp16.enabled") || !scale || scale->real != 0) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(positive); i++) {
        const struct cv *value = at(top, positive[i]);
        if (value && value->real <= 0)
            config_error(c, value, positive[i],
                         "%s is out of range; dynamic loss scaling needs it above 0",
                         cv_show(&c->pool, value));
    }
}

/* ---- ZeRO ----------------------------------------------------------------------------------- */

static void check_zero(struct config_impl *c, const struct cv *top)
{
    const struct cv *ratio = at(top, "zero_optimization.offload_optimizer.ratio");
    if (ratio && ratio->real < 1 && stage_of(top) != 3)
        config_error(c, ratio, "zero_optimization.offload_optimizer.ratio",
                     "%s is below 1, which needs zero_optimization.stage 3",
                     cv_show(&c->pool, ratio));
    const struct cv *norm = at(top, "zero_optimization.compute_grad_norm");
    if (norm && !cv_is_true(norm) && stage_of(top) != 1 && stage_of(top) != 2)
        config_error(c, norm, "zero_optimization.compute_grad_norm",
                     "false works with zero_optimization.stage 1 and 2 only");
    const struct cv *elastic = at(top, "zero_optimization.elastic_checkpoint");
    if (elastic && cv_is_true(elastic) && stage_of(top) == 3)
        config_say(c, CONFIG_NOTE_NO_EFFECT, elastic, "zero_optimization.elastic_checkpoint",
                   "has no effect at stage 3");
}

static void check_reduce_op(struct config_impl *c, const struct cv *top)
{
    const struct cv *op = at(top, "gradient_allreduce_op");
    const struct cv *zenflow = at(top, "zero_optimization.zenflow");
    if (!cv_is_string(op, "sum")) return;
    const char *with = stage_of(top) == 3                    ? "ZeRO stage 3"
                       : zenflow && zenflow->kind != CV_NULL ? "ZenFlow"
                       : is_on(top, "compile.deepcompile")   ? "DeepCompile"
                                                             : NULL;
    if (with)
        config_error(c, op, "gradient_allreduce_op", "\"sum\" does not work with %s; use \"mean\"",
                     with);
}

/* ---- raw keys that the parser computes with ------------------------------------------------- */

static bool fail_auto(struct config_impl *c, const struct cv *value, const char *path)
{
    if (!cv_is_string(value, CONFIG_AUTO)) return false;
    config_error(c, value, path, "%s", config_auto_text(c, path));
    return true;
}

/* wall_clock_breakdown | flops_profiler.enabled */
static void join_wall_clock(struct config_impl *c, struct cv *top)
{
    static const char *const paths[] = {"wall_clock_breakdown", "flops_profiler.enabled"};
    const struct cv *operand[2];
    for (int i = 0; i < 2; i++) {
        operand[i] = at(top, paths[i]);
        if (!operand[i] || fail_auto(c, operand[i], paths[i])) return;
        if (operand[i]->digits) {
            config_error(c, operand[i], paths[i], "%s is too large", cv_show(&c->pool, operand[i]));
            return;
        }
        if (operand[i]->kind != CV_BOOL && operand[i]->kind != CV_INT) {
            config_error(c, operand[i], paths[i], "expected true or false, got %s",
                         cv_show(&c->pool, operand[i]));
            return;
        }
    }
    if (!cv_is_true(operand[1])) {
        if (operand[1]->kind == CV_INT && operand[0]->kind == CV_BOOL)
            cv_put(&c->pool, top, paths[0],
                   cv_int(&c->pool, operand[0]->boolean, operand[0]->origin));
        return;
    }
    bool both_bool = operand[0]->kind == CV_BOOL && operand[1]->kind == CV_BOOL;
    int64_t joined = operand[0]->integer | operand[1]->integer;
    struct cv *out =
        both_bool ? cv_bool(&c->pool, true, CV_DERIVED) : cv_int(&c->pool, joined, CV_DERIVED);
    if (cv_is_true(operand[0])) out->origin = operand[0]->origin;
    out->node = operand[0]->node;
    cv_put(&c->pool, top, paths[0], out);
}

static void check_vocabulary(struct config_impl *c, const struct cv *top)
{
    const struct cv *size = at(top, "vocabulary_size");
    if (!size || !cv_is_true(size) || fail_auto(c, size, "vocabulary_size")) return;
    if (!cv_is_number(size))
        config_error(c, size, "vocabulary_size", "expected an integer, got %s",
                     cv_show(&c->pool, size));
}

static void check_optimizer(struct config_impl *c, const struct cv *top)
{
    const struct cv *params = at(top, "optimizer.params");
    if (!params || params->kind == CV_NULL) return;
    if (fail_auto(c, params, "optimizer.params")) return;
    if (params->kind != CV_DICT) {
        config_error(c, params, "optimizer.params", "expected an object, got %s",
                     cv_show(&c->pool, params));
        return;
    }
    const struct cv *norm = cv_get(params, "max_grad_norm");
    if (norm && fail_auto(c, norm, "optimizer.params.max_grad_norm")) return;
    if (norm && !cv_is_number(norm))
        config_error(c, norm, "optimizer.params.max_grad_norm",
                     "%s is not a number, and no optimizer has it; remove it and set "
                     "gradient_clipping",
                     cv_show(&c->pool, norm));
}

static void check_autocast(struct config_impl *c, const struct cv *top)
{
    static const char path[] = "torch_autocast.lower_precision_safe_modules";
    const struct cv *modules = at(top, path);
    if (!modules || modules->kind == CV_STRING || modules->kind == CV_DICT) return;
    bool ok = modules->kind == CV_LIST;
    for (size_t i = 0; ok && i < modules->n; i++) ok = modules->items[i]->kind == CV_STRING;
    if (!ok)
        config_error(c, modules, path, "expected a list of strings, got %s",
                     cv_show(&c->pool, modules));
}

static void check_keep_in_fp32(struct config_impl *c, const struct cv *top)
{
    static const char path[] = "data_types.keep_in_fp32_modules";
    const struct cv *modules = at(top, path);
    if (!modules || cv_is_string(modules, CONFIG_AUTO)) return;
    bool ok = modules->kind == CV_LIST;
    for (size_t i = 0; ok && i < modules->n; i++) ok = modules->items[i]->kind == CV_STRING;
    if (!ok)
        config_error(c, modules, path, "expected \"auto\" or a list of strings, got %s",
                     cv_show(&c->pool, modules));
}

static void check_io(struct config_impl *c, const struct cv *top)
{
    const struct cv *gds = at(top, "aio.use_gds");
    if (gds && cv_is_true(gds))
        config_error(c, gds, "aio.use_gds",
                     "not supported: GPUDirect Storage needs a CUDA device; set it to false");
    const struct cv *write = at(top, "checkpoint.parallel_write.pipeline_stage");
    if (write && fail_auto(c, write, "checkpoint.parallel_write.pipeline_stage")) return;
    if (write && (!cv_is_number(write) || (write->real != 0 && write->real != 1)))
        config_error(c, write, "checkpoint.parallel_write.pipeline_stage",
                     "expected true or false, got %s", cv_show(&c->pool, write));
}

/* ---- the data-efficiency library ------------------------------------------------------------ */

/* What Python's int() takes, and the value that comes out. */
static bool python_int(struct config_impl *c, struct cv *section, const char *key, const char *path)
{
    static const struct config_key as_int = {.type = KEY_INT, .flags = KEY_PLAIN_INT};
    struct cv *value = cv_get(section, key);
    if (!value) return true;
    if (fail_auto(c, value, path)) return false;
    if (value->kind == CV_FLOAT && isfinite(value->real) && fabs(value->real) < 0x1p63) {
        cv_put(&c->pool, section, key, cv_int(&c->pool, (int64_t)value->real, value->origin));
        return true;
    }
    struct cv *out = config_coerce(c, &as_int, value, path);
    if (out) cv_put(&c->pool, section, key, out);
    return out != NULL;
}

static void check_data_efficiency(struct config_impl *c, const struct cv *top)
{
    static const char learning[] = "data_efficiency.data_sampling.curriculum_learning";
    const struct cv *curriculum = at(top, learning);
    if (curriculum && cv_is_true(cv_get(curriculum, "enabled")) &&
        !cv_get(curriculum, "curriculum_metrics"))
        config_error(c, curriculum, learning, "is enabled, but \"curriculum_metrics\" is missing");

    static const char batching[] = "data_efficiency.data_sampling.dynamic_batching";
    struct cv *dynamic = config_at(top, batching);
    if (!dynamic) return;
    python_int(c, dynamic, "min_batch_size", config_join(c, batching, "min_batch_size"));
    const struct cv *most = cv_get(dynamic, "max_batch_size");
    if (most && cv_is_given(most))
        python_int(c, dynamic, "max_batch_size", config_join(c, batching, "max_batch_size"));
    if (!cv_is_true(cv_get(dynamic, "enabled"))) return;
    if (!cv_get(dynamic, "max_tokens"))
        config_error(c, dynamic, batching, "is enabled, but \"max_tokens\" is missing");
    python_int(c, dynamic, "max_tokens", config_join(c, batching, "max_tokens"));
}

static void check_experts(struct config_impl *c, const struct cv *top)
{
    static const char path[] = "expert_parallel.load_balance_coeff";
    const struct cv *coefficient = at(top, path);
    if (coefficient && coefficient->kind != CV_NULL)
        config_error(c, coefficient, path, "not supported; remove it or set it to null");
}

void config_cross_check(struct config_impl *c, struct cv *top)
{
    check_precision(c, top);
    check_loss_scale(c, top);
    check_zero(c, top);
    check_reduce_op(c, top);
    join_wall_clock(c, top);
    check_vocabulary(c, top);
    check_optimizer(c, top);
    check_autocast(c, top);
    check_keep_in_fp32(c, top);
    check_io(c, top);
    check_data_efficiency(c, top);
    check_experts(c, top);
}
