/* Point-wise activations. Arithmetic in fp32, one rounding.
 *
 *   gelu tanh: y = ½x(1 + tanh(√(2/π)(x + 0.044715x³)))        ("gelu_new")
 *   gelu erf:  y = ½x(1 + erf(x/√2))                            ("gelu")
 *   silu:      y = x·σ(x);   swiglu: y = silu(gate)·up, geglu: y = gelu(gate)·up
 *   relu, tanh: as named (classification heads)
 *
 * Vector rows differ from the definition by their exp (1 ulp) and by what it magnifies: see
 * tests/unit/ops/test_activation_agree.c for the bounds. An element's result depends on nothing
 * else. */
#ifndef CZ_OPS_ACTIVATION_ACTIVATION_H
#define CZ_OPS_ACTIVATION_ACTIVATION_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

enum activation { ACT_GELU_TANH = 0, ACT_GELU_ERF, ACT_SILU, ACT_RELU, ACT_TANH };

struct activation_args {
    enum activation kind;
    enum cz_dtype dtype;
    size_t numel;
    const void *x;
    void *y;        /* forward; may alias x */
    const void *dy; /* backward: dx = dy·f'(x); dx may alias dy or x */
    void *dx;
};

enum gate { GATE_SILU = 0, GATE_GELU_TANH, GATE_GELU_ERF };

/* y = f(gate)·up over N rows of C; gate and up may be columns of one (N, stride) matrix. dgate
 * and dup may alias gate and up; so may y with dense ones. */
struct swiglu_args {
    enum gate gate_kind; /* f: silu, or gelu in one of its forms */
    enum cz_dtype dtype;
    int64_t N, C, stride; /* elements between rows of gate, up, dgate, dup; y and dy are dense */
    const void *gate, *up;
    void *y;
    const void *dy;
    void *dgate, *dup;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_activation_forward(struct ops *ops, struct dev_stream *stream,
                                 const struct activation_args *a);
cz_status ops_activation_backward(struct ops *ops, struct dev_stream *stream,
                                  const struct activation_args *a);
cz_status ops_swiglu_forward(struct ops *ops, struct dev_stream *stream,
                             const struct swiglu_args *a);
cz_status ops_swiglu_backward(struct ops *ops, struct dev_stream *stream,
                              const struct swiglu_args *a);

CZ_EXTERN_C_END
#endif
