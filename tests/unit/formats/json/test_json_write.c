/* Claims: the writer lays JSON out as Python's json.dumps; floats are the shortest that read back.
 */
#include "base/rng.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

static void sample(struct json_writer *w)
{
    json_begin_object(w);
    json_write_key(w, "a\"b");
    json_write_int(w, -7);
    json_write_key(w, "list");
    json_begin_array(w);
    json_write_double(w, 1e-5);
    json_write_string(w, "x\n\t\\\x01\xc3\xa9");
    json_begin_object(w);
    json_end_object(w);
    json_end_array(w);
    json_write_key(w, "none");
    json_write_null(w);
    json_write_key(w, "yes");
    json_write_bool(w, true);
    json_end_object(w);
}

START_TEST(layout_is_pythons)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, 0);
    sample(&w);
    ck_ok(json_writer_take(&w, &text, NULL));
    ck_assert_str_eq(text,
                     "{\"a\\\"b\": -7, \"list\": [1e-05, \"x\\n\\t\\\\\\u0001\xc3\xa9\", {}], "
                     "\"none\": null, \"yes\": true}");
    free(text);
    json_writer_init(&w, 2);
    sample(&w);
    ck_ok(json_writer_take(&w, &text, NULL));
    ck_assert_str_eq(text, "{\n  \"a\\\"b\": -7,\n  \"list\": [\n    1e-05,\n    "
                           "\"x\\n\\t\\\\\\u0001\xc3\xa9\",\n    {}\n  ],\n  \"none\": null,\n  "
                           "\"yes\": true\n}");
    free(text);
}
END_TEST

START_TEST(floats_read_back_and_are_short)
{
    const struct {
        double value;
        const char *text;
    } cases[] = {{0.0, "0.0"},
                 {-0.0, "-0.0"},
                 {1.0, "1.0"},
                 {0.1, "0.1"},
                 {1e-5, "1e-05"},
                 {0.0001, "0.0001"},
                 {1e16, "1e+16"},
                 {1e15, "1000000000000000.0"},
                 {123456.789, "123456.789"},
                 {5e-324, "5e-324"},
                 {1e22, "1e+22"},
                 {2.5e-8, "2.5e-08"},
                 {0.30000000000000004, "0.30000000000000004"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {INFINITY, "Infinity"}};
    char buf[JSON_FLOAT_NBYTES];
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        ck_assert_str_eq(json_float_text(cases[i].value, buf), cases[i].text);
    struct rng_key key = {.seed = 1};
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)rng_u32(&key, 2 * i) << 32 | rng_u32(&key, 2 * i + 1);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        ck_assert_double_eq(strtod(json_float_text(value, buf), NULL), value);
        ck_assert_uint_lt(strlen(buf), JSON_FLOAT_NBYTES);
    }
}
END_TEST

START_TEST(what_is_written_reads_back)
{
    struct json_writer w;
    char *text;
    size_t n;
    struct json_doc *doc;
    const char *s;
    json_writer_init(&w, 2);
    sample(&w);
    ck_ok(json_writer_take(&w, &text, &n));
    ck_ok(json_parse(text, n, NULL, JSON_STRICT, &doc));
    const struct json_node *list = json_get(json_root(doc), "list");
    ck_ok(json_as_string(json_child(list, 1), &s));
    ck_assert_str_eq(s, "x\n\t\\\x01\xc3\xa9");
    json_free(doc);
    free(text);
}
END_TEST

START_TEST(members_are_key_and_value)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, 0);
    json_begin_object(&w);
    json_put_bool(&w, "b", true);
    json_put_int(&w, "i", -7);
    json_put_size(&w, "n", (size_t)1 << 40);
    json_put_double(&w, "d", 0.5);
    json_put_figure(&w, "known", 0.25);
    json_put_figure(&w, "unknown", NAN);
    json_put_string(&w, "s", "x");
    json_put_string(&w, "none", NULL);
    json_end_object(&w);
    ck_ok(json_writer_take(&w, &text, NULL));
    ck_assert_ptr_nonnull(strstr(text, "\"n\": 1099511627776"));
    ck_assert_ptr_nonnull(strstr(text, "\"known\": 0.25"));
    ck_assert_ptr_nonnull(strstr(text, "\"unknown\": null"));
    ck_assert_ptr_nonnull(strstr(text, "\"none\": null"));
    free(text);
}
END_TEST

/* Formatted text of any length is whole, and a writer that failed stays so. */
START_TEST(formatted_text_of_any_length_is_whole)
{
    static char text[4096];
    const size_t lengths[] = {0, 1, 510, 511, 512, 513, 1023, 4095};
    for (size_t i = 0; i < CZ_ARRAY_LEN(lengths); i++) {
        struct json_writer w;
        char *out;
        size_t n;
        memset(text, 'x', lengths[i]);
        text[lengths[i]] = '\0';
        json_writer_init(&w, 0);
        json_write_format(&w, "%s", text);
        json_write_format(&w, "<%d>", 7);
        ck_ok(json_writer_take(&w, &out, &n));
        ck_assert_uint_eq(n, lengths[i] + 3);
        ck_assert_mem_eq(out, text, lengths[i]);
        ck_assert_str_eq(out + lengths[i], "<7>");
        free(out);
    }
    struct json_writer w;
    char *out;
    json_writer_init(&w, 0);
    w.failed = true; /* no memory, a while ago */
    json_write_format(&w, "%s", "x");
    ck_assert(w.failed);
    ck_fails(json_writer_take(&w, &out, NULL), CZ_NOMEM);
    json_writer_free(&w);
}
END_TEST

TEST_MAIN("formats/json_write", layout_is_pythons, floats_read_back_and_are_short,
          what_is_written_reads_back, members_are_key_and_value,
          formatted_text_of_any_length_is_whole)
