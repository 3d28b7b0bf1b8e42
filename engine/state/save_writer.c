/* The thread that writes one rank's files straight from the run's memory, or through a buffer what
 * is not in the host's: zero_range_read() has a stream of its own for it. Jobs are done in order,
 * so "job k is done" says that everything before it is, too: a caller that wants to overwrite
 * memory looks for the last job that still reads it. */
#include "base/host/thread.h"
#include "engine/state/save_impl.h"

#include <stdlib.h>
#include <string.h>

static const enum zero_source sources[] = {[CKPT_FROM_PARAM] = ZERO_FROM_PARAMS,
                                           [CKPT_FROM_FROZEN] = ZERO_FROM_FROZEN,
                                           [CKPT_FROM_MASTER] = ZERO_FROM_MASTERS,
                                           [CKPT_FROM_STATE] = ZERO_FROM_STATES};

/* A job is one contiguous piece of a file; what it reads may be several ranges (memory, swap file,
 * GPU). */
static void find_job(const struct cz_engine *e, const struct ckpt_job *job, struct save_job *out)
{
    if (job->source >= CKPT_FROM_WORKER_ERROR) {
        out->n_ranges = save_find_onebit(e, job, out->ranges);
        return;
    }
    enum zero_source source = sources[job->source];
    if (source == ZERO_FROM_PARAMS && description_rounds_masters(&e->desc)) {
        source = ZERO_FROM_MASTERS; /* rank 0, the only one with such a job, has all of them */
        out->rounded_to = job->dtype;
    }
    out->n_ranges = zero_source_ranges(e->desc.zero, source, job->group, job->state_idx,
                                       job->param_idx, job->off, job->numel, out->ranges);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static bool is_readable(const struct zero_range *range)
{
    return range->memory && !range->on_gpu;
}

/* dst may be where the fp32 elements were brought: they are wider. */
static cz_status round_to(struct save_writer *w, const struct save_job *job, unsigned char *dst)
{
    const struct zero_range *range = &job->ranges[0];
    const unsigned char *src = range->memory;
    if (!is_readable(range)) {
        TRY(zero_range_read(w->zero, range, dst));
        src = dst;
    }
    for (size_t i = 0; i < range->nbytes / sizeof(float); i++) {
        float x;
        memcpy(&x, src + i * sizeof x, sizeof x);
        uint16_t h = job->rounded_to == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
    return CZ_OK;
}

/* Straight from memory where possible: a save then takes no memory of its own. */
static cz_status write_job(struct save_writer *w, size_t i)
{
    const struct save_job *job = &w->jobs[i];
    size_t at = 0;
    if (job->rounded_to != DTYPE_F32) {
        TRY(round_to(w, job, w->bounce));
        return ckpt_writer_put(w->files, i, w->bounce);
    }
    if (job->n_ranges == 1 && is_readable(&job->ranges[0]))
        return ckpt_writer_put(w->files, i, job->ranges[0].memory);
    for (size_t k = 0; k < job->n_ranges; k++) {
        TRY(zero_range_read(w->zero, &job->ranges[k], w->bounce + at));
        at += job->ranges[k].nbytes;
    }
    return ckpt_writer_put(w->files, i, w->bounce);
}

/* n_done moves under the lock, after the bytes are in the file: claim() may let them be
 * overwritten. */
static cz_status write_jobs(struct save_writer *w)
{
    for (size_t i = 0; i < w->n_jobs; i++) {
        TRY(write_job(w, i));
        pthread_mutex_lock(&w->mutex);
        w->n_done = i + 1;
        pthread_cond_broadcast(&w->moved);
        pthread_mutex_unlock(&w->mutex);
    }
    return ckpt_writer_finish(w->files, &w->manifest);
}

/* The thread's error is captured: errors are per thread. */
static void *write_all(void *user)
{
    struct save_writer *w = user;
    struct err error = {.status = CZ_OK};
    if (write_jobs(w) != CZ_OK) err_capture(&error);
    pthread_mutex_lock(&w->mutex);
    w->error = error;
    w->ended = true;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* Without a thread the caller writes before this returns: the same code, in the foreground. */
cz_status save_writer_start(struct save_writer *w, const struct cz_engine *e,
                            struct ckpt_writer *files, bool background)
{
    memset(w, 0, sizeof *w);
    w->files = files;
    w->n_jobs = ckpt_writer_n_jobs(files);
    w->jobs = calloc(w->n_jobs + 1, sizeof *w->jobs);
    w->zero = e->desc.zero;
    w->bounce = e->mem.blocks[BLOCK_SAVE];
    if (!w->jobs) return err_set(CZ_NOMEM, 0, "no memory for %zu pieces of a save", w->n_jobs);
    for (size_t i = 0; i < w->n_jobs; i++) find_job(e, ckpt_writer_job(files, i), &w->jobs[i]);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->moved, NULL);
    w->has_thread = background && thread_start(&w->thread, NULL, write_all, w) == 0;
    if (!w->has_thread) write_all(w);
    return CZ_OK;
}

/* ---- waiting callers ------------------------------------------------------------------------- */

bool save_writer_has_ended(struct save_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    bool ended = w->ended;
    pthread_mutex_unlock(&w->mutex);
    return ended;
}

static bool overlaps(const struct save_job *job, const struct zero_range *range)
{
    for (size_t i = 0; i < job->n_ranges; i++)
        if (zero_ranges_overlap(&job->ranges[i], range)) return true;
    return false;
}

/* Until the first `needed` jobs are done. */
static void wait_for(struct save_writer *w, size_t needed)
{
    while (w->n_done < needed && !w->ended) pthread_cond_wait(&w->moved, &w->mutex);
}

/* Looks for the last job that still reads the range: jobs are done in order. */
void save_writer_claim(struct save_writer *w, const struct zero_range *range)
{
    pthread_mutex_lock(&w->mutex);
    size_t needed = w->n_jobs;
    while (needed > w->n_done && !overlaps(&w->jobs[needed - 1], range)) needed--;
    wait_for(w, needed);
    pthread_mutex_unlock(&w->mutex);
}

void save_writer_settle(struct save_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    wait_for(w, w->n_jobs);
    pthread_mutex_unlock(&w->mutex);
}

/* Joins first: nothing of the run may be freed while the thread reads it. */
cz_status save_writer_finish(struct save_writer *w)
{
    if (!w->jobs) return CZ_OK;
    if (w->has_thread) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->mutex);
    free(w->jobs);
    w->jobs = NULL;
    return w->error.status == CZ_OK ? CZ_OK : err_restore(&w->error);
}
