/* --freeze, as train, plan and tune share it. A pattern that matches nothing is an error: it is
 * nearly always a typo, and training everything instead would go unnoticed. */
#include "tools/czero/train/freeze.h"

cz_status freeze_matching(struct cz_model *model, const char *regex)
{
    size_t n = 0;
    if (!regex) return CZ_OK;
    TRY(cz_model_freeze(model, regex, &n));
    if (n > 0) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "--freeze \"%s\": no parameter of %s has such a name; the first is %s", regex,
                   cz_model_name(model), model_params(model)->params[0].name);
}
