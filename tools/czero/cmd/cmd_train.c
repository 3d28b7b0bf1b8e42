/* czero train: a DeepSpeed config, a model and data in; a trained model out. */
#include "model/families.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/train.h"

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#define FIELD(member) offsetof(struct train_options, member)
#define VALUE(member) offsetof(struct train_options, values.member)

static const struct arg_spec train_specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE", "DeepSpeed config", .required = true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset: ", .list = model_preset_examples, .required = true},
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "text, .jsonl or .json with \"text\", or token files (.bin, Megatron .bin/.idx); "
     "sft: .jsonl or .json of chats or instructions; "
     "classification: labelled texts (.json, .jsonl, .csv, .tsv); token classification: words "
     "(.conll, .jsonl); all may be .gz or .zst, or in a folder",
     .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T",
     "tokens per row; classification: at most T (default: 128); sft: at most T (default: 1024)",
     .min = 1},
    {"--steps", ARG_INT, FIELD(steps), "N", "optimizer steps, including skipped steps", .min = 1},
    {"--epochs", ARG_DOUBLE, FIELD(epochs), "N",
     "passes over the data, instead of --steps; 0.5 is half of one"},
    {"", ARG_HEADING, 0, NULL, "Model and data:"},
    {"--task", ARG_CHOICE, FIELD(task),
     "causal-lm|masked-lm|classification|token-classification|replaced-tokens|sft",
     "training task (default: the task of the model's head)"},
    {"--init", ARG_STRING, FIELD(init), "random|DIR",
     "initial weights: random, a Hugging Face folder, or a checkpoint, of which only the weights "
     "are used (default: the model's folder; random for a preset)"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder, else bytes)"},
    {"--seed", ARG_INT, FIELD(seed), "S",
     "seed of weights, shuffling and dropout (default: 42; with --resume: the seed of the run)"},
    {"--shuffle", ARG_CHOICE, FIELD(shuffle), "on|off",
     "shuffle the rows (default: on; with --resume: as in the run)"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "do not train parameters whose names match"},
    {"--adapter", ARG_STRING, FIELD(adapter), "DIR",
     "train this adapter further (of PEFT or czero), the model frozen; --lora begins a new one"},
    {"--device", ARG_STRING, FIELD(device), "cpu|cuda|cuda:N", "device to train on (default: cpu)"},
    {"--profile", ARG_STRING, VALUE(profile), "FILE",
     "machine profile (czero bench --profile), by which the plan decides what waits on NVMe and "
     "what is recomputed: the config's czero.machine_profile"},
    {"--groups", ARG_CHOICE, FIELD(groups), "one|hf",
     "parameter groups; hf: no weight decay on biases and norms (default: hf where the config has "
     "no optimizer, else one)"},
    {"--per-document", ARG_FLAG, FIELD(per_document), NULL,
     "causal-lm: attention and positions stay within a document, which the end-of-text token ends"},
    {"--mask-probability", ARG_DOUBLE, FIELD(mask_probability), "P",
     "masked-lm: share of tokens to predict; replaced-tokens: to replace (default: 0.15)"},
    ENCODING_OPTION(FIELD(encoding)),
    {"--drop-last", ARG_FLAG, FIELD(drop_last), NULL,
     "omit rows at an epoch's end that fill no step (language models: no micro-batch)"},
    {"", ARG_HEADING, 0, NULL, "Instructions and chats (--task sft):"},
    {"--chat-template", ARG_STRING, FIELD(chat_template), "NAME|FILE",
     "chat template: one that the tokenizer's folder has under this name, or a file (default: the "
     "folder's)"},
    {"--loss-on", ARG_CHOICE, FIELD(loss_on), "assistant|completion|all",
     "train what the assistant writes, the completion or last answer, or all tokens (default: "
     "assistant for chats, completion where a row has one, all for plain text)"},
    {"--packing", ARG_FLAG, FIELD(packing), NULL,
     "put several examples into one row, each with its own attention and positions"},
    {"--token-cache", ARG_STRING, FIELD(token_cache), "DIR",
     "keep tokens of the rows in this folder, and take those that are there: a run that is "
     "resumed or repeated starts without tokenizing again"},
    {"", ARG_HEADING, 0, NULL, "Labelled texts:"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME",
     "column or member with a second text, if any"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME",
     "column or member with the label (default: label)"},
    {"--class-names", ARG_STRING, FIELD(class_names), "A,B,…|FILE",
     "names of the classes that integer labels number from 0; FILE: one per line"},
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL,
     "remove white space inside texts (of corpora segmented into words)"},
    SKIP_UNLABELLED_OPTION(FIELD(skip_unlabelled)),
    {"--bucket", ARG_CHOICE, FIELD(bucket), "on|off",
     "put rows of similar length into one batch (default: on)"},
    {"", ARG_HEADING, 0, NULL, "Evaluation:"},
    {"--eval-data", ARG_WORDS, FIELD(eval_data), "PATH",
     "evaluate on these files (repeated: on all): classification after every epoch, others at the "
     "end"},
    {"--eval-split", ARG_DOUBLE, FIELD(eval_split), "SHARE",
     "evaluate on this random share of --data instead, such as 0.1; drawn by --seed"},
    {"--test-data", ARG_WORDS, FIELD(test_data), "PATH",
     "evaluate on these files once, at the end"},
    {"--eval-interval", ARG_STRING, FIELD(eval_interval), "N|epoch",
     "evaluate after every N steps, or after every epoch"},
    {"--best-metric", ARG_CHOICE, FIELD(best_metric),
     "loss|accuracy|macro_f1|weighted_f1|macro_precision|macro_recall|f1|precision|recall|mse|mae|"
     "pearson|spearman|r2",
     "keep the checkpoint of the best evaluation in SAVE/best, and export it"},
    {"--best-keep", ARG_INT, FIELD(best_keep), "K",
     "keep the checkpoints of the K best evaluations in SAVE/best (default: 1)", .min = 1},
    {"--early-stopping", ARG_INT, FIELD(early_stopping), "N",
     "stop after N evaluations without an improvement (of --best-metric; default: loss)", .min = 1},
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"--export", ARG_STRING, FIELD(export_dir), "DIR",
     "write a Hugging Face folder with the tokenizer at the end"},
    {"--export-dtype", ARG_CHOICE, FIELD(export_dtype), "fp32|bf16|fp16",
     "type of the exported weights (default: that of --model's files, fp32 without files)"},
    {"--curve", ARG_STRING, FIELD(curve), "FILE.csv",
     "write step,loss,lr_next,grad_norm,loss_scale"},
    {"--metrics", ARG_STRING, FIELD(metrics), "FILE.csv",
     "write loss and accuracy of training and evaluations (for czero plot)"},
    {"--dry-run-lr", ARG_FLAG, FIELD(dry_run_lr), NULL,
     "print the learning rate of every step (assuming that none is skipped), without training"},
    {"--tensorboard", ARG_STRING, FIELD(tensorboard), "DIR",
     "write the same metrics for TensorBoard"},
    {"--log-json", ARG_FLAG, FIELD(log_json), NULL, "print one JSON object per step to stdout"},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "print warnings only, no progress"},
    {"", ARG_HEADING, 0, NULL, "Checkpoints:"},
    {"--save", ARG_STRING, FIELD(save), "DIR",
     "write a checkpoint in DeepSpeed's format after the last step"},
    {"--save-interval", ARG_INT, FIELD(save_interval), "N",
     "also write a checkpoint after every N steps", .min = 1},
    {"--save-keep", ARG_INT, FIELD(save_keep), "N",
     "keep only the newest N checkpoints that czero saved there (default: keep all)", .min = 1},
    {"--save-weights-only", ARG_FLAG, FIELD(save_weights_only), NULL,
     "save weights without optimizer states: smaller checkpoints, which --resume refuses"},
    {"--resume", ARG_STRING, FIELD(resume), "auto|DIR[:TAG]",
     "resume from a checkpoint of czero or DeepSpeed, of any stage and number of ranks (default "
     "tag: the latest); auto, or the option alone: the newest state in --save, or start if there "
     "is "
     "none",
     .alone = "auto"},
    {"--rename", ARG_LIST, FIELD(renames), "s/REGEX/REPL/",
     "change the checkpoint's tensor names, as sed -E does; repeatable"},
    {"--force", ARG_FLAG, FIELD(force), NULL,
     "move another run's checkpoints in --save aside, replace its --curve, --metrics and --export"},
    CONFIG_ARGS_VALUES(VALUE),
};

const struct arg_command train_command = {
    .name = "czero train",
    .summary = "Train a model from a DeepSpeed config.",
    .specs = train_specs,
    .n_specs = CZ_ARRAY_LEN(train_specs),
    .one_of = "--steps|--epochs",
    .examples = "  czero train --config configs/quickstart.json --model gpt2-tiny \\\n"
                "              --data corpus.txt --seq-len 64 --steps 600 --export trained/\n"
                "  czero train --config configs/classification.json --model path/to/bert \\\n"
                "              --task classification --data train.csv --eval-data dev.csv \\\n"
                "              --epochs 3 --save runs/a --best-metric accuracy \\\n"
                "              --export classifier/",
    .epilogue = "With --shuffle off, row k of the data is tokens [k*T, k*T+T], and micro step g\n"
                "of step s on rank r takes rows ((s*accumulation+g)*world+r)*micro + i.\n"
                "On SIGTERM, and on Ctrl-C with --save, the run stops after the current step,\n"
                "saves if --save is given, and exits with code 0.\n"
                "Several ranks: czero launch -n N train … (czero launch --help).",
};

static void on_stop(int signal_number)
{
    (void)signal_number;
    run_ask_to_stop();
}

static void on_interrupt(void)
{
    fprintf(stderr, "\nczero: stopping after this step, then saving; Ctrl-C again ends at once\n");
    run_ask_to_stop();
}

static void on_end(void)
{
    engine_remove_swap_files();
    fprintf(stderr, "\nczero: interrupted: nothing was saved (--save DIR keeps checkpoints)\n");
}

/* At Ctrl-C one rank ends as any program does, but for its swap file, or with --save after the step
 * under way; several end together. */
static void handle_signals(const struct run *r)
{
    bool several = engine_world_size(r->world) > 1, saves = r->options->save != NULL;
    tool_handle_signal(SIGTERM, on_stop);
    if (several) tool_handle_signal(SIGINT, on_stop);
    tool_tidy_at_signals(saves ? engine_remove_swap_files : on_end, several ? SIGINT : 0,
                         saves ? on_interrupt : NULL);
}

/* When all ranks failed with the same agreed error, the first one prints it; any other failure is
 * printed where it happened. */
static int fail(const struct run *r, cz_status st)
{
    bool all_know = st == CZ_DIVERGED; /* agreed by all: one voice is enough */
    engine_world_leave(r->world, cz_last_error());
    if (!r->speaks || (all_know && !run_is_first_rank(r))) return tool_exit_code(st);
    return tool_fail();
}

/* "runs/a/" is "runs/a" in every path that is printed. The text is of argv, which may be written.
 */
static void trim_slashes(const char *path)
{
    size_t n = path ? strlen(path) : 0;
    while (n > 1 && path[n - 1] == '/') ((char *)(uintptr_t)path)[--n] = '\0';
}

static cz_status take_drop_last(struct train_options *o)
{
    struct arg_list *sets = &o->values.sets;
    if (!o->drop_last) return CZ_OK;
    if (sets->n == ARG_LIST_MAX)
        return err_set(CZ_INVALID, 0, "--drop-last and %d values of --set: use %d at most",
                       ARG_LIST_MAX, ARG_LIST_MAX - 1);
    sets->items[sets->n++] = "dataloader_drop_last=true";
    return CZ_OK;
}

int cmd_train(int argc, char **argv)
{
    struct train_options options = {
        .seed = -1,
        .values = config_args_none(),
        .epochs = NAN,
        .mask_probability = NAN,
        .eval_split = NAN,
    };
    struct arg_command command = train_command;
    command.silent = engine_world_started_as() > 0;
    enum args_result parsed = args_parse(&command, argc, argv, &options);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(options.quiet);
    if (take_drop_last(&options) != CZ_OK) return tool_fail();
    trim_slashes(options.save);
    trim_slashes(options.export_dir);
    trim_slashes(options.resume);
    struct run run = {.options = &options, .speaks = true, .last_step = -1};
    tool_hold_signals(0);
    cz_status st = engine_world_create(&run.world);
    tool_log_hold();
    if (st == CZ_OK) {
        handle_signals(&run);
        st = engine_world_agree(run.world, adapter_find_base(&options.model, &options.adapter),
                                &run.speaks);
    }
    if (st == CZ_OK) st = run_open(&run);
    if (st == CZ_OK && !options.dry_run_lr) run_say_start(&run);
    tool_log_show();
    if (st == CZ_OK) st = options.dry_run_lr ? config_print_rates(&run) : run_train(&run);
    int code = st == CZ_OK ? EXIT_OK : fail(&run, st);
    run_close(&run);
    return code;
}
