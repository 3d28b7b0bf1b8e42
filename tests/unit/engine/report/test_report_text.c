/* Claims: the lines of a run have DeepSpeed's shape: timers, progress, throughput, memory; floats
 * are spelled as Python spells them; a line that would be too long is cut and stays terminated. */
#include "engine/report/report_text.h"
#include "engine/report/report_timers.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct report_line line;

START_TEST(timers_print_milliseconds)
{
    const int64_t ns[N_ENGINE_TIMERS] = {6840000, 14763999, 10520000, 4204999, 5710000};
    const int64_t update[N_UPDATE_TIMERS] = {20000, 270000, 1140000};
    report_line_begin(&line);
    report_put_times(&line, engine_timer_names_micro, ns, N_ENGINE_TIMERS);
    ck_assert_str_eq(line.text, "[Rank 0] time (ms) | fwd_microstep: 6.84 | bwd_microstep: 14.76 | "
                                "bwd_inner_microstep: 10.52 | bwd_allreduce_microstep: 4.20 | "
                                "step_microstep: 5.71");
    report_line_begin(&line);
    report_put_times(&line, engine_timer_names, ns, N_ENGINE_TIMERS);
    ck_assert_str_eq(line.text, "[Rank 0] time (ms) | fwd: 6.84 | bwd: 14.76 | bwd_inner: 10.52 | "
                                "bwd_allreduce: 4.20 | step: 5.71");
    report_line_begin(&line);
    report_put_times(&line, update_timer_names, update, N_UPDATE_TIMERS);
    ck_assert_str_eq(line.text, "[Rank 0] time (ms) | optimizer_allgather: 0.02 | "
                                "optimizer_gradients: 0.27 | optimizer_step: 1.14");
}
END_TEST

/* ---- progress -------------------------------------------------------------------------------- */

static void make_group(struct optim_group *group, const char *type, bool with_betas)
{
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(type, OPTIM_FUSED, &hyper));
    ck_ok(optim_hyper_set_number(&hyper, "lr", 0.0002));
    if (with_betas) ck_ok(optim_hyper_set_pair(&hyper, "betas", 0.8, 0.95));
    if (strcmp(type, "SGD") == 0) ck_ok(optim_hyper_set_number(&hyper, "momentum", 0.9));
    ck_ok(optim_hyper_finish(&hyper));
    ck_ok(optim_group_init(group, &hyper, NULL));
}

static const char *progress(const struct optim_group *groups, size_t n, bool cycled)
{
    report_line_begin(&line);
    report_put_progress(&line, 4, 1, groups, n, cycled);
    return line.text;
}

START_TEST(progress_lists_each_group)
{
    struct optim_group groups[2];
    make_group(&groups[0], "AdamW", true);
    make_group(&groups[1], "AdamW", true);
    groups[1].lr = 1e-5;
    ck_assert_str_eq(progress(groups, 1, false),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002], mom=[[0.8, 0.95]]");
    ck_assert_str_eq(progress(groups, 2, false),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002, 1e-05], mom=[[0.8, 0.95], "
                     "[0.8, 0.95]]");
}
END_TEST

START_TEST(betas_are_a_tuple_unless_the_config_gave_them)
{
    struct optim_group group;
    make_group(&group, "Adam", false);
    ck_assert_str_eq(progress(&group, 1, false),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002], mom=[(0.9, 0.999)]");
    make_group(&group, "Adam", true);
    group.betas[0] = 0.85; /* what OneCycle puts there is a tuple again */
    ck_assert_str_eq(progress(&group, 1, true),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002], mom=[(0.85, 0.95)]");
}
END_TEST

START_TEST(optimizers_without_betas_show_momentum)
{
    struct optim_group group;
    make_group(&group, "SGD", false);
    ck_assert_str_eq(progress(&group, 1, false),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002], mom=[0.9]");
    make_group(&group, "Adagrad", false);
    ck_assert_str_eq(progress(&group, 1, false),
                     "[Rank 0] step=4, skipped=1, lr=[0.0002], mom=[0.0]");
}
END_TEST

/* ---- speed, memory --------------------------------------------------------------------------- */

START_TEST(speed_prints_whole_floats_and_rounded_memory)
{
    const struct report_speed speed = {.micro_step = 8,
                                       .global_step = 4,
                                       .average = 80.06765359982438,
                                       .current = 88.0,
                                       .nbytes = 854000000,
                                       .nbytes_max = (size_t)3 << 30};
    report_line_begin(&line);
    report_put_speed(&line, &speed);
    ck_assert_str_eq(line.text,
                     "epoch=0/micro_step=8/global_step=4, "
                     "RunningAvgSamplesPerSec=80.06765359982438, "
                     "CurrSamplesPerSec=88.0, MemAllocated=0.8GB, MaxMemAllocated=3.0GB");
}
END_TEST

START_TEST(memory_has_two_lines)
{
    const struct report_memory memory = {.allocated = (size_t)1 << 29,
                                         .allocated_max = (size_t)1 << 30,
                                         .resident = (size_t)805306368,
                                         .resident_max = 0,
                                         .host_total = (size_t)16 << 30,
                                         .host_available = (size_t)11 << 30};
    report_line_begin(&line);
    report_put_process_memory(&line, &memory);
    ck_assert_str_eq(line.text,
                     "MA 0.5 GB         Max_MA 1.0 GB         CA 0.75 GB         Max_CA 0.0 GB ");
    report_line_begin(&line);
    report_put_host_memory(&line, &memory);
    ck_assert_str_eq(line.text, "CPU Virtual Memory:  used = 5.0 GB, percent = 31.2%");
}
END_TEST

START_TEST(memory_is_read_from_the_system)
{
    struct report_memory before = {.allocated = 7}, after = {0};
    report_memory_read(&before);
    ck_assert_uint_eq(before.allocated, 7);
    ck_assert_uint_gt(before.resident, (size_t)1 << 20);
    ck_assert_uint_ge(before.resident_max, before.resident);
    ck_assert_uint_gt(before.host_total, before.resident);
    ck_assert_uint_gt(before.host_available, 0);
    ck_assert_uint_lt(before.host_available, before.host_total);
    size_t nbytes = (size_t)64 << 20;
    volatile char *p = malloc(nbytes);
    ck_assert_ptr_nonnull((void *)(uintptr_t)p);
    for (size_t i = 0; i < nbytes; i += 4096) p[i] = 1;
    report_memory_read(&after);
    free((void *)(uintptr_t)p);
    ck_assert_uint_ge(after.resident, before.resident + nbytes - ((size_t)4 << 20));
    ck_assert_uint_ge(after.resident_max, after.resident);
}
END_TEST

START_TEST(floats_are_pythons)
{
    static const struct {
        double value;
        int digits; /* -1: not rounded */
        const char *text;
    } cases[] = {{0.001, -1, "0.001"}, {1e-5, -1, "1e-05"},
                 {1, -1, "1.0"},       {0.1 + 0.2, -1, "0.30000000000000004"},
                 {1e16, -1, "1e+16"},  {0.005, 2, "0.01"},
                 {0.004, 2, "0.0"},    {2.675, 2, "2.67"},
                 {35.94, 1, "35.9"},   {99.96, 1, "100.0"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        report_line_begin(&line);
        if (cases[i].digits < 0)
            report_put_float(&line, cases[i].value);
        else
            report_put_rounded(&line, cases[i].value, cases[i].digits);
        ck_assert_str_eq(line.text, cases[i].text);
    }
}
END_TEST

START_TEST(what_does_not_fit_is_left_out)
{
    char word[100];
    memset(word, 'w', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    report_line_begin(&line);
    for (int i = 0; i < 50; i++) report_put(&line, "%s", word);
    ck_assert_uint_eq(line.len, REPORT_LINE_NBYTES - 1);
    ck_assert_uint_eq(strlen(line.text), line.len);
}
END_TEST

TEST_MAIN("engine/report_text", timers_print_milliseconds, progress_lists_each_group,
          betas_are_a_tuple_unless_the_config_gave_them, optimizers_without_betas_show_momentum,
          speed_prints_whole_floats_and_rounded_memory, memory_has_two_lines,
          memory_is_read_from_the_system, floats_are_pythons, what_does_not_fit_is_left_out)
