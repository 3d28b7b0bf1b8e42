/* Client state: what a program added to DeepSpeed's model_states dictionary. */
#ifndef CZ_ENGINE_STATE_CLIENT_STATE_IMPL_H
#define CZ_ENGINE_STATE_CLIENT_STATE_IMPL_H

#include "checkpoint/read/checkpoint.h"

/* The dictionary's keys that are not the engine's own, as a JSON object, the caller's to free().
 * Tensors, classes and numbers beyond 64 bits have no JSON form and are left out, as are entries
 * whose keys are not strings. CZ_NOMEM. */
cz_status client_state_json(const struct pickle_node *model_states, char **out);

/* The same keys as a pickle of everything that they hold, free() it. CZ_NOMEM, and what reading
 * tensors reports. */
cz_status client_state_pickle(const struct ckpt *ck, void **out, size_t *nbytes);

/* One value, the same way, as text that the caller releases by free(). */
cz_status client_state_value_json(const struct pickle_node *value, char **out);

#endif
