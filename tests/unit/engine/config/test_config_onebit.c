/* Claims: with a 1-bit optimizer a config is refused, in words, where czero cannot train it; keys
 * that mean less with one rank are reported; everything else passes without a word. */
#include "tests/unit/engine/config/config_support.h"

static const char *const family[] = {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"};

/* {"train_batch_size": 4, …, "optimizer": {"type": TYPE, "params": {PARAMS}}, MORE} in 16 bits. */
static struct ds_config *config_with(const char *type, const char *params, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 4, \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": "
             "\"%s\", \"params\": {%s}}, %s%s\"fp16\": {\"enabled\": true}}",
             type, params, more, more[0] ? ", " : "");
    return config_of(text, NULL);
}

static void check_refused(const char *type, const char *params, const char *more, const char *says)
{
    struct ds_config *config = config_with(type, params, more);
    cz_status st = config_check(config);
    ck_assert_msg(st == CZ_UNSUPPORTED || st == CZ_INVALID, "%s: %s, %s: passed", type, params,
                  more);
    ck_assert_msg(strstr(cz_last_error(), says), "\"%s\" does not hold \"%s\"", cz_last_error(),
                  says);
    config_free(config);
}

static void check_noted(const char *type, const char *params, const char *more,
                        enum config_note_kind kind, const char *says)
{
    struct ds_config *config = config_with(type, params, more);
    ck_ok(config_check(config));
    ck_assert_msg(config_has_note(config, kind, says), "%s: %s, %s: no note \"%s\"", type, params,
                  more, says);
    config_free(config);
}

START_TEST(plain_configs_pass_without_a_word)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(family); i++) {
        struct ds_config *config =
            config_with(family[i],
                        "\"lr\": 1e-4, \"bias_correction\": false, \"cuda_aware\": false, "
                        "\"eps_inside_sqrt\": false, \"amsgrad\": false",
                        "\"data_types\": {\"grad_accum_dtype\": \"fp16\"}");
        ck_ok(config_check(config));
        ck_assert_uint_eq(config_n_notes(config), 0);
        ck_assert_str_eq(config->optimizer.hyper.cls->name, family[i]);
        ck_assert_int_eq(config->state_dtype, DTYPE_F32);
        config_free(config);
    }
}
END_TEST

START_TEST(stage_1_needs_no_permission)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(family); i++) {
        struct ds_config *config = config_with(family[i], "",
                                               "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, "
                                               "\"zero_optimization\": {\"stage\": 1}");
        ck_ok(config_check(config));
        ck_assert_uint_eq(config_n_notes(config), 0);
        config_free(config);
    }
}
END_TEST

START_TEST(what_it_does_not_go_with_is_refused)
{
    static const struct {
        const char *more, *says;
    } cases[] = {
        {"\"zero_optimization\": {\"stage\": 2}", "stages 0 and 1 work"},
        {"\"zero_optimization\": {\"stage\": 3}", "zero_optimization.stage: not supported with"},
        {"\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}",
         "offload_optimizer.device: not supported with"},
        {"\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\", "
         "\"nvme_path\": \"/n\"}}",
         "the compression errors stay in memory"},
        {"\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\"}}",
         "offload_param.device: not supported with"},
        {"\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"/n\"}}",
         "set it to \"none\""},
        {"\"gradient_allreduce_op\": \"sum\"", "gradient_allreduce_op: not supported with"},
        {"\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
         "\"bf16_optimizer_states\": true}, \"fp16\": {\"enabled\": false}, "
         "\"zero_optimization\": {\"stage\": 1}",
         "masters and moments are fp32"},
        {"\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}, "
         "\"zero_optimization\": {\"stage\": 1}",
         "masters and moments are fp32"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        for (size_t f = 0; f < CZ_ARRAY_LEN(family); f++) {
            const char *more = cases[i].more;
            if (!strstr(more, "\"fp16\"")) {
                check_refused(family[f], "", more, cases[i].says);
                continue;
            }
            char text[1024]; /* its own precision */
            snprintf(text, sizeof text,
                     "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"%s\"}, %s}", family[f],
                     more);
            struct ds_config *config = config_of(text, NULL);
            ck_fails(config_check(config), CZ_UNSUPPORTED);
            ck_assert_msg(strstr(cz_last_error(), cases[i].says), "%s", cz_last_error());
            ck_assert_ptr_null(strstr(cz_last_error(), "needs zero_optimization"));
            config_free(config);
        }
}
END_TEST

START_TEST(bad_values_are_blamed_where_they_are)
{
    static const struct {
        const char *type, *params, *says;
    } cases[] = {
        {"OneBitAdam", "\"freeze_step\": 0", "optimizer.params.freeze_step: 0 must be a whole"},
        {"OneBitAdam", "\"freeze_step\": -5", "optimizer.params.freeze_step: -5"},
        {"OneBitLamb", "\"freeze_step\": 1.5", "optimizer.params.freeze_step: 1.5"},
        {"OneBitLamb", "\"freeze_step\": \"ten\"", "freeze_step: a number is needed"},
        {"ZeroOneAdam", "\"var_freeze_step\": 0", "optimizer.params.var_freeze_step: 0"},
        {"ZeroOneAdam", "\"local_step_clipper\": 0", "optimizer.params.local_step_clipper: 0"},
        {"ZeroOneAdam", "\"freeze_step\": 9", "did you mean \"var_freeze_step\""},
        {"OneBitAdam", "\"comm_backend_name\": \"gloo\"",
         "optimizer.params.comm_backend_name: \"gloo\" is not known; choose from \"nccl\", "
         "\"mpi\", \"hccl\", \"compressed\""},
        {"OneBitAdam", "\"amsgrad\": true", "optimizer.params.amsgrad: true is not supported"},
        {"OneBitAdam", "\"eps\": 0", "optimizer.params.eps: 0 must be above 0"},
        {"OneBitAdam", "\"max_grad_norm\": 1", "gradient_clipping"},
        {"OneBitLamb", "\"factor_max\": 0.1", "optimizer.params.factor_max: 0.1 is below"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        check_refused(cases[i].type, cases[i].params, "", cases[i].says);
}
END_TEST

START_TEST(onebit_lamb_scales_losses_dynamically)
{
    static const char text[] = "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"%s\"}, "
                               "\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}";
    for (size_t f = 0; f < CZ_ARRAY_LEN(family); f++) {
        char buf[256];
        snprintf(buf, sizeof buf, text, family[f]);
        struct ds_config *config = config_of(buf, NULL);
        if (strcmp(family[f], "OneBitLamb") == 0) {
            ck_fails(config_check(config), CZ_INVALID);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "dynamic loss scaling"));
        } else {
            ck_ok(config_check(config));
        }
        config_free(config);
    }
}
END_TEST

START_TEST(keys_that_mean_less_are_named)
{
    const enum config_note_kind none = CONFIG_NOTE_NO_EFFECT, choice = CONFIG_NOTE_CHOICE;
    for (size_t f = 0; f < CZ_ARRAY_LEN(family); f++) {
        const char *type = family[f];
        check_noted(type, "\"cuda_aware\": true", "", none, "a switch of comm_backend_name");
        check_noted(type, "\"cuda_aware\": true, \"comm_backend_name\": \"mpi\"", "", none,
                    "cuda_aware: has no effect: ranks on GPUs");
        check_noted(type, "\"comm_backend_name\": \"nccl\"", "", none, "comm_backend_name: has no");
        check_noted(type, "\"bias_correction\": true", "", none, "never correct for bias");
        check_noted(type, "\"eps_inside_sqrt\": true", "", none, "outside the root");
        check_noted(type, "", "\"zero_optimization\": {\"round_robin_gradients\": true}", none,
                    "in their own order");
        check_noted(type, "", "\"zero_optimization\": {\"overlap_comm\": true}", choice,
                    "overlap_comm: affects only steps that average");
        check_noted(type, "", "\"communication_data_type\": \"fp32\"", choice, "fp32 scales");
    }
    struct ds_config *config =
        config_with("OneBitAdam", "", "\"zero_optimization\": {\"round_robin_gradients\": true}");
    ck_assert(!config->zero.round_robin_gradients);
    config_free(config);
}
END_TEST

START_TEST(surprises_are_said_beforehand)
{
    struct ds_config *config =
        config_of("{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"OneBitAdam\"}}", NULL);
    ck_assert_ptr_nonnull(config_has_note(config, CONFIG_NOTE_CHOICE, "moves no weight"));
    config_free(config);
    check_noted("OneBitLamb", "\"freeze_step\": 6", "", CONFIG_NOTE_CHOICE,
                "frozen at 41 % of them; 10 or more");
    const char *const enough[] = {"\"freeze_step\": 10", "\"freeze_step\": 1, \"coeff_beta\": 0"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(enough); i++) {
        config = config_with("OneBitLamb", enough[i], "");
        ck_assert_uint_eq(config_n_notes(config), 0);
        config_free(config);
    }
}
END_TEST

TEST_MAIN("engine/config_onebit", plain_configs_pass_without_a_word, stage_1_needs_no_permission,
          what_it_does_not_go_with_is_refused, bad_values_are_blamed_where_they_are,
          onebit_lamb_scales_losses_dynamically, keys_that_mean_less_are_named,
          surprises_are_said_beforehand)
