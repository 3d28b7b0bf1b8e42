/* Claim: what is written into a swap file is what is read, at any size and place, aligned and not,
 * through every engine, with and without checksums, and nothing remains. */
#include "swap_rig.h"

#define BLOCK ((size_t)16 << 10)

/* ---- sizes ------------------------------------------------------------------------------------
 */

static void check_unaligned(struct swap *s, uint64_t off, size_t n)
{
    static unsigned char src[4 * BLOCK], dst[4 * BLOCK + 2], around[2 * SWAP_ALIGN];
    swap_rig_fill(src, n, off + n);
    ck_ok(swap_write(s, off, n, src));
    memset(dst, 0xEE, sizeof dst);
    ck_ok(swap_read(s, off, n, dst + 1));
    ck_assert_mem_eq(dst + 1, src, n);
    ck_assert_uint_eq(dst[0], 0xEE);
    ck_assert_uint_eq(dst[n + 1], 0xEE);
    (void)around;
}

static void round_trip_unaligned(const char *dir, const struct swap_way *way)
{
    static const size_t offs[] = {0, 1, 511, 4095, 4096, 4097, BLOCK - 1, BLOCK + 3};
    struct swap *s = swap_rig_open(dir, way, 8 * BLOCK, BLOCK, 3);
    for (size_t k = 0; k < CZ_ARRAY_LEN(offs); k++) {
        for (size_t blocks = 0; blocks <= 3; blocks++)
            for (int d = -1; d <= 1; d++)
                if (blocks * BLOCK > 0 || d == 1)
                    check_unaligned(s, offs[k], blocks * BLOCK + (size_t)(ptrdiff_t)d);
        check_unaligned(s, offs[k], 513);
        check_unaligned(s, offs[k], 4096);
    }
    swap_close(s);
}

static void round_trip_aligned(const char *dir, const struct swap_way *way)
{
    size_t n = 4 * BLOCK;
    unsigned char *src = swap_rig_memory(n), *dst = swap_rig_memory(n);
    struct swap *s = swap_rig_open(dir, way, 2 * n, BLOCK, 2);
    ck_ok(swap_register(s, src, n));
    for (size_t size = SWAP_ALIGN; size <= n; size += SWAP_ALIGN) {
        uint64_t w, r;
        swap_rig_fill(src, size, size);
        ck_ok(swap_write_begin(s, src, size, size, &w));
        ck_ok(swap_wait(s, w));
        ck_ok(swap_read_begin(s, dst, size, size, &r));
        ck_ok(swap_wait(s, r));
        ck_ok(swap_wait(s, w)); /* again is fine */
        ck_assert_mem_eq(dst, src, size);
    }
    swap_close(s);
    free(src);
    free(dst);
}

START_TEST(every_size_round_trips)
{
    const char *dir = test_tmp_make();
    bool has_uring = swap_has_uring(dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(swap_ways); i++) {
        if (swap_ways[i].engine == SWAP_ENGINE_URING && !has_uring) continue;
        round_trip_unaligned(dir, &swap_ways[i]);
        round_trip_aligned(dir, &swap_ways[i]);
    }
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/swap", every_size_round_trips)
