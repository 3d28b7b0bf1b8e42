/* Promises: any bytes are examples or are refused with a sentence, in each form of labelled texts;
 * texts are terminated UTF-8, not much longer than the file, unless it is compressed; classes have
 * different names, and every example has one of them or, if that is allowed, none. The first byte
 * of the input chooses the form and the options. */
#include "base/status.h"
#include "base/utf8.h"
#include "data/source/byte_stream.h"
#include "tests/fuzz/fuzz.h"
#include <czero/data.h>

static void check_text(const char *s, size_t nbytes, bool stripped)
{
    FUZZ_CHECK(s && s[nbytes] == '\0' && utf8_is_valid(s, nbytes));
    for (size_t i = 0; stripped && i < nbytes; i++) FUZZ_CHECK(s[i] != ' ' && s[i] != '\n');
}

static void check(const struct cz_texts *t, const struct cz_texts_options *o, size_t file_nbytes)
{
    size_t n_labels = cz_texts_n_labels(t), nbytes = 0, n_unlabelled = 0, n_labelled = 0;
    FUZZ_CHECK(cz_texts_count(t) > 0);
    FUZZ_CHECK(o->n_labels == 0 || n_labels == o->n_labels);
    for (size_t k = 0; k < n_labels; k++) {
        FUZZ_CHECK(utf8_is_valid(cz_texts_labels(t)[k], strlen(cz_texts_labels(t)[k])));
        if (k > 0) FUZZ_CHECK(strcmp(cz_texts_labels(t)[k - 1], cz_texts_labels(t)[k]) != 0);
        n_labelled += cz_texts_n_of_label(t, k);
    }
    for (size_t i = 0; i < cz_texts_count(t); i++) {
        struct cz_tokenizer_input in = cz_texts_at(t, i);
        check_text(in.text, in.nbytes, o->strip_spaces);
        if (in.pair) check_text(in.pair, in.pair_nbytes, o->strip_spaces);
        nbytes += in.nbytes + in.pair_nbytes;
        FUZZ_CHECK(cz_texts_label(t, i) >= -1 && cz_texts_label(t, i) < (int64_t)n_labels);
        n_unlabelled += cz_texts_label(t, i) < 0;
    }
    FUZZ_CHECK(nbytes <= 3 * file_nbytes);
    FUZZ_CHECK(n_labelled + n_unlabelled == cz_texts_count(t));
    FUZZ_CHECK(o->labels_optional || n_unlabelled == 0);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    static const char *const names[] = {"t.json", "t.csv", "t.tsv", "t.txt"};
    static const char *const known[] = {"LABEL_0", "LABEL_1", "LABEL_2"};
    if (nbytes == 0) return 0;
    char path[128];
    const char *paths = path, *name = names[data[0] & 3];
    struct cz_texts_options o = {.size = sizeof o,
                                 .paths = &paths,
                                 .n_paths = 1,
                                 .strip_spaces = data[0] & 4,
                                 .labels_optional = data[0] & 8,
                                 .labels = known,
                                 .n_labels = data[0] & 16 ? 3 : 0,
                                 .text_column = data[0] & 32 ? "t" : NULL};
    struct cz_texts *t;
    fuzz_folder_put(fuzz_folder(), name, data + 1, nbytes - 1);
    snprintf(path, sizeof path, "%s/%s", fuzz_folder_path(), name);
    cz_status st = cz_texts_open(&o, &t);
    FUZZ_CHECK((st == CZ_OK) == (t != NULL));
    if (st != CZ_OK) fuzz_refused(st);
    const bool is_packed = byte_packing_of(data + 1, nbytes - 1) != BYTES_PLAIN;
    if (t) check(t, &o, is_packed ? SIZE_MAX / 3 : nbytes);
    cz_texts_close(t);
    return 0;
}
