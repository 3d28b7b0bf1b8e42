/* What layers save beside their inputs that waits in a file from forward to backward, where several
 * micro-batches go through each layer together.
 *
 * Two places in memory, each for one micro-batch of the largest of these layers, are used in turn:
 * in forward, once a layer has filled one it is written out while the other is filled; in backward,
 * once a layer has used one up, what is needed two turns later is read into it. So each byte is
 * written once and read once, and the host waits only where the file is slower than the layers. */
#include "engine/chain/chain_impl.h"

#define N_PLACES CZ_ARRAY_LEN(((struct chain *)0)->swap_off)

cz_status chain_swap_plan(struct chain *c, size_t *block)
{
    size_t largest = 0, nbytes;
    c->n_swapped = 0;
    for (size_t i = 0; i + 1 < c->n_nodes; i++) {
        struct chain_node *node = &c->nodes[i];
        if (node->saved_where != CHAIN_SAVED_IN_FILE) continue;
        node->saved_stride = size_round_up(node->sizes.saved_nbytes, CHAIN_FILE_ALIGN);
        if (node->saved_stride > largest) largest = node->saved_stride;
        TRY(size_mul(c->n_sets, node->saved_stride, &nbytes));
        TRY(chain_place_piece(&c->sizes.file, nbytes, &node->saved_off));
        node->swap_idx = c->n_swapped;
        c->swapped[c->n_swapped++] = i;
    }
    for (size_t k = 0; k < N_PLACES && largest > 0; k++)
        TRY(chain_place_piece(block, largest, &c->swap_off[k]));
    return CZ_OK;
}

static bool is_swapped(const struct chain *c, size_t i)
{
    return i + 1 < c->n_nodes && c->nodes[i].saved_where == CHAIN_SAVED_IN_FILE;
}

/* Turns are counted from 0 in each direction; sets go up in both. */
static size_t turn_of(const struct chain *c, size_t i, size_t set)
{
    const size_t idx = c->nodes[i].swap_idx;
    return (c->goes_back ? c->n_swapped - 1 - idx : idx) * c->n_runs + set;
}

size_t chain_swap_off(const struct chain *c, size_t i, size_t set)
{
    return c->swap_off[turn_of(c, i, set) % N_PLACES];
}

static cz_status wait_for(struct chain *c, size_t turn)
{
    return chain_file_wait(c, &c->swap_moving[turn % N_PLACES]);
}

cz_status chain_swap_begin(struct chain *c)
{
    c->goes_back = false;
    for (size_t k = 0; k < N_PLACES; k++) TRY(wait_for(c, k));
    return CZ_OK;
}

cz_status chain_swap_before(struct chain *c, size_t i, size_t set)
{
    return is_swapped(c, i) ? wait_for(c, turn_of(c, i, set)) : CZ_OK;
}

cz_status chain_swap_after_forward(struct chain *c, size_t i, size_t set)
{
    const struct chain_file *file = &c->memory.file;
    const struct chain_node *node = &c->nodes[i];
    const unsigned char *block = c->memory.activations;
    if (!is_swapped(c, i)) return CZ_OK;
    return file->write_begin(file->user, node->saved_off + set * node->saved_stride,
                             node->saved_stride, block + chain_swap_off(c, i, set),
                             &c->swap_moving[turn_of(c, i, set) % N_PLACES]);
}

/* What a turn of the backward needs. Its write is over: chain_swap_turn() has waited for the last
 * ones, and each one before for its place. */
static cz_status read_begin(struct chain *c, size_t turn)
{
    const struct chain_file *file = &c->memory.file;
    if (turn >= c->n_swapped * c->n_runs) return CZ_OK;
    const size_t i = c->swapped[c->n_swapped - 1 - turn / c->n_runs], set = turn % c->n_runs;
    const struct chain_node *node = &c->nodes[i];
    unsigned char *block = c->memory.activations;
    return file->read_begin(file->user, node->saved_off + set * node->saved_stride,
                            node->saved_stride, block + c->swap_off[turn % N_PLACES],
                            &c->swap_moving[turn % N_PLACES]);
}

cz_status chain_swap_turn(struct chain *c)
{
    TRY(chain_swap_begin(c));
    c->goes_back = true;
    for (size_t turn = 0; turn < N_PLACES; turn++) TRY(read_begin(c, turn));
    return CZ_OK;
}

cz_status chain_swap_after_backward(struct chain *c, size_t i, size_t set)
{
    return is_swapped(c, i) ? read_begin(c, turn_of(c, i, set) + N_PLACES) : CZ_OK;
}
