/* What a row of dropout provides. */
#ifndef CZ_OPS_DROPOUT_DROPOUT_IMPL_H
#define CZ_OPS_DROPOUT_DROPOUT_IMPL_H

#include "ops/dropout/dropout.h"
#include "ops/ops_impl.h"

struct dropout_row {
    struct ops_row row;
    void (*dropout)(const struct dropout_args *a, size_t begin, size_t end);
};

extern const struct dropout_row dropout_scalar, dropout_avx2, dropout_avx512;

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU. */
cz_status dropout_check(const struct dropout_args *a);

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct dropout_row *const *dropout_rows(size_t *n);

#endif
