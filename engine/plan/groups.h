/* Which parameter belongs to which group. */
#ifndef CZ_ENGINE_PLAN_GROUPS_H
#define CZ_ENGINE_PLAN_GROUPS_H

#include "engine/plan/description.h"

/* d->groups and d->group_of. Errors: CZ_INVALID (the options' patterns; nothing is trainable),
 * CZ_NOMEM. */
cz_status groups_make(struct description *d, const struct cz_engine_options *options);

#endif
