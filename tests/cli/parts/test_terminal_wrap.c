/* Claims: lines break between words at the width and never before it; a table's row continues under
 * its last column; wide characters count twice and colours nothing; a word that is too long, and a
 * width that is none, change nothing. COLUMNS and LINES come before the terminal's own size, each
 * within its bounds. */
#include "tests/support/check_main.h"
#include "tools/czero/terminal.c" /* the tools are no library */

#include <fcntl.h>

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

/* A terminal of that size. */
static FILE *terminal_of(int *master, unsigned short columns, unsigned short lines)
{
    const struct winsize size = {.ws_col = columns, .ws_row = lines};
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_ge(*master, 0);
    ck_assert_int_eq(grantpt(*master), 0);
    ck_assert_int_eq(unlockpt(*master), 0);
    const int fd = open(ptsname(*master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ioctl(fd, TIOCSWINSZ, &size), 0);
    FILE *f = fdopen(fd, "w");
    ck_assert_ptr_nonnull(f);
    return f;
}

static int columns_with(const char *value, FILE *f)
{
    setenv("COLUMNS", value, 1);
    const int n = terminal_side(f, TERMINAL_COLUMNS, 7);
    unsetenv("COLUMNS");
    return n;
}

START_TEST(sides_come_from_the_environment_or_the_terminal)
{
    FILE *file = tmpfile();
    int master, narrow;
    ck_assert_ptr_nonnull(file);
    unsetenv("COLUMNS");
    unsetenv("LINES");
    FILE *terminal = terminal_of(&master, 132, 43), *small = terminal_of(&narrow, 19, 1001);
    ck_assert_int_eq(terminal_side(file, TERMINAL_COLUMNS, 7), 7);
    ck_assert_int_eq(terminal_side(terminal, TERMINAL_COLUMNS, 7), 132);
    ck_assert_int_eq(terminal_side(terminal, TERMINAL_LINES, 7), 43);
    ck_assert_int_eq(terminal_side(small, TERMINAL_COLUMNS, 7), 7);
    ck_assert_int_eq(terminal_side(small, TERMINAL_LINES, 7), 7);
    ck_assert_int_eq(columns_with("20", file), 20);
    ck_assert_int_eq(columns_with("1000", file), 1000);
    ck_assert_int_eq(columns_with("50", terminal), 50);
    static const char *const beyond[] = {"19", "1001", "0", "-50", "", "x", "4294967376"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(beyond); i++) {
        ck_assert_int_eq(columns_with(beyond[i], file), 7);
        ck_assert_int_eq(columns_with(beyond[i], terminal), 132);
    }
    setenv("COLUMNS", "60", 1); /* says nothing of lines, nor that a file is a terminal */
    ck_assert_int_eq(terminal_side(terminal, TERMINAL_LINES, 7), 43);
    ck_assert_int_eq(terminal_columns(file), 0);
    ck_assert_int_eq(terminal_columns(terminal), 60);
    setenv("LINES", "30", 1);
    ck_assert_int_eq(terminal_side(terminal, TERMINAL_LINES, 7), 30);
    ck_assert_int_eq(terminal_side(terminal, TERMINAL_COLUMNS, 7), 60);
    unsetenv("COLUMNS");
    unsetenv("LINES");
    ck_assert_int_eq(terminal_columns(terminal), 132);
    ck_assert_int_eq(terminal_columns(small), 0);
    fclose(file);
    fclose(terminal);
    fclose(small);
    close(master);
    close(narrow);
}
END_TEST

TEST_MAIN("cli/terminal_wrap", lines_break_between_words, a_row_continues_under_its_last_column,
          columns_are_what_a_terminal_shows, sides_come_from_the_environment_or_the_terminal)
