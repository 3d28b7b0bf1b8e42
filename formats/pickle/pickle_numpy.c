/* numpy's scalars. They are calls of numpy.core.multiarray.scalar with a dtype and its bytes; code
 * that computes a rate or a loss with numpy leaves them where a number is expected. */
#include "formats/pickle/pickle_impl.h"

static bool is_named(const struct pickle_node *node, const char *module, const char *name)
{
    return pickle_is(node, PICKLE_OBJECT) && strcmp(node->module, module) == 0 &&
           strcmp(node->name, name) == 0;
}

/* "f8" of numpy.dtype("f8", False, True), whose state is (3, "<", …): the order of bytes. */
static const char *dtype_of(const struct pickle_node *dtype, bool *is_big)
{
    if (!is_named(dtype, "numpy", "dtype") || dtype->args->n == 0) return NULL;
    const struct pickle_node *state = dtype->state;
    const char *order = NULL;
    if (pickle_is(state, PICKLE_TUPLE) && state->n > 1) order = pickle_to_string(state->items[1]);
    *is_big = order && strcmp(order, ">") == 0;
    return pickle_to_string(dtype->args->items[0]);
}

static uint64_t bits_of(const struct pickle_node *bytes, bool is_big)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes->n; i++)
        bits = bits << 8 | (unsigned char)bytes->text[is_big ? i : bytes->n - 1 - i];
    return bits;
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

bool pickle_numpy_scalar(const struct pickle_node *node, struct pickle_node *out)
{
    if (!is_named(node, "numpy._core.multiarray", "scalar") &&
        !is_named(node, "numpy.core.multiarray", "scalar")) /* numpy 2 and before */
        return false;
    if (node->args->n != 2 || node->args->items[1]->kind != PICKLE_BYTES) return false;
    const struct pickle_node *bytes = node->args->items[1];
    bool is_big;
    const char *type = dtype_of(node->args->items[0], &is_big);
    if (!type || strlen(type) != 2 || (size_t)(type[1] - '0') != bytes->n) return false;
    if (bytes->n != 1 && bytes->n != 2 && bytes->n != 4 && bytes->n != 8) return false;
    uint64_t bits = bits_of(bytes, is_big);
    *out = (struct pickle_node){.boolean = bits != 0};
    switch (type[0]) {
    case 'f': return set_float(bits, bytes->n, out);
    case 'i': return set_integer(bits, bytes->n, true, out);
    case 'u': return set_integer(bits, bytes->n, false, out);
    case 'b': out->kind = PICKLE_BOOL; return bytes->n == 1;
    default: return false;
    }
}
