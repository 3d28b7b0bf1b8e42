/* Dropout on a GPU: the host's draws, so the host's mask. Limit: memory (numel elements read and
 * written); a Philox block of some 60 instructions serves four elements. */
#include "device/cuda/kernel.h"
#include "ops/cuda_impl.h"
#include "ops/dropout/dropout_impl.h"

#include <math.h>

#define BLOCK 256

struct draw {
    uint32_t key[2], hi[2]; /* rng_key_expand() */
    uint64_t first_idx;
    uint32_t threshold; /* keep when the draw's 24 bits are at least this: uniform ≥ p */
    float scale;
};

static struct draw draw_of(const struct dropout_args *a)
{
    struct draw d;
    rng_key_expand(&a->rng, d.key, d.hi);
    d.first_idx = a->first_idx;
    d.threshold = (uint32_t)ceil((double)a->p * 0x1p24); /* exact: p has 24 bits */
    d.scale = 1.0f / (1.0f - a->p);
    return d;
}

/* The four draws of elements 4·block … 4·block + 3. */
CUDA_FN void draw_block(const struct draw *d, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), d->hi[0], d->hi[1]};
    rng_philox4x32(counter, d->key, out);
}

CUDA_FN float dropped(const struct draw *d, uint32_t bits, float x)
{
    return bits >> 8 >= d->threshold ? x * d->scale : 0.0f;
}

/* N elements per thread, a multiple of 4 that begins where a Philox block begins. */
template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    dropout_kernel(size_t numel, struct draw d, const T *x, T *y)
{
    const size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    if (i >= numel) return;
    float v[N];
    load_f32_upto<N>(x + i, numel - i, v);
#pragma unroll
    for (int first = 0; first < N; first += 4) {
        uint32_t bits[4];
        draw_block(&d, (d.first_idx + i + (size_t)first) >> 2, bits);
#pragma unroll
        for (int k = 0; k < 4; k++) v[first + k] = dropped(&d, bits[k], v[first + k]);
    }
    store_f32_upto<N>(y + i, numel - i, v);
}

/* An element per thread, for tensors that begin anywhere. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
    dropout_single_kernel(size_t numel, struct draw d, const T *x, T *y)
{
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= numel) return;
    const uint64_t idx = d.first_idx + i;
    uint32_t bits[4];
    draw_block(&d, idx >> 2, bits);
    const uint32_t low = idx & 1 ? bits[1] : bits[0], high = idx & 1 ? bits[3] : bits[2];
    y[i] = from_f32<T>(dropped(&d, idx & 2 ? high : low, to_f32(x[i])));
}

template <typename T>
static cz_status dropout_by(struct dev_stream *stream, const struct dropout_args *a)
{
    constexpr int N = CUDA_LANES<T>;
    const struct draw d = draw_of(a);
    const bool in_blocks =
        a->first_idx % 4 == 0 && cuda_is_aligned(a->x, 16) && cuda_is_aligned(a->y, 16);
    if (in_blocks)
        return cuda_launch("dropout", dropout_kernel<T, N>, cuda_blocks(a->numel, BLOCK * N), BLOCK,
                           0, stream, a->numel, d, (const T *)a->x, (T *)a->y);
    return cuda_launch("dropout", dropout_single_kernel<T>, cuda_blocks(a->numel, BLOCK), BLOCK, 0,
                       stream, a->numel, d, (const T *)a->x, (T *)a->y);
}

static cz_status dropout(struct ops *ops, struct dev_stream *stream, const struct dropout_args *a)
{
    (void)ops;
    TRY(dropout_check(a));
    if (a->numel == 0) return CZ_OK;
    CUDA_BY_DTYPE(a->dtype, T, return dropout_by<T>(stream, a));
    return CZ_OK;
}

extern "C" cz_status dropout_wire_cuda(struct ops *ops)
{
    ops->dropout = dropout;
    return CZ_OK;
}
