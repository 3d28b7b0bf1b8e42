/* Tokenizers: text to token ids and back.
 *
 * Life cycle: cz_tokenizer_open() → encode; cz_tokenizer_decoder_create() per generated text →
 * cz_tokenizer_decode() token by token → cz_tokenizer_decoder_end() → destroy →
 * cz_tokenizer_close(). A tokenizer is immutable: threads may share it. A decoder belongs to one
 * text.
 *
 * Kinds: "bytes"; WordPiece (BERT: vocab.txt, or tokenizer.json); byte-level BPE (GPT-2, Qwen2,
 * LLaMA 3: tokenizer.json, or vocab.json and merges.txt). Ids equal Hugging Face's tokenizers'. */
#ifndef CZ_DATA_TOKENIZER_TOKENIZER_H
#define CZ_DATA_TOKENIZER_TOKENIZER_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct cz_tokenizer;         /* opaque */
struct cz_tokenizer_decoder; /* opaque */

/* "bytes": a token is a byte, its id the byte's value (vocabulary 256); else a folder, or one of
 * the files named above. *out is released by cz_tokenizer_close(); NULL on error. Errors:
 * CZ_NOTFOUND (no such folder, or no tokenizer in it: the sentence lists the files that would do),
 * CZ_IO, CZ_CORRUPT and CZ_UNSUPPORTED (file, place, what is wrong), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_open(const char *name, struct cz_tokenizer **out);
CZ_API void cz_tokenizer_close(struct cz_tokenizer *tok); /* accepts NULL */

CZ_API const char *cz_tokenizer_name(const struct cz_tokenizer *tok);
CZ_API int64_t cz_tokenizer_vocab_size(const struct cz_tokenizer *tok);

/* Whether a folder holds a tokenizer, also one that cz_tokenizer_open() would refuse
 * (SentencePiece): whoever asks should hear that, and not go on without it. */
CZ_API bool cz_tokenizer_is_in(const char *dir);

/* Write the tokenizer's files (copies of those it was read from, with tokenizer_config.json and
 * special_tokens_map.json where they stand beside them) into an existing folder, each complete or
 * not at all; nothing for "bytes". The folder that they came from is fine. Errors: CZ_IO,
 * CZ_NOTFOUND (they are gone), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_export(const struct cz_tokenizer *tok, const char *dir);

/* Refuse a tokenizer with more ids than a model's vocabulary, which `model` names in the sentence
 * (CZ_INVALID). */
CZ_API cz_status cz_tokenizer_check_vocab(const struct cz_tokenizer *tok, int64_t vocab_size,
                                          const char *model);

/* The id of a special token, or -1 when the tokenizer has none. */
enum cz_special {
    CZ_SPECIAL_PAD = 0,
    CZ_SPECIAL_UNK,
    CZ_SPECIAL_CLS,
    CZ_SPECIAL_SEP,
    CZ_SPECIAL_MASK,
    CZ_SPECIAL_BOS,
    CZ_SPECIAL_EOS,
    CZ_SPECIAL_COUNT
};
CZ_API int64_t cz_tokenizer_special_id(const struct cz_tokenizer *tok, enum cz_special which);

/* The id that ends a text, or -1 when the vocabulary has none. */
CZ_API int64_t cz_tokenizer_end_id(const struct cz_tokenizer *tok);

/* One row as a model reads it: a text, or two, with the tokenizer's special tokens around them
 * ([CLS] a [SEP] b [SEP]), cut at the end to max_len ids. Of two texts the longer loses tokens
 * until they fit; where both lose and an odd number is left, the first keeps the odd one only if it
 * was the longer (the "longest_first" of Hugging Face's tokenizers). */
struct cz_tokenizer_input {
    const char *text;
    size_t nbytes;
    const char *pair; /* NULL: one text */
    size_t pair_nbytes;
};

/* ids and types (segments 0 and 1; may be NULL) hold max_len each; *n_ids ≤ max_len. *n_cut (may be
 * NULL): tokens of the texts that did not fit. Errors: CZ_INVALID (max_len leaves no room for the
 * special tokens; a byte no UTF-8 tokenizer can express is replaced, not refused), CZ_NOMEM. */
CZ_API cz_status cz_tokenizer_encode_input(const struct cz_tokenizer *tok,
                                           const struct cz_tokenizer_input *input, int64_t max_len,
                                           int32_t *ids, int32_t *types, int64_t *n_ids,
                                           size_t *n_cut);

/* The ids of a whole text, as a block to free(). Errors: CZ_NOMEM, CZ_INVALID (text that the
 * tokenizer cannot express; names the byte). */
CZ_API cz_status cz_tokenizer_encode(const struct cz_tokenizer *tok, const char *text,
                                     size_t nbytes, int32_t **ids, size_t *n_ids);

/* Decoding as it streams: bytes of a character that is not complete yet are held back, bytes that
 * are no UTF-8 become U+FFFD, one for each longest part that could have begun a character. */
CZ_API cz_status cz_tokenizer_decoder_create(const struct cz_tokenizer *tok,
                                             struct cz_tokenizer_decoder **out);
CZ_API void cz_tokenizer_decoder_destroy(struct cz_tokenizer_decoder *dec); /* accepts NULL */

/* Add one token. *text: the characters that are complete now, valid UTF-8, nbytes long (may be 0)
 * and terminated; the decoder's, until its next call. CZ_INVALID: no such id. */
CZ_API cz_status cz_tokenizer_decode(struct cz_tokenizer_decoder *dec, int64_t id,
                                     const char **text, size_t *nbytes);

/* The end of the text: what was held back, as U+FFFD. The decoder can start another text. */
CZ_API void cz_tokenizer_decoder_end(struct cz_tokenizer_decoder *dec, const char **text,
                                     size_t *nbytes);

CZ_EXTERN_C_END
#endif
