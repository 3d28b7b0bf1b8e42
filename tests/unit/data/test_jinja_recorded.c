/* Claims: every filter, test, method, operator and statement renders as Jinja itself, in
 * transformers' environment, was recorded to render it, and refuses what Jinja refuses
 * (tests/interop/chat/jinja_golden.py); no rendering touches a byte outside of what it allocated.
 */
#include "data/jinja/jinja.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include "tests/support/guarded_memory.h"

#include <string.h>
#include <time.h>

enum { VARS_MAX = 64 };

static struct jinja_var vars[VARS_MAX];
static size_t n_vars;
static int64_t now;

static void take_variables(const struct json_node *head)
{
    const struct json_node *values = json_get(head, "values");
    ck_assert_ptr_nonnull(values);
    ck_ok(json_need_int(head, "now", &now));
    n_vars = json_count(values);
    ck_assert_uint_le(n_vars, VARS_MAX);
    for (size_t i = 0; i < n_vars; i++)
        vars[i] = (struct jinja_var){.name = json_key(json_child(values, i)),
                                     .node = json_child(values, i)};
}

static void check_spans(const struct json_node *row, const char *text, const struct jinja_text *out)
{
    const struct json_node *spans = json_get(row, "spans");
    ck_assert_msg(out->n_spans == (spans ? json_count(spans) : 0), "%s: %zu spans", text,
                  out->n_spans);
    for (size_t i = 0; i < out->n_spans; i++) {
        int64_t begin, end;
        ck_ok(json_as_int(json_child(json_child(spans, i), 0), &begin));
        ck_ok(json_as_int(json_child(json_child(spans, i), 1), &end));
        ck_assert_msg((int64_t)out->spans[i].begin == begin && (int64_t)out->spans[i].end == end,
                      "%s: span %zu is %zu to %zu", text, i, out->spans[i].begin,
                      out->spans[i].end);
    }
}

static void check_row(const struct json_node *row)
{
    const char *text, *expected, *refused = NULL;
    struct jinja_template *t = NULL;
    struct jinja_text out = {0};
    ck_ok(json_need_string(row, "t", &text));
    cz_status st = jinja_parse(text, strlen(text), "snippet", &t);
    if (st == CZ_OK) st = jinja_render(t, vars, n_vars, now, &out);
    if (json_get(row, "refused")) {
        ck_ok(json_need_string(row, "refused", &refused));
        const cz_status wanted = strcmp(refused, "invalid") == 0 ? CZ_INVALID : CZ_UNSUPPORTED;
        ck_assert_msg(st == wanted, "%s: %s, not %s (%s)", text, cz_status_name(st),
                      cz_status_name(wanted), cz_last_error());
        ck_assert_msg(strncmp(cz_last_error(), "snippet:", 8) == 0, "%s: %s", text,
                      cz_last_error());
    } else {
        ck_assert_msg(st == CZ_OK, "%s: %s", text, cz_last_error());
        ck_ok(json_need_string(row, "out", &expected));
        ck_assert_msg(out.text.n == strlen(expected) &&
                          memcmp(out.text.n ? out.text.s : "", expected, out.text.n) == 0,
                      "%s gives\n%.*s\nnot\n%s", text, (int)out.text.n, out.text.s, expected);
        check_spans(row, text, &out);
    }
    jinja_text_free(&out);
    jinja_free(t);
}

START_TEST(snippets_render_as_jinja_was_recorded_to_render_them)
{
    char *file, *line, *end;
    size_t n, n_rows = 0;
    struct json_doc *head, *doc;
    setenv("TZ", "UTC", 1);
    tzset();
    guarded_begin();
    ck_ok(file_load(test_fixture("jinja_snippets.jsonl"), (size_t)16 << 20, &file, &n));
    line = file;
    end = memchr(line, '\n', n);
    ck_ok(json_parse(line, (size_t)(end - line), "head", JSON_STRICT, &head));
    take_variables(json_root(head));
    for (line = end + 1; line < file + n; line = end + 1, n_rows++) {
        end = memchr(line, '\n', (size_t)(file + n - line));
        ck_ok(json_parse(line, (size_t)(end - line), "row", JSON_STRICT, &doc));
        check_row(json_root(doc));
        json_free(doc);
    }
    ck_assert_uint_gt(n_rows, 1500);
    json_free(head);
    free(file);
}
END_TEST

TEST_MAIN("data/jinja_recorded", snippets_render_as_jinja_was_recorded_to_render_them)
