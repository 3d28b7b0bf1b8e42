/* Element-wise steps on a GPU: the updates of the scalar row. Limit: memory (the bytes per element
 * that each update's file states). */
#include "ops/step/step_cuda_impl.h"
#include "ops/step/step_updates_impl.h"

#define STEP_ELEMENT(name, NAME, n_states)                                                         \
    struct name##_element {                                                                        \
        static __device__ __forceinline__ void apply(const struct step_args &a,                    \
                                                     const struct step_scalars *s, int i,          \
                                                     struct step_pack<n_states> *x)                \
        {                                                                                          \
            float states[n_states];                                                                \
            for (int k = 0; k < n_states; k++) states[k] = a.t.states[k] ? x->states[k][i] : 0;    \
            name##_update(&a, s, x->g[i] * s->grad_scale, &x->p[i], states);                       \
            for (int k = 0; k < n_states; k++) x->states[k][i] = states[k];                        \
        }                                                                                          \
    };
STEP_OPS(STEP_ELEMENT)

static cz_status step(struct ops *ops, struct dev_stream *stream, const struct step_args *given)
{
    struct step_args a;
    TRY(step_prepare(given, &a));
    switch (a.op) {
#define STEP_LAUNCH(name, NAME, n_states)                                                          \
    case STEP_##NAME: return step_launch<name##_element, n_states>(#name, ops, stream, &a);
        STEP_OPS(STEP_LAUNCH)
    default: return CZ_INVALID;
    }
}

extern "C" cz_status step_wire_cuda(struct ops *ops)
{
    ops->step = step;
    return CZ_OK;
}
