/* Custom layers: how to train an architecture that czero does not have.
 *
 * A model is a chain of layers. Each maps an input (B,T,C_in) to an output (B,T,C_out); the first
 * one has no input and reads token ids from the batch, the last one computes the loss. A kind of
 * layer is a struct cz_layer_class, a table of functions; a layer is a class with its own
 * hyper-parameters.
 *
 *   cz_model_create → engine_initialize takes the model over → the engine calls the functions
 *
 * Layers own no memory. The engine asks `sizes` how many bytes a layer needs, plans them, and
 * passes them to forward and backward: parameters, activations, workspace, gradients. So a layer
 * needs no code for ZeRO, offload, several ranks, checkpoints or activation checkpointing, and
 * nothing is allocated after the first step. A layer that uses the functions of czero/ops.h runs on
 * the CPU and on a GPU, in fp32, bf16 and fp16.
 *
 * Errors: a function of a layer returns CZ_OK, the status of a czero call that failed, or
 * cz_error(). The engine's call then fails with that status, and its sentence begins with the
 * layer's number and name. No C++ exception may leave a function of a layer.
 *
 * Threads: cz_model_create() calls declare; the engine calls the other functions in the thread that
 * uses the engine, one at a time. examples/custom_layer.c and examples/custom_layer_cpp.cpp are
 * complete programs. */
#ifndef CZERO_LAYER_H
#define CZERO_LAYER_H

#include <czero/batch.h>
#include <czero/model.h>
#include <czero/ops.h>

CZ_EXTERN_C_BEGIN

/* ---- parameters ------------------------------------------------------------------------------ */

/* The initial values of a parameter, a function of cz_model_set_seed()'s seed, the parameter's
 * number and the element. */
enum cz_init {
    CZ_INIT_ZERO = 0,
    CZ_INIT_ONE,
    CZ_INIT_NORMAL,  /* mean 0 */
    CZ_INIT_SINUSOID /* (P,C): sin and cos of p/10000^(2*floor(c/2)/C) in even and odd columns;
                        Vaswani et al., arXiv 1706.03762 */
};

struct cz_param_list; /* opaque: what a layer declares */

/* Declare one parameter: its name in checkpoints (copied), ndim sizes from 1 to CZ_NDIM_MAX of
 * them, and its initial values; init_std is the standard deviation of CZ_INIT_NORMAL. The order of
 * the calls is the order of cz_layer_args.params. A name that an earlier layer declared, with the
 * same shape, is the same parameter (tied weights): its gradients are added up. Errors: CZ_INVALID
 * (NULL, an empty name, another shape under a known name, a size below 1), CZ_NOMEM. Call it only
 * from declare. */
CZ_API cz_status cz_param_add(struct cz_param_list *list, const char *name, int ndim,
                              const int64_t *shape, enum cz_init init, float init_std);

/* Give the parameter of the last cz_param_add() a second name (copied), as tied weights have in
 * state_dict(). Errors: CZ_INVALID (NULL, no parameter yet, a name that is in use), CZ_NOMEM. */
CZ_API cz_status cz_param_alias(struct cz_param_list *list, const char *name);

/* ---- sizes ----------------------------------------------------------------------------------- */

/* What a layer's memory depends on. Filled by the engine; members are only ever appended. */
struct cz_layer_shape {
    size_t size;              /* sizeof(struct cz_layer_shape) in the library */
    int64_t B, T;             /* the largest batch: rows, positions */
    enum cz_dtype dtype;      /* of activations and parameters: F32, BF16 or F16 */
    enum cz_dtype grad_dtype; /* of parameters' gradients: dtype, or F32 */
    const struct cz_ops *ops; /* for cz_…_workspace() */
    bool training;            /* false: evaluation and decoding only, nothing is saved */
    bool keeps_all;           /* training: memory is cheaper than time: `saved` may also hold what
                                 backward could compute again */
};

/* The layer's answer, exact bytes; zeroed by the engine, which also sets `size`. */
struct cz_layer_sizes {
    size_t size;             /* sizeof(struct cz_layer_sizes) in the library */
    size_t out_nbytes;       /* the output; 0 for a loss layer */
    size_t saved_nbytes;     /* kept from forward to backward, besides the input */
    size_t workspace_nbytes; /* scratch memory: the maximum over forward in training and evaluation,
                                backward, and, unless training, decode of up to T positions */
    size_t cache_nbytes;     /* decode: the cache of B sequences of up to T positions */
    double flops_forward; /* a multiplication and an addition count as 2; for reports and tuning */
};

/* ---- calls ----------------------------------------------------------------------------------- */

enum cz_layer_mode {
    CZ_LAYER_TRAIN = 0, /* keep in `saved` what backward needs */
    CZ_LAYER_EVAL,      /* `saved` is NULL */
    CZ_LAYER_RECOMPUTE  /* activation checkpointing: a TRAIN forward is repeated before backward,
                           with the same random key, and fills `saved` again */
};

/* The gradient of one parameter. */
struct cz_param_grad {
    void *dp;        /* NULL: not wanted, the parameter is frozen */
    bool accumulate; /* add to dp; false: overwrite all of it */
    bool none;       /* false; the layer sets it when this batch gives no gradient, and then leaves
                        dp as it is */
};

/* Arguments of forward, backward and decode. Filled by the engine; a layer only reads them, and may
 * pass a copy on. Members are only ever appended. Pointers are valid until the function returns.
 * N below is batch->B*batch->T. Memory of activations (in, out, saved, workspace, cache, dout, din)
 * is aligned to 64 bytes. None of the pieces overlap. */
struct cz_layer_args {
    size_t size; /* sizeof(struct cz_layer_args) in the library */
    const struct cz_ops *ops;
    const struct cz_batch *batch; /* B and T at most the shape's; arrays in memory of the device,
                                     any but ids may be NULL */
    const struct cz_batch *host_batch; /* the same batch with arrays that the host may read */
    enum cz_layer_mode mode;
    bool dropout;   /* apply dropout: training, unless gradients are being compared */
    bool keeps_all; /* as in cz_layer_shape */
    enum cz_dtype dtype, grad_dtype; /* as in cz_layer_shape */
    struct cz_rng_key rng;           /* for dropout; backward gets the key that forward had */

    const void *in;            /* (N,C_in), in forward and backward; NULL for the first layer */
    void *out;                 /* (N,C_out), forward; NULL for a loss layer, and in RECOMPUTE when
                                  only `saved` is wanted */
    const void *const *params; /* in the order of declaration, of `dtype` */
    void *saved;               /* saved_nbytes; backward may overwrite it */
    void *workspace;           /* at least workspace_nbytes of `sizes`, undefined values */
    size_t workspace_nbytes;

    const void *dout;              /* backward: the gradient of out; NULL for a loss layer */
    void *din;                     /* backward: (N,C_in), overwrite it; NULL for the first layer */
    struct cz_param_grad *dparams; /* in the order of declaration; gradients of grad_dtype. For a
                                      loss layer in forward, see below; for others in backward */

    /* Loss layers (CZ_LAYER_LOSS). Forward in TRAIN also computes the gradients: dparams, and din,
     * which it puts into `saved`, for backward to copy. Thus the logits of a whole batch need not
     * exist. RECOMPUTE does not happen. */
    float *loss;   /* (1) fp32, memory of the device: mean loss of the batch; NULL: not wanted */
    float *logits; /* fp32 (B,T,V), in EVAL only, or (B,n_classes) of a classifier, in TRAIN, too;
                      memory of the device or of the host: write it by cz_copy(), or by any op on
                      the host device; NULL: not wanted */
    float dloss;   /* gradient of the loss: the loss scale divided by the accumulation steps */

    /* Decode: the batch holds the next T tokens of each sequence: a prompt, or one token. in and
     * out are (B,T,C). A loss layer writes the logits (B,V) of the last of them. */
    void *cache;      /* cache_nbytes; values of positions from `position` on are undefined */
    int64_t position; /* tokens that the cache holds already */
    int64_t cache_T;  /* positions that the cache has memory for; position + T ≤ cache_T */
};

/* ---- classes --------------------------------------------------------------------------------- */

#define CZ_LAYER_LOSS (1u << 0) /* flag: the layer computes the loss */

/* A kind of layer. hp is the copy of the layer's hyper-parameters. The functions must stay valid
 * until the model is destroyed; the struct and its name are copied. */
struct cz_layer_class {
    size_t size;      /* sizeof(struct cz_layer_class) */
    const char *name; /* for error messages */
    unsigned flags;   /* 0 or CZ_LAYER_LOSS */
    /* Declare the parameters with cz_param_add(), in state_dict()'s order. */
    cz_status (*declare)(const void *hp, struct cz_param_list *out);
    /* The bytes for batches of up to this shape; also called with smaller shapes, for which no
     * figure may be larger. CZ_INVALID when the shape cannot run. */
    cz_status (*sizes)(const void *hp, const struct cz_layer_shape *shape,
                       struct cz_layer_sizes *out);
    cz_status (*forward)(const void *hp, const struct cz_layer_args *args);
    cz_status (*backward)(const void *hp, const struct cz_layer_args *args);
    /* Optional, for generation: process the next positions of each sequence with a cache. NULL:
     * generation computes the whole prefix again for each token. */
    cz_status (*decode)(const void *hp, const struct cz_layer_args *args);
};

/* ---- ready-made classes ------------------------------------------------------------------------
 * The two ends of a decoder; custom layers go between them. Pass the pointer itself in
 * cz_layer_desc.cls: the functions in the struct are NULL. */

/* out (B,T,C) = dropout(token[id] [+ position[pos]]): the first layer. pos is the batch's, or
 * 0 … T - 1. */
CZ_API const struct cz_layer_class *cz_layer_embedding(void);

struct cz_embedding_hp {
    size_t size;               /* sizeof(struct cz_embedding_hp) */
    const char *token_name;    /* parameter (V,C) */
    const char *position_name; /* parameter (P,C) of learned positions; NULL: none */
    int64_t V, P, C;           /* P: at least the model's t_max, with position_name */
    float dropout_p;           /* in [0,1) */
    float init_std;
    bool has_padding; /* tokens of padding_id get no gradient; their row starts as drawn */
    int64_t padding_id;
};

/* Final norm, projection on the vocabulary, mean cross-entropy: the last layer (CZ_LAYER_LOSS).
 * Logits exist for a block of rows at a time (cz_head_cross_entropy()). */
CZ_API const struct cz_layer_class *cz_layer_lm_head(void);

struct cz_lm_head_hp {
    size_t size;                  /* sizeof(struct cz_lm_head_hp) */
    const char *norm_weight_name; /* parameter (C) */
    const char *norm_bias_name;   /* parameter (C); NULL: RMS norm instead of layer norm */
    const char *weight_name;      /* parameter (V,C); an earlier parameter's name ties it */
    const char *tied_alias;       /* its second name when tied; NULL: none */
    int64_t V, C;
    float eps;      /* of the norm, > 0 */
    float init_std; /* of the weight, unless tied */
};

/* ---- models ---------------------------------------------------------------------------------- */

/* One layer of a chain. Unlike other structs it never grows. */
struct cz_layer_desc {
    const struct cz_layer_class *cls;
    const void *hp;   /* hyper-parameters: plain data, copied. Pointers in it are not followed, but
                         strings of ready-made classes are copied, too. NULL: none */
    size_t hp_nbytes; /* bytes of hp */
};

struct cz_model_desc {
    size_t size;      /* sizeof(struct cz_model_desc) */
    const char *name; /* for messages; NULL: "model" */
    const struct cz_layer_desc *layers;
    size_t n_layers;     /* the last one has CZ_LAYER_LOSS, no other */
    int64_t vocab_size;  /* token ids are checked against it; 0: not checked */
    int64_t t_max;       /* the longest sequence, at least 1 */
    int64_t hidden_size; /* for "auto" values of the config; 0: unknown */
    int64_t n_classes;   /* CZ_LABELS_CLASS: their number, up to CZ_CLASSES_MAX; 0 otherwise */
    int64_t n_types;     /* token types are checked against it; 0: the layers use none */
    enum cz_labels labels;
};

/* A model of custom layers, for engine_initialize() or cz_model_destroy(). Its weights follow the
 * init rules, or a checkpoint; it cannot be exported to Hugging Face's format. desc is only read
 * during the call. NULL on error; cz_last_status() is CZ_INVALID (the sentence names the layer and
 * the member), CZ_UNSUPPORTED (a struct of a newer version), CZ_NOMEM, or what declare returned. */
CZ_API struct cz_model *cz_model_create(const struct cz_model_desc *desc);

CZ_EXTERN_C_END
#endif
