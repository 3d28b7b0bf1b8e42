/* "What fits on my machine?": a quick search for each preset. A row shows the first configuration
 * that fits, which moves less than all that come after it, or what the nearest one lacks; `czero
 * tune --model` searches all of them. DeepSpeed's own answer stands beside ours. */
#include "tools/czero/tune/tune_presets.h"

#include "base/printable.h"
#include "base/size.h"
#include "engine/machine/machine.h"
#include "formats/json/json_write.h"
#include "model/families.h"
#include "model/model.h"
#include "tools/czero/config_args.h"
#include "tools/czero/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL_MIN    50000000 /* smaller ones are for tests, and fit anywhere */
#define N_PARAMS_MAX 10000    /* of mixtures with more tensors a search takes minutes */
#define TOKENS_EACH  1e6

struct row {
    char name[64];
    size_t numel;
    int64_t T;
    struct tune_offer offer; /* the one that fits, or the nearest */
    double seconds;          /* of a million tokens; NAN: does not fit */
    bool has_deepspeed;
    struct plan_estimate deepspeed;
};

/* The question, and its answers by size. */
struct presets {
    const struct tune_options *options;
    int64_t seq_len;
    struct row *rows, adapter; /* adapter.numel 0: none is told of */
    size_t n, n_fit;
    const struct row *best; /* the largest that fits; NULL: none */
};

static int by_size(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return (x->numel > y->numel) - (x->numel < y->numel);
}

/* DeepSpeed has no estimate of NVMe. */
static bool ask_deepspeed(const struct tune_options *options, const struct cz_model *model,
                          const struct tune_offer *o, struct plan_estimate *out)
{
    bool on_nvme = o->optimizer == CONFIG_OFFLOAD_NVME || o->params == CONFIG_OFFLOAD_NVME;
    return !on_nvme &&
           plan_estimate_deepspeed(model, o->stage, o->optimizer != CONFIG_OFFLOAD_NONE,
                                   o->params != CONFIG_OFFLOAD_NONE, options->world_size, out);
}

/* *skip: too small to ask about, or too many tensors, or no place for the adapter. */
static cz_status fill_row(const struct tune_options *options, const char *name, int64_t seq_len,
                          struct row *r, bool *skip)
{
    struct cz_model *model = cz_model_open(name);
    struct tune *t = NULL;
    cz_status st = CZ_OK;
    if (!model) return cz_last_status();
    r->numel = param_table_numel(model_params(model), false);
    *skip = r->numel < NUMEL_MIN || model_params(model)->n_params > N_PARAMS_MAX;
    if (*skip) goto done;
    snprintf(r->name, sizeof r->name, "%s", name);
    r->T = plan_usual_tokens(model);
    if (seq_len > 0 && seq_len < r->T) r->T = seq_len;
    if (seq_len > r->T) r->T = seq_len < cz_model_t_max(model) ? seq_len : cz_model_t_max(model);
    TRY_GOTO(cz_model_set_shape(model, r->T), done);
    st = tune_create(options, model, &t);
    *skip = options->lora && (st == CZ_INVALID || st == CZ_UNSUPPORTED);
    if (st != CZ_OK) goto done;
    r->offer = *tune_offer(t, 0);
    r->seconds = r->offer.fits ? TOKENS_EACH / r->offer.tokens_per_s : NAN;
    /* It knows of no frozen parameters. */
    r->has_deepspeed = !options->lora && ask_deepspeed(options, model, &r->offer, &r->deepspeed);
done:
    tune_destroy(t);
    cz_model_destroy(model);
    return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static double gib(double nbytes)
{
    return nbytes / (double)(1 << 30);
}

static const char *duration(double s, char *buf, size_t n)
{
    char number[48];
    if (isnan(s))
        snprintf(buf, n, "-");
    else if (s < 100)
        snprintf(buf, n, "%s s", size_number(s, 3, number, sizeof number));
    else if (s < 6000)
        snprintf(buf, n, "%s min", size_number(s / 60, 3, number, sizeof number));
    else if (s < 360000)
        snprintf(buf, n, "%s h", size_number(s / 3600, 3, number, sizeof number));
    else
        snprintf(buf, n, "%s days", size_number(s / 86400, 3, number, sizeof number));
    return buf;
}

static const char *parameters(size_t numel, char *buf, size_t n)
{
    if (numel < 1000000000)
        snprintf(buf, n, "%.0f M", (double)numel / 1e6);
    else
        snprintf(buf, n, "%.1f B", (double)numel / 1e9);
    return buf;
}

static void print_question(FILE *f, const struct tune_options *o, int64_t seq_len)
{
    char gpu[24], host[24], nvme[24];
    fprintf(f, "What trains on");
    if (o->world_size > 1) fprintf(f, " %lld ranks, each with", (long long)o->world_size);
    if (o->gpu_nbytes > 0)
        printable_print(f, " a GPU of %s and", size_written(o->gpu_nbytes, gpu, sizeof gpu));
    printable_print(f, " %s of host memory", size_written(o->host_nbytes, host, sizeof host));
    if (o->nvme_nbytes > 0)
        printable_print(f, " and %s of NVMe", size_written(o->nvme_nbytes, nvme, sizeof nvme));
    printable_print(f, ": %s, AdamW, ", dtype_name(o->dtype));
    if (o->lora) fprintf(f, "an adapter of rank %lld, ", (long long)o->lora->rank);
    if (seq_len > 0)
        fprintf(f, "rows of %lld tokens (or what the model takes)\n", (long long)seq_len);
    else
        fprintf(f, "rows as long as the model takes, at most 2048 tokens\n");
    const struct machine_profile *m = o->profile;
    if (m->is_assumed)
        printable_print(f, "Times: %s%s%s; real ones differ, perhaps by a factor of two.\n",
                        m->device, *m->device ? " in " : "", m->cpu);
    else
        fprintf(f, "Times: by the machine profile.\n");
}

static void print_head(FILE *f, const struct tune_options *o, int64_t seq_len)
{
    print_question(f, o, seq_len);
    fputs("\n", f);
    printable_print(f, "%-16s %7s  %-4s%s %9s %10s%s  %s\n", "model", "params", "fits",
                    o->gpu_nbytes > 0 ? "  GPU GiB" : "", "host GiB", "1M tokens",
                    o->gpu_nbytes > 0 ? "  DeepSpeed says" : "", "how");
}

static void print_row(FILE *f, const struct tune_options *o, const struct row *r)
{
    char numel[24], time[24], says[32] = "-", how[192];
    const size_t *need = r->offer.need_nbytes;
    if (r->has_deepspeed)
        snprintf(says, sizeof says, "%.1f + %.1f", gib(r->deepspeed.gpu_nbytes),
                 gib(r->deepspeed.host_nbytes));
    printable_print(f, "%-16s %7s  %-4s", r->name, parameters(r->numel, numel, sizeof numel),
                    r->offer.fits ? "yes" : "no");
    if (o->gpu_nbytes > 0) fprintf(f, " %8.1f", gib((double)need[TUNE_GPU]));
    printable_print(f, " %9.1f %10s", gib((double)need[TUNE_HOST]),
                    duration(r->seconds, time, sizeof time));
    if (o->gpu_nbytes > 0) printable_print(f, "  %14s", says);
    printable_print(f, "  %s\n",
                    r->offer.fits ? tune_offer_text(&r->offer, how, sizeof how) : r->offer.why);
}

static void print_legend(FILE *f, const struct tune_options *o)
{
    bool gpu = o->gpu_nbytes > 0;
    fprintf(
        f,
        "\nGiB are peaks of a rank's GPU and of the host. micro-batch 7 × 5: 7 rows at a time, 5 "
        "times an optimizer step.\n");
    if (gpu)
        fprintf(
            f, "optimizer in the host (74.8 %%): that part of its states, the rest stays on the "
               "GPU. Stage 2 or 3 is what such configs need,\nalso on one rank. layers recomputed: "
               "activations are computed again in the backward pass, to save memory.\n"
               "DeepSpeed says: its estimator's GPU + host GiB for the same stage and offload. It "
               "counts model states only, without\nactivations and buckets, and takes the host's "
               "1.5 times as a buffer.\n");
    printable_print(f,
                    "The first configuration that fits is shown; czero tune --model NAME searches "
                    "for the fastest%s.\n",
                    o->nvme_nbytes > 0 ? "" : ", and --nvme SIZE offers a disk");
    fputs("Mixtures of experts with more than 10,000 tensors (qwen3-30b-a3b and larger) are left "
          "out: ask with "
          "--model NAME, which takes\nminutes.\n",
          f);
}

static void print_table(FILE *f, const struct presets *p)
{
    print_head(f, p->options, p->seq_len);
    for (size_t i = 0; i < p->n; i++) print_row(f, p->options, &p->rows[i]);
    print_legend(f, p->options);
}

/* ---- the answer ------------------------------------------------------------------------------ */

#define N_SHOWN 10

/* The largest preset that trains as an adapter where it does not fit whole. */
static cz_status find_adapter(const struct tune_options *quick, struct presets *p)
{
    struct tune_options adapts = *quick;
    struct ds_config *config = NULL;
    cz_status st = config_args_lora(LORA_USUAL, &config, &adapts.lora);
    for (size_t i = p->n; st == CZ_OK && i-- > 0 && p->adapter.numel == 0;) {
        struct row row = {.numel = 0};
        bool skip = false;
        if (p->rows[i].offer.fits) break; /* smaller ones fit whole, or are of no interest */
        st = fill_row(&adapts, p->rows[i].name, p->seq_len, &row, &skip);
        if (skip && st != CZ_OK) {
            err_clear();
            st = CZ_OK;
        } else if (!skip && row.offer.fits) {
            p->adapter = row;
        }
    }
    config_free(config);
    return st;
}

/* Where optimizer and parameters are, in few words. */
static const char *places(const struct tune_options *o, const struct tune_offer *offer)
{
    static const char *const names[3][3] = {
        {"", "parameters in host", "parameters on NVMe"},
        {"optimizer in host", "all in the host", "NVMe and host"},
        {"optimizer on NVMe", "NVMe and host", "all on NVMe"}};
    if (offer->optimizer == CONFIG_OFFLOAD_NONE && offer->params == CONFIG_OFFLOAD_NONE)
        return o->gpu_nbytes > 0 ? "all on the GPU" : "all in memory";
    return names[offer->optimizer][offer->params];
}

static void print_verdict(FILE *f, const struct presets *p)
{
    const struct row *best = p->best, *adapter = &p->adapter;
    const bool adapts = p->options->lora;
    char numel[24];
    if (best)
        printable_print(f, "Fits: %s up to %s (%s)", adapts ? "adapters" : "all weights",
                        best->name, parameters(best->numel, numel, sizeof numel));
    else
        printable_print(f, "%s",
                        adapts ? "No adapter of a preset fits" : "All weights: no preset fits");
    if (adapter->numel > 0)
        printable_print(f, "%s an adapter (--lora " LORA_USUAL ") up to %s (%s)",
                        best ? ";" : ". Fits:", adapter->name,
                        parameters(adapter->numel, numel, sizeof numel));
    fputs(".", f);
}

/* What the answer leaves out. */
static void print_rest(FILE *f, size_t n_smaller, size_t n_too_large)
{
    if (n_smaller > 0)
        printable_print(f, "%zu smaller one%s fit%s as well", n_smaller, n_smaller == 1 ? "" : "s",
                        n_smaller == 1 ? "s" : "");
    if (n_too_large > 0)
        printable_print(f, "%s%zu do%s not fit", n_smaller > 0 ? "; " : "", n_too_large,
                        n_too_large == 1 ? "es" : "");
    if (n_smaller + n_too_large > 0) fputs(" (--all lists all).\n", f);
}

/* Fits in a terminal of 80 columns and 24 lines. */
static void print_answer(FILE *f, const struct presets *p)
{
    const struct tune_options *o = p->options;
    size_t n_shown = 0;
    print_verdict(f, p);
    fputs("\n", f);
    print_question(f, o, p->seq_len);
    if (o->gpu_nbytes > 0) printable_print(f, "%s\n", plan_gpu_status);
    fputs("\n", f);
    if (p->n_fit > 0)
        printable_print(f, "%-18s %7s%s %9s %9s  %s\n", "model", "params",
                        o->gpu_nbytes > 0 ? "  GPU GiB" : "", "host GiB", "1M tokens",
                        "the first that fits");
    for (size_t i = p->n; i-- > 0 && n_shown < N_SHOWN;) {
        const struct row *r = &p->rows[i];
        char numel[24], time[24], wear[PLAN_WEAR_NBYTES];
        if (!r->offer.fits) continue;
        plan_wear(r->offer.phases, r->offer.micro_batch * r->offer.accumulation * r->T, wear,
                  sizeof wear);
        printable_print(f, "%-18s %7s", r->name, parameters(r->numel, numel, sizeof numel));
        if (o->gpu_nbytes > 0) fprintf(f, " %8.1f", gib((double)r->offer.need_nbytes[TUNE_GPU]));
        printable_print(f, " %9.1f %9s  %s%s%s\n", gib((double)r->offer.need_nbytes[TUNE_HOST]),
                        duration(r->seconds, time, sizeof time), places(o, &r->offer),
                        *wear ? ", " : "", wear);
        n_shown++;
    }
    print_rest(f, p->n_fit - n_shown, p->n - p->n_fit);
    fputs("czero tune --model NAME searches for the fastest configuration.\n", f);
}

static cz_status make_text(void (*print)(FILE *f, const struct presets *p), const struct presets *p,
                           char **text)
{
    size_t nbytes;
    *text = NULL;
    FILE *f = open_memstream(text, &nbytes);
    if (f) {
        print(f, p);
        if (fclose(f) == 0 && *text) return CZ_OK;
    }
    free(*text);
    *text = NULL;
    return err_set(CZ_NOMEM, 0, "no memory for a table");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void write_row(struct json_writer *w, const struct row *r)
{
    char how[192];
    const struct tune_offer *o = &r->offer;
    json_begin_object(w);
    json_put_string(w, "model", r->name);
    json_put_size(w, "parameters", r->numel);
    json_put_int(w, "seq_len", r->T);
    json_put_bool(w, "fits", o->fits);
    json_put_string(w, "configuration", tune_offer_text(o, how, sizeof how));
    json_put_size(w, "gpu_bytes", o->need_nbytes[TUNE_GPU]);
    json_put_size(w, "host_bytes", o->need_nbytes[TUNE_HOST]);
    json_put_size(w, "nvme_bytes", o->need_nbytes[TUNE_NVME]);
    json_put_figure(w, "seconds_per_million_tokens", r->seconds);
    json_put_figure(w, "deepspeed_estimator_gpu_bytes",
                    r->has_deepspeed ? r->deepspeed.gpu_nbytes : NAN);
    json_put_figure(w, "deepspeed_estimator_host_bytes",
                    r->has_deepspeed ? r->deepspeed.host_nbytes : NAN);
    json_put_string(w, "why_not", o->fits ? "" : o->why);
    json_end_object(w);
}

static cz_status make_json(const struct presets *p, char **text)
{
    const struct tune_options *o = p->options;
    struct json_writer w;
    char *verdict;
    TRY(make_text(print_verdict, p, &verdict));
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "verdict", verdict);
    json_put_int(&w, "gpu_memory_bytes", (int64_t)o->gpu_nbytes);
    json_put_int(&w, "host_memory_bytes", (int64_t)o->host_nbytes);
    json_put_int(&w, "nvme_bytes", (int64_t)o->nvme_nbytes);
    json_put_int(&w, "world_size", o->world_size);
    json_put_string(&w, "dtype", dtype_name(o->dtype));
    json_put_string(&w, "rates", o->profile->is_assumed ? "assumed" : "measured");
    json_write_key(&w, "models");
    json_begin_array(&w);
    for (size_t i = 0; i < p->n; i++) write_row(&w, &p->rows[i]);
    json_end_array(&w);
    json_end_object(&w);
    free(verdict);
    return json_writer_take(&w, text, NULL);
}

/* ---- the search ------------------------------------------------------------------------------ */

/* A preset that cannot be asked about (see fill_row()) is no error as long as another can. */
static cz_status fill_rows(const struct tune_options *quick, struct presets *p)
{
    struct err refusal = {.status = CZ_OK};
    const char *name;
    size_t n_names = 0;
    while (model_preset_name(n_names)) n_names++;
    p->rows = calloc(n_names + 1, sizeof *p->rows);
    if (!p->rows) return err_set(CZ_NOMEM, 0, "no memory for a table");
    for (size_t i = 0; (name = model_preset_name(i)); i++) {
        bool skip = false;
        cz_status st = fill_row(quick, name, p->seq_len, &p->rows[p->n], &skip);
        if (st != CZ_OK && !skip) return st;
        if (st != CZ_OK) {
            err_capture(&refusal);
            err_clear();
        }
        if (!skip) p->n_fit += p->rows[p->n++].offer.fits;
    }
    if (p->n == 0 && refusal.status != CZ_OK) { /* the adapter goes with none of them */
        err_restore(&refusal);
        return refusal.status;
    }
    qsort(p->rows, p->n, sizeof *p->rows, by_size);
    for (size_t i = 0; i < p->n; i++)
        if (p->rows[i].offer.fits) p->best = &p->rows[i];
    return CZ_OK;
}

cz_status tune_presets_print(const struct tune_options *options, int64_t seq_len, bool all,
                             bool json, size_t *n_fit)
{
    struct tune_options quick = *options;
    struct presets p = {.options = options, .seq_len = seq_len};
    char *text = NULL;
    quick.quick = true;
    *n_fit = 0;
    cz_status st = fill_rows(&quick, &p);
    if (st == CZ_OK && !options->lora && (json || !all)) st = find_adapter(&quick, &p);
    if (st == CZ_OK)
        st = json ? make_json(&p, &text) : make_text(all ? print_table : print_answer, &p, &text);
    if (st == CZ_OK) {
        tool_put_report(text, json);
        *n_fit = p.n_fit;
    }
    free(p.rows);
    return st;
}
