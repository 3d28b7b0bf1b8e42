/* Attention's forward pass on the tensor cores of compute capability 9.0.
 *
 * A block owns 128 queries of a head, 64 for each of two warpgroups that multiply, and walks the
 * keys that any of them sees, a tile of 128 at a time. A thread of a third warpgroup, which leaves
 * its registers to the others, brings the tiles by tensor maps: two of keys and two of values are
 * in shared memory, and the next one is brought once both warpgroups are through with its place.
 *
 * While a tile's values are multiplied the scores of the next one are, too; their softmax is worked
 * out while the other warpgroup multiplies: the two take turns at the tensor cores. Algorithm: Shah
 * et al., "FlashAttention-3", arXiv 2407.08608, sections 3.1 and 3.2. Keys hidden by a mask would
 * have to be zeroed in shared memory: such calls are the flash row's. Limit: 4·Tq·Tk·D FLOP per
 * head (half when causal) at the speed of wgmma. */
#include "device/cuda/tensor_copy.h"
#include "ops/attention/attention_hopper_cuda_impl.h"

#define MULTIPLIERS 2 /* warpgroups; the one that brings comes behind them */
#define THREADS     ((MULTIPLIERS + 1) * WARPGROUP)
#define QUERIES     (64 * MULTIPLIERS)
#define KEYS        128 /* of a tile */
#define COLS        (KEYS / 8)
#define PLACES      2 /* for tiles of keys, and for tiles of values */

/* 65536 registers of a multiprocessor, 168 for each thread at first: a warpgroup that multiplies
 * has WIDTH/2 of sums, KEYS/2 of scores and KEYS/4 of p. */
#define REGISTERS_TO_BRING    24
#define REGISTERS_TO_MULTIPLY 240

/* Arrivals of a block, 8 bytes each: tiles that are here, places that are free, turns. */
enum { Q_HERE = 0, K_HERE, V_HERE = K_HERE + PLACES, K_FREE = V_HERE + PLACES };
enum { V_FREE = K_FREE + PLACES, TURN = V_FREE + PLACES, N_ARRIVALS = TURN + MULTIPLIERS };

template <int WIDTH> struct hopper_forward {
    static constexpr int Q_TILE = tile_nbytes<WIDTH>(QUERIES), TILE = tile_nbytes<WIDTH>(KEYS);
    static constexpr int K_AT = Q_TILE, V_AT = K_AT + PLACES * TILE;
    static constexpr int ARRIVALS_AT = V_AT + PLACES * TILE;
    static constexpr size_t SHARED = PANEL_ALIGN + ARRIVALS_AT + 8 * N_ARRIVALS;
};

/* The state of the online softmax of a thread's two rows: the largest raw score, and this lane's
 * part of Σ exp2((s − top)·scale). */
struct softmax {
    float top[2], total[2];
};

CUDA_FN struct place queries_of(const struct attention_on_gpu &a, unsigned block)
{
    return place_of<QUERIES>(block, a.H, a.Tq, a.causal); /* longest first */
}

/* Raw scores become p. fade: what the sums so far are to be multiplied with. */
CUDA_FN void make_p(const struct attention_on_gpu &a, int k0, bool is_masked, struct softmax *x,
                    float (&s)[COLS][4], float fade[2])
{
    if (is_masked) {
        const struct place at = queries_of(a, block_here());
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

/* What makes the sums is not moved behind the wait that follows: ptxas sees no reason why not, but
 * moves nothing that a branch needs beyond it. Sums are never negative. */
CUDA_FN void stay_before(const struct softmax *x)
{
    if (x->total[0] + x->total[1] < 0) __nanosleep(0);
}

template <int WIDTH> CUDA_FN void fade_sums(float (&out)[WIDTH / 8][4], const float fade[2])
{
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) out[i / 4][i % 4] *= fade[i % 4 / 2];
}

/* out and lse of a warp's queries; no thread of its warpgroup reads q in shared memory any more. */
template <typename T, int WIDTH>
CUDA_FN void store_out(const struct attention_on_gpu &a, unsigned char *q_tile,
                       const struct softmax &x, const float (&out)[WIDTH / 8][4])
{
    const struct place at = queries_of(a, block_here());
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

/* ---- the warpgroup that brings -----------------------------------------------------------------
 */

CUDA_FN shared_at arrivals_at(shared_at all, int which, int place)
{
    return all + 8 * (unsigned)(which + place);
}

/* A tile of n_rows positions of a head. */
template <int WIDTH>
CUDA_FN void bring(shared_at to, const struct tensor_map *map, int n_rows, const struct place &from,
                   shared_at here)
{
    arrive_expecting(here, (unsigned)tile_nbytes<WIDTH>(n_rows));
#pragma unroll
    for (int p = 0; p < WIDTH / PANEL_COLUMNS; p++)
        copy_tile(to + p * n_rows * PANEL_ROW_NBYTES, map, p * PANEL_COLUMNS, from.head, from.t0,
                  from.b, here);
}

/* Tile i of keys or of values, once its place is free. */
template <int WIDTH>
CUDA_FN void bring_keys(shared_at tiles, const struct tensor_map *map, int b, int head, int i,
                        shared_at arrivals, int here, int free)
{
    const int place = i % PLACES;
    arrivals_wait(arrivals_at(arrivals, free, place), (unsigned)(i / PLACES & 1) ^ 1);
    bring<WIDTH>(tiles + place * tile_nbytes<WIDTH>(KEYS), map, KEYS, {b, head, i * KEYS},
                 arrivals_at(arrivals, here, place));
}

/* ---- the warpgroups that multiply --------------------------------------------------------------
 */

/* Tile i is here. */
CUDA_FN void await_tile(shared_at arrivals, int here, int i)
{
    arrivals_wait(arrivals_at(arrivals, here, i % PLACES), (unsigned)(i / PLACES & 1));
}

/* This warp is through with it. */
CUDA_FN void leave_tile(shared_at arrivals, int free, int i)
{
    if (thread_here() % 32 == 0) arrive(arrivals_at(arrivals, free, i % PLACES));
}

/* The first warpgroup's turn number 0 has come from the beginning. */
CUDA_FN void await_turn(shared_at arrivals, int group, int number)
{
    arrivals_wait(arrivals_at(arrivals, TURN, group), (unsigned)(number + (group == 0)) & 1);
}

CUDA_FN void pass_turn(shared_at arrivals, int group)
{
    if (thread_here() % 32 == 0) arrive(arrivals_at(arrivals, TURN, 1 - group));
}

template <typename T, int WIDTH>
CUDA_FN void multiply_all(const struct attention_on_gpu &a, int n_tiles, int n_open,
                          unsigned char *mem, struct softmax *x, float (&out)[WIDTH / 8][4])
{
    using by = hopper_forward<WIDTH>;
    const shared_at q_at = shared_address(mem), k_at = q_at + by::K_AT, v_at = q_at + by::V_AT;
    const shared_at arrivals = q_at + by::ARRIVALS_AT;
    const int group = (int)(thread_here() / WARPGROUP);
    const shared_matrix q_rows = matrix_by_rows(q_at + warpgroup_row() * PANEL_ROW_NBYTES);
    float s[COLS][4], fade[2];
    uint32_t p[COLS / 2][4];
    arrivals_wait(arrivals_at(arrivals, Q_HERE, 0), 0);
    await_tile(arrivals, K_HERE, 0);
    products_fence();
    begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at));
    products_commit();
    products_wait<0>();
    settle(s);
    leave_tile(arrivals, K_FREE, 0);
    make_p(a, 0, KEYS > n_open, x, s, fade); /* nothing to fade yet */
    pack_operand<T, COLS>(p, s);
#pragma unroll 1
    for (int i = 1; i < n_tiles;
         i++) { /* the tile whose scores are made; values of the one before */
        const unsigned k_place = (unsigned)(i % PLACES * by::TILE);
        const unsigned v_place = (unsigned)((i - 1) % PLACES * by::TILE);
        await_tile(arrivals, K_HERE, i);
        await_tile(arrivals, V_HERE, i - 1);
        await_turn(arrivals, group, i - 1);
        products_fence();
        begin_scores<T, WIDTH, QUERIES, KEYS, KEYS>(s, q_rows, matrix_by_rows(k_at + k_place));
        products_commit();
        begin_sums<T, WIDTH, KEYS>(out, p,
                                   matrix_by_columns(v_at + v_place, KEYS * PANEL_ROW_NBYTES));
        products_commit();
        pass_turn(arrivals, group);
        products_wait<1>();
        settle(s);
        leave_tile(arrivals, K_FREE, i);
        make_p(a, i * KEYS, (i + 1) * KEYS > n_open, x, s, fade);
        stay_before(x);
        products_wait<0>();
        settle(out);
        settle(p);
        leave_tile(arrivals, V_FREE, i - 1);
        fade_sums<WIDTH>(out, fade);
        pack_operand<T, COLS>(p, s);
    }
    const unsigned v_place = (unsigned)((n_tiles - 1) % PLACES * by::TILE);
    await_tile(arrivals, V_HERE, n_tiles - 1);
    products_fence();
    begin_sums<T, WIDTH, KEYS>(out, p, matrix_by_columns(v_at + v_place, KEYS * PANEL_ROW_NBYTES));
    products_commit();
    products_wait<0>();
    settle(out);
    warpgroups_sync(group,
                    WARPGROUP); /* all of it have waited for their scores: q is no longer read */
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_forward_kernel(const __grid_constant__ struct attention_on_gpu a,
                                    const __grid_constant__ struct tensor_map q_map,
                                    const __grid_constant__ struct tensor_map k_map,
                                    const __grid_constant__ struct tensor_map v_map)
{
    using by = hopper_forward<WIDTH>;
    CUDA_DYNAMIC_SHARED(unsigned char, room);
    unsigned char *const mem = first_panel(room);
    const shared_at q_at = shared_address(mem), arrivals = q_at + by::ARRIVALS_AT;
    const struct place at = queries_of(a, blockIdx.x);
    const int n_keys = keys_seen(a, min(at.t0 + QUERIES, a.Tq) - 1);
    const int n_tiles = (n_keys + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        for (int i = 0; i < N_ARRIVALS; i++) /* one that brings; warps that are through or pass */
            arrivals_init(arrivals_at(arrivals, i, 0), i < K_FREE ? 1
                                                       : i < TURN ? MULTIPLIERS * 4
                                                                  : 4);
        arrivals_known();
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLIERS * WARPGROUP) {
        registers_give_back<REGISTERS_TO_BRING>();
        if (threadIdx.x > MULTIPLIERS * WARPGROUP || n_tiles == 0) return;
        const int g = at.head / a.group;
        bring<WIDTH>(q_at, &q_map, QUERIES, at, arrivals_at(arrivals, Q_HERE, 0));
#pragma unroll 1
        for (int i = 0; i <= n_tiles; i++) { /* in the order in which they are needed */
            if (i < n_tiles)
                bring_keys<WIDTH>(q_at + by::K_AT, &k_map, at.b, g, i, arrivals, K_HERE, K_FREE);
            if (i > 0)
                bring_keys<WIDTH>(q_at + by::V_AT, &v_map, at.b, g, i - 1, arrivals, V_HERE,
                                  V_FREE);
        }
    } else {
        registers_take<REGISTERS_TO_MULTIPLY>();
        float out[WIDTH / 8][4] = {};
        struct softmax x = {{-INFINITY, -INFINITY}, {0, 0}};
        if (n_tiles > 0)
            multiply_all<T, WIDTH>(a, n_tiles, keys_seen(a, at.t0) /* that all see */, mem, &x,
                                   out);
        store_out<T, WIDTH>(a, mem, x, out);
    }
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int WIDTH>
static cz_status forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                         struct dev_stream *stream)
{
    const struct tensor_of_heads tensors[3] = {
        {a->q, a->B, a->Tq, a->H, a->D, a->q_stride, a->q_batch, dtype},
        {a->k, a->B, a->Tk, a->G, a->D, a->k_stride, a->k_batch, dtype},
        {a->v, a->B, a->Tk, a->G, a->D, a->v_stride, a->v_batch, dtype}};
    const unsigned n = (unsigned)a->B * a->H * cuda_blocks((size_t)a->Tq, QUERIES);
    struct tensor_map maps[3];
    for (int i = 0; i < 3; i++)
        TRY(tensor_map_make(&maps[i], &tensors[i], i == 0 ? QUERIES : KEYS));
    return cuda_launch("attention forward (wgmma)", attention_hopper_forward_kernel<T, WIDTH>, n,
                       THREADS, hopper_forward<WIDTH>::SHARED, stream, *a, maps[0], maps[1],
                       maps[2]);
}

cz_status attention_hopper_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream)
{
    if (a->D == 64)
        return dtype == DTYPE_F16 ? forward<struct f16, 64>(a, dtype, stream)
                                  : forward<struct bf16, 64>(a, dtype, stream);
    return dtype == DTYPE_F16 ? forward<struct f16, 128>(a, dtype, stream)
                              : forward<struct bf16, 128>(a, dtype, stream);
}
