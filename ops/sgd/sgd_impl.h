/* What a row of sgd provides. */
#ifndef CZ_OPS_SGD_SGD_IMPL_H
#define CZ_OPS_SGD_SGD_IMPL_H

#include "ops/sgd/sgd.h"
#include "ops/step/step_impl.h"

struct sgd_row {
    struct ops_row row;
    void (*step)(const struct sgd_args *a, size_t begin, size_t end); /* elements [begin, end) */
};

extern const struct sgd_row sgd_scalar, sgd_avx2, sgd_avx512;

/* The table, slowest first. */
const struct sgd_row *const *sgd_rows(size_t *n);

#endif
