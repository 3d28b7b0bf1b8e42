/* Claims: every row of the cross-entropy agrees with the definition and with a reference in double,
 * losses and gradients; row blocks, ignored labels, weights and special values are right; nothing
 * is written outside; the number of threads does not show. */
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "tests/support/agree.h"

#include "base/batch.h"

#include <omp.h>

static const struct agree_tol tol = {"cross_entropy", 4e-6f, 1e-7f,
                                     "exp of another library, sums in another order"};

START_TEST(rows_agree_on_softmax)
{
    size_t n_rows;
    const struct cross_entropy_row *const *rows = cross_entropy_rows(&n_rows);
    const size_t sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 35, 255, 1000, 50257};
    for (size_t r = 1; r < n_rows; r++) {
        if (!ops_row_runs(&rows[r]->row, cpu_features())) continue;
        for (size_t s = 0; s < CZ_ARRAY_LEN(sizes); s++)
            for (size_t offset = 0; offset < 3; offset++) {
                struct agree_buf z = agree_buf_make(DTYPE_F32, sizes[s], offset);
                agree_fill(&z, sizes[s] + offset, 20.0f);
                float want = rows[0]->log_sum_exp(z.p, sizes[s]);
                float got = rows[r]->log_sum_exp(z.p, sizes[s]);
                agree_assert(fabsf(got - want) <= 4e-6f * fabsf(want) + 1e-6f,
                             "%s, %zu logits: %.9g instead of %.9g", rows[r]->row.name, sizes[s],
                             (double)got, (double)want);
                const float cap = offset == 1 ? 100.0f : 0.0f;
                for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
                    struct agree_buf a = agree_buf_make((enum cz_dtype)dtype, sizes[s], offset);
                    struct agree_buf b = agree_buf_make((enum cz_dtype)dtype, sizes[s], offset);
                    rows[0]->softmax_grad(z.p, sizes[s], want, 0.25f, cap, a.dtype, a.p);
                    rows[r]->softmax_grad(z.p, sizes[s], want, 0.25f, cap, b.dtype, b.p);
                    agree_check(&b, &a, &tol, rows[r]->row.name, "softmax_grad");
                    agree_buf_free(&a);
                    agree_buf_free(&b);
                }
                agree_buf_free(&z);
            }
    }
}
END_TEST

START_TEST(special_logits_never_look_finite)
{
    size_t n_rows;
    const struct cross_entropy_row *const *rows = cross_entropy_rows(&n_rows);
    for (size_t r = 0; r < n_rows; r++) {
        if (!ops_row_runs(&rows[r]->row, cpu_features())) continue;
        float z[40];
        for (int special = 0; special < 40; special++) {
            for (int i = 0; i < 40; i++) z[i] = (float)i * 0.1f;
            z[special] = NAN;
            ck_assert(isnan(rows[r]->log_sum_exp(z, 40)));
            z[special] = INFINITY;
            ck_assert(!isfinite(rows[r]->log_sum_exp(z, 40)));
            z[special] = -INFINITY; /* a masked class */
            ck_assert(isfinite(rows[r]->log_sum_exp(z, 40)));
        }
        for (int i = 0; i < 40; i++) z[i] = -INFINITY;
        ck_assert(rows[r]->log_sum_exp(z, 40) == -INFINITY);
    }
}
END_TEST

/* One problem: inputs, and the answer in double. */
struct problem {
    int64_t N, C, V;
    enum cz_dtype dtype, grad_dtype;
    struct agree_buf x, w, bias;
    int32_t *labels;
    float *weights;
    double loss, *log_probs, *dx, *dw, *dbias;
    float dloss, softcap;
};

static float next_softcap; /* of the problems that are made next */

static double logit(const struct problem *p, int64_t n, int64_t v)
{
    double z = (double)agree_get(&p->bias, (size_t)v);
    for (int64_t c = 0; c < p->C; c++)
        z += (double)agree_get(&p->x, (size_t)(n * p->C + c)) *
             (double)agree_get(&p->w, (size_t)(v * p->C + c));
    return p->softcap > 0 ? (double)p->softcap * tanh(z / (double)p->softcap) : z;
}

static void solve_row(struct problem *p, int64_t n, double weight, double total)
{
    double *z = malloc((size_t)p->V * sizeof *z), max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < p->V; v++) {
        z[v] = logit(p, n, v);
        if (z[v] > max) max = z[v];
    }
    for (int64_t v = 0; v < p->V; v++) sum += exp(z[v] - max);
    double lse = max + log(sum);
    p->log_probs[n] = z[p->labels[n]] - lse;
    p->loss -= weight * p->log_probs[n] / total;
    for (int64_t v = 0; v < p->V; v++) {
        double dz =
            (double)p->dloss * weight / total * (exp(z[v] - lse) - (v == p->labels[n] ? 1.0 : 0.0));
        if (p->softcap > 0) dz *= 1 - z[v] * z[v] / (double)p->softcap / (double)p->softcap;
        p->dbias[v] += dz;
        for (int64_t c = 0; c < p->C; c++) {
            p->dx[n * p->C + c] += dz * (double)agree_get(&p->w, (size_t)(v * p->C + c));
            p->dw[v * p->C + c] += dz * (double)agree_get(&p->x, (size_t)(n * p->C + c));
        }
    }
    free(z);
}

static struct problem problem_make(int64_t N, int64_t C, int64_t V, enum cz_dtype dtype,
                                   enum cz_dtype grad_dtype, bool weighted)
{
    struct problem p = {.N = N, .C = C, .V = V, .dtype = dtype, .grad_dtype = grad_dtype};
    p.x = agree_buf_make(dtype, (size_t)(N * C), 0);
    p.w = agree_buf_make(dtype, (size_t)(V * C), 0);
    p.bias = agree_buf_make(dtype, (size_t)V, 0);
    agree_fill(&p.x, 1, 1.0f);
    agree_fill(&p.w, 2, 0.5f);
    agree_fill(&p.bias, 3, 0.5f);
    p.labels = calloc((size_t)N, sizeof *p.labels);
    p.weights = weighted ? calloc((size_t)N, sizeof *p.weights) : NULL;
    p.dx = calloc((size_t)(N * C), sizeof *p.dx);
    p.dw = calloc((size_t)(V * C), sizeof *p.dw);
    p.dbias = calloc((size_t)V, sizeof *p.dbias);
    p.log_probs = calloc((size_t)N, sizeof *p.log_probs);
    p.dloss = 3.0f;
    p.softcap = next_softcap;
    double total = 0;
    for (int64_t n = 0; n < N; n++) {
        p.labels[n] = n % 5 == 4 ? CZ_IGNORE_LABEL : (int32_t)((n * 7919) % V);
        if (weighted) p.weights[n] = 0.5f + (float)(n % 3);
        if (p.labels[n] >= 0) total += weighted ? (double)p.weights[n] : 1.0;
    }
    for (int64_t n = 0; n < N; n++)
        if (p.labels[n] >= 0) solve_row(&p, n, weighted ? (double)p.weights[n] : 1.0, total);
    return p;
}

static void problem_free(struct problem *p)
{
    agree_buf_free(&p->x);
    agree_buf_free(&p->w);
    agree_buf_free(&p->bias);
    free(p->labels);
    free(p->weights);
    free(p->dx);
    free(p->dw);
    free(p->dbias);
    free(p->log_probs);
}

static void near(const struct agree_buf *got, const double *want, double rtol, const char *what)
{
    double most = 1e-30;
    for (size_t i = 0; i < got->numel; i++)
        if (fabs(want[i]) > most) most = fabs(want[i]);
    for (size_t i = 0; i < got->numel; i++)
        agree_assert(fabs((double)agree_get(got, i) - want[i]) <= rtol * most,
                     "%s: element %zu is %.9g instead of %.9g", what, i, (double)agree_get(got, i),
                     want[i]);
    agree_guards(got, what);
}

static void check_problem(struct ops *ops, struct problem *p, bool accumulate)
{
    struct agree_buf dx = agree_buf_make(p->dtype, (size_t)(p->N * p->C), 0);
    struct agree_buf dw = agree_buf_make(p->grad_dtype, (size_t)(p->V * p->C), 0);
    struct agree_buf dbias = agree_buf_make(p->grad_dtype, (size_t)p->V, 0);
    if (accumulate) {
        memset(dw.p, 0, dw.nbytes);
        memset(dbias.p, 0, dbias.nbytes);
    }
    float loss = NAN;
    struct agree_buf log_probs = agree_buf_make(DTYPE_F32, (size_t)p->N, 0);
    struct ce_head_args a = {.N = p->N,
                             .C = p->C,
                             .V = p->V,
                             .dtype = p->dtype,
                             .x = p->x.p,
                             .w = p->w.p,
                             .bias = p->bias.p,
                             .softcap = p->softcap,
                             .labels = p->labels,
                             .loss_weights = p->weights,
                             .loss = &loss,
                             .log_probs = log_probs.p,
                             .dloss = p->dloss,
                             .dx = dx.p,
                             .grad_dtype = p->grad_dtype,
                             .dw = dw.p,
                             .dbias = dbias.p,
                             .dw_accumulate = accumulate,
                             .dbias_accumulate = accumulate};
    ck_ok(ops_ce_head_workspace(ops, &a, &a.workspace_nbytes));
    struct agree_buf space = agree_buf_make(DTYPE_U8, a.workspace_nbytes, 0);
    a.workspace = space.p;
    ck_ok(ops_ce_head(ops, NULL, &a));
    agree_guards(&space, "workspace");
    const bool wide = p->dtype == DTYPE_F32;
    ck_assert_double_le(fabs((double)loss - p->loss), (wide ? 4e-6 : 2e-5) * fabs(p->loss) + 1e-6);
    near(&log_probs, p->log_probs, wide ? 4e-6 : 2e-5, "log_probs");
    agree_buf_free(&log_probs);
    /* 16-bit models: dz is rounded to 8 or 11 bits before the products. */
    const double sums = 1e-10 * (double)p->V; /* row 0 sums the vocabulary one after another */
    const double rtol = wide ? 1e-5 + sums : p->dtype == DTYPE_BF16 ? 1.2e-2 : 2e-3;
    near(&dx, p->dx, rtol, "dx");
    near(&dw, p->dw, rtol, "dw");
    near(&dbias, p->dbias, rtol, "dbias");
    agree_buf_free(&dx);
    agree_buf_free(&dw);
    agree_buf_free(&dbias);
    agree_buf_free(&space);
}

/* Each test below has the whole table of the host: the head calls matmul and cast_scale. */
static struct device *device;

static struct ops *host_ops(void)
{
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &device));
    ck_ok(ops_create(device, &ops));
    return ops;
}

static void host_ops_free(struct ops *ops)
{
    ops_destroy(ops);
    device_close(device);
}

START_TEST(fused_head_matches_double)
{
    struct ops *ops = host_ops();
    const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 8, 33}, {40, 16, 257}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
            for (int variant = 0; variant < 4; variant++) {
                enum cz_dtype grad = variant & 1 ? DTYPE_F32 : (enum cz_dtype)dtype;
                next_softcap = variant == 1 || variant == 2 ? 0.8f : 0.0f;
                struct problem p = problem_make(shapes[s][0], shapes[s][1], shapes[s][2],
                                                (enum cz_dtype)dtype, grad, variant & 2);
                check_problem(ops, &p, variant == 3);
                problem_free(&p);
            }
    next_softcap = 0;
    host_ops_free(ops);
}
END_TEST

START_TEST(several_row_blocks_match_double)
{
    struct ops *ops = host_ops();
    /* 64 MiB hold 224 rows of this vocabulary: two blocks, 35 panels, the last one smaller. */
    struct problem p = problem_make(240, 1, 70001, DTYPE_F32, DTYPE_F32, false);
    check_problem(ops, &p, false);
    problem_free(&p);
    p = problem_make(240, 1, 70001, DTYPE_BF16, DTYPE_BF16, true);
    check_problem(ops, &p, true);
    problem_free(&p);
    host_ops_free(ops);
}
END_TEST

/* Panels have 2048 columns: labels on both sides of an edge, and a last panel of one column. */
START_TEST(panels_match_double)
{
    struct ops *ops = host_ops();
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int64_t V = 2047; V <= 4097; V += V == 2049 ? 2048 : 1) {
            struct problem p =
                problem_make(12, 7, V, (enum cz_dtype)dtype, (enum cz_dtype)dtype, V % 2);
            check_problem(ops, &p, V == 2048);
            problem_free(&p);
        }
    host_ops_free(ops);
}
END_TEST

static struct ce_head_args head_args(struct problem *p, float *loss)
{
    return (struct ce_head_args){.N = p->N,
                                 .C = p->C,
                                 .V = p->V,
                                 .dtype = p->dtype,
                                 .grad_dtype = p->grad_dtype,
                                 .x = p->x.p,
                                 .w = p->w.p,
                                 .bias = p->bias.p,
                                 .softcap = p->softcap,
                                 .labels = p->labels,
                                 .loss_weights = p->weights,
                                 .loss = loss,
                                 .dloss = p->dloss};
}

static void run_head(struct ops *ops, struct ce_head_args *a)
{
    ck_ok(ops_ce_head_workspace(ops, a, &a->workspace_nbytes));
    struct agree_buf space = agree_buf_make(DTYPE_U8, a->workspace_nbytes, 1);
    a->workspace = space.p;
    ck_ok(ops_ce_head(ops, NULL, a));
    agree_guards(&space, "workspace");
    agree_buf_free(&space);
}

/* In two halves, dx alone and then dw alone, as when a shared parameter's gradient is put off: dz
 * is made twice, or kept. */
static void check_halves(struct ops *ops, struct problem *p, bool keeps)
{
    const size_t size = dtype_size(p->dtype), n_dx = (size_t)(p->N * p->C),
                 n_dw = (size_t)(p->V * p->C);
    struct agree_buf dx[3], dw[2];
    struct agree_buf dz = agree_buf_make(p->dtype, keeps ? (size_t)(p->N * p->V) : 1, 0);
    float loss = 0, first;
    for (int i = 0; i < 3; i++) dx[i] = agree_buf_make(p->dtype, n_dx, 0);
    for (int i = 0; i < 2; i++) dw[i] = agree_buf_make(p->dtype, n_dw, 0);
    struct ce_head_args whole = head_args(p, &loss), half = whole;
    whole.dx = dx[0].p, whole.dw = dw[0].p;
    run_head(ops, &whole);
    first = loss;
    half.dx = dx[1].p, half.dz = keeps ? dz.p : NULL;
    run_head(ops, &half);
    ck_assert(loss == first);
    loss = NAN;
    half.dx = dx[2].p, half.dw = dw[1].p, half.dx_unwanted = true, half.dz_given = keeps;
    run_head(ops, &half);
    ck_assert(keeps ? isnan(loss) : loss == first);
    ck_assert_mem_eq(dx[1].p, dx[0].p, n_dx * size);
    ck_assert_mem_eq(dw[1].p, dw[0].p, n_dw * size);
    agree_guards(&dz, "dz");
    for (int i = 0; i < 3; i++) agree_buf_free(&dx[i]);
    for (int i = 0; i < 2; i++) agree_buf_free(&dw[i]);
    agree_buf_free(&dz);
}

START_TEST(gradients_in_two_halves_have_the_same_bits)
{
    struct ops *ops = host_ops();
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int blocks = 1; blocks <= 2; blocks++) { /* of rows */
            struct problem p = problem_make(blocks == 1 ? 20 : 240, blocks == 1 ? 5 : 1,
                                            blocks == 1 ? 2100 : 70001, (enum cz_dtype)dtype,
                                            (enum cz_dtype)dtype, true);
            check_halves(ops, &p, false);
            check_halves(ops, &p, true);
            problem_free(&p);
        }
    host_ops_free(ops);
}
END_TEST

START_TEST(loss_alone_logits_and_training_give_the_same_loss)
{
    struct ops *ops = host_ops();
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
        next_softcap = dtype == DTYPE_BF16 ? 1.5f : 0.0f;
        struct problem p = problem_make(9, 5, 2100, (enum cz_dtype)dtype, DTYPE_F32, true);
        next_softcap = 0;
        float trained, alone, shown, both;
        struct agree_buf logits = agree_buf_make(DTYPE_F32, 9 * 2100, 0);
        struct agree_buf dx[2] = {agree_buf_make(p.dtype, 9 * 5, 0),
                                  agree_buf_make(p.dtype, 45, 0)};
        struct ce_head_args a = head_args(&p, &trained);
        a.dx = dx[0].p;
        run_head(ops, &a);
        a = head_args(&p, &alone);
        run_head(ops, &a);
        a = head_args(&p, &shown), a.logits = logits.p;
        run_head(ops, &a);
        agree_guards(&logits, "logits");
        for (int64_t i = 0; i < 9 * 2100; i++) {
            double want = logit(&p, i / 2100, i % 2100), got = agree_get(&logits, (size_t)i);
            agree_assert(fabs(got - want) <= 1e-5, "logit %lld: %.9g, not %.9g", (long long)i, got,
                         want);
        }
        a = head_args(&p, &both), a.logits = logits.p, a.dx = dx[1].p;
        run_head(ops, &a);
        ck_assert(trained == alone);
        ck_assert(fabsf(shown - alone) <= 1e-6f * fabsf(alone));
        ck_assert(both == shown);
        for (size_t i = 0; i < 45; i++)
            agree_assert(fabsf(agree_get(&dx[0], i) - agree_get(&dx[1], i)) <=
                             1e-5f + agree_step(p.dtype, agree_get(&dx[0], i)),
                         "dx %zu", i);
        agree_buf_free(&logits), agree_buf_free(&dx[0]), agree_buf_free(&dx[1]);
        problem_free(&p);
    }
    host_ops_free(ops);
}
END_TEST

/* Labels that are the largest of their row, found in logits of the head's own, for vocabularies of
 * one panel and of several. */
START_TEST(labels_with_the_largest_logit_are_counted)
{
    static const int64_t sizes[] = {1, 7, 2048, 4100};
    struct ops *ops = host_ops();
    for (size_t k = 0; k < CZ_ARRAY_LEN(sizes); k++)
        for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
            const int64_t V = sizes[k], N = 12;
            struct problem p = problem_make(N, 5, V, (enum cz_dtype)dtype, DTYPE_F32, k % 2);
            struct agree_buf logits = agree_buf_make(DTYPE_F32, (size_t)(N * V), 0);
            float loss, same, hits = -1;
            struct ce_head_args a = head_args(&p, &loss);
            int n_hits = 0;
            a.logits = logits.p;
            run_head(ops, &a);
            for (int64_t n = 0; n < N; n++) {
                int64_t best = 0;
                for (int64_t v = 1; v < V; v++)
                    if (agree_get(&logits, (size_t)(n * V + v)) >
                        agree_get(&logits, (size_t)(n * V + best)))
                        best = v;
                if (n % 3 == 0) p.labels[n] = (int32_t)best;
                if (n % 3 == 1) p.labels[n] = CZ_IGNORE_LABEL;
                n_hits += p.labels[n] == best;
            }
            a = head_args(&p, &loss), a.hits = &hits;
            run_head(ops, &a);
            ck_assert_msg(hits == (float)n_hits, "V %lld: %g hits, not %d", (long long)V,
                          (double)hits, n_hits);
            a = head_args(&p, &same);
            run_head(ops, &a);
            ck_assert(same == loss);
            agree_buf_free(&logits);
            problem_free(&p);
        }
    host_ops_free(ops);
}
END_TEST

static double loss_of(struct ops *ops, struct problem *p)
{
    float loss;
    struct ce_head_args a = head_args(p, &loss);
    run_head(ops, &a);
    return (double)loss;
}

START_TEST(gradients_are_finite_differences_of_the_loss)
{
    struct ops *ops = host_ops();
    struct problem p = problem_make(5, 4, 11, DTYPE_F32, DTYPE_F32, true);
    p.dloss = 1.0f;
    float loss, dx[5 * 4], dw[11 * 4], dbias[11];
    struct ce_head_args a = head_args(&p, &loss);
    a.dx = dx, a.dw = dw, a.dbias = dbias;
    run_head(ops, &a);
    struct agree_buf *inputs[] = {&p.x, &p.w, &p.bias};
    const float *grads[] = {dx, dw, dbias};
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < inputs[t]->numel; i++) {
            const float x = agree_get(inputs[t], i), step = 1e-2f;
            agree_set(inputs[t], i, x + step);
            double above = loss_of(ops, &p);
            agree_set(inputs[t], i, x - step);
            double slope = (above - loss_of(ops, &p)) / (2 * (double)step);
            agree_set(inputs[t], i, x);
            /* the loss has 24 bits: its difference over 2e-2 is good to about 2e-5 */
            agree_assert(fabs((double)grads[t][i] - slope) <= 1e-4,
                         "tensor %d, %zu: %.6g, not %.6g", t, i, (double)grads[t][i], slope);
        }
    problem_free(&p);
    host_ops_free(ops);
}
END_TEST

/* A row's gradient does not depend on the others' weights where a divisor is given, also if all
 * weights add up to 0. */
START_TEST(signed_weights_may_add_up_to_nothing)
{
    struct ops *ops = host_ops();
    const float x[] = {1, 2, -1, 0.5f}, w[] = {0.3f, -0.2f, 0.1f, 0.4f, -0.5f, 0.2f};
    const float weights[][2] = {{1, -1}, {1, 2}};
    const int32_t labels[] = {2, 0};
    float dx[2][4], plain[2][6], loss;
    for (int k = 0; k < 2; k++) {
        struct ce_head_args a = {.N = 2,
                                 .C = 2,
                                 .V = 3,
                                 .x = x,
                                 .w = w,
                                 .labels = labels,
                                 .loss_weights = weights[k],
                                 .divisor = 1,
                                 .loss = &loss,
                                 .dloss = 1,
                                 .dx = dx[k]};
        const struct cross_entropy_args b = {.N = 2,
                                             .V = 3,
                                             .logits = w,
                                             .labels = labels,
                                             .loss_weights = weights[k],
                                             .divisor = 1,
                                             .loss = &loss,
                                             .dloss = 1,
                                             .dlogits = plain[k]};
        ck_ok(ops_ce_head_workspace(ops, &a, &a.workspace_nbytes));
        a.workspace = malloc(a.workspace_nbytes);
        ck_ok(ops_ce_head(ops, NULL, &a));
        free(a.workspace);
        ck_ok(ops_cross_entropy(ops, NULL, &b));
    }
    ck_assert(fabsf(dx[0][0]) > 0.01f && fabsf(plain[0][0]) > 0.01f);
    ck_assert_mem_eq(dx[0], dx[1], 2 * sizeof(float));
    ck_assert_mem_eq(plain[0], plain[1], 3 * sizeof(float));
    for (int c = 0; c < 2; c++) ck_assert_float_eq_tol(dx[1][2 + c], -2 * dx[0][2 + c], 1e-6f);
    host_ops_free(ops);
}
END_TEST

START_TEST(infinite_and_nan_logits_show_in_the_loss)
{
    struct ops *ops = host_ops();
    for (int special = 0; special < 3; special++) {
        struct problem p = problem_make(3, 2, 2050, DTYPE_F32, DTYPE_F32, false);
        float loss, dx[6], *dw = malloc(2050 * 2 * sizeof *dw);
        const float values[] = {NAN, INFINITY, -INFINITY};
        agree_set(&p.bias, 2049, values[special]); /* alone in the last panel's second half */
        struct ce_head_args a = head_args(&p, &loss);
        a.dx = dx, a.dw = dw;
        run_head(ops, &a);
        ck_assert(special == 2 ? isfinite(loss) : !isfinite(loss)); /* −∞: a word ruled out */
        ck_assert(special == 2 ? isfinite(dx[0]) : !isfinite(dx[0]));
        free(dw);
        problem_free(&p);
    }
    host_ops_free(ops);
}
END_TEST

START_TEST(a_workspace_for_the_largest_batch_serves_smaller_ones)
{
    struct ops *ops = host_ops();
    float loss;
    int32_t label = 0;
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int64_t V = 300; V <= 100000; V = V * 17 + 1) {
            struct ce_head_args a = {.C = 24,
                                     .V = V,
                                     .dtype = (enum cz_dtype)dtype,
                                     .grad_dtype = (enum cz_dtype)dtype,
                                     .labels = &label,
                                     .loss = &loss,
                                     .dx = &loss,
                                     .dw = &loss,
                                     .dbias = &loss};
            size_t most = 0, nbytes;
            for (a.N = 700; a.N > 0; a.N -= a.N > 40 ? 37 : 3) {
                ck_ok(ops_ce_head_workspace(ops, &a, &nbytes));
                if (most == 0) most = nbytes;
                agree_assert(nbytes <= most, "V %lld: %lld rows need %zu bytes, 700 only %zu",
                             (long long)V, (long long)a.N, nbytes, most);
            }
            ck_assert_uint_le(most, (size_t)90 << 20);
        }
    host_ops_free(ops);
}
END_TEST

START_TEST(threads_do_not_show)
{
    struct ops *ops = host_ops();
    enum { N = 64, V = 1001 };
    struct agree_buf z = agree_buf_make(DTYPE_F32, N * V, 0);
    agree_fill(&z, 9, 10.0f);
    int32_t labels[N];
    for (int n = 0; n < N; n++) labels[n] = n * 3;
    struct agree_buf dz[2];
    float loss[2];
    int threads = omp_get_max_threads();
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i == 0 ? 1 : 3);
        dz[i] = agree_buf_make(DTYPE_F32, N * V, 0);
        const struct cross_entropy_args a = {.N = N,
                                             .V = V,
                                             .logits = z.p,
                                             .labels = labels,
                                             .loss = &loss[i],
                                             .dloss = 1.0f,
                                             .dlogits = dz[i].p};
        ck_ok(ops_cross_entropy(ops, NULL, &a));
    }
    omp_set_num_threads(threads);
    ck_assert(loss[0] == loss[1]);
    ck_assert_mem_eq(dz[0].p, dz[1].p, dz[0].nbytes);
    for (int i = 0; i < 2; i++) agree_buf_free(&dz[i]);
    agree_buf_free(&z);
    host_ops_free(ops);
}
END_TEST

START_TEST(odd_inputs)
{
    struct ops *ops = host_ops();
    float x[4] = {1, 2, 3, 4}, w[6] = {1, 0, 0, 1, 1, 1}, loss = NAN, dx[4], dw[6];
    int32_t labels[2] = {CZ_IGNORE_LABEL, CZ_IGNORE_LABEL};
    struct ce_head_args a = {.N = 2,
                             .C = 2,
                             .V = 3,
                             .x = x,
                             .w = w,
                             .labels = labels,
                             .loss = &loss,
                             .dloss = 1,
                             .dx = dx,
                             .dw = dw};
    ck_ok(ops_ce_head_workspace(ops, &a, &a.workspace_nbytes));
    a.workspace = malloc(a.workspace_nbytes);
    ck_ok(ops_ce_head(ops, NULL, &a)); /* every label ignored: nothing to learn */
    ck_assert(loss == 0.0f);
    for (int i = 0; i < 4; i++) ck_assert(dx[i] == 0);
    for (int i = 0; i < 6; i++) ck_assert(dw[i] == 0);
    labels[1] = 3;
    ck_fails(ops_ce_head(ops, NULL, &a), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "ce_head: label 3 of row 1 is outside 0 … 2");
    labels[1] = -1;
    ck_fails(ops_ce_head(ops, NULL, &a), CZ_INVALID);
    labels[1] = 2;
    a.workspace_nbytes--;
    ck_fails(ops_ce_head(ops, NULL, &a), CZ_INVALID);
    a.workspace_nbytes++;
    float logits[6];
    struct ce_head_args only = {.N = 2,
                                .C = 2,
                                .V = 3,
                                .x = x,
                                .w = w,
                                .logits = logits,
                                .workspace = a.workspace,
                                .workspace_nbytes = a.workspace_nbytes};
    ck_ok(ops_ce_head(ops, NULL, &only));
    ck_assert(logits[0] == 1 && logits[1] == 2 && logits[2] == 3 && logits[5] == 7);
    a.N = 0; /* an empty batch overwrites the gradients with zero */
    dw[0] = 5;
    ck_ok(ops_ce_head(ops, NULL, &a));
    ck_assert(dw[0] == 0 && loss == 0);
    a.dz_given = true; /* but not where */
    ck_fails(ops_ce_head(ops, NULL, &a), CZ_INVALID);
    only.dz = dw; /* of no gradients */
    ck_fails(ops_ce_head(ops, NULL, &only), CZ_INVALID);
    free(a.workspace);
    host_ops_free(ops);
}
END_TEST

int main(void)
{
    if (cpu_isa_check() != CZ_OK) {
        printf("skipped: %s\n", cz_last_error());
        return TEST_SKIPPED;
    }
    const TTest *const cases[] = {rows_agree_on_softmax,
                                  special_logits_never_look_finite,
                                  fused_head_matches_double,
                                  several_row_blocks_match_double,
                                  panels_match_double,
                                  loss_alone_logits_and_training_give_the_same_loss,
                                  gradients_in_two_halves_have_the_same_bits,
                                  labels_with_the_largest_logit_are_counted,
                                  gradients_are_finite_differences_of_the_loss,
                                  signed_weights_may_add_up_to_nothing,
                                  infinite_and_nan_logits_show_in_the_loss,
                                  a_workspace_for_the_largest_batch_serves_smaller_ones,
                                  threads_do_not_show,
                                  odd_inputs};
    return test_run("ops/cross_entropy", cases, (int)CZ_ARRAY_LEN(cases));
}
