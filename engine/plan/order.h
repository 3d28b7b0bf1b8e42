/* In which order the micro-batches of a step go through the model, and what becomes of what layers
 * save. */
#ifndef CZ_ENGINE_PLAN_ORDER_H
#define CZ_ENGINE_PLAN_ORDER_H

#include "engine/plan/description.h"

/* d->chain and d->plan.order, with the reason in words. Errors: CZ_UNSUPPORTED, CZ_INVALID (the
 * config asks for layers and the model or the run has none of it). */
cz_status order_choose(struct description *d, const struct cz_engine_options *options,
                       const struct chain_options *chain);

/* Once the memory of everything else is known: what becomes of what layers save for every
 * micro-batch. */
cz_status order_fit(struct description *d);

#endif
