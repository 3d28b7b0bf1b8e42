/* Table look-up and its gradient on a GPU: the scalar row's bits.
 *
 * Forward is limited by memory: N·C elements read and written.
 * Backward sorts tokens by id (stable radix sort, 8 bits a pass, in the workspace; no host round
 * trip), and the threads of a run of equal ids add up its rows of dy in token order. Limit: memory,
 * N·C elements read, and V·C written when rows without a token become zero.
 * An id outside [0,V) is not looked up: its row of y becomes NaN, so that it shows; it gives no
 * gradient. */
#include "device/cuda/kernel.h"
#include "ops/cuda_impl.h"
#include "ops/embedding/embedding_impl.h"

#include <math.h>

#define BLOCK 256

/* ---- forward -----------------------------------------------------------------------------------
 */

/* N columns of token n per thread. */
template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    gather_kernel(int64_t n_tokens, int64_t C, int64_t V, const int32_t *ids, const T *table, T *y,
                  bool accumulate)
{
    const int64_t n = cuda_row(), c = cuda_item() * N;
    if (n >= n_tokens || c >= C) return;
    const int64_t id = ids[n];
    pack<T, N> row;
    if (id < 0 || id >= V) {
#pragma unroll
        for (int k = 0; k < N; k++) row.v[k] = from_f32<T>(NAN);
    } else {
        row = *(const pack<T, N> *)(const void *)(table + id * C + c);
    }
    if (accumulate) {
        float old[N];
        load_f32<N>(y + n * C + c, old);
#pragma unroll
        for (int k = 0; k < N; k++) row.v[k] = from_f32<T>(old[k] + to_f32(row.v[k]));
    }
    *(pack<T, N> *)(void *)(y + n * C + c) = row;
}

template <typename T, int N>
static cz_status gather_by(struct dev_stream *stream, const struct embedding_args *a)
{
    const struct cuda_rows rows = cuda_rows((size_t)a->N, (size_t)(a->C / N), BLOCK);
    return cuda_launch("embedding_forward", gather_kernel<T, N>, rows.grid, rows.block, 0, stream,
                       a->N, a->C, a->V, a->ids, (const T *)a->table, (T *)a->y, a->accumulate);
}

static cz_status forward(struct ops *ops, struct dev_stream *stream, const struct embedding_args *a)
{
    (void)ops;
    TRY(embedding_forward_check(a));
    if (a->N == 0 || a->C == 0) return CZ_OK;
    const bool aligned = cuda_is_aligned(a->table, 16) && cuda_is_aligned(a->y, 16);
    CUDA_BY_DTYPE(a->dtype, T, {
        return aligned && a->C % CUDA_LANES<T> == 0 ? gather_by<T, CUDA_LANES<T>>(stream, a)
                                                    : gather_by<T, 1>(stream, a);
    });
    return CZ_OK;
}

/* ---- tokens sorted by id -----------------------------------------------------------------------
 */

enum { DIGIT_BITS = 8, N_DIGITS = 1 << DIGIT_BITS, SORT_WARPS = BLOCK / CUDA_WARP };
enum { TILES_MAX = 512, SCAN_BLOCK = 1024, SCAN_EACH = 8 };

/* A token and its id, or `nobody`: the id of tokens without a gradient, past all others. */
struct token {
    uint32_t id, at;
};

/* What a sort needs, from N and V alone. A tile is one block's share of the tokens, a warp_share
 * that of each of its warps. */
struct sort_plan {
    size_t n, warp_share, n_tiles;
    uint32_t nobody;
    struct token *tokens, *spare;
    uint32_t *counts; /* (N_DIGITS, n_tiles) */
};

static size_t lines(size_t nbytes)
{
    return (nbytes + 255) / 256 * 256;
}

static struct sort_plan plan_sort(const struct embedding_args *a, void *workspace, size_t *nbytes)
{
    struct sort_plan s = {};
    s.n = (size_t)a->N;
    s.nobody = a->V < INT32_MAX ? (uint32_t)a->V : (uint32_t)INT32_MAX + 1;
    const size_t share = (s.n + TILES_MAX * SORT_WARPS - 1) / (TILES_MAX * SORT_WARPS);
    s.warp_share = share < 128 ? 128 : (share + CUDA_WARP - 1) / CUDA_WARP * CUDA_WARP;
    s.n_tiles = (s.n + SORT_WARPS * s.warp_share - 1) / (SORT_WARPS * s.warp_share);
    const size_t tokens = lines(s.n * sizeof(struct token));
    char *base = (char *)workspace;
    s.tokens = (struct token *)(void *)base;
    s.spare = (struct token *)(void *)(base + tokens);
    s.counts = (uint32_t *)(void *)(base + 2 * tokens);
    *nbytes = 2 * tokens + lines(N_DIGITS * s.n_tiles * sizeof(uint32_t));
    return s;
}

static __global__ void __launch_bounds__(BLOCK)
    tokens_kernel(struct sort_plan s, const int32_t *ids, int64_t padding_id)
{
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= s.n) return;
    const int64_t id = ids[i];
    const bool counts = id >= 0 && id < (int64_t)s.nobody && id != padding_id;
    s.tokens[i] = {counts ? (uint32_t)id : s.nobody, (uint32_t)i};
}

/* The tokens of a warp's share, 32 at a time; a lane past the end has digit N_DIGITS. `peers`: the
 * lanes with this lane's digit. */
struct digit_lane {
    struct token token;
    uint32_t digit;
    unsigned peers;
    bool leads;
};

CUDA_FN struct digit_lane digit_of_lane(const struct sort_plan *s, size_t i, unsigned shift)
{
    struct digit_lane d = {};
    const unsigned lane = threadIdx.x % CUDA_WARP;
    d.digit = N_DIGITS;
    if (i < s->n) {
        d.token = s->tokens[i];
        d.digit = d.token.id >> shift & (N_DIGITS - 1);
    }
    d.peers = __match_any_sync(CUDA_ALL_LANES, d.digit);
    d.leads = i < s->n && (unsigned)__ffs((int)d.peers) == lane + 1;
    return d;
}

CUDA_FN size_t share_begin(const struct sort_plan *s)
{
    return ((size_t)blockIdx.x * SORT_WARPS + threadIdx.x / CUDA_WARP) * s->warp_share;
}

/* counts[warp][digit] of this block's tile. */
CUDA_FN void count_digits(const struct sort_plan *s, unsigned shift,
                          uint32_t counts[SORT_WARPS][N_DIGITS])
{
    const unsigned warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    for (unsigned digit = lane; digit < N_DIGITS; digit += CUDA_WARP) counts[warp][digit] = 0;
    __syncwarp();
    const size_t begin = share_begin(s);
    for (size_t i = begin; i < begin + s->warp_share; i += CUDA_WARP) {
        const struct digit_lane d = digit_of_lane(s, i + lane, shift);
        if (d.leads) counts[warp][d.digit] += (uint32_t)__popc(d.peers);
        __syncwarp();
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(BLOCK) count_kernel(struct sort_plan s, unsigned shift)
{
    __shared__ uint32_t counts[SORT_WARPS][N_DIGITS];
    count_digits(&s, shift, counts);
    uint32_t sum = 0; /* a digit per thread */
    for (int warp = 0; warp < SORT_WARPS; warp++) sum += counts[warp][threadIdx.x];
    s.counts[threadIdx.x * s.n_tiles + blockIdx.x] = sum;
}

/* Σ of x over the threads before this one; the whole block's to *total. One warp's worth of warps.
 */
CUDA_FN uint32_t sum_before(uint32_t x, uint32_t *room, uint32_t *total)
{
    const unsigned warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    uint32_t sum = x;
    for (unsigned by = 1; by < CUDA_WARP; by *= 2) {
        const uint32_t below = __shfl_up_sync(CUDA_ALL_LANES, sum, by);
        if (lane >= by) sum += below;
    }
    __syncthreads(); /* an earlier use of `room` is over */
    if (lane == CUDA_WARP - 1) room[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (unsigned w = 0; w < SCAN_BLOCK / CUDA_WARP; w++) {
        if (w == warp) before = all;
        all += room[w];
    }
    *total = all;
    return before + sum - x;
}

/* counts become where each tile's tokens of each digit begin: one block walks the table. */
static __global__ void __launch_bounds__(SCAN_BLOCK) scan_kernel(struct sort_plan s)
{
    __shared__ uint32_t room[SCAN_BLOCK / CUDA_WARP];
    const size_t n = N_DIGITS * s.n_tiles;
    uint32_t carry = 0;
    for (size_t base = 0; base < n; base += SCAN_BLOCK * SCAN_EACH) {
        const size_t first = base + threadIdx.x * SCAN_EACH;
        uint32_t x[SCAN_EACH], sum = 0, total;
#pragma unroll
        for (int k = 0; k < SCAN_EACH; k++) {
            x[k] = first + (size_t)k < n ? s.counts[first + (size_t)k] : 0;
            sum += x[k];
        }
        uint32_t at = carry + sum_before(sum, room, &total);
#pragma unroll
        for (int k = 0; k < SCAN_EACH; k++) {
            if (first + (size_t)k < n) s.counts[first + (size_t)k] = at;
            at += x[k];
        }
        carry += total;
    }
}

/* Each token to its place in `spare`, those of one digit in the order in which they were. */
static __global__ void __launch_bounds__(BLOCK) scatter_kernel(struct sort_plan s, unsigned shift)
{
    __shared__ uint32_t next[SORT_WARPS][N_DIGITS];
    const unsigned warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    count_digits(&s, shift, next);
    uint32_t at = s.counts[threadIdx.x * s.n_tiles + blockIdx.x]; /* a digit per thread */
    for (int w = 0; w < SORT_WARPS; w++) {
        const uint32_t count = next[w][threadIdx.x];
        next[w][threadIdx.x] = at;
        at += count;
    }
    __syncthreads();
    const size_t begin = share_begin(&s);
    for (size_t i = begin; i < begin + s.warp_share; i += CUDA_WARP) {
        const struct digit_lane d = digit_of_lane(&s, i + lane, shift);
        if (i + lane < s.n) {
            const unsigned before = (unsigned)__popc(d.peers & ((1u << lane) - 1));
            s.spare[next[warp][d.digit] + before] = d.token;
        }
        __syncwarp();
        if (d.leads) next[warp][d.digit] += (uint32_t)__popc(d.peers);
        __syncwarp();
    }
}

/* s->tokens: ascending by id, tokens of one id in their order. */
static cz_status sort_tokens(struct dev_stream *stream, const struct embedding_args *a,
                             struct sort_plan *s)
{
    static const char what[] = "embedding_backward: sort";
    const unsigned tiles = (unsigned)s->n_tiles;
    TRY(cuda_launch(what, tokens_kernel, cuda_blocks(s->n, BLOCK), BLOCK, 0, stream, *s, a->ids,
                    a->has_padding ? a->padding_id : -1));
    for (unsigned shift = 0; shift < 32 && s->nobody >> shift > 0; shift += DIGIT_BITS) {
        TRY(cuda_launch(what, count_kernel, tiles, BLOCK, 0, stream, *s, shift));
        TRY(cuda_launch(what, scan_kernel, 1, SCAN_BLOCK, 0, stream, *s));
        TRY(cuda_launch(what, scatter_kernel, tiles, BLOCK, 0, stream, *s, shift));
        struct token *sorted = s->spare;
        s->spare = s->tokens;
        s->tokens = sorted;
    }
    return CZ_OK;
}

/* ---- sums over runs of one id ------------------------------------------------------------------
 */

enum { LONG_RUN = 32, SHORT_AHEAD = 4, LONG_BLOCK = 64 };

struct run_sums {
    size_t n;
    int64_t C;
    uint32_t nobody;
    const struct token *tokens;
    bool accumulate;
};

CUDA_FN bool run_has(const struct run_sums *r, size_t i, uint32_t id)
{
    return i < r->n && r->tokens[i].id == id;
}

template <int N, typename G>
CUDA_FN void store_sums(const struct run_sums *r, G *dtable, uint32_t id, int64_t c, float sums[N])
{
    G *to = dtable + id * r->C + c;
    if (r->accumulate) {
        float old[N];
        load_f32<N>(to, old);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] = old[k] + sums[k];
    }
    store_f32<N>(to, sums);
}

/* Runs shorter than LONG_RUN. Threads stand at every token, N columns each, and work where a run
 * begins: a few rows are under way at a time. */
template <typename T, typename G, int N>
static __global__ void __launch_bounds__(BLOCK)
    short_runs_kernel(struct run_sums r, const T *dy, G *dtable)
{
    const size_t begin = (size_t)cuda_row();
    const int64_t c = cuda_item() * N;
    if (begin >= r.n || c >= r.C) return;
    const uint32_t id = r.tokens[begin].id;
    if (id == r.nobody || (begin > 0 && r.tokens[begin - 1].id == id)) return;
    if (run_has(&r, begin + LONG_RUN - 1, id)) return;
    float sums[N] = {0};
    bool more = true;
    for (size_t i = begin; more; i += SHORT_AHEAD) {
        pack<T, N> rows[SHORT_AHEAD];
        bool in[SHORT_AHEAD];
#pragma unroll
        for (int k = 0; k < SHORT_AHEAD; k++) {
            in[k] = more = more && run_has(&r, i + (size_t)k, id);
            if (in[k])
                rows[k] =
                    *(const pack<T, N> *)(const void *)(dy + r.tokens[i + (size_t)k].at * r.C + c);
        }
#pragma unroll
        for (int k = 0; k < SHORT_AHEAD; k++)
#pragma unroll
            for (int l = 0; l < N; l++)
                if (in[k]) sums[l] += to_f32(rows[k].v[l]);
    }
    store_sums<N>(&r, dtable, id, c, sums);
}

/* Where the run with token `at`, a multiple of LONG_RUN, begins, or n when the run is short or has
 * an earlier such token. Whole warps call. */
CUDA_FN size_t long_run_begin(const struct run_sums *r, size_t at)
{
    const uint32_t id = r->tokens[at].id;
    const size_t back = threadIdx.x % CUDA_WARP + 1;
    const unsigned same =
        __ballot_sync(CUDA_ALL_LANES, back <= at && r->tokens[at - back].id == id);
    if (same == CUDA_ALL_LANES || id == r->nobody) return r->n;
    const size_t begin = at - (size_t)(__ffs((int)~same) - 1);
    return run_has(r, begin + LONG_RUN - 1, id) ? begin : r->n;
}

/* Runs of LONG_RUN tokens and more (a common word, an unknown one): a block per LONG_RUN tokens and
 * some columns, N per thread, so that many rows are under way (eight blocks on a multiprocessor:
 * the compiler would mix loads and sums to fit in more). */
template <typename T, typename G, int N>
static __global__ void __launch_bounds__(LONG_BLOCK, 8)
    long_runs_kernel(struct run_sums r, const T *dy, G *dtable)
{
    const size_t at = (size_t)blockIdx.x * LONG_RUN;
    const int64_t c = ((int64_t)blockIdx.y * LONG_BLOCK + threadIdx.x) * N;
    const unsigned lane = threadIdx.x % CUDA_WARP;
    size_t i = long_run_begin(&r, at);
    if (i == r.n) return;
    const uint32_t id = r.tokens[at].id;
    const T *column = dy + (c < r.C ? c : 0); /* lanes past the end stay: they know tokens */
    float sums[N] = {0};
    for (; run_has(&r, i + LONG_RUN - 1, id); i += LONG_RUN) {
        const uint32_t token = r.tokens[i + lane].at;
        pack<T, N> rows[LONG_RUN];
#pragma unroll
        for (int k = 0; k < LONG_RUN; k++)
            rows[k] =
                *(const pack<T, N> *)(const void *)(column +
                                                    __shfl_sync(CUDA_ALL_LANES, token, k) * r.C);
#pragma unroll
        for (int k = 0; k < LONG_RUN; k++)
#pragma unroll
            for (int l = 0; l < N; l++) sums[l] += to_f32(rows[k].v[l]);
    }
    for (; run_has(&r, i, id); i++) {
        float row[N];
        load_f32<N>(column + r.tokens[i].at * r.C, row);
#pragma unroll
        for (int l = 0; l < N; l++) sums[l] += row[l];
    }
    if (c < r.C) store_sums<N>(&r, dtable, id, c, sums);
}

/* SHORT, LONG: columns per thread. */
template <typename T, typename G, int SHORT, int LONG>
static cz_status sum_runs_by(struct dev_stream *stream, const struct embedding_args *a,
                             const struct run_sums &r)
{
    static const char what[] = "embedding_backward";
    const struct cuda_rows rows = cuda_rows(r.n, (size_t)(a->C / SHORT), BLOCK);
    TRY(cuda_launch(what, short_runs_kernel<T, G, SHORT>, rows.grid, rows.block, 0, stream, r,
                    (const T *)a->dy, (G *)a->dtable));
    if (r.n < LONG_RUN) return CZ_OK;
    const dim3 grid(cuda_blocks(r.n, LONG_RUN), cuda_blocks((size_t)a->C, LONG_BLOCK * LONG));
    return cuda_launch(what, long_runs_kernel<T, G, LONG>, grid, LONG_BLOCK, 0, stream, r,
                       (const T *)a->dy, (G *)a->dtable);
}

static cz_status sum_runs(struct dev_stream *stream, const struct embedding_args *a,
                          const struct sort_plan *s)
{
    const struct run_sums r = {s->n, a->C, s->nobody, s->tokens, a->dtable_accumulate};
    const bool aligned = cuda_is_aligned(a->dy, 16) && cuda_is_aligned(a->dtable, 16);
    CUDA_BY_DTYPE(a->dtype, T, CUDA_BY_DTYPE(a->grad_dtype, G, {
                      constexpr int N = CUDA_LANES<T>, LONG = (int)(4 / sizeof(T));
                      return aligned && a->C % 8 == 0 ? sum_runs_by<T, G, N, LONG>(stream, a, r)
                                                      : sum_runs_by<T, G, 1, 1>(stream, a, r);
                  }));
    return CZ_OK;
}

static size_t embedding_workspace(const struct ops *ops, const struct embedding_args *a)
{
    (void)ops;
    size_t nbytes;
    plan_sort(a, NULL, &nbytes);
    return nbytes;
}

static cz_status backward(struct ops *ops, struct dev_stream *stream,
                          const struct embedding_args *a)
{
    struct device *dev = ops->device;
    TRY(embedding_backward_check(a, embedding_workspace(ops, a)));
    if (a->C == 0) return CZ_OK;
    if (!a->dtable_accumulate)
        TRY(dev->ops->fill_zero(dev, stream, a->dtable,
                                (size_t)(a->V * a->C) * dtype_size(a->grad_dtype)));
    if (a->N == 0) return CZ_OK;
    size_t nbytes;
    struct sort_plan s = plan_sort(a, a->workspace, &nbytes);
    TRY(sort_tokens(stream, a, &s));
    return sum_runs(stream, a, &s);
}

extern "C" cz_status embedding_wire_cuda(struct ops *ops)
{
    ops->embedding_forward = forward;
    ops->embedding_backward = backward;
    ops->embedding_workspace = embedding_workspace;
    return CZ_OK;
}
