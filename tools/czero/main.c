/* czero: one binary, one sub-command per task. The table below is the only list of commands:
 * dispatch, help and `czero launch` read it. */
#include "base/printable.h"
#include "base/text/nearest.h"
#include "commands.h"
#include "engine/engine.h"
#include "terminal.h"
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct command czero_commands[] = {
    {"bench", cmd_bench, &bench_command, "measure this machine, for predicted times in plans",
     .computes = true},
    {"chat", cmd_chat, &chat_command, "chat with a model", .computes = true},
    {"completion", cmd_completion, &completion_command, "print the completion script of a shell"},
    {"config", cmd_config, &config_command, "show, check and compare DeepSpeed configs"},
    {"data", cmd_data, &data_command, "show instruction data with its trained tokens"},
    {"embed", cmd_embed, &embed_command, "write hidden states of texts, pooled, as an array",
     .computes = true},
    {"eval", cmd_eval, &eval_command, "evaluate a model on given data", .computes = true},
    {"export", cmd_export, &export_command, "write a checkpoint as a Hugging Face folder"},
    {"fsck", cmd_fsck, &fsck_command, "check a checkpoint for damage"},
    {"generate", cmd_generate, &generate_command, "generate text from a prompt", .computes = true},
    {"init", cmd_init, &init_command, "create a config and a command line to train with it"},
    {"inspect", cmd_inspect, &inspect_command,
     "list the contents of a checkpoint or a weights file"},
    {"launch", cmd_launch, &launch_command, "run a command on several ranks", true},
    {"man", cmd_man, &man_command, "print a manual page"},
    {"models", cmd_models, &models_command, "list the models of known sizes, by family"},
    {"plan", cmd_plan, &plan_command, "show the memory that a run needs, without running it"},
    {"plot", cmd_plot, &plot_command, "plot loss and accuracy of a run"},
    {"predict", cmd_predict, &predict_command, "classify texts", .computes = true},
    {"train", cmd_train, &train_command, "train a model from a DeepSpeed config",
     .over_ranks = true, .computes = true},
    {"tune", cmd_tune, &tune_command, "find the configurations that fit a machine, fastest first"},
    {"verify", cmd_verify, &verify_command,
     "compare a model's logits, loss and gradients with recorded ones", .computes = true},
    {"vocab", cmd_vocab, &vocab_command, "build a vocabulary from texts"},
    {.name = NULL},
};

/* Read by czero or its libraries; `czero --help` and the manual pages list them. */
const struct environment_row czero_environment[] = {
    {"CZERO_ISA", "highest instruction set: scalar, avx2, avx512, avx512bf16, amx"},
    {"OMP_NUM_THREADS", "limits the threads of a rank"},
    {"CZERO_COMPAT", "0.16 selects older DeepSpeed defaults (default: 0.19)"},
    {"CZERO_LOG", "log level: warning, info, step, micro, debug, bucket, tensor"},
    {"CZERO_DEBUG", "1 prints the functions that an error passed through"},
    {"NO_COLOR", "1 switches colours off"},
    {.name = NULL},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; czero_commands[i].name; i++)
        if (strcmp(czero_commands[i].name, name) == 0) return &czero_commands[i];
    return NULL;
}

/* `czero launch` runs these in its own binary, everything else as a program. */
bool tool_is_command(const char *name)
{
    return find_command(name) != NULL;
}

const char *tool_nearest_command(const char *name)
{
    struct nearest search = nearest_begin(name);
    for (size_t i = 0; czero_commands[i].name; i++)
        nearest_consider(&search, czero_commands[i].name);
    return search.best;
}

static void print_help(FILE *out)
{
    fprintf(out, "Usage: czero COMMAND [options]\n\n" CZERO_SUMMARY "\n\nCommands:\n");
    for (size_t i = 0; czero_commands[i].name; i++)
        printable_print(out, "  %-11s %s\n", czero_commands[i].name, czero_commands[i].summary);
    fprintf(out,
            "\n`czero COMMAND --help` explains a command; `czero --version` prints the version.\n"
            "The program zero_to_fp32 consolidates a checkpoint to fp32 weights.\n\n"
            "Exit codes: " CZERO_EXITS "\n\nEnvironment:\n");
    for (size_t i = 0; czero_environment[i].name; i++)
        printable_print(out, "  %-15s %s\n", czero_environment[i].name, czero_environment[i].help);
}

static bool is_word(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

/* Words that name no command, but that people type for one. */
static const struct {
    const char *word, *sentence;
} elsewhere[] = {
    {"zero_to_fp32", "it is a program: zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR"},
    {"zero_to_fp32.py", "it is a program: zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR"},
    {"run", "did you mean train, or launch?"},
    {"finetune", "did you mean train?"},
    {"estimate-memory", "did you mean plan, or tune?"},
    {"serve", "czero generate and czero predict run a model"},
    {"convert", "did you mean export?"},
};

int tool_unknown_command(const char *program, const char *name)
{
    const char *near = tool_nearest_command(name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(elsewhere); i++)
        if (strcmp(name, elsewhere[i].word) == 0) {
            tool_complain(program, "unknown command \"%s\": %s", name, elsewhere[i].sentence);
            return EXIT_USAGE;
        }
    if (near)
        tool_complain(program, "unknown command \"%s\"; did you mean %s?", name, near);
    else
        tool_complain(program, "unknown command \"%s\" (see czero --help)", name);
    return EXIT_USAGE;
}

/* `czero help train` is `czero train --help`. */
static int help_on(char *name)
{
    const struct command *command = find_command(name);
    char option[] = "--help", *words[] = {name, option, NULL};
    return command ? command->run(2, words) : tool_unknown_command("czero help", name);
}

int main(int argc, char **argv)
{
    tool_begin("czero", "czero " CZERO_VERSION);
    if (argc < 2) { /* help, but a script's mistake stays an error */
        print_help(stderr);
        fputc('\n', stderr);
        tool_complain("czero", "a command is missing");
        return EXIT_USAGE;
    }
    if (is_word(argv[1], "--help", "-h", "help")) {
        if (argc > 2) return tool_finish_stdout(help_on(argv[2]));
        print_help(stdout);
        return tool_finish_stdout(EXIT_OK);
    }
    if (is_word(argv[1], "--version", "-V", "version")) {
        tool_print_version();
        return tool_finish_stdout(EXIT_OK);
    }
    if (!tool_environment_is_valid()) return EXIT_USAGE;
    const struct command *command = find_command(argv[1]);
    if (command && !command->over_ranks && engine_world_started_as() > 0) return EXIT_OK;
    if (command && command->computes) tool_wait_briefly(argv);
    if (command) return tool_finish_stdout(command->run(argc - 1, argv + 1));
    return tool_unknown_command("czero", argv[1]);
}
