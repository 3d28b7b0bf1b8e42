/* Attention's forward pass on the tensor cores of compute capability 9.0.
 *
 * A block owns 64 queries per warpgroup of a head and walks the keys that any of them sees, a tile
 * of 128 at a time. While a tile's values are multiplied the scores of the next one are, too, and
 * their softmax is worked out meanwhile; the other warpgroups' products fill what gaps remain. Two
 * tiles of keys and two of values are in shared memory: one arrives while one is worked on. Limit:
 * 4·Tq·Tk·D FLOP per head (half when causal) at the speed of wgmma. */
#include "ops/attention/attention_hopper_cuda_impl.h"

#define KEYS 128 /* of a tile */
#define COLS (KEYS / 8)

/* Registers of a thread: WIDTH/2 of sums, KEYS/2 of scores, KEYS/4 of p. 65536 are shared out. */
template <int WIDTH> struct hopper_forward {
    static constexpr int WARPGROUPS = WIDTH <= 64 ? 3 : 2, THREADS = WARPGROUP * WARPGROUPS;
    static constexpr int QUERIES = 64 * WARPGROUPS;
    static constexpr int TILE = tile_nbytes<WIDTH>(KEYS);
    static constexpr int K_AT = tile_nbytes<WIDTH>(QUERIES), V_AT = K_AT + 2 * TILE;
    static constexpr int HEAD_AT = V_AT + 2 * TILE;
    static constexpr size_t SHARED = PANEL_ALIGN + HEAD_AT + sizeof(struct key_head);
};

/* The state of the online softmax of a thread's two rows: the largest raw score, and this lane's
 * part of Σ exp2((s − top)·scale). */
struct softmax {
    float top[2], total[2];
};

template <int WIDTH>
CUDA_FN struct place queries_of(const struct attention_on_gpu &a, unsigned block)
{
    return place_of<hopper_forward<WIDTH>::QUERIES>(block, a.H, a.Tq, a.causal); /* longest first */
}

/* Raw scores become p. fade: what the sums so far are to be multiplied with. */
template <int WIDTH>
CUDA_FN void make_p(const struct attention_on_gpu &a, int k0, bool is_masked, struct softmax *x,
                    float (&s)[COLS][4], float fade[2])
{
    if (is_masked) {
        const struct place at = queries_of<WIDTH>(a, block_here());
        const int q = at.t0 + warp_row() + (int)(thread_here() % 32 / 4);
        hide_keys<COLS>(a, at.b, q, k0, -INFINITY, s);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = x->top[half];
#pragma unroll
        for (int c = 0; c < COLS; c++) top = fmaxf(top, fmaxf(s[c][2 * half], s[c][2 * half + 1]));
        top = quad_reduce<max_of>(top);
        const float base = top == -INFINITY ? 0.0f : top * a.scale_log2;
        fade[half] = exp2_approx(fmaf(x->top[half], a.scale_log2, -base));
        float total = x->total[half] * fade[half];
#pragma unroll
        for (int e = 0; e < 2 * COLS; e++) {
            float *p = &s[e / 2][2 * half + e % 2];
            *p = exp2_approx(fmaf(*p, a.scale_log2, -base));
            total += *p;
        }
        x->top[half] = top, x->total[half] = total;
    }
}

template <int WIDTH> CUDA_FN void fade_sums(float (&out)[WIDTH / 8][4], const float fade[2])
{
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) out[i / 4][i % 4] *= fade[i % 4 / 2];
}

/* out and lse of a warp's queries; no thread reads q in shared memory any more. */
template <typename T, int WIDTH>
CUDA_FN void store_out(const struct attention_on_gpu &a, unsigned char *q_tile,
                       const struct softmax &x, const float (&out)[WIDTH / 8][4])
{
    const struct place at = queries_of<WIDTH>(a, block_here());
    const int q0 = at.t0 + warp_row(), lane = (int)(thread_here() % 32);
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = quad_reduce<sum_of>(x.total[half]), top = x.top[half];
        const int tq = q0 + 8 * half + lane / 4;
        factor[half] = total == 0 ? 0.0f : 1.0f / total;
        if (a.lse && tq < a.Tq && lane % 4 == 0)
            a.lse[((int64_t)at.b * a.H + at.head) * a.Tq + tq] =
                total == 0 ? -INFINITY : fmaf(top, a.scale, logf(total));
    }
    uint16_t *to =
        (uint16_t *)a.new_out + ((int64_t)at.b * a.Tq + q0) * a.out_stride + at.head * a.D;
    store_warp_rows<T, WIDTH>(q_tile, out, factor, to, a.out_stride, a.Tq - q0);
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(hopper_forward<WIDTH>::THREADS, 1)
    attention_hopper_forward_kernel(const __grid_constant__ struct attention_on_gpu a)
{
    using by = hopper_forward<WIDTH>;
    CUDA_DYNAMIC_SHARED(unsigned char, room);
    unsigned char *const mem = first_panel(room);
    const shared_at q_at = shared_address(mem), k_at = q_at + by::K_AT, v_at = q_at + by::V_AT;
    struct key_head *const head = (struct key_head *)(void *)(mem + by::HEAD_AT);
    const struct place at = queries_of<WIDTH>(a, blockIdx.x);
    const int n_keys = keys_seen(a, min(at.t0 + by::QUERIES, a.Tq) - 1);
    const int n_open = a.key_mask ? 0 : keys_seen(a, at.t0); /* that all of them see */
    const uint16_t *q =
        (const uint16_t *)a.q + at.b * a.q_batch + at.t0 * a.q_stride + at.head * a.D;

    if (threadIdx.x == 0) *head = key_head_of(a, at.b, at.head / a.group);
    __syncthreads();
    float out[WIDTH / 8][4] = {};
    struct softmax x = {{-INFINITY, -INFINITY}, {0, 0}};
    if (n_keys > 0) {
        start_panels<WIDTH, by::QUERIES, by::THREADS>(q_at, q, a.q_stride, a.Tq - at.t0, NULL);
        start_key_panels<WIDTH, KEYS, by::THREADS>(a, k_at, head, false, 0);
        copy_async_commit();
        start_key_panels<WIDTH, KEYS, by::THREADS>(a, v_at, head, true, 0);
        if (KEYS < n_keys)
            start_key_panels<WIDTH, KEYS, by::THREADS>(a, k_at + by::TILE, head, false, KEYS);
        copy_async_commit();

        const shared_matrix q_rows = matrix_by_rows(q_at + warpgroup_row() * PANEL_ROW_NBYTES);
        float s[COLS][4], fade[2];
        uint32_t p[COLS / 2][4];
        copies_to_products<1>();
        products_fence();
        begin_scores<T, WIDTH, by::QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at));
        products_commit();
        products_wait<0>();
        settle(s);
        make_p<WIDTH>(a, 0, KEYS > n_open, &x, s, fade); /* nothing to fade yet */
        pack_operand<T, COLS>(p, s);

        int k0 = KEYS; /* of the tile whose scores are made; the one before meets its values */
        unsigned odd = by::TILE,
                 even = 0; /* where its keys are; its values when it is their turn */
        for (; k0 < n_keys; k0 += KEYS) {
            /* keys k0 and the values before them are here; no thread reads the tiles before those
             */
            copies_to_products<0>();
            start_key_panels<WIDTH, KEYS, by::THREADS>(a, v_at + odd, head, true, k0);
            if (k0 + KEYS < n_keys)
                start_key_panels<WIDTH, KEYS, by::THREADS>(a, k_at + even, head, false, k0 + KEYS);
            copy_async_commit();
            products_fence();
            begin_scores<T, WIDTH, by::QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at + odd));
            products_commit();
            begin_sums<T, WIDTH, KEYS>(out, p,
                                       matrix_by_columns(v_at + even, KEYS * PANEL_ROW_NBYTES));
            products_commit();
            products_wait<1>();
            settle(s);
            make_p<WIDTH>(a, k0, k0 + KEYS > n_open, &x, s, fade);
            products_wait<0>();
            settle(out);
            settle(p);
            fade_sums<WIDTH>(out, fade);
            pack_operand<T, COLS>(p, s);
            odd ^= by::TILE, even ^= by::TILE;
        }
        copies_to_products<0>(); /* the last values; no thread reads the queries any more */
        products_fence();
        begin_sums<T, WIDTH, KEYS>(out, p, matrix_by_columns(v_at + even, KEYS * PANEL_ROW_NBYTES));
        products_commit();
        products_wait<0>();
        settle(out);
    }
    store_out<T, WIDTH>(a, mem, x, out);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH>
static cz_status forward(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    using by = hopper_forward<WIDTH>;
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, by::QUERIES);
    return cuda_launch("attention forward (wgmma)", attention_hopper_forward_kernel<T, WIDTH>, n,
                       by::THREADS, by::SHARED, stream, *a);
}

cz_status attention_hopper_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream)
{
    if (a->D == 64)
        return dtype == DTYPE_F16 ? forward<struct f16, 64>(a, stream)
                                  : forward<struct bf16, 64>(a, stream);
    return dtype == DTYPE_F16 ? forward<struct f16, 128>(a, stream)
                              : forward<struct bf16, 128>(a, stream);
}
