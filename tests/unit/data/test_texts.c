/* Claims: every form that texts.h lists gives the same examples; quoting, line ends, marks and
 * escapes are read as their formats say; classes are numbered as promised, or matched to known
 * names; bad input ends in a status and a sentence that names file and line. */
#include "base/host/cgroup.h"
#include "base/status.h"
#include "data/source/text_source.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <malloc.h>
#include <string.h>

static char dir[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
}

static void teardown(void)
{
    test_tmp_remove(dir);
}

static const char *write_bytes(const char *name, const char *bytes, size_t nbytes)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    ck_ok(file_save(path, bytes, nbytes));
    return path;
}

static const char *write_text(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

static struct cz_texts *open_with(struct cz_texts_options o, const char *path)
{
    struct cz_texts *t;
    o.paths = &path;
    o.n_paths = 1;
    ck_ok(cz_texts_open(&o, &t));
    return t;
}

static struct cz_texts *open_text(const char *name, const char *text)
{
    return open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)},
                     write_text(name, text));
}

/* The file is refused, in a sentence with `words`. */
static void refused_with(struct cz_texts_options o, const char *name, const char *text,
                         cz_status want, const char *words)
{
    struct cz_texts *t;
    const char *path = write_text(name, text);
    o.paths = &path;
    o.n_paths = 1;
    cz_status st = cz_texts_open(&o, &t);
    ck_assert_msg(st == want, "%s: %s instead of %s: %s", text, cz_status_name(st),
                  cz_status_name(want), cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: \"%s\" lacks \"%s\"", text, cz_last_error(),
                  words);
    ck_assert_ptr_null(t);
}

static void refused(const char *name, const char *text, cz_status want, const char *words)
{
    refused_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)}, name, text,
                 want, words);
}

/* Example i: text, pair (NULL: none), class. */
static void check(const struct cz_texts *t, size_t i, const char *text, const char *pair,
                  int32_t label)
{
    struct cz_tokenizer_input in = cz_texts_at(t, i);
    ck_assert_uint_lt(i, cz_texts_count(t));
    ck_assert_uint_eq(in.nbytes, strlen(text));
    ck_assert_mem_eq(in.text, text, in.nbytes + 1);
    ck_assert(!in.pair == !pair);
    if (pair) {
        ck_assert_uint_eq(in.pair_nbytes, strlen(pair));
        ck_assert_mem_eq(in.pair, pair, in.pair_nbytes + 1);
    }
    ck_assert_int_eq(cz_texts_label(t, i), label);
}

static void check_labels(const struct cz_texts *t, size_t n, const char *const *names)
{
    ck_assert_uint_eq(cz_texts_n_labels(t), n);
    for (size_t k = 0; k < n; k++) ck_assert_str_eq(cz_texts_labels(t)[k], names[k]);
}
#define CHECK_LABELS(t, ...)                                                                       \
    check_labels(t, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *),                   \
                 (const char *const[]){__VA_ARGS__})

/* ---- forms ------------------------------------------------------------------------------------
 */

static const char *const three_rows[][2] = {
    {"a.json", "[[\"one, \\\"two\\\"\", \"b\"], [\"\", \"a\"],\n [\"\\u4f60\\n\", \"b\"]]\n"},
    {"b.json", "\xEF\xBB\xBF [ {\"text\": \"one, \\\"two\\\"\", \"label\": \"b\"},"
               "{\"label\":\"a\",\"text\":\"\"},{\"x\":[1,{\"y\":null}],\"text\":\"你\\n\","
               "\"label\":\"b\"} ]"},
    {"c.jsonl", "[\"one, \\\"two\\\"\",\"b\"]\n\n[\"\",\"a\"]\r\n[\"你\\n\",\"b\"]"},
    {"d.jsonl", "{\"sentence\":\"one, \\\"two\\\"\",\"class\":\"b\"}\n"
                "{\"sentence\":\"\",\"class\":\"a\"}\n{\"sentence\":\"你\\n\",\"class\":\"b\"}\n"},
    {"e.csv",
     "\xEF\xBB\xBFid,label,text\r\n1,b,\"one, \"\"two\"\"\"\r\n2,a,\r\n\r\n3, b ,\"你\n\"\r\n"},
    {"f.CSV", "text,label\n\"one, \"\"two\"\"\",b\n\"\",a\n\"你\n\",b"},
};

START_TEST(every_form_gives_the_same_examples)
{
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(three_rows); i++) {
        struct cz_texts *t = open_text(three_rows[i][0], three_rows[i][1]);
        ck_assert_uint_eq(cz_texts_count(t), 3);
        check(t, 0, "one, \"two\"", NULL, 1);
        check(t, 1, "", NULL, 0);
        check(t, 2, "你\n", NULL, 1);
        CHECK_LABELS(t, "a", "b");
        ck_assert_uint_eq(cz_texts_n_of_label(t, 0), 1);
        ck_assert_uint_eq(cz_texts_n_of_label(t, 1), 2);
        cz_texts_close(t);
    }
    teardown();
}
END_TEST

static const char *const pair_rows[][2] = {
    {"a.json", "[[\"p\", \"q\", 3], [\"r\", null, 4], [\"s\", \"\", 3]]"},
    {"b.jsonl", "{\"sentence1\":\"p\",\"sentence2\":\"q\",\"label\":3}\n"
                "{\"sentence1\":\"r\",\"label\":4}\n"
                "{\"sentence1\":\"s\",\"sentence2\":\"\",\"label\":3.0}\n"},
    {"c.json", "[{\"text\":\"p\",\"text_pair\":\"q\",\"target\":3},"
               "{\"text\":\"r\",\"pair\":null,\"target\":4},[\"s\",\"\",3]]"},
};

START_TEST(pairs_are_read_from_lists_and_objects)
{
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(pair_rows); i++) {
        struct cz_texts *t = open_text(pair_rows[i][0], pair_rows[i][1]);
        check(t, 0, "p", "q", 0);
        check(t, 1, "r", NULL, 1);
        check(t, 2, "s", "", 0);
        CHECK_LABELS(t, "3", "4");
        cz_texts_close(t);
    }
    struct cz_texts *t =
        open_text("d.tsv", "sentence1\tsentence2\tlabel\n\"p\tq, \"r\"\t0\ns\t\t1\n");
    check(t, 0, "\"p", "q, \"r\"", 0); /* no quoting in .tsv */
    check(t, 1, "s", "", 1);
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(named_columns_are_taken)
{
    setup();
    const char *names = "text,sentiment,subject,body\nx,pos,y,z\nx,neg,v,w\n";
    struct cz_texts_options o = {.size = sizeof o,
                                 .text_column = "subject",
                                 .pair_column = "body",
                                 .label_column = "sentiment"};
    struct cz_texts *t = open_with(o, write_text("a.csv", names));
    check(t, 0, "y", "z", 1);
    check(t, 1, "v", "w", 0);
    cz_texts_close(t);
    t = open_with(o, write_text("a.jsonl", "{\"text\":1,\"subject\":\"y\",\"body\":\"z\","
                                           "\"sentiment\":\"pos\",\"label\":5}\n"
                                           "{\"subject\":\"v\",\"body\":null,"
                                           "\"sentiment\":\"neg\"}"));
    check(t, 0, "y", "z", 1);
    check(t, 1, "v", NULL, 0);
    cz_texts_close(t);
    refused_with(o, "b.csv", "text,label\nx,1\n", CZ_INVALID,
                 "b.csv:1: no column \"subject\" for the text; found: text, label");
    refused_with(o, "b.jsonl", "{\"subject\":\"x\",\"sentiment\":1}\n", CZ_INVALID,
                 "b.jsonl:1: no member \"body\" for the second text; found: subject, sentiment");
    refused("c.tsv", "sentence\tscore\nx\t1\n", CZ_INVALID,
            "no column \"label\", \"labels\", \"class\", \"target\" or \"category\"");
    refused("d.csv", "text,label,text\nx,1,y\n", CZ_INVALID, "two columns are named \"text\"");
    o.pair_column = "subject";
    refused_with(o, "e.csv", names, CZ_INVALID, "cannot be both the text and the second text");
    teardown();
}
END_TEST

START_TEST(better_names_win_over_order)
{
    setup();
    struct cz_texts *t =
        open_text("a.jsonl", "{\"review\":\"no\",\"text\":\"yes\",\"target\":\"no\","
                             "\"label\":\"x\",\"sentence\":[]}\n"
                             "{\"text\":\"yes\",\"review\":\"no\",\"label\":\"y\","
                             "\"pair\":7,\"labels\":[1]}\n");
    check(t, 0, "yes", NULL, 0);
    check(t, 1, "yes", NULL, 1);
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(several_files_are_one_list)
{
    setup();
    const char *paths[] = {write_text("a.json", "[[\"x\", 10]]"), write_text("b.jsonl", ""),
                           write_text("c.csv", "text,label\ny,9\n")};
    struct cz_texts_options o = {.size = sizeof o, .paths = paths, .n_paths = 3};
    struct cz_texts *t;
    ck_ok(cz_texts_open(&o, &t));
    check(t, 0, "x", NULL, 1);
    check(t, 1, "y", NULL, 0);
    CHECK_LABELS(t, "9", "10");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(plain_lines_have_no_labels)
{
    setup();
    struct cz_texts_options o = {.size = sizeof o, .labels_optional = true};
    struct cz_texts *t =
        open_with(o, write_text("a.txt", "\xEF\xBB\xBF[one\r\n\n \"two\"\r \nend"));
    ck_assert_uint_eq(cz_texts_count(t), 4);
    check(t, 0, "[one", NULL, -1);
    check(t, 1, "", NULL, -1);
    check(t, 2, " \"two\"\r ", NULL, -1);
    check(t, 3, "end", NULL, -1);
    ck_assert_uint_eq(cz_texts_n_labels(t), 0);
    cz_texts_close(t);
    o.plain = true;
    t = open_with(o, write_text("a.csv", "a,b\n"));
    check(t, 0, "a,b", NULL, -1);
    ck_assert_uint_eq(cz_texts_count(t), 1);
    cz_texts_close(t);
    refused("b.txt", "one\n", CZ_INVALID, "b.txt: plain lines of text have no labels");
    teardown();
}
END_TEST

/* ---- tables of other programs ---------------------------------------------------------------- */

START_TEST(the_first_line_tells_the_separator)
{
    setup();
    static const struct {
        const char *name, *text;
    } cases[] = {
        {"a.csv", "text;label\none, two;1\n\"a;b\";0\n"},
        {"a.csv", "text\tlabel\none, two\t1\n\"a;b\"\t0\n"},
        {"a.csv", "text|label\none, two|1\n\"a;b\"|0\n"},
        {"a.csv", "sep=;\r\ntext;label\r\none, two;1\r\n\"a;b\";0\r\n"},
        {"a.tsv", "text;label\none, two;1\n\"a;b\";0\n"},
        {"a.tsv", "text,label\n\"one, two\",1\na;b,0\n"},
        {"a.csv", "text,label\n\"one, two\",1\na;b,0\n"},
        {"a.csv", "\"text\",\"label\"\n\"one, two\",1\na;b,0\n"},
        {"a.tsv", "text\tlabel\none, two\t1\na;b\t0\n"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_texts *t = open_text(cases[i].name, cases[i].text);
        ck_assert_uint_eq(cz_texts_count(t), 2);
        check(t, 0, "one, two", NULL, 1);
        check(t, 1, "a;b", NULL, 0);
        cz_texts_close(t);
    }
    /* one column, and a separator in quotes */
    struct cz_texts_options o = {.size = sizeof o, .labels_optional = true};
    struct cz_texts *t = open_with(o, write_text("b.csv", "text\na;b\n"));
    check(t, 0, "a;b", NULL, -1);
    cz_texts_close(t);
    refused("c.csv", "\"text;label\"\na;1\n", CZ_INVALID, "c.csv:1: no column \"text\"");
    refused("d.csv", "sep=x\ntextxlabel\n", CZ_INVALID, "d.csv:1: no column \"text\"");
    static const struct {
        const char *text, *words;
    } wide[] = {{"text,label\na,b,1\n", "; a text with commas needs double quotes"},
                {"text;label\na;b;1\n", "; a text with \";\" needs double quotes"},
                {"text|label\na|b|1\n", "; a text with \"|\" needs double quotes"},
                {"text\tlabel\na\tb\t1\n", "; a text with tabs needs double quotes"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(wide); i++)
        refused("e.csv", wide[i].text, CZ_CORRUPT, wide[i].words);
    teardown();
}
END_TEST

START_TEST(cells_that_are_lists_are_sets)
{
    setup();
    static const char table[] = "text,label\n"
                                "a,\"[\"\"y\"\", \"\"x\"\"]\"\n"
                                "b,['x']\n"
                                "c,[]\n"
                                "d,\"[ 'y' , 'z' ]\"\n";
    struct cz_texts *t = open_text("a.csv", table);
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_MULTI_LABEL);
    CHECK_LABELS(t, "x", "y", "z");
    static const float want[][3] = {{1, 1, 0}, {1, 0, 0}, {0, 0, 0}, {0, 1, 1}};
    for (size_t i = 0; i < 4; i++) {
        float targets[3];
        cz_texts_targets(t, i, targets);
        ck_assert_mem_eq(targets, want[i], sizeof targets);
    }
    cz_texts_close(t);
    t = open_text("b.csv", "text,label\na,\"[1, 2]\"\nb,\"[-3]\"\n");
    CHECK_LABELS(t, "-3", "1", "2");
    cz_texts_close(t);
    /* brackets of other kinds are classes */
    t = open_text("c.csv",
                  "text,label\na,[x]\nb,[\nc,]\nd,\"['x',]\"\ne,\"['x' 'y']\"\nf,['x\ng,[-]\n");
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_SINGLE_LABEL);
    ck_assert_uint_eq(cz_texts_n_labels(t), 7);
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(kept_columns_stay_as_they_are)
{
    setup();
    static const char *const keep[] = {"id", "n"};
    struct cz_texts_options o = {
        .size = sizeof o, .labels_optional = true, .keep = keep, .n_keep = 2};
    struct cz_texts *t = open_with(o, write_text("a.csv", "id,text,n\n007,a,\"x,\"\"y\"\n,b,\n"));
    size_t n;
    bool is_json = true;
    ck_assert_str_eq(cz_texts_kept(t, 0, 0, &n, &is_json), "007");
    ck_assert(n == 3 && !is_json);
    ck_assert_str_eq(cz_texts_kept(t, 0, 1, &n, &is_json), "x,\"y");
    ck_assert_str_eq(cz_texts_kept(t, 1, 0, &n, &is_json), "");
    cz_texts_close(t);
    t = open_with(o,
                  write_text("a.jsonl",
                             "{\"n\": [1.50, {\"a\":\n\"b\\n\"}] , \"text\": \"a\", \"id\" : -0}\n"
                             "{\"text\": \"b\", \"id\": \"\\u00e9\"}\n"));
    ck_assert_str_eq(cz_texts_kept(t, 0, 0, &n, &is_json), "-0");
    ck_assert(n == 2 && is_json);
    ck_assert_str_eq(cz_texts_kept(t, 0, 1, &n, &is_json), "[1.50, {\"a\": \"b\\n\"}]");
    ck_assert_str_eq(cz_texts_kept(t, 1, 0, &n, &is_json), "\"\\u00e9\"");
    ck_assert_ptr_null(cz_texts_kept(t, 1, 1, &n, &is_json));
    ck_assert_uint_eq(n, 0);
    cz_texts_close(t);
    /* across the end of a block */
    char *text = malloc(600000);
    memset(text, 'a', 600000);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + 262100, "\", \"n\": 1, \"id\": \"", 18);
    strcpy(text + 300000, "\"}\n");
    t = open_with(o, write_text("b.jsonl", text));
    const char *kept = cz_texts_kept(t, 0, 0, &n, &is_json);
    ck_assert_uint_eq(n, 300001 - 262117);
    ck_assert(kept[0] == '"' && kept[n - 1] == '"' && strspn(kept + 1, "a") == n - 2);
    cz_texts_close(t);
    free(text);
    teardown();
}
END_TEST

START_TEST(members_that_nothing_uses_are_named)
{
    setup();
    static const char rows[] =
        "{\"text\": \"a\", \"label\": 0, \"weight\": 2, \"id\": 1}\n"
        "{\"text\": \"b\", \"label\": 1, \"weight\": 2, \"sentence\": \"c\"}\n";
    cz_set_strict(true);
    refused("a.jsonl", rows, CZ_INVALID,
            "members and columns that czero does not use: weight (2 times, first: ");
    refused("a.jsonl", rows, CZ_INVALID, "a.jsonl:1), sentence (");
    refused("b.csv", "text,label,label2,id\na,0,1,1\nb,1,0,2\n", CZ_INVALID, "label2 (");
    /* a better name that comes later */
    refused(
        "c.jsonl",
        "{\"content\": \"a\", \"text\": \"b\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n",
        CZ_INVALID, "content (");
    struct cz_texts *t = open_text("d.csv", "id,text,label,index\n1,a,0,1\n2,b,1,2\n");
    cz_texts_close(t);
    struct cz_texts_options o = {.size = sizeof o, .labels_optional = true};
    t = open_with(o, write_text("a.jsonl", rows)); /* prediction */
    cz_texts_close(t);
    cz_set_strict(false);
    teardown();
}
END_TEST

/* 40 of class 0, 4 of class 1, 1 of class 2. */
START_TEST(a_share_is_of_each_class_alike)
{
    setup();
    char text[4096] = "text,label\n";
    for (int i = 0; i < 45; i++)
        snprintf(text + strlen(text), 64, "w%d,%d\n", i, i < 40 ? 0 : i < 44 ? 1 : 2);
    const char *path = write_text("a.csv", text);
    struct cz_texts_options o = {.size = sizeof o, .split_share = 0.25, .split_seed = 5};
    struct cz_texts *rest = open_with(o, path);
    o.split_part = 1;
    struct cz_texts *share = open_with(o, path);
    CHECK_LABELS(share, "0", "1", "2");
    static const size_t want[] = {10, 1, 0}, all[] = {40, 4, 1};
    bool met[45] = {false};
    for (size_t k = 0; k < 3; k++) {
        ck_assert_uint_eq(cz_texts_n_of_label(share, k), want[k]);
        ck_assert_uint_eq(cz_texts_n_of_label(rest, k), all[k] - want[k]);
    }
    for (int part = 0; part < 2; part++)
        for (size_t i = 0; i < cz_texts_count(part ? share : rest); i++) {
            const int w = atoi(cz_texts_at(part ? share : rest, i).text + 1);
            ck_assert(!met[w]);
            met[w] = true;
            ck_assert_int_eq(cz_texts_label(part ? share : rest, i), w < 40 ? 0 : w < 44 ? 1 : 2);
        }
    ck_assert_uint_eq(cz_texts_count(share) + cz_texts_count(rest), 45);
    o.split_seed = 6;
    struct cz_texts *other = open_with(o, path);
    bool same = true;
    for (size_t i = 0; i < cz_texts_count(share); i++)
        same = same && strcmp(cz_texts_at(share, i).text, cz_texts_at(other, i).text) == 0;
    ck_assert(!same);
    cz_texts_close(other);
    cz_texts_close(share);
    cz_texts_close(rest);
    static const double bad[] = {-0.1, 1, 1.5};
    for (size_t i = 0; i < 3; i++) {
        o.split_share = bad[i];
        refused_with(o, "a.csv", text, CZ_INVALID, "a share between 0 and 1 is needed");
    }
    o.split_share = 0.01;
    refused_with(o, "a.csv", text, CZ_INVALID, "takes none of 45 examples");
    teardown();
}
END_TEST

/* ---- characters -------------------------------------------------------------------------------
 */

START_TEST(escapes_become_characters)
{
    setup();
    static const char *const cases[][2] = {
        {"\\ud83d\\ude00", "😀"},
        {"\\ud800\\udc00", "\xF0\x90\x80\x80"}, /* the first and the last pair */
        {"\\udbff\\udfff", "\xF4\x8F\xBF\xBF"},
        {"\\ud7ff\\ue000", "\xED\x9F\xBF\xEE\x80\x80"},
        {"\\/\\b\\f\\r\\t\\\\", "/\b\f\r\t\\"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "[[\"%s\",1],[\"\",0]]", cases[i][0]);
        struct cz_texts *t = open_text("a.json", text);
        check(t, 0, cases[i][1], NULL, 1);
        cz_texts_close(t);
    }
    struct cz_texts *t = open_text("a.json", "[[\"a\\u0000b\",1],[\"\",0]]");
    ck_assert_uint_eq(cz_texts_at(t, 0).nbytes, 3);
    ck_assert_mem_eq(cz_texts_at(t, 0).text, "a\0b", 4);
    cz_texts_close(t);
    const char csv[] = "text,label\na\0b,1\n,0\n";
    t = open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)},
                  write_bytes("a.csv", csv, sizeof csv - 1));
    ck_assert_uint_eq(cz_texts_at(t, 0).nbytes, 3);
    ck_assert_mem_eq(cz_texts_at(t, 0).text, "a\0b", 4);
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(halves_of_surrogate_pairs_are_refused)
{
    setup();
    static const char *const cases[][2] = {
        {"a\\ud83db", "\\ud83d"},
        {"\\ude00", "\\ude00"},
        {"\\udc00", "\\udc00"},
        {"\\ud83d\\ud83d\\ude00", "\\ud83d"},
        {"\\udbff", "\\udbff"},
        {"\\ud83d\\n", "\\ud83d"},
        {"\\ud7ff\\udbff\\ue000", "\\udbff"},
        {"\\udfff", "\\udfff"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[256], sentence[128];
        snprintf(text, sizeof text, "[\"a\",1]\n[\"%s\",0]\n", cases[i][0]);
        snprintf(sentence, sizeof sentence, "a.jsonl:2: %s is half of a surrogate pair",
                 cases[i][1]);
        refused("a.jsonl", text, CZ_CORRUPT, sentence);
    }
    teardown();
}
END_TEST

/* 好,正 and 坏,负 in GBK: every reader of labelled texts. */
START_TEST(bytes_that_are_not_utf8_are_refused_or_converted)
{
    setup();
    static const char table[] = "text,label\n\xBA\xC3,\xD5\xFD\n\xBB\xB5,\xB8\xBA\n",
                      tabs[] = "text\tlabel\n\xBA\xC3\t\xD5\xFD\n\xBB\xB5\t\xB8\xBA\n",
                      rows[] = "{\"text\":\"\xBA\xC3\",\"label\":\"\xD5\xFD\"}\n"
                               "{\"text\":\"\xBB\xB5\",\"label\":\"\xB8\xBA\"}\n",
                      words[] = "\xBA\xC3 \xD5\xFD\n\n\xBB\xB5 \xB8\xBA\n",
                      lines[] = "one\n\xBA\xC3\n";
    static const struct {
        const char *name, *text, *sentence;
        bool words, plain;
    } cases[] = {
        {"a.csv", table,
         "a.csv:2: byte 0xba at offset 11 is not UTF-8; the text looks like "
         "gb18030: use --encoding gb18030",
         false, false},
        {"a.tsv", tabs, "a.tsv:2: byte 0xba at offset 11 is not UTF-8", false, false},
        {"a.jsonl", rows, "a.jsonl:1: byte 0xba at offset 9 is not UTF-8", false, false},
        {"a.conll", words, "a.conll:1: byte 0xba at offset 0 is not UTF-8", true, false},
        {"a.txt", lines, "a.txt:2: byte 0xba at offset 4 is not UTF-8", false, true},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const char *path = write_text(cases[i].name, cases[i].text);
        struct cz_texts_options o = {.size = sizeof o,
                                     .paths = &path,
                                     .n_paths = 1,
                                     .words = cases[i].words,
                                     .plain = cases[i].plain,
                                     .labels_optional = cases[i].plain};
        struct cz_texts *t;
        ck_fails(cz_texts_open(&o, &t), CZ_CORRUPT);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence), "%s", cz_last_error());
        o.encoding = "gb18030";
        ck_ok(cz_texts_open(&o, &t));
        check(t, cases[i].plain, "好", NULL, cases[i].plain || cases[i].words ? -1 : 0);
        if (!cases[i].plain) {
            ck_assert_uint_eq(cz_texts_n_labels(t), 2);
            ck_assert_str_eq(cz_texts_labels(t)[0], "正");
            ck_assert_str_eq(cz_texts_labels(t)[1], "负");
        }
        cz_texts_close(t);
    }
    teardown();
}
END_TEST

START_TEST(white_space_can_be_dropped)
{
    setup();
    struct cz_texts_options o = {.size = sizeof o, .strip_spaces = true};
    struct cz_texts *t = open_with(
        o, write_text("a.json",
                      "[[\" 银色 的\\u3000罗\\u00a0马\\n\\t\\u2003\\u200b!\\u0085\", \" x \"],"
                      "[\"   \", \" p\\u2028q \", \"y\"]]"));
    check(t, 0, "银色的罗马\xE2\x80\x8B!", NULL, 0); /* a zero-width space is none */
    check(t, 1, "", "pq", 1);
    CHECK_LABELS(t, " x ", "y");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(blocks_do_not_show)
{
    setup();
    /* Quotes, escapes and characters across every border of the reader's blocks. */
    const size_t n_rows = 20000;
    char *text = malloc(n_rows * 64 + 2), *at = text;
    *at++ = '[';
    for (size_t i = 0; i < n_rows; i++)
        at += sprintf(at, "%s[\"%zu\\u4f60你\\\"%.*s\", %zu]", i ? "," : "", i, (int)(i % 17),
                      "................", i % 3);
    *at++ = ']';
    struct cz_texts *t =
        open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)},
                  write_bytes("a.json", text, (size_t)(at - text)));
    ck_assert_uint_eq(cz_texts_count(t), n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        char want[64];
        snprintf(want, sizeof want, "%zu你你\"%.*s", i, (int)(i % 17), "................");
        check(t, i, want, NULL, (int32_t)(i % 3));
    }
    cz_texts_close(t);
    free(text);
    teardown();
}
END_TEST

START_TEST(large_texts_are_whole)
{
    setup();
    const size_t n = (size_t)3 << 20;
    char *text = malloc(n + 64);
    size_t used = (size_t)sprintf(text, "text,label\nx,1\n\"");
    memset(text + used, 'y', n);
    used += n;
    used += (size_t)sprintf(text + used, "\",0\nz,1\n");
    struct cz_texts *t =
        open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)},
                  write_bytes("a.csv", text, used));
    check(t, 0, "x", NULL, 1);
    ck_assert_uint_eq(cz_texts_at(t, 1).nbytes, n);
    ck_assert_int_eq(cz_texts_at(t, 1).text[n - 1], 'y');
    check(t, 2, "z", NULL, 1);
    cz_texts_close(t);
    free(text);
    teardown();
}
END_TEST

/* ---- classes ----------------------------------------------------------------------------------
 */

START_TEST(classes_are_numbered_in_order)
{
    setup();
    struct cz_texts *t = open_text("a.json", "[[\"\",10],[\"\",-1],[\"\",9],[\"\",2.0],[\"\",-0]]");
    CHECK_LABELS(t, "-1", "0", "2", "9", "10");
    check(t, 0, "", NULL, 4);
    cz_texts_close(t);
    t = open_text("b.json", "[[\"\",\"10\"],[\"\",\"9\"],[\"\",\"é\"],[\"\",\"Z\"],[\"\",\"a\"]]");
    CHECK_LABELS(t, "10", "9", "Z", "a", "é");
    cz_texts_close(t);
    t = open_text("c.json", "[[\"\",true],[\"\",false],[\"\",true]]");
    CHECK_LABELS(t, "false", "true");
    check(t, 0, "", NULL, 1);
    cz_texts_close(t);
    t = open_text("d.csv", "text,label\n,10\n,9\n,-3\n");
    CHECK_LABELS(t, "-3", "9", "10");
    cz_texts_close(t);
    t = open_text("e.csv", "text,label\n,10\n,9\n,010\n");
    CHECK_LABELS(t, "010", "10", "9");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(labels_are_of_one_kind)
{
    setup();
    refused("a.json", "[[\"\",1],\n[\"\",\"1\"]]", CZ_INVALID,
            "a.json:2: item 2: the label 1 is a string, but 1 (");
    refused("b.json", "[[\"\",1],[\"\",true]]", CZ_INVALID, "true is true or false");
    refused("c.json", "[[\"\",0.5],[\"\",true]]", CZ_INVALID, "but 0.5 (");
    refused("d.json", "[[\"\",[1,2]],[\"\",true]]", CZ_INVALID,
            "several labels are a member of an object");
    refused("e.json", "[[\"\",1e40],[\"\",2]]", CZ_INVALID,
            "the label \"1e40\" is no number of fp32");
    refused("f.json", "[[\"\",123456789012345678901],[\"\",2]]", CZ_INVALID, "beyond 64 bits");
    const char *paths[] = {write_text("g.json", "[[\"x\", 10]]"),
                           write_text("g.csv", "text,label\ny,9\ny,z\n")};
    struct cz_texts_options o = {.size = sizeof o, .paths = paths, .n_paths = 2};
    struct cz_texts *t;
    ck_fails(cz_texts_open(&o, &t), CZ_INVALID);
    ck_assert_ptr_nonnull(
        strstr(cz_last_error(), "g.csv:3: the label \"z\" is a string, but 10 ("));
    teardown();
}
END_TEST

START_TEST(known_names_are_matched)
{
    setup();
    static const char *const names[] = {"b", "a", "7"};
    struct cz_texts_options o = {.size = sizeof o, .labels = names, .n_labels = 3};
    struct cz_texts *t = open_with(o, write_text("a.json", "[[\"\",\"a\"],[\"\",7],[\"\",\"7\"]]"));
    check(t, 0, "", NULL, 1);
    check(t, 1, "", NULL, 2);
    check(t, 2, "", NULL, 2);
    CHECK_LABELS(t, "b", "a", "7");
    ck_assert_uint_eq(cz_texts_n_of_label(t, 0), 0);
    cz_texts_close(t);
    refused_with(o, "b.json", "[[\"\",\"a\"],[\"\",\"c\"]]", CZ_INVALID,
                 "b.json:1: item 2: the label \"c\" is not one of the 3 known classes: b, a, 7");
    refused_with(o, "c.json", "[[\"\",1]]", CZ_INVALID, "\"1\" is not one of");

    static const char *const numbered[] = {"LABEL_0", "LABEL_1"};
    o = (struct cz_texts_options){
        .size = sizeof(struct cz_texts_options), .labels = numbered, .n_labels = 2};
    t = open_with(o, write_text("d.json", "[[\"\",1],[\"\",\"LABEL_0\"]]"));
    check(t, 0, "", NULL, 1);
    check(t, 1, "", NULL, 0);
    cz_texts_close(t);
    t = open_with(o, write_text("e.csv", "text,label\n,1\n,LABEL_0\n"));
    check(t, 0, "", NULL, 1);
    check(t, 1, "", NULL, 0);
    CHECK_LABELS(t, "LABEL_0", "LABEL_1"); /* both forms: the model's names stay */
    cz_texts_close(t);
    t = open_with(o, write_text("h.csv", "text,label\n,1\n,0\n"));
    CHECK_LABELS(t, "0", "1"); /* names that say nothing give way to the data's */
    cz_texts_close(t);
    static const char *const sides[] = {"neg", "pos"};
    o.labels = sides;
    t = open_with(o, write_text("i.csv", "text,label\n,1\n,0\n,pos\n"));
    check(t, 0, "", NULL, 1);
    check(t, 1, "", NULL, 0);
    check(t, 2, "", NULL, 1);
    CHECK_LABELS(t, "neg", "pos");
    cz_texts_close(t);
    refused_with(o, "j.csv", "text,label\n,2\n", CZ_INVALID,
                 "j.csv:2: the label \"2\" is not one of the 2 known classes: neg, pos; integers "
                 "number them from 0 to 1");
    refused_with(o, "j.json", "[[\"\",\"1\"]]", CZ_INVALID, "known classes: neg, pos");
    static const char *const stars[] = {"2", "1"}; /* names that are integers are no places */
    o.labels = stars;
    t = open_with(o, write_text("k.csv", "text,label\n,1\n,2\n"));
    check(t, 0, "", NULL, 1);
    check(t, 1, "", NULL, 0);
    cz_texts_close(t);
    refused_with(o, "l.csv", "text,label\n,0\n", CZ_INVALID, "the 2 known classes: 2, 1");
    o.labels = numbered;
    refused_with(o, "f.json", "[[\"\",2]]", CZ_INVALID,
                 "\"2\" is not one of the 2 known classes: LABEL_0, LABEL_1; integers number them "
                 "from 0 to 1");
    refused_with(o, "f.json", "[[\"\",-1]]", CZ_INVALID, "\"-1\" is not one of");
    refused_with(o, "g.json", "[[\"\",\"1\"]]", CZ_INVALID, "\"1\" is not one of");

    static const char *const python[] = {"False", "True"};
    o = (struct cz_texts_options){
        .size = sizeof(struct cz_texts_options), .labels = python, .n_labels = 2};
    t = open_with(o, write_text("h.json", "[[\"\",true]]"));
    check(t, 0, "", NULL, 1);
    cz_texts_close(t);

    static const char *const twice[] = {"x", "y", "x"};
    o = (struct cz_texts_options){
        .size = sizeof(struct cz_texts_options), .labels = twice, .n_labels = 3};
    refused_with(o, "i.json", "[[\"\",\"x\"]]", CZ_INVALID, "two of the 3 classes are named \"x\"");
    o.n_labels = 1;
    refused_with(o, "j.json", "[[\"\",\"x\"]]", CZ_INVALID, "at least two classes");
    teardown();
}
END_TEST

START_TEST(labels_may_be_missing_when_allowed)
{
    setup();
    struct cz_texts_options o = {.size = sizeof o, .labels_optional = true};
    struct cz_texts *t = open_with(
        o, write_text("a.json", "[[\"p\"],[\"q\",null],[\"r\",\"s\",null],{\"text\":\"t\"},"
                                "{\"text\":\"u\",\"label\":NaN},{\"text\":\"v\",\"label\":\"\"},"
                                "[\"w\",\"x\"]]"));
    ck_assert_uint_eq(cz_texts_count(t), 7);
    for (size_t i = 0; i < 6; i++) ck_assert_int_eq(cz_texts_label(t, i), -1);
    check(t, 6, "w", NULL, 0);
    cz_texts_close(t);
    t = open_with(o, write_text("b.csv", "text\nx\n\"\"\n"));
    ck_assert_uint_eq(cz_texts_count(t), 2);
    check(t, 1, "", NULL, -1);
    cz_texts_close(t);
    t = open_with(o, write_text("c.csv", "text,label\nx,\n"));
    check(t, 0, "x", NULL, -1);
    cz_texts_close(t);
    refused("d.json", "[[\"p\",1],[\"q\"]]", CZ_INVALID, "item 2: the example has no label");
    refused("e.csv", "text,label\nx,1\ny,\n", CZ_INVALID, "e.csv:3: the example has no label");
    refused("f.jsonl", "{\"text\":\"x\",\"note\":1}", CZ_INVALID, "found: text, note");
    teardown();
}
END_TEST

/* Every reader: counted in one error, or left out. */
START_TEST(rows_without_a_label_are_counted_or_left_out)
{
    static const struct {
        const char *name, *text, *sentence;
        size_t n;
        bool words;
    } cases[] = {
        {"a.csv", "text,label\nx,1\ny,\n\"z\nz\",\nw,0\n", "2 rows have no label: ", 2, false},
        {"b.tsv", "text\tlabel\nx\t\ny\t1\nz\t0\nv\t \n", "2 rows have no label: ", 2, false},
        {"c.jsonl",
         "{\"text\":\"x\"}\n{\"text\":\"y\",\"label\":1}\n{\"text\":\"z\",\"label\":null}\n"
         "{\"text\":\"w\",\"label\":0}\n",
         "2 rows have no label: ", 2, false},
        {"d.json", "[[\"p\",1],[\"q\"],[\"r\",null],[\"s\",0]]", "d.json:1 item 2, ", 2, false},
        {"e.conll", "a X\nb\nc\n\nd Y\n\ne\n\nf X\n", "2 rows have no label: ", 2, true},
        {"f.jsonl",
         "{\"tokens\":[\"x\"]}\n{\"tokens\":[\"y\"],\"ner_tags\":[\"A\"]}\n{\"tokens\":[\"z\"]}\n"
         "{\"tokens\":[\"z\"],\"ner_tags\":[\"B\"]}\n",
         "2 rows have no label: ", 2, true},
    };
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_texts_options o = {.size = sizeof o, .words = cases[i].words};
        refused_with(o, cases[i].name, cases[i].text, CZ_INVALID, cases[i].sentence);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "with --skip-unlabelled"));
        o.skip_unlabelled = true;
        struct cz_texts *t = open_with(o, write_text(cases[i].name, cases[i].text));
        ck_assert_msg(cz_texts_count(t) == cases[i].n, "%s: %zu", cases[i].name, cz_texts_count(t));
        ck_assert_uint_eq(cz_texts_n_labels(t), 2);
        cz_texts_close(t);
    }
    /* The first five places; a file without any label says what it lacks. */
    refused("five.csv", "text,label\na,\na,\na,\na,\na,\nb,1\nc,2\n", CZ_INVALID,
            "five.csv:6: give");
    refused("six.csv", "text,label\na,\na,\na,\na,\na,\na,\nb,1\nc,2\n", CZ_INVALID,
            "six.csv:6, …: give");
    struct cz_texts_options skip = {.size = sizeof skip, .skip_unlabelled = true};
    refused_with(skip, "none.csv", "text,label\nx,\ny,\n", CZ_INVALID,
                 "none.csv:2: the example has no label");
    refused_with(skip, "none.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y\"}\n", CZ_INVALID,
                 "found: text");
    /* What is kept of a row that is left out is no other row's. */
    const char *const keep[] = {"id"};
    skip.keep = keep;
    skip.n_keep = 1;
    size_t n;
    bool is_json;
    struct cz_texts *t = open_with(
        skip, write_text("kept.jsonl", "{\"text\":\"x\",\"id\":7}\n{\"text\":\"y\",\"label\":1}\n"
                                       "{\"text\":\"z\",\"label\":0,\"id\":8}\n"));
    ck_assert_uint_eq(cz_texts_count(t), 2);
    ck_assert_ptr_null(cz_texts_kept(t, 0, 0, &n, &is_json));
    ck_assert_str_eq(cz_texts_kept(t, 1, 0, &n, &is_json), "8");
    cz_texts_close(t);
    teardown();
}
END_TEST

/* ---- bad input --------------------------------------------------------------------------------
 */

START_TEST(damage_is_told_with_its_place)
{
    setup();
    static const struct {
        const char *name, *text;
        cz_status want;
        const char *words;
    } cases[] = {
        {"a.json", "", CZ_INVALID, "a.json: no examples"},
        {"a.json", "[]", CZ_INVALID, "no examples"},
        {"a.json", "[[\"x\",1],[\"y\",1]]", CZ_INVALID, "all examples have the label \"1\""},
        {"a.json", "x", CZ_CORRUPT, "a.json:1: begins neither"},
        {"a.json", "[[\"x\",1]", CZ_CORRUPT, "expected \",\" or \"]\", found the end of the file"},
        {"a.json", "[[\"x\",1],", CZ_CORRUPT, "item 2: expected a row"},
        {"a.json", "[[\"x\",1],\n]", CZ_CORRUPT,
         "a.json:2: item 1: expected another value, found \"]\""},
        {"a.json", "[[\"x\" 1]]", CZ_CORRUPT, "expected \",\" or \"]\", found \"1\""},
        {"a.json", "[[\"x\",1]] 2", CZ_CORRUPT, "continues after the end of the list"},
        {"a.json", "[\n[\"x\ny\",1]]", CZ_CORRUPT, "a.json:2: item 1: a string has no closing"},
        {"a.json", "[[\"x\ty\",1]]", CZ_CORRUPT, "control character 0x09"},
        {"a.json", "[[\"x\\q\",1]]", CZ_CORRUPT, "expected an escape of JSON"},
        {"a.json", "[[\"x\\u12g4\",1]]", CZ_CORRUPT,
         "expected a hexadecimal digit of \\u, found \"g\""},
        {"a.json", "[[\"x\",01]]", CZ_CORRUPT, "\"01\" is not a JSON value"},
        {"a.json", "[[\"x\",tru]]", CZ_CORRUPT, "\"tru\" is not a JSON value"},
        {"a.json", "[[\"x\",]]", CZ_CORRUPT, "expected another value, found \"]\""},
        {"a.json", "[[]]", CZ_CORRUPT, "a row is empty"},
        {"a.json", "[[1,\"x\"]]", CZ_CORRUPT, "the text is an integer"},
        {"a.json", "[[\"x\",2,1]]", CZ_CORRUPT, "the second text is an integer"},
        {"a.json", "[[[\"x\"],1]]", CZ_CORRUPT, "the text is an array"},
        {"a.json", "[[\"x\",\"y\",1,2]]", CZ_CORRUPT, "more than three items"},
        {"a.json", "[1, 2]", CZ_CORRUPT,
         "item 1: expected a row: [text, label] or an object with members, found \"1\""},
        {"a.json", "[{\"text\":5,\"label\":1}]", CZ_CORRUPT, "the text is an integer"},
        {"a.json", "[{\"text\":null,\"label\":1}]", CZ_CORRUPT, "the text is null"},
        {"a.json", "[{\"text\":\"x\",\"text\":\"x\"}]", CZ_CORRUPT, "two members \"text\""},
        {"a.json", "[{}]", CZ_INVALID, "found: nothing"},
        {"a.json", "[{text:1}]", CZ_CORRUPT, "expected a name in double quotes, found \"t\""},
        {"a.json", "[{\"text\" \"x\"}]", CZ_CORRUPT, "expected \":\""},
        {"a.json", "[{\"id\":{y:1},\"text\":\"x\"}]", CZ_CORRUPT,
         "expected a name in double quotes, found \"y\""},
        {"a.json", "[{\"id\":{\"y\" 1},\"text\":\"x\"}]", CZ_CORRUPT,
         "expected \":\", found \"1\""},
        {"a.json", "[{\"id\":[1 2],\"text\":\"x\"}]", CZ_CORRUPT,
         "expected \",\" or \"]\", found \"2\""},
        {"a.json", "[{\"id\":[1,tru],\"text\":\"x\"}]", CZ_CORRUPT, "\"tru\" is not a JSON value"},
        {"a.jsonl", "{\"text\":\"x\",\"label\":1}\n\n{\"text\":", CZ_CORRUPT, "a.jsonl:3: "},
        {"a.jsonl", "[\"x\",1],[\"y\",2]", CZ_CORRUPT,
         "expected a row: [text, label] or an object with members, found \",\""},
        {"a.csv", "", CZ_INVALID, "a first line that names columns"},
        {"a.csv", "text,label\n", CZ_INVALID, "no examples"},
        {"a.csv", "text,label\nx,1\n\"y\nz\",1,2\n", CZ_CORRUPT,
         "a.csv:3: 3 fields where the header names 2 columns; a text with commas"},
        {"a.csv", "text,label\nx\n", CZ_CORRUPT, "a.csv:2: 1 fields"},
        {"a.csv", "text,label\nx,1\n\"y,1\nz,2\n", CZ_CORRUPT, "a.csv:3: the quote that opens"},
        {"a.csv", "text,label\n\"y\"z,1\n", CZ_CORRUPT, "a.csv:2: a closing quote is followed"},
        {"a.csv", "text,label\nx,1\n\"y,1\nz,2\n\"w\",1\n", CZ_CORRUPT,
         "a.csv:3: the quote that opens here closes on line 5, and is followed by more text"},
        {"a.csv", "text,label\n\"y\nz\",bad\n\"w\n\",\"1\n\"x\n", CZ_CORRUPT,
         "a.csv:5: the quote that opens here closes on line 6, and is"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        refused(cases[i].name, cases[i].text, cases[i].want, cases[i].words);
    char deep[600] = "[{\"x\":";
    memset(deep + 6, '[', 300);
    refused("deep.json", deep, CZ_CORRUPT, "levels of nesting");
    struct cz_texts *t;
    struct cz_texts_options o = {.size = sizeof o};
    ck_fails(cz_texts_open(&o, &t), CZ_INVALID);
    const char *path = "/nonexistent/x.json";
    o = (struct cz_texts_options){
        .size = sizeof(struct cz_texts_options), .paths = &path, .n_paths = 1};
    ck_fails(cz_texts_open(&o, &t), CZ_NOTFOUND);
    path = "/dev/null"; /* a folder: see test_data_files.c */
    ck_fails(cz_texts_open(&o, &t), CZ_IO);
    teardown();
}
END_TEST

START_TEST(memory_is_about_the_size_of_the_texts)
{
    setup();
    const size_t n_rows = 100000;
    char *text = malloc(n_rows * 120), *at = text;
    *at++ = '[';
    for (size_t i = 0; i < n_rows; i++)
        at += sprintf(at, "%s[\"%080zu\", %zu]", i ? ", " : "", i, i % 2);
    *at++ = ']';
    const char *path = write_bytes("a.json", text, (size_t)(at - text));
    size_t nbytes = (size_t)(at - text);
    free(text);
    malloc_trim(0);
    struct mallinfo2 before = mallinfo2();
    struct cz_texts *t =
        open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)}, path);
    struct mallinfo2 after = mallinfo2();
    size_t held = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    ck_assert_msg(held < nbytes + nbytes / 2, "%zu bytes for a file of %zu", held, nbytes);
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(the_posts_of_the_fixture_are_read)
{
    static const size_t n_of[] = {13993, 6697, 5348, 5978, 3167, 4950};
    struct cz_texts *t = open_with(
        (struct cz_texts_options){.size = sizeof(struct cz_texts_options), .strip_spaces = true},
        test_fixture("text/weibo6/train.json"));
    ck_assert_uint_eq(cz_texts_count(t), 40133);
    CHECK_LABELS(t, "0", "1", "2", "3", "4", "5");
    for (size_t k = 0; k < 6; k++) ck_assert_uint_eq(cz_texts_n_of_label(t, k), n_of[k]);
    check(t, 1, "稳吾到嘛？", NULL, 3);
    cz_texts_close(t);
}
END_TEST

/* A NUL in a table is a character like others, in quotes and without. */
START_TEST(a_nul_is_a_character)
{
    setup();
    static const char text[] = "text,label\n\"y\0z\",1\na\0b,0\n";
    struct cz_texts *t =
        open_with((struct cz_texts_options){.size = sizeof(struct cz_texts_options)},
                  write_bytes("a.csv", text, sizeof text - 1));
    ck_assert_uint_eq(cz_texts_count(t), 2);
    ck_assert_uint_eq(cz_texts_at(t, 0).nbytes, 3);
    ck_assert_mem_eq(cz_texts_at(t, 0).text, "y\0z", 3);
    ck_assert_uint_eq(cz_texts_at(t, 1).nbytes, 3);
    ck_assert_mem_eq(cz_texts_at(t, 1).text, "a\0b", 3);
    cz_texts_close(t);
    teardown();
}
END_TEST

/* Space doubles, or grows to what is asked for; half of the free memory is the limit of one text.
 */
START_TEST(room_grows_and_has_a_limit)
{
    struct text_buf b = {0};
    ck_ok(text_buf_reserve(&b, 1));
    ck_assert_uint_eq(b.cap, 256);
    b.n = 200;
    memset(b.s, 'x', 200);
    ck_ok(text_buf_reserve(&b, 56));
    ck_assert_uint_eq(b.cap, 256);
    ck_ok(text_buf_reserve(&b, 57));
    ck_assert_uint_eq(b.cap, 512);
    ck_ok(text_buf_reserve(&b, 10000));
    ck_assert_uint_eq(b.cap, 10200);
    ck_ok(text_buf_put(&b, "yz", 2));
    ck_assert_uint_eq(b.n, 202);
    ck_assert_mem_eq(b.s + 198, "xxyz", 4);
    ck_fails(text_buf_reserve(&b, SIZE_MAX - 1), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "more bytes"));
    ck_fails(text_buf_reserve(&b, host_memory_left() / 4 * 3), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "needs more than half of the free memory"));
    ck_assert_uint_eq(b.cap, 10200);
    text_buf_free(&b);
}
END_TEST

static char told[512];
static int n_told;

static void keep_line(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    ck_assert_int_eq(level, CZ_LOG_INFO);
    snprintf(told, sizeof told, "%s", line);
    n_told++;
}

START_TEST(files_are_logged_with_their_number_of_texts)
{
    setup();
    cz_log_set_sink(keep_line, NULL);
    const char *paths[] = {write_text("a.csv", "text,label\na,x\nb,y\nc,x\n"),
                           write_text("b.csv", "text,label\nd,x\n")};
    struct cz_texts *t;
    struct cz_texts_options o = {.size = sizeof o, .paths = paths, .n_paths = 2};
    ck_ok(cz_texts_open(&o, &t));
    cz_log_set_sink(NULL, NULL);
    ck_assert_int_eq(n_told, 2);
    ck_assert_ptr_nonnull(strstr(told, "b.csv: 1 texts"));
    cz_texts_close(t);
    teardown();
}
END_TEST

TEST_MAIN("data/texts", every_form_gives_the_same_examples, pairs_are_read_from_lists_and_objects,
          named_columns_are_taken, better_names_win_over_order, several_files_are_one_list,
          plain_lines_have_no_labels, the_first_line_tells_the_separator,
          cells_that_are_lists_are_sets, kept_columns_stay_as_they_are,
          members_that_nothing_uses_are_named, a_share_is_of_each_class_alike,
          escapes_become_characters, halves_of_surrogate_pairs_are_refused,
          bytes_that_are_not_utf8_are_refused_or_converted, white_space_can_be_dropped,
          blocks_do_not_show, large_texts_are_whole, classes_are_numbered_in_order,
          labels_are_of_one_kind, known_names_are_matched, labels_may_be_missing_when_allowed,
          rows_without_a_label_are_counted_or_left_out, damage_is_told_with_its_place,
          memory_is_about_the_size_of_the_texts, the_posts_of_the_fixture_are_read,
          a_nul_is_a_character, room_grows_and_has_a_limit,
          files_are_logged_with_their_number_of_texts)
