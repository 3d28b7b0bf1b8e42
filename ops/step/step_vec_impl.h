/* Loads and stores of the optimizers' vector rows. Include after ops/vec_*_impl.h.
 *
 * n is VF_N for whole vectors (a constant, so the test goes away) or the length of a tail. Dtypes
 * are loop-invariant: fast paths pass constants, the general path a branch that always goes the
 * same way, which is hidden behind the memory traffic. */
#ifndef CZ_OPS_STEP_STEP_VEC_IMPL_H
#define CZ_OPS_STEP_STEP_VEC_IMPL_H

#include "ops/step/step_impl.h"

VEC_FN vf step_get(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    return n == VF_N ? vf_load(p, i, dtype) : vf_load_n(p, i, dtype, n);
}

VEC_FN void step_put(void *p, size_t i, enum cz_dtype dtype, vf x, size_t n)
{
    if (n == VF_N)
        vf_store(p, i, dtype, x);
    else
        vf_store_n(p, i, dtype, x, n);
}

VEC_FN void step_put_out(const struct step_tensors *t, size_t i, vf p, size_t n)
{
    step_put(t->p, i, t->p_dtype, p, n);
    if (t->out) step_put(t->out, i, t->out_dtype, p, n);
}

/* The tensors with everything about dtypes a constant, for the combinations that training uses:
 * fp32 throughout, and bf16 or fp16 gradients and parameters around fp32 masters and states. Calls
 * fn(&copy, …) inlined per combination; others go through the general one. */
#define STEP_BY_DTYPES(fn, tensors, ...)                                                           \
    do {                                                                                           \
        struct step_tensors t_ = *(tensors);                                                       \
        bool masters_ = t_.p_dtype == DTYPE_F32 && t_.state_dtype == DTYPE_F32;                    \
        if (masters_ && t_.g_dtype == DTYPE_F32 && !t_.out) {                                      \
            t_.p_dtype = t_.state_dtype = t_.g_dtype = DTYPE_F32, t_.out = NULL;                   \
            fn(&t_, __VA_ARGS__);                                                                  \
        } else if (masters_ && t_.g_dtype == DTYPE_BF16 && t_.out && t_.out_dtype == DTYPE_BF16) { \
            t_.p_dtype = t_.state_dtype = DTYPE_F32, t_.g_dtype = t_.out_dtype = DTYPE_BF16;       \
            fn(&t_, __VA_ARGS__);                                                                  \
        } else {                                                                                   \
            fn(&t_, __VA_ARGS__);                                                                  \
        }                                                                                          \
    } while (0)

#endif
