/* Checkpoints as files, without an engine: consolidation, weights, checking, inspection.
 * DeepSpeed's and czero's alike; they need neither ranks nor a GPU. Calls may run in any thread;
 * two calls on the same output folder must not run at once. */
#ifndef CZERO_CHECKPOINT_H
#define CZERO_CHECKPOINT_H

#include <czero/status.h>

#include <stdio.h>

CZ_EXTERN_C_BEGIN

/* ---- consolidation: the shards of a checkpoint become whole weights -----------------------------
 */

enum cz_consolidate_format { CZ_CONSOLIDATE_BIN = 0, CZ_CONSOLIDATE_SAFETENSORS };

struct cz_consolidate_options {
    size_t size;           /* sizeof(struct cz_consolidate_options) */
    const char *dir, *tag; /* the folder of tags; tag NULL: latest */
    const char *out_dir;   /* created if missing */
    enum cz_consolidate_format format;
    uint64_t shard_nbytes_max; /* 0: one file */
    bool exclude_frozen;
    bool has_dtype;      /* false: fp32 for trained weights; frozen ones are widened to fp32 */
    enum cz_dtype dtype; /* F32, BF16 or F16 for all floating-point tensors */
    bool verify;         /* afterwards read the output again and compare it with the shards */
    int n_threads;       /* 0: chosen by the library */
    /* Bytes so far, verifying included; one call at a time, from any thread. NULL: none. */
    void (*progress)(uint64_t done, uint64_t total, void *user);
    void *user;
    bool finite; /* CZ_DIVERGED where a weight is NaN or infinite, CZ_INVALID where it becomes so in
                    dtype; nothing is left. Without it one warning names such tensors. */
};

struct cz_consolidate_result {
    size_t size; /* sizeof(struct cz_consolidate_result), set by the caller */
    size_t n_tensors, n_aliases, n_files;
    uint64_t numel;  /* unique */
    uint64_t nbytes; /* written */
};

/* Write pytorch_model.bin or model.safetensors, or numbered shards with an index, named and split
 * as DeepSpeed's zero_to_fp32.py does it. Bytes are streamed from the shards to their final
 * offsets: memory does not depend on the model's size. No file gets its final name before all are
 * complete and synced. result may be NULL. Errors: CZ_NOTFOUND, CZ_CORRUPT, CZ_INVALID (shards
 * contradict each other), CZ_IO (no space, read-only, output that reads back differently),
 * CZ_UNSUPPORTED (a buffer of a dtype that the format lacks), CZ_NOMEM. Former files in out_dir
 * stay until the new set is complete; then files of an older set with other shard numbers are
 * removed. */
CZ_API cz_status cz_consolidate(const struct cz_consolidate_options *options,
                                struct cz_consolidate_result *result);

/* "5GB", "200MB", "1.5TB", "300KB": decimal units as Hugging Face reads them; a plain number is
 * bytes. CZ_INVALID; *nbytes ≥ 1. */
CZ_API cz_status cz_parse_size(const char *text, uint64_t *nbytes);

/* ---- weights: the same tensors, read into memory one by one
 * --------------------------------------
 *
 *   cz_weights_open → cz_weights_check → cz_weights_at, cz_weights_read per tensor
 *     → cz_weights_close */

struct cz_weights; /* opaque: what consolidation would write; holds no elements */

#define CZ_WEIGHT_NDIM_MAX 8

struct cz_weights_options {
    size_t size;           /* sizeof(struct cz_weights_options) */
    const char *dir, *tag; /* as in struct cz_consolidate_options, like the rest */
    bool exclude_frozen;
    bool has_dtype;
    enum cz_dtype dtype;
};

struct cz_weight_info {
    size_t size;      /* sizeof(struct cz_weight_info), set by the caller */
    const char *name; /* owned by the cz_weights, as are the aliases */
    enum cz_dtype dtype;
    int ndim;
    int64_t shape[CZ_WEIGHT_NDIM_MAX];
    size_t numel;
    const char *const *aliases; /* further names of a tied weight */
    size_t n_aliases;
};

/* Find the tensors of a checkpoint in its files. *out is released by cz_weights_close(); NULL on
 * error. Errors: those of cz_consolidate() that reading has; CZ_UNSUPPORTED also for a buffer whose
 * dtype has no enum cz_dtype. */
CZ_API cz_status cz_weights_open(const struct cz_weights_options *options, struct cz_weights **out);
CZ_API void cz_weights_close(struct cz_weights *w); /* accepts NULL */

/* Compare the checksums of all that the weights come from: CZ_CORRUPT names the file and the byte.
 * Reads those files once. */
CZ_API cz_status cz_weights_check(const struct cz_weights *w);

/* Tensors are in the order of DeepSpeed's zero_to_fp32.py. Errors: CZ_INVALID (idx, size). */
CZ_API size_t cz_weights_count(const struct cz_weights *w);
CZ_API cz_status cz_weights_at(const struct cz_weights *w, size_t idx, struct cz_weight_info *out);

/* All elements of tensor idx, row-major, into `dst`; nbytes must be numel elements of its dtype.
 * Threads: several may read. Errors: CZ_INVALID (idx, nbytes), CZ_IO, CZ_CORRUPT (the file
 * changed).
 */
CZ_API cz_status cz_weights_read(const struct cz_weights *w, size_t idx, void *dst, size_t nbytes);

/* ---- fsck: is a checkpoint what was saved?
 * ------------------------------------------------------- With czero's manifest: every file
 * present, no byte more or less, CRC-32 of each whole file; damage is named by tensor, or by zip
 * record for headers, padding and pickles. For all checkpoints: structure of every file, CRC of
 * every zip record, consistency over shards. Memory does not grow with the checkpoint. */

struct cz_fsck_finding {
    const char *path;     /* the file */
    const char *tensor;   /* the parameter and its part ("transformer.wte.weight, exp_avg"), the zip
                             record, or "" for the whole file */
    uint64_t off, nbytes; /* position in the file; nbytes 0: the whole file */
    const char *sentence; /* all of it, for people */
    cz_status status;     /* CZ_CORRUPT; CZ_IO: reading failed, so the file may be sound */
};

struct cz_fsck_report {
    size_t size; /* sizeof(struct cz_fsck_report), set by the caller */
    size_t n_files, n_findings;
    size_t n_tensors;   /* pieces of tensors in these files */
    uint64_t nbytes;    /* of these files */
    size_t n_unchecked; /* zip records that carry no CRC, and all tensors of safetensors */
    bool has_manifest;  /* czero's: of any tag, with all_tags */
    char *tag_dir;      /* what was checked; released by cz_fsck_report_free() */
};

struct cz_fsck_options {
    size_t size;     /* sizeof(struct cz_fsck_options) */
    const char *dir; /* a folder of tags, a tag's folder, one of weights (*.safetensors, *.bin), or
                        one file */
    const char *tag; /* NULL: latest */
    bool all_tags;   /* every tag in dir */
    /* From any thread, one at a time; findings in the order of the files. May be NULL. */
    void (*finding)(const struct cz_fsck_finding *finding, void *user);
    void (*progress)(uint64_t done, uint64_t total, void *user); /* bytes of a tag; may be NULL */
    void *user;
};

/* CZ_OK: checked, findings counted in *report: damage, missing and stale files, and a `latest` that
 * names no tag are findings. Errors are only what prevents checking: CZ_NOTFOUND, CZ_IO, CZ_NOMEM,
 * CZ_VERSION, CZ_UNSUPPORTED (torch's legacy format, …); findings in other files are reported all
 * the same. */
CZ_API cz_status cz_fsck(const struct cz_fsck_options *options, struct cz_fsck_report *report);
CZ_API void cz_fsck_report_free(struct cz_fsck_report *report);

/* ---- inspect: what is inside a checkpoint file or folder? ---------------------------------------
 */

struct cz_inspect_options {
    size_t size;      /* sizeof(struct cz_inspect_options) */
    const char *path; /* .pt, .safetensors, or a folder: of tags, of one tag, Hugging Face's */
    const char *tag;  /* folders of tags; NULL: latest */
    bool json;        /* one JSON object; false: a tree for people */
    bool all;  /* tree: every entry of long lists and dictionaries, not the first and last few */
    bool sums; /* read tensors: minimum, maximum, mean, count of non-finite values, CRC-32 */
};

/* Write the description to `out`. Errors: CZ_NOTFOUND,
 * CZ_CORRUPT, CZ_UNSUPPORTED (not a known file type), CZ_IO. */
CZ_API cz_status cz_inspect(const struct cz_inspect_options *options, FILE *out);

CZ_EXTERN_C_END
#endif
