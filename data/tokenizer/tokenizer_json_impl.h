/* What the files of every kind of tokenizer have in common: added tokens, the special tokens around
 * a text, and the names of special tokens. */
#ifndef CZ_DATA_TOKENIZER_TOKENIZER_JSON_IMPL_H
#define CZ_DATA_TOKENIZER_TOKENIZER_JSON_IMPL_H

#include "data/tokenizer/added_tokens_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/json/json.h"

/* The id of a token by its content, −1: there is none. */
typedef int64_t tokenizer_lookup(const void *user, const char *content);

/* A member of added_tokens (tokenizer.json), or of added_tokens_decoder (tokenizer_config.json):
 * content and flags; *id is the member "id", −1 when there is none. *content is the document's. */
cz_status tokenizer_json_added(const struct json_node *node, struct added_token *token, int64_t *id,
                               const char **content);

/* model.type; files older than that member show their kind in others. */
cz_status tokenizer_json_model_type(const struct json_node *root, const char **type);

/* post_processor → tok->one and tok->two. Known: null, ByteLevel, TemplateProcessing,
 * BertProcessing, RobertaProcessing, and Sequence of these. CZ_UNSUPPORTED: another, or more than
 * TOKENIZER_FRAME_MAX tokens. CZ_CORRUPT: a token that is not in the vocabulary. */
cz_status tokenizer_json_post(const struct json_node *root, tokenizer_lookup *find,
                              const void *user, struct cz_tokenizer *tok);

/* tok->special from special_tokens_map.json and tokenizer_config.json in dir, the second winning;
 * files that are missing and contents outside the vocabulary are passed over. CZ_CORRUPT, CZ_IO. */
cz_status tokenizer_read_specials(const char *dir, tokenizer_lookup *find, const void *user,
                                  struct cz_tokenizer *tok);

/* Name the members of tokenizer_config.json and special_tokens_map.json that no kind of tokenizer
 * knows. CZ_UNSUPPORTED: split_special_tokens; CZ_INVALID: where the process is strict. */
cz_status tokenizer_check_companions(const char *dir);

/* Beside a tokenizer.json with this root: name tokens and flags that tokenizer_config.json and
 * added_tokens.json have otherwise. Behind tok->special and the frames. Errors: as above,
 * CZ_CORRUPT. */
cz_status tokenizer_json_config(const char *dir, const struct json_node *root,
                                tokenizer_lookup *find, const void *user,
                                const struct cz_tokenizer *tok);

/* The content of a special token as files write it: a string, or an object with "content"; NULL
 * for anything else. */
const char *tokenizer_json_content(const struct json_node *node);

/* "pad_token", … */
const char *tokenizer_special_name(enum cz_special which);

#endif
