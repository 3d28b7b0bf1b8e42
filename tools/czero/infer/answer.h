/* What czero generate and czero chat share: a text that arrives token by token, the tokens that end
 * it, and the template of a model's folder. */
#ifndef CZ_TOOLS_CZERO_INFER_ANSWER_H
#define CZ_TOOLS_CZERO_INFER_ANSWER_H

#include "data/chat/chat_encode.h"
#include "model/model.h"
#include "tools/czero/args.h"
#include <czero/data.h>

/* Tokens to text, up to a stop word. What may be the beginning of one waits in `held` until it is
 * known. Set decoder, stops, put and user first. */
struct text_stream {
    struct cz_tokenizer_decoder *decoder;
    struct arg_list stops;
    cz_status (*put)(void *user, const char *text, size_t nbytes);
    void *user;
    bool stopped; /* by a stop word */
    struct text_buf held;
};

/* A token may end within a character; the decoder keeps the rest until it is complete. */
cz_status text_stream_take(struct text_stream *s, int32_t token);
/* The end: what the decoder and the search for stop words still hold. Another text may follow. */
cz_status text_stream_end(struct text_stream *s);
void text_stream_free(struct text_stream *s); /* the held text */

/* "fp32", "bf16" or "fp16". */
enum cz_dtype answer_dtype(const char *name);

/* The encoder of a folder's chats: given, or its own template, which a folder whose tokenizer is
 * "bytes" may have, too. To be closed, also after an error. */
cz_status answer_open_template(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                               const char *model, const char *given);

/* Ids that end a text: the tokenizer's and those of generation_config.json, of the adapter's folder
 * (NULL: none), too; config.json, which often holds another tokenizer's, is asked when none names
 * one. With an encoder (NULL: no chat), what ends a turn: as an id, or as one more stop word. Bytes
 * end nowhere. */
cz_status answer_find_ends(const char *model, const char *adapter,
                           const struct cz_tokenizer *tokenizer, const struct chat_encoder *e,
                           struct model_ends *ends, struct arg_list *stops);

#endif
