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
};

enum fsck_kind {
    FSCK_LISTED = 0, /* by a manifest: size and sums are known */
    FSCK_ZIP,
    FSCK_SAFETENSORS
};

struct fsck_file {
    char *path;
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
void fsck_meter_add(struct fsck_meter *meter, uint64_t nbytes);

/* Note damage of `path`; tensor "" and nbytes 0: of the whole file. The sentence is "PATH: …".
 * Errors: CZ_NOMEM. */
cz_status fsck_note(struct fsck_findings *f, const char *path, const char *tensor, uint64_t off,
                    uint64_t nbytes, const char *fmt, ...) CZ_PRINTF(6, 7);

/* The same with the current error's sentence, which is then forgotten. */
cz_status fsck_note_error(struct fsck_findings *f, const char *path);
void fsck_findings_free(struct fsck_findings *f);

/* Whether anything was found in these bytes. */
bool fsck_found_in(const struct fsck_findings *f, uint64_t off, uint64_t nbytes);

/* CRC-32 of bytes [off, off + nbytes), read in pieces through buf (FSCK_PIECE_NBYTES). meter may be
 * NULL. Errors: CZ_IO, CZ_CORRUPT (the file ends before). */
cz_status fsck_crc(int fd, const char *path, uint64_t off, uint64_t nbytes, void *buf,
                   struct fsck_meter *meter, uint32_t *crc);

/* Check one file; damage goes into its findings. Errors: what keeps it from being checked. */
cz_status fsck_check_listed(struct fsck_file *file, void *buf, struct fsck_meter *meter);
cz_status fsck_check_zip(struct fsck_file *file, void *buf, struct fsck_meter *meter);
cz_status fsck_check_safetensors(struct fsck_file *file);

/* The records of an open .pt whose bytes do not have their CRC, those left out in which something
 * was found before. *n_bad: how many. */
cz_status fsck_check_records(struct fsck_file *file, const struct pt *pt, void *buf,
                             struct fsck_meter *meter, size_t *n_bad);

/* What is in a record, as people see it: "data/3 (transformer.wte.weight, exp_avg, and 27 more)",
 * by parameters where a view is open, else by the place in the pickle. */
void fsck_describe_record(const struct fsck_file *file, const struct pt *pt,
                          const struct pt_record *record, char *text, size_t nbytes);

/* Tensors in the tree of an open .pt. */
size_t fsck_count_tensors(const struct pt *pt);

/* Which files of a tag's folder, or of a folder of weights, are to be checked. m: its manifest, or
 * NULL. Missing and stale files, and broken lists, become findings. Errors: CZ_IO, CZ_NOMEM,
 * CZ_NOTFOUND (there is nothing to check). */
cz_status fsck_list_tag(const char *tag_dir, const struct manifest *m, struct fsck_files *files,
                        struct fsck_findings *findings);
cz_status fsck_list_weights(const char *dir, struct fsck_files *files,
                            struct fsck_findings *findings);
cz_status fsck_add_file(struct fsck_files *files, const char *path, enum fsck_kind kind,
                        const struct manifest_file *listed);
void fsck_files_free(struct fsck_files *files);

/* Check all files, several at a time, and hand over what was found, in their order. */
cz_status fsck_check_files(const struct cz_fsck_options *options, struct fsck_files *files,
                           struct cz_fsck_report *report);

/* Hand over findings to the caller of cz_fsck(). */
void fsck_report_findings(const struct cz_fsck_options *options, const struct fsck_findings *f,
                          struct cz_fsck_report *report);

#endif
