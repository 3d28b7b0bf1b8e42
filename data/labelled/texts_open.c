/* Opening labelled texts: which reader each file needs, and the classes once all are read. */
#include "base/host/entry.h"
#include "base/options.h"
#include "data/labelled/texts_impl.h"

#include "base/log.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const suffixes[] = {".csv",  ".tsv", ".jsonl",   ".ndjson",
                                       ".json", ".txt", ".parquet", NULL};
static const char *const word_suffixes[] = {".conll", ".bio",     ".iob",    ".iob2",
                                            ".tsv",   ".jsonl",   ".ndjson", ".json",
                                            ".txt",   ".parquet", NULL};

/* White space in front of what tells the format. */
static int peek_first(struct texts_reader *r)
{
    int c = text_source_peek(&r->in);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        text_source_skip(&r->in);
        c = text_source_peek(&r->in);
    }
    return c;
}

/* Words with their classes; lines of text only where none are wanted. */
static cz_status read_open_words(struct texts_reader *r)
{
    const char *path = r->in.path;
    const bool is_text = r->in.is_input || data_path_has_suffix(path, ".txt");
    if (r->o->plain || (is_text && r->o->labels_optional)) return texts_read_plain(r);
    const int c = peek_first(r);
    return data_path_is_rows(path) || c == '{' ? texts_read_json(r) : texts_read_conll(r);
}

/* By the file's name, else by its first character. */
static cz_status read_open_file(struct texts_reader *r)
{
    const char *path = r->in.path;
    if (r->o->words) return read_open_words(r);
    if (r->o->plain || r->in.is_input || data_path_has_suffix(path, ".txt")) {
        if (!r->o->labels_optional)
            return err_set(CZ_INVALID, 0, "%s: plain lines of text have no labels", path);
        return texts_read_plain(r);
    }
    if (data_path_has_suffix(path, ".csv")) return texts_read_table(r, ',', true);
    if (data_path_has_suffix(path, ".tsv")) return texts_read_table(r, '\t', false);
    const int c = peek_first(r);
    if (c == '[' || c == '{') return texts_read_json(r);
    if (c < 0) return r->in.status; /* empty: other files may have examples */
    return text_source_fail(
        &r->in, CZ_CORRUPT,
        "begins neither with \"[\" (a JSON list) nor with \"{\" (JSON lines); tables "
        "are named .csv or .tsv, lines of text .txt");
}

/* From a label's entry to its class, which is counted. */
static void number_label(const struct texts_reader *r, int32_t *label)
{
    if (*label < 0) return;
    *label = r->labels.entries[*label].cls;
    r->t->n_of_label[*label]++;
}

/* Labels were numbered as they came; now each gets its class. More classes than half of the
 * examples are probably not labels but texts. */
static cz_status number_examples(struct texts_reader *r)
{
    struct cz_texts *t = r->t;
    TRY(texts_find_problem(r));
    if (t->problem == CZ_PROBLEM_REGRESSION) return texts_take_values(r);
    TRY(texts_number_sets(r, &t->names, &t->n_labels));
    t->n_of_label = calloc(t->n_labels + 1, sizeof *t->n_of_label);
    if (!t->n_of_label) return err_set(CZ_NOMEM, 0, "no memory for %zu classes", t->n_labels);
    for (size_t i = 0; i < t->n && !r->n_hot; i++)
        if (t->problem == CZ_PROBLEM_SINGLE_LABEL) number_label(r, &t->examples[i].label);
    for (size_t i = 0; i < t->n_sets; i++)
        if (r->n_hot)
            t->n_of_label[t->sets[i]]++;
        else
            number_label(r, &t->sets[i]);
    for (size_t i = 0; i < t->n_words; i++) number_label(r, &t->words[i].label);
    if (r->o->n_labels == 0 && t->n_labels > 100 && t->n_labels > t->n / 2)
        LOGV(LOG_WARN, SUB_DATA,
             "data: %zu classes among %zu examples, \"%s\" to \"%s\": is it labels that were read?",
             t->n_labels, t->n, t->names[0], t->names[t->n_labels - 1]);
    return CZ_OK;
}

/* The files of a split are read for each part: the first one says what is in them. */
static bool is_second_part(const struct cz_texts_options *o)
{
    return o->split_share > 0 && o->split_part == 1;
}

/* The array of examples is cut to its size at the end. */
static cz_status read_all(struct texts_reader *r)
{
    const struct cz_texts_options *o = r->o;
    struct cz_texts *t = r->t;
    TRY(label_table_init(&r->labels, o));
    TRY(data_paths_expand(o->paths, o->n_paths, o->words ? word_suffixes : suffixes, &r->paths));
    for (size_t i = 0; i < r->paths.n; i++) {
        const struct data_path *path = &r->paths.items[i];
        size_t before = r->t->n;
        cz_status st = text_source_open(&r->in, path->dir, path->name, path->shown, o->encoding);
        if (st == CZ_OK) st = read_open_file(r);
        text_source_close(&r->in);
        if (st == CZ_OK && !is_second_part(o))
            LOGV(LOG_INFO, SUB_DATA, "data: %s: %zu texts", path->shown, r->t->n - before);
        TRY(st);
    }
    if (!is_second_part(o) || !o->skip_unlabelled) TRY(texts_report_unlabelled(r));
    for (size_t k = 0; k < o->n_keep && t->n > 0; k++)
        if (!r->kept[k].was_met)
            return err_set(CZ_INVALID, 0, "%s: no row has \"%s\", which is to be kept", o->paths[0],
                           o->keep[k]);
    if (t->n == 0)
        return err_set(CZ_INVALID, 0, "%s%s: no examples", o->paths[0],
                       o->n_paths > 1 ? " and the other files" : "");
    struct text_example *fitted = realloc(t->examples, t->n * sizeof *fitted);
    if (fitted) t->examples = fitted;
    struct cz_text_word *words = t->n_words ? realloc(t->words, t->n_words * sizeof *words) : NULL;
    if (words) t->words = words;
    return number_examples(r);
}

cz_status cz_texts_open(const struct cz_texts_options *options, struct cz_texts **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_texts_options ours, *o = &ours;
    struct texts_reader r = {.o = o, .unread = {.what = "members and columns"}};
    *out = NULL;
    NEED(options, "options");
    TRY(OPTIONS_TAKE(cz_texts_options, o, options));
    if (!(o->split_share >= 0 && o->split_share < 1) || o->split_part < 0 || o->split_part > 1)
        return err_set(CZ_INVALID, 0, "a split of %g: a share between 0 and 1 is needed",
                       o->split_share);
    if (o->n_paths == 0) return err_set(CZ_INVALID, 0, "no data: give at least one path");
    for (int a = 0; a < TEXT_N_ROLES; a++)
        for (int b = 0; b < a; b++) {
            const char *x = texts_given_name(o, (enum text_role)a),
                       *y = texts_given_name(o, (enum text_role)b);
            if (x && y && strcmp(x, y) == 0)
                return err_set(CZ_INVALID, 0, "\"%s\" cannot be both the %s and the %s", x,
                               texts_role_name((enum text_role)b),
                               texts_role_name((enum text_role)a));
        }
    if (o->words && (o->pair_column || o->strip_spaces))
        return err_set(CZ_INVALID, 0, "examples of words have no %s",
                       o->pair_column ? "second text" : "spaces to strip");
    r.t = calloc(1, sizeof *r.t);
    r.kept = calloc(o->n_keep + 1, sizeof *r.kept);
    if (!r.t || !r.kept) {
        free(r.t);
        free(r.kept);
        return err_set(CZ_NOMEM, 0, "no memory for texts");
    }
    r.t->n_keep = o->n_keep;
    r.t->has_words = o->words;
    cz_status st = read_all(&r);
    if (st == CZ_OK) st = texts_take_part(&r);
    if (st == CZ_OK && !is_second_part(o)) st = unread_report(&r.unread, o->paths[0]);
    text_buf_free(&r.row.text);
    text_buf_free(&r.row.pair);
    text_buf_free(&r.row.label);
    text_buf_free(&r.clean);
    text_buf_free(&r.value);
    text_buf_free(&r.key);
    text_buf_free(&r.names);
    for (size_t k = 0; k < o->n_keep; k++) text_buf_free(&r.kept[k].text);
    free(r.kept);
    free(r.field_ends);
    text_list_free(&r.lists[0]);
    text_list_free(&r.lists[1]);
    label_table_free(&r.labels);
    data_paths_free(&r.paths);
    if (st != CZ_OK) {
        cz_texts_close(r.t);
        return st;
    }
    LOGV(LOG_STEP, SUB_DATA, "data: %zu texts of %" PRIu64 " bytes, %zu classes", r.t->n,
         r.t->nbytes, r.t->n_labels);
    *out = r.t;
    return CZ_OK;
}
