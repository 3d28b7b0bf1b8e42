/* The best evaluation of a run so far: what to keep, and when to stop.
 *
 * A program evaluates now and then, hands the figure to engine_best_update(), keeps a checkpoint
 * when it says so, and stops when n_since grows beyond its patience. Saved with each checkpoint as
 * client state, a resumed run continues counting. Plain data; all ranks pass the same values. */
#ifndef CZ_ENGINE_REPORT_BEST_H
#define CZ_ENGINE_REPORT_BEST_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct engine_best {
    const char *metric; /* its name, borrowed; NULL: not tracked */
    bool smaller_is_better;
    double value; /* NAN: none yet */
    int64_t step;
    int64_t n_since; /* evaluations since without a better one */
};

/* No value yet. metric may be NULL. */
void engine_best_init(struct engine_best *b, const char *metric, bool smaller_is_better);

/* Take an evaluation in; true when it is better than all before. NAN and infinity never are. */
bool engine_best_update(struct engine_best *b, double value, int64_t step);

/* As an object for engine_save_options.client_state_json; "{}" when there is nothing to keep. */
#define ENGINE_BEST_NBYTES 256
void engine_best_to_json(const struct engine_best *b, char text[ENGINE_BEST_NBYTES]);

/* From engine_load_result.client_state_json (NULL, or without one of the same metric: unchanged).
 * CZ_CORRUPT: not what was saved. */
cz_status engine_best_from_json(struct engine_best *b, const char *text);

CZ_EXTERN_C_END
#endif
