/* What a row of the 1-bit family provides, and what its rows share. */
#ifndef CZ_OPS_ONEBIT_ONEBIT_IMPL_H
#define CZ_OPS_ONEBIT_ONEBIT_IMPL_H

#include "ops/lamb/lamb_impl.h"
#include "ops/onebit/onebit.h"

/* Pieces [begin, end): those of feed and serve begin at multiples of ONEBIT_BLOCK, those of pack at
 * multiples of 8, of unpack anywhere within [a->begin, a->end). */
struct onebit_row {
    struct ops_row row;
    void (*feed)(const struct onebit_feed_args *a, size_t begin, size_t end);
    void (*pack)(const struct onebit_pack_args *a, size_t begin, size_t end);
    void (*serve)(const struct onebit_serve_args *a, size_t begin, size_t end);
    void (*unpack)(const struct onebit_unpack_args *a, size_t begin, size_t end);
    void (*momentum)(const struct onebit_momentum_args *a, size_t begin, size_t end);
    /* A piece of one tensor: squares are added to *sums, *factor becomes the larger. */
    void (*lamb_norms)(const struct onebit_lamb_norms_args *a, size_t begin, size_t end,
                       struct lamb_sums *sums, float *factor);
    void (*local)(const struct zero_one_args *a, size_t begin, size_t end);
    void (*gather)(const struct zero_one_args *a, size_t begin, size_t end);
    void (*settle)(const struct zero_one_args *a, size_t begin, size_t end);
};

extern const struct onebit_row onebit_scalar, onebit_avx2, onebit_avx512;

/* The table, slowest first. */
const struct onebit_row *const *onebit_rows(size_t *n);

CZ_EXTERN_C_BEGIN

/* What entry points refuse; nothing when there are no elements. */
cz_status onebit_check_feed(const struct onebit_feed_args *a);
cz_status onebit_check_scale(const struct onebit_scale_args *a);
cz_status onebit_check_pack(const struct onebit_pack_args *a);
cz_status onebit_check_serve(const struct onebit_serve_args *a);
cz_status onebit_check_unpack(const struct onebit_unpack_args *a);
cz_status onebit_check_momentum(const struct onebit_momentum_args *a);
cz_status onebit_check_mask_make(const struct onebit_mask_make_args *a);
cz_status onebit_check_mask_join(const struct onebit_mask_join_args *a);
cz_status onebit_check_lamb_norms(const struct onebit_lamb_norms_args *a);
cz_status onebit_check_local(const struct zero_one_args *a);
cz_status onebit_check_gather(const struct zero_one_args *a);
cz_status onebit_check_settle(const struct zero_one_args *a);

CZ_EXTERN_C_END

static CZ_KERNEL_FN bool onebit_bit(const uint8_t *bits, size_t i)
{
    return bits[i / 8] >> (7 - i % 8) & 1;
}

static CZ_KERNEL_FN bool onebit_takes_part(const struct onebit_mask *mask, size_t i)
{
    return !mask->bits || onebit_bit(mask->bits, mask->first + i);
}

#define ONEBIT_LANES 16

/* The partial sum of a block from its lanes. */
static inline double onebit_lanes_sum(double lanes[ONEBIT_LANES])
{
    for (int half = ONEBIT_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

static inline size_t onebit_block_end(size_t begin, size_t end)
{
    return end - begin < ONEBIT_BLOCK ? end : begin + ONEBIT_BLOCK;
}

/* Elements [begin, end) cut where a chunk ends. */
static inline size_t onebit_chunk_end(size_t begin, size_t end, size_t chunk_numel)
{
    size_t left = chunk_numel - begin % chunk_numel;
    return end - begin < left ? end : begin + left;
}

#endif
