/* Entities from classes of words, and seqeval's figures of them. The rules are conlleval's, by
 * which published results are made: whether an entity begins or ends depends on two neighbouring
 * tags and types alone. Hence F1 from the quotients and not from counts, as seqeval has it. */
#include "engine/report/entity_report.h"

#include "base/text/text_width.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what names mean ------------------------------------------------------------------------- */

/* A class: its tag, one of "BIESO", and its type. */
struct tagged {
    char tag;
    size_t type;
};

struct entity_scheme {
    struct tagged *classes; /* (n_classes) */
    const char **types;     /* (n_types), into `text` */
    char *text;
    size_t n_types;
    size_t no_type; /* of "O" */
};

static const char no_type[] = "_";

/* Letters in front of a "-" and the tags that they are: L and U of BILOU, M and W of BMEWO. */
static const char letters[] = "BIESOLUMW", tags_of_letters[] = "BIESOESIS";

static bool is_there(const char *const *names, size_t n, const char *tag, const char *type)
{
    for (size_t k = 0; k < n; k++)
        if (strncmp(names[k], tag, 2) == 0 && strcmp(names[k] + 2, type) == 0) return true;
    return false;
}

/* What a name means. Without a letter and a dash the whole name is the type, and words of one class
 * that follow each other are one entity, as in transformers' pipeline; seqeval would cut the first
 * letter off (ADV would be "DV"). M and W are letters where the type has a B, too: they may begin
 * other names. */
static char read_name(const char *name, const char *const *names, size_t n, const char **type)
{
    const char *letter = name[0] ? strchr(letters, name[0]) : NULL;
    *type = name[0] ? name : no_type;
    if (strcmp(name, "O") == 0) {
        *type = no_type;
        return 'O';
    }
    if (!letter || name[1] != '-') return 'I';
    if ((*letter == 'M' || *letter == 'W') && !is_there(names, n, "B-", name + 2)) return 'I';
    *type = name[2] ? name + 2 : no_type;
    return tags_of_letters[letter - letters];
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static size_t find_type(const struct entity_scheme *s, const char *type)
{
    const char **at = bsearch(&type, s->types, s->n_types, sizeof *s->types, by_text);
    return (size_t)(at - s->types);
}

/* The types, sorted and each once, "_" among them. */
static void list_types(struct entity_scheme *s, const char *const *names, size_t n)
{
    char *at = s->text;
    for (size_t k = 0; k <= n; k++) {
        const char *type = no_type;
        if (k < n) read_name(names[k], names, n, &type);
        s->types[k] = strcpy(at, type);
        at += strlen(at) + 1;
    }
    qsort(s->types, n + 1, sizeof *s->types, by_text);
    for (size_t k = 0; k <= n; k++)
        if (k == 0 || strcmp(s->types[k], s->types[s->n_types - 1]) != 0)
            s->types[s->n_types++] = s->types[k];
}

cz_status entity_scheme_create(const char *const *names, size_t n, struct entity_scheme **out)
{
    size_t nbytes = sizeof no_type;
    for (size_t k = 0; k < n; k++) nbytes += strlen(names[k]) + sizeof no_type;
    struct entity_scheme *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->classes = malloc((n + 1) * sizeof *s->classes);
        s->types = malloc((n + 1) * sizeof *s->types);
        s->text = malloc(nbytes);
    }
    if (!s || !s->classes || !s->types || !s->text) {
        entity_scheme_destroy(s);
        return err_set(CZ_NOMEM, 0, "no memory for the types of %zu classes", n);
    }
    list_types(s, names, n);
    s->no_type = find_type(s, no_type);
    for (size_t k = 0; k < n; k++) {
        const char *type, tag = read_name(names[k], names, n, &type);
        s->classes[k] = (struct tagged){tag, find_type(s, type)};
    }
    *out = s;
    return CZ_OK;
}

void entity_scheme_destroy(struct entity_scheme *s)
{
    if (!s) return;
    free(s->classes);
    free(s->types);
    free(s->text);
    free(s);
}

size_t entity_scheme_n_types(const struct entity_scheme *s)
{
    return s->n_types;
}

const char *entity_scheme_type(const struct entity_scheme *s, size_t type)
{
    return s->types[type];
}

/* ---- entities -------------------------------------------------------------------------------- */

static bool is_any(char tag, const char *tags)
{
    return strchr(tags, tag) != NULL;
}

static bool ends_between(struct tagged before, struct tagged now)
{
    if (is_any(before.tag, "ES")) return true;
    if (is_any(before.tag, "BI") && is_any(now.tag, "BSO")) return true;
    return before.tag != 'O' && before.type != now.type;
}

static bool begins_between(struct tagged before, struct tagged now)
{
    if (is_any(now.tag, "BS")) return true;
    if (is_any(before.tag, "ESO") && is_any(now.tag, "EI")) return true;
    return now.tag != 'O' && before.type != now.type;
}

size_t entity_find(const struct entity_scheme *s, const int32_t *classes, size_t n,
                   struct entity *found)
{
    const struct tagged outside = {'O', s->no_type};
    struct tagged before = outside;
    size_t n_found = 0, first = 0;
    for (size_t i = 0; i <= n; i++) {
        const struct tagged now = i < n && classes[i] >= 0 ? s->classes[classes[i]] : outside;
        if (ends_between(before, now))
            found[n_found++] = (struct entity){before.type, first, i - 1};
        if (begins_between(before, now)) first = i;
        before = now;
    }
    return n_found;
}

/* Both lists are in the order of their first words, and no two entities of one list overlap. */
static void count_right(const struct entity *a, size_t n_a, const struct entity *b, size_t n_b,
                        struct entity_counts *counts)
{
    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        const bool same =
            a[i].first == b[k].first && a[i].last == b[k].last && a[i].type == b[k].type;
        if (same) counts[a[i].type].right++;
        if (a[i].first <= b[k].first)
            i++;
        else
            k++;
    }
}

cz_status entity_count(const struct entity_scheme *s, const int32_t *labels,
                       const int32_t *predicted, size_t n, struct entity_counts *counts)
{
    struct entity *found = malloc((2 * n + 1) * sizeof *found);
    if (!found) return err_set(CZ_NOMEM, 0, "no memory for the entities of %zu words", n);
    const size_t n_there = entity_find(s, labels, n, found);
    const size_t n_found = entity_find(s, predicted, n, found + n_there);
    for (size_t i = 0; i < n_there + n_found; i++)
        *(i < n_there ? &counts[found[i].type].there : &counts[found[i].type].found) += 1;
    count_right(found, n_there, found + n_there, n_found, counts);
    free(found);
    return CZ_OK;
}

/* ---- figures --------------------------------------------------------------------------------- */

static double divide(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static struct class_figures figures_of(struct entity_counts c)
{
    const double p = divide(c.right, c.found), r = divide(c.right, c.there);
    return (struct class_figures){
        .precision = p, .recall = r, .f1 = divide(2 * p * r, p + r), .support = c.there};
}

static void add_figures(struct class_figures *sum, struct class_figures f, double weight)
{
    sum->precision += f.precision * weight;
    sum->recall += f.recall * weight;
    sum->f1 += f.f1 * weight;
}

static struct class_figures average(struct class_figures sum, double weight, double support)
{
    return (struct class_figures){.precision = divide(sum.precision, weight),
                                  .recall = divide(sum.recall, weight),
                                  .f1 = divide(sum.f1, weight),
                                  .support = support};
}

struct entity_summary entity_report_compute(const struct entity_counts *counts, size_t n_types,
                                            struct class_figures *per_type)
{
    struct class_figures macro = {0}, weighted = {0};
    struct entity_counts all = {0};
    double n_occurring = 0;
    for (size_t i = 0; i < n_types; i++) {
        const struct class_figures f = figures_of(counts[i]);
        if (per_type) per_type[i] = f;
        all.there += counts[i].there;
        all.found += counts[i].found;
        all.right += counts[i].right;
        n_occurring += counts[i].there + counts[i].found > 0;
        add_figures(&macro, f, 1);
        add_figures(&weighted, f, f.support);
    }
    return (struct entity_summary){.micro = figures_of(all),
                                   .macro = average(macro, n_occurring, all.there),
                                   .weighted = average(weighted, all.there, all.there)};
}

double entity_report_metric(const struct entity_summary *s, const char *name)
{
    const struct {
        const char *name;
        double value;
    } metrics[] = {{"f1", s->micro.f1},
                   {"precision", s->micro.precision},
                   {"recall", s->micro.recall},
                   {"macro_f1", s->macro.f1},
                   {"weighted_f1", s->weighted.f1},
                   {"macro_precision", s->macro.precision},
                   {"macro_recall", s->macro.recall}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(metrics); i++)
        if (strcmp(metrics[i].name, name) == 0) return metrics[i].value;
    return NAN;
}

cz_status entity_report_print(FILE *stream, const struct entity_scheme *s,
                              const struct entity_counts *counts, int digits)
{
    size_t width = strlen("weighted avg");
    if (digits < 2 || digits > 6)
        return err_set(CZ_INVALID, 0, "a report has 2 to 6 decimal places, not %d", digits);
    for (size_t i = 0; i < s->n_types; i++) {
        const bool occurs = counts[i].there + counts[i].found > 0;
        if (occurs && text_width(s->types[i]) > width) width = text_width(s->types[i]);
    }
    const struct entity_summary all = entity_report_compute(counts, s->n_types, NULL);
    class_report_print_head(stream, width);
    for (size_t i = 0; i < s->n_types; i++) {
        const struct class_figures f = figures_of(counts[i]);
        if (counts[i].there + counts[i].found > 0)
            class_report_print_row(stream, s->types[i], width, digits, &f);
    }
    putc('\n', stream);
    class_report_print_row(stream, "micro avg", width, digits, &all.micro);
    class_report_print_row(stream, "macro avg", width, digits, &all.macro);
    class_report_print_row(stream, "weighted avg", width, digits, &all.weighted);
    if (fflush(stream) != 0 || ferror(stream))
        return err_set(CZ_IO, errno, "the report cannot be written");
    return CZ_OK;
}
