/* Pickles with damaged bytes under a good checksum: whatever they say, opening ends with a view
 * whose every run is in its file, or with an error. Meant for ASan and UBSan. */
#include "checkpoint/read/checkpoint.h"
#include "formats/crc32.h"
#include "tests/support/check_main.h"

#include <string.h>

#define TRIALS 100

/* ---- one damaged file ------------------------------------------------------------------------ */

static void put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (8 * i));
}

/* The checksum of data.pkl in the descriptor behind it and in the directory, found by its value. */
static void set_crc(unsigned char *bytes, size_t n, uint32_t old, uint32_t now)
{
    unsigned char was[4];
    put_u32(was, old);
    for (size_t i = 0; i + 4 <= n; i++)
        if (memcmp(bytes + i, was, 4) == 0) put_u32(bytes + i, now);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Change one to three bytes, mostly small numbers: lengths, ids and opcodes near their true ones.
 */
static void damage(unsigned char *pickle, size_t n, uint64_t *state)
{
    for (uint32_t i = next_random(state) % 3 + 1; i > 0; i--) {
        unsigned char *at = &pickle[next_random(state) % n];
        *at = (unsigned char)(next_random(state) % 2 ? next_random(state) % 256
                                                     : *at + next_random(state) % 5 - 2);
    }
}

/* ---- what must hold -------------------------------------------------------------------------- */

static void walk(const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (size_t i = 0; i < ckpt_count(ck); i++)
        for (int what = 0; what < CKPT_STATE_0 + (int)info->n_states; what++) {
            struct ckpt_run run;
            for (uint64_t at = 0; at < ckpt_at(ck, i)->numel; at += run.numel) {
                if (ckpt_run(ck, i, what, at, &run) != CZ_OK) break;
                uint64_t end = run.file_off + run.numel * run.dtype->size;
                if (run.numel == 0 || end > ckpt_file_nbytes(ck, run.file_idx))
                    ck_abort_msg("%s: a run outside its file", ckpt_at(ck, i)->name);
            }
        }
}

/* Open with every kind of damage to one of the folder's files, which stays as it was. */
static size_t try_file(const char *dir, const char *file, uint64_t *state)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    struct pt *pt;
    ck_ok(pt_open(path, &pt));
    const struct pt_record record = *pt_record_find(pt, "data.pkl");
    pt_close(pt);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    static unsigned char whole[1 << 17], damaged[1 << 17];
    size_t n = fread(whole, 1, sizeof whole, f), n_opened = 0;
    fclose(f);
    ck_assert_uint_lt(n, sizeof whole);
    for (int i = 0; i < TRIALS; i++) {
        memcpy(damaged, whole, n);
        damage(damaged + record.off, (size_t)record.nbytes, state);
        set_crc(damaged, n, record.crc,
                crc32_update(0, damaged + record.off, (size_t)record.nbytes));
        f = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(damaged, 1, n, f), n);
        fclose(f);
        struct ckpt *ck;
        const struct ckpt_open_options options = {.dir = dir, .weights_only = i % 4 == 0};
        if (ckpt_open(&options, &ck) == CZ_OK) {
            walk(ck);
            n_opened++;
        } else {
            ck_assert_ptr_null(ck);
            ck_assert_uint_gt(strlen(cz_last_error()), 10);
        }
        ckpt_close(ck);
    }
    f = fopen(path, "wb");
    ck_assert_uint_eq(fwrite(whole, 1, n, f), n);
    fclose(f);
    return n_opened;
}

static void try_folder(const char *name, const char *const *files, size_t n_files)
{
    char command[1024], dir[64];
    uint64_t state = 42;
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    snprintf(command, sizeof command, "cp -r '%s'/t3/. %s", test_fixture(name), dir);
    ck_assert_int_eq(system(command), 0);
    for (size_t i = 0; i < n_files; i++) {
        size_t n = try_file(dir, files[i], &state);
        ck_assert_uint_gt(n, 0); /* some damage does no harm */
        ck_assert_uint_lt(n, TRIALS);
    }
    test_tmp_remove(dir);
}

START_TEST(stage_0)
{
    const char *const file = "mp_rank_00_model_states.pt";
    try_folder("checkpoints/expected/s0-bf16-groups", &file, 1);
    try_folder("checkpoints/expected/s0-fp16-fused", &file, 1);
}
END_TEST

START_TEST(stages_1_and_2)
{
    const char *const files[] = {"mp_rank_00_model_states.pt",
                                 "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                 "zero_pp_rank_1_mp_rank_00_optim_states.pt"};
    try_folder("checkpoints/expected/s2-rr", files, 3);
}
END_TEST

START_TEST(stage_3)
{
    const char *const files[] = {"zero_pp_rank_0_mp_rank_00_model_states.pt",
                                 "zero_pp_rank_2_mp_rank_00_model_states.pt",
                                 "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                 "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"};
    try_folder("checkpoints/expected/s3-sub", files, 4);
}
END_TEST

START_TEST(universal)
{
    const char *const files[] = {"zero/optimizer_state.pt", "zero/l1.weight/fp32.pt",
                                 "zero/l1.bias/step.pt", "mp_rank_00_model_states.pt"};
    try_folder("checkpoints/expected/u2", files, 4);
}
END_TEST

TEST_MAIN("checkpoint/ckpt_hostile", stage_0, stages_1_and_2, stage_3, universal)
