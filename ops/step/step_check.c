/* Checks that the steps of all optimizers share, on the host and on a GPU. */
#include "ops/step/step_impl.h"

static const struct {
    const char *name;
    size_t n_states;
} known[] = {
#define KNOWN(name, NAME, states) {#name, states},
    STEP_OPS(KNOWN)
#undef KNOWN
};

const char *step_name(enum step_op op)
{
    return known[op].name;
}

static cz_status check_tensor(const char *op, const char *name, const void *p, enum cz_dtype dtype)
{
    TRY(ops_check_dtype(op, dtype));
    if (!p) return err_set(CZ_INVALID, 0, "%s: %s is missing", op, name);
    return CZ_OK;
}

cz_status step_check(const char *op, const struct step_tensors *t, size_t n_states,
                     const struct step_scalars *scalars)
{
    if (t->numel == 0) return CZ_OK;
    if (!scalars) return err_set(CZ_INVALID, 0, "%s: scalars are missing", op);
    TRY(check_tensor(op, "p", t->p, t->p_dtype));
    TRY(check_tensor(op, "g", t->g, t->g_dtype));
    for (size_t i = 0; i < n_states; i++)
        TRY(check_tensor(op, "a state", t->states[i], t->state_dtype));
    if (t->out) TRY(check_tensor(op, "out", t->out, t->out_dtype));
    return CZ_OK;
}

cz_status step_prepare(const struct step_args *a, struct step_args *out)
{
    size_t n_states = known[a->op].n_states;
    if (a->op == STEP_SGD && a->momentum == 0) n_states = 0;
    TRY(step_check(known[a->op].name, &a->t, n_states, a->scalars));
    *out = *a;
    for (size_t i = n_states; i < STEP_STATES_MAX; i++) out->t.states[i] = NULL;
    return CZ_OK;
}
