/* Claims: whatever tiles are made of, how many slots there are and which way sweeps go, a tile's
 * slot has what the sweep before left of it, and the file has all of it after a sweep's end: random
 * tiles, some of whose pieces are kept in slots, some only written. CZ_SEED=n starts elsewhere. A
 * sweep back reads what the slots do not hold, and no more. */
#include "base/rng.h"
#include "offload/ring.h"
#include "tests/support/check_main.h"
#include "tests/support/guarded_memory.h"

#include <string.h>

enum { N_TILES_MAX = 12, N_PLACES = 3, N_SLOTS_MAX = 6, ROUNDS = 300, SWEEPS = 12 };

struct trial {
    size_t n_tiles, n_slots;
    bool is_down;
    bool has[N_TILES_MAX][N_PLACES];      /* a tile's pieces: the last place is only written */
    uint64_t want[N_TILES_MAX][N_PLACES]; /* what the piece's block is filled with */
};

static struct rng_key key;
static uint64_t n_drawn;

static size_t dice(size_t n)
{
    return (size_t)(rng_uniform(&key, n_drawn++) * (double)n) % n;
}

static size_t tile_at(const struct trial *t, size_t k)
{
    return t->is_down ? t->n_tiles - 1 - k : k;
}

static uint64_t off_of(size_t tile, size_t place)
{
    return (uint64_t)(tile * N_PLACES + place) * SWAP_ALIGN;
}

static size_t pieces(void *user, size_t k, struct ring_piece *out)
{
    const struct trial *t = user;
    size_t tile = tile_at(t, k), n = 0;
    for (size_t p = 0; p < N_PLACES; p++)
        if (t->has[tile][p])
            out[n++] = (struct ring_piece){.off = off_of(tile, p),
                                           .nbytes = SWAP_ALIGN,
                                           .slot_off = p * SWAP_ALIGN,
                                           .is_read = p + 1 < N_PLACES,
                                           .is_written = true,
                                           .is_kept = p + 1 < N_PLACES};
    return n;
}

static void work(struct trial *t, size_t tile, unsigned char *slot)
{
    for (size_t p = 0; p < N_PLACES; p++) {
        uint64_t *words = (uint64_t *)(void *)(slot + p * SWAP_ALIGN);
        size_t n = SWAP_ALIGN / sizeof *words;
        if (!t->has[tile][p]) continue;
        for (size_t i = 0; i < n && p + 1 < N_PLACES; i++)
            ck_assert_msg(words[i] == t->want[tile][p], "tile %zu, place %zu: %llu, not %llu", tile,
                          p, (unsigned long long)words[i], (unsigned long long)t->want[tile][p]);
        t->want[tile][p] = n_drawn + dice(1000);
        for (size_t i = 0; i < n; i++) words[i] = t->want[tile][p];
    }
}

static bool has_pieces(const struct trial *t, size_t tile)
{
    return t->has[tile][0] || t->has[tile][1] || t->has[tile][2];
}

static void sweep(struct trial *t, struct ring *r)
{
    unsigned char *slot;
    t->is_down = dice(2);
    ck_ok(ring_begin(r, t->n_tiles, pieces, t));
    for (size_t k = 0; k < t->n_tiles; k++) {
        ck_ok(ring_next(r, &slot));
        ck_assert_msg((slot != NULL) == has_pieces(t, tile_at(t, k)), "tile %zu", tile_at(t, k));
        if (slot) work(t, tile_at(t, k), slot);
        ck_ok(ring_done(r));
    }
    ck_ok(dice(2) ? ring_end(r) : ring_flush(r, SIZE_MAX));
}

static void check_file(const struct trial *t, struct swap *swap)
{
    static uint64_t words[SWAP_ALIGN / sizeof(uint64_t)];
    for (size_t k = 0; k < t->n_tiles; k++)
        for (size_t p = 0; p < N_PLACES; p++) {
            if (!t->has[k][p]) continue;
            ck_ok(swap_read(swap, off_of(k, p), sizeof words, words));
            ck_assert_uint_eq(words[0], t->want[k][p]);
            ck_assert_uint_eq(words[CZ_ARRAY_LEN(words) - 1], t->want[k][p]);
        }
}

START_TEST(a_slot_has_what_the_sweep_before_left)
{
    const char *dir = test_tmp_make_fast();
    const char *seed = getenv("CZ_SEED");
    unsigned char *memory = aligned_alloc(SWAP_ALIGN, N_SLOTS_MAX * N_PLACES * SWAP_ALIGN);
    key.seed = seed ? strtoull(seed, NULL, 10) : 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct trial t = {.n_tiles = 1 + dice(N_TILES_MAX), .n_slots = 2 + dice(N_SLOTS_MAX - 1)};
        const struct swap_options options = {.dir = dir,
                                             .nbytes = t.n_tiles * N_PLACES * SWAP_ALIGN};
        struct swap *swap;
        struct ring *r;
        for (size_t k = 0; k < t.n_tiles; k++)
            for (size_t p = 0; p < N_PLACES; p++) t.has[k][p] = dice(3) > 0;
        ck_ok(swap_open(&options, &swap));
        const struct ring_options ring = {.swap = swap,
                                          .memory = memory,
                                          .n_slots = t.n_slots,
                                          .slot_nbytes = N_PLACES * SWAP_ALIGN,
                                          .read_ahead = dice(2),
                                          .write_behind = dice(2)};
        ck_ok(ring_create(&ring, &r));
        for (int s = 0; s < SWEEPS; s++) sweep(&t, r);
        check_file(&t, swap);
        ring_destroy(r);
        swap_close(swap);
    }
    free(memory);
    test_tmp_remove(dir);
}
END_TEST

/* Tiles of one piece each, swept up and down: bytes that were read and written after each sweep. */
static void check_traffic(size_t n_tiles, size_t n_slots, bool ahead, bool behind)
{
    struct trial t = {.n_tiles = n_tiles};
    const char *dir = test_tmp_make_fast();
    const size_t slots = n_slots ? n_slots : RING_SLOTS, kept = slots < n_tiles ? slots : n_tiles;
    unsigned char *memory = aligned_alloc(SWAP_ALIGN, slots * N_PLACES * SWAP_ALIGN), *slot;
    const struct swap_options options = {.dir = dir, .nbytes = n_tiles * N_PLACES * SWAP_ALIGN};
    struct swap *swap;
    struct ring *r;
    ck_ok(swap_open(&options, &swap));
    const struct ring_options ring = {.swap = swap,
                                      .memory = memory,
                                      .n_slots = n_slots,
                                      .slot_nbytes = N_PLACES * SWAP_ALIGN,
                                      .read_ahead = ahead,
                                      .write_behind = behind};
    ck_ok(ring_create(&ring, &r));
    for (size_t k = 0; k < n_tiles; k++) t.has[k][0] = true;
    size_t n_read = 0, n_written = 0;
    for (int s = 0; s < 6; s++) {
        t.is_down = s % 2;
        if (s == 4) ring_forget(r);
        ck_ok(ring_begin(r, n_tiles, pieces, &t));
        for (size_t k = 0; k < n_tiles; k++) {
            ck_ok(ring_next(r, &slot));
            ck_assert(slot >= memory && slot < memory + slots * N_PLACES * SWAP_ALIGN);
            work(&t, tile_at(&t, k), slot);
            ck_ok(ring_done(r));
        }
        ck_fails(ring_next(r, &slot), CZ_INVALID);
        ck_ok(ring_end(r));
        n_read += (n_tiles - (s == 0 || s == 4 ? 0 : kept)) * SWAP_ALIGN;
        n_written += n_tiles * SWAP_ALIGN;
        ck_assert_uint_eq(swap_counts(swap).read_nbytes, n_read);
        ck_assert_uint_eq(swap_counts(swap).written_nbytes, n_written);
    }
    check_file(&t, swap);
    ring_destroy(r);
    swap_close(swap);
    free(memory);
    test_tmp_remove(dir);
}

/* A sweep in the opposite direction finds as many tiles in memory as there are slots: reads of the
 * others, and no more. */
START_TEST(what_slots_hold_is_not_read_again)
{
    guarded_begin();
    for (int way = 0; way < 4; way++) {
        check_traffic(N_TILES_MAX, 0, way & 1, way & 2);
        check_traffic(N_TILES_MAX, 2, way & 1, way & 2);
        check_traffic(N_TILES_MAX, 5, way & 1, way & 2);
        check_traffic(N_TILES_MAX, N_TILES_MAX, way & 1, way & 2);
        check_traffic(3, RING_SLOTS_MAX, way & 1, way & 2);
    }
}
END_TEST

START_TEST(rings_without_a_file_do_nothing)
{
    unsigned char *slot = (unsigned char *)&slot;
    ck_ok(ring_begin(NULL, 3, pieces, NULL));
    ck_ok(ring_ahead(NULL));
    ck_ok(ring_next(NULL, &slot));
    ck_assert_ptr_null(slot);
    ck_ok(ring_done(NULL));
    ck_ok(ring_flush(NULL, SIZE_MAX));
    ck_ok(ring_end(NULL));
    ring_forget(NULL);
    ring_destroy(NULL);
}
END_TEST

START_TEST(options_out_of_bounds_are_refused)
{
    static _Alignas(SWAP_ALIGN) unsigned char memory[SWAP_ALIGN];
    struct ring *r;
    struct ring_options o = {
        .memory = memory, .n_slots = RING_SLOTS_MAX, .slot_nbytes = SWAP_ALIGN};
    ck_ok(ring_create(&o, &r));
    ring_destroy(r);
    o.n_slots++;
    ck_fails(ring_create(&o, &r), CZ_INVALID);
    ck_assert_ptr_null(r);
    o.n_slots = 1;
    o.slot_nbytes++;
    ck_fails(ring_create(&o, &r), CZ_INVALID);
    o.slot_nbytes--;
    o.memory = memory + 1;
    ck_fails(ring_create(&o, &r), CZ_INVALID);
}
END_TEST

/* Nine places in one slot. */
static size_t too_many_places(void *user, size_t k, struct ring_piece *out)
{
    const size_t n = *(const size_t *)user;
    *out = (struct ring_piece){.off = k * SWAP_ALIGN,
                               .nbytes = SWAP_ALIGN,
                               .slot_off = k % n * SWAP_ALIGN,
                               .is_read = true};
    return 1;
}

START_TEST(a_slot_has_at_most_eight_places)
{
    const char *dir = test_tmp_make_fast();
    unsigned char *memory = aligned_alloc(SWAP_ALIGN, 9 * SWAP_ALIGN), *slot;
    const struct swap_options options = {.dir = dir, .nbytes = 9 * SWAP_ALIGN};
    struct swap *swap;
    struct ring *r;
    ck_ok(swap_open(&options, &swap));
    for (size_t n = RING_PIECES_MAX; n <= RING_PIECES_MAX + 1; n++) {
        const struct ring_options ring = {
            .swap = swap, .memory = memory, .n_slots = 1, .slot_nbytes = 9 * SWAP_ALIGN};
        ck_ok(ring_create(&ring, &r));
        ck_ok(ring_begin(r, n, too_many_places, &n));
        for (size_t k = 0; k < n; k++) {
            const cz_status st = ring_next(r, &slot);
            ck_assert_int_eq(st, k < RING_PIECES_MAX ? CZ_OK : CZ_INVALID);
            if (st == CZ_OK) ck_ok(ring_done(r));
        }
        ck_ok(ring_end(r));
        ring_destroy(r);
    }
    swap_close(swap);
    free(memory);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/ring", a_slot_has_what_the_sweep_before_left, what_slots_hold_is_not_read_again,
          rings_without_a_file_do_nothing, options_out_of_bounds_are_refused,
          a_slot_has_at_most_eight_places)
