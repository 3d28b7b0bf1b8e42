/* Claims: the nearest name is found over a letter added, dropped, replaced or swapped, in any case
 * of letters, with "_" for "-", and from its beginning or end; what is far is no suggestion; of two
 * that are as close the first one is named. */
#include "base/text/nearest.h"
#include "tests/support/check_main.h"

static const char *const names[] = {
    "train",    "tune",     "plan", "plot",      "export",           "gpt2",       "gpt2-medium",
    "llama-7b", "llama-1b", "lr",   "--seq-len", "warmup_num_steps", "warmup_type"};

static void finds(const char *wanted, const char *expected)
{
    struct nearest search = nearest_begin(wanted);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) nearest_consider(&search, names[i]);
    nearest_consider(&search, NULL);
    if (expected)
        ck_assert_msg(search.best && strcmp(search.best, expected) == 0, "%s: %s, not %s", wanted,
                      search.best ? search.best : "nothing", expected);
    else
        ck_assert_msg(!search.best, "%s: %s", wanted, search.best);
}

START_TEST(close_names_are_found)
{
    finds("trian", "train");  /* swapped */
    finds("trai", "train");   /* dropped */
    finds("trrain", "train"); /* added */
    finds("trein", "train");  /* replaced */
    finds("exprot", "export");
    finds("gpt-2", "gpt2");
    finds("llama-7B", "llama-7b");
    finds("LLAMA_1B", "llama-1b");
    finds("gpt2-med", "gpt2-medium"); /* its beginning */
    finds("medium", "gpt2-medium");   /* its end */
    finds("--seq_len", "--seq-len");
    finds("warmup_steps", "warmup_num_steps"); /* a word less */
    finds("rl", "lr");
    finds("train", "train");
}
END_TEST

START_TEST(far_names_are_not)
{
    static const char *const far[] = {"", "x", "xy", "foo", "bert-base", "inspect", "zero_to_fp32"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(far); i++) finds(far[i], NULL);
    char longer[200];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    finds(longer, NULL);
    struct nearest search = nearest_begin("train");
    nearest_consider(&search, longer);
    ck_assert_ptr_null(search.best);
}
END_TEST

/* Names of up to 63 letters are compared, on either side. */
START_TEST(long_names_are_compared_up_to_a_limit)
{
    char wanted[80], name[80];
    for (int n = 62; n <= 64; n++)
        for (int more = -1; more <= 1; more++) {
            snprintf(wanted, sizeof wanted, "x%.*s", n - 1,
                     "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbcccccccccccccccc"
                     "dddddddddddddddddddd");
            snprintf(name, sizeof name, "y%.*s", n - 1 + more,
                     "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbcccccccccccccccc"
                     "dddddddddddddddddddd");
            struct nearest search = nearest_begin(wanted);
            nearest_consider(&search, name);
            ck_assert_msg((search.best != NULL) == (n <= 63 && n + more <= 63), "%d, %d", n, more);
        }
}
END_TEST

START_TEST(the_first_of_equals_stays)
{
    struct nearest search = nearest_begin("llama-xb");
    nearest_consider(&search, "llama-1b");
    nearest_consider(&search, "llama-7b");
    ck_assert_str_eq(search.best, "llama-1b");
}
END_TEST

TEST_MAIN("base/nearest", close_names_are_found, far_names_are_not,
          long_names_are_compared_up_to_a_limit, the_first_of_equals_stays)
