/* Every real DeepSpeed checkpoint opens as whole tensors: masters are the bytes that DeepSpeed's
 * own consolidation gave, and the names are the same at every stage. */
#include "checkpoint/read/checkpoint.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"

#include <string.h>

struct fixture {
    const char *name;
    int stage, world_size;
    const char *model_dtype, *version;
    int64_t step;
    size_t n_frozen;
};

static const struct fixture fixtures[] = {
    {"s0-bf16-adamw", 0, 2, "bfloat16", "0.19.8", 21, 0}, /* one dry step at construction */
    {"s0-onebitadam", 0, 2, "float32", "0.16.9", 24, 0},
    {"s1-bf16-adamw-dp4", 1, 4, "bfloat16", "0.19.8", 20, 0},
    {"s1-fp32-adamw", 1, 2, "float32", "0.19.8", 20, 0},
    {"s1-fp32-dp3", 1, 3, "float32", "0.19.8", 10, 0},
    {"s2-bf16-adamw", 2, 2, "bfloat16", "0.19.8", 20, 0},
    {"s2-fp16-dynscale", 2, 2, "float16", "0.19.8", -2, 0},
    {"s2-fp32-adamw-gas2", 2, 2, "float32", "0.19.8", 20, 0},
    {"s2-fp32-dp3-frozen", 2, 3, "float32", "0.19.8", 10, 1},
    {"s3-bf16-adamw", 3, 2, "bfloat16", "0.19.8", 20, 0},
    {"s3-bf16-cpuoffload", 3, 2, "bfloat16", "0.19.8", 20, 0},
    {"s3-bf16-dp3-frozen", 3, 3, "bfloat16", "0.19.8", 10, 12},
    {"s3-fp32-adamw", 3, 2, "float32", "0.19.8", 20, 0},
    {"v016-s2-bf16", 2, 2, "bfloat16", "0.16.9", 10, 0},
    {"v016-s3-fp16", 3, 2, "float16", "0.16.9", -2, 0},
};

static struct ckpt *open_fixture(const char *name)
{
    char relative[256];
    struct ckpt *ck;
    snprintf(relative, sizeof relative, "runs/%s/ckpt", name);
    const char *dir = test_fixture(relative);
    const struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    return ck;
}

static void check_info(const struct ckpt *ck, const struct fixture *f)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    ck_assert_int_eq(info->stage, f->stage);
    ck_assert_int_eq(info->world_size, f->world_size);
    ck_assert_str_eq(info->model_dtype->torch_name, f->model_dtype);
    ck_assert_str_eq(info->ds_version, f->version);
    ck_assert(info->has_states && !info->is_universal && !info->is_ours);
    ck_assert_uint_eq(info->n_groups, 1);
    ck_assert_uint_eq(info->n_states, 2);
    ck_assert_str_eq(info->states[0], "exp_avg");
    ck_assert_str_eq(info->states[1], "exp_avg_sq");
    ck_assert_uint_eq(info->n_absent, 0);
    size_t n_files =
        f->stage == 0 ? 1
                      : (size_t)(f->world_size * (f->stage == 3 ? 2 : 1)) + (f->stage == 3 ? 0 : 1);
    ck_assert_uint_eq(info->n_files, n_files);
    int64_t step = ckpt_group_step(ck, 0);
    if (f->step >= 0) ck_assert_int_eq(step, f->step);
    ck_assert_int_gt(step, 0);
    double lr;
    ck_assert(pickle_to_double(pickle_get(ckpt_param_group(ck, 0), "lr"), &lr));
    ck_assert(lr > 0 && lr < 1);
    ck_assert_ptr_null(ckpt_param_group(ck, 1));
    ck_assert_ptr_nonnull(pickle_get(ckpt_model_states(ck), "ds_config"));
    ck_assert_ptr_nonnull(ckpt_optim_states(ck));
}

/* Whole tensors, and pieces of them at odd places. */
static void check_values(const struct ckpt *ck, size_t idx, const float *want)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    size_t numel = (size_t)t->numel;
    float *have = malloc(numel * sizeof *have);
    ck_assert_ptr_nonnull(have);
    ck_ok(ckpt_read(ck, idx, CKPT_MASTER, 0, numel, have));
    ck_assert_msg(memcmp(have, want, numel * sizeof *have) == 0, "%s differs", t->name);
    size_t begin = numel / 3, n = numel / 2;
    ck_ok(ckpt_read(ck, idx, CKPT_MASTER, begin, n, have));
    ck_assert_msg(memcmp(have, want + begin, n * sizeof *have) == 0, "%s differs", t->name);
    ck_fails(ckpt_read(ck, idx, CKPT_MASTER, numel, 1, have), CZ_INVALID);
    free(have);
}

/* Runs cover a tensor without gap, and are inside files. */
static void check_runs(const struct ckpt *ck, size_t idx, int what)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    struct ckpt_run run;
    for (uint64_t at = 0; at < t->numel; at += run.numel) {
        ck_ok(ckpt_run(ck, idx, what, at, &run));
        ck_assert_uint_ge(run.numel, 1);
        ck_assert_uint_le(run.numel, t->numel - at);
        ck_assert_uint_le(run.file_off + run.numel * run.dtype->size,
                          ckpt_file_nbytes(ck, run.file_idx));
    }
    ck_fails(ckpt_run(ck, idx, what, t->numel, &run), CZ_INVALID);
}

/* The low-precision weight is the master rounded. */
static void check_module(const struct ckpt *ck, size_t idx, const float *master)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    const struct pickle_dtype *dtype = ckpt_dtype(ck, idx, CKPT_MODULE);
    float *have = malloc((size_t)t->numel * sizeof *have);
    ck_assert_ptr_nonnull(have);
    ck_ok(ckpt_read(ck, idx, CKPT_MODULE, 0, (size_t)t->numel, have));
    for (size_t i = 0; i < t->numel; i++) {
        float want = master[i];
        if (dtype->base == DTYPE_BF16) want = bf16_to_f32(f32_to_bf16(want));
        if (dtype->base == DTYPE_F16) want = f16_to_f32(f32_to_f16(want));
        if (want != have[i]) ck_abort_msg("%s: element %zu of module", t->name, i);
    }
    free(have);
}

static void check_tensor(const struct ckpt *ck, size_t idx, const struct safetensors *expected,
                         const struct safetensors_info *info)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    ck_assert_uint_eq((size_t)t->ndim, info->ndim);
    for (int d = 0; d < t->ndim; d++) ck_assert_int_eq(t->shape[d], info->shape[d]);
    float *want = malloc((size_t)t->numel * sizeof *want);
    ck_assert_ptr_nonnull(want);
    ck_ok(safetensors_read_f32(expected, info, 0, (size_t)t->numel, want));
    check_values(ck, idx, want);
    check_runs(ck, idx, CKPT_MASTER);
    if (t->kind == CKPT_TRAINED) {
        ck_assert_str_eq(t->dtype->torch_name, "float32");
        for (size_t s = 0; s < 2; s++) {
            ck_assert(ckpt_has_state(ck, idx, s));
            check_runs(ck, idx, CKPT_STATE_0 + (int)s);
        }
    }
    struct ckpt_run run;
    bool has_module = ckpt_get_info(ck)->stage < 3 || t->kind != CKPT_TRAINED;
    if (has_module)
        check_module(ck, idx, want);
    else
        ck_fails(ckpt_run(ck, idx, CKPT_MODULE, 0, &run), CZ_NOTFOUND);
    ck_fails(ckpt_run(ck, idx, CKPT_STATE_0 + 2, 0, &run), CZ_NOTFOUND);
    free(want);
}

START_TEST(masters_are_deepspeeds_consolidation)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fixtures); i++) {
        const struct fixture *f = &fixtures[i];
        struct ckpt *ck = open_fixture(f->name);
        check_info(ck, f);
        char relative[256];
        struct safetensors *expected;
        snprintf(relative, sizeof relative, "runs/%s/expected.safetensors", f->name);
        ck_ok(safetensors_open(test_fixture(relative), &expected));
        size_t n_names = 0, n_frozen = 0;
        for (size_t t = 0; t < ckpt_count(ck); t++) {
            n_names += 1 + ckpt_at(ck, t)->n_aliases;
            n_frozen += ckpt_at(ck, t)->kind == CKPT_FROZEN;
        }
        ck_assert_uint_eq(n_frozen, f->n_frozen);
        for (size_t t = 0; t < safetensors_count(expected); t++) {
            const struct safetensors_info *info = safetensors_at(expected, t);
            size_t idx = ckpt_find(ck, info->name);
            ck_assert_msg(idx < ckpt_count(ck), "%s: no %s", f->name, info->name);
            check_tensor(ck, idx, expected, info);
        }
        ck_assert_uint_ge(n_names, safetensors_count(expected));
        safetensors_close(expected);
        ckpt_close(ck);
    }
}
END_TEST

START_TEST(names_are_the_same_at_every_stage)
{
    struct ckpt *first = open_fixture(fixtures[0].name);
    size_t head = ckpt_find(first, "lm_head.weight");
    ck_assert_uint_eq(head, 0);
    ck_assert_str_eq(ckpt_at(first, 0)->name, "transformer.wte.weight");
    ck_assert_uint_eq(ckpt_find(first, "absent"), ckpt_count(first));
    for (size_t i = 1; i < CZ_ARRAY_LEN(fixtures); i++) {
        struct ckpt *ck = open_fixture(fixtures[i].name);
        ck_assert_uint_eq(ckpt_count(ck), ckpt_count(first));
        for (size_t t = 0; t < ckpt_count(ck); t++) {
            const struct ckpt_tensor *a = ckpt_at(first, t), *b = ckpt_at(ck, t);
            ck_assert_str_eq(a->name, b->name);
            ck_assert_uint_eq(a->numel, b->numel);
            ck_assert_uint_eq(a->n_aliases, b->n_aliases);
            if (a->n_aliases) ck_assert_str_eq(a->aliases[0], b->aliases[0]);
        }
        ckpt_close(ck);
    }
    ckpt_close(first);
}
END_TEST

/* A state's elements against the file itself, read as torch would: stage 0 keeps it whole. */
START_TEST(states_of_stage_0_are_found_by_parameter)
{
    struct ckpt *ck = open_fixture("s0-bf16-adamw");
    const struct pickle_node *state =
        pickle_get(pickle_get(ckpt_optim_states(ck), "optimizer_state_dict"), "state");
    struct pt *pt;
    ck_ok(pt_open(ckpt_file_path(ck, 0), &pt));
    for (size_t i = 0; i < state->n_pairs; i++) { /* 28 trained parameters in the order of module */
        const struct pickle_node *node = pickle_get(state->pairs[i].value, "exp_avg_sq");
        size_t numel = (size_t)node->tensor->numel;
        float *want = malloc(numel * sizeof *want), *have = malloc(numel * sizeof *have);
        ck_ok(pt_read_f32(pt, node->tensor, 0, numel, want));
        ck_ok(ckpt_read(ck, i, CKPT_STATE_0 + 1, 0, numel, have));
        ck_assert(memcmp(want, have, numel * sizeof *want) == 0);
        free(want);
        free(have);
    }
    double step;
    ck_assert(ckpt_number(ck, pickle_get(state->pairs[3].value, "step"), &step));
    ck_assert(step == 21);
    ck_assert(!ckpt_number(ck, state, &step));
    pt_close(pt);
    ckpt_close(ck);
}
END_TEST

START_TEST(weights_alone_need_no_states)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fixtures); i++) {
        char relative[256];
        struct ckpt *ck;
        snprintf(relative, sizeof relative, "runs/%s/ckpt", fixtures[i].name);
        const struct ckpt_open_options options = {.dir = test_fixture(relative),
                                                  .weights_only = true};
        ck_ok(ckpt_open(&options, &ck));
        ck_assert(!ckpt_get_info(ck)->has_states);
        ck_assert_int_eq(ckpt_group_step(ck, 0), -1);
        ck_assert_uint_eq(ckpt_count(ck), 28);
        ckpt_close(ck);
    }
}
END_TEST

TEST_MAIN("checkpoint/ckpt_fixtures", masters_are_deepspeeds_consolidation,
          names_are_the_same_at_every_stage, states_of_stage_0_are_found_by_parameter,
          weights_alone_need_no_states)
