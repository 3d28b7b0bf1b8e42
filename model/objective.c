/* Objectives run on the host: few numbers beside what made them. */
#include "model/objective.h"
#include "ops/cross_entropy/cross_entropy.h"


#include <math.h>

/* ---- asking --------------------------------------------------------------------------------- */

static cz_status ask(const struct objective *o, const struct layer_args *a, int64_t n, int64_t k,
                     const float *values, float dloss, float *gradients, float *loss)
{
    struct device *device = ops_device(a->ops);
    const size_t numel = (size_t)(n * k), nbytes = numel * sizeof(float);
    const bool direct = device->ops->kind == DEVICE_HOST;
    struct objective_call call = {.batch = batch_on_host(a->batch),
                                  .n = n,
                                  .k = k,
                                  .values = direct ? values : o->host,
                                  .dloss = dloss,
                                  .gradients = direct || !gradients ? gradients : o->host + numel};
    if (!direct) {
        TRY(device->ops->copy(device, a->stream, o->host, values, nbytes));
        TRY(device->ops->stream_sync(device, a->stream));
    }
    TRY(o->run(o->user, &call));
    *loss = call.loss;
    if (direct || !gradients) return CZ_OK;
    return device->ops->copy(device, a->stream, gradients, call.gradients, nbytes);
}

static cz_status put_loss(const struct layer_args *a, float value, float *loss)
{
    struct device *device = ops_device(a->ops);
    TRY(device->ops->copy(device, a->stream, loss, &value, sizeof value));
    return device->ops->stream_sync(device, a->stream); /* `value` ends here */
}

cz_status objective_ask(const struct objective *o, const struct layer_args *a, int64_t n, int64_t k,
                        const float *values, float *gradients, float *loss)
{
    float value;
    TRY(ask(o, a, n, k, values, a->dloss, gradients, &value));
    return put_loss(a, value, loss);
}

/* Two calls: log-probabilities first, then gradients with weights that follow from all of them. A
 * call for gradients alone (no_din) finds the weights of the call before it. */
cz_status objective_ce_head(const struct layer_args *a, struct ce_head_args *ce)
{
    float *weights = a->log_probs ? a->log_probs + ce->N : NULL, loss = 0;
    if (!a->objective) {
        ce->log_probs = a->log_probs;
        return ops_ce_head(a->ops, a->stream, ce);
    }
    if (!a->no_din) {
        struct ce_head_args first = *ce;
        first.log_probs = a->log_probs;
        first.dx = first.dw = first.dbias = first.dz = NULL;
        TRY(ops_ce_head(a->ops, a->stream, &first));
        TRY(ask(a->objective, a, ce->N, 1, a->log_probs, -a->dloss, weights, &loss));
    }
    ce->loss_weights = weights;
    ce->divisor = ce->dloss = 1;
    TRY(ops_ce_head(a->ops, a->stream, ce));
    return a->no_din ? CZ_OK : put_loss(a, loss, ce->loss);
}

/* ---- targets -------------------------------------------------------------------------------- */

static double squared_error(double z, double t, double *d)
{
    *d = 2.0 * (z - t);
    return (z - t) * (z - t);
}

static double binary(double z, double t, double *d)
{
    const double e = exp(-fabs(z)); /* no overflow */
    *d = (z >= 0 ? 1.0 : e) / (1.0 + e) - t;
    return fmax(z, 0) - z * t + log1p(e);
}

static double weight_of(const struct batch *batch, int64_t K, int64_t b)
{
    if (isnan(batch->targets[b * K])) return 0;
    return batch->loss_weights ? (double)batch->loss_weights[b] : 1.0;
}

/* In fp64 and one order: the same on any number of threads. */
static cz_status mean_over(struct objective_call *c, double (*loss)(double, double, double *))
{
    const struct batch *batch = c->batch;
    double divisor = (double)batch->loss_divisor, sum = 0;
    for (int64_t b = 0; b < c->n && batch->loss_divisor == 0; b++)
        divisor += weight_of(batch, c->k, b);
    for (int64_t b = 0; b < c->n; b++) {
        const double weight = weight_of(batch, c->k, b);
        const double part = weight > 0 && divisor > 0 ? weight / (divisor * (double)c->k) : 0;
        for (int64_t i = b * c->k; i < (b + 1) * c->k; i++) {
            double d = 0;
            if (part > 0) sum += part * loss((double)c->values[i], (double)batch->targets[i], &d);
            if (c->gradients) c->gradients[i] = (float)((double)c->dloss * part * d);
        }
    }
    c->loss = (float)sum;
    return CZ_OK;
}

static cz_status run_squared_error(const void *user, struct objective_call *call)
{
    (void)user;
    return mean_over(call, squared_error);
}

static cz_status run_binary(const void *user, struct objective_call *call)
{
    (void)user;
    return mean_over(call, binary);
}

const struct objective objective_squared_error = {.run = run_squared_error},
                       objective_binary = {.run = run_binary};
