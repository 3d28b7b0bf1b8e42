/* Claims: the bytes tokenizer maps bytes to their values; decoding as a stream emits only whole
 * characters and replaces broken ones exactly as a decoder of the whole text would. */
#include "base/utf8.h"
#include "data/tokenizer.h"
#include "tests/support/check_main.h"

#include <string.h>

START_TEST(bytes_are_their_own_ids)
{
    struct tokenizer *tok;
    int32_t *ids;
    size_t n;
    ck_ok(tokenizer_open("bytes", &tok));
    ck_assert_str_eq(tokenizer_name(tok), "bytes");
    ck_assert_int_eq(tokenizer_vocab_size(tok), 256);
    ck_assert_int_eq(tokenizer_end_id(tok), -1);
    ck_ok(tokenizer_encode(tok, "a\0\xff", 3, &ids, &n));
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(ids[0], 'a');
    ck_assert_int_eq(ids[1], 0);
    ck_assert_int_eq(ids[2], 255);
    free(ids);
    ck_ok(tokenizer_encode(tok, "", 0, &ids, &n));
    ck_assert_uint_eq(n, 0);
    free(ids);
    tokenizer_close(tok);
    tokenizer_close(NULL);
}
END_TEST

START_TEST(other_tokenizers_are_refused_by_name)
{
    struct tokenizer *tok = (void *)&tok;
    ck_fails(tokenizer_open("some/folder", &tok), CZ_UNSUPPORTED);
    ck_assert_ptr_null(tok);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "some/folder"));
}
END_TEST

/* Decode byte by byte; every piece on the way must be valid UTF-8. */
static void decode_all(const char *bytes, size_t n_bytes, char *out)
{
    struct tokenizer *tok;
    struct tokenizer_decoder *dec;
    const char *text;
    size_t n, used = 0;
    ck_ok(tokenizer_open("bytes", &tok));
    ck_ok(tokenizer_decoder_create(tok, &dec));
    for (size_t i = 0; i < n_bytes; i++) {
        ck_ok(tokenizer_decode(dec, (unsigned char)bytes[i], &text, &n));
        ck_assert_uint_eq(strlen(text), n);
        ck_assert(utf8_is_valid(text, n));
        memcpy(out + used, text, n);
        used += n;
    }
    tokenizer_decoder_end(dec, &text, &n);
    memcpy(out + used, text, n);
    out[used + n] = '\0';
    tokenizer_decoder_end(dec, &text, &n); /* nothing is left for the next text */
    ck_assert_uint_eq(n, 0);
    tokenizer_decoder_destroy(dec);
    tokenizer_close(tok);
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
    struct tokenizer *tok;
    struct tokenizer_decoder *dec;
    const char *text;
    size_t n;
    ck_ok(tokenizer_open("bytes", &tok));
    ck_ok(tokenizer_decoder_create(tok, &dec));
    ck_ok(tokenizer_decode(dec, 0xE2, &text, &n));
    ck_assert_uint_eq(n, 0);
    ck_ok(tokenizer_decode(dec, 0x82, &text, &n));
    ck_assert_uint_eq(n, 0);
    ck_ok(tokenizer_decode(dec, 0xAC, &text, &n));
    ck_assert_str_eq(text, "\xE2\x82\xAC");
    ck_fails(tokenizer_decode(dec, 256, &text, &n), CZ_INVALID);
    ck_fails(tokenizer_decode(dec, -1, &text, &n), CZ_INVALID);
    tokenizer_decoder_destroy(dec);
    tokenizer_decoder_destroy(NULL);
    tokenizer_close(tok);
}
END_TEST

TEST_MAIN("data/tokenizer", bytes_are_their_own_ids, other_tokenizers_are_refused_by_name,
          broken_characters_become_replacements, characters_are_held_until_complete)
