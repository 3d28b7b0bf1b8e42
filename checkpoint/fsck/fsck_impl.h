/* What the parts of fsck share: the files to look at, and what was found in each. */
#ifndef CZ_CHECKPOINT_FSCK_FSCK_IMPL_H
#define CZ_CHECKPOINT_FSCK_FSCK_IMPL_H

#include "checkpoint/fsck/fsck.h"
#include "checkpoint/read/checkpoint.h"
#include "checkpoint/store/manifest.h"

#define FSCK_PIECE_NBYTES ((size_t)1 << 20) /* read at once, by each thread */
#define FSCK_FINDINGS_MAX 200               /* kept for one file; more are counted */

struct fsck_findings {
    struct cz_fsck_finding *items; /* their texts are owned */
    size_t n, cap, n_more;
    bool more_is_damage; /* of n_more, not all are files that could not be read */
};

enum fsck_kind {
    FSCK_LISTED = 0, /* by a manifest: size and sums are known */
    FSCK_ZIP,
    FSCK_SAFETENSORS
};

struct fsck_file {
    char *path;
    const char *dir, *name; /* formats/beneath.h; borrowed, and part of path. NULL, path: a file
                               that the user named */
    enum fsck_kind kind;
    const struct manifest_file *listed;
    const struct ckpt *view; /* of the whole tag, to say whose bytes are where; NULL: not open */
    uint64_t nbytes;         /* to be read */
    /* Results. */
    struct fsck_findings findings;
    uint64_t nbytes_read;
    size_t n_tensors, n_unchecked;
    struct err stop; /* what kept it from being checked */
    bool done;
};

struct fsck_files {
    struct fsck_file *items;
    size_t n, cap;
};

/* Counts bytes for the progress callback, from any thread. */
struct fsck_meter;
/* Note damage of `path`; tensor "" and nbytes 0: of the whole file. The sentence is "PATH: …".
 * Errors: CZ_NOMEM. */
cz_status fsck_note(struct fsck_findings *f, const char *path, const char *tensor, uint64_t off,
                    uint64_t nbytes, const char *fmt, ...) CZ_PRINTF(6, 7);

/* The same with the current error's sentence, which is then forgotten. */
cz_status fsck_note_error(struct fsck_findings *f, const char *path);
void fsck_findings_free(struct fsck_findings *f);

/* Whether anything was found in these bytes. */
bool fsck_found_in(const struct fsck_findings *f, uint64_t off, uint64_t nbytes);

/* Which files of a tag's folder, or of a folder of weights, are to be checked. m: its manifest, or
 * NULL. Missing and stale files, and broken lists, become findings. Errors: CZ_IO, CZ_NOMEM,
 * CZ_NOTFOUND (there is nothing to check). */
cz_status fsck_list_tag(const char *tag_dir, const struct manifest *m, struct fsck_files *files,
                        struct fsck_findings *findings);
cz_status fsck_list_weights(const char *dir, struct fsck_files *files,
                            struct fsck_findings *findings);
cz_status fsck_add_file(struct fsck_files *files, const char *dir, const char *name,
                        enum fsck_kind kind, const struct manifest_file *listed);
void fsck_files_free(struct fsck_files *files);

/* Check all files, several at a time, and hand over what was found, in their order. */
cz_status fsck_check_files(const struct cz_fsck_options *options, struct fsck_files *files,
                           struct cz_fsck_report *report);

/* Hand over findings to the caller of cz_fsck(). */
void fsck_report_findings(const struct cz_fsck_options *options, const struct fsck_findings *f,
                          struct cz_fsck_report *report);

#endif
