/* A .pt without a manifest: its structure, and the CRC of every record. */
#include "checkpoint/fsck/fsck_impl.h"

#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what lies in a record ------------------------------------------------------------------- */

/* A walk over a tree that counts tensors, all of them or those of one record. */
struct walk {
    const struct pt *pt;
    const struct pt_record *record; /* NULL: all */
    size_t n;
    char path[512];  /* of the node that is being visited: "module/transformer.wte.weight" */
    char first[512]; /* of the first tensor counted */
};

static void visit(struct walk *w, const struct pickle_node *node);

/* Visit a child under its name, cut to fit. */
static void visit_named(struct walk *w, const struct pickle_node *child, const char *name,
                        size_t idx)
{
    const size_t n = strlen(w->path), room = sizeof w->path - n;
    if (name)
        snprintf(w->path + n, room, n > 0 ? "/%s" : "%s", name);
    else
        snprintf(w->path + n, room, "[%zu]", idx);
    visit(w, child);
    w->path[n] = '\0';
}

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
    visit(w, node->args);
    if (node->kind == PICKLE_OBJECT) visit(w, node->state);
}

size_t fsck_count_tensors(const struct pt *pt)
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

/* Whether some element of (tensor, what) is stored in these bytes of a file. */
static bool lies_in(const struct ckpt *view, size_t idx, int what, const char *path, uint64_t off,
                    uint64_t nbytes)
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

/* How many parameters' values lie in these bytes; first: one of them. */
static size_t names_in(const struct fsck_file *file, uint64_t off, uint64_t nbytes, char first[512])
{
    const struct ckpt_info *info = ckpt_get_info(file->view);
    size_t n = 0;
    for (int what = 0; what < CKPT_STATE_0 + (int)info->n_states; what++)
        for (size_t i = 0; i < ckpt_count(file->view); i++)
            if (lies_in(file->view, i, what, file->path, off, nbytes) && n++ == 0)
                snprintf(first, 512, "%s, %s", ckpt_at(file->view, i)->name, what_name(info, what));
    return n;
}

void fsck_describe_record(const struct fsck_file *file, const struct pt *pt,
                          const struct pt_record *record, char *text, size_t nbytes)
{
    struct walk *w = calloc(1, sizeof *w);
    snprintf(text, nbytes, "%s", record->name);
    if (!w) return; /* the record's name must do */
    w->pt = pt;
    w->record = record;
    if (file->view) w->n = names_in(file, record->off, record->nbytes, w->first);
    if (w->n == 0) visit(w, pt_root(pt));
    if (w->n == 1) snprintf(text, nbytes, "%s (%s)", record->name, w->first);
    if (w->n > 1) snprintf(text, nbytes, "%s (%s, and %zu more)", record->name, w->first, w->n - 1);
    free(w);
}

/* ---- records --------------------------------------------------------------------------------- */

static cz_status check_record(struct fsck_file *file, const struct pt *pt, int fd,
                              const struct pt_record *r, void *buf, struct fsck_meter *meter,
                              size_t *n_bad)
{
    uint32_t crc;
    char text[1024];
    cz_status st = fsck_crc(fd, file->path, r->off, r->nbytes, buf, meter, &crc);
    if (st == CZ_OK && crc == r->crc) return CZ_OK;
    if (st == CZ_OK && !r->has_crc) {
        file->n_unchecked++;
        return CZ_OK;
    }
    ++*n_bad;
    if (st != CZ_OK) return fsck_note_error(&file->findings, file->path);
    fsck_describe_record(file, pt, r, text, sizeof text);
    return fsck_note(&file->findings, file->path, text, r->off, r->nbytes,
                     "record %s: damaged within the %" PRIu64 " bytes at byte %" PRIu64
                     " (CRC-32 %08" PRIx32 ", stored is %08" PRIx32 ")",
                     text, r->nbytes, r->off, crc, r->crc);
}

cz_status fsck_check_records(struct fsck_file *file, const struct pt *pt, void *buf,
                             struct fsck_meter *meter, size_t *n_bad)
{
    int fd;
    *n_bad = 0;
    TRY(file_open_read(file->path, &fd, NULL));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < pt_n_records(pt) && st == CZ_OK; i++) {
        const struct pt_record *r = pt_record_at(pt, i);
        if (!fsck_found_in(&file->findings, r->off, r->nbytes))
            st = check_record(file, pt, fd, r, buf, meter, n_bad);
    }
    close(fd);
    return st;
}

/* Damage is a finding; that a file cannot be opened, or is of a kind we do not read, is not. */
static cz_status opened(struct fsck_file *file, cz_status st)
{
    if (st != CZ_CORRUPT && st != CZ_VERSION && st != CZ_NOTFOUND) return st;
    return fsck_note_error(&file->findings, file->path);
}

cz_status fsck_check_zip(struct fsck_file *file, void *buf, struct fsck_meter *meter)
{
    struct pt *pt = NULL;
    size_t n_bad;
    TRY(opened(file, pt_open(file->path, &pt)));
    if (!pt) return CZ_OK;
    file->n_tensors = fsck_count_tensors(pt);
    file->nbytes_read = pt_nbytes(pt);
    cz_status st = fsck_check_records(file, pt, buf, meter, &n_bad);
    pt_close(pt);
    return st;
}

/* The format has no checksums: header, dtypes, shapes and offsets are all there is to check. */
cz_status fsck_check_safetensors(struct fsck_file *file)
{
    struct safetensors *st = NULL;
    TRY(opened(file, safetensors_open(file->path, &st)));
    if (!st) return CZ_OK;
    file->n_tensors = file->n_unchecked = safetensors_count(st);
    file->nbytes_read = file->nbytes;
    safetensors_close(st);
    return CZ_OK;
}
