/* czero init: writes a ds_config and a command line for a model, data and a machine. The search for
 * a configuration is czero tune's; this file collects what that search needs and writes its
 * result. */
#include "base/printable.h"
#include "base/size.h"
#include "data/chat/chat_set.h"
#include "engine/tune/tune.h"
#include "formats/file_io.h"
#include "model/families.h"
#include "tools/czero/cmd/init.h"
#include "tools/czero/commands.h"
#include "tools/czero/config_args.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIELD(member) offsetof(struct init_flags, member)

static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or a preset: ", .list = model_preset_examples},
    {"--data", ARG_WORDS, FIELD(data), "PATH", "training data, as for czero train"},
    {"--task", ARG_STRING, FIELD(task),
     "classification|token-classification|sft|causal-lm|masked-lm",
     "training task (default: from the model and the first rows of the data)"},
    {"--lora", ARG_STRING, FIELD(lora), "KEY=VALUE,…|all",
     "train a low-rank adapter, as --lora of czero train; all: all weights (default: an adapter "
     "where not all weights of a trained model fit)",
     .alone = ""},
    {"--packing", ARG_FLAG, FIELD(packing), NULL, "sft: put several examples into one row"},
    {"--eval-data", ARG_WORDS, FIELD(eval_data), "PATH|SHARE",
     "evaluation data, or a share of --data, or none (default: 0.1 of labelled data)"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder, else bytes)"},
    {"", ARG_HEADING, 0, NULL, "Hardware (defaults: this machine):"},
    {"--device", ARG_STRING, FIELD(device), "cpu|cuda", "device to train on"},
    {"--gpu-memory", ARG_STRING, FIELD(gpu), "SIZE", "memory of each rank's GPU, such as 24GB"},
    {"--host-memory", ARG_STRING, FIELD(host), "SIZE", "host memory for all ranks"},
    {"--nvme", ARG_STRING, FIELD(nvme), "SIZE",
     "disk space for swap files of all ranks (default: none)"},
    {"--nvme-path", ARG_STRING, FIELD(nvme_path), "DIR",
     "folder of the swap files (default: /tmp)"},
    {"--ranks", ARG_STRING, FIELD(ranks), "N", "number of ranks, on one host"},
    {"--precision", ARG_STRING, FIELD(precision), "fp32|bf16|fp16",
     "training precision (default: bf16 if the hardware multiplies it)"},
    {"", ARG_HEADING, 0, NULL, "Run:"},
    {"--seq-len", ARG_STRING, FIELD(seq_len), "T",
     "maximum tokens per row (default: 128; language models: 512)"},
    {"--epochs", ARG_STRING, FIELD(epochs), "N",
     "passes over the data (default: 3; language models: 1)"},
    {"--steps", ARG_STRING, FIELD(steps), "N", "optimizer steps, instead of --epochs"},
    {"--batch", ARG_STRING, FIELD(batch), "ROWS",
     "rows of an optimizer step over all ranks (default: 32; fewer than 1,000 labelled texts: 8)"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME",
     "column or member with a second text, if any"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME",
     "column or member with the label (default: label)"},
    ENCODING_OPTION(FIELD(encoding)),
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL, "remove white space inside texts"},
    SKIP_UNLABELLED_OPTION(FIELD(skip_unlabelled)),
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"-o", ARG_STRING, FIELD(out), "FILE", "config file (default: ds_config.json)"},
    {"--script", ARG_STRING, FIELD(script), "FILE",
     "command-line file (default: train.sh in the folder of the config)"},
    {"--force", ARG_FLAG, FIELD(force), NULL, "overwrite existing files"},
    {"--yes", ARG_FLAG, FIELD(yes), NULL, "ask no questions, use the defaults"},
};

const struct arg_command init_command = {
    .name = "czero init",
    .summary = "Create a ds_config and a command line to train with it.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "czero init asks on the terminal for values that no option sets, with the default\n"
                "in brackets: Enter accepts it. The first rows of the data suggest the task.\n"
                "Without a terminal a missing option is an error, unless --yes is given.\n"
                "Of the configurations that fit, `czero tune` chooses stage, offload,\n"
                "checkpointing and micro-batch so that the fewest bytes move. The run writes\n"
                "metrics.csv, checkpoints and model to the folder of the config.",
    .examples = "  czero init --model bert-base-chinese/ --data train.json \\\n"
                "             --eval-data dev.json --yes\n"
                "  czero init --model qwen3-1.7b/ --data chats.jsonl --lora --yes",
    .exits = NOTHING_FITS,
};

/* ---- the config ----------------------------------------------------------------------------- */

/* With the data's classes, since the head is part of the memory to plan. */
static struct cz_model *open_model(const struct init *in)
{
    struct cz_model_options options = {
        .size = sizeof options, .task = in->task, .vocab_size = in->vocab_size};
    if (in->texts) {
        options.labels = cz_texts_labels(in->texts);
        options.n_labels = cz_texts_n_labels(in->texts);
    }
    struct cz_model *m = cz_model_open_ex(in->model, &options);
    if (!m || cz_model_set_shape(m, in->seq_len) == CZ_OK) return m;
    cz_model_destroy(m);
    return NULL;
}

static cz_status open_tokenizer(const struct init *in, struct cz_tokenizer **out)
{
    const char *name = in->tokenizer ? in->tokenizer : in->is_preset ? NULL : in->model;
    *out = NULL;
    return name && (in->tokenizer || cz_tokenizer_is_in(name)) ? cz_tokenizer_open(name, out)
                                                               : CZ_OK;
}

/* Text is read at some 10 MB a second: a longer wait would look like a program that hangs. */
#define CHECK_NBYTES_MAX ((off_t)256 << 20)

static bool is_quick_to_check(const struct arg_list *paths)
{
    off_t nbytes = 0;
    struct stat info;
    for (size_t i = 0; i < paths->n; i++)
        if (stat(paths->items[i], &info) == 0) nbytes += info.st_size;
    return nbytes <= CHECK_NBYTES_MAX;
}

/* Without packing a row is one example, and a batch as wide as its longest row. */
static void suggest_packing(const struct init *in, const struct chat_set *s)
{
    const size_t batch = in->batch > 0 ? (size_t)in->batch : 8;
    size_t room = 0;
    for (size_t i = 0; i < s->n_examples; i += batch) {
        const size_t n = s->n_examples - i < batch ? s->n_examples - i : batch;
        size_t widest = 0;
        for (size_t k = i; k < i + n; k++)
            if (s->examples[k].n > widest) widest = s->examples[k].n;
        room += n * widest;
    }
    if (2 * s->n_tokens >= room) return;
    tool_note("Rows fill %.0f %% of a batch; --packing puts several examples into one row.",
              100.0 * (double)s->n_tokens / (double)room);
}

/* Chats that the run would refuse, such as those without a template, are refused here. */
static cz_status check_chats(const struct init *in)
{
    struct cz_tokenizer *tok = NULL;
    struct chat_encoder encoder = {0};
    struct chat_set *set = NULL;
    struct chat_set_options options = {.paths = in->data.items,
                                       .n_paths = in->data.n,
                                       .max_len = in->seq_len,
                                       .encoding = in->flags->encoding,
                                       .packs = in->flags->packing};
    if (!in->is_sft || !is_quick_to_check(&in->data)) return CZ_OK;
    cz_status st = open_tokenizer(in, &tok);
    if (st != CZ_OK) goto done;
    TRY_GOTO(chat_encoder_open(&encoder, tok, NULL, NULL), done);
    options.encoder = encoder;
    TRY_GOTO(chat_set_open(&options, &set), done);
    if (!options.packs) suggest_packing(in, set);
done:
    chat_set_close(set);
    chat_encoder_close(&encoder);
    cz_tokenizer_close(tok);
    return st;
}

static cz_status search(const struct init *in, const struct config_lora *lora, struct tune **out)
{
    const struct tune_options options = {.world_size = in->ranks,
                                         .gpu_nbytes = in->gpu_nbytes,
                                         .host_nbytes = in->host_nbytes,
                                         .nvme_nbytes = in->nvme_nbytes,
                                         .nvme_path = in->flags->nvme_path,
                                         .dtype = in->dtype,
                                         .batch = in->batch,
                                         .lora = lora,
                                         .fall = TUNE_FALL_AT_THE_END};
    struct cz_model *m = open_model(in);
    if (!m) return cz_last_status();
    cz_status st = tune_create(&options, m, out);
    cz_model_destroy(m);
    return st;
}

/* "fits: 3.10 GiB of host memory", or what is missing. */
static void say_fit(const struct init *in, const char *what, const struct tune *t)
{
    const struct tune_offer *o = tune_offer(t, 0);
    char host[24], gpu[24];
    if (!tune_best(t)) {
        printable_print(stderr, "%s: %s\n", what, o->why);
        return;
    }
    printable_print(stderr, "%s: fits, %s of host memory", what,
                    size_human(o->need_nbytes[TUNE_HOST], host, sizeof host));
    if (in->on_gpu)
        printable_print(stderr, " and %s of each GPU",
                        size_human(o->need_nbytes[TUNE_GPU], gpu, sizeof gpu));
    fprintf(stderr, "\n");
}

/* As czero tune's first line. */
static void say_verdict(const struct tune *t, const struct tune *adapter)
{
    char text[TUNE_VERDICT_NBYTES];
    tool_note("%s", tune_verdict(t, adapter, "--lora " LORA_USUAL, text, sizeof text));
}

/* Random weights are trained whole unless an adapter is asked for: there is nothing to adapt. An
 * adapter is what is left where a trained model does not fit. */
static cz_status choose(struct init *in, struct tune **out)
{
    struct tune *whole = NULL, *adapter = NULL;
    const bool asks = isatty(STDIN_FILENO) && !in->flags->yes && !in->flags->lora;
    bool is_told;
    cz_status st = check_chats(in);
    if (st == CZ_OK && in->flags->lora) st = init_ask_training(in, NULL);
    if (st == CZ_OK && !in->lora) st = search(in, NULL, &whole);
    if (st != CZ_OK || in->lora || in->flags->lora || !in->has_weights) goto done;
    if (asks || !tune_best(whole)) {
        TRY_GOTO(config_args_lora(LORA_USUAL, &in->lora_config, &in->usual_lora), done);
        TRY_GOTO(search(in, in->usual_lora, &adapter), done);
    }
    if (asks) {
        say_fit(in, "All weights", whole);
        say_fit(in, "An adapter", adapter);
    }
    const bool adapts = !tune_best(whole) && adapter && tune_best(adapter);
    st = init_ask_training(in, adapts ? "adapter" : "all");
done:
    /* After the question, which told what fits, the verdict is that of the choice. */
    is_told = st == CZ_OK && whole && !(asks && in->lora);
    if (is_told) say_verdict(whole, adapter);
    if (st == CZ_OK && in->lora && (!adapter || in->lora != in->usual_lora)) {
        tune_destroy(adapter);
        st = search(in, in->lora, &adapter);
    }
    if (st == CZ_OK && in->lora && !is_told) say_verdict(adapter, NULL);
    tune_destroy(in->lora ? whole : adapter);
    *out = in->lora ? adapter : whole;
    return st;
}

/* ---- the command line ----------------------------------------------------------------------- */

struct files {
    char config[4096], script[4096], dir[4096]; /* dir: "" or "DIR/" */
};

/* As a shell reads it back. */
static void put_word(FILE *out, const char *word)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                               "_-./:=,+@%";
    if (*word && word[strspn(word, safe)] == '\0') {
        printable_print(out, "%s", word);
        return;
    }
    putc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fprintf(out, "'\\''");
        else
            putc(*word, out);
    putc('\'', out);
}

static void put_option(FILE *out, const char *name, const char *value)
{
    if (!value) return;
    printable_print(out, " \\\n  %s ", name);
    put_word(out, value);
}

static void put_number(FILE *out, const char *name, int64_t value)
{
    if (value > 0) printable_print(out, " \\\n  %s %lld", name, (long long)value);
}

static void put_list(FILE *out, const char *name, const struct arg_list *list)
{
    if (list->n == 0) return;
    printable_print(out, " \\\n  %s", name);
    for (size_t i = 0; i < list->n; i++) {
        putc(' ', out);
        put_word(out, list->items[i]);
    }
}

static void put_output(FILE *out, const char *name, const char *dir, const char *file)
{
    char path[4200];
    snprintf(path, sizeof path, "%s%s", dir, file);
    put_option(out, name, path);
}

/* For --lr: the config says "auto", so that an --lr of the user replaces it. */
static void rate_of(const struct tune *t, char rate[32])
{
    snprintf(rate, 32, "%g", tune_recipe(t)->lr);
}

/* `program`: a word of the shell. */
static void put_command(FILE *out, const char *program, const struct init *in, const char *rate,
                        const struct files *f)
{
    const char *best = in->task == CZ_TASK_CLASSIFICATION         ? "accuracy"
                       : in->task == CZ_TASK_TOKEN_CLASSIFICATION ? "f1"
                                                                  : "loss";
    printable_print(out, "%s ", program);
    if (in->ranks > 1)
        fprintf(out, "launch -n %lld -- train", (long long)in->ranks);
    else
        fprintf(out, "train");
    put_option(out, "--config", f->config);
    put_option(out, "--model", in->model);
    put_option(out, "--task", init_task_name(in));
    put_list(out, "--data", &in->data);
    put_list(out, "--eval-data", &in->eval_data);
    put_option(out, "--eval-split", in->eval_split);
    put_option(out, "--tokenizer", in->tokenizer);
    if (!in->is_preset && !in->has_weights) put_option(out, "--init", "random");
    put_option(out, "--text-column", in->flags->text_column);
    put_option(out, "--pair-column", in->flags->pair_column);
    put_option(out, "--label-column", in->flags->label_column);
    put_option(out, "--encoding", in->flags->encoding);
    if (in->flags->strip_spaces) fprintf(out, " \\\n  --strip-spaces");
    if (in->flags->skip_unlabelled) fprintf(out, " \\\n  --skip-unlabelled");
    if (in->flags->packing) fprintf(out, " \\\n  --packing");
    if (in->on_gpu) put_option(out, "--device", "cuda");
    put_number(out, "--seq-len", in->seq_len);
    put_number(out, "--epochs", in->epochs);
    put_number(out, "--steps", in->steps);
    put_option(out, "--lr", rate);
    put_option(out, "--warmup-ratio", "0.1");
    put_output(out, "--metrics", f->dir, "metrics.csv");
    put_output(out, "--save", f->dir, "checkpoints");
    put_option(out, "--resume", "auto");
    if (in->eval_data.n > 0 || in->eval_split) {
        put_option(out, "--eval-interval", "epoch");
        put_option(out, "--best-metric", best);
    }
    put_output(out, "--export", f->dir, in->lora ? "adapter" : "model");
}

/* ---- files ---------------------------------------------------------------------------------- */

static cz_status name_files(const struct init_flags *flags, struct files *f)
{
    const char *out = flags->out ? flags->out : "ds_config.json", *slash = strrchr(out, '/');
    size_t n_dir = slash ? (size_t)(slash - out) + 1 : 0;
    bool fits = strlen(out) < sizeof f->config - 16 &&
                (!flags->script || strlen(flags->script) < sizeof f->script);
    if (!fits || out[n_dir] == '\0') return err_set(CZ_INVALID, 0, "-o %s: not a file name", out);
    strcpy(f->config, out);
    snprintf(f->dir, sizeof f->dir, "%.*s", (int)n_dir, out);
    if (flags->script)
        strcpy(f->script, flags->script);
    else
        snprintf(f->script, sizeof f->script, "%.*strain.sh", (int)n_dir, out);
    return CZ_OK;
}

/* Before any question: answers should not be given in vain. */
static cz_status check_files(const struct init_flags *flags, const struct files *f)
{
    const char *const paths[] = {f->config, f->script};
    struct output_inputs inputs = {.n = 0};
    struct stat info;
    output_add_input(&inputs, flags->model);
    output_add_input(&inputs, flags->tokenizer);
    output_add_inputs(&inputs, &flags->data);
    output_add_inputs(&inputs, &flags->eval_data);
    TRY(output_check_inputs("-o", f->config, &inputs));
    TRY(output_check_inputs("--script", f->script, &inputs));
    for (size_t i = 0; i < CZ_ARRAY_LEN(paths); i++) {
        if (stat(paths[i], &info) != 0) continue;
        if (S_ISDIR(info.st_mode))
            return err_set(CZ_INVALID, 0, "%s is a folder, not a file to write", paths[i]);
        if (!flags->force)
            return err_set(CZ_INVALID, 0, "%s exists already (use --force to overwrite it)",
                           paths[i]);
    }
    return CZ_OK;
}

/* A script is for people to read before they run it: no name may hide a part of it. */
static cz_status check_names(const struct init *in, const struct files *f)
{
    const char *const names[] = {f->config,
                                 f->script,
                                 in->model,
                                 in->tokenizer,
                                 in->flags->encoding,
                                 in->flags->text_column,
                                 in->flags->pair_column,
                                 in->flags->label_column};
    const size_t n_names = CZ_ARRAY_LEN(names), n = n_names + in->data.n + in->eval_data.n;
    for (size_t i = 0; i < n; i++) {
        char escape[PRINTABLE_NBYTES] = "";
        const char *name = i < n_names ? names[i]
                           : i < n_names + in->data.n
                               ? in->data.items[i - n_names]
                               : in->eval_data.items[i - n_names - in->data.n];
        for (const char *at = name; at && *at && !escape[0];)
            at += printable_next(PRINTABLE_LINE, at, strlen(at), escape);
        if (escape[0])
            return err_set(CZ_INVALID, 0, "%s: contains %s, which a script would hide: rename it",
                           name, escape);
    }
    return CZ_OK;
}

/* Where this program is; "czero" where that is not known, or would not be readable in a script. */
static const char *find_self(char *path, size_t nbytes)
{
    char escape[PRINTABLE_NBYTES] = "";
    ssize_t len = readlink("/proc/self/exe", path, nbytes - 1);
    if (len <= 0 || (size_t)len >= nbytes - 1) return "czero";
    path[len] = '\0';
    for (const char *at = path; *at && !escape[0];)
        at += printable_next(PRINTABLE_LINE, at, strlen(at), escape);
    return escape[0] || access(path, X_OK) != 0 ? "czero" : path;
}

/* The program that wrote it, or the one on PATH where that has gone; a second run continues the
 * first; options behind the script's name go to train, the last of an option wins. */
static void put_script(FILE *out, const struct init *in, const char *rate, const struct files *f)
{
    char self[4096];
    fprintf(
        out,
        "#!/bin/sh\n# Written by czero init; paths are relative to the folder in which it "
        "ran. A second run\n# continues the first. Options are passed on: sh train.sh "
        "--quiet\n# The last of an option wins. Paths of data options add up.\nczero=");
    put_word(out, find_self(self, sizeof self));
    fprintf(out, "\n[ -x \"$czero\" ] || czero=czero\nexec ");
    put_command(out, "\"$czero\"", in, rate, f);
    fprintf(out, " \\\n  \"$@\"\n");
}

static cz_status write_files(const struct init *in, const struct tune *t, const struct files *f)
{
    struct file_durable script = {.fd = -1};
    char *text = NULL, rate[32];
    size_t nbytes = 0;
    cz_status st;
    rate_of(t, rate);
    TRY(file_make_dirs(f->dir));
    TRY(tune_config_save(t, tune_best(t), f->config));
    FILE *out = open_memstream(&text, &nbytes);
    if (out) put_script(out, in, rate, f);
    if (!out || fclose(out) != 0)
        TRY_GOTO(err_set(CZ_NOMEM, errno, "no memory for %s", f->script), done);
    TRY_GOTO(file_durable_create(&script, f->script, 0), done);
    TRY_GOTO(file_pwrite(script.fd, f->script, text, nbytes, 0), done);
    /* The mask of the process keeps the script from being writable by others. */
    if (fchmod(script.fd, 0777 & ~022) != 0)
        TRY_GOTO(err_set(CZ_IO, errno, "%s: cannot be made executable", f->script), done);
    TRY_GOTO(file_durable_commit(&script), done);
done:
    file_durable_abort(&script);
    free(text);
    return st;
}

static void tell(const struct init *in, const struct tune *t, const struct files *f)
{
    const struct tune_offer *o = tune_best(t);
    static const char *const devices[] = {"", ", optimizer in host memory", ", optimizer on NVMe"};
    char host[24], gpu[24];
    printable_print(stderr,
                    "%s: ZeRO stage %d%s, micro-batch %lld × %lld, %s%s needs %s of host memory",
                    f->config, o->stage,
                    in->on_gpu || o->optimizer == CONFIG_OFFLOAD_NVME ? devices[o->optimizer] : "",
                    (long long)o->micro_batch, (long long)o->accumulation, dtype_name(in->dtype),
                    o->checkpoint_every > 0 ? ", recomputing activations;" : ";",
                    size_human(o->need_nbytes[TUNE_HOST], host, sizeof host));
    if (in->on_gpu)
        printable_print(stderr, " and %s of each GPU",
                        size_human(o->need_nbytes[TUNE_GPU], gpu, sizeof gpu));
    const struct tune_recipe *r = tune_recipe(t);
    printable_print(stderr, "\nRecipe for %s: AdamW, rate %g, down to 0 at the end of the run\n",
                    r->name, r->lr);
    printable_print(stderr, "%s: the command line\n", f->script);
    if (in->is_preset)
        printable_print(stderr,
                        "%s is a preset: its weights are random at first. To start from trained "
                        "ones, give a Hugging Face folder.\n",
                        in->model);
}

/* Nothing fits: perhaps it does in the precision that this processor did not suggest. */
static void say_missing(const struct init *in, const struct tune *t)
{
    struct init other = *in;
    struct tune *narrow = NULL;
    char host[24];
    printable_print(stderr, "czero init: %s\n", tune_missing(t));
    if (in->flags->precision || in->dtype != DTYPE_F32) return;
    other.dtype = DTYPE_BF16;
    if (search(&other, in->lora, &narrow) != CZ_OK) err_clear();
    if (narrow && tune_best(narrow))
        tool_note(
            "This is fp32, since this processor does not multiply bf16. --precision bf16 fits: "
            "%s of host memory.",
            size_human(tune_best(narrow)->need_nbytes[TUNE_HOST], host, sizeof host));
    tune_destroy(narrow);
}

/* Exit code. */
static int finish(const struct init *in, const struct tune *t, const struct files *f)
{
    if (!tune_best(t)) {
        say_missing(in, t);
        return EXIT_MEMORY;
    }
    if (write_files(in, t, f) != CZ_OK) return tool_fail();
    tell(in, t, f);
    char rate[32];
    rate_of(t, rate);
    put_command(stdout, "czero", in, rate, f);
    putchar('\n');
    return EXIT_OK;
}

int cmd_init(int argc, char **argv)
{
    struct init_flags flags = {0};
    struct init in = {.flags = &flags};
    struct files files;
    struct tune *t = NULL;
    enum args_result parsed = args_parse(&init_command, argc, argv, &flags);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    /* No log: the training run logs the same about the model. */
    if (flags.nvme && size_parse_machine(flags.nvme, &in.nvme_nbytes) != CZ_OK) {
        err_prefix("--nvme");
        return tool_fail();
    }
    cz_status st = name_files(&flags, &files);
    if (st == CZ_OK) st = check_files(&flags, &files);
    if (st == CZ_OK) st = init_ask(&in);
    if (st == CZ_OK) st = check_names(&in, &files);
    if (st == CZ_OK) st = choose(&in, &t);
    int code = st == CZ_OK ? finish(&in, t, &files) : tool_fail();
    tune_destroy(t);
    init_free(&in);
    return code;
}
