/* exp, tanh, σ, Φ over vectors. Include vec_avx2_impl.h or vec_avx512_impl.h first.
 *
 * Polynomials are minimax fits (Remez exchange, relative error) made for this file; the scalar rows
 * use libm, and tests/unit/ops/test_vecmath_agree.c holds the error bounds stated here. */
#ifndef CZ_OPS_VECMATH_IMPL_H
#define CZ_OPS_VECMATH_IMPL_H

#define VF_LOG2E 0x1.715476p+0f

/* eˣ: 1 ulp; denormal results, 0 and infinity where they belong; NaN stays NaN.
 * x = n·ln 2 + r, |r| ≤ ½ ln 2, eʳ = 1 + r + r²·q(r) with q of degree 4 (3e-9). */
VEC_FN vf vf_exp(vf x)
{
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-105.0f), x));
    vf n = vf_round(x * vf_set1(VF_LOG2E));
    vf r = vf_fnma(n, vf_set1(0x1.62e4p-1f), x); /* 15 bits of ln 2: n·hi is exact */
    r = vf_fnma(n, vf_set1(0x1.7f7d1cp-20f), r);
    vf q = vf_set1(0x1.6a23dp-10f);
    q = vf_fma(q, r, vf_set1(0x1.123a2p-7f));
    q = vf_fma(q, r, vf_set1(0x1.5558f2p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555492p-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    return vf_scale2(vf_fma(q, r * r, r) + vf_set1(1.0f), n);
}

/* 2ˣ: 2.2 ulp, edges as vf_exp. x = n + f, |f| ≤ ½, 2ᶠ = 1 + f·q(f) with q of degree 4 (9e-8).
 * Cheaper than vf_exp where a factor log₂e can be folded into the argument, at the price of its
 * rounding. */
VEC_FN vf vf_exp2(vf x)
{
    x = vf_min(vf_set1(129.0f), vf_max(vf_set1(-151.0f), x));
    vf n = vf_round(x);
    vf f = x - n; /* exact */
    vf q = vf_set1(0x1.5bb9fcp-10f);
    q = vf_fma(q, f, vf_set1(0x1.3cea9ep-7f));
    q = vf_fma(q, f, vf_set1(0x1.c6b754p-5f));
    q = vf_fma(q, f, vf_set1(0x1.ebf9bcp-3f));
    q = vf_fma(q, f, vf_set1(0x1.62e42ap-1f));
    return vf_scale2(vf_fma(q, f, vf_set1(1.0f)), n);
}

/* 1 + e⁻ˣ, the denominator of the sigmoid; infinite where that overflows. */
VEC_FN vf vf_one_plus_exp_minus(vf x)
{
    return vf_set1(1.0f) + vf_exp2(x * vf_set1(-VF_LOG2E));
}

/* 1/(1 + e⁻ˣ): 4 + 1.4·|x| ulp above −87, where e⁻ˣ leaves the range; 0 below −89. */
VEC_FN vf vf_sigmoid(vf x)
{
    return vf_set1(1.0f) / vf_one_plus_exp_minus(x);
}

/* tanh x: 1.5 ulp. Near 0 as x + x³·p(x²), p of degree 4; else 1 − 2/(e^2|x| + 1). */
VEC_FN vf vf_tanh(vf x)
{
    vf a = vf_abs(x), z = x * x;
    vf p = vf_set1(-0x1.75e1cap-8f);
    p = vf_fma(p, z, vf_set1(0x1.52269ap-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b83c5ap-5f));
    p = vf_fma(p, z, vf_set1(0x1.110726p-3f));
    p = vf_fma(p, z, vf_set1(-0x1.555532p-2f));
    vf near = vf_fma(p * z, a, a);
    vf far = vf_set1(1.0f) - vf_set1(2.0f) / (vf_exp(a + a) + vf_set1(1.0f));
    return vf_copysign(vf_select(vf_lt(a, vf_set1(0.625f)), near, far), x);
}

/* The normal distribution at x: its integral Φ(x) = ½ erfc(−x/√2), and its density
 * φ(x) = e^(−x²/2)/√2π; 7 + 2x² ulp where the result is a normal number. With z = |x|/√2,
 * Φ(−|x|) = e^(−z²)·½ erfcx z, and ½ erfcx z is a polynomial without constant term, of degree 9, in
 * 2/(2 + z) (5e-8). */
VEC_FN void vf_normal(vf x, vf *cdf, vf *density)
{
    vf a = vf_min(vf_set1(15.0f), vf_abs(x)); /* e^(−x²/2) is 0 from there on */
    vf e = vf_exp2(a * (a * vf_set1(-0.5f * VF_LOG2E)));
    vf t = vf_set1(2.0f) / vf_fma(a, vf_set1(0x1.6a09e6p-1f), vf_set1(2.0f));
    vf p = vf_set1(-0x1.e5389ap-6f);
    p = vf_fma(p, t, vf_set1(0x1.243748p-3f));
    p = vf_fma(p, t, vf_set1(-0x1.f49326p-3f));
    p = vf_fma(p, t, vf_set1(0x1.1eab06p-3f));
    p = vf_fma(p, t, vf_set1(-0x1.c98268p-7f));
    p = vf_fma(p, t, vf_set1(0x1.a03ac0p-4f));
    p = vf_fma(p, t, vf_set1(0x1.f19764p-4f));
    p = vf_fma(p, t, vf_set1(0x1.212c04p-3f));
    p = vf_fma(p, t, vf_set1(0x1.20dafap-3f));
    vf lower = e * (p * t); /* Φ(−|x|) */
    *cdf = vf_select(vf_lt(x, vf_zero()), lower, vf_set1(1.0f) - lower);
    *density = e * vf_set1(0x1.988454p-2f);
}

#endif
