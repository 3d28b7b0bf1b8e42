/* Running an op on a CUDA device (real or simulated) beside the scalar row on the host.
 *
 * Tensors are agree_bufs (agree.h); rig_put() makes a device copy of one, guard bytes and start
 * offset included, rig_get() brings it back over the host's, so that agree_check() and
 * agree_guards() say what they say of host rows. Everything fails the running Check test with a
 * sentence. */
#ifndef CZ_TESTS_CUDA_RIG_H
#define CZ_TESTS_CUDA_RIG_H

#include "tests/support/agree.h"

struct cuda_rig {
    struct device *dev;
    struct ops *ops;           /* the device's kernels */
    struct dev_stream *stream; /* not the default one */
};

static inline struct cuda_rig cuda_rig_open(void)
{
    struct cuda_rig rig;
    ck_ok(device_open("cuda", 0, &rig.dev));
    ck_ok(ops_create(rig.dev, &rig.ops));
    ck_ok(rig.dev->ops->stream_create(rig.dev, &rig.stream));
    return rig;
}

static inline void cuda_rig_close(struct cuda_rig *rig)
{
    rig->dev->ops->stream_destroy(rig->dev, rig->stream);
    ops_destroy(rig->ops);
    device_close(rig->dev);
}

static inline void rig_wait(const struct cuda_rig *rig)
{
    ck_ok(rig->dev->ops->stream_sync(rig->dev, rig->stream));
}

/* A tensor's copy on the device. */
struct rig_buf {
    void *block, *p; /* p: the tensor, NULL for one that the test leaves out */
    size_t nbytes;   /* of the block */
};

static inline struct rig_buf rig_put(const struct cuda_rig *rig, const struct agree_buf *b)
{
    struct rig_buf d = {0};
    if (!b->block) return d;
    size_t lead = (size_t)((unsigned char *)b->p - b->block);
    d.nbytes = (lead + b->nbytes + AGREE_GUARD + 63) / 64 * 64;
    ck_ok(rig->dev->ops->mem_alloc(rig->dev, d.nbytes, "a tensor", &d.block));
    ck_ok(rig->dev->ops->copy(rig->dev, rig->stream, d.block, b->block, d.nbytes));
    rig_wait(rig);
    d.p = (unsigned char *)d.block + lead;
    return d;
}

/* After everything on the rig's stream. */
static inline void rig_get(const struct cuda_rig *rig, const struct rig_buf *d,
                           const struct agree_buf *b)
{
    if (!d->block) return;
    ck_ok(rig->dev->ops->copy(rig->dev, rig->stream, b->block, d->block, d->nbytes));
    rig_wait(rig);
}

static inline void rig_free(const struct cuda_rig *rig, struct rig_buf *d)
{
    rig->dev->ops->mem_free(rig->dev, d->block, d->nbytes);
    *d = (struct rig_buf){0};
}

/* Plain bytes: ids, masks, scalars. */
static inline void *rig_put_bytes(const struct cuda_rig *rig, const void *src, size_t nbytes)
{
    void *p;
    ck_ok(rig->dev->ops->mem_alloc(rig->dev, nbytes, "bytes", &p));
    ck_ok(rig->dev->ops->copy(rig->dev, rig->stream, p, src, nbytes));
    rig_wait(rig);
    return p;
}

/* Memory as others leave it, every byte 0xFF (NaN in every dtype): new memory is zeros, which would
 * pass for what a kernel forgot to write. */
static inline void *rig_dirty(const struct cuda_rig *rig, size_t nbytes)
{
    void *dirt = malloc(nbytes + 1);
    ck_assert_ptr_nonnull(dirt);
    memset(dirt, 0xFF, nbytes);
    void *p = rig_put_bytes(rig, dirt, nbytes);
    free(dirt);
    return p;
}

static inline void rig_get_bytes(const struct cuda_rig *rig, const void *p, void *dst,
                                 size_t nbytes)
{
    ck_ok(rig->dev->ops->copy(rig->dev, rig->stream, dst, p, nbytes));
    rig_wait(rig);
}

static inline void rig_free_bytes(const struct cuda_rig *rig, void *p, size_t nbytes)
{
    rig->dev->ops->mem_free(rig->dev, p, nbytes);
}

#endif
