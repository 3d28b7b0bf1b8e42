/* czero predict: the classes of texts, in the order of the input. Those of words are in
 * predict_words.c. */
#include "base/printable.h"
#include "tools/czero/args.h"
#include "tools/czero/cmd/predict.h"
#include "tools/czero/commands.h"
#include "tools/czero/output.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(member) offsetof(struct predict_options, member)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, FIELD(score.model), "DIR", "Hugging Face folder of a classifier",
     .required = true},
    ADAPTER_OPTION(FIELD(score.adapter)),
    {"--text", ARG_STRING, FIELD(text), "TEXT", "text to classify"},
    {"--pair", ARG_STRING, FIELD(pair), "TEXT", "second text, for models of text pairs"},
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "files to classify: one text per line, or .json, .jsonl, .csv, .tsv; words: also .conll; - "
     "reads lines from standard input"},
    ENCODING_OPTION(FIELD(encoding)),
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
    {"--threshold", ARG_DOUBLE, FIELD(threshold), "P",
     "several labels: those of at least this probability (default: 0.5)"},
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL, "remove white space inside texts"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object per text instead of a table"},
    {"-o", ARG_STRING, FIELD(output), "FILE", "output file (default: standard output)"},
};

const struct arg_command predict_command = {
    .name = "czero predict",
    .summary = "Classify texts.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "The output for files is a tab-separated table in the order of the texts: the\n"
                "class, its probability, the probability of every class, the text. A model of\n"
                "token classification gives the entities of --text, and of files a line per\n"
                "word with its class and probability; --json gives both.",
    .examples = "  czero predict --model classifier/ --text \"what a day\"\n"
                "  czero predict --model classifier/ --data posts.txt -o labels.tsv",
};

/* Everything is kept until the end: rows come sorted by length. */
struct results {
    double *p; /* (examples, n): probabilities, or values */
    size_t n;
    enum cz_problem problem;
    double threshold;
    FILE *out;
};

static void keep(void *user, size_t example, size_t word, const float *logits)
{
    struct results *r = user;
    (void)word;
    if (r->problem != CZ_PROBLEM_SINGLE_LABEL) {
        double *p = r->p + example * r->n;
        for (size_t k = 0; k < r->n; k++)
            p[k] = r->problem == CZ_PROBLEM_REGRESSION ? (double)logits[k]
                                                       : 1 / (1 + exp(-(double)logits[k]));
        return;
    }
    score_probabilities(logits, r->n, r->p + example * r->n);
}

static size_t likeliest(const double *p, size_t n)
{
    size_t best = 0;
    for (size_t k = 1; k < n; k++)
        if (p[k] > p[best]) best = k;
    return best;
}

/* ---- printing ------------------------------------------------------------------------------- */

void predict_put_cell(FILE *out, const char *text, size_t nbytes)
{
    for (size_t at = 0; at < nbytes;) {
        size_t n = 0;
        while (at + n < nbytes && !strchr("\t\n\r", text[at + n])) n++;
        printable_put(out, PRINTABLE_LINE, text + at, n);
        at += n;
        if (at++ < nbytes) fputc(' ', out);
    }
}

static bool has_class(const struct results *r, const double *p, size_t k)
{
    return p[k] >= r->threshold;
}

/* The classes of a set, with `between` them. */
static void put_set(const struct results *r, const struct scorer *s, const double *p)
{
    bool first = true;
    for (size_t k = 0; k < r->n; k++) {
        if (!has_class(r, p, k)) continue;
        if (!first) fputc(',', r->out);
        predict_put_cell(r->out, s->labels[k], strlen(s->labels[k]));
        first = false;
    }
}

/* What is in front of the numbers of all classes in a row of the table. */
static void put_result(const struct results *r, const struct scorer *s, const double *p)
{
    const size_t best = likeliest(p, r->n);
    if (r->problem == CZ_PROBLEM_MULTI_LABEL) {
        put_set(r, s, p);
    } else if (r->problem == CZ_PROBLEM_SINGLE_LABEL) {
        predict_put_cell(r->out, s->labels[best], strlen(s->labels[best]));
        fprintf(r->out, "\t%.6f", p[best]);
    }
}

static void print_table(const struct results *r, const struct scorer *s,
                        const struct cz_texts *texts)
{
    const bool values = r->problem == CZ_PROBLEM_REGRESSION;
    if (values && r->n == 1)
        fputs("value", r->out);
    else if (r->problem == CZ_PROBLEM_MULTI_LABEL)
        fputs("labels", r->out);
    else if (!values)
        fputs("label\tprobability", r->out);
    for (size_t k = 0; k < r->n && !(values && r->n == 1); k++) {
        if (k || !values) fputc('\t', r->out);
        predict_put_cell(r->out, s->labels[k], strlen(s->labels[k]));
    }
    fprintf(r->out, "\ttext\n");
    for (size_t i = 0; i < cz_texts_count(texts); i++) {
        const double *p = r->p + i * r->n;
        const struct cz_tokenizer_input text = cz_texts_at(texts, i);
        put_result(r, s, p);
        for (size_t k = 0; k < r->n; k++) {
            if (k || !values) fputc('\t', r->out);
            fprintf(r->out, "%.6f", p[k]);
        }
        fputc('\t', r->out);
        predict_put_cell(r->out, text.text, text.nbytes);
        fputc('\n', r->out);
    }
}

/* One object per text and line, so that output can be processed as it is read. */
static void print_json(const struct results *r, const struct scorer *s, size_t example,
                       const struct cz_tokenizer_input *text)
{
    const double *p = r->p + example * r->n;
    const size_t best = likeliest(p, r->n);
    const bool values = r->problem == CZ_PROBLEM_REGRESSION;
    fputc('{', r->out);
    if (r->problem == CZ_PROBLEM_MULTI_LABEL) {
        size_t n = 0;
        fprintf(r->out, "\"labels\": [");
        for (size_t k = 0; k < r->n; k++) {
            if (!has_class(r, p, k)) continue;
            if (n++) fprintf(r->out, ", ");
            tool_put_json_string(r->out, s->labels[k], strlen(s->labels[k]));
        }
        fprintf(r->out, "], ");
    } else if (!values) {
        fprintf(r->out, "\"label\": ");
        tool_put_json_string(r->out, s->labels[best], strlen(s->labels[best]));
        fprintf(r->out, ", \"probability\": ");
        tool_put_json_number(r->out, p[best]);
        fprintf(r->out, ", ");
    } else if (r->n == 1) {
        fprintf(r->out, "\"value\": ");
        tool_put_json_number(r->out, p[0]);
        fprintf(r->out, ", ");
    }
    printable_print(r->out, "\"%s\": {", values ? "values" : "probabilities");
    for (size_t k = 0; k < r->n; k++) {
        if (k) fprintf(r->out, ", ");
        tool_put_json_string(r->out, s->labels[k], strlen(s->labels[k]));
        fprintf(r->out, ": ");
        tool_put_json_number(r->out, p[k]);
    }
    fprintf(r->out, "}, \"text\": ");
    tool_put_json_string(r->out, text->text, text->nbytes);
    fprintf(r->out, "}\n");
}

/* ---- the command ---------------------------------------------------------------------------- */

static cz_status results_init(struct results *r, const struct predict_options *o,
                              const struct scorer *s, size_t n_texts)
{
    *r = (struct results){
        .n = (size_t)s->n_classes,
        .problem = s->problem,
        .threshold = isnan(o->threshold) ? 0.5 : o->threshold,
    };
    r->p = calloc(n_texts * r->n, sizeof *r->p);
    return r->p ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu results", n_texts);
}

/* One text, or with `texts` all of these. */
static void print_results(const struct predict_options *o, const struct results *r,
                          const struct scorer *s, const struct cz_texts *texts,
                          const struct cz_tokenizer_input *one)
{
    if (!texts && o->json) print_json(r, s, 0, one);
    if (!texts && !o->json && r->problem == CZ_PROBLEM_REGRESSION)
        for (size_t k = 0; k < r->n; k++) {
            fprintf(r->out, "%.6f", r->p[k]);
            if (r->n > 1) printable_print(r->out, "  %s", s->labels[k]);
            fputc('\n', r->out);
        }
    /* One text: its classes, the likeliest first; of a set those that it has. */
    if (!texts && !o->json && r->problem != CZ_PROBLEM_REGRESSION) {
        for (size_t i = 0; i < r->n; i++) {
            const size_t best = likeliest(r->p, r->n);
            if (r->problem == CZ_PROBLEM_MULTI_LABEL && !has_class(r, r->p, best)) break;
            printable_print(r->out, "%.4f  %s\n", r->p[best], s->labels[best]);
            r->p[best] = -1; /* the next one */
        }
    }
    if (texts && !o->json) print_table(r, s, texts);
    for (size_t i = 0; texts && o->json && i < cz_texts_count(texts); i++) {
        const struct cz_tokenizer_input text = cz_texts_at(texts, i);
        print_json(r, s, i, &text);
    }
}

FILE *predict_output_open(const struct predict_options *o)
{
    FILE *out = o->output ? fopen(o->output, "we") : stdout;
    if (!out) err_set(CZ_IO, errno, "%s: cannot be written", o->output);
    return out;
}

cz_status predict_output_close(const struct predict_options *o, FILE *out)
{
    if (!o->output) return CZ_OK;
    const bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed) return CZ_OK;
    return err_set(CZ_IO, errno, "%s: cannot be written", o->output);
}

/* Only now that there are results: an earlier file is not emptied for nothing. */
static cz_status write_results(const struct predict_options *o, struct results *r,
                               const struct scorer *s, const struct cz_texts *texts,
                               const struct cz_tokenizer_input *one)
{
    r->out = predict_output_open(o);
    if (!r->out) return cz_last_status();
    print_results(o, r, s, texts, one);
    return predict_output_close(o, r->out);
}

static cz_status predict_text(const struct predict_options *o, struct scorer *s)
{
    const struct cz_tokenizer_input text = {.text = o->text,
                                            .nbytes = strlen(o->text),
                                            .pair = o->pair,
                                            .pair_nbytes = o->pair ? strlen(o->pair) : 0};
    struct results r;
    TRY(results_init(&r, o, s, 1));
    cz_status st = score_one(s, &text, NULL, 0, keep, &r);
    if (st == CZ_OK) st = write_results(o, &r, s, NULL, &text);
    free(r.p);
    return st;
}

static cz_status predict_files(const struct predict_options *o, struct scorer *s)
{
    struct cz_texts *texts = NULL;
    struct results r;
    /* Labels are not needed to predict, and ignored when the file has some. */
    const struct cz_texts_options options = {
        .size = sizeof options,
        .paths = o->data.items,
        .n_paths = o->data.n,
        .encoding = o->encoding,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .strip_spaces = o->strip_spaces,
        .labels_optional = true,
        .labels_ignored = true,
    };
    TRY(cz_texts_open(&options, &texts));
    cz_status st = results_init(&r, o, s, cz_texts_count(texts));
    if (st == CZ_OK) st = score_texts(s, texts, keep, &r);
    if (st == CZ_OK) st = write_results(o, &r, s, texts, NULL);
    free(r.p);
    cz_texts_close(texts);
    return st;
}

static cz_status run(const struct predict_options *o)
{
    struct scorer scorer;
    TRY(tool_check_text("--text", o->text));
    TRY(tool_check_text("--pair", o->pair));
    if ((o->text != NULL) == (o->data.n > 0))
        return err_set(CZ_INVALID, 0, "--text or --data is missing");
    if (o->pair && !o->text)
        return err_set(CZ_INVALID, 0, "--pair needs --text; files need --pair-column");
    if (o->text && (o->text_column || o->pair_column || o->strip_spaces))
        return err_set(CZ_INVALID, 0, "%s needs --data",
                       o->text_column   ? "--text-column"
                       : o->pair_column ? "--pair-column"
                                        : "--strip-spaces");
    struct output_inputs inputs = {.n = 0};
    output_add_inputs(&inputs, &o->data);
    TRY(output_check_file("-o", o->output, OUTPUT_PREDICTIONS, &inputs));
    cz_status st = score_open(&scorer, &o->score, adapter_open(o->score.model, o->score.adapter));
    if (st == CZ_OK && !isnan(o->threshold)) {
        if (scorer.problem != CZ_PROBLEM_MULTI_LABEL)
            st = err_set(CZ_INVALID, 0, "--threshold is for models of several labels; %s is none",
                         o->score.model);
        else if (!(o->threshold > 0 && o->threshold < 1))
            st = err_set(CZ_INVALID, 0, "--threshold %g: a number between 0 and 1 is needed",
                         o->threshold);
    }
    if (st == CZ_OK && scorer.words) st = predict_words(o, &scorer);
    if (st == CZ_OK && !scorer.words)
        st = o->text ? predict_text(o, &scorer) : predict_files(o, &scorer);
    score_close(&scorer);
    return st;
}

int cmd_predict(int argc, char **argv)
{
    struct predict_options o = {.threshold = NAN};
    enum args_result parsed = args_parse(&predict_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (adapter_find_base(&o.score.model, &o.score.adapter) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
