/* The end of a .pt's zip: where its directory lies. */
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"

#include <stdlib.h>
#include <string.h>

#define CORRUPT(...) err_set(CZ_CORRUPT, 0, __VA_ARGS__)
#define ULL(x)       ((unsigned long long)(x))

struct source {
    const char *path;
    int fd;
    uint64_t nbytes;
};

/* The record that ends with the file, whatever comment it carries. */
static cz_status find_end(const struct source *s, unsigned char *tail, size_t n, uint64_t *end_off)
{
    uint64_t tail_off = s->nbytes - n;
    TRY(file_pread(s->fd, s->path, tail, n, tail_off));
    for (size_t at = n < ZIP_END_NBYTES ? 0 : n - ZIP_END_NBYTES + 1; at-- > 0;) {
        if (get_u32(tail + at) != ZIP_END) continue;
        if (at + ZIP_END_NBYTES + get_u16(tail + at + 20) != n) continue;
        *end_off = tail_off + at;
        memmove(tail, tail + at, ZIP_END_NBYTES);
        return CZ_OK;
    }
    return CORRUPT("%s: no end of a zip directory in its last %zu bytes: truncated, or not a .pt "
                   "file",
                   s->path, n);
}

/* Whether a number of the classic record is left to, or the same as, that of the zip64 record. */
static bool agrees(uint64_t classic, uint64_t mark, uint64_t zip64)
{
    return classic == mark || classic == zip64;
}

static cz_status read_zip64_end(const struct source *s, uint64_t locator_off,
                                struct pt_zip_directory *d)
{
    unsigned char locator[ZIP64_LOCATOR_NBYTES], end[ZIP64_END_NBYTES];
    TRY(file_pread(s->fd, s->path, locator, sizeof locator, locator_off));
    uint64_t off = get_u64(locator + 8);
    if (locator_off < sizeof end || off > locator_off - sizeof end)
        return CORRUPT("%s: the zip64 end at byte %llu is outside the file", s->path, ULL(off));
    TRY(file_pread(s->fd, s->path, end, sizeof end, off));
    if (get_u32(end) != ZIP64_END)
        return CORRUPT("%s: no zip64 end at byte %llu", s->path, ULL(off));
    if (get_u32(end + 16) != 0 || get_u32(end + 20) != 0 || get_u64(end + 24) != get_u64(end + 32))
        return CORRUPT("%s: the zip64 end at byte %llu is of an archive in several files", s->path,
                       ULL(off));
    struct pt_zip_directory zip64 = {
        .n_entries = get_u64(end + 32), .nbytes = get_u64(end + 40), .off = get_u64(end + 48)};
    if (!agrees(d->n_entries, ZIP_IN_ZIP64_16, zip64.n_entries) ||
        !agrees(d->nbytes, ZIP_IN_ZIP64, zip64.nbytes) || !agrees(d->off, ZIP_IN_ZIP64, zip64.off))
        return CORRUPT("%s: its two ends of directory, at bytes %llu and %llu, disagree", s->path,
                       ULL(off), ULL(locator_off + ZIP64_LOCATOR_NBYTES));
    *d = zip64;
    return CZ_OK;
}

/* The classic record, which every zip ends with. */
static cz_status read_end(const struct source *s, struct pt_zip_directory *d, uint64_t *end_off)
{
    size_t n = ZIP_END_NBYTES + UINT16_MAX;
    if (n > s->nbytes) n = (size_t)s->nbytes;
    unsigned char *tail = malloc(n + ZIP_END_NBYTES);
    if (!tail) return err_set(CZ_NOMEM, 0, "%s: no memory for its end", s->path);
    cz_status st = find_end(s, tail, n, end_off);
    if (st == CZ_OK) {
        d->n_entries = get_u16(tail + 10);
        d->nbytes = get_u32(tail + 12);
        d->off = get_u32(tail + 16);
        if (get_u16(tail + 4) != 0 || get_u16(tail + 6) != 0 || get_u16(tail + 8) != d->n_entries)
            st = CORRUPT("%s: its end at byte %llu is of an archive in several files", s->path,
                         ULL(*end_off));
    }
    free(tail);
    return st;
}

cz_status pt_zip_find_directory(int fd, const char *path, uint64_t nbytes,
                                struct pt_zip_directory *d)
{
    const struct source s = {.path = path, .fd = fd, .nbytes = nbytes};
    unsigned char signature[4] = {0};
    uint64_t end_off = 0;
    TRY(read_end(&s, d, &end_off));
    uint64_t before = end_off; /* where the directory must have ended */
    if (end_off >= ZIP64_LOCATOR_NBYTES)
        TRY(file_pread(fd, path, signature, sizeof signature, end_off - ZIP64_LOCATOR_NBYTES));
    if (get_u32(signature) == ZIP64_LOCATOR) {
        before = end_off - ZIP64_LOCATOR_NBYTES;
        TRY(read_zip64_end(&s, before, d));
    }
    if (d->off > before || d->nbytes > before - d->off)
        return CORRUPT("%s: its directory, %llu bytes at byte %llu, is outside the file (%llu "
                       "bytes)",
                       path, ULL(d->nbytes), ULL(d->off), ULL(nbytes));
    if (d->nbytes > PT_WHOLE_NBYTES_MAX)
        return CORRUPT("%s: a directory of %llu bytes; at most %llu are read", path, ULL(d->nbytes),
                       ULL(PT_WHOLE_NBYTES_MAX));
    if (d->n_entries > d->nbytes / ZIP_CENTRAL_NBYTES)
        return CORRUPT("%s: %llu records do not fit its directory of %llu bytes", path,
                       ULL(d->n_entries), ULL(d->nbytes));
    return CZ_OK;
}
