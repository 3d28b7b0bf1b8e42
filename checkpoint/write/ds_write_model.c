/* model_states.pt: its keys in their order, and what a client merges in
 * (docs/deepspeed-behaviour.md, "Model file"). One row per key: the order of the rows is the order
 * in the file. */
#include "checkpoint/write/ds_write_impl.h"

#include <string.h>

/* czero's models have no buffers. */
static void put_buffers(struct ckpt_writer *w)
{
    pickle_list_begin(w->files[DS_MODEL].pickle);
    pickle_list_end(w->files[DS_MODEL].pickle);
}

static void put_optimizer(struct ckpt_writer *w)
{
    if (w->options->stage == 0)
        ds_put_plain_optimizer(w);
    else
        pickle_put_none(w->files[DS_MODEL].pickle);
}

static void put_scheduler(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    if (!o->has_scheduler) {
        pickle_put_none(p);
        return;
    }
    pickle_dict_begin(p);
    if (o->put_schedule)
        o->put_schedule(p, o->schedule);
    else
        ds_pair_int(p, "last_batch_iteration", o->last_batch_iteration);
    pickle_dict_end(p);
}

static void put_none(struct ckpt_writer *w)
{
    pickle_put_none(w->files[DS_MODEL].pickle);
}

static void put_skipped(struct ckpt_writer *w)
{
    pickle_put_int(w->files[DS_MODEL].pickle, w->options->skipped_steps);
}

static void put_steps(struct ckpt_writer *w)
{
    pickle_put_int(w->files[DS_MODEL].pickle, w->options->global_steps);
}

static void put_samples(struct ckpt_writer *w)
{
    pickle_put_int(w->files[DS_MODEL].pickle, w->options->global_samples);
}

static void put_dp_world(struct ckpt_writer *w)
{
    pickle_put_int(w->files[DS_MODEL].pickle, w->options->world_size);
}

/* Tensor parallelism is not supported, so it is always 1; DeepSpeed compares it. */
static void put_mp_world(struct ckpt_writer *w)
{
    pickle_put_int(w->files[DS_MODEL].pickle, 1);
}

static void put_dimensions(struct ckpt_writer *w)
{
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    pickle_dict_begin(p);
    ds_pair_int(p, "pp_degree", 1);
    ds_pair_int(p, "tp_degree", 1);
    pickle_dict_end(p);
}

static void put_config(struct ckpt_writer *w)
{
    ds_put_json(w->files[DS_MODEL].pickle, json_root(w->config));
}

static void put_ds_version(struct ckpt_writer *w)
{
    pickle_put_string(w->files[DS_MODEL].pickle, CKPT_DS_VERSION);
}

static const struct model_key {
    const char *key;
    void (*put)(struct ckpt_writer *w);
} model_keys[] = {
    {"module", ds_put_module},
    {"buffer_names", put_buffers},
    {"optimizer", put_optimizer},
    {"param_shapes", ds_put_param_shapes},
    {"frozen_param_shapes", ds_put_frozen_shapes},
    {"shared_params", ds_put_shared},
    {"frozen_param_fragments", ds_put_frozen_fragments},
    {"lr_scheduler", put_scheduler},
    {"data_sampler", put_none},
    {"random_ltd", put_none},
    {"skipped_steps", put_skipped},
    {"global_steps", put_steps},
    {"global_samples", put_samples},
    {"dp_world_size", put_dp_world},
    {"mp_world_size", put_mp_world},
    {"checkpoint_parallel_dimensions", put_dimensions},
    {"ds_config", put_config},
    {"ds_version", put_ds_version},
};
#define N_MODEL_KEYS (sizeof model_keys / sizeof model_keys[0])

/* DeepSpeed merges without a check: a client can change its run's counters or make its checkpoint
 * unreadable, and its value does not come back. */
static cz_status client_check_key(const char *key)
{
    if (!ckpt_is_own_key(key)) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "the client state has the key '%s', which the checkpoint itself uses: "
                   "give it another name",
                   key);
}

cz_status ds_client_check(const struct json_node *client)
{
    if (json_type(client) != JSON_OBJECT)
        return err_set(CZ_INVALID, 0, "a checkpoint's client state is %s, not an object",
                       json_type_name(json_type(client)));
    for (size_t i = 0; i < json_count(client); i++)
        TRY(client_check_key(json_key(json_child(client, i))));
    return CZ_OK;
}

cz_status ds_client_check_pickle(const struct pickle_node *client)
{
    if (client->kind != PICKLE_DICT)
        return err_set(CZ_INVALID, 0, "a checkpoint's client state is %s, not a dict",
                       pickle_kind_phrase(client->kind));
    for (size_t i = 0; i < client->n_pairs; i++) {
        const char *key = pickle_to_string(client->pairs[i].key);
        if (key) TRY(client_check_key(key));
    }
    return CZ_OK;
}

/* A client's tensor has a storage of its own, as torch gives it. */
static cz_status place_tensor(void *user, const void *elements, size_t nbytes, size_t *storage_idx)
{
    struct ckpt_writer *w = user;
    *storage_idx = ds_storage_bytes(w, DS_MODEL, nbytes);
    if (nbytes > 0)
        ds_known(
            w, DS_MODEL,
            (struct ds_known){.storage_idx = *storage_idx, .bytes = elements, .nbytes = nbytes});
    return w->failed ? err_set(CZ_NOMEM, 0, "no memory for a client state") : CZ_OK;
}

/* A client's pairs follow ours. */
void ds_put_model(struct ckpt_writer *w)
{
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    const struct json_node *client = w->client ? json_root(w->client) : NULL;
    pickle_dict_begin(p);
    for (size_t i = 0; i < N_MODEL_KEYS; i++) {
        pickle_put_string(p, model_keys[i].key);
        model_keys[i].put(w);
    }
    for (size_t i = 0; client && i < json_count(client); i++) {
        const struct json_node *theirs = json_child(client, i);
        pickle_put_string(p, json_key(theirs));
        ds_put_json(p, theirs);
    }
    const struct pickle_part part = {.user = w, .place = place_tensor};
    if (w->client_pickle) pickle_put_pairs(p, pickle_root(w->client_pickle), &part);
    pickle_dict_end(p);
}
