/* mma and ldmatrix for a whole warp: see sim_tensor.h for the layouts. */
#include "sim_tensor.h"

float sim_float_of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float sim_float_of_f16(uint16_t x)
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

/* The two 16-bit halves of register r of a lane go to (row, col) and (row, col + 1) of a matrix. */
template <class F> static void unpack(float *low, float *high, uint32_t r, F convert)
{
    *low = convert((uint16_t)r);
    *high = convert((uint16_t)(r >> 16));
}

template <class F> static void mma(sim_lanes lanes, F convert)
{
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < SIM_WARP; l++) {
        const struct sim_mma_operands *o = (const struct sim_mma_operands *)lanes[l]->arg;
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            float *at = &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)];
            unpack(at, at + 1, o->a[r], convert);
            c[g + 8 * (r >> 1)][2 * t + (r & 1)] = o->c[r];
        }
        for (int r = 0; r < 2; r++)
            unpack(&b[2 * t + 8 * r][g], &b[2 * t + 8 * r + 1][g], o->b[r], convert);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < SIM_WARP; l++) {
        float *d = (float *)lanes[l]->out;
        for (int r = 0; r < 4; r++) d[r] = c[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)];
    }
}

void sim_evaluate_mma_bf16(sim_lanes lanes, unsigned)
{
    mma(lanes, sim_float_of_bf16);
}

void sim_evaluate_mma_f16(sim_lanes lanes, unsigned)
{
    mma(lanes, sim_float_of_f16);
}

void sim_evaluate_ldmatrix(sim_lanes lanes, unsigned)
{
    int n = lanes[0]->param;
    bool trans = lanes[0]->width != 0;
    for (int m = 0; m < n; m++) {
        uint16_t matrix[8][8];
        for (int i = 0; i < 8; i++) {
            const void *row = lanes[8 * m + i]->arg;
            if ((uintptr_t)row % 16 != 0)
                sim_exec_fail("ldmatrix", 0, "row %d of matrix %d is at %p: not 16-byte aligned", i,
                              m, row);
            memcpy(matrix[i], row, sizeof matrix[i]);
        }
        for (int l = 0; l < SIM_WARP; l++) {
            int g = l / 4, t = l % 4;
            uint16_t low = trans ? matrix[2 * t][g] : matrix[g][2 * t];
            uint16_t high = trans ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
            ((uint32_t *)lanes[l]->out)[m] = (uint32_t)high << 16 | low;
        }
    }
}
