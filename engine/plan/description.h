/* A run as config and model describe it, with its plan: all that is known before memory is
 * allocated. An engine owns a description beside its memory and its counters
 * (engine_impl.h); plans and `tune` make one alone. Ownership: docs/design.md, "An engine's
 * three parts". Not thread-safe. */
#ifndef CZ_ENGINE_PLAN_DESCRIPTION_H
#define CZ_ENGINE_PLAN_DESCRIPTION_H

#include "comm/comm.h"
#include "engine/chain/chain.h"
#include "engine/config/config.h"
#include "engine/plan/plan.h"
#include "zero/zero.h"

/* Rows of the plan, which are also the engine's allocations: first zero's blocks, in its order. */
enum engine_block {
    BLOCK_ACTIVATIONS = ZERO_N_BLOCKS, /* what layers keep from forward to backward */
    BLOCK_GRADIENTS,                   /* of activations */
    BLOCK_WORKSPACE,
    BLOCK_BATCH,      /* a copy of the micro-batch, and the loss */
    BLOCK_BATCH_HOST, /* on a GPU: where batches wait for their copy, and losses for a reader */
    BLOCK_KEPT,       /* on a GPU: inputs of recomputed layers that wait in the host */
    BLOCK_SAVE,       /* what passes from the swap file, or a GPU, into a checkpoint */
    ENGINE_N_BLOCKS
};

struct description {
    /* The caller sets these before description_make(). All are borrowed. */
    const struct plan_request *request; /* only a plan is wanted; NULL: a run */
    const enum plan_order *order;       /* that is to be planned; NULL: it is chosen */
    const int64_t *n_steps;             /* of the run until now; NULL: there is none */

    struct ds_config *config;
    struct machine_profile *profile; /* of czero.machine_profile, or a plan's; NULL: none */
    struct device *device;
    struct dev_stream *stream; /* of the layers; the host's only one */
    struct dev_stream *copies; /* on a GPU: of inputs that wait in the host */
    struct ops *ops;
    struct device *host;    /* the CPU of a run on a GPU; NULL: the device is the CPU */
    struct ops *host_ops;   /* its kernels; NULL likewise */
    struct comm *comm;      /* of the GPUs, once there are several ranks with one */
    struct comm *host_comm; /* what that wraps; NULL: comm is the host's */
    bool owns_comm;
    struct cz_model *model; /* borrowed; an engine's once engine_initialize() has succeeded */
    struct optim_group *groups;
    size_t n_groups;
    size_t *group_of;          /* by parameter */
    struct zero_unit *units;   /* one per layer */
    size_t *tied_params;       /* of the unit that also needs the loss layer's (chain_tied_layer) */
    struct zero_visit *visits; /* of a training pass */
    size_t *grad_numel;        /* by parameter */
    struct chain *chain;
    size_t n_stages; /* micro-batches that go through layers together */
    struct zero *zero;
    uint64_t *frozen_at;         /* by parameter: zero_swap.frozen_at; NULL: none */
    struct swap_source *sources; /* the model's files that it points into */
    size_t n_sources;
    struct cz_plan plan;
    enum cz_dtype dtype, grad_dtype;
    uint64_t seed;
    cz_engine_print print;
    void *print_user;
};

/* Open kernels, read the config, lay out chain and model state, and plan (engine/describe.c). comm
 * NULL: one rank. After an error the description is half-made, and description_free() accepts it.
 * Errors: as engine_initialize_ex(). */
cz_status description_make(struct description *d, const struct cz_engine_options *options,
                           struct comm *comm, struct cz_model *model);

/* Put the adapter on a model; one that has it already, because it was planned for, stays. Errors:
 * as cz_model_add_lora(). */
cz_status description_add_lora(struct cz_model *model, const struct config_lora *lora);

/* Wait for what a GPU or a disk still does, and let go of zero: the memory that it works in may be
 * freed afterwards. */
void description_end_work(struct description *d);

/* Release all of it but the model. Accepts zeroed. */
void description_free(struct description *d);

/* Whether an update may begin before all gradients are there, beside the rest of the backward: no
 * overflow check and no clipping needs all of them first. */
bool description_updates_first(const struct description *d);

/* Whether gradients that are not finite stop the update (bf16.check_grad_overflow false: they do
 * not). */
bool description_checks_overflow(const struct ds_config *c);

/* Whether a step needs the norm of its gradients: it clips, or reports it. */
bool description_needs_norm(const struct description *d);

/* Whether 16-bit parameters may contain changes of a single rank, which masters do not have. */
bool description_rounds_masters(const struct description *d);

/* Whether batches go through the layers without their padding. On a GPU they do not: attention that
 * keeps to documents has no kernel on tensor cores. */
bool description_unpads(const struct description *d);

#endif
