/* libczero's calls, inside the plug-in: they go to the copy of libczero that opened it, where the
 * thread-local error and the log sink are. The plug-in links no libczero of its own. */
#include "base/host/entry.h"
#include "device/cuda/runtime.h"

#include <stdarg.h>
#include <stdio.h>

static struct device_plugin_host calls;

#define TEXT_NBYTES 1024

/* The text of a variadic call. */
#define FORMAT(text, fmt)                                                                          \
    do {                                                                                           \
        va_list args_;                                                                             \
        va_start(args_, fmt);                                                                      \
        vsnprintf(text, sizeof(text), fmt, args_);                                                 \
        va_end(args_);                                                                             \
    } while (0)

cz_status err_set(cz_status status, int sys_errno, const char *fmt, ...)
{
    char text[TEXT_NBYTES];
    FORMAT(text, fmt);
    return calls.err_set(status, sys_errno, "%s", text);
}

cz_status err_prefix(const char *fmt, ...)
{
    char text[TEXT_NBYTES];
    FORMAT(text, fmt);
    return calls.err_prefix("%s", text);
}

cz_status err_trace(cz_status status, const char *func, int line)
{
    return calls.err_trace(status, func, line);
}

void err_capture(struct err *out)
{
    calls.err_capture(out);
}

cz_status err_restore(const struct err *err)
{
    return calls.err_restore(err);
}

/* The plug-in's own thread watches other ranks and formats no fractions: it may have the program's
 * locale. */
void entry_begin_thread(void)
{
}

bool log_enabled(enum cz_log_level level, enum log_subsystem sub)
{
    return calls.log_enabled(level, sub);
}

void log_line(enum cz_log_level level, const char *fmt, ...)
{
    char text[TEXT_NBYTES];
    FORMAT(text, fmt);
    calls.log_line(level, "%s", text);
}

static void start(const struct device_plugin_host *host)
{
    calls = *host;
}

CZ_API const struct device_plugin czero_cuda_plugin = {
    .version = DEVICE_PLUGIN_VERSION,
    .ops_nbytes = sizeof(struct device_ops),
    .host_nbytes = sizeof(struct device_plugin_host),
    .start = start,
    .device = &device_cuda_ops,
};
