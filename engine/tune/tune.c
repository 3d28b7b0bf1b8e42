/* The search: every combination, at the largest micro-batch that fits. Plans are exact and cheap,
 * so all schemes are planned rather than guessed at; what a scheme cannot improve on (a larger one
 * fits already) is skipped. The best of each kind is kept, so that a user sees alternatives. */
#include "engine/plan/description.h"
#include "engine/tune/tune_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_PER_RANK 32 /* of an optimizer step, by default */
#define MICROS_MAX    64

/* ---- what is tried -------------------------------------------------------------------------- */

enum { N = CONFIG_OFFLOAD_NONE, C = CONFIG_OFFLOAD_CPU, D = CONFIG_OFFLOAD_NVME };

/* From what moves least to what moves most. DeepSpeed keeps the states of stages 1 and 2 in host
 * memory where NVMe is asked for, and splits parameters at stage 3 only: so do offers. */
static const struct scheme {
    int stage, optimizer, params;
    bool gradients;
} schemes[] = {
    {0, N, N}, {1, N, N}, {2, N, N},       {3, N, N},       {1, C, N}, {2, C, N},
    {3, C, N}, {3, N, C}, {3, C, C},       {3, D, N},       {3, D, C}, {3, N, D},
    {3, C, D}, {3, D, D}, {3, D, N, true}, {3, D, D, true},
};

/* On the CPU everything is in host memory already, and one rank's gradients may leave it; one rank
 * has nothing to split. */
static bool makes_sense(const struct tune *t, const struct scheme *s)
{
    bool gpu = t->options.gpu_nbytes > 0, alone = t->options.world_size == 1;
    bool offloads = s->optimizer != N || s->params != N;
    if (s->gradients && (gpu || !alone)) return false;
    if (!gpu && (s->optimizer == C || s->params == C)) return false;
    if (alone && !offloads) return s->stage == 0;
    return !(alone && s->stage == 1);
}

/* Schemes with NVMe are tried only where a disk is offered. */
static bool uses_nvme(const struct scheme *s)
{
    return s->optimizer == D || s->params == D;
}

/* Sizes in elements of what is reduced, fetched ahead and held together. */
static const struct sizes {
    int64_t bucket, prefetch, live;
} sizes[] = {{500000000, 50000000, 1000000000},
             {50000000, 50000000, 200000000},
             {5000000, 5000000, 5000000}};

static const int64_t everies[] = {0, 8, 4, 2, 1};

/* ---- micro-batches -------------------------------------------------------------------------- */

struct micros {
    int64_t rows[MICROS_MAX];
    size_t n;
};

/* Ascending. With a batch to meet, its divisors. */
static void list_micros(const struct tune *t, struct micros *m)
{
    const struct tune_options *o = &t->options;
    int64_t each = o->batch / o->world_size, most = o->batch > 0 ? each : ROWS_PER_RANK;
    m->n = 0;
    if (o->micro_batch > 0) {
        m->rows[m->n++] = o->micro_batch;
        return;
    }
    for (int64_t rows = 1; rows <= most && m->n < MICROS_MAX; rows++) {
        bool is_step = rows <= 8 || (rows <= 16 && rows % 2 == 0) || rows % 8 == 0;
        if (o->batch > 0 ? each % rows == 0 : is_step) m->rows[m->n++] = rows;
    }
}

/* Close to ROWS_PER_RANK rows per step where no batch is asked for. */
static int64_t accumulation_of(const struct tune *t, int64_t micro)
{
    const struct tune_options *o = &t->options;
    if (o->batch > 0) return o->batch / o->world_size / micro;
    if (o->micro_batch > 0) return 1;
    return (ROWS_PER_RANK + micro / 2) / micro;
}

/* ---- offers --------------------------------------------------------------------------------- */

/* Offers that differ in sizes and micro-batch only are one choice to a user. */
static bool same_kind(const struct tune_offer *a, const struct tune_offer *b)
{
    return a->stage == b->stage && a->optimizer == b->optimizer && a->params == b->params &&
           a->gradients == b->gradients && !a->checkpoint_every == !b->checkpoint_every &&
           a->cpu_checkpointing == b->cpu_checkpointing;
}

/* Keep the best of its kind. */
static cz_status offer(struct tune *t, const struct tune_offer *o)
{
    for (size_t i = 0; i < t->n_offers; i++) {
        if (!same_kind(&t->offers[i], o)) continue;
        if (tune_is_better(t, o, &t->offers[i])) t->offers[i] = *o;
        return CZ_OK;
    }
    if (t->n_offers == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 32;
        struct tune_offer *grown = realloc(t->offers, capacity * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu offers", capacity);
        t->offers = grown;
        t->capacity = capacity;
    }
    t->offers[t->n_offers++] = *o;
    return CZ_OK;
}

/* The accumulation follows, so that all offers train the same batch. */
static cz_status try_micro(struct tune *t, struct cz_model *model, struct tune_offer *o,
                           int64_t micro)
{
    o->micro_batch = micro;
    o->accumulation = accumulation_of(t, micro);
    return tune_plan(t, model, o);
}

/* What needs may come to, margins aside. */
static double usable(const struct tune *t, enum tune_budget b)
{
    double budget = (double)tune_budget_nbytes(t, b), least = (double)tune_margin(t, b, 0);
    return fmin(budget / 1.02, budget - least);
}

/* What is left of the memory that masters and states were moved out of takes some of them back:
 * the largest share, in thousandths, that fits. On a GPU that may be what makes the rest fit into
 * the host. */
static cz_status fill_up(struct tune *t, struct cz_model *model, struct tune_offer *o)
{
    enum tune_budget b = t->options.gpu_nbytes > 0 ? TUNE_GPU : TUNE_HOST;
    struct tune_offer all = *o;
    if (o->stage != 3 || o->optimizer == CONFIG_OFFLOAD_NONE) return CZ_OK;
    if (!o->fits && b == TUNE_HOST) return CZ_OK;
    all.ratio = 0;
    TRY(tune_plan(t, model, &all));
    if (all.fits) return CZ_OK; /* that is the scheme without this offload */
    double whole = (double)all.need_nbytes[b] - (double)o->need_nbytes[b];
    double left = usable(t, b) - (double)o->need_nbytes[b];
    if (whole <= 0 || left <= 0) return CZ_OK;
    int64_t kept = (int64_t)floor(fmin(1, left / whole) * 1000);
    for (int tries = 0; tries < 4 && kept > 0; tries++, kept -= tries) {
        struct tune_offer some = *o;
        some.ratio = (double)(1000 - kept) / 1000; /* rounding may take one or two more */
        TRY(tune_plan(t, model, &some));
        if (!some.fits) continue;
        *o = some;
        return CZ_OK;
    }
    return CZ_OK;
}

/* And what is left of the host keeps parameters out of the swap file. */
static cz_status fill_host(struct tune *t, struct cz_model *model, struct tune_offer *o)
{
    struct tune_offer more = *o;
    if (o->params != CONFIG_OFFLOAD_NVME || !o->fits) return CZ_OK;
    double n_ranks = (double)t->options.world_size, size = (double)dtype_size(t->options.dtype);
    double left = usable(t, TUNE_HOST) - (double)o->need_nbytes[TUNE_HOST];
    double kept = left / n_ranks / size;
    if (kept < 1 || kept >= (double)t->numel) return CZ_OK; /* all: another scheme does that */
    more.max_in_cpu = (int64_t)kept;
    TRY(tune_plan(t, model, &more));
    if (tune_is_better(t, &more, o)) *o = more;
    return CZ_OK;
}

/* The largest micro-batch that fits; the smallest when none does. *n_fit: how many do. */
static cz_status find_micro(struct tune *t, struct cz_model *model, const struct micros *m,
                            struct tune_offer *o, size_t *n_fit)
{
    size_t fits = 1, fails = m->n; /* [0, fits) fit, [fails, n) do not */
    struct tune_offer next = *o;
    *n_fit = 0;
    TRY(try_micro(t, model, o, m->rows[0]));
    if (!o->fits) return CZ_OK;
    while (fits < fails) {
        size_t middle = fits + (fails - fits) / 2;
        TRY(try_micro(t, model, &next, m->rows[middle]));
        if (next.fits) *o = next;
        *(next.fits ? &fits : &fails) = next.fits ? middle + 1 : middle;
    }
    *n_fit = fits;
    return CZ_OK;
}

/* Half the micro-batch, and half of that, leave more memory for offloaded data. */
static cz_status trade_room(struct tune *t, struct cz_model *model, const struct micros *m,
                            struct tune_offer o, size_t n_fit)
{
    int n_halves = t->options.quick ? 1 : 3;
    for (int halves = 0; halves < n_halves && n_fit > 0; halves++, n_fit /= 2) {
        o.ratio = 1;
        o.max_in_cpu = 0;
        TRY(try_micro(t, model, &o, m->rows[n_fit - 1]));
        TRY(fill_up(t, model, &o));
        TRY(fill_host(t, model, &o));
        TRY(offer(t, &o));
        if (o.ratio >= 1 && o.max_in_cpu == 0) break;
    }
    return CZ_OK;
}

/* The host cannot hold all that is offloaded, but a GPU may keep enough of it, at small
 * micro-batches sooner than at large ones. */
static cz_status share_out(struct tune *t, struct cz_model *model, const struct micros *m,
                           struct tune_offer o)
{
    for (size_t i = 0; i < m->n; i++) {
        o.ratio = 1;
        TRY(try_micro(t, model, &o, m->rows[i]));
        TRY(fill_up(t, model, &o));
        if (!o.fits) break;
        TRY(fill_host(t, model, &o));
        TRY(offer(t, &o));
    }
    return CZ_OK;
}

/* *all: nothing that needs less memory can be faster. */
static cz_status try_one(struct tune *t, struct cz_model *model, const struct micros *m,
                         struct tune_offer o, bool *all)
{
    size_t n_fit;
    TRY(find_micro(t, model, m, &o, &n_fit));
    TRY(offer(t, &o));
    *all = n_fit == m->n && o.optimizer == CONFIG_OFFLOAD_NONE;
    bool stays = o.optimizer == CONFIG_OFFLOAD_NONE && o.params != CONFIG_OFFLOAD_NVME;
    if (stays) return CZ_OK;
    return n_fit > 0 ? trade_room(t, model, m, o, n_fit) : share_out(t, model, m, o);
}

/* Large buckets and windows first: smaller ones are tried only if these do not fit. */
static cz_status try_scheme(struct tune *t, struct cz_model *model, const struct micros *m,
                            const struct scheme *s, int64_t every, bool to_cpu, bool *all)
{
    size_t n_sizes =
        (s->stage > 0 && (t->options.world_size > 1 || s->optimizer != N || s->params != N))
            ? CZ_ARRAY_LEN(sizes)
            : 1;
    *all = false;
    for (size_t k = t->options.quick ? n_sizes - 1 : 0; k < n_sizes && !*all; k++) {
        const struct tune_offer o = {.stage = s->stage,
                                     .optimizer = (enum config_offload_device)s->optimizer,
                                     .params = (enum config_offload_device)s->params,
                                     .gradients = s->gradients,
                                     .ratio = 1,
                                     .checkpoint_every = every,
                                     .cpu_checkpointing = to_cpu,
                                     .bucket_numel = sizes[k].bucket,
                                     .prefetch_numel = sizes[k].prefetch,
                                     .live_numel = sizes[k].live};
        TRY(try_one(t, model, m, o, all));
    }
    return CZ_OK;
}

/* After each combination; those that are left out count as tried. */
static void tell_progress(struct tune *t, size_t n_tried)
{
    const struct tune_options *o = &t->options;
    double best = NAN;
    t->n_tried = n_tried;
    if (!o->progress) return;
    for (size_t i = 0; i < t->n_offers; i++)
        if (t->offers[i].fits && !(t->offers[i].tokens_per_s <= best))
            best = t->offers[i].tokens_per_s;
    o->progress(o->progress_user, t->n_plans, n_tried, t->n_combinations, best);
}

/* How many combinations try_checkpointing() has for a scheme. */
static size_t n_ways(const struct tune *t)
{
    size_t n = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(everies); i++)
        if ((size_t)everies[i] < t->n_layers)
            n += everies[i] == 0 || t->options.gpu_nbytes == 0 ? 1 : 2;
    return n;
}

/* From no recomputation to all layers: the first that fits everything ends the search. */
static cz_status try_checkpointing(struct tune *t, struct cz_model *model, const struct micros *m,
                                   const struct scheme *s)
{
    bool all;
    const size_t begun = t->n_tried;
    for (size_t i = 0; i < CZ_ARRAY_LEN(everies); i++) {
        if ((size_t)everies[i] >= t->n_layers) continue;
        if (t->options.quick && everies[i] > 1) continue;
        TRY(try_scheme(t, model, m, s, everies[i], false, &all));
        tell_progress(t, t->n_tried + 1);
        if (all || everies[i] == 0 || t->options.gpu_nbytes == 0) continue;
        TRY(try_scheme(t, model, m, s, everies[i], true, &all));
        tell_progress(t, t->n_tried + 1);
    }
    tell_progress(t, begun + n_ways(t));
    return CZ_OK;
}

static bool has_fit(const struct tune *t)
{
    for (size_t i = 0; i < t->n_offers; i++)
        if (t->offers[i].fits) return true;
    return false;
}

/* Parameter, gradient, master and Adam's states are in some memory: 16 bytes for each that is
 * trained, and the parameter alone where it is frozen. A model that needs more than there is gets
 * one plan, of the scheme that needs least. */
static bool is_hopeless(const struct tune *t)
{
    const struct tune_options *o = &t->options;
    double memory = (double)o->gpu_nbytes * (double)o->world_size + (double)o->host_nbytes;
    double least = 16.0 * (double)t->numel_trainable +
                   (double)dtype_size(o->dtype) * (double)(t->numel - t->numel_trainable);
    return o->nvme_nbytes == 0 && least > memory;
}

static cz_status try_least(struct tune *t, struct cz_model *model, const struct micros *m)
{
    bool gpu = t->options.gpu_nbytes > 0, all;
    const struct scheme least = {gpu || t->options.world_size > 1 ? 3 : 0, gpu ? C : N, gpu ? C : N,
                                 false};
    return try_scheme(t, model, m, &least, t->n_layers > 1, gpu && t->n_layers > 1, &all);
}

/* Schemes in their order: ties are won by the one that moves less. */
static cz_status try_all(struct tune *t, struct cz_model *model, bool with_nvme)
{
    struct micros m;
    bool fits = false;
    list_micros(t, &m);
    if (t->options.quick && is_hopeless(t)) return try_least(t, model, &m);
    for (size_t i = 0; i < CZ_ARRAY_LEN(schemes); i++) {
        if (t->options.quick && fits) break;
        if (makes_sense(t, &schemes[i]) && uses_nvme(&schemes[i]) == with_nvme)
            TRY(try_checkpointing(t, model, &m, &schemes[i]));
        fits = has_fit(t);
    }
    return CZ_OK;
}

/* ---- by rank -------------------------------------------------------------------------------- */

/* Would an NVMe disk help, and how large a one? */
static cz_status ask_nvme(struct tune *t, struct cz_model *model, struct tune_offer *out,
                          bool *found)
{
    struct tune unbound = *t;
    unbound.options.progress = NULL;
    unbound.offers = NULL;
    unbound.n_offers = unbound.capacity = 0;
    unbound.options.nvme_nbytes = SIZE_MAX / 2;
    cz_status st = try_all(&unbound, model, true);
    *found = false;
    for (size_t i = 0; i < unbound.n_offers && st == CZ_OK; i++) {
        const struct tune_offer *o = &unbound.offers[i];
        if (!o->fits || (*found && o->need_nbytes[TUNE_NVME] >= out->need_nbytes[TUNE_NVME]))
            continue;
        *out = *o;
        *found = true;
    }
    if (*found) t->nvme_would_do = ((out->need_nbytes[TUNE_NVME] >> 30) + 1) << 30;
    free(unbound.offers);
    return st;
}

/* With an NVMe disk only if one is offered; if nothing fits without one, the message says what a
 * disk would do. */
static cz_status search(struct tune *t, struct cz_model *model)
{
    bool helps = false;
    struct tune_offer with_nvme;
    t->n_combinations = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(schemes); i++)
        if (makes_sense(t, &schemes[i]) && (!uses_nvme(&schemes[i]) || t->options.nvme_nbytes > 0))
            t->n_combinations += n_ways(t);
    TRY(try_all(t, model, false));
    if (t->options.nvme_nbytes > 0 && !(t->options.quick && has_fit(t)))
        TRY(try_all(t, model, true));
    /* Insertion sort: there are a few dozen, and equal ones stay in the order of the search. */
    for (size_t i = 1; i < t->n_offers; i++) {
        struct tune_offer o = t->offers[i];
        size_t at = i;
        for (; at > 0 && tune_is_better(t, &o, &t->offers[at - 1]); at--)
            t->offers[at] = t->offers[at - 1];
        t->offers[at] = o;
    }
    const struct tune_offer *best = tune_best(t);
    for (size_t i = 0; i < t->n_offers; i++) tune_explain(t, best, &t->offers[i]);
    if (tune_best(t)) return CZ_OK;
    if (!t->options.quick) TRY(ask_nvme(t, model, &with_nvme, &helps));
    tune_say_missing(t, &t->offers[0], helps ? &with_nvme : NULL);
    return CZ_OK;
}

/* Rates that are given stand for those of a profile that has not measured one of these disks; its
 * plans then count them all (plan_nvme_rates()). */
static cz_status keep_disks(struct tune *t, const struct tune_options *o)
{
    bool is_measured = o->profile && !o->profile->is_assumed && o->profile->nvme_read > 0;
    bool is_there = false;
    for (size_t i = 0; i < o->n_nvme_paths; i++) {
        const char *path = o->nvme_paths[i];
        if (snprintf(t->nvme_paths[i], PATH_MAX, "%s", path) >= PATH_MAX)
            return err_set(CZ_INVALID, ENAMETOOLONG, "the folder on NVMe, \"%.60s…\"", path);
        t->options.nvme_paths[i] = t->nvme_paths[i];
        if ((o->nvme_rates[i] > 0) != (o->nvme_rates[0] > 0))
            return err_set(CZ_INVALID, 0, "%s: either all folders have a rate or none", path);
        is_there |= o->profile && strcmp(path, o->profile->nvme_path) == 0;
    }
    if (o->n_nvme_paths == 0 || o->nvme_rates[0] == 0 || (is_measured && is_there)) return CZ_OK;
    t->profile.nvme_read = t->profile.nvme_write = t->profile.nvme_both = o->nvme_rates[0];
    snprintf(t->profile.nvme_path, sizeof t->profile.nvme_path, "%.255s", t->nvme_paths[0]);
    return CZ_OK;
}

/* The model gets it before anything is counted. */
static cz_status keep_lora(struct tune *t, const struct config_lora *lora, struct cz_model *model)
{
    if (!lora) return CZ_OK;
    TRY(description_add_lora(model, lora));
    t->lora = *lora;
    t->options.lora = &t->lora;
    const char **const texts[] = {&t->lora.targets, &t->lora.layers, &t->lora.modules_to_save};
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++) {
        if (!*texts[i]) continue;
        t->lora_texts[i] = strdup(*texts[i]);
        if (!t->lora_texts[i]) return err_set(CZ_NOMEM, 0, "no memory for a search");
        *texts[i] = t->lora_texts[i];
    }
    return CZ_OK;
}

/* Copies, because the caller's strings may go. */
static cz_status keep_options(struct tune *t, const struct tune_options *o, struct cz_model *model)
{
    t->options = *o;
    TRY(keep_lora(t, o->lora, model));
    const struct param_table *table = model_params(model);
    if (o->profile) t->profile = *o->profile;
    if (o->profile) t->options.profile = &t->profile;
    TRY(keep_disks(t, o));
    if (o->profile_path && !realpath(o->profile_path, t->profile_path))
        return err_set(CZ_NOTFOUND, errno, "%s", o->profile_path);
    const char *given = o->n_nvme_paths > 0 ? t->nvme_paths[0] : o->nvme_path;
    const char *path = given ? given : "/tmp";
    if (!given && o->profile && *o->profile->nvme_path) path = o->profile->nvme_path;
    if (snprintf(t->nvme_path, sizeof t->nvme_path, "%s", path) >= (int)sizeof t->nvme_path)
        return err_set(CZ_INVALID, ENAMETOOLONG, "the folder on NVMe, \"%.60s…\"", path);
    t->options.nvme_path = t->nvme_path;
    snprintf(t->model_name, sizeof t->model_name, "%s", cz_model_name(model));
    tune_keep_recipe(t, model);
    t->T = cz_model_t_max(model);
    t->n_layers = model_n_layers(model);
    t->numel = param_table_numel(table, false);
    t->numel_trainable = param_table_numel(table, true);
    for (size_t i = 0; i < table->n_params; i++)
        if (table->params[i].numel > t->largest_numel) t->largest_numel = table->params[i].numel;
    return CZ_OK;
}

/* Rows must divide evenly: an offer that trains another batch than asked for would be no answer. */
cz_status tune_create(const struct tune_options *options, struct cz_model *model, struct tune **out)
{
    *out = NULL;
    int64_t n = options->world_size;
    if (n < 1)
        return err_set(CZ_INVALID, 0, "a world of %lld ranks cannot be planned", (long long)n);
    if (options->host_nbytes == 0) return err_set(CZ_INVALID, 0, "a run needs some host memory");
    if (options->batch > 0 && options->batch % n != 0)
        return err_set(CZ_INVALID, 0, "a batch of %lld rows cannot be dealt to %lld ranks",
                       (long long)options->batch, (long long)n);
    if (options->batch > 0 && options->micro_batch > 0 &&
        options->batch / n % options->micro_batch != 0)
        return err_set(CZ_INVALID, 0, "micro-batches of %lld rows do not make a batch of %lld",
                       (long long)options->micro_batch, (long long)options->batch);
    struct tune *t = calloc(1, sizeof *t);
    struct tune_memo **memos = calloc(TUNE_N_MEMOS, sizeof(struct tune_memo *));
    if (!t || !memos) {
        free(t);
        free(memos);
        return err_set(CZ_NOMEM, 0, "no memory for a search");
    }
    t->memos = memos;
    cz_status st = keep_options(t, options, model);
    if (st == CZ_OK) st = search(t, model);
    if (st == CZ_OK && tune_best(t) && t->offers[0].accumulation > 1) {
        t->offers[0].both_orders = true;
        st = tune_plan(t, model, &t->offers[0]);
    }
    tune_forget(t);
    if (st == CZ_OK)
        *out = t;
    else
        tune_destroy(t);
    return st;
}

void tune_destroy(struct tune *t)
{
    if (!t) return;
    tune_forget(t);
    free(t->offers);
    for (size_t i = 0; i < CZ_ARRAY_LEN(t->lora_texts); i++) free(t->lora_texts[i]);
    free(t);
}

size_t tune_n_offers(const struct tune *t)
{
    return t->n_offers;
}

const struct tune_offer *tune_offer(const struct tune *t, size_t idx)
{
    return &t->offers[idx];
}

const struct tune_offer *tune_best(const struct tune *t)
{
    return t->n_offers > 0 && t->offers[0].fits ? &t->offers[0] : NULL;
}

bool tune_is_timed(const struct tune *t)
{
    return t->n_offers > 0 && !isnan(t->offers[0].tokens_per_s);
}

const struct tune_recipe *tune_recipe(const struct tune *t)
{
    return &t->recipe;
}

const char *tune_missing(const struct tune *t)
{
    return t->missing;
}
