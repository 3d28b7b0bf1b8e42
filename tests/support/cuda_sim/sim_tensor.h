/* Tensor-core instructions, as functions that all 32 lanes of a warp call together. Register
 * layouts are those of the PTX ISA (warp-level matrix instructions); g = lane / 4, t = lane % 4:
 *
 *   A (16×16, row): a[0] (g, 2t..2t+1)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
 *   B (16×8, col):  b[0] (2t..2t+1, g)  b[1] (2t+8.., g)
 *   C, D (16×8):    d[0], d[1] (g, 2t..2t+1)   d[2], d[3] (g+8, 2t..2t+1)
 *
 * The lower index is in the lower half of a register. Products are exact, sums in fp32 by rising
 * k; hardware sums in an order of its own, so agreement is up to rounding.
 *
 * cp.async copies land when their thread waits for them (sometimes before, in random order), so
 * that a missing wait or barrier reads what was there before. */
#ifndef CZ_TESTS_SIM_TENSOR_H
#define CZ_TESTS_SIM_TENSOR_H

#include "sim_collective.h"

void sim_evaluate_mma_bf16(sim_lanes lanes, unsigned mask);
void sim_evaluate_mma_f16(sim_lanes lanes, unsigned mask);
void sim_evaluate_ldmatrix(sim_lanes lanes, unsigned mask);

inline float sim_float_of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

inline float sim_float_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
    uint32_t bits = sign | (exponent + 112) << 23 | mantissa << 13;
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    if (exponent > 0) return f;
    f = (float)mantissa * 0x1p-24f; /* subnormal or zero */
    return sign ? -f : f;
}

struct sim_mma_operands {
    const uint32_t *a, *b;
    const float *c;
};

inline void sim_mma(sim_evaluate evaluate, const char *what, float *d, const uint32_t *a,
                    const uint32_t *b, const float *c, const char *file, int line)
{
    struct sim_mma_operands operands = {a, b, c};
    struct sim_lane *lane = sim_exec_lane();
    lane->arg = &operands;
    lane->out = d;
    sim_exec_collective(evaluate, what, 0xffffffffu, file, line);
}

/* d = a · b + c; d and c may be the same registers. */
inline void sim_mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                  const float c[4], SIM_SITE)
{
    sim_mma(sim_evaluate_mma_bf16, "mma.m16n8k16.bf16", d, a, b, c, file, line);
}
inline void sim_mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                 const float c[4], SIM_SITE)
{
    sim_mma(sim_evaluate_mma_f16, "mma.m16n8k16.f16", d, a, b, c, file, line);
}

inline void sim_ldmatrix(uint32_t *r, const void *row, int n, bool trans, const char *what,
                         const char *file, int line)
{
    struct sim_lane *lane = sim_exec_lane();
    lane->arg = row;
    lane->out = r;
    lane->param = n;
    lane->width = trans;
    sim_exec_collective(sim_evaluate_ldmatrix, what, 0xffffffffu, file, line);
}

/* Load n 8×8 matrices of 16-bit elements: lane i brings the address of row i % 8 of matrix i / 8
 * (16 bytes, aligned), and takes from each matrix m, in r[m], elements (g, 2t..2t+1); transposed:
 * (2t..2t+1, g). x2 reads the addresses of lanes 0..15, x1 those of 0..7. */
inline void sim_ldmatrix_x4(uint32_t r[4], const void *row, SIM_SITE)
{
    sim_ldmatrix(r, row, 4, false, "ldmatrix.x4", file, line);
}
inline void sim_ldmatrix_x4_trans(uint32_t r[4], const void *row, SIM_SITE)
{
    sim_ldmatrix(r, row, 4, true, "ldmatrix.x4.trans", file, line);
}
inline void sim_ldmatrix_x2(uint32_t r[2], const void *row, SIM_SITE)
{
    sim_ldmatrix(r, row, 2, false, "ldmatrix.x2", file, line);
}
inline void sim_ldmatrix_x2_trans(uint32_t r[2], const void *row, SIM_SITE)
{
    sim_ldmatrix(r, row, 2, true, "ldmatrix.x2.trans", file, line);
}

/* 16 bytes from global to shared memory; not valid: zeros. */
inline void sim_cp_async_16(void *shared, const void *global, bool valid = true)
{
    sim_exec_async_copy(shared, global, 16, valid ? 16 : 0);
}
inline void sim_cp_async_commit(void)
{
    sim_exec_async_commit();
}
/* Wait until at most n of this thread's newest committed groups are unfinished. */
inline void sim_cp_async_wait_group(int n)
{
    sim_exec_async_wait(n);
}
inline void sim_cp_async_wait_all(void)
{
    sim_exec_async_wait(-1);
}

#endif
