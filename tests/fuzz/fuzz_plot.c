/* Promises: any file is read as a table or refused with a sentence; what can be drawn becomes a
 * whole SVG without a number that is not finite, by steps and by another column, both axes. */
#include "tests/fuzz/fuzz.h"
#include "tools/czero/plot/plot_axis.c" /* the tools are no library */
#include "tools/czero/plot/plot_build.c"
#include "tools/czero/plot/plot_svg.c"
#include "tools/czero/plot/plot_table.c"

static void check_svg(const struct plot_figure *f)
{
    static const char end[] = "</svg>\n";
    char *text;
    size_t nbytes;
    FILE *stream = open_memstream(&text, &nbytes);
    FUZZ_CHECK(stream);
    plot_draw_svg(f, stream, 400, 0);
    FUZZ_CHECK(fclose(stream) == 0);
    FUZZ_CHECK(strncmp(text, "<svg ", 5) == 0);
    FUZZ_CHECK(nbytes > sizeof end && strcmp(text + nbytes - strlen(end), end) == 0);
    FUZZ_CHECK(!strstr(text, "=\"nan") && !strstr(text, "=\"-nan") && !strstr(text, "=\"inf"));
    free(text);
}

static void draw(const struct plot_table *t, const struct plot_options *options)
{
    static struct plot_figure f;
    cz_status st = plot_build(t, 1, options, &f);
    if (st == CZ_OK)
        check_svg(&f);
    else
        fuzz_refused(st);
    plot_figure_free(&f);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct plot_table t;
    cz_status st = plot_table_read(fuzz_file(data, nbytes), &t);
    if (st == CZ_OK) {
        draw(&t, &(struct plot_options){.x = "step"});
        draw(&t, &(struct plot_options){.x = "seconds", .log_y = true, .smooth = 3});
        draw(&t, &(struct plot_options){.x = t.columns[0].name, .ys = t.columns[1].name});
    } else
        fuzz_refused(st);
    plot_table_free(&t);
    return 0;
}
