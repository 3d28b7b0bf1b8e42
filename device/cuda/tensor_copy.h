/* Copies of tiles by the copy engine (TMA), and what their readers wait for; behind functions, with
 * the simulated device's twins. Capability 9.0, as warpgroup.h.
 *
 * A phase of arrivals (an mbarrier, 8 bytes of shared memory) ends when as many arrived as it was
 * made for, and all bytes that they announced are here; then the next one begins. Phases have
 * parity 0, 1, 0, …:
 *
 *     arrivals_init(at, n);  arrivals_known();  __syncthreads();    one thread; that one; all
 *     arrive_expecting(full, nbytes);  copy_tile(…, full);          the thread that brings a tile
 *     arrivals_wait(full, parity);                                  those that read it
 *     arrive(empty);                                                … and are through with it
 *     arrivals_wait(empty, parity);                                 before it is brought anew
 *
 * Waiting for parity 1 returns at once before any has come: that is the phase before the first.
 * Products read what copies brought without a fence, as both are of the async proxy.
 *
 * Sources: NVIDIA, PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg"; CUDA driver API,
 * "Tensor Map Object Management". */
#ifndef CZ_DEVICE_CUDA_TENSOR_COPY_H
#define CZ_DEVICE_CUDA_TENSOR_COPY_H

#include "device/cuda/warpgroup.h"

#ifdef CZ_CUDA_SIM
#include "sim_tensor_copy.h"
#endif

#include <cudaTypedefs.h>
#include <string.h>

/* What describes a tensor to the copy engine: a kernel's __grid_constant__ parameter. */
struct tensor_map {
#ifdef CZ_CUDA_SIM
    uint64_t words[16]; /* the simulator copies parameters to any address */
#else
    CUtensorMap map;
#endif
};

/* ---- on the host ----------------------------------------------------------------------------- */

/* Heads of width D, a multiple of 64, in positions `stride` elements apart, in batch rows `batch`
 * elements apart; 16 bits, all aligned to 16 bytes. */
struct tensor_of_heads {
    const void *p;
    int B, T, H, D;
    int64_t stride, batch;
    enum cz_dtype dtype;
};

static PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encode; /* the driver's, which nothing links */

/* Copies of one panel of a head: n_rows positions (256 at most) of 64 columns. Errors: CZ_CUDA. */
static inline cz_status tensor_map_make(struct tensor_map *out, const struct tensor_of_heads *t,
                                        int n_rows)
{
    const cuuint64_t sizes[4] = {(cuuint64_t)t->D, (cuuint64_t)t->H, (cuuint64_t)t->T,
                                 (cuuint64_t)t->B};
    const cuuint64_t strides[3] = {2 * (cuuint64_t)t->D, 2 * (cuuint64_t)t->stride,
                                   2 * (cuuint64_t)t->batch};
    const cuuint32_t box[4] = {PANEL_COLUMNS, 1, (cuuint32_t)n_rows, 1}, steps[4] = {1, 1, 1, 1};
    CUtensorMap map;
    if (!tensor_map_encode) {
        cudaDriverEntryPointQueryResult found;
        void *entry = NULL;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found),
                 "the driver's tensor maps");
        if (found != cudaDriverEntryPointSuccess || !entry)
            return err_set(CZ_CUDA, 0, "this driver has no cuTensorMapEncodeTiled");
        tensor_map_encode = (PFN_cuTensorMapEncodeTiled_v12000)entry;
    }
    const CUresult result = tensor_map_encode(
        &map,
        t->dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        4, (void *)(uintptr_t)t->p, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return err_set(CZ_CUDA, 0, "cuTensorMapEncodeTiled: error %d", (int)result);
    memcpy(out, &map, sizeof map);
    return CZ_OK;
}

/* ---- arrivals -------------------------------------------------------------------------------- */

CUDA_FN void arrivals_init(shared_at at, unsigned n)
{
#ifdef CZ_CUDA_SIM
    sim_mbarrier_init(at, (int)n);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory");
#endif
}

/* The copy engine knows what this thread made, too. */
CUDA_FN void arrivals_known(void)
{
#ifndef CZ_CUDA_SIM
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

CUDA_FN void arrive(shared_at at)
{
#ifdef CZ_CUDA_SIM
    sim_mbarrier_arrive(at, 0);
#else
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(at)
                 : "memory");
#endif
}

CUDA_FN void arrive_expecting(shared_at at, unsigned nbytes)
{
#ifdef CZ_CUDA_SIM
    sim_mbarrier_arrive(at, (int)nbytes);
#else
    asm volatile("{ .reg .b64 state; "
                 "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(at),
                 "r"(nbytes)
                 : "memory");
#endif
}

CUDA_FN bool arrivals_ended(shared_at at, unsigned parity)
{
#ifdef CZ_CUDA_SIM
    return sim_mbarrier_test(at, parity);
#else
    int is;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.b32 %0, 1, 0, p; }"
                 : "=r"(is)
                 : "r"(at), "r"(parity)
                 : "memory");
    return is;
#endif
}

/* Until the phase of that parity has ended. */
CUDA_FN void arrivals_wait(shared_at at, unsigned parity)
{
    while (!arrivals_ended(at, parity)) {
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Start copying a panel: columns from `column` on of a head, positions from `row` on; those past
 * the tensor's end become zeros, and count as bytes of the phase all the same. */
CUDA_FN void copy_tile(shared_at to, const struct tensor_map *map, int column, int head, int row,
                       int b, shared_at full)
{
#ifdef CZ_CUDA_SIM
    const int at[4] = {column, head, row, b};
    sim_copy_tensor(to, map->words, at, full);
#else
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(column), "r"(head), "r"(row), "r"(b), "r"(full)
                 : "memory");
#endif
}

/* ---- warpgroups ------------------------------------------------------------------------------ */

/* Registers of a thread from here on; all of a warpgroup call, and a block may not have more than
 * it began with. */
template <int N> CUDA_FN void registers_give_back(void)
{
#ifndef CZ_CUDA_SIM
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> CUDA_FN void registers_take(void)
{
#ifndef CZ_CUDA_SIM
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* __syncthreads() of some warpgroups, n_threads in all; number: from 0 to 6, theirs alone. */
CUDA_FN void warpgroups_sync(int number, int n_threads)
{
#ifdef CZ_CUDA_SIM
    sim_warpgroups_sync(number, n_threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(n_threads) : "memory");
#endif
}

#endif
