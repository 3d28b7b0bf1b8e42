/* czero generate: text that continues a prompt, printed token by token. */
#include "base/log.h"
#include "base/printable.h"
#include "base/status.h"
#include "engine/infer/generate.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/tool.h"
#include <czero/data.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate_cli {
    const char *model, *prompt, *tokenizer, *dtype, *device;
    int64_t max_new_tokens, top_k, seed;
    double temperature;
    bool no_cache, no_echo, no_end, raw;
};

#define AT(field) offsetof(struct generate_cli, field)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, AT(model), "DIR", "Hugging Face folder, or a preset", 0, true},
    {"--prompt", ARG_STRING, AT(prompt), "TEXT", "text to continue", 0, true},
    {"--tokenizer", ARG_STRING, AT(tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder, else bytes)", 0, false},
    {"--max-new-tokens", ARG_INT, AT(max_new_tokens), "N",
     "number of tokens to generate (default: 128)", 0, false},
    {"--temperature", ARG_DOUBLE, AT(temperature), "T",
     "0: always the most likely token (default); 1: sample from the model's distribution", 0,
     false},
    {"--top-k", ARG_INT, AT(top_k), "K",
     "sample from the K most likely tokens (temperature 1 unless given)", 1, false},
    {"--seed", ARG_INT, AT(seed), "S", "seed for sampling (default: 0)", 0, false},
    {"--dtype", ARG_CHOICE, AT(dtype), "fp32|bf16|fp16",
     "type of weights and activations (default: fp32)", 0, false},
    {"--device", ARG_STRING, AT(device), "cpu|cuda|cuda:N", "device to run on (default: cpu)", 0,
     false},
    {"--no-echo", ARG_FLAG, AT(no_echo), NULL, "print only the new text, without the prompt", 0,
     false},
    {"--no-end", ARG_FLAG, AT(no_end), NULL, "continue after end tokens", 0, false},
    {"--raw", ARG_FLAG, AT(raw), NULL, "print control characters as they are", 0, false},
    {"--no-cache", ARG_FLAG, AT(no_cache), NULL,
     "recompute the whole text for each token (to check the key/value cache)", 0, false},
};

const struct arg_command generate_command = {
    .name = "czero generate",
    .summary = "Generate text from a prompt.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue =
        "The text goes to standard output as it is generated. Control characters other\n"
        "than line feeds and tabs, and marks that turn the direction of text, are printed\n"
        "as escapes (\\x1b, \\u202e), so that no model can control a terminal; --raw prints\n"
        "the text as it is. When the model's context is full, czero drops its older half.",
    .examples = "  czero generate --model trained/ --prompt \"Once upon a time\"",
};

/* Text on its way to standard output; the prompt goes first, once something can follow it. */
struct printer {
    struct cz_tokenizer_decoder *decoder;
    const char *prompt; /* NULL: printed, or not wanted */
    bool raw;
};

/* The decoder hands out whole characters. */
static void put_text(const struct printer *p, const char *text, size_t nbytes)
{
    if (p->raw)
        fwrite(text, 1, nbytes, stdout);
    else
        printable_put(stdout, PRINTABLE_TEXT, text, nbytes);
}

/* The prompt is printed with the first text that follows it: a run that fails before prints
 * nothing. */
static cz_status print_text(struct printer *p, const char *text, size_t nbytes)
{
    if (p->prompt) put_text(p, p->prompt, strlen(p->prompt));
    p->prompt = NULL;
    put_text(p, text, nbytes);
    return fflush(stdout) == 0 ? CZ_OK : err_set(CZ_IO, errno, "cannot write to standard output");
}

/* A token may end within a character; the decoder keeps the rest until it is complete. */
static cz_status print_token(void *user, int32_t token)
{
    struct printer *p = user;
    const char *text;
    size_t nbytes;
    TRY(cz_tokenizer_decode(p->decoder, token, &text, &nbytes));
    return print_text(p, text, nbytes);
}

static enum cz_dtype dtype_of(const char *name)
{
    if (strcmp(name, "bf16") == 0) return DTYPE_BF16;
    return strcmp(name, "fp16") == 0 ? DTYPE_F16 : DTYPE_F32;
}

/* The prompt with the special tokens that the tokenizer puts around a text. */
static cz_status encode_prompt(const struct cz_tokenizer *tokenizer, const char *prompt,
                               int32_t **ids, int64_t *n_ids)
{
    const struct cz_tokenizer_input input = {.text = prompt, .nbytes = strlen(prompt)};
    const int64_t max_special = 16;
    size_t n;
    TRY(cz_tokenizer_encode(tokenizer, prompt, strlen(prompt), ids, &n));
    free(*ids);
    *ids = malloc((n + (size_t)max_special) * sizeof **ids);
    if (!*ids) return err_set(CZ_NOMEM, 0, "no memory for the prompt's tokens");
    cz_status st = cz_tokenizer_encode_input(tokenizer, &input, (int64_t)n + max_special, *ids,
                                             NULL, n_ids, NULL);
    if (st != CZ_OK) free(*ids);
    return st;
}

static cz_status generate(const struct generate_cli *o, struct cz_model *model,
                          const struct cz_tokenizer *tokenizer,
                          struct cz_tokenizer_decoder *decoder)
{
    struct generate_ends ends;
    /* Ids that end a text: the tokenizer's and those of generation_config.json; config.json, which
     * often holds another tokenizer's, is asked when neither names one. Bytes end nowhere. */
    ends.n = 0;
    if (!o->no_end && strcmp(cz_tokenizer_name(tokenizer), "bytes") != 0) {
        TRY(generate_read_ends(o->model, "generation_config.json", &ends));
        int64_t id = cz_tokenizer_end_id(tokenizer);
        if (id >= 0) ends.ids[ends.n++] = id;
        if (ends.n <= 0) TRY(generate_read_ends(o->model, "config.json", &ends));
    }
    const struct cz_generate_options options = {.size = sizeof options,
                                                .max_new_tokens = o->max_new_tokens,
                                                .temperature = (float)o->temperature,
                                                .top_k = o->top_k,
                                                .seed = (uint64_t)o->seed,
                                                .end_id = -1,
                                                .end_ids = ends.ids,
                                                .n_end_ids = ends.n,
                                                .n_vocab = cz_tokenizer_vocab_size(tokenizer),
                                                .dtype = dtype_of(o->dtype),
                                                .no_cache = o->no_cache,
                                                .device = o->device};
    struct printer printer = {decoder, o->no_echo ? NULL : o->prompt, o->raw};
    int32_t *ids;
    int64_t n_ids;
    size_t nbytes;
    const char *rest;
    TRY(encode_prompt(tokenizer, o->prompt, &ids, &n_ids));
    cz_status st = cz_generate(model, &options, ids, (size_t)n_ids, print_token, &printer);
    free(ids);
    TRY(st);
    cz_tokenizer_decoder_end(decoder, &rest, &nbytes);
    TRY(print_text(&printer, rest, nbytes));
    putchar('\n');
    return CZ_OK;
}

static cz_status run(const struct generate_cli *o)
{
    struct cz_tokenizer *tokenizer = NULL;
    struct cz_tokenizer_decoder *decoder = NULL;
    cz_status st = CZ_OK;
    const char *own = cz_tokenizer_is_in(o->model) ? o->model : "bytes";
    struct cz_model *model = cz_model_open(o->model);
    if (!model) return cz_last_status();
    TRY_GOTO(cz_tokenizer_open(o->tokenizer ? o->tokenizer : own, &tokenizer), done);
    /* Bytes may be more than a small model knows: the prompt shows whether that matters. */
    if (strcmp(cz_tokenizer_name(tokenizer), "bytes") != 0)
        TRY_GOTO(cz_tokenizer_check_vocab(tokenizer, cz_model_vocab_size(model), o->model), done);
    TRY_GOTO(cz_tokenizer_decoder_create(tokenizer, &decoder), done);
    TRY_GOTO(generate(o, model, tokenizer, decoder), done);
    if (!cz_model_has_weights(model))
        LOGV(LOG_WARN, SUB_MODEL, "%s %s: the text comes from RANDOM weights", o->model,
             access(o->model, F_OK) == 0 ? "has no weights" : "is a preset, without weights");
done:
    cz_tokenizer_decoder_destroy(decoder);
    cz_tokenizer_close(tokenizer);
    cz_model_destroy(model);
    return st;
}

int cmd_generate(int argc, char **argv)
{
    struct generate_cli o = {.dtype = "fp32", .max_new_tokens = 128, .temperature = NAN};
    enum args_result parsed = args_parse(&generate_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    if (isnan(o.temperature)) o.temperature = o.top_k > 0 ? 1.0 : 0.0;
    if (o.temperature < 0) {
        fprintf(stderr, "czero generate: --temperature: %g must be at least 0\n", o.temperature);
        return EXIT_USAGE;
    }
    tool_log_init(true);
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
