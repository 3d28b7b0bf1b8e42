/* Promises: any pickle as the rank file of the 1-bit optimizers opens or is refused with a
 * sentence; sizes of its segments fit each other; both ends of every error and every state can be
 * read, what is outside cannot. */
#include "checkpoint/read/onebit_file.h"
#include "tests/fuzz/make_pt.h"

#define WORLD_SIZE 2

static void check_ends(const struct ckpt_onebit_file *f, size_t segment, bool is_server,
                       uint64_t numel)
{
    float ends[4];
    size_t n = numel < 4 ? (size_t)numel : 4;
    FUZZ_CHECK(ckpt_onebit_read(f, segment, is_server, 0, n, ends) == CZ_OK);
    FUZZ_CHECK(ckpt_onebit_read(f, segment, is_server, numel - n, n, ends) == CZ_OK);
    FUZZ_CHECK(ckpt_onebit_read(f, segment, is_server, numel, 1, ends) == CZ_INVALID);
}

static void check_segment(const struct ckpt_onebit_file *f, size_t idx)
{
    static const char *const keys[] = {"exp_avg", "momentum_accumulator"};
    struct ckpt_onebit_segment s = ckpt_onebit_segment_at(f, idx);
    float value;
    FUZZ_CHECK(s.n_params > 0 && s.numel <= s.numel_padded && s.numel_padded % WORLD_SIZE == 0);
    check_ends(f, idx, false, s.numel_padded);
    check_ends(f, idx, true, s.numel_padded / WORLD_SIZE);
    for (size_t i = 0; i < s.n_params && i < 8; i++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(keys); k++) {
            const char *param = ckpt_onebit_param(f, idx, i);
            FUZZ_CHECK(param);
            cz_status st = ckpt_onebit_read_state(f, param, keys[k], s.numel, 1, &value);
            if (st == CZ_OK) st = ckpt_onebit_read_state(f, param, keys[k], 0, 1, &value);
            if (st != CZ_OK && st != CZ_NOTFOUND) fuzz_refused(st);
            FUZZ_CHECK(ckpt_onebit_read_state(f, param, keys[k], UINT64_MAX, 2, &value) != CZ_OK);
        }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct ckpt_onebit_file *f;
    char name[CKPT_NAME_MAX];
    ckpt_onebit_name(1, name);
    if (!make_pt(name, data, nbytes)) return 0;
    const struct ckpt_onebit_want want = {.tag_dir = fuzz_folder_path(),
                                          .optimizer = "zerooneadam",
                                          .rank = 1,
                                          .world_size = WORLD_SIZE,
                                          .step = 3,
                                          .global_steps = 4};
    cz_status st = ckpt_onebit_open(&want, &f);
    FUZZ_CHECK((st == CZ_OK) == (f != NULL));
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    ckpt_onebit_has_states(f);
    for (size_t i = 0; i < ckpt_onebit_n_segments(f) && i < 64; i++) check_segment(f, i);
    ckpt_onebit_close(f);
    return 0;
}
