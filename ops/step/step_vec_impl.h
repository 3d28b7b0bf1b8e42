/* Loads and stores of the optimizers' vector rows. Include after ops/vec_*_impl.h.
 *
 * n is VF_N for whole vectors (a constant, so the test goes away) or the length of a tail. Dtypes
 * are loop-invariant: fast paths pass constants, the general path a branch that always goes the
 * same way, which the memory traffic hides. */
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

#endif
