/* Inside ops/: what the entry points and rows of the optimizers share. */
#ifndef CZ_OPS_STEP_STEP_IMPL_H
#define CZ_OPS_STEP_STEP_IMPL_H

#include "ops/ops_impl.h"
#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

/* CZ_INVALID unless the tensors fit an optimizer with n_states states. numel 0 is fine. */
cz_status step_check(const char *op, const struct step_tensors *t, size_t n_states,
                     const struct step_scalars *scalars);

/* The arguments as the kernels take them: checked, states that the step has none of NULL. */
cz_status step_prepare(const struct step_args *a, struct step_args *out);

CZ_EXTERN_C_END

struct step_row {
    struct ops_row row;
    /* Elements [begin, end) of arguments that step_prepare() made, by op. */
    void (*run[STEP_N_OPS])(const struct step_args *a, size_t begin, size_t end);
};

extern const struct step_row step_scalar, step_avx2, step_avx512;

/* The table, slowest first. */
const struct step_row *const *step_rows(size_t *n);

/* Elements per thread below which waking another thread costs more than it saves. */
#define STEP_GRAIN ((size_t)4096)

/* Element i of the parameter as a row's definition writes it. */
static inline void step_put_param(const struct step_tensors *t, size_t i, float p)
{
    dtype_put(t->p, i, t->p_dtype, p);
    if (t->out) dtype_put(t->out, i, t->out_dtype, p);
}

#endif
