/* czero data show of tables, labelled JSON lines, CoNLL files and plain texts: each row's label and
 * tokens, and classes and lengths in sum. A wrong column or a cut row shows here, not after a
 * training. */
#include "tools/czero/cmd/data.h"

#include "base/printable.h"
#include "data/source/paths.h"
#include "tools/czero/cmd/init.h"
#include "tools/czero/tool.h"

#include <stdlib.h>
#include <string.h>

/* A row's ids; `n_cut` tokens, of words words, did not fit. */
struct row {
    int32_t *ids;
    int64_t n;
    size_t n_cut;
};

struct texts_view {
    const struct data_words *o;
    struct cz_tokenizer *tokenizer;
    struct cz_tokenizer_decoder *decoder;
    struct cz_texts *texts;
    bool words, plain;
    int64_t seq_len;
    struct row row; /* ids hold seq_len */
    int32_t *types, *starts;
    size_t *lengths, n_cut_rows, n_cut, n_tokens;
};

static enum init_kind kind_of(const struct data_words *o)
{
    const struct init_flags flags = {.encoding = o->encoding,
                                     .text_column = o->text_column,
                                     .pair_column = o->pair_column,
                                     .label_column = o->label_column};
    const struct init in = {.flags = &flags, .data = {.items = {o->file}, .n = 1}};
    return init_look(&in);
}

/* Rows of JSON without labels are read as chats are: those may hold plain texts, too. */
bool data_is_texts(const struct data_words *o)
{
    const enum init_kind kind = kind_of(o);
    return kind == INIT_LABELLED || kind == INIT_WORDS ||
           (kind == INIT_TEXT && data_path_has_suffix(o->file, ".txt"));
}

static cz_status open_view(struct texts_view *v)
{
    const struct data_words *o = v->o;
    const enum init_kind kind = kind_of(o);
    v->words = kind == INIT_WORDS;
    v->plain = kind == INIT_TEXT;
    v->seq_len = o->seq_len > 0 ? o->seq_len : v->plain ? 1024 : 128;
    const struct cz_texts_options options = {.size = sizeof options,
                                             .paths = &o->file,
                                             .n_paths = 1,
                                             .text_column = o->text_column,
                                             .pair_column = o->pair_column,
                                             .label_column = o->label_column,
                                             .encoding = o->encoding,
                                             .plain = v->plain,
                                             .words = v->words,
                                             .labels_optional = true};
    TRY(cz_tokenizer_open(o->tokenizer, &v->tokenizer));
    TRY(cz_tokenizer_decoder_create(v->tokenizer, &v->decoder));
    TRY(cz_texts_open(&options, &v->texts));
    const size_t n = (size_t)v->seq_len;
    v->row.ids = malloc(n * sizeof *v->row.ids);
    v->types = malloc(n * sizeof *v->types);
    v->starts = malloc(n * sizeof *v->starts);
    v->lengths = malloc((cz_texts_count(v->texts) + 1) * sizeof *v->lengths);
    if (v->row.ids && v->types && v->starts && v->lengths) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for the rows of %s", o->file);
}

static void close_view(struct texts_view *v)
{
    free(v->row.ids);
    free(v->types);
    free(v->starts);
    free(v->lengths);
    cz_texts_close(v->texts);
    cz_tokenizer_decoder_destroy(v->decoder);
    cz_tokenizer_close(v->tokenizer);
}

static cz_status encode(struct texts_view *v, size_t i)
{
    const struct cz_tokenizer_input text = cz_texts_at(v->texts, i);
    size_t n_words;
    const struct cz_text_word *words = cz_texts_words(v->texts, i, &n_words);
    struct row *r = &v->row;
    if (v->words)
        return cz_tokenizer_encode_words(v->tokenizer, text.text, words, n_words, v->seq_len,
                                         r->ids, v->types, v->starts, &r->n, &r->n_cut);
    return cz_tokenizer_encode_input(v->tokenizer, &text, v->seq_len, r->ids, v->types, &r->n,
                                     &r->n_cut);
}

static int by_size(const void *left, const void *right)
{
    const size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return a < b ? -1 : a > b;
}

/* Lengths are those before rows are cut; of words the cut ones count as a token each. */
static cz_status sum_up(struct texts_view *v)
{
    const size_t n = cz_texts_count(v->texts);
    for (size_t i = 0; i < n; i++) {
        TRY(encode(v, i));
        v->lengths[i] = (size_t)v->row.n + v->row.n_cut;
        v->n_tokens += (size_t)v->row.n;
        v->n_cut += v->row.n_cut;
        v->n_cut_rows += v->row.n_cut > 0;
    }
    qsort(v->lengths, n, sizeof *v->lengths, by_size);
    return CZ_OK;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* A token's text; a special one, or a part of a character, has none. */
static cz_status piece_of(struct texts_view *v, int32_t id, const char **text, size_t *n)
{
    const char *rest;
    size_t n_rest;
    TRY(cz_tokenizer_decode(v->decoder, id, text, n));
    if (*n == 0) cz_tokenizer_decoder_end(v->decoder, &rest, &n_rest);
    return CZ_OK;
}

/* "pos", "2.5", "food, rain", or "" for a row without a label; freed by the caller. */
static cz_status label_of(const struct texts_view *v, size_t i, char **out)
{
    const enum cz_problem problem = cz_texts_problem(v->texts);
    const char *const *names = cz_texts_labels(v->texts);
    const size_t n = cz_texts_n_labels(v->texts), K = problem == CZ_PROBLEM_REGRESSION ? 1 : n;
    float *targets = calloc(K + 1, sizeof *targets);
    size_t nbytes;
    FILE *f = open_memstream(out, &nbytes);
    if (f && targets && problem != CZ_PROBLEM_SINGLE_LABEL) {
        cz_texts_targets(v->texts, i, targets);
        if (problem == CZ_PROBLEM_REGRESSION && targets[0] == targets[0])
            printable_print(f, "%g", (double)targets[0]);
        for (size_t k = 0, m = 0; problem == CZ_PROBLEM_MULTI_LABEL && k < n; k++)
            if (targets[k] == 1) printable_print(f, "%s%s", m++ > 0 ? ", " : "", names[k]);
    } else if (f && cz_texts_label(v->texts, i) >= 0) {
        printable_print(f, "%s", names[cz_texts_label(v->texts, i)]);
    }
    free(targets);
    return f && fclose(f) == 0 ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a label");
}

static const char *name_of(const struct texts_view *v, int32_t label)
{
    return label < 0 ? "-" : cz_texts_labels(v->texts)[label];
}

/* Words stand with their classes, tokens between bars; "#2" is a token without a text. */
static cz_status print_row(struct texts_view *v, size_t i)
{
    const struct cz_tokenizer_input text = cz_texts_at(v->texts, i);
    char *label = NULL;
    size_t n_words;
    const struct cz_text_word *words = cz_texts_words(v->texts, i, &n_words);
    TRY(label_of(v, i, &label));
    printable_print(stdout, "%s: row %zu: ", v->o->file, i + 1);
    if (!v->words && !v->plain) printable_print(stdout, "label %s, ", *label ? label : "none");
    free(label);
    printable_print(stdout, "%zu token%s", (size_t)v->row.n, v->row.n == 1 ? "" : "s");
    if (v->row.n_cut > 0)
        printable_print(stdout, ", %zu %scut", v->row.n_cut, v->words ? "words " : "");
    printf("\n  ");
    for (size_t k = 0; v->words && k < n_words; k++) {
        printable_put(stdout, PRINTABLE_TEXT, text.text + words[k].begin, words[k].nbytes);
        printable_print(stdout, "/%s ", name_of(v, words[k].label));
    }
    if (v->words) printf("\n  ");
    for (int64_t k = 0; k < v->row.n; k++) {
        const char *piece;
        size_t n;
        TRY(piece_of(v, v->row.ids[k], &piece, &n));
        if (k > 0) putchar('|');
        if (n > 0) printable_put(stdout, PRINTABLE_TEXT, piece, n);
        if (n == 0) printf("#%d", (int)v->row.ids[k]);
    }
    printf("\n\n");
    return CZ_OK;
}

static cz_status write_row(struct texts_view *v, size_t i, struct json_writer *w)
{
    char *label = NULL;
    size_t n_words;
    const struct cz_text_word *words = cz_texts_words(v->texts, i, &n_words);
    TRY(label_of(v, i, &label));
    json_begin_object(w);
    json_put_string(w, "file", v->o->file);
    json_put_size(w, "row", i + 1);
    if (*label) json_put_string(w, "label", label);
    free(label);
    json_put_size(w, "tokens", (size_t)v->row.n);
    json_put_size(w, v->words ? "cut_words" : "cut_tokens", v->row.n_cut);
    if (v->words) {
        json_write_key(w, "labels");
        json_begin_array(w);
        for (size_t k = 0; k < n_words; k++) json_write_string(w, name_of(v, words[k].label));
        json_end_array(w);
    }
    json_write_key(w, "ids");
    json_begin_array(w);
    for (int64_t k = 0; k < v->row.n; k++) json_write_int(w, v->row.ids[k]);
    json_end_array(w);
    json_write_key(w, "pieces");
    json_begin_array(w);
    for (int64_t k = 0; k < v->row.n; k++) {
        const char *piece;
        size_t n;
        TRY(piece_of(v, v->row.ids[k], &piece, &n));
        json_write_string_n(w, piece, n);
    }
    json_end_array(w);
    json_end_object(w);
    return CZ_OK;
}

/* w NULL: for people. */
static cz_status show_rows(struct texts_view *v, struct json_writer *w)
{
    const size_t n = cz_texts_count(v->texts), first = v->o->line > 0 ? (size_t)v->o->line - 1 : 0;
    for (size_t i = first; i < n && (int64_t)(i - first) < v->o->rows; i++) {
        TRY(encode(v, i));
        TRY(w ? write_row(v, i, w) : print_row(v, i));
    }
    return CZ_OK;
}

/* ---- the sum --------------------------------------------------------------------------------- */

static void print_summary(const struct texts_view *v)
{
    const size_t n = cz_texts_count(v->texts), n_labels = cz_texts_n_labels(v->texts);
    size_t n_classed = 0;
    char cut[TOOL_CUT_NBYTES];
    for (size_t k = 0; k < n_labels; k++) n_classed += cz_texts_n_of_label(v->texts, k);
    printf("rows       %zu\n", n);
    if (cz_texts_problem(v->texts) == CZ_PROBLEM_REGRESSION) printf("labels     values\n");
    for (size_t k = 0; k < n_labels; k++) {
        const size_t of = cz_texts_n_of_label(v->texts, k);
        printable_print(stdout, "%s %s: %zu (%.1f %%)\n", k == 0 ? "classes   " : "          ",
                        cz_texts_labels(v->texts)[k], of,
                        data_percent((double)of, (double)n_classed));
    }
    if (n == 0) return;
    printf("lengths    %zu to %zu tokens, half of them up to %zu\n", v->lengths[0],
           v->lengths[n - 1], v->lengths[(n - 1) / 2]);
    printable_print(stdout, "cut        %s, %zu %s%s lost\n",
                    tool_cut_sentence(cut, v->n_cut_rows, n, "text", v->seq_len), v->n_cut,
                    v->words ? "word" : "token", v->n_cut == 1 ? " is" : "s are");
    printf("epoch      %zu tokens\n", v->n_tokens);
}

static void write_summary(const struct texts_view *v, struct json_writer *w)
{
    const size_t n = cz_texts_count(v->texts);
    json_put_size(w, "rows", n);
    json_write_key(w, "classes");
    json_begin_object(w);
    for (size_t k = 0; k < cz_texts_n_labels(v->texts); k++)
        json_put_size(w, cz_texts_labels(v->texts)[k], cz_texts_n_of_label(v->texts, k));
    json_end_object(w);
    json_put_size(w, "shortest", n > 0 ? v->lengths[0] : 0);
    json_put_size(w, "median", n > 0 ? v->lengths[(n - 1) / 2] : 0);
    json_put_size(w, "longest", n > 0 ? v->lengths[n - 1] : 0);
    json_put_int(w, "seq_len", v->seq_len);
    json_put_size(w, "rows_cut", v->n_cut_rows);
    json_put_size(w, v->words ? "words_cut" : "tokens_cut", v->n_cut);
    json_put_size(w, "tokens_per_epoch", v->n_tokens);
}

static cz_status report(struct texts_view *v)
{
    struct json_writer w;
    TRY(sum_up(v));
    if (!v->o->json) {
        TRY(show_rows(v, NULL));
        print_summary(v);
        return CZ_OK;
    }
    json_writer_init(&w, 2);
    json_begin_object(&w);
    write_summary(v, &w);
    json_write_key(&w, "shown");
    json_begin_array(&w);
    cz_status st = show_rows(v, &w);
    json_end_array(&w);
    json_end_object(&w);
    if (st == CZ_OK && tool_put_json(&w) != EXIT_OK) st = cz_last_status();
    json_writer_free(&w);
    return st;
}

cz_status data_show_texts(const struct data_words *o)
{
    struct texts_view v = {.o = o};
    if (o->packing || o->left_out || o->chat_template || o->loss_on)
        return err_set(CZ_INVALID, 0, "%s is for chats; %s holds texts",
                       o->packing         ? "--packing"
                       : o->left_out      ? "--left-out"
                       : o->chat_template ? "--chat-template"
                                          : "--loss-on",
                       o->file);
    cz_status st = open_view(&v);
    if (st == CZ_OK) st = report(&v);
    close_view(&v);
    return st;
}
