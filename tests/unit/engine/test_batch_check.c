/* Claims: a row that begins with padding is refused where a classifier of rows reads the first
 * position and computes padding otherwise than transformers (DeBERTa), by its number; rows that end
 * in padding, are all padding or have none are not, nor is any row of other models and heads. */
#include "engine/batch_check.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

static cz_status check(const char *fixture, enum cz_task task, const uint8_t *mask)
{
    static const int32_t ids[6] = {1, 2, 3, 1, 2, 3};
    const struct cz_model_options o = {.size = sizeof o, .task = task};
    struct cz_model *m = cz_model_open_ex(test_fixture(fixture), &o);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    const struct cz_batch b = {.size = sizeof b, .B = 2, .T = 3, .ids = ids, .key_mask = mask};
    const cz_status st = batch_check(m, &b, false);
    cz_model_destroy(m);
    return st;
}

START_TEST(padding_in_front_is_refused)
{
    static const char deberta[] = "models/deberta-variant-a", bert[] = "models/bert-variant-a";
    static const uint8_t left[] = {1, 1, 1, 0, 0, 1}, one[] = {0, 1, 1, 1, 1, 1};
    static const uint8_t right[] = {1, 1, 0, 1, 0, 0}, empty[] = {1, 1, 1, 0, 0, 0};
    static const uint8_t hole[] = {1, 0, 1, 1, 1, 1};
    ck_assert_int_eq(check(deberta, CZ_TASK_CLASSIFICATION, left), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "row 1 begins with padding"));
    ck_assert_int_eq(check(deberta, CZ_TASK_CLASSIFICATION, one), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "row 0 begins with padding"));
    ck_ok(check(deberta, CZ_TASK_CLASSIFICATION, right));
    ck_ok(check(deberta, CZ_TASK_CLASSIFICATION, empty));
    ck_ok(check(deberta, CZ_TASK_CLASSIFICATION, hole));
    ck_ok(check(deberta, CZ_TASK_CLASSIFICATION, NULL));
    ck_ok(check(deberta, CZ_TASK_MASKED_LM, left));
    ck_ok(check(deberta, CZ_TASK_TOKEN_CLASSIFICATION, left));
    ck_ok(check(bert, CZ_TASK_CLASSIFICATION, left));
}
END_TEST

/* Of a model of K numbers per row: a row counts if its first number is one and its weight is not 0.
 */
START_TEST(targets_count_by_their_rows)
{
    static const int32_t ids[4] = {1, 2, 3, 1};
    const char *names[] = {"a", "b"};
    const struct cz_model_options o = {.size = sizeof o,
                                       .task = CZ_TASK_CLASSIFICATION,
                                       .labels = names,
                                       .n_labels = 2,
                                       .problem = CZ_PROBLEM_REGRESSION};
    struct cz_model *m = cz_model_open_ex(test_fixture("models/bert-variant-a"), &o);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    float targets[4] = {NAN, 0, 0, 0}, weights[2] = {1, 0};
    struct cz_batch b = {.size = sizeof b, .B = 2, .T = 2, .ids = ids, .targets = targets};
    ck_ok(batch_check(m, &b, true));
    ck_assert(batch_has_labels(m, &b));
    b.loss_weights = weights; /* the row that has targets counts for nothing */
    ck_assert(!batch_has_labels(m, &b));
    weights[1] = 0.5f;
    ck_assert(batch_has_labels(m, &b));
    targets[0] = 0;
    targets[2] = NAN;
    ck_assert(batch_has_labels(m, &b));
    weights[0] = 0;
    ck_assert(!batch_has_labels(m, &b));
    b.loss_weights = NULL;
    ck_assert(batch_has_labels(m, &b));
    targets[0] = NAN;
    ck_assert(!batch_has_labels(m, &b));
    cz_model_destroy(m);
}
END_TEST

/* Per token of a language model, per row of a classifier. */
START_TEST(weights_are_finite)
{
    static const int32_t ids[6] = {1, 2, 3, 1, 2, 3};
    float weights[6] = {1, 0, -1, 1, 1, NAN};
    struct cz_model *m = cz_model_open("gpt2-tiny");
    struct cz_batch b = {
        .size = sizeof b, .B = 2, .T = 3, .ids = ids, .labels = ids, .loss_weights = weights};
    ck_fails(batch_check(m, &b, true), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "loss weight nan in row 1 at position 2 is not finite");
    weights[5] = 1;
    ck_ok(batch_check(m, &b, true));
    weights[0] = INFINITY;
    ck_fails(batch_check(m, &b, true), CZ_INVALID);
    cz_model_destroy(m);
    const struct cz_model_options o = {.size = sizeof o, .task = CZ_TASK_CLASSIFICATION};
    static const int32_t classes[2] = {0, 1};
    m = cz_model_open_ex(test_fixture("models/bert-variant-a"), &o);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    b.labels = classes;
    weights[0] = 1;
    weights[1] = 1;
    weights[2] = NAN; /* of no row */
    ck_ok(batch_check(m, &b, true));
    weights[1] = NAN;
    ck_fails(batch_check(m, &b, true), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "loss weight nan in row 1 at position 0 is not finite");
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("engine/batch_check", weights_are_finite, padding_in_front_is_refused,
          targets_count_by_their_rows)
