/* Names of tags and files, and where a folder that a user names leads. */
#include "checkpoint/read/names.h"
#include "tests/support/check_main.h"

#include <string.h>
#include <unistd.h>

static char path_buffer[4096];

static const char *under(const char *dir, const char *name)
{
    snprintf(path_buffer, sizeof path_buffer, "%s/%s", dir, name);
    return path_buffer;
}

static void put(const char *dir, const char *name, const char *text, size_t n)
{
    FILE *f = fopen(under(dir, name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void put_folder(const char *dir, const char *name)
{
    ck_assert_int_eq(mkdir(under(dir, name), 0700), 0);
}

START_TEST(files_have_deepspeeds_names)
{
    char name[CKPT_NAME_MAX];
    ckpt_model_file(0, 0, name);
    ck_assert_str_eq(name, "mp_rank_00_model_states.pt");
    ckpt_model_file(2, 3, name);
    ck_assert_str_eq(name, "mp_rank_00_model_states.pt");
    ckpt_model_file(3, 12, name);
    ck_assert_str_eq(name, "zero_pp_rank_12_mp_rank_00_model_states.pt");
    ckpt_optim_file(false, 0, name);
    ck_assert_str_eq(name, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
    ckpt_optim_file(true, 511, name);
    ck_assert_str_eq(name, "bf16_zero_pp_rank_511_mp_rank_00_optim_states.pt");
}
END_TEST

START_TEST(tags_are_single_visible_names)
{
    char longest[202];
    memset(longest, 'a', sizeof longest);
    longest[200] = '\0';
    ck_ok(ckpt_tag_check(longest));
    longest[200] = 'a';
    longest[201] = '\0';
    ck_fails(ckpt_tag_check(longest), CZ_INVALID);
    static const char *const good[] = {"global_step20", "a b", "épöque 3", "x.y", "0", "-x"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(good); i++) ck_ok(ckpt_tag_check(good[i]));
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      ".x",
                                      "a/b",
                                      "/",
                                      "a\nb",
                                      "a\tb",
                                      "\x7f",
                                      " a",
                                      "a ",
                                      "latest",
                                      "latest_universal"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) ck_fails(ckpt_tag_check(bad[i]), CZ_INVALID);
}
END_TEST

static void latest_gives(const char *dir, const char *text, size_t n, const char *want)
{
    char *tag;
    put(dir, "latest", text, n);
    if (want) {
        ck_ok(ckpt_latest_read(dir, false, &tag));
        ck_assert_str_eq(tag, want);
        free(tag);
    } else {
        ck_fails(ckpt_latest_read(dir, false, &tag), CZ_CORRUPT);
        ck_assert_ptr_null(tag);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "/latest"));
    }
}

START_TEST(latest_is_trimmed_and_checked)
{
    const char *dir = test_tmp_make();
    char *tag, big[5000];
    memset(big, 'a', sizeof big);
    ck_fails(ckpt_latest_read(dir, false, &tag), CZ_NOTFOUND);
    ck_assert_ptr_null(tag);
    latest_gives(dir, "global_step7", 12, "global_step7");
    latest_gives(dir, " \tglobal step7 \r\n\n", 18, "global step7");
    latest_gives(dir, "", 0, NULL);
    latest_gives(dir, " \n", 2, NULL);
    latest_gives(dir, "a\0b", 3, NULL);
    latest_gives(dir, "../elsewhere", 12, NULL);
    latest_gives(dir, "run 1/global_step7\n", 19, "run 1/global_step7"); /* DeepSpeed's */
    latest_gives(dir, "run/../../elsewhere", 19, NULL);
    latest_gives(dir, "/run", 4, NULL);
    latest_gives(dir, "run//x", 6, NULL);
    latest_gives(dir, big, 201, NULL);
    latest_gives(dir, big, sizeof big, NULL);
    put(dir, "latest_universal", "u1", 2);
    ck_ok(ckpt_latest_read(dir, true, &tag));
    ck_assert_str_eq(tag, "u1");
    free(tag);
    test_tmp_remove(dir);
}
END_TEST

static void leads_to(const char *dir, const char *tag, const char *want_dir, const char *want_tag)
{
    char *tag_dir, *found;
    ck_ok(ckpt_locate(dir, tag, &tag_dir, &found));
    ck_assert_str_eq(tag_dir, want_dir);
    ck_assert_str_eq(found, want_tag);
    free(tag_dir);
    free(found);
}

static void leads_nowhere(const char *dir, const char *tag, cz_status status, const char *words)
{
    char *tag_dir, *found;
    ck_fails(ckpt_locate(dir, tag, &tag_dir, &found), status);
    ck_assert_ptr_null(tag_dir);
    ck_assert_ptr_null(found);
    ck_assert_msg(strstr(cz_last_error(), words) != NULL, "%s", cz_last_error());
}

START_TEST(a_folder_leads_to_a_tag)
{
    const char *dir = test_tmp_make();
    char other[256], want[256];
    leads_nowhere(under(dir, "absent"), NULL, CZ_NOTFOUND, "no such folder");
    leads_nowhere(dir, NULL, CZ_NOTFOUND, "no checkpoint here");
    put_folder(dir, "t9");
    put(dir, "t9/mp_rank_00_model_states.pt", "", 0);
    put_folder(dir, "t10");
    put(dir, "t10/mp_rank_00_model_states.pt", "", 0);
    put_folder(dir, "junk");
    leads_nowhere(dir, NULL, CZ_NOTFOUND, "tags in this folder: t10, t9");
    leads_nowhere(dir, "t11", CZ_NOTFOUND, "no tag 't11'; tags in this folder: t10, t9");
    leads_nowhere(dir, "t9/x", CZ_NOTFOUND, "no tag 't9/x'");
    static const char *const outside[] = {"t9/../..", "../t9", "/t9", "t9/", "t9//x", "t9/.", "/"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(outside); i++)
        leads_nowhere(dir, outside[i], CZ_INVALID, "cannot be a checkpoint's tag");
    put(dir, "a_file", "", 0);
    leads_nowhere(under(dir, "a_file"), NULL, CZ_INVALID, "is a file");
    put_folder(dir, "junk/t1");
    put(dir, "junk/t1/mp_rank_00_model_states.pt", "", 0);
    snprintf(want, sizeof want, "%s/junk/t1", dir);
    leads_to(dir, "junk/t1", want, "junk/t1");
    snprintf(want, sizeof want, "%s/t9", dir);
    leads_to(dir, "t9", want, "t9");
    snprintf(other, sizeof other, "%s/t9", dir); /* the tag's folder itself */
    leads_to(other, NULL, other, "t9");
    snprintf(other, sizeof other, "%s/t10/../t9/", dir);
    leads_to(other, NULL, other, "t9");
    put_folder(dir, "u1");
    put_folder(dir, "u1/zero");
    put(dir, "latest_universal", "u1", 2);
    snprintf(want, sizeof want, "%s/u1", dir);
    leads_to(dir, NULL, want, "u1");
    leads_to(want, NULL, want, "u1");
    put(dir, "latest", "t10\n", 4); /* goes before latest_universal */
    snprintf(want, sizeof want, "%s/t10", dir);
    leads_to(dir, NULL, want, "t10");
    put(dir, "latest", "t12", 3);
    leads_nowhere(dir, NULL, CZ_NOTFOUND,
                  "'t12', which 'latest' names; tags in this folder: u1, t10, t9");
    put(dir, "latest", "", 0);
    leads_nowhere(dir, NULL, CZ_CORRUPT, "/latest");
    test_tmp_remove(dir);
}
END_TEST

/* What is not known is no "no": a run would begin anew. A link to itself cannot be followed. */
START_TEST(a_folder_that_cannot_be_examined_is_an_error)
{
    const char *dir = test_tmp_make();
    char loop[256];
    put(dir, "latest", "t1", 2);
    snprintf(loop, sizeof loop, "%s/t1", dir);
    ck_assert_int_eq(symlink("t1", loop), 0);
    leads_nowhere(loop, NULL, CZ_IO, "t1/latest");
    snprintf(loop, sizeof loop, "%s/latest", dir);
    ck_assert_int_eq(unlink(loop), 0);
    ck_assert_int_eq(symlink("latest", loop), 0);
    leads_nowhere(dir, NULL, CZ_IO, "latest: cannot be opened");
    test_tmp_remove(dir);
}
END_TEST

/* The newest by number, with its own name; files and other names do not count. */
START_TEST(a_trainers_folder_is_told)
{
    const char *dir = test_tmp_make();
    put(dir, "checkpoint-900", "", 0);
    put_folder(dir, "checkpoint-");
    put_folder(dir, "checkpoint-x5");
    put_folder(dir, "checkpoint- 6");
    put_folder(dir, "checkpoint-99999999999999999999");
    leads_nowhere(dir, NULL, CZ_NOTFOUND, "no checkpoint here");
    put_folder(dir, "checkpoint-0");
    leads_nowhere(dir, NULL, CZ_NOTFOUND, "(checkpoint-0): name one of them");
    put_folder(dir, "checkpoint-20");
    put_folder(dir, "checkpoint-0100");
    leads_nowhere(dir, NULL, CZ_NOTFOUND,
                  "(checkpoint-0, checkpoint-20, checkpoint-0100): name one");
    leads_nowhere(dir, NULL, CZ_NOTFOUND, "/checkpoint-0100");
    test_tmp_remove(dir);
}
END_TEST

START_TEST(files_are_listed_in_natural_order)
{
    const char *dir = test_tmp_make();
    static const char *const names[] = {"r_100.pt", "r_9.pt",  "r_10.pt",   "r_09.pt",
                                        "r_1.pt",   "other",   "r_1_b.pt",  "a.pt",
                                        ".pt",      "r_1.pt~", "r_0010a.pt"};
    static const char *const want[] = {".pt",    "a.pt",    "r_1.pt",     "r_1_b.pt", "r_09.pt",
                                       "r_9.pt", "r_10.pt", "r_0010a.pt", "r_100.pt"};
    struct ckpt_list list;
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) put(dir, names[i], "", 0);
    ck_ok(ckpt_list_files(dir, ".pt", &list));
    ck_assert_uint_eq(list.n, CZ_ARRAY_LEN(want));
    for (size_t i = 0; i < list.n; i++) ck_assert_str_eq(list.names[i], want[i]);
    ckpt_list_free(&list);
    ckpt_list_free(&list);
    ck_ok(ckpt_list_files(dir, "", &list));
    ck_assert_uint_eq(list.n, CZ_ARRAY_LEN(names));
    ckpt_list_free(&list);
    ck_ok(ckpt_list_files(dir, ".none", &list));
    ck_assert_uint_eq(list.n, 0);
    ckpt_list_free(&list);
    ck_fails(ckpt_list_files(under(dir, "absent"), "", &list), CZ_NOTFOUND);
    ck_fails(ckpt_list_files(under(dir, "other"), "", &list), CZ_NOTFOUND);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/names", files_have_deepspeeds_names, tags_are_single_visible_names,
          latest_is_trimmed_and_checked, a_folder_leads_to_a_tag,
          a_folder_that_cannot_be_examined_is_an_error, a_trainers_folder_is_told,
          files_are_listed_in_natural_order)
