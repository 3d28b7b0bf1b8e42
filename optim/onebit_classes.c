/* OneBitAdam, ZeroOneAdam and OneBitLamb: what an update computes once ranks have exchanged what
 * optim/onebit.h says; zero/onebit.c does that and the frozen phase of ZeroOneAdam.
 *
 * There is no bias correction, and eps is outside the root: DeepSpeed's classes take both switches
 * and read neither. */
#include "optim/optim_impl.h"

static const char *const backends[] = {"nccl", "mpi", "hccl", "compressed", NULL};

/* Rows of all three tables. */
#define HEAD_ROWS                                                                                  \
    OPTIM_NUMBER("lr", lr, 1e-3, 0, "learning rate"), OPTIM_BETAS,                                 \
        OPTIM_NUMBER("eps", eps, 1e-8, 0,                                                          \
                     "added to the root of the second moment; above 0, because a frozen "          \
                     "variance may be 0"),                                                         \
        OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "decoupled decay, joins the update")
#define TAIL_ROWS                                                                                  \
    OPTIM_BOOL("bias_correction", bias_correction, 1, 0, "no effect: there is none"),              \
        OPTIM_BOOL("eps_inside_sqrt", eps_inside_sqrt, 0, 0, "no effect: eps is outside"),         \
        OPTIM_BOOL("amsgrad", amsgrad, 0, 0, "not supported"),                                     \
        OPTIM_BOOL("cuda_aware", cuda_aware, 0, 0, "of mpi; no effect"),                           \
    {                                                                                              \
        .name = "comm_backend_name", .type = SETTING_NAME,                                         \
        .offset = offsetof(struct optim_hyper, comm_backend), .names = backends,                   \
        .names_only = true, .help = "nccl, mpi, hccl or compressed; all use the run's transport",  \
    }
#define FREEZE_ROW                                                                                 \
    OPTIM_COUNT("freeze_step", freeze_step, 100000,                                                \
                "last step with averaged gradients; then the variance is frozen and momenta "      \
                "are exchanged as one bit per element")

static const struct setting adam_settings[] = {HEAD_ROWS, FREEZE_ROW, TAIL_ROWS};

static const struct setting zero_one_settings[] = {
    HEAD_ROWS,
    OPTIM_COUNT("var_freeze_step", var_freeze_step, 100000,
                "the variance is frozen after the step that follows this one; then ranks update "
                "independently between exchanges"),
    OPTIM_COUNT("var_update_scaler", var_update_scaler, 16,
                "variance updates until the interval between them doubles"),
    OPTIM_COUNT("local_step_scaler", local_step_scaler, 32678,
                "steps after the freeze until the interval between exchanges doubles"),
    OPTIM_COUNT("local_step_clipper", local_step_clipper, 16,
                "longest interval between exchanges, in steps"),
    TAIL_ROWS,
};

static const struct setting lamb_settings[] = {
    HEAD_ROWS,
    FREEZE_ROW,
    OPTIM_NUMBER("max_coeff", max_coeff, 10, 0, "ceiling of the trust ratio"),
    OPTIM_NUMBER("min_coeff", min_coeff, 0.01, 0, "floor of the trust ratio"),
    OPTIM_NUMBER("coeff_beta", coeff_beta, 0.9, 0,
                 "decay of the running mean of the trust ratio; 1/(1 − coeff_beta) should not "
                 "exceed freeze_step"),
    OPTIM_NUMBER("factor_max", factor_max, 4, 0, "ceiling of the factor on the frozen ratio"),
    OPTIM_NUMBER("factor_min", factor_min, 0.5, 0, "floor of the factor on the frozen ratio"),
    OPTIM_NUMBER("factor_threshold", factor_threshold, 0.1, 0,
                 "largest relative change of that factor in a step"),
    TAIL_ROWS,
};

static const struct setting_table adam_table = {adam_settings, CZ_ARRAY_LEN(adam_settings)};
static const struct setting_table zero_one_table = {zero_one_settings,
                                                    CZ_ARRAY_LEN(zero_one_settings)};
static const struct setting_table lamb_table = {lamb_settings, CZ_ARRAY_LEN(lamb_settings)};

/* ---- ranges --------------------------------------------------------------------------------- */

/* A frozen variance may be 0 for good. */
static cz_status check_eps(const struct optim_hyper *hyper)
{
    if ((float)hyper->eps > 0) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "eps: %g must be above 0 in fp32: the frozen variance of a weight that had no "
                   "gradient is 0, and eps alone is divided by there",
                   hyper->eps);
}

/* Each value is divided by somewhere in the frozen phase. */
static cz_status lamb_check(const struct optim_hyper *hyper)
{
    TRY(check_eps(hyper));
    TRY(optim_check_coeffs(hyper));
    TRY(optim_check_not_negative("factor_threshold", hyper->factor_threshold));
    if ((float)hyper->betas[0] >= 1)
        return err_set(CZ_INVALID, 0, "betas: %.17g is 1 in fp32, and 1 − beta1 is divided by",
                       hyper->betas[0]);
    if (!(hyper->coeff_beta >= 0 && hyper->coeff_beta < 1))
        return err_set(CZ_INVALID, 0, "coeff_beta: %g is outside [0, 1)", hyper->coeff_beta);
    if (!(hyper->factor_min > 0))
        return err_set(CZ_INVALID, 0, "factor_min: %g must be above 0", hyper->factor_min);
    if (!(hyper->factor_max >= hyper->factor_min))
        return err_set(CZ_INVALID, 0, "factor_max: %g is below factor_min %g", hyper->factor_max,
                       hyper->factor_min);
    return CZ_OK;
}

/* ---- updates -------------------------------------------------------------------------------- */

/* The warm-up's update is plain Adam, over the first two moments. */
static cz_status adam_step(struct ops *ops, struct dev_stream *stream,
                           const struct optim_hyper *hyper, const struct step_scalars *scalars,
                           const struct optim_range *range)
{
    struct step_args args = optim_step_args(STEP_ADAM, hyper, scalars, range);
    args.decoupled = true;
    return ops_step(ops, stream, &args);
}

static struct lamb_args lamb_args(const struct optim_hyper *hyper,
                                  const struct step_scalars *scalars,
                                  const struct optim_range *range)
{
    struct lamb_args args = optim_lamb_args(hyper, scalars, range);
    args.t.states[2] = NULL;
    args.eps_inside_sqrt = false;
    return args;
}

/* As Lamb's, over the first two moments. */
static cz_status lamb_moments(struct ops *ops, struct dev_stream *stream,
                              const struct optim_hyper *hyper, const struct step_scalars *scalars,
                              const struct optim_range *range)
{
    struct lamb_args args = lamb_args(hyper, scalars, range);
    return ops_lamb_moments(ops, stream, &args);
}

static cz_status lamb_apply(struct ops *ops, struct dev_stream *stream,
                            const struct optim_hyper *hyper, const struct step_scalars *scalars,
                            const struct optim_range *range)
{
    struct lamb_args args = lamb_args(hyper, scalars, range);
    return ops_lamb_apply(ops, stream, &args);
}

/* The same that looks at no gradient: it moves weights and nothing else. */
static cz_status apply(struct ops *ops, struct dev_stream *stream, const struct optim_hyper *hyper,
                       const struct step_scalars *scalars, const struct optim_range *range)
{
    struct lamb_args args = lamb_args(hyper, scalars, range);
    args.t.g = args.t.p; /* because it checks that there is one */
    args.t.g_dtype = args.t.p_dtype;
    return ops_lamb_apply(ops, stream, &args);
}

/* ---- in checkpoints, and in which runs ---------------------------------------------------------
 */

/* Of DeepSpeed 0.16.9. */
static const struct optim_saved adam_saved[] = {
    {.name = "OnebitAdam",
     .flat_masters = true,
     .settings = {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm"}},
};

static const struct optim_saved zero_one_saved[] = {
    {.name = "ZeroOneAdam",
     .flat_masters = true,
     .settings = {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm"}},
};

static const struct optim_saved lamb_saved[] = {
    {.name = "OnebitLamb",
     .settings = {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm",
                  "max_coeff", "min_coeff"}},
};

static bool above_stage_1(const struct optim_use *use)
{
    return use->stage > 1;
}

static bool offloads_states(const struct optim_use *use)
{
    return use->states_offloaded;
}

static bool offloads_params(const struct optim_use *use)
{
    return use->params_offloaded;
}

static bool sums(const struct optim_use *use)
{
    return use->sums;
}

static bool fp16_states(const struct optim_use *use)
{
    return use->fp16_states;
}

static bool bf16_states(const struct optim_use *use)
{
    return use->bf16_states;
}

static const struct optim_limit limits[] = {
    {"zero_optimization.stage", above_stage_1,
     "a rank needs all of its own gradients, which stages 2 and 3 do not keep; stages 0 and 1 "
     "work"},
    {"zero_optimization.offload_optimizer.device", offloads_states,
     "the momentum and the compression errors stay in memory: offload is not supported; "
     "set "
     "it to \"none\""},
    {"zero_optimization.offload_param.device", offloads_params,
     "an exchange moves all parameters at once, in memory: offload is not supported; set "
     "it to \"none\""},
    {"gradient_allreduce_op", sums,
     "what ranks exchange after the warm-up is a mean; set it to \"mean\""},
    {"fp16.fp16_master_weights_and_grads", fp16_states, "masters and moments are fp32; remove it"},
    {"bf16.bf16_master_weights_and_grads", bf16_states, "masters and moments are fp32; remove it"},
};

static const struct optim_stage adam_stages[] = {{.kind = OPTIM_ELEMENTS, .run = adam_step}};
static const struct optim_stage lamb_stages[] = {
    {.kind = OPTIM_TENSOR_SUMS, .run = lamb_moments, .ratios = optim_lamb_ratios},
    {.kind = OPTIM_ELEMENTS, .run = lamb_apply},
};
static const struct optim_stage frozen[] = {
    {.kind = OPTIM_EXCHANGE},
    {.kind = OPTIM_ELEMENTS, .run = apply},
};
static const struct optim_stage zero_one_frozen[] = {
    {.kind = OPTIM_EXCHANGE, .moves_alone = true},
    {.kind = OPTIM_ELEMENTS, .run = apply},
};

const struct optim_class_entry optim_onebit_adam = {
    .cls =
        {
            .name = "OneBitAdam",
            .flags = OPTIM_ZERO_TESTED,
            .has_betas = true,
            .state_names = {"exp_avg", "exp_avg_sq"},
            .ops = OPTIM_OPS("step", "lamb_apply", "onebit_feed", "onebit_scale", "onebit_pack",
                             "onebit_serve", "onebit_unpack", "onebit_momentum", "onebit_mask_make",
                             "onebit_mask_join"),
            OPTIM_SAVED(adam_saved),
            .limits = limits,
            .n_limits = CZ_ARRAY_LEN(limits),
            OPTIM_STAGES(adam_stages),
            OPTIM_FROZEN(frozen),
        },
    .settings = &adam_table,
    .check = check_eps,
};

const struct optim_class_entry optim_zero_one_adam = {
    .cls =
        {
            .name = "ZeroOneAdam",
            .flags = OPTIM_ZERO_TESTED,
            .has_betas = true,
            .state_names = {"exp_avg", "exp_avg_sq", "momentum_accumulator"},
            .ops = OPTIM_OPS("step", "lamb_apply", "onebit_feed", "onebit_scale", "onebit_pack",
                             "onebit_serve", "onebit_unpack", "onebit_momentum", "onebit_mask_make",
                             "onebit_mask_join", "zero_one_local", "zero_one_gather",
                             "zero_one_settle"),
            OPTIM_SAVED(zero_one_saved),
            .limits = limits,
            .n_limits = CZ_ARRAY_LEN(limits),
            OPTIM_STAGES(adam_stages),
            OPTIM_FROZEN(zero_one_frozen),
        },
    .settings = &zero_one_table,
    .check = check_eps,
};

const struct optim_class_entry optim_onebit_lamb = {
    .cls =
        {
            .name = "OneBitLamb",
            .flags = OPTIM_ZERO_TESTED | OPTIM_DYNAMIC_SCALE,
            .has_betas = true,
            .state_names = {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"},
            .ops = OPTIM_OPS("lamb_moments", "lamb_apply", "onebit_lamb_norms", "onebit_feed",
                             "onebit_scale", "onebit_pack", "onebit_serve", "onebit_unpack",
                             "onebit_momentum", "onebit_mask_make", "onebit_mask_join"),
            OPTIM_SAVED(lamb_saved),
            .limits = limits,
            .n_limits = CZ_ARRAY_LEN(limits),
            OPTIM_STAGES(lamb_stages),
            OPTIM_FROZEN(frozen),
        },
    .settings = &lamb_table,
    .check = lamb_check,
};
