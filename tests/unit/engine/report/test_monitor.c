/* Claims: csv files have DeepSpeed's names, header, line ends and numbers, and a second run does
 * not repeat the header; TensorBoard's file appears where DeepSpeed puts it; failures are named and
 * leave whole rows.
 *
 * With CZ_TEST_MONITOR_DIR set, only writes a small run there, for test_monitor_files.sh. */
#include "engine/report/monitor.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

static void has_text(const char *dir, const char *name, const char *want)
{
    char path[512], *text;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(file_load(path, 1 << 20, &text, NULL));
    ck_assert_str_eq(text, want);
    free(text);
}

static int count_files(const char *dir, const char *prefix)
{
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

static void write_one(struct monitor *m, const char *name, double value, bool is_int, int64_t x)
{
    struct monitor_event e = {.name = name, .value = value, .is_int = is_int, .x = x};
    ck_ok(monitor_write(m, &e, 1));
}

static const struct monitor_event run[] = {
    {"Train/Samples/lr", 0.0, false, 8},          {"Train/Samples/loss_scale", 65536, true, 8},
    {"Train/Samples/lr", 1e-4, false, 16},        {"Train/Samples/loss_scale", 32768, false, 16},
    {"Train/Samples/lr", 0.1 + 0.2, false, 24},   {"Train/Samples/lr", 1e-5, false, 32},
    {"Train/Samples/train loss", 2.5, false, 32},
};

/* Rows from x on, and half a row, are dropped from our files alone. */
START_TEST(a_restart_drops_rows_of_the_csv)
{
    const char *tmp = test_tmp_make();
    char path[512];
    struct monitor *m;
    const struct config_monitor csv = {.enabled = true, .output_path = tmp, .job_name = "a"};
    static const struct {
        const char *name, *text, *want;
    } files[] = {
        {"Train_Samples_lr.csv", "step,lr\r\n2,1.0\r\n4,1.0\r\n6,1.0\r\n",
         "step,lr\r\n2,1.0\r\n4,1.0\r\n"},
        {"Train_Samples_grad_norm.csv", "step,grad norm\r\n2,1.0\r\n5,",
         "step,grad norm\r\n2,1.0\r\n"},
        {"Other_loss.csv", "step,loss\r\n5,1.0\r\n", "step,loss\r\n"},
        {"other.csv", "step,lr\r\n9,1.0\r\n", "step,lr\r\n9,1.0\r\n"},
        {"lr.csv", "step,lr,more\r\n9,1.0\r\n", "step,lr,more\r\n9,1.0\r\n"},
        {"x_lr.txt", "step,lr\r\n9,1.0\r\n", "step,lr\r\n9,1.0\r\n"},
    };
    ck_ok(monitor_create(&csv, NULL, &m));
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/a/%s", tmp, files[i].name);
        ck_ok(file_save(path, files[i].text, strlen(files[i].text)));
    }
    snprintf(path, sizeof path, "%s/a/folder_lr.csv", tmp);
    ck_ok(file_make_dirs(path)); /* no file of the monitor */
    ck_ok(monitor_restart(m, 5));
    monitor_destroy(m);
    snprintf(path, sizeof path, "%s/a", tmp);
    for (size_t i = 0; i < CZ_ARRAY_LEN(files); i++) has_text(path, files[i].name, files[i].want);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(csv_files_are_deepspeeds)
{
    const char *tmp = test_tmp_make();
    char dir[128];
    struct config_monitor csv = {.enabled = true, .output_path = dir, .job_name = "job"};
    struct monitor *m;
    snprintf(dir, sizeof dir, "%s/new/out/", tmp);
    ck_ok(monitor_create(&csv, NULL, &m));
    ck_assert(monitor_is_enabled(m));
    ck_ok(monitor_write(m, run, CZ_ARRAY_LEN(run)));
    monitor_destroy(m);
    ck_ok(monitor_create(&csv, NULL, &m)); /* a resumed run */
    write_one(m, "Train/Samples/lr", 5, false, 40);
    monitor_destroy(m);
    snprintf(dir, sizeof dir, "%s/new/out/job", tmp);
    has_text(dir, "Train_Samples_lr.csv",
             "step,lr\r\n8,0.0\r\n16,0.0001\r\n24,0.30000000000000004\r\n32,1e-05\r\n40,5.0\r\n");
    has_text(dir, "Train_Samples_loss_scale.csv", "step,loss_scale\r\n8,65536\r\n16,32768.0\r\n");
    has_text(dir, "Train_Samples_train_loss.csv", "step,train loss\r\n32,2.5\r\n");
    ck_assert_int_eq(count_files(dir, "Train"), 3);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(numbers_are_pythons)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {NAN, "nan"},
        {INFINITY, "inf"},
        {-INFINITY, "-inf"},
        {-0.0, "-0.0"},
        {1e16, "1e+16"},
        {1e15, "1000000000000000.0"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {1.0 / 3, "0.3333333333333333"},
        {123456.789, "123456.789"},
        {6e-5, "6e-05"},
    };
    const char *tmp = test_tmp_make();
    struct config_monitor csv = {.enabled = true, .output_path = tmp, .job_name = "j"};
    struct monitor *m;
    char want[1024] = "step,v\r\n", dir[128];
    ck_ok(monitor_create(&csv, NULL, &m));
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        size_t n = strlen(want);
        write_one(m, "v", cases[i].value, false, (int64_t)i);
        snprintf(want + n, sizeof want - n, "%zu,%s\r\n", i, cases[i].text);
    }
    monitor_destroy(m);
    snprintf(dir, sizeof dir, "%s/j", tmp);
    has_text(dir, "v.csv", want);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(headers_are_quoted_like_csv)
{
    const char *tmp = test_tmp_make();
    struct config_monitor csv = {.enabled = true, .output_path = tmp, .job_name = ""};
    struct monitor *m;
    ck_ok(monitor_create(&csv, NULL, &m));
    write_one(m, "a,\"b\"", 1, true, 0);
    monitor_destroy(m);
    has_text(tmp, "a,\"b\".csv", "step,\"a,\"\"b\"\"\"\r\n0,1\r\n");
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(tensorboard_is_where_deepspeed_puts_it)
{
    const char *tmp = test_tmp_make();
    char dir[128];
    struct config_monitor off = {.enabled = false, .output_path = tmp, .job_name = "csv"};
    struct config_monitor on = {.enabled = true, .output_path = tmp, .job_name = "tb"};
    struct monitor *m;
    ck_ok(monitor_create(&off, &on, &m));
    ck_assert(monitor_is_enabled(m));
    ck_ok(monitor_write(m, run, CZ_ARRAY_LEN(run)));
    monitor_destroy(m);
    snprintf(dir, sizeof dir, "%s/tb", tmp);
    ck_assert_int_eq(count_files(dir, "events.out.tfevents."), 1);
    snprintf(dir, sizeof dir, "%s/csv", tmp);
    ck_assert_int_eq(count_files(dir, ""), -1);
    ck_ok(monitor_create(&off, NULL, &m));
    ck_assert(!monitor_is_enabled(m));
    ck_assert(!monitor_is_enabled(NULL));
    ck_ok(monitor_write(m, run, CZ_ARRAY_LEN(run)));
    monitor_destroy(m);
    monitor_destroy(NULL);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(no_path_means_the_current_folder)
{
    const char *tmp = test_tmp_make();
    struct config_monitor csv = {.enabled = true, .output_path = "", .job_name = "job"};
    struct monitor *m;
    ck_assert_int_eq(chdir(tmp), 0);
    ck_ok(monitor_create(&csv, NULL, &m));
    write_one(m, "v", 1, true, 0);
    monitor_destroy(m);
    has_text(tmp, "job/v.csv", "step,v\r\n0,1\r\n");
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(failures_are_named_and_leave_whole_rows)
{
    const char *tmp = test_tmp_make();
    char file[128], dir[128];
    struct config_monitor csv = {.enabled = true, .output_path = file, .job_name = "job"};
    struct monitor *m;
    snprintf(file, sizeof file, "%s/file", tmp);
    ck_ok(file_save(file, "x", 1));
    ck_fails(monitor_create(&csv, NULL, &m), CZ_IO);
    ck_assert_ptr_null(m);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "file"));
    ck_fails(monitor_create(NULL, &csv, &m), CZ_IO);
    csv.output_path = tmp;
    ck_ok(monitor_create(&csv, NULL, &m));
    write_one(m, "v", 1, true, 1);
    struct rlimit limit = {16, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct monitor_event e = {.name = "v", .value = 2.5, .x = 2};
    ck_fails(monitor_write(m, &e, 1), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "v.csv"));
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    write_one(m, "v", 3, true, 3);
    char name[256] = "";
    memset(name, 'n', 201);
    struct monitor_event bad[] = {{.name = ""}, {.name = name}, {.name = "w", .value = 1}};
    ck_fails(monitor_write(m, bad, 3), CZ_INVALID);
    monitor_destroy(m);
    snprintf(dir, sizeof dir, "%s/job", tmp);
    has_text(dir, "v.csv", "step,v\r\n1,1\r\n3,3\r\n");
    has_text(dir, "w.csv", "step,w\r\n0,1.0\r\n"); /* later events are still written */
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(writing_allocates_nothing)
{
    const char *tmp = test_tmp_make();
    struct config_monitor csv = {.enabled = true, .output_path = tmp, .job_name = "csv"};
    struct config_monitor tb = {.enabled = true, .output_path = tmp, .job_name = "tb"};
    struct monitor *m;
    ck_ok(monitor_create(&csv, &tb, &m));
    ck_ok(monitor_write(m, run, CZ_ARRAY_LEN(run)));
    size_t held = mallinfo2().uordblks;
    for (int i = 0; i < 100; i++) ck_ok(monitor_write(m, run, CZ_ARRAY_LEN(run)));
    ck_assert_uint_eq(mallinfo2().uordblks, held);
    monitor_destroy(m);
    test_tmp_remove(tmp);
}
END_TEST

static int write_for_peers(const char *dir)
{
    struct config_monitor csv = {.enabled = true, .output_path = dir, .job_name = "csv"};
    struct config_monitor tb = {.enabled = true, .output_path = dir, .job_name = "tb"};
    struct monitor *m;
    if (monitor_create(&csv, &tb, &m) != CZ_OK) return EXIT_FAILURE;
    cz_status st = monitor_write(m, run, CZ_ARRAY_LEN(run));
    monitor_destroy(m);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(void)
{
    const TTest *const cases[] = {
        csv_files_are_deepspeeds,         numbers_are_pythons,
        headers_are_quoted_like_csv,      tensorboard_is_where_deepspeed_puts_it,
        no_path_means_the_current_folder, failures_are_named_and_leave_whole_rows,
        writing_allocates_nothing,        a_restart_drops_rows_of_the_csv};
    const char *peers_dir = getenv("CZ_TEST_MONITOR_DIR");
    if (peers_dir) return write_for_peers(peers_dir);
    return test_run("engine/monitor", cases, CZ_ARRAY_LEN(cases));
}
