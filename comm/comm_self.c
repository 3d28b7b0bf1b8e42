/* The communicator of one rank: the readable definition of every collective, and the test double
 * that stands for rank r of W. */
#include "comm/comm.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static float load(const void *p, size_t i, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case DTYPE_F16: return f16_to_f32(((const uint16_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}

static void store(void *p, size_t i, enum dtype dtype, float x)
{
    switch (dtype) {
    case DTYPE_BF16: ((uint16_t *)p)[i] = f32_to_bf16(x); break;
    case DTYPE_F16: ((uint16_t *)p)[i] = f32_to_f16(x); break;
    default: ((float *)p)[i] = x; break;
    }
}

static float round_to(float x, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16: return bf16_to_f32(f32_to_bf16(x));
    case DTYPE_F16: return f16_to_f32(f32_to_f16(x));
    default: return x;
    }
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

/* dst = c(scale · Σ c(src)), all ranks sending the same. */
static cz_status reduce(struct comm *comm, const struct comm_reduce *a, const void *src,
                        struct comm_ticket *ticket)
{
    ticket->id = 0;
    if (!is_float(a->dtype) || !is_float(a->wire))
        return err_set(CZ_INVALID, 0, "reductions take fp32, bf16 and fp16, not %s over %s",
                       dtype_name(a->dtype), dtype_name(a->wire));
    bool is_copy =
        comm->world_size == 1 && a->scale == 1.0f && (a->wire == a->dtype || a->wire == DTYPE_F32);
    if (is_copy) {
        if (a->dst != src) memmove(a->dst, src, a->numel * dtype_size(a->dtype));
        return CZ_OK;
    }
#pragma omp parallel for schedule(static) if (a->numel > 65536)
    for (size_t i = 0; i < a->numel; i++) {
        float x = round_to(load(src, i, a->dtype), a->wire);
        float sum = 0;
        for (int r = 0; r < comm->world_size; r++) sum += x;
        store(a->dst, i, a->dtype, round_to(sum * a->scale, a->wire));
    }
    return CZ_OK;
}

static cz_status self_all_reduce(struct comm *comm, const struct comm_reduce *a,
                                 struct comm_ticket *ticket)
{
    return reduce(comm, a, a->src, ticket);
}

static cz_status self_reduce_scatter(struct comm *comm, const struct comm_reduce *a,
                                     struct comm_ticket *ticket)
{
    size_t piece;
    TRY(size_mul(a->numel, dtype_size(a->dtype), &piece));
    return reduce(comm, a, (const char *)a->src + (size_t)comm->rank * piece, ticket);
}

static cz_status self_all_gather(struct comm *comm, const struct comm_move *a,
                                 struct comm_ticket *ticket)
{
    ticket->id = 0;
    char *mine = (char *)a->dst + (size_t)comm->rank * a->nbytes;
    if (mine != a->src) memmove(mine, a->src, a->nbytes);
    return CZ_OK;
}

/* Every rank sends the same, so each piece received is the piece meant for this rank. */
static cz_status self_all_to_all(struct comm *comm, const struct comm_move *a,
                                 struct comm_ticket *ticket)
{
    ticket->id = 0;
    const char *mine = (const char *)a->src + (size_t)comm->rank * a->nbytes;
    for (int r = 0; r < comm->world_size; r++)
        memmove((char *)a->dst + (size_t)r * a->nbytes, mine, a->nbytes);
    return CZ_OK;
}

static cz_status self_broadcast(struct comm *comm, const struct comm_move *a,
                                struct comm_ticket *ticket)
{
    (void)comm;
    ticket->id = 0;
    if (a->dst != a->src) memmove(a->dst, a->src, a->nbytes);
    return CZ_OK;
}

static cz_status self_gather(struct comm *comm, const struct comm_move *a,
                             struct comm_ticket *ticket)
{
    ticket->id = 0;
    if (comm->rank != a->root) return CZ_OK;
    return self_all_gather(comm, a, ticket);
}

static cz_status self_wait(struct comm *comm, struct comm_ticket ticket)
{
    (void)comm;
    (void)ticket;
    return CZ_OK;
}

static cz_status self_barrier(struct comm *comm)
{
    (void)comm;
    return CZ_OK;
}

static cz_status self_agree(struct comm *comm, cz_status mine, cz_status *worst, int *rank)
{
    *worst = mine;
    *rank = comm->rank;
    return CZ_OK;
}

static void self_destroy(struct comm *comm)
{
    free(comm);
}

static const struct comm_ops self_ops = {
    .name = "self",
    .all_reduce = self_all_reduce,
    .reduce_scatter = self_reduce_scatter,
    .all_gather = self_all_gather,
    .all_to_all = self_all_to_all,
    .broadcast = self_broadcast,
    .gather = self_gather,
    .wait = self_wait,
    .barrier = self_barrier,
    .agree = self_agree,
    .destroy = self_destroy,
};

cz_status comm_self_create(int rank, int world_size, struct comm **out)
{
    *out = NULL;
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %d in a world of %d", rank, world_size);
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    comm->ops = &self_ops;
    comm->rank = rank;
    comm->world_size = world_size;
    comm->n_ranks_host = 1;
    *out = comm;
    return CZ_OK;
}
