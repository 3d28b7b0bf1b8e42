/* Claims: the plan predicts peak resident memory within max(2 %, 32 MiB); its rows add up and grow
 * as they should; a run that does not fit is refused with the table before anything is allocated.
 */
#include "tests/support/peak.h"

#include <sys/resource.h>

#define ADAM "\"optimizer\": {\"type\": \"AdamW\"}"

/* A case each: Check runs every case in a process of its own. */
#define PEAK(name, model, T, config)                                                               \
    START_TEST(name)                                                                               \
    {                                                                                              \
        peak_check(model, "{" config ", " ADAM "}", T, 2);                                         \
    }                                                                                              \
    END_TEST

PEAK(peak_tiny_fp32, "gpt2-tiny", 64, "\"train_micro_batch_size_per_gpu\": 8")
PEAK(peak_tiny_bf16, "gpt2-tiny", 32,
     "\"train_micro_batch_size_per_gpu\": 64, \"gradient_accumulation_steps\": 2, "
     "\"bf16\": {\"enabled\": true}")
PEAK(peak_tiny_fp16, "gpt2-tiny", 64,
     "\"train_micro_batch_size_per_gpu\": 64, \"fp16\": {\"enabled\": true}")
PEAK(peak_tiny_checkpointed, "gpt2-tiny", 64,
     "\"train_micro_batch_size_per_gpu\": 64, "
     "\"czero\": {\"activation_checkpointing\": {\"every\": 1}}")

static struct cz_plan *plan_of(const char *model, const char *config, int64_t T, int64_t world_size)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_model *m = cz_model_open(model);
    struct cz_plan *p;
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, T));
    ck_ok(plan_create(&options, world_size, m, &p));
    cz_model_destroy(m);
    return p;
}

static size_t row_of(const struct cz_plan *p, const char *name)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, name) == 0) return p->rows[i].nbytes;
    ck_abort_msg("the plan has no row \"%s\"", name);
    return 0;
}

START_TEST(rows_add_up_to_the_peak)
{
    struct cz_plan *p =
        plan_of("gpt2-tiny", "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}", 64, 1);
    size_t sum = p->baseline_nbytes;
    for (size_t i = 0; i < p->n_rows; i++) sum += p->rows[i].nbytes;
    ck_assert_uint_eq(sum, p->host_peak_nbytes);
    ck_assert_uint_eq(p->device_peak_nbytes + p->pinned_nbytes + p->nvme_nbytes, 0);
    ck_assert_uint_ge(row_of(p, "parameters"), p->numel * 4);
    ck_assert_uint_eq(row_of(p, "master weights"), 0);
    char *text;
    ck_ok(cz_plan_table(p, &text));
    ck_assert_ptr_nonnull(strstr(text, "exp_avg_sq"));
    free(text);
    ck_ok(cz_plan_json(p, &text));
    ck_assert_ptr_nonnull(strstr(text, "\"host_peak_bytes\": "));
    free(text);
    cz_plan_destroy(p);
    cz_plan_destroy(NULL);
}
END_TEST

START_TEST(what_the_process_has_is_counted_in_bytes)
{
    struct cz_plan *p =
        plan_of("gpt2-tiny", "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}", 64, 1);
    ck_assert_uint_ge(p->baseline_nbytes, (size_t)1 << 20);
    ck_assert_uint_le(p->baseline_nbytes, (size_t)1 << 30);
    cz_plan_destroy(p);
}
END_TEST

START_TEST(ranks_split_what_their_stage_splits)
{
    char config[256];
    size_t states[4], grads[4], params[4];
    for (int stage = 0; stage < 4; stage++) {
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
                 "\"zero_optimization\": {\"stage\": %d}, " ADAM "}",
                 stage);
        struct cz_plan *p = plan_of("gpt2-medium", config, 64, 4);
        states[stage] = row_of(p, "exp_avg");
        grads[stage] = row_of(p, "gradients");
        ck_assert_uint_gt(p->sent_nbytes_per_step, 0);
        params[stage] = row_of(p, "parameters");
        ck_assert((row_of(p, "reduction buckets") > 0) == (stage >= 2)); /* 0 and 1: in place */
        ck_assert((row_of(p, "gathered parameters") > 0) == (stage == 3));
        cz_plan_destroy(p);
    }
    ck_assert_uint_lt(states[1], states[0] / 4 + 8192);
    ck_assert_uint_eq(states[2], states[1]);
    ck_assert_uint_eq(grads[1], grads[0]);
    ck_assert_uint_lt(grads[2], grads[0] / 4 + 8192);
    ck_assert_uint_lt(grads[3], grads[0] / 4 + 8192);
    ck_assert_uint_eq(params[2], params[0]);
    ck_assert_uint_lt(params[3], params[0] / 4 + 8192);
}
END_TEST

/* Gradients of tied parameters are beside the buckets; an empty second bucket is not kept. */
START_TEST(buckets_are_as_large_as_what_is_reduced_together)
{
    static const char format[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
        "\"zero_optimization\": {\"stage\": %d, \"overlap_comm\": true, "
        "\"reduce_bucket_size\": %d}, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}}";
    const size_t tied = 256 * 64, block = 64 * (12 * 64 + 13), align = 2 * 4096;
    char config[512];
    for (int stage = 2; stage <= 3; stage++)
        for (int small = 0; small < 2; small++) {
            snprintf(config, sizeof config, format, stage, small ? 1 : 500000000);
            struct cz_plan *p = plan_of(test_fixture("models/gpt2-tiny"), config, 32, 4);
            size_t buckets = small ? 2 * block : p->numel - tied;
            size_t have = row_of(p, "reduction buckets"), want = 2 * (buckets + tied);
            ck_assert_uint_ge(have, want - align);
            ck_assert_uint_le(have, want + align);
            cz_plan_destroy(p);
        }
}
END_TEST

START_TEST(checkpointing_and_shorter_sequences_save_activations)
{
    const char *plain = "{\"train_micro_batch_size_per_gpu\": 4, " ADAM "}";
    const char *every = "{\"train_micro_batch_size_per_gpu\": 4, "
                        "\"czero\": {\"activation_checkpointing\": {\"every\": 1}}, " ADAM "}";
    struct cz_plan *a = plan_of("gpt2", plain, 256, 1), *b = plan_of("gpt2", every, 256, 1);
    struct cz_plan *c = plan_of("gpt2", plain, 128, 1);
    ck_assert_uint_lt(row_of(b, "activations"), row_of(a, "activations") / 4);
    ck_assert_uint_lt(row_of(c, "activations"), row_of(a, "activations") * 6 / 10);
    ck_assert_uint_eq(row_of(c, "exp_avg"), row_of(a, "exp_avg"));
    cz_plan_destroy(a);
    cz_plan_destroy(b);
    cz_plan_destroy(c);
}
END_TEST

static void refused(const char *model, const char *config, int64_t T, const char *part)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_model *m = cz_model_open(model);
    if (T > 0) ck_ok(cz_model_set_shape(m, T));
    ck_assert_ptr_null(engine_initialize_ex(&options, m));
    ck_assert_int_eq(cz_last_status(), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "activations"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "may still be allocated"));
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "%s", cz_last_error());
    cz_model_destroy(m);
}

START_TEST(what_does_not_fit_is_refused_with_the_table)
{
    refused("gpt2-xl", "{\"train_micro_batch_size_per_gpu\": 4096, " ADAM "}", 0, "the run needs");
}
END_TEST

START_TEST(limits_of_the_process_count)
{
#if defined(__SANITIZE_ADDRESS__)
    return; /* its shadow memory does not fit under a limit */
#else
    struct rlimit limit = {(size_t)3 << 30, (size_t)3 << 30};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    /* 124 M parameters need 2 GB; a micro-batch of 8 × 1024 does not fit beside them */
    refused("gpt2", "{\"train_micro_batch_size_per_gpu\": 8, " ADAM "}", 0, "would fit");
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "ulimit -v"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "bounded to 1024 tokens"));
    refused("gpt2-medium", "{\"train_micro_batch_size_per_gpu\": 1, " ADAM "}", 16, "ulimit -v");
#endif
}
END_TEST

TEST_MAIN("engine/plan", peak_tiny_fp32, peak_tiny_bf16, peak_tiny_fp16, peak_tiny_checkpointed,
          rows_add_up_to_the_peak, what_the_process_has_is_counted_in_bytes,
          ranks_split_what_their_stage_splits, buckets_are_as_large_as_what_is_reduced_together,
          checkpointing_and_shorter_sequences_save_activations,
          what_does_not_fit_is_refused_with_the_table, limits_of_the_process_count)
