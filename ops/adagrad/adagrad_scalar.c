/* The definition: one element after another (adagrad_update_impl.h). */
#include "ops/adagrad/adagrad_impl.h"
#include "ops/adagrad/adagrad_update_impl.h"

static void step(const struct adagrad_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float sum = dtype_get(t->states[0], i, t->state_dtype);
        adagrad_update(a->scalars, a->eps, a->weight_decay, dtype_get(t->g, i, t->g_dtype), &p,
                       &sum);
        step_put_param(t, i, p);
        dtype_put(t->states[0], i, t->state_dtype, sum);
    }
}

const struct adagrad_row adagrad_scalar = {{"scalar", 0}, step};
