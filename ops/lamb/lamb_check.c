/* Argument checks of Lamb, for all devices. */
#include "ops/lamb/lamb_impl.h"

cz_status lamb_check_segments(const char *op, const struct lamb_segment *segments,
                              size_t n_segments, size_t numel)
{
    size_t at = 0;
    for (size_t i = 0; i < n_segments; i++) {
        const struct lamb_segment *s = &segments[i];
        if (s->begin < at || s->end < s->begin || s->end > numel)
            return err_set(CZ_INVALID, 0, "%s: segment %zu, [%zu, %zu), does not fit", op, i,
                           s->begin, s->end);
        at = s->end;
    }
    return CZ_OK;
}

cz_status lamb_check(const char *op, const struct lamb_args *a, const char *name, const void *sums)
{
    TRY(step_check(op, &a->t, 2, a->scalars));
    if (a->t.numel > 0 && a->t.state_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0, "%s: states in %s; Lamb keeps them in fp32", op,
                       dtype_name(a->t.state_dtype));
    if (a->n_segments > 0 && (!a->segments || !sums))
        return err_set(CZ_INVALID, 0, "%s: %s of %zu segments are missing", op,
                       a->segments ? name : "the bounds", a->n_segments);
    return lamb_check_segments(op, a->segments, a->n_segments, a->t.numel);
}
