/* czero: one binary, one sub-command per task. The table below is the only list of commands:
 * dispatch, help and `czero launch` read it. */
#include "base/printable.h"
#include "engine/engine.h"
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    bool over_ranks; /* otherwise rank 0 does it for all */
} commands[] = {
    {"bench", cmd_bench, "measure this machine, for predicted times in plans"},
    {"config", cmd_config, "show, check and compare DeepSpeed configs"},
    {"eval", cmd_eval, "evaluate a model on given data"},
    {"export", cmd_export, "write a checkpoint as a Hugging Face folder"},
    {"fsck", cmd_fsck, "check a checkpoint for damage"},
    {"generate", cmd_generate, "generate text from a prompt"},
    {"init", cmd_init, "create a config and a command line to train with it"},
    {"inspect", cmd_inspect, "list the contents of a checkpoint or a weights file"},
    {"launch", cmd_launch, "run a command on several ranks", true},
    {"plan", cmd_plan, "show the memory that a run needs, without running it"},
    {"plot", cmd_plot, "plot loss and accuracy of a run"},
    {"predict", cmd_predict, "classify texts"},
    {"train", cmd_train, "train a model from a DeepSpeed config", true},
    {"tune", cmd_tune, "find the configurations that fit a machine, fastest first"},
    {"verify", cmd_verify, "compare a model's logits, loss and gradients with recorded ones"},
    {"vocab", cmd_vocab, "build a vocabulary from texts"},
    {NULL, NULL, NULL, false},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; commands[i].name; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* `czero launch` runs these in its own binary, everything else as a program. */
bool tool_is_command(const char *name)
{
    return find_command(name) != NULL;
}

static int print_help(void)
{
    printf("Usage: czero COMMAND [options]\n\n"
           "Train language models from a DeepSpeed config, in C.\n\nCommands:\n");
    for (size_t i = 0; commands[i].name; i++)
        printable_print(stdout, "  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n`czero COMMAND --help` explains a command; `czero --version` prints the version.\n\n"
           "Exit codes: 0 success, 1 run-time failure, 2 usage or config error,\n"
           "            3 does not fit in memory, 4 damaged input.\n"
           "Environment: CZERO_ISA limits the instruction set (scalar, avx2, avx512,\n"
           "             avx512bf16, amx), OMP_NUM_THREADS limits the threads,\n"
           "             CZERO_COMPAT=0.16 selects older DeepSpeed defaults, CZERO_LOG sets\n"
           "             the log level, CZERO_DEBUG=1 traces errors.\n");
    return EXIT_OK;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

/* `czero help train` is `czero train --help`. */
static int help_on(char *name)
{
    const struct command *command = find_command(name);
    char option[] = "--help", *words[] = {name, option, NULL};
    if (command) return command->run(2, words);
    printable_print(stderr, "czero help: unknown command \"%s\" (see czero --help)\n", name);
    return EXIT_USAGE;
}

/* A misspelt environment variable would silently train with other defaults. */
static bool environment_is_valid(void)
{
    const char *compat = getenv("CZERO_COMPAT");
    if (!compat || !*compat || strcmp(compat, "0.16") == 0 || strcmp(compat, "0.19") == 0)
        return true;
    printable_print(stderr, "czero: CZERO_COMPAT=%s: use 0.16 or 0.19\n", compat);
    return false;
}

int main(int argc, char **argv)
{
    tool_begin("czero");
    if (argc < 2) {
        fprintf(stderr, "czero: a command is missing (see czero --help)\n");
        return EXIT_USAGE;
    }
    if (is_help(argv[1])) return tool_finish_stdout(argc > 2 ? help_on(argv[2]) : print_help());
    if (strcmp(argv[1], "--version") == 0) {
        printable_print(stdout, "czero %s\n", CZERO_VERSION);
        return tool_finish_stdout(EXIT_OK);
    }
    if (!environment_is_valid()) return EXIT_USAGE;
    const struct command *command = find_command(argv[1]);
    if (command && !command->over_ranks && engine_world_started_as() > 0) return EXIT_OK;
    if (command) return tool_finish_stdout(command->run(argc - 1, argv + 1));
    printable_print(stderr, "czero: unknown command \"%s\" (see czero --help)\n", argv[1]);
    return EXIT_USAGE;
}
