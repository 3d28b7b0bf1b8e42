/* Claims: the scaler follows DeepSpeed's trace step by step, in both forms of growth and
 * hysteresis; a recorded fp16 run is reproduced; at the minimum it stops with a sentence. */
#include "optim/loss_scale.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

static struct loss_scale make(int64_t power, int64_t window, int64_t hysteresis, bool consecutive)
{
    struct loss_scale_options options = loss_scale_defaults(true, false, false);
    options.initial_power = power;
    options.window = window;
    options.hysteresis = hysteresis;
    options.consecutive_hysteresis = consecutive;
    struct loss_scale s;
    ck_ok(loss_scale_init(&s, &options));
    return s;
}

/* events: 'O' overflow, 'C' clean */
static void trace_check(struct loss_scale *s, const char *events, const double *scales,
                        const int64_t *hysteresis)
{
    for (size_t k = 0; events[k]; k++) {
        bool skip;
        ck_ok(loss_scale_update(s, events[k] == 'C', &skip));
        ck_assert_int_eq(skip, events[k] == 'O');
        ck_assert_msg(s->scale == scales[k], "step %zu: scale %g, not %g", k, s->scale, scales[k]);
        ck_assert_int_eq(s->hysteresis, hysteresis[k]);
    }
}

START_TEST(trace_without_consecutive_hysteresis)
{
    struct loss_scale s = make(8, 2, 2, false);
    trace_check(&s, "OOOCCCCCOOCO",
                (double[]){256, 128, 64, 64, 64, 128, 128, 256, 256, 128, 128, 64},
                (int64_t[]){1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1});
    ck_assert_int_eq(s.iter, 12);
    ck_assert_int_eq(s.last_overflow_iter, 11);
}
END_TEST

START_TEST(trace_with_consecutive_hysteresis)
{
    struct loss_scale s = make(8, 2, 2, true);
    trace_check(&s, "OOOCCCCCOOCO",
                (double[]){256, 128, 64, 64, 64, 128, 128, 256, 256, 128, 128, 128},
                (int64_t[]){1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 2, 1});
}
END_TEST

START_TEST(halves_at_once_without_hysteresis_and_stops_at_the_minimum)
{
    struct loss_scale s = make(4, 2, 1, false);
    trace_check(&s, "OOOO", (double[]){8, 4, 2, 1}, (int64_t[]){1, 1, 1, 1});
    struct loss_scale before = s;
    bool skip = false;
    ck_fails(loss_scale_update(&s, false, &skip), CZ_INVALID);
    ck_assert(skip);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "minimum of 1"));
    ck_assert_mem_eq(&s, &before, sizeof s);
}
END_TEST

START_TEST(the_floor_is_not_undershot)
{
    struct loss_scale s = make(3, 2, 1, false);
    s.min_scale = 3;
    trace_check(&s, "OO", (double[]){4, 3}, (int64_t[]){1, 1});
}
END_TEST

START_TEST(growth_comes_one_step_earlier_in_0_16)
{
    struct loss_scale s = make(4, 3, 2, false);
    trace_check(&s, "CCCCCCC", (double[]){16, 16, 16, 32, 32, 32, 64},
                (int64_t[]){2, 2, 2, 2, 2, 2, 2});
    s = make(4, 3, 2, false);
    s.growth_0_16 = true;
    trace_check(&s, "CCCCCCOCCC", (double[]){16, 16, 32, 32, 32, 64, 64, 64, 64, 128},
                (int64_t[]){2, 2, 2, 2, 2, 2, 1, 1, 1, 2});
}
END_TEST

START_TEST(defaults_follow_the_version)
{
    struct loss_scale s;
    struct loss_scale_options options = loss_scale_defaults(true, false, true);
    ck_ok(loss_scale_init(&s, &options));
    ck_assert_double_eq(s.scale, 65536);
    ck_assert_int_eq(s.hysteresis, 2);
    options = loss_scale_defaults(true, true, true);
    ck_ok(loss_scale_init(&s, &options));
    ck_assert_double_eq(s.scale, 4294967296.0);
    ck_assert_int_eq(s.hysteresis, 1);
    options = loss_scale_defaults(true, true, false);
    ck_ok(loss_scale_init(&s, &options));
    ck_assert_double_eq(s.scale, 65536);
}
END_TEST

START_TEST(static_and_unscaled_never_move_but_still_skip)
{
    struct loss_scale s;
    bool skip;
    struct loss_scale_options options = loss_scale_defaults(true, false, false);
    options.static_scale = 1024;
    options.window = -5; /* nonsense is not looked at when the scale is static */
    ck_ok(loss_scale_init(&s, &options));
    ck_ok(loss_scale_update(&s, false, &skip));
    ck_assert(skip);
    ck_assert_double_eq(s.scale, 1024);
    options = loss_scale_defaults(false, false, false);
    ck_ok(loss_scale_init(&s, &options));
    ck_ok(loss_scale_update(&s, false, &skip));
    ck_assert(skip);
    ck_ok(loss_scale_update(&s, true, &skip));
    ck_assert(!skip);
    ck_assert_double_eq(s.scale, 1);
}
END_TEST

START_TEST(nonsense_is_refused)
{
    struct loss_scale s;
    struct loss_scale_options good = loss_scale_defaults(true, false, false), bad;
    bad = good, bad.window = 0;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.min_scale = 0;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.hysteresis = 0;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.initial_power = 128;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.initial_power = -127;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.initial_power = 127, bad.min_scale = 0x1p-126;
    ck_ok(loss_scale_init(&s, &bad));
    ck_assert_double_eq(s.scale, 0x1p127);
    bad = good, bad.initial_power = -126, bad.min_scale = 0x1p-126;
    ck_ok(loss_scale_init(&s, &bad));
    ck_assert_double_eq(s.scale, 0x1p-126);
    bad = good, bad.static_scale = -1;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
    bad = good, bad.static_scale = NAN;
    ck_fails(loss_scale_init(&s, &bad), CZ_INVALID);
}
END_TEST

/* Replay a recorded run: a step whose norm is infinite was an overflow. */
static void replay(const char *curve, struct loss_scale *s)
{
    FILE *f = fopen(test_fixture(curve), "r");
    char line[256];
    int n_rows = 0;
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    while (fgets(line, sizeof line, f)) {
        double norm, scale;
        bool skip;
        ck_assert_int_eq(sscanf(line, "%*d,%*f,%*f,%lf,%lf", &norm, &scale), 2);
        ck_ok(loss_scale_update(s, isfinite(norm), &skip));
        ck_assert_msg(s->scale == scale, "%s: %s: %g", curve, line, s->scale);
        n_rows++;
    }
    fclose(f);
    ck_assert_int_ge(n_rows, 10);
}

START_TEST(values_from_a_file_are_checked)
{
    const struct loss_scale good = make(16, 1000, 2, false);
    ck_ok(loss_scale_check(&good));
    struct loss_scale bad[9];
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) bad[i] = good;
    bad[0].scale = NAN;
    bad[1].scale = 0;
    bad[2].factor = 1; /* would never move */
    bad[3].window = 0; /* would be divided by */
    bad[4].min_scale = -1;
    bad[5].iter = -1;
    bad[6].last_overflow_iter = INT64_MIN;
    bad[7].hysteresis = 0;
    bad[8].delayed_shift = INT64_MAX;
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) ck_fails(loss_scale_check(&bad[i]), CZ_CORRUPT);
    bad[3].dynamic = false; /* a fixed scale looks at nothing else */
    ck_ok(loss_scale_check(&bad[3]));
}
END_TEST

START_TEST(recorded_runs_are_reproduced)
{
    struct loss_scale s = make(32, 4, 2, false);
    replay("runs/s2-fp16-dynscale/curve.csv", &s);
    s = make(12, 1000, 2, false);
    s.growth_0_16 = true;
    replay("runs/v016-s3-fp16/curve.csv", &s);
}
END_TEST

TEST_MAIN("optim/loss_scale", trace_without_consecutive_hysteresis,
          trace_with_consecutive_hysteresis,
          halves_at_once_without_hysteresis_and_stops_at_the_minimum, the_floor_is_not_undershot,
          growth_comes_one_step_earlier_in_0_16, defaults_follow_the_version,
          static_and_unscaled_never_move_but_still_skip, nonsense_is_refused,
          values_from_a_file_are_checked, recorded_runs_are_reproduced)
