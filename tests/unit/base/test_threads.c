/* Claims: the cores (not hardware threads) that may be used are those of the affinity mask, also
 * when the OpenMP runtime has bound this thread to one of them, further limited by the tightest CPU
 * quota of our control group and its parents, version 1 or 2, rounded up, never below one;
 * OMP_NUM_THREADS overrides them; several ranks on a host share them; and a split over threads
 * covers everything once, in whole units. */
#include "base/host/processors.h"
#include "base/threads.h"
#include "tests/support/check_main.h"

#include <sched.h>
#include <string.h>

/* ---- a fake mount of control groups ---------------------------------------------------------- */

static char mount_dir[64];

static void make_mount(void)
{
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
}

static void put(const char *folder, const char *file, const char *text)
{
    char path[2048];
    snprintf(path, sizeof path, "mkdir -p '%s%s'", mount_dir, folder);
    ck_assert_int_eq(system(path), 0);
    snprintf(path, sizeof path, "%s%s/%s", mount_dir, folder, file);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* Our own path in a hierarchy, as the kernel tells it: after "0::" or after ":cpu…:". */
static const char *own_group(const char *controllers)
{
    static char path[1024];
    char line[1024], *at;
    FILE *f = fopen("/proc/self/cgroup", "r");
    path[0] = '\0';
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if ((at = strstr(line, controllers)) != NULL)
            snprintf(path, sizeof path, "%s", at + strlen(controllers));
    }
    if (f) fclose(f);
    return path;
}

static int affinity(void)
{
    struct processors p;
    processors_allowed(&p);
    processors_keep_cores(&p, NULL);
    return processors_count(&p);
}

static int at_most(int limit)
{
    int n = affinity();
    return limit < n ? limit : n;
}

START_TEST(without_a_quota_the_affinity_mask_decides)
{
    make_mount();
    ck_assert_int_eq(threads_allowed_cores(mount_dir), affinity());
    put("", "cpu.max", "max 100000\n");
    put("/cpu", "cpu.cfs_quota_us", "-1\n");
    put("/cpu", "cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), affinity());
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(a_restricted_affinity_mask_is_respected)
{
    cpu_set_t set, one;
    make_mount();
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < (size_t)CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &set)) CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
    ck_assert_int_eq(threads_allowed_cores(NULL), 1);
    unsetenv("OMP_NUM_THREADS");
    threads_init(1);
    ck_assert_int_eq(threads_count(), 1);
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(a_version_2_quota_is_rounded_up)
{
    static const struct {
        const char *text;
        int limit;
    } cases[] = {{"100000 100000\n", 1},
                 {"100001 100000\n", 2},
                 {"150000 100000\n", 2},
                 {"1000 100000\n", 1},
                 {"99 50", 2},
                 {"0 100000\n", 1 << 20},
                 {"100000 0\n", 1 << 20},
                 {"", 1 << 20},
                 {"many\n", 1 << 20},
                 {"900000 100000\n", 9},
                 {"-5 100000\n", 1 << 20},
                 {"9223372036854775807 1\n", 1 << 20}};
    make_mount();
    put("", "cpu.max", "2147483647 1\n");
    ck_assert_int_eq(threads_quota_cores(mount_dir), 2147483647);
    put("", "cpu.max", "2147483648 1\n"); /* more than an int: no limit */
    ck_assert_int_eq(threads_quota_cores(mount_dir), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        put("", "cpu.max", cases[i].text);
        ck_assert_msg(threads_allowed_cores(mount_dir) == at_most(cases[i].limit), "\"%s\"",
                      cases[i].text);
    }
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(a_version_1_quota_is_rounded_up)
{
    make_mount();
    put("/cpu", "cpu.cfs_quota_us", "50000\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), affinity()); /* no period: unreadable */
    put("/cpu", "cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
    put("/cpu", "cpu.cfs_quota_us", "100100\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), at_most(2));
    put("", "cpu.max", "100000 100000\n"); /* both: the tighter one */
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(the_tightest_group_up_to_the_mount_counts)
{
    char folder[1100];
    make_mount();
    put("", "cpu.max", "900000 100000\n");
    put(own_group("0::"), "cpu.max", "100000 100000\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
    put(own_group("0::"), "cpu.max", "max 100000\n");
    put("", "cpu.max", "80000 100000\n"); /* a parent's quota binds its children */
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
    put("", "cpu.max", "max 100000\n");
    if (own_group(":cpu:")[0] == '\0') goto done; /* this kernel has no such hierarchy */
    snprintf(folder, sizeof folder, "/cpu%s", own_group(":cpu:"));
    put(folder, "cpu.cfs_quota_us", "70000\n");
    put(folder, "cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(threads_allowed_cores(mount_dir), 1);
done:
    test_tmp_remove(mount_dir);
}
END_TEST

/* ---- the pool; every case is a process of its own (Check forks) ------------------------------ */

START_TEST(omp_num_threads_is_respected)
{
    setenv("OMP_NUM_THREADS", "3", 1);
    threads_init(1);
    ck_assert_int_eq(threads_count(), 3);
    int n = 0;
#pragma omp parallel reduction(+ : n)
    n++;
    ck_assert_int_eq(n, 3);
}
END_TEST

START_TEST(a_list_of_thread_numbers_gives_its_first)
{
    setenv("OMP_NUM_THREADS", "2,1", 1);
    threads_init(1);
    ck_assert_int_eq(threads_count(), 2);
}
END_TEST

START_TEST(nonsense_in_omp_num_threads_is_ignored)
{
    setenv("OMP_NUM_THREADS", "-4", 1);
    threads_init(1);
    ck_assert_int_eq(threads_count(), threads_allowed_cores(NULL));
}
END_TEST

START_TEST(a_number_of_threads_is_asked_for_in_full)
{
    static const struct {
        const char *text;
        int asked;
    } cases[] = {{"1", 1},
                 {"16", 16},
                 {" 4 ", 4},
                 {"4,2", 4},
                 {"", 0},
                 {"  ", 0},
                 {"0", -1},
                 {"-1", -1},
                 {"abc", -1},
                 {"4x", -1},
                 {"2147483647", 2147483647},
                 {"3 5", -1},
                 {"2147483648", -1},
                 {"99999999999999999999", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("OMP_NUM_THREADS", cases[i].text, 1);
        ck_assert_msg(threads_asked() == cases[i].asked, "\"%s\": %d", cases[i].text,
                      threads_asked());
    }
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_eq(threads_asked(), 0);
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY"); /* ctest sets it */
    ck_assert(threads_spin_is_free());
    setenv("GOMP_SPINCOUNT", "1", 1);
    ck_assert(!threads_spin_is_free());
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "passive", 1);
    ck_assert(!threads_spin_is_free());
}
END_TEST

START_TEST(ranks_of_a_host_share_the_cores)
{
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_WAIT_POLICY");
    int allowed = threads_allowed_cores(NULL);
    threads_init(1);
    ck_assert_int_eq(threads_count(), allowed);
    ck_assert_ptr_null(getenv("OMP_WAIT_POLICY"));
    threads_init(allowed);
    ck_assert_int_eq(threads_count(), 1);
    ck_assert_ptr_null(getenv("OMP_WAIT_POLICY"));
    threads_init(allowed + 1); /* more ranks than cores: one thread each, waiting passively */
    ck_assert_int_eq(threads_count(), 1);
    ck_assert_str_eq(getenv("OMP_WAIT_POLICY"), "passive");
}
END_TEST

/* ---- splits ---------------------------------------------------------------------------------- */

static void check_split(size_t n, size_t unit, int n_parts)
{
    size_t at = 0, n_units = (n + unit - 1) / unit;
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(n, unit, n_parts, part, &begin, &end);
        ck_assert_uint_eq(begin, at); /* no gap, no overlap */
        ck_assert_uint_ge(end, begin);
        if (end < n) ck_assert_uint_eq(end % unit, 0);
        size_t own = (end - begin + unit - 1) / unit; /* nearly equal */
        ck_assert_uint_le(own, n_units / (size_t)n_parts + 1);
        if (n_units >= (size_t)n_parts) ck_assert_uint_ge(own, n_units / (size_t)n_parts);
        at = end;
    }
    ck_assert_uint_eq(at, n);
}

START_TEST(a_split_covers_everything_once)
{
    const size_t sizes[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 4096, 123457, (size_t)1 << 40};
    const size_t units[] = {1, 8, 16, 64, 1000};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++)
        for (size_t u = 0; u < CZ_ARRAY_LEN(units); u++)
            for (int n_parts = 1; n_parts <= 17; n_parts++)
                check_split(sizes[i], units[u], n_parts);
}
END_TEST

TEST_MAIN("base/threads", without_a_quota_the_affinity_mask_decides,
          a_restricted_affinity_mask_is_respected, a_version_2_quota_is_rounded_up,
          a_version_1_quota_is_rounded_up, the_tightest_group_up_to_the_mount_counts,
          omp_num_threads_is_respected, a_list_of_thread_numbers_gives_its_first,
          nonsense_in_omp_num_threads_is_ignored, a_number_of_threads_is_asked_for_in_full,
          ranks_of_a_host_share_the_cores, a_split_covers_everything_once)
