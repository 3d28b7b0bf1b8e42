/* JSON as pickled values: ds_config and the client's state. Numbers keep their kind, because
 * DeepSpeed distinguishes integers from floats when it loads a config. */
#include "checkpoint/write/ds_write_impl.h"

/* JSON integers beyond 64 bits become floats, as the config reader takes them. */
static void put_number(struct pickle_writer *p, const struct json_node *node)
{
    int64_t integer = 0;
    double real = 0.0;
    if (json_type(node) == JSON_INT && json_as_int(node, &integer) == CZ_OK) {
        pickle_put_int(p, integer);
        return;
    }
    (void)json_as_double(node, &real); /* it is a number; this takes integers beyond 64 bits too */
    err_clear();
    pickle_put_double(p, real);
}

void ds_put_json(struct pickle_writer *p, const struct json_node *node)
{
    const char *text = "";
    bool flag = false;
    size_t n = json_count(node);
    switch (json_type(node)) {
    case JSON_NULL: pickle_put_none(p); return;
    case JSON_BOOL:
        (void)json_as_bool(node, &flag); /* it is one */
        pickle_put_bool(p, flag);
        return;
    case JSON_INT:
    case JSON_FLOAT: put_number(p, node); return;
    case JSON_STRING:
        (void)json_as_string(node, &text); /* it is one */
        pickle_put_string(p, text);
        return;
    case JSON_ARRAY:
        pickle_list_begin(p);
        for (size_t i = 0; i < n; i++) ds_put_json(p, json_child(node, i));
        pickle_list_end(p);
        return;
    case JSON_OBJECT: break;
    }
    pickle_dict_begin(p);
    for (size_t i = 0; i < n; i++) {
        pickle_put_string(p, json_key(json_child(node, i)));
        ds_put_json(p, json_child(node, i));
    }
    pickle_dict_end(p);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

void ds_pair_int(struct pickle_writer *p, const char *key, int64_t value)
{
    pickle_put_string(p, key);
    pickle_put_int(p, value);
}

void ds_pair_double(struct pickle_writer *p, const char *key, double value)
{
    pickle_put_string(p, key);
    pickle_put_double(p, value);
}

void ds_pair_bool(struct pickle_writer *p, const char *key, bool value)
{
    pickle_put_string(p, key);
    pickle_put_bool(p, value);
}

void ds_pair_string(struct pickle_writer *p, const char *key, const char *value)
{
    pickle_put_string(p, key);
    pickle_put_string(p, value);
}

/* ---- tensors --------------------------------------------------------------------------------- */

void ds_put_flat(struct pickle_writer *p, struct pickle_tensor_desc tensor, size_t numel)
{
    const int64_t shape[1] = {(int64_t)numel};
    tensor.ndim = 1;
    tensor.shape = shape;
    pickle_put_tensor(p, &tensor);
}
