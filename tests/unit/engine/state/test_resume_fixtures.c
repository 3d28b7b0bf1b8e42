/* Claim: every checkpoint that DeepSpeed made (0.16.9 and 0.19.8, stages 0-3, fp32/bf16/fp16, host
 * offload, frozen parameters) is resumed at every stage here, on the host and on NVMe: weights are
 * those of DeepSpeed's own consolidation to the bit, steps, learning rate and loss scale those of
 * the recorded run. */
#include "engine/engine.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/replay.h"
#include <czero/engine.h>

static float have[256 * 64], want[256 * 64];

/* Frozen parameters keep 16 bits in DeepSpeed's consolidation: equal values. */
static void check_weights(struct cz_engine *e, const char *name)
{
    char relative[160];
    struct safetensors *expected;
    const struct param_table *table = model_params(engine_get_model(e));
    snprintf(relative, sizeof relative, "runs/%s/expected.safetensors", name);
    ck_ok(safetensors_open(test_fixture(relative), &expected));
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        const struct safetensors_info *info = safetensors_find(expected, p->name);
        if (!info) continue; /* DeepSpeed forgets frozen ones at stage 1 */
        ck_ok(safetensors_read_f32(expected, info, 0, p->numel, want));
        ck_ok(engine_param_get(e, p->name, "weight", have, p->numel));
        ck_assert_msg(memcmp(have, want, p->numel * sizeof *have) == 0, "%s: %s", name, p->name);
    }
    safetensors_close(expected);
}

/* swap_dir: optimizer states and parameters go there; NULL: they stay where the run had them. */
static void resume(const char *name, const char *freeze, int stage, const char *swap_dir)
{
    struct replay r = replay_of_fixture(name, freeze);
    static struct replay_curve curve;
    char relative[160], set[48];
    const char *sets[8] = {set};
    snprintf(set, sizeof set, "zero_optimization.stage=%d", stage);
    for (int i = 0; swap_dir && replay_on_nvme(swap_dir)[i]; i++)
        sets[i + 1] = replay_on_nvme(swap_dir)[i];
    r.sets = sets;
    struct cz_engine *e = replay_engine(&r);
    struct cz_load_result result = {.size = sizeof result};
    snprintf(relative, sizeof relative, "runs/%s/ckpt", name);
    ck_ok(engine_load_checkpoint_ex(e, test_fixture(relative), NULL, &result));
    ck_assert_uint_eq(result.n_restored, result.n_tensors);
    ck_assert(result.has_states && !result.has_cursor);
    cz_load_result_free(&result);
    check_weights(e, name);
    replay_curve_read(r.curve, &curve);
    const struct replay_row *last = &curve.rows[curve.n - 1];
    ck_assert_int_eq(engine_get_global_steps(e), curve.n);
    ck_assert_double_eq_tol(engine_get_lr(e), last->lr_next, 1e-12);
    ck_assert_double_eq(engine_get_loss_scale(e), last->loss_scale);
    engine_destroy(e);
}

static void resume_everywhere(const char *name, const char *freeze)
{
    char swap_dir[160];
    const char *root = test_tmp_make();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", root);
    for (int stage = 0; stage < 4; stage++) {
        resume(name, freeze, stage, NULL);
        resume(name, freeze, stage, swap_dir);
    }
    ck_assert_int_eq(rmdir(root), 0); /* nothing remains in it */
}

START_TEST(stage_0)
{
    resume_everywhere("s0-bf16-adamw", "");
}
END_TEST

START_TEST(stage_1)
{
    resume_everywhere("s1-bf16-adamw-dp4", "");
    resume_everywhere("s1-fp32-adamw", "");
    resume_everywhere("s1-fp32-dp3", "");
}
END_TEST

START_TEST(stage_2)
{
    resume_everywhere("s2-bf16-adamw", "");
    resume_everywhere("s2-fp16-dynscale", "");
    resume_everywhere("s2-fp32-adamw-gas2", "");
    resume_everywhere("s2-fp32-dp3-frozen", "wpe");
    resume_everywhere("v016-s2-bf16", "");
}
END_TEST

START_TEST(stage_3)
{
    resume_everywhere("s3-bf16-adamw", "");
    resume_everywhere("s3-bf16-cpuoffload", "");
    resume_everywhere("s3-bf16-dp3-frozen", "h\\.0\\.");
    resume_everywhere("s3-fp32-adamw", "");
    resume_everywhere("v016-s3-fp16", "");
}
END_TEST

/* What two ranks saved in fp32, of which one continues. */
START_TEST(one_bit_adam)
{
    for (int stage = 0; stage < 2; stage++) resume("s0-onebitadam", "", stage, NULL);
}
END_TEST

/* Another optimizer's checkpoint, and another precision's, give their weights. */
START_TEST(weights_alone)
{
    const struct replay r = replay_of_fixture("s0-fp32-adamw", "");
    const struct cz_load_options weights = {.size = sizeof weights, .module_only = true};
    static const char *const names[] = {"s0-onebitadam", "s3-bf16-adamw", "s2-fp16-dynscale"};
    struct cz_engine *e = replay_engine(&r);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        char relative[160];
        snprintf(relative, sizeof relative, "runs/%s/ckpt", names[i]);
        ck_ok(engine_load_checkpoint_ex(e, test_fixture(relative), &weights, NULL));
        check_weights(e, names[i]);
        ck_assert_int_eq(engine_get_global_steps(e), 0);
    }
    engine_destroy(e);
}
END_TEST

TEST_MAIN("engine/resume_fixtures", stage_0, stage_1, stage_2, stage_3, one_bit_adam, weights_alone)
