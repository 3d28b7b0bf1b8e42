/* Claims: loads do what their options ask for and nothing else; client state and cursor come back;
 * a save at a bad moment, a bad tag, a missing or damaged file are errors with a sentence, and
 * leave the run as it was; 16-bit weights are one file that holds what the layers see. */
#include "checkpoint/read/checkpoint.h"
#include "formats/pt/pt.h"
#include "tests/support/resume_trial.h"

#include <sys/stat.h>

static struct replay_data data;

static struct cz_engine *engine_of(const char *config, const char *freeze, uint64_t seed)
{
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    ck_assert_ptr_nonnull(model);
    ck_ok(cz_model_set_shape(model, TRIAL_T));
    if (seed != 3) ck_ok(cz_model_init_from(model, NULL, seed));
    if (freeze) ck_ok(cz_model_freeze(model, freeze, NULL));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .seed = seed};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

static struct cz_engine *trained(const char *config, const char *freeze, int steps)
{
    struct cz_engine *e = engine_of(config, freeze, 3);
    replay_data_open(&data);
    for (int s = 0; s < steps; s++) ck_ok(trial_step(e, &data, NULL));
    return e;
}

struct state {
    uint64_t weights, exp_avg, exp_avg_sq;
};

static struct state state_of(struct cz_engine *e)
{
    struct state s;
    ck_ok(leg_hash(e, "weight", &s.weights));
    ck_ok(leg_hash(e, "exp_avg", &s.exp_avg));
    ck_ok(leg_hash(e, "exp_avg_sq", &s.exp_avg_sq));
    return s;
}

static const char *configured(int stage, const char *dtype, int gas)
{
    static struct leg leg;
    leg_configure(&leg, stage, dtype, gas);
    return leg.config;
}

START_TEST(loads_take_what_their_options_say)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(2, leg_dtypes[1], 1), NULL, 4);
    struct state saved = state_of(e);
    double lr = engine_get_lr(e);
    ck_ok(engine_save_checkpoint(e, dir, "mine"));
    engine_destroy(e);

    e = engine_of(configured(1, leg_dtypes[1], 1), NULL, 5);
    struct state fresh = state_of(e);
    struct cz_load_options options = {.size = sizeof options, .module_only = true};
    ck_ok(engine_load_checkpoint_ex(e, dir, &options, NULL));
    struct state got = state_of(e);
    ck_assert(got.weights == saved.weights && got.exp_avg == fresh.exp_avg);
    ck_assert_int_eq(engine_get_global_steps(e), 0);
    ck_assert_double_eq(engine_get_lr(e), 0); /* the schedule's first */

    options = (struct cz_load_options){.size = sizeof(struct cz_load_options),
                                       .no_optimizer_states = true};
    ck_ok(engine_load_checkpoint_ex(e, dir, &options, NULL));
    got = state_of(e);
    ck_assert(got.weights == saved.weights && got.exp_avg_sq == fresh.exp_avg_sq);
    ck_assert_int_eq(engine_get_global_steps(e), 4);

    struct cz_load_result result = {.size = sizeof result};
    ck_ok(engine_load_checkpoint_ex(e, dir, NULL, &result));
    got = state_of(e);
    ck_assert(memcmp(&got, &saved, sizeof got) == 0);
    ck_assert_double_eq(engine_get_lr(e), lr);
    ck_assert_uint_eq(result.n_restored, result.n_tensors);
    ck_assert(result.has_states && !result.has_cursor);
    ck_assert_ptr_nonnull(strstr(result.tag_dir, "/mine"));
    cz_load_result_free(&result);
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(masters_may_begin_as_the_16_bit_weights)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(1, leg_dtypes[1], 1), NULL, 3);
    struct state saved = state_of(e);
    ck_ok(engine_save_checkpoint(e, dir, NULL));
    engine_destroy(e);
    char config[1200];
    snprintf(config, sizeof config, "%s", configured(1, leg_dtypes[1], 1));
    char *at = strstr(config, "\"sub_group_size\"");
    memmove(at + 33, at, strlen(at) + 1);
    memcpy(at, "\"load_from_fp32_weights\": false, ", 33);
    e = engine_of(config, NULL, 5);
    ck_ok(engine_load_checkpoint(e, dir, NULL));
    struct state got = state_of(e);
    ck_assert(got.weights != saved.weights && got.exp_avg == saved.exp_avg);
    float master[64];
    ck_ok(engine_param_get(e, "transformer.ln_f.weight", "weight", master, 64));
    for (int i = 0; i < 64; i++) ck_assert_float_eq(master[i], bf16_to_f32(f32_to_bf16(master[i])));
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(client_state_and_cursor_come_back)
{
    const char *dir = test_tmp_make();
    const char *state = "{\"epoch\": 3, \"best\": 0.25, \"notes\": [\"a\", null, true], "
                        "\"nested\": {\"k\": -1}}";
    const struct cz_data_cursor cursor = {
        .epoch = 2, .sample = 77, .n_rows = 1234, .seed = UINT64_MAX, .shuffle = true};
    struct cz_engine *e = trained(configured(3, leg_dtypes[0], 1), NULL, 2);
    struct cz_save_options save = {
        .size = sizeof save, .cursor = &cursor, .client_state_json = state};
    ck_ok(engine_save_checkpoint_ex(e, dir, &save));

    struct cz_load_result result = {.size = sizeof result};
    ck_ok(engine_load_checkpoint_ex(e, dir, NULL, &result));
    ck_assert_str_eq(result.client_state_json, state);
    ck_assert(result.has_cursor);
    ck_assert_uint_eq(result.cursor.epoch, cursor.epoch);
    ck_assert_uint_eq(result.cursor.sample, cursor.sample);
    ck_assert_uint_eq(result.cursor.n_rows, cursor.n_rows);
    ck_assert_uint_eq(result.cursor.seed, cursor.seed);
    ck_assert(result.cursor.shuffle);
    cz_load_result_free(&result);

    save.client_state_json = "[1]";
    ck_fails(engine_save_checkpoint_ex(e, dir, &save), CZ_INVALID);
    save.client_state_json = "{\"checkpoint_parallel_dimensions\": 1}";
    ck_fails(engine_save_checkpoint_ex(e, dir, &save), CZ_INVALID);
    ck_ok(trial_step(e, &data, NULL)); /* the run continues */
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

/* {"rng": 2**64, "epoch": 3}, as Python pickles it, and what is refused before anything is written.
 */
START_TEST(a_pickled_client_state_comes_back)
{
    static const char pickled[] = "\x80\x02}(X\x03\x00\x00\x00rng\x8a\x09\0\0\0\0\0\0\0\0\x01"
                                  "X\x05\x00\x00\x00"
                                  "epochK\x03u.";
    static const char list[] = "\x80\x02].", open[] = "\x80\x02}(",
                      own[] = "\x80\x02}X\x0c\x00\x00\x00global_stepsK\x03s.";
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(1, leg_dtypes[0], 1), NULL, 1);
    struct cz_save_options save = {.size = sizeof save,
                                   .tag = "a",
                                   .client_state_pickle = pickled,
                                   .client_state_nbytes = sizeof pickled - 1};
    ck_ok(engine_save_checkpoint_ex(e, dir, &save));
    struct cz_load_options load = {.size = sizeof load, .tag = "a"};
    struct cz_load_result result = {.size = sizeof result};
    ck_ok(engine_load_checkpoint_ex(e, dir, &load, &result));
    ck_assert_str_eq(result.client_state_json, "{\"epoch\": 3}");
    ck_assert_ptr_null(result.client_state_pickle);
    ck_assert_uint_eq(result.client_state_nbytes, 0);
    cz_load_result_free(&result);
    load.pickles_client_state = true;
    ck_ok(engine_load_checkpoint_ex(e, dir, &load, &result));
    struct pickle *p;
    ck_ok(pickle_parse(result.client_state_pickle, result.client_state_nbytes, "client", &p));
    ck_assert_uint_eq(pickle_root(p)->n_pairs, 2);
    ck_assert_int_eq(pickle_get(pickle_root(p), "rng")->kind, PICKLE_LONG);
    ck_assert_int_eq(pickle_get(pickle_root(p), "epoch")->integer, 3);
    pickle_free(p);
    cz_load_result_free(&result);
    ck_assert_ptr_null(result.client_state_pickle);

    save.tag = "b";
    static const struct {
        const char *bytes, *sentence;
        size_t n;
    } bad[] = {{list, "is a list, not a dict", sizeof list - 1},
               {open, "client state", sizeof open - 1},
               {own, "'global_steps', which the checkpoint", sizeof own - 1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        save.client_state_pickle = bad[i].bytes;
        save.client_state_nbytes = bad[i].n;
        ck_fails(engine_save_checkpoint_ex(e, dir, &save), CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), bad[i].sentence), "%s", cz_last_error());
    }
    save.client_state_json = "{}";
    ck_fails(engine_save_checkpoint_ex(e, dir, &save), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "as JSON and as a pickle"), "%s", cz_last_error());
    load.tag = "b";
    ck_fails(engine_load_checkpoint_ex(e, dir, &load, &result), CZ_NOTFOUND);
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_save_waits_for_the_boundary)
{
    static struct replay_batch b;
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(2, leg_dtypes[0], 2), NULL, 1);
    const struct cz_batch *batch = replay_next(&data, &b, 2, TRIAL_T);
    ck_ok(engine_forward(e, batch, NULL));
    ck_ok(engine_backward(e));
    ck_fails(engine_save_checkpoint(e, dir, NULL), CZ_INVALID);
    ck_ok(engine_step(e));
    ck_fails(engine_save_checkpoint(e, dir, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "1 of 2 micro-batches"));
    ck_ok(engine_forward(e, batch, NULL));
    ck_fails(engine_save_checkpoint(e, dir, NULL), CZ_INVALID);
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
    ck_ok(engine_save_checkpoint(e, dir, NULL));
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

/* A program that sees a bad loss goes back at once: behind the forward, the backward or the step of
 * a window's first micro-batch. */
START_TEST(a_load_forgets_the_step_that_has_begun)
{
    static struct replay_batch b;
    for (int stage = 0; stage < 4; stage++) {
        const char *dir = test_tmp_make();
        struct cz_engine *e = trained(configured(stage, leg_dtypes[1], 2), NULL, 2);
        const uint64_t row = data.row;
        ck_ok(engine_save_checkpoint(e, dir, NULL));
        ck_ok(trial_step(e, &data, NULL));
        const struct state want = state_of(e);
        for (int place = 0; place < 4; place++) {
            const struct cz_batch *batch = replay_next(&data, &b, 2, TRIAL_T);
            if (place > 0) ck_ok(engine_forward(e, batch, NULL));
            if (place > 1) ck_ok(engine_backward(e));
            if (place > 2) ck_ok(engine_step(e));
            ck_fails(engine_load_checkpoint(e, dir, "missing"), CZ_NOTFOUND);
            const struct cz_load_options weights = {.size = sizeof weights, .module_only = true};
            if (place == 3) ck_ok(engine_load_checkpoint_ex(e, dir, &weights, NULL));
            if (place == 3) ck_assert(!engine_is_gradient_accumulation_boundary(e));
            ck_ok(engine_load_checkpoint(e, dir, NULL));
            ck_assert_int_eq(engine_get_micro_steps(e), 4);
            data.row = row;
            ck_ok(trial_step(e, &data, NULL));
            const struct state got = state_of(e);
            ck_assert_mem_eq(&got, &want, sizeof want);
        }
        engine_destroy(e);
        test_tmp_remove(dir);
    }
}
END_TEST

START_TEST(bad_folders_and_tags_are_refused_and_the_run_goes_on)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(1, leg_dtypes[0], 1), NULL, 1);
    ck_fails(engine_save_checkpoint(e, dir, "../up"), CZ_INVALID);
    ck_fails(engine_save_checkpoint(e, dir, ""), CZ_INVALID);
    ck_fails(engine_save_checkpoint(e, "", NULL), CZ_INVALID);
    ck_fails(engine_save_checkpoint(e, "/proc/nowhere", NULL), CZ_IO);
    ck_fails(engine_load_checkpoint(e, dir, NULL), CZ_NOTFOUND);
    ck_fails(engine_load_checkpoint(e, "/nowhere", NULL), CZ_NOTFOUND);
    ck_fails(engine_load_checkpoint(e, dir, "missing"), CZ_NOTFOUND);
    char path[192];
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_ok(file_save(path, "{}", 2));
    ck_fails(engine_load_checkpoint(e, path, NULL), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "is a file; a folder"), "%s", cz_last_error());
    snprintf(path, sizeof path, "%s/new", dir);
    struct cz_save_options save = {.size = sizeof save, .client_state_json = "{\"module\": 1}"};
    ck_fails(engine_save_checkpoint_ex(e, path, &save), CZ_INVALID);
    ck_assert_int_ne(access(path, F_OK), 0); /* what is refused leaves no folder */
    ck_ok(trial_step(e, &data, NULL));
    ck_ok(engine_save_checkpoint(e, dir, NULL));
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_strict_load_names_what_is_missing)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(2, leg_dtypes[1], 1), "ln_f", 2);
    const struct cz_save_options save = {.size = sizeof save, .exclude_frozen = true};
    ck_ok(engine_save_checkpoint_ex(e, dir, &save));
    engine_destroy(e);

    e = engine_of(configured(2, leg_dtypes[1], 1), "ln_f", 5);
    ck_fails(engine_load_checkpoint(e, dir, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "transformer.ln_f"));
    struct cz_load_result result = {.size = sizeof result};
    const struct cz_load_options lenient = {.size = sizeof lenient, .lenient = true};
    ck_ok(engine_load_checkpoint_ex(e, dir, &lenient, &result));
    ck_assert_uint_eq(result.n_restored + 2, result.n_tensors);
    cz_load_result_free(&result);
    engine_destroy(e);

    /* What was frozen then has no states now. */
    e = trained(configured(2, leg_dtypes[1], 1), "ln_f", 2);
    ck_ok(engine_save_checkpoint(e, dir, NULL));
    engine_destroy(e);
    e = engine_of(configured(2, leg_dtypes[1], 1), NULL, 5);
    ck_fails(engine_load_checkpoint(e, dir, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "transformer.ln_f"));
    const struct cz_load_options weights = {.size = sizeof weights, .no_optimizer_states = true};
    ck_ok(engine_load_checkpoint_ex(e, dir, &weights, NULL));
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

/* A flipped bit anywhere in a tensor stops the load before anything is changed. */
START_TEST(a_flipped_bit_is_found_before_it_is_loaded)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(2, leg_dtypes[0], 1), NULL, 2);
    ck_ok(engine_save_checkpoint(e, dir, "t"));
    struct state before = state_of(e);
    char path[256];
    snprintf(path, sizeof path, "%s/t/zero_pp_rank_0_mp_rank_00_optim_states.pt", dir);
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    fseek(f, 300001, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 300001, SEEK_SET);
    fputc(byte ^ 4, f);
    fclose(f);
    ck_fails(engine_load_checkpoint(e, dir, NULL), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "optim_states.pt"));
    struct state after = state_of(e);
    ck_assert_mem_eq(&before, &after, sizeof before);
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

/* What the layers see, under every name. */
static void check_16bit(struct cz_engine *e, const char *path, enum cz_dtype dtype)
{
    static float want[256 * 64], have[256 * 64];
    const struct param_table *table = model_params(engine_get_model(e));
    struct pt *pt;
    ck_ok(pt_open(path, &pt));
    const struct pickle_node *root = pt_root(pt);
    ck_assert_uint_eq(root->n_pairs, table->n_params + table->n_aliases);
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        const struct pickle_node *node = pickle_get(root, p->name);
        ck_assert(pickle_is(node, PICKLE_TENSOR));
        ck_assert_int_eq(node->tensor->dtype->base, dtype);
        ck_ok(engine_param_get(e, p->name, "weight", want, p->numel));
        ck_ok(pt_read_f32(pt, node->tensor, 0, p->numel, have));
        for (size_t k = 0; k < p->numel; k++) {
            float rounded = want[k];
            if (dtype == DTYPE_BF16) rounded = bf16_to_f32(f32_to_bf16(rounded));
            ck_assert_float_eq(rounded, have[k]);
        }
    }
    const struct pickle_node *tied = pickle_get(root, "lm_head.weight");
    ck_assert_str_eq(tied->tensor->key, pickle_get(root, "transformer.wte.weight")->tensor->key);
    pt_close(pt);
}

START_TEST(sixteen_bit_weights_are_one_file)
{
    const char *dir = test_tmp_make();
    char path[256];
    bool saved;
    snprintf(path, sizeof path, "%s/sub/pytorch_model.bin", dir);
    for (int d = 0; d < 2; d++) {
        struct cz_engine *e = trained(configured(2, leg_dtypes[d], 1), NULL, 2);
        char sub[256];
        snprintf(sub, sizeof sub, "%s/sub", dir);
        ck_ok(engine_save_16bit_model(e, sub, NULL, false, &saved));
        ck_assert(saved);
        check_16bit(e, path, d == 0 ? DTYPE_F32 : DTYPE_BF16);
        engine_destroy(e);
    }
    struct cz_engine *e = trained(configured(3, leg_dtypes[1], 1), NULL, 1);
    ck_ok(engine_save_16bit_model(e, dir, "w.bin", false, &saved));
    ck_assert(!saved);
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

/* DeepSpeed's schedules are saved in its form, not in that of torch's LambdaLR. */
START_TEST(a_schedule_is_saved_as_its_kind_saves_it)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(configured(2, leg_dtypes[0], 1), NULL, 3);
    ck_ok(engine_save_checkpoint(e, dir, "mine"));
    engine_destroy(e);
    const struct ckpt_open_options options = {.dir = dir, .tag = "mine"};
    struct ckpt *ck;
    int64_t at;
    ck_ok(ckpt_open(&options, &ck));
    const struct pickle_node *schedule = pickle_get(ckpt_model_states(ck), "lr_scheduler");
    ck_assert(pickle_to_int(pickle_get(schedule, "last_batch_iteration"), &at));
    ck_assert_int_eq(at, 2);
    ck_assert_ptr_null(pickle_get(schedule, "base_lrs"));
    ckpt_close(ck);
    test_tmp_remove(dir);
}
END_TEST

/* torch takes its state_dict() as it is, and needs initial_lr and the like in param_groups. SGD's
 * momentum, which CyclicLR moves, is back before the first update after a load; without czero's own
 * file, too. */
START_TEST(schedules_of_torch_are_saved_as_torch_does_and_go_on)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5, "
        "\"zero_optimization\": "
        "{\"stage\": 1}, \"zero_allow_untested_optimizer\": true, \"optimizer\": {\"type\": "
        "\"SGD\", "
        "\"params\": {\"lr\": 0.01}}, \"scheduler\": {\"type\": \"CyclicLR\", \"params\": "
        "{\"base_lr\": 0.001, \"max_lr\": 0.02, \"step_size_up\": 4, \"base_momentum\": 0.5}}}";
    static const char *const keys[] = {
        "max_lrs",    "total_size",     "step_ratio",  "mode",           "gamma",
        "scale_mode", "cycle_momentum", "use_beta1",   "base_momentums", "max_momentums",
        "base_lrs",   "last_epoch",     "_step_count", "_is_initial"};
    const char *dir = test_tmp_make();
    struct cz_engine *e = trained(config, NULL, 3);
    ck_ok(engine_save_checkpoint(e, dir, "mine"));
    const uint64_t row = data.row;
    for (int s = 0; s < 2; s++) ck_ok(trial_step(e, &data, NULL));
    uint64_t want, have;
    const double lr = engine_get_lr(e);
    ck_ok(leg_hash(e, "weight", &want));
    engine_destroy(e);
    const struct ckpt_open_options options = {.dir = dir, .tag = "mine"};
    struct ckpt *ck;
    ck_ok(ckpt_open(&options, &ck));
    const struct pickle_node *schedule = pickle_get(ckpt_model_states(ck), "lr_scheduler");
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        ck_assert_str_eq(schedule->pairs[i].key->text, keys[i]);
    double momentum, initial;
    const struct pickle_node *group = ckpt_param_group(ck, 0);
    ck_assert(pickle_to_double(pickle_get(group, "momentum"), &momentum));
    ck_assert_double_eq_tol(momentum, 0.9 - 0.4 * 3 / 4, 1e-15);
    ck_assert(pickle_to_double(pickle_get(group, "initial_lr"), &initial));
    ck_assert_double_eq(initial, 0.001);
    ckpt_close(ck);
    for (int without = 0; without < 2; without++) {
        char path[256];
        snprintf(path, sizeof path, "%s/mine/" CKPT_STATE, dir);
        if (without) ck_assert_int_eq(unlink(path), 0);
        snprintf(path, sizeof path, "%s/mine/" CKPT_MANIFEST, dir);
        if (without) unlink(path);
        e = engine_of(config, NULL, 3);
        data.row = row;
        ck_ok(engine_load_checkpoint(e, dir, "mine"));
        for (int s = 0; s < 2; s++) ck_ok(trial_step(e, &data, NULL));
        ck_assert_double_eq(engine_get_lr(e), lr);
        ck_ok(leg_hash(e, "weight", &have));
        ck_assert_uint_eq(have, want);
        engine_destroy(e);
    }
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine/checkpoint", schedules_of_torch_are_saved_as_torch_does_and_go_on,
          loads_take_what_their_options_say, masters_may_begin_as_the_16_bit_weights,
          client_state_and_cursor_come_back, a_pickled_client_state_comes_back,
          a_load_forgets_the_step_that_has_begun, a_save_waits_for_the_boundary,
          bad_folders_and_tags_are_refused_and_the_run_goes_on, a_strict_load_names_what_is_missing,
          a_flipped_bit_is_found_before_it_is_loaded, sixteen_bit_weights_are_one_file,
          a_schedule_is_saved_as_its_kind_saves_it)
