/* DeepSpeed's names of folders and files (docs/deepspeed-behaviour.md, "Files"), and what a
 * folder holds. */
#ifndef CZ_CHECKPOINT_READ_NAMES_H
#define CZ_CHECKPOINT_READ_NAMES_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define CKPT_LATEST           "latest"
#define CKPT_LATEST_UNIVERSAL "latest_universal"
#define CKPT_MANIFEST         "czero_manifest.json" /* ours, in the tag's folder; DeepSpeed ignores it */
#define CKPT_STATE_NBYTES_MAX ((size_t)64 << 20) /* of the next */
#define CKPT_STATE            "czero_state.json" /* the same: what a run needs beyond DeepSpeed's keys */
#define CKPT_ONEBIT_PREFIX    "czero_onebit_rank_" /* the same: see ckpt_onebit_name() */
#define CKPT_NAME_MAX         96
#define CKPT_STATES_MAX       8 /* kinds of optimizer state with an element per weight */

/* "mp_rank_00_model_states.pt"; at stage 3 "zero_pp_rank_R_mp_rank_00_model_states.pt". */
void ckpt_model_file(int stage, int rank, char out[CKPT_NAME_MAX]);

/* "[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt". Stage 0 has none. */
void ckpt_optim_file(bool bf16, int rank, char out[CKPT_NAME_MAX]);

/* "czero_onebit_rank_00001.pt": what differs from rank to rank under the 1-bit optimizers. Ours;
 * nothing of DeepSpeed's looks for such a name. */
void ckpt_onebit_name(int rank, char out[CKPT_NAME_MAX]);

/* A tag may be any text without '/', control characters, a leading '.' or spaces at its ends, up to
 * 200 bytes, but not "latest" or "latest_universal". CZ_INVALID says what is wrong. This is what
 * czero saves; DeepSpeed also saves "a/b", which the readers below take, part by part, and which
 * never leads above the folder. */
cz_status ckpt_tag_check(const char *tag);

/* The tag that dir/latest names (surrounding white space dropped), free() it. CZ_NOTFOUND: no such
 * file (*tag NULL); CZ_CORRUPT: empty, too long, not a tag, or the name of a link that leads out of
 * dir (a user may give that name as a tag: then the user chose it). universal: latest_universal. */
cz_status ckpt_latest_read(const char *dir, bool universal, char **tag);

/* CZ_NOTFOUND where the folder has a trainer's folders of checkpoints (checkpoint-500), with their
 * names; CZ_OK otherwise. */
cz_status ckpt_check_trainer(const char *dir);

/* CZ_INVALID if a file is there. */
cz_status ckpt_no_file(const char *dir);

/* Where a user's DIR (and TAG, may be NULL) leads: DIR/TAG, DIR/<latest>, DIR/<latest_universal>,
 * or DIR itself when it is a tag's folder (holds *_model_states.pt or zero/). *tag: its last
 * component. Both are the caller's to free(). Errors: CZ_INVALID (TAG cannot be one; DIR is a
 * file), CZ_NOTFOUND (with the tags that are there), CZ_CORRUPT, CZ_IO. */
cz_status ckpt_locate(const char *dir, const char *tag, char **tag_dir, char **tag_out);

/* Whether a folder holds the files of a tag; one that cannot be read holds none. */
bool ckpt_is_tag_folder(const char *path);

/* Names in a folder that end in `suffix` ("" for all), in natural order (digit runs as numbers).
 * Release with ckpt_list_free(). Errors: CZ_NOTFOUND, CZ_IO, CZ_NOMEM. */
struct ckpt_list {
    char **names;
    size_t n;
};
cz_status ckpt_list_files(const char *dir, const char *suffix, struct ckpt_list *out);

/* The same of a folder of dir (formats/beneath.h), CZ_CORRUPT when a link to it leads out. */
cz_status ckpt_list_files_in(const char *dir, const char *name, const char *suffix,
                             struct ckpt_list *out);
void ckpt_list_free(struct ckpt_list *list); /* accepts zeroed */

/* Whether DeepSpeed's engine writes this key of model_states itself, so that a program's value
 * would not come back (docs/deepspeed-behaviour.md, "Model file"). */
bool ckpt_is_own_key(const char *key);

CZ_EXTERN_C_END
#endif
