/* Claims: rows become the ids and the trained tokens that transformers was recorded to find by {%
 * generation %}, or between beginnings of the conversation, with byte-level tokenizers and others;
 * none of them begins otherwise than its generation prompt (tests/interop/chat/masks_golden.py). */
#include "data/chat/chat_encode.h"
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "tests/support/check_main.h"
#include "tests/support/guarded_memory.h"

#include <stdlib.h>
#include <string.h>

static const struct json_node *rows;
static size_t n_checked;

static void check_case(const struct chat_encoder *e, const struct json_node *line,
                       const struct json_node *found)
{
    const struct chat_reading reading = {.chat = e->chat};
    const struct json_node *ids = json_child(found, 1), *mask = json_child(found, 2);
    struct json_writer w;
    struct chat_row row;
    struct chat_tokens t;
    char *text;
    size_t n;
    int64_t k, id, trained;
    ck_ok(json_as_int(json_child(found, 0), &k));
    json_writer_init(&w, 0);
    ck_ok(json_write_node(&w, json_child(rows, (size_t)k), NULL));
    ck_ok(json_writer_take(&w, &text, &n));
    ck_ok(chat_row_read(text, n, "row", &reading, &row));
    ck_ok(chat_encode(e, &row, "row", &t));
    const char *template = NULL;
    ck_ok(json_need_string(line, "template", &template));
    ck_assert_msg(t.n == json_count(ids), "%s\n%s\n%zu ids, not %zu", template, text, t.n,
                  json_count(ids));
    for (size_t i = 0; i < t.n; i++) {
        ck_ok(json_as_int(json_child(ids, i), &id));
        ck_ok(json_as_int(json_child(mask, i), &trained));
        ck_assert_msg(t.ids[i] == id && t.trained[i] == trained,
                      "%s\n%s\ntoken %zu: %d trained %d, not %d trained %d", template, text, i,
                      (int)t.ids[i], (int)t.trained[i], (int)id, (int)trained);
    }
    /* Only rows whose variables change the prompt, but not their text, begin otherwise. */
    ck_assert_msg(t.start.n == 0 || strstr(text, "\"thinking\":false"), "%s\n%s\n%s|", template,
                  text, t.start.n > 0 ? t.start.s : "");
    n_checked++;
    chat_tokens_free(&t);
    chat_row_free(&row);
    free(text);
}

static void check_line(const char *dir, const struct json_node *line)
{
    char path[128], file[96];
    const char *name, *template;
    struct cz_tokenizer *tok;
    struct chat_encoder e;
    const struct json_node *found = json_get(line, "rows");
    ck_ok(json_need_string(line, "tokenizer", &name));
    ck_ok(json_need_string(line, "template", &template));
    snprintf(path, sizeof path, "tokenizers/%s", name);
    snprintf(file, sizeof file, "%s/t.jinja", dir);
    ck_ok(file_save(file, template, strlen(template)));
    ck_ok(cz_tokenizer_open(test_fixture(path), &tok));
    ck_ok(chat_encoder_open(&e, tok, file, NULL));
    for (size_t i = 0; i < json_count(found); i++) check_case(&e, line, json_child(found, i));
    chat_encoder_close(&e);
    cz_tokenizer_close(tok);
}

START_TEST(trained_tokens_are_those_that_transformers_finds)
{
    char *text, *end, dir[64];
    size_t n;
    struct json_doc *head, *doc;
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    guarded_begin();
    ck_ok(file_load(test_fixture("chat_masks.jsonl"), 4 << 20, &text, &n));
    end = memchr(text, '\n', n);
    ck_ok(json_parse(text, (size_t)(end - text), "rows", JSON_STRICT, &head));
    rows = json_get(json_root(head), "rows");
    for (char *line = end + 1; line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        ck_ok(json_parse(line, (size_t)(end - line), "line", JSON_STRICT, &doc));
        check_line(dir, json_root(doc));
        json_free(doc);
    }
    ck_assert_uint_ge(n_checked, 498);
    json_free(head);
    free(text);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("data/chat_recorded", trained_tokens_are_those_that_transformers_finds)
