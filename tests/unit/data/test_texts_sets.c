/* Claims: labels with fractions are values, lists are sets of classes, by names or by zeros and
 * ones; what they are follows from the data or is as asked for; batches carry them as targets; bad
 * input ends in a status and a sentence. */
#include "base/status.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/data.h>

#include <math.h>
#include <string.h>

static char dir[64];

static const char *write_text(const char *name, const char *text)
{
    static char path[256];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
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
    ck_assert_msg(cz_texts_open(&o, &t) == CZ_OK, "%s: %s", text, cz_last_error());
    test_tmp_remove(dir);
    return t;
}

static struct cz_texts *open_text(const char *name, const char *text)
{
    return open_with((struct cz_texts_options){0}, name, text);
}

static void refused_with(struct cz_texts_options o, const char *name, const char *text,
                         const char *words)
{
    const char *path = write_text(name, text);
    struct cz_texts *t;
    o.size = sizeof o;
    o.paths = &path;
    o.n_paths = 1;
    ck_assert_msg(cz_texts_open(&o, &t) == CZ_INVALID, "%s: %s", text, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), words), "%s: \"%s\" lacks \"%s\"", text, cz_last_error(),
                  words);
    test_tmp_remove(dir);
}

START_TEST(fractions_are_values)
{
    float value;
    struct cz_texts *t = open_text("a.jsonl", "[\"a\", 1.5]\n[\"b\", 2]\n[\"c\", -3e-1]\n");
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_REGRESSION);
    ck_assert_uint_eq(cz_texts_n_labels(t), 0);
    static const float want[] = {1.5f, 2.0f, -0.3f};
    for (size_t i = 0; i < 3; i++) {
        cz_texts_targets(t, i, &value);
        ck_assert_float_eq(value, want[i]);
        ck_assert_int_eq(cz_texts_label(t, i), 0);
    }
    cz_texts_close(t);
    t = open_text("a.csv", "text,label\na,1.0\nb,2.0\n");
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_REGRESSION);
    cz_texts_close(t);
    /* integers are classes, unless values are asked for */
    t = open_text("a.csv", "text,label\na,1\nb,2\n");
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_SINGLE_LABEL);
    cz_texts_close(t);
    const struct cz_texts_options values = {.problem = CZ_PROBLEM_REGRESSION,
                                            .labels_optional = true};
    t = open_with(values, "a.jsonl", "[\"a\", 4]\n[\"b\", null]\n");
    cz_texts_targets(t, 0, &value);
    ck_assert_float_eq(value, 4);
    cz_texts_targets(t, 1, &value);
    ck_assert(isnan(value) && cz_texts_label(t, 1) < 0);
    cz_texts_close(t);
    refused_with(values, "a.jsonl", "[\"a\", \"x\"]\n", "a.jsonl:1: the label \"x\" is no number");
    refused_with(values, "a.jsonl", "[\"a\", 1e300]\n", "is no number of fp32");
    refused_with(values, "a.jsonl", "{\"text\": \"a\", \"label\": [1]}", "the labels are lists");
    refused_with((struct cz_texts_options){0}, "a.jsonl", "[\"a\", 1.5]\n[\"b\", \"x\"]\n",
                 "labels must be of one kind");
}
END_TEST

static void targets_are(const struct cz_texts *t, size_t i, const float *want, size_t n)
{
    float targets[8];
    cz_texts_targets(t, i, targets);
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(targets[k] == want[k], "example %zu, class %zu: %g", i, k,
                      (double)targets[k]);
}

START_TEST(lists_are_sets)
{
    struct cz_texts *t =
        open_text("a.jsonl", "{\"text\": \"a\", \"labels\": [\"x\", \"b\", \"x\"]}\n"
                             "{\"text\": \"b\", \"labels\": []}\n"
                             "{\"text\": \"c\", \"labels\": [\"x\"]}\n");
    ck_assert_int_eq(cz_texts_problem(t), CZ_PROBLEM_MULTI_LABEL);
    ck_assert_uint_eq(cz_texts_n_labels(t), 2);
    ck_assert_str_eq(cz_texts_labels(t)[1], "x");
    ck_assert_uint_eq(cz_texts_n_of_label(t, 1), 2);
    targets_are(t, 0, (const float[]){1, 1}, 2);
    targets_are(t, 1, (const float[]){0, 0}, 2);
    targets_are(t, 2, (const float[]){0, 1}, 2);
    cz_texts_close(t);
    /* zeros and ones, as many as there are classes */
    t = open_text("a.jsonl", "{\"text\": \"a\", \"labels\": [0, 1, 1]}\n"
                             "{\"text\": \"b\", \"labels\": [false, 0.0, true]}\n");
    ck_assert_uint_eq(cz_texts_n_labels(t), 3);
    ck_assert_str_eq(cz_texts_labels(t)[2], "LABEL_2");
    targets_are(t, 0, (const float[]){0, 1, 1}, 3);
    targets_are(t, 1, (const float[]){0, 0, 1}, 3);
    cz_texts_close(t);
    static const char *const names[] = {"r", "g", "b"};
    const struct cz_texts_options known = {
        .labels = names, .n_labels = 3, .problem = CZ_PROBLEM_MULTI_LABEL};
    t = open_with(known, "a.jsonl", "{\"text\": \"a\", \"labels\": [1, 0, 1]}");
    targets_are(t, 0, (const float[]){1, 0, 1}, 3);
    cz_texts_close(t);
    t = open_with(known, "a.jsonl", "{\"text\": \"a\", \"labels\": [\"b\"]}");
    targets_are(t, 0, (const float[]){0, 0, 1}, 3);
    cz_texts_close(t);
    const struct cz_texts_options any = {0};
    refused_with(known, "a.jsonl", "{\"text\": \"a\", \"labels\": [\"y\"]}", "\"y\" is not one of");
    refused_with(any, "a.jsonl",
                 "{\"text\": \"a\", \"labels\": [0, 1]}\n{\"text\": \"a\", \"labels\": [1]}",
                 "a.jsonl:2: the label is not a list of 2 zeros and ones");
    refused_with(any, "a.jsonl",
                 "{\"text\": \"a\", \"labels\": [\"x\"]}\n{\"text\": \"a\", \"labels\": \"x\"}",
                 "is no list, those before it are not");
    refused_with(any, "a.jsonl", "{\"text\": \"a\", \"labels\": [\"x\", null]}",
                 "label 2 of the list");
    refused_with(any, "a.jsonl", "[\"a\", [\"x\"]]", "several labels are a member of an object");
}
END_TEST

START_TEST(batches_carry_targets)
{
    struct cz_texts *t = open_text("a.jsonl", "{\"text\": \"a\", \"labels\": [0, 1]}\n"
                                              "{\"text\": \"bc\", \"labels\": [1, 1]}\n");
    struct cz_tokenizer *bytes;
    struct cz_text_loader *l;
    struct cz_batch b = {.size = sizeof b};
    ck_ok(cz_tokenizer_open("bytes", &bytes));
    for (int64_t rank = 0; rank < 3; rank++) {
        const struct cz_text_loader_options o = {.size = sizeof o,
                                                 .texts = t,
                                                 .tokenizer = bytes,
                                                 .max_len = 8,
                                                 .micro_batch = 1,
                                                 .accumulation = 1,
                                                 .rank = rank,
                                                 .world_size = 3};
        ck_ok(cz_text_loader_open(&o, &l));
        ck_ok(cz_text_loader_next(l, &b));
        const size_t row = cz_text_loader_rows(l)[0];
        if (row == SIZE_MAX) { /* it only fills the batch */
            ck_assert(isnan(b.targets[0]));
            ck_assert_int_eq(b.labels[0], CZ_IGNORE_LABEL);
        } else {
            targets_are(t, row, b.targets, 2);
            ck_assert_int_eq(b.labels[0], 0);
        }
        cz_text_loader_close(l);
    }
    cz_tokenizer_close(bytes);
    cz_texts_close(t);
}
END_TEST

TEST_MAIN("data/texts_sets", fractions_are_values, lists_are_sets, batches_carry_targets)
