/* The first pass of attention's backward on tensor cores: dq, and delta for the second pass.
 *
 * A block of 4 warps owns 128 queries of a head, 32 per warp, and walks the keys that any of them
 * sees; the next tile of keys and values arrives while one is worked on. Limit: 6·Tq·Tk·D FLOP per
 * head (half when causal) at the speed of mma.sync. */
#include "ops/attention/attention_flash_cuda_impl.h"

#define WARPS   4
#define THREADS (32 * WARPS)
#define ROWS    2 /* of 16 queries, per warp */
#define QUERIES (16 * ROWS * WARPS)

/* Keys of a tile: registers hold p and dp of ROWS·KEYS/2 each beside the sums (ROWS·WIDTH/2). */
template <int WIDTH> static __host__ __device__ constexpr int dq_keys()
{
    return WIDTH <= 64 ? 64 : 32;
}

template <int WIDTH> static __host__ __device__ constexpr size_t dq_shared()
{
    return (size_t)(2 * QUERIES + 4 * dq_keys<WIDTH>()) * WIDTH * 2 + sizeof(struct key_head);
}

CUDA_FN struct place queries_of(const struct attention_on_gpu &a, unsigned block)
{
    return place_of<QUERIES>(block, a.H, a.Tq, a.causal); /* the longest first */
}

/* The first query of a thread's warp, counted from the block's. */
CUDA_FN int warp_row(void)
{
    return (int)(thread_here() / 32) * 16 * ROWS;
}

/* delta of a thread's rows, each summed by the four lanes that share it, and left for the second
 * pass. */
template <typename T>
CUDA_FN void make_delta(const struct attention_on_gpu &a, int b, int h, int q0,
                        float delta[ROWS][2])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int tq = q0 + 8 * i + lane / 4;
        const int64_t at = ((int64_t)b * a.Tq + tq) * a.out_stride + (int64_t)h * a.D;
        float sum = 0;
        for (int d = lane % 4 * 8; tq < a.Tq && d < a.D; d += 32) {
            float x[8], y[8];
            load_f32<8>((const T *)a.out + at + d, x);
            load_f32<8>((const T *)a.dout + at + d, y);
#pragma unroll
            for (int e = 0; e < 8; e++) sum = fmaf(x[e], y[e], sum);
        }
        delta[i / 2][i % 2] = quad_reduce<sum_of>(sum);
        if (tq < a.Tq && lane % 4 == 0)
            a.delta[((int64_t)b * a.H + h) * a.Tq + tq] = delta[i / 2][i % 2];
    }
}

/* Raw scores become p; `lse` is in units of log 2. */
template <int COLS>
CUDA_FN void make_p(const struct attention_on_gpu &a, int k0, bool is_masked,
                    float s[ROWS][COLS][4], const float lse[ROWS][2])
{
#pragma unroll
    for (int e = 0; e < ROWS * COLS * 4; e++) {
        float *p = &s[e / (COLS * 4)][e / 4 % COLS][e % 4];
        *p = exp2_approx(fmaf(*p, a.scale_log2, -lse[e / (COLS * 4)][e % 4 / 2]));
    }
    if (!is_masked) return;
    const struct place at = queries_of(a, block_here());
    const int q0 = at.t0 + warp_row();
    uint32_t word[COLS / 4];
    visible_keys<COLS * 8>(word, a, at.b, k0);
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int n_seen = keys_seen(a, q0 + 8 * i + (int)threadIdx.x % 32 / 4);
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const uint32_t seen = lane_sees(word[c / 4], k0 + 8 * c, n_seen);
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(seen >> (e / 2 * 8 + e % 2) & 1))
                    s[i / 2][c + e / 2][2 * (i % 2) + e % 2] = 0;
        }
    }
}

/* ds = p∘(dropout(dp) − delta), as the left operand of the next product. */
template <typename T, int COLS, bool DROPS>
CUDA_FN void make_ds(const struct attention_on_gpu &a, int k0, const float p[ROWS][COLS][4],
                     const float dp[ROWS][COLS][4], const float delta[ROWS][2],
                     uint32_t ds[ROWS][COLS][2])
{
    const struct place at = DROPS ? queries_of(a, block_here()) : place();
    const int q0 = at.t0 + warp_row(), lane = (int)(thread_here() % 32);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint64_t row = draw_row(a, at.b, at.head, q0 + 16 * r + lane / 4);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int key = k0 + 8 * c + 2 * (lane % 4);
            const unsigned kept = DROPS ? kept_by_queries(a, row, row + 8ull * a.Tk, key) : 15;
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float keep = !DROPS ? 1.0f : kept >> e & 1 ? a.keep_scale : 0.0f;
                y[e] = p[r][c][e] * fmaf(dp[r][c][e], keep, -delta[r][e / 2]);
            }
            ds[r][c][0] = pack_halves<T>(y[0], y[1]);
            ds[r][c][1] = pack_halves<T>(y[2], y[3]);
        }
    }
}

/* dq of a warp's queries; its rows of q in shared memory are free. */
template <typename T, int WIDTH>
CUDA_FN void store_dq(const struct attention_on_gpu &a, unsigned char *q_tile,
                      const float dq[ROWS][WIDTH / 8][4])
{
    const struct place at = queries_of(a, block_here());
    const int q0 = at.t0 + warp_row();
    float factor[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) factor[i / 2][i % 2] = a.scale;
    uint16_t *to = (uint16_t *)a.dq + at.b * a.q_batch + q0 * a.q_stride + at.head * a.D;
    store_rows<T, WIDTH, ROWS>(q_tile, warp_row(), dq, factor, to, a.q_stride, a.Tq - q0, a.D);
}

template <typename T, int WIDTH, bool DROPS>
__global__ void __launch_bounds__(THREADS, 2)
    attention_flash_dq_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    constexpr int KEYS = dq_keys<WIDTH>(), COLS = KEYS / 8, STAGE = 2 * KEYS * WIDTH * 2;
    CUDA_DYNAMIC_SHARED(unsigned char, mem);
    const shared_at q_tile = shared_address(mem), dout_tile = q_tile + QUERIES * WIDTH * 2;
    const shared_at first_stage = dout_tile + QUERIES * WIDTH * 2; /* keys, then values */
    const struct place at = queries_of(a, blockIdx.x);
    const int n_keys = keys_seen(a, min(at.t0 + QUERIES, a.Tq) - 1), q0 = at.t0 + warp_row();
    const int n_open = a.key_mask ? 0 : keys_seen(a, at.t0); /* that all of them see */
    struct key_head *const head =
        (struct key_head *)(void *)(mem + (first_stage - q_tile) + 2 * STAGE);
    if (threadIdx.x == 0) *head = key_head_of(a, at.b, at.head / a.group);
    __syncthreads();

    const int64_t q_at = at.b * a.q_batch + at.t0 * a.q_stride + at.head * a.D;
    const int64_t out_at = ((int64_t)at.b * a.Tq + at.t0) * a.out_stride + at.head * a.D;
    start_tile<WIDTH, QUERIES, THREADS>(q_tile, (const uint16_t *)a.q + q_at, a.q_stride,
                                        a.Tq - at.t0, a.D, NULL);
    start_tile<WIDTH, QUERIES, THREADS>(dout_tile, (const uint16_t *)a.dout + out_at, a.out_stride,
                                        a.Tq - at.t0, a.D, NULL);
    if (n_keys > 0) {
        start_keys<WIDTH, KEYS, THREADS>(a, first_stage, head, false, 0);
        start_keys<WIDTH, KEYS, THREADS>(a, first_stage + STAGE / 2, head, true, 0);
    }
    copy_async_commit();

    float dq[ROWS][WIDTH / 8][4] = {}, delta[ROWS][2], lse[ROWS][2];
    make_delta<T>(a, at.b, at.head, q0, delta);
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int tq = q0 + 8 * i + (int)threadIdx.x % 32 / 4;
        const float x = tq < a.Tq ? a.lse[((int64_t)at.b * a.H + at.head) * a.Tq + tq] : 0.0f;
        lse[i / 2][i % 2] = x == -INFINITY ? INFINITY : x * ATTENTION_LOG2E; /* p = 0 */
    }

    for (int k0 = 0, stage = 0; k0 < n_keys; k0 += KEYS, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads(); /* this tile is here, and nobody reads the other stage any more */
        if (k0 + KEYS < n_keys) {
            const shared_at next = first_stage + (unsigned)((stage ^ 1) * STAGE);
            start_keys<WIDTH, KEYS, THREADS>(a, next, head, false, k0 + KEYS);
            start_keys<WIDTH, KEYS, THREADS>(a, next + STAGE / 2, head, true, k0 + KEYS);
            copy_async_commit();
        }
        const shared_at k_tile = first_stage + (unsigned)(stage * STAGE);
        float s[ROWS][COLS][4], dp[ROWS][COLS][4];
        multiply<T, WIDTH, ROWS, COLS>(s, lane_by_rows<WIDTH>(q_tile, warp_row()),
                                       lane_by_columns<WIDTH>(k_tile, 0));
        make_p<COLS>(a, k0, k0 + KEYS > n_open, s, lse);
        multiply<T, WIDTH, ROWS, COLS>(dp, lane_by_rows<WIDTH>(dout_tile, warp_row()),
                                       lane_by_columns<WIDTH>(k_tile + STAGE / 2, 0));
        uint32_t ds[ROWS][COLS][2];
        make_ds<T, COLS, DROPS>(a, k0, s, dp, delta, ds);
        multiply_add<T, WIDTH, ROWS, COLS>(dq, ds, lane_by_rows<WIDTH>(k_tile, 0));
    }
    copy_async_wait<0>();
    __syncthreads(); /* where there are no keys, the queries have arrived */
    store_dq<T, WIDTH>(a, mem, dq);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH, bool DROPS>
static cz_status backward_q(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, QUERIES);
    return cuda_launch("attention dq", attention_flash_dq_kernel<T, WIDTH, DROPS>, n, THREADS,
                       dq_shared<WIDTH>(), stream, *a);
}

template <typename T>
static cz_status backward_q_of(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    FLASH_BY_WIDTH(a->D, WIDTH, {
        return a->threshold ? backward_q<T, WIDTH, true>(a, stream)
                            : backward_q<T, WIDTH, false>(a, stream);
    });
}

cz_status attention_flash_backward_q(const struct attention_on_gpu *a, enum dtype dtype,
                                     struct dev_stream *stream)
{
    if (dtype == DTYPE_F16) return backward_q_of<struct f16>(a, stream);
    return backward_q_of<struct bf16>(a, stream);
}

size_t attention_flash_backward_q_shared(int D)
{
    FLASH_BY_WIDTH(D, WIDTH, return (dq_shared<WIDTH>()));
}
