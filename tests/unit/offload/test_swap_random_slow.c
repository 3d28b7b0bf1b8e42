/* Claim: over many seeds, blocks, depths, engines and moods of the disk, random calls agree with
 * plain memory until the first error, which is the disk's own; and nothing remains. */
#include "tests/unit/offload/swap_model.h"
#include "tests/unit/offload/swap_moods.h"

#define N_SEEDS 400

static uint32_t pick(uint64_t seed, uint32_t what, uint32_t n)
{
    return moods_scramble((uint32_t)seed * 31 + what) % n;
}

static struct moods mood_of(uint64_t seed)
{
    static const int passing[] = {0, EINTR, EAGAIN}, lasting[] = {EIO, ENOSPC, ENODEV};
    struct moods m = {.nth = -1, .error = passing[pick(seed, 1, 3)]};
    m.is_short = pick(seed, 2, 2);
    m.is_short_odd = pick(seed, 3, 2);
    if (pick(seed, 4, 2)) return m;
    m.nth = (int)pick(seed, 5, 3000);
    m.error = lasting[pick(seed, 6, 3)];
    return m;
}

static void one_seed(const char *dir, uint64_t seed)
{
    struct moods m = mood_of(seed);
    struct swap *s;
    struct swap_options o = {.dir = dir,
                             .nbytes = SWAP_MODEL_NBYTES,
                             .block_nbytes = (1 + pick(seed, 7, 40)) * SWAP_ALIGN,
                             .queue_depth = (int)(1 + pick(seed, 8, 12)),
                             .single_submit = pick(seed, 9, 2),
                             .checksums = pick(seed, 10, 2),
                             .engine = pick(seed, 11, 2) ? SWAP_ENGINE_AUTO : SWAP_ENGINE_THREADS};
    ck_ok(swap_open(&o, &s));
    swap_set_fault(s, &(struct swap_fault){moods_ask, moods_result, &m});
    cz_status st = swap_model_run(s, 500, seed);
    bool is_lasting = m.nth >= 0 && atomic_load(&m.n) > m.nth;
    ck_assert_msg(st == (is_lasting ? CZ_IO : CZ_OK), "seed %d: %s", (int)seed, cz_last_error());
    if (st != CZ_OK) ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(m.error)));
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(dir), 0);
}

START_TEST(many_random_runs_agree_with_memory)
{
    const char *dir = test_tmp_make_fast();
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) one_seed(dir, seed);
    test_tmp_remove(dir);
}
END_TEST

/* The kernel registers buffers in pieces of a GiB: blocks that are across two of them work too. */
START_TEST(a_buffer_of_more_than_a_gib_round_trips)
{
    size_t n = SWAP_BUFFER_PIECE + (16 << 20), from = SWAP_BUFFER_PIECE - (8 << 20) - SWAP_ALIGN;
    const char *dir = test_tmp_make();
    unsigned char *buf = swap_rig_memory(n);
    struct swap *s = swap_rig_open(dir, &(struct swap_way){0}, 16 << 20, 0, 0);
    uint64_t ticket;
    ck_ok(swap_register(s, buf, n));
    swap_rig_fill(buf + from, 16 << 20, 3);
    ck_ok(swap_write_begin(s, buf + from, 0, 16 << 20, &ticket));
    ck_ok(swap_wait(s, ticket));
    ck_ok(swap_read_begin(s, buf, 0, 16 << 20, &ticket));
    ck_ok(swap_wait(s, ticket));
    ck_assert(memcmp(buf, buf + from, 16 << 20) == 0);
    memset(buf + from, 0, 16 << 20);
    ck_ok(swap_read_begin(s, buf + from, 0, 16 << 20, &ticket));
    ck_ok(swap_wait(s, ticket));
    ck_assert(memcmp(buf, buf + from, 16 << 20) == 0);
    printf("%s\n", swap_describe(s));
    swap_close(s);
    free(buf);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/swap_random_slow", many_random_runs_agree_with_memory,
          a_buffer_of_more_than_a_gib_round_trips)
