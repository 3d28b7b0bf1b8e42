/* The plan's phases as text and as JSON. */
#include "base/size.h"
#include "engine/plan/plan_impl.h"

#include <math.h>

static void print_amount(FILE *f, size_t nbytes, const char *what)
{
    char buf[24];
    if (nbytes > 0) fprintf(f, "; %s %s", size_human(nbytes, buf, sizeof buf), what);
}

static void print_in_use(FILE *f, const struct plan_cost *c)
{
    char buf[24];
    const char *between = "";
    for (int place = 0; place < PLAN_N_PLACES; place++) {
        if (c->in_use_nbytes[place] == 0) continue;
        fprintf(f, "%s%s %s", between, plan_place_name((enum plan_place)place),
                size_human(c->in_use_nbytes[place], buf, sizeof buf));
        between = ", ";
    }
}

static void print_part(FILE *f, double seconds, const char *what, const char **between)
{
    if (!(seconds > 0)) return;
    fprintf(f, "%s%s %.3g s", *between, what, seconds);
    *between = ", ";
}

static void print_seconds(FILE *f, const struct plan_cost *c)
{
    const char *between = "";
    if (!(c->total_s > 0)) return; /* not known, or no part of it is */
    fprintf(f, "\n             %.3g s (", c->total_s);
    print_part(f, c->compute_s, "computing", &between);
    print_part(f, c->nvme_s, "NVMe", &between);
    print_part(f, c->link_s, "copies to and from the GPU", &between);
    print_part(f, c->comm_s, "other ranks", &between);
    fprintf(f, ")");
}

static void print_phase(FILE *f, const struct cz_plan *p, enum plan_phase phase)
{
    const struct plan_cost *c = &p->phases[phase];
    fprintf(f, "  %-9s  uses ", plan_phase_name(phase));
    print_in_use(f, c);
    if (c->flops > 0) fprintf(f, "; %.3g Tflop", c->flops / 1e12);
    print_amount(f, c->nvme_read_nbytes, "from NVMe");
    print_amount(f, c->nvme_written_nbytes, "to NVMe");
    print_amount(f, c->to_device_nbytes, "to the GPU");
    print_amount(f, c->to_host_nbytes, "from the GPU");
    print_amount(f, c->sent_nbytes, "to other ranks");
    print_amount(f, c->saved_nbytes, "to a checkpoint");
    print_seconds(f, c);
    fprintf(f, "\n");
}

/* Disks wear out: bytes that go to NVMe in a day of steps without pause, saves left out; NAN
 * without a predicted step. */
static double written_per_day(const struct cz_plan *p)
{
    double nbytes = 0;
    for (int phase = 0; phase < PLAN_SAVE; phase++)
        nbytes += (double)p->phases[phase].nvme_written_nbytes;
    return p->step_s > 0 ? nbytes / p->step_s * 86400 : NAN;
}

static void print_wear(FILE *f, const struct cz_plan *p)
{
    if (written_per_day(p) > 0)
        fprintf(f, "At that pace each rank writes %.3g TB a day to NVMe.\n",
                written_per_day(p) * 1e-12);
}

void plan_print_phases(FILE *f, const struct cz_plan *p)
{
    fprintf(f,
            "Phases of an optimizer step of %lld micro-batch%s, and a save (what each touches; "
            "memory is allocated once):\n",
            (long long)p->accumulation, p->accumulation == 1 ? "" : "es");
    for (int phase = 0; phase < PLAN_N_PHASES; phase++) print_phase(f, p, (enum plan_phase)phase);
    if (p->beside_s > 0)
        fprintf(f, "The update overlaps with the last backward pass for %.3g s.\n", p->beside_s);
    if (!isnan(p->step_s))
        fprintf(f, "Predicted: %.3g s a step, %.4g tokens/s over all ranks.\n", p->step_s,
                (double)(p->B * p->T * p->accumulation * p->world_size) / p->step_s);
    else if (p->missing_rate)
        fprintf(f, "No time is predicted: the machine profile has no figure for %s.\n",
                p->missing_rate);
    print_wear(f, p);
}

/* ---- JSON -------------------------------------------------------------------------------------
 */

static void write_in_use(struct json_writer *w, const struct plan_cost *c)
{
    json_write_key(w, "in_use_bytes");
    json_begin_object(w);
    for (int place = 0; place < PLAN_N_PLACES; place++)
        json_put_size(w, plan_place_name((enum plan_place)place), c->in_use_nbytes[place]);
    json_end_object(w);
}

static void write_seconds(struct json_writer *w, const struct plan_cost *c)
{
    json_write_key(w, "seconds");
    json_begin_object(w);
    json_put_figure(w, "compute", c->compute_s);
    json_put_figure(w, "nvme", c->nvme_s);
    json_put_figure(w, "link", c->link_s);
    json_put_figure(w, "ranks", c->comm_s);
    json_put_figure(w, "total", c->total_s);
    json_end_object(w);
}

static void write_phase(struct json_writer *w, const struct cz_plan *p, enum plan_phase phase)
{
    const struct plan_cost *c = &p->phases[phase];
    json_begin_object(w);
    json_put_string(w, "phase", plan_phase_name(phase));
    write_in_use(w, c);
    json_put_size(w, "nvme_read_bytes", c->nvme_read_nbytes);
    json_put_size(w, "nvme_written_bytes", c->nvme_written_nbytes);
    json_put_size(w, "to_device_bytes", c->to_device_nbytes);
    json_put_size(w, "to_host_bytes", c->to_host_nbytes);
    json_put_size(w, "sent_bytes", c->sent_nbytes);
    json_put_size(w, "saved_bytes", c->saved_nbytes);
    json_put_size(w, "moved_bytes", c->moved_nbytes);
    json_put_size(w, "weights_bytes", c->weights_nbytes);
    json_put_double(w, "flops", c->flops);
    write_seconds(w, c);
    json_end_object(w);
}

void plan_write_phases(struct json_writer *w, const struct cz_plan *p)
{
    json_put_figure(w, "step_seconds", p->step_s);
    json_put_figure(w, "update_beside_backward_seconds", p->beside_s);
    json_put_figure(w, "nvme_written_bytes_per_day", written_per_day(p));
    json_write_key(w, "phases");
    json_begin_array(w);
    for (int phase = 0; phase < PLAN_N_PHASES; phase++) write_phase(w, p, (enum plan_phase)phase);
    json_end_array(w);
}
