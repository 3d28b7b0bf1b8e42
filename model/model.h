/* Models: a chain of layers and a source of weights, never the weights themselves.
 *
 * Life cycle: cz_model_from_hf() / cz_model_from_preset() / model_create() → optional
 * cz_model_set_shape(), cz_model_freeze() → engine_initialize() takes it over (on failure the
 * caller keeps it) or cz_model_destroy(). The engine streams weights through model_read_weights()
 * into the buffers it planned, so the model is never in memory twice. Not thread-safe. */
#ifndef CZ_MODEL_MODEL_H
#define CZ_MODEL_MODEL_H

#include "formats/safetensors/safetensors.h"
#include "model/layer.h"

#include <czero/model.h>

CZ_EXTERN_C_BEGIN

struct out_folder; /* formats/output.h */

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
    int64_t n_classes;   /* of rows or tokens: how many; 0 otherwise */
    int64_t n_types;     /* token types (segments) are checked against it; 0: not used */
    int64_t n_positions; /* a batch's own positions are below it; 0: t_max */
    /* A batch without positions gets them: padding_id has position padding_id, other tokens count
     * from padding_id + 1 in each row (RoBERTa). */
    bool counts_positions;
    int64_t padding_id;
    enum cz_labels labels; /* without n_classes; with them it follows from the last layer */
    /* The layers take batches without padding (batch.texts): tokens meet in attention only, which
     * keeps to documents, and nothing is dropped: what is depends on where an element stands. */
    bool unpads;
    void *block; /* from malloc(), freed with the model: what its layers point into; or NULL */
};

/* A chain of these layers; weights start from their init rules. NULL on error: the block is then
 * still the caller's. */
struct cz_model *model_create(const struct model_desc *desc);

const struct param_table *model_params(const struct cz_model *m);

/* The bound of a batch's own positions, at the length in force. */
int64_t model_n_positions(const struct cz_model *m);

/* Whether a batch without positions must get them, and what they are (B,T) for its ids. */
bool model_counts_positions(const struct cz_model *m);
void model_count_positions(const struct cz_model *m, const int32_t *ids, int64_t B, int64_t T,
                           int32_t *positions);

/* Whether batches may come without padding. */
bool model_unpads(const struct cz_model *m);

/* Whether an engine owns it; and that one does from now on. */
bool model_is_taken(const struct cz_model *m);
void model_take(struct cz_model *m);

/* Whether labels, targets, their weights and logits are a row's, not a position's. */
bool model_is_by_row(const struct cz_model *m);

/* How many labels a batch of B rows of T tokens has: one per row, one per token, or none. */
size_t model_n_labels(const struct cz_model *m, int64_t B, int64_t T);

/* How many targets a row has instead; 0: it has labels. */
int64_t model_n_targets(const struct cz_model *m);

/* CZ_UNSUPPORTED: the model's head cannot count labels that have the largest logit. */
cz_status model_check_counts_hits(const struct cz_model *m);

/* Whether the last layer norms its input itself: that input is no last hidden state then. */
bool model_head_norms(const struct cz_model *m);

/* Whether results at positions that the mask hides are transformers', too. */
bool model_padding_agrees(const struct cz_model *m);

/* Whether the model has the adapter that these options make: of their rank, alpha and dropout, and
 * trained. */
bool model_has_lora(const struct cz_model *m, const struct cz_lora_options *options);

/* CZ_UNSUPPORTED unless an adapter's branches are all that is trained: the model without them then
 * stays what it was. */
cz_status model_check_keeps_base(const struct cz_model *m);

/* The chain, for the engine: classes, hyper-parameters and parameter indices in call order. */
struct model_layer {
    const struct layer_class *cls;
    const void *hp;
    size_t hp_nbytes;
    const size_t *param_idx;
    size_t n_params;
    const struct layer_branch *branches;
    size_t n_branches;
};
size_t model_n_layers(const struct cz_model *m);
const struct model_layer *model_layer_at(const struct cz_model *m, size_t layer_idx);

/* Elements [elem_off, elem_off + numel) of a parameter, widened to fp32, from the files or the init
 * rule (which is a function of seed, parameter index and element, so any piece can be made alone).
 * The first of a head that neither the model's files nor its adapter's have logs a warning. */
cz_status model_read_weights(struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                             float *dst);

/* A checkpoint brings what is trained, whatever is read until then: no warning of it. Until the
 * model takes its weights from elsewhere. */
void model_trained_come_later(struct cz_model *m);

/* Write a Hugging Face folder that transformers loads: config.json (the original with dtype set, or
 * one made for a preset), generation_config.json where the model's folder had one
 * or model_add_end() asks for one, and
 * model.safetensors in `dtype`. `fetch` supplies fp32 pieces of each
 * parameter. The folder is created; files appear under their names only when complete.
 * Errors: CZ_IO (with path; nothing partial is left), CZ_UNSUPPORTED for a user's own chain. */
typedef cz_status (*model_fetch)(void *user, size_t param_idx, size_t elem_off, size_t numel,
                                 float *dst);
cz_status model_export_hf(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                          model_fetch fetch, void *user);

/* A hash of what a model with an adapter is without it: names, shapes and fp32 values of all
 * parameters that the adapter does not hold, equal in all processes. Reads them once, and remembers
 * the result. Errors: CZ_INVALID (no adapter), those of reading. */
cz_status model_base_hash(struct cz_model *m, uint64_t *out);

/* Such a hash from the 16 hexadecimal digits that files hold; false: it is none. */
bool model_base_hash_parse(const char *text, uint64_t *out);

/* The model that an adapter's folder names as its own (base_model_name_or_path): *name as it stands
 * there, *folder where it is a model's folder, seen from the working folder, the adapter's or the
 * one above; both to free(), NULL where there is none. Errors: CZ_NOTFOUND (dir is no adapter's
 * folder), those of reading. */
cz_status model_adapter_base(const char *dir, char **folder, char **name);

/* Whether the model's adapter was trained on other weights, as far as its files tell. */
bool model_has_other_base(const struct cz_model *m);

/* Only the adapter_config.json of the folder below. */
cz_status model_export_adapter_config(const struct cz_model *m, const struct out_folder *in);

/* CZ_NOTFOUND, with what to do: the folder is a run's (or one of its checkpoints) that trains an
 * adapter, and no adapter's. */
cz_status model_refuse_adapter_run(const char *dir);

/* Begins an adapter_model.safetensors; base_hash (NULL: not known) is of the frozen weights. */
cz_status model_create_adapter(const char *path, const struct safetensors_decl *decls, size_t n,
                               const uint64_t *base_hash, struct safetensors_writer **out);

/* Write the model's adapter as PEFT does: adapter_config.json and adapter_model.safetensors in
 * `dtype`, both durable, the config last. `fetch` as above. Errors: the same; CZ_INVALID without an
 * adapter. */
cz_status model_export_adapter(struct cz_model *m, const char *dir, enum cz_dtype dtype,
                               model_fetch fetch, void *user);

/* Write a Hugging Face folder of the model with its adapter added into the weights. `fetch` as
 * above, of the weights apart. Errors: those of both. */
cz_status model_export_merged(const struct cz_model *m, const char *dir, enum cz_dtype dtype,
                              model_fetch fetch, void *user);

/* Ids of the tokens that end a text. */
#define MODEL_ENDS_MAX 32
struct model_ends {
    int64_t ids[MODEL_ENDS_MAX];
    size_t n;
};

/* Adds an id, once. Ids after the first MODEL_ENDS_MAX are left out. */
void model_ends_add(struct model_ends *ends, int64_t id);

/* Adds eos_token_id, a number or several, of a JSON file of the folder. A folder without that file
 * adds none. Errors: CZ_IO, CZ_CORRUPT (no integer, or no JSON: the sentence has file and place).
 */
cz_status model_read_ends(const char *dir, const char *name, struct model_ends *out);

/* Whether transformers ends a text at this token: eos_token_id of generation_config.json or,
 * without that file, of config.json. */
bool model_ends_at(const struct cz_model *m, int64_t id);

/* Exports name this token as an end of text, too: first of the list in generation_config.json, and
 * in config.json, as transformers' Trainer writes a tokenizer's new eos_token. An export of an
 * adapter has that generation_config.json beside adapter_config.json. */
void model_add_end(struct cz_model *m, int64_t id);

/* The type of the weights in the files that it was opened with: bf16 or fp16 when all are, else
 * fp32, also for a model without files. */
enum cz_dtype model_weights_dtype(const struct cz_model *m);

/* The safetensors files that a model's weights are read from, for callers that read them by other
 * means; 0 files: it has none. */
size_t model_n_files(const struct cz_model *m);
struct safetensors_file model_file(const struct cz_model *m, size_t file_idx);

/* Whether a parameter's values are in one of these files as an array of `dtype`, and where. */
bool model_find_in_files(const struct cz_model *m, size_t param_idx, enum cz_dtype dtype,
                         size_t *file_idx, uint64_t *file_off);

/* Only its config.json, and generation_config.json if its folder had one, durably, into a folder of
 * formats/output.h. Errors: the same. */
cz_status model_export_config(const struct cz_model *m, const struct out_folder *in,
                              enum cz_dtype dtype);

CZ_EXTERN_C_END
#endif
