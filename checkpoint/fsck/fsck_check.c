/* Checks of files, several at a time.
 *
 * A file that a manifest lists is compared with its sums in one pass: the CRC of every tensor, and
 * of the whole file by concatenating the CRCs of the pieces (crc32_concat), so no byte is read
 * twice unless something is wrong. A .pt without a manifest is checked by its structure and the CRC
 * that the zip stores for every record; a .safetensors, whose format has no sums, by its header.
 * Files are read through buffers of FSCK_PIECE_NBYTES, one a thread, so memory does not grow with
 * the checkpoint. */
#include "checkpoint/fsck/fsck_impl.h"

#include "base/host/thread.h"
#include "base/threads.h"
#include "formats/beneath.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX       4          /* more do not make a disk faster */
#define NBYTES_PER_THREAD (8u << 20) /* less is read faster than a thread starts */

/* ---- progress and sums ----------------------------------------------------------------------- */

/* Shared by the threads: which file is next, how much has been read, which files have been
 * reported. */
struct fsck_meter {
    const struct cz_fsck_options *options;
    pthread_mutex_t lock; /* of everything below, and around the caller's callbacks */
    uint64_t done, total;
    struct fsck_files *files;
    size_t next, n_reported;
    struct cz_fsck_report *report;
};

/* CRC-32 of bytes [off, off + nbytes), read in pieces through buf (FSCK_PIECE_NBYTES). meter may be
 * NULL. Errors: CZ_IO, CZ_CORRUPT (the file ends before). */
static cz_status crc_of_bytes(int fd, const char *path, uint64_t off, uint64_t nbytes, void *buf,
                              struct fsck_meter *meter, uint32_t *crc)
{
    *crc = 0;
    while (nbytes > 0) {
        const size_t n = nbytes < FSCK_PIECE_NBYTES ? (size_t)nbytes : FSCK_PIECE_NBYTES;
        TRY(file_pread(fd, path, buf, n, off));
        *crc = crc32_update(*crc, buf, n);
        if (meter) {
            pthread_mutex_lock(&meter->lock);
            meter->done += n;
            if (meter->done > meter->total) meter->done = meter->total;
            if (meter->options->progress)
                meter->options->progress(meter->done, meter->total, meter->options->user);
            pthread_mutex_unlock(&meter->lock);
        }
        off += n;
        nbytes -= n;
    }
    return CZ_OK;
}

/* ---- contents of a record -------------------------------------------------------------------- */

/* A walk over a pickle's tree that counts tensors, all of them or those of one record. It is
 * allocated, not on the stack, because visit() recurses and the paths are long. */
struct walk {
    const struct pt *pt;
    const struct pt_record *record; /* NULL: all */
    size_t n;
    char path[512];  /* of the node that is being visited: "module/transformer.wte.weight" */
    char first[512]; /* of the first tensor counted */
};

static void visit(struct walk *w, const struct pickle_node *node);

/* Visits a child under its name. The path is one buffer that grows and shrinks with the recursion;
 * a path that is too long is cut, since it only ends up in a sentence. */
static void visit_named(struct walk *w, const struct pickle_node *child, const char *name,
                        size_t idx)
{
    const size_t n = strlen(w->path), left = sizeof w->path - n;
    if (name)
        snprintf(w->path + n, left, n > 0 ? "/%s" : "%s", name);
    else
        snprintf(w->path + n, left, "[%zu]", idx);
    visit(w, child);
    w->path[n] = '\0';
}

/* The pickle reader bounds the depth of a tree, so the recursion is bounded as well. */
static void visit(struct walk *w, const struct pickle_node *node)
{
    if (!node) return;
    if (node->kind == PICKLE_TENSOR) {
        if (w->record && pt_storage(w->pt, node->tensor) != w->record) return;
        if (w->n++ == 0) memcpy(w->first, w->path, sizeof w->first);
        return;
    }
    for (size_t i = 0; node->items && i < node->n; i++) visit_named(w, node->items[i], NULL, i);
    for (size_t i = 0; node->pairs && i < node->n_pairs; i++) {
        const struct pickle_node *key = node->pairs[i].key;
        char number[32];
        const char *name = pickle_to_string(key);
        snprintf(number, sizeof number, "%" PRId64, key->integer);
        if (!name && key->kind == PICKLE_INT) name = number;
        visit_named(w, node->pairs[i].value, name, i);
    }
    visit(w, node->more->args);
    if (node->kind == PICKLE_OBJECT) visit(w, node->more->state);
}

/* Tensors in the tree of an open .pt. */
static size_t count_tensors(const struct pt *pt)
{
    struct walk *w = calloc(1, sizeof *w);
    if (!w) return 0;
    w->pt = pt;
    visit(w, pt_root(pt));
    const size_t n = w->n;
    free(w);
    return n;
}

static const char *what_name(const struct ckpt_info *info, int what)
{
    if (what == CKPT_MODULE) return "param";
    return what == CKPT_MASTER ? "master" : info->states[what - CKPT_STATE_0];
}

/* Whether some element of (tensor, what) is stored in these bytes of a file. Values are stored in
 * runs: one for each rank's partition, so each run is compared alone. */
static bool is_stored_in(const struct ckpt *view, size_t idx, int what, const char *path,
                         uint64_t off, uint64_t nbytes)
{
    struct ckpt_run run;
    const uint64_t numel = ckpt_at(view, idx)->numel;
    bool yes = false;
    for (uint64_t at = 0; at < numel && !yes; at += run.numel) {
        if (ckpt_run(view, idx, what, at, &run) != CZ_OK) break;
        yes = run.file_off < off + nbytes && off < run.file_off + run.numel * run.dtype->size &&
              strcmp(ckpt_file_path(view, run.file_idx), path) == 0;
    }
    err_clear(); /* not stored, or with strides: then it is not named */
    return yes;
}

/* A record as people know it: "data/3 (transformer.wte.weight, exp_avg, and 27 more)",
 * by parameters where a view is open, else by the place in the pickle. */
static void describe_record(const struct fsck_file *file, const struct pt *pt,
                            const struct pt_record *record, char *text, size_t nbytes)
{
    struct walk *w = calloc(1, sizeof *w);
    snprintf(text, nbytes, "%s", record->name);
    if (!w) return; /* the record's name must do */
    w->pt = pt;
    w->record = record;
    if (file->view) {
        /* Count the parameters that have values in these bytes, and keep the name of one. */
        const struct ckpt_info *info = ckpt_get_info(file->view);
        size_t n = 0;
        for (int what = 0; what < CKPT_STATE_0 + (int)info->n_states; what++)
            for (size_t i = 0; i < ckpt_count(file->view); i++)
                if (is_stored_in(file->view, i, what, file->path, record->off, record->nbytes) &&
                    n++ == 0)
                    snprintf(w->first, 512, "%s, %s", ckpt_at(file->view, i)->name,
                             what_name(info, what));
        w->n = n;
    }
    if (w->n == 0) visit(w, pt_root(pt));
    if (w->n == 1) snprintf(text, nbytes, "%s (%s)", record->name, w->first);
    if (w->n > 1) snprintf(text, nbytes, "%s (%s, and %zu more)", record->name, w->first, w->n - 1);
    free(w);
}

/* ---- records --------------------------------------------------------------------------------- */

/* One record. A record that carries no CRC (0 in a file that torch wrote;
 * docs/deepspeed-behaviour.md, "torch.save files") is counted as unchecked, but it was read, so an
 * unreadable sector in it is still found. */
static cz_status check_record(struct fsck_file *file, const struct pt *pt, int fd,
                              const struct pt_record *r, void *buf, struct fsck_meter *meter,
                              size_t *n_bad)
{
    uint32_t crc;
    char text[1024];
    cz_status st = crc_of_bytes(fd, file->path, r->off, r->nbytes, buf, meter, &crc);
    if (st == CZ_OK && crc == r->crc) return CZ_OK;
    if (st == CZ_OK && !r->has_crc) {
        file->n_unchecked++;
        return CZ_OK;
    }
    ++*n_bad;
    if (st != CZ_OK) return fsck_note_error(&file->findings, file->path);
    describe_record(file, pt, r, text, sizeof text);
    return fsck_note(&file->findings, file->path, text, r->off, r->nbytes,
                     "record %s: damaged within the %" PRIu64 " bytes at byte %" PRIu64
                     " (CRC-32 %08" PRIx32 ", stored is %08" PRIx32 ")",
                     text, r->nbytes, r->off, crc, r->crc);
}

/* The records of an open .pt whose bytes do not have their CRC. Records in which the pass over the
 * manifest's tensors found something are left out: the same damage would be reported under two
 * names. *n_bad: how many. */
static cz_status check_records(struct fsck_file *file, const struct pt *pt, void *buf,
                               struct fsck_meter *meter, size_t *n_bad)
{
    int fd;
    *n_bad = 0;
    TRY(beneath_open(file->dir, file->name, &fd, NULL));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < pt_n_records(pt) && st == CZ_OK; i++) {
        const struct pt_record *r = pt_record_at(pt, i);
        if (!fsck_found_in(&file->findings, r->off, r->nbytes))
            st = check_record(file, pt, fd, r, buf, meter, n_bad);
    }
    close(fd);
    return st;
}

/* Damage is a finding; that a file cannot be opened, or is of a kind that this build does not read,
 * is an error. */
static cz_status opened(struct fsck_file *file, cz_status st)
{
    if (st != CZ_CORRUPT && st != CZ_VERSION && st != CZ_NOTFOUND) return st;
    return fsck_note_error(&file->findings, file->path);
}

/* pt_open() checks directory, headers and pickle; the records' bytes are left for
 * check_records(). */
static cz_status check_zip(struct fsck_file *file, void *buf, struct fsck_meter *meter)
{
    struct pt *pt = NULL;
    size_t n_bad;
    TRY(opened(file, pt_open_in(file->dir, file->name, &pt)));
    if (!pt) return CZ_OK;
    file->n_tensors = count_tensors(pt);
    file->nbytes_read = pt_nbytes(pt);
    cz_status st = check_records(file, pt, buf, meter, &n_bad);
    pt_close(pt);
    return st;
}

/* The format has no checksums: header, dtypes, shapes and offsets are all there is to check. */
static cz_status check_safetensors(struct fsck_file *file)
{
    struct safetensors *st = NULL;
    TRY(opened(file, safetensors_open_in(file->dir, file->name, &st)));
    if (!st) return CZ_OK;
    file->n_tensors = file->n_unchecked = safetensors_count(st);
    file->nbytes_read = file->nbytes;
    safetensors_close(st);
    return CZ_OK;
}

/* ---- against a manifest's sums --------------------------------------------------------------- */

/* One pass over a file that a manifest lists. Two sums run along: `crc` of the bytes as they are,
 * and `crc_repaired` as it would be if every listed tensor were intact. If the second equals the
 * manifest's sum, all damage is inside tensors and has been named; if not, something between them
 * is damaged too. */
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

/* Reads up to `end`, or to the end of the file. After an unreadable piece the pass stops reading,
 * because a failing disk may take minutes for each further sector. */
static cz_status advance(struct pass *p, uint64_t end, uint32_t *crc)
{
    if (end > p->readable) end = p->readable;
    const uint64_t off = p->at, n = end > off ? end - off : 0;
    *crc = 0;
    if (p->is_unreadable) return CZ_OK;
    cz_status st = crc_of_bytes(p->fd, p->file->path, off, n, p->buf, p->meter, crc);
    p->at = off + n;
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    p->is_unreadable = true;
    return fsck_note_error(&p->file->findings, p->file->path);
}

/* Bytes between tensors (headers, padding, pickles) have no sum of their own, so they count into
 * both sums as they are. */
static cz_status pass_gap(struct pass *p, uint64_t end)
{
    uint32_t crc;
    const uint64_t off = p->at;
    TRY(advance(p, end, &crc));
    p->crc = crc32_concat(p->crc, crc, p->at - off);
    p->crc_repaired = crc32_concat(p->crc_repaired, crc, p->at - off);
    return CZ_OK;
}

/* A tensor counts into crc_repaired with the sum it was saved with, whatever was read. */
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

/* Tensors are listed by rising offset and do not overlap (docs/checkpoint-format.md), so one
 * forward pass meets them all. */
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

/* The sum of the whole file does not fit although the tensors explain nothing: headers, padding,
 * pickles and the directory are left, or the file has no tensors. Only now is the file opened as a
 * zip, whose own sums narrow the place down. Progress is not counted: these bytes were counted
 * before. */
static cz_status look_between_tensors(struct fsck_file *file, void *buf)
{
    struct pt *pt = NULL;
    uint64_t off;
    size_t n_bad;
    bool found;
    if (!is_pt(file->path))
        return fsck_note(&file->findings, file->path, "", 0, 0,
                         "damaged: its CRC-32 is not %08" PRIx32, file->listed->crc);
    if (pt_open_in(file->dir, file->name, &pt) != CZ_OK)
        return fsck_note_error(&file->findings, file->path);
    cz_status st = check_records(file, pt, buf, NULL, &n_bad);
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

/* A file that the manifest lists. What is beyond the saved length is reported but not read, and a
 * cut file is compared as far as it goes: each tensor is then reported as intact, damaged or
 * cut. */
static cz_status check_listed(struct fsck_file *file, void *buf, struct fsck_meter *meter)
{
    uint64_t nbytes;
    int fd;
    cz_status st = beneath_open(file->dir, file->name, &fd, &nbytes);
    if (st == CZ_NOTFOUND) {
        err_clear();
        return fsck_note(&file->findings, file->path, "", 0, 0,
                         "missing: the checkpoint's manifest lists it");
    }
    if (st == CZ_CORRUPT) return fsck_note_error(&file->findings, file->path);
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

/* ---- several files at a time ----------------------------------------------------------------- */

/* Reports the files in their order, up to the first that is not done: threads finish in any order,
 * and users compare two runs by their output. */
static void report_done(struct fsck_meter *meter)
{
    const struct fsck_files *files = meter->files;
    for (; meter->n_reported < files->n && files->items[meter->n_reported].done;
         meter->n_reported++) {
        const struct fsck_file *file = &files->items[meter->n_reported];
        meter->report->n_files++;
        meter->report->nbytes += file->nbytes_read;
        meter->report->n_tensors += file->n_tensors;
        meter->report->n_unchecked += file->n_unchecked;
        fsck_report_findings(meter->options, &file->findings, meter->report);
    }
}

/* A thread's loop: take the next file, check it without the lock, report. The lock is also held
 * around the caller's callbacks, which is what makes "one at a time" in czero/checkpoint.h true. */
static void *work(void *arg)
{
    struct fsck_meter *meter = arg;
    void *buf = malloc(FSCK_PIECE_NBYTES);
    pthread_mutex_lock(&meter->lock);
    while (buf && meter->next < meter->files->n) {
        struct fsck_file *file = &meter->files->items[meter->next++];
        pthread_mutex_unlock(&meter->lock);
        cz_status st = CZ_OK;
        switch (file->kind) {
        case FSCK_LISTED: st = check_listed(file, buf, meter); break;
        case FSCK_ZIP: st = check_zip(file, buf, meter); break;
        case FSCK_SAFETENSORS: st = check_safetensors(file); break;
        }
        if (st != CZ_OK) err_capture(&file->stop);
        err_clear();
        pthread_mutex_lock(&meter->lock);
        file->done = true;
        report_done(meter);
    }
    pthread_mutex_unlock(&meter->lock);
    free(buf);
    return NULL;
}

/* Small checkpoints are read faster by one thread than threads start. */
static size_t choose_n_threads(size_t n_files, uint64_t nbytes)
{
    if (nbytes / NBYTES_PER_THREAD < 2) return 1;
    size_t n = (size_t)threads_allowed_cores(NULL);
    if (n > THREADS_MAX) n = THREADS_MAX;
    return n < n_files ? n : n_files;
}

/* Errors of files come after all files have been checked, and the first in their order counts, so
 * the result does not depend on the threads. */
cz_status fsck_check_files(const struct cz_fsck_options *options, struct fsck_files *files,
                           struct cz_fsck_report *report)
{
    struct fsck_meter meter = {.options = options, .files = files, .report = report};
    pthread_mutex_init(&meter.lock, NULL);
    for (size_t i = 0; i < files->n; i++) meter.total += files->items[i].nbytes;
    /* The calling thread works too. If the system gives no further thread, it does everything. */
    pthread_t threads[THREADS_MAX];
    size_t n = 0, want = choose_n_threads(meter.files->n, meter.total);
    while (n + 1 < want && thread_start(&threads[n], NULL, work, &meter) == 0) n++;
    work(&meter);
    while (n > 0) pthread_join(threads[--n], NULL);
    pthread_mutex_destroy(&meter.lock);
    for (size_t i = 0; i < files->n; i++) {
        /* A thread that got no buffer checks nothing; files are left over only if none got one. */
        if (!files->items[i].done) return err_set(CZ_NOMEM, 0, "no memory to read files");
        if (files->items[i].stop.status != CZ_OK) return err_restore(&files->items[i].stop);
    }
    return CZ_OK;
}
