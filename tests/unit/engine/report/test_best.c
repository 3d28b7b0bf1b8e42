/* Claims: the best evaluations of a run are ranked, the earlier one of equals first, values that
 * are not finite never; the list survives a checkpoint to the bit, and one of another metric, of an
 * older version, or damaged, is not taken. */
#include "engine/report/best.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

static struct engine_best make(bool smaller, size_t n_keep)
{
    struct engine_best b;
    engine_best_init(&b, "accuracy", smaller, n_keep);
    return b;
}

static void expect(const struct engine_best *b, size_t n, const int64_t *steps)
{
    ck_assert_uint_eq(b->n_kept, n);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(b->kept[i].step, steps[i]);
    if (n > 0) ck_assert_int_eq(b->step, steps[0]);
    if (n > 0) ck_assert_double_eq(b->value, b->kept[0].value);
}

START_TEST(three_of_many_are_kept)
{
    struct engine_best b = make(false, 3);
    ck_assert(isnan(b.value));
    ck_assert_int_eq(engine_best_update(&b, NAN, 1), -1);
    ck_assert_int_eq(engine_best_update(&b, INFINITY, 2), -1);
    ck_assert_int_eq(b.n_since, 2);
    ck_assert_int_eq(engine_best_update(&b, 0.5, 10), 0);
    ck_assert_int_eq(b.n_since, 0);
    ck_assert_int_eq(engine_best_update(&b, 0.25, 20), 1);
    ck_assert_int_eq(engine_best_update(&b, 0.5, 30), 1); /* the earlier one of equals is better */
    expect(&b, 3, (const int64_t[]){10, 30, 20});
    ck_assert_int_eq(engine_best_update(&b, 0.25, 40), -1);
    ck_assert_int_eq(engine_best_update(&b, 0.3, 50), 2);
    ck_assert_int_eq(b.n_since, 4);
    ck_assert_int_eq(engine_best_update(&b, 0.75, 60), 0);
    ck_assert_int_eq(b.n_since, 0);
    expect(&b, 3, (const int64_t[]){60, 10, 30});
}
END_TEST

START_TEST(losses_are_better_when_smaller)
{
    struct engine_best b = make(true, 1);
    ck_assert_int_eq(engine_best_update(&b, 2, 1), 0);
    ck_assert_int_eq(engine_best_update(&b, 2, 2), -1);
    ck_assert_int_eq(engine_best_update(&b, 3, 3), -1);
    ck_assert_int_eq(engine_best_update(&b, 1, 4), 0);
    expect(&b, 1, (const int64_t[]){4});
}
END_TEST

static char *state_of(const struct engine_best *b, char *buf)
{
    char members[ENGINE_BEST_NBYTES];
    engine_best_to_json(b, members);
    sprintf(buf, "{%s}", members);
    return buf;
}

START_TEST(a_full_list_survives_a_checkpoint)
{
    char text[ENGINE_BEST_NBYTES + 2];
    struct engine_best b = make(true, ENGINE_BEST_MAX), back = make(true, ENGINE_BEST_MAX);
    ck_assert_str_eq(state_of(&b, text), "{}");
    for (int i = 0; i < ENGINE_BEST_MAX + 2; i++)
        engine_best_update(&b, -1e300 / 3 * (1 + i), INT64_MAX - i);
    engine_best_update(&b, 0, 7);
    ck_assert_uint_eq(b.n_kept, ENGINE_BEST_MAX);
    ck_ok(engine_best_from_json(&back, state_of(&b, text)));
    ck_assert_int_eq(back.n_since, 1);
    ck_assert_int_eq(back.step, INT64_MAX - ENGINE_BEST_MAX - 1);
    ck_assert_double_eq(back.value, b.value);
    ck_assert_uint_eq(back.n_kept, ENGINE_BEST_MAX);
    for (size_t i = 0; i < ENGINE_BEST_MAX; i++) {
        ck_assert_double_eq(back.kept[i].value, b.kept[i].value);
        ck_assert_int_eq(back.kept[i].step, b.kept[i].step);
    }
    /* a run that keeps fewer takes the best of them */
    struct engine_best two = make(true, 2);
    ck_ok(engine_best_from_json(&two, text));
    expect(&two, 2, (const int64_t[]){b.kept[0].step, b.kept[1].step});
    ck_assert_int_eq(engine_best_update(&two, b.kept[1].value, 9), -1);
}
END_TEST

START_TEST(other_lists_are_not_taken)
{
    struct engine_best b = make(false, 3);
    ck_ok(engine_best_from_json(&b, NULL));
    ck_ok(engine_best_from_json(&b, "{}"));
    ck_ok(engine_best_from_json(
        &b, "{\"czero_best\": {\"metric\": \"loss\", \"value\": 1, \"step\": 2}}"));
    ck_assert_uint_eq(b.n_kept, 0);
    ck_ok(engine_best_from_json(&b, "{\"czero_best\": {\"metric\": \"accuracy\"}}"));
    ck_assert_uint_eq(b.n_kept, 0);
    ck_ok(engine_best_from_json(
        &b,
        "{\"czero_best\": {\"metric\": \"accuracy\", \"value\": 0.5, \"step\": 2, \"since\": 1}}"));
    expect(&b, 1, (const int64_t[]){2});
    static const char *const damaged[] = {"1",
                                          "[1]",
                                          "[[0.5, 2], 1]",
                                          "[[0.5, 2], [1]]",
                                          "[[0.5, 2], [1, 2, 3]]",
                                          "[[0.5, 2], {\"a\": 1, \"b\": 2}]",
                                          "[[0.5, 2], [\"a\", 2]]",
                                          "[[0.5, 2], [0.1, 0.5]]"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(damaged); i++) {
        char text[256];
        struct engine_best into = make(false, 3);
        snprintf(text, sizeof text,
                 "{\"czero_best\": {\"metric\": \"accuracy\", \"value\": 0.5, \"step\": 2, "
                 "\"kept\": %s}}",
                 damaged[i]);
        if (i == 1) { /* the first is the value and step beside the list */
            ck_ok(engine_best_from_json(&into, text));
            continue;
        }
        ck_fails(engine_best_from_json(&into, text), CZ_CORRUPT);
        ck_assert_uint_eq(into.n_kept, 0);
    }
    struct engine_best none;
    engine_best_init(&none, NULL, false, 1);
    ck_ok(engine_best_from_json(&none, "not JSON"));
    char text[ENGINE_BEST_NBYTES + 2];
    ck_assert_str_eq(state_of(&none, text), "{}");
}
END_TEST

TEST_MAIN("engine/best", three_of_many_are_kept, losses_are_better_when_smaller,
          a_full_list_survives_a_checkpoint, other_lists_are_not_taken)
