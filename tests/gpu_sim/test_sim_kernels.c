/* Claims: on the simulated device kernels compute what they do on hardware: indices, barriers,
 * warp collectives, atomics, tensor-core layouts; in every order of threads, unless they race; and
 * barriers or collectives that cannot complete are reported, not hung on. */
#include "tests/gpu_sim/sim_test.h"

#include "base/dtype.h"

#include <math.h>

START_TEST(threads_know_where_they_are)
{
    enum { N = 3 * 4 * 5 * 6 * 7 * 2 };
    static int out[N];
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        int *p = device_alloc(sizeof out);
        ck_cuda(launch_where(p, NULL));
        from_device(out, p, sizeof out);
        for (int i = 0; i < N; i++) ck_assert_int_eq(out[i], i);
    }
}
END_TEST

static float sums[4];

static void sum_blocks(cudaError_t (*launch)(const float *, float *, unsigned, cudaStream_t))
{
    static float x[4 * 256];
    for (int i = 0; i < 4 * 256; i++) x[i] = (float)(i % 97);
    float *dx = device_copy_of(x, sizeof x), *dout = device_alloc(sizeof sums);
    ck_cuda(launch(dx, dout, 4, NULL));
    from_device(sums, dout, sizeof sums);
}

START_TEST(barriers_make_order_irrelevant)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        sum_blocks(launch_block_sum);
        for (int b = 0; b < 4; b++) {
            float want = 0;
            for (int i = 0; i < 256; i++) want += (float)((256 * b + i) % 97);
            ck_assert_float_eq(sums[b], want);
        }
    }
}
END_TEST

START_TEST(a_race_shows_in_some_order)
{
    float first = 0;
    bool differs = false;
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        sum_blocks(launch_racy_sum);
        if (o == 0) first = sums[0];
        differs = differs || sums[0] != first;
    }
    ck_assert(differs);
}
END_TEST

static unsigned turn_sum(bool racy, const char *order)
{
    int x[32], out[32];
    unsigned sum = 0;
    sim_with("ORDER", order);
    for (int i = 0; i < 32; i++) x[i] = i * i;
    int *dx = device_copy_of(x, sizeof x), *dout = device_alloc(sizeof out);
    ck_cuda(launch_warp_turn(racy, dx, dout, NULL));
    from_device(out, dout, sizeof out);
    for (int i = 0; i < 32; i++) sum = sum * 7 + (unsigned)out[i];
    return sum;
}

START_TEST(a_missing_syncwarp_shows_in_some_order)
{
    bool differs = false;
    for (size_t o = 1; o < N_SIM_ORDERS; o++) {
        ck_assert_uint_eq(turn_sum(false, sim_orders[o]), turn_sum(false, "forward"));
        differs = differs || turn_sum(true, sim_orders[o]) != turn_sum(true, "forward");
    }
    ck_assert(differs);
}
END_TEST

START_TEST(unwritten_shared_memory_is_nan)
{
    float out[64];
    sim_with(NULL, NULL);
    float *p = device_alloc(sizeof out);
    ck_cuda(launch_unwritten_sum(p, NULL));
    from_device(out, p, sizeof out);
    ck_assert(isnan(out[0]));
    for (int launch = 0; launch < 2; launch++) { /* the first leaves ones behind */
        ck_cuda(launch_unwritten_static(p, NULL));
        from_device(out, p, sizeof out);
        ck_assert(isnan(out[0]));
    }
}
END_TEST

/* What lane l gets from collective k, by the CUDA programming guide's definitions. */
static int collective_want(int k, int l)
{
    int first8 = l / 8 * 8, first16 = l / 16 * 16, in_half = l < 16 ? 0 : 16, want = 0;
    switch (k) {
    case 0: return 70;
    case 1: return 10 * (first8 + (l + 3) % 8);
    case 2: return l - 2 < first16 ? 10 * l : 10 * (l - 2);
    case 3: return l + 5 >= first16 + 16 ? 10 * l : 10 * (l + 5);
    case 4: return 10 * (l ^ 9);
    case 5: return l < 16 ? 10 * l : 10 * (l ^ 16);
    case 6: return 0x49249249;
    case 7: return 2;
    case 8: return 2;
    case 9: return 10 * 31 * 16 - 3200;
    case 10: return 310 - 400;
    case 11: return 3;
    case 12:
        for (int i = 0; i < 16; i++) want += 10 * (in_half + i);
        return want;
    case 13: return 15;
    case 14: return l % 2 ? 50 : -1;
    default: return (int)(0xffu << first8);
    }
}

START_TEST(warp_collectives_follow_the_guide)
{
    static int out[N_COLLECTIVES][32];
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        int *p = device_alloc(sizeof out);
        ck_cuda(launch_collectives(p, NULL));
        from_device(out, p, sizeof out);
        for (int k = 0; k < N_COLLECTIVES; k++)
            for (int l = 0; l < 32; l++)
                ck_assert_msg(out[k][l] == collective_want(k, l),
                              "collective %d lane %d: %d, not %d", k, l, out[k][l],
                              collective_want(k, l));
    }
}
END_TEST

START_TEST(barriers_count_votes)
{
    int out[64];
    sim_with("ORDER", "random:3");
    int *p = device_alloc(sizeof out);
    ck_cuda(launch_barrier_votes(p, NULL));
    from_device(out, p, sizeof out);
    for (int t = 0; t < 64; t++) ck_assert_int_eq(out[t], 5 * 1000 + 0 + 10 + 0);
}
END_TEST

START_TEST(integer_atomics_add_up)
{
    const int want[8] = {400 * 399 / 2, 399, -399, 0x7fffffff, 5, 800, 0, -400};
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        int got[8] = {0};
        sim_with("ORDER", sim_orders[o]);
        int *p = device_copy_of(got, sizeof got);
        ck_cuda(launch_atomics(p, NULL));
        from_device(got, p, sizeof got);
        for (int i = 0; i < 8; i++) ck_assert_msg(got[i] == want[i], "%d: %d", i, got[i]);
    }
}
END_TEST

/* ---- tensor cores ---- */

enum { M = 16, N = 8, K = 16 };
static uint16_t a[M * K], b[K * N];
static float c[M * N], d[M * N], want[M * N];

/* Small integers and halves: products and sums are exact in any order. */
static void operands(bool f16)
{
    for (int i = 0; i < M * K; i++) {
        float x = (float)(i * 7 % 23 - 11) * 0.5f;
        a[i] = f16 ? f32_to_f16(x) : f32_to_bf16(x);
    }
    for (int i = 0; i < K * N; i++) {
        float x = (float)(i * 5 % 19 - 9);
        b[i] = f16 ? f32_to_f16(x) : f32_to_bf16(x);
    }
    for (int i = 0; i < M * N; i++) c[i] = (float)(i % 13);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            want[m * N + n] = c[m * N + n];
            for (int k = 0; k < K; k++) {
                float x = f16 ? f16_to_f32(a[m * K + k]) : bf16_to_f32(a[m * K + k]);
                float y = f16 ? f16_to_f32(b[k * N + n]) : bf16_to_f32(b[k * N + n]);
                want[m * N + n] += x * y;
            }
        }
}

static void multiply(int how)
{
    operands(how == 1);
    void *da = device_copy_of(a, sizeof a), *db = device_copy_of(b, sizeof b);
    void *dc = device_copy_of(c, sizeof c), *dd = device_alloc(sizeof d);
    if (how < 2)
        ck_cuda(launch_mma(how == 1, da, db, dc, dd, NULL));
    else
        ck_cuda(launch_mma_ldmatrix(da, db, dc, dd, NULL));
    from_device(d, dd, sizeof d);
    for (int i = 0; i < M * N; i++)
        ck_assert_msg(d[i] == want[i], "how %d, element %d: %g, not %g", how, i, (double)d[i],
                      (double)want[i]);
}

START_TEST(mma_is_the_plain_product)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        for (int how = 0; how < 3; how++) multiply(how);
    }
}
END_TEST

static bool copied_asynchronously(bool broken)
{
    enum { TILES = 9 };
    static float x[TILES * 32], y[TILES * 32];
    for (int i = 0; i < TILES * 32; i++) x[i] = (float)i;
    float *dx = device_copy_of(x, sizeof x), *dy = device_alloc(sizeof y);
    ck_cuda(launch_async_copy(broken, dx, dy, TILES, NULL));
    from_device(y, dy, sizeof y);
    return memcmp(x, y, sizeof x) == 0;
}

START_TEST(async_copies_land_at_the_wait)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        ck_assert(copied_asynchronously(false));
        ck_assert(!copied_asynchronously(true));
    }
}
END_TEST

/* ---- what cannot complete ---- */

static void expect_failure(enum mistake m, const char *words)
{
    sim_with(NULL, NULL);
    float *p = device_alloc(64);
    ck_cuda(launch_mistake(m, p, 16, NULL));
    ck_cuda_is(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    ck_assert_msg(strstr(sim_last_message(), words), "%s", sim_last_message());
    ck_assert_msg(strstr(sim_last_message(), "kernel mistake, block (0,0,0), thread ("), "%s",
                  sim_last_message());
    ck_assert_msg(strstr(sim_last_message(), "kernels.cc:"), "%s", sim_last_message());
    void *q;
    ck_cuda_is(cudaMalloc(&q, 16), cudaErrorLaunchFailure);
    ck_cuda_is(cudaGetLastError(), cudaErrorLaunchFailure);
    ck_cuda_is(cudaGetLastError(), cudaErrorLaunchFailure);
}

START_TEST(barriers_that_cannot_complete_are_reported)
{
    expect_failure(MISTAKE_HALF_BARRIER, "32 of 64 threads left the kernel");
    expect_failure(MISTAKE_TWO_BARRIERS, "other threads of the block wait in __syncthreads");
    expect_failure(MISTAKE_MISSING_LANE, "lanes 0x00000100 of warp 1 never come");
    expect_failure(MISTAKE_MASKS_DIFFER, "lane 0 waits in __syncwarp with mask 0x00000003");
    expect_failure(MISTAKE_NOT_IN_MASK, "does not name the calling lane 0");
    sim_with(NULL, NULL); /* and the device works again after a reset */
    sum_blocks(launch_block_sum);
}
END_TEST

TEST_MAIN("cuda_sim kernels", threads_know_where_they_are, barriers_make_order_irrelevant,
          a_race_shows_in_some_order, a_missing_syncwarp_shows_in_some_order,
          unwritten_shared_memory_is_nan, warp_collectives_follow_the_guide, barriers_count_votes,
          integer_atomics_add_up, mma_is_the_plain_product, async_copies_land_at_the_wait,
          barriers_that_cannot_complete_are_reported)
