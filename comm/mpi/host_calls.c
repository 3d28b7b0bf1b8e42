/* libczero's error calls, inside the plug-in: they go to the copy of libczero that opened it, whose
 * thread-local error the caller reads. */
#include "comm/mpi/mpi_world_impl.h"

#include <stdarg.h>
#include <stdio.h>

struct mpi_plugin_host mpi_host;

cz_status err_set(cz_status status, int sys_errno, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return mpi_host.err_set(status, sys_errno, "%s", text);
}

cz_status err_trace(cz_status status, const char *func, int line)
{
    return mpi_host.err_trace(status, func, line);
}
