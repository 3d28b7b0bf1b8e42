/* Claims: a plain line of progress has the step, the time that is left by the recent steps, the
 * smoothed loss, the rate, and what a run's swap file moved, per second of the step; the first step
 * and pauses count for no time. */
#include "tests/support/check_main.h"
#include "tools/czero/bar.c" /* the tools are no library */
#include "tools/czero/terminal.c"
#include "tools/czero/train/progress.c"

#include <fcntl.h>
#include <string.h>

void tool_put_json_number(FILE *out, double value) /* of tool.c; for --log-json alone */
{
    fprintf(out, "%g", value);
}

static char said[4096];
static int kept_stderr;

/* From here on lines go to a file, which is no terminal. */
static void listen_to_stderr(void)
{
    char path[] = "/tmp/czero-progress-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    (void)unlink(path);
    (void)fflush(stderr);
    kept_stderr = dup(2);
    ck_assert_int_eq(dup2(fd, 2), 2);
    close(fd);
}

static void hear(void)
{
    (void)fflush(stderr);
    ck_assert_int_ge(lseek(2, 0, SEEK_SET), 0);
    const ssize_t n = read(2, said, sizeof said - 1);
    ck_assert_int_ge(n, 0);
    said[n] = '\0';
    ck_assert_int_eq(dup2(kept_stderr, 2), 2);
    close(kept_stderr);
}

static void has(const char *want)
{
    ck_assert_msg(strstr(said, want), "\"%s\" is not in: %s", want, said);
}

/* The clock is the machine's: recent steps are made to have taken two seconds each. */
static void step_of_two_seconds(struct progress *p, const struct progress_step *s)
{
    p->seconds_recent = 2;
    p->last_ns = clock_now_ns() - 2000000000;
    progress_update(p, s);
}

START_TEST(a_line_tells_what_is_left_and_how_fast)
{
    const struct progress_options options = {
        .last_step = 103, .tokens_per_step = 24690, .plain_interval = 1, .lr = 1e-3};
    struct progress_step s = {
        .step = 2, .accuracy = NAN, .loss = 2.5, .lr_next = 5e-4, .grad_norm = 1.5};
    struct progress p;
    s.swaps = true, s.step_s = 2;
    s.swap_read_nbytes = 6e9, s.swap_written_nbytes = 3e9, s.swap_waited_s = 0.5;
    listen_to_stderr();
    progress_begin(&p, &options);
    p.n_steps = 1;
    step_of_two_seconds(&p, &s);
    s.step = 3, s.loss = 0.5;
    step_of_two_seconds(&p, &s);
    progress_end(&p);
    hear();
    has("step 2/103");
    has("eta 3:22"); /* 101 steps of two seconds */
    has("loss 2.5000");
    has("12.3k tok/s");
    has("lr 1.00e-03"); /* the step's own, not the next one's */
    has("loss 0.5000"); /* likewise */
    has("lr 5.00e-04");
    has("norm 1.500");
    has("disk 3.00+1.50 GB/s, 25% exposed");
}
END_TEST

TEST_MAIN("tools/progress", a_line_tells_what_is_left_and_how_fast)
