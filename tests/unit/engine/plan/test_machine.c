/* Claims: measuring gives every figure that this machine has, keeps to its time, and leaves nothing
 * in the folder that was measured, not even the folder where it made it; what cannot be measured is
 * refused; the caller can stop it; predicted steps follow from the figures. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "engine/machine/machine.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <string.h>

static size_t n_entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void count(void *user, const char *what)
{
    ck_assert(*what != '\0');
    ++*(int *)user;
}

START_TEST(everything_is_measured_and_nothing_stays)
{
    const char *dir = test_tmp_make();
    char inner[128];
    int n_said = 0;
    struct machine_profile p;
    snprintf(inner, sizeof inner, "%s/made/for/it", dir);
    const struct machine_options options = {
        .nvme_path = inner, .seconds = 1, .progress = count, .user = &n_said};
    const int64_t begin = clock_now_ns();
    setenv("CZERO_CUDA_PLUGIN", "none.so", 1);
    ck_ok(machine_measure(&options, &p));
    ck_assert_int_lt(clock_now_ns() - begin, (int64_t)60 * 1000000000);
    ck_assert_str_eq(p.cpu, cpu_model_name());
    ck_assert_int_eq(p.n_threads, threads_count());
    ck_assert(*p.isa && p.gemm_f32 > 0 && p.gemm_bf16 > 0 && p.gemm_f16 > 0);
    ck_assert(p.triad > 0 && p.adam_f32 > 0 && p.adam_bf16 > 0 && p.comm > 0);
    ck_assert_str_eq(p.nvme_path, inner);
    ck_assert(*p.nvme_how && p.nvme_read > 0 && p.nvme_write > 0 && p.nvme_both > 0);
    ck_assert(p.nvme_block_nbytes >= 4096 && p.nvme_depth > 0);
    ck_assert(*p.device == '\0' && p.host_to_device == 0 && p.device_nbytes == 0);
    ck_assert_int_ge(n_said, 5);
    ck_assert_uint_eq(n_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

/* A figure without a folder is none; the rest is measured all the same. */
START_TEST(without_a_folder_there_are_no_disk_figures)
{
    struct machine_profile p;
    const struct machine_options options = {.seconds = 0.1};
    ck_ok(machine_measure(&options, &p));
    ck_assert(p.triad > 0 && p.comm > 0);
    ck_assert(*p.nvme_path == '\0' && p.nvme_both == 0 && p.nvme_depth == 0);
    ck_assert(machine_step_seconds(&p, 1e9, DTYPE_BF16, true) == 0);
}
END_TEST

START_TEST(what_cannot_be_measured_is_refused)
{
    struct machine_profile p;
    char name[400];
    memset(name, 'n', sizeof name);
    name[0] = '/', name[300] = '\0';
    const struct machine_options cases[] = {
        {.seconds = -1},
        {.seconds = 61},
        {.nvme_path = ""},
        {.nvme_path = name},
        {.nvme_path = CZ_SOURCE_DIR "/README.md/folder"},
        {.nvme_path = "/proc"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const cz_status st = machine_measure(&cases[i], &p);
        ck_assert_msg(st == (i < 4 ? CZ_INVALID : cz_last_status()) && st != CZ_OK, "%zu: %s", i,
                      cz_last_error());
        ck_assert(p.triad == 0 && p.n_threads == 0);
    }
}
END_TEST

static bool after_some(void *user)
{
    return ++*(int *)user > 20;
}

START_TEST(it_stops_when_asked_to)
{
    const char *dir = test_tmp_make();
    int n_asked = 0;
    struct machine_profile p;
    const struct machine_options options = {
        .nvme_path = dir, .seconds = 30, .stopped = after_some, .user = &n_asked};
    const int64_t begin = clock_now_ns();
    ck_fails(machine_measure(&options, &p), CZ_BUSY);
    ck_assert_int_lt(clock_now_ns() - begin, (int64_t)10 * 1000000000);
    ck_assert_uint_eq(n_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine/machine", everything_is_measured_and_nothing_stays,
          without_a_folder_there_are_no_disk_figures, what_cannot_be_measured_is_refused,
          it_stops_when_asked_to)
