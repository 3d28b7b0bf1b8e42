/* Looking at a parsed pickle. */
#include "formats/pickle/pickle_impl.h"

#include <math.h>

const struct pickle_node *pickle_root(const struct pickle *p)
{
    return p->root;
}

const char *pickle_kind_name(enum pickle_kind kind)
{
    static const char *const names[] = {
        "None",  "bool", "int",        "int",  "float",  "string", "bytes", "list",
        "tuple", "set",  "torch.Size", "dict", "tensor", "dtype",  "class", "object",
    };
    _Static_assert(CZ_ARRAY_LEN(names) == PICKLE_OBJECT + 1, "a name for each kind");
    return (unsigned)kind < CZ_ARRAY_LEN(names) ? names[kind] : "?";
}

const struct pickle_node *pickle_attr(const struct pickle_node *object, const char *key)
{
    const struct pickle_node *state = object ? object->state : NULL;
    if (!pickle_is(state, PICKLE_TUPLE)) return pickle_get(state, key);
    for (size_t i = 0; i < state->n && i < 2; i++) { /* attributes, slots */
        const struct pickle_node *value = pickle_get(state->items[i], key);
        if (value) return value;
    }
    return NULL;
}

/* ---- values ------------------------------------------------------------------------------------
 */

/* A number itself; of an enum object such as ZeroStageEnum(2), its value; of a numpy scalar what it
 * holds, in *scalar. */
static const struct pickle_node *number_of(const struct pickle_node *node,
                                           struct pickle_node *scalar)
{
    if (!pickle_is(node, PICKLE_OBJECT) || !node->args) return node;
    if (node->args->n == 1) return node->args->items[0];
    return pickle_numpy_scalar(node, scalar) ? scalar : node;
}

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

const char *pickle_to_string(const struct pickle_node *node)
{
    if (!pickle_is(node, PICKLE_STRING) || memchr(node->text, 0, node->n)) return NULL;
    return node->text;
}
