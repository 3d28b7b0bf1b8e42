/* A user's own values in a DeepSpeed checkpoint, as JSON or as a pickle. The file is a pickle of
 * anything; what has no JSON form (tensors, objects, NaN) is left out there, and keys that
 * DeepSpeed's engine writes itself are not the user's. */
#include "engine/state/client_state_impl.h"

#include "checkpoint/read/names.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <string.h>

#define CLIENT_STATE_NBYTES_MAX   ((size_t)64 << 20)
#define CLIENT_TENSORS_NBYTES_MAX ((uint64_t)1 << 30)

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
        if (!key || !has_json_form(n->pairs[i].value) || (is_top && ckpt_is_own_key(key))) continue;
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

/* ---- as a pickle ---------------------------------------------------------------------------- */

static bool is_users(const struct pickle_node *key)
{
    const char *text = pickle_to_string(key);
    return !text || !ckpt_is_own_key(text);
}

static cz_status read_tensor(void *user, const struct pickle_tensor *t, void *dst)
{
    return ckpt_read_model_tensor(user, t, dst);
}

cz_status client_state_pickle(const struct ckpt *ck, void **out, size_t *nbytes)
{
    const struct pickle_part part = {.keeps = is_users,
                                     .read = read_tensor,
                                     .user = (void *)(uintptr_t)ck,
                                     .nbytes_max = CLIENT_TENSORS_NBYTES_MAX};
    const struct pickle_node *states = ckpt_model_states(ck);
    struct pickle_writer *w = pickle_writer_create();
    unsigned char *bytes = NULL;
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for a client state");
    pickle_dict_begin(w);
    if (states->kind == PICKLE_DICT) pickle_put_pairs(w, states, &part);
    pickle_dict_end(w);
    cz_status st = pickle_writer_take(w, &bytes, nbytes);
    pickle_writer_destroy(w);
    *out = bytes;
    return st;
}

cz_status client_state_value_json(const struct pickle_node *value, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    put_value(&w, value);
    return json_writer_take(&w, out, NULL);
}
