/* Promises: any index of shards is read or refused with a sentence; its files are sorted, differ
 * and stay in the folder, and every tensor is in one of them. */
#include "formats/beneath.h"
#include "formats/json/json.h"
#include "formats/safetensors/shards.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    static const char name[] = "model.safetensors.index.json";
    struct shards_index index;
    fuzz_folder_put(fuzz_folder(), name, data, nbytes);
    cz_status st = shards_index_load(fuzz_folder_path(), name, &index);
    if (st != CZ_OK) {
        FUZZ_CHECK(!index.doc && !index.files);
        fuzz_refused(st);
        return 0;
    }
    FUZZ_CHECK(index.n_files > 0 && index.n_files <= json_count(index.map));
    for (size_t i = 0; i < index.n_files; i++) {
        FUZZ_CHECK(!beneath_fault(index.files[i]));
        FUZZ_CHECK(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
    }
    for (size_t i = 0; i < json_count(index.map) && i < 64; i++) {
        const char *file = shards_index_file(&index, json_key(json_child(index.map, i)));
        bool found = false;
        for (size_t k = 0; file && k < index.n_files && !found; k++)
            found = strcmp(file, index.files[k]) == 0;
        FUZZ_CHECK(found);
    }
    shards_index_free(&index);
    return 0;
}
