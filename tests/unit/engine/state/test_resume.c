/* Claims: N steps are the same as k steps, a new process, and N − k steps: masters, both moments,
 * losses, rates, norms and loss scales, to the bit, for every stage, precision and accumulation,
 * dropout on; the background save takes the state of its own step, not of a later one; a checkpoint
 * loads at any other stage and number of ranks with the same bytes; Lamb as well as AdamW;
 * load_from_fp32_weights false counts where DeepSpeed obeys it. */
#include "tests/support/resume_trial.h"

static const char *root; /* the running test's folders */

static const char *folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

/* gpt2-tiny with dropout. */
static const char *model_with_dropout(void)
{
    static char dir[256], command[1024];
    snprintf(dir, sizeof dir, "%s/model", root);
    snprintf(command, sizeof command,
             "mkdir -p '%s' && sed 's/pdrop\": 0.0/pdrop\": 0.1/' '%s/config.json' "
             "> '%s/config.json' && cp '%s/model.safetensors' '%s/'",
             dir, test_fixture("models/gpt2-tiny"), dir, test_fixture("models/gpt2-tiny"), dir);
    ck_assert_int_eq(system(command), 0);
    return dir;
}

static void same_end(const struct leg_outcome *want, const struct leg_outcome *have,
                     const char *what)
{
    ck_assert_msg(want->weights == have->weights, "masters differ: %s", what);
    ck_assert_msg(want->states == have->states, "states differ: %s", what);
    ck_assert_int_eq(want->global_steps, have->global_steps);
    ck_assert_int_eq(want->skipped, have->skipped);
    ck_assert_int_eq(want->samples, have->samples);
}

static void same_steps(const struct leg_outcome *want, const struct leg_outcome *have, int from,
                       int to, const char *what)
{
    size_t n = (size_t)(to - from) * sizeof(double);
    ck_assert_msg(memcmp(want->losses + from, have->losses + from, n) == 0, "losses: %s", what);
    ck_assert_msg(memcmp(want->lrs + from, have->lrs + from, n) == 0, "rates: %s", what);
    ck_assert_msg(memcmp(want->norms + from, have->norms + from, n) == 0, "norms: %s", what);
    ck_assert_msg(memcmp(want->scales + from, have->scales + from, n) == 0, "scales: %s", what);
}

static void whole_and_in_two(struct leg_shared *s, int world)
{
    snprintf(s->leg.save, sizeof s->leg.save, "%s", folder("two"));
    s->leg.load[0] = '\0';
    s->leg.from = 0;
    s->leg.unsaved_weights = false;
    char save[sizeof s->leg.save];
    memcpy(save, s->leg.save, sizeof save);

    s->leg.save[0] = '\0';
    s->leg.to = 8;
    struct leg_outcome whole = leg_outcome_of(s, world);
    memcpy(s->leg.save, save, sizeof save);
    s->leg.to = 5;
    struct leg_outcome first = leg_outcome_of(s, world);
    same_steps(&whole, &first, 0, 5, s->leg.config);

    memcpy(s->leg.load, save, sizeof save);
    s->leg.save[0] = '\0';
    s->leg.from = 5;
    s->leg.to = 8;
    s->leg.unsaved_weights = true; /* and another seed: all of it comes from the checkpoint */
    struct leg_outcome second = leg_outcome_of(s, world);
    ck_assert_uint_eq(second.n_restored, second.n_tensors);
    same_steps(&whole, &second, 5, 8, s->leg.config);
    same_end(&whole, &second, s->leg.config);
}

static void all_cells(int world, const char *freeze, bool two_groups)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.model = model_with_dropout();
    s->leg.freeze = freeze;
    s->leg.two_groups = two_groups;
    for (int stage = 0; stage < 4; stage++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(leg_dtypes); d++) {
            leg_configure(&s->leg, stage, leg_dtypes[d], 1 + stage % 2);
            whole_and_in_two(s, world);
        }
    test_tmp_remove(root);
}

START_TEST(one_rank_goes_on_as_if_it_had_never_stopped)
{
    all_cells(1, NULL, false);
}
END_TEST

START_TEST(two_ranks_go_on_as_if_they_had_never_stopped)
{
    all_cells(2, NULL, false);
}
END_TEST

START_TEST(three_ranks_with_frozen_parameters_and_two_groups_too)
{
    all_cells(3, "h\\.0\\.", true);
}
END_TEST

static const char lamb[] = "\"type\": \"Lamb\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}";

/* Each stage with a precision and a number of ranks. */
START_TEST(lamb_goes_on_as_if_it_had_never_stopped)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.model = model_with_dropout();
    s->leg.optimizer = lamb;
    s->leg.freeze = "h\\.0\\.";
    for (int stage = 0; stage < 4; stage++) {
        s->leg.two_groups = stage % 2;
        leg_configure(&s->leg, stage, leg_dtypes[(stage + 2) % 3], 1 + stage % 2);
        whole_and_in_two(s, 1 + stage % 3 + (stage == 3));
    }
    test_tmp_remove(root);
}
END_TEST

/* Masters and moments in 16 bits, in every way that DeepSpeed allows. */
START_TEST(so_do_masters_and_states_of_16_bits)
{
    static const char *const precisions[] = {
        "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
        "\"bf16_optimizer_states\": true}",
        "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}",
        "\"fp16\": {\"enabled\": true, \"loss_scale\": 256, "
        "\"fp16_master_weights_and_grads\": true}",
    };
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.model = model_with_dropout();
    for (int stage = 1; stage < 4; stage++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(precisions); i++) {
            snprintf(s->leg.config, sizeof s->leg.config,
                     "{\"train_micro_batch_size_per_gpu\": 2, %s, \"zero_optimization\": "
                     "{\"stage\": %d, \"offload_optimizer\": {\"device\": \"cpu\"}}, "
                     "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002, "
                     "\"eps\": 0.001, \"fp32_optimizer_states\": %s}}}",
                     precisions[i], stage, stage == 2 && i > 0 ? "true" : "false");
            whole_and_in_two(s, 1 + stage % 2);
        }
    test_tmp_remove(root);
}
END_TEST

/* Every second step is saved behind the training's back; the last save is of an earlier state. */
START_TEST(a_background_save_is_of_its_own_step)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.model = model_with_dropout();
    for (int stage = 0; stage < 4; stage++) {
        leg_configure(&s->leg, stage, leg_dtypes[1], 2);
        s->leg.from = 0;
        s->leg.to = 7;
        s->leg.load[0] = '\0';
        s->leg.unsaved_weights = false;
        s->leg.save_every = 2;
        snprintf(s->leg.save, sizeof s->leg.save, "%s", folder("every"));
        struct leg_outcome whole = leg_outcome_of(s, 2);

        memcpy(s->leg.load, s->leg.save, sizeof s->leg.load);
        s->leg.save[0] = '\0';
        s->leg.from = 6;
        s->leg.unsaved_weights = true;
        struct leg_outcome rest = leg_outcome_of(s, 2);
        same_steps(&whole, &rest, 6, 7, s->leg.config);
        same_end(&whole, &rest, s->leg.config);
    }
    test_tmp_remove(root);
}
END_TEST

/* ---- any stage, any number of ranks ------------------------------------------------------------
 */

struct cell {
    int stage, world;
};

static const struct cell cells[] = {{0, 1}, {0, 2}, {1, 1}, {1, 2}, {1, 3}, {1, 4},
                                    {1, 8}, {2, 1}, {2, 2}, {2, 3}, {2, 5}, {2, 8},
                                    {3, 1}, {3, 2}, {3, 3}, {3, 4}, {3, 7}, {3, 8}};

/* Loading alone: no step is made, so the gathered state must be what was saved. */
static void load_elsewhere(struct leg_shared *s, const struct leg_outcome *saved, struct cell to,
                           const char *dtype)
{
    leg_configure(&s->leg, to.stage, dtype, 1);
    memcpy(s->leg.load, s->leg.save, sizeof s->leg.load);
    char save[sizeof s->leg.save];
    memcpy(save, s->leg.save, sizeof save);
    s->leg.save[0] = '\0';
    s->leg.from = s->leg.to;
    s->leg.unsaved_weights = true;
    struct leg_outcome have = leg_outcome_of(s, to.world);
    same_end(saved, &have, s->leg.config);
    ck_assert_uint_eq(have.n_restored, have.n_tensors);
    memcpy(s->leg.save, save, sizeof save);
    s->leg.load[0] = '\0';
    s->leg.from = 0;
    s->leg.unsaved_weights = false;
}

START_TEST(a_checkpoint_loads_at_any_stage_and_world_size)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.to = 3;
    s->leg.freeze = "h\\.1\\.mlp";
    for (size_t from = 0; from < CZ_ARRAY_LEN(cells); from++) {
        const char *dtype = leg_dtypes[from % 2];
        char name[32];
        snprintf(name, sizeof name, "cell%zu", from);
        leg_configure(&s->leg, cells[from].stage, dtype, 1);
        snprintf(s->leg.save, sizeof s->leg.save, "%s", folder(name));
        s->leg.two_groups = from % 3 == 0;
        struct leg_outcome saved = leg_outcome_of(s, cells[from].world);
        for (size_t k = 0; k < 4; k++)
            load_elsewhere(s, &saved, cells[(from * 5 + k * 7 + 1) % CZ_ARRAY_LEN(cells)], dtype);
    }
    test_tmp_remove(root);
}
END_TEST

START_TEST(lamb_loads_at_any_stage_and_world_size)
{
    static const struct cell from[] = {{3, 2}, {1, 3}, {0, 1}, {2, 4}};
    static const struct cell to[] = {{1, 4}, {3, 3}, {2, 2}, {0, 2}, {3, 1}};
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.optimizer = lamb;
    s->leg.two_groups = true;
    s->leg.to = 3;
    for (size_t i = 0; i < CZ_ARRAY_LEN(from); i++) {
        char name[32];
        snprintf(name, sizeof name, "lamb%zu", i);
        leg_configure(&s->leg, from[i].stage, leg_dtypes[i % 2], 1);
        snprintf(s->leg.save, sizeof s->leg.save, "%s", folder(name));
        struct leg_outcome saved = leg_outcome_of(s, from[i].world);
        for (size_t k = 0; k < CZ_ARRAY_LEN(to); k++)
            load_elsewhere(s, &saved, to[k], leg_dtypes[i % 2]);
    }
    test_tmp_remove(root);
}
END_TEST

/* ---- load_from_fp32_weights --------------------------------------------------------------------
 */

static void configure_load_from(struct leg *leg, int stage, bool from_fp32)
{
    snprintf(leg->config, sizeof leg->config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, "
             "\"zero_optimization\": {\"stage\": %d, \"load_from_fp32_weights\": %s}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}",
             stage, from_fp32 ? "true" : "false");
}

static struct leg_outcome load_from(struct leg_shared *s, const char *dir, int stage,
                                    bool from_fp32)
{
    configure_load_from(&s->leg, stage, from_fp32);
    snprintf(s->leg.load, sizeof s->leg.load, "%s", dir);
    s->leg.save[0] = '\0';
    s->leg.from = s->leg.to;
    s->leg.unsaved_weights = true;
    return leg_outcome_of(s, 2);
}

/* false: masters begin as the 16-bit weights, at stages 1 and 2 only, and only where a file has
 * those whole, which stage 3's files have not. */
START_TEST(masters_are_taken_from_16_bits_only_where_deepspeed_does_so)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    for (int from = 0; from < 4; from++) {
        char name[16], dir[256];
        snprintf(name, sizeof name, "stage%d", from);
        snprintf(dir, sizeof dir, "%s", folder(name));
        configure_load_from(&s->leg, from, true);
        s->leg.load[0] = '\0';
        snprintf(s->leg.save, sizeof s->leg.save, "%s", dir);
        s->leg.from = 0;
        s->leg.to = 3;
        s->leg.unsaved_weights = false;
        struct leg_outcome saved = leg_outcome_of(s, 2);
        for (int stage = 0; stage < 4; stage++) {
            bool rounds = (stage == 1 || stage == 2) && from < 3;
            struct leg_outcome fp32 = load_from(s, dir, stage, true);
            struct leg_outcome bf16 = load_from(s, dir, stage, false);
            ck_assert_msg(fp32.weights == saved.weights, "%d -> %d", from, stage);
            ck_assert_msg((bf16.weights == saved.weights) == !rounds, "%d -> %d", from, stage);
            ck_assert_msg(bf16.states == saved.states, "%d -> %d", from, stage);
        }
    }
    test_tmp_remove(root);
}
END_TEST

TEST_MAIN("engine/resume", one_rank_goes_on_as_if_it_had_never_stopped,
          two_ranks_go_on_as_if_they_had_never_stopped,
          three_ranks_with_frozen_parameters_and_two_groups_too,
          lamb_goes_on_as_if_it_had_never_stopped, lamb_loads_at_any_stage_and_world_size,
          so_do_masters_and_states_of_16_bits, a_background_save_is_of_its_own_step,
          a_checkpoint_loads_at_any_stage_and_world_size,
          masters_are_taken_from_16_bits_only_where_deepspeed_does_so)
