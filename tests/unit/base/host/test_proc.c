/* Claims: a number is found by its key at the beginning of a line, wherever in the file that is,
 * and is 0 when file or key are not there; nothing else on the way is taken for it. */
#include "base/host/proc.h"
#include "tests/support/check_main.h"

static char path[96];

static void put(const char *text, int n_times)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < n_times; i++) fputs("Groups:\t1 22 333 4444 55555 666666 VmLck: 7\n", f);
    fputs(text, f);
    fclose(f);
}

START_TEST(numbers_are_found_by_key)
{
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "%s/status", dir);
    for (int n_times = 0; n_times < 200; n_times += 19) { /* the line is anywhere in a read */
        put("VmLckX:\t1 kB\nVmLc:\t2 kB\nVmLck:\t  4096 kB\nVmLck:\t5 kB\nCapEff:\t00ff", n_times);
        ck_assert_uint_eq(proc_number(path, "VmLck:", 10), 4096);
        ck_assert_uint_eq(proc_nbytes(path, "VmLck:"), 4096 * 1024);
        ck_assert_uint_eq(proc_number(path, "CapEff:", 16), 255); /* without an end of line */
        ck_assert_uint_eq(proc_number(path, "VmPin:", 10), 0);
    }
    put("", 0);
    ck_assert_uint_eq(proc_number(path, "VmLck:", 10), 0);
    ck_assert_uint_eq(proc_number("/nonexistent/status", "VmLck:", 10), 0);
    ck_assert_uint_gt(proc_nbytes("/proc/meminfo", "MemTotal:"), 1 << 20);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("base/proc", numbers_are_found_by_key)
