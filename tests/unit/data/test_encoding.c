/* Claims: bytes that are not UTF-8 are an error with file, line and offset, after the text in front
 * of them, however the file comes in pieces; the encoding is named where nine of ten characters
 * agree, and none is otherwise; a named encoding becomes UTF-8 in pieces of any size, and bytes
 * that are not of it are an error, too; a byte order mark at the beginning is no text. */
#include "base/text/encoding.h"
#include "data/source/utf8_stream.h"
#include "tests/support/check_main.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the guess ------------------------------------------------------------------------------- */

START_TEST(the_encoding_is_named_where_it_is_clear)
{
    static const struct {
        const char *bytes, *name;
        bool is_beginning;
    } cases[] = {
        {"text,label\n\xBA\xC3,\xD5\xFD\n\xBB\xB5,\xB8\xBA\n", "gb18030", true}, /* 好,正 坏,负 */
        {"\xD5\xFD", "gb18030", false},
        {"\xA1\xB0\xBA\xC3\xA1\xB1\xA3\xAC", "gb18030", false}, /* “好”， */
        {"\xA1\xB0\xA1\xB1", NULL, false},                      /* marks are in all of EUC */
        {"caf\xE9 cr\xE8me", "latin-1", true},
        {"na\xEFve", "latin-1", false},
        {"na\xEF", "latin-1", false}, /* at the end */
        {"it\x92s 5 \x80", "windows-1252", false},
        {"it\x81s 5 \x80", NULL, false}, /* no letter of Windows-1252 */
        {"it\x8Ds", NULL, false},
        {"it\x8Fs", NULL, false},
        {"it\x90s", NULL, false},
        {"it\x9Ds", NULL, false},
        {"it\x9Fs", "windows-1252", false},
        {"it\xA0s", "latin-1", false},
        /* 가나다라마바사아자차카타파하거너 is 16 of Hangul's rows */
        {"\xB0\xA1\xB3\xAA\xB4\xD9\xB6\xF3\xB8\xB6\xB9\xD9\xBB\xE7\xBE\xC6\xC0\xDA\xC2\xF7\xC4\xAB"
         "\xC5\xB8\xC6\xC4\xC7\xCF\xB0\xC5\xB3\xCA",
         "euc-kr", false},
        {"\xB0\xA1\xB3\xAA\xB4\xD9\xB6\xF3\xB8\xB6\xB9\xD9\xBB\xE7\xBE\xC6\xC0\xDA\xC2\xF7\xC4\xAB"
         "\xC5\xB8\xC6\xC4\xC7\xCF\xB0\xC5\xC9\xCA",
         "gb18030", false},                             /* one beyond them */
        {"\xB0\xA1\xB3\xAA\xB4\xD9", "gb18030", false}, /* too few to tell */
        {"\xA4\xB3\xA4\xEC\xA4\xCF\xC6\xFC", "euc-jp", false},
        {"\x82\xB1\x82\xEA\x82\xCD", NULL, false},                   /* Shift-JIS */
        {"\xCF\xF0\xE8\xE2\xE5\xF2 \xFF \xEC\xE8\xF0", NULL, false}, /* Windows-1251 */
        {"\xD5\xFD\xB8\xBA\xE9 ", NULL, false},                      /* two of three */
        {"\xC3\xA9 \xC3\xA8 \xFF", "utf-8", false},                  /* one of three broken */
        {"\xC3\xA9 \xFF", NULL, false},                              /* no majority */
        {"\xFF\xFE\x2D\x4E", "utf-16", true},
        {"\xFE\xFF\x4E\x2D", "utf-16", true},
        {"\xFF\xFE\x2D\x4E", NULL, false},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const char *name =
            encoding_guess(cases[i].bytes, strlen(cases[i].bytes), cases[i].is_beginning);
        ck_assert_msg(cases[i].name ? name && strcmp(name, cases[i].name) == 0 : !name,
                      "case %zu: %s instead of %s", i, name ? name : "(none)",
                      cases[i].name ? cases[i].name : "(none)");
    }
    ck_assert_str_eq(encoding_guess("\xFF\xFE\0\0a\0\0\0", 8, true), "utf-32");
    ck_assert_str_eq(encoding_guess("\0\0\xFE\xFF\0\0\0a", 8, true), "utf-32");
    ck_assert_str_eq(encoding_guess("\xFF\xFE", 2, true), "utf-16");
    ck_assert_ptr_null(encoding_guess("", 0, true));
}
END_TEST

/* Ten characters of which nine are Chinese, and ten of which eight are. */
START_TEST(a_guess_needs_nine_of_ten_characters)
{
    char text[64] = "";
    for (int i = 0; i < 9; i++) strcat(text, "\xD5\xFD");
    strcat(text, "\xE9 ");
    ck_assert_str_eq(encoding_guess(text, strlen(text), false), "gb18030");
    strcat(text, "\xE9 ");
    ck_assert_ptr_null(encoding_guess(text, strlen(text), false));
    text[0] = '\0';
    for (int i = 0; i < 9; i++) strcat(text, "\xE9 ");
    strcat(text, "\xD5\xFD");
    ck_assert_str_eq(encoding_guess(text, strlen(text), false), "latin-1");
    strcat(text, "\xD5\xFD");
    ck_assert_ptr_null(encoding_guess(text, strlen(text), false));
}
END_TEST

/* A character of two bytes, neither of Windows-1252 nor of East Asia, among nine of one. */
START_TEST(second_bytes_count_too)
{
    char text[64] = "";
    for (int i = 0; i < 9; i++) strcat(text, "\xE9 ");
    const size_t n = strlen(text);
    strcat(text, "\xE9\xA0");
    ck_assert_str_eq(encoding_guess(text, n + 2, false), "latin-1");
    text[n + 1] = '\x9F';
    ck_assert_str_eq(encoding_guess(text, n + 2, false), "windows-1252");
    text[n + 1] = '\xA0';
    ck_assert_ptr_null(encoding_guess(text + 2, n, false)); /* eight of nine */
}
END_TEST

/* Without a mark: more than seven of ten high bytes are NUL, and no low one. */
START_TEST(wide_text_is_known_by_its_zeros)
{
    char text[42];
    for (size_t high = 0; high < 2; high++) {
        const char *name = high ? "utf-16le" : "utf-16be";
        for (size_t i = 0; i < sizeof text; i++) text[i] = i % 2 == high ? '\0' : 'a';
        ck_assert_str_eq(encoding_wide(text, 20), name);
        ck_assert_str_eq(encoding_wide(text, 12), name);
        ck_assert_ptr_null(encoding_wide(text, 11));
        for (size_t i = 0; i < 2; i++) text[high + 2 * i] = 'x';
        ck_assert_str_eq(encoding_wide(text, 20), name); /* eight */
        text[high + 4] = 'x';
        ck_assert_ptr_null(encoding_wide(text, 20)); /* seven */
        text[high] = text[high + 4] = '\0';
        text[1 - high] = '\0';
        ck_assert_ptr_null(encoding_wide(text, 20));
    }
    ck_assert_str_eq(encoding_wide("\xFF\xFE\0a", 4), "utf-16");
    ck_assert_ptr_null(encoding_wide("\xFF\xFE\0", 3));
}
END_TEST

START_TEST(a_string_is_checked_with_its_line)
{
    ck_ok(encoding_check("--prompt", 0, "na\xC3\xAFve\n", 7));
    ck_ok(encoding_check("--prompt", 0, "", 0));
    ck_fails(encoding_check("--prompt", 0, "a\nna\xEFve", 7), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(),
                     "--prompt: byte 0xef at offset 4 is not UTF-8; the text looks "
                     "like latin-1: convert it to UTF-8");
    ck_fails(encoding_check("names.txt", 1, "a\nna\xEFve", 7), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "names.txt:2: byte 0xef at offset 4"));
    ck_fails(encoding_check("names.txt", 7, "\xC3\xA9 \xC3\xA8 \xC3", 7), CZ_CORRUPT);
    ck_assert_str_eq(cz_last_error(), "names.txt:7: byte 0xc3 at offset 6 is not UTF-8");
}
END_TEST

/* ---- streams --------------------------------------------------------------------------------- */

/* All of a stream whose file comes in pieces of `piece` bytes (0: at once) and is read `want` bytes
 * at a time. */
static cz_status read_all(const char *bytes, size_t n, const char *encoding, size_t piece,
                          size_t want, char *text, size_t *n_text)
{
    char name[] = "/tmp/czero_encoding_XXXXXX";
    int ends[2], fd = -1;
    pid_t writer = 0;
    struct utf8_stream *s;
    size_t got = 0;
    int status = 0;
    *n_text = 0;
    if (piece == 0) {
        fd = mkstemp(name);
        ck_assert_int_ge(fd, 0);
        unlink(name);
        ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
        lseek(fd, 0, SEEK_SET);
    } else {
        ck_assert_int_eq(pipe(ends), 0);
        fd = ends[0];
        writer = fork();
        if (writer == 0) {
            close(ends[0]);
            for (size_t at = 0; at < n; at += piece) {
                if (write(ends[1], bytes + at, n - at < piece ? n - at : piece) < 0) _exit(1);
                usleep(100);
            }
            _exit(0);
        }
        close(ends[1]);
    }
    const struct utf8_stream_options options = {
        .path = "f.csv", .encoding = encoding, .n_raw = UINT64_MAX};
    cz_status st = utf8_stream_open(fd, &options, &s);
    while (st == CZ_OK) {
        st = utf8_stream_read(s, text + *n_text, want, &got);
        ck_assert_uint_le(got, want);
        *n_text += got;
        if (got == 0) break;
    }
    if (st != CZ_OK && s) { /* and it stays that error */
        ck_assert_int_eq(utf8_stream_read(s, text + *n_text, want, &got), st);
        ck_assert_uint_eq(got, 0);
    }
    utf8_stream_close(s);
    close(fd);
    if (writer > 0) {
        ck_assert_int_eq(waitpid(writer, &status, 0), writer);
        ck_assert(st != CZ_OK || status == 0);
    }
    return st;
}

static void check_text(const char *bytes, size_t n, const char *encoding, const char *want)
{
    static const size_t pieces[] = {0, 1, 2, 3, 5}, wants[] = {16, 17, 64, 4096};
    char text[8192];
    size_t n_text;
    for (size_t p = 0; p < CZ_ARRAY_LEN(pieces); p++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(wants); w++) {
            ck_ok(read_all(bytes, n, encoding, pieces[p], wants[w], text, &n_text));
            ck_assert_msg(n_text == strlen(want) && memcmp(text, want, n_text) == 0,
                          "%.*s instead of %s", (int)n_text, text, want);
        }
}
#define TEXT(bytes, encoding, want) check_text(bytes, sizeof(bytes) - 1, encoding, want)

START_TEST(encodings_become_utf8_in_any_pieces)
{
    TEXT("plain, na\xC3\xAFve \xE6\xAD\xA3 \xF0\x9F\x98\x80\n", NULL, "plain, naïve 正 😀\n");
    TEXT("\xEF\xBB\xBFtext,label\n", NULL, "text,label\n");
    TEXT("\xEF\xBB\xBF", NULL, "");
    TEXT("\xEF\xBB\xBF\xEF\xBB\xBFx", NULL, "\xEF\xBB\xBFx"); /* the second is a character */
    TEXT("x\xEF\xBB\xBF", "utf-8", "x\xEF\xBB\xBF");
    TEXT("", NULL, "");
    TEXT("\xBA\xC3,\xD5\xFD\n\x81\x30\x81\x30", "gb18030", "好,正\n\xC2\x80");
    TEXT("na\xEFve", "latin-1", "naïve");
    TEXT("na\xEFve", "Latin_1", "naïve");
    TEXT("5 \x80", "windows-1252", "5 €");
    TEXT("\xFF\xFE"
         "a\0,\0\x63\x6B\n\0",
         "utf-16", "a,正\n");
    TEXT("\xFE\xFF"
         "\0a\0,\x6B\x63\0\n",
         "UTF-16", "a,正\n");
    TEXT("\xFF\xFE"
         "a\0\x3D\xD8\x00\xDE",
         "utf-16le", "a😀");                      /* a mark, and a pair */
    TEXT("\x1B$B@5\x1B(B", "iso-2022-jp", "正"); /* shifts give no characters */
    TEXT("\xEF\xBB\xBFx", "utf-8-sig", "x");
}
END_TEST

static void check_fails(const char *bytes, size_t n, const char *encoding, const char *before,
                        const char *sentence)
{
    static const size_t pieces[] = {0, 1, 3}, wants[] = {16, 4096};
    char text[8192];
    size_t n_text;
    for (size_t p = 0; p < CZ_ARRAY_LEN(pieces); p++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(wants); w++) {
            ck_fails(read_all(bytes, n, encoding, pieces[p], wants[w], text, &n_text), CZ_CORRUPT);
            ck_assert_msg(strncmp(cz_last_error(), sentence, strlen(sentence)) == 0, "%s",
                          cz_last_error());
            ck_assert_uint_eq(n_text, strlen(before));
            ck_assert_mem_eq(text, before, n_text);
        }
}
#define FAILS(bytes, encoding, before, sentence)                                                   \
    check_fails(bytes, sizeof(bytes) - 1, encoding, before, sentence)

START_TEST(broken_bytes_are_named_after_the_text_in_front)
{
    FAILS("a\nb\xFF"
          "c",
          NULL, "a\nb", "f.csv:2: byte 0xff at offset 3 is not UTF-8; ");
    FAILS("\xEF\xBB\xBF"
          "a\n\n\xC3",
          NULL, "a\n\n", "f.csv:3: byte 0xc3 at offset 6 is not UTF-8; ");
    FAILS("a\xED\xA0\x80", NULL, "a", "f.csv:1: byte 0xed at offset 1 is not UTF-8; ");
    FAILS("a\xC0\x80", NULL, "a", "f.csv:1: byte 0xc0 at offset 1 is not UTF-8; ");
    FAILS("\xE4\xBD", NULL, "", "f.csv:1: byte 0xe4 at offset 0 is not UTF-8; ");
    FAILS("a\n\xFF", "gb18030", "a\n",
          "f.csv:2: byte 0xff at offset 2 is not gb18030; choose another --encoding");
    FAILS("a\n\xBA", "gb18030", "a\n", "f.csv:2: byte 0xba at offset 2 is not gb18030; ");
    FAILS("a\0\x3D\xD8"
          "b\0",
          "utf-16le", "a", "f.csv:1: byte 0x3d at offset 2 is not utf-16le; ");
    /* iconv takes more numbers than there are characters */
    FAILS("\0\0\0a\0\0\0\n\0\x11\0\0", "ucs-4be", "a\n",
          "f.csv:2: is not text in ucs-4be; choose another --encoding");
    FAILS("\0\x11\0\0\0\0\0a", "ucs-4be", "",
          "f.csv:1: is not text in ucs-4be; choose another --encoding");
    FAILS("a\0\x3D", "utf-16le", "a", "f.csv:1: byte 0x3d at offset 2 is not utf-16le; ");
}
END_TEST

START_TEST(the_advice_follows_the_guess)
{
    static const struct {
        const char *bytes, *advice;
    } cases[] = {
        {"t\n\xBA\xC3,\xD5\xFD\n", "; the text looks like gb18030: use --encoding gb18030"},
        {"\xC3\xA9\xC3\xA8\xC3\xAA\xFFz",
         "; the text around it is UTF-8: correct or remove the byte"},
        {"\x82\xB1\x82\xEA", "; name the encoding: --encoding gb18030, latin-1, …"},
        {"\xFF\xFE\x63\x6B", "; the text looks like utf-16: use --encoding utf-16"},
    };
    char text[256];
    size_t n;
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        ck_fails(read_all(cases[i].bytes, strlen(cases[i].bytes), NULL, 0, 64, text, &n),
                 CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), cases[i].advice), "%s", cz_last_error());
    }
    /* a mark in the middle of a file is none */
    char *far = malloc(70000);
    char *read = malloc(80000);
    memset(far, 'a', 70000);
    memcpy(far + 69990, "\xFF\xFE\x63\x6B", 4);
    ck_fails(read_all(far, 70000, NULL, 0, 4096, read, &n), CZ_CORRUPT);
    ck_assert_ptr_nonnull(
        strstr(cz_last_error(), "f.csv:1: byte 0xff at offset 69990 is not UTF-8"));
    ck_assert_ptr_null(strstr(cz_last_error(), "utf-16"));
    ck_assert_uint_eq(n, 69990);
    free(far);
    free(read);
}
END_TEST

/* A file of more than two blocks, whose characters cross their ends. */
START_TEST(long_files_are_read_whole)
{
    const size_t n = 200001;
    char *gbk = malloc(2 * n), *want = malloc(3 * n), *text = malloc(3 * n + 4096);
    size_t n_text;
    for (size_t i = 0; i < n; i++) {
        memcpy(gbk + 2 * i, "\xD5\xFD", 2);
        memcpy(want + 3 * i, "正", 3);
    }
    ck_ok(read_all(want, 3 * n, NULL, 0, 4093, text, &n_text));
    ck_assert_uint_eq(n_text, 3 * n);
    ck_assert_mem_eq(text, want, 3 * n);
    ck_ok(read_all(gbk, 2 * n, "gbk", 0, 4093, text, &n_text));
    ck_assert_uint_eq(n_text, 3 * n);
    ck_assert_mem_eq(text, want, 3 * n);
    free(gbk);
    free(want);
    free(text);
}
END_TEST

START_TEST(unknown_encodings_are_refused)
{
    static const char *const names[] = {
        "",
        "no-such-encoding",
        "gb18030//IGNORE",
        "utf-16/",
        "latin-1,x",
        "a-name-of-more-than-sixty-three-bytes-that-no-encoding-has-"
        "0000"};
    char text[64];
    size_t n;
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        ck_fails(read_all("x", 1, names[i], 0, 64, text, &n), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "this host's iconv does not have it"));
    }
    ck_assert(utf8_stream_is_utf8(NULL) && utf8_stream_is_utf8("UTF-8") &&
              utf8_stream_is_utf8("utf8"));
    ck_assert(utf8_stream_is_utf8("utf-8-sig") && !utf8_stream_is_utf8("utf-16"));
}
END_TEST

TEST_MAIN("data/encoding", the_encoding_is_named_where_it_is_clear,
          a_guess_needs_nine_of_ten_characters, second_bytes_count_too,
          wide_text_is_known_by_its_zeros, a_string_is_checked_with_its_line,
          encodings_become_utf8_in_any_pieces, broken_bytes_are_named_after_the_text_in_front,
          the_advice_follows_the_guess, long_files_are_read_whole, unknown_encodings_are_refused)
