/* Claims: czero_state.json reads back as it was written; a file whose numbers are out of range is
 * refused by name. The files are of the fuzz corpus. */
#include "checkpoint/read/names.h"
#include "engine/state/run_state_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <string.h>

/* One file of the corpus, in a folder by itself, with `more` as its first member. */
static cz_status load_with(const char *name, const char *more, struct run_state *out)
{
    char path[256], *text;
    size_t nbytes;
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "fuzz/run_state/%s", name);
    ck_ok(file_load(test_fixture(path), 1 << 20, &text, &nbytes));
    snprintf(path, sizeof path, "%s/%s", dir, CKPT_STATE);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(text[0], '{');
    ck_assert_int_ge(fprintf(file, "{%s", more), 1);
    ck_assert_uint_eq(fwrite(text + 1, 1, nbytes - 1, file), nbytes - 1);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
    cz_status st = run_state_load(dir, out);
    test_tmp_remove(dir);
    return st;
}

static cz_status load(const char *name, struct run_state *out)
{
    return load_with(name, "", out);
}

START_TEST(a_state_is_read)
{
    struct run_state s;
    ck_ok(load("good", &s));
    ck_assert(s.stage == 2 && s.world_size == 4 && s.global_steps == 7 && s.seed == 42);
    ck_assert(s.n_groups == 2 && s.lrs[0] == 0.00025 && s.betas[1][1] == 0.5);
    ck_assert(s.has_schedule && s.last_batch_iteration == 6);
    ck_assert(s.has_cursor && s.cursor.sample == 12 && s.cursor.seed == 17 && s.cursor.shuffle);
    ck_assert(s.scale.dynamic && s.scale.scale == 65536 && s.scale_history[3] == 8);
}
END_TEST

START_TEST(the_1_bit_optimizers_part_is_read)
{
    struct run_state s;
    ck_ok(load("onebit", &s));
    const struct run_onebit *ob = &s.onebit;
    ck_assert(ob->present && ob->has_files && ob->clock.frozen && ob->clock.step == 9);
    ck_assert_str_eq(ob->optimizer, "OneBitLamb");
    ck_assert(ob->clock.var_interval == 4 && ob->clock.var_counter == 1);
    ck_assert(ob->clock.local_step_interval == 2 && ob->clock.local_step_counter == 5);
    ck_assert(ob->has_lrs && ob->lrs[0] == 0.5 && ob->lrs[1] == 0.25);
    ck_assert_uint_eq(ob->n_tensors, 2);
    ck_assert_str_eq(ob->tensors[0].name, "w");
    ck_assert_float_eq(ob->tensors[0].values.lamb_coeff_freeze, 0.75f);
    ck_assert_float_eq(ob->tensors[0].values.last_factor, 1.0625f);
    ck_assert_float_eq(ob->tensors[0].values.scaling_coeff, 0.1f);
    run_state_free(&s);
    ck_ok(load("good", &s));
    ck_assert(!s.onebit.present);
}
END_TEST

START_TEST(the_model_of_an_adapter_is_named_by_a_hash)
{
    struct run_state s;
    ck_ok(load("good", &s));
    ck_assert(!s.has_base);
    ck_ok(load_with("good", "\"adapter_base\": \"fedcba9876543210\",", &s));
    ck_assert(s.has_base && s.base_hash == 0xfedcba9876543210u);
    static const char *const bad[] = {"\"fedcba987654321\"",
                                      "\"fedcba98765432100\"",
                                      "\"0xdcba9876543210\"",
                                      "-1",
                                      "null",
                                      "\"\""};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        char more[64];
        snprintf(more, sizeof more, "\"adapter_base\": %s,", bad[i]);
        ck_fails(load_with("good", more, &s), CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), "adapter_base"), "%s", cz_last_error());
    }
}
END_TEST

START_TEST(numbers_out_of_range_are_refused)
{
    static const char *const cases[][2] = {
        {"stage_beyond_int", "zero_stage is outside 0..3: 4294967298"},
        {"world_size_zero", "world_size is outside 1..2147483647: 0"},
        {"seed_beyond_64_bits", "\"seed\" is not a number"},
        {"scale_infinite", "scale"},
        {"scale_window_zero", "window cannot be 0"},
        {"scale_hysteresis_zero", "hysteresis cannot be 0"},
        {"onebit_interval_zero", "var_interval cannot be 0"},
        {"onebit_lrs_short", "1 values for 2 groups"},
        {"onebit_coeff_infinite", "lamb_coeff_freeze cannot be 1e+300"},
        {"onebit_step_negative", "step is out of range: -1"},
        {"steps_beyond_counting", "global_steps is out of range: 9007199254740993"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct run_state s;
        ck_fails(load(cases[i][0], &s), CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), cases[i][1]), "%s", cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), CKPT_STATE), "%s", cz_last_error());
    }
}
END_TEST

START_TEST(a_folder_without_one_says_so)
{
    struct run_state s;
    const char *dir = test_tmp_make();
    ck_fails(run_state_load(dir, &s), CZ_NOTFOUND);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine/run_state", a_state_is_read, the_1_bit_optimizers_part_is_read,
          the_model_of_an_adapter_is_named_by_a_hash, numbers_out_of_range_are_refused,
          a_folder_without_one_says_so)
