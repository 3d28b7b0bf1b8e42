/* Claims: a rank's partition behaves to the bit like its slice of the whole, whatever the stage,
 * the number of ranks and the tile size; masters start from the rounded parameters; the first
 * non-finite gradient is named, of the first rank that has one; single tensors are read and written
 * in place. */
#include "tests/support/ranks.h"
#include "tests/support/zero/zero_world.h"
#include "zero/zero_impl.h"

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
        ck_ok(zero_norm(w->z, &norm));
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

/* What element j of a parameter has as its gradient, on a rank whose seed is `rank`. */
static float grad_of(int rank, uint32_t step, size_t param_idx, size_t j)
{
    const struct rng_key key = {
        .seed = 6 + (uint64_t)rank, .site = (uint32_t)param_idx, .step = step};
    return rng_normal(&key, j);
}

static cz_status read_means(struct world *w, uint32_t step)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        float have[OF(45)];
        TRY(zero_read(w->z, ZERO_GRAD, 0, i, 0, numels[i], have));
        for (size_t j = 0; j < numels[i]; j++) {
            float sum = 0;
            for (int r = 0; r < w->comm->world_size; r++) sum += grad_of(r, step, i, j);
            rank_check(have[j] == sum * (1.0f / (float)w->comm->world_size));
        }
    }
    return CZ_OK;
}

/* Several steps, each with other gradients on every rank. */
static cz_status all_means(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct world_setting s = plain;
    s.world_size = ranks->n;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &s.comm));
    for (int i = 0; i < 8; i++) {
        struct world w;
        s.stage = i % 4;
        s.overlap = i >= 4;
        s.bucket = 60;
        world_make(&w, s);
        w.seed = (uint64_t)rank;
        for (uint32_t t = 1; t <= 3; t++) {
            fill_grads(&w, t, DTYPE_F32);
            TRY(zero_reduce(w.z));
            TRY(read_means(&w, t));
            zero_grads_drop(w.z);
        }
        world_free(&w);
    }
    comm_destroy(s.comm);
    return CZ_OK;
}

START_TEST(every_step_averages_the_gradients_of_all_ranks)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, all_means, NULL);
    ranks_expect_ok(&ranks, 60);
}
END_TEST

/* ---- options and sizes ------------------------------------------------------------------------
 */

/* With every sink, of which none has come into being yet where a group is refused. */
START_TEST(what_does_not_fit_together_is_refused)
{
    struct world w;
    struct zero *z;
    world_lay_out(&w, plain);
    const struct zero_options sound = w.z->options;
    for (int sink = 0; sink < 3; sink++) {
        struct zero_options o = sound;
        o.on_gpu = o.offload.optimizer = sink == 1;
        o.swap.optimizer = o.swap.grads = sink == 2;
        o.stage = 1;
        ck_ok(zero_create(&o, &z));
        zero_destroy(z);
        w.group_of[3] = 1; /* of one group */
        ck_fails(zero_create(&o, &z), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "p3"));
        ck_assert_ptr_null(z);
        w.table.params[3].trainable = false; /* then it is in none */
        ck_ok(zero_create(&o, &z));
        zero_destroy(z);
        w.table.params[3].trainable = true;
        w.group_of[3] = 0;
    }
    for (int stage = -1; stage <= 4; stage++) {
        struct zero_options o = sound;
        o.stage = stage;
        cz_status want = stage < 0 || stage > 3 ? CZ_INVALID : CZ_OK;
        ck_fails(zero_create(&o, &z), want);
        zero_destroy(z);
    }
    world_free(&w);
}
END_TEST

START_TEST(dtypes_are_those_of_the_model_or_fp32)
{
    static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct world w;
    world_lay_out(&w, plain);
    for (int i = 0; i < 27; i++) {
        struct zero_options o = w.z->options;
        struct zero *z;
        o.dtype = dtypes[i % 3], o.grad_dtype = dtypes[i / 3 % 3], o.master_dtype = dtypes[i / 9];
        bool fits = (o.grad_dtype == o.dtype || o.grad_dtype == DTYPE_F32) &&
                    (o.master_dtype == o.dtype || o.master_dtype == DTYPE_F32);
        ck_fails(zero_create(&o, &z), fits ? CZ_OK : CZ_UNSUPPORTED);
        zero_destroy(z);
    }
    world_free(&w);
}
END_TEST

START_TEST(visits_begin_with_every_unit_in_order)
{
    const struct zero_visit wrong[][4] = {{{.unit_idx = 1}, {.unit_idx = 0}, visits[2], visits[3]},
                                          {visits[0], visits[0], visits[2], visits[3]},
                                          {visits[0], visits[1], {.unit_idx = N_UNITS}, visits[3]}};
    struct world w;
    struct zero *z;
    world_lay_out(&w, plain);
    for (size_t i = 0; i < CZ_ARRAY_LEN(wrong); i++) {
        struct zero_options o = w.z->options;
        o.visits = wrong[i];
        ck_fails(zero_create(&o, &z), CZ_INVALID);
    }
    world_free(&w);
}
END_TEST

static size_t nbytes_of(struct world_setting s, enum zero_block block)
{
    struct world w;
    world_lay_out(&w, s);
    size_t nbytes = zero_block_nbytes(w.z, block);
    world_free(&w);
    return nbytes;
}

/* Sums and ratios of tensors only where there are norms of them. */
START_TEST(the_small_block_has_what_the_optimizer_needs)
{
    struct world_setting s = plain;
    const size_t scalars = size_round_up(sizeof(struct step_scalars), 256);
    ck_assert_uint_eq(nbytes_of(s, ZERO_SMALL), scalars);
    s.optimizer = "Lamb";
    ck_assert_uint_gt(nbytes_of(s, ZERO_SMALL), scalars);
}
END_TEST

/* Tiles pass through memory of the side that updates them: the host's, the GPU's, or both. */
START_TEST(staging_is_where_tiles_are_updated)
{
    struct world_setting s = plain;
    s.on_gpu = true;
    s.device = "cpu"; /* stands in for one */
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.tile = 16;
    ck_assert_uint_eq(nbytes_of(s, ZERO_UPDATE_HOST), 0);
    s.offload.optimizer = true;
    for (int k = 0; k <= 4; k++) {
        s.offload.device_share = k * 0.25;
        ck_assert_int_eq(nbytes_of(s, ZERO_UPDATE_HOST) > 0, k < 4);
        ck_assert_int_eq(nbytes_of(s, ZERO_UPDATE_GPU) > 0, k > 0);
        ck_assert_int_eq(nbytes_of(s, ZERO_SHARE) > 0, k > 0);
        ck_assert_int_eq(nbytes_of(s, ZERO_MASTERS) > 0, k < 4);
    }
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
          every_step_averages_the_gradients_of_all_ranks, what_does_not_fit_together_is_refused,
          dtypes_are_those_of_the_model_or_fp32, visits_begin_with_every_unit_in_order,
          the_small_block_has_what_the_optimizer_needs, staging_is_where_tiles_are_updated,
          a_bucket_is_filled_to_its_size, figures_are_sums_over_groups,
          single_tensors_are_written_in_place, parameters_can_be_their_own_masters)
