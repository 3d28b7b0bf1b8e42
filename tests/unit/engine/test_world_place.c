/* Claims: unbound ranks divide the cores that they share and bind their threads to
 * them; a share that the launcher dealt is kept; `--bind none` and more ranks than cores bind
 * nothing; a second engine finds the same share as the first, and the last one gives the mask back.
 *
 * Ranks are this very program again, started through launch_local() with the name of a role. */
#include "base/threads.h"
#include "engine/engine.h"
#include "engine/launch/launch.h"
#include "engine/launch/world_impl.h"
#include "tests/support/check_main.h"

#include <omp.h>
#include <sched.h>
#include <string.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s fails; last error: %s\n", __LINE__, #condition,           \
                    cz_last_error());                                                              \
            return 9;                                                                              \
        }                                                                                          \
    } while (0)

static struct processors share_of(const struct affinity *p)
{
    int cpus[1024];
    struct processors set = {.bits = {0}};
    size_t n = affinity_share(p, cpus, CZ_ARRAY_LEN(cpus));
    for (size_t i = 0; i < n && i < CZ_ARRAY_LEN(cpus); i++) processors_add(&set, cpus[i]);
    return set;
}

static bool is_within(const struct processors *a, const struct processors *b)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(a->bits); i++)
        if (a->bits[i] & ~b->bits[i]) return false;
    return true;
}

static bool is_same(const struct processors *a, const struct processors *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Whether no processor is in two ranks' shares. */
static bool is_disjoint(const struct processors *shares, int n)
{
    for (int r = 0; r < n; r++)
        for (int other = 0; other < r; other++)
            for (size_t i = 0; i < CZ_ARRAY_LEN(shares->bits); i++)
                if (shares[r].bits[i] & shares[other].bits[i]) return false;
    return true;
}

/* All threads of the pool run within the share. */
static bool runs_within(const struct processors *share)
{
    int n_outside = 0;
#pragma omp parallel reduction(+ : n_outside)
    {
        struct processors mine;
        processors_allowed(&mine);
        n_outside += !is_within(&mine, share);
    }
    return n_outside == 0;
}

static int role_divide(struct comm *world)
{
    struct affinity *p, *second;
    struct processors before, after, shares[8];
    int n = world->world_size, me = world->rank;
    unsetenv("CZERO_BIND"); /* as mpirun without a binding leaves ranks */
    processors_allowed(&before);
    EXPECT(world_place(world, "", &p) == CZ_OK && p);
    EXPECT(affinity_n_threads(p) == threads_count());
    EXPECT(affinity_can_bind(p));
    shares[me] = share_of(p);
    EXPECT(is_within(&shares[me], &before));
    EXPECT(runs_within(&shares[me]));
    EXPECT(comm_all_gather(world, &shares[me], shares, sizeof *shares) == CZ_OK);
    EXPECT(is_disjoint(shares, n));
    EXPECT(world_place(world, "", &second) == CZ_OK && second);
    after = share_of(second);
    EXPECT(is_same(&after, &shares[me]));
    affinity_destroy(second);
    affinity_destroy(p);
    processors_allowed(&after);
    EXPECT(is_same(&before, &after));
    return 0;
}

static int role_bound(struct comm *world)
{
    struct affinity *p;
    struct processors before, share;
    processors_allowed(&before);
    EXPECT(world_place(world, "", &p) == CZ_OK && p);
    share = share_of(p);
    EXPECT(affinity_can_bind(p));
    EXPECT(is_same(&share, &before));
    EXPECT(runs_within(&share));
    affinity_destroy(p);
    return 0;
}

static int role_free(struct comm *world)
{
    struct affinity *p;
    struct processors before, after;
    processors_allowed(&before);
    EXPECT(world_place(world, "", &p) == CZ_OK && p);
    EXPECT(!affinity_can_bind(p));
    EXPECT(affinity_n_threads(p) == threads_count());
    processors_allowed(&after);
    EXPECT(is_same(&before, &after));
    affinity_destroy(p);
    return 0;
}

static int play(const char *role)
{
    struct cz_world *world;
    int code = 9;
    EXPECT(engine_world_create(&world) == CZ_OK);
    if (strcmp(role, "divide") == 0) code = role_divide(world_comm(world));
    if (strcmp(role, "bound") == 0) code = role_bound(world_comm(world));
    if (strcmp(role, "free") == 0) code = role_free(world_comm(world));
    engine_world_destroy(world);
    return code;
}

static void show(bool to_stderr, const char *text, size_t nbytes, void *user)
{
    (void)user;
    fwrite(text, 1, nbytes, to_stderr ? stderr : stdout);
}

static void over_ranks(int n_ranks, enum launch_bind bind, const char *role)
{
    static const char *const users[] = {"OMP_NUM_THREADS",   "OMP_PROC_BIND", "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY", "KMP_AFFINITY",  "CZERO_BIND"};
    char name[] = "test_world_place";
    char *argv[] = {name, (char *)(uintptr_t)role, NULL};
    const struct launch_options options = {
        .n_ranks = n_ranks, .bind = bind, .program = "/proc/self/exe", .argv = argv, .write = show};
    int code;
    for (size_t i = 0; i < CZ_ARRAY_LEN(users); i++) unsetenv(users[i]);
    cz_status st = launch_local(&options, &code);
    ck_assert_msg(st == CZ_OK && code == 0, "%s: exit %d: %s", role, code, cz_last_error());
}

static int at_most_8_cores(void)
{
    struct processors p;
    processors_allowed(&p);
    processors_keep_cores(&p, NULL);
    int n = processors_count(&p);
    return n < 8 ? n : 8;
}

START_TEST(unbound_ranks_divide_the_cores)
{
    for (int n = 1; n <= at_most_8_cores(); n *= 2) over_ranks(n, LAUNCH_BIND_NONE, "divide");
}
END_TEST

START_TEST(bound_ranks_keep_their_cores)
{
    for (int n = 1; n <= at_most_8_cores(); n *= 2) over_ranks(n, LAUNCH_BIND_CORES, "bound");
}
END_TEST

START_TEST(bind_none_binds_nobody)
{
    over_ranks(1, LAUNCH_BIND_NONE, "free");
    over_ranks(3, LAUNCH_BIND_NONE, "free");
}
END_TEST

START_TEST(more_ranks_than_cores_are_bound_to_none)
{
    struct processors p;
    processors_allowed(&p);
    int n = processors_count(&p) + 1;
    if (n <= 16) over_ranks(n, LAUNCH_BIND_CORES, "free");
}
END_TEST

int main(int argc, char **argv)
{
    const TTest *const cases[] = {unbound_ranks_divide_the_cores, bound_ranks_keep_their_cores,
                                  bind_none_binds_nobody, more_ranks_than_cores_are_bound_to_none};
    if (argc > 1) return play(argv[1]);
    return test_run("engine/world_place", cases, (int)CZ_ARRAY_LEN(cases));
}
