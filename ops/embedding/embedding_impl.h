/* What a row of the embedding provides. */
#ifndef CZ_OPS_EMBEDDING_EMBEDDING_IMPL_H
#define CZ_OPS_EMBEDDING_EMBEDDING_IMPL_H

#include "ops/embedding/embedding.h"
#include "ops/ops_impl.h"

struct embedding_row {
    struct ops_row row;
    /* y[i] = y[i] + table[i] over numel elements. */
    void (*add)(enum cz_dtype dtype, void *y, const void *table, size_t numel);
    /* Columns [begin, end) of table row `id`: [+]= Σ of dy over n_tokens tokens, in their order.
     * The low half of a key is a token. */
    void (*sum_tokens)(const struct embedding_args *a, const uint64_t *keys, size_t n_tokens,
                       size_t id, size_t begin, size_t end);
};

extern const struct embedding_row embedding_scalar, embedding_avx2, embedding_avx512;

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU; ids are not read. workspace_nbytes: what the
 * call needs there. */
cz_status embedding_forward_check(const struct embedding_args *a);
cz_status embedding_backward_check(const struct embedding_args *a, size_t workspace_nbytes);

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct embedding_row *const *embedding_rows(size_t *n);

/* The sorted tokens of a backward pass, laid out in the workspace. */
struct token_segments {
    uint64_t *keys;   /* (N) id·2³² + token, ascending */
    uint64_t *spare;  /* (N) */
    uint32_t *starts; /* (N + 1) where each distinct id begins, then N */
    size_t n_segments;
};

size_t token_segments_nbytes(size_t n_tokens);

/* Sort N tokens by id, keeping their order within one id. */
void token_segments_build(struct token_segments *s, const int32_t *ids, size_t n_tokens,
                          size_t n_ids, void *workspace);

static inline size_t token_segments_id(const struct token_segments *s, size_t segment)
{
    return (size_t)(s->keys[s->starts[segment]] >> 32);
}

#endif
