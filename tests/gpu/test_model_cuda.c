/* Claims: every family of models gives on a CUDA device (real, or the simulated one) what it gives
 * on the CPU: loss, logits, hidden states and every gradient, with dropout (the masks are the same)
 * and without, with padding, types and few labels; recomputation of segments, with inputs kept on
 * the device or in host memory, repeats gradients to the bit; a cache gives the logits of the whole
 * text.
 *
 * fp32 sums are made in another order than the CPU's: 2e-5 of the largest value. bf16 layers round
 * in between, each device at its own sums: 2e-2 of the largest value in the loss, 6e-2 in
 * gradients, which went through all layers. */
#include "tests/support/gpu/chain_side.h"
#include "tests/support/small_models.h"

enum { B = 2, T = 11, N = B * T };

static const char *const decoders[] = {small_gpt2, small_llama, "models/gpt2-variant-a",
                                       "models/llama-variant", "models/qwen2-variant"};
static const char *const encoders[] = {small_bert,
                                       small_classifier,
                                       "models/bert-old",
                                       "models/bert-variant-a",
                                       "models/distilbert-variant-a",
                                       "models/roberta-variant-a",
                                       "models/xlm-roberta-variant-a",
                                       "models/electra-variant-a",
                                       "models/electra-variant-b",
                                       "models/electra-variant-c"};

struct inputs {
    int32_t ids[N], labels[N], types[N];
    uint8_t mask[N];
    float weights[N];
    struct cz_batch batch;
};

/* Rows are padded at their ends; of a masked language model every third token has a label. */
static void make_inputs(struct inputs *in, const struct cz_model *m)
{
    const int32_t V = (int32_t)cz_model_vocab_size(m), K = (int32_t)cz_model_n_classes(m);
    const enum cz_labels kind = cz_model_labels(m);
    for (int i = 0; i < N; i++) {
        const bool padding = i / T == 1 && i % T >= 8;
        in->ids[i] = (13 * i + 5) % V;
        in->types[i] = i % T > 5 && cz_model_n_types(m) > 1;
        in->mask[i] = !padding;
        in->weights[i] = i % 2 ? 0.5f : 1.5f;
        in->labels[i] =
            padding || (kind == CZ_LABELS_SAME && i % 3) ? CZ_IGNORE_LABEL : (7 * i + 1) % V;
        if (K > 0) in->labels[i] = i % K;
        if (kind == CZ_LABELS_REPLACED && !padding) in->labels[i] = i % 3 == 0;
    }
    in->batch = (struct cz_batch){.size = sizeof(struct cz_batch),
                                  .B = B,
                                  .T = T,
                                  .ids = in->ids,
                                  .labels = in->labels,
                                  .types = kind == CZ_LABELS_NEXT ? NULL : in->types,
                                  .key_mask = in->mask,
                                  .loss_weights = in->weights,
                                  .sample = 5};
}

static void compare_gradients(struct side *got, struct side *want, const char *name, double bound)
{
    const struct param_table *t = model_params(got->model);
    for (size_t i = 0; i < t->n_params; i++) {
        float *a = side_grad(got, i), *b = side_grad(want, i);
        const double off = side_difference(a, b, t->params[i].numel);
        ck_assert_msg(off <= bound, "%s: the gradient of %s is off by %g", name, t->params[i].name,
                      off);
        free(a);
        free(b);
    }
}

static void check_training(const char *name, enum cz_dtype dtype, bool no_dropout,
                           double loss_bound, double grad_bound)
{
    struct inputs in;
    struct cz_model *m = small_model(name);
    const struct chain_options options = {.B = B, .T = T, .dtype = dtype, .training = true};
    struct side gpu = side_open("cuda", m, options), cpu = side_open("cpu", m, options);
    make_inputs(&in, m);
    struct chain_run run = {.rng = {.seed = 11, .step = 3, .sample = 5}, .no_dropout = no_dropout};
    for (int pass = 0; pass < 2; pass++) { /* the second one adds, and is a row shorter */
        run.accumulate = pass > 0;
        in.batch.B = pass > 0 ? B - 1 : B;
        const float want = side_step(&cpu, &in.batch, run), got = side_step(&gpu, &in.batch, run);
        ck_assert_msg(fabsf(got - want) <= loss_bound * fabsf(want), "%s: loss %g, not %g", name,
                      (double)got, (double)want);
        compare_gradients(&gpu, &cpu, name, grad_bound);
    }
    side_close(&gpu);
    side_close(&cpu);
    cz_model_destroy(m);
}

START_TEST(decoders_train_as_on_the_cpu)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(decoders); i++)
        for (int no_dropout = 0; no_dropout < 2; no_dropout++)
            check_training(decoders[i], DTYPE_F32, no_dropout, 2e-5, 2e-5);
}
END_TEST

START_TEST(encoders_train_as_on_the_cpu)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(encoders); i++)
        for (int no_dropout = 0; no_dropout < 2; no_dropout++)
            check_training(encoders[i], DTYPE_F32, no_dropout, 2e-5, 2e-5);
}
END_TEST

START_TEST(bf16_trains_as_on_the_cpu)
{
    check_training(small_gpt2, DTYPE_BF16, false, 2e-2, 6e-2);
    check_training(small_llama, DTYPE_BF16, false, 2e-2, 6e-2);
    check_training(small_bert, DTYPE_BF16, false, 2e-2, 6e-2);
}
END_TEST

/* Logits of all positions (or rows), hidden states, and the loss. */
static void check_evaluation(const char *name)
{
    struct inputs in;
    struct cz_model *m = small_model(name);
    const struct chain_options options = {.B = B, .T = T, .dtype = DTYPE_F32};
    struct side gpu = side_open("cuda", m, options), cpu = side_open("cpu", m, options);
    const int64_t K = cz_model_n_classes(m);
    const int64_t V = cz_model_labels(m) == CZ_LABELS_REPLACED ? 1 : cz_model_vocab_size(m);
    const size_t n_logits = (size_t)(K > 0 ? B * K : N * V);
    const size_t n_hidden = (size_t)(N * cz_model_hidden_size(m));
    float *got = calloc(n_logits + n_hidden, sizeof *got),
          *want = calloc(n_logits + n_hidden, sizeof *want), got_loss, want_loss;
    ck_assert(got && want);
    make_inputs(&in, m);
    struct chain_run run = {.mode = LAYER_EVAL};
    side_forward(&gpu, &in.batch, run, &got_loss);
    side_forward(&cpu, &in.batch, run, &want_loss);
    ck_assert(fabsf(got_loss - want_loss) <= 2e-5f * fabsf(want_loss));
    for (int with_loss = 0; with_loss < 2; with_loss++) {
        run.logits = got, run.hidden = got + n_logits;
        side_forward(&gpu, &in.batch, run, with_loss ? &got_loss : NULL);
        run.logits = want, run.hidden = want + n_logits;
        side_forward(&cpu, &in.batch, run, with_loss ? &want_loss : NULL);
        ck_assert(fabsf(got_loss - want_loss) <= 2e-5f * fabsf(want_loss));
        ck_assert_double_le(side_difference(got, want, n_logits), 2e-5);
        ck_assert_double_le(side_difference(got + n_logits, want + n_logits, n_hidden), 2e-5);
        memset(got, 0, n_logits * sizeof *got);
    }
    free(got);
    free(want);
    side_close(&gpu);
    side_close(&cpu);
    cz_model_destroy(m);
}

START_TEST(evaluation_is_that_of_the_cpu)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(decoders); i++) check_evaluation(decoders[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(encoders); i++) check_evaluation(encoders[i]);
}
END_TEST

static void same_gradients(struct side *a, struct side *b)
{
    const struct param_table *t = model_params(a->model);
    for (size_t i = 0; i < t->n_params; i++) {
        float *x = side_grad(a, i), *y = side_grad(b, i);
        ck_assert_msg(memcmp(x, y, t->params[i].numel * sizeof *x) == 0, "%s: other bits",
                      t->params[i].name);
        free(x);
        free(y);
    }
}

static void check_recomputation(const char *name, enum cz_dtype dtype)
{
    struct inputs in;
    struct cz_model *m = small_model(name);
    const struct chain_options full = {.B = B, .T = T, .dtype = dtype, .training = true};
    const struct chain_run run = {.rng = {.seed = 11, .sample = 5}};
    struct side want = side_open("cuda", m, full);
    make_inputs(&in, m);
    const float loss = side_step(&want, &in.batch, run);
    for (int on_host = 0; on_host < 2; on_host++) {
        struct chain_options options = full;
        options.checkpoint_every = 1;
        options.keep_on_host = on_host;
        struct side some = side_open("cuda", m, options);
        ck_assert((chain_sizes(some.chain).kept > 0) == (on_host > 0));
        for (int pass = 0; pass < 2; pass++) {
            ck_assert_float_eq(side_step(&some, &in.batch, run), loss);
            same_gradients(&some, &want);
        }
        side_close(&some);
    }
    side_close(&want);
    cz_model_destroy(m);
}

START_TEST(recomputation_repeats_gradients_to_the_bit)
{
    check_recomputation(small_gpt2, DTYPE_F32);
    check_recomputation(small_llama, DTYPE_BF16);
    check_recomputation(small_bert, DTYPE_F32);
    check_recomputation(small_classifier, DTYPE_F32);
}
END_TEST

/* What is kept has the bits of what is made again: on a GPU, where activations are passes of their
 * own (not in a product's epilogue, which sees P before it is rounded). */
static void check_keeping(const char *device, const char *name, enum cz_dtype dtype)
{
    struct inputs in;
    struct cz_model *m = small_model(name);
    struct chain_options options = {.B = B, .T = T, .dtype = dtype, .training = true};
    const struct chain_run run = {.rng = {.seed = 11, .sample = 5}};
    struct side want = side_open(device, m, options);
    make_inputs(&in, m);
    const float loss = side_step(&want, &in.batch, run);
    options.keeps_all = true;
    for (int every = 0; every < 3; every += 2) {
        options.checkpoint_every = every;
        struct side some = side_open(device, m, options);
        if (every == 0)
            ck_assert(chain_sizes(some.chain).activations > chain_sizes(want.chain).activations);
        ck_assert_float_eq(side_step(&some, &in.batch, run), loss);
        same_gradients(&some, &want);
        side_close(&some);
    }
    side_close(&want);
    cz_model_destroy(m);
}

START_TEST(keeping_all_repeats_gradients_to_the_bit)
{
    static const char *const devices[] = {"cpu", "cuda"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(devices); i++) {
        check_keeping(devices[i], small_gpt2, DTYPE_F32);
        check_keeping(devices[i], small_llama, DTYPE_BF16);
        check_keeping(devices[i], small_bert, DTYPE_F32);
        check_keeping(devices[i], small_classifier, DTYPE_F32);
    }
    check_keeping("cpu", small_gpt2, DTYPE_BF16);
}
END_TEST

/* A prompt, then token by token, in two sequences at once. */
static void check_decoding(const char *name)
{
    struct inputs in;
    struct cz_model *m = small_model(name);
    struct chain_options options = {.B = B, .T = T, .dtype = DTYPE_F32, .cache = true};
    struct side gpu = side_open("cuda", m, options), cpu = side_open("cpu", m, options);
    const int64_t V = cz_model_vocab_size(m);
    float *got = calloc((size_t)(B * V), sizeof *got),
          *want = calloc((size_t)(B * V), sizeof *want);
    ck_assert(got && want);
    make_inputs(&in, m);
    for (int64_t position = 0, n = 4; position < T; position += n, n = 1) {
        int32_t ids[N];
        for (int64_t b = 0; b < B; b++)
            for (int64_t t = 0; t < n; t++) ids[b * n + t] = in.ids[b * T + position + t];
        const struct cz_batch next = {.size = sizeof next, .B = B, .T = n, .ids = ids};
        ck_ok(batch_stage_copy(&gpu.stage, m, &next, false));
        ck_ok(batch_stage_copy(&cpu.stage, m, &next, false));
        ck_ok(chain_decode(gpu.chain, gpu.stream, &gpu.stage.batch, position, got));
        ck_ok(chain_decode(cpu.chain, cpu.stream, &cpu.stage.batch, position, want));
        side_wait(&gpu);
        ck_assert_double_le(side_difference(got, want, (size_t)(B * V)), 2e-5);
    }
    free(got);
    free(want);
    side_close(&gpu);
    side_close(&cpu);
    cz_model_destroy(m);
}

START_TEST(decoding_with_a_cache_is_that_of_the_cpu)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(decoders); i++) check_decoding(decoders[i]);
}
END_TEST

TEST_MAIN_SECONDS(180, "cuda/model", decoders_train_as_on_the_cpu, encoders_train_as_on_the_cpu,
                  bf16_trains_as_on_the_cpu, evaluation_is_that_of_the_cpu,
                  recomputation_repeats_gradients_to_the_bit,
                  keeping_all_repeats_gradients_to_the_bit,
                  decoding_with_a_cache_is_that_of_the_cpu)
