/* Claims: WordPiece gives the ids that Hugging Face's tokenizers give, for difficult texts under
 * four settings (tests/interop/tokenizers/wordpiece_golden.py made them); what a folder says about
 * names, flags and added tokens counts; a vocabulary that cannot work gets a sentence. */
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <string.h>

#define NBYTES_MAX ((size_t)1 << 20)

static const char *dir;

static void make_dir(void)
{
    dir = test_tmp_make();
}

static void remove_dir(void)
{
    test_tmp_remove(dir);
}

static void write_bytes(const char *name, const char *text, size_t nbytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_save(path, text, nbytes));
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static struct cz_tokenizer *open_dir(void)
{
    struct cz_tokenizer *tok;
    ck_ok(cz_tokenizer_open(dir, &tok));
    return tok;
}

/* The ids of any bytes, as "1 2 3". */
static const char *ids_of(const struct cz_tokenizer *tok, const char *text, size_t nbytes)
{
    static char line[1 << 16];
    struct id_list ids = {0};
    size_t used = 0;
    ck_ok(tok->cls->encode(tok, text, nbytes, &ids));
    line[0] = '\0';
    for (size_t i = 0; i < ids.n; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, i ? " %d" : "%d", ids.ids[i]);
    free(ids.ids);
    return line;
}

static void gives(const struct cz_tokenizer *tok, const char *text, const char *ids)
{
    ck_assert_str_eq(ids_of(tok, text, strlen(text)), ids);
}

/* ---- golden -----------------------------------------------------------------------------------
 */

static char *load(const char *name, size_t *nbytes)
{
    char path[256], *text;
    snprintf(path, sizeof path, "tokenizers/wordpiece/%s", name);
    ck_ok(file_load(test_fixture(path), NBYTES_MAX, &text, nbytes));
    return text;
}

/* Cut where the tokenizer says so, the parts' ids are those of the whole. */
static void check_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                      const char *want)
{
    char both[1 << 14];
    for (size_t from = 0; from < nbytes; from += 1 + nbytes / 8) {
        size_t at = tok->cls->cut(tok, text, nbytes, from);
        ck_assert(at >= from && at <= nbytes);
        const char *left = ids_of(tok, text, at);
        size_t n = (size_t)snprintf(both, sizeof both, "%s", left);
        const char *right = ids_of(tok, text + at, nbytes - at);
        snprintf(both + n, sizeof both - n, n > 0 && right[0] ? " %s" : "%s", right);
        ck_assert_str_eq(both, want);
    }
}

static void check_golden(const char *name)
{
    static const char between[] = "\n%%%\n";
    size_t n_texts, n_lines, n_vocab, n_checked = 0;
    char *texts = load("texts.bin", &n_texts), *lines = load(name, &n_lines);
    char *vocab = load("vocab.txt", &n_vocab), *rest;
    write_bytes("vocab.txt", vocab, n_vocab);
    write_text("tokenizer_config.json", strtok_r(lines, "\n", &rest));
    struct cz_tokenizer *tok = open_dir();
    for (char *text = texts, *end = texts + n_texts; text <= end; n_checked++) {
        char *stop = memmem(text, (size_t)(end - text), between, sizeof between - 1);
        size_t n = (size_t)((stop ? stop : end) - text);
        char *want = strsep(&rest, "\n");
        ck_assert_ptr_nonnull(want);
        ck_assert_msg(strcmp(ids_of(tok, text, n), want) == 0, "%s, text %zu: %s, wanted %s", name,
                      n_checked, ids_of(tok, text, n), want);
        check_cut(tok, text, n, want);
        text += n + sizeof between - 1;
    }
    ck_assert_uint_gt(n_checked, 80);
    cz_tokenizer_close(tok);
    free(texts);
    free(lines);
    free(vocab);
}

START_TEST(ids_are_hugging_faces)
{
    static const char *const names[] = {"uncased.ids", "cased.ids", "accents.ids", "bare.ids"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) check_golden(names[i]);
}
END_TEST

/* ---- what folders say -------------------------------------------------------------------------
 */

#define SPECIALS "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"

START_TEST(rows_have_special_tokens_around_them)
{
    struct cz_tokenizer_input input = {"a b c", 5, "a", 1};
    int32_t ids[16], types[16];
    int64_t n;
    size_t n_cut;
    write_text("vocab.txt", SPECIALS "a\nb\nc\n");
    struct cz_tokenizer *tok = open_dir();
    ck_assert_str_eq(cz_tokenizer_name(tok), "WordPiece");
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 8);
    for (int i = CZ_SPECIAL_PAD; i <= CZ_SPECIAL_MASK; i++)
        ck_assert_int_eq(cz_tokenizer_special_id(tok, (enum cz_special)i), i);
    ck_assert_int_eq(cz_tokenizer_end_id(tok), -1);
    ck_ok(cz_tokenizer_encode_input(tok, &input, 6, ids, types, &n, &n_cut));
    static const int32_t want[] = {2, 5, 6, 3, 5, 3}, want_types[] = {0, 0, 0, 0, 1, 1};
    ck_assert_int_eq(n, 6);
    ck_assert_uint_eq(n_cut, 1);
    ck_assert_mem_eq(ids, want, sizeof want);
    ck_assert_mem_eq(types, want_types, sizeof want_types);
    ck_fails(cz_tokenizer_encode_input(tok, &input, 2, ids, types, &n, NULL), CZ_INVALID);
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(lines_end_in_cr_lf_or_spaces_and_the_last_of_doubles_counts)
{
    write_text("vocab.txt", "\xEF\xBB\xBF[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na\r\n\r\n"
                            "b \t\xC2\xA0\r\na");
    struct cz_tokenizer *tok = open_dir();
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_PAD), 0);
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 9);
    gives(tok, "a b", "8 7");
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(names_and_flags_come_from_tokenizer_config)
{
    write_text("vocab.txt", "<pad>\n<unk>\n<s>\n</s>\nA\na\n[MASK]\n<x>\n");
    write_text("tokenizer_config.json",
               "{\"do_lower_case\": false, \"unk_token\": \"<unk>\", \"pad_token\": "
               "{\"content\": \"<pad>\"}, \"cls_token\": \"<s>\", \"sep_token\": \"</s>\", "
               "\"additional_special_tokens\": [\"<x>\", \"<new>\"]}");
    struct cz_tokenizer *tok = open_dir();
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_CLS), 2);
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_SEP), 3);
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_MASK), 6);
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 9);
    gives(tok, "A a zz<x>a<new><pad>[MASK] [UNK]", "4 5 1 7 5 8 0 6 1 1 1");
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(added_tokens_that_are_normalized_are_found_in_any_case)
{
    write_text("vocab.txt", SPECIALS "a\n");
    write_text("added_tokens.json", "{\"Foo\": 6, \"[bar]\": 7}");
    struct cz_tokenizer *tok = open_dir();
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 8);
    gives(tok, "a fOo afooa F\xC3\xB6o[BAR]", "5 6 5 6 5 6 7");
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(pieces_join_into_text)
{
    static const int64_t ids[] = {2, 5, 6, 7, 5, 8, 3};
    struct cz_tokenizer_decoder *dec;
    const char *piece;
    char text[64] = "";
    size_t n;
    write_text("vocab.txt", SPECIALS "play\n##ing\n,\n!\n");
    struct cz_tokenizer *tok = open_dir();
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    for (size_t i = 0; i < CZ_ARRAY_LEN(ids); i++) {
        ck_ok(cz_tokenizer_decode(dec, ids[i], &piece, &n));
        strcat(text, piece);
    }
    ck_assert_str_eq(text, "[CLS] playing, play! [SEP]");
    cz_tokenizer_decoder_destroy(dec);
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(words_of_more_than_100_characters_are_unknown)
{
    char text[512] = "";
    write_text("vocab.txt", SPECIALS "x\n##x\n");
    struct cz_tokenizer *tok = open_dir();
    memset(text, 'x', 100);
    ck_assert_uint_eq(strlen(ids_of(tok, text, 100)), 2 * 100 - 1);
    text[100] = 'x';
    gives(tok, text, "1");
    strcat(text, " \xC3\x89 x");
    gives(tok, text, "1 1 5");
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(exported_files_open_to_the_same_ids)
{
    char to[256];
    struct cz_tokenizer *copy;
    write_text("vocab.txt", SPECIALS "A\nb\n");
    write_text("tokenizer_config.json", "{\"do_lower_case\": false}");
    struct cz_tokenizer *tok = open_dir();
    ck_ok(cz_tokenizer_export(tok, dir)); /* onto itself */
    snprintf(to, sizeof to, "%s/copy", dir);
    ck_ok(file_make_dirs(to));
    ck_ok(cz_tokenizer_export(tok, to));
    ck_ok(cz_tokenizer_open(to, &copy));
    gives(copy, "A a b", "5 1 6");
    cz_tokenizer_close(copy);
    snprintf(to, sizeof to, "%s/copy/vocab.txt", dir);
    ck_ok(cz_tokenizer_open(to, &copy));
    gives(copy, "A a b", "5 1 6");
    cz_tokenizer_close(copy);
    cz_tokenizer_close(tok);
}
END_TEST

/* ---- tokenizer.json ---------------------------------------------------------------------------
 */

#define JSON_MODEL                                                                                 \
    "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"?\", \"continuing_subword_prefix\": "   \
    "\"@\", \"max_input_chars_per_word\": 3, \"vocab\": {\"?\": 0, \"a\": 3, \"@b\": 5, \"B\": "   \
    "6}}"
#define JSON_SPLIT                                                                                 \
    "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": \"WordPiece\", " \
    "\"prefix\": \"##\"}"

START_TEST(tokenizer_json_says_everything)
{
    struct cz_tokenizer_input input = {"ab", 2, NULL, 0};
    int32_t ids[4];
    int64_t n;
    write_text(
        "tokenizer.json",
        "{" JSON_MODEL
        ", \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": "
        "\"WordPiece\", \"prefix\": \"@\"}, \"normalizer\": null, \"added_tokens\": [{\"id\": 8,"
        " \"content\": \"[CLS]\", \"special\": true}], \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[CLS]\", "
        "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": "
        "[{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
        "\"type_id\": 1}}], \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [8],"
        " \"tokens\": [\"[CLS]\"]}}}}");
    struct cz_tokenizer *tok = open_dir();
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 9);
    gives(tok, "ab abb abbb B b[CLS]", "3 5 3 5 5 0 6 0 8");
    ck_ok(cz_tokenizer_encode_input(tok, &input, 4, ids, NULL, &n, NULL));
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(ids[0], 8);
    cz_tokenizer_close(tok);
}
END_TEST

static void opening_fails(cz_status want, const char *words)
{
    struct cz_tokenizer *tok = (void *)&tok;
    ck_fails(cz_tokenizer_open(dir, &tok), want);
    ck_assert_ptr_null(tok);
    ck_assert_msg(strstr(cz_last_error(), words) != NULL, "%s", cz_last_error());
}

START_TEST(what_tokenizer_json_may_not_say_is_named)
{
    static const struct {
        const char *text;
        cz_status status;
        const char *words;
    } cases[] = {
        {"{" JSON_MODEL ", \"pre_tokenizer\": {\"type\": \"Odd\"}}", CZ_UNSUPPORTED,
         "type Odd is not known"},
        {"{" JSON_MODEL ", " JSON_SPLIT ", \"normalizer\": {\"type\": \"Odd\"}}", CZ_UNSUPPORTED,
         "type Odd"},
        {"{\"model\": {\"type\": \"WordPiece\"}}", CZ_CORRUPT, "\"vocab\" is missing"},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}, " JSON_SPLIT "}", CZ_CORRUPT,
         "contains no tokens"},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"a\": 0}}, " JSON_SPLIT
         "}",
         CZ_CORRUPT, "two tokens have id 0"},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": -1}}, " JSON_SPLIT "}",
         CZ_CORRUPT, "id -1 is outside"},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 1}}, " JSON_SPLIT "}",
         CZ_CORRUPT, "\"[UNK]\", is missing"},
        {"{" JSON_MODEL ", " JSON_SPLIT ", \"post_processor\": {\"type\": \"BertProcessing\", "
         "\"sep\": [\"[SEP]\", 1], \"cls\": [\"[CLS]\", 2]}}",
         CZ_CORRUPT, "not in the vocabulary"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        write_text("tokenizer.json", cases[i].text);
        opening_fails(cases[i].status, cases[i].words);
    }
}
END_TEST

START_TEST(a_vocabulary_that_cannot_work_is_refused)
{
    static const struct {
        const char *vocab, *config;
        cz_status status;
        const char *words;
    } cases[] = {
        {"", "{}", CZ_CORRUPT, "contains no tokens"},
        {"a\nb\n", "{}", CZ_CORRUPT, "\"[UNK]\", is missing"},
        {"[UNK]\n[CLS]\na\n", "{}", CZ_CORRUPT, "\"[SEP]\" is missing"},
        {"[UNK]\n[CLS]\n[SEP]\na\xFF\n", "{}", CZ_CORRUPT,
         "vocab.txt:4: byte 0xff at offset 1 is not UTF-8"},
        {SPECIALS, "{\"unk_token\": \"<unk>\"}", CZ_CORRUPT, "\"<unk>\", is missing"},
        {SPECIALS, "{\"do_lower_case\": 1}", CZ_CORRUPT, "do_lower_case"},
        {SPECIALS, "[]", CZ_CORRUPT, "expected an object"},
        {SPECIALS, "{", CZ_CORRUPT, "tokenizer_config.json:1"},
        {SPECIALS, "{\"tokenizer_class\": \"EsmTokenizer\"}", CZ_UNSUPPORTED, "EsmTokenizer"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        write_text("vocab.txt", cases[i].vocab);
        write_text("tokenizer_config.json", cases[i].config);
        opening_fails(cases[i].status, cases[i].words);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("data/wordpiece");
    TCase *tcase = tcase_create("all");
    static const TTest *const *const cases[] = {
        &ids_are_hugging_faces,
        &rows_have_special_tokens_around_them,
        &lines_end_in_cr_lf_or_spaces_and_the_last_of_doubles_counts,
        &names_and_flags_come_from_tokenizer_config,
        &added_tokens_that_are_normalized_are_found_in_any_case,
        &pieces_join_into_text,
        &words_of_more_than_100_characters_are_unknown,
        &exported_files_open_to_the_same_ids,
        &tokenizer_json_says_everything,
        &what_tokenizer_json_may_not_say_is_named,
        &a_vocabulary_that_cannot_work_is_refused,
    };
    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) tcase_add_test(tcase, *cases[i]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
