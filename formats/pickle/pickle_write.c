/* The pickle writer: a growing buffer, open containers, and a memo of strings and globals. It
 * writes protocol 2 as Python's pickler and torch.save do (batches of 1,000, memo indexes, shortest
 * integers; docs/deepspeed-behaviour.md, "Pickles"), so that files can be compared byte by byte
 * with DeepSpeed's. Errors are remembered and reported once, by pickle_writer_take(). */
#include "base/hash.h"
#include "base/utf8.h"
#include "formats/pickle/pickle_impl.h"
#include "formats/pickle/pickle_write_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The first reason stays. */
void pickle_write_fail(struct pickle_writer *w, cz_status status, const char *why)
{
    if (w->failed != CZ_OK) return;
    w->failed = status;
    w->why = why;
}

void pickle_write_fail_as_told(struct pickle_writer *w)
{
    if (w->failed != CZ_OK) return;
    pickle_write_fail(w, cz_last_status(), NULL);
    err_capture(&w->error);
}

/* Capacity for `want` elements; false after a failure, which is remembered. */
static bool reserve(struct pickle_writer *w, void **array, size_t *capacity, size_t want,
                    size_t elem_nbytes)
{
    if (want <= *capacity) return true;
    size_t more = want > 2 * *capacity ? want : 2 * *capacity;
    if (more < 64) more = 64;
    void *bigger = more < SIZE_MAX / 2 / elem_nbytes ? realloc(*array, more * elem_nbytes) : NULL;
    if (!bigger) {
        pickle_write_fail(w, CZ_NOMEM, "no memory");
        return false;
    }
    *array = bigger;
    *capacity = more;
    return true;
}

/* After a failure nothing more is written; callers continue, and pickle_writer_take() reports. */
void pickle_write(struct pickle_writer *w, const void *bytes, size_t nbytes)
{
    void *array = w->bytes;
    if (w->failed != CZ_OK || nbytes == 0) return;
    bool fits = reserve(w, &array, &w->capacity, w->nbytes + nbytes, 1);
    w->bytes = array;
    if (!fits) return;
    memcpy(w->bytes + w->nbytes, bytes, nbytes);
    w->nbytes += nbytes;
}

void pickle_write_op(struct pickle_writer *w, int op)
{
    unsigned char byte = (unsigned char)op;
    pickle_write(w, &byte, 1);
}

/* An opcode and its little-endian argument. */
void pickle_write_number(struct pickle_writer *w, int op, size_t width, uint64_t value)
{
    unsigned char bytes[9] = {(unsigned char)op};
    for (size_t i = 0; i < width; i++) bytes[1 + i] = (unsigned char)(value >> 8 * i);
    pickle_write(w, bytes, 1 + width);
}

/* ---- memo ------------------------------------------------------------------------------------ */

/* Texts are hashed by the bytes that were written, so no second copy of them is kept; entries store
 * offsets, since the buffer moves when it grows. */
static uint64_t hash_seen(const struct pickle_writer *w, const struct pickle_seen *seen)
{
    if (seen->node) return hash_bytes(&seen->node, sizeof seen->node);
    return hash_bytes(w->bytes + seen->off, seen->nbytes);
}

static bool is_same(const struct pickle_writer *w, const struct pickle_seen *a,
                    const struct pickle_seen *b)
{
    return a->node == b->node && a->nbytes == b->nbytes &&
           (a->nbytes == 0 || memcmp(w->bytes + a->off, w->bytes + b->off, a->nbytes) == 0);
}

/* At most half of the slots are used (table_grow), so the search ends. */
static uint32_t *find_slot(const struct pickle_writer *w, const struct pickle_table *t,
                           const struct pickle_seen *seen)
{
    size_t i = (size_t)hash_seen(w, seen) & (t->n_slots - 1);
    while (t->slots[i] != 0 && !is_same(w, &t->entries[t->slots[i] - 1], seen))
        i = (i + 1) & (t->n_slots - 1);
    return &t->slots[i];
}

/* The slots are built anew at each doubling: entries keep their numbers. */
static bool table_grow(struct pickle_writer *w, struct pickle_table *t)
{
    void *array = t->entries;
    bool fits = reserve(w, &array, &t->capacity, t->n + 1, sizeof *t->entries);
    t->entries = array;
    if (!fits || 2 * (t->n + 1) <= t->n_slots) return fits;
    size_t n_slots = t->n_slots ? 2 * t->n_slots : 64;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) {
        pickle_write_fail(w, CZ_NOMEM, "no memory");
        return false;
    }
    free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    for (size_t i = 0; i < t->n; i++) *find_slot(w, t, &t->entries[i]) = (uint32_t)(i + 1);
    return true;
}

static void table_free(struct pickle_table *t)
{
    free(t->entries);
    free(t->slots);
    *t = (struct pickle_table){0};
}

static const struct pickle_seen *table_find(struct pickle_writer *w, const struct pickle_table *t,
                                            const struct pickle_seen *seen)
{
    uint32_t slot = t->n_slots ? *find_slot(w, t, seen) : 0;
    return slot ? &t->entries[slot - 1] : NULL;
}

/* Short forms below 256, as Python's pickler chooses them. */
static void write_get(struct pickle_writer *w, uint32_t idx)
{
    bool is_short = idx < 256;
    pickle_write_number(w, is_short ? 'h' : 'j', is_short ? 1 : 4, idx);
}

/* Store the value on top, and remember it. Every memoised value takes the next index, whether it is
 * ever fetched or not: the indexes must be Python's. */
static void write_put(struct pickle_writer *w, struct pickle_table *t, struct pickle_seen seen)
{
    if (w->failed != CZ_OK || !table_grow(w, t)) return;
    seen.memo_idx = w->n_memo++;
    bool is_short = seen.memo_idx < 256;
    pickle_write_number(w, is_short ? 'q' : 'r', is_short ? 1 : 4, seen.memo_idx);
    uint32_t *slot = find_slot(w, t, &seen);
    t->entries[t->n++] = seen;
    *slot = (uint32_t)t->n;
}

/* What was written since `off`: if the same bytes were written before, they are replaced by a fetch
 * from the memo, as Python does for identical strings. */
static void memoise(struct pickle_writer *w, size_t off)
{
    if (w->failed != CZ_OK) return;
    struct pickle_seen seen = {.off = off, .nbytes = w->nbytes - off};
    const struct pickle_seen *before = table_find(w, &w->texts, &seen);
    if (!before) {
        write_put(w, &w->texts, seen);
        return;
    }
    w->nbytes = off;
    write_get(w, before->memo_idx);
}

/* By address: equal values at two addresses are two objects in Python, too. */
bool pickle_write_get_node(struct pickle_writer *w, const struct pickle_node *node)
{
    struct pickle_seen seen = {.node = node};
    const struct pickle_seen *before = table_find(w, &w->nodes, &seen);
    if (before) write_get(w, before->memo_idx);
    return before != NULL;
}

void pickle_write_put_node(struct pickle_writer *w, const struct pickle_node *node)
{
    write_put(w, &w->nodes, (struct pickle_seen){.node = node});
}

void pickle_write_forget_nodes(struct pickle_writer *w)
{
    table_free(&w->nodes);
}

/* ---- containers ------------------------------------------------------------------------------ */

static const int batch_end[] = {[PICKLE_OPEN_DICT] = 'u',
                                [PICKLE_OPEN_LIST] = 'e',
                                [PICKLE_OPEN_STATE] = 'u',
                                [PICKLE_OPEN_TUPLE] = 0,
                                [PICKLE_OPEN_CALL] = 0};

static bool is_pairs(enum pickle_open kind)
{
    return kind == PICKLE_OPEN_DICT || kind == PICKLE_OPEN_STATE;
}

/* Called before each value of a container: opens a batch, and closes the one before when it is
 * full. Batches of PICKLE_BATCH are Python's; a file with other batches would load alike but differ
 * byte by byte. */
void pickle_write_next(struct pickle_writer *w)
{
    if (w->n_levels == 0) {
        if (w->n_values++ > 0) pickle_write_fail(w, CZ_INVALID, "more than one value");
        return;
    }
    struct pickle_level *level = &w->levels[w->n_levels - 1];
    if (batch_end[level->kind] &&
        level->n % (is_pairs(level->kind) ? 2 * PICKLE_BATCH : PICKLE_BATCH) == 0) {
        if (level->n > 0) pickle_write_op(w, batch_end[level->kind]);
        pickle_write_op(w, '(');
    }
    level->n++;
}

void pickle_write_open(struct pickle_writer *w, enum pickle_open kind)
{
    void *array = w->levels;
    bool fits = reserve(w, &array, &w->levels_capacity, w->n_levels + 1, sizeof *w->levels);
    w->levels = array;
    if (fits) w->levels[w->n_levels++] = (struct pickle_level){.kind = kind};
}

/* The kind is compared, so that a begin without its end is found where it happens. */
void pickle_write_close(struct pickle_writer *w, enum pickle_open kind)
{
    if (w->n_levels == 0 || w->levels[w->n_levels - 1].kind != kind) {
        pickle_write_fail(w, CZ_INVALID, "an end without its begin");
        return;
    }
    size_t n = w->levels[--w->n_levels].n;
    if (is_pairs(kind) && n % 2 != 0) pickle_write_fail(w, CZ_INVALID, "a key without a value");
    if (batch_end[kind] && n > 0) pickle_write_op(w, batch_end[kind]);
}

void pickle_dict_begin(struct pickle_writer *w)
{
    pickle_write_next(w);
    pickle_write_op(w, '}');
    pickle_write_open(w, PICKLE_OPEN_DICT);
}

/* An OrderedDict is constructed empty and filled by the same opcodes as a dict. */
void pickle_ordered_dict_begin(struct pickle_writer *w)
{
    pickle_write_next(w);
    pickle_write_global(w, "collections", "OrderedDict");
    pickle_write(w, ")R", 2);
    pickle_write_open(w, PICKLE_OPEN_DICT);
}

void pickle_dict_end(struct pickle_writer *w)
{
    pickle_write_close(w, PICKLE_OPEN_DICT);
}

void pickle_list_begin(struct pickle_writer *w)
{
    pickle_write_next(w);
    pickle_write_op(w, ']');
    pickle_write_open(w, PICKLE_OPEN_LIST);
}

void pickle_list_end(struct pickle_writer *w)
{
    pickle_write_close(w, PICKLE_OPEN_LIST);
}

void pickle_tuple_begin(struct pickle_writer *w)
{
    pickle_write_next(w);
    pickle_write_op(w, '(');
    pickle_write_open(w, PICKLE_OPEN_TUPLE);
}

void pickle_tuple_end(struct pickle_writer *w)
{
    pickle_write_close(w, PICKLE_OPEN_TUPLE);
    pickle_write_op(w, 't');
}

/* The attributes of the value that was written last. */
void pickle_state_begin(struct pickle_writer *w)
{
    size_t n = w->n_levels > 0 ? w->levels[w->n_levels - 1].n : w->n_values;
    if (n == 0) pickle_write_fail(w, CZ_INVALID, "attributes without an object");
    pickle_write_op(w, '}');
    pickle_write_open(w, PICKLE_OPEN_STATE);
}

void pickle_state_end(struct pickle_writer *w)
{
    pickle_write_close(w, PICKLE_OPEN_STATE);
    pickle_write_op(w, 'b');
}

/* copyreg's spelling of cls.__new__(cls): EMPTY_TUPLE, NEWOBJ. Attributes follow by
 * pickle_state_begin(). */
void pickle_put_new(struct pickle_writer *w, const char *module, const char *name)
{
    pickle_write_next(w);
    pickle_write_global(w, module, name);
    pickle_write(w, ")\x81", 2);
}

void pickle_call_begin(struct pickle_writer *w, const char *module, const char *name)
{
    pickle_write_next(w);
    pickle_write_global(w, module, name);
    pickle_write_op(w, '(');
    pickle_write_open(w, PICKLE_OPEN_CALL);
}

void pickle_call_end(struct pickle_writer *w)
{
    pickle_write_close(w, PICKLE_OPEN_CALL);
    pickle_write(w, "tR", 2);
}

/* ---- values ---------------------------------------------------------------------------------- */

void pickle_put_none(struct pickle_writer *w)
{
    pickle_write_next(w);
    pickle_write_op(w, 'N');
}

void pickle_put_bool(struct pickle_writer *w, bool value)
{
    pickle_write_next(w);
    pickle_write_op(w, value ? 0x88 : 0x89);
}

/* The shortest form, as Python chooses it. Beyond 32 bits as LONG1, whose bytes are two's
 * complement without repeated sign bytes. */
void pickle_write_int(struct pickle_writer *w, int64_t value)
{
    if (value >= 0 && value <= UINT8_MAX) {
        pickle_write_number(w, 'K', 1, (uint64_t)value);
    } else if (value >= 0 && value <= UINT16_MAX) {
        pickle_write_number(w, 'M', 2, (uint64_t)value);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        pickle_write_number(w, 'J', 4, (uint64_t)value);
    } else {
        size_t width = 5; /* bytes of two's complement */
        while (width < 8 && value >> (8 * width - 1) != 0 && value >> (8 * width - 1) != -1)
            width++;
        pickle_write_number(w, 0x8a, 1, width);
        unsigned char bytes[8];
        for (size_t i = 0; i < width; i++) bytes[i] = (unsigned char)((uint64_t)value >> 8 * i);
        pickle_write(w, bytes, width);
    }
}

void pickle_put_int(struct pickle_writer *w, int64_t value)
{
    pickle_write_next(w);
    pickle_write_int(w, value);
}

/* Big-endian, the only such number of the format. */
void pickle_write_double(struct pickle_writer *w, double value)
{
    unsigned char bytes[9] = {'G'};
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (size_t i = 0; i < 8; i++) bytes[1 + i] = (unsigned char)(bits >> (56 - 8 * i));
    pickle_write(w, bytes, sizeof bytes);
}

void pickle_put_double(struct pickle_writer *w, double value)
{
    pickle_write_next(w);
    pickle_write_double(w, value);
}

/* Not validated here: strings that were read may hold lone surrogates, which Python accepts. */
void pickle_write_text(struct pickle_writer *w, const char *utf8, size_t n)
{
    size_t off = w->nbytes;
    if (n > UINT32_MAX) pickle_write_fail(w, CZ_INVALID, "a string of 4 GiB");
    pickle_write_number(w, 'X', 4, n);
    pickle_write(w, utf8, n);
    memoise(w, off);
}

void pickle_put_string(struct pickle_writer *w, const char *utf8)
{
    size_t n = strlen(utf8);
    if (!utf8_is_valid(utf8, n)) pickle_write_fail(w, CZ_INVALID, "a string is not UTF-8");
    pickle_write_next(w);
    pickle_write_text(w, utf8, n);
}

/* Newlines end the two names in the format, so they may not have any. */
void pickle_write_global(struct pickle_writer *w, const char *module, const char *name)
{
    size_t off = w->nbytes;
    if (!*module || !*name || strchr(module, '\n') || strchr(name, '\n'))
        pickle_write_fail(w, CZ_INVALID, "the name of a class is empty or has lines");
    pickle_write_op(w, 'c');
    pickle_write(w, module, strlen(module));
    pickle_write_op(w, '\n');
    pickle_write(w, name, strlen(name));
    pickle_write_op(w, '\n');
    memoise(w, off);
}

void pickle_put_global(struct pickle_writer *w, const char *module, const char *name)
{
    pickle_write_next(w);
    pickle_write_global(w, module, name);
}

/* A tuple of numbers; up to three have opcodes of their own. */
static void write_dims(struct pickle_writer *w, const int64_t *dims, int ndim)
{
    static const int closers[] = {')', 0x85, 0x86, 0x87};
    if (ndim > 3) pickle_write_op(w, '(');
    for (int i = 0; i < ndim; i++) pickle_write_int(w, dims[i]);
    pickle_write_op(w, ndim > 3 ? 't' : closers[ndim]);
}

/* torch.Size is a call with one tuple. */
void pickle_put_size(struct pickle_writer *w, const int64_t *shape, int ndim)
{
    pickle_write_next(w);
    pickle_write_global(w, "torch", "Size");
    write_dims(w, shape, ndim);
    pickle_write(w, "\x85R", 2);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct pickle_dtype *dtype_of(const struct pickle_tensor_desc *t)
{
    return t->torch_dtype ? t->torch_dtype : pickle_dtype_of(t->dtype);
}

/* _rebuild_tensor_v2's arguments: the storage's persistent id, offset, shape, strides,
 * requires_grad, hooks. Strides are those of a contiguous tensor; a shape that overflows them could
 * not be read back. */
static void write_view(struct pickle_writer *w, const struct pickle_tensor_desc *t)
{
    pickle_write_op(w, '(');
    char key[24];
    snprintf(key, sizeof key, "%zu", t->storage_idx);
    pickle_write_op(w, '(');
    pickle_write_text(w, "storage", 7);
    pickle_write_global(w, "torch", pickle_storage_of_dtype(dtype_of(t)));
    pickle_write_text(w, key, strlen(key));
    pickle_write_text(w, "cpu", 3);
    pickle_write_int(w, (int64_t)t->storage_numel);
    pickle_write(w, "tQ", 2);
    pickle_write_int(w, (int64_t)t->off);
    int64_t stride[PICKLE_NDIM_MAX], step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        stride[i] = step;
        if (t->shape[i] > 1 && __builtin_mul_overflow(step, t->shape[i], &step))
            pickle_write_fail(w, CZ_INVALID, "a tensor's shape overflows");
    }
    write_dims(w, t->shape, t->ndim);
    write_dims(w, stride, t->ndim);
    pickle_write_op(w, t->requires_grad ? 0x88 : 0x89);
    pickle_write_global(w, "collections", "OrderedDict"); /* hooks: none */
    pickle_write(w, ")Rt", 3);
}

/* ds_id is an attribute that DeepSpeed hangs on stage 3's tensors; torch then rebuilds them by
 * another function. Bytes of the storage are not written here: the persistent id names record
 * data/N of the zip, and N is the order of first use. */
void pickle_put_tensor(struct pickle_writer *w, const struct pickle_tensor_desc *t)
{
    if (!dtype_of(t) || !pickle_storage_of_dtype(dtype_of(t)) || t->ndim < 0 ||
        t->ndim > PICKLE_NDIM_MAX || t->storage_numel > INT64_MAX || t->off > INT64_MAX) {
        pickle_write_fail(w, CZ_INVALID, "a tensor's dtype, dimensions or size cannot be written");
        return;
    }
    pickle_write_next(w);
    pickle_write_tensor(w, t);
}

void pickle_write_tensor(struct pickle_writer *w, const struct pickle_tensor_desc *t)
{
    if (t->ds_id) { /* _rebuild_from_type_v2(function, type, its arguments, attributes) */
        pickle_write_global(w, "torch._tensor", "_rebuild_from_type_v2");
        pickle_write_op(w, '(');
    }
    pickle_write_global(w, "torch._utils", "_rebuild_tensor_v2");
    if (t->ds_id) pickle_write_global(w, "torch", "Tensor");
    write_view(w, t);
    if (t->ds_id) {
        pickle_write_op(w, '}');
        pickle_write_text(w, "ds_id", 5);
        pickle_write_text(w, t->ds_id, strlen(t->ds_id));
        pickle_write(w, "st", 2);
    }
    pickle_write_op(w, 'R');
}

/* ---- begin and end --------------------------------------------------------------------------- */

struct pickle_writer *pickle_writer_create(void)
{
    struct pickle_writer *w = calloc(1, sizeof *w);
    if (w) pickle_write(w, "\x80\x02", 2);
    return w;
}

void pickle_writer_destroy(struct pickle_writer *w)
{
    if (!w) return;
    free(w->bytes);
    free(w->levels);
    table_free(&w->texts);
    table_free(&w->nodes);
    free(w);
}

/* Once only: the second call would hand out freed bytes. */
cz_status pickle_writer_take(struct pickle_writer *w, unsigned char **bytes, size_t *nbytes)
{
    *bytes = NULL;
    *nbytes = 0;
    if (w->n_levels > 0) pickle_write_fail(w, CZ_INVALID, "a container is not closed");
    if (w->n_values == 0) pickle_write_fail(w, CZ_INVALID, "no value");
    pickle_write_op(w, '.');
    if (w->failed != CZ_OK && !w->why) return err_restore(&w->error);
    if (w->failed != CZ_OK) return err_set(w->failed, 0, "writing a pickle: %s", w->why);
    *bytes = w->bytes;
    *nbytes = w->nbytes;
    w->bytes = NULL;
    w->nbytes = w->capacity = 0;
    pickle_write_fail(w, CZ_INVALID, "its bytes were taken before");
    return CZ_OK;
}
