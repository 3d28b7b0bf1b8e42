/* The lines that a run reports, as DeepSpeed shapes them: pure functions from figures to text.
 *
 * A line is built in a fixed buffer (nothing is allocated); what does not fit is left out. */
#ifndef CZ_ENGINE_REPORT_REPORT_TEXT_H
#define CZ_ENGINE_REPORT_REPORT_TEXT_H

#include "base/status.h"
#include "optim/optim.h"

CZ_EXTERN_C_BEGIN

#define REPORT_LINE_NBYTES 2000 /* what the log passes on in one line, its prefix included */

struct report_line {
    size_t len;
    char text[REPORT_LINE_NBYTES]; /* always terminated; no newline */
};

void report_line_begin(struct report_line *line); /* empty */
void report_put(struct report_line *line, const char *fmt, ...) CZ_PRINTF(2, 3);

/* A float as Python prints it: report_put_float() shortest round trip ("0.001", "1e-05");
 * report_put_rounded() after rounding to `digits` ≤ 9 decimals ("0.5" for 0.499 to one). */
void report_put_float(struct report_line *line, double value);
void report_put_rounded(struct report_line *line, double value, int digits);

/* " | name: 1.23" behind "[Rank 0] time (ms)", for each of n timers in nanoseconds. */
void report_put_times(struct report_line *line, const char *const *names, const int64_t *ns,
                      size_t n);

/* [Rank 0] step=2, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]
 * Betas that stand in the config are a list, as there; defaults and those a schedule has set
 * (`cycled`) are a tuple. */
void report_put_progress(struct report_line *line, int64_t step, int64_t skipped,
                         const struct optim_group *groups, size_t n_groups, bool cycled);

struct report_speed {
    int64_t micro_step, global_step;
    double average, current;   /* samples per second: since the third step, and of the last */
    size_t nbytes, nbytes_max; /* allocated */
};

/* epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=80.0, CurrSamplesPerSec=88.7, … */
void report_put_speed(struct report_line *line, const struct report_speed *speed);

struct report_memory {
    size_t allocated, allocated_max; /* by the plan's arenas */
    size_t resident, resident_max;   /* of this process, by the operating system */
    size_t host_total, host_available;
};

/* MA 0.8 GB         Max_MA 0.8 GB         CA 0.8 GB         Max_CA 1.0 GB */
void report_put_process_memory(struct report_line *line, const struct report_memory *memory);

/* CPU Virtual Memory:  used = 8.45 GB, percent = 35.9% */
void report_put_host_memory(struct report_line *line, const struct report_memory *memory);

/* Fill in resident… and host… from /proc; what cannot be read is 0. Allocates nothing. */
void report_memory_read(struct report_memory *memory);

CZ_EXTERN_C_END
#endif
