/* Body of the vector rows. Limit: memory (backward, fp32: 4 bytes per element of dy, 4 or 8 per
 * element of a named row of the table). */
#include "ops/embedding/embedding_impl.h"

VEC_FN void add_of(enum cz_dtype dtype, void *y, const void *table, size_t numel)
{
    size_t i = 0;
    for (; i + VF_N <= numel; i += VF_N)
        vf_store(y, i, dtype, vf_load(y, i, dtype) + vf_load(table, i, dtype));
    size_t n = numel - i;
    if (n > 0)
        vf_store_n(y, i, dtype, vf_load_n(y, i, dtype, n) + vf_load_n(table, i, dtype, n), n);
}

static void add(enum cz_dtype dtype, void *y, const void *table, size_t numel)
{
    DTYPE_CALL(add_of, dtype, y, table, numel);
}

#define N_SUMS 4 /* vectors of columns summed at once: 256 bytes of each fp32 row of dy */

struct token_sum {
    const uint64_t *keys;
    size_t n_tokens, C, id;
    const void *dy;
    void *dtable;
    enum cz_dtype grad_dtype;
    bool accumulate;
};

/* `n_vectors` vectors from column c on; the last has n lanes. */
VEC_FN void sum_columns(enum cz_dtype dtype, const struct token_sum *s, size_t c, size_t n_vectors,
                        size_t n)
{
    vf sums[N_SUMS];
    for (size_t k = 0; k < n_vectors; k++) sums[k] = vf_zero();
    for (size_t i = 0; i < s->n_tokens; i++) {
        size_t from = (uint32_t)s->keys[i] * s->C + c;
        for (size_t k = 0; k < n_vectors; k++)
            sums[k] = sums[k] + vf_get(s->dy, from + k * VF_N, dtype, n);
    }
    for (size_t k = 0; k < n_vectors; k++) {
        size_t to = s->id * s->C + c + k * VF_N;
        if (s->accumulate) sums[k] = vf_get(s->dtable, to, s->grad_dtype, n) + sums[k];
        vf_put(s->dtable, to, s->grad_dtype, sums[k], n);
    }
}

VEC_FN void sum_tokens_of(enum cz_dtype dtype, const struct token_sum *s, size_t begin, size_t end)
{
    size_t c = begin;
    for (; c + N_SUMS * VF_N <= end; c += N_SUMS * VF_N) sum_columns(dtype, s, c, N_SUMS, VF_N);
    for (; c + VF_N <= end; c += VF_N) sum_columns(dtype, s, c, 1, VF_N);
    if (c < end) sum_columns(dtype, s, c, 1, end - c);
}

static void sum_tokens(const struct embedding_args *a, const uint64_t *keys, size_t n_tokens,
                       size_t id, size_t begin, size_t end)
{
    const struct token_sum s = {keys,  n_tokens,  (size_t)a->C,  id,
                                a->dy, a->dtable, a->grad_dtype, a->dtable_accumulate};
    DTYPE_CALL(sum_tokens_of, a->dtype, &s, begin, end);
}
