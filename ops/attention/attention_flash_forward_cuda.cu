/* Attention's forward pass on tensor cores.
 *
 * A block of 4 warps owns 128 queries of a head, 32 per warp, and walks the keys that any of them
 * sees. While a tile of keys is multiplied its values arrive, and while those are multiplied the
 * next keys do. Limit: 4·Tq·Tk·D FLOP per head (half when causal) at the speed of mma.sync. */
#include "ops/attention/attention_flash_cuda_impl.h"

#define WARPS   4
#define THREADS (32 * WARPS)
#define ROWS    2 /* of 16 queries, per warp */
#define QUERIES (16 * ROWS * WARPS)

/* Keys of a tile: what the registers hold of s (ROWS·KEYS/2) beside the sums (ROWS·WIDTH/2). */
template <int WIDTH, bool DROPS> static __host__ __device__ constexpr int forward_keys()
{
    return WIDTH <= 64 && !DROPS ? 128 : 64;
}

template <int WIDTH, bool DROPS> static __host__ __device__ constexpr size_t forward_shared()
{
    return (size_t)(QUERIES + 2 * forward_keys<WIDTH, DROPS>()) * WIDTH * 2;
}

/* The state of the online softmax of a thread's rows: the largest raw score, and this lane's part
 * of Σ exp2((s − top)·scale). */
struct softmax {
    float top[ROWS][2], total[ROWS][2];
};

/* s of one tile becomes p; sums so far fade with the change of the largest score. */
template <int COLS, int WIDTH>
CUDA_FN void join_softmax(struct softmax *x, float s[ROWS][COLS][4], float out[ROWS][WIDTH / 8][4],
                          float scale)
{
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int r = i / 2, half = i % 2;
        float top = x->top[r][half], total = 0;
#pragma unroll
        for (int c = 0; c < COLS; c++)
            top = fmaxf(top, fmaxf(s[r][c][2 * half], s[r][c][2 * half + 1]));
        top = quad_reduce<max_of>(top);
        const float base = top == -INFINITY ? 0.0f : top * scale;
        const float fade = exp2_approx(fmaf(x->top[r][half], scale, -base));
        x->top[r][half] = top;
#pragma unroll
        for (int e = 0; e < COLS * 2; e++) {
            float *p = &s[r][e / 2][2 * half + e % 2];
            *p = exp2_approx(fmaf(*p, scale, -base));
            total += *p;
        }
        x->total[r][half] = fmaf(x->total[r][half], fade, total);
#pragma unroll
        for (int c = 0; c < WIDTH / 8; c++)
            out[r][c][2 * half] *= fade, out[r][c][2 * half + 1] *= fade;
    }
}

/* Scores of keys that a row does not see become −infinity. */
template <int COLS>
CUDA_FN void mask_scores(const struct attention_on_gpu &a, int b, int q0, int k0,
                         float s[ROWS][COLS][4])
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t word[COLS / 4];
    visible_keys<COLS * 8>(word, a, b, k0);
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

/* p of dropped elements becomes 0; what is kept is scaled at the end. */
template <int COLS>
CUDA_FN void drop_scores(const struct attention_on_gpu &a, int b, int h, int q0, int k0,
                         float s[ROWS][COLS][4])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint64_t row = draw_row(a, b, h, q0 + 16 * r + lane / 4), row8 = row + 8ull * a.Tk;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const unsigned kept = kept_by_queries(a, row, row8, k0 + 8 * c + 2 * (lane % 4));
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(kept >> e & 1)) s[r][c][e] = 0;
        }
    }
}

template <typename T, int WIDTH, bool DROPS>
__global__ void __launch_bounds__(THREADS, 2)
    attention_flash_forward_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    constexpr int KEYS = forward_keys<WIDTH, DROPS>(), COLS = KEYS / 8;
    CUDA_DYNAMIC_SHARED(unsigned char, mem);
    const shared_at q_tile = shared_address(mem), k_tile = q_tile + QUERIES * WIDTH * 2;
    const shared_at v_tile = k_tile + KEYS * WIDTH * 2;
    const int n_tiles = (a.Tq + QUERIES - 1) / QUERIES, warp = (int)threadIdx.x / 32;
    int tile = (int)blockIdx.x % n_tiles;
    if (a.causal) tile = n_tiles - 1 - tile; /* the longest first */
    const int h = (int)blockIdx.x / n_tiles % a.H, b = (int)blockIdx.x / n_tiles / a.H;
    const int block_q0 = tile * QUERIES, q0 = block_q0 + 16 * ROWS * warp;
    const int n_keys = keys_seen(a, min(block_q0 + QUERIES, a.Tq) - 1);
    const int n_open = a.key_mask ? 0 : keys_seen(a, block_q0); /* that all of them see */

    const int g = h / a.group;
    const uint16_t *q = (const uint16_t *)a.q + b * a.q_batch + block_q0 * a.q_stride + h * a.D;
    const uint16_t *k = (const uint16_t *)a.k + b * a.k_batch + g * a.D;
    const uint16_t *v = (const uint16_t *)a.v + b * a.v_batch + g * a.D;
    const uint8_t *mask = a.key_mask ? a.key_mask + (int64_t)b * a.Tk : NULL;
    start_tile<WIDTH, QUERIES, THREADS>(q_tile, q, a.q_stride, a.Tq - block_q0, a.D, NULL);
    if (n_keys > 0) start_tile<WIDTH, KEYS, THREADS>(k_tile, k, a.k_stride, a.Tk, a.D, mask);
    copy_async_commit();

    const float scale = a.scale * ATTENTION_LOG2E;
    float out[ROWS][WIDTH / 8][4] = {};
    struct softmax x;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) x.top[i / 2][i % 2] = -INFINITY, x.total[i / 2][i % 2] = 0;

    for (int k0 = 0; k0 < n_keys; k0 += KEYS) {
        copy_async_wait<0>();
        __syncthreads(); /* the keys are here, and nobody reads the values before */
        start_tile<WIDTH, KEYS, THREADS>(v_tile, v + k0 * a.v_stride, a.v_stride, a.Tk - k0, a.D,
                                         mask ? mask + k0 : NULL);
        copy_async_commit();
        float s[ROWS][COLS][4];
        multiply<T, WIDTH, ROWS, COLS>(s, lane_by_rows<WIDTH>(q_tile, 16 * ROWS * warp),
                                       lane_by_columns<WIDTH>(k_tile, 0));
        if (k0 + KEYS > n_open) mask_scores<COLS>(a, b, q0, k0, s);
        copy_async_wait<0>();
        __syncthreads(); /* the values are here, and nobody reads the keys any more */
        if (k0 + KEYS < n_keys) {
            const int k1 = k0 + KEYS;
            start_tile<WIDTH, KEYS, THREADS>(k_tile, k + k1 * a.k_stride, a.k_stride, a.Tk - k1,
                                             a.D, mask ? mask + k1 : NULL);
            copy_async_commit();
        }
        join_softmax<COLS, WIDTH>(&x, s, out, scale);
        if (DROPS) drop_scores<COLS>(a, b, h, q0, k0, s);
        multiply_add<T, WIDTH, ROWS, COLS>(out, s, lane_by_rows<WIDTH>(v_tile, 0));
    }
    copy_async_wait<0>();

    float factor[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const float total = quad_reduce<sum_of>(x.total[i / 2][i % 2]), top = x.top[i / 2][i % 2];
        const int tq = q0 + 8 * i + (int)threadIdx.x % 32 / 4;
        factor[i / 2][i % 2] = total == 0 ? 0.0f : (DROPS ? a.keep_scale : 1.0f) / total;
        if (a.lse && tq < a.Tq && threadIdx.x % 4 == 0)
            a.lse[((int64_t)b * a.H + h) * a.Tq + tq] =
                total == 0 ? -INFINITY : fmaf(top, a.scale, logf(total));
    }
    uint16_t *to = (uint16_t *)a.new_out + ((int64_t)b * a.Tq + q0) * a.out_stride + h * a.D;
    store_rows<T, WIDTH, ROWS>(mem, 16 * ROWS * warp, out, factor, to, a.out_stride, a.Tq - q0,
                               a.D);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH, bool DROPS>
static cz_status forward(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, QUERIES);
    return cuda_launch("attention forward", attention_flash_forward_kernel<T, WIDTH, DROPS>, n,
                       THREADS, forward_shared<WIDTH, DROPS>(), stream, *a);
}

template <typename T>
static cz_status forward_of(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    FLASH_BY_WIDTH(a->D, WIDTH, {
        return a->threshold ? forward<T, WIDTH, true>(a, stream)
                            : forward<T, WIDTH, false>(a, stream);
    });
}

cz_status attention_flash_forward(const struct attention_on_gpu *a, enum dtype dtype,
                                  struct dev_stream *stream)
{
    if (dtype == DTYPE_F16) return forward_of<struct f16>(a, stream);
    return forward_of<struct bf16>(a, stream);
}

size_t attention_flash_forward_shared(int D)
{
    FLASH_BY_WIDTH(D, WIDTH, return (forward_shared<WIDTH, false>()));
}
