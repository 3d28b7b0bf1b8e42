/* Claims: the time to encode a text grows with its length, however its combining marks are ordered
 * and however often an added token nearly begins; long runs of marks are composed as utf8proc
 * composes them. */
#include "base/rng.h"
#include "data/tokenizer/bpe/bpe_impl.h"
#include "tests/support/cost.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct text {
    char *bytes;
    size_t n;
};

static void put(struct text *t, utf8proc_int32_t c)
{
    t->n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)t->bytes + t->n);
}

static void work_free(struct bpe_work *w)
{
    for (int i = 0; i < 3; i++) free(w->text[i]);
}

/* ---- combining marks ------------------------------------------------------------------------- */

static void normalize(const void *user)
{
    const struct text *t = user;
    struct bpe_work w = {0};
    const char *bytes = t->bytes;
    size_t n = t->n;
    if (bpe_normalize(&w, &bytes, &n) != CZ_OK) _exit(1);
    work_free(&w);
}

/* Letters, marks of several classes, marks that decompose, Hangul, and what composes with none. */
START_TEST(long_runs_are_composed_as_by_utf8proc)
{
    static const utf8proc_int32_t chars[] = {
        0x301,  0x323,  0x344,   0x345,  0x327, 0x338,  0x5B0,  0x5C1,  0x94D,  0xF71,
        0xF72,  0xF73,  0x1D165, 0x302D, 'a',   0x1E9B, 0x3B1,  0xAC00, 0x1100, 0x1161,
        0x11A8, 0x1F00, 0x212B,  0x9BE,  0x9C7, 0x3099, 0x304B, 0xFB2A};
    struct text t = {.bytes = malloc(4 * 600)};
    size_t n_changed = 0;
    for (uint64_t round = 0; round < 400; round++) {
        const size_t n_chars = 65 + rng_mix64(round) % 500;
        struct bpe_work w = {0};
        t.n = 0;
        for (size_t i = 0; i < n_chars; i++) {
            const uint64_t random = rng_mix64(round << 32 | i);
            put(&t, chars[random % 16 < 14 ? random % 13 : random % CZ_ARRAY_LEN(chars)]);
        }
        utf8proc_uint8_t *want;
        utf8proc_ssize_t n_want =
            utf8proc_map((const utf8proc_uint8_t *)t.bytes, (utf8proc_ssize_t)t.n, &want,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        const char *got = t.bytes;
        size_t n_got = t.n;
        ck_assert_int_gt(n_want, 0);
        ck_ok(bpe_normalize(&w, &got, &n_got));
        ck_assert_uint_eq(n_got, (size_t)n_want);
        ck_assert(memcmp(got, want, n_got) == 0);
        n_changed += n_got != t.n || memcmp(got, t.bytes, n_got) != 0;
        free(want);
        work_free(&w);
    }
    ck_assert_uint_gt(n_changed, 390);
    free(t.bytes);
}
END_TEST

START_TEST(marks_out_of_order)
{
    enum { N = 30000 };
    struct text hostile = {.bytes = malloc(4 * N)}, benign = {.bytes = malloc(4 * N)};
    for (int i = 0; i < N; i++) {
        put(&hostile, i % 2 ? 0x323 : 0x301);
        put(&benign, i < N / 2 ? 0x323 : 0x301);
    }
    cost_compare("text: marks out of order", cost_of(normalize, &hostile),
                 cost_of(normalize, &benign), 5);
    free(hostile.bytes);
    free(benign.bytes);
}
END_TEST

/* ---- added tokens ---------------------------------------------------------------------------- */

static struct added_tokens set;

static void search(const void *user)
{
    const struct text *t = user;
    size_t from = 0, start, end;
    struct added_token token;
    while (added_tokens_next(&set, t->bytes, t->n, 0, &from, &start, &end, &token)) {
    }
    for (size_t at = 1; at < 100; at++) added_tokens_touch(&set, t->bytes, t->n, t->n / 100 * at);
}

/* At each place of the text a token nearly begins: the length of tokens bounds what that costs, so
 * four times the text cost four times as much. */
START_TEST(tokens_that_nearly_begin)
{
    enum { N = 400000 };
    char content[ADDED_TOKEN_NBYTES_MAX + 1];
    const struct added_token token = {.id = 1};
    struct text whole = {malloc(N), N}, quarter = {whole.bytes, N / 4};
    memset(content, 'a', sizeof content);
    memset(whole.bytes, 'a', N);
    added_tokens_init(&set);
    ck_fails(added_tokens_add(&set, content, sizeof content, &token), CZ_UNSUPPORTED);
    ck_assert_str_eq(cz_last_error(),
                     "the added token that begins with \"aaaaaaaaaaaaaaaaaaaa\" has 257 bytes; "
                     "at most 256 are supported");
    content[ADDED_TOKEN_NBYTES_MAX - 1] = 'c';
    ck_ok(added_tokens_add(&set, content, ADDED_TOKEN_NBYTES_MAX, &token));
    cost_compare("text: a token nearly begins", cost_of(search, &whole), cost_of(search, &quarter),
                 10);
    added_tokens_free(&set);
    free(whole.bytes);
}
END_TEST

TEST_MAIN("data/text_bounds", long_runs_are_composed_as_by_utf8proc, marks_out_of_order,
          tokens_that_nearly_begin)
