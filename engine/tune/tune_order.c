/* Which offer is better, and why one is not the best. With a machine profile offers are ordered by
 * predicted tokens per second; without one by what they move over the slowest link, because that
 * bounds the time on any machine. */
#include "base/size.h"
#include "engine/tune/tune_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- amounts per token ---------------------------------------------------------------------- */

/* What orders offers when nothing is known about speed: the slowest way first. */
enum amount { OVER_NVME = 0, OVER_LINKS, HOST_UPDATES, OPERATIONS, IN_MEMORY, N_AMOUNTS };

/* A phase's amount for one way. */
static double amount_of(const struct plan_cost *c, enum amount what)
{
    switch (what) {
    case OVER_NVME: return (double)(c->nvme_read_nbytes + c->nvme_written_nbytes);
    case OVER_LINKS: return (double)(c->to_device_nbytes + c->to_host_nbytes + c->sent_nbytes);
    case OPERATIONS: return c->flops;
    case IN_MEMORY: return (double)(c->moved_nbytes + c->weights_nbytes);
    case HOST_UPDATES: /* is the offer's, not a phase's */
    case N_AMOUNTS: break;
    }
    return 0;
}

/* Trained parameters that the host updates in place of GPUs: one host for all ranks. */
static double updated_by_host(const struct tune *t, const struct tune_offer *o)
{
    bool on_gpu = t->options.gpu_nbytes > 0;
    return on_gpu && o->optimizer != CONFIG_OFFLOAD_NONE ? o->ratio * (double)t->numel_trainable
                                                         : 0;
}

/* Of forward, backward and step, per token of a rank. */
static double per_token(const struct tune *t, const struct tune_offer *o, enum amount what)
{
    double sum = what == HOST_UPDATES ? updated_by_host(t, o) : 0;
    for (int f = 0; f < PLAN_SAVE; f++) sum += amount_of(&o->phases[f], what);
    return sum / (double)(o->micro_batch * o->accumulation * t->T);
}

/* The host's update of a parameter passes 28 bytes through its memory, which takes about as long as
 * these many over the link to a GPU. So a GPU with free memory keeps some of the states, although
 * that moves as many bytes as before, or a few more. */
#define HOST_UPDATE_NBYTES 16

static double slowness(const struct tune *t, const struct tune_offer *o, enum amount what)
{
    double amount = per_token(t, o, what);
    if (what == OVER_LINKS) amount += HOST_UPDATE_NBYTES * per_token(t, o, HOST_UPDATES);
    return rint(amount);
}

/* ---- better --------------------------------------------------------------------------------- */

/* How far from fitting: the worst of the budgets, and a little of all of them. */
static double distance(const struct tune *t, const struct tune_offer *o)
{
    double worst = 0, sum = 0;
    for (int b = 0; b < TUNE_N_BUDGETS; b++) {
        double excess = (double)tune_excess(t, o, (enum tune_budget)b);
        double budget = (double)tune_budget_nbytes(t, (enum tune_budget)b);
        worst = fmax(worst, excess / fmax(budget, 1e9));
        sum += excess / fmax(budget, 1e9);
    }
    return worst + 0.01 * sum;
}

/* A strict order: ties stay in the order of the search, so results repeat. */
bool tune_is_better(const struct tune *t, const struct tune_offer *a, const struct tune_offer *b)
{
    if (a->fits != b->fits) return a->fits;
    if (!a->fits) return distance(t, a) < distance(t, b);
    bool a_timed = !isnan(a->tokens_per_s), b_timed = !isnan(b->tokens_per_s);
    if (a_timed != b_timed) return a_timed;
    if (a_timed) return a->tokens_per_s > b->tokens_per_s;
    for (int what = 0; what < N_AMOUNTS; what++) {
        double mine = slowness(t, a, (enum amount)what);
        double others = slowness(t, b, (enum amount)what);
        if (mine != others) return mine < others;
    }
    /* Not a byte per token apart: what needs less, such as stage 1 in place of 3. */
    if (a->need_nbytes[TUNE_GPU] != b->need_nbytes[TUNE_GPU])
        return a->need_nbytes[TUNE_GPU] < b->need_nbytes[TUNE_GPU];
    return a->need_nbytes[TUNE_HOST] < b->need_nbytes[TUNE_HOST];
}

/* ---- words ---------------------------------------------------------------------------------- */

static void add(char *buf, size_t buf_nbytes, const char *fmt, ...) CZ_PRINTF(3, 4);

/* Appends and cuts: reasons are shown in one line. */
static void add(char *buf, size_t buf_nbytes, const char *fmt, ...)
{
    size_t n = strlen(buf);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf + n, buf_nbytes - n, fmt, ap);
    va_end(ap);
}

/* Only what differs from the defaults. */
const char *tune_offer_text(const struct tune_offer *o, char *buf, size_t n)
{
    static const char *const places[] = {"", "in the host", "on NVMe"};
    buf[0] = '\0';
    add(buf, n, "stage %d", o->stage);
    if (o->optimizer != CONFIG_OFFLOAD_NONE) add(buf, n, ", optimizer %s", places[o->optimizer]);
    if (o->ratio < 1) add(buf, n, " (%.1f %%)", o->ratio * 100);
    if (o->gradients) add(buf, n, ", gradients on NVMe");
    if (o->params != CONFIG_OFFLOAD_NONE) add(buf, n, ", parameters %s", places[o->params]);
    if (o->max_in_cpu > 0) add(buf, n, " (%.0f M not)", (double)o->max_in_cpu / 1e6);
    if (o->checkpoint_every == 1)
        add(buf, n, ", layers recomputed");
    else if (o->checkpoint_every > 1)
        add(buf, n, ", layers recomputed by %lld", (long long)o->checkpoint_every);
    if (o->cpu_checkpointing) add(buf, n, " from the host");
    add(buf, n, ", micro-batch %lld × %lld", (long long)o->micro_batch, (long long)o->accumulation);
    return buf;
}

static const char *const budget_names[TUNE_N_BUDGETS] = {"GPU memory", "host memory", "NVMe"};

/* ---- why it is slower ----------------------------------------------------------------------- */

/* What a phase spends its time on. */
struct part {
    double seconds;
    const char *what;
};

/* The part of a phase that grew the most against the best offer's, per token. */
static struct part grown_most(const struct plan_cost *mine, const struct plan_cost *best,
                              double scale)
{
    const struct part parts[] = {
        {mine->compute_s * scale - best->compute_s, NULL},
        {mine->nvme_s * scale - best->nvme_s, "waits for the disk"},
        {mine->link_s * scale - best->link_s, "waits for copies to and from the GPU"},
        {mine->comm_s * scale - best->comm_s, "waits for other ranks"}};
    struct part most = parts[0];
    for (size_t i = 1; i < CZ_ARRAY_LEN(parts); i++)
        if (parts[i].seconds > most.seconds) most = parts[i];
    return most;
}

/* Computing is slower for a reason that the config chose; the reason is named. */
static const char *why_computing(const struct tune *t, const struct tune_offer *best,
                                 const struct tune_offer *o, enum plan_phase phase)
{
    bool on_gpu = t->options.gpu_nbytes > 0;
    if (phase == PLAN_STEP && on_gpu && o->optimizer != CONFIG_OFFLOAD_NONE)
        return "is made by the host";
    if (phase == PLAN_STEP)
        return o->stage < best->stage ? "updates what other ranks update as well"
                                      : "comes more often";
    if (per_token(t, o, OPERATIONS) > 1.001 * per_token(t, best, OPERATIONS))
        return "recomputes layers";
    return "reads weights for smaller micro-batches";
}

/* The phase that lost the most time explains the offer. */
static void explain_time(const struct tune *t, const struct tune_offer *best, struct tune_offer *o)
{
    double scale = (double)tune_rows(t, best) / (double)tune_rows(t, o), most = 0;
    enum plan_phase phase = PLAN_FORWARD;
    for (int f = 0; f < PLAN_SAVE; f++) {
        double more = o->phases[f].total_s * scale - best->phases[f].total_s;
        if (more <= most) continue;
        most = more;
        phase = (enum plan_phase)f;
    }
    if (!(most > 0.001 * best->seconds)) {
        add(o->why, sizeof o->why, "as fast, and needs more");
        return;
    }
    struct part part = grown_most(&o->phases[phase], &best->phases[phase], scale);
    const char *what = part.what ? part.what : why_computing(t, best, o, phase);
    char seconds[48];
    add(o->why, sizeof o->why, "%s takes %s s longer: it %s", plan_phase_name(phase),
        size_number(most, 3, seconds, sizeof seconds), what);
}

/* Without times: the first way in which it moves more than the best. */
static void explain_bytes(const struct tune *t, const struct tune_offer *best, struct tune_offer *o)
{
    static const char *const ways[] = {"over NVMe", "to and from the GPU and other ranks", "", "",
                                       "through memory"};
    double tokens = (double)(tune_rows(t, best) / t->options.world_size * t->T);
    char more[24];
    for (int what = 0; what < N_AMOUNTS; what++) {
        double mine = per_token(t, o, (enum amount)what);
        double others = per_token(t, best, (enum amount)what);
        if (mine <= others) continue;
        if (what == OPERATIONS)
            add(o->why, sizeof o->why, "computes %.0f %% more", 100 * (mine / others - 1));
        else if (what == HOST_UPDATES)
            add(o->why, sizeof o->why, "the host updates %.0f M more parameters a step",
                (mine - others) * tokens * 1e-6);
        else
            add(o->why, sizeof o->why, "moves %s more %s a step",
                size_human((size_t)((mine - others) * tokens), more, sizeof more), ways[what]);
        return;
    }
    add(o->why, sizeof o->why, "moves as much, and needs more");
}

void tune_explain(const struct tune *t, const struct tune_offer *best, struct tune_offer *o)
{
    o->why[0] = '\0';
    if (o == best) return;
    /* Every budget that is exceeded, so that a user can judge which one to raise. */
    if (!o->fits) {
        char more[24];
        const char *between = "does not fit: needs";
        for (int b = 0; b < TUNE_N_BUDGETS; b++) {
            size_t excess = tune_excess(t, o, (enum tune_budget)b);
            if (excess == 0) continue;
            add(o->why, sizeof o->why, "%s %s more %s", between,
                size_human(excess, more, sizeof more), budget_names[b]);
            between = " and";
        }
    } else if (isnan(o->tokens_per_s) && !isnan(best->tokens_per_s))
        add(o->why, sizeof o->why, "the machine profile lacks a figure for it");
    else if (isnan(o->tokens_per_s))
        explain_bytes(t, best, o);
    else
        explain_time(t, best, o);
}

/* ---- nothing fits --------------------------------------------------------------------------- */

/* Rounded up: with as much as a sentence asks for, it fits. */
static const char *at_least(size_t nbytes, char *buf, size_t buf_nbytes)
{
    double unit = 1;
    while ((double)nbytes >= 1024 * unit) unit *= 1024;
    return size_human((size_t)(ceil((double)nbytes / unit * 100) / 100 * unit), buf, buf_nbytes);
}

/* The nearest miss, with every budget that lacks something: a user may have that much. */
void tune_say_missing(struct tune *t, const struct tune_offer *nearest,
                      const struct tune_offer *with_nvme)
{
    char text[192], need[24], have[24], more[24];
    size_t n = sizeof t->missing;
    t->missing[0] = '\0';
    add(t->missing, n, "nothing fits. The closest configuration is %s; it needs",
        tune_offer_text(nearest, text, sizeof text));
    const char *between = "";
    for (int b = 0; b < TUNE_N_BUDGETS; b++) {
        size_t excess = tune_excess(t, nearest, (enum tune_budget)b);
        size_t budget = tune_budget_nbytes(t, (enum tune_budget)b);
        if (excess == 0) continue;
        add(t->missing, n, "%s %s of %s, %s more than the %s that is given", between,
            at_least(budget + excess, need, sizeof need), budget_names[b],
            at_least(excess, more, sizeof more), size_written(budget, have, sizeof have));
        between = ", and";
    }
    if (with_nvme)
        add(t->missing, n, ". With %zu GiB of NVMe (--nvme %zuGiB) %s would fit",
            (with_nvme->need_nbytes[TUNE_NVME] >> 30) + 1,
            (with_nvme->need_nbytes[TUNE_NVME] >> 30) + 1,
            tune_offer_text(with_nvme, text, sizeof text));
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* "20.61 GiB of GPU, 1.20 GiB of host memory, 3,030 tokens/s predicted" */
static void add_needs(char *buf, size_t n, const struct tune *t, const struct tune_offer *o)
{
    char size[24], number[48];
    if (t->options.gpu_nbytes > 0)
        add(buf, n, "%s of GPU, ", size_human(o->need_nbytes[TUNE_GPU], size, sizeof size));
    add(buf, n, "%s of host memory", size_human(o->need_nbytes[TUNE_HOST], size, sizeof size));
    if (o->need_nbytes[TUNE_NVME] > 0)
        add(buf, n, ", %s of NVMe", size_human(o->need_nbytes[TUNE_NVME], size, sizeof size));
    if (!isnan(o->tokens_per_s))
        add(buf, n, ", %s tokens/s predicted",
            size_number(o->tokens_per_s, 4, number, sizeof number));
}

/* "All weights need 49.77 GiB more host memory, or NVMe (--nvme 76GiB)." */
static void add_lack(char *buf, size_t n, const char *what, const struct tune *t)
{
    char size[24];
    const char *between = " ";
    add(buf, n, "%s", what);
    for (int b = 0; b < TUNE_N_BUDGETS; b++) {
        const size_t excess = tune_excess(t, &t->offers[0], (enum tune_budget)b);
        if (excess == 0) continue;
        add(buf, n, "%s%s more %s", between, at_least(excess, size, sizeof size), budget_names[b]);
        between = " and ";
    }
    if (t->nvme_would_do > 0) add(buf, n, ", or NVMe (--nvme %zuGiB)", t->nvme_would_do >> 30);
    add(buf, n, ".");
}

const char *tune_verdict(const struct tune *t, const struct tune *adapter, const char *lora,
                         char *buf, size_t n)
{
    const struct tune_offer *best = tune_best(t);
    const bool adapts = t->options.lora != NULL;
    buf[0] = '\0';
    if (best) {
        add(buf, n, "Fits: %s: ", adapts ? "an adapter" : "all weights");
        add_needs(buf, n, t, best);
        add(buf, n, ".");
    } else if (adapter && tune_best(adapter)) {
        add(buf, n, "Fits: an adapter (%s): ", lora);
        add_needs(buf, n, adapter, tune_best(adapter));
        add(buf, n, ". ");
        add_lack(buf, n, "All weights need", t);
    } else {
        add_lack(buf, n, adapts ? "Does not fit: an adapter needs" : "Does not fit: needs", t);
    }
    return buf;
}
