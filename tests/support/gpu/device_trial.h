/* A rank with a GPU, for tests of the device communicator; and the random collectives of
 * tests/unit/comm/trial.h on its memory: sources are written, and results read, by work of a stream
 * without a wait in between. Everything returns a status: ranks are processes of their own, and a
 * device is opened after the fork. */
#ifndef CZ_TESTS_DEVICE_TRIAL_H
#define CZ_TESTS_DEVICE_TRIAL_H

#include "comm/device/device_comm.h"
#include "tests/support/ranks.h"
#include "tests/unit/comm/trial.h"

struct device_rank {
    struct comm *host, *comm;
    struct device *dev;
    struct dev_stream *stream;
};

static inline cz_status device_rank_start(struct device_rank *d, struct ranks *ranks, int rank)
{
    int n;
    memset(d, 0, sizeof *d);
    if (ranks)
        TRY(comm_shm_join(ranks->fd, rank, ranks->n, 20, &d->host));
    else
        TRY(comm_self_create(0, 1, &d->host));
    TRY(device_count("cuda", &n));
    TRY(device_open("cuda", comm_device_ordinal(d->host, n), &d->dev));
    return d->dev->ops->stream_create(d->dev, &d->stream);
}

static inline cz_status device_rank_connect(struct device_rank *d, enum device_comm_kind kind,
                                            size_t piece_nbytes)
{
    const struct device_comm_options options = {.kind = kind,
                                                .host = d->host,
                                                .device = d->dev,
                                                .stream = d->stream,
                                                .piece_nbytes = piece_nbytes};
    return comm_device_create(&options, &d->comm);
}

static inline void device_rank_end(struct device_rank *d)
{
    comm_destroy(d->comm);
    d->dev->ops->stream_destroy(d->dev, d->stream);
    device_close(d->dev);
    comm_destroy(d->host);
}

/* Device memory, and a second piece of it that data come from and go to in stream order. */
struct device_side {
    void *host; /* the trial's */
    void *memory, *aside;
    size_t nbytes;
};

static inline cz_status side_put(const struct device_rank *d, struct device_side *s, void *host,
                                 size_t nbytes)
{
    const struct device_ops *ops = d->dev->ops;
    *s = (struct device_side){.host = host, .nbytes = nbytes + 1};
    TRY(ops->mem_alloc(d->dev, s->nbytes, "memory", &s->memory));
    TRY(ops->mem_alloc(d->dev, s->nbytes, "memory aside", &s->aside));
    TRY(ops->copy(d->dev, d->stream, s->aside, host, nbytes));
    TRY(ops->stream_sync(d->dev, d->stream));
    return ops->copy(d->dev, d->stream, s->memory, s->aside, s->nbytes); /* not waited for */
}

static inline cz_status side_get(const struct device_rank *d, struct device_side *s)
{
    const struct device_ops *ops = d->dev->ops;
    TRY(ops->copy(d->dev, d->stream, s->aside, s->memory, s->nbytes));
    TRY(ops->copy(d->dev, d->stream, s->host, s->aside, s->nbytes - 1));
    return ops->stream_sync(d->dev, d->stream);
}

static inline void side_free(const struct device_rank *d, struct device_side *s)
{
    d->dev->ops->mem_free(d->dev, s->memory, s->nbytes);
    d->dev->ops->mem_free(d->dev, s->aside, s->nbytes);
}

struct device_trial {
    struct trial trial;
    struct device_side src, dst;
    bool src_is_device, dst_is_device;
};

static inline size_t trial_src_nbytes(const struct trial *t)
{
    size_t size = t->is_reduce ? dtype_size(t->reduce.src_dtype) : t->move.elem_nbytes;
    return t->table.src_numel * size;
}

/* One rank's mean may be a plain copy, which leaves a signalling NaN as it is, and a rank may
 * pretend to be one of several: comm_self decides. */
static inline cz_status want_of_one(const struct device_rank *d, struct trial *t)
{
    struct comm_reduce reduce = t->reduce;
    struct comm_move move = t->move;
    if (strcmp(d->host->ops->name, "self") != 0) return CZ_OK;
    memcpy(t->want, t->dst, t->dst_nbytes);
    reduce.dst = move.dst = t->want;
    return t->is_reduce ? comm_reduce(d->host, &reduce) : comm_move(d->host, &move);
}

/* By the seed both sides are the device's (half of the time), or one of them. */
static inline cz_status device_trial_begin(const struct device_rank *d, struct device_trial *t,
                                           uint64_t seed, size_t piece_nbytes)
{
    struct comm *comm = d->comm;
    trial_make(&t->trial, seed, comm->rank, comm->world_size,
               piece_nbytes / (size_t)comm->world_size);
    TRY(want_of_one(d, &t->trial));
    uint64_t sides = t->trial.in_place ? 0 : rng_mix64(seed) % 4;
    t->src_is_device = sides != 1;
    t->dst_is_device = sides != 2;
    void *src = t->trial.sources[comm->rank], *dst = t->trial.dst;
    if (t->src_is_device) TRY(side_put(d, &t->src, src, trial_src_nbytes(&t->trial)));
    if (t->src_is_device) src = t->src.memory;
    if (t->trial.in_place)
        dst = src;
    else if (t->dst_is_device)
        TRY(side_put(d, &t->dst, t->trial.dst, t->trial.dst_nbytes));
    if (!t->trial.in_place && t->dst_is_device) dst = t->dst.memory;
    t->trial.reduce.src = t->trial.move.src = src;
    t->trial.reduce.dst = t->trial.move.dst = dst;
    return trial_begin(&t->trial, comm);
}

/* Call once it has been waited for. */
static inline cz_status device_trial_finish(const struct device_rank *d, struct device_trial *t)
{
    if (t->trial.in_place)
        TRY(side_get(d, &t->src));
    else if (t->dst_is_device)
        TRY(side_get(d, &t->dst));
    if (t->src_is_device) side_free(d, &t->src);
    if (t->dst_is_device && !t->trial.in_place) side_free(d, &t->dst);
    return trial_finish(&t->trial, d->comm);
}

#endif
