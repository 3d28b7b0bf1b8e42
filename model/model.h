/* Models: a chain of layers and a source of weights, never the weights themselves.
 *
 * Life cycle: model_from_hf() / model_from_preset() / model_create() → optional model_set_shape(),
 * model_freeze() → engine_initialize() takes it over (on failure the caller keeps it) or
 * model_destroy(). The engine streams weights through model_read_weights() into the buffers it
 * planned, so nobody ever holds the model twice. Not thread-safe. */
#ifndef CZ_MODEL_MODEL_H
#define CZ_MODEL_MODEL_H

#include "model/layer.h"

CZ_EXTERN_C_BEGIN

struct model; /* opaque */

/* One layer of a user's chain. hp is copied (hp_nbytes bytes; plain data, no pointers to free). */
struct layer_desc {
    const struct layer_class *cls;
    const void *hp;
    size_t hp_nbytes;
};

struct model_desc {
    const char *name;
    const struct layer_desc *layers;
    size_t n_layers;     /* the last one has flag LAYER_LOSS, no other has */
    int64_t vocab_size;  /* ids are checked against it; 0: not checked */
    int64_t t_max;       /* longest sequence the layers can take */
    int64_t hidden_size; /* for "auto" config values; 0: unknown */
    int64_t n_classes;   /* > 0: labels are (B) classes; 0: labels are (B,T) tokens */
};

/* A user's own chain; weights start from the layers' init rules. NULL on error. */
CZ_API struct model *model_create(const struct model_desc *desc);

/* config.json (+ model.safetensors, single or sharded) of a Hugging Face folder: GPT-2. With no
 * weight file in it, weights start from the init rules. NULL on error (CZ_NOTFOUND, CZ_CORRUPT,
 * CZ_UNSUPPORTED model_type or activation: the sentence lists what is supported). */
CZ_API struct model *model_from_hf(const char *dir);

/* "gpt2-tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-1.3b", "gpt2-7b",
 * "gpt2-13b", "gpt2-70b": random init. NULL when the name is unknown (the sentence lists them). */
CZ_API struct model *model_from_preset(const char *name);

/* A folder if it holds config.json, else a preset. */
CZ_API struct model *model_open(const char *dir_or_preset);

/* Accepts NULL. */
CZ_API void model_destroy(struct model *m);

/* Bound the sequence length that buffers are planned for (1 … the model's own maximum). */
CZ_API cz_status model_set_shape(struct model *m, int64_t t_max);

/* Take weights from another folder's safetensors (CZ_NOTFOUND names a missing tensor), or, with
 * NULL, from the init rules with `seed`. */
CZ_API cz_status model_init_from(struct model *m, const char *dir, uint64_t seed);

/* True when weights come from files, false when from the init rules. */
CZ_API bool model_has_weights(const struct model *m);

/* Freeze every parameter whose name matches the POSIX extended regular expression (searched, not
 * anchored). n_frozen may be NULL. CZ_INVALID: bad expression, or nothing left to train. */
CZ_API cz_status model_freeze(struct model *m, const char *regex, size_t *n_frozen);

CZ_API const char *model_name(const struct model *m);
CZ_API int64_t model_vocab_size(const struct model *m);
CZ_API int64_t model_hidden_size(const struct model *m);
CZ_API int64_t model_t_max(const struct model *m); /* the bound in force */
CZ_API int64_t model_n_classes(const struct model *m);
CZ_API const struct param_table *model_params(const struct model *m);

/* The chain, for the engine: classes, hyper-parameters and parameter indices in call order. */
struct model_layer {
    const struct layer_class *cls;
    const void *hp;
    const size_t *param_idx;
    size_t n_params;
};
CZ_API size_t model_n_layers(const struct model *m);
CZ_API const struct model_layer *model_layer_at(const struct model *m, size_t layer_idx);

/* Elements [elem_off, elem_off + numel) of a parameter, widened to fp32, from the files or the init
 * rule (which is a function of seed, parameter index and element, so any piece can be made alone).
 */
CZ_API cz_status model_read_weights(struct model *m, size_t param_idx, size_t elem_off,
                                    size_t numel, float *dst);

/* Write a Hugging Face folder that transformers loads: config.json (the original with dtype set, or
 * one made for a preset) and model.safetensors in `dtype`. `fetch` supplies fp32 pieces of each
 * parameter. The folder is created; files appear under their names only when complete.
 * Errors: CZ_IO (with path; nothing partial is left), CZ_UNSUPPORTED for a user's own chain. */
typedef cz_status (*model_fetch)(void *user, size_t param_idx, size_t elem_off, size_t numel,
                                 float *dst);
CZ_API cz_status model_export_hf(const struct model *m, const char *dir, enum dtype dtype,
                                 model_fetch fetch, void *user);

/* Only its config.json, durably, into an existing folder. Errors: the same. */
CZ_API cz_status model_export_config(const struct model *m, const char *dir, enum dtype dtype);

CZ_EXTERN_C_END
#endif
