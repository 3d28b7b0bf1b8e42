/* Products of a warpgroup (wgmma) behind functions, with the simulated device's twins. Capability
 * 9.0 alone: sources that include this are compiled for sm_90a (cmake/CzeroCuda.cmake).
 *
 * A warpgroup is 4 warps whose first one's number is a multiple of 4; all its 128 threads call
 * together and bring the same matrices and flags. Products run on their own:
 *
 *     products_fence();                  registers written so far are as the products will see them
 *     multiply_…(d, …);                  any number, in order; those on the same d add up
 *     products_commit();                 they are a group
 *     products_wait<0>();                all but the newest 0 groups are done
 *     settle(d);                         and the compiler knows it
 *
 * Until then d may be neither read nor written, a[] not written, and the shared memory that they
 * read not written. Threads that wrote such shared memory (cp.async too, once it has landed) call
 * shared_to_products() before the barrier that lets others multiply.
 *
 * With w = warp of the warpgroup, g = lane / 4, t = lane % 4, registers hold
 *   D (64×N)   d[c][0..1] (16w + g, 8c + 2t..)       d[c][2..3] (16w + g + 8, 8c + 2t..)
 *   A (64×16)  a[0] (16w + g, 2t..2t+1)  a[1] (16w + g + 8, 2t..)  a[2] (16w + g, 2t+8..)
 *              a[3] (16w + g + 8, 2t+8..)
 * so that D of one product, rounded, is A of the next.
 *
 * A matrix in shared memory is in panels of 64 columns: rows of 128 bytes, of which 16-byte chunk
 * c of row r is at chunk c ^ (r % 8); panels begin at multiples of 1024 bytes. Either its columns
 * run along k ("by rows": K-major) or its rows do ("by columns": MN-major, the transposed operand).
 *
 * Sources: NVIDIA, PTX ISA, "Asynchronous warpgroup level matrix instructions": "Register fragments
 * and shared memory matrix layouts", "Matrix descriptor", "Async proxy", wgmma.fence,
 * wgmma.mma_async, wgmma.commit_group, wgmma.wait_group; "membar/fence": fence.proxy. Which field
 * of a descriptor is which stride of a swizzled layout is also said in CUTLASS's
 * cute/atom/mma_traits_sm90_gmma.hpp. */
#ifndef CZ_DEVICE_CUDA_WARPGROUP_H
#define CZ_DEVICE_CUDA_WARPGROUP_H

#include "device/cuda/tensor_core.h"

#define WARPGROUP        128 /* threads */
#define PANEL_COLUMNS    64  /* of 16 bits */
#define PANEL_ROW_NBYTES 128
#define PANEL_ALIGN      1024 /* bytes after which the permutation of chunks repeats */

/* ---- matrices in shared memory --------------------------------------------------------------- */

/* What names a matrix to a product. Adding (bytes >> 4) moves its beginning. */
typedef uint64_t shared_matrix;

/* Bits 0–13 the address, 16–29 the leading and 32–45 the stride dimension byte offset, all in units
 * of 16 bytes; 49–51 the base offset, 0 as panels are aligned; 62–63 = 1: 128-byte swizzle. */
CUDA_FN shared_matrix matrix_of(shared_at panel, unsigned leading, unsigned stride)
{
    return (uint64_t)((uint32_t)panel >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}

/* Rows along m or n, columns along k; one product takes 16 columns: those of its panel that begin
 * at the address. Eight rows are 1024 bytes; the leading dimension has one panel and no stride. */
CUDA_FN shared_matrix matrix_by_rows(shared_at panel)
{
    return matrix_of(panel, 16, 8 * PANEL_ROW_NBYTES);
}

/* Rows along k, of which one product takes 16; columns along n, in panels of `panel_nbytes`. */
CUDA_FN shared_matrix matrix_by_columns(shared_at panel, unsigned panel_nbytes)
{
    return matrix_of(panel, panel_nbytes, 8 * PANEL_ROW_NBYTES);
}

/* The first byte of `room` that a panel can begin at: ask for PANEL_ALIGN bytes more. */
CUDA_FN unsigned char *first_panel(unsigned char *room)
{
    const shared_at at = shared_address(room);
    return room + ((at + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN - at);
}

/* ---- order ----------------------------------------------------------------------------------- */

CUDA_FN void products_fence(void)
{
#ifdef CZ_CUDA_SIM
    sim_wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

CUDA_FN void products_commit(void)
{
#ifdef CZ_CUDA_SIM
    sim_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int N> CUDA_FN void products_wait(void)
{
#ifdef CZ_CUDA_SIM
    sim_wgmma_wait(N);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/* After the wait: what the compiler makes of d stays behind it. */
template <int COLS> CUDA_FN void settle(float (&d)[COLS][4])
{
#ifdef CZ_CUDA_SIM
    (void)d;
#else
#pragma unroll
    for (int i = 0; i < COLS * 4; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
#endif
}

template <int COLS> CUDA_FN void settle(uint32_t (&a)[COLS][4])
{
#ifdef CZ_CUDA_SIM
    (void)a;
#else
#pragma unroll
    for (int i = 0; i < COLS * 4; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
#endif
}

/* What this thread wrote to shared memory is there for products, once a barrier has told. */
CUDA_FN void shared_to_products(void)
{
#ifdef CZ_CUDA_SIM
    sim_fence_proxy_async();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- products ----------------------------------------------------------------------------------
 *
 * d (64×N) = a·b, or += with `adds`; a 64×16, b 16×N; T: struct bf16 or struct f16; N: 64 or 128.
 * BY_COLUMNS, A_BY_COLUMNS: b, a is stored by columns, not by rows. */

#ifdef CZ_CUDA_SIM
template <typename T> struct is_bf16 {
    static constexpr bool value = false;
};
template <> struct is_bf16<struct bf16> {
    static constexpr bool value = true;
};

template <typename T, int N, bool BY_COLUMNS, bool A_BY_COLUMNS = false>
CUDA_FN void multiply_shared(float (&d)[N / 8][4], shared_matrix a, shared_matrix b, bool adds)
{
    sim_wgmma(&d[0][0], N, is_bf16<T>::value, nullptr, a, b, BY_COLUMNS, adds, A_BY_COLUMNS);
}
template <typename T, int N, bool BY_COLUMNS>
CUDA_FN void multiply_registers(float (&d)[N / 8][4], const uint32_t (&a)[4], shared_matrix b,
                                bool adds)
{
    sim_wgmma(&d[0][0], N, is_bf16<T>::value, a, 0, b, BY_COLUMNS, adds, false);
}
#else
#define D4(c)  "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])
#define D32(c) D4(c), D4(c + 1), D4(c + 2), D4(c + 3), D4(c + 4), D4(c + 5), D4(c + 6), D4(c + 7)
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* The last immediates: neither operand negated, then how a (where it is in memory) and b are
 * stored.
 */
#define WGMMA_SHARED(type, n, names, a_name, b_name, adds_name, a_by_name, by_name, ...)           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " adds_name ", 0; "                               \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names         \
                 "}, " a_name ", " b_name ", p, 1, 1, " a_by_name ", " by_name "; }"               \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"((int)adds), "n"((int)A_BY_COLUMNS), "n"((int)BY_COLUMNS))
#define WGMMA_REGISTERS(type, n, names, a_names, b_name, adds_name, by_name, ...)                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " adds_name ", 0; "                               \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names         \
                 "}, {" a_names "}, " b_name ", p, 1, 1, " by_name "; }"                           \
                 : __VA_ARGS__                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds),             \
                   "n"((int)BY_COLUMNS))

template <typename T, int N, bool BY_COLUMNS> struct wgmma;

#define WGMMA_OF(T, type)                                                                          \
    template <bool BY_COLUMNS> struct wgmma<T, 64, BY_COLUMNS> {                                   \
        template <bool A_BY_COLUMNS>                                                               \
        static __device__ __forceinline__ void shared(float (&d)[8][4], uint64_t a, uint64_t b,    \
                                                      bool adds)                                   \
        {                                                                                          \
            WGMMA_SHARED(type, "64", NAMES_32, "%32", "%33", "%34", "%35", "%36", D32(0));         \
        }                                                                                          \
        static __device__ __forceinline__ void registers(float (&d)[8][4], const uint32_t (&a)[4], \
                                                         uint64_t b, bool adds)                    \
        {                                                                                          \
            WGMMA_REGISTERS(type, "64", NAMES_32, "%32,%33,%34,%35", "%36", "%37", "%38", D32(0)); \
        }                                                                                          \
    };                                                                                             \
    template <bool BY_COLUMNS> struct wgmma<T, 128, BY_COLUMNS> {                                  \
        template <bool A_BY_COLUMNS>                                                               \
        static __device__ __forceinline__ void shared(float (&d)[16][4], uint64_t a, uint64_t b,   \
                                                      bool adds)                                   \
        {                                                                                          \
            WGMMA_SHARED(type, "128", NAMES_64, "%64", "%65", "%66", "%67", "%68", D32(0),         \
                         D32(8));                                                                  \
        }                                                                                          \
        static __device__ __forceinline__ void                                                     \
        registers(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool adds)                \
        {                                                                                          \
            WGMMA_REGISTERS(type, "128", NAMES_64, "%64,%65,%66,%67", "%68", "%69", "%70", D32(0), \
                            D32(8));                                                               \
        }                                                                                          \
    }
WGMMA_OF(struct bf16, "bf16");
WGMMA_OF(struct f16, "f16");
#undef WGMMA_OF
#undef WGMMA_REGISTERS
#undef WGMMA_SHARED
#undef NAMES_64
#undef NAMES_32
#undef D32
#undef D4

template <typename T, int N, bool BY_COLUMNS, bool A_BY_COLUMNS = false>
CUDA_FN void multiply_shared(float (&d)[N / 8][4], shared_matrix a, shared_matrix b, bool adds)
{
    wgmma<T, N, BY_COLUMNS>::template shared<A_BY_COLUMNS>(d, a, b, adds);
}
template <typename T, int N, bool BY_COLUMNS>
CUDA_FN void multiply_registers(float (&d)[N / 8][4], const uint32_t (&a)[4], shared_matrix b,
                                bool adds)
{
    wgmma<T, N, BY_COLUMNS>::registers(d, a, b, adds);
}
#endif

#endif
