/* What czero generate and czero chat share: how tokens are chosen, a text that arrives token by
 * token, and the tokens that end it. */
#ifndef CZ_TOOLS_CZERO_INFER_ANSWER_H
#define CZ_TOOLS_CZERO_INFER_ANSWER_H

#include "data/chat/chat_encode.h"
#include "model/model.h"
#include "tools/czero/args.h"
#include <czero/data.h>
#include <czero/infer.h>

/* Turns tokens into text, up to a stop word. Text that may begin a stop word waits in `held`. Set
 * decoder, stops, put and user first. */
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
/* Ends the text: puts what the decoder and `held` still have. Another text may follow. */
cz_status text_stream_end(struct text_stream *s);
void text_stream_free(struct text_stream *s); /* the held text */

/* How the next token is chosen, and how many at most. */
struct answer_sampling {
    double temperature, top_p, penalty; /* NAN: not given */
    int64_t top_k, max_new_tokens;      /* -1: not given */
    int64_t seed;
};

#define ANSWER_SAMPLING_USUAL                                                                      \
    {                                                                                              \
        .temperature = NAN, .top_p = NAN, .penalty = NAN, .top_k = -1, .max_new_tokens = -1        \
    }

/* The options' rows in a table; `place` is the offset of the struct. */
#define ANSWER_SAMPLING_OPTIONS(place)                                                             \
    {"--temperature",                                                                              \
     ARG_DOUBLE,                                                                                   \
     (place) + offsetof(struct answer_sampling, temperature),                                      \
     "T",                                                                                          \
     "0: always the most likely token; 1: the model's distribution (default: the folder's, else "  \
     "0)",                                                                                         \
     0,                                                                                            \
     false},                                                                                       \
        {"--top-k",                                                                                \
         ARG_INT,                                                                                  \
         (place) + offsetof(struct answer_sampling, top_k),                                        \
         "K",                                                                                      \
         "sample from the K most likely tokens; 0: from all",                                      \
         0,                                                                                        \
         false},                                                                                   \
        {"--top-p",                                                                                \
         ARG_DOUBLE,                                                                               \
         (place) + offsetof(struct answer_sampling, top_p),                                        \
         "P",                                                                                      \
         "sample from the most likely tokens with probability P together; 1: from all",            \
         0,                                                                                        \
         false},                                                                                   \
        {"--repetition-penalty",                                                                   \
         ARG_DOUBLE,                                                                               \
         (place) + offsetof(struct answer_sampling, penalty),                                      \
         "R",                                                                                      \
         "make tokens that the text holds already less likely; 1: do not",                         \
         0,                                                                                        \
         false},                                                                                   \
    {                                                                                              \
        "--seed", ARG_INT, (place) + offsetof(struct answer_sampling, seed), "S",                  \
            "seed for sampling (default: 0)", 0, false                                             \
    }

/* What is wrong with a given value; NULL: nothing. */
const char *answer_check_sampling(const struct answer_sampling *s);

/* Fill in what is not given: by generation_config.json of the model's folder and of the adapter's
 * (NULL: none), else the usual values. Settings there that czero does not have are named. Errors:
 * CZ_CORRUPT (a value's type or range), CZ_INVALID (strict, and settings are not used). */
cz_status answer_take_defaults(const char *model, const char *adapter, int64_t usual_tokens,
                               struct answer_sampling *s);

/* The options of a run that samples so, up to these ends. */
struct cz_generate_options answer_options(const struct answer_sampling *s,
                                          const struct model_ends *ends,
                                          const struct cz_tokenizer *tokenizer);

/* Finds the ids that end a text: the tokenizer's, and those in generation_config.json of the
 * model's and the adapter's folder (NULL: no adapter). config.json often has the ids of another
 * tokenizer, and is read only if these name none. An encoder (NULL: no chat) adds the end of a
 * turn, as an id or as one more stop word. The bytes tokenizer has no end. */
cz_status answer_find_ends(const char *model, const char *adapter,
                           const struct cz_tokenizer *tokenizer, const struct chat_encoder *e,
                           struct model_ends *ends, struct arg_list *stops);

#endif
