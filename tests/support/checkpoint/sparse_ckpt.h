/* A checkpoint of any size that takes no disk: DeepSpeed's files of stage 2, with holes for
 * payloads. Every weight's first element is its number + 1, its last one minus that; the rest is
 * zero. Checksums are left out, as torch.serialization.set_crc32_options(False) does. */
#ifndef CZ_TESTS_SPARSE_CKPT_H
#define CZ_TESTS_SPARSE_CKPT_H

#include "formats/file_io.h"
#include "formats/pickle/pickle.h"
#include "tests/support/check_main.h"

#include <fcntl.h>
#include <string.h>

#define SPARSE_WORLD 2
#define SPARSE_TAG   "global_step7"

struct sparse_model {
    size_t n;       /* weights "layers.K.weight" */
    int64_t numel;  /* of each */
    uint64_t whole; /* of all, padded to a multiple of 2·W */
};

static inline struct sparse_model sparse_model(size_t n, int64_t numel)
{
    const uint64_t unit = 2 * SPARSE_WORLD, total = (uint64_t)n * (uint64_t)numel;
    return (struct sparse_model){n, numel, (total + unit - 1) / unit * unit};
}

/* ---- a zip of stored records ------------------------------------------------------------------
 * Files stay below 4 GiB, so that the old 32-bit fields do. */

struct sparse_zip {
    int fd;
    uint64_t end;
    unsigned char central[64 << 10];
    size_t n_central, n_records;
};

static inline size_t sparse_le(unsigned char *p, uint64_t value, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) p[i] = (unsigned char)(value >> 8 * i);
    return nbytes;
}

/* The fields that local header and directory entry have in common. */
static inline size_t sparse_common(unsigned char *p, uint64_t nbytes, size_t name_nbytes)
{
    memset(p, 0, 10); /* version, flags, method, time, date */
    size_t n = 10 + sparse_le(p + 10, 0, 4);
    n += sparse_le(p + n, nbytes, 4);
    n += sparse_le(p + n, nbytes, 4);
    n += sparse_le(p + n, name_nbytes, 2);
    return n + sparse_le(p + n, 0, 2);
}

/* A record of nbytes, a hole when bytes is NULL. Gives the offset of its payload. */
static inline uint64_t sparse_record(struct sparse_zip *zip, const char *name, const void *bytes,
                                     uint64_t nbytes)
{
    unsigned char header[256];
    char full[128];
    snprintf(full, sizeof full, "archive/%s", name);
    const size_t n_name = strlen(full);
    ck_assert_uint_lt(zip->end + nbytes, UINT32_MAX);
    unsigned char *c = zip->central + zip->n_central;
    memcpy(c, "PK\1\2\0\0", 6);
    size_t n = 6 + sparse_common(c + 6, nbytes, n_name);
    n += sparse_le(c + n, 0, 10); /* comment, disk, attributes */
    n += sparse_le(c + n, zip->end, 4);
    memcpy(c + n, full, n_name);
    zip->n_central += n + n_name;
    zip->n_records++;
    memcpy(header, "PK\3\4", 4);
    n = 4 + sparse_common(header + 4, nbytes, n_name);
    memcpy(header + n, full, n_name);
    ck_ok(file_pwrite(zip->fd, name, header, n + n_name, zip->end));
    uint64_t payload = zip->end + n + n_name;
    if (bytes) ck_ok(file_pwrite(zip->fd, name, bytes, nbytes, payload));
    zip->end = payload + nbytes;
    return payload;
}

static inline void sparse_finish(struct sparse_zip *zip)
{
    unsigned char end[22] = "PK\5\6";
    sparse_le(end + 8, zip->n_records, 2);
    sparse_le(end + 10, zip->n_records, 2);
    sparse_le(end + 12, zip->n_central, 4);
    sparse_le(end + 16, zip->end, 4);
    ck_ok(file_pwrite(zip->fd, "directory", zip->central, zip->n_central, zip->end));
    ck_ok(file_pwrite(zip->fd, "end", end, sizeof end, zip->end + zip->n_central));
    close(zip->fd);
}

static inline void sparse_start(struct sparse_zip *zip, const char *dir, const char *name,
                                struct pickle_writer *w)
{
    unsigned char *pickle;
    size_t nbytes;
    char *path = file_join(dir, name);
    memset(zip, 0, sizeof *zip);
    zip->fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    ck_assert_int_ge(zip->fd, 0);
    ck_ok(pickle_writer_take(w, &pickle, &nbytes));
    pickle_writer_destroy(w);
    sparse_record(zip, "data.pkl", pickle, nbytes);
    sparse_record(zip, "version", "3\n", 2);
    free(pickle);
    free(path);
}

/* ---- the checkpoint ---------------------------------------------------------------------------
 */

static inline void sparse_key_int(struct pickle_writer *w, const char *key, int64_t value)
{
    pickle_put_string(w, key);
    pickle_put_int(w, value);
}

static inline void sparse_key_empty(struct pickle_writer *w, const char *key)
{
    pickle_put_string(w, key);
    pickle_dict_begin(w);
    pickle_dict_end(w);
}

static inline void sparse_key_none(struct pickle_writer *w, const char *key)
{
    pickle_put_string(w, key);
    pickle_put_none(w);
}

static inline const char *sparse_name(size_t k)
{
    static char name[64];
    snprintf(name, sizeof name, "layers.%zu.weight", k);
    return name;
}

static inline void sparse_model_file(const struct sparse_model *m, const char *dir)
{
    struct sparse_zip zip;
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    pickle_put_string(w, "module");
    pickle_ordered_dict_begin(w);
    for (size_t k = 0; k < m->n; k++) {
        const struct pickle_tensor_desc t = {.dtype = DTYPE_BF16,
                                             .storage_numel = m->n * (uint64_t)m->numel,
                                             .off = k * (uint64_t)m->numel,
                                             .ndim = 1,
                                             .shape = &m->numel};
        pickle_put_string(w, sparse_name(k));
        pickle_put_tensor(w, &t);
    }
    pickle_dict_end(w);
    pickle_put_string(w, "buffer_names");
    pickle_list_begin(w);
    pickle_list_end(w);
    sparse_key_none(w, "optimizer");
    pickle_put_string(w, "param_shapes");
    pickle_list_begin(w);
    pickle_ordered_dict_begin(w);
    for (size_t k = 0; k < m->n; k++) {
        pickle_put_string(w, sparse_name(k));
        pickle_put_size(w, &m->numel, 1);
    }
    pickle_dict_end(w);
    pickle_list_end(w);
    sparse_key_empty(w, "frozen_param_shapes");
    sparse_key_empty(w, "shared_params");
    sparse_key_empty(w, "frozen_param_fragments");
    sparse_key_none(w, "lr_scheduler");
    sparse_key_int(w, "skipped_steps", 0);
    sparse_key_int(w, "global_steps", 7);
    sparse_key_int(w, "global_samples", 14);
    sparse_key_int(w, "dp_world_size", SPARSE_WORLD);
    sparse_key_int(w, "mp_world_size", 1);
    sparse_key_empty(w, "ds_config");
    pickle_put_string(w, "ds_version");
    pickle_put_string(w, "0.19.8");
    pickle_dict_end(w);
    sparse_start(&zip, dir, "mp_rank_00_model_states.pt", w);
    sparse_record(&zip, "data/0", NULL, m->n * (uint64_t)m->numel * 2);
    sparse_finish(&zip);
}

static inline struct pickle_writer *sparse_optim_pickle(const struct sparse_model *m,
                                                        const int64_t *lean, int rank)
{
    const int64_t part = (int64_t)(m->whole / SPARSE_WORLD);
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    pickle_put_string(w, "optimizer_state_dict");
    pickle_dict_begin(w);
    pickle_put_string(w, "base_optimizer_state");
    pickle_dict_begin(w);
    sparse_key_empty(w, "state");
    pickle_put_string(w, "param_groups");
    pickle_list_begin(w);
    pickle_dict_begin(w);
    pickle_put_string(w, "lr");
    pickle_put_double(w, 1e-4);
    pickle_put_string(w, "params");
    pickle_list_begin(w);
    pickle_put_int(w, 0);
    pickle_list_end(w);
    pickle_dict_end(w);
    pickle_list_end(w);
    pickle_dict_end(w);
    pickle_put_string(w, "single_partition_of_fp32_groups");
    pickle_list_begin(w);
    pickle_put_tensor(
        w, &(struct pickle_tensor_desc){
               .dtype = DTYPE_F32, .storage_numel = (uint64_t)part, .ndim = 1, .shape = lean});
    pickle_list_end(w);
    pickle_put_string(w, "zero_stage");
    pickle_call_begin(w, "deepspeed.runtime.zero.config", "ZeroStageEnum");
    pickle_put_int(w, 2);
    pickle_call_end(w);
    pickle_put_string(w, "group_paddings");
    pickle_list_begin(w);
    pickle_put_int(w, rank == SPARSE_WORLD - 1 ? part - *lean : 0);
    pickle_list_end(w);
    pickle_put_string(w, "partition_count");
    pickle_list_begin(w);
    pickle_put_int(w, SPARSE_WORLD);
    pickle_list_end(w);
    pickle_put_string(w, "ds_version");
    pickle_put_string(w, "0.19.8");
    pickle_dict_end(w);
    sparse_key_empty(w, "ds_config");
    pickle_put_string(w, "ds_version");
    pickle_put_string(w, "0.19.8");
    pickle_dict_end(w);
    return w;
}

/* Element `at` of the flat buffer, if this rank has it. */
static inline void sparse_mark(const struct sparse_zip *zip, uint64_t payload, uint64_t first,
                               uint64_t part, uint64_t at, float value)
{
    if (at < first || at >= first + part) return;
    ck_ok(file_pwrite(zip->fd, "mark", &value, sizeof value, payload + (at - first) * 4));
}

static inline void sparse_optim_file(const struct sparse_model *m, const char *dir, int rank)
{
    const uint64_t part = m->whole / SPARSE_WORLD, first = part * (uint64_t)rank;
    const uint64_t total = m->n * (uint64_t)m->numel;
    const int64_t lean = (int64_t)(total - first < part ? total - first : part);
    struct sparse_zip zip;
    char name[96];
    snprintf(name, sizeof name, "bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt", rank);
    sparse_start(&zip, dir, name, sparse_optim_pickle(m, &lean, rank));
    uint64_t payload = sparse_record(&zip, "data/0", NULL, part * 4);
    for (size_t k = 0; k < m->n; k++) {
        uint64_t off = k * (uint64_t)m->numel;
        sparse_mark(&zip, payload, first, part, off, (float)(k + 1));
        sparse_mark(&zip, payload, first, part, off + (uint64_t)m->numel - 1, -(float)(k + 1));
    }
    sparse_finish(&zip);
}

/* dir/latest and dir/global_step7. */
static inline void sparse_ckpt_make(const char *dir, const struct sparse_model *m)
{
    char *tag = file_join(dir, SPARSE_TAG), *latest = file_join(dir, "latest");
    ck_ok(file_make_dirs(tag));
    sparse_model_file(m, tag);
    for (int r = 0; r < SPARSE_WORLD; r++) sparse_optim_file(m, tag, r);
    ck_ok(file_save(latest, SPARSE_TAG, strlen(SPARSE_TAG)));
    free(latest);
    free(tag);
}

#endif
