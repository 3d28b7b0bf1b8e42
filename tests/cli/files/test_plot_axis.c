/* Claims: ticks are round, ascending, inside their range, few, and told apart by their labels, for
 * ranges of any size; thinning keeps the lowest and the highest of every column of pixels, and
 * gaps. */
#include "base/rng.h"
#include "tests/support/check_main.h"
#include "tools/czero/plot/plot_axis.c" /* the tools are no library */

#include <stdlib.h>

static void check_ticks(struct plot_range range, int wanted)
{
    struct plot_ticks t;
    plot_ticks_make(&range, wanted, &t);
    double slack = 1e-6 * (range.hi - range.lo);
    ck_assert_msg(t.n >= 1 || range.is_log || range.is_whole, "%.17g … %.17g: no ticks", range.lo,
                  range.hi);
    ck_assert_uint_le(t.n, PLOT_TICKS_MAX);
    for (size_t i = 0; i < t.n; i++) {
        ck_assert_msg(t.at[i] >= range.lo - slack && t.at[i] <= range.hi + slack,
                      "%.17g is outside %.17g … %.17g", t.at[i], range.lo, range.hi);
        ck_assert_uint_lt(strlen(t.text[i]), 12);
        if (range.is_whole) ck_assert_double_eq(t.at[i], round(t.at[i]));
        if (i == 0) continue;
        ck_assert_double_gt(t.at[i], t.at[i - 1]);
        ck_assert_msg(strcmp(t.text[i], t.text[i - 1]) != 0, "%.17g … %.17g: \"%s\" twice",
                      range.lo, range.hi, t.text[i]);
    }
}

START_TEST(ticks_are_round_and_told_apart)
{
    struct rng_key key = {.seed = 9};
    for (uint64_t i = 0; i < 20000; i++) {
        double power = pow(10, floor(rng_uniform(&key, 4 * i) * 24) - 12);
        double lo = (rng_uniform(&key, 4 * i + 1) - 0.5) * power;
        double span = power * pow(10, -3 * (double)rng_uniform(&key, 4 * i + 2));
        int wanted = 2 + (int)(rng_uniform(&key, 4 * i + 3) * 10);
        check_ticks((struct plot_range){.lo = lo, .hi = lo + span}, wanted);
        check_ticks((struct plot_range){.lo = fabs(lo) + power * 1e-6,
                                        .hi = fabs(lo) + power * 1e-6 + span,
                                        .is_log = true},
                    wanted);
        if (power > 10)
            check_ticks(
                (struct plot_range){.lo = floor(lo), .hi = floor(lo + span) + 1, .is_whole = true},
                wanted);
    }
}
END_TEST

static void labels_are(struct plot_range range, int wanted, const char *want)
{
    struct plot_ticks t;
    char text[512] = "";
    plot_ticks_make(&range, wanted, &t);
    for (size_t i = 0; i < t.n; i++) {
        if (i > 0) strcat(text, " ");
        strcat(text, t.text[i]);
    }
    ck_assert_str_eq(text, want);
}

START_TEST(labels_are_what_people_write)
{
    labels_are((struct plot_range){.lo = 0.31, .hi = 1.9}, 5, "0.5 1.0 1.5");
    labels_are((struct plot_range){.lo = 0, .hi = 1200, .is_whole = true}, 5, "0 250 500 750 1000");
    labels_are((struct plot_range){.lo = 0, .hi = 1e6, .is_whole = true}, 5,
               "0 0.2M 0.4M 0.6M 0.8M 1.0M");
    labels_are((struct plot_range){.lo = 0, .hi = 5e-5}, 5, "0 1e-5 2e-5 3e-5 4e-5 5e-5");
    labels_are((struct plot_range){.lo = -1, .hi = 1}, 4, "-1.0 -0.5 0.0 0.5 1.0");
    labels_are((struct plot_range){.lo = 1, .hi = 3, .is_whole = true}, 8, "1 2 3");
    labels_are((struct plot_range){.lo = 0.5, .hi = 12, .is_log = true}, 6, "0.5 1 2 5 10");
    labels_are((struct plot_range){.lo = 1e-8, .hi = 1e4, .is_log = true}, 6,
               "1e-08 1e-06 0.0001 0.01 1 100 1e+04");
}
END_TEST

START_TEST(thinning_keeps_extremes_and_gaps)
{
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    struct rng_key key = {.seed = 3};
    for (uint64_t i = 0; i < N; i++) {
        x[i] = (double)i;
        y[i] = rng_normal(&key, i);
    }
    y[500] = 99;
    y[70001] = -99;
    y[40000] = NAN;
    struct plot_range range = {.lo = 0, .hi = N - 1};
    struct plot_walk walk = {x, y, N, 0, &range, 300};
    size_t idx[4], n, n_points = 0, n_gaps = 0, last = 0;
    bool is_gap, seen_high = false, seen_low = false;
    while ((n = plot_walk_next(&walk, idx, &is_gap)) > 0) {
        n_gaps += is_gap;
        for (size_t i = 0; i < n; i++) {
            ck_assert(n_points == 0 || idx[i] > last);
            ck_assert_uint_ne(idx[i], 40000);
            last = idx[i];
            n_points++;
            seen_high = seen_high || last == 500;
            seen_low = seen_low || last == 70001;
        }
    }
    ck_assert(seen_high && seen_low);
    ck_assert_uint_eq(n_gaps, 2); /* the beginning, and the one in the middle */
    ck_assert_uint_eq(last, N - 1);
    ck_assert_uint_le(n_points, 4 * 302);
    free(x);
    free(y);
}
END_TEST

/* A range is empty where neighbouring doubles are further apart than its margin. */
START_TEST(an_empty_range_has_its_points_in_the_middle)
{
    const double x[2] = {1.1e20, 1.1e20}, y[2] = {0, 1};
    struct plot_range range = {.lo = x[0], .hi = x[0]};
    struct plot_walk walk = {x, y, 2, 0, &range, 300};
    struct plot_ticks ticks;
    size_t idx[4], n_points = 0;
    bool is_gap;
    ck_assert_double_eq(plot_place(&range, x[0]), 0.5);
    for (size_t n; (n = plot_walk_next(&walk, idx, &is_gap)) > 0;) n_points += n;
    ck_assert_uint_eq(n_points, 2);
    plot_ticks_make(&range, 5, &ticks);
}
END_TEST

TEST_MAIN("tools/plot_axis", ticks_are_round_and_told_apart, labels_are_what_people_write,
          thinning_keeps_extremes_and_gaps, an_empty_range_has_its_points_in_the_middle)
