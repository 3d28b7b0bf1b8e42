/* Options that several commands have for a config: values that a trainer would give, --auto, --set.
 * What they mean is the engine's matter (engine/config/config.h: wanted, autos, sets). */
#ifndef CZ_TOOLS_CZERO_CONFIG_ARGS_H
#define CZ_TOOLS_CZERO_CONFIG_ARGS_H

#include "engine/config/config.h"
#include "tools/czero/args.h"

/* The adapter where none is described, and where not all weights fit. */
#define LORA_USUAL "rank=16,alpha=32"

struct config_args {
    struct arg_list autos, sets;
    const char *optimizer, *betas, *scheduler, *precision, *compat, *lora;
    const char *profile;                                       /* czero.machine_profile */
    int64_t micro_batch, accumulation, warmup_steps;           /* 0, 0, −1: not given */
    double lr, weight_decay, eps, max_grad_norm, warmup_ratio; /* NAN: not given */
    bool strict;
};

/* Nothing given. */
struct config_args config_args_none(void);

/* Rows of an option table; AT(member) is the place of a member of the struct config_args. */
#define CONFIG_ARGS_VALUES(AT)                                                                       \
    {"", ARG_HEADING, 0, NULL, "Values that the config leaves out, or that are \"auto\" in it:"},    \
        {"--optimizer",           ARG_STRING, AT(optimizer), "TYPE", "optimizer (default: AdamW): ", \
         .list = optim_type_names},                                                                  \
        {"--lr", ARG_DOUBLE, AT(lr), "X", "learning rate (default: 5e-5)"},                          \
        {"--weight-decay", ARG_DOUBLE, AT(weight_decay), "X", "weight decay (default: 0)"},          \
        {"--betas", ARG_STRING, AT(betas), "B1,B2", "of Adam and its like (default: 0.9,0.999)"},    \
        {"--eps", ARG_DOUBLE, AT(eps), "X", "of Adam and its like (default: 1e-8)"},                 \
        {"--lr-scheduler", ARG_CHOICE, AT(scheduler),                                                \
         "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_"      \
         "sqrt",                                                                                     \
         "learning-rate schedule, as in transformers (default: linear to 0)"},                       \
        {"--warmup-steps", ARG_INT, AT(warmup_steps), "N", "warm-up steps (default: 0)", .min = 0},  \
        {"--warmup-ratio", ARG_DOUBLE, AT(warmup_ratio), "R",                                        \
         "warm-up as a share of all steps, instead of --warmup-steps"},                              \
        {"--micro-batch", ARG_INT, AT(micro_batch), "N", "rows per forward pass (default: 8)",       \
         .min = 1},                                                                                  \
        {"--accumulation", ARG_INT, AT(accumulation), "N", "micro-batches per step (default: 1)",    \
         .min = 1},                                                                                  \
        {"--max-grad-norm", ARG_DOUBLE, AT(max_grad_norm), "X", "gradient clipping (default: 1)"},   \
        {"--precision", ARG_CHOICE, AT(precision), "fp32|bf16|fp16",                                 \
         "training precision (default: fp32)"},                                                      \
        {"--lora",                                                                                   \
         ARG_STRING,                                                                                 \
         AT(lora),                                                                                   \
         "KEY=VALUE,…",                                                                              \
         "train a low-rank adapter, the model frozen: rank (8), alpha (the rank), dropout (0), "     \
         "targets (all-linear, or names), layers (0-3,7), rslora (true), dora (true), "              \
         "modules_to_save",                                                                          \
         .alone = ""},                                                                               \
        {"--auto", ARG_LIST, AT(autos), "NAME=VALUE",                                                \
         "value of any other \"auto\"; NAME is its path"},                                           \
        {"", ARG_HEADING, 0, NULL, "Config:"},                                                       \
        {"--set", ARG_LIST, AT(sets), "path=value", "override any key of the config"},               \
        {"--strict", ARG_FLAG, AT(strict), NULL,                                                     \
         "treat unknown keys as errors, and add no optimizer or schedule"},                          \
    {                                                                                                \
        "--compat", ARG_CHOICE, AT(compat), "0.16|0.19",                                             \
            "use the defaults of this DeepSpeed version (default: 0.19)"                             \
    }

#define CONFIG_WANTED_MAX    24
#define CONFIG_WANTED_NBYTES 512

/* What the options ask for, as "NAME=VALUE" for the engine; the texts are the struct's. */
struct config_wanted {
    char texts[CONFIG_WANTED_MAX][CONFIG_WANTED_NBYTES];
    const char *items[CONFIG_WANTED_MAX + 1]; /* ends in NULL */
    size_t n;
};

/* CZ_INVALID: both --warmup-steps and --warmup-ratio, a text that is too long, a key that --lora
 * has not. */
cz_status config_args_wanted(const struct config_args *args, struct config_wanted *out);

/* The options of config_load() that belong to the arguments, and a trainer's filling; `wanted` is
 * borrowed. The caller adds world size, device, hidden size and steps. */
struct config_options config_args_options(const struct config_args *args,
                                          const struct config_wanted *wanted);

/* What --lora alone asks for. *config is the caller's, by config_free(), and holds *out. */
cz_status config_args_lora(const char *text, struct ds_config **config,
                           const struct config_lora **out);

#endif
