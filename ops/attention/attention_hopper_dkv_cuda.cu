/* The second pass of attention's backward on the tensor cores of compute capability 9.0: dk and dv.
 *
 * A block of two warpgroups owns 128 keys of a key head, 64 each, and walks the queries that see
 * any of them, for each of its query heads: their sums meet in its registers, so nothing is added
 * up in memory. Scores are made with keys as rows, s[key][query]. The products of p and ds with a
 * tile continue while the next tile's scores are made, so three tiles of q and dout are in shared
 * memory. Limit: 8·Tq·Tk·D FLOP per query head (half when causal) at the speed of wgmma. */
#include "ops/attention/attention_hopper_cuda_impl.h"

#define THREADS (2 * WARPGROUP)
#define KEYS    128
#define QUERIES 64 /* of a tile */
#define COLS    (QUERIES / 8)

/* Registers of a thread: WIDTH/2 of dk and of dv each, QUERIES/2 of p and of dp each, and half as
 * many of both rounded. */
template <int WIDTH> struct hopper_dkv {
    static constexpr int KEY_TILE = tile_nbytes<WIDTH>(KEYS), TILE = tile_nbytes<WIDTH>(QUERIES);
    static constexpr int STAGE = 2 * TILE; /* q, dout */
    static constexpr int V_AT = KEY_TILE, STAGES_AT = 2 * KEY_TILE;
    static constexpr int STATS_AT = STAGES_AT + 3 * STAGE; /* lse and delta of two tiles */
    static constexpr size_t SHARED = PANEL_ALIGN + STATS_AT + 4 * QUERIES * sizeof(float);
};

/* Which keys a block owns: those from k0 on of a key head. The first blocks are the longest when
 * causal. */
struct own_keys {
    int b, g, k0;
};

CUDA_FN struct own_keys keys_of(const struct attention_on_gpu &a, unsigned block)
{
    const int n_tiles = (a.Tk + KEYS - 1) / KEYS, row = (int)block / n_tiles;
    return {row / a.G, row % a.G, (int)block % n_tiles * KEYS};
}

/* The first of them in k and in dk, in v and in dv. */
CUDA_FN int64_t k_begins(const struct attention_on_gpu &a, const struct own_keys &own)
{
    return own.b * a.k_batch + own.k0 * a.k_stride + own.g * a.D;
}

CUDA_FN int64_t v_begins(const struct attention_on_gpu &a, const struct own_keys &own)
{
    return own.b * a.v_batch + own.k0 * a.v_stride + own.g * a.D;
}

CUDA_FN const uint8_t *mask_of(const struct attention_on_gpu &a, const struct own_keys &own)
{
    return a.key_mask ? a.key_mask + (int64_t)own.b * a.Tk + own.k0 : NULL;
}

/* Queries [q0, q0 + QUERIES) of a head on their way into a stage. */
template <int WIDTH>
CUDA_FN void start_queries(const struct attention_on_gpu &a, int b, const struct step &at,
                           shared_at stage)
{
    const int64_t q_from = b * a.q_batch + at.q0 * a.q_stride + at.h * a.D;
    const int64_t out_from = ((int64_t)b * a.Tq + at.q0) * a.out_stride + at.h * a.D;
    start_panels<WIDTH, QUERIES, THREADS>(stage, (const uint16_t *)a.q + q_from, a.q_stride,
                                          a.Tq - at.q0, NULL);
    start_panels<WIDTH, QUERIES, THREADS>(stage + hopper_dkv<WIDTH>::TILE,
                                          (const uint16_t *)a.dout + out_from, a.out_stride,
                                          a.Tq - at.q0, NULL);
}

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

/* dk and dv of a warp's keys; no thread reads keys and values in shared memory any more. Rows of
 * keys that are masked out are whatever zeros gave: they have no gradient. */
template <typename T, int WIDTH>
CUDA_FN void store_sums(const struct attention_on_gpu &a, unsigned char *k_tile,
                        const float (&dk)[WIDTH / 8][4], const float (&dv)[WIDTH / 8][4])
{
    const struct own_keys own = keys_of(a, block_here());
    const uint8_t *mask = mask_of(a, own);
    const int row0 = warp_row(), n = a.Tk - own.k0 - row0;
    float k_factor[2], v_factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + 8 * half + (int)(thread_here() % 32 / 4);
        const bool is = own.k0 + row < a.Tk && (!mask || mask[row]);
        k_factor[half] = is ? a.scale : 0.0f;
        v_factor[half] = is ? 1.0f : 0.0f;
    }
    uint16_t *to = (uint16_t *)a.dk + k_begins(a, own) + row0 * a.k_stride;
    store_warp_rows<T, WIDTH>(k_tile, dk, k_factor, to, a.k_stride, n);
    to = (uint16_t *)a.dv + v_begins(a, own) + row0 * a.v_stride;
    store_warp_rows<T, WIDTH>(k_tile + hopper_dkv<WIDTH>::V_AT, dv, v_factor, to, a.v_stride, n);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_dkv_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    using by = hopper_dkv<WIDTH>;
    constexpr unsigned QUERY_PANEL = QUERIES * PANEL_ROW_NBYTES;
    CUDA_DYNAMIC_SHARED(unsigned char, room);
    unsigned char *const mem = first_panel(room);
    const shared_at k_at = shared_address(mem), v_at = k_at + by::V_AT;
    const shared_at stages_at = k_at + by::STAGES_AT;
    float *const all_stats = (float *)(void *)(mem + by::STATS_AT);
    const struct own_keys own = keys_of(a, blockIdx.x);
    const int b = own.b, k0 = own.k0;
    start_panels<WIDTH, KEYS, THREADS>(k_at, (const uint16_t *)a.k + k_begins(a, own), a.k_stride,
                                       a.Tk - k0, mask_of(a, own));
    start_panels<WIDTH, KEYS, THREADS>(v_at, (const uint16_t *)a.v + v_begins(a, own), a.v_stride,
                                       a.Tk - k0, mask_of(a, own));

    const int first = first_query(a, k0) / QUERIES * QUERIES, end = (own.g + 1) * a.group;
    struct step at = {first < a.Tq ? own.g * a.group : end, first};
    float value = 0;
    if (at.h < end) {
        start_queries<WIDTH>(a, b, at, stages_at);
        value = row_value<QUERIES>(a, b, at);
    }
    copy_async_commit();
    put_row_value<QUERIES>(all_stats, value);

    const unsigned rows = (unsigned)(warpgroup_row() * PANEL_ROW_NBYTES);
    const shared_matrix k_rows = matrix_by_rows(k_at + rows), v_rows = matrix_by_rows(v_at + rows);
    float dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {}, s[COLS][4], dp[COLS][4];
    uint32_t p[COLS / 2][4], ds[COLS / 2][4];
    unsigned stage = 0, odd = 0;
    while (at.h < end) {
        /* This tile is here. No thread reads the one two back, as all threads have waited for the
         * scores of the one before; nor the statistics of the one before. */
        copies_to_products<0>();
        struct step next = {at.h, at.q0 + QUERIES};
        if (next.q0 >= a.Tq) next.q0 = first, next.h++;
        const unsigned ahead = stage == 2 * by::STAGE ? 0 : stage + by::STAGE;
        if (next.h < end) {
            start_queries<WIDTH>(a, b, next, stages_at + ahead);
            value = row_value<QUERIES>(a, b, next);
        }
        copy_async_commit();

        const shared_at q_at = stages_at + stage, dout_at = q_at + by::TILE;
        const float *const stats = all_stats + odd;
        products_fence();
        begin_scores<T, WIDTH, KEYS, QUERIES, QUERIES>(s, k_rows, matrix_by_rows(q_at));
        products_commit();
        begin_scores<T, WIDTH, KEYS, QUERIES, QUERIES>(dp, v_rows, matrix_by_rows(dout_at));
        products_commit();
        products_wait<1>(); /* for what the tile before had under way, too */
        settle(s);
        settle(p);
        settle(ds);
        settle(dv);
        settle(dk);
        /* whether some query of the tile does not see some of this block's keys */
        make_p_of_keys<1, COLS>(a, at.q0, k0 + warp_row(),
                                a.causal && keys_seen(a, at.q0) < k0 + KEYS, ~0u, &s, stats);
        pack_operand<T, COLS>(p, s);
        products_fence();
        begin_sums<T, WIDTH, QUERIES>(dv, p, matrix_by_columns(dout_at, QUERY_PANEL));
        products_commit();
        products_wait<1>();
        settle(dp);
        make_ds(stats + QUERIES, s, dp);
        pack_operand<T, COLS>(ds, dp);
        products_fence();
        begin_sums<T, WIDTH, QUERIES>(dk, ds, matrix_by_columns(q_at, QUERY_PANEL));
        products_commit();

        odd ^= 2 * QUERIES, stage = ahead, at = next;
        put_row_value<QUERIES>(all_stats + odd, value);
    }
    products_wait<0>();
    settle(dk);
    settle(dv);
    copy_async_wait<0>(); /* keys and values that no query sees have arrived too */
    __syncthreads();      /* and no thread reads them any more */

    store_sums<T, WIDTH>(a, mem, dk, dv);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH>
static cz_status backward_k(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)a->B * a->G * cuda_blocks((size_t)a->Tk, KEYS);
    return cuda_launch("attention dk, dv (wgmma)", attention_hopper_dkv_kernel<T, WIDTH>, n,
                       THREADS, hopper_dkv<WIDTH>::SHARED, stream, *a);
}

cz_status attention_hopper_backward_k(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                      struct dev_stream *stream)
{
    if (a->D == 64)
        return dtype == DTYPE_F16 ? backward_k<struct f16, 64>(a, stream)
                                  : backward_k<struct bf16, 64>(a, stream);
    return dtype == DTYPE_F16 ? backward_k<struct f16, 128>(a, stream)
                              : backward_k<struct bf16, 128>(a, stream);
}
