/* The option --freeze of train, plan and tune. */
#ifndef CZ_TOOLS_FREEZE_H
#define CZ_TOOLS_FREEZE_H

#include "model/model.h"

/* Freeze what matches; regex NULL: nothing. A mistyped name would train all: CZ_INVALID when
 * nothing matches, or as model_freeze(). */
cz_status freeze_matching(struct model *model, const char *regex);

#endif
