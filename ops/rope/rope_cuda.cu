/* Rotary position embedding on a GPU: the scalar row's bits (no fused multiply-adds). Limit: memory
 * (N·H·D elements read and written; the tables' rows stay in the L2 cache). */
#include "device/cuda/kernel.h"
#include "ops/cuda_impl.h"
#include "ops/rope/rope_impl.h"

#include <math.h>

#define BLOCK 256

/* ---- rope --------------------------------------------------------------------------------------
 */

struct rotation {
    int64_t n_tokens, stride, T;
    unsigned half, width, n_items; /* of what a head rotates; of a head; vectors of half a token */
    const int32_t *positions;
    const float *cos, *sin;
    bool inverse;
};

/* N pairs (d, d + half) per thread, a token per row of the grid. A negative position, which no
 * table has, leaves its token as it is. */
template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK) rope_kernel(struct rotation r, T *tokens)
{
    const int64_t n = cuda_row();
    const unsigned item = (unsigned)cuda_item();
    if (n >= r.n_tokens || item >= r.n_items) return;
    const int64_t position = r.positions ? r.positions[n] : n % r.T;
    if (position < 0) return;
    const unsigned per_head = r.half / N, head = item / per_head;
    const unsigned d = (item - head * per_head) * N;
    T *x = tokens + n * r.stride + (size_t)head * r.width + d;
    float a[N], b[N], c[N], s[N];
    load_f32<N>(x, a);
    load_f32<N>(x + r.half, b);
    load_f32<N>(r.cos + position * r.half + d, c);
    load_f32<N>(r.sin + position * r.half + d, s);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float sine = r.inverse ? -s[k] : s[k], low = a[k], high = b[k];
        a[k] = low * c[k] - high * sine;
        b[k] = high * c[k] + low * sine;
    }
    store_f32<N>(x, a);
    store_f32<N>(x + r.half, b);
}

template <typename T, int N>
static cz_status rope_by(struct dev_stream *stream, const struct rope_args *a)
{
    const unsigned half = (unsigned)(rope_width(a) / 2);
    const struct rotation r = {.n_tokens = a->N,
                               .stride = a->stride,
                               .T = a->T,
                               .half = half,
                               .width = (unsigned)a->D,
                               .n_items = (unsigned)a->H * (half / N),
                               .positions = a->positions,
                               .cos = a->cos,
                               .sin = a->sin,
                               .inverse = a->inverse};
    const struct cuda_rows rows = cuda_rows((size_t)a->N, r.n_items, BLOCK);
    return cuda_launch("rope", rope_kernel<T, N>, rows.grid, rows.block, 0, stream, r, (T *)a->x);
}

static cz_status rope(struct ops *ops, struct dev_stream *stream, const struct rope_args *a)
{
    (void)ops;
    TRY(rope_check(a));
    if (a->N == 0 || a->H == 0 || a->D == 0) return CZ_OK;
    const bool aligned =
        cuda_is_aligned(a->x, 16) && cuda_is_aligned(a->cos, 16) && cuda_is_aligned(a->sin, 16);
    CUDA_BY_DTYPE(a->dtype, T, {
        constexpr int N = CUDA_LANES<T>;
        const bool whole = rope_width(a) / 2 % N == 0 && a->D % N == 0 && a->stride % N == 0;
        return aligned && whole ? rope_by<T, N>(stream, a) : rope_by<T, 1>(stream, a);
    });
    return CZ_OK;
}

/* ---- rope_table --------------------------------------------------------------------------------
 */

#define FREQ_MAX 256 /* of one launch: they travel as a kernel argument */

struct frequencies {
    float of[FREQ_MAX];
};

/* An angle per thread: frequency `begin` + item of row n. */
static __global__ void __launch_bounds__(BLOCK)
    rope_table_kernel(struct rope_table_args a, struct frequencies freq, int64_t begin, int64_t n)
{
    const int64_t row = cuda_row(), item = cuda_item();
    if (row >= a.N || item >= n) return;
    const float position = a.positions ? (float)a.positions[row] : (float)(a.first + row);
    float sine, cosine;
    sincosf(position * freq.of[item], &sine, &cosine);
    a.cos[row * a.half + begin + item] = a.scale * cosine;
    a.sin[row * a.half + begin + item] = a.scale * sine;
}

static cz_status rope_table(struct ops *ops, struct dev_stream *stream,
                            const struct rope_table_args *a)
{
    (void)ops;
    TRY(rope_table_check(a));
    for (int64_t begin = 0; begin < a->half && a->N > 0; begin += FREQ_MAX) {
        const int64_t n = a->half - begin < FREQ_MAX ? a->half - begin : FREQ_MAX;
        struct frequencies freq = {};
        for (int64_t d = 0; d < n; d++) freq.of[d] = a->freq[begin + d];
        const struct cuda_rows rows = cuda_rows((size_t)a->N, (size_t)n, BLOCK);
        TRY(cuda_launch("rope_table", rope_table_kernel, rows.grid, rows.block, 0, stream, *a, freq,
                        begin, n));
    }
    return CZ_OK;
}

extern "C" cz_status rope_wire_cuda(struct ops *ops)
{
    ops->rope = rope;
    ops->rope_table = rope_table;
    return CZ_OK;
}
