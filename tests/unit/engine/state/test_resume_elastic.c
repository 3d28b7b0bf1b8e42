/* Claim: what DeepSpeed saves with elastic_checkpoint (stages 1 and 2; Adam by its own class and by
 * torch's, SGD) is sound to fsck and is resumed with the step, the rate and the momentum of the run
 * that DeepSpeed did not interrupt, and follows it to 1e-5. These files hold no param_groups, and
 * DeepSpeed's own Adam counts its steps in the states alone. The recordings are those of
 * tests/interop/agree/resume.py. */
#include "checkpoint/read/checkpoint.h"
#include "engine/engine.h"
#include "tests/support/replay.h"
#include <czero/checkpoint.h>
#include <czero/engine.h>

#define SEQ   8
#define SAVED 4

static const char *file_of(const char *name, const char *file)
{
    static char relative[160];
    snprintf(relative, sizeof relative, "checkpoints/resume/%s/%s", name, file);
    return test_fixture(relative);
}

static void data_open(const char *name, struct replay_data *d, uint64_t row)
{
    unsigned char bytes[4096];
    FILE *f = fopen(file_of(name, "data.txt"), "rb");
    ck_assert_ptr_nonnull(f);
    d->n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    for (size_t i = 0; i < d->n; i++) d->tokens[i] = bytes[i];
    d->row = row;
}

/* One rank here accumulates what `world` ranks did there, in the same order of rows. */
static struct cz_engine *engine_of(const char *name, int world)
{
    char gas[48], config[512];
    snprintf(gas, sizeof gas, "gradient_accumulation_steps=%d", world);
    snprintf(config, sizeof config, "%s", file_of(name, "ds_config.json"));
    const char *const sets[] = {gas, NULL};
    const struct cz_engine_options options = {
        .size = sizeof options, .config_path = config, .set_values = sets};
    struct cz_model *model = cz_model_from_hf(file_of(name, "model"));
    ck_assert_msg(model != NULL, "%s", cz_last_error());
    ck_ok(cz_model_set_shape(model, SEQ));
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s: %s", name, cz_last_error());
    return e;
}

static void follow(const char *name, int world)
{
    static struct replay_data data;
    static struct replay_curve curve;
    replay_curve_read(file_of(name, "curve.csv"), &curve);
    struct cz_engine *e = engine_of(name, world);
    ck_ok(engine_load_checkpoint(e, file_of(name, "ckpt"), NULL));
    ck_assert_int_eq(engine_get_global_steps(e), SAVED);
    ck_assert_double_eq_tol(engine_get_lr(e), curve.rows[SAVED - 1].lr_next, 1e-12);
    data_open(name, &data, (uint64_t)SAVED * (uint64_t)world * 2);
    for (int s = SAVED; s < curve.n; s++) {
        replay_one_step(e, &data, SEQ);
        ck_assert_msg(fabs(engine_get_boundary_loss(e) - curve.rows[s].loss) <= 1e-5,
                      "%s step %d: loss %.8g, not %.8g", name, s + 1, engine_get_boundary_loss(e),
                      curve.rows[s].loss);
        ck_assert_double_eq_tol(engine_get_lr(e), curve.rows[s].lr_next, 1e-12);
    }
    engine_destroy(e);
    struct cz_fsck_report report = {.size = sizeof report};
    const struct cz_fsck_options options = {.size = sizeof options, .dir = file_of(name, "ckpt")};
    ck_ok(cz_fsck(&options, &report));
    ck_assert_int_eq((int)report.n_findings, 0);
    cz_fsck_report_free(&report);
}

START_TEST(fused_adam_counts_in_its_states)
{
    follow("fused-adamw", 2);
}
END_TEST

START_TEST(torch_adam_has_the_schedules_rate_and_momentum)
{
    follow("torch-adamw", 2);
}
END_TEST

START_TEST(sgd_has_no_step_at_all)
{
    follow("sgd-momentum", 3);
}
END_TEST

TEST_MAIN("engine/resume_elastic", fused_adam_counts_in_its_states,
          torch_adam_has_the_schedules_rate_and_momentum, sgd_has_no_step_at_all)
