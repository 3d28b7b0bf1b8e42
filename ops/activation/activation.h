/* Point-wise activations. Arithmetic in fp32, one rounding.
 *
 *   gelu tanh: y = ½x(1 + tanh(√(2/π)(x + 0.044715x³)))        ("gelu_new")
 *   gelu erf:  y = ½x(1 + erf(x/√2))                            ("gelu")
 *   silu:      y = x·σ(x);   quick gelu: y = x·σ(1.702x)
 *   mish:      y = x·tanh(ln(1 + eˣ)), Misra, arXiv 1908.08681
 *   relu2:     y = max(x, 0)², So et al., arXiv 2109.08668
 *   sigmoid, relu, tanh: as named
 *   gated products, Shazeer, arXiv 2002.05202: y = f(gate)·up with any of them as f: silu makes
 *   SwiGLU, gelu GeGLU, relu ReGLU, sigmoid GLU
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

enum activation {
    ACT_GELU_TANH = 0,
    ACT_GELU_ERF,
    ACT_SILU,
    ACT_RELU,
    ACT_TANH,
    ACT_QUICK_GELU,
    ACT_SIGMOID,
    ACT_MISH,
    ACT_RELU2
};
#define ACTIVATIONS (ACT_RELU2 + 1) /* how many there are */

struct activation_args {
    enum activation kind;
    enum cz_dtype dtype;
    size_t numel;
    const void *x;
    void *y;        /* forward; may alias x */
    const void *dy; /* backward: dx = dy·f'(x); dx may alias dy or x */
    void *dx;
};

/* y = act(gate)·up over N rows of C; gate and up may be columns of one (N, stride) matrix. dgate
 * and dup may alias gate and up; so may y with dense ones. */
struct swiglu_args {
    enum activation act;
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
