/* Claims: every file of fixtures/real_configs resolves to what DeepSpeed 0.19.8's parser
 * made of it, or is refused where that refused; fed back, the output gives the same bytes. The few
 * files that differ by decision are listed here and in docs/compatibility.md. */
#include "tests/unit/engine/config/config_support.h"

#include "formats/json/json.h"

/* What the Hugging Face integration would fill in (tests/fixtures/README.md). */
static const char *const autos[] = {
    "train_micro_batch_size_per_gpu=4",
    "gradient_accumulation_steps=2",
    "train_batch_size=8",
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

/* Duplicate keys, which the integration's JSON parser let pass; a file on which it fell over. */
static const char *const refused_by_decision[] = {"305.json", "307.json"};
static const char *const accepted_by_decision[] = {"347.json"};

static bool listed(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* ---- comparing
 * -------------------------------------------------------------------------------------- */

struct comparison {
    const char *file;
    struct ds_config *config;
    int n_different;
    int n_compared;
};

/* The path of our output that holds a field of expected.json. Empty: nothing to compare. */
static const char *our_path(const char *field, char buf[128])
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {
        {"ok", ""},
        {"optimizer_name", "optimizer.type"},
        {"optimizer_params", "optimizer.params"},
        {"scheduler_name", "scheduler.type"},
        {"scheduler_params", "scheduler.params"},
        {"grad_accum_dtype", "data_types.grad_accum_dtype"},
        {"load_universal_checkpoint", "checkpoint.load_universal"},
        {"use_node_local_storage", "checkpoint.use_node_local_storage"},
        {"checkpoint_tag_validation_enabled", ""}, /* see tag_validation() */
        {"checkpoint_tag_validation_fail", ""},
        {"comms_logger.comms_logger_enabled", ""}, /* `enabled` is honoured instead */
        {"comms_logger.comms_logger", "comms_logger"},
        {"monitor.tensorboard", "tensorboard"},
        {"monitor.csv_monitor", "csv_monitor"},
        {"monitor.wandb", "wandb"},
        {"monitor.comet", "comet"},
        {"zero_optimization.cpu_offload", ""}, /* old names are replaced */
        {"zero_optimization.cpu_offload_param", ""},
        {"zero_optimization.stage3_gather_fp16_weights_on_model_save", ""},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(names[i].theirs, field) == 0) return names[i].ours;
    static const char *const stage3[] = {
        "prefetch_bucket_size",         "param_persistence_threshold",
        "model_persistence_threshold",  "max_live_parameters",
        "max_reuse_distance",           "gather_16bit_weights_on_model_save",
        "module_granularity_threshold", "use_all_reduce_for_fetch_params",
        "allgather_sequential"};
    const char *dot = strchr(field, '.');
    if (dot && strncmp(field, "zero_optimization.", 18) == 0 &&
        listed(dot + 1, stage3, CZ_ARRAY_LEN(stage3))) {
        snprintf(buf, 128, "zero_optimization.stage3_%s", dot + 1);
        return buf;
    }
    return field;
}

static bool same(const struct cv *ours, const struct json_node *theirs)
{
    struct cv_pool pool;
    struct cv *wanted;
    ck_ok(cv_pool_init(&pool, 4096));
    ck_ok(cv_import(&pool, theirs, CV_FILE, &wanted));
    bool out = cv_equal(ours, wanted);
    cv_pool_free(&pool);
    return out;
}

static void compare_field(struct comparison *c, const char *field, const struct json_node *theirs)
{
    char buf[128], inner[160];
    const char *path = our_path(field, buf);
    if (!path[0]) return;
    bool group = json_type(theirs) == JSON_OBJECT && !strstr(field, "_params");
    if (group && (strchr(field, '.') == NULL || json_count(theirs) > 0)) {
        for (size_t i = 0; i < json_count(theirs); i++) {
            const struct json_node *child = json_child(theirs, i);
            const char *name = json_key(child);
            bool renamed = strcmp(path, field) != 0 && strchr(path, '.') == NULL;
            snprintf(inner, sizeof inner, "%s.%s", renamed ? path : field, name);
            compare_field(c, inner, child);
        }
        return;
    }
    const struct cv *ours = config_at(c->config->impl->resolved, path);
    c->n_compared++;
    if (ours && same(ours, theirs)) return;
    size_t n;
    const char *text = json_text(theirs, &n);
    printf("%s: %s: expected %.*s, got %s\n", c->file, path, (int)n, text,
           config_value(c->config, path));
    c->n_different++;
}

static void compare_tag_validation(struct comparison *c, const struct json_node *resolved)
{
    bool enabled, fail;
    ck_ok(json_need_bool(resolved, "checkpoint_tag_validation_enabled", &enabled));
    ck_ok(json_need_bool(resolved, "checkpoint_tag_validation_fail", &fail));
    enum config_tag_validation ours = c->config->checkpoint.tag_validation;
    c->n_different += enabled != (ours != CONFIG_TAG_IGNORE) || fail != (ours == CONFIG_TAG_FAIL);
}

static void check_fed_back(struct comparison *c)
{
    char *first, *second;
    struct ds_config *again;
    ck_ok(config_json(c->config, &first));
    ck_ok(config_load_text(first, strlen(first), "again", NULL, &again));
    ck_ok(config_json(again, &second));
    if (strcmp(first, second) != 0) {
        printf("%s: fed back, the output differs\n", c->file);
        c->n_different++;
    }
    config_free(again);
    free(first);
    free(second);
}

/* ---- the walk
 * ------------------------------------------------------------------------------------------- */

static int check_file(const struct json_node *entry, int *n_compared)
{
    const struct json_node *resolved;
    struct config_options options = config_options_default();
    struct comparison c = {.file = json_key(entry)};
    bool ok, filled;
    char relative[128];
    ck_ok(json_need(entry, "resolved", JSON_OBJECT, &resolved));
    ck_ok(json_need_bool(resolved, "ok", &ok));
    ck_ok(json_opt_bool(entry, "auto_args", false, &filled));
    ck_ok(json_need_int(entry, "world_size", &options.world_size));
    options.autos = autos;
    options.n_autos = filled ? CZ_ARRAY_LEN(autos) : 0;
    if (listed(c.file, refused_by_decision, CZ_ARRAY_LEN(refused_by_decision))) ok = false;
    if (listed(c.file, accepted_by_decision, CZ_ARRAY_LEN(accepted_by_decision))) {
        ok = true;
        resolved = NULL;
    }
    snprintf(relative, sizeof relative, "real_configs/%s", c.file);
    cz_status st = config_load(test_fixture(relative), &options, &c.config);
    if ((st == CZ_OK) != ok) {
        printf("%s: %s\n", c.file, st == CZ_OK ? "accepted" : cz_last_error());
        c.n_different++;
    } else if (st == CZ_OK && resolved) {
        for (size_t i = 0; i < json_count(resolved); i++)
            compare_field(&c, json_key(json_child(resolved, i)), json_child(resolved, i));
        compare_tag_validation(&c, resolved);
    }
    if (st == CZ_OK) check_fed_back(&c);
    config_free(c.config);
    *n_compared += c.n_compared;
    return c.n_different;
}

START_TEST(every_fixture_resolves_as_deepspeed_did)
{
    struct json_doc *doc;
    ck_ok(json_load(test_fixture("real_configs/expected.json"), JSON_STRICT, &doc));
    const struct json_node *root = json_root(doc);
    int n_different = 0, n_compared = 0;
    for (size_t i = 0; i < json_count(root); i++)
        n_different += check_file(json_child(root, i), &n_compared);
    printf("%zu files, %d values compared, %d differences\n", json_count(root), n_compared,
           n_different);
    ck_assert_uint_eq(json_count(root), 249);
    ck_assert_int_gt(n_compared, 15000);
    ck_assert_int_eq(n_different, 0);
    json_free(doc);
}
END_TEST

TEST_MAIN("engine/config_fixtures", every_fixture_resolves_as_deepspeed_did)
