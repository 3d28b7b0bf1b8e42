/* Public names of what the library calls by shorter ones (base/). */
#include "base/status.h"
#include "base/dtype.h"
#include "base/host/entry.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>

#define STRING(x)  #x
#define VERSION(x) STRING(x)

const char *cz_version(void)
{
    return VERSION(CZ_VERSION_MAJOR) "." VERSION(CZ_VERSION_MINOR) "." VERSION(CZ_VERSION_PATCH);
}

cz_status cz_error(cz_status status, const char *fmt, ...)
{
    API_ENTRY;
    va_list args;
    va_start(args, fmt);
    err_vset(status, fmt ? fmt : "", args);
    va_end(args);
    return status;
}

void cz_clear_error(void)
{
    err_clear();
}

void cz_free(void *p)
{
    free(p);
}

void cz_log_set_level(enum cz_log_level level)
{
    log_set_level(level, SUB_ALL);
}

size_t cz_dtype_size(enum cz_dtype dtype)
{
    return dtype_size(dtype);
}

const char *cz_dtype_name(enum cz_dtype dtype)
{
    return dtype_name(dtype);
}
