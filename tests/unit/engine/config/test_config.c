/* Claims: a config resolves as DeepSpeed's parser resolves it; what it refuses is refused with
 * place, path, value and a way out; what czero makes of a key is reported; the typed view holds it.
 */
#include "base/rng.h"
#include "tests/unit/engine/config/config_support.h"

#include <math.h>
#include <time.h>

static struct config_options ranks(int64_t world_size)
{
    struct config_options options = config_options_default();
    options.world_size = world_size;
    return options;
}

/* ---- the batch triangle
 * ------------------------------------------------------------------- */

START_TEST(triangle_derives_the_missing_corners)
{
    const struct {
        int64_t world, train, micro, steps; /* 0: not given */
        int64_t want_train, want_micro, want_steps;
    } cases[] = {
        {2, 32, 16, 1, 32, 16, 1}, {2, 32, 8, 2, 32, 8, 2},  {2, 32, 0, 2, 32, 8, 2},
        {2, 0, 8, 2, 32, 8, 2},    {2, 32, 0, 0, 32, 16, 1}, {2, 0, 4, 0, 8, 4, 1},
        {2, 32, 8, 0, 32, 8, 2},   {1, 7, 0, 0, 7, 7, 1},    {3, 0, 5, 7, 105, 5, 7},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[256] = "{\"zero_optimization\": {}";
        size_t n = strlen(text);
        if (cases[i].train)
            n += (size_t)sprintf(text + n, ", \"train_batch_size\": %d", (int)cases[i].train);
        if (cases[i].micro)
            n += (size_t)sprintf(text + n, ", \"train_micro_batch_size_per_gpu\": %d",
                                 (int)cases[i].micro);
        if (cases[i].steps)
            n += (size_t)sprintf(text + n, ", \"gradient_accumulation_steps\": %d",
                                 (int)cases[i].steps);
        strcat(text, "}");
        struct config_options options = ranks(cases[i].world);
        struct ds_config *config = config_of(text, &options);
        ck_assert_int_eq(config->train_batch_size, cases[i].want_train);
        ck_assert_int_eq(config->train_micro_batch_size_per_gpu, cases[i].want_micro);
        ck_assert_int_eq(config->gradient_accumulation_steps, cases[i].want_steps);
        ck_assert_int_eq(config->world_size, cases[i].world);
        config_free(config);
    }
}
END_TEST

START_TEST(triangle_refuses_with_numbers_sources_and_advice)
{
    struct config_options two = ranks(2), four = ranks(4);
    config_refused("{\"train_batch_size\": 33,\n \"train_micro_batch_size_per_gpu\": 17, "
                   "\"gradient_accumulation_steps\": 2}",
                   &two,
                   "f.json:1:22: train_batch_size: train_batch_size 33 (line 1) is not "
                   "train_micro_batch_size_per_gpu 17 (line 2) x gradient_accumulation_steps 2 "
                   "(line 2) x 2 ranks (as asked for) = 68; what works: train_batch_size 68");
    config_refused("{\"train_batch_size\": 33, \"train_micro_batch_size_per_gpu\": 17}", &two,
                   "gradient_accumulation_steps 0 (derived)");
    config_refused("{\"train_batch_size\": 10}", &four,
                   "10 (line 1) is not train_micro_batch_size_per_gpu 2 (derived)");
    config_refused("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 18, "
                   "\"gradient_accumulation_steps\": 1}",
                   &two, "= 36");
    config_refused("{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, "
                   "\"gradient_accumulation_steps\": 1}",
                   NULL, "1 rank (the default; see --world-size) = 2; what works: ");
    config_refused("{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, "
                   "\"gradient_accumulation_steps\": 1}",
                   NULL, "; or gradient_accumulation_steps 4");
    config_refused("{\"gradient_accumulation_steps\": 2}", NULL,
                   "either train_batch_size or train_micro_batch_size_per_gpu must be given");
    config_refused("{\"train_batch_size\": 0}", NULL,
                   "f.json:1:22: train_batch_size: 0 is out of range; it must be above 0");
    config_refused("{\"train_batch_size\": \"8\"}", NULL, "expected a positive integer, got \"8\"");
    config_refused("{\"train_batch_size\": \"auto\"}", NULL,
                   "\"auto\" must be filled in; give --auto train_batch_size=VALUE");
    config_refused("{\"train_batch_size\": 10, \"sequence_parallel_size\": 3}", &four,
                   "3 does not divide the world size 4");
    config_refused("{\"train_batch_size\": 8, \"sequence_parallel_size\": 0}", &four,
                   "0 does not divide the world size 4");
    config_refused("{\"train_batch_size\": 8, \"sequence_parallel_size\": -2}", &four,
                   "-2 does not divide the world size 4");
}
END_TEST

START_TEST(triangle_follows_pythons_numbers)
{
    struct ds_config *config = config_of("{\"train_batch_size\": 3.2e1, "
                                         "\"train_micro_batch_size_per_gpu\": true}",
                                         NULL);
    ck_assert_str_eq(config_value(config, "train_batch_size"), "32");
    ck_assert_str_eq(config_value(config, "gradient_accumulation_steps"), "32");
    config_free(config);
    config = config_of("{\"train_micro_batch_size_per_gpu\": 1.5}", NULL);
    ck_assert_str_eq(config_value(config, "train_batch_size"), "1.5");
    ck_fails(config_check(config), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "must be a whole number"));
    config_free(config);
}
END_TEST

/* ---- typed sections
 * ----------------------------------------------------------------------- */

#define BATCH "\"train_batch_size\": 1, "

START_TEST(model_sections_coerce_as_pydantic)
{
    const struct {
        const char *path, *given, *want; /* want NULL: refused */
    } cases[] = {
        {"zero_optimization.sub_group_size", "5e8", "500000000"},
        {"zero_optimization.sub_group_size", "\"500\"", "500"},
        {"zero_optimization.sub_group_size", "\" +1_000.0 \"", "1000"},
        {"zero_optimization.sub_group_size", "\"5e8\"", NULL},
        {"zero_optimization.sub_group_size", "1.5", NULL},
        {"zero_optimization.sub_group_size", "true", "1"},
        {"zero_optimization.sub_group_size", "1e30", NULL},
        {"zero_optimization.sub_group_size", "99999999999999999999", "99999999999999999999"},
        {"zero_optimization.sub_group_size", "-1", NULL},
        {"zero_optimization.sub_group_size", "null", NULL},
        {"zero_optimization.sub_group_size", "\"auto\"", "1000000000"},
        {"zero_optimization.reduce_bucket_size", "0", NULL},
        {"zero_optimization.stage", "2.0", "2"},
        {"zero_optimization.stage", "\"2\"", "2"},
        {"zero_optimization.stage", "true", "1"},
        {"zero_optimization.stage", "4", NULL},
        {"zero_optimization.stage", "2.5", NULL},
        {"zero_optimization.contiguous_gradients", "\"OFF\"", "false"},
        {"zero_optimization.contiguous_gradients", "1.0", "true"},
        {"zero_optimization.contiguous_gradients", "\"y\"", "true"},
        {"zero_optimization.contiguous_gradients", "2", NULL},
        {"zero_optimization.contiguous_gradients", "\" true\"", NULL},
        {"zero_optimization.overlap_comm", "null", "false"},
        {"zero_optimization.offload_optimizer", "{}", NULL /* an object: see below */},
        {"zero_optimization.offload_optimizer", "false", NULL},
        {"zero_optimization.offload_optimizer", "null", "null"},
        {"zero_optimization.offload_optimizer.device", "\"CPU\"", NULL},
        {"zero_optimization.offload_optimizer.device", "\"nvme\"", "\"nvme\""},
        {"zero_optimization.offload_optimizer.nvme_path", "\"//a/./b//c/\"", "\"//a/b/c\""},
        {"zero_optimization.offload_optimizer.nvme_path", "\"\"", "\".\""},
        {"fp16.loss_scale", "\"1e-1\"", "0.1"},
        {"fp16.loss_scale", "true", NULL},
        {"fp16.loss_scale", "\"inf\"", NULL},
        {"fp16.loss_scale", "-1", NULL},
        {"fp16.loss_scale", "4096", "4096.0"},
        {"fp16.loss_scale_window", "true", NULL},
        {"fp16.loss_scale_window", "\"2.0\"", NULL},
        {"fp16.hysteresis", "\"2.0\"", "2"},
        {"fp16.min_loss_scale", "-3", "-3"},
        {"comms_logger.prof_ops", "\"all_reduce\"", NULL},
        {"zero_optimization.leaf_module.names", "\"a\"", "[\"a\"]"},
        {"zero_optimization.leaf_module.names", "[\"a\", \"b\", \"a\"]", "[\"a\", \"b\"]"},
        {"tensorboard.job_name", "5", NULL},
        {"wandb.group", "null", "null"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char set[256];
        snprintf(set, sizeof set, "%s=%s", cases[i].path, cases[i].given);
        const char *sets[] = {set};
        struct config_options options = config_options_default();
        options.sets = sets;
        options.n_sets = 1;
        struct ds_config *config;
        cz_status st = config_load_text("{\"train_batch_size\": 1}", 23, "f", &options, &config);
        if (cases[i].want) {
            ck_assert_msg(st == CZ_OK, "%s: %s", set, cz_last_error());
            ck_assert_str_eq(config_value(config, cases[i].path), cases[i].want);
        } else if (strcmp(cases[i].given, "{}") == 0) {
            ck_assert_int_eq(st, CZ_OK);
            ck_assert_str_eq(config_value(config, "zero_optimization.offload_optimizer.device"),
                             "\"none\"");
        } else {
            ck_assert_msg(st == CZ_INVALID, "%s was accepted", set);
            ck_assert_msg(strstr(cz_last_error(), cases[i].path), "%s: %s", set, cz_last_error());
        }
        config_free(config);
    }
}
END_TEST

START_TEST(refusals_name_place_path_value_and_remedy)
{
    config_refused("{" BATCH "\"zero_optimization\":\n  {\"stage\": 4}}", NULL,
                   "f.json:2:13: zero_optimization.stage: 4 is outside 0..3");
    config_refused("{" BATCH "\"fp16\": {\"enabled\": \"maybe\"}}", NULL,
                   "f.json:1:45: fp16.enabled: expected true or false, got \"maybe\"");
    config_refused("{" BATCH "\"zero_optimization\": {\"stage3_max_live_params\": 1}}", NULL,
                   "unknown key; did you mean \"zero_optimization.stage3_max_live_parameters\"?");
    config_refused("{" BATCH "\"zero_optimization\": {\"aio\": {}}}", NULL,
                   "zero_optimization.aio: unknown key; did you mean \"aio\"?");
    config_refused("{" BATCH "\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.5}}}",
                   NULL, "1.5 is out of range; it must be within 0..1");
    config_refused("{" BATCH "\"zero_optimization\": {\"offload_param\": {\"device\": \"gpu\"}}}",
                   NULL, "\"gpu\" is not one of \"none\", \"cpu\", \"nvme\"");
    config_refused("{" BATCH "\"communication_data_type\": \"bfp16\"}", NULL,
                   "\"bfp16\" is not one of \"fp32\", \"fp16\", \"bf16\"");
    config_refused("{" BATCH "\"elasticity\": {\"enabled\": false}}", NULL,
                   "elasticity: DeepSpeed 0.19 removed elastic training");
    config_refused("{" BATCH "\"zero_optimization\": {\"mics_shard_size\": -1}}", NULL,
                   "zero_optimization.mics_shard_size");
    config_refused("{" BATCH "\"optimizer\": {\"type\": 5}}", NULL,
                   "optimizer.type: expected a name such as \"AdamW\", got 5");
    config_refused("[1]", NULL, "expected an object of settings, got an array");
    config_refused("{" BATCH "\"fp16\": null}", NULL, "fp16: expected an object, got null");
    config_refused("{" BATCH "\"steps_per_print\": 1, \"steps_per_print\": 2}", NULL,
                   "duplicate key \"steps_per_print\"");
}
END_TEST

START_TEST(every_problem_is_told_at_once)
{
    config_refused("{\"train_batch_size\": 0, \"fp16\": {\"enabled\": 7, \"x\": 1}}", NULL,
                   "fp16.x");
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "fp16.enabled"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "train_batch_size"));
}
END_TEST

START_TEST(other_spellings_and_old_names)
{
    struct ds_config *config =
        config_of("{" BATCH "\"zero_optimization\": {\"stage\": 3, \"prefetch_bucket_size\": 7, "
                  "\"cpu_offload\": true, \"cpu_offload_param\": false, "
                  "\"stage3_gather_fp16_weights_on_model_save\": true}}",
                  NULL);
    ck_assert_int_eq(config->zero.prefetch_bucket_size, 7);
    ck_assert_int_eq(config->zero.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    ck_assert(config->zero.offload_optimizer.given);
    ck_assert(!config->zero.offload_param.given);
    ck_assert(config->zero.gather_16bit_weights_on_model_save);
    ck_assert(config->zero.overlap_comm);
    ck_assert_str_eq(config_value(config, "zero_optimization.cpu_offload"), "absent");
    ck_assert_ptr_nonnull(config_has_note(config, CONFIG_NOTE_DEPRECATED, "cpu_offload: an old"));
    config_free(config);
    config_refused("{" BATCH "\"zero_optimization\": {\"prefetch_bucket_size\": 1, "
                   "\"stage3_prefetch_bucket_size\": 1}}",
                   NULL, "prefetch_bucket_size: is given together with");
    config_refused("{" BATCH "\"zero_optimization\": {\"cpu_offload\": false, "
                   "\"offload_optimizer\": null}}",
                   NULL, "is an old name of \"offload_optimizer\", which is given too");
    config = config_of("{" BATCH "\"bfloat16\": {\"enabled\": true}, \"bf16\": null}", NULL);
    ck_assert(config->bf16.enabled);
    ck_assert_int_eq(config->model_dtype, DTYPE_BF16);
    ck_assert_str_eq(config_value(config, "bfloat16"), "absent");
    config_free(config);
}
END_TEST

START_TEST(zero_has_an_older_form)
{
    struct ds_config *config =
        config_of("{" BATCH "\"zero_optimization\": true, \"allgather_size\": 2e8}", NULL);
    ck_assert_int_eq(config->zero.stage, 1);
    ck_assert_int_eq(config->zero.allgather_bucket_size, 200000000);
    config_free(config);
    config = config_of("{" BATCH "\"zero_optimization\": false, \"allgather_size\": 2}", NULL);
    ck_assert_int_eq(config->zero.stage, 0);
    ck_assert_int_eq(config->zero.allgather_bucket_size, 500000000);
    config_free(config);
}
END_TEST

START_TEST(overlap_is_on_at_stage_3_only)
{
    for (int stage = 0; stage <= 3; stage++) {
        char text[128];
        sprintf(text, "{" BATCH "\"zero_optimization\": {\"stage\": %d}}", stage);
        struct ds_config *config = config_of(text, NULL);
        ck_assert_int_eq(config->zero.overlap_comm, stage == 3);
        config_free(config);
    }
}
END_TEST

/* ---- checks across keys
 * -------------------------------------------------------------------- */

START_TEST(keys_that_do_not_go_together)
{
    const struct {
        const char *text, *sentence;
    } cases[] = {
        {"\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}", "cannot both be enabled"},
        {"\"gradient_allreduce_op\": \"SUM\", \"zero_optimization\": {\"stage\": 3}",
         "\"sum\" does not work with ZeRO stage 3"},
        {"\"fp16\": {\"fp16_master_weights_and_grads\": true}", "needs ZeRO"},
        {"\"bf16\": {\"bf16_optimizer_states\": true}, \"zero_optimization\": {\"stage\": 1}",
         "needs bf16.bf16_master_weights_and_grads"},
        {"\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"ratio\": 0.5}}",
         "needs zero_optimization.stage 3"},
        {"\"zero_optimization\": {\"stage\": 3, \"compute_grad_norm\": false}",
         "false works with zero_optimization.stage 1 and 2 only"},
        {"\"fp16\": {\"enabled\": true, \"min_loss_scale\": -1000}",
         "dynamic loss scaling needs it above 0"},
        {"\"wall_clock_breakdown\": null", "expected true or false, got null"},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": \"x\"}}",
         "set gradient_clipping"},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": \"auto\"}}",
         "give --auto optimizer.params.max_grad_norm=VALUE"},
        {"\"aio\": {\"use_gds\": true}", "GPUDirect Storage"},
        {"\"data_types\": {\"keep_in_fp32_modules\": \"x\"}", "\"auto\" or a list of strings"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{" BATCH "%s}", cases[i].text);
        config_refused(text, NULL, cases[i].sentence);
    }
    /* A static scale may carry nonsense. */
    config_free(config_of("{" BATCH "\"fp16\": {\"enabled\": true, \"loss_scale\": 8, "
                          "\"min_loss_scale\": -1000, \"loss_scale_window\": 0}}",
                          NULL));
}
END_TEST

/* ---- unknown keys, notes, check
 * ------------------------------------------------------------------------ */

START_TEST(unknown_top_level_keys_warn_with_the_nearest)
{
    static const char text[] = "{\"train_batch_size\": 1, \"gradient_clipp1ng\": 1.0, "
                               "\"_comment\": \"x\", \"aio\": {\"thread_count\": 4}}";
    struct ds_config *config = config_of(text, NULL);
    ck_assert_ptr_nonnull(
        config_has_note(config, CONFIG_NOTE_UNKNOWN,
                        "f.json:1:46: gradient_clipp1ng: unknown key, ignored; did you mean "
                        "\"gradient_clipping\"?"));
    ck_assert_ptr_nonnull(config_has_note(config, CONFIG_NOTE_UNKNOWN, "aio.thread_count"));
    ck_assert_ptr_null(config_has_note(config, CONFIG_NOTE_UNKNOWN, "_comment"));
    ck_ok(config_check(config));
    config_free(config);
    struct config_options options = config_options_default();
    options.strict = true;
    config_refused(text, &options, "gradient_clipp1ng: unknown key; did you mean");
}
END_TEST

#define NVME(stage, more)                                                                          \
    "\"zero_optimization\": {\"stage\": " stage                                                    \
    ", \"offload_optimizer\": {\"device\": \"nvme\", " more "}}"

START_TEST(every_x_key_is_answered)
{
    const struct {
        const char *text;
        enum config_note_kind kind;
        const char *part;
        cz_status check;
    } cases[] = {
        {"\"disable_allgather\": true", CONFIG_NOTE_NO_EFFECT, "has no effect here", CZ_OK},
        {"\"zero_optimization\": {\"allgather_partitions\": true}", CONFIG_NOTE_NO_EFFECT,
         "has no effect here", CZ_OK},
        {"\"wandb\": {\"enabled\": true}", CONFIG_NOTE_NO_EFFECT, "csv_monitor", CZ_OK},
        {"\"pipeline\": {\"stages\": 1}", CONFIG_NOTE_NO_EFFECT, "pipeline", CZ_OK},
        {"\"zero_optimization\": {\"zero_quantized_weights\": true}", CONFIG_NOTE_UNSUPPORTED,
         "not supported: the quantised all-gather", CZ_UNSUPPORTED},
        {"\"zero_optimization\": {\"zenflow\": {}}", CONFIG_NOTE_UNSUPPORTED, "ZenFlow",
         CZ_UNSUPPORTED},
        {"\"hybrid_engine\": {\"enabled\": true}", CONFIG_NOTE_UNSUPPORTED, "hybrid",
         CZ_UNSUPPORTED},
        {"\"tensor_parallel\": {\"autotp_size\": 2}", CONFIG_NOTE_UNSUPPORTED, "tensor parallel",
         CZ_UNSUPPORTED},
        {"\"torch_autocast\": {\"enabled\": true}", CONFIG_NOTE_UNSUPPORTED, "use bf16",
         CZ_UNSUPPORTED},
        {"\"autotuning\": {\"enabled\": true}", CONFIG_NOTE_UNSUPPORTED, "czero tune",
         CZ_UNSUPPORTED},
        {"\"compile\": {\"deepcompile\": true}", CONFIG_NOTE_NO_EFFECT, "no graph to compile",
         CZ_OK},
        {"\"optimizer\": {\"type\": \"Muon\"}", CONFIG_NOTE_UNSUPPORTED,
         "type: Muon is not supported", CZ_UNSUPPORTED},
        {"\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"comm_backend_name\": \"gloo\"}}",
         CONFIG_NOTE_ENGINE_REJECTS,
         "comm_backend_name: \"gloo\" is not known; choose from \"nccl\", \"mpi\"", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"OneBitLamb\", \"params\": {\"freeze_step\": 0}}",
         CONFIG_NOTE_ENGINE_REJECTS, "freeze_step: 0 must be a whole number from 1 on", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"sgd\"}", CONFIG_NOTE_ENGINE_REJECTS, "SGD", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 0}}",
         CONFIG_NOTE_ENGINE_REJECTS, "gradient_clipping", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"1e-4\"}}",
         CONFIG_NOTE_ENGINE_REJECTS, "optimizer.params.lr: a number", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lrr\": 1}}",
         CONFIG_NOTE_ENGINE_REJECTS, "did you mean \"lr\"", CZ_INVALID},
        {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 1e3}}",
         CONFIG_NOTE_ENGINE_REJECTS, "must be an integer", CZ_INVALID},
        {"\"scheduler\": {\"type\": \"WarmupLR\"}", CONFIG_NOTE_ENGINE_REJECTS,
         "scheduler.params: expected an object", CZ_INVALID},
        {"\"scheduler\": {\"type\": \"Cosine\", \"params\": {}}", CONFIG_NOTE_ENGINE_REJECTS,
         "WarmupCosineLR", CZ_INVALID},
        {"\"scheduler\": {\"type\": \"ReduceLROnPlateau\", \"params\": {}}",
         CONFIG_NOTE_UNSUPPORTED, "not supported: ReduceLROnPlateau needs a metric",
         CZ_UNSUPPORTED},
        {"\"optimizer\": {\"type\": \"Adagrad\"}, \"scheduler\": {\"type\": \"CyclicLR\", "
         "\"params\": {\"base_lr\": 0.1, \"max_lr\": 0.2}}",
         CONFIG_NOTE_ENGINE_REJECTS, "Adagrad has neither betas nor a momentum", CZ_INVALID},
        {"\"optimizer\": {\"type\": \"SGD\"}, \"zero_optimization\": {\"stage\": 1}",
         CONFIG_NOTE_ENGINE_REJECTS, "zero_allow_untested_optimizer", CZ_INVALID},
        {"\"gradient_clipping\": \"abc\"", CONFIG_NOTE_ENGINE_REJECTS,
         "gradient_clipping: expected a number, got \"abc\"", CZ_INVALID},
        {"\"steps_per_print\": \"auto\"", CONFIG_NOTE_ENGINE_REJECTS,
         "give --auto steps_per_print=VALUE", CZ_INVALID},
        {"\"steps_per_print\": 0", CONFIG_NOTE_ENGINE_REJECTS, "above 0", CZ_INVALID},
        {"\"log_level\": \"loud\"", CONFIG_NOTE_ENGINE_REJECTS, "debug, info", CZ_INVALID},
        {"\"dump_state\": \"false\"", CONFIG_NOTE_ENGINE_REJECTS, "expected true or false",
         CZ_INVALID},
        {"\"prescale_gradients\": true, \"zero_optimization\": {\"stage\": 2}",
         CONFIG_NOTE_ENGINE_REJECTS, "reduce_scatter", CZ_INVALID},
        {"\"zero_optimization\": {\"stage\": 1, \"allgather_bucket_size\": 3}",
         CONFIG_NOTE_ENGINE_REJECTS, "must be even", CZ_INVALID},
        {"\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"bf16\": {\"enabled\": true}",
         CONFIG_NOTE_ENGINE_REJECTS, "at stage 0", CZ_INVALID},
        {"\"comms_logger\": {\"enabled\": false}", CONFIG_NOTE_CHOICE, "is off", CZ_OK},
        {"\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}",
         CONFIG_NOTE_CHOICE, "in host memory already", CZ_OK},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}",
         CONFIG_NOTE_CHOICE, "the parameters are in host memory already", CZ_OK},
        {NVME("1", "\"nvme_path\": \"/n\""), CONFIG_NOTE_CHOICE, "works at stage 1 too", CZ_OK},
        {NVME("3", "\"buffer_count\": 4"), CONFIG_NOTE_ENGINE_REJECTS, "nvme_path: is missing",
         CZ_INVALID},
        {NVME("3", "\"nvme_path\": \"/n\", \"buffer_count\": 4"), CONFIG_NOTE_NO_EFFECT,
         "buffers follow from the model", CZ_OK},
        {NVME("3", "\"nvme_path\": \"/n\", \"fast_init\": true"), CONFIG_NOTE_NO_EFFECT,
         "made in the file", CZ_OK},
        {NVME("3", "\"nvme_path\": \"/n\"") ", \"aio\": {\"overlap_events\": false}",
         CONFIG_NOTE_NO_EFFECT, "while others complete", CZ_OK},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", "
         "\"ratio\": 0.5}}",
         CONFIG_NOTE_NO_EFFECT, "both parts are in host memory", CZ_OK},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\", "
         "\"max_in_cpu\": 5}}",
         CONFIG_NOTE_NO_EFFECT, "it is for the device nvme", CZ_OK},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\", "
         "\"buffer_size\": 5}}",
         CONFIG_NOTE_NO_EFFECT, "buffers follow from the model", CZ_OK},
        {NVME("3", "\"nvme_path\": \"/n\"") ", \"aio\": {\"queue_depth\": 4294967304}",
         CONFIG_NOTE_UNSUPPORTED, "more than 4096 blocks", CZ_UNSUPPORTED},
        {NVME("3", "\"nvme_path\": \"/n\"") ", \"aio\": {\"block_size\": 1073741825}",
         CONFIG_NOTE_UNSUPPORTED, "blocks above 1 GiB", CZ_UNSUPPORTED},
        {"\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"/p\"}, "
         "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/n\"}}",
         CONFIG_NOTE_NO_EFFECT, "one swap file", CZ_OK},
        {"\"activation_checkpointing\": {\"cpu_checkpointing\": true}", CONFIG_NOTE_CHOICE,
         "activations are in host memory already", CZ_OK},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{" BATCH "%s}", cases[i].text);
        struct ds_config *config = config_of(text, NULL);
        ck_assert_msg(config_has_note(config, cases[i].kind, cases[i].part), "%s: no note \"%s\"",
                      text, cases[i].part);
        cz_status st = config_check(config);
        ck_assert_msg(st == cases[i].check, "%s: %s (%s)", text, cz_status_name(st),
                      cz_last_error());
        config_free(config);
    }
}
END_TEST

START_TEST(sections_that_are_off_are_accepted_silently)
{
    struct ds_config *config =
        config_of("{" BATCH "\"gradient_clipping\": 1.0, \"wandb\": {\"enabled\": false}, "
                  "\"compile\": {\"deepcompile\": false, \"double_buffer\": false}, "
                  "\"autotuning\": {\"enabled\": false, \"fast\": false}}",
                  NULL);
    ck_assert_uint_eq(config_n_notes(config), 0);
    ck_ok(config_check(config));
    config_free(config);
}
END_TEST

/* ---- auto and set
 * ---------------------------------------------------------------------------------------- */

START_TEST(autos_fill_what_says_auto)
{
    static const char text[] =
        "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
        "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": 0.5, "
        "\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\"}, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": "
        "\"auto\"}}, "
        "\"steps_per_print\": \"auto\", \"zero_optimization\": {\"stage\": 3, "
        "\"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\", "
        "\"stage3_param_persistence_threshold\": \"auto\"}}";
    const char *autos[] = {"train_micro_batch_size_per_gpu=4",
                           "gradient_accumulation_steps=2",
                           "train_batch_size=8",
                           "gradient_clipping=1.0",
                           "bf16.enabled=true",
                           "optimizer.params.lr=5e-5",
                           "hidden_size=768",
                           "optimizer.params.betas=[0.9, 0.95]",
                           "nothing.here=1"};
    struct config_options options = config_options_default();
    options.autos = autos;
    options.n_autos = CZ_ARRAY_LEN(autos);
    struct ds_config *config = config_of(text, &options);
    ck_assert_int_eq(config->train_batch_size, 8);
    ck_assert_double_eq(config->gradient_clipping, 0.5); /* was not "auto" */
    ck_assert(config->bf16.enabled);
    ck_assert(!config->fp16.enabled); /* left over in a typed section: the default */
    ck_assert_double_eq(config->optimizer.hyper.lr, 5e-5);
    ck_assert_double_eq(config->optimizer.hyper.betas[1], 0.95);
    ck_assert_int_eq(config->zero.reduce_bucket_size, 768 * 768);
    ck_assert_int_eq(config->zero.prefetch_bucket_size, 530841);
    ck_assert_int_eq(config->zero.param_persistence_threshold, 7680);
    ck_assert_str_eq(config_value(config, "steps_per_print"), "\"auto\"");
    ck_assert_str_eq(config_value(config, "nothing"), "absent");
    config_free(config);
    const char *bad[] = {"hidden_size=wide"};
    options.autos = bad;
    options.n_autos = 1;
    config_refused(text, &options, "--auto hidden_size: expected a positive integer");
    bad[0] = "train_batch_size";
    config_refused(text, &options, "write --auto NAME=VALUE");
}
END_TEST

START_TEST(sets_override_and_add)
{
    const char *sets[] = {"zero_optimization.stage=2", "optimizer.type=AdamW",
                          "train_batch_size=16", "zero_optimization.offload_optimizer.device=cpu"};
    struct config_options options = config_options_default();
    options.sets = sets;
    options.n_sets = CZ_ARRAY_LEN(sets);
    struct ds_config *config = config_of("{\"train_batch_size\": 4}", &options);
    ck_assert_int_eq(config->train_batch_size, 16);
    ck_assert_int_eq(config->zero.stage, 2);
    ck_assert_str_eq(config->optimizer.type, "adamw");
    ck_assert_int_eq(config->zero.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    config_free(config);
    sets[0] = "zero_optimization.stage=9";
    config_refused("{}", &options, "--set zero_optimization.stage: 9 is outside 0..3");
    sets[0] = "train_batch_size.x=1";
    config_refused("{\"train_batch_size\": 4}", &options, "\"train_batch_size\" is not an object");
}
END_TEST

/* ---- printing
 * -----------------------------------------------------------------------------------------------
 */

static const char rich[] =
    "{\"train_batch_size\": 3.2e1, \"gradient_clipping\": 1.0, \"steps_per_print\": 2e3, # c\n"
    "\"optimizer\": {\"type\": \"ADAMW\", \"params\": {\"lr\": 1e-5, \"eps\": 1.0, \"x\": "
    "\"1e-4\"}}\n"
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 1e3}},\n"
    "\"zero_optimization\": {\"stage\": 3, \"cpu_offload\": true, \"sub_group_size\": "
    "99999999999999999999, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a//b/\"}},\n"
    "\"pipeline\": {\"mine\": [1.0, {}]}, \"tensor_parallel\": {\"tensor_parallel\": {}},\n"
    "\"flops_profiler\": {\"enabled\": true}, \"checkpoint\": {\"tag_validation\": \"fail\"},}";

START_TEST(json_fed_back_gives_the_same_bytes)
{
    char *first, *second;
    struct ds_config *config = config_of(rich, NULL);
    ck_ok(config_json(config, &first));
    config_free(config);
    config = config_of(first, NULL);
    ck_ok(config_json(config, &second));
    ck_assert_str_eq(first, second);
    ck_assert_ptr_nonnull(strstr(first, "\"type\": \"adamw\""));
    ck_assert_ptr_nonnull(strstr(first, "\"x\": \"1e-4\""));
    ck_assert_ptr_nonnull(strstr(first, "\"sub_group_size\": 99999999999999999999"));
    ck_assert_ptr_nonnull(strstr(first, "\"nvme_path\": \"/a/b\""));
    ck_assert_ptr_nonnull(strstr(first, "\"wall_clock_breakdown\": true"));
    ck_assert_ptr_nonnull(strstr(first, "\"tag_validation\": \"FAIL\""));
    ck_assert_int_eq(config->zero.sub_group_size, INT64_MAX);
    config_free(config);
    free(first);
    free(second);
}
END_TEST

static void note_difference(void *user, const char *path, const char *a, const char *b)
{
    char *text = user;
    const size_t n = strlen(text);
    (void)snprintf(text + n, 4096 - n, "%s|%s|%s\n", path, a, b);
}

START_TEST(differences_come_one_by_one)
{
    struct ds_config *a =
        config_of("{\"train_batch_size\": 4, \"tensorboard\": {\"enabled\": true, "
                  "\"job_name\": \"a: b -> c\"}}",
                  NULL);
    struct ds_config *b = config_of("{\"train_batch_size\": 8}", NULL);
    char text[4096] = "";
    ck_ok(config_diff_walk(a, b, note_difference, text));
    ck_assert_ptr_nonnull(strstr(text, "train_batch_size|4|8\n"));
    ck_assert_msg(strstr(text, "|\"a: b -> c\"|") != NULL, "%s", text);
    text[0] = '\0';
    ck_ok(config_diff_walk(a, a, note_difference, text));
    ck_assert_str_eq(text, "");
    config_free(a);
    config_free(b);
}
END_TEST

/* A config whose "autotuning.metric" is a dict, or a list of a dict, of the keys 0, step, 2 step, …
 * modulo n. Every value but that of key `other` is 1. */
static struct ds_config *of_keys(size_t n, size_t step, size_t other, bool in_list)
{
    struct json_writer w;
    char *json, name[24];
    json_writer_init(&w, 0);
    json_begin_object(&w);
    json_put_int(&w, "train_batch_size", 1);
    json_write_key(&w, "autotuning");
    json_begin_object(&w);
    json_write_key(&w, "metric");
    if (in_list) json_begin_array(&w);
    json_begin_object(&w);
    for (size_t i = 0, key = 0; i < n; i++, key = (key + step) % n) {
        snprintf(name, sizeof name, "k%zu", key);
        json_put_int(&w, name, key == other ? 2 : 1);
    }
    json_end_object(&w);
    if (in_list) json_end_array(&w);
    json_end_object(&w);
    json_end_object(&w);
    ck_ok(json_writer_take(&w, &json, NULL));
    struct ds_config *config = config_of(json, NULL);
    free(json);
    return config;
}

/* Keys in another order are equal, whether there are few of them or so many that a search of all
 * for each takes seconds. */
START_TEST(dicts_of_any_size_are_compared)
{
    static const size_t sizes[] = {1, 15, 16, 17, 18, 33, 40000};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        const size_t n = sizes[i], step = n == 15 || n == 18 || n == 33 ? 7 : n > 33 ? 7777 : 3;
        const clock_t start = clock();
        for (int in_list = 0; in_list < 2; in_list++) {
            struct ds_config *a = of_keys(n, 1, n, in_list), *b = of_keys(n, step, n, in_list),
                             *c = of_keys(n, step, n - 1, in_list),
                             *fewer = of_keys(n - 1, 1, n, in_list);
            char *text, want[64];
            size_t n_found;
            ck_ok(config_diff(a, b, &text, &n_found));
            ck_assert_uint_eq(n_found, 0);
            free(text);
            ck_ok(config_diff(a, c, &text, &n_found));
            ck_assert_uint_eq(n_found, 1);
            snprintf(want, sizeof want, "autotuning.metric.k%zu: 1 -> 2\n", n - 1);
            if (!in_list) ck_assert_str_eq(text, want);
            free(text);
            snprintf(want, sizeof want, "autotuning.metric.k%zu: 1 -> absent\n", n - 1);
            ck_ok(config_diff(b, fewer, &text, &n_found));
            ck_assert_uint_eq(n_found, 1);
            if (!in_list) ck_assert_str_eq(text, want);
            free(text);
            snprintf(want, sizeof want, "autotuning.metric.k%zu: absent -> 1\n", n - 1);
            ck_ok(config_diff(fewer, b, &text, &n_found));
            ck_assert_uint_eq(n_found, 1);
            if (!in_list) ck_assert_str_eq(text, want);
            free(text);
            config_free(a);
            config_free(b);
            config_free(c);
            config_free(fewer);
        }
        ck_assert_double_lt((double)(clock() - start) / CLOCKS_PER_SEC, 4);
    }
}
END_TEST

START_TEST(diff_and_explain_tell_values_and_origins)
{
    struct ds_config *a = config_of("{\"train_batch_size\": 4}", NULL);
    struct ds_config *b = config_of("{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}, "
                                    "\"zero_optimization\": {\"cpu_offload\": true}}",
                                    NULL);
    char *text;
    size_t n;
    ck_ok(config_diff(a, b, &text, &n));
    ck_assert_uint_eq(n, 4);
    ck_assert_ptr_nonnull(strstr(text, "train_batch_size: 4 -> 8\n"));
    ck_assert_ptr_nonnull(strstr(text, "bf16.enabled: false -> true\n"));
    ck_assert_ptr_nonnull(strstr(text, "zero_optimization.offload_optimizer: null -> {\"device\""));
    free(text);
    ck_ok(config_diff(a, a, &text, &n));
    ck_assert_uint_eq(n, 0);
    ck_assert_str_eq(text, "");
    free(text);
    ck_ok(config_explain(b, &text));
    ck_assert_ptr_nonnull(strstr(text, "bf16.enabled = true  # line 1; "));
    ck_assert_ptr_nonnull(strstr(text, "train_micro_batch_size_per_gpu = 8  # derived; "));
    ck_assert_ptr_nonnull(strstr(text, "aio.queue_depth = 8  # default; "));
    free(text);
    char buf[128];
    ck_assert_str_eq(config_where(b, "bf16.enabled", buf, sizeof buf), "f.json:1:45: bf16.enabled");
    ck_assert_str_eq(config_where(b, "aio", buf, sizeof buf), "f.json: aio");
    config_free(a);
    config_free(b);
}
END_TEST

/* ---- the typed view
 * ------------------------------------------------------------------------------------------- */

START_TEST(typed_view_holds_what_the_engine_needs)
{
    struct ds_config *c = config_of(
        "{\"train_batch_size\": 8, \"gradient_accumulation_steps\": 2, \"gradient_clipping\": 0.25,"
        "\"steps_per_print\": 7, \"log_level\": \"INFO\", \"memory_breakdown\": true,"
        "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, \"hysteresis\": 3},"
        "\"communication_data_type\": \"FP32\", \"gradient_allreduce_op\": \"Sum\","
        "\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 1000},"
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01, \"adam_w_mode\": false}},"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 50, "
        "\"warmup_num_steps\": 1, \"warmup_type\": \"linear\"}},"
        "\"csv_monitor\": {\"enabled\": true, \"output_path\": \"out\", \"job_name\": \"j\"},"
        "\"activation_checkpointing\": {\"number_checkpoints\": 4},"
        "\"comms_logger\": {\"enabled\": true, \"prof_ops\": [\"all_reduce\"]},"
        "\"checkpoint\": {\"tag_validation\": \"ignore\"},"
        "\"flops_profiler\": {\"enabled\": true, \"profile_step\": 3},"
        "\"data_types\": {\"grad_accum_dtype\": \"fp32\"},"
        "\"czero\": {\"activation_checkpointing\": {\"every\": 2}, \"max_consecutive_skips\": 9,"
        "\"tf32\": true, \"keep_all_activations\": true, \"accumulation_order\": \"layers\", "
        "\"offload_activations\": true, \"machine_profile\": \"m.json\", "
        "\"activation_memory\": 5}}",
        NULL);
    ck_ok(config_check(c));
    ck_assert_int_eq(c->train_micro_batch_size_per_gpu, 4);
    ck_assert_double_eq(c->gradient_clipping, 0.25);
    ck_assert(c->gradient_clipping_given && c->memory_breakdown && c->wall_clock_breakdown);
    ck_assert_int_eq(c->steps_per_print, 7);
    ck_assert_int_eq(c->log_level, CONFIG_LOG_INFO);
    ck_assert_int_eq(c->model_dtype, DTYPE_F16);
    ck_assert_int_eq(c->communication_dtype, DTYPE_F32);
    ck_assert_int_eq(c->grad_accum_dtype, DTYPE_F32);
    ck_assert(c->grad_accum_dtype_given && c->gradient_allreduce_sum);
    ck_assert_int_eq(c->fp16.initial_scale_power, 8);
    ck_assert_int_eq(c->fp16.hysteresis, 3);
    ck_assert(c->fp16.scaler_given);
    ck_assert_int_eq(c->zero.stage, 2);
    ck_assert_int_eq(c->zero.reduce_bucket_size, 1000);
    ck_assert_int_eq(c->zero.model_persistence_threshold, INT64_MAX);
    ck_assert(c->optimizer.usable && !c->optimizer.hyper.adam_w_mode);
    ck_assert_double_eq(c->optimizer.hyper.lr, 0.01);
    ck_assert(c->scheduler.usable);
    ck_assert_int_eq(c->scheduler.params.kind, SCHEDULE_WARMUP_DECAY);
    ck_assert_int_eq(c->scheduler.params.warmup_num_steps, 2);
    ck_assert(c->csv_monitor.enabled && !c->tensorboard.enabled);
    ck_assert_str_eq(c->csv_monitor.output_path, "out");
    ck_assert_str_eq(c->csv_monitor.job_name, "j");
    ck_assert_int_eq(c->activation_checkpointing.number_checkpoints, 4);
    ck_assert_uint_eq(c->comms_logger.n_prof_ops, 1);
    ck_assert_int_eq(c->checkpoint.tag_validation, CONFIG_TAG_IGNORE);
    ck_assert_int_eq(c->flops_profiler.profile_step, 3);
    ck_assert_ptr_null(c->flops_profiler.output_file);
    ck_assert_int_eq(c->czero.activation_checkpointing_every, 2);
    ck_assert_int_eq(c->czero.max_consecutive_skips, 9);
    ck_assert(c->czero.tf32 && c->czero.keep_all_activations);
    ck_assert_int_eq(c->czero.accumulation_order, CONFIG_ORDER_LAYERS);
    ck_assert(c->czero.offload_activations);
    ck_assert_str_eq(c->czero.machine_profile, "m.json");
    ck_assert_int_eq(c->czero.activation_memory, 5);
    ck_assert(c->czero.async_save && c->timers_throughput_enabled);
    config_free(c);
}
END_TEST

START_TEST(compat_0_16_selects_the_older_defaults)
{
    static const char text[] = "{" BATCH "\"nebula\": {\"enabled\": false}, \"zero_optimization\": "
                               "{\"stage\": 1, \"offload_optimizer\": {}}}";
    struct config_options options = config_options_default();
    options.compat = CONFIG_COMPAT_0_16;
    struct ds_config *c = config_of(text, &options);
    ck_assert_double_eq(c->gradient_clipping, 0);
    ck_assert(!c->zero.offload_optimizer.pin_memory);
    ck_assert(!c->bf16.check_grad_overflow);
    ck_assert(!c->fp16.scaler_given);
    config_free(c);
    config_refused("{" BATCH "\"amp\": {\"enabled\": true}}", &options, "not supported: Apex amp");
    config_refused(text, NULL, "nebula");
    c = config_of("{" BATCH "}", NULL);
    ck_assert_double_eq(c->gradient_clipping, 1.0);
    ck_assert(c->bf16.check_grad_overflow);
    ck_assert_ptr_nonnull(config_has_note(c, CONFIG_NOTE_DEFAULT, "gradient_clipping"));
    config_free(c);
}
END_TEST

/* docs/deepspeed-behaviour.md, "Elasticity": the example of version 0.1, and whole hosts. */
START_TEST(elasticity_finds_a_batch_under_0_16)
{
    static const char text[] =
        "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 10000, "
        "\"micro_batch_sizes\": [8, 12, 16, 17], \"min_gpus\": 32, \"max_gpus\": 1500, "
        "\"version\": 0.1}}";
    struct config_options options = config_options_default();
    options.compat = CONFIG_COMPAT_0_16;
    int n_valid = 0;
    for (options.world_size = 1; options.world_size <= 1500; options.world_size++) {
        struct ds_config *c;
        if (config_load_text(text, strlen(text), "f", &options, &c) != CZ_OK) {
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "can be shared by"));
            continue;
        }
        n_valid++;
        ck_assert_int_eq(c->train_batch_size, 9792);
        if (options.world_size == 64) {
            ck_assert_int_eq(c->train_micro_batch_size_per_gpu, 17);
            ck_assert_int_eq(c->gradient_accumulation_steps, 9);
        }
        config_free(c);
    }
    ck_assert_int_eq(n_valid, 23);

    options.world_size = 16;
    const char *sets[] = {"elasticity.version=0.2", "elasticity.num_gpus_per_node=8",
                          "elasticity.min_gpus=8"};
    options.sets = sets;
    options.n_sets = CZ_ARRAY_LEN(sets);
    struct ds_config *c = config_of(text, &options);
    ck_assert_int_eq(c->train_batch_size % (16 * c->train_micro_batch_size_per_gpu), 0);
    ck_assert_int_le(c->train_batch_size, 10000);
    config_free(c);

    options.n_sets = 0;
    config_refused("{\"train_batch_size\": 8, \"elasticity\": {\"enabled\": true, "
                   "\"max_train_batch_size\": 64, \"micro_batch_sizes\": [2]}}",
                   &options, "train_batch_size: is given together with elasticity");
    config_refused("{\"elasticity\": {\"enabled\": true, \"micro_batch_sizes\": [2]}}", &options,
                   "\"max_train_batch_size\" is missing");
    config_refused("{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 64, "
                   "\"micro_batch_sizes\": [2, -1]}}",
                   &options, "elasticity.micro_batch_sizes: expected a list");
    config_refused(text, NULL, "DeepSpeed 0.19 removed elastic training");
}
END_TEST

/* A square number of ranks counts once; the bounds of the ranks count. 36 rows in micro-batches of
 * 1 are shared by 1, 2, 3, 4, 6, 9, 12, 18 or 36 ranks, and 24 by 1, 2, 3, 4, 6, 8, 12 or 24. */
START_TEST(elasticity_counts_the_ranks_that_share_a_batch)
{
    static const struct {
        int64_t max_batch, micros[2], min_ranks, max_ranks;
        bool larger;
        int64_t batch;
    } cases[] = {
        {59, {1, 0}, 1, 100, true, 48},       /* the only candidate: 10 numbers of ranks */
        {47, {36, 24}, 1, 100, true, 36},     /* 1 each: of equal choices, the larger */
        {47, {36, 24}, 1, 100, false, 24},    /* or the smaller */
        {47, {1, 10}, 1, 10, true, 40},       /* 36: 1, 2, 3, 4, 6, 9; 40: 1, 2, 4, 5, 8, 10 */
        {47, {1, 10}, 1, 10, false, 36},      /* the same */
        {48, {9, 8}, 1, 4, false, 36},        /* 36: 1, 2, 4; 48: 1, 2, 3 */
        {48, {9, 8}, 1, 4, true, 48},         /* the same */
        {48, {9, 8}, 1, 6, false, 48},        /* 36: 1, 2, 4; 48: 1, 2, 3, 6 */
        {48, {9, 8}, 4, 5, false, 36},        /* only 36 has 4 */
        {48, {9, 8}, 6, 6, false, 48},        /* only 48 has 6 */
        {48, {9, 8}, 1, 100000000, true, 48}, /* as many ranks as a file may ask for */
    };
    struct config_options options = config_options_default();
    options.compat = CONFIG_COMPAT_0_16;
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512], micros[64];
        snprintf(micros, sizeof micros, cases[i].micros[1] ? "%d, %d" : "%d",
                 (int)cases[i].micros[0], (int)cases[i].micros[1]);
        snprintf(text, sizeof text,
                 "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": %d, "
                 "\"micro_batch_sizes\": [%s], \"min_gpus\": %d, \"max_gpus\": %d, "
                 "\"prefer_larger_batch\": %s, \"version\": 0.1}}",
                 (int)cases[i].max_batch, micros, (int)cases[i].min_ranks, (int)cases[i].max_ranks,
                 cases[i].larger ? "true" : "false");
        options.world_size = cases[i].min_ranks;
        struct ds_config *c = config_of(text, &options);
        ck_assert_msg(c->train_batch_size == cases[i].batch, "%s: %d", text,
                      (int)c->train_batch_size);
        config_free(c);
    }
}
END_TEST

/* A second is far more than it takes, and far less than an attempt with each number of ranks. */
START_TEST(elasticity_of_a_hundred_million_ranks_takes_no_time)
{
    char text[4096];
    size_t n = (size_t)sprintf(text, "{\"elasticity\": {\"enabled\": true, \"version\": 0.1, "
                                     "\"max_train_batch_size\": 100000000, "
                                     "\"max_gpus\": 100000000, \"micro_batch_sizes\": [1");
    for (int i = 2; i <= 64; i++) n += (size_t)sprintf(text + n, ", %d", i);
    strcpy(text + n, "]}}");
    struct config_options options = config_options_default();
    options.compat = CONFIG_COMPAT_0_16;
    options.world_size = 1;
    const clock_t begin = clock();
    struct ds_config *c = config_of(text, &options);
    ck_assert_int_lt((clock() - begin) / CLOCKS_PER_SEC, 2);
    ck_assert_int_le(c->train_batch_size, 100000000);
    ck_assert_int_gt(c->train_batch_size, 40000000);
    config_free(c);
}
END_TEST

/* {"kkk…": {"kkk…": … {"a0": value, "a1": value, …}}}: each name's path is long. */
static char *deep_and_wide(int n_deep, int n_wide, const char *value)
{
    char name[201];
    memset(name, 'k', 200);
    name[200] = '\0';
    char *text = malloc((size_t)n_deep * 210 + (size_t)n_wide * (strlen(value) + 16) + 64);
    ck_assert_ptr_nonnull(text);
    size_t n = (size_t)sprintf(text, "{\"train_batch_size\": 1");
    for (int i = 0; i < n_deep; i++)
        n += (size_t)sprintf(text + n, "%s\"%s\": {", i == 0 ? ", " : "", name);
    for (int i = 0; i < n_wide; i++)
        n += (size_t)sprintf(text + n, "%s\"a%d\": %s", i > 0 ? ", " : "", i, value);
    memset(text + n, '}', (size_t)n_deep + 1);
    text[n + (size_t)n_deep + 1] = '\0';
    return text;
}

START_TEST(long_paths_of_many_keys_fit_the_memory)
{
    static const char *const values[] = {"1", "\"auto\"", "{}"};
    struct config_options options = config_options_default();
    const char *autos[] = {"optimizer.params.lr=1e-3"};
    options.autos = autos;
    options.n_autos = 1;
    options.strict_autos = true;
    for (size_t i = 0; i < 2 * CZ_ARRAY_LEN(values); i++) {
        char *text = deep_and_wide(190, 10000, values[i / 2]);
        options.trainer = i % 2 == 1;
        config_refused(text, &options, "optimizer.params.lr");
        free(text);
    }
    /* what is told of an optimizer that the Trainer completes */
    static char params[200000];
    size_t n = (size_t)sprintf(params, "{\"train_batch_size\": 1, \"optimizer\": {\"params\": {");
    for (int i = 0; i < 10000; i++)
        n += (size_t)sprintf(params + n, "%s\"p%d\": 1", i ? ", " : "", i);
    strcpy(params + n, "}}}");
    config_refused(params, &options, "optimizer.params");
}
END_TEST

START_TEST(a_path_of_set_and_auto_has_as_many_names_as_a_file)
{
    char set[2 * 70000] = "";
    const char *sets[] = {set};
    struct config_options options = config_options_default();
    options.sets = sets;
    options.n_sets = 1;
    static const struct {
        size_t n_names;
        const char *message;
    } cases[] = {{200, "unknown key"},
                 {201, "…: the path has 201 names: at most 200"},
                 {3000, "--set a.a.a.a."},
                 {60000, "…: the path has 60000 names: at most 200"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < cases[i].n_names; k++) memcpy(set + 2 * k, "a.", 2);
        strcpy(set + 2 * cases[i].n_names - 1, "=1.5.5"); /* dots of a value count for nothing */
        config_refused("{\"train_batch_size\": 1}", &options, cases[i].message);
    }
    options.autos = sets;
    options.n_autos = 1;
    options.n_sets = 0;
    config_refused("{\"train_batch_size\": 1}", &options, "--auto a.a.");
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    struct ds_config *config;
    ck_fails(config_load("/nonexistent/ds.json", NULL, &config), CZ_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "/nonexistent/ds.json: cannot be opened"));
    struct config_options options = ranks(-1);
    ck_fails(config_load_text("{}", 2, NULL, &options, &config), CZ_INVALID);
    config_free(NULL);
}
END_TEST

/* Mutations: an answer whatever comes, and what is accepted prints and reads back. */
START_TEST(no_text_breaks_it)
{
    static const char alphabet[] = "{}[]\",:0123456789.e-+#/* \ntruefalsnxauto_\\";
    struct rng_key key = {.seed = 11};
    uint64_t draw = 0;
    int n_accepted = 0;
    for (int round = 0; round < 4000; round++) {
        char text[sizeof rich + 8];
        size_t n = sizeof rich - 1;
        memcpy(text, rich, n);
        int n_edits = (int)(rng_u32(&key, draw++) % 4);
        for (int e = 0; e < n_edits; e++) {
            size_t at = rng_u32(&key, draw++) % n;
            if (rng_u32(&key, draw++) % 3 == 0) {
                memmove(text + at, text + at + 1, --n - at);
            } else {
                text[at] = alphabet[rng_u32(&key, draw++) % (sizeof alphabet - 1)];
            }
        }
        struct ds_config *config;
        char *json;
        if (config_load_text(text, n, "fuzz", NULL, &config) != CZ_OK) {
            ck_assert_ptr_null(config);
            continue;
        }
        n_accepted++;
        ck_ok(config_json(config, &json));
        free(json);
        config_free(config);
    }
    ck_assert_int_gt(n_accepted, 50);
}
END_TEST

TEST_MAIN("engine/config", triangle_derives_the_missing_corners,
          triangle_refuses_with_numbers_sources_and_advice, triangle_follows_pythons_numbers,
          model_sections_coerce_as_pydantic, refusals_name_place_path_value_and_remedy,
          every_problem_is_told_at_once, other_spellings_and_old_names, zero_has_an_older_form,
          overlap_is_on_at_stage_3_only, keys_that_do_not_go_together,
          unknown_top_level_keys_warn_with_the_nearest, every_x_key_is_answered,
          sections_that_are_off_are_accepted_silently, autos_fill_what_says_auto,
          sets_override_and_add, json_fed_back_gives_the_same_bytes, differences_come_one_by_one,
          dicts_of_any_size_are_compared,
          diff_and_explain_tell_values_and_origins, typed_view_holds_what_the_engine_needs,
          compat_0_16_selects_the_older_defaults, elasticity_finds_a_batch_under_0_16,
          elasticity_counts_the_ranks_that_share_a_batch,
          elasticity_of_a_hundred_million_ranks_takes_no_time,
          long_paths_of_many_keys_fit_the_memory,
          a_path_of_set_and_auto_has_as_many_names_as_a_file, a_missing_file_is_named,
          no_text_breaks_it)
