/* Claims: DeepSpeed's estimators are answered as its own code does (figures computed with it, in
 * GiB with two decimals); a model's largest module is what counts as a layer; a step that takes
 * minutes on any machine is called slow, and a small one is not; a given machine decides whether a
 * plan fits. */
#include "engine/plan/plan.h"
#include "engine/plan/plan_impl.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define GB ((size_t)1000000000)

static double gib(double nbytes)
{
    return nbytes / (double)(1 << 30);
}

START_TEST(deepspeed_is_quoted_to_the_digit)
{
    const struct {
        double numel, layer;
        int64_t ranks;
        int stage;
        bool optimizer_away, params_away;
        double host, gpu;
    } known[] = {{2851e6, 32e6, 8, 2, true, false, 127.45, 5.31},
                 {2851e6, 32e6, 8, 2, false, false, 127.45, 11.28},
                 {2851e6, 32e6, 8, 3, true, true, 71.69, 0.12},
                 {2851e6, 32e6, 8, 3, true, false, 63.72, 0.78},
                 {2851e6, 32e6, 8, 3, false, false, 1.43, 6.09},
                 {7e9, 262e6, 1, 2, true, false, 156.46, 13.04},
                 {7e9, 262e6, 1, 0, false, false, 39.12, 130.39},
                 {7e9, 262e6, 1, 3, true, true, 176.02, 0.98},
                 {7e9, 262e6, 1, 3, true, false, 156.46, 14.01},
                 {7e9, 262e6, 1, 3, false, false, 1.46, 118.32}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(known); i++) {
        struct plan_estimate e;
        ck_assert(plan_estimate_numbers(known[i].numel, known[i].layer, known[i].stage,
                                        known[i].optimizer_away, known[i].params_away,
                                        known[i].ranks, &e));
        ck_assert_double_le(fabs(gib(e.host_nbytes) - known[i].host), 0.0051);
        ck_assert_double_le(fabs(gib(e.gpu_nbytes) - known[i].gpu), 0.0051);
    }
    struct plan_estimate e;
    ck_assert(!plan_estimate_numbers(7e9, 262e6, 2, true, true, 1, &e));
    ck_assert(!plan_estimate_numbers(7e9, 262e6, 3, false, true, 1, &e));
}
END_TEST

/* GPT-2: 124,439,808 parameters; the table of words, 50257 × 768, is the largest module. */
START_TEST(a_layer_is_the_largest_module)
{
    struct cz_model *m = cz_model_open("gpt2");
    struct plan_estimate e;
    ck_assert(plan_estimate_deepspeed(m, 3, true, true, 1, &e));
    ck_assert(e.gpu_nbytes == 4.0 * 50257 * 768);
    ck_assert(e.host_nbytes == 1.5 * 18 * 124439808.0);
    ck_assert_int_eq(plan_usual_tokens(m), 1024);
    cz_model_destroy(m);
}
END_TEST

static struct cz_plan *plan_of(const char *name, int64_t T, const char *device,
                               struct plan_request request)
{
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 8, \"bf16\": {\"enabled\": true},"
                       " \"optimizer\": {\"type\": \"AdamW\"}}",
        .device = device};
    struct cz_model *m = cz_model_open(name);
    struct cz_plan *p;
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, T));
    request.world_size = 1;
    request.baseline_nbytes = 16 << 20;
    ck_ok(plan_create_ex(&options, &request, m, &p));
    cz_model_destroy(m);
    return p;
}

START_TEST(a_step_of_minutes_is_called_slow)
{
    char text[200];
    struct cz_plan *p = plan_of("llama3.2-1b", 131072, "cpu", (struct plan_request){0});
    ck_assert_double_gt(plan_step_flops(p), 1e15);
    ck_assert_ptr_nonnull(strstr(plan_slow_step(p, text, sizeof text), "131072 tokens"));
    ck_assert_ptr_nonnull(strstr(text, "minutes"));
    cz_plan_destroy(p);
    p = plan_of("gpt2-tiny", 64, "cpu", (struct plan_request){0});
    ck_assert_str_eq(plan_slow_step(p, text, sizeof text), "");
    cz_plan_destroy(p);
}
END_TEST

static void check_fits(size_t gpu, size_t host, bool fits, const char *text)
{
    const struct plan_request request = {.gpu_nbytes = gpu, .host_nbytes = host};
    struct cz_plan *p = plan_of("gpt2-xl", 256, "cuda", request);
    char *table;
    ck_assert(cz_plan_fits(p) == fits);
    ck_ok(cz_plan_table(p, &table));
    ck_assert_msg(strstr(table, text) != NULL, "no \"%s\" in\n%s", text, table);
    ck_assert_ptr_nonnull(strstr(table, "DeepSpeed's estimator says"));
    free(table);
    cz_plan_destroy(p);
}

/* 25 GB of states. */
START_TEST(a_given_machine_decides)
{
    check_fits(48 * GB, 8 * GB, true, "It fits the GPU");
    check_fits(24 * GB, 8 * GB, false, "It does not fit the GPU");
    check_fits(24 * GB, 8 * GB, false, "of its 24 GB");
    check_fits(48 * GB, GB / 4, false, "It does not fit the host");
}
END_TEST

TEST_MAIN("engine/estimate", deepspeed_is_quoted_to_the_digit, a_layer_is_the_largest_module,
          a_step_of_minutes_is_called_slow, a_given_machine_decides)
