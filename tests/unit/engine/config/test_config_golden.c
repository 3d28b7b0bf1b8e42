/* Claims: the configs in tests/fixtures/configs print, byte for byte, what stands in their .golden
 * files. Those were compared with DeepSpeed 0.19.8's parser when they were made
 * (tests/interop/training/config_oracle.py --files). */
#include "tests/unit/engine/config/config_support.h"

static const char *const autos[] = {
    "train_micro_batch_size_per_gpu=4",
    "gradient_accumulation_steps=2",
    "train_batch_size=16",
    "gradient_clipping=1.0",
    "optimizer.params.lr=5e-5",
    "optimizer.params.betas=[0.9, 0.999]",
    "optimizer.params.eps=1e-8",
    "optimizer.params.weight_decay=0.01",
    "scheduler.params.warmup_min_lr=0",
    "scheduler.params.warmup_max_lr=5e-5",
    "scheduler.params.warmup_num_steps=100",
    "scheduler.params.total_num_steps=1000",
    "fp16.enabled=false",
    "bf16.enabled=true",
    "hidden_size=768",
};

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is missing", path);
    char *text = calloc(1, 1 << 16);
    size_t n = fread(text, 1, (1 << 16) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

static void check_golden(const char *name)
{
    char relative[128], *got;
    struct config_options options = config_options_default();
    struct ds_config *config;
    options.world_size = 2;
    options.autos = autos;
    options.n_autos = CZ_ARRAY_LEN(autos);
    snprintf(relative, sizeof relative, "configs/%s.json", name);
    ck_ok(config_load(test_fixture(relative), &options, &config));
    ck_ok(config_json(config, &got));
    snprintf(relative, sizeof relative, "configs/%s.golden", name);
    char *want = read_file(test_fixture(relative));
    ck_assert_str_eq(got, want);
    free(want);
    free(got);
    config_free(config);
}

START_TEST(dialect)
{
    check_golden("dialect");
}
END_TEST

START_TEST(huggingface)
{
    check_golden("huggingface");
}
END_TEST

START_TEST(everything)
{
    check_golden("everything");
}
END_TEST

TEST_MAIN("engine/config_golden", dialect, huggingface, everything)
