/* The --curve file: step,loss,lr_next,grad_norm,loss_scale, one row per step, on disk as it
 * happens.
 */
#ifndef CZ_TOOLS_CZERO_TRAIN_CURVE_H
#define CZ_TOOLS_CZERO_TRAIN_CURVE_H

#include "tools/czero/train/progress.h"

#include "base/status.h"

struct curve; /* opaque */

/* Start a file, or, with after_step > 0 and the file there, continue with one: rows of later steps
 * are dropped, new ones are appended. *out is released by curve_close(). Errors: CZ_IO, CZ_CORRUPT
 * (not a curve), CZ_NOMEM. */
cz_status curve_open(const char *path, int64_t after_step, struct curve **out);
void curve_close(struct curve *curve); /* accepts NULL */

/* lr and scale with all digits, so that a curve can be compared exactly. CZ_IO. curve may be NULL.
 */
cz_status curve_write(struct curve *curve, const struct progress_step *step);

#endif
