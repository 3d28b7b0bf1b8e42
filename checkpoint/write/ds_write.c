/* Writing DeepSpeed's files (docs/checkpoint-format.md, "DeepSpeed's files") without holding their
 * tensors.
 *
 * The pickles are written first, with every tensor as a reference to a storage whose size is known;
 * so the files can be laid out, and elements are put in their places in whatever order the engine
 * has them: by jobs, each a piece of one stream (ds_write_jobs.c). Sums are taken on the way, so
 * the manifest needs no second reading. Nothing has its final name before everything is on disk. */
#include "checkpoint/write/ds_write_impl.h"

#include "formats/crc32.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>

/* ---- creation -------------------------------------------------------------------------------- */

/* The layout must be that of the run: a group laid out for other ranks would put elements into
 * wrong partitions, in files that look whole. */
static cz_status check_group(const struct ckpt_write_options *o, size_t group)
{
    const struct ckpt_group *g = &o->groups[group];
    int world_size = o->stage == 3 ? (g->shard ? g->shard->world_size : -1)
                                   : (g->flat ? g->flat->world_size : -1);
    if (world_size < 0)
        return err_set(CZ_INVALID, 0, "param group %zu of a stage %d checkpoint has no layout",
                       group, o->stage);
    if (o->stage > 0 && world_size != o->world_size)
        return err_set(CZ_INVALID, 0, "param group %zu is laid out for %d ranks, not for %d", group,
                       world_size, o->world_size);
    if (g->n_states > CKPT_STATES_MAX)
        return err_set(CZ_INVALID, 0, "param group %zu has %zu kinds of state, at most %d fit",
                       group, g->n_states, CKPT_STATES_MAX);
    return CZ_OK;
}

/* An error in it is the caller's, not a damaged file. */
static cz_status read_client(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    cz_status st;
    if (o->client_state_json && o->client_state_pickle)
        return err_set(CZ_INVALID, 0, "the client state is given as JSON and as a pickle");
    if (o->client_state_pickle) {
        st = pickle_parse(o->client_state_pickle, o->client_state_nbytes, "client state",
                          &w->client_pickle);
        if (st == CZ_CORRUPT) st = err_set(CZ_INVALID, 0, "%s", cz_last_error()); /* not a file's */
        return st == CZ_OK ? ds_client_check_pickle(pickle_root(w->client_pickle)) : st;
    }
    if (!o->client_state_json) return CZ_OK;
    st = json_parse(o->client_state_json, strlen(o->client_state_json), "client state", JSON_STRICT,
                    &w->client);
    if (st == CZ_CORRUPT) st = err_set(CZ_INVALID, 0, "%s", cz_last_error()); /* not a file's */
    TRY(st);
    return ds_client_check(json_root(w->client));
}

cz_status ckpt_client_check(const struct ckpt_write_options *options)
{
    struct ckpt_writer w = {.options = options};
    cz_status st = read_client(&w);
    json_free(w.client);
    pickle_free(w.client_pickle);
    return st;
}

static cz_status read_json(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    TRY(json_parse(o->ds_config_json, strlen(o->ds_config_json), "ds_config", JSON_CONFIG,
                   &w->config));
    return read_client(w);
}

/* The position of each parameter in its group. No storage exists yet: those are made as the pickles
 * are written. */
static cz_status places_init(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    size_t n = o->table->n_params;
    w->param_pos = calloc(n + 1, sizeof *w->param_pos);
    w->param_storage = calloc(n + 1, sizeof *w->param_storage);
    w->group_storage = calloc(o->n_groups + 1, sizeof *w->group_storage);
    if (!w->param_pos || !w->param_storage || !w->group_storage)
        return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    for (size_t i = 0; i < n; i++) w->param_storage[i] = DS_NONE;
    for (size_t g = 0; g < o->n_groups; g++) {
        w->group_storage[g] = DS_NONE;
        if (o->stage == 3) continue;
        const struct flat_group *flat = o->groups[g].flat;
        for (size_t i = 0; i < flat->n_params; i++) w->param_pos[flat->params[i].param_idx] = i;
    }
    return CZ_OK;
}

/* Lays the file out and writes what is known already: the pickle, and the storages that are known.
 * The pickle is in memory; it has names and shapes only. */
static cz_status file_create(struct ckpt_writer *w, struct ds_file *f)
{
    unsigned char *bytes = NULL;
    struct pt_create_options options = {
        .path = f->path, .folder = w->options->folder, .storage_nbytes = f->storage_nbytes, .n_storages = f->n_storages};
    cz_status st = pickle_writer_take(f->pickle, &bytes, &options.pickle_nbytes);
    if (st == CZ_OK && w->failed)
        st = err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    options.pickle = bytes;
    if (st == CZ_OK) st = pt_create(&options, &f->pt);
    free(bytes);
    for (size_t i = 0; i < f->n_known && st == CZ_OK; i++) {
        const struct ds_known *k = &f->known[i];
        st = k->bytes ? pt_write(f->pt, k->storage_idx, 0, k->nbytes, k->bytes, NULL)
                      : pt_write(f->pt, k->storage_idx, 0, sizeof k->step, &k->step, NULL);
    }
    pickle_writer_destroy(f->pickle);
    f->pickle = NULL;
    return err_trace(st, __func__, __LINE__);
}

static cz_status files_create(struct ckpt_writer *w)
{
    for (int i = 0; i < DS_N_FILES; i++) {
        struct ds_file *f = &w->files[i];
        if (!w->has_file[i]) continue;
        f->path = file_join(w->options->dir, f->name);
        f->pickle = pickle_writer_create();
        if (!f->path || !f->pickle)
            return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's dictionaries");
        if (i == DS_MODEL)
            ds_put_model(w);
        else if (i == DS_OPTIM)
            ds_put_optim(w);
        else
            ds_put_onebit(w);
        TRY(file_create(w, f));
    }
    return CZ_OK;
}

/* At stage 3 every rank writes a model file; at the others rank 0 alone. Pickles are written before
 * jobs are made, because writing them finds out which elements go where. */
static cz_status writer_init(struct ckpt_writer *w)
{
    if (w->options->stage < 0 || w->options->stage > 3)
        return err_set(CZ_INVALID, 0, "stage %d is outside 0..3", w->options->stage);
    if (w->options->world_size < 1 || w->options->rank < 0 ||
        w->options->rank >= w->options->world_size)
        return err_set(CZ_INVALID, 0, "rank %d of %d ranks", w->options->rank,
                       w->options->world_size);
    for (size_t g = 0; g < w->options->n_groups; g++) TRY(check_group(w->options, g));
    TRY(ds_onebit_check(w->options));
    TRY(read_json(w));
    TRY(places_init(w));
    TRY(ds_streams_init(w));
    const struct ckpt_write_options *o = w->options;
    w->has_file[DS_MODEL] = o->stage == 3 || o->rank == 0;
    w->has_file[DS_OPTIM] = o->stage > 0;
    w->has_file[DS_ONEBIT] = ds_has_onebit_file(o);
    ckpt_model_file(o->stage, o->rank, w->files[DS_MODEL].name);
    ckpt_optim_file(o->dtype == DTYPE_BF16, o->rank, w->files[DS_OPTIM].name);
    ckpt_onebit_name(o->rank, w->files[DS_ONEBIT].name);
    TRY(files_create(w));
    pickle_free(w->client_pickle); /* it is in the files now */
    w->client_pickle = NULL;
    return ds_jobs_init(w);
}

cz_status ckpt_writer_create(const struct ckpt_write_options *options, struct ckpt_writer **out)
{
    *out = NULL;
    struct ckpt_writer *w = calloc(1, sizeof *w);
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for a checkpoint's bookkeeping");
    manifest_init(&w->manifest);
    w->options = options;
    cz_status st = writer_init(w);
    if (st != CZ_OK) {
        ckpt_writer_destroy(w);
        return err_trace(st, __func__, __LINE__);
    }
    *out = w;
    return CZ_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

size_t ckpt_writer_n_jobs(const struct ckpt_writer *w)
{
    return w->n_jobs;
}

const struct ckpt_job *ckpt_writer_job(const struct ckpt_writer *w, size_t job_idx)
{
    return &w->jobs[job_idx];
}

/* The elements of one job, into as many files and storages as need them: a weight may be in
 * `module` and in a fragment. Threads: different jobs at the same time; pieces of different jobs do
 * not overlap. */
cz_status ckpt_writer_put(struct ckpt_writer *w, size_t job_idx, const void *src)
{
    if (job_idx >= w->n_jobs)
        return err_set(CZ_INVALID, 0, "job %zu of a checkpoint with %zu jobs", job_idx, w->n_jobs);
    const struct ds_cut *cut = &w->cuts[job_idx];
    const struct ckpt_job *job = &w->jobs[job_idx];
    size_t size = dtype_size(job->dtype);
    for (size_t i = cut->first; i < cut->first + cut->n; i++) {
        struct ds_piece *piece = &w->pieces[i];
        const struct ds_segment *s = &w->segments[piece->segment];
        const unsigned char *from = src;
        from += (s->src_off + piece->off - job->off) * size;
        TRY(pt_write(w->files[s->file].pt, s->storage_idx, (s->storage_off + piece->off) * size,
                     piece->numel * size, from, &piece->crc));
    }
    w->done[job_idx] = 1;
    return CZ_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The order of the places in the files, as manifests list runs. */
static int place_order(const void *a, const void *b)
{
    const struct ds_segment *x = a, *y = b;
    if (x->file != y->file) return x->file - y->file;
    if (x->storage_idx != y->storage_idx) return x->storage_idx < y->storage_idx ? -1 : 1;
    return x->storage_off < y->storage_off ? -1 : x->storage_off > y->storage_off;
}

/* The manifest's entry of a file. Padding has no parameter and is left out; it is covered by the
 * sum of the whole file. */
static cz_status list_file(struct ckpt_writer *w, int file, const struct pt_written *written)
{
    const struct ds_file *f = &w->files[file];
    struct manifest_file *entry;
    TRY(manifest_add_file(&w->manifest, f->name, written->nbytes, written->crc, &entry));
    for (size_t i = 0; i < w->n_segments; i++) {
        const struct ds_segment *s = &w->segments[i];
        size_t size = dtype_size(s->dtype);
        if (s->file != file || s->param_idx == DS_NONE) continue;
        TRY(manifest_add_tensor(entry, w->options->table->params[s->param_idx].name,
                                w->streams[s->stream].what,
                                pt_storage_off(f->pt, s->storage_idx) + s->storage_off * size,
                                (uint64_t)s->numel * size, s->crc));
    }
    return CZ_OK;
}

/* A job that was not done would leave zeros in a file that looks complete, so it is an error. */
cz_status ckpt_writer_finish(struct ckpt_writer *w, const struct manifest **out)
{
    struct pt_written written[DS_N_FILES] = {{0}};
    *out = NULL;
    for (size_t i = 0; i < w->n_jobs; i++)
        if (!w->done[i])
            return err_set(CZ_INVALID, 0, "job %zu of a checkpoint with %zu jobs was not done", i,
                           w->n_jobs);
    /* Everything is on disk before anything gets its name. */
    for (int i = 0; i < DS_N_FILES; i++)
        if (w->has_file[i]) TRY(pt_finish(w->files[i].pt, false, &written[i]));
    /* A rename is remembered, because destroying an unfinished writer removes what it has
     * renamed. */
    for (int i = 0; i < DS_N_FILES; i++) {
        if (!w->has_file[i]) continue;
        cz_status st = pt_rename(w->files[i].pt);
        w->files[i].renamed = pt_is_renamed(w->files[i].pt);
        TRY(st);
    }
    /* Pieces of a segment are in the order of its elements, so their sums can be concatenated. */
    for (size_t i = 0; i < w->n_pieces; i++) {
        struct ds_segment *s = &w->segments[w->pieces[i].segment];
        uint64_t nbytes = (uint64_t)w->pieces[i].numel * dtype_size(s->dtype);
        s->crc = crc32_concat(s->crc, w->pieces[i].crc, nbytes);
    }
    if (w->n_segments) qsort(w->segments, w->n_segments, sizeof *w->segments, place_order);
    w->manifest.world_size = w->options->world_size;
    w->manifest.stage = w->options->stage;
    for (int i = 0; i < DS_N_FILES; i++)
        if (w->has_file[i]) TRY(list_file(w, i, &written[i]));
    w->finished = true;
    *out = &w->manifest;
    return CZ_OK;
}

void ckpt_writer_destroy(struct ckpt_writer *w)
{
    if (!w) return;
    for (int i = 0; i < DS_N_FILES; i++) {
        pickle_writer_destroy(w->files[i].pickle);
        if (w->files[i].renamed && !w->finished) pt_take_back(w->files[i].pt);
        pt_writer_destroy(w->files[i].pt);
        free(w->files[i].path);
        free(w->files[i].storage_nbytes);
        free(w->files[i].known);
    }
    manifest_free(&w->manifest);
    json_free(w->config);
    json_free(w->client);
    pickle_free(w->client_pickle);
    free(w->param_pos);
    free(w->param_storage);
    free(w->group_storage);
    free(w->first_stream);
    free(w->streams);
    free(w->segments);
    free(w->pieces);
    free(w->jobs);
    free(w->cuts);
    free(w->done);
    free(w);
}
