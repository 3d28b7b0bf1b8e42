/* A run's measurements over its steps: --metrics FILE.csv and --tensorboard DIR, and their reading
 * by czero plot.
 *
 * The CSV has one row per measurement, "train" or "eval":
 *   step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,seconds
 * An unknown figure is an empty cell. TensorBoard gets train/loss, eval/accuracy … over steps.
 * Rank 0 only. On resume, rows past the checkpoint's step are dropped and the file goes on. */
#ifndef CZ_TOOLS_METRICS_H
#define CZ_TOOLS_METRICS_H

#include "base/status.h"

struct metrics; /* opaque */

struct metrics_row {
    int64_t step;
    double epoch; /* fraction of epochs done */
    bool is_eval;
    double loss, accuracy, macro_f1, weighted_f1, lr; /* NAN: unknown */
    double seconds;                                   /* since the run began */
};

/* csv, tensorboard: NULL when not wanted. after_step > 0: the run goes on from there.
 * Errors: CZ_IO, CZ_CORRUPT (not our file: its header differs), CZ_NOMEM. */
cz_status metrics_open(const char *csv, const char *tensorboard, int64_t after_step,
                       struct metrics **out);
cz_status metrics_write(struct metrics *m, const struct metrics_row *row); /* accepts NULL m */
void metrics_close(struct metrics *m);                                     /* accepts NULL */

#endif
