/* fsck: is this checkpoint what was saved?
 *
 * With our manifest: every file present, no byte more or less, CRC-32 of each whole file; what is
 * damaged is named by tensor, or by zip record for headers, padding, pickles. Then, and for
 * DeepSpeed's folders, which have no manifest: structure of every file, CRC of every zip record,
 * and consistency over shards (ckpt_open()). Memory does not grow with the checkpoint. */
#ifndef CZ_CHECKPOINT_FSCK_FSCK_H
#define CZ_CHECKPOINT_FSCK_FSCK_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct cz_fsck_finding {
    const char *path;     /* the file */
    const char *tensor;   /* the parameter (with what: "transformer.wte.weight, exp_avg"), the zip
                             record, or "" when it is about the whole file */
    uint64_t off, nbytes; /* where in the file; nbytes 0: the whole file */
    const char *sentence; /* all of it, for people */
};

struct cz_fsck_report {
    size_t n_files, n_findings;
    size_t n_tensors;   /* pieces of tensors in these files */
    uint64_t nbytes;    /* of these files */
    size_t n_unchecked; /* zip records that carry no CRC, and all tensors of safetensors */
    bool has_manifest;  /* ours: of some tag, with all_tags */
    char *tag_dir;      /* what was checked; released by cz_fsck_report_free() */
};

struct cz_fsck_options {
    size_t size; /* sizeof(struct cz_fsck_options) */
    const char *dir; /* a folder of tags, a tag's folder, one of weights (*.safetensors, *.bin), or
                        one file */
    const char *tag; /* NULL: latest */
    bool all_tags;   /* every tag in dir */
    /* From any thread, one at a time; findings in the order of the files. */
    void (*finding)(const struct cz_fsck_finding *finding, void *user);
    void (*progress)(uint64_t done, uint64_t total, void *user); /* bytes of a tag; NULL: none */
    void *user;
};

/* CZ_OK: checked, findings counted in *report. Errors are only those that keep something from being
 * checked: CZ_NOTFOUND, CZ_IO, CZ_NOMEM, CZ_VERSION, CZ_UNSUPPORTED (legacy torch format, …); what
 * was found in the other files is reported all the same. Damage is a finding (a tool exits with 4
 * then), and so are missing and stale files and a `latest` that leads nowhere. */
CZ_API cz_status cz_fsck(const struct cz_fsck_options *options, struct cz_fsck_report *report);
CZ_API void cz_fsck_report_free(struct cz_fsck_report *report);

/* The same for programs, as one JSON object: every finding is added as it comes, then the text is
 * taken, the caller's to free(). error: what kept something from being checked, or NULL. create:
 * NULL when memory ran out; destroy accepts NULL. Errors: CZ_NOMEM. */
struct fsck_json;
CZ_API struct fsck_json *fsck_json_create(void);
CZ_API void fsck_json_add(struct fsck_json *j, const struct cz_fsck_finding *finding);
CZ_API cz_status fsck_json_take(struct fsck_json *j, const struct cz_fsck_report *report,
                                const char *error, char **text);
CZ_API void fsck_json_destroy(struct fsck_json *j);

CZ_EXTERN_C_END
#endif
