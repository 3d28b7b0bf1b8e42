/* Promises: any czero_state.json is read or refused with a sentence; what is read is in range, and
 * written again it reads as the same. */
#include "checkpoint/read/names.h"
#include "engine/state/run_state_impl.h"
#include "tests/fuzz/fuzz.h"

static cz_status load(const void *text, size_t nbytes, struct run_state *s)
{
    fuzz_folder_put(fuzz_folder(), CKPT_STATE, text, nbytes);
    return run_state_load(fuzz_folder_path(), s);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes)
{
    struct run_state s, again;
    char *text, *text_again;
    size_t n_text, n_text_again;
    cz_status st = load(data, nbytes, &s);
    if (st != CZ_OK) {
        fuzz_refused(st);
        return 0;
    }
    FUZZ_CHECK(s.stage >= 0 && s.stage <= 3 && s.world_size >= 1);
    FUZZ_CHECK(s.n_groups <= OPTIM_GROUPS_MAX && s.global_steps >= 0 && s.micro_steps >= 0);
    FUZZ_CHECK(run_state_to_json(&s, NULL, &text, &n_text) == CZ_OK);
    FUZZ_CHECK(load(text, n_text, &again) == CZ_OK);
    FUZZ_CHECK(run_state_to_json(&again, NULL, &text_again, &n_text_again) == CZ_OK);
    FUZZ_CHECK(n_text == n_text_again && memcmp(text, text_again, n_text) == 0);
    run_state_free(&s);
    run_state_free(&again);
    free(text);
    free(text_again);
    return 0;
}
