/* The first pass of attention's backward on the tensor cores of compute capability 9.0: dq, and
 * delta for the second pass.
 *
 * A block of two warpgroups owns 128 queries of a head, 64 each, and walks the keys that any of
 * them sees. While ds of one tile is multiplied with its keys, s and dp of the next one are made;
 * so three tiles of keys are in shared memory, and two of values. Sums are added up in registers,
 * in the order of the keys. Limit: 6·Tq·Tk·D FLOP per head (half when causal) at the speed of
 * wgmma. */
#include "ops/attention/attention_hopper_cuda_impl.h"

#define THREADS (2 * WARPGROUP)
#define QUERIES 128

/* Registers of a thread: WIDTH/2 of sums, KEYS/2 of p and of dp each, KEYS/4 of ds. */
template <int WIDTH> struct hopper_dq {
    static constexpr int KEYS = WIDTH <= 64 ? 128 : 64, COLS = KEYS / 8; /* of a tile */
    static constexpr int Q_TILE = tile_nbytes<WIDTH>(QUERIES), TILE = tile_nbytes<WIDTH>(KEYS);
    static constexpr int DOUT_AT = Q_TILE, K_AT = 2 * Q_TILE, V_AT = K_AT + 3 * TILE;
    static constexpr int HEAD_AT = V_AT + 2 * TILE;
    static constexpr size_t SHARED = PANEL_ALIGN + HEAD_AT + sizeof(struct key_head);
};

CUDA_FN struct place queries_of(const struct attention_on_gpu &a, unsigned block)
{
    return place_of<QUERIES>(block, a.H, a.Tq, a.causal); /* the longest first */
}

/* What a thread knows of its two rows; lse in units of log 2. */
struct rows {
    float lse[2], delta[2];
};

/* delta, summed by the four lanes that share a row, is left for the second pass, too. */
template <typename T>
CUDA_FN struct rows rows_of(const struct attention_on_gpu &a, const struct place &at)
{
    struct rows r;
    const int lane = (int)threadIdx.x % 32, q = at.t0 + warp_row() + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int tq = q + 8 * half;
        const int64_t stat = ((int64_t)at.b * a.H + at.head) * a.Tq + tq;
        const int64_t row = ((int64_t)at.b * a.Tq + tq) * a.out_stride + (int64_t)at.head * a.D;
        float sum = 0;
        for (int d = lane % 4 * 8; tq < a.Tq && d < a.D; d += 32) {
            float x[8], y[8];
            load_f32<8>((const T *)a.out + row + d, x);
            load_f32<8>((const T *)a.dout + row + d, y);
#pragma unroll
            for (int e = 0; e < 8; e++) sum = fmaf(x[e], y[e], sum);
        }
        r.delta[half] = quad_reduce<sum_of>(sum);
        if (tq < a.Tq && lane % 4 == 0) a.delta[stat] = r.delta[half];
        const float lse = tq < a.Tq ? a.lse[stat] : 0.0f;
        r.lse[half] = lse == -INFINITY ? INFINITY : lse * ATTENTION_LOG2E; /* p = 0 */
    }
    return r;
}

/* Raw scores become p. */
template <int COLS>
CUDA_FN void make_p(const struct attention_on_gpu &a, int k0, bool is_masked, const struct rows &r,
                    float (&s)[COLS][4])
{
#pragma unroll
    for (int i = 0; i < COLS * 4; i++) {
        float *p = &s[i / 4][i % 4];
        *p = exp2_approx(fmaf(*p, a.scale_log2, -r.lse[i % 4 / 2]));
    }
    if (!is_masked) return;
    const struct place at = queries_of(a, block_here());
    const int q = at.t0 + warp_row() + (int)(thread_here() % 32 / 4);
    hide_keys<COLS>(a, at.b, q, k0, 0.0f, s);
}

/* dp becomes ds = p∘(dp − delta). */
template <int COLS>
CUDA_FN void make_ds(const struct rows &r, const float (&p)[COLS][4], float (&dp)[COLS][4])
{
#pragma unroll
    for (int i = 0; i < COLS * 4; i++) {
        float *ds = &dp[i / 4][i % 4];
        *ds = p[i / 4][i % 4] * (*ds - r.delta[i % 4 / 2]);
    }
}

/* dq of a warp's queries; no thread reads q in shared memory any more. */
template <typename T, int WIDTH>
CUDA_FN void store_dq(const struct attention_on_gpu &a, unsigned char *q_tile,
                      const float (&dq)[WIDTH / 8][4])
{
    const struct place at = queries_of(a, block_here());
    const int q0 = at.t0 + warp_row();
    const float factor[2] = {a.scale, a.scale};
    uint16_t *to = (uint16_t *)a.dq + at.b * a.q_batch + q0 * a.q_stride + at.head * a.D;
    store_warp_rows<T, WIDTH>(q_tile, dq, factor, to, a.q_stride, a.Tq - q0);
}

/* The tiles that come next, and where they are: keys in the first of three places, values in the
 * first of two. */
struct ring {
    unsigned k, v;
};

template <int TILE> CUDA_FN struct ring ring_next(const struct ring &at)
{
    return {at.k == 2 * TILE ? 0u : at.k + TILE, at.v ^ TILE};
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_dq_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    using by = hopper_dq<WIDTH>;
    constexpr int KEYS = by::KEYS, COLS = by::COLS, KEY_PANEL = KEYS * PANEL_ROW_NBYTES;
    CUDA_DYNAMIC_SHARED(unsigned char, room);
    unsigned char *const mem = first_panel(room);
    const shared_at q_at = shared_address(mem), dout_at = q_at + by::DOUT_AT;
    const shared_at k_at = q_at + by::K_AT, v_at = q_at + by::V_AT;
    struct key_head *const head = (struct key_head *)(void *)(mem + by::HEAD_AT);
    const struct place at = queries_of(a, blockIdx.x);
    const int n_keys = keys_seen(a, min(at.t0 + QUERIES, a.Tq) - 1);
    const int n_open = a.key_mask ? 0 : keys_seen(a, at.t0); /* that all of them see */

    if (threadIdx.x == 0) *head = key_head_of(a, at.b, at.head / a.group);
    __syncthreads();
    float dq[WIDTH / 8][4] = {};
    struct rows rows;
    if (n_keys > 0) {
        const int64_t q_from = at.b * a.q_batch + at.t0 * a.q_stride + at.head * a.D;
        const int64_t out_from = ((int64_t)at.b * a.Tq + at.t0) * a.out_stride + at.head * a.D;
        start_panels<WIDTH, QUERIES, THREADS>(q_at, (const uint16_t *)a.q + q_from, a.q_stride,
                                              a.Tq - at.t0, NULL);
        start_panels<WIDTH, QUERIES, THREADS>(dout_at, (const uint16_t *)a.dout + out_from,
                                              a.out_stride, a.Tq - at.t0, NULL);
        start_key_panels<WIDTH, KEYS, THREADS>(a, k_at, head, false, 0);
        start_key_panels<WIDTH, KEYS, THREADS>(a, v_at, head, true, 0);
        copy_async_commit();
    }
    rows = rows_of<T>(a, at);
    if (n_keys > 0) {
        const unsigned own = (unsigned)(warpgroup_row() * PANEL_ROW_NBYTES);
        const shared_matrix q_rows = matrix_by_rows(q_at + own);
        const shared_matrix dout_rows = matrix_by_rows(dout_at + own);
        float s[COLS][4], dp[COLS][4];
        uint32_t ds[COLS / 2][4];
        struct ring here = {0, 0}; /* the tile whose s and dp are made */
        struct ring next = ring_next<by::TILE>(here);

        copies_to_products<0>();
        if (KEYS < n_keys) {
            start_key_panels<WIDTH, KEYS, THREADS>(a, k_at + next.k, head, false, KEYS);
            start_key_panels<WIDTH, KEYS, THREADS>(a, v_at + next.v, head, true, KEYS);
        }
        copy_async_commit();
        products_fence();
        begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at));
        products_commit();
        begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(dp, dout_rows, matrix_by_rows(v_at));
        products_commit();
        products_wait<1>();
        settle(s);
        make_p<COLS>(a, 0, KEYS > n_open, rows, s);
        products_wait<0>();
        settle(dp);
        make_ds<COLS>(rows, s, dp);
        pack_operand<T, COLS>(ds, dp);

        for (int k0 = KEYS; k0 < n_keys; k0 += KEYS) {
            const shared_at k_before = k_at + here.k;
            here = next, next = ring_next<by::TILE>(here);
            /* this tile is here; no thread reads the keys two tiles back, or the values before
             * these
             */
            copies_to_products<0>();
            if (k0 + KEYS < n_keys) {
                start_key_panels<WIDTH, KEYS, THREADS>(a, k_at + next.k, head, false, k0 + KEYS);
                start_key_panels<WIDTH, KEYS, THREADS>(a, v_at + next.v, head, true, k0 + KEYS);
            }
            copy_async_commit();
            products_fence();
            begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at + here.k));
            products_commit();
            begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(dp, dout_rows,
                                                        matrix_by_rows(v_at + here.v));
            products_commit();
            begin_sums<T, WIDTH, KEYS>(dq, ds, matrix_by_columns(k_before, KEY_PANEL));
            products_commit();
            products_wait<2>();
            settle(s);
            make_p<COLS>(a, k0, k0 + KEYS > n_open, rows, s);
            products_wait<1>();
            settle(dp);
            make_ds<COLS>(rows, s, dp);
            products_wait<0>();
            settle(dq);
            settle(ds);
            pack_operand<T, COLS>(ds, dp);
        }
        products_fence();
        begin_sums<T, WIDTH, KEYS>(dq, ds, matrix_by_columns(k_at + here.k, KEY_PANEL));
        products_commit();
        products_wait<0>();
        settle(dq);
        __syncthreads(); /* no thread reads the queries any more */
    }
    store_dq<T, WIDTH>(a, mem, dq);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH>
static cz_status backward_q(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, QUERIES);
    return cuda_launch("attention dq (wgmma)", attention_hopper_dq_kernel<T, WIDTH>, n, THREADS,
                       hopper_dq<WIDTH>::SHARED, stream, *a);
}

cz_status attention_hopper_backward_q(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                      struct dev_stream *stream)
{
    if (a->D == 64)
        return dtype == DTYPE_F16 ? backward_q<struct f16, 64>(a, stream)
                                  : backward_q<struct bf16, 64>(a, stream);
    return dtype == DTYPE_F16 ? backward_q<struct f16, 128>(a, stream)
                              : backward_q<struct bf16, 128>(a, stream);
}
