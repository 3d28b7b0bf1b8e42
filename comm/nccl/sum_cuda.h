/* The arithmetic of reductions on a GPU: the same bits as comm/sum/sum_scalar.c, NaN included.
 *
 * All calls are asynchronous on the stream; pointers are the device's, of any alignment that their
 * elements allow. */
#ifndef CZ_COMM_NCCL_SUM_CUDA_H
#define CZ_COMM_NCCL_SUM_CUDA_H

#include "base/dtype.h"
#include "device/device.h"

CZ_EXTERN_C_BEGIN

/* result = c(scale · Σ_r c(x_r)): this rank's x is `own`, rank r's begins at in + r · in_stride. */
struct cuda_sum {
    const void *own;
    const void *in;
    size_t in_stride;              /* bytes */
    enum cz_dtype own_dtype, wire; /* of own; of the others, and what sums are rounded to */
    int n_ranks, own_rank;
    bool all_own; /* every rank's x is own: ranks are pretended */
    float scale;
    void *dst; /* result, or round(dst + result); NULL: none */
    enum cz_dtype dst_dtype;
    bool accumulate;
    void *shared; /* result, of the wire dtype; NULL: none */
    size_t numel;
};

/* Moves, per element: its own and n_ranks − 1 wire values in, dst (in as well when accumulating)
 * and a shared wire value out; the limit aimed at is memory bandwidth. */
cz_status cuda_sum(struct dev_stream *stream, const struct cuda_sum *a);

/* dst = round(src), or round(src + dst). */
cz_status cuda_put(struct dev_stream *stream, void *dst, enum cz_dtype dst_dtype, const void *src,
                   enum cz_dtype src_dtype, bool accumulate, size_t numel);

/* *word = value when the stream gets there. */
cz_status cuda_note(struct dev_stream *stream, uint64_t *word, uint64_t value);

CZ_EXTERN_C_END
#endif
