/* A model and its adapter as one. */
#include "tools/czero/train/adapter.h"

struct cz_model *adapter_open(const char *model, const char *adapter)
{
    struct cz_model *m = cz_model_open(model);
    if (!m || !adapter || cz_model_add_adapter(m, adapter, false) == CZ_OK) return m;
    cz_model_destroy(m);
    return NULL;
}
