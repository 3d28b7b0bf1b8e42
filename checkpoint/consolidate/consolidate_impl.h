/* What the parts of consolidation share.
 *
 *   consolidate.c              the plan (tensors, dtypes, order), the shards' checksums, the check
 *                              of the output
 *   weights.c                  the same tensors into a caller's memory
 *   consolidate_copy.c         pieces in disk order, over threads
 *   consolidate_safetensors.c  output formats: sinks
 *   consolidate_bin.c */
#ifndef CZ_CHECKPOINT_CONSOLIDATE_CONSOLIDATE_IMPL_H
#define CZ_CHECKPOINT_CONSOLIDATE_CONSOLIDATE_IMPL_H

#include "checkpoint/read/checkpoint.h"
#include <czero/checkpoint.h>

struct cons_tensor {
    size_t idx; /* in the view */
    const struct ckpt_tensor *tensor;
    const struct pickle_dtype *dtype; /* as written */
    uint64_t nbytes;
    size_t file_idx; /* set by the sink: which output file, at which byte of it */
    uint64_t file_off;
    size_t storage_idx; /* the sink's own */
};

struct cons_plan {
    const struct cz_consolidate_options *options;
    const struct ckpt *ck;
    struct cons_tensor *tensors; /* (n) in the script's order */
    size_t n, n_aliases;
    uint64_t numel, nbytes; /* of all, ties once */
};

/* `options` and `ck` are borrowed until the plan is freed. CZ_INVALID: no tensor is left. */
cz_status cons_plan_init(struct cons_plan *plan, const struct ckpt *ck,
                         const struct cz_consolidate_options *options);
void cons_plan_free(struct cons_plan *plan); /* accepts zeroed */

/* Elements [elem_off, elem_off + numel) of a tensor in the plan's dtype. Threads: any. */
cz_status cons_fetch(const struct cons_plan *plan, const struct cons_tensor *t, uint64_t elem_off,
                     size_t numel, void *dst);

/* ---- sinks ----------------------------------------------------------------------------------- */

struct cons_sink_class {
    /* Create the output's files under temporary names and place every tensor of the plan. */
    cz_status (*create)(struct cons_plan *plan, void **sink);
    size_t (*n_files)(const void *sink);
    /* Threads: any. */
    cz_status (*write)(void *sink, const struct cons_tensor *t, uint64_t elem_off, size_t numel,
                       const void *src);
    /* Sync and give final names. */
    cz_status (*finish)(void *sink);
    void (*destroy)(void *sink); /* accepts NULL; before the finish removes what was made */

    /* The finished output again. */
    cz_status (*open)(const struct cons_plan *plan, void **output);
    cz_status (*read)(const void *output, const struct cons_tensor *t, uint64_t elem_off,
                      size_t numel, void *dst);
    void (*close)(void *output);
};

extern const struct cons_sink_class cons_sink_bin, cons_sink_safetensors;

/* ---- threads --------------------------------------------------------------------------------- */

/* Some elements of one tensor; buf has space for them, and its address is the piece's place in the
 * output file modulo FILE_DIRECT_ALIGN. buf2 is a second one. */
typedef cz_status (*cons_piece)(void *user, const struct cons_tensor *t, uint64_t elem_off,
                                size_t numel, void *buf, void *buf2);

/* Call `piece` for all elements of the plan, in the order in which they are in the output, from
 * several threads; the first error stops all. base: bytes that progress counts as done before. */
cz_status cons_for_each_piece(const struct cons_plan *plan, cons_piece piece, void *user,
                              bool second_buf, uint64_t base, uint64_t total);

/* Compare the CRC-32 of every zip record of the shards that the plan's weights come from, in a
 * thread of its own. The end waits for it, releases (accepts NULL) and gives its result: CZ_CORRUPT
 * names file, record and byte. begin's *out is to be ended on failure, too. */
struct cons_check;
cz_status cons_check_begin(const struct cons_plan *plan, struct cons_check **out);
cz_status cons_check_end(struct cons_check *c);
#endif
