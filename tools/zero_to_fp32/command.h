/* The command line of zero_to_fp32, which czero's manual pages and completion read, too. */
#ifndef CZ_TOOLS_FP32_COMMAND_H
#define CZ_TOOLS_FP32_COMMAND_H

#include "tools/czero/args.h"

struct fp32_options {
    const char *dir, *out_dir, *tag, *max_shard_size, *dtype;
    bool safetensors, exclude_frozen, debug, verify, quiet, json;
};

extern const struct arg_command zero_to_fp32_command;

#endif
