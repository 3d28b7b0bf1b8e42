/* Claims: the plan says what each phase touches, moves and, on a machine whose rates are known,
 * takes; a GPU run is planned without a GPU, and what is offloaded leaves the device. */
#include "base/size.h"
#include "engine/machine/machine.h"
#include "engine/plan/plan_impl.h"
#include "layout/flat.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define ADAM "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}"
#define BF16 "\"bf16\": {\"enabled\": true}, "

/* Round figures, so that times can be told manually. */
static const struct machine_profile machine = {.gemm_f32 = 1e11,
                                               .gemm_bf16 = 2e11,
                                               .gemm_f16 = 1e11,
                                               .triad = 4e10,
                                               .adam_f32 = 1e9,
                                               .adam_bf16 = 2e9,
                                               .comm = 1e10,
                                               .host_to_device = 2e10,
                                               .device_to_host = 1e10,
                                               .device_gemm_f32 = 5e13,
                                               .device_gemm_bf16 = 5e14,
                                               .device_gemm_f16 = 5e14,
                                               .device_copy = 2e12,
                                               .nvme_read = 3e9,
                                               .nvme_write = 2e9,
                                               .nvme_both = 4e9};

static struct cz_plan *plan_on(const char *device, const char *model, const char *config, int64_t T,
                               int64_t world_size)
{
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .device = device};
    const struct plan_request request = {
        .world_size = world_size, .profile = &machine, .baseline_nbytes = 16 << 20};
    struct cz_model *m = cz_model_open(model);
    struct cz_plan *p;
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, T));
    ck_ok(plan_create_ex(&options, &request, m, &p));
    cz_model_destroy(m);
    return p;
}

static const struct plan_row *row_of(const struct cz_plan *p, const char *name)
{
    static const struct plan_row none;
    for (size_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, name) == 0) return &p->rows[i];
    return &none;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

START_TEST(a_phase_uses_no_more_than_the_peak)
{
    struct cz_plan *p = plan_on("cpu", "gpt2-tiny",
                                "{\"train_micro_batch_size_per_gpu\": 4, " BF16 ADAM "}", 64, 1);
    for (int f = 0; f < PLAN_N_PHASES; f++) {
        ck_assert_uint_le(p->phases[f].in_use_nbytes[PLAN_HOST], p->host_peak_nbytes);
        ck_assert_uint_gt(p->phases[f].in_use_nbytes[PLAN_HOST], p->baseline_nbytes);
    }
    size_t states = row_of(p, "exp_avg")->nbytes;
    ck_assert(plan_row_in_phase(row_of(p, "exp_avg"), PLAN_STEP));
    ck_assert(!plan_row_in_phase(row_of(p, "exp_avg"), PLAN_FORWARD));
    ck_assert(!plan_row_in_phase(row_of(p, "activations"), PLAN_STEP));
    ck_assert_uint_gt(states, 0);
    ck_assert_uint_eq(p->host_free_nbytes, SIZE_MAX); /* a given baseline: no look around */
    cz_plan_destroy(p);
}
END_TEST

/* 6 operations per weight and token in all, and a forward more when layers are recomputed. */
START_TEST(operations_follow_the_model)
{
    struct cz_plan *plain = plan_on("cpu", "gpt2",
                                    "{\"train_micro_batch_size_per_gpu\": 2, "
                                    "\"gradient_accumulation_steps\": 3, " ADAM "}",
                                    128, 1);
    struct cz_plan *again = plan_on("cpu", "gpt2",
                                    "{\"train_micro_batch_size_per_gpu\": 2, "
                                    "\"gradient_accumulation_steps\": 3, \"czero\": "
                                    "{\"activation_checkpointing\": {\"every\": 1}}, " ADAM "}",
                                    128, 1);
    double all = plain->phases[PLAN_FORWARD].flops + plain->phases[PLAN_BACKWARD].flops;
    double tokens = 3 * 2 * 128;
    ck_assert_double_gt(all, 6 * 123.6e6 * tokens);
    ck_assert_double_lt(all, 6.4 * 124.4e6 * tokens);
    double more = again->phases[PLAN_BACKWARD].flops - plain->phases[PLAN_BACKWARD].flops;
    ck_assert_double_gt(more, 1.8 * 77e6 * tokens); /* eleven of twelve blocks */
    ck_assert_double_lt(more, 2.2 * 85e6 * tokens);
    ck_assert(near(again->phases[PLAN_FORWARD].flops, plain->phases[PLAN_FORWARD].flops));
    cz_plan_destroy(plain);
    cz_plan_destroy(again);
}
END_TEST

/* Frozen maps have no gradient, attention has two all the same; A and B of a branch are multiplied
 * twice forward and six times backward. */
START_TEST(operations_of_an_adapter_are_without_the_weights_gradients)
{
    static const char lora[] = "{\"train_micro_batch_size_per_gpu\": 2, \"czero\": {\"lora\": "
                               "{\"rank\": 4, \"targets\": \"c_attn\"}}, " ADAM "}";
    struct cz_plan *whole =
        plan_on("cpu", "gpt2", "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}", 128, 1);
    struct cz_plan *adapter = plan_on("cpu", "gpt2", lora, 128, 1);
    const struct plan_cost *w = whole->phases, *a = adapter->phases;
    const double tokens = 2 * 128, blocks = 12, C = 768;
    const double maps = blocks * 2 * tokens * 12 * C * C, head = 2 * tokens * C * 50257;
    const double attention = blocks * 4 * tokens * 128 * C;
    const double branches = blocks * 2 * tokens * 4 * (C + 3 * C);
    ck_assert(near(w[PLAN_FORWARD].flops, maps + attention + 3 * head));
    ck_assert(near(a[PLAN_FORWARD].flops, maps + attention + 2 * head + branches));
    ck_assert(near(w[PLAN_BACKWARD].flops, 2 * maps + 2 * attention));
    ck_assert(near(a[PLAN_BACKWARD].flops, maps + 2 * attention + 3 * branches));
    cz_plan_destroy(whole);
    cz_plan_destroy(adapter);
}
END_TEST

/* On the CPU nothing overlaps but the disk; the ranks of a host share its cores. */
START_TEST(times_come_from_the_rates)
{
    const char *config = "{\"train_micro_batch_size_per_gpu\": 2, " BF16 ADAM "}";
    struct cz_plan *one = plan_on("cpu", "gpt2", config, 128, 1);
    struct cz_plan *two = plan_on("cpu", "gpt2", config, 128, 2);
    const struct plan_cost *f = &one->phases[PLAN_FORWARD], *s = &one->phases[PLAN_STEP];
    double elements = (double)f->moved_nbytes / 2; /* 22 bytes each: fitted (docs/memory.md) */
    ck_assert(near(f->compute_s, f->flops / (0.95 * 2e11) + 22 * elements / 4e10));
    ck_assert(near(f->total_s, f->compute_s));
    ck_assert_double_eq(f->nvme_s + f->link_s + f->comm_s, 0);
    /* 28 bytes a parameter at Adam's rate, and the gradients read twice more */
    double n = (double)(one->numel);
    ck_assert_double_eq_tol(s->compute_s, n / 2e9 + 2 * 2 * n / 4e10, 1e-3 * s->compute_s);
    ck_assert(near(one->step_s, f->total_s + one->phases[PLAN_BACKWARD].total_s + s->total_s));
    ck_assert(near(two->phases[PLAN_FORWARD].compute_s, 2 * f->compute_s));
    ck_assert_double_gt(two->phases[PLAN_STEP].comm_s, 0);
    ck_assert_ptr_null(one->missing_rate);
    cz_plan_destroy(one);
    cz_plan_destroy(two);
}
END_TEST

START_TEST(without_a_rate_there_is_no_time)
{
    struct machine_profile slow = machine;
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = "{\"train_micro_batch_size_per_gpu\": 1, " ADAM "}"};
    struct plan_request request = {.world_size = 1, .profile = &slow};
    struct cz_model *m = cz_model_open("gpt2-tiny");
    struct cz_plan *p;
    char *text;
    slow.adam_f32 = 0;
    ck_ok(plan_create_ex(&options, &request, m, &p));
    ck_assert(isnan(p->step_s) && p->missing_rate);
    ck_assert(!isnan(p->phases[PLAN_FORWARD].total_s));
    ck_ok(cz_plan_table(p, &text));
    ck_assert_ptr_nonnull(strstr(text, "No time is predicted: the machine profile has no figure"));
    free(text);
    cz_plan_destroy(p);
    request.profile = NULL;
    ck_ok(plan_create_ex(&options, &request, m, &p));
    ck_assert(isnan(p->step_s) && !p->missing_rate);
    ck_ok(cz_plan_json(p, &text));
    ck_assert_ptr_nonnull(strstr(text, "\"step_seconds\": null"));
    ck_assert_ptr_nonnull(strstr(text, "\"phase\": \"backward\""));
    free(text);
    cz_plan_destroy(p);
    cz_model_destroy(m);
}
END_TEST

/* Over devices, worlds, stages and tiers: no row counts as used in every phase for want of a name,
 * and there is space for all of them. */
START_TEST(every_row_is_known)
{
    static const char *const tiers[] = {"none", "cpu", "nvme"};
    char config[1024];
    for (int i = 0; i < 2 * 2 * 4 * 3 * 3; i++) {
        bool gpu = i & 1, several = i & 2;
        int stage = i >> 2 & 3, optimizer = i / 16 % 3, params = i / 48;
        if (gpu && several && params == 2 && stage < 3) continue; /* refused */
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"activation_checkpointing\": "
                 "{\"cpu_checkpointing\": true}, \"czero\": {\"activation_checkpointing\": "
                 "{\"every\": 1}}, \"zero_optimization\": {\"stage\": %d, "
                 "\"offload_optimizer\": {\"device\": \"%s\", \"ratio\": %s, "
                 "\"nvme_path\": \"/tmp\"}, \"offload_param\": {\"device\": \"%s\", "
                 "\"nvme_path\": \"/tmp\"}}, " BF16 ADAM "}",
                 stage, tiers[optimizer], stage == 3 ? "0.5" : "1.0", tiers[params]);
        struct cz_plan *p = plan_on(gpu ? "cuda" : "cpu", "gpt2", config, 64, several ? 3 : 1);
        ck_assert_uint_lt(p->n_rows, PLAN_ROWS_MAX);
        for (size_t r = 0; r < p->n_rows; r++)
            ck_assert_msg(plan_row_is_known(&p->rows[r]), "%s", p->rows[r].name);
        ck_assert((p->nvme_nbytes > 0) == (optimizer == 2 || params == 2));
        ck_assert((p->device_peak_nbytes > 0) == gpu);
        cz_plan_destroy(p);
    }
}
END_TEST

static void says_wear(const struct cz_plan *p, double nbytes_per_day)
{
    char want[96], amount[48], *text;
    snprintf(want, sizeof want, "each rank writes %s a day to NVMe.\n",
             size_decimal(nbytes_per_day, amount, sizeof amount));
    ck_ok(cz_plan_table(p, &text));
    ck_assert_msg(strstr(text, want), "no \"%s\" in\n%s", want, text);
    free(text);
    ck_ok(cz_plan_json(p, &text));
    ck_assert_ptr_nonnull(strstr(text, "\"nvme_written_bytes_per_day\": "));
    const char *key = "\"nvme_written_bytes_per_million_tokens\": ", *at = strstr(text, key);
    ck_assert_ptr_nonnull(at);
    const double per_step = nbytes_per_day / 86400 * p->step_s;
    ck_assert(near(strtod(at + strlen(key), NULL),
                   per_step / (double)(p->B * p->T * p->accumulation) * 1e6));
    free(text);
}

/* On the CPU the swap file's traffic is zero's own; on a GPU it is what the rows say. */
START_TEST(a_swapped_step_waits_for_the_disk)
{
    const char *config =
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": "
        "3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
        "\"/tmp\"%s}}, \"czero\": {\"late_update\": false}, " BF16 ADAM "}";
    static const char *const devices[] = {"cpu", "cuda"};
    char text[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, config, "");
        struct cz_plan *p = plan_on(devices[i], "gpt2", text, 64, 1);
        const struct plan_cost *s = &p->phases[PLAN_STEP];
        /* on the CPU without what the sweep before has left in four slots of the ring */
        double all = 12.0 * (double)p->numel, found = 12.0 * 4 * (2 << 20);
        ck_assert_double_le((double)s->nvme_read_nbytes, all + 1e5);
        ck_assert_double_ge((double)s->nvme_read_nbytes, all - found);
        ck_assert_double_eq_tol((double)s->nvme_written_nbytes, 12.0 * (double)p->numel, 1e5);
        ck_assert(near(s->nvme_s, (double)(s->nvme_read_nbytes + s->nvme_written_nbytes) / 4e9));
        ck_assert(near(s->total_s, s->nvme_s)); /* computing is beside it */
        says_wear(p, (double)s->nvme_written_nbytes / p->step_s * 86400);
        snprintf(text, sizeof text, config,
                 ", \"pipeline_read\": false, \"pipeline_write\": false");
        struct cz_plan *slow = plan_on(devices[i], "gpt2", text, 64, 1);
        s = &slow->phases[PLAN_STEP];
        ck_assert_double_gt(s->total_s, p->phases[PLAN_STEP].total_s);
        ck_assert_double_ge(s->total_s * (1 + 1e-9), s->nvme_s + s->compute_s);
        cz_plan_destroy(p);
        cz_plan_destroy(slow);
    }
}
END_TEST

/* The same update beside the next forward: the step has the processor's part alone, and a forward
 * that is long enough hides the disk; of several micro-batches it is the first one's. */
START_TEST(a_late_update_is_beside_the_forward)
{
    const char *config =
        "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
        "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", "
        "\"nvme_path\": \"/tmp\"}}, \"czero\": {\"accumulation_order\": \"micro_batches\", "
        "\"late_update\": %s}, " BF16 ADAM "}";
    char text[1024];
    for (int n = 1; n <= 4; n *= 4)
        for (int rows = 1; rows <= 16; rows *= 16) {
            snprintf(text, sizeof text, config, rows, n, "false");
            struct cz_plan *now = plan_on("cpu", "gpt2", text, 64, 1);
            snprintf(text, sizeof text, config, rows, n, "true");
            struct cz_plan *late = plan_on("cpu", "gpt2", text, 64, 1);
            const struct plan_cost *f = &late->phases[PLAN_FORWARD];
            ck_assert_uint_eq(late->phases[PLAN_STEP].nvme_read_nbytes, 0);
            ck_assert_uint_eq(late->phases[PLAN_STEP].nvme_written_nbytes, 0);
            ck_assert_uint_eq(f->nvme_written_nbytes, now->phases[PLAN_STEP].nvme_written_nbytes);
            ck_assert_uint_ge(f->nvme_read_nbytes, 12 * (size_t)late->numel);
            ck_assert(near(late->phases[PLAN_STEP].total_s, late->phases[PLAN_STEP].compute_s));
            double first = f->compute_s / n;
            ck_assert(near(f->total_s, (n - 1) * first + (first > f->nvme_s ? first : f->nvme_s)));
            ck_assert_double_lt(late->step_s, now->step_s);
            cz_plan_destroy(now);
            cz_plan_destroy(late);
        }
}
END_TEST

static cz_status train_step(struct cz_engine *e)
{
    enum { ROWS = 2, T = 32 };
    static int32_t ids[ROWS * T];
    for (int i = 0; i < ROWS * T; i++) ids[i] = i * 7 % 200;
    const struct cz_batch batch = {
        .size = sizeof batch, .B = ROWS, .T = T, .ids = ids, .labels = ids};
    for (int64_t g = 0; g < engine_get_accumulation(e); g++) {
        TRY(engine_forward(e, &batch, NULL));
        TRY(engine_backward(e));
        TRY(engine_step(e));
    }
    return CZ_OK;
}

/* A real step reads and writes what its plan says, but for whole blocks at the ends of runs. */
START_TEST(a_step_moves_the_planned_bytes)
{
    const char *format =
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
        "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": "
        "1000, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
        "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}}, "
        "\"czero\": {\"tile_numel\": 4096}, " BF16 ADAM "}";
    const char *dir = test_tmp_make();
    char config[1024];
    for (int params = 0; params < 2; params++) {
        snprintf(config, sizeof config, format, dir, params ? "nvme" : "none", dir);
        const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
        struct cz_model *m = cz_model_open("gpt2-tiny");
        ck_ok(cz_model_set_shape(m, 32));
        struct cz_engine *e = engine_initialize_ex(&options, m);
        ck_assert_msg(e != NULL, "%s", cz_last_error());
        for (int s = 0; s < 3; s++) ck_ok(train_step(e));
        struct cz_swap_traffic real = {.size = sizeof real};
        ck_ok(engine_get_swap_traffic(e, &real));
        const struct plan_cost *c = engine_get_plan(e)->phases;
        double read = 0, written = 0, blocks = 4096.0 * 80;
        double ahead = 4 * 12 * 4096; /* of the next step, may still be under way */
        for (int f = 0; f < PLAN_SAVE; f++) read += (double)c[f].nvme_read_nbytes;
        for (int f = 0; f < PLAN_SAVE; f++) written += (double)c[f].nvme_written_nbytes;
        printf("read %.0f, planned %.0f; written %.0f, planned %.0f\n", real.read_nbytes, read,
               real.written_nbytes, written);
        ck_assert_double_gt(read, 5e5);
        ck_assert_double_ge(real.read_nbytes, read - ahead);
        ck_assert_double_le(real.read_nbytes, read + ahead + blocks);
        ck_assert_double_ge(real.written_nbytes, written);
        ck_assert_double_le(real.written_nbytes, written + blocks);
        engine_destroy(e);
    }
    test_tmp_remove(dir);
}
END_TEST

/* ---- a GPU that is not here -------------------------------------------------------------------
 */

#define BIG                                                                                        \
    "\"train_micro_batch_size_per_gpu\": 1, \"czero\": {\"activation_checkpointing\": "            \
    "{\"every\": 1}}, " BF16 ADAM
#define OFFLOAD(stage, device)                                                                     \
    "\"zero_optimization\": {\"stage\": " stage ", \"reduce_bucket_size\": 50000000, "             \
    "\"offload_optimizer\": {\"device\": \"" device "\"}}, "

START_TEST(a_gpu_run_without_offload_lies_on_the_device)
{
    struct cz_plan *p = plan_on("cuda", "gpt2-1.3b", "{" BIG "}", 1024, 1);
    size_t states = 16 * p->numel; /* 2 + 2 and 4 · 3 */
    ck_assert_uint_gt(p->device_peak_nbytes, states);
    ck_assert_uint_lt(p->device_peak_nbytes, states + ((size_t)1 << 30));
    ck_assert_uint_le(p->pinned_nbytes + p->nvme_nbytes, (size_t)8 << 20); /* batches, losses */
    ck_assert_uint_eq(p->phases[PLAN_STEP].to_host_nbytes, 0);
    ck_assert_uint_ge(p->phases[PLAN_SAVE].to_host_nbytes, 14 * p->numel);
    ck_assert_ptr_nonnull(strstr(row_of(p, "CUDA context")->how, "assumed"));
    ck_assert(
        near(p->phases[PLAN_STEP].compute_s, (double)p->phases[PLAN_STEP].moved_nbytes / 2e12));
    cz_plan_destroy(p);
}
END_TEST

/* Gradients leave bucket by bucket: parameters, two buckets and the tied gradient stay. */
START_TEST(billion_parameters_fit_into_five_gigabytes)
{
    struct cz_plan *p = plan_on("cuda", "gpt2-1.3b", "{" OFFLOAD("2", "cpu") BIG "}", 1024, 1);
    ck_assert_uint_lt(p->device_peak_nbytes, (size_t)5000000000);
    ck_assert_uint_ge(p->pinned_nbytes, 14 * p->numel);
    ck_assert_int_eq(row_of(p, "gradients")->place, PLAN_PINNED);
    ck_assert_int_eq(row_of(p, "gradient buckets")->place, PLAN_DEVICE);
    ck_assert_int_eq(row_of(p, "parameters")->place, PLAN_DEVICE);
    ck_assert_uint_eq(p->phases[PLAN_BACKWARD].to_host_nbytes, 2 * p->numel);
    ck_assert_uint_eq(p->phases[PLAN_STEP].to_device_nbytes, 0); /* in the next forward */
    ck_assert_uint_eq(p->phases[PLAN_FORWARD].to_device_nbytes, 2 * p->numel);
    cz_plan_destroy(p);
    p = plan_on("cuda", "gpt2-1.3b",
                "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
                "\"cpu\"}}, " BIG "}", /* two buckets of 500 M elements would not fit */
                1024, 1);
    ck_assert_uint_lt(p->device_peak_nbytes, (size_t)5000000000);
    cz_plan_destroy(p);
}
END_TEST

/* The host's update beside the GPU's next forward: the step is what the host looks at gradients
 * for, and of several micro-batches the first one's forward takes the longer of both. Memory is the
 * same, and so is what is moved. */
START_TEST(a_gpu_s_late_update_is_beside_the_forward)
{
    static const char *const devices[] = {"cpu", "nvme"};
    for (int k = 0; k < 4; k++) {
        struct cz_plan *p[2];
        char config[512];
        const int n = k < 2 ? 1 : 4;
        for (int late = 0; late < 2; late++) {
            snprintf(config, sizeof config,
                     "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d, "
                     "\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 2, "
                     "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"/tmp\"}}, "
                     "\"czero\": {\"late_update\": %s, \"accumulation_order\": "
                     "\"micro_batches\"}, " BF16 ADAM "}",
                     n, devices[k % 2], late ? "true" : "false");
            p[late] = plan_on("cuda", "gpt2", config, 1024, 1);
        }
        const struct plan_cost *at_once = p[0]->phases, *late = p[1]->phases;
        double adam = (double)p[0]->numel / 2e9; /* 28 bytes each */
        double forward = at_once[PLAN_FORWARD].total_s / n, first = forward > adam ? forward : adam;
        if (late[PLAN_FORWARD].nvme_s > first) first = late[PLAN_FORWARD].nvme_s;
        ck_assert_uint_eq(late[PLAN_FORWARD].to_device_nbytes, 2 * p[0]->numel);
        ck_assert_uint_eq(at_once[PLAN_STEP].to_device_nbytes, 2 * p[0]->numel);
        ck_assert_uint_eq(late[PLAN_STEP].to_device_nbytes, 0);
        ck_assert_uint_eq(late[PLAN_STEP].nvme_written_nbytes, 0);
        ck_assert_uint_eq(late[PLAN_FORWARD].nvme_written_nbytes,
                          at_once[PLAN_STEP].nvme_written_nbytes);
        ck_assert(near(late[PLAN_FORWARD].total_s, first + (n - 1) * forward));
        ck_assert(near(late[PLAN_STEP].compute_s, 4.0 * (double)p[0]->numel / 4e10));
        ck_assert_uint_eq(p[1]->device_peak_nbytes, p[0]->device_peak_nbytes);
        if (k % 2 == 0) { /* a disk that is slower than all reads more: other tiles are kept */
            ck_assert_double_lt(p[1]->step_s, p[0]->step_s);
            ck_assert_uint_eq(p[1]->host_peak_nbytes, p[0]->host_peak_nbytes);
        }
        ck_assert_uint_ge(late[PLAN_FORWARD].in_use_nbytes[PLAN_PINNED] +
                              late[PLAN_FORWARD].in_use_nbytes[PLAN_HOST],
                          at_once[PLAN_STEP].in_use_nbytes[PLAN_PINNED] +
                              at_once[PLAN_STEP].in_use_nbytes[PLAN_HOST]);
        cz_plan_destroy(p[0]);
        cz_plan_destroy(p[1]);
    }
}
END_TEST

/* What must be known of all gradients keeps the update waiting for them. */
START_TEST(an_update_that_waits_for_nothing_runs_beside_the_backward)
{
    static const struct {
        const char *bf16, *clip, *device;
        int world_size;
        bool beside;
    } cases[] = {{"false", "0.0", "cpu", 1, true},   {"false", "0.0", "nvme", 1, true},
                 {"true", "0.0", "cpu", 1, false},   {"false", "1.0", "cpu", 1, false},
                 {"false", "0.0", "none", 1, false}, {"false", "0.0", "cpu", 2, false}};
    for (size_t k = 0; k < CZ_ARRAY_LEN(cases); k++) {
        char config[512];
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, "
                 "\"gradient_clipping\": %s, \"bf16\": {\"enabled\": true, "
                 "\"check_grad_overflow\": %s}, \"zero_optimization\": {\"stage\": 2, "
                 "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"/tmp\"}}, " ADAM "}",
                 cases[k].clip, cases[k].bf16, cases[k].device);
        struct cz_plan *p = plan_on("cuda", "gpt2", config, 1024, cases[k].world_size);
        double sum = 0;
        for (int f = 0; f < PLAN_SAVE; f++) sum += p->phases[f].total_s;
        double last = p->phases[PLAN_BACKWARD].total_s / 4, step = p->phases[PLAN_STEP].total_s;
        ck_assert(near(p->beside_s, cases[k].beside ? fmin(last, step) : 0));
        ck_assert(near(p->step_s, sum - p->beside_s));
        cz_plan_destroy(p);
    }
}
END_TEST

/* Below stage 2 several ranks keep whole gradients on the device until the boundary. */
START_TEST(stage_one_keeps_its_gradients_on_the_device)
{
    struct cz_plan *p = plan_on("cuda", "gpt2-1.3b", "{" OFFLOAD("1", "cpu") BIG "}", 1024, 4);
    ck_assert_int_eq(row_of(p, "gradients")->place, PLAN_DEVICE);
    ck_assert_int_eq(row_of(p, "exp_avg")->place, PLAN_PINNED);
    ck_assert_uint_eq(p->phases[PLAN_BACKWARD].to_host_nbytes, 0);
    ck_assert_uint_gt(p->phases[PLAN_STEP].to_host_nbytes, 0);
    cz_plan_destroy(p);
}
END_TEST

/* ratio 0.75: a quarter of masters and states stays; its rounded parameters are not copied, its
 * gradients come back instead. */
START_TEST(a_ratio_keeps_its_share_on_the_device)
{
    const char *head = "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
                       "\"cpu\", \"ratio\": %s}}, ";
    char zero[256], config[1024];
    struct cz_plan *p[2];
    for (int i = 0; i < 2; i++) {
        snprintf(zero, sizeof zero, head, i ? "0.75" : "1.0");
        snprintf(config, sizeof config, "{%s" BIG "}", zero);
        p[i] = plan_on("cuda", "gpt2-1.3b", config, 1024, 1);
    }
    double stays = 12.0 * (double)p[0]->numel / 4, tiles = 12.0 * TILE_NUMEL_MAX, staging = 1e8;
    double less = (double)(p[0]->pinned_nbytes - p[1]->pinned_nbytes);
    double more = (double)(p[1]->device_peak_nbytes - p[0]->device_peak_nbytes);
    ck_assert_double_eq_tol(less, stays, tiles + staging);
    ck_assert_double_eq_tol(more, stays, tiles + staging);
    ck_assert_uint_le(row_of(p[1], "device's states")->nbytes, (size_t)stays + 4096);
    ck_assert_uint_eq(p[1]->phases[PLAN_STEP].to_device_nbytes +
                          p[1]->phases[PLAN_FORWARD].to_device_nbytes,
                      p[0]->phases[PLAN_FORWARD].to_device_nbytes);
    ck_assert(near(p[1]->phases[PLAN_STEP].compute_s, 0.75 * p[0]->phases[PLAN_STEP].compute_s));
    cz_plan_destroy(p[0]);
    cz_plan_destroy(p[1]);
}
END_TEST

START_TEST(kept_activations_go_to_the_host_when_asked)
{
    struct cz_plan *on = plan_on("cuda", "gpt2-1.3b", "{" BIG "}", 1024, 1);
    struct cz_plan *off =
        plan_on("cuda", "gpt2-1.3b",
                "{\"activation_checkpointing\": {\"cpu_checkpointing\": true}, " BIG "}", 1024, 1);
    size_t each = 2 * 1024 * 2048, moved = row_of(off, "kept activations")->nbytes;
    ck_assert_uint_ge(moved, 22 * each); /* the two that are needed first stay */
    ck_assert_int_eq(row_of(off, "kept activations")->place, PLAN_PINNED);
    size_t less = row_of(on, "activations")->nbytes - row_of(off, "activations")->nbytes;
    ck_assert_uint_le(less, moved);
    ck_assert_uint_ge(less + ((size_t)4 << 20), moved); /* whole pages, gaps between rows */
    ck_assert_uint_eq(off->phases[PLAN_FORWARD].to_host_nbytes, moved);
    ck_assert_uint_eq(off->phases[PLAN_BACKWARD].to_device_nbytes, moved);
    cz_plan_destroy(on);
    cz_plan_destroy(off);
}
END_TEST

/* What the kernels of an update move per parameter: nothing of it is where things rest. */
START_TEST(an_update_moves_the_same_wherever_states_rest)
{
    static const struct {
        const char *precision;
        size_t each; /* bytes, with the gradients that are read for overflow and norm */
    } cases[] = {
        {"\"bf16\": {\"enabled\": true}", 2 * 4 + 2 + 2 + 16 + 4},
        {"\"fp16\": {\"enabled\": false}", 2 * 4 + 4 + 16 + 8},
        {"\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
         "\"bf16_optimizer_states\": true}",
         2 * 2 + 2 + 8 + 4},
    };
    static const char *const devices[] = {"cpu", "nvme"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases) * 4; i++) {
        char config[768];
        snprintf(
            config, sizeof config,
            "{\"train_micro_batch_size_per_gpu\": 1, %s, \"zero_optimization\": {\"stage\": 3, "
            "\"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"/tmp\"}, "
            "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"/tmp\"}}, " ADAM "}",
            cases[i / 4].precision, devices[i % 2], devices[i / 2 % 2]);
        struct cz_plan *p = plan_on("cpu", "gpt2-tiny", config, 32, 1);
        ck_assert_uint_eq(p->phases[PLAN_STEP].moved_nbytes, cases[i / 4].each * p->numel);
        cz_plan_destroy(p);
    }
}
END_TEST

/* 16-bit masters take 16 bits beside parameters that are elsewhere. */
START_TEST(masters_of_sixteen_bits_are_planned_as_such)
{
    struct cz_plan *p =
        plan_on("cuda", "gpt2-tiny",
                "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true, "
                "\"bf16_master_weights_and_grads\": true}, \"zero_optimization\": "
                "{\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", "
                "\"pin_memory\": false}}, " ADAM "}",
                32, 1);
    const struct plan_row *masters = row_of(p, "master weights");
    ck_assert_uint_le(masters->nbytes, 2 * p->numel + 4096);
    ck_assert_ptr_nonnull(strstr(masters->how, "bf16"));
    cz_plan_destroy(p);
}
END_TEST

/* Gradients that stay all the same: on a GPU they wait in the host, several ranks reduce theirs. */
START_TEST(gradients_follow_the_optimizer_on_one_cpu_rank_alone)
{
    static const char config[] =
        "{\"train_micro_batch_size_per_gpu\": 1, " BF16 "\"zero_optimization\": {\"stage\": 2, "
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}}, "
        "\"czero\": {\"offload_gradients\": true}, " ADAM "}";
    const struct {
        const char *device;
        int64_t world_size;
        size_t n_gradients; /* rows of that name, with bytes */
        enum plan_place gradients, buckets;
    } cases[] = {{"cpu", 1, 2, PLAN_HOST, PLAN_PINNED},
                 {"cpu", 2, 1, PLAN_HOST, PLAN_HOST},
                 {"cuda", 1, 1, PLAN_PINNED, PLAN_DEVICE}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_plan *p = plan_on(cases[i].device, "gpt2-tiny", config, 32, cases[i].world_size);
        size_t n = 0;
        for (size_t r = 0; r < p->n_rows; r++)
            n += p->rows[r].nbytes > 0 && strcmp(p->rows[r].name, "gradients") == 0;
        ck_assert_uint_eq(n, cases[i].n_gradients);
        ck_assert_int_eq(row_of(p, "gradients")->place, cases[i].gradients);
        bool gpu = strcmp(cases[i].device, "cuda") == 0;
        ck_assert_int_eq(row_of(p, gpu ? "gradient buckets" : "reduction buckets")->place,
                         cases[i].buckets);
        cz_plan_destroy(p);
    }
}
END_TEST

TEST_MAIN("engine/plan_phases", gradients_follow_the_optimizer_on_one_cpu_rank_alone,
          an_update_moves_the_same_wherever_states_rest,
          masters_of_sixteen_bits_are_planned_as_such, a_phase_uses_no_more_than_the_peak,
          operations_follow_the_model, operations_of_an_adapter_are_without_the_weights_gradients,
          times_come_from_the_rates, without_a_rate_there_is_no_time, every_row_is_known,
          a_swapped_step_waits_for_the_disk, a_late_update_is_beside_the_forward,
          a_gpu_s_late_update_is_beside_the_forward, a_step_moves_the_planned_bytes,
          a_gpu_run_without_offload_lies_on_the_device, billion_parameters_fit_into_five_gigabytes,
          an_update_that_waits_for_nothing_runs_beside_the_backward,
          stage_one_keeps_its_gradients_on_the_device, kept_activations_go_to_the_host_when_asked,
          a_ratio_keeps_its_share_on_the_device)
