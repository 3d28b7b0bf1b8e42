/* Writing a parsed document again: what a file says is kept, its bytes are not. Order of keys,
 * texts of numbers and Unicode stay. */
#ifndef CZ_FORMATS_JSON_JSON_COPY_H
#define CZ_FORMATS_JSON_JSON_COPY_H

#include "formats/json/json.h"
#include "formats/json/json_write.h"

CZ_EXTERN_C_BEGIN

/* Whether a member of an object is left out. */
typedef bool json_omit(const struct json_node *member);

/* The node and all in it. omit NULL: nothing is left out. Errors: CZ_NOMEM; the writer then still
 * has to be freed. */
cz_status json_write_node(struct json_writer *w, const struct json_node *node, json_omit *omit);

/* What names the machine or the place that a Hugging Face file comes from, and does not belong into
 * an export: auto_map (code beside the original), _name_or_path, name_or_path, _commit_hash, and
 * every member whose value is an absolute path, such as tokenizer_file. Tokens, templates and
 * labels may look like paths; they stay. */
bool json_is_trace(const struct json_node *member);

CZ_EXTERN_C_END
#endif
