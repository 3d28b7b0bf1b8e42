/* Logging: a level promises how often a line appears, a mask picks subsystems.
 *
 * The library never writes to stdout or stderr by itself: lines go to a sink that the program sets
 * (czero's tools print to stderr). Without a sink nothing is formatted. */
#ifndef CZ_BASE_LOG_H
#define CZ_BASE_LOG_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Short names for the library's own lines; a public header could not have them (<syslog.h>). */
#define LOG_ASKED  CZ_LOG_ASKED
#define LOG_WARN   CZ_LOG_WARN
#define LOG_INFO   CZ_LOG_INFO
#define LOG_STEP   CZ_LOG_STEP
#define LOG_MICRO  CZ_LOG_MICRO
#define LOG_BUCKET CZ_LOG_BUCKET
#define LOG_TENSOR CZ_LOG_TENSOR

enum log_subsystem {
    SUB_CONFIG = 1 << 0,
    SUB_ENGINE = 1 << 1,
    SUB_ZERO = 1 << 2,
    SUB_COMM = 1 << 3,
    SUB_SWAP = 1 << 4,
    SUB_CKPT = 1 << 5,
    SUB_OPS = 1 << 6,
    SUB_MODEL = 1 << 7,
    SUB_DATA = 1 << 8,
    SUB_ALL = 0xffff
};

/* Lines above `level`, or outside `mask` (which LOG_WARN and LOG_ASKED pass), are dropped:
 * LOG_ASKED silences warnings too. A sink that is to be quiet drops LOG_ASKED itself. Default
 * LOG_INFO, SUB_ALL. */
void log_set_level(enum cz_log_level level, unsigned mask);

/* Rank and step shown in front of lines of ranks other than 0, as "[rank 3/8 step 120] ". These
 * ranks pass on warnings only. */
void log_set_rank(int rank, int world_size);
void log_set_step(int64_t step);

/* Between true and false all ranks have the same inputs and would give the same warnings: only rank
 * 0 gives them. Calls do not nest. */
void log_set_common(bool on);

/* Strings among the arguments of a line are escaped (base/printable.h). */
bool log_enabled(enum cz_log_level level, enum log_subsystem sub);
void log_line(enum cz_log_level level, const char *fmt, ...) CZ_PRINTF(2, 3);

/* Arguments are evaluated only when the line will be shown. */
#define LOGV(level, sub, ...)                                                                      \
    do {                                                                                           \
        if (log_enabled((level), (sub))) log_line((level), __VA_ARGS__);                           \
    } while (0)

CZ_EXTERN_C_END
#endif
