/* Which byte between the payloads of a .pt is not what its writer put there. Checksums cover the
 * payloads only; but a file that was written by torch or czero has exactly one layout for given
 * record sizes, so the layout is made again and compared with the file. fsck uses it to name a
 * damaged byte in headers and padding. */
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY(pt) err_set(CZ_NOMEM, 0, "%s: no memory to compare its layout", (pt)->path)

/* The folder of the archive, as the first local header names it. */
static cz_status read_archive(const struct pt *pt, char archive[PT_ARCHIVE_NBYTES_MAX + 1])
{
    const struct pt_record *r = pt_record_at(pt, 0);
    const size_t n_name = strlen(r->name) + 1; /* with its slash */
    unsigned char head[ZIP_LOCAL_NBYTES];
    archive[0] = '\0';
    TRY(file_pread(pt->fd, pt->path, head, sizeof head, r->header_off));
    const size_t n = get_u16(head + 26);
    if (n <= n_name || n - n_name > PT_ARCHIVE_NBYTES_MAX) return CZ_OK;
    TRY(file_pread(pt->fd, pt->path, archive, n - n_name, r->header_off + sizeof head));
    archive[n - n_name] = '\0';
    return CZ_OK;
}

/* Where pt_create() would put records of these sizes. *same false: the file has another layout, so
 * it was written by another program and cannot be compared. */
static cz_status make_layout(const struct pt *pt, struct pt_layout *l, bool *same)
{
    char archive[PT_ARCHIVE_NBYTES_MAX + 1];
    const size_t n = pt_n_records(pt);
    *same = false;
    memset(l, 0, sizeof *l);
    if (n < PT_FIRST_STORAGE + 2) return CZ_OK;
    TRY(read_archive(pt, archive));
    if (!*archive) return CZ_OK;
    uint64_t *sizes = calloc(n, sizeof *sizes);
    if (!sizes) return NO_MEMORY(pt);
    struct pt_create_options o = {.path = pt->path,
                                  .archive = archive,
                                  .pickle_nbytes = (size_t)pt_record_at(pt, 0)->nbytes,
                                  .storage_nbytes = sizes,
                                  .n_storages = n - PT_FIRST_STORAGE - 2};
    for (size_t i = 0; i < o.n_storages; i++)
        sizes[i] = pt_record_at(pt, PT_FIRST_STORAGE + i)->nbytes;
    cz_status st = pt_layout_make(l, &o);
    free(sizes);
    if (st == CZ_INVALID) return CZ_OK; /* no name of ours */
    TRY(st);
    *same = l->nbytes == pt->nbytes;
    for (size_t i = 0; i < n && *same; i++)
        *same = l->slots[i].off == pt_record_at(pt, i)->off &&
                l->slots[i].nbytes == pt_record_at(pt, i)->nbytes;
    return CZ_OK;
}

/* The first of n bytes at `off` that differs from `want`. */
static cz_status compare(const struct pt *pt, uint64_t off, const unsigned char *want, size_t n,
                         uint64_t *at, bool *found)
{
    unsigned char have[PT_PIECE_NBYTES];
    TRY(file_pread(pt->fd, pt->path, have, n, off));
    for (size_t i = 0; i < n && !*found; i++) {
        *found = have[i] != want[i];
        *at = off + i;
    }
    return CZ_OK;
}

static cz_status compare_all(const struct pt *pt, const struct pt_layout *l, uint64_t *at,
                             bool *found)
{
    unsigned char want[PT_PIECE_NBYTES];
    uint64_t entry_off = l->dir_off;
    for (size_t i = 0; i < l->n && !*found; i++) {
        const struct pt_slot *s = &l->slots[i];
        size_t n = pt_put_local(l, i, want);
        TRY(compare(pt, s->header_off, want, n, at, found));
        n = pt_put_descriptor(l, i, pt_record_at(pt, i)->crc, want);
        if (!*found) TRY(compare(pt, s->off + s->nbytes, want, n, at, found));
    }
    for (size_t i = 0; i < l->n && !*found; i++) {
        size_t n = pt_put_central(l, i, pt_record_at(pt, i)->crc, want);
        TRY(compare(pt, entry_off, want, n, at, found));
        entry_off += n;
    }
    size_t n = pt_put_end(l, want);
    return *found ? CZ_OK : compare(pt, entry_off, want, n, at, found);
}

cz_status pt_find_stray(const struct pt *pt, uint64_t *off, bool *found)
{
    struct pt_layout layout;
    bool same;
    *off = 0;
    *found = false;
    cz_status st = make_layout(pt, &layout, &same);
    if (st == CZ_OK && same) st = compare_all(pt, &layout, off, found);
    pt_layout_free(&layout);
    return st;
}
