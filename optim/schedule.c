/* The schedules. Expressions follow the order of operations of DeepSpeed
 * (docs/deepspeed-behaviour.md, "Schedules") or transformers (docs/compatibility.md, "Configs of
 * trainers"), so that lr agrees to the last bit of a double. Their rates are functions of the
 * step's index alone: resuming needs nothing but that. Those of torch are in schedule_torch.c. */
#include "optim/schedule_impl.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROW(key, kind, field, ...)                                                                 \
    {                                                                                              \
        .name = key, .type = SETTING_##kind, .offset = offsetof(struct schedule_params, field),    \
        __VA_ARGS__                                                                                \
    }
#define DEFAULT(value) .defaults = {value}

static const char *const warmup_names[] = {"log", "linear", NULL};

#define LAST_ROW                                                                                   \
    ROW("last_batch_iteration", INT, last_batch_iteration, DEFAULT(-1), .help = "start index")
#define WARMUP_ROWS                                                                                \
    ROW("warmup_num_steps", INT, warmup_num_steps, DEFAULT(1000), .help = "updates to warm up"),   \
        ROW("warmup_type", NAME, warmup_type, DEFAULT(SCHEDULE_LOG), .names = warmup_names,        \
            .takes_null = true, .help = "log or linear"),                                          \
        LAST_ROW
#define TOTAL_ROW                                                                                  \
    ROW("total_num_steps", NUMBER, total_num_steps, .required = true, .help = "updates in all")

static const struct setting warmup_settings[] = {
    ROW("warmup_min_lr", LIST, warmup_min_lr, DEFAULT(0), .help = "lr at the start"),
    ROW("warmup_max_lr", LIST, warmup_max_lr, DEFAULT(NAN), .takes_null = true,
        .help = "lr after; the optimizer's lr"),
    WARMUP_ROWS,
};
static const struct setting decay_settings[] = {
    TOTAL_ROW,
    ROW("warmup_min_lr", LIST, warmup_min_lr, DEFAULT(0), .help = "lr at the start"),
    ROW("warmup_max_lr", LIST, warmup_max_lr, DEFAULT(0.001), .takes_null = true,
        .help = "lr after the warm-up"),
    WARMUP_ROWS,
};
static const struct setting cosine_settings[] = {
    TOTAL_ROW,
    ROW("warmup_min_ratio", NUMBER, warmup_min_ratio, DEFAULT(0), .help = "of the optimizer's lr"),
    ROW("cos_min_ratio", NUMBER, cos_min_ratio, DEFAULT(0.0001), .help = "floor of the cosine"),
    WARMUP_ROWS,
};
static const struct setting range_settings[] = {
    ROW("lr_range_test_min_lr", LIST, range_min_lr, DEFAULT(1e-3), .help = "lr at the start"),
    ROW("lr_range_test_step_size", INT, range_step_size, DEFAULT(2000), .help = "updates per step"),
    ROW("lr_range_test_step_rate", NUMBER, range_step_rate, DEFAULT(1), .help = "growth per step"),
    ROW("lr_range_test_staircase", BOOL, range_staircase, DEFAULT(0), .help = "in whole steps"),
    LAST_ROW,
};
static const struct setting cycle_settings[] = {
    ROW("cycle_min_lr", LIST, cycle_min_lr, .required = true, .help = "lr at both ends"),
    ROW("cycle_max_lr", LIST, cycle_max_lr, .required = true, .help = "lr at the peak"),
    ROW("decay_lr_rate", NUMBER, decay_lr_rate, DEFAULT(0), .help = "decay after the cycle"),
    ROW("cycle_first_step_size", NUMBER, cycle_first_step_size, DEFAULT(2000),
        .help = "updates up to the peak"),
    ROW("cycle_second_step_size", NUMBER, cycle_second_step_size, DEFAULT(NAN), .takes_null = true,
        .help = "updates down; as many as up"),
    ROW("cycle_first_stair_count", NUMBER, cycle_first_stair_count, DEFAULT(0),
        .help = "stairs on the way up; 0: none"),
    ROW("cycle_second_stair_count", NUMBER, cycle_second_stair_count, DEFAULT(NAN),
        .takes_null = true, .help = "stairs down; as many as up"),
    ROW("decay_step_size", NUMBER, decay_step_size, DEFAULT(0), .help = "0: no decay after"),
    ROW("cycle_momentum", BOOL, cycle_momentum, DEFAULT(1), .help = "cycle beta1 as well"),
    ROW("cycle_min_mom", LIST, cycle_min_mom, DEFAULT(0.8), .help = "beta1 at the peak"),
    ROW("cycle_max_mom", LIST, cycle_max_mom, DEFAULT(0.9), .help = "beta1 at both ends"),
    ROW("decay_mom_rate", NUMBER, decay_mom_rate, DEFAULT(0), .help = "growth after the cycle"),
    LAST_ROW,
};

#define HF_WARMUP_ROW                                                                              \
    ROW("warmup_num_steps", INT, warmup_num_steps, DEFAULT(0), .help = "updates to warm up")
#define CYCLES_ROW(n, text) ROW("num_cycles", NUMBER, num_cycles, DEFAULT(n), .help = text)

static const struct setting hf_linear_settings[] = {HF_WARMUP_ROW, TOTAL_ROW};
static const struct setting hf_cosine_settings[] = {HF_WARMUP_ROW, TOTAL_ROW,
                                                    CYCLES_ROW(0.5, "waves of the cosine")};
static const struct setting hf_restarts_settings[] = {
    HF_WARMUP_ROW, TOTAL_ROW, CYCLES_ROW(1, "half waves, each from the full lr to 0")};
static const struct setting hf_min_lr_settings[] = {
    HF_WARMUP_ROW,
    TOTAL_ROW,
    CYCLES_ROW(0.5, "waves of the cosine"),
    ROW("min_lr", NUMBER, min_lr, DEFAULT(NAN), .takes_null = true,
        .help = "lr at the end; this or min_lr_rate"),
    ROW("min_lr_rate", NUMBER, min_lr_rate, DEFAULT(NAN), .takes_null = true,
        .help = "the same as a share of lr"),
};
static const struct setting hf_polynomial_settings[] = {
    HF_WARMUP_ROW, TOTAL_ROW, ROW("lr_end", NUMBER, lr_end, DEFAULT(1e-7), .help = "lr at the end"),
    ROW("power", NUMBER, power, DEFAULT(1), .help = "of the share of updates that is left")};
static const struct setting hf_warmup_settings[] = {HF_WARMUP_ROW};
static const struct setting hf_sqrt_settings[] = {
    HF_WARMUP_ROW, ROW("timescale", INT, timescale, DEFAULT(0), .takes_null = true,
                       .help = "updates until lr has fallen to 0.7; 0: as the warm-up, or 10000")};

#define KIND(text, rows)                                                                           \
    {                                                                                              \
        text,                                                                                      \
        {                                                                                          \
            rows, CZ_ARRAY_LEN(rows)                                                               \
        }                                                                                          \
    }
static const struct {
    const char *name;
    struct setting_table table;
} kinds[] = {
    [SCHEDULE_WARMUP] = KIND("WarmupLR", warmup_settings),
    [SCHEDULE_WARMUP_DECAY] = KIND("WarmupDecayLR", decay_settings),
    [SCHEDULE_WARMUP_COSINE] = KIND("WarmupCosineLR", cosine_settings),
    [SCHEDULE_RANGE_TEST] = KIND("LRRangeTest", range_settings),
    [SCHEDULE_ONE_CYCLE] = KIND("OneCycle", cycle_settings),
    [SCHEDULE_HF_LINEAR] = KIND("linear", hf_linear_settings),
    [SCHEDULE_HF_COSINE] = KIND("cosine", hf_cosine_settings),
    [SCHEDULE_HF_RESTARTS] = KIND("cosine_with_restarts", hf_restarts_settings),
    [SCHEDULE_HF_MIN_LR] = KIND("cosine_with_min_lr", hf_min_lr_settings),
    [SCHEDULE_HF_POLYNOMIAL] = KIND("polynomial", hf_polynomial_settings),
    [SCHEDULE_HF_CONSTANT] = {"constant", {NULL, 0}},
    [SCHEDULE_HF_WARMUP] = KIND("constant_with_warmup", hf_warmup_settings),
    [SCHEDULE_HF_INVERSE_SQRT] = KIND("inverse_sqrt", hf_sqrt_settings),
};

/* ---- parameters ----------------------------------------------------------------------------- */

bool schedule_is_hf(enum schedule_kind kind)
{
    return kind >= SCHEDULE_HF_LINEAR && kind < SCHEDULE_TORCH_FIRST;
}

bool schedule_is_torch(enum schedule_kind kind)
{
    return kind >= SCHEDULE_TORCH_FIRST;
}

#define N_KINDS (SCHEDULE_TORCH_FIRST + SCHEDULE_N_TORCH)

static const char *kind_name(size_t kind)
{
    return kind < SCHEDULE_TORCH_FIRST ? kinds[kind].name
                                       : schedule_torch_kinds[kind - SCHEDULE_TORCH_FIRST].name;
}

size_t schedule_types(const char *names[SCHEDULE_TYPES_MAX])
{
    _Static_assert(CZ_ARRAY_LEN(kinds) == SCHEDULE_TORCH_FIRST,
                   "torch's have a table of their own");
    _Static_assert(N_KINDS <= SCHEDULE_TYPES_MAX, "names has space for all");
    for (size_t i = 0; i < N_KINDS; i++) names[i] = kind_name(i);
    return N_KINDS;
}

const char *schedule_type_names(char *buf, size_t nbytes)
{
    size_t n = 0;
    for (size_t i = 0; i < N_KINDS && n < nbytes; i++) {
        const char *comma = i == 0 ? "" : i + 1 < N_KINDS ? ", " : " or ";
        n += (size_t)snprintf(buf + n, nbytes - n, "%s%s", comma, kind_name(i));
    }
    return buf;
}

/* Names are the class names of DeepSpeed and torch and transformers' names, exactly. */
cz_status schedule_params_begin(const char *type, bool compat_0_16, struct schedule_params *out)
{
    memset(out, 0, sizeof *out);
    out->compat_0_16 = compat_0_16;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kind_name(i), type) != 0) continue;
        out->kind = (enum schedule_kind)i;
        return CZ_OK;
    }
    const char *why = schedule_torch_refusal(type);
    if (why) return err_set(CZ_UNSUPPORTED, 0, "scheduler.type: %s %s", type, why);
    char names[512];
    return err_set(CZ_INVALID, 0, "scheduler.type: \"%s\" is not %s", type,
                   schedule_type_names(names, sizeof names));
}

const struct setting_table *schedule_settings(const struct schedule_params *params)
{
    return schedule_is_torch(params->kind)
               ? &schedule_torch_kinds[params->kind - SCHEDULE_TORCH_FIRST].table
               : &kinds[params->kind].table;
}

cz_status schedule_params_set(struct schedule_params *params, const char *name,
                              const struct setting_value *value)
{
    if (value->type == SETTING_NULL && params->compat_0_16 && strcmp(name, "warmup_max_lr") == 0)
        return err_set(CZ_INVALID, 0, "%s: null is no value for it in DeepSpeed 0.16", name);
    const bool is_torch = schedule_is_torch(params->kind);
    if (is_torch) TRY(schedule_torch_set(name, value));
    return settings_set(schedule_settings(params), kind_name(params->kind), params, &params->given,
                        name, value, params->compat_0_16 && !is_torch);
}

/* For programs that build a schedule without a config. */
cz_status schedule_params_set_number(struct schedule_params *params, const char *name, double value)
{
    struct setting_value v = {.type = SETTING_NUMBER, .number = value};
    return schedule_params_set(params, name, &v);
}

cz_status schedule_params_set_int(struct schedule_params *params, const char *name, int64_t value)
{
    struct setting_value v = {.type = SETTING_INT, .number = (double)value, .integer = value};
    return schedule_params_set(params, name, &v);
}

cz_status schedule_params_set_bool(struct schedule_params *params, const char *name, bool value)
{
    struct setting_value v = {.type = SETTING_BOOL, .number = value};
    return schedule_params_set(params, name, &v);
}

cz_status schedule_params_set_list(struct schedule_params *params, const char *name,
                                   const double *values, size_t n)
{
    struct setting_value v = {.type = SETTING_LIST, .list = values, .n = n};
    return schedule_params_set(params, name, &v);
}

cz_status schedule_params_set_name(struct schedule_params *params, const char *name,
                                   const char *value)
{
    struct setting_value v = {.type = SETTING_NAME, .name = value};
    return schedule_params_set(params, name, &v);
}

/* Written so that NaN fails. */
static cz_status check_positive(const char *name, double v)
{
    if (v > 0) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: must be above 0, got %g", name, v);
}

/* 0.16 has a default rate of its own; a warm-up of 1 step would divide by log(1). */
static cz_status finish_warmup(struct schedule_params *p)
{
    if (!p->compat_0_16) TRY(check_positive("warmup_num_steps", (double)p->warmup_num_steps));
    if (p->warmup_num_steps < 2) p->warmup_num_steps = 2;
    if (p->kind == SCHEDULE_WARMUP) {
        if (p->compat_0_16 && p->warmup_max_lr.n == 0)
            p->warmup_max_lr = (struct setting_list){.v = {0.001}, .n = 1};
        return CZ_OK;
    }
    if (p->kind == SCHEDULE_WARMUP_COSINE && p->compat_0_16 &&
        p->total_num_steps == (double)p->warmup_num_steps)
        return err_set(CZ_INVALID, 0,
                       "total_num_steps: is warmup_num_steps (%lld), by whose difference DeepSpeed "
                       "0.16 divides",
                       (long long)p->warmup_num_steps);
    if (p->total_num_steps < (double)p->warmup_num_steps)
        LOGV(LOG_WARN, SUB_CONFIG,
             "scheduler: total_num_steps %g is below warmup_num_steps %lld, so the rate never "
             "reaches its peak: lower warmup_num_steps, or train for more steps",
             p->total_num_steps, (long long)p->warmup_num_steps);
    return CZ_OK;
}

/* transformers warms up for as many steps as it is told, 0 included. */
static cz_status finish_hf(struct schedule_params *p)
{
    if (p->warmup_num_steps < 0)
        return err_set(CZ_INVALID, 0, "warmup_num_steps: %lld is negative",
                       (long long)p->warmup_num_steps);
    p->last_batch_iteration = -1;
    if (p->kind == SCHEDULE_HF_INVERSE_SQRT) {
        if (p->timescale < 0)
            return err_set(CZ_INVALID, 0, "timescale: %lld is negative", (long long)p->timescale);
        if (p->timescale == 0) p->timescale = p->warmup_num_steps > 0 ? p->warmup_num_steps : 10000;
    }
    if (p->kind == SCHEDULE_HF_MIN_LR && isnan(p->min_lr) == isnan(p->min_lr_rate))
        return err_set(CZ_INVALID, 0, "min_lr: either min_lr or min_lr_rate is needed");
    return CZ_OK;
}

/* After the cycle 1 + rate·updates/step grows. Where the two differ in sign it falls through 0,
 * where DeepSpeed divides by it. */
static cz_status check_decay(const struct schedule_params *p)
{
    const double rate = p->decay_lr_rate, step = p->decay_step_size;
    if (rate == 0 || step == 0 || (rate < 0) == (step < 0)) return CZ_OK;
    return err_set(
        CZ_INVALID, 0,
        "%s: must not be %g with a %s of %g: the rate would be divided by 0 and negative",
        step < 0 ? "decay_step_size" : "decay_lr_rate", step < 0 ? step : rate,
        step < 0 ? "decay_lr_rate" : "decay_step_size", step < 0 ? rate : step);
}

/* Defaults that depend on other values are filled here, after all values are known. */
cz_status schedule_params_finish(struct schedule_params *p)
{
    TRY(settings_fill(schedule_settings(p), kind_name(p->kind), p, p->given, 0));
    if (schedule_is_torch(p->kind)) {
        p->last_batch_iteration = -1;
        return schedule_torch_finish(&p->torch, p->kind);
    }
    if (schedule_is_hf(p->kind)) return finish_hf(p);
    if (p->last_batch_iteration < -1)
        return err_set(CZ_INVALID, 0, "last_batch_iteration: %lld is below -1",
                       (long long)p->last_batch_iteration);
    switch (p->kind) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY:
    case SCHEDULE_WARMUP_COSINE: return finish_warmup(p);
    case SCHEDULE_RANGE_TEST:
        return check_positive("lr_range_test_step_size", (double)p->range_step_size);
    case SCHEDULE_ONE_CYCLE: /* A second half that is not given equals the first. */
        TRY(check_positive("cycle_first_step_size", p->cycle_first_step_size));
        if (isnan(p->cycle_second_step_size)) p->cycle_second_step_size = p->cycle_first_step_size;
        if (isnan(p->cycle_second_stair_count))
            p->cycle_second_stair_count = p->cycle_first_stair_count;
        if (p->cycle_second_step_size < 0)
            return err_set(CZ_INVALID, 0, "cycle_second_step_size: must not be negative, got %g",
                           p->cycle_second_step_size);
        return check_decay(p);
    default: return CZ_OK;
    }
}

/* ---- formulas ------------------------------------------------------------------------------- */

double schedule_list_at(const struct setting_list *list, size_t group)
{
    return list->n == 1 ? list->v[0] : list->v[group];
}

/* Fraction of the warm-up done at index i ≥ 0; both forms are 0 at i = 0. */
static double warmup_gamma(const struct schedule_params *p, int64_t i)
{
    if (p->warmup_type == SCHEDULE_LINEAR) return (double)i / (double)p->warmup_num_steps;
    return 1.0 / log((double)p->warmup_num_steps) * log((double)(i + 1));
}

/* 1 at the end of the warm-up, 0 at the last step. */
static double decay_gamma(const struct schedule_params *p, int64_t i)
{
    double left = p->total_num_steps - (double)i;
    return fmax(0, left / fmax(1, p->total_num_steps - (double)p->warmup_num_steps));
}

/* WarmupLR stays at its maximum, WarmupDecayLR goes down from it. */
static double warmup_lr(const struct schedule *s, int64_t i, size_t group)
{
    const struct schedule_params *p = &s->params;
    double min = schedule_list_at(&p->warmup_min_lr, group);
    double max =
        p->warmup_max_lr.n > 0 ? schedule_list_at(&p->warmup_max_lr, group) : s->base_lr[group];
    if (i < 0) return min;
    double gamma = 1;
    if (i < p->warmup_num_steps)
        gamma = warmup_gamma(p, i);
    else if (p->kind == SCHEDULE_WARMUP_DECAY)
        gamma = decay_gamma(p, i);
    return min + (max - min) * gamma;
}

/* Relative to the optimizer's own rate, unlike the other schedules. */
static double cosine_ratio(const struct schedule_params *p, int64_t i)
{
    if (i < 0) return 0; /* whatever warmup_min_ratio is */
    if (i < p->warmup_num_steps)
        return p->warmup_min_ratio + warmup_gamma(p, i) * (1 - p->warmup_min_ratio);
    double done = (double)(i - p->warmup_num_steps + 1);
    double left = p->total_num_steps - (double)p->warmup_num_steps;
    double progress = done / (p->compat_0_16 ? left : fmax(1, left)); /* 0.16: below 0, too */
    if (progress > 1 && !p->compat_0_16) progress = 1;
    double wave = (1 + cos(M_PI * progress)) / 2;
    return fmax(0, p->cos_min_ratio + (1 - p->cos_min_ratio) * wave);
}

/* A range test grows without a bound: it is stopped by looking at the loss. */
static double range_lr(const struct schedule_params *p, int64_t i, size_t group)
{
    double x = (double)(i + 1) / (double)p->range_step_size;
    if (p->range_staircase) x = floor(x);
    return schedule_list_at(&p->range_min_lr, group) * (1 + p->range_step_rate * x);
}

static double cycle_total(const struct schedule_params *p)
{
    return p->cycle_first_step_size + p->cycle_second_step_size;
}

/* Stairs hold the value flat over each of `count` parts of a half, from the whole offset n mod t.
 */
static double stair_scale(const struct schedule_params *p, double n, double count)
{
    double offset = fmod(n, cycle_total(p));
    double position = offset <= p->cycle_first_step_size
                          ? offset * count / p->cycle_first_step_size
                          : (cycle_total(p) - offset) * count / p->cycle_second_step_size;
    return floor(position) / count;
}

/* Height on the cycle at index i < total: 0 at both ends, 1 at the peak. */
static double cycle_scale(const struct schedule_params *p, int64_t i)
{
    double n = (double)(i + 1), total = cycle_total(p);
    double x = 1 + n / total - floor(1 + n / total);
    double ratio = p->cycle_first_step_size / total;
    bool rises = x <= ratio;
    double count = rises ? p->cycle_first_stair_count : p->cycle_second_stair_count;
    if (count > 0 && !p->compat_0_16) return stair_scale(p, n, count);
    return rises ? x / ratio : (x - 1) / (ratio - 1);
}

/* Decay intervals since the end of the cycle. */
static double cycle_intervals(const struct schedule_params *p, int64_t i)
{
    return ((double)i - cycle_total(p) + 1) / p->decay_step_size;
}

static double cycle_lr(const struct schedule_params *p, int64_t i, size_t group)
{
    double min = schedule_list_at(&p->cycle_min_lr, group),
           max = schedule_list_at(&p->cycle_max_lr, group);
    if ((double)i < cycle_total(p)) return min + (max - min) * cycle_scale(p, i);
    if (p->decay_step_size == 0 || p->decay_lr_rate == 0) return min;
    return min / (1 + p->decay_lr_rate * cycle_intervals(p, i));
}

/* Opposite to the rate: momentum is low where steps are long. */
double schedule_beta1(const struct schedule *s, int64_t i, size_t group)
{
    const struct schedule_params *p = &s->params;
    double min = schedule_list_at(&p->cycle_min_mom, group),
           max = schedule_list_at(&p->cycle_max_mom, group);
    if ((double)i < cycle_total(p)) return max - (max - min) * cycle_scale(p, i);
    if (p->decay_step_size == 0 || p->decay_mom_rate == 0) return max;
    return max * (1 + p->decay_mom_rate * cycle_intervals(p, i));
}

/* What transformers' lambdas give for update number `step`, whose lr is this times the group's own.
 * `lr` is group 0's: the floors of some are lrs. */
static double hf_factor(const struct schedule_params *p, int64_t step, double lr)
{
    const double n = (double)step, warmup = (double)p->warmup_num_steps;
    if (p->kind == SCHEDULE_HF_CONSTANT) return 1;
    if (n < warmup) return n / fmax(1, warmup);
    const double decay_steps = fmax(1, p->total_num_steps - warmup);
    const double progress = (n - warmup) / decay_steps;
    const double min_rate = isnan(p->min_lr) ? p->min_lr_rate : p->min_lr / lr;
    switch (p->kind) {
    case SCHEDULE_HF_LINEAR: return fmax(0, (p->total_num_steps - n) / decay_steps);
    case SCHEDULE_HF_COSINE: return fmax(0, 0.5 * (1 + cos(M_PI * p->num_cycles * 2 * progress)));
    case SCHEDULE_HF_RESTARTS:
        if (progress >= 1) return 0;
        return fmax(0, 0.5 * (1 + cos(M_PI * fmod(p->num_cycles * progress, 1))));
    case SCHEDULE_HF_MIN_LR:
        return fmax(0, 0.5 * (1 + cos(M_PI * p->num_cycles * 2 * progress)) * (1 - min_rate) +
                           min_rate);
    case SCHEDULE_HF_POLYNOMIAL:
        if (n > p->total_num_steps) return p->lr_end / lr;
        return ((lr - p->lr_end) * pow(1 - (n - warmup) / (p->total_num_steps - warmup), p->power) +
                p->lr_end) /
               lr;
    case SCHEDULE_HF_INVERSE_SQRT:
        return 1 / sqrt((n + (double)(p->timescale - p->warmup_num_steps)) / (double)p->timescale);
    default: return 1; /* constant after its warm-up */
    }
}

/* Index i is that of the last update, −1 before the first. */
double schedule_lr(const struct schedule *s, int64_t i, size_t group)
{
    switch (s->params.kind) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY: return warmup_lr(s, i, group);
    case SCHEDULE_WARMUP_COSINE: return s->base_lr[group] * cosine_ratio(&s->params, i);
    case SCHEDULE_RANGE_TEST: return range_lr(&s->params, i, group);
    case SCHEDULE_ONE_CYCLE: return cycle_lr(&s->params, i, group);
    default: break;
    }
    if (schedule_is_torch(s->params.kind)) return schedule_torch_at(s, i + 1, group);
    return s->base_lr[group] * hf_factor(&s->params, i + 1, s->base_lr[0]);
}

/* ---- a running schedule --------------------------------------------------------------------- */

/* A beta1 of 1 would divide by zero: it is capped, and said once. */
static void put_beta1(struct schedule *s, struct optim_group *group, double beta1)
{
    if (beta1 >= 1) {
        if (!s->warned_momentum)
            LOGV(LOG_WARN, SUB_ENGINE, "%s: beta1 grew to %g; %g is used from here on",
                 kind_name(s->params.kind), beta1, SCHEDULE_BETA1_MAX);
        s->warned_momentum = true;
        beta1 = SCHEDULE_BETA1_MAX;
    }
    group->betas[0] = beta1;
}

void schedule_write_lr(const struct schedule *s, size_t group, struct optim_group *out)
{
    out->lr = schedule_lr(s, s->last_batch_iteration, group);
}

/* DeepSpeed starts the cycle of beta1 at its lower end, although the formula begins at the upper.
 */
void schedule_write_betas(struct schedule *s, size_t group, struct optim_group *out)
{
    int64_t i = s->last_batch_iteration;
    if (!s->cycles_momentum) return;
    if (schedule_is_torch(s->params.kind)) {
        const double momentum = schedule_torch_momentum(&s->params, i + 1, group);
        if (out->hyper.cls->has_betas)
            put_beta1(s, out, momentum);
        else
            out->hyper.momentum = momentum;
        return;
    }
    put_beta1(s, out,
              i < 0 ? schedule_list_at(&s->params.cycle_min_mom, group)
                    : schedule_beta1(s, i, group));
    out->betas[1] = 0.99; /* DeepSpeed's, whatever the optimizer was given */
}

/* Group rates at this moment are the base that ratios refer to. */
cz_status schedule_init(struct schedule *s, const struct schedule_params *params,
                        struct optim_group *groups, size_t n_groups)
{
    memset(s, 0, sizeof *s);
    if (n_groups < 1 || n_groups > OPTIM_GROUPS_MAX)
        return err_set(CZ_INVALID, 0, "scheduler: %zu parameter groups; 1 to %d are possible",
                       n_groups, OPTIM_GROUPS_MAX);
    /* A list of rates has one value for all groups, or one per group. */
    const struct setting_table *table = schedule_settings(params);
    for (size_t i = 0; i < table->n; i++) {
        if (table->settings[i].type != SETTING_LIST) continue;
        const struct setting_list *list =
            (const void *)((const char *)params + table->settings[i].offset);
        if (list->n > 1 && list->n != n_groups)
            return err_set(CZ_INVALID, 0, "%s: %zu values for %zu parameter group%s",
                           table->settings[i].name, list->n, n_groups, n_groups == 1 ? "" : "s");
    }
    s->params = *params;
    s->n_groups = n_groups;
    s->last_batch_iteration = params->last_batch_iteration;
    for (size_t g = 0; g < n_groups; g++) {
        s->base_lr[g] = groups[g].lr;
        if (params->kind == SCHEDULE_TORCH_CYCLIC)
            s->base_lr[g] = schedule_list_at(&params->torch.base_lr, g);
        if (params->kind == SCHEDULE_TORCH_ONE_CYCLE)
            s->base_lr[g] = schedule_list_at(&params->torch.max_lr, g) / params->torch.div_factor;
        TRY(schedule_fit_optimizer(params, &groups[g].hyper));
    }
    s->cycles_momentum = schedule_torch_cycles(params);
    s->params.torch.use_beta1 = s->cycles_momentum && groups[0].hyper.cls->has_betas;
    if (params->kind == SCHEDULE_HF_POLYNOMIAL && !(s->base_lr[0] > params->lr_end))
        return err_set(CZ_INVALID, 0, "lr_end: %g is not below the optimizer's lr, %g",
                       params->lr_end, s->base_lr[0]);
    if (params->kind == SCHEDULE_ONE_CYCLE && params->cycle_momentum) {
        for (size_t g = 0; g < n_groups; g++) s->cycles_momentum |= groups[g].hyper.cls->has_betas;
        if (!s->cycles_momentum)
            LOGV(LOG_WARN, SUB_CONFIG, "OneCycle: %s has no betas, its momentum is not cycled",
                 groups[0].hyper.cls->name);
    }
    if (s->last_batch_iteration == -1) {
        for (size_t g = 0; g < s->n_groups; g++) {
            schedule_write_lr(s, g, &groups[g]);
            schedule_write_betas(s, g, &groups[g]);
        }
    }
    return CZ_OK;
}

/* After an update that was applied: skipped steps do not count (docs/deepspeed-behaviour.md, "When
 * a rate applies"). */
cz_status schedule_step(struct schedule *s, struct optim_group *groups)
{
    const int64_t n_updates = ++s->last_batch_iteration + 1;
    const struct schedule_params *p = &s->params;
    if (p->kind == SCHEDULE_TORCH_ONE_CYCLE && n_updates > p->torch.total_steps)
        return err_set(CZ_INVALID, 0,
                       "scheduler: update %lld was made, and OneCycleLR has total_steps %lld: it "
                       "has no rate for the next, as in torch",
                       (long long)n_updates, (long long)p->torch.total_steps);
    if (schedule_is_torch(p->kind)) schedule_restore(s, s->last_batch_iteration);
    for (size_t g = 0; g < s->n_groups; g++) {
        if (schedule_is_torch(p->kind))
            groups[g].lr = schedule_torch_next(s, n_updates, g, groups[g].lr);
        else
            schedule_write_lr(s, g, &groups[g]);
        schedule_write_betas(s, g, &groups[g]);
        if (!isfinite(groups[g].lr))
            return err_set(CZ_INVALID, 0, "scheduler: after update %lld %s gives the rate %g",
                           (long long)n_updates, kind_name(p->kind), groups[g].lr);
    }
    return CZ_OK;
}

/* The rates themselves come with the groups. */
void schedule_restore(struct schedule *s, int64_t last_batch_iteration)
{
    s->last_batch_iteration = last_batch_iteration;
    if (s->params.kind == SCHEDULE_TORCH_RESTARTS)
        schedule_torch_place(&s->params.torch, last_batch_iteration + 1);
}
