/* From tables to panels: which columns, whose lines, which ranges. Rows that are not finite leave
 * gaps instead of bending a line, and are counted for a note. */
#include "tools/czero/plot/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static cz_status no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "no memory for the figure");
}

/* By the end of the name, so that eval_accuracy or macro_f1 count. */
bool plot_is_score(const char *column)
{
    static const char *const scores[] = {"accuracy", "f1", "precision", "recall"};
    size_t len = strlen(column);
    for (size_t i = 0; i < CZ_ARRAY_LEN(scores); i++) {
        size_t n = strlen(scores[i]);
        if (len >= n && strcmp(column + len - n, scores[i]) == 0) return true;
    }
    return false;
}

static bool is_loss(const char *column)
{
    size_t len = strlen(column);
    return len >= 4 && strcmp(column + len - 4, "loss") == 0;
}

/* ---- panels: which columns ------------------------------------------------------------------ */

static cz_status add_panel(struct plot_figure *f, const char *name)
{
    for (size_t i = 0; i < f->n_panels; i++)
        if (strcmp(f->panels[i].name, name) == 0) return CZ_OK;
    if (f->n_panels == PLOT_PANELS_MAX)
        return err_set(CZ_INVALID, 0, "--y: more than %d panels", PLOT_PANELS_MAX);
    f->panels[f->n_panels++].name = name;
    return CZ_OK;
}

/* Loss and accuracy; in a file without either, whatever columns it has. */
static cz_status add_default_panels(struct plot_figure *f, const struct plot_table *t)
{
    static const char *const wanted[] = {"loss", "accuracy"};
    static const char *const places[] = {"step", "epoch", "split", "seconds"};
    bool any = false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(wanted); i++) {
        const struct plot_column *c = plot_table_column(t, wanted[i]);
        if (!c || !(plot_table_has_values(t, c) || c->first_bad)) continue;
        TRY(add_panel(f, c->name));
        any = true;
    }
    if (any) return CZ_OK;
    for (size_t i = 0; i < t->n_columns && f->n_panels < PLOT_PANELS_MAX; i++) {
        bool is_place = false;
        for (size_t k = 0; k < CZ_ARRAY_LEN(places); k++)
            is_place = is_place || strcmp(t->columns[i].name, places[k]) == 0;
        if (is_place || !plot_table_has_values(t, &t->columns[i])) continue;
        TRY(add_panel(f, t->columns[i].name));
    }
    return CZ_OK;
}

static cz_status no_column(const char *option, const char *name, const struct plot_table *t)
{
    char columns[512];
    /* The error lists the columns there are. */
    const size_t nbytes = sizeof columns;
    size_t at = 0;
    columns[0] = '\0';
    for (size_t i = 0; i < t->n_columns && at < nbytes; i++)
        at +=
            (size_t)snprintf(columns + at, nbytes - at, i > 0 ? ", %s" : "%s", t->columns[i].name);
    return err_set(CZ_INVALID, 0, "%s %s: %s has the columns %s", option, name, t->path, columns);
}

/* A name from --y is looked up in the tables in their order. */
static cz_status add_named_panels(struct plot_figure *f, const char *ys,
                                  const struct plot_table *tables, size_t n_tables)
{
    for (const char *at = ys; *at;) {
        char name[128];
        size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), at);
        at += len + (at[len] == ',');
        if (len == 0) continue;
        const struct plot_column *column = NULL;
        for (size_t i = 0; i < n_tables && !column; i++)
            column = plot_table_column(&tables[i], name);
        if (!column || strcmp(name, "split") == 0) return no_column("--y", name, &tables[0]);
        TRY(add_panel(f, column->name));
    }
    return f->n_panels > 0 ? CZ_OK : err_set(CZ_INVALID, 0, "--y names no column");
}

/* ---- series --------------------------------------------------------------------------------- */

static double usable(double y, bool is_log)
{
    return isfinite(y) && (!is_log || y > 0) ? y : NAN;
}

/* Empty cells belong to other kinds of rows and leave no gap; a value that is not finite does. */
static cz_status fill_series(struct plot_series *s, const struct plot_table *t, size_t split,
                             const double *x, const struct plot_column *y, bool is_log)
{
    size_t n = 0;
    bool any = false;
    s->x = malloc((t->n_rows + 1) * sizeof *s->x);
    s->y = malloc((t->n_rows + 1) * sizeof *s->y);
    if (!s->x || !s->y) return no_memory();
    for (size_t i = 0; i < t->n_rows; i++) {
        bool mine = !t->splits || t->splits[i] == split;
        if (!mine || !isfinite(x[i]) || isnan(y->values[i])) continue;
        s->x[n] = x[i];
        s->y[n] = usable(y->values[i], is_log);
        any = any || !isnan(s->y[n]);
        n++;
    }
    s->n = any ? n : 0;
    return CZ_OK;
}

/* A schedule is exact: a mean would only blur its corners. */
static bool is_smooth_already(const char *column)
{
    return strcmp(column, "lr") == 0 || strcmp(column, "lr_next") == 0 ||
           strcmp(column, "loss_scale") == 0;
}

struct running { /* sums over blocks of `len` rows: up to each row, and from each row on */
    size_t len, n;
    double *before, *from;
    size_t *counts; /* (n+1) rows with a value in front of each */
};

/* Sums within blocks of the window's length give every mean in two additions, without the
 * subtraction that loses digits. */
static bool running_init(struct running *r, const struct plot_series *s, size_t len)
{
    *r = (struct running){.len = len, .n = s->n};
    r->before = malloc(s->n * sizeof *r->before);
    r->from = malloc(s->n * sizeof *r->from);
    r->counts = calloc(s->n + 1, sizeof *r->counts);
    if (!r->before || !r->from || !r->counts) return false;
    for (size_t i = 0; i < s->n; i++) {
        double y = isnan(s->y[i]) ? 0 : s->y[i];
        r->before[i] = y + (i % len > 0 ? r->before[i - 1] : 0);
        r->counts[i + 1] = r->counts[i] + (isnan(s->y[i]) ? 0 : 1);
    }
    for (size_t i = s->n; i-- > 0;) {
        double y = isnan(s->y[i]) ? 0 : s->y[i];
        bool is_last = i + 1 == s->n || (i + 1) % len == 0;
        r->from[i] = y + (is_last ? 0 : r->from[i + 1]);
    }
    return true;
}

static void running_free(struct running *r)
{
    free(r->before);
    free(r->from);
    free(r->counts);
}

/* Of rows lo … last: `len` of them, or those at an end. Sums are added, never subtracted: one huge
 * loss does not swallow all that come after it. */
static double running_mean(const struct running *r, size_t lo, size_t last)
{
    bool one_block = lo / r->len == last / r->len;
    double sum = one_block ? (lo % r->len == 0 ? r->before[last] : r->from[lo])
                           : r->from[lo] + r->before[last];
    return sum / (double)(r->counts[last + 1] - r->counts[lo]);
}

/* The mean over about `window` rows around each, over fewer at the ends. */
static cz_status smooth_series(struct plot_series *s, const char *name, int64_t asked)
{
    size_t half = (asked > 0 ? (size_t)asked : s->n / 25) / 2;
    struct running r;
    if (s->is_eval || s->n < 3 || half == 0 || is_smooth_already(name)) return CZ_OK;
    if (half > s->n) half = s->n;
    s->smooth = malloc(s->n * sizeof *s->smooth);
    bool ok = running_init(&r, s, 2 * half + 1) && s->smooth;
    for (size_t i = 0; ok && i < s->n; i++) {
        size_t lo = i < half ? 0 : i - half, last = i + half < s->n ? i + half : s->n - 1;
        s->smooth[i] = isnan(s->y[i]) ? NAN : running_mean(&r, lo, last);
    }
    running_free(&r);
    return ok ? CZ_OK : no_memory();
}

/* Only evaluations: the training loss of a batch is noise. */
static void find_best(struct plot_series *s, const char *name)
{
    s->best_idx = SIZE_MAX;
    if (!s->is_eval || !(is_loss(name) || plot_is_score(name))) return;
    for (size_t i = 0; i < s->n; i++) {
        if (isnan(s->y[i])) continue;
        if (s->best_idx == SIZE_MAX ||
            (is_loss(name) ? s->y[i] < s->y[s->best_idx] : s->y[i] > s->y[s->best_idx]))
            s->best_idx = i;
    }
}

/* One line per file and split. */
static cz_status add_series(struct plot_figure *f, struct plot_panel *p, const struct plot_table *t,
                            size_t file_idx, const double *x, const struct plot_options *o)
{
    const struct plot_column *y = plot_table_column(t, p->name);
    if (!y) return CZ_OK; /* another file's */
    if (y->first_bad)
        return err_set(CZ_INVALID, 0, "%s: line %zu: the value of column %s is not a number",
                       t->path, y->first_bad, y->name);
    for (size_t split = 0; split < (t->splits ? t->n_splits : 1); split++) {
        struct plot_series *s = &p->series[p->n_series];
        *s = (struct plot_series){.file_idx = file_idx, .has_splits = t->splits != NULL};
        s->split = t->splits ? t->split_names[split] : "";
        s->is_eval = t->splits && strcmp(s->split, "train") != 0;
        p->n_series++; /* from here on plot_figure_free() knows it */
        TRY(fill_series(s, t, split, x, y, p->y.is_log));
        TRY(smooth_series(s, p->name, o->smooth));
        find_best(s, p->name);
        if (s->n == 0) continue;
        f->has_train = f->has_train || !s->is_eval;
        f->has_eval = f->has_eval || s->is_eval;
        f->has_smooth = f->has_smooth || s->smooth;
    }
    return CZ_OK;
}

/* ---- ranges --------------------------------------------------------------------------------- */

static void stretch(struct plot_range *r, double value)
{
    if (isnan(value)) return;
    r->lo = fmin(r->lo, value);
    r->hi = fmax(r->hi, value);
}

/* A little air above and below; something to divide by when all values are one. */
static void pad_range(struct plot_range *r, double part)
{
    if (r->is_log) {
        double factor = r->hi > r->lo ? pow(r->hi / r->lo, part) : 1.5;
        r->lo = fmax(r->lo / factor, 1e-300);
        r->hi = fmin(r->hi * factor, 1e300);
        return;
    }
    double span = r->hi - r->lo;
    double least = 1e-9 * fmax(fabs(r->lo), fabs(r->hi)); /* where ticks could still differ */
    double pad = span > least ? span * part : r->hi == 0 || r->is_whole ? 1 : fabs(r->hi) * 0.1;
    r->lo -= pad;
    r->hi += pad;
}

/* The raw values count only where they are drawn. */
bool plot_find_ranges(struct plot_panel *p, bool with_raw)
{
    p->x = (struct plot_range){.lo = INFINITY, .hi = -INFINITY, .is_whole = p->x.is_whole};
    p->y = (struct plot_range){.lo = INFINITY, .hi = -INFINITY, .is_log = p->y.is_log};
    for (size_t k = 0; k < p->n_series; k++) {
        const struct plot_series *s = &p->series[k];
        const double *y = s->smooth && !with_raw ? s->smooth : s->y;
        for (size_t i = 0; i < s->n; i++) {
            stretch(&p->x, s->x[i]);
            stretch(&p->y, y[i]);
        }
    }
    if (!(p->x.lo <= p->x.hi && p->y.lo <= p->y.hi)) return false;
    if (p->x.lo == p->x.hi) pad_range(&p->x, 0);
    pad_range(&p->y, 0.04);
    return isfinite(p->x.hi - p->x.lo) && isfinite(p->y.hi - p->y.lo);
}

/* Over all files of the panel; the heading has space for one. */
static void describe_best(const struct plot_figure *f, struct plot_panel *p)
{
    const struct plot_series *best = NULL;
    char y[32], x[32];
    for (size_t k = 0; k < p->n_series; k++) {
        const struct plot_series *s = &p->series[k];
        if (s->best_idx == SIZE_MAX || s->n == 0) continue;
        double ours = s->y[s->best_idx], other = best ? best->y[best->best_idx] : NAN;
        if (!best || (is_loss(p->name) ? ours < other : ours > other)) best = s;
    }
    if (!best) return;
    plot_number(best->y[best->best_idx], y, sizeof y);
    plot_number(best->x[best->best_idx], x, sizeof x);
    bool is_time = strcmp(f->x_label, "step") != 0 && strcmp(f->x_label, "epoch") != 0;
    if (f->n_files > 1)
        snprintf(p->best, sizeof p->best, "best %s %s (%.90s)", best->split, y,
                 f->labels[best->file_idx]);
    else
        snprintf(p->best, sizeof p->best, "best %s %s at %s %s", best->split, y,
                 is_time ? x : f->x_label, is_time ? f->x_label : x);
}

/* ---- labels of files ------------------------------------------------------------------------ */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Bytes of the folders that all paths begin with. */
static size_t common_front(const struct plot_table *tables, size_t n)
{
    size_t len = 0;
    for (size_t at = 0; tables[0].path[at]; at++) {
        for (size_t i = 1; i < n; i++)
            if (tables[i].path[at] != tables[0].path[at]) return len;
        if (tables[0].path[at] == '/') len = at + 1;
    }
    return len;
}

static bool names_differ(const struct plot_table *tables, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(base_name(tables[i].path), base_name(tables[k].path)) == 0) return false;
    return true;
}

static bool names_are_one(const struct plot_table *tables, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (strcmp(base_name(tables[i].path), base_name(tables[0].path)) != 0) return false;
    return true;
}

/* a.csv, b.csv → a, b;  runs/a/metrics.csv, runs/b/metrics.csv → a, b;  otherwise the paths. */
static cz_status label_files(struct plot_figure *f, const struct plot_table *tables, size_t n)
{
    bool by_name = names_differ(tables, n), by_folder = !by_name && names_are_one(tables, n);
    size_t front = by_name ? 0 : common_front(tables, n);
    for (size_t i = 0; i < n; i++) {
        const char *from = by_name ? base_name(tables[i].path) : tables[i].path + front;
        size_t len = strlen(from);
        size_t n_base = strlen(base_name(tables[i].path));
        if (by_folder && len > n_base + 1)
            len -= n_base + 1;
        else if (len > 4 && strcmp(from + len - 4, ".csv") == 0)
            len -= 4;
        if (!(f->labels[i] = strndup(from, len))) return no_memory();
        f->n_files++;
    }
    return CZ_OK;
}

/* ---- the figure ----------------------------------------------------------------------------- */

/* Seconds in the unit that people would use for so many. */
static double x_unit(struct plot_figure *f, const struct plot_table *tables, size_t n,
                     const struct plot_options *o)
{
    double most = 0;
    snprintf(f->x_label, sizeof f->x_label, "%.31s", o->x);
    if (strcmp(o->x, "seconds") != 0) return 1;
    for (size_t i = 0; i < n; i++) {
        const struct plot_column *c = plot_table_column(&tables[i], o->x);
        for (size_t k = 0; c && k < tables[i].n_rows; k++)
            if (isfinite(c->values[k])) most = fmax(most, c->values[k]);
    }
    if (most < 300) return 1;
    strcpy(f->x_label, most < 3 * 3600 ? "minutes" : "hours");
    return most < 3 * 3600 ? 60 : 3600;
}

static cz_status add_file(struct plot_figure *f, const struct plot_table *t, size_t idx,
                          double unit, const struct plot_options *o)
{
    const struct plot_column *c = plot_table_column(t, o->x);
    if (!c || strcmp(o->x, "split") == 0) return no_column("--x", o->x, t);
    if (c->first_bad)
        return err_set(CZ_INVALID, 0, "%s: line %zu: the value of column %s is not a number",
                       t->path, c->first_bad, c->name);
    double *x = malloc((t->n_rows + 1) * sizeof *x);
    if (!x) return no_memory();
    for (size_t i = 0; i < t->n_rows; i++) x[i] = c->values[i] / unit;
    cz_status st = CZ_OK;
    for (size_t p = 0; p < f->n_panels && st == CZ_OK; p++)
        st = add_series(f, &f->panels[p], t, idx, x, o);
    free(x);
    return st;
}

static void free_panel(struct plot_panel *p)
{
    for (size_t k = 0; k < p->n_series; k++) {
        free(p->series[k].x);
        free(p->series[k].y);
        free(p->series[k].smooth);
    }
    p->n_series = 0;
}

/* Panels without a value go, and are named; with none left there is nothing to draw. */
static cz_status finish_panels(struct plot_figure *f, const struct plot_table *first, bool is_log)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_panels; i++) {
        struct plot_panel *p = &f->panels[i];
        if (!plot_find_ranges(p, true)) {
            f->empty[f->n_empty++] = p->name;
            free_panel(p);
        } else if (n++ < i) {
            f->panels[n - 1] = *p;
            p->n_series = 0;
        }
    }
    f->n_panels = n;
    if (n == 0)
        return err_set(CZ_INVALID, 0, "%s: it contains no numbers to plot yet%s", first->path,
                       is_log ? " (--log-y: only positive numbers can be plotted)" : "");
    /* Panels share their x axis, so that they can be compared. */
    for (size_t i = 1; i < f->n_panels; i++) {
        stretch(&f->panels[0].x, f->panels[i].x.lo);
        stretch(&f->panels[0].x, f->panels[i].x.hi);
    }
    for (size_t i = 1; i < f->n_panels; i++) f->panels[i].x = f->panels[0].x;
    for (size_t i = 0; i < n; i++) describe_best(f, &f->panels[i]);
    return CZ_OK;
}

cz_status plot_build(const struct plot_table *tables, size_t n_tables, const struct plot_options *o,
                     struct plot_figure *out)
{
    memset(out, 0, sizeof *out);
    out->title = o->title;
    TRY(label_files(out, tables, n_tables));
    if (o->ys)
        TRY(add_named_panels(out, o->ys, tables, n_tables));
    else
        for (size_t i = 0; i < n_tables; i++) TRY(add_default_panels(out, &tables[i]));
    for (size_t i = 0; i < out->n_panels; i++) {
        out->panels[i].x.is_whole = strcmp(o->x, "step") == 0;
        out->panels[i].y.is_log = o->log_y && !plot_is_score(out->panels[i].name);
    }
    double unit = x_unit(out, tables, n_tables, o);
    for (size_t i = 0; i < n_tables; i++) TRY(add_file(out, &tables[i], i, unit, o));
    return finish_panels(out, &tables[0], o->log_y);
}

void plot_figure_free(struct plot_figure *f)
{
    for (size_t i = 0; i < PLOT_PANELS_MAX; i++) free_panel(&f->panels[i]);
    for (size_t i = 0; i < f->n_files; i++) free(f->labels[i]);
    memset(f, 0, sizeof *f);
}
