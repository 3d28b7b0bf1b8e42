/* Claims: a world of ranks agrees on failures, tells each other's sentences, says a common one
 * once, adds up figures in rank order with the same bits everywhere, and gives every rank the same
 * number of threads, by the cores that they share; a program that was started plainly is a world of
 * one.
 *
 * Cases over several ranks start this very program again, through launch_local(), with the name of
 * a role: main() then plays it and ends with 0 when all is as it should be. */
#include "base/threads.h"
#include "engine/engine.h"
#include "engine/launch/launch.h"
#include "engine/launch/world_impl.h"
#include "tests/support/check_main.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- roles ----------------------------------------------------------------------------------- */

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s fails; last error: %s\n", __LINE__, #condition,           \
                    cz_last_error());                                                              \
            return 9;                                                                              \
        }                                                                                          \
    } while (0)

static int role_agree(struct cz_world *world)
{
    int rank = engine_world_rank(world);
    bool speaks;
    EXPECT(engine_world_agree(world, CZ_OK, &speaks) == CZ_OK && speaks);

    /* Rank 1 fails: the others learn its sentence; it prints, and so does the first of the others
     */
    cz_status mine = rank == 1 ? err_set(CZ_IO, 0, "the disk of rank 1 is full") : CZ_OK;
    cz_status st = engine_world_agree(world, mine, &speaks);
    EXPECT(st == (rank == 1 ? CZ_IO : CZ_PEER));
    EXPECT(strstr(cz_last_error(), "the disk of rank 1 is full"));
    EXPECT((rank == 1) != (strstr(cz_last_error(), "rank 1 of 3 failed") != NULL));
    EXPECT(speaks == (rank <= 1));

    /* Rank 0's own sentence is not repeated */
    st = engine_world_agree(world, rank == 0 ? err_set(CZ_IO, 0, "no space") : CZ_OK, &speaks);
    EXPECT(st == (rank == 0 ? CZ_IO : CZ_PEER) && speaks == (rank == 0));

    /* All fail alike: one says it */
    st = engine_world_agree(world, err_set(CZ_NOTFOUND, 0, "no such file"), &speaks);
    EXPECT(st == CZ_NOTFOUND && speaks == (rank == 0));
    EXPECT(strcmp(cz_last_error(), "no such file") == 0);

    st = engine_world_agree(world, err_set(CZ_NOMEM, 0, "%d bytes more", 100 + rank), &speaks);
    EXPECT(st == CZ_NOMEM && speaks == (rank == 0));

    /* No voice is wanted */
    EXPECT(engine_world_agree(world, CZ_OK, NULL) == CZ_OK);
    return 0;
}

static int role_leave(struct cz_world *world)
{
    bool speaks;
    if (engine_world_rank(world) == 2) {
        err_set(CZ_CORRUPT, 0, "the data of rank 2 is damaged");
        engine_world_leave(world, cz_last_error());
        EXPECT(cz_last_status() == CZ_CORRUPT); /* still to be printed */
        return 0;
    }
    EXPECT(engine_world_agree(world, CZ_OK, &speaks) == CZ_PEER);
    EXPECT(strstr(cz_last_error(), "rank 2") && strstr(cz_last_error(), "is damaged") && speaks);
    return 0;
}

static int role_threads(struct cz_world *world)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    EXPECT(asked && threads_count() == atoi(asked));
    threads_init(engine_world_size(world)); /* as the engine does: not divided twice */
    EXPECT(threads_count() == atoi(asked));
    EXPECT(engine_world_size(world) == 3);
    EXPECT(engine_world_started_as() == engine_world_rank(world));
    return 0;
}

/* Ten figures, more than are exchanged at once; such that the order of additions shows. */
static int role_metrics(struct cz_world *world)
{
    const char *config = "{\"train_micro_batch_size_per_gpu\": 1,"
                         " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}}}";
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .world = world};
    struct cz_model *model = cz_model_open("gpt2-tiny");
    EXPECT(model && cz_model_init_from(model, NULL, 1) == CZ_OK &&
           cz_model_set_shape(model, 8) == CZ_OK);
    struct cz_engine *e = engine_initialize_ex(&options, model);
    EXPECT(e);
    double mine[10], sums[10];
    static const double of_rank[3] = {1e17, 1, -1e17};
    for (int i = 0; i < 10; i++) mine[i] = of_rank[engine_world_rank(world)] * (i + 1);
    EXPECT(engine_gather_metrics(e, mine, 10, sums) == CZ_OK);
    for (int i = 0; i < 10; i++) {
        double want = 0; /* 0 where 1e17 swallows the 1 */
        for (int r = 0; r < 3; r++) want += of_rank[r] * (i + 1);
        EXPECT(memcmp(&sums[i], &want, sizeof want) == 0);
    }
    EXPECT(engine_gather_metrics(e, mine, 0, sums) == CZ_OK);
    engine_destroy(e);
    return 0;
}

static const struct role {
    const char *name;
    int (*play)(struct cz_world *world);
} roles[] = {
    {"agree", role_agree},
    {"leave", role_leave},
    {"threads", role_threads},
    {"metrics", role_metrics},
};

static int play(const char *name)
{
    struct cz_world *world;
    if (engine_world_create(&world) != CZ_OK) {
        fprintf(stderr, "%s\n", cz_last_error());
        return 8;
    }
    int code = 7;
    for (size_t i = 0; i < CZ_ARRAY_LEN(roles); i++)
        if (strcmp(roles[i].name, name) == 0) code = roles[i].play(world);
    engine_world_destroy(world);
    return code;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void show(bool to_stderr, const char *text, size_t nbytes, void *user)
{
    (void)user;
    fwrite(text, 1, nbytes, to_stderr ? stderr : stdout);
}

static void over_three_ranks(const char *role)
{
    char name[] = "test_world";
    char *argv[] = {name, (char *)(uintptr_t)role, NULL};
    const struct launch_options options = {
        .n_ranks = 3, .program = "/proc/self/exe", .argv = argv, .write = show};
    int code;
    cz_status st = launch_local(&options, &code);
    ck_assert_msg(st == CZ_OK && code == 0, "%s: exit %d: %s", role, code, cz_last_error());
}

START_TEST(ranks_agree_and_one_speaks)
{
    over_three_ranks("agree");
}
END_TEST

START_TEST(a_rank_that_leaves_says_why)
{
    over_three_ranks("leave");
}
END_TEST

START_TEST(threads_are_divided_once)
{
    unsetenv("OMP_NUM_THREADS");
    over_three_ranks("threads");
}
END_TEST

START_TEST(metrics_are_added_in_rank_order)
{
    over_three_ranks("metrics");
}
END_TEST

START_TEST(plainly_started_is_a_world_of_one)
{
    struct cz_world *world;
    bool speaks = false;
    ck_assert_int_eq(engine_world_started_as(), 0);
    ck_ok(engine_world_create(&world));
    ck_assert_int_eq(engine_world_rank(world), 0);
    ck_assert_int_eq(engine_world_size(world), 1);
    ck_ok(engine_world_agree(world, CZ_OK, &speaks));
    ck_assert(speaks);
    speaks = false;
    ck_fails(engine_world_agree(world, err_set(CZ_IO, 0, "alone"), &speaks), CZ_IO);
    ck_assert(speaks);
    const pid_t child = fork(); /* it has no peer that could report */
    if (child == 0) {
        speaks = false;
        const cz_status st = engine_world_agree(world, CZ_OK, &speaks);
        _exit(st == CZ_INVALID && speaks ? 0 : 1);
    }
    int code = -1;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(code, 0);
    engine_world_destroy(world);
    ck_assert_int_eq(engine_world_rank(NULL), 0);
    ck_assert_int_eq(engine_world_size(NULL), 1);
    engine_world_leave(NULL, "no listener");
    engine_world_destroy(NULL);
}
END_TEST

START_TEST(a_rank_is_known_by_its_environment)
{
    setenv("SLURM_PROCID", "5", 1);
    ck_assert_int_eq(engine_world_started_as(), 5);
    setenv("OMPI_COMM_WORLD_RANK", "4", 1);
    ck_assert_int_eq(engine_world_started_as(), 4);
    setenv("CZERO_RANK", "2", 1);
    ck_assert_int_eq(engine_world_started_as(), 2);
}
END_TEST

/* ---- what ranks share --------------------------------------------------------------------------
 */

static void seat(struct world_seat *s, const char *host, int first, int last)
{
    memset(s, 0, sizeof *s);
    snprintf(s->host, sizeof s->host, "%s", host);
    for (int cpu = first; cpu <= last; cpu++) processors_add(&s->cpus, cpu);
    s->cores = s->cpus;
}

START_TEST(ranks_with_the_same_cores_divide_them)
{
    struct world_seat s[4];
    for (int r = 0; r < 4; r++) seat(&s[r], "a", 0, 15);
    ck_assert_int_eq(world_threads(s, 1), 16);
    ck_assert_int_eq(world_threads(s, 3), 5);
    ck_assert_int_eq(world_threads(s, 4), 4);
}
END_TEST

START_TEST(ranks_with_cores_of_their_own_use_them)
{
    struct world_seat s[4];
    for (int r = 0; r < 4; r++) seat(&s[r], "a", 100 + 4 * r, 103 + 4 * r);
    ck_assert_int_eq(world_threads(s, 4), 4);
    /* Two sockets, two ranks each, as mpirun --bind-to socket has it */
    for (int r = 0; r < 4; r++) seat(&s[r], "a", r / 2 * 64, r / 2 * 64 + 7);
    ck_assert_int_eq(world_threads(s, 4), 4);
}
END_TEST

START_TEST(hosts_share_nothing_and_the_smallest_share_counts)
{
    struct world_seat s[3];
    seat(&s[0], "a", 0, 7);
    seat(&s[1], "b", 0, 7);
    ck_assert_int_eq(world_threads(s, 2), 8);
    seat(&s[2], "b", 0, 7);
    ck_assert_int_eq(world_threads(s, 3), 4);
    s[0].n_threads_max = 3; /* a CPU quota */
    ck_assert_int_eq(world_threads(s, 3), 3);
}
END_TEST

START_TEST(more_ranks_than_cores_have_one_thread)
{
    struct world_seat s[5];
    for (int r = 0; r < 5; r++) seat(&s[r], "a", 0, 1);
    ck_assert_int_eq(world_threads(s, 5), 1);
    seat(&s[0], "a", 1, 0); /* none known */
    ck_assert_int_eq(world_threads(s, 1), 1);
}
END_TEST

int main(int argc, char **argv)
{
    const TTest *const cases[] = {
        ranks_agree_and_one_speaks,
        a_rank_that_leaves_says_why,
        threads_are_divided_once,
        metrics_are_added_in_rank_order,
        plainly_started_is_a_world_of_one,
        a_rank_is_known_by_its_environment,
        ranks_with_the_same_cores_divide_them,
        ranks_with_cores_of_their_own_use_them,
        hosts_share_nothing_and_the_smallest_share_counts,
        more_ranks_than_cores_have_one_thread,
    };
    if (argc > 1) return play(argv[1]);
    return test_run("engine/world", cases, (int)CZ_ARRAY_LEN(cases));
}
