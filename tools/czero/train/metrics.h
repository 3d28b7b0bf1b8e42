/* A run's measurements over its steps: --metrics FILE.csv and --tensorboard DIR, on disk as they
 * happen. czero plot reads the CSV.
 *
 * One row per measurement, "train" or "eval":
 *   step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,train_loss,train_accuracy,seconds
 * An unknown figure is an empty cell. TensorBoard gets train/loss, eval/accuracy … over steps.
 * Rank 0 only. On resume, rows past the checkpoint's step and half a last row are dropped and the
 * file continues, its seconds too; TensorBoard drops what is past that step as well. */
#ifndef CZ_TOOLS_CZERO_TRAIN_METRICS_H
#define CZ_TOOLS_CZERO_TRAIN_METRICS_H

#include "base/status.h"

struct metrics; /* opaque */

struct metrics_row {
    int64_t step;
    double epoch; /* fraction of epochs done */
    bool is_eval;
    double loss, accuracy, macro_f1, weighted_f1, lr; /* NAN: unknown */
    double train_loss, train_accuracy; /* means of the steps before an evaluation; NAN: unknown */
    double seconds;                    /* since this process began to train */
};

/* csv, tensorboard: NULL when not wanted. after_step > 0: the run continues from there.
 * A file of a version without train_loss and train_accuracy continues without them.
 * A file that is there and does not begin as ours do is not touched: CZ_CORRUPT. Errors: CZ_IO,
 * CZ_NOMEM. *out is NULL when nothing is wanted, and on error. */
cz_status metrics_open(const char *csv, const char *tensorboard, int64_t after_step,
                       struct metrics **out);

/* A row whose seconds count from this process's start; an evaluation that the CSV of the resumed
 * run holds already is left out. Accepts NULL m. Errors: CZ_IO. */
cz_status metrics_write(struct metrics *m, const struct metrics_row *row);
void metrics_close(struct metrics *m); /* accepts NULL */

#endif
