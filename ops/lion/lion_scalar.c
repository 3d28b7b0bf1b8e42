/* The definition: one element after another (lion_update_impl.h). */
#include "ops/lion/lion_impl.h"
#include "ops/lion/lion_update_impl.h"

static void step(const struct lion_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float m = dtype_get(t->states[0], i, t->state_dtype);
        lion_update(a->scalars, a->weight_decay, dtype_get(t->g, i, t->g_dtype), &p, &m);
        step_put_param(t, i, p);
        dtype_put(t->states[0], i, t->state_dtype, m);
    }
}

const struct lion_row lion_scalar = {{"scalar", 0}, step};
