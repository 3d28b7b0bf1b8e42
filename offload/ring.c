/* RING_SLOTS slots in turn: tiles are read ahead of the one in work, and the one before it is
 * written behind. A slot is used again after settle(): what was written from it has reached the
 * file. */
#include "offload/ring.h"

#include <stdlib.h>

/* The tile that a slot holds: what is on its way from the file, and back to it. */
struct ring_slot {
    struct ring_piece pieces[RING_PIECES_MAX];
    size_t n_pieces;
    uint64_t tickets[RING_PIECES_MAX];
};

struct ring {
    struct ring_options options;
    struct ring_slot slots[RING_SLOTS];
    ring_pieces pieces;
    void *user;
    size_t n_tiles;
    size_t n_begun; /* tiles whose reading was begun */
    size_t current; /* the tile in work, or the next one */
};

cz_status ring_create(const struct ring_options *options, struct ring **out)
{
    *out = NULL;
    if ((uintptr_t)options->memory % SWAP_ALIGN != 0 || options->slot_nbytes % SWAP_ALIGN != 0)
        return err_set(CZ_INVALID, 0, "a ring needs memory aligned to %zu bytes", SWAP_ALIGN);
    struct ring *r = calloc(1, sizeof *r);
    if (!r) return err_set(CZ_NOMEM, 0, "no memory for a ring of buffers");
    r->options = *options;
    *out = r;
    return CZ_OK;
}

void ring_destroy(struct ring *r)
{
    free(r);
}

static struct ring_slot *slot_of(struct ring *r, size_t tile)
{
    return &r->slots[tile % RING_SLOTS];
}

static unsigned char *memory_of(const struct ring *r, size_t tile)
{
    return (unsigned char *)r->options.memory + tile % RING_SLOTS * r->options.slot_nbytes;
}

/* Whatever of the slot is on its way has arrived. */
static cz_status settle(struct ring *r, struct ring_slot *s)
{
    for (size_t i = 0; i < s->n_pieces; i++) {
        uint64_t ticket = s->tickets[i];
        s->tickets[i] = 0;
        if (ticket != 0) TRY(swap_wait(r->options.swap, ticket));
    }
    return CZ_OK;
}

/* Begin to read the next tile, into the slot of the one that was written longest ago. */
static cz_status read_next(struct ring *r)
{
    size_t tile = r->n_begun;
    struct ring_slot *s = slot_of(r, tile);
    TRY(settle(r, s));
    r->n_begun++;
    s->n_pieces = r->pieces(r->user, tile, s->pieces);
    for (size_t i = 0; i < s->n_pieces; i++) {
        const struct ring_piece *p = &s->pieces[i];
        s->tickets[i] = 0;
        if (p->is_read)
            TRY(swap_read_begin(r->options.swap, memory_of(r, tile) + p->slot_off, p->off,
                                p->nbytes, &s->tickets[i]));
    }
    return CZ_OK;
}

cz_status ring_begin(struct ring *r, size_t n_tiles, ring_pieces pieces, void *user)
{
    r->pieces = pieces;
    r->user = user;
    r->n_tiles = n_tiles;
    r->n_begun = r->current = 0;
    for (size_t i = 0; i < RING_SLOTS; i++) r->slots[i].n_pieces = 0;
    return CZ_OK;
}

cz_status ring_next(struct ring *r, unsigned char **slot)
{
    if (r->current >= r->n_tiles)
        return err_set(CZ_INVALID, 0, "a ring has no tile %zu of %zu", r->current, r->n_tiles);
    /* The last slot is left to what is still being written. */
    size_t ahead = r->options.read_ahead ? RING_SLOTS - 2 : 0, end = r->current + ahead + 1;
    while (r->n_begun < end && r->n_begun < r->n_tiles) TRY(read_next(r));
    TRY(settle(r, slot_of(r, r->current)));
    *slot = memory_of(r, r->current);
    return CZ_OK;
}

/* Writes begin at once; the slot is waited for when its turn comes again, or here without
 * write_behind. */
cz_status ring_done(struct ring *r)
{
    struct ring_slot *s = slot_of(r, r->current);
    const unsigned char *memory = memory_of(r, r->current);
    r->current++;
    for (size_t i = 0; i < s->n_pieces; i++) {
        const struct ring_piece *p = &s->pieces[i];
        if (p->is_written)
            TRY(swap_write_begin(r->options.swap, memory + p->slot_off, p->off, p->nbytes,
                                 &s->tickets[i]));
    }
    return r->options.write_behind ? CZ_OK : settle(r, s);
}

cz_status ring_end(struct ring *r)
{
    for (size_t i = 0; i < RING_SLOTS; i++) r->slots[i].n_pieces = 0;
    r->n_tiles = r->current = r->n_begun = 0;
    return swap_drain(r->options.swap);
}
