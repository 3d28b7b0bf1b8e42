/* struct ops from inside: the table of an engine's kernels.
 *
 * ops/, the CUDA plug-in, their tests and a bench that wraps calls include this; others call the
 * functions in the ops' headers, so that a new op rebuilds only the files that fill the table. For
 * the same reason the op's headers are not included here.
 *
 * A new op: its folder with ops_<op>() declared in <op>.h and the host's kernel in <op>.c, a line
 * in OPS_SLOTS (which makes ops_<op>(), in ops.c), and a line in ops.c and ops/cuda/ops_cuda.c when
 * the folder is new. A slot may be NULL: its calls return ops_missing(), and ops_require() says so
 * before. */
#ifndef CZ_OPS_TABLE_IMPL_H
#define CZ_OPS_TABLE_IMPL_H

#include "ops/ops.h"

CZ_EXTERN_C_BEGIN

/* SLOT(name of the op and the slot, its arguments) */
#define OPS_SLOTS(SLOT)                                                                            \
    SLOT(matmul, matmul_args)                                                                      \
    SLOT(attention_forward, attention_args)                                                        \
    SLOT(attention_backward, attention_args)                                                       \
    SLOT(layernorm_forward, norm_args)                                                             \
    SLOT(layernorm_backward, norm_args)                                                            \
    SLOT(rmsnorm_forward, norm_args)                                                               \
    SLOT(rmsnorm_backward, norm_args)                                                              \
    SLOT(activation_forward, activation_args)                                                      \
    SLOT(activation_backward, activation_args)                                                     \
    SLOT(swiglu_forward, swiglu_args)                                                              \
    SLOT(swiglu_backward, swiglu_args)                                                             \
    SLOT(embedding_forward, embedding_args)                                                        \
    SLOT(embedding_backward, embedding_args)                                                       \
    SLOT(rope, rope_args)                                                                          \
    SLOT(rope_table, rope_table_args)                                                              \
    SLOT(router_forward, router_args)                                                              \
    SLOT(router_backward, router_grad_args)                                                        \
    SLOT(router_sort, router_sort_args)                                                            \
    SLOT(router_balance, router_balance_args)                                                      \
    SLOT(router_balance_loss, router_balance_loss_args)                                            \
    SLOT(expert_add, expert_add_args)                                                              \
    SLOT(expert_weigh, expert_weigh_args)                                                          \
    SLOT(dora_norm, dora_norm_args)                                                                \
    SLOT(dora_scale, dora_scale_args)                                                              \
    SLOT(dora_grad, dora_grad_args)                                                                \
    SLOT(dropout, dropout_args)                                                                    \
    SLOT(add, add_args)                                                                            \
    SLOT(cast_scale, cast_scale_args)                                                              \
    SLOT(bias_grad, bias_grad_args)                                                                \
    SLOT(scan, scan_args)                                                                          \
    SLOT(ce_head, ce_head_args)                                                                    \
    SLOT(cross_entropy, cross_entropy_args)                                                        \
    SLOT(step, step_args)                                                                          \
    SLOT(lamb_moments, lamb_args)                                                                  \
    SLOT(lamb_apply, lamb_args)                                                                    \
    SLOT(onebit_feed, onebit_feed_args)                                                            \
    SLOT(onebit_scale, onebit_scale_args)                                                          \
    SLOT(onebit_pack, onebit_pack_args)                                                            \
    SLOT(onebit_serve, onebit_serve_args)                                                          \
    SLOT(onebit_unpack, onebit_unpack_args)                                                        \
    SLOT(onebit_momentum, onebit_momentum_args)                                                    \
    SLOT(onebit_mask_make, onebit_mask_make_args)                                                  \
    SLOT(onebit_mask_join, onebit_mask_join_args)                                                  \
    SLOT(onebit_lamb_norms, onebit_lamb_norms_args)                                                \
    SLOT(zero_one_local, zero_one_args)                                                            \
    SLOT(zero_one_gather, zero_one_args)                                                           \
    SLOT(zero_one_settle, zero_one_args)

#define OPS_DECLARE_ARGS(slot, args) struct args;
OPS_SLOTS(OPS_DECLARE_ARGS)
#undef OPS_DECLARE_ARGS

struct activation_row;
struct attention_row;
struct cross_entropy_row;
struct dora_row;
struct dropout_row;
struct elementwise_row;
struct embedding_row;
struct lamb_row;
struct norm_row;
struct onebit_row;
struct reduce_row;
struct rope_row;
struct router_row;
struct step_row;
struct matmul_cache; /* primitives by shape, private to ops/matmul */
struct cuda_ops;     /* handles and scratch of the CUDA plug-in, private to it */

struct ops {
    struct device *device;
    const char *isa; /* the row family chosen, as cpu_isa_name() or "cuda" */
    struct matmul_cache *matmul_cache;
    struct cuda_ops *cuda;             /* what the CUDA plug-in keeps; NULL on the host */
    void (*cuda_unwire)(struct ops *); /* gives it back; NULL on the host */
    struct ops_products products;      /* 0 on the host */
    bool adds_residual;                /* in products */
    void *aligned;                     /* ops_lend_aligned() */
    size_t aligned_nbytes;
    bool allow_tf32; /* fp32 products of a GPU in TF32; CZERO_TF32=1 at first, callers may set it */

    /* The rows chosen, private to their folders; NULL on a device that brings its own kernels. */
    const struct activation_row *activation_row;
    const struct attention_row *attention_row;
    const struct cross_entropy_row *cross_entropy_row;
    const struct dora_row *dora_row;
    const struct dropout_row *dropout_row;
    const struct elementwise_row *elementwise_row;
    const struct embedding_row *embedding_row;
    const struct lamb_row *lamb_row;
    const struct norm_row *norm_row;
    const struct onebit_row *onebit_row;
    const struct reduce_row *reduce_row;
    const struct rope_row *rope_row;
    const struct router_row *router_row;
    const struct step_row *step_row;

    /* The kernels; NULL: the device has none. */
#define OPS_MEMBER(slot, args)                                                                     \
    cz_status (*slot)(struct ops *, struct dev_stream *, const struct args *);
    OPS_SLOTS(OPS_MEMBER)
#undef OPS_MEMBER

    /* Called through ops_*_workspace(). NULL: none is needed. */
    cz_status (*matmul_workspace)(struct ops *, const struct matmul_args *, size_t *nbytes);
    bool (*matmul_is_by_shape)(const struct ops *, enum cz_dtype);  /* NULL: no */
    void (*matmul_keep)(struct ops *, void *memory, size_t nbytes); /* NULL: never */
    size_t (*matmul_kept_nbytes)(const struct ops *, enum cz_dtype, int64_t n, int64_t k);
    size_t (*attention_workspace)(const struct ops *, const struct attention_args *, bool backward);
    size_t (*norm_workspace)(const struct ops *, const struct norm_args *);
    size_t (*embedding_workspace)(const struct ops *, const struct embedding_args *);
    size_t (*bias_grad_workspace)(const struct ops *, const struct bias_grad_args *);
    cz_status (*ce_head_workspace)(struct ops *, const struct ce_head_args *, size_t *nbytes);
};

CZ_EXTERN_C_END

/* Each op folder fills its slots and its row pointer in `ops` for the host from CPU features; the
 * slots of a struct that failed half-way are undone by the *_unwire() calls, which accept that. */
cz_status activation_wire(struct ops *ops, uint32_t features);
cz_status attention_wire(struct ops *ops, uint32_t features);
cz_status cross_entropy_wire(struct ops *ops, uint32_t features);
cz_status dora_wire(struct ops *ops, uint32_t features);
cz_status dropout_wire(struct ops *ops, uint32_t features);
cz_status elementwise_wire(struct ops *ops, uint32_t features);
cz_status embedding_wire(struct ops *ops, uint32_t features);
cz_status lamb_wire(struct ops *ops, uint32_t features);
cz_status matmul_wire(struct ops *ops, uint32_t features);
void matmul_unwire(struct ops *ops);
cz_status norm_wire(struct ops *ops, uint32_t features);
cz_status onebit_wire(struct ops *ops, uint32_t features);
cz_status reduce_wire(struct ops *ops, uint32_t features);
cz_status rope_wire(struct ops *ops, uint32_t features);
cz_status router_wire(struct ops *ops, uint32_t features);
cz_status step_wire(struct ops *ops, uint32_t features);

#endif
