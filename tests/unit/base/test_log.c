/* Claims: lines reach the sink by level and subsystem; warnings pass every mask and come from every
 * rank; what was asked for by name passes every level, from rank 0; arguments of a line that is not
 * shown are not evaluated; several ranks show rank and step; lines of threads do not mix; a line
 * longer than the buffer is cut between characters. */
#include "base/log.h"
#include "tests/support/check_main.h"

#include <pthread.h>
#include <string.h>

static struct {
    int n;
    enum cz_log_level level;
    char last[4096];
} seen;

static void keep(enum cz_log_level level, const char *line, void *user)
{
    ck_assert_ptr_eq(user, &seen);
    seen.n++;
    seen.level = level;
    snprintf(seen.last, sizeof seen.last, "%s", line);
}

static void listen(enum cz_log_level level, unsigned mask)
{
    cz_log_set_sink(keep, &seen);
    log_set_level(level, mask);
    seen.n = 0;
}

static bool shows(enum cz_log_level level, enum log_subsystem sub)
{
    int before = seen.n;
    LOGV(level, sub, "level %d", (int)level);
    ck_assert_int_eq(seen.n - before, log_enabled(level, sub));
    return seen.n > before;
}

START_TEST(without_a_sink_nothing_is_evaluated)
{
    int evaluated = 0;
    ck_assert(!log_enabled(LOG_WARN, SUB_ENGINE));
    LOGV(LOG_WARN, SUB_ENGINE, "%d", ++evaluated);
    ck_assert_int_eq(evaluated, 0);
    listen(LOG_INFO, SUB_ALL);
    LOGV(LOG_STEP, SUB_ENGINE, "%d", ++evaluated);
    ck_assert_int_eq(evaluated, 0);
    LOGV(LOG_INFO, SUB_ENGINE, "%d", ++evaluated);
    ck_assert_int_eq(evaluated, 1);
    cz_log_set_sink(NULL, NULL);
    LOGV(LOG_INFO, SUB_ENGINE, "%d", ++evaluated);
    ck_assert_int_eq(evaluated, 1);
}
END_TEST

START_TEST(levels_promise_volume)
{
    listen(LOG_INFO, SUB_ALL); /* also the default */
    ck_assert(shows(LOG_ASKED, SUB_ENGINE));
    ck_assert(shows(LOG_WARN, SUB_ENGINE));
    ck_assert(shows(LOG_INFO, SUB_ENGINE));
    ck_assert(!shows(LOG_STEP, SUB_ENGINE));
    log_set_level(LOG_TENSOR, SUB_ALL);
    ck_assert(shows(LOG_TENSOR, SUB_DATA));
    ck_assert_int_eq(seen.level, LOG_TENSOR);
    ck_assert_str_eq(seen.last, "level 5");
    log_set_level(LOG_WARN, SUB_ALL);
    ck_assert(!shows(LOG_INFO, SUB_ENGINE));
    ck_assert(shows(LOG_WARN, SUB_ENGINE));
    log_set_level(LOG_ASKED, SUB_ALL);
    ck_assert(!shows(LOG_WARN, SUB_ENGINE));
    ck_assert(shows(LOG_ASKED, SUB_ENGINE));
}
END_TEST

START_TEST(masks_pick_subsystems)
{
    listen(LOG_BUCKET, SUB_ZERO | SUB_COMM);
    ck_assert(shows(LOG_BUCKET, SUB_ZERO));
    ck_assert(shows(LOG_INFO, SUB_COMM));
    ck_assert(!shows(LOG_INFO, SUB_OPS));
    ck_assert(shows(LOG_WARN, SUB_OPS));
    ck_assert(shows(LOG_ASKED, SUB_OPS));
}
END_TEST

START_TEST(ranks_other_than_0_only_warn)
{
    listen(LOG_TENSOR, SUB_ALL);
    log_set_rank(3, 8);
    log_set_step(120);
    ck_assert(!shows(LOG_INFO, SUB_ENGINE));
    ck_assert(!shows(LOG_ASKED, SUB_ENGINE));
    ck_assert(shows(LOG_WARN, SUB_ENGINE));
    ck_assert_str_eq(seen.last, "[rank 3/8 step 120] level 0");
    log_set_rank(0, 8);
    ck_assert(shows(LOG_INFO, SUB_ENGINE));
    ck_assert_str_eq(seen.last, "level 1");
    log_set_common(true);
    ck_assert(shows(LOG_WARN, SUB_ENGINE));
    log_set_rank(1, 8);
    ck_assert(!shows(LOG_WARN, SUB_ENGINE));
    log_set_common(false);
    ck_assert(shows(LOG_WARN, SUB_ENGINE));
    ck_assert_str_eq(seen.last, "[rank 1/8 step 120] level 0");
    log_set_rank(0, 1);
    ck_assert(shows(LOG_INFO, SUB_ENGINE));
    ck_assert_str_eq(seen.last, "level 1");
}
END_TEST

START_TEST(a_long_line_is_cut_between_characters)
{
    char text[3000];
    listen(LOG_INFO, SUB_ALL);
    for (size_t shift = 0; shift < 3; shift++) { /* "€" is three bytes: cut at each of them */
        memset(text, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
        LOGV(LOG_INFO, SUB_ENGINE, "%s", text);
        size_t len = strlen(seen.last);
        ck_assert_uint_ge(len, 2040);
        ck_assert_uint_eq((len - shift) % 3, 0);
        ck_assert_int_eq(strncmp(seen.last, text, len), 0);
    }
}
END_TEST

START_TEST(a_name_begins_no_line_of_its_own)
{
    listen(LOG_INFO, SUB_ALL);
    LOGV(LOG_INFO, SUB_ENGINE, "model %s", "x\nczero: \x1b[0m\xc2\x9b\xe2\x80\xae\xff");
    ck_assert_str_eq(seen.last, "model x\\nczero: \\x1b[0m\\u009b\\u202e\\xff");
}
END_TEST

static void *chatter(void *user)
{
    for (int i = 0; i < 500; i++) LOGV(LOG_INFO, SUB_ENGINE, "%s", (const char *)user);
    return NULL;
}

static void check_whole(enum cz_log_level level, const char *line, void *user)
{
    (void)level;
    size_t len = strspn(line, line[0] == 'a' ? "a" : "b");
    ck_assert_uint_eq(len, 200);
    ck_assert_uint_eq(strlen(line), 200);
    ++*(int *)user; /* the logger's lock is held */
}

START_TEST(lines_of_threads_do_not_mix)
{
    static char a[201], b[201];
    int n = 0;
    pthread_t threads[2];
    memset(a, 'a', 200);
    memset(b, 'b', 200);
    log_set_level(LOG_INFO, SUB_ALL);
    cz_log_set_sink(check_whole, &n);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, chatter, a), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, chatter, b), 0);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(n, 1000);
}
END_TEST

TEST_MAIN("base/log", without_a_sink_nothing_is_evaluated, levels_promise_volume,
          masks_pick_subsystems, ranks_other_than_0_only_warn,
          a_long_line_is_cut_between_characters, a_name_begins_no_line_of_its_own,
          lines_of_threads_do_not_mix)
