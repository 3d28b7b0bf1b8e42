/* What every tokenizer promises, whatever files it was read from: any bytes become ids of its
 * vocabulary, which become valid UTF-8; a text cut where the tokenizer says so gives the ids of the
 * whole. The public calls refuse bytes that are not UTF-8. */
#ifndef CZ_TESTS_CHECK_TOKENIZER_H
#define CZ_TESTS_CHECK_TOKENIZER_H

#include "base/utf8.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "tests/fuzz/fuzz.h"

/* The ids of any bytes. */
static inline void fuzz_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                               int32_t **ids, size_t *n)
{
    struct id_list list = {0};
    FUZZ_CHECK(id_list_reserve(&list, 1) == CZ_OK);
    FUZZ_CHECK(tok->cls->encode(tok, text, nbytes, &list) == CZ_OK);
    *ids = list.ids;
    *n = list.n;
}

static inline cz_status fuzz_expected(const char *text, size_t nbytes)
{
    return utf8_is_valid(text, nbytes) ? CZ_OK : CZ_INVALID;
}

static inline void check_decoded(const struct cz_tokenizer *tok, const int32_t *ids, size_t n)
{
    struct cz_tokenizer_decoder *dec;
    const char *text;
    size_t nbytes;
    FUZZ_CHECK(cz_tokenizer_decoder_create(tok, &dec) == CZ_OK);
    for (size_t i = 0; i < n; i++) {
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < cz_tokenizer_vocab_size(tok));
        FUZZ_CHECK(cz_tokenizer_decode(dec, ids[i], &text, &nbytes) == CZ_OK);
        FUZZ_CHECK(utf8_is_valid(text, nbytes));
    }
    cz_tokenizer_decoder_end(dec, &text, &nbytes);
    FUZZ_CHECK(utf8_is_valid(text, nbytes));
    cz_tokenizer_decoder_destroy(dec);
}

static inline void check_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                             const int32_t *ids, size_t n)
{
    int32_t *left, *right;
    size_t n_left, n_right;
    size_t at = tok->cls->cut ? tok->cls->cut(tok, text, nbytes, nbytes / 2) : nbytes;
    FUZZ_CHECK(at <= nbytes);
    if (at == nbytes) return;
    fuzz_encode(tok, text, at, &left, &n_left);
    struct id_list rest = {0};
    FUZZ_CHECK((tok->cls->encode_rest ? tok->cls->encode_rest : tok->cls->encode)(
                   tok, text + at, nbytes - at, &rest) == CZ_OK);
    right = rest.ids;
    n_right = rest.n;
    FUZZ_CHECK(n_left + n_right == n);
    FUZZ_CHECK(memcmp(ids, left, n_left * sizeof *ids) == 0);
    FUZZ_CHECK(n_right == 0 || memcmp(ids + n_left, right, n_right * sizeof *ids) == 0);
    free(left);
    free(right);
}

/* data NULL: the text is a sample. */
static inline void check_tokenizer(const struct cz_tokenizer *tok, const void *data, size_t nbytes)
{
    static const char sample[] = "Ab's  it\n\n12345 \xE5\xA4\xA9 e\xCC\x81<s>x\xFF y ab\n";
    static const char second[] = "Ab's  it\n\n12345 \xE5\xA4\xA9 e\xCC\x81<s>x y ab\n";
    int32_t *ids, *same, row[64], types[64];
    size_t n, n_same;
    int64_t n_row;
    if (!data) nbytes = sizeof sample - 1;
    char *text = fuzz_copy(data ? data : sample, nbytes);
    const struct cz_tokenizer_input pair = {
        .text = text, .nbytes = nbytes, .pair = second, .pair_nbytes = sizeof second - 1};
    const cz_status expected = fuzz_expected(text, nbytes);
    fuzz_encode(tok, text, nbytes, &ids, &n);
    FUZZ_CHECK(cz_tokenizer_encode(tok, text, nbytes, &same, &n_same) == expected);
    FUZZ_CHECK(expected != CZ_OK || (n == n_same && memcmp(ids, same, n * sizeof *ids) == 0));
    free(same);
    check_decoded(tok, ids, n);
    check_cut(tok, text, nbytes, ids, n);
    free(ids);
    FUZZ_CHECK(cz_tokenizer_encode_input(tok, &pair, 64, row, types, &n_row, NULL) == expected);
    check_decoded(tok, row, (size_t)n_row);
    free(text);
}

#endif
