/* A confusion matrix as SVG: rows are true classes, columns predicted ones. A cell is as dark as
 * its share of its row, so that a rare class is read as well as a frequent one. */
#include "base/printable.h"
#include "base/text/text_width.h"
#include "tools/czero/plot/plot.h"
#include "tools/czero/plot/plot_svg_impl.h"

#include <math.h>
#include <string.h>

enum { LABEL_COLUMNS_MAX = 24 };

struct grid {
    FILE *out;
    const double *confusion;
    const char *const *labels;
    size_t n;
    double x, y, side; /* of the first cell */
};

/* Cells that hold a count of the largest class, or small ones without counts. */
static double choose_side(const double *confusion, size_t n)
{
    char text[32];
    size_t columns = 1;
    for (size_t i = 0; i < n * n; i++) {
        int length = snprintf(text, sizeof text, "%.0f", confusion[i]);
        if (length > 0 && (size_t)length > columns) columns = (size_t)length;
    }
    const double with_counts = fmax(44, (double)(columns + 1) * PLOT_LETTER);
    return n <= 24 ? with_counts : fmax(12, 960 / (double)n);
}

static double label_width(const char *const *labels, size_t n)
{
    size_t columns = 4;
    for (size_t i = 0; i < n; i++)
        if (text_width(labels[i]) > columns) columns = text_width(labels[i]);
    if (columns > LABEL_COLUMNS_MAX) columns = LABEL_COLUMNS_MAX;
    return (double)columns * PLOT_LETTER + 10;
}

static void draw_row(const struct grid *g, size_t row)
{
    const double *counts = g->confusion + row * g->n, y = g->y + (double)row * g->side;
    double sum = 0;
    for (size_t k = 0; k < g->n; k++) sum += counts[k];
    plot_svg_text(g->out, g->x - 8, y + g->side / 2 + 4, "tick", g->labels[row], LABEL_COLUMNS_MAX);
    for (size_t k = 0; k < g->n; k++) {
        const double share = sum > 0 ? counts[k] / sum : 0, x = g->x + (double)k * g->side;
        char text[32];
        fprintf(g->out,
                "<rect class=\"cell\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                "fill-opacity=\"%.3f\"/>\n",
                x + 1, y + 1, g->side - 2, g->side - 2, 0.06 + 0.9 * share);
        if (g->side < 40) continue;
        snprintf(text, sizeof text, "%.0f", counts[k]);
        plot_svg_text(g->out, x + g->side / 2, y + g->side / 2 + 4,
                      share > 0.5 ? "count light" : "count", text, 32);
    }
}

/* Turned, so that names are as long as they are. */
static void draw_column_name(const struct grid *g, size_t k)
{
    const double x = g->x + ((double)k + 0.5) * g->side + 4, y = g->y - 8;
    fprintf(g->out, "<g transform=\"rotate(-45 %.1f %.1f)\">", x, y);
    plot_svg_text(g->out, x, y, "soft", g->labels[k], LABEL_COLUMNS_MAX);
    fprintf(g->out, "</g>\n");
}

void plot_draw_matrix(const double *confusion, size_t n, const char *const *labels,
                      const char *title, FILE *out)
{
    const double title_height = title ? 26 : 0, labels_width = label_width(labels, n);
    struct grid g = {.out = out,
                     .confusion = confusion,
                     .labels = labels,
                     .n = n,
                     .side = choose_side(confusion, n)};
    double hits = 0, all = 0;
    char accuracy[96];
    g.x = PLOT_PAD + 20 + labels_width;
    g.y = PLOT_PAD + title_height + 24 + labels_width * 0.75;
    for (size_t i = 0; i < n * n; i++) {
        all += confusion[i];
        if (i % (n + 1) == 0) hits += confusion[i];
    }
    snprintf(accuracy, sizeof accuracy, "accuracy %.4f over %.0f examples",
             all > 0 ? hits / all : 0, all);
    /* two classes are narrower than the caption */
    const double caption = g.x + (double)strlen(accuracy) * PLOT_LETTER + PLOT_PAD;
    const double cells = g.x + g.side * (double)n + fmax(labels_width * 0.75, PLOT_PAD);
    const double width = fmax(cells, caption);
    const double height = g.y + g.side * (double)n + 36;
    plot_svg_begin(out, width, height, title);
    if (title) plot_svg_text(out, PLOT_PAD, PLOT_PAD + 13, "title", title, (size_t)(width / 10));
    plot_svg_text(out, g.x, PLOT_PAD + title_height + 12, "name", "predicted", 16);
    /* turned, in the middle of the rows */
    const double middle = g.y + g.side * (double)n / 2 + 2 * PLOT_LETTER;
    fprintf(out, "<g transform=\"rotate(-90 %.1f %.1f)\">", PLOT_PAD + 10, middle);
    plot_svg_text(out, PLOT_PAD + 10, middle, "name", "true", 16);
    fprintf(out, "</g>\n");
    for (size_t k = 0; k < n; k++) draw_column_name(&g, k);
    for (size_t k = 0; k < n; k++) draw_row(&g, k);
    plot_svg_text(out, g.x, height - 12, "soft", accuracy, 80);
    fprintf(out, "</svg>\n");
}
