/* Body of the vector rows. Limit: memory (8 bytes per fp32 element forward, 12 backward); about 30
 * vector operations per vector keep just below it. */
#include "ops/activation/activation_impl.h"
#include "ops/vecmath_impl.h"

#define SQRT_2_OVER_PI 0x1.988454p-1f
#define GELU_CUBIC     0.044715f

/* σ(2u) for the tanh form, u = √(2/π)(x + 0.044715x³), at x clamped to where σ is 0 or 1 anyway:
 * the cube does not overflow. */
VEC_FN vf gelu_gate(vf clamped)
{
    vf sq = clamped * clamped;
    vf u = clamped *
           vf_fma(sq, vf_set1(2.0f * SQRT_2_OVER_PI * GELU_CUBIC), vf_set1(2.0f * SQRT_2_OVER_PI));
    return vf_sigmoid(u);
}

VEC_FN vf gelu_clamp(vf x)
{
    return vf_max(vf_set1(-16.0f), vf_min(vf_set1(16.0f), x)); /* NaN passes */
}

VEC_FN vf act_value(enum activation kind, vf x)
{
    vf cdf, density;
    switch (kind) {
    case ACT_GELU_TANH: return x * gelu_gate(gelu_clamp(x));
    case ACT_GELU_ERF: vf_normal(x, &cdf, &density); return x * cdf;
    case ACT_SILU: return x * vf_sigmoid(x);
    case ACT_RELU: return vf_select(vf_lt(x, vf_zero()), vf_zero(), x);
    case ACT_TANH: return vf_tanh(x);
    }
    return x;
}

/* dy·f'(x) for silu: dy·s·(1 + x·(1 − s)) */
VEC_FN vf silu_gradient(vf x, vf s, vf dy)
{
    return dy * s * vf_fma(x, vf_set1(1.0f) - s, vf_set1(1.0f));
}

/* dy·f'(x) for the tanh form: s + x·s·(1 − s)·2u', 2u' = 2√(2/π)(1 + 3·0.044715x²) */
VEC_FN vf gelu_tanh_gradient(vf x, vf dy)
{
    vf clamped = gelu_clamp(x);
    vf s = gelu_gate(clamped);
    vf slope = vf_fma(clamped * clamped, vf_set1(6.0f * SQRT_2_OVER_PI * GELU_CUBIC),
                      vf_set1(2.0f * SQRT_2_OVER_PI));
    return dy * vf_fma(x, s * (vf_set1(1.0f) - s) * slope, s);
}

VEC_FN vf act_gradient(enum activation kind, vf x, vf dy)
{
    vf cdf, density, y;
    switch (kind) {
    case ACT_GELU_TANH: return gelu_tanh_gradient(x, dy);
    case ACT_GELU_ERF: vf_normal(x, &cdf, &density); return dy * vf_fma(x, density, cdf);
    case ACT_SILU: return silu_gradient(x, vf_sigmoid(x), dy);
    case ACT_RELU: return vf_select(vf_le(x, vf_zero()), vf_zero(), dy);
    case ACT_TANH: y = vf_tanh(x); return dy * vf_fnma(y, y, vf_set1(1.0f));
    }
    return dy;
}

VEC_FN void forward_loop(enum activation kind, enum dtype dtype, const void *x, void *y,
                         size_t begin, size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) vf_store(y, i, dtype, act_value(kind, vf_load(x, i, dtype)));
    size_t n = end - i;
    if (n > 0) vf_store_n(y, i, dtype, act_value(kind, vf_load_n(x, i, dtype, n)), n);
}

VEC_FN void forward_of(enum dtype dtype, const struct activation_args *a, size_t begin, size_t end)
{
    ACT_BY_KIND(forward_loop, a->kind, dtype, a->x, a->y, begin, end);
}

static void forward(const struct activation_args *a, size_t begin, size_t end)
{
    OPS_BY_DTYPE(forward_of, a->dtype, a, begin, end);
}

VEC_FN void backward_loop(enum activation kind, enum dtype dtype, const void *x, const void *dy,
                          void *dx, size_t begin, size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N)
        vf_store(dx, i, dtype, act_gradient(kind, vf_load(x, i, dtype), vf_load(dy, i, dtype)));
    size_t n = end - i;
    if (n == 0) return;
    vf tail = act_gradient(kind, vf_load_n(x, i, dtype, n), vf_load_n(dy, i, dtype, n));
    vf_store_n(dx, i, dtype, tail, n);
}

VEC_FN void backward_of(enum dtype dtype, const struct activation_args *a, size_t begin, size_t end)
{
    ACT_BY_KIND(backward_loop, a->kind, dtype, a->x, a->dy, a->dx, begin, end);
}

static void backward(const struct activation_args *a, size_t begin, size_t end)
{
    OPS_BY_DTYPE(backward_of, a->dtype, a, begin, end);
}

VEC_FN void swiglu_forward_of(enum dtype dtype, const void *gate, const void *up, void *y,
                              size_t in, size_t out, size_t numel)
{
    size_t i = 0;
    for (; i + VF_N <= numel; i += VF_N) {
        vf g = vf_load(gate, in + i, dtype), u = vf_load(up, in + i, dtype);
        vf_store(y, out + i, dtype, act_value(ACT_SILU, g) * u);
    }
    size_t n = numel - i;
    if (n == 0) return;
    vf g = vf_load_n(gate, in + i, dtype, n), u = vf_load_n(up, in + i, dtype, n);
    vf_store_n(y, out + i, dtype, act_value(ACT_SILU, g) * u, n);
}

static void swiglu_forward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    size_t in = (size_t)(n * a->stride) + begin, out = (size_t)(n * a->C) + begin;
    OPS_BY_DTYPE(swiglu_forward_of, a->dtype, a->gate, a->up, a->y, in, out, end - begin);
}

VEC_FN void swiglu_backward_of(enum dtype dtype, const struct swiglu_args *a, size_t in, size_t out,
                               size_t numel)
{
    const void *gate = a->gate, *up = a->up, *dy = a->dy;
    void *dgate = a->dgate, *dup = a->dup;
    size_t i = 0;
    for (; i + VF_N <= numel; i += VF_N) {
        vf g = vf_load(gate, in + i, dtype), u = vf_load(up, in + i, dtype);
        vf d = vf_load(dy, out + i, dtype), s = vf_sigmoid(g);
        vf_store(dgate, in + i, dtype, silu_gradient(g, s, d * u));
        vf_store(dup, in + i, dtype, d * (g * s));
    }
    size_t n = numel - i;
    if (n == 0) return;
    vf g = vf_load_n(gate, in + i, dtype, n), u = vf_load_n(up, in + i, dtype, n);
    vf d = vf_load_n(dy, out + i, dtype, n), s = vf_sigmoid(g);
    vf_store_n(dgate, in + i, dtype, silu_gradient(g, s, d * u), n);
    vf_store_n(dup, in + i, dtype, d * (g * s), n);
}

static void swiglu_backward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    size_t in = (size_t)(n * a->stride) + begin, out = (size_t)(n * a->C) + begin;
    OPS_BY_DTYPE(swiglu_backward_of, a->dtype, a, in, out, end - begin);
}
