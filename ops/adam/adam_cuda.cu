/* Adam on a GPU: the arithmetic of adam_update_impl.h. Limit: memory, 28 bytes per element. */
#include "ops/adam/adam_update_impl.h"
#include "ops/step/step_cuda_impl.h"

struct adam_element {
    static __device__ __forceinline__ void
    apply(const struct adam_args &a, const struct step_scalars *s, int i, struct step_pack<2> *x)
    {
        adam_update(s, a.eps, a.weight_decay, a.decoupled, x->g[i], &x->p[i], &x->states[0][i],
                    &x->states[1][i]);
    }
};

static cz_status adam(struct ops *ops, struct dev_stream *stream, const struct adam_args *a)
{
    TRY(step_check("adam", &a->t, 2, a->scalars));
    return step_launch<adam_element, 2>("adam", ops, stream, a);
}

extern "C" cz_status adam_wire_cuda(struct ops *ops)
{
    ops->adam = adam;
    return CZ_OK;
}
