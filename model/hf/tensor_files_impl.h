/* The weight files of a folder as one set of named tensors, whatever their format: safetensors or
 * torch's pytorch_model.bin, single or in shards.
 *
 * Life cycle: tensor_files_open() → tensor_files_at() / _find() → tensor_files_read() pieces →
 * tensor_files_close(). Files stay open and are read with pread; nothing is loaded whole. */
#ifndef CZ_MODEL_HF_TENSOR_FILES_IMPL_H
#define CZ_MODEL_HF_TENSOR_FILES_IMPL_H

#include "formats/pt/pt.h"
#include "formats/safetensors/safetensors.h"

struct tensor_files; /* opaque */

struct tensor_entry { /* owned by the set */
    const char *stored_name;
    /* Without what wrappers put in front ("module.", "_orig_mod."), and with weight and bias for
     * the gamma and beta of old files. */
    char *name;
    const char *path; /* the file that holds it */
    size_t ndim;
    const int64_t *shape;
    const char *dtype_name;              /* "F32", "float32": as its format calls it */
    bool is_weight;                      /* fp32, bf16, fp16 or fp64 */
    const struct safetensors_info *info; /* this one, or the two below */
    const struct pickle_tensor *tensor;
    const struct pt *pt;
};

/* The first of model.safetensors, its index, pytorch_model.bin, its index. *out is NULL when the
 * folder has none of them and `required` is false. Errors: CZ_NOTFOUND (none, or a shard), what
 * the formats give, CZ_UNSUPPORTED (weights of another format or under another name are there). */
cz_status tensor_files_open(const char *dir, bool required, struct tensor_files **out);
void tensor_files_close(struct tensor_files *files); /* accepts NULL */

size_t tensor_files_count(const struct tensor_files *files);

/* Sorted by name. */
const struct tensor_entry *tensor_files_at(const struct tensor_files *files, size_t idx);

/* By name, told apart without wrappers and old endings; where several are alike, the one stored
 * under `name` itself, then the one stored without either. *out is NULL when there is none. Errors:
 * CZ_NOMEM. */
cz_status tensor_files_find(const struct tensor_files *files, const char *name,
                            const struct tensor_entry **out);

/* Elements [elem_off, elem_off + numel), widened to fp32. CZ_UNSUPPORTED unless is_weight. */
cz_status tensor_files_read(const struct tensor_files *files, const struct tensor_entry *entry,
                            size_t elem_off, size_t numel, float *dst);

/* NULL unless the files are safetensors. */
const struct safetensors *tensor_files_safetensors(const struct tensor_files *files);

#endif
