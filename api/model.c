/* A model's parameters as the public API shows them. */
#include "model/model.h"
#include "base/host/entry.h"
#include "base/options.h"

_Static_assert(CZ_NDIM_MAX == PARAM_NDIM_MAX, "public and internal shapes agree");

size_t cz_model_n_params(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return model_params(m)->n_params;
}

cz_status cz_model_param(const struct cz_model *m, size_t idx, struct cz_param_info *out)
{
    API_ENTRY;
    NEED(m, "model");
    const struct param_table *table = model_params(m);
    if (idx >= table->n_params)
        return err_set(CZ_INVALID, 0, "parameter %zu of %zu", idx, table->n_params);
    const struct param_info *p = &table->params[idx];
    struct cz_param_info info = {
        .name = p->name, .ndim = p->ndim, .numel = p->numel, .trainable = p->trainable};
    for (int i = 0; i < p->ndim; i++) info.shape[i] = p->shape[i];
    return OPTIONS_GIVE(cz_param_info, out, &info);
}
