/* Inside of an open checkpoint: tensors, and where their elements are.
 *
 * Each source file fills the same tables: whole_source.c (stage 0), flat_source.c (stages 1-2),
 * shard_source.c (stage 3), universal.c. runs.c reads them without knowing which it was. */
#ifndef CZ_CHECKPOINT_READ_CHECKPOINT_IMPL_H
#define CZ_CHECKPOINT_READ_CHECKPOINT_IMPL_H

#include "checkpoint/read/checkpoint.h"
#include "checkpoint/read/name_map_impl.h"

/* ---- places ---------------------------------------------------------------------------------- */

/* First element of a flat tensor of one rank. */
struct ckpt_spot {
    uint64_t off;      /* bytes in the file */
    uint32_t file_idx; /* CKPT_NO_FILE: this rank's file was not there */
};

#define CKPT_NO_FILE UINT32_MAX

/* A flat tensor of which every rank has a piece: the masters or one state of a group (stages 1-2)
 * or sub-group (stage 3), or a frozen parameter's chunks. */
struct ckpt_vec {
    const struct pickle_dtype *dtype;
    struct ckpt_spot *spots; /* (world_size) */
};

enum ckpt_place_kind { PLACE_NONE = 0, PLACE_WHOLE, PLACE_STRIDED, PLACE_SPLIT };

/* Where a tensor's elements are. */
struct ckpt_place {
    enum ckpt_place_kind kind;
    const struct pickle_dtype *dtype;
    union {
        struct ckpt_spot whole; /* one after the other */
        struct {                /* by the strides of t, a tensor of pt, which stays open */
            const struct pt *pt;
            const struct pickle_tensor *t;
        } strided;
        struct { /* element e is element (e + shift) % part + add of rank (e + shift) / part */
            size_t vec_idx;
            uint64_t shift, part, add;
        } split;
    };
};

/* ---- tensors --------------------------------------------------------------------------------- */

struct ckpt_entry {
    struct ckpt_tensor tensor; /* what callers see */
    char *name;
    char **aliases;
    bool has_shape, has_kind;
    size_t script_pos; /* order in which DeepSpeed's script puts out tensors of one kind */
    struct ckpt_place master, module, states[CKPT_STATES_MAX];
    const struct pickle_node *state; /* stage 0: the optimizer's dictionary; or NULL */
};

struct ckpt_files; /* files.c */

struct ckpt {
    struct ckpt_info info;
    char *tag_dir, *tag, *ds_version;
    bool weights_only;
    size_t (*group_of)(const char *name, void *user); /* during the open only; may be NULL */
    void *user;
    struct ckpt_files *files;
    struct pt *model, *optim; /* rank 0's, trees and all; optim may be NULL */
    struct pt **kept;         /* further files with strided tensors */
    size_t n_kept;
    const struct pickle_node *model_root;  /* rank 0's model_states; never NULL once open */
    const struct pickle_node *optim_root;  /* its optimizer_state_dict, or `optimizer`; or NULL */
    const struct pickle_node *groups_node; /* LIST of param_groups, or NULL */
    struct ckpt_entry *entries;
    size_t n_entries, cap_entries;
    size_t n_placed;       /* the next script_pos */
    size_t *script;        /* (n_entries) indexes in the order of DeepSpeed's script */
    struct name_map names; /* of entries and their aliases */
    struct ckpt_vec *vecs;
    size_t n_vecs, cap_vecs;
    char *states[CKPT_STATES_MAX];
    int64_t *steps; /* (n_groups) -1: not saved */
    char **absent;
    size_t n_absent;
};

/* ---- the folder (folder.c) ------------------------------------------------------------------- */

struct ckpt_shard_file {
    char *name;
    int rank;
    bool bf16;
};

struct ckpt_folder {
    char *whole_model;                       /* mp_rank_00_model_states.pt, or NULL */
    struct ckpt_shard_file *models, *optims; /* zero_pp_rank_R_…, by rank */
    size_t n_models, n_optims;
    bool is_universal; /* has zero/ */
};

/* What is in the tag's folder. Errors: CZ_NOTFOUND (no model file), CZ_CORRUPT (bf16_ and plain
 * optimizer files, or model files of stage 3 and of others, in one tag), CZ_UNSUPPORTED (tensor,
 * pipeline, expert parallelism). */
cz_status ckpt_folder_scan(const char *dir, struct ckpt_folder *out);
void ckpt_folder_free(struct ckpt_folder *folder);

/* Exactly ranks 0 … world_size-1 must be there. CZ_NOTFOUND lists those that are not, CZ_CORRUPT
 * names those that are too many. what: "optimizer" or "model". */
cz_status ckpt_folder_check(const struct ckpt *ck, const struct ckpt_shard_file *files, size_t n,
                            int world_size, const char *what);

/* ---- files (files.c) ------------------------------------------------------------------------- */

cz_status ckpt_files_create(struct ckpt_files **out);
void ckpt_files_destroy(struct ckpt_files *files); /* accepts NULL */

/* Record tag_dir/name, which must exist; its index. */
cz_status ckpt_file_add(struct ckpt *ck, const char *name, uint32_t *file_idx);

/* The same, and open it as a .pt, which the caller closes. */
cz_status ckpt_pt_add(struct ckpt *ck, const char *name, uint32_t *file_idx, struct pt **pt);

/* ---- tables (tensors.c) ---------------------------------------------------------------------- */

/* A new tensor without shape or place; name is copied. Its index. */
cz_status ckpt_entry_add(struct ckpt *ck, const char *name, size_t *idx);
cz_status ckpt_alias_add(struct ckpt *ck, size_t idx, const char *name);

/* Set the shape, or check that it is the one known. label: the file; what: the key it came from. */
cz_status ckpt_entry_set_shape(struct ckpt_entry *e, const int64_t *shape, int ndim,
                               const char *label, const char *what);
/* The parameter that `name` stands for, added when `module` did not have it, with this shape. */
cz_status ckpt_entry_want(struct ckpt *ck, const char *name, const struct pickle_node *shape,
                          const char *what, size_t *idx);

/* It is trained in this group (in none before: CZ_CORRUPT), with its master at `master`. */
cz_status ckpt_entry_train(struct ckpt *ck, size_t idx, size_t group, struct ckpt_place master);

/* Parameters, then buffers; those without a master go to info.absent. Names are looked up anew. */
cz_status ckpt_entries_finish(struct ckpt *ck);
void ckpt_tables_free(struct ckpt *ck);

/* A vec whose spots are all CKPT_NO_FILE. */
cz_status ckpt_vec_add(struct ckpt *ck, size_t *vec_idx);

/* Rank's piece of a vec is t, a dense tensor of pt. */
cz_status ckpt_vec_set(struct ckpt *ck, size_t vec_idx, int rank, uint32_t file_idx,
                       const struct pt *pt, const struct pickle_tensor *t);

/* The place of a tensor of an open file; a strided one's pt must stay open. */
struct ckpt_place ckpt_place_of(const struct pt *pt, uint32_t file_idx,
                                const struct pickle_tensor *t);

/* Whether the ends of a master, rounded, are those of its low-precision weight (runs.c); true when
 * one of them is not there. Errors: CZ_IO. */
cz_status ckpt_rounds_to_module(const struct ckpt *ck, size_t idx, bool *yes);

/* ---- rank 0's model file (model.c, model_frozen.c) ------------------------------------------- */

/* Entries for all of `module`: buffers, parameters (their kind is not known yet), aliases. At stage
 * 3 parameters have no module place. Needs ck->model and its file index. */
cz_status ckpt_model_read(struct ckpt *ck, uint32_t file_idx, bool is_stage3);

/* `param_shapes` as a list of dictionaries; a single dictionary counts as a list of one. */
size_t ckpt_shapes_count(const struct pickle_node *param_shapes);
const struct pickle_node *ckpt_shapes_at(const struct pickle_node *param_shapes, size_t idx);

/* Parameters that no group trains. whole: kept in `module` or in frozen_param_fragments (stages
 * 0-2). rest: those that stand whole in a stage-3 `module`, not being ZeRO's. */
cz_status ckpt_frozen_whole(struct ckpt *ck, uint32_t file_idx);
cz_status ckpt_frozen_rest(struct ckpt *ck, uint32_t file_idx);

/* A parameter that is not trained (else CZ_CORRUPT), and where it is. */
cz_status ckpt_entry_freeze(struct ckpt *ck, size_t idx, struct ckpt_place place);

/* Whether frozen_param_shapes and frozen_param_fragments hold the same names. */
cz_status ckpt_frozen_check(const struct pt *model);

/* Check that another rank's model file belongs to rank 0's. */
cz_status ckpt_model_agree(const struct ckpt *ck, const struct pt *other);

/* ---- optimizer states (optim.c) -------------------------------------------------------------- */

/* A torch optimizer's state dictionary, or DeepSpeed's elastic list of them. */
struct opt_view {
    const struct pickle_node *state;  /* DICT by id, or LIST; NULL: none */
    const struct pickle_node *groups; /* LIST, or NULL */
};

struct opt_view opt_view_of(const struct pickle_node *state_dict);

/* The dictionary of parameter `id`; NULL: it has none. */
const struct pickle_node *opt_state(const struct opt_view *view, int64_t id);

/* The groups whose `params` hold the ids 0 … n − 1, into groups[n]; 0 where that is not said. */
void opt_groups_of(const struct opt_view *view, size_t n, size_t *groups);

/* A state that is no element per weight whatever its length: step, error feedback of the 1-bit
 * family. */
bool opt_is_scalar_state(const char *name);

/* Index of a state's name, added when new. CZ_UNSUPPORTED: too many. */
cz_status ckpt_state_idx(struct ckpt *ck, const char *name, size_t *state_idx);

/* Number of groups; all steps unknown. */
cz_status ckpt_groups_set(struct ckpt *ck, size_t n_groups, const struct pickle_node *groups);

/* `step` of a parameter, or of its group (older optimizers); NULL: neither. */
const struct pickle_node *opt_step(const struct opt_view *view, size_t group, int64_t id);

/* A step, number or tensor of pt, must be what the group's others say. node may be NULL. */
cz_status ckpt_step_take(struct ckpt *ck, const struct pt *pt, size_t group,
                         const struct pickle_node *node);

/* ---- sharded optimizer files (ranks.c) ------------------------------------------------------- */

/* What every *_optim_states.pt says about itself. */
struct optim_head {
    const struct pickle_node *state; /* optimizer_state_dict */
    const char *ds_version;          /* "" */
    int64_t stage;                   /* -1: not said (BF16_Optimizer) */
    int64_t world_size;              /* partition_count */
};

struct rank_file {
    int rank;
    uint32_t file_idx;
    const struct pt *pt;
    struct optim_head head;
};

/* Open every rank's optimizer file, check that they belong together, and hand them to `take` one by
 * one, rank 0 first (which stays open as ck->optim). Sets info.world_size before. */
cz_status ckpt_ranks_read(struct ckpt *ck, const struct ckpt_folder *folder,
                          cz_status (*take)(struct ckpt *ck, const struct rank_file *file,
                                            void *user),
                          void *user);

/* ---- sources --------------------------------------------------------------------------------- */

cz_status ckpt_whole_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx);
cz_status ckpt_flat_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx);
cz_status ckpt_shard_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx);
cz_status ckpt_universal_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx);

/* Frozen parameters of stage 3 from the chunks in every rank's model file (folder->models: all
 * ranks are there), which are checked against rank 0's. */
cz_status ckpt_frozen_chunks(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx);

#endif
