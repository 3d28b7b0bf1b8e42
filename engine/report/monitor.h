/* Monitors: curves of a run as DeepSpeed writes them, for csv_monitor and tensorboard.
 *
 * Life cycle: monitor_create() from the config's two sections → monitor_write() a list of events
 * per boundary → monitor_destroy(). Rank 0 only: other ranks create none.
 *   csv_monitor   OUTPUT_PATH/JOB_NAME/EVENT.csv, "/" and " " of the event's name as "_"; a first
 *                 row "step,<last part of the name>" when the file is new or empty, then
 *                 "<x>,<value>"; CR LF; numbers as Python prints them. Files are appended to.
 *   tensorboard   OUTPUT_PATH/JOB_NAME/events.out.tfevents.…, scalars under the full name, on disk
 *                 when monitor_write() returns.
 * Nothing is allocated after creation. One thread at a time. */
#ifndef CZ_ENGINE_REPORT_MONITOR_H
#define CZ_ENGINE_REPORT_MONITOR_H

#include "base/status.h"
#include "engine/config/config.h"

CZ_EXTERN_C_BEGIN

struct monitor; /* opaque */

struct monitor_event {
    const char *name; /* "Train/Samples/lr" */
    double value;
    bool is_int; /* print 65536, not 65536.0; the value is whole */
    int64_t x;   /* global_samples */
};

/* Create the folders and the event file of whatever is enabled; NULL sections count as disabled.
 * *out is released by monitor_destroy(); NULL on error. Errors: CZ_IO (path), CZ_NOMEM. */
cz_status monitor_create(const struct config_monitor *csv, const struct config_monitor *tensorboard,
                         struct monitor **out);

/* Whether anything is written at all. Accepts NULL (no). */
bool monitor_is_enabled(const struct monitor *m);

/* Write events in order. All are tried, with both writers; the first failure is returned. A row
 * that could not be written whole is taken back. Errors: CZ_IO (path), CZ_INVALID (a name that is
 * empty or longer than 200 bytes). */
cz_status monitor_write(struct monitor *m, const struct monitor_event *events, size_t n_events);

/* The run continues from a checkpoint: TensorBoard drops what earlier files of its folder hold at x
 * and later, and files of csv_monitor lose these rows. Errors: CZ_IO (path). */
cz_status monitor_restart(struct monitor *m, int64_t x);

/* Accepts NULL. */
void monitor_destroy(struct monitor *m);

CZ_EXTERN_C_END
#endif
