/* Several files at a time: a few threads take one after the other. */
#include "checkpoint/fsck/fsck_impl.h"

#include "base/threads.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS_MAX       4          /* more do not make a disk faster */
#define NBYTES_PER_THREAD (8u << 20) /* less is read faster than a thread starts */

struct fsck_meter {
    const struct cz_fsck_options *options;
    pthread_mutex_t lock; /* of everything below, and around the caller's callbacks */
    uint64_t done, total;
    struct fsck_files *files;
    size_t next, n_reported;
    struct cz_fsck_report *report;
};

void fsck_meter_add(struct fsck_meter *meter, uint64_t nbytes)
{
    pthread_mutex_lock(&meter->lock);
    meter->done += nbytes;
    if (meter->done > meter->total) meter->done = meter->total;
    if (meter->options->progress)
        meter->options->progress(meter->done, meter->total, meter->options->user);
    pthread_mutex_unlock(&meter->lock);
}

static void check_one(struct fsck_file *file, void *buf, struct fsck_meter *meter)
{
    cz_status st = CZ_OK;
    switch (file->kind) {
    case FSCK_LISTED: st = fsck_check_listed(file, buf, meter); break;
    case FSCK_ZIP: st = fsck_check_zip(file, buf, meter); break;
    case FSCK_SAFETENSORS: st = fsck_check_safetensors(file); break;
    }
    if (st != CZ_OK) err_capture(&file->stop);
    err_clear();
}

/* Hand over what is known up to the first file that is not done. */
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

static void *work(void *arg)
{
    struct fsck_meter *meter = arg;
    void *buf = malloc(FSCK_PIECE_NBYTES);
    pthread_mutex_lock(&meter->lock);
    while (buf && meter->next < meter->files->n) {
        struct fsck_file *file = &meter->files->items[meter->next++];
        pthread_mutex_unlock(&meter->lock);
        check_one(file, buf, meter);
        pthread_mutex_lock(&meter->lock);
        file->done = true;
        report_done(meter);
    }
    pthread_mutex_unlock(&meter->lock);
    free(buf);
    return NULL;
}

static size_t choose_n_threads(size_t n_files, uint64_t nbytes)
{
    if (nbytes / NBYTES_PER_THREAD < 2) return 1;
    size_t n = (size_t)threads_allowed_cores(NULL);
    if (n > THREADS_MAX) n = THREADS_MAX;
    return n < n_files ? n : n_files;
}

/* This thread works as well; where no other can be had, it does everything. */
static void work_together(struct fsck_meter *meter)
{
    pthread_t threads[THREADS_MAX];
    size_t n = 0, want = choose_n_threads(meter->files->n, meter->total);
    while (n + 1 < want && pthread_create(&threads[n], NULL, work, meter) == 0) n++;
    work(meter);
    while (n > 0) pthread_join(threads[--n], NULL);
}

cz_status fsck_check_files(const struct cz_fsck_options *options, struct fsck_files *files,
                           struct cz_fsck_report *report)
{
    struct fsck_meter meter = {.options = options, .files = files, .report = report};
    pthread_mutex_init(&meter.lock, NULL);
    for (size_t i = 0; i < files->n; i++) meter.total += files->items[i].nbytes;
    work_together(&meter);
    pthread_mutex_destroy(&meter.lock);
    for (size_t i = 0; i < files->n; i++) {
        if (!files->items[i].done) return err_set(CZ_NOMEM, 0, "no memory to read files");
        if (files->items[i].stop.status != CZ_OK) return err_restore(&files->items[i].stop);
    }
    return CZ_OK;
}
