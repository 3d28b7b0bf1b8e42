/* Layers: the only thing a new architecture has to write.
 *
 * A model is a chain: each layer maps an input (B,T,Cin) to an output (B,T,Cout); the first reads
 * token ids from the batch, the last one computes the loss. A kind of layer is one static
 * `struct layer_class`; a layer is (class, hyper-parameters, its parameters' indices). Layers hold
 * no memory: the engine plans and lends all of it (params, saved activations, workspace,
 * gradients). Layers know no ranks, no optimizer and no files. */
#ifndef CZ_MODEL_LAYER_H
#define CZ_MODEL_LAYER_H

#include "base/batch.h"
#include "base/rng.h"
#include "layout/param_table.h"
#include "ops/ops.h"

CZ_EXTERN_C_BEGIN

/* Where a layer declares its parameters: wraps the model's table and records the layer's indices in
 * the order of declaration, which is the order of layer_args.params. */
struct param_list {
    struct param_table *table;
    size_t *idx; /* grown by param_list_add */
    size_t n, cap;
};

/* Declare one parameter (see param_table_add: an existing name with equal shape is a tie). */
cz_status param_list_add(struct param_list *l, const char *name, int ndim, const int64_t *shape,
                         enum param_init init, float init_std);

/* A low-rank branch (LoRA) beside one of a layer's linear maps:
 *   y = x·w + scale·(dropout(x)·Aᵀ)·Bᵀ,   A (rank,in), B (out,rank)
 * Arrays stand behind the layer's own in layer_args.params. The maps of model/parts/blocks_impl.h
 * find the branch of their weight and compute it; layers know nothing of branches.
 * With DoRA the weight behind the sum, w + scale·B·A, has its rows scaled to the lengths m (out);
 * its dropout acts on what the branch adds and on what the lengths change. */
struct layer_branch {
    size_t w, a, b, m; /* positions in layer_args.params */
    bool is_dora;      /* m is there */
    int64_t rank;
    double alpha; /* scale is alpha/rank, or with rsLoRA alpha/sqrt(rank) */
    float scale, dropout_p;
    uint32_t site; /* of its dropout, as rng.site */
};

/* What sizes depend on: the largest batch, the dtypes, and the ops that will run. */
struct batch_shape {
    int64_t B, T;
    int64_t n_texts; /* of a batch without padding, whose B is 1 (batch.texts); 0: it has B rows */
    enum cz_dtype dtype;      /* of activations and parameters */
    enum cz_dtype grad_dtype; /* of parameter gradients: dtype or F32 */
    struct ops *ops;
    bool training;  /* false: forward and decode only, nothing saved */
    bool keeps_all; /* training: `saved` holds what backward could cheaply make again, too */
    const struct layer_branch *branches; /* of this layer's maps */
    size_t n_branches;
};

/* Exact bytes. */
struct layer_sizes {
    size_t out_nbytes;       /* output activation, 0 for a loss layer */
    size_t saved_nbytes;     /* kept from forward to backward, besides the layer's input */
    size_t workspace_nbytes; /* scratch: the largest of forward (TRAIN and EVAL), backward and,
                                unless `training`, decode of up to T positions at once */
    size_t cache_nbytes;     /* decode: key/value cache for B sequences of up to T positions */
    size_t shared_nbytes;    /* of layer_args.shared: the largest of all layers is there */
    size_t put_off_nbytes;   /* of layer_args.put_off; 0: the layer has no use for it */
    double flops_forward;    /* multiply-adds counted as 2, for the profiler and the tuner */
    double flops_attention;  /* of those, products without a weight: their backward is two more of
                                them, whatever is frozen */
};

enum layer_mode {
    LAYER_TRAIN = 0, /* keep what backward needs in `saved`; dropout on */
    LAYER_EVAL,      /* dropout off, `saved` is NULL */
    LAYER_RECOMPUTE  /* repeat a TRAIN forward during backward: same rng, fills `saved` again */
};

struct objective; /* model/objective.h */

/* Gradient of one parameter: dp NULL when frozen. */
struct param_grad {
    void *dp;
    bool accumulate; /* add to what is there; false: overwrite all of it */
    bool none;       /* false; a layer sets it when this batch gives no gradient: dp is untouched */
};

struct layer_args {
    struct ops *ops;
    struct dev_stream *stream;
    const struct batch *batch; /* arrays in device memory; batch_on_host() for the host to read */
    enum layer_mode mode;
    bool no_dropout; /* TRAIN and RECOMPUTE without dropout: to compare gradients */
    bool keeps_all;  /* as in batch_shape */
    enum cz_dtype dtype, grad_dtype;
    struct rng_key rng; /* .site is the layer's first; add 0 … RNG_SITES_PER_LAYER−1 per draw */

    const void *in; /* (B,T,Cin); NULL for the first layer. The same in forward and backward */
    void *out;      /* (B,T,Cout), forward; never aliases `in`; NULL for a loss layer, and in
                       RECOMPUTE when only `saved` is wanted */
    const void *const *params;
    const struct layer_branch *branches; /* of this layer's maps */
    size_t n_branches;
    void *saved; /* backward may use it up */
    void *workspace;
    size_t workspace_nbytes;

    /* What layers of one pass tell each other besides their outputs: one piece for all of them,
     * zero before a TRAIN or EVAL forward, as forward left it in backward. NULL in decode. */
    void *shared;

    const void *dout; /* backward: gradient of out; NULL for a loss layer */
    void *din;        /* backward: overwritten; NULL for the first layer */
    struct param_grad *dparams;

    /* Loss layers only (flag LAYER_LOSS). A TRAIN forward already computes the gradients: dparams
     * are given there, and dloss; `saved` keeps din, which backward hands on. */
    float *loss; /* device fp32: mean loss of the micro-batch; NULL: none wanted */
    float *hits; /* device fp32, EVAL only: labels whose logit is their row's largest; NULL: not
                    wanted. Language models' heads */
    float *log_probs; /* device fp32: of each position's label, (B,T), 0 where there is none, where
                         the head is a language model's; NULL: not wanted. With an objective in
                         TRAIN (2,B,T): the layer's weights stand behind them between its calls */
    const struct objective *objective; /* TRAIN: model/objective.h; NULL: the layer's own loss */
    float *logits; /* host or device fp32 (B,T,V), EVAL only; or a classifier's, TRAIN too; NULL:
                      none wanted. On a GPU they are there after a wait for the stream */
    float dloss;   /* gradient of the loss: loss scale / accumulation steps */
    bool no_din;   /* TRAIN: only gradients in dparams are wanted, and `saved` is scratch. A layer
                      may make din all the same */
    void *put_off; /* TRAIN with gradients in two calls: the first, with din, keeps there what
                      spares the second, with no_din, its logits. NULL: there is no space for it */

    /* Decode only: the batch holds the batch->T next tokens of each sequence, one when generating
     * or a whole prompt; in and out are (B,batch->T,C). A loss layer gives `logits` (B,V) of the
     * last of them. */
    void *cache;
    int64_t position; /* tokens already in the cache; position + batch->T ≤ cache_T */
    int64_t cache_T;  /* capacity in positions, as in batch_shape.T */
};

/* LAYER_MAPS: matrices among the parameters are weights (out,in) of linear maps that run through
 * model/parts/blocks_impl.h and may have branches;
 * LAYER_MAPS_IN_OUT: the same, stored (in,out).
 * LAYER_INDEXED: hyper-parameters begin with an int, the layer's number, on which no size depends.
 * LAYER_OBJECTIVE: a loss layer that heeds layer_args.objective and log_probs.
 * LAYER_HEAD: part of the head, as a loss layer is: what the first of them reads is the last hidden
 * state. */
enum {
    LAYER_LOSS = 1 << 0,
    LAYER_MAPS = 1 << 1,
    LAYER_MAPS_IN_OUT = 1 << 2,
    LAYER_INDEXED = 1 << 3,
    LAYER_HEAD = 1 << 4,
    LAYER_OBJECTIVE = 1 << 5
};

/* Sites of branches' dropout; a layer with maps draws at sites below. */
enum { LAYER_BRANCH_SITE = 8, LAYER_BRANCHES_MAX = 8 };

struct layer_class {
    const char *name;
    unsigned flags;
    /* Names, shapes, init rules and ties of the parameters, in Hugging Face's order. */
    cz_status (*declare)(const void *hp, struct param_list *out);
    /* Exact bytes for a batch shape. CZ_INVALID when the shape cannot run (T beyond the table). */
    cz_status (*size)(const void *hp, const struct batch_shape *shape, struct layer_sizes *out);
    cz_status (*forward)(const void *hp, const struct layer_args *a);
    cz_status (*backward)(const void *hp, const struct layer_args *a);
    /* Optional: the next positions of each sequence, with a cache; NULL: the caller recomputes the
     * whole prefix. */
    cz_status (*decode)(const void *hp, const struct layer_args *a);
    /* Optional, of a head's class: out (B,T,C) = norm(in) where the class norms its input,
     * which then is the last hidden state. Without a norm *normed is false, and `in` is that state.
     */
    cz_status (*hidden)(const void *hp, const struct layer_args *a, bool *normed);
    /* Optional, of a class without LAYER_MAPS: the name of its one weight (out,in) that runs
     * through model/parts/blocks_impl.h and may have a branch; NULL: this layer has none. */
    const char *(*map_name)(const void *hp);
};

CZ_EXTERN_C_END
#endif
