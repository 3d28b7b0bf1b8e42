/* Claims: the 1-bit family's schedule is DeepSpeed 0.16.9's, step by step; 1-bit Lamb's values per
 * tensor follow the formulas and their bounds; bad settings are refused in words; updates use the
 * moments alone and never correct for bias. */
#include "optim/onebit.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define ck_says(text) ck_assert_msg(strstr(cz_last_error(), text), "\"%s\"", cz_last_error())

static const char *const family[] = {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"};

static struct optim_hyper begin(const char *type)
{
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(type, OPTIM_FUSED, &hyper));
    return hyper;
}

static struct optim_hyper with(const char *type, const char *name, double value)
{
    struct optim_hyper hyper = begin(type);
    ck_ok(optim_hyper_set_number(&hyper, name, value));
    ck_ok(optim_hyper_finish(&hyper));
    return hyper;
}

static struct optim_hyper zero_one(double freeze, double update, double scaler, double clipper)
{
    struct optim_hyper hyper = begin("ZeroOneAdam");
    ck_ok(optim_hyper_set_number(&hyper, "var_freeze_step", freeze));
    ck_ok(optim_hyper_set_number(&hyper, "var_update_scaler", update));
    ck_ok(optim_hyper_set_number(&hyper, "local_step_scaler", scaler));
    ck_ok(optim_hyper_set_number(&hyper, "local_step_clipper", clipper));
    ck_ok(optim_hyper_finish(&hyper));
    return hyper;
}

/* ---- the schedule --------------------------------------------------------------------------- */

static const char letters[] = "IFMGLS"; /* by enum onebit_act */

/* The acts of a run, a letter each; `freezes` is the (1-based) letter that freezes, 0 for none. */
static void calendar_check(const struct optim_hyper *hyper, bool is_16bit, const char *want,
                           size_t freezes)
{
    struct onebit_clock clock = onebit_clock_start(is_16bit);
    for (size_t i = 0; want[i]; i++) {
        enum onebit_act act = onebit_next(hyper, &clock);
        ck_assert_msg(letters[act] == want[i], "update %zu of %s: %c", i + 1, want, letters[act]);
        ck_assert_int_eq(onebit_advance(hyper, &clock), i + 1 == freezes);
        ck_assert_int_eq(clock.frozen, freezes > 0 && i + 1 >= freezes);
    }
}

START_TEST(onebit_freezes_once)
{
    for (size_t i = 0; i < 3; i += 2) { /* OneBitAdam and OneBitLamb */
        struct optim_hyper six = with(family[i], "freeze_step", 6);
        calendar_check(&six, false, "IFFFFFMMMM", 6);
        calendar_check(&six, true, "FFFFFMMMM", 5);
        for (int freeze = 1; freeze <= 2; freeze++) { /* one full update there is in any case */
            struct optim_hyper early = with(family[i], "freeze_step", freeze);
            calendar_check(&early, false, "IFMMM", 2);
            calendar_check(&early, true, "FMMM", 1);
        }
        struct optim_hyper late = with(family[i], "freeze_step", 1000);
        calendar_check(&late, false, "IFFFFFFFFFFFFFFF", 0);
    }
}
END_TEST

START_TEST(zero_one_follows_its_intervals)
{
    struct optim_hyper fixture = zero_one(12, 2, 4, 4); /* of the run s0-zerooneadam */
    calendar_check(&fixture, false, "IFFFGFGFGGGFGSSSSSLSLLLSLLLSL", 13);
    calendar_check(&fixture, true, "FFFGFGFGGGFGSSSSSLSLLLSLLLSL", 12);
    struct optim_hyper early = zero_one(1, 1, 1, 3); /* intervals 1, 2, 3, 3 … */
    calendar_check(&early, false, "IFSSLSLLSL", 2);  /* steps 3, 4, then those that 3 divides */
    struct optim_hyper steady = zero_one(5, 100, 100, 16);
    calendar_check(&steady, false, "IFFFFFSSSSSSS", 6);
    struct optim_hyper doubling = zero_one(1000, 1, 1, 1); /* at 2, 4, 8, 16 */
    calendar_check(&doubling, false, "IFGFGGGFGGGGGGGF", 0);
}
END_TEST

/* DeepSpeed's bookkeeping as its step() does it, with its flags, for one tensor. */
struct peer {
    bool initialize, freeze_key, reduces; /* reduces: the engine averages before the next call */
    uint64_t step, var_interval, var_counter, local_interval, local_counter;
};

static char peer_zero_one(struct peer *p, const struct optim_hyper *h)
{
    char act = 'I';
    bool averaged = p->reduces;
    if (!p->initialize)
        p->var_interval = p->local_interval = 1, p->var_counter = p->local_counter = 0;
    p->step++;
    if (!p->initialize) {
        p->initialize = true;
        return act;
    }
    if (p->freeze_key) {
        act = p->step % p->local_interval == 0 ? 'S' : 'L';
        if (averaged) ck_abort_msg("averaged after the freeze");
        if ((double)++p->local_counter == h->local_step_scaler) {
            p->local_counter = 0;
            p->local_interval *= 2;
            if ((double)p->local_interval > h->local_step_clipper)
                p->local_interval = (uint64_t)h->local_step_clipper;
        }
    } else {
        act = p->step % p->var_interval == 0 ? 'F' : 'G';
        if (averaged != (act == 'F')) ck_abort_msg("averaged in a step of signs");
        if (act == 'F' && (double)++p->var_counter == h->var_update_scaler) {
            p->var_counter = 0;
            p->var_interval *= 2;
        }
        p->reduces = (p->step + 1) % p->var_interval == 0;
    }
    if ((double)p->step > h->var_freeze_step) {
        p->freeze_key = true;
        p->reduces = false;
    }
    return act;
}

static char peer_onebit(struct peer *p, const struct optim_hyper *h)
{
    char act = !p->initialize ? 'I' : p->freeze_key ? 'M' : 'F';
    p->step++;
    if (!p->initialize) {
        p->initialize = true;
        return act;
    }
    if (!p->freeze_key && (double)p->step >= h->freeze_step) p->freeze_key = true;
    return act;
}

static bool same_counters(const struct onebit_clock *clock, const struct peer *peer,
                          bool is_zero_one)
{
    if (clock->step != peer->step || clock->frozen != peer->freeze_key) return false;
    return !is_zero_one ||
           (clock->var_interval == peer->var_interval && clock->var_counter == peer->var_counter &&
            clock->local_step_interval == peer->local_interval &&
            clock->local_step_counter == peer->local_counter);
}

static void agree_check(const struct optim_hyper *h, bool is_zero_one, bool is_16bit)
{
    char (*peer_step)(struct peer *, const struct optim_hyper *) =
        is_zero_one ? peer_zero_one : peer_onebit;
    struct peer peer = {.reduces = true};
    struct onebit_clock clock = onebit_clock_start(is_16bit);
    if (is_16bit) peer_step(&peer, h); /* its wrapper's call */
    for (int i = 0; i < 400; i++) {
        enum onebit_act act = onebit_next(h, &clock);
        char want = peer_step(&peer, h);
        bool was_frozen = clock.frozen;
        bool freezes = onebit_advance(h, &clock);
        if (letters[act] != want || freezes != (peer.freeze_key && !was_frozen) ||
            !same_counters(&clock, &peer, is_zero_one))
            ck_abort_msg("call %d: %c, not %c, or other counters", i + 1, letters[act], want);
    }
}

static double draw(unsigned *seed, unsigned limit)
{
    *seed = *seed * 1664525u + 1013904223u;
    return 1 + (*seed >> 8) % limit;
}

START_TEST(calendars_agree_with_the_peer_for_any_settings)
{
    unsigned seed = 20211102;
    for (int trial = 0; trial < 300; trial++) {
        struct optim_hyper h =
            zero_one(draw(&seed, 200), draw(&seed, 20), draw(&seed, 40), draw(&seed, 20));
        agree_check(&h, true, trial % 2 == 0);
        h = with(family[trial % 4 < 2 ? 0 : 2], "freeze_step", draw(&seed, 300));
        agree_check(&h, false, trial % 2 == 0);
    }
}
END_TEST

START_TEST(acts_say_what_they_send)
{
    const struct {
        enum onebit_act act;
        bool averages, exchanges;
    } acts[] = {{ONEBIT_INIT, true, false},     {ONEBIT_FULL, true, false},
                {ONEBIT_MOMENTUM, false, true}, {ONEBIT_GRADIENT, false, true},
                {ONEBIT_LOCAL, false, false},   {ONEBIT_SETTLE, false, true}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(acts); i++) {
        ck_assert_int_eq(onebit_averages(acts[i].act), acts[i].averages);
        ck_assert_int_eq(onebit_exchanges(acts[i].act), acts[i].exchanges);
    }
    struct optim_hyper adam, onebit = with("OneBitAdam", "lr", 1e-3);
    ck_ok(optim_hyper_begin("AdamW", OPTIM_FUSED, &adam));
    ck_assert(optim_is_onebit(&onebit) && !optim_is_onebit(&adam));
}
END_TEST

/* ---- 1-bit Lamb ----------------------------------------------------------------------------- */

START_TEST(lamb_ratios_are_averaged_in_the_warm_up)
{
    struct optim_hyper h = with("OneBitLamb", "coeff_beta", 0.75);
    struct onebit_tensor t = {.last_factor = 1};
    onebit_lamb_warm(&h, 8, &t);
    ck_assert_float_eq(t.lamb_coeff_freeze, 2);
    onebit_lamb_warm(&h, 1, &t); /* a norm was zero: no ratio */
    ck_assert_float_eq(t.lamb_coeff_freeze, 2);
    onebit_lamb_warm(&h, 4, &t);
    ck_assert_float_eq(t.lamb_coeff_freeze, 2.5f);
    ck_assert_float_eq(t.last_factor, 1);
    ck_assert_float_eq(t.scaling_coeff, 0);
}
END_TEST

START_TEST(lamb_scales_bring_momenta_together)
{
    const double norms[] = {6, 0, 1, 1e-300, 0};
    const size_t numels[] = {9, 4, 4, 1, 0}; /* root mean squares 2, 0, 1/2, next to 0, none */
    struct onebit_tensor tensors[5] = {{0}};
    onebit_lamb_scale(norms, numels, 5, tensors);
    ck_assert_float_eq(tensors[0].scaling_coeff, 0.25f); /* the mean is 1/2 */
    ck_assert_float_eq(tensors[1].scaling_coeff, 1);     /* not 1/0 */
    ck_assert_float_eq(tensors[2].scaling_coeff, 1);
    ck_assert_float_eq(tensors[3].scaling_coeff, 1); /* not infinity */
    ck_assert_float_eq(tensors[4].scaling_coeff, 1);
    onebit_lamb_scale(norms, numels, 0, NULL);
}
END_TEST

/* Sums of one element each, by the kernel that makes them. */
static struct lamb_sums sums_of(float before_decay, float update)
{
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    /* lamb_moments sums p² and u²: with beta1 0 and v 0, u is g/eps. */
    float p = before_decay, g = update, m = 0, v = 0;
    struct step_scalars scalars = {.grad_scale = 1, .beta2 = 1};
    struct lamb_sums sums = {{0}, {0}};
    struct lamb_segment segment = {0, 1, 0};
    struct lamb_args args = {
        .t = {.numel = 1, .p = &p, .g = &g, .states = {&m, &v}},
        .scalars = &scalars,
        .eps = 1,
        .segments = &segment,
        .n_segments = 1,
        .sums = &sums,
    };
    ck_ok(ops_lamb_moments(ops, NULL, &args));
    ops_destroy(ops);
    device_close(device);
    return sums;
}

START_TEST(lamb_factors_stay_within_their_bounds)
{
    struct optim_hyper h = with("OneBitLamb", "factor_threshold", 0.5);
    struct lamb_sums sums = sums_of(3, 4);
    struct onebit_tensor t = {.lamb_coeff_freeze = 0.5f, .last_factor = 1};
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 1.25f, &t), 0.625f);
    ck_assert_float_eq(t.last_factor, 1.25f);
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 100, &t), 0.9375f); /* 1.25·(1 + 1/2) */
    ck_assert_float_eq(t.last_factor, 1.875f);
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 0, &t), 0.9375f); /* all masked */
    ck_assert_float_eq(t.last_factor, 1.875f);
    for (int i = 0; i < 5; i++) onebit_lamb_ratio(&h, &sums, 100, &t);
    ck_assert_float_eq(t.last_factor, 4);                          /* factor_max */
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 0.1f, &t), 1); /* 4·(1 − 1/2)·0.5 */
    for (int i = 0; i < 5; i++) onebit_lamb_ratio(&h, &sums, 0.1f, &t);
    ck_assert_float_eq(t.last_factor, 0.5f); /* factor_min */
}
END_TEST

START_TEST(lamb_factors_count_the_decay_as_one)
{
    struct optim_hyper h = with("OneBitLamb", "weight_decay", 0.01);
    h.factor_threshold = 10;
    struct lamb_sums sums = sums_of(3, 4); /* ‖u0‖/‖u‖ = 3/4 */
    struct onebit_tensor t = {.lamb_coeff_freeze = 1, .last_factor = 1};
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 3, &t), 2.5f); /* 3·3/4 + 1/4 */
    sums = sums_of(4, 3);                                          /* more than all counts as all */
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 3, &t), 3);
    sums = sums_of(0, 0);
    ck_assert_float_eq(onebit_lamb_ratio(&h, &sums, 2, &t), 2);
}
END_TEST

/* ---- settings ------------------------------------------------------------------------------- */

START_TEST(names_and_defaults_are_deepspeeds)
{
    struct optim_hyper h = begin("onebitadam");
    ck_ok(optim_hyper_finish(&h));
    ck_assert_str_eq(h.cls->name, "OneBitAdam");
    ck_assert_double_eq(h.lr, 1e-3);
    ck_assert_double_eq(h.betas[0], 0.9);
    ck_assert_double_eq(h.betas[1], 0.999);
    ck_assert_double_eq(h.eps, 1e-8);
    ck_assert_double_eq(h.weight_decay, 0);
    ck_assert_double_eq(h.freeze_step, 100000);
    ck_assert_int_eq(h.comm_backend, 0);
    ck_assert(!h.cuda_aware);
    ck_assert_uint_eq(optim_n_states(&h), 2);
    ck_assert_uint_eq(h.cls->flags, OPTIM_ZERO_TESTED);
    ck_assert(optim_is_onebit(&h) && !optim_moves_alone(&h));
    ck_assert_ptr_null(optim_stage_of(h.cls, OPTIM_TENSOR_SUMS));

    h = begin("ZEROONEADAM");
    ck_ok(optim_hyper_finish(&h));
    ck_assert_double_eq(h.var_freeze_step, 100000);
    ck_assert_double_eq(h.var_update_scaler, 16);
    ck_assert_double_eq(h.local_step_scaler, 32678);
    ck_assert_double_eq(h.local_step_clipper, 16);
    ck_assert_uint_eq(optim_n_states(&h), 3);
    ck_assert_str_eq(h.cls->state_names[2], "momentum_accumulator");
    ck_assert(optim_is_onebit(&h) && optim_moves_alone(&h));

    h = begin("OneBitLAMB");
    ck_ok(optim_hyper_finish(&h));
    ck_assert_double_eq(h.max_coeff, 10);
    ck_assert_double_eq(h.min_coeff, 0.01);
    ck_assert_double_eq(h.coeff_beta, 0.9);
    ck_assert_double_eq(h.factor_max, 4);
    ck_assert_double_eq(h.factor_min, 0.5);
    ck_assert_double_eq(h.factor_threshold, 0.1);
    ck_assert_uint_eq(optim_n_states(&h), 3);
    ck_assert_str_eq(h.cls->state_names[2], "exp_avg_sq_fresh");
    ck_assert_uint_eq(h.cls->flags, OPTIM_ZERO_TESTED | OPTIM_DYNAMIC_SCALE);
    ck_assert(optim_is_onebit(&h) && !optim_moves_alone(&h));
    ck_assert_ptr_nonnull(optim_stage_of(h.cls, OPTIM_TENSOR_SUMS));
    for (size_t s = 0; s < 3; s++) ck_assert_double_eq(optim_state_init(&h, s), 0);
}
END_TEST

START_TEST(bad_numbers_are_refused_with_their_meaning)
{
    const struct {
        const char *type, *name;
        double value;
        const char *says;
    } bad[] = {
        {"OneBitAdam", "freeze_step", 0, "freeze_step: 0 must be a whole number from 1 on"},
        {"OneBitAdam", "freeze_step", -3, "then the variance is frozen"},
        {"OneBitAdam", "freeze_step", 2.5, "freeze_step: 2.5"},
        {"OneBitAdam", "freeze_step", 0x1p54, "must be a whole number"},
        {"OneBitLamb", "freeze_step", 0, "freeze_step: 0"},
        {"ZeroOneAdam", "var_freeze_step", 0, "var_freeze_step: 0"},
        {"ZeroOneAdam", "var_update_scaler", 0, "variance updates until"},
        {"ZeroOneAdam", "local_step_scaler", -1, "steps after the freeze"},
        {"ZeroOneAdam", "local_step_clipper", 1.5, "longest interval"},
        {"OneBitAdam", "eps", 0, "eps: 0 must be above 0"},
        {"ZeroOneAdam", "eps", 1e-60, "in fp32"},
        {"OneBitLamb", "eps", 0, "frozen variance"},
        {"OneBitAdam", "lr", -1, "lr"},
        {"OneBitLamb", "coeff_beta", 1, "coeff_beta: 1 is outside [0, 1)"},
        {"OneBitLamb", "coeff_beta", -0.1, "coeff_beta"},
        {"OneBitLamb", "factor_min", 0, "factor_min: 0 must be above 0"},
        {"OneBitLamb", "factor_max", 0.25, "factor_max: 0.25 is below factor_min 0.5"},
        {"OneBitLamb", "factor_threshold", -0.1, "factor_threshold"},
        {"OneBitLamb", "max_coeff", 0.001, "max_coeff"},
        {"OneBitLamb", "min_coeff", -1, "min_coeff"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct optim_hyper h = begin(bad[i].type);
        cz_status st = optim_hyper_set_number(&h, bad[i].name, bad[i].value);
        if (st == CZ_OK) st = optim_hyper_finish(&h);
        ck_assert_int_eq(st, CZ_INVALID);
        ck_says(bad[i].says);
    }
    struct optim_hyper h = begin("OneBitAdam");
    ck_fails(optim_hyper_set_number(&h, "freeze_step", NAN), CZ_INVALID);
    ck_fails(optim_hyper_set_number(&h, "freeze_step", INFINITY), CZ_INVALID);
    h = begin("OneBitLamb");
    ck_ok(optim_hyper_set_pair(&h, "betas", 1 - 0x1p-40, 0.999));
    ck_fails(optim_hyper_finish(&h), CZ_INVALID);
    ck_says("1 in fp32");
    h = with("OneBitAdam", "freeze_step", 1e3); /* a float without fraction is welcome */
    ck_assert_double_eq(h.freeze_step, 1000);
}
END_TEST

START_TEST(switches_are_known)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(family); i++) {
        struct optim_hyper h = begin(family[i]);
        ck_ok(optim_hyper_set_bool(&h, "bias_correction", true));
        ck_ok(optim_hyper_set_bool(&h, "eps_inside_sqrt", true));
        ck_ok(optim_hyper_set_bool(&h, "cuda_aware", true));
        const char *const names[] = {"nccl", "mpi", "hccl", "compressed"};
        for (int n = 0; n < 4; n++) {
            struct setting_value value = {.type = SETTING_NAME, .name = names[n]};
            ck_ok(optim_hyper_set(&h, "comm_backend_name", &value));
            ck_assert_int_eq(h.comm_backend, n);
        }
        struct setting_value gloo = {.type = SETTING_NAME, .name = "gloo"};
        ck_fails(optim_hyper_set(&h, "comm_backend_name", &gloo), CZ_INVALID);
        ck_assert_str_eq(cz_last_error(),
                         "comm_backend_name: \"gloo\" is not known; choose from \"nccl\", "
                         "\"mpi\", \"hccl\", \"compressed\"");
        ck_fails(optim_hyper_set_number(&h, "comm_backend_name", 1), CZ_INVALID);
        ck_fails(optim_hyper_set_number(&h, "max_grad_norm", 1), CZ_INVALID);
        ck_says("gradient_clipping");
        ck_ok(optim_hyper_finish(&h));
        ck_ok(optim_hyper_set_bool(&h, "amsgrad", true));
        ck_fails(optim_hyper_finish(&h), CZ_UNSUPPORTED);
    }
    struct optim_hyper h = begin("OneBitAdam");
    ck_fails(optim_hyper_set_number(&h, "var_freeze_step", 10), CZ_INVALID);
    ck_says("did you mean \"freeze_step\"");
}
END_TEST

/* ---- updates -------------------------------------------------------------------------------- */

#define NUMEL 3

struct trial {
    struct device *device;
    struct ops *ops;
    float p[NUMEL], g[NUMEL], m[NUMEL], v[NUMEL], third[NUMEL], ratios[2];
    struct lamb_sums sums[2];
    struct lamb_segment segments[2];
    struct optim_group group;
    struct optim_range range;
};

static void trial_open(struct trial *t, const char *type)
{
    *t = (struct trial){
        .p = {1, -2, 0.5f},
        .g = {0.5f, 0.25f, -1},
        .third = {7, 8, 9},
        .ratios = {1, 1},
        .segments = {{0, 2, 0}, {2, 3, 1}},
    };
    struct optim_hyper h = begin(type);
    ck_ok(optim_hyper_set_number(&h, "lr", 0.125));
    ck_ok(optim_hyper_set_number(&h, "weight_decay", 0.25));
    ck_ok(optim_hyper_set_number(&h, "eps", 0.5));
    ck_ok(optim_hyper_set_pair(&h, "betas", 0.5, 0.75));
    ck_ok(optim_hyper_set_bool(&h, "eps_inside_sqrt", true)); /* no effect */
    ck_ok(optim_hyper_finish(&h));
    ck_ok(optim_group_init(&t->group, &h, NULL));
    ck_ok(device_open("cpu", 0, &t->device));
    ck_ok(ops_create(t->device, &t->ops));
    t->range = (struct optim_range){
        .tensors = {.numel = NUMEL, .p = t->p, .g = t->g, .states = {t->m, t->v, t->third}},
        .segments = t->segments,
        .n_segments = 2,
        .sums = t->sums,
        .ratios = t->ratios,
    };
}

static void trial_close(struct trial *t)
{
    ops_destroy(t->ops);
    device_close(t->device);
}

/* u = m/(√v + eps) + wd·p of an element. */
static double update_of(const struct trial *t, size_t i, double p)
{
    return t->m[i] / (sqrt(t->v[i]) + 0.5) + 0.25 * p;
}

START_TEST(full_updates_never_correct_for_bias)
{
    for (size_t f = 0; f < CZ_ARRAY_LEN(family); f++) {
        struct trial t;
        struct step_scalars scalars;
        trial_open(&t, family[f]);
        const struct optim_class *cls = t.group.hyper.cls;
        float before[NUMEL];
        memcpy(before, t.p, sizeof before);
        optim_step_scalars(&t.group, 2, 1, 1, &scalars);
        ck_assert_float_eq(scalars.inv_bias1, 1);
        ck_assert_float_eq(scalars.inv_sqrt_bias2, 1);
        ck_assert_float_eq(scalars.step_size, 0.125f);
        for (size_t i = 0; i < cls->n_stages; i++) {
            const struct optim_stage *stage = &cls->stages[i];
            ck_ok(stage->run(t.ops, NULL, &t.group.hyper, &scalars, &t.range));
            if (stage->ratios) stage->ratios(&t.group.hyper, t.sums, 2, t.ratios);
        }
        bool is_lamb = cls->n_stages == 2;
        double p2[2] = {5, 0.25}, u2[2] = {0};
        for (size_t i = 0; i < NUMEL; i++) {
            double u = update_of(&t, i, before[i]);
            ck_assert_float_eq(t.m[i], 0.5f * t.g[i]);
            ck_assert_float_eq(t.v[i], 0.25f * t.g[i] * t.g[i]);
            u2[i == 2] += u * u;
        }
        for (size_t i = 0; i < NUMEL; i++) {
            double ratio = is_lamb ? sqrt(p2[i == 2] / u2[i == 2]) : 1;
            double want = before[i] - 0.125 * ratio * update_of(&t, i, before[i]);
            ck_assert_double_eq_tol(t.p[i], want, 1e-6);
            ck_assert_float_eq(t.third[i], 7 + (float)i); /* not theirs to touch */
        }
        trial_close(&t);
    }
}
END_TEST

START_TEST(apply_moves_weights_alone)
{
    for (size_t f = 0; f < CZ_ARRAY_LEN(family); f++) {
        struct trial t;
        struct step_scalars scalars;
        trial_open(&t, family[f]);
        const float m[NUMEL] = {0.5f, -1, 0}, v[NUMEL] = {0.25f, 4, 0};
        memcpy(t.m, m, sizeof m);
        memcpy(t.v, v, sizeof v);
        float before[NUMEL];
        memcpy(before, t.p, sizeof before);
        t.ratios[1] = 0.5f;
        t.range.tensors.g = NULL; /* needs none */
        optim_step_scalars(&t.group, 3, 1, 1, &scalars);
        ck_ok(t.group.hyper.cls->frozen_stages[1].run(t.ops, NULL, &t.group.hyper, &scalars,
                                                      &t.range));
        ck_assert_mem_eq(t.m, m, sizeof m);
        ck_assert_mem_eq(t.v, v, sizeof v);
        for (size_t i = 0; i < NUMEL; i++) {
            double want = before[i] - 0.125 * t.ratios[i == 2] * update_of(&t, i, before[i]);
            ck_assert_double_eq_tol(t.p[i], want, 1e-6);
        }
        trial_close(&t);
    }
}
END_TEST

TEST_MAIN("optim/onebit", onebit_freezes_once, zero_one_follows_its_intervals,
          calendars_agree_with_the_peer_for_any_settings, acts_say_what_they_send,
          lamb_ratios_are_averaged_in_the_warm_up, lamb_scales_bring_momenta_together,
          lamb_factors_stay_within_their_bounds, lamb_factors_count_the_decay_as_one,
          names_and_defaults_are_deepspeeds, bad_numbers_are_refused_with_their_meaning,
          switches_are_known, full_updates_never_correct_for_bias, apply_moves_weights_alone)
