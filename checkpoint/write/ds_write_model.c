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

/* `reserved`: a client's value under this key would replace tensors, or what is needed to find
 * their elements. */
static const struct model_key {
    const char *key;
    void (*put)(struct ckpt_writer *w);
    bool reserved;
} model_keys[] = {
    {"module", ds_put_module, true},
    {"buffer_names", put_buffers, true},
    {"optimizer", put_optimizer, true},
    {"param_shapes", ds_put_param_shapes, true},
    {"frozen_param_shapes", ds_put_frozen_shapes, true},
    {"shared_params", ds_put_shared, true},
    {"frozen_param_fragments", ds_put_frozen_fragments, true},
    {"lr_scheduler", put_scheduler, false},
    {"data_sampler", put_none, false},
    {"random_ltd", put_none, false},
    {"skipped_steps", put_skipped, false},
    {"global_steps", put_steps, false},
    {"global_samples", put_samples, false},
    {"dp_world_size", put_dp_world, false},
    {"mp_world_size", put_mp_world, false},
    {"checkpoint_parallel_dimensions", put_dimensions, true},
    {"ds_config", put_config, false},
    {"ds_version", put_ds_version, false},
};
#define N_MODEL_KEYS (sizeof model_keys / sizeof model_keys[0])

static const struct model_key *model_key_find(const char *key)
{
    for (size_t i = 0; i < N_MODEL_KEYS; i++)
        if (strcmp(model_keys[i].key, key) == 0) return &model_keys[i];
    return NULL;
}

/* DeepSpeed merges without a check, and a client can make its own checkpoint unreadable. */
cz_status ds_client_check(const struct json_node *client)
{
    if (json_type(client) != JSON_OBJECT)
        return err_set(CZ_INVALID, 0, "a checkpoint's client state is %s, not an object",
                       json_type_name(json_type(client)));
    for (size_t i = 0; i < json_count(client); i++) {
        const char *key = json_key(json_child(client, i));
        const struct model_key *found = model_key_find(key);
        if (found && found->reserved)
            return err_set(CZ_INVALID, 0,
                           "the client state has the key '%s', which the checkpoint itself uses: "
                           "give it another name",
                           key);
    }
    return CZ_OK;
}

/* As Python's dict.update: a client's value replaces ours in its place, new keys follow. */
void ds_put_model(struct ckpt_writer *w)
{
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    const struct json_node *client = w->client ? json_root(w->client) : NULL;
    pickle_dict_begin(p);
    for (size_t i = 0; i < N_MODEL_KEYS; i++) {
        const struct json_node *theirs = client ? json_get(client, model_keys[i].key) : NULL;
        pickle_put_string(p, model_keys[i].key);
        if (theirs)
            ds_put_json(p, theirs);
        else
            model_keys[i].put(w);
    }
    for (size_t i = 0; client && i < json_count(client); i++) {
        const struct json_node *theirs = json_child(client, i);
        if (model_key_find(json_key(theirs))) continue;
        pickle_put_string(p, json_key(theirs));
        ds_put_json(p, theirs);
    }
    pickle_dict_end(p);
}
