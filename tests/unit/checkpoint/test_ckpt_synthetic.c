/* Checkpoints of every stage, world size and precision, written from known values, open as those
 * values: masters, states, low-precision weights, frozen ones, ties, groups. */
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "tests/support/checkpoint/sparse_ckpt.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

#include <pthread.h>
#include <sys/resource.h>

/* ---- a folder -------------------------------------------------------------------------------- */

static void save_manifest(const char *dir, const struct manifest *m)
{
    char *text, path[256];
    size_t nbytes;
    ck_ok(manifest_to_json(m, &text, &nbytes));
    snprintf(path, sizeof path, "%s/%s", dir, CKPT_MANIFEST);
    ck_ok(file_save(path, text, nbytes));
    free(text);
}

static const char *write_folder(const struct rig *r, bool with_manifest)
{
    const char *dir = test_tmp_make_fast();
    struct manifest m;
    manifest_init(&m);
    m.stage = r->c.stage;
    m.world_size = r->c.world_size;
    rig_write(r, dir, with_manifest ? &m : NULL);
    if (with_manifest) save_manifest(dir, &m);
    manifest_free(&m);
    return dir;
}

/* ---- what must be in it ---------------------------------------------------------------------- */

static void check_what(const struct rig *r, const struct ckpt *ck, size_t idx, int what,
                       size_t param_idx, size_t value_of, enum cz_dtype dtype)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    float have[2048];
    size_t numel = (size_t)t->numel;
    ck_assert_uint_le(numel, CZ_ARRAY_LEN(have));
    ck_ok(ckpt_read(ck, idx, what, 0, numel, have));
    for (size_t i = 0; i < numel; i++) {
        float want = rig_rounded(rig_value(value_of, param_idx, i), dtype);
        if (have[i] != want)
            ck_abort_msg("stage %d, %d ranks: %s (%d): element %zu is %g, not %g", r->c.stage,
                         r->c.world_size, t->name, what, i, (double)have[i], (double)want);
    }
}

static void check_param(const struct rig *r, const struct ckpt *ck, size_t param_idx)
{
    const struct param_info *info = &r->table.params[param_idx];
    size_t idx = ckpt_find(ck, info->name);
    if (r->c.exclude_frozen && !info->trainable) {
        ck_assert_uint_eq(idx, ckpt_count(ck));
        return;
    }
    ck_assert_msg(idx < ckpt_count(ck), "no %s", info->name);
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    ck_assert_int_eq(t->kind, info->trainable ? CKPT_TRAINED : CKPT_FROZEN);
    ck_assert_int_eq(t->ndim, info->ndim);
    for (int d = 0; d < t->ndim; d++) ck_assert_int_eq(t->shape[d], info->shape[d]);
    check_what(r, ck, idx, CKPT_MASTER, param_idx, RIG_WHAT_MASTER,
               info->trainable ? DTYPE_F32 : r->c.dtype);
    if (r->c.stage < 3 || !info->trainable)
        check_what(r, ck, idx, CKPT_MODULE, param_idx, RIG_WHAT_MASTER, r->c.dtype);
    if (!info->trainable) return;
    ck_assert_uint_eq(t->group, r->group_of[param_idx]);
    for (size_t s = 0; s < 2; s++) {
        ck_assert(ckpt_has_state(ck, idx, s) == (r->c.step > 0));
        if (r->c.step > 0)
            check_what(r, ck, idx, CKPT_STATE_0 + (int)s, param_idx, RIG_WHAT_MASTER + 1 + s,
                       DTYPE_F32);
    }
}

static void check_opens(const struct rig *r, const struct ckpt_open_options *options, bool is_ours)
{
    struct ckpt *ck;
    ck_ok(ckpt_open(options, &ck));
    const struct ckpt_info *info = ckpt_get_info(ck);
    ck_assert_int_eq(info->stage, r->c.stage);
    ck_assert_int_eq(info->world_size, r->c.world_size);
    ck_assert_uint_eq(info->n_groups, r->n_groups);
    ck_assert(info->has_states == (r->c.step > 0));
    ck_assert(info->is_ours == is_ours);
    for (size_t g = 0; g < r->n_groups; g++)
        ck_assert_int_eq(ckpt_group_step(ck, g), r->c.step > 0 ? r->c.step : -1);
    for (size_t i = 0; i < r->table.n_params; i++) check_param(r, ck, i);
    size_t n_frozen = r->c.frozen ? 2 : 0, n = r->table.n_params;
    ck_assert_uint_eq(ckpt_count(ck), r->c.exclude_frozen ? n - n_frozen : n);
    ck_assert_uint_eq(info->n_absent, 0); /* excluded ones are not in `module` either */
    if (r->c.tied) {
        size_t head = ckpt_find(ck, "head.weight");
        ck_assert_uint_eq(head, 0);
        ck_assert_uint_eq(ckpt_at(ck, 0)->n_aliases, 1);
    }
    ckpt_close(ck);
}

static void check_folder(const struct rig *r, const char *dir, bool is_ours)
{
    const struct ckpt_open_options options = {.dir = dir};
    check_opens(r, &options, is_ours);
}

static void check_case(const struct rig_case *c, bool with_manifest)
{
    struct rig r;
    rig_init(&r, c);
    const char *dir = write_folder(&r, with_manifest);
    check_folder(&r, dir, with_manifest);
    test_tmp_remove(dir);
    rig_free(&r);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Seven variants of a model, none of them plain in everything. */
static struct rig_case variant(int stage, int world_size, int v)
{
    struct rig_case c = {.stage = stage,
                         .world_size = world_size,
                         .dtype = dtypes[(v + world_size) % 3],
                         .step = 12,
                         .tied = v % 2 == 0};
    if (v == 1) c.two_groups = true;
    if (v == 2) c.frozen = true;
    if (v == 3) c.two_groups = c.frozen = true, c.sub_group_size = 20;
    if (v == 4) c.round_robin = stage == 1 || stage == 2, c.sub_group_size = 1;
    if (v == 5) c.param_align = stage == 1 || stage == 2 ? 8 : 0, c.step = world_size % 2;
    if (v == 6) c.frozen = c.exclude_frozen = true;
    return c;
}

static void check_world_sizes(int stage, int first, int last)
{
    for (int W = first; W <= last; W++)
        for (int v = 0; v < 7; v++) {
            const struct rig_case c = variant(stage, W, v);
            check_case(&c, stage == 3 && v % 2 == 0);
        }
}

START_TEST(stage_1_opens_whole)
{
    check_world_sizes(1, 1, 8);
}
END_TEST

START_TEST(stage_2_opens_whole)
{
    check_world_sizes(2, 1, 8);
}
END_TEST

START_TEST(stage_3_opens_whole)
{
    check_world_sizes(3, 1, 5);
}
END_TEST

START_TEST(stage_3_of_many_ranks_opens_whole)
{
    check_world_sizes(3, 6, 8);
}
END_TEST

/* Masters per parameter and flat, with several groups and frozen ones: which master is whose is
 * told by values. */
START_TEST(stage_0_opens_whole)
{
    for (int v = 0; v < 7; v++)
        for (int d = 1; d < 3; d++)
            for (int fused = 0; fused < 2; fused++) {
                struct rig_case c = variant(0, 2, v);
                c.dtype = dtypes[d];
                c.fused = fused != 0;
                check_case(&c, false);
                check_case(&c, true);
            }
}
END_TEST

START_TEST(stage_0_in_fp32_opens_whole)
{
    for (int v = 0; v < 7; v++) {
        struct rig_case c = variant(0, 1, v);
        c.dtype = DTYPE_F32;
        check_case(&c, true);
        bool by_shapes = v != 2 && v != 3; /* frozen ones among equal shapes */
        if (by_shapes) check_case(&c, false);
    }
}
END_TEST

/* What stands for the shape of the first parameter. */
enum shape_form { SHAPE_SIZE, SHAPE_TUPLE, SHAPE_LIST, SHAPE_INT, SHAPE_TEXT, SHAPE_OF_TEXT };

static void put_shape(struct pickle_writer *w, const struct param_info *p, enum shape_form form)
{
    switch (form) {
    case SHAPE_SIZE: pickle_put_size(w, p->shape, p->ndim); return;
    case SHAPE_INT: pickle_put_int(w, 35); return;
    case SHAPE_TEXT: pickle_put_string(w, "35"); return;
    case SHAPE_LIST: pickle_list_begin(w); break;
    default: pickle_tuple_begin(w);
    }
    for (int d = 0; d < p->ndim; d++) {
        if (form == SHAPE_OF_TEXT)
            pickle_put_string(w, "5");
        else
            pickle_put_int(w, p->shape[d]);
    }
    if (form == SHAPE_LIST)
        pickle_list_end(w);
    else
        pickle_tuple_end(w);
}

/* A rank's model file of stage 3 anew, with the shapes of all sub-groups in one dictionary. */
static void merge_shapes(const struct rig *r, const char *dir, int rank, bool in_a_list,
                         enum shape_form form)
{
    char name[64];
    struct sparse_zip zip;
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    sparse_key_empty(w, "module");
    pickle_put_string(w, "buffer_names");
    pickle_list_begin(w);
    pickle_list_end(w);
    pickle_put_string(w, "param_shapes");
    if (in_a_list) pickle_list_begin(w);
    pickle_ordered_dict_begin(w);
    for (size_t g = 0; g < r->n_groups; g++)
        for (size_t i = 0; i < r->shard[g].n_params; i++) {
            const struct param_info *p = &r->table.params[r->shard[g].params[i].param_idx];
            pickle_put_string(w, p->name);
            put_shape(w, p, g == 0 && i == 0 ? form : SHAPE_SIZE);
        }
    pickle_dict_end(w);
    if (in_a_list) pickle_list_end(w);
    sparse_key_empty(w, "frozen_param_shapes");
    sparse_key_empty(w, "shared_params");
    sparse_key_empty(w, "frozen_param_fragments");
    sparse_key_int(w, "global_steps", 12);
    sparse_key_int(w, "dp_world_size", r->c.world_size);
    sparse_key_int(w, "mp_world_size", 1);
    pickle_put_string(w, "ds_version");
    pickle_put_string(w, CKPT_DS_VERSION);
    pickle_dict_end(w);
    snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
    sparse_start(&zip, dir, name, w);
    sparse_finish(&zip);
}

/* Sub-groups are then filled in turn, each to its flat tensor's length exactly. */
START_TEST(one_dictionary_fills_the_sub_groups_in_turn)
{
    for (int v = 0; v < 12; v++) {
        const struct rig_case c = {.stage = 3,
                                   .world_size = 1 + v % 3,
                                   .dtype = dtypes[v % 3],
                                   .two_groups = v % 2 == 1,
                                   .sub_group_size = v < 4   ? 1
                                                     : v < 8 ? 20
                                                             : 1000,
                                   .step = 12};
        struct rig r;
        rig_init(&r, &c);
        const char *dir = write_folder(&r, false);
        check_folder(&r, dir, false);
        const enum shape_form form = (enum shape_form)(SHAPE_SIZE + v % 3);
        for (int rank = 0; rank < c.world_size; rank++)
            merge_shapes(&r, dir, rank, v % 4 < 2, form);
        check_folder(&r, dir, false);
        test_tmp_remove(dir);
        rig_free(&r);
    }
}
END_TEST

START_TEST(what_is_no_shape_is_refused)
{
    static const enum shape_form forms[] = {SHAPE_INT, SHAPE_TEXT, SHAPE_OF_TEXT};
    const struct rig_case c = {
        .stage = 3, .world_size = 1, .dtype = DTYPE_BF16, .sub_group_size = 1000, .step = 12};
    for (size_t i = 0; i < CZ_ARRAY_LEN(forms); i++) {
        struct rig r;
        struct ckpt *ck;
        rig_init(&r, &c);
        const char *dir = write_folder(&r, false);
        const struct ckpt_open_options options = {.dir = dir};
        merge_shapes(&r, dir, 0, true, forms[i]);
        ck_fails(ckpt_open(&options, &ck), CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), "' is not a shape"), "%s", cz_last_error());
        test_tmp_remove(dir);
        rig_free(&r);
    }
}
END_TEST

static size_t group_by_rig(const char *name, void *user)
{
    const struct rig *r = user;
    size_t idx;
    ck_ok(param_table_find(&r->table, name, &idx));
    return r->table.params[idx].trainable ? r->group_of[idx] : SIZE_MAX;
}

static size_t group_of_nobody(const char *name, void *user)
{
    (void)name, (void)user;
    return 0;
}

/* States of two parameters with equal shapes, one of which is frozen: guessing would be silent
 * damage. */
START_TEST(states_that_could_be_anyones_are_refused)
{
    const struct rig_case c = {
        .stage = 0, .world_size = 1, .frozen = true, .two_groups = true, .step = 3};
    struct rig r;
    struct ckpt *ck;
    rig_init(&r, &c);
    const char *dir = write_folder(&r, false);
    struct ckpt_open_options options = {.dir = dir};
    ck_fails(ckpt_open(&options, &ck), CZ_UNSUPPORTED);
    options.group_of = group_by_rig; /* the caller's optimizer tells */
    options.user = &r;
    check_opens(&r, &options, false);
    options.group_of = group_of_nobody; /* another grouping does not */
    ck_fails(ckpt_open(&options, &ck), CZ_UNSUPPORTED);
    options.weights_only = true;
    ck_ok(ckpt_open(&options, &ck));
    ck_assert_uint_eq(ckpt_count(ck), r.table.n_params);
    for (size_t i = 0; i < r.table.n_params; i++)
        check_what(&r, ck, ckpt_find(ck, r.table.params[i].name), CKPT_MASTER, i, RIG_WHAT_MASTER,
                   DTYPE_F32);
    ckpt_close(ck);
    test_tmp_remove(dir);
    rig_free(&r);
}
END_TEST

/* docs/deepspeed-behaviour.md, "Flat buffers": elements cross ranks at the partitions' borders. */
START_TEST(runs_end_at_partitions)
{
    const struct rig_case c = {.stage = 1, .world_size = 3, .frozen = true, .two_groups = true};
    struct rig r;
    struct ckpt *ck;
    struct ckpt_run run;
    rig_init(&r, &c);
    const char *dir = write_folder(&r, false);
    const struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    size_t l1 = ckpt_find(ck, "h.0.l1.weight"); /* emb 35, l1 45, out 45 over partitions of 42 */
    ck_ok(ckpt_run(ck, l1, CKPT_MASTER, 0, &run));
    ck_assert_uint_eq(run.numel, 7);
    uint64_t first_file = run.file_idx;
    ck_ok(ckpt_run(ck, l1, CKPT_MASTER, 7, &run));
    ck_assert_uint_eq(run.numel, 38);
    ck_assert_uint_ne(run.file_idx, first_file);
    ck_ok(ckpt_run(ck, l1, CKPT_MASTER, 40, &run));
    ck_assert_uint_eq(run.numel, 5);
    size_t out = ckpt_find(ck, "out.weight");
    ck_ok(ckpt_run(ck, out, CKPT_MASTER, 0, &run));
    ck_assert_uint_eq(run.numel, 4);
    ck_ok(ckpt_run(ck, out, CKPT_MASTER, 4, &run));
    ck_assert_uint_eq(run.numel, 41);
    ckpt_close(ck);
    test_tmp_remove(dir);
    rig_free(&r);
}
END_TEST

/* Far more ranks than descriptors: no more than CKPT_FILES_IDLE_MAX and rank 0's two stay open. */
START_TEST(many_ranks_need_few_descriptors)
{
    const struct rig_case c = {.stage = 3, .world_size = 150, .dtype = DTYPE_BF16, .step = 2};
    struct rig r;
    rig_init(&r, &c);
    const char *dir = write_folder(&r, false);
    struct rlimit limit = {.rlim_cur = CKPT_FILES_IDLE_MAX + 16, .rlim_max = 4096};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    check_folder(&r, dir, false);
    test_tmp_remove(dir);
    rig_free(&r);
}
END_TEST

struct reader {
    const struct ckpt *ck;
    const struct rig *rig;
    bool wrong;
};

/* Every element of every parameter, one by one: files are opened and closed all the time. */
static void *read_all(void *user)
{
    struct reader *reader = user;
    for (size_t i = 0; i < reader->rig->table.n_params; i++) {
        const struct param_info *info = &reader->rig->table.params[i];
        size_t idx = ckpt_find(reader->ck, info->name);
        for (size_t e = 0; e < info->numel; e++) {
            float have = 0;
            cz_status st = ckpt_read(reader->ck, idx, CKPT_MASTER, e, 1, &have);
            if (st != CZ_OK || have != rig_value(RIG_WHAT_MASTER, i, e)) reader->wrong = true;
        }
    }
    return NULL;
}

START_TEST(several_threads_read_one_checkpoint)
{
    const struct rig_case c = {.stage = 3, .world_size = 100, .dtype = DTYPE_BF16, .step = 1};
    struct rig r;
    struct ckpt *ck;
    pthread_t threads[4];
    struct reader readers[4];
    rig_init(&r, &c);
    const char *dir = write_folder(&r, false);
    const struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    for (int i = 0; i < 4; i++) {
        readers[i] = (struct reader){.ck = ck, .rig = &r};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(!readers[i].wrong);
    }
    ckpt_close(ck);
    test_tmp_remove(dir);
    rig_free(&r);
}
END_TEST

static void expect_other_save(const char *dir, bool weights_only, const char *part)
{
    struct ckpt *ck;
    ck_fails(ckpt_open(&(struct ckpt_open_options){.dir = dir, .weights_only = weights_only}, &ck),
             CZ_CORRUPT);
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "\"%s\" is not in: %s", part,
                  cz_last_error());
}

/* Whole and with the right checksum, but not what the shards say. */
START_TEST(a_manifest_of_another_save_is_refused)
{
    for (int stage = 0; stage <= 3; stage++) {
        const struct rig_case c = {.stage = stage, .world_size = 2, .dtype = DTYPE_BF16, .step = 3};
        struct rig r;
        struct manifest m;
        char part[128];
        const char *dir = test_tmp_make_fast();
        rig_init(&r, &c);
        manifest_init(&m);
        m.stage = stage;
        m.world_size = 2;
        rig_write(&r, dir, &m);
        for (int weights_only = 0; weights_only < 2; weights_only++) {
            m.world_size = 3;
            save_manifest(dir, &m);
            expect_other_save(dir, weights_only,
                              "its world_size is 3, but the shards are those of 2 ranks");
            m.world_size = 2;
            m.stage = (stage + 1) % 4;
            save_manifest(dir, &m);
            snprintf(part, sizeof part, "its stage is %d, but the shards are those of stage %d",
                     m.stage, stage);
            expect_other_save(dir, weights_only, part);
            m.stage = stage;
        }
        save_manifest(dir, &m);
        check_folder(&r, dir, true);
        manifest_free(&m);
        test_tmp_remove(dir);
        rig_free(&r);
    }
}
END_TEST

TEST_MAIN("checkpoint/ckpt_synthetic", stage_1_opens_whole, stage_2_opens_whole,
          stage_3_opens_whole, stage_3_of_many_ranks_opens_whole,
          one_dictionary_fills_the_sub_groups_in_turn, stage_0_opens_whole,
          stage_0_in_fp32_opens_whole, states_that_could_be_anyones_are_refused,
          runs_end_at_partitions, many_ranks_need_few_descriptors,
          several_threads_read_one_checkpoint, a_manifest_of_another_save_is_refused,
          what_is_no_shape_is_refused)
