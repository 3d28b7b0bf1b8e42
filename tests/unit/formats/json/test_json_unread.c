/* Claims: a watch names the members that its thread asked for by no key, with path and line; those
 * of an inner object only where that was looked into; null, false and empty ones and those of a
 * table never, and those of a table only with its value and its kind of file. Watches nest, and
 * other documents are not noted. */
#include "formats/json/json_unread.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct json_doc *parse(const char *text)
{
    struct json_doc *doc;
    ck_ok(json_parse(text, strlen(text), "a.json", JSON_STRICT, &doc));
    return doc;
}

/* "a (line 1), b.c (line 2)" */
static const char *listed(const struct unread *u, char buf[512])
{
    size_t n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < u->n_names; i++)
        n += (size_t)snprintf(buf + n, 512 - n, "%s%s (%s)", i ? ", " : "", u->names[i].name,
                              u->names[i].place);
    return buf;
}

static const char *left(const struct json_watch *w, const struct json_harmless *known, size_t n,
                        const char *kind, char buf[512])
{
    struct unread u = {.what = "keys"};
    json_watch_collect(w, known, n, kind, &u);
    return listed(&u, buf);
}

START_TEST(what_nobody_asked_for_is_named)
{
    char buf[512];
    struct json_watch *w;
    struct json_doc *doc = parse("{\"a\": 1,\n\"b\": {\"c\": 2, \"d\": 3},\n\"e\": {\"f\": 4},\n"
                                 "\"g\": [{\"h\": 5}], \"n\": null, \"no\": false, \"yes\": true, "
                                 "\"s\": \"\", \"t\": \"x\", \"l\": [], \"o\": {}, \"z\": 0}");
    const struct json_node *root = json_root(doc);
    (void)json_get(root, "z"); /* before the watch: not noted */
    ck_ok(json_watch_begin(doc, &w));
    ck_assert_str_eq(left(w, NULL, 0, NULL, buf),
                     "a (line 1), b (line 2), e (line 3), g (line 4), yes (line 4), t (line 4), "
                     "z (line 4)");
    int64_t value;
    ck_ok(json_opt_int(root, "a", 0, &value));
    ck_ok(json_opt_int(root, "z", 0, &value));
    ck_assert_ptr_null(json_get(root, "absent"));
    ck_ok(json_need_int(json_get(root, "b"), "c", &value));
    (void)json_get(root, "e"); /* not looked into */
    (void)json_get(json_child(json_get(root, "g"), 0), "q");
    ck_assert_str_eq(left(w, NULL, 0, NULL, buf), "b.d (line 2), yes (line 4), t (line 4)");
    json_watch_end(w);
    (void)json_get(root, "t"); /* behind it: nothing to note in */
    json_free(doc);
    json_watch_end(NULL);
}
END_TEST

START_TEST(a_table_says_what_is_harmless)
{
    static const struct json_harmless known[] = {
        {"plain", NULL, NULL},    {"*_id", NULL, NULL},   {"one", "1", NULL},
        {"word", "\"on\"", NULL}, {"here", NULL, "kind"}, {"in.side", "0.5", "kind"},
    };
    const size_t n = sizeof known / sizeof known[0];
    char buf[512];
    struct json_watch *w;
    struct json_doc *doc = parse("{\"plain\": 7, \"a_id\": 1, \"_id\": 2, \"id\": 3, \"one\": 1.0,"
                                 " \"word\": \"on\", \"here\": 1, \"in\": {\"x\": 1, \"side\": "
                                 "0.50}}");
    ck_ok(json_watch_begin(doc, &w));
    (void)json_get(json_get(json_root(doc), "in"), "x");
    ck_assert_str_eq(left(w, known, n, "kind", buf), "id (line 1)");
    ck_assert_str_eq(left(w, known, n, "other", buf),
                     "id (line 1), here (line 1), in.side (line 1)");
    ck_assert_str_eq(left(w, known, n, NULL, buf), "id (line 1), here (line 1), in.side (line 1)");
    json_watch_end(w);
    json_free(doc);
    doc = parse("{\"one\": 2, \"word\": \"off\", \"plainer\": 1, \"in\": {\"x\": 1, \"side\": "
                "50.0}}");
    ck_ok(json_watch_begin(doc, &w));
    (void)json_get(json_get(json_root(doc), "in"), "x");
    ck_assert_str_eq(left(w, known, n, "kind", buf),
                     "one (line 1), word (line 1), plainer (line 1), in.side (line 1)");
    json_watch_end(w);
    json_free(doc);
    doc = parse("{\"one\": 10, \"word\": 1}");
    ck_ok(json_watch_begin(doc, &w));
    ck_assert_str_eq(left(w, known, n, "kind", buf), "one (line 1), word (line 1)");
    json_watch_end(w);
    json_free(doc);
    doc = parse("[1]");
    ck_ok(json_watch_begin(doc, &w));
    ck_assert_str_eq(left(w, known, n, "kind", buf), "");
    json_watch_end(w);
    json_free(doc);
}
END_TEST

START_TEST(watches_nest)
{
    char buf[512];
    struct json_watch *outer, *inner;
    struct json_doc *doc = parse("{\"a\": 1, \"b\": 2}"), *other = parse("{\"a\": 1}");
    ck_ok(json_watch_begin(doc, &outer));
    ck_ok(json_watch_begin(other, &inner));
    (void)json_get(json_root(doc), "a");
    ck_assert_str_eq(left(inner, NULL, 0, NULL, buf), "a (line 1)");
    ck_assert_str_eq(left(outer, NULL, 0, NULL, buf), "b (line 1)");
    (void)json_get(json_root(other), "a");
    ck_assert_str_eq(left(inner, NULL, 0, NULL, buf), "");
    json_watch_end(inner);
    (void)json_get(json_root(doc), "b");
    ck_assert_str_eq(left(outer, NULL, 0, NULL, buf), "");
    json_watch_end(outer);
    json_free(doc);
    json_free(other);
}
END_TEST

TEST_MAIN("formats/json_unread", what_nobody_asked_for_is_named, a_table_says_what_is_harmless,
          watches_nest)
