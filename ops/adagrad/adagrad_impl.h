/* What a row of adagrad provides. */
#ifndef CZ_OPS_ADAGRAD_ADAGRAD_IMPL_H
#define CZ_OPS_ADAGRAD_ADAGRAD_IMPL_H

#include "ops/adagrad/adagrad.h"
#include "ops/step/step_impl.h"

struct adagrad_row {
    struct ops_row row;
    void (*step)(const struct adagrad_args *a, size_t begin,
                 size_t end); /* elements [begin, end) */
};

extern const struct adagrad_row adagrad_scalar, adagrad_avx2, adagrad_avx512;

/* The table, slowest first. */
const struct adagrad_row *const *adagrad_rows(size_t *n);

#endif
