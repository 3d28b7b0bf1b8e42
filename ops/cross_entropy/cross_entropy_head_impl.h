/* What the entry points of the fused head, the host's and the CUDA twin's, share. */
#ifndef CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_HEAD_IMPL_H
#define CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_HEAD_IMPL_H

#include "ops/cross_entropy/cross_entropy.h"

CZ_EXTERN_C_BEGIN

#define CE_HEAD_LOGITS_NUMEL_MAX ((int64_t)16 << 20) /* 64 MiB of fp32 */

/* CZ_INVALID with a sentence. The shape alone, as a plan knows it; ce_head_check(): all of it, but
 * for the values of labels. */
cz_status ce_head_check_shape(const struct ce_head_args *a);
cz_status ce_head_check(const struct ce_head_args *a);

static inline bool ce_head_has_gradients(const struct ce_head_args *a)
{
    return a->labels && a->dx;
}

/* The most rows of a block, whose logits, row_numel a row, stay within numel: a multiple of 256
 * rows, or at least of 16, where they fit; one row always does. */
int64_t ce_head_rows_max(int64_t numel, int64_t row_numel);

/* Rows of near-equal blocks of at most `most`, so that products come in one shape or two. */
int64_t ce_head_rows(int64_t N, int64_t most);

CZ_EXTERN_C_END
#endif
