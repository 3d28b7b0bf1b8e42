/* Claims: the bytes tokenizer maps bytes to their values; a name that is no tokenizer, or one of a
 * kind that is not read, gets a sentence; bytes that are not UTF-8 are an error with their offset,
 * except for the bytes tokenizer; two texts are cut as Hugging Face cuts them; decoding as
 * a stream emits only whole characters and replaces broken ones exactly as a decoder of the whole
 * text would. */
#include "base/status.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <string.h>

START_TEST(bytes_are_their_own_ids)
{
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_ok(cz_tokenizer_open("bytes", &tok));
    ck_assert_str_eq(cz_tokenizer_name(tok), "bytes");
    ck_assert_int_eq(cz_tokenizer_vocab_size(tok), 256);
    ck_assert_int_eq(cz_tokenizer_end_id(tok), -1);
    ck_ok(cz_tokenizer_encode(tok, "a\0\xff", 3, &ids, &n));
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(ids[0], 'a');
    ck_assert_int_eq(ids[1], 0);
    ck_assert_int_eq(ids[2], 255);
    free(ids);
    ck_ok(cz_tokenizer_encode(tok, "", 0, &ids, &n));
    ck_assert_uint_eq(n, 0);
    free(ids);
    cz_tokenizer_close(tok);
    cz_tokenizer_close(NULL);
}
END_TEST

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_save(path, text, strlen(text)));
}

/* Opening what `dir` (or a file in it) holds fails with a status and words in its sentence. */
static void opening_fails(const char *name, cz_status want, const char *words)
{
    struct cz_tokenizer *tok = (void *)&tok;
    ck_fails(cz_tokenizer_open(name, &tok), want);
    ck_assert_ptr_null(tok);
    ck_assert_msg(strstr(cz_last_error(), words) != NULL, "%s", cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), name) != NULL, "%s", cz_last_error());
}

START_TEST(what_is_no_tokenizer_is_refused_in_words)
{
    const char *dir = test_tmp_make();
    char path[256];
    opening_fails("some/folder", CZ_NOTFOUND, "\"bytes\" is built in");
    ck_assert(!cz_tokenizer_is_in(dir));
    opening_fails(dir, CZ_NOTFOUND, "vocab.txt (WordPiece)");
    write_file(dir, "vocab.json", "{}");
    ck_assert(!cz_tokenizer_is_in(dir));
    opening_fails(dir, CZ_NOTFOUND, "merges.txt is missing");
    write_file(dir, "notes.md", "hello");
    snprintf(path, sizeof path, "%s/notes.md", dir);
    opening_fails(path, CZ_UNSUPPORTED, "with the name tokenizer.json");
    test_tmp_remove(dir);
}
END_TEST

START_TEST(kinds_that_are_not_read_are_named)
{
    const char *dir = test_tmp_make();
    write_file(dir, "tokenizer.model", "x");
    ck_assert(cz_tokenizer_is_in(dir));
    opening_fails(dir, CZ_CORRUPT, "not a SentencePiece model");
    write_file(dir, "tokenizer.model", "\x0A\x0E\x0A\x05<unk>\x15\x01\x01\x01\x01\x18\x02");
    opening_fails(dir, CZ_CORRUPT, "no piece is of type normal");
    write_file(dir, "tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    opening_fails(dir, CZ_CORRUPT, "vocab");
    write_file(dir, "tokenizer.json", "{\"model\": {\"type\": \"Odd\"}}");
    opening_fails(dir, CZ_UNSUPPORTED, "type Odd");
    write_file(dir, "tokenizer.json", "{\"model\": 3}");
    opening_fails(dir, CZ_CORRUPT, "model");
    write_file(dir, "tokenizer.json", "{");
    opening_fails(dir, CZ_CORRUPT, "tokenizer.json:1");
    test_tmp_remove(dir);
}
END_TEST

START_TEST(rows_are_cut_as_hugging_face_cuts)
{
    /* Lengths of two texts, maximum, lengths that stay: what tokenizers' truncation gives. */
    static const int cases[][5] = {
        {5, 5, 0, 0, 0}, {5, 5, 1, 0, 1}, {6, 5, 1, 1, 0}, {5, 5, 5, 2, 3}, {6, 5, 5, 3, 2},
        {2, 6, 5, 2, 3}, {6, 1, 5, 4, 1}, {2, 6, 8, 2, 6}, {2, 6, 9, 2, 6}, {0, 6, 4, 0, 4},
        {5, 5, 8, 4, 4}, {6, 1, 2, 1, 1}, {3, 9, 7, 3, 4}, {9, 3, 7, 4, 3}, {4, 9, 7, 3, 4},
    };
    struct cz_tokenizer *tok;
    int32_t ids[16], types[16];
    int64_t n;
    size_t n_cut;
    ck_ok(cz_tokenizer_open("bytes", &tok));
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const int *c = cases[i];
        struct cz_tokenizer_input input = {"abcdefghi", (size_t)c[0], "ABCDEFGHI", (size_t)c[1]};
        ck_ok(cz_tokenizer_encode_input(tok, &input, c[2], ids, types, &n, &n_cut));
        ck_assert_int_eq(n, c[3] + c[4]);
        ck_assert_uint_eq(n_cut, (size_t)(c[0] + c[1] - c[3] - c[4]));
        for (int k = 0; k < n; k++) {
            ck_assert_int_eq(types[k], k >= c[3]);
            ck_assert_int_eq(ids[k], k < c[3] ? 'a' + k : 'A' + k - c[3]);
        }
    }
    cz_tokenizer_close(tok);
}
END_TEST

static void says(const char *sentence)
{
    ck_assert_str_eq(cz_last_error(), sentence);
}

/* Every call, each text and word; the first wrong byte is named, and not what is before it. */
START_TEST(bytes_that_are_not_utf8_are_refused)
{
    const char *dir = test_tmp_make();
    static const struct cz_text_word words[] = {{0, 1, 0}, {2, 2, 0}, {5, 3, 0}};
    const struct cz_tokenizer_input first = {"a\xC3", 2, NULL, 0},
                                    second = {"a", 1, "\xC3\xA9 \xFF", 4};
    struct cz_tokenizer *tok, *bytes;
    int32_t *ids = (void *)&tok, row[16], types[16], starts[16];
    int64_t n_row;
    size_t n = 7;
    write_file(dir, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
    ck_ok(cz_tokenizer_open(dir, &tok));
    ck_ok(cz_tokenizer_open("bytes", &bytes));
    ck_fails(cz_tokenizer_encode(tok, "a\xC3\xA9\xED\xA0\x80", 6, &ids, &n), CZ_INVALID);
    says("the text: byte 0xed at offset 3 is not UTF-8");
    ck_assert_ptr_null(ids);
    ck_assert_uint_eq(n, 0);
    ck_fails(tokenizer_encode_whole(tok, "a\xFF", 2, &ids, &n), CZ_INVALID);
    ck_assert_ptr_null(ids);
    ck_fails(cz_tokenizer_encode_input(tok, &first, 16, row, types, &n_row, NULL), CZ_INVALID);
    says("the text: byte 0xc3 at offset 1 is not UTF-8; the text looks like latin-1: convert it to "
         "UTF-8");
    ck_fails(cz_tokenizer_encode_input(tok, &second, 16, row, types, &n_row, NULL), CZ_INVALID);
    says("the second text: byte 0xff at offset 3 is not UTF-8");
    ck_assert_int_eq(n_row, 0);
    ck_ok(cz_tokenizer_encode_words(tok, "a \xC3\xA9 aaa", words, 3, 16, row, types, starts, &n_row,
                                    NULL));
    ck_fails(cz_tokenizer_encode_words(tok, "a aa aa\x80", words, 3, 16, row, types, starts, &n_row,
                                       NULL),
             CZ_INVALID);
    says("word 3: byte 0x80 at offset 2 is not UTF-8; the text looks like windows-1252: convert it "
         "to UTF-8");
    /* a word alone, as its neighbours' bytes are not its own */
    ck_ok(cz_tokenizer_encode_words(tok, "a\377aa\377aaa", words, 3, 16, row, types, starts, &n_row,
                                    NULL));
    ck_ok(cz_tokenizer_encode_input(bytes, &second, 16, row, types, &n_row, NULL));
    ck_assert_int_eq(row[4], 0xFF);
    ck_ok(cz_tokenizer_encode_words(bytes, "a aa aa\x80", words, 3, 16, row, types, starts, &n_row,
                                    NULL));
    cz_tokenizer_close(bytes);
    cz_tokenizer_close(tok);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_whole_text_has_its_special_tokens)
{
    const char *dir = test_tmp_make();
    struct cz_tokenizer *tok;
    int32_t *ids;
    size_t n;
    write_file(dir, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
    ck_ok(cz_tokenizer_open(dir, &tok));
    ck_ok(tokenizer_encode_whole(tok, "a a b", 5, &ids, &n));
    ck_assert_uint_eq(n, 5);
    ck_assert_mem_eq(ids, ((int32_t[]){2, 5, 5, 1, 3}), 5 * sizeof *ids);
    free(ids);
    ck_ok(tokenizer_encode_whole(tok, "a", 0, &ids, &n));
    ck_assert_uint_eq(n, 2);
    free(ids);
    cz_tokenizer_close(tok);
    ck_ok(cz_tokenizer_open("bytes", &tok)); /* adds nothing */
    ck_ok(tokenizer_encode_whole(tok, "a\xFF", 2, &ids, &n));
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(ids[1], 0xFF);
    free(ids);
    ck_ok(tokenizer_encode_whole(tok, "", 0, &ids, &n));
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_nonnull(ids);
    free(ids);
    cz_tokenizer_close(tok);
    test_tmp_remove(dir);
}
END_TEST

/* Decode byte by byte; every piece on the way must be valid UTF-8. */
static void decode_all(const char *bytes, size_t n_bytes, char *out)
{
    struct cz_tokenizer *tok;
    struct cz_tokenizer_decoder *dec;
    const char *text;
    size_t n, used = 0;
    ck_ok(cz_tokenizer_open("bytes", &tok));
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    for (size_t i = 0; i < n_bytes; i++) {
        ck_ok(cz_tokenizer_decode(dec, (unsigned char)bytes[i], &text, &n));
        ck_assert_uint_eq(strlen(text), n);
        ck_assert(utf8_is_valid(text, n));
        memcpy(out + used, text, n);
        used += n;
    }
    cz_tokenizer_decoder_end(dec, &text, &n);
    memcpy(out + used, text, n);
    out[used + n] = '\0';
    cz_tokenizer_decoder_end(dec, &text, &n); /* nothing is left for the next text */
    ck_assert_uint_eq(n, 0);
    cz_tokenizer_decoder_destroy(dec);
    cz_tokenizer_close(tok);
}

#define R "\xEF\xBF\xBD"

START_TEST(broken_characters_become_replacements)
{
    /* Wanted: what Python's bytes.decode("utf-8", "replace") gives. */
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80",
         "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"\x80", R},
        {"a\xC3", "a" R},
        {"\xE2\x82"
         "A",
         R "A"},
        {"\xE2\x82\xE2\x82\xAC", R "\xE2\x82\xAC"},
        {"\xF0\x9F\x98", R},
        {"\xF0\x9F\x98x", R "x"},
        {"\xC0\xAF", R R},
        {"\xED\xA0\x80", R R R},
        {"\xF4\x90\x80\x80", R R R R},
        {"\xF5\xFF", R R},
        {"\xE0\x80\x80", R R R},
        {"\xF0\x80\x80\x80!", R R R R "!"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char out[64];
        decode_all(cases[i][0], strlen(cases[i][0]), out);
        ck_assert_str_eq(out, cases[i][1]);
    }
}
END_TEST

START_TEST(characters_are_held_until_complete)
{
    struct cz_tokenizer *tok;
    struct cz_tokenizer_decoder *dec;
    const char *text;
    size_t n;
    ck_ok(cz_tokenizer_open("bytes", &tok));
    ck_ok(cz_tokenizer_decoder_create(tok, &dec));
    ck_ok(cz_tokenizer_decode(dec, 0xE2, &text, &n));
    ck_assert_uint_eq(n, 0);
    ck_ok(cz_tokenizer_decode(dec, 0x82, &text, &n));
    ck_assert_uint_eq(n, 0);
    ck_ok(cz_tokenizer_decode(dec, 0xAC, &text, &n));
    ck_assert_str_eq(text, "\xE2\x82\xAC");
    ck_fails(cz_tokenizer_decode(dec, 256, &text, &n), CZ_INVALID);
    ck_fails(cz_tokenizer_decode(dec, -1, &text, &n), CZ_INVALID);
    cz_tokenizer_decoder_destroy(dec);
    cz_tokenizer_decoder_destroy(NULL);
    cz_tokenizer_close(tok);
}
END_TEST

TEST_MAIN("data/tokenizer", bytes_are_their_own_ids, what_is_no_tokenizer_is_refused_in_words,
          kinds_that_are_not_read_are_named, bytes_that_are_not_utf8_are_refused,
          a_whole_text_has_its_special_tokens, rows_are_cut_as_hugging_face_cuts,
          broken_characters_become_replacements, characters_are_held_until_complete)
