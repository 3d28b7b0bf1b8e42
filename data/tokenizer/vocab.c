/* A vocabulary made from texts: counting words, choosing characters, and what share of the texts it
 * covers. Words are counted once and then stand for all their occurrences, so training
 * takes as long as the text has different words. */
#include "data/tokenizer/vocab_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/bpe/bpe_impl.h"
#include "data/tokenizer/bpe/bpe_split_impl.h"

#include <stdlib.h>
#include <string.h>

const char *const vocab_specials[VOCAB_N_SPECIALS] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

/* ---- counting -------------------------------------------------------------------------------- */

/* The same rules as the tokenizer will have that reads the files: a word counted otherwise would
 * never be met. */
cz_status vocab_create(const struct vocab_options *options, struct vocab **out)
{
    *out = NULL;
    if (options->kind == VOCAB_BPE && options->size < VOCAB_BPE_LEAST)
        return err_set(
            CZ_INVALID, 0,
            "a byte-level vocabulary of %lld tokens: the 256 bytes and " VOCAB_END_OF_TEXT
            " are %d",
            (long long)options->size, VOCAB_BPE_LEAST);
    if (options->size <= VOCAB_N_SPECIALS || options->size > WP_ID_MAX)
        return err_set(CZ_INVALID, 0,
                       "a vocabulary of %lld tokens: %d are special ones, and at most %d are made",
                       (long long)options->size, VOCAB_N_SPECIALS, WP_ID_MAX);
    struct vocab *v = calloc(1, sizeof *v);
    if (!v) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary");
    v->options = *options;
    v->word = (struct wp_word){.text = v->word_text, .n_chars_max = WP_N_CHARS_DEFAULT};
    struct wp_rules rules = {.clean = true,
                             .split_chinese = true,
                             .strip_accents = options->lowercase,
                             .lowercase = options->lowercase};
    v->chars = wp_chars_of(&rules);
    if (!v->chars) {
        vocab_destroy(v);
        return err_set(CZ_NOMEM, 0, "no memory for a vocabulary");
    }
    *out = v;
    return CZ_OK;
}

void vocab_destroy(struct vocab *v)
{
    if (!v) return;
    strings_free(&v->words);
    strings_free(&v->symbols);
    strings_free(&v->tokens);
    free(v->merges);
    free(v);
}

/* Longer words become unknown when they are encoded, so they are not learned from. They still count
 * in the report, as unknown. */
static cz_status count_word(void *user, const char *word, size_t nbytes, size_t n_chars)
{
    struct vocab *v = user;
    uint32_t idx;
    v->report.n_words++;
    v->report.n_chars += n_chars;
    if (n_chars > WP_N_CHARS_DEFAULT) {
        v->report.n_chars_unknown += n_chars;
        return CZ_OK;
    }
    TRY(strings_need(&v->words, word, nbytes, &idx));
    v->words.rows[idx].count++;
    return CZ_OK;
}

/* GPT-2's pieces of the text. */
static cz_status add_pieces(struct vocab *v, const char *text, size_t nbytes)
{
    uint32_t idx;
    size_t n;
    if (!utf8_is_valid(text, nbytes)) return err_set(CZ_INVALID, 0, "a text is not UTF-8");
    for (size_t at = 0; at < nbytes; at += n) {
        n = bpe_split_gpt2.next(text + at, nbytes - at);
        v->report.n_words++;
        if (n > VOCAB_WORD_MAX) continue;
        TRY(strings_need(&v->words, text + at, n, &idx));
        v->words.rows[idx].count++;
    }
    return CZ_OK;
}

cz_status vocab_add(struct vocab *v, const char *text, size_t nbytes)
{
    if (vocab_is_bpe(v)) return add_pieces(v, text, nbytes);
    return wp_words(v->chars, text, nbytes, &v->word, count_word, v);
}

/* ---- characters ------------------------------------------------------------------------------ */

static cz_status add_token(struct vocab *v, const char *text, size_t nbytes)
{
    uint32_t idx;
    return strings_need(&v->tokens, text, nbytes, &idx);
}

/* ---- coverage -------------------------------------------------------------------------------- */

/* Whether the tokens make up the word, longest first, as the tokenizer will try: greedy search may
 * fail on a word that other pieces could make up. */
static bool is_known(const struct wp_trie *trie, int32_t inside, const char *word, size_t nbytes)
{
    int32_t node = 0;
    for (size_t at = 0, len = 0; at < nbytes; at += len, node = inside)
        if (node < 0 || wp_trie_longest(trie, node, word + at, nbytes - at, &len) < 0) return false;
    return true;
}

static size_t count_chars(const char *text, size_t nbytes)
{
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Characters that the finished vocabulary cannot express, counted in the texts. */
static cz_status measure(struct vocab *v)
{
    struct wp_trie trie;
    struct wp_token *tokens = malloc(v->tokens.n * sizeof *tokens);
    if (!tokens) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary");
    for (uint32_t i = 0; i < v->tokens.n; i++)
        tokens[i] =
            (struct wp_token){strings_text(&v->tokens, i), v->tokens.rows[i].nbytes, (int32_t)i};
    cz_status st = wp_trie_build(&trie, tokens, v->tokens.n);
    free(tokens);
    TRY(st);
    int32_t inside = wp_trie_walk(&trie, 0, VOCAB_PREFIX, VOCAB_PREFIX_NBYTES);
    for (uint32_t i = 0; i < v->words.n; i++) {
        const struct string_row *row = &v->words.rows[i];
        const char *word = strings_text(&v->words, i);
        if (!is_known(&trie, inside, word, row->nbytes))
            v->report.n_chars_unknown += count_chars(word, row->nbytes) * row->count;
    }
    wp_trie_free(&trie);
    return CZ_OK;
}

/* Bytes in the order of the characters that stand for them, as GPT-2 has them: first those that
 * stand for themselves. */
static cz_status add_bytes(struct vocab *v)
{
    TRY(add_token(v, VOCAB_END_OF_TEXT, strlen(VOCAB_END_OF_TEXT)));
    for (int32_t c = 0; v->tokens.n < VOCAB_BPE_LEAST; c++) {
        char written[3];
        const int byte = bpe_alphabet_byte(c);
        if (byte < 0) continue;
        bpe_alphabet_char((unsigned char)byte, written);
        TRY(add_token(v, written, strlen(written)));
    }
    return CZ_OK;
}

static cz_status build_bpe(struct vocab *v, struct vocab_report *report)
{
    TRY(add_bytes(v));
    TRY(vocab_train(v));
    v->report.n_specials = 1;
    v->report.n_characters = VOCAB_BPE_LEAST - 1;
    v->report.n_tokens = v->tokens.n;
    v->report.n_pieces = v->report.n_tokens - VOCAB_BPE_LEAST;
    v->report.n_different_words = v->words.n;
    *report = v->report;
    return CZ_OK;
}

/* The order of tokens is part of a vocabulary: specials, characters by frequency, pieces in the
 * order of merges. */
cz_status vocab_build(struct vocab *v, struct vocab_report *report)
{
    if (v->words.n == 0)
        return err_set(CZ_INVALID, 0,
                       "the texts contain no words, so there is no vocabulary to make");
    if (vocab_is_bpe(v)) return build_bpe(v, report);
    v->report.n_specials = VOCAB_N_SPECIALS;
    for (int i = 0; i < VOCAB_N_SPECIALS; i++)
        TRY(add_token(v, vocab_specials[i], strlen(vocab_specials[i])));
    for (uint32_t i = 0; i < v->words.n; i++) {
        const struct string_row *row = &v->words.rows[i];
        const char *word = strings_text(&v->words, i);
        size_t len;
        for (size_t at = 0; at < row->nbytes; at += len) {
            char symbol[VOCAB_SYMBOL_NBYTES];
            uint32_t idx;
            size_t n = vocab_symbol(word, row->nbytes, at, symbol, &len);
            TRY(strings_need(&v->symbols, symbol, n, &idx));
            v->symbols.rows[idx].count += row->count;
        }
    }
    /* The characters that occur most often, up to the size of the vocabulary. */
    uint32_t *order;
    TRY(strings_order(&v->symbols, &order));
    cz_status st = CZ_OK;
    for (uint32_t i = 0; st == CZ_OK && i < v->symbols.n; i++) {
        const struct string_row *row = &v->symbols.rows[order[i]];
        if (row->count < v->options.min_count || v->tokens.n >= v->options.size) break;
        st = add_token(v, strings_text(&v->symbols, order[i]), row->nbytes);
    }
    free(order);
    v->report.n_characters = (int64_t)v->tokens.n - VOCAB_N_SPECIALS;
    TRY(st);
    if (v->options.kind == VOCAB_WORDPIECE) TRY(vocab_train(v));
    v->report.n_tokens = v->tokens.n;
    v->report.n_pieces = (int64_t)v->tokens.n - v->report.n_characters - VOCAB_N_SPECIALS;
    v->report.n_different_words = v->words.n;
    TRY(measure(v));
    *report = v->report;
    return CZ_OK;
}
