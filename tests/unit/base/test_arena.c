/* Claims: an arena of the planned size holds exactly the planned pieces, aligned and zeroed; one
 * piece more is refused by name; sizes beyond the address space are refused, too; large pieces of
 * equal size do not start at the same place in their pages and memory banks; with AddressSanitizer
 * the gap behind each piece is a red zone; freeing is idempotent. */
#include "base/arena.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

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

/* Pages of address space that this process has, from a file that is read without memory of its
 * own. */
static long mapped_pages(void)
{
    char text[64] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    close(fd);
    return strtol(text, NULL, 10);
}

/* The kernel's note that huge pages were asked for, of the mapping that begins at p. */
static bool asks_for_huge_pages(const void *p)
{
    char line[512], begin[32];
    bool here = false, yes = false;
    snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)p);
    FILE *f = fopen("/proc/self/smaps", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, begin, strlen(begin)) == 0) here = true;
        if (!here || strncmp(line, "VmFlags:", 8) != 0) continue;
        yes = strstr(line, " hg") != NULL;
        break;
    }
    fclose(f);
    return yes;
}

/* Not a page stays behind: a plan-and-try tool maps blocks as large as the machine, many times. */
START_TEST(what_is_mapped_is_what_was_asked_for)
{
    void *none = malloc(1); /* the heap is there */
    free(none);
    const bool has_huge = access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0;
    for (size_t n = 1; n < 40; n++) {
        const size_t nbytes = 4096 * n * n;
        long before = mapped_pages();
        unsigned char *block = arena_map(nbytes);
        ck_assert_ptr_nonnull(block);
        ck_assert_int_eq(mapped_pages(), before + (long)(n * n));
        munmap(block, nbytes);
        ck_assert_int_eq(mapped_pages(), before);
    }
    unsigned char *block = arena_map(2 * ARENA_PAGE_BYTES);
    ck_assert_ptr_nonnull(block);
    if (has_huge) ck_assert(asks_for_huge_pages(block));
    munmap(block, 2 * ARENA_PAGE_BYTES);
}
END_TEST

START_TEST(a_touch_is_one_byte_per_page_and_the_last)
{
    enum { N = 3 * 4096 };
    static unsigned char memory[N + 2];
    const size_t sizes[] = {0, 1, 2, 4096, 4097, 8192, N - 1, N};
    for (size_t s = 0; s < CZ_ARRAY_LEN(sizes); s++) {
        memset(memory, 0xee, sizeof memory);
        arena_touch(memory + 1, sizes[s]);
        for (size_t i = 0; i < sizeof memory; i++) {
            const bool inside = i > 0 && i - 1 < sizes[s];
            const bool zero = inside && ((i - 1) % 4096 == 0 || i == sizes[s]);
            ck_assert_msg((memory[i] == 0) == zero, "%zu of %zu", i, sizes[s]);
        }
    }
}
END_TEST

START_TEST(the_last_piece_may_end_where_the_arena_does)
{
    struct arena a;
    void *p = NULL;
    ck_ok(arena_init(&a, "full", ARENA_PAGE_BYTES));
    ck_assert_uint_eq(a.nbytes, ARENA_PAGE_BYTES);
    const size_t piece = arena_piece(256);
    while (a.used + 2 * piece <= a.nbytes) ck_ok(arena_take(&a, 256, "piece", &p));
    const size_t left = a.nbytes - a.used;
    char want[128];
    ck_fails(arena_take(&a, left + 1, "too much", &p), CZ_NOMEM);
    snprintf(want, sizeof want, "arena full: the plan left %zu bytes for too much, which needs %zu",
             left, left + 1);
    ck_assert_str_eq(cz_last_error(), want);
    if (left > 256 && arena_piece(left) > left) {
        ck_fails(arena_take(&a, left, "its gap", &p), CZ_NOMEM);
        snprintf(want, sizeof want,
                 "arena full: the plan left %zu bytes for its gap, which needs %zu", left,
                 arena_piece(left));
        ck_assert_str_eq(cz_last_error(), want);
    }
    ck_ok(arena_take(&a, 256, "the last", &p));
    ck_assert_uint_eq(a.used, a.nbytes - left + piece);
    arena_free(&a);
}
END_TEST

/* A block is below the last one: what is trimmed behind it must not be the other's beginning. */
START_TEST(blocks_keep_what_they_hold)
{
    enum { N = 24 };
    unsigned char *block[N];
    size_t nbytes[N];
    for (size_t i = 0; i < N; i++) {
        nbytes[i] = 4096 * (1 + 37 * i);
        block[i] = arena_map(nbytes[i]);
        ck_assert_ptr_nonnull(block[i]);
        ck_assert_uint_eq((uintptr_t)block[i] % ARENA_PAGE_BYTES, 0);
        memset(block[i], (int)i + 1, nbytes[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t b = 0; b < nbytes[i]; b += 4096) ck_assert_uint_eq(block[i][b], i + 1);
    for (size_t i = 0; i < N; i++) munmap(block[i], nbytes[i]);
    ck_assert_ptr_null(arena_map(SIZE_MAX - 4096));
    ck_assert_int_eq(errno, ENOMEM);
}
END_TEST

START_TEST(an_empty_arena_holds_nothing)
{
    struct arena a;
    void *p;
    ck_ok(arena_init(&a, "nothing", 0));
    ck_assert_ptr_null(a.base);
    ck_fails(arena_take(&a, 1, "a byte", &p), CZ_NOMEM);
    arena_free(&a);
    memset(&a, 0, sizeof a);
    arena_free(&a);
}
END_TEST

START_TEST(all_of_it_is_zeroed_and_aligned)
{
    struct arena a;
    void *p;
    size_t nbytes = 5 * ARENA_PAGE_BYTES - 3;
    ck_ok(arena_init(&a, "zeros", arena_piece(nbytes)));
    ck_assert_uint_eq((uintptr_t)a.base % ARENA_PAGE_BYTES, 0);
    ck_assert_uint_eq(a.nbytes % ARENA_PAGE_BYTES, 0);
    ck_assert_uint_ge(a.nbytes, nbytes);
    ck_assert_str_eq(a.name, "zeros");
    ck_ok(arena_take(&a, nbytes, "all", &p));
    const unsigned char *bytes = p;
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) n += bytes[i] != 0;
    ck_assert_uint_eq(n, 0);
    arena_free(&a);
    ck_assert_ptr_null(a.base);
    ck_assert_uint_eq(a.nbytes, 0);
}
END_TEST

START_TEST(sizes_beyond_the_address_space_are_refused)
{
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - ARENA_PAGE_BYTES, SIZE_MAX / 2,
                            SIZE_MAX - 2 * ARENA_PAGE_BYTES + 1};
    struct arena a;
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++) {
        ck_fails(arena_init(&a, "huge", sizes[i]), CZ_NOMEM);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "arena huge: cannot map "));
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "Cannot allocate memory"));
        ck_assert_ptr_null(a.base);
        ck_assert_uint_eq(a.nbytes, 0);
    }
}
END_TEST

START_TEST(a_piece_whose_size_wraps_around_is_refused)
{
    struct arena a;
    void *p = NULL;
    ck_ok(arena_init(&a, "small", 4096));
    ck_fails(arena_take(&a, SIZE_MAX - 100, "a defect", &p), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "a defect"));
    ck_assert_ptr_null(p);
    ck_assert_uint_eq(a.used, 0);
    arena_free(&a);
}
END_TEST

#if defined(__SANITIZE_ADDRESS__)
START_TEST(gaps_are_red_zones)
{
    struct arena a;
    void *first, *second;
    ck_ok(arena_init(&a, "zones", ARENA_PAGE_BYTES));
    ck_assert(__asan_address_is_poisoned(a.base));
    ck_ok(arena_take(&a, 1000, "first", &first));
    ck_ok(arena_take(&a, 24, "second", &second));
    const unsigned char *p = first, *q = second;
    ck_assert(!__asan_address_is_poisoned(p));
    ck_assert(!__asan_address_is_poisoned(p + 999));
    for (const unsigned char *gap = p + 1000; gap < q; gap++)
        ck_assert(__asan_address_is_poisoned(gap));
    ck_assert(!__asan_address_is_poisoned(q + 23));
    ck_assert(__asan_address_is_poisoned(q + 24));
    ck_assert(__asan_address_is_poisoned(a.base + a.nbytes - 1));
    const unsigned char *end = a.base + a.nbytes - 1;
    arena_free(&a); /* the next owner of this place may use it */
    ck_assert(!__asan_address_is_poisoned(end));
}
END_TEST
#else
START_TEST(gaps_are_red_zones)
{
    struct arena a;
    void *first, *second;
    ck_ok(arena_init(&a, "zones", ARENA_PAGE_BYTES)); /* only the distance shows */
    ck_ok(arena_take(&a, 1000, "first", &first));
    ck_ok(arena_take(&a, 24, "second", &second));
    ck_assert_int_ge((unsigned char *)second - (unsigned char *)first, 1000 + 256);
    arena_free(&a);
}
END_TEST
#endif

TEST_MAIN("base/arena", the_plan_is_what_fits, large_equal_pieces_lie_more_than_a_page_apart,
          blocks_keep_what_they_hold, an_empty_arena_holds_nothing, all_of_it_is_zeroed_and_aligned,
          sizes_beyond_the_address_space_are_refused, a_piece_whose_size_wraps_around_is_refused,
          gaps_are_red_zones, what_is_mapped_is_what_was_asked_for,
          a_touch_is_one_byte_per_page_and_the_last, the_last_piece_may_end_where_the_arena_does)
