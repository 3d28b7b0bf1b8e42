/* The schedules of torch.optim.lr_scheduler that DeepSpeed takes by name. Expressions follow the
 * order of torch 2.15's, so that lr agrees to the last bit of a double: most of torch's schedules
 * make the next rate from the one before, and only that gives the same bits.
 *
 * A parameter is refused where torch's constructor refuses it, or where its first use would divide
 * by zero: torch then ends the run in the middle. */
#include "optim/schedule_impl.h"

#include <math.h>
#include <string.h>

#define ROW(key, kind, field, ...)                                                                 \
    {                                                                                              \
        .name = key, .type = SETTING_##kind, .offset = offsetof(struct schedule_params, field),    \
        __VA_ARGS__                                                                                \
    }
#define ITS(field, kind, ...) ROW(#field, kind, torch.field, __VA_ARGS__)
#define DEFAULT(value)        .defaults = {value}

/* ---- parameters ------------------------------------------------------------------------------ */

static const char *const modes[] = {"triangular", "triangular2", "exp_range", NULL};
static const char *const scale_modes[] = {"cycle", "iterations", NULL};
static const char *const strategies[] = {"cos", "linear", NULL};
enum { MODE_TRIANGULAR, MODE_TRIANGULAR2, MODE_EXP_RANGE };
enum { SCALES_CYCLE, SCALES_ITERATIONS };
enum { ANNEAL_COS, ANNEAL_LINEAR };

#define LAST    ITS(last_epoch, NUMBER, DEFAULT(-1), .help = "start index; only -1")
#define GAMMA   ITS(gamma, NUMBER, DEFAULT(0.1), .help = "factor of the learning rate")
#define ITERS   ITS(total_iters, NUMBER, DEFAULT(5), .help = "updates until the end")
#define ETA_MIN ITS(eta_min, NUMBER, DEFAULT(0), .help = "the lowest lr")

static const struct setting step_settings[] = {
    ITS(step_size, NUMBER, .required = true, .help = "updates between two decays"), GAMMA, LAST};
static const struct setting multi_step_settings[] = {
    ITS(milestones, STEPS, .required = true, .takes_null = true, .help = "updates that decay"),
    GAMMA, LAST};
static const struct setting constant_settings[] = {
    ITS(factor, NUMBER, DEFAULT(1.0 / 3), .help = "of the optimizer's lr until the end"), ITERS,
    LAST};
static const struct setting linear_settings[] = {
    ITS(start_factor, NUMBER, DEFAULT(1.0 / 3), .help = "of the optimizer's lr at the start"),
    ITS(end_factor, NUMBER, DEFAULT(1), .help = "of the optimizer's lr at the end"), ITERS, LAST};
static const struct setting exponential_settings[] = {
    ITS(gamma, NUMBER, .required = true, .help = "factor of the learning rate per update"), LAST};
static const struct setting polynomial_settings[] = {
    ITERS, ITS(power, NUMBER, DEFAULT(1), .help = "of the share of updates that is left"), LAST};
static const struct setting cosine_settings[] = {
    ITS(T_max, NUMBER, .required = true, .help = "updates from the highest to the lowest lr"),
    ETA_MIN, LAST};
static const struct setting restarts_settings[] = {
    ITS(T_0, INT, .required = true, .help = "updates until the first restart"),
    ITS(T_mult, INT, DEFAULT(1), .help = "growth of that number per restart"), ETA_MIN, LAST};
static const struct setting cyclic_settings[] = {
    ITS(base_lr, LIST, .required = true, .help = "lr at both ends of a cycle"),
    ITS(max_lr, LIST, .required = true, .help = "lr at the peak"),
    ITS(step_size_up, NUMBER, DEFAULT(2000), .help = "updates up to the peak"),
    ITS(step_size_down, NUMBER, DEFAULT(NAN), .takes_null = true,
        .help = "updates down; as many as up"),
    ITS(mode, NAME, DEFAULT(MODE_TRIANGULAR), .names = modes, .names_only = true,
        .help =
            "triangular: peaks stay; triangular2: they halve; exp_range: times gamma per update"),
    ITS(gamma, NUMBER, DEFAULT(1), .help = "of exp_range"),
    ROW("scale_fn", NULL, torch.no_effect, DEFAULT(NAN), .takes_null = true, .help = "a function"),
    ITS(scale_mode, NAME, DEFAULT(SCALES_CYCLE), .names = scale_modes, .takes_null = true,
        .help = "of scale_fn: no effect"),
    ITS(cycle_momentum, BOOL, DEFAULT(1), .help = "cycle beta1, or SGD's momentum, as well"),
    ITS(base_momentum, LIST, DEFAULT(0.8), .help = "momentum at the peak"),
    ITS(max_momentum, LIST, DEFAULT(0.9), .help = "momentum at both ends"),
    LAST,
};
static const struct setting one_cycle_settings[] = {
    ITS(max_lr, LIST, .required = true, .help = "lr at the peak"),
    ITS(total_steps, INT, DEFAULT(NAN), .takes_null = true, .help = "updates in all"),
    ITS(epochs, INT, DEFAULT(NAN), .takes_null = true,
        .help = "with steps_per_epoch, instead of total_steps"),
    ITS(steps_per_epoch, INT, DEFAULT(NAN), .takes_null = true, .help = "see epochs"),
    ITS(pct_start, NUMBER, DEFAULT(0.3), .help = "share of the updates up to the peak, a float"),
    ITS(anneal_strategy, NAME, DEFAULT(ANNEAL_COS), .names = strategies, .names_only = true,
        .help = "cos or linear"),
    ITS(cycle_momentum, BOOL, DEFAULT(1), .help = "cycle beta1, or SGD's momentum, as well"),
    ITS(base_momentum, LIST, DEFAULT(0.85), .help = "momentum at the peak"),
    ITS(max_momentum, LIST, DEFAULT(0.95), .help = "momentum at both ends"),
    ITS(div_factor, NUMBER, DEFAULT(25), .help = "max_lr by the first lr"),
    ITS(final_div_factor, NUMBER, DEFAULT(1e4), .help = "the first lr by the last"),
    ITS(three_phase, BOOL, DEFAULT(0), .help = "down to the first lr, then to the last"),
    LAST,
};

/* ---- what torch saves ------------------------------------------------------------------------ */

#define ENTRY(key, kind, field, ...)                                                               \
    {                                                                                              \
        key, SCHEDULE_ENTRY_##kind, offsetof(struct schedule_torch, field), __VA_ARGS__            \
    }
#define OWN(field, kind) ENTRY(#field, kind, field, NULL, false)

static const struct schedule_entry step_entries[] = {OWN(step_size, WHOLE), OWN(gamma, NUMBER)};
static const struct schedule_entry multi_step_entries[] = {OWN(milestones, COUNTS),
                                                           OWN(gamma, NUMBER)};
static const struct schedule_entry constant_entries[] = {OWN(factor, NUMBER),
                                                         OWN(total_iters, WHOLE)};
static const struct schedule_entry linear_entries[] = {
    OWN(start_factor, NUMBER), OWN(end_factor, NUMBER), OWN(total_iters, WHOLE)};
static const struct schedule_entry exponential_entries[] = {OWN(gamma, NUMBER)};
static const struct schedule_entry polynomial_entries[] = {OWN(total_iters, WHOLE),
                                                           OWN(power, NUMBER)};
static const struct schedule_entry cosine_entries[] = {OWN(T_max, WHOLE), OWN(eta_min, NUMBER)};
static const struct schedule_entry restarts_entries[] = {
    OWN(T_0, INT), OWN(T_i, INT), OWN(T_mult, INT), OWN(eta_min, NUMBER), OWN(T_cur, INT)};
static const struct schedule_entry cyclic_entries[] = {
    ENTRY("max_lrs", RATES, max_lr, NULL, false),
    OWN(total_size, NUMBER),
    OWN(step_ratio, NUMBER),
    ENTRY("mode", NAME, mode, modes, false),
    OWN(gamma, NUMBER),
    ENTRY("scale_mode", NAME, scale_mode, scale_modes, false),
    OWN(cycle_momentum, BOOL),
    ENTRY("use_beta1", BOOL, use_beta1, NULL, true),
    ENTRY("base_momentums", RATES, base_momentum, NULL, true),
    ENTRY("max_momentums", RATES, max_momentum, NULL, true),
};
static const struct schedule_entry one_cycle_entries[] = {
    OWN(total_steps, INT),
    ENTRY("_schedule_phases", PHASES, phase_ends, NULL, false),
    ENTRY("_anneal_func_type", NAME, anneal_strategy, strategies, false),
    OWN(cycle_momentum, BOOL),
    ENTRY("use_beta1", BOOL, use_beta1, NULL, true),
};

#define KIND(text, rows, saved)                                                                    \
    {                                                                                              \
        text, {rows, CZ_ARRAY_LEN(rows)}, saved, CZ_ARRAY_LEN(saved)                               \
    }
const struct schedule_torch_kind schedule_torch_kinds[SCHEDULE_N_TORCH] = {
    KIND("StepLR", step_settings, step_entries),
    KIND("MultiStepLR", multi_step_settings, multi_step_entries),
    KIND("ConstantLR", constant_settings, constant_entries),
    KIND("LinearLR", linear_settings, linear_entries),
    KIND("ExponentialLR", exponential_settings, exponential_entries),
    KIND("PolynomialLR", polynomial_settings, polynomial_entries),
    KIND("CosineAnnealingLR", cosine_settings, cosine_entries),
    KIND("CosineAnnealingWarmRestarts", restarts_settings, restarts_entries),
    KIND("CyclicLR", cyclic_settings, cyclic_entries),
    KIND("OneCycleLR", one_cycle_settings, one_cycle_entries),
};

const struct schedule_entry *schedule_entries(enum schedule_kind kind, size_t *n)
{
    *n = 0;
    if (!schedule_is_torch(kind)) return NULL;
    *n = schedule_torch_kinds[kind - SCHEDULE_TORCH_FIRST].n_entries;
    return schedule_torch_kinds[kind - SCHEDULE_TORCH_FIRST].entries;
}

/* ---- checks ---------------------------------------------------------------------------------- */

const char *schedule_torch_refusal(const char *type)
{
    static const char function[] = "takes a Python function, which a config cannot hold; \"linear\""
                                   " and the like are such functions of transformers";
    static const char objects[] = "takes schedulers as Python objects, which a config cannot hold";
    static const char base[] = "is the base class of torch's schedulers and has no rate";
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"LambdaLR", function},
        {"MultiplicativeLR", function},
        {"SequentialLR", objects},
        {"ChainedScheduler", objects},
        {"ReduceLROnPlateau",
         "needs a metric after each update; DeepSpeed hands it the batch size instead, so that the "
         "rate falls every patience + 1 updates whatever the loss does, which StepLR does openly"},
        {"LRScheduler", base},
        {"_LRScheduler", base},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(refused); i++)
        if (strcmp(refused[i].name, type) == 0) return refused[i].why;
    return NULL;
}

/* torch asks for the types themselves: isinstance(pct_start, float), and total_steps is not None.
 */
cz_status schedule_torch_set(const char *name, const struct setting_value *value)
{
    if (strcmp(name, "pct_start") == 0 && value->type == SETTING_INT)
        return err_set(CZ_INVALID, 0, "pct_start: must be a float: write %lld.0 for %lld",
                       (long long)value->integer, (long long)value->integer);
    if (strcmp(name, "total_steps") == 0 && value->type == SETTING_INT && value->integer <= 0)
        return err_set(CZ_INVALID, 0, "total_steps: must be a positive integer, got %lld",
                       (long long)value->integer);
    return CZ_OK;
}

static cz_status check_range(const char *name, double v, double from, double to)
{
    if (v >= from && v <= to) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: must be from %g to %g, got %g", name, from, to, v);
}

static cz_status check_divides(const char *name, double v)
{
    if (v != 0) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: must not be 0, by which torch divides", name);
}

static cz_status finish_cyclic(struct schedule_torch *t)
{
    if (isnan(t->step_size_down)) t->step_size_down = t->step_size_up;
    t->total_size = t->step_size_up + t->step_size_down;
    TRY(check_divides("step_size_up", t->step_size_up));
    if (t->total_size == 0)
        return err_set(CZ_INVALID, 0,
                       "step_size_down: is -step_size_up (%g): torch divides by their sum",
                       t->step_size_up);
    t->step_ratio = t->step_size_up / t->total_size;
    t->scale_mode = t->mode == MODE_EXP_RANGE ? SCALES_ITERATIONS : SCALES_CYCLE;
    return CZ_OK;
}

static cz_status finish_one_cycle(struct schedule_torch *t)
{
    if (t->total_steps == 0 && t->epochs > 0 && t->steps_per_epoch > 0) {
        if (__builtin_mul_overflow(t->epochs, t->steps_per_epoch, &t->total_steps))
            return err_set(CZ_INVALID, 0, "epochs: %lld of %lld steps are too many",
                           (long long)t->epochs, (long long)t->steps_per_epoch);
    }
    if (t->total_steps <= 0)
        return err_set(CZ_INVALID, 0,
                       "total_steps: is needed, or epochs and steps_per_epoch, all positive");
    TRY(check_range("pct_start", t->pct_start, 0, 1));
    TRY(check_divides("div_factor", t->div_factor));
    TRY(check_divides("final_div_factor", t->final_div_factor));
    const double total = (double)t->total_steps;
    t->phase_ends[0] = t->pct_start * total - 1;
    t->phase_ends[1] = t->three_phase ? 2 * t->pct_start * total - 2 : total - 1;
    t->phase_ends[2] = total - 1;
    if (t->phase_ends[0] == 0)
        return err_set(CZ_INVALID, 0,
                       "pct_start: %g of %lld updates is one update, and torch divides by that "
                       "number less one",
                       t->pct_start, (long long)t->total_steps);
    return CZ_OK;
}

/* Rows of other kinds hold zeros. */
cz_status schedule_torch_finish(struct schedule_torch *t, enum schedule_kind kind)
{
    if (t->last_epoch != -1)
        return err_set(CZ_INVALID, 0,
                       "last_epoch: must be -1, got %g: --resume continues a schedule",
                       t->last_epoch);
    switch (kind) {
    case SCHEDULE_TORCH_STEP: return check_divides("step_size", t->step_size);
    case SCHEDULE_TORCH_CONSTANT:
        TRY(check_range("factor", t->factor, 0, 1));
        if (t->factor == 0 && t->total_iters > 0 && t->total_iters == floor(t->total_iters))
            return err_set(CZ_INVALID, 0,
                           "factor: must not be 0, by which torch divides at the end");
        return CZ_OK;
    case SCHEDULE_TORCH_LINEAR:
        TRY(check_range("start_factor", t->start_factor, 0, 1));
        if (t->start_factor == 0)
            return err_set(CZ_INVALID, 0,
                           "start_factor: must be above 0: rates are multiples of it");
        return check_range("end_factor", t->end_factor, 0, 1);
    case SCHEDULE_TORCH_COSINE: return check_divides("T_max", t->T_max);
    case SCHEDULE_TORCH_RESTARTS:
        if (t->T_0 <= 0)
            return err_set(CZ_INVALID, 0, "T_0: must be above 0, got %lld", (long long)t->T_0);
        if (t->T_mult < 1)
            return err_set(CZ_INVALID, 0, "T_mult: must be at least 1, got %lld",
                           (long long)t->T_mult);
        schedule_torch_place(t, 0);
        return CZ_OK;
    case SCHEDULE_TORCH_CYCLIC: return finish_cyclic(t);
    case SCHEDULE_TORCH_ONE_CYCLE: return finish_one_cycle(t);
    default: return CZ_OK;
    }
}

static bool passes_zero(const struct setting_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (!(list->v[i] > 0)) return true;
    return false;
}

/* torch's own sentence for the first; without a momentum SGD would have no buffer to continue with.
 */
cz_status schedule_fit_optimizer(const struct schedule_params *params, struct optim_hyper *hyper)
{
    const struct schedule_torch *t = &params->torch;
    if (!schedule_torch_cycles(params) || hyper->cls->has_betas) return CZ_OK;
    if (settings_find(optim_settings(hyper), "momentum") < 0)
        return err_set(CZ_INVALID, 0,
                       "cycle_momentum: %s has neither betas nor a momentum to cycle: set it to "
                       "false",
                       hyper->cls->name);
    if (passes_zero(&t->base_momentum) || passes_zero(&t->max_momentum))
        return err_set(CZ_INVALID, 0, "%s: must be above 0 with %s, whose buffer it keeps",
                       passes_zero(&t->base_momentum) ? "base_momentum" : "max_momentum",
                       hyper->cls->name);
    hyper->momentum = schedule_list_at(&t->max_momentum, 0);
    return CZ_OK;
}

/* ---- formulas -------------------------------------------------------------------------------- */

bool schedule_torch_cycles(const struct schedule_params *p)
{
    return (p->kind == SCHEDULE_TORCH_CYCLIC || p->kind == SCHEDULE_TORCH_ONE_CYCLE) &&
           p->torch.cycle_momentum;
}

static double milestones_at(const struct schedule_torch *t, double e)
{
    size_t n = 0;
    for (size_t i = 0; i < t->milestones.n; i++) n += t->milestones.v[i] == e;
    return (double)n;
}

static double milestones_until(const struct schedule_torch *t, double e)
{
    size_t n = 0;
    for (size_t i = 0; i < t->milestones.n; i++) n += t->milestones.v[i] <= e;
    return (double)n;
}

/* From 0 at both ends of a cycle to 1 at its peak; *scale: of the peak. */
static double cyclic_height(const struct schedule_torch *t, double e, double *scale)
{
    const double cycle = floor(1 + e / t->total_size);
    const double x = 1.0 + e / t->total_size - cycle;
    *scale = 1;
    if (t->mode == MODE_TRIANGULAR2) *scale = 1 / pow(2.0, cycle - 1);
    if (t->mode == MODE_EXP_RANGE) *scale = pow(t->gamma, e);
    return x <= t->step_ratio ? x / t->step_ratio : (x - 1) / (t->step_ratio - 1);
}

static double anneal(const struct schedule_torch *t, double start, double end, double pct)
{
    if (t->anneal_strategy == ANNEAL_LINEAR) return (end - start) * pct + start;
    return end + (start - end) / 2.0 * (cos(M_PI * pct) + 1);
}

/* The phase that e is in, and how much of it has passed. */
static int phase_of(const struct schedule_torch *t, double e, double *pct)
{
    const int last = t->three_phase ? 2 : 1;
    double start = 0;
    int i = 0;
    for (; i < last && !(e <= t->phase_ends[i]); i++) start = t->phase_ends[i];
    *pct = (e - start) / (t->phase_ends[i] - start);
    return i;
}

static double one_cycle_lr(const struct schedule_torch *t, double e, size_t group)
{
    const double max = schedule_list_at(&t->max_lr, group);
    const double first = max / t->div_factor, min = first / t->final_div_factor;
    double pct;
    switch (phase_of(t, e, &pct)) {
    case 0: return anneal(t, first, max, pct);
    case 1: return anneal(t, max, t->three_phase ? first : min, pct);
    default: return anneal(t, first, min, pct);
    }
}

double schedule_torch_momentum(const struct schedule_params *p, int64_t epoch, size_t group)
{
    const struct schedule_torch *t = &p->torch;
    const double base = schedule_list_at(&t->base_momentum, group);
    const double max = schedule_list_at(&t->max_momentum, group), e = (double)epoch;
    double x;
    if (p->kind == SCHEDULE_TORCH_CYCLIC) {
        const double height = (max - base) * cyclic_height(t, e, &x);
        return max - height * x;
    }
    switch (phase_of(t, e, &x)) {
    case 0: return anneal(t, max, base, x);
    case 1: return anneal(t, base, max, x);
    default: return anneal(t, max, max, x);
    }
}

/* T_i grows by T_mult at each restart, so the walk is short; with 1 it does not grow at all. */
void schedule_torch_place(struct schedule_torch *t, int64_t e)
{
    t->T_i = t->T_0;
    t->T_cur = e;
    if (t->T_mult == 1) {
        t->T_cur = e % t->T_0;
        return;
    }
    while (t->T_cur >= t->T_i) {
        t->T_cur -= t->T_i;
        if (__builtin_mul_overflow(t->T_i, t->T_mult, &t->T_i)) t->T_i = INT64_MAX;
    }
}

/* Those that need no rate before. */
static bool from_index(const struct schedule *s, int64_t epoch, size_t group, double *lr)
{
    struct schedule_torch place;
    const struct schedule_torch *t = &s->params.torch;
    const double e = (double)epoch, base = s->base_lr[group];
    double scale;
    switch (s->params.kind) {
    case SCHEDULE_TORCH_RESTARTS:
        place = *t;
        schedule_torch_place(&place, epoch);
        *lr = t->eta_min +
              (base - t->eta_min) * (1 + cos(M_PI * (double)place.T_cur / (double)place.T_i)) / 2;
        return true;
    case SCHEDULE_TORCH_CYCLIC: {
        const double min = schedule_list_at(&t->base_lr, group);
        const double height =
            (schedule_list_at(&t->max_lr, group) - min) * cyclic_height(t, e, &scale);
        *lr = min + height * scale;
        return true;
    }
    case SCHEDULE_TORCH_ONE_CYCLE: *lr = one_cycle_lr(t, e, group); return true;
    default: return false;
    }
}

/* At e = 0 torch calls the same functions for the first rate, and most return it as it is. */
static double first_rate(const struct schedule_torch *t, enum schedule_kind kind, double lr)
{
    switch (kind) {
    case SCHEDULE_TORCH_MULTI_STEP:
        return milestones_at(t, 0) > 0 ? lr * pow(t->gamma, milestones_at(t, 0)) : lr;
    case SCHEDULE_TORCH_CONSTANT: return lr * t->factor;
    case SCHEDULE_TORCH_LINEAR: return lr * t->start_factor;
    default: return lr;
    }
}

double schedule_torch_next(const struct schedule *s, int64_t epoch, size_t group, double lr)
{
    const struct schedule_torch *t = &s->params.torch;
    const double e = (double)epoch;
    if (from_index(s, epoch, group, &lr)) return lr;
    if (epoch == 0) return first_rate(t, s->params.kind, lr);
    switch (s->params.kind) {
    case SCHEDULE_TORCH_STEP: return fmod(e, t->step_size) != 0 ? lr : lr * t->gamma;
    case SCHEDULE_TORCH_MULTI_STEP:
        return milestones_at(t, e) == 0 ? lr : lr * pow(t->gamma, milestones_at(t, e));
    case SCHEDULE_TORCH_CONSTANT: return e != t->total_iters ? lr : lr * (1.0 / t->factor);
    case SCHEDULE_TORCH_LINEAR:
        if (e > t->total_iters) return lr;
        return lr * (1.0 + (t->end_factor - t->start_factor) /
                               (t->total_iters * t->start_factor +
                                (e - 1) * (t->end_factor - t->start_factor)));
    case SCHEDULE_TORCH_EXPONENTIAL: return lr * t->gamma;
    case SCHEDULE_TORCH_POLYNOMIAL:
        if (e > t->total_iters) return lr;
        return lr * pow((1.0 - e / t->total_iters) / (1.0 - (e - 1) / t->total_iters), t->power);
    default: /* CosineAnnealingLR */
        if (fmod(e - 1 - t->T_max, 2 * t->T_max) == 0)
            return lr + (s->base_lr[group] - t->eta_min) * (1 - cos(M_PI / t->T_max)) / 2;
        return (1 + cos(M_PI * e / t->T_max)) / (1 + cos(M_PI * (e - 1) / t->T_max)) *
                   (lr - t->eta_min) +
               t->eta_min;
    }
}

/* torch's _get_closed_form_lr() of each. */
double schedule_torch_at(const struct schedule *s, int64_t epoch, size_t group)
{
    const struct schedule_torch *t = &s->params.torch;
    const double e = (double)epoch, base = s->base_lr[group];
    const double done = fmin(t->total_iters, e);
    double lr;
    if (from_index(s, epoch, group, &lr)) return lr;
    if (epoch == 0 || (t->total_iters <= 0 && (s->params.kind == SCHEDULE_TORCH_LINEAR ||
                                               s->params.kind == SCHEDULE_TORCH_POLYNOMIAL)))
        return first_rate(t, s->params.kind, base);
    switch (s->params.kind) {
    case SCHEDULE_TORCH_STEP: return base * pow(t->gamma, floor(e / t->step_size));
    case SCHEDULE_TORCH_MULTI_STEP: return base * pow(t->gamma, milestones_until(t, e));
    case SCHEDULE_TORCH_CONSTANT:
        return base * (t->factor + (e >= t->total_iters ? 1 - t->factor : 0));
    case SCHEDULE_TORCH_LINEAR:
        return base * (t->start_factor + (t->end_factor - t->start_factor) * done / t->total_iters);
    case SCHEDULE_TORCH_EXPONENTIAL: return base * pow(t->gamma, e);
    case SCHEDULE_TORCH_POLYNOMIAL: return base * pow(1.0 - done / t->total_iters, t->power);
    default: return t->eta_min + (base - t->eta_min) * (1 + cos(M_PI * e / t->T_max)) / 2;
    }
}

/* ---- what is kept in param_groups ------------------------------------------------------------ */

static void keep(const char *name, double value, const char **names, double *values, size_t *n)
{
    names[*n] = name;
    values[(*n)++] = value;
}

/* In the order in which torch's constructors add them. */
size_t schedule_kept(const struct schedule *s, size_t group, const char *names[SCHEDULE_KEPT_MAX],
                     double values[SCHEDULE_KEPT_MAX])
{
    const struct schedule_torch *t = &s->params.torch;
    const bool is_cyclic = s->params.kind == SCHEDULE_TORCH_CYCLIC,
               is_one_cycle = s->params.kind == SCHEDULE_TORCH_ONE_CYCLE,
               cycles = schedule_torch_cycles(&s->params);
    size_t n = 0;
    if (!schedule_is_hf(s->params.kind) && !schedule_is_torch(s->params.kind)) return 0;
    if (!is_cyclic) keep("initial_lr", s->base_lr[group], names, values, &n);
    if (is_one_cycle) {
        keep("max_lr", schedule_list_at(&t->max_lr, group), names, values, &n);
        keep("min_lr", s->base_lr[group] / t->final_div_factor, names, values, &n);
    }
    if (cycles) {
        keep("max_momentum", schedule_list_at(&t->max_momentum, group), names, values, &n);
        keep("base_momentum", schedule_list_at(&t->base_momentum, group), names, values, &n);
    }
    if (is_cyclic) keep("initial_lr", s->base_lr[group], names, values, &n);
    return n;
}
