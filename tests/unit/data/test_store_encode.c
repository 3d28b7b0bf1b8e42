/* Claims: a text under a trained tokenizer, encoded in parts by several threads, is the ids of the
 * whole text, in 16 bits where the vocabulary allows and in 32 elsewhere; a text without a token is
 * refused by name. */
#include "data/corpus/store_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <omp.h>
#include <string.h>

#define COPIES 60 /* of 64 KiB: four parts */

static char dir[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

static const char *put(const char *name, const char *bytes, size_t nbytes)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_save(path, bytes, nbytes));
    return path;
}

static cz_status add_file(struct token_store *store, const char *path,
                          const struct cz_tokenizer *tok)
{
    return store_add(store, &(struct data_path){.name = path, .shown = path}, tok);
}

static char *long_text(size_t *nbytes)
{
    char *once, *all;
    size_t n;
    ck_ok(file_load(test_fixture("text/fortunes-64k.txt"), 1 << 20, &once, &n));
    all = malloc(n * COPIES);
    for (size_t i = 0; i < COPIES; i++) memcpy(all + i * n, once, n);
    free(once);
    *nbytes = n * COPIES;
    return all;
}

static void compare(const struct cz_tokenizer *tok, enum token_kind kind)
{
    struct token_file file;
    struct token_store store;
    size_t nbytes, n;
    int32_t *want, *got;
    char *text = long_text(&nbytes);
    const char *path = put("corpus.txt", text, nbytes);
    ck_ok(cz_tokenizer_encode(tok, text, nbytes, &want, &n));
    store_init(&store, &file);
    ck_ok(add_file(&store, path, tok));
    ck_assert_uint_eq(store.n_tokens, n);
    ck_assert_int_eq(store.runs[0].kind, kind);
    got = malloc(n * sizeof *got);
    ck_ok(store_read(&store, 0, n, cz_tokenizer_vocab_size(tok), got));
    ck_assert(memcmp(want, got, n * sizeof *got) == 0);
    store_free(&store);
    free(want);
    free(got);
    free(text);
}

START_TEST(parts_are_the_whole)
{
    static const char *const styles[] = {"gpt2", "qwen2", "llama3"};
    setup();
    omp_set_num_threads(3);
    for (size_t i = 0; i < CZ_ARRAY_LEN(styles); i++) {
        struct cz_tokenizer *tok;
        char name[64];
        snprintf(name, sizeof name, "tokenizers/%s", styles[i]);
        ck_ok(cz_tokenizer_open(test_fixture(name), &tok));
        compare(tok, TOKEN_U16);
        cz_tokenizer_close(tok);
    }
    teardown();
}
END_TEST

static struct cz_tokenizer *open_letters(const char *vocab)
{
    struct cz_tokenizer *tok;
    (void)put("vocab.json", vocab, strlen(vocab));
    (void)put("merges.txt", "e n\n", 4);
    ck_ok(cz_tokenizer_open(dir, &tok));
    return tok;
}

START_TEST(large_vocabularies_take_32_bits)
{
    setup();
    struct cz_tokenizer *tok = open_letters("{\"e\":1,\"n\":65535,\"en\":65536}");
    compare(tok, TOKEN_I32);
    cz_tokenizer_close(tok);
    tok = open_letters("{\"e\":1,\"n\":2,\"<|endoftext|>\":3,\"en\":65535}");
    compare(tok, TOKEN_U16);
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

START_TEST(a_text_without_tokens_is_refused)
{
    struct token_file file;
    struct token_store store;
    setup();
    struct cz_tokenizer *tok = open_letters("{\"e\":1,\"n\":2,\"en\":3}");
    store_init(&store, &file);
    ck_fails(add_file(&store, put("none.txt", "xyz", 3), tok), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "none.txt"));
    store_free(&store);
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

TEST_MAIN("data/store_encode", parts_are_the_whole, large_vocabularies_take_32_bits,
          a_text_without_tokens_is_refused)
