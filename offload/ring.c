/* Tiles are read ahead of the one in work, and the ones before it are written behind. A slot is
 * used again after settle(): what was written from it has reached the file.
 *
 * A slot keeps what it held until something else is put into its place, so a tile first looks for a
 * slot that has its pieces; otherwise it takes the one that was used longest ago. */
#include "offload/ring.h"

#include <stdlib.h>

/* A slot: the tile in it, what is on its way from the file and back, and which bytes of the file
 * are in its memory. */
struct ring_slot {
    struct ring_piece pieces[RING_PIECES_MAX];
    size_t n_pieces;
    uint64_t tickets[RING_PIECES_MAX];
    struct ring_piece held[RING_PIECES_MAX]; /* by place in the slot: as in the file */
    size_t n_held;
    uint64_t used; /* number of the tile that took it last; 0: none has */
    bool is_busy;  /* its tile is in work, or read ahead */
};

struct ring {
    struct ring_options options;
    struct ring_slot slots[RING_SLOTS];
    struct ring_slot *taken[RING_SLOTS]; /* by tile; NULL: it has no pieces */
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

static unsigned char *memory_of(const struct ring *r, const struct ring_slot *s)
{
    return (unsigned char *)r->options.memory + (size_t)(s - r->slots) * r->options.slot_nbytes;
}

/* ---- what slots hold ------------------------------------------------------------------------- */

static bool is_held(const struct ring_slot *s, const struct ring_piece *p)
{
    for (size_t i = 0; i < s->n_held; i++)
        if (s->held[i].slot_off == p->slot_off && s->held[i].off == p->off &&
            s->held[i].nbytes == p->nbytes)
            return p->is_kept;
    return false;
}

/* Something else comes to the place of `p`. */
static void let_go(struct ring_slot *s, const struct ring_piece *p)
{
    for (size_t i = 0; i < s->n_held; i++)
        if (s->held[i].slot_off == p->slot_off) {
            s->held[i] = s->held[--s->n_held];
            return;
        }
}

static void hold(struct ring_slot *s, const struct ring_piece *p)
{
    let_go(s, p);
    if (p->is_kept) s->held[s->n_held++] = *p;
}

void ring_forget(struct ring *r)
{
    for (size_t i = 0; r && i < RING_SLOTS; i++) r->slots[i].n_held = 0;
}

/* The free slot that holds most of these pieces; of those that hold as many, the one that was used
 * longest ago. One is always free: at most RING_SLOTS − 1 are read ahead or in work. */
static struct ring_slot *choose(struct ring *r, const struct ring_piece *pieces, size_t n)
{
    struct ring_slot *best = NULL;
    size_t best_held = 0;
    for (size_t i = 0; i < RING_SLOTS; i++) {
        struct ring_slot *s = &r->slots[i];
        size_t n_held = 0;
        if (s->is_busy) continue;
        for (size_t k = 0; k < n; k++) n_held += pieces[k].is_read && is_held(s, &pieces[k]);
        if (best && (n_held < best_held || (n_held == best_held && s->used >= best->used)))
            continue;
        best = s;
        best_held = n_held;
    }
    return best;
}

/* ---- a sweep --------------------------------------------------------------------------------- */

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

/* Begin to read the next tile. */
static cz_status read_next(struct ring *r)
{
    size_t tile = r->n_begun;
    struct ring_piece pieces[RING_PIECES_MAX];
    size_t n = r->pieces(r->user, tile, pieces);
    r->taken[tile % RING_SLOTS] = NULL;
    if (n == 0) {
        r->n_begun++;
        return CZ_OK;
    }
    struct ring_slot *s = choose(r, pieces, n);
    TRY(settle(r, s));
    r->n_begun++;
    r->taken[tile % RING_SLOTS] = s;
    s->is_busy = true;
    s->used = ++r->n_used;
    s->n_pieces = n;
    for (size_t i = 0; i < n; i++) {
        const struct ring_piece *p = &s->pieces[i];
        s->pieces[i] = pieces[i];
        s->tickets[i] = 0;
        if (p->is_read && !is_held(s, p))
            TRY(swap_read_begin(r->options.swap, memory_of(r, s) + p->slot_off, p->off, p->nbytes,
                                &s->tickets[i]));
        hold(s, p);
    }
    return CZ_OK;
}

cz_status ring_begin(struct ring *r, size_t n_tiles, ring_pieces pieces, void *user)
{
    r->pieces = pieces;
    r->user = user;
    r->n_tiles = n_tiles;
    r->n_begun = r->current = 0;
    return CZ_OK;
}

cz_status ring_next(struct ring *r, unsigned char **slot)
{
    *slot = NULL;
    if (r->current >= r->n_tiles)
        return err_set(CZ_INVALID, 0, "a ring has no tile %zu of %zu", r->current, r->n_tiles);
    /* The last slot is left to what is still being written. */
    size_t ahead = r->options.read_ahead ? RING_SLOTS - 2 : 0, end = r->current + ahead + 1;
    while (r->n_begun < end && r->n_begun < r->n_tiles) TRY(read_next(r));
    struct ring_slot *s = r->taken[r->current % RING_SLOTS];
    if (!s) return CZ_OK;
    TRY(settle(r, s));
    *slot = memory_of(r, s);
    return CZ_OK;
}

/* Writes begin at once; the slot is waited for when its turn comes again, or here without
 * write_behind. */
cz_status ring_done(struct ring *r)
{
    struct ring_slot *s = r->taken[r->current++ % RING_SLOTS];
    if (!s) return CZ_OK;
    s->is_busy = false;
    for (size_t i = 0; i < s->n_pieces; i++) {
        const struct ring_piece *p = &s->pieces[i];
        if (p->is_written)
            TRY(swap_write_begin(r->options.swap, memory_of(r, s) + p->slot_off, p->off, p->nbytes,
                                 &s->tickets[i]));
    }
    return r->options.write_behind ? CZ_OK : settle(r, s);
}

cz_status ring_end(struct ring *r)
{
    bool is_whole = r->current == r->n_tiles;
    for (size_t i = 0; i < RING_SLOTS; i++) {
        r->slots[i].n_pieces = 0;
        r->slots[i].is_busy = false;
    }
    r->n_tiles = r->current = r->n_begun = 0;
    cz_status st = swap_drain(r->options.swap);
    if (st != CZ_OK || !is_whole) ring_forget(r);
    return st;
}
