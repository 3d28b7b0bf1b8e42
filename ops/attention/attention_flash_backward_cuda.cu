/* Attention's backward on tensor cores: delta in a kernel of its own, then dq, dk and dv in one.
 *
 * A block owns 128 keys of a key head and walks the queries that see any of them, a tile of 64 or
 * 32 at a time, for each of its query heads. dk and dv stay in its registers. Its part of dq is
 * added to those of the blocks of earlier keys, which are in the workspace in fp32: blocks take
 * turns (turns.h), so the order of the sum is that of the keys, and the last one rounds it to dq.
 * The turn of a tile comes soon enough without waiting where blocks begin later by a step or two
 * for each tile of keys; see task_of().
 *
 * Scores are made with keys as rows, s[key][query], 16 or 32 keys per warp, so that p and ds are
 * already laid out as left operands of dv = p·dout and dk = ds·q. Where two warps share 32 keys
 * each makes the scores of half of the queries and half of the columns of dk and dv, and p passes
 * through shared memory as ds does anyway, for dq = dsᵀ·k.
 *
 * Queries are added up from the last to the first, 16 at a time, whatever a tile holds: results
 * have the same bits for all tiles of a width.
 *
 * Limit: 10·Tq·Tk·D FLOP per head (half when causal) at the speed of mma.sync. */
#include "device/cuda/turns.h"
#include "ops/attention/attention_flash_cuda_impl.h"

#include <utility>

#define KEYS BACKWARD_KEYS
#define COLS 4 /* of 8 queries, whose scores a warp has in registers at a time */

/* How a block cuts up its work. Of a width a device takes the first row of which as many blocks fit
 * on a multiprocessor as are meant to run there at a time, so that some work while others wait.
 *
 * The second rows are for 100 KiB of shared memory a multiprocessor (compute capability 8.6, 8.9,
 * 12.0). Tensor cores take two to four times as long there as on 8.0 and shared memory does not, so
 * warps may well read more of it. That 8 warps have 16 keys each, instead of 32 shared by two,
 * saves the space for p; and as no thread reads q and dout any more once ds is there, the next tile
 * comes in their place while dq is made, and one stage will do. All 128 keys stay: per tile of keys
 * all sums of dq are read and written, in an L2 cache that may be as small as 6 MB, and smaller
 * tiles of queries leave the sums of fewer of them between one block's turn and the next one's. */
static constexpr struct tiles {
    int width;
    int queries; /* of a tile */
    int rows;    /* of 16 keys, per warp */
    int sharing; /* warps of the same keys */
    int stages;  /* tiles of q and dout in shared memory */
    int blocks;  /* of a multiprocessor */
} table[] = {
    {32, 64, 2, 1, 2, 2},  /*  49792 bytes of shared memory a block */
    {64, 64, 2, 1, 2, 2},  /*  82560 */
    {64, 32, 2, 1, 1, 2},  /*  49536 */
    {96, 64, 2, 2, 2, 1},  /* 131712 */
    {96, 64, 1, 1, 1, 1},  /*  90752 */
    {128, 64, 2, 2, 2, 1}, /* 164480 */
    {128, 32, 1, 1, 1, 1}, /*  90496 */
};
#define N_TILES ((int)CZ_ARRAY_LEN(table))

template <int TILES> struct by {
    static constexpr int WIDTH = table[TILES].width, QUERIES = table[TILES].queries;
    static constexpr int ROWS = table[TILES].rows, SHARING = table[TILES].sharing;
    static constexpr int STAGES = table[TILES].stages, BLOCKS = table[TILES].blocks;
    static constexpr int WARPS = KEYS / (16 * ROWS) * SHARING, THREADS = 32 * WARPS;
    static constexpr int K_COLS = WIDTH / 8 / SHARING; /* of 8 columns of dk and dv, per warp */
    /* dq of a tile: warps by columns, then by queries */
    static constexpr int Q_PARTS = WIDTH == 128 ? 4 : 2, Q_COLS = WIDTH / 8 / Q_PARTS;
    static constexpr int Q_ROWS = QUERIES / 16 * Q_PARTS / WARPS;
    /* shared memory in bytes: keys, values; stages of q and dout; ds, p; lse and delta */
    static constexpr int K_TILE = KEYS * WIDTH * 2, Q_TILE = QUERIES * WIDTH * 2;
    static constexpr int STAGE = 2 * Q_TILE, PAIRS = KEYS * QUERIES * 2;
    static constexpr unsigned NEXT = STAGES > 1 ? STAGE : 0; /* stage ^ NEXT: of the next tile */
    static constexpr int STAGES_AT = 2 * K_TILE, DS_AT = STAGES_AT + STAGES * STAGE,
                         P_AT = DS_AT + PAIRS;
    static constexpr int STATS_AT = SHARING == 1 ? P_AT : P_AT + PAIRS;
    static constexpr int TASK_AT = STATS_AT + 2 * QUERIES * 4;
    static constexpr size_t SHARED = TASK_AT + 128;
    static constexpr int SUMS = Q_ROWS * Q_COLS; /* of 4 elements of dq, per thread */
    static_assert(Q_ROWS * WARPS == QUERIES / 16 * Q_PARTS && THREADS >= 2 * QUERIES,
                  "warps share dq and the statistics of a tile out");
    static_assert(STAGES == 2 || SHARING == 1, "p and ds of all queries meet dout and q later");
};

/* ---- delta -------------------------------------------------------------------------------------
 */

#define DELTA_THREADS 128
#define DELTA_LANES   8 /* of a row */

/* delta of all rows; and turns begin at 0. */
template <typename T>
__global__ void __launch_bounds__(DELTA_THREADS)
    attention_flash_delta_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    const int64_t thread = (int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x;
    const int64_t row = thread / DELTA_LANES, bt = row / a.H;
    const bool is = row < (int64_t)a.B * a.Tq * a.H;
    const int h = (int)(row % a.H);
    const int64_t at = bt * a.out_stride + (int64_t)h * a.D;
    float sum = 0;
    for (int d = (int)threadIdx.x % DELTA_LANES * 8; is && d < a.D; d += DELTA_LANES * 8) {
        float x[8], y[8];
        load_f32<8>((const T *)a.out + at + d, x);
        load_f32<8>((const T *)a.dout + at + d, y);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(x[e], y[e], sum);
    }
#pragma unroll
    for (int lane = 1; lane < DELTA_LANES; lane *= 2)
        sum += __shfl_xor_sync(CUDA_ALL_LANES, sum, lane);
    if (is && threadIdx.x % DELTA_LANES == 0)
        a.delta[(bt / a.Tq * a.H + h) * a.Tq + bt % a.Tq] = sum;
    if (thread < a.n_turns) a.turns[thread] = 0;
}

/* ---- p and ds ----------------------------------------------------------------------------------
 */

/* Queries [q0, q0 + QUERIES) of a head on their way into a stage. */
template <class by>
CUDA_FN void start_queries(const struct attention_on_gpu &a, int b, const struct step &at,
                           shared_at stage)
{
    const int q_stride = (int)a.q_stride, out_stride = (int)a.out_stride;
    const int64_t q_at = b * a.q_batch + (int64_t)at.q0 * q_stride + at.h * a.D;
    const int64_t out_at = ((int64_t)b * a.Tq + at.q0) * out_stride + at.h * a.D;
    start_tile<by::WIDTH, by::QUERIES, by::THREADS>(stage, (const uint16_t *)a.q + q_at, q_stride,
                                                    a.Tq - at.q0, a.D, NULL);
    start_tile<by::WIDTH, by::QUERIES, by::THREADS>(
        stage + by::Q_TILE, (const uint16_t *)a.dout + out_at, out_stride, a.Tq - at.q0, a.D, NULL);
    copy_async_commit();
}

/* Which of a thread's elements dropout keeps: bits in the order of s. */
template <int ROWS>
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
template <typename T, bool DROPS, int ROWS>
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
template <typename T, bool DROPS, int ROWS>
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

/* A left operand into a tile of (KEYS, QUERIES), queries from q on, a multiple of 8·COLS. Eight
 * rows of four lanes fall on all 32 banks. */
template <int QUERIES, int ROWS>
CUDA_FN void put_operand(shared_at tile, int row0, int q, const uint32_t operand[ROWS][COLS][2])
{
    const unsigned lane = thread_here() % 32;
    const shared_at begin =
        lane_begin<QUERIES>(tile, (unsigned)row0 + lane / 4, (unsigned)q / 8) + 4 * (lane % 4);
#pragma unroll
    for (int i = 0; i < ROWS * 2 * COLS; i++)
        store_word((begin ^ (unsigned)(i % COLS * 16)) + (unsigned)(i / COLS * 8 * QUERIES * 2),
                   operand[i / COLS / 2][i % COLS][i / COLS % 2]);
}

/* ---- a tile of queries -------------------------------------------------------------------------
 */

/* Which keys a thread's warp has, counted from the block's, and which share of them. */
template <class by> CUDA_FN int warp_row(void)
{
    return 16 * by::ROWS * (int)(thread_here() / 32 / by::SHARING);
}

template <class by> CUDA_FN int warp_part(void)
{
    return (int)(thread_here() / 32 % by::SHARING);
}

/* p and ds of the warp's keys and its share of the queries, left in shared memory. A warp that has
 * all of the queries adds them to dv and dk at once. */
template <typename T, class by, bool DROPS>
CUDA_FN void make_pairs(const struct attention_on_gpu &a, const volatile struct task *task,
                        const struct step &at, unsigned there, unsigned char *mem, unsigned stage,
                        float dk[by::ROWS][by::K_COLS][4], float dv[by::ROWS][by::K_COLS][4])
{
    constexpr int WIDTH = by::WIDTH, QUERIES = by::QUERIES, ROWS = by::ROWS;
    const shared_at base = shared_address(mem), stage_at = base + by::STAGES_AT + stage;
    const float *const stats = (const float *)(const void *)(mem + by::STATS_AT);
    const int row0 = warp_row<by>(), k0 = task->k0;
    /* whether some pair of the tile does not see each other */
    const bool is_masked =
        k0 + KEYS > a.Tk || a.key_mask || (a.causal && keys_seen(a, at.q0) < k0 + KEYS);
    constexpr int SHARE = QUERIES / by::SHARING, AT_ONCE = 8 * COLS;
    const int first = warp_part<by>() * SHARE;
#pragma unroll 1
    for (int q = first + SHARE - AT_ONCE; q >= first; q -= AT_ONCE) {
        const shared_at q_tile = stage_at + (unsigned)(q * WIDTH * 2);
        const shared_at dout_tile = q_tile + by::Q_TILE;
        float s[ROWS][COLS][4], dp[ROWS][COLS][4];
        multiply<T, WIDTH, ROWS, COLS>(s, lane_by_rows<WIDTH>(base, row0),
                                       lane_by_columns<WIDTH>(q_tile, 0));
        make_p_of_keys<ROWS, COLS>(a, at.q0 + q, k0 + row0, is_masked, there, s, stats + q);
        uint32_t kept = ~0u, operand[ROWS][COLS][2];
        if constexpr (DROPS) kept = draw_kept<ROWS>(a, task->b, at.h, at.q0 + q, k0 + row0);
        pack_kept<T, DROPS, ROWS>(operand, s, kept);
        if constexpr (by::SHARING == 1)
            multiply_add<T, WIDTH, true, ROWS, COLS>(dv, operand,
                                                     lane_by_rows<WIDTH>(dout_tile, 0));
        else
            put_operand<QUERIES, ROWS>(base + by::P_AT, row0, q, operand);
        multiply<T, WIDTH, ROWS, COLS>(dp, lane_by_rows<WIDTH>(base + by::K_TILE, row0),
                                       lane_by_columns<WIDTH>(dout_tile, 0));
        make_ds<T, DROPS, ROWS>(a, s, dp, stats + QUERIES + q, kept, operand);
        put_operand<QUERIES, ROWS>(base + by::DS_AT, row0, q, operand);
        if constexpr (by::SHARING == 1)
            multiply_add<T, WIDTH, true, ROWS, COLS>(dk, operand, lane_by_rows<WIDTH>(q_tile, 0));
    }
}

/* sum += x·z for the warp's share of columns; x: (KEYS, QUERIES) in shared memory. */
template <typename T, class by>
CUDA_FN void add_pairs(float sum[by::ROWS][by::K_COLS][4], shared_at x, shared_at z)
{
    constexpr int WIDTH = by::WIDTH, QUERIES = by::QUERIES, ROWS = by::ROWS;
    const shared_at left = lane_by_rows<QUERIES>(x, warp_row<by>());
    const shared_at right = lane_address<WIDTH>(lane_by_rows<WIDTH>(z, 0), 0, warp_part<by>());
#pragma unroll
    for (int q = QUERIES - 16; q >= 0; q -= 16) {
        uint32_t p[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            load_matrices(p[r], lane_address<QUERIES>(left, 16 * r, q / 16));
        multiply_add_step<T, WIDTH, by::SHARING, ROWS, by::K_COLS>(sum, p, right, q);
    }
}

/* A warp's share of dq of a tile: a part of the columns, queries from q on. */
struct dq_share {
    int part, q;
};

template <class by> CUDA_FN struct dq_share dq_share_here(void)
{
    const int warp = (int)(thread_here() / 32);
    return {warp % by::Q_PARTS, warp / by::Q_PARTS * 16 * by::Q_ROWS};
}

/* dq = dsᵀ·k of this block's keys. */
template <typename T, class by>
CUDA_FN void make_dq(float dq[by::Q_ROWS][by::Q_COLS][4], shared_at base)
{
    constexpr int WIDTH = by::WIDTH, QUERIES = by::QUERIES;
    const struct dq_share mine = dq_share_here<by>();
    const shared_at left =
        lane_address<QUERIES>(lane_by_columns<QUERIES>(base + by::DS_AT, 0), 0, mine.q / 16);
    const shared_at right = lane_address<WIDTH>(lane_by_rows<WIDTH>(base, 0), 0, mine.part);
#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
        uint32_t ds[by::Q_ROWS][4];
#pragma unroll
        for (int r = 0; r < by::Q_ROWS; r++)
            load_matrices_transposed(ds[r], lane_address<QUERIES>(left, k, r));
        multiply_add_step<T, WIDTH, by::Q_PARTS, by::Q_ROWS, by::Q_COLS>(dq, ds, right, k);
    }
}

/* The sum over all keys, times scale, rounded, to where it belongs. */
template <typename T, class by>
CUDA_FN void store_dq(const struct attention_on_gpu &a, int b, const struct step &at,
                      const float dq[by::Q_ROWS][by::Q_COLS][4])
{
    const struct dq_share mine = dq_share_here<by>();
    const int lane = (int)(thread_here() % 32), tq = at.q0 + mine.q + lane / 4;
    uint16_t *to = (uint16_t *)a.dq + b * a.q_batch + tq * a.q_stride + at.h * a.D;
#pragma unroll
    for (int i = 0; i < by::Q_ROWS * 2; i++) {
        if (tq + 8 * i >= a.Tq) break;
#pragma unroll
        for (int c = 0; c < by::Q_COLS; c++) {
            const int chunk = 2 * (c / 2 * by::Q_PARTS + mine.part) + c % 2;
            const float *x = dq[i / 2][c] + 2 * (i % 2);
            if (8 * chunk < a.D)
                *(uint32_t *)(void *)(to + 8 * chunk + 2 * (lane % 4)) =
                    pack_halves<T>(a.scale * x[0], a.scale * x[1]);
        }
        to += 8 * a.q_stride;
    }
}

/* This block's part of dq joins those of earlier keys; it has the turn. Sums are in the order in
 * which threads have them. */
template <typename T, class by>
CUDA_FN void join_dq(const struct attention_on_gpu &a, const volatile struct task *task,
                     const struct step &at, shared_at base)
{
    const int b = task->b, tile = task->k0 / KEYS;
    float4 *sums = (float4 *)(void *)a.dq_sums +
                   dq_tile<by::QUERIES>(a, b, at) * (by::SUMS * by::THREADS) + thread_here();
    float4 before[by::SUMS] = {}; /* on their way while this block's part is made */
    if (tile > 0)
#pragma unroll
        for (int i = 0; i < by::SUMS; i++) before[i] = __ldcg(sums + i * by::THREADS);
    float dq[by::Q_ROWS][by::Q_COLS][4] = {};
    make_dq<T, by>(dq, base);
#pragma unroll
    for (int i = 0; i < by::SUMS; i++) {
        float *x = dq[i / by::Q_COLS][i % by::Q_COLS];
        x[0] += before[i].x, x[1] += before[i].y, x[2] += before[i].z, x[3] += before[i].w;
    }
    if (tile == last_tile<by::QUERIES>(a, at.q0)) {
        store_dq<T, by>(a, b, at, dq);
        return;
    }
#pragma unroll
    for (int i = 0; i < by::SUMS; i++) {
        const float *x = dq[i / by::Q_COLS][i % by::Q_COLS];
        __stcg(sums + i * by::THREADS, make_float4(x[0], x[1], x[2], x[3]));
    }
}

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* dk and dv, through the tiles of k and v, which no thread reads any more. Rows of keys that are
 * hidden are whatever zeros gave: they have no gradient. */
template <typename T, class by, bool DROPS>
CUDA_FN void store_dk_dv(const struct attention_on_gpu &a, const struct task &task, unsigned there,
                         unsigned char *mem, const float dk[by::ROWS][by::K_COLS][4],
                         const float dv[by::ROWS][by::K_COLS][4])
{
    constexpr int WIDTH = by::WIDTH, ROWS = by::ROWS;
    float k_factor[ROWS][2], v_factor[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++) {
        k_factor[i / 2][i % 2] = there >> i & 1 ? a.scale : 0.0f;
        v_factor[i / 2][i % 2] = there >> i & 1 ? DROPS ? a.keep_scale : 1.0f : 0.0f;
    }
    const int row0 = warp_row<by>(), part = warp_part<by>();
    put_rows<T, WIDTH, by::SHARING, ROWS, by::K_COLS>(mem, row0, part, dk, k_factor);
    put_rows<T, WIDTH, by::SHARING, ROWS, by::K_COLS>(mem + by::K_TILE, row0, part, dv, v_factor);
    __syncthreads();
    constexpr int N_ROWS = KEYS / by::WARPS;
    const int first = (int)(thread_here() / 32) * N_ROWS, t0 = task.k0 + first;
    const int64_t k_at = task.b * a.k_batch + t0 * a.k_stride + task.g * a.D;
    const int64_t v_at = task.b * a.v_batch + t0 * a.v_stride + task.g * a.D;
    copy_rows<WIDTH, N_ROWS>(mem, first, (uint16_t *)a.dk + k_at, a.k_stride, a.Tk - t0, a.D);
    copy_rows<WIDTH, N_ROWS>(mem + by::K_TILE, first, (uint16_t *)a.dv + v_at, a.v_stride,
                             a.Tk - t0, a.D);
}

template <typename T, int TILES, bool DROPS>
__global__ void __launch_bounds__(by<TILES>::THREADS, by<TILES>::BLOCKS)
    attention_flash_backward_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    using by = by<TILES>;
    constexpr int WIDTH = by::WIDTH, QUERIES = by::QUERIES;
    CUDA_SHARED_TILES(mem);
    const shared_at base = shared_address(mem);
    struct task *const shared_task = (struct task *)(void *)(mem + by::TASK_AT);
    float *const stats = (float *)(void *)(mem + by::STATS_AT);
    if (threadIdx.x == 0) *shared_task = task_of(a, (int)cuda_draw_number(a.turns));
    __syncthreads();
    const volatile struct task *const task = shared_task;
    unsigned *const turns = a.turns + 1;

    unsigned there;
    struct step at, last;
    {
        const int b = task->b, g = task->g, k0 = task->k0;
        const int64_t k_at = b * a.k_batch + k0 * a.k_stride + g * a.D;
        const int64_t v_at = b * a.v_batch + k0 * a.v_stride + g * a.D;
        const uint8_t *mask = a.key_mask ? a.key_mask + (int64_t)b * a.Tk + k0 : NULL;
        start_tile<WIDTH, KEYS, by::THREADS>(base, (const uint16_t *)a.k + k_at, (int)a.k_stride,
                                             a.Tk - k0, a.D, mask);
        start_tile<WIDTH, KEYS, by::THREADS>(base + by::K_TILE, (const uint16_t *)a.v + v_at,
                                             (int)a.v_stride, a.Tk - k0, a.D, mask);
        copy_async_commit();
        there = keys_there<by::ROWS>(a, b, k0 + warp_row<by>());
        /* from a head's last queries back to the first that see a key of the block */
        const int q_end = k0 == 0 ? 0 : first_query(a, k0) / QUERIES * QUERIES;
        last = {(g + 1) * a.group - 1, q_end};
        at = {q_end < a.Tq ? g * a.group : last.h + 1, (a.Tq - 1) / QUERIES * QUERIES};
        float value = 0;
        if (at.h <= last.h) {
            start_queries<by>(a, b, at, base + by::STAGES_AT);
            value = row_value<QUERIES>(a, b, at);
        }
        put_row_value<QUERIES>(stats, value);
    }
    float dk[by::ROWS][by::K_COLS][4] = {}, dv[by::ROWS][by::K_COLS][4] = {};
    unsigned *passed =
        NULL; /* thread 0: the turn of the tile before, which is yet to be passed on */
    for (unsigned stage = 0; at.h <= last.h; stage ^= by::NEXT) {
        copy_async_wait<0>();
        __syncthreads(); /* this tile is here, and no thread uses the one before any more */
        if (passed) cuda_pass_turn(passed, (unsigned)(task->k0 / KEYS) + 1);
        struct step next = {at.h, at.q0 - QUERIES};
        if (next.q0 < last.q0) next = {at.h + 1, (a.Tq - 1) / QUERIES * QUERIES};
        float value = 0;
        if (next.h <= last.h) {
            value = row_value<QUERIES>(a, task->b, next);
            if constexpr (by::STAGES > 1)
                start_queries<by>(a, task->b, next, base + by::STAGES_AT + (stage ^ by::NEXT));
        }
        make_pairs<T, by, DROPS>(a, task, at, there, mem, stage, dk, dv);
        if (threadIdx.x == 0) {
            const unsigned tile = (unsigned)(task->k0 / KEYS);
            passed = turns + dq_tile<QUERIES>(a, task->b, at);
            if (tile > 0) cuda_await_turn(passed, tile);
        }
        __syncthreads(); /* ds is here, and all have read the stats */
        put_row_value<QUERIES>(stats, value);
        if constexpr (by::SHARING > 1) {
            const shared_at stage_at = base + by::STAGES_AT + stage;
            add_pairs<T, by>(dv, base + by::P_AT, stage_at + by::Q_TILE);
            add_pairs<T, by>(dk, base + by::DS_AT, stage_at);
        }
        if constexpr (by::STAGES == 1) /* this tile is no longer read */
            if (next.h <= last.h) start_queries<by>(a, task->b, next, base + by::STAGES_AT);
        join_dq<T, by>(a, task, at, base);
        at = next;
    }
    copy_async_wait<0>();
    __syncthreads(); /* keys and values that no query sees have arrived too */
    if (passed) cuda_pass_turn(passed, (unsigned)(task->k0 / KEYS) + 1);
    store_dk_dv<T, by, DROPS>(a, {task->b, task->g, task->k0}, there, mem, dk, dv);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int TILES, bool DROPS>
static cz_status launch(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)(a->B * a->G) * (unsigned)attention_key_tiles(a->Tk);
    return cuda_launch("attention backward", attention_flash_backward_kernel<T, TILES, DROPS>, n,
                       by<TILES>::THREADS, by<TILES>::SHARED, stream, *a);
}

cz_status attention_flash_delta(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                struct dev_stream *stream)
{
    const size_t n_threads = (size_t)a->B * (size_t)a->H * (size_t)a->Tq * DELTA_LANES;
    return cuda_launch("attention delta",
                       dtype == DTYPE_F16 ? attention_flash_delta_kernel<struct f16>
                                          : attention_flash_delta_kernel<struct bf16>,
                       cuda_blocks(n_threads + 1, DELTA_THREADS), DELTA_THREADS, 0, stream, *a);
}

template <typename T, int... TILES>
static cz_status backward_of(const struct attention_on_gpu *a, struct dev_stream *stream,
                             std::integer_sequence<int, TILES...>)
{
    using launch_fn = cz_status (*)(const struct attention_on_gpu *, struct dev_stream *);
    static const launch_fn drops[] = {launch<T, TILES, true>...};
    static const launch_fn keeps[] = {launch<T, TILES, false>...};
    return (a->threshold ? drops : keeps)[a->tiles](a, stream);
}

cz_status attention_flash_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream)
{
    const std::make_integer_sequence<int, N_TILES> all;
    TRY(attention_flash_delta(a, dtype, stream));
    return dtype == DTYPE_F16 ? backward_of<struct f16>(a, stream, all)
                              : backward_of<struct bf16>(a, stream, all);
}

template <int... TILES> static size_t shared_of(int tiles, std::integer_sequence<int, TILES...>)
{
    static const size_t shared[] = {by<TILES>::SHARED...};
    return shared[tiles];
}

int attention_flash_backward_tiles(const struct device_info *gpu, int D)
{
    const std::make_integer_sequence<int, N_TILES> all;
    for (int i = 0; i < N_TILES; i++)
        if (table[i].width == (D + 31) / 32 * 32 &&
            flash_fits(gpu, shared_of(i, all), table[i].blocks))
            return i;
    return -1;
}

static size_t query_tiles(int tiles, int64_t T)
{
    return (size_t)((T + table[tiles].queries - 1) / table[tiles].queries);
}

int attention_flash_bundle(const struct attention_on_gpu *a, int n_multiprocessors)
{
    const int n_blocks = n_multiprocessors * table[a->tiles].blocks; /* at a time */
    const int n_tiles = (int)query_tiles(a->tiles, a->Tq);
    const int n_steps = a->group * (a->causal ? (n_tiles + 1) / 2 : n_tiles); /* of a block */
    return 2 * n_blocks / (n_steps > 0 ? n_steps : 1) + 1;
}

size_t attention_flash_dq_numel(int tiles, int64_t B, int64_t H, int64_t Tq)
{
    return (size_t)(B * H) * query_tiles(tiles, Tq) *
           (size_t)(table[tiles].queries * table[tiles].width);
}

size_t attention_flash_turns(int tiles, int64_t B, int64_t H, int64_t Tq)
{
    return (size_t)(B * H) * query_tiles(tiles, Tq) + 1;
}
