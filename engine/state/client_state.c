/* A user's own values in a DeepSpeed checkpoint, as JSON. The file is a pickle of anything; what
 * has no JSON form (tensors, objects, NaN) is left out, and keys that DeepSpeed's engine writes
 * itself are not the user's. */
#include "engine/state/client_state_impl.h"

#include "formats/json/json_write.h"

#include <math.h>
#include <string.h>

#define CLIENT_STATE_NBYTES_MAX ((size_t)64 << 20)

/* docs/deepspeed-behaviour.md, "Model file" */
static const char *const engine_keys[] = {"module",
                                          "buffer_names",
                                          "optimizer",
                                          "param_shapes",
                                          "frozen_param_shapes",
                                          "shared_params",
                                          "frozen_param_fragments",
                                          "lr_scheduler",
                                          "data_sampler",
                                          "random_ltd",
                                          "sparse_tensor_module_names",
                                          "csr_tensor_module_names",
                                          "skipped_steps",
                                          "global_steps",
                                          "global_samples",
                                          "dp_world_size",
                                          "mp_world_size",
                                          "checkpoint_parallel_dimensions",
                                          "ds_config",
                                          "ds_version",
                                          "universal_checkpoint_info"};

/* Only at the top: a user's dictionary may use the same words. */
static bool is_engine_key(const char *key)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(engine_keys); i++)
        if (strcmp(engine_keys[i], key) == 0) return true;
    return false;
}

/* Whether the value, down to its leaves, can be said in JSON. */
static bool has_json_form(const struct pickle_node *n)
{
    switch (n->kind) {
    case PICKLE_NONE:
    case PICKLE_BOOL:
    case PICKLE_INT: return true;
    case PICKLE_FLOAT: return isfinite(n->real);
    case PICKLE_STRING: return pickle_to_string(n) != NULL;
    case PICKLE_LIST:
    case PICKLE_TUPLE:
    case PICKLE_SIZE:
    case PICKLE_DICT: return true;
    case PICKLE_LONG:
    case PICKLE_BYTES:
    case PICKLE_SET:
    case PICKLE_TENSOR:
    case PICKLE_DTYPE:
    case PICKLE_GLOBAL:
    case PICKLE_OBJECT: break;
    }
    return false;
}

static void put_value(struct json_writer *w, const struct pickle_node *n);

/* Whatever has no JSON form becomes null. */
static void put_list(struct json_writer *w, const struct pickle_node *n)
{
    json_begin_array(w);
    for (size_t i = 0; i < n->n; i++) {
        if (has_json_form(n->items[i]))
            put_value(w, n->items[i]);
        else
            json_write_null(w); /* so that the others keep their places */
    }
    json_end_array(w);
}

static void put_dict(struct json_writer *w, const struct pickle_node *n, bool is_top)
{
    json_begin_object(w);
    for (size_t i = 0; i < n->n_pairs; i++) {
        const char *key = pickle_to_string(n->pairs[i].key);
        if (!key || !has_json_form(n->pairs[i].value) || (is_top && is_engine_key(key))) continue;
        json_write_key(w, key);
        put_value(w, n->pairs[i].value);
    }
    json_end_object(w);
}

static void put_value(struct json_writer *w, const struct pickle_node *n)
{
    /* Shared values are written out each time: a hostile file could ask for any length. */
    if (n->kind == PICKLE_NONE || w->nbytes > CLIENT_STATE_NBYTES_MAX)
        json_write_null(w);
    else if (n->kind == PICKLE_BOOL)
        json_write_bool(w, n->boolean);
    else if (n->kind == PICKLE_INT)
        json_write_int(w, n->integer);
    else if (n->kind == PICKLE_FLOAT)
        json_write_double(w, n->real);
    else if (n->kind == PICKLE_STRING)
        json_write_string(w, n->text);
    else if (n->kind == PICKLE_DICT)
        put_dict(w, n, false);
    else
        put_list(w, n);
}

/* A checkpoint without any gives {}: callers always get an object. */
cz_status client_state_json(const struct pickle_node *model_states, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    if (pickle_is(model_states, PICKLE_DICT)) {
        put_dict(&w, model_states, true);
    } else {
        json_begin_object(&w);
        json_end_object(&w);
    }
    return json_writer_take(&w, out, NULL);
}
