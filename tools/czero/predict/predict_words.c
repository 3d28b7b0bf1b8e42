/* czero predict with a classifier of words: named entities with their places and scores. */
#include "base/printable.h"
#include "tools/czero/output.h"
#include "tools/czero/predict/predict.h"
#include "tools/czero/tool.h"

#include "engine/report/entity_report.h"
#include <czero/data.h>

#include <stdlib.h>
#include <string.h>

/* One example and what was found in it. */
struct sentence {
    const char *text;
    size_t nbytes;
    const struct cz_text_word *words;
    size_t n;
    const int32_t *classes; /* (n) */
    const double *p;        /* (n) */
    size_t example;         /* of texts that were read */
};

struct printer {
    struct output_file file;
    FILE *out;
    const struct cz_texts *texts; /* NULL: --text */
    const struct predict_names *keep;
    bool has_labels;       /* the texts have true classes … */
    bool labels_are_known; /* … that are the model's */
    const struct scorer *scorer;
    struct entity_scheme *scheme;
    struct entity *found; /* as many as the longest sentence has words */
};

/* Where an entity stands, in characters, as other programs count; `at` and `chars` go along the
 * text. */
struct place {
    size_t at, chars;
};

static size_t advance(struct place *p, const char *text, size_t to)
{
    for (; p->at < to; p->at++) p->chars += ((unsigned char)text[p->at] & 0xC0) != 0x80;
    return p->chars;
}

/* The mean over its words, as transformers' pipeline scores entities by their first tokens. */
static double score_of(const struct sentence *s, const struct entity *e)
{
    double sum = 0;
    for (size_t i = e->first; i <= e->last; i++) sum += s->p[i];
    return sum / (double)(e->last - e->first + 1);
}

static size_t begin_of(const struct sentence *s, const struct entity *e)
{
    return s->words[e->first].begin;
}

static size_t end_of(const struct sentence *s, const struct entity *e)
{
    return s->words[e->last].begin + s->words[e->last].nbytes;
}

static void print_entities(const struct printer *p, const struct sentence *s)
{
    struct place place = {0};
    const size_t n = entity_find(p->scheme, s->classes, s->n, p->found);
    for (size_t i = 0; i < n; i++) {
        const struct entity *e = &p->found[i];
        const size_t from = begin_of(s, e), to = end_of(s, e);
        const size_t first = advance(&place, s->text, from), last = advance(&place, s->text, to);
        printable_print(p->out, "%.4f  %s  %zu-%zu  ", score_of(s, e),
                        entity_scheme_type(p->scheme, e->type), first, last);
        predict_put_cell(p->out, false, s->text + from, to - from);
        fputc('\n', p->out);
    }
    if (n == 0) fputs("no entities\n", p->out);
}

/* NULL: the word has no class in the file. */
static const char *true_name(const struct printer *p, const struct sentence *s, size_t word)
{
    const int32_t label = s->words[word].label;
    return p->texts && label >= 0
               ? predict_label_name(p->scorer, p->texts, p->labels_are_known, label)
               : NULL;
}

/* A line per word, and a blank line behind the last one: the form that such data have. */
static void print_words(const struct printer *p, const struct sentence *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->classes[i] >= 0 ? p->scorer->labels[s->classes[i]] : "";
        predict_put_cell(p->out, false, s->text + s->words[i].begin, s->words[i].nbytes);
        fputc('\t', p->out);
        predict_put_cell(p->out, false, name, strlen(name));
        if (s->classes[i] >= 0) fprintf(p->out, "\t%.6f", s->p[i]);
        if (p->has_labels) { /* the same number of columns in every line */
            const char *label = true_name(p, s, i);
            if (s->classes[i] < 0) fputc('\t', p->out);
            fputc('\t', p->out);
            if (label) predict_put_cell(p->out, false, label, strlen(label));
        }
        fputc('\n', p->out);
    }
    fputc('\n', p->out);
}

/* A table has no blank lines between texts: the number of the text is a column. */
static void print_words_header(struct predict_table *t, bool has_labels)
{
    static const char *const names[] = {"row", "word", "label", "probability", "true"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names) - !has_labels; i++) predict_put_cells(t, names[i]);
    predict_row_end(t);
}

static void print_words_table(const struct printer *p, const struct sentence *s,
                              struct predict_table *t)
{
    for (size_t i = 0; i < s->n; i++) {
        const bool has_class = s->classes[i] >= 0;
        const char *label = p->has_labels ? true_name(p, s, i) : NULL;
        fprintf(predict_cell(t), "%zu", s->example + 1);
        predict_cell_end(t);
        predict_put_cell(predict_cell(t), t->csv, s->text + s->words[i].begin, s->words[i].nbytes);
        predict_cell_end(t);
        predict_put_cells(t, has_class ? p->scorer->labels[s->classes[i]] : "");
        FILE *cell = predict_cell(t);
        if (has_class) fprintf(cell, "%.6f", s->p[i]);
        predict_cell_end(t);
        if (p->has_labels) predict_put_cells(t, label ? label : "");
        predict_row_end(t);
    }
}

static void print_entities_table(const struct printer *p, const struct sentence *s,
                                 struct predict_table *t)
{
    static const char *const names[] = {"score", "type", "start", "end", "text"};
    struct place place = {0};
    const size_t n = entity_find(p->scheme, s->classes, s->n, p->found);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) predict_put_cells(t, names[i]);
    predict_row_end(t);
    for (size_t i = 0; i < n; i++) {
        const struct entity *e = &p->found[i];
        const size_t from = begin_of(s, e), to = end_of(s, e);
        const size_t first = advance(&place, s->text, from), last = advance(&place, s->text, to);
        fprintf(predict_cell(t), "%.6f", score_of(s, e));
        predict_cell_end(t);
        predict_put_cells(t, entity_scheme_type(p->scheme, e->type));
        fprintf(predict_cell(t), "%zu", first);
        predict_cell_end(t);
        fprintf(predict_cell(t), "%zu", last);
        predict_cell_end(t);
        predict_put_cell(predict_cell(t), t->csv, s->text + from, to - from);
        predict_cell_end(t);
        predict_row_end(t);
    }
}

static void put_member(FILE *out, const char *name, const char *text, size_t nbytes)
{
    printable_print(out, "\"%s\": ", name);
    tool_put_json_string(out, text, nbytes);
}

static void print_json(const struct printer *p, const struct sentence *s)
{
    struct place place = {0};
    const size_t n = entity_find(p->scheme, s->classes, s->n, p->found);
    fputc('{', p->out);
    for (size_t k = 0; p->keep && k < p->keep->n; k++) {
        tool_put_json_string(p->out, p->keep->items[k], strlen(p->keep->items[k]));
        fputs(": ", p->out);
        predict_put_kept_json(p->out, p->texts, s->example, k);
        fputs(", ", p->out);
    }
    fputs("\"entities\": [", p->out);
    for (size_t i = 0; i < n; i++) {
        const struct entity *e = &p->found[i];
        const char *type = entity_scheme_type(p->scheme, e->type);
        const size_t from = begin_of(s, e), to = end_of(s, e);
        const size_t first = advance(&place, s->text, from), last = advance(&place, s->text, to);
        if (i) fputs(", ", p->out);
        fputc('{', p->out);
        put_member(p->out, "type", type, strlen(type));
        fputs(", ", p->out);
        put_member(p->out, "text", s->text + from, to - from);
        fprintf(p->out, ", \"start\": %zu, \"end\": %zu, \"score\": ", first, last);
        tool_put_json_number(p->out, score_of(s, e));
        fputc('}', p->out);
    }
    fputs("], \"words\": [", p->out);
    for (size_t i = 0; i < s->n; i++) {
        if (i) fputs(", ", p->out);
        tool_put_json_string(p->out, s->text + s->words[i].begin, s->words[i].nbytes);
    }
    fputs("], \"tags\": [", p->out);
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->classes[i] >= 0 ? p->scorer->labels[s->classes[i]] : NULL;
        if (i) fputs(", ", p->out);
        if (name) tool_put_json_string(p->out, name, strlen(name));
        if (!name) fputs("null", p->out);
    }
    if (p->has_labels) fputs("], \"true\": [", p->out);
    for (size_t i = 0; i < s->n && p->has_labels; i++) {
        const char *label = true_name(p, s, i);
        if (i) fputs(", ", p->out);
        if (label) tool_put_json_string(p->out, label, strlen(label));
        if (!label) fputs("null", p->out);
    }
    fputs("], \"probabilities\": [", p->out);
    for (size_t i = 0; i < s->n; i++) {
        if (i) fputs(", ", p->out);
        if (s->classes[i] >= 0) tool_put_json_number(p->out, s->p[i]);
        if (s->classes[i] < 0) fputs("null", p->out);
    }
    fputs("], ", p->out);
    put_member(p->out, "text", s->text, s->nbytes);
    fputs("}\n", p->out);
}

static cz_status printer_init(struct printer *p, const struct scorer *s, size_t n_longest)
{
    *p = (struct printer){.scorer = s};
    TRY(entity_scheme_create(s->labels, (size_t)s->n_classes, &p->scheme));
    p->found = malloc((n_longest + 1) * sizeof *p->found);
    return p->found ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu entities", n_longest);
}

static void printer_free(struct printer *p)
{
    entity_scheme_destroy(p->scheme);
    free(p->found);
}

/* ---- one text ------------------------------------------------------------------------------- */

static cz_status print_one(const struct predict_options *o, const struct sentence *s,
                           struct printer *p)
{
    TRY(output_open(&p->file, o->output));
    p->out = p->file.stream;
    struct predict_table table = {.out = p->out, .csv = o->form == PREDICT_CSV};
    if (o->form == PREDICT_JSONL)
        print_json(p, s);
    else if (o->form == PREDICT_PLAIN)
        print_entities(p, s);
    else
        print_entities_table(p, s, &table);
    return output_close(&p->file, CZ_OK);
}

static cz_status predict_text(const struct predict_options *o, struct scorer *scorer)
{
    const struct cz_tokenizer_input input = {.text = o->text, .nbytes = strlen(o->text)};
    struct cz_text_word *words = NULL;
    struct word_scores scores = {0};
    struct printer p = {0};
    struct sentence s = {.text = input.text, .nbytes = input.nbytes};
    cz_status st;
    TRY_GOTO(cz_text_split(input.text, input.nbytes, &words, &s.n), done);
    TRY_GOTO(score_words_of(scorer, &input, words, s.n, &scores), done);
    TRY_GOTO(printer_init(&p, scorer, s.n), done);
    s.words = words;
    s.classes = scores.classes;
    s.p = scores.p;
    st = print_one(o, &s, &p);
done:
    printer_free(&p);
    word_scores_free(&scores);
    free(words);
    return st;
}

/* ---- files ---------------------------------------------------------------------------------- */

static struct sentence sentence_of(const struct cz_texts *texts, const struct word_scores *scores,
                                   size_t i)
{
    const struct cz_tokenizer_input text = cz_texts_at(texts, i);
    const size_t at = word_scores_at(texts, i);
    struct sentence s = {.text = text.text,
                         .nbytes = text.nbytes,
                         .classes = scores->classes + at,
                         .p = scores->p + at,
                         .example = i};
    s.words = cz_texts_words(texts, i, &s.n);
    return s;
}

static cz_status print_all(const struct predict_options *o, const struct scorer *scorer,
                           const struct cz_texts *texts, const struct word_scores *scores,
                           const struct predict_names *keep)
{
    const size_t n = cz_texts_count(texts);
    size_t n_longest = 0;
    struct printer p;
    for (size_t i = 0; i < n; i++) {
        const struct sentence s = sentence_of(texts, scores, i);
        if (s.n > n_longest) n_longest = s.n;
    }
    cz_status st = printer_init(&p, scorer, n_longest);
    p.texts = texts;
    p.keep = keep;
    p.has_labels = predict_has_labels(texts);
    p.labels_are_known = predict_labels_are_known(scorer, texts);
    if (st == CZ_OK) st = output_open(&p.file, o->output);
    p.out = p.file.stream;
    struct predict_table table = {.out = p.out, .csv = true};
    if (o->form == PREDICT_CSV && st == CZ_OK) print_words_header(&table, p.has_labels);
    for (size_t i = 0; i < n && st == CZ_OK; i++) {
        const struct sentence s = sentence_of(texts, scores, i);
        if (o->form == PREDICT_JSONL)
            print_json(&p, &s);
        else if (o->form == PREDICT_CSV)
            print_words_table(&p, &s, &table);
        else
            print_words(&p, &s);
    }
    st = output_close(&p.file, st);
    printer_free(&p);
    return st;
}

static cz_status predict_files(const struct predict_options *o, struct scorer *s)
{
    struct cz_texts *texts = NULL;
    struct word_scores scores = {0};
    struct predict_names keep = {0};
    cz_status st;
    TRY_GOTO(predict_names_read("--keep", o->keep, &keep), done);
    TRY_GOTO(predict_texts_open(o, &keep, true, &texts), done);
    TRY_GOTO(score_words(s, texts, &scores), done);
    TRY_GOTO(print_all(o, s, texts, &scores, &keep), done);
done:
    word_scores_free(&scores);
    cz_texts_close(texts);
    predict_names_free(&keep);
    return st;
}

/* A name twice in an object: programs keep one of the two. */
static cz_status check_keep(const struct predict_options *o)
{
    static const char *const own[] = {"entities", "words", "tags", "true", "probabilities", "text"};
    struct predict_names keep;
    cz_status st = predict_names_read("--keep", o->keep, &keep);
    for (size_t i = 0; i < keep.n && st == CZ_OK; i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(own) && st == CZ_OK; k++)
            if (strcmp(keep.items[i], own[k]) == 0)
                st = err_set(CZ_INVALID, 0,
                             "--keep %s: predictions have a member of this name; the tags of the "
                             "file are written as \"true\"",
                             own[k]);
    predict_names_free(&keep);
    return st;
}

cz_status predict_words(const struct predict_options *o, struct scorer *s)
{
    const char *other = o->pair           ? "--pair"
                        : o->pair_column  ? "--pair-column"
                        : o->strip_spaces ? "--strip-spaces"
                        : o->fields       ? "--fields"
                                          : NULL;
    if (o->keep && o->form != PREDICT_JSONL)
        return err_set(CZ_INVALID, 0, "--keep: a line is a word; members of texts need --json");
    TRY(check_keep(o));
    if (other)
        return err_set(CZ_INVALID, 0, "%s is for classifiers of texts; %s classifies words", other,
                       o->score.model);
    return o->text ? predict_text(o, s) : predict_files(o, s);
}
