/* Tokens by their bytes. Files write a byte as a printable character: those that are printable in
 * Latin-1 stand for themselves, the 68 others for U+0100 and up, in order (GPT-2's alphabet). */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "base/hash.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- the alphabet ---------------------------------------------------------------------------- */

static bool is_printable(int c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* The bytes without a printable character run 00 … 20, 7F … A0, AD. */
static int alphabet_of(int byte)
{
    if (is_printable(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    return byte == 0xAD ? 0x143 : 0x121 + byte - 0x7F;
}

/* The byte that a character stands for, −1: none. */
int bpe_alphabet_byte(int32_t c)
{
    if (c < 0x100) return is_printable(c) ? c : -1;
    if (c <= 0x120) return c - 0x100;
    if (c <= 0x142) return c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

void bpe_alphabet_char(unsigned char byte, char dst[3])
{
    int c = alphabet_of(byte);
    size_t n = 0;
    if (c < 0x80) {
        dst[n++] = (char)c;
    } else {
        dst[n++] = (char)(0xC0 | c >> 6);
        dst[n++] = (char)(0x80 | (c & 0x3F));
    }
    dst[n] = '\0';
}

/* The bytes that `written` stands for, into dst (as long as it); itself when a character is not of
 * the alphabet. */
static size_t read_written(const char *written, size_t n, char *dst)
{
    size_t used = 0, len;
    for (size_t i = 0; i < n; i += len) {
        int byte = bpe_alphabet_byte(chars_at(written + i, n - i, &len));
        if (byte < 0) {
            memcpy(dst, written, n);
            return n;
        }
        dst[used++] = (char)byte;
    }
    return used;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

cz_status bpe_vocab_init(struct bpe_vocab *v, int64_t size)
{
    memset(v, 0, sizeof *v);
    v->offs = calloc((size_t)size + 1, sizeof *v->offs);
    v->lens = calloc((size_t)size + 1, sizeof *v->lens);
    if (!v->offs || !v->lens)
        return err_set(CZ_NOMEM, 0, "no memory for a vocabulary of %lld", (long long)size);
    v->size = size;
    return CZ_OK;
}

void bpe_vocab_free(struct bpe_vocab *v)
{
    free(v->offs);
    free(v->lens);
    free(v->bytes);
    free(v->slots);
    memset(v, 0, sizeof *v);
}

static cz_status set_token(struct bpe_vocab *v, int64_t id, const char *written, size_t n,
                           size_t (*read)(const char *written, size_t n, char *dst))
{
    if (n > UINT32_MAX / 4) return err_set(CZ_NOMEM, 0, "a token of %zu bytes", n);
    if (!v->bytes || n > v->cap_bytes - v->n_bytes) {
        size_t cap = v->cap_bytes + v->cap_bytes / 2 + n + 4096;
        char *bytes = realloc(v->bytes, cap);
        if (!bytes) return err_set(CZ_NOMEM, 0, "no memory for tokens");
        v->bytes = bytes;
        v->cap_bytes = cap;
    }
    size_t used = read(written, n, v->bytes + v->n_bytes);
    v->offs[id] = v->n_bytes;
    v->lens[id] = (uint32_t)used;
    v->n_bytes += used;
    if (used > v->nbytes_max) v->nbytes_max = (uint32_t)used;
    return CZ_OK;
}

cz_status bpe_vocab_set(struct bpe_vocab *v, int64_t id, const char *written, size_t n)
{
    return set_token(v, id, written, n, read_written);
}

static size_t read_bytes(const char *written, size_t n, char *dst)
{
    memcpy(dst, written, n);
    return n;
}

cz_status bpe_vocab_set_bytes(struct bpe_vocab *v, int64_t id, const char *bytes, size_t n)
{
    return set_token(v, id, bytes, n, read_bytes);
}

/* ---- whole words ----------------------------------------------------------------------------- */

static bool is_token(const struct bpe_vocab *v, uint32_t id, const char *s, size_t n)
{
    return v->lens[id] == n && memcmp(v->bytes + v->offs[id], s, n) == 0;
}

cz_status bpe_vocab_index(struct bpe_vocab *v)
{
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)v->size) n_slots *= 2;
    v->slots = calloc(n_slots, sizeof *v->slots);
    if (!v->slots) return err_set(CZ_NOMEM, 0, "no memory for the words of a vocabulary");
    v->n_slots = n_slots;
    for (uint32_t id = 0; id < (uint32_t)v->size; id++) {
        if (v->lens[id] == 0) continue;
        const char *s = v->bytes + v->offs[id];
        size_t i = (size_t)hash_bytes(s, v->lens[id]) & (n_slots - 1);
        while (v->slots[i] && !is_token(v, v->slots[i] - 1, s, v->lens[id]))
            i = (i + 1) & (n_slots - 1);
        if (!v->slots[i]) v->slots[i] = id + 1;
    }
    return CZ_OK;
}

int32_t bpe_vocab_find(const struct bpe_vocab *v, const char *s, size_t n)
{
    size_t mask = v->n_slots - 1;
    if (n > v->nbytes_max) return -1;
    for (size_t i = (size_t)hash_bytes(s, n) & mask; v->slots[i]; i = (i + 1) & mask)
        if (is_token(v, v->slots[i] - 1, s, n)) return (int32_t)(v->slots[i] - 1);
    return -1;
}
