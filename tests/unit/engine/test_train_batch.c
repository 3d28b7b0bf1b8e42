/* Claims: micro-batches that are dropped leave no bit of the run changed; engine_train_batch()
 * trains to the bit as engine_forward, engine_backward and engine_step do, whichever way
 * micro-batches go through the model, for tied and untied language models, mixtures of experts,
 * classifiers and masked language models with dropout and short micro-batches, at every stage,
 * precision and tier, recomputing or not, on one rank and two (there stages 2 and 3 by layer give
 * what stages 0 and 1 give); a call that fails makes no step and the run continues as if it had not
 * been; layers are chosen where that saves traffic. CZ_TRAIN_BATCH_ALL=1: the whole product
 * (test_train_batch_slow.sh). What layers save gives the same bits kept, on NVMe and recomputed, as
 * the machine profile and the memory decide, with the traffic planned. */
#include "base/size.h"
#include "engine/engine_impl.h"
#include "engine/machine/machine.h"
#include "formats/file_io.h"
#include "tests/support/gpu/trial_step.h"

#include <sys/stat.h>

enum { VOCAB = 31, T_MAX = 8, N_CLASSES = 3, MICRO = 3, ACCUMULATION = 3, STEPS = 3 };

/* ---- models ---------------------------------------------------------------------------------- */

enum kind { GPT2_TIED = 0, LLAMA, BERT_CLASS, BERT_MLM, QWEN3_MOE, N_KINDS };

static const char *const configs[N_KINDS] = {
    "{\"model_type\": \"gpt2\", \"n_embd\": 16, \"n_layer\": 3, \"n_head\": 2, "
    "\"n_positions\": 8, \"vocab_size\": 31, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.2, "
    "\"resid_pdrop\": 0.3}",
    "{\"model_type\": \"llama\", \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"intermediate_size\": 24, \"num_hidden_layers\": 3, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"max_position_embeddings\": 8, \"attention_dropout\": 0.1, "
    "\"tie_word_embeddings\": false}",
    "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], "
    "\"vocab_size\": 31, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"max_position_embeddings\": 8, "
    "\"hidden_dropout_prob\": 0.2, \"attention_probs_dropout_prob\": 0.1, "
    "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}",
    "{\"model_type\": \"bert\", \"architectures\": [\"BertForMaskedLM\"], "
    "\"vocab_size\": 31, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"max_position_embeddings\": 8, "
    "\"hidden_dropout_prob\": 0.2, \"attention_probs_dropout_prob\": 0.1}",
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 8, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
    "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"decoder_sparse_step\": 1, "
    "\"norm_topk_prob\": true, \"output_router_logits\": true, "
    "\"router_aux_loss_coef\": 0.01, \"max_position_embeddings\": 8, "
    "\"tie_word_embeddings\": true}",
};

static const char *root; /* the running test's folder */

/* Folders with a config.json alone: random weights, the same each time. */
static void make_models(void)
{
    char path[192];
    root = test_tmp_make_fast();
    for (int kind = 0; kind < N_KINDS; kind++) {
        snprintf(path, sizeof path, "%s/model-%d", root, kind);
        ck_assert_int_eq(mkdir(path, 0777), 0);
        strcat(path, "/config.json");
        ck_ok(file_save(path, configs[kind], strlen(configs[kind])));
    }
}

static struct cz_model *open_model(enum kind kind)
{
    char path[192];
    snprintf(path, sizeof path, "%s/model-%d", root, (int)kind);
    return cz_model_from_hf(path);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Micro-batches of changing shape: the last of a step is short. */
struct source {
    const struct cz_engine *e;
    enum kind kind;
    int64_t n_taken;  /* by this rank */
    int64_t fails_at; /* at the call of this number `next` fails; −1: never */
    int32_t ids[MICRO * T_MAX], labels[MICRO * T_MAX];
};

static cz_status next(void *user, struct cz_batch *batch)
{
    struct source *s = user;
    const int64_t n = engine_get_accumulation(s->e), k = s->n_taken++;
    const bool is_short = k % n == n - 1;
    const int64_t world = engine_get_world_size(s->e), rank = engine_get_rank(s->e);
    const int64_t B = MICRO - is_short, T = T_MAX - 2 * is_short;
    const uint64_t sample = (uint64_t)((k * world + rank) * MICRO);
    const struct rng_key key = {.seed = 11, .sample = sample};
    if (k == s->fails_at) return err_set(CZ_NOTFOUND, 0, "no more data");
    for (int64_t i = 0; i < B * T; i++) {
        s->ids[i] = 1 + (int32_t)(rng_uniform(&key, (uint64_t)i) * (VOCAB - 2));
        s->labels[i] = s->kind == BERT_MLM && i % 3 ? CZ_IGNORE_LABEL : (s->ids[i] * 7 + 3) % VOCAB;
    }
    for (int64_t b = 0; b < B && s->kind == BERT_CLASS; b++)
        s->labels[b] = s->ids[b * T] % N_CLASSES;
    *batch = (struct cz_batch){.size = sizeof *batch,
                               .B = B,
                               .T = T,
                               .ids = s->ids,
                               .labels = s->labels,
                               .sample = sample};
    return CZ_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

enum tier { TIER_MEMORY = 0, TIER_STATES, TIER_ALL, TIER_GRADIENTS, N_TIERS };
enum way { WAY_CALLS = 0, WAY_MICRO_BATCHES, WAY_LAYERS, WAY_DROPPED };

struct outcome {
    uint64_t weights, states;
    double losses[STEPS], norms[STEPS], scales[STEPS];
    int64_t skipped, samples, micro_steps;
};

struct trial {
    enum kind kind;
    enum tier tier;
    enum way way;
    int stage, world, every; /* every: activation checkpointing */
    int memory;              /* czero.activation_memory */
    bool away;               /* inputs of layers wait on NVMe */
    const char *profile;     /* czero.machine_profile; NULL: none */
    const char *dtype;
    char swap_dir[160], config[2048];
    struct outcome outcomes[2];
    struct cz_swap_traffic traffic; /* of rank 0's last step */
    size_t n_layers[CHAIN_N_SAVED]; /* by what becomes of what they save */
    bool puts_off, keeps_put_off;   /* the loss layer's part of a tied vocabulary's gradient */
    bool packs, keeps_packed;       /* weights of the layer at work */
    struct plan_traffic planned;
};

static const char *const dtypes[] = {
    "\"fp16\": {\"enabled\": false}",
    "\"bf16\": {\"enabled\": true}",
    "\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}",
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 24, \"loss_scale_window\": 2, "
    "\"hysteresis\": 1}",
};

static void configure(struct trial *t)
{
    const bool states = t->tier != TIER_MEMORY;
    const bool all = t->tier == TIER_ALL, grads = t->tier >= TIER_ALL && t->world == 1;
    snprintf(t->config, sizeof t->config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0.5, %s, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
             "{\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": %d, "
             "\"stage3_param_persistence_threshold\": 20, \"stage3_prefetch_bucket_size\": 900, "
             "\"stage3_max_live_parameters\": 3000, \"stage3_max_reuse_distance\": 500, "
             "\"reduce_bucket_size\": 2000, "
             "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}, "
             "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}}, "
             "\"czero\": {\"tile_numel\": 4096, \"offload_gradients\": %s, "
             "\"activation_checkpointing\": {\"every\": %d}, "
             "\"accumulation_order\": \"%s\", \"offload_activations\": %s, "
             "\"machine_profile\": %s%s%s, \"activation_memory\": %d}}",
             MICRO, ACCUMULATION, t->dtype, t->stage, states ? "nvme" : "none", t->swap_dir,
             all ? "nvme" : "none", t->swap_dir, grads ? "true" : "false", t->every,
             t->way == WAY_LAYERS ? "layers" : "micro_batches", t->away ? "true" : "false",
             t->profile ? "\"" : "", t->profile ? t->profile : "null", t->profile ? "\"" : "",
             t->memory);
}

static cz_status make_engine(const struct trial *t, struct comm *comm, struct cz_engine **out)
{
    struct cz_model *model = open_model(t->kind);
    rank_check(model != NULL);
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = t->config,
                                              .world = comm ? comm_world(comm) : NULL,
                                              .trains_batches = true,
                                              .seed = 5};
    TRY(cz_model_set_shape(model, T_MAX));
    *out = engine_initialize_ex(&options, model);
    if (!*out) cz_model_destroy(model); /* the engine has not taken it */
    return *out ? CZ_OK : cz_last_status();
}

/* All that a program may leave in the middle: forwards before another one and before an evaluation,
 * n micro-batches with gradients and one more forward, a backward without its step. */
static cz_status drop_all(struct cz_engine *e, const struct source *s, int n)
{
    struct source other = *s;
    struct cz_batch batch = {.size = sizeof batch};
    float loss;
    const int64_t micro_steps = engine_get_micro_steps(e);
    other.n_taken += ACCUMULATION; /* other rows */
    TRY(next(&other, &batch));
    TRY(engine_forward(e, &batch, &loss));
    TRY(engine_forward(e, &batch, NULL));
    TRY(engine_eval(e, &batch, &loss));
    for (int g = 0; g < n; g++) {
        TRY(engine_forward(e, &batch, NULL));
        TRY(engine_backward(e));
        TRY(engine_step(e));
        TRY(next(&other, &batch));
    }
    TRY(engine_forward(e, &batch, NULL));
    if (n % 2 == 0) {
        TRY(engine_discard_step(e));
        rank_check(engine_get_micro_steps(e) == micro_steps);
        TRY(engine_forward(e, &batch, NULL));
    }
    return engine_backward(e);
}

static cz_status step(struct cz_engine *e, struct source *s, enum way way, float *loss)
{
    if (way == WAY_DROPPED)
        TRY(drop_all(e, s, (int)(engine_get_global_steps(e) % ACCUMULATION)));
    else if (way != WAY_CALLS)
        return engine_train_batch(e, next, s, loss);
    for (int g = 0; g < ACCUMULATION; g++) {
        struct cz_batch batch = {.size = sizeof batch};
        TRY(next(s, &batch));
        TRY(engine_forward(e, &batch, NULL));
        TRY(engine_backward(e));
        TRY(engine_step(e));
    }
    *loss = (float)engine_get_boundary_loss(e);
    return CZ_OK;
}

static cz_status look(struct cz_engine *e, struct outcome *out)
{
    out->skipped = engine_get_skipped_steps(e);
    out->samples = engine_get_global_samples(e);
    out->micro_steps = engine_get_micro_steps(e);
    out->weights = TRIAL_HASH_BEGIN;
    TRY(trial_hash_tensors(e, "weight", &out->weights));
    return trial_hash_states(e, &out->states);
}

static cz_status train(struct trial *t, struct comm *comm, int rank)
{
    struct cz_engine *e;
    struct outcome *out = &t->outcomes[rank];
    TRY(make_engine(t, comm, &e));
    struct source s = {.e = e, .kind = t->kind, .fails_at = -1};
    rank_check(e->desc.plan.order == (t->way == WAY_LAYERS ? PLAN_BY_LAYER : PLAN_BY_MICRO_BATCH));
    for (int i = 0; i < STEPS; i++) {
        float loss = -1;
        TRY(step(e, &s, t->way, &loss));
        out->losses[i] = engine_get_boundary_loss(e);
        out->norms[i] = engine_get_global_grad_norm(e);
        out->scales[i] = engine_get_loss_scale(e);
        rank_check(loss == (float)out->losses[i]);
    }
    t->traffic.size = sizeof t->traffic;
    TRY(engine_get_swap_traffic(e, &t->traffic));
    for (int k = 0; k < CHAIN_N_SAVED; k++) t->n_layers[k] = e->desc.plan.saved[k].n_layers;
    t->puts_off = e->desc.plan.put_off_nbytes > 0;
    t->keeps_put_off = e->desc.plan.keeps_put_off;
    t->packs = e->desc.plan.packed_nbytes > 0;
    t->keeps_packed = e->desc.plan.keeps_packed;
    t->planned = e->desc.plan.traffic[e->desc.plan.order];
    TRY(look(e, out));
    engine_destroy(e);
    return CZ_OK;
}

static cz_status train_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(train(arg, comm, rank));
    comm_destroy(comm);
    return CZ_OK;
}

static struct trial *trial_new(void)
{
    struct trial *t =
        mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(t != MAP_FAILED);
    return t;
}

static struct outcome run(struct trial *t)
{
    struct ranks ranks;
    memset(t->outcomes, 0, sizeof t->outcomes);
    configure(t);
    if (t->world == 1) {
        ck_ok(train(t, NULL, 0));
        return t->outcomes[0];
    }
    ranks_start(&ranks, t->world, train_rank, t);
    ranks_expect_ok(&ranks, 60);
    ck_assert_mem_eq(&t->outcomes[1], &t->outcomes[0], sizeof t->outcomes[0]);
    return t->outcomes[0];
}

static void expect_same(const struct outcome *want, const struct outcome *have,
                        const struct trial *t)
{
    ck_assert_msg(memcmp(want->losses, have->losses, sizeof want->losses) == 0,
                  "losses %.9g %.9g %.9g differ from %.9g %.9g %.9g, kind %d: %s", have->losses[0],
                  have->losses[1], have->losses[2], want->losses[0], want->losses[1],
                  want->losses[2], t->kind, t->config);
    ck_assert_msg(memcmp(want, have, sizeof *want) == 0,
                  "norms %.17g and %.17g; states differ or not: %d, kind %d: %s", have->norms[0],
                  want->norms[0], want->states != have->states, t->kind, t->config);
}

static bool all_asked(void)
{
    return getenv("CZ_TRAIN_BATCH_ALL") != NULL;
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* Gradients may have a type of their own at stages 1 and 2 only. */
static bool stage_takes(int dtype, int stage)
{
    return dtype != 2 || stage == 1 || stage == 2;
}

/* Both ways of the call against the three calls; stages and tiers must not matter on one rank. */
static void check_one(struct trial *t, int kind, int dtype, int tier, int stage, int every)
{
    if (!stage_takes(dtype, stage)) return;
    t->kind = (enum kind)kind;
    t->dtype = dtypes[dtype];
    t->tier = (enum tier)tier;
    t->stage = stage;
    t->every = every;
    t->way = WAY_CALLS;
    const struct outcome want = run(t);
    if (dtype == 3 && kind != BERT_CLASS) ck_assert_int_gt(want.skipped, 0);
    t->way = WAY_LAYERS;
    for (int away = 0; away < 2 - (tier == TIER_MEMORY); away++) {
        t->away = away;
        const struct outcome have = run(t);
        expect_same(&want, &have, t);
    }
    t->away = false;
    for (int other = 0; other < 2; other++) {
        t->way = other ? WAY_DROPPED : WAY_MICRO_BATCHES;
        const struct outcome have = run(t);
        expect_same(&want, &have, t);
    }
}

START_TEST(one_rank_trains_as_the_three_calls_do)
{
    struct trial *t = trial_new();
    t->world = 1;
    make_models();
    snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int dtype = 0; dtype < 4; dtype++)
            for (int tier = 0; tier < N_TIERS; tier++) {
                const int turn = kind + tier, stage = dtype == 2 ? 1 + turn % 2 : turn % 4;
                if (!all_asked()) {
                    if ((kind + dtype) % 4 == tier)
                        check_one(t, kind, dtype, tier, stage, (kind + dtype) % 2);
                    continue;
                }
                for (int s = 0; s < 4; s++)
                    for (int every = 0; every < 3; every++)
                        check_one(t, kind, dtype, tier, s, every);
            }
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* By layer the sum over micro-batches comes before the one over ranks, as at stages 0 and 1. */
static void check_two(struct trial *t, int kind, int dtype, int tier)
{
    t->kind = (enum kind)kind;
    t->dtype = dtypes[dtype];
    t->tier = TIER_MEMORY;
    t->stage = dtype == 2 ? 1 : kind % 2;
    t->way = WAY_CALLS;
    const struct outcome want = run(t);
    t->tier = (enum tier)tier;
    for (t->stage = 0; t->stage < 4; t->stage++) {
        if (!stage_takes(dtype, t->stage)) continue;
        t->way = WAY_LAYERS;
        t->every = t->stage % 2;
        t->away = tier != TIER_MEMORY && t->stage > 1;
        struct outcome have = run(t);
        expect_same(&want, &have, t);
    }
    t->away = false;
    for (t->stage = 0; t->stage < 4; t->stage++) {
        if (!stage_takes(dtype, t->stage)) continue;
        t->way = WAY_CALLS;
        const struct outcome calls = run(t);
        for (int other = 0; other < 2; other++) {
            t->way = other ? WAY_DROPPED : WAY_MICRO_BATCHES;
            const struct outcome have = run(t);
            expect_same(&calls, &have, t);
        }
    }
}

START_TEST(two_ranks_by_layer_train_as_stages_0_and_1_do)
{
    struct trial *t = trial_new();
    t->world = 2;
    make_models();
    snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int dtype = 0; dtype < 4; dtype++)
            for (int tier = 0; tier < TIER_GRADIENTS; tier++)
                if (all_asked() || (dtype == (kind + 1) % 4 && tier == kind % 3 && kind % 2 == 0))
                    check_two(t, kind, dtype, tier);
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* ---- kept, on NVMe, or recomputed ------------------------------------------------------------ */

/* A machine of which only the products and the disk differ. */
static const char *machine(const char *name, double gemm, double nvme)
{
    static char path[192];
    const struct machine_profile m = {.n_threads = 1,
                                      .gemm_f32 = gemm,
                                      .gemm_bf16 = gemm,
                                      .gemm_f16 = gemm,
                                      .triad = 1e11,
                                      .adam_f32 = 1e9,
                                      .adam_bf16 = 1e9,
                                      .nvme_read = nvme,
                                      .nvme_write = nvme,
                                      .nvme_both = nvme};
    snprintf(path, sizeof path, "%s/%s.json", root, name);
    ck_ok(machine_write(&m, path));
    return path;
}

static void expect_layers(const struct trial *t, size_t n_redone, size_t n_kept, size_t n_swapped)
{
    ck_assert_msg(t->n_layers[CHAIN_SAVED_NOWHERE] == n_redone &&
                      t->n_layers[CHAIN_SAVED_IN_MEMORY] == n_kept &&
                      t->n_layers[CHAIN_SAVED_IN_FILE] == n_swapped,
                  "%zu layers recomputed, %zu kept, %zu on NVMe; not %zu, %zu, %zu: %s",
                  t->n_layers[CHAIN_SAVED_NOWHERE], t->n_layers[CHAIN_SAVED_IN_MEMORY],
                  t->n_layers[CHAIN_SAVED_IN_FILE], n_redone, n_kept, n_swapped, t->config);
}

/* What is swapped moves to the byte as planned, what a step moves besides stays what it is. */
static void check_saved(struct trial *t)
{
    t->way = WAY_CALLS;
    const struct outcome want = run(t);
    t->way = WAY_LAYERS;
    t->away = t->tier == TIER_ALL;
    t->profile = machine("fast-disk", 1e6, 1e12);
    t->memory = 1 << 30;
    struct outcome have = run(t);
    expect_same(&want, &have, t);
    const size_t n_layers = t->n_layers[CHAIN_SAVED_IN_MEMORY];
    expect_layers(t, 0, n_layers, 0);
    ck_assert(t->keeps_put_off == t->puts_off && t->keeps_packed == t->packs);
    const struct cz_swap_traffic kept = t->traffic;
    const struct plan_traffic planned = t->planned;
    t->memory = 1;
    have = run(t);
    expect_same(&want, &have, t);
    const bool has_file = t->tier != TIER_MEMORY;
    const size_t n_empty = t->n_layers[CHAIN_SAVED_IN_MEMORY]; /* save nothing */
    ck_assert_uint_lt(n_empty, n_layers);
    ck_assert(!t->keeps_put_off && !t->keeps_packed);
    expect_layers(t, has_file ? 0 : n_layers - n_empty, n_empty, has_file ? n_layers - n_empty : 0);
    ck_assert(!has_file || t->traffic.read_nbytes > kept.read_nbytes);
    ck_assert_double_eq(t->traffic.read_nbytes - kept.read_nbytes,
                        (double)(t->planned.nvme_read_nbytes - planned.nvme_read_nbytes));
    ck_assert_double_eq(t->traffic.written_nbytes - kept.written_nbytes,
                        (double)(t->planned.nvme_written_nbytes - planned.nvme_written_nbytes));
    t->profile = machine("slow-disk", 1e12, 1e3);
    have = run(t);
    expect_same(&want, &have, t);
    expect_layers(t, n_layers - n_empty, n_empty, 0);
    ck_assert_double_eq(t->traffic.read_nbytes, kept.read_nbytes);
    ck_assert_double_eq(t->traffic.written_nbytes, kept.written_nbytes);
}

START_TEST(what_layers_save_is_kept_swapped_or_recomputed_as_the_profile_says)
{
    struct trial *t = trial_new();
    make_models();
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int tier = 0; tier < N_TIERS; tier++) {
            if (!all_asked() && kind % N_TIERS != tier) continue;
            *t = (struct trial){.kind = (enum kind)kind,
                                .world = 1,
                                .stage = tier % 4,
                                .tier = (enum tier)tier,
                                .dtype = dtypes[kind % 2]};
            snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
            check_saved(t);
        }
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* By itself: ThreadSanitizer starts no threads in ranks of a process that has had some. */
START_TEST(ranks_keep_and_swap_what_layers_save)
{
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){.world = 2, .stage = 3, .tier = TIER_ALL, .dtype = dtypes[1]};
    snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
    t->way = WAY_LAYERS;
    const struct outcome want = run(t);
    t->profile = machine("fast-disk", 1e6, 1e12);
    t->memory = 1;
    const struct outcome have = run(t);
    expect_same(&want, &have, t);
    ck_assert_uint_gt(t->n_layers[CHAIN_SAVED_IN_FILE], 0);
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

START_TEST(a_profile_that_cannot_be_read_is_refused_by_its_line)
{
    struct trial *t = trial_new();
    struct cz_engine *e;
    char path[192];
    make_models();
    *t = (struct trial){.world = 1, .dtype = dtypes[1]};
    t->profile = machine("broken", 1e12, 1e9);
    snprintf(path, sizeof path, "%s", t->profile);
    ck_ok(file_save(path, "{\n  \"format\": 3\n}\n", 18));
    configure(t);
    ck_fails(make_engine(t, NULL, &e), CZ_CORRUPT);
    ck_assert_msg(strstr(cz_last_error(), "czero.machine_profile") &&
                      strstr(cz_last_error(), "broken.json:2:"),
                  "%s", cz_last_error());
    t->profile = "/nowhere/m.json";
    configure(t);
    ck_fails(make_engine(t, NULL, &e), CZ_NOTFOUND);
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* ---- what a call refuses, and what it leaves ------------------------------------------------- */

static struct cz_engine *open_engine(struct trial *t)
{
    struct cz_engine *e;
    configure(t);
    ck_ok(make_engine(t, NULL, &e));
    return e;
}

START_TEST(a_step_that_has_begun_is_ended_by_its_own_calls)
{
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){.world = 1, .dtype = dtypes[0]};
    for (t->way = WAY_MICRO_BATCHES; t->way <= WAY_LAYERS; t->way++) {
        struct cz_engine *e = open_engine(t);
        struct source s = {.e = e, .fails_at = -1};
        for (int g = 0; g < ACCUMULATION; g++) {
            struct cz_batch batch = {.size = sizeof batch};
            float loss;
            ck_ok(next(&s, &batch));
            ck_ok(engine_forward(e, &batch, &loss));
            if (g > 0) ck_fails(engine_train_batch(e, next, &s, NULL), CZ_INVALID);
            ck_ok(engine_backward(e));
            ck_fails(engine_train_batch(e, next, &s, NULL), CZ_INVALID);
            ck_ok(engine_step(e));
            if (g + 1 < ACCUMULATION) ck_fails(engine_train_batch(e, next, &s, NULL), CZ_INVALID);
        }
        ck_assert_int_eq(s.n_taken, ACCUMULATION); /* refused calls took nothing */
        struct cz_batch batch = {.size = sizeof batch};
        struct source other = s;
        ck_ok(next(&other, &batch));
        ck_ok(engine_forward(e, &batch, NULL));
        ck_fails(engine_train_batch(e, NULL, NULL, NULL), CZ_INVALID);
        ck_ok(engine_train_batch(e, next, &s, NULL)); /* a forward alone is no step */
        ck_fails(engine_backward(e), CZ_INVALID);
        ck_assert_int_eq(engine_get_global_steps(e), 2);
        ck_assert_int_eq(engine_get_micro_steps(e), 2 * ACCUMULATION);
        engine_destroy(e);
    }
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* Micro-batch k of the second step: no data, a token that is none, a shape beyond the plan. */
enum fault { FAULT_END = 0, FAULT_TOKEN, FAULT_SHAPE, N_FAULTS };

struct faulty {
    struct source source;
    enum fault fault;
    int64_t at;
};

static cz_status next_faulty(void *user, struct cz_batch *batch)
{
    struct faulty *f = user;
    const bool is_due = f->source.n_taken == f->at;
    f->source.fails_at = f->fault == FAULT_END ? f->at : -1;
    TRY(next(&f->source, batch));
    if (!is_due) return CZ_OK;
    if (f->fault == FAULT_TOKEN) f->source.ids[1] = VOCAB;
    if (f->fault == FAULT_SHAPE) batch->B = MICRO + 1;
    return CZ_OK;
}

static struct outcome with_fault(struct trial *t, enum fault fault, int k)
{
    struct cz_engine *e = open_engine(t);
    struct faulty f = {.source = {.e = e, .kind = t->kind, .fails_at = -1},
                       .fault = fault,
                       .at = ACCUMULATION + k};
    struct outcome out = {0};
    for (int i = 0; i < STEPS; i++) {
        float loss;
        if (i == 1 && k >= 0) {
            const cz_status want = fault == FAULT_END ? CZ_NOTFOUND : CZ_INVALID;
            ck_fails(engine_train_batch(e, next_faulty, &f, &loss), want);
            ck_assert_int_eq(engine_get_micro_steps(e), ACCUMULATION);
            ck_assert_int_eq(engine_get_global_steps(e), 1);
            f.source.n_taken = ACCUMULATION; /* the same rows once more */
            f.source.fails_at = -1;
        }
        ck_ok(engine_train_batch(e, next, &f.source, &loss));
        out.losses[i] = (double)loss;
    }
    ck_ok(look(e, &out));
    engine_destroy(e);
    return out;
}

START_TEST(a_step_that_fails_is_not_made_and_leaves_nothing)
{
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){.world = 1, .dtype = dtypes[1]};
    snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
    for (t->way = WAY_MICRO_BATCHES; t->way <= WAY_LAYERS; t->way++)
        for (int tier = 0; tier < N_TIERS; tier += 3)
            for (int fault = 0; fault < N_FAULTS; fault++) {
                t->tier = (enum tier)tier;
                const struct outcome want = with_fault(t, FAULT_END, -1);
                const struct outcome have = with_fault(t, (enum fault)fault, (tier + fault) % 3);
                ck_assert_mem_eq(&have, &want, sizeof want);
            }
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

static cz_status fail_alone(struct ranks *ranks, int rank, void *arg)
{
    struct trial *t = arg;
    struct cz_engine *e;
    struct comm *comm;
    float loss;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(make_engine(t, comm, &e));
    struct source s = {.e = e, .kind = t->kind, .fails_at = rank == 1 ? ACCUMULATION + 1 : -1};
    TRY(engine_train_batch(e, next, &s, &loss));
    cz_status st = engine_train_batch(e, next, &s, &loss);
    struct err error;
    err_capture(&error);
    engine_destroy(e);
    comm_destroy(comm);
    return st == CZ_OK ? CZ_OK : err_restore(&error);
}

START_TEST(a_rank_without_data_ends_the_call_on_all_ranks)
{
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){.world = 2, .dtype = dtypes[0]};
    for (t->way = WAY_MICRO_BATCHES; t->way <= WAY_LAYERS; t->way++)
        for (t->stage = 0; t->stage < 4; t->stage++) {
            struct ranks ranks;
            configure(t);
            ranks_start(&ranks, 2, fail_alone, t);
            ck_assert(ranks_wait(&ranks, 30));
            rank_expect(&ranks, 0, CZ_PEER, "no more data");
            rank_expect(&ranks, 1, CZ_NOTFOUND, "no more data");
            ranks_close(&ranks);
        }
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* ---- logits ---------------------------------------------------------------------------------- */

START_TEST(logits_are_those_of_single_micro_batches)
{
    float want[ACCUMULATION][MICRO * N_CLASSES] = {0}, have[ACCUMULATION][MICRO * N_CLASSES];
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){.kind = BERT_CLASS, .world = 1, .dtype = dtypes[1]};
    struct cz_engine *e = open_engine(t);
    struct source s = {.e = e, .kind = t->kind, .fails_at = -1};
    for (int g = 0; g < ACCUMULATION; g++) {
        struct cz_batch batch = {.size = sizeof batch};
        ck_ok(next(&s, &batch));
        ck_ok(engine_forward_logits(e, &batch, NULL, want[g]));
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
    }
    engine_destroy(e);
    for (t->way = WAY_MICRO_BATCHES; t->way <= WAY_LAYERS; t->way++) {
        memset(have, 0, sizeof have);
        e = open_engine(t);
        s = (struct source){.e = e, .kind = t->kind, .fails_at = -1};
        ck_ok(engine_train_batch_logits(e, next, &s, NULL, have[0]));
        ck_assert_mem_eq(have, want, sizeof want);
        engine_destroy(e);
    }
    t->kind = LLAMA;
    e = open_engine(t);
    ck_fails(engine_train_batch_logits(e, next, &s, NULL, have[0]), CZ_UNSUPPORTED);
    engine_destroy(e);
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

/* ---- which order ----------------------------------------------------------------------------- */

static struct cz_plan *plan_of(enum kind kind, const char *zero, bool trains_batches,
                               int64_t accumulation, int64_t world_size, const char *czero)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, "
             "\"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\"}, "
             "\"zero_optimization\": {%s}, \"czero\": {%s}}",
             (int)accumulation, zero, czero);
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .trains_batches = trains_batches};
    struct cz_model *m = open_model(kind);
    struct cz_plan *p;
    ck_ok(plan_create(&options, world_size, m, &p));
    ck_assert((accumulation > 1) == (p->order_why[0] != '\0'));
    cz_model_destroy(m);
    return p;
}

static enum plan_order order_of_model(enum kind kind, const char *zero, bool trains_batches,
                                      int64_t accumulation, int64_t world_size, const char *czero)
{
    struct cz_plan *p = plan_of(kind, zero, trains_batches, accumulation, world_size, czero);
    const enum plan_order order = p->order;
    cz_plan_destroy(p);
    return order;
}

static enum plan_order order_of(const char *zero, bool trains_batches, int64_t accumulation,
                                int64_t world_size, const char *czero)
{
    return order_of_model(GPT2_TIED, zero, trains_batches, accumulation, world_size, czero);
}

#define PARAMS_ON_NVME "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}"

/* Where, beside the swap file's other rows. */
START_TEST(inputs_of_layers_wait_in_the_swap_file)
{
    struct trial *t = trial_new();
    make_models();
    *t = (struct trial){
        .world = 1, .dtype = dtypes[1], .tier = TIER_STATES, .way = WAY_LAYERS, .every = 1};
    snprintf(t->swap_dir, sizeof t->swap_dir, "%s/swap", root);
    size_t file[2];
    for (int away = 0; away < 2; away++) {
        t->away = away;
        struct cz_engine *e = open_engine(t);
        file[away] = e->desc.plan.nvme_nbytes;
        double written = 0;
        for (int phase = 0; phase < PLAN_SAVE; phase++)
            written += (double)e->desc.plan.phases[phase].nvme_written_nbytes;
        ck_assert_double_eq(written,
                            (double)e->desc.plan.traffic[PLAN_BY_LAYER].nvme_written_nbytes);
        engine_destroy(e);
    }
    /* 5 layers: of 3 outputs before the loss layer's input, all but the last two; in whole blocks
     */
    ck_assert_uint_eq(file[1], size_round_up(file[0], SWAP_ALIGN) + SWAP_ALIGN);
    t->tier = TIER_MEMORY;
    configure(t);
    struct cz_engine *e;
    ck_fails(make_engine(t, NULL, &e), CZ_INVALID);
    munmap(t, sizeof *t);
    test_tmp_remove(root);
}
END_TEST

START_TEST(layers_are_chosen_where_less_moves_or_more_hides)
{
    const char *nvme = "\"stage\": 3, " PARAMS_ON_NVME,
               *states = "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}";
    make_models();
    ck_assert_int_eq(order_of(nvme, true, 4, 1, ""), PLAN_BY_LAYER);
    ck_assert_int_eq(order_of(nvme, false, 4, 1, ""), PLAN_BY_MICRO_BATCH);
    ck_assert_int_eq(order_of(nvme, true, 1, 1, ""), PLAN_BY_MICRO_BATCH);
    for (int kind = GPT2_TIED; kind <= LLAMA; kind++) { /* hides the update, tied or not */
        ck_assert_int_eq(order_of_model((enum kind)kind, states, true, 4, 1, ""), PLAN_BY_LAYER);
        ck_assert_int_eq(
            order_of_model((enum kind)kind, states, true, 4, 1, "\"late_update\": false"),
            PLAN_BY_MICRO_BATCH);
        ck_assert_int_eq(order_of_model((enum kind)kind, states, true, 1 << 20, 1, ""),
                         PLAN_BY_MICRO_BATCH); /* no memory */
    }
    ck_assert_int_eq(order_of(states, true, 4, 1, "\"offload_gradients\": true"), PLAN_BY_LAYER);
    ck_assert_int_eq(order_of("\"stage\": 1", true, 4, 2, ""), PLAN_BY_MICRO_BATCH);
    ck_assert_int_eq(order_of("\"stage\": 2", true, 4, 2, ""), PLAN_BY_LAYER);
    ck_assert_int_eq(order_of("\"stage\": 3", true, 4, 2, ""), PLAN_BY_LAYER);
    ck_assert_int_eq(order_of("\"stage\": 3", true, 4, 1, ""), PLAN_BY_MICRO_BATCH);
    ck_assert_int_eq(order_of(nvme, true, 4, 1, "\"accumulation_order\": \"micro_batches\""),
                     PLAN_BY_MICRO_BATCH);
    ck_assert_int_eq(order_of("", false, 4, 1, "\"accumulation_order\": \"layers\""),
                     PLAN_BY_LAYER);
    test_tmp_remove(root);
}
END_TEST

/* 4 micro-batches of 1 × T rows of the vocabulary in bf16; a frozen one puts nothing off. */
START_TEST(gradients_of_logits_wait_for_a_tied_vocabulary_that_is_trained)
{
    make_models();
#define LAYERS "\"accumulation_order\": \"layers\""
    struct cz_plan *p = plan_of(GPT2_TIED, "", true, 4, 1, LAYERS);
    ck_assert_int_eq(p->order, PLAN_BY_LAYER);
    ck_assert_uint_eq(p->put_off_nbytes,
                      4 * size_round_up((size_t)p->T * VOCAB * sizeof(uint16_t), CHAIN_ALIGN));
    ck_assert(p->keeps_put_off);
    const double flops = p->phases[PLAN_BACKWARD].flops;
    cz_plan_destroy(p);
    p = plan_of(GPT2_TIED, "", true, 4, 1, LAYERS ", \"activation_memory\": 1");
    ck_assert(p->put_off_nbytes > 0 && !p->keeps_put_off);
    ck_assert_double_gt(p->phases[PLAN_BACKWARD].flops, flops);
    cz_plan_destroy(p);
    p = plan_of(GPT2_TIED, "", true, 4, 1, LAYERS ", \"lora\": {\"rank\": 2}");
    ck_assert_int_eq(p->order, PLAN_BY_LAYER);
    ck_assert_uint_eq(p->put_off_nbytes, 0);
    cz_plan_destroy(p);
    test_tmp_remove(root);
}
END_TEST

TEST_MAIN("engine/train_batch", one_rank_trains_as_the_three_calls_do,
          two_ranks_by_layer_train_as_stages_0_and_1_do,
          what_layers_save_is_kept_swapped_or_recomputed_as_the_profile_says,
          ranks_keep_and_swap_what_layers_save,
          a_profile_that_cannot_be_read_is_refused_by_its_line,
          a_step_that_has_begun_is_ended_by_its_own_calls,
          a_step_that_fails_is_not_made_and_leaves_nothing,
          a_rank_without_data_ends_the_call_on_all_ranks, logits_are_those_of_single_micro_batches,
          inputs_of_layers_wait_in_the_swap_file, layers_are_chosen_where_less_moves_or_more_hides,
          gradients_of_logits_wait_for_a_tied_vocabulary_that_is_trained)
