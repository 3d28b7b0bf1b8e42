/* Figures of values and of sets of classes, as scikit-learn's mean_squared_error, r2_score and
 * classification_report of several labels, and SciPy's correlations, have them. */
#include "engine/report/target_report.h"

#include "base/text/text_width.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values --------------------------------------------------------------------------------- */

static double mean_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

static double correlation(const double *x, const double *y, size_t n)
{
    const double mx = mean_of(x, n), my = mean_of(y, n);
    double xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? fmin(fmax(xy / sqrt(xx) / sqrt(yy), -1), 1) : NAN;
}

struct ranked {
    double value;
    size_t at;
};

static int by_value(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    return (a->value > b->value) - (a->value < b->value);
}

/* Ranks from 1; equal values share the mean of theirs. */
static void rank(const double *x, size_t n, struct ranked *sorted, double *ranks)
{
    for (size_t i = 0; i < n; i++) sorted[i] = (struct ranked){x[i], i};
    qsort(sorted, n, sizeof *sorted, by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end].value == sorted[i].value;) end++;
        for (size_t k = i; k < end; k++)
            ranks[sorted[k].at] = ((double)i + (double)end + 1.0) / 2.0;
    }
}

static cz_status rank_correlation(const double *x, const double *y, size_t n, double *out)
{
    struct ranked *sorted = malloc((n + 1) * sizeof *sorted);
    double *ranks = malloc((2 * n + 1) * sizeof *ranks);
    cz_status st = sorted && ranks ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu ranks", n);
    if (st == CZ_OK) {
        rank(x, n, sorted, ranks);
        rank(y, n, sorted, ranks + n);
        *out = correlation(ranks, ranks + n, n);
    }
    free(sorted);
    free(ranks);
    return st;
}

cz_status value_report_compute(const double *predicted, const double *targets, size_t n,
                               struct value_summary *out)
{
    double squares = 0, absolute = 0, spread = 0;
    *out = (struct value_summary){NAN, NAN, NAN, NAN, NAN, (double)n};
    if (n == 0) return CZ_OK;
    const double mean = mean_of(targets, n);
    for (size_t i = 0; i < n; i++) {
        const double d = predicted[i] - targets[i];
        squares += d * d;
        absolute += fabs(d);
        spread += (targets[i] - mean) * (targets[i] - mean);
    }
    out->mse = squares / (double)n;
    out->mae = absolute / (double)n;
    out->r2 = spread > 0 ? 1 - squares / spread : squares == 0 ? 1 : 0;
    out->pearson = correlation(predicted, targets, n);
    return rank_correlation(predicted, targets, n, &out->spearman);
}

static const char *const value_names[] = {"mse", "mae", "pearson", "spearman", "r2"};

static double value_at(const struct value_summary *s, size_t i)
{
    const double values[] = {s->mse, s->mae, s->pearson, s->spearman, s->r2};
    return values[i];
}

double value_report_metric(const struct value_summary *s, const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(value_names); i++)
        if (strcmp(value_names[i], name) == 0) return value_at(s, i);
    return NAN;
}

cz_status value_report_print(FILE *stream, const struct value_summary *s, int digits)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(value_names); i++) {
        text_print_left(stream, value_names[i], 9);
        fprintf(stream, " %.*f\n", digits, value_at(s, i));
    }
    if (fflush(stream) != 0 || ferror(stream))
        return err_set(CZ_IO, errno, "the report cannot be written");
    return CZ_OK;
}

/* ---- sets ----------------------------------------------------------------------------------- */

bool set_report_count(const float *logits, const float *targets, size_t n, double threshold,
                      struct entity_counts *counts)
{
    const double least = log(threshold / (1 - threshold));
    bool all = true;
    for (size_t k = 0; k < n; k++) {
        const bool is_there = targets[k] >= 0.5f, is_given = (double)logits[k] >= least;
        counts[k].there += is_there;
        counts[k].found += is_given;
        counts[k].right += is_there && is_given;
        all = all && is_there == is_given;
    }
    return all;
}

double set_report_loss(const float *logits, const float *targets, size_t n)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        const double z = (double)logits[k];
        sum += fmax(z, 0) - z * (double)targets[k] + log1p(exp(-fabs(z)));
    }
    return sum / (double)n;
}

static double divide(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static struct class_figures figures_of(struct entity_counts c)
{
    return (struct class_figures){.precision = divide(c.right, c.found),
                                  .recall = divide(c.right, c.there),
                                  .f1 = divide(2 * c.right, c.there + c.found),
                                  .support = c.there};
}

static void add(struct class_figures *sum, struct class_figures f, double weight)
{
    sum->precision += f.precision * weight;
    sum->recall += f.recall * weight;
    sum->f1 += f.f1 * weight;
    sum->support += f.support;
}

static void scale(struct class_figures *f, double n)
{
    f->precision = divide(f->precision, n);
    f->recall = divide(f->recall, n);
    f->f1 = divide(f->f1, n);
}

struct entity_summary set_report_compute(const struct entity_counts *counts, size_t n,
                                         struct class_figures *per_class)
{
    struct entity_summary s = {0};
    struct entity_counts all = {0};
    for (size_t k = 0; k < n; k++) {
        const struct class_figures f = figures_of(counts[k]);
        if (per_class) per_class[k] = f;
        all.there += counts[k].there;
        all.found += counts[k].found;
        all.right += counts[k].right;
        add(&s.macro, f, 1);
        add(&s.weighted, f, f.support);
    }
    scale(&s.macro, (double)n);
    scale(&s.weighted, all.there);
    s.micro = figures_of(all);
    return s;
}

cz_status set_report_print(FILE *stream, const struct entity_counts *counts, size_t n,
                           const char *const *names, int digits)
{
    size_t width = strlen("weighted avg");
    if (digits < 2 || digits > 6)
        return err_set(CZ_INVALID, 0, "a report has 2 to 6 decimal places, not %d", digits);
    for (size_t k = 0; k < n; k++)
        if (text_width(names[k]) > width) width = text_width(names[k]);
    const struct entity_summary all = set_report_compute(counts, n, NULL);
    class_report_print_head(stream, width);
    for (size_t k = 0; k < n; k++) {
        const struct class_figures f = figures_of(counts[k]);
        class_report_print_row(stream, names[k], width, digits, &f);
    }
    putc('\n', stream);
    class_report_print_row(stream, "micro avg", width, digits, &all.micro);
    class_report_print_row(stream, "macro avg", width, digits, &all.macro);
    class_report_print_row(stream, "weighted avg", width, digits, &all.weighted);
    if (fflush(stream) != 0 || ferror(stream))
        return err_set(CZ_IO, errno, "the report cannot be written");
    return CZ_OK;
}
