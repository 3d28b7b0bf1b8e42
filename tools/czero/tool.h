/* What the sub-commands of czero share: exit codes, messages and the log on stderr, JSON. */
#ifndef CZ_TOOLS_TOOL_H
#define CZ_TOOLS_TOOL_H

#include "base/status.h"
#include "formats/json/json_write.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of every command. */
enum {
    EXIT_OK = 0,
    EXIT_RUNTIME = 1, /* something failed while running */
    EXIT_USAGE = 2,   /* usage or configuration */
    EXIT_MEMORY = 3,  /* does not fit in memory */
    EXIT_DAMAGED = 4  /* damaged input */
};

/* Before anything else. name: what stands in front of sentences; version: what
 * tool_print_version() prints; borrowed. Standard streams that were closed get a descriptor that
 * reads nothing and takes nothing, lest the first files that are opened sit in their places and
 * what is printed goes into a checkpoint. A file that grows too large (ulimit -f) is an error with
 * a sentence, not a signal. */
void tool_begin(const char *name, const char *version);

/* Start this program again with a shorter wait for threads, unless the user has chosen one; returns
 * where that is not needed, or not possible. Before any thread is started. */
void tool_wait_briefly(char **argv);

/* Print the version as a line on stdout. */
void tool_print_version(void);

/* The exit code that belongs to a status: CZ_INVALID, CZ_UNSUPPORTED, CZ_NOTFOUND → 2, CZ_NOMEM →
 * 3, CZ_CORRUPT and CZ_VERSION → 4, anything else → 1. */
int tool_exit_code(cz_status status);

/* Print "NAME: sentence" on stderr, NAME in front of every line and red on a terminal. Strings
 * among the arguments are escaped (base/printable.h). */
void tool_complain(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Print a line on stderr that is neither an error nor the log's, as wide as the terminal. Strings
 * among the arguments are escaped. */
void tool_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Print "NAME: <cz_last_error()>" on stderr and return tool_exit_code(cz_last_status()).
 * CZERO_DEBUG=1 adds the trace. */
int tool_fail(void);

/* Whether CZERO_LOG and CZERO_COMPAT have values that mean something; else a sentence says which
 * ones do. A misspelt one would silently do something else. */
bool tool_environment_is_valid(void);

/* Send the library's log to stderr: warnings only when quiet, even if the config asks for more.
 * Each -v (args.h) adds a level; CZERO_LOG sets one: warning, info, step, micro or debug, bucket,
 * tensor. */
void tool_log_init(bool quiet);

/* Hold the log's lines back from here on; show them, or drop them. Without a hold nothing happens.
 */
void tool_log_hold(void);
void tool_log_show(void);
void tool_log_drop(void);

/* SIGINT, SIGHUP, SIGQUIT and `too` (0: none) wait from here on; those that are ignored stay
 * ignored. Before any other thread is made: threads do as the one that made them. */
void tool_hold_signals(int too);

/* When one of them comes, or has come since: tidy(), in a thread of its own, and the program ends
 * of the signal as any other. `but` goes back to its own handling (0: none does). ask (NULL: none):
 * the first SIGINT calls it instead, in that thread, and the program continues; the second ends it.
 */
void tool_tidy_at_signals(void (*tidy)(void), int but, void (*ask)(void));

/* What training, evaluation and `data show` say about rows that are longer than the sequence: "2 of
 * 7 rows were truncated to 32 tokens (--seq-len)", in buf. what: "row" or "text". */
#define TOOL_CUT_NBYTES 120
const char *tool_cut_sentence(char buf[TOOL_CUT_NBYTES], uint64_t n_cut, uint64_t n,
                              const char *what, int64_t max_len);

/* The value of an option that is text; NULL: not given. CZ_INVALID: it is not UTF-8, and the
 * sentence names the encoding that it looks like. */
cz_status tool_check_text(const char *option, const char *text);

/* Call handler at this signal, in the thread that calls this, on a stack of its own: oneDNN's
 * kernels use the stack pointer as a register for data, so that a frame below it would overwrite
 * the heap. 0, or −1 with errno. One thread of a program. */
int tool_handle_signal(int number, void (*handler)(int));

/* Text as a JSON string, quotes included; a byte that is not UTF-8 becomes U+FFFD. */
void tool_put_json_string(FILE *out, const char *text, size_t nbytes);

/* A number as JSON has it; null when it is not finite. */
void tool_put_json_number(FILE *out, double value);

/* Print what a library function made, on stdout, and free it: a table, shown as the terminal can
 * (terminal.h), or a JSON document, which gets a newline at its end. */
void tool_put_report(char *text, bool is_json);

/* Print a finished document on stdout as one line or more, and empty the writer. EXIT_OK, or
 * EXIT_MEMORY with a sentence. */
int tool_put_json(struct json_writer *w);

/* Results on stdout did not reach their destination (a full disk, a closed pipe): call last.
 * Returns `code`, or EXIT_RUNTIME with a sentence. */
int tool_finish_stdout(int code);

#endif
