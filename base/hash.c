/* The keyed hash, and the table on it. A table with a known hash function becomes a list for names
 * that were chosen to collide, and reading a small file then takes hours. With a secret key such
 * names cannot be chosen. */
#include "base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/random.h>

/* ---- the key --------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    uint64_t k[4]; /* SipHash's two, then those of hash_key() */
} keys = {.once = PTHREAD_ONCE_INIT};

/* Without getrandom() (a sandbox that forbids it) the 16 random bytes that the kernel gives every
 * process stand in; they are secret, too. */
static void make_keys(void)
{
    size_t have = 0;
    while (have < sizeof keys.k) {
        ssize_t got = getrandom((char *)keys.k + have, sizeof keys.k - have, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (have < sizeof keys.k && random) {
        memcpy(keys.k, random, 16);
        for (uint64_t i = 2; i < 4; i++)
            keys.k[i] = hash_sip(2, 4, keys.k[0], keys.k[1], &i, sizeof i);
    }
    keys.k[3] |= 1;
}

struct hash_key hash_key(void)
{
    pthread_once(&keys.once, make_keys);
    return (struct hash_key){keys.k[2], keys.k[3]};
}

/* ---- SipHash --------------------------------------------------------------------------------- */

static inline uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_rounds(uint64_t v[4], int n)
{
    for (int i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

/* Words are little endian, as this machine's are; the last one holds the remaining bytes and, on
 * top, the length modulo 256. */
static inline uint64_t sip(int c, int d, uint64_t k0, uint64_t k1, const unsigned char *b, size_t n)
{
    uint64_t v[4] = {k0 ^ 0x736F6D6570736575u, k1 ^ 0x646F72616E646F6Du, k0 ^ 0x6C7967656E657261u,
                     k1 ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)n << 56;
    for (; n >= 8; b += 8, n -= 8) {
        memcpy(&word, b, 8);
        v[3] ^= word;
        sip_rounds(v, c);
        v[0] ^= word;
    }
    for (size_t i = 0; i < n; i++) last |= (uint64_t)b[i] << 8 * i;
    v[3] ^= last;
    sip_rounds(v, c);
    v[0] ^= last;
    v[2] ^= 0xFF;
    sip_rounds(v, d);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t hash_sip(int c, int d, uint64_t k0, uint64_t k1, const void *bytes, size_t nbytes)
{
    return sip(c, d, k0, k1, bytes, nbytes);
}

uint64_t hash_bytes(const void *bytes, size_t nbytes)
{
    pthread_once(&keys.once, make_keys);
    return sip(1, 3, keys.k[0], keys.k[1], bytes, nbytes);
}

/* ---- FNV-1a -----------------------------------------------------------------------------------
 */

uint64_t hash_fixed(uint64_t h, const void *bytes, size_t nbytes)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < nbytes; i++) h = (h ^ b[i]) * 0x100000001B3u;
    return h;
}

uint32_t hash_fixed_text_32(const char *text)
{
    uint32_t h = 0x811C9DC5u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x01000193u;
    return h;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Slots are chosen by the upper half of a hash, which they also store: so a table grows without
 * asking for the items, and most wrong items are passed over without a call. */
static void put(struct hash_slot *slots, size_t n_slots, struct hash_slot slot)
{
    size_t at = slot.hash & (n_slots - 1);
    while (slots[at].item) at = (at + 1) & (n_slots - 1);
    slots[at] = slot;
}

cz_status hash_index_reserve(struct hash_index *x, size_t n)
{
    size_t n_slots = x->n_slots ? x->n_slots : 16;
    if (n > (size_t)1 << 31) return err_set(CZ_NOMEM, 0, "a table of %zu names", n);
    while (n_slots < 2 * n) n_slots *= 2;
    if (n_slots == x->n_slots) return CZ_OK;
    struct hash_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return err_set(CZ_NOMEM, 0, "no memory for a table of %zu names", n);
    for (size_t i = 0; i < x->n_slots; i++)
        if (x->slots[i].item) put(slots, n_slots, x->slots[i]);
    free(x->slots);
    x->slots = slots;
    x->n_slots = n_slots;
    return CZ_OK;
}

size_t hash_index_find(const struct hash_index *x, uint64_t hash, hash_same *same, const void *key)
{
    if (x->n == 0) return HASH_NONE;
    const uint32_t upper = (uint32_t)(hash >> 32);
    for (size_t at = upper & (x->n_slots - 1);; at = (at + 1) & (x->n_slots - 1)) {
        const struct hash_slot *slot = &x->slots[at];
        if (slot->item == 0) return HASH_NONE;
        if (slot->hash == upper && same(key, slot->item - 1)) return slot->item - 1;
    }
}

cz_status hash_index_add(struct hash_index *x, uint64_t hash, size_t item)
{
    TRY(hash_index_reserve(x, x->n + 1));
    put(x->slots, x->n_slots,
        (struct hash_slot){.hash = (uint32_t)(hash >> 32), .item = (uint32_t)item + 1});
    x->n++;
    return CZ_OK;
}

void hash_index_free(struct hash_index *x)
{
    free(x->slots);
    memset(x, 0, sizeof *x);
}
