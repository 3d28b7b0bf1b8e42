/* Hash tables over names from files: one hash, keyed with random numbers of the process, and one
 * table, so that no file can be made whose names collide. And a fixed hash without a key, for what
 * processes compare or files hold.
 *
 * The order of keyed hashes differs from process to process: nothing may be stored, sent, listed or
 * decided by it.
 *
 *   hash_index_reserve() → hash_index_find() / hash_index_add() … → hash_index_free() */
#ifndef CZ_BASE_HASH_H
#define CZ_BASE_HASH_H

#include "base/status.h"

#include <string.h>

CZ_EXTERN_C_BEGIN

/* SipHash-1-3 (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012) of nbytes under the
 * process's key, which comes from getrandom() at the first call. Any thread. */
uint64_t hash_bytes(const void *bytes, size_t nbytes);

static inline uint64_t hash_text(const char *text)
{
    return hash_bytes(text, strlen(text));
}

/* SipHash-c-d under a given key, for the published test vectors. */
uint64_t hash_sip(int c, int d, uint64_t k0, uint64_t k1, const void *bytes, size_t nbytes);

/* The process's random numbers, for tables of integers whose hash must be cheaper than SipHash:
 * such a hash has to be keyed with both, and mix with a multiplication by an odd one. */
struct hash_key {
    uint64_t a, b; /* b is odd */
};
struct hash_key hash_key(void);

/* A number under a key, by multiplications: collisions cannot be chosen without knowing the key. */
static inline uint64_t hash_number(struct hash_key key, uint64_t x)
{
    x = (x ^ key.a) * key.b;
    x = (x ^ x >> 32) * key.b;
    return x ^ x >> 29;
}

/* ---- without a key ----------------------------------------------------------------------------
 */

#define HASH_FIXED_BEGIN 0xCBF29CE484222325u

/* FNV-1a of 64 bits (Fowler, Noll, Vo): equal in all processes, hosts and versions. Bytes that
 * collide can be chosen, so it is not for tables of foreign names. h: HASH_FIXED_BEGIN, or the
 * hash of the bytes before these. */
uint64_t hash_fixed(uint64_t h, const void *bytes, size_t nbytes);

static inline uint64_t hash_fixed_text(const char *text)
{
    return hash_fixed(HASH_FIXED_BEGIN, text, strlen(text));
}

/* The same of 32 bits, for names of files and marks that hold such numbers. */
uint32_t hash_fixed_text_32(const char *text);

/* ---- the table ------------------------------------------------------------------------------- */

struct hash_slot {
    uint32_t hash; /* its upper half */
    uint32_t item; /* 1 + the item's number, 0: free */
};

/* Items are numbered by the caller, which keeps them; the table keeps numbers and hashes only. Open
 * addressing, at most half full. A zeroed one is empty. Up to 2^31 items. Threads may search it
 * together as long as none adds. */
struct hash_index {
    struct hash_slot *slots;
    size_t n_slots, n; /* n_slots: 0 or a power of two */
};

#define HASH_NONE SIZE_MAX

/* Whether the item of that number is the one searched for; `key` is the caller's, as passed. */
typedef bool hash_same(const void *key, size_t item);

/* Space for n items in all. CZ_NOMEM. */
cz_status hash_index_reserve(struct hash_index *x, size_t n);

/* The number of the item, HASH_NONE: not there. O(1) on average for every input. */
size_t hash_index_find(const struct hash_index *x, uint64_t hash, hash_same *same, const void *key);

/* Adds an item that hash_index_find() did not find. CZ_NOMEM; nothing has changed then. */
cz_status hash_index_add(struct hash_index *x, uint64_t hash, size_t item);

void hash_index_free(struct hash_index *x); /* accepts a zeroed one; idempotent */

CZ_EXTERN_C_END
#endif
