/* Ticks, places on an axis, and thinning of points: the geometry that SVG and terminal share.
 * Values are compared with tolerances of 1e-9 of a step, since ticks are sums of doubles. */
#include "tools/czero/plot/plot.h"

#include <math.h>
#include <string.h>

/* In decades for logarithmic axes. */
double plot_place(const struct plot_range *range, double value)
{
    double place = range->is_log
                       ? (log10(value) - log10(range->lo)) / (log10(range->hi) - log10(range->lo))
                       : (value - range->lo) / (range->hi - range->lo);
    return isfinite(place) ? place : 0.5;
}

/* About four digits: enough to compare runs, short enough for a heading. */
const char *plot_number(double value, char *text, size_t nbytes)
{
    double magnitude = fabs(value);
    if (value == round(value) && magnitude < 1e9)
        snprintf(text, nbytes, "%.0f", value);
    else if (magnitude >= 1e-3 && magnitude < 1e5)
        snprintf(text, nbytes, "%.*f", magnitude < 1 ? 4 : magnitude < 100 ? 3 : 1, value);
    else
        snprintf(text, nbytes, "%.3g", value);
    return text;
}

/* ---- ticks ---------------------------------------------------------------------------------- */

/* 1, 2, 2.5 or 5 times a power of ten, so that `span` has at most `wanted` of them. */
static double nice_step(double span, int wanted)
{
    static const double steps[] = {1, 2, 2.5, 5, 10};
    double rough = span / wanted, power = pow(10, floor(log10(rough)));
    for (size_t i = 0; i < CZ_ARRAY_LEN(steps); i++)
        if (steps[i] * power >= rough * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

/* Decimal places that show a multiple of `step` exactly. */
static int digits_of(double step)
{
    int digits = 0;
    while (digits < 12 && fabs(step - round(step)) > 1e-6 * step) {
        step *= 10;
        digits++;
    }
    return digits;
}

static void print_tick(double value, double step, double magnitude, char *text, size_t nbytes)
{
    static const struct {
        double unit;
        const char *suffix;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    if (fabs(value) < 1e-9 * step) value = 0;
    if (magnitude < 1e-3 || magnitude >= 1e15) {
        double power = pow(10, floor(log10(magnitude)));
        if (value == 0)
            snprintf(text, nbytes, "0");
        else
            snprintf(text, nbytes, "%.*fe%+.0f", digits_of(step / power), value / power,
                     log10(power));
        return;
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(units); i++) {
        if (magnitude < units[i].unit || (units[i].unit == 1e3 && magnitude < 1e4)) continue;
        bool is_zero = value == 0;
        snprintf(text, nbytes, "%.*f%s", is_zero ? 0 : digits_of(step / units[i].unit),
                 value / units[i].unit, is_zero ? "" : units[i].suffix);
        return;
    }
    snprintf(text, nbytes, "%.*f", digits_of(step), value);
}

/* Steps that people count in (1, 2, 2.5, 5), fewer than `wanted`. */
static void linear_ticks(const struct plot_range *range, int wanted, struct plot_ticks *out)
{
    double step = nice_step(range->hi - range->lo, wanted);
    if (range->is_whole && step != round(step)) step = fmax(1, floor(step));
    double magnitude = fmax(fabs(range->lo), fabs(range->hi));
    double first = ceil(range->lo / step - 1e-9);
    for (int i = 0; i < PLOT_TICKS_MAX; i++) {
        double value = (first + i) * step;
        if (value > range->hi + 1e-9 * step) break;
        out->at[out->n] = value;
        print_tick(value, step, magnitude, out->text[out->n], sizeof out->text[0]);
        out->n++;
    }
}

/* A logarithmic axis of less than a factor of 8 is ticked linearly: it would have one tick
 * otherwise. */
void plot_ticks_make(const struct plot_range *range, int wanted, struct plot_ticks *out)
{
    memset(out, 0, sizeof *out);
    if (wanted < 2) wanted = 2;
    if (wanted > PLOT_TICKS_MAX / 2) wanted = PLOT_TICKS_MAX / 2;
    /* Powers of ten, every k-th of many; of few also 2 and 5 times them. */
    if (range->is_log && range->hi / range->lo >= 8) {
        static const double parts[] = {1, 2, 5};
        double first = floor(log10(range->lo)), last = ceil(log10(range->hi));
        double every = fmax(1, ceil((last - first) / wanted));
        size_t n_parts = (last - first) * 3 <= wanted + 4 ? 3 : 1;
        for (double e = first; e <= last; e += every)
            for (size_t i = 0; i < n_parts; i++) {
                double value = parts[i] * pow(10, e);
                /* The table has a fixed size; ticks beyond it would not be readable either. */
                if (value >= range->lo * (1 - 1e-9) && value <= range->hi * (1 + 1e-9) &&
                    out->n != PLOT_TICKS_MAX) {
                    out->at[out->n] = value;
                    snprintf(out->text[out->n], sizeof out->text[0], "%.3g", value);
                    out->n++;
                }
            }
    } else {
        linear_ticks(range, wanted, out);
    }
}

/* ---- thinning ------------------------------------------------------------------------------- */

static double column_of(const struct plot_walk *w, size_t i)
{
    return floor(plot_place(w->x_range, w->x[i]) * w->n_columns);
}

static void add_sorted(size_t idx[4], size_t *n, size_t i)
{
    size_t at = *n;
    for (size_t k = 0; k < *n; k++)
        if (idx[k] == i) return;
    for (; at > 0 && idx[at - 1] > i; at--) idx[at] = idx[at - 1];
    idx[at] = i;
    (*n)++;
}

/* Of all points of one pixel column only first, lowest, highest and last matter to a line: a
 * million rows draw in time and size of the figure's width, with every spike kept. */
size_t plot_walk_next(struct plot_walk *w, size_t idx[4], bool *is_gap)
{
    size_t n = 0;
    *is_gap = w->at == 0;
    while (w->at < w->n && isnan(w->y[w->at])) {
        *is_gap = true;
        w->at++;
    }
    if (w->at == w->n) return 0;
    size_t first = w->at, last = first, low = first, high = first;
    double column = column_of(w, first);
    for (w->at++; w->at < w->n && !isnan(w->y[w->at]) && column_of(w, w->at) == column; w->at++) {
        last = w->at;
        if (w->y[last] < w->y[low]) low = last;
        if (w->y[last] > w->y[high]) high = last;
    }
    add_sorted(idx, &n, first);
    add_sorted(idx, &n, low);
    add_sorted(idx, &n, high);
    add_sorted(idx, &n, last);
    return n;
}
