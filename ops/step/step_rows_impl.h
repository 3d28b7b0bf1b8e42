/* Body of the vector rows. Limit: memory (the bytes per element that each update's file states).
 * Include after ops/vec_*_impl.h. */
#include "ops/step/step_updates_impl.h"
#include "ops/step/step_vec_impl.h"

/* The combinations that training uses most: fp32 throughout, or bf16 gradients and parameters around
 * fp32 masters and states. */
enum step_dtypes { STEP_MIXED, STEP_F32, STEP_BF16 };

static enum step_dtypes step_known(const struct step_tensors *t)
{
    if (t->p_dtype != DTYPE_F32 || t->state_dtype != DTYPE_F32) return STEP_MIXED;
    if (t->g_dtype == DTYPE_F32 && !t->out) return STEP_F32;
    if (t->g_dtype == DTYPE_BF16 && t->out && t->out_dtype == DTYPE_BF16) return STEP_BF16;
    return STEP_MIXED;
}

/* Loops get copies of the arguments, which no store can change: the constants stay in registers.
 * Dtypes are constants, too, where the combination is known. */
#define STEP_RUN(name, NAME, n_states)                                                             \
    VEC_FN void name##_lanes(const struct step_args *a, const struct step_scalars *s, size_t i,    \
                             size_t n)                                                             \
    {                                                                                              \
        const struct step_tensors *t = &a->t;                                                      \
        vf p = step_get(t->p, i, t->p_dtype, n), states[n_states];                                 \
        for (int k = 0; k < n_states; k++)                                                         \
            states[k] = t->states[k] ? step_get(t->states[k], i, t->state_dtype, n) : vf_zero();   \
        vf g = step_get(t->g, i, t->g_dtype, n) * vf_set1(s->grad_scale);                          \
        name##_update(a, s, g, &p, states);                                                        \
        step_put_out(t, i, p, n);                                                                  \
        for (int k = 0; k < n_states; k++)                                                         \
            if (t->states[k]) step_put(t->states[k], i, t->state_dtype, states[k], n);             \
    }                                                                                              \
                                                                                                   \
    VEC_FN void name##_loop(struct step_args a, struct step_scalars s, size_t begin, size_t end)   \
    {                                                                                              \
        size_t i = begin;                                                                          \
        for (; i + VF_N <= end; i += VF_N) name##_lanes(&a, &s, i, VF_N);                          \
        if (i < end) name##_lanes(&a, &s, i, end - i);                                             \
    }                                                                                              \
                                                                                                   \
    static void run_##name(const struct step_args *args, size_t begin, size_t end)                 \
    {                                                                                              \
        struct step_args a = *args;                                                                \
        switch (step_known(&a.t)) {                                                                \
        case STEP_F32:                                                                             \
            a.t.p_dtype = a.t.state_dtype = a.t.g_dtype = DTYPE_F32, a.t.out = NULL;               \
            name##_loop(a, *a.scalars, begin, end);                                                \
            break;                                                                                 \
        case STEP_BF16:                                                                            \
            a.t.p_dtype = a.t.state_dtype = DTYPE_F32, a.t.g_dtype = a.t.out_dtype = DTYPE_BF16;   \
            name##_loop(a, *a.scalars, begin, end);                                                \
            break;                                                                                 \
        default: name##_loop(a, *a.scalars, begin, end);                                           \
        }                                                                                          \
    }
STEP_OPS(STEP_RUN)

#define STEP_ENTRY(name, NAME, n_states) [STEP_##NAME] = run_##name,
