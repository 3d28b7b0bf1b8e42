/* Promises: any tokenizer.model of SentencePiece is read or refused with a sentence; what is read
 * keeps the promises of check_tokenizer.h. The input is a byte with the length of a text, the text,
 * and the file. */
#include "tests/fuzz/check_tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct cz_tokenizer *tok;
    if (nbytes == 0) return 0;
    const size_t n_text = data[0] < nbytes - 1 ? data[0] : nbytes - 1;
    fuzz_folder_put(fuzz_folder(), "tokenizer.model", data + 1 + n_text, nbytes - 1 - n_text);
    cz_status st = cz_tokenizer_open(fuzz_folder_path(), &tok);
    if (st != CZ_OK) {
        FUZZ_CHECK(!tok);
        fuzz_refused(st);
        return 0;
    }
    check_tokenizer(tok, NULL, 0);
    check_tokenizer(tok, data + 1, n_text);
    cz_tokenizer_close(tok);
    return 0;
}
