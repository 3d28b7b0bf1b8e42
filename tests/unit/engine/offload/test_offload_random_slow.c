/* Claim: whatever else the config says, tiers do not change a bit: random configs (stages, ranks,
 * precisions with 16-bit masters and states, optimizers, windows, buckets, tiles, blocks, ratio,
 * checkpointed activations) train without offload, in two random pairs of tiers, and saved and
 * resumed from one pair into another. CZ_SEED=n starts elsewhere, CZ_COUNT=n tries so many. */
#include "tests/support/zero/tiers.h"

#include <stdarg.h>

static uint64_t state;

static uint64_t dice(uint64_t n)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 20) % n;
}

#define ONE_OF(...)                                                                                \
    ((const char *const[]){                                                                        \
        __VA_ARGS__})[dice(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))]

/* ---- a config
 * ------------------------------------------------------------------------------------
 */

struct text {
    char s[2048];
    size_t n;
};

static void put(struct text *t, const char *fmt, ...) CZ_PRINTF(2, 3);

static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
    va_end(ap);
    ck_assert_uint_lt(t->n, sizeof t->s);
}

/* What a run is but for its tiers. */
struct run {
    int stage, world;
    bool two_groups, only_adam, needs_offload;
    const char *freeze;
    struct text before, after; /* of the offload sections */
};

static const char *const precisions[] = {
    "\"fp16\": {\"enabled\": false}",
    "\"bf16\": {\"enabled\": true}",
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 26, \"loss_scale_window\": 3, "
    "\"hysteresis\": 1}",
    "\"fp16\": {\"enabled\": true, \"loss_scale\": 512}",
    "\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}",
    "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
    "\"bf16_optimizer_states\": true}",
    /* DeepSpeed takes these under offload_optimizer only */
    "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}",
    "\"fp16\": {\"enabled\": true, \"loss_scale\": 512, \"fp16_master_weights_and_grads\": true}",
};

enum { N_WIDE = 5, N_FREE = 6 }; /* with fp32 masters; that go without offload */

static void draw_zero(struct run *r)
{
    struct text *t = &r->before;
    put(t, "\"zero_optimization\": {\"stage\": %d, \"sub_group_size\": %s, ", r->stage,
        ONE_OF("3000", "20000", "1000000000"));
    put(t, "\"overlap_comm\": %s, \"reduce_bucket_size\": %s, ", ONE_OF("true", "false"),
        ONE_OF("500", "30000", "500000000"));
    if (r->stage > 0 && r->stage < 3)
        put(t, "\"round_robin_gradients\": %s, ", ONE_OF("true", "false"));
    if (r->stage == 3)
        put(t,
            "\"stage3_param_persistence_threshold\": %s, \"stage3_prefetch_bucket_size\": %s, "
            "\"stage3_max_live_parameters\": %s, \"stage3_max_reuse_distance\": %s, ",
            ONE_OF("0", "100", "5000"), ONE_OF("0", "9000", "50000000"),
            ONE_OF("0", "40000", "1000000000"), ONE_OF("0", "30000", "1000000000"));
}

static void draw_rest(struct run *r)
{
    struct text *t = &r->after;
    const char *optimizer = tier_optimizers[dice(CZ_ARRAY_LEN(tier_optimizers))];
    if (r->only_adam) optimizer = tier_optimizers[0];
    /* Adagrad's first value is a parameter of torch's class, which stage 0 keeps under offload. */
    const char *other = dice(2) || r->stage > 0 ? tier_lamb : tier_adagrad;
    put(t, "}, \"aio\": {\"block_size\": %s, \"queue_depth\": %s, \"single_submit\": %s, ",
        ONE_OF("1", "4096", "10000", "65536", "1048576"), ONE_OF("1", "2", "8", "32"),
        ONE_OF("true", "false"));
    put(t, "\"overlap_events\": %s, \"intra_op_parallelism\": %s}, ", ONE_OF("true", "false"),
        ONE_OF("1", "2", "4"));
    put(t, "\"czero\": {\"tile_numel\": %s, \"offload_checksums\": %s, ",
        ONE_OF("0", "1", "4096", "8192", "50000"), ONE_OF("true", "false"));
    put(t, "\"offload_gradients\": %s, ", ONE_OF("true", "false"));
    put(t, "\"late_update\": %s, ", ONE_OF("true", "false"));
    put(t, "\"activation_checkpointing\": {\"every\": %s}}, ", ONE_OF("0", "1", "2"));
    bool is_static = strstr(r->before.s, "\"loss_scale\"") != NULL; /* not for Lamb */
    put(t, "\"optimizer\": {%s}}", !r->only_adam && !is_static && dice(2) ? other : optimizer);
}

static struct run draw(uint64_t seed)
{
    static const char *const freezes[] = {NULL, NULL, "h\\.0\\.", "wpe|ln_", "h\\.1\\.mlp"};
    struct run r = {0};
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++) dice(2);
    r.stage = (int)dice(4);
    r.world = 1 + (int)dice(4);
    r.two_groups = dice(2);
    r.freeze = freezes[dice(CZ_ARRAY_LEN(freezes))];
    size_t p = dice(r.stage == 0 ? 4 : CZ_ARRAY_LEN(precisions));
    r.only_adam = p >= N_WIDE;
    r.needs_offload = p >= N_FREE;
    put(&r.before,
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
        "\"gradient_clipping\": %s, %s, \"zero_allow_untested_optimizer\": true, ",
        1 + (int)dice(3), ONE_OF("0", "0.5"), precisions[p]);
    draw_zero(&r);
    draw_rest(&r);
    return r;
}

/* The offload sections of one run; their own settings are drawn each time. */
static void configure_tiers(struct leg *leg, const struct run *r, struct tiers t, const char *root)
{
    struct text all = {.n = 0};
    put(&all, "%s\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s/swap/%d\", ",
        r->before.s, tier_names[t.optimizer], root, (int)dice(2));
    put(&all, "\"ratio\": %s, \"pin_memory\": %s, \"pipeline_read\": %s, \"pipeline_write\": %s}, ",
        r->stage == 3 ? ONE_OF("0.0", "0.3", "0.5", "0.9", "1.0") : "1.0", ONE_OF("true", "false"),
        ONE_OF("true", "false"), ONE_OF("true", "false"));
    put(&all, "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s/swap/%d\", ",
        tier_names[t.params], root, (int)dice(2));
    put(&all, "\"pin_memory\": %s, \"max_in_cpu\": %s}%s", ONE_OF("true", "false"),
        ONE_OF("0", "500", "40000", "1000000000"), r->after.s);
    ck_assert_uint_lt(all.n, sizeof leg->config);
    memcpy(leg->config, all.s, all.n + 1);
}

/* ---- runs
 * ----------------------------------------------------------------------------------------
 */

enum { STEPS = 6, SAVED_AT = 3 };

static struct leg_outcome leg_in(struct leg_shared *s, const struct run *r, struct tiers t,
                                 const char *root, int from, int to)
{
    configure_tiers(&s->leg, r, t, root);
    s->leg.freeze = r->freeze;
    s->leg.two_groups = r->two_groups;
    s->leg.from = from;
    s->leg.to = to;
    s->leg.unsaved_weights = from > 0;
    s->leg.load[0] = s->leg.save[0] = '\0';
    if (from > 0) snprintf(s->leg.load, sizeof s->leg.load, "%s/ckpt", root);
    if (to < STEPS) snprintf(s->leg.save, sizeof s->leg.save, "%s/ckpt", root);
    return leg_outcome_of(s, r->world);
}

static void expect_same(const struct leg_outcome *want, const struct leg_outcome *have, int from,
                        uint64_t seed, const char *config)
{
    size_t n = (size_t)(STEPS - from) * sizeof(double);
    bool same = memcmp(want->losses + from, have->losses + from, n) == 0 &&
                memcmp(want->norms + from, have->norms + from, n) == 0 &&
                memcmp(want->scales + from, have->scales + from, n) == 0 &&
                want->weights == have->weights && want->states == have->states &&
                want->skipped == have->skipped;
    ck_assert_msg(same, "seed %llu: other numbers: %s", (unsigned long long)seed, config);
}

static struct tiers any_tiers(const struct run *r)
{
    uint64_t optimizer = r->needs_offload ? 1 + dice(TIER_COUNT - 1) : dice(TIER_COUNT);
    return (struct tiers){(enum tier)optimizer, (enum tier)dice(TIER_COUNT)};
}

static void try_seed(struct leg_shared *s, uint64_t seed)
{
    char swap[160];
    const char *root = dice(2) ? test_tmp_make() : test_tmp_make_fast();
    const struct run r = draw(seed);
    snprintf(swap, sizeof swap, "%s/swap", root);
    const struct tiers plain = {r.needs_offload ? TIER_CPU : TIER_NONE, TIER_NONE};
    struct leg_outcome want = leg_in(s, &r, plain, root, 0, STEPS);
    for (int i = 0; i < 2; i++) {
        struct leg_outcome have = leg_in(s, &r, any_tiers(&r), root, 0, STEPS);
        expect_same(&want, &have, 0, seed, s->leg.config);
    }
    leg_in(s, &r, any_tiers(&r), root, 0, SAVED_AT);
    struct leg_outcome rest = leg_in(s, &r, any_tiers(&r), root, SAVED_AT, STEPS);
    expect_same(&want, &rest, SAVED_AT, seed, s->leg.config);
    tiers_expect_gone(swap, s->leg.config);
    test_tmp_remove(root);
}

START_TEST(tiers_do_not_matter)
{
    struct leg_shared *s = leg_make();
    uint64_t seed = getenv("CZ_SEED") ? strtoull(getenv("CZ_SEED"), NULL, 10) : 1;
    uint64_t n = getenv("CZ_COUNT") ? strtoull(getenv("CZ_COUNT"), NULL, 10) : 100;
    for (uint64_t i = seed; i < seed + n; i++) try_seed(s, i);
    printf("seeds %llu to %llu agree\n", (unsigned long long)seed,
           (unsigned long long)(seed + n - 1));
}
END_TEST

TEST_MAIN("engine/offload_random", tiers_do_not_matter)
