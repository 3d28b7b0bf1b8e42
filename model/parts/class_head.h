/* The classification head of encoders and decoders: what it reads, the maps, the loss.
 *
 * Legend: B batch, T positions, N = B·T, n rows that the head reads (B, or N for HEAD_EACH), C
 * width, K classes. */
#ifndef CZ_MODEL_PARTS_CLASS_HEAD_H
#define CZ_MODEL_PARTS_CLASS_HEAD_H

#include "model/layer.h"
#include "ops/activation/activation.h"

CZ_EXTERN_C_BEGIN

/* Which positions of a sample stand for it. */
enum head_rows {
    HEAD_FIRST = 0, /* the first: encoders */
    HEAD_LAST,      /* the last one that is no padding: decoders */
    HEAD_EACH       /* every position has a class of its own */
};

/* The loss: cross-entropy of each row's class, or an objective over K targets a row
 * (model/objective.h), which the host alone computes. */
enum head_loss { HEAD_CROSS_ENTROPY = 0, HEAD_SQUARED_ERROR, HEAD_BINARY };

/* z (n,K) = dropout(act(norm(x)·Wᵀ + b))·Uᵀ + c of the rows x that are read, and the loss of z.
 * Names that are NULL leave their part out. class_head.c */
struct class_head_hp {
    enum head_rows rows;
    enum head_loss loss;
    int64_t padding_id; /* HEAD_LAST: tokens that are padding; -1: those that the mask hides */
    const char *norm_weight_name, *norm_bias_name;   /* (C); no bias: RMS norm */
    const char *pool_weight_name, *pool_bias_name;   /* W (C,C), b, and act behind it */
    const char *class_weight_name, *class_bias_name; /* U (K,C), c */
    enum activation act;
    int64_t C, K;
    float eps, norm_offset; /* of the norm, as in model_lm_head_hp */
    float dropout_p, init_std;
    float input_dropout_p; /* before the pool, too; 0: none */
};
extern const struct layer_class class_head_class;

CZ_EXTERN_C_END
#endif
