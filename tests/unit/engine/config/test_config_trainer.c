/* Claims: what a config leaves to a trainer is filled in as Hugging Face's Trainer fills it;
 * options fill what the file leaves out and contradict nothing; values that find no key are refused
 * with the nearest one; a file for DeepSpeed alone stays as it is.
 * tests/interop/training/trainer_oracle.py asks transformers itself. */
#include "tests/unit/engine/config/config_support.h"

#include <stdlib.h>

static struct config_options trainer(void)
{
    struct config_options options = config_options_default();
    options.trainer = options.strict_autos = true;
    options.hidden_size = 64;
    options.total_steps = 600;
    return options;
}

static void ck_value(const struct ds_config *config, const char *path, const char *value)
{
    ck_assert_msg(strcmp(config_value(config, path), value) == 0, "%s is %s, not %s", path,
                  config_value(config, path), value);
}

START_TEST(an_absent_optimizer_is_trainers_adamw)
{
    struct config_options options = trainer();
    struct ds_config *config = config_of("{\"train_batch_size\": 4}", &options);
    ck_ok(config_check(config));
    ck_assert(config->optimizer_added && config->optimizer.usable && config->scheduler.usable);
    ck_value(config, "optimizer.type", "\"adamw\"");
    ck_value(config, "optimizer.params.lr", "5e-05");
    ck_value(config, "optimizer.params.betas", "[0.9, 0.999]");
    ck_value(config, "optimizer.params.eps", "1e-08");
    ck_value(config, "optimizer.params.weight_decay", "0.0");
    ck_value(config, "scheduler.type", "\"linear\"");
    ck_value(config, "scheduler.params.warmup_num_steps", "0");
    ck_value(config, "scheduler.params.total_num_steps", "600");
    const char *line = config_has_note(config, CONFIG_NOTE_FILLED, "optimizer AdamW (lr 5e-05");
    ck_assert(line && strstr(line, "scheduler linear (warmup_num_steps 0, total_num_steps 600)"));
    config_free(config);
    options.strict = true;
    config = config_of("{\"train_batch_size\": 4}", &options);
    ck_assert(!config->optimizer_added && !config->optimizer.type && !config->scheduler.type);
    config_free(config);
    config = config_of("{\"train_batch_size\": 4}", NULL); /* DeepSpeed's parser */
    ck_assert(!config->optimizer.type);
    config_free(config);
}
END_TEST

/* Of transformers' schedules this one alone has no parameters. */
START_TEST(an_option_chooses_a_schedule_without_parameters)
{
    static const char *const wanted[] = {"scheduler.type=constant"};
    struct config_options options = trainer();
    options.wanted = wanted;
    options.n_wanted = CZ_ARRAY_LEN(wanted);
    struct ds_config *config = config_of("{\"train_batch_size\": 4}", &options);
    ck_ok(config_check(config));
    ck_value(config, "scheduler.type", "\"constant\"");
    ck_value(config, "scheduler.params", "{}");
    config_free(config);
}
END_TEST

START_TEST(deepspeeds_own_configs_stay_as_they_are)
{
    struct config_options options = trainer();
    struct ds_config *config = config_of(
        "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}}",
        &options);
    ck_assert(!config->scheduler.type && !config->optimizer_added);
    ck_assert_ptr_null(config_has_note(config, CONFIG_NOTE_FILLED, ""));
    config_free(config);
}
END_TEST

static const char autos[] =
    "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\",\n"
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\",\n"
    "\"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"},\n"
    "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\",\n"
    "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": "
    "\"auto\"},\n"
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\",\n"
    "\"eps\": \"auto\", \"weight_decay\": \"auto\"}},\n"
    "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\",\n"
    "\"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}}}";

START_TEST(every_auto_is_filled)
{
    static const char *const filled[][2] = {
        {"train_batch_size", "16"},
        {"train_micro_batch_size_per_gpu", "8"},
        {"gradient_accumulation_steps", "1"},
        {"gradient_clipping", "1.0"},
        {"fp16.enabled", "false"},
        {"bf16.enabled", "false"},
        {"zero_optimization.reduce_bucket_size", "4096"},
        {"zero_optimization.stage3_prefetch_bucket_size", "3686"},
        {"zero_optimization.stage3_param_persistence_threshold", "640"},
        {"optimizer.params.lr", "5e-05"},
        {"optimizer.params.betas", "[0.9, 0.999]"},
        {"optimizer.params.eps", "1e-08"},
        {"optimizer.params.weight_decay", "0.0"},
        {"scheduler.params.warmup_min_lr", "0"},
        {"scheduler.params.warmup_max_lr", "5e-05"},
        {"scheduler.params.warmup_num_steps", "1"},
        {"scheduler.params.total_num_steps", "600"}};
    struct config_options options = trainer();
    options.world_size = 2;
    struct ds_config *config = config_of(autos, &options);
    ck_ok(config_check(config));
    const char *line = config_has_note(config, CONFIG_NOTE_FILLED, "");
    ck_assert_ptr_nonnull(line);
    for (size_t i = 0; i < CZ_ARRAY_LEN(filled); i++) {
        char part[128];
        ck_value(config, filled[i][0], filled[i][1]);
        snprintf(part, sizeof part, "%s %s", filled[i][0], filled[i][1]);
        ck_assert_msg(strstr(line, part), "%s: not in %s", part, line);
    }
    config_free(config);
}
END_TEST

START_TEST(options_fill_autos_and_gaps)
{
    static const char *const wanted[] = {"optimizer.params.lr=3e-4",
                                         "optimizer.params.betas=0.9,0.95",
                                         "train_micro_batch_size_per_gpu=4",
                                         "warmup_ratio=0.1",
                                         "fp16.enabled=false",
                                         "bf16.enabled=true"};
    struct config_options options = trainer();
    options.wanted = wanted;
    options.n_wanted = CZ_ARRAY_LEN(wanted);
    struct ds_config *config = config_of(autos, &options);
    ck_value(config, "optimizer.params.lr", "0.0003");
    ck_value(config, "scheduler.params.warmup_max_lr", "0.0003");
    ck_value(config, "optimizer.params.betas", "[0.9, 0.95]");
    ck_value(config, "scheduler.params.warmup_num_steps", "60");
    ck_value(config, "train_batch_size", "4");
    ck_assert_int_eq(config->model_dtype, DTYPE_BF16);
    config_free(config);
    /* Nothing in the file: sections are made; a precision that is off makes none. */
    static const char *const more[] = {"optimizer.type=Lion", "optimizer.params.lr=1e-4",
                                       "scheduler.type=cosine", "warmup_ratio=0.1001",
                                       "fp16.enabled=false"};
    options.wanted = more;
    options.n_wanted = CZ_ARRAY_LEN(more);
    config = config_of("{\"train_batch_size\": 4}", &options);
    ck_ok(config_check(config));
    ck_assert_str_eq(config->optimizer.type, "lion");
    ck_value(config, "optimizer.params.eps", "absent"); /* Lion has none */
    ck_value(config, "optimizer.params.weight_decay", "0.0");
    ck_value(config, "scheduler.type", "\"cosine\"");
    ck_value(config, "scheduler.params.warmup_num_steps", "61"); /* rounded up */
    config_free(config);
    /* A schedule is added to DeepSpeed's own config when an option asks for it. */
    options.n_wanted = 4;
    options.wanted = more + 2;
    options.n_wanted = 1;
    config = config_of("{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\"}}", &options);
    ck_assert_str_eq(config->scheduler.type, "cosine");
    config_free(config);
}
END_TEST

START_TEST(options_that_disagree_with_the_file_are_refused)
{
    static const struct {
        const char *text, *option, *sentence;
    } cases[] = {
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1}}}",
         "optimizer.params.lr=2",
         "f.json:1:72: optimizer.params.lr: the config says 1, and --lr (optimizer.params.lr) asks "
         "for 2"},
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Adam\"}}", "optimizer.type=SGD",
         "--optimizer"},
        {"{\"train_batch_size\": 4, \"bf16\": {\"enabled\": true}}", "bf16.enabled=false",
         "--precision"},
        {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupLR\"}}",
         "scheduler.type=linear", "--lr-scheduler"},
        {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
         "{\"warmup_max_lr\": 0.1}}}",
         "optimizer.params.lr=0.2", "warmup_max_lr: the config says 0.1"},
        {"{\"train_batch_size\": 4, \"optimizer\": 7}", "optimizer.params.lr=2", "optimizer"},
        {"{\"train_batch_size\": 4}", "warmup_ratio=2", "from 0 to 1"},
        {"{\"train_batch_size\": 4}", "warmup_ratio", "NAME=VALUE"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct config_options options = trainer();
        options.wanted = &cases[i].option;
        options.n_wanted = 1;
        config_refused(cases[i].text, &options, cases[i].sentence);
    }
    /* The same value, however it is written, is no contradiction. */
    static const char *const same[] = {"optimizer.type=adamw", "optimizer.params.lr=0.0001"};
    struct config_options options = trainer();
    options.wanted = same;
    options.n_wanted = CZ_ARRAY_LEN(same);
    struct ds_config *config = config_of("{\"train_batch_size\": 4, \"optimizer\": {\"type\": "
                                         "\"AdamW\", \"params\": {\"lr\": 1e-4}}}",
                                         &options);
    ck_ok(config_check(config));
    config_free(config);
}
END_TEST

START_TEST(values_that_find_nothing_are_refused_with_the_nearest)
{
    static const struct {
        const char *text, *given, *sentence;
    } cases[] = {
        {autos, "lr=5", "did you mean optimizer.params.lr?"},
        {autos, "train_batch_sise=5", "did you mean train_batch_size?"},
        {autos, "foo.bar=3", "no \"auto\" there, but at train_batch_size and elsewhere"},
        {"{\"train_batch_size\": 4}", "foo.bar=3", "the config has no \"auto\""},
        {"{\"train_batch_size\": 4}", "train_batch_size=5", "--auto train_batch_size"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct config_options options = trainer();
        options.autos = &cases[i].given;
        options.n_autos = 1;
        config_refused(cases[i].text, &options, cases[i].sentence);
    }
    static const struct {
        const char *set, *sentence;
    } sets[] = {{"optimizer.lr=5", "did you mean \"optimizer.params.lr\"?"},
                {"lr=5", "did you mean \"optimizer.params.lr\"?"},
                {"zero_optimisation.stage=2", "did you mean \"zero_optimization\"?"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sets); i++) {
        struct config_options options = trainer();
        options.sets = &sets[i].set;
        options.n_sets = 1;
        config_refused("{\"train_batch_size\": 4}", &options, sets[i].sentence);
    }
}
END_TEST

START_TEST(a_given_batch_decides_about_the_other_sizes)
{
    static const struct {
        const char *text;
        int64_t world, micro, steps;
    } cases[] = {
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": \"auto\"}",
         2, 8, 2},
        {"{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": \"auto\"}",
         1, 6, 2},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": 16}",
         1, 2, 16},
        {"{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 3, "
         "\"gradient_accumulation_steps\": 5}",
         2, 3, 5},
        {"{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\"}", 1, 8, 1},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct config_options options = trainer();
        options.world_size = cases[i].world;
        struct ds_config *config = config_of(cases[i].text, &options);
        ck_assert_int_eq(config->train_micro_batch_size_per_gpu, cases[i].micro);
        ck_assert_int_eq(config->gradient_accumulation_steps, cases[i].steps);
        config_free(config);
    }
}
END_TEST

TEST_MAIN("engine/config trainer", an_absent_optimizer_is_trainers_adamw,
          an_option_chooses_a_schedule_without_parameters,
          deepspeeds_own_configs_stay_as_they_are, every_auto_is_filled,
          options_fill_autos_and_gaps, options_that_disagree_with_the_file_are_refused,
          values_that_find_nothing_are_refused_with_the_nearest,
          a_given_batch_decides_about_the_other_sizes)
