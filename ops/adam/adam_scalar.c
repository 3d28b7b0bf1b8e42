/* The definition: one element after another (adam_update_impl.h). */
#include "ops/adam/adam_impl.h"
#include "ops/adam/adam_update_impl.h"

static void step(const struct adam_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float m = dtype_get(t->states[0], i, t->state_dtype);
        float v = dtype_get(t->states[1], i, t->state_dtype);
        adam_update(a->scalars, a->eps, a->weight_decay, a->decoupled,
                    dtype_get(t->g, i, t->g_dtype), &p, &m, &v);
        step_put_param(t, i, p);
        dtype_put(t->states[0], i, t->state_dtype, m);
        dtype_put(t->states[1], i, t->state_dtype, v);
    }
}

const struct adam_row adam_scalar = {{"scalar", 0}, step};
