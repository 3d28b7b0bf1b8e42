/* Promises: any vocab.json and merges.txt, with the files beside them, open or are refused with a
 * sentence; what is read keeps the promises of check_tokenizer.h. fuzz_tokenizer.c has
 * tokenizer.json.
 *
 * Input: pieces of a byte that chooses the file, two of a length, and the bytes; the last number is
 * a text to encode. Of vocab.json and merges.txt there is a small pair where the input has none. */
#include "tests/fuzz/check_tokenizer.h"

static const struct {
    const char *name, *usual;
} files[] = {
    {"vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3,\"\u0120ab\":4,\"it\":5,\"<s>\":6,"
                   "\"</s>\":7,\"i\":8,\"t\":9,\"<|endoftext|>\":10}"},
    {"merges.txt", "#version: 0.2\na b\n\u0120 ab\ni t\n"},
    {"tokenizer_config.json", NULL},
    {"special_tokens_map.json", NULL},
    {"added_tokens.json", NULL},
    {"config.json", NULL},
};
#define N_FILES CZ_ARRAY_LEN(files)

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    static bool is_usual[N_FILES]; /* as the input before left it */
    bool is_given[N_FILES] = {false};
    const unsigned char *text = NULL;
    size_t n_text = 0;
    struct cz_tokenizer *tok;
    while (nbytes >= 3) {
        size_t which = data[0] % (N_FILES + 1), n = data[1] | (size_t)data[2] << 8;
        if (n > nbytes - 3) n = nbytes - 3;
        if (which < N_FILES) {
            fuzz_folder_put(fuzz_folder(), files[which].name, data + 3, n);
            is_given[which] = true;
        } else {
            text = data + 3;
            n_text = n;
        }
        data += 3 + n;
        nbytes -= 3 + n;
    }
    for (size_t i = 0; i < N_FILES; i++) {
        const char *usual = files[i].usual;
        if (!is_given[i] && !is_usual[i])
            fuzz_folder_put(fuzz_folder(), files[i].name, usual, usual ? strlen(usual) : 0);
        is_usual[i] = !is_given[i];
    }
    cz_status st = cz_tokenizer_open(fuzz_folder_path(), &tok);
    if (st != CZ_OK) {
        FUZZ_CHECK(!tok);
        fuzz_refused(st);
        return 0;
    }
    check_tokenizer(tok, NULL, 0);
    if (text) check_tokenizer(tok, text, n_text);
    cz_tokenizer_close(tok);
    return 0;
}
