/* Claims: a batch arrives on a CUDA device (real, or the simulated one) as the host gave it, with
 * what is absent absent and the labelled rows listed; a place in host memory is not written again
 * while its copy is under way; losses that are not read are added up in order. */
#include "engine/batch_stage.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

enum { B = 3, T = 7, N = B * T };

struct rig {
    struct device *device;
    struct dev_stream *stream;
    void *memory, *host_memory;
    size_t nbytes, host_nbytes;
    struct cz_model *model;
    struct batch_stage stage;
};

static void rig_open(struct rig *r)
{
    memset(r, 0, sizeof *r);
    ck_ok(device_open("cuda", 0, &r->device));
    ck_ok(r->device->ops->stream_create(r->device, &r->stream));
    r->model = cz_model_open(test_fixture("models/bert-old"));
    ck_assert_msg(r->model != NULL, "%s", cz_last_error());
    r->nbytes = batch_stage_nbytes(DEVICE_CUDA, r->model, B, T);
    r->host_nbytes = batch_stage_host_nbytes(DEVICE_CUDA, r->model, B, T);
    r->host_nbytes = (r->host_nbytes + 4095) / 4096 * 4096;
    r->host_memory = aligned_alloc(4096, r->host_nbytes);
    ck_assert_ptr_nonnull(r->host_memory);
    memset(r->host_memory, 0xA5, r->host_nbytes);
    ck_ok(r->device->ops->mem_alloc(r->device, r->nbytes, "a batch", &r->memory));
    ck_ok(r->device->ops->host_register(r->device, r->host_memory, r->host_nbytes));
    ck_ok(batch_stage_bind(&r->stage, r->model, B, T, r->device, r->stream, r->memory,
                           r->host_memory));
}

static void rig_close(struct rig *r)
{
    struct device *d = r->device;
    ck_ok(d->ops->stream_sync(d, r->stream));
    batch_stage_free(&r->stage);
    cz_model_destroy(r->model);
    d->ops->host_unregister(d, r->host_memory, r->host_nbytes);
    d->ops->mem_free(d, r->memory, r->nbytes);
    d->ops->stream_destroy(d, r->stream);
    free(r->host_memory);
    device_close(d);
}

/* An array of the staged batch. */
static void check_array(struct rig *r, const void *there, const void *want, size_t nbytes)
{
    unsigned char *got = calloc(1, nbytes);
    ck_assert_ptr_nonnull(got);
    ck_assert_ptr_nonnull(there);
    ck_assert(r->device->ops->is_device_memory(r->device, there));
    ck_ok(r->device->ops->copy(r->device, r->stream, got, there, nbytes));
    ck_ok(r->device->ops->stream_sync(r->device, r->stream));
    ck_assert_mem_eq(got, want, nbytes);
    free(got);
}

START_TEST(a_batch_arrives_whole)
{
    struct rig r;
    int32_t ids[N], labels[N], types[N], rows[N], places[N], packed[N];
    uint8_t mask[N];
    float weights[N], packed_weights[N];
    int n = 0;
    rig_open(&r);
    for (int i = 0; i < N; i++) {
        ids[i] = i * 5 % 29;
        types[i] = i % 2;
        mask[i] = i % T < 5;
        weights[i] = 0.5f + (float)i;
        labels[i] = i % 4 == 1 ? i % 29 : CZ_IGNORE_LABEL;
        rows[i] = 0, packed[i] = CZ_IGNORE_LABEL, packed_weights[i] = 0;
        places[i] = N - 1;
    }
    for (int i = 0; i < N; i++)
        if (labels[i] != CZ_IGNORE_LABEL) {
            rows[n] = i, packed[n] = labels[i], packed_weights[n] = weights[i];
            places[i] = n++;
        }
    const struct cz_batch batch = {.size = sizeof batch,
                                   .B = B,
                                   .T = T,
                                   .ids = ids,
                                   .labels = labels,
                                   .types = types,
                                   .key_mask = mask,
                                   .loss_weights = weights,
                                   .loss_divisor = 3,
                                   .sample = 77};
    ck_ok(batch_stage_copy(&r.stage, r.model, &batch, true));
    const struct batch *b = &r.stage.batch;
    ck_assert(b->B == B && b->T == T && b->sample == 77 && b->loss_divisor == 3.0f);
    ck_assert_ptr_null(b->positions);
    check_array(&r, b->ids, ids, sizeof ids);
    check_array(&r, b->labels, labels, sizeof labels);
    check_array(&r, b->types, types, sizeof types);
    check_array(&r, b->key_mask, mask, sizeof mask);
    check_array(&r, b->loss_weights, weights, sizeof weights);
    ck_assert_int_eq(b->labelled->n, n);
    check_array(&r, b->labelled->rows, rows, sizeof rows);
    check_array(&r, b->labelled->places, places, sizeof places);
    check_array(&r, b->labelled->labels, packed, sizeof packed);
    check_array(&r, b->labelled->loss_weights, packed_weights, sizeof packed_weights);
    ck_assert_mem_eq(batch_on_host(b)->ids, ids, sizeof ids);
    ck_assert_mem_eq(batch_on_host(b)->labels, labels, sizeof labels);
    rig_close(&r);
}
END_TEST

START_TEST(batches_do_not_overtake_each_other)
{
    enum { N_BATCHES = 9 };
    struct rig r;
    void *seen[N_BATCHES];
    int32_t ids[N];
    rig_open(&r);
    for (int k = 0; k < N_BATCHES; k++) { /* without a wait between them */
        for (int i = 0; i < N; i++) ids[i] = (i + k) % 29;
        const struct cz_batch batch = {.size = sizeof batch, .B = B, .T = T, .ids = ids};
        ck_ok(r.device->ops->mem_alloc(r.device, sizeof ids, "seen", &seen[k]));
        ck_ok(batch_stage_copy(&r.stage, r.model, &batch, false));
        ck_assert_ptr_null(r.stage.batch.labelled);
        ck_ok(r.device->ops->copy(r.device, r.stream, seen[k], r.stage.batch.ids, sizeof ids));
    }
    for (int k = 0; k < N_BATCHES; k++) {
        for (int i = 0; i < N; i++) ids[i] = (i + k) % 29;
        check_array(&r, seen[k], ids, sizeof ids);
        r.device->ops->mem_free(r.device, seen[k], sizeof ids);
    }
    rig_close(&r);
}
END_TEST

START_TEST(losses_are_added_when_somebody_asks)
{
    struct rig r;
    float loss = 0, values[3 * STAGE_LOSSES_MAX];
    double sum = 0, want = 0;
    const size_t n = CZ_ARRAY_LEN(values);
    rig_open(&r);
    for (size_t i = 0; i < n; i++) {
        values[i] = 0.1f * (float)(i + 1);
        want += (double)values[i];
        ck_ok(r.device->ops->copy(r.device, r.stream, r.stage.loss, &values[i], sizeof(float)));
        bool asks = i == 1 || i == n - 2;
        ck_ok(batch_stage_loss(&r.stage, asks ? &loss : NULL, &sum));
        if (asks) ck_assert(loss == values[i] && sum == want);
    }
    ck_assert_uint_eq(r.stage.n_losses, 1);
    ck_ok(batch_stage_losses(&r.stage, &sum));
    ck_assert(sum == want);
    ck_assert_uint_eq(r.stage.n_losses, 0);
    rig_close(&r);
}
END_TEST

START_TEST(bad_batches_are_refused_on_the_host)
{
    struct rig r;
    int32_t ids[N] = {0}, labels[N] = {0};
    rig_open(&r);
    struct cz_batch batch = {.size = sizeof batch, .B = B, .T = T, .ids = ids, .labels = labels};
    ids[8] = 29;
    ck_fails(batch_stage_copy(&r.stage, r.model, &batch, true), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "row 1 at position 1"));
    ids[8] = 0;
    labels[3] = -1;
    ck_fails(batch_stage_copy(&r.stage, r.model, &batch, true), CZ_INVALID);
    batch.B = B + 1;
    ck_fails(batch_stage_copy(&r.stage, r.model, &batch, true), CZ_INVALID);
    rig_close(&r);
}
END_TEST

TEST_MAIN("cuda/batch_stage", a_batch_arrives_whole, batches_do_not_overtake_each_other,
          losses_are_added_when_somebody_asks, bad_batches_are_refused_on_the_host)
