/* Claims: a token's experts are the most probable ones, the first of equals first, and any numbers
 * give experts that exist; gradients are those of the forward; sorting is stable and complete;
 * balance is transformers' formula and its gradient; rows of experts agree between instruction
 * sets, and nothing depends on threads. */
#include "ops/router/router_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol add_tol = {.op = "expert_add",
                                         .why = "no fused multiply-adds: equal to the bit"};
static const struct agree_tol weigh_tol = {
    .op = "expert_weigh", .rtol = 1e-5f, .atol = 1e-5f, .why = "sums in another order"};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct router_row *const *rows = router_rows(&n_rows);                                   \
    struct ops truth = agree_wire(router_wire, &rows[0]->row);                                     \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(router_wire, &rows[row]->row), *once = &ops; once;        \
             once = NULL)

static struct ops host_ops(void)
{
    return agree_wire(router_wire, &router_rows(&(size_t){0})[0]->row);
}

/* ---- choices --------------------------------------------------------------------------------- */

START_TEST(the_most_probable_experts_are_chosen)
{
    struct ops ops = host_ops();
    const float logits[2][4] = {{0, 2, 1, 2}, {-1, -1, -1, 5}};
    float probs[8], weights[6];
    int32_t experts[6];
    struct router_args a = {.N = 2, .E = 4, .K = 3, .logits = logits, .probs = probs};
    a.experts = experts, a.weights = weights;
    ck_ok(ops_router_forward(&ops, NULL, &a));
    const int32_t want[6] = {1, 3, 2, 3, 0, 1};
    ck_assert_mem_eq(experts, want, sizeof want);
    const double sum = 2 * exp(2) + exp(1) + 1;
    ck_assert_double_eq_tol(weights[0], exp(2) / sum, 1e-7);
    ck_assert_double_eq_tol(weights[2], exp(1) / sum, 1e-7);
    ck_assert_float_eq(weights[0], probs[1]);
    a.normalised = true;
    ck_ok(ops_router_forward(&ops, NULL, &a));
    ck_assert_double_eq_tol(weights[0], exp(2) / (sum - 1), 1e-7);
    ck_assert_double_eq_tol(weights[3] + weights[4] + weights[5], 1, 1e-6);
}
END_TEST

START_TEST(whatever_the_numbers_experts_exist)
{
    struct ops ops = host_ops();
    const float logits[4][3] = {{NAN, 1, 2},
                                {INFINITY, 0, INFINITY},
                                {-INFINITY, -INFINITY, -INFINITY},
                                {-INFINITY, 3e38f, -3e38f}};
    float probs[12], weights[12];
    int32_t experts[12];
    struct router_args a = {.N = 4, .E = 3, .K = 3, .logits = logits, .probs = probs};
    a.experts = experts, a.weights = weights;
    ck_ok(ops_router_forward(&ops, NULL, &a));
    for (size_t n = 0; n < 4; n++) {
        int seen = 0;
        for (size_t k = 0; k < 3; k++) seen |= 1 << experts[n * 3 + k];
        ck_assert_int_eq(seen, 7);
    }
}
END_TEST

/* Σ dweights·w + Σ dprobs·p of one token. */
static double objective(struct ops *ops, struct router_args *a, const float *dweights,
                        const float *dprobs)
{
    double sum = 0;
    ck_ok(ops_router_forward(ops, NULL, a));
    for (int64_t k = 0; k < a->N * a->K; k++) sum += (double)(dweights[k] * a->weights[k]);
    for (int64_t i = 0; dprobs && i < a->N * a->E; i++)
        sum += (double)(dprobs[i % a->E] * a->probs[i]);
    return sum;
}

START_TEST(gradients_match_differences)
{
    enum { N = 3, E = 6, K = 2 };
    struct ops ops = host_ops();
    for (int variant = 0; variant < 4; variant++) {
        float logits[N * E], probs[N * E], weights[N * K], dweights[N * K], dprobs[E], grad[N * E];
        int32_t experts[N * K];
        for (size_t i = 0; i < N * E; i++) logits[i] = (float)(agree_random(5, i) % 1000) / 250.0f;
        for (size_t i = 0; i < N * K; i++) dweights[i] = (float)(i + 1) - 2.5f;
        for (size_t e = 0; e < E; e++) dprobs[e] = 0.7f * (float)e - 1.0f;
        struct router_args a = {.N = N, .E = E, .K = K, .normalised = variant & 1};
        a.logits = logits, a.probs = probs, a.experts = experts, a.weights = weights;
        ck_ok(ops_router_forward(&ops, NULL, &a));
        struct router_grad_args g = {.N = N, .E = E, .K = K, .normalised = variant & 1};
        g.probs = probs, g.experts = experts, g.dweights = dweights, g.dlogits = grad;
        g.dprobs = variant & 2 ? dprobs : NULL;
        ck_ok(ops_router_backward(&ops, NULL, &g));
        for (size_t i = 0; i < N * E; i++) {
            const float kept = logits[i];
            logits[i] = kept + 1e-2f;
            const double high = objective(&ops, &a, dweights, g.dprobs);
            logits[i] = kept - 1e-2f;
            const double low = objective(&ops, &a, dweights, g.dprobs);
            logits[i] = kept;
            ck_assert_double_eq_tol((double)grad[i], (high - low) / 2e-2, 1e-3);
        }
    }
}
END_TEST

START_TEST(tokens_that_do_not_count_have_no_balance)
{
    struct ops ops = host_ops();
    const float probs[4] = {0.25f, 0.75f, 0.25f, 0.75f}, dweights[2] = {0, 0}, dprobs[2] = {1, 3};
    const int32_t experts[2] = {1, 1};
    const uint8_t counts[2] = {0, 1};
    float grad[4];
    const struct router_grad_args g = {.N = 2,
                                       .E = 2,
                                       .K = 1,
                                       .probs = probs,
                                       .experts = experts,
                                       .dweights = dweights,
                                       .dprobs = dprobs,
                                       .counts = counts,
                                       .dlogits = grad};
    ck_ok(ops_router_backward(&ops, NULL, &g));
    const float want[4] = {0, 0, 0.25f * (1 - 2.5f), 0.75f * (3 - 2.5f)};
    ck_assert_mem_eq(grad, want, sizeof want);
}
END_TEST

START_TEST(sorting_is_stable_and_complete)
{
    enum { N = 50, K = 3, E = 7 };
    struct ops ops = host_ops();
    int32_t experts[N * K], choices[N * K], tokens[N * K], starts[E + 1];
    for (size_t i = 0; i < N * K; i++) experts[i] = (int32_t)(agree_random(3, i) % (E - 1));
    const struct router_sort_args a = {.N = N,
                                       .E = E,
                                       .K = K,
                                       .experts = experts,
                                       .choices = choices,
                                       .tokens = tokens,
                                       .starts = starts};
    ck_ok(ops_router_sort(&ops, NULL, &a));
    ck_assert_int_eq(starts[0], 0);
    ck_assert_int_eq(starts[E - 1], N * K); /* the last expert has none */
    ck_assert_int_eq(starts[E], N * K);
    for (int32_t e = 0; e < E; e++)
        for (int32_t i = starts[e]; i < starts[e + 1]; i++) {
            ck_assert_int_eq(experts[choices[i]], e);
            ck_assert_int_eq(tokens[i], choices[i] / K);
            ck_assert(i == starts[e] || choices[i] > choices[i - 1]);
        }
    experts[4] = E;
    ck_fails(ops_router_sort(&ops, NULL, &a), CZ_INVALID);
}
END_TEST

/* ---- balance --------------------------------------------------------------------------------- */

START_TEST(balance_is_the_published_formula)
{
    enum { N = 90, E = 5, K = 2, LAYERS = 2 };
    struct ops ops = host_ops();
    static float probs[LAYERS][N * E], balance[3 * E + 1], again[3 * E + 1];
    static int32_t experts[LAYERS][N * K];
    uint8_t counts[N];
    double count[E] = {0}, sum[E] = {0}, n = 0;
    ck_assert_uint_eq(router_balance_numel(E), CZ_ARRAY_LEN(balance));
    for (size_t i = 0; i < N; i++) counts[i] = i % 7 != 3;
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < N; i++) {
            for (size_t e = 0; e < E; e++) {
                probs[l][i * E + e] = (float)(agree_random(9 + l, i * E + e) % 100) / 100.0f;
                if (counts[i]) sum[e] += (double)probs[l][i * E + e];
            }
            for (size_t k = 0; k < K; k++) {
                experts[l][i * K + k] = (int32_t)((agree_random(11 + l, i) + k) % E);
                if (counts[i]) count[experts[l][i * K + k]]++;
            }
            n += counts[i];
        }
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        omp_set_num_threads(n_threads);
        memset(balance, 0, sizeof balance);
        for (size_t l = 0; l < LAYERS; l++) {
            const struct router_balance_args a = {.N = N,
                                                  .E = E,
                                                  .K = K,
                                                  .probs = probs[l],
                                                  .experts = experts[l],
                                                  .counts = counts,
                                                  .balance = balance};
            ck_ok(ops_router_balance(&ops, NULL, &a));
        }
        if (n_threads > 1) ck_assert_mem_eq(balance, again, sizeof balance);
        memcpy(again, balance, sizeof balance);
    }
    float loss = 1.5f;
    const struct router_balance_loss_args l = {
        .E = E, .coef = 0.5f, .dloss = 4, .balance = balance, .loss = &loss};
    ck_ok(ops_router_balance_loss(&ops, NULL, &l));
    double want = 0;
    for (size_t e = 0; e < E; e++) {
        want += count[e] / n * sum[e] / n;
        ck_assert_double_eq_tol((double)balance[2 * E + e], 4 * 0.5 * E * count[e] / n / n, 1e-6);
    }
    ck_assert_double_eq_tol((double)loss, 1.5 + 0.5 * E * want, 1e-5);
    memset(balance, 0, sizeof balance); /* a batch of padding alone */
    ck_ok(ops_router_balance_loss(&ops, NULL, &l));
    ck_assert_float_eq(balance[2 * E], 0);
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

static void rows_case(struct ops *ops, struct ops *truth, enum cz_dtype dtype, int64_t n, int64_t C,
                      size_t offset)
{
    enum { MAX = 40 };
    int32_t tokens[MAX], choices[MAX];
    float weights[MAX], dweights[2][MAX];
    const size_t numel = (size_t)(n * C);
    struct agree_buf x[2], dy[2], sum[2];
    for (int i = 0; i < MAX; i++) {
        tokens[i] = choices[i] = (i * 7 + 3) % MAX;
        weights[i] = (float)(i + 1) / 16.0f;
    }
    for (int side = 0; side < 2; side++) {
        struct ops *own = side ? ops : truth;
        x[side] = agree_buf_make(dtype, numel, side ? offset : 0);
        dy[side] = agree_buf_make(dtype, numel, side ? offset : 0);
        sum[side] = agree_buf_make(DTYPE_F32, (size_t)(MAX * C), side ? offset : 0);
        agree_fill(&x[side], 2, 3.0f);
        agree_fill(&dy[side], 4, 3.0f);
        agree_fill(&sum[side], 6, 3.0f);
        struct expert_add_args a = {.n = n, .C = C, .dtype = dtype, .x = x[side].p};
        a.tokens = tokens, a.choices = choices, a.sum = sum[side].p;
        ck_ok(ops_expert_add(own, NULL, &a));
        a.weights = weights;
        ck_ok(ops_expert_add(own, NULL, &a));
        const struct expert_weigh_args w = {.n = n,
                                            .C = C,
                                            .dtype = dtype,
                                            .choices = choices,
                                            .weights = weights,
                                            .dweights = dweights[side],
                                            .y = x[side].p,
                                            .dy = dy[side].p};
        ck_ok(ops_expert_weigh(own, NULL, &w));
    }
    agree_check(&sum[1], &sum[0], &add_tol, ops_isa(ops), "sum");
    agree_check(&x[1], &x[0], &add_tol, ops_isa(ops), "y");
    agree_check(&dy[1], &dy[0], &add_tol, ops_isa(ops), "dy");
    for (int64_t i = 0; i < n; i++)
        ck_assert_float_eq_tol(dweights[1][choices[i]], dweights[0][choices[i]],
                               weigh_tol.atol * (float)C + 1e-5f);
    for (int side = 0; side < 2; side++)
        agree_buf_free(&x[side]), agree_buf_free(&dy[side]), agree_buf_free(&sum[side]);
}

START_TEST(rows_of_experts_agree)
{
    static const int64_t widths[] = {1, 5, 8, 16, 17, 31, 64, 100};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (size_t offset = 0; offset < 3; offset++) {
                omp_set_num_threads((int)offset + 1);
                rows_case(&ops, &truth, dtypes[d], 13 * (int64_t)offset, widths[w], offset);
            }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct ops ops = host_ops();
    float x[8] = {0};
    int32_t idx[8] = {0};
    const struct router_args good = {
        .N = 2, .E = 2, .K = 1, .logits = x, .probs = x, .experts = idx, .weights = x};
    struct router_args a = good;
    a.K = 3;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    a = good, a.K = 0;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    a = good, a.E = ROUTER_EXPERTS_MAX + 1;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    a = good, a.N = INT32_MAX, a.K = 2;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    a = good, a.dtype = DTYPE_F64;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    a = good, a.weights = NULL;
    ck_fails(ops_router_forward(&ops, NULL, &a), CZ_INVALID);
    ck_fails(ops_router_backward(&ops, NULL, &(struct router_grad_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_sort(&ops, NULL, &(struct router_sort_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_balance(&ops, NULL, &(struct router_balance_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_balance_loss(&ops, NULL, &(struct router_balance_loss_args){.E = 2}),
             CZ_INVALID);
    ck_fails(ops_expert_add(&ops, NULL, &(struct expert_add_args){.n = 1, .C = 2}), CZ_INVALID);
    ck_fails(ops_expert_add(&ops, NULL, &(struct expert_add_args){.n = -1, .C = 2}), CZ_INVALID);
    ck_fails(ops_expert_weigh(&ops, NULL, &(struct expert_weigh_args){.n = 1, .C = 2}), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/router", the_most_probable_experts_are_chosen, whatever_the_numbers_experts_exist,
          gradients_match_differences, tokens_that_do_not_count_have_no_balance,
          sorting_is_stable_and_complete, balance_is_the_published_formula, rows_of_experts_agree,
          bad_arguments_are_refused)
