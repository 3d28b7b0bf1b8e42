/* Claim: what is exported of a tokenizer says what its files say, so that transformers and czero
 * read the same from it; none of it is a copy of bytes that were not understood, and nothing names
 * the machine that it comes from. */
#include "base/log.h"
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "tests/support/same_json.h"

#include <czero/data.h>

#include <dirent.h>

static char from[256], to[256];

static const char *in(const char *dir, const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *text, size_t nbytes)
{
    ck_ok(file_save(in(from, name), text, nbytes));
}

static char *read_text(const char *dir, const char *name, size_t *nbytes)
{
    char *text;
    ck_ok(file_load(in(dir, name), (size_t)1 << 28, &text, nbytes));
    return text;
}

static void begin(void)
{
    snprintf(from, sizeof from, "%s", test_tmp_make());
    snprintf(to, sizeof to, "%s", test_tmp_make());
}

static void end(void)
{
    test_tmp_remove(from);
    test_tmp_remove(to);
}

static void copy_fixture(const char *name)
{
    char command[1024];
    snprintf(command, sizeof command, "cp %s/* %s/", test_fixture(name), from);
    ck_assert_int_eq(system(command), 0);
}

static struct cz_tokenizer *export(void)
{
    struct cz_tokenizer *tok;
    ck_ok(cz_tokenizer_open(from, &tok));
    ck_ok(cz_tokenizer_export(tok, to));
    return tok;
}

static void expect_same_json(const char *name, json_omit *omit)
{
    struct json_doc *a, *b;
    ck_ok(json_load(in(from, name), JSON_STRICT, &a));
    ck_ok(json_load(in(to, name), JSON_STRICT, &b));
    same_json_nodes(json_root(a), json_root(b), omit);
    json_free(a);
    json_free(b);
}

static void expect_text(const char *name, const char *want)
{
    size_t n;
    char *text = read_text(to, name, &n);
    ck_assert_uint_eq(n, strlen(want));
    ck_assert_str_eq(text, want);
    free(text);
}

static size_t count_files(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The ids of a text that has everything in it, and the special ones. */
static void expect_same_ids(const struct cz_tokenizer *a)
{
    static const char text[] =
        "The \xC3\x89lan of 2,048 caf\xC3\xA9s: <|endoftext|> don't\n\n\t"
        "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 [MASK] <|im_start|>x \x01";
    struct cz_tokenizer *b;
    int32_t *left, *right;
    size_t n_left, n_right;
    ck_ok(cz_tokenizer_open(to, &b));
    ck_ok(cz_tokenizer_encode(a, text, strlen(text), &left, &n_left));
    ck_ok(cz_tokenizer_encode(b, text, strlen(text), &right, &n_right));
    ck_assert_uint_eq(n_left, n_right);
    ck_assert_int_eq(memcmp(left, right, n_left * sizeof *left), 0);
    for (int s = 0; s < CZ_SPECIAL_COUNT; s++)
        ck_assert_int_eq(cz_tokenizer_special_id(a, (enum cz_special)s),
                         cz_tokenizer_special_id(b, (enum cz_special)s));
    free(left);
    free(right);
    cz_tokenizer_close(b);
}

START_TEST(tokenizers_of_people_say_the_same)
{
    static const struct {
        const char *folder, *json[4], *lines;
    } trials[] = {
        {"tokenizers/gpt2",
         {"vocab.json", "added_tokens.json", "tokenizer_config.json"},
         "merges.txt"},
        {"tokenizers/llama3", {"tokenizer.json", "tokenizer_config.json"}, NULL},
        {"tokenizers/qwen2", {"tokenizer.json", "tokenizer_config.json"}, NULL},
        {"tokenizers/wordpiece", {NULL}, "vocab.txt"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(trials); i++) {
        size_t n_expected = trials[i].lines != NULL, n_a, n_b;
        begin();
        copy_fixture(trials[i].folder);
        struct cz_tokenizer *tok = export();
        for (size_t k = 0; k < 4 && trials[i].json[k]; k++, n_expected++)
            expect_same_json(trials[i].json[k], NULL);
        if (trials[i].lines) {
            char *a = read_text(from, trials[i].lines, &n_a);
            char *b = read_text(to, trials[i].lines, &n_b);
            ck_assert_uint_eq(n_a, n_b);
            ck_assert_int_eq(memcmp(a, b, n_a), 0);
            free(a);
            free(b);
        }
        ck_assert_uint_eq(count_files(to), n_expected);
        expect_same_ids(tok);
        cz_tokenizer_close(tok);
        end();
    }
}
END_TEST

#define WORDS "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"

START_TEST(lines_are_the_tokens_that_were_read)
{
    begin();
    static const char text[] =
        "\xEF\xBB\xBF[PAD]\r\n[UNK] \r\n[CLS]\n[SEP]\n[MASK]\n\xC3\xA9\xC2\xA0\n"
        "\n##b\nlast";
    write_text("vocab.txt", text, strlen(text));
    cz_tokenizer_close(export());
    expect_text("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\xC3\xA9\n\n##b\nlast\n");
    end();
    begin();
    static const char vocab[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\xC4\xA0\": 3, \"\xC4\xA0"
                                "a\": 4}";
    static const char merges[] = "#version: 0.2 - Trained at /home/me\r\na b\r\n\n\xC4\xA0 a";
    write_text("vocab.json", vocab, strlen(vocab));
    write_text("merges.txt", merges, strlen(merges));
    cz_tokenizer_close(export());
    expect_text("merges.txt", "#version: 0.2\na b\n\xC4\xA0 a\n");
    expect_text("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\xC4\xA0\": 3, \"\xC4\xA0"
                              "a\": 4}\n");
    write_text("merges.txt", "a b\n", 4); /* no such line: none is made up */
    cz_tokenizer_close(export());
    expect_text("merges.txt", "a b\n");
    end();
}
END_TEST

START_TEST(companions_go_on_without_paths)
{
    static const char config[] =
        "{\"tokenizer_class\": \"BertTokenizer\", \"name_or_path\": \"/home/me/bert\",\n"
        " \"special_tokens_map_file\": \"/root/.cache/x/special_tokens_map.json\",\n"
        " \"tokenizer_file\": null, \"auto_map\": {\"AutoTokenizer\": [\"a.B\", null]},\n"
        " \"model_max_length\": 1000000000000000019884624838656, \"scale\": 1.50,\n"
        " \"unk_token\": {\"__type\": \"AddedToken\", \"content\": \"[UNK]\", \"lstrip\": false},\n"
        " \"chat_template\": \"{% for m in messages %}\\n\\u00e9 \\\"/x\\\"{% endfor %}\"}";
    static const char map[] =
        "{\"cls_token\": \"[CLS]\", \"additional_special_tokens\": [\"/a/b\"]}";
    begin();
    write_text("vocab.txt", WORDS "/a/b\n", strlen(WORDS "/a/b\n"));
    write_text("tokenizer_config.json", config, strlen(config));
    write_text("special_tokens_map.json", map, strlen(map));
    struct cz_tokenizer *tok = export();
    expect_same_json("tokenizer_config.json", json_is_trace);
    expect_same_json("special_tokens_map.json", NULL);
    size_t n;
    char *text = read_text(to, "tokenizer_config.json", &n);
    ck_assert_ptr_null(strstr(text, "home"));
    ck_assert_ptr_null(strstr(text, "cache"));
    ck_assert_ptr_null(strstr(text, "auto_map"));
    ck_assert_ptr_nonnull(strstr(text, "1000000000000000019884624838656"));
    ck_assert_ptr_nonnull(strstr(text, "1.50"));
    free(text);
    expect_same_ids(tok);
    cz_tokenizer_close(tok);
    end();
}
END_TEST

static char warnings[4096];

static void take_warning(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == LOG_WARN) strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

/* Beside a tokenizer.json nothing reads added_tokens.json. */
START_TEST(companions_that_say_nothing_are_left_out)
{
    static const char *const texts[] = {"-----BEGIN PRIVATE KEY-----\nabc\n",
                                        "[1, 2]",
                                        "\"text\"",
                                        "{\"a\": \"hunter2\"}",
                                        "{\"a\": 1",
                                        "",
                                        "{\"a\": 1} {}"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++) {
        begin();
        copy_fixture("tokenizers/qwen2");
        write_text("added_tokens.json", texts[i], strlen(texts[i]));
        warnings[0] = '\0';
        cz_log_set_sink(take_warning, NULL);
        cz_tokenizer_close(export());
        cz_log_set_sink(NULL, NULL);
        ck_assert_ptr_nonnull(strstr(warnings, "added_tokens.json"));
        ck_assert_ptr_nonnull(strstr(warnings, "not exported: "));
        ck_assert(!file_exists(in(to, "added_tokens.json")));
        ck_assert_uint_eq(count_files(to), 2);
        end();
    }
    begin();
    copy_fixture("tokenizers/qwen2");
    ck_assert_int_eq(mkfifo(in(from, "added_tokens.json"), 0666), 0); /* which is not waited for */
    cz_tokenizer_close(export());
    ck_assert_uint_eq(count_files(to), 2);
    end();
}
END_TEST

START_TEST(a_file_that_changed_is_not_carried_on)
{
    begin();
    struct cz_tokenizer *tok;
    copy_fixture("tokenizers/qwen2");
    ck_ok(cz_tokenizer_open(from, &tok));
    write_text("tokenizer.json", "secret", 6);
    ck_fails(cz_tokenizer_export(tok, to), CZ_CORRUPT);
    ck_assert_uint_eq(count_files(to), 0);
    cz_tokenizer_close(tok);
    write_text("vocab.txt", WORDS, strlen(WORDS));
    ck_assert_int_eq(unlink(in(from, "tokenizer.json")), 0);
    ck_assert_int_eq(unlink(in(from, "tokenizer_config.json")), 0);
    ck_ok(cz_tokenizer_open(from, &tok));
    write_text("vocab.txt", "secret", 6);
    ck_ok(cz_tokenizer_export(tok, to));
    expect_text("vocab.txt", WORDS);
    cz_tokenizer_close(tok);
    end();
}
END_TEST

START_TEST(a_link_to_elsewhere_is_refused_when_the_tokenizer_is_opened)
{
    static const char *const names[] = {"added_tokens.json", "special_tokens_map.json",
                                        "tokenizer_config.json", "tokenizer.json"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        struct cz_tokenizer *tok;
        begin();
        copy_fixture("tokenizers/qwen2");
        unlink(in(from, names[i]));
        ck_ok(file_save(in(to, "key.json"), "{}", 2));
        ck_assert_int_eq(symlink(in(to, "key.json"), in(from, names[i])), 0);
        ck_fails(cz_tokenizer_open(from, &tok), CZ_CORRUPT);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), names[i]));
        end();
    }
}
END_TEST

/* Copied only when it is SentencePiece's form from the first byte to the last. */
START_TEST(pieces_are_checked_from_end_to_end)
{
#define UNK "\x0A\x0E\x0A\x05<unk>\x15\0\0\0\0\x18\x02"
    static const struct {
        const char *bytes;
        size_t n;
        bool is_good;
    } cases[] = {
#define CASE(bytes, is_good) {bytes, sizeof(bytes) - 1, is_good}
        CASE(UNK, true),
        CASE(UNK UNK "\x12\x02\x08\x01\xC2\x0C\x01x", true), /* a setting, an extension */
        CASE("", false),
        CASE("\x12\x02\x08\x01", false),     /* no piece */
        CASE(UNK "\x0A", false),             /* no length */
        CASE(UNK "\x0A\x05\x0A\x05", false), /* a length beyond the end */
        CASE(UNK "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", false),
        CASE(UNK "\x0A\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", false),
        CASE(UNK "\x0A\x02\x0A\x01", false),         /* a text beyond its piece */
        CASE(UNK "\x0A\x04\x0A\x02\xFF\xFE", false), /* no UTF-8 */
        CASE(UNK "\x0A\x02\x18\x02", false),         /* a piece without text */
        CASE(UNK "\x0A\x06\x0A\x01"
                 "a\x10\x05\0",
             false),                     /* a score that is a number */
        CASE(UNK "\x32\x01x", false),    /* field 6 */
        CASE(UNK "\x02\x01x", false),    /* field 0 */
        CASE(UNK "\x0B\x0C", false),     /* a group */
        CASE(UNK "\x0D\0\0\0\0", false), /* a piece that is a number */
        CASE("some text\n", false),
#undef CASE
#undef UNK
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        begin();
        copy_fixture("tokenizers/qwen2");
        write_text("tokenizer.model", cases[i].bytes, cases[i].n);
        write_text("chat_template.jinja", cases[i].is_good ? "{{ a }}\n" : "a\0b",
                   cases[i].is_good ? 8 : 3);
        cz_tokenizer_close(export());
        const bool is_there = access(in(to, "tokenizer.model"), F_OK) == 0;
        ck_assert_msg(is_there == cases[i].is_good, "case %zu", i);
        ck_assert_int_eq(access(in(to, "chat_template.jinja"), F_OK) == 0, cases[i].is_good);
        end();
    }
}
END_TEST

TEST_MAIN("data/tokenizer_export", tokenizers_of_people_say_the_same,
          lines_are_the_tokens_that_were_read, companions_go_on_without_paths,
          companions_that_say_nothing_are_left_out, a_file_that_changed_is_not_carried_on,
          a_link_to_elsewhere_is_refused_when_the_tokenizer_is_opened,
          pieces_are_checked_from_end_to_end)
