/* czero tune without a model: which presets fit a machine. */
#ifndef CZ_TOOLS_CZERO_TUNE_TUNE_PRESETS_H
#define CZ_TOOLS_CZERO_TUNE_TUNE_PRESETS_H

#include "engine/tune/tune.h"

/* Print a table or one JSON object on stdout: the answer and the largest presets that fit, the
 * largest first, or with `all` every preset, the smallest first. Presets of less than 50 million
 * parameters, and presets without a place for the adapter, are left out. seq_len 0: the usual
 * length of each model. *n_fit: presets that fit, 0 on error. Errors: as tune_create(). */
cz_status tune_presets_print(const struct tune_options *options, int64_t seq_len, bool all,
                             bool json, size_t *n_fit);

#endif
