/* Products of a warpgroup through device/cuda/warpgroup.h, right and with mistakes. */
#include "device/cuda/warpgroup.h"
#include "tests/gpu_sim/kernels.h"

#define K 64

/* A matrix of n_rows by n_columns, a multiple of 64, into panels. */
static void start_matrix(shared_at to, const uint16_t *from, int n_rows, int n_columns)
{
    for (int i = (int)threadIdx.x; i < n_rows * n_columns / 8; i += WARPGROUP) {
        const int row = i / (n_columns / 8), chunk = i % (n_columns / 8), panel = chunk / 8;
        copy_async_16(to + (shared_at)((panel * n_rows + row) * PANEL_ROW_NBYTES +
                                       ((chunk % 8 ^ row % 8) << 4)),
                      from + 8 * i, true);
    }
}

template <typename T, int N, bool BY_COLUMNS, bool REGISTERS>
static __global__ void warpgroup_kernel(enum warpgroup_mistake mistake, const uint16_t *a,
                                        const uint16_t *b, float *out)
{
    CUDA_DYNAMIC_SHARED(unsigned char, space);
    unsigned char *const mem = first_panel(space);
    const shared_at a_at = shared_address(mem), b_at = a_at + 64 * PANEL_ROW_NBYTES;
    const int thread = (int)threadIdx.x, g = thread % 32 / 4, t = thread % 4;
    const int row = thread / 32 * 16 + g;
    start_matrix(a_at, a, 64, K);
    start_matrix(b_at, b, BY_COLUMNS ? K : N, BY_COLUMNS ? N : K);
    copy_async_commit();
    copy_async_wait<0>();
    if (mistake != WARPGROUP_NO_PROXY_FENCE) shared_to_products();
    __syncthreads();

    uint32_t own[K / 16][4];
    for (int k = 0; k < K / 16; k++)
        for (int r = 0; r < 4; r++)
            memcpy(&own[k][r], a + (row + r % 2 * 8) * K + 16 * k + r / 2 * 8 + 2 * t, 4);
    float d[N / 8][4];
    if (mistake != WARPGROUP_NO_FENCE) products_fence();
    for (int k = 0; k < K / 16; k++) {
        shared_matrix left = matrix_by_rows(a_at) + (32 * k >> 4);
        shared_matrix right =
            BY_COLUMNS ? matrix_by_columns(b_at + 16 * k * PANEL_ROW_NBYTES, K * PANEL_ROW_NBYTES)
                       : matrix_by_rows(b_at) + (32 * k >> 4);
        if (mistake == WARPGROUP_ANOTHER_OPERAND && thread == 70) left += 2;
        if (mistake == WARPGROUP_ONE_LESS && thread == 70 && k == 3) continue;
        if (mistake == WARPGROUP_BEYOND) right -= 0x2000;
        if (REGISTERS)
            multiply_registers<T, N, BY_COLUMNS>(d, own[k], right, k > 0);
        else
            multiply_shared<T, N, BY_COLUMNS>(d, left, right, k > 0);
    }
    products_commit();
    if (mistake == WARPGROUP_EARLY_READ) out[thread] = d[0][0];
    if (mistake == WARPGROUP_EARLY_WRITE) d[3][1] *= 2;
    if (mistake == WARPGROUP_EARLY_REUSE) own[1][2] = 0;
    if (mistake == WARPGROUP_EARLY_OVERWRITE) memset(mem, 0, 64 * PANEL_ROW_NBYTES);
    if (mistake == WARPGROUP_TWO_WAITS && thread >= 64)
        products_wait<1>();
    else if (mistake != WARPGROUP_NO_WAIT)
        products_wait<0>();
    if (mistake == WARPGROUP_EARLY_READ) return;
    for (int i = 0; i < N / 2; i++)
        out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * t + i % 2] = d[i / 4][i % 4];
}

template <typename T, int N, bool BY_COLUMNS>
static cudaError_t launch(bool registers, enum warpgroup_mistake mistake, const uint16_t *a,
                          const uint16_t *b, float *d, cudaStream_t s)
{
    const size_t nbytes = PANEL_ALIGN + (64 + 128) * PANEL_ROW_NBYTES;
    return sim_launch("warpgroup",
                      registers ? warpgroup_kernel<T, N, BY_COLUMNS, true>
                                : warpgroup_kernel<T, N, BY_COLUMNS, false>,
                      1, WARPGROUP, nbytes, s, mistake, a, b, d);
}

template <typename T>
static cudaError_t launch_of(int n, bool registers, bool by_columns, enum warpgroup_mistake mistake,
                             const uint16_t *a, const uint16_t *b, float *d, cudaStream_t s)
{
    if (n == 64)
        return by_columns ? launch<T, 64, true>(registers, mistake, a, b, d, s)
                          : launch<T, 64, false>(registers, mistake, a, b, d, s);
    return by_columns ? launch<T, 128, true>(registers, mistake, a, b, d, s)
                      : launch<T, 128, false>(registers, mistake, a, b, d, s);
}

cudaError_t launch_warpgroup(bool f16, int n, bool registers, bool by_columns,
                             enum warpgroup_mistake mistake, const uint16_t *a, const uint16_t *b,
                             float *d, cudaStream_t s)
{
    return f16 ? launch_of<struct f16>(n, registers, by_columns, mistake, a, b, d, s)
               : launch_of<struct bf16>(n, registers, by_columns, mistake, a, b, d, s);
}
