/* What calls of kernels cost at least: bytes that memory has to move when inputs are read once and
 * outputs written once, and floating-point operations of products. For bench/gpu/step_cuda.c. */
#ifndef CZ_BENCH_GPU_STEP_COSTS_H
#define CZ_BENCH_GPU_STEP_COSTS_H

#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/rope/rope.h"
#include "ops/step/step.h"

#include <stdarg.h>
#include <stdio.h>

struct cost {
    double nbytes, flops;
    char what[80]; /* the shape, for people */
};

static inline CZ_PRINTF(3, 4) struct cost
    cost_of(double nbytes, double flops, const char *format, ...)
{
    struct cost c = {.nbytes = nbytes, .flops = flops};
    va_list args;
    va_start(args, format);
    vsnprintf(c.what, sizeof c.what, format, args);
    va_end(args);
    return c;
}

static inline double cost_numel(int64_t rows, int64_t columns, enum cz_dtype dtype)
{
    return (double)rows * (double)columns * (double)dtype_size(dtype);
}

/* ---- products ----------------------------------------------------------------------------------
 */

static inline struct cost matmul_cost(const struct matmul_args *a)
{
    const bool sums = a->bias_grad_of != MATMUL_NO_BIAS_GRAD, has_aux = a->aux != NULL;
    const int64_t n_sums = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A ? a->m : a->n;
    double nbytes = cost_numel(a->m, a->k, a->dtype) + cost_numel(a->k, a->n, a->dtype);
    nbytes += (a->accumulate ? 2 : 1) * cost_numel(a->m, a->n, a->c_dtype);
    if (a->bias) nbytes += cost_numel(1, a->n, a->dtype);
    if (has_aux) nbytes += cost_numel(a->m, a->n, a->dtype);
    if (sums) nbytes += (a->bias_grad_accumulate ? 2 : 1) * cost_numel(1, n_sums, a->c_dtype);
    return cost_of(nbytes, 2.0 * (double)a->m * (double)a->n * (double)a->k,
                   "%lld x %lld x %lld to %s%s%s%s%s", (long long)a->m, (long long)a->n,
                   (long long)a->k, dtype_name(a->c_dtype), a->accumulate ? ", added" : "",
                   a->bias ? ", bias" : "",
                   a->epilogue == MATMUL_ACT        ? ", act"
                   : a->epilogue == MATMUL_ACT_GRAD ? ", act gradient"
                                                    : "",
                   sums ? ", bias gradient" : "");
}

/* q or out, and k or v. */
static inline double attention_queries(const struct attention_args *a)
{
    return cost_numel(a->B * a->Tq, a->H * a->D, a->dtype);
}

static inline double attention_keys(const struct attention_args *a)
{
    return cost_numel(a->B * a->Tk, a->G * a->D, a->dtype);
}

/* Of one product; what the causal mask hides is not computed. */
static inline double attention_flops(const struct attention_args *a)
{
    const double pairs = (double)(a->B * a->H) * (double)a->Tq * (double)a->Tk;
    return 2.0 * pairs * (double)a->D * (a->causal ? 0.5 : 1.0);
}

static inline struct cost attention_forward_cost(const struct attention_args *a)
{
    return cost_of(2 * attention_queries(a) + 2 * attention_keys(a), 2 * attention_flops(a),
                   "%lld x %lld, %lld heads of %lld", (long long)a->B, (long long)a->Tq,
                   (long long)a->H, (long long)a->D);
}

static inline struct cost attention_backward_cost(const struct attention_args *a)
{
    return cost_of(4 * attention_queries(a) + 4 * attention_keys(a), 5 * attention_flops(a),
                   "%lld x %lld, %lld heads of %lld", (long long)a->B, (long long)a->Tq,
                   (long long)a->H, (long long)a->D);
}

/* ---- passes over activations -------------------------------------------------------------------
 */

static inline struct cost norm_forward_cost(const struct norm_args *a)
{
    const int n_tensors = a->residual ? 4 : 2;
    return cost_of(n_tensors * cost_numel(a->N, a->C, a->dtype), 0, "%lld x %lld%s",
                   (long long)a->N, (long long)a->C, a->residual ? ", residual" : "");
}

static inline struct cost norm_backward_cost(const struct norm_args *a)
{
    const int n_tensors = a->dx_add ? 4 : 3;
    return cost_of(n_tensors * cost_numel(a->N, a->C, a->dtype), 0, "%lld x %lld%s",
                   (long long)a->N, (long long)a->C, a->dx_add ? ", added" : "");
}

static inline struct cost elements_cost(int n_tensors, size_t numel, enum cz_dtype dtype)
{
    return cost_of(n_tensors * cost_numel(1, (int64_t)numel, dtype), 0, "%zu %s", numel,
                   dtype_name(dtype));
}

static inline struct cost activation_forward_cost(const struct activation_args *a)
{
    return elements_cost(2, a->numel, a->dtype);
}

static inline struct cost activation_backward_cost(const struct activation_args *a)
{
    return elements_cost(3, a->numel, a->dtype);
}

static inline struct cost swiglu_forward_cost(const struct swiglu_args *a)
{
    return elements_cost(3, (size_t)(a->N * a->C), a->dtype);
}

static inline struct cost swiglu_backward_cost(const struct swiglu_args *a)
{
    return elements_cost(5, (size_t)(a->N * a->C), a->dtype);
}

/* Rows of a table that tokens can touch. */
static inline int64_t rows_touched(const struct embedding_args *a)
{
    return a->N < a->V ? a->N : a->V;
}

static inline struct cost embedding_forward_cost(const struct embedding_args *a)
{
    return cost_of((a->accumulate ? 2 : 1) * cost_numel(a->N, a->C, a->dtype) +
                       cost_numel(rows_touched(a), a->C, a->dtype),
                   0, "%lld x %lld%s", (long long)a->N, (long long)a->C,
                   a->accumulate ? ", added" : "");
}

static inline struct cost embedding_backward_cost(const struct embedding_args *a)
{
    const double table = a->dtable_accumulate ? 2 * cost_numel(rows_touched(a), a->C, a->grad_dtype)
                                              : cost_numel(a->V, a->C, a->grad_dtype);
    return cost_of(cost_numel(a->N, a->C, a->dtype) + table, 0, "%lld x %lld%s", (long long)a->N,
                   (long long)a->C, a->dtable_accumulate ? ", added" : "");
}

static inline struct cost rope_cost(const struct rope_args *a)
{
    return elements_cost(2, (size_t)(a->N * a->H * a->D), a->dtype);
}

static inline struct cost rope_table_cost(const struct rope_table_args *a)
{
    return elements_cost(2, (size_t)(a->N * a->half), DTYPE_F32);
}

static inline struct cost dropout_cost(const struct dropout_args *a)
{
    return elements_cost(2, a->numel, a->dtype);
}

static inline struct cost add_cost(const struct add_args *a)
{
    return elements_cost(3, a->numel, a->dtype);
}

static inline struct cost cast_scale_cost(const struct cast_scale_args *a)
{
    struct cost c = elements_cost(1, a->numel, a->x_dtype);
    c.nbytes += cost_numel(1, (int64_t)a->numel, a->y_dtype);
    return c;
}

static inline struct cost bias_grad_cost(const struct bias_grad_args *a)
{
    return elements_cost(1, (size_t)(a->N * a->C), a->dtype);
}

static inline struct cost cross_entropy_cost(const struct cross_entropy_args *a)
{
    return elements_cost(a->dlogits ? 2 : 1, (size_t)(a->N * a->V), DTYPE_F32);
}

/* The head's products are calls of their own, and say how large its logits are: … */
static inline struct cost ce_head_cost(const struct ce_head_args *a)
{
    return cost_of(0, 0, "%lld x %lld", (long long)a->N, (long long)a->V);
}

/* … what the passes over one product's logits add: read once, their gradient written once. */
static inline double head_block_nbytes(const struct matmul_args *logits)
{
    return cost_numel(logits->m, logits->n, logits->c_dtype) +
           cost_numel(logits->m, logits->n, logits->dtype);
}

/* ---- gradients and the optimizer ---------------------------------------------------------------
 */

static inline struct cost scan_cost(const struct scan_args *a)
{
    return elements_cost(a->squares ? 2 : 1, a->numel, a->dtype);
}

/* Masters and states both ways, gradients in, parameters out. */
static inline struct cost step_cost(const struct step_args *a)
{
    const struct step_tensors *t = &a->t;
    size_t each = 2 * dtype_size(t->p_dtype) + dtype_size(t->g_dtype);
    for (int i = 0; i < STEP_STATES_MAX; i++)
        if (t->states[i]) each += 2 * dtype_size(t->state_dtype);
    if (t->out) each += dtype_size(t->out_dtype);
    return cost_of((double)each * (double)t->numel, 0, "%s %zu, %zu bytes each", step_name(a->op),
                   t->numel, each);
}

#endif
