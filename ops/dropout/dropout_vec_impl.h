/* Body of the vector rows. Limit: memory (8 bytes per fp32 element); Philox costs about 3
 * operations per element, which keeps it close. */
#include "ops/dropout/dropout_impl.h"
#include "ops/philox_vec_impl.h"

#define BATCH (4 * VF_N) /* elements per call of philox_vec */

VEC_FN vf drop(vf x, vi bits, vi threshold, vf scale)
{
    return vf_select(vi_at_least(bits, threshold), x * scale, vf_zero());
}

/* n elements from i on, whose words start at word `skip` of a batch. */
VEC_FN void drop_some(enum cz_dtype dtype, const vi bits[4], size_t skip, vi threshold, vf scale,
                      const void *x, void *y, size_t i, size_t n)
{
    uint32_t words[BATCH + VF_N] = {0};
    for (size_t r = 0; r < 4; r++) vi_store(words + r * VF_N, bits[r]);
    for (size_t j = 0; j < n; j += VF_N) {
        size_t lanes = n - j < VF_N ? n - j : VF_N;
        vf v = vf_load_n(x, i + j, dtype, lanes);
        vf_store_n(y, i + j, dtype, drop(v, vi_load(words + skip + j), threshold, scale), lanes);
    }
}

VEC_FN void dropout_of(enum cz_dtype dtype, const struct dropout_args *a, size_t begin, size_t end)
{
    const void *x = a->x;
    void *y = a->y;
    const struct philox_vec philox = philox_vec_init(&a->rng);
    const vi threshold = philox_keep_threshold(a->p);
    const vf scale = vf_set1(1.0f / (1.0f - a->p));
    uint64_t first = a->first_idx + begin, block = first >> 2;
    size_t skip = (size_t)(first & 3); /* words of the first block that belong to our left */
    vi bits[4];
    for (size_t i = begin; i < end; block += VF_N) {
        philox_vec(&philox, block, bits);
        size_t n = end - i < BATCH - skip ? end - i : BATCH - skip;
        if (n == BATCH)
            for (size_t r = 0; r < 4; r++) {
                vf v = vf_load(x, i + r * VF_N, dtype);
                vf_store(y, i + r * VF_N, dtype, drop(v, bits[r], threshold, scale));
            }
        else
            drop_some(dtype, bits, skip, threshold, scale, x, y, i, n);
        i += n;
        skip = 0;
    }
}

static void dropout(const struct dropout_args *a, size_t begin, size_t end)
{
    if (begin < end) DTYPE_CALL(dropout_of, a->dtype, a, begin, end);
}
