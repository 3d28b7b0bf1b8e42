/* Inside the JSON reader: nodes and the scanner that makes them. */
#ifndef CZ_FORMATS_JSON_JSON_IMPL_H
#define CZ_FORMATS_JSON_JSON_IMPL_H

#include "formats/json/json.h"

#include <cjson/cJSON.h>

struct json_node {
    const struct json_doc *doc;
    const struct json_node *parent; /* NULL: the root */
    const cJSON *item;
    size_t text_off, text_nbytes; /* the value as written */
    enum json_type type;
    uint32_t n_children;
    uint32_t first_child; /* index into doc->children */
    uint32_t first_slot; /* into doc->slots: a table of json_slot_count(n_children) child indices */
};

struct json_doc {
    char *name;
    char *text;
    size_t nbytes;
    enum json_dialect dialect;
    cJSON *tree;
    struct json_node *nodes; /* in document order; nodes[0] is the root */
    size_t n_nodes, nodes_capacity;
    const struct json_node **children;
    uint32_t *slots; /* 1 + index of the child within its object; 0: empty */
};

/* Scan doc->text: fill doc->nodes (all but item, children and slots; first_child then holds the
 * index of the parent) and write strict JSON with the same values to *strict, released by free().
 */
cz_status json_scan(struct json_doc *doc, char **strict);

/* err_set with "NAME:LINE:COL: " of a byte offset in front. `status` CZ_CORRUPT becomes CZ_INVALID
 * in the config dialect. */
cz_status json_fail(const struct json_doc *doc, size_t off, cz_status status, const char *fmt, ...)
    CZ_PRINTF(4, 5);

void json_locate(const struct json_doc *doc, size_t off, int *line, int *column);

#endif
