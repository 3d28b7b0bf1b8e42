/* Lamb in two passes over the elements, with one trust ratio per tensor between them.
 * States: exp_avg m, exp_avg_sq v.
 *
 *   pass 0 (lamb_moments)   g  = float(g) · grad_scale
 *                           m' = fma(beta1, m, (1 − beta1)·g)
 *                           v' = fma(beta2, v, (1 − beta2)·(g·g))
 *                           u  = m' / (√v' + eps), or m' / √(v' + eps) with eps_inside_sqrt
 *                           u  = fma(wd, p, u)            with wd ≠ 0
 *                           sums of tensor += p², u²
 *   between (lamb_ratio)    r  = ‖p‖/‖u‖ clamped to [min_coeff, max_coeff]; 1 when a norm is 0
 *   pass 1 (lamb_apply)     u again from m', v', p;  p' = fma(−(step_size·r), u, p)
 *
 * There is no bias correction inside u: step_size = lr·√(1 − beta2^t)/(1 − beta1^t) carries it, and
 * so it scales the decay too (DeepSpeed's Lamb).
 *
 * The sums are exact sums of pre-rounded squares on fixed grids: lamb_sum() gives the same bits for
 * any order of elements, tile edge, shard edge, thread count and row, and sums of shards add up by
 * plain addition of the grids.
 *
 * Bytes per element, fp32: pass 0 16 read + 8 written, pass 1 12 + 4: 40 in all. */
#ifndef CZ_OPS_LAMB_LAMB_H
#define CZ_OPS_LAMB_LAMB_H

#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

/* Grid j holds whole multiples of 2^(20·j − 300); a square is spread over the four grids from its
 * block's highest down. Each grid's sum is exact for up to 2^33 elements. */
#define LAMB_GRIDS 28

struct lamb_sums {
    double p[LAMB_GRIDS]; /* Σ p² */
    double u[LAMB_GRIDS]; /* Σ u² */
};

/* A run of one tensor's elements inside the tile. Segments are in order and do not overlap;
 * elements outside all of them (padding) are left as they are. */
struct lamb_segment {
    size_t begin, end; /* element indices within the tile */
    size_t tensor;     /* index into `sums` and `ratios` */
};

struct lamb_args {
    struct step_tensors t;              /* 2 states: m, v */
    const struct step_scalars *scalars; /* grad_scale, beta1, beta2, step_size */
    float eps, weight_decay;
    bool eps_inside_sqrt;
    const struct lamb_segment *segments; /* host memory on every device, read during the call */
    size_t n_segments;
    struct lamb_sums *sums; /* pass 0: per tensor, += (the caller zeroes them once per step) */
    const float *ratios;    /* pass 1: per tensor, from lamb_ratio(); both in device memory */
};

/* Σ of one half of the sums as a double: the same value for the same grids, everywhere. */
double lamb_sum(const double grids[LAMB_GRIDS]);

/* Sums over two parts of a tensor become those over both: exact, in any order. */
void lamb_sums_add(struct lamb_sums *to, const struct lamb_sums *from);

/* Trust ratio of one tensor from its sums over all shards. */
float lamb_ratio(const struct lamb_sums *sums, double min_coeff, double max_coeff);

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_lamb_moments(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a);
cz_status ops_lamb_apply(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a);

CZ_EXTERN_C_END
#endif
