/* czero plan: the memory of a run, before it starts. No weights are read and nothing is allocated
 * for them: the plan is what the engine would allocate by. */
#include "base/printable.h"
#include "engine/plan/plan.h"
#include "engine/tune/machine.h"
#include "model/families.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/config_args.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/freeze.h"

#include <stdio.h>
#include <stdlib.h>

struct plan_options {
    const char *config, *model, *device, *freeze, *profile;
    struct config_args values;
    int64_t seq_len, world_size;
    bool json;
};

#define FIELD(member) offsetof(struct plan_options, member)
#define VALUE(member) offsetof(struct plan_options, values.member)

static const struct arg_spec specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE", "DeepSpeed config", .required = true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset: ", .list = model_preset_examples, .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T", "tokens per row", .min = 1, .required = true},
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks (default: 1)", .min = 1},
    {"--device", ARG_STRING, FIELD(device), "cpu|cuda|cuda:N",
     "device to plan for (default: cpu); cuda needs no GPU"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "do not train parameters whose names match"},
    {"--profile", ARG_STRING, FIELD(profile), "FILE",
     "predict times from this machine profile (see czero bench --profile)"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of the table"},
    CONFIG_ARGS_VALUES(VALUE),
};

const struct arg_command plan_command = {
    .name = "czero plan",
    .summary = "Show the memory that a training run needs, without running it.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "Sizes are those of one rank. The engine allocates exactly these rows, once.\n"
                "Phases show what each part of a step uses and moves; docs/memory.md explains the\n"
                "rows.\n"
                "The exit code is 0 even if the run does not fit here: the table says so.",
    .examples = "  czero plan --config ds_config.json --model gpt2-xl --seq-len 1024",
};

static cz_status show(const struct cz_plan *plan, bool json)
{
    char *text;
    cz_status st = json ? cz_plan_json(plan, &text) : cz_plan_table(plan, &text);
    if (st != CZ_OK) return st;
    tool_put_report(text, json);
    return CZ_OK;
}

static cz_status plan_model(const struct plan_options *o, struct cz_model *model)
{
    struct config_wanted wanted;
    TRY(config_args_wanted(&o->values, &wanted));
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_path = o->config,
                                              .device = o->device,
                                              .compat = o->values.compat,
                                              .strict = o->values.strict,
                                              .auto_values = o->values.autos.items,
                                              .set_values = o->values.sets.items,
                                              .option_values = wanted.items};
    struct plan_request request = {.world_size = o->world_size};
    struct machine_profile profile;
    struct cz_plan *plan;
    if (o->profile && machine_read(o->profile, &profile) != CZ_OK) return cz_last_status();
    if (o->profile) request.profile = &profile;
    if (cz_model_set_shape(model, o->seq_len) != CZ_OK) return cz_last_status();
    if (freeze_matching(model, o->freeze) != CZ_OK) return cz_last_status();
    if (plan_create_ex(&options, &request, model, &plan) != CZ_OK) return cz_last_status();
    cz_status st = show(plan, o->json);
    cz_plan_destroy(plan);
    return st;
}

int cmd_plan(int argc, char **argv)
{
    struct plan_options o = {.world_size = 1, .values = config_args_none()};
    enum args_result parsed = args_parse(&plan_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    struct cz_model *model = cz_model_open(o.model);
    if (!model) return tool_fail();
    cz_status st = plan_model(&o, model);
    cz_model_destroy(model);
    return st == CZ_OK ? EXIT_OK : tool_fail();
}
