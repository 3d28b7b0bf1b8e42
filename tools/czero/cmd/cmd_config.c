/* czero config show|check|diff|reference: what a ds_config.json resolves to, without a model or a
 * device. */
#include "base/printable.h"
#include "base/text/nearest.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/config_args.h"
#include "tools/czero/tool.h"

#include "engine/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config_words {
    const char *file, *other; /* other: diff's second */
    struct config_args values;
    int64_t world_size, steps;
    bool explain, exit_code, quiet, json;
    bool trains; /* fill in what `czero train` fills in */
};

#define FIELD(name) offsetof(struct config_words, name)

#define VALUE(name) offsetof(struct config_words, values.name)

#define SHARED_OPTIONS                                                                             \
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks (default: 1)", .min = 1},   \
        {"--auto", ARG_LIST, VALUE(autos), "NAME=VALUE",                                           \
         "value of a key that is \"auto\"; NAME is its path, or hidden_size"},                     \
        {"--set", ARG_LIST, VALUE(sets), "path=value", "override any key"},                        \
        {"--strict", ARG_FLAG, VALUE(strict), NULL,                                                \
         "treat unknown keys as errors, in all sections"},                                         \
        {"--compat", ARG_CHOICE, VALUE(compat), "0.19|0.16",                                       \
         "use the defaults of this DeepSpeed version (default: 0.19)"},                            \
    {                                                                                              \
        "--quiet", ARG_FLAG, FIELD(quiet), NULL, "print no notes to stderr"                        \
    }

static const struct arg_spec show_specs[] = {
    {"FILE", ARG_STRING, FIELD(file), "FILE", "config file", .required = true},
    {"--explain", ARG_FLAG, FIELD(explain), NULL,
     "print one line per key, with the source of its value and its meaning"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print JSON, as without this option"},
    {"--filled", ARG_FLAG, FIELD(trains), NULL,
     "fill in all that czero train does (default: only if \"auto\" cannot be read)"},
    {"--steps", ARG_INT, FIELD(steps), "N", "--filled: steps of the run", .min = 1},
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks (default: 1)", .min = 1},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print no notes to stderr"},
    CONFIG_ARGS_VALUES(VALUE),
};

static const struct arg_spec check_specs[] = {
    {"FILE", ARG_STRING, FIELD(file), "FILE", "config file", .required = true},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object, with errors and notes"},
    {"--world-size", ARG_INT, FIELD(world_size), "N", "number of ranks (default: 1)", .min = 1},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print no notes to stderr"},
    CONFIG_ARGS_VALUES(VALUE),
};

static const struct arg_spec diff_specs[] = {
    {"A", ARG_STRING, FIELD(file), "FILE", "first config", .required = true},
    {"B", ARG_STRING, FIELD(other), "FILE", "second config", .required = true},
    {"--exit-code", ARG_FLAG, FIELD(exit_code), NULL, "exit with 1 if they differ"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of lines"},
    SHARED_OPTIONS,
};

static const struct arg_command actions[] = {
    {"czero config show", "Print the resolved config as JSON.", show_specs,
     CZ_ARRAY_LEN(show_specs), .examples = "  czero config show ds_config.json --explain"},
    {"czero config check", "Check whether czero can train with a config.", check_specs,
     CZ_ARRAY_LEN(check_specs), .examples = "  czero config check ds_config.json --world-size 8"},
    {"czero config diff", "Compare two resolved configs.", diff_specs, CZ_ARRAY_LEN(diff_specs),
     .examples = "  czero config diff old.json new.json --exit-code"},
    {"czero config reference", "Print all config keys: default, range, effect in czero.", NULL, 0,
     .examples = "  czero config reference"},
};

const struct arg_command config_command = {
    .name = "czero config",
    .summary = "Show, check and compare DeepSpeed configs.",
    .actions = actions,
    .n_actions = CZ_ARRAY_LEN(actions),
    .epilogue = "Every action accepts --help.",
    .examples = "  czero config check ds_config.json\n"
                "  czero config show ds_config.json --explain",
};

/* A config that cannot be used is a mistake of the caller's, whatever is wrong with the file. A
 * disk that fails is none. */
static int fail(void)
{
    if (cz_last_status() == CZ_IO) return tool_fail();
    return tool_fail() == EXIT_MEMORY ? EXIT_MEMORY : EXIT_USAGE;
}

/* What the engine refuses is printed by `check` as its error; `show` prints it as a note. */
static bool is_refusal(const struct config_note *note)
{
    return note->kind == CONFIG_NOTE_UNSUPPORTED || note->kind == CONFIG_NOTE_ENGINE_REJECTS;
}

static void print_notes(const struct config_words *o, const struct ds_config *config, bool refusals)
{
    for (size_t i = 0; !o->quiet && i < config_n_notes(config); i++)
        if (refusals || !is_refusal(config_note(config, i)))
            printable_print(stderr, "czero: %s\n", config_note(config, i)->text);
}

static cz_status load_as(const struct config_words *o, const char *file, bool trains,
                         struct ds_config **out)
{
    struct config_wanted wanted;
    TRY(config_args_wanted(&o->values, &wanted));
    struct config_options options = config_args_options(&o->values, &wanted);
    options.world_size = o->world_size;
    options.trainer = trains;
    options.strict_autos = o->trains;
    options.total_steps = o->steps > 0 ? o->steps : trains ? CONFIG_ANY_STEPS : 0;
    return config_load(file, &options, out);
}

/* The files as DeepSpeed reads them. If an "auto" keeps one from being read, all of them have the
 * values that czero train fills in: only then can they be compared. */
static cz_status load(const struct config_words *o, const char *const *files, size_t n,
                      struct ds_config **out)
{
    cz_status st = CZ_INVALID;
    for (int trains = o->trains; trains <= 1 && st == CZ_INVALID; trains++) {
        err_clear();
        st = CZ_OK;
        for (size_t i = 0; i < n && st == CZ_OK; i++)
            st = load_as(o, files[i], trains != 0, &out[i]);
        for (size_t i = 0; i < n && st != CZ_OK; i++) {
            config_free(out[i]);
            out[i] = NULL;
        }
    }
    return st;
}

static int put_text(cz_status st, char *text)
{
    if (st != CZ_OK || !text) return fail();
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

/* A config that cannot train is shown too: seeing why is the purpose. */
static int show(const struct config_words *o)
{
    struct ds_config *config = NULL;
    char *text = NULL;
    if (o->json && o->explain) {
        tool_complain("czero config show", "--explain prints lines, --json JSON: give one");
        return EXIT_USAGE;
    }
    if (load(o, &o->file, 1, &config) != CZ_OK) return fail();
    print_notes(o, config, true);
    cz_status st = o->explain ? config_explain(config, &text) : config_json(config, &text);
    int code = put_text(st, text);
    config_free(config);
    return code;
}

/* The lines of the last error. */
static void put_errors(struct json_writer *w, bool failed)
{
    json_write_key(w, "errors");
    json_begin_array(w);
    for (const char *text = failed ? cz_last_error() : ""; *text;) {
        const size_t n = strcspn(text, "\n");
        json_write_string_n(w, text, n);
        text += n + (text[n] == '\n');
    }
    json_end_array(w);
}

/* config: NULL if the file could not be resolved; then there are errors and nothing else. */
static int check_json(const char *file, const struct ds_config *config, bool failed)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "file", file);
    json_put_bool(&w, "can_train", !failed);
    put_errors(&w, failed);
    json_write_key(&w, "notes");
    json_begin_array(&w);
    for (size_t i = 0; config && i < config_n_notes(config); i++)
        if (!is_refusal(config_note(config, i)))
            json_write_string(&w, config_note(config, i)->text);
    json_end_array(&w);
    if (config) {
        json_put_int(&w, "world_size", config->world_size);
        json_put_int(&w, "train_batch_size", config->train_batch_size);
        json_put_int(&w, "train_micro_batch_size_per_gpu", config->train_micro_batch_size_per_gpu);
        json_put_int(&w, "gradient_accumulation_steps", config->gradient_accumulation_steps);
        json_put_string(&w, "dtype", dtype_name(config->model_dtype));
        json_put_int(&w, "zero_stage", config->zero.stage);
        json_put_string(&w, "optimizer", config->optimizer.type);
        json_put_string(&w, "scheduler", config->scheduler.type);
    }
    json_end_object(&w);
    return tool_put_json(&w);
}

/* The derived numbers are shown: they are what DeepSpeed would train with. */
static void put_numbers(const char *file, const struct ds_config *config)
{
    printable_print(
        stdout,
        "%s: can train: batch %lld = %lld x %lld accumulated x %lld rank%s, %s, ZeRO stage %d, "
        "optimizer %s, schedule %s\n",
        file, (long long)config->train_batch_size,
        (long long)config->train_micro_batch_size_per_gpu,
        (long long)config->gradient_accumulation_steps, (long long)config->world_size,
        config->world_size == 1 ? "" : "s", dtype_name(config->model_dtype), config->zero.stage,
        config->optimizer.type ? config->optimizer.type : "none",
        config->scheduler.type ? config->scheduler.type : "none");
}

static int check(const struct config_words *o)
{
    struct ds_config *config = NULL;
    cz_status st = load(o, &o->file, 1, &config);
    if (st == CZ_OK && !o->json) print_notes(o, config, false);
    if (st == CZ_OK) st = config_check(config);
    if (st == CZ_OK && !o->json) put_numbers(o->file, config);
    int code = st == CZ_OK ? EXIT_OK : fail();
    if (o->json && check_json(o->file, config, st != CZ_OK) != EXIT_OK) code = EXIT_MEMORY;
    config_free(config);
    return code;
}

/* Both are resolved first: two spellings of the same config are equal. */
static int diff(const struct config_words *o)
{
    const char *const files[] = {o->file, o->other};
    struct ds_config *both[] = {NULL, NULL};
    char *text = NULL;
    size_t n = 0;
    int code = EXIT_USAGE;
    if (load(o, files, 2, both) != CZ_OK) {
        fail();
    } else {
        cz_status st = (o->json ? config_diff_json : config_diff)(both[0], both[1], &text, &n);
        code = put_text(st, text);
        if (code == EXIT_OK && o->exit_code && n > 0) code = EXIT_RUNTIME;
    }
    config_free(both[0]);
    config_free(both[1]);
    return code;
}

/* `--auto a=1 b=2` reads as `--auto a=1 --auto b=2`; likewise --set. Returns the new argc. */
static int repeat_flags(int argc, char **argv, char **out)
{
    char *flag = NULL;
    int n = 0;
    for (int i = 0; i < argc; i++) {
        bool is_flag = strcmp(argv[i], "--auto") == 0 || strcmp(argv[i], "--set") == 0;
        bool another = flag && argv[i][0] != '-' && strchr(argv[i], '=') && !is_flag;
        if (another && strcmp(argv[i - 1], flag) != 0) out[n++] = flag;
        out[n++] = argv[i];
        if (!another) flag = is_flag ? argv[i] : NULL;
    }
    return n;
}

static int run(size_t idx, int argc, char **argv)
{
    static int (*const runs[])(const struct config_words *) = {show, check, diff};
    struct config_words *o = malloc(sizeof *o);
    char **words = malloc(2 * (size_t)argc * sizeof *words);
    int code = EXIT_USAGE;
    if (!o || !words) {
        err_set(CZ_NOMEM, 0, "no memory");
        code = fail();
    } else {
        *o = (struct config_words){.values = config_args_none(), .trains = runs[idx] == check};
        enum args_result parsed =
            args_parse(&actions[idx], repeat_flags(argc, argv, words), words, o);
        if (parsed == ARGS_HELP) code = EXIT_OK;
        if (parsed == ARGS_OK) code = runs[idx](o);
    }
    free(words);
    free(o);
    return code;
}

static int reference(int argc, char **argv)
{
    enum args_result parsed = args_parse(&actions[3], argc, argv, NULL);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    char *text = NULL;
    cz_status st = config_reference(&text); /* made from the tables that also parse the config */
    return put_text(st, text);
}

int cmd_config(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] != '-') {
        struct nearest search = nearest_begin(argv[1]);
        for (size_t i = 0; i < CZ_ARRAY_LEN(actions); i++) {
            const char *name = strrchr(actions[i].name, ' ') + 1;
            if (strcmp(argv[1], name) == 0)
                return i == 3 ? reference(argc - 1, argv + 1) : run(i, argc - 1, argv + 1);
            nearest_consider(&search, name);
        }
        if (search.best)
            tool_complain("czero config", "unknown action \"%s\"; did you mean %s?", argv[1],
                          search.best);
        else
            tool_complain("czero config", "unknown action \"%s\": show, check, diff or reference",
                          argv[1]);
        return EXIT_USAGE;
    }
    enum args_result parsed = args_parse(&config_command, argc, argv, NULL);
    if (parsed == ARGS_HELP) return EXIT_OK;
    if (parsed == ARGS_OK)
        tool_complain("czero config", "ACTION is missing (see czero config --help)");
    return EXIT_USAGE;
}
