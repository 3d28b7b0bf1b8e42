/* czero tune: which configurations of a model fit a machine, fastest first. All of the search is in
 * engine/tune; this is its command line. */
#include "base/clock.h"
#include "base/printable.h"
#include "base/size.h"
#include "engine/engine.h"
#include "engine/machine/machine.h"
#include "engine/tune/tune.h"
#include "model/families.h"
#include "tools/czero/args.h"
#include "tools/czero/cmd/machine_args.h"
#include "tools/czero/commands.h"
#include "tools/czero/config_args.h"
#include "tools/czero/output.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include "tools/czero/tune/tune_presets.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tune_command {
    struct arg_list nvme_paths;
    const char *model, *nvme, *precision, *freeze, *lora, *out;
    struct machine_args machine;
    int64_t seq_len, world_size, micro_batch, batch, n_measured;
    bool measure, all, json;
};

/* When a search began, and when its progress was shown last. */
struct tune_wait {
    int64_t begin_ns, shown_ns;
};

#define FIELD(member) offsetof(struct tune_command, member)

static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset (default: a table of presets): ",
     .list = model_preset_examples},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T",
     "tokens per row (default: the model's context, at most 2048)", .min = 1},
    {"--gpu", ARG_STRING, FIELD(machine.gpu), "NAME",
     "each rank's GPU, by published figures: ", .list = machine_gpu_names},
    {"--gpu-memory", ARG_STRING, FIELD(machine.gpu_memory), "SIZE",
     "memory of each rank's GPU, such as 24GB (default: that of --gpu, or no GPU)"},
    {"--host-memory", ARG_STRING, FIELD(machine.host_memory), "SIZE", "host memory for all ranks",
     .required = true},
    {"--nvme", ARG_STRING, FIELD(nvme), "SIZE",
     "disk space for swap files of all ranks (default: none)"},
    {"--nvme-path", ARG_LIST, FIELD(nvme_paths), "DIR[=RATE]",
     "folder of the swap files (default: the profile's folder, or /tmp); given several times, they "
     "are striped over these disks, by their bytes per second where given, such as /mnt/a=3GB"},
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks, on one host (default: 1)",
     .min = 1},
    {"--profile", ARG_STRING, FIELD(machine.profile), "FILE|GPU",
     "predict times from this machine profile (see czero bench --profile)"},
    {"--precision", ARG_CHOICE, FIELD(precision), "fp32|bf16|fp16",
     "training precision (default: bf16)"},
    {"--micro-batch", ARG_INT, FIELD(micro_batch), "B",
     "use this micro-batch instead of searching for one", .min = 1},
    {"--batch", ARG_INT, FIELD(batch), "ROWS",
     "rows of an optimizer step over all ranks (default: about 32 per rank)", .min = 1},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "do not train parameters whose names match"},
    {"--lora", ARG_STRING, FIELD(lora), "KEY=VALUE,…",
     "train a low-rank adapter, the model frozen, as --lora of czero train", .alone = ""},
    {"-o", ARG_STRING, FIELD(out), "FILE", "write the best configuration as a ds_config.json"},
    {"--measure", ARG_FLAG, FIELD(measure), NULL,
     "benchmark the top candidates with a few training steps"},
    {"--measure-count", ARG_INT, FIELD(n_measured), "N",
     "number of candidates to benchmark (default: 3)", .min = 1},
    {"--all", ARG_FLAG, FIELD(all), NULL, "list all configurations, or all presets"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of the table"},
};

const struct arg_command tune_command = {
    .name = "czero tune",
    .summary = "Find the models or configurations that fit a machine, fastest first.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "Sizes: 24GB is 24·10^9 bytes, 24GiB is 24·2^30. Two per cent of GPU and host\n"
                "memory, and at least 32 MiB of host memory per rank, stay free. docs/memory.md\n"
                "explains the table.",
    .examples = "  czero tune --gpu-memory 24GB --host-memory 64GB\n"
                "  czero tune --model llama-7b --seq-len 2048 --gpu-memory 24GB \\\n"
                "             --host-memory 128GB -o ds_config.json\n"
                "  czero tune --model qwen3-4b --seq-len 1024 --host-memory 16GB \\\n"
                "             --lora rank=16,alpha=32 -o ds_config.json",
    .exits = NOTHING_FITS,
};

#define LINES_SHOWN  3
#define LINES_BESIDE 2 /* of an adapter, where the answer is one */

/* The answer first; `adapter` may be NULL. */
static cz_status show(const struct tune *t, const struct tune *adapter,
                      const struct tune_command *o)
{
    char *text, verdict[TUNE_VERDICT_NBYTES + 2];
    tune_verdict(t, adapter, "--lora " LORA_USUAL, verdict, TUNE_VERDICT_NBYTES);
    if (!o->json) {
        strcat(verdict, "\n");
        terminal_put_wrapped(stdout, verdict);
    }
    const bool adapts = adapter && tune_best(adapter) && !o->all && !o->json;
    cz_status st = o->json  ? tune_json(t, verdict, &text)
                   : adapts ? tune_table(adapter, LINES_BESIDE, &text)
                            : tune_table(t, o->all ? SIZE_MAX : LINES_SHOWN, &text);
    if (st != CZ_OK) return st;
    tool_put_report(text, o->json);
    return CZ_OK;
}

/* A new model for every measurement: an engine takes its own. */
static struct cz_model *open_model(const struct tune_command *o)
{
    struct cz_model *model = cz_model_open(o->model);
    int64_t tokens = model && o->seq_len == 0 ? plan_usual_tokens(model) : o->seq_len;
    if (model && cz_model_set_shape(model, tokens) == CZ_OK &&
        (!o->freeze || cz_model_freeze(model, o->freeze, NULL) == CZ_OK))
        return model;
    cz_model_destroy(model);
    return NULL;
}

/* To stderr, so that --json stays one object. */
static cz_status measure(const struct tune *t, const struct tune_command *o)
{
    enum { N_STEPS = 3 };
    for (size_t i = 0; i < tune_n_offers(t) && i < (size_t)o->n_measured; i++) {
        const struct tune_offer *offer = tune_offer(t, i);
        struct tune_measured m;
        struct cz_model *model;
        if (!offer->fits) break;
        if (!(model = open_model(o))) return cz_last_status();
        int64_t tokens_per_row = cz_model_t_max(model);
        cz_status st = tune_measure(t, offer, model, N_STEPS, &m);
        if (st == CZ_NOMEM) {
            fprintf(stderr, "measured %zu: does not fit here now\n", i + 1);
            continue;
        }
        if (st == CZ_UNSUPPORTED) { /* the list and the file are good all the same */
            printable_print(stderr, "not measured: %s\n", cz_last_error());
            return CZ_OK;
        }
        if (st != CZ_OK) return st;
        double tokens = offer->tokens_per_s * offer->seconds;
        if (isnan(tokens))
            tokens = (double)(offer->micro_batch * offer->accumulation * tokens_per_row);
        char second[48], speed[48], promised[48];
        printable_print(stderr, "measured %zu: %s s a step, %s tokens/s", i + 1,
                        size_number(m.seconds, 3, second, sizeof second),
                        size_number(tokens / m.seconds, 4, speed, sizeof speed));
        if (!isnan(offer->seconds))
            printable_print(stderr, "; predicted %s s (%+.0f %%)",
                            size_number(offer->seconds, 3, promised, sizeof promised),
                            100 * (offer->seconds / m.seconds - 1));
        fprintf(stderr, "; peak %.1f MiB, planned %.1f\n", (double)m.peak_nbytes / (1 << 20),
                (double)offer->need_nbytes[TUNE_HOST] / (1 << 20));
    }
    return CZ_OK;
}

/* The recipe decides whether a model with weights is fine-tuned or ruined, so a line names it. */
static void say_config(const struct tune *t, const struct tune_command *o, const char *path)
{
    const struct tune_recipe *r = tune_recipe(t);
    struct stat info;
    printable_print(
        stderr, "The best is in %s, with a recipe for %s: rate %g, %s\n", path, r->name, r->lr,
        r->total_steps != 0 ? "down to 0 at the end of the run" : "constant after the warm-up");
    if (!o->lora && stat(o->model, &info) != 0)
        tool_note(
            "czero tune: the weights of %s are random at first. For a recipe for fine-tuning, "
            "give --model the folder of trained ones.",
            o->model);
}

/* Exit code. */
static int report(const struct tune *t, const struct tune *adapter, const struct tune_command *o)
{
    const struct tune *fits = tune_best(t) ? t : adapter && tune_best(adapter) ? adapter : NULL;
    if (show(t, adapter, o) != CZ_OK) return tool_fail();
    if (!tune_best(t)) {
        const char *missing = tune_missing(t);
        if (fits) /* which the first line says */
            tool_note("czero tune: not all weights fit%s", missing + strcspn(missing, "."));
        else
            tool_note("czero tune: %s", missing);
    }
    if (!fits) return EXIT_MEMORY;
    if (o->out && tune_config_save(fits, tune_best(fits), o->out) != CZ_OK) return tool_fail();
    if (o->out) say_config(fits, o, o->out);
    if (o->measure && measure(fits, o) != CZ_OK) return tool_fail();
    return EXIT_OK;
}

/* "DIR" or "DIR=RATE"; a "=" before a "/" belongs to the folder. */
static cz_status read_disks(const struct tune_command *o, struct tune_options *out)
{
    static char dirs[CONFIG_NVME_PATHS_MAX][4096];
    if (o->nvme_paths.n > CONFIG_NVME_PATHS_MAX)
        return err_set(CZ_INVALID, 0, "--nvme-path: at most %d folders", CONFIG_NVME_PATHS_MAX);
    for (size_t i = 0; i < o->nvme_paths.n; i++) {
        size_t rate = 0;
        if (snprintf(dirs[i], sizeof dirs[i], "%s", o->nvme_paths.items[i]) >= (int)sizeof dirs[i])
            return err_set(CZ_INVALID, 0, "--nvme-path: the name is too long");
        char *equals = strrchr(dirs[i], '=');
        if (equals && strchr(equals, '/')) equals = NULL;
        if (equals) *equals = '\0';
        if (equals && size_parse_machine(equals + 1, &rate) != CZ_OK)
            return err_prefix("--nvme-path %s", dirs[i]);
        out->nvme_paths[i] = dirs[i];
        out->nvme_rates[i] = (double)rate;
    }
    out->n_nvme_paths = o->nvme_paths.n;
    return CZ_OK;
}

/* The profile is in `machine`, and the adapter in `config`: they have to stay. */
static cz_status read_options(const struct tune_command *o, struct machine_meant *machine,
                              struct ds_config **config, struct tune_options *out)
{
    TRY(machine_args_read(&o->machine, machine));
    machine_args_leave_room(machine);
    *out = (struct tune_options){.world_size = o->world_size,
                                 .gpu_nbytes = machine->gpu_nbytes,
                                 .host_nbytes = machine->host_nbytes,
                                 .profile = &machine->profile,
                                 .profile_path = o->machine.profile && !machine->profile.is_assumed
                                                     ? o->machine.profile
                                                     : NULL,
                                 .dtype = args_dtype(o->precision, DTYPE_BF16),
                                 .micro_batch = o->micro_batch,
                                 .batch = o->batch};
    if (o->nvme && size_parse_machine(o->nvme, &out->nvme_nbytes) != CZ_OK)
        return err_prefix("--nvme");
    if (o->lora) TRY(config_args_lora(o->lora, config, &out->lora));
    return read_disks(o, out);
}

/* Exit code. A config, a measurement and frozen parameters are of one model. */
static int list_presets(const struct tune_options *options, const struct tune_command *o)
{
    size_t n_fit;
    if (o->out || o->measure || o->freeze) {
        err_set(CZ_INVALID, 0, "%s needs --model",
                o->out       ? "-o"
                : o->measure ? "--measure"
                             : "--freeze");
        return tool_fail();
    }
    if (tune_presets_print(options, o->seq_len, o->all, o->json, &n_fit) != CZ_OK)
        return tool_fail();
    if (n_fit > 0) return EXIT_OK;
    fprintf(stderr, "czero tune: no preset fits\n");
    return EXIT_MEMORY;
}

/* Where not all weights fit, an adapter may: the answer to "8B on 24 GB". NULL: none can be made,
 * or the question is about an adapter or frozen parameters already. */
static struct tune *try_adapter(const struct tune_options *options, const struct tune_command *o)
{
    struct tune_options adapts = *options;
    struct ds_config *config = NULL;
    struct cz_model *model = NULL;
    struct tune *t = NULL;
    if (options->lora || o->freeze) return NULL;
    cz_status st = config_args_lora(LORA_USUAL, &config, &adapts.lora);
    if (st == CZ_OK && !(model = open_model(o))) st = cz_last_status();
    if (st == CZ_OK) st = tune_create(&adapts, model, &t);
    if (st != CZ_OK) err_clear();
    cz_model_destroy(model);
    config_free(config);
    return t;
}

/* A line on a terminal that changes; nothing where the search is quick. */
static void tell_progress(void *user, size_t n_plans, size_t n_tried, size_t n_all, double best)
{
    struct tune_wait *wait = user;
    const int64_t now = clock_now_ns();
    char number[48], best_text[48];
    if (now - wait->begin_ns < 1000000000 || now - wait->shown_ns < 100000000) return;
    wait->shown_ns = now;
    fputs("\r\033[K", stderr);
    printable_print(stderr, "%s plans, %zu of %zu combinations, best so far %s",
                    size_number((double)n_plans, 9, number, sizeof number), n_tried, n_all,
                    isnan(best) ? "none" : size_number(best, 4, best_text, sizeof best_text));
    if (!isnan(best)) fputs(" tokens/s", stderr);
}

static int tune_model(const struct tune_options *options, struct tune_command *o)
{
    struct tune_options told = *options;
    struct tune_wait wait = {.begin_ns = clock_now_ns()};
    struct tune *t = NULL, *adapter = NULL;
    struct cz_model *model = open_model(o);
    if (!model) return tool_fail();
    if (o->seq_len == 0)
        tool_note("--seq-len: %lld tokens a row, the model's context but at most 2048",
                  (long long)cz_model_t_max(model));
    if (isatty(STDERR_FILENO)) told.progress = tell_progress;
    told.progress_user = &wait;
    cz_status st = tune_create(&told, model, &t);
    cz_model_destroy(model);
    if (wait.shown_ns > 0) fputs("\r\033[K", stderr);
    if (st != CZ_OK) return tool_fail();
    if (!tune_best(t)) adapter = try_adapter(options, o);
    int code = report(t, adapter, o);
    tune_destroy(adapter);
    tune_destroy(t);
    return code;
}

int cmd_tune(int argc, char **argv)
{
    struct tune_command o = {.world_size = 1, .n_measured = 3};
    struct tune_options options;
    struct machine_meant machine;
    struct ds_config *config = NULL; /* of --lora */
    enum args_result parsed = args_parse(&tune_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (o.measure) { /* with swap files, which go before the program does */
        tool_hold_signals(SIGTERM);
        tool_tidy_at_signals(engine_remove_swap_files, 0, NULL);
    }
    if (output_check_file("-o", o.out, OUTPUT_CONFIG, NULL) != CZ_OK) return tool_fail();
    int code = read_options(&o, &machine, &config, &options) != CZ_OK ? tool_fail()
               : o.model                                              ? tune_model(&options, &o)
                                                                      : list_presets(&options, &o);
    config_free(config);
    return code;
}
