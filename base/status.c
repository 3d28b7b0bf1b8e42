/* Errors: a status and a sentence per thread. The sentence is made where the problem is noticed,
 * since only there are the path, the name and the number at hand; callers add what they were doing,
 * or pass it on. */
#include "base/status.h"

#include "base/printable.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct err current;
static _Thread_local char trace[512];

const char *cz_status_name(cz_status status)
{
    switch (status) {
    case CZ_OK: return "CZ_OK";
    case CZ_INVALID: return "CZ_INVALID";
    case CZ_NOMEM: return "CZ_NOMEM";
    case CZ_IO: return "CZ_IO";
    case CZ_CORRUPT: return "CZ_CORRUPT";
    case CZ_VERSION: return "CZ_VERSION";
    case CZ_UNSUPPORTED: return "CZ_UNSUPPORTED";
    case CZ_NOTFOUND: return "CZ_NOTFOUND";
    case CZ_BUSY: return "CZ_BUSY";
    case CZ_CUDA: return "CZ_CUDA";
    case CZ_COMM: return "CZ_COMM";
    case CZ_PEER: return "CZ_PEER";
    case CZ_DIVERGED: return "CZ_DIVERGED";
    }
    return "CZ_?";
}

const char *cz_last_error(void)
{
    return current.text;
}

cz_status cz_last_status(void)
{
    return current.status;
}

const char *cz_last_trace(void)
{
    return trace;
}

/* So that a name of any length leaves the sentence after it. */
#define ARG_NBYTES_MAX 1024

/* The arguments may point into the old text (a wrapped sentence), so sentences are formatted aside
 * first. What they quote is escaped (base/printable.h); `after`, already a sentence, is not. */
static void set_text(const char *before, const char *after, const char *fmt, va_list ap)
{
    char text[sizeof current.text];
    size_t len = (size_t)snprintf(text, sizeof text, "%s", before);
    len += printable_vformat(text + len, sizeof text - len, ARG_NBYTES_MAX, fmt, ap);
    if (len < sizeof text) utf8_copy(text + len, sizeof text - len, after);
    memcpy(current.text, text, sizeof text);
}

cz_status err_vset(cz_status status, const char *fmt, va_list ap)
{
    set_text("", "", fmt, ap);
    current.status = status;
    trace[0] = '\0';
    return status;
}

cz_status err_set(cz_status status, int sys_errno, const char *fmt, ...)
{
    if (sys_errno == ENOMEM && status == CZ_IO) status = CZ_NOMEM; /* no fault of the file's */
    char reason[256] = "";
    if (sys_errno != 0) snprintf(reason, sizeof reason, ": %s", strerror(sys_errno));
    va_list ap;
    va_start(ap, fmt);
    set_text("", reason, fmt, ap);
    va_end(ap);
    current.status = status;
    trace[0] = '\0';
    return status;
}

cz_status err_prefix(const char *fmt, ...)
{
    char after[sizeof current.text + 2];
    snprintf(after, sizeof after, ": %s", current.text);
    va_list ap;
    va_start(ap, fmt);
    set_text("", after, fmt, ap);
    va_end(ap);
    return current.status;
}

cz_status err_add_line(const char *fmt, ...)
{
    char before[sizeof current.text];
    if ((size_t)snprintf(before, sizeof before, "%s\n", current.text) >= sizeof before)
        return current.status;
    va_list ap;
    va_start(ap, fmt);
    set_text(before, "", fmt, ap);
    va_end(ap);
    return current.status;
}

/* Frames that do not fit are cut. */
cz_status err_trace(cz_status status, const char *func, int line)
{
    size_t len = strlen(trace);
    snprintf(trace + len, sizeof trace - len, "%s%s:%d", len ? " " : "", func, line);
    return status;
}

void err_clear(void)
{
    current.status = CZ_OK;
    current.text[0] = '\0';
    trace[0] = '\0';
}

/* To carry an error over calls that may fail themselves, or to another thread. */
void err_capture(struct err *out)
{
    *out = current;
}

cz_status err_restore(const struct err *err)
{
    current = *err;
    trace[0] = '\0';
    return err->status;
}
