/* Figures as SVG: plain shapes and one style sheet, light or dark as the page around it. Text is
 * measured by assuming a width per character, because SVG without scripts cannot ask; space is
 * therefore reckoned generously. */
#include "base/printable.h"
#include "base/utf8.h"
#include "base/text/text_width.h"
#include "tools/czero/plot/plot.h"
#include "tools/czero/plot/plot_svg_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAD              PLOT_PAD
#define LETTER           PLOT_LETTER
#define LEGEND_HEIGHT    20.0
#define PANEL_HEIGHT     338.0 /* with its heading and axis */
#define PANEL_HEIGHT_MIN 150.0
#define TITLE_HEIGHT     26.0
#define PANEL_FOOT       50.0 /* labels of the x axis, and air */
#define SWATCH           26.0 /* of a legend's entry, with the space behind it */

struct svg {
    FILE *out;
    const struct plot_figure *f;
    double width, height;
};

struct box {
    double x, y, width, height;
};

/* ---- text ----------------------------------------------------------------------------------- */

/* What XML allows of UTF-8; all control characters, which it does not, are escaped. */
void plot_svg_put(FILE *out, const char *text, size_t columns_max)
{
    char escape[PRINTABLE_NBYTES];
    size_t width, len, columns = 0;
    const bool cut = text_width(text) > columns_max;
    for (; *text; text += len) {
        len = text_char(text, &width, escape);
        columns += width;
        if (cut && columns + 1 > columns_max) break;
        if (escape[0])
            fputs(escape, out);
        else if (*text == '<')
            fprintf(out, "&lt;");
        else if (*text == '>')
            fprintf(out, "&gt;");
        else if (*text == '&')
            fprintf(out, "&amp;");
        else if (*text == '"')
            fprintf(out, "&quot;");
        else if (len == 3 && memcmp(text, "\xEF\xBF\xBE", 2) == 0 && (text[2] & 0xBE) == 0xBE)
            putc('?', out); /* U+FFFE, U+FFFF */
        else
            fwrite(text, 1, len, out);
    }
    if (cut) fprintf(out, "…");
}

void plot_svg_text(FILE *out, double x, double y, const char *class, const char *text,
                   size_t columns_max)
{
    printable_print(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    plot_svg_put(out, text, columns_max);
    fprintf(out, "</text>\n");
}

static void text_at(const struct svg *s, double x, double y, const char *class, const char *text)
{
    plot_svg_text(s->out, x, y, class, text, SIZE_MAX / 2);
}

/* One style sheet with the page's colour scheme: no attributes on a hundred thousand points. */
void plot_svg_begin(FILE *out, double width, double height, const char *title)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
            width, height, width, height);
    if (title) {
        fprintf(out, "<title>");
        plot_svg_put(out, title, SIZE_MAX / 2);
        fprintf(out, "</title>\n");
    }
    fprintf(out, "<style>\n"
                 "svg { --paper: #ffffff; --ink: #24292f; --soft: #5b636d; --grid: #e4e7eb; }\n"
                 "@media (prefers-color-scheme: dark) {\n"
                 "  svg { --paper: #14181d; --ink: #e3e7ec; --soft: #9aa4af; --grid: #2c333b; }\n"
                 "}\n"
                 "text { font: 12px system-ui, -apple-system, \"Segoe UI\", \"Noto Sans\", "
                 "\"Noto Sans CJK SC\", sans-serif; fill: #24292f; fill: var(--ink); }\n"
                 ".title { font-size: 16px; font-weight: 600; }\n"
                 ".name { font-size: 13px; font-weight: 600; }\n"
                 ".soft, .tick, .xtick, .xname { fill: #5b636d; fill: var(--soft); }\n"
                 ".tick, .best { text-anchor: end; }\n"
                 ".xtick, .xname { text-anchor: middle; }\n"
                 ".paper { fill: #ffffff; fill: var(--paper); }\n"
                 ".grid { stroke: #e4e7eb; stroke: var(--grid); }\n"
                 ".axis { stroke: #5b636d; stroke: var(--soft); }\n"
                 "path { fill: none; stroke-linejoin: round; stroke-linecap: round; }\n"
                 ".raw { stroke-width: 1; opacity: .3; }\n"
                 ".line { stroke-width: 1.8; }\n"
                 ".eval { stroke-width: 1.4; stroke-dasharray: 5 3; stroke-linecap: butt; }\n"
                 ".ring { fill: none; stroke-width: 2; }\n"
                 ".cell { fill: #2f7ed8; stroke: none; }\n"
                 ".count { text-anchor: middle; }\n"
                 ".light { fill: #ffffff; }\n");
    /* Middle tones: readable on white and on black. */
    static const char *const colours[PLOT_FILES_MAX] = {"#2f7ed8", "#e8710a", "#25a060", "#d6455d",
                                                        "#9563d4", "#0fa3b1", "#c27c0e", "#d457a6"};
    for (int i = 0; i < PLOT_FILES_MAX; i++)
        printable_print(
            out, ".c%d { stroke: %s; } circle.c%d { fill: %s; } circle.ring.c%d { fill: none; }\n",
            i, colours[i], i, colours[i], i);
    fprintf(out, "</style>\n<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n");
}

/* Files have colours; of one file, train and eval. */
static int colour_of(const struct plot_figure *f, const struct plot_series *s)
{
    return f->n_files > 1 ? (int)s->file_idx % PLOT_FILES_MAX : s->is_eval ? 1 : 0;
}

/* ---- legend --------------------------------------------------------------------------------- */

struct entry {
    const char *text;
    int colour; /* -1: a style, not a file */
    bool is_eval;
};

/* One file needs no entry but for train and eval. */
static size_t legend_entries(const struct plot_figure *f, struct entry out[PLOT_FILES_MAX + 2])
{
    size_t n = 0;
    bool many = f->n_files > 1;
    for (size_t i = 0; many && i < f->n_files; i++)
        out[n++] = (struct entry){f->labels[i], (int)i, false};
    if (f->has_eval && f->has_train) {
        out[n++] = (struct entry){"train", many ? -1 : 0, false};
        out[n++] = (struct entry){"eval", many ? -1 : 1, true};
    }
    return n;
}

static double entry_width(const struct entry *e, double room)
{
    double width = SWATCH + (double)text_width(e->text) * LETTER + 18;
    return width < room ? width : room;
}

static void draw_swatch(const struct svg *s, const struct entry *e, double x, double y)
{
    char colour[16] = "axis";
    if (e->colour >= 0) snprintf(colour, sizeof colour, "c%d", e->colour);
    printable_print(s->out, "<path class=\"%s %s\" d=\"M%.1f %.1fh20\"/>\n", colour,
                    e->is_eval ? "eval" : "line", x, y);
    if (!e->is_eval) return;
    if (e->colour >= 0)
        printable_print(s->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", colour,
                        x + 10, y);
    else
        fprintf(s->out, "<circle class=\"axis paper\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", x + 10,
                y);
}

/* Rows of entries from y on; only counted when !draw. Returns its height. */
static double legend(const struct svg *s, double y, bool draw)
{
    struct entry entries[PLOT_FILES_MAX + 2];
    size_t n = legend_entries(s->f, entries);
    double room = s->width - 2 * PAD, x = PAD, top = y;
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) {
        double width = entry_width(&entries[i], room);
        if (x > PAD && x + width > s->width - PAD) {
            x = PAD;
            y += LEGEND_HEIGHT;
        }
        if (draw) {
            draw_swatch(s, &entries[i], x, y + 8);
            fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\">", x + SWATCH, y + 12);
            plot_svg_put(s->out, entries[i].text, (size_t)((width - SWATCH) / LETTER));
            fprintf(s->out, "</text>\n");
        }
        x += width;
    }
    return y + LEGEND_HEIGHT + 4 - top;
}

/* ---- panels --------------------------------------------------------------------------------- */

static double place_x(const struct box *b, const struct plot_panel *p, double x)
{
    return b->x + plot_place(&p->x, x) * b->width;
}

static double place_y(const struct box *b, const struct plot_panel *p, double y)
{
    return b->y + (1 - plot_place(&p->y, y)) * b->height;
}

static void draw_axes(const struct svg *s, const struct plot_panel *p, const struct box *b,
                      const struct plot_ticks *ys)
{
    struct plot_ticks xs;
    plot_ticks_make(&p->x, (int)(b->width / 80), &xs);
    for (size_t i = 0; i < ys->n; i++) {
        double y = place_y(b, p, ys->at[i]);
        fprintf(s->out, "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/>\n", b->x, y, b->width);
        text_at(s, b->x - 7, y + 4, "tick", ys->text[i]);
    }
    for (size_t i = 0; i < xs.n; i++) {
        double x = place_x(b, p, xs.at[i]);
        fprintf(s->out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>\n", x, b->y + b->height);
        text_at(s, x, b->y + b->height + 17, "xtick", xs.text[i]);
    }
    fprintf(s->out, "<path class=\"axis\" d=\"M%.1f %.1fh%.1f\"/>\n", b->x, b->y + b->height,
            b->width);
    text_at(s, b->x + b->width / 2, b->y + b->height + 34, "xname", s->f->x_label);
}

/* A path in steps of a tenth of a pixel, relative to the point before: half as long as absolute. */
struct pen {
    FILE *out;
    long x, y;
};

/* In tenths of a pixel, as short as possible: a path of many points is most of the file. */
static void put_tenths(FILE *out, long tenths)
{
    const char *sign = tenths < 0 ? "-" : "";
    if (tenths % 10 == 0)
        fprintf(out, "%ld", tenths / 10);
    else
        printable_print(out, "%s%ld.%ld", sign, labs(tenths) / 10, labs(tenths) % 10);
}

/* Relative to the rounded point before, so that rounding errors do not accumulate along a line. */
static void pen_to(struct pen *pen, double x, double y, bool is_move)
{
    long to_x = lround(x * 10), to_y = lround(y * 10);
    putc(is_move ? 'M' : 'l', pen->out);
    put_tenths(pen->out, is_move ? to_x : to_x - pen->x);
    putc(' ', pen->out);
    put_tenths(pen->out, is_move ? to_y : to_y - pen->y);
    if (is_move) fprintf(pen->out, "h0"); /* a point that stays alone shows as a dot */
    pen->x = to_x;
    pen->y = to_y;
}

static void draw_line(const struct svg *s, const struct plot_panel *p, const struct box *b,
                      const struct plot_series *series, const double *y, const char *class)
{
    struct plot_walk walk = {series->x, y, series->n, 0, &p->x, b->width};
    struct pen pen = {.out = s->out};
    size_t idx[4], n;
    bool is_gap;
    printable_print(s->out, "<path class=\"c%d %s\" d=\"", colour_of(s->f, series), class);
    while ((n = plot_walk_next(&walk, idx, &is_gap)) > 0)
        for (size_t i = 0; i < n; i++)
            pen_to(&pen, place_x(b, p, series->x[idx[i]]), place_y(b, p, y[idx[i]]),
                   i == 0 && is_gap);
    fprintf(s->out, "\"/>\n");
}

/* Points alone between gaps have no line to be seen by; of many points only a few per column are
 * drawn. */
static void draw_points(const struct svg *s, const struct plot_panel *p, const struct box *b,
                        const struct plot_series *series)
{
    struct plot_walk walk = {series->x, series->y, series->n, 0, &p->x, b->width / 6};
    double radius = (double)series->n > b->width / 8 ? 2 : 3;
    size_t idx[4], n;
    bool is_gap;
    while ((n = plot_walk_next(&walk, idx, &is_gap)) > 0)
        for (size_t i = 0; i < n; i++)
            fprintf(s->out, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\"/>\n",
                    colour_of(s->f, series), place_x(b, p, series->x[idx[i]]),
                    place_y(b, p, series->y[idx[i]]), radius);
}

static void draw_best(const struct svg *s, const struct plot_panel *p, const struct box *b,
                      const struct plot_series *series)
{
    if (series->best_idx == SIZE_MAX) return;
    fprintf(s->out, "<circle class=\"ring c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"6.5\"/>\n",
            colour_of(s->f, series), place_x(b, p, series->x[series->best_idx]),
            place_y(b, p, series->y[series->best_idx]));
}

static void draw_series(const struct svg *s, const struct plot_panel *p, const struct box *b,
                        const struct plot_series *series)
{
    bool few = series->n < 30; /* a line through so few says less than they do */
    if (series->n == 0) return;
    if (series->is_eval)
        draw_line(s, p, b, series, series->y, "eval");
    else if (series->smooth) {
        draw_line(s, p, b, series, series->y, "raw");
        draw_line(s, p, b, series, series->smooth, "line");
    } else
        draw_line(s, p, b, series, series->y, "line");
    if (series->is_eval || few) draw_points(s, p, b, series);
    draw_best(s, p, b, series);
}

/* The name, and what was best where there is space for it. */
static void draw_heading(const struct svg *s, const struct plot_panel *p, double x, double y,
                         double width)
{
    size_t room = (size_t)(width / LETTER), n_name = text_width(p->name) * 6 / 5 + 2;
    fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"name\">", x, y);
    plot_svg_put(s->out, p->name, room * 5 / 6);
    fprintf(s->out, "</text>\n");
    size_t n_best = text_width(p->best), least = n_best < 24 ? n_best : 24;
    if (n_best == 0 || n_name + least > room) return;
    fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"soft best\">", x + width, y);
    plot_svg_put(s->out, p->best, room - n_name);
    fprintf(s->out, "</text>\n");
}

static void draw_panel(const struct svg *s, const struct plot_panel *p, struct box cell)
{
    struct plot_ticks ys;
    size_t columns = 1;
    struct box b = {.y = cell.y + 26, .height = cell.height - 26 - PANEL_FOOT};
    plot_ticks_make(&p->y, b.height < 120 ? 3 : (int)(b.height / 40), &ys);
    for (size_t i = 0; i < ys.n; i++)
        if (text_width(ys.text[i]) > columns) columns = text_width(ys.text[i]);
    double left = (double)columns * LETTER + 9;
    b.x = cell.x + left;
    b.width = cell.width - left - 8; /* half of a last label */
    draw_heading(s, p, cell.x, cell.y + 12, b.x + b.width - cell.x);
    draw_axes(s, p, &b, &ys);
    /* Curves over points of other curves would hide them: eval last. */
    for (int eval = 0; eval < 2; eval++)
        for (size_t k = 0; k < p->n_series; k++)
            if (p->series[k].is_eval == (eval == 1)) draw_series(s, p, &b, &p->series[k]);
}

/* Panels side by side in pairs, where they are not too narrow for it. */
static double size_figure(struct svg *s, size_t *n_across, int width, int height)
{
    size_t n = s->f->n_panels;
    s->width = width > 0 ? width : n == 1 ? 640 : 960;
    *n_across = n > 1 && s->width >= 560 ? 2 : 1;
    double n_down = (double)((n + *n_across - 1) / *n_across);
    double above = PAD + (s->f->title ? TITLE_HEIGHT : 0) + legend(s, 0, false);
    double least = above + PANEL_HEIGHT_MIN * n_down;
    s->height = height > 0 ? height : above + PANEL_HEIGHT * n_down;
    if (s->height < least) s->height = least;
    return (s->height - above) / n_down;
}

void plot_draw_svg(const struct plot_figure *f, FILE *out, int width, int height)
{
    struct svg s = {.out = out, .f = f};
    size_t n_across;
    double cell_height = size_figure(&s, &n_across, width, height), gap = 28, y = PAD;
    double cell_width = (s.width - 2 * PAD - gap * (double)(n_across - 1)) / (double)n_across;
    plot_svg_begin(out, s.width, s.height, f->title);
    if (f->title) {
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"title\">", PAD, PAD + 13);
        plot_svg_put(out, f->title, (size_t)((s.width - 2 * PAD) / (LETTER * 1.4)));
        fprintf(out, "</text>\n");
        y += TITLE_HEIGHT;
    }
    y += legend(&s, y, true);
    for (size_t i = 0; i < f->n_panels; i++)
        draw_panel(&s, &f->panels[i],
                   (struct box){.x = PAD + (double)(i % n_across) * (cell_width + gap),
                                .y = y + (double)(i / n_across) * cell_height,
                                .width = cell_width,
                                .height = cell_height});
    fprintf(out, "</svg>\n");
}
