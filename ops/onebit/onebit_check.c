/* Argument checks of the 1-bit family, for all devices. No elements: nothing is needed. */
#include "ops/onebit/onebit_impl.h"

static cz_status need(const char *op, const char *name, const void *p)
{
    return p ? CZ_OK : err_set(CZ_INVALID, 0, "%s: %s is missing", op, name);
}

static cz_status check_chunks(const char *op, size_t numel, size_t chunk_numel, size_t chunk_stride)
{
    if (chunk_numel == 0 || chunk_numel % 8 != 0)
        return err_set(CZ_INVALID, 0, "%s: chunks of %zu elements, not a multiple of 8", op,
                       chunk_numel);
    if (numel > chunk_numel && chunk_stride < chunk_numel / 8)
        return err_set(CZ_INVALID, 0, "%s: chunks of %zu bytes have a stride of %zu bytes", op,
                       chunk_numel / 8, chunk_stride);
    return CZ_OK;
}

cz_status onebit_check_feed(const struct onebit_feed_args *a)
{
    if (a->numel == 0) return CZ_OK;
    TRY(need("onebit_feed", "e", a->e));
    TRY(need("onebit_feed", "partials", a->partials));
    if (!a->g) return a->m ? need("onebit_feed", "g beside m", a->g) : CZ_OK;
    TRY(need("onebit_feed", "scalars", a->scalars));
    return ops_check_dtype("onebit_feed", a->g_dtype);
}

cz_status onebit_check_scale(const struct onebit_scale_args *a)
{
    TRY(need("onebit_scale", "scale", a->scale));
    return a->n_partials == 0 ? CZ_OK : need("onebit_scale", "partials", a->partials);
}

cz_status onebit_check_pack(const struct onebit_pack_args *a)
{
    if (a->numel == 0) return CZ_OK;
    TRY(check_chunks("onebit_pack", a->numel, a->chunk_numel, a->chunk_stride));
    if (a->numel % a->chunk_numel != 0)
        return err_set(CZ_INVALID, 0, "onebit_pack: %zu elements do not make chunks of %zu",
                       a->numel, a->chunk_numel);
    TRY(need("onebit_pack", "scale", a->scale));
    TRY(need("onebit_pack", "e", a->e));
    return need("onebit_pack", "bits", a->bits);
}

cz_status onebit_check_serve(const struct onebit_serve_args *a)
{
    if (a->numel == 0) return CZ_OK;
    if (a->n_ranks < 1 || a->numel % 8 != 0)
        return err_set(CZ_INVALID, 0, "onebit_serve: %zu elements of %d ranks", a->numel,
                       a->n_ranks);
    if (a->n_ranks > 1 && a->rank_stride < a->numel / 8)
        return err_set(CZ_INVALID, 0, "onebit_serve: ranks' %zu bytes have a stride of %zu bytes",
                       a->numel / 8, a->rank_stride);
    TRY(need("onebit_serve", "bits", a->bits));
    TRY(need("onebit_serve", "scales", a->scales));
    TRY(need("onebit_serve", "e", a->e));
    return need("onebit_serve", "partials", a->partials);
}

cz_status onebit_check_unpack(const struct onebit_unpack_args *a)
{
    if (a->begin > a->end)
        return err_set(CZ_INVALID, 0, "onebit_unpack: elements [%zu, %zu)", a->begin, a->end);
    if (a->begin == a->end) return CZ_OK;
    TRY(check_chunks("onebit_unpack", a->end, a->chunk_numel, a->chunk_stride));
    TRY(need("onebit_unpack", "bits", a->bits));
    TRY(need("onebit_unpack", "scales", a->scales));
    TRY(need("onebit_unpack", "x", a->x));
    if (!a->fresh) return CZ_OK;
    if (a->blend)
        return err_set(CZ_INVALID, 0, "onebit_unpack: fresh follows momenta, not a gradient");
    return need("onebit_unpack", "scalars", a->scalars);
}

cz_status onebit_check_momentum(const struct onebit_momentum_args *a)
{
    if (a->numel == 0) return CZ_OK;
    TRY(need("onebit_momentum", "g", a->g));
    TRY(need("onebit_momentum", "m", a->m));
    TRY(need("onebit_momentum", "scalars", a->scalars));
    return ops_check_dtype("onebit_momentum", a->g_dtype);
}

cz_status onebit_check_mask_make(const struct onebit_mask_make_args *a)
{
    if (a->numel == 0) return CZ_OK;
    TRY(need("onebit_mask_make", "v", a->v));
    return need("onebit_mask_make", "bits", a->bits);
}

cz_status onebit_check_mask_join(const struct onebit_mask_join_args *a)
{
    static const char op[] = "onebit_mask_join";
    if (a->nbytes == 0) return CZ_OK;
    if (a->n_ranks < 1 || (a->n_ranks > 1 && a->rank_stride < a->nbytes))
        return err_set(CZ_INVALID, 0, "%s: %d ranks' %zu bytes have a stride of %zu bytes", op,
                       a->n_ranks, a->nbytes, a->rank_stride);
    TRY(need(op, "bits", a->bits));
    return need(op, "out", a->out);
}

cz_status onebit_check_lamb_norms(const struct onebit_lamb_norms_args *a)
{
    static const char op[] = "onebit_lamb_norms";
    if (a->numel == 0 || a->n_segments == 0) return CZ_OK;
    TRY(need(op, "m", a->m));
    TRY(need(op, "v", a->v));
    TRY(need(op, "fresh", a->fresh));
    TRY(need(op, "p", a->p));
    TRY(need(op, "segments", a->segments));
    TRY(need(op, "sums", a->sums));
    TRY(need(op, "factors", a->factors));
    return lamb_check_segments(op, a->segments, a->n_segments, a->numel);
}

cz_status onebit_check_local(const struct zero_one_args *a)
{
    static const char op[] = "zero_one_local";
    if (a->numel == 0) return CZ_OK;
    TRY(need(op, "g", a->g));
    TRY(need(op, "m", a->m));
    TRY(need(op, "moved", a->moved));
    TRY(need(op, "v", a->v));
    TRY(need(op, "p", a->p));
    TRY(need(op, "out", a->out));
    TRY(need(op, "scalars", a->scalars));
    TRY(ops_check_dtype(op, a->g_dtype));
    return ops_check_dtype(op, a->out_dtype);
}

cz_status onebit_check_gather(const struct zero_one_args *a)
{
    if (a->numel == 0) return CZ_OK;
    TRY(need("zero_one_gather", "moved", a->moved));
    return need("zero_one_gather", "v", a->v);
}

cz_status onebit_check_settle(const struct zero_one_args *a)
{
    static const char op[] = "zero_one_settle";
    if (a->numel == 0) return CZ_OK;
    TRY(need(op, "m", a->m));
    TRY(need(op, "moved", a->moved));
    TRY(need(op, "v", a->v));
    TRY(need(op, "p", a->p));
    TRY(need(op, "out", a->out));
    TRY(need(op, "scalars", a->scalars));
    return ops_check_dtype(op, a->out_dtype);
}
