/* czero vocab: builds a vocabulary from texts: WordPiece, characters or byte-level BPE. It reads
 * texts as training does (columns, --strip-spaces), otherwise the vocabulary would not match what
 * is trained on. */
#include "base/printable.h"
#include "base/size.h"
#include "base/status.h"
#include "data/source/paths.h"
#include "data/tokenizer/vocab.h"
#include "formats/json/json_write.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"
#include <czero/data.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct vocab_cli {
    struct arg_list data;
    const char *text_column, *pair_column, *kind, *lowercase, *out, *encoding;
    int64_t size, min_count;
    bool strip_spaces, json;
};

#define AT(field) offsetof(struct vocab_cli, field)
static const struct arg_spec specs[] = {
    {"--data", ARG_WORDS, AT(data), "PATH",
     "JSON, CSV and TSV as for classification; all other files are plain text", 0, true},
    ENCODING_OPTION(AT(encoding)),
    {"-o", ARG_STRING, AT(out), "DIR", "output folder for the vocabulary and tokenizer_config.json",
     0, true},
    {"--size", ARG_INT, AT(size), "N",
     "maximum number of tokens, including the special ones (five; bpe: one)", 6, true},
    {"--type", ARG_CHOICE, AT(kind), "wordpiece|char|bpe",
     "wordpiece: characters and word pieces (default); char: characters only; bpe: byte pairs, as "
     "GPT-2",
     0, false},
    {"--kind", ARG_CHOICE, AT(kind), "wordpiece|char|bpe", "the same, in earlier versions", 0,
     false},
    {"--lowercase", ARG_CHOICE, AT(lowercase), "on|off",
     "convert to lower case and remove accents (default: on; not for bpe)", 0, false},
    {"--min-count", ARG_INT, AT(min_count), "N", "omit tokens that occur fewer times (default: 2)",
     1, false},
    {"--text-column", ARG_STRING, AT(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)", 0, false},
    {"--pair-column", ARG_STRING, AT(pair_column), "NAME",
     "column or member with a second text, if any", 0, false},
    {"--strip-spaces", ARG_FLAG, AT(strip_spaces), NULL,
     "remove white space inside texts (of corpora segmented into words)", 0, false},
    {"--json", ARG_FLAG, AT(json), NULL, "print one JSON object instead of the report", 0, false},
};

const struct arg_command vocab_command = {
    .name = "czero vocab",
    .summary = "Build a vocabulary from texts: WordPiece, characters or byte-level BPE.",
    .specs = specs,
    .n_specs = sizeof specs / sizeof specs[0],
    .epilogue = "czero reads the folder with --tokenizer DIR, transformers with\n"
                "AutoTokenizer.from_pretrained(DIR); both give the same ids.\n"
                "czero vocab refuses a folder that already contains a tokenizer.",
    .examples = "  czero vocab --data train.json --strip-spaces --type char --size 8000 -o vocab\n"
                "  czero vocab --data corpus.txt --type bpe --size 16000 -o vocab",
};

static bool is_labelled(const char *path)
{
    return data_path_is_rows(path) || data_path_is_table(path);
}

struct totals {
    uint64_t n_texts, n_bytes;
};

static cz_status add_text(struct vocab *v, const char *text, size_t nbytes, struct totals *sum)
{
    sum->n_bytes += nbytes;
    return vocab_add(v, text, nbytes);
}

static cz_status add_texts(struct vocab *v, const struct vocab_cli *o, const char *path,
                           bool labelled, struct totals *sum)
{
    struct cz_texts_options options = {.size = sizeof options,
                                       .paths = &path,
                                       .n_paths = 1,
                                       .text_column = labelled ? o->text_column : NULL,
                                       .pair_column = labelled ? o->pair_column : NULL,
                                       .strip_spaces = o->strip_spaces,
                                       .plain = !labelled,
                                       .encoding = o->encoding,
                                       .labels_optional = true};
    struct cz_texts *t;
    TRY(cz_texts_open(&options, &t));
    cz_status st = CZ_OK;
    for (size_t i = 0; st == CZ_OK && i < cz_texts_count(t); i++) {
        struct cz_tokenizer_input in = cz_texts_at(t, i);
        st = add_text(v, in.text, in.nbytes, sum);
        if (st == CZ_OK && in.pair) st = add_text(v, in.pair, in.pair_nbytes, sum);
    }
    sum->n_texts += cz_texts_count(t);
    cz_texts_close(t);
    return st;
}

/* Columns that no file has would be an option without effect. */
static cz_status check_columns(const struct vocab_cli *o)
{
    if (!o->text_column && !o->pair_column) return CZ_OK;
    for (size_t i = 0; i < o->data.n; i++)
        if (is_labelled(o->data.items[i])) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s %s: plain text has no columns",
                   o->text_column ? "--text-column" : "--pair-column",
                   o->text_column ? o->text_column : o->pair_column);
}

static void print_report(const struct vocab_cli *o, const struct vocab_report *r,
                         const struct totals *sum)
{
    const bool is_bpe = strcmp(o->kind, "bpe") == 0;
    printable_print(stdout, "texts      %llu, %.1f MB; %llu word%s, %llu different\n",
                    (unsigned long long)sum->n_texts, (double)sum->n_bytes / 1e6,
                    (unsigned long long)r->n_words, plural(r->n_words),
                    (unsigned long long)r->n_different_words);
    printable_print(stdout, "tokens     %lld: %lld special, %lld %s, %lld pieces\n",
                    (long long)r->n_tokens, (long long)r->n_specials, (long long)r->n_characters,
                    is_bpe ? "bytes" : "characters", (long long)r->n_pieces);
    if (is_bpe)
        printf("coverage   every text; %.2f bytes per token of these\n",
               (double)r->n_bytes / (double)r->n_pieces_used);
    else
        printf(
            "coverage   %.3f %% of the characters; %llu of %llu are in words that become [UNK]\n",
            100.0 - 100.0 * (double)r->n_chars_unknown / (double)r->n_chars,
            (unsigned long long)r->n_chars_unknown, (unsigned long long)r->n_chars);
    if (r->n_tokens < o->size)
        printf("smaller    than --size %lld: nothing else occurs --min-count (%lld) times\n",
               (long long)o->size, (long long)o->min_count);
    printable_print(stdout, "written    %s/%s, tokenizer_config.json\n", o->out,
                    is_bpe ? "tokenizer.json" : "vocab.txt");
}

static cz_status print_json(const struct vocab_cli *o, const struct vocab_report *r,
                            const struct totals *sum)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "output", o->out);
    json_put_string(&w, "type", o->kind);
    json_put_int(&w, "texts", (int64_t)sum->n_texts);
    json_put_int(&w, "bytes", (int64_t)sum->n_bytes);
    json_put_int(&w, "words", (int64_t)r->n_words);
    json_put_int(&w, "different_words", (int64_t)r->n_different_words);
    json_put_int(&w, "tokens", r->n_tokens);
    json_put_int(&w, "special", r->n_specials);
    json_put_int(&w, "characters", r->n_characters);
    json_put_int(&w, "pieces", r->n_pieces);
    if (strcmp(o->kind, "bpe") == 0)
        json_put_double(&w, "bytes_per_token", (double)r->n_bytes / (double)r->n_pieces_used);
    else
        json_put_double(&w, "unknown", (double)r->n_chars_unknown / (double)r->n_chars);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, NULL));
    tool_put_report(text, true);
    return CZ_OK;
}

static cz_status run(const struct vocab_cli *o)
{
    const bool is_bpe = strcmp(o->kind, "bpe") == 0;
    struct vocab_options options = {.kind = is_bpe                         ? VOCAB_BPE
                                            : strcmp(o->kind, "char") == 0 ? VOCAB_CHAR
                                                                           : VOCAB_WORDPIECE,
                                    .size = o->size,
                                    .min_count = (uint64_t)o->min_count,
                                    .lowercase = !o->lowercase || strcmp(o->lowercase, "on") == 0};
    struct vocab *v = NULL;
    struct vocab_report report;
    struct totals sum = {0};
    cz_status st;
    /* An existing vocabulary may belong to a trained model. */
    if (cz_tokenizer_is_in(o->out))
        return err_set(CZ_INVALID, 0,
                       "%s: contains a tokenizer already; czero vocab does not overwrite it",
                       o->out);
    if (is_bpe && o->lowercase)
        return err_set(CZ_INVALID, 0, "--lowercase: byte-level BPE keeps texts as they are");
    TRY(check_columns(o));
    TRY(vocab_create(&options, &v));
    for (size_t i = 0; i < o->data.n; i++)
        TRY_GOTO(add_texts(v, o, o->data.items[i], is_labelled(o->data.items[i]), &sum), done);
    TRY_GOTO(vocab_build(v, &report), done);
    TRY_GOTO(vocab_save(v, o->out), done);
    if (o->json)
        TRY_GOTO(print_json(o, &report, &sum), done);
    else
        print_report(o, &report, &sum);
done:
    vocab_destroy(v);
    return st;
}

int cmd_vocab(int argc, char **argv)
{
    struct vocab_cli o = {.kind = "wordpiece", .min_count = 2};
    enum args_result parsed = args_parse(&vocab_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (output_check_folder("-o", o.out) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
