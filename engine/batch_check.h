/* Is a batch one that a model can take? Every index that a kernel will follow is looked at once,
 * before any work. */
#ifndef CZ_ENGINE_BATCH_CHECK_H
#define CZ_ENGINE_BATCH_CHECK_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

/* Host memory. `labels_wanted`: the loss will be computed. Errors: CZ_INVALID naming row and
 * position: ids missing or outside the vocabulary, labels missing or outside it (or outside the
 * classes), positions outside the model's, a sequence longer than the model takes. */
cz_status batch_check(const struct cz_model *model, const struct cz_batch *batch,
                      bool labels_wanted);

/* Whether a label or target of a batch that was checked counts for the loss. */
bool batch_has_labels(const struct cz_model *model, const struct cz_batch *batch);

CZ_EXTERN_C_END
#endif
