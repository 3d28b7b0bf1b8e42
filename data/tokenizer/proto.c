/* Messages of protobuf: a key (number and type) and a value, again and again. */
#include "data/tokenizer/proto_impl.h"

#include <string.h>

/* Seven bits per byte, the lowest first. */
static bool take_varint(const unsigned char **at, const unsigned char *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const unsigned char c = *(*at)++;
        *out |= (uint64_t)(c & 0x7F) << shift;
        if (c < 0x80) return true;
    }
    return false;
}

bool proto_next(const unsigned char **at, const unsigned char *end, struct proto_field *out)
{
    uint64_t key, n = 0;
    if (!take_varint(at, end, &key)) return false;
    memset(out, 0, sizeof *out);
    out->number = key >> 3;
    out->type = (int)(key & 7);
    if (out->type == 0) return take_varint(at, end, &out->value);
    if (out->type == 1) n = 8;
    if (out->type == 5) n = 4;
    if (out->type == 2 && !take_varint(at, end, &n)) return false;
    if (out->type == 3 || out->type == 4 || out->type > 5 || n > (size_t)(end - *at)) return false;
    out->bytes = *at;
    out->nbytes = (size_t)n;
    *at += n;
    return true;
}

float proto_float(const struct proto_field *field)
{
    const unsigned char *b = field->bytes;
    const uint32_t bits = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
