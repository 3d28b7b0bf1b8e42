/* Parsed values, written again: a client's state that is carried from one checkpoint to the next.
 * What is shared stays shared: it is written once and fetched from the memo. Tensors are refused,
 * since their storages are not copied. */
#include "formats/pickle/pickle_impl.h"
#include "formats/pickle/pickle_write_impl.h"

#include <stdlib.h>

static void write_node(struct pickle_writer *w, const struct pickle_node *node);

/* Also for objects that have items, such as list subclasses. */
static void put_items(struct pickle_writer *w, const struct pickle_node *node)
{
    pickle_write_open(w, PICKLE_OPEN_LIST);
    for (size_t i = 0; i < node->n; i++) {
        pickle_write_next(w);
        write_node(w, node->items[i]);
    }
    pickle_write_close(w, PICKLE_OPEN_LIST);
}

/* Both of a pair count as values of the batch: Python's batches of 1,000 pairs are 2,000 values. */
static void put_pairs(struct pickle_writer *w, const struct pickle_node *node)
{
    pickle_write_open(w, PICKLE_OPEN_DICT);
    for (size_t i = 0; i < node->n_pairs; i++) {
        pickle_write_next(w);
        write_node(w, node->pairs[i].key);
        pickle_write_next(w);
        write_node(w, node->pairs[i].value);
    }
    pickle_write_close(w, PICKLE_OPEN_DICT);
}

/* BUILD, after items and pairs, the order of Python's save_reduce(). */
static void write_state(struct pickle_writer *w, const struct pickle_node *node)
{
    if (!node->more->state) return;
    write_node(w, node->more->state);
    pickle_write_op(w, 'b');
}

/* With a mark always: a tuple of up to three has shorter opcodes, which make no difference to a
 * reader. */
static void write_tuple(struct pickle_writer *w, const struct pickle_node *node)
{
    if (node->n == 0) {
        pickle_write_op(w, ')');
        return;
    }
    pickle_write_op(w, '(');
    for (size_t i = 0; i < node->n; i++) write_node(w, node->items[i]);
    pickle_write_op(w, 't');
}

/* bytes are spelled _codecs.encode(text, "latin1") in protocol 2. */
static void write_bytes(struct pickle_writer *w, const struct pickle_node *node)
{
    if (node->n == 0) {
        pickle_write_global(w, "__builtin__", "bytes");
        pickle_write(w, ")R", 2);
        return;
    }
    char *text = malloc(2 * node->n);
    if (!text) {
        pickle_write_fail(w, CZ_NOMEM, "no memory");
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < node->n; i++) {
        unsigned char c = (unsigned char)node->text[i];
        if (c >= 0x80) text[n++] = (char)(0xC0 | c >> 6);
        text[n++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    }
    pickle_write_global(w, "_codecs", "encode");
    pickle_write_text(w, text, n);
    pickle_write_text(w, "latin1", 6);
    pickle_write(w, "\x86R", 2);
    free(text);
}

/* The bytes that were read; 64 bits are not enough for them. */
static void write_long(struct pickle_writer *w, const struct pickle_node *node)
{
    bool is_short = node->n <= UINT8_MAX;
    pickle_write_number(w, is_short ? 0x8a : 0x8b, is_short ? 1 : 4, node->n);
    pickle_write(w, node->text, node->n);
}

/* NEWOBJ or REDUCE, as it was read; then items, pairs and state. */
static void write_object(struct pickle_writer *w, const struct pickle_node *node)
{
    const struct pickle_node *args = node->more->args;
    if (pickle_storage_of(node)) {
        pickle_write_fail(w, CZ_INVALID, "a storage cannot be carried over");
        return;
    }
    if (*node->more->name) {
        pickle_write_global(w, node->more->module, node->more->name);
    } else { /* an object was called */
        write_node(w, args->items[0]);
        args = args->items[1];
    }
    write_node(w, args);
    pickle_write_op(w, node->boolean ? 0x81 : 'R');
    put_items(w, node);
    put_pairs(w, node);
    write_state(w, node);
}

/* The memo entry is made after the value. A cycle cannot come here: the parser refuses them
 * (pickle_settle). */
static void write_shared(struct pickle_writer *w, const struct pickle_node *node)
{
    if (pickle_write_get_node(w, node)) return;
    switch (node->kind) {
    case PICKLE_LONG: write_long(w, node); break;
    case PICKLE_BYTES: write_bytes(w, node); break;
    case PICKLE_TUPLE: write_tuple(w, node); break;
    case PICKLE_SET:
        pickle_write_global(w, "__builtin__", node->more->name);
        pickle_write_op(w, ']');
        put_items(w, node);
        pickle_write(w, "\x85R", 2);
        break;
    case PICKLE_SIZE:
        pickle_write_global(w, "torch", "Size");
        write_tuple(w, node);
        pickle_write(w, "\x85R", 2);
        break;
    case PICKLE_DICT:
        if (*node->more->name) {
            pickle_write_global(w, node->more->module, node->more->name);
            if (node->more->args)
                write_node(w, node->more->args);
            else
                pickle_write_op(w, ')');
            pickle_write_op(w, 'R');
        } else {
            pickle_write_op(w, '}');
        }
        put_pairs(w, node);
        write_state(w, node);
        break;
    case PICKLE_OBJECT: write_object(w, node); break;
    case PICKLE_LIST:
        pickle_write_op(w, ']');
        put_items(w, node);
        break;
    default: pickle_write_fail(w, CZ_INVALID, "a tensor cannot be carried over"); break;
    }
    pickle_write_put_node(w, node);
}

/* The caller has called pickle_write_next() where a container's batches count. Small immutable
 * values are written again each time, as Python does; strings and globals have a memo of their own,
 * by content. */
static void write_node(struct pickle_writer *w, const struct pickle_node *node)
{
    switch (node->kind) {
    case PICKLE_NONE: pickle_write_op(w, 'N'); break;
    case PICKLE_BOOL: pickle_write_op(w, node->boolean ? 0x88 : 0x89); break;
    case PICKLE_INT: pickle_write_int(w, node->integer); break;
    case PICKLE_FLOAT: pickle_write_double(w, node->real); break;
    case PICKLE_STRING: pickle_write_text(w, node->text, node->n); break;
    case PICKLE_DTYPE: pickle_write_global(w, "torch", node->more->name); break;
    case PICKLE_GLOBAL:
        if (node->n > 0 || node->n_pairs > 0 || node->more->state)
            pickle_write_fail(w, CZ_INVALID, "a class with attributes cannot be carried over");
        pickle_write_global(w, node->more->module, node->more->name);
        break;
    default: write_shared(w, node); break;
    }
}

void pickle_put_node(struct pickle_writer *w, const struct pickle_node *node)
{
    pickle_write_next(w);
    write_node(w, node);
    pickle_write_forget_nodes(w); /* their addresses may be others' later */
}
