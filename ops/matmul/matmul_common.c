/* Checks of matmul's arguments, and epilogues that run as passes of their own. The CUDA twin makes
 * the same checks with this code. */
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul_common_impl.h"

#include "ops/ops_impl.h"
#include "ops/table_impl.h"

/* ---- checks ---------------------------------------------------------------------------------- */

static cz_status check_width(const char *name, int64_t given, int64_t width)
{
    if (given == 0 || given >= width) return CZ_OK;
    return err_set(CZ_INVALID, 0, "matmul: %s %lld is less than the %lld elements of a row", name,
                   (long long)given, (long long)width);
}

/* An activation is applied to C as it is stored, so C must be dense for the pass over it. */
static cz_status check_epilogue(const struct matmul_args *a)
{
    if (a->epilogue == MATMUL_PLAIN) return CZ_OK;
    if ((unsigned)a->epilogue > MATMUL_ACT_GRAD || (unsigned)a->act >= ACTIVATIONS)
        return err_set(CZ_INVALID, 0, "matmul: there is no epilogue %d of activation %d",
                       (int)a->epilogue, (int)a->act);
    if (a->accumulate || a->c_dtype != a->dtype || !matmul_is_dense(matmul_ldc(a), a->n, a->m))
        return err_set(CZ_INVALID, 0,
                       "matmul: an activation needs a dense C of A's dtype, not accumulated");
    return CZ_OK;
}

cz_status matmul_check_shape(const struct matmul_args *a)
{
    const int64_t most = (int64_t)1 << 40; /* products of two stay inside int64_t's range */
    if (a->m < 0 || a->n < 0 || a->k < 0 || a->m > most || a->n > most || a->k > most)
        return err_set(CZ_INVALID, 0, "matmul: m %lld, n %lld, k %lld: each must be 0 to 2^40",
                       (long long)a->m, (long long)a->n, (long long)a->k);
    TRY(ops_check_dtype("matmul", a->dtype));
    if (a->c_dtype != a->dtype && a->c_dtype != DTYPE_F32)
        return err_set(CZ_INVALID, 0, "matmul: C is %s: it must be fp32 or %s as A and B are",
                       dtype_name(a->c_dtype), dtype_name(a->dtype));
    TRY(check_width("lda", a->lda, a->trans_a ? a->m : a->k));
    TRY(check_width("ldb", a->ldb, a->trans_b ? a->k : a->n));
    TRY(check_width("ldc", a->ldc, a->n));
    TRY(check_epilogue(a));
    bool stored_so = true, dense = true;
    switch (a->bias_grad_of) {
    case MATMUL_NO_BIAS_GRAD: return CZ_OK;
    case MATMUL_BIAS_GRAD_OF_A:
        stored_so = a->trans_a;
        dense = matmul_is_dense(matmul_lda(a), a->m, a->k);
        break;
    case MATMUL_BIAS_GRAD_OF_B:
        stored_so = !a->trans_b;
        dense = matmul_is_dense(matmul_ldb(a), a->n, a->k);
        break;
    }
    if (stored_so && dense) return CZ_OK;
    return err_set(CZ_INVALID, 0, "matmul: a bias gradient needs a dense operand, k by row");
}

cz_status matmul_check(const struct matmul_args *a)
{
    TRY(matmul_check_shape(a));
    if (a->bias && a->accumulate)
        return err_set(CZ_INVALID, 0, "matmul: bias and accumulate exclude each other");
    if (a->residual &&
        (a->accumulate || a->epilogue != MATMUL_PLAIN || a->bias_grad_of != MATMUL_NO_BIAS_GRAD ||
         a->c_dtype != a->dtype || !matmul_is_dense(matmul_ldc(a), a->n, a->m)))
        return err_set(CZ_INVALID, 0,
                       "matmul: a residual needs a dense C of A's dtype, and nothing else with it");
    const int64_t n_sums = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A   ? a->m
                           : a->bias_grad_of == MATMUL_BIAS_GRAD_OF_B ? a->n
                                                                      : 0;
    if (n_sums > 0 && !a->bias_grad)
        return err_set(CZ_INVALID, 0, "matmul: a bias gradient has no place to go");
    if (a->m == 0 || a->n == 0) return CZ_OK;
    if (!a->c || (a->k > 0 && (!a->a || !a->b)))
        return err_set(CZ_INVALID, 0, "matmul: a, b and c are needed");
    if (a->epilogue != MATMUL_PLAIN && a->aux == a->c)
        return err_set(CZ_INVALID, 0, "matmul: aux and c are one memory");
    if (a->epilogue == MATMUL_ACT_GRAD && !a->aux)
        return err_set(CZ_INVALID, 0, "matmul: an activation's gradient needs aux");
    return CZ_OK;
}

/* ---- what comes along ------------------------------------------------------------------------ */

/* With aux the product itself is kept, for the backward pass; the activation of it goes to C. */
void *matmul_product_c(const struct matmul_args *a)
{
    return a->epilogue == MATMUL_ACT && a->aux ? a->aux : a->c;
}

/* A pass over C after the product: on the host it is bound by memory either way. */
cz_status matmul_act_pass(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    struct activation_args act = {.kind = a->act, .dtype = a->dtype};
    act.numel = (size_t)(a->m * a->n);
    if (a->epilogue == MATMUL_ACT) {
        act.x = matmul_product_c(a);
        act.y = a->c;
        return ops->activation_forward(ops, stream, &act);
    }
    if (a->epilogue == MATMUL_PLAIN) return CZ_OK;
    act.x = a->aux;
    act.dy = act.dx = a->c;
    return ops->activation_backward(ops, stream, &act);
}

/* The sum over k of the operand that is the output's gradient. */
static struct bias_grad_args bias_grad_args(const struct matmul_args *a)
{
    const bool of_a = a->bias_grad_of == MATMUL_BIAS_GRAD_OF_A;
    struct bias_grad_args args = {.N = a->k, .C = of_a ? a->m : a->n};
    args.dtype = a->dtype;
    args.grad_dtype = a->c_dtype;
    args.dy = of_a ? a->a : a->b;
    args.db = a->bias_grad;
    args.accumulate = a->bias_grad_accumulate;
    args.workspace = a->workspace;
    args.workspace_nbytes = a->workspace_nbytes;
    return args;
}

cz_status matmul_bias_grad_pass(struct ops *ops, struct dev_stream *stream,
                                const struct matmul_args *a)
{
    if (a->bias_grad_of == MATMUL_NO_BIAS_GRAD) return CZ_OK;
    const struct bias_grad_args args = bias_grad_args(a);
    return ops->bias_grad(ops, stream, &args);
}

size_t matmul_bias_grad_workspace(const struct ops *ops, const struct matmul_args *a)
{
    if (a->bias_grad_of == MATMUL_NO_BIAS_GRAD) return 0;
    const struct bias_grad_args args = bias_grad_args(a);
    return ops->bias_grad_workspace(ops, &args);
}
