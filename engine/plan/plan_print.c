/* The plan as a table for people and as JSON: rows, totals, and what each phase of a step touches,
 * moves and takes. Both forms show the same figures; a figure that is not known is left out of the
 * table and null in JSON. */
#include "base/host/entry.h"
#include "base/printable.h"
#include "base/size.h"
#include "engine/machine/machine.h"
#include "engine/plan/plan_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char plan_gpu_status[] =
    "No GPU has run czero's GPU code yet: figures of GPUs are planned (docs/gpu.md).";

static const char *const places[PLAN_N_PLACES] = {"host", "device", "pinned", "nvme"};

const char *plan_place_name(enum plan_place place)
{
    return places[place];
}

/* Three digits, for seconds and operations. */
#define NUMBER_NBYTES 48
static const char *three(double value, char buf[NUMBER_NBYTES])
{
    return size_number(value, 3, buf, NUMBER_NBYTES);
}

static double mib(size_t nbytes)
{
    return (double)nbytes / (1 << 20);
}

/* "24 GB (RTX 4090, RTX 3090, L4)": the smallest known GPUs that have as much. */
static const char *gpus_with(size_t nbytes, char *buf, size_t n)
{
    double least = 0;
    size_t used = 0;
    for (size_t i = 0; machine_gpu(i) && least == 0; i++)
        if (machine_gpu(i)->nbytes >= (double)nbytes) least = machine_gpu(i)->nbytes;
    if (least == 0) return "more than any GPU that czero knows has";
    snprintf(buf, n, "%.0f GB (", least / 1e9);
    for (size_t i = 0; machine_gpu(i); i++) {
        if (machine_gpu(i)->nbytes != least) continue;
        size_t len = strlen(buf);
        snprintf(buf + len, n - len, "%s%s", used++ ? ", " : "", machine_gpu(i)->title);
    }
    size_t len = strlen(buf);
    snprintf(buf + len, n - len, ")");
    return buf;
}

/* The host's part of the answer: of this host, or of one that was given. */
static void print_host_fit(FILE *f, const struct cz_plan *p)
{
    char need[24], have[24];
    size_t n_ranks = (size_t)p->world_size;
    bool is_given = p->host_given_nbytes > 0;
    bool fits = p->host_peak_nbytes - p->baseline_nbytes <= p->host_free_nbytes;
    if (is_given)
        printable_print(f, "%s the host: all ranks need %s of its %s.\n",
                        fits ? "It fits" : "It does not fit",
                        size_human(p->host_peak_nbytes * n_ranks, need, sizeof need),
                        size_written(p->host_given_nbytes, have, sizeof have));
    else if (!fits)
        printable_print(
            f, "It does not fit here: the run needs %s of host memory, and %s are left (%s).\n",
            size_human(p->host_peak_nbytes - p->baseline_nbytes, need, sizeof need),
            size_human(p->host_free_nbytes, have, sizeof have), p->host_limit);
}

/* A GPU that is not here is a question of which one. */
static void print_gpu_fit(FILE *f, const struct cz_plan *p)
{
    char need[24], have[24], gpus[96];
    size_t nbytes = p->device_peak_nbytes;
    if (!p->on_cuda) return;
    bool fits = plan_device_need(p) <= p->device_free_nbytes;
    if (p->gpu_given_nbytes > 0)
        printable_print(f, "%s the GPU: it needs %s of its %s.\n",
                        fits ? "It fits" : "It does not fit", size_human(nbytes, need, sizeof need),
                        size_written(p->gpu_given_nbytes, have, sizeof have));
    else if (p->device_free_nbytes == SIZE_MAX)
        printable_print(f, "There is no GPU here; a GPU has to have %s: %s.\n",
                        size_human(nbytes, need, sizeof need),
                        gpus_with(nbytes, gpus, sizeof gpus));
    else if (!fits)
        printable_print(f, "It does not fit the GPU: the run needs %s, and %s are free.\n",
                        size_human(plan_device_need(p), need, sizeof need),
                        size_human(p->device_free_nbytes, have, sizeof have));
}

/* Users have these figures from DeepSpeed and wonder about the difference. */
static void print_deepspeed(FILE *f, const struct cz_plan *p, bool all)
{
    char gpu[24], host[24];
    if (p->deepspeed.gpu_nbytes <= 0) return;
    printable_print(f, "DeepSpeed's estimator says %s of GPU and %s of host memory.",
                    size_human((size_t)p->deepspeed.gpu_nbytes, gpu, sizeof gpu),
                    size_human((size_t)p->deepspeed.host_nbytes, host, sizeof host));
    if (all)
        printable_print(f, " It counts model states,\n1.5 times in the host, and no activations, "
                           "buckets or CUDA context.");
    fputc('\n', f);
}

static void print_totals(FILE *f, const struct cz_plan *p, bool all)
{
    char buf[24];
    printable_print(f, "  %-22s %-7s %11.1f MiB   may still be allocated: %s", "peak", "host",
                    mib(p->host_peak_nbytes), size_human(p->host_free_nbytes, buf, sizeof buf));
    if (all) printable_print(f, " (%s)", p->host_limit);
    fputc('\n', f);
    if (p->device_peak_nbytes > 0)
        printable_print(f, "  %-22s %-7s %11.1f MiB\n", "peak", "device",
                        mib(p->device_peak_nbytes));
    print_host_fit(f, p);
    print_gpu_fit(f, p);
    print_deepspeed(f, p, all);
    if (p->nvme_nbytes > p->nvme_free_nbytes)
        printable_print(f, "It does not fit here: %s has %s free for the swap file.\n",
                        p->nvme_path, size_human(p->nvme_free_nbytes, buf, sizeof buf));
    if (p->nvme_nbytes > 0) {
        char wear[PLAN_WEAR_NBYTES];
        plan_wear(p->phases, p->B * p->T * p->accumulation, wear, sizeof wear);
        printable_print(f, "  %-22s %-7s %11.1f MiB%s%s%s%s\n", "swap file", "nvme",
                        mib(p->nvme_nbytes), *wear || *p->nvme_stripes ? "   " : "", wear,
                        *wear && *p->nvme_stripes ? "; " : "", p->nvme_stripes);
    }
    if (*p->nvme_warning) printable_print(f, "%s\n", p->nvme_warning);
    if (p->in_place_nbytes > 0)
        printable_print(f,
                        "  %-22s %-7s %11.1f MiB   read from the model's files, without a copy\n",
                        "frozen parameters", "files", mib(p->in_place_nbytes));
    if (p->sent_nbytes_per_step > 0)
        printable_print(f, "Each rank sends %s per optimizer step, in %zu collective%s.\n",
                        size_human(p->sent_nbytes_per_step, buf, sizeof buf),
                        p->n_collectives_per_step, plural(p->n_collectives_per_step));
    if (p->sent_nbytes_frozen > 0)
        printable_print(f, "With the variance frozen an exchange sends %s.\n",
                        size_human(p->sent_nbytes_frozen, buf, sizeof buf));
    if (p->stage == 3 && p->world_size > 1)
        fprintf(f, "At most %.1f M parameters are gathered at the same time.\n",
                (double)p->live_numel_max / 1e6);
}

/* ---- phases as text -------------------------------------------------------------------------- */

static void print_amount(FILE *f, size_t nbytes, const char *what)
{
    char buf[24];
    if (nbytes > 0) printable_print(f, "; %s %s", size_human(nbytes, buf, sizeof buf), what);
}

static void print_part(FILE *f, double seconds, const char *what, const char **between)
{
    if (!(seconds > 0)) return;
    char buf[NUMBER_NBYTES];
    printable_print(f, "%s%s %s s", *between, what, three(seconds, buf));
    *between = ", ";
}

static void print_seconds(FILE *f, const struct plan_cost *c)
{
    const char *between = "";
    char buf[NUMBER_NBYTES];
    if (!(c->total_s > 0)) return; /* not known, or no part of it is */
    printable_print(f, "\n             %s s (", three(c->total_s, buf));
    print_part(f, c->compute_s, "computing", &between);
    print_part(f, c->nvme_s, "NVMe", &between);
    print_part(f, c->link_s, "copies to and from the GPU", &between);
    print_part(f, c->comm_s, "other ranks", &between);
    fprintf(f, ")");
}

static void print_phase(FILE *f, const struct cz_plan *p, enum plan_phase phase)
{
    const struct plan_cost *c = &p->phases[phase];
    printable_print(f, "  %-9s  uses ", plan_phase_name(phase));
    /* Only places that hold something in this phase. */
    char buf[24];
    const char *between = "";
    for (int place = 0; place < PLAN_N_PLACES; place++) {
        if (c->in_use_nbytes[place] == 0) continue;
        printable_print(f, "%s%s %s", between, plan_place_name((enum plan_place)place),
                        size_human(c->in_use_nbytes[place], buf, sizeof buf));
        between = ", ";
    }
    char flops[NUMBER_NBYTES];
    if (c->flops > 0) printable_print(f, "; %s Tflop", three(c->flops / 1e12, flops));
    print_amount(f, c->nvme_read_nbytes, "from NVMe");
    print_amount(f, c->nvme_written_nbytes, "to NVMe");
    print_amount(f, c->to_device_nbytes, "to the GPU");
    print_amount(f, c->to_host_nbytes, "from the GPU");
    print_amount(f, c->sent_nbytes, "to other ranks");
    print_amount(f, c->saved_nbytes, "to a checkpoint");
    print_seconds(f, c);
    fprintf(f, "\n");
}

/* Bytes that a rank writes to NVMe, saves left out. Drives are rated by the bytes written to them.
 */
static double written_per_step(const struct plan_cost *phases)
{
    double nbytes = 0;
    for (int phase = 0; phase < PLAN_SAVE; phase++)
        nbytes += (double)phases[phase].nvme_written_nbytes;
    return nbytes;
}

double plan_wear_nbytes(const struct plan_cost *phases, int64_t n_tokens)
{
    return n_tokens > 0 ? written_per_step(phases) / (double)n_tokens * 1e6 : 0;
}

const char *plan_wear(const struct plan_cost *phases, int64_t n_tokens, char *buf, size_t n)
{
    const double nbytes = plan_wear_nbytes(phases, n_tokens);
    char amount[48];
    buf[0] = '\0';
    if (nbytes > 0)
        snprintf(buf, n, "writes %s per million tokens",
                 size_decimal(nbytes, amount, sizeof amount));
    return buf;
}

/* Steps without a pause; NAN without a predicted step. */
static double written_per_day(const struct cz_plan *p)
{
    return p->step_s > 0 ? written_per_step(p->phases) / p->step_s * 86400 : NAN;
}

static void print_phases(FILE *f, const struct cz_plan *p)
{
    printable_print(f,
                    "Phases of an optimizer step of %lld micro-batch%s, and a save\n"
                    "(what each touches; memory is allocated once):\n",
                    (long long)p->accumulation, p->accumulation == 1 ? "" : "es");
    for (int phase = 0; phase < PLAN_N_PHASES; phase++) print_phase(f, p, (enum plan_phase)phase);
}

static void print_times(FILE *f, const struct cz_plan *p)
{
    char buf[NUMBER_NBYTES], tokens[NUMBER_NBYTES];
    if (p->beside_s > 0)
        printable_print(f, "The update overlaps with the last backward pass for %s s.\n",
                        three(p->beside_s, buf));
    if (!isnan(p->step_s))
        printable_print(
            f, "Predicted: %s s a step, %s tokens/s over all ranks.\n", three(p->step_s, buf),
            size_number((double)(p->B * p->T * p->accumulation * p->world_size) / p->step_s, 4,
                        tokens, sizeof tokens));
    if (!isnan(p->step_s) && *p->assumed)
        printable_print(f, "Rates: %s; real ones differ, perhaps by a factor of two.\n",
                        p->assumed);
    if (isnan(p->step_s) && p->missing_rate)
        printable_print(f, "No time is predicted: the machine profile has no figure for %s.\n",
                        p->missing_rate);
    char slow[200];
    if (isnan(p->step_s) && *plan_slow_step(p, slow, sizeof slow))
        printable_print(f, "Slow: %s.\n", slow);
    if (written_per_day(p) > 0)
        printable_print(f, "At that pace each rank writes %s a day to NVMe.\n",
                        size_decimal(written_per_day(p), buf, sizeof buf));
}

/* ---- orders ---------------------------------------------------------------------------------- */

void plan_print_orders(FILE *f, const struct plan_orders *p)
{
    static const char *const titles[PLAN_N_ORDERS] = {"one micro-batch after the other",
                                                      "all micro-batches through each layer"};
    if (!*p->why) return;
    printable_print(f, "Order of the %lld micro-batches: %s (%s).\n", (long long)p->accumulation,
                    titles[p->order], p->why);
    for (int o = 0; o < PLAN_N_ORDERS; o++) {
        const struct plan_traffic *t = &p->traffic[o];
        const struct plan_traffic none = {.is_known = true};
        if (!t->is_known || memcmp(t, &none, sizeof none) == 0) continue;
        printable_print(f, "  %s", plan_order_name((enum plan_order)o));
        print_amount(f, t->nvme_read_nbytes, "from NVMe");
        print_amount(f, t->nvme_written_nbytes, "to NVMe");
        print_amount(f, t->to_device_nbytes, "to the GPU");
        print_amount(f, t->to_host_nbytes, "from the GPU");
        print_amount(f, t->sent_nbytes, "to other ranks");
        fprintf(f, " a step\n");
    }
}

/* "4 layers on NVMe (0.02 s beyond what hides it; recomputing: 0.31 s)": what was compared is
 * there with a profile only. */
void plan_print_saved(FILE *f, const struct plan_saved *saved, const char *why)
{
    static const char *const titles[CHAIN_N_SAVED] = {"recomputed", "kept in memory", "on NVMe"};
    static const enum chain_saved shown[] = {CHAIN_SAVED_IN_MEMORY, CHAIN_SAVED_IN_FILE,
                                             CHAIN_SAVED_NOWHERE};
    const char *between = "";
    if (!*why) return;
    printable_print(f, "What layers save beside their inputs (%s): ", why);
    for (size_t k = 0; k < CZ_ARRAY_LEN(shown); k++) {
        const struct plan_saved *s = &saved[shown[k]];
        if (s->n_layers == 0) continue;
        printable_print(f, "%s%zu layer%s %s", between, s->n_layers, s->n_layers == 1 ? "" : "s",
                        titles[shown[k]]);
        char buf[NUMBER_NBYTES];
        if (s->redo_s > 0) printable_print(f, " (recomputing takes %s s", three(s->redo_s, buf));
        if (s->redo_s > 0 && isfinite(s->swap_s))
            printable_print(f, ", NVMe %s s that nothing hides", three(s->swap_s, buf));
        if (s->redo_s > 0) fprintf(f, ")");
        between = ", ";
    }
    fprintf(f, ".\n");
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_row(FILE *f, const char *name, const char *place, size_t nbytes, const char *how)
{
    printable_print(f, "  %-22s %-7s %11.1f MiB%s%s\n", name, place, mib(nbytes), *how ? "   " : "",
                    how);
}

/* Rows of the plan, then memory outside of it that still counts against the host's memory. Without
 * `all` neither what does not change the answer nor the parts of the swap file. */
static void print_rows(FILE *f, const struct cz_plan *p, bool all)
{
    const size_t peak =
        p->host_peak_nbytes > p->device_peak_nbytes ? p->host_peak_nbytes : p->device_peak_nbytes;
    const size_t least = all ? 1 : peak / 100;
    size_t n_left_out = 0;
    for (size_t i = 0; i < p->n_rows; i++) {
        const struct plan_row *r = &p->rows[i];
        if (r->nbytes >= least && (all || r->place != PLAN_NVME))
            print_row(f, r->name, places[r->place], r->nbytes, all ? r->how : "");
        else
            n_left_out += r->nbytes > 0;
    }
    if (p->comm_nbytes > 0)
        print_row(f, "communicator", "host", p->comm_nbytes,
                  all ? "slots between ranks of one host" : "");
    print_row(f, "program and libraries", "host", p->baseline_nbytes,
              all ? "measured in this process" : "");
    if (n_left_out > 0)
        printable_print(f, "  and %zu row%s below 1 %% or in the swap file (--verbose lists all)\n",
                        n_left_out, plural(n_left_out));
}

cz_status plan_table(const struct cz_plan *plan, bool all, char **out)
{
    size_t nbytes;
    *out = NULL;
    FILE *f = open_memstream(out, &nbytes);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory for the plan's table");
    printable_print(f, "Memory of one rank: %s (%.1f M parameters", plan->model_name,
                    (double)plan->numel / 1e6);
    if (plan->numel_trainable != plan->numel)
        fprintf(f, ", %.1f M trained", (double)plan->numel_trainable / 1e6);
    printable_print(f, ")\n%s, stage %d, %lld rank%s, micro-batch %lld × %lld\n",
                    dtype_name(plan->dtype), plan->stage, (long long)plan->world_size,
                    plan->world_size == 1 ? "" : "s", (long long)plan->B, (long long)plan->T);
    if (plan->on_cuda) printable_print(f, "%s\n", plan_gpu_status);
    print_rows(f, plan, all);
    print_totals(f, plan, all);
    if (all) print_phases(f, plan);
    print_times(f, plan);
    const struct plan_orders orders = {.accumulation = plan->accumulation,
                                       .order = plan->order,
                                       .why = plan->order_why,
                                       .traffic = plan->traffic};
    if (all) plan_print_orders(f, &orders);
    if (all) plan_print_saved(f, plan->saved, plan->saved_why);
    if (all && plan->put_off_nbytes > 0)
        printable_print(f, "Gradients of logits, for the tied vocabulary: %s (%.1f MiB)\n",
                        plan->keeps_put_off ? "kept in memory" : "made twice, as they do not fit",
                        mib(plan->put_off_nbytes));
    if (all && plan->packed_nbytes > 0)
        printable_print(f, "Weights of the layer at work, packed for products: %s (%.1f MiB)\n",
                        plan->keeps_packed ? "once for all micro-batches"
                                           : "by each micro-batch, as they do not fit",
                        mib(plan->packed_nbytes));
    if (fclose(f) != 0 || !*out) {
        free(*out);
        *out = NULL;
        return err_set(CZ_NOMEM, 0, "no memory for the plan's table");
    }
    return CZ_OK;
}

cz_status cz_plan_table(const struct cz_plan *plan, char **out)
{
    API_ENTRY;
    NEED(plan, "plan");
    NEED(out, "out");
    return plan_table(plan, true, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void write_phase(struct json_writer *w, const struct cz_plan *p, enum plan_phase phase)
{
    const struct plan_cost *c = &p->phases[phase];
    json_begin_object(w);
    json_put_string(w, "phase", plan_phase_name(phase));
    /* Bytes in use by place, in this phase. */
    json_write_key(w, "in_use_bytes");
    json_begin_object(w);
    for (int place = 0; place < PLAN_N_PLACES; place++)
        json_put_size(w, plan_place_name((enum plan_place)place), c->in_use_nbytes[place]);
    json_end_object(w);
    json_put_size(w, "nvme_read_bytes", c->nvme_read_nbytes);
    json_put_size(w, "nvme_written_bytes", c->nvme_written_nbytes);
    json_put_size(w, "to_device_bytes", c->to_device_nbytes);
    json_put_size(w, "to_host_bytes", c->to_host_nbytes);
    json_put_size(w, "sent_bytes", c->sent_nbytes);
    json_put_size(w, "saved_bytes", c->saved_nbytes);
    json_put_size(w, "moved_bytes", c->moved_nbytes);
    json_put_size(w, "weights_bytes", c->weights_nbytes);
    json_put_double(w, "flops", c->flops);
    /* Unknown seconds are NaN, which JSON shows as null. */
    json_write_key(w, "seconds");
    json_begin_object(w);
    json_put_figure(w, "compute", c->compute_s);
    json_put_figure(w, "nvme", c->nvme_s);
    json_put_figure(w, "link", c->link_s);
    json_put_figure(w, "ranks", c->comm_s);
    json_put_figure(w, "total", c->total_s);
    json_end_object(w);
    json_end_object(w);
}

void plan_write_saved(struct json_writer *w, const struct plan_saved *saved, const char *why)
{
    static const char *const keys[CHAIN_N_SAVED] = {"recomputed", "in_memory", "on_nvme"};
    json_write_key(w, "saved_activations");
    json_begin_object(w);
    json_put_string(w, "why", why);
    for (int k = 0; k < CHAIN_N_SAVED; k++) {
        const struct plan_saved *s = &saved[k];
        const bool is_compared = s->redo_s > 0;
        json_write_key(w, keys[k]);
        json_begin_object(w);
        json_put_size(w, "layers", s->n_layers);
        json_put_figure(w, "recompute_seconds", is_compared ? s->redo_s : NAN);
        json_put_figure(w, "nvme_seconds", is_compared && isfinite(s->swap_s) ? s->swap_s : NAN);
        json_end_object(w);
    }
    json_end_object(w);
}

/* Of the order that was not chosen only where it was asked for. */
void plan_write_traffic(struct json_writer *w, const struct plan_traffic *traffic)
{
    json_write_key(w, "traffic");
    json_begin_array(w);
    for (int o = 0; o < PLAN_N_ORDERS; o++) {
        const struct plan_traffic *t = &traffic[o];
        if (!t->is_known) continue;
        json_begin_object(w);
        json_put_string(w, "accumulation_order", plan_order_name((enum plan_order)o));
        json_put_size(w, "nvme_read_bytes", t->nvme_read_nbytes);
        json_put_size(w, "nvme_written_bytes", t->nvme_written_nbytes);
        json_put_size(w, "to_device_bytes", t->to_device_nbytes);
        json_put_size(w, "to_host_bytes", t->to_host_nbytes);
        json_put_size(w, "sent_bytes", t->sent_nbytes);
        json_end_object(w);
    }
    json_end_array(w);
}

/* What memory may keep from one micro-batch to the next; nothing: absent. */
static void write_kept(struct json_writer *w, const char *key, size_t nbytes, bool kept)
{
    if (nbytes == 0) return;
    json_write_key(w, key);
    json_begin_object(w);
    json_put_size(w, "bytes", nbytes);
    json_put_bool(w, "kept", kept);
    json_end_object(w);
}

static void write_orders(struct json_writer *w, const struct cz_plan *p)
{
    json_put_string(w, "accumulation_order", plan_order_name(p->order));
    json_put_string(w, "accumulation_order_why", p->order_why);
    plan_write_traffic(w, p->traffic);
    if (*p->saved_why) plan_write_saved(w, p->saved, p->saved_why);
    write_kept(w, "tied_logit_gradients", p->put_off_nbytes, p->keeps_put_off);
    write_kept(w, "packed_weights", p->packed_nbytes, p->keeps_packed);
}

static void write_phases(struct json_writer *w, const struct cz_plan *p)
{
    json_put_figure(w, "step_seconds", p->step_s);
    json_put_figure(w, "update_beside_backward_seconds", p->beside_s);
    json_put_figure(w, "nvme_written_bytes_per_day", written_per_day(p));
    json_put_double(w, "nvme_written_bytes_per_million_tokens",
                    plan_wear_nbytes(p->phases, p->B * p->T * p->accumulation));
    json_write_key(w, "phases");
    json_begin_array(w);
    for (int phase = 0; phase < PLAN_N_PHASES; phase++) write_phase(w, p, (enum plan_phase)phase);
    json_end_array(w);
}

static void write_row(struct json_writer *w, const char *name, const char *place, size_t nbytes,
                      const char *how)
{
    json_begin_object(w);
    json_put_string(w, "name", name);
    json_put_string(w, "where", place);
    json_put_size(w, "bytes", nbytes);
    json_put_string(w, "how", how);
    json_end_object(w);
}

static void write_totals(struct json_writer *w, const struct cz_plan *p)
{
    json_put_string(w, "model", p->model_name);
    json_put_size(w, "parameters", p->numel);
    json_put_size(w, "trainable_parameters", p->numel_trainable);
    json_put_string(w, "dtype", dtype_name(p->dtype));
    json_put_size(w, "zero_stage", (size_t)p->stage);
    json_put_size(w, "world_size", (size_t)p->world_size);
    json_put_size(w, "micro_batch", (size_t)p->B);
    json_put_size(w, "gradient_accumulation_steps", (size_t)p->accumulation);
    json_put_size(w, "seq_len", (size_t)p->T);
    json_put_size(w, "host_peak_bytes", p->host_peak_nbytes);
    json_put_size(w, "device_peak_bytes", p->device_peak_nbytes);
    json_put_size(w, "pinned_bytes", p->pinned_nbytes);
    json_put_size(w, "nvme_bytes", p->nvme_nbytes);
    if (p->in_place_nbytes > 0) json_put_size(w, "model_files_bytes", p->in_place_nbytes);
    json_put_size(w, "baseline_bytes", p->baseline_nbytes);
    json_put_size(w, "host_available_bytes", p->host_free_nbytes);
    if (p->deepspeed.gpu_nbytes > 0) {
        json_put_double(w, "deepspeed_estimator_gpu_bytes", p->deepspeed.gpu_nbytes);
        json_put_double(w, "deepspeed_estimator_host_bytes", p->deepspeed.host_nbytes);
    }
    json_put_size(w, "sent_bytes_per_step", p->sent_nbytes_per_step);
    if (p->sent_nbytes_frozen > 0)
        json_put_size(w, "sent_bytes_per_compressed_step", p->sent_nbytes_frozen);
    json_put_size(w, "collectives_per_step", p->n_collectives_per_step);
    if (p->stage == 3) json_put_size(w, "live_parameters_max", p->live_numel_max);
    json_put_bool(w, "fits", cz_plan_fits(p));
}

cz_status cz_plan_json(const struct cz_plan *plan, char **out)
{
    API_ENTRY;
    NEED(plan, "plan");
    NEED(out, "out");
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    write_totals(&w, plan);
    json_write_key(&w, "rows");
    json_begin_array(&w);
    for (size_t i = 0; i < plan->n_rows; i++)
        if (plan->rows[i].nbytes > 0)
            write_row(&w, plan->rows[i].name, places[plan->rows[i].place], plan->rows[i].nbytes,
                      plan->rows[i].how);
    if (plan->comm_nbytes > 0)
        write_row(&w, "communicator", places[PLAN_HOST], plan->comm_nbytes,
                  "slots between ranks of one host");
    write_row(&w, "program and libraries", places[PLAN_HOST], plan->baseline_nbytes,
              "measured in this process");
    json_end_array(&w);
    write_orders(&w, plan);
    write_phases(&w, plan);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}
