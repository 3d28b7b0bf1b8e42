/* What the optimizers' CUDA twins share: one pass over the tensors of a tile.
 *
 * An optimizer gives its arithmetic on one element (Element::apply, around <op>_update_impl.h);
 * here is how elements are read, written and dealt out to threads. Two kernels per optimizer:
 *
 *   packs   four elements a thread and array in one access of 16 (fp32) or 8 bytes, two such per
 *           array under way: for the dtypes that engines train with and arrays that are aligned
 *           alike. A thread has 2·(4·(n_states + 1) + gradients) elements in flight, which at half
 *           occupancy is several times what an HBM3 memory's latency needs.
 *   any     an element at a time, dtypes looked at in the kernel: everything else.
 *
 * Both read each array once and write it once: the bytes that the optimizer's header states. */
#ifndef CZ_OPS_STEP_STEP_CUDA_IMPL_H
#define CZ_OPS_STEP_STEP_CUDA_IMPL_H

#include "device/cuda/packs.h"
#include "ops/cuda_impl.h"
#include "ops/step/step_grid_impl.h"
#include "ops/step/step_impl.h"

/* ---- alignment ------------------------------------------------------------------------------- */

static inline bool step_lead_fits(const void *p, enum cz_dtype dtype, unsigned lead)
{
    return !p || packs_lead(p, dtype_size(dtype), STEP_LANES) == lead;
}

/* Whether all arrays have the same lead (device/cuda/packs.h), which is returned, too. */
static inline bool step_aligned(const struct step_tensors *t, int n_states, unsigned *lead)
{
    *lead = packs_lead(t->p, dtype_size(t->p_dtype), STEP_LANES);
    bool fits =
        step_lead_fits(t->g, t->g_dtype, *lead) && step_lead_fits(t->out, t->out_dtype, *lead);
    for (int i = 0; i < n_states; i++)
        fits = fits && step_lead_fits(t->states[i], t->state_dtype, *lead);
    return fits;
}

/* Whether dtypes are those of a packs kernel: fp32 masters and states; fp32 gradients with any
 * parameter or none, or 16-bit gradients with a parameter of their type. */
static inline bool step_typed(const struct step_tensors *t)
{
    if (t->p_dtype != DTYPE_F32 || t->state_dtype != DTYPE_F32) return false;
    if (t->g_dtype == DTYPE_F32) return !t->out || t->out_dtype != DTYPE_F32;
    return t->out && t->out_dtype == t->g_dtype;
}

/* Run `...` with G and O the types of gradient and parameter; O is float when there is none. */
#define STEP_BY_TYPES(t, G, O, ...)                                                                \
    do {                                                                                           \
        if ((t)->g_dtype == DTYPE_BF16) {                                                          \
            using G = struct bf16;                                                                 \
            using O = struct bf16;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((t)->g_dtype == DTYPE_F16) {                                                    \
            using G = struct f16;                                                                  \
            using O = struct f16;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if (!(t)->out) {                                                                    \
            using G = float;                                                                       \
            using O = float;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((t)->out_dtype == DTYPE_BF16) {                                                 \
            using G = float;                                                                       \
            using O = struct bf16;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using G = float;                                                                       \
            using O = struct f16;                                                                  \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* ---- kernels --------------------------------------------------------------------------------- */

template <int N> struct step_pack {
    float p[STEP_LANES], g[STEP_LANES], states[N][STEP_LANES];
};

template <int N, typename G>
CUDA_FN void step_load(const struct step_tensors &t, int64_t at, struct step_pack<N> *x)
{
    packs_load<STEP_LANES>((const float *)t.p, at, t.numel, x->p);
    packs_load<STEP_LANES>((const G *)t.g, at, t.numel, x->g);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (t.states[k])
            packs_load<STEP_LANES>((const float *)t.states[k], at, t.numel, x->states[k]);
}

template <int N, typename O>
CUDA_FN void step_store(const struct step_tensors &t, int64_t at, const struct step_pack<N> *x)
{
    packs_store<STEP_LANES>((float *)t.p, at, t.numel, x->p);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (t.states[k]) packs_store<STEP_LANES>((float *)t.states[k], at, t.numel, x->states[k]);
    if (t.out) packs_store<STEP_LANES>((O *)t.out, at, t.numel, x->p);
}

/* Args: the op's arguments, with t and scalars; N: the states it has at most. */
template <typename Element, typename Args, int N, typename G, typename O>
__global__ void __launch_bounds__(STEP_BLOCK, STEP_BLOCKS_RESIDENT)
    step_packs_kernel(const __grid_constant__ Args a, unsigned lead)
{
    const struct step_scalars s = *a.scalars;
    const size_t n_packs = packs_count(a.t.numel, lead, STEP_LANES);
    const size_t stride = (size_t)gridDim.x * (STEP_BLOCK * STEP_PACKS);
    for (size_t k = (size_t)blockIdx.x * (STEP_BLOCK * STEP_PACKS) + threadIdx.x; k < n_packs;
         k += stride) {
        struct step_pack<N> x[STEP_PACKS];
#pragma unroll
        for (int j = 0; j < STEP_PACKS; j++)
            step_load<N, G>(a.t, packs_at<STEP_LANES>(k + j * STEP_BLOCK, lead), &x[j]);
#pragma unroll
        for (int j = 0; j < STEP_PACKS; j++) {
#pragma unroll
            for (int i = 0; i < STEP_LANES; i++) Element::apply(a, &s, i, &x[j]);
            step_store<N, O>(a.t, packs_at<STEP_LANES>(k + j * STEP_BLOCK, lead), &x[j]);
        }
    }
}

template <typename Element, typename Args, int N>
__global__ void __launch_bounds__(STEP_BLOCK, STEP_BLOCKS_RESIDENT)
    step_any_kernel(const __grid_constant__ Args a)
{
    const struct step_scalars s = *a.scalars;
    const struct step_tensors &t = a.t;
    const size_t stride = (size_t)gridDim.x * STEP_BLOCK;
    for (size_t i = (size_t)blockIdx.x * STEP_BLOCK + threadIdx.x; i < t.numel; i += stride) {
        struct step_pack<N> x;
        x.p[0] = any_load(t.p, t.p_dtype, i);
        x.g[0] = any_load(t.g, t.g_dtype, i);
#pragma unroll
        for (int k = 0; k < N; k++)
            x.states[k][0] = t.states[k] ? any_load(t.states[k], t.state_dtype, i) : 0;
        Element::apply(a, &s, 0, &x);
        any_store(t.p, t.p_dtype, i, x.p[0]);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (t.states[k]) any_store(t.states[k], t.state_dtype, i, x.states[k][0]);
        if (t.out) any_store(t.out, t.out_dtype, i, x.p[0]);
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* The whole tile, its arguments checked: states that the op does not have are NULL in `a`. */
template <typename Element, int N, typename Args>
static inline cz_status step_launch(const char *what, const struct ops *ops,
                                    struct dev_stream *stream, const Args *a)
{
    const struct step_tensors *t = &a->t;
    const int n_mp = ops->cuda->info.n_multiprocessors;
    unsigned lead;
    if (t->numel == 0) return CZ_OK;
    if (!step_typed(t) || !step_aligned(t, N, &lead))
        return cuda_launch(what, step_any_kernel<Element, Args, N>,
                           step_blocks(t->numel, STEP_BLOCK, n_mp), STEP_BLOCK, 0, stream, *a);
    const unsigned blocks =
        step_blocks(packs_count(t->numel, lead, STEP_LANES), STEP_BLOCK * STEP_PACKS, n_mp);
    STEP_BY_TYPES(t, G, O, {
        return cuda_launch(what, step_packs_kernel<Element, Args, N, G, O>, blocks, STEP_BLOCK, 0,
                           stream, *a, lead);
    });
    return CZ_OK;
}

#endif
