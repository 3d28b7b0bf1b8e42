/* Claim: hidden states are what the head reads, for every position and under every head: the same
 * trunk gives the same bytes as masked LM and as classifier, with and without gradients planned,
 * and 16-bit states are widened; what stands in padding does not reach tokens; a decoder's are
 * behind its last norm, in an engine, too. */
#include "model/model.h"
#include "tests/support/check_main.h"
#include <czero/engine.h>
#include <czero/infer.h>

#include <math.h>
#include <string.h>

enum { B = 3, T = 9, C = 16 }; /* of models/bert-old, vocabulary 29 */

static int32_t ids[B * T];
static uint8_t mask[B * T];

static struct cz_batch some_batch(void)
{
    for (int i = 0; i < B * T; i++) {
        ids[i] = (7 * i + i / T) % 29;
        mask[i] = i / T != 1 || i % T < 6;
    }
    return (struct cz_batch){
        .size = sizeof(struct cz_batch), .B = B, .T = T, .ids = ids, .key_mask = mask};
}

static void hidden_of(enum cz_task task, enum cz_dtype dtype, bool gradients,
                      const struct cz_batch *batch, float *hidden)
{
    const struct cz_model_options o = {.size = sizeof o, .task = task};
    const struct cz_infer_options how = {
        .size = sizeof how, .B = B, .T = T, .dtype = dtype, .gradients = gradients};
    struct cz_model *m = cz_model_open_ex(test_fixture("models/bert-old"), &o);
    struct cz_infer *in;
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    ck_ok(cz_infer_create(m, &how, &in));
    for (int i = 0; i < B * T * C; i++) hidden[i] = NAN;
    ck_ok(cz_infer_hidden(in, batch, hidden));
    cz_infer_destroy(in);
    cz_model_destroy(m);
}

static float largest_difference(const float *a, const float *b, int n)
{
    float worst = 0;
    for (int i = 0; i < n; i++) {
        ck_assert(isfinite(a[i]) && isfinite(b[i]));
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
    }
    return worst;
}

START_TEST(hidden_states_do_not_depend_on_the_head)
{
    static float want[B * T * C], got[B * T * C];
    struct cz_batch batch = some_batch();
    hidden_of(CZ_TASK_MASKED_LM, DTYPE_F32, false, &batch, want);
    for (int gradients = 0; gradients < 2; gradients++) {
        hidden_of(CZ_TASK_CLASSIFICATION, DTYPE_F32, gradients, &batch, got);
        ck_assert_mem_eq(got, want, sizeof got);
    }
    batch.B = 2; /* fewer rows than planned */
    hidden_of(CZ_TASK_CLASSIFICATION, DTYPE_F32, false, &batch, got);
    ck_assert_float_le(largest_difference(got, want, 2 * T * C), 1e-5f);
    ck_assert(isnan(got[2 * T * C])); /* not written */
}
END_TEST

START_TEST(padding_does_not_reach_tokens)
{
    static float want[B * T * C], got[B * T * C];
    struct cz_batch batch = some_batch();
    hidden_of(CZ_TASK_AUTO, DTYPE_F32, false, &batch, want);
    for (int t = 6; t < T; t++) ids[T + t] = 28 - t;
    hidden_of(CZ_TASK_AUTO, DTYPE_F32, false, &batch, got);
    ck_assert_mem_eq(got + T * C, want + T * C, 6 * C * sizeof *got);
    ck_assert_float_gt(largest_difference(got, want, B * T * C), 1e-3f); /* in the padding itself */
}
END_TEST

START_TEST(sixteen_bit_states_are_widened)
{
    static float want[B * T * C], got[B * T * C];
    const struct cz_batch batch = some_batch();
    hidden_of(CZ_TASK_AUTO, DTYPE_F32, false, &batch, want);
    hidden_of(CZ_TASK_AUTO, DTYPE_BF16, false, &batch, got);
    /* states around 1 after two layers, 8 bits of mantissa */
    ck_assert_float_le(largest_difference(got, want, B * T * C), 0.15f);
}
END_TEST

/* z = hidden·wᵀ, w being the tied embeddings of models/gpt2-tiny. */
START_TEST(a_decoders_states_are_behind_the_last_norm)
{
    enum { V = 256, D = 64 };
    static float hidden[B * T * D], again[B * T * D], logits[B * T * V], w[V * D];
    const struct cz_infer_options how = {.size = sizeof how, .B = B, .T = T};
    struct cz_batch batch = some_batch();
    batch.key_mask = NULL;
    struct cz_model *m = cz_model_open(test_fixture("models/gpt2-tiny"));
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, T));
    ck_assert_int_eq(cz_model_hidden_size(m), D);
    struct cz_infer *in;
    ck_ok(cz_infer_create(m, &how, &in));
    ck_ok(cz_infer_hidden(in, &batch, hidden));
    ck_ok(cz_infer_forward(in, &batch, NULL, logits));
    cz_infer_destroy(in);
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 3, \"optimizer\": {\"type\": "
                       "\"Adam\", \"params\": {\"lr\": 0.001}}}"};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    ck_ok(engine_param_get(e, "transformer.wte.weight", "weight", w, V * D));
    ck_ok(engine_hidden(e, &batch, again));
    ck_assert_mem_eq(again, hidden, sizeof hidden);
    ck_fails(engine_hidden(e, &batch, NULL), CZ_INVALID);
    engine_destroy(e);
    for (int n = 0; n < B * T; n++)
        for (int v = 0; v < V; v++) {
            double z = 0;
            for (int d = 0; d < D; d++) z += (double)hidden[n * D + d] * (double)w[v * D + d];
            ck_assert_double_eq_tol(z, (double)logits[n * V + v], 1e-4);
        }
}
END_TEST

/* A head of several layers: ModernBERT's classifier sums up texts before its last layer. */
START_TEST(states_are_those_before_the_head)
{
    static const char *const folder = "models/modernbert-variant-a";
    enum { ROOM = B * T * 256 };
    static float of[2][ROOM];
    const struct cz_batch batch = some_batch();
    for (int k = 0; k < 2; k++) {
        const struct cz_model_options o = {.size = sizeof o,
                                           .task = k ? CZ_TASK_CLASSIFICATION : CZ_TASK_MASKED_LM};
        const struct cz_infer_options how = {.size = sizeof how, .B = B, .T = T};
        struct cz_model *m = cz_model_open_ex(test_fixture(folder), &o);
        struct cz_infer *in;
        ck_assert_msg(m != NULL, "%s", cz_last_error());
        ck_assert_int_le(B * T * cz_model_hidden_size(m), ROOM);
        ck_ok(cz_infer_create(m, &how, &in));
        for (int i = 0; i < ROOM; i++) of[k][i] = NAN;
        ck_ok(cz_infer_hidden(in, &batch, of[k]));
        ck_assert(!isnan(of[k][B * T * cz_model_hidden_size(m) - 1]));
        cz_infer_destroy(in);
        cz_model_destroy(m);
    }
    ck_assert_mem_eq(of[0], of[1], sizeof of[0]);
}
END_TEST

TEST_MAIN("engine/infer", hidden_states_do_not_depend_on_the_head, padding_does_not_reach_tokens,
          sixteen_bit_states_are_widened, a_decoders_states_are_behind_the_last_norm,
          states_are_those_before_the_head)
