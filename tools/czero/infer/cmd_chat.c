/* czero chat: a conversation with a model. On a terminal the answers appear as they are made and
 * Ctrl-C stops one; otherwise each line of standard input is a message and gets one answer.
 *
 * Each turn renders the whole conversation again: templates write earlier turns as they like. The
 * session keeps what the new prompt and the one before begin with, so that only the rest is
 * computed. */
#include "base/log.h"
#include "base/printable.h"
#include "base/size.h"
#include "base/text/encoding.h"
#include "base/text/nearest.h"
#include "data/chat/chat_prompt.h"
#include "engine/infer/generate.h"
#include "formats/output.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/infer/answer.h"
#include "tools/czero/output.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_cli {
    const char *model, *adapter, *system, *tokenizer, *chat_template, *dtype, *device;
    struct answer_sampling sampling;
    int64_t context;
};

#define MARK            "\xEF\xBB\xBF"
#define LINE_NBYTES_MAX (16 << 20)

#define AT(field) offsetof(struct chat_cli, field)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, AT(model), "DIR", "Hugging Face folder, or a preset", 0, true},
    ADAPTER_OPTION(AT(adapter)),
    {"--system", ARG_STRING, AT(system), "TEXT", "system message in front of the conversation", 0,
     false},
    {"--chat-template", ARG_STRING, AT(chat_template), "NAME|FILE",
     "chat template (default: that of the tokenizer's folder)", 0, false},
    {"--tokenizer", ARG_STRING, AT(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder, else bytes)", 0, false},
    {"--max-new-tokens", ARG_INT, AT(sampling.max_new_tokens), "N",
     "longest answer, in tokens (default: the folder's, else 1024)", 1, false},
    {"--context", ARG_INT, AT(context), "N",
     "tokens of the conversation that the model sees (default: its own, at most 4096)", 2, false},
    ANSWER_SAMPLING_OPTIONS(AT(sampling)),
    {"--dtype", ARG_CHOICE, AT(dtype), "fp32|bf16|fp16",
     "type of weights and activations (default: fp32)", 0, false},
    {"--device", ARG_STRING, AT(device), "cpu|cuda|cuda:N", "device to run on (default: cpu)", 0,
     false},
};

#define CHAT_COMMANDS                                                                              \
    "  /clear         forget the conversation\n"                                                   \
    "  /system TEXT   set the system message; without TEXT, remove it\n"                           \
    "  /save FILE     append the conversation to FILE, as a line of JSON\n"                        \
    "  /exit, /quit   leave, as Ctrl-D does\n"

const struct arg_command chat_command = {
    .name = "czero chat",
    .summary = "Chat with a model.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "Each line is a message; Ctrl-C stops an answer. Lines that begin with / are\n"
                "commands, with // messages that begin with /:\n" CHAT_COMMANDS
                "When the context is full, czero drops the oldest messages behind the system\n"
                "message and reports how many. Without a terminal, czero reads messages from\n"
                "standard input and prints one answer for each.",
    .examples = "  czero chat --model tuned/\n"
                "  czero chat --model base/ --adapter adapter/ --system \"Answer in one word.\"",
};

/* ---- signals -------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked;
/* A pipe. Ctrl-C may come to any thread, and while or before the main thread reads a line. */
static int wake[2] = {-1, -1};

/* The first Ctrl-C stops the answer. If the answer does not stop, the second one ends the program.
 */
static void on_interrupt(int number)
{
    const int error = errno;
    if (stop_asked) {
        signal(number, SIG_DFL);
        raise(number);
    }
    stop_asked = 1;
    if (write(wake[1], "", 1) < 0) stop_asked = 1; /* the pipe is full: it is awake */
    errno = error;
}

static cz_status catch_interrupts(void)
{
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0 || tool_handle_signal(SIGINT, on_interrupt) != 0)
        return err_set(CZ_IO, errno, "cannot handle Ctrl-C");
    return CZ_OK;
}

static void forget_interrupts(void)
{
    char byte;
    stop_asked = 0;
    while (read(wake[0], &byte, 1) > 0) continue;
}

/* Wait for a line of standard input; false: Ctrl-C came first. */
static bool wait_for_line(void)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = wake[0], .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    return !(fds[1].revents & POLLIN);
}

/* ---- the conversation ----------------------------------------------------------------------- */

struct talk {
    const struct chat_cli *o;
    bool on_terminal, keys_told;
    struct cz_model *model;
    struct cz_tokenizer *tokenizer;
    struct chat_encoder encoder;
    struct generate_session *session;
    struct model_ends ends;
    int64_t T;
    char *system;                  /* NULL: none */
    struct chat_message *messages; /* contents are owned; the first n_dropped are not shown */
    size_t n, cap, n_dropped;
    struct text_stream stream;
    struct text_buf answer;
    size_t n_lines; /* of standard input */
};

static void forget(struct talk *t, size_t n_kept)
{
    while (t->n > n_kept) free((char *)(uintptr_t)t->messages[--t->n].content);
    if (t->n_dropped > t->n) t->n_dropped = t->n;
}

static cz_status add_message(struct talk *t, const char *role, const char *text, size_t nbytes)
{
    char *copy = strndup(text, nbytes);
    if (copy && t->n == t->cap) {
        const size_t cap = 2 * t->cap + 8;
        struct chat_message *grown = realloc(t->messages, cap * sizeof *grown);
        if (grown) t->messages = grown;
        t->cap = grown ? cap : t->cap;
    }
    if (!copy || t->n == t->cap) {
        free(copy);
        return err_set(CZ_NOMEM, 0, "no memory for a message");
    }
    t->messages[t->n++] = (struct chat_message){role, copy};
    return CZ_OK;
}

/* The system message and the messages from number `first` on. */
static cz_status to_row(const struct talk *t, size_t first, struct chat_prompts *out)
{
    const size_t n = t->n - first, n_system = t->system ? 1 : 0;
    struct chat_message *all = malloc((n + 1) * sizeof *all);
    if (!all) return err_set(CZ_NOMEM, 0, "no memory for a conversation");
    all[0] = (struct chat_message){"system", t->system};
    if (n > 0) memcpy(all + n_system, t->messages + first, n * sizeof *all);
    cz_status st = chat_prompts_add(out, all, n + n_system);
    free(all);
    return st;
}

static cz_status encode(const struct talk *t, size_t first, int32_t **ids, size_t *n)
{
    struct chat_prompts row = {0};
    struct text_buf text = {0};
    *ids = NULL;
    cz_status st = to_row(t, first, &row);
    if (st == CZ_OK) st = chat_prompts_bind(&row, t->encoder.chat);
    if (st == CZ_OK) st = chat_encode_prompt(&t->encoder, &row.rows[0], "chat", &text, ids, n);
    text_buf_free(&text);
    chat_prompts_free(&row);
    return st;
}

/* Where the next exchange begins: templates want a user's message first. */
static size_t next_exchange(const struct talk *t, size_t first)
{
    do first++;
    while (first < t->n && strcmp(t->messages[first].role, "user") != 0);
    return first;
}

/* The prompt of the conversation. The oldest exchanges are dropped until a quarter of the context,
 * or the longest answer, is free for the answer. */
static cz_status make_prompt(struct talk *t, struct cz_prompt *out)
{
    const int64_t longest = t->o->sampling.max_new_tokens;
    const int64_t room = longest < t->T / 4 ? longest : t->T / 4;
    const size_t before = t->n_dropped;
    int32_t *ids;
    size_t n;
    for (;;) {
        TRY(encode(t, t->n_dropped, &ids, &n));
        const size_t next = next_exchange(t, t->n_dropped);
        if ((int64_t)n <= t->T - room || next >= t->n) break;
        free(ids);
        t->n_dropped = next;
    }
    if (t->n_dropped > before)
        printable_print(stderr,
                        "czero: the context of %lld tokens is full: the model no longer sees the "
                        "first %zu message%s (/clear forgets all)\n",
                        (long long)t->T, t->n_dropped, plural(t->n_dropped));
    *out = (struct cz_prompt){ids, n}; /* the caller's, also after an error */
    if ((int64_t)n < t->T) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "the message makes %zu tokens, but the context has %lld (--context)", n,
                   (long long)t->T);
}

static cz_status put_answer(void *user, const char *text, size_t nbytes)
{
    struct talk *t = user;
    TRY(text_buf_put(&t->answer, text, nbytes));
    printable_put(stdout, PRINTABLE_TEXT, text, nbytes);
    return fflush(stdout) == 0 ? CZ_OK : err_set(CZ_IO, errno, "cannot write to standard output");
}

static cz_status take_token(void *user, size_t prompt, int32_t token, bool *ends)
{
    struct talk *t = user;
    (void)prompt;
    if (!stop_asked) TRY(text_stream_take(&t->stream, token));
    *ends = t->stream.stopped || stop_asked;
    return CZ_OK;
}

/* A message and its answer. Both stay in the conversation, unless the message cannot be answered.
 */
static cz_status answer(struct talk *t, const char *text)
{
    struct cz_prompt prompt = {0};
    bool is_full = false;
    const size_t n_before = t->n, n_dropped = t->n_dropped;
    TRY(add_message(t, "user", text, strlen(text)));
    cz_status st = make_prompt(t, &prompt);
    t->answer.n = 0;
    if (st == CZ_OK) st = generate_session_answer(t->session, &prompt, take_token, t, &is_full);
    const cz_status ended = text_stream_end(&t->stream); /* it can take another text then */
    if (st == CZ_OK) st = ended;
    free((void *)(uintptr_t)prompt.ids);
    if (st != CZ_OK) {
        forget(t, n_before);
        t->n_dropped = n_dropped;
        return st;
    }
    putchar('\n');
    if (fflush(stdout) != 0) return err_set(CZ_IO, errno, "cannot write to standard output");
    if (is_full)
        printable_print(stderr, "czero: the answer ends at the end of the context (%lld tokens)\n",
                        (long long)t->T);
    LOGV(LOG_STEP, SUB_ENGINE, "chat: %zu tokens of prompt, %lld of them kept", prompt.n_ids,
         (long long)generate_session_n_kept(t->session));
    return add_message(t, "assistant", t->answer.n > 0 ? t->answer.s : "", t->answer.n);
}

/* ---- commands ------------------------------------------------------------------------------- */

static cz_status save(const struct talk *t, const char *path)
{
    if (!*path) return err_set(CZ_INVALID, 0, "/save FILE: the name of a file is missing");
    if (t->n == 0) return err_set(CZ_INVALID, 0, "/save: there is no message yet");
    TRY(output_check_file("/save", path, OUTPUT_CHATS, NULL));
    FILE *out = out_fopen(path, "ae");
    if (!out) return err_set(CZ_IO, errno, "/save: cannot write %s", path);
    const char *before = "";
    fputs("{\"messages\": [", out);
    for (size_t i = t->system ? 0 : 1; i <= t->n; i++, before = ", ") {
        const char *content = i == 0 ? t->system : t->messages[i - 1].content;
        printable_print(out, "%s{\"role\": \"%s\", \"content\": ", before,
                        i == 0 ? "system" : t->messages[i - 1].role);
        tool_put_json_string(out, content, strlen(content));
        putc('}', out);
    }
    fputs("]}\n", out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) return err_set(CZ_IO, errno, "/save: cannot write %s", path);
    printable_print(stderr, "czero: saved %zu message%s to %s\n", t->n, plural(t->n), path);
    return CZ_OK;
}

static cz_status set_system(struct talk *t, const char *text)
{
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return err_set(CZ_NOMEM, 0, "no memory for a message");
    free(t->system);
    t->system = copy;
    printable_print(stderr, "czero: the system message is %s\n", copy ? "set" : "removed");
    return CZ_OK;
}

static cz_status refuse_command(const char *name)
{
    static const char *const names[] = {"exit", "quit", "clear", "system", "save", "help"};
    struct nearest search = nearest_begin(name + 1);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) nearest_consider(&search, names[i]);
    if (search.best)
        return err_set(CZ_INVALID, 0, "%s is no command; did you mean /%s? (/help lists them)",
                       name, search.best);
    return err_set(CZ_INVALID, 0, "%s is no command; /help lists them", name);
}

/* A line that begins with "/". */
static cz_status obey(struct talk *t, char *line, bool *leaves)
{
    const size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    if (n == 5 && (strncmp(line, "/exit", n) == 0 || strncmp(line, "/quit", n) == 0)) {
        *leaves = true;
    } else if (n == 6 && strncmp(line, "/clear", n) == 0) {
        forget(t, 0);
        printable_print(stderr, "czero: the conversation is empty\n");
    } else if (n == 7 && strncmp(line, "/system", n) == 0) {
        return set_system(t, rest);
    } else if (n == 5 && strncmp(line, "/save", n) == 0) {
        return save(t, rest);
    } else if (n == 5 && strncmp(line, "/help", n) == 0) {
        terminal_put(stderr, CHAT_COMMANDS);
    } else {
        line[n] = '\0';
        return refuse_command(line);
    }
    return CZ_OK;
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* Bytes of the sequence that an Esc at s begins, as a terminal sends it for a key: Esc [ … letter
 * (arrows, Home, pasted text's marks), Esc O letter, or Esc and a character. */
static size_t key_nbytes(const char *s, size_t n)
{
    size_t i = 2;
    if (n < 2) return n;
    if (s[1] == '[') {
        while (i < n && s[i] >= 0x20 && s[i] < 0x40) i++;
        return i < n ? i + 1 : n;
    }
    return s[1] == 'O' && n > 2 ? 3 : 2;
}

/* Keys that a terminal's line does not know send bytes, which are no part of a message. */
static void drop_keys(struct talk *t, struct text_buf *line)
{
    size_t n = 0;
    for (size_t i = 0; i < line->n;) {
        const unsigned char c = (unsigned char)line->s[i];
        const bool is_key = (c > 0 && c < ' ' && c != '\t' && c != '\r') || c == 0x7f;
        if (is_key)
            i += c == 0x1b ? key_nbytes(line->s + i, line->n - i) : 1;
        else
            line->s[n++] = line->s[i++];
    }
    if (n < line->n && !t->keys_told)
        printable_print(stderr, "czero: arrows and other keys do not edit the line and are left "
                                "out of the message\n");
    t->keys_told = t->keys_told || n < line->n;
    line->n = n;
}

/* Up to the line feed, or the end of the input. A byte order mark is no part of the first line. */
static cz_status take_line(struct talk *t, struct text_buf *line, bool *ended)
{
    int c = '\n';
    line->n = 0;
    t->n_lines++;
    while (line->n < LINE_NBYTES_MAX && (c = getchar()) != EOF && c != '\n')
        TRY(text_buf_put_char(line, (char)c));
    if (ferror(stdin)) return err_set(CZ_IO, errno, "standard input: cannot be read");
    if (line->n == LINE_NBYTES_MAX)
        return err_set(CZ_INVALID, 0, "standard input:%zu: the line is longer than %d MiB",
                       t->n_lines, LINE_NBYTES_MAX >> 20);
    *ended = c == EOF && line->n == 0;
    if (t->on_terminal) drop_keys(t, line);
    while (line->n > 0 && line->s[line->n - 1] == '\r') line->n--;
    const size_t n_mark = sizeof MARK - 1;
    if (t->n_lines == 1 && line->n >= n_mark && memcmp(line->s, MARK, n_mark) == 0) {
        line->n -= n_mark;
        memmove(line->s, line->s + n_mark, line->n);
    }
    return text_buf_put_char(line, '\0');
}

/* A message is UTF-8 without NUL. */
static cz_status check_line(const struct talk *t, const struct text_buf *line)
{
    char where[48];
    const size_t n = line->n - 1;
    snprintf(where, sizeof where, "standard input:%zu", t->n_lines);
    TRY(tool_check_text(where, line->s));
    if (strlen(line->s) == n) return CZ_OK;
    const char *guess = encoding_wide(line->s, n);
    return err_set(CZ_INVALID, 0, "%s: byte %zu of the line is NUL%s%s%s", where,
                   strlen(line->s) + 1, guess ? "; the text looks like " : "", guess ? guess : "",
                   guess ? ": convert it to UTF-8" : "");
}

/* The next line, terminated, without its end. Ctrl-C gives an empty one. */
static cz_status read_line(struct talk *t, struct text_buf *line, bool *ended)
{
    if (t->on_terminal) {
        forget_interrupts();
        fputs("> ", stdout);
        fflush(stdout);
        if (!wait_for_line()) {
            putchar('\n');
            line->n = 0;
            return text_buf_put_char(line, '\0');
        }
    }
    TRY(take_line(t, line, ended));
    if (*ended && t->on_terminal) putchar('\n');
    return CZ_OK;
}

/* What a person types wrong is reported and the conversation continues; in a file it ends the
 * command. */
static cz_status talk_on(struct talk *t)
{
    struct text_buf line = {0};
    bool leaves = false, ended = false;
    cz_status st = CZ_OK;
    while (st == CZ_OK && !leaves) {
        st = read_line(t, &line, &ended);
        if (st != CZ_OK || ended) break;
        st = check_line(t, &line);
        const bool is_command = line.s[0] == '/' && line.s[1] != '/';
        if (st == CZ_OK && line.s[strspn(line.s, " \t")])
            st = is_command ? obey(t, line.s, &leaves) : answer(t, line.s + (line.s[0] == '/'));
        if (st == CZ_INVALID && t->on_terminal) {
            tool_fail();
            err_clear();
            st = CZ_OK;
        }
    }
    text_buf_free(&line);
    return st;
}

static cz_status open_session(struct talk *t)
{
    const struct chat_cli *o = t->o;
    struct cz_generate_options options = answer_options(&o->sampling, &t->ends, t->tokenizer);
    const int64_t t_max = cz_model_t_max(t->model), usual = 4096;
    t->T = o->context > 0 ? o->context : usual;
    if (o->context > t_max)
        return err_set(CZ_INVALID, 0, "--context %lld: %s has %lld tokens", (long long)o->context,
                       o->model, (long long)t_max);
    if (t->T > t_max) t->T = t_max;
    options.dtype = args_dtype(o->dtype, DTYPE_F32);
    options.device = o->device;
    return generate_session_open(t->model, &options, t->T, &t->session);
}

static cz_status open_talk(struct talk *t)
{
    const struct chat_cli *o = t->o;
    if (o->system) TRY(tool_check_text("--system", o->system));
    t->system = o->system ? strdup(o->system) : NULL;
    if (o->system && !t->system) return err_set(CZ_NOMEM, 0, "no memory for a message");
    t->model = adapter_open(o->model, o->adapter);
    if (!t->model) return cz_last_status();
    TRY(cz_tokenizer_open(adapter_tokenizer(o->tokenizer, o->model, o->adapter), &t->tokenizer));
    if (strcmp(cz_tokenizer_name(t->tokenizer), "bytes") != 0)
        TRY(cz_tokenizer_check_vocab(t->tokenizer, cz_model_vocab_size(t->model), o->model));
    TRY(chat_encoder_open_in(&t->encoder, t->tokenizer, adapter_template(o->model, o->adapter),
                             o->chat_template, NULL));
    TRY(chat_need_template(&t->encoder));
    TRY(cz_tokenizer_decoder_create(t->tokenizer, &t->stream.decoder));
    TRY(answer_find_ends(o->model, o->adapter, t->tokenizer, &t->encoder, &t->ends,
                         &t->stream.stops));
    return open_session(t);
}

static cz_status run(const struct chat_cli *o)
{
    struct talk t = {.o = o,
                     .on_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1};
    t.stream.put = put_answer;
    t.stream.user = &t;
    cz_status st = open_talk(&t);
    if (st == CZ_OK && !cz_model_has_weights(t.model))
        LOGV(LOG_WARN, SUB_MODEL, "%s has no weights: the answers come from RANDOM weights",
             o->model);
    if (st == CZ_OK && t.on_terminal) st = catch_interrupts();
    if (st == CZ_OK && t.on_terminal)
        printable_print(stderr, "czero: chat with %s%s%s; /help lists commands, Ctrl-D leaves\n",
                        o->model, o->adapter ? " and its adapter " : "",
                        o->adapter ? o->adapter : "");
    if (st == CZ_OK) st = talk_on(&t);
    forget(&t, 0);
    free(t.messages);
    free(t.system);
    text_stream_free(&t.stream);
    text_buf_free(&t.answer);
    cz_tokenizer_decoder_destroy(t.stream.decoder);
    generate_session_close(t.session);
    for (int i = 0; i < 2; i++)
        if (wake[i] >= 0) close(wake[i]);
    chat_encoder_close(&t.encoder);
    cz_tokenizer_close(t.tokenizer);
    cz_model_destroy(t.model);
    return st;
}

int cmd_chat(int argc, char **argv)
{
    struct chat_cli o = {.sampling = ANSWER_SAMPLING_USUAL};
    enum args_result parsed = args_parse(&chat_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    const char *wrong = answer_check_sampling(&o.sampling);
    if (wrong) {
        tool_complain("czero chat", "%s", wrong);
        return EXIT_USAGE;
    }
    tool_log_init(true);
    if (adapter_find_base(&o.model, &o.adapter) != CZ_OK ||
        answer_take_defaults(o.model, o.adapter, 1024, &o.sampling) != CZ_OK)
        return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
