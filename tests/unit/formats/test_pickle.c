/* Claims: every opcode of protocols 2 to 5 becomes the right value or is refused; keys of dicts are
 * found, and compared as Python compares them. */
#include "tests/unit/formats/pickle_rig.h"

#include <math.h>

/* ---- helpers -----------------------------------------------------------------------------------
 */

/* The pickle is one value of that kind with that text and length. */
static void is_text(struct pickle *p, enum pickle_kind kind, const char *text, size_t n)
{
    const struct pickle_node *root = pickle_root(p);
    ck_assert_int_eq(root->kind, kind);
    ck_assert_uint_eq(root->n, n);
    ck_assert_mem_eq(root->text, text, n);
    ck_assert_int_eq(root->text[n], 0);
    pickle_free(p);
}

static void is_number(struct pickle *p, int64_t want)
{
    is_int(pickle_root(p), want);
    pickle_free(p);
}

/* The pickle is a container of n ints 1, 2, 3, … */
static void counts_up(struct pickle *p, enum pickle_kind kind, size_t n)
{
    const struct pickle_node *root = pickle_root(p);
    ck_assert_int_eq(root->kind, kind);
    ck_assert_uint_eq(root->n, n);
    for (size_t i = 0; i < n; i++) is_int(root->items[i], (int64_t)i + 1);
    pickle_free(p);
}

/* ---- opcodes -----------------------------------------------------------------------------------
 */

START_TEST(numbers)
{
    is_number(PARSE("K\xff"), 255);
    is_number(PARSE("M\xfe\xff"), 65534);
    is_number(PARSE("J\xff\xff\xff\x7f"), INT32_MAX);
    is_number(PARSE("J\x00\x00\x00\x80"), INT32_MIN);
    is_number(PARSE("J\xff\xff\xff\xff"), -1);
    is_number(PARSE("\x8a\x00"), 0);
    is_number(PARSE("\x8a\x05\x00\x00\x00\x80\x00"), INT64_C(1) << 31);
    is_number(PARSE("\x8a\x01\x80"), -128);
    is_number(PARSE("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"), INT64_MIN);
    is_number(PARSE("\x8a\x0a\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x00"), INT64_MAX);
    is_number(PARSE("\x8b\x02\x00\x00\x00\x01\x02"), 513);
    is_text(PARSE("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"), PICKLE_LONG,
            "\x00\x00\x00\x00\x00\x00\x00\x80\x00", 9);

    struct pickle *p = PARSE("G\x40\x09\x21\xfb\x54\x44\x2d\x18");
    ck_assert_int_eq(pickle_root(p)->kind, PICKLE_FLOAT);
    ck_assert_double_eq(pickle_root(p)->real, 3.141592653589793);
    pickle_free(p);
    p = PARSE("(G\x7f\xf0\x00\x00\x00\x00\x00\x00G\x7f\xf8\x00\x00\x00\x00\x00\x00N\x88\x89t");
    const struct pickle_node *const *items = pickle_root(p)->items;
    ck_assert(isinf(items[0]->real) && isnan(items[1]->real));
    ck_assert_int_eq(items[2]->kind, PICKLE_NONE);
    ck_assert(pickle_is(items[3], PICKLE_BOOL) && items[3]->boolean);
    ck_assert(pickle_is(items[4], PICKLE_BOOL) && !items[4]->boolean);
    pickle_free(p);
}
END_TEST

START_TEST(texts)
{
    is_text(PARSE("X\x03\x00\x00\x00\xe2\x82\xac"), PICKLE_STRING, "\xe2\x82\xac", 3);
    is_text(PARSE("X\x00\x00\x00\x00"), PICKLE_STRING, "", 0);
    is_text(PARSE("X\x03\x00\x00\x00\xed\xa0\x80"), PICKLE_STRING, "\xed\xa0\x80", 3);
    is_text(PARSE("\x8c\x02hi"), PICKLE_STRING, "hi", 2);
    is_text(PARSE("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"), PICKLE_STRING, "hi", 2);
    is_text(PARSE("U\x02hi"), PICKLE_STRING, "hi", 2);
    is_text(PARSE("T\x02\x00\x00\x00hi"), PICKLE_STRING, "hi", 2);
    is_text(PARSE("U\x02h\xff"), PICKLE_BYTES, "h\xff", 2);
    is_text(PARSE("C\x02h\xff"), PICKLE_BYTES, "h\xff", 2);
    is_text(PARSE("B\x02\x00\x00\x00h\xff"), PICKLE_BYTES, "h\xff", 2);
    is_text(PARSE("\x8e\x02\x00\x00\x00\x00\x00\x00\x00h\xff"), PICKLE_BYTES, "h\xff", 2);
    is_text(PARSE("\x96\x02\x00\x00\x00\x00\x00\x00\x00h\xff"), PICKLE_BYTES, "h\xff", 2);

    struct pickle *p = PARSE("X\x03\x00\x00\x00"
                             "a\x00"
                             "b");
    ck_assert_uint_eq(pickle_root(p)->n, 3);
    ck_assert_ptr_null(pickle_to_string(pickle_root(p)));
    pickle_free(p);
    REFUSE("X\x01\x00\x00\x00\xff", CZ_CORRUPT, "not UTF-8");
    REFUSE("X\x02\x00\x00\x00\xc0\x80", CZ_CORRUPT, "not UTF-8");
    REFUSE("X\x03\x00\x00\x00\xed\xa0\x20", CZ_CORRUPT, "not UTF-8");
}
END_TEST

START_TEST(sequences)
{
    counts_up(PARSE(")"), PICKLE_TUPLE, 0);
    counts_up(PARSE("(t"), PICKLE_TUPLE, 0);
    counts_up(PARSE("K\x01\x85"), PICKLE_TUPLE, 1);
    counts_up(PARSE("K\x01K\x02\x86"), PICKLE_TUPLE, 2);
    counts_up(PARSE("K\x01K\x02K\x03\x87"), PICKLE_TUPLE, 3);
    counts_up(PARSE("(K\x01K\x02K\x03K\x04t"), PICKLE_TUPLE, 4);
    counts_up(PARSE("]"), PICKLE_LIST, 0);
    counts_up(PARSE("]K\x01"
                    "a"),
              PICKLE_LIST, 1);
    counts_up(PARSE("](e(K\x01K\x02"
                    "e(eK\x03"
                    "a"),
              PICKLE_LIST, 3);
    counts_up(PARSE("\x8f(K\x01K\x02\x90"), PICKLE_SET, 2);
    counts_up(PARSE("(K\x01K\x02\x91"), PICKLE_SET, 2);
    counts_up(PARSE("(K\x09(K\x08"
                    "10K\x01t"),
              PICKLE_TUPLE, 1);                       /* POP_MARK, POP */
    counts_up(PARSE("K\x01(0\x85"), PICKLE_TUPLE, 1); /* POP of a mark, as Python */
    struct pickle *p = PARSE("K\x07"
                             "2\x86"); /* DUP */
    ck_assert_ptr_eq(pickle_root(p)->items[0], pickle_root(p)->items[1]);
    pickle_free(p);
}
END_TEST

START_TEST(memo)
{
    counts_up(PARSE("K\x01q\x07"
                    "0]h\x07"
                    "aK\x02"
                    "a"),
              PICKLE_LIST, 2);
    counts_up(PARSE("K\x01r\xff\xff\xff\xff"
                    "0]j\xff\xff\xff\xff"
                    "a"),
              PICKLE_LIST, 1);
    counts_up(PARSE("K\x01\x94"
                    "0K\x02\x94"
                    "0(h\x00h\x01t"),
              PICKLE_TUPLE, 2);
    REFUSE("h\x00", CZ_CORRUPT, "byte 2: memo entry 0 was never stored");
    REFUSE("j\x00\x00\x00\x80", CZ_CORRUPT, "memo entry 2147483648");
    struct bytes b = {0}; /* 300 entries, the form of the index changes at 256 */
    ADD(&b, "\x80\x02]");
    for (unsigned i = 0; i < 300; i++) {
        unsigned char value[] = {'M', (unsigned char)(i + 1), (unsigned char)((i + 1) >> 8)};
        unsigned char put[] = {i < 256 ? 'q' : 'r', (unsigned char)i, (unsigned char)(i >> 8), 0,
                               0};
        unsigned char get[] = {i < 256 ? 'h' : 'j', (unsigned char)i, (unsigned char)(i >> 8), 0,
                               0};
        add(&b, value, 3);
        add(&b, put, i < 256 ? 2 : 5);
        ADD(&b, "0");
        add(&b, get, i < 256 ? 2 : 5);
        ADD(&b, "a");
    }
    ADD(&b, ".");
    struct pickle *p;
    ck_ok(pickle_parse(b.data, b.n, "f", &p));
    counts_up(p, PICKLE_LIST, 300);
    free(b.data);
}
END_TEST

START_TEST(dicts)
{
    struct pickle *p = PARSE("}(X\x01\x00\x00\x00"
                             "aK\x01X\x01\x00\x00\x00"
                             "bK\x02u(uX\x01\x00\x00\x00"
                             "cK\x03sX\x01\x00\x00\x00"
                             "aK\x04s");
    const struct pickle_node *root = pickle_root(p);
    ck_assert_int_eq(root->kind, PICKLE_DICT);
    ck_assert_str_eq(root->more->name, "");
    ck_assert_uint_eq(root->n_pairs, 3);
    is_string(root->pairs[0].key, "a"); /* its last value at its first place */
    is_int(root->pairs[0].value, 4);
    is_int(pickle_get(root, "b"), 2);
    is_int(pickle_get(root, "c"), 3);
    ck_assert_ptr_null(pickle_get(root, "d"));
    ck_assert_ptr_null(pickle_get(NULL, "a"));
    ck_assert_ptr_null(pickle_get(pickle_get(root, "a"), "a"));
    pickle_free(p);

    /* 1, True and 1.0 are one key; tuples are compared by value, lists only by identity. */
    p = PARSE("}(K\x01K\x01\x88K\x02G\x3f\xf0\x00\x00\x00\x00\x00\x00K\x03"
              "K\x05K\x06\x86K\x04K\x05K\x06\x86K\x05]K\x06]K\x07NK\x08NK\x09u");
    root = pickle_root(p);
    ck_assert_uint_eq(root->n_pairs, 5);
    int64_t want[] = {3, 5, 6, 7, 9};
    for (size_t i = 0; i < 5; i++) is_int(root->pairs[i].value, want[i]);
    pickle_free(p);

    /* A class is one key however often it is written, and so is a dtype; names make the difference.
     */
    p = PARSE("}(ctorch\nSize\nK\x01"
              "ctorch\nSize\nK\x02"
              "ctorch\nfloat32\nK\x03"
              "ctorch\nfloat32\nK\x04"
              "cx\nSize\nK\x05"
              "ctorch\nSiz\nK\x06"
              "u");
    root = pickle_root(p);
    ck_assert_uint_eq(root->n_pairs, 4);
    int64_t of_classes[] = {2, 4, 5, 6};
    for (size_t i = 0; i < 4; i++) is_int(root->pairs[i].value, of_classes[i]);
    pickle_free(p);
    REFUSE("}(K\x01u", CZ_CORRUPT, "no value");
    REFUSE("]K\x01K\x01s", CZ_CORRUPT, "keys are set on a list");
}
END_TEST

/* A dict of n numbered keys in batches of 1000, each written twice. */
static struct pickle *large_dict(unsigned n)
{
    struct bytes b = {0};
    ADD(&b, "\x80\x02}(");
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < n; i++) {
            if (i > 0 && i % 1000 == 0) ADD(&b, "u(");
            char key[16], value[] = {'J', (char)i, (char)(i >> 8), 0, (char)round};
            int length = snprintf(key, sizeof key, "X%c%c%c%ckey%05u", 8, 0, 0, 0, i);
            add(&b, key, (size_t)length);
            add(&b, value, 5);
        }
    ADD(&b, "u.");
    struct pickle *p;
    ck_ok(pickle_parse(b.data, b.n, "f", &p));
    free(b.data);
    return p;
}

START_TEST(large_dicts_find_their_keys)
{
    static const unsigned sizes[] = {1, 7, 8, 9, 10, 17, 999, 1000, 1001, 3000};
    for (size_t s = 0; s < CZ_ARRAY_LEN(sizes); s++) {
        struct pickle *p = large_dict(sizes[s]);
        const struct pickle_node *root = pickle_root(p);
        ck_assert_uint_eq(root->n_pairs, sizes[s]);
        for (unsigned i = 0; i < sizes[s]; i++) {
            char key[16];
            snprintf(key, sizeof key, "key%05u", i);
            is_string(root->pairs[i].key, key);
            is_int(root->pairs[i].value, (1 << 24) + (int64_t)i);
            ck_assert_ptr_eq(pickle_get(root, key), root->pairs[i].value);
        }
        ck_assert_ptr_null(pickle_get(root, "key"));
        ck_assert_ptr_null(pickle_get(root, "key99999"));
        pickle_free(p);
    }
}
END_TEST

TEST_MAIN("formats/pickle", numbers, texts, sequences, memo, dicts, large_dicts_find_their_keys)
