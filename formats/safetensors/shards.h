/* A model's weights spread over numbered files with an index, as Hugging Face splits and names
 * them: STEM.EXT alone, or STEM-00001-of-0000N.EXT … with STEM.EXT.index.json.
 *
 * All calls are pure, but shards_index_load() and shards_remove_replaced(). */
#ifndef CZ_FORMATS_SAFETENSORS_SHARDS_H
#define CZ_FORMATS_SAFETENSORS_SHARDS_H

#include "formats/json/json.h"
#include "formats/output.h"

CZ_EXTERN_C_BEGIN

struct shards_kind {
    const char *stem, *ext; /* "model", ".safetensors"; "pytorch_model", ".bin" */
};

#define SHARDS_NAME_NBYTES 96

/* Spread n tensors of these sizes, in this order: a shard is closed when the next tensor would
 * exceed `limit` bytes (0: never); a tensor above the limit gets a shard to itself, numbered before
 * the open one. file_of: (n), written. *n_files ≥ 1. */
void shards_split(const uint64_t *nbytes, size_t n, uint64_t limit, size_t *file_of,
                  size_t *n_files);

/* The name of file file_idx of n_files, and of the index. Returns buf. */
const char *shards_file_name(const struct shards_kind *kind, size_t file_idx, size_t n_files,
                             char buf[SHARDS_NAME_NBYTES]);
const char *shards_index_name(const struct shards_kind *kind, char buf[SHARDS_NAME_NBYTES]);

struct shards_entry {
    const char *name;
    size_t file_idx;
};

/* The index file: names sorted, total_size the bytes of all tensors, ties counted once. Reorders
 * the entries. *text is the caller's to free(), not terminated. Errors: CZ_NOMEM. */
cz_status shards_index_text(const struct shards_kind *kind, struct shards_entry *entries, size_t n,
                            size_t n_files, uint64_t total_size, char **text, size_t *nbytes);

/* An index as read: shards_index_load() → the fields → shards_index_free(). */
struct shards_index {
    struct json_doc *doc;
    const struct json_node *map; /* weight_map: every member is a string, the tensor's file */
    const char **files;          /* (n_files) sorted, no two alike, none leads out of the folder */
    size_t n_files;
};

/* dir/name (formats/beneath.h). Errors: CZ_IO, CZ_NOTFOUND, CZ_NOMEM; CZ_CORRUPT with the place (no
 * weight_map, an empty one, a file outside the folder); *out is then empty. */
cz_status shards_index_load(const char *dir, const char *name, struct shards_index *out);
void shards_index_free(struct shards_index *index); /* accepts an empty one */

/* The file that the map names for a tensor; NULL when the map has no such tensor. */
const char *shards_index_file(const struct shards_index *index, const char *tensor);

/* Remove from the folder the files of an earlier set of this kind that a new set of n_files does not have:
 * they would be read instead of, or mistaken for, the new ones; and temporaries of a set that was
 * never finished. Errors: CZ_IO, CZ_NOMEM. */
cz_status shards_remove_replaced(const struct shards_kind *kind, const struct out_folder *folder,
                                 size_t n_files);

CZ_EXTERN_C_END
#endif
