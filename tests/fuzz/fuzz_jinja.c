/* Promises: any template is parsed or refused with a sentence, and what is parsed renders with any
 * values, or is refused, in bounded time and memory; texts are UTF-8; spans of generation blocks
 * begin before they end; rendering again gives the same.
 *
 * Input: the template; behind a byte of 0, if there is one, variables as a JSON object. */
#include "base/utf8.h"
#include "data/jinja/jinja.h"
#include "tests/fuzz/fuzz.h"

static const char values[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"\\u00e9\"}],\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":1.5,\"b\":[null,true]}}}]}],\"tools\":null,\"bos_token\":\"<s>\","
    "\"add_generation_prompt\":true,\"i\":7,\"s\":\"a b\"}";

enum { VARS_MAX = 16 };

static void render(const struct jinja_template *t, const struct json_node *root)
{
    struct jinja_var vars[VARS_MAX];
    struct jinja_text first = {0}, again = {0};
    size_t n = json_count(root) < VARS_MAX ? json_count(root) : VARS_MAX;
    for (size_t i = 0; i < n; i++) {
        const struct json_node *child = json_child(root, i);
        vars[i] = (struct jinja_var){.name = json_key(child), .node = child};
    }
    cz_status st = jinja_render(t, vars, n, 0, &first);
    if (st != CZ_OK) {
        fuzz_refused(st);
    } else {
        FUZZ_CHECK(utf8_is_valid(first.text.s, first.text.n));
        for (size_t i = 0; i < first.n_spans; i++)
            FUZZ_CHECK(first.spans[i].begin <= first.spans[i].end);
        FUZZ_CHECK(jinja_marks_generation(t) || first.n_spans == 0);
        FUZZ_CHECK(jinja_render(t, vars, n, 0, &again) == CZ_OK);
        FUZZ_CHECK(again.text.n == first.text.n && again.n_spans == first.n_spans);
        FUZZ_CHECK(first.text.n == 0 || memcmp(again.text.s, first.text.s, first.text.n) == 0);
    }
    jinja_text_free(&first);
    jinja_text_free(&again);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct jinja_template *t;
    struct json_doc *doc;
    const unsigned char *end = nbytes > 0 ? memchr(data, 0, nbytes) : NULL;
    size_t n = end ? (size_t)(end - data) : nbytes;
    char *text = fuzz_copy(data, n);
    cz_status st = jinja_parse(text, n, "template", &t);
    free(text);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    const char *json = end ? (const char *)end + 1 : values;
    size_t json_n = end ? nbytes - n - 1 : sizeof values - 1;
    if (json_parse(json, json_n, "values", JSON_STRICT, &doc) == CZ_OK) {
        if (json_type(json_root(doc)) == JSON_OBJECT) render(t, json_root(doc));
        json_free(doc);
    }
    jinja_free(t);
    return 0;
}
