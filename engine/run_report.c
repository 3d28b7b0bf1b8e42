/* What the config asks to be printed or recorded during a run (docs/deepspeed-behaviour.md,
 * "Progress line" to "Profilers"). Rank 0 reports for all: times and losses of ranks differ little,
 * and one line per rank would bury them. */
#include "engine/run_report.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/size.h"
#include "base/threads.h"
#include "engine/report/report_text.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where lines go -------------------------------------------------------------------------- */

/* What was asked for by name shows at every log level, as DeepSpeed prints it. */
static void say(struct cz_engine *e, struct report_line *line)
{
    if (!e->desc.print) {
        LOGV(LOG_ASKED, SUB_ENGINE, "%s", line->text);
        return;
    }
    if (line->len + 1 == sizeof line->text) line->len--; /* a full line loses its last byte */
    memcpy(line->text + line->len, "\n", 2);
    e->desc.print(line->text, e->desc.print_user);
    line->text[line->len] = '\0';
}

static void say_text(struct cz_engine *e, const char *text)
{
    struct report_line line;
    report_line_begin(&line);
    report_put(&line, "%s", text);
    say(e, &line);
}

/* The only rank that prints. */
static bool is_reporter(const struct cz_engine *e)
{
    return e->desc.comm->rank == 0;
}

/* ---- at each step ---------------------------------------------------------------------------- */

/* At "info": a run at another log level asked for silence. */
static void log_progress(const struct cz_engine *e)
{
    struct report_line line;
    if (!log_enabled(LOG_INFO, SUB_ENGINE)) return;
    report_line_begin(&line);
    report_put_progress(&line, e->run.global_steps, e->run.skipped_steps, e->desc.groups,
                        e->desc.n_groups,
                        e->desc.config->scheduler.usable && e->run.schedule.cycles_momentum);
    log_line(LOG_INFO, "%s", line.text);
}

/* Of the GPU where layers run on one. */
static size_t arenas_nbytes(const struct cz_engine *e)
{
    if (e->mem.gpu_nbytes > 0) return e->mem.gpu_nbytes;
    return e->desc.plan.host_peak_nbytes - e->desc.plan.baseline_nbytes;
}

static void say_times(struct cz_engine *e, const char *const *names, const int64_t *ns, size_t n)
{
    struct report_line line;
    report_line_begin(&line);
    report_put_times(&line, names, ns, n);
    say(e, &line);
}

void report_memory(struct cz_engine *e, const char *where)
{
    if (!e->desc.config->memory_breakdown || !is_reporter(e)) return;
    struct report_memory memory = {.allocated = arenas_nbytes(e),
                                   .allocated_max = arenas_nbytes(e)};
    struct report_line line;
    report_memory_read(&memory);
    /* All memory in use on the GPU, in place of the process's. */
    size_t free_nbytes, total_nbytes;
    if (e->mem.gpu_nbytes != 0) {
        if (e->desc.device->ops->mem_info(e->desc.device, &free_nbytes, &total_nbytes) == CZ_OK)
            memory.resident = memory.resident_max = total_nbytes - free_nbytes;
    }
    say_text(e, where);
    report_line_begin(&line);
    report_put_process_memory(&line, &memory);
    say(e, &line);
    report_line_begin(&line);
    report_put_host_memory(&line, &memory);
    say(e, &line);
}

/* ---- monitors -------------------------------------------------------------------------------- */

/* DeepSpeed's names and x axis (samples). */
static cz_status write_events(struct cz_engine *e)
{
    static const char *const time_names[N_ENGINE_TIMERS] = {
        "Train/Samples/elapsed_time_ms_forward", "Train/Samples/elapsed_time_ms_backward",
        "Train/Samples/elapsed_time_ms_backward_inner",
        "Train/Samples/elapsed_time_ms_backward_allreduce", "Train/Samples/elapsed_time_ms_step"};
    if (!monitor_is_enabled(e->run.monitor)) return CZ_OK;
    int64_t x = e->run.global_samples;
    struct monitor_event events[3 + N_ENGINE_TIMERS];
    size_t n = 0;
    events[n++] = (struct monitor_event){"Train/Samples/lr", e->desc.groups[0].lr, false, x};
    if (e->desc.config->fp16.enabled)
        events[n++] =
            (struct monitor_event){"Train/Samples/loss_scale", e->run.scale.scale, false, x};
    events[n++] =
        (struct monitor_event){"Train/Samples/train_loss", e->run.boundary_loss, false, x};
    for (size_t i = 0; i < N_ENGINE_TIMERS && e->desc.config->wall_clock_breakdown; i++)
        events[n++] =
            (struct monitor_event){time_names[i], (double)e->run.timers.total[i] * 1e-6, false, x};
    return monitor_write(e->run.monitor, events, n);
}

/* ---- the profile of one step ----------------------------------------------------------------- */

static cz_status say_profile_line(void *user, const char *line)
{
    say_text(user, line);
    return CZ_OK;
}

static cz_status report_profile(struct cz_engine *e)
{
    const int64_t *total = e->run.timers.total;
    const struct profiler_step step = {.number = e->run.global_steps,
                                       .world_size = e->desc.comm->world_size,
                                       .micro_batch =
                                           e->desc.config->train_micro_batch_size_per_gpu,
                                       .forward_ns = total[TIMER_FORWARD],
                                       .backward_ns = total[TIMER_BACKWARD],
                                       .update_ns = total[TIMER_STEP]};
    /* The counter already stands behind the step that was profiled. */
    if (!profiler_is_due(e->run.profiler, e->run.global_steps - 1)) return CZ_OK;
    return profiler_report(e->run.profiler, &step, say_profile_line, e);
}

/* ---- dump_state ------------------------------------------------------------------------------ */

/* "  name ....................... value", in columns as DeepSpeed's. */
static void say_attribute(struct cz_engine *e, const char *name, const char *value)
{
    static const char dots[] = ".............................";
    size_t len = strlen(name);
    struct report_line line;
    report_line_begin(&line);
    report_put(&line, "  %s %s %s", name, dots + (len < sizeof dots ? len : sizeof dots - 1),
               value);
    say(e, &line);
}

/* Integers of any width. */
static void say_number(struct cz_engine *e, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    say_attribute(e, name, text);
}

static cz_status dump_state(struct cz_engine *e)
{
    char *config, names[256];
    TRY(config_values(e->desc.config, &config));
    say_text(e, "engine:");
    say_attribute(e, "model", cz_model_name(e->desc.model));
    say_number(e, "params", (int64_t)e->desc.plan.numel);
    say_number(e, "params_trainable", (int64_t)e->desc.plan.numel_trainable);
    say_number(e, "layers", (int64_t)model_n_layers(e->desc.model));
    say_number(e, "param_groups", (int64_t)e->desc.n_groups);
    say_attribute(e, "optimizer",
                  optim_group_names(e->desc.groups, e->desc.n_groups, names, sizeof names));
    say_attribute(e, "dtype", dtype_name(e->desc.dtype));
    say_attribute(e, "grad_dtype", dtype_name(e->desc.grad_dtype));
    say_number(e, "rank", e->desc.comm->rank);
    say_number(e, "world_size", e->desc.comm->world_size);
    say_number(e, "sequence_length_max", e->desc.plan.T);
    say_number(e, "seed", (int64_t)e->desc.seed);
    say_attribute(e, "device", e->desc.device->ops->name);
    say_attribute(e, "cpu", cpu_model_name());
    say_attribute(e, "kernels", ops_isa(e->desc.ops));
    say_number(e, "threads", threads_count());
    say_number(e, "planned_bytes", (int64_t)e->desc.plan.host_peak_nbytes);
    say_text(e, "config:");
    /* "path = value", a line per key. */
    for (char *line = config, *next; *line; line = next) {
        size_t len = strcspn(line, "\n");
        next = line + len + (line[len] == '\n');
        line[len] = '\0';
        char *equals = strstr(line, " = ");
        if (!equals) continue;
        *equals = '\0';
        say_attribute(e, line, equals + 3);
    }
    free(config);
    return CZ_OK;
}

/* ---- called by the step ---------------------------------------------------------------------- */

/* After everything else: nothing is reported of a run that did not start. */
cz_status report_start(struct cz_engine *e)
{
    const struct ds_config *c = e->desc.config;
    if (!is_reporter(e)) return CZ_OK;
    if (c->flops_profiler.enabled)
        TRY(profiler_create(&c->flops_profiler, e->desc.chain, e->desc.model, &e->run.profiler));
    if (c->steps_per_print > 0) log_progress(e);
    report_memory(e, "Engine after initialization");
    return c->dump_state ? dump_state(e) : CZ_OK;
}

void report_forward(struct cz_engine *e, int64_t now_ns)
{
    if (e->desc.config->timers_throughput_enabled) throughput_begin(&e->run.throughput, now_ns);
}

/* Order as DeepSpeed prints: update times, progress, then speed. */
static void report_boundary(struct cz_engine *e)
{
    int64_t every = e->desc.config->steps_per_print;
    bool is_due = every > 0 && e->run.global_steps % every == 0;
    if (e->desc.config->wall_clock_breakdown && e->run.timers.updated &&
        e->desc.config->zero.stage > 0)
        say_times(e, update_timer_names, e->run.timers.update, N_UPDATE_TIMERS);
    if (is_due) {
        log_progress(e);
        /* What the 1-bit family is chosen for. */
        char step[24], all[24];
        if (zero_n_segments(e->desc.zero) != 0)
            LOGV(LOG_INFO, SUB_ENGINE, "step %lld: each rank sent %s, %s since the start",
                 (long long)e->run.global_steps, size_human(e->run.sent_nbytes, step, sizeof step),
                 size_human(e->run.sent_before, all, sizeof all));
    }
    /* Traffic of the swap file, and the share of the step that waited for it. */
    if (is_due || e->desc.config->wall_clock_breakdown) {
        const struct cz_swap_traffic *t = &e->mem.swap_traffic;
        struct report_line line;
        if (e->mem.swap && t->step_s > 0) {
            report_line_begin(&line);
            report_put(&line,
                       "swap file: read %.2f GB/s, written %.2f GB/s, %.1f %% of the step exposed",
                       t->read_nbytes / t->step_s * 1e-9, t->written_nbytes / t->step_s * 1e-9,
                       100 * t->waited_s / t->step_s);
            if (e->desc.config->wall_clock_breakdown)
                say(e, &line);
            else
                log_line(LOG_INFO, "%s", line.text);
        }
    }
    /* Speed is averaged over boundaries; memory is planned, so its maximum is its value. */
    if (every > 0 && e->run.throughput.counted && e->run.throughput.n_global % every == 0) {
        const struct throughput *t = &e->run.throughput;
        int64_t batch = e->desc.config->train_batch_size;
        const struct report_speed speed = {.micro_step = t->n_micro,
                                           .global_step = t->n_global,
                                           .average = throughput_average(t, batch),
                                           .current = throughput_current(t, batch),
                                           .nbytes = arenas_nbytes(e),
                                           .nbytes_max = arenas_nbytes(e)};
        struct report_line line;
        if (log_enabled(LOG_INFO, SUB_ENGINE)) {
            report_line_begin(&line);
            report_put_speed(&line, &speed);
            log_line(LOG_INFO, "%s", line.text);
        }
    }
}

/* Timers are reset even if a monitor failed: the next step must not inherit them. */
cz_status report_step(struct cz_engine *e, bool is_boundary)
{
    cz_status st = CZ_OK;
    if (e->desc.config->timers_throughput_enabled)
        throughput_end(&e->run.throughput, clock_now_ns(), is_boundary);
    if (is_reporter(e)) {
        if (is_boundary) {
            report_boundary(e);
            TRY_GOTO(write_events(e), done);
            TRY_GOTO(report_profile(e), done);
        }
        /* Micro-batch times after each one, totals at the boundary. */
        if (e->desc.config->wall_clock_breakdown) {
            const struct engine_timers *t = &e->run.timers;
            say_times(e, engine_timer_names_micro, t->micro, N_ENGINE_TIMERS);
            if (is_boundary) {
                say_times(e, engine_timer_names, t->total, N_ENGINE_TIMERS);
                if (e->desc.comm->world_size > 1)
                    say_times(e, exposed_timer_names, t->exposed, N_EXPOSED_TIMERS);
            }
        }
    }
done:
    timers_reset(&e->run.timers, is_boundary);
    return st;
}
