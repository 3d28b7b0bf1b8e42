/* czero fsck: is this checkpoint what was saved? Findings are printed as they come, or collected
 * into one JSON object. Reading everything takes minutes, so there is a progress bar. */
#include "base/printable.h"
#include "base/size.h"
#include "checkpoint/fsck/fsck.h"
#include "tools/czero/args.h"
#include "tools/czero/bar.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fsck_command {
    const char *dir, *tag;
    bool all, json, quiet;
};

static const struct arg_spec specs[] = {
    {"DIR", ARG_STRING, offsetof(struct fsck_command, dir), NULL,
     "checkpoint folder, folder of one tag, folder of weights, or one file", 0, true},
    {"--tag", ARG_STRING, offsetof(struct fsck_command, tag), "TAG",
     "check this tag instead of the one that `latest` names", 0, false},
    {"--all", ARG_FLAG, offsetof(struct fsck_command, all), NULL, "check every tag in DIR", 0,
     false},
    {"--json", ARG_FLAG, offsetof(struct fsck_command, json), NULL,
     "print one JSON object instead of sentences", 0, false},
    {"--quiet", ARG_FLAG, offsetof(struct fsck_command, quiet), NULL,
     "print only damage, no progress", 0, false},
};

const struct arg_command fsck_command = {
    .name = "czero fsck",
    .summary = "Check a checkpoint for damage.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "czero compares its own checkpoints with their manifest: every byte of every\n"
                "file. DeepSpeed's have no manifest: czero checks their structure, the CRC-32 of\n"
                "every zip record, and that the ranks' files match. Each finding names file,\n"
                "tensor and location.",
    .examples = "  czero fsck runs/a\n"
                "  czero fsck runs/a --all --json",
    .exits = "0 no damage, 4 damage found, 1 or 2 what cannot be read.",
};

struct session {
    struct bar bar;
    struct fsck_json *json; /* NULL: sentences, as they come */
    bool is_damaged;        /* not all findings are files that could not be read */
};

static void show_finding(const struct cz_fsck_finding *finding, void *user)
{
    struct session *s = user;
    s->is_damaged |= finding->status != CZ_IO;
    if (s->json) {
        fsck_json_add(s->json, finding);
        return;
    }
    bar_end(&s->bar);
    printable_print(stdout, "%s\n", finding->sentence);
}

static void show_progress(uint64_t done, uint64_t total, void *user)
{
    struct session *s = user;
    bar_update(done, total, &s->bar);
}

/* The object says why the check ended early, if it did: a script reads only this. */
static int show_json(const struct session *s, const struct cz_fsck_report *report,
                     const char *error)
{
    char *text;
    if (fsck_json_take(s->json, report, error, &text) != CZ_OK) return tool_fail();
    puts(text);
    free(text);
    return EXIT_OK;
}

int cmd_fsck(int argc, char **argv)
{
    struct fsck_command o = {0};
    enum args_result parsed = args_parse(&fsck_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    struct session s = {.json = o.json ? fsck_json_create() : NULL};
    struct cz_fsck_report report = {.size = sizeof report};
    bar_begin(&s.bar, "checking", o.quiet);
    const struct cz_fsck_options options = {.size = sizeof options,
                                            .dir = o.dir,
                                            .tag = o.tag,
                                            .all_tags = o.all,
                                            .finding = show_finding,
                                            .progress = show_progress,
                                            .user = &s};
    const cz_status st = cz_fsck(&options, &report);
    bar_end(&s.bar);
    int failed = EXIT_OK;
    char *error = st != CZ_OK ? strdup(cz_last_error()) : NULL;
    if (st != CZ_OK) failed = tool_fail();
    if (s.json && show_json(&s, &report, error) != EXIT_OK) failed = EXIT_RUNTIME;
    if (!o.json && !o.quiet && st == CZ_OK) {
        printable_print(stdout, "%s: %zu file%s, %zu tensor%s, %" PRIu64 " bytes: ", report.tag_dir,
                        report.n_files, plural(report.n_files), report.n_tensors,
                        plural(report.n_tensors), report.nbytes);
        if (report.n_findings == 0)
            printf("no damage\n");
        else
            printable_print(stdout, "%zu finding%s\n", report.n_findings,
                            plural(report.n_findings));
        if (report.n_unchecked > 0)
            printable_print(stdout,
                            "%zu piece%s without a checksum: only their structure was checked\n",
                            report.n_unchecked, plural(report.n_unchecked));
    }
    if (report.n_findings > 0) failed = s.is_damaged ? EXIT_DAMAGED : EXIT_RUNTIME;
    free(error);
    fsck_json_destroy(s.json);
    cz_fsck_report_free(&report);
    return failed;
}
