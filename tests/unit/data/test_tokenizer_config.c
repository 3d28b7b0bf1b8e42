/* Claims: beside tokenizer.json, of every kind, what tokenizer_config.json and added_tokens.json
 * have otherwise (first and last tokens, added tokens and their ids, flags) is named once, with
 * --strict an error, and tokenizer.json counts; split_special_tokens is refused; members that mean
 * nothing known are named for every kind of tokenizer, and those that programs write are not. */
#include "base/log.h"
#include "base/text/unread.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <string.h>

#define ADDED                                                                                      \
    "\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true}, "                    \
    "{\"id\": 6, \"content\": \"</s>\", \"special\": true}]"
#define POST                                                                                       \
    ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "    \
    "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "       \
    "\"pair\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": "   \
    "\"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 1}}, "             \
    "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"<s>\": {\"id\": "    \
    "\"<s>\", \"ids\": [5], \"tokens\": [\"<s>\"]}}}"
static const char words[] =
    "{" ADDED ", \"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"model\": {\"type\": "
    "\"WordLevel\", \"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2}, \"unk_token\": \"<unk>\"}}";
static const char begun[] =
    "{" ADDED POST ", \"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"model\": {\"type\": "
    "\"WordLevel\", \"vocab\": {\"<unk>\": 0, \"a\": 1, \"b\": 2}, \"unk_token\": \"<unk>\"}}";
static const char bytes[] =
    "{" ADDED ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
    "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}]}, \"decoder\": {\"type\": "
    "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"b\": 2}, \"merges\": "
    "[]}}";
static const char bert[] =
    "{" ADDED ", \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, "
    "\"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true}, "
    "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": \"WordPiece\", "
    "\"prefix\": \"##\", \"cleanup\": true}, \"model\": {\"type\": \"WordPiece\", \"unk_token\": "
    "\"[UNK]\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, "
    "\"vocab\": {\"[UNK]\": 0, \"a\": 1, \"b\": 2}}}";

static char said[4096];

static void keep(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == LOG_WARN) snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

static void spill(const char *dir, const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (text) ck_ok(file_save(path, text, strlen(text)));
}

/* Opens what these files make; NULL: no such file. *tok NULL on error. */
static cz_status open_with(const char *json, const char *config, const char *added,
                           struct cz_tokenizer **tok)
{
    const char *dir = test_tmp_make();
    spill(dir, "tokenizer.json", json);
    spill(dir, "tokenizer_config.json", config);
    spill(dir, "added_tokens.json", added);
    said[0] = '\0';
    cz_log_set_sink(keep, NULL);
    *tok = NULL;
    cz_status st = cz_tokenizer_open(dir, tok);
    cz_log_set_sink(NULL, NULL);
    test_tmp_remove(dir);
    return st;
}

START_TEST(first_and_last_tokens_are_compared)
{
    static const struct {
        const char *json, *flags, *names; /* names "": nothing is named */
    } cases[] = {
        {words, "", ""},
        {words, ", \"add_bos_token\": false, \"add_eos_token\": false", ""},
        {words, ", \"add_bos_token\": null, \"add_eos_token\": null", ""},
        {words, ", \"add_bos_token\": true", "add_bos_token (true; tokenizer.json adds none)"},
        {words, ", \"add_eos_token\": true", "add_eos_token (true; tokenizer.json adds none)"},
        {begun, ", \"add_bos_token\": true", ""},
        {begun, ", \"add_bos_token\": true, \"add_eos_token\": false", ""},
        {begun, ", \"add_bos_token\": false", "add_bos_token (false; tokenizer.json adds it)"},
        {begun, ", \"add_eos_token\": false", ""},
        {begun, ", \"add_bos_token\": true, \"add_eos_token\": true",
         "add_eos_token (true; tokenizer.json adds none)"},
        {bytes, ", \"add_bos_token\": true", "add_bos_token (true; tokenizer.json adds none)"},
        {bert, ", \"add_eos_token\": true", "add_eos_token (true; tokenizer.json adds none)"},
    };
    struct cz_tokenizer *tok;
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char config[300];
        snprintf(config, sizeof config, "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"%s}",
                 cases[i].flags);
        ck_ok(open_with(cases[i].json, config, NULL, &tok));
        ck_assert_uint_eq(tok->one.n, cases[i].json == begun ? 2 : 0); /* as tokenizer.json says */
        if (cases[i].names[0])
            ck_assert_msg(strstr(said, cases[i].names) != NULL, "%zu: %s", i, said);
        else
            ck_assert_msg(said[0] == '\0', "%zu: %s", i, said);
        cz_tokenizer_close(tok);
    }
    ck_ok(open_with(begun, "{\"add_bos_token\": true}", NULL, &tok)); /* which has no name */
    ck_assert_ptr_nonnull(strstr(said, "add_bos_token (true; tokenizer.json adds none)"));
    cz_tokenizer_close(tok);
    ck_assert_int_eq(open_with(words, "{\"add_bos_token\": 3}", NULL, &tok), CZ_CORRUPT);
}
END_TEST

START_TEST(what_tokenizer_json_has_otherwise_is_named)
{
    static const struct {
        const char *json, *config, *added, *names; /* names "": nothing is named */
    } cases[] = {
        {words,
         "{\"added_tokens_decoder\": {\"5\": {\"content\": \"<s>\"}, \"1\": {\"content\": "
         "\"a\"}}}",
         "{\"<s>\": 5, \"</s>\": 6}", ""},
        {words, "{\"added_tokens_decoder\": {\"7\": {\"content\": \"<new>\"}}}", NULL,
         "<new> (a token that tokenizer.json lacks)"},
        {words,
         "{\"added_tokens_decoder\": {\"4\": {\"content\": \"<s>\"}, \"2\": {\"content\": "
         "\"a\"}}}",
         NULL, "<s> (token 4; 5 in tokenizer.json), a (token 2; 1 in tokenizer.json)"},
        {words, NULL, "{\"<s>\": 5, \"<late>\": 9}", "<late> (a token that tokenizer.json lacks)"},
        {words, NULL, "{\"</s>\": 9}", "</s> (token 9; 6 in tokenizer.json)"},
        {words, NULL, "-----BEGIN-----", ""},
        {words, "{\"pad_token\": \"<pad>\"}", NULL, "<pad> (a token that tokenizer.json lacks)"},
        {words, "{\"pad_token\": null, \"bos_token\": {\"content\": \"<s>\"}}", NULL, ""},
        {words, "{\"add_prefix_space\": true}", NULL, ""}, /* no such step */
        {bytes, "{\"add_prefix_space\": false}", NULL, ""},
        {bytes, "{\"add_prefix_space\": null}", NULL, ""},
        {bytes, "{\"add_prefix_space\": true}", NULL,
         "add_prefix_space (true; tokenizer.json has false)"},
        {bert, "{\"do_lower_case\": true, \"tokenize_chinese_chars\": true}", NULL, ""},
        {bert, "{\"do_lower_case\": false, \"tokenize_chinese_chars\": false}", NULL,
         "do_lower_case (false; tokenizer.json has true), tokenize_chinese_chars (false; "
         "tokenizer.json has true)"},
        {bert, "{\"strip_accents\": null}", NULL, ""},
        {bert, "{\"strip_accents\": true}", NULL, ""},
        {bert, "{\"strip_accents\": false}", NULL,
         "strip_accents (false; tokenizer.json has true)"},
        {words, "{\"frobnicate\": true, \"idle\": false}", NULL, "frobnicate (line 1)"},
        {words,
         "{\"model_max_length\": 1000, \"clean_up_tokenization_spaces\": false, \"legacy\": true, "
         "\"tokenizer_class\": \"LlamaTokenizer\", \"padding_side\": \"left\", "
         "\"sp_model_kwargs\": {\"a\": 1}, \"image_token\": \"<image>\", \"chat_template\": \"x\", "
         "\"extra_special_tokens\": [\"a\"], \"split_special_tokens\": false, \"backend\": "
         "\"tokenizers\", \"errors\": \"replace\"}",
         NULL, ""},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_tokenizer *tok;
        ck_ok(open_with(cases[i].json, cases[i].config, cases[i].added, &tok));
        const char *at = strstr(said, "czero does not use: ");
        if (cases[i].names[0])
            ck_assert_msg(at && strncmp(at + strlen("czero does not use: "), cases[i].names,
                                        strlen(cases[i].names)) == 0,
                          "%zu: %s", i, said);
        else
            ck_assert_msg(said[0] == '\0', "%zu: %s", i, said);
        cz_tokenizer_close(tok);
        if (!cases[i].names[0]) continue;
        cz_set_strict(true);
        ck_assert_int_eq(open_with(cases[i].json, cases[i].config, cases[i].added, &tok),
                         CZ_INVALID);
        cz_set_strict(false);
    }
}
END_TEST

START_TEST(every_kind_tells_added_tokens)
{
    static const char *const kinds[] = {words, bytes, bert};
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++) {
        struct cz_tokenizer *tok;
        ck_ok(open_with(kinds[i], NULL, NULL, &tok));
        ck_assert_ptr_nonnull(tok->cls->is_added);
        ck_assert(tok->cls->is_added(tok, 5));
        ck_assert(tok->cls->is_added(tok, 6));
        ck_assert(!tok->cls->is_added(tok, 1));
        cz_tokenizer_close(tok);
    }
}
END_TEST

START_TEST(split_special_tokens_are_refused)
{
    struct cz_tokenizer *tok;
    ck_assert_int_eq(open_with(words, "{\"split_special_tokens\": true}", NULL, &tok),
                     CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "split_special_tokens"));
    ck_assert_int_eq(open_with(words, "{\"split_special_tokens\": 1}", NULL, &tok), CZ_CORRUPT);
}
END_TEST

/* Many tokens that are missing take no time in the square of their number. */
START_TEST(many_missing_tokens_are_counted)
{
    enum { N = 20000 };
    char *config = malloc((size_t)N * 64), *json = malloc((size_t)N * 64);
    size_t n = (size_t)sprintf(config, "{\"added_tokens_decoder\": {");
    size_t k = (size_t)sprintf(json, "{\"added_tokens\": [");
    for (int i = 0; i < N; i++) {
        n += (size_t)sprintf(config + n, "%s\"%d\": {\"content\": \"m%d\"}", i ? ", " : "", i, i);
        k += (size_t)sprintf(json + k, "%s{\"id\": %d, \"content\": \"h%d\"}", i ? ", " : "", i + 3,
                             i);
    }
    sprintf(config + n, "}}");
    sprintf(json + k,
            "], \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"<unk>\": 0, \"a\": 1}, "
            "\"unk_token\": \"<unk>\"}}");
    struct cz_tokenizer *tok;
    ck_ok(open_with(json, config, NULL, &tok));
    ck_assert_ptr_nonnull(strstr(said, "m0 (a token that tokenizer.json lacks), m1"));
    ck_assert_ptr_nonnull(strstr(said, ", and 19984 of other names\n"));
    cz_tokenizer_close(tok);
    free(config);
    free(json);
}
END_TEST

TEST_MAIN("data/tokenizer_config", first_and_last_tokens_are_compared,
          what_tokenizer_json_has_otherwise_is_named, every_kind_tells_added_tokens,
          split_special_tokens_are_refused, many_missing_tokens_are_counted)
