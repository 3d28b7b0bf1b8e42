/* A checkpoint that is not whole, or not of one save, does not open: the sentence names the file.
 */
#include "checkpoint/read/checkpoint.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

#include <stdarg.h>

static struct rig_case plain(int stage, int world_size)
{
    return (struct rig_case){
        .stage = stage, .world_size = world_size, .dtype = DTYPE_BF16, .frozen = true, .step = 4};
}

static const char *folder_of(struct rig_case c)
{
    struct rig r;
    rig_init(&r, &c);
    const char *dir = test_tmp_make_fast();
    rig_write(&r, dir, NULL);
    rig_free(&r);
    return dir;
}

/* Opening fails, and the sentence holds every word; the last one is NULL. */
static void refused(const char *dir, cz_status status, ...)
{
    struct ckpt *ck;
    const struct ckpt_open_options options = {.dir = dir};
    ck_fails(ckpt_open(&options, &ck), status);
    ck_assert_ptr_null(ck);
    va_list words;
    va_start(words, status);
    for (const char *word; (word = va_arg(words, const char *));)
        ck_assert_msg(strstr(cz_last_error(), word) != NULL, "'%s' is not in '%s'", word,
                      cz_last_error());
    va_end(words);
}

static void opens(const char *dir)
{
    struct ckpt *ck;
    const struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    ckpt_close(ck);
}

static void shell(const char *dir, const char *command)
{
    char line[1024];
    snprintf(line, sizeof line, "cd '%s' && %s", dir, command);
    ck_assert_int_eq(system(line), 0);
}

START_TEST(missing_shards_are_listed)
{
    const char *dir = folder_of(plain(2, 4));
    shell(dir, "rm bf16_zero_pp_rank_1_* bf16_zero_pp_rank_3_*");
    refused(dir, CZ_CORRUPT, "2 of 4", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", NULL);
    shell(dir, "rm bf16_*");
    refused(dir, CZ_CORRUPT, "4 of 4", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", NULL);
    shell(dir, "rm mp_rank*");
    refused(dir, CZ_NOTFOUND, "no checkpoint here", NULL);
    test_tmp_remove(dir);
    dir = folder_of(plain(3, 3));
    shell(dir, "rm zero_pp_rank_2_mp_rank_00_model_states.pt");
    refused(dir, CZ_CORRUPT, "1 of 3", "zero_pp_rank_2_mp_rank_00_model_states.pt", NULL);
    shell(dir, "rm zero_pp_rank_0_mp_rank_00_model_states.pt");
    refused(dir, CZ_CORRUPT, "2 of 3", "zero_pp_rank_0_mp_rank_00_model_states.pt", NULL);
    test_tmp_remove(dir);
    dir = folder_of(plain(1, 3));
    shell(dir, "rm mp_rank_00_model_states.pt");
    refused(dir, CZ_NOTFOUND, "no checkpoint here", NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(shards_of_a_larger_save_are_stale)
{
    for (int stage = 1; stage <= 3; stage++) {
        char command[512], larger[64];
        snprintf(larger, sizeof larger, "%s", folder_of(plain(stage, 4)));
        static char copy[64];
        snprintf(copy, sizeof copy, "%s", folder_of(plain(stage, 3)));
        snprintf(command, sizeof command, "cp -n %s/*_rank_3_* .", larger);
        shell(copy, command);
        refused(copy, CZ_CORRUPT, "stale", "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt",
                "3 ranks", NULL);
        shell(copy, "rm bf16_*_rank_3_*");
        if (stage == 3)
            refused(copy, CZ_CORRUPT, "stale", "zero_pp_rank_3_mp_rank_00_model_states.pt", NULL);
        test_tmp_remove(copy);
        test_tmp_remove(larger);
    }
}
END_TEST

/* One file in a folder of `c` comes from a save of `other`. */
static void mixed(struct rig_case c, struct rig_case other, const char *file, cz_status status,
                  const char *word)
{
    char command[512], from[64], to[64];
    snprintf(from, sizeof from, "%s", folder_of(other));
    snprintf(to, sizeof to, "%s", folder_of(c));
    snprintf(command, sizeof command, "cp %s/%s .", from, file);
    shell(to, command);
    refused(to, status, word, NULL);
    test_tmp_remove(from);
    test_tmp_remove(to);
}

#define OPTIM_1 "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
#define MODEL_1 "zero_pp_rank_1_mp_rank_00_model_states.pt"

START_TEST(files_of_two_saves_do_not_mix)
{
    struct rig_case later = plain(2, 3), shaped = plain(3, 3), fp16 = plain(2, 3);
    later.step = 5;
    shaped.frozen = false;
    fp16.dtype = DTYPE_F16;
    mixed(plain(2, 3), plain(2, 4), OPTIM_1, CZ_CORRUPT, "partition_count");
    mixed(plain(2, 3), plain(2, 4), "bf16_zero_pp_rank_0_*", CZ_CORRUPT, "rank_3");
    mixed(plain(2, 3), plain(1, 3), OPTIM_1, CZ_CORRUPT, "zero_stage");
    mixed(plain(2, 3), later, OPTIM_1, CZ_CORRUPT, "its step is 5, but 4 elsewhere");
    mixed(plain(3, 3), shaped, OPTIM_1, CZ_CORRUPT, "elements");
    mixed(plain(3, 3), shaped, MODEL_1, CZ_CORRUPT, "param_shapes");
    mixed(plain(2, 3), plain(3, 3), MODEL_1, CZ_CORRUPT, "files of two saves");
    mixed(plain(2, 3), fp16, "zero_pp_rank_2_*", CZ_CORRUPT, "different precision");
    mixed(plain(2, 3), plain(2, 4), "mp_rank_00_*", CZ_CORRUPT, "saved by 4 ranks");
    mixed(plain(2, 3), plain(0, 3), "mp_rank_00_*", CZ_CORRUPT, "stale optimizer file");
    mixed(plain(3, 3), plain(2, 3), "bf16_*", CZ_CORRUPT, "of stage 2");
    mixed(plain(2, 3), plain(3, 3), "bf16_*", CZ_CORRUPT, "of stage 3");
}
END_TEST

static void exchange_ranks_1_and_2(const char *dir)
{
    shell(dir, "mv bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt x && "
               "mv bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt "
               "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt && "
               "mv x bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt");
}

/* Of equal length, and of the same save: only their own words tell them apart. */
START_TEST(files_that_changed_ranks_are_named)
{
    const char *dir = folder_of(plain(1, 4));
    opens(dir);
    exchange_ranks_1_and_2(dir);
    refused(dir, CZ_CORRUPT, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "param_slice_mappings", "not rank 1's file", NULL);
    test_tmp_remove(dir);
}
END_TEST

/* A key of the same length, and the record's checksum in each place that has it. */
static void rename_key(const char *dir, const char *name, const char *from, const char *to)
{
    char path[600];
    struct pt *pt;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(pt_open(path, &pt));
    const struct pt_record record = *pt_record_find(pt, "data.pkl");
    const size_t nbytes = (size_t)pt_nbytes(pt);
    pt_close(pt);
    unsigned char *bytes = malloc(nbytes);
    FILE *f = fopen(path, "r+b");
    ck_assert(f && bytes && fread(bytes, 1, nbytes, f) == nbytes);
    unsigned char *key = memmem(bytes + record.off, record.nbytes, from, strlen(from));
    ck_assert_ptr_nonnull(key);
    memcpy(key, to, strlen(to));
    const uint32_t crc = crc32_update(0, bytes + record.off, record.nbytes);
    for (size_t i = 0; i + sizeof crc <= nbytes; i++)
        if (memcmp(bytes + i, &record.crc, sizeof crc) == 0) memcpy(bytes + i, &crc, sizeof crc);
    rewind(f);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, f), nbytes);
    ck_assert_int_eq(fclose(f), 0);
    free(bytes);
}

/* DeepSpeed's mappings are wrong under round_robin_gradients, and a config that was saved as a path
 * does not say whether that was on. */
START_TEST(without_a_config_their_words_prove_nothing)
{
    struct rig r;
    const struct rig_case c = plain(1, 4);
    const char *dir = test_tmp_make_fast();
    rig_init(&r, &c);
    rig_write(&r, dir, NULL);
    rig_free(&r);
    rename_key(dir, "mp_rank_00_model_states.pt", "ds_config", "ds_confix");
    exchange_ranks_1_and_2(dir);
    opens(dir);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(other_kinds_of_parallelism_are_named)
{
    const char *dir = folder_of(plain(2, 2));
    opens(dir);
    shell(dir, "cp mp_rank_00_model_states.pt mp_rank_01_model_states.pt");
    refused(dir, CZ_UNSUPPORTED, "mp_rank_01_model_states.pt", "tensor parallelism", NULL);
    shell(dir, "mv mp_rank_01_model_states.pt layer_01-model_00-model_states.pt");
    refused(dir, CZ_UNSUPPORTED, "pipeline parallelism", NULL);
    shell(dir, "mv layer_01-model_00-model_states.pt "
               "layer_0_expert_1_mp_rank_00_model_states.pt");
    refused(dir, CZ_UNSUPPORTED, "expert parallelism", NULL);
    shell(dir, "rm layer_*; cp " OPTIM_1 " zero_pp_rank_1_mp_rank_00_optim_states.pt");
    refused(dir, CZ_CORRUPT, "different precision", NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(damaged_files_are_named)
{
    const char *dir = folder_of(plain(3, 2));
    shell(dir, "truncate -s -1 " OPTIM_1);
    refused(dir, CZ_CORRUPT, OPTIM_1, NULL);
    shell(dir, "truncate -s 0 " OPTIM_1);
    refused(dir, CZ_CORRUPT, OPTIM_1, NULL);
    shell(dir, "cp " MODEL_1 " " OPTIM_1); /* a whole file of another kind */
    refused(dir, CZ_CORRUPT, OPTIM_1, "optimizer_state_dict", NULL);
    shell(dir, "cp bf16_zero_pp_rank_0_* zero_pp_rank_0_mp_rank_00_model_states.pt");
    refused(dir, CZ_CORRUPT, "zero_pp_rank_0_mp_rank_00_model_states.pt", "module", NULL);
    shell(dir, "rm zero_pp_rank_0_mp_rank_00_model_states.pt && mkdir "
               "zero_pp_rank_0_mp_rank_00_model_states.pt");
    refused(dir, CZ_IO, "is a folder", NULL);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_file_replaced_while_it_is_read_is_noticed)
{
    const char *dir = folder_of(plain(1, 2));
    struct ckpt *ck;
    float value;
    const struct ckpt_open_options options = {.dir = dir};
    ck_ok(ckpt_open(&options, &ck));
    size_t idx = ckpt_find(ck, "emb.weight");
    shell(dir, "cp bf16_zero_pp_rank_0_* other && mv other "
               "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
    ck_fails(ckpt_read(ck, idx, CKPT_MASTER, 0, 1, &value), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "was replaced"));
    shell(dir, "rm bf16_zero_pp_rank_0_*");
    ck_fails(ckpt_read(ck, idx, CKPT_MASTER, 0, 1, &value), CZ_NOTFOUND);
    ckpt_close(ck);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/ckpt_damage", missing_shards_are_listed, shards_of_a_larger_save_are_stale,
          files_of_two_saves_do_not_mix, files_that_changed_ranks_are_named,
          without_a_config_their_words_prove_nothing, other_kinds_of_parallelism_are_named,
          damaged_files_are_named, a_file_replaced_while_it_is_read_is_noticed)
