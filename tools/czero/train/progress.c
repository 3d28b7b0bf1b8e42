/* What a training run shows per step: a line that is redrawn on a terminal, about 20 plain lines in
 * a log file, or a JSON object per step with --log-json. The time per step is a running mean,
 * because steps of one run differ (evaluation, saves, page faults). */
#include "tools/czero/train/progress.h"

#include "base/clock.h"
#include "base/printable.h"
#include "tools/czero/bar.h"
#include "tools/czero/tool.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_NBYTES = 512 };

/* The clock starts here; the first interval is the first step's. */
void progress_begin(struct progress *p, const struct progress_options *options)
{
    memset(p, 0, sizeof *p);
    p->options = *options;
    p->lr = options->lr;
    p->terminal = isatty(STDERR_FILENO) == 1;
    p->start_ns = p->last_ns = clock_now_ns();
}

static double steps_left_seconds(const struct progress *p, int64_t step)
{
    return p->seconds_recent * (double)(p->options.last_step - step);
}

/* Tokens for language models, samples for classifiers. */
static int64_t units_per_step(const struct progress *p)
{
    const struct progress_options *o = &p->options;
    return o->tokens_per_step > 0 ? o->tokens_per_step : o->samples_per_step;
}

/* Per second; of the first step alone at first. */
static double rate_of(const struct progress *p, int64_t per_step)
{
    const double seconds = p->seconds_recent > 0 ? p->seconds_recent : p->seconds_last;
    return (double)per_step / seconds;
}

/* A line whose figures come in the order of their worth, each whole or not at all. */
struct line {
    char text[LINE_NBYTES];
    size_t n, max; /* bytes so far; columns at most, where figures are ASCII */
};

static void add(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *l, const char *fmt, ...)
{
    char figure[96];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(figure, sizeof figure, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof figure || l->n + 2 + (size_t)n > l->max) return;
    l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s%s", l->n > 0 ? "  " : "",
                             figure);
}

/* The figures of a step, as many as fit. */
static void add_figures(const struct progress *p, const struct progress_step *s, struct line *l)
{
    const struct progress_options *o = &p->options;
    char text[32] = "-:--";
    if (p->seconds_recent > 0) bar_duration(steps_left_seconds(p, s->step), text, sizeof text);
    add(l, "%lld/%lld", (long long)s->step, (long long)o->last_step);
    add(l, "eta %s", text);
    add(l, "loss %.4f", s->loss);
    if (p->seconds_recent > 0) {
        bar_rate(rate_of(p, units_per_step(p)), text, sizeof text);
        add(l, "%s %s/s", text, o->tokens_per_step > 0 ? "tok" : "samples");
    }
    if (!isnan(s->accuracy)) add(l, "accuracy %.3f", s->accuracy);
    add(l, "lr %.2e", p->lr);
    if (o->n_epochs > 0) add(l, "epoch %.2f/%g", s->epoch, o->n_epochs);
    if (!isnan(s->grad_norm)) add(l, "norm %.3f", s->grad_norm);
    if (o->show_scale) add(l, "scale %g  skipped %lld", s->loss_scale, (long long)s->skipped);
    if (s->swaps && s->step_s > 0)
        add(l, "disk %.2f+%.2f GB/s, %.0f%% exposed", s->swap_read_nbytes / s->step_s * 1e-9,
            s->swap_written_nbytes / s->step_s * 1e-9, 100 * s->swap_waited_s / s->step_s);
}

/* The bar has its share of the line before the figures that matter least. */
static void draw_terminal(struct progress *p, const struct progress_step *s)
{
    enum { BAR_WIDTH_LEAST = 10, AROUND_BAR = 3 };
    const int columns = bar_columns() - 1;
    const int space = columns - BAR_WIDTH_LEAST - AROUND_BAR;
    struct line figures = {.max = space > 0 ? (size_t)space : 0};
    char bar[BAR_WIDTH_MAX + 4];
    if (figures.max > LINE_NBYTES - 1) figures.max = LINE_NBYTES - 1;
    add_figures(p, s, &figures);
    bar_draw(bar, columns - (int)figures.n - AROUND_BAR,
             (double)s->step / (double)p->options.last_step);
    /* Carriage return, text, erase to the end of the line. */
    printable_print(stderr, "\r%s%s\033[K", bar, figures.text);
    fflush(stderr);
    p->line_open = true;
}

static void print_json_number(const char *key, double value)
{
    printable_print(stdout, ", \"%s\": ", key);
    tool_put_json_number(stdout, value);
}

/* Standard output, one line, flushed: made to be piped. */
static void print_json(const struct progress *p, const struct progress_step *s)
{
    printf("{\"step\": %lld, \"steps\": %lld", (long long)s->step, (long long)p->options.last_step);
    print_json_number("loss", s->loss);
    print_json_number("lr_next", s->lr_next);
    print_json_number("grad_norm", s->grad_norm);
    print_json_number("loss_scale", s->loss_scale);
    printf(", \"skipped\": %lld, \"samples\": %lld", (long long)s->skipped, (long long)s->samples);
    print_json_number("elapsed_s", (double)(p->last_ns - p->start_ns) * 1e-9);
    if (p->options.tokens_per_step > 0)
        print_json_number("tokens_per_s", rate_of(p, p->options.tokens_per_step));
    else
        print_json_number("samples_per_s", rate_of(p, p->options.samples_per_step));
    if (!isnan(s->accuracy)) print_json_number("accuracy", s->accuracy);
    printf(", \"sent_bytes\": %lld", (long long)s->sent_nbytes);
    if (s->swaps) {
        print_json_number("swap_read_bytes", s->swap_read_nbytes);
        print_json_number("swap_written_bytes", s->swap_written_nbytes);
        print_json_number("swap_exposed_s", s->swap_waited_s);
        print_json_number("step_s", s->step_s);
    }
    printf("}\n");
    fflush(stdout);
}

/* First and last step always, about 20 between them unless an interval is given. */
static bool plain_line_due(const struct progress *p, int64_t step)
{
    int64_t total = p->options.last_step - p->options.first_step;
    int64_t interval = p->options.plain_interval;
    if (interval <= 0) interval = total > 20 ? total / 20 : 1;
    return step % interval == 0 || step == p->options.first_step + 1 ||
           step == p->options.last_step;
}

static void show(struct progress *p, const struct progress_step *step)
{
    const int64_t redraw_ns = 50 * 1000 * 1000; /* 20 times a second is as fast as people read */
    if (!p->terminal) {
        if (!plain_line_due(p, step->step)) return;
        struct line figures = {.max = LINE_NBYTES - 1};
        add_figures(p, step, &figures);
        printable_print(stderr, "step %s\n", figures.text);
        return;
    }
    bool last = step->step == p->options.last_step;
    if (!last && p->n_steps > 1 && p->last_ns - p->last_draw_ns < redraw_ns) return;
    p->last_draw_ns = p->last_ns;
    draw_terminal(p, step);
}

/* The running mean starts at the second step: the first also pays for page faults and the creation
 * of primitives. */
void progress_update(struct progress *p, const struct progress_step *step)
{
    /* The first step also pays for page faults and primitive creation, so it starts the average
     * only when there is no second one. */
    int64_t now = clock_now_ns();
    double seconds = (double)(now - p->last_ns) * 1e-9;
    p->last_ns = now;
    p->n_steps++;
    p->seconds_last = seconds;
    /* Means over all steps at first, later over about the last twenty. */
    if (p->n_steps > 1)
        p->seconds_recent +=
            fmax(0.05, 1.0 / (double)(p->n_steps - 1)) * (seconds - p->seconds_recent);
    if (p->options.log_json) print_json(p, step);
    if (!p->options.quiet) show(p, step);
    p->lr = step->lr_next;
}

/* Time that a save or evaluation takes does not count as a step's. */
void progress_skip(struct progress *p)
{
    p->last_ns = clock_now_ns();
}

void progress_end(struct progress *p)
{
    if (p->line_open) fputc('\n', stderr);
    p->line_open = false;
}
