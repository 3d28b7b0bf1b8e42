/* Inside the JSON reader: nodes and the scanner that makes them. */
#ifndef CZ_FORMATS_JSON_JSON_IMPL_H
#define CZ_FORMATS_JSON_JSON_IMPL_H

#include "base/hash.h"
#include "formats/json/json.h"

/* 28 bytes: a file may hold a value in every second byte (docs/fuzzing.md, "Limits"). Offsets and
 * numbers of nodes fit, since no text is longer than JSON_NBYTES_MAX. */
struct json_node {
    uint32_t idx;    /* its own number, by which it finds its document */
    uint32_t parent; /* the number of the container; the root's is 0 */
    uint32_t text_off;
    uint32_t type : 3, text_nbytes : 29; /* the value as written */
    uint32_t key_off;                    /* members: into doc->strings */
    union {
        uint32_t string_off; /* JSON_STRING: into doc->strings */
        struct {
            uint32_t n_children, first_child; /* containers: into doc->children */
        };
    };
};
_Static_assert(sizeof(struct json_node) == 28, "the figure in docs/fuzzing.md");
_Static_assert(JSON_NBYTES_MAX < (size_t)1 << 29, "text_nbytes holds it");

/* Line and column, from 1, of byte JSON_MARK_NBYTES · i of the text: places are asked for one by
 * one, and a search from the beginning for each would take time quadratic in the text. */
struct json_mark {
    uint32_t line, column;
};
#define JSON_MARK_NBYTES ((size_t)1024)

struct json_doc {
    char *name;
    char *text;
    size_t nbytes;
    enum json_dialect dialect;
    struct json_mark *marks;
    size_t n_marks;
    char *strings; /* decoded keys and strings, each with its terminator */
    struct json_nodes *nodes;
    size_t n_nodes, nodes_capacity;
    uint32_t *children;     /* numbers of nodes; those of a container stand together */
    struct hash_index keys; /* members of large objects, by object and key */
};

/* In document order; nodes->at[0] is the root. */
struct json_nodes {
    struct json_doc *doc;
    struct json_node at[];
};

/* Scan doc->text: fill marks, strings and nodes (all but first_child). */
cz_status json_scan(struct json_doc *doc);

/* err_set with "NAME:LINE:COL: " of a byte offset in front. `status` CZ_CORRUPT becomes CZ_INVALID
 * in the config dialect. */
cz_status json_fail(const struct json_doc *doc, size_t off, cz_status status, const char *fmt, ...)
    CZ_PRINTF(4, 5);

/* For json_unread.h: a reader asked for this member. */
void json_watch_note(const struct json_doc *doc, const struct json_node *node);

void json_locate(const struct json_doc *doc, size_t off, int *line, int *column);

#endif
