/* Promises: any vocab.txt or tokenizer_config.json opens or is refused with a sentence; whatever
 * text then comes, ids are in the vocabulary, lines are encoded as if each were alone, rows fit,
 * and decoded text is UTF-8. fuzz_tokenizer.c has tokenizer.json.
 *
 * Input: a byte of flags, two of a length, a file of that length, a text. Flags: which file it is,
 * special tokens put in front of a vocab.txt, and rules. */
#include "base/status.h"
#include "tests/fuzz/check_tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include <czero/data.h>

enum { IS_CONFIG = 1, WITH_SPECIALS = 2, CASED = 4, WITH_ACCENTS = 8, WHOLE = 16 };

#define SPECIALS "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
#define WORDS    "a\n##a\nb\n##b\n\xC3\xA9\n##\xE4\xB8\xAD\n\xE4\xB8\xAD\n##\xCC\x81\n.\n"
#define ROW_MAX  16

static void put_vocab(int dir, int flags, const char *bytes, size_t nbytes)
{
    size_t n_specials = flags & WITH_SPECIALS ? strlen(SPECIALS) : 0;
    char *text = malloc(n_specials + nbytes + 1);
    FUZZ_CHECK(text);
    memcpy(text, SPECIALS, n_specials);
    memcpy(text + n_specials, bytes, nbytes);
    fuzz_folder_put(dir, "vocab.txt", text, n_specials + nbytes);
    free(text);
}

static void put_files(int flags, const char *bytes, size_t nbytes)
{
    int dir = fuzz_folder();
    char config[128];
    int n =
        snprintf(config, sizeof config,
                 "{\"do_lower_case\": %s, \"strip_accents\": %s, \"tokenize_chinese_chars\": %s}",
                 flags & CASED ? "false" : "true", flags & WITH_ACCENTS ? "false" : "true",
                 flags & WHOLE ? "false" : "true");
    fuzz_folder_put(dir, "tokenizer_config.json", config, (size_t)n);
    if (flags & IS_CONFIG) {
        fuzz_folder_put(dir, "vocab.txt", SPECIALS WORDS, strlen(SPECIALS WORDS));
        fuzz_folder_put(dir, "tokenizer_config.json", bytes, nbytes);
    } else {
        put_vocab(dir, flags, bytes, nbytes);
    }
}

/* ids are those of the lines, one after the other. Not where a config may name a token with a
 * line's end in it. */
static void check_lines(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                        const int32_t *ids, size_t n_ids)
{
    size_t done = 0;
    for (const char *end = text + nbytes; text < end;) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        int32_t *own;
        size_t n;
        if (!stop) stop = end;
        fuzz_encode(tok, text, (size_t)(stop - text), &own, &n);
        FUZZ_CHECK(n <= n_ids - done && (n == 0 || memcmp(own, ids + done, n * sizeof *own) == 0));
        done += n;
        free(own);
        text = stop + 1;
    }
    FUZZ_CHECK(done == n_ids);
}

static void check_row(const struct cz_tokenizer *tok, const char *text, size_t nbytes)
{
    struct cz_tokenizer_input input = {text, nbytes / 2, text + nbytes / 2, nbytes - nbytes / 2};
    int32_t ids[ROW_MAX], types[ROW_MAX];
    int64_t n;
    cz_status st = cz_tokenizer_encode_input(tok, &input, ROW_MAX, ids, types, &n, NULL);
    const cz_status first = fuzz_expected(text, nbytes / 2);
    FUZZ_CHECK(st == (first != CZ_OK ? first : fuzz_expected(input.pair, input.pair_nbytes)));
    FUZZ_CHECK(n >= 0 && n <= ROW_MAX);
    for (int64_t i = 0; i < n; i++) {
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < cz_tokenizer_vocab_size(tok));
        FUZZ_CHECK(types[i] == 0 || types[i] == 1);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct cz_tokenizer *tok;
    if (nbytes < 3) return 0;
    int flags = data[0];
    size_t n_file = (size_t)data[1] << 8 | data[2], n_rest = nbytes - 3;
    if (n_file > n_rest) n_file = n_rest;
    put_files(flags, (const char *)data + 3, n_file);
    cz_status st = cz_tokenizer_open(fuzz_folder_path(), &tok);
    if (st != CZ_OK) {
        FUZZ_CHECK(tok == NULL);
        fuzz_refused(st);
        return 0;
    }
    size_t n_text = n_rest - n_file, n_ids;
    char *text = fuzz_copy(data + 3 + n_file, n_text);
    int32_t *ids;
    fuzz_encode(tok, text, n_text, &ids, &n_ids);
    check_decoded(tok, ids, n_ids);
    if (!(flags & IS_CONFIG)) check_lines(tok, text, n_text, ids, n_ids);
    check_row(tok, text, n_text);
    free(ids);
    free(text);
    cz_tokenizer_close(tok);
    return 0;
}
