/* What a row of adam provides. */
#ifndef CZ_OPS_ADAM_ADAM_IMPL_H
#define CZ_OPS_ADAM_ADAM_IMPL_H

#include "ops/adam/adam.h"
#include "ops/step/step_impl.h"

struct adam_row {
    struct ops_row row;
    void (*step)(const struct adam_args *a, size_t begin, size_t end); /* elements [begin, end) */
};

extern const struct adam_row adam_scalar, adam_avx2, adam_avx512;

/* The table, slowest first. */
const struct adam_row *const *adam_rows(size_t *n);

#endif
