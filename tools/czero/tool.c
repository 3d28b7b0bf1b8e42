/* What every command line program here needs: exit codes, error messages, logging, JSON output.
 * Exit codes are part of the interface (`czero --help` lists them): scripts tell a wrong option
 * from damaged input by them. */
#include "tool.h"

#include "base/log.h"
#include "base/printable.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program = "czero";

/* SIGXFSZ would kill the process at a file size limit; ignored, the write fails with an error that
 * names the file. Closed standard descriptors are opened first, otherwise the first data file would
 * get their number and receive messages. */
void tool_begin(const char *name)
{
    program = name;
    signal(SIGXFSZ, SIG_IGN);
    int fd;
    do fd = open("/dev/null", O_RDONLY); /* writing to it fails, as to a closed one */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* One place that maps a status to an exit code, for all commands. */
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
    fprintf(stderr, "%s: %s\n", program, cz_last_error()); /* escaped where it was made */
    const char *debug = getenv("CZERO_DEBUG");
    if (debug && *debug) printable_print(stderr, "%s: trace: %s\n", program, cz_last_trace());
    return tool_exit_code(cz_last_status());
}

struct log_style {
    bool quiet;        /* warnings only, whatever level the config sets later */
    const char *clear; /* takes a progress line off a terminal */
};

static void log_to_stderr(enum cz_log_level level, const char *line, void *user)
{
    const struct log_style *style = user;
    if (style->quiet && level != LOG_WARN) return;
    fprintf(stderr, "%s%s: %s%s\n", style->clear, program, level == LOG_WARN ? "warning: " : "",
            line);
}

void tool_log_init(bool quiet)
{
    static struct log_style style; /* outlives the call: the sink looks at it */
    static const char *const names[] = {"warn", "info", "step", "micro", "bucket", "tensor"};
    enum cz_log_level level = quiet ? LOG_WARN : LOG_INFO;
    const char *asked = getenv("CZERO_LOG");
    style.quiet = quiet;
    style.clear = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
    for (size_t i = 0; asked && i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(asked, names[i]) == 0) {
            level = (enum cz_log_level)i;
            style.quiet = false;
        }
    cz_log_set_sink(log_to_stderr, &style);
    log_set_level(level, SUB_ALL);
}

/* A full disk is often noticed only when stdout is flushed. It must not end with exit code 0. */
int tool_finish_stdout(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (errno == 0) /* it failed before, and why is forgotten */
        printable_print(stderr, "%s: cannot write to standard output\n", program);
    else
        printable_print(stderr, "%s: cannot write to standard output: %s\n", program,
                        strerror(errno));
    return code == EXIT_OK ? EXIT_RUNTIME : code;
}

/* JSON has no NaN; null keeps the object parseable. */
void tool_put_json_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%.9g", value);
    else
        fprintf(out, "null");
}

void tool_put_json_string(FILE *out, const char *text, size_t nbytes)
{
    fputc('"', out);
    printable_put(out, PRINTABLE_JSON, text, nbytes);
    fputc('"', out);
}
