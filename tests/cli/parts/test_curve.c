/* Claims: --curve has its header at once and a row per step as it happens, with digits that read
 * back to the same numbers; a resumed run drops what is past its checkpoint and continues; files
 * that are no curve stay as they are; what cannot be opened, read or written is reported with the
 * name.
 */
#include "tests/support/check_main.h"
#include "tools/czero/train/curve.c" /* the tools are no library */

#define FIRST "step,loss,lr_next,grad_norm,loss_scale\n"

static struct progress_step step_of(int64_t step)
{
    return (struct progress_step){
        .step = step, .loss = 1.0 / 3, .lr_next = 0.1 + 0.2, .grad_norm = 2, .loss_scale = 65536};
}

static void has_text(const char *path, const char *want)
{
    char text[4096];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
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

static void write_step(struct curve *c, int64_t step)
{
    struct progress_step s = step_of(step);
    ck_ok(curve_write(c, &s));
}

START_TEST(rows_are_there_as_they_happen)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    struct curve *c;
    snprintf(csv, sizeof csv, "%s/c.csv", tmp);
    ck_ok(curve_open(csv, 0, &c));
    has_text(csv, FIRST);
    write_step(c, 1);
    has_text(csv, FIRST "1,0.333333333,0.30000000000000004,2,65536\n");
    curve_close(c);
    ck_ok(curve_open(csv, 0, &c)); /* another run, from its beginning */
    has_text(csv, FIRST);
    curve_close(c);
    remove(csv);
    ck_ok(curve_open(csv, 5, &c)); /* a resumed run without one before */
    has_text(csv, FIRST);
    curve_close(c);
    test_tmp_remove(tmp);
}
END_TEST

static int n_warned;
static char warning[512];

static void keep_warning(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level != LOG_WARN) return;
    n_warned++;
    snprintf(warning, sizeof warning, "%s", line);
}

/* `before` continued after `step`: `after` and the row of the next step; warned where rows lack. */
static void goes_on(const char *csv, const char *before, int64_t step, const char *after,
                    bool is_warned)
{
    struct curve *c;
    char want[1024];
    n_warned = 0;
    put_text(csv, before);
    ck_ok(curve_open(csv, step, &c));
    has_text(csv, after);
    write_step(c, step + 1);
    curve_close(c);
    snprintf(want, sizeof want, "%s%lld,0.333333333,0.30000000000000004,2,65536\n", after,
             (long long)step + 1);
    has_text(csv, want);
    ck_assert_int_eq(n_warned, is_warned);
}

START_TEST(a_resumed_run_goes_on)
{
    const char *tmp = test_tmp_make();
    char csv[128];
    snprintf(csv, sizeof csv, "%s/c.csv", tmp);
    cz_log_set_sink(keep_warning, NULL);
    goes_on(csv, FIRST "1,5,0,1,1\n2,4,0,1,1\n3,3,0,1,1\n4,2,0", 2, FIRST "1,5,0,1,1\n2,4,0,1,1\n",
            false);
    goes_on(csv, FIRST "1,5,0,1,1\n2,4,0,1,1\n", 2, FIRST "1,5,0,1,1\n2,4,0,1,1\n", false);
    goes_on(csv, FIRST "1,5,0,1,1\n2,4,0", 2, FIRST "1,5,0,1,1\n", true);
    ck_assert_ptr_nonnull(strstr(warning, "c.csv ends at step 1, but the run continues after "
                                          "step 2: rows are missing"));
    goes_on(csv, FIRST, 1, FIRST, true);
    ck_assert_ptr_nonnull(strstr(warning, "ends at step 0"));
    goes_on(csv, "", 1, FIRST, false);
    cz_log_set_sink(NULL, NULL);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(what_is_no_curve_stays)
{
    static const char *const others[] = {"hello", "text,label\na,b\n", "step,loss\n1,2\n",
                                         "step,loss,lr_next,grad_norm,loss_scale"};
    const char *tmp = test_tmp_make();
    char csv[128];
    snprintf(csv, sizeof csv, "%s/data.csv", tmp);
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++) {
        struct curve *c;
        put_text(csv, others[i]);
        ck_fails(curve_open(csv, 3, &c), CZ_CORRUPT);
        ck_assert_ptr_null(c);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), csv));
        has_text(csv, others[i]);
    }
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(failures_name_the_file)
{
    const char *tmp = test_tmp_make();
    struct curve *c;
    struct progress_step s = step_of(1);
    ck_fails(curve_open("/nowhere/c.csv", 0, &c), CZ_IO);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--curve: cannot write /nowhere/c.csv: No such"));
    ck_fails(curve_open("/nowhere/c.csv", 3, &c), CZ_IO);
    ck_fails(curve_open(tmp, 3, &c), CZ_IO); /* a folder */
    ck_fails(curve_open("/dev/full", 0, &c), CZ_IO);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--curve: cannot write /dev/full: No space"));
    ck_ok(curve_open("/dev/null", 0, &c));
    ck_assert_ptr_nonnull(freopen("/dev/full", "w", c->file));
    ck_fails(curve_write(c, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "--curve: cannot write /dev/null: No space"));
    curve_close(c);
    ck_ok(curve_write(NULL, &s));
    curve_close(NULL);
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN("cli/curve", rows_are_there_as_they_happen, a_resumed_run_goes_on, what_is_no_curve_stays,
          failures_name_the_file)
