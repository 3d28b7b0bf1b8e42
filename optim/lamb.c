/* Lamb: two passes, with a trust ratio per tensor between them. The ratio needs norms of whole
 * tensors, whose elements are spread over ranks: pass one leaves partial sums, which zero adds up
 * over ranks before pass two (docs/deepspeed-behaviour.md, "Lamb"). */
#include "optim/optim_impl.h"

static const struct setting settings[] = {
    OPTIM_NUMBER("lr", lr, 1e-3, 0, "learning rate"),
    OPTIM_BOOL("bias_correction", bias_correction, 1, 0,
               "scale the step by √(1 − b2^t)/(1 − b1^t)"),
    OPTIM_BETAS,
    OPTIM_NUMBER("eps", eps, 1e-8, 0, "added to the root of the second moment"),
    OPTIM_BOOL("eps_inside_sqrt", eps_inside_sqrt, 0, 0, "add eps under the root"),
    OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "part of the update that the ratio scales"),
    OPTIM_NUMBER("max_coeff", max_coeff, 10, 0, "ceiling of the trust ratio"),
    OPTIM_NUMBER("min_coeff", min_coeff, 0.01, 0, "floor of the trust ratio"),
    OPTIM_BOOL("amsgrad", amsgrad, 0, 0, "not supported"),
};

static const struct setting_table table = {settings, CZ_ARRAY_LEN(settings)};

struct lamb_args optim_lamb_args(const struct optim_hyper *hyper,
                                 const struct step_scalars *scalars,
                                 const struct optim_range *range)
{
    return (struct lamb_args){
        .t = range->tensors,
        .scalars = scalars,
        .eps = (float)hyper->eps,
        .weight_decay = (float)hyper->weight_decay,
        .eps_inside_sqrt = hyper->eps_inside_sqrt,
        .segments = range->segments,
        .n_segments = range->n_segments,
        .sums = range->sums,
        .ratios = range->ratios,
    };
}

static cz_status moments(struct ops *ops, struct dev_stream *stream,
                         const struct optim_hyper *hyper, const struct step_scalars *scalars,
                         const struct optim_range *range)
{
    struct lamb_args args = optim_lamb_args(hyper, scalars, range);
    return ops_lamb_moments(ops, stream, &args);
}

static cz_status apply(struct ops *ops, struct dev_stream *stream, const struct optim_hyper *hyper,
                       const struct step_scalars *scalars, const struct optim_range *range)
{
    struct lamb_args args = optim_lamb_args(hyper, scalars, range);
    return ops_lamb_apply(ops, stream, &args);
}

/* The same sums on every rank, hence the same ratios. */
void optim_lamb_ratios(const struct optim_hyper *hyper, const struct lamb_sums *sums,
                       size_t n_tensors, float *ratios)
{
    for (size_t i = 0; i < n_tensors; i++)
        ratios[i] = lamb_ratio(&sums[i], hyper->min_coeff, hyper->max_coeff);
}

/* An empty interval would clamp every ratio to nonsense. */
cz_status optim_check_coeffs(const struct optim_hyper *hyper)
{
    TRY(optim_check_not_negative("min_coeff", hyper->min_coeff));
    if (hyper->max_coeff < hyper->min_coeff)
        return err_set(CZ_INVALID, 0, "max_coeff: %g is below min_coeff %g", hyper->max_coeff,
                       hyper->min_coeff);
    return CZ_OK;
}

static const struct optim_saved saved[] = {
    {.name = "FusedLamb",
     .settings = {"lr", "bias_correction", "betas", "eps", "weight_decay", "max_grad_norm",
                  "max_coeff", "min_coeff"}},
};

/* Moments and sums, then weights by the ratios. */
static const struct optim_stage stages[] = {
    {.kind = OPTIM_TENSOR_SUMS, .run = moments, .ratios = optim_lamb_ratios},
    {.kind = OPTIM_ELEMENTS, .run = apply},
};

const struct optim_class_entry optim_lamb = {
    .cls =
        {
            .name = "Lamb",
            .flags = OPTIM_DYNAMIC_SCALE,
            .has_betas = true,
            .state_names = {"exp_avg", "exp_avg_sq"},
            .ops = OPTIM_OPS("lamb_moments", "lamb_apply"),
            OPTIM_SAVED(saved),
            OPTIM_STAGES(stages),
        },
    .settings = &table,
    .check = optim_check_coeffs,
};
