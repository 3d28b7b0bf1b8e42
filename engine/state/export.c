/* Whole weights out of a run: a Hugging Face folder, or one file in the model's dtype. Rank 0
 * writes; the others serve the pieces that it asks for, until it is done. */
#include "engine/engine.h"
#include "engine/host_scratch.h"
#include "engine/micro_batches.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include <czero/engine.h>

#include "base/host/entry.h"
#include "base/log.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* A run whose whole weights are being written. */
struct whole {
    struct cz_engine *e;
    struct host_scratch room;
};

struct piece_request {
    bool is_done; /* no further piece is wanted */
    size_t param_idx, off, numel;
};

/* All ranks alike: as much at a time as fits the servers' memory for activations. dst NULL:
 * only serve. */
static cz_status read_piece(struct whole *w, const struct piece_request *r, float *dst)
{
    size_t n_room = w->room.numel;
    for (size_t at = 0; at < r->numel; at += n_room) {
        size_t n = r->numel - at < n_room ? r->numel - at : n_room;
        TRY(zero_read(w->e->desc.zero, ZERO_WEIGHT, 0, r->param_idx, r->off + at, n,
                      dst ? dst + at : w->room.p));
    }
    return CZ_OK;
}

/* Collective by request: only the writer knows which piece comes next, so it broadcasts each
 * request, and all ranks read that piece together. */
static cz_status fetch_master(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    struct whole *w = user;
    struct piece_request r = {.param_idx = param_idx, .off = off, .numel = numel};
    TRY(comm_broadcast(w->e->desc.comm, &r, sizeof r, 0));
    return read_piece(w, &r, dst);
}

/* What rank 0 does with fetch_master() at hand. */
typedef cz_status (*whole_writer)(struct whole *w, void *user);

/* An error on the writer ends the servers, too: the last request says so. */
static cz_status write_or_serve(struct whole *w, whole_writer write, void *user)
{
    struct cz_engine *e = w->e;
    /* Other ranks answer requests for their pieces until the writer is done. */
    struct err first = {.status = CZ_OK};
    if (e->desc.comm->rank != 0) {
        for (;;) {
            struct piece_request r;
            TRY(comm_broadcast(w->e->desc.comm, &r, sizeof r, 0));
            if (r.is_done) return err_restore(&first);
            /* the writer, which hears of a failure, ends it */
            if (read_piece(w, &r, NULL) != CZ_OK && first.status == CZ_OK) err_capture(&first);
        }
    }
    struct piece_request done = {.is_done = true};
    cz_status st = write(w, user);
    if (st != CZ_OK) err_capture(&first);
    cz_status told = comm_broadcast(e->desc.comm, &done, sizeof done, 0);
    return st == CZ_OK ? told : err_restore(&first);
}

static cz_status write_whole(struct cz_engine *e, const char *phase, whole_writer write, void *user)
{
    struct whole w = {.e = e};
    TRY(micro_batches_drop_forward(e, "an export"));
    /* A rank that is lost meanwhile stands at the step whose gradients are being collected. */
    comm_set_phase(e->desc.comm, e->run.global_steps + (e->run.n_backward > 0), phase);
    cz_status st = host_scratch_take(e, &w.room);
    if (st == CZ_OK) st = comm_agree(e->desc.comm, write_or_serve(&w, write, user));
    host_scratch_give(&w.room);
    return st;
}

/* ---- a Hugging Face folder ------------------------------------------------------------------ */

struct export_target {
    const char *dir;
    enum cz_dtype dtype;
};

/* fp32 masters are narrowed once, to the type that is asked for. */
static cz_status export_hf(struct whole *w, void *user)
{
    const struct export_target *t = user;
    if (cz_model_has_adapter(w->e->desc.model))
        return model_export_adapter(w->e->desc.model, t->dir, t->dtype, fetch_master, w);
    return model_export_hf(w->e->desc.model, t->dir, t->dtype, fetch_master, w);
}

cz_status engine_export_hf(struct cz_engine *e, const char *dir, enum cz_dtype dtype)
{
    ENGINE_ENTRY(e);
    NEED(dir, "dir");
    struct export_target t = {.dir = dir, .dtype = dtype};
    return write_whole(e, "export", export_hf, &t);
}

/* ---- save_16bit_model ----------------------------------------------------------------------- */

struct weights_file {
    const char *path;
    bool exclude_frozen;
    struct pt_writer *out;
    size_t *storage_of; /* (n_params) */
    uint64_t *nbytes;   /* (n_storages) */
    size_t n_storages;
};

static bool is_left_out(const struct weights_file *f, const struct param_info *p)
{
    return f->exclude_frozen && !p->trainable;
}

/* The storage is named now, its bytes follow later. */
static void put_tensor(struct pickle_writer *w, const struct cz_engine *e, const char *name,
                       const struct param_info *p, size_t storage_idx)
{
    const struct pickle_tensor_desc tensor = {.dtype = e->desc.dtype,
                                              .storage_idx = storage_idx,
                                              .storage_numel = p->numel,
                                              .ndim = p->ndim,
                                              .shape = p->shape};
    pickle_put_string(w, name);
    pickle_put_tensor(w, &tensor);
}

/* OrderedDict of all names; tied ones share a storage. */
static cz_status describe_weights(const struct cz_engine *e, struct weights_file *f,
                                  unsigned char **pickle, size_t *nbytes)
{
    const struct param_table *table = model_params(e->desc.model);
    struct pickle_writer *w = pickle_writer_create();
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for a pickle");
    pickle_ordered_dict_begin(w);
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        if (is_left_out(f, p)) continue;
        f->storage_of[i] = f->n_storages++;
        f->nbytes[f->storage_of[i]] = p->numel * dtype_size(e->desc.dtype);
        put_tensor(w, e, p->name, p, f->storage_of[i]);
    }
    for (size_t a = 0; a < table->n_aliases; a++) {
        size_t i = table->aliases[a].param_idx;
        if (!is_left_out(f, &table->params[i]))
            put_tensor(w, e, table->aliases[a].name, &table->params[i], f->storage_of[i]);
    }
    pickle_dict_end(w);
    cz_status st = pickle_writer_take(w, pickle, nbytes);
    pickle_writer_destroy(w);
    return st;
}

/* Masters come in fp32; what the layers see is their rounding. */
static cz_status write_weight(struct whole *w, struct weights_file *f, size_t i, float *room)
{
    enum { CHUNK = 1 << 16 };
    const struct cz_engine *e = w->e;
    size_t numel = model_params(e->desc.model)->params[i].numel, elem = dtype_size(e->desc.dtype);
    for (size_t off = 0, n; off < numel; off += n) {
        n = numel - off < CHUNK ? numel - off : CHUNK;
        TRY(fetch_master(w, i, off, n, room));
        for (size_t k = 0; e->desc.dtype != DTYPE_F32 && k < n; k++)
            dtype_put(room, k, e->desc.dtype, room[k]); /* narrower: never ahead of the reading */
        TRY(pt_write(f->out, f->storage_of[i], off * elem, n * elem, room, NULL));
    }
    return CZ_OK;
}

/* In the order of the table, one tensor after another: the file is never in memory as a whole. */
static cz_status write_weights(struct whole *w, void *user)
{
    const struct cz_engine *e = w->e;
    struct weights_file *f = user;
    const struct param_table *table = model_params(e->desc.model);
    struct pt_written written;
    unsigned char *pickle = NULL;
    size_t pickle_nbytes = 0;
    cz_status st;
    float *room = malloc(sizeof *room << 16);
    f->storage_of = calloc(table->n_params + 1, sizeof *f->storage_of);
    f->nbytes = calloc(table->n_params + 1, sizeof *f->nbytes);
    st = room && f->storage_of && f->nbytes ? CZ_OK
                                            : err_set(CZ_NOMEM, 0, "no memory to save weights");
    TRY_GOTO(st, done);
    TRY_GOTO(describe_weights(e, f, &pickle, &pickle_nbytes), done);
    const struct pt_create_options options = {.path = f->path,
                                              .pickle = pickle,
                                              .pickle_nbytes = pickle_nbytes,
                                              .storage_nbytes = f->nbytes,
                                              .n_storages = f->n_storages};
    TRY_GOTO(pt_create(&options, &f->out), done);
    for (size_t i = 0; i < table->n_params; i++)
        if (!is_left_out(f, &table->params[i])) TRY_GOTO(write_weight(w, f, i, room), done);
    TRY_GOTO(pt_finish(f->out, true, &written), done);
done:
    pt_writer_destroy(f->out);
    free(room);
    free(pickle);
    free(f->storage_of);
    free(f->nbytes);
    return st;
}

/* DeepSpeed's condition: at stage 3 it saves only if the config asks for the gather. The result
 * says whether it did. */
cz_status engine_save_16bit_model(struct cz_engine *e, const char *dir, const char *filename,
                                  bool exclude_frozen, bool *saved)
{
    ENGINE_ENTRY(e);
    NEED(dir, "dir");
    NEED(saved, "saved");
    const struct config_zero *zero = &e->desc.config->zero;
    if (!*dir) return err_set(CZ_INVALID, 0, "engine_save_16bit_model needs a folder");
    *saved = zero->stage < 3 || zero->gather_16bit_weights_on_model_save;
    if (!*saved) {
        if (e->desc.comm->rank == 0)
            LOGV(LOG_WARN, SUB_CKPT,
                 "no weights were saved to %s: at stage 3 that needs "
                 "zero_optimization.stage3_gather_16bit_weights_on_model_save",
                 dir);
        return CZ_OK;
    }
    const cz_status make_folder = e->desc.comm->rank == 0 ? file_make_dirs(dir) : CZ_OK;
    TRY(comm_agree(e->desc.comm, make_folder));
    char *path = file_join(dir, filename ? filename : "pytorch_model.bin");
    TRY(comm_agree(e->desc.comm, path ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a path")));
    struct weights_file f = {.path = path, .exclude_frozen = exclude_frozen};
    cz_status st = write_whole(e, "saving weights", write_weights, &f);
    free(path);
    return st;
}
