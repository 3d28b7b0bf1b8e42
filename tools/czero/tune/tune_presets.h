/* czero tune without a model: which presets fit a machine. */
#ifndef CZ_TOOLS_CZERO_CMD_TUNE_PRESETS_H
#define CZ_TOOLS_CZERO_CMD_TUNE_PRESETS_H

#include "engine/tune/tune.h"

#define TUNE_LORA "rank=16" /* the adapter that answers name where not all weights fit */

/* The answer and the largest presets that fit, the largest first, or with `all` every preset, the
 * smallest first; or one JSON object. On stdout. Presets of less
 * than 50 million parameters are left out, and those that have no place for the adapter. seq_len 0:
 * what is usual for each. *n_fit: how many fit. Errors: as tune_create(). */
cz_status tune_presets_print(const struct tune_options *options, int64_t seq_len, bool all,
                             bool json, size_t *n_fit);

#endif
