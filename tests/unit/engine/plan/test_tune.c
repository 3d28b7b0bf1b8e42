/* Claims: offers that fit come first, fastest first, each with the reason why it is not the best;
 * the best fills the GPU before anything leaves it, and its config plans to what was promised; a
 * budget that nothing fits says what is missing, and with that much more something fits. */
#include "base/size.h"
#include "engine/machine/machine.h"
#include "engine/tune/tune.h"
#include "engine/tune/tune_impl.h"
#include "tests/support/check_main.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GB ((size_t)1000000000)

/* A workstation: one GPU, a disk. */
static const struct machine_profile machine = {.gemm_f32 = 1e12,
                                               .gemm_bf16 = 2e12,
                                               .gemm_f16 = 1e12,
                                               .triad = 5e10,
                                               .adam_f32 = 1.5e9,
                                               .adam_bf16 = 1.7e9,
                                               .comm = 1e10,
                                               .host_to_device = 2.4e10,
                                               .device_to_host = 2.4e10,
                                               .device_gemm_f32 = 3e13,
                                               .device_gemm_bf16 = 7e13,
                                               .device_gemm_f16 = 7e13,
                                               .device_copy = 8e11,
                                               .nvme_path = "/mnt/fast",
                                               .nvme_read = 6e9,
                                               .nvme_write = 4e9,
                                               .nvme_both = 6.5e9,
                                               .nvme_block_nbytes = 2 << 20,
                                               .nvme_depth = 24};

static struct cz_model *open_shape(const char *name, int64_t T)
{
    struct cz_model *m = cz_model_open(name);
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, T));
    return m;
}

static struct tune *tune_of(const char *name, int64_t T, struct tune_options o)
{
    struct cz_model *m = open_shape(name, T);
    struct tune *t;
    if (o.world_size == 0) o.world_size = 1;
    o.baseline_nbytes = 16 << 20; /* so that nothing depends on this process */
    ck_ok(tune_create(&o, m, &t));
    cz_model_destroy(m);
    return t;
}

/* The offer's config, planned again. */
static struct cz_plan *plan_again(const struct tune *t, const struct tune_offer *offer,
                                  const char *name, int64_t T, int64_t world_size,
                                  const char *device)
{
    char *config;
    ck_ok(tune_config(t, offer, &config));
    const struct cz_engine_options options = {.size = sizeof options,
                                              .trains_batches = true,
                                              .config_json = config,
                                              .device = device,
                                              .strict = true};
    const struct plan_request request = {.world_size = world_size,
                                         .profile = t->options.profile,
                                         .baseline_nbytes = 16 << 20,
                                         .order_host_nbytes = t->options.host_nbytes};
    struct cz_model *m = open_shape(name, T);
    struct cz_plan *p;
    ck_ok(plan_create_ex(&options, &request, m, &p));
    cz_model_destroy(m);
    free(config);
    return p;
}

static void check_order(const struct tune *t)
{
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        const struct tune_offer *o = tune_offer(t, i);
        ck_assert((o->why[0] == '\0') == (i == 0 && o->fits));
        if (i == 0) continue;
        const struct tune_offer *before = tune_offer(t, i - 1);
        ck_assert(before->fits || !o->fits);
        if (o->fits && !isnan(o->tokens_per_s))
            ck_assert_double_ge(before->tokens_per_s, o->tokens_per_s);
        if (!o->fits) ck_assert_ptr_nonnull(strstr(o->why, "does not fit: needs"));
    }
}

/* Every offer is what its own config plans to, by a plan that has never seen the others: the search
 * remembers plans, and shares kernels between them. */
static void check_plans(const struct tune *t, const char *name, int64_t T, int64_t world_size,
                        bool on_gpu)
{
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        const struct tune_offer *o = tune_offer(t, i);
        char text[192];
        tune_offer_text(o, text, sizeof text);
        struct cz_plan *p = plan_again(t, o, name, T, world_size, on_gpu ? "cuda" : "cpu");
        const size_t n = (size_t)world_size, *need = o->need_nbytes;
        bool is_same = need[TUNE_GPU] == p->device_peak_nbytes &&
                       need[TUNE_HOST] == n * p->host_peak_nbytes &&
                       need[TUNE_NVME] == n * p->nvme_nbytes;
        ck_assert_msg(is_same, "%s: another plan", text);
        ck_assert_int_eq(o->order, p->order);
        ck_assert_double_eq(o->seconds, p->step_s);
        cz_plan_destroy(p);
    }
}

START_TEST(every_offer_plans_to_what_was_promised)
{
    static const struct {
        const char *name;
        size_t gpu, host, nvme;
        int64_t world_size;
    } cases[] = {{"gpt2", 3 * GB, 16 * GB, 0, 1},
                 {"gpt2", 3 * GB, 6 * GB, 20 * GB, 2},
                 {"bert-base", 0, 2 * GB, 10 * GB, 1},
                 {"gemma3-tiny", 1 * GB, 1 * GB, 1 * GB, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct tune_options o = {.gpu_nbytes = cases[i].gpu,
                                       .host_nbytes = cases[i].host,
                                       .nvme_nbytes = cases[i].nvme,
                                       .world_size = cases[i].world_size,
                                       .profile = &machine,
                                       .dtype = DTYPE_BF16};
        struct tune *t = tune_of(cases[i].name, 64, o);
        ck_assert_uint_gt(tune_n_offers(t), 3);
        check_plans(t, cases[i].name, 64, cases[i].world_size, cases[i].gpu > 0);
        tune_destroy(t);
    }
}
END_TEST

/* The reason of an offer that takes longer is a phase that does, by more than a thousandth. */
static size_t check_times(const struct tune *t)
{
    const struct tune_offer *best = tune_best(t);
    size_t n_longer = 0;
    for (size_t i = 1; i < tune_n_offers(t); i++) {
        const struct tune_offer *o = tune_offer(t, i);
        double scale = (double)tune_rows(t, best) / (double)tune_rows(t, o), most = 0;
        for (int f = 0; f < PLAN_SAVE; f++) {
            double more = o->phases[f].total_s * scale - best->phases[f].total_s;
            most = more > most ? more : most;
        }
        if (!o->fits) continue;
        bool is_longer = most > 0.001 * best->seconds;
        ck_assert_msg((strstr(o->why, " s longer: it ") != NULL) == is_longer, "%g s: %s", most,
                      o->why);
        ck_assert_int_eq(strstr(o->why, "as fast, and needs more") != NULL, !is_longer);
        n_longer += is_longer;
    }
    return n_longer;
}

/* Sizes of micro-batches are tried in steps that grow, up to 32 rows. */
static void check_micros(const struct tune *t)
{
    int64_t most = 0;
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        int64_t rows = tune_offer(t, i)->micro_batch;
        most = rows > most ? rows : most;
        ck_assert_msg(rows <= 8 || (rows <= 16 && rows % 2 == 0) || rows % 8 == 0, "%d rows",
                      (int)rows);
    }
    ck_assert_int_eq(most, 32);
}

START_TEST(the_best_fills_the_gpu_before_it_spills)
{
    const struct tune_options o = {
        .gpu_nbytes = 24 * GB, .host_nbytes = 64 * GB, .profile = &machine, .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-1.3b", 1024, o);
    const struct tune_offer *best = tune_best(t);
    ck_assert_ptr_nonnull(best);
    ck_assert(tune_is_timed(t));
    ck_assert_uint_gt(tune_n_offers(t), 8);
    check_order(t);
    check_micros(t);
    ck_assert_uint_gt(check_times(t), 0);
    ck_assert_uint_ge(best->need_nbytes[TUNE_GPU], 24 * GB / 10 * 9);
    ck_assert_uint_le(best->need_nbytes[TUNE_GPU], 24 * GB / 102 * 100);
    struct cz_plan *p = plan_again(t, best, "gpt2-1.3b", 1024, 1, "cuda");
    ck_assert_uint_eq(p->device_peak_nbytes, best->need_nbytes[TUNE_GPU]);
    ck_assert_uint_eq(p->host_peak_nbytes, best->need_nbytes[TUNE_HOST]);
    cz_plan_destroy(p);
    tune_destroy(t);
}
END_TEST

static void check_full_when_it_spills(size_t gpu, const struct machine_profile *profile)
{
    const struct tune_options o = {
        .gpu_nbytes = gpu, .host_nbytes = 64 * GB, .profile = profile, .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-1.3b", 256, o);
    const struct tune_offer *best = tune_best(t);
    ck_assert_ptr_nonnull(best);
    bool spills = best->optimizer != CONFIG_OFFLOAD_NONE || best->params != CONFIG_OFFLOAD_NONE ||
                  best->cpu_checkpointing;
    ck_assert_msg(!spills || best->need_nbytes[TUNE_GPU] >= gpu / 10 * 9,
                  "%zu of %zu bytes of a GPU are used%s", best->need_nbytes[TUNE_GPU], gpu,
                  profile ? "" : " where no speed is known");
    tune_destroy(t);
}

/* Whatever the GPU's size, and whether or not the machine was measured: what leaves it leaves a
 * full one. */
START_TEST(nothing_leaves_a_gpu_with_room)
{
    for (size_t gpu = 6 * GB; gpu <= 48 * GB; gpu += 14 * GB)
        check_full_when_it_spills(gpu, &machine);
    check_full_when_it_spills(12 * GB, NULL);
}
END_TEST

START_TEST(without_a_profile_the_order_is_by_bytes_moved)
{
    const struct tune_options o = {
        .gpu_nbytes = 24 * GB, .host_nbytes = 64 * GB, .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-1.3b", 512, o);
    const struct tune_offer *best = tune_best(t);
    char *text;
    ck_assert(!tune_is_timed(t));
    ck_assert_int_eq(best->optimizer, CONFIG_OFFLOAD_NONE); /* 21 GB of state fit */
    ck_assert_int_eq(best->params, CONFIG_OFFLOAD_NONE);
    check_order(t);
    ck_ok(tune_table(t, 5, &text));
    ck_assert_ptr_nonnull(strstr(text, "no machine profile"));
    ck_assert_ptr_nonnull(strstr(text, "bytes moved"));
    ck_assert_ptr_nonnull(strstr(text, "more (--all)"));
    free(text);
    tune_destroy(t);
}
END_TEST

/* "it needs 15.08 GiB of GPU memory, 7.63 GiB more than the 8 GB that is given": the second, in
 * bytes; 0 when nothing is reported of that memory. */
static size_t lacking(const struct tune *t, const char *what)
{
    char middle[64], unit[8];
    double more = 0;
    snprintf(middle, sizeof middle, " of %s, ", what);
    const char *at = strstr(tune_missing(t), middle);
    if (!at) return 0;
    ck_assert_int_eq(sscanf(at + strlen(middle), "%lf %7s more than the", &more, unit), 2);
    return (size_t)(more * (double)(strcmp(unit, "GiB") == 0 ? 1 << 30 : 1 << 20));
}

/* What is reported to be missing is what is missing: with it, something fits; with less, nothing.
 */
START_TEST(what_is_missing_is_what_would_do)
{
    struct tune_options o = {.gpu_nbytes = 8 * GB, .host_nbytes = 16 * GB, .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-7b", 512, o);
    ck_assert_ptr_null(tune_best(t));
    ck_assert_uint_gt(tune_n_offers(t), 0);
    check_order(t);
    size_t gpu = lacking(t, "GPU memory"), host = lacking(t, "host memory");
    ck_assert_uint_gt(host, 0);
    ck_assert_ptr_nonnull(strstr(tune_missing(t), "of NVMe (--nvme "));
    tune_destroy(t);
    o.gpu_nbytes += gpu;
    o.host_nbytes += host;
    t = tune_of("gpt2-7b", 512, o);
    ck_assert_ptr_nonnull(tune_best(t));
    ck_assert_str_eq(tune_missing(t), "");
    tune_destroy(t);
    o.host_nbytes -= host / 100;
    t = tune_of("gpt2-7b", 512, o);
    ck_assert_ptr_null(tune_best(t));
    tune_destroy(t);
}
END_TEST

/* Together they hold the states; neither does alone. */
START_TEST(a_gpu_keeps_what_the_host_cannot_hold)
{
    const struct tune_options o = {
        .gpu_nbytes = 140 * GB, .host_nbytes = 100 * GB, .profile = &machine, .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-13b", 512, o);
    const struct tune_offer *best = tune_best(t);
    ck_assert_ptr_nonnull(best);
    check_order(t);
    ck_assert_int_eq(best->stage, 3);
    ck_assert_int_eq(best->optimizer, CONFIG_OFFLOAD_CPU);
    ck_assert(best->ratio > 0 && best->ratio < 1);
    struct cz_plan *p = plan_again(t, best, "gpt2-13b", 512, 1, "cuda");
    ck_assert_uint_eq(p->device_peak_nbytes, best->need_nbytes[TUNE_GPU]);
    ck_assert_uint_eq(p->host_peak_nbytes, best->need_nbytes[TUNE_HOST]);
    ck_assert_uint_le(p->device_peak_nbytes, 140 * GB / 102 * 100);
    ck_assert_uint_le(p->host_peak_nbytes, 100 * GB / 102 * 100);
    cz_plan_destroy(p);
    tune_destroy(t);
}
END_TEST

START_TEST(a_disk_makes_room_for_states)
{
    struct tune_options o = {.gpu_nbytes = 16 * GB,
                             .host_nbytes = 32 * GB,
                             .nvme_nbytes = 200 * GB,
                             .profile = &machine,
                             .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-7b", 512, o);
    const struct tune_offer *best = tune_best(t);
    char *config;
    ck_assert_ptr_nonnull(best);
    ck_assert_int_eq(best->optimizer, CONFIG_OFFLOAD_NVME);
    ck_assert_int_eq(best->stage, 3);
    ck_assert_uint_gt(best->need_nbytes[TUNE_NVME], 0);
    ck_assert_uint_le(best->need_nbytes[TUNE_NVME], 200 * GB);
    ck_ok(tune_config(t, best, &config));
    ck_assert_ptr_nonnull(strstr(config, "\"nvme_path\": \"/mnt/fast\""));
    ck_assert_ptr_nonnull(strstr(config, "\"block_size\": 2097152"));
    ck_assert_ptr_nonnull(strstr(config, "\"queue_depth\": 24"));
    free(config);
    tune_destroy(t);
}
END_TEST

/* A path that is cut off is another path. */
START_TEST(a_long_path_is_kept_whole_or_refused)
{
    char path[PATH_MAX + 100], want[PATH_MAX + 200], *config;
    struct tune_options o = {.gpu_nbytes = 16 * GB,
                             .host_nbytes = 32 * GB,
                             .nvme_nbytes = 200 * GB,
                             .nvme_path = path,
                             .profile = &machine,
                             .dtype = DTYPE_BF16,
                             .world_size = 1,
                             .baseline_nbytes = 16 << 20};
    for (size_t i = 0; i < sizeof path; i++) path[i] = i % 100 == 0 ? '/' : 'x';
    path[1000] = '\0';
    struct tune *t = tune_of("gpt2-7b", 512, o);
    ck_ok(tune_config(t, tune_best(t), &config));
    snprintf(want, sizeof want, "\"nvme_path\": \"%s\"", path);
    ck_assert_ptr_nonnull(strstr(config, want));
    free(config);
    tune_destroy(t);
    path[1000] = '/';
    path[PATH_MAX] = '\0';
    struct cz_model *m = open_shape("gpt2-7b", 512);
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "too long"));
    cz_model_destroy(m);
}
END_TEST

START_TEST(a_cpu_has_nothing_to_offload_to_itself)
{
    const struct tune_options o = {.host_nbytes = 4 * GB, .dtype = DTYPE_F32, .profile = &machine};
    struct tune *t = tune_of("gpt2", 128, o);
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        const struct tune_offer *offer = tune_offer(t, i);
        ck_assert_int_ne(offer->optimizer, CONFIG_OFFLOAD_CPU);
        ck_assert_int_ne(offer->params, CONFIG_OFFLOAD_CPU);
        ck_assert(!offer->cpu_checkpointing);
        ck_assert_uint_eq(offer->need_nbytes[TUNE_GPU], 0);
    }
    const struct tune_offer *best = tune_best(t);
    ck_assert_uint_le(best->need_nbytes[TUNE_HOST], 4 * GB / 102 * 100);
    ck_assert_int_eq(best->checkpoint_every, 0); /* recomputing is slower, and is not needed */
    tune_destroy(t);
}
END_TEST

START_TEST(a_given_batch_is_met)
{
    struct tune_options o = {.world_size = 4,
                             .gpu_nbytes = 24 * GB,
                             .host_nbytes = 256 * GB,
                             .profile = &machine,
                             .dtype = DTYPE_BF16,
                             .batch = 96};
    struct tune *t = tune_of("gpt2-1.3b", 512, o);
    ck_assert_ptr_nonnull(tune_best(t));
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        const struct tune_offer *offer = tune_offer(t, i);
        ck_assert_int_eq(offer->micro_batch * offer->accumulation * 4, 96);
    }
    struct cz_plan *p = plan_again(t, tune_best(t), "gpt2-1.3b", 512, 4, "cuda");
    ck_assert_uint_eq(4 * p->host_peak_nbytes, tune_best(t)->need_nbytes[TUNE_HOST]);
    cz_plan_destroy(p);
    tune_destroy(t);
    o.batch = 0;
    o.micro_batch = 3;
    t = tune_of("gpt2-1.3b", 512, o);
    for (size_t i = 0; i < tune_n_offers(t); i++)
        ck_assert_int_eq(tune_offer(t, i)->micro_batch, 3);
    tune_destroy(t);
}
END_TEST

/* Where the whole model fits at no stage, or only with its states away, an adapter trains as it is;
 * its config plans to what was promised, adapter included. */
START_TEST(an_adapter_fits_where_the_model_does_not)
{
    const struct config_lora lora = {.given = true,
                                     .rank = 16,
                                     .alpha = 32,
                                     .dropout = 0.05,
                                     .targets = "q_proj,v_proj,down_proj",
                                     .layers = "0-15"};
    struct tune_options o = {
        .gpu_nbytes = 24 * GB, .host_nbytes = 32 * GB, .profile = &machine, .dtype = DTYPE_BF16};
    char *config;
    struct tune *t = tune_of("llama-7b", 512, o);
    ck_assert_ptr_null(tune_best(t));
    tune_destroy(t);
    o.lora = &lora;
    t = tune_of("llama-7b", 512, o);
    const struct tune_offer *best = tune_best(t);
    ck_assert_ptr_nonnull(best);
    check_order(t);
    ck_assert_int_eq(best->optimizer, CONFIG_OFFLOAD_NONE);
    ck_assert_int_eq(best->params, CONFIG_OFFLOAD_NONE);
    ck_ok(tune_config(t, best, &config));
    static const char *const parts[] = {
        "\"rank\": 16",         "\"alpha\": 32",
        "\"dropout\": 0.05",    "\"targets\": \"q_proj,v_proj,down_proj\"",
        "\"layers\": \"0-15\"", "\"lr\": 0.0002"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(config, parts[i]) != NULL, "%s is not in %s", parts[i], config);
    ck_assert_ptr_null(strstr(config, "dora"));
    free(config);
    struct cz_plan *p = plan_again(t, best, "llama-7b", 512, 1, "cuda");
    const size_t n_trained = 16 * 16 * (2 * (4096 + 4096) + (11008 + 4096));
    ck_assert_uint_eq(p->numel_trainable, n_trained);
    ck_assert_uint_eq(p->device_peak_nbytes, best->need_nbytes[TUNE_GPU]);
    ck_assert_uint_eq(p->host_peak_nbytes, best->need_nbytes[TUNE_HOST]);
    cz_plan_destroy(p);
    tune_destroy(t);
}
END_TEST

/* The same rows of the same model: without gradients of the weights a third of the products is
 * gone, and nearly all of the update. */
START_TEST(an_adapter_is_predicted_to_be_faster)
{
    const struct config_lora lora = {.given = true, .rank = 8}, wide = {.given = true, .rank = 256},
                             dora = {.given = true, .rank = 8, .dora = true};
    const struct config_lora *const adapters[] = {NULL, &lora, &wide, &dora};
    double seconds[4];
    for (int i = 0; i < 4; i++) {
        const struct tune_options o = {.host_nbytes = 64 * GB,
                                       .profile = &machine,
                                       .dtype = DTYPE_BF16,
                                       .micro_batch = 4,
                                       .batch = 8,
                                       .lora = adapters[i]};
        struct tune *t = tune_of("qwen3-0.6b", 512, o);
        ck_assert_int_eq(tune_best(t)->checkpoint_every, 0);
        seconds[i] = tune_best(t)->seconds;
        tune_destroy(t);
    }
    ck_assert_double_lt(seconds[1], 0.8 * seconds[0]);
    ck_assert_double_gt(seconds[1], 0.6 * seconds[0]);
    ck_assert_double_gt(seconds[2], 1.1 * seconds[1]);
    ck_assert_double_gt(seconds[3], 1.1 * seconds[1]);
}
END_TEST

/* A folder of this preset's, with its weights. */
static void with_weights(const char *preset, char dir[64])
{
    struct cz_model *m = cz_model_open(preset);
    strcpy(dir, "/tmp/czero-tune-weights-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
                       "\"AdamW\", \"params\": {\"lr\": 1e-3}}}"};
    ck_ok(cz_model_set_shape(m, 8));
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_ptr_nonnull(e);
    ck_ok(engine_export_hf(e, dir, DTYPE_F32));
    engine_destroy(e);
}

/* Weights from files are not trained at a rate for random ones, nor a head of classes with the
 * betas of pretraining. */
START_TEST(the_recipe_suits_what_is_trained)
{
    static const char *const labels[] = {"a", "b"};
    const struct cz_model_options classes = {
        .size = sizeof classes, .task = CZ_TASK_CLASSIFICATION, .labels = labels, .n_labels = 2};
    char dir[64], command[96];
    with_weights("gpt2-tiny", dir);
    const struct {
        const char *model;
        const struct cz_model_options *options;
        bool adapts;
        const char *name;
        double lr, beta2, weight_decay;
        int64_t warmup_steps, total_steps;
    } cases[] = {{"gpt2-tiny", NULL, false, "pretraining", 1e-3, 0.95, 0.1, 100, 0},
                 {"gpt2", NULL, false, "pretraining", 3e-4, 0.95, 0.1, 100, 0},
                 {"gpt2-1.3b", NULL, false, "pretraining", 1.2e-4, 0.95, 0.1, 100, 0},
                 {"gpt2-13b", NULL, false, "pretraining", 6e-5, 0.95, 0.1, 100, 0},
                 {"bert-tiny", &classes, false, "pretraining", 1e-3, 0.999, 0.01, 10, TUNE_AUTO},
                 {"gpt2", NULL, true, "an adapter", 2e-4, 0.999, 0, 10, TUNE_AUTO},
                 {dir, NULL, false, "fine-tuning", 2e-5, 0.999, 0.01, 10, TUNE_AUTO},
                 {dir, &classes, false, "fine-tuning", 5e-5, 0.999, 0.01, 10, TUNE_AUTO},
                 {dir, &classes, true, "an adapter", 2e-4, 0.999, 0, 10, TUNE_AUTO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cz_model *m = cases[i].options ? cz_model_open_ex(cases[i].model, cases[i].options)
                                              : cz_model_open(cases[i].model);
        ck_assert_ptr_nonnull(m);
        const struct tune_recipe r = tune_recipe_of(m, cases[i].adapts);
        ck_assert_str_eq(r.name, cases[i].name);
        ck_assert_msg(r.lr == cases[i].lr && r.beta2 == cases[i].beta2 &&
                          r.weight_decay == cases[i].weight_decay,
                      "case %zu: %g %g %g", i, r.lr, r.beta2, r.weight_decay);
        ck_assert_int_eq(r.warmup_steps, cases[i].warmup_steps);
        ck_assert_int_eq(r.total_steps, cases[i].total_steps);
        cz_model_destroy(m);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static char *config_of(const struct tune_options *o)
{
    char *config;
    struct tune *t = tune_of("gpt2-tiny", 16, *o);
    ck_ok(tune_config(t, tune_best(t), &config));
    tune_destroy(t);
    return config;
}

/* A program that fills in no "auto" gets none; given values replace the recipe's. */
START_TEST(a_caller_decides_when_the_rate_falls)
{
    struct tune_options o = {.host_nbytes = GB, .fall = TUNE_FALL_AT_THE_END};
    char *config = config_of(&o);
    ck_assert_ptr_nonnull(strstr(config, "\"total_num_steps\": \"auto\""));
    ck_assert_ptr_nonnull(strstr(config, "\"warmup_max_lr\": \"auto\""));
    ck_assert_ptr_nonnull(strstr(config, "\"warmup_num_steps\": \"auto\""));
    free(config);
    o.fall = TUNE_FALL_WHEN_GIVEN;
    config = config_of(&o);
    ck_assert_ptr_null(strstr(config, "auto"));
    ck_assert_ptr_nonnull(strstr(config, "\"WarmupLR\""));
    ck_assert_ptr_nonnull(strstr(config, "\"warmup_max_lr\": 0.001"));
    free(config);
    o.recipe = (struct tune_recipe){
        .lr = 0.5, .beta2 = 0.25, .weight_decay = 0.125, .warmup_steps = 7, .total_steps = 70};
    config = config_of(&o);
    static const char *const parts[] = {"\"lr\": 0.5",
                                        "0.25\n",
                                        "\"weight_decay\": 0.125",
                                        "\"warmup_num_steps\": 7",
                                        "\"total_num_steps\": 70",
                                        "\"WarmupDecayLR\"",
                                        "\"warmup_max_lr\": 0.5"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(config, parts[i]) != NULL, "%s is not in %s", parts[i], config);
    free(config);
}
END_TEST

/* The first sentence names what fits: all weights, else an adapter with what the rest lacks. */
START_TEST(the_verdict_names_what_fits)
{
    const struct config_lora lora = {.given = true, .rank = 16};
    struct tune_options o = {
        .gpu_nbytes = 24 * GB, .host_nbytes = 32 * GB, .profile = &machine, .dtype = DTYPE_BF16};
    char text[TUNE_VERDICT_NBYTES];
    struct tune *whole = tune_of("llama-7b", 512, o);
    o.lora = &lora;
    struct tune *adapter = tune_of("llama-7b", 512, o);
    tune_verdict(whole, adapter, "--lora rank=16", text, sizeof text);
    ck_assert_msg(strncmp(text, "Fits: an adapter (--lora rank=16): ", 35) == 0, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, " of GPU, "));
    ck_assert_ptr_nonnull(strstr(text, " tokens/s predicted. All weights need "));
    ck_assert_ptr_nonnull(strstr(text, " more host memory, or NVMe (--nvme "));
    tune_verdict(whole, NULL, "", text, sizeof text);
    ck_assert_msg(strncmp(text, "Does not fit: needs ", 20) == 0, "%s", text);
    tune_verdict(adapter, NULL, "", text, sizeof text);
    ck_assert_msg(strncmp(text, "Fits: an adapter: ", 18) == 0, "%s", text);
    tune_destroy(whole);
    tune_destroy(adapter);
    o = (struct tune_options){.host_nbytes = 4 * GB, .profile = &machine, .dtype = DTYPE_F32};
    whole = tune_of("gpt2", 128, o);
    tune_verdict(whole, NULL, "", text, sizeof text);
    ck_assert_msg(strncmp(text, "Fits: all weights: ", 19) == 0, "%s", text);
    ck_assert_ptr_null(strstr(text, "GPU"));
    tune_destroy(whole);
}
END_TEST

/* Tables have the price of a disk in its row, numbers of their own lines in the legend, and no
 * exponents. */
START_TEST(tables_speak_of_their_own_numbers)
{
    const struct tune_options o = {.gpu_nbytes = 16 * GB,
                                   .host_nbytes = 32 * GB,
                                   .nvme_nbytes = 200 * GB,
                                   .nvme_path = "/dev/shm/czero-swap",
                                   .profile = &machine,
                                   .dtype = DTYPE_BF16};
    struct tune *t = tune_of("gpt2-7b", 512, o);
    const struct tune_offer *best = tune_best(t);
    char *text, batch[96];
    ck_ok(tune_table(t, 2, &text));
    const char *row = strstr(text, "\n  1 "), *wear = row ? strstr(row, "writes ") : NULL;
    ck_assert_ptr_nonnull(wear);
    ck_assert_ptr_nonnull(strstr(wear, " per million tokens"));
    ck_assert(memchr(row + 1, '\n', (size_t)(wear - row - 1)) == NULL);
    snprintf(batch, sizeof batch, "micro-batch %d × %d: %d rows at a time", (int)best->micro_batch,
             (int)best->accumulation, (int)best->micro_batch);
    ck_assert_msg(strstr(text, batch) != NULL, "no %s in %s", batch, text);
    ck_assert_ptr_null(strstr(text, "e+"));
    ck_assert_ptr_nonnull(strstr(text, "No GPU has run"));
    ck_assert_ptr_nonnull(strstr(text, "is in memory (tmpfs)"));
    free(text);
    tune_destroy(t);
}
END_TEST

static bool table_says(const struct tune *t, const char *what)
{
    char *text;
    ck_ok(tune_table(t, 3, &text));
    const bool says = strstr(text, what) != NULL;
    free(text);
    return says;
}

/* A desktop's host that is full to the brim is mentioned; one with memory to spare is not. */
START_TEST(a_full_desktop_is_mentioned)
{
    static const char word[] = "A desktop keeps 2 to 4 GiB";
    struct tune_options o = {.host_nbytes = 100 * GB, .profile = &machine, .dtype = DTYPE_F32};
    struct tune *t = tune_of("gpt2-medium", 512, o);
    const size_t need = tune_best(t)->need_nbytes[TUNE_HOST];
    ck_assert(need > 4 * GB && !table_says(t, word));
    ck_assert(table_says(t, " host\n") && !table_says(t, " GPU ") && !table_says(t, "NVMe\n"));
    tune_destroy(t);
    o.host_nbytes = need + GB / 2;
    t = tune_of("gpt2-medium", 512, o);
    ck_assert(table_says(t, word));
    tune_destroy(t);
}
END_TEST

/* Every offer keeps to the rules of what is combined, whatever the machine. */
static void check_kinds(const struct tune *t, const struct tune_options *o)
{
    const bool gpu = o->gpu_nbytes > 0, alone = o->world_size <= 1;
    for (size_t i = 0; i < tune_n_offers(t); i++) {
        const struct tune_offer *x = tune_offer(t, i);
        const bool on_cpu = x->optimizer == CONFIG_OFFLOAD_CPU || x->params == CONFIG_OFFLOAD_CPU,
                   on_disk =
                       x->optimizer == CONFIG_OFFLOAD_NVME || x->params == CONFIG_OFFLOAD_NVME;
        ck_assert(!on_cpu || gpu);
        ck_assert(!on_disk || o->nvme_nbytes > 0);
        ck_assert(!x->gradients || (!gpu && alone && x->optimizer == CONFIG_OFFLOAD_NVME));
        ck_assert(!x->cpu_checkpointing || (gpu && x->checkpoint_every > 0));
        ck_assert(!alone || on_cpu || on_disk || x->stage == 0);
        ck_assert(!alone || x->stage != 1);
        ck_assert(x->params == CONFIG_OFFLOAD_NONE || x->stage == 3);
        ck_assert(x->ratio == 1 || (x->stage == 3 && x->optimizer != CONFIG_OFFLOAD_NONE));
        ck_assert(x->max_in_cpu == 0 || x->params == CONFIG_OFFLOAD_NVME);
    }
}

START_TEST(offers_keep_to_the_rules_of_their_machine)
{
    size_t n_gradients = 0, n_shares = 0, n_kept = 0;
    for (int k = 0; k < 8; k++) {
        const struct tune_options o = {.gpu_nbytes = k & 1 ? 2 * GB : 0,
                                       .host_nbytes = k & 1 ? 2 * GB : 3 * GB,
                                       .nvme_nbytes = k & 2 ? 50 * GB : 0,
                                       .world_size = k & 4 ? 2 : 1,
                                       .profile = &machine,
                                       .dtype = DTYPE_BF16};
        struct tune *t = tune_of("gpt2", 128, o);
        check_order(t);
        check_kinds(t, &o);
        for (size_t i = 0; i < tune_n_offers(t); i++) {
            n_gradients += tune_offer(t, i)->gradients;
            n_shares += tune_offer(t, i)->ratio < 1;
            n_kept += tune_offer(t, i)->max_in_cpu > 0;
        }
        tune_destroy(t);
    }
    ck_assert(n_gradients > 0 && n_shares > 0 && n_kept > 0);
}
END_TEST

/* The disk that a search asks for holds the offer that needs least of one. */
START_TEST(the_smallest_disk_that_would_do_is_named)
{
    struct tune_options o = {
        .gpu_nbytes = 8 * GB, .host_nbytes = 16 * GB, .profile = &machine, .dtype = DTYPE_BF16};
    char text[TUNE_VERDICT_NBYTES], want[64];
    struct tune *t = tune_of("gpt2-7b", 512, o);
    o.nvme_nbytes = SIZE_MAX / 2;
    struct tune *with = tune_of("gpt2-7b", 512, o);
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < tune_n_offers(with); i++) {
        const struct tune_offer *x = tune_offer(with, i);
        if (x->fits && x->need_nbytes[TUNE_NVME] < least) least = x->need_nbytes[TUNE_NVME];
    }
    ck_assert_uint_lt(least, SIZE_MAX);
    ck_assert_uint_eq(t->nvme_would_do >> 30, (least >> 30) + 1);
    ck_assert_uint_eq(t->nvme_would_do % ((size_t)1 << 30), 0);
    snprintf(want, sizeof want, ", or NVMe (--nvme %zuGiB).", (least >> 30) + 1);
    tune_verdict(t, NULL, "", text, sizeof text);
    ck_assert_msg(strstr(text, want) != NULL, "no %s in %s", want, text);
    tune_destroy(with);
    tune_destroy(t);
}
END_TEST

/* Rates that are given count where the profile has measured none of the folders. */
START_TEST(given_rates_stand_for_those_of_unmeasured_disks)
{
    static const struct {
        const char *paths[2];
        size_t n;
        double rate, want;
    } cases[] = {{{"/mnt/other"}, 1, 1e9, 1e9},
                 {{"/mnt/fast"}, 1, 1e9, 6e9},
                 {{"/mnt/other", "/mnt/fast"}, 2, 1e9, 6e9},
                 {{"/mnt/fast", "/mnt/other"}, 2, 1e9, 6e9},
                 {{"/mnt/other", "/mnt/more"}, 2, 1e9, 1e9},
                 {{"/mnt/other"}, 1, 0, 6e9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tune_options o = {.host_nbytes = GB, .profile = &machine, .quick = true};
        o.n_nvme_paths = cases[i].n;
        for (size_t k = 0; k < cases[i].n; k++) {
            o.nvme_paths[k] = cases[i].paths[k];
            o.nvme_rates[k] = cases[i].rate;
        }
        struct tune *t = tune_of("gpt2-tiny", 16, o);
        ck_assert_msg(t->profile.nvme_read == cases[i].want, "case %zu: %g", i,
                      t->profile.nvme_read);
        ck_assert_str_eq(t->nvme_path, cases[i].paths[0]);
        tune_destroy(t);
    }
    struct tune_options o = {.world_size = 1, .host_nbytes = GB, .n_nvme_paths = 2};
    struct cz_model *m = open_shape("gpt2-tiny", 16);
    struct tune *t;
    o.nvme_paths[0] = o.nvme_paths[1] = "/mnt/other";
    o.nvme_rates[1] = 1e9;
    ck_fails(tune_create(&o, m, &t), CZ_INVALID); /* one has no rate */
    cz_model_destroy(m);
}
END_TEST

/* Four digits of a speed; a disk in memory is mentioned where one is offered. */
START_TEST(tables_have_the_speed_of_each_row)
{
    struct tune_options o = {.host_nbytes = 4 * GB,
                             .nvme_path = "/dev/shm/czero-swap",
                             .profile = &machine,
                             .dtype = DTYPE_F32};
    for (int disk = 0; disk < 2; disk++) {
        char *text, number[48], row[64];
        o.nvme_nbytes = disk ? 50 * GB : 0;
        struct tune *t = tune_of("gpt2", 128, o);
        const struct tune_offer *best = tune_best(t);
        ck_ok(tune_table(t, 2, &text));
        snprintf(row, sizeof row, "\n  1 %9s ",
                 size_number(best->tokens_per_s, 4, number, sizeof number));
        ck_assert_msg(strstr(text, row) != NULL, "no%s in %s", row, text);
        ck_assert_int_eq(strstr(text, "is in memory (tmpfs)") != NULL, disk);
        ck_assert_int_eq(strstr(text, ", NVMe 50") != NULL, disk);
        free(text);
        tune_destroy(t);
    }
}
END_TEST

START_TEST(impossible_questions_are_refused)
{
    struct cz_model *m = open_shape("gpt2-tiny", 16);
    struct tune *t;
    struct tune_options o = {.world_size = 2, .host_nbytes = GB, .batch = 5};
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    o.batch = 6;
    o.micro_batch = 2;
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    o.batch = 0;
    o.host_nbytes = 0;
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    o.world_size = 0;
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    const struct config_lora lora = {.given = true, .rank = 8, .targets = "q_prj"};
    o = (struct tune_options){.world_size = 1, .host_nbytes = GB, .lora = &lora};
    ck_fails(tune_create(&o, m, &t), CZ_INVALID);
    ck_assert_ptr_null(t);
    tune_destroy(NULL);
    cz_model_destroy(m);
}
END_TEST

/* What was chosen for a small budget trains inside it: the process's whole resident memory. */
START_TEST(the_chosen_one_trains_inside_its_budget)
{
    const size_t budget = 400 << 20;
    struct tune_options o = {.world_size = 1, .host_nbytes = budget, .dtype = DTYPE_BF16};
    struct cz_model *m = open_shape("gpt2-tiny", 64);
    struct tune *t;
    struct tune_measured measured;
    ck_ok(tune_create(&o, m, &t));
    ck_assert_ptr_nonnull(tune_best(t));
    ck_ok(tune_measure(t, tune_best(t), m, 2, &measured));
    ck_assert_double_gt(measured.seconds, 0);
    ck_assert_uint_gt(measured.peak_nbytes, 0);
#if !defined(__SANITIZE_ADDRESS__)
    ck_assert_uint_le(measured.peak_nbytes, budget);
#endif
    tune_destroy(t);
}
END_TEST

START_TEST(what_needs_a_gpu_cannot_be_measured_here)
{
    setenv("CZERO_CUDA_PLUGIN", "none", 1); /* as where there is none */
    struct tune_options o = {.world_size = 1, .gpu_nbytes = 8 * GB, .host_nbytes = 8 * GB};
    struct tune_measured measured;
    struct cz_model *m = open_shape("gpt2-tiny", 64);
    struct tune *t;
    ck_ok(tune_create(&o, m, &t));
    ck_fails(tune_measure(t, tune_best(t), m, 1, &measured), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "device cuda"));
    tune_destroy(t);
}
END_TEST

TEST_MAIN_SECONDS(180, "engine/tune", every_offer_plans_to_what_was_promised,
                  the_best_fills_the_gpu_before_it_spills, nothing_leaves_a_gpu_with_room,
                  a_gpu_keeps_what_the_host_cannot_hold,
                  without_a_profile_the_order_is_by_bytes_moved, what_is_missing_is_what_would_do,
                  a_disk_makes_room_for_states, a_long_path_is_kept_whole_or_refused,
                  a_cpu_has_nothing_to_offload_to_itself, a_given_batch_is_met,
                  an_adapter_fits_where_the_model_does_not, an_adapter_is_predicted_to_be_faster,
                  the_recipe_suits_what_is_trained, a_caller_decides_when_the_rate_falls,
                  the_verdict_names_what_fits, tables_speak_of_their_own_numbers,
                  a_full_desktop_is_mentioned, offers_keep_to_the_rules_of_their_machine,
                  the_smallest_disk_that_would_do_is_named,
                  given_rates_stand_for_those_of_unmeasured_disks,
                  tables_have_the_speed_of_each_row, impossible_questions_are_refused,
                  the_chosen_one_trains_inside_its_budget, what_needs_a_gpu_cannot_be_measured_here)
