/* A file that our manifest lists: one pass gives the sum of every tensor, of what lies between
 * them, and, put together, of the whole file. */
#include "checkpoint/fsck/fsck_impl.h"

#include "formats/crc32.h"
#include "formats/file_io.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

cz_status fsck_crc(int fd, const char *path, uint64_t off, uint64_t nbytes, void *buf,
                   struct fsck_meter *meter, uint32_t *crc)
{
    *crc = 0;
    while (nbytes > 0) {
        const size_t n = nbytes < FSCK_PIECE_NBYTES ? (size_t)nbytes : FSCK_PIECE_NBYTES;
        TRY(file_pread(fd, path, buf, n, off));
        *crc = crc32_update(*crc, buf, n);
        if (meter) fsck_meter_add(meter, n);
        off += n;
        nbytes -= n;
    }
    return CZ_OK;
}

/* One pass over a file. */
struct pass {
    struct fsck_file *file;
    int fd;
    void *buf;
    struct fsck_meter *meter;
    uint64_t readable; /* bytes that are there, of those that were saved */
    uint64_t at;
    uint32_t crc;          /* of [0, at) */
    uint32_t crc_repaired; /* the same, had every tensor the sum that it was saved with */
    bool is_unreadable;
};

/* Read up to `end`, or to the end of the file. */
static cz_status advance(struct pass *p, uint64_t end, uint32_t *crc)
{
    if (end > p->readable) end = p->readable;
    const uint64_t off = p->at, n = end > off ? end - off : 0;
    *crc = 0;
    if (p->is_unreadable) return CZ_OK;
    cz_status st = fsck_crc(p->fd, p->file->path, off, n, p->buf, p->meter, crc);
    p->at = off + n;
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    p->is_unreadable = true; /* a bad sector: what is behind it may wait longer still */
    return fsck_note_error(&p->file->findings, p->file->path);
}

static cz_status pass_gap(struct pass *p, uint64_t end)
{
    uint32_t crc;
    const uint64_t off = p->at;
    TRY(advance(p, end, &crc));
    p->crc = crc32_concat(p->crc, crc, p->at - off);
    p->crc_repaired = crc32_concat(p->crc_repaired, crc, p->at - off);
    return CZ_OK;
}

static cz_status pass_tensor(struct pass *p, const struct manifest_tensor *t)
{
    uint32_t crc;
    char name[1024];
    struct fsck_file *file = p->file;
    TRY(advance(p, t->off + t->nbytes, &crc));
    if (p->is_unreadable) return CZ_OK;
    p->crc = crc32_concat(p->crc, crc, t->nbytes);
    p->crc_repaired = crc32_concat(p->crc_repaired, t->crc, t->nbytes);
    const bool is_cut = t->off + t->nbytes > p->readable;
    if (!is_cut && crc == t->crc) return CZ_OK;
    snprintf(name, sizeof name, "%s, %s", t->name, t->what);
    if (is_cut)
        return fsck_note(&file->findings, file->path, name, t->off, t->nbytes,
                         "%s: %" PRIu64 " bytes at byte %" PRIu64
                         " are not all there: the file ends at byte %" PRIu64,
                         name, t->nbytes, t->off, p->readable);
    return fsck_note(&file->findings, file->path, name, t->off, t->nbytes,
                     "%s: damaged within the %" PRIu64 " bytes at byte %" PRIu64
                     " (CRC-32 %08" PRIx32 ", saved with %08" PRIx32 ")",
                     name, t->nbytes, t->off, crc, t->crc);
}

static cz_status pass_all(struct pass *p)
{
    const struct manifest_file *listed = p->file->listed;
    for (size_t i = 0; i < listed->n_tensors; i++) {
        TRY(pass_gap(p, listed->tensors[i].off));
        TRY(pass_tensor(p, &listed->tensors[i]));
    }
    return pass_gap(p, listed->nbytes);
}

static cz_status note_size(struct fsck_file *file, uint64_t nbytes)
{
    const uint64_t saved = file->listed->nbytes;
    if (nbytes < saved)
        return fsck_note(&file->findings, file->path, "", nbytes, saved - nbytes,
                         "cut off: it has %" PRIu64 " bytes, %" PRIu64 " were saved", nbytes,
                         saved);
    return fsck_note(&file->findings, file->path, "", saved, nbytes - saved,
                     "%" PRIu64 " bytes too long: it has %" PRIu64 ", %" PRIu64 " were saved",
                     nbytes - saved, nbytes, saved);
}

static bool is_pt(const char *path)
{
    const size_t n = strlen(path);
    return n > 3 && strcmp(path + n - 3, ".pt") == 0;
}

/* The sum of all does not fit, and tensors do not explain it: headers, padding, pickles, directory,
 * or a file without tensors. */
static cz_status look_between_tensors(struct fsck_file *file, void *buf)
{
    struct pt *pt = NULL;
    uint64_t off;
    size_t n_bad;
    bool found;
    if (!is_pt(file->path))
        return fsck_note(&file->findings, file->path, "", 0, 0,
                         "damaged: its CRC-32 is not %08" PRIx32, file->listed->crc);
    if (pt_open(file->path, &pt) != CZ_OK) return fsck_note_error(&file->findings, file->path);
    cz_status st = fsck_check_records(file, pt, buf, NULL, &n_bad);
    if (st == CZ_OK && n_bad == 0) st = pt_find_stray(pt, &off, &found);
    if (st == CZ_OK && n_bad == 0 && found)
        st = fsck_note(&file->findings, file->path, "zip headers and padding", off, 1,
                       "damaged at byte %" PRIu64 ", outside of the zip's records", off);
    else if (st == CZ_OK && n_bad == 0)
        st = fsck_note(&file->findings, file->path, "", 0, 0,
                       "damaged outside its tensors: its CRC-32 is not %08" PRIx32,
                       file->listed->crc);
    pt_close(pt);
    return st;
}

cz_status fsck_check_listed(struct fsck_file *file, void *buf, struct fsck_meter *meter)
{
    uint64_t nbytes;
    int fd;
    cz_status st = file_open_read(file->path, &fd, &nbytes);
    if (st == CZ_NOTFOUND) {
        err_clear();
        return fsck_note(&file->findings, file->path, "", 0, 0,
                         "missing: the checkpoint's manifest lists it");
    }
    TRY(st);
    const struct manifest_file *listed = file->listed;
    struct pass p = {.file = file, .fd = fd, .buf = buf, .meter = meter};
    p.readable = nbytes < listed->nbytes ? nbytes : listed->nbytes;
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (nbytes != listed->nbytes) st = note_size(file, nbytes);
    if (st == CZ_OK) st = pass_all(&p);
    close(fd);
    file->nbytes_read = p.at;
    file->n_tensors = listed->n_tensors;
    const bool is_whole = p.at == listed->nbytes && !p.is_unreadable;
    if (st == CZ_OK && is_whole && p.crc_repaired != listed->crc)
        st = look_between_tensors(file, buf);
    return st;
}
