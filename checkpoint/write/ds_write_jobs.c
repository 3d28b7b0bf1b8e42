#include "checkpoint/write/ds_write_impl.h"

#include "base/size.h"

#include <stdlib.h>

bool ds_grow(void **array, size_t *cap, size_t n, size_t size)
{
    if (n < *cap) return true;
    size_t cap_new = *cap ? 2 * *cap : 16, nbytes;
    if (size_mul(cap_new, size, &nbytes) != CZ_OK) return false;
    void *grown = realloc(*array, nbytes);
    if (!grown) return false;
    *array = grown;
    *cap = cap_new;
    return true;
}

/* ---- streams --------------------------------------------------------------------------------- */

void ds_stream_init(struct ckpt_writer *w, size_t idx, enum ckpt_source source, enum cz_dtype dtype,
                    const char *what)
{
    w->streams[idx].source.source = source;
    w->streams[idx].source.dtype = dtype;
    w->streams[idx].what = what;
}

static void group_streams_init(struct ckpt_writer *w, size_t group)
{
    const struct ckpt_write_options *o = w->options;
    size_t first = w->first_stream[group];
    ds_stream_init(w, first, CKPT_FROM_PARAM, o->dtype, "param");
    ds_stream_init(w, first + 1, CKPT_FROM_MASTER, o->master_dtype, "master");
    for (size_t i = 0; i < o->groups[group].n_states; i++) {
        ds_stream_init(w, first + 2 + i, CKPT_FROM_STATE, o->state_dtype,
                       o->groups[group].states[i]);
        w->streams[first + 2 + i].source.state_idx = i;
    }
    for (size_t i = first; i < w->first_stream[group + 1]; i++) w->streams[i].source.group = group;
}

cz_status ds_streams_init(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    w->first_stream = calloc(o->n_groups + 1, sizeof *w->first_stream);
    if (!w->first_stream) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    for (size_t g = 0; g < o->n_groups; g++)
        w->first_stream[g + 1] = w->first_stream[g] + 2 + o->groups[g].n_states;
    size_t first_frozen = w->first_stream[o->n_groups];
    w->first_onebit = first_frozen + o->table->n_params;
    w->n_streams = w->first_onebit + ds_onebit_n_streams(o);
    w->streams = calloc(w->n_streams ? w->n_streams : 1, sizeof *w->streams);
    if (!w->streams) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    for (size_t g = 0; g < o->n_groups; g++) group_streams_init(w, g);
    for (size_t p = 0; p < o->table->n_params; p++) {
        ds_stream_init(w, first_frozen + p, CKPT_FROM_FROZEN, o->dtype, "frozen");
        w->streams[first_frozen + p].source.param_idx = p;
    }
    ds_onebit_streams_init(w);
    return CZ_OK;
}

size_t ds_stream_of(const struct ckpt_writer *w, enum ckpt_source source, size_t group,
                    size_t state_or_param)
{
    switch (source) {
    case CKPT_FROM_PARAM: return w->first_stream[group];
    case CKPT_FROM_MASTER: return w->first_stream[group] + 1;
    case CKPT_FROM_STATE: return w->first_stream[group] + 2 + state_or_param;
    default: break;
    }
    return w->first_stream[w->options->n_groups] + state_or_param;
}

/* ---- segments -------------------------------------------------------------------------------- */

size_t ds_storage(struct ckpt_writer *w, int file, enum cz_dtype dtype, size_t numel)
{
    struct ds_file *f = &w->files[file];
    if (!ds_grow((void **)&f->storage_nbytes, &f->cap_storages, f->n_storages,
                 sizeof *f->storage_nbytes)) {
        w->failed = true;
        return 0;
    }
    f->storage_nbytes[f->n_storages] = (uint64_t)numel * dtype_size(dtype);
    return f->n_storages++;
}

void ds_segment_add(struct ckpt_writer *w, struct ds_segment segment)
{
    if (segment.numel == 0 || w->failed) return;
    if (!ds_grow((void **)&w->segments, &w->cap_segments, w->n_segments, sizeof *w->segments)) {
        w->failed = true;
        return;
    }
    struct ckpt_job *source = &w->streams[segment.stream].source;
    segment.dtype = source->dtype;
    if (source->numel < segment.src_off + segment.numel)
        source->numel = segment.src_off + segment.numel;
    w->segments[w->n_segments++] = segment;
}

void ds_flat_segments(struct ckpt_writer *w, int file, size_t stream, size_t storage_idx,
                      const struct flat_group *flat, size_t begin, size_t end)
{
    struct ds_segment s = {.file = file, .stream = stream, .storage_idx = storage_idx};
    struct flat_piece piece;
    size_t pos = 0, at = 0; /* at: from `begin`, everything before it has a segment */
    while (flat_group_next(flat, begin, end, &pos, &piece)) {
        s.src_off = s.storage_off = at;
        s.numel = piece.range_off - at;
        s.param_idx = DS_NONE;
        ds_segment_add(w, s);
        s.src_off = s.storage_off = piece.range_off;
        s.numel = piece.numel;
        s.param_idx = flat->params[piece.pos].param_idx;
        ds_segment_add(w, s);
        at = piece.range_off + piece.numel;
    }
    s.src_off = s.storage_off = at;
    s.numel = end - begin - at;
    s.param_idx = DS_NONE;
    ds_segment_add(w, s);
}

void ds_shard_segments(struct ckpt_writer *w, int file, size_t stream, size_t storage_idx,
                       const struct shard_group *shard, size_t sub_group, size_t src_off)
{
    const struct ckpt_write_options *o = w->options;
    const struct shard_sub_group *sub = &shard->sub_groups[sub_group];
    for (size_t i = sub->first; i < sub->first + sub->n_params; i++) {
        const struct shard_param *p = &shard->params[i];
        size_t real = shard_real(o->table->params[p->param_idx].numel, o->world_size, o->rank);
        struct ds_segment s = {.file = file,
                               .stream = stream,
                               .storage_idx = storage_idx,
                               .src_off = src_off + p->off,
                               .storage_off = p->off,
                               .numel = real,
                               .param_idx = p->param_idx};
        ds_segment_add(w, s);
        s.src_off += real;
        s.storage_off += real;
        s.numel = p->chunk - real;
        s.param_idx = DS_NONE;
        ds_segment_add(w, s);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int segment_order(const void *a, const void *b)
{
    const struct ds_segment *x = a, *y = b;
    if (x->stream != y->stream) return x->stream < y->stream ? -1 : 1;
    return x->src_off < y->src_off ? -1 : x->src_off > y->src_off;
}

static void segments_sort(struct ckpt_writer *w)
{
    if (w->n_segments) qsort(w->segments, w->n_segments, sizeof *w->segments, segment_order);
    for (size_t i = 0; i < w->n_segments; i++) {
        struct ds_stream *stream = &w->streams[w->segments[i].stream];
        if (stream->n++ == 0) stream->first = i;
    }
}

/* The pieces of a stream's elements [off, off + numel). *next: the segment to begin with. */
static bool pieces_add(struct ckpt_writer *w, size_t *next, size_t end_segment, size_t off,
                       size_t numel)
{
    for (; *next < end_segment; ++*next) {
        const struct ds_segment *s = &w->segments[*next];
        if (s->src_off >= off + numel) break;
        if (!ds_grow((void **)&w->pieces, &w->cap_pieces, w->n_pieces, sizeof *w->pieces))
            return false;
        struct ds_piece *piece = &w->pieces[w->n_pieces++];
        size_t begin = s->src_off > off ? s->src_off : off;
        size_t end = s->src_off + s->numel < off + numel ? s->src_off + s->numel : off + numel;
        *piece =
            (struct ds_piece){.segment = *next, .off = begin - s->src_off, .numel = end - begin};
        if (s->src_off + s->numel > off + numel) break; /* goes on in the next job */
    }
    return true;
}

/* The job that begins at element `off` of a stream. Its first segment is found by bisection. */
static bool job_add(struct ckpt_writer *w, const struct ds_stream *stream, size_t off)
{
    size_t low = stream->first, high = stream->first + stream->n;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (w->segments[middle].src_off <= off)
            low = middle;
        else
            high = middle;
    }
    if (w->segments[low].src_off + w->segments[low].numel <= off) low++;
    size_t left = stream->source.numel - off, first = w->n_pieces;
    size_t numel = left < CKPT_JOB_NUMEL ? left : CKPT_JOB_NUMEL;
    if (!pieces_add(w, &low, stream->first + stream->n, off, numel)) return false;
    if (w->n_pieces == first) return true; /* nothing of it goes into a file */
    if (!ds_grow((void **)&w->jobs, &w->cap_jobs, w->n_jobs, sizeof *w->jobs) ||
        !ds_grow((void **)&w->cuts, &w->cap_cuts, w->n_jobs, sizeof *w->cuts))
        return false;
    w->cuts[w->n_jobs] = (struct ds_cut){.first = first, .n = w->n_pieces - first};
    struct ckpt_job *job = &w->jobs[w->n_jobs++];
    *job = stream->source;
    job->off = off;
    job->numel = numel;
    return true;
}

/* The jobs of streams [first, end), interleaved: the first of each, the second of each, … */
static bool jobs_add(struct ckpt_writer *w, size_t first, size_t end)
{
    bool is_more = true;
    for (size_t off = 0; is_more; off += CKPT_JOB_NUMEL) {
        is_more = false;
        for (size_t i = first; i < end; i++) {
            const struct ds_stream *stream = &w->streams[i];
            if (stream->n == 0 || off >= stream->source.numel) continue;
            is_more = true;
            if (!job_add(w, stream, off)) return false;
        }
    }
    return true;
}

cz_status ds_jobs_init(struct ckpt_writer *w)
{
    size_t n_groups = w->options->n_groups;
    segments_sort(w);
    bool is_fine = true;
    for (size_t i = w->first_onebit; i < w->n_streams; i++)
        is_fine = is_fine && jobs_add(w, i, i + 1);
    for (size_t g = 0; g < n_groups; g++)
        is_fine = is_fine && jobs_add(w, w->first_stream[g], w->first_stream[g] + 1);
    for (size_t i = w->first_stream[n_groups]; i < w->first_onebit; i++)
        is_fine = is_fine && jobs_add(w, i, i + 1);
    for (size_t g = 0; g < n_groups; g++)
        is_fine = is_fine && jobs_add(w, w->first_stream[g] + 1, w->first_stream[g + 1]);
    w->done = calloc(w->n_jobs ? w->n_jobs : 1, 1);
    if (!is_fine || !w->done)
        return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    return CZ_OK;
}
