/* Promises: whatever `latest` contains, it names a tag or is refused with a sentence; a tag is one
 * that a user may give, too. */
#include "checkpoint/read/names.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    char *tag;
    fuzz_folder_put(fuzz_folder(), CKPT_LATEST, data, nbytes);
    cz_status st = ckpt_latest_read(fuzz_folder_path(), false, &tag);
    FUZZ_CHECK((st == CZ_OK) == (tag != NULL));
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    FUZZ_CHECK(ckpt_tag_check(tag) == CZ_OK && !strchr(tag, '/') && strlen(tag) <= nbytes);
    free(tag);
    return 0;
}
