/* Planning before training: will it fit, how long will a step take, which config suits a machine?
 *
 *   cz_plan_create → cz_plan_fits, cz_plan_table, cz_plan_json → cz_plan_destroy
 *   cz_tune_create → cz_tune_best, cz_tune_config → cz_tune_destroy
 *
 * Plans allocate and open nothing; a plan for a GPU works on a laptop. Not thread-safe. */
#ifndef CZERO_PLAN_H
#define CZERO_PLAN_H

#include <czero/engine.h>

CZ_EXTERN_C_BEGIN

/* ---- plan: every byte of a run ------------------------------------------------------------------
 */

enum cz_place { CZ_PLACE_HOST = 0, CZ_PLACE_DEVICE, CZ_PLACE_PINNED, CZ_PLACE_NVME };

struct cz_plan_options {
    size_t size;              /* sizeof(struct cz_plan_options) */
    int64_t world_size;       /* 0 means 1 */
    const char *profile_path; /* a machine profile (`czero bench --profile FILE`), from which times
                                 are predicted; NULL: no times */
};

/* Plan a run of `model` (borrowed) under the options' config, for rank 0 of world_size ranks;
 * options->world is ignored, options->device "cuda" plans for a GPU whether there is one or not.
 * how may be NULL. *out is released by cz_plan_destroy(). Errors: as engine_initialize_ex(), but a
 * plan that does not fit is a result: see cz_plan_check(). */
CZ_API cz_status cz_plan_create(const struct cz_engine_options *options,
                                const struct cz_plan_options *how, struct cz_model *model,
                                struct cz_plan **out);
CZ_API void cz_plan_destroy(struct cz_plan *plan); /* accepts NULL */

/* Peak bytes of one rank in a place. CZ_PLACE_HOST includes the program and pinned memory. */
CZ_API size_t cz_plan_nbytes(const struct cz_plan *plan, enum cz_place place);

/* Bytes that one rank sends to the others in an optimizer step. */
CZ_API size_t cz_plan_sent_nbytes(const struct cz_plan *plan);

/* Predicted seconds of an optimizer step; NAN without a profile or one of its figures. */
CZ_API double cz_plan_step_s(const struct cz_plan *plan);

/* Whether the plan fits into what this machine, its container or this process may still allocate,
 * and the swap file on its disk. */
CZ_API bool cz_plan_fits(const struct cz_plan *plan);

/* CZ_NOMEM, with the table in the sentence, when it does not fit. */
CZ_API cz_status cz_plan_check(const struct cz_plan *plan);

/* A table for people, lines ending in newlines; and one JSON object. *out is the caller's, released
 * by cz_free(). Errors: CZ_NOMEM. */
CZ_API cz_status cz_plan_table(const struct cz_plan *plan, char **out);
CZ_API cz_status cz_plan_json(const struct cz_plan *plan, char **out);

/* ---- tune: which ds_config suits a model and a machine?
 * ------------------------------------------ Searches ZeRO stage, offload of optimizer and
 * parameters, activation checkpointing, bucket sizes and micro-batch by planning each. Offers that
 * fit come first, fastest first; without a profile "fastest" is "moves the fewest bytes per token".
 * Budgets are of the whole host, on which all ranks run, except the GPU's: one each. */

struct cz_tune; /* opaque */

struct cz_tune_options {
    size_t size;              /* sizeof(struct cz_tune_options) */
    int64_t world_size;       /* 0 means 1 */
    size_t gpu_nbytes;        /* memory of each rank's GPU; 0: train on the CPU */
    size_t host_nbytes;       /* > 0 */
    size_t nvme_nbytes;       /* 0: no swap files */
    const char *nvme_path;    /* for the config; NULL: the profile's, or /tmp */
    const char *profile_path; /* NULL: speeds are unknown */
    enum cz_dtype dtype;      /* F32, BF16 or F16 */
    int64_t micro_batch;      /* rows; 0: search */
    int64_t batch; /* rows of an optimizer step over all ranks, met exactly; 0: about 32 per rank,
                      or one micro-batch each where that is given */
    /* The config's learning settings; 0: what suits the model: pretraining of such a size,
     * fine-tuning where it has weights or classes, or an adapter. */
    double lr, beta2, weight_decay;
    int64_t warmup_steps;               /* with total_steps at least 2 */
    int64_t total_steps;                /* the rate falls to zero by then; 0: it stays */
    const struct cz_lora_options *lora; /* train this adapter, the model frozen; NULL: all of it */
};

/* `model` is borrowed for the call, its shape set before; with options->lora it has the adapter
 * afterwards, as configs of the offers do (czero.lora). Errors: CZ_INVALID (no host memory, a batch
 * that no micro-batch divides), CZ_NOMEM, CZ_CORRUPT (profile), those of cz_model_add_lora(). That
 * nothing fits is a result. */
CZ_API cz_status cz_tune_create(const struct cz_tune_options *options, struct cz_model *model,
                                struct cz_tune **out);
CZ_API void cz_tune_destroy(struct cz_tune *t); /* accepts NULL */

/* Offers by rank: those that fit, then those that do not, the nearest first. */
CZ_API size_t cz_tune_n_offers(const struct cz_tune *t);
CZ_API bool cz_tune_offer_fits(const struct cz_tune *t, size_t idx);

/* Predicted tokens per second of an offer; NAN without a profile. */
CZ_API double cz_tune_offer_tokens_per_s(const struct cz_tune *t, size_t idx);

/* Nothing fits: a sentence that says what is missing and by how much; "" when something fits. Owned
 * by `t`. */
CZ_API const char *cz_tune_missing(const struct cz_tune *t);

/* An offer as a ds_config.json that DeepSpeed reads as well; *out is the caller's, released by
 * cz_free(). Errors: CZ_INVALID (idx), CZ_NOMEM. */
CZ_API cz_status cz_tune_config(const struct cz_tune *t, size_t idx, char **out);

/* The first n_max offers as a table for people, and all as one JSON object; *out as above. */
CZ_API cz_status cz_tune_table(const struct cz_tune *t, size_t n_max, char **out);
CZ_API cz_status cz_tune_json(const struct cz_tune *t, char **out);

CZ_EXTERN_C_END
#endif
