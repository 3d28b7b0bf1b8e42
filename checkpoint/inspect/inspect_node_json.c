/* A pickled value as JSON.
 *
 * What JSON has is itself. Other things are objects of one member whose key begins with '$':
 * $tensor, $tuple, $set, $size, $dtype, $global, $object, $bytes, $long, $dict (keys that are not
 * all strings or all integers). */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <stdio.h>

static cz_status json_value(struct inspect *in, const struct pt *pt,
                            const struct pickle_node *node);

static cz_status json_items(struct inspect *in, const struct pt *pt, const struct pickle_node *node)
{
    json_begin_array(&in->w);
    for (size_t i = 0; i < node->n; i++) TRY(json_value(in, pt, node->items[i]));
    json_end_array(&in->w);
    return CZ_OK;
}

static cz_status json_wrapped_items(struct inspect *in, const struct pt *pt, const char *key,
                                    const struct pickle_node *node)
{
    json_begin_object(&in->w);
    json_write_key(&in->w, key);
    TRY(json_items(in, pt, node));
    json_end_object(&in->w);
    return CZ_OK;
}

static void json_hex(struct inspect *in, const char *key, const struct pickle_node *node)
{
    json_begin_object(&in->w);
    json_write_key(&in->w, key);
    json_write_raw(&in->w, "\"");
    for (size_t i = 0; i < node->n; i++)
        json_write_format(&in->w, "%02x", (unsigned char)node->text[i]);
    json_write_text(&in->w, "\"");
    json_end_object(&in->w);
}

/* "module.name" */
static void json_class(struct inspect *in, const char *key, const struct pickle_node *node)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s", node->more->module, node->more->name);
    inspect_json_string(in, key, name);
}

/* Every key is of this kind. */
static bool keys_are(const struct pickle_node *node, enum pickle_kind kind)
{
    for (size_t i = 0; i < node->n_pairs; i++)
        if (node->pairs[i].key->kind != kind) return false;
    return true;
}

static cz_status json_pairs(struct inspect *in, const struct pt *pt, const struct pickle_node *node)
{
    const bool has_strings = keys_are(node, PICKLE_STRING);
    char number[24];
    json_begin_object(&in->w);
    if (!has_strings && !keys_are(node, PICKLE_INT)) {
        json_write_key(&in->w, "$dict");
        json_begin_array(&in->w);
        for (size_t i = 0; i < node->n_pairs; i++) {
            json_begin_array(&in->w);
            TRY(json_value(in, pt, node->pairs[i].key));
            TRY(json_value(in, pt, node->pairs[i].value));
            json_end_array(&in->w);
        }
        json_end_array(&in->w);
        json_end_object(&in->w);
        return CZ_OK;
    }
    for (size_t i = 0; i < node->n_pairs; i++) {
        const struct pickle_node *key = node->pairs[i].key;
        const int n = snprintf(number, sizeof number, "%" PRId64, key->integer);
        inspect_json_key(in, has_strings ? key->text : number, has_strings ? key->n : (size_t)n);
        TRY(json_value(in, pt, node->pairs[i].value));
    }
    json_end_object(&in->w);
    return CZ_OK;
}

static cz_status json_tensor(struct inspect *in, const struct pt *pt,
                             const struct pickle_node *node)
{
    struct inspect_sums sums;
    const struct pickle_tensor *t = node->tensor;
    json_begin_object(&in->w);
    json_write_key(&in->w, "$tensor");
    json_begin_object(&in->w);
    inspect_json_string(in, "dtype", t->dtype->torch_name);
    inspect_json_shape(in, t->shape, (size_t)t->ndim);
    inspect_json_string(in, "storage", pt ? pt_storage(pt, t)->name : t->key);
    json_put_int(&in->w, "offset", (int64_t)t->off);
    json_put_bool(&in->w, "contiguous", t->is_contiguous);
    if (in->options->sums && pt) {
        TRY(inspect_sum_tensor(in, pt, t, &sums));
        inspect_json_sums(in, &sums);
    }
    json_end_object(&in->w);
    json_end_object(&in->w);
    return CZ_OK;
}

static cz_status json_object(struct inspect *in, const struct pt *pt,
                             const struct pickle_node *node)
{
    json_begin_object(&in->w);
    json_class(in, "$object", node);
    if (node->more->args && node->more->args->n > 0) {
        json_write_key(&in->w, "args");
        TRY(json_items(in, pt, node->more->args));
    }
    if (node->n > 0) {
        json_write_key(&in->w, "items");
        TRY(json_items(in, pt, node));
    }
    if (node->n_pairs > 0) {
        json_write_key(&in->w, "pairs");
        TRY(json_pairs(in, pt, node));
    }
    if (node->more->state) {
        json_write_key(&in->w, "state");
        TRY(json_value(in, pt, node->more->state));
    }
    json_end_object(&in->w);
    return CZ_OK;
}

static cz_status json_value(struct inspect *in, const struct pt *pt, const struct pickle_node *node)
{
    TRY(inspect_count_node(in));
    switch (node->kind) {
    case PICKLE_NONE: json_write_null(&in->w); break;
    case PICKLE_BOOL: json_write_bool(&in->w, node->boolean); break;
    case PICKLE_INT: json_write_int(&in->w, node->integer); break;
    case PICKLE_LONG: json_hex(in, "$long", node); break;
    case PICKLE_FLOAT: inspect_json_double(in, node->real); break;
    case PICKLE_STRING: inspect_json_text(in, node->text, node->n); break;
    case PICKLE_BYTES: json_hex(in, "$bytes", node); break;
    case PICKLE_LIST: return json_items(in, pt, node);
    case PICKLE_TUPLE: return json_wrapped_items(in, pt, "$tuple", node);
    case PICKLE_SET: return json_wrapped_items(in, pt, "$set", node);
    case PICKLE_SIZE: return json_wrapped_items(in, pt, "$size", node);
    case PICKLE_DICT: return json_pairs(in, pt, node);
    case PICKLE_TENSOR: return json_tensor(in, pt, node);
    case PICKLE_DTYPE:
        json_begin_object(&in->w);
        inspect_json_string(in, "$dtype", node->more->name);
        json_end_object(&in->w);
        break;
    case PICKLE_GLOBAL:
        json_begin_object(&in->w);
        json_class(in, "$global", node);
        json_end_object(&in->w);
        break;
    case PICKLE_OBJECT: return json_object(in, pt, node);
    }
    return CZ_OK;
}

cz_status inspect_json_node(struct inspect *in, const struct pt *pt, const struct pickle_node *node)
{
    return json_value(in, pt, node);
}
