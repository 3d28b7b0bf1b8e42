/* Text of DeepSpeed's report lines. Scripts parse these lines, so labels, order and rounding are
 * copied from it; numbers print as Python's repr. */
#include "engine/report/report_text.h"

#include "base/host/proc.h"
#include "base/printable.h"
#include "formats/json/json_write.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0

void report_line_begin(struct report_line *line)
{
    line->len = 0;
    line->text[0] = '\0';
}

/* A line that is full loses its end: reports are no reason to fail. Names in it are escaped. */
void report_put(struct report_line *line, const char *fmt, ...)
{
    size_t room = sizeof line->text - line->len;
    va_list ap;
    va_start(ap, fmt);
    size_t n = printable_vformat(line->text + line->len, room, 0, fmt, ap);
    va_end(ap);
    line->len += n < room ? n : strlen(line->text + line->len);
}

void report_put_float(struct report_line *line, double value)
{
    char number[JSON_FLOAT_NBYTES];
    report_put(line, "%s", json_float_text(value, number));
}

/* Python's round(x, n): rounded as text, then the shortest form of the result. */
void report_put_rounded(struct report_line *line, double value, int digits)
{
    char number[64];
    snprintf(number, sizeof number, "%.*f", digits, value);
    report_put_float(line, strtod(number, NULL));
}

void report_put_times(struct report_line *line, const char *const *names, const int64_t *ns,
                      size_t n)
{
    report_put(line, "[Rank 0] time (ms)");
    for (size_t i = 0; i < n; i++) report_put(line, " | %s: %.2f", names[i], (double)ns[i] * 1e-6);
}

/* ---- progress -------------------------------------------------------------------------------- */

/* DeepSpeed prints a list if the config gave one, and a tuple for its default. */
static void put_momentum(struct report_line *line, const struct optim_group *g, bool cycled)
{
    if (!g->hyper.cls->has_betas) {
        report_put_float(line, g->hyper.momentum);
        return;
    }
    bool is_list = optim_hyper_given(&g->hyper, "betas") && !cycled;
    report_put(line, is_list ? "[" : "(");
    report_put_float(line, g->betas[0]);
    report_put(line, ", ");
    report_put_float(line, g->betas[1]);
    report_put(line, is_list ? "]" : ")");
}

void report_put_progress(struct report_line *line, int64_t step, int64_t skipped,
                         const struct optim_group *groups, size_t n_groups, bool cycled)
{
    report_put(line, "[Rank 0] step=%lld, skipped=%lld, lr=[", (long long)step, (long long)skipped);
    for (size_t g = 0; g < n_groups; g++) {
        if (g > 0) report_put(line, ", ");
        report_put_float(line, groups[g].lr);
    }
    report_put(line, "], mom=[");
    for (size_t g = 0; g < n_groups; g++) {
        if (g > 0) report_put(line, ", ");
        put_momentum(line, &groups[g], cycled);
    }
    report_put(line, "]");
}

/* ---- speed and memory ------------------------------------------------------------------------ */

static void put_gib(struct report_line *line, const char *before, size_t nbytes, const char *after)
{
    report_put(line, "%s", before);
    report_put_rounded(line, (double)nbytes / GIB, 2);
    report_put(line, "%s", after);
}

/* DeepSpeed calls memory units GB and means GiB. */
void report_put_speed(struct report_line *line, const struct report_speed *s)
{
    report_put(line, "epoch=0/micro_step=%lld/global_step=%lld, RunningAvgSamplesPerSec=",
               (long long)s->micro_step, (long long)s->global_step);
    report_put_float(line, s->average);
    report_put(line, ", CurrSamplesPerSec=");
    report_put_float(line, s->current);
    put_gib(line, ", MemAllocated=", s->nbytes, "GB");
    put_gib(line, ", MaxMemAllocated=", s->nbytes_max, "GB");
}

void report_put_process_memory(struct report_line *line, const struct report_memory *m)
{
    put_gib(line, "MA ", m->allocated, " GB ");
    put_gib(line, "        Max_MA ", m->allocated_max, " GB ");
    put_gib(line, "        CA ", m->resident, " GB ");
    put_gib(line, "        Max_CA ", m->resident_max, " GB ");
}

void report_put_host_memory(struct report_line *line, const struct report_memory *m)
{
    size_t used = m->host_total - m->host_available;
    put_gib(line, "CPU Virtual Memory:  used = ", used, " GB, percent = ");
    report_put_rounded(line, m->host_total ? 100.0 * (double)used / (double)m->host_total : 0, 1);
    report_put(line, "%%");
}

/* From the kernel: allocators know only what they hand out. */
void report_memory_read(struct report_memory *m)
{
    m->resident = proc_nbytes("/proc/self/status", "VmRSS:");
    m->resident_max = proc_nbytes("/proc/self/status", "VmHWM:");
    m->host_total = proc_nbytes("/proc/meminfo", "MemTotal:");
    m->host_available = proc_nbytes("/proc/meminfo", "MemAvailable:");
}
