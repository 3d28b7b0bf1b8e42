/* Claim: a document that is parsed and written again says the same, down to the order of keys and
 * the text of numbers; what names the machine it comes from is told from all that only looks so. */
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "tests/support/same_json.h"

#include <ftw.h>

static struct json_doc *parse(const char *text, size_t nbytes)
{
    struct json_doc *doc;
    ck_ok(json_parse(text, nbytes, NULL, JSON_STRICT, &doc));
    return doc;
}

static char *written(const struct json_doc *doc, int indent, json_omit *omit, size_t *nbytes)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, indent);
    ck_ok(json_write_node(&w, json_root(doc), omit));
    ck_ok(json_writer_take(&w, &text, nbytes));
    return text;
}

static void round_trip(const struct json_doc *doc)
{
    for (int indent = 0; indent <= 2; indent += 2) {
        size_t nbytes;
        char *text = written(doc, indent, NULL, &nbytes);
        struct json_doc *again = parse(text, nbytes);
        same_json_nodes(json_root(doc), json_root(again), NULL);
        json_free(again);
        free(text);
    }
}

START_TEST(every_kind_of_value_stays_as_it_is)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "true",
        "-0",
        "1e400",
        "1000000000000000019884624838656",
        "1E-05",
        "0.1000",
        "\"\"",
        "[[], {}, [{}]]",
        "{\"z\": 1, \"a\": 2, \"\": {\"\\\"\\\\\": \"/\\/\"}}",
        "\"\\u0001\\u001f\\b\\f\\n\\r\\t \\u007f \\u00e9 \\u2028 \\ud83d\\ude00\"",
        "\"\xC4\xA0the \xE2\x96\x81 \xF0\x9F\x98\x80 \xC2\x9B \xEF\xBB\xBF\"",
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++) {
        struct json_doc *doc = parse(texts[i], strlen(texts[i]));
        round_trip(doc);
        json_free(doc);
    }
}
END_TEST

static int n_files;

static int try_file(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    struct json_doc *doc;
    const size_t n = strlen(path);
    (void)info, (void)at;
    if (kind != FTW_F || n < 5 || strcmp(path + n - 5, ".json") != 0) return 0;
    if (json_load(path, JSON_STRICT, &doc) != CZ_OK) return 0; /* damaged ones are for others */
    round_trip(doc);
    json_free(doc);
    n_files++;
    return 0;
}

START_TEST(files_of_people_stay_as_they_are)
{
    static const char *const folders[] = {"tokenizers", "models", "real_configs", "runs"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(folders); i++)
        ck_assert_int_eq(nftw(test_fixture(folders[i]), try_file, 16, FTW_PHYS), 0);
    ck_assert_int_gt(n_files, 100);
}
END_TEST

START_TEST(traces_are_left_out_and_nothing_else)
{
    static const char text[] =
        "{\"_name_or_path\": \"gpt2\", \"auto_map\": {\"AutoModel\": \"x.Y\"}, \"n\": 1,"
        " \"text_config\": {\"_name_or_path\": \"\", \"a\": \"/home/me/x\", \"b\": \"b\"},"
        " \"list\": [{\"name_or_path\": 1, \"c\": 2}, \"/in/a/list\"], \"_commit_hash\": null,"
        " \"tokenizer_file\": \"/root/.cache/t.json\", \"vocab_file\": \"vocab.txt\","
        " \"w\": \"C:\\\\Users\\\\me\", \"w2\": \"d:/x\", \"home\": \"~/x\", \"url\": "
        "\"file:///x\","
        " \"share\": \"\\\\\\\\host\\\\x\", \"transformers_version\": \"4.57.0\","
        " \"id2label\": {\"0\": \"/m/09x0r\", \"1\": \"/\"}, \"eos_token\": \"/s/x\","
        " \"added_tokens_decoder\": {\"7\": {\"content\": \"/think\"}}, \"slash\": \"/\","
        " \"chat_template\": \"/a/b\", \"prompt\": \"/a\\nb\", \"template\": \"/{% if x %}\","
        " \"hub\": \"org/name\", \"ratio\": \"a:b\", \"relative\": \"./x\", \"tilde\": \"~\"}";
    static const char want[] =
        "{\"n\": 1, \"text_config\": {\"b\": \"b\"}, \"list\": [{\"c\": 2}, \"/in/a/list\"],"
        " \"vocab_file\": \"vocab.txt\", \"transformers_version\": \"4.57.0\","
        " \"id2label\": {\"0\": \"/m/09x0r\", \"1\": \"/\"}, \"eos_token\": \"/s/x\","
        " \"added_tokens_decoder\": {\"7\": {\"content\": \"/think\"}}, \"slash\": \"/\","
        " \"chat_template\": \"/a/b\", \"prompt\": \"/a\\nb\", \"template\": \"/{% if x %}\","
        " \"hub\": \"org/name\", \"ratio\": \"a:b\", \"relative\": \"./x\", \"tilde\": \"~\"}";
    struct json_doc *doc = parse(text, strlen(text));
    size_t nbytes;
    char *got = written(doc, 0, json_is_trace, &nbytes);
    ck_assert_str_eq(got, want);
    free(got);
    json_free(doc);
}
END_TEST

TEST_MAIN("formats/json_copy", every_kind_of_value_stays_as_it_is, files_of_people_stay_as_they_are,
          traces_are_left_out_and_nothing_else)
