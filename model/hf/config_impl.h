/* Reading a Hugging Face config.json: what every family needs. Sentences begin with the place in
 * the file ("DIR/config.json:7:3"). A key that is absent or null takes the fallback. */
#ifndef CZ_MODEL_HF_CONFIG_IMPL_H
#define CZ_MODEL_HF_CONFIG_IMPL_H

#include "formats/json/json.h"
#include "model/parts/class_head.h"
#include "ops/activation/activation.h"

#include <czero/model.h>

/* "PLACE: why", as `status`. */
cz_status config_refuse(const struct json_node *node, cz_status status, const char *why);

/* The member under either of its names (other may be NULL); NULL when absent or null. */
const struct json_node *config_either(const struct json_node *config, const char *key,
                                      const char *other);

/* An integer in 1 … max. */
cz_status config_size(const struct json_node *config, const char *key, const char *other,
                      int64_t fallback, int64_t max, int64_t *out);

/* A number in [min, max). */
cz_status config_number(const struct json_node *config, const char *key, double fallback,
                        double min, double max, double *out);

/* An activation by Hugging Face's name; CZ_UNSUPPORTED lists the known ones. */
cz_status config_activation(const struct json_node *config, const char *key, const char *fallback,
                            enum activation *out);

/* CZ_UNSUPPORTED when `key` is true. */
cz_status config_refuse_true(const struct json_node *config, const char *key);

/* What would make it another model in any family: quantized weights, pruned heads, encoder-decoder,
 * cross-attention. */
cz_status config_refuse_variants(const struct json_node *config);

/* n_heads, given under either key, must divide `width`. */
cz_status config_check_heads(const struct json_node *config, const char *key, const char *other,
                             int64_t n_heads, int64_t width);

/* How many classes the config's classification head tells apart: id2label's, else num_labels, else
 * 2; 0 for a task without classes. *loss, for rows: problem_type's, else squared error for one
 * label and cross-entropy for more, as transformers has it. Errors: CZ_INVALID, CZ_UNSUPPORTED
 * (another problem_type). */
cz_status config_n_classes(const struct json_node *config, enum cz_task task, int64_t *out,
                           enum head_loss *loss);

/* The dropout in front of a decoder's classifier of tokens, as transformers finds it. */
cz_status config_token_dropout(const struct json_node *config, double *out);

/* Add the keys of a config.json of `model_type` that no reader asked for to `unread`, but for those
 * that are known to mean nothing here: config_unread.c. */
struct json_watch;
struct unread;
void config_collect_unread(const struct json_watch *watch, const char *model_type,
                           struct unread *unread);

#endif
