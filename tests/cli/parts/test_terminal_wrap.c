/* Claims: lines break between words at the width and never before it; a table's row continues under
 * its last column; wide characters count twice and colours nothing; a word that is too long, and a
 * width that is none, change nothing. */
#include "tests/support/check_main.h"
#include "tools/czero/terminal.c" /* the tools are no library */

static void check_wrapped(const char *text, int columns, const char *want)
{
    char *got = NULL;
    size_t n;
    FILE *f = open_memstream(&got, &n);
    ck_assert_ptr_nonnull(f);
    terminal_wrap(f, text, columns);
    fclose(f);
    ck_assert_str_eq(got, want);
    free(got);
}

START_TEST(lines_break_between_words)
{
    check_wrapped("one two three four five\n", 0, "one two three four five\n");
    check_wrapped("one two three four five\n", 19, "one two three four five\n");
    check_wrapped("one two three four five\n", 23, "one two three four five\n");
    check_wrapped("one two three four five\n", 22, "one two three four\n  five\n");
    check_wrapped("one two three four f\n\nx", 20, "one two three four f\n\nx");
    check_wrapped("one two three four fi\n", 20, "one two three four\n  fi\n");
    check_wrapped("  one two three four five six seven\n", 20,
                  "  one two three four\n    five six seven\n");
    check_wrapped("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y", 20, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n  y");
}
END_TEST

START_TEST(a_row_continues_under_its_last_column)
{
    check_wrapped("  1  12.5 GiB  stage 3, all of it in the host\n", 34,
                  "  1  12.5 GiB  stage 3, all of it\n               in the host\n");
    /* a gap beyond two thirds of the width is no column */
    check_wrapped("aaaa aaaa aaaa aaaa aaaa  bbbb cccc\n", 30,
                  "aaaa aaaa aaaa aaaa aaaa  bbbb\n  cccc\n");
    check_wrapped("aaaa aaaa aaaa aaa  bbbb cccc dddd\n", 30,
                  "aaaa aaaa aaaa aaa  bbbb cccc\n                    dddd\n");
}
END_TEST

START_TEST(columns_are_what_a_terminal_shows)
{
    check_wrapped("这是 一个 句子 还有 一个\n", 24, "这是 一个 句子 还有 一个\n");
    check_wrapped("这是 一个 句子 还有 一个\n", 23, "这是 一个 句子 还有\n  一个\n");
    check_wrapped("\033[1;31mczero:\033[0m one two three\n", 20,
                  "\033[1;31mczero:\033[0m one two three\n");
    check_wrapped("\033[1;31mczero:\033[0m one two three4\n", 20,
                  "\033[1;31mczero:\033[0m one two\n  three4\n");
}
END_TEST

TEST_MAIN("cli/terminal_wrap", lines_break_between_words, a_row_continues_under_its_last_column,
          columns_are_what_a_terminal_shows)
