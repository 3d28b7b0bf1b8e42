/* czero models: the presets, family by family. */
#include "base/printable.h"
#include "model/families.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <stdio.h>
#include <string.h>

const struct arg_command models_command = {
    .name = "czero models",
    .summary = "List the models of known sizes (presets), by family.",
    .epilogue = "A preset has random weights: it is for plans, and for training from scratch.\n"
                "For a model with weights, --model names its folder, as a model hub holds it\n"
                "(hf download ORG/NAME --local-dir DIR).",
    .examples = "  czero models\n"
                "  czero plan --model llama3-8b --seq-len 2048",
};

enum { WIDTH = 80, INDENT = 2 };

/* Names of one family, in lines that fit a terminal. */
static void print_family(size_t family)
{
    size_t column = 0;
    const char *name;
    for (size_t i = 0; (name = model_family_preset(family, i)); i++) {
        const size_t n = strlen(name), before = column ? 2 : INDENT;
        const bool breaks = column && column + before + n + 1 > WIDTH; /* a comma may follow */
        if (breaks)
            printable_print(stdout, ",\n%*s%s", INDENT, "", name);
        else
            printable_print(stdout, "%s%s", column ? ", " : "  ", name);
        column = breaks ? INDENT + n : column + before + n;
    }
    if (column) printable_print(stdout, "\n");
}

int cmd_models(int argc, char **argv)
{
    char unused;
    enum args_result parsed = args_parse(&models_command, argc, argv, &unused);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    const char *title;
    for (size_t i = 0; (title = model_family_title(i)); i++) {
        printable_print(stdout, "%s\n", title);
        print_family(i);
    }
    return EXIT_OK;
}
