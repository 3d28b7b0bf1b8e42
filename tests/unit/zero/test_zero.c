/* Claims: a rank's partition behaves to the bit like its slice of the whole, whatever the stage,
 * the number of ranks and the tile size; masters start from the rounded parameters; the first
 * non-finite gradient is named, of the first rank that has one; single tensors are read and written
 * in place. */
#include "tests/support/ranks.h"
#include "tests/support/zero/zero_world.h"

/* Three updates; gives the last norm. */
static double train(struct world *w, enum cz_dtype dtype)
{
    double norm = 0;
    for (uint32_t t = 1; t <= 3; t++) {
        struct zero_scan scan;
        fill_grads(w, t, dtype);
        ck_ok(zero_reduce(w->z));
        ck_ok(zero_scan(w->z, &scan));
        ck_assert(scan.finite);
        ck_ok(zero_norm(w->z, scan.max_abs, &norm));
        ck_ok(zero_step(w->z, t, 1, 1));
        ck_ok(zero_gather(w->z));
        zero_grads_drop(w->z);
    }
    return norm;
}

/* Master, states and parameters of a rank against the whole, element by element. */
static void compare_own(struct world *whole, struct world *part)
{
    size_t n_compared = 0;
    for (size_t i = 0; i < N_PARAMS; i++)
        for (size_t j = 0; j < numels[i]; j++) {
            float a, b;
            if (zero_read(part->z, ZERO_WEIGHT, 0, i, j, 1, &b) != CZ_OK) continue;
            ck_ok(zero_read(whole->z, ZERO_WEIGHT, 0, i, j, 1, &a));
            ck_assert_uint_eq(f32_bits(a), f32_bits(b));
            for (size_t s = 0; s < 2; s++) {
                ck_ok(zero_read(whole->z, ZERO_STATE, s, i, j, 1, &a));
                ck_ok(zero_read(part->z, ZERO_STATE, s, i, j, 1, &b));
                ck_assert_uint_eq(f32_bits(a), f32_bits(b));
            }
            n_compared++;
        }
    ck_assert_uint_gt(n_compared, 0);
}

START_TEST(a_rank_repeats_its_slice_of_the_whole)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        struct world_setting s = plain;
        s.dtype = s.grad_dtype = dtypes[d];
        struct world whole;
        world_make(&whole, s);
        double want = train(&whole, s.dtype);
        for (int stage = 0; stage <= 3; stage++)
            for (int rank = 0; rank < 4; rank++)
                for (size_t tile = 3; tile <= 64; tile += 61) {
                    struct world part;
                    s.stage = stage, s.rank = rank, s.world_size = 4, s.tile = tile;
                    s.overlap = rank % 2, s.bucket = tile;
                    s.stage3.param_persistence_threshold = rank < 2 ? 0 : 9;
                    s.stage3.model_persistence_threshold = 1000;
                    world_make(&part, s);
                    double norm = train(&part, s.dtype);
                    /* a pretended rank sees its own partition four times */
                    if (stage == 0) ck_assert_double_eq(norm, want);
                    compare_own(&whole, &part);
                    world_free(&part);
                }
        world_free(&whole);
    }
}
END_TEST

START_TEST(every_element_belongs_to_one_rank)
{
    for (int stage = 1; stage <= 3; stage++) {
        size_t owned = 0;
        for (int rank = 0; rank < 3; rank++) {
            struct world_setting s = plain;
            s.stage = stage, s.rank = rank, s.world_size = 3, s.two_groups = s.round_robin = true;
            struct world w;
            float x;
            world_make(&w, s);
            for (size_t i = 0; i < N_PARAMS; i++)
                for (size_t j = 0; j < numels[i]; j++)
                    owned += zero_read(w.z, ZERO_STATE, 0, i, j, 1, &x) == CZ_OK;
            world_free(&w);
        }
        ck_assert_uint_eq(owned, TOTAL);
    }
}
END_TEST

START_TEST(masters_start_from_rounded_parameters)
{
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    struct world w;
    world_make(&w, s);
    for (size_t i = 0; i < N_PARAMS; i++) {
        float want[45], have[45];
        ck_ok(fetch(NULL, i, 0, numels[i], want));
        ck_ok(zero_read(w.z, ZERO_WEIGHT, 0, i, 0, numels[i], have));
        const uint16_t *param = zero_params(w.z)[i];
        for (size_t j = 0; j < numels[i]; j++) {
            ck_assert_uint_eq(param[j], f32_to_bf16(want[j]));
            ck_assert_float_eq(have[j], bf16_to_f32(param[j]));
        }
    }
    world_free(&w);
}
END_TEST

START_TEST(groups_and_dtypes_do_not_mix_parameters_up)
{
    const char *const optimizers[] = {"AdamW", "Lamb", "Lion", "Adagrad"};
    for (int o = 0; o < 4; o++) {
        struct world_setting s = plain;
        s.optimizer = optimizers[o];
        struct world one, two;
        world_make(&one, s);
        s.two_groups = true, s.tile = 16;
        world_make(&two, s);
        ck_assert_double_eq(train(&one, DTYPE_F32), train(&two, DTYPE_F32));
        for (size_t i = 0; i < N_PARAMS; i++) {
            float a[45], b[45];
            ck_ok(zero_read(one.z, ZERO_WEIGHT, 0, i, 0, numels[i], a));
            ck_ok(zero_read(two.z, ZERO_WEIGHT, 0, i, 0, numels[i], b));
            ck_assert_mem_eq(a, b, numels[i] * sizeof *a);
        }
        world_free(&one);
        world_free(&two);
    }
}
END_TEST

START_TEST(the_first_offender_is_named)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        struct world_setting s = plain;
        s.dtype = s.grad_dtype = dtypes[d];
        s.two_groups = true;
        struct world w;
        struct zero_scan scan;
        world_make(&w, s);
        fill_grads(&w, 1, s.dtype);
        if (s.dtype == DTYPE_F32) {
            ((float *)zero_grads(w.z)[4])[44] = INFINITY;
            ((float *)zero_grads(w.z)[3])[2] = NAN;
        } else {
            ((uint16_t *)zero_grads(w.z)[4])[44] = f32_to_bf16(INFINITY);
            ((uint16_t *)zero_grads(w.z)[3])[2] = f32_to_bf16(NAN);
        }
        ck_ok(zero_reduce(w.z));
        ck_ok(zero_scan(w.z, &scan));
        ck_assert(!scan.finite);
        ck_assert_uint_eq(scan.param_idx, 4); /* of the first group in order */
        ck_assert_uint_eq(scan.elem, 44);
        ck_assert(isinf(scan.value));
        ck_assert_float_lt(scan.max_abs, 10);
        zero_grads_drop(w.z);
        ck_fails(zero_reduce(w.z), CZ_INVALID); /* nothing is ready */
        world_free(&w);
    }
}
END_TEST

/* Every element of every rank is bad. */
static cz_status all_bad(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct world_setting s = plain;
    s.world_size = ranks->n;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &s.comm));
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        struct world w;
        struct zero_scan scan;
        world_make(&w, s);
        w.share = NAN;
        fill_grads(&w, 1, s.dtype);
        TRY(zero_reduce(w.z));
        TRY(zero_scan(w.z, &scan));
        rank_check(!scan.finite && scan.rank == 0 && scan.elem == 0);
        rank_check(isnan(scan.value));
        zero_grads_drop(w.z);
        world_free(&w);
    }
    comm_destroy(s.comm);
    return CZ_OK;
}

START_TEST(of_several_offenders_the_first_rank_s_is_named)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, all_bad, NULL);
    ranks_expect_ok(&ranks, 60);
}
END_TEST

static size_t bucket_of(size_t asked, int stage)
{
    struct world_setting s = plain;
    struct world w;
    s.stage = stage, s.world_size = 2, s.bucket = asked;
    world_make(&w, s);
    size_t numel = zero_figures(w.z).bucket_numel;
    world_free(&w);
    return numel;
}

/* reduce_bucket_size: units share a bucket up to that many elements exactly. */
START_TEST(a_bucket_is_filled_to_its_size)
{
    for (int stage = 2; stage <= 3; stage++) {
        const size_t all = bucket_of(SIZE_MAX, stage), least = bucket_of(1, stage);
        ck_assert_uint_gt(all, least); /* both units, the larger one */
        ck_assert_uint_eq(bucket_of(all, stage), all);
        ck_assert_uint_eq(bucket_of(all + 1, stage), all);
        ck_assert_uint_eq(bucket_of(all - 1, stage), least);
        ck_assert_uint_eq(bucket_of(least, stage), least);
    }
}
END_TEST

/* What the plan prints: elements of all groups, and two buckets only where two are filled in turn.
 */
START_TEST(figures_are_sums_over_groups)
{
    for (int i = 0; i < 4 * 3 * 2; i++) {
        struct world_setting s = plain;
        struct world w;
        s.stage = i % 4, s.world_size = 1 + i / 4 % 3, s.two_groups = i / 12 > 0;
        world_make(&w, s);
        const struct zero_figures f = zero_figures(w.z);
        size_t own = 0;
        for (size_t g = 0; g < (s.two_groups ? 2 : 1); g++)
            own += zero_group_layout(w.z, g).own_numel;
        ck_assert_uint_eq(f.numel_own, own);
        ck_assert_uint_eq(f.numel_padded, own * (s.stage > 0 ? (size_t)s.world_size : 1));
        world_free(&w);
    }
    for (int i = 0; i < 4; i++) {
        struct world_setting s = plain;
        struct world w;
        s.stage = 2, s.world_size = 2, s.overlap = i & 1, s.bucket = i & 2 ? 1 : SIZE_MAX;
        world_make(&w, s);
        ck_assert_int_eq(zero_figures(w.z).n_buckets, i == 3 ? 2 : 1);
        world_free(&w);
    }
}
END_TEST

START_TEST(single_tensors_are_written_in_place)
{
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.freeze = true;
    struct world w;
    world_make(&w, s);
    float x[9] = {1.00390625f, 2, 3, 4, 5, 6, 7, 8, 9}, y[9]; /* the first is no bf16 value */
    ck_ok(zero_write(w.z, ZERO_WEIGHT, 0, 3, 0, 9, x));
    ck_ok(zero_read(w.z, ZERO_WEIGHT, 0, 3, 0, 9, y));
    ck_assert_mem_eq(x, y, sizeof x);
    ck_assert_uint_eq(((const uint16_t *)zero_params(w.z)[3])[0], f32_to_bf16(x[0]));
    ck_ok(zero_write(w.z, ZERO_STATE, 1, 3, 4, 2, x));
    ck_ok(zero_read(w.z, ZERO_STATE, 1, 3, 0, 9, y));
    ck_assert_float_eq(y[4], x[0]);
    ck_assert_float_eq(y[6], 0);
    ck_assert_ptr_null(zero_grads(w.z)[2]); /* frozen */
    ck_ok(zero_write(w.z, ZERO_WEIGHT, 0, 2, 0, 9, x));
    ck_ok(zero_read(w.z, ZERO_WEIGHT, 0, 2, 0, 9, y));
    ck_assert_float_eq(y[0], bf16_to_f32(f32_to_bf16(x[0])));
    ck_fails(zero_read(w.z, ZERO_GRAD, 0, 2, 0, 9, y), CZ_NOTFOUND);
    ck_fails(zero_read(w.z, ZERO_STATE, 2, 3, 0, 9, y), CZ_NOTFOUND);
    ck_fails(zero_read(w.z, ZERO_WEIGHT, 0, 3, 1, 9, y), CZ_INVALID);
    world_free(&w);
}
END_TEST

START_TEST(parameters_can_be_their_own_masters)
{
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = s.master_dtype = DTYPE_BF16;
    struct world w;
    world_make(&w, s);
    ck_assert_uint_eq(zero_block_nbytes(w.z, ZERO_MASTERS), 0);
    train(&w, DTYPE_BF16);
    float y[9];
    ck_ok(zero_read(w.z, ZERO_WEIGHT, 0, 3, 0, 9, y));
    for (int i = 0; i < 9; i++)
        ck_assert_float_eq(y[i], bf16_to_f32(((const uint16_t *)zero_params(w.z)[3])[i]));
    world_free(&w);
}
END_TEST

TEST_MAIN("zero", a_rank_repeats_its_slice_of_the_whole, every_element_belongs_to_one_rank,
          masters_start_from_rounded_parameters, groups_and_dtypes_do_not_mix_parameters_up,
          the_first_offender_is_named, of_several_offenders_the_first_rank_s_is_named,
          a_bucket_is_filled_to_its_size, figures_are_sums_over_groups,
          single_tensors_are_written_in_place, parameters_can_be_their_own_masters)
