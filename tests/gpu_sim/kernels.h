/* Kernels that the tests of the simulated device launch; C, as the tests are. All pointers are
 * device memory, all calls asynchronous on the stream. */
#ifndef CZ_TESTS_CUDA_SIM_KERNELS_H
#define CZ_TESTS_CUDA_SIM_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An empty kernel with any launch shape, and one with parameters of 4096 or 4100 bytes. */
cudaError_t launch_empty(dim3 grid, dim3 block, size_t shared_nbytes, cudaStream_t s);
cudaError_t launch_big_params(bool too_big, cudaStream_t s);
cudaError_t allow_shared(size_t nbytes); /* of the empty kernel */

/* out[i] = linear number of the thread that has index i of a (3, 4, 5) grid of (6, 7, 2) blocks. */
cudaError_t launch_where(int *out, cudaStream_t s);

/* y[i] = a·x[i] + y[i]; no barriers. */
cudaError_t launch_saxpy(float a, const float *x, float *y, size_t n, cudaStream_t s);
/* out[block] = sum of 256 values of x, through shared memory and 9 barriers. */
cudaError_t launch_block_sum(const float *x, float *out, unsigned n_blocks, cudaStream_t s);
/* The same without the barriers between the steps: a race. */
cudaError_t launch_racy_sum(const float *x, float *out, unsigned n_blocks, cudaStream_t s);
/* The same in dynamic shared memory, where the last half of the values is never written. */
cudaError_t launch_unwritten_sum(float *out, cudaStream_t s);
/* The same in static shared memory. */
cudaError_t launch_unwritten_static(float *out, cudaStream_t s);
/* A kernel with 32 KiB of static shared memory: one that allow_half_static() names, another. */
cudaError_t launch_half_static(bool allowed, float *out, size_t shared_nbytes, cudaStream_t s);
cudaError_t allow_half_static(size_t nbytes);
/* Through warp shuffles, with a missing __syncwarp between write and read when racy. */
cudaError_t launch_warp_turn(bool racy, const int *x, int *out, cudaStream_t s);

/* out[kind·32 + lane]: shuffles, votes and reductions of lane values 10·lane (see the test). */
#define N_COLLECTIVES 16
cudaError_t launch_collectives(int *out, cudaStream_t s);
/* out[t] = number of threads that passed, by __syncthreads_count, _or, _and of t < 5, t < 0, t
 * < 64. */
cudaError_t launch_barrier_votes(int *out, cudaStream_t s);
/* Values that threads of a block and blocks add up, by each integer atomic. */
cudaError_t launch_atomics(int *sums, cudaStream_t s);

/* d (16,8) = a (16,16) · b (16,8) + c: one warp, through registers (PTX layouts) or ldmatrix. */
cudaError_t launch_mma(bool f16, const uint16_t *a, const uint16_t *b, const float *c, float *d,
                       cudaStream_t s);
cudaError_t launch_mma_ldmatrix(const uint16_t *a, const uint16_t *b, const float *c, float *d,
                                cudaStream_t s);
/* y = x (n_tiles tiles of 128 bytes) through double-buffered cp.async; without the wait when
 * broken. */
cudaError_t launch_async_copy(bool broken, const float *x, float *y, int n_tiles, cudaStream_t s);

/* d (64,n) = a (64,64) · b: one warpgroup; n 64 or 128. a through registers or shared memory; b is
 * stored (64,n) by columns, or (n,64). */
enum warpgroup_mistake {
    WARPGROUP_RIGHT = 0,
    WARPGROUP_NO_PROXY_FENCE, /* what cp.async wrote is multiplied */
    WARPGROUP_NO_FENCE,
    WARPGROUP_NO_WAIT,
    WARPGROUP_TWO_WAITS,       /* half of the threads wait for less */
    WARPGROUP_ONE_LESS,        /* a thread leaves out the last product */
    WARPGROUP_ANOTHER_OPERAND, /* of one thread */
    WARPGROUP_BEYOND,          /* b is beyond shared memory */
    WARPGROUP_EARLY_WRITE,     /* of d, before the wait */
    WARPGROUP_EARLY_REUSE,     /* of a's registers */
    WARPGROUP_EARLY_OVERWRITE, /* of a in shared memory */
    WARPGROUP_EARLY_READ       /* of d: out[thread] is what it read */
};
cudaError_t launch_warpgroup(bool f16, int n, bool registers, bool by_columns,
                             enum warpgroup_mistake mistake, const uint16_t *a, const uint16_t *b,
                             float *d, cudaStream_t s);

/* out (64,64) = the 64 positions from `row` on of x, which has n_rows of 64 columns; those past its
 * end are 0. One warpgroup, by a tensor map. */
enum tensor_copy_mistake {
    TENSOR_COPY_RIGHT = 0,
    TENSOR_COPY_NO_WAIT, /* out is what was there before */
    TENSOR_COPY_NEVER_WAITED,
    TENSOR_COPY_TWO_ARRIVE, /* in a phase of one */
    TENSOR_COPY_NO_BARRIER, /* it was not made */
    TENSOR_COPY_TOO_FEW,    /* arrive: the phase never ends */
    TENSOR_COPY_OTHER_PLACE /* in the middle of a swizzle */
};
cudaError_t launch_tensor_copy(enum tensor_copy_mistake mistake, const uint16_t *x, int n_rows,
                               int row, uint16_t *out, cudaStream_t s);

enum mistake {
    MISTAKE_HALF_BARRIER = 0, /* half of the block returns before a barrier */
    MISTAKE_TWO_BARRIERS,     /* the block's halves wait in different lines */
    MISTAKE_MISSING_LANE,     /* a shuffle names a lane that left */
    MISTAKE_MASKS_DIFFER,
    MISTAKE_NOT_IN_MASK,
    MISTAKE_BEYOND,        /* writes a float behind p[n] */
    MISTAKE_FAR_BEYOND,    /* writes 1 KiB behind it */
    MISTAKE_SHARED_BEYOND, /* writes behind dynamic shared memory */
    MISTAKE_DEEP_STACK,
    MISTAKE_UNALIGNED /* reads 8 bytes at p + 4 */
};
cudaError_t launch_mistake(enum mistake m, float *p, size_t n, cudaStream_t s);

/* y[i] = x[i] + 1 (after what is before it on the stream). */
cudaError_t launch_add_one(const float *x, float *y, size_t n, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
