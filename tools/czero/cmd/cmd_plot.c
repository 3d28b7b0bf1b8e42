/* czero plot: curves of training runs, as SVG, PNG or in the terminal. Nothing is written before
 * all files have been read and drawn: a damaged CSV must not cost an earlier plot. */
#include "base/printable.h"
#include "base/size.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/output.h"
#include "tools/czero/plot/plot.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct plot_command {
    struct arg_list files;
    const char *out, *x, *ys, *title;
    int64_t smooth, width, height;
    bool text, log_y;
};

#define FIELD(member) offsetof(struct plot_command, member)

static const struct arg_spec specs[] = {
    {"FILE.csv", ARG_WORDS, FIELD(files), NULL,
     "files of --metrics, --curve or csv_monitor; several files share the panels",
     .required = true},
    {"-o", ARG_STRING, FIELD(out), "FILE.svg|.png",
     "write a picture (default: draw in the terminal); PNG needs librsvg at run time"},
    {"--text", ARG_FLAG, FIELD(text), NULL, "also draw in the terminal"},
    {"--x", ARG_STRING, FIELD(x), "COLUMN", "x axis: step, epoch or seconds (default: step)"},
    {"--y", ARG_STRING, FIELD(ys), "COLUMN,…",
     "one panel per column (default: loss and accuracy, or the existing columns)"},
    {"--log-y", ARG_FLAG, FIELD(log_y), NULL,
     "use a logarithmic y axis, except for scores such as accuracy"},
    {"--smooth", ARG_INT, FIELD(smooth), "N",
     "average over N training rows (default: a twenty-fifth of the rows; 1: none)", .min = 1},
    {"--title", ARG_STRING, FIELD(title), "TEXT",
     "title above the panels (default: the run's name, from its folder or file; \"\": none)"},
    {"--width", ARG_INT, FIELD(width), "N", "width in pixels, or in text columns", .min = 20},
    {"--height", ARG_INT, FIELD(height), "N",
     "height in pixels (increased if panels need it), or in text lines per panel", .min = 5},
};

const struct arg_command plot_command = {
    .name = "czero plot",
    .summary = "Plot loss, accuracy and other curves of training runs.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "Lines show training (faint: every row; strong: the running mean), points show\n"
                "evaluations, and a ring marks the best one. You can plot a run that is still\n"
                "writing. Without -o the curves are drawn in the terminal: braille if the locale\n"
                "is UTF-8, else ASCII; NO_COLOR=1 disables colours. docs/metrics.md describes the\n"
                "files.",
    .examples = "  czero plot run1/metrics.csv run2/metrics.csv -o loss.svg",
};

#define SIDE_MAX 20000 /* pixels or columns: more is a slip of the finger */

static cz_status check(const struct plot_command *o)
{
    struct output_inputs inputs = {.n = 0};
    output_add_inputs(&inputs, &o->files);
    if (o->out) TRY(plot_check_name("-o", o->out));
    TRY(output_check_file("-o", o->out, OUTPUT_PICTURE, &inputs));
    if (o->files.n > PLOT_FILES_MAX)
        return err_set(CZ_INVALID, 0, "%zu files: a plot can distinguish at most %d", o->files.n,
                       PLOT_FILES_MAX);
    if (o->width > SIDE_MAX || o->height > SIDE_MAX)
        return err_set(CZ_INVALID, 0, "--width and --height: at most %d", SIDE_MAX);
    bool svg = o->out && !o->text;
    if (svg && ((o->width > 0 && o->width < 240) || (o->height > 0 && o->height < 200)))
        return err_set(CZ_INVALID, 0, "a picture needs --width 240 and --height 200, at least");
    return CZ_OK;
}

/* ---- the terminal --------------------------------------------------------------------------- */

/* Lines of each panel: all of them, with the title, what plot_draw_text() prints around each, and
 * the line on which the next command is typed, on one screen. */
static int panel_lines(size_t n_panels)
{
    enum { USUAL = 14, LEAST = 3, AROUND = 5, TITLE = 2 };
    const int lines = terminal_side(stdout, TERMINAL_LINES, 0), n = (int)n_panels;
    if (lines == 0 || n == 0) return USUAL;
    const int each = (lines - 1 - TITLE) / n - AROUND;
    return each > USUAL ? USUAL : each < LEAST ? LEAST : each;
}

/* ---- output --------------------------------------------------------------------------------- */

/* Drawn to memory first, so that a failure leaves no half-written file. */
static cz_status draw_svg(const struct plot_figure *f, const struct plot_command *o)
{
    char *text = NULL;
    size_t nbytes;
    FILE *stream = open_memstream(&text, &nbytes);
    if (!stream) return err_set(CZ_NOMEM, 0, "no memory for the figure");
    plot_draw_svg(f, stream, (int)o->width, (int)o->height);
    bool failed = ferror(stream) != 0;
    failed = fclose(stream) != 0 || failed;
    cz_status st = failed ? err_set(CZ_NOMEM, 0, "no memory for the figure")
                          : plot_write(o->out, text, nbytes);
    free(text);
    return st;
}

/* What a reader of the figure should know of its data. */
static void tell_oddities(const struct plot_table *t, const struct plot_figure *f)
{
    if (t->n_cut > 0)
        printable_print(stderr, "czero plot: %s: ignoring the incomplete last line\n", t->path);
    for (size_t i = 0; i < f->n_panels; i++) {
        const struct plot_column *c = plot_table_column(t, f->panels[i].name);
        if (c && c->n_not_finite > 0)
            printable_print(stderr, "czero plot: %s: %zu value%s of %s %s\n", t->path,
                            c->n_not_finite, plural(c->n_not_finite), c->name,
                            c->n_not_finite == 1 ? "is not finite and leaves a gap"
                                                 : "are not finite and leave gaps");
    }
}

/* Names of files that runs write by default, or that czero suggests: the folder tells more. */
static bool is_usual_name(const char *name, size_t n)
{
    static const char *const usual[] = {"metrics", "curve", "metrics.csv", "curve.csv"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(usual); i++)
        if (strlen(usual[i]) == n && strncmp(usual[i], name, n) == 0) return true;
    return false;
}

/* Of one run: "runs/bert/metrics.csv" is "bert", "bert.csv" is "bert". Several have labels. NULL:
 * none. */
static const char *name_run(const char *path, char *buf, size_t nbytes)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, ".csv") == 0) n -= 4;
    if (slash && is_usual_name(name, n)) {
        const char *begin = slash;
        while (begin > path && begin[-1] != '/') begin--;
        name = begin;
        n = (size_t)(slash - begin);
    }
    bool says_nothing = n == 0 || is_usual_name(name, n) || strncmp(name, "..", n) == 0;
    if (says_nothing || n >= nbytes) return NULL;
    snprintf(buf, nbytes, "%.*s", (int)n, name);
    return buf;
}

static cz_status draw(const struct plot_command *o, const struct plot_table *tables)
{
    char run[256];
    const char *title = o->title;
    if (!title && o->files.n == 1) title = name_run(o->files.items[0], run, sizeof run);
    const struct plot_options options = {.x = o->x ? o->x : "step",
                                         .ys = o->ys,
                                         .title = title && *title ? title : NULL,
                                         .log_y = o->log_y,
                                         .smooth = o->smooth};
    /* --width and --height are pixels for a file and characters for a terminal. */
    bool sizes_are_pixels = o->out != NULL;
    struct plot_text_style style = (struct plot_text_style){
        .width = o->width > 0 && !sizes_are_pixels ? (int)o->width
                                                   : terminal_side(stdout, TERMINAL_COLUMNS, 80),
        .utf8 = terminal_is_utf8(),
        .coloured = terminal_has_colours(stdout),
    };
    struct plot_figure *f = calloc(1, sizeof *f);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory for the figure");
    cz_status st = plot_build(tables, o->files.n, &options, f);
    for (size_t i = 0; st == CZ_OK && i < o->files.n; i++) tell_oddities(&tables[i], f);
    for (size_t i = 0; st == CZ_OK && i < f->n_empty; i++)
        printable_print(stderr, "czero plot: no numbers of %s yet\n", f->empty[i]);
    style.height = o->height > 0 && !sizes_are_pixels ? (int)o->height : panel_lines(f->n_panels);
    if (st == CZ_OK && o->out) st = draw_svg(f, o);
    if (st == CZ_OK && (!o->out || o->text)) st = plot_draw_text(f, stdout, &style);
    plot_figure_free(f);
    free(f);
    return st;
}

int cmd_plot(int argc, char **argv)
{
    struct plot_command o = {0};
    enum args_result parsed = args_parse(&plot_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    struct plot_table *tables = calloc(o.files.n, sizeof *tables);
    cz_status st = tables ? check(&o) : err_set(CZ_NOMEM, 0, "no memory for the files");
    for (size_t i = 0; st == CZ_OK && i < o.files.n; i++)
        st = plot_table_read(o.files.items[i], &tables[i]);
    if (st == CZ_OK) st = draw(&o, tables);
    int code = st == CZ_OK ? EXIT_OK : tool_fail();
    for (size_t i = 0; tables && i < o.files.n; i++) plot_table_free(&tables[i]);
    free(tables);
    return code;
}
