/* A checkpoint as one set of whole tensors, whatever stage and world size wrote it.
 *
 * ckpt_open() reads the pickles of all files of a tag (never the tensors), checks that they belong
 * together, and works out where every element of every tensor is: DeepSpeed's partitions of
 * stages 1-2, chunks of stage 3, the parameter-shaped states of stage 0, universal folders of both
 * families, and ours. Elements are then read, or copied as runs of file bytes, by (tensor, what,
 * element range): resuming at another world size, consolidating, inspecting and exporting are all
 * this one view.
 *
 *   ckpt_open() → ckpt_at()/ckpt_find() → ckpt_read() or ckpt_run() → ckpt_close()
 *
 * Files of DeepSpeed 0.16.9 and 0.19.x, fp32/bf16/fp16, with or without offload. Format:
 * docs/deepspeed-behaviour.md, "Checkpoints"; keys are read, versions are not compared.
 * An open checkpoint may be read by several threads. Memory: the pickles' trees of rank 0's two
 * files and a few dozen bytes per tensor, state and rank. */
#ifndef CZ_CHECKPOINT_READ_CHECKPOINT_H
#define CZ_CHECKPOINT_READ_CHECKPOINT_H

#include "checkpoint/read/names.h"
#include "formats/pt/pt.h"

CZ_EXTERN_C_BEGIN

struct ckpt; /* opaque */

#define CKPT_NDIM_MAX 8

enum ckpt_kind {
    CKPT_TRAINED = 0, /* has a master, and states when the optimizer's were saved */
    CKPT_FROZEN,      /* model dtype, as saved */
    CKPT_BUFFER       /* any dtype; 0.19's consolidation leaves non-float ones alone */
};

enum ckpt_what {
    CKPT_MASTER = 0, /* the fp32 weight. Stage 0: optimizer.fp32_groups, fp32_groups_flat, else
                        `module`. FROZEN and BUFFER: the weight as saved */
    CKPT_MODULE,     /* the weight in the model's dtype; not at stage 3 (CZ_NOTFOUND for TRAINED) */
    CKPT_STATE_0     /* CKPT_STATE_0 + i: state i of ckpt_info.states */
};

struct ckpt_tensor {
    const char *name;
    enum ckpt_kind kind;
    int ndim;
    int64_t shape[CKPT_NDIM_MAX];
    uint64_t numel;
    const struct pickle_dtype *dtype; /* of CKPT_MASTER: "float32" for TRAINED */
    size_t group;                     /* TRAINED: index of its param group */
    const char *const *aliases;       /* other names of a tied weight, in the order of `module` */
    size_t n_aliases;
};

struct ckpt_info {
    const char *tag_dir, *tag;
    bool is_universal;
    bool is_ours;                           /* has our manifest */
    int stage;                              /* 0 … 3; universal: of the family (2 or 3) */
    int world_size;                         /* ranks that saved it */
    const char *ds_version;                 /* "" when absent */
    const struct pickle_dtype *model_dtype; /* of `module`; NULL when it holds nothing */
    bool has_states;                        /* optimizer states are there */
    size_t n_groups;                        /* param groups */
    const char *states[CKPT_STATES_MAX];    /* names of states with an element per weight */
    size_t n_states;
    const char *const *absent; /* parameters of the model that are not saved here: frozen ones of a
                                  universal folder, or left out by exclude_frozen_parameters */
    size_t n_absent;
    size_t n_files;
    uint64_t nbytes; /* of all files that belong to it */
};

struct ckpt_open_options {
    const char *dir;   /* what the user gave: see ckpt_locate() */
    const char *tag;   /* NULL: latest */
    bool universal;    /* look for latest_universal first (checkpoint.load_universal) */
    bool weights_only; /* optimizer states are not looked at: they may be missing or odd */

    /* Stage 0 numbers the optimizer's parameters without naming them. Where shapes and values do
     * not tell which is which, the caller's own optimizer does, as DeepSpeed takes for granted: the
     * group of a parameter, SIZE_MAX for a frozen one. NULL: not known. Called during the open. */
    size_t (*group_of)(const char *name, void *user);
    void *user;
};

/* Errors: CZ_NOTFOUND (no folder, no tag, no checkpoint in it), CZ_CORRUPT (shards are missing:
 * they are listed by name; a file is damaged, or files contradict each other: ranks' stage,
 * partition_count or param_shapes differ, more shards than partition_count ("stale …" names them),
 * a length that the shapes do not explain), CZ_UNSUPPORTED (tensor, pipeline or expert parallelism,
 * legacy torch format, NVMe-swapped fp32 groups without their copies), CZ_IO, CZ_NOMEM. Each
 * sentence names the file. */
cz_status ckpt_open(const struct ckpt_open_options *options, struct ckpt **out);
void ckpt_close(struct ckpt *ck); /* accepts NULL */

const struct ckpt_info *ckpt_get_info(const struct ckpt *ck);

/* Tensors under their first names: parameters in the model's order (the order of `module`), then
 * buffers. The set is the same for every stage. */
size_t ckpt_count(const struct ckpt *ck);
const struct ckpt_tensor *ckpt_at(const struct ckpt *ck, size_t idx);

/* By name or alias; ckpt_count() when there is none. */
size_t ckpt_find(const struct ckpt *ck, const char *name);

/* The order in which DeepSpeed's script puts out tensors, on which its shards depend: buffers,
 * frozen ones, trained ones in flat order. order: (ckpt_count()) indexes, written. */
void ckpt_script_order(const struct ckpt *ck, size_t *order);

/* ---- elements -------------------------------------------------------------------------------- */

/* Consecutive elements of a tensor that are contiguous in one file. */
struct ckpt_run {
    size_t file_idx;                  /* see ckpt_file_acquire() */
    uint64_t file_off;                /* bytes */
    uint64_t numel;                   /* ≥ 1, up to the tensor's end at most */
    const struct pickle_dtype *dtype; /* as stored */
};

/* The run that begins at element elem_off (< numel) of (tensor, what). Errors: CZ_NOTFOUND (no such
 * state or module entry for this tensor), CZ_UNSUPPORTED (stored with strides: use ckpt_read). */
cz_status ckpt_run(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off,
                   struct ckpt_run *out);

/* Elements [elem_off, elem_off + numel) as stored, whatever the dtype and strides. Errors:
 * CZ_NOTFOUND as above, CZ_INVALID (outside the tensor), CZ_IO, CZ_CORRUPT (the file changed). */
cz_status ckpt_read_raw(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off,
                        size_t numel, void *dst);

/* How (tensor, what) is stored; NULL: it is not there. */
const struct pickle_dtype *ckpt_dtype(const struct ckpt *ck, size_t idx, int what);

/* The same elements as fp32: bf16 and fp16 widened, fp64 rounded, integers converted;
 * CZ_UNSUPPORTED for other types. */
cz_status ckpt_read(const struct ckpt *ck, size_t idx, int what, uint64_t elem_off, size_t numel,
                    float *dst);

/* Whether this tensor has state i. */
bool ckpt_has_state(const struct ckpt *ck, size_t idx, size_t state_idx);

/* ---- what else is saved ---------------------------------------------------------------------- */

/* Updates applied to a group ("step" of its states); -1: not saved. Groups whose ranks or tensors
 * disagree are CZ_CORRUPT at open. */
int64_t ckpt_group_step(const struct ckpt *ck, size_t group);

/* The optimizer's param_groups[group]: lr, betas, eps, weight_decay …; NULL: not saved. */
const struct pickle_node *ckpt_param_group(const struct ckpt *ck, size_t group);

/* The optimizer's dictionary of a tensor's state, for numbers that are kept beside the steps (or of
 * the flat tensor that holds it). NULL: it has none, or the stage is not 0. */
const struct pickle_node *ckpt_state_dict(const struct ckpt *ck, size_t idx);

/* Rank 0's model_states dictionary: counters, lr_scheduler, ds_config, client state. Never NULL. */
const struct pickle_node *ckpt_model_states(const struct ckpt *ck);

/* Rank 0's optimizer_state_dict, at stage 0 `optimizer`; NULL: none. */
const struct pickle_node *ckpt_optim_states(const struct ckpt *ck);

/* A number that may be a python number or a one-element tensor of rank 0's files. */
bool ckpt_number(const struct ckpt *ck, const struct pickle_node *node, double *out);

/* All elements of a tensor of ckpt_model_states(), as stored, row-major. Errors: as pt_read(). */
cz_status ckpt_read_model_tensor(const struct ckpt *ck, const struct pickle_tensor *t, void *dst);

/* ---- files ------------------------------------------------------------------------------------
 * The tag's files that hold this checkpoint (info.n_files), for callers that verify, print or copy
 * them. Of all those files only CKPT_FILES_IDLE_MAX are kept open, however many ranks there were.
 */

#define CKPT_FILES_IDLE_MAX 64

const char *ckpt_file_path(const struct ckpt *ck, size_t file_idx);
uint64_t ckpt_file_nbytes(const struct ckpt *ck, size_t file_idx);

/* Open it as a .pt of its own, which the caller closes. */
cz_status ckpt_file_open_pt(const struct ckpt *ck, size_t file_idx, struct pt **pt);

/* A descriptor to read file file_idx with, at offsets (pread, copy_file_range); it stays open until
 * ckpt_file_release(). Calls nest. Threads: any. Errors: CZ_NOTFOUND, CZ_IO; CZ_CORRUPT when the
 * file is another one than at ckpt_open(). */
cz_status ckpt_file_acquire(const struct ckpt *ck, size_t file_idx, int *fd);
void ckpt_file_release(const struct ckpt *ck, size_t file_idx);

/* After reading from fd: CZ_CORRUPT when the file is not what it was at ckpt_open(). */
cz_status ckpt_file_check(const struct ckpt *ck, size_t file_idx, int fd);

CZ_EXTERN_C_END
#endif
