/* Claims: the flops profiler's report shows params, MACs and latencies of a step with DeepSpeed's
 * labels and spelling of numbers; averages are per micro-batch; module_depth, top_modules and
 * detailed decide what is listed; the file appears whole, in folders made for it, or not at all;
 * only what runs between begin and end is counted. */
#include "engine/report/profiler_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <string.h>
#include <time.h>

/* ---- numbers --------------------------------------------------------------------------------- */

START_TEST(numbers_are_shortened_as_deepspeed_does)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{120580, "120.58 K"},
                 {16777216, "16.78 M"},
                 {33554432, "33.55 M"},
                 {3.4e9, "3.4 G"},
                 {2e12, "2 T"},
                 {5e15, "5000 T"},
                 {1, "1 "},
                 {0, "0 "},
                 {999, "999 "},
                 {1000, "1 K"},
                 {999.999, "1000 "},
                 {0.00949, "9.49 m"},
                 {0.001, "1 m"},
                 {0.00011134, "111.34 u"},
                 {1e-9, "0 u"},
                 {12345678901234567.0, "12345.7 T"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct report_line line;
        report_line_begin(&line);
        profile_put_number(&line, cases[i].value);
        ck_assert_str_eq(line.text, cases[i].text);
    }
}
END_TEST

/* ---- a profile with fixed figures ------------------------------------------------------------ */

static struct {
    char lines[100][REPORT_LINE_NBYTES];
    int n;
} printed;

static cz_status keep(void *user, const char *line)
{
    (void)user;
    ck_assert_int_lt(printed.n, 100);
    ck_assert_ptr_null(strchr(line, '\n'));
    snprintf(printed.lines[printed.n++], REPORT_LINE_NBYTES, "%s", line);
    return CZ_OK;
}

static int find(const char *text)
{
    for (int i = 0; i < printed.n; i++)
        if (strcmp(printed.lines[i], text) == 0) return i;
    return -1;
}

static void expect(const char *text)
{
    if (find(text) >= 0) return;
    for (int i = 0; i < printed.n; i++) printf("|%s|\n", printed.lines[i]);
    ck_abort_msg("there is no line \"%s\"", text);
}

static struct param_table table;

/* Three kinds of layers; the last one shares its weight with the first. */
static const struct profile *fixed_profile(int64_t n_forwards)
{
    static size_t wte[] = {0, 1}, block_0[] = {2, 3, 4}, block_1[] = {5, 6, 7}, head[] = {0};
    static struct profile_layer layers[5];
    static struct profile profile;
    static const char *const names[] = {"wte.weight",  "wpe.weight",    "h.0.ln.weight",
                                        "h.0.ln.bias", "h.0.fc.weight", "h.1.ln.weight",
                                        "h.1.ln.bias", "h.1.fc.weight"};
    const int64_t shapes[][2] = {{100, 10}, {20, 10}, {10, 1}, {10, 1},
                                 {10, 40},  {10, 1},  {10, 1}, {10, 40}};
    param_table_free(&table);
    param_table_init(&table);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        size_t idx;
        ck_ok(param_table_add(&table, names[i], 2, shapes[i], PARAM_INIT_ZERO, 0, &idx));
    }
    layers[0] = (struct profile_layer){.cls = "embedding",
                                       .numel = 1200,
                                       .param_idx = wte,
                                       .n_params = 2,
                                       .flops = 0,
                                       .forward_ns = 1000000 * n_forwards};
    layers[1] = (struct profile_layer){.cls = "block",
                                       .numel = 420,
                                       .param_idx = block_0,
                                       .n_params = 3,
                                       .flops = 4e6 * (double)n_forwards,
                                       .forward_ns = 2000000 * n_forwards};
    layers[2] = (struct profile_layer){.cls = "block",
                                       .numel = 420,
                                       .param_idx = block_1,
                                       .n_params = 3,
                                       .flops = 4e6 * (double)n_forwards,
                                       .forward_ns = 3000000 * n_forwards};
    layers[3] = (struct profile_layer){.cls = "scale", .forward_ns = 0};
    layers[4] = (struct profile_layer){.cls = "head",
                                       .numel = 1000,
                                       .param_idx = head,
                                       .n_params = 1,
                                       .flops = 2e6 * (double)n_forwards,
                                       .forward_ns = 2000000 * n_forwards};
    profile = (struct profile){.model_name = "net",
                               .params = &table,
                               .layers = layers,
                               .n_layers = 5,
                               .numel = 2040,
                               .n_forwards = n_forwards};
    return &profile;
}

static const struct profiler_step fixed_step = {.number = 3,
                                                .world_size = 1,
                                                .micro_batch = 4,
                                                .forward_ns = 10000000,
                                                .backward_ns = 20000000,
                                                .update_ns = 10000000};

static void print(const struct profile *profile, const struct config_flops_profiler *config,
                  const struct profiler_step *step)
{
    printed.n = 0;
    ck_ok(profile_print(profile, config, step, keep, NULL));
}

/* A line of the summary. */
static void expect_row(const char *label, const char *value)
{
    char row[160];
    snprintf(row, sizeof row, "%-70s  %-8s", label, value);
    expect(row);
}

START_TEST(the_summary_has_deepspeeds_rows)
{
    const struct config_flops_profiler config = {.module_depth = -1, .top_modules = 1};
    print(fixed_profile(1), &config, &fixed_step);
    expect("Profile Summary at step 3:");
    expect_row("world size: ", "1");
    expect_row("data parallel size: ", "1");
    expect_row("model parallel size: ", "1");
    expect_row("batch size per GPU: ", "4");
    expect_row("params per GPU: ", "2.04 K");
    expect_row("params of model = params per GPU * mp_size: ", "2.04 K");
    expect_row("fwd MACs per GPU: ", "5 MMACs");
    expect_row("fwd flops per GPU: ", "10 M");
    expect_row("fwd flops of model = fwd flops per GPU * mp_size: ", "10 M");
    expect_row("fwd latency: ", "10 ms");
    expect_row("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", "1 GFLOPS");
    expect_row("bwd latency: ", "20 ms");
    expect_row("bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency: ", "1 GFLOPS");
    expect_row("fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency): ", "1 GFLOPS");
    expect_row("step latency: ", "10 ms");
    expect_row("iter latency: ", "40 ms");
    expect_row("FLOPS per GPU = 3 * fwd flops per GPU / iter latency: ", "750 MFLOPS");
    expect_row("samples/second: ", "100.0");
    param_table_free(&table);
}
END_TEST

START_TEST(recomputation_counts_as_the_config_says)
{
    const struct config_flops_profiler config = {.module_depth = 0, .recompute_fwd_factor = 0.5};
    print(fixed_profile(1), &config, &fixed_step);
    expect_row("bwd FLOPS per GPU = 2.5 * fwd flops per GPU / bwd latency: ", "1.25 GFLOPS");
    expect_row("FLOPS per GPU = 3.5 * fwd flops per GPU / iter latency: ", "875 MFLOPS");
    param_table_free(&table);
}
END_TEST

START_TEST(several_micro_batches_are_averaged)
{
    const struct config_flops_profiler config = {.module_depth = -1, .top_modules = 1};
    struct profiler_step step = fixed_step;
    step.forward_ns *= 2;
    step.backward_ns *= 2;
    step.world_size = 3;
    print(fixed_profile(2), &config, &step);
    expect_row("fwd flops per GPU: ", "10 M");
    expect_row("fwd latency: ", "10 ms");
    expect_row("bwd latency: ", "20 ms");
    expect_row("iter latency: ", "70 ms");
    expect_row("FLOPS per GPU = 6 * fwd flops per GPU / iter latency: ", "857.14 MFLOPS");
    expect_row("samples/second: ", "342.86"); /* 2 · 3 · 4 / 0.07 s */
    expect_row("data parallel size: ", "3");
    expect("    fwd latency - {'block': '5 ms'}");
    param_table_free(&table);
}
END_TEST

START_TEST(the_heaviest_modules_are_listed_by_depth)
{
    struct config_flops_profiler config = {.module_depth = -1, .top_modules = 2};
    print(fixed_profile(1), &config, &fixed_step);
    expect("Top 2 modules in terms of params, MACs or fwd latency at different model depths:");
    int depth_0 = find("depth 0:"), depth_1 = find("depth 1:");
    ck_assert_int_ge(depth_0, 0);
    ck_assert_int_eq(depth_1, depth_0 + 4);
    ck_assert_str_eq(printed.lines[depth_0 + 1], "    params      - {'net': '2.04 K'}");
    ck_assert_str_eq(printed.lines[depth_0 + 2], "    MACs        - {'net': '5 MMACs'}");
    ck_assert_str_eq(printed.lines[depth_0 + 3], "    fwd latency - {'net': '8 ms'}");
    ck_assert_str_eq(printed.lines[depth_1 + 1],
                     "    params      - {'embedding': '1.2 K', 'head': '1 K'}");
    ck_assert_str_eq(printed.lines[depth_1 + 2],
                     "    MACs        - {'block': '4 MMACs', 'head': '1 MMACs'}");
    ck_assert_str_eq(printed.lines[depth_1 + 3],
                     "    fwd latency - {'block': '5 ms', 'head': '2 ms'}");
    config.top_modules = 100; /* more than there are */
    print(fixed_profile(1), &config, &fixed_step);
    expect("    params      - {'embedding': '1.2 K', 'head': '1 K', 'block': '840', 'scale': '0'}");
    config.module_depth = 1;
    print(fixed_profile(1), &config, &fixed_step);
    ck_assert_int_ge(find("depth 0:"), 0);
    ck_assert_int_lt(find("depth 1:"), 0);
    config.module_depth = 0;
    print(fixed_profile(1), &config, &fixed_step);
    ck_assert_int_lt(find("depth 0:"), 0);
    param_table_free(&table);
}
END_TEST

START_TEST(the_detailed_profile_names_every_layer_and_module)
{
    struct config_flops_profiler config = {.module_depth = -1, .top_modules = 1, .detailed = true};
    static const char *const lines[] = {
        "net(",
        "  2.04 K = 100% Params, 5 MMACs = 100% MACs, 8 ms = 100% latency, 1.25 GFLOPS",
        "  (0): embedding(",
        "    1.2 K = 58.82% Params, 0 MACs = 0% MACs, 1 ms = 12.5% latency, 0 FLOPS",
        "    (wte): 1 K = 49.02% Params",
        "    (wpe): 200 = 9.8% Params",
        "  )",
        "  (1): block(",
        "    420 = 20.59% Params, 2 MMACs = 40% MACs, 2 ms = 25% latency, 2 GFLOPS",
        "    (h.0.ln): 20 = 0.98% Params",
        "    (h.0.fc): 400 = 19.61% Params",
        "  )",
        "  (2): block(",
        "    420 = 20.59% Params, 2 MMACs = 40% MACs, 3 ms = 37.5% latency, 1.33 GFLOPS",
        "    (h.1.ln): 20 = 0.98% Params",
        "    (h.1.fc): 400 = 19.61% Params",
        "  )",
        "  (3): scale(0 = 0% Params, 0 MACs = 0% MACs, 0 s = 0% latency, 0 FLOPS)",
        "  (4): head(",
        "    1 K = 49.02% Params, 1 MMACs = 20% MACs, 2 ms = 25% latency, 1 GFLOPS",
        "    (wte): 1 K = 49.02% Params, shared with (0)",
        "  )",
        ")",
        "------------------------------------------------------------------------------"};
    print(fixed_profile(1), &config, &fixed_step);
    int first = find("net(");
    ck_assert_int_ge(first, 0);
    ck_assert_int_eq(printed.n - first, (int)CZ_ARRAY_LEN(lines));
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++)
        ck_assert_str_eq(printed.lines[(size_t)first + i], lines[i]);
    config.detailed = false;
    print(fixed_profile(1), &config, &fixed_step);
    ck_assert_int_lt(find("net("), 0);
    param_table_free(&table);
}
END_TEST

static cz_status refuse(void *user, const char *line)
{
    (void)line;
    ++*(int *)user;
    return err_set(CZ_IO, 0, "full");
}

START_TEST(an_error_of_the_reader_stops_the_report)
{
    const struct config_flops_profiler config = {.module_depth = -1, .detailed = true};
    int n = 0;
    ck_fails(profile_print(fixed_profile(1), &config, &fixed_step, refuse, &n), CZ_IO);
    ck_assert_int_eq(n, 1);
    param_table_free(&table);
}
END_TEST

START_TEST(more_kinds_of_layers_than_the_table_holds_are_lumped_together)
{
    static struct profile_layer layers[100];
    static char names[100][8];
    const struct config_flops_profiler config = {.module_depth = -1, .top_modules = 1};
    struct profile profile = *fixed_profile(1);
    profile.layers = layers;
    profile.n_layers = 100;
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "kind%d", i);
        layers[i] = (struct profile_layer){.cls = names[i], .numel = 1};
    }
    print(&profile, &config, &fixed_step);
    expect("    params      - {'others': '37'}");
    param_table_free(&table);
}
END_TEST

/* ---- measuring a chain ----------------------------------------------------------------------- */

struct rig {
    struct device *device;
    struct ops *ops;
    struct cz_model *model;
    struct chain *chain;
};

static void rig_open(struct rig *r)
{
    ck_ok(device_open("cpu", 0, &r->device));
    ck_ok(ops_create(r->device, &r->ops));
    r->model = cz_model_from_preset("gpt2-tiny");
    ck_assert_ptr_nonnull(r->model);
    const struct chain_options options = {.ops = r->ops,
                                          .B = 2,
                                          .T = 16,
                                          .dtype = DTYPE_F32,
                                          .grad_dtype = DTYPE_F32,
                                          .training = true};
    ck_ok(chain_create(r->model, &options, &r->chain));
}

static void rig_close(struct rig *r)
{
    chain_destroy(r->chain);
    cz_model_destroy(r->model);
    ops_destroy(r->ops);
    device_close(r->device);
}

static void wait_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

static double row_value(const char *label)
{
    for (int i = 0; i < printed.n; i++)
        if (strncmp(printed.lines[i], label, strlen(label)) == 0)
            return strtod(printed.lines[i] + strlen(label), NULL);
    ck_abort_msg("no row \"%s\"", label);
    return 0;
}

START_TEST(only_the_pass_that_was_begun_is_counted)
{
    const struct config_flops_profiler config = {
        .profile_step = 1, .module_depth = -1, .top_modules = 9};
    struct rig rig;
    struct profiler *p;
    rig_open(&rig);
    ck_ok(profiler_create(&config, rig.chain, rig.model, &p));
    ck_assert(!profiler_is_due(NULL, 1));
    ck_assert(!profiler_is_due(p, 0));
    ck_assert(profiler_is_due(p, 1));
    ck_assert(!profiler_is_due(p, 2));
    profiler_enter(p); /* an evaluation before */
    wait_ms(5);
    profiler_leave(p, 1);
    ck_ok(profiler_begin(p, (struct chain_shape){.B = 2, .T = 8})); /* half as long as planned */
    profiler_enter(p);
    wait_ms(2);
    profiler_leave(p, 1);
    profiler_end(p);
    profiler_enter(p); /* a recomputation behind */
    wait_ms(5);
    profiler_leave(p, 1);
    printed.n = 0;
    ck_ok(profiler_report(p, &fixed_step, keep, NULL));
    int depth_1 = find("depth 1:");
    const char *times = strchr(printed.lines[depth_1 + 3], '{');
    double ms = strtod(strchr(strchr(times, ':'), '\'') + 1, NULL);
    ck_assert_msg(strstr(times, " ms'") != NULL, "%s", times);
    ck_assert_double_ge(ms, 2);
    double half = 0, whole = 0;
    struct layer_sizes sizes;
    const struct batch_shape shape = {.B = 2,
                                      .T = 8,
                                      .dtype = DTYPE_F32,
                                      .grad_dtype = DTYPE_F32,
                                      .ops = rig.ops,
                                      .training = true};
    for (size_t i = 0; i < model_n_layers(rig.model); i++) {
        const struct model_layer *layer = model_layer_at(rig.model, i);
        ck_ok(layer->cls->size(layer->hp, &shape, &sizes));
        half += sizes.flops_forward;
        whole += chain_layer_sizes(rig.chain, i).flops_forward;
    }
    ck_assert_double_lt(half, whole);
    double unit = half >= 1e9 ? 1e9 : 1e6;
    ck_assert_double_eq_tol(row_value("fwd flops per GPU: "), half / unit, 0.0051);
    profiler_destroy(p);
    profiler_destroy(NULL);
    rig_close(&rig);
}
END_TEST

/* ---- the file -------------------------------------------------------------------------------- */

START_TEST(the_file_appears_whole_in_folders_made_for_it)
{
    char path[128];
    struct rig rig;
    struct profiler *p;
    snprintf(path, sizeof path, "%s/a/b/profile.txt", test_tmp_make());
    const struct config_flops_profiler config = {.profile_step = 1,
                                                 .module_depth = -1,
                                                 .top_modules = 1,
                                                 .detailed = true,
                                                 .output_file = path};
    rig_open(&rig);
    ck_ok(profiler_create(&config, rig.chain, rig.model, &p));
    ck_assert(!file_exists(path));
    ck_ok(profiler_begin(p, (struct chain_shape){.B = 2, .T = 16}));
    profiler_end(p);
    printed.n = 0;
    for (int twice = 0; twice < 2; twice++) { /* an older one is replaced */
        ck_ok(profiler_report(p, &fixed_step, keep, NULL));
        ck_assert_int_eq(printed.n, 0);
    }
    char *text, *rest;
    size_t nbytes;
    ck_ok(file_load(path, 1 << 20, &text, &nbytes));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        keep(NULL, line);
    ck_assert_int_eq(find("Profile Summary at step 3:"), 1);
    ck_assert_str_eq(printed.lines[printed.n - 1],
                     "---------------------------------------------------------------------------"
                     "---");
    expect("    (transformer.wpe): 4.1 K = 3.4% Params");
    free(text);
    profiler_destroy(p);
    rig_close(&rig);
    path[strlen(path) - strlen("/a/b/profile.txt")] = '\0';
    test_tmp_remove(path);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made_is_refused_at_the_start)
{
    const struct config_flops_profiler config = {.output_file = "/proc/none/profile.txt"};
    struct rig rig;
    struct profiler *p;
    rig_open(&rig);
    ck_fails(profiler_create(&config, rig.chain, rig.model, &p), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "flops_profiler.output_file"));
    ck_assert_ptr_null(p);
    rig_close(&rig);
}
END_TEST

TEST_MAIN("engine/profiler", numbers_are_shortened_as_deepspeed_does,
          the_summary_has_deepspeeds_rows, recomputation_counts_as_the_config_says,
          several_micro_batches_are_averaged, the_heaviest_modules_are_listed_by_depth,
          the_detailed_profile_names_every_layer_and_module,
          an_error_of_the_reader_stops_the_report,
          more_kinds_of_layers_than_the_table_holds_are_lumped_together,
          only_the_pass_that_was_begun_is_counted, the_file_appears_whole_in_folders_made_for_it,
          a_folder_that_cannot_be_made_is_refused_at_the_start)
