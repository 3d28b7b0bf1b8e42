/* The best evaluations of a run so far: what to keep, and when to stop.
 *
 * A program evaluates now and then, hands the value to engine_best_update(), keeps a checkpoint
 * when it returns a place, and stops when n_since grows beyond its patience. Saved with each
 * checkpoint as client state, a resumed run continues counting. Plain data; all ranks pass the same
 * values. */
#ifndef CZ_ENGINE_REPORT_BEST_H
#define CZ_ENGINE_REPORT_BEST_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define ENGINE_BEST_MAX 64 /* evaluations that are kept, at most */

struct engine_best_entry {
    double value;
    int64_t step;
};

struct engine_best {
    const char *metric; /* its name, borrowed; NULL: not tracked */
    bool smaller_is_better;
    double value; /* of the best; NAN: none yet */
    int64_t step;
    int64_t n_since; /* evaluations since without a better one */
    size_t n_keep;   /* as many are kept at most: 1 to ENGINE_BEST_MAX */
    size_t n_kept;
    struct engine_best_entry kept[ENGINE_BEST_MAX]; /* the best first */
};

/* No value yet. metric may be NULL. */
void engine_best_init(struct engine_best *b, const char *metric, bool smaller_is_better,
                      size_t n_keep);

/* Take an evaluation in. Returns its place among the kept ones: 0 for the best of all, -1 for none.
 * Of equal values the earlier one is better. NAN and infinity have no place. */
int engine_best_update(struct engine_best *b, double value, int64_t step);

/* As members of an object for cz_save_options.client_state_json; "" when there is nothing to keep.
 */
#define ENGINE_BEST_NBYTES (256 + 64 * ENGINE_BEST_MAX)
void engine_best_to_json(const struct engine_best *b, char text[ENGINE_BEST_NBYTES]);

/* From cz_load_result.client_state_json (NULL, or without one of the same metric: unchanged). At
 * most n_keep of its evaluations are taken. CZ_CORRUPT: not what was saved. */
cz_status engine_best_from_json(struct engine_best *b, const char *text);

CZ_EXTERN_C_END
#endif
