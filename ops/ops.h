/* ops: the numeric kernels of one device, chosen once.
 *
 * Life cycle: ops_create() picks, for every op, the best row that the CPU (after CZERO_ISA) or the
 * device supports; layers and the optimizer sweep call through the struct; ops_destroy().
 * Every call is asynchronous on its stream (on the host it is done when it returns), validates its
 * arguments at the front door (CZ_INVALID), and allocates nothing after its first use of a shape.
 * Matmul primitives are created when a shape is first seen: ops_matmul_workspace() at plan time
 * does that for shapes known then. Threads: one caller at a time per struct ops; kernels use the
 * OpenMP pool inside. */
#ifndef CZ_OPS_OPS_H
#define CZ_OPS_OPS_H

#include "device/device.h"
#include "ops/activation/activation.h"
#include "ops/adagrad/adagrad.h"
#include "ops/adam/adam.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/lamb/lamb.h"
#include "ops/lion/lion.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/onebit/onebit.h"
#include "ops/reduce/reduce.h"
#include "ops/rope/rope.h"
#include "ops/sgd/sgd.h"

CZ_EXTERN_C_BEGIN

struct matmul_cache; /* primitives by shape, private to ops/matmul */
struct cuda_ops;     /* handles and scratch of the CUDA plug-in, private to it */
/* Kernels of one instruction set, private to their folders. */
struct activation_row;
struct adagrad_row;
struct adam_row;
struct attention_row;
struct cross_entropy_row;
struct dropout_row;
struct elementwise_row;
struct embedding_row;
struct lamb_row;
struct lion_row;
struct norm_row;
struct onebit_row;
struct reduce_row;
struct rope_row;
struct sgd_row;

/* Matrix products of a GPU so far. What the library refuses of them is right all the same, and
 * slow; a warning names each shape. */
struct ops_products {
    uint64_t n;
    uint64_t n_split; /* whose bias, activation or bias gradient it refused: passes of their own */
    uint64_t n_slow;  /* which it refused altogether: a product of ours, many times slower */
};

struct ops {
    struct device *device;
    const char *isa; /* the row family chosen, as cpu_isa_name() or "cuda" */
    struct matmul_cache *matmul_cache;
    struct cuda_ops *cuda;             /* what the CUDA plug-in keeps; NULL on the host */
    void (*cuda_unwire)(struct ops *); /* gives it back; NULL on the host */
    struct ops_products products;      /* 0 on the host */
    bool allow_tf32; /* fp32 products of a GPU in TF32; CZERO_TF32=1 at first, callers may set it */

    /* The rows chosen; NULL on a device that brings its own kernels. */
    const struct activation_row *activation_row;
    const struct adagrad_row *adagrad_row;
    const struct adam_row *adam_row;
    const struct attention_row *attention_row;
    const struct cross_entropy_row *cross_entropy_row;
    const struct dropout_row *dropout_row;
    const struct elementwise_row *elementwise_row;
    const struct embedding_row *embedding_row;
    const struct lamb_row *lamb_row;
    const struct lion_row *lion_row;
    const struct norm_row *norm_row;
    const struct onebit_row *onebit_row;
    const struct reduce_row *reduce_row;
    const struct rope_row *rope_row;
    const struct sgd_row *sgd_row;

    cz_status (*matmul)(struct ops *, struct dev_stream *, const struct matmul_args *);
    cz_status (*attention_forward)(struct ops *, struct dev_stream *,
                                   const struct attention_args *);
    cz_status (*attention_backward)(struct ops *, struct dev_stream *,
                                    const struct attention_args *);
    cz_status (*layernorm_forward)(struct ops *, struct dev_stream *, const struct norm_args *);
    cz_status (*layernorm_backward)(struct ops *, struct dev_stream *, const struct norm_args *);
    cz_status (*rmsnorm_forward)(struct ops *, struct dev_stream *, const struct norm_args *);
    cz_status (*rmsnorm_backward)(struct ops *, struct dev_stream *, const struct norm_args *);
    cz_status (*activation_forward)(struct ops *, struct dev_stream *,
                                    const struct activation_args *);
    cz_status (*activation_backward)(struct ops *, struct dev_stream *,
                                     const struct activation_args *);
    cz_status (*swiglu_forward)(struct ops *, struct dev_stream *, const struct swiglu_args *);
    cz_status (*swiglu_backward)(struct ops *, struct dev_stream *, const struct swiglu_args *);
    cz_status (*embedding_forward)(struct ops *, struct dev_stream *,
                                   const struct embedding_args *);
    cz_status (*embedding_backward)(struct ops *, struct dev_stream *,
                                    const struct embedding_args *);
    cz_status (*rope)(struct ops *, struct dev_stream *, const struct rope_args *);
    cz_status (*rope_table)(struct ops *, struct dev_stream *, const struct rope_table_args *);
    cz_status (*dropout)(struct ops *, struct dev_stream *, const struct dropout_args *);
    cz_status (*add)(struct ops *, struct dev_stream *, const struct add_args *);
    cz_status (*cast_scale)(struct ops *, struct dev_stream *, const struct cast_scale_args *);
    cz_status (*bias_grad)(struct ops *, struct dev_stream *, const struct bias_grad_args *);
    cz_status (*scan)(struct ops *, struct dev_stream *, const struct scan_args *);
    cz_status (*sumsq)(struct ops *, struct dev_stream *, const struct sumsq_args *);
    cz_status (*ce_head)(struct ops *, struct dev_stream *, const struct ce_head_args *);
    cz_status (*cross_entropy)(struct ops *, struct dev_stream *,
                               const struct cross_entropy_args *);

    /* Optimizer steps (ops/step/step.h): rows agree to the bit. */
    cz_status (*adam)(struct ops *, struct dev_stream *, const struct adam_args *);
    cz_status (*lamb_moments)(struct ops *, struct dev_stream *, const struct lamb_args *);
    cz_status (*lamb_apply)(struct ops *, struct dev_stream *, const struct lamb_args *);
    cz_status (*lion)(struct ops *, struct dev_stream *, const struct lion_args *);
    cz_status (*adagrad)(struct ops *, struct dev_stream *, const struct adagrad_args *);
    cz_status (*sgd)(struct ops *, struct dev_stream *, const struct sgd_args *);

    /* The 1-bit family (ops/onebit/onebit.h): rows agree to the bit. */
    cz_status (*onebit_feed)(struct ops *, struct dev_stream *, const struct onebit_feed_args *);
    cz_status (*onebit_scale)(struct ops *, struct dev_stream *, const struct onebit_scale_args *);
    cz_status (*onebit_pack)(struct ops *, struct dev_stream *, const struct onebit_pack_args *);
    cz_status (*onebit_serve)(struct ops *, struct dev_stream *, const struct onebit_serve_args *);
    cz_status (*onebit_unpack)(struct ops *, struct dev_stream *,
                               const struct onebit_unpack_args *);
    cz_status (*onebit_momentum)(struct ops *, struct dev_stream *,
                                 const struct onebit_momentum_args *);
    cz_status (*onebit_mask_make)(struct ops *, struct dev_stream *,
                                  const struct onebit_mask_make_args *);
    cz_status (*onebit_mask_join)(struct ops *, struct dev_stream *,
                                  const struct onebit_mask_join_args *);
    cz_status (*onebit_lamb_norms)(struct ops *, struct dev_stream *,
                                   const struct onebit_lamb_norms_args *);
    cz_status (*zero_one_local)(struct ops *, struct dev_stream *, const struct zero_one_args *);
    cz_status (*zero_one_gather)(struct ops *, struct dev_stream *, const struct zero_one_args *);
    cz_status (*zero_one_settle)(struct ops *, struct dev_stream *, const struct zero_one_args *);

    /* Called through ops_*_workspace() below. */
    cz_status (*matmul_workspace)(struct ops *, const struct matmul_args *, size_t *nbytes);
    size_t (*attention_workspace)(const struct ops *, const struct attention_args *, bool backward);
    size_t (*norm_workspace)(const struct ops *, const struct norm_args *);
    size_t (*embedding_workspace)(const struct ops *, const struct embedding_args *);
    size_t (*bias_grad_workspace)(const struct ops *, const struct bias_grad_args *);
    cz_status (*ce_head_workspace)(struct ops *, const struct ce_head_args *, size_t *nbytes);
};

/* Choose rows for `device` (borrowed until ops_destroy). Errors: CZ_INVALID (CZERO_ISA names
 * nothing this CPU has), CZ_NOMEM. */
CZ_API cz_status ops_create(struct device *device, struct ops **out);
CZ_API void ops_destroy(struct ops *ops); /* accepts NULL */

/* Workspace in bytes that a call with these shapes needs (pointers in the args are ignored). The
 * same workspace may serve successive calls; ask for each and take the maximum. */
CZ_API cz_status ops_matmul_workspace(struct ops *, const struct matmul_args *, size_t *nbytes);
CZ_API size_t ops_attention_workspace(const struct ops *, const struct attention_args *,
                                      bool backward);
CZ_API size_t ops_norm_workspace(const struct ops *, const struct norm_args *);
CZ_API size_t ops_embedding_workspace(const struct ops *, const struct embedding_args *);
CZ_API size_t ops_bias_grad_workspace(const struct ops *, const struct bias_grad_args *);
CZ_API cz_status ops_ce_head_workspace(struct ops *, const struct ce_head_args *, size_t *nbytes);

CZ_EXTERN_C_END
#endif
