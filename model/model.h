/* Models: a chain of layers and a source of weights, never the weights themselves.
 *
 * Life cycle: cz_model_from_hf() / cz_model_from_preset() / cz_model_create() → optional
 * cz_model_set_shape(), cz_model_freeze() → engine_initialize() takes it over (on failure the
 * caller keeps it) or cz_model_destroy(). The engine streams weights through model_read_weights()
 * into the buffers it planned, so nobody ever holds the model twice. Not thread-safe. */
#ifndef CZ_MODEL_MODEL_H
#define CZ_MODEL_MODEL_H

#include "model/layer.h"

CZ_EXTERN_C_BEGIN

struct cz_model; /* opaque */

/* One layer of a user's chain. hp is copied (hp_nbytes bytes; plain data, no pointers to free). */
struct layer_desc {
    const struct layer_class *cls;
    const void *hp;
    size_t hp_nbytes;
};

/* What labels stand for. */
enum cz_labels {
    CZ_LABELS_NEXT = 0, /* (B,T) the token after each position: language models */
    CZ_LABELS_SAME,     /* (B,T) the token at each position itself: masked language models */
    CZ_LABELS_CLASS     /* (B) the class of each row */
};

struct model_desc {
    const char *name;
    const struct layer_desc *layers;
    size_t n_layers;     /* the last one has flag LAYER_LOSS, no other has */
    int64_t vocab_size;  /* ids are checked against it; 0: not checked */
    int64_t t_max;       /* longest sequence the layers can take */
    int64_t hidden_size; /* for "auto" config values; 0: unknown */
    int64_t n_classes;   /* CZ_LABELS_CLASS: how many; 0 otherwise */
    int64_t n_types;     /* token types (segments) are checked against it; 0: not used */
    enum cz_labels labels;
};

/* A user's own chain; weights start from the layers' init rules. NULL on error. */
CZ_API struct cz_model *cz_model_create(const struct model_desc *desc);

#define MODEL_CLASSES_MAX (1 << 20) /* of a classification head */

/* What a model is for. */
enum cz_task {
    CZ_TASK_AUTO = 0,      /* what config.json's "architectures" name; a bare model's first head */
    CZ_TASK_CAUSAL_LM,     /* decoders: the next token */
    CZ_TASK_MASKED_LM,     /* encoders: the masked tokens */
    CZ_TASK_CLASSIFICATION /* encoders: one class for each row */
};

struct cz_model_options {
    size_t size; /* sizeof(struct cz_model_options) */
    enum cz_task task;
    /* Classification: the names of the classes (2 or more, UTF-8, no two alike), kept in
     * config.json (id2label, label2id). n_labels 0: the config's own. */
    const char *const *labels;
    size_t n_labels;
    /* Of the tokenizer; 0: not given. A preset takes this size. A folder has its own, which must
     * not be smaller. */
    int64_t vocab_size;
    /* Leave a folder's weight files alone, to look at what config.json says: nothing is logged, and
     * weights are those of the init rules. */
    bool config_only;
};

/* config.json and weights (model.safetensors or pytorch_model.bin, single or sharded) of a Hugging
 * Face folder of a family that docs/models.md lists. With no weight file in it, weights start from
 * the init rules. Weights of the trunk must be complete; a head that the files lack (another task,
 * other classes) starts from the init rules, which the log says. options NULL: all zero. NULL on
 * error (CZ_NOTFOUND, CZ_CORRUPT, CZ_UNSUPPORTED model_type, head or activation: the sentence lists
 * what is supported). */
CZ_API struct cz_model *cz_model_from_hf(const char *dir);
CZ_API struct cz_model *cz_model_from_hf_ex(const char *dir,
                                            const struct cz_model_options *options);

/* A ready-made size with random init: "gpt2", "bert-base", "llama-7b", … NULL when the name is
 * unknown (the sentence lists them). */
CZ_API struct cz_model *cz_model_from_preset(const char *name);

/* A folder if it holds config.json, else a preset. */
CZ_API struct cz_model *cz_model_open(const char *dir_or_preset);
CZ_API struct cz_model *cz_model_open_ex(const char *dir_or_preset,
                                         const struct cz_model_options *options);

/* Accepts NULL. */
CZ_API void cz_model_destroy(struct cz_model *m);

/* Bound the sequence length that buffers are planned for (1 … the model's own maximum; rotary
 * positions go on beyond cz_model_t_max() of a new model, which the log then warns of). */
CZ_API cz_status cz_model_set_shape(struct cz_model *m, int64_t t_max);

/* Take weights from another folder's files, under the rules of cz_model_from_hf(), or, with NULL,
 * all from the init rules. `seed` is theirs. Errors: as cz_model_from_hf(); the source is then
 * unchanged.
 */
CZ_API cz_status cz_model_init_from(struct cz_model *m, const char *dir, uint64_t seed);

/* The seed of the init rules alone, which also make what the files lack. 0 at first. */
CZ_API void cz_model_set_seed(struct cz_model *m, uint64_t seed);

/* True when weights come from files, false when from the init rules. */
CZ_API bool cz_model_has_weights(const struct cz_model *m);

/* Freeze every parameter whose name matches the POSIX extended regular expression (searched, not
 * anchored). n_frozen may be NULL. CZ_INVALID: bad expression, or nothing left to train. */
CZ_API cz_status cz_model_freeze(struct cz_model *m, const char *regex, size_t *n_frozen);

CZ_API const char *cz_model_name(const struct cz_model *m);
CZ_API int64_t cz_model_vocab_size(const struct cz_model *m);
CZ_API int64_t cz_model_hidden_size(const struct cz_model *m);
CZ_API int64_t cz_model_t_max(const struct cz_model *m); /* the bound in force */
CZ_API int64_t cz_model_n_classes(const struct cz_model *m);
CZ_API int64_t cz_model_n_types(const struct cz_model *m);
CZ_API enum cz_labels cz_model_labels(const struct cz_model *m);

/* The name of class k in 0 … n_classes − 1: config.json's id2label, or "LABEL_<k>". The model's;
 * NULL for any other k. */
CZ_API const char *cz_model_label_name(const struct cz_model *m, int64_t k);
CZ_API const struct param_table *model_params(const struct cz_model *m);

/* The chain, for the engine: classes, hyper-parameters and parameter indices in call order. */
struct model_layer {
    const struct layer_class *cls;
    const void *hp;
    const size_t *param_idx;
    size_t n_params;
};
CZ_API size_t model_n_layers(const struct cz_model *m);
CZ_API const struct model_layer *model_layer_at(const struct cz_model *m, size_t layer_idx);

/* Elements [elem_off, elem_off + numel) of a parameter, widened to fp32, from the files or the init
 * rule (which is a function of seed, parameter index and element, so any piece can be made alone).
 */
CZ_API cz_status model_read_weights(struct cz_model *m, size_t param_idx, size_t elem_off,
                                    size_t numel, float *dst);

/* Write a Hugging Face folder that transformers loads: config.json (the original with dtype set, or
 * one made for a preset) and model.safetensors in `dtype`. `fetch` supplies fp32 pieces of each
 * parameter. The folder is created; files appear under their names only when complete.
 * Errors: CZ_IO (with path; nothing partial is left), CZ_UNSUPPORTED for a user's own chain. */
typedef cz_status (*model_fetch)(void *user, size_t param_idx, size_t elem_off, size_t numel,
                                 float *dst);
CZ_API cz_status model_export_hf(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                                 model_fetch fetch, void *user);

/* Only its config.json, durably, into an existing folder. Errors: the same. */
CZ_API cz_status model_export_config(const struct cz_model *m, const char *dir,
                                     enum cz_dtype dtype);

CZ_EXTERN_C_END
#endif
