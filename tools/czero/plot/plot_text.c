/* Figures as text: curves in braille dots (two by four a character), or in ASCII marks. */
#include "base/printable.h"
#include "base/text/text_width.h"
#include "tools/czero/plot/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cell {
    unsigned char dots; /* of braille */
    char mark;          /* 0: none; '@' stands for the best one */
    signed char colour; /* -1: none */
};

struct canvas {
    FILE *out;
    const struct plot_text_style *style;
    bool braille;
    int width, height; /* characters */
    struct cell *cells;
};

static const char marks[PLOT_FILES_MAX + 1] = "*+x#%&=~";

static int colour_of(const struct plot_figure *f, const struct plot_series *s)
{
    return f->n_files > 1 ? (int)s->file_idx % PLOT_FILES_MAX : s->is_eval ? 1 : 0;
}

/* ---- drawing into cells --------------------------------------------------------------------- */

/* Dots of the canvas: as many as there are characters without braille. */
static int dots_x(const struct canvas *c)
{
    return c->braille ? 2 * c->width : c->width;
}

static int dots_y(const struct canvas *c)
{
    return c->braille ? 4 * c->height : c->height;
}

static void set_dot(struct canvas *c, int x, int y, int colour, char mark)
{
    static const unsigned char bits[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (x < 0 || y < 0 || x >= dots_x(c) || y >= dots_y(c)) return;
    int column = c->braille ? x / 2 : x, row = c->braille ? y / 4 : y;
    struct cell *cell = &c->cells[row * c->width + column];
    if (c->braille)
        cell->dots |= bits[y % 4][x % 2];
    else
        cell->mark = mark;
    cell->colour = (signed char)colour;
}

/* One dot per step of the longer side: no gaps. */
static void draw_segment(struct canvas *c, int x0, int y0, int x1, int y1, int colour, char mark)
{
    int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int i = 0; i <= steps; i++) {
        double part = steps > 0 ? (double)i / steps : 0;
        set_dot(c, (int)lround(x0 + part * (x1 - x0)), (int)lround(y0 + part * (y1 - y0)), colour,
                mark);
    }
}

/* Places outside of 0 to 1 go to the edge. */
static int dot_of(double place, int n)
{
    int dot = (int)lround(place * (n - 1));
    return dot < 0 ? 0 : dot >= n ? n - 1 : dot;
}

static void draw_line(struct canvas *c, const struct plot_panel *p, const struct plot_series *s,
                      const double *y, int colour, char mark)
{
    struct plot_walk walk = {s->x, y, s->n, 0, &p->x, dots_x(c)};
    size_t idx[4], n;
    bool is_gap;
    int x0 = 0, y0 = 0;
    while ((n = plot_walk_next(&walk, idx, &is_gap)) > 0)
        for (size_t i = 0; i < n; i++) {
            int x1 = dot_of(plot_place(&p->x, s->x[idx[i]]), dots_x(c));
            int y1 = dot_of(1 - plot_place(&p->y, y[idx[i]]), dots_y(c));
            bool alone = i == 0 && is_gap;
            draw_segment(c, alone ? x1 : x0, alone ? y1 : y0, x1, y1, colour, mark);
            x0 = x1;
            y0 = y1;
        }
}

/* Points of eval stand out: a mark in place of dots. */
static void draw_points(struct canvas *c, const struct plot_panel *p, const struct plot_series *s,
                        int colour, char mark)
{
    for (size_t i = 0; i < s->n; i++) {
        if (isnan(s->y[i])) continue;
        int x = dot_of(plot_place(&p->x, s->x[i]), c->width);
        int y = dot_of(1 - plot_place(&p->y, s->y[i]), c->height);
        struct cell *cell = &c->cells[y * c->width + x];
        if (cell->mark != '@') cell->mark = i == s->best_idx ? '@' : mark;
        cell->colour = (signed char)colour;
    }
}

/* Without colours, a letter tells the file of a point. */
static bool has_letters(const struct plot_figure *f, const struct plot_text_style *style)
{
    return f->n_files > 1 && !style->coloured;
}

/* ---- printing ------------------------------------------------------------------------------- */

static const char *const ansi[PLOT_FILES_MAX] = {"34", "33", "32", "31", "35", "36", "93", "95"};

static void print_cell(const struct canvas *c, const struct cell *cell)
{
    bool coloured = c->style->coloured && cell->colour >= 0 && (cell->mark || cell->dots);
    if (coloured) printable_print(c->out, "\033[%sm", ansi[cell->colour]);
    if (cell->mark == '@' && c->style->utf8)
        fprintf(c->out, "◉");
    else if (cell->mark == 'o' && c->style->utf8)
        fprintf(c->out, "●");
    else if (cell->mark)
        putc(cell->mark, c->out);
    else if (cell->dots) /* U+2800 and the bits */
        fprintf(c->out, "\xE2%c%c", 0xA0 | cell->dots >> 6, 0x80 | (cell->dots & 0x3F));
    else
        putc(' ', c->out);
    if (coloured) fprintf(c->out, "\033[0m");
}

static int last_used(const struct canvas *c, int row)
{
    int last = c->width;
    while (last > 0 && !c->cells[row * c->width + last - 1].mark &&
           !c->cells[row * c->width + last - 1].dots)
        last--;
    return last;
}

static void print_rows(const struct canvas *c, const struct plot_panel *p,
                       const struct plot_ticks *ys, size_t label_width)
{
    for (int row = 0; row < c->height; row++) {
        const char *label = "";
        for (size_t i = 0; i < ys->n; i++)
            if (dot_of(1 - plot_place(&p->y, ys->at[i]), c->height) == row) label = ys->text[i];
        text_print_right(c->out, label, label_width);
        if (c->style->utf8)
            fprintf(c->out, *label ? " ┤" : " │");
        else
            fprintf(c->out, *label ? " +" : " |");
        for (int x = 0; x < last_used(c, row); x++) print_cell(c, &c->cells[row * c->width + x]);
        putc('\n', c->out);
    }
}

/* Labels under their ticks where there is space for them. */
static void print_x_axis(const struct canvas *c, const struct plot_figure *f,
                         const struct plot_panel *p, size_t label_width)
{
    struct plot_ticks xs;
    int at = 0;
    plot_ticks_make(&p->x, c->width / 12, &xs);
    text_print_right(c->out, "", label_width);
    fprintf(c->out, c->style->utf8 ? " └" : " +");
    for (int x = 0; x < c->width; x++) {
        bool is_tick = false;
        for (size_t i = 0; i < xs.n; i++)
            is_tick = is_tick || dot_of(plot_place(&p->x, xs.at[i]), c->width) == x;
        if (c->style->utf8)
            fprintf(c->out, is_tick ? "┬" : "─");
        else
            putc(is_tick ? '+' : '-', c->out);
    }
    putc('\n', c->out);
    text_print_right(c->out, "", label_width + 2);
    for (size_t i = 0; i < xs.n; i++) {
        int len = (int)strlen(xs.text[i]);
        int begin = dot_of(plot_place(&p->x, xs.at[i]), c->width) - len / 2;
        if (begin < 0) begin = 0;
        if (begin + len > c->width) begin = c->width - len;
        if (begin < at + (at > 0)) continue;
        printable_print(c->out, "%*s%s", begin - at, "", xs.text[i]);
        at = begin + len;
    }
    int n_name = (int)strlen(f->x_label);
    if (at + 2 + n_name <= c->width)
        printable_print(c->out, "%*s%s\n", c->width - at - n_name, "", f->x_label);
    else
        printable_print(c->out, "\n%*s%s\n", (int)label_width + 2 + c->width - n_name, "",
                        f->x_label);
}

static cz_status draw_panel(const struct plot_figure *f, struct plot_panel *p, FILE *out,
                            const struct plot_text_style *style)
{
    struct plot_ticks ys;
    size_t label_width = 1;
    bool told_apart = f->n_files == 1 || style->coloured;
    struct canvas c = {.out = out, .style = style, .height = style->height};
    c.braille = style->utf8 && told_apart;
    struct plot_range x = p->x; /* is all panels' */
    plot_find_ranges(p, false);
    p->x = x;
    plot_ticks_make(&p->y, style->height * 2 / 5, &ys);
    for (size_t i = 0; i < ys.n; i++)
        if (strlen(ys.text[i]) > label_width) label_width = strlen(ys.text[i]);
    c.width = style->width - (int)label_width - 3;
    if (c.width < 10) c.width = 10;
    c.cells = calloc((size_t)c.width * (size_t)c.height, sizeof *c.cells);
    if (!c.cells) return err_set(CZ_NOMEM, 0, "no memory for the figure");
    for (int i = 0; i < c.width * c.height; i++) c.cells[i].colour = -1;
    /* Evaluations are drawn last, so that they stay visible. */
    for (int eval = 0; eval < 2; eval++)
        for (size_t k = 0; k < p->n_series; k++) {
            const struct plot_series *s = &p->series[k];
            int colour = colour_of(f, s);
            char mark = f->n_files > 1 ? marks[colour] : eval ? 'o' : '*';
            if (s->n == 0 || s->is_eval != (eval == 1)) continue;
            if (s->is_eval || s->n < 3)
                draw_points(&c, p, s, colour, has_letters(f, c.style) ? (char)('A' + colour) : 'o');
            else
                draw_line(&c, p, s, s->smooth ? s->smooth : s->y, colour, mark);
        }
    text_print_left(out, p->name, 0);
    if (*p->best) {
        fprintf(out, "   ");
        text_print_left(out, p->best, 0);
    }
    putc('\n', out);
    print_rows(&c, p, &ys, label_width);
    print_x_axis(&c, f, p, label_width);
    free(c.cells);
    return CZ_OK;
}

static void put_key(FILE *out, const struct plot_text_style *style, int colour, const char *mark,
                    const char *text)
{
    if (style->coloured) printable_print(out, "\033[%sm", ansi[colour]);
    printable_print(out, "%s", mark);
    if (style->coloured) fprintf(out, "\033[0m");
    putc(' ', out);
    text_print_left(out, text, 0);
}

static void print_legend(const struct plot_figure *f, FILE *out,
                         const struct plot_text_style *style)
{
    const char *line = style->utf8 ? "⠒⠒" : "*", *point = style->utf8 ? "●" : "o";
    bool both = f->has_train && f->has_eval, letters = has_letters(f, style);
    for (size_t i = 0; f->n_files > 1 && i < f->n_files; i++) {
        char mark[2] = {marks[i], '\0'};
        fprintf(out, i > 0 ? "   " : "");
        put_key(out, style, (int)i, style->utf8 && !letters ? line : mark, f->labels[i]);
        if (letters && f->has_eval) fprintf(out, " (%c: eval)", 'A' + (int)i);
    }
    if (f->n_files == 1 && both) {
        put_key(out, style, 0, line, "train   ");
        put_key(out, style, 1, point, "eval");
    }
    if (f->n_files > 1 && both && !letters) printable_print(out, "   %s eval", point);
    bool any = f->n_files > 1 || both;
    if (f->has_eval && any) printable_print(out, "   %s best", style->utf8 ? "◉" : "@");
    if (any) putc('\n', out);
}

cz_status plot_draw_text(const struct plot_figure *f, FILE *out,
                         const struct plot_text_style *style)
{
    if (f->title) {
        text_print_left(out, f->title, 0);
        putc('\n', out);
    }
    print_legend(f, out, style);
    for (size_t i = 0; i < f->n_panels; i++) {
        putc('\n', out);
        struct plot_panel panel = f->panels[i];
        TRY(draw_panel(f, &panel, out, style));
    }
    return CZ_OK;
}
