/* Claims: a tokenizer.model of type unigram, word or char gives the ids of the sentencepiece
 * package (0.2.3), also where ways tie and in long texts; models that it refuses are refused with a
 * sentence. The ids here are that package's. A folder with DeBERTa's spm.model has transformers'
 * special tokens. */
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <stdio.h>
#include <string.h>

struct blob {
    char bytes[4096];
    size_t n;
};

static void put(struct blob *b, const void *bytes, size_t n)
{
    ck_assert_uint_le(b->n + n, sizeof b->bytes);
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static void put_piece(struct blob *b, const char *text, float score, int kind)
{
    const size_t n = strlen(text);
    const char head[] = {0x0A, (char)(n + 9), 0x0A, (char)n}, tail[] = {0x18, (char)kind};
    put(b, head, sizeof head);
    put(b, text, n);
    put(b, "\x15", 1);
    put(b, &score, sizeof score); /* little-endian, as the hosts are */
    put(b, tail, sizeof tail);
}

#define MARK "\xE2\x96\x81"

/* Kinds: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused. */
static void put_pieces(struct blob *b)
{
    static const struct {
        const char *text;
        float score;
        int kind;
    } pieces[] = {{"<unk>", 0, 2},  {"<s>", 0, 3},     {"</s>", 0, 3},        {MARK, -2.0F, 1},
                  {"a", -3.1F, 1},  {"aa", -6.3F, 1},  {"aaa", -9.1F, 1},     {"b", -3.5F, 1},
                  {"ab", -6.7F, 1}, {"abb", -4.0F, 5}, {MARK "ab", -6.9F, 1}, {"zab", 0, 4},
                  {"1", -4.1F, 1},  {"11", -7.3F, 1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(pieces); i++)
        put_piece(b, pieces[i].text, pieces[i].score, pieces[i].kind);
}

static cz_status open_blob(struct blob *b, int type, struct cz_tokenizer **tok)
{
    char path[512];
    const char *dir = test_tmp_make();
    const char trainer[] = {0x12, 2, 0x18, (char)type};
    put(b, trainer, sizeof trainer);
    (void)snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    ck_ok(file_save(path, b->bytes, b->n));
    const cz_status st = cz_tokenizer_open(dir, tok);
    test_tmp_remove(dir);
    return st;
}

/* DeBERTa's folder; `config` may be NULL. */
static cz_status open_deberta(struct blob *b, const char *config, const char *export_to,
                              struct cz_tokenizer **tok)
{
    char path[512];
    const char *dir = test_tmp_make();
    put(b, "\x12\x02\x18\x01", 4);
    (void)snprintf(path, sizeof path, "%s/spm.model", dir);
    ck_ok(file_save(path, b->bytes, b->n));
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (config) ck_ok(file_save(path, config, strlen(config)));
    cz_status st = cz_tokenizer_open(dir, tok);
    if (st == CZ_OK && export_to) st = cz_tokenizer_export(*tok, export_to);
    test_tmp_remove(dir);
    return st;
}

static struct cz_tokenizer *open_type(int type)
{
    struct blob b = {.n = 0};
    struct cz_tokenizer *tok;
    put_pieces(&b);
    ck_ok(open_blob(&b, type, &tok));
    return tok;
}

START_TEST(ids_are_those_of_sentencepiece)
{
    static const struct {
        int type;
        const char *text;
        int32_t ids[24];
        size_t n;
    } cases[] = {
        {1, "aaaaaaa", {3, 4, 6, 6}, 4},
        {1, "abb zab abba", {10, 7, 3, 11, 10, 7, 4}, 7},
        {1, "x yz a", {3, 0, 3, 0, 3, 4}, 6},
        {1, "1111111 aaaaaaaa 11111", {3, 12, 13, 13, 13, 3, 4, 4, 6, 6, 3, 13, 13, 12}, 14},
        {1, "ab ab <s> ab", {10, 10, 3, 0, 10}, 5},
        {1, "", {0}, 0},
        {3, "aaaaaaa", {0}, 1},
        {3, "abb zab abba", {0}, 1},
        {3, "ab ab <s> ab", {10, 10, 0, 10}, 4},
        {4, "aaaaaaa", {3, 4, 4, 4, 4, 4, 4, 4}, 8},
        {4, "abb zab abba", {3, 4, 7, 7, 3, 11, 3, 4, 7, 7, 4}, 11},
        {4, "x yz a", {3, 0, 3, 0, 3, 4}, 6},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_tokenizer *tok = open_type(cases[i].type);
        int32_t *ids;
        size_t n;
        ck_ok(cz_tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), &ids, &n));
        ck_assert_msg(n == cases[i].n &&
                          (n == 0 || memcmp(ids, cases[i].ids, n * sizeof *ids) == 0),
                      "type %d, \"%s\": %zu ids", cases[i].type, cases[i].text, n);
        free(ids);
        cz_tokenizer_close(tok);
    }
}
END_TEST

/* Sums of scores fall far below -100,000, where SentencePiece begins at 0 again. */
START_TEST(long_texts_have_the_ids_of_sentencepiece)
{
    struct cz_tokenizer *tok = open_type(1);
    char *text = malloc(100000);
    int32_t *ids;
    uint32_t hash = 0;
    size_t n = 0, n_ids;
    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < 9000; i++) {
        if (i > 0) text[n++] = ' ';
        for (int k = 0; k < 3 + i % 7; k++) text[n++] = 'a';
        for (int k = 0; k < i % 5; k++) text[n++] = '1';
    }
    ck_assert_uint_eq(n, 80994);
    ck_ok(cz_tokenizer_encode(tok, text, n, &ids, &n_ids));
    for (size_t i = 0; i < n_ids; i++) hash = hash * 31 + (uint32_t)ids[i];
    ck_assert_uint_eq(n_ids, 42941);
    ck_assert_uint_eq(hash, 1063142414);
    free(ids);
    free(text);
    cz_tokenizer_close(tok);
}
END_TEST

START_TEST(what_sentencepiece_refuses_is_refused)
{
    struct cz_tokenizer *tok;
    struct blob twice = {.n = 0}, byte = {.n = 0}, type = {.n = 0}, unused = {.n = 0},
                none = {.n = 0};
    put_pieces(&twice);
    put_piece(&twice, "aa", -1, 1);
    ck_assert_int_eq(open_blob(&twice, 1, &tok), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "pieces 5 and 14 have the same text"));
    put_pieces(&byte);
    put_piece(&byte, "<0x41>", 0, 6);
    ck_assert_int_eq(open_blob(&byte, 1, &tok), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "1 pieces are of type byte"));
    put_pieces(&type);
    ck_assert_int_eq(open_blob(&type, 5, &tok), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "type 5"));
    put_pieces(&unused);
    ck_assert_int_eq(open_blob(&unused, 2, &tok), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "is unused"));
    put_piece(&none, "<unk>", 0, 2);
    ck_assert_int_eq(open_blob(&none, 1, &tok), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "no piece is of type normal"));
}
END_TEST

/* As there, types that look for no path do with no normal piece: all text is unknown. */
START_TEST(a_model_without_normal_pieces_knows_no_text)
{
    for (int type = 2; type <= 4; type++) {
        struct blob only = {.n = 0};
        struct cz_tokenizer *tok;
        int32_t *ids;
        size_t n;
        put_piece(&only, "<unk>", 0, 2);
        put_piece(&only, "<s>", 0, 3);
        ck_ok(open_blob(&only, type, &tok));
        ck_ok(cz_tokenizer_encode(tok, "ab", 2, &ids, &n));
        ck_assert_uint_eq(n, 1);
        ck_assert_int_eq(ids[0], 0);
        free(ids);
        cz_tokenizer_close(tok);
    }
}
END_TEST

static void put_debertas_pieces(struct blob *b, bool with_cls)
{
    put_piece(b, "[PAD]", 0, 3);
    put_piece(b, with_cls ? "[CLS]" : "[cls]", 0, 3);
    put_piece(b, "[SEP]", 0, 3);
    put_piece(b, "[UNK]", 0, 2);
    put_piece(b, MARK, -2, 1);
    put_piece(b, "a", -3, 1);
    put_piece(b, "b", -3, 1);
    put_piece(b, MARK "ab", -4, 1);
}

/* Ids are those of transformers' DebertaV2Tokenizer (5.24). */
START_TEST(debertas_model_has_special_tokens)
{
    struct blob b = {.n = 0};
    struct cz_tokenizer *tok, *again;
    char to[512], path[520];
    int32_t ids[16], types[16], *some;
    int64_t n;
    size_t n_some;
    (void)snprintf(to, sizeof to, "%s", test_tmp_make());
    put_debertas_pieces(&b, true);
    ck_ok(open_deberta(&b, "{\"do_lower_case\": false, \"vocab_type\": \"spm\"}", to, &tok));
    (void)snprintf(path, sizeof path, "%s/spm.model", to);
    ck_ok(cz_tokenizer_open(path, &again)); /* the exported one, by its file */
    ck_assert_int_eq(cz_tokenizer_vocab_size(again), 9);
    cz_tokenizer_close(again);
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_MASK), 8);
    ck_assert_int_eq(cz_tokenizer_special_id(tok, CZ_SPECIAL_PAD), 0);
    ck_assert_int_eq(cz_tokenizer_padding_id(tok), 0);
    const struct cz_tokenizer_input pair = {"ab b", 4, "x", 1};
    ck_ok(cz_tokenizer_encode_input(tok, &pair, 16, ids, types, &n, NULL));
    ck_assert_int_eq(n, 8);
    ck_assert_mem_eq(ids, ((const int32_t[]){1, 7, 4, 6, 2, 4, 3, 2}), 8 * sizeof *ids);
    ck_assert_mem_eq(types, ((const int32_t[]){0, 0, 0, 0, 0, 1, 1, 1}), 8 * sizeof *types);
    const char *text = "ab [MASK]ab[SEP] [UNK]";
    ck_ok(cz_tokenizer_encode(tok, text, strlen(text), &some, &n_some));
    ck_assert_uint_eq(n_some, 5);
    ck_assert_mem_eq(some, ((const int32_t[]){7, 8, 7, 2, 3}), 5 * sizeof *some);
    free(some);
    cz_tokenizer_close(tok);
    test_tmp_remove(to);
}
END_TEST

START_TEST(debertas_model_without_its_tokens_is_refused)
{
    struct blob a = {.n = 0}, b = {.n = 0};
    struct cz_tokenizer *tok;
    put_debertas_pieces(&a, false);
    ck_assert_int_eq(open_deberta(&a, NULL, NULL, &tok), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "no piece is [CLS]"));
    put_debertas_pieces(&b, true);
    ck_assert_int_eq(open_deberta(&b, "{\"split_by_punct\": true}", NULL, &tok), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "split_by_punct is not supported"));
}
END_TEST

TEST_MAIN("data/pieces", ids_are_those_of_sentencepiece, long_texts_have_the_ids_of_sentencepiece,
          what_sentencepiece_refuses_is_refused, a_model_without_normal_pieces_knows_no_text,
          debertas_model_has_special_tokens, debertas_model_without_its_tokens_is_refused)
