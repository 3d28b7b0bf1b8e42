/* Parsed values, written again: a client's state that is carried from one checkpoint to the next.
 * What is shared stays shared: it is written once and fetched from the memo. Tensors are refused
 * unless a struct pickle_part says how their elements are read or placed. */
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
static void write_bytes(struct pickle_writer *w, const void *bytes, size_t nbytes)
{
    if (nbytes == 0) {
        pickle_write_global(w, "__builtin__", "bytes");
        pickle_write(w, ")R", 2);
        return;
    }
    char *text = nbytes <= SIZE_MAX / 2 ? malloc(2 * nbytes) : NULL;
    if (!text) {
        pickle_write_fail(w, CZ_NOMEM, "no memory");
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) {
        const unsigned char c = ((const unsigned char *)bytes)[i];
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

static bool gives_tensors(const struct pickle_writer *w)
{
    return w->part && w->part->read;
}

/* Elements of a strided view may be far more than its storage has. */
static void write_elements(struct pickle_writer *w, const struct pickle_tensor *t)
{
    const uint64_t left = w->part->nbytes_max - w->nbytes_read;
    if (t->numel > left / t->dtype->size) {
        pickle_write_op(w, 'N');
        return;
    }
    const size_t nbytes = (size_t)(t->numel * t->dtype->size);
    void *bytes = malloc(nbytes + 1);
    w->nbytes_read += nbytes;
    if (!bytes)
        pickle_write_fail(w, CZ_NOMEM, "no memory");
    else if (w->part->read(w->part->user, t, bytes) != CZ_OK)
        pickle_write_fail_as_told(w);
    else
        write_bytes(w, bytes, nbytes);
    free(bytes);
}

static void write_tensor(struct pickle_writer *w, const struct pickle_tensor *t)
{
    if (!gives_tensors(w)) {
        pickle_write_fail(w, CZ_INVALID, "a tensor cannot be carried over");
        return;
    }
    pickle_write_global(w, PICKLE_TENSOR_MODULE, PICKLE_TENSOR_NAME);
    pickle_write_op(w, '(');
    pickle_write_text(w, t->dtype->torch_name, strlen(t->dtype->torch_name));
    pickle_write_op(w, '(');
    for (int d = 0; d < t->ndim; d++) pickle_write_int(w, t->shape[d]);
    pickle_write_op(w, 't');
    write_elements(w, t);
    pickle_write(w, "tR", 2);
}

/* The shape of a call's second argument, and its product; false: it is none. */
static bool take_shape(const struct pickle_node *from, int64_t *shape, uint64_t *numel)
{
    *numel = 1;
    if (from->kind != PICKLE_TUPLE || from->n > PICKLE_NDIM_MAX) return false;
    for (uint32_t d = 0; d < from->n; d++) {
        const struct pickle_node *dim = from->items[d];
        if (dim->kind != PICKLE_INT || dim->integer < 0) return false;
        shape[d] = dim->integer;
        if (shape[d] > 0 && *numel > (uint64_t)PICKLE_NBYTES_MAX / (uint64_t)shape[d]) return false;
        *numel *= (uint64_t)shape[d];
    }
    return true;
}

/* Whether the node is a call that becomes a tensor of the file; an error is in the writer. */
static bool write_placed(struct pickle_writer *w, const struct pickle_node *node)
{
    const struct pickle_node *args = node->more->args;
    int64_t shape[PICKLE_NDIM_MAX];
    uint64_t numel;
    if (!w->part || !w->part->place || strcmp(node->more->module, PICKLE_TENSOR_MODULE) != 0 ||
        strcmp(node->more->name, PICKLE_TENSOR_NAME) != 0)
        return false;
    const struct pickle_dtype *dtype = NULL;
    if (args->n == 3 && args->items[0]->kind == PICKLE_STRING)
        dtype = pickle_dtype_find(args->items[0]->text);
    if (!dtype || !pickle_storage_of_dtype(dtype) || args->items[2]->kind != PICKLE_BYTES ||
        !take_shape(args->items[1], shape, &numel) || numel * dtype->size != args->items[2]->n) {
        pickle_write_fail(w, CZ_INVALID, "a tensor's dtype, shape and elements do not agree");
        return true;
    }
    struct pickle_tensor_desc t = {.torch_dtype = dtype,
                                   .storage_numel = numel,
                                   .ndim = (int)args->items[1]->n,
                                   .shape = shape};
    if (w->part->place(w->part->user, args->items[2]->text, args->items[2]->n, &t.storage_idx) !=
        CZ_OK)
        pickle_write_fail_as_told(w);
    pickle_write_tensor(w, &t);
    return true;
}

/* NEWOBJ or REDUCE, as it was read; then items, pairs and state. */
static void write_object(struct pickle_writer *w, const struct pickle_node *node)
{
    const struct pickle_node *args = node->more->args;
    if (write_placed(w, node)) return;
    if (pickle_storage_of(node)) {
        if (!gives_tensors(w)) pickle_write_fail(w, CZ_INVALID, "a storage cannot be carried over");
        pickle_write_global(w, "torch", "UntypedStorage");
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
    case PICKLE_BYTES: write_bytes(w, node->text, node->n); break;
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
    default: write_tensor(w, node->tensor); break;
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
        if (!gives_tensors(w) && (node->n > 0 || node->n_pairs > 0 || node->more->state))
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

void pickle_put_pairs(struct pickle_writer *w, const struct pickle_node *dict,
                      const struct pickle_part *part)
{
    w->part = part;
    for (size_t i = 0; i < dict->n_pairs; i++) {
        const struct pickle_pair *pair = &dict->pairs[i];
        if (part && part->keeps && !part->keeps(pair->key)) continue;
        pickle_write_next(w);
        write_node(w, pair->key);
        pickle_write_next(w);
        write_node(w, pair->value);
    }
    w->part = NULL;
    pickle_write_forget_nodes(w);
}
