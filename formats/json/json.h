/* JSON: one reader for every JSON file that czero reads (ds_config.json, Hugging Face's config.json
 * and tokenizer files, safetensors headers), with places for error sentences.
 *
 * Life cycle: json_load() or json_parse(); walk from json_root(); json_free() releases everything.
 * A scanner checks UTF-8, depth and duplicate keys at any depth, notes where each value stands,
 * keeps each number as it was written, and, in the config dialect, takes comments and optional
 * commas as DeepSpeed's parser does.
 *
 * Time is linear in the text; memory at most JSON_BYTES_PER_INPUT times the text, and less than the
 * host has left.
 *
 * Nodes live as long as their document. A document is immutable: threads may share it. */
#ifndef CZ_FORMATS_JSON_JSON_H
#define CZ_FORMATS_JSON_JSON_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define JSON_DEPTH_MAX 200

/* Of any text; of a file in a folder (lists that programs write: tokenizers, indexes); of a file
 * that the user named (settings that people write). */
#define JSON_NBYTES_MAX       (((size_t)1 << 29) - 1)
#define JSON_FILE_NBYTES_MAX  ((size_t)256 << 20)
#define JSON_NAMED_NBYTES_MAX ((size_t)16 << 20)

/* The dearest text is an array of digits: 28 bytes of node, 4 of its parent's list, the text and
 * space for decoded strings for every two bytes, and a copy of the text. */
#define JSON_BYTES_PER_INPUT 20

struct json_doc;
struct json_node;

enum json_dialect {
    JSON_STRICT = 0, /* RFC 8259 */
    /* The part of Hjson that config files use: comments (#, //, slash-star), trailing commas, and
     * commas left out at a line end or after a string, object or array. Strings and keys need
     * double quotes; the rest of Hjson is CZ_UNSUPPORTED with a sentence. */
    JSON_CONFIG = 1
};

enum json_type {
    JSON_NULL = 0,
    JSON_BOOL,
    JSON_INT,   /* a number written without fraction or exponent */
    JSON_FLOAT, /* any other number: 5e8 and 1.0 are floats */
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* Read a whole file that the user named, of at most JSON_NAMED_NBYTES_MAX bytes: it may be a pipe,
 * as `--config <(…)` makes one. Errors: CZ_NOTFOUND, CZ_IO (unreadable), CZ_CORRUPT (too long, or
 * "FILE:LINE:COL: what is wrong"; JSON_CONFIG reports CZ_INVALID instead), CZ_UNSUPPORTED,
 * CZ_NOMEM. *out is NULL then. */
cz_status json_load(const char *path, enum json_dialect dialect, struct json_doc **out);

/* The same of a file of a folder (formats/beneath.h), which must be a regular file, no longer than
 * JSON_FILE_NBYTES_MAX. Errors: as above; CZ_CORRUPT also when the name leads out of the folder. */
cz_status json_load_in(const char *dir, const char *name, enum json_dialect dialect,
                       struct json_doc **out);

/* The same of a file that may be missing (*out is NULL then), whose root is an object: settings. */
cz_status json_load_object(const char *dir, const char *name, struct json_doc **out);

/* Parse `text` of nbytes (copied; no terminator needed). `name` stands for the file in sentences.
 */
cz_status json_parse(const char *text, size_t nbytes, const char *name, enum json_dialect dialect,
                     struct json_doc **out);

/* The same, but takes over `text`, a block of at least nbytes + 1 bytes for free(), also on error.
 */
cz_status json_adopt(char *text, size_t nbytes, const char *name, enum json_dialect dialect,
                     struct json_doc **out);

/* Accepts NULL. */
void json_free(struct json_doc *doc);

const struct json_node *json_root(const struct json_doc *doc);

/* ---- looking --------------------------------------------------------------------------------- */

enum json_type json_type(const struct json_node *node);

/* "null", "true or false", "an integer", "a number", "a string", "an array", "an object". */
const char *json_type_name(enum json_type type);

/* Members of an object or items of an array; 0 for anything else, and for NULL. */
size_t json_count(const struct json_node *node);

/* Child number idx (< json_count), in file order. O(1). */
const struct json_node *json_child(const struct json_node *node, size_t idx);

/* Member of an object by key, or NULL (also when `node` is no object). O(1) on average. */
const struct json_node *json_get(const struct json_node *node, const char *key);

/* The key under which a node stands in its object; NULL for array items and the root. */
const char *json_key(const struct json_node *node);

/* The text as written in the file (numbers: the digits), nbytes long, not terminated. */
const char *json_text(const struct json_node *node, size_t *nbytes);

int json_line(const struct json_node *node);   /* from 1 */
int json_column(const struct json_node *node); /* from 1, in characters */

/* "optimizer.params.betas[1]", or "" for the root. Cut to fit; returns buf. */
const char *json_path(const struct json_node *node, char *buf, size_t buf_nbytes);

/* "FILE:LINE:COL: path" (no path for the root). Cut to fit; returns buf. */
const char *json_where(const struct json_node *node, char *buf, size_t buf_nbytes);

/* ---- values, checked ------------------------------------------------------------------------- */

/* The value as a C type. Errors: CZ_CORRUPT "FILE:LINE:COL: path: expected an integer, got …".
 * Integers may be written 5e8 or 8.0 as long as they are whole and fit; strings are UTF-8, owned by
 * the document. */
cz_status json_as_bool(const struct json_node *node, bool *out);
cz_status json_as_int(const struct json_node *node, int64_t *out);
cz_status json_as_double(const struct json_node *node, double *out);
cz_status json_as_string(const struct json_node *node, const char **out);

/* Member `key` of object `node`, required. Errors: also CZ_CORRUPT when it is missing. */
cz_status json_need(const struct json_node *node, const char *key, enum json_type type,
                    const struct json_node **out);
cz_status json_need_bool(const struct json_node *node, const char *key, bool *out);
cz_status json_need_int(const struct json_node *node, const char *key, int64_t *out);
cz_status json_need_double(const struct json_node *node, const char *key, double *out);
cz_status json_need_string(const struct json_node *node, const char *key, const char **out);

/* Member `key`, or `fallback` when it is missing or null. Errors: present with another type. */
cz_status json_opt_bool(const struct json_node *node, const char *key, bool fallback, bool *out);
cz_status json_opt_int(const struct json_node *node, const char *key, int64_t fallback,
                       int64_t *out);
cz_status json_opt_double(const struct json_node *node, const char *key, double fallback,
                          double *out);
cz_status json_opt_string(const struct json_node *node, const char *key, const char *fallback,
                          const char **out);

CZ_EXTERN_C_END
#endif
