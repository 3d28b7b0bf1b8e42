/* The zip of a .pt: the end of the file leads to the directory, that to the local headers. Each is
 * checked before it is used, and all against each other: a record must not overlap the next one or
 * the directory, and must have one name. Files come from anywhere, so sizes are compared by
 * subtraction, which cannot wrap. */
#include "formats/file_io.h"

#include "formats/pt/pt_impl.h"

#include <stdlib.h>
#include <string.h>

#define CORRUPT(...) err_set(CZ_CORRUPT, 0, __VA_ARGS__)
#define ULL(x)       ((unsigned long long)(x))

#define DIR_PIECE_NBYTES ((size_t)256 << 10)
#define ENTRY_NBYTES_MAX ((size_t)ZIP_CENTRAL_NBYTES + 3 * UINT16_MAX)

struct entry { /* of the central directory */
    struct pt_record record;
    const unsigned char *name; /* in the directory's bytes, no terminator, folder included */
    size_t name_nbytes;
    uint64_t csize; /* as stored */
    uint16_t flags, method;
};

struct source {
    const char *path;
    int fd;
    uint64_t nbytes;
    struct pt_zip_directory dir;
    unsigned char *dir_bytes;
    struct entry *entries;
    size_t n;
};

/* ---- the end of the file --------------------------------------------------------------------- */

/* The record that ends with the file, whatever comment it carries: searched backwards, and taken
 * only if its comment reaches exactly to the end. */
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
        return CORRUPT(
            "%s: is a part of an archive in several files, by its zip64 end at byte %llu", s->path,
            ULL(off));
    struct pt_zip_directory zip64 = {
        .n_entries = get_u64(end + 32), .nbytes = get_u64(end + 40), .off = get_u64(end + 48)};
    if (!agrees(d->n_entries, ZIP_IN_ZIP64_16, zip64.n_entries) ||
        !agrees(d->nbytes, ZIP_IN_ZIP64, zip64.nbytes) || !agrees(d->off, ZIP_IN_ZIP64, zip64.off))
        return CORRUPT(
            "%s: its zip64 end at byte %llu and its end at byte %llu contradict each other",
            s->path, ULL(off), ULL(locator_off + ZIP64_LOCATOR_NBYTES));
    *d = zip64;
    return CZ_OK;
}

/* The classic record, which every zip ends with. Archives over several files are refused. */
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
            st = CORRUPT("%s: is a part of an archive in several files, by its end at byte %llu",
                         s->path, ULL(*end_off));
    }
    free(tail);
    return st;
}

/* From the end of the file. The directory is inside it, long enough for its entries, and small
 * enough to be read at once. */
static cz_status pt_zip_find_directory(int fd, const char *path, uint64_t nbytes,
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

/* ---- the central directory ------------------------------------------------------------------- */

/* Sizes and the offset that did not fit in 32 bits, in this order and only those. */
static bool read_zip64_extra(const unsigned char *extra, size_t n, uint64_t *usize, uint64_t *csize,
                             uint64_t *off)
{
    uint64_t *const wanted[] = {usize, csize, off};
    bool is_complete = *usize != ZIP_IN_ZIP64 && *csize != ZIP_IN_ZIP64 && *off != ZIP_IN_ZIP64;
    while (n >= 4) {
        size_t id = get_u16(extra), field = get_u16(extra + 2);
        extra += 4;
        n -= 4;
        if (field > n) return is_complete;
        for (size_t i = 0, at = 0; id == ZIP64_EXTRA && i < 3; i++) {
            if (*wanted[i] != ZIP_IN_ZIP64) continue;
            if (at + 8 > field) return false;
            *wanted[i] = get_u64(extra + at);
            at += 8;
        }
        if (id == ZIP64_EXTRA) return true;
        extra += field;
        n -= field;
    }
    return is_complete;
}

/* One entry; *used: its length in the directory. A NUL in a name would make two names equal as C
 * strings. */
static cz_status parse_entry(const struct source *s, const unsigned char *p, size_t n,
                             struct entry *e, size_t *used)
{
    uint64_t at = s->dir.off + (uint64_t)(p - s->dir_bytes);
    if (n < ZIP_CENTRAL_NBYTES || get_u32(p) != ZIP_CENTRAL)
        return CORRUPT("%s: no directory entry at byte %llu", s->path, ULL(at));
    size_t name_nbytes = get_u16(p + 28), extra_nbytes = get_u16(p + 30);
    *used = ZIP_CENTRAL_NBYTES + name_nbytes + extra_nbytes + get_u16(p + 32);
    if (*used > n)
        return CORRUPT("%s: the directory entry at byte %llu extends beyond the directory", s->path,
                       ULL(at));
    uint64_t csize = get_u32(p + 20), usize = get_u32(p + 24), off = get_u32(p + 42);
    e->name = p + ZIP_CENTRAL_NBYTES;
    e->name_nbytes = name_nbytes;
    e->flags = get_u16(p + 8);
    if (name_nbytes == 0 || memchr(e->name, '\0', name_nbytes))
        return CORRUPT("%s: the directory entry at byte %llu has no proper name", s->path, ULL(at));
    if (!read_zip64_extra(e->name + name_nbytes, extra_nbytes, &usize, &csize, &off))
        return CORRUPT("%s: record %.*s: its size or offset is missing in the directory entry at "
                       "byte %llu",
                       s->path, (int)name_nbytes, e->name, ULL(at));
    e->method = get_u16(p + 10);
    e->csize = csize;
    e->record.header_off = off;
    e->record.nbytes = usize;
    e->record.crc = get_u32(p + 16);
    e->record.has_crc = e->record.crc != 0 || usize == 0;
    return CZ_OK;
}

/* In pieces, each parsed before the next is read: memory follows what was found to be entries, so
 * that a file of holes cannot ask for the size that its end claims. */
static cz_status read_directory(struct source *s)
{
    const size_t nbytes = (size_t)s->dir.nbytes;
    s->dir_bytes = malloc(nbytes + 1);
    s->entries = calloc((size_t)s->dir.n_entries + 1, sizeof *s->entries);
    if (!s->dir_bytes || !s->entries)
        return err_set(CZ_NOMEM, 0, "%s: no memory for its directory of %zu bytes", s->path,
                       nbytes);
    size_t at = 0, used = 0, have = 0;
    for (; s->n < s->dir.n_entries; s->n++, at += used) {
        while (have < nbytes && have - at < ENTRY_NBYTES_MAX) {
            size_t n = nbytes - have < DIR_PIECE_NBYTES ? nbytes - have : DIR_PIECE_NBYTES;
            TRY(file_pread(s->fd, s->path, s->dir_bytes + have, n, s->dir.off + have));
            have += n;
        }
        TRY(parse_entry(s, s->dir_bytes + at, have - at, &s->entries[s->n], &used));
    }
    if (at != nbytes)
        return CORRUPT("%s: its directory has %zu bytes after its last entry", s->path,
                       nbytes - at);
    if (s->n == 0) return CORRUPT("%s: an empty zip archive", s->path);
    return CZ_OK;
}

/* TorchScript archives have code beside the tensors. */
static bool is_script(const struct entry *e)
{
    static const char mark[] = "/constants.pkl";
    size_t n = sizeof mark - 1;
    return e->name_nbytes >= n && memcmp(e->name + e->name_nbytes - n, mark, n) == 0;
}

/* What is well-formed, but not read here. */
static cz_status check_methods(const struct source *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (is_script(&s->entries[i]))
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: a TorchScript archive (it has constants.pkl): save the model's "
                           "state_dict with torch.save",
                           s->path);
    for (size_t i = 0; i < s->n; i++) {
        const struct entry *e = &s->entries[i];
        int n = (int)e->name_nbytes;
        if (e->flags & ZIP_ENCRYPTED)
            return err_set(CZ_UNSUPPORTED, 0, "%s: record %.*s is encrypted", s->path, n, e->name);
        if (e->method != ZIP_STORED)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: record %.*s is compressed (zip method %u): save it again with "
                           "torch.save, which stores records as they are",
                           s->path, n, e->name, e->method);
        if (e->csize != e->record.nbytes)
            return CORRUPT("%s: record %.*s: stored as %llu bytes, but has %llu", s->path, n,
                           e->name, ULL(e->csize), ULL(e->record.nbytes));
    }
    return CZ_OK;
}

/* ---- local headers --------------------------------------------------------------------------- */

/* A size in a local header: what the directory says, or left to the zip64 field, or 0 when it
 * follows in the descriptor. */
static bool local_agrees(uint32_t local, uint64_t central, bool has_descriptor)
{
    return local == central || local == ZIP_IN_ZIP64 || (has_descriptor && local == 0);
}

/* limit: where the next record, or the directory, begins. */
static cz_status check_local(const struct source *s, struct entry *e, uint64_t limit,
                             unsigned char *buf)
{
    struct pt_record *r = &e->record;
    int n = (int)e->name_nbytes;
    const char *name = (const char *)e->name;
    uint64_t fixed = ZIP_LOCAL_NBYTES + e->name_nbytes;
    if (r->header_off > limit || fixed > limit - r->header_off)
        return CORRUPT("%s: record %.*s: its header at byte %llu overlaps what begins at byte %llu",
                       s->path, n, name, ULL(r->header_off), ULL(limit));
    TRY(file_pread(s->fd, s->path, buf, (size_t)fixed, r->header_off));
    if (get_u32(buf) != ZIP_LOCAL)
        return CORRUPT("%s: record %.*s: no header at byte %llu", s->path, n, name,
                       ULL(r->header_off));
    unsigned flags = get_u16(buf + 6), method = get_u16(buf + 8);
    bool has_descriptor = flags & ZIP_HAS_DESCRIPTOR;
    uint32_t crc = get_u32(buf + 14);
    if (method != ZIP_STORED || (flags & ZIP_ENCRYPTED) || get_u16(buf + 26) != e->name_nbytes ||
        memcmp(buf + ZIP_LOCAL_NBYTES, e->name, e->name_nbytes) != 0 ||
        (crc != r->crc && !(has_descriptor && crc == 0)) ||
        !local_agrees(get_u32(buf + 18), r->nbytes, has_descriptor) ||
        !local_agrees(get_u32(buf + 22), r->nbytes, has_descriptor))
        return CORRUPT("%s: record %.*s: its header at byte %llu disagrees with the directory",
                       s->path, n, name, ULL(r->header_off));
    r->off = r->header_off + fixed + get_u16(buf + 28);
    if (r->off > limit || r->nbytes > limit - r->off)
        return CORRUPT("%s: record %.*s: its %llu bytes at byte %llu overlap what begins at byte "
                       "%llu",
                       s->path, n, name, ULL(r->nbytes), ULL(r->off), ULL(limit));
    e->flags = (uint16_t)flags;
    return CZ_OK;
}

/* After the payload: signature (left out by some writers), CRC, both sizes in 32 or in 64 bits. */
static cz_status check_descriptor(const struct source *s, const struct entry *e, uint64_t limit)
{
    const struct pt_record *r = &e->record;
    unsigned char buf[24] = {0}, *p = buf;
    if (!(e->flags & ZIP_HAS_DESCRIPTOR) || r->nbytes == 0) return CZ_OK;
    uint64_t left = limit - (r->off + r->nbytes);
    size_t n = left < sizeof buf ? (size_t)left : sizeof buf;
    TRY(file_pread(s->fd, s->path, buf, n, r->off + r->nbytes));
    if (get_u32(p) == ZIP_DESCRIPTOR) p += 4, n -= n < 4 ? n : 4;
    bool is_32 =
        n >= 12 && get_u32(p + 4) == (uint32_t)r->nbytes && get_u32(p + 8) == (uint32_t)r->nbytes;
    bool is_64 = n >= 20 && get_u64(p + 4) == r->nbytes && get_u64(p + 12) == r->nbytes;
    if (get_u32(p) == r->crc && (is_32 || is_64)) return CZ_OK;
    return CORRUPT("%s: record %.*s: what follows its payload at byte %llu disagrees with the "
                   "directory",
                   s->path, (int)e->name_nbytes, (const char *)e->name, ULL(r->off + r->nbytes));
}

static int by_place(const void *left, const void *right)
{
    const struct pt_record *a = &((const struct entry *)left)->record;
    const struct pt_record *b = &((const struct entry *)right)->record;
    return a->header_off < b->header_off ? -1 : a->header_off > b->header_off;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* As strcmp of folder + name with `other`. */
static int compare(const char *folder, const char *name, const char *other)
{
    size_t n = strlen(folder);
    int order = strncmp(folder, other, n);
    return order != 0 ? order : strcmp(name, other + n);
}

const struct pt_record *pt_zip_find(const struct pt_zip *zip, const char *folder, const char *name)
{
    for (size_t low = 0, high = zip->n; low < high;) {
        size_t middle = low + (high - low) / 2;
        const struct pt_record *r = zip->by_name[middle];
        int order = compare(folder, name, r->name);
        if (order == 0) return r;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static int by_name(const void *left, const void *right)
{
    const struct pt_record *a = *(const struct pt_record *const *)left;
    const struct pt_record *b = *(const struct pt_record *const *)right;
    return strcmp(a->name, b->name);
}

/* All records are in the folder that the directory names first; that folder is left out of the
 * names. */
static cz_status keep_records(struct pt_zip *zip, const struct source *s, const char *folder,
                              size_t folder_nbytes)
{
    zip->records = calloc(s->n, sizeof *zip->records);
    zip->names = malloc((size_t)s->dir.nbytes + 1); /* enough for every name and its NUL */
    if (!zip->records || !zip->names)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu records", s->path, s->n);
    char *at = zip->names;
    for (size_t i = 0; i < s->n; i++) {
        const struct entry *e = &s->entries[i];
        if (e->record.nbytes == 0 && e->name[e->name_nbytes - 1] == '/') continue;
        if (e->name_nbytes <= folder_nbytes || memcmp(e->name, folder, folder_nbytes) != 0)
            return CORRUPT("%s: record %.*s at byte %llu is not in the folder %.*s of the others",
                           s->path, (int)e->name_nbytes, (const char *)e->name,
                           ULL(e->record.header_off), (int)folder_nbytes, folder);
        size_t n = e->name_nbytes - folder_nbytes;
        memcpy(at, e->name + folder_nbytes, n);
        at[n] = '\0';
        zip->records[zip->n] = e->record;
        zip->records[zip->n++].name = at;
        at += n + 1;
    }
    return CZ_OK;
}

/* Entries are sorted by place before the headers are checked, so that each one's limit is its
 * neighbour. */
static cz_status read_all(struct pt_zip *zip, struct source *s)
{
    TRY(pt_zip_find_directory(s->fd, s->path, s->nbytes, &s->dir));
    TRY(read_directory(s));
    TRY(check_methods(s));
    const char *folder = (const char *)s->entries[0].name;
    const char *slash = memchr(folder, '/', s->entries[0].name_nbytes);
    if (!slash)
        return CORRUPT("%s: its first record, %.*s, is in no folder: not a file of torch.save",
                       s->path, (int)s->entries[0].name_nbytes, folder);
    qsort(s->entries, s->n, sizeof *s->entries, by_place);
    unsigned char *buf = malloc(ZIP_LOCAL_NBYTES + UINT16_MAX);
    if (!buf) return err_set(CZ_NOMEM, 0, "%s: no memory for a header", s->path);
    cz_status st = CZ_OK;
    for (size_t i = 0; i < s->n && st == CZ_OK; i++) {
        uint64_t limit = i + 1 < s->n ? s->entries[i + 1].record.header_off : s->dir.off;
        st = check_local(s, &s->entries[i], limit, buf);
        if (st == CZ_OK) st = check_descriptor(s, &s->entries[i], limit);
    }
    free(buf);
    TRY(st);
    TRY(keep_records(zip, s, folder, (size_t)(slash - folder) + 1));
    zip->by_name = malloc((zip->n + 1) * sizeof(const struct pt_record *));
    if (!zip->by_name)
        return err_set(CZ_NOMEM, 0, "%s: no memory for an index of %zu records", s->path, zip->n);
    for (size_t i = 0; i < zip->n; i++) zip->by_name[i] = &zip->records[i];
    qsort(zip->by_name, zip->n, sizeof *zip->by_name, by_name);
    for (size_t i = 1; i < zip->n; i++) {
        const struct pt_record *a = zip->by_name[i - 1], *b = zip->by_name[i];
        if (strcmp(a->name, b->name) == 0)
            return CORRUPT("%s: record %s occurs twice, at bytes %llu and %llu", s->path, a->name,
                           ULL(a->header_off), ULL(b->header_off));
    }
    return CZ_OK;
}

cz_status pt_zip_read(struct pt_zip *zip, int fd, const char *path, uint64_t nbytes)
{
    struct source s = {.path = path, .fd = fd, .nbytes = nbytes};
    memset(zip, 0, sizeof *zip);
    cz_status st = read_all(zip, &s);
    free(s.dir_bytes);
    free(s.entries);
    if (st != CZ_OK) pt_zip_free(zip);
    return st;
}

void pt_zip_free(struct pt_zip *zip)
{
    free(zip->records);
    free(zip->names);
    free(zip->by_name);
    memset(zip, 0, sizeof *zip);
}
