/* Promises: any text parses or is refused with a sentence, in both dialects; a strict object is a
 * config document with the same values; every value knows its text and place. */
#include "formats/json/json.h"
#include "tests/fuzz/fuzz.h"

#define N_CHECKED_MAX 20 /* a place in the text is found by counting lines from its beginning */

static void check_node(const struct json_node *node, size_t nbytes)
{
    char buf[64];
    size_t n = 0;
    const char *own = json_text(node, &n);
    FUZZ_CHECK(own && n > 0 && n <= nbytes);
    FUZZ_CHECK(json_line(node) >= 1 && json_column(node) >= 1);
    FUZZ_CHECK(strlen(json_path(node, buf, sizeof buf)) < sizeof buf);
    FUZZ_CHECK(strlen(json_where(node, buf, sizeof buf)) < sizeof buf);
    FUZZ_CHECK(json_type_name(json_type(node))[0] != '\0');
}

static void check_values(const struct json_node *node)
{
    bool boolean;
    int64_t integer;
    double real;
    const char *string = NULL;
    enum json_type type = json_type(node);
    FUZZ_CHECK((json_as_bool(node, &boolean) == CZ_OK) == (type == JSON_BOOL));
    FUZZ_CHECK(json_as_int(node, &integer) != CZ_OK || type == JSON_INT || type == JSON_FLOAT);
    FUZZ_CHECK(json_as_double(node, &real) != CZ_OK || type == JSON_INT || type == JSON_FLOAT);
    if (json_as_string(node, &string) == CZ_OK) FUZZ_CHECK(type == JSON_STRING && string);
    if (type == JSON_STRING && !string) fuzz_refused(cz_last_status());
}

static void walk(const struct json_node *node, size_t nbytes, int *n_left)
{
    if (--*n_left >= 0) {
        check_node(node, nbytes);
        check_values(node);
    }
    for (size_t i = 0; i < json_count(node); i++) {
        const struct json_node *child = json_child(node, i);
        FUZZ_CHECK(child);
        FUZZ_CHECK((json_key(child) != NULL) == (json_type(node) == JSON_OBJECT));
        if (json_key(child)) FUZZ_CHECK(json_get(node, json_key(child)) == child);
        walk(child, nbytes, n_left);
    }
}

static bool is_same(const struct json_node *a, const struct json_node *b)
{
    size_t n_a, n_b;
    const char *text_a = json_text(a, &n_a), *text_b = json_text(b, &n_b);
    if (json_type(a) != json_type(b) || json_count(a) != json_count(b)) return false;
    if (n_a != n_b || memcmp(text_a, text_b, n_a) != 0) return false;
    for (size_t i = 0; i < json_count(a); i++)
        if (!is_same(json_child(a, i), json_child(b, i))) return false;
    return true;
}

static struct json_doc *parse(const char *text, size_t nbytes, enum json_dialect dialect)
{
    struct json_doc *doc;
    int n_left = N_CHECKED_MAX;
    cz_status st = json_parse(text, nbytes, "in.json", dialect, &doc);
    FUZZ_CHECK((st == CZ_OK) == (doc != NULL));
    if (st != CZ_OK) fuzz_refused(st);
    if (doc) walk(json_root(doc), nbytes, &n_left);
    return doc;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    char *text = fuzz_copy(data, nbytes);
    struct json_doc *strict = parse(text, nbytes, JSON_STRICT);
    struct json_doc *config = parse(text, nbytes, JSON_CONFIG);
    if (strict && json_type(json_root(strict)) == JSON_OBJECT)
        FUZZ_CHECK(config && is_same(json_root(strict), json_root(config)));
    json_free(strict);
    json_free(config);
    free(text);
    return 0;
}
