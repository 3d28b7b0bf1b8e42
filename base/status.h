/* Status codes and error text: how every fallible call in czero reports failure.
 *
 * Life cycle: the function that notices a problem calls err_set() with a full sentence; each caller
 * forwards with TRY(), which only adds a frame; the caller that handles the failure prints
 * cz_last_error(). The text is thread-local and valid until the next err_set() or err_clear() on
 * the same thread. Outcomes (an overflow, the end of a dataset) are results, never errors. */
#ifndef CZ_BASE_STATUS_H
#define CZ_BASE_STATUS_H

#include "base/compiler.h"

#include <stdarg.h>

CZ_EXTERN_C_BEGIN

/* Record `status` with a formatted sentence and return it. `sys_errno` other than 0 appends
 * ": <strerror text>", and makes CZ_NOMEM of CZ_IO where it is ENOMEM. Replaces any earlier error of
 * this thread. Strings among the arguments are escaped for one line (base/printable.h), and of those
 * above 1024 bytes the middle is left out; line feeds of the format stay. */
cz_status err_set(cz_status status, int sys_errno, const char *fmt, ...) CZ_PRINTF(3, 4);

/* Put "<formatted>: " in front of the current sentence; the status stays. Returns cz_last_status().
 * For a caller that knows what was being attempted (a path, a config key). */
cz_status err_prefix(const char *fmt, ...) CZ_PRINTF(1, 2);

/* Put a further line under the current text; the status stays. Returns cz_last_status(). For lists
 * of problems, whose lines must stay lines. */
cz_status err_add_line(const char *fmt, ...) CZ_PRINTF(1, 2);

/* err_set() for a caller with arguments of its own. */
cz_status err_vset(cz_status status, const char *fmt, va_list ap) CZ_PRINTF(2, 0);

/* Add one frame to the trace; returns `status`. Used by TRY. */
cz_status err_trace(cz_status status, const char *func, int line);

/* Forget the current error. */
void err_clear(void);

/* An error carried out of a worker thread: capture there, restore in the thread that waits. */
struct err {
    cz_status status;
    char text[4096]; /* a config may have many things wrong with it */
};
void err_capture(struct err *out);
cz_status err_restore(const struct err *err);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        cz_status st_ = (expr);                                                                    \
        if (st_ != CZ_OK) return err_trace(st_, __func__, __LINE__);                               \
    } while (0)

/* The same for functions that clean up at a label; needs a local `cz_status st`. */
#define TRY_GOTO(expr, label)                                                                      \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != CZ_OK) {                                                                         \
            err_trace(st, __func__, __LINE__);                                                     \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

CZ_EXTERN_C_END
#endif
