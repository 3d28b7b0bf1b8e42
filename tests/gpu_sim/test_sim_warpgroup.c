/* Claims: a warpgroup's products on the simulated device are the plain product, wherever operands
 * are and in every order of threads; their results are not there before the wait; and what the PTX
 * ISA leaves undefined ends the kernel with a sentence, or shows in the result. */
#include "tests/gpu_sim/sim_test.h"

#include "base/dtype.h"

#include <math.h>

enum { M = 64, N_MAX = 128, K = 64 };

static uint16_t a[M * K], b[K * N_MAX];
static float want[M * N_MAX], d[M * N_MAX];

/* Small whole numbers: sums are exact in any order. */
static void operands(bool f16, int n, bool by_columns)
{
    const enum cz_dtype dtype = f16 ? DTYPE_F16 : DTYPE_BF16;
    memset(want, 0, sizeof want);
    for (int i = 0; i < M * K; i++) dtype_put(a, (size_t)i, dtype, (float)(i * 7 % 13 - 6));
    for (int k = 0; k < K; k++)
        for (int j = 0; j < n; j++) {
            const float x = (float)((k * 5 + j * 3) % 11 - 5);
            dtype_put(b, (size_t)(by_columns ? k * n + j : j * K + k), dtype, x);
            for (int i = 0; i < M; i++) want[i * n + j] += (float)((i * K + k) * 7 % 13 - 6) * x;
        }
}

static cudaError_t multiply(bool f16, int n, bool registers, bool by_columns,
                            enum warpgroup_mistake mistake)
{
    operands(f16, n, by_columns);
    void *da = device_copy_of(a, sizeof a), *db = device_copy_of(b, sizeof b);
    void *dd = device_alloc(sizeof d);
    ck_cuda(launch_warpgroup(f16, n, registers, by_columns, mistake, da, db, dd, NULL));
    cudaError_t e = cudaDeviceSynchronize();
    if (e == cudaSuccess) from_device(d, dd, sizeof d);
    return e;
}

START_TEST(products_are_the_plain_product)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        for (int how = 0; how < 16; how++) {
            const int n = how & 1 ? 128 : 64;
            ck_cuda(multiply(how & 2, n, how & 4, how & 8, WARPGROUP_RIGHT));
            for (int i = 0; i < M * n; i++)
                ck_assert_msg(d[i] == want[i], "how %d, element %d: %g, not %g", how, i,
                              (double)d[i], (double)want[i]);
        }
    }
}
END_TEST

START_TEST(results_are_not_there_before_the_wait)
{
    sim_with(NULL, NULL);
    ck_cuda(multiply(false, 64, false, false, WARPGROUP_EARLY_READ));
    for (int i = 0; i < 128; i++) ck_assert(isnan(d[i]));
}
END_TEST

START_TEST(operands_are_read_late)
{
    sim_with(NULL, NULL);
    ck_cuda(multiply(false, 64, false, false, WARPGROUP_EARLY_OVERWRITE));
    ck_assert(memcmp(d, want, sizeof *d * M * 64) != 0);
}
END_TEST

static void expect_failure(enum warpgroup_mistake mistake, bool registers, const char *words)
{
    for (size_t o = 0; o < 2; o++) {
        sim_with("ORDER", sim_orders[o]);
        ck_cuda_is(multiply(false, 64, registers, true, mistake), cudaErrorLaunchFailure);
        ck_assert_msg(strstr(sim_last_message(), words), "%s", sim_last_message());
        ck_assert_msg(strstr(sim_last_message(), "kernel warpgroup, block (0,0,0)"), "%s",
                      sim_last_message());
    }
    sim_with(NULL, NULL); /* and the device works again after a reset */
    ck_cuda(multiply(false, 64, registers, true, WARPGROUP_RIGHT));
}

START_TEST(what_is_undefined_is_reported)
{
    expect_failure(WARPGROUP_NO_PROXY_FENCE, false, "has not called fence.proxy.async since");
    expect_failure(WARPGROUP_NO_FENCE, false, "no wgmma.fence since the last wait");
    expect_failure(WARPGROUP_NO_WAIT, false, "was never waited for");
    expect_failure(WARPGROUP_TWO_WAITS, false, "other threads of the warpgroup wait for");
    expect_failure(WARPGROUP_ONE_LESS, false, "127 of 128 threads began this product");
    expect_failure(WARPGROUP_ANOTHER_OPERAND, false, "began another product");
    expect_failure(WARPGROUP_BEYOND, false, "beyond dynamic shared memory");
    expect_failure(WARPGROUP_EARLY_WRITE, false, "wrote register 13 of D before the wait");
    expect_failure(WARPGROUP_EARLY_REUSE, true, "wrote A before the wait");
}
END_TEST

TEST_MAIN("cuda_sim warpgroup", products_are_the_plain_product,
          results_are_not_there_before_the_wait, operands_are_read_late,
          what_is_undefined_is_reported)
