/* Body of the vector rows. Limit: memory (8 bytes per fp32 element forward, 12 backward); about 30
 * vector operations per vector keep just below it. */
#include "ops/activation/activation_impl.h"
#include "ops/vecmath_impl.h"

#define SQRT_2_OVER_PI 0x1.988454p-1f
#define GELU_CUBIC     0.044715f
#define QUICK_GELU     1.702f

/* 1 + e^(−2u) of the tanh form, u = √(2/π)(x + 0.044715x³); σ(2u) is its inverse. sq is x², which
 * may be infinite. */
VEC_FN vf gelu_denominator(vf x, vf sq)
{
    const float scale = -2.0f * VF_LOG2E * SQRT_2_OVER_PI;
    vf slope = vf_fma(sq, vf_set1(scale * GELU_CUBIC), vf_set1(scale));
    return vf_set1(1.0f) + vf_exp2(x * slope);
}

/* tanh(ln(1 + eˣ)) = n/(n + 2), n = eˣ(eˣ + 2); it is 1 from 20 on, where n is still finite. */
VEC_FN vf mish_n(vf x, vf *e)
{
    *e = vf_exp(vf_min(vf_set1(20.0f), x)); /* NaN passes */
    return *e * (*e + vf_set1(2.0f));
}

VEC_FN vf act_value(enum activation kind, vf x)
{
    vf cdf, density, e;
    switch (kind) {
    case ACT_GELU_TANH: return x / gelu_denominator(x, x * x);
    case ACT_GELU_ERF: vf_normal(x, &cdf, &density); return x * cdf;
    case ACT_SILU: return x / vf_one_plus_exp_minus(x);
    case ACT_RELU: return vf_select(vf_lt(x, vf_zero()), vf_zero(), x);
    case ACT_TANH: return vf_tanh(x);
    case ACT_QUICK_GELU: return x / vf_one_plus_exp_minus(x * vf_set1(QUICK_GELU));
    case ACT_SIGMOID: return vf_sigmoid(x);
    case ACT_MISH: e = mish_n(x, &e); return x * (e / (e + vf_set1(2.0f)));
    case ACT_RELU2: return vf_select(vf_lt(x, vf_zero()), vf_zero(), x * x);
    }
    return x;
}

/* dy·f'(x) for silu: dy·s·(1 + x·(1 − s)) */
VEC_FN vf silu_gradient(vf x, vf s, vf dy)
{
    return dy * s * vf_fma(x, vf_set1(1.0f) - s, vf_set1(1.0f));
}

/* dy·f'(x) for the tanh form: s + x·s·(1 − s)·2u', 2u' = 2√(2/π)(1 + 3·0.044715x²). Where x² > 256,
 * s is 0 or 1 and the second term 0: the clamp keeps u' finite. */
VEC_FN vf gelu_tanh_gradient(vf x, vf dy)
{
    vf sq = vf_min(vf_set1(256.0f), x * x); /* NaN passes */
    vf s = vf_set1(1.0f) / gelu_denominator(x, sq);
    vf slope =
        vf_fma(sq, vf_set1(6.0f * SQRT_2_OVER_PI * GELU_CUBIC), vf_set1(2.0f * SQRT_2_OVER_PI));
    return dy * vf_fma(x, s * (vf_set1(1.0f) - s) * slope, s);
}

/* dy·f'(x) for mish, f' = t + x·σ(x)·(1 − t²): with n + 1 = (1 + eˣ)² the second term is
 * x·4eˣ(1 + eˣ)/(n + 2)², without a difference. */
VEC_FN vf mish_gradient(vf x, vf dy)
{
    vf e, n = mish_n(x, &e);
    vf inverse = vf_set1(1.0f) / (n + vf_set1(2.0f));
    vf second = vf_min(vf_set1(20.0f), x) * (vf_set1(4.0f) * vf_fma(e, e, e) * inverse);
    return dy * ((n + second) * inverse);
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
    case ACT_QUICK_GELU: /* s + x·1.702·s·(1 − s); x alone: 1.702x may be infinite */
        y = vf_sigmoid(x * vf_set1(QUICK_GELU));
        return dy * vf_fma(x, y * vf_fnma(y, vf_set1(QUICK_GELU), vf_set1(QUICK_GELU)), y);
    case ACT_SIGMOID: y = vf_sigmoid(x); return dy * (y * (vf_set1(1.0f) - y));
    case ACT_MISH: return mish_gradient(x, dy);
    case ACT_RELU2: return vf_select(vf_le(x, vf_zero()), vf_zero(), vf_set1(2.0f) * (dy * x));
    }
    return dy;
}

VEC_FN void forward_step(enum activation kind, enum cz_dtype dtype, const void *x, void *y,
                         size_t i, size_t n)
{
    vf2 v = vf2_get(x, i, dtype, n);
    vf2_put(y, i, dtype, (vf2){act_value(kind, v.a), act_value(kind, v.b)}, n);
}

VEC_FN void forward_loop(enum activation kind, enum cz_dtype dtype, const void *x, void *y,
                         size_t begin, size_t end)
{
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N) forward_step(kind, dtype, x, y, i, 2 * VF_N);
    if (i < end) forward_step(kind, dtype, x, y, i, end - i);
}

VEC_FN void forward_of(enum cz_dtype dtype, const struct activation_args *a, size_t begin,
                       size_t end)
{
    ACT_BY_KIND(forward_loop, a->kind, dtype, a->x, a->y, begin, end);
}

static void forward(const struct activation_args *a, size_t begin, size_t end)
{
    DTYPE_CALL(forward_of, a->dtype, a, begin, end);
}

VEC_FN void backward_step(enum activation kind, enum cz_dtype dtype, const void *x, const void *dy,
                          void *dx, size_t i, size_t n)
{
    vf2 v = vf2_get(x, i, dtype, n), d = vf2_get(dy, i, dtype, n);
    vf2_put(dx, i, dtype, (vf2){act_gradient(kind, v.a, d.a), act_gradient(kind, v.b, d.b)}, n);
}

VEC_FN void backward_loop(enum activation kind, enum cz_dtype dtype, const void *x, const void *dy,
                          void *dx, size_t begin, size_t end)
{
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N) backward_step(kind, dtype, x, dy, dx, i, 2 * VF_N);
    if (i < end) backward_step(kind, dtype, x, dy, dx, i, end - i);
}

VEC_FN void backward_of(enum cz_dtype dtype, const struct activation_args *a, size_t begin,
                        size_t end)
{
    ACT_BY_KIND(backward_loop, a->kind, dtype, a->x, a->dy, a->dx, begin, end);
}

static void backward(const struct activation_args *a, size_t begin, size_t end)
{
    DTYPE_CALL(backward_of, a->dtype, a, begin, end);
}

/* Columns of one row: `i` counts from the piece's first. */
VEC_FN void swiglu_step(enum activation act, enum cz_dtype dtype, const void *gate, const void *up,
                        void *y, size_t i, size_t n)
{
    vf2 g = vf2_get(gate, i, dtype, n), u = vf2_get(up, i, dtype, n);
    vf2 s = {act_value(act, g.a), act_value(act, g.b)};
    vf2_put(y, i, dtype, vf2_mul(s, u), n);
}

VEC_FN void swiglu_forward_by(enum activation act, enum cz_dtype dtype, const void *gate,
                              const void *up, void *y, size_t numel)
{
    size_t i = 0;
    for (; i + 2 * VF_N <= numel; i += 2 * VF_N) swiglu_step(act, dtype, gate, up, y, i, 2 * VF_N);
    if (i < numel) swiglu_step(act, dtype, gate, up, y, i, numel - i);
}

VEC_FN void swiglu_forward_of(enum cz_dtype dtype, enum activation act, const void *gate,
                              const void *up, void *y, size_t numel)
{
    ACT_BY_KIND(swiglu_forward_by, act, dtype, gate, up, y, numel);
}

static void swiglu_forward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    const size_t unit = dtype_size(a->dtype);
    const size_t in = ((size_t)(n * a->stride) + begin) * unit;
    const size_t out = ((size_t)(n * a->C) + begin) * unit;
    DTYPE_CALL(swiglu_forward_of, a->dtype, a->act, (const char *)a->gate + in,
               (const char *)a->up + in, (char *)a->y + out, end - begin);
}

struct swiglu_line {
    const void *gate, *up, *dy;
    void *dgate, *dup;
};

VEC_FN void swiglu_gradient(enum activation act, vf g, vf u, vf d, vf *dgate, vf *dup)
{
    if (act == ACT_SILU) {
        vf s = vf_sigmoid(g);
        *dgate = silu_gradient(g, s, d * u);
        *dup = d * (g * s);
    } else {
        *dgate = act_gradient(act, g, d * u);
        *dup = d * act_value(act, g);
    }
}

VEC_FN void swiglu_backward_step(enum activation act, enum cz_dtype dtype,
                                 const struct swiglu_line *l, size_t i, size_t n)
{
    vf2 g = vf2_get(l->gate, i, dtype, n), u = vf2_get(l->up, i, dtype, n);
    vf2 d = vf2_get(l->dy, i, dtype, n), dgate, dup;
    swiglu_gradient(act, g.a, u.a, d.a, &dgate.a, &dup.a);
    swiglu_gradient(act, g.b, u.b, d.b, &dgate.b, &dup.b);
    vf2_put(l->dgate, i, dtype, dgate, n);
    vf2_put(l->dup, i, dtype, dup, n);
}

VEC_FN void swiglu_backward_by(enum activation act, enum cz_dtype dtype,
                               const struct swiglu_line *l, size_t numel)
{
    size_t i = 0;
    for (; i + 2 * VF_N <= numel; i += 2 * VF_N) swiglu_backward_step(act, dtype, l, i, 2 * VF_N);
    if (i < numel) swiglu_backward_step(act, dtype, l, i, numel - i);
}

VEC_FN void swiglu_backward_of(enum cz_dtype dtype, enum activation act, struct swiglu_line l,
                               size_t numel)
{
    ACT_BY_KIND(swiglu_backward_by, act, dtype, &l, numel);
}

static void swiglu_backward(const struct swiglu_args *a, int64_t n, size_t begin, size_t end)
{
    const size_t unit = dtype_size(a->dtype);
    const size_t in = ((size_t)(n * a->stride) + begin) * unit;
    const size_t out = ((size_t)(n * a->C) + begin) * unit;
    const struct swiglu_line l = {(const char *)a->gate + in, (const char *)a->up + in,
                                  (const char *)a->dy + out, (char *)a->dgate + in,
                                  (char *)a->dup + in};
    DTYPE_CALL(swiglu_backward_of, a->dtype, a->act, l, end - begin);
}
