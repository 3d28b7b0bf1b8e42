/* What a row of lion provides. */
#ifndef CZ_OPS_LION_LION_IMPL_H
#define CZ_OPS_LION_LION_IMPL_H

#include "ops/lion/lion.h"
#include "ops/step/step_impl.h"

struct lion_row {
    struct ops_row row;
    void (*step)(const struct lion_args *a, size_t begin, size_t end); /* elements [begin, end) */
};

extern const struct lion_row lion_scalar, lion_avx2, lion_avx512;

/* The table, slowest first. */
const struct lion_row *const *lion_rows(size_t *n);

#endif
