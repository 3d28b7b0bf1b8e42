/* The memory plan: every byte of a run, before any of it is allocated (docs/memory.md).
 *
 * Life cycle: plan_create() → cz_plan_table() / cz_plan_json() → cz_plan_destroy(); or
 * engine_get_plan() of a running engine, which allocates exactly these rows. Not thread-safe. */
#ifndef CZ_ENGINE_PLAN_PLAN_H
#define CZ_ENGINE_PLAN_PLAN_H

#include "base/dtype.h"
#include "engine/chain/chain.h"
#include "engine/engine.h"
#include "offload/swap.h"

#include <czero/plan.h>

#include <limits.h>
#include <stdio.h>

CZ_EXTERN_C_BEGIN

struct machine_profile; /* engine/machine/machine.h */

enum plan_place { PLAN_HOST = 0, PLAN_DEVICE, PLAN_PINNED, PLAN_NVME };
#define PLAN_N_PLACES 4

/* How a step's micro-batches go through the model. */
enum plan_order { PLAN_BY_MICRO_BATCH = 0, PLAN_BY_LAYER };
#define PLAN_N_ORDERS 2

/* What becomes of what layers save beside their inputs, of the layers of a kind. */
struct plan_saved {
    size_t n_layers;
    /* With a profile: seconds of recomputing all of them, and those by which waiting in the swap
     * file would be longer than what it is hidden behind (INFINITY: there is no file or rate). */
    double redo_s, swap_s;
};

/* What one rank moves in a step. */
struct plan_traffic {
    bool is_known;
    size_t nvme_read_nbytes, nvme_written_nbytes, to_device_nbytes, to_host_nbytes, sent_nbytes;
};

#define PLAN_ROWS_MAX 48

struct plan_row {
    const char *name; /* "master weights" */
    enum plan_place place;
    size_t nbytes; /* as allocated, gaps included; rows of a place follow each other */
    char how[112]; /* what it is made of */
};

/* What happens, one after the other, in a training step; a save comes when it is asked for. */
enum plan_phase { PLAN_FORWARD = 0, PLAN_BACKWARD, PLAN_STEP, PLAN_SAVE };
#define PLAN_N_PHASES 4

/* What a phase costs one rank: the forward and the backward of all micro-batches of one optimizer
 * step, its update, and one checkpoint. Memory is allocated once, before the first step, so the
 * peak is the sum of all rows in every phase; `in_use` is the phase's working set: the rows that it
 * touches, and the program. */
struct plan_cost {
    size_t in_use_nbytes[PLAN_N_PLACES];
    size_t nvme_read_nbytes, nvme_written_nbytes; /* of the swap file */
    size_t to_device_nbytes, to_host_nbytes;      /* between host memory and the device */
    size_t sent_nbytes;                           /* to the other ranks */
    size_t saved_nbytes;                          /* into the files of a checkpoint */
    size_t moved_nbytes;   /* through the memory of the device that computes, by all but matrix
                              products */
    size_t weights_nbytes; /* and by those: weights read, their gradients written */
    double flops;          /* of matrix products; a multiply-add is 2 */

    /* Seconds by what they are spent on, and how long the phase takes, given what overlaps
     * (docs/memory.md). NAN: the plan has no profile, or a figure that it needs is not in there. */
    double compute_s, nvme_s, link_s, comm_s, total_s;
};

/* What DeepSpeed's estimators of memory say: see plan_estimate_deepspeed(). */
struct plan_estimate {
    double gpu_nbytes, host_nbytes;
};

struct cz_plan {
    struct plan_row rows[PLAN_ROWS_MAX];
    size_t n_rows;
    size_t baseline_nbytes; /* program and libraries: measured in this process */
    size_t comm_nbytes;     /* slots between the ranks of a host, as if all of them shared one */

    /* Per rank. host_peak includes the baseline and pinned memory. */
    size_t host_peak_nbytes, device_peak_nbytes, pinned_nbytes, nvme_nbytes;
    size_t in_place_nbytes;      /* frozen parameters that are read from the model's files */
    size_t sent_nbytes_per_step; /* by one rank to the others, per optimizer step (docs/zero.md) */
    size_t sent_nbytes_frozen;   /* 1-bit family: by a compressed step (docs/one_bit.md), else 0 */
    size_t n_collectives_per_step;
    size_t live_numel_max; /* stage 3: most parameters whole in memory at any time */
    size_t fetched_numel;  /* a GPU's: parameters that a training pass brings from host or NVMe */
    struct plan_cost phases[PLAN_N_PHASES];
    double step_s;            /* forward, backward and step; NAN: see plan_cost */
    double beside_s;          /* of the step, what runs beside the backward: not in step_s */
    char assumed[160];        /* where unmeasured rates come from, in words; "": nowhere */
    const char *missing_rate; /* what the profile lacks for it, in words; NULL: nothing */

    /* What the plan is for. */
    char model_name[64];
    size_t numel, numel_trainable;
    int stage;
    enum cz_dtype dtype;
    bool on_cuda; /* planned for a GPU: some sizes are assumed (docs/memory.md) */
    bool optimizer_away, params_away; /* a GPU's: they rest in host memory or on NVMe */
    int64_t world_size, B, T, accumulation;
    int64_t t_limit;          /* what the sequence length was bounded to: cz_model_t_max() */
    int64_t checkpoint_every; /* 0: no activation checkpointing */
    enum plan_order order;
    char order_why[160];   /* of accumulation > 1; "": there is one micro-batch */
    bool activations_away; /* PLAN_BY_LAYER: inputs of layers wait in the swap file */
    struct plan_saved saved[CHAIN_N_SAVED]; /* PLAN_BY_LAYER: by enum chain_saved, the loss layer
                                               aside */
    char saved_why[160];
    /* PLAN_BY_LAYER: chain_put_off_nbytes(), of a tied vocabulary, and chain_packed_nbytes(); 0:
     * there is nothing to keep. */
    size_t put_off_nbytes, packed_nbytes;
    bool keeps_put_off, keeps_packed;
    struct plan_traffic
        traffic[PLAN_N_ORDERS]; /* by order; the other's: plan_request.both_orders */

    size_t unpinned_nbytes;   /* what pin_memory asks for and RLIMIT_MEMLOCK does not allow */
    char nvme_path[PATH_MAX]; /* where the swap file goes; "": there is none */
    char nvme_stripes[1024];  /* folders and their shares, of several; "": one */
    char nvme_warning[SWAP_WARNING_NBYTES]; /* swap_warn_of_memory() */
    size_t nvme_free_nbytes;   /* limit of the swap files of this host's ranks, for one of them;
                                  SIZE_MAX: unknown */
    size_t host_free_nbytes;   /* what may still be allocated here: memory, cgroup and rlimits */
    const char *host_limit;    /* which of them binds: "available memory", … */
    size_t device_free_nbytes; /* of the GPU, before the run; SIZE_MAX: unknown */
    size_t gpu_given_nbytes,
        host_given_nbytes;          /* of plan_request, for all ranks; 0: this machine */
    struct plan_estimate deepspeed; /* its estimators' answer; 0: a run on the CPU, or
                                       none */
};

/* Plan a run of `model` (borrowed) under options' config, for rank 0 of world_size ≥ 1 ranks.
 * options->world is ignored. *out is the caller's. Errors as engine_initialize_ex(), but a plan
 * that does not fit is a result: see cz_plan_check(). */
cz_status plan_create(const struct cz_engine_options *options, int64_t world_size,
                      struct cz_model *model, struct cz_plan **out);

/* How to plan. */
struct plan_request {
    int64_t world_size; /* ≥ 1 */
    /* Times are predicted from it, and unless it is assumed it stands for the config's
     * czero.machine_profile; NULL: that one, or no times are predicted. */
    const struct machine_profile *profile;
    size_t baseline_nbytes; /* of the program, measured before; 0: measure this process. Given, the
                               plan does not look at this machine: host_free_nbytes is SIZE_MAX */
    /* A machine elsewhere, which decides whether the plan fits; 0: this one. */
    size_t gpu_nbytes;        /* of each rank's GPU, driver and libraries included */
    size_t host_nbytes;       /* of the host, for all ranks, the programs included */
    size_t order_host_nbytes; /* where that is not given: of the host, for all ranks, when it is
                                 decided how micro-batches go through the model; 0: unlimited */
    bool both_orders;         /* fill the traffic of the order that was not chosen, too */
    /* The CPU and its kernels, which many plans share; borrowed. NULL: opened for this one. */
    struct device *host;
    struct ops *host_ops;
};

/* The same, with times. options->device "cuda" plans a run on a GPU, whether there is one or not;
 * sizes that only the GPU knows are assumed. */
cz_status plan_create_ex(const struct cz_engine_options *options,
                         const struct plan_request *request, struct cz_model *model,
                         struct cz_plan **out);

/* ---- beside the plan ------------------------------------------------------------------------- */

/* Operations of matrix products of one optimizer step of one rank, recomputing included. */
double plan_step_flops(const struct cz_plan *plan);

/* A sentence when a step takes over a minute at 60 Gflop/s per core of this host, or 500 Tflop/s on
 * a GPU, so that a user need not wait to find out; "" when not. Into buf, of at least 200 bytes;
 * returns it. */
const char *plan_slow_step(const struct cz_plan *plan, char *buf, size_t nbytes);

/* The tokens per row that plans take when none are given: the model's context, at most 2048. */
int64_t plan_usual_tokens(const struct cz_model *model);

/* What DeepSpeed's estimators of memory say (0.19; estimate_zero2_model_states_mem_needs and
 * estimate_zero3_model_states_mem_needs with zero_init): bytes of each GPU and of the host, on one
 * host. They know mixed precision and Adam only, and count model states: no activations, buckets or
 * CUDA context; host memory is taken 1.5 times. */
/* `stage` 0 and 1 are answered as 2. False: they have no answer (parameters offloaded without the
 * optimizer, or below stage 3). */
bool plan_estimate_deepspeed(const struct cz_model *model, int stage, bool optimizer_away,
                             bool params_away, int64_t world_size, struct plan_estimate *out);

/* Bytes that a rank writes to NVMe per million of its tokens, in steps of so many; 0: none. */
double plan_wear_nbytes(const struct plan_cost *phases, int64_t n_tokens);

/* "writes 1.2 TB per million tokens" of the same; "": none. Into buf, of at least PLAN_WEAR_NBYTES;
 * returns it. */
#define PLAN_WEAR_NBYTES 80
const char *plan_wear(const struct plan_cost *phases, int64_t n_tokens, char *buf, size_t n);

/* cz_plan_table(), or without `all` what fits a screen: rows from 1 % of the peak on, totals, what
 * fits, and times. */
cz_status plan_table(const struct cz_plan *plan, bool all, char **out);

/* Printed in every table that has figures of a GPU. */
extern const char plan_gpu_status[];

/* What becomes of what layers save, with the reason: nothing where micro-batches go one after the
 * other. */
void plan_print_saved(FILE *f, const struct plan_saved *saved, const char *why);
struct json_writer;
void plan_write_saved(struct json_writer *w, const struct plan_saved *saved, const char *why);
void plan_write_traffic(struct json_writer *w, const struct plan_traffic *traffic);

/* Which order the micro-batches take, why, and the traffic of both as far as it is known. */
struct plan_orders {
    int64_t accumulation;
    enum plan_order order;
    const char *why;
    const struct plan_traffic *traffic; /* (PLAN_N_ORDERS) */
};
void plan_print_orders(FILE *f, const struct plan_orders *o);

const char *plan_order_name(enum plan_order order); /* "layers": czero.accumulation_order */
const char *plan_phase_name(enum plan_phase phase); /* "forward" */
const char *plan_place_name(enum plan_place place); /* "host" */

/* Whether a row is touched in a phase. */
bool plan_row_in_phase(const struct plan_row *row, enum plan_phase phase);

CZ_EXTERN_C_END
#endif
