/* Claims: the plain cross-entropy on a CUDA device is within its tolerance of the scalar row, loss
 * and gradient, for rows of a warp and of a block, any alignment, with ignored labels, weights and
 * a given divisor, the gradient over the logits too; special logits show as they do on the host; a
 * label outside the classes shows as NaN; bad arguments are refused. */
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const struct agree_tol tol = {
    .op = "cross_entropy",
    .rtol = 1e-5f,
    .atol = 3e-6f,
    .why = "lse ≤ 20 is off by 2^-20 at most: sums in another order, log of another library; exp "
           "makes a relative error of it, and at the label, where p − 1 cancels, dloss = 3 times"};

static struct ops scalar_ops(void)
{
    return agree_wire(cross_entropy_wire, &cross_entropy_rows(&(size_t){0})[0]->row);
}

struct problem {
    int64_t N, V;
    struct agree_buf z, dz, want;
    int32_t *labels;
    float *weights, divisor;
};

static struct problem problem_make(int64_t N, int64_t V, bool weighted, float divisor,
                                   size_t offset)
{
    struct problem p = {.N = N, .V = V, .divisor = divisor};
    p.z = agree_buf_make(DTYPE_F32, (size_t)(N * V), offset);
    p.dz = agree_buf_make(DTYPE_F32, (size_t)(N * V), offset);
    p.want = agree_buf_make(DTYPE_F32, (size_t)(N * V), 0);
    agree_fill(&p.z, 9, 10.0f);
    p.labels = calloc((size_t)N + 1, sizeof *p.labels);
    p.weights = weighted ? calloc((size_t)N + 1, sizeof *p.weights) : NULL;
    for (int64_t n = 0; n < N; n++) {
        p.labels[n] = n % 5 == 4 ? CZ_IGNORE_LABEL : (int32_t)((n * 7919 + V - 1) % V);
        if (weighted) p.weights[n] = 0.5f + (float)(n % 3);
    }
    return p;
}

static void problem_free(struct problem *p)
{
    agree_buf_free(&p->z), agree_buf_free(&p->dz), agree_buf_free(&p->want);
    free(p->labels), free(p->weights);
}

static struct cross_entropy_args host_args(struct problem *p, float *loss)
{
    return (struct cross_entropy_args){.N = p->N,
                                       .V = p->V,
                                       .logits = p->z.p,
                                       .labels = p->labels,
                                       .loss_weights = p->weights,
                                       .divisor = p->divisor,
                                       .loss = loss,
                                       .dloss = 3.0f,
                                       .dlogits = p->want.p};
}

/* Runs on the device, once with a gradient apart, once over the logits, once with the loss alone;
 * the first one's loss. */
static float run(const struct cuda_rig *rig, struct problem *p)
{
    const size_t n = (size_t)p->N + 1;
    struct rig_buf gz = rig_put(rig, &p->z), gdz = rig_put(rig, &p->dz);
    int32_t *labels = rig_put_bytes(rig, p->labels, n * sizeof *labels);
    float *weights = p->weights ? rig_put_bytes(rig, p->weights, n * sizeof *weights) : NULL;
    float first = -1, other[2] = {-1, -1};
    float *loss = rig_put_bytes(rig, &first, sizeof first);
    struct cross_entropy_args a = host_args(p, loss);
    a.logits = gz.p, a.dlogits = gdz.p, a.labels = labels, a.loss_weights = weights;
    ck_ok(ops_cross_entropy(rig->ops, rig->stream, &a));
    rig_get(rig, &gdz, &p->dz);
    rig_get_bytes(rig, loss, &first, sizeof first);
    a.dlogits = NULL;
    ck_ok(ops_cross_entropy(rig->ops, rig->stream, &a));
    rig_get_bytes(rig, loss, &other[0], sizeof first);
    a.dlogits = gz.p;
    ck_ok(ops_cross_entropy(rig->ops, rig->stream, &a));
    rig_get(rig, &gz, &p->z);
    rig_get_bytes(rig, loss, &other[1], sizeof first);
    for (int i = 0; i < 2; i++) ck_assert(f32_bits(other[i]) == f32_bits(first));
    agree_same(&p->z, &p->dz, "the gradient over the logits");
    rig_free(rig, &gz), rig_free(rig, &gdz), rig_free_bytes(rig, loss, sizeof first);
    rig_free_bytes(rig, labels, n * sizeof *labels);
    if (weights) rig_free_bytes(rig, weights, n * sizeof *weights);
    return first;
}

static void one_case(const struct cuda_rig *rig, int64_t N, int64_t V, bool weighted, float divisor,
                     size_t offset)
{
    struct ops truth = scalar_ops();
    struct problem p = problem_make(N, V, weighted, divisor, offset);
    float want;
    struct cross_entropy_args a = host_args(&p, &want);
    ck_ok(ops_cross_entropy(&truth, NULL, &a));
    float got = run(rig, &p);
    /* each row's loss is a difference of fp32 numbers up to 20 */
    agree_assert(fabsf(got - want) <= 1e-5f * fabsf(want) + 2e-6f,
                 "%lld rows of %lld: loss %.9g, row 0 gives %.9g", (long long)N, (long long)V,
                 (double)got, (double)want);
    agree_check(&p.dz, &p.want, &tol, "cuda", "dlogits");
    problem_free(&p);
}

static void it_agrees(const struct cuda_rig *rig)
{
    static const int64_t classes[] = {1, 2, 3, 4, 31, 128, 131, 1024, 1028, 2051};
    for (size_t v = 0; v < CZ_ARRAY_LEN(classes); v++)
        for (int64_t N = 0; N < 22; N += N < 1 ? 1 : 20)
            for (int variant = 0; variant < 4; variant++)
                one_case(rig, N, classes[v], variant & 1, variant & 2 ? 7.5f : 0.0f, variant == 3);
}

CUDA_ORDERS(it_agrees, it_agrees(&rig))

START_TEST(long_and_many_rows_agree)
{
    struct cuda_rig rig = cuda_rig_open();
    one_case(&rig, 3, 50257, true, 0.0f, 0);
    one_case(&rig, 3, 32000, false, 0.0f, 0);
    one_case(&rig, 5000, 3, true, 0.0f, 0); /* more rows than groups */
    one_case(&rig, 4200, 1, false, 2.0f, 1);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(alignment_does_not_show)
{
    static const int64_t classes[] = {3, 128, 1032, 8200};
    struct cuda_rig rig = cuda_rig_open();
    for (size_t v = 0; v < CZ_ARRAY_LEN(classes); v++) {
        struct problem p[2];
        float loss[2];
        for (size_t offset = 0; offset < 2; offset++) {
            p[offset] = problem_make(5, classes[v], true, 0, offset);
            loss[offset] = run(&rig, &p[offset]);
        }
        ck_assert(f32_bits(loss[0]) == f32_bits(loss[1]));
        agree_same(&p[0].dz, &p[1].dz, "another alignment");
        problem_free(&p[0]), problem_free(&p[1]);
    }
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(no_label_gives_no_loss)
{
    struct cuda_rig rig = cuda_rig_open();
    for (float divisor = 0; divisor < 2; divisor++) {
        struct problem p = problem_make(3, 9, false, divisor, 0);
        for (int n = 0; n < 3; n++) p.labels[n] = CZ_IGNORE_LABEL;
        ck_assert(run(&rig, &p) == 0.0f);
        for (size_t i = 0; i < 27; i++) ck_assert(agree_get(&p.dz, i) == 0.0f);
        problem_free(&p);
    }
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(special_logits_never_look_finite)
{
    static const float special[] = {NAN, INFINITY, -INFINITY};
    struct cuda_rig rig = cuda_rig_open();
    for (int64_t V = 40; V <= 1100; V += 1060)
        for (size_t at = 0; at < 40; at += 13)
            for (int k = 0; k < 3; k++) {
                struct problem p = problem_make(2, V, false, 0, 0);
                p.labels[0] = 1, p.labels[1] = 2; /* not at `at` */
                agree_set(&p.z, at, special[k]);
                const float loss = run(&rig, &p);
                ck_assert(k < 2 ? isnan(loss) : isfinite(loss));
                ck_assert(k < 2 ? isnan(agree_get(&p.dz, 5)) : agree_get(&p.dz, at) == 0.0f);
                for (size_t i = (size_t)V; i < 2 * (size_t)V; i++)
                    ck_assert(isfinite(agree_get(&p.dz, i)));
                problem_free(&p);
            }
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(a_label_outside_the_classes_shows)
{
    static const int32_t bad[] = {9, -1, INT32_MAX, INT32_MIN};
    struct cuda_rig rig = cuda_rig_open();
    for (size_t k = 0; k < CZ_ARRAY_LEN(bad); k++) {
        struct problem p = problem_make(3, 9, false, 0, 0);
        p.labels[1] = bad[k];
        ck_assert(isnan(run(&rig, &p)));
        for (size_t i = 0; i < 27; i++) ck_assert(isnan(agree_get(&p.dz, i)) == (i / 9 == 1));
        problem_free(&p);
    }
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct cuda_rig rig = cuda_rig_open();
    struct problem p = problem_make(3, 9, false, 0, 0);
    float loss;
    struct cross_entropy_args a = host_args(&p, &loss); /* never read */
    a.V = 0;
    ck_fails(ops_cross_entropy(rig.ops, NULL, &a), CZ_INVALID);
    a = host_args(&p, &loss), a.N = -1;
    ck_fails(ops_cross_entropy(rig.ops, NULL, &a), CZ_INVALID);
    a = host_args(&p, NULL);
    ck_fails(ops_cross_entropy(rig.ops, NULL, &a), CZ_INVALID);
    a = host_args(&p, &loss), a.labels = NULL;
    ck_fails(ops_cross_entropy(rig.ops, NULL, &a), CZ_INVALID);
    problem_free(&p);
    cuda_rig_close(&rig);
}
END_TEST

/* Calls on two streams use one scratch: each is through with it before the other begins. */
START_TEST(two_streams_do_not_meet)
{
    enum { N_PAIRS = 8 };
    struct problem p[2];
    struct rig_buf z[2];
    struct cross_entropy_args a[2];
    float want[2], *losses[2], got[N_PAIRS];
    ck_assert_int_eq(setenv("CZERO_CUDA_SIM_STREAMS", "random:3", 1), 0);
    struct cuda_rig rig = cuda_rig_open();
    struct dev_stream *streams[2] = {rig.stream, NULL};
    struct ops truth = scalar_ops();
    ck_ok(rig.dev->ops->stream_create(rig.dev, &streams[1]));
    for (int i = 0; i < 2; i++) {
        p[i] = problem_make(40 + 9 * i, 70, false, 0, 0);
        a[i] = host_args(&p[i], &want[i]);
        a[i].dlogits = NULL;
        ck_ok(ops_cross_entropy(&truth, NULL, &a[i]));
        z[i] = rig_put(&rig, &p[i].z);
        a[i].logits = z[i].p;
        a[i].labels = rig_put_bytes(&rig, p[i].labels, (size_t)p[i].N * sizeof *p[i].labels);
        losses[i] = rig_put_bytes(&rig, (float[N_PAIRS]){0}, sizeof got);
    }
    for (int k = 0; k < 2 * N_PAIRS; k++) {
        a[k % 2].loss = losses[k % 2] + k / 2;
        ck_ok(ops_cross_entropy(rig.ops, streams[k % 2], &a[k % 2]));
    }
    for (int i = 0; i < 2; i++) {
        ck_ok(rig.dev->ops->stream_sync(rig.dev, streams[i]));
        rig_get_bytes(&rig, losses[i], got, sizeof got);
        for (int k = 0; k < N_PAIRS; k++)
            ck_assert_msg(fabsf(got[k] - want[i]) < 1e-4f, "stream %d, call %d: %g, not %g", i, k,
                          (double)got[k], (double)want[i]);
        rig_free(&rig, &z[i]), rig_free_bytes(&rig, losses[i], sizeof got);
        rig_free_bytes(&rig, (void *)(uintptr_t)a[i].labels, (size_t)p[i].N * sizeof *p[i].labels);
        problem_free(&p[i]);
    }
    rig.dev->ops->stream_destroy(rig.dev, streams[1]);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda cross_entropy", CUDA_ORDERED(it_agrees), long_and_many_rows_agree,
          alignment_does_not_show, two_streams_do_not_meet, no_label_gives_no_loss,
          special_logits_never_look_finite, a_label_outside_the_classes_shows,
          bad_arguments_are_refused)
