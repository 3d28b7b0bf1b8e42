/* Claims: on two and three ranks at stages 0 and 3 an update that is left to the next forward gives
 * the bytes of an update at the boundary: with clipping, skipped fp16 steps, Lamb, accumulation in
 * either order, parameters in memory or on NVMe, a share of the states in memory, groups, frozen
 * parameters, parameters that stay gathered; and so do evaluations, saves and single tensors that
 * come between. A step sends as many bytes, as the plan says. A rank that looks alone at what is on
 * all ranks ends them instead of waiting. */
#include "tests/support/zero/late_trial.h"

enum { STEPS = 7 };

/* Every precision, optimizer, tier and accumulation meets every stage and number of ranks. */
static void all_of(int stage, int world)
{
    static const struct tiers tiers[] = {
        {TIER_NVME, TIER_NONE}, {TIER_NVME, TIER_NVME}, {TIER_CPU, TIER_NVME}};
    static const char *const orders[] = {NULL, "layers", "micro_batches"};
    late_root = test_tmp_make_fast();
    for (int k = 0; k < 6; k++) {
        const struct tier_run run = {.stage = stage,
                                     .world = world,
                                     .gas = k % 2 ? 4 : 1,
                                     .order = k % 2 ? orders[1 + k / 3 % 2] : orders[k / 2 % 3],
                                     .dtype = late_dtypes[(k + k / 3) % 3],
                                     .optimizer = k % 3 == 2 ? tier_lamb : tier_optimizers[k % 3],
                                     .freeze = k % 4 == 1 ? "h\\.0\\.|wpe" : NULL,
                                     .two_groups = k % 4 < 2,
                                     .turn = k + world + stage};
        late_same_as_at_once(&run, tiers[(k + k / 3) % 3], STEPS);
    }
    test_tmp_remove(late_root);
}

START_TEST(two_ranks_with_chunks)
{
    all_of(3, 2);
}
END_TEST

START_TEST(three_ranks_with_chunks)
{
    all_of(3, 3);
}
END_TEST

START_TEST(ranks_with_whole_parameters)
{
    all_of(0, 2);
}
END_TEST

static struct tiers look_tiers(int turn)
{
    return (struct tiers){TIER_NVME, turn % 2 ? TIER_NVME : TIER_NONE};
}

START_TEST(looks_in_between_see_the_update)
{
    for (int turn = 0; turn < 4; turn++)
        late_looks_see_the_update(turn < 3 ? 3 : 0, 2 + turn % 2, turn, look_tiers(turn));
}
END_TEST

/* ---- a look of one rank -----------------------------------------------------------------------
 */

static cz_status alone_rank(struct ranks *ranks, int rank, void *arg)
{
    static struct replay_data d;
    static float x[64];
    const struct late_look *run = arg;
    struct comm *comm;
    struct cz_engine *e;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(late_engine(comm, run->configs[1], &e));
    replay_data_open(&d);
    for (int s = 0; s < 2; s++) TRY(trial_step(e, &d, NULL));
    cz_status st = rank == 0 ? engine_param_get(e, "transformer.h.1.ln_2.weight", "weight", x, 64)
                             : trial_step(e, &d, NULL);
    if (st != CZ_COMM && st != CZ_PEER)
        return err_set(CZ_INVALID, 0, "%s: %s", cz_status_name(st), cz_last_error());
    engine_destroy(e);
    comm_destroy(comm);
    err_clear();
    return CZ_OK;
}

START_TEST(a_rank_that_looks_alone_ends_them)
{
    for (int turn = 0; turn < 2; turn++) {
        struct late_look *run = late_look_make(3, 2, turn, look_tiers(turn));
        struct ranks ranks;
        ranks_start(&ranks, 2, alone_rank, run);
        ranks_expect_ok(&ranks, 20);
        munmap(run, sizeof *run);
        test_tmp_remove(late_root);
    }
}
END_TEST

TEST_MAIN_SECONDS(120, "engine/offload_late", two_ranks_with_chunks, three_ranks_with_chunks,
                  ranks_with_whole_parameters, looks_in_between_see_the_update,
                  a_rank_that_looks_alone_ends_them)
