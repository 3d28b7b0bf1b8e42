/* Attention's backward on the tensor cores of compute capability 9.0: dq, dk and dv in one kernel
 * of five products, after delta (attention_flash_delta).
 *
 * A block owns 128 keys of a key head, 64 for each of two warpgroups that multiply, and walks the
 * queries that see any of them, a tile of 64 at a time, from a head's last ones to its first, for
 * each of its query heads. A thread of a third warpgroup brings keys and values, then tiles of q
 * and dout, by tensor maps. Scores are made with keys as rows, s[key][query]: p and ds are left
 * operands of dv = p·dout and dk = ds·q as they are. For dq = dsᵀ·k ds passes through shared
 * memory, as the left operand by columns; of a tile's dq each warpgroup makes half of the columns
 * where a head has 128, and all of it for every other tile where it has 64. Parts of dq are added
 * up in the workspace, in fp32, in the order of the keys: blocks take turns (turns.h), and begin in
 * an order in which these come soon (task_of).
 *
 * Limit: 10·Tq·Tk·D FLOP per head (half when causal) at the speed of wgmma. */
#include "device/cuda/tensor_copy.h"
#include "device/cuda/turns.h"
#include "ops/attention/attention_hopper_cuda_impl.h"

#define MULTIPLIERS 2 /* warpgroups; the one that brings comes behind them */
#define MULTIPLYING (MULTIPLIERS * WARPGROUP)
#define THREADS     (MULTIPLYING + WARPGROUP)
#define KEYS        BACKWARD_KEYS
#define QUERIES     64 /* of a tile */
#define COLS        (QUERIES / 8)
#define PLACES      2 /* for tiles of q and dout */
#define DQ_COLUMNS  64
#define DQ_SUMS     (DQ_COLUMNS / 8) /* of 4 elements of dq, per thread that adds */

/* 65536 registers of a multiprocessor, 168 for each thread at first: a warpgroup that multiplies
 * has WIDTH/2 of dk and of dv each, QUERIES/2 of p, of dp and of dq each. */
#define REGISTERS_TO_BRING    24
#define REGISTERS_TO_MULTIPLY 240

/* Arrivals of a block, 8 bytes each: keys and values, tiles that are here, places that are free. */
enum { K_HERE = 0, Q_HERE, Q_FREE = Q_HERE + PLACES, N_ARRIVALS = Q_FREE + PLACES };

template <int WIDTH> struct hopper_backward {
    static constexpr int K_TILE = tile_nbytes<WIDTH>(KEYS), TILE = tile_nbytes<WIDTH>(QUERIES);
    static constexpr int V_AT = K_TILE, PLACE = 2 * TILE /* q, dout */, Q_AT = 2 * K_TILE;
    static constexpr int DS_AT = Q_AT + PLACES * PLACE;
    static constexpr int STATS_AT = DS_AT + KEYS * QUERIES * 2; /* lse and delta of a tile */
    static constexpr int ARRIVALS_AT = STATS_AT + 2 * QUERIES * 4;
    static constexpr int TASK_AT = ARRIVALS_AT + 8 * N_ARRIVALS;
    static constexpr size_t SHARED = PANEL_ALIGN + TASK_AT + sizeof(struct task);
    static constexpr int ADDING = WIDTH == 128 ? MULTIPLYING : WARPGROUP; /* threads, to a dq */
};

/* The walk of a block: its first tile (h past the last one: there is none), and the next ones. */
struct walk {
    int last_h, first_q; /* the last head; the first query of each */
};

CUDA_FN struct walk walk_of(const struct attention_on_gpu &a, const struct task &own)
{
    return {(own.g + 1) * a.group - 1,
            own.k0 == 0 ? 0 : first_query(a, own.k0) / QUERIES * QUERIES};
}

CUDA_FN struct step walk_begin(const struct attention_on_gpu &a, const struct task &own,
                               const struct walk &w)
{
    return {w.first_q < a.Tq ? own.g * a.group : w.last_h + 1, (a.Tq - 1) / QUERIES * QUERIES};
}

CUDA_FN struct step walk_next(const struct attention_on_gpu &a, const struct walk &w,
                              const struct step &at)
{
    if (at.q0 - QUERIES >= w.first_q) return {at.h, at.q0 - QUERIES};
    return {at.h + 1, (a.Tq - 1) / QUERIES * QUERIES};
}

CUDA_FN shared_at arrivals_at(shared_at all, int which, int place)
{
    return all + 8 * (unsigned)(which + place);
}

/* ---- the warpgroup that brings -----------------------------------------------------------------
 */

/* A tile of n_rows positions of a head. */
template <int WIDTH>
CUDA_FN void bring(shared_at to, const struct tensor_map *map, int n_rows, int head, int row, int b,
                   shared_at here)
{
#pragma unroll
    for (int p = 0; p < WIDTH / PANEL_COLUMNS; p++)
        copy_tile(to + p * n_rows * PANEL_ROW_NBYTES, map, p * PANEL_COLUMNS, head, row, b, here);
}

template <int WIDTH>
CUDA_FN void bring_all(const struct attention_on_gpu &a, const struct task &own, shared_at k_at,
                       const struct tensor_map *q, const struct tensor_map *k,
                       const struct tensor_map *v, const struct tensor_map *dout)
{
    using by = hopper_backward<WIDTH>;
    const shared_at arrivals = k_at + by::ARRIVALS_AT, k_here = arrivals_at(arrivals, K_HERE, 0);
    const struct walk w = walk_of(a, own);
    arrive_expecting(k_here, 2 * by::K_TILE);
    bring<WIDTH>(k_at, k, KEYS, own.g, own.k0, own.b, k_here);
    bring<WIDTH>(k_at + by::V_AT, v, KEYS, own.g, own.k0, own.b, k_here);
    int i = 0;
#pragma unroll 1
    for (struct step at = walk_begin(a, own, w); at.h <= w.last_h; at = walk_next(a, w, at), i++) {
        const int place = i % PLACES;
        const shared_at here = arrivals_at(arrivals, Q_HERE, place);
        const shared_at to = k_at + by::Q_AT + place * by::PLACE;
        arrivals_wait(arrivals_at(arrivals, Q_FREE, place), (unsigned)(i / PLACES & 1) ^ 1);
        arrive_expecting(here, by::PLACE);
        bring<WIDTH>(to, q, QUERIES, at.h, at.q0, own.b, here);
        bring<WIDTH>(to + by::TILE, dout, QUERIES, at.h, at.q0, own.b, here);
    }
}

/* ---- the warpgroups that multiply --------------------------------------------------------------
 */

/* dp becomes ds = p∘(dp − delta). */
CUDA_FN void make_ds(const float *delta, const float (&p)[COLS][4], float (&dp)[COLS][4])
{
    const int lane = (int)(thread_here() % 32);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float d[2];
        load_f32<2>(delta + 8 * c + 2 * (lane % 4), d);
#pragma unroll
        for (int e = 0; e < 4; e++) dp[c][e] = p[c][e] * (dp[c][e] - d[e % 2]);
    }
}

/* A warp's rows of ds, rounded, into its panel. */
CUDA_FN void put_ds(unsigned char *panel, const uint32_t (&ds)[COLS / 2][4])
{
    const int lane = (int)(thread_here() % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * COLS; i++) {
        const int c = i / 2, row = warp_row() + 8 * (i % 2) + g;
        *(uint32_t *)(void *)(panel + chunk_at<PANEL_COLUMNS>((unsigned)row, (unsigned)c) + 4 * t) =
            ds[c / 2][c % 2 * 2 + i % 2];
    }
}

/* dq (64 by 64 columns) = dsᵀ·k over the block's keys. */
template <typename T>
CUDA_FN void begin_dq(float (&dq)[DQ_SUMS][4], shared_matrix ds, shared_matrix k)
{
#pragma unroll
    for (int i = 0; i < KEYS; i += 16)
        multiply_shared<T, DQ_COLUMNS, true, true>(dq, ds + (i * PANEL_ROW_NBYTES >> 4),
                                                   k + (i * PANEL_ROW_NBYTES >> 4), i > 0);
}

/* This block's part of dq joins those of earlier keys; it has the turn. Sums are in the order in
 * which threads have them; the last ones, times scale, rounded, go where they belong. */
template <typename T, int WIDTH>
CUDA_FN void join_dq(const struct attention_on_gpu &a, const struct task &own,
                     const struct step &at, float (&dq)[DQ_SUMS][4])
{
    constexpr int ADDING = hopper_backward<WIDTH>::ADDING;
    const int thread = (int)thread_here(), lane = thread % 32, tile = own.k0 / KEYS;
    float4 *sums = (float4 *)(void *)a.dq_sums +
                   dq_tile<QUERIES>(a, own.b, at) * (DQ_SUMS * ADDING) + thread % ADDING;
    if (tile > 0)
#pragma unroll
        for (int c = 0; c < DQ_SUMS; c++) {
            const float4 before = __ldcg(sums + c * ADDING);
            dq[c][0] += before.x, dq[c][1] += before.y, dq[c][2] += before.z, dq[c][3] += before.w;
        }
    if (tile < last_tile<QUERIES>(a, at.q0)) {
#pragma unroll
        for (int c = 0; c < DQ_SUMS; c++)
            __stcg(sums + c * ADDING, make_float4(dq[c][0], dq[c][1], dq[c][2], dq[c][3]));
        return;
    }
    const int column = WIDTH == 128 ? thread / WARPGROUP * DQ_COLUMNS : 0;
    const int tq = at.q0 + thread % WARPGROUP / 32 * 16 + lane / 4;
    uint16_t *to = (uint16_t *)a.dq + own.b * a.q_batch + tq * a.q_stride + at.h * a.D + column;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (tq + 8 * half >= a.Tq) break;
#pragma unroll
        for (int c = 0; c < DQ_SUMS; c++)
            *(uint32_t *)(void *)(to + half * 8 * a.q_stride + 8 * c + 2 * (lane % 4)) =
                pack_halves<T>(a.scale * dq[c][2 * half], a.scale * dq[c][2 * half + 1]);
    }
}

/* dk and dv of a warp's keys, through the tiles of k and v, which no thread reads any more. */
template <typename T, int WIDTH>
CUDA_FN void store_sums(const struct attention_on_gpu &a, const struct task &own,
                        unsigned char *k_tile, const float (&dk)[WIDTH / 8][4],
                        const float (&dv)[WIDTH / 8][4])
{
    const int t0 = own.k0 + warp_row(), n = a.Tk - t0;
    const float k_factor[2] = {a.scale, a.scale}, v_factor[2] = {1, 1};
    uint16_t *to = (uint16_t *)a.dk + own.b * a.k_batch + t0 * a.k_stride + own.g * a.D;
    store_warp_rows<T, WIDTH>(k_tile, dk, k_factor, to, a.k_stride, n);
    to = (uint16_t *)a.dv + own.b * a.v_batch + t0 * a.v_stride + own.g * a.D;
    store_warp_rows<T, WIDTH>(k_tile + hopper_backward<WIDTH>::V_AT, dv, v_factor, to, a.v_stride,
                              n);
}

template <typename T, int WIDTH>
CUDA_FN void multiply_all(const struct attention_on_gpu &a, const struct task &own,
                          unsigned char *mem)
{
    using by = hopper_backward<WIDTH>;
    constexpr unsigned QUERY_PANEL = QUERIES * PANEL_ROW_NBYTES;
    const shared_at k_at = shared_address(mem), arrivals = k_at + by::ARRIVALS_AT;
    float *const stats = (float *)(void *)(mem + by::STATS_AT);
    unsigned *const turns = a.turns + 1;
    const struct walk w = walk_of(a, own);
    const int tile = own.k0 / KEYS, group = (int)(thread_here() / WARPGROUP);
    const unsigned there = keys_there<1>(a, own.b, own.k0 + warp_row());
    const unsigned rows = (unsigned)(warpgroup_row() * PANEL_ROW_NBYTES);
    const shared_matrix k_rows = matrix_by_rows(k_at + rows);
    const shared_matrix v_rows = matrix_by_rows(k_at + by::V_AT + rows);
    /* those of all keys that this warpgroup multiplies ds with */
    const shared_matrix k_columns = matrix_by_columns(
        k_at + (WIDTH == 128 ? group * KEYS * PANEL_ROW_NBYTES : 0), KEYS * PANEL_ROW_NBYTES);
    const shared_matrix ds_columns = matrix_by_columns(k_at + by::DS_AT, KEYS * PANEL_ROW_NBYTES);
    float dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
    struct step at = walk_begin(a, own, w);
    unsigned *passed = NULL; /* thread 0: the turn of the tile before, which it is yet to pass */
    float value = at.h <= w.last_h ? row_value<QUERIES>(a, own.b, at) : 0.0f;
    put_row_value<QUERIES>(stats, value);
    arrivals_wait(arrivals_at(arrivals, K_HERE, 0), 0);
#pragma unroll 1
    for (int i = 0; at.h <= w.last_h; i++) {
        const struct step next = walk_next(a, w, at);
        const shared_at q_at = k_at + by::Q_AT + i % PLACES * by::PLACE, dout_at = q_at + by::TILE;
        float s[COLS][4], dp[COLS][4];
        uint32_t p[COLS / 2][4], ds[COLS / 2][4];
        if (next.h <= w.last_h) value = row_value<QUERIES>(a, own.b, next);
        arrivals_wait(arrivals_at(arrivals, Q_HERE, i % PLACES), (unsigned)(i / PLACES & 1));
        products_fence();
        begin_scores<T, WIDTH, KEYS, QUERIES, QUERIES>(s, k_rows, matrix_by_rows(q_at));
        products_commit();
        begin_scores<T, WIDTH, KEYS, QUERIES, QUERIES>(dp, v_rows, matrix_by_rows(dout_at));
        products_commit();
        /* stats are here, no product reads the ds before, and its sums of dq are written */
        warpgroups_sync(MULTIPLIERS, MULTIPLYING);
        if (passed) cuda_pass_turn(passed, (unsigned)tile + 1);
        products_wait<1>();
        settle(s);
        /* whether some pair of the tile does not see each other */
        make_p_of_keys<1, COLS>(a, at.q0, own.k0 + warp_row(),
                                own.k0 + KEYS > a.Tk ||
                                    (a.causal && keys_seen(a, at.q0) < own.k0 + KEYS),
                                there, &s, stats);
        pack_operand<T, COLS>(p, s);
        products_fence();
        begin_sums<T, WIDTH, QUERIES>(dv, p, matrix_by_columns(dout_at, QUERY_PANEL));
        products_commit();
        products_wait<1>();
        settle(dp);
        make_ds(stats + QUERIES, s, dp);
        pack_operand<T, COLS>(ds, dp);
        put_ds(mem + by::DS_AT, ds);
        shared_to_products();
        products_fence();
        begin_sums<T, WIDTH, QUERIES>(dk, ds, matrix_by_columns(q_at, QUERY_PANEL));
        products_commit();
        if (thread_here() == 0) {
            passed = turns + dq_tile<QUERIES>(a, own.b, at);
            if (tile > 0) cuda_await_turn(passed, (unsigned)tile);
        }
        warpgroups_sync(MULTIPLIERS, MULTIPLYING); /* ds is here, and all have read the stats */
        put_row_value<QUERIES>(stats, value);
        if (WIDTH == 128 || group == i % 2) {
            float dq[DQ_SUMS][4];
            products_fence();
            begin_dq<T>(dq, ds_columns, k_columns);
            products_commit();
            products_wait<0>();
            settle(dq);
            join_dq<T, WIDTH>(a, own, at, dq);
        } else {
            products_wait<0>();
        }
        settle(p);
        settle(ds);
        settle(dv);
        settle(dk);
        if (thread_here() % 32 == 0) arrive(arrivals_at(arrivals, Q_FREE, i % PLACES));
        at = next;
    }
    warpgroups_sync(MULTIPLIERS, MULTIPLYING); /* no product reads keys any more */
    if (passed) cuda_pass_turn(passed, (unsigned)tile + 1);
    store_sums<T, WIDTH>(a, own, mem, dk, dv);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_backward_kernel(const __grid_constant__ struct attention_on_gpu a,
                                     const __grid_constant__ struct tensor_map q_map,
                                     const __grid_constant__ struct tensor_map k_map,
                                     const __grid_constant__ struct tensor_map v_map,
                                     const __grid_constant__ struct tensor_map dout_map)
{
    using by = hopper_backward<WIDTH>;
    CUDA_DYNAMIC_SHARED(unsigned char, room);
    unsigned char *const mem = first_panel(room);
    const shared_at k_at = shared_address(mem), arrivals = k_at + by::ARRIVALS_AT;
    struct task *const shared_task = (struct task *)(void *)(mem + by::TASK_AT);
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_ARRIVALS; i++) /* one that brings; warps that are through */
            arrivals_init(arrivals_at(arrivals, i, 0), i < Q_FREE ? 1 : MULTIPLIERS * 4);
        arrivals_known();
        *shared_task = task_of(a, (int)cuda_draw_number(a.turns));
    }
    __syncthreads();
    const struct task own = *shared_task;
    if (threadIdx.x >= MULTIPLYING) {
        registers_give_back<REGISTERS_TO_BRING>();
        if (threadIdx.x == MULTIPLYING)
            bring_all<WIDTH>(a, own, k_at, &q_map, &k_map, &v_map, &dout_map);
    } else {
        registers_take<REGISTERS_TO_MULTIPLY>();
        multiply_all<T, WIDTH>(a, own, mem);
    }
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH>
static cz_status backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                          struct dev_stream *stream)
{
    const struct tensor_of_heads tensors[4] = {
        {a->q, a->B, a->Tq, a->H, a->D, a->q_stride, a->q_batch, dtype},
        {a->k, a->B, a->Tk, a->G, a->D, a->k_stride, a->k_batch, dtype},
        {a->v, a->B, a->Tk, a->G, a->D, a->v_stride, a->v_batch, dtype},
        {a->dout, a->B, a->Tq, a->H, a->D, a->out_stride, a->Tq * a->out_stride, dtype}};
    const unsigned n = (unsigned)(a->B * a->G) * (unsigned)attention_key_tiles(a->Tk);
    struct tensor_map maps[4];
    for (int i = 0; i < 4; i++)
        TRY(tensor_map_make(&maps[i], &tensors[i], i == 1 || i == 2 ? KEYS : QUERIES));
    TRY(attention_flash_delta(a, dtype, stream));
    return cuda_launch("attention backward (wgmma)", attention_hopper_backward_kernel<T, WIDTH>, n,
                       THREADS, hopper_backward<WIDTH>::SHARED, stream, *a, maps[0], maps[1],
                       maps[2], maps[3]);
}

cz_status attention_hopper_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                    struct dev_stream *stream)
{
    if (a->D == 64)
        return dtype == DTYPE_F16 ? backward<struct f16, 64>(a, dtype, stream)
                                  : backward<struct bf16, 64>(a, dtype, stream);
    return dtype == DTYPE_F16 ? backward<struct f16, 128>(a, dtype, stream)
                              : backward<struct bf16, 128>(a, dtype, stream);
}
