/* What the sub-commands of czero share: exit codes, the log on stderr, their entry points. */
#ifndef CZ_TOOLS_TOOL_H
#define CZ_TOOLS_TOOL_H

#include "base/status.h"

#include <stdio.h>

/* Exit codes of every command. */
enum {
    EXIT_OK = 0,
    EXIT_RUNTIME = 1, /* something failed while running */
    EXIT_USAGE = 2,   /* usage or configuration */
    EXIT_MEMORY = 3,  /* does not fit in memory */
    EXIT_DAMAGED = 4  /* damaged input */
};

/* Before anything else. name: what stands in front of sentences; borrowed. Standard streams that
 * were closed get a descriptor that reads nothing and takes nothing, lest the first files that are
 * opened sit in their places and what is printed goes into a checkpoint. A file that grows too
 * large (ulimit -f) is an error with a sentence, not a signal. */
void tool_begin(const char *name);

/* The exit code that belongs to a status: CZ_INVALID, CZ_UNSUPPORTED, CZ_NOTFOUND → 2, CZ_NOMEM →
 * 3, CZ_CORRUPT and CZ_VERSION → 4, anything else → 1. */
int tool_exit_code(cz_status status);

/* Print "NAME: <cz_last_error()>" on stderr and return tool_exit_code(cz_last_status()).
 * CZERO_DEBUG=1 adds the trace. */
int tool_fail(void);

/* Send the library's log to stderr: warnings only when quiet, even if the config asks for more.
 * CZERO_LOG=info|step|micro|bucket|tensor sets the level. */
void tool_log_init(bool quiet);

/* SIGINT, SIGHUP, SIGQUIT and `too` (0: none) wait from here on; those that are ignored stay
 * ignored. Before any other thread is made: threads do as the one that made them. */
void tool_hold_signals(int too);

/* When one of them comes, or has come since: tidy(), in a thread of its own, and the program ends
 * of the signal as any other. `but` goes back to its own handling (0: none does). */
void tool_tidy_at_signals(void (*tidy)(void), int but);

/* Text as a JSON string, quotes included; a byte that is not UTF-8 becomes U+FFFD. */
void tool_put_json_string(FILE *out, const char *text, size_t nbytes);

/* A number as JSON has it; null when it is not finite. */
void tool_put_json_number(FILE *out, double value);

/* Results on stdout did not reach their destination (a full disk, a closed pipe): call last.
 * Returns `code`, or EXIT_RUNTIME with a sentence. */
int tool_finish_stdout(int code);

/* Whether `name` is one of czero's commands ("train"). */
bool tool_is_command(const char *name);

int cmd_bench(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_fsck(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_init(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_predict(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_vocab(int argc, char **argv);

#endif
