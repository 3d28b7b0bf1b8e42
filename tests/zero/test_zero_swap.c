/* Claims: masters, states and parameters that rest in a swap file come out with the same bytes as
 * in memory, at every stage, on every rank, whatever of them rests there and however it is
 * streamed; layers find the same parameters; single tensors, sources and restores do not see the
 * difference. */
#define ZERO_WORLD_SCALE 301 /* many tiles, and nothing begins with a block of the file */
#include "tests/support/zero_world.h"

enum { SECOND = 7 }; /* the number of a step's second micro-batch */

/* Bytes of a source, wherever it lies. */
static void read_source(struct world *w, enum zero_source source, size_t group, size_t state_idx,
                        size_t off, size_t numel, void *dst)
{
    struct zero_range ranges[2];
    size_t n = zero_source_ranges(w->z, source, group, state_idx, 0, off, numel, ranges), at = 0;
    for (size_t i = 0; i < n; i++) {
        ck_ok(zero_range_read(w->z, &ranges[i], (unsigned char *)dst + at));
        at += ranges[i].nbytes;
    }
}

static void same_source(struct world *a, struct world *b, enum zero_source source, size_t group,
                        size_t state_idx, size_t numel)
{
    static float x[TOTAL + 64], y[TOTAL + 64];
    size_t half = numel / 2; /* a second read that begins anywhere */
    read_source(a, source, group, state_idx, 0, numel, x);
    read_source(b, source, group, state_idx, 0, half, y);
    read_source(b, source, group, state_idx, half, numel - half, (unsigned char *)y + half * 4);
    ck_assert_mem_eq(x, y, numel * sizeof *x);
}

/* Masters and states of this rank's partitions are the same in both. */
static void same_own(struct world *a, struct world *b, const struct world_setting *s)
{
    for (size_t g = 0; g < (s->two_groups ? 2 : 1); g++) {
        const struct zero_layout layout = zero_group_layout(a->z, g);
        if (s->master_dtype == DTYPE_F32)
            same_source(a, b, ZERO_FROM_MASTERS, g, 0, layout.own_numel);
        for (size_t k = 0; k < layout.n_states; k++)
            same_source(a, b, ZERO_FROM_STATES, g, k, layout.own_numel);
    }
}

static void same_tensor(struct world *a, struct world *b, enum zero_what what, size_t k, size_t i)
{
    static float x[TOTAL], y[TOTAL];
    ck_ok(zero_read(a->z, what, k, i, 0, numels[i], x));
    ck_ok(zero_read(b->z, what, k, i, 0, numels[i], y));
    ck_assert_mem_eq(x, y, numels[i] * sizeof *x);
}

static void same_state(struct world *a, struct world *b, const struct world_setting *s)
{
    same_own(a, b, s);
    for (size_t i = 0; i < N_PARAMS && s->world_size == 1; i++) {
        same_tensor(a, b, ZERO_WEIGHT, 0, i);
        for (size_t k = 0; k < zero_group_layout(a->z, 0).n_states; k++)
            if (a->table.params[i].trainable) same_tensor(a, b, ZERO_STATE, k, i);
    }
}

/* A pass of both, layer by layer: what a layer finds is the same where this rank can know it. */
static void pass_both(struct world *a, struct world *b, const struct world_setting *s, uint32_t t)
{
    size_t size = dtype_size(s->dtype);
    bool adds = t == SECOND && zero_accumulates(a->z);
    ck_assert_int_eq(zero_accumulates(a->z), zero_accumulates(b->z));
    ck_ok(zero_pass_begin(a->z, ZERO_PASS_LAST));
    ck_ok(zero_pass_begin(b->z, ZERO_PASS_LAST));
    for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
        size_t u = visits[v].unit_idx;
        ck_ok(zero_unit_acquire(a->z, u));
        ck_ok(zero_unit_acquire(b->z, u));
        for (size_t k = 0; k < a->units[u].n; k++) {
            size_t i = a->units[u].param_idx[k];
            ck_assert_ptr_nonnull(zero_params(b->z)[i]);
            if (s->world_size == 1 || s->stage == 0)
                ck_assert_mem_eq(zero_params(a->z)[i], zero_params(b->z)[i], numels[i] * size);
        }
        if (visits[v].writes_grads) fill_unit(a, u, t, s->grad_dtype, adds);
        if (visits[v].writes_grads) fill_unit(b, u, t, s->grad_dtype, adds);
        if (visits[v].is_backward) ck_ok(zero_grads_ready(a->z, u));
        if (visits[v].is_backward) ck_ok(zero_grads_ready(b->z, u));
        ck_ok(zero_unit_release(a->z, u));
        ck_ok(zero_unit_release(b->z, u));
    }
    ck_ok(zero_pass_end(a->z));
    ck_ok(zero_pass_end(b->z));
}

static void boundary(struct world *w, uint32_t t)
{
    struct zero_scan scan;
    double norm;
    ck_ok(zero_reduce(w->z));
    ck_ok(zero_scan(w->z, &scan));
    ck_ok(zero_norm(w->z, scan.max_abs, &norm));
    ck_ok(zero_step(w->z, t, 4, 1.5));
    ck_ok(zero_gather(w->z));
    zero_grads_drop(w->z);
}

/* Gradients as they are collected are the same, before the boundary and after. */
static void same_grads(struct world *a, struct world *b, const struct world_setting *s)
{
    for (size_t i = 0; i < N_PARAMS && s->world_size == 1; i++)
        if (a->table.params[i].trainable) same_tensor(a, b, ZERO_GRAD, 0, i);
}

/* Three updates of both, the last of two micro-batches. */
static void train_both(struct world *a, struct world *b, const struct world_setting *s)
{
    for (uint32_t t = 1; t <= 3; t++) {
        pass_both(a, b, s, t);
        if (t == 3) pass_both(a, b, s, SECOND);
        same_grads(a, b, s);
        boundary(a, t);
        boundary(b, t);
    }
}

/* A state in memory and one with a swap file. */
static void make_both(struct world *memory, struct world *swapped, struct world_setting *s,
                      struct zero_swap swap)
{
    world_make(memory, *s);
    s->swap = swap;
    bool is_fast = s->stage != 2; /* in memory, or on a disk past the page cache */
    s->swap_dir = is_fast ? test_tmp_make_fast() : test_tmp_make();
    s->tile = 4096;
    world_make(swapped, *s);
}

/* Nothing stays behind. */
static void free_both(struct world *memory, struct world *swapped, const struct world_setting *s)
{
    world_free(swapped);
    world_free(memory);
    ck_assert_int_eq(rmdir(s->swap_dir), 0);
}

static void compare(struct world_setting s, struct zero_swap swap)
{
    struct world memory, swapped;
    make_both(&memory, &swapped, &s, swap);
    same_state(&memory, &swapped, &s); /* as loaded */
    train_both(&memory, &swapped, &s);
    same_state(&memory, &swapped, &s);
    free_both(&memory, &swapped, &s);
}

/* Which of the two rests in the file, how much of it, and whether it is pipelined. */
static const struct zero_swap swaps[] = {
    {.optimizer = true, .read_ahead = true, .write_behind = true},
    {.params = true, .read_ahead = true, .write_behind = true},
    {.optimizer = true, .params = true, .read_ahead = true, .write_behind = true},
    {.optimizer = true, .params = true},
    {.optimizer = true, .memory_share = 0.4, .write_behind = true},
    {.params = true, .params_in_memory = 16000, .read_ahead = true},
    {.optimizer = true, .grads = true, .read_ahead = true, .write_behind = true},
    {.optimizer = true, .params = true, .grads = true, .memory_share = 0.3, .read_ahead = true},
};

START_TEST(one_rank_computes_the_same)
{
    const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t k = 0; k < CZ_ARRAY_LEN(swaps); k++)
        for (int d = 0; d < 2; d++) {
            struct world_setting s = plain;
            s.dtype = s.grad_dtype = dtypes[d];
            s.stage = (int)(k + (size_t)d) % 4;
            s.two_groups = k % 2;
            s.freeze = k % 3 == 0;
            s.stage3.prefetch_numel = k % 2 ? 20000 : 0;
            s.stage3.param_persistence_threshold = 3000;
            s.stage3.model_persistence_threshold = k % 2 ? SIZE_MAX : 0;
            compare(s, swaps[k]);
        }
}
END_TEST

START_TEST(every_rank_computes_the_same)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(swaps); k++)
        for (int stage = 0; stage <= 3; stage++) {
            struct world_setting s = plain;
            s.dtype = s.grad_dtype = (k + (size_t)stage) % 2 ? DTYPE_F32 : DTYPE_BF16;
            s.stage = stage;
            s.world_size = 3;
            s.rank = (int)(k + (size_t)stage) % 3;
            s.two_groups = stage == 3;
            s.freeze = k % 3 == 1;
            s.overlap = true;
            s.bucket = 10000;
            s.stage3.prefetch_numel = 20000;
            s.stage3.param_persistence_threshold = k % 2 ? 3000 : 0;
            s.stage3.model_persistence_threshold = SIZE_MAX;
            compare(s, swaps[k]);
        }
}
END_TEST

START_TEST(every_optimizer_computes_the_same)
{
    const char *const optimizers[] = {"Lamb", "Lion", "Adagrad", "SGD"};
    for (size_t o = 0; o < CZ_ARRAY_LEN(optimizers); o++) {
        struct world_setting s = plain;
        s.optimizer = optimizers[o];
        s.dtype = s.grad_dtype = o % 2 ? DTYPE_F32 : DTYPE_BF16;
        s.two_groups = true;
        compare(s, swaps[2]);
    }
}
END_TEST

START_TEST(parameters_may_be_their_own_16_bit_masters)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct world_setting s = plain;
        s.dtype = s.grad_dtype = s.master_dtype = DTYPE_BF16;
        s.stage = stage;
        s.world_size = 2;
        s.rank = stage % 2;
        compare(s, swaps[2]);
    }
}
END_TEST

static cz_status restore_fetch(void *user, enum zero_what what, size_t state_idx, size_t param_idx,
                               size_t off, size_t numel, float *dst)
{
    (void)user;
    for (size_t i = 0; i < numel; i++)
        dst[i] = (float)(off + i) * 0.25f + (float)param_idx + (what == ZERO_STATE ? 7 : 0) +
                 (float)state_idx;
    return CZ_OK;
}

START_TEST(restores_and_single_tensors_reach_the_file)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct world_setting s = plain;
        struct world memory, swapped;
        float staging[500], x[300];
        s.dtype = s.grad_dtype = DTYPE_BF16;
        s.stage = stage;
        s.freeze = true;
        struct zero_swap swap = swaps[4];
        swap.params = true;
        make_both(&memory, &swapped, &s, swap);
        const struct zero_restore args = {
            .fetch = restore_fetch, .states = true, .staging = staging, .staging_numel = 500};
        ck_ok(zero_restore(memory.z, &args));
        ck_ok(zero_restore(swapped.z, &args));
        same_state(&memory, &swapped, &s);
        for (size_t i = 0; i < 300; i++) x[i] = (float)i * 0.125f;
        for (size_t i = 0; i < N_PARAMS; i++) {
            ck_ok(zero_write(memory.z, ZERO_WEIGHT, 0, i, 1001, 300, x));
            ck_ok(zero_write(swapped.z, ZERO_WEIGHT, 0, i, 1001, 300, x));
        }
        ck_ok(zero_write(memory.z, ZERO_STATE, 1, 3, 17, 300, x));
        ck_ok(zero_write(swapped.z, ZERO_STATE, 1, 3, 17, 300, x));
        same_state(&memory, &swapped, &s);
        pass_both(&memory, &swapped, &s, 1); /* layers see what was written */
        free_both(&memory, &swapped, &s);
    }
}
END_TEST

static size_t n_claims;

static cz_status count_claim(void *user, const struct zero_range *range)
{
    (void)user;
    ck_assert_uint_gt(range->nbytes, 0);
    n_claims++;
    return CZ_OK;
}

START_TEST(what_changes_is_claimed)
{
    struct world_setting s = plain;
    struct world memory, swapped;
    make_both(&memory, &swapped, &s, (struct zero_swap){.optimizer = true, .memory_share = 0.5});
    n_claims = 0;
    zero_set_guard(swapped.z, count_claim, NULL);
    train_both(&memory, &swapped, &s);
    ck_assert_uint_ge(n_claims, 3 * 3 * (TOTAL / 4096));
    free_both(&memory, &swapped, &s);
}
END_TEST

START_TEST(figures_say_what_the_file_moves)
{
    struct world_setting s = plain;
    struct world w;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.swap = swaps[2];
    s.swap_dir = test_tmp_make();
    s.tile = 4096;
    world_make(&w, s);
    const struct zero_figures f = zero_figures(w.z);
    ck_assert_uint_eq(f.master_swapped_nbytes, f.numel_own * 4);
    ck_assert_uint_eq(f.swapped_nbytes[1], f.numel_own * 4);
    ck_assert_uint_eq(f.param_swapped_nbytes, f.numel_own * 2);
    ck_assert_uint_eq(f.update_read_nbytes, f.numel_own * 12);
    ck_assert_uint_eq(f.update_written_nbytes, f.numel_own * 14);
    ck_assert_uint_ge(zero_swap_nbytes(w.z), f.numel_own * 14);
    ck_assert_uint_le(zero_swap_nbytes(w.z), f.numel_own * 14 + 8 * 4096);
    ck_assert_uint_eq(zero_block_nbytes(w.z, ZERO_MASTERS), 0);
    ck_assert_uint_eq(zero_block_nbytes(w.z, ZERO_PARAMS), 0);
    const struct swap_counts before = swap_counts(w.swap);
    fill_grads(&w, 1, s.dtype);
    boundary(&w, 1);
    const struct swap_counts after = swap_counts(w.swap);
    size_t read = after.read_nbytes - before.read_nbytes, slack = 16 * 4096;
    ck_assert_uint_ge(read, f.update_read_nbytes + f.pass_read_nbytes);
    ck_assert_uint_le(read, f.update_read_nbytes + f.pass_read_nbytes + slack);
    ck_assert_uint_ge(after.written_nbytes - before.written_nbytes, f.update_written_nbytes);
    ck_assert_uint_le(after.written_nbytes - before.written_nbytes,
                      f.update_written_nbytes + slack);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

START_TEST(gradients_in_the_file_leave_little_in_memory)
{
    struct world_setting s = plain;
    struct world w;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.swap = swaps[6];
    s.swap_dir = test_tmp_make_fast();
    s.tile = 4096;
    world_make(&w, s);
    const struct zero_figures f = zero_figures(w.z);
    size_t unit = numels[3] + numels[4], tied = numels[0], slack = 15 * 4096;
    ck_assert_uint_eq(f.grad_swapped_nbytes, f.numel_own * 2);
    ck_assert_uint_le(zero_block_nbytes(w.z, ZERO_GRADS), 2 * N_PARAMS * 4096);
    ck_assert_uint_le(zero_block_nbytes(w.z, ZERO_BUCKETS), 2 * (3 * unit + tied) + slack);
    for (int micro = 0; micro < 2; micro++) {
        const struct swap_counts before = swap_counts(w.swap);
        fill_grads(&w, 1, s.dtype);
        const struct swap_counts after = swap_counts(w.swap);
        size_t read = after.read_nbytes - before.read_nbytes;
        size_t written = after.written_nbytes - before.written_nbytes;
        ck_assert_uint_le(written, f.pass_written_nbytes);
        ck_assert_uint_ge(written, f.pass_written_nbytes - 2 * N_PARAMS * 4096);
        if (micro == 0) ck_assert_uint_eq(read, 0);
        ck_assert_uint_le(read, written);
        ck_assert_uint_ge(read, micro == 0 ? 0 : written - 2 * tied);
    }
    const struct swap_counts before = swap_counts(w.swap);
    boundary(&w, 1);
    size_t read = swap_counts(w.swap).read_nbytes - before.read_nbytes;
    ck_assert_uint_ge(read, f.update_read_nbytes);
    ck_assert_uint_le(read, f.update_read_nbytes + 16 * 4096);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

TEST_MAIN("zero swap", one_rank_computes_the_same, every_rank_computes_the_same,
          every_optimizer_computes_the_same, parameters_may_be_their_own_16_bit_masters,
          restores_and_single_tensors_reach_the_file, what_changes_is_claimed,
          figures_say_what_the_file_moves, gradients_in_the_file_leave_little_in_memory)
