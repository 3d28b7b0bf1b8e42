/* Matrix products on a GPU: cuBLASLt, with what comes along in its epilogue where it has that, and
 * in passes of its own where it has not; our own product for what cuBLASLt refuses altogether.
 *
 * What comes along, from the best to the last resort:
 *   all of it in the epilogue → the bias gradient as a pass → the activation as a pass too
 *   → bias and residual are written to C, and the product added to them in fp32
 *   → our own product. */
#include "device/cuda/kernel.h"
#include "ops/matmul/matmul_cuda_impl.h"

#define BLOCK 256

/* ---- our own product --------------------------------------------------------------------------
 */

#define TILE 16 /* of C, and along k; a block has TILE² threads */

/* Element (row, col) of a matrix is at row·row_step + col·col_step. */
struct steps {
    int64_t row, col;
};

/* TILE × TILE elements from (row0, col0) to shared memory, zeros beyond the edges. Threads that are
 * neighbours read neighbours. */
template <typename T>
CUDA_FN void load_tile(const T *x, struct steps steps, int64_t row0, int64_t col0, int64_t n_rows,
                       int64_t n_cols, float tile[TILE][TILE + 1])
{
    const int slow = (int)threadIdx.x / TILE, fast = (int)threadIdx.x % TILE;
    const int r = steps.col == 1 ? slow : fast, c = steps.col == 1 ? fast : slow;
    const int64_t row = row0 + r, col = col0 + c;
    tile[r][c] = row < n_rows && col < n_cols ? to_f32(x[row * steps.row + col * steps.col]) : 0;
}

struct tiled_args {
    int64_t m, n, k, ldc;
    struct steps a, b;
};

/* C (m,n) = A·B [+ bias] [+ `before`, which may be C]: sums over k in order, one tile of C per
 * block. Limit: loads of shared memory, two per multiply-add; a last resort, not a fast product. */
template <typename T, typename C>
__global__ void __launch_bounds__(TILE *TILE)
    tiled_kernel(struct tiled_args s, const T *a, const T *b, const T *bias, const C *before, C *c)
{
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];
    const int r = (int)threadIdx.x / TILE, j = (int)threadIdx.x % TILE;
    const int64_t n_across = (s.n + TILE - 1) / TILE;
    const int64_t row0 = blockIdx.x / n_across * TILE, col0 = blockIdx.x % n_across * TILE;
    float sum = 0;
    for (int64_t k0 = 0; k0 < s.k; k0 += TILE) {
        load_tile(a, s.a, row0, k0, s.m, s.k, a_tile);
        load_tile(b, s.b, k0, col0, s.k, s.n, b_tile);
        __syncthreads();
#pragma unroll
        for (int l = 0; l < TILE; l++) sum = fmaf(a_tile[r][l], b_tile[l][j], sum);
        __syncthreads();
    }
    const int64_t row = row0 + r, col = col0 + j;
    if (row >= s.m || col >= s.n) return;
    const int64_t at = row * s.ldc + col;
    if (bias) sum += to_f32(bias[col]);
    if (before) sum += to_f32(before[at]);
    c[at] = from_f32<C>(sum);
}

template <typename T, typename C>
static cz_status launch_tiled(struct dev_stream *stream, const struct matmul_args *a)
{
    const int64_t lda = matmul_lda(a), ldb = matmul_ldb(a);
    struct tiled_args s = {a->m, a->n, a->k, matmul_ldc(a), {lda, 1}, {ldb, 1}};
    const void *before = a->accumulate ? a->c : a->residual;
    if (a->trans_a) s.a = {1, lda};
    if (a->trans_b) s.b = {1, ldb};
    const int64_t n_tiles = ((a->m + TILE - 1) / TILE) * ((a->n + TILE - 1) / TILE);
    if (n_tiles > INT32_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "matmul: C of %lld × %lld is too large for the GPU",
                       (long long)a->m, (long long)a->n);
    return cuda_launch("matmul", tiled_kernel<T, C>, (unsigned)n_tiles, TILE * TILE, 0, stream, s,
                       (const T *)a->a, (const T *)a->b, (const T *)a->bias, (const C *)before,
                       (C *)a->c);
}

static cz_status run_tiled(struct dev_stream *stream, const struct matmul_args *a)
{
    CUDA_BY_DTYPE(a->dtype, T, {
        if (a->c_dtype == DTYPE_F32) return launch_tiled<T, float>(stream, a);
        return launch_tiled<T, T>(stream, a);
    });
    return CZ_OK;
}

/* For want of a better one. */
static cz_status run_slow(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    ops->products.n_slow++;
    return run_tiled(stream, a);
}

/* ---- a bias or residual that cuBLASLt does not take -------------------------------------------
 */

/* c[i] (n) = bias [+ residual[i], which may be c's]. Threads walk down the rows of a column: one
 * read of the bias. Limit: writing C. */
template <typename T, typename C>
__global__ void __launch_bounds__(BLOCK)
    bias_rows_kernel(int64_t m, int64_t n, int64_t ldc, const T *bias, const C *residual, C *c)
{
    const int64_t n_across = (n + BLOCK - 1) / BLOCK;
    const int64_t col = blockIdx.x % n_across * BLOCK + threadIdx.x;
    if (col >= n) return;
    const float x = bias ? to_f32(bias[col]) : 0.0f;
    for (int64_t row = blockIdx.x / n_across; row < m; row += gridDim.x / n_across) {
        const int64_t at = row * ldc + col;
        c[at] = from_f32<C>(residual ? x + to_f32(residual[at]) : x);
    }
}

template <typename T, typename C>
static cz_status launch_bias_rows(struct ops *ops, struct dev_stream *stream,
                                  const struct matmul_args *a)
{
    const int64_t n_across = (a->n + BLOCK - 1) / BLOCK;
    const int64_t fill = 16 * (int64_t)ops->cuda->info.n_multiprocessors / n_across;
    const int64_t n_down = fill < 1 ? 1 : fill < a->m ? fill : a->m;
    return cuda_launch("matmul: its bias", bias_rows_kernel<T, C>, (unsigned)(n_across * n_down),
                       BLOCK, 0, stream, a->m, a->n, matmul_ldc(a), (const T *)a->bias,
                       (const C *)a->residual, (C *)a->c);
}

static cz_status run_bias_rows(struct ops *ops, struct dev_stream *stream,
                               const struct matmul_args *a)
{
    CUDA_BY_DTYPE(a->dtype, T, {
        if (a->c_dtype == DTYPE_F32) return launch_bias_rows<T, float>(ops, stream, a);
        return launch_bias_rows<T, T>(ops, stream, a);
    });
    return CZ_OK;
}

/* ---- front door -------------------------------------------------------------------------------
 */

static struct matmul_lt *lt_of(struct ops *ops)
{
    return (struct matmul_lt *)ops->cuda->matmul;
}

static void *aligned(const struct matmul_args *a)
{
    const uintptr_t at = (uintptr_t)a->workspace + MATMUL_LT_ALIGN - 1;
    return (void *)(at - at % MATMUL_LT_ALIGN);
}

/* One product with no passes beside it. */
static cz_status run_plain(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    struct matmul_args product = *a;
    bool taken = false;
    TRY(matmul_lt_run(lt_of(ops), stream, a, aligned(a), &taken));
    if (taken) return CZ_OK;
    if (!a->bias && !a->residual) return run_slow(ops, stream, a);
    TRY(run_bias_rows(ops, stream, a)); /* a bias alone is exact: the sum is rounded once */
    product.bias = product.residual = NULL;
    product.accumulate = true;
    TRY(matmul_lt_run(lt_of(ops), stream, &product, aligned(a), &taken));
    return taken ? CZ_OK : run_slow(ops, stream, &product);
}

/* With its activation in one call or in two. */
static cz_status run_activated(struct ops *ops, struct dev_stream *stream,
                               const struct matmul_args *a)
{
    struct matmul_args product = *a;
    bool taken = false;
    if (a->epilogue == MATMUL_PLAIN) return run_plain(ops, stream, a);
    TRY(matmul_lt_run(lt_of(ops), stream, a, aligned(a), &taken));
    if (taken) return CZ_OK;
    product.epilogue = MATMUL_PLAIN;
    product.c = matmul_product_c(a);
    TRY(run_plain(ops, stream, &product));
    return matmul_act_pass(ops, stream, a);
}

static cz_status run(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    struct matmul_args product = *a;
    bool taken = false;
    if (a->bias_grad_of == MATMUL_NO_BIAS_GRAD) return run_activated(ops, stream, a);
    TRY(matmul_lt_run(lt_of(ops), stream, a, aligned(a), &taken));
    if (taken) return CZ_OK;
    product.bias_grad_of = MATMUL_NO_BIAS_GRAD;
    TRY(run_activated(ops, stream, &product));
    return matmul_bias_grad_pass(ops, stream, a);
}

/* Where a dimension is 0 nothing is multiplied: C is the bias, or 0, or stays. */
static cz_status run_empty(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    struct matmul_args product = *a;
    product.c = matmul_product_c(a);
    if (a->m > 0 && a->n > 0) {
        TRY(run_tiled(stream, &product));
        TRY(matmul_act_pass(ops, stream, a));
    }
    return matmul_bias_grad_pass(ops, stream, a);
}

/* Of one size for all shapes, so what was planned for some serves all. */
static cz_status workspace(struct ops *ops, const struct matmul_args *a, size_t *nbytes)
{
    *nbytes = 0;
    TRY(matmul_check_shape(a));
    if (a->m > 0 && a->n > 0 && a->k > 0)
        *nbytes = matmul_lt_workspace(lt_of(ops)) + MATMUL_LT_ALIGN;
    const size_t bias_grad_nbytes = matmul_bias_grad_workspace(ops, a);
    if (bias_grad_nbytes > *nbytes) *nbytes = bias_grad_nbytes;
    return CZ_OK;
}

static cz_status matmul(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    size_t need = 0;
    TRY(matmul_check(a));
    TRY(workspace(ops, a, &need));
    TRY(ops_check_workspace("matmul", a->workspace, a->workspace_nbytes, need));
    if (a->m == 0 || a->n == 0 || a->k == 0) return run_empty(ops, stream, a);
    ops->products.n++;
    return run(ops, stream, a);
}

extern "C" cz_status matmul_wire_cuda(struct ops *ops)
{
    struct matmul_lt *lt;
    ops->matmul = matmul;
    ops->matmul_workspace = workspace;
    cz_status st = matmul_lt_create(ops, &lt);
    ops->cuda->matmul = lt;
    if (st == CZ_OK) ops->adds_residual = matmul_lt_adds_residual(lt);
    return st;
}

extern "C" void matmul_unwire_cuda(struct ops *ops)
{
    matmul_lt_destroy(lt_of(ops));
    ops->cuda->matmul = NULL;
}
