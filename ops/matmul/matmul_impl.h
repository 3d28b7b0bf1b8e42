/* What a row of matmul provides, and the parts of the oneDNN rows.
 *
 * matmul.c            entry point: empty dimensions, rows, workspace, what comes along
 * matmul_common.c     checks, and what comes along with a product: the CUDA twin has them too
 * matmul_scalar.c     the definition
 * matmul_onednn.c     dense fp32 products as oneDNN primitives, cached by shape
 * matmul_blocked.c    everything else: blocks are packed (widened) into the workspace, multiplied
 *                     there by the dense form, and written out once
 * matmul_panels.c     our own bf16 product, for CPUs that multiply bf16 faster than fp32
 * matmul_panels_*.c   its packing and its tile
 * matmul_vec_*.c      our own loops: packing for the blocked form, and the product of a few rows,
 *                     whose limit is reading B once, in whatever dtype it has */
#ifndef CZ_OPS_MATMUL_MATMUL_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_IMPL_H

#include "ops/matmul/matmul_common_impl.h"
#include "ops/matmul/matmul_panels_impl.h"
#include "ops/ops_impl.h"

/* A of at most this many rows, not transposed, takes the form of a few rows (a decoding step). */
#define MATMUL_FEW_ROWS MATMUL_ROWS_EXACT

/* The loops of one instruction set. */
struct matmul_vec {
    /* y[i] = float(x[i]) for i < n */
    void (*widen)(enum cz_dtype dtype, const void *x, float *y, size_t n);
    /* c[j] = sums[j] [+ bias[j]] [+ c[j]] for j < n: fp32 arithmetic, one rounding */
    void (*write)(enum cz_dtype c_dtype, void *c, const float *sums, enum cz_dtype bias_dtype,
                  const void *bias, bool accumulate, size_t n);
    /* Columns [begin, end) of C for m ≤ MATMUL_FEW_ROWS, any strides and dtypes; each sum is over k
     * in an order that does not depend on the columns' bounds. `begin` is a multiple of
     * MATMUL_FEW_UNIT. */
    void (*few_rows)(const struct matmul_args *a, size_t begin, size_t end);
};
#define MATMUL_FEW_UNIT ((size_t)512)

extern const struct matmul_vec matmul_vec_avx2, matmul_vec_avx512;

struct matmul_row {
    struct ops_row row;
    const struct matmul_vec *vec;       /* NULL: the definition */
    const struct matmul_panels *panels; /* multiply bf16; NULL: it is widened to fp32 */
};

/* The table, slowest first. */
const struct matmul_row *const *matmul_rows(size_t *n);

void matmul_scalar(const struct matmul_args *a);

/* An fp32 product whose matrices are dense, as oneDNN sees it. */
struct matmul_shape {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, has_bias;
};

/* Packed Bs that stay (ops_matmul_keep()), one behind the other. */
struct matmul_kept {
    unsigned char *memory;
    size_t nbytes, used;
    size_t n;
    struct matmul_kept_b {
        const void *b;
        int64_t n, k, ldb;
        bool trans_b;
        unsigned char *packed;
    } of[OPS_MATMUL_KEPT_MAX];
};

struct matmul_cache {
    const struct matmul_row *row;
    struct matmul_kept kept;
    struct dnnl_state *dnnl; /* engine and primitives; NULL until the first one is needed */
};

/* Scratch bytes of `shape`; makes its primitive when it is new. */
cz_status matmul_dense_scratch(struct matmul_cache *cache, const struct matmul_shape *shape,
                               size_t *nbytes);

/* Run it; `scratch` has the bytes asked for (any alignment). */
cz_status matmul_dense_run(struct matmul_cache *cache, const struct matmul_shape *shape,
                           const void *a, const void *b, const void *bias, void *c, void *scratch);

void matmul_dense_free(struct matmul_cache *cache); /* primitives and engine */

/* The blocked form for any strides and dtypes. */
cz_status matmul_blocked_workspace(struct matmul_cache *cache, const struct matmul_args *a,
                                   size_t *nbytes);
cz_status matmul_blocked(struct matmul_cache *cache, const struct matmul_args *a);

/* Our own bf16 product, the bytes of its workspace, and those of a packed B. */
size_t matmul_panels_workspace(const struct matmul_panels *panels, const struct matmul_args *a);
size_t matmul_panels_b_nbytes(const struct matmul_panels *panels, int64_t n, int64_t k);
void matmul_panels(const struct matmul_row *row, const struct matmul_args *a,
                   struct matmul_kept *kept);

#endif
