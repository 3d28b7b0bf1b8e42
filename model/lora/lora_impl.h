/* An adapter of a model: low-rank branches beside its linear maps (model/layer.h), the parameters
 * of which stand behind all others in the table, and modules that are trained whole. */
#ifndef CZ_MODEL_LORA_LORA_IMPL_H
#define CZ_MODEL_LORA_LORA_IMPL_H

#include "formats/safetensors/safetensors.h"
#include "model/model_impl.h"

#define LORA_PREFIX       "base_model.model." /* of names in PEFT's files */
#define LORA_MAGNITUDE    ".lora_magnitude_vector.weight"
#define LORA_RANK_DEFAULT ((int64_t)8)
#define LORA_RANK_MAX     ((int64_t)1 << 16)
#define LORA_SAVED_NBYTES 1024 /* names of modules_to_save of a new adapter */

/* Names from a text, separated by commas and spaces. */
struct lora_names {
    char *text;        /* owned; the names point into it */
    const char **name; /* owned */
    size_t n;
};
cz_status lora_names_take(struct lora_names *names, const char *text); /* NULL: none. CZ_NOMEM */
void lora_names_free(struct lora_names *names);

/* An alpha for the modules whose names, or the ends of which, match an expression. */
struct lora_alpha {
    char *pattern; /* owned */
    double alpha;
};

struct model_lora {
    int64_t rank;              /* of branches that have none of their own */
    double alpha, dropout;     /* alpha likewise */
    struct lora_alpha *alphas; /* alpha_pattern: the first that matches counts */
    size_t n_alphas;
    bool rslora, dora, trained;
    bool other_base;         /* the model's weights are not those that it was trained on */
    struct lora_names saved; /* modules_to_save */
    /* Where values come from; NULL: the init rules, or for other parameters the model's files. */
    struct safetensors *files;
    const struct safetensors_info **source; /* (n_params), owned by `files`; NULL without */
    bool has_hash;
    uint64_t hash; /* of model_base_hash() */
};

void lora_free(struct model_lora *lora); /* accepts NULL */

/* Where parameter idx comes from, if not from the model's own source. */
static inline const struct safetensors_info *lora_source(const struct model_lora *lora, size_t idx)
{
    return lora->source ? lora->source[idx] : NULL;
}

/* The lengths of the rows of a map's weight, from which DoRA's begin: elements [elem_off, elem_off
 * + numel) of parameter param_idx, if it is one of them (else *is_magnitude is false). */
cz_status lora_read_lengths(struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                            float *dst, bool *is_magnitude);

/* The name of a parameter in PEFT's files, from its own; into buf, which it returns. */
const char *lora_stored_name(const char *name, char *buf, size_t nbytes);

/* Elements of such a parameter, widened to fp32. */
cz_status lora_read(const struct model_lora *lora, size_t idx, size_t elem_off, size_t numel,
                    float *dst);

/* task_type in PEFT's config; NULL: it has no name for the model's. */
const char *lora_task_type(const struct cz_model *m);

/* Warns of an adapter that was trained on other weights than the model's: by the hash in its files,
 * or else by the folder that it names. The adapter is not the model's yet. Errors: CZ_INVALID
 * instead of the warning where the process is strict, those of reading. */
cz_status lora_check_base(struct cz_model *m, struct model_lora *lora, const char *dir);

/* ---- targets: lora.c ------------------------------------------------------------------------ */

/* A linear map that may have a branch. */
struct lora_target {
    size_t layer_idx, slot; /* its weight: position in that layer's parameters */
    const char *name;       /* of the module; not terminated: its weight's, … */
    int name_len;           /* … so far */
    int64_t n_in, n_out;
    int64_t rank; /* 0: it gets no branch */
    double alpha; /* 0: the adapter's */
};

/* All of a model's in its order, as a block to free(). Errors: CZ_UNSUPPORTED (there are none),
 * CZ_NOMEM. */
cz_status lora_targets_list(const struct cz_model *m, struct lora_target **out, size_t *n);

/* Branches where rank > 0, and all else frozen if it is trained, or all frozen; `lora` is the
 * model's afterwards, also on failure. */
cz_status lora_attach(struct cz_model *m, struct model_lora *lora,
                      const struct lora_target *targets, size_t n);

/* CZ_INVALID when the model has an adapter already. */
cz_status lora_check_none(const struct cz_model *m);

/* CZ_UNSUPPORTED when a module of the list is tied to another. */
cz_status lora_check_untied(const struct cz_model *m, const struct lora_names *saved);

/* Whether a parameter belongs to a module of the list. */
bool lora_names_hold(const struct lora_names *names, const char *param_name);

#endif
