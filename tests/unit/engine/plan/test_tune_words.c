/* Claims: given what plans say, offers are ordered by the documented rules, strictly; configs,
 * tables, JSON, reasons and verdicts say exactly what an offer has, in their units. No plan is made
 * here. */
#include "engine/machine/machine.h"
#include "engine/tune/tune_impl.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((size_t)1 << 30)

/* ---- searches without a model ---------------------------------------------------------------- */

static struct tune t;
static struct tune_offer offers[4];
static struct config_lora lora;

/* One rank, a GPU of 24 GiB, a host of 64, a disk of 100; 100 tokens a row. */
static void begin(void)
{
    static const struct machine_profile measured = {
        .nvme_block_nbytes = 2 << 20, .nvme_depth = 24, .cpu = "C", .device = "D"};
    memset(&t, 0, sizeof t);
    memset(offers, 0, sizeof offers);
    t.options = (struct tune_options){.world_size = 1,
                                      .gpu_nbytes = 24 * GIB,
                                      .host_nbytes = 64 * GIB,
                                      .nvme_nbytes = 100 * GIB,
                                      .profile = &measured,
                                      .dtype = DTYPE_BF16};
    t.recipe = (struct tune_recipe){
        .name = "fine-tuning", .lr = 2e-5, .beta2 = 0.999, .warmup_steps = 10, .total_steps = 70};
    strcpy(t.nvme_path, "/mnt/fast");
    strcpy(t.model_name, "m");
    t.T = 100, t.n_layers = 12;
    t.numel = 3000000000, t.numel_trainable = 2000000000, t.largest_numel = 100000000;
    t.offers = offers;
    t.n_offers = CZ_ARRAY_LEN(offers);
    t.n_plans = 77;
    for (size_t i = 0; i < CZ_ARRAY_LEN(offers); i++) {
        offers[i] = (struct tune_offer){.ratio = 1,
                                        .bucket_numel = 5,
                                        .prefetch_numel = 6,
                                        .live_numel = 7,
                                        .micro_batch = 2,
                                        .accumulation = 5,
                                        .fits = true,
                                        .seconds = 10,
                                        .tokens_per_s = 100};
        offers[i].need_nbytes[TUNE_HOST] = 2 * GIB;
    }
}

static void same(const char *have, const char *want)
{
    ck_assert_msg(strcmp(have, want) == 0, "%s\nis not\n%s", have, want);
}

/* ---- order ------------------------------------------------------------------------------------
 */

/* The first is better than the second, and not the other way. */
static void better(const char *why)
{
    ck_assert_msg(tune_is_better(&t, &offers[0], &offers[1]), "%s", why);
    ck_assert_msg(!tune_is_better(&t, &offers[1], &offers[0]), "%s, turned around", why);
    ck_assert(!tune_is_better(&t, &offers[0], &offers[0]));
}

START_TEST(offers_are_ordered_by_the_rules)
{
    struct tune_offer *a = &offers[0], *b = &offers[1];
    struct plan_cost *more = &b->phases[PLAN_STEP];
    begin();
    b->fits = false, b->tokens_per_s = 1000;
    better("what fits");
    begin();
    b->tokens_per_s = 99.9;
    b->phases[0].flops = 1, a->phases[0].nvme_read_nbytes = 1;
    better("what is faster");
    begin();
    b->tokens_per_s = NAN;
    better("what is timed");
    static const size_t ways[] = {offsetof(struct plan_cost, nvme_read_nbytes),
                                  offsetof(struct plan_cost, nvme_written_nbytes),
                                  offsetof(struct plan_cost, to_device_nbytes),
                                  offsetof(struct plan_cost, to_host_nbytes),
                                  offsetof(struct plan_cost, sent_nbytes),
                                  offsetof(struct plan_cost, moved_nbytes),
                                  offsetof(struct plan_cost, weights_nbytes)};
    for (size_t k = 0; k < CZ_ARRAY_LEN(ways); k++) {
        begin();
        a->tokens_per_s = b->tokens_per_s = NAN;
        *(size_t *)((char *)more + ways[k]) = 10000;
        a->need_nbytes[TUNE_HOST]++;
        if (k < 5) a->phases[PLAN_FORWARD].flops = 1e9; /* the slower way counts first */
        if (k < 2) a->phases[PLAN_FORWARD].sent_nbytes = 9000000;
        better("what moves less");
        *(size_t *)((char *)more + ways[k]) = 100; /* less than half a byte per token */
        a->phases[PLAN_FORWARD].flops = 0;
        a->phases[PLAN_FORWARD].sent_nbytes = 0;
        a->need_nbytes[TUNE_HOST] -= 2;
        better("what needs less");
        memset(more, 0, sizeof *more);
        b->phases[PLAN_SAVE].moved_nbytes = 10000000; /* saves are no part of a step */
        a->need_nbytes[TUNE_HOST] += 2;
        ck_assert(!tune_is_better(&t, a, b));
    }
    begin();
    a->tokens_per_s = b->tokens_per_s = NAN;
    b->phases[0].flops = 1e6;
    better("what computes less");
    begin();
    a->tokens_per_s = b->tokens_per_s = NAN;
    a->optimizer = b->optimizer = CONFIG_OFFLOAD_CPU;
    a->ratio = 0.9;
    a->phases[0].flops = 1e6;
    better("what the GPU updates");
    begin();
    a->tokens_per_s = b->tokens_per_s = NAN;
    b->need_nbytes[TUNE_GPU] = 1;
    a->need_nbytes[TUNE_HOST] = 3 * GIB;
    better("what needs less of the GPU");
    begin();
    a->fits = b->fits = false;
    a->need_nbytes[TUNE_HOST] = 70 * GIB, b->need_nbytes[TUNE_HOST] = 71 * GIB;
    better("what is nearer");
    a->need_nbytes[TUNE_HOST] = 80 * GIB, b->need_nbytes[TUNE_GPU] = 40 * GIB;
    b->need_nbytes[TUNE_HOST] = GIB;
    better("what is nearer, in parts of its budget");
    b->need_nbytes[TUNE_HOST] = 80 * GIB;
    a->need_nbytes[TUNE_GPU] = 24 * GIB, b->need_nbytes[TUNE_GPU] = 25 * GIB;
    better("what is as near, and lacks less elsewhere");
}
END_TEST

/* ---- reasons ----------------------------------------------------------------------------------
 */

static void explained(const char *want)
{
    tune_explain(&t, &offers[0], &offers[1]);
    same(offers[1].why, want);
}

static void by_time(double compute, double nvme, double link, double comm, int phase)
{
    offers[1].phases[phase] = (struct plan_cost){.compute_s = compute,
                                                 .nvme_s = nvme,
                                                 .link_s = link,
                                                 .comm_s = comm,
                                                 .total_s = compute + nvme + link + comm};
}

START_TEST(reasons_name_what_takes_longer)
{
    struct tune_offer *best = &offers[0], *o = &offers[1];
    begin();
    tune_explain(&t, best, best);
    same(best->why, "");
    explained("as fast, and needs more");
    by_time(0, 0, 0, 0.01, PLAN_BACKWARD);
    explained("as fast, and needs more"); /* a thousandth of 10 s */
    by_time(0, 0, 0, 0.0101, PLAN_BACKWARD);
    explained("backward takes 0.0101 s longer: it waits for other ranks");
    by_time(0, 0, 0.5, 0.25, PLAN_FORWARD);
    explained("forward takes 0.75 s longer: it waits for copies to and from the GPU");
    by_time(0.25, 1, 0.5, 0.25, PLAN_STEP);
    explained("step takes 2 s longer: it waits for the disk");
    begin();
    by_time(1, 0, 0, 0, PLAN_STEP);
    explained("step takes 1 s longer: it comes more often");
    best->stage = 1;
    explained("step takes 1 s longer: it updates what other ranks update as well");
    o->stage = 1;
    explained("step takes 1 s longer: it comes more often");
    o->optimizer = CONFIG_OFFLOAD_CPU;
    explained("step takes 1 s longer: it is made by the host");
    by_time(1, 0, 0, 0, PLAN_STEP);
    o->accumulation = 10; /* of twice as many rows */
    explained("step takes 0.5 s longer: it is made by the host");
    begin();
    by_time(1, 0, 0, 0, PLAN_FORWARD);
    explained("forward takes 1 s longer: it reads weights for smaller micro-batches");
    best->phases[PLAN_FORWARD].flops = 1000, o->phases[PLAN_FORWARD].flops = 1001;
    explained("forward takes 1 s longer: it reads weights for smaller micro-batches");
    o->phases[PLAN_FORWARD].flops = 1002;
    explained("forward takes 1 s longer: it recomputes layers");
    o->tokens_per_s = NAN;
    explained("the machine profile lacks a figure for it");
}
END_TEST

START_TEST(reasons_name_what_moves_more)
{
    struct tune_offer *best = &offers[0], *o = &offers[1];
    begin();
    best->tokens_per_s = o->tokens_per_s = NAN;
    explained("moves as much, and needs more");
    o->phases[PLAN_STEP].weights_nbytes = 3 << 20;
    explained("moves 3.00 MiB more through memory a step");
    best->phases[PLAN_STEP].flops = 1000;
    o->phases[PLAN_STEP].flops = 1250;
    explained("computes 25 % more");
    o->optimizer = CONFIG_OFFLOAD_CPU;
    explained("the host updates 2000 M more parameters a step");
    o->ratio = 0.25;
    explained("the host updates 500 M more parameters a step");
    best->phases[PLAN_BACKWARD].to_host_nbytes = 1 << 20;
    o->phases[PLAN_STEP].sent_nbytes = 5 << 20;
    explained("moves 4.00 MiB more to and from the GPU and other ranks a step");
    o->phases[PLAN_STEP].nvme_written_nbytes = GIB;
    o->micro_batch = 4; /* of twice as many rows: half as much for each */
    explained("moves 512.00 MiB more over NVMe a step");
}
END_TEST

START_TEST(what_is_missing_is_named_by_budget)
{
    struct tune_offer *o = &offers[1];
    begin();
    o->fits = false;
    o->need_nbytes[TUNE_GPU] = 50 * GIB, o->need_nbytes[TUNE_HOST] = 100 * GIB;
    o->need_nbytes[TUNE_NVME] = 101 * GIB;
    explained("does not fit: needs 27.00 GiB more GPU memory and 38.00 GiB more host memory and "
              "1.00 GiB more NVMe");
    o->need_nbytes[TUNE_GPU] = 0;
    o->need_nbytes[TUNE_NVME] = 100 * GIB;
    explained("does not fit: needs 38.00 GiB more host memory");
    tune_say_missing(&t, o, NULL);
    same(t.missing, "nothing fits. The closest configuration is stage 0, micro-batch 2 × 5; it "
                    "needs 102.00 GiB of host memory, 38.00 GiB more than the 64 GiB that is "
                    "given");
    offers[2].need_nbytes[TUNE_NVME] = 3 * GIB + 1;
    o->need_nbytes[TUNE_GPU] = 24 * GIB;
    tune_say_missing(&t, o, &offers[2]);
    same(t.missing,
         "nothing fits. The closest configuration is stage 0, micro-batch 2 × 5; it needs 24.48 "
         "GiB of GPU memory, 491.52 MiB more than the 24 GiB that is given, and 102.00 GiB of host "
         "memory, 38.00 GiB more than the 64 GiB that is given. With 4 GiB of NVMe (--nvme 4GiB) "
         "stage 0, micro-batch 2 × 5 would fit");
}
END_TEST

/* The margin of 2 % is at least 32 MiB a rank in the host, and none on a disk. */
START_TEST(margins_are_left_free)
{
    static const struct {
        enum tune_budget b;
        int64_t world;
        size_t need, margin;
    } cases[] = {{TUNE_GPU, 1, 50 << 20, 1 << 20},     {TUNE_GPU, 4, 5000, 100},
                 {TUNE_HOST, 1, 50 << 20, 32 << 20},   {TUNE_HOST, 4, 50 << 20, 128 << 20},
                 {TUNE_HOST, 1, 1600 << 20, 32 << 20}, {TUNE_HOST, 1, 1650 << 20, 33 << 20},
                 {TUNE_NVME, 1, (size_t)5000 << 20, 0}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        begin();
        t.options.world_size = cases[i].world;
        ck_assert_uint_eq(tune_margin(&t, cases[i].b, cases[i].need), cases[i].margin);
        size_t *const budgets[] = {&t.options.gpu_nbytes, &t.options.host_nbytes,
                                   &t.options.nvme_nbytes};
        offers[0].need_nbytes[cases[i].b] = cases[i].need;
        for (size_t less = 0; less < 3; less++) {
            *budgets[cases[i].b] = cases[i].need + cases[i].margin - less;
            ck_assert_uint_eq(tune_excess(&t, &offers[0], cases[i].b), less);
        }
        offers[0].need_nbytes[cases[i].b] = 0;
        *budgets[cases[i].b] = 0;
        ck_assert_uint_eq(tune_excess(&t, &offers[0], cases[i].b), 0);
    }
}
END_TEST

START_TEST(offers_are_told_by_what_differs)
{
    char text[192];
    struct tune_offer *o = &offers[0];
    begin();
    same(tune_offer_text(o, text, sizeof text), "stage 0, micro-batch 2 × 5");
    o->stage = 3, o->optimizer = CONFIG_OFFLOAD_NVME, o->params = CONFIG_OFFLOAD_CPU;
    o->ratio = 0.125, o->checkpoint_every = 1, o->micro_batch = 1, o->accumulation = 1;
    same(tune_offer_text(o, text, sizeof text),
         "stage 3, optimizer on NVMe (12.5 %), parameters in the host, layers recomputed, "
         "micro-batch 1 × 1");
    o->gradients = o->cpu_checkpointing = true, o->checkpoint_every = 2;
    o->params = CONFIG_OFFLOAD_NVME, o->max_in_cpu = 7000000;
    same(tune_offer_text(o, text, sizeof text),
         "stage 3, optimizer on NVMe (12.5 %), gradients on NVMe, parameters on NVMe (7 M not), "
         "layers recomputed by 2 from the host, micro-batch 1 × 1");
}
END_TEST

START_TEST(verdicts_have_every_need)
{
    char text[TUNE_VERDICT_NBYTES];
    static struct tune other;
    begin();
    offers[0].need_nbytes[TUNE_GPU] = 3 * GIB, offers[0].need_nbytes[TUNE_NVME] = GIB;
    offers[0].tokens_per_s = 3030;
    same(tune_verdict(&t, NULL, "", text, sizeof text),
         "Fits: all weights: 3.00 GiB of GPU, 2.00 GiB of host memory, 1.00 GiB of NVMe, 3,030 "
         "tokens/s predicted.");
    other = t;
    other.options.gpu_nbytes = other.options.nvme_nbytes = 0;
    other.options.lora = &lora;
    static struct tune_offer fitting;
    fitting = offers[0];
    fitting.need_nbytes[TUNE_NVME] = 0;
    fitting.tokens_per_s = NAN;
    other.offers = &fitting;
    same(tune_verdict(&other, NULL, "", text, sizeof text),
         "Fits: an adapter: 2.00 GiB of host memory.");
    offers[0].fits = false;
    offers[0].need_nbytes[TUNE_HOST] = 100 * GIB, offers[0].need_nbytes[TUNE_GPU] = 50 * GIB;
    t.nvme_would_do = 76 * GIB;
    same(tune_verdict(&t, &other, "--lora rank=8", text, sizeof text),
         "Fits: an adapter (--lora rank=8): 2.00 GiB of host memory. All weights need 27.00 GiB "
         "more GPU memory and 38.00 GiB more host memory, or NVMe (--nvme 76GiB).");
    t.nvme_would_do = 0;
    fitting.fits = false;
    same(tune_verdict(&t, &other, "", text, sizeof text),
         "Does not fit: needs 27.00 GiB more GPU memory and 38.00 GiB more host memory.");
    t.options.lora = &lora;
    same(tune_verdict(&t, NULL, "", text, sizeof text),
         "Does not fit: an adapter needs 27.00 GiB more GPU memory and 38.00 GiB more host "
         "memory.");
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------
 */

static void config_is(const char *want)
{
    char *text;
    ck_ok(tune_config(&t, &offers[0], &text));
    same(text, want);
    free(text);
}

#define LEARNS                                                                                     \
    "  \"optimizer\": {\n    \"type\": \"AdamW\",\n    \"params\": {\n      \"lr\": 2e-05,\n"      \
    "      \"betas\": [\n        0.9,\n        0.999\n      ],\n      \"eps\": 1e-08,\n"           \
    "      \"weight_decay\": 0.0\n    }\n  },\n"                                                   \
    "  \"scheduler\": {\n    \"type\": \"WarmupDecayLR\",\n    \"params\": {\n"                    \
    "      \"total_num_steps\": 70,\n      \"warmup_min_lr\": 0.0,\n"                              \
    "      \"warmup_max_lr\": 2e-05,\n      \"warmup_num_steps\": 10,\n"                           \
    "      \"warmup_type\": \"linear\"\n    }\n  },\n"

START_TEST(configs_say_what_is_offered)
{
    struct tune_offer *o = &offers[0];
    begin();
    t.options.dtype = DTYPE_F32;
    strcpy(t.profile_path, "/m.json"); /* says nothing without a disk */
    config_is("{\n  \"train_micro_batch_size_per_gpu\": 2,\n"
              "  \"gradient_accumulation_steps\": 5,\n  \"gradient_clipping\": 1.0,\n" LEARNS
              "  \"zero_optimization\": {\n    \"stage\": 0\n  }\n}\n");
    begin();
    o->stage = 1;
    o->checkpoint_every = 1;
    o->optimizer = CONFIG_OFFLOAD_CPU;
    t.options.dtype = DTYPE_F16;
    config_is("{\n  \"train_micro_batch_size_per_gpu\": 2,\n"
              "  \"gradient_accumulation_steps\": 5,\n  \"gradient_clipping\": 1.0,\n" LEARNS
              "  \"fp16\": {\n    \"enabled\": true\n  },\n"
              "  \"zero_optimization\": {\n    \"stage\": 1,\n    \"overlap_comm\": true,\n"
              "    \"reduce_bucket_size\": 5,\n    \"offload_optimizer\": {\n"
              "      \"device\": \"cpu\",\n      \"pin_memory\": true\n    }\n  },\n"
              "  \"activation_checkpointing\": {\n    \"cpu_checkpointing\": false\n  },\n"
              "  \"czero\": {\n    \"activation_checkpointing\": {\n      \"every\": 1\n    }\n"
              "  }\n}\n");
    begin();
    lora = (struct config_lora){
        .rank = 8, .alpha = 16, .dropout = 0.5, .targets = "q", .layers = "0-1", .dora = true};
    o->stage = 3, o->optimizer = o->params = CONFIG_OFFLOAD_NVME, o->ratio = 0.5;
    o->gradients = o->cpu_checkpointing = true, o->checkpoint_every = 4, o->max_in_cpu = 9;
    t.options.gpu_nbytes = 0;
    t.options.profile = NULL;
    t.options.lora = &lora;
    t.options.n_nvme_paths = 2, t.options.nvme_rates[0] = 1, t.options.nvme_rates[1] = 2;
    t.largest_numel++;
    strcpy(t.nvme_paths[0], "/a"), strcpy(t.nvme_paths[1], "/b");
    strcpy(t.profile_path, "/m.json");
    config_is(
        "{\n  \"train_micro_batch_size_per_gpu\": 2,\n"
        "  \"gradient_accumulation_steps\": 5,\n  \"gradient_clipping\": 1.0,\n" LEARNS
        "  \"bf16\": {\n    \"enabled\": true\n  },\n"
        "  \"zero_optimization\": {\n    \"stage\": 3,\n    \"overlap_comm\": true,\n"
        "    \"reduce_bucket_size\": 5,\n    \"sub_group_size\": 100000000,\n"
        "    \"stage3_prefetch_bucket_size\": 6,\n    \"stage3_max_live_parameters\": 7,\n"
        "    \"stage3_max_reuse_distance\": 7,\n"
        "    \"stage3_gather_16bit_weights_on_model_save\": true,\n"
        "    \"offload_optimizer\": {\n      \"device\": \"nvme\",\n"
        "      \"nvme_path\": \"/mnt/fast\",\n      \"pipeline_read\": true,\n"
        "      \"pipeline_write\": true,\n      \"pin_memory\": false,\n      \"ratio\": 0.5\n"
        "    },\n    \"offload_param\": {\n      \"device\": \"nvme\",\n"
        "      \"nvme_path\": \"/mnt/fast\",\n      \"buffer_size\": 100000001,\n"
        "      \"max_in_cpu\": 9,\n      \"pin_memory\": false\n    }\n  },\n"
        "  \"aio\": {\n    \"block_size\": 1048576,\n    \"queue_depth\": 16\n  },\n"
        "  \"activation_checkpointing\": {\n    \"cpu_checkpointing\": true\n  },\n"
        "  \"czero\": {\n    \"lora\": {\n      \"rank\": 8,\n      \"alpha\": 16.0,\n"
        "      \"targets\": \"q\",\n      \"layers\": \"0-1\",\n      \"dropout\": 0.5,\n"
        "      \"dora\": true\n    },\n    \"activation_checkpointing\": {\n"
        "      \"every\": 4\n    },\n    \"offload_gradients\": true,\n    \"nvme_paths\": [\n"
        "      \"/a\",\n      \"/b\"\n    ],\n    \"nvme_rates\": [\n      1.0,\n      2.0\n    "
        "],\n"
        "    \"machine_profile\": \"/m.json\"\n  }\n}\n");
}
END_TEST

static void json_has(const char *json, const char *what)
{
    ck_assert_msg(strstr(json, what) != NULL, "no %s in %s", what, json);
}

START_TEST(json_has_every_figure)
{
    struct tune_offer *o = &offers[0];
    char *text;
    begin();
    t.n_offers = 1;
    strcpy(t.missing, "x");
    o->stage = 3, o->optimizer = CONFIG_OFFLOAD_NVME, o->params = CONFIG_OFFLOAD_CPU;
    o->ratio = 0.5, o->max_in_cpu = 9, o->checkpoint_every = 4;
    o->need_nbytes[TUNE_GPU] = 11, o->need_nbytes[TUNE_HOST] = 12, o->need_nbytes[TUNE_NVME] = 13;
    o->phases[PLAN_STEP].nvme_written_nbytes = 5000;
    strcpy(o->why, "y");
    ck_ok(tune_json(&t, "v", &text));
    static const char *const parts[] = {"{\n  \"verdict\": \"v\",\n  \"model\": \"m\",\n",
                                        "\"parameters\": 3000000000,",
                                        "\"trained_parameters\": 2000000000,",
                                        "\"seq_len\": 100,",
                                        "\"world_size\": 1,",
                                        "\"dtype\": \"bf16\",",
                                        "\"gpu_memory_bytes\": 25769803776,",
                                        "\"host_memory_bytes\": 68719476736,",
                                        "\n  \"nvme_bytes\": 107374182400,",
                                        "\"ordered_by\": \"time\",",
                                        "\"fits\": true,\n  \"missing\": \"x\",",
                                        "\"plans\": 77,",
                                        "\"configuration\": \"stage 3, optimizer on NVMe (50.0 %)",
                                        "\"zero_stage\": 3,",
                                        "\"offload_optimizer\": \"nvme\",",
                                        "\"offload_gradients\": false,",
                                        "\"ratio\": 0.5,",
                                        "\"offload_param\": \"cpu\",",
                                        "\"max_in_cpu\": 9,",
                                        "\"checkpoint_every\": 4,",
                                        "\"cpu_checkpointing\": false,",
                                        "\"micro_batch\": 2,",
                                        "\"gradient_accumulation_steps\": 5,",
                                        "\"gpu_bytes\": 11,",
                                        "\"host_bytes\": 12,",
                                        "\"nvme_bytes\": 13,",
                                        "\"step_seconds\": 10.0,",
                                        "\"tokens_per_second\": 100.0,",
                                        "\"nvme_written_bytes_per_million_tokens\": 5000000.0,",
                                        "\"why_not\": \"y\""};
    for (size_t i = 0; i < CZ_ARRAY_LEN(parts); i++) json_has(text, parts[i]);
    free(text);
    o->tokens_per_s = o->seconds = NAN;
    o->fits = false;
    ck_ok(tune_json(&t, "v", &text));
    json_has(text, "\"tokens_per_second\": null");
    json_has(text, "\"ordered_by\": \"bytes moved\"");
    json_has(text, "\"fits\": false,\n  \"missing\"");
    free(text);
}
END_TEST

/* The lines behind the heads, which other tests read. */
static void table_is(size_t n, const char *want)
{
    char *text;
    ck_ok(tune_table(&t, n, &text));
    const char *rows = strstr(text, "  #");
    ck_assert_ptr_nonnull(rows);
    same(rows, want);
    free(text);
}

START_TEST(tables_have_a_row_for_each_offer)
{
    begin();
    t.options.nvme_nbytes = 0;
    offers[0].need_nbytes[TUNE_GPU] = 3 * GIB;
    offers[0].stage = 1, offers[0].checkpoint_every = 2, offers[0].micro_batch = 1;
    offers[1].tokens_per_s = 12345.6;
    offers[1].optimizer = CONFIG_OFFLOAD_CPU, offers[1].ratio = 0.25;
    offers[2].tokens_per_s = NAN;
    offers[2].cpu_checkpointing = true, offers[2].params = CONFIG_OFFLOAD_NVME;
    offers[2].max_in_cpu = 5000000;
    offers[3].fits = false;
    table_is(
        1, "  #  tokens/s         GPU        host\n"
           "  1       100    3.00 GiB    2.00 GiB  stage 1, layers recomputed by 2, micro-batch 1 "
           "× 5\n"
           "and 3 more (--all)\n"
           "Sizes are peaks. micro-batch 1 × 5: 1 row at a time, 5 times an optimizer step.\n"
           "stage 1 on one rank divides nothing; in DeepSpeed's configs it goes with offloading.\n"
           "layers recomputed by 2: of 2 layers only the first input is kept, and the backward "
           "pass computes the rest again.\n");
    table_is(
        3, "  #  tokens/s         GPU        host\n"
           "  1       100    3.00 GiB    2.00 GiB  stage 1, layers recomputed by 2, micro-batch 1 "
           "× 5\n"
           "  2    12,350           -    2.00 GiB  stage 0, optimizer in the host (25.0 %), "
           "micro-batch 2 × 5\n"
           "  3         ?           -    2.00 GiB  stage 0, parameters on NVMe (5 M not) from the "
           "host, micro-batch 2 × 5\n"
           "and 1 more (--all)\n"
           "Sizes are peaks. micro-batch 1 × 5: 1 row at a time, 5 times an optimizer step.\n"
           "stage 1 on one rank divides nothing; in DeepSpeed's configs it goes with offloading.\n"
           "(25.0 %): that part of the optimizer's states; the rest stays in faster memory.\n"
           "parameters on NVMe (5 M not): so many stay in host memory.\n"
           "layers recomputed by 2: of 2 layers only the first input is kept, and the backward "
           "pass computes the rest again.\n"
           "from the host: these inputs wait in host memory.\n");
    t.options.gpu_nbytes = 0;
    t.options.nvme_nbytes = 100 * GIB;
    offers[0].need_nbytes[TUNE_NVME] = GIB;
    offers[0].stage = 0, offers[0].accumulation = 1;
    strcpy(t.nvme_path, "/mnt/fast");
    table_is(4, "  #  tokens/s        host        NVMe\n"
                "  1       100    2.00 GiB    1.00 GiB  stage 0, layers recomputed by 2, "
                "micro-batch 1 × 1\n"
                "  2    12,350    2.00 GiB           -  stage 0, optimizer in the host (25.0 %), "
                "micro-batch 2 × 5\n"
                "  3         ?    2.00 GiB           -  stage 0, parameters on NVMe (5 M not) from "
                "the host, micro-batch 2 × 5\n"
                "  4         -    2.00 GiB           -  stage 0, micro-batch 2 × 5\n"
                "Sizes are peaks. micro-batch 1 × 1: 1 row at a time, 1 time an optimizer step.\n"
                "(25.0 %): that part of the optimizer's states; the rest stays in faster memory.\n"
                "parameters on NVMe (5 M not): so many stay in host memory.\n"
                "layers recomputed by 2: of 2 layers only the first input is kept, and the "
                "backward pass computes the rest again.\n"
                "from the host: these inputs wait in host memory.\n");
}
END_TEST

TEST_MAIN("engine/tune_words", offers_are_ordered_by_the_rules, reasons_name_what_takes_longer,
          reasons_name_what_moves_more, what_is_missing_is_named_by_budget, margins_are_left_free,
          offers_are_told_by_what_differs, verdicts_have_every_need, configs_say_what_is_offered,
          json_has_every_figure, tables_have_a_row_for_each_offer)
