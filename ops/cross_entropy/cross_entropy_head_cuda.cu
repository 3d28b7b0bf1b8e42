/* The fused head on a GPU: blocks of rows, whose logits are made, spent and forgotten.
 *
 * For each block of R rows:
 *   1. z = x·wᵀ                       rows ldz apart; where there is a soft cap c, c·tanh((z +
 * b)/c)
 *   2. one kernel, a row per block of threads: log-sum-exp, loss, and dz over z
 *   3. dx = dz·w, dw [+]= dzᵀ·x, dbias [+]= Σ dz
 * Σω comes before, the mean of the losses behind. Nothing waits for the host.
 *
 * Tensor cores want rows of whole 16-byte units, which vocabularies such as GPT-2's 50257 are not.
 * So the columns are in two parts, the units and a tail of less than one; ldz is rounded up. dx is
 * summed over both in fp32 and rounded once.
 *
 * Where a 16-bit model learns, z has its dtype, as PyTorch's has: sums are fp32 and rounded once,
 * and what follows is fp32 again. That is half the bytes of three passes over N·V numbers. Losses
 * alone are of fp32 logits.
 *
 * A block of rows reads and writes dw once: with few rows that is more work than the products, and
 * of a 16-bit dw one more rounding. So a block's logits may be as large as what two transformer
 * blocks of as many rows work in.
 *
 * The loader checks labels; one outside the vocabulary makes the loss NaN here. */
#include "ops/cross_entropy/cross_entropy_cuda_impl.h"
#include "ops/cross_entropy/cross_entropy_head_impl.h"
#include "ops/cuda_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

#include "base/batch.h"
#include "base/size.h"

#define SUM_BLOCK 1024
#define ALIGN     ((size_t)256)
#define UNIT      8 /* columns: 16 bytes of a 16-bit dtype */
#define TENSORS   8 /* (N,C): what logits may grow to */
#define LN2       0.693147181f
#define GROUP     4 /* accesses of 16 bytes of a thread at once */

/* Threads of a row. A multiprocessor has 1024 of them, with 64 registers each: one row of fp32
 * logits or two of 16 bits, 64 KB under way, and 132 · 201 KB of GPT-2's vocabulary between a row's
 * two readings, which an L2 cache of 50 MB keeps. Two rows do not wait at the same time. */
template <typename Z> constexpr int ROW_BLOCK = sizeof(Z) == 4 ? 1024 : 512;

/* What a call's kernels share in device memory. */
struct head_sums {
    double divisor;
    double scale; /* dloss/divisor */
    unsigned n_hits;
};

/* ---- sums over rows ---------------------------------------------------------------------------
 */

/* The sum over all threads of a block, in a tree. */
CUDA_FN double block_sum(double x, double room[SUM_BLOCK])
{
    const unsigned t = threadIdx.x;
    room[t] = x;
    __syncthreads();
    for (unsigned half = SUM_BLOCK / 2; half > 0; half /= 2) {
        if (t < half) room[t] += room[t + half];
        __syncthreads();
    }
    return room[0];
}

/* Σω over rows that count, or the divisor given instead; one block of threads. */
__global__ void __launch_bounds__(SUM_BLOCK)
    divisor_kernel(int64_t N, const int32_t *labels, const float *weights, float divisor,
                   float dloss, struct head_sums *out)
{
    __shared__ double room[SUM_BLOCK];
    double sum = 0;
    for (int64_t n = threadIdx.x; n < N; n += SUM_BLOCK)
        if (labels[n] != CZ_IGNORE_LABEL) sum += weights ? (double)weights[n] : 1.0;
    sum = block_sum(sum, room);
    if (threadIdx.x > 0) return;
    const double by = divisor != 0 ? (double)divisor : sum;
    out->divisor = by;
    out->scale = by != 0 ? (double)dloss / by : 0;
    out->n_hits = 0;
}

__global__ void __launch_bounds__(SUM_BLOCK)
    mean_kernel(int64_t N, const double *losses, const struct head_sums *sums, float *loss,
                float *hits)
{
    __shared__ double room[SUM_BLOCK];
    double sum = 0;
    for (int64_t n = threadIdx.x; n < N; n += SUM_BLOCK) sum += losses[n];
    sum = block_sum(sum, room);
    if (threadIdx.x > 0) return;
    *loss = sums->divisor != 0 ? (float)(sum / sums->divisor) : 0.0f;
    if (hits) *hits = (float)sums->n_hits;
}

/* ---- a row ------------------------------------------------------------------------------------
 */

/* Rows of one block. dz may be over z: element v of a narrower dtype is where logit v or an
 * earlier one was, of the same dtype where logit v was. */
template <typename Z, typename T> struct row_args {
    int64_t V, ldz, ld_dz;
    const Z *z;
    const T *bias; /* to add to z; NULL: it is in z */
    const int32_t *labels;
    const float *weights;
    struct head_sums *sums;
    T *dz; /* NULL: loss alone */
    double *losses;
    float *log_probs;  /* or NULL */
    float cap_inverse; /* of the cap that z has passed, whose slope dz takes; 0: none */
};

/* N logits of a row from v on; −infinity beyond V, unless all are there (WHOLE). ALIGNED: rows
 * start at 16 bytes, and may be read up to the next multiple of N. */
template <int N, bool ALIGNED, bool WHOLE, typename Z, typename T>
CUDA_FN void load_logits(const Z *z, const T *bias, int64_t v, int64_t V, float out[N])
{
    if (!WHOLE && v >= V) {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = -INFINITY;
        return;
    }
    if (ALIGNED) {
        load_f32<N>(z + v, out);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = WHOLE || v + i < V ? to_f32(z[v + i]) : 0;
    }
    if (bias)
#pragma unroll
        for (int i = 0; i < N; i++) out[i] += WHOLE || v + i < V ? to_f32(bias[v + i]) : 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (!WHOLE && v + i >= V) out[i] = -INFINITY;
}

/* Logits of a thread with a stride of GROUP accesses, from v on: whether all of them are there. */
template <typename Z> CUDA_FN bool is_whole(int64_t v, int64_t V)
{
    constexpr int N = CUDA_LANES<Z>;
    return v + (GROUP - 1) * ROW_BLOCK<Z> * N + N <= V;
}

template <bool ALIGNED, bool WHOLE, typename Z, typename T>
CUDA_FN void load_group(const Z *z, const T *bias, int64_t v, int64_t V,
                        float x[GROUP][CUDA_LANES<Z>])
{
    constexpr int N = CUDA_LANES<Z>;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        load_logits<N, ALIGNED, WHOLE>(z, bias, v + (int64_t)g * ROW_BLOCK<Z> * N, V, x[g]);
}

template <bool ALIGNED, bool WHOLE, typename Z, typename T>
CUDA_FN void take_group(const Z *z, const T *bias, int64_t v, int64_t V, struct running *r)
{
    constexpr int N = CUDA_LANES<Z>;
    float x[GROUP][N];
    load_group<ALIGNED, WHOLE>(z, bias, v, V, x);
    running_add<Z, GROUP, N>(r, x);
}

/* log Σ exp over V logits, in every thread, and the largest of them: each keeps a maximum and a sum
 * relative to it. NaN and +infinity give NaN. Limit: one read of the row. */
template <bool ALIGNED, typename Z, typename T>
CUDA_FN float row_log_sum_exp(const Z *z, const T *bias, int64_t V, float *room, float *largest)
{
    constexpr int N = CUDA_LANES<Z>, STEP = ROW_BLOCK<Z> * N;
    struct running r = {-INFINITY, 0};
    for (int64_t v = (int64_t)threadIdx.x * N; v < V; v += (int64_t)GROUP * STEP)
        if (is_whole<Z>(v, V))
            take_group<ALIGNED, true>(z, bias, v, V, &r);
        else
            take_group<ALIGNED, false>(z, bias, v, V, &r);
    *largest = block_reduce<max_of>(r.largest, room);
    const float base = base_of(*largest);
    const float sum = block_reduce<sum_of>(r.sum * exp_from<Z>(r.largest, base), room);
    return base + log2f(sum) * LN2;
}

/* What dz is made of. */
struct row_facts {
    float lse, factor, at_label; /* dz at the label */
    float cap_inverse;
    int64_t label;
};

/* The slope of c·tanh(s/c) where it is z. */
CUDA_FN float cap_slope(float z, float cap_inverse)
{
    const float part = z * cap_inverse;
    return 1.0f - part * part;
}

#define CAP_BLOCK 256

/* z = c·tanh((z + bias)/c), a row per block of threads. Limit: one read and one write of z. */
template <typename Z, typename T>
__global__ void __launch_bounds__(CAP_BLOCK)
    cap_kernel(int64_t V, int64_t ldz, Z *z, const T *bias, float softcap)
{
    Z *row = z + (int64_t)blockIdx.x * ldz;
    for (int64_t v = threadIdx.x; v < V; v += CAP_BLOCK) {
        const float x = to_f32(row[v]) + (bias ? to_f32(bias[v]) : 0.0f);
        row[v] = from_f32<Z>(softcap * tanhf(x / softcap));
    }
}

/* N logits become as many of dz. */
template <typename Z, int N, bool WHOLE, typename T>
CUDA_FN void store_gradients(const struct row_facts *f, const float x[N], int64_t v, int64_t V,
                             T *dz)
{
    float y[N];
    if (!WHOLE && v >= V) return;
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = f->factor * exp_from<Z>(x[i], f->lse);
    if (f->cap_inverse > 0)
#pragma unroll
        for (int i = 0; i < N; i++) y[i] *= cap_slope(x[i], f->cap_inverse);
    if ((uint64_t)(f->label - v) < N)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (v + i == f->label) y[i] = f->at_label;
    if (WHOLE || v + N <= V)
        store_f32<N>(dz + v, y);
    else
#pragma unroll
        for (int i = 0; i < N; i++)
            if (v + i < V) dz[v + i] = from_f32<T>(y[i]);
}

/* A group of a thread's logits, from v on, becomes dz; `waits`: once all threads have read theirs.
 */
template <bool ALIGNED, bool WHOLE, typename Z, typename T>
CUDA_FN void put_group(const struct row_args<Z, T> *a, const struct row_facts *f, const Z *z,
                       int64_t v, bool waits, T *dz)
{
    constexpr int N = CUDA_LANES<Z>;
    float x[GROUP][N];
    load_group<ALIGNED, WHOLE>(z, a->bias, v, a->V, x);
    if (waits) __syncthreads();
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        store_gradients<Z, N, WHOLE>(f, x[g], v + (int64_t)g * ROW_BLOCK<Z> * N, a->V, dz);
}

/* dz over z, from the first group of accesses to the last. Where dz is narrower, group g's takes
 * the place of group g/2's logits: all threads must have read those, which a barrier says now and
 * then. Limit: one read of the row (from L2) and one write. */
template <bool ALIGNED, typename Z, typename T>
CUDA_FN void row_gradients(const struct row_args<Z, T> *a, const struct row_facts *f, const Z *z,
                           T *dz)
{
    constexpr int N = CUDA_LANES<Z>;
    const int64_t per_group = (int64_t)GROUP * ROW_BLOCK<Z> * N;
    int64_t barrier_at = 0;
    for (int64_t group = 0; group * per_group < a->V; group++) {
        const int64_t first = group * per_group, v = first + (int64_t)threadIdx.x * N;
        const bool waits = sizeof(T) < sizeof(Z) && group == barrier_at;
        if (waits) barrier_at = 2 * group + 2; /* groups up to this one are read */
        if (first + per_group <= a->V)         /* for all threads: they meet at the same barrier */
            put_group<ALIGNED, true>(a, f, z, v, waits, dz);
        else
            put_group<ALIGNED, false>(a, f, z, v, waits, dz);
    }
}

template <typename Z, typename T> CUDA_FN void row_zeros(const struct row_args<Z, T> *a, T *dz)
{
    constexpr int N = CUDA_LANES<Z>;
    const float zeros[N] = {0};
    for (int64_t v = (int64_t)threadIdx.x * N; v < a->V; v += ROW_BLOCK<Z> * N) {
        if (v + N <= a->V) {
            store_f32<N>(dz + v, zeros);
            continue;
        }
        for (int64_t i = v; i < a->V; i++) dz[i] = from_f32<T>(0);
    }
}

/* One row per block of threads: its loss, and its dz unless only losses are wanted. */
template <bool ALIGNED, typename Z, typename T>
__global__ void __launch_bounds__(ROW_BLOCK<Z>, 1024 / ROW_BLOCK<Z>)
    row_kernel(struct row_args<Z, T> a)
{
    __shared__ float room[CUDA_WARP];
    const int64_t n = blockIdx.x, label = a.labels[n];
    const Z *z = a.z + n * a.ldz;
    T *dz = a.dz ? a.dz + n * a.ld_dz : NULL;
    if (label == CZ_IGNORE_LABEL) {
        if (threadIdx.x == 0) a.losses[n] = 0;
        if (threadIdx.x == 0 && a.log_probs) a.log_probs[n] = 0;
        if (dz) row_zeros(&a, dz);
        return;
    }
    const double weight = a.weights ? (double)a.weights[n] : 1.0;
    float z_label = NAN, largest;
    if (label >= 0 && label < a.V)
        z_label = to_f32(z[label]) + (a.bias ? to_f32(a.bias[label]) : 0.0f);
    /* z_label is read when this is over */
    const float lse = row_log_sum_exp<ALIGNED>(z, a.bias, a.V, room, &largest);
    const double loss = (double)lse - (double)z_label;
    if (threadIdx.x == 0) a.losses[n] = weight * loss;
    if (threadIdx.x == 0 && a.log_probs) a.log_probs[n] = (float)-loss;
    if (threadIdx.x == 0 && z_label == largest) atomicAdd(&a.sums->n_hits, 1u);
    if (!dz) return;
    const float factor = (float)(a.sums->scale * weight);
    const float at_label =
        factor * (expf(z_label - lse) - 1.0f) * cap_slope(z_label, a.cap_inverse);
    const struct row_facts f = {lse, factor, at_label, a.cap_inverse, label};
    row_gradients<ALIGNED>(&a, &f, z, dz);
}

/* ---- dbias ------------------------------------------------------------------------------------
 */

#define SUM_ROWS 8               /* warps, each with every eighth row */
#define SUM_COLS (2 * CUDA_WARP) /* columns of a block */

/* dbias (V) [+]= Σ over n rows of dz, in a fixed order. Limit: one read of dz. */
template <typename T, typename G>
__global__ void __launch_bounds__(SUM_ROWS *CUDA_WARP)
    column_sums_kernel(int64_t n, int64_t V, int64_t ld, const T *dz, bool accumulate, G *dbias)
{
    __shared__ float sums[SUM_ROWS][SUM_COLS];
    const int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const int64_t v0 = (int64_t)blockIdx.x * SUM_COLS, v = v0 + 2 * lane;
    float sum[2] = {0, 0};
    for (int64_t row = warp; row < n && v < V; row += SUM_ROWS) {
        float x[2];
        load_f32<2>(dz + row * ld + v, x); /* ld is even: the pad may be read */
        sum[0] += x[0];
        sum[1] += x[1];
    }
    sums[warp][2 * lane] = sum[0];
    sums[warp][2 * lane + 1] = sum[1];
    __syncthreads();
    if (threadIdx.x >= SUM_COLS || v0 + threadIdx.x >= V) return;
    float total = accumulate ? to_f32(dbias[v0 + threadIdx.x]) : 0;
    float here = 0;
    for (int i = 0; i < SUM_ROWS; i++) here += sums[i][threadIdx.x];
    dbias[v0 + threadIdx.x] = from_f32<G>(total + here);
}

/* ---- layout of the workspace ------------------------------------------------------------------
 */

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

struct layout {
    int64_t R, ldz;  /* rows of a block here, and how far apart they are */
    int64_t V_units; /* columns in whole units */
    bool sums_dx;    /* dx is summed in fp32 first */
    size_t z, dx, losses, sums, scratch, scratch_nbytes, nbytes;
};

static cz_status take(struct layout *l, int64_t rows, int64_t cols, size_t unit, size_t *off)
{
    size_t numel, nbytes;
    *off = l->nbytes;
    TRY(size_mul((size_t)rows, (size_t)cols, &numel));
    TRY(size_mul(numel, unit, &nbytes));
    TRY(size_add(nbytes, ALIGN - 1, &nbytes));
    return size_add(l->nbytes, nbytes / ALIGN * ALIGN, &l->nbytes);
}

/* Of the logits that are made here, not of those given back. */
static enum cz_dtype z_dtype(const struct ce_head_args *a)
{
    return ce_head_has_gradients(a) && !a->logits ? a->dtype : DTYPE_F32;
}

static int64_t rows_max(const struct ce_head_args *a, int64_t ldz)
{
    const size_t z_nbytes = dtype_size(z_dtype(a));
    const double tensors = (double)TENSORS * (double)a->N * (double)a->C *
                           (double)dtype_size(a->dtype) / (double)z_nbytes;
    int64_t numel = CE_HEAD_LOGITS_NUMEL_MAX * (int64_t)(sizeof(float) / z_nbytes);
    if (tensors > (double)numel && tensors < 0x1p60) numel = (int64_t)tensors;
    return least(a->N, ce_head_rows_max(numel, ldz));
}

#define TILE_ROWS    128 /* of a product's tiles, as cuBLASLt's largest are */
#define TILE_COLUMNS 256

/* Rows of a block: where there are several, dx (R,C) has whole waves of tiles, one for each
 * multiprocessor. 1.3 waves would take the time of two. */
static int64_t block_rows(const struct ops *ops, const struct ce_head_args *a, int64_t most)
{
    const int64_t n_mp = ops->cuda->info.n_multiprocessors;
    const int64_t n_columns = (a->C + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int64_t n_rows = 1; /* of tiles, until these are waves */
    while (n_rows * n_columns % n_mp != 0) n_rows++;
    const int64_t wave = n_rows * TILE_ROWS;
    return a->N > most && most >= wave ? most / wave * wave : ce_head_rows(a->N, most);
}

static struct matmul_args logits_product(const struct ce_head_args *a, int64_t n, int64_t v)
{
    struct matmul_args p = {.m = n, .n = v, .k = a->C, .dtype = a->dtype};
    p.c_dtype = DTYPE_F32;
    p.trans_b = true;
    return p;
}

/* Products of every shape want the same workspace here (ops/matmul/matmul_cuda.cu). */
static cz_status make_layout(struct ops *ops, const struct ce_head_args *a, struct layout *l)
{
    const bool gradients = ce_head_has_gradients(a), narrow = a->dtype != DTYPE_F32;
    const struct matmul_args product = logits_product(a, a->N, a->V);
    *l = (struct layout){};
    l->V_units = a->V / UNIT * UNIT;
    if (l->V_units == 0) l->V_units = a->V;
    l->ldz = (a->V + UNIT - 1) / UNIT * UNIT;
    const int64_t most = rows_max(a, l->ldz);
    l->R = block_rows(ops, a, most);
    l->sums_dx = gradients && narrow && l->V_units < a->V;
    const bool makes_z = a->labels && (gradients || !a->logits);
    TRY(take(l, makes_z ? most : 0, l->ldz, dtype_size(z_dtype(a)), &l->z));
    TRY(take(l, l->sums_dx ? most : 0, a->C, sizeof(float), &l->dx));
    TRY(take(l, a->labels ? a->N : 0, 1, sizeof(double), &l->losses));
    TRY(take(l, a->labels ? 1 : 0, 1, sizeof(struct head_sums), &l->sums));
    l->scratch = l->nbytes;
    TRY(ops->matmul_workspace(ops, &product, &l->scratch_nbytes));
    TRY(size_add(l->nbytes, ALIGN, &l->nbytes)); /* the workspace may start anywhere */
    return size_add(l->nbytes, l->scratch_nbytes, &l->nbytes);
}

static cz_status ce_head_workspace(struct ops *ops, const struct ce_head_args *a, size_t *nbytes)
{
    struct layout layout;
    *nbytes = 0;
    TRY(ce_head_check_shape(a));
    TRY(make_layout(ops, a, &layout));
    *nbytes = layout.nbytes;
    return CZ_OK;
}

/* ---- one block of rows ------------------------------------------------------------------------
 */

struct call {
    struct ops *ops;
    struct dev_stream *stream;
    const struct ce_head_args *a;
    const struct layout *l;
};

static void *at(const struct call *c, size_t off)
{
    const uintptr_t base = ((uintptr_t)c->a->workspace + ALIGN - 1) / ALIGN * ALIGN;
    return (char *)base + off;
}

static struct head_sums *sums_of(const struct call *c)
{
    return (struct head_sums *)at(c, c->l->sums);
}

static char *element(const void *base, int64_t idx, enum cz_dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)idx * dtype_size(dtype);
}

static cz_status run_product(const struct call *c, struct matmul_args *p, const void *left,
                             const void *right, void *out)
{
    p->a = left;
    p->b = right;
    p->c = out;
    p->workspace = at(c, c->l->scratch);
    p->workspace_nbytes = c->l->scratch_nbytes;
    return c->ops->matmul(c->ops, c->stream, p);
}

/* Columns [v0, v0 + v) of the vocabulary. */
struct part {
    int64_t v0, v;
};

static int parts_of(const struct call *c, struct part parts[2])
{
    const int64_t V = c->a->V, whole = c->l->V_units;
    parts[0] = (struct part){0, whole};
    parts[1] = (struct part){whole, V - whole};
    return whole < V ? 2 : 1;
}

/* Elements from row to row of dz, which is over z. */
static int64_t ld_dz(const struct call *c)
{
    return c->l->ldz * (int64_t)(dtype_size(z_dtype(c->a)) / dtype_size(c->a->dtype));
}

static cz_status block_logits(const struct call *c, int64_t first, int64_t n)
{
    const struct ce_head_args *a = c->a;
    const void *x = element(a->x, first * a->C, a->dtype);
    const enum cz_dtype dtype = z_dtype(a);
    struct part parts[2];
    const int n_parts = parts_of(c, parts);
    for (int i = 0; i < n_parts; i++) {
        struct matmul_args p = logits_product(a, n, parts[i].v);
        p.c_dtype = dtype;
        p.ldc = c->l->ldz;
        TRY(run_product(c, &p, x, element(a->w, parts[i].v0 * a->C, a->dtype),
                        element(at(c, c->l->z), parts[i].v0, dtype)));
    }
    return CZ_OK;
}

/* The bias of a block's logits that is not in them yet. */
static const void *bias_left(const struct ce_head_args *a)
{
    return a->logits || a->softcap > 0 ? NULL : a->bias;
}

template <typename Z, typename T>
static cz_status launch_cap(const struct call *c, int64_t n, int64_t ldz, void *z, const void *bias)
{
    return cuda_launch("cross-entropy: soft cap", cap_kernel<Z, T>, (unsigned)n, CAP_BLOCK, 0,
                       c->stream, c->a->V, ldz, (Z *)z, (const T *)bias, c->a->softcap);
}

static cz_status block_cap(const struct call *c, int64_t n)
{
    const struct ce_head_args *a = c->a;
    CUDA_BY_DTYPE(a->dtype, T, {
        if (z_dtype(a) == DTYPE_F32)
            return launch_cap<float, T>(c, n, c->l->ldz, at(c, c->l->z), a->bias);
        return launch_cap<T, T>(c, n, c->l->ldz, at(c, c->l->z), a->bias);
    });
    return CZ_OK;
}

template <typename Z, typename T>
static cz_status launch_rows(const struct call *c, int64_t first, int64_t n)
{
    const struct ce_head_args *a = c->a;
    struct row_args<Z, T> r = {};
    r.V = a->V;
    r.ldz = a->logits ? a->V : c->l->ldz;
    r.ld_dz = ld_dz(c);
    r.z =
        a->logits ? (const Z *)(const void *)(a->logits + first * a->V) : (const Z *)at(c, c->l->z);
    r.bias = (const T *)bias_left(a);
    r.labels = a->labels + first;
    r.weights = a->loss_weights ? a->loss_weights + first : NULL;
    r.sums = sums_of(c);
    r.dz = ce_head_has_gradients(a) ? (T *)at(c, c->l->z) : NULL;
    r.losses = (double *)at(c, c->l->losses) + first;
    r.log_probs = a->log_probs ? a->log_probs + first : NULL;
    r.cap_inverse = a->softcap > 0 ? 1.0f / a->softcap : 0.0f;
    const bool aligned = cuda_is_aligned(r.z, 16) && r.ldz % CUDA_LANES<Z> == 0;
    return cuda_launch("cross-entropy of rows",
                       aligned ? row_kernel<true, Z, T> : row_kernel<false, Z, T>, (unsigned)n,
                       ROW_BLOCK<Z>, 0, c->stream, r);
}

static cz_status block_rows(const struct call *c, int64_t first, int64_t n)
{
    CUDA_BY_DTYPE(c->a->dtype, T, {
        if (z_dtype(c->a) == DTYPE_F32) return launch_rows<float, T>(c, first, n);
        return launch_rows<T, T>(c, first, n);
    });
    return CZ_OK;
}

template <typename T, typename G>
static cz_status launch_dbias(const struct call *c, int64_t n, bool accumulate)
{
    const struct ce_head_args *a = c->a;
    return cuda_launch("cross-entropy: dbias", column_sums_kernel<T, G>,
                       cuda_blocks((size_t)a->V, SUM_COLS), SUM_ROWS * CUDA_WARP, 0, c->stream, n,
                       a->V, ld_dz(c), (const T *)at(c, c->l->z), accumulate, (G *)a->dbias);
}

static cz_status block_dbias(const struct call *c, int64_t first, int64_t n)
{
    const bool accumulate = first > 0 || c->a->dbias_accumulate;
    CUDA_BY_DTYPE(c->a->dtype, T, {
        if (c->a->grad_dtype == DTYPE_F32) return launch_dbias<T, float>(c, n, accumulate);
        return launch_dbias<T, T>(c, n, accumulate);
    });
    return CZ_OK;
}

static cz_status part_dx(const struct call *c, const struct part *part, int64_t n, void *dx)
{
    const struct ce_head_args *a = c->a;
    struct matmul_args p = {.m = n, .n = a->C, .k = part->v, .dtype = a->dtype};
    p.c_dtype = c->l->sums_dx ? DTYPE_F32 : a->dtype;
    p.accumulate = part->v0 > 0;
    p.lda = ld_dz(c);
    return run_product(c, &p, element(at(c, c->l->z), part->v0, a->dtype),
                       element(a->w, part->v0 * a->C, a->dtype), dx);
}

static cz_status part_dw(const struct call *c, const struct part *part, int64_t first, int64_t n)
{
    const struct ce_head_args *a = c->a;
    struct matmul_args p = {.m = part->v, .n = a->C, .k = n, .dtype = a->dtype};
    p.c_dtype = a->grad_dtype;
    p.trans_a = true;
    p.accumulate = first > 0 || a->dw_accumulate;
    p.lda = ld_dz(c);
    return run_product(c, &p, element(at(c, c->l->z), part->v0, a->dtype),
                       element(a->x, first * a->C, a->dtype),
                       element(a->dw, part->v0 * a->C, a->grad_dtype));
}

static cz_status block_gradients(const struct call *c, int64_t first, int64_t n)
{
    const struct ce_head_args *a = c->a;
    void *dx = element(a->dx, first * a->C, a->dtype), *sums = at(c, c->l->dx);
    struct part parts[2];
    const int n_parts = parts_of(c, parts);
    for (int i = 0; i < n_parts; i++) {
        TRY(part_dx(c, &parts[i], n, c->l->sums_dx ? sums : dx));
        if (a->dw) TRY(part_dw(c, &parts[i], first, n));
    }
    if (a->dbias) TRY(block_dbias(c, first, n));
    if (!c->l->sums_dx) return CZ_OK;
    struct cast_scale_args cast = {.x_dtype = DTYPE_F32, .y_dtype = a->dtype};
    cast.numel = (size_t)(n * a->C);
    cast.alpha = 1.0f;
    cast.x = sums;
    cast.y = dx;
    return c->ops->cast_scale(c->ops, c->stream, &cast);
}

/* ---- front door -------------------------------------------------------------------------------
 */

static cz_status all_logits(const struct call *c)
{
    const struct ce_head_args *a = c->a;
    struct matmul_args p = logits_product(a, a->N, a->V);
    p.bias = a->bias;
    TRY(run_product(c, &p, a->x, a->w, a->logits));
    if (!(a->softcap > 0)) return CZ_OK;
    return launch_cap<float, float>(c, a->N, a->V, a->logits, NULL);
}

static cz_status all_blocks(const struct call *c)
{
    const struct ce_head_args *a = c->a;
    TRY(cuda_launch("cross-entropy: its divisor", divisor_kernel, 1, SUM_BLOCK, 0, c->stream, a->N,
                    a->labels, a->loss_weights, a->divisor, a->dloss, sums_of(c)));
    for (int64_t first = 0; first < a->N; first += c->l->R) {
        const int64_t n = least(c->l->R, a->N - first);
        if (!a->logits) TRY(block_logits(c, first, n));
        if (!a->logits && a->softcap > 0) TRY(block_cap(c, n));
        TRY(block_rows(c, first, n));
        if (ce_head_has_gradients(a)) TRY(block_gradients(c, first, n));
    }
    return cuda_launch("cross-entropy: its mean", mean_kernel, 1, SUM_BLOCK, 0, c->stream, a->N,
                       (const double *)at(c, c->l->losses), (const struct head_sums *)sums_of(c),
                       a->loss, a->hits);
}

/* Nothing to learn from an empty batch: gradients that would be overwritten become zero. */
static cz_status clear_gradients(const struct call *c)
{
    const struct ce_head_args *a = c->a;
    struct device *dev = c->ops->device;
    const size_t unit = dtype_size(a->grad_dtype);
    if (!ce_head_has_gradients(a)) return CZ_OK;
    if (a->dw && !a->dw_accumulate)
        TRY(dev->ops->fill_zero(dev, c->stream, a->dw, (size_t)(a->V * a->C) * unit));
    if (a->dbias && !a->dbias_accumulate)
        TRY(dev->ops->fill_zero(dev, c->stream, a->dbias, (size_t)a->V * unit));
    return CZ_OK;
}

static cz_status ce_head(struct ops *ops, struct dev_stream *stream, const struct ce_head_args *a)
{
    struct layout layout;
    TRY(ce_head_check(a));
    if (a->dz) return err_set(CZ_UNSUPPORTED, 0, "ce_head: dz is not kept on a GPU");
    TRY(make_layout(ops, a, &layout));
    TRY(ops_check_workspace("ce_head", a->workspace, a->workspace_nbytes, layout.nbytes));
    const struct call c = {ops, stream, a, &layout};
    if (a->N == 0) TRY(clear_gradients(&c));
    if (a->logits && a->N > 0) TRY(all_logits(&c));
    return a->labels ? all_blocks(&c) : CZ_OK;
}

extern "C" cz_status cross_entropy_head_wire_cuda(struct ops *ops)
{
    ops->ce_head = ce_head;
    ops->ce_head_workspace = ce_head_workspace;
    return CZ_OK;
}
