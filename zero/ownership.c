/* Which rank owns which elements: one run of each parameter per rank, in flat partitions (stages 1
 * and 2) and in chunks (stage 3) alike. Buckets, gathers, updates and single tensors are tables of
 * such runs, so that none of them needs to know the stage. */
#include "zero/zero_impl.h"

size_t zero_group_n_params(const struct zero *z, size_t group)
{
    return z->options.stage == 3 ? z->own.groups[group].shard.n_params
                                 : z->own.groups[group].flat.n_params;
}

size_t zero_group_param(const struct zero *z, size_t group, size_t pos)
{
    return z->options.stage == 3 ? z->own.groups[group].shard.params[pos].param_idx
                                 : z->own.groups[group].flat.params[pos].param_idx;
}

static struct zero_piece chunk_of(size_t numel, int world_size, int rank, size_t own_off)
{
    size_t begin = (size_t)rank * shard_chunk(numel, world_size);
    return (struct zero_piece){.param_off = begin < numel ? begin : numel,
                               .own_off = own_off,
                               .numel = shard_real(numel, world_size, rank)};
}

/* What of [off, off + numel) of a flat buffer is in rank's partition. */
static struct zero_piece slice_of(size_t off, size_t numel, size_t partition, int rank)
{
    size_t begin = (size_t)rank * partition, end = begin + partition;
    size_t lo = off > begin ? off : begin;
    size_t hi = off + numel < end ? off + numel : end;
    if (lo >= hi) return (struct zero_piece){.param_off = off < begin ? numel : 0};
    return (struct zero_piece){.param_off = lo - off, .own_off = lo - begin, .numel = hi - lo};
}

/* At stage 0 no rank owns more than another; the even share is what a reduction deals out. */
struct zero_piece zero_piece_of(const struct zero *z, size_t param_idx, int rank)
{
    const struct zero_options *o = &z->options;
    const struct zero_param *place = &z->own.params[param_idx];
    size_t numel = o->table->params[param_idx].numel;
    int w = o->comm->world_size;
    bool is_frozen = place->group == o->n_groups;
    if (o->stage == 3) return chunk_of(numel, w, rank, is_frozen ? 0 : place->off);
    if (o->stage == 0 || is_frozen) {
        struct zero_piece share = chunk_of(numel, w, rank, 0);
        share.own_off = (is_frozen ? 0 : place->off) + share.param_off;
        return share;
    }
    return slice_of(place->off, numel, z->own.groups[place->group].flat.partition, rank);
}

struct zero_piece zero_piece_mine(const struct zero *z, size_t param_idx)
{
    const struct zero_param *place = &z->own.params[param_idx];
    bool is_frozen = place->group == z->options.n_groups;
    if (z->options.stage == 3 || (z->options.stage > 0 && !is_frozen))
        return zero_piece_of(z, param_idx, z->options.comm->rank);
    return (struct zero_piece){.own_off = is_frozen ? 0 : place->off,
                               .numel = z->options.table->params[param_idx].numel};
}

/* The last parameter of a group whose chunk begins at or before `at`. */
static size_t shard_find(const struct zero *z, const struct shard_group *g, size_t at)
{
    size_t lo = 0, hi = g->n_params;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (z->own.params[g->params[mid].param_idx].off <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* For messages: which parameter has the element that a kernel complains of. */
bool zero_param_at(const struct zero *z, size_t group, size_t at, size_t *param_idx, size_t *elem)
{
    const struct zero_group *g = &z->own.groups[group];
    if (z->options.stage == 3) {
        if (g->shard.n_params == 0) return false;
        *param_idx = g->shard.params[shard_find(z, &g->shard, at)].param_idx;
    } else {
        size_t pos = flat_group_find(&g->flat, g->own_begin + at);
        if (pos == g->flat.n_params) return false;
        *param_idx = g->flat.params[pos].param_idx;
    }
    struct zero_piece mine = zero_piece_mine(z, *param_idx);
    if (at < mine.own_off || at - mine.own_off >= mine.numel) return false;
    *elem = mine.param_off + (at - mine.own_off);
    return true;
}
