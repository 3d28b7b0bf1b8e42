/* Small checkpoints that DeepSpeed itself wrote, one of each kind
 * (tests/interop/checkpoints/ckpt_cases.py): BF16_Optimizer, round-robin and aligned flat buffers,
 * sub-groups, flat and listed masters of stage 0, buffers, universal folders of both families.
 * Masters, states, buffers and frozen parameters are what DeepSpeed had in memory. CZ_CKPT_CASES
 * names a folder with a larger set. */
#include "checkpoint/read/checkpoint.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"

#include <string.h>

static const char *cases_dir(void)
{
    const char *named = getenv("CZ_CKPT_CASES");
    return named ? named : test_fixture("checkpoints/expected");
}

static void case_path(const char *name, char *path, size_t n)
{
    snprintf(path, n, "%s/%s", cases_dir(), name);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* ---- against what DeepSpeed had in memory ---------------------------------------------------- */

static int what_of(const struct ckpt *ck, const char *what, size_t n)
{
    static const char *const weights[] = {"master", "frozen", "buffer"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(weights); i++)
        if (strlen(weights[i]) == n && memcmp(weights[i], what, n) == 0) return CKPT_MASTER;
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (size_t s = 0; s < info->n_states; s++)
        if (strlen(info->states[s]) == n && memcmp(info->states[s], what, n) == 0)
            return CKPT_STATE_0 + (int)s;
    ck_abort_msg("no state %.*s", (int)n, what);
    return -1;
}

static enum ckpt_kind kind_of(const char *expected)
{
    if (begins(expected, "buffer.")) return CKPT_BUFFER;
    return begins(expected, "frozen.") ? CKPT_FROZEN : CKPT_TRAINED;
}

static void check_one(const struct ckpt *ck, const struct safetensors *expected,
                      const struct safetensors_info *info)
{
    const char *dot = strchr(info->name, '.');
    size_t idx = ckpt_find(ck, dot + 1);
    ck_assert_msg(idx < ckpt_count(ck), "no %s", info->name);
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    int what = what_of(ck, info->name, (size_t)(dot - info->name));
    ck_assert_int_eq(t->kind, kind_of(info->name));
    ck_assert_uint_eq((size_t)t->ndim, info->ndim);
    for (int d = 0; d < t->ndim; d++) ck_assert_int_eq(t->shape[d], info->shape[d]);
    const struct pickle_dtype *dtype = ckpt_dtype(ck, idx, what);
    ck_assert_msg(dtype->has_base, "%s", dtype->torch_name);
    ck_assert_int_eq(safetensors_dtype_from_base(dtype->base), info->dtype);
    unsigned char *want = malloc((size_t)info->nbytes + 1),
                  *have = malloc((size_t)info->nbytes + 1);
    ck_assert(want && have);
    ck_ok(safetensors_read(expected, info, 0, (size_t)info->numel, want));
    ck_ok(ckpt_read_raw(ck, idx, what, 0, (size_t)t->numel, have));
    ck_assert_msg(memcmp(want, have, (size_t)info->nbytes) == 0, "%s differs", info->name);
    free(want);
    free(have);
}

static void check_case(const struct ckpt *ck, const char *path)
{
    char file[1200];
    struct safetensors *expected;
    snprintf(file, sizeof file, "%s/expected.safetensors", path);
    ck_ok(safetensors_open(file, &expected));
    size_t n_whole = 0;
    for (size_t i = 0; i < safetensors_count(expected); i++) {
        const struct safetensors_info *info = safetensors_at(expected, i);
        check_one(ck, expected, info);
        n_whole += begins(info->name, "master.") || begins(info->name, "frozen.") ||
                   begins(info->name, "buffer.");
    }
    ck_assert_uint_eq(ckpt_count(ck), n_whole);
    ck_assert_uint_eq(ckpt_find(ck, "out.weight"), 0); /* tied to the first */
    ck_assert_str_eq(ckpt_at(ck, 0)->name, "emb.weight");
    ck_assert_uint_eq(ckpt_get_info(ck)->n_absent, 0);
    bool has_groups = !strstr(path, "s2-elastic"); /* it saves none */
    for (size_t g = 0; g < ckpt_get_info(ck)->n_groups; g++)
        ck_assert((ckpt_param_group(ck, g) != NULL) == has_groups);
    safetensors_close(expected);
}

/* Two kinds do not open, and say why. */
static bool is_refused(const char *name, cz_status st)
{
    if (strcmp(name, "s0-fp32-groups") == 0) {
        ck_assert_int_eq(st, CZ_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "its weights can be read"));
        return true;
    }
    if (strcmp(name, "u2-rr") == 0) {
        ck_assert_int_eq(st, CZ_CORRUPT);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "round_robin_gradients"));
        return true;
    }
    return false;
}

START_TEST(every_kind_holds_what_deepspeed_had)
{
    struct ckpt_list list;
    size_t n_checked = 0;
    ck_ok(ckpt_list_files(cases_dir(), "", &list));
    for (size_t i = 0; i < list.n; i++) {
        char path[1024];
        struct ckpt *ck;
        case_path(list.names[i], path, sizeof path);
        const struct ckpt_open_options options = {.dir = path};
        cz_status st = ckpt_open(&options, &ck);
        n_checked++;
        if (is_refused(list.names[i], st)) continue;
        ck_assert_msg(st == CZ_OK, "%s: %s", list.names[i], cz_last_error());
        check_case(ck, path);
        ckpt_close(ck);
    }
    ckpt_list_free(&list);
    ck_assert_uint_ge(n_checked, 8);
}
END_TEST

/* ---- what is special about some -------------------------------------------------------------- */

static struct ckpt *open_case(const char *name, const struct ckpt_open_options *options)
{
    char path[1024];
    struct ckpt *ck;
    struct ckpt_open_options with_dir = *options;
    case_path(name, path, sizeof path);
    with_dir.dir = path;
    ck_ok(ckpt_open(&with_dir, &ck));
    return ck;
}

START_TEST(universal_folders_say_what_they_are)
{
    static const char *const names[] = {"u2", "u3"};
    for (int i = 0; i < 2; i++) {
        const struct ckpt_open_options options = {.universal = true};
        struct ckpt *ck = open_case(names[i], &options);
        const struct ckpt_info *info = ckpt_get_info(ck);
        ck_assert(info->is_universal && info->has_states);
        ck_assert_int_eq(info->stage, 2 + i);
        ck_assert_int_eq(info->world_size, 3);
        ck_assert_uint_eq(info->n_groups, 2);
        ck_assert_uint_eq(info->n_states, 2);
        ck_assert_str_eq(info->tag, "t3");
        for (size_t g = 0; g < 2; g++) ck_assert_int_eq(ckpt_group_step(ck, g), 3);
        ck_assert_uint_eq(ckpt_at(ck, ckpt_find(ck, "l1.weight"))->group, 0);
        ck_assert_uint_eq(ckpt_at(ck, ckpt_find(ck, "l1.bias"))->group, 1);
        ckpt_close(ck);
    }
}
END_TEST

static void shell(const char *command)
{
    ck_assert_int_eq(system(command), 0);
}

/* Rank 1's copy of the model file is gone: its part of the frozen parameters is nowhere else. */
START_TEST(a_slimmed_universal_folder_names_what_it_lacks)
{
    char command[2048], from[1024], dir[64];
    struct ckpt *ck;
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    case_path("u3", from, sizeof from);
    snprintf(command, sizeof command, "cp -r '%s'/. %s && rm %s/t3/zero_pp_rank_1_*", from, dir,
             dir);
    shell(command);
    struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    const struct ckpt_info *info = ckpt_get_info(ck);
    ck_assert_uint_eq(info->n_absent, 2);
    ck_assert_str_eq(info->absent[0], "fz.weight");
    ck_assert_str_eq(info->absent[1], "fz.bias");
    ck_assert_uint_eq(ckpt_find(ck, "fz.weight"), ckpt_count(ck));
    ckpt_close(ck);
    snprintf(command, sizeof command, "rm %s/t3/zero/optimizer_state.pt", dir);
    shell(command);
    ck_fails(ckpt_open(&options, &ck), CZ_NOTFOUND);
    options.weights_only = true;
    ck_ok(ckpt_open(&options, &ck));
    ckpt_close(ck);
    snprintf(command, sizeof command, "rm %s/t3/zero/l2.weight/fp32.pt", dir);
    shell(command);
    ck_fails(ckpt_open(&options, &ck), CZ_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "zero/l2.weight/fp32.pt"));
    test_tmp_remove(dir);
}
END_TEST

/* Sub-groups that were swapped to NVMe are in copies of the swap files, which the tag must hold. */
START_TEST(a_swapped_sub_group_without_its_copy_is_named)
{
    char command[2048], from[1024], dir[64];
    struct ckpt *ck;
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    case_path("s3-swapped", from, sizeof from);
    snprintf(command, sizeof command,
             "cp -r '%s'/. %s && cd %s/t3/offloaded_tensors/rank01 && truncate -s 4 exp_avg-*",
             from, dir, dir);
    shell(command);
    struct ckpt_open_options options = {.dir = dir};
    ck_fails(ckpt_open(&options, &ck), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "rank01/exp_avg-"));
    /* as many bytes as its elements need open; one element less does not */
    unsigned long long numel = 0;
    const char *says = strstr(cz_last_error(), "too short for ");
    ck_assert_ptr_nonnull(says);
    ck_assert_int_eq(sscanf(says, "too short for %llu", &numel), 1);
    for (unsigned long long less = 0; less < 2; less++) {
        snprintf(command, sizeof command,
                 "truncate -s %llu %s/t3/offloaded_tensors/rank01/exp_avg-*", 4 * (numel - less),
                 dir);
        shell(command);
        cz_status st = ckpt_open(&options, &ck);
        ck_assert_int_eq(st, less == 0 ? CZ_OK : CZ_CORRUPT);
        if (st == CZ_OK) ckpt_close(ck);
    }
    options.weights_only = true;
    ck_ok(ckpt_open(&options, &ck));
    ckpt_close(ck);
    snprintf(command, sizeof command, "rm -r %s/t3/offloaded_tensors", dir);
    shell(command);
    ck_fails(ckpt_open(&options, &ck), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "offloaded_tensors/rank00/"));
    test_tmp_remove(dir);
}
END_TEST

/* Elements of the module's order, the script's order: buffers, frozen, then flat order. */
START_TEST(orders_are_the_models_and_the_scripts)
{
    static const char *const model[] = {
        "emb.weight", "l1.weight", "l1.bias",   "fz.weight",       "fz.bias",
        "bn.weight",  "bn.bias",   "l2.weight", "bn.running_mean", "bn.num_batches_tracked"};
    /* Round-robin over two ranks, group by group. */
    static const char *const script[] = {"bn.running_mean", "bn.num_batches_tracked",
                                         "fz.weight",       "fz.bias",
                                         "emb.weight",      "l2.weight",
                                         "l1.weight",       "l1.bias",
                                         "bn.bias",         "bn.weight"};
    const struct ckpt_open_options options = {0};
    struct ckpt *ck = open_case("s2-rr", &options);
    size_t order[16];
    ck_assert_uint_eq(ckpt_count(ck), CZ_ARRAY_LEN(model));
    ckpt_script_order(ck, order);
    for (size_t i = 0; i < CZ_ARRAY_LEN(model); i++) {
        ck_assert_str_eq(ckpt_at(ck, i)->name, model[i]);
        ck_assert_str_eq(ckpt_at(ck, order[i])->name, script[i]);
    }
    ckpt_close(ck);
}
END_TEST

TEST_MAIN("checkpoint/ckpt_cases", every_kind_holds_what_deepspeed_had,
          universal_folders_say_what_they_are, a_slimmed_universal_folder_names_what_it_lacks,
          a_swapped_sub_group_without_its_copy_is_named, orders_are_the_models_and_the_scripts)
