/* Our own bf16 product, for any strides: how C is cut, what is packed when, and by which thread.
 *
 * B is packed once for all threads, a group of columns at a time; C is cut into blocks of at most
 * BLOCK_ROWS by BLOCK_COLS, which threads take as they come free. A B that stays
 * (ops_matmul_keep()) is packed once for several products, all groups of it. For a block, k is
 * taken in chunks: a chunk of A is packed (second-level cache), and each panel of B meets all of
 * its panels while it is near. Sums of a block are in fp32 in the second-level cache and are
 * written out once.
 *
 * Chunks follow from k alone, so that a sum does not depend on threads, blocks or groups. Limit:
 * the multiply-adds of the cores (see the tile). */
#include "ops/matmul/matmul_impl.h"

#include "base/size.h"

#include <omp.h>

#define GROUP_NBYTES ((size_t)8 << 20)
#define PAD_UNITS    ((size_t)16) /* between panels of A: not all in the same sets of the cache */
#define ALIGN        ((size_t)64)
#define UNIT_NBYTES  sizeof(uint32_t)

/* Blocks per thread below which they are made smaller. */
#define BLOCKS_EACH 4

static inline size_t least(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* Near-equal parts of n, none above `most`, each a multiple of `unit`. */
static size_t part_of(size_t n, size_t most, size_t unit)
{
    size_t n_parts = (n + most - 1) / most;
    return size_round_up((n + n_parts - 1) / n_parts, unit);
}

struct cut {
    const struct matmul_panels *panels;
    size_t n_units, chunk;             /* of k */
    size_t rows, cols, group;          /* of a block, and columns packed at once */
    size_t a_stride;                   /* units from panel to panel of A */
    size_t b_nbytes, a_nbytes, nbytes; /* packed B; packed A and sums of one thread; everything */
    size_t thread_nbytes;
};

/* Halves blocks until every thread has several: the last blocks would otherwise keep most threads
 * waiting. */
static void smaller_blocks(struct cut *cut, size_t m, size_t n_threads)
{
    const size_t wanted = n_threads > 1 ? n_threads * BLOCKS_EACH : 1;
    for (;;) {
        size_t n_blocks =
            (m + cut->rows - 1) / cut->rows * ((cut->group + cut->cols - 1) / cut->cols);
        if (n_blocks >= wanted) return;
        if (cut->cols > 4 * cut->panels->cols)
            cut->cols = size_round_up(cut->cols / 2, cut->panels->cols);
        else if (cut->rows > 4 * cut->panels->rows)
            cut->rows = size_round_up(cut->rows / 2, cut->panels->rows);
        else
            return;
    }
}

/* Sizes never shrink when m, n or k grow, so that a workspace serves smaller batches, too. */
static struct cut cut_of(const struct matmul_panels *p, const struct matmul_args *a)
{
    const size_t m = (size_t)a->m, n = (size_t)a->n, n_threads = (size_t)threads_count();
    struct cut cut = {.panels = p, .n_units = size_round_up(((size_t)a->k + 1) / 2, p->step)};
    cut.chunk = part_of(cut.n_units, p->chunk, p->step);
    cut.rows = part_of(m, p->block_rows, p->rows);
    /* Columns whose panels are packed at once: all, or what GROUP_NBYTES hold. */
    size_t fit = GROUP_NBYTES / (cut.n_units * UNIT_NBYTES) / p->cols * p->cols;
    cut.group = part_of(n, fit > p->block_cols ? fit : p->block_cols, p->cols);
    cut.cols = part_of(cut.group, p->block_cols, p->cols);
    smaller_blocks(&cut, m, n_threads);
    cut.a_stride = cut.chunk * p->rows + PAD_UNITS;

    const size_t rows_max = least(size_round_up(m, p->rows), p->block_rows);
    const size_t cols_max = least(size_round_up(n, p->cols), p->block_cols);
    const size_t chunk_max = least(cut.n_units, p->chunk);
    const size_t b_max = cut.n_units * UNIT_NBYTES;
    cut.b_nbytes =
        least(size_round_up(n, p->cols) * b_max,
              b_max * p->block_cols > GROUP_NBYTES ? b_max * p->block_cols : GROUP_NBYTES);
    cut.b_nbytes = size_round_up(cut.b_nbytes, ALIGN);
    cut.a_nbytes = rows_max / p->rows * (chunk_max * p->rows + PAD_UNITS) * UNIT_NBYTES;
    cut.thread_nbytes = cut.a_nbytes + rows_max * cols_max * sizeof(float);
    cut.nbytes = cut.b_nbytes + n_threads * cut.thread_nbytes + ALIGN;
    return cut;
}

size_t matmul_panels_workspace(const struct matmul_panels *panels, const struct matmul_args *a)
{
    return cut_of(panels, a).nbytes;
}

size_t matmul_panels_b_nbytes(const struct matmul_panels *p, int64_t n, int64_t k)
{
    const size_t n_units = size_round_up(((size_t)k + 1) / 2, p->step);
    return size_round_up(size_round_up((size_t)n, p->cols) * n_units * UNIT_NBYTES, ALIGN);
}

static struct matmul_kept_b *find_kept(struct matmul_kept *kept, const struct matmul_args *a)
{
    for (size_t i = 0; i < kept->n; i++) {
        struct matmul_kept_b *b = &kept->of[i];
        if (b->b == a->b && b->n == a->n && b->k == a->k && b->ldb == a->ldb &&
            b->trans_b == a->trans_b)
            return b;
    }
    return NULL;
}

/* Where packed B is (*is_there), or is to be; NULL: it is not kept. */
static unsigned char *place_of_b(struct matmul_kept *kept, const struct matmul_panels *p,
                                 const struct matmul_args *a, bool *is_there)
{
    *is_there = false;
    if (!a->b_stays || !kept->memory) return NULL;
    const struct matmul_kept_b *found = find_kept(kept, a);
    *is_there = found != NULL;
    if (found) return found->packed;
    const size_t nbytes = matmul_panels_b_nbytes(p, a->n, a->k);
    if (kept->n == OPS_MATMUL_KEPT_MAX || nbytes > kept->nbytes - kept->used) return NULL;
    unsigned char *packed = kept->memory + kept->used;
    kept->of[kept->n++] = (struct matmul_kept_b){
        .b = a->b, .n = a->n, .k = a->k, .ldb = a->ldb, .trans_b = a->trans_b, .packed = packed};
    kept->used += nbytes;
    return packed;
}

/* One product at work. */
struct job {
    const struct matmul_panels *panels;
    const struct matmul_vec *vec;
    const struct matmul_args *args;
    struct cut cut;
    size_t group0, group; /* columns of the packed group */
    uint32_t *b;          /* chunk by chunk: panels of the group */
    unsigned char *threads;
};

static const void *elem(const void *x, size_t idx, enum cz_dtype dtype)
{
    return (const unsigned char *)x + idx * dtype_size(dtype);
}

/* Elements of k in units [u0, u0 + n). */
static size_t chunk_k(const struct job *j, size_t u0, size_t n)
{
    return least((u0 + n) * 2, (size_t)j->args->k) - u0 * 2;
}

/* The panel of column `col` (the first of a panel) in the chunk that begins at unit u0. */
static uint32_t *b_panel(const struct job *j, size_t u0, size_t n_units, size_t col)
{
    return j->b + u0 * size_round_up(j->group, j->panels->cols) + col * n_units;
}

/* Columns [col, col + n) of the group, units [u0, u0 + n_units). */
static void pack_b(const struct job *j, size_t u0, size_t n_units, size_t col, size_t n)
{
    const struct matmul_args *a = j->args;
    const size_t ld = (size_t)matmul_ldb(a), k0 = u0 * 2, n0 = j->group0 + col;
    const struct panel_source s = {
        .x = elem(a->b, a->trans_b ? n0 * ld + k0 : k0 * ld + n0, a->dtype),
        .ld = ld,
        .lines_along_rows = !a->trans_b,
        .n_lines = n,
        .k = chunk_k(j, u0, n_units),
        .n_units = n_units};
    j->panels->pack_cols(&s, b_panel(j, u0, n_units, col), n_units * j->panels->cols);
}

static void pack_a(const struct job *j, size_t u0, size_t n_units, size_t row, size_t n,
                   uint32_t *to)
{
    const struct matmul_args *a = j->args;
    const size_t ld = (size_t)matmul_lda(a), k0 = u0 * 2;
    const struct panel_source s = {
        .x = elem(a->a, a->trans_a ? k0 * ld + row : row * ld + k0, a->dtype),
        .ld = ld,
        .lines_along_rows = a->trans_a,
        .n_lines = n,
        .k = chunk_k(j, u0, n_units),
        .n_units = n_units};
    j->panels->pack_rows(&s, to, j->cut.a_stride);
}

/* One block of C by one thread: for each chunk of k, A is packed and meets all panels of B; sums
 * stay in `memory` until k is done, and are then written to C, rounded once. */
static void multiply_block(const struct job *j, size_t row, size_t m, size_t col, size_t n,
                           unsigned char *memory)
{
    const struct matmul_panels *p = j->panels;
    uint32_t *packed = (uint32_t *)(void *)memory;
    float *sums = (float *)(void *)(memory + j->cut.a_nbytes);
    const size_t ld = size_round_up(n, p->cols);
    if (p->tiles_begin) p->tiles_begin();
    for (size_t u0 = 0; u0 < j->cut.n_units; u0 += j->cut.chunk) {
        const size_t n_units = least(j->cut.chunk, j->cut.n_units - u0);
        pack_a(j, u0, n_units, row, m, packed);
        for (size_t y = 0; y < n; y += p->cols) {
            /* All panels of A against one of B; the panel of B behind it is fetched meanwhile. */
            const uint32_t *a = packed;
            const uint32_t *b = b_panel(j, u0, n_units, col + y);
            const uint32_t *soon = b + n_units * p->cols;
            for (size_t x = 0; x < m; x += p->rows) {
                p->tile(n_units, a, b, (sums + y) + x * ld, ld, u0 > 0, soon);
                a += j->cut.a_stride;
                soon += n_units * p->soon_each;
            }
        }
    }
    if (p->tiles_end) p->tiles_end();
    /* Rows [row, row + m) and columns [col, col + n) of the group, written to C. */
    const struct matmul_args *a = j->args;
    const size_t n0 = j->group0 + col;
    const void *bias = a->bias ? elem(a->bias, n0, a->dtype) : NULL;
    for (size_t i = 0; i < m; i++) {
        size_t c_idx = (row + i) * (size_t)matmul_ldc(a) + n0;
        j->vec->write(a->c_dtype, (unsigned char *)a->c + c_idx * dtype_size(a->c_dtype),
                      sums + i * ld, a->dtype, bias, a->accumulate, n);
    }
}

/* Pieces of packing: a chunk, and few enough panels that all threads have some. */
#define PACK_PANELS 8

/* Packing and multiplying are two loops with a barrier between: every block needs all of B's panels
 * of its columns. */
static void run_group(const struct job *j, bool b_is_there, bool parallel)
{
    const struct cut *cut = &j->cut;
    const size_t m = (size_t)j->args->m;
    const size_t n_chunks = (cut->n_units + cut->chunk - 1) / cut->chunk;
    const size_t pack_cols = PACK_PANELS * j->panels->cols;
    const size_t n_packs = b_is_there ? 0 : (j->group + pack_cols - 1) / pack_cols;
    const size_t n_rows = (m + cut->rows - 1) / cut->rows;
    const size_t n_cols = (j->group + cut->cols - 1) / cut->cols;
#pragma omp parallel if (parallel)
    {
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < n_chunks * n_packs; i++) {
            size_t u0 = i / n_packs * cut->chunk, col = i % n_packs * pack_cols;
            pack_b(j, u0, least(cut->chunk, cut->n_units - u0), col,
                   least(pack_cols, j->group - col));
        }
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < n_rows * n_cols; i++) {
            size_t row = i / n_cols * cut->rows, col = i % n_cols * cut->cols;
            multiply_block(j, row, least(cut->rows, m - row), col, least(cut->cols, j->group - col),
                           j->threads + (size_t)omp_get_thread_num() * cut->thread_nbytes);
        }
    }
}

void matmul_panels(const struct matmul_row *row, const struct matmul_args *a,
                   struct matmul_kept *kept)
{
    struct job j = {
        .panels = row->panels, .vec = row->vec, .args = a, .cut = cut_of(row->panels, a)};
    unsigned char *base = (void *)size_round_up((uintptr_t)a->workspace, ALIGN);
    bool b_is_there;
    unsigned char *b = place_of_b(kept, row->panels, a, &b_is_there);
    j.threads = base + j.cut.b_nbytes;
    const bool parallel = a->m * a->n * a->k > (int64_t)OPS_GRAIN * 16;
    for (j.group0 = 0; j.group0 < (size_t)a->n; j.group0 += j.cut.group) {
        j.group = least(j.cut.group, (size_t)a->n - j.group0);
        j.b = (uint32_t *)(void *)(b ? b + j.group0 * j.cut.n_units * UNIT_NBYTES : base);
        run_group(&j, b_is_there, parallel);
    }
}
