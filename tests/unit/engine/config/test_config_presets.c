/* Claims: every preset in configs/ loads without a warning about unknown keys, prints and reads
 * back, and passes the check; docs/config.md is current. */
#include "tests/unit/engine/config/config_support.h"

#include <dirent.h>

static void check_preset(const char *file)
{
    char path[512], *json;
    struct ds_config *config, *again;
    struct config_options options = config_options_default();
    options.strict = true;
    options.world_size = 2;
    static const char *const filled[] = {"scheduler.params.total_num_steps=1000", /* as by train */
                                         "scheduler.params.warmup_num_steps=100",
                                         "optimizer.params.lr=5e-5",
                                         "scheduler.params.warmup_max_lr=5e-5"};
    options.autos = filled;
    options.n_autos = CZ_ARRAY_LEN(filled);
    snprintf(path, sizeof path, "%s/configs/%s", CZ_SOURCE_DIR, file);
    ck_ok(config_load(path, &options, &config));
    ck_assert(config->optimizer.type != NULL);
    ck_assert(config->scheduler.usable);
    ck_assert_ptr_null(config_has_note(config, CONFIG_NOTE_ENGINE_REJECTS, ""));
    ck_assert_ptr_null(config_has_note(config, CONFIG_NOTE_UNKNOWN, ""));
    ck_ok(config_json(config, &json));
    ck_ok(config_load_text(json, strlen(json), file, &options, &again));
    cz_status st = config_check(config);
    ck_assert_msg(st == CZ_OK, "%s: %s", file, cz_last_error());
    free(json);
    config_free(config);
    config_free(again);
}

START_TEST(every_preset_loads)
{
    static const char *const wanted[] = {
        "zero0.json",       "zero1.json",       "zero2.json",         "zero3.json",
        "offload.json",     "nvme.json",        "bf16.json",          "fp16.json",
        "onebit_adam.json", "onebit_lamb.json", "zero_one_adam.json", "classification.json",
        "weibo6.json"};
    DIR *dir = opendir(CZ_SOURCE_DIR "/configs");
    ck_assert_ptr_nonnull(dir);
    size_t n_wanted = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t n = strlen(entry->d_name);
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0) continue;
        check_preset(entry->d_name);
        for (size_t i = 0; i < CZ_ARRAY_LEN(wanted); i++)
            n_wanted += strcmp(wanted[i], entry->d_name) == 0;
    }
    closedir(dir);
    ck_assert_uint_eq(n_wanted, CZ_ARRAY_LEN(wanted));
}
END_TEST

START_TEST(stages_and_precisions_are_what_the_names_say)
{
    static const struct {
        const char *file;
        int stage;
        enum cz_dtype dtype;
        enum config_offload_device device;
    } cases[] = {
        {"zero0.json", 0, DTYPE_BF16, CONFIG_OFFLOAD_NONE},
        {"zero1.json", 1, DTYPE_BF16, CONFIG_OFFLOAD_NONE},
        {"zero2.json", 2, DTYPE_BF16, CONFIG_OFFLOAD_NONE},
        {"zero3.json", 3, DTYPE_BF16, CONFIG_OFFLOAD_NONE},
        {"offload.json", 2, DTYPE_BF16, CONFIG_OFFLOAD_CPU},
        {"nvme.json", 3, DTYPE_BF16, CONFIG_OFFLOAD_NVME},
        {"fp16.json", 0, DTYPE_F16, CONFIG_OFFLOAD_NONE},
        {"onebit_adam.json", 0, DTYPE_F16, CONFIG_OFFLOAD_NONE},
        {"onebit_lamb.json", 0, DTYPE_F16, CONFIG_OFFLOAD_NONE},
        {"zero_one_adam.json", 0, DTYPE_F16, CONFIG_OFFLOAD_NONE},
        {"weibo6.json", 2, DTYPE_F32, CONFIG_OFFLOAD_NONE},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char path[512];
        struct ds_config *config;
        snprintf(path, sizeof path, "%s/configs/%s", CZ_SOURCE_DIR, cases[i].file);
        ck_ok(config_load(path, NULL, &config));
        ck_assert_int_eq(config->zero.stage, cases[i].stage);
        ck_assert_int_eq(config->model_dtype, cases[i].dtype);
        ck_assert_int_eq(config->zero.offload_optimizer.device, cases[i].device);
        config_free(config);
    }
}
END_TEST

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *text = calloc(1, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

START_TEST(reference_is_current)
{
    char *want, *have = read_file(CZ_SOURCE_DIR "/docs/config.md");
    ck_ok(config_reference(&want));
    ck_assert_msg(have && strcmp(have, want) == 0,
                  "docs/config.md is out of date: build/czero config reference > docs/config.md");
    free(want);
    free(have);
}
END_TEST

TEST_MAIN("engine/config_presets", every_preset_loads, stages_and_precisions_are_what_the_names_say,
          reference_is_current)
