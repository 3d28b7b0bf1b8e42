/* czero generate: text that continues a prompt, or answers a chat, printed token by token. */
#include "base/log.h"
#include "base/printable.h"
#include "base/status.h"
#include "data/chat/chat_prompt.h"
#include "data/tokenizer/tokenizer.h"
#include "engine/infer/generate.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/infer/answer.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include <czero/data.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate_cli {
    const char *model, *adapter, *file, *tokenizer, *dtype, *device, *encoding;
    const char *system, *messages, *chat_template;
    struct arg_list prompts, chats, stops;
    struct answer_sampling sampling;
    bool no_cache, no_echo, no_end, raw, json;
};

#define AT(field) offsetof(struct generate_cli, field)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, AT(model), "DIR", "Hugging Face folder, or a preset", 0, true},
    ADAPTER_OPTION(AT(adapter)),
    {"--prompt", ARG_LIST, AT(prompts), "TEXT", "text to continue; repeatable", 0, false},
    {"--prompts", ARG_STRING, AT(file), "FILE",
     "texts to continue, one per line; -: standard input", 0, false},
    ENCODING_OPTION(AT(encoding)),
    {"--chat", ARG_LIST, AT(chats), "TEXT",
     "message to answer, by the model's chat template; repeatable", 0, false},
    {"--system", ARG_STRING, AT(system), "TEXT", "system message in front of each --chat", 0,
     false},
    {"--messages", ARG_STRING, AT(messages), "FILE",
     "conversations to answer: JSON (docs/chat.md); -: standard input", 0, false},
    {"--chat-template", ARG_STRING, AT(chat_template), "NAME|FILE",
     "chat template (default: that of the tokenizer's folder)", 0, false},
    {"--tokenizer", ARG_STRING, AT(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder, else bytes)", 0, false},
    {"--max-new-tokens", ARG_INT, AT(sampling.max_new_tokens), "N",
     "number of tokens to generate (default: the folder's, else 128)", 0, false},
    ANSWER_SAMPLING_OPTIONS(AT(sampling)),
    {"--stop", ARG_LIST, AT(stops), "TEXT", "end the text before this one; repeatable", 0, false},
    {"--dtype", ARG_CHOICE, AT(dtype), "fp32|bf16|fp16",
     "type of weights and activations (default: fp32)", 0, false},
    {"--device", ARG_STRING, AT(device), "cpu|cuda|cuda:N", "device to run on (default: cpu)", 0,
     false},
    {"--no-echo", ARG_FLAG, AT(no_echo), NULL, "print only the new text, without the prompt", 0,
     false},
    {"--json", ARG_FLAG, AT(json), NULL,
     "print an object {\"prompt\", \"text\"} per prompt and line", 0, false},
    {"--no-end", ARG_FLAG, AT(no_end), NULL, "continue after end tokens", 0, false},
    {"--raw", ARG_FLAG, AT(raw), NULL, "print control characters as they are", 0, false},
    {"--no-cache", ARG_FLAG, AT(no_cache), NULL,
     "recompute the whole text for each token (to check the key/value cache)", 0, false},
};

const struct arg_command generate_command = {
    .name = "czero generate",
    .summary = "Generate text from prompts, or answers to chats.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .one_of = "--prompt|--prompts|--chat|--messages",
    .epilogue =
        "The text goes to standard output as it is generated. Control characters other\n"
        "than line feeds and tabs, and marks that turn the direction of text, are printed\n"
        "as escapes (\\x1b, \\u202e), so that no model can control a terminal; --raw prints\n"
        "the text as it is. When the model's context is full, czero drops its older half.\n"
        "Texts of several prompts follow each other with an empty line between them;\n"
        "each is what its prompt alone would give. Logits pass through the repetition\n"
        "penalty, the temperature, --top-k and --top-p, in this order. Those that are not\n"
        "given come from the folder's generation_config.json.\n"
        "Of --chat and --messages only the answers are printed, each up to the end of its\n"
        "turn.",
    .examples = "  czero generate --model trained/ --prompt \"Once upon a time\"\n"
                "  czero generate --model tuned/ --chat \"Where is the Louvre?\"",
};

/* Texts on their way to standard output. A prompt is printed with the first text that follows it: a
 * run that fails before prints nothing. */
struct printer {
    const struct generate_cli *o;
    const struct cz_tokenizer_input *prompts; /* lines of a file may hold NUL */
    size_t n_prompts;
    struct text_stream stream;
    bool echoes;
    size_t now;           /* the prompt under way */
    bool begun;           /* its prompt is printed */
    struct text_buf text; /* --json: all of it */
};

static void printer_free(struct printer *p)
{
    text_stream_free(&p->stream);
    text_buf_free(&p->text);
}

static void put_text(const struct printer *p, const char *text, size_t nbytes)
{
    if (p->o->raw)
        fwrite(text, 1, nbytes, stdout);
    else
        printable_put(stdout, PRINTABLE_TEXT, text, nbytes);
}

static cz_status print_text(void *user, const char *text, size_t nbytes)
{
    struct printer *p = user;
    const struct cz_tokenizer_input *prompt = &p->prompts[p->now];
    if (p->o->json) return text_buf_put(&p->text, text, nbytes);
    if (!p->begun && p->now > 0) putchar('\n');
    if (!p->begun && p->echoes) put_text(p, prompt->text, prompt->nbytes);
    p->begun = true;
    put_text(p, text, nbytes);
    return fflush(stdout) == 0 ? CZ_OK : err_set(CZ_IO, errno, "cannot write to standard output");
}

static cz_status end_text(struct printer *p)
{
    const struct cz_tokenizer_input *prompt = &p->prompts[p->now];
    TRY(text_stream_end(&p->stream));
    if (!p->begun) TRY(print_text(p, "", 0)); /* a text without a token still has its prompt */
    if (p->o->json) {
        printf("{\"prompt\": ");
        tool_put_json_string(stdout, prompt->text, prompt->nbytes);
        printf(", \"text\": ");
        tool_put_json_string(stdout, p->text.n > 0 ? p->text.s : "", p->text.n);
        putchar('}');
    }
    putchar('\n');
    if (fflush(stdout) != 0) return err_set(CZ_IO, errno, "cannot write to standard output");
    p->text.n = 0;
    p->begun = false;
    p->now++;
    return CZ_OK;
}

static cz_status print_token(void *user, size_t prompt, int32_t token, bool *ends)
{
    struct printer *p = user;
    while (p->now < prompt) TRY(end_text(p));
    TRY(text_stream_take(&p->stream, token));
    *ends = p->stream.stopped;
    return CZ_OK;
}

/* ---- prompts -------------------------------------------------------------------------------- */

/* Where they come from, as texts and as ids. */
struct source {
    struct cz_texts *lines;           /* of --prompts */
    struct chat_prompts chats;        /* of --chat and --messages */
    struct chat_encoder encoder;      /* for these */
    struct text_buf *rendered;        /* (n) of these */
    struct cz_tokenizer_input *texts; /* (n) */
    struct cz_prompt *prompts;        /* (n) */
    size_t n;
};

static void source_free(struct source *s)
{
    for (size_t i = 0; s->prompts && i < s->n; i++) free((void *)(uintptr_t)s->prompts[i].ids);
    for (size_t i = 0; s->rendered && i < s->n; i++) text_buf_free(&s->rendered[i]);
    free(s->rendered);
    free(s->prompts);
    free(s->texts);
    chat_encoder_close(&s->encoder);
    chat_prompts_free(&s->chats);
    cz_texts_close(s->lines);
}

static bool is_chat(const struct generate_cli *o)
{
    return o->chats.n > 0 || o->messages;
}

/* The lines of --prompts. */
static cz_status read_lines(struct source *s, const struct generate_cli *o)
{
    const struct cz_texts_options options = {.size = sizeof options,
                                             .paths = &o->file,
                                             .n_paths = 1,
                                             .plain = true,
                                             .encoding = o->encoding,
                                             .labels_optional = true,
                                             .labels_ignored = true};
    TRY(cz_texts_open(&options, &s->lines));
    s->n = cz_texts_count(s->lines);
    return CZ_OK;
}

static cz_status read_chats(struct source *s, const struct generate_cli *o)
{
    size_t n_answered = 0;
    if (o->messages) TRY(chat_prompts_read(o->messages, o->encoding, &s->chats));
    for (size_t i = 0; i < o->chats.n; i++) {
        const struct chat_message messages[] = {{"system", o->system}, {"user", o->chats.items[i]}};
        const size_t first = o->system ? 0 : 1;
        TRY(chat_prompts_add(&s->chats, messages + first, 2 - first));
    }
    s->n = s->chats.n;
    for (size_t i = 0; i < s->n; i++)
        n_answered += chat_n_asked(&s->chats.rows[i]) < s->chats.rows[i].n_messages;
    if (n_answered > 0)
        tool_complain("czero generate",
                      "%s: %zu of %zu conversations end with an answer, which czero replaces",
                      o->messages, n_answered, s->n);
    return CZ_OK;
}

/* Before the model is opened: an error in a file needs no weights. */
static cz_status source_read(struct source *s, const struct generate_cli *o)
{
    s->n = o->prompts.n;
    for (size_t i = 0; i < s->n; i++) TRY(tool_check_text("--prompt", o->prompts.items[i]));
    for (size_t i = 0; i < o->chats.n; i++) TRY(tool_check_text("--chat", o->chats.items[i]));
    for (size_t i = 0; i < o->stops.n; i++) TRY(tool_check_text("--stop", o->stops.items[i]));
    if (o->system) TRY(tool_check_text("--system", o->system));
    if (o->file) TRY(read_lines(s, o));
    if (is_chat(o)) TRY(read_chats(s, o));
    s->rendered = calloc(s->n, sizeof *s->rendered);
    s->texts = calloc(s->n, sizeof *s->texts);
    s->prompts = calloc(s->n, sizeof *s->prompts);
    if (!s->rendered || !s->texts || !s->prompts)
        return err_set(CZ_NOMEM, 0, "no memory for %zu prompts", s->n);
    for (size_t i = 0; i < s->n && !is_chat(o); i++) {
        const char *given = o->file ? NULL : o->prompts.items[i];
        s->texts[i] = o->file ? cz_texts_at(s->lines, i)
                              : (struct cz_tokenizer_input){.text = given, .nbytes = strlen(given)};
    }
    return CZ_OK;
}

/* A conversation, of which --json shows the text. */
static cz_status encode_chat(struct source *s, const struct generate_cli *o, size_t i,
                             int32_t **ids, size_t *n_ids)
{
    char where[600] = "--chat";
    if (o->messages)
        snprintf(where, sizeof where, "%s:%llu",
                 strcmp(o->messages, "-") == 0 ? "standard input" : o->messages,
                 (unsigned long long)s->chats.lines[i]);
    TRY(chat_encode_prompt(&s->encoder, &s->chats.rows[i], where, &s->rendered[i], ids, n_ids));
    s->texts[i] = (struct cz_tokenizer_input){.text = s->rendered[i].s, .nbytes = s->rendered[i].n};
    return CZ_OK;
}

static cz_status source_encode(struct source *s, const struct generate_cli *o,
                               const struct cz_tokenizer *tokenizer)
{
    if (is_chat(o)) {
        TRY(chat_encoder_open_in(&s->encoder, tokenizer, adapter_template(o->model, o->adapter),
                                 o->chat_template, NULL));
        TRY(chat_prompts_bind(&s->chats, s->encoder.chat));
    }
    for (size_t i = 0; i < s->n; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        cz_status st = is_chat(o) ? encode_chat(s, o, i, &ids, &n)
                                  : tokenizer_encode_whole(tokenizer, s->texts[i].text,
                                                           s->texts[i].nbytes, &ids, &n);
        s->prompts[i] = (struct cz_prompt){ids, n};
        TRY(st);
    }
    return CZ_OK;
}

/* ---- the run -------------------------------------------------------------------------------- */

static cz_status generate(const struct generate_cli *o, struct cz_model *model,
                          const struct cz_tokenizer *tokenizer, const struct source *s,
                          struct printer *printer)
{
    struct model_ends ends = {0};
    if (!o->no_end)
        TRY(answer_find_ends(o->model, o->adapter, tokenizer, is_chat(o) ? &s->encoder : NULL,
                             &ends, &printer->stream.stops));
    struct cz_generate_options options = answer_options(&o->sampling, &ends, tokenizer);
    options.dtype = args_dtype(o->dtype, DTYPE_F32);
    options.no_cache = o->no_cache;
    options.device = o->device;
    TRY(cz_generate_all(model, &options, s->prompts, s->n, print_token, printer));
    while (printer->now < printer->n_prompts) TRY(end_text(printer));
    return CZ_OK;
}

static cz_status run(const struct generate_cli *o)
{
    struct cz_tokenizer *tokenizer = NULL;
    struct printer printer = {.o = o,
                              .stream = {.stops = o->stops, .put = print_text, .user = &printer},
                              .echoes = !o->no_echo && !is_chat(o)};
    struct source source = {0};
    struct cz_model *model = NULL;
    cz_status st = CZ_OK;
    TRY_GOTO(source_read(&source, o), done);
    printer.prompts = source.texts;
    printer.n_prompts = source.n;
    const char *tokens = adapter_tokenizer(o->tokenizer, o->model, o->adapter);
    model = adapter_open(o->model, o->adapter);
    if (!model) TRY_GOTO(cz_last_status(), done);
    TRY_GOTO(cz_tokenizer_open(tokens, &tokenizer), done);
    /* Bytes may be more than a small model knows: the prompt shows whether that matters. */
    if (strcmp(cz_tokenizer_name(tokenizer), "bytes") != 0)
        TRY_GOTO(cz_tokenizer_check_vocab(tokenizer, cz_model_vocab_size(model), o->model), done);
    TRY_GOTO(cz_tokenizer_decoder_create(tokenizer, &printer.stream.decoder), done);
    TRY_GOTO(source_encode(&source, o, tokenizer), done);
    TRY_GOTO(generate(o, model, tokenizer, &source, &printer), done);
    if (!cz_model_has_weights(model))
        LOGV(LOG_WARN, SUB_MODEL, "%s %s: the text comes from RANDOM weights", o->model,
             access(o->model, F_OK) == 0 ? "has no weights" : "is a preset, without weights");
done:
    cz_tokenizer_decoder_destroy(printer.stream.decoder);
    source_free(&source);
    cz_tokenizer_close(tokenizer);
    cz_model_destroy(model);
    printer_free(&printer);
    return st;
}

/* Of --prompt, --prompts, --chat and --messages one is given. */
static const char *check_sources(const struct generate_cli *o)
{
    const int n = (o->prompts.n > 0) + (o->file != NULL) + (o->chats.n > 0) + (o->messages != NULL);
    if (n > 1) return "--prompt, --prompts, --chat and --messages exclude each other: give one";
    if (o->system && o->chats.n == 0)
        return "--system goes with --chat: a file of --messages has its own";
    if (o->chat_template && !is_chat(o)) return "--chat-template goes with --chat or --messages";
    return NULL;
}

/* What is wrong with a number or a combination; NULL: nothing. */
static const char *check_options(struct generate_cli *o)
{
    const char *wrong = check_sources(o);
    if (!wrong) wrong = answer_check_sampling(&o->sampling);
    if (wrong) return wrong;
    for (size_t i = 0; i < o->stops.n; i++)
        if (!*o->stops.items[i]) return "--stop: an empty text would end every text at once";
    if (!o->json || !(o->raw || o->no_echo)) return NULL;
    return "--json prints whole texts, escaped: --raw and --no-echo do not apply";
}

int cmd_generate(int argc, char **argv)
{
    struct generate_cli o = {.sampling = ANSWER_SAMPLING_USUAL};
    enum args_result parsed = args_parse(&generate_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    const char *wrong = check_options(&o);
    if (wrong) {
        tool_complain("czero generate", "%s", wrong);
        return EXIT_USAGE;
    }
    tool_log_init(true);
    if (adapter_find_base(&o.model, &o.adapter) != CZ_OK ||
        answer_take_defaults(o.model, o.adapter, 128, &o.sampling) != CZ_OK)
        return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
