/* Precision, recall, F1 and their averages from a confusion matrix, as scikit-learn prints them, to
 * the last digit: users compare the two. Hence the order of summation below, and F1 from counts
 * rather than from rounded quotients. */
#include "engine/report/class_report.h"

#include "base/printable.h"
#include "base/text/text_width.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* scikit-learn's zero_division=0. */
static double divide(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Row sum (support) and column sum (predicted) of class k. */
static void class_sums(const double *confusion, size_t n, size_t k, double *support,
                       double *predicted)
{
    *support = *predicted = 0;
    for (size_t i = 0; i < n; i++) {
        *support += confusion[k * n + i];
        *predicted += confusion[i * n + k];
    }
}

/* F1 from counts, 2·hits / (support + predicted): exact where the quotient is. */
static struct class_figures class_figures_compute(const double *confusion, size_t n, size_t k,
                                                  bool *occurs)
{
    double support, predicted, hits = confusion[k * n + k];
    class_sums(confusion, n, k, &support, &predicted);
    *occurs = support + predicted > 0;
    return (struct class_figures){.precision = divide(hits, predicted),
                                  .recall = divide(hits, support),
                                  .f1 = divide(2 * hits, support + predicted),
                                  .support = support};
}

/* ---- averages: summed as numpy sums, so that figures round as scikit-learn's do ------------- */

enum { N_AVERAGED = 6 }; /* precision, recall, F1; the same times support */

struct terms {
    double v[N_AVERAGED];
};

struct walk { /* over the classes that occur */
    const double *confusion;
    size_t n, at;
};

/* Classes that occur neither as label nor as prediction are left out, as scikit-learn does. */
static struct terms next_terms(struct walk *w)
{
    struct class_figures f;
    bool occurs;
    do f = class_figures_compute(w->confusion, w->n, w->at++, &occurs);
    while (!occurs);
    return (struct terms){{f.precision, f.recall, f.f1, f.precision * f.support,
                           f.recall * f.support, f.f1 * f.support}};
}

static void add_terms(struct terms *sum, struct terms t)
{
    for (int i = 0; i < N_AVERAGED; i++) sum->v[i] += t.v[i];
}

/* Eight lanes, added up as a tree; what is left over one by one. */
static struct terms sum_lanes(struct walk *w, size_t n)
{
    struct terms lanes[8];
    for (size_t i = 0; i < 8; i++) lanes[i] = next_terms(w);
    for (size_t i = 8; i < n - n % 8; i++) add_terms(&lanes[i % 8], next_terms(w));
    for (size_t step = 1; step < 8; step *= 2)
        for (size_t i = 0; i < 8; i += 2 * step) add_terms(&lanes[i], lanes[i + step]);
    for (size_t i = n - n % 8; i < n; i++) add_terms(&lanes[0], next_terms(w));
    return lanes[0];
}

/* numpy's pairwise summation of the next n. */
static struct terms sum_pairwise(struct walk *w, size_t n)
{
    if (n < 8) {
        struct terms sum = {{0}};
        for (size_t i = 0; i < n; i++) add_terms(&sum, next_terms(w));
        return sum;
    }
    if (n <= 128) return sum_lanes(w, n);
    size_t n_first = n / 2 - n / 2 % 8;
    struct terms sum = sum_pairwise(w, n_first);
    add_terms(&sum, sum_pairwise(w, n - n_first));
    return sum;
}

/* The first of equal ones, as argmax. */
size_t class_likeliest(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t k = 1; k < n; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

/* Cross-entropy with the largest logit taken out, so that exp() cannot overflow. */
double class_loss(const float *logits, size_t n, size_t label)
{
    const double largest = (double)logits[class_likeliest(logits, n)];
    double sum = 0;
    for (size_t k = 0; k < n; k++) sum += exp((double)logits[k] - largest);
    return log(sum) + largest - (double)logits[label];
}

/* Averages are weighted by support or not at all; both over occurring classes only. */
struct class_summary class_report_compute(const double *confusion, size_t n,
                                          struct class_figures *per_class)
{
    double n_examples = 0, n_hits = 0;
    size_t n_occurring = 0;
    for (size_t k = 0; k < n; k++) {
        bool occurs;
        struct class_figures f = class_figures_compute(confusion, n, k, &occurs);
        if (per_class) per_class[k] = f;
        n_hits += confusion[k * n + k];
        n_occurring += occurs;
        n_examples += f.support;
    }
    struct walk walk = {.confusion = confusion, .n = n};
    struct terms sum = sum_pairwise(&walk, n_occurring);
    double n_classes = (double)n_occurring;
    return (struct class_summary){
        .accuracy = divide(n_hits, n_examples),
        .n_examples = n_examples,
        .macro = {divide(sum.v[0], n_classes), divide(sum.v[1], n_classes),
                  divide(sum.v[2], n_classes), n_examples},
        .weighted = {divide(sum.v[3], n_examples), divide(sum.v[4], n_examples),
                     divide(sum.v[5], n_examples), n_examples},
    };
}

/* The names are those of --metric. */
double class_report_metric(const struct class_summary *s, const char *name)
{
    const struct {
        const char *name;
        double value;
    } metrics[] = {{"accuracy", s->accuracy},
                   {"macro_f1", s->macro.f1},
                   {"weighted_f1", s->weighted.f1},
                   {"macro_precision", s->macro.precision},
                   {"macro_recall", s->macro.recall}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(metrics); i++)
        if (strcmp(metrics[i].name, name) == 0) return metrics[i].value;
    return NAN;
}

/* ---- printing ------------------------------------------------------------------------------- */

struct table {
    FILE *stream;
    const double *confusion; /* (n,n) */
    size_t n;
    const char *const *names;
    struct class_figures *figures; /* per class */
    bool *occurs;                  /* per class: as a label or as a prediction */
    size_t name_width;             /* of the longest name among those that occur */
};

void class_report_print_head(FILE *stream, size_t width)
{
    text_print_right(stream, "", width);
    printable_print(stream, "  %9s %9s %9s %9s\n\n", "precision", "recall", "f1-score", "support");
}

void class_report_print_row(FILE *stream, const char *name, size_t width, int digits,
                            const struct class_figures *f)
{
    text_print_right(stream, name, width);
    fprintf(stream, "  %9.*f %9.*f %9.*f %9.0f\n", digits, f->precision, digits, f->recall, digits,
            f->f1, f->support);
}

static void print_report(const struct table *t, const struct class_summary *s, int digits)
{
    size_t width = t->name_width;
    if (width < strlen("weighted avg")) width = strlen("weighted avg");
    class_report_print_head(t->stream, width);
    for (size_t k = 0; k < t->n; k++)
        if (t->occurs[k])
            class_report_print_row(t->stream, t->names[k], width, digits, &t->figures[k]);
    putc('\n', t->stream);
    text_print_right(t->stream, "accuracy", width);
    printable_print(t->stream, "  %9s %9s %9.*f %9.0f\n", "", "", digits, s->accuracy,
                    s->n_examples);
    class_report_print_row(t->stream, "macro avg", width, digits, &s->macro);
    class_report_print_row(t->stream, "weighted avg", width, digits, &s->weighted);
}

/* A column is as wide as its name or its largest count. */
static size_t column_width(const struct table *t, size_t k)
{
    size_t width = text_width(t->names[k]);
    for (size_t i = 0; i < t->n; i++) {
        size_t count_width = (size_t)snprintf(NULL, 0, "%.0f", t->confusion[i * t->n + k]);
        if (count_width > width) width = count_width;
    }
    return width;
}

static void print_matrix(const struct table *t, size_t *widths)
{
    for (size_t k = 0; k < t->n; k++) widths[k] = column_width(t, k);
    fprintf(t->stream, "\nconfusion matrix (rows: true class, columns: predicted class)\n\n");
    text_print_right(t->stream, "", t->name_width);
    for (size_t k = 0; k < t->n; k++) {
        if (!t->occurs[k]) continue;
        text_print_right(t->stream, "", 2);
        text_print_right(t->stream, t->names[k], widths[k]);
    }
    putc('\n', t->stream);
    for (size_t i = 0; i < t->n; i++) {
        if (!t->occurs[i]) continue;
        text_print_right(t->stream, t->names[i], t->name_width);
        for (size_t k = 0; k < t->n; k++)
            if (t->occurs[k])
                fprintf(t->stream, "  %*.0f", (int)widths[k], t->confusion[i * t->n + k]);
        putc('\n', t->stream);
    }
}

/* Names may be wide characters: widths are columns of a terminal (text_width.c). */
cz_status class_report_print(FILE *stream, const double *confusion, size_t n,
                             const char *const *names, int digits, bool matrix)
{
    if (digits < 2 || digits > 6)
        return err_set(CZ_INVALID, 0, "a report has 2 to 6 decimal places, not %d", digits);
    struct table t = {.stream = stream, .confusion = confusion, .n = n, .names = names};
    size_t *widths = calloc(n + 1, sizeof *widths);
    t.figures = calloc(n + 1, sizeof *t.figures);
    t.occurs = calloc(n + 1, sizeof *t.occurs);
    cz_status st = CZ_OK;
    if (!widths || !t.figures || !t.occurs)
        st = err_set(CZ_NOMEM, 0, "no memory for a report on %zu classes", n);
    if (st == CZ_OK) {
        struct class_summary s = class_report_compute(confusion, n, t.figures);
        /* Rows of absent classes would hide the others in a table of hundreds. */
        for (size_t k = 0; k < t.n; k++) {
            double support, predicted;
            class_sums(t.confusion, t.n, k, &support, &predicted);
            t.occurs[k] = support + predicted > 0;
            if (t.occurs[k] && text_width(t.names[k]) > t.name_width)
                t.name_width = text_width(t.names[k]);
        }
        print_report(&t, &s, digits);
        /* A class that a report is silent about would look forgotten. */
        const char *before = "\nneither labelled nor predicted: ";
        for (size_t k = 0; k < t.n; k++) {
            if (t.occurs[k]) continue;
            fputs(before, t.stream);
            text_print_left(t.stream, t.names[k], 0);
            before = ", ";
        }
        if (*before == ',') putc('\n', t.stream);
        if (matrix) print_matrix(&t, widths);
        if (fflush(stream) != 0 || ferror(stream))
            st = err_set(CZ_IO, errno, "the report cannot be written");
    }
    free(widths);
    free(t.figures);
    free(t.occurs);
    return st;
}
