/* Claims: host memory is zeroed, starts on a huge page, takes no space before it is touched and
 * exactly its size after that; each page is touched first by the thread that kernels give it to,
 * tile by tile; on machines with several nodes it is where place says; it is in huge pages where
 * the system grants them; what the kernel counts as locked is what was asked for, and goes back to
 * nothing; RLIMIT_MEMLOCK is known before anything is allocated and named when it is too low. */
#include "base/threads.h"
#include "offload/host_memory.h"
#include "tests/support/check_main.h"
#include "tests/support/mlock.h"

#include <errno.h>
#include <hwloc.h>
#include <linux/capability.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE ((size_t)4096)
#define MIB  ((size_t)1 << 20)
#define KIB  ((size_t)1 << 10)

/* ---- the threads that fault pages in
 * ---------------------------------------------------------------------- madvise() is interposed:
 * it notes which thread asks for which pages, or refuses like an old kernel. */

static bool populate_is_refused;
static unsigned char *watched;
static signed char owner[1 << 16]; /* by page of `watched`: thread, −1: none yet */
static atomic_int n_populate;

__attribute__((visibility("default"))) int madvise(void *addr, size_t nbytes, int advice)
{
    const int populate_write = 23;
    if (advice == populate_write) {
        n_populate++;
        if (populate_is_refused) {
            errno = EINVAL;
            return -1;
        }
        size_t first = (size_t)((unsigned char *)addr - watched) / PAGE;
        for (size_t i = 0; watched && i < (nbytes + PAGE - 1) / PAGE; i++)
            if (owner[first + i] < 0) owner[first + i] = (signed char)omp_get_thread_num();
    }
    return (int)syscall(SYS_madvise, addr, nbytes, advice);
}

static bool lock_is_refused; /* whatever the limits allow */

__attribute__((visibility("default"))) int mlock(const void *addr, size_t nbytes)
{
    if (lock_is_refused) {
        errno = EAGAIN;
        return -1;
    }
    return (int)syscall(SYS_mlock, addr, nbytes);
}

static size_t n_resident(const unsigned char *base, size_t nbytes)
{
    size_t n_pages = (nbytes + PAGE - 1) / PAGE, n = 0;
    unsigned char *in = calloc(n_pages, 1);
    ck_assert_int_eq(mincore((void *)(uintptr_t)base, n_pages * PAGE, in), 0);
    for (size_t i = 0; i < n_pages; i++) n += in[i] & 1;
    free(in);
    return n * PAGE;
}

/* A figure of the mapping at `base` in /proc/self/smaps ("AnonHugePages:"), in bytes; −1: no such
 * line. */
static long long smaps_nbytes(const void *base, const char *key)
{
    char line[512];
    unsigned long begin, end;
    long long found = -1;
    bool inside = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2 && strchr(line, '-') < line + 17)
            inside = (uintptr_t)base >= begin && (uintptr_t)base < end;
        else if (inside && strncmp(line, key, strlen(key)) == 0)
            found = atoll(line + strlen(key)) * 1024;
    }
    if (f) fclose(f);
    return found;
}

static void no_huge_pages(const struct host_memory *m)
{
    ck_assert_int_eq(madvise(m->base, m->nbytes, MADV_NOHUGEPAGE), 0);
}

/* ---- size -------------------------------------------------------------------------------------
 */

START_TEST(memory_takes_its_size_and_no_more)
{
    static const size_t sizes[] = {1, 100, PAGE, PAGE + 1, 2 * MIB, 2 * MIB + 1, 33 * MIB + 12345};
    for (int refused = 0; refused < 2; refused++) {
        populate_is_refused = refused;
        for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
            struct host_memory m;
            size_t n_nonzero = 0;
            size_t pages = (sizes[i] + PAGE - 1) / PAGE * PAGE;
            ck_ok(host_memory_map(NULL, "states", sizes[i], &m));
            ck_assert_uint_eq((uintptr_t)m.base % (2 * MIB), 0);
            ck_assert_uint_eq(m.nbytes % (2 * MIB), 0);
            ck_assert_uint_ge(m.nbytes, sizes[i]);
            ck_assert_uint_eq(m.usable_nbytes, pages);
            no_huge_pages(&m);
            ck_assert_uint_eq(n_resident(m.base, m.nbytes), 0);
            host_memory_touch(m.base, sizes[i], 5 * MIB);
            ck_assert_uint_eq(n_resident(m.base, pages), pages);
            ck_assert_uint_eq(n_resident(m.base, m.nbytes), pages);
            for (size_t k = 0; k < sizes[i]; k++) n_nonzero += m.base[k] != 0;
            ck_assert_uint_eq(n_nonzero, 0);
            host_memory_unmap(&m);
            ck_assert_ptr_null(m.base);
            host_memory_unmap(&m);
        }
    }
    ck_assert_int_gt(n_populate, 0);
}
END_TEST

START_TEST(touching_changes_nothing)
{
    struct host_memory m;
    size_t n_changed = 0;
    ck_ok(host_memory_map(NULL, "states", 8 * MIB, &m));
    for (size_t i = 0; i < 8 * MIB; i += 3) m.base[i] = (unsigned char)(i % 251);
    for (int refused = 0; refused < 2; refused++) {
        populate_is_refused = refused;
        host_memory_touch(m.base + 77, 8 * MIB - 77, MIB + 1);
    }
    for (size_t i = 0; i < 8 * MIB; i += 3) n_changed += m.base[i] != i % 251;
    ck_assert_uint_eq(n_changed, 0);
    host_memory_touch(m.base, 0, 0);
    host_memory_unmap(&m);
}
END_TEST

START_TEST(nothing_and_too_much)
{
    struct host_memory m;
    ck_ok(host_memory_map(NULL, "nothing", 0, &m));
    ck_assert_ptr_null(m.base);
    ck_ok(host_memory_lock(&m));
    ck_assert(!m.is_locked);
    host_memory_unmap(&m);
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - MIB, (size_t)1 << 60};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        ck_fails(host_memory_map(NULL, "Adam's moments", sizes[i], &m), CZ_NOMEM);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "Adam's moments"));
        ck_assert_ptr_null(m.base);
        host_memory_unmap(&m);
    }
    host_memory_unmap(&(struct host_memory){.base = NULL});
}
END_TEST

/* ---- first touch ------------------------------------------------------------------------------
 */

/* Elements of 4 bytes, in tiles, split as kernels do: in units of 64 elements. */
static int kernel_thread(size_t numel, size_t tile, int n_threads, size_t elem)
{
    size_t tile_begin = elem / tile * tile;
    size_t left = numel - tile_begin;
    for (int t = 0; t < n_threads; t++) {
        size_t begin, end;
        threads_split(left < tile ? left : tile, 64, n_threads, t, &begin, &end);
        if (elem - tile_begin >= begin && elem - tile_begin < end) return t;
    }
    return -1;
}

/* Where a page is one thread's alone, it is that thread which touched it. */
static void check_owners(size_t offset, size_t numel, size_t tile, int n_threads)
{
    size_t n_alone = 0, n_pages = (offset + numel * 4 + PAGE - 1) / PAGE;
    for (size_t page = offset / PAGE; page < n_pages; page++) {
        size_t from = page * PAGE < offset ? 0 : (page * PAGE - offset) / 4;
        size_t to = ((page + 1) * PAGE - offset) / 4 - 1;
        if (to >= numel) to = numel - 1;
        ck_assert_int_ge(owner[page], 0);
        int first = kernel_thread(numel, tile, n_threads, from);
        if (first != kernel_thread(numel, tile, n_threads, to) || from / tile != to / tile)
            continue;
        ck_assert_msg(owner[page] == first, "page %zu: thread %d instead of %d", page, owner[page],
                      first);
        n_alone++;
    }
    ck_assert_uint_gt(n_alone, n_pages / 2);
}

START_TEST(pages_are_touched_by_their_threads)
{
#ifndef _OPENMP
    return; /* a build for ThreadSanitizer has no pool */
#endif
    static const struct {
        size_t offset, numel, tile;
        int n_threads;
    } rows[] = {{0, 8 << 20, 8 << 20, 2},         {0, 20 << 20, 8 << 20, 3},
                {256, 5000000, 1 << 20, 4},       {4352, 3333333, 3333333, 5},
                {0, (16 << 20) + 77, 8 << 20, 7}, {0, 1 << 20, 1 << 18, 1}};
    omp_set_dynamic(0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(rows); i++) {
        struct host_memory m;
        omp_set_num_threads(rows[i].n_threads);
        ck_ok(host_memory_map(NULL, "masters", rows[i].offset + rows[i].numel * 4, &m));
        no_huge_pages(&m);
        watched = m.base;
        memset(owner, -1, sizeof owner);
        ck_assert_uint_le(m.nbytes / PAGE, sizeof owner);
        host_memory_touch(m.base + rows[i].offset, rows[i].numel * 4, rows[i].tile * 4);
        check_owners(rows[i].offset, rows[i].numel, rows[i].tile, rows[i].n_threads);
        watched = NULL;
        host_memory_unmap(&m);
    }
}
END_TEST

/* The nodes of pages, as the kernel tells them. false: it does not. */
static bool nodes_of(unsigned char *base, size_t n_pages, int *nodes)
{
    void **pages = calloc(n_pages, sizeof *pages);
    for (size_t i = 0; i < n_pages; i++) pages[i] = base + i * PAGE;
    long st = syscall(SYS_move_pages, 0, n_pages, pages, NULL, nodes, 0);
    free(pages);
    return st == 0;
}

/* On a machine with one node this asks less, but asks it: every page has to be on a node. */
START_TEST(pages_lie_on_the_nodes_of_their_threads)
{
    struct affinity *p;
    struct host_memory m;
    const struct affinity_options o = {.n_ranks_host = 1};
    const size_t tile = 8 * MIB, nbytes = 20 * MIB;
    int *nodes = calloc(nbytes / PAGE, sizeof *nodes), of_memory[64];
    unsetenv("OMP_PROC_BIND");
    ck_ok(affinity_create(&o, &p));
    int n_threads = affinity_n_threads(p);
    omp_set_num_threads(n_threads);
    affinity_bind_threads(p);
    ck_ok(host_memory_map(p, "masters", nbytes, &m));
    no_huge_pages(&m); /* which are on one node even where two threads of two nodes meet */
    host_memory_touch(m.base, nbytes, tile);
    ck_assert_uint_ge(affinity_nodes(p, of_memory, CZ_ARRAY_LEN(of_memory)), 1);
    if (nodes_of(m.base, nbytes / PAGE, nodes))
        for (size_t page = 0; page < nbytes / PAGE; page++) {
            int thread = kernel_thread(nbytes / 4, tile / 4, n_threads, page * PAGE / 4);
            int last = kernel_thread(nbytes / 4, tile / 4, n_threads, (page + 1) * PAGE / 4 - 1);
            ck_assert_int_ge(nodes[page], 0);
            if (thread == last) ck_assert_int_eq(nodes[page], affinity_node(p, thread));
        }
    host_memory_unmap(&m);
    affinity_destroy(p);
    free(nodes);
}
END_TEST

/* ---- a machine with two nodes -----------------------------------------------------------------
 * hwloc is made to believe that processors 0 and 1 have a node each. The kernel knows node 0 only,
 * which is enough to see what is asked of it. */

static const char *believe_in_two_nodes(void)
{
    static char path[64];
    hwloc_topology_t t;
    snprintf(path, sizeof path, "/tmp/czero-nodes-%d.xml", (int)getpid());
    ck_assert_int_eq(hwloc_topology_init(&t), 0);
    ck_assert_int_eq(hwloc_topology_set_synthetic(t, "package:2 [numa] core:1 pu:1"), 0);
    ck_assert_int_eq(hwloc_topology_load(t), 0);
    ck_assert_int_eq(hwloc_topology_export_xml(t, path, 0), 0);
    hwloc_topology_destroy(t);
    setenv("HWLOC_XMLFILE", path, 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    return path;
}

static bool has_processors_0_and_1(void)
{
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_ISSET(0, &mask) &&
           CPU_ISSET(1, &mask);
}

enum { DEFAULT_POLICY = 0, PREFERRED = 1, INTERLEAVE = 3, PREFERRED_MANY = 5 };

/* The policy of the page at `at` and its nodes, as the kernel tells them. */
static int policy_of(void *at, unsigned long *nodes)
{
    int policy = -1;
    const unsigned long of_address = 2, n_max = 64;
    *nodes = 0;
    ck_assert_int_eq(syscall(SYS_get_mempolicy, &policy, nodes, n_max, at, of_address), 0);
    return policy;
}

static int policy_with(const char *allowed, unsigned long *nodes)
{
    struct affinity *p;
    struct host_memory m;
    const struct affinity_options o = {.allowed = allowed, .n_ranks_host = 1};
    ck_ok(affinity_create(&o, &p));
    ck_assert(affinity_can_bind(p));
    ck_ok(host_memory_map(p, "states", 3 * MIB, &m));
    affinity_destroy(p);
    int policy = policy_of(m.base, nodes), last = policy_of(m.base + m.nbytes - 1, nodes);
    ck_assert_int_eq(policy, last);
    host_memory_touch(m.base, 3 * MIB, 0);
    host_memory_unmap(&m);
    return policy;
}

START_TEST(memory_is_asked_from_the_node_of_the_rank)
{
    unsigned long nodes;
    int unused;
    if (!has_processors_0_and_1() || syscall(SYS_get_mempolicy, &unused, NULL, 0, NULL, 0) != 0)
        return; /* nothing to see */
    static const char *const users[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY", "CZERO_BIND"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(users); i++) unsetenv(users[i]);
    const char *path = believe_in_two_nodes();
    int policy = policy_with("0", &nodes);
    ck_assert_msg(policy == PREFERRED || policy == PREFERRED_MANY, "policy %d", policy);
    ck_assert_uint_eq(nodes, 1);
    /* A rank on both: pages follow the threads that touch them. */
    ck_assert_int_eq(policy_with("0-1", &nodes), DEFAULT_POLICY);
    /* Node 1, of which the kernel knows nothing: memory all the same. */
    policy_with("1", &nodes);
    /* The user's own policy stays: the mapping has none in front of it. */
    unsigned long node_0 = 1;
    ck_assert_int_eq(syscall(SYS_set_mempolicy, INTERLEAVE, &node_0, 64), 0);
    ck_assert_int_eq(policy_with("0", &nodes), DEFAULT_POLICY);
    unlink(path);
}
END_TEST

/* Of two nodes that would do, the one that the process is on already. */
START_TEST(few_threads_stay_on_the_node_they_are_on)
{
    cpu_set_t mask, one;
    if (!has_processors_0_and_1()) return;
    const char *path = believe_in_two_nodes();
    for (int cpu = 0; cpu < 2; cpu++) {
        struct affinity *p;
        const struct affinity_options o = {.allowed = "0-1", .n_ranks_host = 1, .n_threads = 1};
        sched_getaffinity(0, sizeof mask, &mask);
        CPU_ZERO(&one);
        CPU_SET((size_t)cpu, &one);
        ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
        ck_ok(affinity_create(&o, &p));
        ck_assert_int_eq(affinity_cpu(p, 0), cpu);
        ck_assert_int_eq(affinity_node(p, 0), cpu);
        affinity_destroy(p);
        sched_setaffinity(0, sizeof mask, &mask);
    }
    unlink(path);
}
END_TEST

START_TEST(huge_pages_where_they_are_to_be_had)
{
    char mode[128] = "";
    struct host_memory m;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && !fgets(mode, sizeof mode, f)) mode[0] = '\0';
    if (f) fclose(f);
    ck_ok(host_memory_map(NULL, "states", 64 * MIB, &m));
    host_memory_touch(m.base, 64 * MIB, 0);
    long long huge = smaps_nbytes(m.base, "AnonHugePages:");
    if (huge >= 0 && mode[0] && !strstr(mode, "[never]")) ck_assert_int_gt(huge, 0);
    ck_assert_uint_eq(n_resident(m.base, m.nbytes), 64 * MIB);
    host_memory_unmap(&m);
}
END_TEST

/* ---- locking ----------------------------------------------------------------------------------
 */

/* This process, in a child of its own, is held to a limit. */
static void limit_locking(size_t nbytes)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    const struct rlimit limit = {nbytes, nbytes};
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
    ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
}

START_TEST(locked_bytes_are_those_asked_for)
{
    if (!mlock_is_real()) return;
    static const size_t sizes[] = {1, 400 * KIB, 5 * MIB + 1, 40 * MIB};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        struct host_memory m;
        size_t before = host_memory_locked();
        if (host_memory_lockable() < sizes[i] + PAGE) continue; /* tested below all the same */
        ck_ok(host_memory_map(NULL, "states", sizes[i], &m));
        host_memory_touch(m.base, sizes[i], 0);
        ck_assert_uint_eq(host_memory_locked(), before); /* without pin_memory: none */
        ck_ok(host_memory_lock(&m));
        ck_assert(m.is_locked);
        size_t locked = host_memory_locked() - before;
        ck_assert_uint_ge(locked, sizes[i]);
        ck_assert_uint_lt(locked, sizes[i] + PAGE);
        if (sizes[i] >= 400 * KIB) ck_assert_uint_le(locked, sizes[i] + sizes[i] / 100);
        ck_ok(host_memory_lock(&m));
        ck_assert_uint_eq(host_memory_locked() - before, locked);
        m.base[sizes[i] - 1] = 7;
        host_memory_unmap(&m);
        ck_assert_uint_eq(host_memory_locked(), before);
    }
}
END_TEST

START_TEST(the_limit_is_known_and_named)
{
    struct host_memory small, large;
    if (!mlock_is_real()) return;
    limit_locking(256 * KIB);
    ck_assert_uint_eq(host_memory_lockable(), 256 * KIB - host_memory_locked());
    ck_ok(host_memory_map(NULL, "staging", 100 * KIB, &small));
    ck_ok(host_memory_map(NULL, "optimizer states", 3 * MIB, &large));
    ck_ok(host_memory_lock(&small));
    ck_assert_uint_eq(host_memory_locked(), 100 * KIB);
    ck_assert_uint_eq(host_memory_lockable(), 156 * KIB);
    ck_fails(host_memory_lock(&large), CZ_NOMEM);
    ck_assert(!large.is_locked);
    static const char *const words[] = {"optimizer states", "RLIMIT_MEMLOCK", "256.00 KiB",
                                        "3.00 MiB",         "ulimit -l 3172", "pin_memory"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(words); i++)
        ck_assert_msg(strstr(cz_last_error(), words[i]), "%s lacks %s", cz_last_error(), words[i]);
    ck_assert_uint_eq(host_memory_locked(), 100 * KIB);
    host_memory_touch(large.base, 3 * MIB, 0); /* it works all the same */
    memset(large.base, 5, 3 * MIB);
    host_memory_unmap(&small);
    ck_assert_uint_eq(host_memory_lockable(), 256 * KIB);
    host_memory_unmap(&large);
}
END_TEST

/* What the limit allows to the byte, and the kernel refuses, is not put down to the limit. */
START_TEST(a_refusal_within_the_limit_is_not_blamed_on_it)
{
    limit_locking(256 * KIB);
    for (size_t more = 0; more < 2; more++) {
        struct host_memory m;
        ck_ok(host_memory_map(NULL, "states", 256 * KIB + more, &m));
        lock_is_refused = true;
        ck_fails(host_memory_lock(&m), CZ_NOMEM);
        lock_is_refused = false;
        bool is_blamed = strstr(cz_last_error(), "exceeds RLIMIT_MEMLOCK") != NULL;
        ck_assert_msg(is_blamed == (more > 0), "%s", cz_last_error());
        ck_assert_int_eq(strstr(cz_last_error(), "although RLIMIT_MEMLOCK allows it") != NULL,
                         more == 0);
        host_memory_unmap(&m);
    }
}
END_TEST

/* CAP_IPC_LOCK of the first user namespace lifts the limit. */
START_TEST(a_capability_lifts_the_limit)
{
    const struct rlimit limit = {128 * KIB, 128 * KIB};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {0};
    unsigned long inside = 1, outside = 1, n = 0;
    FILE *f = fopen("/proc/self/uid_map", "r");
    ck_assert(f && fscanf(f, "%lu %lu %lu", &inside, &outside, &n) == 3);
    fclose(f);
    ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
    bool has =
        (caps[0].effective >> CAP_IPC_LOCK & 1) && inside == 0 && outside == 0 && n == UINT32_MAX;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_uint_eq(host_memory_lockable(), has ? SIZE_MAX : 128 * KIB - host_memory_locked());
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
    ck_assert_uint_eq(host_memory_lockable(), 128 * KIB - host_memory_locked());
}
END_TEST

START_TEST(no_locking_at_all)
{
    struct host_memory m;
    limit_locking(0);
    ck_assert_uint_eq(host_memory_lockable(), 0);
    ck_ok(host_memory_map(NULL, "states", PAGE, &m));
    ck_fails(host_memory_lock(&m), CZ_NOMEM);
    ck_assert_uint_eq(host_memory_locked(), 0);
    host_memory_unmap(&m);
}
END_TEST

START_TEST(no_limit_is_no_limit)
{
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_MEMLOCK, &none) != 0) return; /* may not raise it: nothing to see */
    ck_assert_uint_eq(host_memory_lockable(), SIZE_MAX);
}
END_TEST

/* Root of a rootless container has the capability by name only. */
START_TEST(capabilities_of_user_namespaces_do_not_count)
{
    const struct rlimit limit = {128 * KIB, 128 * KIB};
    struct host_memory m;
    if (unshare(CLONE_NEWUSER) != 0) return; /* forbidden here */
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_uint_eq(host_memory_lockable(), 128 * KIB - host_memory_locked());
    ck_ok(host_memory_map(NULL, "states", MIB, &m));
    ck_fails(host_memory_lock(&m), CZ_NOMEM);
    if (mlock_is_real()) ck_assert_int_ne(mlock(m.base, MIB), 0); /* as the kernel sees it */
    host_memory_unmap(&m);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {memory_takes_its_size_and_no_more,
                                  touching_changes_nothing,
                                  nothing_and_too_much,
                                  pages_are_touched_by_their_threads,
                                  pages_lie_on_the_nodes_of_their_threads,
                                  memory_is_asked_from_the_node_of_the_rank,
                                  few_threads_stay_on_the_node_they_are_on,
                                  huge_pages_where_they_are_to_be_had,
                                  locked_bytes_are_those_asked_for,
                                  the_limit_is_known_and_named,
                                  a_refusal_within_the_limit_is_not_blamed_on_it,
                                  a_capability_lifts_the_limit,
                                  no_locking_at_all,
                                  no_limit_is_no_limit,
                                  capabilities_of_user_namespaces_do_not_count};
    if (sysconf(_SC_PAGESIZE) != (long)PAGE) {
        printf("skipped: figures here are for pages of 4 KiB\n");
        return TEST_SKIPPED;
    }
    return test_run("offload/host_memory", cases, (int)CZ_ARRAY_LEN(cases));
}
