/* Claims: what is sent, in how many collectives, and how many parameters are live, follow the
 * closed formulas of docs/zero.md, rank by rank, and stay what they were
 * (tests/fixtures/traffic.csv; CZ_GOLDEN_UPDATE=1 writes it anew). The plan says the same for ranks
 * that run and for ranks that do not. Lamb adds the sums of its tensors. */
#include "tests/support/zero/rank_trial.h"

#include "ops/reduce/reduce.h"
#include "zero/zero.h"

/* gpt2-tiny, all trained, none resident. Visits of a pass: embedding, two blocks, head, and back.
 */
enum {
    TABLE = 256 * 64,            /* tied: in the embedding and in the head */
    EMBEDDING = TABLE + 64 * 64, /* elements of each unit */
    BLOCK = 12 * 64 * 64 + 13 * 64,
    HEAD = TABLE + 2 * 64,
    PSI = EMBEDDING + 2 * BLOCK + HEAD - TABLE,
    WORLD_MAX = 4
};

static const struct knobs {
    const char *name, *flags;
    uint64_t n_reduces;                /* flushes; at stage 0 always one */
    uint64_t n_gathers, fetched, live; /* stage 3: per pass; elements */
    const char *optimizer;             /* NULL: AdamW */
} settings[] = {
    /* The first visit fetches its own and then everything else, which stays to the end. */
    {"default", "\"stage3_param_persistence_threshold\": 0", 1, 2, PSI, PSI},
    /* Nothing ahead, nothing kept: a gather per visit. A flush per unit: no two fit the bucket,
       which has the size of the largest. */
    {"frugal",
     "\"stage3_param_persistence_threshold\": 0, \"stage3_prefetch_bucket_size\": 0, "
     "\"stage3_max_live_parameters\": 0, \"stage3_max_reuse_distance\": 0, "
     "\"reduce_bucket_size\": 1000",
     4, 8, 2 * (EMBEDDING + 2 * BLOCK + HEAD), BLOCK},
    {"lamb", "\"stage3_param_persistence_threshold\": 0", 1, 2, PSI, PSI, "\"type\": \"Lamb\""},
};

struct totals {
    uint64_t reduce, move, n_reduce, n_move, planned, n_planned;
};

static struct totals totals_of(const struct trial_shared *s, int world)
{
    struct totals t = {.n_reduce = s->outcomes[0].traffic.n_reduce,
                       .n_move = s->outcomes[0].traffic.n_move,
                       .n_planned = s->outcomes[0].plan.n_collectives_per_step};
    for (int r = 0; r < world; r++) {
        t.reduce += s->outcomes[r].traffic.reduce_sent_nbytes;
        t.move += s->outcomes[r].traffic.move_sent_nbytes;
        t.planned += s->outcomes[r].plan.sent_nbytes_per_step;
        ck_assert_uint_eq(s->outcomes[r].traffic.n_move, t.n_move);
    }
    return t;
}

/* Besides gradients and parameters, each rank tells the others its loss, what its gradients look
 * like, the parts of their norm (but at stage 0), and that all is well. */
static uint64_t small_nbytes(int stage)
{
    return sizeof(double) + sizeof(struct zero_scan) +
           (stage > 0 ? SQUARES_DIGITS * sizeof(uint64_t) : 0) + 256;
}

/* What ranks say about tensors that are on several of them: of each tensor, every rank that has
 * some of it brings its sums to the rank that adds it up, and that one tells all others. */
static uint64_t sums_numel(int stage, int world)
{
    enum { N = 28 };
    static const uint64_t block[] = {64, 64, 64 * 192, 192, 64 * 64,  64,
                                     64, 64, 64 * 256, 256, 256 * 64, 64};
    uint64_t numels[N] = {TABLE, 64 * 64}, w = (uint64_t)world, part = PSI / w, at = 0, n = 0;
    for (int i = 0; i < 24; i++) numels[2 + i] = block[i % 12];
    numels[26] = numels[27] = 64;
    for (uint64_t i = 0; i < N; at += numels[i++])
        for (uint64_t r = 0; r < w; r++) {
            bool holds = stage == 3 || (at < (r + 1) * part && at + numels[i] > r * part);
            bool adds = N * r / w <= i && i < N * (r + 1) / w;
            n += (holds && !adds) + (adds ? w - 1 : 0);
        }
    return stage == 0 || world == 1 ? 0 : n;
}

static void check_formulas(const struct knobs *s, int stage, int world, uint64_t gas,
                           const struct totals *t)
{
    uint64_t w = (uint64_t)world, others = w - 1, wire = 2, size = 2;
    uint64_t n_reduces = stage == 0 ? 1 : s->n_reduces, n_passes = stage >= 2 ? gas : 1;
    uint64_t reduce = n_passes * others * PSI * wire * (stage == 0 ? 2 : 1);
    uint64_t update = stage == 1 || stage == 2 ? others * PSI * size : 0;
    uint64_t fetch = stage == 3 ? gas * others * s->fetched * size : 0;
    uint64_t n_small = stage == 0 || w == 1 ? 3 : 4, n_update = update > 0;
    uint64_t n_fetch = stage == 3 && w > 1 ? gas * s->n_gathers : 0;
    uint64_t sums = s->optimizer ? sums_numel(stage, world) * 448 : 0, n_sums = sums > 0 ? 2 : 0;
    if (w == 1) n_passes = 1; /* one rank splits nothing and reduces at the boundary */
    ck_assert_uint_eq(t->reduce, reduce);
    ck_assert_uint_eq(t->move, update + fetch + sums + others * w * small_nbytes(stage));
    ck_assert_uint_eq(t->n_reduce, n_passes * n_reduces);
    ck_assert_uint_eq(t->n_move, n_small + n_update + n_fetch + n_sums);
    ck_assert_uint_eq(t->planned, reduce + update + fetch + sums);
    if (w > 1) ck_assert_uint_eq(t->n_planned, n_passes * n_reduces + n_update + n_fetch + n_sums);
}

static void train_all(FILE *f)
{
    struct trial_shared *s = trial_make();
    s->trial.steps = 2;
    fputs("setting,world,stage,accumulation,reductions,moves,reduced_bytes,moved_bytes,live\n", f);
    for (size_t k = 0; k < CZ_ARRAY_LEN(settings); k++) {
        s->trial.optimizer = settings[k].optimizer;
        for (int world = 1; world <= WORLD_MAX; world++)
            for (int stage = 0; stage < 4; stage++)
                for (int gas = 1; gas <= 3; gas += 2) {
                    configure(s, stage, settings[k].flags, trial_dtypes[1], gas);
                    (void)outcome_of(s, world);
                    struct totals t = totals_of(s, world);
                    size_t live = s->outcomes[0].plan.live_numel_max;
                    check_formulas(&settings[k], stage, world, (uint64_t)gas, &t);
                    ck_assert_uint_eq(live, stage == 3 && world > 1 ? settings[k].live : 0);
                    fprintf(f, "%s,%d,%d,%d,%llu,%llu,%llu,%llu,%zu\n", settings[k].name, world,
                            stage, gas, (unsigned long long)t.n_reduce,
                            (unsigned long long)t.n_move, (unsigned long long)t.reduce,
                            (unsigned long long)t.move, live);
                }
    }
}

START_TEST(traffic_follows_the_formulas_and_does_not_change)
{
    const char *golden = CZ_SOURCE_DIR "/tests/fixtures/traffic.csv";
    const char *dir = test_tmp_make();
    char path[128], command[512];
    snprintf(path, sizeof path, "%s/traffic.csv", dir);
    FILE *f = fopen(getenv("CZ_GOLDEN_UPDATE") ? golden : path, "w");
    ck_assert_ptr_nonnull(f);
    train_all(f);
    fclose(f);
    snprintf(command, sizeof command, "diff '%s' '%s'", golden, path);
    if (!getenv("CZ_GOLDEN_UPDATE")) ck_assert_int_eq(system(command), 0);
    test_tmp_remove(dir);
}
END_TEST

/* What runs is what was planned for it, and a rank of 64 is planned by the same arithmetic. */
START_TEST(a_plan_counts_for_worlds_that_cannot_be_run)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
        "\"zero_optimization\": {\"stage\": 2}, "
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}}";
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_model *model = cz_model_from_hf(test_fixture("models/gpt2-tiny"));
    struct cz_plan *plan;
    ck_assert_ptr_nonnull(model);
    ck_ok(plan_create(&options, 64, model, &plan));
    size_t padded = (PSI + 127) / 128 * 128, own = padded / 64;
    /* Rank 0 owns real elements only. */
    ck_assert_uint_eq(plan->sent_nbytes_per_step, 2 * (PSI - own) + 2 * 63 * own);
    cz_plan_destroy(plan);
    cz_model_destroy(model);
}
END_TEST

TEST_MAIN("engine/traffic", traffic_follows_the_formulas_and_does_not_change,
          a_plan_counts_for_worlds_that_cannot_be_run)
