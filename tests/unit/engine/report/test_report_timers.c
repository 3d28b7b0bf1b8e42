/* Claims: times add up per micro-batch and per boundary, reductions count as backward and never as
 * step; throughput counts from the third global step on, from forward to the end of the step, as
 * DeepSpeed does. */
#include "engine/report/report_timers.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

START_TEST(totals_run_from_boundary_to_boundary)
{
    struct engine_timers t;
    memset(&t, 0, sizeof t);
    for (int micro = 1; micro <= 2; micro++) {
        timers_add(&t, TIMER_FORWARD, 100 * micro);
        timers_add_backward(&t, 200, 30);
        timers_add_backward(&t, 0, 5); /* at the boundary, inside the step */
        timers_add(&t, TIMER_STEP, 7);
        ck_assert_int_eq(t.micro[TIMER_FORWARD], 100 * micro);
        ck_assert_int_eq(t.micro[TIMER_BACKWARD], 235);
        ck_assert_int_eq(t.micro[TIMER_BACKWARD_INNER], 200);
        ck_assert_int_eq(t.micro[TIMER_REDUCE], 35);
        ck_assert_int_eq(t.micro[TIMER_STEP], 7);
        timers_reset(&t, false);
    }
    ck_assert_int_eq(t.total[TIMER_FORWARD], 300);
    ck_assert_int_eq(t.total[TIMER_BACKWARD], 470);
    ck_assert_int_eq(t.total[TIMER_BACKWARD_INNER], 400);
    ck_assert_int_eq(t.total[TIMER_REDUCE], 70);
    ck_assert_int_eq(t.total[TIMER_STEP], 14);
    for (int i = 0; i < N_ENGINE_TIMERS; i++) ck_assert_int_eq(t.micro[i], 0);
    timers_reset(&t, true);
    for (int i = 0; i < N_ENGINE_TIMERS; i++) ck_assert_int_eq(t.total[i], 0);
}
END_TEST

START_TEST(an_update_has_three_parts)
{
    struct engine_timers t;
    memset(&t, 0, sizeof t);
    ck_assert(!t.updated);
    timers_set_update(&t, 1, 2, 3);
    ck_assert(t.updated);
    ck_assert_int_eq(t.update[TIMER_GRADIENTS], 1);
    ck_assert_int_eq(t.update[TIMER_UPDATE], 2);
    ck_assert_int_eq(t.update[TIMER_GATHER], 3);
    ck_assert_str_eq(update_timer_names[TIMER_GRADIENTS], "optimizer_gradients");
    ck_assert_str_eq(update_timer_names[TIMER_UPDATE], "optimizer_step");
    ck_assert_str_eq(update_timer_names[TIMER_GATHER], "optimizer_allgather");
}
END_TEST

#define SECOND 1000000000ll

/* Micro-batches of 1 s with 1 s between them, two per global step. */
START_TEST(throughput_counts_from_the_third_step)
{
    struct throughput t;
    int64_t now = 10 * SECOND;
    memset(&t, 0, sizeof t);
    for (int micro = 1; micro <= 8; micro++) {
        int64_t duration = micro > 6 ? 2 * SECOND : SECOND; /* the fourth step is slower */
        throughput_begin(&t, now);
        throughput_end(&t, now + duration, micro % 2 == 0);
        now += duration + SECOND;
        ck_assert_int_eq(t.n_micro, micro);
        ck_assert_int_eq(t.n_global, micro / 2);
        ck_assert(t.counted == (micro == 6 || micro == 8));
        if (!t.counted) ck_assert_double_eq(throughput_current(&t, 12), 0);
        if (micro == 4) ck_assert_double_eq(throughput_average(&t, 12), 0);
        if (micro == 6) {
            ck_assert_double_eq(throughput_average(&t, 12), 6);
            ck_assert_double_eq_tol(throughput_current(&t, 12), 12 / (2 + 1e-6), 1e-9);
        }
    }
    ck_assert_double_eq(throughput_average(&t, 12), 4); /* 6 s for two steps */
    ck_assert_double_eq_tol(throughput_current(&t, 12), 12 / (4 + 1e-6), 1e-9);
}
END_TEST

START_TEST(a_step_without_a_beginning_is_not_counted)
{
    struct throughput t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < 5; i++) throughput_end(&t, i * SECOND, true);
    ck_assert(!t.counted);
    ck_assert_int_eq(t.elapsed_ns, 0);
    ck_assert_double_eq(throughput_average(&t, 12), 0);
}
END_TEST

TEST_MAIN("engine/report_timers", totals_run_from_boundary_to_boundary, an_update_has_three_parts,
          throughput_counts_from_the_third_step, a_step_without_a_beginning_is_not_counted)
