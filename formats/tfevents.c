/* TensorBoard's event files, written without TensorFlow.
 *
 * A record: u64 length · u32 masked CRC of the length · data · u32 masked CRC of the data, little
 * endian. The data is a protocol buffer, written manually:
 *   Event    1 wall_time double · 2 step int64 · 3 file_version string · 5 Summary
 *            · 7 { 1 session status, 1 = starts } · 10 { 1 writer }
 *   Summary  1 Value { 1 tag string · 2 simple_value float }
 * Readers follow a growing file and give up at the first broken record, so only whole records are
 * written. */
#include "formats/tfevents.h"

#include "base/utf8.h"
#include "formats/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_NBYTES     16384
#define RECORD_NBYTES_MAX (TFEVENTS_TAG_NBYTES_MAX + 128)
#define FRAME_NBYTES      12 /* in front of the data */

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct tfevents {
    char *path;
    int fd;
    uint64_t file_nbytes; /* complete records on disk */
    size_t used;
    unsigned char buf[BUFFER_NBYTES];
};

/* ---- bytes ----------------------------------------------------------------------------------- */

uint32_t tfevents_crc32c(const void *data, size_t nbytes)
{
    static const uint32_t nibble[16] = {/* reflected polynomial 0x82F63B78, four bits at a time */
                                        0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1,
                                        0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
                                        0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
                                        0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75};
    const unsigned char *src = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= src[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

/* TensorFlow's mask: data that contains its own CRC would otherwise have a predictable one. */
static uint32_t masked_crc(const void *data, size_t nbytes)
{
    uint32_t crc = tfevents_crc32c(data, nbytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

struct bytes {
    unsigned char buf[RECORD_NBYTES_MAX];
    size_t n;
};

static void put(struct bytes *b, const void *src, size_t nbytes)
{
    memcpy(b->buf + b->n, src, nbytes);
    b->n += nbytes;
}

/* Seven bits a byte, the lowest first; negative steps take ten bytes. */
static void put_varint(struct bytes *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) b->buf[b->n++] = (unsigned char)(value | 0x80);
    b->buf[b->n++] = (unsigned char)value;
}

static void put_tag(struct bytes *b, unsigned field, enum wire wire)
{
    put_varint(b, field << 3 | (unsigned)wire);
}

static void put_block(struct bytes *b, unsigned field, const void *src, size_t nbytes)
{
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, nbytes);
    put(b, src, nbytes);
}

static void put_wall_time(struct bytes *b)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_tag(b, 1, WIRE_FIXED64);
    put(b, &seconds, sizeof seconds);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Records are buffered; a flush writes whole ones only. */
static cz_status add_record(struct tfevents *w, const struct bytes *data)
{
    if (w->used + data->n + FRAME_NBYTES + 4 > sizeof w->buf) TRY(tfevents_flush(w));
    unsigned char *at = w->buf + w->used;
    uint64_t length = data->n;
    uint32_t crc = masked_crc(&length, sizeof length);
    memcpy(at, &length, sizeof length);
    memcpy(at + 8, &crc, sizeof crc);
    memcpy(at + FRAME_NBYTES, data->buf, data->n);
    crc = masked_crc(data->buf, data->n);
    memcpy(at + FRAME_NBYTES + data->n, &crc, sizeof crc);
    w->used += FRAME_NBYTES + data->n + sizeof crc;
    return CZ_OK;
}

static cz_status add_version(struct tfevents *w)
{
    struct bytes writer = {.n = 0}, event = {.n = 0};
    put_block(&writer, 1, "czero", 5);
    put_wall_time(&event);
    put_block(&event, 3, "brain.Event:2", 13);
    put_block(&event, 10, writer.buf, writer.n);
    return add_record(w, &event);
}

cz_status tfevents_scalar(struct tfevents *w, const char *tag, double value, int64_t step)
{
    struct bytes point = {.n = 0}, summary = {.n = 0}, event = {.n = 0};
    size_t n_tag = strlen(tag);
    float single = (float)value;
    if (n_tag > TFEVENTS_TAG_NBYTES_MAX || !utf8_is_valid(tag, n_tag))
        return err_set(CZ_INVALID, 0, "%s: a curve's name must be UTF-8 of at most %d bytes",
                       w->path, TFEVENTS_TAG_NBYTES_MAX);
    put_block(&point, 1, tag, n_tag);
    put_tag(&point, 2, WIRE_FIXED32);
    put(&point, &single, sizeof single);
    put_block(&summary, 1, point.buf, point.n);
    put_wall_time(&event);
    put_tag(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_block(&event, 5, summary.buf, summary.n);
    return add_record(w, &event);
}

/* Tells TensorBoard to drop the points from this step on: a run that resumes writes them again. */
cz_status tfevents_restart(struct tfevents *w, int64_t step)
{
    static const unsigned char starts[] = {1 << 3 | WIRE_VARINT, 1};
    struct bytes event = {.n = 0};
    put_wall_time(&event);
    put_tag(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_block(&event, 7, starts, sizeof starts);
    return add_record(w, &event);
}

cz_status tfevents_flush(struct tfevents *w)
{
    size_t n = w->used;
    w->used = 0;
    if (n == 0) return CZ_OK;
    cz_status st = file_pwrite(w->fd, w->path, w->buf, n, w->file_nbytes);
    if (st != CZ_OK) {
        /* Readers stop at a broken record for good, so cut it off; if even that fails there is
         * nothing better to report than the write. */
        if (ftruncate(w->fd, (off_t)w->file_nbytes) != 0) return st;
        return st;
    }
    w->file_nbytes += n;
    return CZ_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* TensorBoard orders files by the time in their name. The serial number separates writers of one
 * process within a second. */
static cz_status create_file(struct tfevents *w, const struct out_folder *in)
{
    static _Atomic unsigned serial; /* writers of one process within a second */
    char host[256] = "localhost", name[384];
    if (gethostname(host, sizeof host - 1) != 0) strcpy(host, "localhost");
    do {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%u", (long long)time(NULL),
                 host, (long)getpid(), atomic_fetch_add(&serial, 1));
        free(w->path);
        w->path = file_join(in->path, name);
        if (!w->path) return err_set(CZ_NOMEM, 0, "%s: no memory for a file name", in->path);
    } while (out_is_there(in, name));
    return out_open(in, name, O_WRONLY | O_EXCL, &w->fd);
}

cz_status tfevents_open(const struct out_folder *in, struct tfevents **out)
{
    cz_status st;
    *out = NULL;
    struct tfevents *w = calloc(1, sizeof *w);
    if (!w) return err_set(CZ_NOMEM, 0, "%s: no memory for an event writer", in->path);
    w->fd = -1;
    TRY_GOTO(create_file(w, in), fail);
    TRY_GOTO(add_version(w), fail);
    TRY_GOTO(tfevents_flush(w), fail);
    *out = w;
    return CZ_OK;
fail:
    if (w->fd >= 0) {
        close(w->fd);
        (void)out_remove(in, strrchr(w->path, '/') ? strrchr(w->path, '/') + 1 : w->path);
    }
    free(w->path);
    free(w);
    return st;
}

const char *tfevents_path(const struct tfevents *w)
{
    return w->path;
}

cz_status tfevents_close(struct tfevents *w)
{
    if (!w) return CZ_OK;
    cz_status st = tfevents_flush(w);
    if (close(w->fd) != 0 && st == CZ_OK && errno != EINTR)
        st = err_set(CZ_IO, errno, "%s: cannot be closed", w->path);
    free(w->path);
    free(w);
    return st;
}
