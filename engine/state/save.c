/* A save from the ranks' point of view: staged, written by every rank, agreed on, published. Files
 * go into a staging folder; only when all ranks have written theirs does rank 0 rename it and move
 * `latest`, so at every moment `latest` names a complete checkpoint (docs/checkpoint-format.md). */
#include "base/host/entry.h"
#include "base/options.h"
#include "engine/micro_batches.h"
#include "engine/state/save_impl.h"

#include "base/log.h"
#include "checkpoint/store/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void save_free(struct save *s)
{
    if (!s) return;
    save_writer_finish(&s->writer);
    ckpt_writer_destroy(s->files);
    save_description_free(&s->description);
    out_folder_close(&s->folder);
    free(s->dir);
    free(s->shown_dir);
    free(s->tag);
    free(s->staging);
    free(s->state_json);
    for (size_t i = 0; s->keep_tags && s->keep_tags[i]; i++) free(s->keep_tags[i]);
    free(s->keep_tags);
    free(s);
}

/* ---- the tag -------------------------------------------------------------------------------- */

/* Gradients are not saved: between two boundaries a resumed run could not continue. */
static cz_status check_moment(struct cz_engine *e)
{
    TRY(micro_batches_drop_forward(e, "a save"));
    if (e->run.phase == PHASE_BACKWARD || e->run.n_backward > 0)
        return err_set(CZ_INVALID, 0,
                       "%lld of %lld micro-batches of a step have been accumulated, and a "
                       "checkpoint has no gradients: save when engine_is_between_steps() is "
                       "true after engine_step(), or drop the step with engine_discard_step()",
                       (long long)e->run.n_backward, (long long)engine_get_accumulation(e));
    return CZ_OK;
}

/* What all ranks write must come together in one folder. */
static cz_status check_storage(const struct cz_engine *e)
{
    if (!e->desc.config->checkpoint.use_node_local_storage ||
        e->desc.comm->n_ranks_host == e->desc.comm->world_size)
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "checkpoint.use_node_local_storage is not supported over several hosts: save "
                   "into a folder that they share, and set it to false");
}

/* DeepSpeed's default name. */
static cz_status choose_tag(const struct cz_engine *e, const struct cz_save_options *o,
                            char tag[256])
{
    if (!o->tag) {
        snprintf(tag, 256, "global_step%lld", (long long)e->run.global_steps);
        return CZ_OK;
    }
    TRY(ckpt_tag_check(o->tag));
    snprintf(tag, 256, "%s", o->tag);
    return CZ_OK;
}

/* Ranks that come with different tags: rank 0's is taken, unless the config forbids it. */
static cz_status same_tag(struct cz_engine *e, char tag[256])
{
    char first[256];
    double differs, n_differ;
    memcpy(first, tag, sizeof first);
    TRY(comm_broadcast(e->desc.comm, first, sizeof first, 0));
    differs = strcmp(first, tag) != 0;
    TRY(engine_gather_metrics(e, &differs, 1, &n_differ));
    if (n_differ == 0) return CZ_OK;
    if (e->desc.config->checkpoint.tag_validation == CONFIG_TAG_FAIL)
        return err_set(CZ_INVALID, 0,
                       "%.0f ranks have another checkpoint tag than rank 0's \"%s\" "
                       "(checkpoint.tag_validation is Fail)",
                       n_differ, first);
    if (e->desc.comm->rank == 0 && e->desc.config->checkpoint.tag_validation == CONFIG_TAG_WARN)
        LOGV(LOG_WARN, SUB_CKPT,
             "%.0f ranks have another checkpoint tag than rank 0: \"%s\" is used", n_differ, first);
    memcpy(tag, first, sizeof first);
    return CZ_OK;
}

/* ---- completing ----------------------------------------------------------------------------- */

/* Nothing of a failed save stays; the error does. */
static void give_up(struct cz_engine *e, struct save *s)
{
    struct err error;
    err_capture(&error);
    bool is_first = e->desc.comm->rank == 0 && s->dir && s->tag;
    char *dir = is_first ? strdup(s->dir) : NULL, *tag = is_first ? strdup(s->tag) : NULL;
    save_free(s);
    if (dir && tag) store_discard(dir, tag);
    free(dir);
    free(tag);
    err_restore(&error);
}

/* Every rank's part of the manifest, at rank 0. */
static cz_status merge_parts(const char *parts, const uint64_t *nbytes, size_t stride,
                             int world_size, struct manifest *all)
{
    for (int r = 0; r < world_size; r++) {
        char label[48];
        struct manifest part;
        snprintf(label, sizeof label, "the manifest of rank %d", r);
        TRY(manifest_from_json(parts + (size_t)r * stride, nbytes[r], label, &part));
        cz_status st = manifest_merge(all, &part);
        manifest_free(&part);
        TRY(st);
    }
    return CZ_OK;
}

/* Parts have different lengths: they are padded to the longest, since a gather moves equal
 * pieces. */
static cz_status gather_manifest(struct cz_engine *e, struct save *s, struct manifest *all)
{
    int w = e->desc.comm->world_size;
    bool is_first = e->desc.comm->rank == 0;
    uint64_t *nbytes = calloc((size_t)w, sizeof *nbytes), mine = 0, stride = 1;
    char *part = NULL, *padded = NULL, *parts = NULL;
    size_t part_nbytes = 0;
    cz_status st = nbytes ? manifest_to_json(s->writer.manifest, &part, &part_nbytes)
                          : err_set(CZ_NOMEM, 0, "no memory for a manifest");
    TRY_GOTO(comm_agree(e->desc.comm, st), done);
    mine = part_nbytes;
    TRY_GOTO(comm_all_gather(e->desc.comm, &mine, nbytes, sizeof mine), done);
    for (int r = 0; r < w; r++) stride = nbytes[r] > stride ? nbytes[r] : stride;
    padded = calloc(1, stride);
    parts = calloc(is_first ? (size_t)w : 1, stride);
    st = padded && parts ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a manifest");
    TRY_GOTO(comm_agree(e->desc.comm, st), done);
    memcpy(padded, part, part_nbytes);
    TRY_GOTO(comm_gather(e->desc.comm, padded, parts, stride, 0), done);
    if (is_first) TRY_GOTO(merge_parts(parts, nbytes, stride, w, all), done);
done:
    free(nbytes);
    free(part);
    free(padded);
    free(parts);
    return st;
}

/* Rank 0 acts, all ranks learn how it went. */
static cz_status publish(struct cz_engine *e, struct save *s)
{
    struct manifest all;
    const struct store_extra extra = {CKPT_STATE, s->state_json, s->state_nbytes};
    manifest_init(&all);
    all.world_size = e->desc.comm->world_size;
    all.stage = e->desc.config->zero.stage;
    cz_status st = comm_agree(e->desc.comm, gather_manifest(e, s, &all));
    if (st == CZ_OK) {
        if (e->desc.comm->rank == 0)
            st = store_publish(s->dir, s->tag, &all, &extra, 1, !s->keep_latest);
        st = comm_agree(e->desc.comm, st);
    }
    manifest_free(&all);
    return st;
}

static cz_status prune(const struct save *s)
{
    if (!s->keep_tags) return store_prune(s->dir, s->keep, NULL);
    return store_prune_others(s->dir, (const char *const *)s->keep_tags, NULL);
}

/* Collective. */
static cz_status complete(struct cz_engine *e)
{
    struct save *s = e->run.save;
    cz_status st = comm_agree(e->desc.comm, save_writer_finish(&s->writer));
    zero_set_guard(e->desc.zero, NULL, NULL);
    e->run.save = NULL;
    if (st == CZ_OK) st = publish(e, s);
    if (st != CZ_OK) {
        give_up(e, s);
        return st;
    }
    if (e->desc.comm->rank == 0) LOGV(LOG_INFO, SUB_CKPT, "saved %s/%s", s->shown_dir, s->tag);
    /* Older tags go only after this one is complete; those that cannot be removed are no reason to
     * stop. */
    if (e->desc.comm->rank == 0 && (s->keep > 0 || s->keep_tags)) {
        if (prune(s) != CZ_OK)
            LOGV(LOG_WARN, SUB_CKPT, "removing old checkpoints: %s", cz_last_error());
        err_clear();
    }
    save_free(s);
    return CZ_OK;
}

/* The run continues without it. Every rank knows of the failure: one logs it. */
static void complete_or_warn(struct cz_engine *e)
{
    if (complete(e) == CZ_OK) return;
    err_capture(&e->run.save_error);
    if (e->desc.comm->rank == 0)
        LOGV(LOG_WARN, SUB_CKPT, "a checkpoint was not saved, but the run continues: %s",
             e->run.save_error.text);
    err_clear();
}

/* Called at boundaries: one rank's thread may be done earlier, but completing is collective. */
cz_status engine_save_poll(struct cz_engine *e)
{
    if (!e->run.save) return CZ_OK;
    double ended = save_writer_has_ended(&e->run.save->writer), n_ended;
    TRY(engine_gather_metrics(e, &ended, 1, &n_ended));
    if (n_ended == e->desc.comm->world_size) complete_or_warn(e);
    return CZ_OK;
}

void engine_save_end(struct cz_engine *e)
{
    if (e->run.save) complete_or_warn(e);
    e->run.save_error.status = CZ_OK;
}

/* The error of an earlier background save is told once. */
cz_status engine_save_wait(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    if (e->run.save) return complete(e);
    struct err earlier = e->run.save_error;
    e->run.save_error.status = CZ_OK;
    return earlier.status == CZ_OK ? CZ_OK : err_restore(&earlier);
}

/* Callers are about to overwrite what the thread may still read. */
void engine_save_settle(struct cz_engine *e)
{
    if (e->run.save) save_writer_settle(&e->run.save->writer);
}

/* ---- beginning ------------------------------------------------------------------------------ */

/* The caller's list ends before a save in the background does. */
static cz_status copy_tags(const char *const *tags, struct save *s)
{
    size_t n = 0;
    if (!tags) return CZ_OK;
    while (tags[n]) n++;
    s->keep_tags = calloc(n + 1, sizeof *s->keep_tags);
    if (!s->keep_tags) return err_set(CZ_NOMEM, 0, "no memory for a save");
    for (size_t i = 0; i < n; i++)
        if (!(s->keep_tags[i] = strdup(tags[i])))
            return err_set(CZ_NOMEM, 0, "no memory for a save");
    return CZ_OK;
}

static cz_status open_save(struct cz_engine *e, const char *dir, const char *tag,
                           const struct cz_save_options *o, struct save *s)
{
    TRY(file_absolute(dir, &s->dir));
    s->shown_dir = strdup(dir);
    s->tag = strdup(tag);
    s->staging = store_staging_path(s->dir, tag);
    s->keep_latest = o->keep_latest;
    s->keep = o->keep;
    if (!s->shown_dir || !s->tag || !s->staging)
        return err_set(CZ_NOMEM, 0, "no memory for a save");
    TRY(copy_tags(o->keep_tags, s));
    /* The JSON is made now, while the step stands still; a thread writes it later. */
    struct run_state state;
    run_state_take(e, o->cursor, &state);
    /* The frozen model of an adapter is named by its hash instead of stored. */
    const bool adapts = cz_model_has_adapter(e->desc.model);
    cz_status st = o->weights_only ? CZ_OK : save_take_onebit(e, &state);
    state.has_base = adapts && e->desc.comm->rank == 0;
    if (st == CZ_OK && state.has_base) st = model_base_hash(e->desc.model, &state.base_hash);
    if (st == CZ_OK) st = run_state_to_json(&state, s->tag, &s->state_json, &s->state_nbytes);
    run_state_free(&state);
    TRY(st);
    TRY(save_describe(e, s->staging, o, o->exclude_frozen || adapts, &s->description));
    TRY(ckpt_client_check(&s->description.options)); /* what is refused leaves no folder */
    return e->desc.comm->rank == 0 ? store_stage(s->dir, s->tag) : CZ_OK;
}

/* Files go into the folder that was opened, whatever gets its name while they are written. */
static cz_status open_staging(struct save *s)
{
    struct out_folder dir;
    TRY(out_folder_open(s->dir, &dir));
    cz_status st = out_folder_below(&dir, strrchr(s->staging, '/') + 1, false, &s->folder);
    out_folder_abandon(&dir); /* a host that lacks it gets none */
    s->description.options.folder = &s->folder;
    return st;
}

/* Three agreements: a rank that cannot write must not leave the others with a checkpoint that lacks
 * its part. */
static cz_status begin(struct cz_engine *e, const char *dir, const char *tag,
                       const struct cz_save_options *o, struct save *s)
{
    TRY(comm_agree(e->desc.comm, open_save(e, dir, tag, o, s)));
    cz_status st = open_staging(s);
    if (st == CZ_OK) st = ckpt_writer_create(&s->description.options, &s->files);
    TRY(comm_agree(e->desc.comm, st));
    return comm_agree(e->desc.comm,
                      save_writer_start(&s->writer, e, s->files, e->desc.config->czero.async_save));
}

/* zero asks before it overwrites a range: the update waits only for what is not written yet. */
static cz_status guard(void *user, const struct zero_range *range)
{
    struct cz_engine *e = user;
    save_writer_claim(&e->run.save->writer, range);
    return CZ_OK;
}

/* The options are checked on every rank before anything is written. */
cz_status engine_save_begin(struct cz_engine *e, const char *dir,
                            const struct cz_save_options *options)
{
    ENGINE_ENTRY(e);
    struct cz_save_options o;
    char tag[256];
    TRY(comm_agree(e->desc.comm, OPTIONS_TAKE(cz_save_options, &o, options)));
    TRY(comm_agree(e->desc.comm, check_moment(e)));
    TRY(comm_agree(e->desc.comm, check_storage(e)));
    NEED(dir, "dir");
    if (!*dir) return err_set(CZ_INVALID, 0, "a folder to save into is needed");
    comm_set_phase(e->desc.comm, e->run.global_steps, "saving a checkpoint");
    engine_save_end(e);
    TRY(comm_agree(e->desc.comm, zero_update_end(e->desc.zero))); /* of the last step, if it was
                                                           left to the next forward */
    TRY(comm_agree(e->desc.comm, choose_tag(e, &o, tag)));
    TRY(same_tag(e, tag));
    struct save *s = calloc(1, sizeof *s);
    TRY(comm_agree(e->desc.comm, s ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a save")));
    cz_status st = begin(e, dir, tag, &o, s);
    if (st != CZ_OK) {
        give_up(e, s);
        return st;
    }
    e->run.save = s;
    zero_set_guard(e->desc.zero, guard, e);
    return e->desc.config->czero.async_save ? CZ_OK : engine_save_wait(e);
}

cz_status engine_save_checkpoint_ex(struct cz_engine *e, const char *dir,
                                    const struct cz_save_options *options)
{
    ENGINE_ENTRY(e);
    TRY(engine_save_begin(e, dir, options));
    return engine_save_wait(e);
}

cz_status engine_save_checkpoint(struct cz_engine *e, const char *dir, const char *tag)
{
    const struct cz_save_options options = {.size = sizeof options, .tag = tag};
    return engine_save_checkpoint_ex(e, dir, &options);
}
