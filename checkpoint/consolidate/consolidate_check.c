/* The shards' own checksums: a thread beside those that copy, which mostly wait for the disk, reads
 * every zip record that weights come from and compares its CRC-32. Output gets its names only after
 * that. */
#include "checkpoint/consolidate/consolidate_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A byte of a file that weights are read from. */
struct source {
    size_t file_idx;
    uint64_t off;
};

struct cons_check {
    const struct ckpt *ck;
    struct source *sources; /* (n) by file, then by offset */
    size_t n, cap;
    pthread_t thread;
    bool has_thread;
    struct err err;
};

static cz_status add_source(struct cons_check *c, size_t file_idx, uint64_t off)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 256;
        struct source *grown = realloc(c->sources, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu pieces of weights", cap);
        c->sources = grown;
        c->cap = cap;
    }
    c->sources[c->n++] = (struct source){file_idx, off};
    return CZ_OK;
}

/* Where a tensor's elements begin in each shard. What lies with strides has no runs, and what was
 * swapped to NVMe no checksums. */
static cz_status add_tensor(struct cons_check *c, const struct cons_tensor *t)
{
    struct ckpt_run run;
    for (uint64_t at = 0; at < t->tensor->numel; at += run.numel) {
        cz_status st = ckpt_run(c->ck, t->idx, CKPT_MASTER, at, &run);
        if (st == CZ_UNSUPPORTED) err_clear();
        if (st == CZ_UNSUPPORTED) return CZ_OK;
        TRY(st);
        TRY(add_source(c, run.file_idx, run.file_off));
    }
    return CZ_OK;
}

static int by_place(const void *left, const void *right)
{
    const struct source *a = left, *b = right;
    if (a->file_idx != b->file_idx) return a->file_idx < b->file_idx ? -1 : 1;
    return a->off < b->off ? -1 : a->off > b->off;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool is_used(const struct pt_record *r, const struct source *sources, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (sources[i].off >= r->off && sources[i].off - r->off < r->nbytes) return true;
    return false;
}

static cz_status check_file(const struct cons_check *c, const struct source *sources, size_t n)
{
    const char *path = ckpt_file_path(c->ck, sources->file_idx);
    const size_t len = strlen(path);
    struct pt *pt;
    if (len < 3 || strcmp(path + len - 3, ".pt") != 0) return CZ_OK; /* a raw copy of a swap file */
    TRY(pt_open(path, &pt));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < pt_n_records(pt) && st == CZ_OK; i++)
        if (is_used(pt_record_at(pt, i), sources, n))
            st = pt_verify_record(pt, pt_record_at(pt, i));
    pt_close(pt);
    return st;
}

static cz_status check_files(const struct cons_check *c)
{
    for (size_t i = 0, end; i < c->n; i = end) {
        for (end = i; end < c->n && c->sources[end].file_idx == c->sources[i].file_idx;) end++;
        TRY(check_file(c, c->sources + i, end - i));
    }
    return CZ_OK;
}

static void *check_all(void *arg)
{
    struct cons_check *c = arg;
    if (check_files(c) != CZ_OK) err_capture(&c->err);
    return NULL;
}

/* ---- for consolidate.c ----------------------------------------------------------------------- */

cz_status cons_check_begin(const struct cons_plan *plan, struct cons_check **out)
{
    struct cons_check *c = *out = calloc(1, sizeof *c);
    if (!c) return err_set(CZ_NOMEM, 0, "no memory to check the shards");
    c->ck = plan->ck;
    for (size_t i = 0; i < plan->n; i++) {
        cz_status st = add_tensor(c, &plan->tensors[i]);
        if (st != CZ_OK) c->n = 0; /* nothing will be checked */
        TRY(st);
    }
    if (c->n > 0) qsort(c->sources, c->n, sizeof *c->sources, by_place);
    c->has_thread = pthread_create(&c->thread, NULL, check_all, c) == 0;
    return CZ_OK;
}

cz_status cons_check_end(struct cons_check *c)
{
    struct err err = {.status = CZ_OK};
    if (!c) return CZ_OK;
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    else
        check_all(c);
    err = c->err;
    free(c->sources);
    free(c);
    return err.status == CZ_OK ? CZ_OK : err_restore(&err);
}
