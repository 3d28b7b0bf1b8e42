/* GPT-2: what its config says, and the presets. */
#ifndef CZ_MODEL_GPT2_IMPL_H
#define CZ_MODEL_GPT2_IMPL_H

#include "model/model_impl.h"

/* config.json of a preset, as text to free(). CZ_NOTFOUND lists the names. */
cz_status gpt2_preset_config(const char *name, char **text);

/* "gpt2-tiny, gpt2, …" */
const char *gpt2_preset_names(void);

#endif
