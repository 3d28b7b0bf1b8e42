/* Claims: every schedule gives DeepSpeed's and torch's learning rates (tests/fixtures/lr, made by
 * their own classes), the worked examples of docs/deepspeed-behaviour.md hold, the index only moves
 * with applied updates, and wrong parameters are refused by name. */
#include "optim/schedule.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <string.h>

static void groups_make(struct optim_group *groups, const double *lr, size_t n, const char *type)
{
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(type, OPTIM_FUSED, &hyper));
    if (strcmp(type, "SGD") != 0) ck_ok(optim_hyper_set_pair(&hyper, "betas", 0.9, 0.95));
    ck_ok(optim_hyper_finish(&hyper));
    for (size_t g = 0; g < n; g++) {
        struct optim_group_rule rule = {"x", lr[g], NAN, NAN, NAN};
        ck_ok(optim_group_init(&groups[g], &hyper, &rule));
    }
}

static size_t numbers_parse(char *text, const char *separators, double *out, size_t max)
{
    size_t n = 0;
    for (char *word = strtok(text, separators); word && n < max; word = strtok(NULL, separators))
        out[n++] = strtod(word, NULL);
    return n;
}

/* "key=value" as the golden files state it: bools, names, integers, numbers, or several numbers. */
static void param_set(struct schedule_params *params, const char *key, char *value)
{
    double list[OPTIM_GROUPS_MAX];
    char *end;
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
        ck_ok(schedule_params_set_bool(params, key, value[0] == 't'));
        return;
    }
    long long integer = strtoll(value, &end, 10);
    if (*end == '\0') {
        ck_ok(schedule_params_set_int(params, key, integer));
        return;
    }
    double number = strtod(value, &end);
    if (*end == '\0') {
        ck_ok(schedule_params_set_number(params, key, number));
    } else if (*end == ' ') {
        size_t n = numbers_parse(value, " ", list, OPTIM_GROUPS_MAX);
        ck_ok(schedule_params_set_list(params, key, list, n));
    } else {
        ck_ok(schedule_params_set_name(params, key, value));
    }
}

/* exp, log and cos of another libm may differ in the last bit, which torch's schedules carry from
 * rate to rate and divide by what is left of the wave. */
static void ck_close(double have, double want, const char *file, double i, const char *what)
{
    const double rtol = strstr(file, "torch_") ? 1e-12 : 2 * DBL_EPSILON;
    ck_assert_msg(fabs(have - want) <= rtol * fabs(want), "%s: i %g: %s %.17g, not %.17g", file, i,
                  what, have, want);
}

static void row_check(const char *file, char *line, const struct optim_group *groups, size_t n)
{
    double want[1 + 3 * OPTIM_GROUPS_MAX];
    ck_assert_uint_eq(numbers_parse(line, ",\n", want, CZ_ARRAY_LEN(want)), 1 + 3 * n);
    for (size_t g = 0; g < n; g++) {
        ck_close(groups[g].lr, want[1 + 3 * g], file, want[0], "lr");
        ck_close(groups[g].betas[0], want[2 + 3 * g], file, want[0], "beta1");
        ck_close(groups[g].betas[1], want[3 + 3 * g], file, want[0], "beta2");
    }
}

static size_t golden_replay(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    struct schedule_params params = {0};
    struct schedule schedule;
    struct optim_group groups[OPTIM_GROUPS_MAX];
    double base_lr[OPTIM_GROUPS_MAX];
    size_t n_groups = 0, n_rows = 0;
    char line[4096];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        if (line[0] == '#') {
            *value++ = '\0';
            if (strcmp(line, "# type") == 0)
                ck_ok(schedule_params_begin(value, false, &params));
            else if (strcmp(line, "# base_lr") == 0 && n_groups == 0) /* CyclicLR has one, too */
                n_groups = numbers_parse(value, " ", base_lr, OPTIM_GROUPS_MAX);
            else
                param_set(&params, line + 2, value);
            continue;
        }
        if (n_rows++ == 0) {
            groups_make(groups, base_lr, n_groups, "AdamW");
            ck_ok(schedule_params_finish(&params));
            ck_ok(schedule_init(&schedule, &params, groups, n_groups));
        } else {
            ck_ok(schedule_step(&schedule, groups));
        }
        row_check(path, line, groups, n_groups);
    }
    fclose(f);
    return n_rows;
}

START_TEST(golden_tables_agree)
{
    DIR *dir = opendir(CZ_SOURCE_DIR "/tests/fixtures/lr");
    ck_assert_ptr_nonnull(dir);
    int n_files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        if (!strstr(entry->d_name, ".csv")) continue;
        snprintf(path, sizeof path, "%s/tests/fixtures/lr/%s", CZ_SOURCE_DIR, entry->d_name);
        ck_assert_uint_eq(golden_replay(path), strstr(path, "torch_") ? 41 : 201);
        n_files++;
    }
    closedir(dir);
    ck_assert_int_ge(n_files, 29);
}
END_TEST

/* ---- the examples of docs/deepspeed-behaviour.md ------------------------------------------- */

static struct schedule_params begin(const char *type)
{
    struct schedule_params params;
    ck_ok(schedule_params_begin(type, false, &params));
    return params;
}

static void vector_check(struct schedule_params *params, double base_lr, int64_t first_i,
                         const double *want, size_t n, double rtol)
{
    struct optim_group group;
    struct schedule s;
    groups_make(&group, &base_lr, 1, "Adam");
    ck_ok(schedule_params_finish(params));
    ck_ok(schedule_init(&s, params, &group, 1));
    for (size_t k = 0; k < n; k++) {
        double have = schedule_lr(&s, first_i + (int64_t)k, 0);
        ck_assert_msg(fabs(have - want[k]) <= rtol * fabs(want[k]), "i %lld: %.17g, not %.17g",
                      (long long)first_i + (long long)k, have, want[k]);
    }
}

START_TEST(warmup_vectors)
{
    const double log10[] = {0,
                            3.01029996e-4,
                            4.77121255e-4,
                            6.02059991e-4,
                            6.98970004e-4,
                            7.7815125e-4,
                            8.4509804e-4,
                            9.03089987e-4,
                            9.54242509e-4,
                            1e-3,
                            1e-3,
                            1e-3};
    const double linear[] = {0, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4, 9e-4, 1e-3, 1e-3};
    struct schedule_params params = begin("WarmupLR");
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 10));
    vector_check(&params, 1e-3, 0, log10, 12, 1e-8);
    ck_ok(schedule_params_set_name(&params, "warmup_type", "linear"));
    vector_check(&params, 1e-3, 0, linear, 12, 1e-15);
}
END_TEST

START_TEST(warmup_decay_vector_has_its_plateau)
{
    const double want[] = {1e-3, 1e-3, 9e-4, 8e-4, 7e-4, 6e-4, 5e-4, 4e-4, 3e-4, 2e-4, 1e-4, 0, 0};
    struct schedule_params params = begin("WarmupDecayLR");
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 10));
    ck_ok(schedule_params_set_number(&params, "total_num_steps", 2e1));
    vector_check(&params, 5e-2, 9, want, 13, 1e-15); /* its maximum is 0.001, not the optimizer's */
}
END_TEST

START_TEST(warmup_cosine_vectors)
{
    const double linear[] = {0,
                             0,
                             .0025,
                             .005,
                             .0075,
                             .0096574579,
                             .00868198052,
                             .00722207545,
                             .0055,
                             .00377792455,
                             .00231801948,
                             .0013425421,
                             .001,
                             .001,
                             .001};
    const double log4[] = {0,
                           0,
                           .005,
                           .0079248125,
                           .01,
                           .00961943572,
                           .00853568035,
                           .00691372582,
                           .0050005,
                           .00308727418,
                           .00146531965,
                           .000381564277,
                           1e-6,
                           1e-6};
    struct schedule_params params = begin("WarmupCosineLR");
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 12));
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 4));
    vector_check(&params, 0.01, -1, log4, 14, 1e-8);
    ck_ok(schedule_params_set_name(&params, "warmup_type", "linear"));
    ck_ok(schedule_params_set_number(&params, "cos_min_ratio", 0.1));
    vector_check(&params, 0.01, -1, linear, 15, 1e-8);
}
END_TEST

START_TEST(range_test_vectors)
{
    const double plain[] = {.001, .0012, .0014, .0016, .0018, .002, .0022};
    const double stairs[] = {.001, .001, .001, .001, .001, .002, .002, .002, .002, .002, .003};
    struct schedule_params params = begin("LRRangeTest");
    ck_ok(schedule_params_set_int(&params, "lr_range_test_step_size", 5));
    vector_check(&params, 1, -1, plain, 7, 1e-15);
    ck_ok(schedule_params_set_bool(&params, "lr_range_test_staircase", true));
    vector_check(&params, 1, -1, stairs, 11, 1e-15);
}
END_TEST

static struct schedule_params one_cycle(void)
{
    struct schedule_params params = begin("OneCycle");
    ck_ok(schedule_params_set_number(&params, "cycle_min_lr", 1e-3));
    ck_ok(schedule_params_set_number(&params, "cycle_max_lr", 1e-2));
    ck_ok(schedule_params_set_int(&params, "cycle_first_step_size", 4));
    ck_ok(schedule_params_set_int(&params, "decay_step_size", 2));
    ck_ok(schedule_params_set_number(&params, "decay_lr_rate", .5));
    ck_ok(schedule_params_set_number(&params, "decay_mom_rate", .5));
    ck_ok(schedule_params_set_number(&params, "cycle_min_mom", .85));
    ck_ok(schedule_params_set_number(&params, "cycle_max_mom", .99));
    return params;
}

START_TEST(one_cycle_vectors)
{
    const double lr[] = {.001,   .00325, .0055, .00775,        .01,           .00775, .0055,
                         .00325, .001,   .0008, .000666666667, .000571428571, .0005};
    const double mom[] = {.99,  .955, .92,    .885,  .85,    .885, .92,
                          .955, .99,  1.2375, 1.485, 1.7325, 1.98};
    const double stairs[] = {.001, .0055, .0055, .01, .0055, .0055, .001, .001};
    struct schedule_params params = one_cycle();
    vector_check(&params, 1, -1, lr, 13, 1e-8);
    struct schedule s = {.params = params, .n_groups = 1};
    for (int64_t i = -1; i <= 11; i++)
        ck_assert_double_eq_tol(schedule_beta1(&s, i, 0), mom[i + 1], 1e-12);
    ck_ok(schedule_params_set_int(&params, "cycle_first_stair_count", 2));
    ck_ok(schedule_params_set_int(&params, "cycle_second_stair_count", 2));
    vector_check(&params, 1, 0, stairs, 8, 1e-12);
}
END_TEST

START_TEST(one_cycle_hands_out_betas_below_one)
{
    struct schedule_params params = one_cycle();
    struct optim_group group;
    struct schedule s;
    groups_make(&group, (double[]){1}, 1, "Lamb");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq(group.betas[0],
                        .85); /* the first update's, although lr is at its minimum */
    ck_assert_double_eq(group.betas[1], .99);
    for (int i = 0; i < 8; i++) ck_ok(schedule_step(&s, &group));
    ck_assert_double_eq(group.betas[0], .99);
    ck_assert(!s.warned_momentum);
    ck_ok(schedule_step(&s, &group)); /* the formula gives 1.2375 */
    ck_assert_double_eq(group.betas[0], SCHEDULE_BETA1_MAX);
    ck_assert(s.warned_momentum);
    params = one_cycle(); /* and one that grows to exactly 1 */
    ck_ok(schedule_params_set_number(&params, "cycle_min_mom", .7));
    ck_ok(schedule_params_set_number(&params, "cycle_max_mom", .8));
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    for (int i = 0; i < 8; i++) ck_ok(schedule_step(&s, &group));
    ck_assert_double_eq(group.betas[0], .8);
    ck_ok(schedule_step(&s, &group));
    ck_assert_double_eq(group.betas[0], SCHEDULE_BETA1_MAX);
}
END_TEST

START_TEST(one_cycle_leaves_sgd_alone)
{
    struct schedule_params params = one_cycle();
    struct optim_group group;
    struct schedule s;
    groups_make(&group, (double[]){1}, 1, "SGD");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_ok(schedule_step(&s, &group));
    ck_assert(!s.cycles_momentum);
    ck_assert_double_eq(group.betas[0], 0);
    ck_assert_double_eq_tol(group.lr, .00325, 1e-15);
}
END_TEST

/* ---- life cycle -------------------------------------------------------------------------------
 */

START_TEST(restoring_sets_the_index_alone)
{
    struct schedule_params params = begin("WarmupLR");
    struct optim_group group;
    struct schedule s;
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 10));
    ck_ok(schedule_params_set_name(&params, "warmup_type", "linear"));
    groups_make(&group, (double[]){1e-3}, 1, "Adam");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    group.lr = 0.125; /* came with the optimizer's state */
    schedule_restore(&s, 4);
    ck_assert_double_eq(group.lr, 0.125);
    ck_ok(schedule_step(&s, &group));
    ck_assert_int_eq(s.last_batch_iteration, 5);
    ck_assert_double_eq_tol(group.lr, 5e-4, 1e-18);
}
END_TEST

START_TEST(a_given_start_index_keeps_the_optimizers_lr)
{
    struct schedule_params params = begin("WarmupLR");
    struct optim_group group;
    struct schedule s;
    ck_ok(schedule_params_set_int(&params, "last_batch_iteration", 20));
    groups_make(&group, (double[]){0.5}, 1, "Adam");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq(group.lr, 0.5);
    ck_ok(schedule_step(&s, &group));
    ck_assert_int_eq(s.last_batch_iteration, 21);
}
END_TEST

/* ---- recorded runs -----------------------------------------------------------------------------
 */

/* lr_next of runs/<run>/curve.csv; a step whose norm is infinite was skipped. `params` are those of
 * its ds_config.json, as "key=value" words. */
static void recorded_run_check(const char *run, const char *type, const char *params_text)
{
    char relative[128], text[512], line[256];
    struct schedule_params params = begin(type);
    struct optim_group group;
    struct schedule s;
    snprintf(relative, sizeof relative, "runs/%s/curve.csv", run);
    const char *path = test_fixture(relative);
    snprintf(text, sizeof text, "%s", params_text);
    char *rest = text;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        param_set(&params, word, value);
    }
    groups_make(&group, (double[]){1e-3}, 1, "AdamW");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    FILE *f = fopen(path, "r");
    int n_rows = 0;
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    for (; fgets(line, sizeof line, f); n_rows++) {
        double lr_next, norm;
        ck_assert_int_eq(sscanf(line, "%*d,%*f,%lf,%lf", &lr_next, &norm), 2);
        if (!isinf(norm)) ck_ok(schedule_step(&s, &group));
        ck_assert_msg(fabs(group.lr - lr_next) <= 1e-9 * lr_next, "%s: %s: %.17g", run, line,
                      group.lr);
    }
    fclose(f);
    ck_assert_int_ge(n_rows, 20);
}

START_TEST(recorded_runs_are_reproduced)
{
    recorded_run_check("sched-onecycle", "OneCycle",
                       "cycle_min_lr=0.0001 cycle_max_lr=0.001 decay_lr_rate=0.01 "
                       "cycle_first_step_size=8 cycle_second_step_size=6 cycle_first_stair_count=0 "
                       "decay_step_size=3 cycle_min_mom=0.85 cycle_max_mom=0.95");
    recorded_run_check("sched-rangetest", "LRRangeTest",
                       "lr_range_test_min_lr=1e-05 lr_range_test_step_size=4 "
                       "lr_range_test_step_rate=1.5 lr_range_test_staircase=false");
    recorded_run_check("sched-warmupcosine", "WarmupCosineLR",
                       "total_num_steps=20 warmup_num_steps=6 warmup_min_ratio=0.05 "
                       "cos_min_ratio=0.1");
    recorded_run_check("sched-warmupdecay", "WarmupDecayLR",
                       "total_num_steps=20 warmup_min_lr=1e-05 warmup_max_lr=0.001 "
                       "warmup_num_steps=6");
    const char *linear = "warmup_min_lr=0 warmup_max_lr=0.001 warmup_num_steps=5 "
                         "warmup_type=linear";
    recorded_run_check("s1-fp16-static", "WarmupLR", linear);
    recorded_run_check("s2-fp16-dynscale", "WarmupLR", linear); /* with skipped steps */
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

#define ck_says(text) ck_assert_msg(strstr(cz_last_error(), text), "\"%s\"", cz_last_error())

START_TEST(wrong_parameters_are_refused_by_name)
{
    struct schedule_params params;
    ck_fails(schedule_params_begin("warmuplr", false, &params), CZ_INVALID);
    ck_says("WarmupLR");
    params = begin("WarmupLR");
    ck_fails(schedule_params_set_int(&params, "warmup_steps", 10), CZ_INVALID);
    ck_says("warmup_num_steps");
    ck_fails(schedule_params_set_number(&params, "warmup_num_steps", 1e3), CZ_INVALID);
    ck_says("warmup_num_steps: must be an integer, got 1000");
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 0));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    params = begin("LRRangeTest");
    ck_ok(schedule_params_set_int(&params, "lr_range_test_step_size", -3));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    params = begin("WarmupDecayLR");
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_says("total_num_steps: WarmupDecayLR needs");
    params = begin("OneCycle");
    ck_ok(schedule_params_set_number(&params, "cycle_min_lr", 1e-3));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    params = one_cycle();
    ck_ok(schedule_params_set_int(&params, "cycle_first_step_size", 0));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    params = one_cycle();
    ck_ok(schedule_params_set_int(&params, "cycle_second_step_size", -1));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_fails(schedule_params_set_name(&params, "cycle_min_lr", "auto"), CZ_INVALID);
}
END_TEST

/* Parameters whose default is None in DeepSpeed's signatures; for others None fails there, too. */
START_TEST(null_is_what_deepspeeds_default_is)
{
    static const struct setting_value null = {.type = SETTING_NULL};
    struct schedule_params params;
    struct optim_group group;
    struct schedule s;
    params = one_cycle();
    ck_ok(schedule_params_set(&params, "cycle_second_step_size", &null));
    ck_ok(schedule_params_set(&params, "cycle_second_stair_count", &null));
    ck_fails(schedule_params_set(&params, "cycle_first_step_size", &null), CZ_INVALID);
    ck_says("cycle_first_step_size: null");
    ck_ok(schedule_params_finish(&params));
    ck_assert_double_eq(params.cycle_second_step_size, params.cycle_first_step_size);
    ck_assert_double_eq(params.cycle_second_stair_count, params.cycle_first_stair_count);
    for (int decay = 0; decay < 2; decay++) {
        params = begin(decay ? "WarmupDecayLR" : "WarmupLR");
        if (decay) ck_ok(schedule_params_set_int(&params, "total_num_steps", 5000));
        ck_ok(schedule_params_set(&params, "warmup_max_lr", &null));
        ck_ok(schedule_params_set(&params, "warmup_type", &null));
        ck_ok(schedule_params_finish(&params));
        ck_assert_int_eq(params.warmup_type, SCHEDULE_LOG);
        groups_make(&group, (double[]){5}, 1, "Adam");
        ck_ok(schedule_init(&s, &params, &group, 1));
        ck_assert_double_eq(schedule_lr(&s, 1000, 0), 5); /* the optimizer's own */
    }
    ck_ok(schedule_params_begin("WarmupLR", true, &params));
    ck_fails(schedule_params_set(&params, "warmup_max_lr", &null), CZ_INVALID);
    ck_says("0.16");
}
END_TEST

/* DeepSpeed divides by 1 + decay_lr_rate·intervals, which must not fall through 0. */
START_TEST(a_decay_that_passes_zero_is_refused)
{
    static const struct {
        double rate, step;
        bool works;
    } cases[] = {
        {0.5, -2, false}, {-0.5, 2, false}, {-0.5, -2, true}, {0, -2, true}, {-1, 0, true}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct schedule_params params = one_cycle();
        ck_ok(schedule_params_set_number(&params, "decay_lr_rate", cases[i].rate));
        ck_ok(schedule_params_set_number(&params, "decay_step_size", cases[i].step));
        cz_status st = schedule_params_finish(&params);
        ck_assert_int_eq(st, cases[i].works ? CZ_OK : CZ_INVALID);
        if (!cases[i].works) ck_says(cases[i].step < 0 ? "decay_step_size: " : "decay_lr_rate: ");
    }
}
END_TEST

START_TEST(lists_must_have_one_value_per_group)
{
    struct schedule_params params = begin("WarmupLR");
    struct optim_group groups[2];
    struct schedule s;
    ck_ok(schedule_params_set_list(&params, "warmup_max_lr", (double[]){1, 2, 3}, 3));
    ck_ok(schedule_params_finish(&params));
    groups_make(groups, (double[]){1, 1}, 2, "Adam");
    ck_fails(schedule_init(&s, &params, groups, 2), CZ_INVALID);
    ck_says("warmup_max_lr: 3 values for 2 parameter groups");
}
END_TEST

START_TEST(compat_0_16_has_its_own_rules)
{
    struct schedule_params params;
    struct optim_group group;
    struct schedule s;
    ck_ok(schedule_params_begin("WarmupLR", true, &params));
    ck_ok(schedule_params_set_number(&params, "warmup_num_steps", 1e1));
    groups_make(&group, (double[]){5}, 1, "Adam");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq(schedule_lr(&s, 50, 0), 0.001);
    /* the cosine continues past its end: at twice the length it is back at the top */
    ck_ok(schedule_params_begin("WarmupCosineLR", true, &params));
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 12));
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 4));
    groups_make(&group, (double[]){5}, 1, "Adam");
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq_tol(schedule_lr(&s, 19, 0), 5, 1e-12);
    /* no floor under the difference: the cosine runs backwards after a warm-up beyond the end */
    ck_ok(schedule_params_begin("WarmupCosineLR", true, &params));
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 2));
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 6));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){5}, 1, "Adam");
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq_tol(schedule_lr(&s, 7, 0), 5 * (0.0001 + 0.9999 * 0.5), 1e-12);
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 6));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_says("total_num_steps: is warmup_num_steps (6)");
    /* stairs are parsed and have no effect */
    params = one_cycle();
    params.compat_0_16 = true;
    ck_ok(schedule_params_set_int(&params, "cycle_first_stair_count", 2));
    vector_check(&params, 1, 0, (double[]){.00325, .0055, .00775}, 3, 1e-12);
}
END_TEST

/* ---- transformers' --------------------------------------------------------------------------- */

/* Values of the functions of transformers 5.23 (optimization.py) for lr 3e-4, 7 steps of warm-up
 * and 40 in all, times lr as torch's LambdaLR multiplies. */
START_TEST(schedules_of_transformers_agree)
{
    enum { N = 9 };
    static const int64_t steps[N] = {0, 3, 6, 7, 8, 23, 39, 40, 45};
    static const struct {
        const char *type, *param;
        double value, lrs[N];
    } cases[] = {
        {"linear",
         NULL,
         0,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.0002909090909090909,
          0.00015454545454545452, 9.090909090909091e-06, 0.0, 0.0}},
        {"cosine",
         NULL,
         0,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.0002993207883859627,
          0.00015713728737356137, 6.792116140373116e-07, 0.0, 1.6674682701761493e-05}},
        {"cosine_with_restarts",
         "num_cycles",
         3,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.0002939239460421746,
          0.00017134722574099274, 6.0760539578253945e-06, 0.0, 0.0}},
        {"cosine_with_min_lr",
         "min_lr",
         1e-5,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.00029934342877309725,
          0.00016189937779444264, 1.0656571226902735e-05, 1e-05, 2.6118859945036112e-05}},
        {"polynomial",
         "power",
         2,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.0002820996326905418,
          7.968778696051422e-05, 3.753902662993567e-07, 9.999999999999998e-08,
          9.999999999999998e-08}},
        {"constant_with_warmup",
         NULL,
         0,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.0003, 0.0003, 0.0003,
          0.0003, 0.0003}},
        {"inverse_sqrt",
         NULL,
         0,
         {0.0, 0.00012857142857142855, 0.0002571428571428571, 0.0003, 0.00028062430400804556,
          0.0001655031853102111, 0.00012709778186044852, 0.00012549900398011132,
          0.0001183215956619923}},
        {"constant", NULL, 0, {3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4, 3e-4}},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct schedule_params params;
        struct optim_group group;
        struct schedule s;
        ck_ok(schedule_params_begin(cases[i].type, false, &params));
        const struct setting_table *table = schedule_settings(&params);
        if (settings_find(table, "warmup_num_steps") >= 0)
            ck_ok(schedule_params_set_int(&params, "warmup_num_steps", 7));
        if (settings_find(table, "total_num_steps") >= 0)
            ck_ok(schedule_params_set_int(&params, "total_num_steps", 40));
        if (cases[i].param)
            ck_ok(schedule_params_set_number(&params, cases[i].param, cases[i].value));
        ck_ok(schedule_params_finish(&params));
        groups_make(&group, (double[]){3e-4}, 1, "Adam");
        ck_ok(schedule_init(&s, &params, &group, 1));
        ck_close(group.lr, cases[i].lrs[0], cases[i].type, 0, "first lr");
        for (int n = 0; n < N; n++) /* lr(i = k − 1) is that of update k; cos(π) is not exact */
            ck_assert_double_eq_tol(schedule_lr(&s, steps[n] - 1, 0), cases[i].lrs[n], 1e-19);
        for (int n = 0; n < 3; n++) ck_ok(schedule_step(&s, &group));
        ck_assert_double_eq_tol(group.lr, cases[i].lrs[1], 1e-19);
    }
}
END_TEST

START_TEST(schedules_of_transformers_refuse_what_they_would)
{
    struct schedule_params params;
    struct optim_group group;
    struct schedule s;
    ck_ok(schedule_params_begin("linear", false, &params));
    ck_assert_int_eq(schedule_params_finish(&params), CZ_INVALID); /* without total_num_steps */
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "total_num_steps"));
    ck_ok(schedule_params_begin("constant_with_warmup", false, &params));
    ck_ok(schedule_params_set_int(&params, "warmup_num_steps", -1));
    ck_assert_int_eq(schedule_params_finish(&params), CZ_INVALID);
    ck_ok(schedule_params_begin("cosine_with_min_lr", false, &params));
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 40));
    ck_assert_int_eq(schedule_params_finish(&params), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "min_lr_rate"));
    ck_ok(schedule_params_begin("polynomial", false, &params));
    ck_ok(schedule_params_set_int(&params, "total_num_steps", 40));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){1e-7}, 1, "Adam");
    ck_assert_int_eq(schedule_init(&s, &params, &group, 1), CZ_INVALID);
    ck_assert_int_eq(schedule_params_begin("Linear", false, &params), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "linear, cosine"));
}
END_TEST

/* ---- torch's --------------------------------------------------------------------------------- */

/* What torch's constructors refuse, and what they accept only to divide by zero later. */
START_TEST(schedules_of_torch_refuse_what_they_would)
{
    static const struct {
        const char *type, *param;
        double value;
        const char *says;
    } cases[] = {
        {"StepLR", "step_size", 0, "step_size: must not be 0"},
        {"ConstantLR", "factor", 1.5, "factor: must be from 0 to 1, got 1.5"},
        {"ConstantLR", "factor", 0, "factor: must not be 0"},
        {"LinearLR", "start_factor", 0, "start_factor: must be above 0"},
        {"LinearLR", "end_factor", -0.5, "end_factor: must be from 0 to 1"},
        {"ExponentialLR", NULL, 0, "gamma: ExponentialLR needs"},
        {"CosineAnnealingLR", "T_max", 0, "T_max: must not be 0"},
        {"PolynomialLR", "last_epoch", 3, "last_epoch: must be -1, got 3"},
    };
    struct schedule_params params;
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        params = begin(cases[i].type);
        if (cases[i].param)
            ck_ok(schedule_params_set_number(&params, cases[i].param, cases[i].value));
        ck_fails(schedule_params_finish(&params), CZ_INVALID);
        ck_says(cases[i].says);
    }
    params = begin("CosineAnnealingWarmRestarts");
    ck_fails(schedule_params_set_number(&params, "T_0", 5.0),
             CZ_INVALID); /* isinstance(T_0, int) */
    ck_ok(schedule_params_set_int(&params, "T_0", -1));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    params = begin("MultiStepLR");
    ck_ok(schedule_params_set(&params, "milestones", &(struct setting_value){SETTING_NULL}));
    ck_ok(schedule_params_finish(&params)); /* Counter(None) is empty */
    params = begin("CyclicLR");
    ck_ok(schedule_params_set_number(&params, "base_lr", 1));
    ck_ok(schedule_params_set_number(&params, "max_lr", 2));
    ck_ok(schedule_params_set(&params, "scale_fn", &(struct setting_value){SETTING_NULL}));
    ck_fails(schedule_params_set_name(&params, "scale_fn", "f"), CZ_INVALID);
    ck_says("scale_fn: a function, which a config cannot hold");
    ck_fails(schedule_params_set_name(&params, "mode", "square"), CZ_INVALID);
    ck_ok(schedule_params_set_int(&params, "step_size_down", -2000));
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_says("step_size_down: is -step_size_up");
    static const char *const refused[] = {"LambdaLR", "SequentialLR", "ReduceLROnPlateau"};
    static const char *const why[] = {"Python function", "Python objects", "metric"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(refused); i++) {
        ck_fails(schedule_params_begin(refused[i], false, &params), CZ_UNSUPPORTED);
        ck_says(why[i]);
    }
}
END_TEST

static struct schedule_params torch_one_cycle(void)
{
    struct schedule_params params = begin("OneCycleLR");
    ck_ok(schedule_params_set_number(&params, "max_lr", 0.1));
    return params;
}

/* torch raises on the step after the last. */
START_TEST(one_cycle_ends_with_its_steps)
{
    struct optim_group group;
    struct schedule s;
    struct schedule_params params = torch_one_cycle();
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_says("total_steps: is needed");
    ck_fails(schedule_params_set_int(&params, "total_steps", 0), CZ_INVALID);
    ck_fails(schedule_params_set_int(&params, "pct_start", 1),
             CZ_INVALID); /* isinstance(…, float) */
    ck_says("pct_start: must be a float: write 1.0 for 1");
    ck_ok(schedule_params_set_int(&params, "epochs", 2));
    ck_ok(schedule_params_set_int(&params, "steps_per_epoch", 5));
    ck_ok(schedule_params_set_number(&params, "pct_start", 0.1)); /* one update: divides by 1 − 1 */
    ck_fails(schedule_params_finish(&params), CZ_INVALID);
    ck_says("pct_start: 0.1 of 10 updates");
    ck_ok(schedule_params_set_number(&params, "pct_start", 0.3));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){1}, 1, "Adam");
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_double_eq(group.betas[0], 0.95);
    ck_assert_double_eq(group.betas[1],
                        0.95); /* the optimizer's own, unlike DeepSpeed's OneCycle */
    for (int i = 0; i < 10; i++) ck_ok(schedule_step(&s, &group));
    ck_fails(schedule_step(&s, &group), CZ_INVALID);
    ck_says("update 11 was made, and OneCycleLR has total_steps 10");
}
END_TEST

START_TEST(a_rate_that_is_not_finite_ends_the_run)
{
    struct optim_group group;
    struct schedule s;
    struct schedule_params params = begin("ExponentialLR");
    ck_ok(schedule_params_set_number(&params, "gamma", 1e200));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){1}, 1, "Adam");
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_ok(schedule_step(&s, &group));
    ck_fails(schedule_step(&s, &group), CZ_INVALID);
    ck_says("after update 2 ExponentialLR gives the rate inf");
}
END_TEST

/* torch's constructor sets SGD's momentum, which SGD may not have had. */
START_TEST(torchs_cycles_move_the_momentum_of_sgd)
{
    struct optim_group group;
    struct schedule s;
    struct schedule_params params = begin("CyclicLR");
    ck_ok(schedule_params_set_number(&params, "base_lr", 0.1));
    ck_ok(schedule_params_set_number(&params, "max_lr", 0.3));
    ck_ok(schedule_params_set_int(&params, "step_size_up", 2));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){1}, 1, "SGD");
    ck_assert_uint_eq(optim_n_states(&group.hyper), 0);
    ck_ok(schedule_init(&s, &params, &group, 1));
    ck_assert_uint_eq(optim_n_states(&group.hyper), 1);
    ck_assert_double_eq(group.lr, 0.1);
    ck_assert_double_eq(group.hyper.momentum, 0.9);
    for (int i = 0; i < 2; i++) ck_ok(schedule_step(&s, &group));
    ck_assert_double_eq_tol(group.lr, 0.3, 1e-15);
    ck_assert_double_eq_tol(group.hyper.momentum, 0.8, 1e-15);
    struct optim_hyper hyper = group.hyper;
    params.torch.base_momentum.v[0] = 0;
    ck_fails(schedule_fit_optimizer(&params, &hyper), CZ_INVALID);
    ck_says("base_momentum: must be above 0 with SGD");
    ck_ok(optim_hyper_begin("Adagrad", OPTIM_FUSED, &hyper));
    ck_fails(schedule_fit_optimizer(&params, &hyper), CZ_INVALID);
    ck_says("cycle_momentum: Adagrad has neither");
}
END_TEST

/* The rate itself is state: a rate that was set continues from there, and the closed form is for
 * checkpoints that hold none. */
START_TEST(torchs_schedules_go_on_from_the_rate_of_now)
{
    struct optim_group group;
    struct schedule s;
    struct schedule_params params = begin("StepLR");
    ck_ok(schedule_params_set_int(&params, "step_size", 2));
    ck_ok(schedule_params_finish(&params));
    groups_make(&group, (double[]){1}, 1, "Adam");
    ck_ok(schedule_init(&s, &params, &group, 1));
    group.lr = 5;
    for (int i = 0; i < 2; i++) ck_ok(schedule_step(&s, &group));
    ck_assert_double_eq(group.lr, 0.5);
    schedule_restore(&s, 3);
    schedule_write_lr(&s, 0, &group);
    ck_assert_double_eq_tol(group.lr, 0.01, 1e-16);
    params = begin("CosineAnnealingWarmRestarts");
    ck_ok(schedule_params_set_int(&params, "T_0", 3));
    ck_ok(schedule_params_set_int(&params, "T_mult", INT64_MAX));
    ck_ok(schedule_params_finish(&params));
    ck_ok(schedule_init(&s, &params, &group, 1));
    schedule_restore(&s, INT64_C(1) << 52); /* ends at once */
    ck_assert_int_eq(s.params.torch.T_cur, (INT64_C(1) << 52) - 2);
}
END_TEST

TEST_MAIN("optim/schedule", schedules_of_torch_refuse_what_they_would,
          one_cycle_ends_with_its_steps, a_rate_that_is_not_finite_ends_the_run,
          torchs_cycles_move_the_momentum_of_sgd, torchs_schedules_go_on_from_the_rate_of_now,
          schedules_of_transformers_agree, schedules_of_transformers_refuse_what_they_would,
          golden_tables_agree, warmup_vectors, warmup_decay_vector_has_its_plateau,
          warmup_cosine_vectors, range_test_vectors, one_cycle_vectors,
          one_cycle_hands_out_betas_below_one, one_cycle_leaves_sgd_alone,
          restoring_sets_the_index_alone, a_given_start_index_keeps_the_optimizers_lr,
          recorded_runs_are_reproduced, wrong_parameters_are_refused_by_name,
          lists_must_have_one_value_per_group, compat_0_16_has_its_own_rules,
          null_is_what_deepspeeds_default_is, a_decay_that_passes_zero_is_refused)
