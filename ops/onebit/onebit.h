/* Compression to one bit per element with error feedback, and what the 1-bit optimizers compute
 * around it (Tang et al., "1-bit Adam", 2021; Lu et al., "Maximizing communication efficiency for
 * large-scale training via 0/1 Adam", 2022; Li et al., "1-bit LAMB", 2021).
 *
 * A *segment* is a vector that is compressed with one scale per rank; zero/onebit.c pads it to a
 * multiple of W·lcm(W, 8) and cuts it into W chunks, one for each rank to serve:
 *
 *   feed     e += x                        x: the momentum, the gradient, or nothing
 *   scale    s = ‖e‖/√numel                from the partial sums that feed and serve leave
 *   pack     bit = e ≥ 0;  e −= ±s         what the bit does not say stays in e: error feedback
 *   serve    y = e + Σ_q ±s_q/W            over the ranks' bits of the own chunk, then packed again
 *   unpack   x = ±s                        with the scale of the element's chunk
 *
 * Bits: element i is bit 7 − i mod 8 of byte i/8 (the most significant first), 1 for a value ≥ 0,
 * either zero included, and 0 for one below.
 * Masks have a bit per element in the same order: 0 marks an element that is not exchanged, because
 * its frozen variance says that it never had a gradient; its momentum stays 0.
 *
 * All arithmetic is fp32 in the written sequence, rows agree to the bit, and so do any thread
 * count and any cut at multiples of ONEBIT_BLOCK. Partial sums: element i of a block of
 * ONEBIT_BLOCK adds its square, exact in double, to lane i mod 16; lanes are added pairwise
 * (l += lane l + 8, then 4, 2, 1). onebit_scale adds blocks in order.
 *
 * Pointers are in the device's memory, values that change from step to step too, so that an
 * exchange needs no answer of the host's; Lamb's segments are the host's. No array may overlap
 * another.
 * Bytes moved per element are noted at each op. */
#ifndef CZ_OPS_ONEBIT_ONEBIT_H
#define CZ_OPS_ONEBIT_ONEBIT_H

#include "ops/lamb/lamb.h"
#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

#define ONEBIT_BLOCK ((size_t)4096) /* elements behind one partial sum */

static CZ_KERNEL_FN size_t onebit_n_partials(size_t numel)
{
    return (numel + ONEBIT_BLOCK - 1) / ONEBIT_BLOCK;
}

/* A bit per element, from any bit on. */
struct onebit_mask {
    const uint8_t *bits; /* NULL: every element takes part */
    size_t first;        /* bit of the op's element 0 */
};

/* onebit_feed: e' = x·coeff + e, with
 *   x = fma(beta1, m, (1 − beta1)·g)    m given; g = float(g)·grad_scale
 *   x = g                               m NULL
 * and e unchanged when g is NULL too. Then the partial sums of e'².
 * Bytes: fp32 gradient 12 read + 4 written. */
struct onebit_feed_args {
    size_t numel;
    const float *m;
    const void *g;
    enum cz_dtype g_dtype;
    const struct step_scalars *scalars; /* grad_scale, beta1 */
    float coeff;                        /* 1: multiplied all the same, which changes nothing */
    float *e;
    double *partials; /* [onebit_n_partials(numel)], overwritten */
};

/* onebit_scale: *scale = √(Σ partials / numel) rounded once to fp32, partials added in order; 0 for
 * numel 0. One thread, a row for all: a partial sum stands for ONEBIT_BLOCK elements. */
struct onebit_scale_args {
    size_t numel; /* of the segment or chunk, with padding */
    const double *partials;
    size_t n_partials;
    float *scale;
};

/* onebit_pack: bit i = e[i] ≥ 0; e[i]' = e[i] − s, or e[i] + s where the bit is 0. NaN packs as 0.
 * Chunk c of chunk_numel elements goes to bits + c·chunk_stride.
 * Bytes: 4 read + 4 written, and a bit. */
struct onebit_pack_args {
    size_t numel;       /* a multiple of chunk_numel */
    size_t chunk_numel; /* a multiple of 8 */
    size_t chunk_stride;
    const float *scale;
    float *e;
    uint8_t *bits;
};

/* onebit_serve: y = Σ_q ±scales[q·scale_stride], q = 0 … n_ranks−1 added in order from 0;
 * e' = fma(y, inv_ranks, e); then the partial sums of e'². Rank q's bits begin at
 * bits + q·rank_stride.
 * Bytes: 4 read + 4 written, and n_ranks bits. */
struct onebit_serve_args {
    size_t numel; /* a multiple of 8 */
    int n_ranks;
    const uint8_t *bits;
    size_t rank_stride; /* bytes */
    const float *scales;
    size_t scale_stride; /* elements */
    float inv_ranks;
    float *e;
    double *partials;
};

/* onebit_unpack: elements [begin, end) of a segment from all chunks' bits and scales:
 *   value = ±(scale of chunk / coeff), 0 where masked
 *   x' = value                                       blend NULL
 *   x' = fma(beta1, x, (1 − beta1)·value)            blend given: a gradient joins a momentum
 * With `fresh` (blend NULL), which follows the gradients that momenta imply (1-bit Lamb):
 *   ĝ = (x' − beta1·x)/(1 − beta1)                   beta1·x rounded, then subtracted
 *   fresh' = fma(beta2, fresh, (1 − beta2)·(ĝ·ĝ))
 * Bytes: 4 written and a bit; with blend or fresh as much again read, and 8 for fresh. */
struct onebit_unpack_args {
    size_t begin, end;
    size_t chunk_numel; /* a multiple of 8 */
    size_t chunk_stride;
    const uint8_t *bits; /* of chunk 0 */
    const float *scales; /* of chunk 0 */
    size_t scale_stride; /* elements */
    float coeff;
    struct onebit_mask mask; /* first: bit of element `begin` */
    const struct step_scalars *blend;
    const struct step_scalars *scalars; /* with fresh: beta1, beta2 */
    float *fresh;                       /* element `begin`; NULL: none */
    float *x;                           /* element `begin` */
};

/* onebit_momentum: what one rank alone does instead of an exchange.
 *   m' = fma(beta1, m, (1 − beta1)·g), 0 where masked;  g = float(g)·grad_scale
 *   fresh' = fma(beta2, fresh, (1 − beta2)·(g·g))    fresh given; g is 0 where masked */
struct onebit_momentum_args {
    size_t numel;
    const void *g;
    enum cz_dtype g_dtype;
    const struct step_scalars *scalars; /* grad_scale, beta1, beta2 */
    struct onebit_mask mask;
    float *m;
    float *fresh;
};

/* onebit_mask_make: bit first + i of `bits` = v[i] > floor; bits of others are left as they are.
 * Once in a run: one thread, a row for all. */
struct onebit_mask_make_args {
    size_t numel;
    const float *v;
    float floor;
    size_t first;
    uint8_t *bits;
};

/* onebit_mask_join: out[i] = the bits that any rank's byte i has set. Rank q's bytes begin at
 * bits + q·rank_stride. Once in a run, as mask_make. */
struct onebit_mask_join_args {
    size_t nbytes;
    int n_ranks;
    const uint8_t *bits;
    size_t rank_stride; /* bytes */
    uint8_t *out;
};

/* onebit_lamb_norms: per tensor, for 1-bit Lamb's compressed steps:
 *   d = √v + eps;  u0 = m/d;  u = fma(wd, p, u0) with wd ≠ 0, else u0
 *   sums of tensor: p += u0², u += u²
 *   factors[tensor] = max(factors[tensor], d/(√fresh + eps))   over elements that are not masked
 * Elements outside the segments are not looked at. Bytes: 16 read. */
struct onebit_lamb_norms_args {
    size_t numel;
    const float *m, *v, *fresh, *p;
    float eps, weight_decay;
    struct onebit_mask mask;
    const struct lamb_segment *segments;
    size_t n_segments;
    struct lamb_sums *sums; /* per tensor, += */
    float *factors;         /* per tensor; the caller sets them to 0 first */
};

/* The frozen phase of 0/1 Adam. `moved` is what this rank has moved its weights by since the last
 * exchange; p holds the masters of that exchange, equal on all ranks.
 *
 * zero_one_local   g = float(g)·grad_scale
 *                  m' = fma(beta1, m, (1 − beta1)·g);  d = √v + eps
 *                  u = m'/d;  u = fma(wd, p + moved, u) with wd ≠ 0
 *                  m' = 0, and m'/d counts as 0, where masked
 *                  moved' = fma(−lr, u, moved);  out = round(p + moved')
 * zero_one_gather  moved' = moved·d                     into the momentum's units, to be exchanged
 * zero_one_settle  m' = −moved/step_size                step_size: the sum of lr since the last
 *                  p' = p + moved/d;  out = round(p')   exchange; m stays when that is 0
 *                  moved' = 0
 * Bytes with an fp32 gradient: local 24 read + 12 written. */
struct zero_one_args {
    size_t numel;
    const void *g; /* local alone */
    enum cz_dtype g_dtype;
    const struct step_scalars *scalars; /* local: grad_scale, lr, beta1; settle: step_size */
    float eps, weight_decay;
    struct onebit_mask mask; /* local alone */
    float *m, *moved;
    const float *v;
    float *p; /* settle writes it */
    void *out;
    enum cz_dtype out_dtype;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_onebit_feed(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_feed_args *a);
cz_status ops_onebit_scale(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_scale_args *a);
cz_status ops_onebit_pack(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_pack_args *a);
cz_status ops_onebit_serve(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_serve_args *a);
cz_status ops_onebit_unpack(struct ops *ops, struct dev_stream *stream,
                            const struct onebit_unpack_args *a);
cz_status ops_onebit_momentum(struct ops *ops, struct dev_stream *stream,
                              const struct onebit_momentum_args *a);
cz_status ops_onebit_mask_make(struct ops *ops, struct dev_stream *stream,
                               const struct onebit_mask_make_args *a);
cz_status ops_onebit_mask_join(struct ops *ops, struct dev_stream *stream,
                               const struct onebit_mask_join_args *a);
cz_status ops_onebit_lamb_norms(struct ops *ops, struct dev_stream *stream,
                                const struct onebit_lamb_norms_args *a);
cz_status ops_zero_one_local(struct ops *ops, struct dev_stream *stream,
                             const struct zero_one_args *a);
cz_status ops_zero_one_gather(struct ops *ops, struct dev_stream *stream,
                              const struct zero_one_args *a);
cz_status ops_zero_one_settle(struct ops *ops, struct dev_stream *stream,
                              const struct zero_one_args *a);

CZ_EXTERN_C_END
#endif
