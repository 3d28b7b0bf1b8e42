/* The arithmetic of reductions: conversion to and from the wire, and the sum over ranks.
 *
 * Row table (sum_rows()): row 0 is the definition, the others are equal to it to the bit, NaN
 * included: a NaN that is in the sum stays, whatever is added to it. Kernels work in one thread on
 * neighbouring elements of any alignment; the calls below cut large work over threads, which never
 * shows in the result. */
#ifndef CZ_COMM_SUM_SUM_IMPL_H
#define CZ_COMM_SUM_SUM_IMPL_H

#include "base/dtype.h"

/* What all ranks brought for the same elements, rank 0 first. */
struct sum_sources {
    const void *const *wire; /* (n_ranks) elements of the wire dtype; that of `own` is not read */
    const void *own;         /* this rank's, of own_dtype: rounded to the wire before it is added */
    enum cz_dtype own_dtype, dtype;
    int n_ranks, own_rank;
    float scale;
};

/* Where the sum goes. */
struct sum_target {
    void *shared; /* of the wire dtype, in a slot; NULL: none */
    void *dst;
    enum cz_dtype dst_dtype;
    bool accumulate; /* dst = round(dst + result) */
};

struct sum_row {
    const char *name;
    uint32_t features; /* bits of enum cpu_feature, all needed */
    /* dst[i] = round(src[i]); same dtypes: the same bits. */
    void (*convert)(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                    size_t numel);
    /* dst[i] = round(src[i] + dst[i]) in fp32. */
    void (*add)(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                size_t numel);
    /* out[i] = c(scale · Σ_r x_r[begin + i]) for i < numel, x_r = s->wire[r] other than this rank's
     * own, which is own[i] (without `begin`), already on the wire dtype. */
    void (*sum)(const struct sum_sources *s, const void *own, size_t begin, size_t numel,
                void *out);
    /* Copy to a slot that another core will read: past the caches, since to get hold of lines that
     * the reader still has costs several times the copy. Not seen there before send_end(). */
    void (*send)(void *slot, const void *src, size_t nbytes);
    void (*send_end)(void);
};

/* How slots are written: by a row, past the caches or not. */
struct sum_way {
    const struct sum_row *row;
    bool past_caches; /* then row->send_end() comes before slots are posted */
};

extern const struct sum_row sum_scalar, sum_avx2, sum_avx512;

/* All rows, slowest first. */
const struct sum_row *const *sum_rows(size_t *n);

/* The fastest row that cpu_features() allows. */
const struct sum_row *sum_row_pick(uint32_t features);

/* dst = src (+ dst), numel elements of any dtypes when they are the same, of floats otherwise. src
 * and dst: the same place (then of one dtype) or apart. */
void sum_put(const struct sum_way *way, void *dst, enum cz_dtype dst_dtype, const void *src,
             enum cz_dtype src_dtype, bool accumulate, size_t numel);

/* The same into a slot. */
void sum_send(const struct sum_way *way, void *slot, enum cz_dtype wire, const void *src,
              enum cz_dtype src_dtype, size_t numel);

/* The canonical reduction of numel elements. t->dst may be s->own where both are of one dtype.
 * Moves, per element: n_ranks − 1 wire values and its own in, one dst out (in as well when
 * accumulating), one wire value out when shared. */
void sum_ranks(const struct sum_way *way, const struct sum_sources *s, const struct sum_target *t,
               size_t numel);

#endif
