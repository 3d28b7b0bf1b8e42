/* The definition, in double so that it can be the yardstick: one rounding, at the store. */
#include "ops/activation/activation_impl.h"

#include <math.h>

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_HALF      0.70710678118654752440
#define INV_SQRT_2PI   0.39894228040143267794
#define GELU_CUBIC     0.044715

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The forms that do not cancel: a difference of two nearly equal numbers would lose the digits of
 * small results. */
static double value(enum activation kind, double x)
{
    switch (kind) {
    case ACT_GELU_TANH: /* ½(1 + tanh u) = σ(2u), which does not cancel */
        return x * sigmoid(2.0 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
    case ACT_GELU_ERF: /* ½(1 + erf z) = ½ erfc(−z) */ return x * 0.5 * erfc(-x * SQRT_HALF);
    case ACT_SILU: return x * sigmoid(x);
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_TANH: return tanh(x);
    case ACT_QUICK_GELU: return x * sigmoid(1.702 * x);
    case ACT_SIGMOID: return sigmoid(x);
    case ACT_MISH: return x * tanh(log1p(exp(x)));
    case ACT_RELU2: return x < 0 ? 0 : x * x;
    }
    return 0;
}

/* Where the derivative is 0 whatever the gradient above it is. */
static bool is_cut(enum activation kind, double x)
{
    return (kind == ACT_RELU || kind == ACT_RELU2) && x <= 0;
}

/* The derivative; at 0 ReLU's is 0, as in PyTorch. */
static double slope(enum activation kind, double x)
{
    switch (kind) {
    case ACT_GELU_TANH: {
        double s = sigmoid(2.0 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        double du = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
        return s + x * s * (1.0 - s) * 2.0 * du;
    }
    case ACT_GELU_ERF: return 0.5 * erfc(-x * SQRT_HALF) + x * INV_SQRT_2PI * exp(-0.5 * x * x);
    case ACT_SILU: return sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    case ACT_RELU: return x <= 0 ? 0 : 1; /* a NaN lets the gradient pass, as in PyTorch */
    case ACT_TANH: return 1.0 - tanh(x) * tanh(x);
    case ACT_QUICK_GELU: {
        double s = sigmoid(1.702 * x);
        return s * (1.0 + 1.702 * x * (1.0 - s));
    }
    case ACT_SIGMOID: return sigmoid(x) * (1.0 - sigmoid(x));
    case ACT_MISH: {
        double t = tanh(log1p(exp(x)));
        return t + (x > 40 ? 0 : x * sigmoid(x) * (1.0 - t * t)); /* at infinity: 1, not NaN */
    }
    case ACT_RELU2: return x <= 0 ? 0 : 2.0 * x;
    }
    return 0;
}

static void forward(const struct activation_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        dtype_put(a->y, i, a->dtype, (float)value(a->kind, dtype_get(a->x, i, a->dtype)));
}

static void backward(const struct activation_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        double x = dtype_get(a->x, i, a->dtype), dy = dtype_get(a->dy, i, a->dtype);
        double dx = is_cut(a->kind, x) ? 0 : dy * slope(a->kind, x);
        dtype_put(a->dx, i, a->dtype, (float)dx);
    }
}

static void swiglu_forward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    size_t in = (size_t)(n * a->stride), out = (size_t)(n * a->C);
    for (size_t c = begin; c < end; c++) {
        double gate = dtype_get(a->gate, in + c, a->dtype), up = dtype_get(a->up, in + c, a->dtype);
        dtype_put(a->y, out + c, a->dtype, (float)(value(a->act, gate) * up));
    }
}

static void swiglu_backward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    size_t in = (size_t)(n * a->stride), out = (size_t)(n * a->C);
    for (size_t c = begin; c < end; c++) {
        double gate = dtype_get(a->gate, in + c, a->dtype), up = dtype_get(a->up, in + c, a->dtype);
        double dy = dtype_get(a->dy, out + c, a->dtype);
        dtype_put(a->dgate, in + c, a->dtype,
                  (float)(is_cut(a->act, gate) ? 0 : dy * up * slope(a->act, gate)));
        dtype_put(a->dup, in + c, a->dtype, (float)(dy * value(a->act, gate)));
    }
}

const struct activation_row activation_scalar = {
    {"scalar", 0}, forward, backward, swiglu_forward, swiglu_backward};
