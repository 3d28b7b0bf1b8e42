/* Opening a .pt (docs/deepspeed-behaviour.md, "torch.save files"): the kind of file, its zip, the
 * small records, data.pkl, and whether every storage is where the pickle says. After that a
 * tensor's bytes can be read with one pread(), and nothing else about the file can surprise a
 * reader. */
#include "formats/beneath.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORRUPT(...)     err_set(CZ_CORRUPT, 0, __VA_ARGS__)
#define UNSUPPORTED(...) err_set(CZ_UNSUPPORTED, 0, __VA_ARGS__)
#define ULL(x)           ((unsigned long long)(x))

#define VERSION_MAX   10 /* the newest container that torch 2.15 reads */
#define VERIFY_NBYTES ((size_t)1 << 20)

/* ---- other formats of torch.save ------------------------------------------------------------- */

/* Protocol 2, then the number that opened every file before the zip format. */
static const unsigned char legacy_magic[] = {0x80, 0x02, 0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46,
                                             0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, 0x2E};
#define TAR_MAGIC_OFF 257

/* Older formats of torch.save are recognised, since "no zip directory" says little.
 */
static cz_status check_format(const struct pt *pt)
{
    unsigned char head[TAR_MAGIC_OFF + 5] = {0};
    size_t n = pt->nbytes < sizeof head ? (size_t)pt->nbytes : sizeof head;
    if (n == 0) return CORRUPT("%s: the file is empty", pt->path);
    TRY(file_pread(pt->fd, pt->path, head, n, 0));
    if (memcmp(head, legacy_magic, sizeof legacy_magic) == 0)
        return UNSUPPORTED(
            "%s: legacy torch format: save it again with torch.save's default (zip) format",
            pt->path);
    if (memcmp(head + TAR_MAGIC_OFF, "ustar", 5) == 0)
        return UNSUPPORTED("%s: legacy torch format (tar): save it again with torch.save's default "
                           "(zip) format",
                           pt->path);
    return CZ_OK;
}

/* ---- small records --------------------------------------------------------------------------- */

/* Bytes of a record with a NUL after them, checksum checked; free() them. The size is limited
 * before memory is asked for: it comes from the file. */
static cz_status load_record(const struct pt *pt, const struct pt_record *r, char **out)
{
    *out = NULL;
    if (r->nbytes > PT_WHOLE_NBYTES_MAX)
        return CORRUPT("%s: record %s has %llu bytes; at most %llu are read", pt->path, r->name,
                       ULL(r->nbytes), ULL(PT_WHOLE_NBYTES_MAX));
    char *bytes = malloc((size_t)r->nbytes + 1);
    if (!bytes)
        return err_set(CZ_NOMEM, 0, "%s: no memory for the %llu bytes of %s", pt->path,
                       ULL(r->nbytes), r->name);
    cz_status st = file_pread(pt->fd, pt->path, bytes, (size_t)r->nbytes, r->off);
    uint32_t crc = st == CZ_OK ? crc32_update(0, bytes, (size_t)r->nbytes) : 0;
    if (st == CZ_OK && r->has_crc && crc != r->crc)
        st = CORRUPT("%s: record %s at byte %llu is damaged: its CRC-32 is %08x, not %08x",
                     pt->path, r->name, ULL(r->off), crc, r->crc);
    if (st != CZ_OK) {
        free(bytes);
        return st;
    }
    bytes[r->nbytes] = '\0';
    *out = bytes;
    return CZ_OK;
}

#define SMALL_NBYTES 32

/* A record of a few characters; *text is empty when it is not there. */
static cz_status small_record(const struct pt *pt, const char *name, char text[SMALL_NBYTES])
{
    const struct pt_record *r = pt_record_find(pt, name);
    char *bytes;
    text[0] = '\0';
    if (!r) return CZ_OK;
    if (r->nbytes >= SMALL_NBYTES)
        return CORRUPT("%s: record %s has %llu bytes", pt->path, name, ULL(r->nbytes));
    TRY(load_record(pt, r, &bytes));
    memcpy(text, bytes, (size_t)r->nbytes + 1);
    free(bytes);
    return CZ_OK;
}

/* The records that torch looks at to decide whether it can read the file. */
static cz_status check_marks(const struct pt *pt)
{
    char text[SMALL_NBYTES], *end;
    if (!pt_record_find(pt, "data.pkl")) return CORRUPT("%s: no record data.pkl", pt->path);
    if (!pt_record_find(pt, "version")) return CORRUPT("%s: no record version", pt->path);
    TRY(small_record(pt, "version", text));
    unsigned long version = strtoul(text, &end, 10);
    if (end == text || (*end != '\0' && *end != '\n') || version == 0)
        return CORRUPT("%s: its record version has no number", pt->path);
    if (version > VERSION_MAX)
        return err_set(CZ_VERSION, 0, "%s: container version %lu; versions up to %d are read",
                       pt->path, version, VERSION_MAX);
    TRY(small_record(pt, "byteorder", text));
    if (strcmp(text, "big") == 0)
        return UNSUPPORTED("%s: its tensors are big endian: save it again on a little-endian "
                           "machine",
                           pt->path);
    if (text[0] != '\0' && strcmp(text, "little") != 0)
        return CORRUPT("%s: its record byteorder is neither little nor big", pt->path);
    return CZ_OK;
}

/* ---- the pickle ------------------------------------------------------------------------------ */

static cz_status parse_pickle(struct pt *pt)
{
    const struct pt_record *r = pt_record_find(pt, "data.pkl");
    size_t label_nbytes = strlen(pt->path) + sizeof ": data.pkl";
    char *bytes, *label = malloc(label_nbytes);
    if (!label) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", pt->path);
    strcpy(label, pt->path);
    strcat(label, ": data.pkl");
    cz_status st = load_record(pt, r, &bytes);
    if (st == CZ_OK) st = pickle_parse(bytes, (size_t)r->nbytes, label, &pt->pickle);
    free(bytes);
    free(label);
    return st;
}

static cz_status check_storage(const struct pt *pt, const struct pickle_tensor *t)
{
    const struct pt_record *r = pt_storage(pt, t);
    if (!r) return CORRUPT("%s: a tensor's storage, record data/%s, is missing", pt->path, t->key);
    if (r->nbytes != t->storage_nbytes)
        return CORRUPT("%s: record %s has %llu bytes, but its storage needs %llu", pt->path,
                       r->name, ULL(r->nbytes), ULL(t->storage_nbytes));
    return CZ_OK;
}

/* The pickle reader bounds depth and size of the tree, so this may recurse. */
static cz_status check_storages(const struct pt *pt, const struct pickle_node *node)
{
    if (!node) return CZ_OK;
    if (node->kind == PICKLE_TENSOR) TRY(check_storage(pt, node->tensor));
    for (size_t i = 0; node->items && i < node->n; i++) TRY(check_storages(pt, node->items[i]));
    for (size_t i = 0; node->pairs && i < node->n_pairs; i++) {
        TRY(check_storages(pt, node->pairs[i].key));
        TRY(check_storages(pt, node->pairs[i].value));
    }
    TRY(check_storages(pt, node->more->args));
    return check_storages(pt, node->more->state);
}

/* ---- open and close -------------------------------------------------------------------------- */

cz_status pt_open_in(const char *dir, const char *name, struct pt **out)
{
    *out = NULL;
    struct pt *pt = calloc(1, sizeof *pt);
    if (!pt) return err_set(CZ_NOMEM, 0, "%s: no memory for a reader", name);
    cz_status st;
    pt->fd = -1;
    pt->path = dir ? file_join(dir, name) : strdup(name);
    if (!pt->path) {
        st = err_set(CZ_NOMEM, 0, "%s: no memory for its name", name);
        goto fail;
    }
    TRY_GOTO(beneath_open(dir, name, &pt->fd, &pt->nbytes), fail);
    TRY_GOTO(file_stamp_take(pt->fd, pt->path, &pt->stamp), fail);
    TRY_GOTO(check_format(pt), fail);
    TRY_GOTO(pt_zip_read(&pt->zip, pt->fd, pt->path, pt->nbytes), fail);
    TRY_GOTO(check_marks(pt), fail);
    TRY_GOTO(parse_pickle(pt), fail);
    TRY_GOTO(check_storages(pt, pickle_root(pt->pickle)), fail);
    *out = pt;
    return CZ_OK;
fail:
    pt_close(pt);
    return st;
}

cz_status pt_open(const char *path, struct pt **out)
{
    return pt_open_in(NULL, path, out);
}

void pt_close(struct pt *pt)
{
    if (!pt) return;
    if (pt->fd >= 0) close(pt->fd);
    pickle_free(pt->pickle);
    pt_zip_free(&pt->zip);
    free(pt->path);
    free(pt);
}

/* ---- asking ---------------------------------------------------------------------------------- */

const char *pt_path(const struct pt *pt)
{
    return pt->path;
}

uint64_t pt_nbytes(const struct pt *pt)
{
    return pt->nbytes;
}

const struct pickle_node *pt_root(const struct pt *pt)
{
    return pickle_root(pt->pickle);
}

size_t pt_n_records(const struct pt *pt)
{
    return pt->zip.n;
}

const struct pt_record *pt_record_at(const struct pt *pt, size_t idx)
{
    return idx < pt->zip.n ? &pt->zip.records[idx] : NULL;
}

const struct pt_record *pt_record_find(const struct pt *pt, const char *name)
{
    return pt_zip_find(&pt->zip, "", name);
}

const struct pt_record *pt_storage(const struct pt *pt, const struct pickle_tensor *t)
{
    return pt_zip_find(&pt->zip, "data/", t->key);
}

/* ---- checksums ------------------------------------------------------------------------------- */

static cz_status record_crc(const struct pt *pt, const struct pt_record *r, void *buf,
                            uint32_t *crc)
{
    *crc = 0;
    for (uint64_t at = 0; at < r->nbytes;) {
        size_t n = r->nbytes - at < VERIFY_NBYTES ? (size_t)(r->nbytes - at) : VERIFY_NBYTES;
        TRY(file_pread(pt->fd, pt->path, buf, n, r->off + at));
        *crc = crc32_update(*crc, buf, n);
        at += n;
    }
    return CZ_OK;
}

/* A stored CRC of 0 means that none was computed; the record is read all the same, so unreadable
 * sectors show. */
static cz_status verify_record(const struct pt *pt, const struct pt_record *r, void *buf,
                               size_t *n_unchecked)
{
    uint32_t crc;
    TRY(record_crc(pt, r, buf, &crc));
    if (crc == r->crc) return CZ_OK;
    if (!r->has_crc) {
        ++*n_unchecked;
        return CZ_OK;
    }
    return CORRUPT("%s: record %s, %llu bytes at byte %llu, is damaged: its CRC-32 is %08x, not "
                   "%08x",
                   pt->path, r->name, ULL(r->nbytes), ULL(r->off), crc, r->crc);
}

/* torch itself never compares checksums. */
cz_status pt_verify(const struct pt *pt, const struct pt_record **bad, size_t *n_unchecked)
{
    size_t n_without = 0;
    cz_status st = CZ_OK;
    if (bad) *bad = NULL;
    void *buf = malloc(VERIFY_NBYTES);
    if (!buf) return err_set(CZ_NOMEM, 0, "%s: no memory to read it", pt->path);
    posix_fadvise(pt->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (size_t i = 0; i < pt->zip.n && st == CZ_OK; i++) {
        st = verify_record(pt, &pt->zip.records[i], buf, &n_without);
        if (st == CZ_CORRUPT && bad) *bad = &pt->zip.records[i];
    }
    free(buf);
    if (n_unchecked) *n_unchecked = n_without;
    return st;
}

cz_status pt_verify_record(const struct pt *pt, const struct pt_record *record)
{
    size_t n_without = 0;
    void *buf = malloc(VERIFY_NBYTES);
    if (!buf) return err_set(CZ_NOMEM, 0, "%s: no memory to read it", pt->path);
    cz_status st = verify_record(pt, record, buf, &n_without);
    free(buf);
    return st;
}
