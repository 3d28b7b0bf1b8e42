/* Claims: an error keeps its sentence, gains frames on its way up, and crosses threads by value. */
#include "tests/support/check_main.h"

#include <string.h>

static cz_status inner(void)
{
    return err_set(CZ_CORRUPT, 0, "file %d is bad", 7);
}

static cz_status outer(void)
{
    TRY(inner());
    return CZ_OK;
}

START_TEST(error_keeps_sentence_and_gains_frames)
{
    ck_fails(outer(), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "file 7 is bad");
    ck_assert_ptr_nonnull(strstr(cz_last_trace(), "outer:"));
    err_prefix("while reading %s", "x");
    ck_assert_str_eq(cz_last_error(), "while reading x: file 7 is bad");
    ck_assert_int_eq(cz_last_status(), CZ_CORRUPT);
}
END_TEST

START_TEST(errno_text_is_appended)
{
    ck_fails(err_set(CZ_IO, 2, "open x"), CZ_IO);
    ck_assert_str_eq(cz_last_error(), "open x: No such file or directory");
}
END_TEST

/* Damaged files bring names that would move the cursor, begin a line of their own, or worse. */
START_TEST(sentences_hold_no_control_characters)
{
    ck_fails(err_set(CZ_CORRUPT, 0, "no class %s\n\tin %s", "\x1b[2J\x07\x7f", "h\xc3\xa9"),
             CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "no class \\x1b[2J\\x07\\x7f\n\tin h\xc3\xa9");
    err_prefix("%s", "\x1b]0;x");
    ck_assert_str_eq(cz_last_error(), "\\x1b]0;x: no class \\x1b[2J\\x07\\x7f\n\tin h\xc3\xa9");
    ck_fails(err_set(CZ_CORRUPT, 0, "record %s is damaged", "k\nczero: no damage\n\xc2\x9b\xff"),
             CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "record k\\nczero: no damage\\n\\u009b\\xff is damaged");
}
END_TEST

START_TEST(a_long_name_leaves_the_rest_of_the_sentence)
{
    static char name[100000];
    memset(name, '\n', sizeof name - 1);
    ck_fails(err_set(CZ_IO, 2, "%s: cannot open", name), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), ": cannot open: No such file or directory"));
}
END_TEST

START_TEST(lines_are_added)
{
    err_set(CZ_INVALID, 0, "%s", "a\nb");
    ck_assert_int_eq(err_add_line("%s", "c\nd"), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "a\\nb\nc\\nd");
}
END_TEST

START_TEST(captured_error_is_restored)
{
    struct err carried;
    inner();
    err_capture(&carried);
    err_clear();
    ck_assert_str_eq(cz_last_error(), "");
    ck_assert_int_eq(err_restore(&carried), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "file 7 is bad");
}
END_TEST

TEST_MAIN("base/status", error_keeps_sentence_and_gains_frames, errno_text_is_appended,
          sentences_hold_no_control_characters, a_long_name_leaves_the_rest_of_the_sentence,
          lines_are_added, captured_error_is_restored)
