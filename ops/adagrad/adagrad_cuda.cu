/* Adagrad on a GPU: the arithmetic of adagrad_update_impl.h. Limit: memory, 20 bytes per element.
 */
#include "ops/adagrad/adagrad_update_impl.h"
#include "ops/step/step_cuda_impl.h"

struct adagrad_element {
    static __device__ __forceinline__ void
    apply(const struct adagrad_args &a, const struct step_scalars *s, int i, struct step_pack<1> *x)
    {
        adagrad_update(s, a.eps, a.weight_decay, x->g[i], &x->p[i], &x->states[0][i]);
    }
};

static cz_status adagrad(struct ops *ops, struct dev_stream *stream, const struct adagrad_args *a)
{
    TRY(step_check("adagrad", &a->t, 1, a->scalars));
    return step_launch<adagrad_element, 1>("adagrad", ops, stream, a);
}

extern "C" cz_status adagrad_wire_cuda(struct ops *ops)
{
    ops->adagrad = adagrad;
    return CZ_OK;
}
