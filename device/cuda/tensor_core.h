/* Tensor cores and the copies that feed them: PTX behind functions, with the simulated device's
 * twins. Capability 8.0 and up. All 32 lanes of a warp call the warp-wide ones together.
 *
 * With g = lane / 4 and t = lane % 4, the 16-bit operands of mma_16x8x16 are in registers as
 *   A (16×16)  a[0] (g, 2t..2t+1)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
 *   B (16×8)   b0 (2t..2t+1, g)    b1 (2t+8.., g)
 *   C (16×8)   c[0], c[1] (g, 2t..2t+1)   c[2], c[3] (g+8, 2t..2t+1)
 * Source: NVIDIA, PTX ISA, "Warp-level matrix instructions". */
#ifndef CZ_DEVICE_CUDA_TENSOR_CORE_H
#define CZ_DEVICE_CUDA_TENSOR_CORE_H

#include "device/cuda/kernel.h"

/* An address in shared memory, as PTX takes it. */
#ifdef CZ_CUDA_SIM
typedef uintptr_t shared_at;
#else
typedef uint32_t shared_at;
#endif

CUDA_FN shared_at shared_address(const void *p)
{
#ifdef CZ_CUDA_SIM
    return (uintptr_t)p;
#else
    return (uint32_t)__cvta_generic_to_shared(p);
#endif
}

/* A block's dynamic shared memory as tiles: aligned to 128 bytes, and so is its size. */
#ifdef CZ_CUDA_SIM
#define CUDA_SHARED_TILES(name) unsigned char *name = (unsigned char *)sim_dynamic_shared()
#else
#define CUDA_SHARED_TILES(name)                                                                    \
    extern __shared__ __align__(128) unsigned char cz_shared_tiles[];                              \
    unsigned char *name = cz_shared_tiles
#endif

/* ---- products -------------------------------------------------------------------------------- */

/* c += a·b, sums in fp32; T: struct bf16 or struct f16. */
template <typename T>
CUDA_FN void mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

#ifdef CZ_CUDA_SIM
template <>
__device__ __forceinline__ void mma_16x8x16<struct bf16>(float c[4], const uint32_t a[4],
                                                         uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = {b0, b1};
    sim_mma_m16n8k16_bf16(c, a, b, c);
}
template <>
__device__ __forceinline__ void mma_16x8x16<struct f16>(float c[4], const uint32_t a[4],
                                                        uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = {b0, b1};
    sim_mma_m16n8k16_f16(c, a, b, c);
}
#else
#define MMA_16X8X16(type)                                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                    \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                           \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <>
__device__ __forceinline__ void mma_16x8x16<struct bf16>(float c[4], const uint32_t a[4],
                                                         uint32_t b0, uint32_t b1)
{
    MMA_16X8X16("bf16");
}
template <>
__device__ __forceinline__ void mma_16x8x16<struct f16>(float c[4], const uint32_t a[4],
                                                        uint32_t b0, uint32_t b1)
{
    MMA_16X8X16("f16");
}
#undef MMA_16X8X16
#endif

/* The compiler no longer knows where *x comes from: what is derived from it inside a loop is made
 * there, instead of filling registers for the loop's whole length. x: 32 bits, or a pointer. */
template <typename X> CUDA_FN void forget_origin(X *x)
{
#ifdef CZ_CUDA_SIM
    (void)x;
#else
    if constexpr (sizeof *x == 8)
        asm volatile("" : "+l"(*x));
    else
        asm volatile("" : "+r"(*x));
#endif
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Four 8×8 matrices of 16-bit elements: lane i brings the address (16 bytes, aligned) of row i % 8
 * of matrix i / 8, and takes from matrix m, in r[m], elements (g, 2t..2t+1); transposed:
 * (2t..2t+1, g). */
CUDA_FN void load_matrices(uint32_t r[4], shared_at row)
{
#ifdef CZ_CUDA_SIM
    sim_ldmatrix_x4(r, (const void *)row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
#endif
}

CUDA_FN void load_matrices_transposed(uint32_t r[4], shared_at row)
{
#ifdef CZ_CUDA_SIM
    sim_ldmatrix_x4_trans(r, (const void *)row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
#endif
}

/* One aligned word. */
CUDA_FN void store_word(shared_at to, uint32_t x)
{
#ifdef CZ_CUDA_SIM
    *(uint32_t *)to = x;
#else
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
#endif
}

/* Start copying 16 bytes from global to shared memory, zeros when not `valid` (src is not read
 * then); both aligned to 16. */
CUDA_FN void copy_async_16(shared_at dst, const void *src, bool valid)
{
#ifdef CZ_CUDA_SIM
    sim_cp_async_16((void *)dst, src, valid);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst),
                 "l"(__cvta_generic_to_global(src)), "r"(valid ? 16 : 0)
                 : "memory");
#endif
}

/* What this thread started since the last commit is one group. */
CUDA_FN void copy_async_commit(void)
{
#ifdef CZ_CUDA_SIM
    sim_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait until at most N of this thread's newest groups are still on their way. Other threads' copies
 * need a barrier on top. */
template <int N> CUDA_FN void copy_async_wait(void)
{
#ifdef CZ_CUDA_SIM
    sim_cp_async_wait_group(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
