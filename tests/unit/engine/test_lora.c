/* Claim: a model with branches computes what the model computes into whose weights they are merged:
 * the same logits, in training form and decoded token by token, and the gradients of A and B are
 * s·Bᵀ·dW and s·dW·Aᵀ of that model's dW; with DoRA those of g ⊙ dW, and the lengths' Σ dW·W'/m by
 * rows; so in every family, for weights stored either way. The
 * frozen weights have no gradient. */
#include "base/rng.h"
#include "model/model.h"
#include "tests/support/check_main.h"
#include "tests/support/small_models.h"
#include <czero/infer.h>

#include <math.h>
#include <string.h>

enum { B = 2, T = 8, RANK = 3 };

static int32_t ids[B * T], labels[B * T], classes[B];

static struct cz_batch batch_for(const struct cz_model *m)
{
    for (int i = 0; i < B * T; i++) {
        ids[i] = 1 + (i * 23 + i / 5) % 60;
        labels[i] = (i * 7) % 61;
        if (cz_model_labels(m) == CZ_LABELS_REPLACED) labels[i] %= 2;
    }
    for (int i = 0; i < B; i++) classes[i] = i % 2;
    return (struct cz_batch){.size = sizeof(struct cz_batch),
                             .B = B,
                             .T = T,
                             .ids = ids,
                             .labels = cz_model_labels(m) == CZ_LABELS_CLASS ? classes : labels};
}

/* Every value of the model by its init rule, but B, which would start as zeros. */
static cz_status fetch(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    struct cz_model *m = user;
    const struct param_info *p = &model_params(m)->params[param_idx];
    if (!strstr(p->name, "lora_B")) return model_read_weights(m, param_idx, off, numel, dst);
    const struct rng_key key = {.seed = 11, .site = (uint32_t)param_idx};
    for (size_t i = 0; i < numel; i++) dst[i] = 0.2f * rng_normal(&key, off + i);
    return CZ_OK;
}

struct both {
    struct cz_model *adapted, *merged;
    struct cz_infer *of_adapted, *of_merged;
    char dirs[3][64];
};

static void open_infer(struct cz_model *m, struct cz_infer **out)
{
    const struct cz_infer_options options = {
        .size = sizeof options, .B = B, .T = T, .dtype = DTYPE_F32, .gradients = true};
    ck_ok(cz_model_set_shape(m, T));
    ck_ok(cz_infer_create(m, &options, out));
}

static void open_both(struct both *x, const char *config, double dropout, bool dora)
{
    struct cz_model *made = small_model(config);
    const struct cz_lora_options o = {
        .size = sizeof o, .rank = RANK, .alpha = 4.5, .dropout = dropout, .dora = dora};
    for (int i = 0; i < 3; i++) snprintf(x->dirs[i], sizeof x->dirs[i], "%s", test_tmp_make());
    ck_ok(model_export_hf(made, x->dirs[0], DTYPE_F32, fetch, made));
    ck_ok(cz_model_add_lora(made, &o));
    ck_ok(model_export_adapter(made, x->dirs[1], DTYPE_F32, fetch, made));
    ck_ok(model_export_merged(made, x->dirs[2], DTYPE_F32, fetch, made));
    cz_model_destroy(made);
    x->adapted = cz_model_from_hf(x->dirs[0]);
    x->merged = cz_model_from_hf(x->dirs[2]);
    ck_assert(x->adapted && x->merged);
    ck_ok(cz_model_add_adapter(x->adapted, x->dirs[1], true));
    open_infer(x->adapted, &x->of_adapted);
    open_infer(x->merged, &x->of_merged);
}

static void close_both(struct both *x)
{
    cz_infer_destroy(x->of_adapted);
    cz_infer_destroy(x->of_merged);
    cz_model_destroy(x->adapted);
    cz_model_destroy(x->merged);
    for (int i = 0; i < 3; i++) test_tmp_remove(x->dirs[i]);
}

static void check_close(const char *what, const float *have, const float *want, size_t n,
                        double bound)
{
    double largest = 1e-6, error = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) error = fmax(error, fabs((double)have[i] - (double)want[i]));
    ck_assert_msg(error <= bound * largest, "%s: %.2e of %.2e", what, error, largest);
}

/* g (O), the factors of the rows: with DoRA m/‖V‖, where V = W'/g; and checks dm. */
static float *lengths_of(const struct both *x, const struct model_layer *layer,
                         const struct layer_branch *b, const float *dw, bool in_out)
{
    const struct param_table *t = model_params(x->adapted);
    const size_t w = layer->param_idx[b->w], a = layer->param_idx[b->a];
    const size_t I = (size_t)t->params[a].shape[1], O = t->params[w].numel / I;
    float *g = malloc(O * sizeof *g);
    for (size_t o = 0; o < O; o++) g[o] = 1;
    if (!b->is_dora) return g;
    const size_t m = layer->param_idx[b->m], up = layer->param_idx[b->b];
    float *W = malloc(O * I * sizeof *W), *A = malloc(I * RANK * sizeof *A);
    float *Bw = malloc(O * RANK * sizeof *Bw), *dm = calloc(O, sizeof *dm);
    ck_ok(model_read_weights(x->adapted, w, 0, O * I, W));
    ck_ok(model_read_weights(x->adapted, a, 0, I * RANK, A));
    ck_ok(model_read_weights(x->adapted, up, 0, O * RANK, Bw));
    ck_ok(model_read_weights(x->adapted, m, 0, O, g));
    for (size_t o = 0; o < O; o++) {
        double sumsq = 0, dot = 0;
        for (size_t i = 0; i < I; i++) {
            const size_t at = in_out ? i * O + o : o * I + i;
            double v = (double)W[at];
            for (size_t r = 0; r < RANK; r++)
                v += (double)(b->scale * Bw[o * RANK + r] * A[r * I + i]);
            sumsq += v * v;
            dot += v * (double)dw[at];
        }
        g[o] = (float)((double)g[o] / sqrt(sumsq));
        dm[o] = (float)(dot / sqrt(sumsq));
    }
    check_close(t->params[m].name, cz_infer_gradient(x->of_adapted, m), dm, O, 2e-5);
    free(W);
    free(A);
    free(Bw);
    free(dm);
    return g;
}

/* dA and dB by the chain rule from dW, stored (out,in) or (in,out). */
static void expect_grads(const struct both *x, const struct model_layer *layer,
                         const struct layer_branch *b)
{
    const struct param_table *t = model_params(x->adapted);
    const size_t w = layer->param_idx[b->w], a = layer->param_idx[b->a],
                 bb = layer->param_idx[b->b];
    const bool in_out = layer->cls->flags & LAYER_MAPS_IN_OUT;
    const size_t I = (size_t)t->params[a].shape[1], O = (size_t)t->params[bb].shape[0];
    const float *dw = cz_infer_gradient(x->of_merged, w);
    float *g = lengths_of(x, layer, b, dw, in_out);
    float *A = malloc(I * RANK * sizeof *A), *Bw = malloc(O * RANK * sizeof *Bw);
    float *dA = calloc(I * RANK, sizeof *dA), *dB = calloc(O * RANK, sizeof *dB);
    ck_ok(model_read_weights(x->adapted, a, 0, I * RANK, A));
    ck_ok(model_read_weights(x->adapted, bb, 0, O * RANK, Bw));
    for (size_t o = 0; o < O; o++)
        for (size_t i = 0; i < I; i++)
            for (size_t r = 0; r < RANK; r++) {
                const float d = g[o] * b->scale * dw[in_out ? i * O + o : o * I + i];
                dA[r * I + i] += d * Bw[o * RANK + r];
                dB[o * RANK + r] += d * A[r * I + i];
            }
    ck_assert_ptr_null(cz_infer_gradient(x->of_adapted, w));
    check_close(t->params[a].name, cz_infer_gradient(x->of_adapted, a), dA, I * RANK, 2e-5);
    check_close(t->params[bb].name, cz_infer_gradient(x->of_adapted, bb), dB, O * RANK, 2e-5);
    free(g);
    free(A);
    free(Bw);
    free(dA);
    free(dB);
}

#define DECODER(TYPE, HEAD, MORE)                                                                  \
    "{\"model_type\": \"" TYPE "\", \"architectures\": [\"" HEAD                                   \
    "\"], \"hidden_size\": 24, \"intermediate_size\": 40, \"num_hidden_layers\": 2, "              \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 6, \"vocab_size\": "    \
    "61, \"max_position_embeddings\": 32, \"initializer_range\": 0.1" MORE "}"

#define ENCODER(TYPE, HEAD, MORE)                                                                  \
    "{\"model_type\": \"" TYPE "\", \"architectures\": [\"" HEAD                                   \
    "\"], \"hidden_size\": 24, \"intermediate_size\": 40, \"num_hidden_layers\": 2, "              \
    "\"num_attention_heads\": 4, \"vocab_size\": 61, \"max_position_embeddings\": 32, "            \
    "\"initializer_range\": 0.1, \"pad_token_id\": 0, \"id2label\": {\"0\": \"a\", \"1\": "        \
    "\"b\", \"2\": \"c\"}" MORE "}"

static const char *const configs[] = {
    small_llama,
    small_gpt2,
    small_bert,
    small_classifier,
    DECODER("qwen2", "Qwen2ForCausalLM", ""),
    DECODER("qwen3", "Qwen3ForCausalLM", ", \"tie_word_embeddings\": true"),
    DECODER("mistral", "MistralForCausalLM", ", \"sliding_window\": 5"),
    DECODER("olmo2", "Olmo2ForCausalLM", ""),
    DECODER("granite", "GraniteForCausalLM", ", \"residual_multiplier\": 0.5"),
    DECODER("phi3", "Phi3ForCausalLM",
            ", \"pad_token_id\": 0, \"bos_token_id\": 1, "
            "\"eos_token_id\": 2"),
    DECODER("gemma2", "Gemma2ForCausalLM", ", \"query_pre_attn_scalar\": 6"),
    DECODER("qwen3_moe", "Qwen3MoeForCausalLM",
            ", \"num_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16"),
    /* maps in front of the blocks and behind them */
    ENCODER(
        "deberta-v2", "DebertaV2ForSequenceClassification",
        ", \"embedding_size\": 16, \"relative_attention\": true, \"pos_att_type\": \"c2p|p2c\", "
        "\"position_biased_input\": false, \"type_vocab_size\": 0"),
    ENCODER("electra", "ElectraForSequenceClassification", ", \"embedding_size\": 16"),
    ENCODER("electra", "ElectraForPreTraining", ", \"embedding_size\": 16"),
    ENCODER("electra", "ElectraForMaskedLM", ", \"embedding_size\": 16"),
    ENCODER("modernbert", "ModernBertForSequenceClassification", ""),
    ENCODER("modernbert", "ModernBertForMaskedLM", ""),
};

/* Branches of maps that are in no block. */
static const struct {
    const char *architecture;
    const char *modules[2];
} outside[] = {
    {"BertForMaskedLM", {"cls.predictions.transform.dense"}},
    {"BertForSequenceClassification", {"bert.pooler.dense"}},
    {"DebertaV2ForSequenceClassification", {"pooler.dense", "deberta.embeddings.embed_proj"}},
    {"ElectraForSequenceClassification", {"electra.embeddings_project"}},
    {"ElectraForPreTraining", {"electra.embeddings_project", "discriminator_predictions.dense"}},
    {"ElectraForMaskedLM", {"electra.embeddings_project", "generator_predictions.dense"}},
    {"ModernBertForSequenceClassification", {"head.dense"}},
    {"ModernBertForMaskedLM", {"head.dense"}},
};

static void check_outside(const char *config, const struct cz_model *m)
{
    char name[128];
    size_t idx;
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        snprintf(name, sizeof name, "[\"%s\"]", outside[i].architecture);
        if (!strstr(config, name)) continue;
        for (int k = 0; k < 2 && outside[i].modules[k]; k++) {
            snprintf(name, sizeof name, "%s.lora_A.weight", outside[i].modules[k]);
            ck_ok(param_table_find(model_params(m), name, &idx));
        }
    }
}

static void compare(const char *config, bool dora)
{
    struct both x;
    open_both(&x, config, 0, dora);
    const struct cz_batch batch = batch_for(x.adapted);
    const bool classifies = cz_model_labels(x.adapted) == CZ_LABELS_CLASS;
    const bool is_yes_or_no = strstr(config, "ForPreTraining");
    const size_t n = classifies ? B * 3 : is_yes_or_no ? B * T : B * T * 61;
    float *ours = calloc(n, sizeof *ours), *theirs = calloc(n, sizeof *theirs), loss, other;
    ck_ok(cz_infer_forward(x.of_adapted, &batch, &loss, ours));
    ck_ok(cz_infer_forward(x.of_merged, &batch, &other, theirs));
    check_close("logits", ours, theirs, n, 1e-5);
    check_close("loss", &loss, &other, 1, 1e-6);
    ck_ok(cz_infer_gradients(x.of_adapted, &batch, &loss));
    ck_ok(cz_infer_gradients(x.of_merged, &batch, &other));
    size_t n_branches = 0;
    for (size_t i = 0; i < model_n_layers(x.adapted); i++) {
        const struct model_layer *layer = model_layer_at(x.adapted, i);
        for (size_t k = 0; k < layer->n_branches; k++, n_branches++)
            expect_grads(&x, layer, &layer->branches[k]);
    }
    ck_assert_uint_ge(n_branches, 8);
    check_outside(config, x.adapted);
    free(ours);
    free(theirs);
    close_both(&x);
}

START_TEST(branches_equal_the_merged_model)
{
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) compare(configs[c], false);
}
END_TEST

START_TEST(dora_equals_the_merged_model)
{
    for (size_t c = 1; c < sizeof configs / sizeof configs[0]; c += 2) compare(configs[c], true);
}
END_TEST

START_TEST(decoding_with_a_cache_is_the_same)
{
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        struct both x;
        float prompt[B * 61], step[B * 61], all[B * T * 61];
        if (!strstr(configs[c], "CausalLM") && !strstr(configs[c], "GPT2LM")) continue;
        open_both(&x, configs[c], 0.5, c % 2);
        struct cz_batch batch = batch_for(x.adapted);
        const struct cz_infer_options options = {
            .size = sizeof options, .B = B, .T = T, .dtype = DTYPE_F32, .cache = true};
        struct cz_infer *in;
        ck_ok(cz_infer_create(x.adapted, &options, &in));
        ck_ok(cz_infer_forward(in, &batch, NULL, all));
        /* All but the last token of each row at once, then that one. */
        int32_t head[B * (T - 1)], last[B];
        for (int b = 0; b < B; b++) {
            memcpy(head + b * (T - 1), ids + b * T, (T - 1) * sizeof *ids);
            last[b] = ids[b * T + T - 1];
        }
        batch = (struct cz_batch){.size = sizeof batch, .B = B, .T = T - 1, .ids = head};
        ck_ok(cz_infer_decode(in, &batch, 0, prompt));
        batch = (struct cz_batch){.size = sizeof batch, .B = B, .T = 1, .ids = last};
        ck_ok(cz_infer_decode(in, &batch, T - 1, step));
        for (int b = 0; b < B; b++) {
            check_close("prompt", prompt + b * 61, all + (b * T + T - 2) * 61, 61, 1e-5);
            check_close("token", step + b * 61, all + (b * T + T - 1) * 61, 61, 1e-5);
        }
        cz_infer_destroy(in);
        close_both(&x);
    }
}
END_TEST

TEST_MAIN("engine/lora", branches_equal_the_merged_model, dora_equals_the_merged_model,
          decoding_with_a_cache_is_the_same)
