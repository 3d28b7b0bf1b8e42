/* czero launch: runs a command, or a program of the user's, on several ranks. The command and all
 * words after it are not parsed here. */
#include "base/printable.h"
#include "engine/launch/launch.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct launch_flags {
    int64_t n;
    const char *hostfile, *bind;
    char **words; /* the command, in argv */
};

#define FIELD(member) offsetof(struct launch_flags, member)

static const struct arg_spec specs[] = {
    {"-n", ARG_INT, FIELD(n), "N", "number of ranks", .min = 1, .required = true},
    {"--hostfile", ARG_STRING, FIELD(hostfile), "FILE",
     "start ranks on several hosts: lines \"HOST slots=N\", for OpenMPI's mpirun"},
    {"--bind", ARG_CHOICE, FIELD(bind), "cores|none",
     "cores: divide the cores among the ranks (default); none: do not bind"},
    {"COMMAND", ARG_REST, FIELD(words), NULL,
     "the command and its options; a \"--\" may stand in front of it", .required = true},
};

const struct arg_command launch_command = {
    .name = "czero launch",
    .summary = "Run a command on several ranks.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "COMMAND is a czero command, or a program (a path, or a name on PATH) that calls\n"
                "engine_world_create(). The ranks of one host use shared memory and need no MPI.\n"
                "`mpirun -n N czero train …` and Slurm's `srun czero train …` work without\n"
                "launch. Every rank gets its share of the cores and as many threads, unless\n"
                "OMP_NUM_THREADS is set. With --hostfile, root may start ranks, too: launch then\n"
                "gives mpirun --allow-run-as-root. Output of rank 0 is passed on unchanged;\n"
                "stderr lines of other ranks start with \"[rank r] \".\n"
                "SIGTERM and SIGINT are passed on to all ranks: train stops after the current\n"
                "step.",
    .examples = "  czero launch -n 4 train --config ds_config.json --model gpt2 …\n"
                "  czero launch -n 16 --hostfile hosts train …\n"
                "  czero launch -n 4 ./my_program …",
    .exits = "0, or that of the first failed rank; 1 if a signal killed a rank.",
};

static int complain(const char *sentence)
{
    tool_complain("czero launch", "%s", sentence);
    return EXIT_USAGE;
}

/* A reader that closed the pipe does not stop the run: its output is lost, training continues. */
static void write_output(bool to_stderr, const char *text, size_t nbytes, void *user)
{
    (void)user;
    int fd = to_stderr ? STDERR_FILENO : STDOUT_FILENO;
    while (nbytes > 0) {
        ssize_t n = write(fd, text, nbytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* it has no reader any more; the run continues */
        text += n;
        nbytes -= (size_t)n;
    }
}

/* argv of the ranks: czero's own commands run in this very binary. The caller frees it. */
static char **rank_argv(int n_words, char **words, const char *self)
{
    bool own = tool_is_command(words[0]);
    char **argv = calloc((size_t)n_words + 2, sizeof *argv);
    if (!argv) return NULL;
    if (own) argv[0] = (char *)(uintptr_t)self;
    memcpy(argv + own, words, (size_t)n_words * sizeof *argv);
    return argv;
}

/* The first failed rank's code is passed on, so that scripts see what it was. */
static int run(const struct launch_options *options)
{
    int code = -1;
    if (options->hostfile) {
        launch_mpirun(options);
        return tool_fail();
    }
    if (launch_local(options, &code) == CZ_OK) return EXIT_OK;
    int by_status = tool_fail();
    return code >= 0 ? code : by_status;
}

int cmd_launch(int argc, char **argv)
{
    struct launch_flags flags = {.n = 0};
    char self[4096];
    enum args_result parsed = args_parse(&launch_command, argc, argv, &flags);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    char **words = flags.words;
    if (strcmp(words[0], "launch") == 0) return complain("launch cannot launch itself");
    if (flags.n > INT32_MAX) return complain("-n: too many ranks");
    if (!tool_is_command(words[0]) && launch_find(words[0], self, sizeof self) != CZ_OK) {
        const char *near = tool_nearest_command(words[0]);
        if (near)
            err_set(CZ_NOTFOUND, 0,
                    "\"%s\" is neither a czero command nor a program; did you mean %s?", words[0],
                    near);
        else
            err_prefix("\"%s\" is not a czero command", words[0]);
        return tool_fail();
    }
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len == (ssize_t)sizeof self - 1) return complain("czero's own path is too long");
    if (len <= 0) return complain("cannot find czero itself: is /proc mounted?");
    self[len] = '\0';
    tool_log_init(false);
    char **ranks = rank_argv((int)(argv + argc - words), words, self);
    if (!ranks) return complain("no memory for the command line");
    const struct launch_options options = {
        .n_ranks = (int)flags.n,
        .bind =
            flags.bind && strcmp(flags.bind, "none") == 0 ? LAUNCH_BIND_NONE : LAUNCH_BIND_CORES,
        .program = ranks[0],
        .argv = ranks,
        .write = write_output,
        .hostfile = flags.hostfile,
    };
    int code = run(&options);
    free(ranks);
    return code;
}
