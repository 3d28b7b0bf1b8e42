/* The command line of zero_to_fp32: options of DeepSpeed's script of that name, spelt as there. */
#include "command.h"

#define FIELD(name) offsetof(struct fp32_options, name)

static const struct arg_spec specs[] = {
    {"CHECKPOINT_DIR", ARG_STRING, FIELD(dir), NULL,
     "checkpoint folder, as passed to save_checkpoint(), or the folder of one tag", 0, true},
    {"OUTPUT_DIR", ARG_STRING, FIELD(out_dir), NULL, "output folder; created if missing", 0, true},
    {"--max_shard_size", ARG_STRING, FIELD(max_shard_size), "SIZE",
     "start a new file before one exceeds SIZE, such as 5GB, 200MB, none (default: 5GB)", 0, false},
    {"--safe_serialization", ARG_FLAG, FIELD(safetensors), NULL,
     "write model.safetensors instead of pytorch_model.bin", 0, false},
    {"--tag", ARG_STRING, FIELD(tag), "TAG",
     "tag, such as global_step1 (default: the one that `latest` names)", 0, false},
    {"-t", ARG_STRING, FIELD(tag), "TAG", "same as --tag", 0, false},
    {"--exclude_frozen_parameters", ARG_FLAG, FIELD(exclude_frozen), NULL,
     "omit weights that were not trained", 0, false},
    {"--dtype", ARG_CHOICE, FIELD(dtype), "float32|fp32|float16|fp16|bfloat16|bf16",
     "type of the written weights (default: fp32)", 0, false},
    {"--verify", ARG_FLAG, FIELD(verify), NULL,
     "read the output and compare every tensor with the shards", 0, false},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print errors only", 0, false},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object about what was written"},
    {"--debug", ARG_FLAG, FIELD(debug), NULL,
     "print the location of every tensor in the shards to stderr", 0, false},
    {"-d", ARG_FLAG, FIELD(debug), NULL, "same as --debug", 0, false},
};

const struct arg_command zero_to_fp32_command = {
    .name = "zero_to_fp32",
    .summary = "Consolidate the shards of a DeepSpeed checkpoint (stages 0-3) to fp32 weights.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "No file appears in OUTPUT_DIR before the whole output is complete and on disk.\n"
                "The memory needed does not depend on the size of the model.",
    .examples = "  zero_to_fp32 checkpoints/ out/\n"
                "  zero_to_fp32 checkpoints/ out/ -t global_step100 --safe_serialization",
    .exits = "0 success, 1 run-time failure, 2 usage (no such folder or tag),\n"
             "            3 out of memory, 4 damaged or incomplete checkpoint.",
};
