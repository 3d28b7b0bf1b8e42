/* Offers as a table for people and as JSON. */
#include "base/printable.h"
#include "base/size.h"
#include "engine/tune/tune_impl.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const devices[] = {"none", "cpu", "nvme"};

/* ---- the table ------------------------------------------------------------------------------ */

/* The question, before the answers. */
static void print_head(FILE *f, const struct tune *t)
{
    const struct tune_options *o = &t->options;
    char gpu[24], host[24], nvme[24];
    printable_print(f, "%s (%.1f M parameters", t->model_name, (double)t->numel / 1e6);
    if (t->numel_trainable < t->numel)
        fprintf(f, ", %.1f M trained", (double)t->numel_trainable / 1e6);
    printable_print(f, "), %s, %lld rank%s, %lld tokens a row; ", dtype_name(o->dtype),
                    (long long)o->world_size, o->world_size == 1 ? "" : "s", (long long)t->T);
    if (o->gpu_nbytes > 0)
        printable_print(f, "GPU %s, ", size_written(o->gpu_nbytes, gpu, sizeof gpu));
    printable_print(f, "host %s", size_written(o->host_nbytes, host, sizeof host));
    if (o->nvme_nbytes > 0)
        printable_print(f, ", NVMe %s", size_written(o->nvme_nbytes, nvme, sizeof nvme));
    fprintf(f, ".\n");
    if (tune_is_timed(t) && o->profile->is_assumed)
        printable_print(f, "Fastest first, by %s%s%s; czero bench --profile measures real rates:\n",
                        o->profile->device, *o->profile->device ? " and " : "", o->profile->cpu);
    else if (tune_is_timed(t))
        fprintf(f, "Fastest first, by the machine profile:\n");
    else if (o->profile)
        fprintf(f, "The machine profile lacks figures for this, so the results are sorted by bytes "
                   "moved per token:\n");
    else
        fprintf(f, "There is no machine profile (czero bench --profile FILE), so the results are "
                   "sorted by bytes moved per token:\n");
}

/* What the lines' words mean: those that occur in the first n. */
static void print_legend(FILE *f, const struct tune *t, size_t n)
{
    bool alone = false, ratio = false, every = false, from_host = false, not = false;
    for (size_t i = 0; i < n; i++) {
        const struct tune_offer *o = &t->offers[i];
        alone = alone || (o->stage > 0 && t->options.world_size == 1);
        ratio = ratio || o->ratio < 1;
        every = every || o->checkpoint_every > 1;
        from_host = from_host || o->cpu_checkpointing;
        not = not || o->max_in_cpu > 0;
    }
    fprintf(f,
            "Sizes are peaks. micro-batch 7 × 5: 7 rows at a time, 5 times an optimizer step.\n");
    if (alone)
        fprintf(f, "stage 2 or 3 on one rank divides nothing; in DeepSpeed's configs it goes with "
                   "offloading.\n");
    if (ratio)
        fprintf(f, "optimizer in the host (74.8 %%): that part of the optimizer's states; the "
                   "rest stays in faster memory.\n");
    if (not ) fprintf(f, "parameters on NVMe (90 M not): so many stay in host memory.\n");
    if (every)
        fprintf(f, "layers recomputed by 8: of eight layers only the first input is kept, and the "
                   "backward pass computes the rest again.\n");
    if (from_host)
        fprintf(f, "layers recomputed … from the host: these inputs wait in host memory.\n");
}

/* A budget that is not there has no column. */
static void print_need(FILE *f, size_t nbytes, size_t budget)
{
    char buf[24];
    if (budget > 0 || nbytes > 0)
        printable_print(f, " %11s", nbytes > 0 ? size_human(nbytes, buf, sizeof buf) : "-");
}

cz_status tune_table(const struct tune *t, size_t n_max, char **out)
{
    size_t nbytes, n = t->n_offers < n_max ? t->n_offers : n_max;
    *out = NULL;
    FILE *f = open_memstream(out, &nbytes);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory for a table");
    print_head(f, t);
    printable_print(f, "  # %9s%s %11s%s\n", "tokens/s",
                    t->options.gpu_nbytes > 0 ? "         GPU" : "", "host",
                    t->options.nvme_nbytes > 0 ? "        NVMe" : "");
    /* One line per offer, best first; "?" stands for a time that no profile can tell. */
    for (size_t i = 0; i < n; i++) {
        const struct tune_offer *o = &t->offers[i];
        char text[192];
        fprintf(f, "%3zu", i + 1);
        if (!o->fits)
            printable_print(f, " %9s", "-");
        else if (!isnan(o->tokens_per_s))
            fprintf(f, " %9.4g", o->tokens_per_s);
        else
            printable_print(f, " %9s", "?");
        if (t->options.gpu_nbytes > 0) print_need(f, o->need_nbytes[TUNE_GPU], 1);
        print_need(f, o->need_nbytes[TUNE_HOST], 1);
        if (t->options.nvme_nbytes > 0) print_need(f, o->need_nbytes[TUNE_NVME], 1);
        printable_print(f, "  %s%s%s\n", tune_offer_text(o, text, sizeof text),
                        o->why[0] ? ": " : "", o->why);
    }
    if (n < t->n_offers) fprintf(f, "and %zu more (--all)\n", t->n_offers - n);
    print_legend(f, t, n);
    if (n > 0 && t->offers[0].fits) {
        const struct tune_offer *best = &t->offers[0];
        const struct plan_orders orders = {.accumulation = best->accumulation,
                                           .order = best->order,
                                           .why = best->order_why,
                                           .traffic = best->traffic};
        plan_print_orders(f, &orders);
        plan_print_saved(f, best->saved, best->saved_why);
    }
    if (fclose(f) == 0 && *out) return CZ_OK;
    free(*out);
    *out = NULL;
    return err_set(CZ_NOMEM, 0, "no memory for a table");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Unknown speed is null; sizes are bytes. */
static void write_offer(struct json_writer *w, const struct tune_offer *o)
{
    char text[192];
    json_begin_object(w);
    json_put_string(w, "configuration", tune_offer_text(o, text, sizeof text));
    json_put_int(w, "zero_stage", o->stage);
    json_put_string(w, "offload_optimizer", devices[o->optimizer]);
    json_put_bool(w, "offload_gradients", o->gradients);
    json_put_double(w, "ratio", o->ratio);
    json_put_string(w, "offload_param", devices[o->params]);
    json_put_int(w, "max_in_cpu", o->max_in_cpu);
    json_put_int(w, "checkpoint_every", o->checkpoint_every);
    json_put_bool(w, "cpu_checkpointing", o->cpu_checkpointing);
    json_put_int(w, "micro_batch", o->micro_batch);
    json_put_int(w, "gradient_accumulation_steps", o->accumulation);
    json_put_bool(w, "fits", o->fits);
    json_put_int(w, "gpu_bytes", (int64_t)o->need_nbytes[TUNE_GPU]);
    json_put_int(w, "host_bytes", (int64_t)o->need_nbytes[TUNE_HOST]);
    json_put_int(w, "nvme_bytes", (int64_t)o->need_nbytes[TUNE_NVME]);
    json_put_figure(w, "step_seconds", o->seconds);
    json_put_figure(w, "tokens_per_second", o->tokens_per_s);
    json_put_string(w, "accumulation_order", plan_order_name(o->order));
    plan_write_traffic(w, o->traffic);
    if (*o->saved_why) plan_write_saved(w, o->saved, o->saved_why);
    json_put_string(w, "why_not", o->why);
    json_end_object(w);
}

cz_status tune_json(const struct tune *t, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "model", t->model_name);
    json_put_int(&w, "parameters", (int64_t)t->numel);
    json_put_int(&w, "trained_parameters", (int64_t)t->numel_trainable);
    json_put_int(&w, "seq_len", t->T);
    json_put_int(&w, "world_size", t->options.world_size);
    json_put_string(&w, "dtype", dtype_name(t->options.dtype));
    json_put_int(&w, "gpu_memory_bytes", (int64_t)t->options.gpu_nbytes);
    json_put_int(&w, "host_memory_bytes", (int64_t)t->options.host_nbytes);
    json_put_int(&w, "nvme_bytes", (int64_t)t->options.nvme_nbytes);
    json_put_string(&w, "ordered_by", tune_is_timed(t) ? "time" : "bytes moved");
    json_put_bool(&w, "fits", tune_best(t) != NULL);
    json_put_string(&w, "missing", t->missing);
    json_put_int(&w, "plans", (int64_t)t->n_plans);
    json_write_key(&w, "offers");
    json_begin_array(&w);
    for (size_t i = 0; i < t->n_offers; i++) write_offer(&w, &t->offers[i]);
    json_end_array(&w);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}
