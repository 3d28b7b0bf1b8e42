/* Consolidation: the shards of a checkpoint become one set of whole weights.
 *
 * Output as DeepSpeed's zero_to_fp32.py names and splits it
 * (docs/deepspeed-behaviour.md, "Consolidation"): pytorch_model.bin or model.safetensors, or
 * numbered shards with an index. Bytes are streamed from the shards to their final offsets; memory
 * does not depend on the model. Nothing appears under a final name before all of it is complete and
 * synced. */
#ifndef CZ_CHECKPOINT_CONSOLIDATE_CONSOLIDATE_H
#define CZ_CHECKPOINT_CONSOLIDATE_CONSOLIDATE_H

#include "checkpoint/read/checkpoint.h"

CZ_EXTERN_C_BEGIN

enum cz_consolidate_format { CZ_CONSOLIDATE_BIN = 0, CZ_CONSOLIDATE_SAFETENSORS };

struct cz_consolidate_options {
    size_t size; /* sizeof(struct cz_consolidate_options) */
    const char *dir, *tag; /* as ckpt_open(); tag NULL: latest */
    const char *out_dir;   /* created if missing */
    enum cz_consolidate_format format;
    uint64_t shard_nbytes_max; /* 0: one file */
    bool exclude_frozen;
    bool has_dtype;      /* false: fp32 for trained weights; frozen ones are widened to fp32 */
    enum cz_dtype dtype; /* F32, BF16 or F16 for all floating-point tensors */
    bool verify;         /* afterwards read the output again and compare it with the shards */
    int n_threads;       /* 0: as many as pay off */
    /* Bytes, verifying included; called by one thread at a time, in any. NULL: none. */
    void (*progress)(uint64_t done, uint64_t total, void *user);
    void *user;
};

struct cz_consolidate_result {
    size_t n_tensors, n_aliases, n_files;
    uint64_t numel;  /* unique */
    uint64_t nbytes; /* written */
};

/* Errors: ckpt_open()'s, CZ_IO (no space, read-only, output that reads otherwise than it was
 * written), CZ_UNSUPPORTED (a buffer of a dtype that the format lacks), CZ_NOMEM. What was in
 * out_dir before stays until the new set is complete; then files of an older set with other shard
 * numbers are removed. */
CZ_API cz_status cz_consolidate(const struct cz_consolidate_options *options,
                                struct cz_consolidate_result *result);

/* "5GB", "200MB", "1.5TB", "300KB": decimal units as Hugging Face reads them; a plain number is
 * bytes. CZ_INVALID; *nbytes ≥ 1. */
CZ_API cz_status cz_parse_size(const char *text, uint64_t *nbytes);

CZ_EXTERN_C_END
#endif
