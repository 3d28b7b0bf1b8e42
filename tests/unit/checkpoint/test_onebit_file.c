/* Claims: the file of a rank's compression errors holds them in the order of its segments, padding
 * too, beside numbers under DeepSpeed's state keys; the model file of stage 0 holds rank 0's again,
 * in the states of the tensors that are compressed one by one; a checkpoint with them is still read
 * as one. A file that is missing, another rank's, of another save, of a newer version or not one at
 * all is refused with a sentence. */
#include "checkpoint/read/checkpoint.h"
#include "checkpoint/read/onebit_file.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STEP 9

struct onebit_rig {
    struct rig r;
    struct ckpt_onebit onebit;
    struct ckpt_segment segments[RIG_PARAMS_MAX];
    size_t params[RIG_PARAMS_MAX]; /* of all segments */
    struct ckpt_onebit_tensor tensors[RIG_PARAMS_MAX];
    double lrs[RIG_GROUPS_MAX];
};

/* Of element `at` of a source, on a rank. */
static float value_of(const struct ckpt_job *job, int rank, size_t at)
{
    size_t which = job->source < CKPT_FROM_MOMENTUM ? job->segment_idx : job->param_idx;
    return rig_value(20 + (size_t)rank * 8 + job->source, which, at);
}

static void add_segment(struct onebit_rig *o, size_t first, size_t n)
{
    size_t unit = (size_t)o->r.c.world_size * 8 * (size_t)o->r.c.world_size;
    struct ckpt_segment *s = &o->segments[o->onebit.n_segments++];
    *s = (struct ckpt_segment){.param_idx = &o->params[first], .n_params = n};
    for (size_t k = first; k < first + n; k++) s->numel += o->r.table.params[o->params[k]].numel;
    s->numel_padded = (s->numel + unit - 1) / unit * unit;
}

/* Trained parameters one by one, or a group at a time. */
static void onebit_init(struct onebit_rig *o, const struct rig_case *c, const char *optimizer)
{
    size_t n = 0;
    memset(o, 0, sizeof *o);
    rig_init(&o->r, c);
    o->onebit = (struct ckpt_onebit){.optimizer = optimizer, .segments = o->segments};
    for (size_t g = 0; g < o->r.n_groups; g++) {
        size_t first = n;
        for (size_t i = 0; i < o->r.table.n_params; i++) {
            if (o->r.group_of[i] != g) continue;
            o->params[n++] = i;
            if (c->dtype == DTYPE_F32) add_segment(o, n - 1, 1);
        }
        if (c->dtype != DTYPE_F32) add_segment(o, first, n - first);
        o->r.groups[g].step = STEP;
        o->r.groups[g].step_is_tensor = false;
    }
}

static void fill(const struct onebit_rig *o, int rank, const struct ckpt_job *job, void *dst)
{
    if (job->source < CKPT_FROM_WORKER_ERROR) {
        rig_fill(&o->r, rank, job, dst);
        return;
    }
    ck_assert(job->dtype == DTYPE_F32);
    for (size_t i = 0; i < job->numel; i++) ((float *)dst)[i] = value_of(job, rank, job->off + i);
}

static void write_rank(const struct onebit_rig *o, const char *dir, int rank)
{
    struct ckpt_write_options options = rig_options(&o->r, dir, rank);
    const struct manifest *part;
    struct ckpt_writer *w;
    options.onebit = &o->onebit;
    ck_ok(ckpt_writer_create(&options, &w));
    float *buf = malloc(CKPT_JOB_NUMEL * sizeof *buf);
    ck_assert_ptr_nonnull(buf);
    for (size_t i = 0; i < ckpt_writer_n_jobs(w); i++) {
        fill(o, rank, ckpt_writer_job(w, i), buf);
        ck_ok(ckpt_writer_put(w, i, buf));
    }
    ck_ok(ckpt_writer_finish(w, &part));
    char name[CKPT_NAME_MAX];
    ckpt_onebit_name(rank, name);
    ck_assert_ptr_nonnull(manifest_find(part, name));
    ckpt_writer_destroy(w);
    free(buf);
}

static void write_all(const struct onebit_rig *o, const char *dir)
{
    for (int rank = 0; rank < o->r.c.world_size; rank++) write_rank(o, dir, rank);
}

static struct ckpt_onebit_want want_of(const struct onebit_rig *o, const char *dir, int rank)
{
    return (struct ckpt_onebit_want){.tag_dir = dir,
                                     .optimizer = o->onebit.optimizer,
                                     .rank = rank,
                                     .world_size = o->r.c.world_size,
                                     .step = STEP,
                                     .global_steps = 12};
}

static void check_error(const struct ckpt_onebit_file *f, size_t segment, bool is_server, int rank,
                        size_t numel)
{
    const struct ckpt_job job = {.source =
                                     is_server ? CKPT_FROM_SERVER_ERROR : CKPT_FROM_WORKER_ERROR,
                                 .segment_idx = segment};
    float *have = malloc(numel * sizeof *have);
    ck_assert_ptr_nonnull(have);
    ck_ok(ckpt_onebit_read(f, segment, is_server, 0, numel, have));
    for (size_t i = 0; i < numel; i++) ck_assert_float_eq(have[i], value_of(&job, rank, i));
    ck_fails(ckpt_onebit_read(f, segment, is_server, numel, 1, have), CZ_INVALID);
    free(have);
}

static void check_own_states(const struct onebit_rig *o, const struct ckpt_onebit_file *f, int rank)
{
    static const char *const keys[] = {"exp_avg", "momentum_accumulator"};
    float have[128];
    for (size_t i = 0; i < o->r.table.n_params; i++) {
        const struct param_info *p = &o->r.table.params[i];
        if (o->r.group_of[i] == o->r.n_groups) continue;
        for (size_t k = 0; k < 2; k++) {
            struct ckpt_job job = {.source = CKPT_FROM_MOMENTUM, .param_idx = i};
            if (k == 1) job.source = CKPT_FROM_MOVES;
            ck_ok(ckpt_onebit_read_state(f, p->name, keys[k], 0, p->numel, have));
            for (size_t e = 0; e < p->numel; e++)
                ck_assert_float_eq(have[e], value_of(&job, rank, e));
        }
    }
    ck_fails(ckpt_onebit_read_state(f, "nobody", "exp_avg", 0, 1, have), CZ_NOTFOUND);
}

static void check_rank(const struct onebit_rig *o, const char *dir, int rank)
{
    const struct ckpt_onebit_want want = want_of(o, dir, rank);
    struct ckpt_onebit_file *f;
    ck_ok(ckpt_onebit_open(&want, &f));
    ck_assert_uint_eq(ckpt_onebit_n_segments(f), o->onebit.n_segments);
    for (size_t s = 0; s < o->onebit.n_segments; s++) {
        const struct ckpt_segment *made = &o->segments[s];
        const struct ckpt_onebit_segment have = ckpt_onebit_segment_at(f, s);
        ck_assert_uint_eq(have.n_params, made->n_params);
        ck_assert_uint_eq(have.numel, made->numel);
        ck_assert_uint_eq(have.numel_padded, made->numel_padded);
        for (size_t k = 0; k < made->n_params; k++)
            ck_assert_str_eq(ckpt_onebit_param(f, s, k),
                             o->r.table.params[made->param_idx[k]].name);
        check_error(f, s, false, rank, made->numel_padded);
        check_error(f, s, true, rank, made->numel_padded / (size_t)o->r.c.world_size);
    }
    ck_assert(ckpt_onebit_has_states(f) == o->onebit.moves_alone);
    if (o->onebit.moves_alone) check_own_states(o, f, rank);
    ckpt_onebit_close(f);
}

static int64_t int_at(const struct pickle_node *dict, const char *key)
{
    const struct pickle_node *node = pickle_get(dict, key);
    ck_assert_msg(pickle_is(node, PICKLE_INT), "%s is no int", key);
    return node->integer;
}

static double float_at(const struct pickle_node *dict, const char *key)
{
    const struct pickle_node *node = pickle_get(dict, key);
    ck_assert_msg(pickle_is(node, PICKLE_FLOAT), "%s is no float", key);
    return node->real;
}

/* Rank 0's errors in the state of the tensor. */
static void check_model_error(const struct onebit_rig *o, const struct pt *pt,
                              const struct pickle_node *state, size_t segment)
{
    static const char *const keys[] = {"worker_error", "server_error"};
    const struct ckpt_segment *s = &o->segments[segment];
    float x;
    ck_assert_int_eq(int_at(state, "tensor_size"), (int64_t)s->numel);
    ck_assert_int_eq(int_at(state, "corrected_tensor_size"), (int64_t)s->numel_padded);
    ck_assert_int_eq(int_at(state, "server_chunk_size"),
                     (int64_t)s->numel_padded / o->r.c.world_size);
    for (size_t k = 0; k < 2; k++) {
        struct ckpt_job job = {.source = CKPT_FROM_WORKER_ERROR, .segment_idx = segment};
        if (k == 1) job.source = CKPT_FROM_SERVER_ERROR;
        const struct pickle_node *error = pickle_get(state, keys[k]);
        ck_assert(pickle_is(error, PICKLE_TENSOR) && error->tensor->ndim == 1);
        ck_assert_uint_eq(error->tensor->numel,
                          k == 0 ? s->numel_padded : s->numel_padded / (size_t)o->r.c.world_size);
        ck_ok(pt_read_f32(pt, error->tensor, error->tensor->numel - 1, 1, &x));
        ck_assert_float_eq(x, value_of(&job, 0, error->tensor->numel - 1));
    }
}

static const struct pickle_node *states_in(const struct pt *pt)
{
    const struct pickle_node *optimizer = pickle_get(pt_root(pt), "optimizer");
    const struct pickle_node *inner = pickle_get(optimizer, "optimizer_state_dict");
    return pickle_get(inner ? inner : optimizer, "state");
}

static struct pt *open_model(const char *dir)
{
    struct pt *pt;
    char *path = file_join(dir, "mp_rank_00_model_states.pt");
    ck_ok(pt_open(path, &pt));
    free(path);
    return pt;
}

/* Errors are no states: a state has an element per weight. */
static void check_view(const struct onebit_rig *o, const char *dir)
{
    struct ckpt *ck;
    ck_ok(ckpt_open(&(const struct ckpt_open_options){.dir = dir}, &ck));
    ck_assert_uint_eq(ckpt_get_info(ck)->n_states, o->r.groups[0].n_states);
    ck_assert_int_eq(ckpt_group_step(ck, 0), STEP);
    float have[128];
    for (size_t i = 0; i < o->r.table.n_params; i++) {
        if (o->r.group_of[i] == o->r.n_groups) continue;
        const struct param_info *p = &o->r.table.params[i];
        ck_ok(ckpt_read(ck, ckpt_find(ck, p->name), CKPT_STATE_0, 0, p->numel, have));
        for (size_t e = 0; e < p->numel; e++)
            ck_assert_float_eq(have[e], rig_value(RIG_WHAT_MASTER + 1, i, e));
    }
    ckpt_close(ck);
}

START_TEST(fp32_stage_0_as_deepspeed_has_it)
{
    const struct rig_case c = {.stage = 0, .world_size = 2, .tied = true};
    struct onebit_rig o;
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "OneBitAdam");
    write_all(&o, dir);
    for (int rank = 0; rank < 2; rank++) check_rank(&o, dir, rank);
    struct pt *pt = open_model(dir);
    const struct pickle_node *states = states_in(pt);
    ck_assert_uint_eq(states->n_pairs, o.onebit.n_segments);
    for (size_t i = 0; i < states->n_pairs; i++) {
        ck_assert_int_eq(int_at(states->pairs[i].value, "step"), STEP);
        check_model_error(&o, pt, states->pairs[i].value, i);
        ck_assert_uint_eq(states->pairs[i].value->n_pairs, 8);
    }
    pt_close(pt);
    check_view(&o, dir);
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(bf16_stage_0_by_groups_with_intervals)
{
    const struct rig_case c = {
        .stage = 0, .world_size = 3, .dtype = DTYPE_BF16, .fused = true, .two_groups = true};
    struct onebit_rig o;
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "ZeroOneAdam");
    o.onebit.has_intervals = true;
    o.onebit.var_interval = 4;
    o.onebit.local_step_counter = 3;
    o.onebit.lrs = o.lrs;
    o.lrs[1] = 0.125;
    o.onebit.moves_alone = true;
    write_all(&o, dir);
    for (int rank = 0; rank < 3; rank++) check_rank(&o, dir, rank);
    struct pt *pt = open_model(dir);
    const struct pickle_node *states = states_in(pt);
    ck_assert_uint_eq(states->n_pairs, 2);
    ck_assert_int_eq(int_at(states->pairs[0].value, "var_interval"), 4);
    ck_assert_int_eq(int_at(states->pairs[0].value, "local_step_counter"), 3);
    ck_assert_int_eq(int_at(states->pairs[0].value, "lrs"), 0);
    ck_assert_double_eq(float_at(states->pairs[1].value, "lrs"), 0.125);
    for (size_t i = 0; i < 2; i++) check_model_error(&o, pt, states->pairs[i].value, i);
    pt_close(pt);
    check_view(&o, dir);
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

/* One segment for everything, errors in the ranks' files only. */
START_TEST(lamb_has_values_per_tensor)
{
    const struct rig_case c = {.stage = 0, .world_size = 2, .two_groups = true};
    struct onebit_rig o;
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "OneBitLamb");
    size_t n = o.onebit.n_segments;
    o.onebit.n_segments = 0;
    add_segment(&o, 0, n);
    for (size_t i = 0; i < o.r.table.n_params; i++)
        o.tensors[i] = (struct ckpt_onebit_tensor){0.5 + (double)i, 1.25, 2 * (double)i};
    o.onebit.tensors = o.tensors;
    o.onebit.scaled = true;
    write_all(&o, dir);
    for (int rank = 0; rank < 2; rank++) check_rank(&o, dir, rank);
    struct pt *pt = open_model(dir);
    const struct pickle_node *states = states_in(pt);
    for (size_t i = 0; i < n; i++) {
        const struct pickle_node *state = states->pairs[i].value;
        ck_assert_double_eq(float_at(state, "lamb_coeff_freeze"), 0.5 + (double)o.params[i]);
        ck_assert_double_eq(float_at(state, "last_factor"), 1.25);
        ck_assert_double_eq(float_at(state, "scaling_coeff"), 2 * (double)o.params[i]);
        ck_assert_ptr_null(pickle_get(state, "worker_error"));
    }
    pt_close(pt);
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(stage_1_has_errors_beside_its_shards)
{
    const struct rig_case c = {.stage = 1, .world_size = 3, .dtype = DTYPE_F16};
    struct onebit_rig o;
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "OneBitAdam");
    write_all(&o, dir);
    for (int rank = 0; rank < 3; rank++) check_rank(&o, dir, rank);
    check_view(&o, dir);
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------
 */

static void expect_refusal(const struct ckpt_onebit_want *want, cz_status status, const char *part)
{
    struct ckpt_onebit_file *f;
    ck_fails(ckpt_onebit_open(want, &f), status);
    ck_assert_ptr_null(f);
    ck_assert_msg(strstr(cz_last_error(), part), "%s; expected …%s…", cz_last_error(), part);
}

/* A small .pt in the place of rank 0's file. */
static void put_file(const char *dir, const char *format, int version)
{
    char name[CKPT_NAME_MAX];
    unsigned char *bytes;
    struct pickle_writer *p = pickle_writer_create();
    pickle_dict_begin(p);
    pickle_put_string(p, "format");
    pickle_put_string(p, format);
    pickle_put_string(p, "version");
    pickle_put_int(p, version);
    pickle_dict_end(p);
    ckpt_onebit_name(0, name);
    char *path = file_join(dir, name);
    struct pt_create_options options = {.path = path};
    ck_ok(pickle_writer_take(p, &bytes, &options.pickle_nbytes));
    options.pickle = bytes;
    struct pt_writer *w;
    struct pt_written written;
    ck_ok(pt_create(&options, &w));
    ck_ok(pt_finish(w, true, &written));
    pt_writer_destroy(w);
    pickle_writer_destroy(p);
    free(bytes);
    free(path);
}

START_TEST(another_file_is_refused)
{
    const struct rig_case c = {.stage = 1, .world_size = 2, .dtype = DTYPE_BF16};
    struct onebit_rig o;
    char from[256], to[256];
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "OneBitAdam");
    write_all(&o, dir);
    struct ckpt_onebit_want want = want_of(&o, dir, 0);
    want.step = 8;
    expect_refusal(&want, CZ_CORRUPT, "czero_onebit_rank_00000.pt: step is 9, not 8");
    want = want_of(&o, dir, 0);
    want.global_steps = 13;
    expect_refusal(&want, CZ_CORRUPT, "global_steps is 12, not 13");
    want = want_of(&o, dir, 0);
    want.world_size = 3;
    expect_refusal(&want, CZ_CORRUPT, "world_size is 2, not 3");
    want = want_of(&o, dir, 0);
    want.optimizer = "ZeroOneAdam";
    expect_refusal(&want, CZ_CORRUPT, "of the optimizer OneBitAdam, not of ZeroOneAdam");
    want = want_of(&o, dir, 2);
    expect_refusal(&want, CZ_CORRUPT, "czero_onebit_rank_00002.pt: is missing");

    snprintf(from, sizeof from, "%s/czero_onebit_rank_00001.pt", dir);
    snprintf(to, sizeof to, "%s/czero_onebit_rank_00000.pt", dir);
    ck_assert_int_eq(rename(from, to), 0);
    want = want_of(&o, dir, 0);
    expect_refusal(&want, CZ_CORRUPT, "rank is 1, not 0");
    put_file(dir, "czero 1-bit", 2);
    expect_refusal(&want, CZ_VERSION, "version 2");
    put_file(dir, "something else", 1);
    expect_refusal(&want, CZ_CORRUPT, "not a file of errors");
    ck_assert_int_eq(truncate(to, 100), 0);
    expect_refusal(&want, CZ_CORRUPT, "czero_onebit_rank_00000.pt");
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(segments_that_do_not_fit_are_refused)
{
    const struct rig_case c = {.stage = 1, .world_size = 2, .dtype = DTYPE_BF16};
    struct onebit_rig o;
    struct ckpt_writer *w;
    const char *dir = test_tmp_make();
    onebit_init(&o, &c, "OneBitAdam");
    o.segments[0].numel_padded++;
    struct ckpt_write_options options = rig_options(&o.r, dir, 0);
    options.onebit = &o.onebit;
    ck_fails(ckpt_writer_create(&options, &w), CZ_INVALID);
    rig_free(&o.r);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/onebit_file", fp32_stage_0_as_deepspeed_has_it,
          bf16_stage_0_by_groups_with_intervals, lamb_has_values_per_tensor,
          stage_1_has_errors_beside_its_shards, another_file_is_refused,
          segments_that_do_not_fit_are_refused)
