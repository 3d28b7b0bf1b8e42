/* Which tokens end a text, from a model's folder. Files of a model family disagree on where this
 * stands (config.json, generation_config.json), so each is read alone and the caller decides. */
#include "engine/infer/generate.h"
#include "formats/beneath.h"
#include "formats/json/json.h"

#include <stdlib.h>

/* Append the ids of a number or a list of them; null: none. */
static cz_status add_ends(const struct json_node *node, struct generate_ends *out)
{
    bool is_list = json_type(node) == JSON_ARRAY;
    size_t n = is_list ? json_count(node) : json_type(node) != JSON_NULL;
    for (size_t i = 0; i < n && out->n < GENERATE_ENDS_MAX; i++) {
        int64_t id;
        TRY(json_as_int(is_list ? json_child(node, i) : node, &id));
        if (id >= 0) out->ids[out->n++] = id;
    }
    return CZ_OK;
}

cz_status generate_read_ends(const char *dir, const char *name, struct generate_ends *out)
{
    struct json_doc *doc = NULL;
    cz_status st = CZ_OK;
    out->n = 0;
    if (beneath_is_there(dir, name)) st = json_load_in(dir, name, JSON_STRICT, &doc);
    const struct json_node *node = doc ? json_get(json_root(doc), "eos_token_id") : NULL;
    if (node) st = add_ends(node, out);
    json_free(doc);
    return st;
}
