/* Labels that are no single class: values (regression), and sets of classes (multi-label). Which
 * they are follows from what stands in the data, unless the options say it. */
#include "data/labelled/texts_impl.h"

#include "base/host/entry.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets ------------------------------------------------------------------------------------ */

static cz_status add_to_set(struct texts_reader *r, struct text_example *e, int32_t item)
{
    struct cz_texts *t = r->t;
    for (size_t i = e->first_word; i < t->n_sets; i++)
        if (t->sets[i] == item) return CZ_OK; /* named twice */
    if (t->n_sets == t->sets_cap) {
        const size_t cap = t->sets_cap ? t->sets_cap + t->sets_cap / 2 : 1024;
        int32_t *grown = realloc(t->sets, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu labels", r->in.path, cap);
        t->sets = grown;
        t->sets_cap = cap;
    }
    t->sets[t->n_sets++] = item;
    e->n_words++;
    return CZ_OK;
}

static const char *item_of(const struct text_list *l, size_t i, size_t *nbytes)
{
    const size_t begin = i ? l->ends[i - 1] : 0;
    *nbytes = l->ends[i] - begin;
    return l->bytes.s + begin;
}

/* 0 or 1 as a number or a boolean; -1: anything else. */
static int bit_of(const struct text_list *l, size_t i)
{
    char text[8] = "";
    size_t n;
    const char *s = item_of(l, i, &n);
    if (n == 0 || n >= sizeof text || l->types[i] == JSON_STRING) return -1;
    memcpy(text, s, n);
    if (l->types[i] == JSON_BOOL) return text[0] == 't';
    const double number = strtod(text, NULL);
    return number == 0 ? 0 : number == 1 ? 1 : -1;
}

static bool are_bits(const struct text_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (bit_of(l, i) < 0) return false;
    return true;
}

static cz_status take_bits(struct texts_reader *r, struct text_example *e)
{
    const struct text_list *l = &r->lists[1];
    if (l->n != r->n_hot || !are_bits(l))
        return text_source_fail(&r->in, CZ_INVALID,
                                "the label is not a list of %zu zeros and ones, as those of the "
                                "first examples are",
                                r->n_hot);
    for (size_t i = 0; i < l->n; i++)
        if (bit_of(l, i)) TRY(add_to_set(r, e, (int32_t)i));
    return CZ_OK;
}

static cz_status take_names(struct texts_reader *r, struct text_example *e)
{
    const struct text_list *l = &r->lists[1];
    struct text_row *row = &r->row;
    for (size_t i = 0; i < l->n; i++) {
        size_t n, entry_idx;
        const char *s = item_of(l, i, &n);
        row->label.n = 0;
        TRY(text_buf_put(&row->label, s, n));
        TRY(text_buf_put_char(&row->label, '\0'));
        row->label.n--;
        TRY(texts_set_label(r, l->types[i]));
        if (row->label_kind == LABEL_NONE || row->label_kind == LABEL_FLOAT)
            return text_source_fail(&r->in, CZ_INVALID,
                                    "label %zu of the list is no name or integer", i + 1);
        TRY(label_table_intern(&r->labels, &r->in, row->label_kind, row->label.s, row->label.n,
                               &entry_idx));
        TRY(add_to_set(r, e, (int32_t)entry_idx));
    }
    return CZ_OK;
}

/* The first list that is not empty tells what all are. */
cz_status texts_take_set(struct texts_reader *r, struct text_example *e)
{
    const struct text_list *l = &r->lists[1];
    const size_t n_known = r->o->n_labels;
    const bool is_first = r->labels.n == 0 && r->n_hot == 0;
    e->first_word = r->t->n_sets;
    e->n_words = 0;
    e->label = 0; /* there is one */
    if (l->n == 0 && r->n_hot == 0) return CZ_OK;
    if (is_first && l->n >= 2 && (n_known == 0 || l->n == n_known) && are_bits(l)) r->n_hot = l->n;
    return r->n_hot ? take_bits(r, e) : take_names(r, e);
}

/* Zeros and ones name no classes: LABEL_0 … as transformers has it, if none are known. */
cz_status texts_number_sets(struct texts_reader *r, char ***names, size_t *n)
{
    r->labels.has_sets = r->has_sets;
    if (r->n_hot == 0 || r->o->n_labels > 0) return label_table_finish(&r->labels, names, n);
    *n = r->n_hot;
    return label_names_numbered("LABEL_", r->n_hot, names);
}

/* ---- cells ----------------------------------------------------------------------------------- */

static void skip_spaces(const char *s, size_t n, size_t *at)
{
    while (*at < n && s[*at] == ' ') ++*at;
}

/* A string in either kind of quotes, without escapes, or an integer. false: neither. */
static bool next_item(const char *s, size_t n, size_t *at, size_t *begin, size_t *end,
                      enum json_type *type)
{
    const char quote = *at < n ? s[*at] : '\0';
    *type = JSON_STRING;
    if (quote == '"' || quote == '\'') {
        *begin = ++*at;
        while (*at < n && s[*at] != quote && s[*at] != '\\') ++*at;
        *end = *at;
        return *at < n && s[(*at)++] == quote;
    }
    *type = JSON_INT;
    *begin = *at;
    while (*at < n && ((s[*at] >= '0' && s[*at] <= '9') || (*at == *begin && s[*at] == '-'))) ++*at;
    *end = *at;
    return *end > *begin && s[*end - 1] != '-';
}

cz_status texts_read_cell_list(struct texts_reader *r, bool *is_list)
{
    const char *s = r->row.label.s;
    const size_t n = r->row.label.n;
    struct text_list *list = &r->lists[1];
    size_t at = 1, begin, end;
    *is_list = false;
    if (n < 2 || s[0] != '[' || s[n - 1] != ']') return CZ_OK;
    list->n = list->bytes.n = 0;
    for (skip_spaces(s, n, &at); s[at] != ']'; skip_spaces(s, n, &at)) {
        enum json_type type;
        if (list->n > 0) {
            if (s[at++] != ',') return CZ_OK;
            skip_spaces(s, n, &at);
        }
        if (!next_item(s, n - 1, &at, &begin, &end, &type)) return CZ_OK;
        TRY(text_list_add(list, s + begin, end - begin, type));
    }
    *is_list = at == n - 1;
    return CZ_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A label as a number; false: it is none. */
static bool number_of(const struct label_entry *e, double *value)
{
    char *end;
    const size_t n = strspn(e->name, "+-.0123456789eE");
    if (e->kind == LABEL_STRING || e->kind == LABEL_BOOL || n == 0 || e->name[n]) return false;
    *value = strtod(e->name, &end);
    return *end == '\0' && isfinite(*value);
}

/* All are numbers, and some are written with a fraction. */
static bool are_values(const struct label_table *l)
{
    bool has_fraction = false;
    double value;
    for (size_t i = 0; i < l->n; i++) {
        if (!number_of(&l->entries[i], &value)) return false;
        has_fraction = has_fraction || strpbrk(l->entries[i].name, ".eE");
    }
    return has_fraction;
}

cz_status texts_find_problem(struct texts_reader *r)
{
    const enum cz_problem wanted = r->o->problem;
    struct cz_texts *t = r->t;
    t->problem = wanted;
    if (wanted == CZ_PROBLEM_AUTO)
        t->problem = r->has_sets ? CZ_PROBLEM_MULTI_LABEL
                     : r->o->n_labels == 0 && !r->o->words && are_values(&r->labels)
                         ? CZ_PROBLEM_REGRESSION
                         : CZ_PROBLEM_SINGLE_LABEL;
    const bool wants_sets = t->problem == CZ_PROBLEM_MULTI_LABEL;
    if ((r->has_sets && !wants_sets) || (r->has_singles && wants_sets))
        return err_set(CZ_INVALID, 0, "%s: the labels are %s; %s needed", r->o->paths[0],
                       r->has_sets ? "lists" : "no lists",
                       wants_sets ? "a list of classes for each example is"
                                  : "one label for each example is");
    if (wanted != CZ_PROBLEM_AUTO || t->problem == CZ_PROBLEM_SINGLE_LABEL) return CZ_OK;
    LOGV(LOG_INFO, SUB_DATA, "data: %s",
         wants_sets ? "labels are lists: each text may have several classes (multi-label)"
                    : "labels are numbers with fractions: values are learnt (regression)");
    return CZ_OK;
}

cz_status texts_take_values(struct texts_reader *r)
{
    struct cz_texts *t = r->t;
    t->values = malloc((t->n + 1) * sizeof *t->values);
    if (!t->values) return err_set(CZ_NOMEM, 0, "no memory for %zu values", t->n);
    for (size_t i = 0; i < t->n; i++) {
        double value = NAN;
        const int32_t label = t->examples[i].label;
        if (label >= 0) {
            const struct label_entry *e = &r->labels.entries[label];
            if (!number_of(e, &value) || !isfinite((float)value))
                return err_set(CZ_INVALID, 0, "%s:%" PRIu64 ": the label \"%.64s\" is no number%s",
                               e->path, e->line, e->name, isfinite(value) ? " of fp32" : "");
            t->examples[i].label = 0;
        }
        t->values[i] = (float)value;
    }
    return CZ_OK;
}

/* ---- looking --------------------------------------------------------------------------------- */

enum cz_problem cz_texts_problem(const struct cz_texts *t)
{
    NEED_OR(t, CZ_PROBLEM_AUTO);
    return t->problem;
}

void cz_texts_targets(const struct cz_texts *t, size_t i, float *targets)
{
    API_ENTRY;
    if (!t || !targets || i >= t->n) return;
    const struct text_example *e = &t->examples[i];
    if (t->values) {
        targets[0] = t->values[i];
        return;
    }
    memset(targets, 0, t->n_labels * sizeof *targets);
    if (e->label < 0) targets[0] = NAN;
    for (size_t k = 0; k < e->n_words; k++) targets[t->sets[e->first_word + k]] = 1.0f;
}
