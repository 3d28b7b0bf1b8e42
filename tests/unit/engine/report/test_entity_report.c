/* Claims: entities and their report are seqeval's to the byte, for tags of several schemes
 * (tests/interop/models/entity_report_check.py made the goldens and compares thousands more);
 * nothing at all is zeros; metrics go by name. */
#include "engine/report/entity_report.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define N_CLASSES 32
#define N_WORDS   16

static const char *names[N_CLASSES];
static size_t n_names;

static int32_t class_of(const char *name)
{
    for (size_t k = 0; k < n_names; k++)
        if (strcmp(names[k], name) == 0) return (int32_t)k;
    ck_assert_uint_lt(n_names, N_CLASSES);
    names[n_names] = name;
    return (int32_t)n_names++;
}

/* Classes of tags between spaces; returns their number. `tags` is cut up. */
static size_t read_tags(char *tags, int32_t *classes)
{
    size_t n = 0;
    char *save;
    for (char *tag = strtok_r(tags, " ", &save); tag; tag = strtok_r(NULL, " ", &save)) {
        ck_assert_uint_lt(n, N_WORDS);
        classes[n++] = class_of(tag);
    }
    return n;
}

static void check_golden(const char *path)
{
    static int32_t labels[64][N_WORDS], found[64][N_WORDS];
    size_t n_words[64], n_rows = 0, nbytes;
    char *text, *printed;
    struct entity_scheme *scheme;
    n_names = 0;
    ck_ok(file_load(test_fixture(path), 1 << 16, &text, NULL));
    const int digits = atoi(text);
    char *line = strchr(text, '\n') + 1;
    for (; *line != '\n'; n_rows++) {
        char *end = strchr(line, '\n'), *tab = strchr(line, '\t');
        *end = *tab = '\0';
        n_words[n_rows] = read_tags(line, labels[n_rows]);
        ck_assert_uint_eq(read_tags(tab + 1, found[n_rows]), n_words[n_rows]);
        line = end + 1;
    }
    ck_ok(entity_scheme_create(names, n_names, &scheme));
    struct entity_counts *counts = calloc(entity_scheme_n_types(scheme), sizeof *counts);
    for (size_t i = 0; i < n_rows; i++)
        ck_ok(entity_count(scheme, labels[i], found[i], n_words[i], counts));
    FILE *stream = open_memstream(&printed, &nbytes);
    ck_ok(entity_report_print(stream, scheme, counts, digits));
    fclose(stream);
    ck_assert_str_eq(printed, line + 1);
    free(printed);
    free(counts);
    free(text);
    entity_scheme_destroy(scheme);
}

START_TEST(reports_are_seqevals)
{
    check_golden("entity_report/iob2.txt");
    check_golden("entity_report/iob1.txt");
    check_golden("entity_report/iobes.txt");
}
END_TEST

static struct entity_scheme *scheme_of(void)
{
    static const char *const few[] = {"O", "B-A", "I-A", "I-B-2", "PER", "B"};
    struct entity_scheme *s;
    ck_ok(entity_scheme_create(few, 6, &s));
    return s;
}

START_TEST(types_are_behind_the_dash)
{
    static const char *const want[] = {"A", "B", "B-2", "PER", "_"};
    struct entity_scheme *s = scheme_of();
    ck_assert_uint_eq(entity_scheme_n_types(s), 5);
    for (size_t i = 0; i < 5; i++) ck_assert_str_eq(entity_scheme_type(s, i), want[i]);
    /* a type that changes is another entity, also without a B; a word without a class is outside */
    static const int32_t classes[] = {1, 2, 3, 3, -1, 2, 4, 4, 0, 5};
    static const struct entity want_found[] = {
        {0, 0, 1}, {2, 2, 3}, {0, 5, 5}, {3, 6, 7}, {1, 9, 9}};
    struct entity found[10];
    ck_assert_uint_eq(entity_find(s, classes, 10, found), 5);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(found[i].type, want_found[i].type);
        ck_assert_uint_eq(found[i].first, want_found[i].first);
        ck_assert_uint_eq(found[i].last, want_found[i].last);
    }
    ck_assert_uint_eq(entity_find(s, classes, 0, found), 0);
    entity_scheme_destroy(s);
}
END_TEST

/* The entities of one sentence, as "TYPE first-last" between spaces. */
static void check_found(const char *tags, const char *want)
{
    char text[256], found_text[256] = "";
    int32_t classes[N_WORDS];
    struct entity found[N_WORDS];
    struct entity_scheme *s;
    n_names = 0;
    snprintf(text, sizeof text, "%s", tags);
    const size_t n = read_tags(text, classes);
    ck_ok(entity_scheme_create(names, n_names, &s));
    const size_t n_found = entity_find(s, classes, n, found);
    for (size_t i = 0, used = 0; i < n_found; i++)
        used += (size_t)snprintf(found_text + used, sizeof found_text - used, "%s%s %zu-%zu",
                                 i ? ", " : "", entity_scheme_type(s, found[i].type),
                                 found[i].first, found[i].last);
    ck_assert_msg(strcmp(found_text, want) == 0, "%s: %s instead of %s", tags, found_text, want);
    entity_scheme_destroy(s);
}

START_TEST(names_without_a_letter_and_a_dash_are_types)
{
    check_found("ADV ADV ADJ O ADV", "ADV 0-1, ADJ 2-2, ADV 4-4");
    check_found("LABEL_1 LABEL_0 LABEL_1", "LABEL_1 0-0, LABEL_0 1-1, LABEL_1 2-2");
    check_found("X O X X", "X 0-0, X 2-3");
    check_found("B I E S", "B 0-0, I 1-1, E 2-2, S 3-3");
    check_found("PER B-PER I-PER PER", "PER 0-0, PER 1-3");
    check_found("B_PER I_PER", "B_PER 0-0, I_PER 1-1");
    check_found("PER-B -LOC BB-LOC", "PER-B 0-0, -LOC 1-1, BB-LOC 2-2");
    check_found("O. . O , 名", "O. 0-0, . 1-1, , 3-3, 名 4-4");
    check_found("_ O _ B-", "_ 0-0, _ 2-2, _ 3-3");
    check_found("X-LOC Y-LOC b-LOC", "X-LOC 0-0, Y-LOC 1-1, b-LOC 2-2");
    check_found("O-LOC B-LOC O-LOC", "LOC 1-1");
}
END_TEST

START_TEST(letters_of_other_schemes_are_tags)
{
    check_found("U-PER U-PER B-LOC L-LOC L-LOC", "PER 0-0, PER 1-1, LOC 2-3, LOC 4-4");
    check_found("B-PER I-PER L-PER I-PER", "PER 0-2, PER 3-3");
    check_found("B-NAME M-NAME E-NAME W-NAME W-NAME", "NAME 0-2, NAME 3-3, NAME 4-4");
    check_found("M-NAME W-NAME B-NAM", "M-NAME 0-0, W-NAME 1-1, NAM 2-2");
    check_found("S-PER S-PER E-PER E-PER", "PER 0-0, PER 1-1, PER 2-2, PER 3-3");
}
END_TEST

START_TEST(metrics_go_by_name)
{
    static const struct entity_counts counts[] = {{4, 2, 1}, {0, 0, 0}, {1, 2, 1}};
    const struct entity_summary s = entity_report_compute(counts, 3, NULL);
    static const struct {
        const char *name;
        double value;
    } want[] = {{"precision", 2.0 / 4},
                {"recall", 2.0 / 5},
                {"f1", 4.0 / 9},
                {"macro_precision", 0.5},
                {"macro_recall", (0.25 + 1) / 2},
                {"macro_f1", (1.0 / 3 + 2.0 / 3) / 2},
                {"weighted_f1", (4.0 / 3 + 2.0 / 3) / 5}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(want); i++)
        ck_assert_double_eq_tol(entity_report_metric(&s, want[i].name), want[i].value, 1e-15);
    ck_assert(isnan(entity_report_metric(&s, "accuracy")));
    const struct entity_summary none = entity_report_compute(counts + 1, 1, NULL);
    ck_assert_double_eq(none.micro.f1, 0);
    ck_assert_double_eq(none.macro.f1, 0);
    ck_assert_double_eq(none.weighted.f1, 0);
}
END_TEST

START_TEST(failures_are_named)
{
    struct entity_scheme *s = scheme_of();
    static const struct entity_counts counts[5];
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    ck_fails(entity_report_print(full, s, counts, 2), CZ_IO);
    fclose(full);
    ck_fails(entity_report_print(stdout, s, counts, 7), CZ_INVALID);
    entity_scheme_destroy(s);
}
END_TEST

TEST_MAIN("engine/entity_report", reports_are_seqevals, types_are_behind_the_dash,
          names_without_a_letter_and_a_dash_are_types, letters_of_other_schemes_are_tags,
          metrics_go_by_name, failures_are_named)
