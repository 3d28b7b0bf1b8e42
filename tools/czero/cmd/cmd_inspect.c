/* czero inspect: the contents of a checkpoint or a weights file. All of it is in the library; this
 * is its command line. */
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include <czero/checkpoint.h>

#include <errno.h>
#include <stdlib.h>

static const struct arg_spec specs[] = {
    {"PATH", ARG_STRING, offsetof(struct cz_inspect_options, path), NULL,
     "a .pt or .safetensors file, a checkpoint folder, a tag's folder, or a folder of weights", 0,
     true},
    {"--tag", ARG_STRING, offsetof(struct cz_inspect_options, tag), "TAG",
     "inspect this tag instead of the one that `latest` names", 0, false},
    {"--all", ARG_FLAG, offsetof(struct cz_inspect_options, all), NULL,
     "show all entries of long lists, not only the first and last few", 0, false},
    {"--sums", ARG_FLAG, offsetof(struct cz_inspect_options, sums), NULL,
     "read the tensors: minimum, maximum, mean, number of non-finite values, CRC-32", 0, false},
    {"--json", ARG_FLAG, offsetof(struct cz_inspect_options, json), NULL,
     "print everything as JSON, without omissions", 0, false},
};

const struct arg_command inspect_command = {
    .name = "czero inspect",
    .summary = "List the contents of a checkpoint or a weights file.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "A checkpoint of czero or DeepSpeed, of any stage and number of ranks, is shown\n"
                "as one set of whole tensors. Class names in a file are shown; czero never loads\n"
                "or runs them.",
    .examples = "  czero inspect runs/a\n"
                "  czero inspect model.safetensors --sums",
    .exits = "0 success, 1 or 2 cannot be read, 4 damaged (see czero fsck).",
};

/* Lists are shortened with "…", which not every terminal shows. */
static cz_status inspect_in_ascii(const struct cz_inspect_options *o)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);
    if (!out) return err_set(CZ_NOMEM, errno, "no memory for the list");
    cz_status st = cz_inspect(o, out);
    if (fclose(out) != 0 && st == CZ_OK) st = err_set(CZ_NOMEM, errno, "no memory for the list");
    if (st == CZ_OK) terminal_put(stdout, text);
    free(text);
    return st;
}

int cmd_inspect(int argc, char **argv)
{
    struct cz_inspect_options o = {.size = sizeof o};
    enum args_result parsed = args_parse(&inspect_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    const bool as_is = o.json || terminal_is_utf8();
    return (as_is ? cz_inspect(&o, stdout) : inspect_in_ascii(&o)) == CZ_OK ? EXIT_OK : tool_fail();
}
