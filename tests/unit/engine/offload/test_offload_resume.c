/* Claims: with every pair of tiers, a run that is killed (SIGKILL) after a save and resumed equals
 * the unbroken one to the bit, and the resumed run removes what the killed one left in nvme_path; a
 * background save has the state of its own step though the next sweep runs; a checkpoint of any
 * tiers holds the same files, objects and bytes as one without offload, and loads into any other
 * tiers, stage and number of ranks. */
#include "tests/support/checkpoint/same_ckpt.h"
#include "tests/support/zero/tiers.h"

static const char *root;

static const char *folder(const char *name)
{
    static char paths[4][128];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static struct tiers tiers_of(int i)
{
    return (struct tiers){i % TIER_COUNT, i / TIER_COUNT};
}

enum { N_TIERS = TIER_COUNT * TIER_COUNT, SAVED_AT = 4, STEPS = 7 };

static const struct tier_run runs[] = {
    {.stage = 0, .world = 2, .gas = 1, .dtype = "\"bf16\": {\"enabled\": true}"},
    {.stage = 1, .world = 2, .gas = 2, .dtype = "\"fp16\": {\"enabled\": false}"},
    {.stage = 2,
     .world = 3,
     .gas = 1,
     .dtype = "\"bf16\": {\"enabled\": true}",
     .two_groups = true},
    {.stage = 3,
     .world = 2,
     .gas = 1,
     .dtype = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 26, "
              "\"loss_scale_window\": 3, \"hysteresis\": 1}",
     .freeze = "h\\.0\\."},
    {.stage = 3, .world = 2, .gas = 2, .dtype = "\"bf16\": {\"enabled\": true}"},
    /* one rank: a killed run leaves an update undone that the next forward would have made */
    {.stage = 2,
     .world = 1,
     .gas = 2,
     .dtype = "\"bf16\": {\"enabled\": true}",
     .two_groups = true},
    {.stage = 3,
     .world = 1,
     .gas = 1,
     .dtype = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 26, "
              "\"loss_scale_window\": 3, \"hysteresis\": 1}"},
};

static struct tier_run run_of(int i)
{
    struct tier_run run = runs[(size_t)i % CZ_ARRAY_LEN(runs)];
    run.optimizer = tier_optimizers[0];
    run.turn = i;
    return run;
}

/* A leg from step `from` to step `to`; load and save may be NULL. */
static void leg_between(struct leg *leg, int from, int to, const char *load, const char *save)
{
    leg->from = from;
    leg->to = to;
    leg->unsaved_weights = load != NULL;
    leg->save_every = leg->abandon = 0;
    leg->load[0] = leg->save[0] = '\0';
    if (load) snprintf(leg->load, sizeof leg->load, "%s", load);
    if (save) snprintf(leg->save, sizeof leg->save, "%s", save);
}

static void expect_end(const struct leg_outcome *want, const struct leg_outcome *have,
                       const char *what)
{
    ck_assert_msg(want->weights == have->weights, "masters differ: %s", what);
    ck_assert_msg(want->states == have->states, "states differ: %s", what);
    ck_assert_int_eq(want->global_steps, have->global_steps);
    ck_assert_int_eq(want->skipped, have->skipped);
}

static void expect_steps(const struct leg_outcome *want, const struct leg_outcome *have, int from,
                         int to, const char *what)
{
    size_t n = (size_t)(to - from) * sizeof(double);
    ck_assert_msg(memcmp(want->losses + from, have->losses + from, n) == 0, "losses: %s", what);
    ck_assert_msg(memcmp(want->norms + from, have->norms + from, n) == 0, "norms: %s", what);
    ck_assert_msg(memcmp(want->scales + from, have->scales + from, n) == 0, "scales: %s", what);
}

/* ---- killed ------------------------------------------------------------------------------------
 */

/* Saved at SAVED_AT, killed two steps later. */
static void killed_and_resumed(struct leg_shared *s, const struct tier_run *run, struct tiers t)
{
    const char *what = tiers_describe(run, t), *swap = folder("swap/deeper");
    tiers_configure(&s->leg, run, t, swap);
    leg_between(&s->leg, 0, STEPS, NULL, NULL);
    struct leg_outcome whole = leg_outcome_of(s, run->world);

    leg_between(&s->leg, 0, STEPS, NULL, folder("killed"));
    s->leg.save_every = SAVED_AT;
    s->leg.abandon = SAVED_AT + 2;
    legs_kill(s, run->world);
    ck_assert_msg(access(folder("killed/latest"), R_OK) == 0, "nothing was saved: %s", what);
    ck_assert_msg(leg_swap_files(swap) == (tiers_swap(run, t) ? run->world : 0),
                  "a killed run leaves %d files: %s", leg_swap_files(swap), what);

    leg_between(&s->leg, SAVED_AT, STEPS, folder("killed"), NULL);
    struct leg_outcome rest = leg_outcome_of(s, run->world);
    expect_steps(&whole, &rest, SAVED_AT, STEPS, what);
    expect_end(&whole, &rest, what);
    ck_assert_msg(rest.n_swap_files == (tiers_swap(run, t) ? run->world : 0),
                  "%d swap files, leftovers among them: %s", rest.n_swap_files, what);
    tiers_expect_gone(swap, what);
}

START_TEST(a_killed_run_goes_on_as_if_it_had_not_been)
{
    struct leg_shared *s = leg_make();
    for (int i = 0; i < N_TIERS; i++) {
        struct tier_run run = run_of(i);
        root = test_tmp_make();
        killed_and_resumed(s, &run, tiers_of(i));
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- saved behind the training's back ---------------------------------------------------------
 */

START_TEST(a_background_save_is_of_its_own_step)
{
    struct leg_shared *s = leg_make();
    for (int i = 0; i < N_TIERS; i++) {
        struct tier_run run = run_of(i + 1);
        struct tiers t = tiers_of(i);
        const char *what = tiers_describe(&run, t);
        root = test_tmp_make_fast();
        tiers_configure(&s->leg, &run, t, folder("swap"));
        leg_between(&s->leg, 0, STEPS, NULL, folder("every"));
        s->leg.save_every = 2; /* the last is of step 6: the sweep of step 7 meets it */
        struct leg_outcome whole = leg_outcome_of(s, run.world);
        leg_between(&s->leg, STEPS - 1, STEPS, folder("every"), NULL);
        struct leg_outcome rest = leg_outcome_of(s, run.world);
        expect_steps(&whole, &rest, STEPS - 1, STEPS, what);
        expect_end(&whole, &rest, what);
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- the same files, which load anywhere ------------------------------------------------------
 */

static const char *saved_folder(int i, const char *tag)
{
    char name[48];
    snprintf(name, sizeof name, "from%d%s%s", i, *tag ? "/" : "", tag);
    return folder(name);
}

/* Save with every pair of tiers; all are the checkpoint that is made without offload. */
static struct leg_outcome save_with_all(struct leg_shared *s, const struct tier_run *run)
{
    struct leg_outcome first = {0};
    for (int i = 0; i < N_TIERS; i++) {
        tiers_configure(&s->leg, run, tiers_of(i), folder("swap"));
        leg_between(&s->leg, 0, SAVED_AT, NULL, saved_folder(i, ""));
        struct leg_outcome out = leg_outcome_of(s, run->world);
        if (i == 0) first = out;
        expect_end(&first, &out, tiers_describe(run, tiers_of(i)));
        same_ckpt(saved_folder(0, "global_step4"), saved_folder(i, "global_step4"));
    }
    return first;
}

static void load_elsewhere(struct leg_shared *s, const struct leg_outcome *saved, int from,
                           const struct tier_run *run, struct tiers t)
{
    tiers_configure(&s->leg, run, t, folder("swap"));
    leg_between(&s->leg, SAVED_AT, SAVED_AT, saved_folder(from, ""), NULL);
    struct leg_outcome have = leg_outcome_of(s, run->world);
    ck_assert_uint_eq(have.n_restored, have.n_tensors);
    expect_end(saved, &have, tiers_describe(run, t));
}

START_TEST(checkpoints_are_the_same_files_and_load_into_any_tiers)
{
    struct leg_shared *s = leg_make();
    for (size_t r = 0; r < CZ_ARRAY_LEN(runs); r++) {
        struct tier_run run = run_of((int)r);
        root = test_tmp_make_fast();
        struct leg_outcome saved = save_with_all(s, &run);
        for (int i = 0; i < N_TIERS; i++) {
            struct tier_run to = run;
            load_elsewhere(s, &saved, i, &to, tiers_of((i * 2 + 1) % N_TIERS));
            to.stage = (to.stage + i) % 4;
            to.world = 1 + (i + (int)r) % 3;
            load_elsewhere(s, &saved, i, &to, tiers_of((i * 5 + (int)r) % N_TIERS));
        }
        test_tmp_remove(root);
    }
}
END_TEST

TEST_MAIN_SECONDS(180, "engine/offload_resume", a_killed_run_goes_on_as_if_it_had_not_been,
                  a_background_save_is_of_its_own_step,
                  checkpoints_are_the_same_files_and_load_into_any_tiers)
