/* Claims: when any one allocation fails while a tokenizer is opened, encodes, decodes or is
 * written, or while a vocabulary is built, the call fails with CZ_NOMEM and leaks nothing. */
#include "data/tokenizer/tokenizer_impl.h"
#include "data/tokenizer/vocab.h"
#include "tests/support/no_memory.h"

#include <string.h>

#ifndef NO_MEMORY_WORKS

int main(void)
{
    printf("skipped: the sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
}

#else

static const char text[] = "Words, words; and 12 numbers of a w\xc3\xa4rter's Text \xe4\xbd\xa0 "
                           "<|im_end|></s>  \xf0\x9f\x98\x80 end.\n";
static char out_dir[64];
static bool exports;

static cz_status decode_all(const struct cz_tokenizer *tok, const int32_t *ids, size_t n)
{
    struct cz_tokenizer_decoder *d;
    const char *piece;
    size_t n_piece;
    cz_status st = CZ_OK;
    TRY(cz_tokenizer_decoder_create(tok, &d));
    for (size_t i = 0; i < n && st == CZ_OK; i++)
        st = cz_tokenizer_decode(d, ids[i], &piece, &n_piece);
    cz_tokenizer_decoder_end(d, &piece, &n_piece);
    cz_tokenizer_decoder_destroy(d);
    return st;
}

static cz_status encode_rows(const struct cz_tokenizer *tok)
{
    static const struct cz_text_word words[] = {{0, 5, 0}, {7, 5, 1}, {18, 2, -1}};
    const struct cz_tokenizer_input input = {text, sizeof text - 1, text, 12};
    int32_t row[64], types[64], starts[64];
    int64_t n;
    TRY(cz_tokenizer_encode_input(tok, &input, 64, row, types, &n, NULL));
    return cz_tokenizer_encode_words(tok, text, words, 3, 64, row, types, starts, &n, NULL);
}

static cz_status use(const char *path)
{
    struct cz_tokenizer *tok;
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(cz_tokenizer_open(path, &tok));
    cz_status st = cz_tokenizer_encode(tok, text, sizeof text - 1, &ids, &n);
    if (st == CZ_OK) st = decode_all(tok, ids, n);
    if (st == CZ_OK) st = encode_rows(tok);
    if (st == CZ_OK && tok->cls->encode_ends) {
        struct id_list list = {0}, ends = {0};
        bool known;
        st = tok->cls->encode_ends(tok, text, sizeof text - 1, &list, &ends, &known);
        free(list.ids);
        free(ends.ids);
    }
    if (st == CZ_OK && exports) st = cz_tokenizer_export(tok, out_dir);
    free(ids);
    cz_tokenizer_close(tok);
    return st;
}

START_TEST(tokenizers_of_every_kind)
{
    static const char *const names[] = {
        "gpt2",       "qwen2",          "llama3",         "wordpiece",        "pieces",
        "steps/clip", "steps/gpt1",     "steps/llama2",   "steps/llama2-new", "steps/wordlevel",
        "steps/xlmr", "steps/xlmr-new", "steps/wordpiece"};
    char path[64];
    no_memory_begin();
    no_memory_must("bytes", use, "bytes", 60);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        snprintf(out_dir, sizeof out_dir, "%s", test_tmp_make_fast());
        snprintf(path, sizeof path, "tokenizers/%s", names[i]);
        exports = i == 0;
        no_memory_must(names[i], use, test_fixture(path), 60);
        test_tmp_remove(out_dir);
    }
}
END_TEST

static enum vocab_kind kind;

static cz_status build(const char *words)
{
    const struct vocab_options options = {.kind = kind,
                                          .size = kind == VOCAB_BPE ? 300 : 60,
                                          .min_count = 1,
                                          .lowercase = kind == VOCAB_WORDPIECE};
    struct vocab_report report;
    struct vocab *v;
    TRY(vocab_create(&options, &v));
    cz_status st = vocab_add(v, words, strlen(words));
    if (st == CZ_OK) st = vocab_build(v, &report);
    if (st == CZ_OK) st = vocab_save(v, out_dir);
    vocab_destroy(v);
    return st;
}

START_TEST(vocabularies)
{
    no_memory_begin();
    snprintf(out_dir, sizeof out_dir, "%s", test_tmp_make_fast());
    for (kind = VOCAB_WORDPIECE; kind <= VOCAB_BPE; kind++)
        no_memory_must("a vocabulary", build,
                       "the cat sat on the mat and the hat that the rat had sat on, \xc3\x84rger",
                       100);
    test_tmp_remove(out_dir);
}
END_TEST

TEST_MAIN("data/tokenizer_no_memory", tokenizers_of_every_kind, vocabularies)

#endif
