/* Inside the plots: what figures of curves and of matrices share of SVG. */
#ifndef CZ_TOOLS_CZERO_PLOT_PLOT_SVG_IMPL_H
#define CZ_TOOLS_CZERO_PLOT_PLOT_SVG_IMPL_H

#include <stdio.h>

#define PLOT_PAD    16.0
#define PLOT_LETTER 6.9 /* advance of a column of 12 px text, on the safe side */

/* The root element, the style sheet and the paper. title: NULL for none. "</svg>" ends it. */
void plot_svg_begin(FILE *out, double width, double height, const char *title);

/* Text as XML allows it, cut with "…" to so many columns. */
void plot_svg_put(FILE *out, const char *text, size_t columns_max);
void plot_svg_text(FILE *out, double x, double y, const char *class, const char *text,
                   size_t columns_max);

#endif
