/* A progress bar for commands that read or write gigabytes. It writes to stderr, only on a
 * terminal, and never more than 20 times a second, so that it costs nothing measurable and pollutes
 * no log. */
#include "bar.h"

#include "base/clock.h"
#include "base/printable.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* 80 when the terminal does not say, as old programs assume. */
int bar_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

/* Plain ASCII: a terminal without UTF-8 shows it too. */
void bar_draw(char *text, int width, double fraction)
{
    *text = '\0';
    if (width < 4) return;
    if (width > BAR_WIDTH_MAX) width = BAR_WIDTH_MAX;
    int filled = (int)(fraction * width + 0.5);
    *text++ = '[';
    for (int i = 0; i < width; i++) *text++ = i < filled ? '#' : '.';
    strcpy(text, "] ");
}

/* A remaining time that is not finite (no rate yet) prints as 0:00. */
void bar_duration(double seconds, char *text, size_t nbytes)
{
    int64_t s = isfinite(seconds) && seconds >= 0 ? (int64_t)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(text, nbytes, "%lld:%02lld:%02lld", (long long)(s / 3600),
                 (long long)(s / 60 % 60), (long long)(s % 60));
    else
        snprintf(text, nbytes, "%lld:%02lld", (long long)(s / 60), (long long)(s % 60));
}

void bar_rate(double per_s, char *text, size_t nbytes)
{
    if (per_s >= 1e6)
        snprintf(text, nbytes, "%.2fM", per_s / 1e6);
    else if (per_s >= 1e4)
        snprintf(text, nbytes, "%.1fk", per_s / 1e3);
    else
        snprintf(text, nbytes, "%.0f", per_s);
}

void bar_begin(struct bar *bar, const char *what, bool quiet)
{
    memset(bar, 0, sizeof *bar);
    bar->what = what;
    bar->shown = !quiet && isatty(STDERR_FILENO) == 1;
    bar->start_ns = bar->last_draw_ns = clock_now_ns();
}

static void draw(struct bar *bar, double seconds, double done, double total)
{
    char marks[BAR_WIDTH_MAX + 4], eta[32], line[256];
    const double gb = 1e-9, rate = done / seconds;
    const int columns = bar_columns();
    bar_draw(marks, columns - 56, total > 0 ? done / total : 1);
    bar_duration(rate > 0 ? (total - done) / rate : 0, eta, sizeof eta);
    snprintf(line, sizeof line, "%s %s%.2f of %.2f GB  %.2f GB/s  eta %s", bar->what, marks,
             done * gb, total * gb, rate * gb, eta);
    printable_print(stderr, "\r%.*s\033[K", (int)utf8_fit(line, (size_t)columns - 1), line);
    fflush(stderr);
    bar->line_open = true;
}

/* Nothing is drawn in the first 0.3 s: a bar that appears and vanishes is noise. */
void bar_update(uint64_t done, uint64_t total, void *user)
{
    const int64_t first_ns = 300 * 1000 * 1000, redraw_ns = 50 * 1000 * 1000;
    struct bar *bar = user;
    if (!bar->shown) return;
    int64_t now = clock_now_ns();
    if (now - bar->last_draw_ns < (bar->line_open ? redraw_ns : first_ns)) return;
    bar->last_draw_ns = now;
    draw(bar, (double)(now - bar->start_ns) * 1e-9, (double)done, (double)total);
}

/* Clears the line, so that what is printed next starts at a clean one. */
void bar_end(struct bar *bar)
{
    if (bar->line_open) fputs("\r\033[K", stderr);
    bar->line_open = false;
}
