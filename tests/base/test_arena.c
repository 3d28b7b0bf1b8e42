/* Claims: an arena of the planned size holds exactly the planned pieces, aligned and zeroed; one
 * piece more is refused by name; large pieces of equal size do not start at the same place in their
 * pages and memory banks. */
#include "base/arena.h"
#include "tests/support/check_main.h"

#include <string.h>

START_TEST(the_plan_is_what_fits)
{
    const size_t sizes[] = {1, 255, 256, 257, 4096, 100000, (size_t)3 << 20};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) total += arena_piece(sizes[i]);
    struct arena a;
    ck_ok(arena_init(&a, "test", total));
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        void *p;
        ck_ok(arena_take(&a, sizes[i], "piece", &p));
        ck_assert_uint_eq((uintptr_t)p % ARENA_ALIGN, 0);
        for (size_t b = 0; b < sizes[i]; b += sizes[i] / 3 + 1)
            if (((unsigned char *)p)[b] != 0) ck_abort_msg("byte %zu is not zero", b);
        memset(p, 0xff, sizes[i]);
    }
    ck_assert_uint_eq(a.used, total);
    void *p;
    ck_fails(arena_take(&a, a.nbytes, "one too many", &p), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "one too many"));
    arena_free(&a);
    arena_free(&a);
}
END_TEST

START_TEST(large_equal_pieces_lie_more_than_a_page_apart)
{
    for (size_t nbytes = ARENA_LARGE; nbytes <= (size_t)1 << 30; nbytes *= 2)
        for (size_t n = 1; n <= 8; n++) { /* the distance of pieces n places apart */
            size_t within = n * arena_piece(nbytes) % ((size_t)1 << 20);
            ck_assert_uint_ge(within, 4096);
            ck_assert_uint_le(within, ((size_t)1 << 20) - 4096);
        }
}
END_TEST

TEST_MAIN("base/arena", the_plan_is_what_fits, large_equal_pieces_lie_more_than_a_page_apart)
