/* Claims: cJSON, which shares no code with czero, accepts and reads the same documents as our
 * reader, with the differences of `rules` alone, and reads what our writer prints. 10,000 random
 * documents, half of them damaged, and each JSON file of the fixtures.
 *
 *   test_json_cjson FILE…     both must read the same; prints what each of them needs */
#include "base/clock.h"
#include "base/rng.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "tests/support/check_main.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <ftw.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <string.h>

/* Documents that cJSON accepts and czero refuses, by the words of the refusal. */
#define LOOSE_NUMBER "is not a JSON value"
static struct rule {
    const char *words;
    int n;
} rules[] = {
    {"duplicate key", 0},                     /* cJSON keeps both and finds the first */
    {"is not UTF-8 text", 0},                 /* cJSON copies any bytes */
    {"a byte-order mark", 0},                 /* cJSON skips it */
    {"control character", 0},                 /* in strings */
    {"has no closing quote", 0},              /* line breaks in strings */
    {"\\u0000 is not supported", 0},          /* cJSON's string ends there */
    {"\\u needs four hexadecimal digits", 0}, /* cJSON reads another as \u0000 */
    {"levels of nesting", 0},                 /* cJSON's limit is 1000 */
    {LOOSE_NUMBER, 0},                        /* strtod()'s numbers: 01, 1., -.5 */
};
static int n_both, n_neither, n_blanks, n_long_numbers, n_inexact;

/* cJSON takes every byte up to 0x20 for a blank. */
static bool has_control(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 && !memchr("\t\r\n", text[i], 3)) return true;
    return false;
}

/* The number in the message begins with 0 and a digit, or its point has no digit on a side. */
static bool is_loose_number(const char *message)
{
    const char *s = strchr(message, '"') + 1;
    s += *s == '-';
    const char *point = memchr(s, '.', strcspn(s, "\""));
    return (s[0] == '0' && isdigit(s[1])) || (point && (point == s || !isdigit(point[1])));
}

static bool is_known_refusal(const char *text, size_t n, const char *message)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(rules); i++) {
        if (!strstr(message, rules[i].words)) continue;
        if (strcmp(rules[i].words, LOOSE_NUMBER) == 0 && !is_loose_number(message)) break;
        rules[i].n++;
        return true;
    }
    n_blanks += has_control(text, n);
    return has_control(text, n);
}

/* Up to 1.7.18 cJSON reads at most 63 characters of a number. */
static bool has_long_number(const char *text)
{
    while (*text && strspn(text, "0123456789+-.eE") < 64) text++;
    return *text;
}

/* Ours has integers of 64 bits as they are written; cJSON has the nearest double. */
static bool is_same_number(const struct json_node *node, const cJSON *item)
{
    double value;
    int64_t whole;
    char digits[24];
    size_t n;
    if (!cJSON_IsNumber(item)) return false;
    if (json_as_double(node, &value) != CZ_OK) return isinf(item->valuedouble);
    if (memcmp(&value, &item->valuedouble, sizeof value) != 0) return false;
    const char *text = json_text(node, &n);
    if (json_type(node) != JSON_INT || json_as_int(node, &whole) != CZ_OK || whole == 0)
        return true;
    snprintf(digits, sizeof digits, "%" PRId64, whole);
    n_inexact += value < 0x1p63 && (int64_t)value != whole;
    return (double)whole == value && strlen(digits) == n && memcmp(digits, text, n) == 0;
}

static bool is_same(const struct json_node *node, const cJSON *item)
{
    bool flag;
    const char *text;
    const enum json_type type = json_type(node);
    if (type == JSON_NULL) return cJSON_IsNull(item);
    if (type == JSON_BOOL)
        return json_as_bool(node, &flag) == CZ_OK &&
               item->type == (flag ? cJSON_True : cJSON_False);
    if (type == JSON_INT || type == JSON_FLOAT) return is_same_number(node, item);
    if (type == JSON_STRING)
        return json_as_string(node, &text) == CZ_OK && cJSON_IsString(item) &&
               strcmp(text, item->valuestring) == 0;
    if (item->type != (type == JSON_OBJECT ? cJSON_Object : cJSON_Array)) return false;
    const cJSON *child = item->child;
    for (size_t i = 0; i < json_count(node); i++, child = child->next) {
        const struct json_node *ours = json_child(node, i);
        if (!child || !is_same(ours, child)) return false;
        if (type == JSON_OBJECT && json_get(node, child->string) != ours) return false;
    }
    return !child;
}

/* cJSON reads 1e400 as infinity. */
static void write_tree(struct json_writer *w, const cJSON *item)
{
    const double value = item->valuedouble;
    if (item->string) json_write_key(w, item->string);
    if (cJSON_IsNull(item))
        json_write_null(w);
    else if (cJSON_IsNumber(item) && isinf(value))
        json_write_raw(w, value > 0 ? "1e400" : "-1e400");
    else if (cJSON_IsBool(item))
        json_write_bool(w, cJSON_IsTrue(item));
    else if (cJSON_IsNumber(item) && value == floor(value) && fabs(value) > 999 &&
             fabs(value) < 0x1p63)
        json_write_int(w, (int64_t)value);
    else if (cJSON_IsNumber(item))
        json_write_double(w, value);
    else if (cJSON_IsString(item))
        json_write_string(w, item->valuestring);
    else {
        const bool is_object = cJSON_IsObject(item);
        is_object ? json_begin_object(w) : json_begin_array(w);
        for (const cJSON *child = item->child; child; child = child->next) write_tree(w, child);
        is_object ? json_end_object(w) : json_end_array(w);
    }
}

/* Writes cJSON's tree. Both readers must read from it what `doc` holds: NULL where czero refused
 * the document, so that bytes that are not UTF-8 are written, too. */
static const char *judge_writer(const cJSON *tree, const struct json_doc *doc)
{
    static int n_written;
    struct json_writer w;
    struct json_doc *again;
    char *text;
    size_t n;
    const char *complaint = NULL;
    json_writer_init(&w, n_written++ % 2 * 2);
    write_tree(&w, tree);
    if (json_writer_take(&w, &text, &n) != CZ_OK) return cz_last_error();
    cJSON *read = cJSON_ParseWithLengthOpts(text, n + 1, NULL, true);
    const cz_status st = json_parse(text, n, "written", JSON_STRICT, &again);
    if (!read) complaint = "cJSON refuses what was written";
    if (st == CZ_OK && read && !is_same(json_root(again), read)) complaint = "it is read otherwise";
    if (doc && st != CZ_OK) complaint = cz_last_error();
    if (doc && read && !is_same(json_root(doc), read)) complaint = "another tree was written";
    json_free(again);
    cJSON_Delete(read);
    free(text);
    return complaint;
}

static struct cost {
    double bytes, ns;
} ours, theirs; /* of the last document */

static struct cost cost_so_far(void)
{
    const struct mallinfo2 heap = mallinfo2();
    return (struct cost){(double)(heap.uordblks + heap.hblkhd), (double)clock_now_ns()};
}

/* NULL, or what the readers disagree about. `text` has a NUL after its n bytes. */
static const char *judge(const char *text, size_t n, const char *name)
{
    struct json_doc *doc, *config = NULL;
    const char *complaint = NULL;
    const struct cost before = cost_so_far();
    cJSON *tree = cJSON_ParseWithLengthOpts(text, n + 1, NULL, true);
    const struct cost middle = cost_so_far();
    const cz_status st = json_parse(text, n, name, JSON_STRICT, &doc);
    const struct cost after = cost_so_far();
    theirs = (struct cost){middle.bytes - before.bytes, middle.ns - before.ns};
    ours = (struct cost){after.bytes - middle.bytes, after.ns - middle.ns};
    n_neither += st != CZ_OK && !tree;
    n_both += st == CZ_OK && tree;
    if (tree && st != CZ_OK && !is_known_refusal(text, n, cz_last_error()))
        complaint = cz_last_error();
    if (tree && st == CZ_OK && !is_same(json_root(doc), tree)) complaint = "cJSON reads otherwise";
    if (tree && st == CZ_OK && json_count(json_root(doc)) > 0 && /* a superset of strict JSON */
        (json_parse(text, n, name, JSON_CONFIG, &config) || !is_same(json_root(config), tree)))
        complaint = "the dialect of configs reads otherwise";
    if (tree && !complaint) complaint = judge_writer(tree, doc);
    n_long_numbers += !tree && st == CZ_OK;
    if (!tree && st == CZ_OK && !has_long_number(text)) complaint = "cJSON refuses it";
    json_free(config);
    json_free(doc);
    cJSON_Delete(tree);
    return complaint;
}

/* ---- random documents ------------------------------------------------------------------------ */

static uint64_t dice = 42;

static uint32_t roll(uint32_t n)
{
    return (uint32_t)(rng_mix64(dice += 0x9e3779b97f4a7c15u) >> 32) % n;
}

static void put_one_of(struct json_writer *w, const char *const *list, size_t n)
{
    json_write_text(w, list[roll((uint32_t)n)]);
}
#define PUT(w, list) put_one_of(w, list, CZ_ARRAY_LEN(list))

static void put_string(struct json_writer *w)
{
    static const char *const wide[] = {"\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf",
                                       "\xf0\x9f\x98\x80"};
    json_write_text(w, "\"");
    for (uint32_t i = roll(12); i > 0; i--) {
        const uint32_t kind = roll(5), code = roll(2000) ? 1 + roll(0xd7ff) : 0;
        if (kind == 0) json_write_format(w, "\\%c", "\"\\/bfnrt"[roll(8)]);
        if (kind == 1) json_write_format(w, roll(2) ? "\\u%04x" : "\\u%04X", code);
        if (kind == 2)
            json_write_format(w, "\\u%04x\\u%04X", 0xd800 + roll(0x400), 0xdc00 + roll(0x400));
        if (kind == 3) PUT(w, wide);
        if (kind == 4) json_write_format(w, "%c", ']' + (int)roll(0x7f - ']'));
    }
    json_write_text(w, "\"");
}

static void put_number(struct json_writer *w)
{
    static const char *const numbers[] = {"0",      "-0",     "1E+5",
                                          "0.1e-2", "-1e400", "9007199254740993"};
    const int64_t bits = (int64_t)((uint64_t)roll(UINT32_MAX) << 32 | roll(UINT32_MAX));
    const uint32_t kind = roll(5);
    if (kind == 0) PUT(w, numbers);
    if (kind == 1) json_write_format(w, "%" PRId64, bits);
    if (kind == 2)
        json_write_format(w, "%d.%ue%d", (int)roll(99) - 50, roll(9999), (int)roll(640) - 320);
    if (kind == 3) json_write_format(w, "%.*f", (int)roll(50), (double)bits);
    if (kind == 4) json_write_format(w, "%d", (int)roll(2000) - 1000);
}

static void put_value(struct json_writer *w, uint32_t depth)
{
    static const char *const words[] = {"true", "false", "null"};
    static const char *const blanks[] = {"", "", " ", "\n", "\t\r"};
    const uint32_t kind = roll(depth > 3 ? 5 : 9), n = kind < 5 ? 0 : roll(12);
    const bool is_object = kind % 2;
    PUT(w, blanks);
    if (kind == 0) PUT(w, words);
    if (kind == 1 || kind == 2) put_number(w);
    if (kind == 3 || kind == 4) put_string(w);
    if (kind > 4) json_write_text(w, is_object ? "{" : "[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) json_write_text(w, ",");
        PUT(w, blanks);
        if (is_object)
            json_write_format(w, "\"%u\\n\xc3\xa9\"%s:", roll(200) ? i : 0, roll(2) ? " " : "");
        put_value(w, depth + 1);
    }
    if (kind > 4) json_write_text(w, is_object ? "}" : "]");
    PUT(w, blanks);
}

static void put_document(struct json_writer *w)
{
    const bool is_object = roll(2);
    const uint32_t depth = roll(20) ? 0 : JSON_DEPTH_MAX - 8 + roll(16);
    if (roll(100) == 0) json_write_text(w, "\xef\xbb\xbf");
    for (uint32_t i = 0; i < depth; i++) json_write_text(w, is_object ? "{\"a\":" : "[");
    put_value(w, depth ? 4 : 0);
    for (uint32_t i = 0; i < depth; i++) json_write_text(w, is_object ? "}" : "]");
}

/* One to three bytes replaced, inserted or deleted, or the end cut off; `text` has space for it. */
static size_t damage(char *text, size_t n)
{
    static const char bytes[] = "{}[]\",:\\u'/01289-+.eEtruflsn \n\x01\x0b\x1f\x7f\xff\xc3\xed\xa0";
    for (uint32_t i = 1 + roll(3); i > 0; i--) {
        const size_t at = roll((uint32_t)n + 1);
        const uint32_t kind = roll(20);
        if (kind == 0) n = at;
        if (kind > 0 && kind < 8 && at < n) memmove(text + at, text + at + 1, --n - at);
        if (kind > 14) memmove(text + at + 1, text + at, n++ - at);
        if (kind > 7 && at < n) text[at] = bytes[roll(sizeof bytes)];
    }
    text[n] = '\0';
    return n;
}

START_TEST(random_documents_are_read_and_written_as_by_cjson)
{
    struct json_writer w;
    char *made;
    size_t n;
    json_writer_init(&w, 0);
    for (int i = 0; i < 10000; i++) {
        put_document(&w);
        ck_ok(json_writer_take(&w, &made, &n));
        char *text = realloc(made, n + 4);
        ck_assert_ptr_nonnull(text);
        if (i % 2) n = damage(text, n);
        const char *complaint = judge(text, n, "document");
        ck_assert_msg(!complaint, "document %d: %s\n%.*s", i, complaint, (int)n, text);
        free(text);
    }
    printf("documents read by both %d, by neither %d, by czero alone (long numbers) %d\n", n_both,
           n_neither, n_long_numbers);
    printf("control characters as blanks %d, integers that cJSON rounds %d\n", n_blanks, n_inexact);
    ck_assert(n_both + n_long_numbers > 5000 && n_neither > 1000 && n_blanks > 0 && n_inexact > 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(rules); i++) {
        printf("%s: %d\n", rules[i].words, rules[i].n);
        ck_assert_msg(rules[i].n > 0, "no document shows that cJSON accepts: %s", rules[i].words);
    }
}
END_TEST

/* 0: fine. */
static int judge_path(const char *path)
{
    char *text = NULL;
    size_t n;
    const cz_status st = file_load_named(path, JSON_FILE_NBYTES_MAX, &text, &n);
    if (text) text[n] = '\0';
    const char *complaint = st ? cz_last_error() : judge(text, n, path);
    if (complaint) fprintf(stderr, "%s: %s\n", path, complaint);
    free(text);
    return complaint != NULL;
}

static int visit(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)ftw;
    const size_t n = strlen(path);
    return kind == FTW_F && n > 5 && strcmp(path + n - 5, ".json") == 0 ? judge_path(path) : 0;
}

START_TEST(files_of_the_fixtures_are_read_as_by_cjson)
{
    const char *const folders[] = {test_fixture(""), CZ_SOURCE_DIR "/tests/fixtures",
                                   CZ_SOURCE_DIR "/configs"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(folders); i++)
        ck_assert_int_eq(nftw(folders[i], visit, 16, FTW_PHYS), 0);
    printf("files read by both %d, by neither %d\n", n_both, n_neither);
    ck_assert_int_gt(n_both, 100);
}
END_TEST

/* Documents of programs must be read by both. */
int main(int argc, char **argv)
{
    const TTest *const cases[] = {random_documents_are_read_and_written_as_by_cjson,
                                  files_of_the_fixtures_are_read_as_by_cjson};
    for (int i = 1; i < argc; i++) {
        if (judge_path(argv[i]) != 0 || n_both != i) return EXIT_FAILURE;
        printf("%s: czero %.2f MB, %.2f ms; cJSON %.2f MB, %.2f ms\n", argv[i], ours.bytes / 1e6,
               ours.ns / 1e6, theirs.bytes / 1e6, theirs.ns / 1e6);
    }
    if (argc > 1) return EXIT_SUCCESS;
    return test_run("formats/json_cjson", cases, (int)CZ_ARRAY_LEN(cases));
}
