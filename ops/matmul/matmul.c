/* Matmul on the host: empty dimensions, choice of row and form, epilogues.
 *
 * The static rule for bf16: our own panels multiply it where the CPU does so at more than its fp32
 * rate, which is with AMX, and with AVX512_BF16 on AMD (measured on Zen 4 and 5: twice the rate;
 * bench/bench_matmul). Elsewhere, and for fp16 everywhere, operands are widened to fp32.
 *
 * Which form a product takes depends on its arguments alone, never on a measurement at run time:
 * the same product must give the same bits in every run. */
#include "ops/matmul/matmul_impl.h"
#include "ops/table_impl.h"

#include "base/cpu.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static const struct matmul_row scalar = {.row = {"scalar", 0}};
static const struct matmul_row avx2 = {.row = {"avx2", CPU_AVX2}, .vec = &matmul_vec_avx2};
static const struct matmul_row avx512 = {.row = {"avx512", CPU_AVX512}, .vec = &matmul_vec_avx512};
static const struct matmul_row amd_bf16 = {.row = {"avx512bf16", CPU_AVX512BF16},
                                           .vec = &matmul_vec_avx512,
                                           .panels = &matmul_panels_avx512bf16};
static const struct matmul_row amx = {
    .row = {"amx", CPU_AMX}, .vec = &matmul_vec_avx512, .panels = &matmul_panels_amx};

static const struct matmul_row *const rows[] = {&scalar, &avx2, &avx512, &amd_bf16, &amx};

const struct matmul_row *const *matmul_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* oneDNN multiplies dense fp32 matrices without a copy. */
static bool takes_dense_form(const struct matmul_args *a)
{
    int64_t a_rows = a->trans_a ? a->k : a->m, a_width = a->trans_a ? a->m : a->k;
    int64_t b_rows = a->trans_b ? a->n : a->k, b_width = a->trans_b ? a->k : a->n;
    return a->dtype == DTYPE_F32 && matmul_is_dense(matmul_lda(a), a_width, a_rows) &&
           matmul_is_dense(matmul_ldb(a), b_width, b_rows) &&
           matmul_is_dense(matmul_ldc(a), a->n, a->m);
}

/* A few rows (one token of generation) are bound by reading B once: packing it would double
 * that. */
static bool takes_few_rows_form(const struct matmul_args *a)
{
    return a->m <= MATMUL_FEW_ROWS && !a->trans_a;
}

static bool takes_panels(const struct matmul_row *row, const struct matmul_args *a)
{
    return row->panels && a->dtype == DTYPE_BF16;
}

/* Columns are dealt to threads; each sum is made by one thread, so it does not depend on their
 * number. */
static void run_few_rows(const struct matmul_row *row, const struct matmul_args *a)
{
    OPS_IN_PARTS(ops_n_parts((size_t)(a->n * a->k), OPS_GRAIN), (size_t)a->n, MATMUL_FEW_UNIT,
                 row->vec->few_rows(a, begin, end));
}

static struct matmul_shape shape_of(const struct matmul_args *a)
{
    return (struct matmul_shape){.m = a->m,
                                 .n = a->n,
                                 .k = a->k,
                                 .trans_a = a->trans_a,
                                 .trans_b = a->trans_b,
                                 .accumulate = a->accumulate,
                                 .has_bias = a->bias != NULL};
}

/* What one product needs, exactly. */
static cz_status exact_workspace(struct matmul_cache *cache, const struct matmul_args *a,
                                 size_t *nbytes)
{
    *nbytes = 0;
    if (!cache->row->vec || a->m == 0 || a->n == 0 || a->k == 0) return CZ_OK;
    if (takes_few_rows_form(a)) return CZ_OK;
    if (takes_panels(cache->row, a)) {
        *nbytes = matmul_panels_workspace(cache->row->panels, a);
        return CZ_OK;
    }
    if (!takes_dense_form(a)) return matmul_blocked_workspace(cache, a, nbytes);
    struct matmul_shape shape = shape_of(a);
    return matmul_dense_scratch(cache, &shape, nbytes);
}

/* oneDNN's scratch is not quite monotonic: some smaller batch may need a little more than the
 * largest (16 % more was seen, over all m and k up to 1024). The slack covers it. */
static cz_status host_matmul_workspace(struct ops *ops, const struct matmul_args *a, size_t *nbytes)
{
    *nbytes = 0;
    TRY(matmul_check_shape(a));
    size_t exact = 0;
    TRY(exact_workspace(ops->matmul_cache, a, &exact));
    if (exact > 0) *nbytes = size_round_up(exact + exact / 4, (size_t)64 << 10);
    size_raise(nbytes, matmul_bias_grad_workspace(ops, a));
    return CZ_OK;
}

/* k = 0: the product is zero. */
static void write_empty_sum(const struct matmul_args *a)
{
    if (a->accumulate) return;
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            float x = a->bias ? dtype_get(a->bias, (size_t)j, a->dtype) : 0.0f;
            dtype_put(a->c, (size_t)(i * matmul_ldc(a) + j), a->c_dtype, x);
        }
}

/* The order of the tests matters: the cheapest form that fits comes first. */
static cz_status product(struct matmul_cache *cache, const struct matmul_args *a)
{
    if (a->m == 0 || a->n == 0) return CZ_OK;
    if (a->k == 0)
        write_empty_sum(a);
    else if (!cache->row->vec)
        matmul_scalar(a);
    else if (takes_few_rows_form(a))
        run_few_rows(cache->row, a);
    else if (takes_panels(cache->row, a)) {
        size_t need = matmul_panels_workspace(cache->row->panels, a);
        TRY(ops_check_workspace("matmul", a->workspace, a->workspace_nbytes, need));
        matmul_panels(cache->row, a, &cache->kept);
    } else if (takes_dense_form(a)) {
        struct matmul_shape shape = shape_of(a);
        size_t need = 0;
        TRY(matmul_dense_scratch(cache, &shape, &need));
        TRY(ops_check_workspace("matmul", a->workspace, a->workspace_nbytes, need));
        TRY(matmul_dense_run(cache, &shape, a->a, a->b, a->bias, a->c, a->workspace));
    } else
        TRY(matmul_blocked(cache, a));
    return CZ_OK;
}

static cz_status matmul(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a)
{
    TRY(matmul_check(a));
    if (a->residual) return err_set(CZ_UNSUPPORTED, 0, "matmul: the host adds no residual");
    struct matmul_args plain = *a;
    plain.c = matmul_product_c(a);
    TRY(product(ops->matmul_cache, &plain));
    TRY(matmul_act_pass(ops, stream, a));
    return matmul_bias_grad_pass(ops, stream, a);
}

/* oneDNN makes a primitive for each shape; our own loops take any. */
static bool host_matmul_is_by_shape(const struct ops *ops, enum cz_dtype dtype)
{
    const struct matmul_row *row = ops->matmul_cache->row;
    return row->vec && !(row->panels && dtype == DTYPE_BF16);
}

static void host_matmul_keep(struct ops *ops, void *memory, size_t nbytes)
{
    struct matmul_kept *kept = &ops->matmul_cache->kept;
    kept->memory = memory;
    kept->nbytes = nbytes;
    kept->used = kept->n = 0;
}

static size_t host_matmul_kept_nbytes(const struct ops *ops, enum cz_dtype dtype, int64_t n,
                                      int64_t k)
{
    const struct matmul_panels *panels = ops->matmul_cache->row->panels;
    return panels && dtype == DTYPE_BF16 ? matmul_panels_b_nbytes(panels, n, k) : 0;
}

void ops_matmul_keep(struct ops *ops, void *memory, size_t nbytes)
{
    if (ops->matmul_keep) ops->matmul_keep(ops, memory, nbytes);
}

size_t ops_matmul_kept_nbytes(const struct ops *ops, enum cz_dtype dtype, int64_t n, int64_t k)
{
    return ops->matmul_kept_nbytes ? ops->matmul_kept_nbytes(ops, dtype, n, k) : 0;
}

bool ops_matmul_is_by_shape(const struct ops *ops, enum cz_dtype dtype)
{
    return ops->matmul_is_by_shape && ops->matmul_is_by_shape(ops, dtype);
}

cz_status ops_matmul_workspace(struct ops *ops, const struct matmul_args *a, size_t *nbytes)
{
    return ops->matmul_workspace ? ops->matmul_workspace(ops, a, nbytes)
                                 : ops_missing(ops, "matmul");
}

cz_status matmul_wire(struct ops *ops, uint32_t features)
{
    const struct matmul_row *row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    if (row == &amd_bf16 && !cpu_is_amd()) row = &avx512;
    ops->matmul_cache = calloc(1, sizeof *ops->matmul_cache);
    if (!ops->matmul_cache) return err_set(CZ_NOMEM, 0, "matmul: out of memory");
    ops->matmul_cache->row = row;
    ops->matmul = matmul;
    ops->matmul_workspace = host_matmul_workspace;
    ops->matmul_is_by_shape = host_matmul_is_by_shape;
    ops->matmul_keep = host_matmul_keep;
    ops->matmul_kept_nbytes = host_matmul_kept_nbytes;
    return CZ_OK;
}

void matmul_unwire(struct ops *ops)
{
    if (!ops->matmul_cache) return;
    matmul_dense_free(ops->matmul_cache);
    free(ops->matmul_cache);
    ops->matmul_cache = NULL;
}
