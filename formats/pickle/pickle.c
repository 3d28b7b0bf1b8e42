/* Looking at a parsed pickle: attributes and values. A value may be wrapped (an enum, a numpy
 * scalar) where a plain number is expected, and the callers should not have to care. */
#include "formats/pickle/pickle_impl.h"

#include <math.h>

/* ---- numpy's scalars ------------------------------------------------------------------------- */

static bool is_named(const struct pickle_node *node, const char *module, const char *name)
{
    return pickle_is(node, PICKLE_OBJECT) && strcmp(node->more->module, module) == 0 &&
           strcmp(node->more->name, name) == 0;
}

/* "f8" of numpy.dtype("f8", False, True), whose state is (3, "<", …): the byte order is in the
 * state. */
static const char *dtype_of(const struct pickle_node *dtype, bool *is_big)
{
    if (!is_named(dtype, "numpy", "dtype") || dtype->more->args->n == 0) return NULL;
    const struct pickle_node *state = dtype->more->state;
    const char *order = NULL;
    if (pickle_is(state, PICKLE_TUPLE) && state->n > 1) order = pickle_to_string(state->items[1]);
    *is_big = order && strcmp(order, ">") == 0;
    return pickle_to_string(dtype->more->args->items[0]);
}

static bool set_float(uint64_t bits, size_t nbytes, struct pickle_node *out)
{
    uint32_t low = (uint32_t)bits;
    float single;
    out->kind = PICKLE_FLOAT;
    memcpy(&single, &low, sizeof single);
    if (nbytes == 8)
        memcpy(&out->real, &bits, sizeof bits);
    else
        out->real = nbytes == 4 ? single : f16_to_f32((uint16_t)bits);
    return nbytes >= 2;
}

/* The upper half of uint64 becomes a float. */
static bool set_integer(uint64_t bits, size_t nbytes, bool has_sign, struct pickle_node *out)
{
    unsigned unused = 64 - 8 * (unsigned)nbytes;
    if (has_sign) bits = (uint64_t)((int64_t)(bits << unused) >> unused);
    out->kind = PICKLE_INT;
    out->integer = (int64_t)bits;
    if (has_sign || bits <= INT64_MAX) return true;
    out->kind = PICKLE_FLOAT; /* the upper half of uint64 */
    out->real = (double)bits;
    return true;
}

/* The value of an OBJECT that is a numpy scalar of up to 64 bits, as a BOOL, INT or FLOAT. */
static bool pickle_numpy_scalar(const struct pickle_node *node, struct pickle_node *out)
{
    if (!is_named(node, "numpy._core.multiarray", "scalar") &&
        !is_named(node, "numpy.core.multiarray", "scalar")) /* numpy 2 and before */
        return false;
    if (node->more->args->n != 2 || node->more->args->items[1]->kind != PICKLE_BYTES) return false;
    const struct pickle_node *bytes = node->more->args->items[1];
    bool is_big;
    const char *type = dtype_of(node->more->args->items[0], &is_big);
    if (!type || strlen(type) != 2 || (size_t)(type[1] - '0') != bytes->n) return false;
    if (bytes->n != 1 && bytes->n != 2 && bytes->n != 4 && bytes->n != 8) return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes->n; i++)
        bits = bits << 8 | (unsigned char)bytes->text[is_big ? i : bytes->n - 1 - i];
    *out = (struct pickle_node){.boolean = bits != 0, .more = &pickle_nothing};
    switch (type[0]) {
    case 'f': return set_float(bits, bytes->n, out);
    case 'i': return set_integer(bits, bytes->n, true, out);
    case 'u': return set_integer(bits, bytes->n, false, out);
    case 'b': out->kind = PICKLE_BOOL; return bytes->n == 1;
    default: return false;
    }
}

/* ---- looking --------------------------------------------------------------------------------- */

const struct pickle_node *pickle_root(const struct pickle *p)
{
    return p->root;
}

const struct pickle_node *pickle_attr(const struct pickle_node *object, const char *key)
{
    const struct pickle_node *state = object ? object->more->state : NULL;
    if (!pickle_is(state, PICKLE_TUPLE)) return pickle_get(state, key);
    for (size_t i = 0; i < state->n && i < 2; i++) { /* attributes, slots */
        const struct pickle_node *value = pickle_get(state->items[i], key);
        if (value) return value;
    }
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The number itself; of an enum object such as ZeroStageEnum(2) its value; of a numpy scalar what
 * it holds, in *scalar. */
static const struct pickle_node *number_of(const struct pickle_node *node,
                                           struct pickle_node *scalar)
{
    if (!pickle_is(node, PICKLE_OBJECT) || !node->more->args) return node;
    if (node->more->args->n == 1) return node->more->args->items[0];
    return pickle_numpy_scalar(node, scalar) ? scalar : node;
}

/* A float counts if it is whole: some steps are saved as floats. */
bool pickle_to_int(const struct pickle_node *node, int64_t *out)
{
    struct pickle_node scalar;
    node = number_of(node, &scalar);
    if (!node) return false;
    switch (node->kind) {
    case PICKLE_BOOL: *out = node->boolean; return true;
    case PICKLE_INT: *out = node->integer; return true;
    case PICKLE_FLOAT:
        if (!(node->real >= -0x1p63 && node->real < 0x1p63) || trunc(node->real) != node->real)
            return false;
        *out = (int64_t)node->real;
        return true;
    default: return false;
    }
}

/* Two's complement of any length. Bytes of a negative number count as what they lack of 255. */
static double long_to_double(const struct pickle_node *node)
{
    const unsigned char *bytes = (const unsigned char *)node->text;
    bool is_negative = bytes[node->n - 1] >= 0x80;
    double sum = 0;
    for (size_t i = node->n; i-- > 0;) sum = sum * 256 + (is_negative ? 255 - bytes[i] : bytes[i]);
    return is_negative ? -sum - 1 : sum;
}

bool pickle_to_double(const struct pickle_node *node, double *out)
{
    struct pickle_node scalar;
    node = number_of(node, &scalar);
    if (!node) return false;
    switch (node->kind) {
    case PICKLE_BOOL: *out = node->boolean; return true;
    case PICKLE_INT: *out = (double)node->integer; return true;
    case PICKLE_LONG: *out = long_to_double(node); return true;
    case PICKLE_FLOAT: *out = node->real; return true;
    default: return false;
    }
}

bool pickle_to_bool(const struct pickle_node *node, bool *out)
{
    int64_t value;
    if (!pickle_to_int(node, &value) || (value != 0 && value != 1)) return false;
    *out = value == 1;
    return true;
}

/* A string with a NUL is refused: as a C string it would be another name. */
const char *pickle_to_string(const struct pickle_node *node)
{
    if (!pickle_is(node, PICKLE_STRING) || (node->own_marks & PICKLE_HAS_NUL)) return NULL;
    return node->text;
}
