/* Claims: random tokenizer.json files of every step encode, surround, pair and decode texts as
 * Hugging Face's tokenizers was recorded to do it (tests/interop/tokenizers/pipes_golden.py); no
 * tokenizer touches a byte outside of what it allocated. */
#include "czero/data.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "tests/support/check_main.h"
#include "tests/support/guarded_memory.h"

#include <string.h>

enum { TOKENS_MAX = 1 << 14 };

static int64_t seed;

static void check_ids(const char *what, const struct json_node *expected, const int32_t *ids,
                      size_t n)
{
    int64_t id;
    ck_assert_msg(json_count(expected) == n, "file %lld, %s: %zu ids, not %zu", (long long)seed,
                  what, n, json_count(expected));
    for (size_t i = 0; i < n; i++) {
        ck_ok(json_as_int(json_child(expected, i), &id));
        ck_assert_msg(ids[i] == id, "file %lld, %s: id %zu is %d, not %lld", (long long)seed, what,
                      i, (int)ids[i], (long long)id);
    }
}

/* `first`: where the ids are in the recorded row, before the segments. */
static void check_row(struct cz_tokenizer *tok, const struct json_node *row, size_t first,
                      int64_t max_len, const char *text, const char *pair)
{
    const struct cz_tokenizer_input input = {text, strlen(text), pair, pair ? strlen(pair) : 0};
    int32_t *ids = malloc((size_t)max_len * sizeof *ids),
            *types = malloc((size_t)max_len * sizeof *types);
    int64_t n;
    ck_ok(cz_tokenizer_encode_input(tok, &input, max_len, ids, types, &n, NULL));
    check_ids(text, json_child(row, first), ids, (size_t)n);
    check_ids(text, json_child(row, first + 1), types, (size_t)n);
    free(ids);
    free(types);
}

static void check_cut(struct cz_tokenizer *tok, const struct json_node *row, const char *text,
                      const char *pair)
{
    int64_t max_len;
    ck_ok(json_as_int(json_child(row, 0), &max_len));
    check_row(tok, row, 1, max_len, text, pair);
}

static void check_decoded(struct cz_tokenizer *tok, const int32_t *ids, size_t n_ids,
                          const char *expected)
{
    static char all[1 << 20];
    struct cz_tokenizer_decoder *d;
    const char *part;
    size_t n, at = 0;
    ck_ok(cz_tokenizer_decoder_create(tok, &d));
    for (size_t i = 0; i <= n_ids; i++) {
        if (i < n_ids)
            ck_ok(cz_tokenizer_decode(d, ids[i], &part, &n));
        else
            cz_tokenizer_decoder_end(d, &part, &n);
        ck_assert_uint_lt(at + n, sizeof all);
        if (n > 0) memcpy(all + at, part, n);
        at += n;
    }
    cz_tokenizer_decoder_destroy(d);
    ck_assert_msg(at == strlen(expected) && memcmp(all, expected, at) == 0,
                  "file %lld decodes to\n%.*s\nnot\n%s", (long long)seed, (int)at, all, expected);
}

static void check_text(struct cz_tokenizer *tok, const struct json_node *row, const char *pair)
{
    const char *text, *back;
    int32_t *ids;
    size_t n;
    ck_ok(json_need_string(row, "text", &text));
    ck_ok(json_need_string(row, "back", &back));
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &ids, &n));
    check_ids(text, json_get(row, "ids"), ids, n);
    check_row(tok, json_get(row, "row"), 0, TOKENS_MAX, text, NULL);
    check_row(tok, json_get(row, "pair"), 0, TOKENS_MAX, text, pair);
    for (size_t i = 0; i < json_count(json_get(row, "cut")); i++)
        check_cut(tok, json_child(json_get(row, "cut"), i), text, pair);
    check_decoded(tok, ids, n, back);
    free(ids);
}

static void check_file(const char *dir, const struct json_node *row)
{
    char path[96];
    const char *text, *pair;
    struct cz_tokenizer *tok;
    const struct json_node *texts = json_get(row, "texts");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    ck_ok(json_need_int(row, "seed", &seed));
    ck_ok(json_need_string(row, "file", &text));
    ck_ok(json_need_string(row, "pair", &pair));
    ck_ok(file_save(path, text, strlen(text)));
    ck_ok(cz_tokenizer_open(dir, &tok));
    for (size_t i = 0; i < json_count(texts); i++) check_text(tok, json_child(texts, i), pair);
    cz_tokenizer_close(tok);
}

START_TEST(random_tokenizers_do_as_they_were_recorded_to_do)
{
    char *file, *line, *end, dir[64];
    size_t n, n_files = 0;
    struct json_doc *doc;
    guarded_begin();
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    ck_ok(file_load(test_fixture("pipes/pipes.jsonl"), (size_t)64 << 20, &file, &n));
    for (line = file; line < file + n; line = end + 1, n_files++) {
        end = memchr(line, '\n', (size_t)(file + n - line));
        ck_ok(json_parse(line, (size_t)(end - line), "row", JSON_STRICT, &doc));
        check_file(dir, json_root(doc));
        json_free(doc);
    }
    ck_assert_uint_gt(n_files, 200);
    free(file);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("data/pipes_recorded", random_tokenizers_do_as_they_were_recorded_to_do)
