/* What the 1-bit optimizers add: DeepSpeed's keys in the optimizer's states, and a file per rank
 * for what DeepSpeed throws away, the errors of all ranks (docs/checkpoint-format.md).
 *
 * Streams from first_onebit on: worker and server error of each segment; the same once more for the
 * model file of stage 0, where DeepSpeed keeps rank 0's; momentum and moves of each parameter. */
#include "checkpoint/read/onebit_file.h"
#include "checkpoint/write/ds_write_impl.h"

bool ds_has_onebit_file(const struct ckpt_write_options *o)
{
    return o->onebit && o->onebit->n_segments > 0;
}

/* DeepSpeed's OnebitLamb keeps its errors beside its states, and saves none. */
static bool has_errors_in_states(const struct ckpt_write_options *o)
{
    return ds_has_onebit_file(o) && !o->onebit->tensors && o->stage == 0 && o->rank == 0;
}

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

/* ---- streams --------------------------------------------------------------------------------- */

static size_t n_error_streams(const struct ckpt_write_options *o)
{
    return o->onebit->n_segments * (has_errors_in_states(o) ? 4 : 2);
}

size_t ds_onebit_n_streams(const struct ckpt_write_options *o)
{
    if (!ds_has_onebit_file(o)) return 0;
    return n_error_streams(o) + (o->onebit->moves_alone ? 2 * o->table->n_params : 0);
}

void ds_onebit_streams_init(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    size_t n_errors = ds_has_onebit_file(o) ? n_error_streams(o) : 0;
    for (size_t i = w->first_onebit; i < w->n_streams; i++) {
        size_t k = i - w->first_onebit;
        bool second = k % 2;
        if (k < n_errors) {
            ds_stream_init(w, i, second ? CKPT_FROM_SERVER_ERROR : CKPT_FROM_WORKER_ERROR,
                           DTYPE_F32, second ? "server_error" : "worker_error");
            w->streams[i].source.segment_idx = k / 2 % o->onebit->n_segments;
        } else {
            ds_stream_init(w, i, second ? CKPT_FROM_MOVES : CKPT_FROM_MOMENTUM, DTYPE_F32,
                           second ? "momentum_accumulator" : "exp_avg");
            w->streams[i].source.param_idx = (k - n_errors) / 2;
        }
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Elements [begin, end) of a segment, of which `begin` is the first of the stream and of the
 * storage. */
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

/* The server error is of this rank's chunk. */
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

static void put_intervals(struct ckpt_writer *w, struct pickle_writer *p, size_t group)
{
    const struct ckpt_onebit *ob = w->options->onebit;
    ds_pair_int(p, "var_interval", ob->var_interval);
    ds_pair_int(p, "var_counter", ob->var_counter);
    ds_pair_int(p, "local_step_interval", ob->local_step_interval);
    ds_pair_int(p, "local_step_counter", ob->local_step_counter);
    if (ob->lrs[group] == 0)
        ds_pair_int(p, "lrs", 0); /* as Python has it before the first one is added */
    else
        ds_pair_double(p, "lrs", ob->lrs[group]);
}

/* The segment that is exactly the optimizer's idx-th tensor; n_segments: none. */
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
    if (o->onebit->has_intervals) put_intervals(w, w->files[file].pickle, group);
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
