/* Claims: the reader gives values, paths and places; it refuses what it should with line and
 * column; the config dialect takes what DeepSpeed's parser takes; no bytes make it crash. */
#include "base/rng.h"
#include "formats/json/json.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct json_doc *parse(const char *text, enum json_dialect dialect)
{
    struct json_doc *doc;
    ck_ok(json_parse(text, strlen(text), "f.json", dialect, &doc));
    return doc;
}

static void refuses(const char *text, enum json_dialect dialect, cz_status status,
                    const char *sentence)
{
    struct json_doc *doc;
    ck_fails(json_parse(text, strlen(text), "f.json", dialect, &doc), status);
    ck_assert_ptr_null(doc);
    ck_assert_msg(strstr(cz_last_error(), sentence), "\"%s\" does not hold \"%s\"", cz_last_error(),
                  sentence);
}

START_TEST(values_paths_and_places)
{
    struct json_doc *doc = parse("{\n  \"a\": [1, 2.50, {\"b\": \"x\\u00e9\\n\"}],\n"
                                 "  \"c\": true, \"d\": null\n}",
                                 JSON_STRICT);
    const struct json_node *root = json_root(doc), *a = json_get(root, "a");
    ck_assert_int_eq(json_type(root), JSON_OBJECT);
    ck_assert_uint_eq(json_count(root), 3);
    ck_assert_uint_eq(json_count(a), 3);
    int64_t i;
    double d;
    bool b;
    const char *s;
    size_t n;
    ck_ok(json_as_int(json_child(a, 0), &i));
    ck_assert_int_eq(i, 1);
    ck_ok(json_as_double(json_child(a, 1), &d));
    ck_assert_double_eq(d, 2.5);
    const char *digits = json_text(json_child(a, 1), &n);
    ck_assert_uint_eq(n, 4);
    ck_assert_mem_eq(digits, "2.50", n);
    const struct json_node *text = json_get(json_child(a, 2), "b");
    ck_ok(json_as_string(text, &s));
    ck_assert_str_eq(s, "x\xc3\xa9\n");
    ck_ok(json_need_bool(root, "c", &b));
    ck_assert(b);
    char buf[128];
    ck_assert_str_eq(json_path(text, buf, sizeof buf), "a[2].b");
    ck_assert_str_eq(json_where(text, buf, sizeof buf), "f.json:2:24: a[2].b");
    ck_assert_str_eq(json_key(text), "b");
    ck_assert_ptr_null(json_get(root, "e"));
    ck_ok(json_opt_int(root, "d", 7, &i));
    ck_assert_int_eq(i, 7);
    ck_fails(json_need_int(root, "e", &i), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "f.json:1:1: \"e\" is missing");
    ck_fails(json_need_int(root, "c", &i), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "f.json:3:8: c: expected an integer, got true");
    json_free(doc);
}
END_TEST

START_TEST(numbers_keep_their_kind_and_digits)
{
    struct json_doc *doc = parse("[5e8, 500000000, -0, 1.0, 123456789012345678901234567890123456789"
                                 "0123456789012345678901234567890123456789]",
                                 JSON_STRICT);
    const enum json_type want[] = {JSON_FLOAT, JSON_INT, JSON_INT, JSON_FLOAT, JSON_INT};
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(json_type(json_child(json_root(doc), i)), want[i]);
    int64_t v;
    ck_ok(json_as_int(json_child(json_root(doc), 0), &v));
    ck_assert_int_eq(v, 500000000);
    ck_fails(json_as_int(json_child(json_root(doc), 4), &v), CZ_CORRUPT);
    size_t n;
    json_text(json_child(json_root(doc), 4), &n);
    ck_assert_uint_eq(n, 79);
    json_free(doc);
}
END_TEST

START_TEST(duplicate_keys_are_told_at_any_depth)
{
    refuses("{\"a\": {\"x\": 1,\n \"y\": 2, \"x\": 3}}", JSON_STRICT, CZ_CORRUPT,
            "f.json:2:15: duplicate key \"x\": a.x has a value at line 1, column 13 already");
    char many[4096] = "{";
    for (int i = 0; i < 50; i++) sprintf(many + strlen(many), "\"k%d\": 0, ", i);
    strcat(many, "\"k17\": 1}");
    refuses(many, JSON_STRICT, CZ_CORRUPT, "duplicate key \"k17\"");
}
END_TEST

START_TEST(large_objects_find_their_keys)
{
    size_t capacity = 1 << 20;
    char *text = malloc(capacity);
    size_t at = 0;
    text[at++] = '{';
    for (int i = 0; i < 20000; i++)
        at += (size_t)sprintf(text + at, "%s\"key %d\": %d", i ? "," : "", i, i);
    text[at++] = '}';
    struct json_doc *doc;
    ck_ok(json_parse(text, at, NULL, JSON_STRICT, &doc));
    for (int i = 0; i < 20000; i += 37) {
        char key[32];
        int64_t value;
        sprintf(key, "key %d", i);
        ck_ok(json_need_int(json_root(doc), key, &value));
        ck_assert_int_eq(value, i);
    }
    ck_assert_ptr_null(json_get(json_root(doc), "key 20000"));
    json_free(doc);
    free(text);
}
END_TEST

START_TEST(config_dialect_takes_comments_and_optional_commas)
{
    struct json_doc *doc =
        parse("# a\n// b\n{ /* c */ \"a\": 1 // d\n \"b\": [1, 2,] # e\n \"c\": \"x\" \"d\": {},\n"
              " \"e\": [true /* f */\n null\n \"\\'\"],}\n# end",
              JSON_CONFIG);
    ck_assert_uint_eq(json_count(json_root(doc)), 5);
    ck_assert_uint_eq(json_count(json_get(json_root(doc), "b")), 2);
    ck_assert_uint_eq(json_count(json_get(json_root(doc), "e")), 3);
    json_free(doc);
}
END_TEST

START_TEST(config_dialect_names_the_rest_of_hjson)
{
    refuses("{\"a\": True}", JSON_CONFIG, CZ_UNSUPPORTED,
            "f.json:1:7: not supported: \"True\", a value without quotes; write true");
    refuses("{\"a\": $LR,\n}", JSON_CONFIG, CZ_UNSUPPORTED, "template");
    refuses("{\"a\": 01}", JSON_CONFIG, CZ_UNSUPPORTED, "a number is written like");
    refuses("{a: 1}", JSON_CONFIG, CZ_UNSUPPORTED, "a key without double quotes");
    refuses("{\"a\": 'x'}", JSON_CONFIG, CZ_UNSUPPORTED, "single quotes");
    refuses("{\"a\": '''x'''}", JSON_CONFIG, CZ_UNSUPPORTED, "triple quotes");
    refuses("\"a\": 1", JSON_CONFIG, CZ_UNSUPPORTED, "without braces");
    refuses("{\"a\": 1 \"b\": 2}", JSON_CONFIG, CZ_UNSUPPORTED,
            "a value without quotes; a comma is missing after 1");
    refuses("{\"a\": true\t \"b\": 2}", JSON_CONFIG, CZ_UNSUPPORTED,
            "a comma is missing after true");
}
END_TEST

START_TEST(broken_files_get_a_place_and_a_reason)
{
    const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "f.json:1:1: the file contains no value"},
        {"{\"a\": 1", "f.json:1:1: this object never ends"},
        {"{\"a\": [1, 2", "f.json:1:7: this array never ends"},
        {"{\"a\"; 1}", "f.json:1:5: expected \":\" between"},
        {"{\"a\": }", "f.json:1:7: a value is missing before \"}\""},
        {"{\"a\": \"x\n\"}", "f.json:1:7: this string has no closing quote"},
        {"{\"a\": \"\\q\"}", "\"\\q\" is not an escape"},
        {"{\"a\": \"\\ud800\"}", "half of a surrogate pair"},
        {"{} {}", "f.json:1:4: text after the end"},
        {"{/* x }", "f.json:1:2: this comment never ends"},
        {"{\"a\":: 1}", "a value is missing"},
        {"{,}", "a key in double quotes"},
        {"[1,,2]", "a value is missing"},
        {"{\"\xff\": 1}", "f.json:1:3: byte 0xff is not UTF-8"},
        {"{\"\xd5\xfd\xb8\xba\": 1}", "text; the file looks like gb18030: save it as UTF-8"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        refuses(cases[i].text, JSON_CONFIG, CZ_INVALID, cases[i].sentence);
    refuses("{\"a\": 1,}", JSON_STRICT, CZ_CORRUPT, "f.json:1:8: a comma before \"}\"");
    refuses("{\"a\": 1 // x\n}", JSON_STRICT, CZ_CORRUPT, "comments are not allowed");
    refuses("\xef\xbb\xbf{}", JSON_STRICT, CZ_CORRUPT, "f.json:1:1: a byte-order mark");
    refuses("[1 2]", JSON_STRICT, CZ_CORRUPT, "\"1 2\" is not a JSON value");
    refuses("[\"1\" 2]", JSON_STRICT, CZ_CORRUPT, "expected a comma or \"]\" here");
}
END_TEST

/* Both ends of each range of Unicode's table 3-7, and the sequences just outside. */
START_TEST(strings_are_utf8_to_the_edges)
{
    static const char *const good[] = {"\x7f",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xe0\xbf\xbf",
                                       "\xe1\x80\x80",
                                       "\xec\xbf\xbf",
                                       "\xed\x80\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf0\xbf\xbf\xbf",
                                       "\xf1\x80\x80\x80",
                                       "\xf3\xbf\xbf\xbf",
                                       "\xf4\x80\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2\x7f",
                                      "\xc2\xc0",
                                      "\xdf",
                                      "\xe0\x80\x80",
                                      "\xe0\x9f\xbf",
                                      "\xe1\x80",
                                      "\xe1\x80\x7f",
                                      "\xe1\x7f\x80",
                                      "\xe1\xc0\x80",
                                      "\xed\xa0\x80",
                                      "\xed\xaf\xbf",
                                      "\xed\xb0\x80",
                                      "\xed\xbf\xbf",
                                      "\xf0\x80\x80\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf1\x80\x80",
                                      "\xf1\x80\x80\x7f",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xf8\x88\x80\x80",
                                      "\xfe",
                                      "\xff"};
    char text[64];
    for (size_t i = 0; i < CZ_ARRAY_LEN(good); i++) {
        const char *s;
        snprintf(text, sizeof text, "[\"%s\"]", good[i]);
        struct json_doc *doc = parse(text, JSON_STRICT);
        ck_ok(json_as_string(json_child(json_root(doc), 0), &s));
        ck_assert_str_eq(s, good[i]);
        json_free(doc);
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof text, "[\"%s\"]", bad[i]);
        refuses(text, JSON_STRICT, CZ_CORRUPT, "is not UTF-8");
        snprintf(text, sizeof text, "{\"%s\": 1}", bad[i]);
        refuses(text, JSON_CONFIG, CZ_INVALID, "is not UTF-8");
    }
    refuses("[\"\xC3\xA9\xC3\xA8 \xFF\"]", JSON_STRICT, CZ_CORRUPT, "byte 0xff is not UTF-8 text");
    ck_assert_ptr_null(strstr(cz_last_error(), "looks like")); /* most of it is UTF-8 */
}
END_TEST

START_TEST(depth_is_bounded)
{
    char deep[100001];
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    refuses(deep, JSON_STRICT, CZ_CORRUPT, "more than 200 levels");
    char text[2 * JSON_DEPTH_MAX + 1];
    memset(text, '[', JSON_DEPTH_MAX);
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    text[2 * JSON_DEPTH_MAX] = '\0';
    json_free(parse(text, JSON_STRICT));
}
END_TEST

START_TEST(a_missing_file_says_so)
{
    struct json_doc *doc;
    ck_fails(json_load("/nonexistent/x.json", JSON_STRICT, &doc), CZ_NOTFOUND);
    ck_assert_str_eq(cz_last_error(),
                     "/nonexistent/x.json: cannot be opened: No such file or directory");
    ck_fails(json_load("/", JSON_STRICT, &doc), CZ_IO);
}
END_TEST

/* Mutations of a rich document: whatever comes, an answer and no crash (run under ASan too). */
START_TEST(no_bytes_crash_it)
{
    static const char seed_text[] =
        "{ \"a\": [1, -2.5e+3, true, null, \"x\\u00e9\\ud83d\\ude00\"], // c\n \"b\": {\"c\": {}, "
        "\"d\": [[], [{}]]} /* e */ \"f\": 'g' # h\n }";
    static const char alphabet[] = "{}[]\",:\\/#*'u0e-.\n\r\t tfn\xc3\xa9\xff";
    struct rng_key key = {.seed = 7};
    uint64_t draw = 0;
    for (int round = 0; round < 60000; round++) {
        char text[sizeof seed_text + 8];
        size_t n = sizeof seed_text - 1;
        memcpy(text, seed_text, n);
        int n_edits = 1 + (int)(rng_u32(&key, draw++) % 6);
        for (int e = 0; e < n_edits && n > 2; e++) {
            size_t at = rng_u32(&key, draw++) % n;
            char with = alphabet[rng_u32(&key, draw++) % (sizeof alphabet - 1)];
            switch (rng_u32(&key, draw++) % 3) {
            case 0: text[at] = with; break;
            case 1: memmove(text + at, text + at + 1, --n - at); break;
            default: n = at > 2 ? at : n; break;
            }
        }
        struct json_doc *doc;
        for (int dialect = JSON_STRICT; dialect <= JSON_CONFIG; dialect++) {
            cz_status st = json_parse(text, n, "fuzz", (enum json_dialect)dialect, &doc);
            ck_assert_int_eq(st == CZ_OK, doc != NULL);
            json_free(doc);
        }
    }
}
END_TEST

/* \u escapes at the borders of UTF-8's lengths, and of what a pair of them reaches. */
START_TEST(escapes_become_their_characters)
{
    static const struct {
        const char *text, *value; /* value NULL: refused */
    } cases[] = {
        {"\"\\u0001\\u007f\"", "\x01\x7f"},
        {"\"\\u0080\"", "\xc2\x80"},
        {"\"\\u07ff\\u0800\"", "\xdf\xbf\xe0\xa0\x80"},
        {"\"\\ud7ff\\ue000\\uffff\"", "\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"},
        {"\"\\ud800\\udc00\"", "\xf0\x90\x80\x80"},
        {"\"\\ud83d\\ude00\\uD83D\\uDE00\"", "\xf0\x9f\x98\x80\xf0\x9f\x98\x80"},
        {"\"\\ud801\\udc37x\"", "\xf0\x90\x90\xb7x"},
        {"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf"},
        {"\"\\udc00\"", NULL},
        {"\"\\udfff\"", NULL},
        {"\"\\udbff\"", NULL},
        {"\"\\ud800\\udbff\"", NULL},
        {"\"\\ud800\\ue000\"", NULL},
        {"\"\\ud800\\n\"", NULL},
        {"\"\\ud800\\udc0\"", NULL},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct json_doc *doc = NULL;
        const char *value;
        cz_status st =
            json_parse(cases[i].text, strlen(cases[i].text), "a.json", JSON_STRICT, &doc);
        ck_assert_msg((st == CZ_OK) == (cases[i].value != NULL), "%s", cases[i].text);
        if (st != CZ_OK) {
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "half of a surrogate pair"));
            continue;
        }
        ck_ok(json_as_string(json_root(doc), &value));
        ck_assert_str_eq(value, cases[i].value);
        json_free(doc);
    }
}
END_TEST

START_TEST(a_byte_order_mark_is_skipped_in_configs_only)
{
    static const char text[] = "\xef\xbb\xbf{\"a\": 7}", alone[] = "\xef\xbb\xbf";
    struct json_doc *doc;
    int64_t value;
    ck_ok(json_parse(text, sizeof text - 1, "a.json", JSON_CONFIG, &doc));
    ck_ok(json_need_int(json_root(doc), "a", &value));
    ck_assert_int_eq(value, 7);
    json_free(doc);
    ck_fails(json_parse(alone, sizeof alone - 1, "a.json", JSON_CONFIG, &doc), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "contains no value"));
    ck_fails(json_parse(text, sizeof text - 1, "a.json", JSON_STRICT, &doc), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "a byte-order mark: JSON has none"));
}
END_TEST

TEST_MAIN("formats/json", values_paths_and_places, numbers_keep_their_kind_and_digits,
          duplicate_keys_are_told_at_any_depth, large_objects_find_their_keys,
          config_dialect_takes_comments_and_optional_commas, config_dialect_names_the_rest_of_hjson,
          broken_files_get_a_place_and_a_reason, strings_are_utf8_to_the_edges, depth_is_bounded,
          a_missing_file_says_so, no_bytes_crash_it, escapes_become_their_characters,
          a_byte_order_mark_is_skipped_in_configs_only)
