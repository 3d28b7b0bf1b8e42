/* SentencePiece's tokenizer.model: what its messages say, and the models made of it.
 *
 * pipe_pieces.c          reading, the chain of steps
 * pipe_pieces_bpe.c      type bpe
 * pipe_pieces_unigram.c  types unigram, word and char */
#ifndef CZ_DATA_TOKENIZER_PIPE_PIPE_PIECES_IMPL_H
#define CZ_DATA_TOKENIZER_PIPE_PIPE_PIECES_IMPL_H

#include "data/tokenizer/pipe/pipe_impl.h"
#include "data/tokenizer/proto_impl.h"

enum { PIECES_UNIGRAM = 1, PIECES_BPE = 2, PIECES_WORD = 3, PIECES_CHAR = 4 };
enum piece_kind {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN = 2,
    PIECE_CONTROL = 3,
    PIECE_USER_DEFINED = 4,
    PIECE_UNUSED = 5,
    PIECE_BYTE = 6
};

struct piece {
    const char *text; /* valid UTF-8 without NUL, at least one byte */
    size_t n;
    float score; /* finite */
    int kind;
};

struct pieces_file {
    const char *path;
    struct piece *pieces;
    size_t n, cap;
    int64_t unk, bos, eos, pad;
    uint64_t model;
    bool as_suffix, byte_fallback;
    bool prefix, squeeze, escape;
    const char *map, *unk_surface;
    size_t n_map, n_unk_surface;
    struct proto_field trainer, normalizer;
};

/* p->model, with what it needs, behind the texts and steps; p->bpe.bytes and unk_id are there.
 * CZ_CORRUPT: two pieces of one text. CZ_UNSUPPORTED: a piece that is too long, or of a kind that
 * the type does not read. CZ_NOMEM. */
cz_status pieces_set_bpe(struct pipe *p, const struct pieces_file *f);
cz_status pieces_set_unigram(struct pipe *p, const struct pieces_file *f);
cz_status pieces_set_words(struct pipe *p, const struct pieces_file *f); /* word or char */

#endif
