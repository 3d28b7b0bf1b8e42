/* Claim: tensors are spread over shards as huggingface_hub's split_state_dict_into_shards does, and
 * files, index and the removal of an earlier set follow. */
#include "base/host/process_mark.h"
#include "formats/file_io.h"
#include "formats/safetensors/shards.h"
#include "tests/support/check_main.h"

#include <stdio.h>
#include <string.h>

static const struct shards_kind bin = {"pytorch_model", ".bin"};

/* Made with huggingface_hub 2.4. */
static const struct split_case {
    size_t n;
    uint64_t nbytes[12], limit;
    size_t n_files, file_of[12];
} recorded[] = {
    {6, {6, 6, 2, 6, 2, 2}, 10, 3, {0, 1, 1, 2, 2, 2}},
    {4, {5, 11, 5, 1}, 10, 3, {1, 0, 1, 2}},
    {1, {11}, 10, 1, {0}},
    {3, {11, 12, 13}, 10, 3, {0, 1, 2}},
    {3, {10, 10, 1}, 10, 3, {0, 1, 2}},
    {7, {1, 11, 1, 11, 1, 9, 8}, 10, 5, {2, 0, 2, 1, 2, 3, 4}},
    {6, {0, 0, 5, 0, 6, 0}, 10, 2, {0, 0, 0, 0, 1, 1}},
    {5, {3, 3, 3, 1, 3}, 10, 2, {0, 0, 0, 0, 1}},
    {2, {11, 0}, 10, 2, {0, 1}},
    {3, {0, 11, 0}, 10, 2, {1, 0, 1}},
    {12, {30, 5, 8, 11, 0, 10, 3, 0, 2, 1, 8, 10}, 10, 8, {0, 1, 3, 2, 3, 4, 5, 5, 5, 5, 6, 7}},
    {12, {3, 9, 11, 1, 30, 3, 0, 3, 9, 5, 2, 9}, 10, 8, {0, 3, 1, 3, 2, 4, 4, 4, 5, 6, 6, 7}},
    {12, {2, 1, 2, 30, 30, 10, 2, 2, 0, 0, 3, 3}, 10, 5, {2, 2, 2, 0, 1, 3, 4, 4, 4, 4, 4, 4}},
    {12, {2, 2, 5, 8, 3, 11, 3, 2, 3, 9, 5, 0}, 10, 7, {0, 0, 0, 1, 3, 2, 3, 3, 4, 5, 6, 6}},
    {12, {8, 9, 2, 2, 5, 1, 8, 5, 30, 30, 0, 30}, 10, 8, {0, 1, 2, 2, 2, 2, 3, 7, 4, 5, 7, 6}},
    {12, {8, 1, 5, 8, 5, 10, 8, 2, 10, 10, 2, 0}, 10, 9, {0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 8}},
};

static cz_status remove_replaced(const struct shards_kind *kind, const char *dir, size_t n_files)
{
    struct out_folder folder;
    TRY(out_folder_open(dir, &folder));
    cz_status st = shards_remove_replaced(kind, &folder, n_files);
    out_folder_close(&folder);
    return st;
}

START_TEST(split_is_that_of_hugging_face)
{
    for (size_t c = 0; c < CZ_ARRAY_LEN(recorded); c++) {
        size_t file_of[12], n_files;
        shards_split(recorded[c].nbytes, recorded[c].n, recorded[c].limit, file_of, &n_files);
        ck_assert_uint_eq(n_files, recorded[c].n_files);
        for (size_t i = 0; i < recorded[c].n; i++)
            ck_assert_msg(file_of[i] == recorded[c].file_of[i], "case %zu, tensor %zu: %zu", c, i,
                          file_of[i]);
    }
}
END_TEST

START_TEST(no_limit_and_no_tensors_are_one_file)
{
    size_t file_of[3], n_files;
    shards_split((const uint64_t[]){1, UINT64_MAX / 4, 7}, 3, 0, file_of, &n_files);
    ck_assert_uint_eq(n_files, 1);
    ck_assert_uint_eq(file_of[2], 0);
    shards_split(NULL, 0, 10, file_of, &n_files);
    ck_assert_uint_eq(n_files, 1);
}
END_TEST

START_TEST(index_is_sorted_and_laid_out_as_json_dumps_does)
{
    struct shards_entry entries[] = {{"b.weight", 1}, {"a", 0}, {"b.bias", 1}};
    char *text;
    size_t nbytes;
    ck_ok(shards_index_text(&bin, entries, 3, 2, 1234567890123, &text, &nbytes));
    static const char want[] = "{\n"
                               "  \"metadata\": {\n"
                               "    \"total_size\": 1234567890123\n"
                               "  },\n"
                               "  \"weight_map\": {\n"
                               "    \"a\": \"pytorch_model-00001-of-00002.bin\",\n"
                               "    \"b.bias\": \"pytorch_model-00002-of-00002.bin\",\n"
                               "    \"b.weight\": \"pytorch_model-00002-of-00002.bin\"\n"
                               "  }\n"
                               "}\n";
    ck_assert_uint_eq(nbytes, strlen(want));
    ck_assert_int_eq(memcmp(text, want, nbytes), 0);
    free(text);
}
END_TEST

static void touch(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    ck_ok(file_save(path, "x", 1));
    free(path);
}

static bool there(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

START_TEST(only_files_of_an_earlier_set_are_removed)
{
    static const char *const stale[] = {"pytorch_model.bin",
                                        "pytorch_model-00001-of-00003.bin",
                                        "pytorch_model-00003-of-00003.bin",
                                        "pytorch_model-123456-of-123456.bin",
                                        "pytorch_model-00001-of-00002.bin.tmp77",
                                        "pytorch_model.bin.index.json.tmp1"};
    static const char *const kept[] = {"pytorch_model-00001-of-00002.bin",
                                       "pytorch_model-00002-of-00002.bin",
                                       "pytorch_model.bin.index.json",
                                       "model.safetensors",
                                       "model-00001-of-00003.safetensors",
                                       "pytorch_model-1-of-3.bin",
                                       "pytorch_model-00001-of-00003.txt",
                                       "pytorch_model-00001-of-00003.bin.old",
                                       "config.json",
                                       "notes.bin.tmp12",
                                       "pytorch_model.bin.tmp"};
    const char *dir = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(stale); i++) touch(dir, stale[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(kept); i++) touch(dir, kept[i]);
    ck_ok(remove_replaced(&bin, dir, 2));
    for (size_t i = 0; i < CZ_ARRAY_LEN(stale); i++) ck_assert(!there(dir, stale[i]));
    for (size_t i = 0; i < CZ_ARRAY_LEN(kept); i++) ck_assert(there(dir, kept[i]));
    ck_ok(remove_replaced(&bin, dir, 1)); /* a single file needs no index */
    ck_assert(!there(dir, kept[0]));
    ck_assert(!there(dir, kept[2]));
    test_tmp_remove(dir);
}
END_TEST

/* A number that came back: the same process with another start has ended. */
START_TEST(temporary_files_of_ended_processes_are_removed)
{
    char mark[PROCESS_MARK_NBYTES], ended[128], runs[128];
    const char *dir = test_tmp_make();
    process_mark(mark);
    snprintf(runs, sizeof runs, "pytorch_model-00001-of-00010.bin.tmp%s", mark);
    char *last = mark + strlen(mark) - 1;
    *last = *last == '0' ? '1' : '0';
    snprintf(ended, sizeof ended, "pytorch_model-00001-of-00010.bin.tmp%s", mark);
    touch(dir, ended);
    touch(dir, runs);
    ck_ok(remove_replaced(&bin, dir, 1));
    ck_assert(!there(dir, ended));
    ck_assert(there(dir, runs));
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/shards", split_is_that_of_hugging_face, no_limit_and_no_tensors_are_one_file,
          index_is_sorted_and_laid_out_as_json_dumps_does, only_files_of_an_earlier_set_are_removed,
          temporary_files_of_ended_processes_are_removed)
