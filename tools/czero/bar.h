/* Pieces of a progress line, and the bar of a long copy. */
#ifndef CZ_TOOLS_BAR_H
#define CZ_TOOLS_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAR_WIDTH_MAX 24

/* Columns of the terminal on stderr; 80 when it does not say. */
int bar_columns(void);

/* "[####....] " of `width` marks (0: ""), at most BAR_WIDTH_MAX; space for BAR_WIDTH_MAX + 4. */
void bar_draw(char *text, int width, double fraction);

/* "0:07", "1:02:03" */
void bar_duration(double seconds, char *text, size_t nbytes);

/* "350", "12.4k", "1.24M": three figures are enough for a rate. */
void bar_rate(double per_s, char *text, size_t nbytes);

/* A long job counted in bytes: on a terminal a line that is redrawn, elsewhere nothing. Short jobs
 * show nothing. Usable as the progress callback of checkpoint's calls:
 *   bar_begin() → bar_update(done, total, bar) … → bar_end() */
struct bar {
    const char *what; /* "reading" */
    bool shown, line_open;
    int64_t start_ns, last_draw_ns;
};

void bar_begin(struct bar *bar, const char *what, bool quiet);
void bar_update(uint64_t done, uint64_t total, void *bar);

/* Takes the line off the screen. Before anything else is printed; may be called twice. */
void bar_end(struct bar *bar);

#endif
