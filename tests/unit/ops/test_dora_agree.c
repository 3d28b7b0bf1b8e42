/* Claim: DoRA's ops compute their formulas in every type, for weights stored either way, at sizes
 * that fill no block; what is accumulated adds to what is there; a row of zeros has no factor; the
 * bits are the same for one thread as for many. */
#include "base/rng.h"
#include "base/threads.h"
#include "ops/dora/dora.h"
#include "ops/ops.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { O_MAX = 131, I_MAX = 150, NUMEL = O_MAX * I_MAX };

static unsigned char v[NUMEL * 4], w[NUMEL * 4], y[NUMEL * 4], first[NUMEL * 4], m[O_MAX * 4];
static float inv[O_MAX], inv_first[O_MAX];

static void fill(void *p, size_t n, enum cz_dtype dtype, uint32_t site)
{
    const struct rng_key key = {.seed = 9, .site = site};
    for (size_t i = 0; i < n; i++) dtype_put(p, i, dtype, rng_normal(&key, i));
}

static void check_close(double have, double want, double largest, enum cz_dtype dtype)
{
    const double bound = dtype == DTYPE_F32 ? 1e-6 : dtype == DTYPE_F16 ? 1e-3 : 8e-3;
    ck_assert_msg(fabs(have - want) <= bound * largest, "%g, not %g", have, want);
}

static size_t place(bool in_out, int64_t O, int64_t I, int64_t o, int64_t i)
{
    return (size_t)(in_out ? i * O + o : o * I + i);
}

static void weights(struct ops *ops, int64_t O, int64_t I, bool in_out, enum cz_dtype dtype,
                    enum cz_dtype y_dtype)
{
    const size_t numel = (size_t)(O * I);
    fill(v, numel, dtype, 1);
    fill(w, numel, dtype, 2);
    fill(m, (size_t)O, dtype, 3);
    for (int64_t i = 0; i < I; i++) dtype_put(v, place(in_out, O, I, O / 2, i), dtype, 0.0f);
    const struct dora_norm_args norm = {
        .O = O, .I = I, .in_out = in_out, .dtype = dtype, .v = v, .inv_norm = inv};
    ck_ok(ops_dora_norm(ops, NULL, &norm));
    for (int64_t o = 0; o < O; o++) {
        double sum = 0;
        for (int64_t i = 0; i < I; i++)
            sum += pow((double)dtype_get(v, place(in_out, O, I, o, i), dtype), 2);
        check_close((double)inv[o], sum > 0 ? 1 / sqrt(sum) : 0, 1, DTYPE_F32);
    }
    for (int more = 0; more < 2; more++) {
        fill(y, numel, y_dtype, 4);
        const struct dora_scale_args scale = {.O = O,
                                              .I = I,
                                              .in_out = in_out,
                                              .dtype = dtype,
                                              .x_dtype = dtype,
                                              .y_dtype = y_dtype,
                                              .x = v,
                                              .m = m,
                                              .w = more ? NULL : w,
                                              .inv_norm = inv,
                                              .y = y,
                                              .accumulate = more};
        memcpy(first, y, sizeof y);
        ck_ok(ops_dora_scale(ops, NULL, &scale));
        for (int64_t o = 0; o < O; o++)
            for (int64_t i = 0; i < I; i++) {
                const size_t at = place(in_out, O, I, o, i);
                double want = (double)dtype_get(m, (size_t)o, dtype) * (double)inv[o] *
                              (double)dtype_get(v, at, dtype);
                want +=
                    more ? (double)dtype_get(first, at, y_dtype) : -(double)dtype_get(w, at, dtype);
                check_close((double)dtype_get(y, at, y_dtype), want, 4, y_dtype);
            }
    }
}

static void gradients(struct ops *ops, int64_t N, int64_t O, enum cz_dtype dtype,
                      enum cz_dtype grad_dtype)
{
    fill(v, (size_t)(N * O), dtype, 5);
    fill(w, (size_t)(N * O), dtype, 6);
    for (int more = 0; more < 2; more++) {
        fill(y, (size_t)O, grad_dtype, 7);
        memcpy(first, y, sizeof y);
        const struct dora_grad_args args = {.N = N,
                                            .O = O,
                                            .dtype = dtype,
                                            .grad_dtype = grad_dtype,
                                            .dy = v,
                                            .h = w,
                                            .inv_norm = inv,
                                            .dm = y,
                                            .accumulate = more};
        for (int64_t o = 0; o < O; o++) inv[o] = 0.25f;
        ck_ok(ops_dora_grad(ops, NULL, &args));
        for (int64_t o = 0; o < O; o++) {
            double want = 0;
            for (int64_t n = 0; n < N; n++)
                want += (double)dtype_get(v, (size_t)(n * O + o), dtype) *
                        (double)dtype_get(w, (size_t)(n * O + o), dtype) * 0.25;
            if (more) want += (double)dtype_get(first, (size_t)o, grad_dtype);
            check_close((double)dtype_get(y, (size_t)o, grad_dtype), want, 8, grad_dtype);
        }
    }
}

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

START_TEST(sums_and_factors_are_those_of_plain_loops)
{
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (int in_out = 0; in_out < 2; in_out++) {
            weights(ops, O_MAX, I_MAX, in_out, dtypes[d], dtypes[d]);
            weights(ops, 3, 7, in_out, dtypes[d], DTYPE_F32);
            gradients(ops, I_MAX, O_MAX, dtypes[d], in_out ? DTYPE_F32 : dtypes[d]);
            gradients(ops, 1, 2, dtypes[d], DTYPE_F32);
        }
    ops_destroy(ops);
    device_close(device);
}
END_TEST

START_TEST(threads_do_not_show)
{
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        omp_set_num_threads(n_threads);
        weights(ops, O_MAX, I_MAX, true, DTYPE_BF16, DTYPE_BF16);
        if (n_threads > 1) {
            ck_assert_mem_eq(inv, inv_first, sizeof inv);
            break;
        }
        memcpy(inv_first, inv, sizeof inv);
    }
    ops_destroy(ops);
    device_close(device);
}
END_TEST

TEST_MAIN("ops/dora", sums_and_factors_are_those_of_plain_loops, threads_do_not_show)
