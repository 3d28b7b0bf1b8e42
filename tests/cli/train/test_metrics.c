/* Claims: --metrics leaves one whole row per measurement as it happens; a resumed run drops what
 * is past its checkpoint, in the CSV and for TensorBoard, and continues counting; files that are
 * not ours are left alone; failures name the file.
 *
 * With CZ_TEST_METRICS_DIR set, only writes a resumed run there, for test_metrics_files.sh. */
#include "tests/support/check_main.h"
#include "tools/czero/train/metrics.c" /* the tools are no library */

#include <dirent.h>

#define OLD "step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,seconds\n"
#define FIRST                                                                                      \
    "step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,train_loss,train_accuracy,seconds\n"

static struct metrics_row train_row(int64_t step)
{
    return (struct metrics_row){.step = step,
                                .epoch = (double)step / 10,
                                .loss = 1.0 / (double)step,
                                .accuracy = NAN,
                                .macro_f1 = NAN,
                                .weighted_f1 = NAN,
                                .lr = 5e-5,
                                .train_loss = NAN,
                                .train_accuracy = NAN,
                                .seconds = (double)step};
}

static struct metrics_row eval_row(int64_t step)
{
    return (struct metrics_row){.step = step,
                                .epoch = (double)step / 10,
                                .is_eval = true,
                                .loss = 0.75,
                                .accuracy = 0.5,
                                .macro_f1 = 0.25,
                                .weighted_f1 = 1.0 / 3,
                                .lr = NAN,
                                .train_loss = 0.625,
                                .train_accuracy = 0.875,
                                .seconds = (double)step + 0.5};
}

static cz_status write_steps(struct metrics *m, int64_t first, int64_t last)
{
    for (int64_t step = first; step <= last; step++) {
        struct metrics_row row = train_row(step);
        TRY(metrics_write(m, &row));
    }
    struct metrics_row row = eval_row(last);
    return metrics_write(m, &row);
}

static void has_text(const char *path, const char *want)
{
    char text[4096];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    ck_assert_str_eq(text, want);
}

static void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

START_TEST(rows_are_there_as_they_happen)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    struct metrics *m;
    snprintf(csv, sizeof csv, "%s/m.csv", tmp);
    ck_ok(metrics_open(csv, NULL, 0, &m));
    has_text(csv, FIRST);
    ck_ok(write_steps(m, 1, 3));
    has_text(csv, FIRST "1,0.1,train,1,,,,5e-05,,,1.000\n"
                        "2,0.2,train,0.5,,,,5e-05,,,2.000\n"
                        "3,0.3,train,0.333333333,,,,5e-05,,,3.000\n"
                        "3,0.3,eval,0.75,0.5,0.25,0.333333333,,0.625,0.875,3.500\n");
    metrics_close(m);
    ck_ok(metrics_open(csv, NULL, 0, &m)); /* another run, from its beginning */
    has_text(csv, FIRST);
    metrics_close(m);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(a_resumed_run_goes_on)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    struct metrics *m;
    snprintf(csv, sizeof csv, "%s/m.csv", tmp);
    put_text(csv, FIRST "1,0.1,train,1,,,,5e-05,,,1.000\n"
                        "2,0.2,train,0.5,,,,5e-05,,,2.000\n"
                        "2,0.2,eval,0.75,0.5,,,,,,2.500\n"
                        "3,0.3,train,9,,,,5e-05,,,3.000\n"
                        "4,0.4,tra");
    ck_ok(metrics_open(csv, NULL, 2, &m));
    struct metrics_row row = train_row(3);
    ck_ok(metrics_write(m, &row));
    metrics_close(m);
    has_text(csv, FIRST "1,0.1,train,1,,,,5e-05,,,1.000\n"
                        "2,0.2,train,0.5,,,,5e-05,,,2.000\n"
                        "2,0.2,eval,0.75,0.5,,,,,,2.500\n"
                        "3,0.3,train,0.333333333,,,,5e-05,,,5.500\n");
    ck_ok(metrics_open(csv, NULL, 3, &m)); /* nothing to drop */
    metrics_close(m);
    put_text(csv, FIRST "1,0.1,train,1,,,,5e-05,,,1.000\n2,0.2,tr");
    ck_ok(metrics_open(csv, NULL, 9, &m)); /* half a last row */
    metrics_close(m);
    has_text(csv, FIRST "1,0.1,train,1,,,,5e-05,,,1.000\n");
    put_text(csv, "step,epo");
    ck_ok(metrics_open(csv, NULL, 9, &m)); /* half a header */
    metrics_close(m);
    has_text(csv, FIRST);
    test_tmp_remove(tmp);
}
END_TEST

/* The file keeps its columns; a run from its beginning writes all of them. */
START_TEST(a_run_of_an_older_version_goes_on)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    struct metrics *m;
    snprintf(csv, sizeof csv, "%s/m.csv", tmp);
    put_text(csv, OLD "1,0.1,train,1,,,,5e-05,1.000\n2,0.2,train,1,,,,5e-05,2.000\n");
    ck_ok(metrics_open(csv, NULL, 1, &m));
    const struct metrics_row row = eval_row(3);
    ck_ok(metrics_write(m, &row));
    metrics_close(m);
    has_text(csv, OLD "1,0.1,train,1,,,,5e-05,1.000\n"
                      "3,0.3,eval,0.75,0.5,0.25,0.333333333,,4.500\n");
    ck_ok(metrics_open(csv, NULL, 0, &m));
    ck_ok(metrics_write(m, &row));
    metrics_close(m);
    has_text(csv, FIRST "3,0.3,eval,0.75,0.5,0.25,0.333333333,,0.625,0.875,3.500\n");
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(other_files_are_left_alone)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    struct metrics *m;
    snprintf(csv, sizeof csv, "%s/data.csv", tmp);
    put_text(csv, "hello"); /* without a line end, which the beginning of a header lacks, too */
    ck_fails(metrics_open(csv, NULL, 0, &m), CZ_CORRUPT);
    ck_assert_ptr_null(m);
    has_text(csv, "hello");
    put_text(csv, "step,epo\n"); /* a whole line is no beginning */
    ck_fails(metrics_open(csv, NULL, 0, &m), CZ_CORRUPT);
    has_text(csv, "step,epo\n");
    put_text(csv, "text,label\nhello,1\n");
    ck_fails(metrics_open(csv, NULL, 0, &m), CZ_CORRUPT);
    ck_assert_ptr_null(m);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), csv));
    ck_fails(metrics_open(csv, NULL, 5, &m), CZ_CORRUPT);
    has_text(csv, "text,label\nhello,1\n");
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(failures_name_the_file)
{
    struct metrics *m;
    struct metrics_row row = train_row(1);
    ck_fails(metrics_open("/nowhere/m.csv", NULL, 0, &m), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--metrics: cannot write /nowhere/m.csv"));
    ck_fails(metrics_open("/dev/full", NULL, 0, &m), CZ_IO);
    ck_fails(metrics_open(NULL, "/dev/null/tb", 0, &m), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--tensorboard: "));
    ck_ok(metrics_open(NULL, NULL, 0, &m));
    ck_assert_ptr_null(m);
    ck_ok(metrics_write(m, &row));
    metrics_close(m);
}
END_TEST

START_TEST(tensorboard_has_a_file_per_start)
{
    const char *tmp = test_tmp_make();
    char csv[128], tb[128];
    struct metrics *m;
    snprintf(csv, sizeof csv, "%s/m.csv", tmp);
    snprintf(tb, sizeof tb, "%s/new/tb", tmp);
    ck_ok(metrics_open(csv, tb, 0, &m));
    ck_ok(write_steps(m, 1, 2));
    metrics_close(m);
    ck_assert_int_eq(count_files(tb), 1);
    ck_ok(metrics_open(csv, tb, 2, &m));
    metrics_close(m);
    ck_assert_int_eq(count_files(tb), 2);
    test_tmp_remove(tmp);
}
END_TEST

static int write_for_peers(const char *dir)
{
    struct metrics *first, *second;
    if (metrics_open(NULL, dir, 0, &first) != CZ_OK) return EXIT_FAILURE;
    cz_status st = write_steps(first, 1, 6);
    metrics_close(first);
    if (st != CZ_OK || metrics_open(NULL, dir, 4, &second) != CZ_OK) return EXIT_FAILURE;
    st = write_steps(second, 5, 5);
    metrics_close(second);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(void)
{
    const TTest *const cases[] = {
        rows_are_there_as_they_happen, a_resumed_run_goes_on,  a_run_of_an_older_version_goes_on,
        other_files_are_left_alone,    failures_name_the_file, tensorboard_has_a_file_per_start};
    const char *peers_dir = getenv("CZ_TEST_METRICS_DIR");
    if (peers_dir) return write_for_peers(peers_dir);
    return test_run("tools/metrics", cases, CZ_ARRAY_LEN(cases));
}
