/* Claims: on a CUDA device the experts that tokens go to, their order and their counts are those of
 * the scalar row; probabilities, weights and gradients are within rounding of it, for any number of
 * experts, dtype and mask; rows of experts are added with its bits; numbers that are none still
 * choose experts that exist; bad arguments are refused. */
#include "ops/router/router_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol exact = {.op = "router", .why = "the scalar row's bits"};
static const struct agree_tol near = {
    .op = "router", .rtol = 1e-5f, .atol = 1e-6f, .why = "exponentials and sums in trees"};
static const struct agree_tol dot = {
    .op = "expert_weigh", .rtol = 1e-5f, .atol = 1e-3f, .why = "sums of numbers up to 9 in trees"};

/* An array on both sides. */
struct twin {
    struct agree_buf want, got;
    struct rig_buf device;
};

static struct twin twin_make(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t numel,
                             uint32_t seed)
{
    struct twin t = {
        agree_buf_make(dtype, (size_t)numel, 0), agree_buf_make(dtype, (size_t)numel, 0), {0}};
    if (dtype == DTYPE_I32) {
        memset(t.want.p, 0, t.want.nbytes), memset(t.got.p, 0, t.got.nbytes);
    } else {
        agree_fill(&t.want, seed, 3.0f), agree_fill(&t.got, seed, 3.0f);
    }
    t.device = rig_put(rig, &t.got);
    return t;
}

static void twin_close(const struct cuda_rig *rig, struct twin *t, const struct agree_tol *tol,
                       const char *what)
{
    rig_get(rig, &t->device, &t->got);
    if (t->want.dtype == DTYPE_I32)
        ck_assert_msg(memcmp(t->got.p, t->want.p, t->want.nbytes) == 0, "%s differ", what);
    else
        agree_check(&t->got, &t->want, tol, "cuda", what);
    rig_free(rig, &t->device);
    agree_buf_free(&t->want), agree_buf_free(&t->got);
}

static struct ops host_ops(void)
{
    return agree_wire(router_wire, &router_rows(&(size_t){0})[0]->row);
}

static void router_case(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t N, int64_t E,
                        int64_t K, bool normalised, bool masked)
{
    struct ops host = host_ops();
    uint8_t mask[128];
    for (size_t n = 0; n < sizeof mask; n++) mask[n] = n % 5 != 1;
    uint8_t *gmask = rig_put_bytes(rig, mask, sizeof mask);
    struct twin logits = twin_make(rig, dtype, N * E, 1),
                probs = twin_make(rig, DTYPE_F32, N * E, 2),
                weights = twin_make(rig, DTYPE_F32, N * K, 3),
                dweights = twin_make(rig, DTYPE_F32, N * K, 4),
                dlogits = twin_make(rig, dtype, N * E, 5),
                experts = twin_make(rig, DTYPE_I32, N * K, 0),
                choices = twin_make(rig, DTYPE_I32, N * K, 0),
                tokens = twin_make(rig, DTYPE_I32, N * K, 0),
                starts = twin_make(rig, DTYPE_I32, E + 1, 0),
                balance = twin_make(rig, DTYPE_F32, (int64_t)router_balance_numel(E), 6),
                loss = twin_make(rig, DTYPE_F32, 1, 7);
    agree_set(&balance.want, 3 * (size_t)E, 64), agree_set(&balance.got, 3 * (size_t)E, 64);
    rig_free(rig, &balance.device);
    balance.device = rig_put(rig, &balance.got);
    for (int side = 0; side < 2; side++) {
#define AT(t) (side ? (t).device.p : (t).want.p)
        struct ops *ops = side ? rig->ops : &host;
        struct dev_stream *stream = side ? rig->stream : NULL;
        const uint8_t *counts = !masked ? NULL : side ? gmask : mask;
        const struct router_args a = {.N = N,
                                      .E = E,
                                      .K = K,
                                      .dtype = dtype,
                                      .normalised = normalised,
                                      .logits = AT(logits),
                                      .probs = AT(probs),
                                      .experts = AT(experts),
                                      .weights = AT(weights)};
        ck_ok(ops_router_forward(ops, stream, &a));
        const struct router_sort_args s = {.N = N,
                                           .E = E,
                                           .K = K,
                                           .experts = AT(experts),
                                           .choices = AT(choices),
                                           .tokens = AT(tokens),
                                           .starts = AT(starts)};
        ck_ok(ops_router_sort(ops, stream, &s));
        const struct router_balance_args b = {.N = N,
                                              .E = E,
                                              .K = K,
                                              .probs = AT(probs),
                                              .experts = AT(experts),
                                              .counts = counts,
                                              .balance = AT(balance)};
        ck_ok(ops_router_balance(ops, stream, &b));
        const struct router_balance_loss_args l = {
            .E = E, .coef = 0.5f, .dloss = 2, .balance = AT(balance), .loss = AT(loss)};
        ck_ok(ops_router_balance_loss(ops, stream, &l));
        const struct router_grad_args g = {.N = N,
                                           .E = E,
                                           .K = K,
                                           .dtype = dtype,
                                           .normalised = normalised,
                                           .probs = AT(probs),
                                           .experts = AT(experts),
                                           .dweights = AT(dweights),
                                           .dprobs = (float *)AT(balance) + 2 * E,
                                           .counts = counts,
                                           .dlogits = AT(dlogits)};
        ck_ok(ops_router_backward(ops, stream, &g));
#undef AT
    }
    rig_free_bytes(rig, gmask, sizeof mask);
    twin_close(rig, &logits, &exact, "logits"), twin_close(rig, &probs, &near, "probs");
    twin_close(rig, &weights, &near, "weights"), twin_close(rig, &dweights, &exact, "dweights");
    twin_close(rig, &dlogits, &near, "dlogits"), twin_close(rig, &experts, &exact, "experts");
    twin_close(rig, &choices, &exact, "choices"), twin_close(rig, &tokens, &exact, "tokens");
    twin_close(rig, &starts, &exact, "starts"), twin_close(rig, &balance, &near, "balance");
    twin_close(rig, &loss, &near, "loss");
}

static void routers_agree(const struct cuda_rig *rig)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {7, 5, 2}, {40, 32, 3}, {100, 130, 8}, {9, 64, 64}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        router_case(rig,
                    dtypes[s == 3  ? 0
                           : s % 2 ? 1
                                   : 0],
                    shapes[s][0], shapes[s][1], shapes[s][2], s & 1, s & 2);
}

CUDA_ORDERS(routers_agree, routers_agree(&rig))

static void rows_case(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t n, int64_t C)
{
    enum { MAX = 24 };
    struct ops host = host_ops();
    int32_t idx[MAX];
    float weights[MAX];
    for (int i = 0; i < MAX; i++) idx[i] = (i * 7 + 3) % MAX, weights[i] = (float)(i + 1) / 16.0f;
    int32_t *gidx = rig_put_bytes(rig, idx, sizeof idx);
    float *gweights = rig_put_bytes(rig, weights, sizeof weights);
    struct twin x = twin_make(rig, dtype, n * C, 1), dy = twin_make(rig, dtype, n * C, 2),
                sum = twin_make(rig, DTYPE_F32, MAX * C, 3),
                dweights = twin_make(rig, DTYPE_F32, MAX, 4);
    for (int side = 0; side < 2; side++) {
        struct ops *ops = side ? rig->ops : &host;
        struct dev_stream *stream = side ? rig->stream : NULL;
        const int32_t *at = side ? gidx : idx;
        struct expert_add_args a = {.n = n, .C = C, .dtype = dtype, .tokens = at, .choices = at};
        a.x = side ? x.device.p : x.want.p;
        a.sum = side ? sum.device.p : sum.want.p;
        ck_ok(ops_expert_add(ops, stream, &a));
        a.weights = side ? gweights : weights;
        ck_ok(ops_expert_add(ops, stream, &a));
        const struct expert_weigh_args w = {.n = n,
                                            .C = C,
                                            .dtype = dtype,
                                            .choices = at,
                                            .weights = a.weights,
                                            .dweights = side ? dweights.device.p : dweights.want.p,
                                            .y = side ? x.device.p : x.want.p,
                                            .dy = side ? dy.device.p : dy.want.p};
        ck_ok(ops_expert_weigh(ops, stream, &w));
    }
    rig_free_bytes(rig, gidx, sizeof idx), rig_free_bytes(rig, gweights, sizeof weights);
    twin_close(rig, &x, &exact, "y"), twin_close(rig, &dy, &exact, "dy");
    twin_close(rig, &sum, &exact, "sum"), twin_close(rig, &dweights, &dot, "dweights");
}

static void rows_agree(const struct cuda_rig *rig)
{
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
        rows_case(rig, dtypes[d], 13, 33);
        rows_case(rig, dtypes[d], 1, 300);
        rows_case(rig, dtypes[d], 24, 1);
    }
}

CUDA_ORDERS(rows_agree, rows_agree(&rig))

START_TEST(whatever_the_numbers_experts_exist)
{
    struct cuda_rig rig = cuda_rig_open();
    const float logits[6] = {NAN, 1, 2, INFINITY, 0, INFINITY};
    float probs[6] = {0}, weights[6] = {0};
    int32_t experts[6] = {0};
    struct router_args a = {.N = 2, .E = 3, .K = 3};
    a.logits = rig_put_bytes(&rig, logits, sizeof logits);
    a.probs = rig_put_bytes(&rig, probs, sizeof probs);
    a.weights = rig_put_bytes(&rig, weights, sizeof weights);
    a.experts = rig_put_bytes(&rig, experts, sizeof experts);
    ck_ok(ops_router_forward(rig.ops, rig.stream, &a));
    rig_get_bytes(&rig, a.experts, experts, sizeof experts);
    for (size_t n = 0; n < 2; n++)
        ck_assert_int_eq(1 << experts[3 * n] | 1 << experts[3 * n + 1] | 1 << experts[3 * n + 2],
                         7);
    rig_free_bytes(&rig, (void *)(uintptr_t)a.logits, sizeof logits);
    rig_free_bytes(&rig, a.probs, sizeof probs);
    rig_free_bytes(&rig, a.weights, sizeof weights);
    rig_free_bytes(&rig, a.experts, sizeof experts);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct cuda_rig rig = cuda_rig_open();
    struct ops *ops = rig.ops;
    ck_fails(ops_router_forward(ops, NULL, &(struct router_args){.N = 1, .E = 2, .K = 3}),
             CZ_INVALID);
    ck_fails(ops_router_backward(ops, NULL, &(struct router_grad_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_sort(ops, NULL, &(struct router_sort_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_balance(ops, NULL, &(struct router_balance_args){.N = 1, .E = 2, .K = 1}),
             CZ_INVALID);
    ck_fails(ops_router_balance_loss(ops, NULL, &(struct router_balance_loss_args){.E = 2}),
             CZ_INVALID);
    ck_fails(ops_expert_add(ops, NULL, &(struct expert_add_args){.n = 1, .C = 2}), CZ_INVALID);
    ck_fails(ops_expert_weigh(ops, NULL, &(struct expert_weigh_args){.n = 1, .C = 2}), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda router", CUDA_ORDERED(routers_agree), CUDA_ORDERED(rows_agree),
          whatever_the_numbers_experts_exist, bad_arguments_are_refused)
