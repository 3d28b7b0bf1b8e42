/* Attention's forward pass on a GPU for a few queries per head: decoding, and an encoder's last
 * block where only the first token counts. Every dtype, stride and alignment; no dropout or
 * documents.
 *
 * A block owns SPLIT keys of a key head and all queries that read it, PER at a time, so that keys
 * and values come from memory once. A key is read by a group of lanes, 8 elements each. Where there
 * are more keys, a second kernel joins the blocks' softmaxes in the order of their keys. Limit: the
 * bandwidth that brings k and v. */
#include "ops/attention/attention_cuda_impl.h"

#define THREADS 128
#define WARPS   (THREADS / 32)
#define SPLIT   128 /* keys of a block */
#define PER     4   /* queries at a time */
#define LANE    8   /* elements of a lane */
#define MOST_D  (32 * LANE)

/* One of the queries that read a key head. */
struct query {
    int h, tq;
};

CUDA_FN struct query query_of(const struct attention_on_gpu &a, int g, int i)
{
    return {g * a.group + i / a.Tq, i % a.Tq};
}

CUDA_FN int64_t row_of(const struct attention_on_gpu &a, int b, const struct query &q)
{
    return ((int64_t)b * a.H + q.h) * a.Tq + q.tq;
}

/* Lanes that share a key: as many as its elements need, a power of two. */
CUDA_FN int lanes_of(int D)
{
    int n = 1;
    while (n * LANE < D) n *= 2;
    return n;
}

/* Elements [d, d + LANE) of a row of width D; zeros past it. */
template <typename T, bool ALIGNED>
CUDA_FN void load_lane(const T *row, int d, int D, float x[LANE])
{
    if (ALIGNED && d + LANE <= D) {
        load_f32<LANE>(row + d, x);
        return;
    }
#pragma unroll
    for (int e = 0; e < LANE; e++) x[e] = d + e < D ? to_f32(row[d + e]) : 0.0f;
}

/* What a block leaves of a query: Σ exp(s − top)·v by columns, top, Σ exp(s − top). */
struct partial {
    float *sum, *top, *total;
};

CUDA_FN struct partial partial_of(const struct attention_on_gpu &a, int64_t row, int split,
                                  int n_splits)
{
    const int64_t at = row * n_splits + split, n = (int64_t)a.B * a.H * a.Tq * n_splits;
    return {a.partials + 2 * n + at * a.D, a.partials + at, a.partials + n + at};
}

struct room {
    float p[PER][SPLIT];
    float part[WARPS][PER];                                      /* of a reduction */
    float sum[THREADS * LANE > MOST_D ? THREADS *LANE : MOST_D]; /* by groups of lanes, one query */
};

/* Over a block, for PER values at once: the same bits in every thread. */
template <typename Op> CUDA_FN void reduce(struct room *mem, float x[PER])
{
    const int warp = (int)threadIdx.x / 32;
    __syncthreads(); /* an earlier use is over */
#pragma unroll
    for (int r = 0; r < PER; r++) {
        x[r] = warp_reduce<Op>(x[r]);
        if (threadIdx.x % 32 == 0) mem->part[warp][r] = x[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < PER; r++) {
        x[r] = mem->part[0][r];
        for (int w = 1; w < WARPS; w++) x[r] = Op::apply(x[r], mem->part[w][r]);
    }
}

/* Keys [begin, end) of a block, counted from its first, that some query sees before the key mask.
 */
struct range {
    int begin, end;
};

CUDA_FN struct range keys_of(const struct attention_on_gpu &a, int k0)
{
    return {max(0, first_key(a, 0) - k0), min(SPLIT, a.Tk - k0)};
}

/* Scores of a block's keys and queries [first, first + PER) of key head g, −infinity where a query
 * does not see a key, into mem->p. */
template <typename T, bool ALIGNED>
CUDA_FN void make_scores(const struct attention_on_gpu &a, struct room *mem, int b, int g,
                         int first, int k0, const struct range &keys)
{
    const int lanes = lanes_of(a.D), lane = (int)threadIdx.x % lanes, n_groups = THREADS / lanes;
    const int n_queries = a.group * a.Tq;
    float q[PER][LANE];
#pragma unroll
    for (int r = 0; r < PER; r++) {
        const struct query at = query_of(a, g, min(first + r, n_queries - 1));
        load_lane<T, ALIGNED>((const T *)a.q + b * a.q_batch + at.tq * a.q_stride +
                                  (int64_t)at.h * a.D,
                              lane * LANE, a.D, q[r]);
    }
    for (int i = (int)threadIdx.x / lanes; i < SPLIT; i += n_groups) {
        const int key = k0 + i;
        const bool is =
            i >= keys.begin && i < keys.end && (!a.key_mask || a.key_mask[(int64_t)b * a.Tk + key]);
        float k[LANE] = {};
        if (is)
            load_lane<T, ALIGNED>((const T *)a.k + b * a.k_batch + key * a.k_stride +
                                      (int64_t)g * a.D,
                                  lane * LANE, a.D, k);
#pragma unroll
        for (int r = 0; r < PER; r++) {
            float s = 0;
#pragma unroll
            for (int e = 0; e < LANE; e++) s = fmaf(q[r][e], k[e], s);
            for (int other = 1; other < lanes; other *= 2)
                s += __shfl_xor_sync(CUDA_ALL_LANES, s, other);
            const struct query at = query_of(a, g, min(first + r, n_queries - 1));
            const bool sees = is && key >= first_key(a, at.tq) && key < keys_seen(a, at.tq);
            if (lane == 0) mem->p[r][i] = sees ? capped(a, a.scale * s) : -INFINITY;
        }
    }
}

/* out of PER queries, or their partials, from p in mem. */
template <typename T, bool ALIGNED>
CUDA_FN void make_out(const struct attention_on_gpu &a, struct room *mem, int b, int g, int first,
                      int k0, const struct range &keys, const float top[PER],
                      const float total[PER])
{
    const int lanes = lanes_of(a.D), lane = (int)threadIdx.x % lanes, n_groups = THREADS / lanes;
    const int mine = (int)threadIdx.x / lanes, n_splits = attention_decode_splits(a.Tk);
    float out[PER][LANE] = {};
    for (int i = mine; i < keys.end; i += n_groups) {
        const int key = k0 + i;
        if (i < keys.begin) continue;
        if (a.key_mask && !a.key_mask[(int64_t)b * a.Tk + key]) continue;
        float v[LANE];
        load_lane<T, ALIGNED>((const T *)a.v + b * a.v_batch + key * a.v_stride + (int64_t)g * a.D,
                              lane * LANE, a.D, v);
#pragma unroll
        for (int e = 0; e < PER * LANE; e++)
            out[e / LANE][e % LANE] =
                fmaf(mem->p[e / LANE][i], v[e % LANE], out[e / LANE][e % LANE]);
    }
#pragma unroll
    for (int r = 0; r < PER; r++) {
        if (first + r >= a.group * a.Tq) break;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < LANE; e++) mem->sum[(mine * lanes + lane) * LANE + e] = out[r][e];
        __syncthreads();
        const struct query at = query_of(a, g, first + r);
        const int64_t row = row_of(a, b, at);
        const struct partial part = partial_of(a, row, k0 / SPLIT, n_splits);
        T *to = (T *)a.new_out + ((int64_t)b * a.Tq + at.tq) * a.out_stride + (int64_t)at.h * a.D;
        for (int d = (int)threadIdx.x; d < a.D; d += THREADS) {
            float sum = 0;
            for (int i = 0; i < n_groups; i++) sum += mem->sum[i * lanes * LANE + d];
            if (n_splits > 1)
                part.sum[d] = sum;
            else
                to[d] = from_f32<T>(total[r] == 0 ? 0.0f : sum / total[r]);
        }
        if (threadIdx.x != 0) continue;
        if (n_splits > 1)
            *part.top = top[r], *part.total = total[r];
        else if (a.lse)
            a.lse[row] = total[r] == 0 ? -INFINITY : top[r] + logf(total[r]);
    }
}

/* Blocks: splits, then key heads, then batch rows. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) attention_decode_kernel(struct attention_on_gpu a)
{
    __shared__ struct room mem;
    const int n_splits = attention_decode_splits(a.Tk), row = (int)blockIdx.x / n_splits;
    const int g = row % a.G, b = row / a.G, k0 = (int)blockIdx.x % n_splits * SPLIT;
    const struct range keys = keys_of(a, k0);
    for (int first = 0; first < a.group * a.Tq; first += PER) {
        __syncthreads(); /* the queries before are done with */
        make_scores<T, ALIGNED>(a, &mem, b, g, first, k0, keys);
        __syncthreads();
        float top[PER], total[PER] = {};
#pragma unroll
        for (int r = 0; r < PER; r++) {
            top[r] = -INFINITY;
            for (int i = (int)threadIdx.x; i < SPLIT; i += THREADS)
                top[r] = fmaxf(top[r], mem.p[r][i]);
        }
        reduce<max_of>(&mem, top);
#pragma unroll
        for (int r = 0; r < PER; r++)
            for (int i = (int)threadIdx.x; i < SPLIT; i += THREADS) {
                const float s = mem.p[r][i];
                mem.p[r][i] = s == -INFINITY ? 0.0f : expf(s - top[r]);
                total[r] += mem.p[r][i];
            }
        reduce<sum_of>(&mem, total); /* and p is there for all */
        make_out<T, ALIGNED>(a, &mem, b, g, first, k0, keys, top, total);
    }
}

/* A block joins the partials of a query. */
template <typename T>
__global__ void __launch_bounds__(THREADS) attention_decode_join_kernel(struct attention_on_gpu a)
{
    const int64_t row = blockIdx.x;
    const int n_splits = attention_decode_splits(a.Tk);
    const int tq = (int)(row % a.Tq), h = (int)(row / a.Tq % a.H), b = (int)(row / a.Tq / a.H);
    float top = -INFINITY, total = 0;
    for (int i = 0; i < n_splits; i++) top = fmaxf(top, *partial_of(a, row, i, n_splits).top);
    const float base = top == -INFINITY ? 0.0f : top;
    for (int i = 0; i < n_splits; i++) {
        const struct partial part = partial_of(a, row, i, n_splits);
        total = fmaf(*part.total, expf(*part.top - base), total);
    }
    T *to = (T *)a.new_out + ((int64_t)b * a.Tq + tq) * a.out_stride + (int64_t)h * a.D;
    for (int d = (int)threadIdx.x; d < a.D; d += THREADS) {
        float sum = 0;
        for (int i = 0; i < n_splits; i++) {
            const struct partial part = partial_of(a, row, i, n_splits);
            sum = fmaf(part.sum[d], expf(*part.top - base), sum);
        }
        to[d] = from_f32<T>(total == 0 ? 0.0f : sum / total);
    }
    if (a.lse && threadIdx.x == 0) a.lse[row] = total == 0 ? -INFINITY : top + logf(total);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T>
static cz_status forward_of(const struct attention_on_gpu *a, bool aligned,
                            struct dev_stream *stream)
{
    const unsigned n_splits = (unsigned)attention_decode_splits(a->Tk);
    const unsigned n = (unsigned)a->B * (unsigned)a->G * n_splits;
    TRY(cuda_launch("attention of few queries",
                    aligned ? attention_decode_kernel<T, true> : attention_decode_kernel<T, false>,
                    n, THREADS, 0, stream, *a));
    if (n_splits == 1) return CZ_OK;
    return cuda_launch("attention of few queries, joined", attention_decode_join_kernel<T>,
                       (unsigned)a->B * (unsigned)a->H * (unsigned)a->Tq, THREADS, 0, stream, *a);
}

/* 16 bytes at a time: rows and heads begin at multiples of 8 elements. */
static bool lies_aligned(const void *p, int64_t stride, int64_t batch)
{
    return cuda_is_aligned(p, 16) && stride % LANE == 0 && batch % LANE == 0;
}

cz_status attention_decode_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream)
{
    const bool aligned = a->D % LANE == 0 && lies_aligned(a->q, a->q_stride, a->q_batch) &&
                         lies_aligned(a->k, a->k_stride, a->k_batch) &&
                         lies_aligned(a->v, a->v_stride, a->v_batch);
    CUDA_BY_DTYPE(dtype, T, return forward_of<T>(a, aligned, stream));
}

/* Several splits only for one query: more of them need more workspace than was planned for one. */
bool attention_takes_decode(const struct attention_args *a)
{
    return a->Tq <= (a->Tk <= SPLIT ? 4 : 1) && a->D <= MOST_D && a->dropout_p == 0 &&
           !a->documents && a->positions.n_buckets == 0;
}

size_t attention_decode_partials(const struct attention_args *a)
{
    const int n_splits = attention_decode_splits((int)a->Tk);
    if (n_splits == 1 || !attention_takes_decode(a)) return 0;
    return (size_t)(a->B * a->H * a->Tq * (a->D + 2)) * (size_t)n_splits;
}
