/* Claim: checkpoints of known values come out with those values at every stage, world size and
 * precision, in both formats: odd sizes, padding, ties, frozen weights, several groups and
 * sub-groups; the names are the same for every stage. */
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "tests/unit/checkpoint/ds_write_rig.h"
#include <czero/checkpoint.h>

enum { NUMEL_MAX = 1103 * 1021 };

static float have[NUMEL_MAX];

static void read_safetensors(const struct safetensors *st, const char *name, size_t numel)
{
    const struct safetensors_info *info = safetensors_find(st, name);
    ck_assert_msg(info && info->numel == numel && info->dtype == SAFETENSORS_F32, "%s", name);
    ck_ok(safetensors_read_f32(st, info, 0, numel, have));
}

static void read_bin(const struct pt *pt, const char *name, size_t numel)
{
    const struct pickle_node *node = pickle_get(pt_root(pt), name);
    ck_assert_msg(pickle_is(node, PICKLE_TENSOR) && node->tensor->numel == numel, "%s", name);
    ck_assert_uint_eq(node->tensor->storage_nbytes, numel * sizeof(float)); /* no padding */
    ck_ok(pt_read_f32(pt, node->tensor, 0, numel, have));
}

static void check_values(const struct rig *r, size_t param_idx)
{
    const struct param_info *p = &r->table.params[param_idx];
    for (size_t i = 0; i < p->numel; i++) {
        float want = rig_value(RIG_WHAT_MASTER, param_idx, i);
        if (!p->trainable) want = rig_rounded(want, r->c.dtype);
        ck_assert_msg(have[i] == want, "stage %d, %d ranks: %s: element %zu is %g, not %g",
                      r->c.stage, r->c.world_size, p->name, i, (double)have[i], (double)want);
    }
}

static struct cz_consolidate_result consolidate(const char *dir, const char *out,
                                                enum cz_consolidate_format format)
{
    struct cz_consolidate_result result = {.size = sizeof result};
    const struct cz_consolidate_options o = {
        .size = sizeof o, .dir = dir, .out_dir = out, .format = format};
    ck_ok(cz_consolidate(&o, &result));
    return result;
}

static void check_safetensors(const struct rig *r, const char *dir)
{
    struct safetensors *st;
    struct cz_consolidate_result result = consolidate(dir, dir, CZ_CONSOLIDATE_SAFETENSORS);
    ck_ok(safetensors_dir_open(dir, &st));
    for (size_t i = 0; i < r->table.n_params; i++) {
        read_safetensors(st, r->table.params[i].name, r->table.params[i].numel);
        check_values(r, i);
    }
    ck_assert_uint_eq(safetensors_count(st), r->table.n_params);
    ck_assert_uint_eq(result.n_tensors, r->table.n_params);
    ck_assert_uint_eq(result.n_aliases, r->c.tied);
    if (r->c.tied) ck_assert_str_eq(safetensors_metadata(st, "head.weight"), "emb.weight");
    safetensors_close(st);
}

static void check_bin(const struct rig *r, const char *dir)
{
    struct pt *pt;
    char *path = file_join(dir, "pytorch_model.bin");
    consolidate(dir, dir, CZ_CONSOLIDATE_BIN);
    ck_ok(pt_open(path, &pt));
    ck_ok(pt_verify(pt, NULL, NULL));
    for (size_t i = 0; i < r->table.n_params; i++) {
        read_bin(pt, r->table.params[i].name, r->table.params[i].numel);
        check_values(r, i);
    }
    ck_assert_uint_eq(pt_root(pt)->n_pairs, r->table.n_params + r->c.tied);
    if (r->c.tied) {
        read_bin(pt, "head.weight", r->table.params[0].numel);
        check_values(r, 0);
    }
    pt_close(pt);
    free(path);
}

static void check_case(const struct rig_case *c)
{
    struct rig r;
    const char *dir = test_tmp_make_fast();
    rig_init(&r, c);
    rig_write(&r, dir, NULL);
    check_safetensors(&r, dir);
    check_bin(&r, dir);
    test_tmp_remove(dir);
    rig_free(&r);
}

static const int worlds[] = {1, 2, 3, 5, 8};
static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

START_TEST(every_stage_and_world_size_gives_the_same_values)
{
    for (int stage = 0; stage <= 3; stage++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(worlds); w++) {
            const struct rig_case c = {.stage = stage,
                                       .world_size = worlds[w],
                                       .dtype = dtypes[(w + (size_t)stage) % 3],
                                       .tied = (w + (size_t)stage) % 2,
                                       .frozen = true,
                                       .step = 3};
            check_case(&c);
        }
}
END_TEST

START_TEST(groups_sub_groups_and_dealt_parameters)
{
    for (int stage = 1; stage <= 3; stage++) {
        const struct rig_case c = {.stage = stage,
                                   .world_size = 3,
                                   .dtype = DTYPE_BF16,
                                   .tied = true,
                                   .frozen = stage != 2,
                                   .two_groups = true,
                                   .round_robin = stage == 2,
                                   .param_align = stage == 1 ? 4 : 0,
                                   .sub_group_size = stage == 3 ? 20 : 0,
                                   .step = 1};
        check_case(&c);
    }
}
END_TEST

START_TEST(pieces_of_a_larger_tensor_fit_together)
{
    for (int stage = 2; stage <= 3; stage++) {
        const struct rig_case c = {.stage = stage,
                                   .world_size = 2 + stage,
                                   .dtype = DTYPE_F32,
                                   .tied = true,
                                   .big = true,
                                   .step = 1};
        check_case(&c);
    }
}
END_TEST

TEST_MAIN("checkpoint/consolidate_synthetic", every_stage_and_world_size_gives_the_same_values,
          groups_sub_groups_and_dealt_parameters, pieces_of_a_larger_tensor_fit_together)
