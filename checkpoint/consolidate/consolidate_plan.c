/* Which tensors are written, in which order and dtype. */
#include "checkpoint/consolidate/consolidate_impl.h"

#include <stdlib.h>
#include <string.h>

static bool is_floating(const struct pickle_dtype *dtype)
{
    return strncmp(dtype->torch_name, "float", 5) == 0 ||
           strncmp(dtype->torch_name, "bfloat", 6) == 0;
}

/* Weights come out in one floating-point type; integers and masks keep theirs. */
static cz_status out_dtype(const struct cz_consolidate_options *o, const struct ckpt_tensor *t,
                           const struct pickle_dtype **out)
{
    *out = t->dtype;
    if (is_floating(t->dtype)) {
        *out = pickle_dtype_of(o->has_dtype ? o->dtype : DTYPE_F32);
        if (!t->dtype->has_base)
            return err_set(CZ_UNSUPPORTED, 0, "%s: cannot be converted from %s to %s", t->name,
                           t->dtype->torch_name, (*out)->torch_name);
    }
    return CZ_OK;
}

static cz_status add_tensor(struct cons_plan *plan, size_t idx)
{
    const struct ckpt_tensor *t = ckpt_at(plan->ck, idx);
    if (t->kind == CKPT_FROZEN && plan->options->exclude_frozen) return CZ_OK;
    struct cons_tensor *out = &plan->tensors[plan->n];
    out->idx = idx;
    out->tensor = t;
    TRY(out_dtype(plan->options, t, &out->dtype));
    if (__builtin_mul_overflow(t->numel, (uint64_t)out->dtype->size, &out->nbytes) ||
        __builtin_add_overflow(plan->nbytes, out->nbytes, &plan->nbytes))
        return err_set(CZ_CORRUPT, 0, "%s: has impossibly many elements", t->name);
    plan->numel += t->numel;
    plan->n_aliases += t->n_aliases;
    plan->n++;
    return CZ_OK;
}

cz_status cons_plan_init(struct cons_plan *plan, const struct ckpt *ck,
                         const struct cz_consolidate_options *options)
{
    const size_t n = ckpt_count(ck);
    size_t *order = malloc((n + 1) * sizeof *order);
    cz_status st = CZ_OK;
    memset(plan, 0, sizeof *plan);
    plan->options = options;
    plan->ck = ck;
    plan->tensors = calloc(n + 1, sizeof *plan->tensors);
    if (!order || !plan->tensors) {
        st = err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", n);
        goto done;
    }
    ckpt_script_order(ck, order);
    for (size_t i = 0; i < n; i++) TRY_GOTO(add_tensor(plan, order[i]), done);
    if (plan->n == 0)
        st = err_set(CZ_INVALID, 0, "%s: there is nothing to write", ckpt_get_info(ck)->tag_dir);
done:
    free(order);
    if (st != CZ_OK) cons_plan_free(plan);
    return st;
}

void cons_plan_free(struct cons_plan *plan)
{
    free(plan->tensors);
    memset(plan, 0, sizeof *plan);
}
