/* czero train: a DeepSpeed config, a model and data in; a trained model out. */
#include "tools/czero/tool.h"
#include "tools/czero/train/train.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#define FIELD(member) offsetof(struct train_options, member)

static const struct arg_spec train_specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE", "DeepSpeed config", .required = true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset: gpt2, llama-160m, qwen2-0.5b, bert-base, …",
     .required = true},
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "text or token files (.bin, Megatron .bin/.idx); classification: labelled texts (.json, "
     ".jsonl, .csv, .tsv)",
     .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T",
     "tokens per row; classification: at most so many (default: 128)", .min = 1},
    {"--steps", ARG_INT, FIELD(steps), "N", "optimizer steps, skipped ones included", .min = 1},
    {"--epochs", ARG_INT, FIELD(epochs), "N", "or: passes over the data", .min = 1},
    {"", ARG_HEADING, 0, NULL, "Model and data:"},
    {"--task", ARG_CHOICE, FIELD(task), "causal-lm|masked-lm|classification",
     "what to learn (default: what the model's head is for)"},
    {"--init", ARG_STRING, FIELD(init), "random|DIR",
     "where weights come from: a Hugging Face folder, or a checkpoint, of which nothing else is "
     "used (default: the model's folder; random for a preset)"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "how text becomes tokens (default: the model folder's tokenizer, else bytes)"},
    {"--seed", ARG_INT, FIELD(seed), "S",
     "weights, shuffling and dropout (default: 42; with --resume the run's)"},
    {"--shuffle", ARG_CHOICE, FIELD(shuffle), "on|off",
     "order of rows (default: on; with --resume the run's)"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "parameters that are not trained"},
    {"--device", ARG_STRING, FIELD(device), "cpu|cuda|cuda:N", "where to train (default: cpu)"},
    {"--groups", ARG_CHOICE, FIELD(groups), "one|hf",
     "hf: no weight decay on biases and norms (default: one group)"},
    {"--mask-probability", ARG_DOUBLE, FIELD(mask_probability), "P",
     "masked-lm: share of tokens to guess (default: 0.15)"},
    {"", ARG_HEADING, 0, NULL, "Labelled texts:"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME", "with a second text, if any"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME", "with the label (default: label)"},
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL,
     "remove white space inside texts (texts cut into words)"},
    {"--bucket", ARG_CHOICE, FIELD(bucket), "on|off",
     "rows of like length into one batch (default: on)"},
    {"", ARG_HEADING, 0, NULL, "Evaluation:"},
    {"--eval-data", ARG_WORDS, FIELD(eval_data), "PATH",
     "evaluate on these: classification after every epoch, else at the end"},
    {"--eval-interval", ARG_STRING, FIELD(eval_interval), "N|epoch", "and after every N steps"},
    {"--best-metric", ARG_CHOICE, FIELD(best_metric),
     "loss|accuracy|macro_f1|weighted_f1|macro_precision|macro_recall",
     "keep the checkpoint of the best evaluation in SAVE/best, and export that one"},
    {"--early-stopping", ARG_INT, FIELD(early_stopping), "N",
     "stop after N evaluations without a better one (by --best-metric, default: loss)", .min = 1},
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"--export", ARG_STRING, FIELD(export_dir), "DIR",
     "write a Hugging Face folder at the end, with the tokenizer"},
    {"--curve", ARG_STRING, FIELD(curve), "FILE.csv",
     "write step,loss,lr_next,grad_norm,loss_scale"},
    {"--metrics", ARG_STRING, FIELD(metrics), "FILE.csv",
     "write loss and accuracy of training and evaluations (czero plot draws them)"},
    {"--dry-run-lr", ARG_FLAG, FIELD(dry_run_lr), NULL,
     "print the learning rate of every step (if none is skipped), and do not train"},
    {"--tensorboard", ARG_STRING, FIELD(tensorboard), "DIR", "write them for TensorBoard"},
    {"--log-json", ARG_FLAG, FIELD(log_json), NULL, "one JSON object per step on stdout"},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "no progress, warnings only"},
    {"", ARG_HEADING, 0, NULL, "Checkpoints:"},
    {"--save", ARG_STRING, FIELD(save), "DIR",
     "write a checkpoint (DeepSpeed's format) after the last step"},
    {"--save-interval", ARG_INT, FIELD(save_interval), "N", "and after every N steps", .min = 1},
    {"--save-keep", ARG_INT, FIELD(save_keep), "N",
     "remove all but the newest N (default: keep all)", .min = 1},
    {"--resume", ARG_STRING, FIELD(resume), "DIR[:TAG]",
     "go on from a checkpoint, czero's or DeepSpeed's, of any stage and number of ranks (default "
     "tag: the latest)"},
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
    .epilogue =
        "Example:\n"
        "  czero train --config configs/quickstart.json --model gpt2-tiny \\\n"
        "              --data corpus.txt --seq-len 64 --steps 600 --export trained/\n"
        "  czero train --config configs/classification.json --model path/to/bert \\\n"
        "              --task classification --data train.csv --eval-data dev.csv --epochs 3 \\\n"
        "              --save runs/a --best-metric accuracy --export classifier/\n\n"
        "With --shuffle off, row k of the data is tokens [k*T, k*T+T], and micro step g of\n"
        "step s on rank r takes rows ((s*accumulation+g)*world+r)*micro + i.\n"
        "SIGTERM ends the run at the next step, saved if --save says where, with exit code 0.\n"
        "Several ranks: czero launch -n N -- train … (czero launch --help).",
};

static void on_stop(int signal_number)
{
    (void)signal_number;
    run_ask_to_stop();
}

/* One rank ends at Ctrl-C as any program does, but for its swap file; several end together, after
 * the step under way. */
static void handle_signals(const struct run *r)
{
    bool several = engine_world_size(r->world) > 1;
    signal(SIGTERM, on_stop);
    if (several) signal(SIGINT, on_stop);
    tool_tidy_at_signals(engine_remove_swap_files, several ? SIGINT : 0);
}

/* Tell the user, unless another rank does, and the ranks that wait for this one. */
static int fail(const struct run *r, cz_status st)
{
    bool all_know = st == CZ_DIVERGED; /* agreed by all: one voice is enough */
    engine_world_leave(r->world, cz_last_error());
    if (!r->speaks || (all_know && !run_is_first_rank(r))) return tool_exit_code(st);
    return tool_fail();
}

int cmd_train(int argc, char **argv)
{
    struct train_options options = {
        .seed = -1,
        .warmup_steps = -1,
        .lr = NAN,
        .weight_decay = NAN,
        .max_grad_norm = NAN,
        .mask_probability = NAN,
    };
    struct arg_command command = train_command;
    command.silent = engine_world_started_as() > 0;
    enum args_result parsed = args_parse(&command, argc, argv, &options);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(options.quiet);
    struct run run = {.options = &options, .speaks = true, .last_step = -1};
    tool_hold_signals(0);
    cz_status st = engine_world_create(&run.world);
    if (st == CZ_OK) {
        handle_signals(&run);
        st = run_open(&run);
    }
    if (st == CZ_OK) st = options.dry_run_lr ? config_print_rates(&run) : run_train(&run);
    int code = st == CZ_OK ? EXIT_OK : fail(&run, st);
    run_close(&run);
    return code;
}
