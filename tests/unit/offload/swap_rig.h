/* What the swap tests share: an open swap in a folder, filled memory, aligned memory. */
#ifndef CZ_TESTS_SWAP_RIG_H
#define CZ_TESTS_SWAP_RIG_H

#include "offload/swap/swap_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

/* Every way to move blocks; each test that loops over them says in its name what it claims. */
static const struct swap_way {
    enum swap_engine engine;
    bool checksums;
} swap_ways[] = {{SWAP_ENGINE_URING, false},
                 {SWAP_ENGINE_THREADS, false},
                 {SWAP_ENGINE_URING, true},
                 {SWAP_ENGINE_THREADS, true}};

/* Whether io_uring is to be had here; otherwise its rows are left out, which is reported. */
static inline bool swap_has_uring(const char *dir)
{
    struct swap_options o = {.dir = dir, .nbytes = SWAP_ALIGN, .engine = SWAP_ENGINE_URING};
    struct swap *s;
    cz_status st = swap_open(&o, &s);
    if (st != CZ_OK) printf("left out: %s\n", cz_last_error());
    if (st == CZ_OK) swap_close(s);
    return st == CZ_OK;
}

static inline struct swap *swap_rig_open(const char *dir, const struct swap_way *way, size_t nbytes,
                                         size_t block_nbytes, int queue_depth)
{
    struct swap *s;
    ck_ok(swap_open(&(struct swap_options){.dir = dir,
                                           .nbytes = nbytes,
                                           .block_nbytes = block_nbytes,
                                           .queue_depth = queue_depth,
                                           .checksums = way->checksums,
                                           .engine = way->engine},
                    &s));
    return s;
}

static inline unsigned char *swap_rig_memory(size_t nbytes)
{
    void *memory;
    ck_assert_int_eq(posix_memalign(&memory, SWAP_ALIGN, nbytes), 0);
    memset(memory, 0, nbytes);
    return memory;
}

/* Bytes that differ from place to place and from seed to seed. */
static inline void swap_rig_fill(unsigned char *p, size_t nbytes, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < nbytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = (unsigned char)x;
    }
}

/* An assertion per byte would take Check seconds. */
static inline bool swap_rig_is_all(const unsigned char *p, size_t nbytes, unsigned char value)
{
    size_t i = 0;
    while (i < nbytes && p[i] == value) i++;
    return i == nbytes;
}

/* Names in a folder beside "." and "..". */
static inline int swap_rig_entries(const char *dir)
{
    char command[1200];
    snprintf(command, sizeof command, "ls -A '%s' 2>/dev/null | wc -l", dir);
    FILE *out = popen(command, "r");
    int n = -1;
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fscanf(out, "%d", &n), 1);
    pclose(out);
    return n;
}

/* ---- round trips of every size ----------------------------------------------------------------
 */

#define SWAP_RIG_BLOCK ((size_t)16 << 10)

static inline void swap_rig_unaligned_one(struct swap *s, uint64_t off, size_t n)
{
    static unsigned char src[4 * SWAP_RIG_BLOCK], dst[4 * SWAP_RIG_BLOCK + 2];
    swap_rig_fill(src, n, off + n);
    ck_ok(swap_write(s, off, n, src));
    memset(dst, 0xEE, sizeof dst);
    ck_ok(swap_read(s, off, n, dst + 1));
    ck_assert_mem_eq(dst + 1, src, n);
    ck_assert_uint_eq(dst[0], 0xEE);
    ck_assert_uint_eq(dst[n + 1], 0xEE);
}

/* 1 byte to 3 blocks and one, each next to a multiple of a block, at offsets that fit nothing; what
 * surrounds them stays. */
static inline void swap_rig_unaligned(const char *dir, const struct swap_way *way)
{
    static const size_t offs[] = {1, 4095, 4096, SWAP_RIG_BLOCK - 1, SWAP_RIG_BLOCK + 3};
    static const unsigned char guard[3] = {1, 2, 3};
    size_t nbytes = 8 * SWAP_RIG_BLOCK;
    unsigned char ends[6];
    struct swap *s = swap_rig_open(dir, way, nbytes, SWAP_RIG_BLOCK, 3);
    for (size_t k = 0; k < CZ_ARRAY_LEN(offs); k++) {
        uint64_t behind = offs[k] + 3 * SWAP_RIG_BLOCK + 1;
        ck_ok(swap_write(s, behind, 3, guard));
        ck_ok(swap_write(s, offs[k] - 1, 1, guard));
        for (size_t n = 0; n <= 3 * SWAP_RIG_BLOCK; n += SWAP_RIG_BLOCK)
            for (int d = n == 0 ? 1 : -1; d <= 1; d++)
                swap_rig_unaligned_one(s, offs[k], n + (size_t)(ptrdiff_t)d);
        swap_rig_unaligned_one(s, offs[k], 513);
        swap_rig_unaligned_one(s, offs[k], 4096);
        ck_ok(swap_read(s, behind, 3, ends));
        ck_ok(swap_read(s, offs[k] - 1, 1, ends + 3));
        ck_assert_mem_eq(ends, guard, 3);
        ck_assert_uint_eq(ends[3], guard[0]);
    }
    swap_close(s);
}

static inline void swap_rig_aligned(const char *dir, const struct swap_way *way)
{
    size_t n = 4 * SWAP_RIG_BLOCK;
    unsigned char *src = swap_rig_memory(n), *dst = swap_rig_memory(n);
    struct swap *s = swap_rig_open(dir, way, 2 * n, SWAP_RIG_BLOCK, 2);
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

#endif
