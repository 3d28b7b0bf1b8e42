/* czero predict: the classes of texts, in the order of the input. Those of words are in
 * predict_words.c. */
#include "base/printable.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/output.h"
#include "tools/czero/predict/predict.h"
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
    {"FILE", ARG_WORDS, FIELD(files), NULL,
     "files to classify: one text per line, or .json, .jsonl, .csv, .tsv; words: also .conll"},
    {"--text", ARG_STRING, FIELD(text), "TEXT", "text to classify"},
    {"--pair", ARG_STRING, FIELD(pair), "TEXT", "second text, for models of text pairs"},
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "the same as FILE; - reads lines from standard input"},
    {"--keep", ARG_STRING, FIELD(keep), "NAME,…",
     "copy these columns or members of the files in front of the predictions"},
    {"--fields", ARG_STRING, FIELD(fields), "NAME,…",
     "write only these: label, probability, probabilities, true, text, pair, or a column of the "
     "files"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME",
     "column or member with the true label (default: label)"},
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
    {"--format", ARG_CHOICE, FIELD(format), "csv|tsv|jsonl",
     "form of the output (default: by the name of -o, else tsv)"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "the same as --format jsonl: a JSON object per text"},
    {"-o", ARG_STRING, FIELD(output), "FILE",
     "output file, such as NAME.csv or NAME.jsonl (default: standard output)"},
};

const struct arg_command predict_command = {
    .name = "czero predict",
    .summary = "Classify texts.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "The output for files is a table in the order of the texts, of tabs or CSV: the\n"
                "class, its probability, the true class where the file has it, the probability\n"
                "of every class, the text. A model of token classification gives the entities\n"
                "of --text, and of files a line per word with its class and probability; --json\n"
                "gives both.",
    .examples = "  czero predict --model classifier/ --text \"what a day\"\n"
                "  czero predict --model classifier/ posts.txt -o labels.csv\n"
                "  czero predict --model classifier/ test.jsonl --json --fields id,label",
};

/* Everything is kept until the end: rows come sorted by length. */
struct results {
    double *p;      /* (examples, n): probabilities, or values */
    float *targets; /* (labels of the files) of one row */
    size_t n;
    enum cz_problem problem;
    double threshold;
    FILE *out;
    bool csv, labels_are_known;
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
        predict_put_cell(r->out, r->csv, s->labels[k], strlen(s->labels[k]));
        first = false;
    }
}

/* ---- columns -------------------------------------------------------------------------------- */

enum field {
    FIELD_KEPT,
    FIELD_CLASS,
    FIELD_PROBABILITY,
    FIELD_TRUE,
    FIELD_ALL,
    FIELD_TEXT,
    FIELD_PAIR
};

/* What is written of each text, in this order. */
struct column {
    enum field field;
    size_t kept; /* FIELD_KEPT: which */
    const char *name;
};

/* Those that are kept, and an output of each field. */
#define COLUMNS_MAX (PREDICT_NAMES_MAX + FIELD_PAIR + 1)

struct columns {
    struct column items[COLUMNS_MAX];
    size_t n;
};

static const char *class_name(enum cz_problem problem)
{
    return problem == CZ_PROBLEM_REGRESSION    ? "value"
           : problem == CZ_PROBLEM_MULTI_LABEL ? "labels"
                                               : "label";
}

/* The field of an output name; false: none has it. */
static bool find_field(enum cz_problem problem, const char *name, enum field *out)
{
    const bool is_value = problem == CZ_PROBLEM_REGRESSION;
    const struct {
        const char *name;
        enum field field;
    } fields[] = {{class_name(problem), FIELD_CLASS},
                  {is_value ? "values" : "probabilities", FIELD_ALL},
                  {"probability", FIELD_PROBABILITY},
                  {"true", FIELD_TRUE},
                  {"text", FIELD_TEXT},
                  {"pair", FIELD_PAIR}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(fields); i++) {
        if (strcmp(fields[i].name, name) != 0) continue;
        if (fields[i].field == FIELD_PROBABILITY && problem != CZ_PROBLEM_SINGLE_LABEL) continue;
        *out = fields[i].field;
        return true;
    }
    return false;
}

/* Of --fields the names that are no output's are columns of the files. */
static cz_status wanted_columns(const struct predict_options *o, enum cz_problem problem,
                                struct predict_names *keep)
{
    size_t n = 0;
    enum field field;
    if (o->fields && o->keep)
        return err_set(CZ_INVALID, 0, "--keep and --fields: list all columns in --fields");
    TRY(predict_names_read(o->fields ? "--fields" : "--keep", o->fields ? o->fields : o->keep,
                           keep));
    for (size_t i = 0; i < keep->n; i++) {
        const bool is_output = find_field(problem, keep->items[i], &field);
        const bool is_text = is_output && (field == FIELD_TEXT || field == FIELD_PAIR);
        if (is_output && !is_text && o->keep)
            return err_set(CZ_INVALID, 0,
                           "--keep %s: predictions have a column of this name; the label of the "
                           "file is written as \"true\"",
                           keep->items[i]);
        if (o->keep || !is_output) keep->items[n++] = keep->items[i];
    }
    keep->n = n;
    return CZ_OK;
}

static void add_column(struct columns *c, enum field field, size_t kept, const char *name)
{
    c->items[c->n++] = (struct column){field, kept, name};
}

static bool has_pairs(const struct cz_texts *texts)
{
    for (size_t i = 0; i < cz_texts_count(texts); i++)
        if (cz_texts_at(texts, i).pair) return true;
    return false;
}

static bool names_contain(const struct predict_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i], name) == 0) return true;
    return false;
}

/* texts NULL: of one text. names: of --fields, NULL: all that there is. */
static void choose_columns(const struct results *r, const struct predict_names *fields,
                           const struct predict_names *keep, const struct cz_texts *texts,
                           bool has_pair, struct columns *c)
{
    const bool is_value = r->problem == CZ_PROBLEM_REGRESSION;
    const char *name = class_name(r->problem);
    size_t n_kept = 0;
    c->n = 0;
    for (size_t i = 0; i < fields->n; i++) {
        enum field field = FIELD_KEPT;
        const bool is_output = find_field(r->problem, fields->items[i], &field);
        add_column(c, field, is_output ? 0 : n_kept++, fields->items[i]);
    }
    if (fields->n > 0) return;
    for (size_t k = 0; k < keep->n; k++) add_column(c, FIELD_KEPT, k, keep->items[k]);
    if (!is_value || r->n == 1) add_column(c, FIELD_CLASS, 0, name);
    if (r->problem == CZ_PROBLEM_SINGLE_LABEL) add_column(c, FIELD_PROBABILITY, 0, "probability");
    if (texts && predict_has_labels(texts)) add_column(c, FIELD_TRUE, 0, "true");
    add_column(c, FIELD_ALL, 0, is_value ? "values" : "probabilities");
    if (!names_contain(keep, "text")) add_column(c, FIELD_TEXT, 0, "text");
    if (has_pair && !names_contain(keep, "pair")) add_column(c, FIELD_PAIR, 0, "pair");
}

/* ---- values of a row ------------------------------------------------------------------------ */

/* One text of `texts`, or the one of --text. */
struct row {
    const struct cz_texts *texts; /* NULL: --text */
    size_t i;
    const double *p;
    struct cz_tokenizer_input text;
};

/* The labels that the file has for the row, with `between` them; JSON has quotes. */
static void put_true(const struct results *r, const struct scorer *s, const struct row *row,
                     bool json)
{
    FILE *out = r->out;
    float *targets = r->targets;
    const struct cz_texts *t = row->texts;
    const size_t n = t ? cz_texts_n_labels(t) : 0;
    const enum cz_problem problem = t ? cz_texts_problem(t) : CZ_PROBLEM_SINGLE_LABEL;
    bool first = true;
    if (!t || cz_texts_label(t, row->i) < 0) {
        if (json) fputs("null", out);
    } else if (problem == CZ_PROBLEM_REGRESSION) {
        cz_texts_targets(t, row->i, targets);
        fprintf(out, "%.7g", (double)targets[0]);
    } else {
        if (problem == CZ_PROBLEM_MULTI_LABEL) cz_texts_targets(t, row->i, targets);
        if (json && problem == CZ_PROBLEM_MULTI_LABEL) fputc('[', out);
        for (size_t k = 0; k < n; k++) {
            const bool is_one = problem == CZ_PROBLEM_MULTI_LABEL
                                    ? targets[k] > 0
                                    : (size_t)cz_texts_label(t, row->i) == k;
            if (!is_one) continue;
            const char *name = predict_label_name(s, t, r->labels_are_known, (int32_t)k);
            if (!first) printable_print(out, "%s", json ? ", " : ",");
            first = false;
            if (json)
                tool_put_json_string(out, name, strlen(name));
            else
                predict_put_cell(out, r->csv, name, strlen(name));
        }
        if (json && problem == CZ_PROBLEM_MULTI_LABEL) fputc(']', out);
    }
}

/* k: the class of a cell of FIELD_ALL, which has one for each. */
static void put_cell(const struct results *r, const struct scorer *s, const struct column *c,
                     size_t k, const struct row *row)
{
    const size_t best = likeliest(row->p, r->n);
    switch (c->field) {
    case FIELD_KEPT: predict_put_kept_cell(r->out, r->csv, row->texts, row->i, c->kept); break;
    case FIELD_CLASS:
        if (r->problem == CZ_PROBLEM_MULTI_LABEL)
            put_set(r, s, row->p);
        else if (r->problem == CZ_PROBLEM_REGRESSION)
            fprintf(r->out, "%.6f", row->p[0]);
        else
            predict_put_cell(r->out, r->csv, s->labels[best], strlen(s->labels[best]));
        break;
    case FIELD_PROBABILITY: fprintf(r->out, "%.6f", row->p[best]); break;
    case FIELD_TRUE: put_true(r, s, row, false); break;
    case FIELD_ALL: fprintf(r->out, "%.6f", row->p[k]); break;
    case FIELD_TEXT: predict_put_cell(r->out, r->csv, row->text.text, row->text.nbytes); break;
    case FIELD_PAIR:
        if (row->text.pair) predict_put_cell(r->out, r->csv, row->text.pair, row->text.pair_nbytes);
        break;
    }
}

/* A column for each class; of one value that is the one before. */
static size_t n_cells_of(const struct results *r, const struct columns *c, size_t at)
{
    const bool one_value = r->problem == CZ_PROBLEM_REGRESSION && r->n == 1;
    if (c->items[at].field != FIELD_ALL) return 1;
    return one_value && c->n > 1 ? 0 : r->n;
}

static void print_header(struct predict_table *t, const struct results *r, const struct scorer *s,
                         const struct columns *c)
{
    for (size_t at = 0; at < c->n; at++)
        for (size_t k = 0; k < n_cells_of(r, c, at); k++)
            predict_put_cells(t,
                              c->items[at].field == FIELD_ALL ? s->labels[k] : c->items[at].name);
    predict_row_end(t);
}

/* Cells are written through r->out. */
static void print_row(struct predict_table *t, struct results *r, const struct scorer *s,
                      const struct columns *c, const struct row *row)
{
    for (size_t at = 0; at < c->n; at++)
        for (size_t k = 0; k < n_cells_of(r, c, at); k++) {
            r->out = predict_cell(t);
            put_cell(r, s, &c->items[at], k, row);
            predict_cell_end(t);
        }
    r->out = t->out;
    predict_row_end(t);
}

static void put_all_json(const struct results *r, const struct scorer *s, const double *p)
{
    fputc('{', r->out);
    for (size_t k = 0; k < r->n; k++) {
        if (k) fprintf(r->out, ", ");
        tool_put_json_string(r->out, s->labels[k], strlen(s->labels[k]));
        fprintf(r->out, ": ");
        tool_put_json_number(r->out, p[k]);
    }
    fputc('}', r->out);
}

static void put_set_json(const struct results *r, const struct scorer *s, const double *p)
{
    size_t n = 0;
    fputc('[', r->out);
    for (size_t k = 0; k < r->n; k++) {
        if (!has_class(r, p, k)) continue;
        if (n++) fprintf(r->out, ", ");
        tool_put_json_string(r->out, s->labels[k], strlen(s->labels[k]));
    }
    fputc(']', r->out);
}

/* One object per text and line, so that output can be processed as it is read. */
static void print_json(const struct results *r, const struct scorer *s, const struct columns *c,
                       const struct row *row)
{
    const size_t best = likeliest(row->p, r->n);
    fputc('{', r->out);
    for (size_t at = 0; at < c->n; at++) {
        const struct column *column = &c->items[at];
        if (at) fputs(", ", r->out);
        tool_put_json_string(r->out, column->name, strlen(column->name));
        fputs(": ", r->out);
        switch (column->field) {
        case FIELD_KEPT: predict_put_kept_json(r->out, row->texts, row->i, column->kept); break;
        case FIELD_CLASS:
            if (r->problem == CZ_PROBLEM_MULTI_LABEL)
                put_set_json(r, s, row->p);
            else if (r->problem == CZ_PROBLEM_REGRESSION)
                tool_put_json_number(r->out, row->p[0]);
            else
                tool_put_json_string(r->out, s->labels[best], strlen(s->labels[best]));
            break;
        case FIELD_PROBABILITY: tool_put_json_number(r->out, row->p[best]); break;
        case FIELD_TRUE: put_true(r, s, row, true); break;
        case FIELD_ALL: put_all_json(r, s, row->p); break;
        case FIELD_TEXT: tool_put_json_string(r->out, row->text.text, row->text.nbytes); break;
        case FIELD_PAIR:
            if (row->text.pair)
                tool_put_json_string(r->out, row->text.pair, row->text.pair_nbytes);
            else
                fputs("null", r->out);
            break;
        }
    }
    fputs("}\n", r->out);
}

/* ---- the command ---------------------------------------------------------------------------- */

/* texts NULL: one text. */
static cz_status results_init(struct results *r, const struct predict_options *o,
                              const struct scorer *s, const struct cz_texts *texts)
{
    const size_t n_texts = texts ? cz_texts_count(texts) : 1;
    const size_t n_labels = texts ? cz_texts_n_labels(texts) : 0;
    *r = (struct results){
        .n = (size_t)s->n_classes,
        .problem = s->problem,
        .threshold = isnan(o->threshold) ? 0.5 : o->threshold,
        .csv = o->form == PREDICT_CSV,
    };
    r->p = calloc(n_texts * r->n, sizeof *r->p);
    r->targets = calloc(n_labels + 1, sizeof *r->targets);
    if (r->p && r->targets) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for %zu results", n_texts);
}

static void results_free(struct results *r)
{
    free(r->p);
    free(r->targets);
}

/* One text: its classes, the likeliest first; of a set those that it has; or its values. */
static void print_one(const struct results *r, const struct scorer *s)
{
    for (size_t k = 0; k < r->n && r->problem == CZ_PROBLEM_REGRESSION; k++) {
        fprintf(r->out, "%.6f", r->p[k]);
        if (r->n > 1) printable_print(r->out, "  %s", s->labels[k]);
        fputc('\n', r->out);
    }
    for (size_t i = 0; i < r->n && r->problem != CZ_PROBLEM_REGRESSION; i++) {
        const size_t best = likeliest(r->p, r->n);
        if (r->problem == CZ_PROBLEM_MULTI_LABEL && !has_class(r, r->p, best)) break;
        printable_print(r->out, "%.4f  %s\n", r->p[best], s->labels[best]);
        r->p[best] = -1; /* the next one */
    }
}

static cz_status predict_text(const struct predict_options *o, struct scorer *s)
{
    const struct cz_tokenizer_input text = {.text = o->text,
                                            .nbytes = strlen(o->text),
                                            .pair = o->pair,
                                            .pair_nbytes = o->pair ? strlen(o->pair) : 0};
    struct predict_names fields = {0};
    struct results r = {0};
    struct output_file file;
    struct columns columns;
    cz_status st;
    TRY_GOTO(predict_names_read("--fields", o->fields, &fields), done);
    TRY_GOTO(results_init(&r, o, s, NULL), done);
    choose_columns(&r, &fields, &(struct predict_names){0}, NULL, text.pair != NULL, &columns);
    for (size_t i = 0; i < columns.n; i++)
        if (columns.items[i].field == FIELD_KEPT || columns.items[i].field == FIELD_TRUE)
            TRY_GOTO(err_set(CZ_INVALID, 0, "--fields %s: \"%s\" needs a file", o->fields,
                             columns.items[i].name),
                     done);
    TRY_GOTO(score_one(s, &text, NULL, 0, keep, &r), done);
    TRY_GOTO(output_open(&file, o->output), done);
    r.out = file.stream;
    const struct row row = {.p = r.p, .text = text};
    struct predict_table table = {.out = r.out, .csv = r.csv};
    if (o->form == PREDICT_JSONL) {
        print_json(&r, s, &columns, &row);
    } else if (o->form == PREDICT_PLAIN) {
        print_one(&r, s);
    } else {
        print_header(&table, &r, s, &columns);
        print_row(&table, &r, s, &columns, &row);
    }
    st = output_close(&file, CZ_OK);
done:
    results_free(&r);
    predict_names_free(&fields);
    return st;
}

static cz_status predict_files(const struct predict_options *o, struct scorer *s)
{
    struct cz_texts *texts = NULL;
    struct predict_names fields = {0}, kept = {0};
    struct results r = {0};
    struct output_file file;
    struct columns columns;
    cz_status st;
    TRY_GOTO(wanted_columns(o, s->problem, &kept), done);
    TRY_GOTO(predict_names_read("--fields", o->fields, &fields), done);
    TRY_GOTO(predict_texts_open(o, &kept, false, &texts), done);
    TRY_GOTO(results_init(&r, o, s, texts), done);
    r.labels_are_known = predict_labels_are_known(s, texts);
    TRY_GOTO(score_texts(s, texts, keep, &r), done);
    choose_columns(&r, &fields, &kept, texts, has_pairs(texts), &columns);
    TRY_GOTO(output_open(&file, o->output), done);
    r.out = file.stream;
    struct predict_table table = {.out = r.out, .csv = r.csv};
    if (o->form != PREDICT_JSONL) print_header(&table, &r, s, &columns);
    for (size_t i = 0; i < cz_texts_count(texts); i++) {
        const struct row row = {texts, i, r.p + i * r.n, cz_texts_at(texts, i)};
        if (o->form == PREDICT_JSONL)
            print_json(&r, s, &columns, &row);
        else
            print_row(&table, &r, s, &columns, &row);
    }
    st = output_close(&file, CZ_OK);
done:
    results_free(&r);
    cz_texts_close(texts);
    predict_names_free(&kept);
    predict_names_free(&fields);
    return st;
}

static cz_status run(const struct predict_options *o)
{
    struct scorer scorer;
    TRY(tool_check_text("--text", o->text));
    TRY(tool_check_text("--pair", o->pair));
    const char *of_files = o->text_column    ? "--text-column"
                           : o->pair_column  ? "--pair-column"
                           : o->label_column ? "--label-column"
                           : o->strip_spaces ? "--strip-spaces"
                           : o->keep         ? "--keep"
                           : o->encoding     ? "--encoding"
                                             : NULL;
    const bool has_files = o->data.n + o->files.n > 0;
    if (!o->text && !has_files) return err_set(CZ_INVALID, 0, "--text or a FILE is missing");
    if (o->text && has_files)
        return err_set(CZ_INVALID, 0, "--text and files: give one of the two");
    if (o->pair && !o->text)
        return err_set(CZ_INVALID, 0, "--pair needs --text; files need --pair-column");
    if (o->text && of_files) return err_set(CZ_INVALID, 0, "%s needs a FILE", of_files);
    if (o->text && o->fields && o->form == PREDICT_PLAIN)
        return err_set(CZ_INVALID, 0, "--fields of one text needs --json or --format");
    struct output_inputs inputs = {.n = 0};
    output_add_inputs(&inputs, &o->data);
    output_add_inputs(&inputs, &o->files);
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
    if (predict_form_of(&o, &o.form) != CZ_OK) return tool_fail();
    if (adapter_find_base(&o.score.model, &o.score.adapter) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
