/* Lion on a GPU: the arithmetic of lion_update_impl.h. Limit: memory, 20 bytes per element. */
#include "ops/lion/lion_update_impl.h"
#include "ops/step/step_cuda_impl.h"

struct lion_element {
    static __device__ __forceinline__ void
    apply(const struct lion_args &a, const struct step_scalars *s, int i, struct step_pack<1> *x)
    {
        lion_update(s, a.weight_decay, x->g[i], &x->p[i], &x->states[0][i]);
    }
};

static cz_status lion(struct ops *ops, struct dev_stream *stream, const struct lion_args *a)
{
    TRY(step_check("lion", &a->t, 1, a->scalars));
    return step_launch<lion_element, 1>("lion", ops, stream, a);
}

extern "C" cz_status lion_wire_cuda(struct ops *ops)
{
    ops->lion = lion;
    return CZ_OK;
}
