/* The plain cross-entropy on a GPU. Limit: memory (N·V logits read, their gradients written; the
 * gradient's pass finds a row in the L2 cache, which it walks backwards for that; blocks are as
 * large as can be, so that the rows under way fit there). Σω and the loss are made on the device.
 * A row belongs to a warp while it is short, else to a block; element v is always the same
 * thread's, so sums depend on V alone; losses are added up in double, by groups of rows that follow
 * from N and V.
 * A label outside [0,V) is not looked up: the loss and its row's gradient become NaN. */
#include "ops/cross_entropy/cross_entropy_cuda_impl.h"
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "ops/cuda_impl.h"

enum { ONE_BLOCK = 1024, NARROW_MAX = 1024, WIDE_MAX = 1024, NARROW_ROWS = 8, GROUPS_MAX = 4096 };

/* Vectors of N logits that a thread has under way. */
template <int N> constexpr int AHEAD_OF = N == 1 ? 8 : 4;

/* In the table's scratch memory. */
struct ce_scratch {
    double divisor, partial[GROUPS_MAX];
};
static_assert(sizeof(struct ce_scratch) <= CUDA_SCRATCH_NBYTES, "the scratch holds a call's sums");

/* ---- sums over a whole block -------------------------------------------------------------------
 */

/* Thread 0 gets Σ x in a tree over thread numbers. ONE_BLOCK threads call. */
CUDA_FN double sum_of_block(double x)
{
    __shared__ double room[ONE_BLOCK];
    room[threadIdx.x] = x;
    for (unsigned half = ONE_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
    }
    return room[0];
}

CUDA_FN double weight_of(const struct cross_entropy_args *a, int64_t n)
{
    if (a->labels[n] == CZ_IGNORE_LABEL) return 0;
    return a->loss_weights ? (double)a->loss_weights[n] : 1.0;
}

/* What the sum of losses is divided by: cross_entropy_divisor()'s answer. One block. */
static __global__ void __launch_bounds__(ONE_BLOCK)
    ce_divisor_kernel(struct cross_entropy_args a, struct ce_scratch *scratch)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t n = threadIdx.x; n < a.N; n += ONE_BLOCK) sum += weight_of(&a, n);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) scratch->divisor = a.divisor != 0 ? (double)a.divisor : sum;
}

/* loss = Σ of the groups' sums over the divisor. One block. */
static __global__ void __launch_bounds__(ONE_BLOCK)
    ce_loss_kernel(const struct ce_scratch *scratch, unsigned n_groups, float *loss)
{
    double sum = 0;
    for (unsigned i = threadIdx.x; i < n_groups; i += ONE_BLOCK) sum += scratch->partial[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *loss = scratch->divisor != 0 ? (float)(sum / scratch->divisor) : 0.0f;
}

/* ---- one row -----------------------------------------------------------------------------------
 */

/* N logits from v on, −∞ past the end unless all are there (WHOLE): one access when rows are
 * aligned, else one by one. Nothing branches, so that the accesses of several vectors are under way
 * together. */
template <int N, bool ALIGNED, bool WHOLE>
CUDA_FN void logits_load(const float *z, uint32_t v, uint32_t V, float out[N])
{
    if (ALIGNED) load_f32<N>(z + (WHOLE || v < V ? v : 0), out);
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        if (!WHOLE && v + i >= V)
            out[i] = -INFINITY;
        else if (!ALIGNED)
            out[i] = z[v + i];
}

/* Not to be kept in the caches, where the rest of the row is waiting. */
template <int N, bool ALIGNED>
CUDA_FN void gradient_store(float *dz, uint32_t v, uint32_t V, const float x[N])
{
    if constexpr (ALIGNED && N == 4) {
        if (v < V) __stcs((float4 *)(void *)(dz + v), make_float4(x[0], x[1], x[2], x[3]));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            if (v + i < V) __stcs(dz + v + i, x[i]);
    }
}

template <bool WIDE, typename Op> CUDA_FN float row_reduce(float x, float *room)
{
    return WIDE ? block_reduce<Op>(x, room) : warp_reduce<Op>(x);
}

template <int N, bool ALIGNED, bool WHOLE>
CUDA_FN void take_logits(const float *z, uint32_t v, uint32_t step, uint32_t V, struct running *r)
{
    constexpr int AHEAD = AHEAD_OF<N>;
    float x[AHEAD][N];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) logits_load<N, ALIGNED, WHOLE>(z, v + k * step, V, x[k]);
    running_add<float, AHEAD, N>(r, x);
}

/* Whether all that a thread takes at once from v on is there. */
template <int N> CUDA_FN bool is_whole(uint32_t v, uint32_t step, uint32_t V)
{
    return v + (AHEAD_OF<N> - 1) * step + N <= V;
}

/* log Σ exp(z) in one pass. NaN or +∞ among the logits gives NaN. Every thread gets it. */
template <int N, bool ALIGNED, bool WIDE>
CUDA_FN float log_sum_exp(const float *z, uint32_t V, float *room)
{
    struct running r = {-INFINITY, 0};
    const uint32_t step = blockDim.x * N;
    for (uint32_t v = threadIdx.x * N; v < V; v += AHEAD_OF<N> * step)
        if (is_whole<N>(v, step, V))
            take_logits<N, ALIGNED, true>(z, v, step, V, &r);
        else
            take_logits<N, ALIGNED, false>(z, v, step, V, &r);
    const float base = base_of(row_reduce<WIDE, max_of>(r.largest, room));
    return base + logf(row_reduce<WIDE, sum_of>(r.sum * exp_from<float>(r.largest, base), room));
}

/* What dz = factor·(exp(z − lse) − (it is the label's)) is made of. */
struct gradient_facts {
    float lse, factor;
    uint32_t label;
};

template <int N, bool ALIGNED, bool WHOLE>
CUDA_FN void put_gradients(const float *z, uint32_t first, uint32_t step, uint32_t V,
                           const struct gradient_facts *f, float *dz)
{
    constexpr int AHEAD = AHEAD_OF<N>;
    float x[AHEAD][N];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) logits_load<N, ALIGNED, WHOLE>(z, first + k * step, V, x[k]);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const uint32_t v = first + k * step;
#pragma unroll
        for (int i = 0; i < N; i++) x[k][i] = exp_from<float>(x[k][i], f->lse);
        if (f->label - v < N)
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                if (v + i == f->label) x[k][i] -= 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++) x[k][i] *= f->factor;
        gradient_store<N, ALIGNED>(dz, v, V, x[k]);
    }
}

/* A row's dz, from its end to its beginning. */
template <int N, bool ALIGNED>
CUDA_FN void softmax_grad(const float *z, uint32_t V, const struct gradient_facts *f, float *dz)
{
    const uint32_t step = blockDim.x * N;
    for (uint32_t batch = (V - 1) / (AHEAD_OF<N> * step) + 1; batch-- > 0;) {
        const uint32_t first = batch * AHEAD_OF<N> * step + threadIdx.x * N;
        if (is_whole<N>(first, step, V))
            put_gradients<N, ALIGNED, true>(z, first, step, V, f, dz);
        else if (first < V)
            put_gradients<N, ALIGNED, false>(z, first, step, V, f, dz);
    }
}

CUDA_FN void fill_row(float *dz, int64_t V, float x)
{
    for (int64_t v = threadIdx.x; v < V; v += blockDim.x) dz[v] = x;
}

/* Loss of row n times its weight; its gradient to dlogits unless NULL. */
template <int N, bool ALIGNED, bool WIDE>
CUDA_FN double ce_row(const struct cross_entropy_args *a, double divisor, int64_t n, float *room)
{
    const float *z = a->logits + n * a->V;
    float *dz = a->dlogits ? a->dlogits + n * a->V : NULL;
    const int64_t label = a->labels[n];
    const bool ignored = label == CZ_IGNORE_LABEL;
    if (ignored || label < 0 || label >= a->V) {
        if (dz) fill_row(dz, a->V, ignored ? 0.0f : NAN);
        return ignored ? 0.0 : (double)NAN;
    }
    const float z_label = z[label]; /* before dz, which may be over z */
    const float lse = log_sum_exp<N, ALIGNED, WIDE>(z, (uint32_t)a->V, room);
    if (!WIDE) __syncwarp(); /* all lanes have read it: shuffles order no memory */
    const double weight = weight_of(a, n), scale = divisor != 0 ? (double)a->dloss / divisor : 0;
    const struct gradient_facts f = {lse, (float)(scale * weight), (uint32_t)label};
    if (dz) softmax_grad<N, ALIGNED>(z, (uint32_t)a->V, &f, dz);
    return weight * ((double)lse - (double)z_label);
}

/* Row after row, a group of rows per warp (y) or block. */
template <int N, bool ALIGNED, bool WIDE>
static __global__ void __launch_bounds__(WIDE ? WIDE_MAX : CUDA_WARP *NARROW_ROWS)
    ce_rows_kernel(struct cross_entropy_args a, struct ce_scratch *scratch)
{
    __shared__ float room[CUDA_WARP];
    const unsigned group = blockIdx.x * blockDim.y + threadIdx.y;
    const unsigned n_groups = gridDim.x * blockDim.y;
    const double divisor = scratch->divisor;
    double sum = 0;
    for (int64_t n = group; n < a.N; n += n_groups)
        sum += ce_row<N, ALIGNED, WIDE>(&a, divisor, n, room);
    if (threadIdx.x == 0) scratch->partial[group] = sum;
}

/* ---- launches ----------------------------------------------------------------------------------
 */

struct ce_shape {
    bool wide;
    dim3 grid, block;
    unsigned n_groups;
};

static struct ce_shape shape_of(int64_t N, int64_t V)
{
    struct ce_shape s = {};
    s.wide = V > NARROW_MAX;
    s.block = s.wide ? dim3(V > 8192 ? WIDE_MAX : 256) : dim3(CUDA_WARP, NARROW_ROWS);
    const int64_t blocks = (N + s.block.y - 1) / s.block.y, most = GROUPS_MAX / s.block.y;
    s.grid = dim3((unsigned)(blocks < most ? blocks : most));
    s.n_groups = s.grid.x * s.block.y;
    return s;
}

/* Elements are a thread's by fours when V is a multiple of four, else one by one, which reads and
 * writes whole lines wherever a row begins. */
static cz_status launch_rows(struct dev_stream *stream, const struct cross_entropy_args *a,
                             const struct ce_shape *s, struct ce_scratch *scratch)
{
    const bool aligned = cuda_is_aligned(a->logits, 16) && cuda_is_aligned(a->dlogits, 16);
    void (*kernel)(struct cross_entropy_args, struct ce_scratch *);
    if (a->V % 4 != 0)
        kernel = s->wide ? ce_rows_kernel<1, true, true> : ce_rows_kernel<1, true, false>;
    else if (aligned)
        kernel = s->wide ? ce_rows_kernel<4, true, true> : ce_rows_kernel<4, true, false>;
    else
        kernel = s->wide ? ce_rows_kernel<4, false, true> : ce_rows_kernel<4, false, false>;
    return cuda_launch("cross_entropy", kernel, s->grid, s->block, 0, stream, *a, scratch);
}

static cz_status cross_entropy(struct ops *ops, struct dev_stream *stream,
                               const struct cross_entropy_args *a)
{
    static const char what[] = "cross_entropy";
    TRY(cross_entropy_check(a));
    if (a->V > INT32_MAX)
        return err_set(CZ_UNSUPPORTED, 0,
                       "cross_entropy: rows of %lld logits: a GPU accepts 2^31 − 1",
                       (long long)a->V);
    void *room;
    TRY(cuda_scratch(ops, stream, &room));
    struct ce_scratch *scratch = (struct ce_scratch *)room;
    struct ce_shape s = shape_of(a->N, a->V);
    TRY(cuda_launch(what, ce_divisor_kernel, 1, ONE_BLOCK, 0, stream, *a, scratch));
    if (a->N > 0) TRY(launch_rows(stream, a, &s, scratch));
    return cuda_launch(what, ce_loss_kernel, 1, ONE_BLOCK, 0, stream,
                       (const struct ce_scratch *)scratch, s.n_groups, a->loss);
}

extern "C" cz_status cross_entropy_wire_cuda(struct ops *ops)
{
    ops->cross_entropy = cross_entropy;
    return CZ_OK;
}
