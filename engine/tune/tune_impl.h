/* The inside of a search. */
#ifndef CZ_ENGINE_TUNE_TUNE_IMPL_H
#define CZ_ENGINE_TUNE_TUNE_IMPL_H

#include "engine/machine/machine.h"
#include "engine/tune/tune.h"

#include <limits.h>

/* What a config of the search says of an offer, and what its plan said: schemes share many. */
struct tune_memo {
    struct tune_key {
        int stage, optimizer, params;
        bool gradients, cpu_checkpointing, both_orders;
        double ratio;
        int64_t max_in_cpu, checkpoint_every, bucket_numel, prefetch_numel, live_numel;
        int64_t micro_batch, accumulation;
    } key;
    struct tune_offer offer;
    struct tune_memo *next;
};
#define TUNE_N_MEMOS 1024

struct tune {
    struct tune_options options;
    struct machine_profile profile; /* options.profile, kept */
    char nvme_path[PATH_MAX];
    char nvme_paths[CONFIG_NVME_PATHS_MAX][PATH_MAX];
    char profile_path[PATH_MAX]; /* absolute; "": none */
    struct config_lora lora;     /* options.lora, kept */
    char *lora_texts[3];         /* its texts; owned */
    struct tune_recipe recipe;
    char model_name[64];
    int64_t T;
    size_t n_layers, numel, numel_trainable, largest_numel; /* of the model's parameters */
    struct tune_offer *offers;                              /* by rank, once the search is over */
    size_t n_offers, capacity;
    size_t n_plans;      /* how many were made */
    struct device *host; /* with its kernels, for all plans */
    struct ops *host_ops;
    struct tune_memo **memos;       /* (TUNE_N_MEMOS) lists by a hash of the key */
    size_t n_tried, n_combinations; /* of the search, for its progress */
    size_t nvme_would_do;           /* bytes of NVMe with which something would fit; 0: none */
    char missing[512];
};

/* tune_config.c: the recipe that the options ask for. */
void tune_keep_recipe(struct tune *t, const struct cz_model *model);

/* ---- tune_plan.c: one offer's plan ---------------------------------------------------------- */

/* Fill in what the plan of an offer says: needs, costs, whether it fits. */
cz_status tune_plan(struct tune *t, struct cz_model *model, struct tune_offer *o);

void tune_forget(struct tune *t); /* the plans that were made */

size_t tune_budget_nbytes(const struct tune *t, enum tune_budget b);

/* What a need must leave free of a budget, because plans are good to 2 % or 32 MiB a rank. */
size_t tune_margin(const struct tune *t, enum tune_budget b, size_t need_nbytes);

/* Bytes beyond the budget; 0: fits. */
size_t tune_excess(const struct tune *t, const struct tune_offer *o, enum tune_budget b);

/* ---- tune_order.c: which is better, and why ------------------------------------------------- */

bool tune_is_better(const struct tune *t, const struct tune_offer *a, const struct tune_offer *b);
void tune_explain(const struct tune *t, const struct tune_offer *best, struct tune_offer *o);
void tune_say_missing(struct tune *t, const struct tune_offer *nearest,
                      const struct tune_offer *with_nvme);

/* Rows of an optimizer step over all ranks. */
static inline int64_t tune_rows(const struct tune *t, const struct tune_offer *o)
{
    return o->micro_batch * o->accumulation * t->options.world_size;
}

#endif
