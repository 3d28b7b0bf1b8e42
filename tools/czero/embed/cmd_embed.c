/* czero embed: the last hidden states of texts, pooled, as a .npy file or JSON lines. Batches are
 * sorted by length, and each row goes to its place in the file, so memory does not grow with the
 * number of texts. */
#include "data/source/paths.h"
#include "formats/npy/npy.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/embed/embed.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/score.h"

#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const embed_pools[] = {"cls", "mean", "last", "none", NULL};

struct embed_options {
    struct score_options score;
    const char *text, *pair, *output, *text_column, *pair_column, *encoding, *pool;
    struct arg_list data;
    bool strip_spaces, json, normalize;
};

#define FIELD(member) offsetof(struct embed_options, member)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, FIELD(score.model), "DIR",
     "Hugging Face or sentence-transformers folder", .required = true},
    ADAPTER_OPTION(FIELD(score.adapter)),
    {"--text", ARG_STRING, FIELD(text), "TEXT", "text to embed"},
    {"--pair", ARG_STRING, FIELD(pair), "TEXT", "second text, for models of text pairs"},
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "files to embed: one text per line, or .json, .jsonl, .csv, .tsv, .conll; - reads lines from "
     "standard input"},
    {"-o", ARG_STRING, FIELD(output), "FILE",
     "output file, .npy or with --json JSON lines (default: lines to standard output)"},
    {"--pool", ARG_CHOICE, FIELD(pool), "cls|mean|last|none",
     "pooling: cls (first token), mean, last (last token), or none (every token) (default: the "
     "folder's, or mean)"},
    {"--normalize", ARG_FLAG, FIELD(normalize), NULL, "divide each vector by its length"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object per text"},
    {"--tokenizer", ARG_STRING, FIELD(score.tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder)"},
    {"--seq-len", ARG_INT, FIELD(score.max_len), "T",
     "maximum length of a row in tokens (default: the model's, at most 512)", .min = 1},
    {"--batch", ARG_INT, FIELD(score.batch), "N", "rows per batch (default: 32)", .min = 1},
    {"--dtype", ARG_CHOICE, FIELD(score.dtype), "fp32|bf16|fp16",
     "type of weights and activations (default: fp32)"},
    {"--device", ARG_STRING, FIELD(score.device), "cpu|cuda|cuda:N",
     "device to run on (default: cpu)"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME",
     "column or member with a second text, if any"},
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL, "remove white space inside texts"},
    ENCODING_OPTION(FIELD(encoding)),
};

const struct arg_command embed_command = {
    .name = "czero embed",
    .summary = "Write the last hidden states of texts, pooled, as an array.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "The array is float32 (texts, width), in the order of the texts. With --pool\n"
                "none it is (texts, longest, width), zero behind a text's tokens, and\n"
                "FILE.lengths.npy has the numbers of tokens. A sentence-transformers folder\n"
                "says how to pool.",
    .examples = "  czero embed --model encoder/ --data reviews.csv --pool cls -o features.npy\n"
                "  czero embed --model encoder/ --text \"what a day\"",
};

struct embedder {
    const struct embed_options *o;
    struct scorer *s;
    enum embed_pool pool;
    bool normalize;
    int64_t C, width; /* width: tokens of a row of the array, with --pool none */
    float *hidden;    /* (batch, max_len, C) */
    float *row;       /* (C), or (width, C) */
    int64_t *lengths; /* (texts) with --pool none */
    struct npy_writer npy;
    struct output_file out; /* of JSON lines; no stream: the array */
};

/* ---- vectors ----------------------------------------------------------------------------------
 */

/* Whether position t of a row is a token. */
static bool is_token(const struct cz_batch *batch, int64_t b, int64_t t)
{
    return !batch->key_mask || batch->key_mask[b * batch->T + t];
}

static int64_t n_tokens_of(const struct cz_batch *batch, int64_t b)
{
    int64_t n = 0;
    for (int64_t t = 0; t < batch->T; t++) n += is_token(batch, b, t);
    return n;
}

/* The mean in double: a long text has thousands of terms. */
static void pool_mean(const float *states, int64_t n, int64_t C, float *out)
{
    for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t t = 0; t < n; t++) sum += (double)states[t * C + c];
        out[c] = (float)(sum / (double)n);
    }
}

/* As torch's normalize(): a vector of length 0 stays. */
static void normalize(float *x, int64_t C)
{
    double sum = 0;
    for (int64_t c = 0; c < C; c++) sum += (double)x[c] * (double)x[c];
    const double length = fmax(sqrt(sum), 1e-12);
    for (int64_t c = 0; c < C; c++) x[c] = (float)((double)x[c] / length);
}

/* What the n states of a text become, in e->row: one vector, or with --pool none n of them. A text
 * without tokens has zeros. */
static void pool_row(struct embedder *e, const float *states, int64_t n)
{
    const size_t C = (size_t)e->C, n_rows = e->pool == EMBED_NONE ? (size_t)e->width : 1;
    memset(e->row, 0, n_rows * C * sizeof *e->row);
    if (n == 0) return;
    if (e->pool == EMBED_MEAN)
        pool_mean(states, n, e->C, e->row);
    else
        memcpy(e->row, states + (e->pool == EMBED_LAST ? (size_t)(n - 1) * C : 0),
               (e->pool == EMBED_NONE ? (size_t)n : 1) * C * sizeof *e->row);
    for (int64_t r = 0; e->normalize && r < (e->pool == EMBED_NONE ? n : 1); r++)
        normalize(e->row + r * e->C, e->C);
}

static cz_status check_finite(const struct embedder *e, int64_t n, size_t example)
{
    const int64_t numel = (e->pool == EMBED_NONE ? n : 1) * e->C;
    for (int64_t i = 0; i < numel; i++)
        if (!isfinite(e->row[i]))
            return err_set(CZ_CORRUPT, 0,
                           "%s: the states of text %zu are not finite; its weights may be damaged, "
                           "or too large for --dtype",
                           e->o->score.model, example + 1);
    return CZ_OK;
}

/* ---- output -----------------------------------------------------------------------------------
 */

static void put_vector(FILE *out, const float *x, int64_t C)
{
    for (int64_t c = 0; c < C; c++) {
        if (c) fputs(", ", out);
        if (!c) fputc('[', out);
        tool_put_json_number(out, (double)x[c]);
    }
    fputc(']', out);
}

static void put_line(const struct embedder *e, int64_t n)
{
    FILE *out = e->out.stream;
    fputs("{\"embedding\": ", out);
    if (e->pool != EMBED_NONE) {
        put_vector(out, e->row, e->C);
    } else {
        fputc('[', out);
        for (int64_t t = 0; t < n; t++) {
            if (t) fputs(", ", out);
            put_vector(out, e->row + t * e->C, e->C);
        }
        fputc(']', out);
    }
    fputs("}\n", out);
}

static cz_status put_row(struct embedder *e, const float *states, int64_t n, size_t example)
{
    pool_row(e, states, n);
    TRY(check_finite(e, n, example));
    if (e->out.stream) {
        put_line(e, n);
        return CZ_OK;
    }
    const size_t numel = (size_t)((e->pool == EMBED_NONE ? e->width : 1) * e->C);
    return npy_write(&e->npy, example * numel, e->row, numel);
}

static cz_status visit(void *user, const struct cz_batch *batch, const size_t *rows,
                       const int32_t *starts)
{
    struct embedder *e = user;
    (void)starts;
    TRY(cz_infer_hidden(e->s->infer, batch, e->hidden));
    for (int64_t b = 0; b < batch->B; b++)
        if (rows[b] != SIZE_MAX)
            TRY(put_row(e, e->hidden + b * batch->T * e->C, n_tokens_of(batch, b), rows[b]));
    return CZ_OK;
}

/* FILE.lengths.npy beside FILE.npy, free() it. */
static char *lengths_path(const char *path)
{
    size_t stem = strlen(path);
    if (stem > 4 && strcmp(path + stem - 4, ".npy") == 0) stem -= 4;
    char *name = malloc(stem + sizeof ".lengths.npy");
    if (name) snprintf(name, stem + sizeof ".lengths.npy", "%.*s.lengths.npy", (int)stem, path);
    return name;
}

/* The numbers of tokens of all texts. */
static cz_status write_lengths(const struct embedder *e, size_t n)
{
    const int64_t shape[] = {(int64_t)n};
    struct npy_writer w = {0};
    char *name = lengths_path(e->o->output);
    cz_status st = name ? npy_create(&w, name, NPY_I64, 1, shape)
                        : err_set(CZ_NOMEM, 0, "no memory for a path");
    if (st == CZ_OK) st = npy_write(&w, 0, e->lengths, n);
    if (st == CZ_OK) st = npy_commit(&w);
    npy_abort(&w);
    free(name);
    return st;
}

/* ---- the command ------------------------------------------------------------------------------
 */

/* Tokens of each text, and of the longest. */
static cz_status measure(struct embedder *e, const struct cz_texts *texts)
{
    struct scorer *s = e->s;
    e->lengths = calloc(cz_texts_count(texts) + 1, sizeof *e->lengths);
    if (!e->lengths) return err_set(CZ_NOMEM, 0, "no memory for the lengths of texts");
    e->width = 1;
    for (size_t i = 0; i < cz_texts_count(texts); i++) {
        const struct cz_tokenizer_input text = cz_texts_at(texts, i);
        size_t n_words;
        const struct cz_text_word *words = cz_texts_words(texts, i, &n_words);
        if (s->words)
            TRY(cz_tokenizer_encode_words(s->tokenizer, text.text, words, n_words, s->max_len,
                                          s->ids, s->types, s->starts, &e->lengths[i], NULL));
        else
            TRY(cz_tokenizer_encode_input(s->tokenizer, &text, s->max_len, s->ids, s->types,
                                          &e->lengths[i], NULL));
        if (e->lengths[i] > e->width) e->width = e->lengths[i];
    }
    return CZ_OK;
}

static cz_status make_room(struct embedder *e)
{
    const size_t C = (size_t)e->C, n = (size_t)e->s->batch * (size_t)e->s->max_len;
    e->hidden = malloc(n * C * sizeof *e->hidden);
    e->row = malloc((size_t)(e->pool == EMBED_NONE ? e->width : 1) * C * sizeof *e->row);
    return e->hidden && e->row ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for hidden states");
}

static cz_status embed_text(struct embedder *e)
{
    const struct embed_options *o = e->o;
    const struct cz_tokenizer_input text = {.text = o->text,
                                            .nbytes = strlen(o->text),
                                            .pair = o->pair,
                                            .pair_nbytes = o->pair ? strlen(o->pair) : 0};
    int64_t n = 0;
    TRY(cz_tokenizer_encode_input(e->s->tokenizer, &text, e->s->max_len, e->s->ids, e->s->types, &n,
                                  NULL));
    if (n == 0) return err_set(CZ_INVALID, 0, "--text has no tokens");
    e->width = n;
    TRY(make_room(e));
    const int64_t one[] = {1, e->C}, all[] = {1, n, e->C};
    if (o->output && !o->json)
        TRY(npy_create(&e->npy, o->output, NPY_F32, e->pool == EMBED_NONE ? 3 : 2,
                       e->pool == EMBED_NONE ? all : one));
    else
        TRY(output_open(&e->out, o->output));
    return score_visit_one(e->s, &text, visit, e);
}

static cz_status embed_texts(struct embedder *e, const struct cz_texts *texts)
{
    const size_t n = cz_texts_count(texts);
    const bool is_array = !e->o->json;
    if (e->pool == EMBED_NONE) TRY(measure(e, texts));
    TRY(make_room(e));
    const int64_t pooled[] = {(int64_t)n, e->C}, whole[] = {(int64_t)n, e->width, e->C};
    if (is_array)
        TRY(npy_create(&e->npy, e->o->output, NPY_F32, e->pool == EMBED_NONE ? 3 : 2,
                       e->pool == EMBED_NONE ? whole : pooled));
    else
        TRY(output_open(&e->out, e->o->output));
    TRY(score_visit_texts(e->s, texts, !is_array, visit, e));
    return is_array && e->pool == EMBED_NONE ? write_lengths(e, n) : CZ_OK;
}

/* Files of words are .conll and the like; the texts of all files have one form. */
static cz_status find_words(struct embedder *e)
{
    const struct arg_list *data = &e->o->data;
    size_t n_words = 0;
    for (size_t i = 0; i < data->n; i++) n_words += data_path_is_words(data->items[i]);
    if (n_words > 0 && n_words < data->n)
        return err_set(CZ_INVALID, 0,
                       "--data names files of words, such as .conll, and files of texts: embed "
                       "each kind with a command of its own");
    e->s->words = e->s->words || n_words > 0;
    return CZ_OK;
}

/* Labels are not needed, and ignored when the file has some. */
static cz_status embed_files(struct embedder *e)
{
    const struct embed_options *o = e->o;
    struct cz_texts *texts = NULL;
    TRY(find_words(e));
    const struct cz_texts_options options = {
        .size = sizeof options,
        .paths = o->data.items,
        .n_paths = o->data.n,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .strip_spaces = o->strip_spaces,
        .labels_optional = true,
        .labels_ignored = true,
        .words = e->s->words,
        .encoding = o->encoding,
    };
    TRY(cz_texts_open(&options, &texts));
    cz_status st = embed_texts(e, texts);
    cz_texts_close(texts);
    return st;
}

static cz_status check_options(const struct embed_options *o)
{
    const char *of_data = o->text_column    ? "--text-column"
                          : o->pair_column  ? "--pair-column"
                          : o->strip_spaces ? "--strip-spaces"
                          : o->encoding     ? "--encoding"
                                            : NULL;
    if ((o->text != NULL) == (o->data.n > 0))
        return err_set(CZ_INVALID, 0, "--text or --data is missing");
    if (o->pair && !o->text)
        return err_set(CZ_INVALID, 0, "--pair needs --text; files need --pair-column");
    if (o->text && of_data) return err_set(CZ_INVALID, 0, "%s needs --data", of_data);
    if (o->data.n > 0 && !o->output && !o->json)
        return err_set(CZ_INVALID, 0, "--data needs -o FILE.npy, or --json for lines");
    TRY(tool_check_text("--text", o->text));
    return tool_check_text("--pair", o->pair);
}

/* Nothing of another kind is overwritten, and no input. */
static cz_status check_outputs(const struct embedder *e)
{
    const struct embed_options *o = e->o;
    struct output_inputs inputs = {.n = 0};
    output_add_inputs(&inputs, &o->data);
    if (!o->output) return CZ_OK;
    TRY(output_check_file("-o", o->output, o->json ? OUTPUT_VECTORS : OUTPUT_NUMPY, &inputs));
    if (e->pool != EMBED_NONE || o->json || o->text) return CZ_OK;
    char *name = lengths_path(o->output);
    cz_status st = name ? output_check_file("-o", name, OUTPUT_NUMPY, &inputs)
                        : err_set(CZ_NOMEM, 0, "no memory for a path");
    free(name);
    return st;
}

/* The folder's way, unless --pool says another. */
static cz_status choose_pool(struct embedder *e, const struct embed_recipe *r)
{
    const char *given = e->o->pool;
    e->pool = r->pool;
    e->normalize = e->o->normalize || (r->normalize && !given);
    if (!given && r->unapplied)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: its modules ask for %s, which czero embed does not apply; --pool "
                       "mean gives the states without that",
                       e->o->score.model, r->unapplied);
    for (int k = 0; given && embed_pools[k]; k++)
        if (strcmp(given, embed_pools[k]) == 0) e->pool = (enum embed_pool)k;
    if (given && r->given && (r->unapplied || e->pool != r->pool || e->normalize != r->normalize))
        LOGV(LOG_WARN, SUB_DATA, "%s: its modules pool in another way than --pool %s%s",
             e->o->score.model, given, r->normalize && !e->normalize ? ", and normalize" : "");
    if (r->not_put)
        LOGV(LOG_WARN, SUB_DATA,
             "%s: its default prompt \"%s\" is not put in front of texts: put it there yourself",
             e->o->score.model, r->not_put);
    return CZ_OK;
}

static cz_status embed(struct embedder *e)
{
    cz_status st = e->o->text ? embed_text(e) : embed_files(e);
    if (st == CZ_OK && !e->out.stream) st = npy_commit(&e->npy);
    st = output_close(&e->out, st);
    npy_abort(&e->npy);
    free(e->hidden);
    free(e->row);
    free(e->lengths);
    return st;
}

static cz_status run(const struct embed_options *options)
{
    struct embed_options o = *options;
    struct embed_recipe recipe = {0};
    struct scorer scorer = {0};
    struct embedder e = {.o = options, .s = &scorer};
    TRY(check_options(options));
    cz_status st = embed_recipe_read(o.score.model, &recipe);
    if (st == CZ_OK) st = choose_pool(&e, &recipe);
    if (st == CZ_OK) st = check_outputs(&e);
    if (st == CZ_OK) {
        struct cz_model *model;
        o.score.model = recipe.model;
        if (o.score.max_len == 0) o.score.max_len = recipe.max_len;
        model = adapter_open(o.score.model, o.score.adapter);
        if (model) model_trained_come_later(model); /* a head's weights are not used */
        st = score_open_any(&scorer, &o.score, model);
    }
    if (st == CZ_OK) {
        e.C = cz_model_hidden_size(scorer.model);
        st = embed(&e);
    }
    score_close(&scorer);
    embed_recipe_free(&recipe);
    return st;
}

int cmd_embed(int argc, char **argv)
{
    struct embed_options o = {0};
    enum args_result parsed = args_parse(&embed_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (adapter_find_base(&o.score.model, &o.score.adapter) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
