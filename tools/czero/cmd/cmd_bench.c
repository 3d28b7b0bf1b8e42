/* czero bench: how fast this machine is, for people and for plans. Ctrl-C ends the measurement
 * early: what has been measured is kept and the file of the disk test removed. */
#include "base/printable.h"
#include "base/threads.h"
#include "engine/machine/machine.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct bench_options {
    const char *profile, *nvme;
    double seconds;
    bool json, quiet;
};

#define FIELD(member) offsetof(struct bench_options, member)

static const struct arg_spec specs[] = {
    {"--profile", ARG_STRING, FIELD(profile), "FILE",
     "write the results to FILE, for czero plan and czero tune"},
    {"--nvme", ARG_STRING, FIELD(nvme), "DIR",
     "also measure the disk of this folder, which is created and removed if missing"},
    {"--seconds", ARG_DOUBLE, FIELD(seconds), "S",
     "time limit, at most 60 (default: 30); results below 10 are rough"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of the table"},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print no progress"},
};

const struct arg_command bench_command = {
    .name = "czero bench",
    .summary = "Measure this machine: matrix products, memory, optimizer step, disk.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "Rates are those of one rank with all the cores that it may use (OMP_NUM_THREADS,\n"
                "CZERO_ISA, taskset). The disk is measured with the code that training uses for\n"
                "swapping, on a file of at most 2 GiB or a quarter of the free space, which is\n"
                "removed afterwards. Other load on the machine changes the results.",
    .examples = "  czero bench --profile machine.json --nvme /mnt/nvme",
};

static volatile sig_atomic_t is_stopped;

static void on_stop(int signal_number)
{
    (void)signal_number;
    is_stopped = 1;
}

/* From now on; those that are ignored stay ignored. */
static void handle_signals(void (*how)(int))
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (signal(numbers[i], how) == SIG_IGN) signal(numbers[i], SIG_IGN);
}

static bool stopped(void *user)
{
    (void)user;
    return is_stopped;
}

static void say(void *user, const char *what)
{
    (void)user;
    printable_print(stderr, "measuring %s\n", what);
}

int cmd_bench(int argc, char **argv)
{
    struct bench_options o = {.seconds = 30};
    struct machine_profile profile;
    enum args_result parsed = args_parse(&bench_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (!(o.seconds > 0)) {
        fprintf(stderr, "czero bench: --seconds: %g must be above 0\n", o.seconds);
        return EXIT_USAGE;
    }
    if (o.profile && machine_write_check(o.profile) != CZ_OK) return tool_fail();
    /* Ctrl-C ends the measurement early and keeps what is known. */
    const struct machine_options options = {.nvme_path = o.nvme,
                                            .seconds = o.seconds,
                                            .progress = o.quiet ? NULL : say,
                                            .stopped = stopped};
    threads_init(1);
    handle_signals(on_stop);
    cz_status st = machine_measure(&options, &profile);
    handle_signals(SIG_DFL);
    if (st != CZ_OK) return tool_fail();
    if (o.profile && machine_write(&profile, o.profile) != CZ_OK) return tool_fail();
    char *text;
    if ((o.json ? machine_json : machine_table)(&profile, &text) != CZ_OK) return tool_fail();
    tool_put_report(text, o.json);
    return EXIT_OK;
}
