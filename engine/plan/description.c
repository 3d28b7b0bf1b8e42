/* Questions that a description answers, and its end. */
#include "engine/plan/description.h"

#include "optim/onebit.h"

#include <stdlib.h>
#include <string.h>

bool description_checks_overflow(const struct ds_config *c)
{
    return !c->bf16.enabled || c->bf16.check_grad_overflow;
}

bool description_updates_first(const struct description *d)
{
    const struct ds_config *c = d->config;
    return !description_checks_overflow(c) && !(c->gradient_clipping > 0) &&
           !onebit_of(d->groups, d->n_groups);
}

bool description_needs_norm(const struct description *d)
{
    return d->config->zero.compute_grad_norm || d->config->gradient_clipping > 0;
}

/* The 1-bit family's 16-bit weights run ahead of the masters between exchanges; what is saved is
 * the rounded master. */
bool description_rounds_masters(const struct description *d)
{
    const struct optim_hyper *onebit = onebit_of(d->groups, d->n_groups);
    return onebit && optim_moves_alone(onebit) && d->dtype != DTYPE_F32;
}

bool description_unpads(const struct description *d)
{
    return model_unpads(d->model) && !d->plan.on_cuda;
}

/* A GPU's running work ends in memory that is freed next; its result no longer matters. */
void description_end_work(struct description *d)
{
    if (d->device && d->device->ops->kind != DEVICE_HOST) {
        struct err error;
        err_capture(&error);
        if (d->stream) (void)d->device->ops->stream_sync(d->device, d->stream);
        if (d->copies) (void)d->device->ops->stream_sync(d->device, d->copies);
        err_restore(&error);
    }
    zero_destroy(d->zero);
    d->zero = NULL;
}

void description_free(struct description *d)
{
    description_end_work(d);
    chain_destroy(d->chain);
    free(d->profile);
    free(d->units);
    free(d->tied_params);
    free(d->visits);
    free(d->grad_numel);
    free(d->groups);
    free(d->group_of);
    free(d->frozen_at);
    free(d->sources);
    if (d->host_comm) { /* before the device goes */
        comm_destroy(d->comm);
        d->comm = d->host_comm;
    }
    if (d->stream) d->device->ops->stream_destroy(d->device, d->stream);
    if (d->copies) d->device->ops->stream_destroy(d->device, d->copies);
    const bool borrows = d->request && d->request->host_ops && d->ops == d->request->host_ops;
    if (!borrows) {
        ops_destroy(d->ops);
        device_close(d->device);
    }
    ops_destroy(d->host_ops);
    device_close(d->host);
    config_free(d->config);
    if (d->owns_comm) comm_destroy(d->comm);
    memset(d, 0, sizeof *d);
}
