/* Messages of protobuf, field by field, as SentencePiece's tokenizer.model holds them. Nothing is
 * copied, and no length is believed before it was compared with what is left. */
#ifndef CZ_DATA_TOKENIZER_PROTO_IMPL_H
#define CZ_DATA_TOKENIZER_PROTO_IMPL_H

#include "base/compiler.h"

struct proto_field {
    uint64_t number;
    int type; /* 0: a number, 1: 8 bytes, 2: bytes with a length, 5: 4 bytes */
    uint64_t value;
    const unsigned char *bytes; /* types 1, 2 and 5 */
    size_t nbytes;
};

/* The field at *at, which moves behind it; false: there is no whole one. */
bool proto_next(const unsigned char **at, const unsigned char *end, struct proto_field *out);

/* Of 4 bytes, the lowest first. */
float proto_float(const struct proto_field *field);

#endif
