/* A pickled value as a tree for people. Unknown classes are shown by their names with what they
 * hold; nothing is ever called. A small pickle can unfold into an enormous tree, because values may
 * be referred to many times, so every value counts against a limit (inspect_count_node). */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ENTRIES_MAX    24 /* of a container, unless --all */
#define INLINE_MAX     12 /* scalars on one line, unless --all */
#define SHORT_DICT_MAX 3
#define TEXT_SHOWN_MAX 160 /* bytes of a string, unless --all */

static cz_status put_value(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent);

static bool is_scalar(const struct pickle_node *node)
{
    switch (node->kind) {
    case PICKLE_NONE:
    case PICKLE_BOOL:
    case PICKLE_INT:
    case PICKLE_LONG:
    case PICKLE_FLOAT:
    case PICKLE_DTYPE: return true;
    case PICKLE_STRING: return node->n <= 24;
    default: return false;
    }
}

static bool all_scalars(const struct pickle_node *node)
{
    for (size_t i = 0; i < node->n; i++)
        if (!is_scalar(node->items[i])) return false;
    return true;
}

/* A dict of a few scalars under plain names: an object's attributes that fit one line. */
static bool is_short_dict(const struct pickle_node *node)
{
    if (!pickle_is(node, PICKLE_DICT) || node->n_pairs > SHORT_DICT_MAX) return false;
    for (size_t i = 0; i < node->n_pairs; i++)
        if (!pickle_to_string(node->pairs[i].key) || !is_scalar(node->pairs[i].value)) return false;
    return true;
}

/* ---- scalars --------------------------------------------------------------------------------- */

/* Cut at a character's first byte, so that the output stays valid UTF-8. */
static void put_string(struct inspect *in, const struct pickle_node *node)
{
    size_t shown = node->n;
    if (!in->options->all && shown > TEXT_SHOWN_MAX) shown = TEXT_SHOWN_MAX;
    while (shown < node->n && shown > 0 && ((unsigned char)node->text[shown] & 0xC0) == 0x80)
        shown--; /* not inside a character */
    json_write_text(&in->w, "\"");
    inspect_put(in, node->text, shown);
    json_write_text(&in->w, "\"");
    if (shown < node->n) json_write_format(&in->w, " … (%u bytes)", node->n);
}

/* Enough to recognise a format by its first bytes. */
static void put_bytes(struct inspect *in, const struct pickle_node *node, const char *what)
{
    const size_t shown = node->n < 16 || in->options->all ? node->n : 16;
    json_write_format(&in->w, "%s of %u bytes", what, node->n);
    for (size_t i = 0; i < shown; i++)
        json_write_format(&in->w, "%s%02x", i == 0 ? ": " : "", (unsigned char)node->text[i]);
    if (shown < node->n) json_write_text(&in->w, "…");
}

/* As Python prints it, so that values can be compared with its output. */
static void put_float(struct inspect *in, double value)
{
    char text[JSON_FLOAT_NBYTES];
    json_write_text(&in->w, json_float_text(value, text));
}

/* PICKLE_SIZE has integers only: the reader checks it. */
static void put_size(struct inspect *in, const struct pickle_node *node)
{
    int64_t shape[PICKLE_NDIM_MAX];
    char text[INSPECT_SHAPE_NBYTES];
    const size_t n = node->n < PICKLE_NDIM_MAX ? node->n : PICKLE_NDIM_MAX;
    for (size_t i = 0; i < n; i++) shape[i] = node->items[i]->integer;
    json_write_format(&in->w, "torch.Size %s", inspect_shape(shape, n, text));
}

static void put_class(struct inspect *in, const struct pickle_node *node)
{
    inspect_puts(in, node->more->module);
    json_write_text(&in->w, ".");
    inspect_puts(in, node->more->name);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* ds_id is an attribute in DeepSpeed's stage 3 (docs/deepspeed-behaviour.md) and may be in the
 * state. */
static cz_status put_tensor(struct inspect *in, const struct pt *pt, const struct pickle_node *node)
{
    char shape[INSPECT_SHAPE_NBYTES];
    struct inspect_sums sums;
    const struct pickle_tensor *t = node->tensor;
    const struct pickle_node *ds_id = pickle_attr(node, "ds_id");
    if (!ds_id) ds_id = pickle_get(node->more->state, "ds_id");
    json_write_format(&in->w, "%s %s  data/", t->dtype->torch_name,
                      inspect_shape(t->shape, (size_t)t->ndim, shape));
    inspect_puts(in, t->key);
    if (t->off > 0) json_write_format(&in->w, " from element %" PRIu64, t->off);
    if (!t->is_contiguous) {
        json_write_format(&in->w, " strides %s", inspect_shape(t->stride, (size_t)t->ndim, shape));
    }
    if (t->is_parameter) json_write_text(&in->w, " Parameter");
    if (pickle_to_string(ds_id)) {
        json_write_text(&in->w, " ds_id ");
        inspect_puts(in, pickle_to_string(ds_id));
    }
    if (!in->options->sums || !pt) return CZ_OK;
    TRY(inspect_sum_tensor(in, pt, t, &sums));
    inspect_put_sums(in, &sums);
    return CZ_OK;
}

/* ---- containers ------------------------------------------------------------------------------ */

static void put_left_out(struct inspect *in, const struct inspect_window *window, int indent)
{
    json_write_text(&in->w, "\n");
    inspect_indent(in, indent);
    json_write_format(&in->w, "… %zu more", window->tail_begin - window->head);
}

/* The first and the last entries: a list of layers tells most at its ends. */
static cz_status put_items(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent)
{
    const struct inspect_window window = inspect_window(in, node->n, ENTRIES_MAX);
    for (size_t i = 0; i < node->n; i++) {
        if (i == window.head && i < window.tail_begin) {
            put_left_out(in, &window, indent);
            i = window.tail_begin;
        }
        json_write_text(&in->w, "\n");
        inspect_indent(in, indent);
        json_write_format(&in->w, "[%zu]: ", i);
        TRY(put_value(in, pt, node->items[i], indent + 2));
    }
    return CZ_OK;
}

/* Keys are values as well; tuples and numbers occur. */
static cz_status put_pairs(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent)
{
    const struct inspect_window window = inspect_window(in, node->n_pairs, ENTRIES_MAX);
    for (size_t i = 0; i < node->n_pairs; i++) {
        if (i == window.head && i < window.tail_begin) {
            put_left_out(in, &window, indent);
            i = window.tail_begin;
        }
        const struct pickle_node *key = node->pairs[i].key;
        json_write_text(&in->w, "\n");
        inspect_indent(in, indent);
        if (key->kind == PICKLE_STRING)
            inspect_put(in, key->text, key->n);
        else
            TRY(put_value(in, NULL, key, indent + 2));
        json_write_text(&in->w, ": ");
        TRY(put_value(in, pt, node->pairs[i].value, indent + 2));
    }
    return CZ_OK;
}

/* Only scalars come here, so the line is bounded. */
static cz_status put_inline(struct inspect *in, const struct pickle_node *node, const char *open,
                            const char *close)
{
    const struct inspect_window window = inspect_window(in, node->n, INLINE_MAX);
    json_write_text(&in->w, open);
    for (size_t i = 0; i < node->n; i++) {
        if (i > 0) json_write_text(&in->w, ", ");
        if (i == window.head && i < window.tail_begin) {
            json_write_format(&in->w, "… %zu more …, ", window.tail_begin - window.head);
            i = window.tail_begin;
        }
        TRY(put_value(in, NULL, node->items[i], 0));
    }
    json_write_text(&in->w, close);
    return CZ_OK;
}

static cz_status put_list(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                          int indent)
{
    const bool is_list = node->kind == PICKLE_LIST, is_set = node->kind == PICKLE_SET;
    if (all_scalars(node))
        return put_inline(in, node,
                          is_list  ? "["
                          : is_set ? "{"
                                   : "(",
                          is_list  ? "]"
                          : is_set ? "}"
                                   : ")");
    json_write_format(&in->w, "%s of %u", pickle_kind_name(node->kind), node->n);
    return put_items(in, pt, node, indent);
}

static cz_status put_dict(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                          int indent)
{
    const char *class = node->more->name;
    json_write_format(&in->w, "%s of %u", class[0] ? class : "dict", node->n_pairs);
    return put_pairs(in, pt, node, indent);
}

/* module.name(…), as Python would print a constructor. Objects with a few plain attributes take one
 * line. */
static cz_status put_object(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                            int indent)
{
    const struct pickle_node *args = node->more->args, *state = node->more->state;
    put_class(in, node);
    if ((!args || args->n == 0) && node->n == 0 && node->n_pairs == 0 && is_short_dict(state)) {
        /* (numel=64, start=0) */
        json_write_text(&in->w, "(");
        for (size_t i = 0; i < state->n_pairs; i++) {
            if (i > 0) json_write_text(&in->w, ", ");
            inspect_puts(in, pickle_to_string(state->pairs[i].key));
            json_write_text(&in->w, "=");
            TRY(put_value(in, NULL, state->pairs[i].value, 0));
        }
        json_write_text(&in->w, ")");
        return CZ_OK;
    }
    const bool short_args = args && all_scalars(args);
    if (short_args)
        TRY(put_inline(in, args, "(", ")"));
    else
        json_write_text(&in->w, args ? "(…)" : "()");
    if (args && !short_args) TRY(put_items(in, pt, args, indent));
    TRY(put_items(in, pt, node, indent));
    TRY(put_pairs(in, pt, node, indent));
    if (!state) return CZ_OK;
    if (state->kind == PICKLE_DICT) return put_pairs(in, pt, state, indent);
    json_write_text(&in->w, "\n");
    inspect_indent(in, indent);
    json_write_text(&in->w, "state: ");
    return put_value(in, pt, state, indent + 2);
}

static cz_status put_value(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent)
{
    TRY(inspect_count_node(in));
    switch (node->kind) {
    case PICKLE_NONE: json_write_text(&in->w, "None"); break;
    case PICKLE_BOOL: json_write_text(&in->w, node->boolean ? "True" : "False"); break;
    case PICKLE_INT: json_write_format(&in->w, "%" PRId64, node->integer); break;
    case PICKLE_LONG: put_bytes(in, node, "integer"); break;
    case PICKLE_FLOAT: put_float(in, node->real); break;
    case PICKLE_STRING: put_string(in, node); break;
    case PICKLE_BYTES: put_bytes(in, node, "bytes"); break;
    case PICKLE_LIST:
    case PICKLE_TUPLE:
    case PICKLE_SET: return put_list(in, pt, node, indent);
    case PICKLE_SIZE: put_size(in, node); break;
    case PICKLE_DICT: return put_dict(in, pt, node, indent);
    case PICKLE_TENSOR: return put_tensor(in, pt, node);
    case PICKLE_DTYPE: json_write_format(&in->w, "torch.%s", node->more->name); break;
    case PICKLE_GLOBAL: put_class(in, node); break;
    case PICKLE_OBJECT: return put_object(in, pt, node, indent);
    }
    return CZ_OK;
}

cz_status inspect_put_node(struct inspect *in, const struct pt *pt, const struct pickle_node *node,
                           int indent)
{
    return put_value(in, pt, node, indent);
}
