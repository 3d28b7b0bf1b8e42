/* Claims: a copy by a tensor map on the simulated device brings a tile as the PTX ISA says, zeros
 * past the tensor's end, in every order of threads; it is not there before its mbarrier was waited
 * for; and what the ISA leaves undefined ends the kernel with a sentence. */
#include "tests/gpu_sim/sim_test.h"

enum { ROWS = 64, COLUMNS = 64, N = 100 };

static uint16_t x[N * COLUMNS], out[ROWS * COLUMNS];

static cudaError_t copy(enum tensor_copy_mistake mistake, int row)
{
    for (int i = 0; i < N * COLUMNS; i++) x[i] = (uint16_t)(i + 1);
    void *from = device_copy_of(x, sizeof x), *to = device_alloc(sizeof out);
    ck_cuda(launch_tensor_copy(mistake, from, N, row, to, NULL));
    cudaError_t e = cudaDeviceSynchronize();
    if (e == cudaSuccess) from_device(out, to, sizeof out);
    return e;
}

START_TEST(tiles_are_copied_and_end_in_zeros)
{
    for (size_t o = 0; o < N_SIM_ORDERS; o++) {
        sim_with("ORDER", sim_orders[o]);
        for (int row = 0; row < N; row += 36) {
            ck_cuda(copy(TENSOR_COPY_RIGHT, row));
            for (int i = 0; i < ROWS * COLUMNS; i++) {
                const int at = row * COLUMNS + i;
                ck_assert_uint_eq(out[i], at < N * COLUMNS ? x[at] : 0);
            }
        }
    }
}
END_TEST

START_TEST(a_tile_is_not_there_before_the_wait)
{
    sim_with(NULL, NULL);
    ck_cuda(copy(TENSOR_COPY_NO_WAIT, 0));
    for (int i = 0; i < ROWS * COLUMNS; i++) ck_assert_uint_eq(out[i], 0xFFFF);
}
END_TEST

static void expect_failure(enum tensor_copy_mistake mistake, const char *words)
{
    sim_with(NULL, NULL);
    ck_cuda_is(copy(mistake, 0), cudaErrorLaunchFailure);
    ck_assert_msg(strstr(sim_last_message(), words), "%s", sim_last_message());
    ck_assert_msg(strstr(sim_last_message(), "kernel tensor copy, block (0,0,0)"), "%s",
                  sim_last_message());
}

START_TEST(what_is_undefined_is_reported)
{
    expect_failure(TENSOR_COPY_NEVER_WAITED, "a copy of a tensor was never waited for");
    expect_failure(TENSOR_COPY_TWO_ARRIVE, "more than 1 arrive in a phase");
    expect_failure(TENSOR_COPY_NO_BARRIER, "there is no mbarrier at this address");
    expect_failure(TENSOR_COPY_TOO_FEW, "waits for ever at an mbarrier");
    expect_failure(TENSOR_COPY_OTHER_PLACE, "does not begin a swizzle's 1024 bytes");
}
END_TEST

TEST_MAIN("cuda_sim tensor copy", tiles_are_copied_and_end_in_zeros,
          a_tile_is_not_there_before_the_wait, what_is_undefined_is_reported)
