/* Claims: masters, states and parameters that rest in a swap file come out with the same bytes as
 * in memory, at every stage, on every rank, whatever of them rests there and however it is
 * streamed; layers find the same parameters; single tensors, sources and restores do not see the
 * difference. */
#define ZERO_WORLD_SCALE 301 /* many tiles, and nothing begins with a block of the file */
#include "tests/support/zero/zero_pair.h"

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
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
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
            s.late = true;
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
            s.late = true;
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
        s.late = true;
        for (size_t k = 0; k < CZ_ARRAY_LEN(swaps); k++) compare(s, swaps[k]);
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
        s.late = stage % 2;
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
    ck_assert_uint_eq(f.update_read_nbytes + f.update_found_nbytes, f.numel_own * 12);
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
    size_t want = f.update_read_nbytes + f.update_found_nbytes + f.pass_read_nbytes;
    ck_assert_uint_ge(read, want); /* the first sweep finds nothing */
    ck_assert_uint_le(read, want + slack);
    ck_assert_uint_ge(after.written_nbytes - before.written_nbytes, f.update_written_nbytes);
    ck_assert_uint_le(after.written_nbytes - before.written_nbytes,
                      f.update_written_nbytes + slack);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

/* Parameters that memory may hold stay there, up to that many elements exactly. */
START_TEST(as_many_parameters_stay_as_memory_may_hold)
{
    size_t read[3];
    for (size_t k = 0; k < 3; k++) {
        struct world_setting s = plain;
        struct world w;
        s.stage = 3;
        s.dtype = s.grad_dtype = DTYPE_BF16;
        s.swap = (struct zero_swap){.params = true, .params_in_memory = numels[2] - 1 + k};
        s.swap_dir = test_tmp_make();
        world_make(&w, s);
        read[k] = zero_figures(w.z).pass_read_nbytes;
        world_free(&w);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
    ck_assert_uint_gt(read[0], read[1]); /* one less than the smallest has */
    ck_assert_uint_eq(read[1], read[2]);
}
END_TEST

/* Whatever is prefetched: an evaluation reads what its forward visits use, and nothing that only a
 * backward does. */
START_TEST(an_evaluation_reads_no_more_than_its_visits_use)
{
    size_t used = 0;
    for (size_t u = 0; u < 2; u++)
        for (size_t k = 0; k < 3; k++) used += numels[u == 0 ? unit_a[k] : unit_b[k]] * 2;
    for (size_t k = 0; k < 8; k++) {
        struct world_setting s = plain;
        struct world w;
        s.stage = 3;
        s.dtype = s.grad_dtype = DTYPE_BF16;
        s.stage3 = (struct zero_stage3){.prefetch_numel = k & 1 ? TOTAL : 0,
                                        .max_live = k & 2 ? 10 * TOTAL : 0,
                                        .max_reuse = k & 4 ? 10 * TOTAL : 0};
        s.swap = (struct zero_swap){.params = true};
        s.swap_dir = test_tmp_make();
        world_make(&w, s);
        for (int again = 0; again < 2; again++) {
            const size_t before = swap_counts(w.swap).read_nbytes;
            ck_ok(zero_pass_begin(w.z, ZERO_PASS_EVAL));
            for (size_t u = 0; u < N_UNITS; u++) {
                ck_ok(zero_unit_acquire(w.z, u));
                ck_ok(zero_unit_release(w.z, u));
            }
            ck_ok(zero_pass_end(w.z));
            ck_ok(swap_drain(w.swap));
            const size_t read = swap_counts(w.swap).read_nbytes - before;
            ck_assert_uint_le(read, used + 6 * 4096); /* whole blocks */
        }
        world_free(&w);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
}
END_TEST

/* Updates that are left to the next forward. */
static struct world_setting late_setting(size_t k)
{
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.late = true;
    s.swap = swaps[k];
    s.swap_dir = test_tmp_make_fast();
    s.tile = 4096;
    return s;
}

/* The boundary moves nothing, the next forward all of it, and afterwards the first tiles of the
 * step after that have been read. */
START_TEST(a_late_update_moves_in_the_forward_what_it_would_have_moved_before)
{
    struct world_setting s = late_setting(0);
    struct world w;
    world_make(&w, s);
    const struct zero_figures f = zero_figures(w.z);
    size_t slack = 30 * 4096;
    ck_assert(zero_updates_late(w.z));
    ck_assert_uint_eq(f.update_read_nbytes, f.numel_own * 12);
    fill_grads(&w, 1, s.dtype);
    for (uint32_t t = 1; t <= 3; t++) {
        const struct swap_counts before = swap_counts(w.swap);
        boundary(&w, t);
        ck_ok(swap_drain(w.swap));
        const struct swap_counts between = swap_counts(w.swap);
        ck_assert_uint_eq(between.read_nbytes + between.written_nbytes,
                          before.read_nbytes + before.written_nbytes);
        fill_grads(&w, t + 1, s.dtype);
        ck_ok(swap_drain(w.swap));
        const struct swap_counts after = swap_counts(w.swap);
        size_t read = after.read_nbytes - between.read_nbytes;
        size_t written = after.written_nbytes - between.written_nbytes;
        size_t ahead = zero_block_nbytes(w.z, ZERO_RING); /* of the next step, as slots go */
        ck_assert_uint_ge(read, f.update_read_nbytes);
        ck_assert_uint_le(read, f.update_read_nbytes + slack + (t == 1 ? ahead : 0));
        ck_assert_uint_ge(written, f.update_written_nbytes);
        ck_assert_uint_le(written, f.update_written_nbytes + slack);
    }
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

/* A pass that is given up anywhere, and one that only evaluates, leave no tile out and update none
 * twice. */
START_TEST(a_pass_that_is_given_up_leaves_the_update_whole)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(swaps); k++)
        for (size_t stop = 0; stop < CZ_ARRAY_LEN(visits); stop++) {
            struct world_setting s = plain;
            struct world memory, swapped;
            s.dtype = s.grad_dtype = k % 2 ? DTYPE_F32 : DTYPE_BF16;
            s.optimizer = k % 3 == 1 ? "Lamb" : "AdamW";
            s.late = true;
            make_both(&memory, &swapped, &s, swaps[k]);
            pass_both(&memory, &swapped, &s, 1);
            (void)boundary_in_order(&memory, 1, false);
            (void)boundary_in_order(&swapped, 1, false);
            ck_ok(zero_pass_begin(swapped.z, ZERO_PASS_TRAIN));
            for (size_t v = 0; v < stop; v++) {
                ck_ok(zero_unit_acquire(swapped.z, visits[v].unit_idx));
                ck_ok(zero_unit_release(swapped.z, visits[v].unit_idx));
            }
            if (k % 2) {
                ck_ok(zero_pass_begin(swapped.z, ZERO_PASS_EVAL));
                ck_ok(zero_unit_acquire(swapped.z, 0));
            }
            pass_both(&memory, &swapped, &s, 2);
            same_state(&memory, &swapped, &s);
            free_both(&memory, &swapped, &s);
        }
}
END_TEST

/* Where it does not apply, an update is made at once. */
START_TEST(late_updates_need_a_file_and_whole_parameters_or_chunks)
{
    struct world_setting s = plain;
    struct world w;
    s.late = true;
    world_make(&w, s);
    ck_assert(!zero_updates_late(w.z));
    world_free(&w);
    s.swap = swaps[0];
    s.world_size = 2;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.swap_dir = test_tmp_make_fast();
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        world_make(&w, s);
        ck_assert_int_eq(zero_updates_late(w.z), s.stage == 0 || s.stage == 3);
        world_free(&w);
    }
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
    ck_assert_uint_ge(read, f.update_read_nbytes + f.update_found_nbytes);
    ck_assert_uint_le(read, f.update_read_nbytes + f.update_found_nbytes + 16 * 4096);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

/* Two boundaries, one in each direction: bytes that they read of masters, states and gradients. */
static size_t two_boundaries_read(struct world *w, enum cz_dtype dtype, uint32_t t)
{
    size_t read = 0;
    for (uint32_t k = t; k < t + 2; k++) {
        fill_grads(w, k, dtype);
        const struct swap_counts before = swap_counts(w->swap);
        boundary(w, k);
        read += swap_counts(w->swap).read_nbytes - before.read_nbytes;
    }
    return read;
}

/* A sweep begins with the tiles with which the one before it has ended: as many as the ring has
 * slots, in one pass or two, in groups, with gradients in the file or not; and reads all of them
 * anew once something else has written to the file. */
START_TEST(a_sweep_finds_what_the_last_one_left)
{
    for (int k = 0; k < 8; k++) {
        struct world_setting s = plain;
        struct world w;
        float x[3] = {1, 2, 3};
        s.dtype = s.grad_dtype = k & 4 ? DTYPE_F32 : DTYPE_BF16;
        s.optimizer = k & 1 ? "Lamb" : "AdamW";
        s.two_groups = k & 2;
        s.swap = swaps[k & 2 ? 6 : 0];
        s.swap.write_behind = k & 2;
        s.swap_dir = test_tmp_make_fast();
        s.tile = 4096;
        world_make(&w, s);
        const struct zero_figures f = zero_figures(w.z);
        size_t want = 2 * f.update_read_nbytes, slack = 40 * 4096;
        ck_assert_uint_ge(f.update_found_nbytes, (size_t)4 * 4096 * (k & 4 ? 8 : 12) * 3 / 4);
        (void)two_boundaries_read(&w, s.dtype, 1);
        size_t read = two_boundaries_read(&w, s.dtype, 3);
        ck_assert_msg(read >= want && read <= want + slack, "%zu bytes read, not %zu: %d", read,
                      want, k);
        ck_ok(zero_write(w.z, ZERO_STATE, 0, 0, 0, 3, x));
        size_t anew = two_boundaries_read(&w, s.dtype, 5);
        ck_assert_uint_gt(anew, read + f.update_found_nbytes / 4);
        world_free(&w);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
}
END_TEST

/* A model of fewer tiles than slots is read once. */
START_TEST(what_fits_into_the_ring_is_read_once)
{
    struct world_setting s = plain;
    struct world w;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.swap = swaps[0];
    s.swap_dir = test_tmp_make_fast();
    s.tile = 4096 * 3;
    world_make(&w, s);
    ck_assert_uint_eq(zero_figures(w.z).update_read_nbytes, 0);
    ck_assert_uint_gt(two_boundaries_read(&w, s.dtype, 1), 0);
    ck_assert_uint_eq(two_boundaries_read(&w, s.dtype, 3), 0);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

TEST_MAIN("zero swap", one_rank_computes_the_same, every_rank_computes_the_same,
          every_optimizer_computes_the_same, parameters_may_be_their_own_16_bit_masters,
          restores_and_single_tensors_reach_the_file, what_changes_is_claimed,
          figures_say_what_the_file_moves, a_sweep_finds_what_the_last_one_left,
          what_fits_into_the_ring_is_read_once,
          a_late_update_moves_in_the_forward_what_it_would_have_moved_before,
          a_pass_that_is_given_up_leaves_the_update_whole,
          late_updates_need_a_file_and_whole_parameters_or_chunks, gradients_in_the_file_leave_little_in_memory,
          as_many_parameters_stay_as_memory_may_hold,
          an_evaluation_reads_no_more_than_its_visits_use)
