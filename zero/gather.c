/* After an update at stages 1 and 2: every rank keeps all parameters, and has updated its partition
 * of them. A group's partitions, side by side, are its parameters, so one all-gather per group
 * brings the others'. (At stage 3 parameters stay split; only those that stay in the window
 * follow.)
 */
#include "zero/zero_impl.h"

static bool is_gathered(const struct zero *z)
{
    return z->options.stage > 0 && z->options.comm->world_size > 1 && !z->window.is_split;
}

bool zero_gathers_through_ring(const struct zero *z)
{
    return is_gathered(z) && z->options.swap.params;
}

void zero_gather_count(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_figures *f = &z->figures;
    size_t others = (size_t)o->comm->world_size - 1;
    size_t own_nbytes = f->numel_own * dtype_size(o->dtype);
    if (!is_gathered(z)) return;
    f->update_nbytes = own_nbytes * others;
    f->n_updates = o->n_groups;
    if (!o->swap.params) return;
    f->update_read_nbytes += own_nbytes;
    f->update_written_nbytes += own_nbytes * others;
}

/* In place: each rank's partition is already where the others expect it. */
static cz_status gather_group(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    size_t nbytes = z->own.groups[g].own_numel * dtype_size(o->dtype);
    unsigned char *flat = zero_group_params(z, g);
    const struct zero_range range = {.memory = flat,
                                     .on_gpu = zero_is_on_gpu(z, ZERO_PARAMS),
                                     .nbytes = nbytes * (size_t)o->comm->world_size};
    if (nbytes == 0) return CZ_OK;
    TRY(zero_claim(z, &range));
    return comm_all_gather(o->comm, flat + (size_t)o->comm->rank * nbytes, flat, nbytes);
}

/* Each rank's run [off, off + nbytes) of its partition, in `all` in rank order, except our own. */
static cz_status write_others(struct zero *z, size_t g, size_t off, size_t nbytes,
                              const unsigned char *all)
{
    const struct comm *comm = z->options.comm;
    size_t partition = z->own.groups[g].own_numel * dtype_size(z->options.dtype);
    for (int r = 0; r < comm->world_size; r++) {
        const struct zero_range range = {
            .off = z->own.groups[g].param_swap + (size_t)r * partition + off, .nbytes = nbytes};
        if (r == comm->rank) continue;
        TRY(zero_claim(z, &range));
        TRY(swap_write(z->mem.swap, range.off, nbytes, all + (size_t)r * nbytes));
    }
    return CZ_OK;
}

/* Parameters in the swap file: piece by piece through the ring's memory, which is free between
 * sweeps. A rank that cannot read or write tells the others before the next collective. */
static cz_status gather_swapped_group(struct zero *z, size_t g)
{
    struct comm *comm = z->options.comm;
    size_t size = dtype_size(z->options.dtype), w = (size_t)comm->world_size;
    size_t partition = z->own.groups[g].own_numel * size;
    size_t most = z->sweep.n_slots * z->sweep.ring_slot_nbytes / w / size * size;
    unsigned char *all = z->mem.blocks[ZERO_RING], *mine;
    uint64_t own = z->own.groups[g].param_swap + (size_t)comm->rank * partition;
    for (size_t off = 0, n; off < partition; off += n) {
        n = partition - off < most ? partition - off : most;
        mine = all + (size_t)comm->rank * n;
        TRY(comm_agree(comm, swap_read(z->mem.swap, own + off, n, mine)));
        TRY(comm_all_gather(comm, mine, all, n));
        TRY(comm_agree(comm, write_others(z, g, off, n, all)));
    }
    return CZ_OK;
}

cz_status zero_gather(struct zero *z)
{
    if (!z->sweep.params_changed || z->late.is_pending) return CZ_OK;
    if (zero_gathers_through_ring(z)) ring_forget(z->sweep.ring);
    for (size_t g = 0; is_gathered(z) && g < z->options.n_groups; g++)
        TRY(z->options.swap.params ? gather_swapped_group(z, g) : gather_group(z, g));
    if (z->window.is_used) TRY(zero_window_residents(z, true));
    return zero_gpu_settle(z);
}
