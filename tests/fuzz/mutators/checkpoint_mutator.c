/* Mutations for fuzz_checkpoint.c that leave its pickles whole: bytes at random would mostly break
 * them, and what is behind the unpickler would not be reached. Values are changed where they
 * stand: numbers, one-byte values, letters of keys and names. Every third time bytes change as
 * libFuzzer likes. */
#include "tests/fuzz/fuzz.h"

#include <stdint.h>

size_t LLVMFuzzerMutate(unsigned char *data, size_t nbytes, size_t nbytes_max);
size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max,
                               unsigned seed);

struct place { /* of an argument, or of a one-byte opcode */
    size_t off, nbytes;
    unsigned char op;
};

#define N_PLACES_MAX 4096

static size_t line_end(const unsigned char *data, size_t nbytes, size_t off)
{
    while (off < nbytes && data[off] != '\n') off++;
    return off + 1;
}

/* Opcodes of protocol 2 of one pickle, until something is not one. */
static size_t find_places(const unsigned char *data, size_t off, size_t end, struct place *places,
                          size_t n)
{
    while (off < end && n < N_PLACES_MAX) {
        struct place p = {.off = off + 1, .op = data[off]};
        size_t next = off + 1;
        switch (p.op) {
        case 'K': p.nbytes = 1; break;
        case 'M': p.nbytes = 2; break;
        case 'J': p.nbytes = 4; break;
        case 'G': p.nbytes = 8; break;
        case 0x8a: p.nbytes = next < end ? 1u + data[next] : 0; break;
        case 'X':
            if (end - next < 4) return n;
            p.off = next + 4;
            p.nbytes = data[next] | (size_t)data[next + 1] << 8;
            next += 4;
            break;
        case 'c':
            next = line_end(data, end, line_end(data, end, next));
            p.nbytes = next > end ? 0 : next - off - 2;
            break;
        case 'N':
        case ')':
        case ']':
        case '}':
        case 0x88:
        case 0x89:
            p.off = off;
            p.nbytes = 1;
            break;
        case 'q':
        case 'h':
        case 0x80: next++; break;
        case 'r':
        case 'j': next += 4; break;
        default: break;
        }
        if (p.nbytes > end - p.off || p.off > end) return n;
        if (p.nbytes > 0) places[n++] = p;
        off = p.nbytes > 0 && p.off > off && p.op != 'c' ? p.off + p.nbytes : next;
    }
    return n;
}

static void change(unsigned char *data, const struct place *p, unsigned random)
{
    static const unsigned char values[] = {'N', ')', ']', '}', 0x88, 0x89};
    static const unsigned char numbers[] = {0, 1, 2, 3, 7, 8, 9, 127, 128, 255};
    unsigned char *at = &data[p->off + random / 64 % p->nbytes];
    switch (p->op) {
    case 'X':
    case 'c':
        if (*at != '\n') *at = (unsigned char)(random % 4 ? "._01xlw "[random / 4 % 8] : *at ^ 1);
        if (*at == '\n') *at = 'x';
        break;
    case 'K':
    case 'M':
    case 'J':
    case 'G':
    case 0x8a:
        if (p->op == 0x8a && at == &data[p->off]) break; /* the length stays */
        *at = random % 2 ? numbers[random / 2 % sizeof numbers] : (unsigned char)(random / 2);
        break;
    default: *at = values[random % sizeof values]; break;
    }
}

size_t LLVMFuzzerCustomMutator(unsigned char *data, size_t nbytes, size_t nbytes_max, unsigned seed)
{
    static struct place places[N_PLACES_MAX];
    size_t n = 0;
    if (seed % 3 == 0) return LLVMFuzzerMutate(data, nbytes, nbytes_max);
    for (size_t off = 0; off + 3 < nbytes;) {
        size_t length = data[off + 1] | (size_t)data[off + 2] << 8;
        if (length > nbytes - off - 3) length = nbytes - off - 3;
        n = find_places(data, off + 3, off + 3 + length, places, n);
        off += 3 + length;
    }
    if (n == 0) return LLVMFuzzerMutate(data, nbytes, nbytes_max);
    for (unsigned i = 0; i <= seed / 3 % 3; i++) {
        seed = seed * 1664525u + 1013904223u;
        change(data, &places[(seed >> 8) % n], (seed >> 4) * 2654435761u >> 8);
    }
    return nbytes;
}
