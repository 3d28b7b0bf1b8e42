/* Adding up partial results of row blocks on a GPU, for gradients of biases and norm weights. */
#ifndef CZ_OPS_CUDA_BLOCKS_IMPL_H
#define CZ_OPS_CUDA_BLOCKS_IMPL_H

#include "device/cuda/kernel.h"

#define COMBINE_COLUMNS 32
#define COMBINE_PARTS   16 /* shares of the blocks, each added up by a warp */
#define COMBINE_AHEAD   16 /* loads under way per thread */

/* Σ of partial[block·stride] over blocks [begin, end), one after another. */
CUDA_FN float combine_share(const float *partial, int64_t begin, int64_t end, size_t stride)
{
    float sum = 0;
    int64_t block = begin;
    for (; block + COMBINE_AHEAD <= end; block += COMBINE_AHEAD) {
        float x[COMBINE_AHEAD];
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++) x[i] = partial[(size_t)(block + i) * stride];
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++) sum += x[i];
    }
    for (; block < end; block++) sum += partial[(size_t)block * stride];
    return sum;
}

/* One kind of sums, and where they go. */
struct combine_sums {
    const float *partial;
    bool accumulate;
    void *db; /* (C) */
};

/* Up to two kinds in one launch: they are short, and a launch costs as much. */
struct combine {
    int64_t n_blocks, C;
    size_t stride;
    struct combine_sums of[2];
};

/* db[c] [+]= Σ over blocks of partial[block·stride + c], c < C, one rounding. The blocks are cut
 * into COMBINE_PARTS shares, each summed in block order, then added up in their order. A column per
 * thread in x, a kind per blockIdx.y. Reads 4·C·n_blocks bytes of each, which are in the L2 cache.
 */
template <typename G>
static __global__ void __launch_bounds__(COMBINE_COLUMNS *COMBINE_PARTS)
    combine_kernel(const struct combine a)
{
    __shared__ float shares[COMBINE_PARTS][COMBINE_COLUMNS];
    const struct combine_sums of = blockIdx.y == 0 ? a.of[0] : a.of[1];
    const int64_t c = (int64_t)blockIdx.x * COMBINE_COLUMNS + threadIdx.x;
    const int64_t per_part = (a.n_blocks + COMBINE_PARTS - 1) / COMBINE_PARTS;
    const int64_t begin = per_part * threadIdx.y;
    const int64_t end = begin + per_part < a.n_blocks ? begin + per_part : a.n_blocks;
    shares[threadIdx.y][threadIdx.x] =
        c < a.C ? combine_share(of.partial + c, begin, end, a.stride) : 0.0f;
    __syncthreads();
    if (threadIdx.y > 0 || c >= a.C) return;
    G *db = (G *)of.db + c;
    float sum = shares[0][threadIdx.x];
    for (int part = 1; part < COMBINE_PARTS; part++) sum += shares[part][threadIdx.x];
    *db = from_f32<G>(of.accumulate ? to_f32(*db) + sum : sum);
}

/* The first n_kinds of them. */
static inline cz_status cuda_combine_blocks(const char *what, struct dev_stream *stream,
                                            const struct combine *a, unsigned n_kinds,
                                            enum cz_dtype grad_dtype)
{
    const dim3 grid(cuda_blocks((size_t)a->C, COMBINE_COLUMNS), n_kinds);
    CUDA_BY_DTYPE(grad_dtype, G, {
        return cuda_launch(what, combine_kernel<G>, grid, dim3(COMBINE_COLUMNS, COMBINE_PARTS), 0,
                           stream, *a);
    });
    return CZ_OK;
}

#endif
