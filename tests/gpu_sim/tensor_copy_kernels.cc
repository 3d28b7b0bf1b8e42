/* A copy by a tensor map through device/cuda/tensor_copy.h, right and with mistakes. */
#include "device/cuda/tensor_copy.h"
#include "tests/gpu_sim/kernels.h"

#define ROWS 64

static __global__ void tensor_copy_kernel(enum tensor_copy_mistake mistake,
                                          const struct tensor_map map, int row, uint16_t *out)
{
    CUDA_DYNAMIC_SHARED(unsigned char, space);
    unsigned char *const mem = first_panel(space);
    const shared_at tile = shared_address(mem), here = tile + ROWS * PANEL_ROW_NBYTES;
    const int thread = (int)threadIdx.x;
    if (thread == 0) {
        if (mistake != TENSOR_COPY_NO_BARRIER)
            arrivals_init(here, mistake == TENSOR_COPY_TOO_FEW ? 2 : 1);
        arrivals_known();
        arrive_expecting(here, ROWS * PANEL_ROW_NBYTES);
        if (mistake == TENSOR_COPY_TWO_ARRIVE) arrive_expecting(here, 0);
        copy_tile(mistake == TENSOR_COPY_OTHER_PLACE ? tile + 512 : tile, &map, 0, 0, row, 0, here);
    }
    __syncthreads();
    if (mistake == TENSOR_COPY_NEVER_WAITED) return;
    if (mistake != TENSOR_COPY_NO_WAIT) arrivals_wait(here, 0);
    for (int i = thread; i < ROWS * 8; i += WARPGROUP)
        memcpy(out + 8 * i, mem + i / 8 * PANEL_ROW_NBYTES + ((i % 8 ^ i / 8 % 8) << 4), 16);
    __syncthreads();
    if (mistake == TENSOR_COPY_NO_WAIT) arrivals_wait(here, 0);
}

cudaError_t launch_tensor_copy(enum tensor_copy_mistake mistake, const uint16_t *x, int n_rows,
                               int row, uint16_t *out, cudaStream_t s)
{
    const cuuint64_t sizes[4] = {64, 1, (cuuint64_t)n_rows, 1}, strides[3] = {128, 128, 128};
    const cuuint32_t box[4] = {64, 1, ROWS, 1}, steps[4] = {1, 1, 1, 1};
    cudaDriverEntryPointQueryResult found;
    CUtensorMap encoded;
    struct tensor_map map;
    void *entry;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, 0, &found);
    if (found != cudaDriverEntryPointSuccess) return cudaErrorUnknown;
    if (((PFN_cuTensorMapEncodeTiled_v12000)entry)(
            &encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)(uintptr_t)x, sizes, strides,
            box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    memcpy(&map, &encoded, sizeof map);
    return sim_launch("tensor copy", tensor_copy_kernel, 1, WARPGROUP,
                      PANEL_ALIGN + ROWS * PANEL_ROW_NBYTES + 8, s, mistake, map, row, out);
}
