/* What a row of rope provides. */
#ifndef CZ_OPS_ROPE_ROPE_IMPL_H
#define CZ_OPS_ROPE_ROPE_IMPL_H

#include "ops/ops_impl.h"
#include "ops/rope/rope.h"

struct rope_row {
    struct ops_row row;
    /* One head at x, with cos and sin of its position. */
    void (*rotate)(enum cz_dtype dtype, void *x, const float *cos, const float *sin, size_t half,
                   bool inverse);
};

extern const struct rope_row rope_scalar, rope_avx2, rope_avx512;

CZ_EXTERN_C_BEGIN

/* How many of a head's elements are rotated. */
static inline int64_t rope_width(const struct rope_args *a)
{
    return a->rotary ? a->rotary : a->D;
}

/* Shared by the entry points of the host and of a GPU; positions are not read. */
cz_status rope_check(const struct rope_args *a);
cz_status rope_table_check(const struct rope_table_args *a);

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct rope_row *const *rope_rows(size_t *n);

#endif
