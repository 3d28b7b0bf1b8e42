/* Claims, through the public headers alone: options without a size are refused by every call, by
 * name; plans and tuning give what the internal ones give; parameters are described; an error of a
 * callback is the caller's. */
#include "tests/support/check_main.h"

#include <czero/czero.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char config[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\"}}";

static void names(const char *what)
{
    ck_assert_int_eq(cz_last_status(), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), what) != NULL, "%s", cz_last_error());
}

START_TEST(options_without_a_size_are_refused_by_name)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_assert_ptr_nonnull(model);
    const struct cz_engine_options engine = {.config_json = config};
    ck_assert_ptr_null(engine_initialize_ex(&engine, model));
    names("cz_engine_options.size");
    const struct cz_model_options open = {.vocab_size = 300};
    ck_assert_ptr_null(cz_model_open_ex("gpt2-tiny", &open));
    names("cz_model_options.size");
    const struct cz_data_options data = {.seq_len = 8};
    struct cz_data_loader *loader;
    ck_fails(cz_data_open(&data, &loader), CZ_INVALID);
    names("cz_data_options.size");
    const struct cz_texts_options texts = {.plain = true};
    struct cz_texts *t;
    ck_fails(cz_texts_open(&texts, &t), CZ_INVALID);
    names("cz_texts_options.size");
    const struct cz_consolidate_options consolidate = {.dir = "."};
    ck_fails(cz_consolidate(&consolidate, NULL), CZ_INVALID);
    names("cz_consolidate_options.size");
    const struct cz_inspect_options inspect = {.path = "."};
    ck_fails(cz_inspect(&inspect, stderr), CZ_INVALID);
    names("cz_inspect_options.size");
    const struct cz_infer_options infer = {.B = 1, .T = 8};
    struct cz_infer *in;
    ck_fails(cz_infer_create(model, &infer, &in), CZ_INVALID);
    names("cz_infer_options.size");
    const struct cz_tune_options tune = {.host_nbytes = 1};
    struct cz_tune *tuned;
    ck_fails(cz_tune_create(&tune, model, &tuned), CZ_INVALID);
    names("cz_tune_options.size");
    cz_model_destroy(model);
}
END_TEST

START_TEST(a_batch_without_a_size_is_refused)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *engine = engine_initialize_ex(&options, model);
    ck_assert_msg(engine != NULL, "%s", cz_last_error());
    const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct cz_batch batch = {.B = 1, .T = 8, .ids = ids, .labels = ids};
    float loss;
    ck_fails(engine_forward(engine, &batch, &loss), CZ_INVALID);
    names("cz_batch.size");
    ck_fails(engine_eval(engine, &batch, &loss), CZ_INVALID);
    batch.size = sizeof batch;
    ck_ok(engine_eval(engine, &batch, &loss));
    ck_assert(isfinite(loss));
    engine_destroy(engine);
}
END_TEST

START_TEST(parameters_are_described)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    size_t n = cz_model_n_params(model), numel = 0, n_frozen;
    ck_ok(cz_model_freeze(model, "wte", &n_frozen));
    for (size_t i = 0; i < n; i++) {
        struct cz_param_info info = {.size = sizeof info};
        ck_ok(cz_model_param(model, i, &info));
        size_t product = 1;
        for (int d = 0; d < info.ndim; d++) product *= (size_t)info.shape[d];
        ck_assert_uint_eq(product, info.numel);
        ck_assert_int_eq(info.trainable, strstr(info.name, "wte") == NULL);
        numel += info.numel;
    }
    ck_assert_uint_gt(numel, 0);
    struct cz_param_info info = {.size = sizeof info};
    ck_fails(cz_model_param(model, n, &info), CZ_INVALID);
    info.size = 0;
    ck_fails(cz_model_param(model, 0, &info), CZ_INVALID);
    cz_model_destroy(model);
}
END_TEST

START_TEST(a_plan_knows_its_bytes)
{
    struct cz_model *model = cz_model_open("gpt2");
    ck_ok(cz_model_set_shape(model, 128));
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    const struct cz_plan_options two = {.size = sizeof two, .world_size = 2};
    struct cz_plan *one_rank, *two_ranks;
    ck_ok(cz_plan_create(&options, NULL, model, &one_rank));
    ck_ok(cz_plan_create(&options, &two, model, &two_ranks));
    ck_assert_uint_gt(cz_plan_nbytes(one_rank, CZ_PLACE_HOST), (size_t)124439808 * 16);
    ck_assert_uint_eq(cz_plan_nbytes(one_rank, CZ_PLACE_NVME), 0);
    ck_assert_uint_eq(cz_plan_sent_nbytes(one_rank), 0);
    ck_assert_uint_gt(cz_plan_sent_nbytes(two_ranks), 0);
    ck_assert(isnan(cz_plan_step_s(one_rank)));
    char *table, *json;
    ck_ok(cz_plan_table(one_rank, &table));
    ck_ok(cz_plan_json(one_rank, &json));
    ck_assert_ptr_nonnull(strstr(table, "gradients"));
    ck_assert_int_eq(json[0], '{');
    cz_free(table);
    cz_free(json);
    cz_free(NULL);
    const struct cz_plan_options no_profile = {.size = sizeof no_profile,
                                               .profile_path = "/nonexistent/machine.json"};
    struct cz_plan *none;
    ck_fails(cz_plan_create(&options, &no_profile, model, &none), CZ_NOTFOUND);
    ck_assert_ptr_null(none);
    cz_plan_destroy(one_rank);
    cz_plan_destroy(two_ranks);
    cz_plan_destroy(NULL);
    cz_model_destroy(model);
}
END_TEST

START_TEST(tuning_offers_configs)
{
    struct cz_model *model = cz_model_open("gpt2");
    ck_ok(cz_model_set_shape(model, 128));
    struct cz_tune_options options = {
        .size = sizeof options, .host_nbytes = (size_t)8 << 30, .dtype = CZ_DTYPE_BF16};
    struct cz_tune *t;
    ck_ok(cz_tune_create(&options, model, &t));
    ck_assert_uint_gt(cz_tune_n_offers(t), 0);
    ck_assert(cz_tune_offer_fits(t, 0));
    ck_assert(isnan(cz_tune_offer_tokens_per_s(t, 0)));
    ck_assert_str_eq(cz_tune_missing(t), "");
    char *text;
    ck_ok(cz_tune_config(t, 0, &text));
    const struct cz_engine_options engine = {.size = sizeof engine, .config_json = text};
    struct cz_plan *plan;
    ck_ok(cz_plan_create(&engine, NULL, model, &plan));
    cz_plan_destroy(plan);
    cz_free(text);
    ck_fails(cz_tune_config(t, cz_tune_n_offers(t), &text), CZ_INVALID);
    ck_assert(!cz_tune_offer_fits(t, cz_tune_n_offers(t)));
    cz_tune_destroy(t);

    options.host_nbytes = (size_t)100 << 20; /* far too little */
    ck_ok(cz_tune_create(&options, model, &t));
    ck_assert(!cz_tune_offer_fits(t, 0));
    ck_assert_str_ne(cz_tune_missing(t), "");
    cz_tune_destroy(t);
    cz_tune_destroy(NULL);

    /* an adapter: the model gets it, and the config has it */
    const struct cz_lora_options lora = {
        .size = sizeof lora, .targets = "c_attn", .layers = "0-5", .dropout = 0.1};
    options.host_nbytes = (size_t)1 << 30;
    options.lora = &lora;
    ck_ok(cz_tune_create(&options, model, &t));
    ck_assert(cz_model_has_adapter(model));
    ck_assert(cz_tune_offer_fits(t, 0));
    ck_ok(cz_tune_config(t, 0, &text));
    ck_assert_ptr_nonnull(strstr(text, "\"rank\": 8"));
    ck_assert_ptr_nonnull(strstr(text, "\"targets\": \"c_attn\""));
    ck_assert_ptr_nonnull(strstr(text, "\"layers\": \"0-5\""));
    ck_assert_ptr_nonnull(strstr(text, "\"dropout\": 0.1"));
    free(text);
    cz_tune_destroy(t);
    cz_model_destroy(model);
    model = cz_model_open("gpt2");
    const struct cz_lora_options wrong = {.size = sizeof wrong, .targets = "q_proj"};
    options.lora = &wrong;
    ck_fails(cz_tune_create(&options, model, &t), CZ_INVALID);
    ck_assert_ptr_null(t);
    cz_model_destroy(model);
}
END_TEST

static cz_status stop_at_third(void *user, int32_t token)
{
    int *n = user;
    return ++*n == 3 ? cz_error(CZ_BUSY, "enough: token %d", token) : CZ_OK;
}

START_TEST(an_error_of_a_callback_is_the_callers)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    const struct cz_generate_options options = {
        .size = sizeof options, .max_new_tokens = 8, .end_id = -1};
    const int32_t prompt[] = {72, 105};
    int n = 0;
    ck_fails(cz_generate(model, &options, prompt, 2, stop_at_third, &n), CZ_BUSY);
    ck_assert_int_eq(n, 3);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "enough"));
    cz_clear_error();
    ck_assert_int_eq(cz_last_status(), CZ_OK);
    ck_assert_str_eq(cz_last_error(), "");
    ck_assert_str_eq(cz_version(), "0.2.0");
    ck_assert_uint_eq(cz_dtype_size(CZ_DTYPE_BF16), 2);
    ck_assert_str_eq(cz_dtype_name(CZ_DTYPE_BF16), "bf16");
    cz_model_destroy(model);
}
END_TEST

/* Pointers that a program forgot are errors, not crashes. */
START_TEST(what_is_missing_is_refused)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    const struct cz_generate_options generate = {
        .size = sizeof generate, .max_new_tokens = 1, .end_id = -1};
    const int32_t prompt[] = {72};
    float x;
    ck_fails(cz_generate(model, &generate, prompt, 1, NULL, NULL), CZ_INVALID);
    ck_fails(cz_generate_all(model, &generate, NULL, 0, NULL, NULL), CZ_INVALID);
    ck_fails(cz_model_set_shape(NULL, 16), CZ_INVALID);
    ck_assert_ptr_null(cz_model_from_hf(NULL));
    ck_assert_int_eq(cz_last_status(), CZ_INVALID);
    ck_ok(cz_model_set_shape(model, 16));
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_ptr_nonnull(e);
    ck_fails(engine_export_hf(e, NULL, CZ_DTYPE_F32), CZ_INVALID);
    ck_fails(engine_param_get(e, NULL, "weight", &x, 1), CZ_INVALID);
    ck_fails(engine_param_get(e, "wte.weight", NULL, &x, 1), CZ_INVALID);
    ck_assert_ptr_null(engine_initialize_ex(&options, model)); /* two would free it twice */
    ck_assert_int_eq(cz_last_status(), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "another engine owns this model"));
    engine_destroy(e);
}
END_TEST

/* With two micro-batches per step, every second engine_step() ends one. */
START_TEST(saves_work_between_steps)
{
    const char *dir = test_tmp_make();
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_ok(cz_model_set_shape(model, 8));
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json =
            "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, "
            "\"optimizer\": {\"type\": \"AdamW\"}}"};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct cz_batch batch = {.size = sizeof batch, .B = 1, .T = 8, .ids = ids, .labels = ids};
    ck_assert_ptr_nonnull(e);
    ck_assert(engine_is_between_steps(e));
    for (int k = 0; k < 4; k++) {
        ck_ok(engine_forward(e, &batch, NULL));
        ck_assert(!engine_is_between_steps(e));
        ck_ok(engine_backward(e));
        ck_assert(!engine_is_between_steps(e));
        ck_ok(engine_step(e));
        ck_assert_int_eq(engine_is_between_steps(e), k % 2 == 1);
        const cz_status st = engine_save_checkpoint(e, dir, NULL);
        ck_assert_int_eq(st, k % 2 == 1 ? CZ_OK : CZ_INVALID);
        if (st != CZ_OK) names("engine_is_between_steps()");
    }
    ck_fails(engine_save_checkpoint(e, dir, "../x"), CZ_INVALID);
    names("it contains a slash");
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_strict_process_refuses_unknown_keys_of_configs)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_ok(cz_model_set_shape(model, 16));
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_batch_size\": 1, \"optimiser\": {\"type\": \"Adam\"}}"};
    cz_set_strict(true);
    ck_assert_ptr_null(engine_initialize_ex(&options, model));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "optimiser"));
    cz_set_strict(false);
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_ptr_nonnull(e);
    engine_destroy(e);
}
END_TEST

/* oneDNN and the pool of threads end the process where they get none. */
START_TEST(too_little_address_space_is_an_error)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_ok(cz_model_set_shape(model, 16));
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    char line[64];
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    fclose(f);
    const rlim_t now = strtoull(line, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
    for (rlim_t more = 0; more <= 24; more += 8) {
        const struct rlimit limit = {now + (more << 20), RLIM_INFINITY};
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
        ck_assert_ptr_null(engine_initialize_ex(&options, model));
        ck_assert_int_eq(cz_last_status(), CZ_NOMEM);
    }
    /* A run of one thread needs no stacks for others, however many cores there are. */
    ck_assert_int_eq(setenv("OMP_NUM_THREADS", "1", 1), 0);
    const struct rlimit little = {now + ((rlim_t)16 << 20), RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &little), 0);
    ck_assert_ptr_null(engine_initialize_ex(&options, model));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "at least 32.00 MiB"));
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &none), 0);
    cz_model_destroy(model);
}
END_TEST

TEST_MAIN("api/calls", saves_work_between_steps, what_is_missing_is_refused,
          a_strict_process_refuses_unknown_keys_of_configs, too_little_address_space_is_an_error,
          options_without_a_size_are_refused_by_name, a_batch_without_a_size_is_refused,
          parameters_are_described, a_plan_knows_its_bytes, tuning_offers_configs,
          an_error_of_a_callback_is_the_callers)
