/* Passes over the data, counted in rows. Rows, batch, accumulation and ranks need not divide each
 * other, and a resumed run may have another batch: steps alone do not say how much was trained. */
#include "tools/czero/train/train.h"

#include <math.h>

static uint64_t rows_per_step(const struct run *r)
{
    return (uint64_t)r->micro * (uint64_t)r->accumulation * (uint64_t)engine_world_size(r->world);
}

double run_epoch(const struct run *r)
{
    struct cz_data_cursor at;
    r->task->tell(r, &at);
    return (double)at.epoch + (double)at.sample / (double)r->task->rows_per_epoch(r);
}

uint64_t run_epochs_over(const struct run *r)
{
    struct cz_data_cursor at;
    r->task->tell(r, &at);
    return at.epoch;
}

/* Rounds up. 1.1 times 10 gives 11, although the product is a little more. */
static double whole(double x)
{
    return ceil(x * (1 - 1e-12));
}

static double steps_of_rows(const struct run *r, double rows)
{
    return ceil(rows / (double)rows_per_step(r));
}

/* Where epochs end with a short step, each has its own number of steps. */
double run_steps_left(const struct run *r, double epochs, const struct cz_data_cursor *from)
{
    const double n = (double)r->task->rows_per_epoch(r);
    const double done = from ? (double)from->epoch : 0, rows = from ? (double)from->sample : 0;
    double left;
    if (r->task->crosses_epochs) {
        left = steps_of_rows(r, whole(epochs * n) - (done * n + rows));
    } else {
        const double full = floor(epochs), per_epoch = steps_of_rows(r, n);
        const double taken = floor(rows / (double)rows_per_step(r));
        left = (full - done) * per_epoch + steps_of_rows(r, whole((epochs - full) * n)) - taken;
    }
    return left > 0 ? left : 0;
}

void run_count_epochs(const struct run *r, struct cz_data_cursor *cursor)
{
    const uint64_t steps = (uint64_t)engine_get_global_steps(r->engine);
    const uint64_t per_epoch = (uint64_t)steps_of_rows(r, (double)r->task->rows_per_epoch(r));
    cursor->epoch = steps / per_epoch;
    cursor->sample = steps % per_epoch * rows_per_step(r);
}
