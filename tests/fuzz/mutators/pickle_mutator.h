/* Changes to a pickle that leave it a sequence of opcodes: random bytes mostly end in a refusal of
 * the first broken opcode, and what is behind is not reached. Used for pickles by themselves
 * (pickle_mutator.c) and inside archives (pt_mutator.c). */
#ifndef CZ_TESTS_PICKLE_MUTATOR_H
#define CZ_TESTS_PICKLE_MUTATOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct pickle_op {
    size_t off, nbytes;
};

enum { PICKLE_N_OPS_MAX = 4096 };

static inline uint32_t mutator_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) * 2654435761u >> 4;
}

/* Bytes of the number or length after an opcode (0 to 8); n_lines: texts that end with a line. */
static inline size_t pickle_arg_nbytes(unsigned char op, bool *is_length, int *n_lines)
{
    *is_length = strchr("UCTBX", op) != NULL && op != 0;
    *n_lines = op == 'c' || op == 'i' ? 2 : op != 0 && strchr("ILFSVPpg", op) ? 1 : 0;
    switch (op) {
    case 0x8a:
    case 0x8c: *is_length = true; return 1;
    case 0x8b: *is_length = true; return 4;
    case 0x8d:
    case 0x8e:
    case 0x96: *is_length = true; return 8;
    case 'U':
    case 'C':
    case 'K':
    case 'h':
    case 'q':
    case 0x80:
    case 0x82: return 1;
    case 'M':
    case 0x83: return 2;
    case 'T':
    case 'B':
    case 'X':
    case 'J':
    case 'j':
    case 'r':
    case 0x84: return 4;
    case 'G':
    case 0x95: return 8;
    default: return 0;
    }
}

/* The opcodes up to STOP, the end, or one that does not fit. */
static inline size_t pickle_find_ops(const unsigned char *data, size_t nbytes,
                                     struct pickle_op *ops)
{
    size_t n = 0;
    for (size_t off = 0; off < nbytes && n < PICKLE_N_OPS_MAX;) {
        bool is_length;
        int n_lines;
        size_t arg = pickle_arg_nbytes(data[off], &is_length, &n_lines), next = off + 1 + arg;
        if (next > nbytes) break;
        uint64_t length = 0;
        for (size_t i = 0; is_length && i < arg; i++)
            length |= (uint64_t)data[off + 1 + i] << 8 * i;
        if (length > nbytes - next) break;
        next += (size_t)length;
        for (; n_lines > 0 && next < nbytes; n_lines--) {
            while (next < nbytes && data[next] != '\n') next++;
            next += next < nbytes;
        }
        ops[n++] = (struct pickle_op){off, next - off};
        if (data[off] == '.') break;
        off = next;
    }
    return n;
}

/* Replaces n_old bytes at off by n_new ones; false: no space. `bytes` is not inside data. */
static inline bool mutator_splice(unsigned char *data, size_t *nbytes, size_t nbytes_max,
                                  size_t off, size_t n_old, const void *bytes, size_t n_new)
{
    if (*nbytes - n_old + n_new > nbytes_max) return false;
    memmove(data + off + n_new, data + off + n_old, *nbytes - off - n_old);
    memcpy(data + off, bytes, n_new);
    *nbytes += n_new - n_old;
    return true;
}

/* Some of the opcodes that a torch checkpoint is made of, and of those that attacks are made of. */
static inline void pickle_insert(unsigned char *data, size_t *nbytes, size_t nbytes_max, size_t off,
                                 uint32_t random)
{
    static const char *const snippets[] = {"(",
                                           ")",
                                           "]",
                                           "}",
                                           "N",
                                           "0",
                                           "1",
                                           "2",
                                           "\x85",
                                           "\x86",
                                           "\x87",
                                           "t",
                                           "l",
                                           "d",
                                           "R",
                                           "b",
                                           "\x81",
                                           "\x92",
                                           "a",
                                           "e",
                                           "s",
                                           "u",
                                           "Q",
                                           ".",
                                           "\x94",
                                           "\x8f",
                                           "\x90",
                                           "\x91",
                                           "K\x01",
                                           "M\xff\xff",
                                           "J\xff\xff\xff\xff",
                                           "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                                           "ccollections\nOrderedDict\n",
                                           "ctorch._utils\n_rebuild_tensor_v2\n",
                                           "ctorch._utils\n_rebuild_parameter\n",
                                           "ctorch\nFloatStorage\n",
                                           "ctorch\nSize\n",
                                           "cposix\nsystem\n",
                                           "iposix\nsystem\n",
                                           "I01\n",
                                           "F1e999\n",
                                           "L9L\n",
                                           "P1\n",
                                           "\x95",
                                           "\x96"};
    const char *s = snippets[random % (sizeof snippets / sizeof *snippets)];
    mutator_splice(data, nbytes, nbytes_max, off, 0, s, strlen(s));
}

/* A number's bytes, a letter of a text, or one more or one less letter with the length to match. */
static inline void pickle_change(unsigned char *data, size_t *nbytes, size_t nbytes_max,
                                 const struct pickle_op *op, uint32_t *state)
{
    static const unsigned char numbers[] = {0, 1, 2, 3, 7, 8, 9, 127, 128, 255};
    bool is_length;
    int n_lines;
    size_t arg = pickle_arg_nbytes(data[op->off], &is_length, &n_lines);
    size_t text = op->off + 1 + (is_length ? arg : 0), n_text = op->off + op->nbytes - text;
    uint32_t random = mutator_random(state);
    if (!is_length && n_lines == 0 && arg > 0) {
        data[op->off + 1 + random / 16 % arg] = numbers[random % sizeof numbers];
    } else if (is_length && random % 4 == 0) {
        bool grows = random & 16;
        if (!grows && n_text == 0) return;
        uint64_t length = n_text + (uint64_t)grows - (uint64_t)!grows;
        if (arg == 1 && length > 255) return;
        if (!mutator_splice(data, nbytes, nbytes_max, text, grows ? 0 : 1, "/", grows)) return;
        for (size_t i = 0; i < arg; i++) data[op->off + 1 + i] = (unsigned char)(length >> 8 * i);
    } else if (n_text > 0) {
        unsigned char *at = &data[text + random / 16 % n_text];
        if (*at != '\n')
            *at = (unsigned char)(random % 2 ? "._/01xl \x1b\xe2"[random / 2 % 10] : *at ^ 1);
    } else {
        static const unsigned char alike[] = {'N', ')', ']', '}', 0x88, 0x89, '(',  '0',  'a',
                                              'b', 'R', 's', 'u', 'e',  't',  0x85, 0x86, 0x87};
        data[op->off] = alike[random % sizeof alike];
    }
}

/* One to four changes. Returns the new length; 0: nothing was recognised. */
static inline size_t pickle_mutate(unsigned char *data, size_t nbytes, size_t nbytes_max,
                                   uint32_t seed)
{
    static struct pickle_op ops[PICKLE_N_OPS_MAX];
    static unsigned char copy[1 << 12];
    uint32_t state = seed;
    for (uint32_t n_changes = mutator_random(&state) % 4 + 1; n_changes > 0; n_changes--) {
        size_t n = pickle_find_ops(data, nbytes, ops);
        if (n == 0) return 0;
        size_t i = mutator_random(&state) % n, j = mutator_random(&state) % n;
        size_t last = i + mutator_random(&state) % 8 < n ? i + mutator_random(&state) % 8 : i;
        if (last < i || last >= n) last = i;
        size_t n_run = ops[last].off + ops[last].nbytes - ops[i].off;
        switch (mutator_random(&state) % 8) {
        case 0: mutator_splice(data, &nbytes, nbytes_max, ops[i].off, ops[i].nbytes, "", 0); break;
        case 1: /* a run of opcodes once more, elsewhere */
            if (n_run > sizeof copy) break;
            memcpy(copy, data + ops[i].off, n_run);
            mutator_splice(data, &nbytes, nbytes_max, ops[j].off, 0, copy, n_run);
            break;
        case 2: pickle_insert(data, &nbytes, nbytes_max, ops[i].off, mutator_random(&state)); break;
        case 3: /* one opcode in another's place */
            if (ops[i].nbytes > sizeof copy) break;
            memcpy(copy, data + ops[i].off, ops[i].nbytes);
            mutator_splice(data, &nbytes, nbytes_max, ops[j].off, ops[j].nbytes, copy,
                           ops[i].nbytes);
            break;
        default: pickle_change(data, &nbytes, nbytes_max, &ops[i], &state); break;
        }
    }
    return nbytes;
}

#endif
