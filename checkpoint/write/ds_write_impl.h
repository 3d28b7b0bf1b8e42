/* The inside of the writer of DeepSpeed's files.
 *
 * Creation walks DeepSpeed's dictionaries once. Whatever holds tensors takes a storage of its file
 * (numbered by first use, as torch does) and leaves segments: "these elements of this source go
 * there". Segments, sorted by source, are cut into jobs; what a job has of one segment is a piece,
 * which keeps its CRC until the manifest adds them up.
 *
 * ds_write.c life cycle; ds_write_jobs.c segments, jobs and the 1-bit optimizers' file;
 * ds_write_model.c, ds_write_optim.c the two dictionaries; ds_write_module.c, ds_write_torch.c
 * their tensors; ds_write_json.c JSON as Python values.
 *
 * While dictionaries are walked, the first failure (memory) is kept in `failed`: calls need no
 * checks. */
#ifndef CZ_CHECKPOINT_WRITE_DS_WRITE_IMPL_H
#define CZ_CHECKPOINT_WRITE_DS_WRITE_IMPL_H

#include "checkpoint/write/ds_write.h"
#include "formats/json/json.h"
#include "formats/pt/pt.h"

#define DS_NONE SIZE_MAX

/* A storage whose elements are known when the file is created: a step count, which torch keeps as a
 * 0-d tensor, or a tensor of the client state. */
struct ds_known {
    size_t storage_idx;
    float step;
    const void *bytes; /* NULL: the step */
    size_t nbytes;
};

struct ds_file {
    char name[CKPT_NAME_MAX];
    char *path;
    struct pickle_writer *pickle; /* while it is made */
    uint64_t *storage_nbytes;
    size_t n_storages, cap_storages;
    struct ds_known *known;
    size_t n_known, cap_known;
    struct pt_writer *pt;
    bool renamed;
};

enum { DS_MODEL = 0, DS_OPTIM = 1, DS_ONEBIT = 2, DS_N_FILES = 3 };

/* All elements of one source. */
struct ds_stream {
    struct ckpt_job source; /* off 0, numel: up to the end of the last segment */
    const char *what;       /* in the manifest */
    size_t first, n;        /* its segments */
};

/* A run of elements with one place in a file: of one parameter, or padding. */
struct ds_segment {
    size_t stream;
    size_t src_off, numel;
    size_t storage_idx;
    uint64_t storage_off; /* elements */
    size_t param_idx;     /* DS_NONE: padding */
    enum cz_dtype dtype;  /* of the stream */
    int file;
    uint32_t crc; /* of all its bytes; at the finish */
};

/* What one job has of one segment. */
struct ds_piece {
    size_t segment;
    size_t off, numel; /* in the segment */
    uint32_t crc;
};

struct ds_cut {
    size_t first, n; /* the pieces of a job */
};

struct ckpt_writer {
    const struct ckpt_write_options *options;
    struct json_doc *config, *client; /* client: NULL when there is none */
    struct pickle *client_pickle;     /* likewise */
    bool failed;                      /* no memory */

    struct ds_file files[DS_N_FILES];
    bool has_file[DS_N_FILES];
    size_t *param_pos;     /* (n_params) position in its group's flat or shard parameters */
    size_t *param_storage; /* (n_params) in the model file; DS_NONE: not yet */
    size_t *group_storage; /* (n_groups) flat parameters in the model file; DS_NONE: not yet */
    size_t *first_stream;  /* (n_groups + 1) the last: of frozen parameters, one each */

    size_t first_onebit; /* stream: errors and what is each rank's own follow; the last ones */

    struct ds_stream *streams;
    size_t n_streams;
    struct ds_segment *segments;
    size_t n_segments, cap_segments;
    struct ds_piece *pieces;
    size_t n_pieces, cap_pieces;
    struct ckpt_job *jobs;
    struct ds_cut *cuts; /* (n_jobs) */
    unsigned char *done; /* (n_jobs) bytes of their own: threads do not meet */
    size_t n_jobs, cap_jobs, cap_cuts;

    struct manifest manifest;
    bool finished;
};

/* ---- ds_write_jobs.c ------------------------------------------------------------------------- */

/* Space for one more element of `size` bytes in *array; false: no memory. */
bool ds_grow(void **array, size_t *cap, size_t n, size_t size);

/* One stream per source. Errors: CZ_NOMEM. */
cz_status ds_streams_init(struct ckpt_writer *w);
size_t ds_stream_of(const struct ckpt_writer *w, enum ckpt_source source, size_t group,
                    size_t state_or_param);

/* A new storage of numel elements. */
size_t ds_storage(struct ckpt_writer *w, int file, enum cz_dtype dtype, size_t numel);
size_t ds_storage_bytes(struct ckpt_writer *w, int file, uint64_t nbytes);

/* The elements of a storage; `bytes` stay valid until the file is created. */
void ds_known(struct ckpt_writer *w, int file, struct ds_known known);

/* Source elements [src_off, + numel) of a stream go to a storage, from storage_off on. Its dtype is
 * set here. */
void ds_segment_add(struct ckpt_writer *w, struct ds_segment segment);

/* Elements [begin, end) of a group's flat buffer, its padding too; element `begin` is the first of
 * the stream and of the storage. */
void ds_flat_segments(struct ckpt_writer *w, int file, size_t stream, size_t storage_idx,
                      const struct flat_group *flat, size_t begin, size_t end);

/* This rank's chunks of a sub-group, from element src_off of the stream on. */
void ds_shard_segments(struct ckpt_writer *w, int file, size_t stream, size_t storage_idx,
                       const struct shard_group *shard, size_t sub_group, size_t src_off);

/* Sort segments and cut them into jobs. Errors: CZ_NOMEM. */
cz_status ds_jobs_init(struct ckpt_writer *w);

/* ---- the dictionaries ------------------------------------------------------------------------ */

static inline bool ds_is_frozen(const struct ckpt_writer *w, size_t param_idx)
{
    return w->options->group_of[param_idx] >= w->options->n_groups;
}

/* Stage 0 as torch keeps it: masters (unless in fp32) and states in their parameters' shapes. */
static inline bool ds_is_plain(const struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    return o->stage == 0 && !(o->fused && o->dtype != DTYPE_F32);
}

void ds_put_model(struct ckpt_writer *w); /* model_states.pt */

/* CZ_INVALID: not an object, or a key that the checkpoint needs for itself. */
cz_status ds_client_check(const struct json_node *client);
cz_status ds_client_check_pickle(const struct pickle_node *client);

void ds_put_optim(struct ckpt_writer *w); /* optim_states.pt */

/* Stage 0: the value of `optimizer` in the model file. */
void ds_put_plain_optimizer(struct ckpt_writer *w);

/* ---- 1-bit optimizers ------------------------------------------------------------------------ */

bool ds_has_onebit_file(const struct ckpt_write_options *o);
cz_status ds_onebit_check(const struct ckpt_write_options *o);
/* The whole file. */
void ds_put_onebit(struct ckpt_writer *w);

/* Pairs of the state of the optimizer's idx-th tensor of a group, where DeepSpeed's classes have
 * them: after the step, after both moments, at the end. */
void ds_put_onebit_ratios(struct ckpt_writer *w, int file, size_t group, size_t idx);
void ds_put_onebit_errors(struct ckpt_writer *w, int file, size_t group, size_t idx);
void ds_put_onebit_scaling(struct ckpt_writer *w, int file, size_t group, size_t idx);

/* ---- ds_write_module.c: values of keys of the model file ------------------------------------- */

void ds_put_module(struct ckpt_writer *w);
void ds_put_param_shapes(struct ckpt_writer *w);
void ds_put_frozen_shapes(struct ckpt_writer *w);
void ds_put_frozen_fragments(struct ckpt_writer *w);
void ds_put_shared(struct ckpt_writer *w);

/* ---- ds_write_torch.c ------------------------------------------------------------------------ */

/* A master or state: all of its storage but `n_hidden` elements of padding at the end. */
struct ds_optim_tensor {
    int file;
    size_t stream, group, idx, n_hidden;
    enum cz_dtype dtype;
    bool requires_grad;
    const char *ds_id;
};

void ds_put_optim_tensor(struct ckpt_writer *w, const struct ds_optim_tensor *tensor);

/* How many tensors torch's optimizer sees in a group: its parameters, or ZeRO's flat ones. */
size_t ds_n_optim_params(const struct ckpt_writer *w, size_t group);

/* Position in the flat buffer of the k-th parameter of a group as given to the optimizer. */
size_t ds_flat_position(const struct flat_group *flat, size_t k);

/* torch.optim's state_dict(). */
void ds_put_torch(struct ckpt_writer *w, int file);

/* ---- ds_write_json.c ------------------------------------------------------------------------- */

/* A JSON value as Python's json.load() would give it. */
void ds_put_json(struct pickle_writer *p, const struct json_node *node);

/* ---- pairs of a dictionary ------------------------------------------------------------------- */

void ds_pair_int(struct pickle_writer *p, const char *key, int64_t value);
void ds_pair_double(struct pickle_writer *p, const char *key, double value);
void ds_pair_bool(struct pickle_writer *p, const char *key, bool value);
void ds_pair_string(struct pickle_writer *p, const char *key, const char *value);

/* A 1-d tensor of numel elements; ndim and shape are set here. */
void ds_put_flat(struct pickle_writer *p, struct pickle_tensor_desc tensor, size_t numel);

#endif
