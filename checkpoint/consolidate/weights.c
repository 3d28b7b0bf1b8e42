/* The weights that consolidation would write, read into a caller's memory instead: for programs
 * that continue with arrays and not with files. The plan is consolidation's own, so that names,
 * order, dtypes and values are those of its output. */
#include <czero/checkpoint.h>

#include "base/dtype.h"
#include "base/host/entry.h"
#include "base/options.h"
#include "checkpoint/consolidate/consolidate_impl.h"

#include <stdlib.h>
#include <string.h>

struct cz_weights {
    struct cz_consolidate_options how; /* what the plan borrows; nothing is written */
    struct ckpt *ck;
    struct cons_plan plan;
};

_Static_assert((int)CZ_WEIGHT_NDIM_MAX == (int)CKPT_NDIM_MAX, "public and internal limits agree");

static cz_status weights_open(struct cz_weights *w, const struct cz_weights_options *o)
{
    const struct ckpt_open_options open = {.dir = o->dir, .tag = o->tag, .weights_only = true};
    w->how = (struct cz_consolidate_options){.size = sizeof w->how,
                                             .exclude_frozen = o->exclude_frozen,
                                             .has_dtype = o->has_dtype,
                                             .dtype = o->dtype};
    if (!o->dir) return err_set(CZ_INVALID, 0, "cz_weights_open needs a folder");
    if (o->has_dtype && o->dtype != CZ_DTYPE_F32 && o->dtype != CZ_DTYPE_BF16 &&
        o->dtype != CZ_DTYPE_F16)
        return err_set(CZ_INVALID, 0, "weights are read as fp32, bf16 or fp16, not %s",
                       dtype_name(o->dtype));
    TRY(ckpt_open(&open, &w->ck));
    TRY(cons_plan_init(&w->plan, w->ck, &w->how));
    for (size_t i = 0; i < w->plan.n; i++)
        if (!w->plan.tensors[i].dtype->has_base)
            return err_set(CZ_UNSUPPORTED, 0, "%s: elements of type %s cannot be read",
                           w->plan.tensors[i].tensor->name, w->plan.tensors[i].dtype->torch_name);
    return CZ_OK;
}

cz_status cz_weights_open(const struct cz_weights_options *options, struct cz_weights **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_weights_options ours;
    *out = NULL;
    NEED(options, "options");
    TRY(OPTIONS_TAKE(cz_weights_options, &ours, options));
    struct cz_weights *w = calloc(1, sizeof *w);
    if (!w) return err_set(CZ_NOMEM, 0, "no memory to read weights");
    cz_status st = weights_open(w, &ours);
    if (st != CZ_OK) {
        cz_weights_close(w);
        return st;
    }
    *out = w;
    return CZ_OK;
}

void cz_weights_close(struct cz_weights *w)
{
    API_ENTRY;
    if (!w) return;
    cons_plan_free(&w->plan);
    ckpt_close(w->ck);
    free(w);
}

cz_status cz_weights_check(const struct cz_weights *w)
{
    API_ENTRY;
    NEED(w, "weights");
    struct cons_check *check = NULL;
    cz_status begun = cons_check_begin(&w->plan, &check);
    cz_status st = cons_check_end(check);
    return begun != CZ_OK ? begun : st;
}

size_t cz_weights_count(const struct cz_weights *w)
{
    NEED_OR(w, 0);
    return w->plan.n;
}

cz_status cz_weights_at(const struct cz_weights *w, size_t idx, struct cz_weight_info *out)
{
    API_ENTRY;
    NEED(w, "weights");
    NEED(out, "out");
    if (idx >= w->plan.n) return err_set(CZ_INVALID, 0, "weight %zu of %zu", idx, w->plan.n);
    const struct cons_tensor *planned = &w->plan.tensors[idx];
    const struct ckpt_tensor *t = planned->tensor;
    struct cz_weight_info info = {.name = t->name,
                                  .dtype = planned->dtype->base,
                                  .ndim = t->ndim,
                                  .numel = (size_t)t->numel,
                                  .aliases = t->aliases,
                                  .n_aliases = t->n_aliases};
    memcpy(info.shape, t->shape, sizeof info.shape);
    return OPTIONS_GIVE(cz_weight_info, out, &info);
}

cz_status cz_weights_read(const struct cz_weights *w, size_t idx, void *dst, size_t nbytes)
{
    API_ENTRY;
    NEED(w, "weights");
    NEED(dst, "dst");
    if (idx >= w->plan.n) return err_set(CZ_INVALID, 0, "weight %zu of %zu", idx, w->plan.n);
    const struct cons_tensor *t = &w->plan.tensors[idx];
    if (nbytes != t->nbytes)
        return err_set(CZ_INVALID, 0, "%s has %llu bytes, not %zu", t->tensor->name,
                       (unsigned long long)t->nbytes, nbytes);
    return cons_fetch(&w->plan, t, 0, (size_t)t->tensor->numel, dst);
}
