/* Promises: any tokenizer.json is read or refused with a sentence; what is read encodes any bytes
 * to ids of its vocabulary, which decode to valid UTF-8; a text cut where the tokenizer says so
 * gives the ids of the whole. The input is the file, and behind a NUL byte a text. */
#include "tests/fuzz/check_tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    const unsigned char *nul = nbytes > 0 ? memchr(data, '\0', nbytes) : NULL;
    size_t n_json = nul ? (size_t)(nul - data) : nbytes;
    struct cz_tokenizer *tok;
    fuzz_folder_put(fuzz_folder(), "tokenizer.json", data, n_json);
    cz_status st = cz_tokenizer_open(fuzz_folder_path(), &tok);
    if (st != CZ_OK) {
        FUZZ_CHECK(!tok);
        fuzz_refused(st);
        return 0;
    }
    check_tokenizer(tok, NULL, 0);
    if (nul) check_tokenizer(tok, nul + 1, nbytes - n_json - 1);
    cz_tokenizer_close(tok);
    return 0;
}
