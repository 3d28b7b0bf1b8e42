/* Claims: on a CUDA device (real, or the simulated one) models at rest give what PyTorch gave, of
 * all families and with gradients; greedy text is the CPU's, with a cache and without, in fp32 and
 * 16 bits; batches that were not planned are refused with the CPU's sentence; a model beyond the
 * GPU's memory is refused before anything is allocated. */
#include "engine/infer/generate.h"
#include "engine/infer/verify.h"
#include "model/model.h"
#include "tests/support/gpu/chain_side.h"
#include <czero/infer.h>

struct seen {
    int n;
    double worst;
    char worst_name[128];
};

static void see(void *user, const struct verify_row *row)
{
    struct seen *s = user;
    s->n++;
    if (row->error <= s->worst) return; /* NaN gets through */
    s->worst = row->error;
    snprintf(s->worst_name, sizeof s->worst_name, "%s", row->name);
}

/* As many tensors as on the CPU, under its bound (tests/unit/engine/test_verify.c). */
static void check_agrees(const char *dir)
{
    struct seen gpu = {0}, cpu = {0};
    ck_ok(verify_run_on("cuda", dir, NULL, see, &gpu));
    ck_ok(verify_run(dir, NULL, see, &cpu));
    ck_assert_int_eq(gpu.n, cpu.n);
    ck_assert_msg(gpu.worst <= 2e-5, "%s: %s is off by %g", dir, gpu.worst_name, gpu.worst);
    ck_assert_msg(gpu.worst > 0, "%s: nothing was compared", dir);
}

START_TEST(decoders_agree_with_pytorch)
{
    static const char *const names[] = {"models/gpt2",
                                        "models/gpt2-variant-a",
                                        "models/gpt2-variant-b",
                                        "models/llama-variant",
                                        "models/qwen2-variant",
                                        "models/qwen3-variant-b",
                                        "models/qwen3-moe-variant-b",
                                        "models/olmo2-variant-a",
                                        "models/granite-variant-b",
                                        "models/smollm3-variant-b",
                                        "models/phi3-variant-a",
                                        "models/mistral-variant-b",   /* windows */
                                        "models/ministral-variant-a", /* in some layers */
                                        "models/gemma2-variant-a",    /* and soft caps */
                                        "models/gemma2-variant-b",
                                        "models/gemma3-variant-a"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) check_agrees(test_fixture(names[i]));
    check_agrees(test_fixture("models/llama"));
    check_agrees(test_fixture("models/qwen2"));
}
END_TEST

START_TEST(encoders_agree_with_pytorch)
{
    static const char *const names[] = {
        "models/bert-variant-a",          "models/bert-variant-b",
        "models/megatron-bert-variant-a", "models/megatron-bert-variant-b",
        "models/distilbert-variant-a",    "models/bert-old",
        "models/roberta-variant-a",       "models/xlm-roberta-variant-a",
        "models/electra-variant-a",       "models/electra-variant-b",
        "models/electra-variant-c",       "models/modernbert-variant-b",
        "models/mpnet-variant-a",         "models/mpnet-variant-b",
        "models/deberta-variant-a",       "models/deberta-variant-b",
        "models/deberta-variant-c"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) check_agrees(test_fixture(names[i]));
    check_agrees(test_fixture("models/bert-cls"));
    check_agrees(test_fixture("models/distilbert-cls"));
}
END_TEST

struct text {
    int32_t ids[64];
    size_t n;
};

static cz_status collect(void *user, int32_t token)
{
    struct text *t = user;
    t->ids[t->n++] = token;
    return CZ_OK;
}

static struct text generate(const char *name, struct cz_generate_options o)
{
    static const int32_t prompt[] = {5, 17, 20, 0, 24, 24, 3};
    struct text t = {.n = 0};
    struct cz_model *m = cz_model_open(test_fixture(name));
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    ck_ok(cz_generate(m, &o, prompt, CZ_ARRAY_LEN(prompt), collect, &t));
    cz_model_destroy(m);
    return t;
}

START_TEST(greedy_text_is_that_of_the_cpu)
{
    struct cz_generate_options o = {.size = sizeof o, .max_new_tokens = 12, .end_id = -1};
    static const char *const names[] = {"models/gpt2", "models/llama-variant",
                                        "models/gemma2-variant-a"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        o.device = "cpu";
        o.no_cache = false;
        struct text want = generate(names[i], o);
        o.device = "cuda:0";
        for (int no_cache = 0; no_cache < 2; no_cache++) {
            o.no_cache = no_cache;
            struct text got = generate(names[i], o);
            ck_assert_uint_eq(got.n, 12);
            ck_assert_mem_eq(got.ids, want.ids, got.n * sizeof *got.ids);
        }
    }
    o.dtype = DTYPE_BF16;
    ck_assert_uint_eq(generate("models/gpt2", o).n, 12);
}
END_TEST

START_TEST(unplanned_batches_are_refused_as_on_the_cpu)
{
    int32_t ids[20] = {0};
    char sentence[2][256];
    static const char *const devices[] = {"cpu", "cuda"};
    float *logits = calloc(20 * 97, sizeof *logits);
    struct cz_model *m = cz_model_open(test_fixture("models/gpt2"));
    ck_assert(m && logits);
    for (int d = 0; d < 2; d++) {
        struct cz_infer *in;
        const struct cz_infer_options o = {.size = sizeof o, .B = 2, .T = 8, .device = devices[d]};
        ck_ok(cz_infer_create(m, &o, &in));
        const struct cz_batch wide = {.size = sizeof wide, .B = 2, .T = 9, .ids = ids},
                              tall = {.B = 3, .T = 2, .ids = ids};
        ck_fails(cz_infer_forward(in, &tall, NULL, logits), CZ_INVALID);
        ck_fails(cz_infer_forward(in, &wide, NULL, logits), CZ_INVALID);
        snprintf(sentence[d], sizeof sentence[d], "%s", cz_last_error());
        cz_infer_destroy(in);
    }
    ck_assert_str_eq(sentence[0], sentence[1]);
    cz_model_destroy(m);
    free(logits);
}
END_TEST

START_TEST(a_model_beyond_the_gpu_is_refused)
{
    struct cz_infer *in;
    struct cz_model *m = cz_model_open("llama-7b");
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    const struct cz_infer_options o = {
        .size = sizeof o, .B = 4096, .T = 2048, .gradients = true, .device = "cuda"};
    ck_fails(cz_infer_create(m, &o, &in), CZ_NOMEM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "of GPU memory"));
    cz_model_destroy(m);
}
END_TEST

TEST_MAIN("cuda/infer", decoders_agree_with_pytorch, encoders_agree_with_pytorch,
          greedy_text_is_that_of_the_cpu, unplanned_batches_are_refused_as_on_the_cpu,
          a_model_beyond_the_gpu_is_refused)
