/* Claims, through the public headers alone: calls give the same bits, texts and files whatever the
 * program's locale, rounding, denormals, traps and working folder are, and leave those as they
 * were; a forked child cannot use or end what belongs to its parent, and can train on its own. */
#include "tests/support/check_main.h"

#include <czero/czero.h>

#include <fenv.h>
#include <locale.h>
#include <omp.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define N_STEPS 3

/* What a run shows: numbers by their bits, text by its bytes. */
struct shown {
    float losses[N_STEPS];
    double lrs[N_STEPS], norms[N_STEPS];
    float weights[64], moments[64];
    char csv[4096], refusal[512], plan[64];
};

static char *read_text(const char *path, char *text, size_t nbytes)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    text[fread(text, 1, nbytes - 1, f)] = '\0';
    fclose(f);
    return text;
}

/* A new folder; tidy() removes all. */
static char root[64];
static char *folder(void)
{
    static int n;
    char *path = malloc(128);
    if (!*root) snprintf(root, sizeof root, "%s", test_tmp_make());
    snprintf(path, 128, "%s/%d", root, n++);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    return path;
}

static void tidy(void)
{
    if (*root) test_tmp_remove(root);
}

static const int32_t ids[2 * 16] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                    3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
static const struct cz_batch batch = {
    .size = sizeof batch, .B = 2, .T = 16, .ids = ids, .labels = ids};

static struct cz_engine *start(const char *more)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.0015, \"eps\": 1.5e-8, "
             "\"weight_decay\": 0.01}}%s}",
             more);
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_assert_msg(model != NULL, "%s", cz_last_error());
    ck_ok(cz_model_set_shape(model, 16));
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *engine = engine_initialize_ex(&options, model);
    ck_assert_msg(engine != NULL, "%s", cz_last_error());
    return engine;
}

static void step(struct cz_engine *engine, float *loss)
{
    ck_ok(engine_forward(engine, &batch, loss));
    ck_ok(engine_backward(engine));
    ck_ok(engine_step(engine));
}

#define WORDS     "transformer.wte.weight"
#define POSITIONS "transformer.wpe.weight"

static float values[1 << 20];

static size_t numel_of(const struct cz_engine *engine, const char *name)
{
    const struct cz_model *model = engine_get_model(engine);
    struct cz_param_info info = {.size = sizeof info};
    for (size_t i = 0; i < cz_model_n_params(model); i++) {
        ck_ok(cz_model_param(model, i, &info));
        if (strcmp(info.name, name) == 0) break;
    }
    ck_assert_uint_le(info.numel, sizeof values / sizeof *values);
    return info.numel;
}

/* The moments of a position that no row has are below the smallest normal number. */
static void show(struct shown *s, const char *dir)
{
    char more[512], path[256];
    memset(s, 0, sizeof *s);
    snprintf(
        more, sizeof more,
        ", \"csv_monitor\": {\"enabled\": true, \"output_path\": \"%s\", \"job_name\": \"m\"}, "
        "\"steps_per_print\": 1",
        dir);
    struct cz_engine *engine = start(more);
    const size_t numel = numel_of(engine, POSITIONS);
    ck_ok(engine_param_get(engine, POSITIONS, "exp_avg", values, numel));
    for (size_t i = numel - 64; i < numel; i++) values[i] = 1e-38f;
    ck_ok(engine_param_set(engine, POSITIONS, "exp_avg", values, numel));
    for (int i = 0; i < N_STEPS; i++) {
        step(engine, &s->losses[i]);
        s->lrs[i] = engine_get_lr(engine);
        s->norms[i] = engine_get_global_grad_norm(engine);
    }
    ck_ok(engine_param_get(engine, POSITIONS, "exp_avg", values, numel));
    memcpy(s->moments, values + numel - 64, sizeof s->moments);
    ck_ok(engine_param_get(engine, WORDS, "weight", values, numel_of(engine, WORDS)));
    memcpy(s->weights, values + 5 * 64, sizeof s->weights);
    snprintf(path, sizeof path, "%s/saved", dir);
    ck_ok(engine_save_checkpoint(engine, path, "t"));
    ck_ok(engine_load_checkpoint(engine, path, "t"));
    engine_destroy(engine);
    snprintf(path, sizeof path, "%s/m/Train_Samples_train_loss.csv", dir);
    read_text(path, s->csv, sizeof s->csv);
    const struct cz_engine_options bad = {
        .size = sizeof bad,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": "
                       "\"ADAMW\", \"params\": {\"lr\": 0.5, \"eps\": -1.5}}}"};
    struct cz_model *other = cz_model_open("gpt2-tiny");
    ck_assert_ptr_null(engine_initialize_ex(&bad, other));
    snprintf(s->refusal, sizeof s->refusal, "%s", cz_last_error());
    cz_model_destroy(other);
    uint64_t nbytes;
    ck_ok(cz_parse_size("1.5gb", &nbytes));
    snprintf(s->plan, sizeof s->plan, "%llu", (unsigned long long)nbytes);
}

static const struct shown *reference(void)
{
    static struct shown s;
    char *dir = folder();
    show(&s, dir);
    ck_assert_float_lt(s.losses[2], s.losses[0]);
    ck_assert(s.moments[0] > 0 && s.moments[0] < 1.17549435e-38f);
    ck_assert_str_eq(s.plan, "1500000000");
    return &s;
}

static void same_as(const struct shown *expected)
{
    static struct shown s;
    show(&s, folder());
    for (int i = 0; i < N_STEPS; i++) {
        ck_assert_msg(memcmp(&s.losses[i], &expected->losses[i], sizeof(float)) == 0, "step %d", i);
        ck_assert_msg(s.lrs[i] == expected->lrs[i], "step %d", i);
        ck_assert_msg(s.norms[i] == expected->norms[i], "step %d", i);
    }
    ck_assert_mem_eq(s.weights, expected->weights, sizeof s.weights);
    ck_assert_mem_eq(s.moments, expected->moments, sizeof s.moments);
    ck_assert_str_eq(s.csv, expected->csv);
    ck_assert_str_eq(s.refusal, expected->refusal);
    ck_assert_str_eq(s.plan, expected->plan);
}

/* ---- locale --------------------------------------------------------------------------------- */

/* False: localedef or its sources are missing. */
static bool has_locale(const char *source, const char *charset, const char *name)
{
    char command[1024], *dir = folder();
    snprintf(command, sizeof command, "localedef -i %s -f %s %s/%s 2>/dev/null", source, charset,
             dir, name);
    const int rc = system(command);
    setenv("LOCPATH", dir, 1);
    if (rc >= 0 && setlocale(LC_ALL, name)) return true;
    fprintf(stderr, "skipped: no locale %s could be made (Debian: locales)\n", name);
    return false;
}

START_TEST(a_decimal_comma_changes_nothing)
{
    const struct shown *expected = reference();
    char text[32];
    if (!has_locale("de_DE", "UTF-8", "de_DE.UTF-8")) {
        tidy();
        return;
    }
    same_as(expected);
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5"); /* the program's own texts keep its locale */
    tidy();
}
END_TEST

START_TEST(a_dotless_i_changes_nothing)
{
    const struct shown *expected = reference();
    if (!has_locale("tr_TR", "ISO-8859-9", "tr_TR.ISO-8859-9")) {
        tidy();
        return;
    }
    ck_assert_int_ne(strcasecmp("TITLE", "title"), 0);
    same_as(expected);
    uint64_t nbytes;
    ck_ok(cz_parse_size("2tb", &nbytes));
    ck_assert_uint_eq(nbytes, (uint64_t)2000000000000);
    tidy();
}
END_TEST

/* ---- floating point ---------------------------------------------------------------------------
 */

START_TEST(rounding_changes_nothing_and_stays)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const struct shown *expected = reference();
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(fesetround(modes[i]), 0);
        same_as(expected);
        ck_assert_int_eq(fegetround(), modes[i]);
    }
    tidy();
}
END_TEST

#if defined(__x86_64__)
START_TEST(traps_are_neither_sprung_nor_lost)
{
    const struct shown *expected = reference();
    float loss;
    feenableexcept(FE_INEXACT | FE_UNDERFLOW);
    struct cz_engine *engine = start("");
    step(engine, &loss);
    ck_assert_int_eq(fegetexcept(), FE_INEXACT | FE_UNDERFLOW);
    fedisableexcept(FE_ALL_EXCEPT);
    ck_assert_float_eq(loss, expected->losses[0]);
    engine_destroy(engine);
    tidy();
}
END_TEST

#define FLUSH 0x8040u /* results and operands */

START_TEST(denormals_to_zero_change_nothing_and_stay)
{
    const struct shown *expected = reference();
    _mm_setcsr(_mm_getcsr() | FLUSH);
    same_as(expected);
    ck_assert_uint_eq(_mm_getcsr() & FLUSH, FLUSH);
    tidy();
}
END_TEST

/* The pool may be the program's own, and have its settings in the workers alone. */
START_TEST(workers_of_the_program_keep_their_settings)
{
    setenv("OMP_NUM_THREADS", "2", 1);
    omp_set_num_threads(2);
    int n_flushing = 0;
#pragma omp parallel
    if (omp_get_thread_num() > 0) _mm_setcsr(_mm_getcsr() | FLUSH);
    const struct shown *expected = reference(); /* checks its denormal itself */
    same_as(expected);
#pragma omp parallel reduction(+ : n_flushing)
    n_flushing += (_mm_getcsr() & FLUSH) == FLUSH;
    ck_assert_int_eq(n_flushing, 1);
    tidy();
}
END_TEST
#define TESTS_OF_X86                                                                               \
    traps_are_neither_sprung_nor_lost, denormals_to_zero_change_nothing_and_stay,                  \
        workers_of_the_program_keep_their_settings,
#else
#define TESTS_OF_X86
#endif

/* ---- working folder ---------------------------------------------------------------------------
 */

static bool exists(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

START_TEST(paths_are_those_of_the_time_of_the_call)
{
    char *dir = folder(), *away = folder();
    float loss;
    ck_assert_int_eq(chdir(dir), 0);
    struct cz_engine *engine = start(
        ", \"csv_monitor\": {\"enabled\": true, \"output_path\": \"out\", \"job_name\": \"m\"}, "
        "\"tensorboard\": {\"enabled\": true, \"output_path\": \"out\", \"job_name\": \"t\"}, "
        "\"flops_profiler\": {\"enabled\": true, \"profile_step\": 2, \"output_file\": "
        "\"out/f.txt\"}, "
        "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", "
        "\"nvme_path\": \"swap\"}}, \"steps_per_print\": 1, \"czero\": {\"async_save\": true}");
    step(engine, &loss);
    const struct cz_save_options tag = {.size = sizeof tag, .tag = "one"};
    ck_ok(engine_save_begin(engine, "saved", &tag));
    ck_assert(exists(dir, "swap"));
    ck_assert_int_eq(chdir(away), 0);
    ck_ok(engine_save_wait(engine));
    for (int i = 0; i < 3; i++) step(engine, &loss);
    engine_destroy(engine);
    ck_assert(exists(dir, "saved/one"));
    ck_assert(exists(dir, "saved/latest"));
    ck_assert(exists(dir, "out/m/Train_Samples_train_loss.csv"));
    ck_assert(exists(dir, "out/f.txt"));
    ck_assert_int_eq(rmdir(away), 0); /* nothing came here */
    ck_assert(!exists(dir, "swap"));
    ck_assert_int_eq(chdir("/"), 0);
    tidy();
}
END_TEST

/* ---- processes ---------------------------------------------------------------------------------
 */

static int wait_for(pid_t pid)
{
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The child's exit code says at which call it went wrong. */
static int child_of(struct cz_engine *engine, struct cz_text_loader *loader)
{
    struct cz_batch none = {.size = sizeof none};
    float loss;
    double sums[1], mine[1] = {1};
    if (engine_forward(engine, &batch, &loss) != CZ_INVALID) return 1;
    if (!strstr(cz_last_error(), "forked")) return 2;
    if (engine_step(engine) != CZ_INVALID) return 3;
    if (engine_save_checkpoint(engine, "nowhere", "t") != CZ_INVALID) return 4;
    if (engine_gather_metrics(engine, mine, 1, sums) != CZ_INVALID) return 5;
    if (engine_save_wait(engine) != CZ_INVALID) return 6;
    if (engine_get_global_steps(engine) != 1) return 7;
    if (loader && cz_text_loader_next(loader, &none) != CZ_INVALID) return 8;
    cz_text_loader_close(loader);
    engine_remove_swap_files();
    engine_destroy(engine);
    return 0;
}

static struct cz_text_loader *open_loader(const char *dir, struct cz_texts **texts,
                                          struct cz_tokenizer **tokenizer)
{
    char path[256];
    snprintf(path, sizeof path, "%s/t.csv", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("text,label\n", f);
    for (int i = 0; i < 64; i++) fprintf(f, "row %d,%d\n", i, i % 2);
    fclose(f);
    const char *paths[] = {path};
    const struct cz_texts_options open = {.size = sizeof open, .paths = paths, .n_paths = 1};
    ck_ok(cz_texts_open(&open, texts));
    ck_ok(cz_tokenizer_open("bytes", tokenizer));
    const struct cz_text_loader_options options = {.size = sizeof options,
                                                   .texts = *texts,
                                                   .tokenizer = *tokenizer,
                                                   .max_len = 16,
                                                   .micro_batch = 2,
                                                   .world_size = 1,
                                                   .accumulation = 1};
    struct cz_text_loader *loader;
    ck_ok(cz_text_loader_open(&options, &loader));
    return loader;
}

START_TEST(a_child_cannot_use_or_end_its_parents_engine)
{
    char *dir = folder(), more[512], path[256];
    float loss;
    struct cz_texts *texts;
    struct cz_tokenizer *tokenizer;
    struct cz_text_loader *loader = open_loader(dir, &texts, &tokenizer);
    snprintf(
        more, sizeof more,
        ", \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", "
        "\"nvme_path\": \"%s\"}}",
        dir);
    struct cz_engine *engine = start(more);
    step(engine, &loss);
    const pid_t pid = fork();
    if (pid == 0) _exit(child_of(engine, loader));
    ck_assert_int_eq(wait_for(pid), 0);
    const pid_t silent = fork();
    if (silent == 0) exit(0); /* with what runs at an exit */
    ck_assert_int_eq(wait_for(silent), 0);
    step(engine, &loss); /* with the swap file */
    snprintf(path, sizeof path, "%s/saved", dir);
    ck_ok(engine_save_checkpoint(engine, path, "t"));
    struct cz_batch next = {.size = sizeof next};
    ck_ok(cz_text_loader_next(loader, &next));
    ck_assert_int_eq(next.B, 2);
    cz_text_loader_close(loader);
    cz_texts_close(texts);
    cz_tokenizer_close(tokenizer);
    engine_destroy(engine);
    tidy();
}
END_TEST

START_TEST(a_child_trains_on_its_own)
{
    float loss, first;
    setenv("OMP_NUM_THREADS", "2", 1);
    struct cz_engine *engine = start("");
    step(engine, &first);
    const pid_t pid = fork();
    if (pid == 0) {
        struct cz_engine *own = start("");
        step(own, &loss);
        engine_destroy(own);
        _exit(loss > first - 1e-3f && loss < first + 1e-3f ? 0 : 1);
    }
    ck_assert_int_eq(wait_for(pid), 0);
    step(engine, &loss);
    engine_destroy(engine);
    tidy();
}
END_TEST

TEST_MAIN("api/surroundings", a_decimal_comma_changes_nothing, a_dotless_i_changes_nothing,
          rounding_changes_nothing_and_stays, TESTS_OF_X86 paths_are_those_of_the_time_of_the_call,
          a_child_cannot_use_or_end_its_parents_engine, a_child_trains_on_its_own)
