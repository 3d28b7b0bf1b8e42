/* Claim: on a device whose memory the host does not read, an objective gets its values through the
 * host's space, and its gradients and loss arrive in the device's memory; it runs after the values
 * have come; a device call that fails is the result, and a failed wait runs no objective. */
#include "model/objective.h"
#include "ops/table_impl.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

enum { N = 2, K = 3, QUEUE = 8 };

/* ---- a device that copies when it is waited for ---------------------------------------------- */

static struct {
    void *dst;
    const void *src;
    size_t nbytes;
} queue[QUEUE];
static int n_queued, n_calls, fails_at, n_runs;

static bool hit(void)
{
    return n_calls++ == fails_at;
}

static cz_status copy(struct device *d, struct dev_stream *stream, void *dst, const void *src,
                      size_t nbytes)
{
    (void)d, (void)stream;
    if (hit()) return err_set(CZ_CUDA, 0, "this call fails");
    ck_assert_int_lt(n_queued, QUEUE);
    queue[n_queued].dst = dst;
    queue[n_queued].src = src;
    queue[n_queued++].nbytes = nbytes;
    return CZ_OK;
}

static cz_status stream_sync(struct device *d, struct dev_stream *stream)
{
    (void)d, (void)stream;
    if (hit()) return err_set(CZ_CUDA, 0, "this call fails");
    for (int i = 0; i < n_queued; i++) memcpy(queue[i].dst, queue[i].src, queue[i].nbytes);
    n_queued = 0;
    return CZ_OK;
}

static const struct device_ops device_ops = {
    .name = "late", .kind = DEVICE_CUDA, .copy = copy, .stream_sync = stream_sync};
static struct device device = {.ops = &device_ops};

/* ---- an objective ---------------------------------------------------------------------------- */

static float values[N * K], gradients[N * K], loss, host[2 * N * K];

/* loss = Σ values², and its gradients times dloss. */
static cz_status squares(const void *user, struct objective_call *call)
{
    (void)user;
    n_runs++;
    ck_assert_ptr_eq(call->values, host);
    ck_assert_mem_eq(call->values, values, sizeof values);
    ck_assert_int_eq(call->n, N);
    ck_assert_int_eq(call->k, K);
    call->loss = 0;
    for (int i = 0; i < N * K; i++) {
        call->loss += call->values[i] * call->values[i];
        if (call->gradients) call->gradients[i] = 2 * call->dloss * call->values[i];
    }
    return CZ_OK;
}

static cz_status ask(bool wants_gradients)
{
    static struct ops ops = {.device = &device};
    static const struct batch batch = {.B = N, .T = 1};
    const struct layer_args args = {.ops = &ops, .batch = &batch, .dloss = 0.5f};
    const struct objective objective = {.run = squares, .host = host};
    for (int i = 0; i < N * K; i++) values[i] = (float)(i + 1), gradients[i] = -1;
    for (int i = 0; i < 2 * N * K; i++) host[i] = NAN;
    n_queued = n_calls = n_runs = 0;
    loss = -1;
    return objective_ask(&objective, &args, N, K, values, wants_gradients ? gradients : NULL,
                         &loss);
}

START_TEST(values_and_gradients_travel)
{
    fails_at = -1;
    for (int wants = 0; wants < 2; wants++) {
        ck_ok(ask(wants));
        ck_assert_int_eq(n_runs, 1);
        ck_assert_int_eq(n_queued, 0); /* the loss has arrived, and all before it */
        ck_assert(loss == 91);
        for (int i = 0; i < N * K; i++) ck_assert(gradients[i] == (wants ? values[i] : -1));
    }
}
END_TEST

START_TEST(a_call_that_fails_is_the_result)
{
    fails_at = -1;
    ck_ok(ask(true));
    const int n = n_calls;
    ck_assert_int_eq(n, 5); /* values, a wait, gradients, the loss, a wait */
    for (fails_at = 0; fails_at < n; fails_at++) {
        ck_assert_int_eq(ask(true), CZ_CUDA);
        ck_assert_int_eq(n_runs, fails_at > 1);
    }
}
END_TEST

TEST_MAIN("model/objective", values_and_gradients_travel, a_call_that_fails_is_the_result)
