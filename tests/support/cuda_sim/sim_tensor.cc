/* mma and ldmatrix for a whole warp: see sim_tensor.h for the layouts. */
#include "sim_tensor.h"

/* A row of C and D, and one of B. */
typedef float row __attribute__((vector_size(32)));

/* The two 16-bit halves of register r of a lane go to (row, col) and (row, col + 1) of a matrix. */
template <float (*convert)(uint16_t)> static void unpack(float *low, float *high, uint32_t r)
{
    *low = convert((uint16_t)r);
    *high = convert((uint16_t)(r >> 16));
}

template <float (*convert)(uint16_t)> static void mma(sim_lanes lanes)
{
    float a[16][16];
    row b[16], c[16];
    for (int l = 0; l < SIM_WARP; l++) {
        const struct sim_mma_operands *o = (const struct sim_mma_operands *)lanes[l]->arg;
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            float *at = &a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)];
            unpack<convert>(at, at + 1, o->a[r]);
            c[g + 8 * (r >> 1)][2 * t + (r & 1)] = o->c[r];
        }
        for (int r = 0; r < 2; r++) {
            float low, high;
            unpack<convert>(&low, &high, o->b[r]);
            b[2 * t + 8 * r][g] = low;
            b[2 * t + 8 * r + 1][g] = high;
        }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) c[i] += a[i][k] * b[k];
    for (int l = 0; l < SIM_WARP; l++) {
        float *d = (float *)lanes[l]->out;
        for (int r = 0; r < 4; r++) d[r] = c[l / 4 + 8 * (r >> 1)][2 * (l % 4) + (r & 1)];
    }
}

void sim_evaluate_mma_bf16(sim_lanes lanes, unsigned)
{
    mma<sim_float_of_bf16>(lanes);
}

void sim_evaluate_mma_f16(sim_lanes lanes, unsigned)
{
    mma<sim_float_of_f16>(lanes);
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
