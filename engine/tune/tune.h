/* tune: which ds_config a model and a machine want.
 *
 * Searches stage × offload_optimizer (and its ratio) × offload_param × activation checkpointing ×
 * cpu_checkpointing × bucket sizes × micro-batch, by planning each; nothing is allocated or opened.
 * Offers that fit come first, fastest first. Without a machine profile "fastest" is "moves the
 * fewest bytes per token": over NVMe first, then to and from the GPU and other ranks, then
 * operations and bytes in memory.
 *
 * A budget is of the whole host, on which all ranks are taken to run, except the GPU's: one each.
 *
 * Life cycle: tune_create() → tune_offer() / tune_table() / tune_json() / tune_config() →
 * tune_destroy(). Not thread-safe. */
#ifndef CZ_ENGINE_TUNE_TUNE_H
#define CZ_ENGINE_TUNE_TUNE_H

#include "engine/config/config.h"
#include "engine/plan/plan.h"

CZ_EXTERN_C_BEGIN

/* What the config says about learning. */
struct tune_recipe {
    const char *name; /* "fine-tuning", in words */
    double lr, beta2, weight_decay;
    int64_t warmup_steps; /* with total_steps at least 2; TUNE_AUTO: a share of the run */
    int64_t total_steps;  /* the rate falls to zero until then; TUNE_AUTO: to the end of the run;
                             0: it stays after the warm-up */
};
#define TUNE_AUTO (-1) /* the run fills it in */

/* When the rate falls to zero. AT_THE_END: the run fills in the warm-up, too. */
enum tune_fall { TUNE_FALL_BY_RECIPE = 0, TUNE_FALL_AT_THE_END, TUNE_FALL_WHEN_GIVEN };

/* What suits the model as it is: weights from files take small steps, random weights larger ones
 * that depend on the model's size, adapters 2e-4. */
struct tune_recipe tune_recipe_of(const struct cz_model *model, bool adapts);

struct tune_options {
    int64_t world_size;    /* ≥ 1 */
    size_t gpu_nbytes;     /* of each rank's GPU; 0: train on the CPU */
    size_t host_nbytes;    /* > 0 */
    size_t nvme_nbytes;    /* 0: no swap files */
    const char *nvme_path; /* what the config names; NULL: the profile's or /tmp */
    const char *nvme_paths[CONFIG_NVME_PATHS_MAX]; /* several, instead: on disks that share it */
    double nvme_rates[CONFIG_NVME_PATHS_MAX];      /* bytes per second; all 0: they are alike */
    size_t n_nvme_paths;
    const struct machine_profile *profile; /* NULL: nothing is known about speed */
    const char *profile_path;              /* its file, which the config names; NULL: none */
    enum cz_dtype dtype;                   /* F32, BF16 or F16 */
    int64_t micro_batch;                   /* rows; 0: search */
    int64_t batch;          /* rows of an optimizer step, over all ranks; 0: about 32 a rank, or one
                               micro-batch each where that is given. Given, it is met exactly */
    size_t baseline_nbytes; /* of the program; 0: measure this process */
    struct tune_recipe recipe; /* instead of tune_recipe_of()'s values where they are not 0 */
    enum tune_fall fall;       /* WHEN_GIVEN: by recipe.total_steps, else never: for callers that
                                  fill in no "auto" */
    const struct config_lora *lora; /* train this adapter, the model frozen; NULL: all of it */
    /* Called now and then while searching: plans made, combinations tried and to be tried, tokens
     * per second of the best so far (NAN: none, or unknown). NULL: not called. */
    void (*progress)(void *user, size_t n_plans, size_t n_tried, size_t n_all, double best);
    void *progress_user;
    bool quick; /* a good answer in a tenth of the time: the first scheme with something that fits
                   ends the search, and no disk is asked about */
};

/* Where memory comes from. */
enum tune_budget { TUNE_GPU = 0, TUNE_HOST, TUNE_NVME };
#define TUNE_N_BUDGETS 3

/* One configuration, and what its plan says. */
struct tune_offer {
    int stage;
    enum config_offload_device optimizer, params;
    bool gradients;     /* follow the optimizer to NVMe (czero.offload_gradients) */
    double ratio;       /* of offload_optimizer: 1 leaves nothing behind */
    int64_t max_in_cpu; /* of offload_param on NVMe: elements that stay in host memory */
    int64_t checkpoint_every;
    bool cpu_checkpointing;
    int64_t bucket_numel, prefetch_numel, live_numel;
    int64_t micro_batch, accumulation;

    bool fits;
    size_t need_nbytes[TUNE_N_BUDGETS]; /* of the GPU; of the host and its NVMe, over all ranks */
    double tokens_per_s;                /* NAN: no profile, or a figure is not in there */
    double seconds;                     /* of an optimizer step; NAN likewise */
    struct plan_cost phases[PLAN_N_PHASES]; /* of one rank and optimizer step */
    enum plan_order order;                  /* of its micro-batches, and why */
    char order_why[160];
    struct plan_traffic traffic[PLAN_N_ORDERS]; /* of the best offer in both orders */
    struct plan_saved saved[CHAIN_N_SAVED];     /* and what becomes of what layers save */
    char saved_why[160];
    bool both_orders;
    char why[200]; /* why it is not the best; "" for the best */
};

struct tune; /* opaque */

/* `model` is borrowed for the call; its shape is set. With options->lora it has the adapter
 * afterwards. Errors: CZ_INVALID (no host memory, a batch that no micro-batch divides), CZ_NOMEM,
 * those of cz_model_add_lora(); that nothing fits is a result: tune_best() is NULL. */
cz_status tune_create(const struct tune_options *options, struct cz_model *model,
                      struct tune **out);
void tune_destroy(struct tune *t); /* accepts NULL */

/* Offers by rank: those that fit, then those that do not, the nearest first. The best of each
 * combination of stage, offload and checkpointing. */
size_t tune_n_offers(const struct tune *t);
const struct tune_offer *tune_offer(const struct tune *t, size_t idx);
const struct tune_offer *tune_best(const struct tune *t); /* NULL: nothing fits */

/* What configs say about learning. */
const struct tune_recipe *tune_recipe(const struct tune *t);

/* "stage 3, optimizer on NVMe, recomputing every layer, micro-batch 4 × 8" into buf, of at least
 * 192 bytes; returns it. */
const char *tune_offer_text(const struct tune_offer *offer, char *buf, size_t buf_nbytes);

/* Whether offers are ordered by time (true) or by bytes moved. */
bool tune_is_timed(const struct tune *t);

/* Nothing fits: a sentence that says what is missing and by how much. Owned by the tune. */
const char *tune_missing(const struct tune *t);

/* The answer in a sentence or two: what fits, its memory and speed, and what the rest lacks.
 * `adapter` (may be NULL): a search for an adapter of the same model, described by `lora` in
 * words; it is the answer where not all weights fit. Into buf, of at least TUNE_VERDICT_NBYTES;
 * returns it. */
#define TUNE_VERDICT_NBYTES 512
const char *tune_verdict(const struct tune *t, const struct tune *adapter, const char *lora,
                         char *buf, size_t buf_nbytes);

/* An offer as a ds_config.json that DeepSpeed reads as well; *out is the caller's, by free(). */
cz_status tune_config(const struct tune *t, const struct tune_offer *offer, char **out);

/* The same into a file, whole or not at all. Errors: CZ_IO. */
cz_status tune_config_save(const struct tune *t, const struct tune_offer *offer, const char *path);

/* The first n_max offers as a table for people, and all as one JSON object, with the verdict. */
cz_status tune_table(const struct tune *t, size_t n_max, char **out);
cz_status tune_json(const struct tune *t, const char *verdict, char **out);

/* ---- the proof ------------------------------------------------------------------------------- */

struct tune_measured {
    double seconds;     /* of an optimizer step: the fastest of n_steps after the first */
    size_t peak_nbytes; /* resident high-water mark of the process meanwhile */
};

/* Really train `n_steps` ≥ 1 steps of random tokens (and one before; fewer, but at least one, when
 * they take over 30 s) as the offer says, on the
 * host. The model is used up: it is the engine's, or destroyed.
 * Errors: CZ_UNSUPPORTED (planned for several ranks, or for a GPU and there is none), CZ_NOMEM
 * (does not fit here now). */
cz_status tune_measure(const struct tune *t, const struct tune_offer *offer, struct cz_model *model,
                       int n_steps, struct tune_measured *out);

CZ_EXTERN_C_END
#endif
