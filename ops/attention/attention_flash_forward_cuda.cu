/* Attention's forward pass on tensor cores.
 *
 * A block of 4 warps owns 128 queries of a head, 32 per warp, and walks the keys that any of them
 * sees. While a tile of keys is multiplied its values arrive, and while those are multiplied the
 * next keys do. Limit: 4·Tq·Tk·D FLOP per head (half when causal) at the speed of mma.sync. */
#include "ops/attention/attention_flash_cuda_impl.h"

#include <utility>

#define WARPS   4
#define THREADS (32 * WARPS)
#define ROWS    2 /* of 16 queries, per warp */
#define QUERIES (16 * ROWS * WARPS)

/* Keys of a tile: what the registers hold of s (ROWS·keys/2) beside the sums (ROWS·width/2). Of a
 * width a device takes the first row of which BLOCKS fit on a multiprocessor, to wait while others
 * work; in 100 KiB of shared memory (compute capability 8.6, 8.9, 12.0) that is the last of 128. */
static constexpr struct tiles {
    int width, keys, keys_with_dropout;
} table[] = {{32, 128, 64}, {64, 128, 64}, {96, 64, 64}, {128, 64, 32}, {128, 32, 32}};
#define N_TILES ((int)CZ_ARRAY_LEN(table))
#define BLOCKS  2

static __host__ __device__ constexpr size_t forward_shared(int width, int keys)
{
    return (size_t)((QUERIES + 2 * keys) * width * 2 + 128); /* struct key_head */
}

/* The state of the online softmax of a thread's rows: the largest raw score, and this lane's part
 * of Σ exp2((s − top)·scale). */
struct softmax {
    float top[ROWS][2], total[ROWS][2];
};

CUDA_FN struct place queries_of(const struct attention_on_gpu &a, unsigned block)
{
    return place_of<QUERIES>(block, a.H, a.Tq, a.causal); /* the longest first */
}

/* The first query of a thread's warp, counted from the block's. */
CUDA_FN int warp_row(void)
{
    return (int)(thread_here() / 32) * 16 * ROWS;
}

/* Scores of keys that a row does not see become −infinity. */
template <int COLS>
CUDA_FN void mask_scores(const struct attention_on_gpu &a, int k0, float s[ROWS][COLS][4])
{
    const struct place at = queries_of(a, block_here());
    const int q0 = at.t0 + warp_row(), lane = (int)(thread_here() % 32);
    uint32_t word[COLS / 4];
    visible_keys<COLS * 8>(word, a, at.b, k0);
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int n_seen = keys_seen(a, q0 + 8 * i + lane / 4);
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const uint32_t seen = lane_sees(word[c / 4], k0 + 8 * c, n_seen);
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(seen >> (e / 2 * 8 + e % 2) & 1))
                    s[i / 2][c + e / 2][2 * (i % 2) + e % 2] = -INFINITY;
        }
    }
}

/* The largest scores so far, one tile of s included; sums so far fade with their change. base:
 * what is subtracted from the scaled scores. */
template <int COLS, int WIDTH>
CUDA_FN void raise_top(const struct attention_on_gpu &a, struct softmax *x,
                       const float s[ROWS][COLS][4], float out[ROWS][WIDTH / 8][4],
                       float base[ROWS][2])
{
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int r = i / 2, half = i % 2;
        float top = x->top[r][half];
#pragma unroll
        for (int c = 0; c < COLS; c++)
            top = fmaxf(top, fmaxf(s[r][c][2 * half], s[r][c][2 * half + 1]));
        top = quad_reduce<max_of>(top);
        base[r][half] = top == -INFINITY ? 0.0f : top * a.scale_log2;
        const float fade = exp2_approx(fmaf(x->top[r][half], a.scale_log2, -base[r][half]));
        x->top[r][half] = top;
        x->total[r][half] *= fade;
#pragma unroll
        for (int c = 0; c < WIDTH / 8; c++)
            out[r][c][2 * half] *= fade, out[r][c][2 * half + 1] *= fade;
    }
}

/* p of one tile, as the left operand of the next product; dropped elements are 0, what is kept is
 * scaled at the end. */
template <typename T, int COLS, bool DROPS>
CUDA_FN void make_p(const struct attention_on_gpu &a, int k0, struct softmax *x,
                    const float s[ROWS][COLS][4], const float base[ROWS][2],
                    uint32_t p[ROWS][COLS][2])
{
    const struct place at = DROPS ? queries_of(a, block_here()) : place();
    const int q0 = at.t0 + warp_row(), lane = (int)(thread_here() % 32);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint64_t row = draw_row(a, at.b, at.head, q0 + 16 * r + lane / 4);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[e] = exp2_approx(fmaf(s[r][c][e], a.scale_log2, -base[r][e / 2]));
                x->total[r][e / 2] += y[e];
            }
            if (DROPS) {
                const int key = k0 + 8 * c + 2 * (lane % 4);
                const unsigned kept = kept_by_queries(a, row, row + 8ull * a.Tk, key);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!(kept >> e & 1)) y[e] = 0;
            }
            p[r][c][0] = pack_halves<T>(y[0], y[1]);
            p[r][c][1] = pack_halves<T>(y[2], y[3]);
        }
    }
}

/* out and lse of a warp's queries; its rows of q in shared memory are free. */
template <typename T, int WIDTH, bool DROPS>
CUDA_FN void store_out(const struct attention_on_gpu &a, unsigned char *q_tile,
                       const struct softmax &x, const float out[ROWS][WIDTH / 8][4])
{
    const struct place at = queries_of(a, block_here());
    const int q0 = at.t0 + warp_row(), lane = (int)(thread_here() % 32);
    float factor[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const float total = quad_reduce<sum_of>(x.total[i / 2][i % 2]), top = x.top[i / 2][i % 2];
        const int tq = q0 + 8 * i + lane / 4;
        factor[i / 2][i % 2] = total == 0 ? 0.0f : (DROPS ? a.keep_scale : 1.0f) / total;
        if (a.lse && tq < a.Tq && lane % 4 == 0)
            a.lse[((int64_t)at.b * a.H + at.head) * a.Tq + tq] =
                total == 0 ? -INFINITY : fmaf(top, a.scale, logf(total));
    }
    uint16_t *to =
        (uint16_t *)a.new_out + ((int64_t)at.b * a.Tq + q0) * a.out_stride + at.head * a.D;
    __syncwarp(); /* the warp's own rows of q were read by all of its lanes */
    put_rows<T, WIDTH, 1, ROWS, WIDTH / 8>(q_tile, warp_row(), 0, out, factor);
    __syncwarp();
    copy_rows<WIDTH, 16 * ROWS>(q_tile, warp_row(), to, a.out_stride, a.Tq - q0, a.D);
}

template <typename T, int WIDTH, int KEYS, bool DROPS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_flash_forward_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    constexpr int COLS = KEYS / 8;
    CUDA_SHARED_TILES(mem);
    const shared_at q_tile = shared_address(mem), k_tile = q_tile + QUERIES * WIDTH * 2;
    const shared_at v_tile = k_tile + KEYS * WIDTH * 2;
    const struct place at = queries_of(a, blockIdx.x);
    const int n_keys = keys_seen(a, min(at.t0 + QUERIES, a.Tq) - 1);
    const int n_open = a.key_mask ? 0 : keys_seen(a, at.t0); /* that all of them see */

    const uint16_t *q =
        (const uint16_t *)a.q + at.b * a.q_batch + at.t0 * a.q_stride + at.head * a.D;
    start_tile<WIDTH, QUERIES, THREADS>(q_tile, q, (int)a.q_stride, a.Tq - at.t0, a.D, NULL);
    struct key_head *const head =
        (struct key_head *)(void *)(mem + (v_tile - q_tile) + KEYS * WIDTH * 2);
    if (threadIdx.x == 0) *head = key_head_of(a, at.b, at.head / a.group);
    __syncthreads();
    if (n_keys > 0) start_keys<WIDTH, KEYS, THREADS>(a, k_tile, head, false, 0);
    copy_async_commit();

    float out[ROWS][WIDTH / 8][4] = {};
    struct softmax x;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) x.top[i / 2][i % 2] = -INFINITY, x.total[i / 2][i % 2] = 0;

    for (int k0 = 0; k0 < n_keys; k0 += KEYS) {
        copy_async_wait<0>();
        __syncthreads(); /* the keys are here, and no thread reads the values before */
        start_keys<WIDTH, KEYS, THREADS>(a, v_tile, head, true, k0);
        copy_async_commit();
        float s[ROWS][COLS][4];
        multiply<T, WIDTH, ROWS, COLS>(s, lane_by_rows<WIDTH>(q_tile, warp_row()),
                                       lane_by_columns<WIDTH>(k_tile, 0));
        if (k0 + KEYS > n_open) mask_scores<COLS>(a, k0, s);
        copy_async_wait<0>();
        __syncthreads(); /* the values are here, and no thread reads the keys any more */
        if (k0 + KEYS < n_keys) {
            start_keys<WIDTH, KEYS, THREADS>(a, k_tile, head, false, k0 + KEYS);
            copy_async_commit();
        }
        float base[ROWS][2];
        uint32_t p[ROWS][COLS][2];
        raise_top<COLS, WIDTH>(a, &x, s, out, base);
        make_p<T, COLS, DROPS>(a, k0, &x, s, base, p);
        multiply_add<T, WIDTH, false, ROWS, COLS>(out, p, lane_by_rows<WIDTH>(v_tile, 0));
    }
    copy_async_wait<0>();
    __syncthreads(); /* where there are no keys, the queries have arrived */

    store_out<T, WIDTH, DROPS>(a, mem, x, out);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int TILES, bool DROPS>
static cz_status forward(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    constexpr int WIDTH = table[TILES].width;
    constexpr int KEYS = DROPS ? table[TILES].keys_with_dropout : table[TILES].keys;
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, QUERIES);
    return cuda_launch("attention forward", attention_flash_forward_kernel<T, WIDTH, KEYS, DROPS>,
                       n, THREADS, forward_shared(WIDTH, KEYS), stream, *a);
}

template <typename T, int... TILES>
static cz_status forward_of(const struct attention_on_gpu *a, struct dev_stream *stream,
                            std::integer_sequence<int, TILES...>)
{
    using launch_fn = cz_status (*)(const struct attention_on_gpu *, struct dev_stream *);
    static const launch_fn drops[] = {forward<T, TILES, true>...};
    static const launch_fn keeps[] = {forward<T, TILES, false>...};
    return (a->threshold ? drops : keeps)[a->tiles](a, stream);
}

cz_status attention_flash_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                  struct dev_stream *stream)
{
    const std::make_integer_sequence<int, N_TILES> all;
    return dtype == DTYPE_F16 ? forward_of<struct f16>(a, stream, all)
                              : forward_of<struct bf16>(a, stream, all);
}

int attention_flash_forward_tiles(const struct device_info *gpu, int D)
{
    for (int i = 0; i < N_TILES; i++)
        if (table[i].width == (D + 31) / 32 * 32 &&
            flash_fits(gpu, forward_shared(table[i].width, table[i].keys), BLOCKS))
            return i;
    return -1;
}
