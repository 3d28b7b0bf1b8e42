/* Promises: any file opens or is refused with a sentence; tensors are inside the file, without hole
 * or overlap, and are found by name; their elements can be read, what is outside cannot. */
#include "formats/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

static void check_tensor(const struct safetensors *st, const struct safetensors_info *info,
                         size_t file_nbytes)
{
    unsigned bits = safetensors_dtype_bits(info->dtype);
    FUZZ_CHECK(safetensors_find(st, info->name) == info);
    FUZZ_CHECK(info->nbytes <= file_nbytes && info->file_off <= file_nbytes - info->nbytes);
    FUZZ_CHECK(info->numel <= UINT64_MAX / bits && info->numel * bits == info->nbytes * 8);
    /* a shape with a zero may have any number beside it */
    unsigned char *bytes = malloc(info->nbytes + 1);
    float *floats = malloc(info->numel * sizeof(float) + 1);
    FUZZ_CHECK(bytes && floats);
    FUZZ_CHECK(safetensors_read(st, info, 0, info->numel, bytes) == CZ_OK);
    FUZZ_CHECK(safetensors_read(st, info, info->numel, 16, bytes) == CZ_INVALID);
    FUZZ_CHECK(safetensors_read(st, info, UINT64_MAX - 7, 16, bytes) == CZ_INVALID);
    cz_status read = safetensors_read_f32(st, info, 0, info->numel, floats);
    FUZZ_CHECK(read == CZ_OK || read == CZ_UNSUPPORTED);
    free(bytes);
    free(floats);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct safetensors *set;
    cz_status st = safetensors_open(fuzz_file(data, nbytes), &set);
    if (st != CZ_OK) {
        FUZZ_CHECK(set == NULL);
        fuzz_refused(st);
        return 0;
    }
    uint64_t total = 0, end = 0;
    for (size_t i = 0; i < safetensors_count(set); i++) {
        const struct safetensors_info *info = safetensors_at(set, i);
        check_tensor(set, info, nbytes);
        FUZZ_CHECK(i == 0 || info->file_off == end);
        end = info->file_off + info->nbytes;
        total += info->nbytes;
    }
    FUZZ_CHECK(safetensors_count(set) == 0 || end == nbytes);
    FUZZ_CHECK(total < nbytes);
    FUZZ_CHECK(safetensors_find(set, "no such tensor \x01") == NULL);
    safetensors_metadata(set, "format");
    safetensors_close(set);
    return 0;
}
