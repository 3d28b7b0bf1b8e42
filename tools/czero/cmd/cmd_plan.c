/* czero plan: the memory of a run, before it starts. No weights are read and nothing is allocated
 * for them: the plan is what the engine would allocate by. */
#include "engine/machine/machine.h"
#include "engine/plan/plan.h"
#include "model/families.h"
#include "tools/czero/args.h"
#include "tools/czero/cmd/machine_args.h"
#include "tools/czero/commands.h"
#include "tools/czero/config_args.h"
#include "tools/czero/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan_options {
    const char *config, *model, *device, *freeze;
    struct machine_args machine;
    struct config_args values;
    int64_t seq_len, world_size;
    bool json;
};

#define FIELD(member) offsetof(struct plan_options, member)
#define VALUE(member) offsetof(struct plan_options, values.member)

static const struct arg_spec specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE",
     "DeepSpeed config (default: bf16, AdamW, ZeRO stage 0, micro-batch 1)"},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset: ", .list = model_preset_examples, .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T",
     "tokens per row (default: the model's context, at most 2048)", .min = 1},
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks (default: 1)", .min = 1},
    {"--device", ARG_STRING, FIELD(device), "cpu|cuda|cuda:N",
     "device to plan for (default: cpu, or cuda with --gpu or --gpu-memory); needs no GPU"},
    {"--gpu", ARG_STRING, FIELD(machine.gpu), "NAME",
     "plan for this GPU, by published figures: ", .list = machine_gpu_names},
    {"--gpu-memory", ARG_STRING, FIELD(machine.gpu_memory), "SIZE",
     "plan for GPUs of this size, such as 24GB (default: that of --gpu, or the GPU here)"},
    {"--host-memory", ARG_STRING, FIELD(machine.host_memory), "SIZE",
     "plan for a host with so much memory, for all ranks (default: this host)"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "do not train parameters whose names match"},
    {"--profile", ARG_STRING, FIELD(machine.profile), "FILE|GPU",
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
                "--verbose adds small rows, phases and orders of a step, and what layers save;\n"
                "docs/memory.md explains them.\n"
                "The exit code is 0 even if the run does not fit: the table says so.",
    .examples = "  czero plan --model llama-7b --gpu rtx4090 --host-memory 128GB\n"
                "  czero plan --config ds_config.json --model gpt2-xl --seq-len 1024",
};

static cz_status show(const struct cz_plan *plan, bool json)
{
    char *text;
    cz_status st = json ? cz_plan_json(plan, &text) : plan_table(plan, args_verbosity() > 0, &text);
    if (st != CZ_OK) return st;
    tool_put_report(text, json);
    return CZ_OK;
}

/* Defaults that change the answer are reported. */
static int64_t tokens_per_row(const struct plan_options *o, const struct cz_model *model)
{
    int64_t tokens = o->seq_len > 0 ? o->seq_len : plan_usual_tokens(model);
    if (!o->config)
        tool_note("No --config: bf16, AdamW, ZeRO stage 0, micro-batch 1 where no option says "
                  "otherwise; czero tune searches for what suits a machine.");
    if (o->seq_len == 0)
        tool_note("No --seq-len: %lld tokens a row, the model's context but at most 2048.",
                  (long long)tokens);
    return tokens;
}

static cz_status plan_model(const struct plan_options *o, struct cz_model *model)
{
    struct config_args values = o->values;
    struct config_wanted wanted;
    struct machine_meant machine;
    struct cz_plan *plan;
    if (!o->config && values.micro_batch == 0) values.micro_batch = 1;
    if (!o->config && !values.precision) values.precision = "bf16";
    TRY(config_args_wanted(&values, &wanted));
    TRY(machine_args_read(&o->machine, &machine));
    bool cpu = o->device && strcmp(o->device, "cpu") == 0;
    if (cpu && (o->machine.gpu || o->machine.gpu_memory))
        return err_set(CZ_INVALID, 0, "--device cpu: a plan for the CPU has no GPU");
    const char *device = !o->device && machine.gpu_nbytes > 0 ? "cuda" : o->device;
    const struct cz_engine_options options = {.size = sizeof options,
                                              .trains_batches = true,
                                              .config_path = o->config,
                                              .config_json = o->config ? NULL : "{}",
                                              .device = device,
                                              .compat = values.compat,
                                              .strict = values.strict && o->config,
                                              .auto_values = values.autos.items,
                                              .set_values = values.sets.items,
                                              .option_values = wanted.items};
    const struct plan_request request = {.world_size = o->world_size,
                                         .profile = machine.has_profile ? &machine.profile : NULL,
                                         .gpu_nbytes = cpu ? 0 : machine.gpu_nbytes,
                                         .host_nbytes = machine.host_nbytes,
                                         .both_orders = true};
    TRY(cz_model_set_shape(model, tokens_per_row(o, model)));
    if (o->freeze) TRY(cz_model_freeze(model, o->freeze, NULL));
    TRY(plan_create_ex(&options, &request, model, &plan));
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
