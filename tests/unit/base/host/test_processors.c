/* Claims: the processors this process may use are those of its affinity mask, and still all of them
 * when the OpenMP runtime has bound the main thread to one; of each core the lowest hardware thread
 * counts, whatever the numbering and whichever siblings the mask leaves out. */
#include "base/host/processors.h"
#include "tests/support/check_main.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>

static void put_siblings(const char *dir, int cpu, const char *list)
{
    char path[512];
    snprintf(path, sizeof path, "mkdir -p '%s/cpu%d/topology'", dir, cpu);
    ck_assert_int_eq(system(path), 0);
    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", dir, cpu);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(list, f);
    fclose(f);
}

static struct processors set_of(const int *cpus)
{
    struct processors p;
    memset(&p, 0, sizeof p);
    for (; *cpus >= 0; cpus++) processors_add(&p, *cpus);
    return p;
}

static void expect(const struct processors *p, const int *cpus)
{
    const struct processors want = set_of(cpus);
    ck_assert_mem_eq(p, &want, sizeof want);
    ck_assert_int_eq(processors_count(p), processors_count(&want));
}

START_TEST(one_processor_of_each_core_is_kept)
{
    const char *dir = test_tmp_make();
    put_siblings(dir, 0, "0,4\n"); /* as most machines number them */
    put_siblings(dir, 4, "0,4\n");
    put_siblings(dir, 1, "1,5\n");
    put_siblings(dir, 5, "1,5\n");
    put_siblings(dir, 8, "8-9\n"); /* as others do */
    put_siblings(dir, 9, "8-9\n");
    for (int cpu = 64; cpu < 68; cpu++) put_siblings(dir, cpu, "64-65,66,67\n"); /* four in one */
    put_siblings(dir, 8191, "8191\n");
    static const struct {
        int all[16], cores[16];
    } rows[] = {
        {{0, 1, 4, 5, -1}, {0, 1, -1}}, {{1, 4, 5, -1}, {1, 4, -1}}, /* the mask leaves out 0 */
        {{4, 5, 9, -1}, {4, 5, 9, -1}}, {{8, 9, 64, 65, 66, 67, -1}, {8, 64, -1}},
        {{66, 67, -1}, {66, -1}},       {{200, 201, -1}, {200, 201, -1}}, /* nothing known */
        {{0, 8191, -1}, {0, 8191, -1}}, {{-1}, {-1}},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(rows); i++) {
        struct processors p = set_of(rows[i].all);
        processors_keep_cores(&p, dir);
        expect(&p, rows[i].cores);
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(odd_sibling_lists_do_no_harm)
{
    static const char *const lists[] = {"",   "\n",           "0",  "0-", "x", "0,",
                                        "-3", "0-99999999\n", "7-3"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(lists); i++) {
        const char *dir = test_tmp_make();
        struct processors p = set_of((const int[]){0, -1});
        put_siblings(dir, 0, lists[i]);
        processors_keep_cores(&p, dir);
        expect(&p, (const int[]){0, -1});
        test_tmp_remove(dir);
    }
}
END_TEST

START_TEST(the_mask_is_what_may_be_used)
{
    cpu_set_t mask, one;
    struct processors p;
    ck_assert_int_eq(sched_getaffinity(0, sizeof mask, &mask), 0);
    processors_allowed(&p);
    ck_assert_int_eq(processors_count(&p), CPU_COUNT(&mask));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        ck_assert_int_eq(processors_has(&p, cpu), CPU_ISSET((size_t)cpu, &mask));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &mask)) continue;
        CPU_ZERO(&one);
        CPU_SET((size_t)cpu, &one);
        ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
        processors_allowed(&p);
        expect(&p, (const int[]){cpu, -1});
    }
}
END_TEST

/* The runtime reads its variables when it is loaded: this program is started again. */
static int count_in_child(const char *variable, const char *value)
{
    char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    ck_assert_int_gt(n, 0);
    path[n] = '\0';
    pid_t child = fork();
    if (child == 0) {
        setenv(variable, value, 1);
        execl(path, path, "count", (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(a_bound_main_thread_hides_nothing)
{
    cpu_set_t mask;
    ck_assert_int_eq(sched_getaffinity(0, sizeof mask, &mask), 0);
    ck_assert_int_eq(count_in_child("OMP_PROC_BIND", "true"), CPU_COUNT(&mask));
    ck_assert_int_eq(count_in_child("OMP_PROC_BIND", "false"), CPU_COUNT(&mask));
    ck_assert_int_eq(count_in_child("OMP_PLACES", "threads"), CPU_COUNT(&mask));
    ck_assert_int_eq(count_in_child("OMP_PLACES", "threads(1)"), 1);
}
END_TEST

int main(int argc, char **argv)
{
    const TTest *const cases[] = {one_processor_of_each_core_is_kept, odd_sibling_lists_do_no_harm,
                                  the_mask_is_what_may_be_used, a_bound_main_thread_hides_nothing};
    if (argc > 1 && strcmp(argv[1], "count") == 0) {
        struct processors p;
        processors_allowed(&p);
        return processors_count(&p);
    }
    return test_run("base/processors", cases, (int)CZ_ARRAY_LEN(cases));
}
