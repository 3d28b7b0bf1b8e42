/* What the readers and writers of .pt share: the zip's numbers, and its directory as it was read.
 * All of a zip's integers are little endian. */
#ifndef CZ_FORMATS_PT_PT_IMPL_H
#define CZ_FORMATS_PT_PT_IMPL_H

#include "formats/file_io.h"
#include "formats/pt/pt.h"

#define ZIP_LOCAL          0x04034B50u
#define ZIP_DESCRIPTOR     0x08074B50u
#define ZIP_CENTRAL        0x02014B50u
#define ZIP_END            0x06054B50u
#define ZIP64_END          0x06064B50u
#define ZIP64_LOCATOR      0x07064B50u
#define ZIP64_EXTRA        0x0001u
#define ZIP_PADDING        0x4246u     /* "FB": torch's filler up to the alignment */
#define ZIP_IN_ZIP64       0xFFFFFFFFu /* the number is in the zip64 field instead */
#define ZIP_IN_ZIP64_16    0xFFFFu
#define ZIP_ENCRYPTED      0x0001u
#define ZIP_HAS_DESCRIPTOR 0x0008u
#define ZIP_UTF8           0x0800u
#define ZIP_STORED         0u

#define ZIP_LOCAL_NBYTES     30
#define ZIP_CENTRAL_NBYTES   46
#define ZIP_END_NBYTES       22
#define ZIP64_END_NBYTES     56
#define ZIP64_LOCATOR_NBYTES 20

#define PT_ALIGN 64

/* What is loaded whole when a file is opened: a directory of ten million records, a pickle of as
 * many values. More (a hole in a sparse file, say) is refused, not allocated. */
#define PT_WHOLE_NBYTES_MAX ((uint64_t)1 << 30)

static inline uint16_t get_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get_u32(const unsigned char *p)
{
    return get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static inline uint64_t get_u64(const unsigned char *p)
{
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static inline unsigned char *put_u16(unsigned char *p, uint16_t value)
{
    p[0] = (unsigned char)value;
    p[1] = (unsigned char)(value >> 8);
    return p + 2;
}

static inline unsigned char *put_u32(unsigned char *p, uint32_t value)
{
    return put_u16(put_u16(p, (uint16_t)value), (uint16_t)(value >> 16));
}

static inline unsigned char *put_u64(unsigned char *p, uint64_t value)
{
    return put_u32(put_u32(p, (uint32_t)value), (uint32_t)(value >> 32));
}

/* ---- reading --------------------------------------------------------------------------------- */

struct pt_zip_directory {
    uint64_t off, nbytes, n_entries;
};

/* A zip's directory, checked against its local headers. */
struct pt_zip {
    struct pt_record *records; /* in the order of their offsets; folders left out */
    size_t n;
    char *names;                      /* of all records */
    const struct pt_record **by_name; /* sorted */
};

/* Errors and what is checked: pt_open(). zip is empty on error. */
cz_status pt_zip_read(struct pt_zip *zip, int fd, const char *path, uint64_t nbytes);
const struct pt_record *pt_zip_find(const struct pt_zip *zip, const char *folder, const char *name);
void pt_zip_free(struct pt_zip *zip);

struct pt {
    char *path;
    int fd;
    uint64_t nbytes;
    struct file_stamp stamp; /* when it was opened */
    struct pt_zip zip;
    struct pickle *pickle;
};

/* ---- writing --------------------------------------------------------------------------------- */

struct pt_slot { /* a record's place */
    uint64_t header_off, off, nbytes;
    bool size_in_zip64, off_in_zip64;
};

/* Every byte's place in a file, from the sizes alone. Records are in this order: data.pkl,
 * .format_version, .storage_alignment, byteorder, data/0, data/1, …, version,
 * .data/serialization_id. */
struct pt_layout {
    char *archive;
    size_t n_storages, n; /* n: of slots */
    struct pt_slot *slots;
    uint64_t dir_off, dir_nbytes;
    uint64_t nbytes; /* of the file */
};

#define PT_FIRST_STORAGE 4  /* slot of data/0 */
#define PT_ID_NBYTES     40 /* of .data/serialization_id */

/* archive NULL: from the path as torch does. Errors: CZ_INVALID (no archive name, sizes beyond what
 * a file holds), CZ_NOMEM; *layout is then empty. */
cz_status pt_layout_make(struct pt_layout *layout, const struct pt_create_options *options);
void pt_layout_free(struct pt_layout *layout);

/* What small records hold; NULL for data.pkl, storages and the id. */
const char *pt_layout_text(const struct pt_layout *layout, size_t idx);

/* Bytes of a record's local header, of what follows its payload, of its directory entry, and of the
 * end of the file. Returns how many; bytes of them at most (see PT_PIECE_NBYTES). */
size_t pt_put_local(const struct pt_layout *layout, size_t idx, unsigned char *bytes);
size_t pt_put_descriptor(const struct pt_layout *layout, size_t idx, uint32_t crc,
                         unsigned char *bytes);
size_t pt_put_central(const struct pt_layout *layout, size_t idx, uint32_t crc,
                      unsigned char *bytes);
size_t pt_put_end(const struct pt_layout *layout, unsigned char *bytes);

/* 40 digits that depend on the records' names and checksums (those before the id itself). */
void pt_put_id(const struct pt_layout *layout, const uint32_t *crcs, char digits[PT_ID_NBYTES + 1]);

/* These bytes of a storage get into the file by other means (or are a hole, and zero), `crc` is
 * theirs: count them as written. Errors and threads: pt_write(). */
cz_status pt_write_elsewhere(struct pt_writer *w, size_t storage_idx, uint64_t off, uint64_t nbytes,
                             uint32_t crc);

#define PT_ARCHIVE_NBYTES_MAX 4096
#define PT_PIECE_NBYTES       (PT_ARCHIVE_NBYTES_MAX + 256) /* space for any of them */

#endif
