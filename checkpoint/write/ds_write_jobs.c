/* What is read from the engine, in which order, and where it goes.
 *
 * - A stream is an array of the engine: a group's masters, one of its states, a frozen parameter.
 * - A segment maps elements of a stream to elements of a storage in a file; padding is a segment
 * without a parameter.
 * - A job is up to CKPT_JOB_NUMEL elements of one stream, with the pieces of segments that they
 * fill.
 *
 * Streams and jobs are made before anything is written, so the engine can overlap reading (from a
 * GPU, a swap file) with writing. Streams from first_onebit on are those of the 1-bit optimizers:
 * worker and server error of each segment; the same once more for the model file of stage 0, where
 * DeepSpeed keeps rank 0's; momentum and moves of each parameter (docs/checkpoint-format.md,
 * "czero_onebit_rank_R.pt"). */
#include "checkpoint/write/ds_write_impl.h"

#include "base/size.h"
#include "checkpoint/read/onebit_file.h"

#include <stdlib.h>

/* Doubles. false: no memory; sizes are checked for overflow, since they grow with the model. */
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

static void stream_init(struct ckpt_writer *w, size_t idx, enum ckpt_source source,
                        enum cz_dtype dtype, const char *what)
{
    w->streams[idx].source.source = source;
    w->streams[idx].source.dtype = dtype;
    w->streams[idx].what = what;
}

/* The order inside a group (weights, masters, states) is what ds_stream_of() counts on. */
static void group_streams_init(struct ckpt_writer *w, size_t group)
{
    const struct ckpt_write_options *o = w->options;
    size_t first = w->first_stream[group];
    stream_init(w, first, CKPT_FROM_PARAM, o->dtype, "param");
    stream_init(w, first + 1, CKPT_FROM_MASTER, o->master_dtype, "master");
    for (size_t i = 0; i < o->groups[group].n_states; i++) {
        stream_init(w, first + 2 + i, CKPT_FROM_STATE, o->state_dtype, o->groups[group].states[i]);
        w->streams[first + 2 + i].source.state_idx = i;
    }
    for (size_t i = first; i < w->first_stream[group + 1]; i++) w->streams[i].source.group = group;
}

bool ds_has_onebit_file(const struct ckpt_write_options *o)
{
    return o->onebit && o->onebit->n_segments > 0;
}

/* DeepSpeed's OnebitLamb keeps its errors beside its states and saves none, so OneBitLamb's are in
 * czero's files only. */
static bool has_errors_in_states(const struct ckpt_write_options *o)
{
    return ds_has_onebit_file(o) && !o->onebit->tensors && o->stage == 0 && o->rank == 0;
}

static size_t n_error_streams(const struct ckpt_write_options *o)
{
    return o->onebit->n_segments * (has_errors_in_states(o) ? 4 : 2);
}

static size_t n_onebit_streams(const struct ckpt_write_options *o)
{
    if (!ds_has_onebit_file(o)) return 0;
    return n_error_streams(o) + (o->onebit->moves_alone ? 2 * o->table->n_params : 0);
}

static void onebit_streams_init(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    size_t n_errors = ds_has_onebit_file(o) ? n_error_streams(o) : 0;
    for (size_t i = w->first_onebit; i < w->n_streams; i++) {
        size_t k = i - w->first_onebit;
        bool second = k % 2;
        if (k < n_errors) {
            stream_init(w, i, second ? CKPT_FROM_SERVER_ERROR : CKPT_FROM_WORKER_ERROR, DTYPE_F32,
                        second ? "server_error" : "worker_error");
            w->streams[i].source.segment_idx = k / 2 % o->onebit->n_segments;
        } else {
            stream_init(w, i, second ? CKPT_FROM_MOVES : CKPT_FROM_MOMENTUM, DTYPE_F32,
                        second ? "momentum_accumulator" : "exp_avg");
            w->streams[i].source.param_idx = (k - n_errors) / 2;
        }
    }
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
    w->n_streams = w->first_onebit + n_onebit_streams(o);
    w->streams = calloc(w->n_streams ? w->n_streams : 1, sizeof *w->streams);
    if (!w->streams) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    for (size_t g = 0; g < o->n_groups; g++) group_streams_init(w, g);
    for (size_t p = 0; p < o->table->n_params; p++) {
        stream_init(w, first_frozen + p, CKPT_FROM_FROZEN, o->dtype, "frozen");
        w->streams[first_frozen + p].source.param_idx = p;
    }
    onebit_streams_init(w);
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

/* A failure is remembered in w->failed and reported at the end: the pickle code that calls this has
 * no way to stop in the middle of a dictionary. */
size_t ds_storage(struct ckpt_writer *w, int file, enum cz_dtype dtype, size_t numel)
{
    return ds_storage_bytes(w, file, (uint64_t)numel * dtype_size(dtype));
}

size_t ds_storage_bytes(struct ckpt_writer *w, int file, uint64_t nbytes)
{
    struct ds_file *f = &w->files[file];
    if (!ds_grow((void **)&f->storage_nbytes, &f->cap_storages, f->n_storages,
                 sizeof *f->storage_nbytes)) {
        w->failed = true;
        return 0;
    }
    f->storage_nbytes[f->n_storages] = nbytes;
    return f->n_storages++;
}

void ds_known(struct ckpt_writer *w, int file, struct ds_known known)
{
    struct ds_file *f = &w->files[file];
    if (ds_grow((void **)&f->known, &f->cap_known, f->n_known, sizeof *f->known))
        f->known[f->n_known++] = known;
    else
        w->failed = true;
}

/* Also extends the stream to the last element that a segment needs. */
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

/* Elements [begin, end) of a flat buffer. The gaps between parameters (alignment, padding) become
 * segments of their own, because files hold them, too. */
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

/* A stage-3 sub-group: each parameter's chunk, of which the last ranks' may be partly padding. */
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

/* The pieces of a stream's elements [off, off + numel). *next: the segment to begin with. A segment
 * that continues beyond the job is left at *next for the following one. */
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
        if (s->src_off + s->numel > off + numel) break; /* continues in the next job */
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

/* The jobs of streams [first, end), interleaved: the first of each, the second of each, … Masters
 * and states of the same elements are then read together, as tiles of a swap file hold them. */
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

/* Order: the 1-bit errors, weights, frozen parameters, then masters with states. */
cz_status ds_jobs_init(struct ckpt_writer *w)
{
    size_t n_groups = w->options->n_groups;
    if (w->n_segments) qsort(w->segments, w->n_segments, sizeof *w->segments, segment_order);
    for (size_t i = 0; i < w->n_segments; i++) {
        struct ds_stream *stream = &w->streams[w->segments[i].stream];
        if (stream->n++ == 0) stream->first = i;
    }
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

/* ---- the errors of the 1-bit optimizers ------------------------------------------------------ */

/* Segments come from the optimizer; sizes that contradict the parameter table would write outside
 * of a storage. */
cz_status ds_onebit_check(const struct ckpt_write_options *o)
{
    for (size_t i = 0; o->onebit && i < o->onebit->n_segments; i++) {
        const struct ckpt_segment *s = &o->onebit->segments[i];
        size_t numel = 0;
        for (size_t k = 0; k < s->n_params; k++) numel += o->table->params[s->param_idx[k]].numel;
        if (s->n_params == 0 || numel != s->numel || s->numel_padded < numel ||
            s->numel_padded % (size_t)o->world_size != 0)
            return err_set(CZ_INVALID, 0,
                           "segment %zu of a checkpoint: %zu elements, padded to %zu, of %zu "
                           "parameters with %zu, for %d ranks",
                           i, s->numel, s->numel_padded, s->n_params, numel, o->world_size);
    }
    return CZ_OK;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Elements [begin, end) of a segment, cut at the borders of its parameters, so that the manifest
 * can name them. `begin` is the first of the stream and of the storage. */
static void segment_runs(struct ckpt_writer *w, int file, size_t stream, size_t storage_idx,
                         const struct ckpt_segment *segment, size_t begin, size_t end)
{
    struct ds_segment s = {.file = file, .stream = stream, .storage_idx = storage_idx};
    size_t at = 0; /* in the segment */
    for (size_t k = 0; k <= segment->n_params; k++) {
        bool is_padding = k == segment->n_params;
        size_t next = segment->numel_padded;
        if (!is_padding) next = at + w->options->table->params[segment->param_idx[k]].numel;
        size_t lo = at > begin ? at : begin, hi = next < end ? next : end;
        at = next;
        if (lo >= hi) continue;
        s.src_off = s.storage_off = lo - begin;
        s.numel = hi - lo;
        s.param_idx = is_padding ? DS_NONE : segment->param_idx[k];
        ds_segment_add(w, s);
    }
}

/* The worker error spans the whole padded segment; the server error is that of this rank's
 * chunk. */
static void put_error(struct ckpt_writer *w, int file, size_t segment_idx, bool is_server)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_segment *s = &o->onebit->segments[segment_idx];
    struct pickle_writer *p = w->files[file].pickle;
    size_t copy = file == DS_ONEBIT ? 0 : o->onebit->n_segments;
    size_t stream = w->first_onebit + 2 * (copy + segment_idx) + is_server;
    size_t numel = is_server ? s->numel_padded / (size_t)o->world_size : s->numel_padded;
    size_t begin = is_server ? (size_t)o->rank * numel : 0;
    size_t storage = ds_storage(w, file, DTYPE_F32, numel);
    const struct pickle_tensor_desc t = {
        .dtype = DTYPE_F32, .storage_idx = storage, .storage_numel = numel};
    segment_runs(w, file, stream, storage, s, begin, begin + numel);
    pickle_put_string(p, is_server ? "server_error" : "worker_error");
    ds_put_flat(p, t, numel);
}

/* tensor_size … server_error. */
static void put_errors(struct ckpt_writer *w, int file, size_t segment_idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_segment *s = &o->onebit->segments[segment_idx];
    struct pickle_writer *p = w->files[file].pickle;
    ds_pair_int(p, "tensor_size", (int64_t)s->numel);
    ds_pair_int(p, "corrected_tensor_size", (int64_t)s->numel_padded);
    ds_pair_int(p, "server_chunk_size", (int64_t)(s->numel_padded / (size_t)o->world_size));
    put_error(w, file, segment_idx, false);
    put_error(w, file, segment_idx, true);
}

/* ---- in the optimizer's states --------------------------------------------------------------- */

/* OneBitLamb's values of the optimizer's idx-th tensor; NULL: not of a single one. */
static const struct ckpt_onebit_tensor *tensor_of(const struct ckpt_writer *w, size_t group,
                                                  size_t idx)
{
    const struct ckpt_write_options *o = w->options;
    if (!o->onebit || !o->onebit->tensors || !ds_is_plain(w)) return NULL;
    return &o->onebit->tensors[o->groups[group].flat->params[idx].param_idx];
}

void ds_put_onebit_ratios(struct ckpt_writer *w, int file, size_t group, size_t idx)
{
    const struct ckpt_onebit_tensor *t = tensor_of(w, group, idx);
    if (!t) return;
    ds_pair_double(w->files[file].pickle, "lamb_coeff_freeze", t->lamb_coeff_freeze);
    ds_pair_double(w->files[file].pickle, "last_factor", t->last_factor);
}

void ds_put_onebit_scaling(struct ckpt_writer *w, int file, size_t group, size_t idx)
{
    const struct ckpt_onebit_tensor *t = tensor_of(w, group, idx);
    if (t && w->options->onebit->scaled)
        ds_pair_double(w->files[file].pickle, "scaling_coeff", t->scaling_coeff);
}

/* The segment that is exactly the optimizer's idx-th tensor; n_segments: none. DeepSpeed keeps
 * errors per optimizer tensor, which is a parameter or, behind a fused wrapper, a group. */
static size_t segment_of(const struct ckpt_writer *w, size_t group, size_t idx)
{
    const struct ckpt_onebit *ob = w->options->onebit;
    const struct flat_group *flat = w->options->groups[group].flat;
    bool is_plain = ds_is_plain(w);
    for (size_t i = 0; i < ob->n_segments; i++) {
        const struct ckpt_segment *s = &ob->segments[i];
        bool is_it =
            is_plain ? s->n_params == 1 && s->param_idx[0] == flat->params[idx].param_idx
                     : s->numel == flat->numel && w->options->group_of[s->param_idx[0]] == group;
        if (is_it) return i;
    }
    return ob->n_segments;
}

void ds_put_onebit_errors(struct ckpt_writer *w, int file, size_t group, size_t idx)
{
    const struct ckpt_write_options *o = w->options;
    if (!o->onebit) return;
    if (o->onebit->has_intervals) {
        const struct ckpt_onebit *ob = w->options->onebit;
        ds_pair_int(w->files[file].pickle, "var_interval", ob->var_interval);
        ds_pair_int(w->files[file].pickle, "var_counter", ob->var_counter);
        ds_pair_int(w->files[file].pickle, "local_step_interval", ob->local_step_interval);
        ds_pair_int(w->files[file].pickle, "local_step_counter", ob->local_step_counter);
        if (ob->lrs[group] == 0)
            ds_pair_int(w->files[file].pickle, "lrs",
                        0); /* as Python has it before the first one is added */
        else
            ds_pair_double(w->files[file].pickle, "lrs", ob->lrs[group]);
    }
    if (!has_errors_in_states(o)) return;
    size_t segment_idx = segment_of(w, group, idx);
    if (segment_idx < o->onebit->n_segments) put_errors(w, file, segment_idx);
}

/* ---- the file of a rank ---------------------------------------------------------------------- */

static void put_segment(struct ckpt_writer *w, size_t segment_idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_segment *s = &o->onebit->segments[segment_idx];
    struct pickle_writer *p = w->files[DS_ONEBIT].pickle;
    pickle_dict_begin(p);
    pickle_put_string(p, "params");
    pickle_list_begin(p);
    for (size_t k = 0; k < s->n_params; k++)
        pickle_put_string(p, o->table->params[s->param_idx[k]].name);
    pickle_list_end(p);
    put_errors(w, DS_ONEBIT, segment_idx);
    pickle_dict_end(p);
}

/* A parameter's tensor of this rank alone. */
static void put_whole(struct ckpt_writer *w, const char *key, size_t stream, size_t param_idx)
{
    const struct param_info *param = &w->options->table->params[param_idx];
    struct pickle_writer *p = w->files[DS_ONEBIT].pickle;
    size_t storage = ds_storage(w, DS_ONEBIT, DTYPE_F32, param->numel);
    const struct pickle_tensor_desc t = {.dtype = DTYPE_F32,
                                         .storage_idx = storage,
                                         .storage_numel = param->numel,
                                         .ndim = param->ndim,
                                         .shape = param->shape};
    ds_segment_add(w, (struct ds_segment){.file = DS_ONEBIT,
                                          .stream = stream,
                                          .storage_idx = storage,
                                          .numel = param->numel,
                                          .param_idx = param_idx});
    pickle_put_string(p, key);
    pickle_put_tensor(p, &t);
}

/* Momentum and moves of every parameter that is in a segment. */
static void put_own_states(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_ONEBIT].pickle;
    size_t first = w->first_onebit + n_error_streams(o);
    pickle_put_string(p, "state");
    pickle_dict_begin(p);
    for (size_t i = 0; o->onebit->moves_alone && i < o->table->n_params; i++) {
        if (ds_is_frozen(w, i) || o->table->params[i].numel == 0) continue;
        pickle_put_string(p, o->table->params[i].name);
        pickle_dict_begin(p);
        put_whole(w, "exp_avg", first + 2 * i, i);
        put_whole(w, "momentum_accumulator", first + 2 * i + 1, i);
        pickle_dict_end(p);
    }
    pickle_dict_end(p);
}

void ds_put_onebit(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_ONEBIT].pickle;
    pickle_dict_begin(p);
    ds_pair_string(p, "format", CKPT_ONEBIT_FORMAT);
    ds_pair_int(p, "version", CKPT_ONEBIT_VERSION);
    ds_pair_string(p, "optimizer", o->onebit->optimizer);
    ds_pair_int(p, "rank", o->rank);
    ds_pair_int(p, "world_size", o->world_size);
    ds_pair_int(p, "step", o->n_groups ? o->groups[0].step : 0);
    ds_pair_int(p, "global_steps", o->global_steps);
    pickle_put_string(p, "segments");
    pickle_list_begin(p);
    for (size_t i = 0; i < o->onebit->n_segments; i++) put_segment(w, i);
    pickle_list_end(p);
    put_own_states(w);
    pickle_dict_end(p);
}
