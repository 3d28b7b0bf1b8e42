/* One step of an optimizer on a tile: what all optimizers share, and the op that runs those whose
 * elements need nothing but themselves.
 *
 * A kernel reads each element's master, gradient and states once, updates, and writes master,
 * states and (for 16-bit models) the rounded parameter in the same pass. An element's result
 * depends on nothing but its own inputs and the scalars, so tile and shard edges do not show.
 *
 * Arithmetic is fp32 in one written sequence per optimizer: add, mul, explicit fma, IEEE sqrt and
 * div, denormals kept. ops/step/<name>_impl.h has the sequence, once for all rows and CUDA. All
 * rows agree to the bit; where a result is NaN they agree that it is NaN (its payload is the
 * processor's).
 *
 * A new element-wise optimizer: its <name>_impl.h, and a line in STEP_OPS. */
#ifndef CZ_OPS_STEP_STEP_H
#define CZ_OPS_STEP_STEP_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

#define STEP_STATES_MAX 3

/* STEP(name, NAME, states) */
#define STEP_OPS(STEP)                                                                             \
    STEP(adam, ADAM, 2)                                                                            \
    STEP(adagrad, ADAGRAD, 1)                                                                      \
    STEP(lion, LION, 1)                                                                            \
    STEP(sgd, SGD, 1)

#define STEP_ENUM(name, NAME, states) STEP_##NAME,
enum step_op { STEP_OPS(STEP_ENUM) STEP_N_OPS };
#undef STEP_ENUM

/* Scalars of one optimizer step for one parameter group. They live in the device's memory, are
 * rewritten before each step by optim_step_scalars(), and are the only things that change between
 * two launches of the same tile. Each optimizer reads those its header names. */
struct step_scalars {
    float grad_scale;   /* gradients are multiplied by this first: 1/(loss scale · clip factor) */
    float lr;           /* of this step */
    float beta1, beta2; /* of this step */
    float inv_bias1;    /* 1/(1 − beta1^t), or 1 without bias correction */
    float inv_sqrt_bias2; /* 1/√(1 − beta2^t), or 1 */
    float step_size; /* Adagrad: lr/(1 + (t−1)·lr_decay); Lamb: lr·√(1 − beta2^t)/(1 − beta1^t);
                        ZeroOneAdam: Σ lr since the last exchange */
    uint32_t is_first; /* 1 when t is 1 */
    uint64_t step;     /* t: applied updates, this one included; ≥ 1 */
};

/* The tensors of one tile, all of numel elements, in the device's memory, aligned to their element
 * size. None may overlap another. */
struct step_tensors {
    size_t numel;
    void *p; /* master weights; for fp32 models the parameters themselves */
    enum cz_dtype p_dtype;
    const void *g; /* gradients: fp32, bf16 or fp16 */
    enum cz_dtype g_dtype;
    void *states[STEP_STATES_MAX]; /* in the optimizer's order, all of one dtype */
    enum cz_dtype state_dtype;
    void *out; /* the parameter rounded from the new master; NULL: there is none */
    enum cz_dtype out_dtype;
};

/* A step of an element-wise optimizer. Each reads the constants that its file names. */
struct step_args {
    enum step_op op;
    struct step_tensors t;
    const struct step_scalars *scalars;
    float eps, weight_decay;
    float momentum, dampening; /* SGD */
    bool decoupled; /* Adam: the decay joins the update (AdamW); false: the gradient (L2) */
    bool nesterov;  /* SGD */
};

/* "adam", … */
const char *step_name(enum step_op op);

/* Queue the call on the stream: ops/ops.h says what holds for all calls. SGD without momentum takes
 * no state; one that is given stays as it is. */
cz_status ops_step(struct ops *ops, struct dev_stream *stream, const struct step_args *a);

CZ_EXTERN_C_END
#endif
