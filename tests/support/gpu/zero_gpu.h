/* Claims of a model state whose layers run on a GPU: whatever of it leaves the GPU, however much,
 * in buckets and tiles of any size, updated at the boundary, beside the backward or beside the next
 * forward, weights, states, gradients and what layers find have the bytes of the same run on the
 * CPU; restores and single tensors do not see the difference.
 *
 * ZERO_GPU_DEVICE is the device: "cuda", or "cpu", which stands in for one (the same paths, with
 * nothing to wait for). */
#define ZERO_WORLD_SCALE 101
#include "tests/support/zero/zero_pair.h"

/* What leaves: to host memory, to the file. */
static const struct {
    struct zero_offload offload;
    struct zero_swap swap;
    int stage; /* the lowest that allows it */
} placements[] = {
    {.stage = 0},
    {.offload = {.optimizer = true}, .stage = 1},
    {.offload = {.params = true}, .stage = 3},
    {.offload = {.optimizer = true, .params = true}, .stage = 3},
    {.offload = {.optimizer = true, .params = true, .device_share = 0.4}, .stage = 3},
    {.offload = {.optimizer = true, .device_share = 0.6}, .stage = 3},
    {.swap = {.optimizer = true, .read_ahead = true, .write_behind = true}},
    {.swap = {.optimizer = true, .memory_share = 0.4, .read_ahead = true}},
    {.swap = {.params = true, .read_ahead = true, .write_behind = true}},
    {.swap = {.optimizer = true, .params = true, .write_behind = true}},
    {.offload = {.optimizer = true}, .swap = {.params = true, .read_ahead = true}, .stage = 3},
    {.offload = {.params = true}, .swap = {.optimizer = true, .read_ahead = true}, .stage = 3},
};

/* The same run with placement k. */
static void put_on_gpu(struct world_setting *s, size_t k, size_t tile)
{
    s->on_gpu = true;
    s->device = ZERO_GPU_DEVICE;
    s->offload = placements[k].offload;
    s->swap = placements[k].swap;
    s->swap_dir = test_tmp_make_fast();
    s->tile = tile;
}

static void compare_gpu(struct world_setting s, size_t k, size_t tile)
{
    struct world cpu, gpu;
    if (s.stage < placements[k].stage) s.stage = placements[k].stage;
    world_make(&cpu, s);
    put_on_gpu(&s, k, tile);
    world_make(&gpu, s);
    same_state(&cpu, &gpu, &s); /* as loaded */
    train_both(&cpu, &gpu, &s);
    same_state(&cpu, &gpu, &s);
    world_free(&gpu);
    world_free(&cpu);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}

START_TEST(every_placement_computes_the_same)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
            struct world_setting s = plain;
            s.dtype = s.grad_dtype = dtypes[d];
            s.stage = (int)(k + d) % 4;
            s.two_groups = (k + d) % 2;
            s.freeze = k % 3 == 0;
            s.overlap = d != 1;
            s.bucket = d == 0 ? SIZE_MAX / 4 : 5000;
            s.stage3.prefetch_numel = k % 2 ? 6000 : 0;
            s.stage3.param_persistence_threshold = 1000;
            s.stage3.model_persistence_threshold = k % 2 ? SIZE_MAX : 0;
            compare_gpu(s, k, d == 2 ? 4096 : 1024);
        }
}
END_TEST

START_TEST(every_optimizer_computes_the_same)
{
    const char *const optimizers[] = {"Lamb", "Lion", "Adagrad", "SGD"};
    for (size_t o = 0; o < CZ_ARRAY_LEN(optimizers); o++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k += o == 0 ? 1 : 4) {
            struct world_setting s = plain;
            s.optimizer = optimizers[o];
            s.dtype = s.grad_dtype = (o + k) % 2 ? DTYPE_F32 : DTYPE_BF16;
            s.two_groups = true;
            compare_gpu(s, k, 2048);
        }
}
END_TEST

/* 16-bit masters, and gradients that are added up in fp32. */
START_TEST(other_dtypes_compute_the_same)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++) {
        struct world_setting s = plain;
        s.dtype = s.grad_dtype = s.master_dtype = DTYPE_BF16;
        compare_gpu(s, k, 4096);
        s.master_dtype = s.grad_dtype = DTYPE_F32;
        compare_gpu(s, k, 4096);
    }
}
END_TEST

/* Tiles take their turn as their gradients come. */
START_TEST(updates_beside_the_backward_compute_the_same)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++)
        for (size_t n = 0; n < 3; n++) {
            struct world_setting s = plain;
            s.dtype = s.grad_dtype = n == 1 ? DTYPE_F32 : DTYPE_BF16;
            s.optimizer = n == 2 ? "Lamb" : "AdamW";
            s.stage = (int)(k + n) % 4;
            s.two_groups = n == 0;
            s.freeze = (k + n) % 2;
            s.overlap = true;
            s.bucket = n == 1 ? SIZE_MAX / 4 : 3000;
            s.updates_first = true;
            compare_gpu(s, k, n == 0 ? 512 : 4096);
        }
}
END_TEST

/* Of tile after tile in the next forward, but for those of the GPU's share. */
static struct world_setting late_setting(size_t k, size_t n)
{
    struct world_setting s = plain;
    s.dtype = s.grad_dtype = n == 1 ? DTYPE_F32 : DTYPE_BF16;
    s.optimizer = n == 2 ? "Lamb" : "AdamW";
    s.stage = (int)(k + n) % 4;
    s.two_groups = n == 0;
    s.freeze = (k + n) % 2;
    s.overlap = true;
    s.bucket = n == 1 ? SIZE_MAX / 4 : 3000;
    s.stage3.prefetch_numel = n == 1 ? 6000 : 0;
    s.stage3.param_persistence_threshold = (k + n) % 4 ? 1000 : 0;
    s.stage3.model_persistence_threshold = SIZE_MAX;
    s.late = true;
    return s;
}

START_TEST(updates_beside_the_next_forward_compute_the_same)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++)
        for (size_t n = 0; n < 3; n++) compare_gpu(late_setting(k, n), k, n == 0 ? 512 : 4096);
}
END_TEST

/* They are those that the host makes. */
START_TEST(only_what_leaves_the_gpu_is_updated_late)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++) {
        struct world_setting s = late_setting(k, 0);
        struct world w;
        put_on_gpu(&s, k, 512);
        world_make(&w, s);
        ck_assert_int_eq(zero_updates_late(w.z),
                         placements[k].offload.optimizer || placements[k].swap.optimizer);
        world_free(&w);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
}
END_TEST

/* A pass that is given up anywhere, and one that only evaluates, leave no tile out and update none
 * twice. */
START_TEST(a_pass_that_is_given_up_leaves_the_update_whole)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++) {
        struct world_setting s = late_setting(k, k % 3);
        struct world cpu, gpu;
        const size_t stop = k % CZ_ARRAY_LEN(visits);
        if (s.stage < placements[k].stage) s.stage = placements[k].stage;
        world_make(&cpu, s);
        put_on_gpu(&s, k, 1024);
        world_make(&gpu, s);
        pass_both(&cpu, &gpu, &s, 1);
        (void)boundary_in_order(&cpu, 1, false);
        (void)boundary_in_order(&gpu, 1, false);
        ck_ok(zero_pass_begin(gpu.z, ZERO_PASS_TRAIN));
        for (size_t v = 0; v < stop; v++) {
            ck_ok(zero_unit_acquire(gpu.z, visits[v].unit_idx));
            ck_ok(zero_unit_release(gpu.z, visits[v].unit_idx));
        }
        if (k % 2) {
            ck_ok(zero_pass_begin(gpu.z, ZERO_PASS_EVAL));
            ck_ok(zero_unit_acquire(gpu.z, 0));
        }
        pass_both(&cpu, &gpu, &s, 2);
        same_state(&cpu, &gpu, &s);
        world_free(&gpu);
        world_free(&cpu);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
}
END_TEST

START_TEST(a_late_update_that_fails_names_its_step)
{
    struct world_setting s = late_setting(6, 0);
    struct world w;
    put_on_gpu(&s, 6, 4096);
    world_make(&w, s);
    fill_grads(&w, 1, s.dtype);
    boundary(&w, 3);
    ck_assert_int_eq(truncate(swap_path(w.swap), 0), 0);
    ck_ok(zero_pass_begin(w.z, ZERO_PASS_LAST));
    ck_fails(zero_unit_acquire(w.z, 0), CZ_IO);
    ck_assert_msg(strstr(cz_last_error(), "the update of step 3: swap file"), "%s",
                  cz_last_error());
    ck_assert_int_ne(zero_update_end(w.z), CZ_OK);
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

static cz_status other_fetch(void *user, enum zero_what what, size_t state_idx, size_t param_idx,
                             size_t off, size_t numel, float *dst)
{
    (void)user;
    const struct rng_key key = {.seed = 9,
                                .site = (uint32_t)(param_idx * 8 + state_idx * 2 + (size_t)what)};
    for (size_t i = 0; i < numel; i++) dst[i] = fabsf(rng_normal(&key, off + i));
    return CZ_OK;
}

START_TEST(restores_and_single_tensors_reach_the_gpu)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(placements); k++) {
        struct world_setting s = plain;
        struct world cpu, gpu;
        static float staging[500], values[OF(45)];
        s.dtype = s.grad_dtype = k % 2 ? DTYPE_F32 : DTYPE_BF16;
        s.stage = placements[k].stage;
        s.stage3.param_persistence_threshold = 1000;
        s.stage3.model_persistence_threshold = SIZE_MAX;
        world_make(&cpu, s);
        put_on_gpu(&s, k, 4096);
        world_make(&gpu, s);
        struct world *both[] = {&cpu, &gpu};
        for (size_t i = 0; i < OF(45); i++) values[i] = (float)i * 0.37f;
        for (int w = 0; w < 2; w++) {
            const struct zero_restore restore = {
                .fetch = other_fetch, .states = true, .staging = staging, .staging_numel = 500};
            ck_ok(zero_restore(both[w]->z, &restore));
            ck_ok(zero_write(both[w]->z, ZERO_WEIGHT, 0, 2, 3, 77, values));
            ck_ok(zero_write(both[w]->z, ZERO_STATE, 1, 4, 100, 2000, values));
        }
        same_state(&cpu, &gpu, &s);
        train_both(&cpu, &gpu, &s);
        same_state(&cpu, &gpu, &s);
        world_free(&gpu);
        world_free(&cpu);
        ck_assert_int_eq(rmdir(s.swap_dir), 0);
    }
}
END_TEST

START_TEST(the_first_offender_is_named_from_the_gpu)
{
    for (size_t k = 0; k < 2; k++) {
        struct world_setting s = plain;
        struct world w;
        struct zero_scan scan;
        float bad = INFINITY;
        s.on_gpu = true;
        s.device = ZERO_GPU_DEVICE;
        s.offload = placements[k].offload;
        s.stage = placements[k].stage;
        world_make(&w, s);
        ck_ok(zero_pass_begin(w.z, ZERO_PASS_LAST));
        for (size_t v = 0; v < CZ_ARRAY_LEN(visits); v++) {
            size_t u = visits[v].unit_idx;
            ck_ok(zero_unit_acquire(w.z, u));
            if (visits[v].writes_grads) fill_unit(&w, u, 1, DTYPE_F32, false);
            if (visits[v].writes_grads && u == 0)
                world_put(&w, (float *)zero_grads(w.z)[1] + 17, &bad, sizeof bad);
            if (visits[v].is_backward) ck_ok(zero_grads_ready(w.z, u));
            ck_ok(zero_unit_release(w.z, u));
        }
        ck_ok(zero_pass_end(w.z));
        ck_ok(zero_reduce(w.z));
        ck_ok(zero_scan(w.z, &scan));
        ck_assert(!scan.finite);
        ck_assert_uint_eq(scan.param_idx, 1);
        ck_assert_uint_eq(scan.elem, 17);
        ck_assert(isinf(scan.value));
        world_free(&w);
    }
}
END_TEST

TEST_MAIN("zero on " ZERO_GPU_DEVICE, every_placement_computes_the_same,
          every_optimizer_computes_the_same, other_dtypes_compute_the_same,
          updates_beside_the_backward_compute_the_same,
          updates_beside_the_next_forward_compute_the_same,
          only_what_leaves_the_gpu_is_updated_late, a_pass_that_is_given_up_leaves_the_update_whole,
          a_late_update_that_fails_names_its_step, restores_and_single_tensors_reach_the_gpu,
          the_first_offender_is_named_from_the_gpu)
