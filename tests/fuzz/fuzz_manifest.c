/* Promises: any text is read or refused with a sentence; what is read is a set of files with runs
 * of bytes inside them, apart; written again it reads as the same. The checksum at a manifest's end
 * would keep the fuzzer out, so each text is tried as it is and with a right one. */
#include "checkpoint/store/manifest.h"
#include "formats/crc32.h"
#include "tests/fuzz/fuzz.h"

#include <inttypes.h>

static void check_file(const struct manifest *m, const struct manifest_file *file)
{
    uint64_t end = 0;
    FUZZ_CHECK(manifest_find(m, file->name) == file);
    FUZZ_CHECK(file->name[0] && !strchr(file->name, '/'));
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct manifest_tensor *t = &file->tensors[i];
        FUZZ_CHECK(t->name && t->what && t->nbytes > 0 && t->off >= end);
        FUZZ_CHECK(t->nbytes <= file->nbytes && t->off <= file->nbytes - t->nbytes);
        end = t->off + t->nbytes;
    }
}

/* Text → manifest → text → manifest → the same text. */
static void check_round_trip(const struct manifest *m)
{
    char *text, *text_again;
    size_t nbytes, nbytes_again;
    struct manifest again;
    FUZZ_CHECK(manifest_to_json(m, &text, &nbytes) == CZ_OK);
    FUZZ_CHECK(manifest_from_json(text, nbytes, "again", &again) == CZ_OK);
    FUZZ_CHECK(manifest_to_json(&again, &text_again, &nbytes_again) == CZ_OK);
    FUZZ_CHECK(nbytes == nbytes_again && memcmp(text, text_again, nbytes) == 0);
    manifest_free(&again);
    free(text);
    free(text_again);
}

static void try(const char *text, size_t nbytes)
{
    struct manifest m;
    cz_status st = manifest_from_json(text, nbytes, "in", &m);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return;
    }
    FUZZ_CHECK(m.world_size > 0);
    for (size_t i = 0; i < m.n_files; i++) check_file(&m, &m.files[i]);
    check_round_trip(&m);
    manifest_free(&m);
}

/* Put the right sum where a manifest has it: 8 digits before the closing quote and brace. */
static void sign(char *text, size_t nbytes)
{
    static const char begin[] = "\"manifest_crc32\": \"", end[] = "\"\n}\n";
    const size_t n_tail = sizeof begin - 1 + 8 + sizeof end - 1;
    char digits[9];
    if (nbytes < n_tail) return;
    char *tail = text + nbytes - n_tail;
    snprintf(digits, sizeof digits, "%08" PRIx32, crc32_update(0, text, nbytes - n_tail));
    memcpy(tail, begin, sizeof begin - 1);
    memcpy(tail + sizeof begin - 1, digits, 8);
    memcpy(tail + sizeof begin - 1 + 8, end, sizeof end - 1);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    char *text = fuzz_copy(data, nbytes);
    try(text, nbytes);
    sign(text, nbytes);
    try(text, nbytes);
    free(text);
    return 0;
}
