/* The tables of all other keys, and looking things up in them. */
#include "engine/config/config_keys_impl.h"

#include "base/text/nearest.h"
#include "engine/config/config.h"

#include <stdio.h>
#include <string.h>

#define SECTION(ident, path, section_kind, text, ...)                                              \
    static const struct config_section ident##_section = {.name = (path),                          \
                                                          .kind = (section_kind),                  \
                                                          .help = (text),                          \
                                                          .keys = ident##_keys,                    \
                                                          .n_keys = CZ_ARRAY_LEN(ident##_keys),    \
                                                          __VA_ARGS__}

/* ---- precision ------------------------------------------------------------------------------ */

static const struct config_key fp16_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "fp16 parameters, fp32 masters, loss scaling",
        TO_BOOL(fp16.enabled)),
    KEY("auto_cast", KEY_BOOL, "false", "cast floating inputs to fp16", TO_BOOL(fp16.auto_cast)),
    KEY("loss_scale", KEY_FLOAT, "0.0", "0: dynamic; otherwise the constant scale",
        .flags = KEY_NO_BOOL | KEY_PYTHON_FLOAT, AT_LEAST(0), TO_DOUBLE(fp16.loss_scale)),
    KEY("initial_scale_power", KEY_INT, "16", "the first dynamic scale is 2 to this power",
        TO_INT64(fp16.initial_scale_power)),
    KEY("loss_scale_window", KEY_INT, "1000", "clean steps before the scale doubles; above 0",
        .flags = KEY_NO_BOOL | KEY_PLAIN_INT, TO_INT64(fp16.loss_scale_window)),
    KEY("hysteresis", KEY_INT, "2", "overflows tolerated before the scale halves",
        TO_INT64(fp16.hysteresis)),
    KEY("consecutive_hysteresis", KEY_BOOL, "false", "refill the hysteresis on every clean step",
        TO_BOOL(fp16.consecutive_hysteresis)),
    KEY("min_loss_scale", KEY_INT, "1", "the floor of the dynamic scale; above 0",
        .flags = KEY_NO_BOOL | KEY_PLAIN_INT, TO_INT64(fp16.min_loss_scale)),
    KEY("fp16_master_weights_and_grads", KEY_BOOL, "false", "fp16 masters; ZeRO with offload only",
        TO_BOOL(fp16.fp16_master_weights_and_grads)),
};
SECTION(fp16, "fp16", SECTION_MODEL, "Mixed precision with fp16.", );

static const struct config_key bf16_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "bf16 parameters, fp32 masters, no loss scaling",
        TO_BOOL(bf16.enabled)),
    KEY("immediate_grad_update", KEY_BOOL, "false",
        "DeepSpeed's BF16_Optimizer: add gradients as they are made",
        TO_BOOL(bf16.immediate_grad_update),
        NO_EFFECT("gradients are always added as they are made")),
    KEY("check_grad_overflow", KEY_BOOL, "true", "skip a step whose gradients are not finite",
        .fallback_0_16 = "false", TO_BOOL(bf16.check_grad_overflow)),
    KEY("bf16_master_weights_and_grads", KEY_BOOL, "false", "bf16 masters and gradients; ZeRO only",
        TO_BOOL(bf16.bf16_master_weights_and_grads)),
    KEY("bf16_optimizer_states", KEY_BOOL, "false", "bf16 moments; needs the key before",
        TO_BOOL(bf16.bf16_optimizer_states)),
};
SECTION(bf16, "bf16", SECTION_MODEL,
        "Mixed precision with bf16. `bfloat16` is another name; `bf16` wins.", );

static const char *const autocast_types[] = {
    "fp16", "float16", "half",  "torch.float16", "bf16",       "bfloat16", "torch.bfloat16",
    "fp32", "float32", "float", "torch.float32", "torch.int8", "int8",     NULL};

static const struct config_key torch_autocast_keys[] = {
    KEY("enabled", KEY_ANY, "false", "run forward under torch's autocast"),
    KEY("dtype", KEY_CHOICE, NULL, "its element type", .flags = KEY_ABSENT,
        .choices = autocast_types),
    KEY("lower_precision_safe_modules", KEY_ANY,
        "[\"torch.nn.Linear\", \"torch.nn.Conv1d\", \"torch.nn.Conv2d\", \"torch.nn.Conv3d\"]",
        "modules whose parameters communicate in that type"),
};
SECTION(torch_autocast, "torch_autocast", SECTION_RAW, "torch's autocast.", .effect = EFFECT_OFF,
        .why = "torch_autocast; use bf16 or fp16");

static const struct config_key data_types_keys[] = {
    KEY("grad_accum_dtype", KEY_STRING, "null",
        "fp32, fp16 or bf16: in which gradients accumulate; null: the model's",
        .flags = KEY_NULLABLE),
    KEY("param_dtype", KEY_STRING, "null", "must be the model's type when given",
        .flags = KEY_NULLABLE),
    KEY("buffer_dtype", KEY_STRING, "null", "torch: cast floating buffers", .flags = KEY_NULLABLE,
        NO_EFFECT("layers have no buffers here")),
    KEY("keep_in_fp32_modules", KEY_ANY, "\"auto\"", "torch: buffers kept in fp32",
        NO_EFFECT("layers have no buffers here")),
};
SECTION(data_types, "data_types", SECTION_RAW, "Element types other than the model's.", );

/* ---- NVMe and activations ------------------------------------------------------------------- */

static const struct config_key aio_keys[] = {
    KEY("block_size", KEY_INT, "1048576", "bytes per request", ABOVE(0), TO_INT64(aio.block_size)),
    KEY("queue_depth", KEY_INT, "8", "requests in flight per thread", ABOVE(0),
        TO_INT64(aio.queue_depth)),
    KEY("intra_op_parallelism", KEY_INT, "1", "threads per request", ABOVE(0),
        TO_INT64(aio.intra_op_parallelism)),
    KEY("single_submit", KEY_BOOL, "false", "submit requests one by one",
        TO_BOOL(aio.single_submit)),
    KEY("overlap_events", KEY_BOOL, "true", "submit while reaping", TO_BOOL(aio.overlap_events)),
    KEY("use_gds", KEY_BOOL, "false", "GPUDirect Storage; true is refused"),
};
SECTION(aio, "aio", SECTION_RAW, "Asynchronous I/O of the NVMe tier.", .nullable = true);

static const struct config_key activation_checkpointing_keys[] = {
    KEY("partition_activations", KEY_BOOL, "false", "split saved inputs over model-parallel ranks",
        TO_BOOL(activation_checkpointing.partition_activations),
        NO_EFFECT("there is one model-parallel rank")),
    KEY("cpu_checkpointing", KEY_BOOL, "false", "keep saved inputs on the host",
        TO_BOOL(activation_checkpointing.cpu_checkpointing)),
    KEY("contiguous_memory_optimization", KEY_BOOL, "false",
        "preallocated buffers for saved inputs",
        TO_BOOL(activation_checkpointing.contiguous_memory_optimization),
        NO_EFFECT("activations are always preallocated")),
    KEY("number_checkpoints", KEY_INT, "null", "how many layers keep only their input",
        .flags = KEY_NULLABLE, ABOVE(0), TO_INT64(activation_checkpointing.number_checkpoints)),
    KEY("synchronize_checkpoint_boundary", KEY_BOOL, "false",
        "wait for the device around each layer",
        TO_BOOL(activation_checkpointing.synchronize_checkpoint_boundary),
        NO_EFFECT("layers run in order on one stream")),
    KEY("profile", KEY_BOOL, "false", "time each checkpointed layer",
        TO_BOOL(activation_checkpointing.profile),
        NO_EFFECT("wall_clock_breakdown and flops_profiler time the layers")),
};
SECTION(activation_checkpointing, "activation_checkpointing", SECTION_RAW,
        "Saving memory by computing activations again.", );

/* ---- monitors, profilers, logs -------------------------------------------------------------- */

static const struct config_key tensorboard_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "write TensorBoard event files",
        TO_BOOL(tensorboard.enabled)),
    KEY("output_path", KEY_STRING, "\"\"", "folder; empty: the current one",
        TO_STRING(tensorboard.output_path)),
    KEY("job_name", KEY_STRING, "\"DeepSpeedJobName\"", "folder inside output_path",
        TO_STRING(tensorboard.job_name)),
};
SECTION(tensorboard, "tensorboard", SECTION_MODEL, "TensorBoard monitor.", .drop_auto = true);

static const struct config_key csv_monitor_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "write one CSV file per event", TO_BOOL(csv_monitor.enabled)),
    KEY("output_path", KEY_STRING, "\"\"", "folder; empty: the current one",
        TO_STRING(csv_monitor.output_path)),
    KEY("job_name", KEY_STRING, "\"DeepSpeedJobName\"", "folder inside output_path",
        TO_STRING(csv_monitor.job_name)),
};
SECTION(csv_monitor, "csv_monitor", SECTION_MODEL, "CSV monitor.", .drop_auto = true);

static const struct config_key wandb_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "log to Weights & Biases"),
    KEY("group", KEY_STRING, "null", "group of runs", .flags = KEY_NULLABLE),
    KEY("team", KEY_STRING, "null", "team", .flags = KEY_NULLABLE),
    KEY("project", KEY_STRING, "\"deepspeed\"", "project"),
};
SECTION(wandb, "wandb", SECTION_MODEL, "Weights & Biases monitor.", .drop_auto = true,
        .effect = EFFECT_NONE,
        .why = "czero writes no wandb log; csv_monitor and tensorboard have the same events");

static const struct config_key comet_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "log to Comet"),
    KEY("samples_log_interval", KEY_INT, "100", "samples between logs"),
    KEY("project", KEY_STRING, "null", "project", .flags = KEY_NULLABLE),
    KEY("workspace", KEY_STRING, "null", "workspace", .flags = KEY_NULLABLE),
    KEY("api_key", KEY_STRING, "null", "API key", .flags = KEY_NULLABLE),
    KEY("experiment_name", KEY_STRING, "null", "name of the experiment", .flags = KEY_NULLABLE),
    KEY("experiment_key", KEY_STRING, "null", "key of the experiment", .flags = KEY_NULLABLE),
    KEY("online", KEY_BOOL, "null", "log to the server", .flags = KEY_NULLABLE),
    KEY("mode", KEY_STRING, "null", "get, create or get_or_create", .flags = KEY_NULLABLE),
};
SECTION(comet, "comet", SECTION_MODEL, "Comet monitor.", .drop_auto = true, .effect = EFFECT_NONE,
        .why = "czero writes no Comet log; csv_monitor and tensorboard have the same events");

static const struct config_key flops_profiler_keys[] = {
    KEY("enabled", KEY_BOOL, "false",
        "print the table of one step; also turns on wall_clock_breakdown",
        TO_BOOL(flops_profiler.enabled)),
    KEY("recompute_fwd_factor", KEY_FLOAT, "0.0",
        "backward counts (2 + this) times the forward flops",
        TO_DOUBLE(flops_profiler.recompute_fwd_factor)),
    KEY("profile_step", KEY_INT, "1", "the step that is profiled: boundaries before it",
        TO_INT64(flops_profiler.profile_step)),
    KEY("module_depth", KEY_INT, "-1", "levels to report: 1 the model, 2 also its layers; -1: all",
        TO_INT64(flops_profiler.module_depth)),
    KEY("top_modules", KEY_INT, "1", "heaviest modules listed per level",
        TO_INT64(flops_profiler.top_modules)),
    KEY("detailed", KEY_BOOL, "true", "a line per module", TO_BOOL(flops_profiler.detailed)),
    KEY("output_file", KEY_STRING, "null", "file for the table; null: the log",
        .flags = KEY_NULLABLE, TO_STRING(flops_profiler.output_file)),
};
SECTION(flops_profiler, "flops_profiler", SECTION_RAW, "Floating-point operations per layer.", );

static const struct config_key comms_logger_keys[] = {
    KEY("enabled", KEY_BOOL, "false",
        "log collectives (DeepSpeed logs whenever the section exists)",
        TO_BOOL(comms_logger.enabled)),
    KEY("verbose", KEY_BOOL, "false", "a line per collective", TO_BOOL(comms_logger.verbose)),
    KEY("prof_all", KEY_BOOL, "true", "record every collective", TO_BOOL(comms_logger.prof_all)),
    KEY("debug", KEY_BOOL, "false", "add the caller's name", TO_BOOL(comms_logger.debug)),
    KEY("prof_ops", KEY_LIST, "[]", "names recorded when prof_all is false"),
};
SECTION(comms_logger, "comms_logger", SECTION_MODEL, "Log of collectives.", );

static const struct config_key timers_throughput_keys[] = {
    KEY("enabled", KEY_BOOL, "true", "samples per second", TO_BOOL(timers_throughput_enabled)),
    KEY("synchronized", KEY_BOOL, "true", "wait for the device when reading the clock",
        TO_BOOL(timers_throughput_synchronized)),
};
SECTION(timers_throughput, "timers.throughput", SECTION_MODEL, "Throughput timer.", );

static const struct config_key timers_keys[] = {
    {.name = "throughput", .type = KEY_SECTION, .section = &timers_throughput_section},
};
SECTION(timers, "timers", SECTION_RAW, "Timers.", );

/* ---- checkpoints ---------------------------------------------------------------------------- */

static const char *const tag_modes[] = {"WARN", "IGNORE", "FAIL", NULL};
static const char *const writer_types[] = {"MOCK", "PYTHON", "FAST", NULL};
static const char *const writer_units[] = {"REPLICA", "SOCKET", "MACHINE", NULL};

static const struct config_key parallel_write_keys[] = {
    KEY("pipeline_stage", KEY_ANY, "false", "pipeline stages write their own layers",
        NO_EFFECT("there is one pipeline stage")),
};
SECTION(parallel_write, "checkpoint.parallel_write", SECTION_RAW,
        "Writers of the checkpoint files.", );

static const struct config_key writer_keys[] = {
    KEY("type", KEY_CHOICE, "\"FAST\"", "which writer", .flags = KEY_ANY_CASE | KEY_NULLABLE,
        .choices = writer_types),
    KEY("io_buffer_size", KEY_ANY, "67108864", "bytes of a buffer"),
    KEY("io_buffer_double", KEY_ANY, "true", "two buffers"),
    KEY("show_statistics", KEY_ANY, "false", "print the write speed"),
    KEY("data_parallel", KEY_CHOICE, "null", "ranks that share the writing",
        .flags = KEY_ANY_CASE | KEY_NULLABLE, .choices = writer_units),
    KEY("decoupled", KEY_ANY, "false", "write during training"),
    KEY("io_multiplier", KEY_ANY, "1", "buffers per file"),
};
SECTION(writer, "checkpoint.writer", SECTION_RAW, "DeepSpeed's checkpoint writer.",
        .nullable = true, .optional = true, .effect = EFFECT_NONE,
        .why = "czero has its own writer; see czero.async_save");

static const struct config_key checkpoint_keys[] = {
    KEY("tag_validation", KEY_CHOICE, "\"WARN\"",
        "when ranks disagree on the tag: Warn, Ignore or Fail", .flags = KEY_ANY_CASE,
        .choices = tag_modes, TO_ENUM(checkpoint.tag_validation)),
    KEY("load_universal", KEY_BOOL, "false", "load DeepSpeed's universal layout",
        TO_BOOL(checkpoint.load_universal)),
    KEY("use_node_local_storage", KEY_BOOL, "false", "every host writes the model states",
        TO_BOOL(checkpoint.use_node_local_storage)),
    {.name = "parallel_write", .type = KEY_SECTION, .section = &parallel_write_section},
    KEY("checkpoint_serialization", KEY_ANY, "true", "torch: write zip files",
        NO_EFFECT("checkpoints are always zip files")),
    {.name = "writer", .type = KEY_SECTION, .section = &writer_section},
};
SECTION(checkpoint, "checkpoint", SECTION_RAW, "Checkpoints.", );

/* ---- recognised, not done here -------------------------------------------------------------- */

static const struct config_key model_info_keys[] = {
    KEY("profile", KEY_ANY, "false", "measure the model first"),
    KEY("num_params", KEY_ANY, "null", "parameters"),
    KEY("hidden_size", KEY_ANY, "null", "width"),
    KEY("num_layers", KEY_ANY, "null", "layers"),
};
SECTION(model_info, "autotuning.model_info", SECTION_RAW, "The model, as the autotuner sees it.",
        .nullable = true, .optional = true);

static const struct config_key autotuning_keys[] = {
    KEY("enabled", KEY_ANY, "false", "search for a config"),
    KEY("fast", KEY_ANY, "true", "search only micro-batch and stage"),
    KEY("results_dir", KEY_ANY, "\"autotuning_results\"", "folder of results",
        .flags = KEY_NOT_EMPTY),
    KEY("exps_dir", KEY_ANY, "\"autotuning_exps\"", "folder of experiments",
        .flags = KEY_NOT_EMPTY),
    KEY("overwrite", KEY_ANY, "true", "overwrite old results"),
    KEY("start_profile_step", KEY_ANY, "3", "first measured step"),
    KEY("end_profile_step", KEY_ANY, "5", "last measured step"),
    KEY("metric", KEY_ANY, "\"throughput\"", "throughput, latency or flops"),
    KEY("metric_path", KEY_ANY, "null", "file of the metric"),
    KEY("tuner_type", KEY_ANY, "\"gridsearch\"", "gridsearch, random or model_based"),
    KEY("tuner_early_stopping", KEY_ANY, "5", "experiments without gain before stopping"),
    KEY("tuner_num_trials", KEY_ANY, "50", "most experiments"),
    KEY("arg_mappings", KEY_ANY, "null", "command-line flags of the user's script"),
    {.name = "model_info", .type = KEY_SECTION, .section = &model_info_section},
    KEY("model_info_path", KEY_ANY, "null", "file of model_info"),
    KEY("mp_size", KEY_ANY, "1", "model-parallel ranks"),
    KEY("max_train_batch_size", KEY_ANY, "null", "largest batch tried"),
    KEY("min_train_batch_size", KEY_ANY, "1", "smallest batch tried"),
    KEY("max_train_micro_batch_size_per_gpu", KEY_ANY, "1024", "largest micro-batch tried"),
    KEY("min_train_micro_batch_size_per_gpu", KEY_ANY, "1", "smallest micro-batch tried"),
    KEY("num_tuning_micro_batch_sizes", KEY_ANY, "3", "micro-batches tried"),
};
SECTION(autotuning, "autotuning", SECTION_RAW, "DeepSpeed's autotuner.", .effect = EFFECT_OFF,
        .why = "the autotuner runs DeepSpeed scripts; use `czero tune`");

static const struct config_key curriculum_keys[] = {
    KEY("enabled", KEY_ANY, "false", "order samples by difficulty"),
};
SECTION(curriculum, "data_efficiency.data_sampling.curriculum_learning", SECTION_RAW,
        "Curriculum learning.", .keep_rest = true);

static const struct config_key dynamic_batching_keys[] = {
    KEY("enabled", KEY_ANY, "false", "batches by tokens"),
    KEY("lr_scaling_method", KEY_ANY, "\"linear\"", "how the rate follows the batch"),
    KEY("min_batch_size", KEY_ANY, "1", "smallest batch"),
    KEY("max_batch_size", KEY_ANY, NULL, "largest batch", .flags = KEY_ABSENT),
    KEY("sequence_picking_order", KEY_ANY, "\"dataloader\"", "order of sequences"),
    KEY("verbose", KEY_ANY, "false", "print batches"),
};
SECTION(dynamic_batching, "data_efficiency.data_sampling.dynamic_batching", SECTION_RAW,
        "Dynamic batching.", .keep_rest = true);

static const struct config_key data_sampling_keys[] = {
    KEY("enabled", KEY_ANY, "false", "sample by difficulty"),
    KEY("num_epochs", KEY_ANY, "1000", "epochs"),
    KEY("num_workers", KEY_ANY, "0", "loader processes"),
    KEY("pin_memory", KEY_ANY, "false", "page-locked batches"),
    {.name = "curriculum_learning", .type = KEY_SECTION, .section = &curriculum_section},
    {.name = "dynamic_batching", .type = KEY_SECTION, .section = &dynamic_batching_section},
};
SECTION(data_sampling, "data_efficiency.data_sampling", SECTION_RAW, "Sampling.",
        .keep_rest = true);

static const struct config_key random_ltd_keys[] = {
    KEY("enabled", KEY_ANY, "false", "drop tokens between layers"),
};
SECTION(random_ltd, "data_efficiency.data_routing.random_ltd", SECTION_RAW,
        "Random layer-token dropping.", .keep_rest = true);

static const struct config_key data_routing_keys[] = {
    KEY("enabled", KEY_ANY, "false", "route tokens"),
    {.name = "random_ltd", .type = KEY_SECTION, .section = &random_ltd_section},
};
SECTION(data_routing, "data_efficiency.data_routing", SECTION_RAW, "Routing.", );

static const struct config_key data_efficiency_keys[] = {
    KEY("enabled", KEY_ANY, "false", "the data-efficiency library"),
    KEY("seed", KEY_ANY, "1234", "its seed"),
    {.name = "data_sampling", .type = KEY_SECTION, .section = &data_sampling_section},
    {.name = "data_routing", .type = KEY_SECTION, .section = &data_routing_section},
};
SECTION(data_efficiency, "data_efficiency", SECTION_RAW, "DeepSpeed's data-efficiency library.",
        .effect = EFFECT_OFF, .why = "the data-efficiency library");

static const struct config_key pipeline_keys[] = {
    KEY("stages", KEY_ANY, "\"auto\"", "pipeline stages"),
    KEY("partition", KEY_ANY, "\"best\"", "how layers are spread"),
    KEY("seed_layers", KEY_ANY, "false", "a seed per layer"),
    KEY("activation_checkpoint_interval", KEY_ANY, "0", "layers between checkpoints"),
    KEY("pipe_partitioned", KEY_ANY, "true", "split activations sent between stages"),
    KEY("grad_partitioned", KEY_ANY, "true", "split gradients sent between stages"),
    KEY("use_reentrant", KEY_ANY, "true", "torch's re-entrant checkpointing"),
};
SECTION(pipeline, "pipeline", SECTION_RAW, "Pipeline parallelism.", .keep_rest = true,
        .effect = EFFECT_NONE, .why = "there is one pipeline stage");

static const struct config_key hybrid_engine_keys[] = {
    KEY("enabled", KEY_BOOL, "false", "training and generation in one engine"),
    KEY("max_out_tokens", KEY_INT, "512", "tokens generated", ABOVE(0)),
    KEY("inference_tp_size", KEY_INT, "1", "tensor-parallel ranks of generation"),
    KEY("release_inference_cache", KEY_BOOL, "false", "free the cache after generation"),
    KEY("pin_parameters", KEY_BOOL, "true", "keep parameters gathered"),
    KEY("tp_gather_partition_size", KEY_INT, "8", "layers gathered together"),
    KEY("enable_cuda_graph", KEY_BOOL, "false", "CUDA graphs"),
};
SECTION(hybrid_engine, "hybrid_engine", SECTION_MODEL, "DeepSpeed's hybrid engine.",
        .effect = EFFECT_OFF, .why = "the hybrid engine");

static const char *const passes[] = {"z1", "z3", "autosp", "autotp", NULL};

static const struct config_key compile_keys[] = {
    KEY("deepcompile", KEY_BOOL, "false", "compile the torch graph"),
    KEY("autoep_non_moe", KEY_BOOL, "false", "compile around expert layers"),
    KEY("free_activation", KEY_BOOL, "false", "free activations early"),
    KEY("free_activation_threshold", KEY_INT, "10485760", "bytes from which they are freed"),
    KEY("offload_activation", KEY_BOOL, "false", "activations on the host"),
    KEY("offload_activation_pin_memory", KEY_BOOL, "true", "in page-locked memory"),
    KEY("offload_opt_states", KEY_BOOL, "false", "optimizer states on the host"),
    KEY("double_buffer", KEY_BOOL, "true", "two buffers"),
    KEY("symmetric_memory", KEY_BOOL, "false", "symmetric memory"),
    KEY("debug_log", KEY_BOOL, "false", "dump graphs"),
    KEY("offload_parameters", KEY_BOOL, "false", "parameters on the host"),
    KEY("sync_before_reduce", KEY_BOOL, "false", "wait before a reduction"),
    KEY("sync_after_reduce", KEY_BOOL, "false", "wait after a reduction"),
    KEY("sync_before_allgather", KEY_BOOL, "false", "wait before a gather"),
    KEY("sync_after_allgather", KEY_BOOL, "false", "wait after a gather"),
    KEY("keep_int_input_tensors", KEY_BOOL, "true", "keep integer inputs"),
    KEY("keep_all_input_tensors", KEY_BOOL, "false", "keep all inputs"),
    KEY("passes", KEY_CHOICES, "null", "which passes run", .flags = KEY_NULLABLE,
        .choices = passes),
};
SECTION(compile, "compile", SECTION_MODEL, "DeepCompile.", .effect = EFFECT_NONE,
        .why = "there is no graph to compile");

static const struct config_key tp_keys[] = {
    KEY("tp_size", KEY_INT, "1", "ranks a layer is split over"),
    KEY("tp_grain_size", KEY_INT, "1", "granularity of the split"),
    KEY("mpu", KEY_ANY, "null", "a Python object"),
    KEY("tp_group", KEY_ANY, "null", "a Python object"),
};
SECTION(tp, "tensor_parallel.tp", SECTION_MODEL, "Sizes.", );

static const char *const ce_backends[] = {"torch", "liger", NULL};
static const char *const no_choice[] = {NULL};

static const struct config_key tensor_parallel_keys[] = {
    KEY("autotp_size", KEY_INT, "0", "ranks a layer is split over; 0: off"),
    KEY("dtype", KEY_CHOICE, NULL, "a Python object: cannot be given in a file",
        .flags = KEY_ABSENT, .choices = no_choice),
    KEY("tp_overlap_comm", KEY_BOOL, "false", "overlap communication with compute"),
    KEY("vocab_parallel_lm_head", KEY_BOOL, "null", "split the vocabulary", .flags = KEY_NULLABLE),
    KEY("vocab_parallel_ce_backend", KEY_CHOICE, "\"torch\"", "its cross-entropy",
        .choices = ce_backends),
    {.name = "tp", .type = KEY_SECTION, .short_name = "tensor_parallel", .section = &tp_section},
    KEY("injection_policy_tuple", KEY_LIST, "null", "layers to replace", .flags = KEY_NULLABLE),
    KEY("partition_config", KEY_DICT, "null", "how layers are split", .flags = KEY_NULLABLE),
    KEY("preset_model", KEY_STRING, "null", "a known architecture", .flags = KEY_NULLABLE),
    KEY("keep_module_on_host", KEY_BOOL, "false", "load on the host"),
    KEY("kernel_inject", KEY_BOOL, "false", "inference kernels",
        .short_name = "replace_with_kernel_inject"),
};
SECTION(tensor_parallel, "tensor_parallel", SECTION_MODEL, "Tensor parallelism.",
        .effect = EFFECT_OFF, .why = "tensor parallelism");

static const struct config_key expert_parallel_keys[] = {
    KEY("enabled", KEY_ANY, "false", "spread experts over ranks"),
    KEY("autoep_size", KEY_ANY, "1", "ranks that share the experts"),
};
SECTION(expert_parallel, "expert_parallel", SECTION_RAW, "Expert parallelism.", .keep_rest = true,
        .nullable = true, .effect = EFFECT_OFF, .why = "expert parallelism");

static const char *const q_types[] = {"asymmetric", "symmetric", NULL};

static const struct config_key weight_quantization_keys[] = {
    KEY("enabled", KEY_BOOL, "true", "quantise weights"),
    KEY("num_bits", KEY_INT, "8", "bits"),
    KEY("q_type", KEY_CHOICE, "\"symmetric\"", "how", .choices = q_types),
    KEY("q_groups", KEY_INT, "1", "groups"),
    KEY("quantized_initialization", KEY_DICT, "{}", "while loading"),
    KEY("post_init_quant", KEY_DICT, "{}", "after loading"),
};
SECTION(weight_quantization, "weight_quantization", SECTION_MODEL, "Weight quantisation.",
        .optional = true, .effect = EFFECT_OFF, .why = "weight quantisation");

/* ---- our own -------------------------------------------------------------------------------- */

static const struct config_key czero_checkpointing_keys[] = {
    KEY("every", KEY_INT, "0", "recompute the activations of groups of this many layers; 0: off",
        AT_LEAST(0), TO_INT64(czero.activation_checkpointing_every)),
};
SECTION(czero_checkpointing, "czero.activation_checkpointing", SECTION_MODEL,
        "Activation checkpointing without a change to the model.", );

static const struct config_key czero_lora_keys[] = {
    KEY("rank", KEY_INT, "8", "of each branch", WITHIN(1, 65536), TO_INT64(czero.lora.rank),
        .short_name = "r"),
    KEY("alpha", KEY_FLOAT, "0", "a branch counts alpha/rank times; 0: the rank", AT_LEAST(0),
        TO_DOUBLE(czero.lora.alpha), .short_name = "lora_alpha"),
    KEY("targets", KEY_STRINGS, "[\"all-linear\"]",
        "linear maps that get a branch: all-linear, ends of their names, or one regular expression "
        "for whole names",
        .short_name = "target_modules"),
    KEY("layers", KEY_STRING, "null", "blocks that take part, such as \"0-3,7\"; null: all",
        .flags = KEY_NULLABLE, TO_STRING(czero.lora.layers), .short_name = "layers_to_transform"),
    KEY("dropout", KEY_FLOAT, "0", "of a branch's input", WITHIN(0, 1), .high_open = true,
        TO_DOUBLE(czero.lora.dropout), .short_name = "lora_dropout"),
    KEY("rslora", KEY_BOOL, "false", "alpha/sqrt(rank) instead of alpha/rank",
        TO_BOOL(czero.lora.rslora), .short_name = "use_rslora"),
    KEY("dora", KEY_BOOL, "false",
        "train the lengths of the rows of each map's weight as well (DoRA)",
        TO_BOOL(czero.lora.dora), .short_name = "use_dora"),
    KEY("modules_to_save", KEY_STRINGS, "[]",
        "modules that are trained whole and stored with the adapter"),
};
SECTION(czero_lora, "czero.lora", SECTION_MODEL,
        "Train a low-rank adapter (LoRA) instead of the model, which is frozen.", .nullable = true,
        .optional = true);

static const char *const accumulation_orders[] = {"auto", "micro_batches", "layers", NULL};

static const struct config_key czero_keys[] = {
    {.name = "activation_checkpointing",
     .type = KEY_SECTION,
     .section = &czero_checkpointing_section},
    {.name = "lora", .type = KEY_SECTION, .section = &czero_lora_section},
    KEY("async_save", KEY_BOOL, "true", "write checkpoints in the background",
        TO_BOOL(czero.async_save)),
    KEY("offload_gradients", KEY_BOOL, "false",
        "gradients follow the optimizer to NVMe as well; one rank on the CPU only",
        TO_BOOL(czero.offload_gradients)),
    KEY("nvme_paths", KEY_STRINGS, "[]",
        "folders on up to 8 disks: the swap file is striped over a file in each; nvme_path may be "
        "left "
        "out then, or is one of them"),
    KEY("nvme_rates", KEY_LIST, "[]",
        "how fast the disks of nvme_paths are, in any unit: each gets its share of the swap file; "
        "[]: equal shares"),
    KEY("machine_profile", KEY_STRING, "null",
        "file of `czero bench --profile`: by its rates the plan decides for each layer whether "
        "what it saves for its backward is kept, waits on NVMe or is recomputed, where "
        "micro-batches go through each layer together on the CPU; null: what fits is kept, the "
        "rest is recomputed. Results do not change",
        .flags = KEY_NULLABLE, TO_STRING(czero.machine_profile)),
    KEY("activation_memory", KEY_INT, "0",
        "where micro-batches go through each layer together on the CPU: bytes of memory, for each "
        "rank, that inputs of layers and what is kept of the rest may take; 0: half of the memory "
        "that is free besides the model's state. Results do not change",
        AT_LEAST(0), TO_INT64(czero.activation_memory)),
    KEY("late_update", KEY_BOOL, "true",
        "with NVMe, or where a GPU's optimizer is offloaded, on one rank or at stages 0 and 3: "
        "update a layer's parameters just before its next forward, so that the disk works beside "
        "the layers, and beside a GPU the host. Results do not change",
        TO_BOOL(czero.late_update)),
    KEY("offload_checksums", KEY_BOOL, "false",
        "for debugging: compare what comes back from the swap file with what was written",
        TO_BOOL(czero.offload_checksums)),
    KEY("frozen_in_place", KEY_BOOL, "true",
        "beside an adapter, with offload_param on NVMe: frozen parameters that the model's "
        "safetensors hold in the run's type are read from there; false: the swap file gets a copy",
        TO_BOOL(czero.frozen_in_place)),
    KEY("tile_numel", KEY_INT, "0",
        "elements that the optimizer updates at a time; 0: chosen by czero. Results do not change",
        AT_LEAST(0), TO_INT64(czero.tile_numel)),
    KEY("max_consecutive_skips", KEY_INT, "50",
        "stop after this many consecutive skipped steps; 0: never", AT_LEAST(0),
        TO_INT64(czero.max_consecutive_skips)),
    KEY("tf32", KEY_BOOL, "false",
        "on a GPU, fp32 matrix products see 10 bits of their operands' mantissas, and are faster",
        TO_BOOL(czero.tf32)),
    KEY("keep_all_activations", KEY_BOOL, "false",
        "keep outputs of norms and activations for the backward pass, which otherwise recomputes "
        "them: faster, but needs more memory",
        TO_BOOL(czero.keep_all_activations)),
    KEY("accumulation_order", KEY_CHOICE, "\"auto\"",
        "a step's micro-batches go through the model one after the other, or all of them through "
        "each layer (`layers`): the same results, less traffic, more activations. auto: layers in "
        "`czero train` where parameters or gradients would move once per micro-batch",
        .choices = accumulation_orders, TO_ENUM(czero.accumulation_order)),
    KEY("offload_activations", KEY_BOOL, "false",
        "with a swap file, on the CPU, and micro-batches that go through each layer together: the "
        "inputs of layers wait on NVMe from forward to backward",
        TO_BOOL(czero.offload_activations)),
};
SECTION(czero, "czero", SECTION_MODEL, "czero's settings, which DeepSpeed ignores.", );

/* ---- optimizer and scheduler ---------------------------------------------------------------- */

static const struct config_key optimizer_keys[] = {
    KEY("type", KEY_ANY, "null", NULL, .list = optim_type_names),
    KEY("params", KEY_ANY, "null", "its arguments"),
    KEY("legacy_fusion", KEY_BOOL, "false", "an older fused path",
        NO_EFFECT("there is one path here")),
};
SECTION(optimizer, "optimizer", SECTION_RAW, "The optimizer. See the tables of types below.", );

static const struct config_key scheduler_keys[] = {
    KEY("type", KEY_ANY, "null", NULL, .list = schedule_type_names),
    KEY("params", KEY_ANY, "null", "its arguments"),
};
SECTION(scheduler, "scheduler", SECTION_RAW,
        "The learning-rate schedule. See the tables of types below.", );

/* ---- the top level -------------------------------------------------------------------------- */

static const char *const reduce_ops[] = {"mean", "sum", NULL};
static const char *const comm_types[] = {"fp32", "fp16", "bf16", NULL};

static const struct config_key top_keys[] = {
    KEY("train_batch_size", KEY_INT, "null",
        "samples per optimizer step over all ranks: micro-batch x accumulation x ranks",
        .flags = KEY_NULLABLE, ABOVE(0), TO_INT64(train_batch_size)),
    KEY("train_micro_batch_size_per_gpu", KEY_INT, "null",
        "samples per rank and forward-backward pass", .flags = KEY_NULLABLE, ABOVE(0),
        TO_INT64(train_micro_batch_size_per_gpu)),
    KEY("gradient_accumulation_steps", KEY_INT, "null", "micro-batches per optimizer step",
        .flags = KEY_NULLABLE, ABOVE(0), TO_INT64(gradient_accumulation_steps)),
    KEY("managed_gradient_accumulation", KEY_BOOL, "true",
        "false: the caller decides when a step is complete",
        TO_BOOL(managed_gradient_accumulation)),
    KEY("steps_per_print", KEY_INT, "null", "steps between progress lines; null: none",
        .flags = KEY_NULLABLE, ABOVE(0), TO_INT64(steps_per_print)),
    KEY("dump_state", KEY_BOOL, "false", "print every setting of the engine at start",
        TO_BOOL(dump_state)),
    KEY("disable_python_gc", KEY_BOOL, "false", "Python's garbage collector",
        NO_EFFECT("there is no Python here")),
    KEY("wall_clock_breakdown", KEY_BOOL, "false", "time forward, backward and step",
        TO_BOOL(wall_clock_breakdown)),
    KEY("memory_breakdown", KEY_BOOL, "false", "print memory at phase edges",
        TO_BOOL(memory_breakdown)),
    KEY("log_level", KEY_STRING, "null", "debug, info, warning, error or critical",
        .flags = KEY_NULLABLE),
    KEY("gradient_clipping", KEY_FLOAT, "1.0", "largest global L2 norm; 0: no clipping",
        .fallback_0_16 = "0.0", TO_DOUBLE(gradient_clipping)),
    KEY("prescale_gradients", KEY_BOOL, "false", "divide by the ranks before the reduction",
        TO_BOOL(prescale_gradients),
        NO_EFFECT("the mean is one sum in fp32 and one multiplication")),
    KEY("gradient_predivide_factor", KEY_FLOAT, "1.0",
        "divide by this before the reduction, by the rest after", ABOVE(0),
        TO_DOUBLE(gradient_predivide_factor),
        NO_EFFECT("the mean is one sum in fp32 and one multiplication")),
    KEY("gradient_allreduce_op", KEY_CHOICE, "\"mean\"",
        "mean, or sum without division by the ranks", .flags = KEY_ANY_CASE, .choices = reduce_ops),
    KEY("communication_data_type", KEY_CHOICE, "null",
        "in which gradients travel; null: the model's", .flags = KEY_NULLABLE | KEY_ANY_CASE,
        .choices = comm_types),
    KEY("seq_parallel_communication_data_type", KEY_CHOICE, "\"fp32\"",
        "the same under sequence parallelism", .flags = KEY_NULLABLE | KEY_ANY_CASE,
        .choices = comm_types, NO_EFFECT("there is no sequence parallelism")),
    KEY("disable_allgather", KEY_BOOL, "false", "parsed by DeepSpeed, never used",
        NO_EFFECT("DeepSpeed parses it and never uses it")),
    KEY("dataloader_drop_last", KEY_BOOL, "false", "drop an incomplete last batch",
        TO_BOOL(dataloader_drop_last)),
    KEY("vocabulary_size", KEY_ANY, "null", "only warned about when no multiple of 8",
        NO_EFFECT("the model states its vocabulary")),
    KEY("use_data_before_expert_parallelism", KEY_BOOL, "false", "order of expert-parallel ranks",
        NO_EFFECT("there is no expert parallelism")),
    KEY("sequence_parallel_size", KEY_INT, NULL, "ranks that share a sequence", .flags = KEY_ABSENT,
        ABOVE(0)),
    KEY("data_parallel_size", KEY_INT, NULL, "ranks that do not", .flags = KEY_ABSENT,
        NO_EFFECT("every rank is a data-parallel rank")),
    KEY("zero_allow_untested_optimizer", KEY_BOOL, "false",
        "ZeRO with an optimizer outside DeepSpeed's list", TO_BOOL(zero_allow_untested_optimizer)),
    KEY("zero_force_ds_cpu_optimizer", KEY_BOOL, "true",
        "refuse a caller's optimizer under offload", TO_BOOL(zero_force_ds_cpu_optimizer)),
    KEY("allgather_size", KEY_ANY, NULL,
        "with `zero_optimization: true`: its allgather_bucket_size",
        .flags = KEY_ABSENT | KEY_HIDDEN),
    {.name = "optimizer", .type = KEY_SECTION, .section = &optimizer_section},
    {.name = "scheduler", .type = KEY_SECTION, .section = &scheduler_section},
    {.name = "fp16", .type = KEY_SECTION, .section = &fp16_section},
    {.name = "bf16", .type = KEY_SECTION, .section = &bf16_section, .short_name = "bfloat16"},
    {.name = "torch_autocast", .type = KEY_SECTION, .section = &torch_autocast_section},
    {.name = "data_types", .type = KEY_SECTION, .section = &data_types_section},
    {.name = "zero_optimization", .type = KEY_SECTION, .section = &config_zero_section},
    {.name = "aio", .type = KEY_SECTION, .section = &aio_section},
    {.name = "activation_checkpointing",
     .type = KEY_SECTION,
     .section = &activation_checkpointing_section},
    {.name = "tensorboard", .type = KEY_SECTION, .section = &tensorboard_section},
    {.name = "csv_monitor", .type = KEY_SECTION, .section = &csv_monitor_section},
    {.name = "wandb", .type = KEY_SECTION, .section = &wandb_section},
    {.name = "comet", .type = KEY_SECTION, .section = &comet_section},
    {.name = "flops_profiler", .type = KEY_SECTION, .section = &flops_profiler_section},
    {.name = "comms_logger", .type = KEY_SECTION, .section = &comms_logger_section},
    {.name = "timers", .type = KEY_SECTION, .section = &timers_section},
    {.name = "checkpoint", .type = KEY_SECTION, .section = &checkpoint_section},
    KEY("datastates_ckpt", KEY_ANY, "false", "the DataStates checkpoint engine; on unless false",
        REFUSED("the DataStates checkpoint engine")),
    {.name = "autotuning", .type = KEY_SECTION, .section = &autotuning_section},
    {.name = "data_efficiency", .type = KEY_SECTION, .section = &data_efficiency_section},
    {.name = "pipeline", .type = KEY_SECTION, .section = &pipeline_section},
    {.name = "hybrid_engine", .type = KEY_SECTION, .section = &hybrid_engine_section},
    {.name = "compile", .type = KEY_SECTION, .section = &compile_section},
    {.name = "tensor_parallel", .type = KEY_SECTION, .section = &tensor_parallel_section},
    {.name = "expert_parallel", .type = KEY_SECTION, .section = &expert_parallel_section},
    {.name = "weight_quantization", .type = KEY_SECTION, .section = &weight_quantization_section},
    {.name = "czero", .type = KEY_SECTION, .section = &czero_section},
};

const struct config_section config_top = {
    .name = "",
    .kind = SECTION_RAW,
    .help = "Settings outside of any section.",
    .keys = top_keys,
    .n_keys = CZ_ARRAY_LEN(top_keys),
};

/* ---- what DeepSpeed 0.19 removed ------------------------------------------------------------ */

const struct config_removed config_removed_keys[] = {
    {"nebula", "Nebula checkpointing", "remove it; checkpoints are written by czero.async_save"},
    {"compression_training", "the compression library", "remove it"},
    {"amp", "Apex amp", "use fp16 or bf16"},
    {"quantize_training", "Mixture-of-Quantization", "remove it"},
    {"sparse_gradients", "sparse embedding gradients", "remove it"},
    {"eigenvalue", "eigenvalue-based quantisation", "remove it"},
    {"sparse_attention", "sparse attention", "remove it"},
    {"elasticity", "elastic training",
     "set train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps"},
    {"graph_harvesting", "graph harvesting", "remove it"},
    {"curriculum_learning", "the older curriculum learning", "remove it"},
    {"progressive_layer_drop", "progressive layer dropping", "remove it"},
    {"zero_optimization.mics_shard_size", "MiCS", "remove it"},
    {"zero_optimization.mics_hierarchical_params_gather", "MiCS", "remove it"},
    {"zero_optimization.zeropp_loco_param", "LoCo", "remove it"},
};
const size_t config_n_removed_keys = CZ_ARRAY_LEN(config_removed_keys);

/* ---- looking up ----------------------------------------------------------------------------- */

const struct config_key *config_find_key(const struct config_section *section, const char *name,
                                         bool *by_short_name)
{
    for (size_t i = 0; i < section->n_keys; i++) {
        const struct config_key *key = &section->keys[i];
        *by_short_name = key->short_name && strcmp(key->short_name, name) == 0;
        if (*by_short_name || strcmp(key->name, name) == 0) return key;
    }
    return NULL;
}

const char *config_nearest_key(const struct config_section *section, const char *name)
{
    struct nearest search = nearest_begin(name);
    for (size_t i = 0; i < section->n_keys; i++) {
        if (!(section->keys[i].flags & KEY_HIDDEN))
            nearest_consider(&search, section->keys[i].name);
        nearest_consider(&search, section->keys[i].short_name);
    }
    return search.best;
}

/* Count the sections that have a key `name`; the path of the last one goes to buf. */
static int search_sections(const struct config_section *section, const char *name, char *buf,
                           size_t buf_nbytes)
{
    bool by_short_name;
    int n = 0;
    if (section != &config_top && config_find_key(section, name, &by_short_name)) {
        snprintf(buf, buf_nbytes, "%s.%s", section->name, name);
        n++;
    }
    for (size_t i = 0; i < section->n_keys; i++)
        if (section->keys[i].section)
            n += search_sections(section->keys[i].section, name, buf, buf_nbytes);
    return n;
}

const char *config_same_key_elsewhere(const char *name, char *buf, size_t buf_nbytes)
{
    bool by_short_name;
    if (config_find_key(&config_top, name, &by_short_name)) {
        snprintf(buf, buf_nbytes, "%s", name);
        return buf;
    }
    return search_sections(&config_top, name, buf, buf_nbytes) == 1 ? buf : NULL;
}
