/* What a row of DoRA's ops provides: rows or columns [begin, end) of O. */
#ifndef CZ_OPS_DORA_DORA_IMPL_H
#define CZ_OPS_DORA_DORA_IMPL_H

#include "ops/dora/dora.h"
#include "ops/ops_impl.h"

struct dora_row {
    struct ops_row row;
    void (*norm)(const struct dora_norm_args *a, int64_t begin, int64_t end);
    void (*scale)(const struct dora_scale_args *a, int64_t begin, int64_t end);
    void (*grad)(const struct dora_grad_args *a, int64_t begin, int64_t end);
};

extern const struct dora_row dora_scalar;

/* The table, slowest first. */
const struct dora_row *const *dora_rows(size_t *n);

#endif
