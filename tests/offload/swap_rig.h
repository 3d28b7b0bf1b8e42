/* What the swap tests share: an open swap in a folder, filled memory, aligned memory. */
#ifndef CZ_TESTS_SWAP_RIG_H
#define CZ_TESTS_SWAP_RIG_H

#include "offload/swap_impl.h"
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

/* Whether io_uring is to be had here; otherwise its rows are left out, which is said. */
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

#endif
