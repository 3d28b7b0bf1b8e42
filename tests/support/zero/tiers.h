/* Where optimizer states and parameters are kept, for tests of what must not depend on it: legs
 * (resume_trial.h) over the product of tiers. */
#ifndef CZ_TESTS_TIERS_H
#define CZ_TESTS_TIERS_H

#include "tests/support/resume_trial.h"

enum tier { TIER_NONE = 0, TIER_CPU, TIER_NVME, TIER_COUNT };

static const char *const tier_names[] = {"none", "cpu", "nvme"};

struct tiers {
    enum tier optimizer, params;
};

static const struct tiers tiers_none = {TIER_NONE, TIER_NONE};

/* A run but for its tiers. */
struct tier_run {
    int stage, world, gas;
    const char *dtype, *optimizer; /* members of the config */
    const char *freeze;
    bool two_groups;
    bool unclipped; /* and in buckets of a layer: an update may begin with those that have come */
    const char *order; /* czero.accumulation_order; NULL: "auto" */
    int turn; /* varies what must not matter: tiles, blocks, read-ahead, what stays in memory */
    const char *late; /* czero.late_update; NULL: as the turn says */
    bool pinned;      /* pin_memory: a GPU's copies are not waited for where they begin */
};

/* max_in_cpu: nothing, some, all of gpt2-tiny's parameters stay in memory
 * once they were read. */
static inline int tiers_in_memory(const struct tier_run *run)
{
    static const int in_memory[] = {0, 20000, 0, 1000000};
    return in_memory[run->turn % 4];
}

/* In half of the runs gradients follow the optimizer, where there is one rank. */
static inline bool tiers_gradients(const struct tier_run *run)
{
    return (run->turn + 3) % 4 < 2;
}

/* Whether there is anything to swap: in fp32 parameters are their own masters, and plain SGD has no
 * states; its gradients may go all the same. */
static inline bool tiers_swap(const struct tier_run *run, struct tiers t)
{
    bool has_none = !(tiers_gradients(run) && run->world == 1) &&
                    strstr(run->dtype, "fp16\": {\"enabled\": false") &&
                    strstr(run->optimizer, "SGD") && !strstr(run->optimizer, "momentum");
    return (t.optimizer == TIER_NVME && !has_none) || t.params == TIER_NVME;
}

/* "offload_optimizer": …, "offload_param": … ratio counts at stage 3 only, as in DeepSpeed. */
static inline void tiers_json(char *out, size_t nbytes, const struct tier_run *run, struct tiers t,
                              const char *swap_dir)
{
    snprintf(out, nbytes,
             "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\", "
             "\"ratio\": %s, \"pipeline_read\": %s, \"pipeline_write\": %s, \"pin_memory\": %s}, "
             "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\", "
             "\"max_in_cpu\": %d, \"pin_memory\": %s}",
             tier_names[t.optimizer], swap_dir,
             run->stage == 3 && run->turn % 3 == 1 ? "0.4" : "1.0",
             run->turn % 2 ? "true" : "false", run->turn % 4 < 2 ? "true" : "false",
             run->pinned ? "true" : "false", tier_names[t.params], swap_dir, tiers_in_memory(run),
             run->pinned ? "true" : "false");
}

/* Small sub-groups, windows, tiles and blocks, little resident: as much as can moves. */
static inline void tiers_configure(struct leg *leg, const struct tier_run *run, struct tiers t,
                                   const char *swap_dir)
{
    char offload[768];
    tiers_json(offload, sizeof offload, run, t, swap_dir);
    leg->freeze = run->freeze;
    leg->two_groups = run->two_groups;
    snprintf(leg->swap_dir, sizeof leg->swap_dir, "%s", swap_dir);
    snprintf(leg->config, sizeof leg->config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": %s, %s, \"zero_allow_untested_optimizer\": true, "
             "\"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 5000, "
             "\"reduce_bucket_size\": %d, "
             "\"stage3_param_persistence_threshold\": 100, \"stage3_prefetch_bucket_size\": 9000, "
             "\"stage3_max_live_parameters\": 60000, \"stage3_max_reuse_distance\": 1000, %s}, "
             "\"aio\": {\"block_size\": %d, \"queue_depth\": %d}, "
             "\"czero\": {\"tile_numel\": 4096, \"offload_checksums\": %s, "
             "\"late_update\": %s, \"offload_gradients\": %s, \"accumulation_order\": \"%s\"}, "
             "\"optimizer\": {%s}, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
             "{\"total_num_steps\": 60, \"warmup_num_steps\": 5, \"warmup_max_lr\": 0.003}}}",
             run->gas, run->unclipped ? "0.0" : "0.5", run->dtype, run->stage,
             run->unclipped ? 20000 : 500000000, offload, run->turn % 3 ? 4096 : 1 << 20,
             1 + run->turn % 5, run->turn % 2 ? "true" : "false",
             run->late       ? run->late
             : run->turn % 3 ? "true"
                             : "false",
             tiers_gradients(run) ? "true" : "false", run->order ? run->order : "auto",
             run->optimizer);
}

/* What a run is called in a failure. */
static inline const char *tiers_describe(const struct tier_run *run, struct tiers t)
{
    static char text[512];
    snprintf(text, sizeof text,
             "stage %d, %d ranks, optimizer on %s, parameters on %s, %s, %s, "
             "accumulation %d",
             run->stage, run->world, tier_names[t.optimizer], tier_names[t.params], run->dtype,
             run->optimizer, run->gas);
    return text;
}

/* Nothing of the swap is left, neither the file nor a folder that was made for it. */
static inline void tiers_expect_gone(const char *swap_dir, const char *what)
{
    ck_assert_msg(access(swap_dir, F_OK) != 0, "%s stays after a run: %s", swap_dir, what);
}

static const char *const tier_optimizers[] = {
    "\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}",
    "\"type\": \"Lion\", \"params\": {\"lr\": 0.0003, \"weight_decay\": 0.1}",
    "\"type\": \"Adagrad\", \"params\": {\"lr\": 0.01}",
    "\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9}",
    "\"type\": \"SGD\", \"params\": {\"lr\": 0.1}", /* no states */
};

/* Two passes over the tiles, with norms of whole tensors between them. */
static const char tier_lamb[] =
    "\"type\": \"Lamb\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}";

/* States that begin as something else than 0. */
static const char tier_adagrad[] =
    "\"type\": \"Adagrad\", \"params\": {\"lr\": 0.01, \"initial_accumulator_value\": 0.5}";

#endif
