/* czero inspect: what is inside a checkpoint, or a file of weights? */
#include "checkpoint/inspect/inspect.h"
#include "tools/czero/args.h"
#include "tools/czero/tool.h"

static const struct arg_spec specs[] = {
    {"PATH", ARG_STRING, offsetof(struct cz_inspect_options, path), NULL,
     "a .pt or .safetensors file, a folder of checkpoints, a tag's folder, or one of weights", 0,
     true},
    {"--tag", ARG_STRING, offsetof(struct cz_inspect_options, tag), "TAG",
     "this tag instead of the one that `latest` names", 0, false},
    {"--all", ARG_FLAG, offsetof(struct cz_inspect_options, all), NULL,
     "every entry of long lists, not the first and last few", 0, false},
    {"--sums", ARG_FLAG, offsetof(struct cz_inspect_options, sums), NULL,
     "read the tensors: minimum, maximum, mean, values that are not finite, CRC-32", 0, false},
    {"--json", ARG_FLAG, offsetof(struct cz_inspect_options, json), NULL,
     "everything as JSON, nothing left out", 0, false},
};

static const struct arg_command command = {
    .name = "czero inspect",
    .summary = "Show what is inside a checkpoint or a file of weights.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue =
        "A checkpoint, czero's or DeepSpeed's, of any stage and number of ranks, is shown as one\n"
        "set of whole tensors. Classes that a file names are shown, never loaded or run.\n"
        "Exit codes: 0 shown, 1 or 2 cannot be read, 4 damaged (czero fsck says where).",
};

int cmd_inspect(int argc, char **argv)
{
    struct cz_inspect_options o = {.size = sizeof o};
    enum args_result parsed = args_parse(&command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    return cz_inspect(&o, stdout) == CZ_OK ? EXIT_OK : tool_fail();
}
