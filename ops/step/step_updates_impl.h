/* The updates of all element-wise optimizers, on the lanes that `vf` has where this is included:
 * after ops/vec_*_impl.h, or after this header's own lane of one float (the scalar row and CUDA).
 *
 *   void <name>_update(args, scalars, vf g, vf *p, vf *states)
 *
 * g comes multiplied by grad_scale; p and the states become those of the next step. */
#ifndef CZ_OPS_STEP_STEP_UPDATES_IMPL_H
#define CZ_OPS_STEP_STEP_UPDATES_IMPL_H

#include "ops/step/step_impl.h"

#ifndef VF_N

#include <math.h>

#define VF_N   1
#define VEC_FN static CZ_KERNEL_FN

typedef float vf;

VEC_FN vf vf_set1(float x)
{
    return x;
}
VEC_FN vf vf_zero(void)
{
    return 0;
}
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return fmaf(a, b, c);
}
VEC_FN vf vf_sqrt(vf x)
{
    return sqrtf(x);
}
VEC_FN bool vf_lt(vf a, vf b)
{
    return a < b;
}
VEC_FN vf vf_select(bool m, vf a, vf b)
{
    return m ? a : b;
}

#endif

#include "ops/step/adagrad_impl.h"
#include "ops/step/adam_impl.h"
#include "ops/step/lion_impl.h"
#include "ops/step/sgd_impl.h"

#endif
