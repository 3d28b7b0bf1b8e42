/* The definition: one element after another (sgd_update_impl.h). */
#include "ops/sgd/sgd_impl.h"
#include "ops/sgd/sgd_update_impl.h"

static void step(const struct sgd_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    const bool has_momentum = a->momentum != 0;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float b = has_momentum ? dtype_get(t->states[0], i, t->state_dtype) : 0;
        sgd_update(a->scalars, a, dtype_get(t->g, i, t->g_dtype), &p, &b);
        step_put_param(t, i, p);
        if (has_momentum) dtype_put(t->states[0], i, t->state_dtype, b);
    }
}

const struct sgd_row sgd_scalar = {{"scalar", 0}, step};
