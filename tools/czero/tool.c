/* What every command line program here needs: exit codes, error messages, logging, JSON output.
 * Exit codes are part of the interface (`czero --help` lists them): scripts tell a wrong option
 * from damaged input by them. */
#include "tool.h"

#include "args.h"
#include "base/compiler.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/size.h"
#include "base/text/encoding.h"
#include "base/threads.h"
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_NBYTES 8192 /* more than a line of an error or of the log has */

static const char *program = "czero", *program_version = "";

/* SIGXFSZ would kill the process at a file size limit; ignored, the write fails with an error that
 * names the file. Closed standard descriptors are opened first, otherwise the first data file would
 * get their number and receive messages. */
void tool_begin(const char *name, const char *version)
{
    program = name;
    program_version = version;
    signal(SIGXFSZ, SIG_IGN);
    int fd;
    do fd = open("/dev/null", O_RDONLY); /* writing to it fails, as to a closed one */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* The program is the same one, with the same process number, and finds the variable set. Where the
 * user binds threads, OpenMP has bound this one to a single processor already: started again, the
 * program would have no other. */
void tool_wait_briefly(char **argv)
{
    static const char *const bindings[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bindings); i++)
        if (getenv(bindings[i])) return;
    if (!threads_spin_is_free() || setenv(THREADS_SPIN_VARIABLE, THREADS_SPIN, 0) != 0) return;
    execv("/proc/self/exe", argv);
}

void tool_print_version(void)
{
    printable_print(stdout, "%s\n", program_version);
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

/* Lines as wide as stderr's terminal. */
static void put_wrapped(FILE *out, const char *fmt, ...) CZ_PRINTF(2, 3);

static void put_wrapped(FILE *out, const char *fmt, ...)
{
    char text[LINE_NBYTES + 256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    terminal_wrap(out, terminal_text(text), terminal_columns(stderr));
}

void tool_note(const char *fmt, ...)
{
    char text[LINE_NBYTES];
    va_list ap;
    va_start(ap, fmt);
    printable_vformat(text, sizeof text, 1024, fmt, ap);
    va_end(ap);
    put_wrapped(stderr, "%s\n", text);
}

/* A message may have a line per problem: each is found by its prefix in a mixed log. `text` is
 * escaped already. */
static void put_error(const char *name, const char *text)
{
    const char *red = terminal_colour(stderr, TERMINAL_RED);
    const char *plain = terminal_colour(stderr, TERMINAL_PLAIN);
    do {
        char line[LINE_NBYTES];
        size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        put_wrapped(stderr, "%s%s:%s %s\n", red, name, plain, line);
        text += n + (text[n] == '\n');
    } while (*text);
}

void tool_complain(const char *name, const char *fmt, ...)
{
    char text[LINE_NBYTES];
    va_list ap;
    va_start(ap, fmt);
    printable_vformat(text, sizeof text, 1024, fmt, ap);
    va_end(ap);
    put_error(name, text);
}

int tool_fail(void)
{
    put_error(program, cz_last_error());
    const char *debug = getenv("CZERO_DEBUG");
    if (debug && *debug) printable_print(stderr, "%s: trace: %s\n", program, cz_last_trace());
    return tool_exit_code(cz_last_status());
}

/* "warning" and "debug" are DeepSpeed's words; the engine takes its "debug" for micro, too. */
static const struct {
    const char *name;
    enum cz_log_level level;
} levels[] = {{"warning", LOG_WARN},  {"warn", LOG_WARN},    {"info", LOG_INFO},
              {"step", LOG_STEP},     {"micro", LOG_MICRO},  {"debug", LOG_MICRO},
              {"bucket", LOG_BUCKET}, {"tensor", LOG_TENSOR}};

/* False: CZERO_LOG is not set, or has no level's name. */
static bool asked_level(enum cz_log_level *level)
{
    const char *asked = getenv("CZERO_LOG");
    for (size_t i = 0; asked && i < CZ_ARRAY_LEN(levels); i++)
        if (strcmp(asked, levels[i].name) == 0) {
            *level = levels[i].level;
            return true;
        }
    return false;
}

bool tool_environment_is_valid(void)
{
    enum cz_log_level level;
    const char *compat = getenv("CZERO_COMPAT"), *log = getenv("CZERO_LOG");
    if (compat && *compat && strcmp(compat, "0.16") != 0 && strcmp(compat, "0.19") != 0) {
        tool_complain(program, "CZERO_COMPAT=%s: use 0.16 or 0.19", compat);
        return false;
    }
    const char *bind = getenv("CZERO_BIND");
    if (threads_asked() < 0) {
        tool_complain(program, "OMP_NUM_THREADS=%s: use a number of threads, such as 4",
                      getenv("OMP_NUM_THREADS"));
        return false;
    }
    if (bind && *bind && strcmp(bind, "none") != 0 && strcmp(bind, "cores") != 0) {
        tool_complain(program, "CZERO_BIND=%s: use none or cores", bind);
        return false;
    }
    if (!log || !*log || asked_level(&level)) return true;
    tool_complain(program,
                  "CZERO_LOG=%s: use warning, info, step, micro (or debug), bucket or tensor", log);
    return false;
}

struct log_style {
    bool quiet;        /* warnings only, whatever level the config sets later */
    const char *clear; /* takes a progress line off a terminal */
};

/* Lines that wait, or NULL; log lines come from one thread at a time (base/log.h). */
static FILE *held;
static char *held_text;
static size_t held_nbytes;

static void log_to_stderr(enum cz_log_level level, const char *line, void *user)
{
    const struct log_style *style = user;
    const bool warns = level == LOG_WARN;
    if (style->quiet && !warns) return;
    FILE *out = held ? held : stderr;
    fputs(style->clear, out);
    if (warns)
        put_wrapped(out, "%s: %swarning:%s %s\n", program, terminal_colour(stderr, TERMINAL_YELLOW),
                    terminal_colour(stderr, TERMINAL_PLAIN), line);
    else
        put_wrapped(out, "%s: %s\n", program, line);
}

/* Without memory the lines are shown at once. */
void tool_log_hold(void)
{
    if (!held) held = open_memstream(&held_text, &held_nbytes);
}

static void stop_holding(bool show)
{
    if (!held) return;
    FILE *out = held;
    held = NULL;
    if (fclose(out) == 0 && show) fputs(held_text, stderr);
    free(held_text);
    held_text = NULL;
}

void tool_log_show(void)
{
    stop_holding(true);
}

void tool_log_drop(void)
{
    stop_holding(false);
}

void tool_log_init(bool quiet)
{
    static struct log_style style; /* outlives the call: the sink looks at it */
    int level = (quiet ? LOG_WARN : LOG_INFO) + args_verbosity();
    enum cz_log_level asked;
    style.quiet = quiet && args_verbosity() == 0;
    style.clear = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
    if (asked_level(&asked)) {
        level = asked;
        style.quiet = false;
    }
    cz_log_set_sink(log_to_stderr, &style);
    log_set_level(level > LOG_TENSOR ? LOG_TENSOR : (enum cz_log_level)level, SUB_ALL);
}

void tool_put_report(char *text, bool is_json)
{
    if (is_json)
        puts(text);
    else
        terminal_put_wrapped(stdout, text);
    free(text);
}

int tool_put_json(struct json_writer *w)
{
    char *text;
    if (json_writer_take(w, &text, NULL) != CZ_OK) return tool_fail();
    tool_put_report(text, true);
    return EXIT_OK;
}

/* The reader of a pipe has seen enough, as `head` does: the code says the rest. */
static bool is_left(void)
{
    const int error = errno;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    const bool is_gone = poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
    errno = error;
    return is_gone || error == EPIPE;
}

/* A full disk is often noticed only when stdout is flushed. It must not end with exit code 0. */
int tool_finish_stdout(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (is_left()) return code == EXIT_OK ? EXIT_RUNTIME : code;
    if (errno == 0) /* it failed before, and why is forgotten */
        tool_complain(program, "cannot write to standard output");
    else
        tool_complain(program, "cannot write to standard output: %s", strerror(errno));
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

cz_status tool_check_text(const char *option, const char *text)
{
    if (!text || encoding_check(option, 0, text, strlen(text)) == CZ_OK) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s", cz_last_error()); /* not a damaged file */
}

void tool_put_json_string(FILE *out, const char *text, size_t nbytes)
{
    fputc('"', out);
    printable_put(out, PRINTABLE_JSON, text, nbytes);
    fputc('"', out);
}

const char *tool_cut_sentence(char buf[TOOL_CUT_NBYTES], uint64_t n_cut, uint64_t n,
                              const char *what, int64_t max_len)
{
    snprintf(buf, TOOL_CUT_NBYTES,
             "%" PRIu64 " of %" PRIu64 " %s%s %s truncated to %" PRId64 " token%s (--seq-len)",
             n_cut, n, what, plural(n), n_cut == 1 || n == 1 ? "was" : "were", max_len,
             plural((uint64_t)max_len));
    return buf;
}
