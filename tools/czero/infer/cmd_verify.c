/* czero verify: compares a model's logits, loss and gradients with recorded ones. */
#include "base/printable.h"
#include "base/size.h"
#include "engine/infer/verify.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"

#include <math.h>
#include <stdio.h>

#define WORST_ALLOWED 1e-4

struct verify_options {
    const char *dir, *dump, *device;
    bool json;
};

static const struct arg_spec specs[] = {
    {"DIR", ARG_STRING, offsetof(struct verify_options, dir), NULL,
     "folder with config.json, model.safetensors and oracle.safetensors", 0, true},
    {"--dump", ARG_STRING, offsetof(struct verify_options, dump), "FILE",
     "write czero's values in fp32 under the same names", 0, false},
    {"--device", ARG_STRING, offsetof(struct verify_options, device), "cpu|cuda|cuda:N",
     "device to run on (default: cpu)", 0, false},
    {"--json", ARG_FLAG, offsetof(struct verify_options, json), NULL,
     "print one JSON object instead of lines"},
};

const struct arg_command verify_command = {
    .name = "czero verify",
    .summary = "Compare a model's logits, loss and gradients with recorded ones.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "oracle.safetensors contains one batch (in.input_ids, in.labels in Hugging Face's\n"
                "form, in.attention_mask, in.token_type_ids, in.position_ids) and its results\n"
                "(out.logits, out.loss, grad.PARAMETER). Each line shows the largest difference,\n"
                "relative to the tensor's largest value (at least 1e-6). A gradient below\n"
                "4e-6 of the largest one, in both, is zero in exact arithmetic, as that of\n"
                "a key's bias is: the line says so, and the error is 0.",
    .examples = "  czero verify oracle/",
    .exits = "0 they agree, 1 a difference exceeds 1e-4, or the run failed.",
};

struct tally {
    double worst;
    int n_rows, n_beyond;
    struct json_writer *json; /* NULL: lines, as they come */
};

static void show_line(const struct verify_row *row, bool beyond)
{
    printable_print(stdout, "%-52s %9.2e", row->name, row->error);
    if (row->is_zero) printf("  zero: rounding noise on both sides");
    if (beyond)
        printf("  beyond %.0e, worst at element %lld", WORST_ALLOWED, (long long)row->worst_idx);
    printf("\n");
}

static void show_json(struct json_writer *w, const struct verify_row *row, bool beyond)
{
    json_begin_object(w);
    json_put_string(w, "name", row->name);
    json_put_int(w, "elements", row->numel);
    json_put_figure(w, "error", row->error);
    json_put_int(w, "worst_element", row->worst_idx);
    json_put_bool(w, "agrees", !beyond);
    json_put_bool(w, "is_zero", row->is_zero);
    json_end_object(w);
}

static void show(void *user, const struct verify_row *row)
{
    struct tally *tally = user;
    const bool beyond = !(row->error <= WORST_ALLOWED); /* NaN is beyond */
    if (tally->json)
        show_json(tally->json, row, beyond);
    else
        show_line(row, beyond);
    tally->n_rows++;
    tally->n_beyond += beyond;
    /* NaN is the worst, and stays */
    if (!isnan(tally->worst) && !(row->error <= tally->worst)) tally->worst = row->error;
}

static int conclude(const struct tally *tally)
{
    const int code = tally->n_beyond ? EXIT_RUNTIME : EXIT_OK;
    if (!tally->json) {
        printable_print(stdout, "%d tensor%s compared, worst relative error %.2e: %s\n",
                        tally->n_rows, plural((uint64_t)tally->n_rows), tally->worst,
                        tally->n_beyond ? "they differ" : "they agree");
        return code;
    }
    json_end_array(tally->json);
    json_put_figure(tally->json, "worst_error", tally->worst);
    json_put_figure(tally->json, "allowed_error", WORST_ALLOWED);
    json_put_bool(tally->json, "agrees", tally->n_beyond == 0);
    json_end_object(tally->json);
    return tool_put_json(tally->json) == EXIT_OK ? code : EXIT_MEMORY;
}

int cmd_verify(int argc, char **argv)
{
    struct verify_options o = {0};
    struct json_writer w;
    enum args_result parsed = args_parse(&verify_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    struct tally tally = {.json = o.json ? &w : NULL};
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "tensors");
    json_begin_array(&w);
    const cz_status st = verify_run_on(o.device, o.dir, o.dump, show, &tally);
    const int code = st == CZ_OK ? conclude(&tally) : tool_fail();
    json_writer_free(&w);
    return code;
}
