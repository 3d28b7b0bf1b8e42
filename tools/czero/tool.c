#include "tool.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tool_exit_code(cz_status status)
{
    switch (status) {
    case CZ_OK: return EXIT_OK;
    case CZ_INVALID:
    case CZ_UNSUPPORTED:
    case CZ_NOTFOUND: return EXIT_USAGE;
    case CZ_NOMEM: return EXIT_MEMORY;
    case CZ_CORRUPT:
    case CZ_VERSION: return EXIT_DAMAGED;
    case CZ_IO:
    case CZ_BUSY:
    case CZ_CUDA:
    case CZ_COMM:
    case CZ_PEER:
    case CZ_DIVERGED: break;
    }
    return EXIT_RUNTIME;
}

int tool_fail(void)
{
    fprintf(stderr, "czero: %s\n", cz_last_error());
    const char *debug = getenv("CZERO_DEBUG");
    if (debug && *debug) fprintf(stderr, "czero: trace: %s\n", cz_last_trace());
    return tool_exit_code(cz_last_status());
}

static void log_to_stderr(enum log_level level, const char *line, void *user)
{
    const bool *quiet = user;
    if (level == LOG_ASKED && *quiet) return; /* the command line asked later than the config */
    fprintf(stderr, level == LOG_WARN ? "czero: warning: %s\n" : "czero: %s\n", line);
}

void tool_log_init(bool quiet)
{
    static bool is_quiet; /* outlives the call: the sink looks at it */
    is_quiet = quiet;
    static const char *const names[] = {"warn", "info", "step", "micro", "bucket", "tensor"};
    enum log_level level = quiet ? LOG_WARN : LOG_INFO;
    const char *asked = getenv("CZERO_LOG");
    for (size_t i = 0; asked && i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(asked, names[i]) == 0) level = (enum log_level)i;
    log_set_sink(log_to_stderr, &is_quiet);
    log_set_level(level, SUB_ALL);
}

int tool_finish_stdout(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "czero: cannot write to standard output: %s\n", strerror(errno));
    return code == EXIT_OK ? EXIT_RUNTIME : code;
}
