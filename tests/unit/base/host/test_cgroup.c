/* Claims: the memory that may still be allocated is what the tightest limit of our control group
 * and its parents leaves, version 1 or 2, with droppable file pages counted as free; without a
 * limit there is none. */
#include "base/host/cgroup.h"
#include "tests/support/check_main.h"

#include <string.h>

static char mount_dir[64];

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

static void last_dir(const char *dir, void *user)
{
    char *last = user;
    if (strlen(last) == 0 || strlen(dir) > strlen(last)) snprintf(last, 1024, "%s", dir);
}

START_TEST(no_limit_is_no_limit)
{
    size_t limit;
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), SIZE_MAX);
    put("", "memory.max", "max\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), SIZE_MAX);
    ck_assert_uint_eq(limit, SIZE_MAX);
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(version_2_counts_droppable_pages_as_free)
{
    size_t limit;
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
    put("", "memory.max", "1000000\n");
    put("", "memory.current", "700000\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 300000);
    put("", "memory.stat", "anon 5\ninactive_file 200000\nactive_file 7\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 500000);
    ck_assert_uint_eq(limit, 1000000);
    put("", "memory.current", "100000\n"); /* less than its pages: read at another moment */
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 1000000);
    put("", "memory.current", "1200000\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 0);
    put("", "memory.current", "1500000\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 0);
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(version_1_and_the_tightest_group_bind)
{
    size_t limit;
    char deepest[1024] = "", memory[96];
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
    put("/memory", "memory.limit_in_bytes", "900000\n");
    put("/memory", "memory.usage_in_bytes", "100000\n");
    put("/memory", "memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 850000);
    put("", "memory.max", "860000\n"); /* as tight, in version 2: the first is told */
    put("", "memory.current", "10000\n");
    ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 850000);
    ck_assert_uint_eq(limit, 860000);
    snprintf(memory, sizeof memory, "%s/memory", mount_dir);
    cgroup_visit(memory, "memory", last_dir, deepest); /* our own group, wherever it is */
    if (strlen(deepest) > strlen(memory)) {
        put(deepest + strlen(mount_dir), "memory.limit_in_bytes", "400000\n");
        ck_assert_uint_eq(cgroup_memory_left(mount_dir, &limit), 400000);
        ck_assert_uint_eq(limit, 400000);
    }
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(kills_are_counted_in_either_version)
{
    char deepest[1024] = "";
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
    ck_assert_int_eq(cgroup_oom_kills(mount_dir), -1);
    put("", "memory.events", "low 0\noom 7\noom_kill 3\noom_group_kill 0\n");
    ck_assert_int_eq(cgroup_oom_kills(mount_dir), 3);
    put("/memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    ck_assert_int_eq(cgroup_oom_kills(mount_dir), 5);
    cgroup_visit("", "", last_dir, deepest); /* our own group counts, not all of the mount */
    if (strlen(deepest) > 1) {
        put(deepest, "memory.events", "oom_kill 9\n");
        ck_assert_int_eq(cgroup_oom_kills(mount_dir), 9);
    }
    test_tmp_remove(mount_dir);
}
END_TEST

START_TEST(a_group_is_found_by_its_controller)
{
    static const char text[] = "12:memory:/first\n"
                               "11:cpu,cpuacct:/user.slice/a:b\n"
                               "10:cpuset:/sets\n"
                               "9:net_cls,net_prio,cpu2:/three\n"
                               "no colon\n"
                               "8:one colon\n"
                               "0::/unified\n";
    static const struct {
        const char *controller, *group;
    } cases[] = {{"memory", "/first"},
                 {"cpu", "/user.slice/a:b"},
                 {"cpuacct", "/user.slice/a:b"},
                 {"cpuset", "/sets"},
                 {"net_cls", "/three"},
                 {"net_prio", "/three"},
                 {"cpu2", "/three"},
                 {"", "/unified"},
                 {"mem", ""},
                 {"set", ""},
                 {"net", ""},
                 {"one colon", ""},
                 {"cpu,cpuacct", "/user.slice/a:b"}};
    char group[64], list[128];
    snprintf(mount_dir, sizeof mount_dir, "%s", test_tmp_make());
    put("", "list", text);
    snprintf(list, sizeof list, "%s/list", mount_dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        memset(group, 'x', sizeof group);
        cgroup_group(list, cases[i].controller, group, sizeof group);
        ck_assert_msg(strcmp(group, cases[i].group) == 0, "%s: %s", cases[i].controller, group);
    }
    cgroup_group("/nonexistent/list", "memory", group, sizeof group);
    ck_assert_str_eq(group, "");
    test_tmp_remove(mount_dir);
}
END_TEST

static void append_dir(const char *dir, void *user)
{
    char *all = user;
    snprintf(all + strlen(all), 4096 - strlen(all), "%s\n", dir);
}

START_TEST(the_mount_the_group_and_its_parents_are_visited)
{
    char group[1024], visited[4096] = "", want[4096] = "mount\n";
    cgroup_group("/proc/self/cgroup", "", group, sizeof group);
    for (char *slash; (slash = strrchr(group, '/')) != NULL; *slash = '\0')
        snprintf(want + strlen(want), sizeof want - strlen(want), "mount%s\n", group);
    cgroup_visit("mount", "", append_dir, visited);
    ck_assert_str_eq(visited, want);
    visited[0] = '\0';
    cgroup_visit("mount", "of this name there is none", append_dir, visited);
    ck_assert_str_eq(visited, "mount\n");
}
END_TEST

TEST_MAIN("base/cgroup", no_limit_is_no_limit, version_2_counts_droppable_pages_as_free,
          version_1_and_the_tightest_group_bind, kills_are_counted_in_either_version,
          a_group_is_found_by_its_controller, the_mount_the_group_and_its_parents_are_visited)
