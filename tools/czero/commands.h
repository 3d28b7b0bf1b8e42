/* All commands of czero, in one table: dispatch, help, `czero launch`, manual pages and completion
 * read it. A new command is a row in main.c and a line here. */
#ifndef CZ_TOOLS_COMMANDS_H
#define CZ_TOOLS_COMMANDS_H

#include "args.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const struct arg_command *options;
    const char *summary; /* for the list of commands */
    bool over_ranks;     /* otherwise rank 0 does it for all */
    bool computes;       /* with threads: how they wait matters */
};

extern const struct command czero_commands[]; /* a row without name ends it */

struct environment_row {
    const char *name, *help;
};

extern const struct environment_row czero_environment[]; /* a row without name ends it */

#define CZERO_SUMMARY "Train language models from a DeepSpeed config, in C."
#define CZERO_DESCRIPTION                                                                          \
    "czero reads the config files, checkpoints and Hugging Face folders that DeepSpeed and\n"      \
    "transformers use, and trains, evaluates and runs models without Python."
#define CZERO_EXITS                                                                                \
    "0 success, 1 run-time failure, 2 usage or config error,\n"                                    \
    "            3 does not fit in memory, 4 damaged input."
#define NOTHING_FITS                                                                               \
    "3 if nothing fits: the error says what is missing and how much;\n"                            \
    "            others as usual."

/* Whether `name` is one of the commands. */
bool tool_is_command(const char *name);

/* The command that a mistyped one comes closest to (base/nearest.h); NULL: none is close. */
const char *tool_nearest_command(const char *name);

/* Say that there is no such command, with the nearest one; `program` stands in front. EXIT_USAGE.
 */
int tool_unknown_command(const char *program, const char *name);

extern const struct arg_command bench_command, chat_command, completion_command, config_command,
    data_command, embed_command, eval_command, export_command, fsck_command, generate_command,
    init_command, inspect_command, launch_command, man_command, models_command, plan_command,
    plot_command, predict_command, train_command, tune_command, verify_command, vocab_command;

int cmd_bench(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_embed(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_fsck(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_init(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_man(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_predict(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_vocab(int argc, char **argv);

#endif
