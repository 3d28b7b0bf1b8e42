/* Whether two documents of JSON say the same: types, strings, order of keys, and the text of
 * numbers. */
#ifndef CZ_TESTS_SAME_JSON_H
#define CZ_TESTS_SAME_JSON_H

#include "formats/json/json.h"
#include "tests/support/check_main.h"

#include <string.h>

/* The place is looked up only where it is needed: that takes as long as reading the document. */
static inline void same_json_check(bool same, const struct json_node *a, const char *what)
{
    char where[512];
    if (!same) ck_abort_msg("%s: %s", json_where(a, where, sizeof where), what);
}

/* Members of `a` for which omit() holds are not in `b`. */
static inline void same_json_nodes(const struct json_node *a, const struct json_node *b,
                                   bool (*omit)(const struct json_node *member))
{
    const char *left, *right;
    size_t n_left, n_right, k = 0;
    same_json_check(json_type(a) == json_type(b), a, "another type");
    switch (json_type(a)) {
    case JSON_STRING:
        ck_ok(json_as_string(a, &left));
        ck_ok(json_as_string(b, &right));
        same_json_check(strcmp(left, right) == 0, a, "another string");
        break;
    case JSON_BOOL:
    case JSON_INT:
    case JSON_FLOAT:
        left = json_text(a, &n_left);
        right = json_text(b, &n_right);
        same_json_check(n_left == n_right && memcmp(left, right, n_left) == 0, a, "another value");
        break;
    case JSON_NULL: break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        for (size_t i = 0; i < json_count(a); i++) {
            const struct json_node *member = json_child(a, i);
            if (json_key(member) && omit && omit(member)) continue;
            same_json_check(k < json_count(b), a, "fewer members");
            const struct json_node *other = json_child(b, k++);
            if (json_key(member))
                same_json_check(strcmp(json_key(member), json_key(other)) == 0, member,
                                "no such key");
            same_json_nodes(member, other, omit);
        }
        same_json_check(k == json_count(b), a, "more members");
        break;
    }
}

#endif
