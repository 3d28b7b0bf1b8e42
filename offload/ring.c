/* Tiles are read as far ahead as there are slots, and written as soon as they are done: the read
 * that follows into the same slot waits for that write in the queue (swap_read_after()), not here.
 * So this thread waits for reads alone, and the disk has both kinds of work at all times.
 *
 * A slot keeps what it held until something else is put into its place, so a tile first looks for a
 * slot that has its pieces; otherwise it takes the one that was used longest ago. */
#include "offload/ring.h"

#include <stdlib.h>

/* A place in a slot: the run of the file that is in it, or comes to it. */
struct ring_place {
    struct ring_piece piece;
    uint64_t written, read; /* tickets begun last; 0: none, or it was waited for */
    bool is_held; /* what is in the place, once the tickets are through, is what is in the file */
};

struct ring_slot {
    struct ring_place places[RING_PIECES_MAX];
    size_t n_places;
    struct ring_place *pieces[RING_PIECES_MAX]; /* of its tile */
    size_t n_pieces;
    uint64_t used; /* number of the tile that took it last; 0: none has */
    bool is_busy;  /* its tile is in work, or read ahead */
};

struct ring {
    struct ring_options options;
    struct ring_slot slots[RING_SLOTS_MAX];
    struct ring_slot *taken[RING_SLOTS_MAX]; /* by tile; NULL: it has no pieces */
    ring_pieces pieces;
    void *user;
    size_t n_tiles;
    size_t n_begun; /* tiles whose reading was begun */
    size_t current; /* the tile in work, or the next one */
    uint64_t n_used;
};

cz_status ring_create(const struct ring_options *options, struct ring **out)
{
    *out = NULL;
    if ((uintptr_t)options->memory % SWAP_ALIGN != 0 || options->slot_nbytes % SWAP_ALIGN != 0)
        return err_set(CZ_INVALID, 0, "a ring needs memory aligned to %zu bytes", SWAP_ALIGN);
    if (options->n_slots > RING_SLOTS_MAX)
        return err_set(CZ_INVALID, 0, "a ring has at most %d slots", RING_SLOTS_MAX);
    struct ring *r = calloc(1, sizeof *r);
    if (!r) return err_set(CZ_NOMEM, 0, "no memory for a ring of buffers");
    r->options = *options;
    if (r->options.n_slots == 0) r->options.n_slots = RING_SLOTS;
    *out = r;
    return CZ_OK;
}

void ring_destroy(struct ring *r)
{
    free(r);
}

static unsigned char *memory_of(const struct ring *r, const struct ring_slot *s)
{
    return (unsigned char *)r->options.memory + (size_t)(s - r->slots) * r->options.slot_nbytes;
}

/* ---- what slots hold ------------------------------------------------------------------------- */

/* A slot has as many places as a tile has arrays, the same in all tiles. */
static struct ring_place *place_of(struct ring_slot *s, const struct ring_piece *p)
{
    for (size_t i = 0; i < s->n_places; i++)
        if (s->places[i].piece.slot_off == p->slot_off) return &s->places[i];
    return NULL;
}

static bool holds(const struct ring_place *place, const struct ring_piece *p)
{
    return place && place->is_held && p->is_kept && place->piece.off == p->off &&
           place->piece.nbytes == p->nbytes;
}

void ring_forget(struct ring *r)
{
    for (size_t i = 0; r && i < r->options.n_slots; i++)
        for (size_t k = 0; k < r->slots[i].n_places; k++) r->slots[i].places[k].is_held = false;
}

/* The free slot that holds most of these pieces; of those that hold as many, the one that was used
 * longest ago. NULL: all are busy. */
static struct ring_slot *choose(struct ring *r, const struct ring_piece *pieces, size_t n)
{
    struct ring_slot *best = NULL;
    size_t best_held = 0;
    for (size_t i = 0; i < r->options.n_slots; i++) {
        struct ring_slot *s = &r->slots[i];
        size_t n_held = 0;
        if (s->is_busy) continue;
        for (size_t k = 0; k < n; k++)
            n_held += pieces[k].is_read && holds(place_of(s, &pieces[k]), &pieces[k]);
        if (best && (n_held < best_held || (n_held == best_held && s->used >= best->used)))
            continue;
        best = s;
        best_held = n_held;
    }
    return best;
}

/* ---- a sweep --------------------------------------------------------------------------------- */

static cz_status wait_for(struct ring *r, uint64_t *ticket)
{
    uint64_t waited = *ticket;
    *ticket = 0;
    return waited != 0 ? swap_wait(r->options.swap, waited) : CZ_OK;
}

/* What is on its way from the slot has arrived. */
static cz_status settle_writes(struct ring *r, struct ring_slot *s)
{
    for (size_t i = 0; i < s->n_places; i++) TRY(wait_for(r, &s->places[i].written));
    return CZ_OK;
}

/* And what is on its way to it. */
static cz_status settle(struct ring *r, struct ring_slot *s)
{
    for (size_t i = 0; i < s->n_places; i++) TRY(wait_for(r, &s->places[i].read));
    return settle_writes(r, s);
}

/* A piece comes to slot `s` though another one, which was busy, has it: that one's will be old. */
static void forget_elsewhere(struct ring *r, const struct ring_slot *s, const struct ring_piece *p)
{
    for (size_t i = 0; i < r->options.n_slots; i++) {
        struct ring_place *place = place_of(&r->slots[i], p);
        if (&r->slots[i] != s && holds(place, p)) place->is_held = false;
    }
}

/* A piece comes to its place, behind what is still being written from there. */
static cz_status piece_begin(struct ring *r, struct ring_slot *s, const struct ring_piece *p,
                             struct ring_place **out)
{
    struct ring_place *place = *out = place_of(s, p);
    if (!place) {
        if (s->n_places == RING_PIECES_MAX)
            return err_set(CZ_INVALID, 0, "a ring's slot has more than %d places", RING_PIECES_MAX);
        place = *out = &s->places[s->n_places++];
        *place = (struct ring_place){0};
    }
    bool is_there = holds(place, p);
    place->piece = *p;
    place->is_held = p->is_kept;
    if (is_there) return CZ_OK;
    forget_elsewhere(r, s, p);
    if (!p->is_read) return CZ_OK;
    return swap_read_after(r->options.swap, memory_of(r, s) + p->slot_off, p->off, p->nbytes,
                           place->written, &place->read);
}

/* Begin to read the next tile, if there is a slot for it. */
static cz_status read_next(struct ring *r, bool *is_begun)
{
    size_t tile = r->n_begun, n_slots = r->options.n_slots;
    struct ring_piece pieces[RING_PIECES_MAX];
    size_t n = r->pieces(r->user, tile, pieces);
    struct ring_slot *s = n > 0 ? choose(r, pieces, n) : NULL;
    *is_begun = n == 0 || s;
    if (!*is_begun) return CZ_OK;
    r->taken[tile % n_slots] = s;
    r->n_begun++;
    if (!s) return CZ_OK;
    s->is_busy = true;
    s->used = ++r->n_used;
    s->n_pieces = n;
    for (size_t i = 0; i < n; i++) TRY(piece_begin(r, s, &pieces[i], &s->pieces[i]));
    return CZ_OK;
}

/* Begin with tiles up to `end` of them. */
static cz_status read_until(struct ring *r, size_t end)
{
    bool is_begun = true;
    while (is_begun && r->n_begun < end && r->n_begun < r->n_tiles) TRY(read_next(r, &is_begun));
    return CZ_OK;
}

cz_status ring_ahead(struct ring *r)
{
    return r && r->options.read_ahead ? read_until(r, r->current + r->options.n_slots) : CZ_OK;
}

cz_status ring_begin(struct ring *r, size_t n_tiles, ring_pieces pieces, void *user)
{
    if (!r) return CZ_OK;
    r->pieces = pieces;
    r->user = user;
    r->n_tiles = n_tiles;
    r->n_begun = r->current = 0;
    return CZ_OK;
}

cz_status ring_next(struct ring *r, unsigned char **slot)
{
    *slot = NULL;
    if (!r) return CZ_OK;
    if (r->current >= r->n_tiles)
        return err_set(CZ_INVALID, 0, "a ring has no tile %zu of %zu", r->current, r->n_tiles);
    TRY(read_until(r, r->current + 1));
    TRY(ring_ahead(r));
    struct ring_slot *s = r->taken[r->current % r->options.n_slots];
    if (!s) return CZ_OK;
    TRY(settle(r, s));
    *slot = memory_of(r, s);
    return CZ_OK;
}

/* Writes begin at once, and the next tile's reads behind them. Without write_behind they are waited
 * for here. */
cz_status ring_done(struct ring *r)
{
    if (!r) return CZ_OK;
    struct ring_slot *s = r->taken[r->current % r->options.n_slots];
    r->current++;
    if (!s) return CZ_OK;
    s->is_busy = false;
    for (size_t i = 0; i < s->n_pieces; i++) {
        struct ring_place *place = s->pieces[i];
        const struct ring_piece *p = &place->piece;
        if (p->is_written)
            TRY(swap_write_begin(r->options.swap, memory_of(r, s) + p->slot_off, p->off, p->nbytes,
                                 &place->written));
    }
    if (!r->options.write_behind) TRY(settle_writes(r, s));
    return ring_ahead(r);
}

cz_status ring_flush(struct ring *r, size_t slot_off)
{
    for (size_t i = 0; r && i < r->options.n_slots; i++)
        for (size_t k = 0; k < r->slots[i].n_places; k++) {
            struct ring_place *place = &r->slots[i].places[k];
            if (slot_off == SIZE_MAX || place->piece.slot_off == slot_off)
                TRY(wait_for(r, &place->written));
        }
    return CZ_OK;
}

cz_status ring_end(struct ring *r)
{
    if (!r) return CZ_OK;
    bool is_whole = r->current == r->n_tiles;
    cz_status st = swap_drain(r->options.swap);
    for (size_t i = 0; i < r->options.n_slots; i++) {
        r->slots[i].is_busy = false;
        for (size_t k = 0; k < r->slots[i].n_places; k++)
            r->slots[i].places[k].written = r->slots[i].places[k].read = 0;
    }
    r->n_tiles = r->current = r->n_begun = 0;
    if (st != CZ_OK || !is_whole) ring_forget(r);
    return st;
}
