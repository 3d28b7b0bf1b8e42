/* czero verify: compares a model's logits, loss and gradients with recorded ones. */
#include "base/printable.h"
#include "engine/infer/verify.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <stdio.h>

#define WORST_ALLOWED 1e-4

struct verify_options {
    const char *dir, *dump, *device;
};

static const struct arg_spec specs[] = {
    {"DIR", ARG_STRING, offsetof(struct verify_options, dir), NULL,
     "folder with config.json, model.safetensors and oracle.safetensors", 0, true},
    {"--dump", ARG_STRING, offsetof(struct verify_options, dump), "FILE",
     "write czero's values in fp32 under the same names", 0, false},
    {"--device", ARG_STRING, offsetof(struct verify_options, device), "cpu|cuda|cuda:N",
     "device to run on (default: cpu)", 0, false},
};

const struct arg_command verify_command = {
    .name = "czero verify",
    .summary = "Compare a model's logits, loss and gradients with recorded ones.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "oracle.safetensors contains one batch (in.input_ids, in.labels in Hugging Face's\n"
                "form, in.attention_mask, in.token_type_ids, in.position_ids) and its results\n"
                "(out.logits, out.loss, grad.PARAMETER). Each line shows the largest difference,\n"
                "relative to the tensor's largest value (at least 1e-6).",
    .examples = "  czero verify oracle/",
    .exits = "0 they agree, 1 a difference exceeds 1e-4, or the run failed.",
};

struct tally {
    double worst;
    int n_rows, n_beyond;
};

static void show(void *user, const struct verify_row *row)
{
    struct tally *tally = user;
    const bool beyond = !(row->error <= WORST_ALLOWED); /* NaN is beyond */
    printable_print(stdout, "%-52s %9.2e", row->name, row->error);
    if (beyond)
        printf("  beyond %.0e, worst at element %lld", WORST_ALLOWED, (long long)row->worst_idx);
    printf("\n");
    tally->n_rows++;
    tally->n_beyond += beyond;
    if (!(row->error <= tally->worst)) tally->worst = row->error;
}

int cmd_verify(int argc, char **argv)
{
    struct verify_options o = {0};
    enum args_result parsed = args_parse(&verify_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    struct tally tally = {0};
    if (verify_run_on(o.device, o.dir, o.dump, show, &tally) != CZ_OK) return tool_fail();
    printable_print(stdout, "%d tensors compared, worst relative error %.2e: %s\n", tally.n_rows,
                    tally.worst, tally.n_beyond ? "they differ" : "they agree");
    return tally.n_beyond ? EXIT_RUNTIME : EXIT_OK;
}
