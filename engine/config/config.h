/* The DeepSpeed config: what a ds_config.json resolves to, and what czero makes of it.
 *
 * Life cycle: config_load() reads a file the way DeepSpeed 0.19.8's parser does (same values, same
 * refusals) and fills the typed view below; config_check() refuses what only DeepSpeed's engine
 * refuses and what czero does not do; config_free() when done. config_json() prints the resolved
 * config; the notes say what has no effect here, what is unknown, what config_check() would refuse.
 *
 * The typed fields are meant for code that runs after config_check() accepted the config: raw keys
 * that DeepSpeed's parser does not look at ("gradient_clipping": "abc") load without error, are
 * shown as given, and are refused by config_check().
 *
 * A config is immutable after loading, so threads may share it. */
#ifndef CZ_ENGINE_CONFIG_CONFIG_H
#define CZ_ENGINE_CONFIG_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "optim/optim.h"
#include "optim/schedule.h"

CZ_EXTERN_C_BEGIN

/* Defaults of which DeepSpeed: 0.19 (clipping 1.0 when the key is absent, pin_memory true, …) or
 * 0.16 (clipping 0, pin_memory false, removed sections accepted when they are off). */
enum config_compat { CONFIG_COMPAT_0_19 = 0, CONFIG_COMPAT_0_16 = 1 };

struct config_options {
    int64_t world_size;       /* data-parallel ranks, ≥ 1; 0 means 1 */
    const char *const *autos; /* "NAME=VALUE": fill a key whose value is "auto"; VALUE is JSON, a
                                 bare word is a string; NAME is a dotted path, or "hidden_size" */
    size_t n_autos;
    bool strict_autos; /* one that finds no "auto" is an error, with the nearest that there is */
    const char *const *wanted; /* "NAME=VALUE", what options of a command ask for (--lr): fill
                                  "auto" and what the file leaves out; a file that says something
                                  else is an error that names both. NAME may be "warmup_ratio" */
    size_t n_wanted;
    bool trainer; /* fill what is left "auto", and add an optimizer and a schedule to a file without
                     one, as Hugging Face's Trainer does (docs/compatibility.md, "Configs of
                     trainers"); with `strict` nothing is added unless `wanted` asks for it */
    int64_t hidden_size, total_steps; /* for that: of the model and the run; 0: unknown */
    const char *const *sets;          /* "path=value": override or add any key before parsing */
    size_t n_sets;
    bool strict; /* unknown top-level keys are errors instead of notes */
    bool on_gpu; /* the run is on a GPU: for what notes say; nothing else depends on it */
    enum config_compat compat;
};

/* total_steps of a config that is looked at before its run is known: schedules are complete, and
 * say so instead of a number. */
#define CONFIG_ANY_STEPS INT32_MAX

/* Options with world size 1 and compat taken from the environment variable CZERO_COMPAT
 * ("0.16" or "0.19"; anything else, and unset, is 0.19). */
struct config_options config_options_default(void);

/* ---- what a config says --------------------------------------------------------------------- */

/* The optimizer section, read by the optim module's tables: names, types, ranges and defaults are
 * those of the class that DeepSpeed would build, offload included. */
struct config_optimizer {
    const char *type; /* as resolved: "adam", "adamw", "OneBitAdam", "SGD", …; NULL: no optimizer */
    bool usable;      /* `hyper` is set; false: none in the file, or config_check() refuses it */
    struct optim_hyper hyper;
};

/* The scheduler section, the same way. */
struct config_scheduler {
    const char *type; /* NULL: no schedule */
    bool usable;
    struct schedule_params params;
};

struct config_fp16 {
    bool enabled;
    bool auto_cast;
    double loss_scale;           /* 0: dynamic */
    int64_t initial_scale_power; /* 16; the first scale is 2^power */
    int64_t loss_scale_window;
    int64_t hysteresis;
    bool consecutive_hysteresis;
    int64_t min_loss_scale;
    bool scaler_given; /* one of the five dynamic settings is in the file (matters to 0.16) */
    bool fp16_master_weights_and_grads;
};

struct config_bf16 {
    bool enabled;
    bool immediate_grad_update;
    bool check_grad_overflow;
    bool bf16_master_weights_and_grads;
    bool bf16_optimizer_states;
};

enum config_offload_device { CONFIG_OFFLOAD_NONE = 0, CONFIG_OFFLOAD_CPU, CONFIG_OFFLOAD_NVME };

struct config_offload_param {
    bool given; /* the section is present (device may still be none) */
    enum config_offload_device device;
    const char *nvme_path; /* NULL when absent */
    int64_t buffer_count;
    int64_t buffer_size; /* elements */
    int64_t max_in_cpu;  /* elements; 0 when the file does not say */
    bool pin_memory;
};

struct config_offload_optimizer {
    bool given;
    enum config_offload_device device;
    const char *nvme_path;
    int64_t buffer_count;
    bool pin_memory;
    bool pipeline_read, pipeline_write; /* true when the file does not say */
    bool fast_init;
    double ratio;
};

/* Sizes are in elements. Integers beyond int64 are clamped to INT64_MAX (config_json() keeps them).
 */
struct config_zero {
    int stage; /* 0…3 */
    bool contiguous_gradients;
    bool reduce_scatter;
    int64_t reduce_bucket_size;
    bool use_multi_rank_bucket_allreduce;
    int64_t allgather_bucket_size;
    bool overlap_comm; /* resolved: true iff stage 3 when not given */
    bool compute_grad_norm;
    bool load_from_fp32_weights;
    bool elastic_checkpoint;
    struct config_offload_param offload_param;
    struct config_offload_optimizer offload_optimizer;
    int64_t sub_group_size;
    int64_t prefetch_bucket_size; /* with max_live_parameters: -1, when parameters are on NVMe and
                                     the file does not say: chosen from the model; the first also
                                     when states are there that are updated at first use */
    int64_t param_persistence_threshold;
    int64_t model_persistence_threshold;
    int64_t max_live_parameters;
    int64_t max_reuse_distance;
    bool gather_16bit_weights_on_model_save;
    bool allgather_sequential;
    bool ignore_unused_parameters;
    bool round_robin_gradients;
    bool parameter_alignment;
    bool pipeline_loading_checkpoint;
    bool log_trace_cache_warnings;
    bool enable_sanity_checks;
};

struct config_aio {
    int64_t block_size; /* bytes */
    int64_t queue_depth;
    int64_t intra_op_parallelism;
    bool single_submit;
    bool overlap_events;
};

struct config_activation_checkpointing {
    bool partition_activations;
    bool cpu_checkpointing;
    bool contiguous_memory_optimization;
    int64_t number_checkpoints; /* 0: not given */
    bool synchronize_checkpoint_boundary;
    bool profile;
};

struct config_monitor { /* csv_monitor, tensorboard */
    bool enabled;
    const char *output_path; /* "" : the current folder */
    const char *job_name;
};

struct config_flops_profiler {
    bool enabled;
    int64_t profile_step;
    int64_t module_depth; /* -1: all */
    int64_t top_modules;
    bool detailed;
    const char *output_file; /* NULL: stdout */
    double recompute_fwd_factor;
};

struct config_comms_logger {
    bool enabled; /* false is off, though DeepSpeed would log all the same */
    bool verbose;
    bool prof_all;
    bool debug;
    const char *const *prof_ops;
    size_t n_prof_ops;
};

enum config_tag_validation { CONFIG_TAG_WARN = 0, CONFIG_TAG_IGNORE, CONFIG_TAG_FAIL };

struct config_checkpoint {
    enum config_tag_validation tag_validation;
    bool load_universal;
    bool use_node_local_storage;
    bool parallel_write_pipeline_stage;
};

#define CONFIG_LORA_RANK 8 /* the default */

/* An adapter instead of the whole model, as struct cz_lora_options has it. */
struct config_lora {
    bool given; /* the section is present */
    int64_t rank;
    double alpha, dropout; /* alpha 0: the rank */
    bool rslora, dora;
    const char *targets, *layers, *modules_to_save; /* NULL: all, all, none */
};

#define CONFIG_NVME_PATHS_MAX 8

/* Our own settings: the top-level key "czero", which DeepSpeed ignores. */
enum config_accumulation_order {
    CONFIG_ORDER_AUTO = 0,
    CONFIG_ORDER_MICRO_BATCHES,
    CONFIG_ORDER_LAYERS
};

struct config_czero {
    struct config_lora lora;
    int64_t activation_checkpointing_every; /* recompute every n-th group of layers; 0: off */
    bool async_save;                        /* write checkpoints in the background; true */
    bool offload_gradients;                 /* gradients follow the optimizer to NVMe (one rank) */
    const char *nvme_paths[CONFIG_NVME_PATHS_MAX]; /* folders of the swap file, instead of one */
    double nvme_rates[CONFIG_NVME_PATHS_MAX];      /* how fast they are, relative to each other */
    size_t n_nvme_paths, n_nvme_rates;             /* 0: nvme_path; they are alike */
    const char *machine_profile;                   /* file; NULL: none */
    int64_t activation_memory;                     /* bytes, by layer; 0: half of the free memory */
    bool late_update;       /* with NVMe or a GPU: in the next forward, layer by layer */
    bool offload_checksums; /* compare what comes back from the swap file */
    bool frozen_in_place; /* beside an adapter, frozen ones on NVMe are read from the model's files
                           */
    int64_t tile_numel;   /* elements per step of the sweep; 0: chosen */
    int64_t max_consecutive_skips; /* stop after so many overflow skips in a row; 50 */
    bool tf32;                     /* fp32 products on a GPU in TF32 */
    bool keep_all_activations;     /* what backward could cheaply make again, too */
    enum config_accumulation_order accumulation_order;
    bool offload_activations; /* inputs of layers wait in the swap file; by layer only */
};

enum config_log_level {
    CONFIG_LOG_DEFAULT = 0, /* not given */
    CONFIG_LOG_DEBUG,
    CONFIG_LOG_INFO,
    CONFIG_LOG_WARNING,
    CONFIG_LOG_ERROR,
    CONFIG_LOG_CRITICAL
};

struct config_impl;

struct ds_config {
    enum config_compat compat;
    int64_t world_size;

    /* The batch triangle, resolved: train = micro · accumulation · world. */
    int64_t train_batch_size;
    int64_t train_micro_batch_size_per_gpu;
    int64_t gradient_accumulation_steps;
    bool managed_gradient_accumulation;

    double gradient_clipping; /* ≤ 0: off */
    bool gradient_clipping_given;
    bool prescale_gradients;
    double gradient_predivide_factor;
    bool gradient_allreduce_sum;       /* "gradient_allreduce_op": "sum" */
    enum cz_dtype model_dtype;         /* from fp16.enabled and bf16.enabled */
    enum cz_dtype communication_dtype; /* given, or the model's */
    enum cz_dtype grad_accum_dtype;    /* data_types.grad_accum_dtype, or the model's */
    bool grad_accum_dtype_given;
    enum cz_dtype master_dtype; /* F32, or the model's: *_master_weights_and_grads */
    enum cz_dtype state_dtype;  /* F32, or the masters': bf16_optimizer_states, and under offload
                                fp32_optimizer_states false */

    struct config_fp16 fp16;
    struct config_bf16 bf16;
    struct config_zero zero;
    struct config_optimizer optimizer;
    struct config_scheduler scheduler;
    bool zero_allow_untested_optimizer;
    bool zero_force_ds_cpu_optimizer;

    int64_t steps_per_print; /* 0: never */
    bool dump_state;
    bool wall_clock_breakdown; /* also true when the flops profiler is on */
    bool memory_breakdown;
    enum config_log_level log_level;
    bool dataloader_drop_last;
    bool timers_throughput_enabled;
    bool timers_throughput_synchronized;

    struct config_aio aio;
    struct config_activation_checkpointing activation_checkpointing;
    struct config_monitor csv_monitor;
    struct config_monitor tensorboard;
    struct config_flops_profiler flops_profiler;
    struct config_comms_logger comms_logger;
    struct config_checkpoint checkpoint;
    struct config_czero czero;

    bool optimizer_added; /* by `trainer`: the file has none */

    struct config_impl *impl; /* the resolved tree, notes and strings behind the members above */
};

/* ---- loading -------------------------------------------------------------------------------- */

/* Load and resolve. `options` NULL: config_options_default(). On success *out is the caller's,
 * released by config_free(); on failure *out is NULL.
 * Errors: CZ_INVALID for what DeepSpeed's parser refuses (the sentence holds file, line:column,
 * path, the value given and what would work; several problems are separated by newlines),
 * CZ_UNSUPPORTED for Hjson beyond comments and optional commas, CZ_NOTFOUND when the file cannot
 * be read, CZ_NOMEM. */
cz_status config_load(const char *path, const struct config_options *options,
                      struct ds_config **out);

/* The same from memory: `text` of nbytes (no terminator needed), `name` stands for the file in
 * sentences ("<memory>" when NULL). */
cz_status config_load_text(const char *text, size_t nbytes, const char *name,
                           const struct config_options *options, struct ds_config **out);

/* Accepts NULL. */
void config_free(struct ds_config *config);

/* ---- what there is to say about it ---------------------------------------------------------- */

enum config_note_kind {
    CONFIG_NOTE_NO_EFFECT = 0,  /* honoured by DeepSpeed on other hardware, nothing to do here */
    CONFIG_NOTE_UNSUPPORTED,    /* config_check() refuses it: czero does not do this */
    CONFIG_NOTE_UNKNOWN,        /* unknown key, with the nearest known one when there is one */
    CONFIG_NOTE_ENGINE_REJECTS, /* config_check() refuses it: DeepSpeed's engine would, too */
    CONFIG_NOTE_DEPRECATED,     /* accepted under an old name */
    CONFIG_NOTE_DEFAULT,        /* a default that changed between DeepSpeed versions is in force */
    CONFIG_NOTE_CHOICE,         /* a decision worth a line (compatibility.md) */
    CONFIG_NOTE_UNEXPECTED,     /* a value in effect that differs from what another key suggests */
    CONFIG_NOTE_FILLED          /* the values that `trainer` filled in, in one line */
};

struct config_note {
    enum config_note_kind kind;
    const char *path; /* dotted, such as "zero_optimization.stage" */
    int line, column; /* of the value in the file; 0 when the key is not in the file */
    const char *text; /* one complete sentence: "FILE:LINE:COL: path: …" */
};

size_t config_n_notes(const struct ds_config *config);
const struct config_note *config_note(const struct ds_config *config, size_t idx);

/* CZ_OK, or CZ_INVALID / CZ_UNSUPPORTED when a note of kind UNSUPPORTED or ENGINE_REJECTS exists;
 * cz_last_error() then holds their sentences, one per line. */
cz_status config_check(const struct ds_config *config);

/* Where in the file a key was given: "FILE:LINE:COL: path" for sentences of the caller's, or
 * "FILE: path" when it is not in the file. Written to buf and returned. */
const char *config_where(const struct ds_config *config, const char *path, char *buf,
                         size_t buf_nbytes);

/* The resolved config as JSON with DeepSpeed's key names, every known key with its value, two
 * spaces of indentation, ending in a newline; loading it again gives the same bytes. *out is the
 * caller's, released by free(). */
cz_status config_json(const struct ds_config *config, char **out);

/* The same as lines "path = value  # origin", with each key's help: `explain` of the tool. */
cz_status config_explain(const struct ds_config *config, char **out);

/* The same as lines "path = value" and no more: equal texts mean the same run, however the files
 * were written. *out is the caller's, released by free(). */
cz_status config_values(const struct ds_config *config, char **out);

/* Lines "path: A -> B" for every resolved value that differs; *n_out their number; *out is the
 * caller's, released by free(). */
cz_status config_diff(const struct ds_config *a, const struct ds_config *b, char **out,
                      size_t *n_out);

/* The same, one call each; a and b are texts of the values, or "absent". Errors: CZ_NOMEM. */
typedef void (*config_difference)(void *user, const char *path, const char *a, const char *b);
cz_status config_diff_walk(const struct ds_config *a, const struct ds_config *b,
                           config_difference visit, void *user);

/* The same as {"differences": [{"key": path, "a": value, "b": value}, …]}; a key that one side does
 * not have lacks that member. */
cz_status config_diff_json(const struct ds_config *a, const struct ds_config *b, char **out,
                           size_t *n_out);

/* docs/config.md: the reference of every key, generated from the tables. Caller frees *out. */
cz_status config_reference(char **out);

CZ_EXTERN_C_END
#endif
