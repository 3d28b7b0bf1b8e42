/* Table look-up and its gradient. N tokens, C columns, V rows in the table.
 *
 * Backward sums the rows of dy that share an id in token order, in fp32 (a segment sum over ids
 * sorted stably), so the result does not depend on threads; rows agree to the bit. An id outside
 * [0,V) is CZ_INVALID, with nothing written; on a GPU, where ids are not looked at before the call,
 * its row of y becomes NaN, and it gives no gradient. */
#ifndef CZ_OPS_EMBEDDING_EMBEDDING_H
#define CZ_OPS_EMBEDDING_EMBEDDING_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct embedding_args {
    int64_t N, C, V;
    enum cz_dtype dtype; /* table, y, dy */
    const int32_t *ids;  /* (N) in [0,V); N below 2^31 */
    bool has_padding;    /* backward: tokens of padding_id give their row no gradient, */
    int64_t padding_id;  /* as torch.nn.Embedding's padding_idx; in [0,V) */
    const void *table;   /* (V,C) */
    void *y;             /* (N,C) */
    bool accumulate;     /* forward: y += table[id] (token + position + type) */
    const void *dy;
    enum cz_dtype grad_dtype;
    void *dtable;           /* (V,C) */
    bool dtable_accumulate; /* false: rows without a token become zero */
    void *workspace;        /* ops_embedding_workspace() bytes, backward only */
    size_t workspace_nbytes;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_embedding_forward(struct ops *ops, struct dev_stream *stream,
                                const struct embedding_args *a);
cz_status ops_embedding_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct embedding_args *a);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
size_t ops_embedding_workspace(const struct ops *ops, const struct embedding_args *a);

CZ_EXTERN_C_END
#endif
