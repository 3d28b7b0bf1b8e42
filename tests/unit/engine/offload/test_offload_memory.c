/* Claims: with optimizer states and parameters on the host or on NVMe, peak resident memory is what
 * was planned within max(2 %, 32 MiB), on the way through several steps; page-locked memory is what
 * was planned within 1 %, none without pin_memory; what NVMe takes is gone from memory. */
#include "tests/support/mlock.h"
#include "tests/support/peak.h"
#include "tests/support/zero/tiers.h"

/* 25 million parameters: each 16-bit copy is 50 MB, each state 100 MB. */
static const char model_json[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 256, "
    "\"n_positions\": 32, \"n_embd\": 512, \"n_layer\": 8, \"n_head\": 8, \"attn_pdrop\": 0.0, "
    "\"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0}";

static const char *root;

static const char *model_folder(void)
{
    static char dir[160], path[192];
    snprintf(dir, sizeof dir, "%s/model", root);
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_assert_int_eq(mkdir(dir, 0777), 0);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(model_json, f);
    fclose(f);
    return dir;
}

struct memory_case {
    int stage;
    const char *dtype;
    struct tiers tiers;
    bool pin, gradients; /* page-locked; gradients too */
};

static struct peak run_case(const struct memory_case *c)
{
    char config[2048];
    const char *pin = c->pin ? "true" : "false";
    root = test_tmp_make();
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, %s, \"gradient_clipping\": 1.0, "
             "\"czero\": {\"tile_numel\": 262144, \"offload_gradients\": %s}, "
             "\"zero_optimization\": {\"stage\": %d, "
             "\"stage3_max_live_parameters\": 7000000, \"stage3_max_reuse_distance\": 0, "
             "\"stage3_prefetch_bucket_size\": 3500000, "
             "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s/swap\", "
             "\"pin_memory\": %s, \"pipeline_read\": true, \"pipeline_write\": true}, "
             "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s/swap\", "
             "\"max_in_cpu\": 0, \"pin_memory\": %s}}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}}",
             c->dtype, c->gradients ? "true" : "false", c->stage, tier_names[c->tiers.optimizer],
             root, pin, tier_names[c->tiers.params], root, pin);
    struct peak p = peak_of_run(model_folder(), config, 32, 2);
    test_tmp_remove(root);
    return p;
}

static void check_case(struct memory_case c)
{
    struct peak p = run_case(&c);
    double planned = (double)p.planned / 1048576, measured = (double)p.measured / 1048576;
    double pinned = (double)p.planned_pinned / 1048576, locked = (double)p.locked / 1048576;
    printf("stage %d optimizer %-4s parameters %-4s %s: planned %6.1f MiB, measured %6.1f; "
           "pinned %5.1f, locked %5.1f; NVMe %5.1f\n",
           c.stage, tier_names[c.tiers.optimizer], tier_names[c.tiers.params],
           c.pin ? "pinned" : "", planned, measured, pinned, locked,
           (double)p.planned_nvme / 1048576);
    ck_assert_double_le(fabs(planned - measured), fmax(0.02 * planned, 32));
    ck_assert_double_le(locked, 1.01 * pinned);
    if (mlock_is_real()) ck_assert_double_ge(locked, 0.99 * pinned);
    if (!c.pin) ck_assert_double_eq(locked, 0);
    ck_assert((p.planned_nvme > 0) ==
              (c.tiers.optimizer == TIER_NVME || c.tiers.params == TIER_NVME));
}

#define BF16 "\"bf16\": {\"enabled\": true}"
#define FP32 "\"fp16\": {\"enabled\": false}"

#define CASE(name, stage, dtype, optimizer, params, pin)                                           \
    START_TEST(name)                                                                               \
    {                                                                                              \
        check_case((struct memory_case){stage, dtype, {optimizer, params}, pin});                  \
    }                                                                                              \
    END_TEST

CASE(none, 2, BF16, TIER_NONE, TIER_NONE, false)
CASE(optimizer_on_the_host, 2, BF16, TIER_CPU, TIER_NONE, false)
CASE(optimizer_on_the_host_pinned, 2, BF16, TIER_CPU, TIER_NONE, true)
CASE(both_on_the_host_pinned, 3, BF16, TIER_CPU, TIER_CPU, true)
CASE(optimizer_on_nvme, 2, BF16, TIER_NVME, TIER_NONE, false)
CASE(optimizer_on_nvme_pinned, 0, BF16, TIER_NVME, TIER_NONE, true)
CASE(optimizer_on_nvme_in_fp32, 1, FP32, TIER_NVME, TIER_NONE, false)
CASE(parameters_on_nvme, 3, BF16, TIER_NONE, TIER_NVME, false)
CASE(parameters_on_nvme_below_stage_3, 1, BF16, TIER_CPU, TIER_NVME, true)
CASE(both_on_nvme, 3, BF16, TIER_NVME, TIER_NVME, true)
CASE(both_on_nvme_in_fp32, 3, FP32, TIER_NVME, TIER_NVME, false)

START_TEST(gradients_on_nvme_too)
{
    check_case((struct memory_case){3, BF16, {TIER_NVME, TIER_NVME}, true, .gradients = true});
    check_case((struct memory_case){1, FP32, {TIER_NVME, TIER_NONE}, false, .gradients = true});
}
END_TEST

/* Masters and both moments, 12 bytes a parameter, and then the parameters' 2; less a window of
 * layers and buffers for one layer's tiles. */
START_TEST(what_nvme_takes_is_gone_from_memory)
{
    size_t numel = 25367552, slack = (size_t)80 << 20;
    struct peak host = run_case(&(struct memory_case){3, BF16, {TIER_CPU, TIER_CPU}, false});
    struct peak swap = run_case(&(struct memory_case){3, BF16, {TIER_NVME, TIER_NVME}, false});
    ck_assert_uint_ge(swap.planned_nvme, 14 * numel * 99 / 100);
    ck_assert_uint_le(swap.planned + 14 * numel, host.planned + slack);
}
END_TEST

TEST_MAIN("engine/offload_memory", none, optimizer_on_the_host, optimizer_on_the_host_pinned,
          both_on_the_host_pinned, optimizer_on_nvme, optimizer_on_nvme_pinned,
          optimizer_on_nvme_in_fp32, parameters_on_nvme, parameters_on_nvme_below_stage_3,
          both_on_nvme, both_on_nvme_in_fp32, gradients_on_nvme_too,
          what_nvme_takes_is_gone_from_memory)
