/* Writing a .pt: pieces of storages go to places that are fixed at the start, in any order and from
 * any thread; their checksums are put together as they come; everything between the payloads is
 * written at the end. So a checkpoint is never in memory as a whole, and never read again for its
 * sums. */
#include "formats/crc32.h"
#include "formats/file_queue.h"
#include "formats/pt/pt_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define INVALID(...) err_set(CZ_INVALID, 0, __VA_ARGS__)
#define ULL(x)       ((unsigned long long)(x))

/* Smaller files are written by the caller's thread: threads would cost more than they save. */
#define QUEUE_NBYTES_MIN ((size_t)2 << 20)

struct pt_writer {
    struct file_durable file;
    struct file_queue *queue; /* NULL: none */
    struct pt_layout layout;
    unsigned char *pickle;
    pthread_mutex_t lock;        /* of pieces */
    struct crc32_pieces *pieces; /* (n_storages) */
    uint32_t *crcs;              /* (layout.n) filled by the finish */
    bool finished;
};

/* ---- create ---------------------------------------------------------------------------------- */

static cz_status copy_pickle(struct pt_writer *w, const struct pt_create_options *o)
{
    w->pickle = malloc(o->pickle_nbytes + 1);
    w->pieces = calloc(o->n_storages + 1, sizeof *w->pieces);
    w->crcs = calloc(w->layout.n, sizeof *w->crcs);
    if (!w->pickle || !w->pieces || !w->crcs)
        return err_set(CZ_NOMEM, 0, "%s: no memory for a writer", o->path);
    if (o->pickle_nbytes > 0) memcpy(w->pickle, o->pickle, o->pickle_nbytes);
    return CZ_OK;
}

cz_status pt_create(const struct pt_create_options *o, struct pt_writer **out)
{
    *out = NULL;
    struct pt_writer *w = calloc(1, sizeof *w);
    if (!w) return err_set(CZ_NOMEM, 0, "%s: no memory for a writer", o->path);
    cz_status st;
    const char *slash = o->folder ? strrchr(o->path, '/') : NULL;
    w->file.fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    TRY_GOTO(pt_layout_make(&w->layout, o), fail);
    TRY_GOTO(copy_pickle(w, o), fail);
    TRY_GOTO(file_durable_create_in(&w->file, o->folder, slash ? slash + 1 : o->path,
                                    w->layout.nbytes),
             fail);
    if (!o->unbuffered && w->layout.nbytes >= QUEUE_NBYTES_MIN)
        TRY_GOTO(file_queue_create(&w->file, &w->queue), fail);
    *out = w;
    return CZ_OK;
fail:
    pt_writer_destroy(w);
    return st;
}

/* ---- storages -------------------------------------------------------------------------------- */

/* The place of every storage was fixed by the layout; a piece outside of it would overwrite a
 * neighbour. */
static cz_status check_piece(const struct pt_writer *w, size_t storage_idx, uint64_t off,
                             uint64_t nbytes)
{
    const char *path = w->file.path;
    if (w->finished || w->file.fd < 0) return INVALID("%s: it is finished", path);
    if (storage_idx >= w->layout.n_storages)
        return INVALID("%s: storage %zu of %zu", path, storage_idx, w->layout.n_storages);
    uint64_t whole = w->layout.slots[PT_FIRST_STORAGE + storage_idx].nbytes;
    if (off > whole || nbytes > whole - off)
        return INVALID("%s: bytes %llu to %llu of storage data/%zu, which has %llu", path, ULL(off),
                       ULL(off + nbytes), storage_idx, ULL(whole));
    return CZ_OK;
}

/* Only the bookkeeping is under the lock; the bytes were written before. */
static cz_status add_piece(struct pt_writer *w, size_t storage_idx, uint64_t off, uint64_t nbytes,
                           uint32_t crc)
{
    pthread_mutex_lock(&w->lock);
    cz_status st = crc32_pieces_add(&w->pieces[storage_idx], off, nbytes, crc);
    pthread_mutex_unlock(&w->lock);
    if (st != CZ_OK) return err_prefix("%s: storage data/%zu", w->file.path, storage_idx);
    return CZ_OK;
}

cz_status pt_write(struct pt_writer *w, size_t storage_idx, uint64_t off, size_t nbytes,
                   const void *src, uint32_t *crc)
{
    TRY(check_piece(w, storage_idx, off, nbytes));
    uint64_t file_off = w->layout.slots[PT_FIRST_STORAGE + storage_idx].off + off;
    uint32_t sum = 0;
    if (w->queue) {
        TRY(file_queue_put(w->queue, src, nbytes, file_off, &sum));
    } else {
        sum = crc32_update(sum, src, nbytes);
        TRY(file_durable_pwrite(&w->file, src, nbytes, file_off));
    }
    if (crc) *crc = sum;
    return add_piece(w, storage_idx, off, nbytes, sum);
}

/* For bytes that another process or call puts into the file. */
cz_status pt_write_elsewhere(struct pt_writer *w, size_t storage_idx, uint64_t off, uint64_t nbytes,
                             uint32_t crc)
{
    TRY(check_piece(w, storage_idx, off, nbytes));
    return add_piece(w, storage_idx, off, nbytes, crc);
}

/* ---- finish ---------------------------------------------------------------------------------- */

#define RUN_NBYTES ((size_t)64 << 10)

/* Bytes that follow each other in the file, written when many have gathered; `crc` is of the file
 * up to `off` + n. */
struct run {
    struct pt_writer *w;
    unsigned char *bytes; /* RUN_NBYTES and space for one more piece */
    size_t n;
    uint64_t off;
    uint32_t crc;
};

static cz_status run_write(struct run *run, const void *bytes, size_t n)
{
    TRY(file_pwrite(run->w->file.fd, run->w->file.path, bytes, n, run->off));
    run->crc = crc32_update(run->crc, bytes, n);
    run->off += n;
    return CZ_OK;
}

static cz_status run_flush(struct run *run)
{
    size_t n = run->n;
    run->n = 0;
    return run_write(run, run->bytes, n);
}

/* `n` bytes were put at the run's end. */
static cz_status run_added(struct run *run, size_t n)
{
    run->n += n;
    return run->n < RUN_NBYTES ? CZ_OK : run_flush(run);
}

/* Every byte of every storage must have been written exactly once. */
static cz_status sum_storages(struct pt_writer *w)
{
    for (size_t i = 0; i < w->layout.n_storages; i++) {
        size_t idx = PT_FIRST_STORAGE + i;
        if (crc32_pieces_total(&w->pieces[i], w->layout.slots[idx].nbytes, &w->crcs[idx]) != CZ_OK)
            return err_prefix("%s: storage data/%zu is incomplete", w->file.path, i);
    }
    return CZ_OK;
}

/* Storages are in place already: the run steps over them, and their sums are appended to that of
 * the file. */
static cz_status put_payload(struct run *run, size_t idx)
{
    struct pt_writer *w = run->w;
    const struct pt_layout *l = &w->layout;
    char id[PT_ID_NBYTES + 1];
    const void *bytes = pt_layout_text(l, idx);
    size_t n = (size_t)l->slots[idx].nbytes;
    if (idx >= PT_FIRST_STORAGE && idx < PT_FIRST_STORAGE + l->n_storages) {
        /* Step over a payload that is there already. */
        if (l->slots[idx].nbytes == 0) return CZ_OK;
        TRY(run_flush(run));
        run->off += l->slots[idx].nbytes;
        run->crc = crc32_concat(run->crc, w->crcs[idx], l->slots[idx].nbytes);
        return CZ_OK;
    }
    if (idx == 0) bytes = w->pickle;
    if (idx == l->n - 1) {
        pt_put_id(l, w->crcs, id);
        bytes = id;
    }
    w->crcs[idx] = crc32_update(0, bytes, n);
    if (n > PT_PIECE_NBYTES) {
        TRY(run_flush(run));
        return run_write(run, bytes, n);
    }
    memcpy(run->bytes + run->n, bytes, n);
    return run_added(run, n);
}

static cz_status put_all(struct run *run)
{
    struct pt_writer *w = run->w;
    const struct pt_layout *l = &w->layout;
    for (size_t i = 0; i < l->n; i++) {
        TRY(run_added(run, pt_put_local(l, i, run->bytes + run->n)));
        TRY(put_payload(run, i));
        TRY(run_added(run, pt_put_descriptor(l, i, w->crcs[i], run->bytes + run->n)));
    }
    for (size_t i = 0; i < l->n; i++)
        TRY(run_added(run, pt_put_central(l, i, w->crcs[i], run->bytes + run->n)));
    TRY(run_added(run, pt_put_end(l, run->bytes + run->n)));
    return run_flush(run);
}

/* Synced before it is renamed, so the name stands for a complete file. */
cz_status pt_finish(struct pt_writer *w, bool rename, struct pt_written *out)
{
    if (w->finished || w->file.fd < 0) return INVALID("%s: it is finished", w->file.path);
    TRY(sum_storages(w));
    if (w->queue) TRY(file_queue_drain(w->queue));
    struct run run = {.w = w, .bytes = malloc(RUN_NBYTES + PT_PIECE_NBYTES)};
    if (!run.bytes) return err_set(CZ_NOMEM, 0, "%s: no memory for its directory", w->file.path);
    cz_status st = put_all(&run);
    free(run.bytes);
    TRY(st);
    TRY(file_durable_sync(&w->file));
    w->finished = true;
    if (out) *out = (struct pt_written){.nbytes = run.off, .crc = run.crc};
    return rename ? pt_rename(w) : CZ_OK;
}

cz_status pt_rename(struct pt_writer *w)
{
    if (!w->finished || w->file.renamed)
        return INVALID("%s: it is %s", w->file.path,
                       w->finished ? "in place already" : "not finished");
    TRY(file_durable_rename(&w->file));
    return file_durable_sync_folder(&w->file);
}

void pt_take_back(struct pt_writer *w)
{
    if (w) file_durable_take_back(&w->file);
}

bool pt_is_renamed(const struct pt_writer *w)
{
    return w->file.renamed;
}

uint64_t pt_storage_off(const struct pt_writer *w, size_t storage_idx)
{
    if (storage_idx >= w->layout.n_storages) return 0;
    return w->layout.slots[PT_FIRST_STORAGE + storage_idx].off;
}

uint32_t pt_storage_crc(const struct pt_writer *w, size_t storage_idx)
{
    return storage_idx < w->layout.n_storages ? w->crcs[PT_FIRST_STORAGE + storage_idx] : 0;
}

void pt_writer_destroy(struct pt_writer *w)
{
    if (!w) return;
    file_queue_destroy(w->queue); /* it writes to the file */
    file_durable_abort(&w->file);
    for (size_t i = 0; w->pieces && i < w->layout.n_storages; i++) crc32_pieces_free(&w->pieces[i]);
    pthread_mutex_destroy(&w->lock);
    pt_layout_free(&w->layout);
    free(w->pieces);
    free(w->crcs);
    free(w->pickle);
    free(w);
}
