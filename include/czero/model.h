/* Models: a chain of layers and a source of weights, never the weights themselves.
 *
 *   cz_model_from_hf / cz_model_from_preset / cz_model_create (czero/layer.h)
 *     → cz_model_set_shape, cz_model_freeze → engine_initialize takes the model over
 *
 * The engine reads weights piece by piece into the buffers it planned, so a model is never in
 * memory twice. A model that no engine took over is released by cz_model_destroy(). Not
 * thread-safe. */
#ifndef CZERO_MODEL_H
#define CZERO_MODEL_H

#include <czero/batch.h>

CZ_EXTERN_C_BEGIN

struct cz_model; /* opaque */

#define CZ_CLASSES_MAX (1 << 20) /* of a classification head */

/* What a model is for. */
enum cz_task {
    CZ_TASK_AUTO = 0,  /* what config.json's "architectures" name; else the family's first head */
    CZ_TASK_CAUSAL_LM, /* predict the next token */
    CZ_TASK_MASKED_LM, /* predict masked tokens: encoders */
    CZ_TASK_CLASSIFICATION,      /* one class for each row */
    CZ_TASK_REPLACED_TOKENS,     /* which tokens were replaced: ELECTRA's discriminator */
    CZ_TASK_TOKEN_CLASSIFICATION /* one class for each token: named entities */
};

/* What labels stand for. */
enum cz_labels {
    CZ_LABELS_NEXT = 0, /* (B,T) the token after each position: language models */
    CZ_LABELS_SAME,     /* (B,T) the token at each position itself: masked language models */
    CZ_LABELS_CLASS,    /* (B) the class of each row */
    CZ_LABELS_REPLACED, /* (B,T) 1 where the token was replaced, 0 where not; CZ_IGNORE_LABEL where
                           padding is. Logits are (B,T) */
    CZ_LABELS_TOKEN_CLASS, /* (B,T) the class of each token, CZ_IGNORE_LABEL where it has none.
                             Logits are (B,T,n_classes) */
    CZ_LABELS_VALUES,      /* targets (B,n_classes): numbers, as which logits are to be read */
    CZ_LABELS_MULTI        /* targets (B,n_classes): 1 of the classes that a row has, 0 of others */
};

struct cz_model_options {
    size_t size; /* sizeof(struct cz_model_options) */
    enum cz_task task;
    /* Classification of rows or tokens: the names of the classes (2 or more, UTF-8, all different),
     * stored in config.json (id2label, label2id). n_labels 0: the config's own. */
    const char *const *labels;
    size_t n_labels;
    /* The tokenizer's vocabulary; 0: not given. A preset takes this size. A folder has its own,
     * which must not be smaller. */
    int64_t vocab_size;
    /* Read config.json but no weights: these then follow the init rules, and nothing is logged. Of
     * a model with a tied head, weight files that are there are still asked whether they hold a
     * head of its own, as they decide about the model's parameters. */
    bool config_only;
    /* The token that fills up rows (cz_tokenizer_padding_id()): a classifier that reads the last
     * token of a row, as decoders do, names it in config.json where that names none. */
    bool has_padding_id;
    int64_t padding_id;
    /* Classification of rows: what is learnt, stored as problem_type. CZ_PROBLEM_REGRESSION without
     * labels has one value. CZ_PROBLEM_AUTO: one class with labels, the config's own without. */
    enum cz_problem problem;
    /* With config_only: config.json decides about a tied head, whatever the weight files hold. */
    bool tied_by_config;
};

/* config.json and weights (model.safetensors or pytorch_model.bin, single or sharded) of a Hugging
 * Face folder. Without any weight file, weights follow the init rules. Weights of the trunk must be
 * complete; a head that the files lack (another task, other classes) starts from the init rules,
 * which is logged when it is first read, unless an adapter brought it before. A head that
 * config.json ties to the embedding is untied where the files hold other values for it, with a
 * warning. options NULL: defaults. NULL on error: CZ_NOTFOUND, CZ_CORRUPT, CZ_UNSUPPORTED
 * (model_type, head or activation; the sentence lists what is supported). */
CZ_API struct cz_model *cz_model_from_hf(const char *dir);
CZ_API struct cz_model *cz_model_from_hf_ex(const char *dir,
                                            const struct cz_model_options *options);

/* A model of a known size with random weights: "gpt2", "bert-base", "llama-7b", … NULL when the
 * name is unknown (the sentence lists them). */
CZ_API struct cz_model *cz_model_from_preset(const char *name);

/* A folder if it holds config.json, else a preset. */
CZ_API struct cz_model *cz_model_open(const char *dir_or_preset);
CZ_API struct cz_model *cz_model_open_ex(const char *dir_or_preset,
                                         const struct cz_model_options *options);

CZ_API void cz_model_destroy(struct cz_model *m); /* accepts NULL */

/* Limit the sequence length that buffers are planned for: 1 … the model's own maximum. Rotary
 * positions extend beyond cz_model_t_max() of a new model, with a warning. */
CZ_API cz_status cz_model_set_shape(struct cz_model *m, int64_t t_max);

/* Take weights from another folder's files, under the rules of cz_model_from_hf(), or, with NULL,
 * all from the init rules under `seed`. Errors: as cz_model_from_hf(); the source is then
 * unchanged. */
CZ_API cz_status cz_model_init_from(struct cz_model *m, const char *dir, uint64_t seed);

/* The seed of the init rules alone, which also make what the files lack. 0 at first. */
CZ_API void cz_model_set_seed(struct cz_model *m, uint64_t seed);

/* True when weights come from files, false when from the init rules. */
CZ_API bool cz_model_has_weights(const struct cz_model *m);

/* Freeze every parameter whose name contains a match of the regular expression. The dialect is what
 * Python's re and POSIX's extended expressions share: sets, \d \w \s, groups, |, * + ? {m,n},
 * ^ $ \b. n_frozen may be NULL. CZ_INVALID: bad expression, no name matches, or no parameter left
 * to train.
 * CZ_UNSUPPORTED: look-ahead, references to groups, flags. */
CZ_API cz_status cz_model_freeze(struct cz_model *m, const char *regex, size_t *n_frozen);

/* ---- adapters (LoRA, arXiv 2106.09685): docs/lora.md ---------------------------------------- */

/* What a new adapter is. Zero means the default, as everywhere. */
struct cz_lora_options {
    size_t size;  /* sizeof(struct cz_lora_options) */
    int64_t rank; /* of each branch; 0: 8 */
    double alpha; /* a branch counts alpha/rank times; 0: rank */
    /* The linear maps that get a branch: NULL or "all-linear"; names separated by commas, each the
     * end of a module's name ("q_proj,v_proj"); or a regular expression (as above) that whole
     * module names match. A text with a character that no name contains is an expression. */
    const char *targets;
    const char *layers;          /* only in these blocks: "0-3,7"; NULL: in all */
    const char *modules_to_save; /* modules that are trained whole beside it, as names; NULL: none
                                    but a classifier's head, which is always */
    double dropout;              /* of a branch's input, in [0,1) */
    bool rslora;                 /* alpha/sqrt(rank) instead (arXiv 2312.03732) */
    bool dora;                   /* and a trained length of each row of a map's weight (DoRA, arXiv
                                    2402.09353); on the CPU */
};

/* Put a low-rank branch beside linear maps: A starts from Kaiming's uniform numbers under the
 * model's seed, B from zeros. All other parameters are frozen but modules_to_save. options NULL:
 * defaults. Parameters are called "<module>.lora_A.weight" and "<module>.lora_B.weight", with dora
 * also "<module>.lora_magnitude_vector.weight"; they come behind all others. Errors: CZ_INVALID (an
 * option out of range, a target that matches nothing, an adapter is there already), CZ_UNSUPPORTED
 * (a model without such maps). After CZ_NOMEM the model can only be destroyed. */
CZ_API cz_status cz_model_add_lora(struct cz_model *m, const struct cz_lora_options *options);

/* The same from a folder that PEFT or czero wrote: adapter_config.json and
 * adapter_model.safetensors. trained: its parameters are trained further and all others frozen;
 * else it is frozen and only takes part. Errors: as above; CZ_NOTFOUND (a file), CZ_CORRUPT (a
 * shape, a tensor of no module of this model), CZ_UNSUPPORTED (another kind of adapter). */
CZ_API cz_status cz_model_add_adapter(struct cz_model *m, const char *dir, bool trained);

CZ_API bool cz_model_has_adapter(const struct cz_model *m);

CZ_API const char *cz_model_name(const struct cz_model *m);
CZ_API int64_t cz_model_vocab_size(const struct cz_model *m);
CZ_API int64_t cz_model_hidden_size(const struct cz_model *m);
CZ_API int64_t cz_model_t_max(const struct cz_model *m); /* the limit in force */
CZ_API int64_t cz_model_n_classes(const struct cz_model *m);
CZ_API int64_t cz_model_n_types(const struct cz_model *m);
CZ_API enum cz_labels cz_model_labels(const struct cz_model *m);

/* The name of class k in 0 … n_classes - 1: config.json's id2label, or "LABEL_<k>". Owned by the
 * model; NULL for any other k. */
CZ_API const char *cz_model_label_name(const struct cz_model *m, int64_t k);

/* ---- parameters --------------------------------------------------------------------------------
 */

#define CZ_NDIM_MAX 4

struct cz_param_info {
    size_t size;      /* sizeof(struct cz_param_info), set by the caller */
    const char *name; /* Hugging Face's, as in state_dict(); owned by the model */
    int ndim;
    int64_t shape[CZ_NDIM_MAX];
    size_t numel;
    bool trainable;
};

/* Parameters in the model's order; a tied parameter counts once. */
CZ_API size_t cz_model_n_params(const struct cz_model *m);

/* Describe parameter idx. Errors: CZ_INVALID (idx, size). */
CZ_API cz_status cz_model_param(const struct cz_model *m, size_t idx, struct cz_param_info *out);

CZ_EXTERN_C_END
#endif
