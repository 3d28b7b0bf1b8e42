/* Claims: the nearest name is found over a letter added, dropped, replaced or swapped, in any case
 * of letters, with "_" for "-", and from its beginning or end; what is far is no suggestion; of two
 * that are as close the first one is named. */
#include "base/nearest.h"
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

START_TEST(the_first_of_equals_stays)
{
    struct nearest search = nearest_begin("llama-xb");
    nearest_consider(&search, "llama-1b");
    nearest_consider(&search, "llama-7b");
    ck_assert_str_eq(search.best, "llama-1b");
}
END_TEST

TEST_MAIN("base/nearest", close_names_are_found, far_names_are_not, the_first_of_equals_stays)
