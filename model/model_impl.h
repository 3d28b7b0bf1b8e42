/* What the files of the model module share: the model itself, its source of weights, and the table
 * of families that a Hugging Face folder may hold. */
#ifndef CZ_MODEL_MODEL_IMPL_H
#define CZ_MODEL_MODEL_IMPL_H

#include "formats/json/json.h"
#include "model/model.h"

struct tensor_files;
struct tensor_entry;

/* Where weights come from: open files, and the init rules with `seed` for the rest. */
struct weight_source {
    struct tensor_files *files; /* NULL: the init rules alone */
    /* Of each parameter, owned by `files`; NULL: its init rule. NULL without files. */
    const struct tensor_entry **tensor;
    uint64_t seed;
    /* Of the parameters that there were at binding, why one is not in the files (weights.c); NULL:
     * the warning was given, or nothing is absent. Owned. */
    unsigned char *absent;
    size_t n_absent;    /* elements of it */
    char *place;        /* the folder, for the warning; owned */
    bool trained_later; /* model_trained_come_later() */
};

/* A head that a family can carry. */
struct model_head {
    enum cz_task task;
    const char *architecture; /* in config.json: "BertForMaskedLM" */
    bool reads_last;          /* the last token that is not config.json's pad_token_id */
};

/* A model_type of config.json. */
struct model_family {
    const char *model_type;
    const char *title;       /* for people: "GPT-2" */
    const char *base_prefix; /* in front of names in the full model, absent in the bare one's */
    const char *base_architecture;  /* the bare model: "BertModel" */
    const struct model_head *heads; /* the first is what a bare model gets */
    size_t n_heads;
    /* Suffixes of unused tensors in old files, NULL-terminated. */
    const char *const *ignored_suffixes;
    /* A parameter of the base model and the name of a head that is tied to it: files saved under
     * that head may hold it there alone. NULL: none. */
    const char *tied_param, *tied_elsewhere;
    /* At positions that the mask hides, which nothing reads, transformers computes something else
     * than this chain. */
    bool padding_differs;
    /* The chain that `config` describes under the head of `task` (one of `heads`, never AUTO);
     * sentences name the file through the nodes. */
    cz_status (*build)(const struct json_node *config, const char *name, enum cz_task task,
                       struct cz_model **out);
    /* Ready-made sizes: their names in order, NULL after the last; config.json of one, as text to
     * free(), or CZ_NOTFOUND. All NULL: none. */
    const char *(*preset_name)(size_t idx);
    cz_status (*preset_config)(const char *name, char **text);
    const char *preset_example; /* the one that short lists show */
};

/* All families, in the order in which lists show them. */
#define MODEL_FAMILIES(FAMILY)                                                                     \
    FAMILY(gpt2)                                                                                   \
    FAMILY(llama)                                                                                  \
    FAMILY(qwen2)                                                                                  \
    FAMILY(qwen3)                                                                                  \
    FAMILY(qwen3_moe)                                                                              \
    FAMILY(olmo2)                                                                                  \
    FAMILY(granite)                                                                                \
    FAMILY(smollm3) FAMILY(phi3) FAMILY(mistral) FAMILY(ministral) FAMILY(gemma2) FAMILY(gemma3)   \
        FAMILY(bert) FAMILY(megatron_bert) FAMILY(distilbert) FAMILY(roberta) FAMILY(xlm_roberta)  \
            FAMILY(electra) FAMILY(modernbert) FAMILY(mpnet) FAMILY(deberta)

#define MODEL_FAMILY_DECLARE(family) extern const struct model_family model_family_##family;
MODEL_FAMILIES(MODEL_FAMILY_DECLARE)
#undef MODEL_FAMILY_DECLARE

const struct model_family *const *model_families(size_t *n);
const struct model_family *model_family_find(const char *model_type); /* NULL: there is none */
const char *model_type_names(char *buf, size_t nbytes); /* "gpt2, llama, …"; returns buf */

struct model_lora; /* model/lora/lora_impl.h */

struct cz_model {
    char *name;
    struct param_table params;
    struct model_layer *layers; /* hp and param_idx are owned */
    size_t n_layers;
    int64_t vocab_size, hidden_size, n_classes, n_types;
    enum cz_labels labels;
    char **label_names;         /* (n_classes), one block */
    int64_t t_max, t_max_limit; /* the bound in force, and the layers' own */
    int64_t n_positions;        /* of model_desc, as the next two */
    bool counts_positions, unpads;
    int64_t padding_id;
    int64_t t_context; /* what the model was made for, which rotary positions may exceed */
    struct weight_source weights;
    void *block;             /* of model_desc */
    struct model_lora *lora; /* NULL: no adapter */
    bool is_taken;           /* model_take() */

    /* Hugging Face models only: */
    const struct model_family *family;
    enum cz_task task;
    struct json_doc *config; /* config.json with the options in it, or as made for a preset */
    struct json_doc
        *generation;            /* generation_config.json of its folder, for exports; may be NULL */
    struct model_ends new_ends; /* model_add_end() */
    bool labels_given;          /* the caller named the classes: files may have a head for others */
};

/* model_create() with the error as status. */
cz_status model_build(const struct model_desc *desc, struct cz_model **out);

/* Write what `options` want under `head` into *config, which is replaced when that changes it:
 * "architectures", the labels, and, in a preset, the vocabulary. `place` is the file's name in
 * sentences. Errors: CZ_INVALID (labels that no head of `head->task` has). */
cz_status options_write(const struct cz_model_options *options, const struct model_head *head,
                        bool is_preset, const char *place, struct json_doc **config);

/* CZ_NOTFOUND, with what a name that is no model's folder and no preset may be, and what to do. */
cz_status model_refuse_name(const char *name);

/* "tie_word_embeddings": false, in *config, which is replaced. */
cz_status options_untie(const char *place, struct json_doc **config);

/* Name the classes: by m->config, or LABEL_0 …. Errors: CZ_NOMEM. */
cz_status labels_init(struct cz_model *m);

/* Find every parameter in `files` and take them as source; what belongs to the head and is not
 * there, or of other classes when the caller named them, starts from the init rules, which a
 * warning says when it is read: an adapter may bring it first. head_is_foreign: the files' head is
 * for another task, whatever its names. On success the model owns `files`. `place` names the folder
 * in sentences. Errors: CZ_NOTFOUND (the trunk lacks tensors), CZ_CORRUPT (shape), CZ_UNSUPPORTED
 * (dtype), CZ_NOMEM; the source is then unchanged. */
cz_status weights_bind(struct cz_model *m, struct tensor_files *files, const char *place,
                       bool head_is_foreign);

/* Whether a folder's config.json, if it has one, names a head for another task than the model's.
 * `says`: a warning says when its head is for classes that the caller calls otherwise. */
cz_status head_compare(const struct cz_model *m, const char *dir, bool says, bool *is_foreign);

/* *name: the first name that the config ties to another parameter (the decoder of a language model)
 * and for which the files hold other values than for that one; NULL: there is none. Borrowed from
 * the files. Errors: those of reading. */
cz_status weights_find_own_head(const struct cz_model *m, const struct tensor_files *files,
                                bool head_is_foreign, const char **name);

/* generation_config.json: what was read, with model_add_end()'s; nothing where there is neither. */
cz_status generation_write(const struct cz_model *m, const struct out_folder *in);

/* One declared tensor, in pieces; `piece` holds EXPORT_PIECE_NUMEL. Errors: CZ_DIVERGED (an element
 * is not finite), CZ_INVALID (one is beyond fp16); both name it. */
enum { EXPORT_PIECE_NUMEL = 1 << 20 };
struct safetensors_writer;
cz_status export_tensor(struct safetensors_writer *w, size_t decl_idx, size_t param_idx,
                        const struct param_info *p, enum cz_dtype dtype, model_fetch fetch,
                        void *user, float *piece);

/* Elements [elem_off, elem_off + numel) of a parameter by its init rule. */
void weights_by_rule(const struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                     float *dst);

void weights_free(struct weight_source *w);

#endif
