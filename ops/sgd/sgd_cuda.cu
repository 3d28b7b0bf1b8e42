/* SGD on a GPU: the arithmetic of sgd_update_impl.h. Limit: memory, 20 bytes per element with
 * momentum, 12 without. */
#include "ops/sgd/sgd_update_impl.h"
#include "ops/step/step_cuda_impl.h"

struct sgd_element {
    static __device__ __forceinline__ void
    apply(const struct sgd_args &a, const struct step_scalars *s, int i, struct step_pack<1> *x)
    {
        sgd_update(s, &a, x->g[i], &x->p[i], &x->states[0][i]);
    }
};

static cz_status sgd(struct ops *ops, struct dev_stream *stream, const struct sgd_args *a)
{
    struct sgd_args args = *a;
    TRY(step_check("sgd", &a->t, a->momentum != 0, a->scalars));
    if (a->momentum == 0) args.t.states[0] = NULL; /* is not read or written */
    return step_launch<sgd_element, 1>("sgd", ops, stream, &args);
}

extern "C" cz_status sgd_wire_cuda(struct ops *ops)
{
    ops->sgd = sgd;
    return CZ_OK;
}
