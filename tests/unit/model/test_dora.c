/* Claim: a map with a DoRA branch computes the sums of its formulas in plain loops, forward,
 * gradients of A, B and lengths, and of its input, with dropout in the branch and without, for
 * weights stored either way, whole and by column ranges; gradients add to what is there when asked.
 */
#include "model/parts/branch_impl.h"
#include "ops/dropout/dropout.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

enum { N = 70, I = 33, O = 71, R = 3 };
enum { W = 0, A, BB, M, N_PARAMS };

static float w[O * I], a_[R * I], b_[O * R], m_[O], bias[O], x[N * I], dy[N * O];
static float y[N * O], dx[N * I], da[R * I], db[O * R], dm[O];

static void fill(float *p, size_t n, uint32_t site, float by)
{
    const struct rng_key key = {.seed = 3, .site = site};
    for (size_t i = 0; i < n; i++) p[i] = by * rng_normal(&key, i);
}

static double at(bool in_out, int o, int i)
{
    return (double)w[in_out ? i * O + o : o * I + i];
}

static void check_close(const char *what, const float *have, const double *want, size_t n)
{
    double largest = 1e-6;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)have[i] - want[i]) <= 3e-6 * largest, "%s[%zu]: %g, not %g",
                      what, i, (double)have[i], want[i]);
}

/* Everything in double precision: V, g, and from them what stands in ops/dora/dora.h. */
static void expect(bool in_out, float scale, const float *mask, bool accumulated)
{
    static double v[O * I], g[O], length[O], xd[N * I], h[N * O];
    static double want_y[N * O], want_dx[N * I], want_da[R * I], want_db[O * R], want_dm[O];
    for (int o = 0; o < O; o++) {
        length[o] = 0;
        for (int i = 0; i < I; i++) {
            double sum = 0;
            for (int r = 0; r < R; r++) sum += (double)b_[o * R + r] * (double)a_[r * I + i];
            v[o * I + i] = at(in_out, o, i) + (double)scale * sum;
            length[o] += v[o * I + i] * v[o * I + i];
        }
        length[o] = sqrt(length[o]);
        g[o] = (double)m_[o] / length[o];
    }
    for (int i = 0; i < N * I; i++) xd[i] = (double)(x[i] * mask[i]);
    memset(want_dx, 0, sizeof want_dx);
    memset(want_da, 0, sizeof want_da);
    memset(want_db, 0, sizeof want_db);
    memset(want_dm, 0, sizeof want_dm);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            double plain = 0, dropped = 0;
            h[n * O + o] = 0;
            for (int i = 0; i < I; i++) {
                plain += (double)x[n * I + i] * at(in_out, o, i);
                dropped += xd[n * I + i] * at(in_out, o, i);
                h[n * O + o] += xd[n * I + i] * v[o * I + i];
            }
            want_y[n * O + o] = plain + (double)bias[o] + g[o] * h[n * O + o] - dropped;
            const double d = (double)dy[n * O + o];
            want_dm[o] += d * h[n * O + o] / length[o];
            for (int i = 0; i < I; i++)
                want_dx[n * I + i] +=
                    d * at(in_out, o, i) +
                    (double)mask[n * I + i] * d * (g[o] * v[o * I + i] - at(in_out, o, i));
            for (int r = 0; r < R; r++) {
                double u = 0;
                for (int i = 0; i < I; i++) u += xd[n * I + i] * (double)a_[r * I + i];
                want_db[o * R + r] += (double)scale * g[o] * d * u;
                for (int i = 0; i < I; i++)
                    want_da[r * I + i] +=
                        (double)scale * g[o] * d * (double)b_[o * R + r] * xd[n * I + i];
            }
        }
    for (int i = 0; accumulated && i < R * I; i++) want_da[i] *= 2;
    for (int i = 0; accumulated && i < O * R; i++) want_db[i] *= 2;
    for (int i = 0; accumulated && i < O; i++) want_dm[i] *= 2;
    check_close("y", y, want_y, N * O);
    check_close("dx", dx, want_dx, N * I);
    check_close("dA", da, want_da, R * I);
    check_close("dB", db, want_db, O * R);
    check_close("dm", dm, want_dm, O);
}

static void one(struct ops *ops, bool in_out, float dropout_p)
{
    const void *params[] = {w, a_, b_, m_};
    struct param_grad grads[N_PARAMS] = {[A] = {.dp = da}, [BB] = {.dp = db}, [M] = {.dp = dm}};
    const struct layer_branch branch = {.w = W,
                                        .a = A,
                                        .b = BB,
                                        .m = M,
                                        .is_dora = true,
                                        .rank = R,
                                        .scale = 1.75f,
                                        .dropout_p = dropout_p,
                                        .site = LAYER_BRANCH_SITE};
    const struct linear l = {.n_in = I, .n_out = O, .in_out = in_out};
    const struct batch_shape shape = {.B = 1,
                                      .T = N,
                                      .dtype = DTYPE_F32,
                                      .grad_dtype = DTYPE_F32,
                                      .ops = ops,
                                      .training = true,
                                      .branches = &branch,
                                      .n_branches = 1};
    const struct batch batch = {.B = 1, .T = N};
    struct op_space space = {0};
    ck_ok(linear_workspace(&shape, &l, N, &space.nbytes));
    ck_ok(linear_columns_workspace(&shape, &l, 20, N, O, &space.nbytes));
    ck_ok(linear_columns_workspace(&shape, &l, O - 20, N, O, &space.nbytes));
    ck_ok(linear_dx_add_workspace(&shape, &l, N, &space.nbytes));
    ck_assert_int_eq(posix_memalign(&space.p, 64, space.nbytes), 0);
    const struct layer_args args = {.ops = ops,
                                    .batch = &batch,
                                    .mode = LAYER_TRAIN,
                                    .dtype = DTYPE_F32,
                                    .grad_dtype = DTYPE_F32,
                                    .rng = {.seed = 5},
                                    .params = params,
                                    .branches = &branch,
                                    .n_branches = 1,
                                    .dparams = grads};
    static float mask[N * I];
    for (int i = 0; i < N * I; i++) mask[i] = 1;
    if (dropout_p > 0) ck_ok(dropout_apply(&args, dropout_p, branch.site, N * I, mask, mask));
    ck_ok(linear_forward(&args, &l, N, x, w, bias, y, space));
    ck_ok(linear_backward(&args, &l, N, x, dy, w, NULL, NULL, dx, space));
    expect(in_out, branch.scale, mask, false);
    /* By columns, added to dx, and gradients on top of those that are there. */
    memset(y, 0, sizeof y);
    ck_ok(linear_columns(&args, &l, 0, 20, N, x, w, bias, y, O, space));
    ck_ok(linear_columns(&args, &l, 20, O - 20, N, x, w, bias, y + 20, O, space));
    for (int i = 0; i < N_PARAMS; i++) grads[i].accumulate = true;
    ck_ok(linear_backward(&args, &l, N, x, dy, w, NULL, NULL, NULL, space));
    memset(dx, 0, sizeof dx);
    ck_ok(linear_dx_add(&args, &l, N, dy, w, dx, space));
    expect(in_out, branch.scale, mask, true);
    free(space.p);
}

START_TEST(sums_are_those_of_plain_loops)
{
    struct device *device;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    fill(w, O * I, 1, 0.3f);
    fill(a_, R * I, 2, 0.4f);
    fill(b_, O * R, 3, 0.5f);
    fill(m_, O, 4, 1.0f);
    fill(bias, O, 5, 1.0f);
    fill(x, N * I, 6, 1.0f);
    fill(dy, N * O, 7, 1.0f);
    for (int in_out = 0; in_out < 2; in_out++) {
        one(ops, in_out, 0);
        one(ops, in_out, 0.4f);
    }
    ops_destroy(ops);
    device_close(device);
}
END_TEST

TEST_MAIN("model/dora", sums_are_those_of_plain_loops)
