/* The 1-bit family on a GPU: the arithmetic of onebit_update_impl.h. Limit: memory, but for
 * lamb_norms (double precision) and unpack (a division per element).
 *
 * Arrays begin anywhere, bits anywhere in a byte: a warp's threads take neighbouring elements, one
 * access of 4 bytes each, and a thread four elements with a block's width between them, loaded
 * before any is stored. */
#include "ops/lamb/lamb_sums_cuda_impl.h"
#include "ops/onebit/onebit_impl.h"
#include "ops/onebit/onebit_update_impl.h"

#define BLOCK 256
#define LANES 4 /* elements of a thread under way */
#define SPAN  (BLOCK * LANES)

static unsigned blocks_for(const struct ops *ops, size_t n, size_t per_block)
{
    return step_blocks(n, per_block, ops->cuda->info.n_multiprocessors);
}

/* Lane j's element of the span at `at`. */
CUDA_FN size_t lane_at(size_t at, int j)
{
    return at + (size_t)j * BLOCK + threadIdx.x;
}

/* The spans of a block: `at` runs over where they begin. */
#define EACH_SPAN(at, numel)                                                                       \
    for (size_t at = (size_t)blockIdx.x * SPAN; at < (numel); at += (size_t)gridDim.x * SPAN)

/* LANES elements of an fp32 array; those past its end are 0. */
CUDA_FN void span_load(const float *p, size_t at, size_t numel, float *x)
{
#pragma unroll
    for (int j = 0; j < LANES; j++) x[j] = lane_at(at, j) < numel ? p[lane_at(at, j)] : 0;
}

CUDA_FN void span_load_any(const void *p, enum cz_dtype dtype, size_t at, size_t numel, float *x)
{
#pragma unroll
    for (int j = 0; j < LANES; j++)
        x[j] = lane_at(at, j) < numel ? any_load(p, dtype, lane_at(at, j)) : 0;
}

CUDA_FN void span_store(float *p, size_t at, size_t numel, const float *x)
{
#pragma unroll
    for (int j = 0; j < LANES; j++)
        if (lane_at(at, j) < numel) p[lane_at(at, j)] = x[j];
}

CUDA_FN void span_store_any(void *p, enum cz_dtype dtype, size_t at, size_t numel, const float *x)
{
#pragma unroll
    for (int j = 0; j < LANES; j++)
        if (lane_at(at, j) < numel) any_store(p, dtype, lane_at(at, j), x[j]);
}

/* ---- compression: feed and serve --------------------------------------------------------------
 *
 * A block per ONEBIT_BLOCK elements. New errors go to memory and to the block's shared memory, from
 * which one half-warp adds the squares up, lane by lane in the order of the definition: chains of
 * 256 additions, which other blocks' loads hide. */

#define CHUNKS (ONEBIT_BLOCK / SPAN)

struct square_room {
    float e[ONEBIT_BLOCK];
};

/* Σ e² of n elements in `room`; all threads call. */
CUDA_FN void square_sum(const struct square_room *room, unsigned n, double *out)
{
    __syncthreads();
    if (threadIdx.x < CUDA_WARP) {
        double sum = 0;
        const unsigned lane = threadIdx.x % ONEBIT_LANES; /* both halves: the same sums */
#pragma unroll 8
        for (unsigned i = lane; i < n; i += ONEBIT_LANES)
            sum += (double)room->e[i] * (double)room->e[i];
#pragma unroll
        for (int half = ONEBIT_LANES / 2; half > 0; half /= 2)
            sum += __shfl_down_sync(CUDA_ALL_LANES, sum, half); /* lanes below `half` count */
        if (threadIdx.x == 0) *out = sum;
    }
    __syncthreads();
}

CUDA_FN void square_keep(struct square_room *room, unsigned at, const float *e)
{
#pragma unroll
    for (int j = 0; j < LANES; j++) room->e[lane_at(at, j)] = e[j];
}

static __global__ void __launch_bounds__(BLOCK)
    onebit_feed_kernel(const __grid_constant__ struct onebit_feed_args a)
{
    __shared__ struct square_room room;
    struct step_scalars s = {};
    if (a.g) s = *a.scalars;
    const size_t n_blocks = onebit_n_partials(a.numel);
    for (size_t block = blockIdx.x; block < n_blocks; block += gridDim.x) {
        for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
            const size_t at = block * ONEBIT_BLOCK + chunk * SPAN;
            float e[LANES], g[LANES], m[LANES] = {};
            span_load(a.e, at, a.numel, e);
            if (a.g) {
                span_load_any(a.g, a.g_dtype, at, a.numel, g);
                if (a.m) span_load(a.m, at, a.numel, m);
#pragma unroll
                for (int j = 0; j < LANES; j++)
                    e[j] = onebit_fed(&s, a.coeff, g[j], a.m != NULL, m[j], e[j]);
                span_store(a.e, at, a.numel, e);
            }
            square_keep(&room, chunk * SPAN, e);
        }
        const size_t left = a.numel - block * ONEBIT_BLOCK;
        square_sum(&room, (unsigned)min(left, (size_t)ONEBIT_BLOCK), &a.partials[block]);
    }
}

CUDA_FN float served(const struct onebit_serve_args &a, size_t i, float e)
{
    float y = 0;
    for (size_t q = 0; q < (size_t)a.n_ranks; q++)
        y += onebit_signed(onebit_bit(a.bits + q * a.rank_stride, i), a.scales[q * a.scale_stride]);
    return fmaf(y, a.inv_ranks, e);
}

static __global__ void __launch_bounds__(BLOCK)
    onebit_serve_kernel(const __grid_constant__ struct onebit_serve_args a)
{
    __shared__ struct square_room room;
    const size_t n_blocks = onebit_n_partials(a.numel);
    for (size_t block = blockIdx.x; block < n_blocks; block += gridDim.x) {
        for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
            const size_t at = block * ONEBIT_BLOCK + chunk * SPAN;
            float e[LANES];
            span_load(a.e, at, a.numel, e);
#pragma unroll
            for (int j = 0; j < LANES; j++)
                if (lane_at(at, j) < a.numel) e[j] = served(a, lane_at(at, j), e[j]);
            span_store(a.e, at, a.numel, e);
            square_keep(&room, chunk * SPAN, e);
        }
        const size_t left = a.numel - block * ONEBIT_BLOCK;
        square_sum(&room, (unsigned)min(left, (size_t)ONEBIT_BLOCK), &a.partials[block]);
    }
}

static cz_status feed(struct ops *ops, struct dev_stream *stream, const struct onebit_feed_args *a)
{
    TRY(onebit_check_feed(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("onebit_feed", onebit_feed_kernel,
                       blocks_for(ops, onebit_n_partials(a->numel), 1), BLOCK, 0, stream, *a);
}

static cz_status serve(struct ops *ops, struct dev_stream *stream,
                       const struct onebit_serve_args *a)
{
    TRY(onebit_check_serve(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("onebit_serve", onebit_serve_kernel,
                       blocks_for(ops, onebit_n_partials(a->numel), 1), BLOCK, 0, stream, *a);
}

/* ---- compression: scales ----------------------------------------------------------------------
 *
 * One block: all threads fetch what one of them adds up in the definition's order. A partial sum is
 * ONEBIT_BLOCK elements', so that chain is short beside the kernels around it, and it saves an
 * exchange from waiting for the host. */

#define SCALE_ROOM 2048

static __global__ void __launch_bounds__(BLOCK)
    onebit_scale_kernel(const __grid_constant__ struct onebit_scale_args a)
{
    __shared__ double room[SCALE_ROOM];
    double sum = 0;
    for (size_t at = 0; at < a.n_partials; at += SCALE_ROOM) {
        const unsigned n = (unsigned)min(a.n_partials - at, (size_t)SCALE_ROOM);
        for (unsigned i = threadIdx.x; i < n; i += BLOCK) room[i] = a.partials[at + i];
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (unsigned i = 0; i < n; i++) sum += room[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *a.scale = a.numel > 0 ? (float)sqrt(sum / (double)a.numel) : 0;
}

static cz_status scale_of(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_scale_args *a)
{
    (void)ops;
    TRY(onebit_check_scale(a));
    return cuda_launch("onebit_scale", onebit_scale_kernel, 1, BLOCK, 0, stream, *a);
}

/* ---- compression: pack and unpack -------------------------------------------------------------
 */

/* A byte's elements, in two accesses where e is aligned. */
CUDA_FN void pack_load(const float *e, bool is_aligned, float *x)
{
    if (is_aligned) {
        load_f32<4>(e, x);
        load_f32<4>(e + 4, x + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = e[i];
}

CUDA_FN void pack_store(float *e, bool is_aligned, const float *x)
{
    if (is_aligned) {
        packs_store_whole<4>(e, x);
        packs_store_whole<4>(e + 4, x + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) e[i] = x[i];
}

/* A byte per thread. */
static __global__ void __launch_bounds__(BLOCK)
    onebit_pack_kernel(const __grid_constant__ struct onebit_pack_args a, bool is_aligned)
{
    const float scale = *a.scale;
    const size_t n_bytes = a.numel / 8, chunk_nbytes = a.chunk_numel / 8;
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t b = (size_t)blockIdx.x * BLOCK + threadIdx.x; b < n_bytes; b += stride) {
        float e[8];
        unsigned byte = 0;
        pack_load(a.e + 8 * b, is_aligned, e);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool positive = e[i] >= 0;
            byte |= (unsigned)positive << (7 - i);
            e[i] -= onebit_signed(positive, scale);
        }
        pack_store(a.e + 8 * b, is_aligned, e);
        a.bits[b / chunk_nbytes * a.chunk_stride + b % chunk_nbytes] = (uint8_t)byte;
    }
}

static cz_status pack_bits(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_pack_args *a)
{
    TRY(onebit_check_pack(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("onebit_pack", onebit_pack_kernel, blocks_for(ops, a->numel / 8, BLOCK),
                       BLOCK, 0, stream, *a, cuda_is_aligned(a->e, 16));
}

/* Where element i of a segment is: its chunk, found once per thread and span. */
struct chunk_place {
    size_t chunk, at;
};

CUDA_FN float unpacked(const struct onebit_unpack_args &a, struct chunk_place place, size_t i)
{
    if (!onebit_takes_part(&a.mask, i)) return 0;
    const bool positive = onebit_bit(a.bits + place.chunk * a.chunk_stride, place.at);
    return onebit_signed(positive, a.scales[place.chunk * a.scale_stride] / a.coeff);
}

static __global__ void __launch_bounds__(BLOCK)
    onebit_unpack_kernel(const __grid_constant__ struct onebit_unpack_args a)
{
    const size_t numel = a.end - a.begin;
    const bool reads = a.blend || a.fresh;
    EACH_SPAN(at, numel)
    {
        float x[LANES] = {}, fresh[LANES] = {};
        const size_t first = a.begin + lane_at(at, 0);
        struct chunk_place place = {first / a.chunk_numel, first % a.chunk_numel};
        if (reads) span_load(a.x, at, numel, x);
        if (a.fresh) span_load(a.fresh, at, numel, fresh);
#pragma unroll
        for (int j = 0; j < LANES; j++, place.at += BLOCK) {
            if (lane_at(at, j) >= numel) break;
            for (; place.at >= a.chunk_numel; place.at -= a.chunk_numel) place.chunk++;
            const float value = unpacked(a, place, lane_at(at, j));
            if (a.fresh) onebit_follow(a.scalars, x[j], value, &fresh[j]);
            x[j] = a.blend ? onebit_blended(a.blend, x[j], value) : value;
        }
        span_store(a.x, at, numel, x);
        if (a.fresh) span_store(a.fresh, at, numel, fresh);
    }
}

static cz_status unpack(struct ops *ops, struct dev_stream *stream,
                        const struct onebit_unpack_args *a)
{
    TRY(onebit_check_unpack(a));
    if (a->begin == a->end) return CZ_OK;
    return cuda_launch("onebit_unpack", onebit_unpack_kernel,
                       blocks_for(ops, a->end - a->begin, SPAN), BLOCK, 0, stream, *a);
}

/* ---- around it --------------------------------------------------------------------------------
 */

static __global__ void __launch_bounds__(BLOCK)
    onebit_momentum_kernel(const __grid_constant__ struct onebit_momentum_args a)
{
    const struct step_scalars s = *a.scalars;
    EACH_SPAN(at, a.numel)
    {
        float g[LANES], m[LANES], fresh[LANES] = {};
        span_load_any(a.g, a.g_dtype, at, a.numel, g);
        span_load(a.m, at, a.numel, m);
        if (a.fresh) span_load(a.fresh, at, a.numel, fresh);
#pragma unroll
        for (int j = 0; j < LANES; j++)
            if (lane_at(at, j) < a.numel)
                onebit_update_momentum(&s, onebit_takes_part(&a.mask, lane_at(at, j)), g[j], &m[j],
                                       &fresh[j]);
        span_store(a.m, at, a.numel, m);
        if (a.fresh) span_store(a.fresh, at, a.numel, fresh);
    }
}

static cz_status momentum(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_momentum_args *a)
{
    TRY(onebit_check_momentum(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("onebit_momentum", onebit_momentum_kernel, blocks_for(ops, a->numel, SPAN),
                       BLOCK, 0, stream, *a);
}

/* A byte per thread; bits of others in the first and the last stay. */
static __global__ void __launch_bounds__(BLOCK)
    onebit_mask_kernel(const __grid_constant__ struct onebit_mask_make_args a)
{
    const size_t first = a.first / 8, last = (a.first + a.numel - 1) / 8;
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t b = first + (size_t)blockIdx.x * BLOCK + threadIdx.x; b <= last; b += stride) {
        unsigned byte = a.bits[b];
        for (unsigned k = 0; k < 8; k++) {
            const size_t i = 8 * b + k - a.first;
            const unsigned flag = 0x80u >> k;
            if (8 * b + k < a.first || i >= a.numel) continue;
            byte = a.v[i] > a.floor ? byte | flag : byte & ~flag;
        }
        a.bits[b] = (uint8_t)byte;
    }
}

static cz_status mask_make(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_mask_make_args *a)
{
    TRY(onebit_check_mask_make(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("onebit_mask_make", onebit_mask_kernel,
                       blocks_for(ops, a->numel / 8 + 2, BLOCK), BLOCK, 0, stream, *a);
}

static __global__ void __launch_bounds__(BLOCK)
    onebit_mask_join_kernel(const __grid_constant__ struct onebit_mask_join_args a)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nbytes; i += stride) {
        unsigned byte = 0;
        for (size_t q = 0; q < (size_t)a.n_ranks; q++) byte |= a.bits[q * a.rank_stride + i];
        a.out[i] = (uint8_t)byte;
    }
}

static cz_status mask_join(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_mask_join_args *a)
{
    TRY(onebit_check_mask_join(a));
    if (a->nbytes == 0) return CZ_OK;
    return cuda_launch("onebit_mask_join", onebit_mask_join_kernel,
                       blocks_for(ops, a->nbytes, BLOCK), BLOCK, 0, stream, *a);
}

/* A block per part of a segment (lamb_sums_cuda_impl.h). */
static __global__ void __launch_bounds__(BLOCK)
    onebit_norms_kernel(const __grid_constant__ struct onebit_lamb_norms_args a,
                        const __grid_constant__ struct lamb_batch batch,
                        struct lamb_partial *partials)
{
    __shared__ float room[CUDA_WARP];
    size_t begin, end;
    (void)lamb_block_range(batch, &begin, &end);
    struct lamb_acc sum_u0, sum_u;
    float factor = 0;
    lamb_acc_clear(&sum_u0), lamb_acc_clear(&sum_u);
    for (size_t at = begin; at < end; at += SPAN) {
        float m[LANES], v[LANES], fresh[LANES], p[LANES], u0[LANES], u[LANES];
        span_load(a.m, at, end, m);
        span_load(a.v, at, end, v);
        span_load(a.fresh, at, end, fresh);
        span_load(a.p, at, end, p);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            u0[j] = u[j] = 0;
            if (lane_at(at, j) < end)
                factor =
                    fmaxf(factor, onebit_norms_of(&a, onebit_takes_part(&a.mask, lane_at(at, j)),
                                                  m[j], v[j], fresh[j], p[j], &u0[j], &u[j]));
        }
        lamb_acc_take<LANES>(&sum_u0, u0);
        lamb_acc_take<LANES>(&sum_u, u);
    }
    factor = block_reduce<max_of>(factor, room);
    lamb_partial_write(&partials[blockIdx.x], &sum_u0, &sum_u, factor);
}

static cz_status lamb_norms(struct ops *ops, struct dev_stream *stream,
                            const struct onebit_lamb_norms_args *a)
{
    struct lamb_batch batch;
    void *room;
    TRY(onebit_check_lamb_norms(a));
    TRY(cuda_scratch(ops, stream, &room));
    struct lamb_partial *partials = (struct lamb_partial *)room;
    for (size_t i = 0; a->numel > 0 && i < a->n_segments;) {
        i += lamb_batch_take(&batch, a->segments + i, a->n_segments - i,
                             ops->cuda->info.n_multiprocessors);
        if (batch.n == 0) continue;
        TRY(cuda_launch("onebit_lamb_norms", onebit_norms_kernel, batch.first_block[batch.n], BLOCK,
                        0, stream, *a, batch, partials));
        TRY(cuda_launch("onebit_lamb_norms: sums", lamb_sums_kernel, batch.n, BLOCK, 0, stream,
                        batch, (const struct lamb_partial *)partials, a->sums, a->factors));
    }
    return CZ_OK;
}

/* ---- 0/1 Adam ---------------------------------------------------------------------------------
 */

static __global__ void __launch_bounds__(BLOCK)
    zero_one_local_kernel(const __grid_constant__ struct zero_one_args a)
{
    const struct step_scalars s = *a.scalars;
    EACH_SPAN(at, a.numel)
    {
        float g[LANES], m[LANES], moved[LANES], v[LANES], p[LANES];
        span_load_any(a.g, a.g_dtype, at, a.numel, g);
        span_load(a.m, at, a.numel, m);
        span_load(a.moved, at, a.numel, moved);
        span_load(a.v, at, a.numel, v);
        span_load(a.p, at, a.numel, p);
#pragma unroll
        for (int j = 0; j < LANES; j++)
            if (lane_at(at, j) < a.numel)
                p[j] = onebit_update_local(&a, &s, onebit_takes_part(&a.mask, lane_at(at, j)), g[j],
                                           v[j], p[j], &m[j], &moved[j]);
        span_store(a.m, at, a.numel, m);
        span_store(a.moved, at, a.numel, moved);
        span_store_any(a.out, a.out_dtype, at, a.numel, p);
    }
}

static __global__ void __launch_bounds__(BLOCK)
    zero_one_gather_kernel(const __grid_constant__ struct zero_one_args a)
{
    EACH_SPAN(at, a.numel)
    {
        float moved[LANES], v[LANES];
        span_load(a.moved, at, a.numel, moved);
        span_load(a.v, at, a.numel, v);
#pragma unroll
        for (int j = 0; j < LANES; j++) moved[j] = onebit_gathered(a.eps, v[j], moved[j]);
        span_store(a.moved, at, a.numel, moved);
    }
}

static __global__ void __launch_bounds__(BLOCK)
    zero_one_settle_kernel(const __grid_constant__ struct zero_one_args a)
{
    const float step_size = a.scalars->step_size;
    EACH_SPAN(at, a.numel)
    {
        float m[LANES], moved[LANES], v[LANES], p[LANES];
        span_load(a.m, at, a.numel, m);
        span_load(a.moved, at, a.numel, moved);
        span_load(a.v, at, a.numel, v);
        span_load(a.p, at, a.numel, p);
#pragma unroll
        for (int j = 0; j < LANES; j++)
            onebit_update_settle(a.eps, step_size, v[j], &m[j], &moved[j], &p[j]);
        span_store(a.m, at, a.numel, m);
        span_store(a.moved, at, a.numel, moved);
        span_store(a.p, at, a.numel, p);
        span_store_any(a.out, a.out_dtype, at, a.numel, p);
    }
}

static cz_status zero_one_local(struct ops *ops, struct dev_stream *stream,
                                const struct zero_one_args *a)
{
    TRY(onebit_check_local(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("zero_one_local", zero_one_local_kernel, blocks_for(ops, a->numel, SPAN),
                       BLOCK, 0, stream, *a);
}

static cz_status zero_one_gather(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    TRY(onebit_check_gather(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("zero_one_gather", zero_one_gather_kernel, blocks_for(ops, a->numel, SPAN),
                       BLOCK, 0, stream, *a);
}

static cz_status zero_one_settle(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    TRY(onebit_check_settle(a));
    if (a->numel == 0) return CZ_OK;
    return cuda_launch("zero_one_settle", zero_one_settle_kernel, blocks_for(ops, a->numel, SPAN),
                       BLOCK, 0, stream, *a);
}

extern "C" cz_status onebit_wire_cuda(struct ops *ops)
{
    ops->onebit_feed = feed;
    ops->onebit_scale = scale_of;
    ops->onebit_pack = pack_bits;
    ops->onebit_serve = serve;
    ops->onebit_unpack = unpack;
    ops->onebit_momentum = momentum;
    ops->onebit_mask_make = mask_make;
    ops->onebit_mask_join = mask_join;
    ops->onebit_lamb_norms = lamb_norms;
    ops->zero_one_local = zero_one_local;
    ops->zero_one_gather = zero_one_gather;
    ops->zero_one_settle = zero_one_settle;
    return CZ_OK;
}
