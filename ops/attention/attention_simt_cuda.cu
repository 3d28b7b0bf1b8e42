/* Attention on a GPU in fp32 arithmetic: every case that the header allows.
 *
 * A block of 256 threads, 16 by 16, works on tiles of 64 rows (queries, or keys in the pass that
 * makes dk and dv) by 64 columns; thread (ty, tx) holds rows ty + 16i and columns tx + 16j of a
 * tile. Products run over the head's width in chunks of 32 that are copied to shared memory as
 * fp32. A block makes WIDE columns of its result; where D is more, further blocks make the rest
 * and compute the same tiles again. Sums over d rise by one element at a time, as in delta, so that
 * a single visible key gives gradients of exactly 0. Limit: fp32 fused multiply-adds. */
#include "ops/attention/attention_cuda_impl.h"

#define THREADS 256
#define TILE    64
#define PER     4           /* rows and columns of a thread */
#define CHUNK   32          /* of the width, at a time */
#define X_LD    (CHUNK + 4) /* rows start 4 banks apart: 16-byte reads of 8 rows do not collide */
#define P_LD    (TILE + 4)

/* Shared memory: the tile that the second product reads, then the operands. */
template <int WIDE> struct room {
    float p[TILE * P_LD];
    union {
        float xy[2][TILE * X_LD];
        float z[TILE * (WIDE + 4)];
    };
};

/* Up to 64 rows of a tensor, from one head of one batch row; rows that do not exist, and keys that
 * the mask hides, read as zeros. */
template <typename T> struct rows {
    const T *p;
    int64_t stride;
    int n, D;
    const uint8_t *visible; /* NULL: all */
};

template <typename T>
CUDA_FN struct rows<T> rows_of(const struct attention_on_gpu &a, const void *p, int64_t batch,
                               int64_t stride, int b, int head, int t0, int n) {
    const int64_t at = (int64_t)b * batch + (int64_t)t0 * stride + (int64_t)head * a.D;
    return {(const T *)p + at, stride, min(TILE, n - t0), a.D, NULL};
}

template <typename T>
CUDA_FN struct rows<T> q_rows(const struct attention_on_gpu &a, int b, int h, int q0) {
    return rows_of<T>(a, a.q, a.q_batch, a.q_stride, b, h, q0, a.Tq);
}

template <typename T>
CUDA_FN struct rows<T> out_rows(const struct attention_on_gpu &a, const void *p, int b, int h,
                                int q0) {
    return rows_of<T>(a, p, a.Tq *a.out_stride, a.out_stride, b, h, q0, a.Tq);
}

template <typename T>
CUDA_FN struct rows<T> key_rows(const struct attention_on_gpu &a, int b, int g, int k0,
                                bool values) {
    struct rows<T> r = values ? rows_of<T>(a, a.v, a.v_batch, a.v_stride, b, g, k0, a.Tk)
                              : rows_of<T>(a, a.k, a.k_batch, a.k_stride, b, g, k0, a.Tk);
    if (a.key_mask) r.visible = a.key_mask + (int64_t)b * a.Tk + k0;
    return r;
}

/* ---- tiles -------------------------------------------------------------------------------------
 */

/* Columns [d0, d0 + COLUMNS) of the rows, as fp32, rows LD apart. */
template <int COLUMNS, int LD, typename T>
CUDA_FN void load_rows(float *to, const struct rows<T> &r, int d0)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < TILE * COLUMNS; i += THREADS) {
        const int row = i / COLUMNS, c = i % COLUMNS;
        const bool is = row < r.n && d0 + c < r.D && (!r.visible || r.visible[row]);
        to[row * LD + c] = is ? to_f32(r.p[row * r.stride + d0 + c]) : 0.0f;
    }
}

CUDA_FN void load_4(float x[4], const float *p)
{
    load_f32<4>(p, x);
}

/* s = x·yᵀ over the whole width. Begins and ends with a barrier. */
template <typename T>
CUDA_FN void multiply(float s[PER][PER], float (*xy)[TILE * X_LD], const struct rows<T> &x,
                      const struct rows<T> &y)
{
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < PER * PER; i++) s[i / PER][i % PER] = 0;
    for (int d0 = 0; d0 < x.D; d0 += CHUNK) {
        __syncthreads();
        load_rows<CHUNK, X_LD>(xy[0], x, d0);
        load_rows<CHUNK, X_LD>(xy[1], y, d0);
        __syncthreads();
#pragma unroll 2
        for (int d = 0; d < CHUNK; d += 4) {
            float xs[PER][4], ys[PER][4];
#pragma unroll
            for (int i = 0; i < PER; i++) {
                load_4(xs[i], xy[0] + (ty + 16 * i) * X_LD + d);
                load_4(ys[i], xy[1] + (tx + 16 * i) * X_LD + d);
            }
#pragma unroll
            for (int e = 0; e < 4 * PER * PER; e++) {
                const int i = e / PER % PER, j = e % PER, l = e / (PER * PER);
                s[i][j] = fmaf(xs[i][l], ys[j][l], s[i][j]);
            }
        }
    }
    __syncthreads();
}

/* Columns of a thread in a result of WIDE columns: 4·tx + 64·(l / 4) + l % 4. */
template <int WIDE> CUDA_FN int wide_column(int l)
{
    return 4 * ((int)threadIdx.x % 16) + 64 * (l / 4) + l % 4;
}

/* sum += p·z, where z is columns [d0, d0 + WIDE) of the rows. Begins with a barrier (p is written,
 * the operands before are read), ends with one. */
template <int WIDE, typename T>
CUDA_FN void multiply_add(float sum[PER][WIDE / 16], struct room<WIDE> *mem,
                          const struct rows<T> &z, int d0)
{
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    __syncthreads();
    load_rows<WIDE, WIDE + 4>(mem->z, z, d0);
    __syncthreads();
#pragma unroll 2
    for (int k = 0; k < TILE; k += 4) {
        float p[PER][4];
#pragma unroll
        for (int i = 0; i < PER; i++) load_4(p[i], mem->p + (ty + 16 * i) * P_LD + k);
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int l = 0; l < WIDE / 16; l += 4) {
                float zs[4];
                load_4(zs, mem->z + (k + kk) * (WIDE + 4) + 4 * tx + 16 * l);
#pragma unroll
                for (int e = 0; e < 4 * PER; e++)
                    sum[e / 4][l + e % 4] = fmaf(p[e / 4][kk], zs[e % 4], sum[e / 4][l + e % 4]);
            }
    }
    __syncthreads();
}

template <int WIDE> CUDA_FN void put_tile(struct room<WIDE> *mem, const float s[PER][PER])
{
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) mem->p[(ty + 16 * i) * P_LD + tx + 16 * j] = s[i][j];
}

/* Row `row` of a result, times `factor`. */
template <int WIDE, typename T>
CUDA_FN void store_row(T *to, const float sum[WIDE / 16], float factor, int d0, int D)
{
#pragma unroll
    for (int l = 0; l < WIDE / 16; l++)
        if (d0 + wide_column<WIDE>(l) < D)
            to[d0 + wide_column<WIDE>(l)] = from_f32<T>(factor * sum[l]);
}

/* Over the 16 threads that share a row; the same bits in each. */
template <typename Op> CUDA_FN float row_reduce(float x)
{
#pragma unroll
    for (int lane = 8; lane > 0; lane /= 2)
        x = Op::apply(x, __shfl_xor_sync(CUDA_ALL_LANES, x, lane));
    return x;
}

/* ---- where a block works -----------------------------------------------------------------------
 */

struct place {
    int b, head, t0, d0;
};

/* Blocks in x: chunks of the width, then tiles of T positions, heads and batch rows. */
CUDA_FN struct place place_of(int n_heads, int T, int D, int wide, bool last_first)
{
    const int n_chunks = (D + wide - 1) / wide, n_tiles = (T + TILE - 1) / TILE;
    int i = (int)blockIdx.x;
    struct place at;
    at.d0 = i % n_chunks * wide, i /= n_chunks;
    at.t0 = (last_first ? n_tiles - 1 - i % n_tiles : i % n_tiles) * TILE, i /= n_tiles;
    at.head = i % n_heads, at.b = i / n_heads;
    return at;
}

CUDA_FN bool pair_sees(const struct attention_on_gpu &a, int b, int tq, int tk)
{
    if (tq >= a.Tq || tk >= keys_seen(a, tq) || tk < first_key(a, tq)) return false;
    const int64_t row = (int64_t)b * a.Tk;
    if (a.documents && a.query_documents[(int64_t)b * a.Tq + tq] != a.documents[row + tk])
        return false;
    return !a.key_mask || a.key_mask[row + tk];
}

/* Positions [begin, end) that contain what each of several sees, before the key mask. */
struct range {
    int begin, end;
};

/* First of T positions whose document is `number` or a later one; else T. */
CUDA_FN int lower_bound(const int32_t *documents, int T, int64_t number)
{
    int begin = 0, end = T;
    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (documents[middle] < number)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Less what is outside of the documents `first` to `last` of T positions. */
CUDA_FN struct range within_documents(const int32_t *documents, int T, int first, int last,
                                      struct range r)
{
    r.begin = max(r.begin, lower_bound(documents, T, first));
    r.end = min(r.end, lower_bound(documents, T, (int64_t)last + 1));
    return r;
}

/* Keys that queries from t0 on see, a tile of them. */
CUDA_FN struct range keys_of(const struct attention_on_gpu &a, int b, int t0)
{
    const int t1 = min(t0 + TILE, a.Tq);
    const struct range all = {first_key(a, t0), keys_seen(a, t1 - 1)};
    if (!a.documents) return all;
    const int32_t *own = a.query_documents + (int64_t)b * a.Tq;
    return within_documents(a.documents + (int64_t)b * a.Tk, a.Tk, own[t0], own[t1 - 1], all);
}

/* Queries that see keys from t0 on, a tile of them. */
CUDA_FN struct range queries_of(const struct attention_on_gpu &a, int b, int t0)
{
    const int t1 = min(t0 + TILE, a.Tk);
    const struct range all = {max(0, t0 - a.future), min(a.Tq, t1 + a.past)};
    if (!a.documents) return all;
    const int32_t *own = a.documents + (int64_t)b * a.Tk;
    return within_documents(a.query_documents + (int64_t)b * a.Tq, a.Tq, own[t0], own[t1 - 1], all);
}

CUDA_FN float pair_keep(const struct attention_on_gpu &a, int b, int h, int tq, int tk)
{
    if (a.threshold == 0) return 1.0f;
    return draw_keeps(a, draw_row(a, b, h, tq) + (uint64_t)tk) ? a.keep_scale : 0.0f;
}

/* ---- positions ---------------------------------------------------------------------------------
 */

CUDA_FN int bucket_of(const struct attention_on_gpu &a, int tq, int tk)
{
    return a.buckets[tk - tq + a.Tq - 1];
}

CUDA_FN int64_t q_scores_at(const struct attention_on_gpu &a, int b, int h, int tq)
{
    return (((int64_t)h * a.B + b) * a.Tq + tq) * a.n_buckets;
}

CUDA_FN int64_t k_scores_at(const struct attention_on_gpu &a, int b, int h, int tk)
{
    return (((int64_t)h * a.B + b) * a.Tk + tk) * a.n_buckets;
}

/* A scaled score with what the distance between the two adds. */
template <typename T>
CUDA_FN float positioned(const struct attention_on_gpu &a, int b, int h, int tq, int tk, float s)
{
    if (a.n_buckets == 0) return s;
    const int r = bucket_of(a, tq, tk);
    float sum = 0;
    if (a.table) sum += to_f32(((const T *)a.table)[(int64_t)r * a.H + h]);
    if (a.q_scores) sum += to_f32(((const T *)a.q_scores)[q_scores_at(a, b, h, tq) + r]);
    if (a.k_scores) sum += to_f32(((const T *)a.k_scores)[k_scores_at(a, b, h, tk) + r]);
    return s + a.position_scale * sum;
}

/* The bucket of a query and a key, which are a row and a column of a tile or the reverse. */
template <bool ROWS_ARE_KEYS>
CUDA_FN int tile_bucket(const struct attention_on_gpu &a, int row, int column)
{
    return ROWS_ARE_KEYS ? bucket_of(a, column, row) : bucket_of(a, row, column);
}

/* ds of a tile, in shared memory, to the buckets of its rows, which are queries or keys: the thread
 * of a bucket's first column adds up its columns, which are neighbours, so each sum is one thread's
 * at a time, tile after tile. Begins with a barrier; one must follow. */
template <bool ROWS_ARE_KEYS, int WIDE>
CUDA_FN void add_to_buckets(const struct attention_on_gpu &a, const struct place &at,
                            const struct room<WIDE> *mem, int h, int column0)
{
    float *sums = ROWS_ARE_KEYS ? a.dk_scores : a.dq_scores;
    if (a.n_buckets == 0 || !sums || at.d0 > 0) return;
    const int n_rows = min(TILE, (ROWS_ARE_KEYS ? a.Tk : a.Tq) - at.t0);
    const int end = min(column0 + TILE, ROWS_ARE_KEYS ? a.Tq : a.Tk);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < n_rows * TILE; e += THREADS) {
        const int t = at.t0 + e / TILE;
        int c = column0 + e % TILE;
        if (c >= end) continue;
        const int r = tile_bucket<ROWS_ARE_KEYS>(a, t, c);
        if (c > column0 && tile_bucket<ROWS_ARE_KEYS>(a, t, c - 1) == r) continue;
        const float *ds = mem->p + e / TILE * P_LD - column0;
        float sum = 0;
        for (; c < end && tile_bucket<ROWS_ARE_KEYS>(a, t, c) == r; c++) sum += ds[c];
        sums[(ROWS_ARE_KEYS ? k_scores_at(a, at.b, h, t) : q_scores_at(a, at.b, h, t)) + r] +=
            a.position_scale * sum;
    }
}

#define BUCKETS_MAX 1024 /* of one launch: they travel as a kernel argument */

struct bucket_numbers {
    uint16_t of[BUCKETS_MAX];
};

static __global__ void __launch_bounds__(THREADS)
    attention_buckets_kernel(struct bucket_numbers from, int n, int32_t *to)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i < n) to[i] = from.of[i];
}

cz_status attention_put_buckets(const struct attention_on_gpu *a,
                                const struct attention_positions *from, struct dev_stream *stream)
{
    const int n_all = a->Tq + a->Tk - 1;
    for (int begin = 0; begin < n_all; begin += BUCKETS_MAX) {
        const int n = n_all - begin < BUCKETS_MAX ? n_all - begin : BUCKETS_MAX;
        struct bucket_numbers numbers = {};
        for (int i = 0; i < n; i++)
            numbers.of[i] = (uint16_t)(from->buckets[begin + i] - from->first_bucket);
        TRY(cuda_launch("attention buckets", attention_buckets_kernel,
                        cuda_blocks((size_t)n, THREADS), THREADS, 0, stream, numbers, n,
                        a->buckets + begin));
    }
    return CZ_OK;
}

/* Element (r,h) of dtable: each thread adds up every THREADS-th query, then pairs of threads. */
static __global__ void __launch_bounds__(THREADS) attention_table_kernel(struct attention_on_gpu a)
{
    __shared__ float sums[THREADS];
    const int h = (int)blockIdx.x % a.H, r = (int)blockIdx.x / a.H, thread = (int)threadIdx.x;
    const int64_t n = (int64_t)a.B * a.Tq;
    const float *x = a.dq_scores + h * n * a.n_buckets + r;
    float sum = 0;
    for (int64_t i = thread; i < n; i += THREADS) sum += x[i * a.n_buckets];
    sums[thread] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) sums[thread] += sums[thread + half];
    }
    if (thread == 0) a.dtable[(int64_t)r * a.H + h] = sums[0];
}

cz_status attention_sum_table(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    return cuda_launch("attention table", attention_table_kernel, (unsigned)(a->n_buckets * a->H),
                       THREADS, 0, stream, *a);
}

/* ---- forward -----------------------------------------------------------------------------------
 */

/* One tile of keys joins the softmax of the rows: s becomes p with dropout, `top` and `total` the
 * largest score and Σ exp(s − top) so far. Returns in `fade` what sums so far are scaled with. */
template <typename T>
CUDA_FN void join_softmax(const struct attention_on_gpu &a, const struct place &at, int k0,
                          float s[PER][PER], float top[PER], float total[PER], float fade[PER])
{
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int tq = at.t0 + ty + 16 * i;
        float most = top[i], sum = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const int tk = k0 + tx + 16 * j;
            s[i][j] = pair_sees(a, at.b, tq, tk)
                          ? capped(a, positioned<T>(a, at.b, at.head, tq, tk, a.scale * s[i][j]))
                          : -INFINITY;
            most = fmaxf(most, s[i][j]);
        }
        most = row_reduce<max_of>(most);
        const float base = most == -INFINITY ? 0.0f : most;
        fade[i] = expf(top[i] - base);
        top[i] = most;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const int tk = k0 + tx + 16 * j;
            s[i][j] = expf(s[i][j] - base);
            sum += s[i][j];
            if (a.threshold && tq < a.Tq) s[i][j] *= pair_keep(a, at.b, at.head, tq, tk);
        }
        total[i] = total[i] * fade[i] + row_reduce<sum_of>(sum);
    }
}

template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS) attention_simt_forward_kernel(struct attention_on_gpu a)
{
    CUDA_DYNAMIC_SHARED(room<WIDE>, mem);
    const struct place at = place_of(a.H, a.Tq, a.D, WIDE, a.causal);
    const struct range keys = keys_of(a, at.b, at.t0);
    const int ty = (int)threadIdx.x / 16;
    const struct rows<T> q = q_rows<T>(a, at.b, at.head, at.t0);
    float out[PER][WIDE / 16] = {}, top[PER], total[PER] = {}, fade[PER], s[PER][PER];
    for (int i = 0; i < PER; i++) top[i] = -INFINITY;
    for (int k0 = keys.begin / TILE * TILE; k0 < keys.end; k0 += TILE) {
        multiply<T>(s, mem->xy, q, key_rows<T>(a, at.b, at.head / a.group, k0, false));
        join_softmax<T>(a, at, k0, s, top, total, fade);
        put_tile(mem, s);
#pragma unroll
        for (int e = 0; e < PER * WIDE / 16; e++)
            out[e / (WIDE / 16)][e % (WIDE / 16)] *= fade[e / (WIDE / 16)];
        multiply_add<WIDE, T>(out, mem, key_rows<T>(a, at.b, at.head / a.group, k0, true), at.d0);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int tq = at.t0 + ty + 16 * i;
        if (tq >= a.Tq) continue;
        T *to =
            (T *)a.new_out + ((int64_t)at.b * a.Tq + tq) * a.out_stride + (int64_t)at.head * a.D;
        store_row<WIDE>(to, out[i], total[i] == 0 ? 0.0f : 1.0f / total[i], at.d0, a.D);
        if (a.lse && at.d0 == 0 && threadIdx.x % 16 == 0)
            a.lse[((int64_t)at.b * a.H + at.head) * a.Tq + tq] =
                total[i] == 0 ? -INFINITY : top[i] + logf(total[i]);
    }
}

/* ---- backward ----------------------------------------------------------------------------------
 */

/* delta of 32 rows (b, h, tq) per warp, each lane summing one of them in order of d. */
template <typename T>
__global__ void __launch_bounds__(128) attention_simt_delta_kernel(struct attention_on_gpu a)
{
    __shared__ float products[4][2][32][33];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t first = ((int64_t)blockIdx.x * 4 + warp) * 32, n = (int64_t)a.B * a.H * a.Tq;
    float sum = 0;
    for (int d0 = 0; d0 < a.D; d0 += 32) {
        __syncwarp();
        for (int r = 0; r < 32; r++) {
            const int64_t i = first + r, bh = i / a.Tq;
            const int64_t at = (bh / a.H * a.Tq + i % a.Tq) * a.out_stride + bh % a.H * a.D;
            const bool is = i < n && d0 + lane < a.D;
            products[warp][0][r][lane] = is ? to_f32(((const T *)a.dout)[at + d0 + lane]) : 0.0f;
            products[warp][1][r][lane] = is ? to_f32(((const T *)a.out)[at + d0 + lane]) : 0.0f;
        }
        __syncwarp();
        for (int d = 0; d < 32; d++)
            sum = fmaf(products[warp][0][lane][d], products[warp][1][lane][d], sum);
    }
    if (first + lane < n) a.delta[first + lane] = sum;
}

/* p and ds of one query and one key, from q·k and dout·v; p comes with dropout. */
template <typename T>
CUDA_FN void differentiate(const struct attention_on_gpu &a, int b, int h, int tq, int tk, float *s,
                           float *dp)
{
    if (!pair_sees(a, b, tq, tk)) {
        *s = *dp = 0;
        return;
    }
    const int64_t row = ((int64_t)b * a.H + h) * a.Tq + tq;
    const float x = capped(a, positioned<T>(a, b, h, tq, tk, a.scale * *s));
    const float p = expf(x - a.lse[row]), keep = pair_keep(a, b, h, tq, tk);
    *dp = p * (*dp * keep - a.delta[row]);
    if (a.softcap > 0) *dp *= 1 - (x / a.softcap) * (x / a.softcap);
    *s = p * keep;
}

template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS) attention_simt_dq_kernel(struct attention_on_gpu a)
{
    CUDA_DYNAMIC_SHARED(room<WIDE>, mem);
    const struct place at = place_of(a.H, a.Tq, a.D, WIDE, a.causal);
    const struct range keys = keys_of(a, at.b, at.t0);
    const int g = at.head / a.group;
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    const struct rows<T> q = q_rows<T>(a, at.b, at.head, at.t0);
    const struct rows<T> dout = out_rows<T>(a, a.dout, at.b, at.head, at.t0);
    float dq[PER][WIDE / 16] = {}, s[PER][PER], dp[PER][PER];
    for (int k0 = keys.begin / TILE * TILE; k0 < keys.end; k0 += TILE) {
        multiply<T>(s, mem->xy, q, key_rows<T>(a, at.b, g, k0, false));
        multiply<T>(dp, mem->xy, dout, key_rows<T>(a, at.b, g, k0, true));
#pragma unroll
        for (int e = 0; e < PER * PER; e++)
            differentiate<T>(a, at.b, at.head, at.t0 + ty + 16 * (e / PER),
                             k0 + tx + 16 * (e % PER), &s[e / PER][e % PER], &dp[e / PER][e % PER]);
        put_tile(mem, dp);
        add_to_buckets<false>(a, at, mem, at.head, k0);
        multiply_add<WIDE, T>(dq, mem, key_rows<T>(a, at.b, g, k0, false), at.d0);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int tq = at.t0 + ty + 16 * i;
        if (tq >= a.Tq) continue;
        const int64_t row = (int64_t)at.b * a.q_batch + tq * a.q_stride + (int64_t)at.head * a.D;
        store_row<WIDE>((T *)a.dq + row, dq[i], a.scale, at.d0, a.D);
    }
}

/* dk and dv of 64 keys of a key head: over its query heads, over tiles of queries. Rows of the
 * tiles are keys, columns queries. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS) attention_simt_dkv_kernel(struct attention_on_gpu a)
{
    CUDA_DYNAMIC_SHARED(room<WIDE>, mem);
    const struct place at = place_of(a.G, a.Tk, a.D, WIDE, false);
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    const struct rows<T> k = key_rows<T>(a, at.b, at.head, at.t0, false);
    const struct rows<T> v = key_rows<T>(a, at.b, at.head, at.t0, true);
    const struct range queries = queries_of(a, at.b, at.t0);
    float dk[PER][WIDE / 16] = {}, dv[PER][WIDE / 16] = {}, s[PER][PER], dp[PER][PER];
    for (int h = at.head * a.group; h < (at.head + 1) * a.group; h++)
        for (int q0 = queries.begin / TILE * TILE; q0 < queries.end; q0 += TILE) {
            const struct rows<T> q = q_rows<T>(a, at.b, h, q0);
            const struct rows<T> dout = out_rows<T>(a, a.dout, at.b, h, q0);
            multiply<T>(s, mem->xy, k, q);
            multiply<T>(dp, mem->xy, v, dout);
#pragma unroll
            for (int e = 0; e < PER * PER; e++)
                differentiate<T>(a, at.b, h, q0 + tx + 16 * (e % PER), at.t0 + ty + 16 * (e / PER),
                                 &s[e / PER][e % PER], &dp[e / PER][e % PER]);
            put_tile(mem, s);
            multiply_add<WIDE, T>(dv, mem, dout, at.d0);
            put_tile(mem, dp);
            add_to_buckets<true>(a, at, mem, h, q0);
            multiply_add<WIDE, T>(dk, mem, q, at.d0);
        }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int tk = at.t0 + ty + 16 * i;
        if (tk >= a.Tk) continue;
        const int64_t head = (int64_t)at.head * a.D;
        const int64_t k_row = (int64_t)at.b * a.k_batch + tk * a.k_stride + head;
        const int64_t v_row = (int64_t)at.b * a.v_batch + tk * a.v_stride + head;
        store_row<WIDE>((T *)a.dk + k_row, dk[i], a.scale, at.d0, a.D);
        store_row<WIDE>((T *)a.dv + v_row, dv[i], 1.0f, at.d0, a.D);
    }
}

/* ---- launches ----------------------------------------------------------------------------------
 */

static unsigned blocks_of(const struct attention_on_gpu *a, int n_heads, int T, int wide)
{
    return (unsigned)a->B * (unsigned)n_heads * cuda_blocks((size_t)T, TILE) *
           cuda_blocks((size_t)a->D, (size_t)wide);
}

template <typename T, int WIDE>
static cz_status forward_of(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    return cuda_launch("attention forward", attention_simt_forward_kernel<T, WIDE>,
                       blocks_of(a, a->H, a->Tq, WIDE), THREADS, sizeof(struct room<WIDE>), stream,
                       *a);
}

template <typename T, int WIDE>
static cz_status backward_of(const struct attention_on_gpu *a, struct dev_stream *stream)
{
    const size_t shared = sizeof(struct room<WIDE>), n_rows = (size_t)a->B * a->H * a->Tq;
    if (a->Tq > 0) {
        TRY(cuda_launch("attention delta", attention_simt_delta_kernel<T>, cuda_blocks(n_rows, 128),
                        128, 0, stream, *a));
        TRY(cuda_launch("attention dq", attention_simt_dq_kernel<T, WIDE>,
                        blocks_of(a, a->H, a->Tq, WIDE), THREADS, shared, stream, *a));
    }
    if (a->Tk > 0)
        TRY(cuda_launch("attention dk, dv", attention_simt_dkv_kernel<T, WIDE>,
                        blocks_of(a, a->G, a->Tk, WIDE), THREADS, shared, stream, *a));
    return CZ_OK;
}

cz_status attention_simt_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                 struct dev_stream *stream)
{
    CUDA_BY_DTYPE(dtype, T,
                  return a->D <= 64 ? forward_of<T, 64>(a, stream) : forward_of<T, 128>(a, stream));
}

cz_status attention_simt_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                  struct dev_stream *stream)
{
    CUDA_BY_DTYPE(dtype, T,
                  return a->D <= 64 ? backward_of<T, 64>(a, stream)
                                    : backward_of<T, 128>(a, stream));
}
