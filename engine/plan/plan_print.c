/* The plan as a table for people and as JSON. */
#include "base/size.h"
#include "engine/plan/plan_impl.h"

#include <stdlib.h>

static const char *const places[PLAN_N_PLACES] = {"host", "device", "pinned", "nvme"};

const char *plan_place_name(enum plan_place place)
{
    return places[place];
}

static double mib(size_t nbytes)
{
    return (double)nbytes / (1 << 20);
}

static void print_head(FILE *f, const struct cz_plan *p)
{
    fprintf(f, "Memory of one rank: %s (%.1f M parameters", p->model_name, (double)p->numel / 1e6);
    if (p->numel_trainable != p->numel)
        fprintf(f, ", %.1f M trained", (double)p->numel_trainable / 1e6);
    fprintf(f, "), %s, stage %d, %lld rank%s, micro-batch %lld × %lld\n", dtype_name(p->dtype),
            p->stage, (long long)p->world_size, p->world_size == 1 ? "" : "s", (long long)p->B,
            (long long)p->T);
}

static void print_rows(FILE *f, const struct cz_plan *p)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (p->rows[i].nbytes > 0)
            fprintf(f, "  %-22s %-7s %11.1f MiB   %s\n", p->rows[i].name, places[p->rows[i].place],
                    mib(p->rows[i].nbytes), p->rows[i].how);
    if (p->comm_nbytes > 0)
        fprintf(f, "  %-22s %-7s %11.1f MiB   slots between ranks of one host\n", "communicator",
                "host", mib(p->comm_nbytes));
    fprintf(f, "  %-22s %-7s %11.1f MiB   measured in this process\n", "program and libraries",
            "host", mib(p->baseline_nbytes));
}

static void print_totals(FILE *f, const struct cz_plan *p)
{
    char buf[24];
    fprintf(f, "  %-22s %-7s %11.1f MiB   may still be allocated: %s (%s)\n", "peak", "host",
            mib(p->host_peak_nbytes), size_human(p->host_free_nbytes, buf, sizeof buf),
            p->host_limit);
    if (!cz_plan_fits(p)) fprintf(f, "It does not fit here.\n");
    if (p->device_peak_nbytes > 0)
        fprintf(f, "  %-22s %-7s %11.1f MiB\n", "peak", "device", mib(p->device_peak_nbytes));
    if (p->nvme_nbytes > 0)
        fprintf(f, "  %-22s %-7s %11.1f MiB\n", "swap file", "nvme", mib(p->nvme_nbytes));
    if (p->sent_nbytes_per_step > 0)
        fprintf(f, "Each rank sends %s per optimizer step, in %zu collectives.\n",
                size_human(p->sent_nbytes_per_step, buf, sizeof buf), p->n_collectives_per_step);
    if (p->sent_nbytes_frozen > 0)
        fprintf(f, "With the variance frozen an exchange sends %s.\n",
                size_human(p->sent_nbytes_frozen, buf, sizeof buf));
    if (p->stage == 3 && p->world_size > 1)
        fprintf(f, "At most %.1f M parameters are gathered at the same time.\n",
                (double)p->live_numel_max / 1e6);
}

cz_status cz_plan_table(const struct cz_plan *plan, char **out)
{
    size_t nbytes;
    *out = NULL;
    FILE *f = open_memstream(out, &nbytes);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory for the plan's table");
    print_head(f, plan);
    print_rows(f, plan);
    print_totals(f, plan);
    plan_print_phases(f, plan);
    if (fclose(f) != 0 || !*out) {
        free(*out);
        *out = NULL;
        return err_set(CZ_NOMEM, 0, "no memory for the plan's table");
    }
    return CZ_OK;
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
    json_put_size(w, "baseline_bytes", p->baseline_nbytes);
    json_put_size(w, "host_available_bytes", p->host_free_nbytes);
    json_put_size(w, "sent_bytes_per_step", p->sent_nbytes_per_step);
    if (p->sent_nbytes_frozen > 0)
        json_put_size(w, "sent_bytes_per_compressed_step", p->sent_nbytes_frozen);
    json_put_size(w, "collectives_per_step", p->n_collectives_per_step);
    if (p->stage == 3) json_put_size(w, "live_parameters_max", p->live_numel_max);
    json_put_bool(w, "fits", cz_plan_fits(p));
}

cz_status cz_plan_json(const struct cz_plan *plan, char **out)
{
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
    plan_write_phases(&w, plan);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}
