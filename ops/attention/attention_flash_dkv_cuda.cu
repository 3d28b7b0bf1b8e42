/* The second pass of attention's backward on tensor cores: dk and dv.
 *
 * A block owns 128 keys of a key head and walks the queries that see any of them, for each of its
 * query heads: their sums meet in its registers, so nothing is added up in memory. Scores are made
 * with keys as rows: s[key][query]. Up to a width of 64, 4 warps own 32 keys each; above, 8 warps
 * own 16. The next tile of q and dout arrives while one is worked on. Limit: 8·Tq·Tk·D FLOP per
 * query head (half when causal) at the speed of mma.sync. */
#include "ops/attention/attention_flash_cuda_impl.h"

#define KEYS    128
#define QUERIES 64 /* of a tile */

template <int WIDTH> struct dkv {
    static constexpr int ROWS = WIDTH <= 64 ? 2 : 1; /* of 16 keys, per warp */
    static constexpr int WARPS = KEYS / (16 * ROWS), THREADS = 32 * WARPS;
    static constexpr int COLS = WIDTH == 64 ? 4 : 8; /* of 8 queries, in registers at a time */
    static constexpr int TILE = QUERIES * WIDTH * 2; /* bytes of q or dout */
    static constexpr int STAGE = 2 * TILE + 2 * QUERIES * 4; /* then lse and delta */
    static constexpr size_t SHARED = (size_t)2 * KEYS * WIDTH * 2 + 2 * STAGE;
};

/* Where the walk over tiles of queries stands: head, first query. */
struct step {
    int h, q0;
};

/* Queries [q0, q0 + QUERIES) of a head on their way into a stage. Returns what this thread has to
 * put there by put_row_value() when the stage is free: lse or delta of one query. */
template <int WIDTH>
CUDA_FN float start_queries(const struct attention_on_gpu &a, int b, const struct step &at,
                            shared_at stage)
{
    constexpr int THREADS = dkv<WIDTH>::THREADS;
    const int64_t q_at = b * a.q_batch + at.q0 * a.q_stride + at.h * a.D;
    const int64_t out_at = ((int64_t)b * a.Tq + at.q0) * a.out_stride + at.h * a.D;
    start_tile<WIDTH, QUERIES, THREADS>(stage, (const uint16_t *)a.q + q_at, a.q_stride,
                                        a.Tq - at.q0, a.D, NULL);
    start_tile<WIDTH, QUERIES, THREADS>(stage + dkv<WIDTH>::TILE, (const uint16_t *)a.dout + out_at,
                                        a.out_stride, a.Tq - at.q0, a.D, NULL);
    copy_async_commit();
    const int i = (int)threadIdx.x, tq = at.q0 + i % QUERIES;
    if (i >= 2 * QUERIES || tq >= a.Tq) return 0;
    return (i < QUERIES ? a.lse : a.delta)[((int64_t)b * a.H + at.h) * a.Tq + tq];
}

/* stats: QUERIES of lse in units of log 2, then delta. A row that sees no key has p = 0. */
CUDA_FN void put_row_value(float *stats, float x)
{
    const int i = (int)threadIdx.x;
    if (i < QUERIES)
        stats[i] = x == -INFINITY ? INFINITY : x * ATTENTION_LOG2E;
    else if (i < 2 * QUERIES)
        stats[i] = x;
}

/* Raw scores become p; those that causality hides become 0. lse: of the first column on. */
template <int ROWS, int COLS>
CUDA_FN void make_p(const struct attention_on_gpu &a, int q0, int k0, bool is_masked,
                    float s[ROWS][COLS][4], const float *lse)
{
    const int lane = (int)(thread_here() % 32);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float l[2];
        load_f32<2>(lse + 8 * c + 2 * (lane % 4), l);
#pragma unroll
        for (int e = 0; e < ROWS * 4; e++)
            s[e / 4][c][e % 4] = exp2_approx(fmaf(s[e / 4][c][e % 4], a.scale_log2, -l[e % 2]));
    }
    if (!is_masked) return;
    /* query q0 + 8c + 2t + e sees key k iff 8c + e ≥ k − future − q0 − 2t */
    const int first = k0 + lane / 4 - a.future - q0 - 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < ROWS * COLS * 4; e++) {
        const int r = e / (COLS * 4), c = e / 4 % COLS;
        if (8 * c + e % 2 < first + 16 * r + e % 4 / 2 * 8) s[r][c][e % 4] = 0;
    }
}

/* Which of a thread's elements dropout keeps: bits in the order of s. */
template <int ROWS, int COLS>
CUDA_FN uint32_t draw_kept(const struct attention_on_gpu &a, int b, int h, int q0, int k0)
{
    static_assert(ROWS * COLS * 4 <= 32, "one bit each");
    const int lane = (int)(thread_here() % 32);
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < ROWS * COLS; i++) {
        const int tq = q0 + i % COLS * 8 + 2 * (lane % 4), key = k0 + i / COLS * 16 + lane / 4;
        kept |= kept_by_keys(a, draw_row(a, b, h, tq), key) << 4 * i;
    }
    return kept;
}

/* p with dropped elements 0, as the left operand of the next product. */
template <typename T, int ROWS, int COLS, bool DROPS>
CUDA_FN void pack_kept(uint32_t operand[ROWS][COLS][2], const float p[ROWS][COLS][4], uint32_t kept)
{
#pragma unroll
    for (int i = 0; i < ROWS * COLS; i++) {
        float y[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[e] = DROPS && !(kept >> (4 * i + e) % 32 & 1) ? 0.0f : p[i / COLS][i % COLS][e];
        operand[i / COLS][i % COLS][0] = pack_halves<T>(y[0], y[1]);
        operand[i / COLS][i % COLS][1] = pack_halves<T>(y[2], y[3]);
    }
}

/* ds = p∘(dropout(dp) − delta), likewise. delta: of the first column on. */
template <typename T, int ROWS, int COLS, bool DROPS>
CUDA_FN void make_ds(const struct attention_on_gpu &a, const float p[ROWS][COLS][4],
                     const float dp[ROWS][COLS][4], const float *delta, uint32_t kept,
                     uint32_t operand[ROWS][COLS][2])
{
    const int lane = (int)(thread_here() % 32);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float d[2];
        load_f32<2>(delta + 8 * c + 2 * (lane % 4), d);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool is_kept = !DROPS || (kept >> (4 * (r * COLS + c) + e) % 32 & 1);
                const float keep = !DROPS ? 1.0f : is_kept ? a.keep_scale : 0.0f;
                y[e] = p[r][c][e] * fmaf(dp[r][c][e], keep, -d[e % 2]);
            }
            operand[r][c][0] = pack_halves<T>(y[0], y[1]);
            operand[r][c][1] = pack_halves<T>(y[2], y[3]);
        }
    }
}

/* One tile of queries joins dk and dv. */
template <typename T, int WIDTH, bool DROPS>
CUDA_FN void join_queries(const struct attention_on_gpu &a, int b, const struct step &at, int k0,
                          shared_at k_at, shared_at stage, const float *stats,
                          float dk[dkv<WIDTH>::ROWS][WIDTH / 8][4],
                          float dv[dkv<WIDTH>::ROWS][WIDTH / 8][4])
{
    using by = dkv<WIDTH>;
    constexpr int ROWS = by::ROWS, COLS = DROPS && ROWS == 2 ? 4 : by::COLS;
    const int row0 = 16 * ROWS * (int)(thread_here() / 32);
    const shared_at v_at = k_at + KEYS * WIDTH * 2;
    /* whether some query of the tile does not see some of this block's keys */
    const bool is_masked = a.causal && keys_seen(a, at.q0) < k0 + KEYS;
#pragma unroll 1
    for (int q = 0; q < QUERIES; q += 8 * COLS) {
        const shared_at q_tile = stage + (unsigned)(q * WIDTH * 2), dout_tile = q_tile + by::TILE;
        float s[ROWS][COLS][4], dp[ROWS][COLS][4];
        multiply<T, WIDTH, ROWS, COLS>(s, lane_by_rows<WIDTH>(k_at, row0),
                                       lane_by_columns<WIDTH>(q_tile, 0));
        make_p<ROWS, COLS>(a, at.q0 + q, k0 + row0, is_masked, s, stats + q);
        uint32_t kept = ~0u, operand[ROWS][COLS][2];
        if constexpr (DROPS) kept = draw_kept<ROWS, COLS>(a, b, at.h, at.q0 + q, k0 + row0);
        pack_kept<T, ROWS, COLS, DROPS>(operand, s, kept);
        multiply_add<T, WIDTH, ROWS, COLS>(dv, operand, lane_by_rows<WIDTH>(dout_tile, 0));
        multiply<T, WIDTH, ROWS, COLS>(dp, lane_by_rows<WIDTH>(v_at, row0),
                                       lane_by_columns<WIDTH>(dout_tile, 0));
        make_ds<T, ROWS, COLS, DROPS>(a, s, dp, stats + QUERIES + q, kept, operand);
        multiply_add<T, WIDTH, ROWS, COLS>(dk, operand, lane_by_rows<WIDTH>(q_tile, 0));
    }
}

template <typename T, int WIDTH, bool DROPS>
__global__ void __launch_bounds__(dkv<WIDTH>::THREADS, WIDTH <= 64 ? 2 : 1)
    attention_flash_dkv_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    using by = dkv<WIDTH>;
    constexpr int ROWS = by::ROWS;
    CUDA_DYNAMIC_SHARED(unsigned char, mem);
    const shared_at k_tile = shared_address(mem), v_tile = k_tile + KEYS * WIDTH * 2;
    unsigned char *const stages = mem + 2 * KEYS * WIDTH * 2;
    const shared_at stages_at = v_tile + KEYS * WIDTH * 2;
    const int n_tiles = (a.Tk + KEYS - 1) / KEYS; /* the first are the longest when causal */
    const int k0 = (int)blockIdx.x % n_tiles * KEYS;
    const int g = (int)blockIdx.x / n_tiles % a.G, b = (int)blockIdx.x / n_tiles / a.G;
    const int64_t k_at = b * a.k_batch + k0 * a.k_stride + g * a.D;
    const int64_t v_at = b * a.v_batch + k0 * a.v_stride + g * a.D;
    const uint8_t *mask = a.key_mask ? a.key_mask + (int64_t)b * a.Tk + k0 : NULL;
    start_tile<WIDTH, KEYS, by::THREADS>(k_tile, (const uint16_t *)a.k + k_at, a.k_stride,
                                         a.Tk - k0, a.D, mask);
    start_tile<WIDTH, KEYS, by::THREADS>(v_tile, (const uint16_t *)a.v + v_at, a.v_stride,
                                         a.Tk - k0, a.D, mask);
    copy_async_commit();

    const int first = first_query(a, k0) / QUERIES * QUERIES, end = (g + 1) * a.group;
    struct step at = {first < a.Tq ? g * a.group : end, first};
    float value = 0;
    if (at.h < end) value = start_queries<WIDTH>(a, b, at, stages_at);
    put_row_value((float *)(void *)(stages + 2 * by::TILE), value);
    float dk[ROWS][WIDTH / 8][4] = {}, dv[ROWS][WIDTH / 8][4] = {};
    for (unsigned stage = 0; at.h < end; stage ^= by::STAGE) {
        copy_async_wait<0>();
        __syncthreads(); /* this tile is here, and nobody reads the other stage any more */
        struct step next = {at.h, at.q0 + QUERIES};
        if (next.q0 >= a.Tq) next.q0 = first, next.h++;
        const unsigned other = stage ^ by::STAGE;
        if (next.h < end) value = start_queries<WIDTH>(a, b, next, stages_at + other);
        join_queries<T, WIDTH, DROPS>(a, b, at, k0, k_tile, stages_at + stage,
                                      (float *)(void *)(stages + stage + 2 * by::TILE), dk, dv);
        put_row_value((float *)(void *)(stages + other + 2 * by::TILE), value);
        at = next;
    }
    copy_async_wait<0>();
    __syncthreads(); /* keys and values that no query sees have arrived too */

    /* Rows of keys that are masked out are whatever zeros gave: they have no gradient. */
    const int row0 = 16 * ROWS * ((int)threadIdx.x / 32), n = a.Tk - k0 - row0;
    float k_factor[ROWS][2], v_factor[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        const int row = row0 + 8 * i + (int)threadIdx.x % 32 / 4;
        const bool is = k0 + row < a.Tk && (!mask || mask[row]);
        k_factor[i / 2][i % 2] = is ? a.scale : 0.0f;
        v_factor[i / 2][i % 2] = is ? DROPS ? a.keep_scale : 1.0f : 0.0f;
    }
    store_rows<T, WIDTH, ROWS>(mem, row0, dk, k_factor, (uint16_t *)a.dk + k_at + row0 * a.k_stride,
                               a.k_stride, n, a.D);
    store_rows<T, WIDTH, ROWS>(mem + KEYS * WIDTH * 2, row0, dv, v_factor,
                               (uint16_t *)a.dv + v_at + row0 * a.v_stride, a.v_stride, n, a.D);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH, bool DROPS>
static cz_status backward_k(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)a->B * a->G * cuda_blocks((size_t)a->Tk, KEYS);
    return cuda_launch("attention dk, dv", attention_flash_dkv_kernel<T, WIDTH, DROPS>, n,
                       dkv<WIDTH>::THREADS, dkv<WIDTH>::SHARED, stream, *a);
}

template <typename T>
static cz_status backward_k_of(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    FLASH_BY_WIDTH(a->D, WIDTH, {
        return a->threshold ? backward_k<T, WIDTH, true>(a, stream)
                            : backward_k<T, WIDTH, false>(a, stream);
    });
}

cz_status attention_flash_backward_k(const struct attention_on_gpu *a, enum dtype dtype,
                                     struct dev_stream *stream)
{
    if (dtype == DTYPE_F16) return backward_k_of<struct f16>(a, stream);
    return backward_k_of<struct bf16>(a, stream);
}

size_t attention_flash_backward_k_shared(int D)
{
    FLASH_BY_WIDTH(D, WIDTH, return (dkv<WIDTH>::SHARED));
}
