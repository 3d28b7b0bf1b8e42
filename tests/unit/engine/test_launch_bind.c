/* Claims: the launcher divides the allowed cores into equal shares of whole cores, one NUMA node a
 * rank where that can be, spread over the nodes; a CPU quota lowers the threads, not the sets; more
 * ranks than cores are not bound and have one thread each, whose waits are passive; and a rank with
 * more threads than its share is not bound to it. */
#include "engine/launch/launch_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

struct machine {
    hwloc_topology_t topology;
    struct launch_shares shares;
};

/* Divide a synthetic machine; allowed NULL: all of it. */
static void divide(struct machine *m, const char *synthetic, const char *allowed, int quota,
                   int n_ranks)
{
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    ck_assert_int_eq(hwloc_topology_init(&m->topology), 0);
    ck_assert_int_eq(hwloc_topology_set_synthetic(m->topology, synthetic), 0);
    ck_assert_int_eq(hwloc_topology_load(m->topology), 0);
    hwloc_bitmap_copy(set, hwloc_topology_get_topology_cpuset(m->topology));
    if (allowed) ck_assert_int_eq(hwloc_bitmap_list_sscanf(set, allowed), 0);
    ck_ok(launch_divide(m->topology, set, quota, n_ranks, &m->shares));
    hwloc_bitmap_free(set);
}

static void release(struct machine *m)
{
    launch_shares_free(&m->shares);
    hwloc_topology_destroy(m->topology);
}

/* The shares as "0-1 2-3": processors of each rank. */
static void expect_sets(const struct machine *m, int n_threads, const char *want)
{
    char got[512] = "";
    ck_assert_int_eq(m->shares.n_threads, n_threads);
    ck_assert(!m->shares.passive);
    ck_assert(m->shares.bound);
    for (int r = 0; r < m->shares.n_ranks; r++) {
        size_t n = strlen(got);
        if (r > 0) got[n++] = ' ';
        hwloc_bitmap_list_snprintf(got + n, sizeof got - n, m->shares.sets[r]);
    }
    ck_assert_str_eq(got, want);
}

static void expect_unbound(const struct machine *m)
{
    ck_assert_int_eq(m->shares.n_threads, 1);
    ck_assert(m->shares.passive);
    ck_assert(!m->shares.bound);
    ck_assert_ptr_null(m->shares.sets);
}

/* Two NUMA nodes × four cores × two processors: core c has processors 2c and 2c + 1. */
static const char two_nodes[] = "numa:2 core:4 pu:2";

START_TEST(ranks_get_whole_cores_of_one_node)
{
    static const struct {
        int n_ranks, n_threads;
        const char *sets;
    } rows[] = {
        {1, 8, "0-15"},
        {2, 4, "0-7 8-15"},
        {3, 2, "0-3 4-7 8-11"},
        {4, 2, "0-3 4-7 8-11 12-15"},
        {5, 1, "0-1 2-3 4-5 8-9 10-11"},
        {8, 1, "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(rows); i++) {
        struct machine m;
        divide(&m, two_nodes, NULL, 0, rows[i].n_ranks);
        expect_sets(&m, rows[i].n_threads, rows[i].sets);
        release(&m);
    }
}
END_TEST

START_TEST(ranks_spread_over_nodes)
{
    struct machine m;
    divide(&m, "numa:4 core:8 pu:1", NULL, 0, 6); /* 5 cores each: two nodes have one rank only */
    expect_sets(&m, 5, "0-4 5-9 10-14 15-19 20-24 25-29"); /* 6 × 5 does not fit node by node */
    release(&m);
    divide(&m, "numa:4 core:8 pu:1", NULL, 0, 4);
    expect_sets(&m, 8, "0-7 8-15 16-23 24-31");
    release(&m);
    divide(&m, "numa:2 core:6 pu:1", NULL, 0, 5); /* 2 each: three and two */
    expect_sets(&m, 2, "0-1 2-3 4-5 6-7 8-9");
    release(&m);
}
END_TEST

START_TEST(shares_are_equal_even_across_nodes)
{
    struct machine m;
    divide(&m, "numa:2 core:3 pu:1", NULL, 0, 3); /* a share per node would leave one core each */
    expect_sets(&m, 2, "0-1 2-3 4-5");
    release(&m);
}
END_TEST

START_TEST(only_allowed_processors_are_used)
{
    struct machine m;
    divide(&m, two_nodes, "1,6-11", 0, 2); /* half of core 0, cores 3, 4, 5 */
    expect_sets(&m, 2, "1,6-7 8-11");
    release(&m);
    divide(&m, two_nodes, "12-13", 0, 1);
    expect_sets(&m, 1, "12-13");
    release(&m);
}
END_TEST

START_TEST(quota_lowers_threads_not_sets)
{
    struct machine m;
    divide(&m, two_nodes, NULL, 4, 2);
    expect_sets(&m, 2, "0-7 8-15");
    release(&m);
    divide(&m, two_nodes, NULL, 100, 2);
    expect_sets(&m, 4, "0-7 8-15");
    release(&m);
    divide(&m, two_nodes, NULL, 1, 2);
    expect_unbound(&m);
    release(&m);
}
END_TEST

START_TEST(more_ranks_than_cores_are_not_bound)
{
    struct machine m;
    divide(&m, two_nodes, NULL, 0, 9);
    expect_unbound(&m);
    release(&m);
    divide(&m, "core:2 pu:1", NULL, 0, 64);
    expect_unbound(&m);
    release(&m);
}
END_TEST

/* Some virtual machines show processors only. */
START_TEST(machines_without_cores_are_divided_by_processors)
{
    struct machine m;
    divide(&m, "pu:6", NULL, 0, 3);
    expect_sets(&m, 2, "0-1 2-3 4-5");
    release(&m);
}
END_TEST

START_TEST(wishes_of_the_user_win)
{
    struct launch_shares s;
    ck_ok(launch_divide_here(LAUNCH_BIND_CORES, 0, 1, &s));
    ck_assert(s.bound);
    int n_cores = s.n_threads;
    launch_shares_free(&s);
    ck_ok(launch_divide_here(LAUNCH_BIND_NONE, 0, 1, &s));
    ck_assert(!s.bound);
    ck_assert_int_eq(s.n_threads, n_cores);
    ck_ok(launch_divide_here(LAUNCH_BIND_CORES, n_cores + 1, 1, &s));
    ck_assert(!s.bound);
    ck_assert(s.passive);
    ck_assert_int_eq(s.n_threads, n_cores + 1);
    ck_ok(launch_divide_here(LAUNCH_BIND_CORES, 1, 1, &s));
    ck_assert(s.bound);
    ck_assert_int_eq(s.n_threads, 1);
    launch_shares_free(&s);
}
END_TEST

TEST_MAIN("engine/launch_bind", ranks_get_whole_cores_of_one_node, ranks_spread_over_nodes,
          shares_are_equal_even_across_nodes, only_allowed_processors_are_used,
          quota_lowers_threads_not_sets, more_ranks_than_cores_are_not_bound,
          machines_without_cores_are_divided_by_processors, wishes_of_the_user_win)
