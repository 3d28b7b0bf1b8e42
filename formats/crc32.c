/* CRC-32 of zip files, and of a whole from its pieces. Pieces let threads sum different parts of a
 * file at the same time, and a manifest sum a file that was never in memory at once. */
#include "formats/crc32.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

/* libdeflate uses the CPU's carry-less multiplication where there is one. */
uint32_t crc32_update(uint32_t crc, const void *data, size_t nbytes)
{
    return nbytes == 0 ? crc : libdeflate_crc32(crc, data, nbytes);
}

/* ---- concatenation ----------------------------------------------------------------------------
 * A CRC is a polynomial over GF(2) modulo the generator, bit 31 its constant term. Appending n
 * bytes to A multiplies A's by x^(8n); the inversions at begin and end cancel out in the sum. */

#define GENERATOR 0xEDB88320u
#define X_TO_0    0x80000000u
#define X_TO_8    0x00800000u /* one byte */

/* Product of two polynomials modulo the generator, one bit of `a` at a time: 32 steps, which is
 * nothing beside summing the bytes. */
static uint32_t mul_mod(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t term = X_TO_0; term != 0; term >>= 1) {
        if (a & term) product ^= b;
        b = b & 1 ? b >> 1 ^ GENERATOR : b >> 1; /* times x */
    }
    return product;
}

/* x^(8n) by repeated squaring, so appending a terabyte takes 40 multiplications. */
uint32_t crc32_concat(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b)
{
    uint32_t shift = X_TO_0, power = X_TO_8;
    for (; nbytes_b != 0; nbytes_b >>= 1) {
        if (nbytes_b & 1) shift = mul_mod(shift, power);
        power = mul_mod(power, power);
    }
    return mul_mod(crc_a, shift) ^ crc_b;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A run of bytes whose sum is known. Neighbouring runs are joined at once, so a file that is
 * written nearly in order needs few of them. */
struct crc32_piece {
    uint64_t off, nbytes;
    uint32_t crc;
};

static uint64_t piece_end(const struct crc32_piece *piece)
{
    return piece->off + piece->nbytes;
}

static cz_status grow(struct crc32_pieces *p)
{
    if (p->n < p->cap) return CZ_OK;
    size_t cap = 2 * p->cap + 8;
    struct crc32_piece *pieces = realloc(p->pieces, cap * sizeof *pieces);
    if (!pieces) return err_set(CZ_NOMEM, 0, "no memory for %zu checksums", cap);
    p->pieces = pieces;
    p->cap = cap;
    return CZ_OK;
}

static void append_to(struct crc32_piece *left, const struct crc32_piece *right)
{
    left->crc = crc32_concat(left->crc, right->crc, right->nbytes);
    left->nbytes += right->nbytes;
}

cz_status crc32_pieces_add(struct crc32_pieces *p, uint64_t off, uint64_t nbytes, uint32_t crc)
{
    const struct crc32_piece added = {.off = off, .nbytes = nbytes, .crc = crc};
    if (nbytes == 0) return CZ_OK;
    if (off > UINT64_MAX - nbytes)
        return err_set(CZ_INVALID, 0, "a piece of %llu bytes at byte %llu ends beyond all numbers",
                       (unsigned long long)nbytes, (unsigned long long)off);
    /* The first piece that begins after `off`. */
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (p->pieces[middle].off > off)
            high = middle;
        else
            low = middle + 1;
    }
    size_t at = low;
    struct crc32_piece *left = at > 0 ? &p->pieces[at - 1] : NULL;
    struct crc32_piece *right = at < p->n ? &p->pieces[at] : NULL;
    if ((left && piece_end(left) > off) || (right && right->off < off + nbytes))
        return err_set(CZ_INVALID, 0, "some of bytes %llu to %llu come a second time",
                       (unsigned long long)off, (unsigned long long)(off + nbytes));
    bool joins_left = left && piece_end(left) == off;
    bool joins_right = right && right->off == off + nbytes;
    if (joins_left) {
        append_to(left, &added);
        if (!joins_right) return CZ_OK;
        append_to(left, right);
        p->n--;
        memmove(right, right + 1, (p->n - at) * sizeof *right);
        return CZ_OK;
    }
    if (joins_right) {
        struct crc32_piece whole = added;
        append_to(&whole, right);
        *right = whole;
        return CZ_OK;
    }
    TRY(grow(p));
    memmove(p->pieces + at + 1, p->pieces + at, (p->n - at) * sizeof *p->pieces);
    p->pieces[at] = added;
    p->n++;
    return CZ_OK;
}

/* Only one piece that spans everything is a total: a gap or a surplus means that the layout and
 * what was written differ. */
cz_status crc32_pieces_total(const struct crc32_pieces *p, uint64_t nbytes, uint32_t *crc)
{
    const struct crc32_piece *first = p->n > 0 && p->pieces[0].off == 0 ? &p->pieces[0] : NULL;
    uint64_t end = first ? first->nbytes : 0;
    *crc = first ? first->crc : 0;
    if (end < nbytes)
        return err_set(CZ_INVALID, 0, "byte %llu of %llu is missing", (unsigned long long)end,
                       (unsigned long long)nbytes);
    if (end > nbytes || p->n > 1)
        return err_set(CZ_INVALID, 0, "there are more than %llu bytes", (unsigned long long)nbytes);
    return CZ_OK;
}

void crc32_pieces_free(struct crc32_pieces *p)
{
    free(p->pieces);
    memset(p, 0, sizeof *p);
}
