/* Claims: CoNLL's columns, lists in JSON and raw text give the words and classes that they say;
 * tokens of words are those of the words alone, or behind a space where the tokenizer keeps spaces;
 * a batch has a label at the first token of each labelled word and nowhere else; the divisor counts
 * the labels that fit; bad input ends in a status and a sentence that names file and line. */
#include "base/status.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <string.h>

static char dir[64];
static struct cz_tokenizer *bytes;

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    ck_ok(cz_tokenizer_open("bytes", &bytes));
}

static void teardown(void)
{
    cz_tokenizer_close(bytes);
    test_tmp_remove(dir);
}

static const char *write_text(const char *name, const char *text)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_save(path, text, strlen(text)));
    return path;
}

static struct cz_texts *open_with(struct cz_texts_options o, const char *name, const char *text)
{
    const char *path = write_text(name, text);
    struct cz_texts *t;
    o.size = sizeof o;
    o.paths = &path;
    o.n_paths = 1;
    o.words = true;
    ck_assert_msg(cz_texts_open(&o, &t) == CZ_OK, "%s: %s", text, cz_last_error());
    return t;
}

static struct cz_texts *open_text(const char *name, const char *text)
{
    return open_with((struct cz_texts_options){0}, name, text);
}

static void refused_with(struct cz_texts_options o, const char *name, const char *text,
                         cz_status want, const char *words)
{
    const char *path = write_text(name, text);
    struct cz_texts *t;
    o.size = sizeof o;
    o.paths = &path;
    o.n_paths = 1;
    o.words = true;
    cz_status st = cz_texts_open(&o, &t);
    ck_assert_msg(st == want, "%s: %s instead of %s: %s", text, cz_status_name(st),
                  cz_status_name(want), cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: \"%s\" lacks \"%s\"", text, cz_last_error(),
                  words);
}

static void refused(const char *name, const char *text, const char *words)
{
    refused_with((struct cz_texts_options){0}, name, text, CZ_INVALID, words);
}

/* "word/class word/class" of example i, "-" for no class. */
static const char *shown(const struct cz_texts *t, size_t i)
{
    static char buf[512];
    size_t n, used = 0;
    const struct cz_text_word *words = cz_texts_words(t, i, &n);
    buf[0] = '\0';
    for (size_t k = 0; k < n; k++)
        used += (size_t)snprintf(buf + used, sizeof buf - used, "%s%.*s/%s", k ? " " : "",
                                 (int)words[k].nbytes, cz_texts_at(t, i).text + words[k].begin,
                                 words[k].label < 0 ? "-" : cz_texts_labels(t)[words[k].label]);
    return buf;
}

START_TEST(columns_are_read)
{
    setup();
    struct cz_texts *t = open_text("a.conll", "-DOCSTART- -X- -X- O\n\nEU NNP I-NP B-ORG\n"
                                              "rejects VBZ I-VP O\r\n\n \nPeter NNP I-NP B-PER\n");
    ck_assert_uint_eq(cz_texts_count(t), 2);
    ck_assert_str_eq(shown(t, 0), "EU/B-ORG rejects/O");
    ck_assert_str_eq(shown(t, 1), "Peter/B-PER");
    ck_assert_str_eq(cz_texts_at(t, 0).text, "EU rejects");
    ck_assert_uint_eq(cz_texts_n_labels(t), 3);
    ck_assert_uint_eq(cz_texts_n_of_label(t, 0), 1);
    ck_assert_int_eq(cz_texts_label(t, 0), -1);
    cz_texts_close(t);
    /* between tabs words may hold spaces; comments; "#" is a word */
    t = open_text("b.tsv", "# id = 7\nNew York\tB-LOC\n#\tO\n# a = b\tO\n\nx\tO");
    ck_assert_str_eq(shown(t, 0), "New York/B-LOC #/O # a = b/O");
    ck_assert_str_eq(shown(t, 1), "x/O");
    cz_texts_close(t);
    t = open_with((struct cz_texts_options){.text_column = "2", .label_column = "3"}, "c.txt",
                  "1 Rome B-LOC x\n2 is O x\n");
    ck_assert_str_eq(shown(t, 0), "Rome/B-LOC is/O");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(columns_that_are_unclear_are_refused)
{
    setup();
    refused_with((struct cz_texts_options){0}, "a.conll", "EU NNP I-NP B-ORG\n\nPeter NNP B-PER\n",
                 CZ_CORRUPT,
                 "a.conll:3: 3 columns, where the lines before have 4: the class is the last one");
    refused_with((struct cz_texts_options){0}, "a.conll", "EU B-ORG\nPeter NNP B-PER\n", CZ_CORRUPT,
                 "a.conll:2: 3 columns");
    refused_with((struct cz_texts_options){0}, "a.conll", "EU B-ORG\nPeter\n", CZ_CORRUPT,
                 "a.conll:2: a word without a class");
    refused("u.conll", "1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n",
            "u.conll:1: 10 columns that begin with a number, as CoNLL-U has them");
    struct cz_texts *t =
        open_with((struct cz_texts_options){.text_column = "2", .label_column = "4"}, "u.conll",
                  "1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\t_\n");
    ck_assert_str_eq(shown(t, 0), "the/DET cat/NOUN");
    cz_texts_close(t);
    /* seven columns, or words first */
    t = open_text("v.conll", "1 a b c d e X\n2 a b c d e Y\n");
    ck_assert_str_eq(shown(t, 0), "1/X 2/Y");
    cz_texts_close(t);
    t = open_text("w.conll", "a1 a b c d e f X\nb2 a b c d e f Y\n");
    ck_assert_str_eq(shown(t, 0), "a1/X b2/Y");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(lists_are_read)
{
    setup();
    struct cz_texts *t =
        open_text("a.jsonl", "{\"ner_tags\": [\"B-A\", \"O\"], \"id\": 3, \"tokens\": [\"x y\", "
                             "\"\\u00e9\"]}\n{\"tokens\": [], \"ner_tags\": []}\n");
    ck_assert_uint_eq(cz_texts_count(t), 2);
    ck_assert_str_eq(shown(t, 0), "x y/B-A \xC3\xA9/O");
    ck_assert_str_eq(shown(t, 1), "");
    cz_texts_close(t);
    /* integers; what losses ignore, and null, is no class */
    t = open_text("a.json",
                  "[{\"words\": [\"a\", \"b\", \"c\", \"d\"], \"labels\": [10, -100, 9.0, null]}]");
    ck_assert_str_eq(shown(t, 0), "a/10 b/- c/9 d/-");
    ck_assert_str_eq(cz_texts_labels(t)[0], "9");
    cz_texts_close(t);
    /* integers are places among known names */
    static const char *const names[] = {"O", "B-A"};
    t = open_with((struct cz_texts_options){.labels = names, .n_labels = 2}, "a.jsonl",
                  "{\"tokens\": [\"a\", \"b\"], \"tags\": [1, 0]}");
    ck_assert_str_eq(shown(t, 0), "a/B-A b/O");
    cz_texts_close(t);
    /* a text alone is split */
    t = open_with((struct cz_texts_options){.labels_optional = true, .labels_ignored = true},
                  "a.jsonl", "{\"text\": \"Is it (U.S.)?\", \"tags\": 3}");
    ck_assert_str_eq(shown(t, 0), "Is/- it/- (/- U.S/- ./- )/- ?/-");
    cz_texts_close(t);
    teardown();
}
END_TEST

START_TEST(raw_text_is_split)
{
    setup();
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", ""},
        {"  ", ""},
        {"a", "a"},
        {" EU-wide, don't! ", "EU-wide|,|don't|!"},
        {"...", ".|.|."},
        {"\"A.B\"", "\"|A.B|\""},
        {"\xE6\x88\x91\xE5\x9C\xA8"
         "ab",
         "\xE6\x88\x91|\xE5\x9C\xA8|ab"},
        {"x\xC2\xA0y\xE3\x80\x82", "x|y|\xE3\x80\x82"},
        {"a\tb\nc", "a|b|c"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_text_word *words;
        char buf[128] = "";
        size_t n;
        ck_ok(cz_text_split(cases[i].text, strlen(cases[i].text), &words, &n));
        for (size_t k = 0; k < n; k++) {
            if (k) strcat(buf, "|");
            strncat(buf, cases[i].text + words[k].begin, words[k].nbytes);
            ck_assert_int_eq(words[k].label, -1);
        }
        ck_assert_str_eq(buf, cases[i].words);
        free(words);
    }
    teardown();
}
END_TEST

START_TEST(bad_input_names_its_place)
{
    setup();
    refused_with((struct cz_texts_options){0}, "a.conll", "a O\nb\n", CZ_CORRUPT,
                 "a.conll:2: a word without a class");
    refused_with((struct cz_texts_options){0}, "a.conll", "a\tO\n\tO\n", CZ_CORRUPT,
                 "a.conll:2: column 1, the word, is missing");
    refused("a.jsonl", "{\"tokens\": [\"a\"], \"tags\": [\"O\", \"B\"]}",
            "a.jsonl:1: 2 classes for 1 words");
    refused("a.jsonl", "{\"tokens\": [1], \"tags\": [\"O\"]}", "word 1 is an integer");
    refused("a.jsonl", "{\"tokens\": [\"a\"], \"tags\": \"O\"}", "the label is a string: a list");
    refused("a.jsonl", "{\"tokens\": \"a\", \"tags\": [\"O\"]}", "a list of words is needed");
    refused("a.jsonl", "{\"tokens\": [\"a\"]}", "no member \"ner_tags\", \"tags\", \"labels\" or");
    refused("a.jsonl", "{\"tokens\": [[\"a\"]], \"tags\": [\"O\"]}",
            "item 1 of the list is an array");
    refused_with((struct cz_texts_options){0}, "a.json", "[[\"a\", \"O\"]]", CZ_CORRUPT,
                 "a row of words is an object");
    refused("a.conll", "a O\nb O\n", "all examples have the label \"O\"");
    refused("a.conll", "", "no examples");
    refused_with((struct cz_texts_options){.label_column = "ner"}, "a.conll", "a O\n", CZ_INVALID,
                 "columns of CoNLL have no names");
    refused_with((struct cz_texts_options){.strip_spaces = true}, "a.conll", "a O\n", CZ_INVALID,
                 "have no spaces to strip");
    static const char *const names[] = {"O", "B-A"};
    refused_with((struct cz_texts_options){.labels = names, .n_labels = 2}, "a.conll",
                 "a O\nb B-X\n", CZ_INVALID, "a.conll:2: the label \"B-X\" is not one of the 2");
    refused_with((struct cz_texts_options){.labels = names, .n_labels = 2}, "a.jsonl",
                 "{\"tokens\": [\"a\"], \"tags\": [2]}", CZ_INVALID, "the label \"2\" is not one");
    teardown();
}
END_TEST

/* ---- tokens ---------------------------------------------------------------------------------- */

START_TEST(tokens_know_their_words)
{
    setup();
    static const char text[] = "ab  c";
    static const struct cz_text_word words[] = {{0, 2, 0}, {2, 0, 1}, {4, 1, 1}};
    int32_t ids[8], types[8], starts[8];
    int64_t n;
    size_t n_cut;
    /* bytes keep spaces: a word stands behind one; a word without bytes has no token */
    ck_ok(cz_tokenizer_encode_words(bytes, text, words, 3, 8, ids, types, starts, &n, &n_cut));
    static const int32_t want[] = {' ', 'a', 'b', ' ', 'c'}, want_starts[] = {0, -1, -1, 2, -1};
    ck_assert_int_eq(n, 5);
    ck_assert_mem_eq(ids, want, sizeof want);
    ck_assert_mem_eq(starts, want_starts, sizeof want_starts);
    ck_assert_uint_eq(n_cut, 0);
    ck_ok(cz_tokenizer_encode_words(bytes, text, words, 3, 3, ids, NULL, starts, &n, &n_cut));
    ck_assert_int_eq(n, 3);
    ck_assert_uint_eq(n_cut, 1);
    ck_ok(cz_tokenizer_encode_words(bytes, text, words, 0, 3, ids, NULL, starts, &n, &n_cut));
    ck_assert_int_eq(n, 0);
    teardown();
}
END_TEST

/* WordPiece has special tokens and no spaces. */
START_TEST(special_tokens_have_no_word)
{
    setup();
    struct cz_tokenizer *tok;
    write_text("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nab\n##c\nd\n");
    ck_ok(cz_tokenizer_open(dir, &tok));
    static const char text[] = "abc d";
    static const struct cz_text_word words[] = {{0, 3, 0}, {4, 1, 1}};
    int32_t ids[8], types[8], starts[8];
    int64_t n;
    size_t n_cut;
    ck_ok(cz_tokenizer_encode_words(tok, text, words, 2, 8, ids, types, starts, &n, &n_cut));
    static const int32_t want[] = {2, 5, 6, 7, 3}, want_starts[] = {-1, 0, -1, 1, -1};
    ck_assert_int_eq(n, 5);
    ck_assert_mem_eq(ids, want, sizeof want);
    ck_assert_mem_eq(starts, want_starts, sizeof want_starts);
    ck_ok(cz_tokenizer_encode_words(tok, text, words, 2, 4, ids, types, starts, &n, &n_cut));
    ck_assert_int_eq(n, 4);
    ck_assert_int_eq(ids[3], 3);
    ck_assert_uint_eq(n_cut, 1);
    ck_fails(cz_tokenizer_encode_words(tok, text, words, 2, 1, ids, types, starts, &n, &n_cut),
             CZ_INVALID);
    cz_tokenizer_close(tok);
    teardown();
}
END_TEST

START_TEST(batches_have_labels_where_words_begin)
{
    setup();
    struct cz_texts *t = open_text("a.conll", "ab B\nc O\n\nabcdefg O\nxyz B\n\nq O\n");
    struct cz_text_loader *l;
    struct cz_batch b = {.size = sizeof b};
    const struct cz_text_loader_options o = {.size = sizeof o,
                                             .texts = t,
                                             .tokenizer = bytes,
                                             .max_len = 8,
                                             .micro_batch = 2,
                                             .accumulation = 2,
                                             .world_size = 1};
    ck_ok(cz_text_loader_open(&o, &l));
    ck_ok(cz_text_loader_next(l, &b));
    static const int32_t want[] = {0, -100, -100, 1, -100, -100, -100, -100}; /* ab c */
    static const int32_t starts[] = {0, -1, -1, 1, -1, -1, -1, -1};
    ck_assert_int_eq(b.B, 1); /* three examples in two micro-batches: 1 and 2 */
    ck_assert_int_eq(b.T, 8);
    ck_assert_uint_eq(cz_text_loader_rows(l)[0], 0);
    ck_assert_mem_eq(b.labels, want, sizeof want);
    ck_assert_mem_eq(cz_text_loader_words(l), starts, sizeof starts);
    ck_assert_float_eq(b.loss_divisor, 2.0f); /* 4 labels: "xyz" does not fit */
    ck_ok(cz_text_loader_next(l, &b));
    ck_assert_int_eq(b.B, 2);
    int n_labels = 0;
    for (int64_t i = 0; i < b.B * b.T; i++) n_labels += b.labels[i] != CZ_IGNORE_LABEL;
    ck_assert_int_eq(n_labels, 2);
    ck_assert_uint_eq(cz_text_loader_n_cut(l), 1);
    cz_text_loader_close(l);
    cz_texts_close(t);
    teardown();
}
END_TEST

TEST_MAIN("data/texts_words", columns_are_read, columns_that_are_unclear_are_refused,
          lists_are_read, raw_text_is_split, bad_input_names_its_place, tokens_know_their_words,
          special_tokens_have_no_word, batches_have_labels_where_words_begin)
