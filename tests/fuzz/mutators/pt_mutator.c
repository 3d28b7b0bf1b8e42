/* Mutations for fuzz_pt.c: fields of the zip's headers, and the opcodes of data.pkl with sizes,
 * sums and offsets made right again; every third time bytes. */
#include "formats/crc32.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutators/pickle_mutator.h"

size_t LLVMFuzzerMutate(unsigned char *data, size_t nbytes, size_t nbytes_max);
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max,
                               unsigned seed);

#define N_HEADERS_MAX 256

/* A header, its size, and where its fields are: offset and bytes of each (APPNOTE.TXT 4.3). */
static const struct kind {
    char magic[5];
    size_t nbytes;
    struct {
        unsigned char off, nbytes;
    } fields[18];
} kinds[] = {
    {"PK\3\4", 30, {{4, 2}, {6, 2}, {8, 2}, {14, 4}, {18, 4}, {22, 4}, {26, 2}, {28, 2}}},
    {"PK\1\2",
     46,
     {{6, 2},
      {8, 2},
      {10, 2},
      {16, 4},
      {20, 4},
      {24, 4},
      {28, 2},
      {30, 2},
      {32, 2},
      {34, 2},
      {42, 4}}},
    {"PK\5\6", 22, {{4, 2}, {6, 2}, {8, 2}, {10, 2}, {12, 4}, {16, 4}, {20, 2}}},
    {"PK\6\6", 56, {{4, 8}, {16, 4}, {20, 4}, {24, 8}, {32, 8}, {40, 8}, {48, 8}}},
    {"PK\6\7", 20, {{4, 4}, {8, 8}, {16, 4}}},
};

struct header {
    size_t off;
    const struct kind *kind;
};

static size_t find_headers(const unsigned char *data, size_t nbytes, struct header *headers)
{
    size_t n = 0;
    for (size_t off = 0; off + 20 <= nbytes && n < N_HEADERS_MAX; off++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (memcmp(data + off, kinds[k].magic, 4) == 0 && kinds[k].nbytes <= nbytes - off)
                headers[n++] = (struct header){off, &kinds[k]};
    return n < N_HEADERS_MAX ? n : N_HEADERS_MAX;
}

static uint64_t get(const unsigned char *at, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static void put(unsigned char *at, size_t n, uint64_t value)
{
    for (size_t i = 0; i < n; i++) at[i] = (unsigned char)(value >> 8 * i);
}

static void change_field(unsigned char *data, size_t nbytes, const struct header *h,
                         uint32_t *state)
{
    size_t n = 0;
    while (n < 18 && h->kind->fields[n].nbytes > 0) n++;
    size_t f = mutator_random(state) % n, width = h->kind->fields[f].nbytes;
    unsigned char *at = data + h->off + h->kind->fields[f].off;
    uint64_t old = get(at, width);
    const uint64_t values[] = {
        0,          1,      old + 1,         old - 1, old * 2,
        UINT64_MAX, nbytes, nbytes - h->off, h->off,  1ull << (8 * width - 1),
        8,          0x0808};
    put(at, width, values[mutator_random(state) % (sizeof values / sizeof *values)]);
}

/* data.pkl with other opcodes. Zip64 archives keep their length: their pickle only changes in
 * place. */
static size_t change_pickle(unsigned char *data, size_t nbytes, size_t nbytes_max,
                            const struct header *headers, size_t n, uint32_t seed)
{
    static unsigned char pickle[1 << 16];
    for (size_t i = 0; i < n; i++) {
        const struct header *h = &headers[i];
        if (h->kind != &kinds[1]) continue;
        size_t n_name = get(data + h->off + 28, 2), n_old = get(data + h->off + 24, 4);
        size_t local = get(data + h->off + 42, 4);
        if (h->off + 46 + n_name > nbytes || n_name < 8) continue;
        if (memcmp(data + h->off + 46 + n_name - 8, "data.pkl", 8) != 0) continue;
        if (local + 30 > nbytes || n_old > sizeof pickle) return 0;
        size_t off = local + 30 + get(data + local + 26, 2) + get(data + local + 28, 2);
        if (off > nbytes || n_old > nbytes - off || h->off < off + n_old) return 0;
        memcpy(pickle, data + off, n_old);
        size_t n_new = pickle_mutate(pickle, n_old, sizeof pickle, seed);
        if (n_new == 0 || nbytes - n_old + n_new > nbytes_max) return 0;
        uint64_t sum = crc32_update(0, pickle, n_new), grown = n_new - n_old;
        put(data + local + 14, 4, sum);
        put(data + local + 18, 4, n_new);
        put(data + local + 22, 4, n_new);
        put(data + h->off + 16, 4, sum);
        put(data + h->off + 20, 4, n_new);
        put(data + h->off + 24, 4, n_new);
        for (size_t k = 0; k < n; k++) {
            unsigned char *at = data + headers[k].off;
            if (headers[k].kind == &kinds[1] && get(at + 42, 4) > local)
                put(at + 42, 4, get(at + 42, 4) + grown);
            if (headers[k].kind == &kinds[2]) put(at + 16, 4, get(at + 16, 4) + grown);
        }
        mutator_splice(data, &nbytes, nbytes_max, off, n_old, pickle, n_new);
        return nbytes;
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max, unsigned seed)
{
    static struct header headers[N_HEADERS_MAX];
    uint32_t state = seed;
    size_t n = seed % 3 ? find_headers(data, nbytes, headers) : 0;
    if (n == 0) return LLVMFuzzerMutate(data, nbytes, nbytes_max);
    if (mutator_random(&state) % 2 == 0) {
        size_t done = change_pickle(data, nbytes, nbytes_max, headers, n, seed);
        return done > 0 ? done : LLVMFuzzerMutate(data, nbytes, nbytes_max);
    }
    for (uint32_t i = mutator_random(&state) % 3 + 1; i > 0; i--)
        change_field(data, nbytes, &headers[mutator_random(&state) % n], &state);
    return nbytes;
}
