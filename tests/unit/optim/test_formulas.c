/* Claims: each optimizer, taken from its config names to its kernel, moves parameters as torch's
 * and DeepSpeed's own classes do (tests/fixtures/optim, or the files of the folder
 * CZ_OPTIM_CASES), and as the worked examples of docs/deepspeed-behaviour.md say. */
#include "ops/lamb/lamb.h"
#include "optim/optim.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL 8

/* A small tensor under an optimizer, in fp32. */
struct run {
    struct device *device;
    struct ops *ops;
    struct optim_group group;
    uint64_t t;
    size_t numel;
    float p[NUMEL], g[NUMEL], states[OPTIM_STATES_MAX][NUMEL];
    float ratio;
};

static void run_open(struct run *run, const struct optim_hyper *hyper, size_t numel)
{
    memset(run, 0, sizeof *run);
    ck_ok(device_open("cpu", 0, &run->device));
    ck_ok(ops_create(run->device, &run->ops));
    ck_ok(optim_group_init(&run->group, hyper, NULL));
    run->numel = numel;
    for (size_t s = 0; s < optim_n_states(hyper); s++)
        for (size_t i = 0; i < numel; i++) run->states[s][i] = (float)optim_state_init(hyper, s);
}

static void run_close(struct run *run)
{
    ops_destroy(run->ops);
    device_close(run->device);
}

static void run_step(struct run *run)
{
    const struct optim_class *cls = run->group.hyper.cls;
    struct lamb_segment segment = {0, run->numel, 0};
    struct lamb_sums sums = {{0}, {0}};
    struct step_scalars scalars;
    struct optim_range range = {
        .tensors = {.numel = run->numel,
                    .p = run->p,
                    .g = run->g,
                    .states = {run->states[0], run->states[1]}},
        .segments = &segment,
        .n_segments = 1,
        .sums = &sums,
        .ratios = &run->ratio,
    };
    optim_step_scalars(&run->group, ++run->t, 1, 1, &scalars);
    for (size_t i = 0; i < cls->n_stages; i++) {
        const struct optim_stage *stage = &cls->stages[i];
        ck_ok(stage->run(run->ops, NULL, &run->group.hyper, &scalars, &range));
        if (stage->ratios) stage->ratios(&run->group.hyper, &sums, 1, &run->ratio);
    }
}

/* ---- golden files -----------------------------------------------------------------------------
 */

static void numbers_parse(const char *line, float out[NUMEL])
{
    for (int i = 0; i < NUMEL; i++) {
        char *end;
        out[i] = strtof(line, &end);
        ck_assert_ptr_ne(end, line);
        line = *end ? end + 1 : end;
    }
}

static void param_set(struct optim_hyper *hyper, const char *key, const char *value)
{
    char *end;
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
        ck_ok(optim_hyper_set_bool(hyper, key, value[0] == 't'));
        return;
    }
    double a = strtod(value, &end);
    if (*end == ' ')
        ck_ok(optim_hyper_set_pair(hyper, key, a, strtod(end + 1, NULL)));
    else
        ck_ok(optim_hyper_set_number(hyper, key, a));
}

/* Reads the header lines; `line` then holds the first row of numbers. */
static struct optim_hyper header_parse(FILE *f, char *line, int line_nbytes)
{
    struct optim_hyper hyper = {0};
    char type[32] = "";
    while (fgets(line, line_nbytes, f) && line[0] == '#') {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        *value++ = '\0';
        if (strcmp(line, "# type") == 0)
            snprintf(type, sizeof type, "%s", value);
        else if (strcmp(line, "# offload") == 0)
            ck_ok(optim_hyper_begin(type, value[0] == 't' ? OPTIM_OFFLOAD : OPTIM_FUSED, &hyper));
        else
            param_set(&hyper, line + 2, value);
    }
    ck_ok(optim_hyper_finish(&hyper));
    return hyper;
}

/* Peers round in another order: up to one unit in the last place of the parameter in every step. */
static void row_check(const char *path, const struct run *run, const float want[NUMEL])
{
    for (size_t i = 0; i < NUMEL; i++)
        ck_assert_msg(fabsf(run->p[i] - want[i]) <=
                          2e-7f + (float)run->t * FLT_EPSILON * fabsf(want[i]),
                      "%s: step %llu, element %zu: %.9g, not %.9g", path,
                      (unsigned long long)run->t, i, (double)run->p[i], (double)want[i]);
}

static void golden_replay(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    char line[1024];
    struct optim_hyper hyper = header_parse(f, line, sizeof line);
    struct run run;
    run_open(&run, &hyper, NUMEL);
    numbers_parse(line, run.p);
    while (fgets(line, sizeof line, f)) {
        float want[NUMEL];
        numbers_parse(line, run.g);
        ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
        numbers_parse(line, want);
        run_step(&run);
        row_check(path, &run, want);
    }
    ck_assert_uint_eq(run.t, 12);
    run_close(&run);
    fclose(f);
}

START_TEST(peers_own_classes_agree)
{
    const char *given = getenv("CZ_OPTIM_CASES");
    const char *folder = given ? given : CZ_SOURCE_DIR "/tests/fixtures/optim";
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    int n_files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        if (!strstr(entry->d_name, ".csv")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        golden_replay(path);
        n_files++;
    }
    closedir(dir);
    ck_assert_int_ge(n_files, given ? 1 : 11);
}
END_TEST

/* ---- the examples of docs/deepspeed-behaviour.md ------------------------------------------- */

static struct optim_hyper hyper_make(const char *type, double lr, double weight_decay)
{
    struct optim_hyper hyper;
    ck_ok(optim_hyper_begin(type, OPTIM_FUSED, &hyper));
    ck_ok(optim_hyper_set_number(&hyper, "lr", lr));
    ck_ok(optim_hyper_set_number(&hyper, "weight_decay", weight_decay));
    return hyper;
}

/* p starts at 1; gradients g, parameters p after each of n steps. */
static void vector_check(struct optim_hyper *hyper, const float *g, const double *p, size_t n)
{
    struct run run;
    ck_ok(optim_hyper_finish(hyper));
    run_open(&run, hyper, 1);
    run.p[0] = 1;
    for (size_t k = 0; k < n; k++) {
        run.g[0] = g[k];
        run_step(&run);
        ck_assert_msg(fabs((double)run.p[0] - p[k]) < 2.5e-7, "step %zu: %.9g, not %.9g", k + 1,
                      (double)run.p[0], p[k]);
    }
    run_close(&run);
}

static const float constant[] = {.1f, .1f, .1f};

START_TEST(adam_vectors)
{
    struct optim_hyper hyper = hyper_make("AdamW", .01, .1);
    vector_check(&hyper, constant, (double[]){.989000001, .978011002, .967032992}, 3);
    hyper = hyper_make("Adam", .01, .1);
    ck_ok(optim_hyper_set_bool(&hyper, "adam_w_mode", false));
    vector_check(&hyper, constant, (double[]){.990000000, .980001339, .970004913}, 3);
}
END_TEST

START_TEST(adagrad_vector_is_torchs_in_both_dialects)
{
    struct optim_hyper hyper = hyper_make("Adagrad", .01, .1);
    vector_check(&hyper, constant, (double[]){.990000000, .982946676}, 2);
    ck_ok(optim_hyper_begin("Adagrad", OPTIM_OFFLOAD, &hyper));
    ck_ok(optim_hyper_set_number(&hyper, "lr", .01));
    ck_ok(optim_hyper_set_number(&hyper, "weight_decay", .1));
    vector_check(&hyper, constant, (double[]){.990000000, .982946676}, 2);
}
END_TEST

START_TEST(lion_vector)
{
    struct optim_hyper hyper = hyper_make("Lion", .01, .1);
    vector_check(&hyper, (float[]){.1f, -.2f, .3f}, (double[]){.989, .998011, .987012989}, 3);
}
END_TEST

START_TEST(lamb_vector_with_its_ratios)
{
    const double p[2][2] = {{.994976306, 2.004976193}, {.991238801, 2.008687379}};
    const double ratios[] = {.500787361, .372878262};
    struct optim_hyper hyper = hyper_make("Lamb", .01, .01);
    struct run run;
    ck_ok(optim_hyper_finish(&hyper));
    run_open(&run, &hyper, 2);
    run.p[0] = 1, run.p[1] = 2;
    run.g[0] = .1f, run.g[1] = -.2f;
    for (int k = 0; k < 2; k++) {
        run_step(&run);
        /* The example's 1 - beta2 is 0.001; an fp32 beta2, here and in DeepSpeed's kernel, makes it
         * 1.3e-5 less, and the ratio 6.4e-6 (relative). */
        ck_assert_double_eq_tol((double)run.ratio, ratios[k], 5e-6);
        ck_assert_double_eq_tol((double)run.p[0], p[k][0], 2e-7);
        ck_assert_double_eq_tol((double)run.p[1], p[k][1], 4e-7);
    }
    run_close(&run);
}
END_TEST

START_TEST(scale_and_clip_come_before_everything)
{
    struct optim_hyper hyper = hyper_make("SGD", 1, 0);
    struct step_scalars scalars;
    struct run run;
    ck_ok(optim_hyper_finish(&hyper));
    run_open(&run, &hyper, 2);
    run.g[0] = 3 * 1024, run.g[1] = 4 * 1024;
    double clip = optim_clip_factor(5 * 1024, 1024, 1);
    optim_step_scalars(&run.group, 1, 1024, clip, &scalars);
    struct optim_range range = {.tensors = {.numel = 2, .p = run.p, .g = run.g}};
    ck_ok(hyper.cls->stages[0].run(run.ops, NULL, &hyper, &scalars, &range));
    double norm = hypot((double)run.p[0], (double)run.p[1]); /* p moved by the clipped gradient */
    ck_assert_double_eq_tol(norm, 1 - 2e-7, 1e-7);
    run_close(&run);
}
END_TEST

TEST_MAIN("optim/formulas", peers_own_classes_agree, adam_vectors,
          adagrad_vector_is_torchs_in_both_dialects, lion_vector, lamb_vector_with_its_ratios,
          scale_and_clip_come_before_everything)
