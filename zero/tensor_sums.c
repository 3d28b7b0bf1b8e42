/* Per-tensor sums of tensors that are cut over ranks. Each rank adds up an even share of the
 * tensors: owners of elements of these bring their parts of the sums, and the totals go to all
 * ranks. Sums of shards are exact (ops/lamb/lamb.h), so totals are those of the whole tensor. */
#include "zero/zero_impl.h"

#include <stdlib.h>
#include <string.h>

/* Tensors of a group by their place in it. */
struct run {
    size_t begin, end;
};

/* What a rank adds up. */
static struct run dealt_to(size_t n_tensors, int world_size, int rank)
{
    size_t w = (size_t)world_size, r = (size_t)rank;
    return (struct run){n_tensors * r / w, n_tensors * (r + 1) / w};
}

/* From the first to the last tensor of which a rank owns elements: at stages 1 and 2 few of them,
 * at stage 3 nearly all. */
static struct run held_by(const struct zero *z, size_t group, int rank)
{
    size_t n = zero_group_n_params(z, group);
    struct run held = {n, 0};
    for (size_t pos = 0; pos < n; pos++) {
        if (zero_piece_of(z, zero_group_param(z, group, pos), rank).numel == 0) continue;
        if (held.begin == n) held.begin = pos;
        held.end = pos + 1;
    }
    return held;
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* What each rank holds of the tensors that another one adds up. */
static void span_brought(const struct zero *z, size_t group, const struct run *held)
{
    struct zero_sums *s = &z->own.groups[group].sums;
    int w = z->options.comm->world_size;
    for (int to = 0; to < w; to++) {
        struct run dealt = dealt_to(zero_group_n_params(z, group), w, to);
        size_t used = 0;
        for (int from = 0; from < w; from++) {
            size_t lo = held[from].begin > dealt.begin ? held[from].begin : dealt.begin;
            size_t hi = held[from].end < dealt.end ? held[from].end : dealt.end;
            if (from == to || lo >= hi) continue;
            s->spans[s->n_brought++] = (struct comm_span){
                .src_off = lo, .dst_off = used, .numel = hi - lo, .owner = from, .to = to};
            used += hi - lo;
        }
        if (to == z->options.comm->rank) s->brought_numel = used;
    }
    s->n_spans = s->n_brought;
}

cz_status zero_tensor_sums_init(struct zero *z, size_t group)
{
    size_t w = (size_t)z->options.comm->world_size, n = zero_group_n_params(z, group);
    struct zero_sums *s = &z->own.groups[group].sums;
    if (z->options.stage == 0 || w == 1 || n == 0) return CZ_OK;
    struct run *held = calloc(w, sizeof *held);
    s->spans = calloc(w * w, sizeof *s->spans); /* w·(w − 1) brought and w shared */
    if (!held || !s->spans) {
        free(held);
        return err_set(CZ_NOMEM, 0, "no memory to add up %zu tensors over %zu ranks", n, w);
    }
    for (size_t r = 0; r < w; r++) held[r] = held_by(z, group, (int)r);
    span_brought(z, group, held);
    free(held);
    for (size_t r = 0; r < w; r++) { /* the totals, from the ranks that have added them up */
        struct run dealt = dealt_to(n, (int)w, (int)r);
        s->spans[s->n_spans++] = (struct comm_span){.src_off = dealt.begin,
                                                    .dst_off = dealt.begin,
                                                    .numel = dealt.end - dealt.begin,
                                                    .owner = (int)r,
                                                    .to = COMM_ALL};
    }
    size_t sent = 0;
    for (size_t i = 0; i < s->n_spans; i++)
        if (s->spans[i].owner == z->options.comm->rank)
            sent += s->spans[i].numel * (s->spans[i].to == COMM_ALL ? w - 1 : 1);
    z->figures.sums_nbytes += sent * sizeof(struct lamb_sums);
    z->figures.n_sums += 2;
    return zero_block_take(z, ZERO_SMALL, s->brought_numel * sizeof(struct lamb_sums), DTYPE_U8,
                           &s->brought_off);
}

/* ---- a step ---------------------------------------------------------------------------------- */

cz_status zero_tensor_sums_add(struct zero *z, size_t group)
{
    const struct zero_options *o = &z->options;
    const struct zero_sums *s = &z->own.groups[group].sums;
    struct lamb_sums *sums = zero_group_sums(z, group);
    if (s->n_spans == 0) return CZ_OK;
    TRY(zero_sync(z));
    const struct comm_move bring = {.src = sums,
                                    .dst = z->mem.blocks[ZERO_SMALL] + s->brought_off,
                                    .elem_nbytes = sizeof *sums,
                                    .spans = s->spans,
                                    .n_spans = s->n_brought};
    const struct comm_move share = {.src = sums,
                                    .dst = sums,
                                    .elem_nbytes = sizeof *sums,
                                    .spans = s->spans + s->n_brought,
                                    .n_spans = s->n_spans - s->n_brought};
    TRY(comm_move(o->comm, &bring));
    /* What the others have brought of this rank's tensors, in rank order. */
    const struct lamb_sums *brought = (const void *)(z->mem.blocks[ZERO_SMALL] + s->brought_off);
    for (size_t i = 0; i < s->n_brought; i++)
        for (size_t k = 0; s->spans[i].to == o->comm->rank && k < s->spans[i].numel; k++)
            lamb_sums_add(&sums[s->spans[i].src_off + k], &brought[s->spans[i].dst_off + k]);
    return comm_move(o->comm, &share);
}

cz_status zero_tensor_sums_after(struct zero *z, size_t group, cz_status mine)
{
    struct err first;
    if (mine == CZ_OK) return zero_tensor_sums_add(z, group);
    err_capture(&first);
    (void)zero_tensor_sums_add(z, group); /* what the others have counted on has been sent */
    return err_restore(&first);
}

/* ---- sums and ratios on a GPU ----
 *
 * Its kernels add to sums of their own in its memory. With a share of the states on the GPU both
 * sides have tiles of a tensor: the GPU's sums then join the host's, exactly and in any order. */

struct lamb_sums *zero_device_sums(const struct zero *z, size_t group)
{
    if (!z->options.on_gpu) return zero_group_sums(z, group);
    return (struct lamb_sums *)(void *)(z->mem.blocks[ZERO_STEP] +
                                        z->own.groups[group].gpu_sums_off);
}

float *zero_device_ratios(const struct zero *z, size_t group)
{
    return (float *)(void *)(z->mem.blocks[ZERO_STEP] + z->own.groups[group].gpu_ratios_off);
}

cz_status zero_sums_clear(struct zero *z, size_t group)
{
    struct device *d = zero_device(z);
    size_t nbytes = zero_group_n_params(z, group) * sizeof(struct lamb_sums);
    memset(zero_group_sums(z, group), 0, nbytes);
    if (!z->options.on_gpu) return CZ_OK;
    return d->ops->fill_zero(d, z->options.stream, zero_device_sums(z, group), nbytes);
}

cz_status zero_sums_join(struct zero *z, size_t group)
{
    struct lamb_sums *sums = zero_group_sums(z, group), *theirs = (void *)z->mem.scratch;
    const struct lamb_sums *there = zero_device_sums(z, group);
    size_t n = zero_group_n_params(z, group), most = ZERO_SCRATCH_NBYTES / sizeof *sums;
    for (size_t at = 0, k; z->options.on_gpu && at < n; at += k) {
        k = n - at < most ? n - at : most;
        TRY(zero_copy(z, z->options.stream, theirs, there + at, k * sizeof *sums));
        TRY(zero_sync(z));
        for (size_t i = 0; i < k; i++) lamb_sums_add(&sums[at + i], &theirs[i]);
    }
    return CZ_OK;
}

cz_status zero_ratios_send(struct zero *z, size_t group)
{
    if (!z->options.on_gpu) return CZ_OK;
    return zero_copy(z, z->options.stream, zero_device_ratios(z, group),
                     zero_group_ratios(z, group), zero_group_n_params(z, group) * sizeof(float));
}
