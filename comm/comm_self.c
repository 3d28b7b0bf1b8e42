/* The communicator of one rank: the readable definition of both primitives, against which the
 * others are tested; and a test double that acts as rank r of W, as if all ranks sent the same. */
#include "comm/comm_impl.h"

#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

static float round_to(float x, enum cz_dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16: return bf16_to_f32(f32_to_bf16(x));
    case DTYPE_F16: return f16_to_f32(f32_to_f16(x));
    default: return x;
    }
}

/* dst = c(scale · Σ c(src)) (+ dst), all ranks sending the same. c() rounds to the wire's dtype;
 * sums are in fp32 and in rank order, as the transports must do them. */
static void reduce_span(const struct comm *comm, const struct comm_reduce *a,
                        const struct comm_span *s)
{
#pragma omp parallel for schedule(static) if (s->numel > 65536 && threads_count() > 1)
    for (size_t i = 0; i < s->numel; i++) {
        float x = round_to(dtype_get(a->src, s->src_off + i, a->src_dtype), a->wire);
        float sum = 0;
        for (int r = 0; r < comm->world_size; r++) sum += x;
        float y = round_to(sum * a->scale, a->wire);
        if (a->accumulate) y += dtype_get(a->dst, s->dst_off + i, a->dst_dtype);
        dtype_put(a->dst, s->dst_off + i, a->dst_dtype, y);
    }
}

/* The mean of one rank's values, in a dtype that can hold them, is the values themselves. */
static bool is_identity(const struct comm *comm, const struct comm_reduce *a)
{
    return comm->world_size == 1 && a->scale == 1.0f && !a->accumulate &&
           a->src_dtype == a->dst_dtype && (a->wire == a->src_dtype || a->wire == DTYPE_F32);
}

static cz_status self_reduce(struct comm *comm, const struct comm_reduce *a,
                             struct comm_ticket *ticket)
{
    (void)ticket;
    size_t size = dtype_size(a->dst_dtype);
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        if (s->owner != comm->rank && !a->all) continue;
        if (!is_identity(comm, a)) {
            reduce_span(comm, a, s);
            continue;
        }
        const char *src = (const char *)a->src + s->src_off * size;
        char *dst = (char *)a->dst + s->dst_off * size;
        if (dst != src) memmove(dst, src, s->numel * size);
    }
    return CZ_OK;
}

static cz_status self_move(struct comm *comm, const struct comm_move *a, struct comm_ticket *ticket)
{
    (void)ticket;
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        if (s->owner != comm->rank || (s->to != comm->rank && s->to != COMM_ALL)) continue;
        const char *src = (const char *)a->src + s->src_off * a->elem_nbytes;
        char *dst = (char *)a->dst + s->dst_off * a->elem_nbytes;
        if (dst != src) memmove(dst, src, s->numel * a->elem_nbytes);
    }
    return CZ_OK;
}

static cz_status self_wait(struct comm *comm, struct comm_ticket ticket)
{
    (void)comm;
    (void)ticket;
    return CZ_OK;
}

static void self_destroy(struct comm *comm)
{
    comm_fini(comm);
    free(comm);
}

static const struct comm_ops self_ops = {
    .name = "self",
    .reduce = self_reduce,
    .move = self_move,
    .wait = self_wait,
    .destroy = self_destroy,
};

cz_status comm_self_create(int rank, int world_size, struct comm **out)
{
    *out = NULL;
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %d in a world of %d", rank, world_size);
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    comm->n_ranks_host = 1;
    if (comm_init(comm, &self_ops, rank, world_size) != CZ_OK) {
        self_destroy(comm);
        return CZ_NOMEM;
    }
    *out = comm;
    return CZ_OK;
}
