/* A profile as text. Labels and the form of numbers are DeepSpeed's, so that scripts that read its
 * reports read these. */
#include "engine/report/profiler_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where lines go; the first error is kept and silences the rest. */
struct printer {
    const struct profile *profile;
    const struct config_flops_profiler *config;
    profiler_line line;
    void *user;
    cz_status st;
    struct report_line text;
};

static void begin(struct printer *p)
{
    report_line_begin(&p->text);
}

static void end(struct printer *p)
{
    if (p->st == CZ_OK) p->st = p->line(p->user, p->text.text);
}

static void say(struct printer *p, const char *text)
{
    begin(p);
    report_put(&p->text, "%s", text);
    end(p);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Through text: two digits as Python's round() would print them. */
static double rounded(double value)
{
    char number[64];
    snprintf(number, sizeof number, "%.2f", value);
    return strtod(number, NULL);
}

/* DeepSpeed's scale: the largest unit that leaves at least 1. */
void profile_put_number(struct report_line *line, double value)
{
    static const struct {
        double least, unit;
        const char *prefix;
    } scales[] = {{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"},
                  {1e3, 1e3, "K"},   {1, 1, ""},      {1e-3, 1e-3, "m"}};
    double unit = 1e-6;
    const char *prefix = "u";
    for (size_t i = CZ_ARRAY_LEN(scales); i-- > 0;)
        if (value >= scales[i].least || (value == 0 && scales[i].unit == 1)) {
            unit = scales[i].unit;
            prefix = scales[i].prefix;
        }
    report_put(line, "%g %s", rounded(value / unit), prefix);
}

/* "120.58 K", "1.3 B": no space behind a bare number. */
static void put_numel(struct report_line *line, double numel)
{
    profile_put_number(line, numel);
    char *last = line->text + line->len - 1;
    if (*last == 'G') *last = 'B';
    if (*last == ' ') line->text[--line->len] = '\0';
}

static void put_unit(struct report_line *line, double value, const char *unit)
{
    profile_put_number(line, value);
    report_put(line, "%s", unit);
}

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

/* A step may be too short for the clock. */
static double per_second(double flops, double time)
{
    return time > 0 ? flops / time : 0;
}

static double percent(double part, double whole)
{
    return whole > 0 ? rounded(100 * part / whole) : 0;
}

/* ---- sums over layers; of one forward -------------------------------------------------------- */

static double layer_flops(const struct profile *p, size_t i)
{
    return p->layers[i].flops / (double)p->n_forwards;
}

static double layer_time(const struct profile *p, size_t i)
{
    return seconds(p->layers[i].forward_ns) / (double)p->n_forwards;
}

static double total_flops(const struct profile *p)
{
    double sum = 0;
    for (size_t i = 0; i < p->n_layers; i++) sum += layer_flops(p, i);
    return sum;
}

static double total_time(const struct profile *p)
{
    double sum = 0;
    for (size_t i = 0; i < p->n_layers; i++) sum += layer_time(p, i);
    return sum;
}

/* ---- the summary ----------------------------------------------------------------------------- */

/* "label:" in 70 columns, then the value in 8. */
static void row(struct printer *p, const char *label, const char *value)
{
    begin(p);
    report_put(&p->text, "%-70s  %-8s", label, value);
    end(p);
}

static void row_int(struct printer *p, const char *label, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    row(p, label, text);
}

static void row_unit(struct printer *p, const char *label, double value, const char *unit)
{
    struct report_line number;
    report_line_begin(&number);
    put_unit(&number, value, unit);
    row(p, label, number.text);
}

static void row_numel(struct printer *p, const char *label, size_t numel)
{
    struct report_line number;
    report_line_begin(&number);
    put_numel(&number, (double)numel);
    row(p, label, number.text);
}

/* A label with the factor by which forward's operations count in it. */
static void row_factor(struct printer *p, const char *before, double factor, const char *after,
                       double value)
{
    char label[128];
    snprintf(label, sizeof label, "%s%g * %s", before, factor, after);
    row_unit(p, label, value, "FLOPS");
}

static void print_times(struct printer *p, const struct profiler_step *step, double flops)
{
    double n = (double)p->profile->n_forwards;
    double forward = seconds(step->forward_ns) / n, backward = seconds(step->backward_ns) / n;
    double update = seconds(step->update_ns), iteration = n * (forward + backward) + update;
    double factor = 2 + p->config->recompute_fwd_factor;
    double samples = n * (double)(step->micro_batch * step->world_size);
    row_unit(p, "fwd latency: ", forward, "s");
    row_unit(p, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", per_second(flops, forward),
             "FLOPS");
    row_unit(p, "bwd latency: ", backward, "s");
    row_factor(p, "bwd FLOPS per GPU = ", factor,
               "fwd flops per GPU / bwd latency: ", per_second(factor * flops, backward));
    row_factor(p, "fwd+bwd FLOPS per GPU = ", factor + 1, "fwd flops per GPU / (fwd+bwd latency): ",
               per_second((factor + 1) * flops, forward + backward));
    row_unit(p, "step latency: ", update, "s");
    row_unit(p, "iter latency: ", iteration, "s");
    row_factor(p, "FLOPS per GPU = ", n * (factor + 1), "fwd flops per GPU / iter latency: ",
               per_second(n * (factor + 1) * flops, iteration));
    struct report_line number;
    report_line_begin(&number);
    report_put_rounded(&number, per_second(samples, iteration), 2);
    row(p, "samples/second: ", number.text);
}

/* ---- the heaviest modules -------------------------------------------------------------------- */

/* Layers of one class together. */
struct weight {
    const char *name;
    double numel, flops, time;
    double key; /* one of the three: what is sorted by */
    bool shown;
};

#define CLASSES_MAX 64

/* Alike layers of a chain differ only in their place: their class is what a user can act on. */
static size_t add_up_classes(const struct profile *p, struct weight *weights)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_layers; i++) {
        size_t c = 0;
        while (c < n && strcmp(weights[c].name, p->layers[i].cls) != 0) c++;
        if (c == CLASSES_MAX) weights[--c].name = "others"; /* of a chain without two alike */
        if (c == n) weights[n++] = (struct weight){.name = p->layers[i].cls};
        weights[c].numel += (double)p->layers[i].numel;
        weights[c].flops += layer_flops(p, i);
        weights[c].time += layer_time(p, i);
    }
    return n;
}

static struct weight whole_model(const struct profile *p)
{
    return (struct weight){.name = p->model_name,
                           .numel = (double)p->numel,
                           .flops = total_flops(p),
                           .time = total_time(p)};
}

/* The largest that is not shown yet; the first of equal ones. */
static struct weight *next_heaviest(struct weight *w, size_t n)
{
    struct weight *best = NULL;
    for (size_t i = 0; i < n; i++)
        if (!w[i].shown && (!best || w[i].key > best->key)) best = &w[i];
    if (best) best->shown = true;
    return best;
}

enum measure { MEASURE_NUMEL, MEASURE_MACS, MEASURE_TIME };

/* Ties keep the chain's order. */
static void print_heaviest(struct printer *p, enum measure measure, struct weight *w, size_t n)
{
    static const char *const labels[] = {"params      - {", "MACs        - {", "fwd latency - {"};
    int64_t top = p->config->top_modules;
    for (size_t i = 0; i < n; i++) {
        w[i].shown = false;
        w[i].key = measure == MEASURE_NUMEL  ? w[i].numel
                   : measure == MEASURE_MACS ? w[i].flops / 2
                                             : w[i].time;
    }
    begin(p);
    report_put(&p->text, "    %s", labels[measure]);
    for (int64_t i = 0; i < top; i++) {
        const struct weight *next = next_heaviest(w, n);
        if (!next) break;
        report_put(&p->text, "%s'%s': '", i > 0 ? ", " : "", next->name);
        if (measure == MEASURE_NUMEL)
            put_numel(&p->text, next->key);
        else
            put_unit(&p->text, next->key, measure == MEASURE_MACS ? "MACs" : "s");
        report_put(&p->text, "'");
    }
    report_put(&p->text, "}");
    end(p);
}

static void print_depth(struct printer *p, int depth, struct weight *w, size_t n)
{
    begin(p);
    report_put(&p->text, "depth %d:", depth);
    end(p);
    print_heaviest(p, MEASURE_NUMEL, w, n);
    print_heaviest(p, MEASURE_MACS, w, n);
    print_heaviest(p, MEASURE_TIME, w, n);
}

/* ---- every layer ----------------------------------------------------------------------------- */

/* Each figure with its share of the whole model. */
static void put_figures(struct printer *p, const struct weight *w)
{
    struct weight whole = whole_model(p->profile);
    put_numel(&p->text, w->numel);
    report_put(&p->text, " = %g%% Params, ", percent(w->numel, whole.numel));
    put_unit(&p->text, w->flops / 2, "MACs");
    report_put(&p->text, " = %g%% MACs, ", percent(w->flops, whole.flops));
    put_unit(&p->text, w->time, "s");
    report_put(&p->text, " = %g%% latency, ", percent(w->time, whole.time));
    put_unit(&p->text, per_second(w->flops, w->time), "FLOPS");
}

/* Bytes of a parameter's name before its last part: the module it belongs to. */
static size_t module_len(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool same_module(const char *a, const char *b)
{
    size_t len = module_len(a);
    return len == module_len(b) && strncmp(a, b, len) == 0;
}

/* The layer that used a parameter first, when it is not this one. */
static bool is_shared(const struct profile *p, size_t layer_idx, size_t param_idx, size_t *owner)
{
    for (*owner = 0; *owner < layer_idx; ++*owner)
        for (size_t i = 0; i < p->layers[*owner].n_params; i++)
            if (p->layers[*owner].param_idx[i] == param_idx) return true;
    return false;
}

/* Parameters from `first` on that belong to one module; returns the next one after them. */
static size_t print_module(struct printer *p, size_t layer_idx, size_t first)
{
    const struct profile_layer *layer = &p->profile->layers[layer_idx];
    const struct param_info *params = p->profile->params->params;
    const char *name = params[layer->param_idx[first]].name;
    size_t next = first, numel = 0, owner;
    while (next < layer->n_params && same_module(name, params[layer->param_idx[next]].name))
        numel += params[layer->param_idx[next++]].numel;
    begin(p);
    report_put(&p->text, "    (%.*s): ", (int)module_len(name), name);
    put_numel(&p->text, (double)numel);
    report_put(&p->text, " = %g%% Params", percent((double)numel, (double)p->profile->numel));
    if (is_shared(p->profile, layer_idx, layer->param_idx[first], &owner))
        report_put(&p->text, ", shared with (%zu)", owner);
    end(p);
    return next;
}

/* A layer's parameters by module, as PyTorch's tree would show them. */
static void print_layer(struct printer *p, size_t i)
{
    const struct profile_layer *layer = &p->profile->layers[i];
    const struct weight w = {.numel = (double)layer->numel,
                             .flops = layer_flops(p->profile, i),
                             .time = layer_time(p->profile, i)};
    begin(p);
    report_put(&p->text, "  (%zu): %s(", i, layer->cls);
    if (layer->n_params == 0) {
        put_figures(p, &w);
        report_put(&p->text, ")");
        end(p);
        return;
    }
    end(p);
    begin(p);
    report_put(&p->text, "    ");
    put_figures(p, &w);
    end(p);
    for (size_t j = 0; j < layer->n_params;) j = print_module(p, i, j);
    say(p, "  )");
}

static void print_detailed(struct printer *p)
{
    const struct weight whole = whole_model(p->profile);
    say(p, "");
    say(p, "------------------------------ Detailed Profile per GPU "
           "------------------------------");
    say(p, "Behind each layer: params, MACs and fwd latency with their share of the model's, and "
           "fwd FLOPS;");
    say(p, "then its modules. Parameters that two layers share count in both, and once in the "
           "model.");
    say(p, "");
    begin(p);
    report_put(&p->text, "%s(", p->profile->model_name);
    end(p);
    begin(p);
    report_put(&p->text, "  ");
    put_figures(p, &whole);
    end(p);
    for (size_t i = 0; i < p->profile->n_layers; i++) print_layer(p, i);
    say(p, ")");
}

/* A failed line ends the output silently; its status is returned at the end. */
cz_status profile_print(const struct profile *profile, const struct config_flops_profiler *config,
                        const struct profiler_step *step, profiler_line line, void *user)
{
    struct printer p = {
        .profile = profile, .config = config, .line = line, .user = user, .st = CZ_OK};
    double flops = total_flops(profile);
    say(&p, "");
    say(&p, "-------------------------- Flops Profiler --------------------------");
    begin(&p);
    report_put(&p.text, "Profile Summary at step %lld:", (long long)step->number);
    end(&p);
    say(&p, "MACs: multiply-accumulate operations, two flops each; FLOPS: flops per second;");
    say(&p, "fwd, bwd: forward and backward of one micro-batch; step: the weights' update;");
    if (p.profile->n_forwards == 1)
        say(&p, "iter: fwd + bwd + step; a GPU is a rank.");
    else
        say(&p, "iter: all micro-batches of the step, and the update; a GPU is a rank.");
    say(&p, "");
    /* DeepSpeed's rows, in its order; there is no model parallelism, hence the 1. */
    row_int(&p, "world size: ", step->world_size);
    row_int(&p, "data parallel size: ", step->world_size);
    row_int(&p, "model parallel size: ", 1);
    row_int(&p, "batch size per GPU: ", step->micro_batch);
    row_numel(&p, "params per GPU: ", p.profile->numel);
    row_numel(&p, "params of model = params per GPU * mp_size: ", p.profile->numel);
    row_unit(&p, "fwd MACs per GPU: ", flops / 2, "MACs");
    row_unit(&p, "fwd flops per GPU: ", flops, "");
    row_unit(&p, "fwd flops of model = fwd flops per GPU * mp_size: ", flops, "");
    print_times(&p, step, flops);
    /* Depth 0 is the whole model, depth 1 its classes of layers: a chain has no deeper nesting. */
    struct weight classes[CLASSES_MAX], whole = whole_model(p.profile);
    int64_t depth = p.config->module_depth;
    say(&p, "");
    say(&p, "----------------------------- Aggregated Profile per GPU "
            "-----------------------------");
    begin(&p);
    report_put(&p.text,
               "Top %lld modules in terms of params, MACs or fwd latency at different model "
               "depths:",
               (long long)p.config->top_modules);
    end(&p);
    if (depth != 0) print_depth(&p, 0, &whole, 1);
    if (depth < 0 || depth > 1) print_depth(&p, 1, classes, add_up_classes(p.profile, classes));
    if (config->detailed) print_detailed(&p);
    say(&p, "------------------------------------------------------------------------------");
    return p.st;
}
