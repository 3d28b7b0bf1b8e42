/* Shared by the op folders: rows, their choice, and how work is cut into pieces.
 *
 * An op folder has <op>.c (argument checks, dispatch, threads) and one file per row. A row's
 * kernels work on a piece [begin, end) of the output in one thread; how the work was cut never
 * shows in the result. <op>.c exports <op>_rows() for the agreement test and <op>_wire(), listed in
 * ops/table_impl.h and in ops.c. Only <op>.c sees struct ops. */
#ifndef CZ_OPS_OPS_IMPL_H
#define CZ_OPS_OPS_IMPL_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/threads.h"

struct ops;

/* The head of every row struct. Tables (arrays of pointers to rows) go from the definition (row 0,
 * features 0) to the fastest. */
struct ops_row {
    const char *name;
    uint32_t features; /* bits of enum cpu_feature, all needed */
};

static inline bool ops_row_runs(const struct ops_row *row, uint32_t features)
{
    return (row->features & ~features) == 0;
}

/* Index of the last of `n` rows whose features are all in `features`. `rows` is an array of
 * pointers to structs that have a struct ops_row as first member. */
size_t ops_row_pick(const void *rows, size_t n, uint32_t features);

/* In how many pieces to cut `numel` elements of work: one per thread, none below `grain`. The
 * parallel region over them takes the whole pool all the same, with schedule(static, 1) so that
 * piece i is thread i's: libgomp ends the threads that a smaller region has no use for and starts
 * new ones for the next, which are not bound to cores. */
int ops_n_parts(size_t numel, size_t grain);

/* Pieces start at multiples of this, so that two threads never write one cache line. */
#define OPS_PART_UNIT ((size_t)64)

/* Statements for each of n_parts pieces [begin, end) of n items, cut at multiples of `unit`; in
 * parallel if there are several. */
#define OPS_IN_PARTS(n_parts, n, unit, ...)                                                        \
    do {                                                                                           \
        const int n_parts_ = (n_parts);                                                            \
        _Pragma("omp parallel for schedule(static, 1) if (n_parts_ > 1)") /* one thread a piece */ \
            for (int part_ = 0; part_ < n_parts_; part_++)                                         \
        {                                                                                          \
            size_t begin, end;                                                                     \
            threads_split((n), (unit), n_parts_, part_, &begin, &end);                             \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Elements per thread below which waking another thread costs more than it saves (~2 us). */
#define OPS_GRAIN ((size_t)8192)

/* Reductions over N rows are cut into blocks whose size follows from N alone, each summed in row
 * order, then added up in block order: the same bits for any number of threads. */
#define OPS_BLOCKS_MAX 256

static inline int64_t ops_block_rows(int64_t N)
{
    int64_t rows = (N + OPS_BLOCKS_MAX - 1) / OPS_BLOCKS_MAX;
    return rows < 32 ? 32 : rows;
}

static inline int64_t ops_n_blocks(int64_t N)
{
    int64_t rows = ops_block_rows(N);
    return (N + rows - 1) / rows;
}

/* db[c] [+]= Σ over blocks of partial[block·stride + c], for c < C, in block order, one rounding.
 */
void ops_combine_blocks(const float *partial, int64_t n_blocks, int64_t stride, int64_t C,
                        enum cz_dtype grad_dtype, bool accumulate, void *db);

CZ_EXTERN_C_BEGIN

/* CZ_INVALID unless `dtype` is one that kernels compute on: fp32, bf16 or fp16. */
cz_status ops_check_dtype(const char *op, enum cz_dtype dtype);

/* CZ_INVALID when a workspace is smaller than needed, with both sizes. */
cz_status ops_check_workspace(const char *op, const void *workspace, size_t have, size_t need);

/* CZ_UNSUPPORTED: the device has no kernel of this name. */
cz_status ops_missing(const struct ops *ops, const char *name);

CZ_EXTERN_C_END

#endif
