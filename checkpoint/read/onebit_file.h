/* czero_onebit_rank_R.pt: what differs from rank to rank under the 1-bit optimizers, and what
 * DeepSpeed drops at every load: the errors of compression, and what a rank has moved alone.
 * Written by ckpt_writer_*; format: docs/checkpoint-format.md.
 *
 *   ckpt_onebit_open() → sizes, ckpt_onebit_read() → ckpt_onebit_close() */
#ifndef CZ_CHECKPOINT_READ_ONEBIT_FILE_H
#define CZ_CHECKPOINT_READ_ONEBIT_FILE_H

#include "checkpoint/read/names.h"

CZ_EXTERN_C_BEGIN

#define CKPT_ONEBIT_FORMAT  "czero 1-bit"
#define CKPT_ONEBIT_VERSION 1

struct ckpt_onebit_file; /* opaque */

/* Which file it must be. */
struct ckpt_onebit_want {
    const char *tag_dir;
    const char *optimizer;
    int rank, world_size;
    int64_t step, global_steps;
};

/* Opens and checks all of it but the elements. *out: NULL on error. Errors: CZ_CORRUPT (missing:
 * the caller knows that it should be there; damaged; another rank's or another save's), CZ_VERSION,
 * CZ_IO, CZ_NOMEM. */
cz_status ckpt_onebit_open(const struct ckpt_onebit_want *want, struct ckpt_onebit_file **out);
void ckpt_onebit_close(struct ckpt_onebit_file *file); /* accepts NULL */

const char *ckpt_onebit_path(const struct ckpt_onebit_file *file);

/* A segment: parameters one after the other (numel elements), then padding. */
struct ckpt_onebit_segment {
    size_t n_params;
    uint64_t numel, numel_padded; /* a multiple of the world size */
};

size_t ckpt_onebit_n_segments(const struct ckpt_onebit_file *file);
struct ckpt_onebit_segment ckpt_onebit_segment_at(const struct ckpt_onebit_file *file,
                                                  size_t segment_idx);
const char *ckpt_onebit_param(const struct ckpt_onebit_file *file, size_t segment_idx,
                              size_t param); /* lent */

/* Elements of a segment's worker error (numel_padded), or of the server error of the chunk of this
 * file's rank (numel_padded / world size). Errors: CZ_INVALID (outside), CZ_IO, CZ_CORRUPT. */
cz_status ckpt_onebit_read(const struct ckpt_onebit_file *file, size_t segment_idx, bool is_server,
                           uint64_t off, size_t numel, float *dst);

/* Elements of a parameter's own momentum ("exp_avg") or moves ("momentum_accumulator"). Errors as
 * above; CZ_NOTFOUND: this file has none. */
bool ckpt_onebit_has_states(const struct ckpt_onebit_file *file);
cz_status ckpt_onebit_read_state(const struct ckpt_onebit_file *file, const char *param,
                                 const char *key, uint64_t off, size_t numel, float *dst);

CZ_EXTERN_C_END
#endif
