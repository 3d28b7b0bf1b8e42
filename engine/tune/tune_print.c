/* Offers as a table for people and as JSON. */
#include "base/printable.h"
#include "base/size.h"
#include "engine/tune/tune_impl.h"
#include "formats/json/json_write.h"
#include "offload/swap.h"

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
    if (o->gpu_nbytes > 0) printable_print(f, "%s\n", plan_gpu_status);
    char warning[SWAP_WARNING_NBYTES];
    const struct swap_options disks = {.dir = t->nvme_path,
                                       .more_dirs = o->nvme_paths + 1,
                                       .n_more_dirs =
                                           o->n_nvme_paths > 1 ? o->n_nvme_paths - 1 : 0};
    if (o->nvme_nbytes > 0 && *swap_warn_of_memory(&disks, warning))
        printable_print(f, "%s\n", warning);
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

/* What is full to the brim on a machine that people also work on. */
static void print_room(FILE *f, const struct tune *t)
{
    const size_t budget = t->options.host_nbytes, room = (size_t)2 << 30;
    const size_t desktop = (size_t)128 << 30;
    char have[24], need[24];
    if (t->n_offers == 0 || !t->offers[0].fits || budget > desktop || budget < 2 * room) return;
    if (t->offers[0].need_nbytes[TUNE_HOST] + room <= budget) return;
    printable_print(f,
                    "The best needs %s of the host's %s. A desktop keeps 2 to 4 GiB for other "
                    "programs: give that much less.\n",
                    size_human(t->offers[0].need_nbytes[TUNE_HOST], need, sizeof need),
                    size_written(budget, have, sizeof have));
}

/* What the lines' words mean: those that occur in the first n, with the numbers of the first line
 * that has them. */
static void print_legend(FILE *f, const struct tune *t, size_t n)
{
    const struct tune_offer *alone = NULL, *ratio = NULL, *every = NULL, *from_host = NULL,
                            *stays = NULL, *batch = n > 0 ? &t->offers[0] : NULL;
    for (size_t i = n; i-- > 0;) {
        const struct tune_offer *o = &t->offers[i];
        if (o->stage > 0 && t->options.world_size == 1) alone = o;
        if (o->ratio < 1) ratio = o;
        if (o->checkpoint_every > 1) every = o;
        if (o->cpu_checkpointing) from_host = o;
        if (o->max_in_cpu > 0) stays = o;
    }
    if (batch)
        printable_print(
            f,
            "Sizes are peaks. micro-batch %lld × %lld: %lld row%s at a time, %lld time%s an "
            "optimizer step.\n",
            (long long)batch->micro_batch, (long long)batch->accumulation,
            (long long)batch->micro_batch, batch->micro_batch == 1 ? "" : "s",
            (long long)batch->accumulation, batch->accumulation == 1 ? "" : "s");
    if (alone)
        fprintf(f,
                "stage %d on one rank divides nothing; in DeepSpeed's configs it goes with "
                "offloading.\n",
                alone->stage);
    if (ratio)
        fprintf(f,
                "(%.1f %%): that part of the optimizer's states; the rest stays in faster "
                "memory.\n",
                ratio->ratio * 100);
    if (stays)
        fprintf(f, "parameters on NVMe (%.0f M not): so many stay in host memory.\n",
                (double)stays->max_in_cpu / 1e6);
    if (every)
        fprintf(f,
                "layers recomputed by %lld: of %lld layers only the first input is kept, and the "
                "backward pass computes the rest again.\n",
                (long long)every->checkpoint_every, (long long)every->checkpoint_every);
    if (from_host) fprintf(f, "from the host: these inputs wait in host memory.\n");
    print_room(f, t);
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
        char text[192], number[48], wear[PLAN_WEAR_NBYTES];
        plan_wear(o->phases, o->micro_batch * o->accumulation * t->T, wear, sizeof wear);
        fprintf(f, "%3zu", i + 1);
        if (!o->fits)
            printable_print(f, " %9s", "-");
        else if (!isnan(o->tokens_per_s))
            printable_print(f, " %9s", size_number(o->tokens_per_s, 4, number, sizeof number));
        else
            printable_print(f, " %9s", "?");
        if (t->options.gpu_nbytes > 0) print_need(f, o->need_nbytes[TUNE_GPU], 1);
        print_need(f, o->need_nbytes[TUNE_HOST], 1);
        if (t->options.nvme_nbytes > 0) print_need(f, o->need_nbytes[TUNE_NVME], 1);
        printable_print(f, "  %s%s%s%s%s\n", tune_offer_text(o, text, sizeof text),
                        *wear ? ", " : "", wear, o->why[0] ? ": " : "", o->why);
    }
    if (n < t->n_offers) fprintf(f, "and %zu more (--all)\n", t->n_offers - n);
    print_legend(f, t, n);
    if (n > 0 && n == t->n_offers && t->offers[0].fits) { /* beyond a screen */
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
static void write_offer(struct json_writer *w, const struct tune *t, const struct tune_offer *o)
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
    json_put_double(w, "nvme_written_bytes_per_million_tokens",
                    plan_wear_nbytes(o->phases, o->micro_batch * o->accumulation * t->T));
    json_put_string(w, "accumulation_order", plan_order_name(o->order));
    plan_write_traffic(w, o->traffic);
    if (*o->saved_why) plan_write_saved(w, o->saved, o->saved_why);
    json_put_string(w, "why_not", o->why);
    json_end_object(w);
}

cz_status tune_json(const struct tune *t, const char *verdict, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict);
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
    for (size_t i = 0; i < t->n_offers; i++) write_offer(&w, t, &t->offers[i]);
    json_end_array(&w);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}
