/* Claims: words of characters outside ASCII become the ids that the definition of BPE gives,
 * byte by byte, whatever the merges are and in whatever order; also where a word's last byte is
 * another token than the same byte elsewhere. A vocabulary without some byte begins with bytes. */
#include "base/rng.h"
#include "data/tokenizer/bpe/bpe_impl.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

/* Characters of one to four bytes that have bytes in common. */
static const char *const chars[] = {
    "a",
    " ",
    "\xC2\x80",
    "\xC3\xA9",
    "\xC3\x80",
    "\xE3\x80\x80",
    "\xE4\xB8\x80",
    "\xE4\xB8\xAD",
    "\xE4\xBA\x80",
    "\xE5\xAD\x80",
    "\xE5\xAD\xA9",
    "\xE5\xB8\x80",
    "\xED\x80\x80",
    "\xF0\x9F\x98\x80",
    "\xF4\x8F\x80\x80",
};

/* Tokens: bytes, bytes that end a word, what merges make. */
enum { N_RULES = 64, LASTS = 256, MADE = 512, N_TOKENS = MADE + N_RULES };
enum { WORD_CHARS = 40, WORD_MAX = 4 * WORD_CHARS };

struct rule {
    int32_t left, right, id;
};

struct rig {
    struct bpe_model model;
    struct bpe_byte lasts[256];
    struct rule rules[N_RULES]; /* by rank */
    int n_rules;
    uint64_t x;
};

static uint64_t draw(struct rig *r, uint64_t below)
{
    return rng_mix64(r->x++) % below;
}

static size_t draw_word(struct rig *r, size_t n_chars, char *word)
{
    size_t n = 0;
    for (size_t i = 0; i < n_chars; i++) {
        const char *c = chars[draw(r, CZ_ARRAY_LEN(chars))];
        memcpy(word + n, c, strlen(c));
        n += strlen(c);
    }
    return n;
}

/* The definition: of all pairs that merge, the lowest rank and of those the leftmost, again and
 * again. */
static size_t merge_plainly(const struct rig *r, const char *word, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)word[i];
    if (r->model.lasts) ids[n - 1] += LASTS;
    for (int rank = 0; rank < r->n_rules; rank++)
        for (size_t i = 0; i + 1 < n; i++)
            if (ids[i] == r->rules[rank].left && ids[i + 1] == r->rules[rank].right) {
                ids[i] = r->rules[rank].id;
                memmove(ids + i + 1, ids + i + 2, (--n - i - 1) * sizeof *ids);
                rank = -1; /* a new pair may have a lower rank */
                break;
            }
    return n;
}

/* Two neighbours of a word as the rules so far leave it. */
static void add_rule(struct rig *r, struct bpe_vocab *v)
{
    char word[WORD_MAX], text[2 * WORD_MAX];
    int32_t ids[WORD_MAX];
    const size_t n = merge_plainly(r, word, draw_word(r, 1 + draw(r, 4), word), ids);
    if (n < 2) return;
    const size_t at = draw(r, n - 1);
    const struct rule rule = {ids[at], ids[at + 1], MADE + r->n_rules};
    const size_t n_left = v->lens[rule.left], n_right = v->lens[rule.right];
    memcpy(text, v->bytes + v->offs[rule.left], n_left);
    memcpy(text + n_left, v->bytes + v->offs[rule.right], n_right);
    ck_ok(bpe_vocab_set_bytes(v, rule.id, text, n_left + n_right));
    r->rules[r->n_rules++] = rule;
}

/* Rules in the order in which they came, as training makes them, or with some exchanged, so that
 * what a later one makes is merged with others before. */
static void rig_make(struct rig *r, bool has_lasts, bool is_mixed)
{
    struct bpe_vocab *v = &r->model.vocab;
    memset(&r->model, 0, sizeof r->model);
    r->model.unk_id = -1;
    r->model.growth = 1;
    r->model.lasts = has_lasts ? r->lasts : NULL;
    r->n_rules = 0;
    ck_ok(bpe_vocab_init(v, N_TOKENS));
    for (int32_t c = 0; c < 256; c++) {
        const char text[] = {(char)c, '<', '>'};
        r->model.bytes[c] = (struct bpe_byte){.ids = {c}, .n = 1, .is_known = true};
        r->lasts[c] = (struct bpe_byte){.ids = {LASTS + c}, .n = 1, .is_known = true};
        ck_ok(bpe_vocab_set_bytes(v, c, text, 1));
        ck_ok(bpe_vocab_set_bytes(v, LASTS + c, text, 3));
    }
    while (r->n_rules < N_RULES) add_rule(r, v);
    for (int i = 0; is_mixed && i < N_RULES / 4; i++) {
        struct rule *a = &r->rules[draw(r, N_RULES)], *b = &r->rules[draw(r, N_RULES)], held = *a;
        *a = *b;
        *b = held;
    }
    ck_ok(bpe_merges_init(&r->model.merges, N_RULES));
    for (int i = 0; i < N_RULES; i++)
        bpe_merges_add(&r->model.merges, r->rules[i].left, r->rules[i].right, (uint32_t)i,
                       r->rules[i].id);
    ck_ok(bpe_starts_init(&r->model, v));
    ck_assert_ptr_nonnull(r->model.starts);
}

static void rig_free(struct rig *r)
{
    bpe_starts_free(&r->model);
    bpe_merges_free(&r->model.merges);
    bpe_vocab_free(&r->model.vocab);
}

START_TEST(characters_become_what_their_bytes_do)
{
    static struct rig r;
    char word[WORD_MAX];
    int32_t want[WORD_MAX];
    for (int round = 0; round < 400; round++) {
        struct bpe_work *w = bpe_work_create();
        ck_assert_ptr_nonnull(w);
        rig_make(&r, round & 1, round & 2);
        for (size_t i = 0; i < 300; i++) {
            const size_t n = draw_word(&r, i < 290 ? 1 + draw(&r, 6) : WORD_CHARS, word);
            const size_t n_want = merge_plainly(&r, word, n, want);
            struct id_list have = {0};
            ck_ok(bpe_word(&r.model, w, word, n, n, &have));
            ck_assert_msg(have.n == n_want && memcmp(have.ids, want, 4 * n_want) == 0,
                          "round %d: %zu ids, not %zu, of %.*s", round, have.n, n_want, (int)n,
                          word);
            free(have.ids);
        }
        rig_free(&r);
        bpe_work_destroy(w);
    }
}
END_TEST

START_TEST(a_vocabulary_without_some_byte_has_no_characters)
{
    struct bpe_model b = {0};
    for (int32_t c = 0; c < 256; c++)
        b.bytes[c] = (struct bpe_byte){.ids = {c}, .n = 1, .is_known = c != 0x80};
    ck_ok(bpe_vocab_init(&b.vocab, 256));
    ck_ok(bpe_merges_init(&b.merges, 0));
    ck_ok(bpe_starts_init(&b, &b.vocab));
    ck_assert_ptr_null(b.starts);
    bpe_merges_free(&b.merges);
    bpe_vocab_free(&b.vocab);
}
END_TEST

TEST_MAIN("data/bpe_chars", characters_become_what_their_bytes_do,
          a_vocabulary_without_some_byte_has_no_characters)
