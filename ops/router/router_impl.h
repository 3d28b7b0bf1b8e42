/* What a row of the router's ops provides. */
#ifndef CZ_OPS_ROUTER_ROUTER_IMPL_H
#define CZ_OPS_ROUTER_ROUTER_IMPL_H

#include "ops/ops_impl.h"
#include "ops/router/router.h"

struct router_row {
    struct ops_row row;
    /* sum += w·x over a row of C */
    void (*add)(enum cz_dtype dtype, const void *x, float w, float *sum, size_t C);
    /* Σ y·dy, then both times w */
    float (*weigh)(enum cz_dtype dtype, void *y, void *dy, float w, size_t C);
};

extern const struct router_row router_scalar, router_avx2, router_avx512;

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU; arrays are not read. */
cz_status router_check(const struct router_args *a);
cz_status router_grad_check(const struct router_grad_args *a);
cz_status router_sort_check(const struct router_sort_args *a);
cz_status router_balance_check(const struct router_balance_args *a);
cz_status router_balance_loss_check(const struct router_balance_loss_args *a);
cz_status expert_add_check(const struct expert_add_args *a);
cz_status expert_weigh_check(const struct expert_weigh_args *a);

CZ_EXTERN_C_END

/* Token n of the calls, as row 0 defines them: in router_scalar.c. */
void router_choose(const struct router_args *a, size_t n);
void router_choose_grad(const struct router_grad_args *a, size_t n);

/* The table, slowest first. */
const struct router_row *const *router_rows(size_t *n);

#endif
