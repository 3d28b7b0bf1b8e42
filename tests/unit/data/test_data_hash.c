/* Claims: the numbers by which ranks compare their data are equal for equal rows whatever the files
 * are called, and differ with a token, a text, an order, a label, a class name or a value. */
#include "tests/support/check_main.h"

#include <czero/data.h>

#include <string.h>

static char dir[64];

static const char *write_bytes(const char *name, const char *bytes, size_t nbytes)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, f), nbytes);
    fclose(f);
    return path;
}

static uint64_t hash_of_tokens(const char *name, const char *bytes, size_t nbytes)
{
    const char *path = write_bytes(name, bytes, nbytes);
    const struct cz_data_options options = {
        .size = sizeof options, .paths = &path, .n_paths = 1, .seq_len = 8, .micro_batch = 1};
    struct cz_data_loader *l;
    uint64_t hash;
    ck_ok(cz_data_open(&options, &l));
    ck_ok(cz_data_hash(l, &hash));
    cz_data_close(l);
    return hash;
}

/* Beyond 4096 · 1024 tokens pieces are left out, but neither the first nor the last. */
START_TEST(tokens_are_compared)
{
    static const size_t sizes[] = {4095, 4096, 4097, 40000, 4096 * 1024, 6000000};
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = sizes[i];
        const bool whole = n <= (size_t)4096 * 1024;
        char *text = malloc(n);
        for (size_t k = 0; k < n; k++) text[k] = (char)('a' + (k * 31 + k / 251) % 26);
        const uint64_t hash = hash_of_tokens("a.txt", text, n);
        ck_assert_uint_eq(hash_of_tokens("b.txt", text, n), hash);
        ck_assert_uint_ne(hash_of_tokens("b.txt", text, n - 1), hash);
        const size_t places[] = {0, 4000, n - 1, n / 2};
        for (size_t p = 0; p < (whole ? 4 : 3); p++) {
            const char before = text[places[p]];
            text[places[p]] = '.';
            ck_assert_msg(hash_of_tokens("b.txt", text, n) != hash, "%zu of %zu", places[p], n);
            text[places[p]] = before;
        }
        free(text);
    }
    test_tmp_remove(dir);
}
END_TEST

static uint64_t hash_of(const char *name, const char *text, bool words)
{
    const char *path = write_bytes(name, text, strlen(text));
    const struct cz_texts_options options = {
        .size = sizeof options, .paths = &path, .n_paths = 1, .words = words};
    struct cz_texts *t;
    ck_ok(cz_texts_open(&options, &t));
    const uint64_t hash = cz_texts_hash(t);
    cz_texts_close(t);
    return hash;
}

START_TEST(labelled_texts_are_compared)
{
    static const char *const others[] = {
        "text,label\ngood,pos\nbad,neg\nfine,pos\nx,neg\n", /* a row more */
        "text,label\nbad,neg\ngood,pos\nfine,pos\n",        /* another order */
        "text,label\ngood,pos\nbad,neg\nfine,neg\n",        /* a label */
        "text,label\ngood,zos\nbad,neg\nfine,zos\n",        /* a class's name */
        "text,label\ngoo,pos\ndbad,neg\nfine,pos\n",        /* a border between texts */
        "text,label\ngood,pos\nbad,neg\nfinE,pos\n",
        "text,pair,label\ngood,a,pos\nbad,b,neg\nfine,c,pos\n",
    };
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    const uint64_t hash = hash_of("a.csv", "text,label\ngood,pos\nbad,neg\nfine,pos\n", false);
    ck_assert_uint_eq(hash_of("b.csv", "label,text\npos,good\nneg,bad\npos,fine\n", false), hash);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert_msg(hash_of("b.csv", others[i], false) != hash, "%s", others[i]);
    const uint64_t pair = hash_of("a.csv", "text,pair,label\ngood,ab,1\nbad,c,0\n", false);
    ck_assert_uint_ne(hash_of("a.csv", "text,pair,label\ngood,aB,1\nbad,c,0\n", false), pair);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(values_and_sets_and_words_are_compared)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    const uint64_t values = hash_of("a.csv", "text,label\na,0.5\nb,1.5\n", false);
    ck_assert_uint_ne(hash_of("a.csv", "text,label\na,0.5\nb,1.25\n", false), values);
    const uint64_t sets =
        hash_of("a.jsonl",
                "{\"text\":\"a\",\"label\":[\"x\"]}\n{\"text\":\"b\",\"label\":[\"y\"]}\n", false);
    ck_assert_uint_ne(
        hash_of("a.jsonl",
                "{\"text\":\"a\",\"label\":[\"x\"]}\n{\"text\":\"b\",\"label\":[\"x\",\"y\"]}\n",
                false),
        sets);
    /* the same classes in the same order, of other texts */
    ck_assert_uint_ne(
        hash_of("a.jsonl",
                "{\"text\":\"a\",\"label\":[\"x\",\"y\"]}\n{\"text\":\"b\",\"label\":[]}\n", false),
        sets);
    const uint64_t words = hash_of("a.conll", "EU B-ORG\nsays O\n\nyes O\n", true);
    ck_assert_uint_eq(hash_of("b.conll", "EU B-ORG\nsays O\n\nyes O\n", true), words);
    ck_assert_uint_ne(hash_of("a.conll", "EU O\nsays B-ORG\n\nyes O\n", true), words);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("data/data_hash", tokens_are_compared, labelled_texts_are_compared,
          values_and_sets_and_words_are_compared)
