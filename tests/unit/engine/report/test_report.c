/* Claims: a run prints what its config asks for, in DeepSpeed's order and at DeepSpeed's steps:
 * timers of each micro-batch and boundary, progress and throughput every steps_per_print, memory at
 * the edges of phases, one flops profile, the state at the start; the same times go to the
 * monitors; log_level hides what DeepSpeed's hides and nothing that was asked for by name; nothing
 * of it allocates once the engine runs; and without those keys nothing is printed. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

/* ---- what was printed ------------------------------------------------------------------------ */

#define LINES_MAX 600

static struct {
    char text[LINES_MAX][512];
    enum cz_log_level level[LINES_MAX];
    int n;
} heard;

static void hear(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (heard.n == LINES_MAX) return;
    heard.level[heard.n] = level;
    snprintf(heard.text[heard.n++], sizeof heard.text[0], "%s", line);
}

static bool begins(const char *line, const char *with)
{
    return strncmp(line, with, strlen(with)) == 0;
}

/* Drop lines of the engine's own (its device, notes about the config). */
static bool is_report(const char *line)
{
    return begins(line, "[Rank 0]") || begins(line, "epoch=") || begins(line, "Engine ") ||
           begins(line, "MA ") || begins(line, "CPU Virtual");
}

static void keep_reports(void)
{
    int n = 0;
    for (int i = 0; i < heard.n; i++)
        if (is_report(heard.text[i])) {
            memmove(heard.text[n], heard.text[i], sizeof heard.text[0]);
            heard.level[n++] = heard.level[i];
        }
    heard.n = n;
}

static int count(const char *beginning)
{
    int n = 0;
    for (int i = 0; i < heard.n; i++) n += begins(heard.text[i], beginning);
    return n;
}

static const char *line_with(const char *beginning)
{
    for (int i = 0; i < heard.n; i++)
        if (begins(heard.text[i], beginning)) return heard.text[i];
    ck_abort_msg("no line begins with \"%s\"", beginning);
    return NULL;
}

/* The number behind "name: " or "name=" in a line. */
static double number(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    ck_assert_msg(at != NULL, "\"%s\" has no %s", line, name);
    return strtod(at + strlen(name), NULL);
}

/* ---- a small run ----------------------------------------------------------------------------- */

enum { B = 2, T = 8 };

static struct cz_engine *start(const char *sections, cz_engine_print print, void *user)
{
    static char config[2048];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"optimizer\": {\"type\": \"AdamW\", "
             "\"params\": {\"lr\": 0.001}}, %s}",
             B, sections);
    struct cz_model *model = cz_model_from_preset("gpt2-tiny");
    ck_assert_ptr_nonnull(model);
    ck_ok(cz_model_set_shape(model, T));
    heard.n = 0;
    cz_log_set_sink(hear, NULL);
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .print = print, .print_user = user};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

static void micro_batches(struct cz_engine *e, int n)
{
    static int32_t ids[B * T], labels[B * T];
    for (int i = 0; i < B * T; i++) {
        ids[i] = 65 + i;
        labels[i] = 66 + i;
    }
    const struct cz_batch batch = {
        .size = sizeof batch, .B = B, .T = T, .ids = ids, .labels = labels};
    for (int i = 0; i < n; i++) {
        ck_ok(engine_forward(e, &batch, NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
    }
}

/* ---- times ----------------------------------------------------------------------------------- */

START_TEST(times_are_printed_in_deepspeeds_order)
{
    static const char *const order[] = {
        "[Rank 0] step=0, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
        "[Rank 0] time (ms) | fwd_microstep: ", /* step 1 */
        "[Rank 0] time (ms) | optimizer_allgather: ",
        "[Rank 0] time (ms) | fwd_microstep: ",
        "[Rank 0] time (ms) | fwd: ",
        "[Rank 0] time (ms) | fwd_microstep: ", /* step 2 */
        "[Rank 0] time (ms) | optimizer_allgather: ",
        "[Rank 0] step=2, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
        "[Rank 0] time (ms) | fwd_microstep: ",
        "[Rank 0] time (ms) | fwd: ",
        "[Rank 0] time (ms) | fwd_microstep: ", /* step 3 */
        "[Rank 0] time (ms) | optimizer_allgather: ",
        "[Rank 0] time (ms) | fwd_microstep: ",
        "[Rank 0] time (ms) | fwd: ",
        "[Rank 0] time (ms) | fwd_microstep: ", /* step 4 */
        "[Rank 0] time (ms) | optimizer_allgather: ",
        "[Rank 0] step=4, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
        "epoch=0/micro_step=8/global_step=4, RunningAvgSamplesPerSec=",
        "[Rank 0] time (ms) | fwd_microstep: ",
        "[Rank 0] time (ms) | fwd: "};
    struct cz_engine *e =
        start("\"gradient_accumulation_steps\": 2, \"steps_per_print\": 2, "
              "\"wall_clock_breakdown\": true, \"zero_optimization\": {\"stage\": "
              "1}",
              NULL, NULL);
    micro_batches(e, 8);
    engine_destroy(e);
    keep_reports();
    for (int i = 0; i < heard.n && i < (int)CZ_ARRAY_LEN(order); i++)
        ck_assert_msg(begins(heard.text[i], order[i]), "line %d is \"%s\", not \"%s…\"", i,
                      heard.text[i], order[i]);
    ck_assert_int_eq(heard.n, (int)CZ_ARRAY_LEN(order));
}
END_TEST

START_TEST(times_add_up)
{
    static const char *const names[] = {"fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"};
    struct cz_engine *e =
        start("\"gradient_accumulation_steps\": 3, \"wall_clock_breakdown\": true", NULL, NULL);
    const int64_t begin = clock_now_ns();
    micro_batches(e, 6);
    const double elapsed_ms = (double)(clock_now_ns() - begin) * 1e-6;
    engine_destroy(e);
    keep_reports();
    ck_assert_int_eq(heard.n, 8); /* stage 0 has no line of the optimizer's parts */
    for (int first = 0; first < 8; first += 4) {
        const char *total = heard.text[first + 3];
        for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
            char micro[64], all[64];
            double sum = 0;
            snprintf(micro, sizeof micro, " | %s_microstep: ", names[i]);
            snprintf(all, sizeof all, " | %s: ", names[i]);
            for (int g = 0; g < 3; g++) sum += number(heard.text[first + g], micro);
            ck_assert_double_eq_tol(number(total, all), sum, 0.021); /* of rounding */
        }
        ck_assert_double_gt(number(total, "fwd: "), 0);
        ck_assert_double_gt(number(total, " step: "), 0);
        ck_assert_double_le(number(total, "fwd: ") + number(total, " bwd: ") +
                                number(total, " step: "),
                            elapsed_ms + 0.03); /* of rounding */
        ck_assert_double_eq_tol(number(total, " bwd: "),
                                number(total, "bwd_inner: ") + number(total, "bwd_allreduce: "),
                                0.016);
    }
}
END_TEST

START_TEST(a_skipped_step_has_no_update_to_time)
{
    struct cz_engine *e =
        start("\"wall_clock_breakdown\": true, \"zero_optimization\": {\"stage\": "
              "1}, \"fp16\": {\"enabled\": true, \"initial_scale_power\": 40, "
              "\"hysteresis\": 1}, \"steps_per_print\": 1",
              NULL, NULL);
    micro_batches(e, 2);
    ck_assert_int_eq(engine_get_skipped_steps(e), 2);
    engine_destroy(e);
    ck_assert_int_eq(count("[Rank 0] time (ms) | optimizer_allgather: "), 0);
    ck_assert_int_eq(count("[Rank 0] time (ms) | fwd: "), 2);
    line_with("[Rank 0] step=2, skipped=2, lr=[0.001]");
}
END_TEST

START_TEST(throughput_can_be_switched_off)
{
    struct cz_engine *e =
        start("\"steps_per_print\": 1, \"timers\": {\"throughput\": {\"enabled\": "
              "false}}",
              NULL, NULL);
    micro_batches(e, 4);
    engine_destroy(e);
    ck_assert_int_eq(count("epoch="), 0);
    ck_assert_int_eq(count("[Rank 0] step="), 5);
}
END_TEST

START_TEST(throughput_starts_with_the_third_step)
{
    struct cz_engine *e = start("\"steps_per_print\": 1", NULL, NULL);
    micro_batches(e, 4);
    engine_destroy(e);
    ck_assert_int_eq(count("epoch="), 2);
    const char *line = line_with("epoch=0/micro_step=3/global_step=3, ");
    /* One step is counted: average and current are the same but for 1e-6 s. */
    double average = number(line, "RunningAvgSamplesPerSec=");
    double current = number(line, "CurrSamplesPerSec=");
    ck_assert_double_gt(average, 0);
    ck_assert_double_eq_tol(B / current, B / average + 1e-6, 1e-9);
    ck_assert_double_ge(number(line, "MaxMemAllocated="), 0);
    line_with("epoch=0/micro_step=4/global_step=4, ");
}
END_TEST

START_TEST(monitors_get_the_times)
{
    static const char *const names[] = {"forward", "backward", "backward_inner",
                                        "backward_allreduce", "step"};
    static const char *const labels[] = {
        " | fwd: ", " | bwd: ", " | bwd_inner: ", " | bwd_allreduce: ", " | step: "};
    char sections[512], path[256];
    const char *dir = test_tmp_make();
    snprintf(sections, sizeof sections,
             "\"wall_clock_breakdown\": true, \"csv_monitor\": {\"enabled\": true, "
             "\"output_path\": \"%s\", \"job_name\": \"job\"}",
             dir);
    struct cz_engine *e = start(sections, NULL, NULL);
    micro_batches(e, 2);
    engine_destroy(e);
    keep_reports();
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        char *text, head[128], first[128], second[128];
        double ms[2];
        snprintf(path, sizeof path, "%s/job/Train_Samples_elapsed_time_ms_%s.csv", dir, names[i]);
        ck_ok(file_load(path, 4096, &text, NULL));
        ck_assert_int_eq(sscanf(text, "%127s %127s %127s", head, first, second), 3);
        snprintf(path, sizeof path, "step,elapsed_time_ms_%s", names[i]);
        ck_assert_str_eq(head, path);
        ck_assert_msg(begins(first, "2,") && begins(second, "4,"), "%s %s", first, second);
        ms[0] = strtod(first + 2, NULL);
        ms[1] = strtod(second + 2, NULL);
        for (int step = 0; step < 2; step++)
            ck_assert_double_eq_tol(ms[step], number(heard.text[2 * step + 1], labels[i]), 0.0051);
        free(text);
    }
    test_tmp_remove(dir);
}
END_TEST

/* ---- memory, state --------------------------------------------------------------------------- */

START_TEST(memory_is_shown_at_the_edges_of_phases)
{
    static const char *const edges[] = {"Engine after initialization",
                                        "Engine before forward",
                                        "Engine after forward",
                                        "Engine before backward",
                                        "Engine after backward",
                                        "Engine before step",
                                        "Engine after step"};
    struct cz_engine *e = start("\"memory_breakdown\": true", NULL, NULL);
    micro_batches(e, 1);
    engine_destroy(e);
    keep_reports();
    ck_assert_int_eq(heard.n, 3 * (int)CZ_ARRAY_LEN(edges));
    for (size_t i = 0; i < CZ_ARRAY_LEN(edges); i++) {
        ck_assert_str_eq(heard.text[3 * i], edges[i]);
        const char *process = heard.text[3 * i + 1], *host = heard.text[3 * i + 2];
        ck_assert_double_gt(number(process, "CA "), 0);
        ck_assert_double_ge(number(process, "Max_CA "), number(process, "         CA "));
        ck_assert_double_eq(number(process, "MA "),
                            number(heard.text[1], "MA ")); /* planned once */
        ck_assert_double_gt(number(host, "used = "), 0);
        double percent = number(host, "percent = ");
        ck_assert(percent > 0 && percent < 100);
    }
}
END_TEST

START_TEST(the_state_is_dumped_line_by_line)
{
    struct cz_engine *e =
        start("\"dump_state\": true, \"gradient_accumulation_steps\": 3", NULL, NULL);
    line_with("engine:");
    line_with("  model ........................ gpt2-tiny");
    line_with("  params ....................... 120576");
    line_with("  world_size ................... 1");
    line_with("  dtype ........................ fp32");
    line_with("  device ....................... cpu");
    line_with("config:");
    line_with("  train_batch_size ............. 6");
    line_with("  gradient_accumulation_steps .. 3");
    line_with("  optimizer.params ............. {\"lr\": 0.001}");
    line_with("  zero_optimization.stage ...... 0");
    line_with("  zero_optimization.offload_optimizer  null");
    for (int i = 0; i < heard.n; i++)
        ck_assert_msg(strstr(heard.text[i], "  # ") == NULL, "%s", heard.text[i]);
    engine_destroy(e);
}
END_TEST

/* ---- the profile ----------------------------------------------------------------------------- */

START_TEST(one_step_is_profiled)
{
    struct cz_engine *e = start("\"gradient_accumulation_steps\": 2, \"flops_profiler\": "
                                "{\"enabled\": true, \"profile_step\": 1}",
                                NULL, NULL);
    micro_batches(e, 2);
    ck_assert_int_eq(count("Profile Summary"), 0);
    ck_ok(engine_eval(e,
                      &(struct cz_batch){.size = sizeof(struct cz_batch),
                                         .B = 1,
                                         .T = 2,
                                         .ids = (int32_t[]){1, 2},
                                         .labels = (int32_t[]){2, 3}},
                      &(float){0}));
    micro_batches(e, 2);
    ck_assert_int_eq(count("Profile Summary at step 2:"), 1);
    int n = heard.n;
    micro_batches(e, 2);
    ck_assert_int_eq(count("Profile Summary"), 1);
    ck_assert_int_eq(heard.n - n, 3); /* only the times: the profiler switches them on */
    /* Blocks: 2 · (12 C² a token + 2 T C a token for attention), twice; the head: C·V a token. */
    double n_tokens = B * T, C = 64, V = 256;
    double macs = n_tokens * (2 * (12 * C * C + 2 * T * C) + C * V);
    ck_assert_double_eq_tol(number(line_with("fwd MACs per GPU: "), ": "), macs * 1e-6, 0.0051);
    ck_assert_double_eq_tol(number(line_with("fwd flops per GPU: "), ": "), 2 * macs * 1e-6,
                            0.0051);
    line_with("params per GPU:                                                         120.58 K");
    line_with("FLOPS per GPU = 6 * fwd flops per GPU / iter latency: ");
    line_with("    (transformer.h.1.attn.c_attn): 12.48 K = 10.35% Params");
    for (int i = 0; i < heard.n; i++)
        if (begins(heard.text[i], "Profile Summary")) ck_assert_int_eq(heard.level[i], LOG_ASKED);
    engine_destroy(e);
}
END_TEST

START_TEST(the_profile_goes_to_its_file)
{
    char sections[512], path[128];
    snprintf(path, sizeof path, "%s/deep/er/profile.txt", test_tmp_make());
    snprintf(sections, sizeof sections,
             "\"flops_profiler\": {\"enabled\": true, \"profile_step\": 0, \"output_file\": "
             "\"%s\", \"detailed\": false}",
             path);
    struct cz_engine *e = start(sections, NULL, NULL);
    micro_batches(e, 1);
    engine_destroy(e);
    ck_assert_int_eq(count("Profile Summary"), 0);
    char *text;
    ck_ok(file_load(path, 1 << 20, &text, NULL));
    ck_assert_ptr_nonnull(strstr(text, "\nProfile Summary at step 1:\n"));
    ck_assert_ptr_null(strstr(text, "Detailed Profile"));
    free(text);
    path[strlen(path) - strlen("/deep/er/profile.txt")] = '\0';
    test_tmp_remove(path);
}
END_TEST

/* ---- which rank prints what
 * -------------------------------------------------------------------------- */

START_TEST(log_level_hides_progress_and_not_what_was_asked_for)
{
    struct cz_engine *e = start("\"log_level\": \"WARNING\", \"steps_per_print\": 1, "
                                "\"wall_clock_breakdown\": true",
                                NULL, NULL);
    micro_batches(e, 3);
    engine_destroy(e);
    keep_reports();
    ck_assert_int_eq(heard.n, 6);
    ck_assert_int_eq(count("[Rank 0] time (ms)"), 6);
    for (int i = 0; i < heard.n; i++) ck_assert_int_eq(heard.level[i], LOG_ASKED);
}
END_TEST

/* A misspelt key is worth a warning, an fp16 section that is off is not. */
static int warnings(const char *level)
{
    char sections[128];
    int n = 0;
    snprintf(sections, sizeof sections, "\"log_level\": \"%s\", \"bff16\": {}", level);
    engine_destroy(start(sections, NULL, NULL));
    for (int i = 0; i < heard.n; i++) n += heard.level[i] == LOG_WARN;
    log_set_level(LOG_INFO, SUB_ALL);
    return n;
}

START_TEST(log_level_error_hides_warnings)
{
    ck_assert_int_eq(warnings("info"), 1);
    ck_assert_int_eq(warnings("warning"), 1);
    ck_assert_int_eq(warnings("error"), 0);
    ck_assert_int_eq(warnings("critical"), 0);
}
END_TEST

static void take(const char *text, void *user)
{
    size_t len = strlen(text);
    ck_assert_uint_gt(len, 0);
    ck_assert_int_eq(text[len - 1], '\n');
    ck_assert_ptr_eq(strchr(text, '\n'), text + len - 1);
    ++*(int *)user;
}

START_TEST(a_printer_takes_the_place_of_the_log)
{
    int n = 0;
    struct cz_engine *e = start("\"wall_clock_breakdown\": true, \"memory_breakdown\": true, "
                                "\"steps_per_print\": 1",
                                take, &n);
    micro_batches(e, 1);
    engine_destroy(e);
    keep_reports();
    ck_assert_int_eq(n, 7 * 3 + 2);
    ck_assert_int_eq(heard.n, 2); /* progress belongs to the log */
}
END_TEST

START_TEST(without_those_keys_nothing_is_printed)
{
    struct cz_engine *e = start("\"zero_optimization\": {\"stage\": 1}", NULL, NULL);
    heard.n = 0;
    micro_batches(e, 4);
    ck_assert_int_eq(heard.n, 0);
    engine_destroy(e);
}
END_TEST

/* ---- allocations ----------------------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__)
void *__libc_malloc(size_t nbytes);
void *malloc(size_t nbytes);

static int n_mallocs;

/* Everything in this program that allocates comes through here (calloc and realloc are not used by
 * what a step could call). */
void *malloc(size_t nbytes)
{
    if (!test_is_marking) __atomic_add_fetch(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(nbytes);
}

/* Over four steps of a running engine. */
static int allocations(const char *sections)
{
    struct cz_engine *e = start(sections, NULL, NULL);
    micro_batches(e, 2);
    int before = n_mallocs;
    micro_batches(e, 4);
    int n = n_mallocs - before;
    engine_destroy(e);
    return n;
}

START_TEST(reports_do_not_allocate)
{
    int plain = allocations("\"timers\": {\"throughput\": {\"enabled\": false}}");
    int reporting = allocations("\"wall_clock_breakdown\": true, \"memory_breakdown\": true, "
                                "\"steps_per_print\": 1, \"flops_profiler\": {\"enabled\": "
                                "true, \"profile_step\": 4}");
    ck_assert_int_eq(count("Profile Summary"), 1);
    ck_assert_int_gt(n_mallocs, plain); /* the count works: start() allocates */
    ck_assert_int_eq(plain, 0);
    ck_assert_int_eq(reporting, 0);
}
END_TEST
#else
START_TEST(reports_do_not_allocate)
{
    printf("AddressSanitizer has its own malloc: not counted\n");
}
END_TEST
#endif

TEST_MAIN("engine/report", times_are_printed_in_deepspeeds_order, times_add_up,
          a_skipped_step_has_no_update_to_time, throughput_can_be_switched_off,
          throughput_starts_with_the_third_step, monitors_get_the_times,
          memory_is_shown_at_the_edges_of_phases, the_state_is_dumped_line_by_line,
          one_step_is_profiled, the_profile_goes_to_its_file,
          log_level_hides_progress_and_not_what_was_asked_for, log_level_error_hides_warnings,
          a_printer_takes_the_place_of_the_log, without_those_keys_nothing_is_printed,
          reports_do_not_allocate)
