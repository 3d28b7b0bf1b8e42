/* What the config asks to be printed or recorded while a run goes on (spec §3.8-3.10). */
#include "engine/engine_impl.h"

#include "base/log.h"
#include "formats/json_write.h"

#include <stdio.h>
#include <string.h>

/* The log takes lines without newlines. */
static void say_to_log(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        LOGV(LOG_INFO, SUB_ENGINE, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

void engine_say(struct engine *e, const char *text)
{
    if (e->comm->rank != 0) return;
    if (e->print)
        e->print(text, e->print_user);
    else
        say_to_log(text);
}

/* Momentum of a group as DeepSpeed prints it: the betas, or SGD's momentum. */
static void print_momentum(FILE *f, const struct optim_group *g)
{
    char a[JSON_FLOAT_NBYTES], b[JSON_FLOAT_NBYTES];
    if (g->hyper.cls->has_betas)
        fprintf(f, "[%s, %s]", json_float_text(g->betas[0], a), json_float_text(g->betas[1], b));
    else
        fputs(json_float_text(g->hyper.momentum, a), f);
}

/* [Rank 0] step=2, skipped=1, lr=[0.0002], mom=[[0.9, 0.999]] */
static void progress_line(const struct engine *e)
{
    char line[1024] = "", number[JSON_FLOAT_NBYTES];
    if (!log_enabled(LOG_INFO, SUB_ENGINE)) return;
    FILE *f = fmemopen(line, sizeof line, "w");
    if (!f) return; /* a line less */
    fprintf(f, "[Rank 0] step=%lld, skipped=%lld, lr=[", (long long)e->global_steps,
            (long long)e->skipped_steps);
    for (size_t g = 0; g < e->n_groups; g++)
        fprintf(f, "%s%s", g > 0 ? ", " : "", json_float_text(e->groups[g].lr, number));
    fprintf(f, "], mom=[");
    for (size_t g = 0; g < e->n_groups; g++) {
        if (g > 0) fprintf(f, ", ");
        print_momentum(f, &e->groups[g]);
    }
    fprintf(f, "]");
    fclose(f);
    log_line(LOG_INFO, "%s", line);
}

static cz_status write_events(struct engine *e)
{
    if (!monitor_is_enabled(e->monitor)) return CZ_OK;
    int64_t x = e->global_samples;
    struct monitor_event events[3];
    size_t n = 0;
    events[n++] = (struct monitor_event){"Train/Samples/lr", e->groups[0].lr, false, x};
    if (e->config->fp16.enabled)
        events[n++] = (struct monitor_event){"Train/Samples/loss_scale", e->scale.scale, false, x};
    events[n++] = (struct monitor_event){"Train/Samples/train_loss", e->boundary_loss, false, x};
    return monitor_write(e->monitor, events, n);
}

cz_status report_start(struct engine *e)
{
    if (e->config->steps_per_print > 0) progress_line(e);
    return CZ_OK;
}

cz_status report_step(struct engine *e, bool is_boundary)
{
    memset(e->timers.micro, 0, sizeof e->timers.micro);
    if (!is_boundary) return CZ_OK;
    memset(e->timers.total, 0, sizeof e->timers.total);
    int64_t every = e->config->steps_per_print;
    if (every > 0 && e->global_steps % every == 0) progress_line(e);
    return write_events(e);
}
