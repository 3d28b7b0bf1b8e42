/* ring: tiles of a swap file streamed through a few buffers (slots): while one tile is worked on,
 * the ones before it are written, and behind each write the next tile is read into the same slot.
 *
 * Life cycle, per sweep over n tiles:
 *   ring_begin() → [ring_ahead()] → n × (ring_next() → work in the slot → ring_done()) → ring_end()
 *
 * A tile is made of pieces: runs of the file that have a place in the slot. Some are only read,
 * some only written. What the slots hold when a sweep ends is not read again by a later one that
 * comes to it while it is still there: a sweep in the opposite direction begins with as many tiles
 * from memory as there are slots. Nothing is allocated after ring_create(). Not thread-safe.
 *
 * A NULL ring is that of data in memory: its tiles have no pieces, and its calls do nothing. */
#ifndef CZ_OFFLOAD_RING_H
#define CZ_OFFLOAD_RING_H

#include "offload/swap.h"

CZ_EXTERN_C_BEGIN

#define RING_PIECES_MAX 8
#define RING_SLOTS      4 /* the usual number: in work, being written, being read */
#define RING_SLOTS_MAX  32

struct ring_piece {
    uint64_t off;  /* in the file */
    size_t nbytes; /* off and nbytes aligned to SWAP_ALIGN */
    size_t
        slot_off; /* in the slot; aligned. Pieces do not overlap, unless they have the same one */
    bool is_read, is_written;
    bool is_kept; /* only this ring changes these bytes of the file (or ring_forget() follows):
                     while they are in the slot they need not be read */
};

/* The pieces of tile `tile` (at most RING_PIECES_MAX, none for a tile that is in memory: it takes
 * no slot). */
typedef size_t (*ring_pieces)(void *user, size_t tile, struct ring_piece *out);

struct ring_options {
    struct swap *swap;  /* lent */
    void *memory;       /* n_slots × slot_nbytes, aligned to SWAP_ALIGN; lent */
    size_t n_slots;     /* 0: RING_SLOTS; at most RING_SLOTS_MAX */
    size_t slot_nbytes; /* aligned */
    bool read_ahead;    /* pipeline_read; false: a tile is read when its turn comes */
    bool write_behind;  /* pipeline_write; false: ring_done() waits for its writes */
};

struct ring; /* opaque */

/* Errors: CZ_NOMEM, CZ_INVALID. */
cz_status ring_create(const struct ring_options *options, struct ring **out);
void ring_destroy(struct ring *r); /* what is under way must have been ended */

cz_status ring_begin(struct ring *r, size_t n_tiles, ring_pieces pieces, void *user);

/* Begin to read what will be worked on later, as far as slots go. */
cz_status ring_ahead(struct ring *r);

/* The next tile's slot, read; NULL for a tile without pieces. Errors: what swap_wait() gives. */
cz_status ring_next(struct ring *r, unsigned char **slot);

/* The current tile's written pieces may go. */
cz_status ring_done(struct ring *r);

/* What was done until now of the pieces with that place in their slots (SIZE_MAX: of all) is in the
 * file. */
cz_status ring_flush(struct ring *r, size_t slot_off);

/* Everything is in the file. Also ends a sweep that failed half-way: nothing is under way then. */
cz_status ring_end(struct ring *r);

/* What the slots hold is no longer what is in the file, or their memory was used for something
 * else. Not during a sweep. */
void ring_forget(struct ring *r);

CZ_EXTERN_C_END
#endif
