/* Claims: the allowed cores of a host are dealt to its ranks so that every rank gets at least one
 * and all get equally many threads, shares are disjoint and together all that is allowed, no share
 * is cut across nodes (then caches) where that can be avoided, and hardware threads of one core are
 * used only when cores run out; memory comes from the nodes of the threads or of the GPU; masks
 * that a launcher has dealt are kept; and on this machine threads really run where they are
 * reported to. */
#include "base/threads.h"
#include "offload/affinity/affinity_impl.h"
#include "tests/support/check_main.h"

#include <omp.h>
#include <sched.h>
#include <string.h>

#define RANKS_MAX 64

/* All ranks of one host. */
struct host {
    struct affinity *ranks[RANKS_MAX];
    int n;
};

static void deal_with(struct host *h, const struct affinity_options *like, int n_ranks)
{
    h->n = n_ranks;
    for (int r = 0; r < n_ranks; r++) {
        struct affinity_options o = *like;
        o.rank_host = r;
        o.n_ranks_host = n_ranks;
        ck_ok(affinity_create(&o, &h->ranks[r]));
    }
}

static void deal(struct host *h, const char *topology, const char *allowed, int n_ranks)
{
    const struct affinity_options o = {.topology = topology, .allowed = allowed};
    deal_with(h, &o, n_ranks);
}

static void release(struct host *h)
{
    for (int r = 0; r < h->n; r++) affinity_destroy(h->ranks[r]);
}

static hwloc_bitmap_t share_of(const struct affinity *p)
{
    int cpus[1024];
    size_t n = affinity_share(p, cpus, CZ_ARRAY_LEN(cpus));
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    ck_assert_uint_le(n, CZ_ARRAY_LEN(cpus));
    for (size_t i = 0; i < n; i++) hwloc_bitmap_set(set, (unsigned)cpus[i]);
    return set;
}

/* "0-3 4-7": the share of each rank. */
static void expect_shares(const struct host *h, const char *want)
{
    char got[1024] = "";
    for (int r = 0; r < h->n; r++) {
        size_t n = strlen(got);
        hwloc_bitmap_t set = share_of(h->ranks[r]);
        if (r > 0) got[n++] = ' ';
        hwloc_bitmap_list_snprintf(got + n, sizeof got - n, set);
        hwloc_bitmap_free(set);
    }
    ck_assert_str_eq(got, want);
}

/* What holds for every deal with at least as many cores as ranks. */
static void expect_fair(const struct host *h, const char *allowed)
{
    hwloc_bitmap_t all = hwloc_bitmap_alloc(), used = hwloc_bitmap_alloc();
    ck_assert_int_eq(hwloc_bitmap_list_sscanf(all, allowed), 0);
    for (int r = 0; r < h->n; r++) {
        const struct affinity *p = h->ranks[r];
        hwloc_bitmap_t share = share_of(p);
        ck_assert_int_ge(affinity_n_threads(p), 1);
        ck_assert_int_eq(affinity_n_threads(p), affinity_n_threads(h->ranks[0]));
        ck_assert_msg(!hwloc_bitmap_intersects(used, share), "rank %d shares cores", r);
        hwloc_bitmap_or(used, used, share);
        for (int t = 0; t < affinity_n_threads(p); t++) {
            ck_assert(hwloc_bitmap_isset(share, (unsigned)affinity_cpu(p, t)));
            for (int other = 0; other < t; other++)
                ck_assert_int_ne(affinity_cpu(p, t), affinity_cpu(p, other));
        }
        hwloc_bitmap_free(share);
    }
    ck_assert_msg(hwloc_bitmap_isequal(all, used), "not exactly %s is dealt", allowed);
    hwloc_bitmap_free(all);
    hwloc_bitmap_free(used);
}

/* "0 1 0,1": the nodes of each rank's memory; those of its threads must be among them. */
static void expect_nodes(const struct host *h, const char *want)
{
    char got[512] = "";
    for (int r = 0; r < h->n; r++) {
        int nodes[64];
        size_t n = affinity_nodes(h->ranks[r], nodes, CZ_ARRAY_LEN(nodes));
        ck_assert_uint_ge(n, 1);
        if (r > 0) strcat(got, " ");
        for (size_t i = 0; i < n; i++) sprintf(got + strlen(got), i > 0 ? ",%d" : "%d", nodes[i]);
    }
    ck_assert_str_eq(got, want);
}

/* "0-1 2": where each thread may run. */
static void expect_threads(const struct affinity *p, const char *want)
{
    char got[512] = "";
    for (int t = 0; t < affinity_n_threads(p); t++) {
        int cpus[64];
        size_t n = affinity_cpus(p, t, cpus, CZ_ARRAY_LEN(cpus)), len = strlen(got);
        hwloc_bitmap_t set = hwloc_bitmap_alloc();
        for (size_t i = 0; i < n; i++) hwloc_bitmap_set(set, (unsigned)cpus[i]);
        if (t > 0) got[len++] = ' ';
        hwloc_bitmap_list_snprintf(got + len, sizeof got - len, set);
        hwloc_bitmap_free(set);
    }
    ck_assert_str_eq(got, want);
}

/* ---- machines ---------------------------------------------------------------------------------
 */

#define ONE_CORE     "synthetic:numa:1 core:1 pu:1"
#define TWO_SOCKETS  "synthetic:package:2 [numa] core:8 pu:1"
#define FOUR_SOCKETS "synthetic:package:4 [numa] core:8 pu:1"
#define SNC4         "synthetic:package:2 group:4 [numa] core:4 pu:1" /* four nodes a socket */
#define NPS4         "synthetic:package:2 group:4 [numa] l3:2 core:2 pu:2"
#define CHIPLETS     "synthetic:package:1 [numa] l3:4 core:4 pu:1"
/* Processors 1, 3, 4, 6, 7 and 10 are offline. */
#define GAPS "synthetic:package:2 [numa] core:3 pu:1(indexes=0,2,5,8,9,11)"

struct row {
    const char *topology, *allowed; /* NULL: all */
    int n_ranks, n_threads;         /* of each rank */
    const char *shares, *nodes;
};

static const struct row rows[] = {
    {ONE_CORE, NULL, 1, 1, "0", "0"},
    {TWO_SOCKETS, NULL, 1, 16, "0-15", "0,1"},
    {TWO_SOCKETS, NULL, 2, 8, "0-7 8-15", "0 1"},
    {TWO_SOCKETS, NULL, 3, 5, "0-4 5-9 10-15", "0 0,1 1"}, /* 5 each do not fit otherwise */
    {TWO_SOCKETS, NULL, 4, 4, "0-3 4-7 8-11 12-15", "0 0 1 1"},
    {TWO_SOCKETS, NULL, 5, 3, "0-2 3-5 6-8 9-11 12-15", NULL},
    {TWO_SOCKETS, NULL, 16, 1, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", NULL},
    {FOUR_SOCKETS, NULL, 2, 16, "0-15 16-31", "0,1 2,3"},
    {FOUR_SOCKETS, NULL, 4, 8, "0-7 8-15 16-23 24-31", "0 1 2 3"},
    {FOUR_SOCKETS, NULL, 6, 5, "0-4 5-9 10-15 16-20 21-25 26-31", "0 0,1 1 2 2,3 3"},
    {SNC4, NULL, 2, 16, "0-15 16-31", "0,1,2,3 4,5,6,7"},
    {SNC4, NULL, 8, 4, "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31", "0 1 2 3 4 5 6 7"},
    {SNC4, NULL, 4, 8, "0-7 8-15 16-23 24-31", "0,1 2,3 4,5 6,7"},
    {NPS4, NULL, 8, 4, "0-7 8-15 16-23 24-31 32-39 40-47 48-55 56-63", "0 1 2 3 4 5 6 7"},
    {NPS4, NULL, 16, 2,
     "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31 32-35 36-39 40-43 44-47 48-51 52-55 56-59 60-63",
     NULL},
    {CHIPLETS, NULL, 4, 4, "0-3 4-7 8-11 12-15", "0 0 0 0"},
    {CHIPLETS, NULL, 5, 3, "0-3 4-6 7-9 10-12 13-15", NULL},
    {GAPS, NULL, 2, 3, "0,2,5 8-9,11", "0 1"},
    {GAPS, NULL, 3, 2, "0,2 5,8 9,11", "0 0,1 1"},
    /* A cpuset hides half: one socket, or half of both. */
    {TWO_SOCKETS, "8-15", 2, 4, "8-11 12-15", "1 1"},
    {TWO_SOCKETS, "0-3,8-11", 2, 4, "0-3 8-11", "0 1"},
    {TWO_SOCKETS, "0-3,8-11", 1, 8, "0-3,8-11", "0,1"},
    {TWO_SOCKETS, "0,8-15", 2, 4, "0,8-11 12-15", "1 1"}, /* the lone core has no thread */
    {TWO_SOCKETS, "0-7,15", 2, 4, "0-3 4-7,15", "0 0"},
    {TWO_SOCKETS, "6-9", 2, 2, "6-7 8-9", "0 1"},
};

static void check_row(const struct row *row)
{
    struct host h;
    deal(&h, row->topology, row->allowed, row->n_ranks);
    expect_shares(&h, row->shares);
    ck_assert_int_eq(affinity_n_threads(h.ranks[0]), row->n_threads);
    if (row->nodes) expect_nodes(&h, row->nodes);
    release(&h);
}

START_TEST(shares_follow_the_machine)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(rows); i++) check_row(&rows[i]);
}
END_TEST

/* Whether every share could be on one node, and if so, whether it is. */
START_TEST(every_deal_is_fair)
{
    static const struct {
        const char *topology, *all;
        int n_cores;
    } machines[] = {{TWO_SOCKETS, "0-15", 16},
                    {FOUR_SOCKETS, "0-31", 32},
                    {SNC4, "0-31", 32},
                    {NPS4, "0-63", 32},
                    {CHIPLETS, "0-15", 16},
                    {GAPS, "0,2,5,8-9,11", 6},
                    {"synthetic:package:3 [numa] core:5 pu:2", "0-29", 15},
                    {"synthetic:pu:7", "0-6", 7}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(machines); i++)
        for (int n_ranks = 1; n_ranks <= machines[i].n_cores; n_ranks++) {
            struct host h;
            deal(&h, machines[i].topology, NULL, n_ranks);
            expect_fair(&h, machines[i].all);
            ck_assert_int_eq(affinity_n_threads(h.ranks[0]), machines[i].n_cores / n_ranks);
            for (int r = 0; r < n_ranks; r++) ck_assert(!affinity_can_bind(h.ranks[r]));
            release(&h);
        }
}
END_TEST

/* Nodes of any sizes: if n_each cores for each rank fit node by node, no thread of a rank is on
 * another node than its others. */
START_TEST(no_rank_crosses_nodes_without_need)
{
    uint32_t x = 12345;
    for (int trial = 0; trial < 3000; trial++) {
        struct affinity_core v[64];
        struct affinity_cores c = {.v = v};
        int n_nodes = 1 + (int)((x = x * 1664525 + 1013904223) >> 16) % 4, sizes[4], cuts[65];
        for (int node = 0; node < n_nodes; node++) {
            sizes[node] = 1 + (int)((x = x * 1664525 + 1013904223) >> 16) % 12;
            for (int k = 0; k < sizes[node]; k++)
                v[c.n++] = (struct affinity_core){.node = node, .cache = c.n / 3};
        }
        int n_ranks = 1 + (int)((x = x * 1664525 + 1013904223) >> 16) % c.n, room = 0;
        int n_each = c.n / n_ranks;
        for (int node = 0; node < n_nodes; node++) room += sizes[node] / n_each;
        affinity_deal(&c, n_ranks, cuts);
        ck_assert_int_eq(cuts[0], 0);
        ck_assert_int_eq(cuts[n_ranks], c.n);
        for (int r = 0; r < n_ranks; r++) {
            int most = 0, run = 0;
            ck_assert_int_ge(cuts[r + 1] - cuts[r], n_each);
            for (int i = cuts[r]; i < cuts[r + 1]; i++) {
                run = i > cuts[r] && v[i].node == v[i - 1].node ? run + 1 : 1;
                if (run > most) most = run;
            }
            if (room >= n_ranks)
                ck_assert_msg(most >= n_each, "trial %d: rank %d of %d crosses nodes of %d…", trial,
                              r, n_ranks, sizes[0]);
        }
    }
}
END_TEST

START_TEST(more_ranks_than_cores_take_turns)
{
    struct host h;
    deal(&h, GAPS, NULL, 8);
    for (int r = 0; r < 8; r++) {
        static const int cpus[] = {0, 2, 5, 8, 9, 11, 0, 2};
        ck_assert_int_eq(affinity_n_threads(h.ranks[r]), 1);
        ck_assert_int_eq(affinity_cpu(h.ranks[r], 0), cpus[r]);
        ck_assert(!affinity_can_bind(h.ranks[r]));
    }
    release(&h);
    deal(&h, ONE_CORE, NULL, 3);
    for (int r = 0; r < 3; r++) ck_assert_int_eq(affinity_cpu(h.ranks[r], 0), 0);
    release(&h);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------
 */

static struct affinity *one(const char *topology, const char *allowed, int n_threads)
{
    const struct affinity_options o = {
        .topology = topology, .allowed = allowed, .n_ranks_host = 1, .n_threads = n_threads};
    struct affinity *p;
    ck_ok(affinity_create(&o, &p));
    return p;
}

START_TEST(threads_get_a_core_each)
{
    static const struct {
        const char *topology, *allowed;
        int n_threads;
        const char *cpus;
    } cases[] = {
        /* Fewer threads than cores stay on one node and have several cores to choose from. */
        {TWO_SOCKETS, NULL, 4, "0-1 2-3 4-5 6-7"},
        {TWO_SOCKETS, NULL, 3, "0-1 2-4 5-7"},
        {TWO_SOCKETS, "6-15", 4, "8-9 10-11 12-13 14-15"}, /* the larger part */
        /* Siblings are left alone while cores last, used in the order of cores when they do not. */
        {"synthetic:numa:1 core:4 pu:2", NULL, 4, "0-1 2-3 4-5 6-7"},
        {"synthetic:numa:1 core:4 pu:2", NULL, 8, "0 1 2 3 4 5 6 7"},
        {"synthetic:numa:1 core:4 pu:2", NULL, 6, "0 1 2 3 4 6"},
        {"synthetic:numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", NULL, 4, "0,4 1,5 2,6 3,7"},
        {"synthetic:numa:1 core:4 pu:2", "0,2,4-5", 4, "0 2 4 5"}, /* cores with half a pair */
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct affinity *p = one(cases[i].topology, cases[i].allowed, cases[i].n_threads);
        expect_threads(p, cases[i].cpus);
        affinity_destroy(p);
    }
}
END_TEST

/* A thread with several cores to choose from does not choose between nodes. */
START_TEST(threads_stay_on_their_node)
{
    for (int n_threads = 1; n_threads <= 40; n_threads++) {
        struct affinity *p = one(TWO_SOCKETS, "0-6,8-15", n_threads);
        int counts[2] = {0, 0};
        for (int t = 0; t < n_threads; t++) {
            int cpus[64];
            size_t n = affinity_cpus(p, t, cpus, CZ_ARRAY_LEN(cpus));
            ck_assert_uint_ge(n, 1);
            ck_assert_int_eq(cpus[0], affinity_cpu(p, t));
            for (size_t i = 0; i < n; i++) ck_assert_int_eq(cpus[i] / 8, affinity_node(p, t));
            counts[affinity_node(p, t)]++;
        }
        if (n_threads <= 8)
            ck_assert_int_eq(counts[0], 0); /* all on the larger part */
        else if (n_threads <= 15)
            ck_assert_int_le(abs(counts[0] - counts[1]), 2);
        affinity_destroy(p);
    }
}
END_TEST

/* ---- GPUs -------------------------------------------------------------------------------------
 */

static const char *two_sockets_gpus(void)
{
    static char words[1100];
    snprintf(words, sizeof words, "xml:%s", test_fixture("topologies/two_sockets_gpus.xml"));
    return words;
}

START_TEST(memory_is_near_the_gpu)
{
    static const struct {
        const char *gpu;
        int node;
    } cases[] = {{"0000:17:00.0", 0},
                 {"0000:ca:00.0", 1},
                 {"0000:cb:00.0", 1},
                 {"0000:CA:00.0", 1},      /* as CUDA writes it */
                 {"00000000:CB:00.0", 1}}; /* as nvidia-smi does */
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        int node;
        const struct affinity_options o = {.topology = two_sockets_gpus(),
                                           .n_ranks_host = 1,
                                           .n_threads = 4,
                                           .pci_bus_id = cases[i].gpu};
        struct affinity *p;
        ck_ok(affinity_create(&o, &p));
        ck_assert_uint_eq(affinity_nodes(p, &node, 1), 1);
        ck_assert_int_eq(node, cases[i].node);
        for (int t = 0; t < 4; t++) ck_assert_int_eq(affinity_node(p, t), cases[i].node);
        ck_assert_ptr_nonnull(strstr(affinity_describe(p), cases[i].gpu));
        affinity_destroy(p);
    }
}
END_TEST

/* A GPU of which the firmware, or the topology, says nothing. */
START_TEST(unknown_gpus_have_no_say)
{
    static const char *const gpus[] = {"0000:01:00.0", "0000:99:00.0", "nonsense"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(gpus); i++) {
        const struct affinity_options o = {
            .topology = two_sockets_gpus(), .n_ranks_host = 1, .pci_bus_id = gpus[i]};
        struct host h = {.n = 1};
        ck_ok(affinity_create(&o, &h.ranks[0]));
        expect_nodes(&h, "0,1");
        release(&h);
    }
}
END_TEST

START_TEST(ranks_go_where_their_gpus_are)
{
    const struct affinity_rank ranks[] = {{"0-15", "0000:ca:00.0"},
                                          {"0-15", "0000:cb:00.0"},
                                          {"0-15", "0000:17:00.0"},
                                          {"0-15", "0000:01:00.0"}};
    const struct affinity_options o = {.topology = two_sockets_gpus(), .ranks = ranks};
    struct host h;
    deal_with(&h, &o, 4);
    expect_fair(&h, "0-15");
    expect_shares(&h, "4-5,12-13 6-7,14-15 0-1,8-9 2-3,10-11");
    expect_nodes(&h, "1 1 0 0");
    release(&h);
}
END_TEST

/* The GPU's socket is hidden by a cpuset: cores elsewhere, memory beside the GPU. */
START_TEST(gpu_of_another_socket)
{
    const struct affinity_options o = {.topology = two_sockets_gpus(),
                                       .allowed = "0-3",
                                       .n_ranks_host = 1,
                                       .pci_bus_id = "0000:ca:00.0"};
    struct host h = {.n = 1};
    ck_ok(affinity_create(&o, &h.ranks[0]));
    expect_shares(&h, "0-3");
    expect_nodes(&h, "1");
    ck_assert_int_eq(affinity_node(h.ranks[0], 0), 0);
    release(&h);
}
END_TEST

/* ---- what launchers did before ----------------------------------------------------------------
 */

START_TEST(masks_that_were_dealt_are_kept)
{
    struct host h;
    const struct affinity_rank by_socket[] = {{"8-15", NULL}, {"0-7", NULL}};
    struct affinity_options o = {.topology = TWO_SOCKETS, .ranks = by_socket};
    deal_with(&h, &o, 2);
    expect_shares(&h, "8-15 0-7");
    expect_nodes(&h, "1 0");
    release(&h);
    /* mpirun --bind-to socket with two ranks on each: they divide their socket. */
    const struct affinity_rank pairs[] = {
        {"0-7", NULL}, {"8-15", NULL}, {"0-7", NULL}, {"8-15", NULL}};
    o.ranks = pairs;
    deal_with(&h, &o, 4);
    expect_shares(&h, "0-3 8-11 4-7 12-15");
    expect_fair(&h, "0-15");
    release(&h);
}
END_TEST

START_TEST(masks_that_overlap_are_left_alone)
{
    struct host h;
    const struct affinity_rank ranks[] = {{"0-7", NULL}, {"4-11", NULL}, {"12-15", NULL}};
    const struct affinity_options o = {.topology = TWO_SOCKETS, .ranks = ranks, .n_threads = 4};
    deal_with(&h, &o, 3);
    expect_shares(&h, "0-7 4-11 12-15");
    expect_nodes(&h, "0 0,1 1");
    release(&h);
}
END_TEST

/* ---- recorded machines ------------------------------------------------------------------------
 */

START_TEST(recorded_machines_are_read)
{
    char words[1100];
    struct host h;
    snprintf(words, sizeof words, "xml:%s", test_fixture("topologies/virtual_machine.xml"));
    deal(&h, words, NULL, 2);
    expect_shares(&h, "0 1");
    expect_nodes(&h, "0 0");
    release(&h);
    /* A control group hides the first socket and its memory. */
    snprintf(words, sizeof words, "xml:%s", test_fixture("topologies/cpuset_half.xml"));
    deal(&h, words, NULL, 2);
    expect_shares(&h, "8-11 12-15");
    expect_nodes(&h, "1 1");
    release(&h);
}
END_TEST

/* All processors, but memory of the second socket only. */
START_TEST(nodes_without_allowed_memory_are_not_asked)
{
    char line[4096], path[64], words[80];
    struct host h;
    const char *dir = test_tmp_make();
    snprintf(path, sizeof path, "%s/mems.xml", dir);
    FILE *in = fopen(test_fixture("topologies/cpuset_half.xml"), "r"), *out = fopen(path, "w");
    ck_assert(in && out);
    while (fgets(line, sizeof line, in)) {
        char *at = strstr(line, "allowed_cpuset=\"0x0000ff00\"");
        if (at)
            memcpy(at, "allowed_cpuset=\"0x0000ffff\"", strlen("allowed_cpuset=\"0x0000ffff\""));
        fputs(line, out);
    }
    fclose(in);
    fclose(out);
    snprintf(words, sizeof words, "xml:%s", path);
    deal(&h, words, NULL, 2);
    expect_shares(&h, "0-7 8-15");
    expect_fair(&h, "0-15");
    expect_nodes(&h, "1 1");
    release(&h);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(nonsense_is_refused)
{
    static const struct {
        struct affinity_options o;
        cz_status status;
        const char *text;
    } cases[] = {
        {{.topology = "synthetic:sofa:2", .n_ranks_host = 1}, CZ_INVALID, "sofa:2"},
        {{.topology = "two sockets", .n_ranks_host = 1}, CZ_INVALID, "two sockets"},
        {{.topology = "xml:/nowhere/x.xml", .n_ranks_host = 1}, CZ_IO, "/nowhere/x.xml"},
        {{.topology = TWO_SOCKETS, .allowed = "all", .n_ranks_host = 1}, CZ_INVALID, "all"},
        {{.topology = TWO_SOCKETS, .allowed = "16-20", .n_ranks_host = 1}, CZ_INVALID, "16-20"},
        {{.topology = TWO_SOCKETS, .allowed = "", .n_ranks_host = 1}, CZ_INVALID, "processors"},
        {{.topology = TWO_SOCKETS, .n_ranks_host = 0}, CZ_INVALID, "of 0 ranks"},
        {{.topology = TWO_SOCKETS, .rank_host = 2, .n_ranks_host = 2}, CZ_INVALID, "rank 2 of 2"},
        {{.topology = TWO_SOCKETS, .rank_host = -1, .n_ranks_host = 2}, CZ_INVALID, "rank -1"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct affinity *p = (struct affinity *)(uintptr_t)8;
        ck_fails(affinity_create(&cases[i].o, &p), cases[i].status);
        ck_assert_ptr_null(p);
        ck_assert_msg(strstr(cz_last_error(), cases[i].text), "%s", cz_last_error());
    }
    affinity_destroy(NULL);
}
END_TEST

START_TEST(a_place_says_what_it_is)
{
    struct affinity *p = one(TWO_SOCKETS, "0-3", 0);
    ck_assert_str_eq(affinity_describe(p), "4 threads on cores 0-3 of NUMA node 0");
    affinity_destroy(p);
    p = one(ONE_CORE, NULL, 0);
    ck_assert_str_eq(affinity_describe(p), "1 thread on core 0 of NUMA node 0");
    affinity_destroy(p);
    p = one(TWO_SOCKETS, NULL, 0);
    ck_assert_str_eq(affinity_describe(p), "16 threads on cores 0-15 of NUMA nodes 0-1");
    affinity_destroy(p);
    p = one("synthetic:numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", NULL, 0);
    ck_assert_str_eq(affinity_describe(p), "4 threads on cores 0-3 of NUMA node 0");
    affinity_destroy(p);
    p = one("synthetic:numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", NULL, 8);
    ck_assert_str_eq(affinity_describe(p), "8 threads on cores 0-3 of NUMA node 0");
    affinity_destroy(p);
    p = one(TWO_SOCKETS, "0-3", 5);
    ck_assert_str_eq(affinity_describe(p), "5 threads on cores 0-3 of NUMA node 0, not bound");
    affinity_destroy(p);
}
END_TEST

/* ---- this machine -----------------------------------------------------------------------------
 */

static void forget_users_binding(void)
{
    unsetenv("OMP_PROC_BIND");
    unsetenv("OMP_PLACES");
    unsetenv("GOMP_CPU_AFFINITY");
    unsetenv("KMP_AFFINITY");
    unsetenv("CZERO_BIND");
}

static bool has(const cpu_set_t *set, int cpu)
{
    return CPU_ISSET((size_t)cpu, set);
}

static void expect_mask(const cpu_set_t *got, const int *cpus, size_t n)
{
    ck_assert_int_eq(CPU_COUNT(got), (int)n);
    for (size_t i = 0; i < n; i++) ck_assert(has(got, cpus[i]));
}

START_TEST(threads_run_where_they_were_bound)
{
#ifndef _OPENMP
    return; /* a build for ThreadSanitizer has no pool */
#endif
    cpu_set_t before, masks[256], after;
    forget_users_binding();
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
    struct affinity *p = one(NULL, NULL, 0);
    int n = affinity_n_threads(p), where[256] = {0};
    ck_assert_int_le(n, threads_allowed_cores(NULL));
    ck_assert(affinity_can_bind(p));
    omp_set_num_threads(n);
    for (int round = 0; round < 3; round++) {
        affinity_bind_threads(p);
#pragma omp parallel num_threads(n)
        {
            sched_getaffinity(0, sizeof masks[0], &masks[omp_get_thread_num()]);
            where[omp_get_thread_num()] = sched_getcpu();
        }
        for (int t = 1; t < n; t++) { /* the caller may use all cores of its threads */
            int cpus[256];
            size_t n_cpus = affinity_cpus(p, t, cpus, CZ_ARRAY_LEN(cpus));
            expect_mask(&masks[t], cpus, n_cpus);
            ck_assert(has(&masks[t], where[t]));
        }
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            ck_assert(!has(&masks[0], cpu) || has(&before, cpu));
#pragma omp parallel num_threads(n > 2 ? 2 : 1) /* the runtime throws away the others here */
        (void)omp_get_thread_num();
    }
    affinity_destroy(p);
    sched_getaffinity(0, sizeof after, &after);
    ck_assert(CPU_EQUAL(&before, &after));
#pragma omp parallel num_threads(n)
    sched_getaffinity(0, sizeof masks[0], &masks[omp_get_thread_num()]);
    for (int t = 0; t < n; t++) ck_assert(CPU_EQUAL(&before, &masks[t]));
}
END_TEST

START_TEST(who_binds_threads_is_left_in_peace)
{
    static const char *const variables[][2] = {{"OMP_PROC_BIND", "false"},
                                               {"OMP_PLACES", "cores"},
                                               {"GOMP_CPU_AFFINITY", "0"},
                                               {"KMP_AFFINITY", "none"},
                                               {"CZERO_BIND", "none"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(variables); i++) {
        cpu_set_t before, after;
        forget_users_binding();
        setenv(variables[i][0], variables[i][1], 1);
        sched_getaffinity(0, sizeof before, &before);
        struct affinity *p = one(NULL, NULL, 0);
        ck_assert_msg(!affinity_can_bind(p), "%s", variables[i][0]);
        affinity_bind_threads(p);
        sched_getaffinity(0, sizeof after, &after);
        ck_assert(CPU_EQUAL(&before, &after));
        affinity_destroy(p);
    }
}
END_TEST

START_TEST(more_threads_than_processors_are_not_bound)
{
    forget_users_binding();
    struct affinity *p = one(NULL, NULL, 1000);
    ck_assert(!affinity_can_bind(p));
    affinity_bind_threads(p);
    affinity_destroy(p);
}
END_TEST

/* As taskset and numactl leave it. */
START_TEST(the_affinity_mask_is_kept)
{
    cpu_set_t all, mask;
    forget_users_binding();
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!has(&all, cpu)) continue;
        CPU_ZERO(&mask);
        CPU_SET((size_t)cpu, &mask);
        ck_assert_int_eq(sched_setaffinity(0, sizeof mask, &mask), 0);
        struct affinity *p = one(NULL, NULL, 0);
        ck_assert_int_eq(affinity_n_threads(p), 1);
        ck_assert_int_eq(affinity_cpu(p, 0), cpu);
        ck_assert(affinity_can_bind(p));
        affinity_bind_threads(p);
        ck_assert_int_eq(sched_getcpu(), cpu);
        affinity_destroy(p);
    }
}
END_TEST

TEST_MAIN("offload/affinity", shares_follow_the_machine, every_deal_is_fair,
          no_rank_crosses_nodes_without_need, more_ranks_than_cores_take_turns,
          threads_get_a_core_each, threads_stay_on_their_node, memory_is_near_the_gpu,
          unknown_gpus_have_no_say, ranks_go_where_their_gpus_are, gpu_of_another_socket,
          masks_that_were_dealt_are_kept, masks_that_overlap_are_left_alone,
          recorded_machines_are_read, nodes_without_allowed_memory_are_not_asked,
          nonsense_is_refused, a_place_says_what_it_is, threads_run_where_they_were_bound,
          who_binds_threads_is_left_in_peace, more_threads_than_processors_are_not_bound,
          the_affinity_mask_is_kept)
