/* Adam on a GPU: the arithmetic of adam_update_impl.h, an element per thread. */
#include "device/cuda/kernel.h"
#include "ops/adam/adam_update_impl.h"
#include "ops/cuda_impl.h"
#include "ops/step/step_impl.h"

#define BLOCK 256

template <typename P, typename G, typename S, typename O>
__global__ void __launch_bounds__(BLOCK)
    adam_kernel(size_t numel, P *p, const G *g, S *m, S *v, O *out,
                const struct step_scalars *scalars, float eps, float wd, bool decoupled)
{
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= numel) return;
    float pi = to_f32(p[i]), mi = to_f32(m[i]), vi = to_f32(v[i]);
    adam_update(scalars, eps, wd, decoupled, to_f32(g[i]), &pi, &mi, &vi);
    p[i] = from_f32<P>(pi);
    m[i] = from_f32<S>(mi);
    v[i] = from_f32<S>(vi);
    if (out) out[i] = from_f32<O>(pi);
}

static cz_status adam(struct ops *ops, struct dev_stream *stream, const struct adam_args *a)
{
    (void)ops;
    const struct step_tensors *t = &a->t;
    TRY(step_check("adam", t, 2, a->scalars));
    if (t->numel == 0) return CZ_OK;
    CUDA_BY_DTYPE(t->g_dtype, G, CUDA_BY_DTYPE(t->out_dtype, O, {
                      return cuda_launch("adam", adam_kernel<float, G, float, O>,
                                         cuda_blocks(t->numel, BLOCK), BLOCK, 0, stream, t->numel,
                                         (float *)t->p, (const G *)t->g, (float *)t->states[0],
                                         (float *)t->states[1], (O *)t->out, a->scalars, a->eps,
                                         a->weight_decay, a->decoupled);
                  }));
    return CZ_OK;
}

cz_status adam_wire_cuda(struct ops *ops)
{
    ops->adam = adam;
    return CZ_OK;
}
