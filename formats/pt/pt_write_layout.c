/* Where every byte of a .pt is, and the bytes that are not payload: as torch 2.15 writes them, so
 * that its shortcut (offsets computed, not read) finds our storages too. Each record has a local
 * header with padding to 64 bytes, the payload, and a descriptor with its sum, because sums are
 * known only afterwards. */
#include "formats/pt/pt_impl.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID(...) err_set(CZ_INVALID, 0, __VA_ARGS__)

#define NAME_NBYTES_MAX                                                                            \
    32 /* behind the folder: "data/" and 20 digits, ".data/serialization_id"                       \
        */
#define MADE_BY         798
#define NEEDED_BY_ZIP64 45

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x80) return false;
    return true;
}

/* torch names the folder after the file, up to its last dot; and "archive" where it hands the path
 * to Python. The same rule here, because the archive's name is part of the file's bytes. */
static char *archive_of_path(const char *path)
{
    if (!is_ascii(path)) return strdup("archive");
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    return strndup(base, dot ? (size_t)(dot - base) : strlen(base));
}

/* Readers take the folder from the first record, so any name will do that a zip can hold. */
static cz_status choose_archive(struct pt_layout *l, const struct pt_create_options *o)
{
    l->archive = o->archive ? strdup(o->archive) : archive_of_path(o->path);
    if (!l->archive) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", o->path);
    if (l->archive[0] == '\0')
        return INVALID("%s: its name has nothing before the dot to name the archive after",
                       o->path);
    if (strchr(l->archive, '/') || strlen(l->archive) > PT_ARCHIVE_NBYTES_MAX)
        return INVALID("%s: %s cannot be an archive's folder", o->path, l->archive);
    return CZ_OK;
}

/* Records in the order of the file: data.pkl and three small ones, the storages, version and
 * serialization id. */
static bool is_storage(const struct pt_layout *l, size_t idx)
{
    return idx >= PT_FIRST_STORAGE && idx < PT_FIRST_STORAGE + l->n_storages;
}

/* Position among the six records that every file has. */
static size_t fixed_idx(const struct pt_layout *l, size_t idx)
{
    return idx < PT_FIRST_STORAGE ? idx : idx - l->n_storages;
}

/* Folder and name, without a NUL. */
static size_t put_name(const struct pt_layout *l, size_t idx, unsigned char *bytes)
{
    static const char *const names[] = {"data.pkl",  ".format_version", ".storage_alignment",
                                        "byteorder", "version",         ".data/serialization_id"};
    char text[PT_ARCHIVE_NBYTES_MAX + NAME_NBYTES_MAX];
    int n = is_storage(l, idx)
                ? snprintf(text, sizeof text, "%s/data/%zu", l->archive, idx - PT_FIRST_STORAGE)
                : snprintf(text, sizeof text, "%s/%s", l->archive, names[fixed_idx(l, idx)]);
    memcpy(bytes, text, (size_t)n);
    return (size_t)n;
}

const char *pt_layout_text(const struct pt_layout *l, size_t idx)
{
    static const char *const texts[] = {NULL, "1", "64", "little", "3\n", NULL};
    return is_storage(l, idx) ? NULL : texts[fixed_idx(l, idx)];
}

/* ---- places ---------------------------------------------------------------------------------- */

/* The extra field with sizes and offset of 64 bits, where 32 do not suffice. */
static size_t zip64_nbytes(const struct pt_slot *s)
{
    if (!s->size_in_zip64 && !s->off_in_zip64) return 0;
    return (size_t)(4 + (s->size_in_zip64 ? 16 : 0) + (s->off_in_zip64 ? 8 : 0));
}

/* An empty payload has none, and its header does not announce one. Sizes have 8 bytes in it as soon
 * as a zip64 field is in the header, whichever number it is for. */
static size_t descriptor_nbytes(const struct pt_slot *s)
{
    if (s->nbytes == 0) return 0;
    return s->size_in_zip64 || s->off_in_zip64 ? 24 : 16;
}

/* The local header's padding fills up to PT_ALIGN, so that storages can be mapped. The 4 bytes are
 * the padding field's own head: it is there even where nothing must be filled. */
static bool place(struct pt_layout *l, size_t idx, uint64_t nbytes, uint64_t *end)
{
    unsigned char name[PT_PIECE_NBYTES];
    struct pt_slot *s = &l->slots[idx];
    s->header_off = *end;
    s->nbytes = nbytes;
    s->size_in_zip64 = nbytes >= ZIP_IN_ZIP64;
    s->off_in_zip64 = *end >= ZIP_IN_ZIP64;
    size_t name_nbytes = put_name(l, idx, name);
    uint64_t start = *end + ZIP_LOCAL_NBYTES + name_nbytes + zip64_nbytes(s) + 4;
    s->off = (start + PT_ALIGN - 1) / PT_ALIGN * PT_ALIGN;
    if (nbytes > INT64_MAX - s->off - 24) return false;
    *end = s->off + nbytes + descriptor_nbytes(s);
    l->dir_nbytes += ZIP_CENTRAL_NBYTES + name_nbytes + zip64_nbytes(s);
    return *end < INT64_MAX - PT_PIECE_NBYTES;
}

/* All sizes are known before the first byte is written; sums are not. */
static uint64_t payload_nbytes(const struct pt_layout *l, const struct pt_create_options *o,
                               size_t idx)
{
    if (idx == 0) return o->pickle_nbytes;
    if (is_storage(l, idx)) return o->storage_nbytes[idx - PT_FIRST_STORAGE];
    const char *text = pt_layout_text(l, idx);
    return text ? strlen(text) : PT_ID_NBYTES;
}

static cz_status place_all(struct pt_layout *l, const struct pt_create_options *o)
{
    uint64_t end = 0;
    bool fits = true;
    l->slots = calloc(l->n, sizeof *l->slots);
    if (!l->slots)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu storages", o->path, l->n_storages);
    for (size_t i = 0; i < l->n && fits; i++) fits = place(l, i, payload_nbytes(l, o, i), &end);
    l->dir_off = end;
    if (!fits || l->dir_nbytes > INT64_MAX - PT_PIECE_NBYTES - end)
        return INVALID("%s: its storages are larger than any file", o->path);
    l->nbytes = end + l->dir_nbytes + ZIP64_END_NBYTES + ZIP64_LOCATOR_NBYTES + ZIP_END_NBYTES;
    return CZ_OK;
}

cz_status pt_layout_make(struct pt_layout *l, const struct pt_create_options *o)
{
    memset(l, 0, sizeof *l);
    if (o->n_storages > SIZE_MAX / sizeof *l->slots - PT_FIRST_STORAGE - 2)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu storages", o->path, o->n_storages);
    l->n_storages = o->n_storages;
    l->n = o->n_storages + PT_FIRST_STORAGE + 2;
    cz_status st;
    TRY_GOTO(choose_archive(l, o), fail);
    TRY_GOTO(place_all(l, o), fail);
    return CZ_OK;
fail:
    pt_layout_free(l);
    return st;
}

void pt_layout_free(struct pt_layout *l)
{
    free(l->archive);
    free(l->slots);
    memset(l, 0, sizeof *l);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint16_t flags_of(const struct pt_slot *s)
{
    return (uint16_t)(s->nbytes > 0 ? ZIP_UTF8 | ZIP_HAS_DESCRIPTOR : ZIP_UTF8);
}

static uint32_t low_32(uint64_t value, bool in_zip64)
{
    return in_zip64 ? ZIP_IN_ZIP64 : (uint32_t)value;
}

/* In the order of the zip specification: sizes, then offset, each only where its 32-bit field is
 * full. */
static unsigned char *put_zip64(const struct pt_slot *s, unsigned char *p)
{
    size_t n = zip64_nbytes(s);
    if (n == 0) return p;
    p = put_u16(p, ZIP64_EXTRA);
    p = put_u16(p, (uint16_t)(n - 4));
    if (s->size_in_zip64) p = put_u64(put_u64(p, s->nbytes), s->nbytes);
    return s->off_in_zip64 ? put_u64(p, s->header_off) : p;
}

/* Sizes and CRC stay 0, they follow the payload. The offset in the zip64 field is torch's habit. */
size_t pt_put_local(const struct pt_layout *l, size_t idx, unsigned char *bytes)
{
    const struct pt_slot *s = &l->slots[idx];
    size_t nbytes = (size_t)(s->off - s->header_off);
    size_t name_nbytes = put_name(l, idx, bytes + ZIP_LOCAL_NBYTES);
    unsigned char *p = bytes;
    memset(p, 0, ZIP_LOCAL_NBYTES);
    put_u32(p, ZIP_LOCAL);
    put_u16(p + 6, flags_of(s));
    put_u16(p + 26, (uint16_t)name_nbytes);
    put_u16(p + 28, (uint16_t)(nbytes - ZIP_LOCAL_NBYTES - name_nbytes));
    p = put_zip64(s, bytes + ZIP_LOCAL_NBYTES + name_nbytes);
    size_t pad = nbytes - (size_t)(p - bytes) - 4;
    p = put_u16(p, ZIP_PADDING);
    p = put_u16(p, (uint16_t)pad);
    memset(p, 'Z', pad);
    return nbytes;
}

/* With its signature, which is optional in zip and which torch writes. */
size_t pt_put_descriptor(const struct pt_layout *l, size_t idx, uint32_t crc, unsigned char *bytes)
{
    const struct pt_slot *s = &l->slots[idx];
    size_t nbytes = descriptor_nbytes(s);
    unsigned char *p = bytes;
    if (nbytes == 0) return 0;
    p = put_u32(p, ZIP_DESCRIPTOR);
    p = put_u32(p, crc);
    if (nbytes == 24)
        put_u64(put_u64(p, s->nbytes), s->nbytes);
    else
        put_u32(put_u32(p, (uint32_t)s->nbytes), (uint32_t)s->nbytes);
    return nbytes;
}

/* The sum is here as well as in the descriptor: readers take it from the directory. */
size_t pt_put_central(const struct pt_layout *l, size_t idx, uint32_t crc, unsigned char *bytes)
{
    const struct pt_slot *s = &l->slots[idx];
    unsigned char *p = bytes;
    size_t name_nbytes = put_name(l, idx, p + ZIP_CENTRAL_NBYTES);
    memset(p, 0, ZIP_CENTRAL_NBYTES);
    put_u32(p, ZIP_CENTRAL);
    put_u16(p + 8, flags_of(s));
    put_u32(p + 16, crc);
    put_u32(p + 20, low_32(s->nbytes, s->size_in_zip64));
    put_u32(p + 24, low_32(s->nbytes, s->size_in_zip64));
    put_u16(p + 28, (uint16_t)name_nbytes);
    put_u16(p + 30, (uint16_t)zip64_nbytes(s));
    put_u32(p + 42, low_32(s->header_off, s->off_in_zip64));
    p = put_zip64(s, p + ZIP_CENTRAL_NBYTES + name_nbytes);
    return (size_t)(p - bytes);
}

static uint64_t at_most(uint64_t value, uint64_t max)
{
    return value < max ? value : max;
}

/* The zip64 end is always there, as torch writes it; the classic end then repeats what fits. */
size_t pt_put_end(const struct pt_layout *l, unsigned char *bytes)
{
    unsigned char *p = bytes;
    uint64_t end_off = l->dir_off + l->dir_nbytes;
    p = put_u32(p, ZIP64_END);
    p = put_u64(p, ZIP64_END_NBYTES - 12); /* of what follows this number */
    p = put_u16(put_u16(p, MADE_BY), NEEDED_BY_ZIP64);
    p = put_u32(put_u32(p, 0), 0); /* disks */
    p = put_u64(put_u64(p, l->n), l->n);
    p = put_u64(put_u64(p, l->dir_nbytes), l->dir_off);

    p = put_u32(p, ZIP64_LOCATOR);
    p = put_u32(p, 0);
    p = put_u64(p, end_off);
    p = put_u32(p, 1);

    uint16_t n = (uint16_t)at_most(l->n, ZIP_IN_ZIP64_16);
    p = put_u32(p, ZIP_END);
    p = put_u16(put_u16(p, 0), 0);
    p = put_u16(put_u16(p, n), n);
    p = put_u32(p, (uint32_t)at_most(l->dir_nbytes, ZIP_IN_ZIP64));
    p = put_u32(p, (uint32_t)at_most(l->dir_off, ZIP_IN_ZIP64));
    p = put_u16(p, 0);
    return (size_t)(p - bytes);
}

/* torch's serialization id: a hash of the names and one of the sums, in decimal. The id record
 * itself is left out: it is the last one, and its sum cannot be known before. */
void pt_put_id(const struct pt_layout *l, const uint32_t *crcs, char digits[PT_ID_NBYTES + 1])
{
    uint64_t of_names = HASH_FIXED_BEGIN, of_crcs = of_names;
    for (size_t i = 0; i + 1 < l->n; i++) {
        unsigned char name[PT_PIECE_NBYTES], crc[4];
        size_t n = put_name(l, i, name);
        of_names = hash_fixed(of_names, name + strlen(l->archive), n - strlen(l->archive));
        put_u32(crc, crcs[i]);
        of_crcs = hash_fixed(of_crcs, crc, sizeof crc);
    }
    snprintf(digits, PT_ID_NBYTES + 1, "%020llu%020llu", (unsigned long long)of_names,
             (unsigned long long)of_crcs);
}
