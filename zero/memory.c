#include "zero/zero_impl.h"

#include "base/size.h"

cz_status zero_block_take(struct zero *z, enum zero_block block, size_t numel, enum cz_dtype dtype,
                          size_t *off)
{
    size_t nbytes;
    *off = z->nbytes[block];
    TRY(size_mul(numel, dtype_size(dtype), &nbytes));
    TRY(size_add(nbytes, ZERO_ALIGN - 1, &nbytes));
    return size_add(z->nbytes[block], nbytes / ZERO_ALIGN * ZERO_ALIGN, &z->nbytes[block]);
}

void *zero_group_params(const struct zero *z, size_t group)
{
    return z->blocks[ZERO_PARAMS] + z->groups[group].param_off;
}

void *zero_own_grad(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    return zero_advance(z->blocks[ZERO_GRADS] + g->grad_off,
                        z->buckets.is_bucketed ? 0 : g->own_begin, z->options.grad_dtype);
}

/* Optimizers that start from something else than zero (blocks and file are zeroed). */
static cz_status states_init(struct zero *z, size_t g)
{
    const struct zero_group *group = &z->groups[g];
    for (size_t s = 0; s < group->n_states; s++) {
        float value = (float)optim_state_init(&z->options.groups[g].hyper, s);
        const struct zero_placement where = zero_state_placement(z, g, s);
        if (value != 0) TRY(zero_placement_fill(z, &where, group->own_numel, value));
    }
    return CZ_OK;
}

/* Parameters that lie whole, or as the one chunk of one rank. */
static void bind_params(struct zero *z)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++)
        z->params[i] = zero_param_placement(z, i).memory;
}

/* What the file's requests read into and write from begins with a block. */
cz_status zero_lend_to_swap(struct zero *z, enum zero_block block)
{
    size_t lead = (SWAP_ALIGN - (uintptr_t)z->blocks[block] % SWAP_ALIGN) % SWAP_ALIGN;
    if (z->nbytes[block] == 0) return CZ_OK;
    z->blocks[block] += lead;
    return swap_register(z->swap, z->blocks[block], z->nbytes[block] - SWAP_ALIGN);
}

static cz_status bind_swap(struct zero *z, struct swap *swap)
{
    z->swap = swap;
    if (z->swap_nbytes == 0) return CZ_OK;
    if (!swap) return err_set(CZ_INVALID, 0, "the model state needs a swap file");
    TRY(zero_lend_to_swap(z, ZERO_RING));
    return zero_sweep_bind(z);
}

cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS], struct swap *swap)
{
    const struct zero_options *o = &z->options;
    for (int b = 0; b < ZERO_N_BLOCKS; b++) z->blocks[b] = blocks[b];
    z->scalars = (struct step_scalars *)(void *)z->blocks[ZERO_SMALL];
    if (z->scratch_off > 0) z->scratch = z->blocks[ZERO_SMALL] + z->scratch_off;
    TRY(zero_gpu_bind(z));
    TRY(bind_swap(z, swap));
    if (z->buckets.sink->bind) TRY(z->buckets.sink->bind(z));
    if (z->swap_nbytes > 0 && o->swap.params)
        TRY(zero_lend_to_swap(z, z->split_params ? ZERO_STAGING : ZERO_WINDOW));
    TRY(zero_onebit_bind(z));
    if (z->windowed)
        zero_gather_bind(z);
    else
        bind_params(z);
    unsigned char *grads = z->blocks[z->buckets.is_bucketed ? ZERO_BUCKETS : ZERO_GRADS];
    for (size_t i = 0; i < o->table->n_params; i++)
        if (z->places[i].group != o->n_groups)
            z->grads[i] = zero_advance(grads, z->places[i].grad_off, o->grad_dtype);
    for (size_t g = 0; g < o->n_groups; g++) TRY(states_init(z, g));
    return CZ_OK;
}

const void *const *zero_params(const struct zero *z)
{
    return z->params;
}

void *const *zero_grads(const struct zero *z)
{
    return z->grads;
}

cz_status zero_cast(struct zero *z, enum cz_dtype from, const void *x, enum cz_dtype to, void *y,
                    size_t numel)
{
    const struct cast_scale_args args = {
        .x_dtype = from, .y_dtype = to, .numel = numel, .alpha = 1, .x = x, .y = y};
    return numel == 0 ? CZ_OK : zero_host_ops(z)->cast_scale(zero_host_ops(z), NULL, &args);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The elements of a parameter that this rank keeps: whole, or at stage 3 its chunk. */
static cz_status load_param(struct zero *z, size_t i, zero_fetch fetch, void *user, float *staging,
                            size_t staging_numel)
{
    const struct zero_placement where = zero_param_placement(z, i);
    struct zero_piece piece = {.numel = z->options.table->params[i].numel};
    if (z->options.stage == 3) piece = zero_piece_mine(z, i);
    if (where.dtype == DTYPE_F32 && where.memory && !where.on_gpu && piece.numel > 0)
        return fetch(user, i, piece.param_off, piece.numel, (float *)(void *)where.memory);
    for (size_t off = 0, n; off < piece.numel; off += n) {
        n = piece.numel - off < staging_numel ? piece.numel - off : staging_numel;
        TRY(fetch(user, i, piece.param_off + off, n, staging));
        TRY(zero_placement_put(z, &where, off, n, staging));
    }
    return CZ_OK;
}

/* Local: what can fail on one rank alone. */
static cz_status load_own(struct zero *z, zero_fetch fetch, void *user, float *staging,
                          size_t staging_numel)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++)
        TRY(load_param(z, i, fetch, user, staging, staging_numel));
    for (size_t g = 0; z->own_masters && g < o->n_groups; g++) {
        const struct zero_placement from = zero_own_params_placement(z, g),
                                    to = zero_master_placement(z, g);
        TRY(zero_placement_copy(z, &from, &to, z->groups[g].own_numel));
    }
    return CZ_OK;
}

cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel)
{
    TRY(comm_agree(z->options.comm, load_own(z, fetch, user, staging, staging_numel)));
    if (z->windowed) TRY(zero_gather_resident(z, false));
    return zero_gpu_settle(z);
}
