/* czero train: a DeepSpeed config, a model and data in; a trained model out. */
#include "args.h"
#include "progress.h"
#include "tool.h"

#include "base/log.h"
#include "base/threads.h"
#include "data/data.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct train_options {
    const char *config, *model, *init, *tokenizer, *shuffle, *freeze, *device;
    const char *save, *resume, *export_dir, *curve, *precision, *compat, *groups;
    struct arg_list data, eval_data, set, autos;
    int64_t seq_len, steps, seed, save_interval, save_keep;
    int64_t micro_batch, accumulation, warmup_steps;
    double lr, weight_decay, max_grad_norm;
    bool log_json, quiet, strict;
};

#define FIELD(member) offsetof(struct train_options, member)

static const struct arg_spec train_specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE", "DeepSpeed config", .required = true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or gpt2-tiny, gpt2, gpt2-medium, …", .required = true},
    {"--data", ARG_WORDS, FIELD(data), "PATH", "text or token files (.bin, Megatron .bin/.idx)",
     .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T", "tokens per row", .min = 1, .required = true},
    {"--steps", ARG_INT, FIELD(steps), "N", "optimizer steps, skipped ones included", .min = 1,
     .required = true},
    {"", ARG_HEADING, 0, NULL, "Model and data:"},
    {"--init", ARG_STRING, FIELD(init), "random|DIR",
     "where weights come from (default: the model's folder; random for a preset)"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "how text becomes tokens (default: bytes)"},
    {"--seed", ARG_INT, FIELD(seed), "S", "weights, shuffling and dropout (default: 42)"},
    {"--shuffle", ARG_CHOICE, FIELD(shuffle), "on|off", "order of rows (default: on)"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "parameters that are not trained"},
    {"--device", ARG_CHOICE, FIELD(device), "cpu|cuda", "where to train (default: cpu)"},
    {"--groups", ARG_CHOICE, FIELD(groups), "one|hf",
     "hf: no weight decay on biases and norms (default: one group)"},
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"--export", ARG_STRING, FIELD(export_dir), "DIR", "write a Hugging Face folder at the end"},
    {"--eval-data", ARG_WORDS, FIELD(eval_data), "PATH", "report the loss on these at the end"},
    {"--curve", ARG_STRING, FIELD(curve), "FILE.csv",
     "write step,loss,lr_next,grad_norm,loss_scale"},
    {"--log-json", ARG_FLAG, FIELD(log_json), NULL, "one JSON object per step on stdout"},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "no progress, warnings only"},
    {"--save", ARG_STRING, FIELD(save), "DIR", "checkpoints (not yet)"},
    {"--save-interval", ARG_INT, FIELD(save_interval), "N", "(not yet)", .min = 1},
    {"--save-keep", ARG_INT, FIELD(save_keep), "N", "(not yet)", .min = 1},
    {"--resume", ARG_STRING, FIELD(resume), "DIR[:TAG]", "(not yet)"},
    {"", ARG_HEADING, 0, NULL, "Values for \"auto\" in the config:"},
    {"--lr", ARG_DOUBLE, FIELD(lr), "X", "learning rate"},
    {"--warmup-steps", ARG_INT, FIELD(warmup_steps), "N", "steps of warm-up", .min = 0},
    {"--micro-batch", ARG_INT, FIELD(micro_batch), "N", "rows per forward pass", .min = 1},
    {"--accumulation", ARG_INT, FIELD(accumulation), "N", "micro-batches per step", .min = 1},
    {"--weight-decay", ARG_DOUBLE, FIELD(weight_decay), "X", "weight decay"},
    {"--max-grad-norm", ARG_DOUBLE, FIELD(max_grad_norm), "X", "gradient clipping"},
    {"--precision", ARG_CHOICE, FIELD(precision), "fp32|bf16|fp16", "arithmetic"},
    {"--auto", ARG_LIST, FIELD(autos), "NAME=VALUE", "any other \"auto\", by its path"},
    {"", ARG_HEADING, 0, NULL, "Config:"},
    {"--set", ARG_LIST, FIELD(set), "path=value", "override any key of the config"},
    {"--strict", ARG_FLAG, FIELD(strict), NULL, "unknown keys are errors"},
    {"--compat", ARG_CHOICE, FIELD(compat), "0.16|0.19",
     "defaults of that DeepSpeed version (default: 0.19)"},
};

static const struct arg_command train_command = {
    .name = "czero train",
    .summary = "Train a model from a DeepSpeed config.",
    .specs = train_specs,
    .n_specs = CZ_ARRAY_LEN(train_specs),
    .epilogue = "Example:\n"
                "  czero train --config configs/quickstart.json --model gpt2-tiny \\\n"
                "              --data corpus.txt --seq-len 64 --steps 600 --export trained/\n\n"
                "With --shuffle off, row k of the data is tokens [k*T, k*T+T], and micro step g of\n"
                "step s on rank r takes rows ((s*accumulation+g)*world+r)*micro + i.\n"
                "SIGTERM ends the run at the next step with exit code 0.",
};

/* --auto assignments made from the flags; texts owned by the struct. */
struct auto_values {
    char texts[40][96];
    const char *items[ARG_LIST_MAX + 41];
    size_t n_texts, n_items;
};

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...)
    CZ_PRINTF(3, 4);

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...)
{
    if (a->n_texts == CZ_ARRAY_LEN(a->texts)) return;
    char *text = a->texts[a->n_texts++];
    int n = snprintf(text, sizeof a->texts[0], "%s=", path);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof a->texts[0] - (size_t)n, fmt, ap);
    va_end(ap);
    a->items[a->n_items++] = text;
}

/* The Hugging Face integration's rules: which flag fills which "auto". */
static void auto_from_flags(struct auto_values *a, const struct train_options *o,
                            const struct model *model)
{
    for (size_t i = 0; i < o->autos.n; i++) a->items[a->n_items++] = o->autos.items[i];
    auto_add(a, "hidden_size", "%lld", (long long)model_hidden_size(model));
    auto_add(a, "scheduler.params.total_num_steps", "%lld", (long long)o->steps);
    auto_add(a, "scheduler.params.warmup_min_lr", "0");
    if (o->micro_batch > 0)
        auto_add(a, "train_micro_batch_size_per_gpu", "%lld", (long long)o->micro_batch);
    if (o->accumulation > 0)
        auto_add(a, "gradient_accumulation_steps", "%lld", (long long)o->accumulation);
    if (o->micro_batch > 0)
        auto_add(a, "train_batch_size", "%lld",
                 (long long)(o->micro_batch * (o->accumulation > 0 ? o->accumulation : 1)));
    if (!isnan(o->lr)) {
        auto_add(a, "optimizer.params.lr", "%.17g", o->lr);
        auto_add(a, "scheduler.params.warmup_max_lr", "%.17g", o->lr);
    }
    if (o->warmup_steps >= 0)
        auto_add(a, "scheduler.params.warmup_num_steps", "%lld", (long long)o->warmup_steps);
    if (!isnan(o->weight_decay))
        auto_add(a, "optimizer.params.weight_decay", "%.17g", o->weight_decay);
    if (!isnan(o->max_grad_norm)) auto_add(a, "gradient_clipping", "%.17g", o->max_grad_norm);
    if (o->precision) {
        auto_add(a, "fp16.enabled", "%s", strcmp(o->precision, "fp16") == 0 ? "true" : "false");
        auto_add(a, "bf16.enabled", "%s", strcmp(o->precision, "bf16") == 0 ? "true" : "false");
    }
}
