/* The questions of czero init. Every value has one way in (take_*), whether it comes from an
 * option, the terminal or a default: what is checked for one is checked for all. The order of the
 * table matters: later defaults depend on earlier answers. */
#include "base/printable.h"
#include "model/families.h"
#include "tools/czero/cmd/init.h"
#include "tools/czero/config_args.h"

#include "base/cpu.h"
#include "base/host/cgroup.h"
#include "base/size.h"
#include "base/status.h"
#include "base/threads.h"
#include <czero/data.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define GUESS_NBYTES 64

struct question {
    const char *flag, *text;
    const char *(*given)(const struct init *in); /* by a flag; NULL: not given */
    bool (*applies)(const struct init *in);      /* NULL: always */
    /* A value that suits most users; false: there is none. */
    bool (*guess)(const struct init *in, char guess[GUESS_NBYTES]);
    cz_status (*take)(struct init *in, const char *answer);
    bool optional; /* without a terminal the guess is taken, unasked */
};

/* ---- model ---------------------------------------------------------------------------------- */

static const char *given_model(const struct init *in)
{
    return in->flags->model;
}

/* Opened at once: later questions depend on what the model is. */
static cz_status take_model(struct init *in, const char *answer)
{
    char config[4096];
    if ((size_t)snprintf(config, sizeof config, "%s/config.json", answer) >= sizeof config)
        return err_set(CZ_INVALID, ENAMETOOLONG, "the model's folder, \"%.60s…\"", answer);
    struct cz_model *m = cz_model_open(answer);
    if (!m) return cz_last_status();
    in->model = answer;
    in->head = cz_model_labels(m);
    in->is_preset = access(config, F_OK) != 0;
    in->has_weights = cz_model_has_weights(m);
    in->t_max = cz_model_t_max(m);
    cz_model_destroy(m);
    return CZ_OK;
}

/* ---- data ----------------------------------------------------------------------------------- */

static const char *given_data(const struct init *in)
{
    return in->flags->data.n > 0 ? in->flags->data.items[0] : NULL;
}

static bool ends_in(const char *path, const char *end)
{
    size_t len = strlen(path), n = strlen(end);
    return len > n && strcasecmp(path + len - n, end) == 0;
}

/* u16:FILE and u32:FILE */
static const char *behind_width(const char *path)
{
    bool has = strncmp(path, "u16:", 4) == 0 || strncmp(path, "u32:", 4) == 0;
    return has ? path + 4 : path;
}

/* NAME of NAME.bin and NAME.idx */
static bool is_megatron(const char *path)
{
    char idx[4096];
    return (size_t)snprintf(idx, sizeof idx, "%s.idx", path) < sizeof idx && access(idx, R_OK) == 0;
}

/* Files that hold tokens already: no tokenizer is asked for. */
static bool is_tokens(const char *path)
{
    return ends_in(path, ".bin") || ends_in(path, ".idx") || behind_width(path) != path ||
           is_megatron(path);
}

static cz_status take_paths(const char *flag, const struct arg_list *flags, const char *answer,
                            struct arg_list *out)
{
    *out = (struct arg_list){.items = {answer}, .n = 1};
    if (flags->n > 0) *out = *flags;
    for (size_t i = 0; i < out->n; i++) {
        const char *path = out->items[i];
        if (access(behind_width(path), R_OK) != 0 && !is_megatron(path))
            return err_set(CZ_NOTFOUND, errno, "%s: %s", flag, path);
    }
    return CZ_OK;
}

static cz_status take_data(struct init *in, const char *answer)
{
    TRY(take_paths("--data", &in->flags->data, answer, &in->data));
    in->kind = is_tokens(in->data.items[0]) ? INIT_TEXT : init_look(in);
    return CZ_OK;
}

static const char *given_eval_data(const struct init *in)
{
    return in->flags->eval_data.n > 0 ? in->flags->eval_data.items[0] : NULL;
}

static bool has_classes(enum cz_task task)
{
    return task == CZ_TASK_CLASSIFICATION || task == CZ_TASK_TOKEN_CLASSIFICATION;
}

/* Accuracy on what was trained says little: a tenth of labelled rows is kept apart. */
static bool guess_eval_data(const struct init *in, char guess[GUESS_NBYTES])
{
    strcpy(guess, has_classes(in->task) ? "0.1" : "none");
    return true;
}

static bool is_share(const char *answer)
{
    char *end;
    const double share = strtod(answer, &end);
    return end != answer && !*end && share > 0 && share < 1;
}

static cz_status take_eval_data(struct init *in, const char *answer)
{
    in->eval_data.n = 0;
    in->eval_split = NULL;
    if (in->flags->eval_data.n <= 1 && strcmp(answer, "none") == 0) return CZ_OK;
    if (in->flags->eval_data.n <= 1 && is_share(answer)) {
        in->eval_split = answer;
        return CZ_OK;
    }
    return take_paths("--eval-data", &in->flags->eval_data, answer, &in->eval_data);
}

/* ---- task ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum cz_task task;
    bool is_sft;
} tasks[] = {{"classification", CZ_TASK_CLASSIFICATION, false},
             {"token-classification", CZ_TASK_TOKEN_CLASSIFICATION, false},
             {"sft", CZ_TASK_CAUSAL_LM, true},
             {"causal-lm", CZ_TASK_CAUSAL_LM, false},
             {"masked-lm", CZ_TASK_MASKED_LM, false}};
#define TASK_NAMES "classification, token-classification, sft, causal-lm or masked-lm"

const char *init_task_name(const struct init *in)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(tasks); i++)
        if (tasks[i].task == in->task && tasks[i].is_sft == in->is_sft) return tasks[i].name;
    return "?";
}

static const char *given_task(const struct init *in)
{
    return in->flags->task;
}

/* The data's first rows decide, then the model's head. */
static bool guess_task(const struct init *in, char guess[GUESS_NBYTES])
{
    static const char *const names[] = {[INIT_LABELLED] = "classification",
                                        [INIT_CHATS] = "sft",
                                        [INIT_WORDS] = "token-classification"};
    const char *text = in->head == CZ_LABELS_NEXT ? "causal-lm" : "masked-lm";
    strcpy(guess, in->kind == INIT_TEXT ? text : names[in->kind]);
    return true;
}

/* Opening the model for the task tells whether it has one for it, here rather than at training. */
/* Read at once: a small set suggests a small batch, and its classes are part of the model. */
static cz_status read_texts(struct init *in)
{
    const struct init_flags *f = in->flags;
    const struct cz_texts_options options = {.size = sizeof options,
                                             .paths = in->data.items,
                                             .n_paths = in->data.n,
                                             .text_column = f->text_column,
                                             .pair_column = f->pair_column,
                                             .label_column = f->label_column,
                                             .strip_spaces = f->strip_spaces,
                                             .skip_unlabelled = f->skip_unlabelled,
                                             .encoding = f->encoding,
                                             .words = in->task == CZ_TASK_TOKEN_CLASSIFICATION};
    cz_texts_close(in->texts);
    in->texts = NULL;
    return has_classes(in->task) ? cz_texts_open(&options, &in->texts) : CZ_OK;
}

static cz_status take_task(struct init *in, const char *answer)
{
    static const char *const two[] = {"a", "b"};
    struct cz_model_options options = {.size = sizeof options, .task = CZ_TASK_AUTO};
    bool is_sft = false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(tasks); i++) {
        if (strcmp(tasks[i].name, answer) != 0) continue;
        options.task = tasks[i].task;
        is_sft = tasks[i].is_sft;
    }
    if (options.task == CZ_TASK_AUTO)
        return err_set(CZ_INVALID, 0, "--task %s: write " TASK_NAMES, answer);
    if (has_classes(options.task)) {
        options.labels = two;
        options.n_labels = CZ_ARRAY_LEN(two);
    }
    struct cz_model *m = cz_model_open_ex(in->model, &options); /* does it have such a head? */
    if (!m) return cz_last_status();
    cz_model_destroy(m);
    in->task = options.task;
    in->is_sft = is_sft;
    if (in->flags->packing && !is_sft) return err_set(CZ_INVALID, 0, "--packing needs --task sft");
    return read_texts(in);
}

/* ---- tokenizer ------------------------------------------------------------------------------ */

static const char *given_tokenizer(const struct init *in)
{
    return in->flags->tokenizer;
}

static bool needs_tokenizer(const struct init *in)
{
    bool has_own = !in->is_preset && cz_tokenizer_is_in(in->model);
    return in->flags->tokenizer || !(has_own || is_tokens(in->data.items[0]));
}

/* Bytes have no token that stands for a hidden one. */
static bool guess_tokenizer(const struct init *in, char guess[GUESS_NBYTES])
{
    strcpy(guess, "bytes");
    return in->task != CZ_TASK_MASKED_LM;
}

/* A preset keeps its own vocabulary size for bytes; any other tokenizer sets it. */
static cz_status take_tokenizer(struct init *in, const char *answer)
{
    struct cz_tokenizer *tok;
    TRY(cz_tokenizer_open(answer, &tok));
    bool is_bytes = strcmp(answer, "bytes") == 0; /* a preset keeps its size for them */
    in->vocab_size = is_bytes && in->is_preset ? 0 : cz_tokenizer_vocab_size(tok);
    bool can_mask = cz_tokenizer_special_id(tok, CZ_SPECIAL_MASK) >= 0;
    cz_tokenizer_close(tok);
    if (in->task == CZ_TASK_MASKED_LM && !can_mask)
        return err_set(CZ_INVALID, 0,
                       "--tokenizer %s: masked-lm needs a [MASK] token (czero vocab makes a "
                       "vocabulary that has one)",
                       answer);
    in->tokenizer = answer;
    return CZ_OK;
}

/* ---- hardware ------------------------------------------------------------------------------- */

static const char *given_device(const struct init *in)
{
    return in->flags->device;
}

static bool guess_device(const struct init *in, char guess[GUESS_NBYTES])
{
    strcpy(guess, in->flags->gpu ? "cuda" : "cpu");
    return true;
}

static cz_status take_device(struct init *in, const char *answer)
{
    in->on_gpu = strcmp(answer, "cuda") == 0;
    if (in->on_gpu || strcmp(answer, "cpu") == 0) return CZ_OK;
    return err_set(CZ_INVALID, 0, "--device %s: cpu or cuda", answer);
}

static const char *given_gpu(const struct init *in)
{
    return in->flags->gpu;
}

static bool is_on_gpu(const struct init *in)
{
    return in->on_gpu;
}

static cz_status take_gpu(struct init *in, const char *answer)
{
    return size_parse_machine(answer, &in->gpu_nbytes) == CZ_OK ? CZ_OK
                                                                : err_prefix("--gpu-memory");
}

static const char *given_host(const struct init *in)
{
    return in->flags->host;
}

/* Nine tenths of what this machine, or its container, has left. */
static bool guess_host(const struct init *in, char guess[GUESS_NBYTES])
{
    size_t free_nbytes = host_memory_left();
    (void)in;
    size_t mib = free_nbytes / 10 * 9 >> 20;
    if (mib == 0 || free_nbytes == SIZE_MAX) return false;
    if (mib >= 4096)
        snprintf(guess, GUESS_NBYTES, "%zuGiB", mib >> 10);
    else
        snprintf(guess, GUESS_NBYTES, "%zuMiB", mib);
    return true;
}

static cz_status take_host(struct init *in, const char *answer)
{
    return size_parse_machine(answer, &in->host_nbytes) == CZ_OK ? CZ_OK
                                                                 : err_prefix("--host-memory");
}

/* ---- numbers -------------------------------------------------------------------------------- */

static cz_status take_count(const char *flag, const char *answer, int64_t *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(answer, &end, 10);
    if (end == answer || *end || errno != 0 || n < 1 || n > INT32_MAX)
        return err_set(CZ_INVALID, 0, "%s %s: a whole number from 1 on", flag, answer);
    *out = n;
    return CZ_OK;
}

static const char *given_ranks(const struct init *in)
{
    return in->flags->ranks;
}

/* Counted from 0 without gaps, as Linux numbers those that exist on common machines. */
static int n_memory_nodes(void)
{
    char path[64];
    int n = 0;
    do snprintf(path, sizeof path, "/sys/devices/system/node/node%d", n);
    while (access(path, F_OK) == 0 && ++n < 64);
    return n;
}

/* Threads use the cores of one memory node well; a second node wants a rank of its own. */
static bool guess_ranks(const struct init *in, char guess[GUESS_NBYTES])
{
    int nodes = n_memory_nodes();
    bool whole_machine = nodes > 1 && threads_allowed_cores(NULL) >= 8 * nodes;
    snprintf(guess, GUESS_NBYTES, "%d", !in->on_gpu && whole_machine ? nodes : 1);
    return true;
}

static cz_status take_ranks(struct init *in, const char *answer)
{
    return take_count("--ranks", answer, &in->ranks);
}

static const char *given_precision(const struct init *in)
{
    return in->flags->precision;
}

/* bf16 where the processor multiplies it natively; elsewhere it would be converted and slower. */
static bool guess_precision(const struct init *in, char guess[GUESS_NBYTES])
{
    bool fast = cpu_features() & (CPU_AVX512BF16 | CPU_AMX);
    strcpy(guess, in->on_gpu || fast ? "bf16" : "fp32");
    return true;
}

static cz_status take_precision(struct init *in, const char *answer)
{
    static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t i = 0; i < CZ_ARRAY_LEN(dtypes); i++)
        if (strcmp(dtype_name(dtypes[i]), answer) == 0) {
            in->dtype = dtypes[i];
            return CZ_OK;
        }
    return err_set(CZ_INVALID, 0, "--precision %s: fp32, bf16 or fp16", answer);
}

static bool is_language_model(const struct init *in)
{
    return in->task == CZ_TASK_CAUSAL_LM || in->task == CZ_TASK_MASKED_LM;
}

static const char *given_seq_len(const struct init *in)
{
    return in->flags->seq_len;
}

static bool guess_seq_len(const struct init *in, char guess[GUESS_NBYTES])
{
    const long long want = in->is_sft ? 1024 : is_language_model(in) ? 512 : 128;
    snprintf(guess, GUESS_NBYTES, "%lld", in->t_max < want ? (long long)in->t_max : want);
    return true;
}

static cz_status take_seq_len(struct init *in, const char *answer)
{
    TRY(take_count("--seq-len", answer, &in->seq_len));
    if (in->seq_len <= in->t_max) return CZ_OK;
    return err_set(CZ_INVALID, 0, "--seq-len %s: %s takes at most %lld tokens", answer, in->model,
                   (long long)in->t_max);
}

static const char *given_length(const struct init *in)
{
    return in->flags->epochs ? in->flags->epochs : in->flags->steps;
}

static bool guess_length(const struct init *in, char guess[GUESS_NBYTES])
{
    strcpy(guess, is_language_model(in) && !in->is_sft ? "1" : "3");
    return true;
}

/* "3", or "500 steps". */
static cz_status take_length(struct init *in, const char *answer)
{
    const struct init_flags *f = in->flags;
    const char *unit = strchr(answer, ' ');
    char number[32];
    in->epochs = in->steps = 0;
    if (f->epochs && f->steps)
        return err_set(CZ_INVALID, 0, "--steps and --epochs exclude each other: give one");
    if (f->steps) return take_count("--steps", f->steps, &in->steps);
    if (!unit || strcmp(unit, " steps") != 0 || (size_t)(unit - answer) >= sizeof number)
        return take_count("--epochs", answer, &in->epochs);
    snprintf(number, sizeof number, "%.*s", (int)(unit - answer), answer);
    return take_count("--steps", number, &in->steps);
}

static const char *given_batch(const struct init *in)
{
    return in->flags->batch;
}

/* A small set takes enough steps to learn only in small batches. */
static int64_t usual_batch(const struct init *in)
{
    return in->texts && cz_texts_count(in->texts) < 1000 ? 8 : 32;
}

/* A multiple of the ranks, which take_batch() requires. */
static bool guess_batch(const struct init *in, char guess[GUESS_NBYTES])
{
    int64_t per_rank = (usual_batch(in) + in->ranks - 1) / in->ranks;
    snprintf(guess, GUESS_NBYTES, "%lld", (long long)(per_rank * in->ranks));
    return true;
}

static cz_status take_batch(struct init *in, const char *answer)
{
    TRY(take_count("--batch", answer, &in->batch));
    if (in->batch % in->ranks == 0) return CZ_OK;
    return err_set(CZ_INVALID, 0, "--batch %s: cannot be divided evenly over %lld ranks", answer,
                   (long long)in->ranks);
}

/* ---- asking --------------------------------------------------------------------------------- */

static const struct question questions[] = {
    {"--model", "Model: a Hugging Face folder, or a preset with random weights (see czero models)",
     given_model, NULL, NULL, take_model, false},
    {"--data", "Training data: a file", given_data, NULL, NULL, take_data, false},
    {"--task", "Task: " TASK_NAMES, given_task, NULL, guess_task, take_task, false},
    {"--eval-data", "Evaluation data: a file, a share of the training data such as 0.1, or none",
     given_eval_data, NULL, guess_eval_data, take_eval_data, true},
    {"--tokenizer",
     "Tokenizer: bytes, or a folder with vocab.txt (czero vocab makes one) or tokenizer.json",
     given_tokenizer, needs_tokenizer, guess_tokenizer, take_tokenizer, true},
    {"--device", "Device: cpu or cuda", given_device, NULL, guess_device, take_device, false},
    {"--gpu-memory", "Memory of each GPU, such as 24GB", given_gpu, is_on_gpu, NULL, take_gpu,
     false},
    {"--host-memory", "Memory of the host, for all ranks", given_host, NULL, guess_host, take_host,
     false},
    {"--ranks", "Ranks", given_ranks, NULL, guess_ranks, take_ranks, false},
    {"--precision", "Precision: fp32, bf16 or fp16", given_precision, NULL, guess_precision,
     take_precision, false},
    {"--seq-len", "Tokens per row, at most", given_seq_len, NULL, guess_seq_len, take_seq_len,
     false},
    {"--epochs", "Epochs, or \"N steps\"", given_length, NULL, guess_length, take_length, false},
    {"--batch", "Rows of an optimizer step, over all ranks", given_batch, NULL, guess_batch,
     take_batch, false},
};

/* A line without its end and the blanks around it, kept until init_free(). */
static cz_status read_answer(struct init *in, const struct question *q, const char **answer)
{
    char line[4096];
    if (!fgets(line, sizeof line, stdin))
        return err_set(CZ_INVALID, 0, "%s is missing: end of input", q->flag);
    if (strlen(line) == sizeof line - 1 && line[sizeof line - 2] != '\n')
        return err_set(CZ_INVALID, 0, "%s: the answer is longer than %zu bytes", q->flag,
                       sizeof line - 2);
    char *begin = line + strspn(line, " \t");
    size_t len = strlen(begin);
    while (len > 0 && strchr(" \t\r\n", begin[len - 1])) len--;
    begin[len] = '\0';
    if (in->n_lines == CZ_ARRAY_LEN(in->lines) || !(in->lines[in->n_lines] = strdup(begin)))
        return err_set(CZ_NOMEM, 0, "no memory for an answer");
    *answer = in->lines[in->n_lines++];
    return CZ_OK;
}

/* Three attempts: a script that answers by mistake does not loop for ever. */
static cz_status ask_terminal(struct init *in, const struct question *q, const char *guess)
{
    cz_status st = CZ_INVALID;
    for (int attempt = 0; attempt < 3; attempt++) {
        const char *answer = NULL;
        fputs(q->text, stderr);
        printable_print(stderr, guess ? " [%s]: " : ": ", guess);
        TRY(read_answer(in, q, &answer));
        if (!*answer && !guess) continue;
        st = q->take(in, *answer ? answer : guess);
        if (st == CZ_OK) return CZ_OK;
        printable_print(stderr, "  %s\n", cz_last_error());
        free(in->lines[--in->n_lines]); /* it has no owner */
    }
    return st == CZ_OK ? st : err_set(CZ_INVALID, 0, "%s: no valid answer was given", q->flag);
}

static cz_status keep_guess(struct init *in, const char *guess, const char **kept)
{
    if (in->n_lines == CZ_ARRAY_LEN(in->lines) || !(in->lines[in->n_lines] = strdup(guess)))
        return err_set(CZ_NOMEM, 0, "no memory for an answer");
    *kept = in->lines[in->n_lines++];
    return CZ_OK;
}

/* The order: a given option, then the terminal, then the default, then an error that names the
 * option. */
static cz_status answer_question(struct init *in, const struct question *q)
{
    char guess[GUESS_NBYTES];
    const char *given = q->given(in), *kept = NULL;
    if (q->applies && !q->applies(in))
        return given ? err_set(CZ_INVALID, 0, "%s needs --device cuda", q->flag) : CZ_OK;
    if (given) return q->take(in, given);
    bool has_guess = q->guess && q->guess(in, guess);
    if (has_guess) TRY(keep_guess(in, guess, &kept));
    if (isatty(STDIN_FILENO) && !in->flags->yes) return ask_terminal(in, q, kept);
    if (has_guess && (in->flags->yes || q->optional)) return q->take(in, kept);
    if (has_guess)
        return err_set(
            CZ_INVALID, 0,
            "%s is missing, and there is no terminal to ask on (--yes uses the default, %s)",
            q->flag, guess);
    return err_set(CZ_INVALID, 0, "%s is missing%s", q->flag,
                   in->flags->yes ? "" : ", and there is no terminal to ask on");
}

cz_status init_ask(struct init *in)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(questions); i++) TRY(answer_question(in, &questions[i]));
    return CZ_OK;
}

/* ---- what is trained ------------------------------------------------------------------------- */

static const char *given_lora(const struct init *in)
{
    return in->flags->lora;
}

/* "all", "adapter", or an adapter as --lora describes it. */
static cz_status take_training(struct init *in, const char *answer)
{
    const bool is_default = !*answer || strcmp(answer, "adapter") == 0;
    if (strcmp(answer, "all") == 0) return CZ_OK;
    if (is_default && in->usual_lora) {
        in->lora = in->usual_lora;
        return CZ_OK;
    }
    config_free(in->lora_config);
    in->lora_config = NULL;
    in->usual_lora = NULL;
    return config_args_lora(is_default ? LORA_USUAL : answer, &in->lora_config, &in->lora);
}

cz_status init_ask_training(struct init *in, const char *guess)
{
    static const struct question question = {"--lora",
                                             "Train all weights, or an adapter (LoRA): all, "
                                             "adapter, or values such as rank=16,alpha=32",
                                             given_lora,
                                             NULL,
                                             NULL,
                                             take_training,
                                             true};
    if (given_lora(in)) return take_training(in, given_lora(in));
    if (isatty(STDIN_FILENO) && !in->flags->yes) return ask_terminal(in, &question, guess);
    return take_training(in, guess);
}

void init_free(struct init *in)
{
    config_free(in->lora_config);
    cz_texts_close(in->texts);
    in->texts = NULL;
    for (size_t i = 0; i < in->n_lines; i++) free(in->lines[i]);
    in->n_lines = 0;
}
