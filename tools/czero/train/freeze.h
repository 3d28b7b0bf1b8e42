/* The option --freeze of train, plan and tune. */
#ifndef CZ_TOOLS_CZERO_TRAIN_FREEZE_H
#define CZ_TOOLS_CZERO_TRAIN_FREEZE_H

#include "model/model.h"

/* Freeze what matches; regex NULL: nothing. A mistyped name would train all: CZ_INVALID when
 * nothing matches, or as cz_model_freeze(). */
cz_status freeze_matching(struct cz_model *model, const char *regex);

#endif
