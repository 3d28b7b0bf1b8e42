/* Claims: vf_exp, vf_exp2, vf_tanh, vf_sigmoid and vf_normal are within the errors that
 * vecmath_impl.h states, over all of fp32, and treat NaN, infinity and −0 as libm does.
 *
 * Included by test_vecmath_avx2.c and test_vecmath_avx512.c after their vec_*_impl.h. */
#include "base/cpu.h"
#include "ops/vecmath_impl.h"
#include "tests/support/check_main.h"

#include <math.h>

/* Distance of `got` from `want` in units of the last place of `want` as fp32. */
static double ulps(float got, double want)
{
    float nearest = (float)want;
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf(nearest)) return got == nearest ? 0 : INFINITY;
    double unit = ldexp(1.0, ilogb(fmax(fabs(want), 0x1p-126)) - 23);
    return fabs((double)got - want) / unit;
}

typedef vf (*vec_function)(vf x);

/* What an error is measured against: stated bounds grow with |x| or x². */
static double constant(double x)
{
    (void)x;
    return 1;
}

static double linear(double x)
{
    return 1 + 0.35 * fabs(x);
}

static double quadratic(double x)
{
    return 1 + 2.0 / 7.0 * x * x;
}

/* Worst error in ulps / growth(x), where |want| ≥ floor (0 there), over every `stride`-th float. */
static double worst_ulps(vec_function f, double (*want)(double), double floor,
                         double (*growth)(double), float *at)
{
    const uint32_t stride = 1031;
    double worst = 0;
    for (uint64_t u = 0; u < UINT64_C(0x100000000); u += (uint64_t)stride * VF_N) {
        float x[VF_N], y[VF_N];
        for (uint32_t lane = 0; lane < VF_N; lane++)
            x[lane] = f32_from_bits((uint32_t)(u + (uint64_t)stride * lane));
        vf_store(y, 0, DTYPE_F32, f(vf_load(x, 0, DTYPE_F32)));
        for (int lane = 0; lane < VF_N; lane++) {
            double exact = want((double)x[lane]);
            if (fabs(exact) < floor && fabs((double)y[lane]) <= floor) continue;
            double error = ulps(y[lane], exact);
            if (isfinite(exact) && isfinite(x[lane])) error /= growth((double)x[lane]);
            if (error > worst) worst = error, *at = x[lane];
        }
    }
    return worst;
}

#define ck_worst(f, want, floor, growth, limit)                                                    \
    do {                                                                                           \
        float at_ = 0;                                                                             \
        double worst_ = worst_ulps((f), (want), (floor), (growth), &at_);                          \
        printf("%s: %.2f ulp at %a\n", #f, worst_, (double)at_);                                   \
        ck_assert_msg(worst_ <= (limit), "%s: %.2f ulp at %a", #f, worst_, (double)at_);           \
    } while (0)

static vf exp_of(vf x)
{
    return vf_exp(x);
}

static vf exp2_of(vf x)
{
    return vf_exp2(x);
}

static vf tanh_of(vf x)
{
    return vf_tanh(x);
}

static vf sigmoid_of(vf x)
{
    return vf_sigmoid(x);
}

static vf cdf_of(vf x)
{
    vf cdf, density;
    vf_normal(x, &cdf, &density);
    return cdf;
}

static vf density_of(vf x)
{
    vf cdf, density;
    vf_normal(x, &cdf, &density);
    return density;
}

static double sigmoid_exact(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double cdf_exact(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

static double density_exact(double x)
{
    return 0.39894228040143267794 * exp(-0.5 * x * x);
}

START_TEST(exp_is_within_its_error)
{
    ck_worst(exp_of, exp, 0.0, constant, 1.0);
}
END_TEST

START_TEST(exp2_is_within_its_error)
{
    ck_worst(exp2_of, exp2, 0.0, constant, 2.2);
}
END_TEST

START_TEST(tanh_is_within_its_error)
{
    ck_worst(tanh_of, tanh, 0.0, constant, 1.5);
}
END_TEST

START_TEST(sigmoid_is_within_its_error)
{
    ck_worst(sigmoid_of, sigmoid_exact, 0x1p-125, linear, 4.0);
}
END_TEST

START_TEST(normal_is_within_its_error)
{
    ck_worst(cdf_of, cdf_exact, 0x1p-118, quadratic, 7.0);
    ck_worst(density_of, density_exact, 0x1p-118, quadratic, 7.0);
}
END_TEST

/* f at one value, in a lane that is not the first. */
static float at(vec_function f, float x)
{
    float lanes[VF_N] = {1.0f};
    lanes[VF_N - 1] = x;
    vf_store(lanes, 0, DTYPE_F32, f(vf_load(lanes, 0, DTYPE_F32)));
    return lanes[VF_N - 1];
}

START_TEST(edges_are_those_of_libm)
{
    ck_assert(at(exp_of, 0.0f) == 1.0f && at(exp_of, -0.0f) == 1.0f);
    ck_assert(at(exp_of, INFINITY) == INFINITY && at(exp_of, -INFINITY) == 0.0f);
    ck_assert(isinf(at(exp_of, 88.73f)) && !isinf(at(exp_of, 88.72f)));
    ck_assert(at(exp_of, -103.0f) > 0.0f && at(exp_of, -104.0f) == 0.0f);
    ck_assert(at(exp2_of, 1.0f) == 2.0f && at(exp2_of, -149.0f) == 0x1p-149f);
    ck_assert(at(exp2_of, 128.0f) == INFINITY && at(exp2_of, -INFINITY) == 0.0f);
    ck_assert(at(tanh_of, INFINITY) == 1.0f && at(tanh_of, -INFINITY) == -1.0f);
    ck_assert_uint_eq(f32_bits(at(tanh_of, -0.0f)), 0x80000000u);
    ck_assert(at(cdf_of, INFINITY) == 1.0f && at(cdf_of, -INFINITY) == 0.0f);
    ck_assert(at(cdf_of, 0.0f) == 0.5f || fabsf(at(cdf_of, 0.0f) - 0.5f) < 1e-7f);
    const vec_function all[] = {exp_of, exp2_of, tanh_of, sigmoid_of, cdf_of, density_of};
    for (size_t i = 0; i < CZ_ARRAY_LEN(all); i++) ck_assert(isnan(at(all[i], NAN)));
}
END_TEST

static int vecmath_main(const char *name, uint32_t features)
{
    const TTest *const cases[] = {exp_is_within_its_error,    exp2_is_within_its_error,
                                  tanh_is_within_its_error,   sigmoid_is_within_its_error,
                                  normal_is_within_its_error, edges_are_those_of_libm};
    if (features & ~cpu_features_hardware()) {
        printf("skipped: this CPU lacks the instructions of %s\n", name);
        return TEST_SKIPPED;
    }
    return test_run(name, cases, (int)CZ_ARRAY_LEN(cases));
}
