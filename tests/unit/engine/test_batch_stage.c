/* Claims: a batch whose rows end in padding reaches the layers as one row of tokens with documents,
 * positions and labels of its own, filled up to one of few sizes where products ask for it; what a
 * row has one of stays in the order of rows; a batch that cannot go without its padding, whose
 * padding has labels, or whose logits are wanted by position, stays as it is. */
#include "engine/batch_stage.h"
#include "tests/support/small_models.h"

#include <stdlib.h>

enum { B = 4, T = 24, N = B * T };

static const int lengths[B] = {24, 3, 9, 1};

struct rig {
    struct device *device;
    struct cz_model *model;
    struct batch_stage stage;
    void *memory;
    int32_t ids[N], labels[N], types[N];
    uint8_t key_mask[N];
    struct cz_batch batch;
};

static void rig_open(struct rig *r, const char *model)
{
    memset(r, 0, sizeof *r);
    ck_ok(device_open("cpu", 0, &r->device));
    r->model = small_model(model);
    r->memory =
        aligned_alloc(256, (batch_stage_nbytes(DEVICE_HOST, r->model, B, T) + 255) / 256 * 256);
    ck_assert_ptr_nonnull(r->memory);
    ck_ok(batch_stage_bind(&r->stage, r->model, B, T, r->device, NULL, r->memory, NULL));
    batch_stage_unpad(&r->stage, false);
    for (int i = 0; i < N; i++) {
        const int t = i % T, n = lengths[i / T];
        r->ids[i] = t < n ? 1 + i % 60 : 0;
        r->labels[i] = t < n && t % 2 == 0 ? i % 61 : CZ_IGNORE_LABEL;
        r->types[i] = t < n && t > 2;
        r->key_mask[i] = t < n;
    }
    r->batch = (struct cz_batch){.size = sizeof r->batch,
                                 .B = B,
                                 .T = T,
                                 .ids = r->ids,
                                 .labels = r->labels,
                                 .types = r->types,
                                 .key_mask = r->key_mask,
                                 .sample = 7};
}

static void rig_close(struct rig *r)
{
    batch_stage_free(&r->stage);
    cz_model_destroy(r->model);
    free(r->memory);
    device_close(r->device);
}

static void check_stays(struct rig *r, unsigned results)
{
    ck_ok(batch_stage_copy(&r->stage, r->model, &r->batch, results));
    const struct batch *b = &r->stage.batch;
    ck_assert_ptr_null(b->texts);
    ck_assert_int_eq(b->B, B);
    ck_assert_int_eq(b->T, T);
    ck_assert_mem_eq(b->ids, r->ids, sizeof r->ids);
    ck_assert_mem_eq(b->key_mask, r->key_mask, sizeof r->key_mask);
}

/* Tokens of all rows, then fillers up to n. */
static void check_tokens(const struct rig *r, int64_t n)
{
    const struct batch *b = &r->stage.batch;
    int at = 0;
    ck_assert_int_eq(b->B, 1);
    ck_assert_int_eq(b->T, n);
    ck_assert_ptr_null(b->key_mask);
    ck_assert_uint_eq(b->sample, 7);
    ck_assert_int_eq(batch_n_rows(b), B);
    for (int row = 0; row < B; row++) {
        ck_assert_int_eq(batch_row_start(b, row), at);
        ck_assert_int_eq(batch_row_length(b, row), lengths[row]);
        ck_assert_int_eq(b->texts->numbers[row], row);
        for (int t = 0; t < lengths[row]; t++, at++) {
            ck_assert_int_eq(b->ids[at], r->ids[row * T + t]);
            ck_assert_int_eq(b->types[at], r->types[row * T + t]);
            ck_assert_int_eq(b->positions[at], t);
            ck_assert_int_eq(b->documents[at], row);
        }
    }
    for (; at < n; at++) {
        ck_assert_int_eq(b->ids[at], 0);
        ck_assert_int_eq(b->positions[at], 0);
        ck_assert_int_eq(b->documents[at], B);
    }
}

START_TEST(padding_is_left_out)
{
    struct rig r;
    rig_open(&r, small_bert);
    ck_ok(batch_stage_copy(&r.stage, r.model, &r.batch, BATCH_LOSS));
    check_tokens(&r, 40); /* 37, in eights */
    for (int row = 0, at = 0; row < B; row++)
        for (int t = 0; t < lengths[row]; t++, at++)
            ck_assert_int_eq(r.stage.batch.labels[at], r.labels[row * T + t]);
    for (int at = 37; at < 40; at++) ck_assert_int_eq(r.stage.batch.labels[at], CZ_IGNORE_LABEL);
    batch_stage_unpad(&r.stage, true);
    ck_ok(batch_stage_copy(&r.stage, r.model, &r.batch, BATCH_LOSS));
    check_tokens(&r, 48); /* in sixteens */
    rig_close(&r);
}
END_TEST

START_TEST(what_a_row_has_one_of_stays_in_order)
{
    static const int32_t classes[B] = {2, 0, CZ_IGNORE_LABEL, 1};
    static const float weights[B] = {1, 0.5f, 0, 2};
    struct rig r;
    rig_open(&r, small_classifier);
    r.batch.labels = classes;
    r.batch.loss_weights = weights;
    ck_ok(batch_stage_copy(&r.stage, r.model, &r.batch, BATCH_LOSS | BATCH_LOGITS));
    check_tokens(&r, 40);
    ck_assert_mem_eq(r.stage.batch.labels, classes, sizeof classes);
    ck_assert_mem_eq(r.stage.batch.loss_weights, weights, sizeof weights);
    rig_close(&r);
}
END_TEST

START_TEST(other_batches_stay_as_they_are)
{
    static int32_t documents[N];
    struct rig r;
    rig_open(&r, small_bert);
    check_stays(&r, BATCH_LOSS | BATCH_LOGITS);
    r.key_mask[T + 1] = 0; /* a hole */
    check_stays(&r, BATCH_LOSS);
    r.key_mask[T + 1] = 1;
    r.key_mask[3 * T] = 0; /* a row of padding alone */
    check_stays(&r, BATCH_LOSS);
    r.key_mask[3 * T] = 1;
    r.labels[2 * T - 1] = 5; /* padding that counts */
    check_stays(&r, BATCH_LOSS);
    r.labels[2 * T - 1] = CZ_IGNORE_LABEL;
    r.batch.documents = documents;
    check_stays(&r, BATCH_LOSS);
    r.batch.documents = NULL;
    memset(r.key_mask, 1, sizeof r.key_mask); /* nothing to leave out */
    check_stays(&r, BATCH_LOSS);
    rig_close(&r);
}
END_TEST

static bool lacks(struct rig *r, unsigned results)
{
    ck_ok(batch_stage_copy(&r->stage, r->model, &r->batch, results));
    return r->stage.lacks_labels;
}

START_TEST(labels_that_do_not_count_are_noticed)
{
    static float weights[N];
    static const int32_t none[B] = {CZ_IGNORE_LABEL, CZ_IGNORE_LABEL, CZ_IGNORE_LABEL,
                                    CZ_IGNORE_LABEL};
    static const int32_t last[B] = {CZ_IGNORE_LABEL, CZ_IGNORE_LABEL, CZ_IGNORE_LABEL, 0};
    struct rig r;
    rig_open(&r, small_bert);
    ck_assert(!lacks(&r, BATCH_LOSS));
    for (int i = 0; i < N; i++) r.labels[i] = CZ_IGNORE_LABEL;
    ck_assert(lacks(&r, BATCH_LOSS));
    ck_assert(!lacks(&r, BATCH_LOGITS)); /* no loss is wanted */
    r.batch.loss_divisor = 2;            /* other micro-batches of the step have some */
    ck_assert(!lacks(&r, BATCH_LOSS));
    r.batch.loss_divisor = 0;
    r.labels[N - 1] = 0;
    ck_assert(!lacks(&r, BATCH_LOSS));
    r.batch.loss_weights = weights; /* all 0 */
    ck_assert(lacks(&r, BATCH_LOSS));
    weights[N - 1] = 0.5f;
    ck_assert(!lacks(&r, BATCH_LOSS));
    rig_close(&r);
    rig_open(&r, small_classifier);
    r.batch.labels = none;
    ck_assert(lacks(&r, BATCH_LOSS));
    r.batch.labels = last;
    ck_assert(!lacks(&r, BATCH_LOSS));
    rig_close(&r);
}
END_TEST

TEST_MAIN("engine/batch_stage", padding_is_left_out, what_a_row_has_one_of_stays_in_order,
          other_batches_stay_as_they_are, labels_that_do_not_count_are_noticed)
