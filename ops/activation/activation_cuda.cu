/* Activations and swiglu on a GPU. Limit: memory (forward 2, backward 3 elements moved per element;
 * swiglu 3 and 5). The formulas are those of the vector rows: one exponential and one quotient
 * each, because at 16 bits a GPU has some 30 instructions per element before it is the slower part.
 * Quotients are products with an approximate reciprocal (2 ulp; denominators are at least 1). */
#include "device/cuda/kernel.h"
#include "ops/activation/activation_impl.h"
#include "ops/cuda_impl.h"

#define BLOCK 256

#define SQRT_2_OVER_PI 0x1.988454p-1f
#define GELU_CUBIC     0.044715f
#define QUICK_GELU     1.702f

/* ---- one element -------------------------------------------------------------------------------
 */

/* e⁻ˣ; infinite where that overflows. */
CUDA_FN float exp_minus(float x)
{
    return exp2_approx(x * -CUDA_LOG2E);
}

/* e^(−2u) of the tanh form, u = √(2/π)(x + 0.044715x³); σ(2u) is 1 / (1 + that). sq is x². */
CUDA_FN float gelu_exp(float x, float sq)
{
    const float scale = -2.0f * CUDA_LOG2E * SQRT_2_OVER_PI;
    return exp2_approx(x * fmaf(sq, scale * GELU_CUBIC, scale));
}

/* Φ(x) and φ(x) by the fit of vf_normal (ops/vecmath_impl.h): 7 + 2x² ulp. */
CUDA_FN void normal(float x, float *cdf, float *density)
{
    const float a = fabsf(x) > 15.0f ? 15.0f : fabsf(x); /* NaN passes */
    const float e = exp2_approx(a * (a * (-0.5f * CUDA_LOG2E)));
    const float t = 2.0f * reciprocal_approx(fmaf(a, 0x1.6a09e6p-1f, 2.0f));
    float p = -0x1.e5389ap-6f;
    p = fmaf(p, t, 0x1.243748p-3f);
    p = fmaf(p, t, -0x1.f49326p-3f);
    p = fmaf(p, t, 0x1.1eab06p-3f);
    p = fmaf(p, t, -0x1.c98268p-7f);
    p = fmaf(p, t, 0x1.a03ac0p-4f);
    p = fmaf(p, t, 0x1.f19764p-4f);
    p = fmaf(p, t, 0x1.212c04p-3f);
    p = fmaf(p, t, 0x1.20dafap-3f);
    const float lower = e * (p * t); /* Φ(−|x|) */
    *cdf = x < 0 ? lower : 1.0f - lower;
    *density = e * 0x1.988454p-2f;
}

/* s = 1 / (1 + e) and 1 − s, which is e·s: a difference would leave nothing of an approximate
 * quotient near 1. */
struct sigmoid {
    float s, rest;
};

CUDA_FN struct sigmoid sigmoid_of(float e)
{
    const float s = reciprocal_approx(1.0f + e);
    return {s, e < 0x1p60f ? e * s : 1.0f};
}

/* tanh(ln(1 + eˣ)) = n/(n + 2), n = eˣ(eˣ + 2); it is 1 from 20 on, where n is still finite. */
CUDA_FN float mish_n(float x, float *e)
{
    *e = exp2_approx((x > 20.0f ? 20.0f : x) * CUDA_LOG2E); /* NaN passes */
    return *e * (*e + 2.0f);
}

template <enum activation KIND> CUDA_FN float value(float x)
{
    float cdf, density, e;
    switch (KIND) {
    case ACT_GELU_TANH: return x * reciprocal_approx(1.0f + gelu_exp(x, x * x));
    case ACT_GELU_ERF: normal(x, &cdf, &density); return x * cdf;
    case ACT_SILU: return x * reciprocal_approx(1.0f + exp_minus(x));
    case ACT_RELU: return x < 0 ? 0.0f : x;
    case ACT_TANH: return tanhf(x);
    case ACT_QUICK_GELU: return x * reciprocal_approx(1.0f + exp_minus(QUICK_GELU * x));
    case ACT_SIGMOID: return reciprocal_approx(1.0f + exp_minus(x));
    case ACT_MISH: e = mish_n(x, &e); return x * (e * reciprocal_approx(e + 2.0f));
    case ACT_RELU2: return x < 0 ? 0.0f : x * x;
    }
    return x;
}

/* dy·f'(x) for silu: dy·s·(1 + x·(1 − s)) */
CUDA_FN float silu_gradient(float x, struct sigmoid of_x, float dy)
{
    return dy * of_x.s * fmaf(x, of_x.rest, 1.0f);
}

/* dy·f'(x) for the tanh form: s + x·s·(1 − s)·2u', 2u' = 2√(2/π)(1 + 3·0.044715x²). Where x² > 256,
 * s is 0 or 1 and the second term 0: the clamp keeps u' finite. */
CUDA_FN float gelu_tanh_gradient(float x, float dy)
{
    const float sq = x * x > 256.0f ? 256.0f : x * x; /* NaN passes */
    const struct sigmoid of_2u = sigmoid_of(gelu_exp(x, sq));
    const float slope = fmaf(sq, 6.0f * SQRT_2_OVER_PI * GELU_CUBIC, 2.0f * SQRT_2_OVER_PI);
    return dy * fmaf(x, of_2u.s * of_2u.rest * slope, of_2u.s);
}

/* dy·f'(x) for mish, f' = t + x·σ(x)·(1 − t²): with n + 1 = (1 + eˣ)² the second term is
 * x·4eˣ(1 + eˣ)/(n + 2)², without a difference. */
CUDA_FN float mish_gradient(float x, float dy)
{
    float e;
    const float n = mish_n(x, &e), inverse = reciprocal_approx(n + 2.0f);
    const float second = (x > 20.0f ? 20.0f : x) * (4.0f * fmaf(e, e, e) * inverse);
    return dy * ((n + second) * inverse);
}

template <enum activation KIND> CUDA_FN float gradient(float x, float dy)
{
    float cdf, density, y;
    struct sigmoid s;
    switch (KIND) {
    case ACT_GELU_TANH: return gelu_tanh_gradient(x, dy);
    case ACT_GELU_ERF: normal(x, &cdf, &density); return dy * fmaf(x, density, cdf);
    case ACT_SILU: return silu_gradient(x, sigmoid_of(exp_minus(x)), dy);
    case ACT_RELU: return x <= 0 ? 0.0f : dy;
    case ACT_TANH: y = tanhf(x); return dy * fmaf(-y, y, 1.0f);
    case ACT_QUICK_GELU:
        s = sigmoid_of(exp_minus(QUICK_GELU * x)); /* s + x·1.702·s·(1 − s) */
        return dy * fmaf(x, s.s * s.rest * QUICK_GELU, s.s);
    case ACT_SIGMOID: s = sigmoid_of(exp_minus(x)); return dy * (s.s * s.rest);
    case ACT_MISH: return mish_gradient(x, dy);
    case ACT_RELU2: return x <= 0 ? 0.0f : 2.0f * (dy * x);
    }
    return dy;
}

/* ---- activations -------------------------------------------------------------------------------
 */

/* N elements per thread. */
template <enum activation KIND, typename T, int N>
static __global__ void __launch_bounds__(BLOCK) forward_kernel(size_t numel, const T *x, T *y)
{
    const size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    if (i >= numel) return;
    float v[N];
    load_f32_upto<N>(x + i, numel - i, v);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = value<KIND>(v[k]);
    store_f32_upto<N>(y + i, numel - i, v);
}

template <enum activation KIND, typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    backward_kernel(size_t numel, const T *x, const T *dy, T *dx)
{
    const size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    if (i >= numel) return;
    float v[N], d[N];
    load_f32_upto<N>(x + i, numel - i, v);
    load_f32_upto<N>(dy + i, numel - i, d);
#pragma unroll
    for (int k = 0; k < N; k++) d[k] = gradient<KIND>(v[k], d[k]);
    store_f32_upto<N>(dx + i, numel - i, d);
}

template <enum activation KIND, typename T, int N>
static cz_status launch(struct dev_stream *stream, const struct activation_args *a, bool backward)
{
    const unsigned blocks = cuda_blocks(a->numel, BLOCK * N);
    if (backward)
        return cuda_launch("activation_backward", backward_kernel<KIND, T, N>, blocks, BLOCK, 0,
                           stream, a->numel, (const T *)a->x, (const T *)a->dy, (T *)a->dx);
    return cuda_launch("activation_forward", forward_kernel<KIND, T, N>, blocks, BLOCK, 0, stream,
                       a->numel, (const T *)a->x, (T *)a->y);
}

template <typename T, int N>
static cz_status launch_kind(struct dev_stream *stream, const struct activation_args *a,
                             bool backward)
{
    switch (a->kind) {
    case ACT_GELU_TANH: return launch<ACT_GELU_TANH, T, N>(stream, a, backward);
    case ACT_GELU_ERF: return launch<ACT_GELU_ERF, T, N>(stream, a, backward);
    case ACT_SILU: return launch<ACT_SILU, T, N>(stream, a, backward);
    case ACT_RELU: return launch<ACT_RELU, T, N>(stream, a, backward);
    case ACT_TANH: return launch<ACT_TANH, T, N>(stream, a, backward);
    case ACT_QUICK_GELU: return launch<ACT_QUICK_GELU, T, N>(stream, a, backward);
    case ACT_SIGMOID: return launch<ACT_SIGMOID, T, N>(stream, a, backward);
    case ACT_MISH: return launch<ACT_MISH, T, N>(stream, a, backward);
    case ACT_RELU2: return launch<ACT_RELU2, T, N>(stream, a, backward);
    }
    return CZ_OK; /* activation_check() has seen the kind */
}

static cz_status run(struct dev_stream *stream, const struct activation_args *a, bool backward)
{
    if (a->numel == 0) return CZ_OK;
    const bool aligned = cuda_is_aligned(a->x, 16) &&
                         (backward ? cuda_is_aligned(a->dy, 16) && cuda_is_aligned(a->dx, 16)
                                   : cuda_is_aligned(a->y, 16));
    CUDA_BY_DTYPE(a->dtype, T, {
        return aligned ? launch_kind<T, CUDA_LANES<T>>(stream, a, backward)
                       : launch_kind<T, 1>(stream, a, backward);
    });
    return CZ_OK;
}

static cz_status forward(struct ops *ops, struct dev_stream *stream,
                         const struct activation_args *a)
{
    (void)ops;
    TRY(activation_check(a, "activation_forward", a->y != NULL));
    return run(stream, a, false);
}

static cz_status backward(struct ops *ops, struct dev_stream *stream,
                          const struct activation_args *a)
{
    (void)ops;
    TRY(activation_check(a, "activation_backward", a->dy && a->dx));
    return run(stream, a, true);
}

/* ---- swiglu ------------------------------------------------------------------------------------
 */

/* N columns per thread. */
template <enum activation ACT, typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    swiglu_forward_kernel(int64_t n_rows, int64_t C, int64_t stride, const T *gate, const T *up,
                          T *y)
{
    const int64_t n = cuda_row(), c = cuda_item() * N;
    if (n >= n_rows || c >= C) return;
    float g[N], u[N];
    load_f32<N>(gate + n * stride + c, g);
    load_f32<N>(up + n * stride + c, u);
#pragma unroll
    for (int k = 0; k < N; k++) g[k] = value<ACT>(g[k]) * u[k];
    store_f32<N>(y + n * C + c, g);
}

/* The gradients of gate and up, over them. */
template <enum activation ACT> CUDA_FN void gate_gradients(float dy, float *gate, float *up)
{
    const float g = *gate;
    if (ACT == ACT_SILU) {
        const struct sigmoid of_g = sigmoid_of(exp_minus(g));
        *gate = silu_gradient(g, of_g, dy * *up);
        *up = dy * (g * of_g.s);
    } else {
        *gate = gradient<ACT>(g, dy * *up);
        *up = dy * value<ACT>(g);
    }
}

template <enum activation ACT, typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    swiglu_backward_kernel(int64_t n_rows, int64_t C, int64_t stride, const T *gate, const T *up,
                           const T *dy, T *dgate, T *dup)
{
    const int64_t n = cuda_row(), c = cuda_item() * N;
    if (n >= n_rows || c >= C) return;
    float g[N], u[N], d[N];
    load_f32<N>(gate + n * stride + c, g);
    load_f32<N>(up + n * stride + c, u);
    load_f32<N>(dy + n * C + c, d);
#pragma unroll
    for (int k = 0; k < N; k++) gate_gradients<ACT>(d[k], &g[k], &u[k]);
    store_f32<N>(dgate + n * stride + c, g);
    store_f32<N>(dup + n * stride + c, u);
}

template <enum activation ACT, typename T, int N>
static cz_status launch_gate(struct dev_stream *stream, const struct swiglu_args *a, bool backward)
{
    const struct cuda_rows rows = cuda_rows((size_t)a->N, (size_t)(a->C / N), BLOCK);
    if (backward)
        return cuda_launch("swiglu_backward", swiglu_backward_kernel<ACT, T, N>, rows.grid,
                           rows.block, 0, stream, a->N, a->C, a->stride, (const T *)a->gate,
                           (const T *)a->up, (const T *)a->dy, (T *)a->dgate, (T *)a->dup);
    return cuda_launch("swiglu_forward", swiglu_forward_kernel<ACT, T, N>, rows.grid, rows.block, 0,
                       stream, a->N, a->C, a->stride, (const T *)a->gate, (const T *)a->up,
                       (T *)a->y);
}

template <typename T, int N>
static cz_status launch_swiglu(struct dev_stream *stream, const struct swiglu_args *a,
                               bool backward)
{
    switch (a->act) {
    case ACT_GELU_TANH: return launch_gate<ACT_GELU_TANH, T, N>(stream, a, backward);
    case ACT_GELU_ERF: return launch_gate<ACT_GELU_ERF, T, N>(stream, a, backward);
    case ACT_SILU: return launch_gate<ACT_SILU, T, N>(stream, a, backward);
    case ACT_RELU: return launch_gate<ACT_RELU, T, N>(stream, a, backward);
    case ACT_TANH: return launch_gate<ACT_TANH, T, N>(stream, a, backward);
    case ACT_QUICK_GELU: return launch_gate<ACT_QUICK_GELU, T, N>(stream, a, backward);
    case ACT_SIGMOID: return launch_gate<ACT_SIGMOID, T, N>(stream, a, backward);
    case ACT_MISH: return launch_gate<ACT_MISH, T, N>(stream, a, backward);
    case ACT_RELU2: return launch_gate<ACT_RELU2, T, N>(stream, a, backward);
    }
    return CZ_OK; /* swiglu_check() has seen the kind */
}

/* Whether rows begin at multiples of 16 bytes in all tensors of this direction. */
static bool swiglu_aligned(const struct swiglu_args *a, int64_t lanes, bool backward)
{
    const bool in = a->C % lanes == 0 && a->stride % lanes == 0 && cuda_is_aligned(a->gate, 16) &&
                    cuda_is_aligned(a->up, 16);
    if (!backward) return in && cuda_is_aligned(a->y, 16);
    return in && cuda_is_aligned(a->dy, 16) && cuda_is_aligned(a->dgate, 16) &&
           cuda_is_aligned(a->dup, 16);
}

static cz_status swiglu(struct dev_stream *stream, const struct swiglu_args *a, bool backward)
{
    if (a->N == 0 || a->C == 0) return CZ_OK;
    CUDA_BY_DTYPE(a->dtype, T, {
        return swiglu_aligned(a, CUDA_LANES<T>, backward)
                   ? launch_swiglu<T, CUDA_LANES<T>>(stream, a, backward)
                   : launch_swiglu<T, 1>(stream, a, backward);
    });
    return CZ_OK;
}

static cz_status swiglu_forward(struct ops *ops, struct dev_stream *stream,
                                const struct swiglu_args *a)
{
    (void)ops;
    TRY(swiglu_check(a, "swiglu_forward", a->y != NULL));
    return swiglu(stream, a, false);
}

static cz_status swiglu_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct swiglu_args *a)
{
    (void)ops;
    TRY(swiglu_check(a, "swiglu_backward", a->dy && a->dgate && a->dup));
    return swiglu(stream, a, true);
}

extern "C" cz_status activation_wire_cuda(struct ops *ops)
{
    ops->activation_forward = forward;
    ops->activation_backward = backward;
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_backward = swiglu_backward;
    return CZ_OK;
}
