/* Claim: whatever tiles are made of, how many slots there are and which way sweeps go, a tile's
 * slot has what the sweep before left of it, and the file has all of it after a sweep's end: random
 * tiles, some of whose pieces are kept in slots, some only written. CZ_SEED=n starts elsewhere. */
#include "base/rng.h"
#include "offload/ring.h"
#include "tests/support/check_main.h"

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

static void sweep(struct trial *t, struct ring *r)
{
    unsigned char *slot;
    t->is_down = dice(2);
    ck_ok(ring_begin(r, t->n_tiles, pieces, t));
    for (size_t k = 0; k < t->n_tiles; k++) {
        ck_ok(ring_next(r, &slot));
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

TEST_MAIN("offload/ring", a_slot_has_what_the_sweep_before_left)
