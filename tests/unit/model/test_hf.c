/* Claim: GPT-2 folders of Hugging Face are read as transformers reads them (config defaults and
 * aliases, names with and without prefix, shards, dtypes), presets are what they say, an exported
 * folder loads again, and whatever is wrong with a folder is one sentence naming it. */
#include "formats/file_io.h"
#include "formats/json/json_copy.h"
#include "formats/safetensors/safetensors.h"
#include "model/model.h"
#include "tests/support/same_json.h"

#include <math.h>
#include <string.h>

#define GPT2 "models/gpt2" /* 2 layers, 48 wide, 4 heads, vocabulary 97, context 32 */

static char *slurp(const char *dir, const char *name, size_t *nbytes)
{
    char *text, *path = file_join(dir, name);
    ck_ok(file_load(path, 1 << 24, &text, nbytes));
    free(path);
    return text;
}

static void spill(const char *dir, const char *name, const void *src, size_t nbytes)
{
    char *path = file_join(dir, name);
    ck_ok(file_save(path, src, nbytes));
    free(path);
}

static void spill_text(const char *dir, const char *name, const char *text)
{
    spill(dir, name, text, strlen(text));
}

static struct cz_model *open_ok(const char *dir_or_preset)
{
    struct cz_model *m = cz_model_open(dir_or_preset);
    ck_assert_msg(m != NULL, "%s: %s", dir_or_preset, cz_last_error());
    return m;
}

/* Opening fails with `want` and a sentence holding `says`. */
static void open_fails(const char *dir_or_preset, cz_status want, const char *says)
{
    err_clear();
    struct cz_model *m = cz_model_open(dir_or_preset);
    ck_assert_msg(m == NULL, "%s opened although: %s", dir_or_preset, says);
    ck_assert_msg(cz_last_status() == want, "%s instead of %s: %s",
                  cz_status_name(cz_last_status()), cz_status_name(want), cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "\"%s\" lacks \"%s\"", cz_last_error(),
                  says);
}

/* Parameter `name`, whole; free() it. */
static float *weight(struct cz_model *m, const char *name, size_t *numel)
{
    size_t idx;
    ck_ok(param_table_find(model_params(m), name, &idx));
    *numel = model_params(m)->params[idx].numel;
    float *w = malloc(*numel * sizeof *w);
    ck_ok(model_read_weights(m, idx, 0, *numel, w));
    return w;
}

/* Both models hold the same bits. */
static void same_weights(struct cz_model *a, struct cz_model *b)
{
    ck_assert_uint_eq(model_params(a)->n_params, model_params(b)->n_params);
    for (size_t i = 0; i < model_params(a)->n_params; i++) {
        const char *name = model_params(a)->params[i].name;
        size_t n_a, n_b;
        float *w_a = weight(a, name, &n_a), *w_b = weight(b, name, &n_b);
        ck_assert_uint_eq(n_a, n_b);
        ck_assert_msg(memcmp(w_a, w_b, n_a * sizeof *w_a) == 0, "%s differs", name);
        free(w_a);
        free(w_b);
    }
}

/* ---- folders with weights rewritten -----------------------------------------------------------
 */

/* How a copy of the fixture's weights differs from it. */
struct edit {
    const char *drop;    /* tensor left out */
    const char *reshape; /* tensor that gets a last dimension one shorter */
    bool strip_prefix;   /* "transformer." removed, as GPT2Model saves */
    bool buffers;        /* attn.bias and masked_bias of old files, and an lm_head.weight */
    bool int_dtype;      /* every tensor as I32 */
    uint64_t shard_nbytes;
    enum safetensors_dtype dtype;
};

static void add_decl(struct safetensors_decl *decls, size_t *n, const char *name,
                     enum safetensors_dtype dtype, const int64_t *shape, size_t ndim)
{
    decls[(*n)++] = (struct safetensors_decl){name, dtype, shape, ndim};
}

static void write_folder(const char *dir, const struct edit *e)
{
    size_t nbytes;
    char *config = slurp(test_fixture(GPT2), "config.json", &nbytes);
    spill(dir, "config.json", config, nbytes);
    free(config);
    struct safetensors *st;
    ck_ok(safetensors_dir_open(test_fixture(GPT2), &st));
    struct safetensors_decl decls[64];
    const struct safetensors_info *source[64] = {0};
    int64_t shapes[64][2];
    size_t n = 0;
    enum safetensors_dtype dtype = e->int_dtype ? SAFETENSORS_I32 : e->dtype;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_info *t = safetensors_at(st, i);
        if (e->drop && strcmp(t->name, e->drop) == 0) continue;
        memcpy(shapes[n], t->shape, t->ndim * sizeof(int64_t));
        if (e->reshape && strcmp(t->name, e->reshape) == 0) shapes[n][t->ndim - 1]--;
        source[n] = t;
        add_decl(decls, &n, t->name + (e->strip_prefix ? strlen("transformer.") : 0), dtype,
                 shapes[n], t->ndim);
    }
    static const int64_t tril[] = {1, 1, 32, 32}, scalar[] = {1}, head[] = {97, 48};
    if (e->buffers) {
        add_decl(decls, &n, "h.0.attn.bias", SAFETENSORS_U8, tril, 4);
        add_decl(decls, &n, "h.1.attn.masked_bias", SAFETENSORS_F32, scalar, 1);
        add_decl(decls, &n, "lm_head.weight", SAFETENSORS_F32, head, 2);
    }
    struct safetensors_writer *w;
    ck_ok(safetensors_dir_create(dir, e->shard_nbytes, decls, n, NULL, 0, &w));
    float *values = calloc(1 << 16, sizeof *values);
    for (size_t i = 0; i < n; i++) {
        size_t numel = 1;
        for (size_t d = 0; d < decls[i].ndim; d++) numel *= (size_t)decls[i].shape[d];
        if (source[i]) ck_ok(safetensors_read_f32(st, source[i], 0, numel, values));
        if (decls[i].dtype == SAFETENSORS_BF16)
            for (size_t k = 0; k < numel; k++) ((uint16_t *)values)[k] = f32_to_bf16(values[k]);
        if (decls[i].dtype == SAFETENSORS_F16)
            for (size_t k = 0; k < numel; k++) ((uint16_t *)values)[k] = f32_to_f16(values[k]);
        ck_ok(safetensors_write(w, i, 0, numel, values));
    }
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    safetensors_close(st);
    free(values);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

START_TEST(fixture_is_read_whole)
{
    struct cz_model *m = open_ok(test_fixture(GPT2));
    ck_assert_int_eq(cz_model_vocab_size(m), 97);
    ck_assert_int_eq(cz_model_hidden_size(m), 48);
    ck_assert_int_eq(cz_model_t_max(m), 32);
    ck_assert_uint_eq(model_n_layers(m), 4);
    /* Hugging Face's order of named_parameters() */
    static const char *const order[] = {
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.h.0.ln_1.weight",
        "transformer.h.0.ln_1.bias",
        "transformer.h.0.attn.c_attn.weight",
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_proj.weight",
        "transformer.h.0.attn.c_proj.bias",
        "transformer.h.0.ln_2.weight",
        "transformer.h.0.ln_2.bias",
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_fc.bias",
        "transformer.h.0.mlp.c_proj.weight",
        "transformer.h.0.mlp.c_proj.bias",
        "transformer.h.1.ln_1.weight",
    };
    const struct param_table *t = model_params(m);
    ck_assert_uint_eq(t->n_params, 28);
    for (size_t i = 0; i < CZ_ARRAY_LEN(order); i++) ck_assert_str_eq(t->params[i].name, order[i]);
    ck_assert_str_eq(t->params[26].name, "transformer.ln_f.weight");
    ck_assert_str_eq(t->params[27].name, "transformer.ln_f.bias");
    ck_assert_uint_eq(t->n_aliases, 1);
    ck_assert_str_eq(t->aliases[0].name, "lm_head.weight");

    struct safetensors *st;
    ck_ok(safetensors_dir_open(test_fixture(GPT2), &st));
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_info *info = safetensors_at(st, i);
        size_t numel;
        float *w = weight(m, info->name, &numel), *want = malloc(numel * sizeof *want);
        ck_ok(safetensors_read(st, info, 0, numel, want));
        ck_assert_mem_eq(w, want, numel * sizeof *w);
        free(w);
        free(want);
    }
    safetensors_close(st);
    cz_model_destroy(m);
}
END_TEST

START_TEST(every_form_of_the_weights_is_read)
{
    const struct edit edits[] = {
        {.dtype = SAFETENSORS_F32},
        {.dtype = SAFETENSORS_F32, .strip_prefix = true},
        {.dtype = SAFETENSORS_F32, .strip_prefix = true, .buffers = true},
        {.dtype = SAFETENSORS_F32, .shard_nbytes = 30000},
    };
    struct cz_model *want = open_ok(test_fixture(GPT2));
    for (size_t i = 0; i < CZ_ARRAY_LEN(edits); i++) {
        const char *dir = test_tmp_make();
        write_folder(dir, &edits[i]);
        struct cz_model *m = open_ok(dir);
        same_weights(want, m);
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
    cz_model_destroy(want);
}
END_TEST

START_TEST(sixteen_bit_weights_are_widened)
{
    struct cz_model *want = open_ok(test_fixture(GPT2));
    const enum safetensors_dtype dtypes[] = {SAFETENSORS_BF16, SAFETENSORS_F16};
    for (size_t d = 0; d < 2; d++) {
        const char *dir = test_tmp_make();
        const struct edit e = {.dtype = dtypes[d]};
        write_folder(dir, &e);
        struct cz_model *m = open_ok(dir);
        size_t n, n_got;
        float *w = weight(want, "transformer.h.1.mlp.c_fc.weight", &n);
        float *got = weight(m, "transformer.h.1.mlp.c_fc.weight", &n_got);
        for (size_t i = 0; i < n; i++) {
            float rounded = d == 0 ? bf16_to_f32(f32_to_bf16(w[i])) : f16_to_f32(f32_to_f16(w[i]));
            ck_assert_float_eq(got[i], rounded);
        }
        free(w);
        free(got);
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
    cz_model_destroy(want);
}
END_TEST

START_TEST(untied_head_is_a_parameter_of_its_own)
{
    const char *dir = test_tmp_make();
    const struct edit e = {.dtype = SAFETENSORS_F32};
    write_folder(dir, &e);
    const char *untied = "{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_positions\": 32, "
                         "\"n_embd\": 48, \"n_layer\": 2, \"n_head\": 4, "
                         "\"tie_word_embeddings\": false}";
    spill_text(dir, "config.json", untied);
    struct cz_model *m = open_ok(dir); /* a head that is not there is a new one */
    cz_model_destroy(m);
    const struct edit with_head = {.dtype = SAFETENSORS_F32, .buffers = true};
    write_folder(dir, &with_head);
    spill_text(dir, "config.json", untied);
    m = open_ok(dir);
    ck_assert_uint_eq(model_params(m)->n_params, 29);
    ck_assert_uint_eq(model_params(m)->n_aliases, 0);
    ck_assert_str_eq(model_params(m)->params[28].name, "lm_head.weight");
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(folder_without_weights_starts_from_the_rules)
{
    const char *dir = test_tmp_make();
    spill_text(dir, "config.json",
               "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_ctx\": 16, \"hidden_size\": 32, "
               "\"num_hidden_layers\": 8, \"num_attention_heads\": 2, \"n_inner\": 40}");
    struct cz_model *m = open_ok(dir);
    ck_assert_int_eq(cz_model_t_max(m), 16); /* n_ctx stands in for n_positions */
    const struct param_table *t = model_params(m);
    size_t idx, n;
    ck_ok(param_table_find(t, "transformer.h.7.mlp.c_fc.weight", &idx));
    ck_assert_int_eq(t->params[idx].shape[1], 40);
    ck_assert_float_eq(t->params[idx].init_std, 0.02f);
    ck_ok(param_table_find(t, "transformer.h.7.mlp.c_proj.weight", &idx));
    ck_assert_float_eq_tol(t->params[idx].init_std, 0.02f / 4, 1e-9f); /* √(2·8) = 4 */
    ck_ok(param_table_find(t, "transformer.wpe.weight", &idx));
    ck_assert_float_eq(t->params[idx].init_std, 0.02f);
    float *w = weight(m, "transformer.h.3.ln_2.weight", &n);
    for (size_t i = 0; i < n; i++) ck_assert_float_eq(w[i], 1.0f);
    free(w);
    w = weight(m, "transformer.h.3.attn.c_attn.bias", &n);
    for (size_t i = 0; i < n; i++) ck_assert_float_eq(w[i], 0.0f);
    free(w);

    /* and takes another folder's when asked, if they fit */
    ck_fails(cz_model_init_from(m, test_fixture(GPT2), 0), CZ_CORRUPT);
    ck_assert(strstr(cz_last_error(), "(97, 48)") && strstr(cz_last_error(), "(50, 32)"));
    ck_fails(cz_model_init_from(m, dir, 0), CZ_NOTFOUND);
    w = weight(m, "transformer.h.3.ln_2.weight", &n); /* the source is still the old one */
    ck_assert_float_eq(w[0], 1.0f);
    free(w);
    cz_model_destroy(m);

    m = open_ok(test_fixture(GPT2));
    struct cz_model *other = open_ok(test_fixture(GPT2));
    ck_ok(cz_model_init_from(m, NULL, 3));
    ck_ok(cz_model_init_from(m, test_fixture(GPT2), 0));
    same_weights(m, other);
    cz_model_destroy(m);
    cz_model_destroy(other);
    test_tmp_remove(dir);
}
END_TEST

/* ---- what is refused --------------------------------------------------------------------------
 */

START_TEST(bad_configs_are_named)
{
    static const struct {
        const char *text;
        cz_status status;
        const char *says;
    } cases[] = {
        {"{\"model_type\": \"bloom\"}", CZ_UNSUPPORTED, "\"bloom\" is not among the supported"},
        {"{\"n_embd\": 8}", CZ_CORRUPT, "model_type"},
        {"{\"model_type\": \"gpt2\", ", CZ_CORRUPT, "config.json:1:"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": \"wide\"}", CZ_CORRUPT, "n_embd"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 0}", CZ_INVALID, "n_embd: 0 is outside 1"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": -3}", CZ_INVALID, "n_layer: -3"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 50, \"n_head\": 4}", CZ_INVALID,
         "n_head: 4 heads do not divide a width of 50"},
        {"{\"model_type\": \"gpt2\", \"resid_pdrop\": 1.0}", CZ_INVALID, "resid_pdrop"},
        {"{\"model_type\": \"gpt2\", \"activation_function\": \"gelu_10\"}", CZ_UNSUPPORTED,
         "\"gelu_10\" is not supported; supported: gelu_new, gelu_pytorch_tanh"},
        {"{\"model_type\": \"gpt2\", \"add_cross_attention\": true}", CZ_UNSUPPORTED,
         "add_cross_attention"},
        {"{\"model_type\": \"gpt2\", \"pruned_heads\": {\"0\": [1]}}", CZ_UNSUPPORTED,
         "pruned_heads"},
        {"{\"model_type\": \"gpt2\", \"quantization_config\": {\"bits\": 4}}", CZ_UNSUPPORTED,
         "quantization_config"},
        {"{\"model_type\": \"berta\", \"hidden_size\": 8, \"num_attention_heads\": 2, "
         "\"type_vocab_size\": 2, \"max_depth\": 3, \"tie_word_embeddings\": true}",
         CZ_UNSUPPORTED, "Nearest by its keys is bert, whose config.json does not have max_depth"},
        {"{\"model_type\": \"unlike\", \"d_model\": 8}", CZ_UNSUPPORTED, ", deberta-v2"},
        {"{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2DoubleHeadsModel\"]}",
         CZ_UNSUPPORTED, "architectures[0]"},
    };
    const char *dir = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        spill_text(dir, "config.json", cases[i].text);
        open_fails(dir, cases[i].status, cases[i].says);
        ck_assert(strstr(cz_last_error(), "config.json") != NULL);
    }
    test_tmp_remove(dir);
    ck_assert_ptr_null(cz_model_from_hf("/nonexistent/folder"));
    ck_assert_int_eq(cz_last_status(), CZ_NOTFOUND);
    ck_assert(strstr(cz_last_error(), "/nonexistent/folder/config.json") != NULL);
}
END_TEST

START_TEST(bad_weights_are_named)
{
    const struct {
        struct edit edit;
        cz_status status;
        const char *says;
    } cases[] = {
        {{.drop = "transformer.h.1.ln_2.bias"},
         CZ_NOTFOUND,
         "lack tensor transformer.h.1.ln_2.bias (48)"},
        {{.reshape = "transformer.h.0.attn.c_attn.weight"},
         CZ_CORRUPT,
         "transformer.h.0.attn.c_attn.weight has shape (48, 143), the model needs (48, 144)"},
        {{.int_dtype = true}, CZ_UNSUPPORTED, "is I32; weights may be F32, BF16, F16 or F64"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const char *dir = test_tmp_make();
        struct edit e = cases[i].edit;
        e.dtype = SAFETENSORS_F32;
        write_folder(dir, &e);
        open_fails(dir, cases[i].status, cases[i].says);
        ck_assert(strstr(cz_last_error(), dir) != NULL);
        test_tmp_remove(dir);
    }
}
END_TEST

START_TEST(truncated_weights_are_corrupt)
{
    const char *dir = test_tmp_make();
    size_t n_config, n;
    char *config = slurp(test_fixture(GPT2), "config.json", &n_config);
    char *weights = slurp(test_fixture(GPT2), "model.safetensors", &n);
    spill(dir, "config.json", config, n_config);
    const size_t lengths[] = {0, 4, 8, 100, n / 2, n - 1};
    for (size_t i = 0; i < CZ_ARRAY_LEN(lengths); i++) {
        spill(dir, "model.safetensors", weights, lengths[i]);
        open_fails(dir, CZ_CORRUPT, "model.safetensors");
    }
    free(config);
    free(weights);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(other_weight_formats_are_not_mistaken_for_none)
{
    static const char *const names[] = {"tf_model.h5",
                                        "flax_model.msgpack",
                                        "model.fp16.safetensors",
                                        "model-00001-of-00002.safetensors",
                                        "pytorch_model-00001-of-00002.bin",
                                        "q4.gguf"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        const char *dir = test_tmp_make();
        spill_text(dir, "config.json", "{\"model_type\": \"gpt2\"}");
        spill_text(dir, names[i], "");
        open_fails(dir, CZ_UNSUPPORTED, names[i]);
        test_tmp_remove(dir);
    }
}
END_TEST

/* ---- presets ----------------------------------------------------------------------------------
 */

START_TEST(presets_have_the_published_sizes)
{
    static const struct {
        const char *name;
        size_t n_layers, numel;
        int64_t hidden;
    } presets[] = {
        {"gpt2-tiny", 4, 120576, 64},         {"gpt2", 14, 124439808, 768},
        {"gpt2-medium", 26, 354823168, 1024}, {"gpt2-large", 38, 774030080, 1280},
        {"gpt2-xl", 50, 1557611200, 1600},    {"gpt2-1.3b", 26, 1313626112, 2048},
        {"gpt2-7b", 34, 6658404352, 4096},    {"gpt2-13b", 42, 12853386240, 5120},
        {"gpt2-70b", 88, 69694005248, 8192},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++) {
        struct cz_model *m = open_ok(presets[i].name);
        ck_assert_uint_eq(model_n_layers(m), presets[i].n_layers);
        ck_assert_uint_eq(param_table_numel(model_params(m), false), presets[i].numel);
        ck_assert_int_eq(cz_model_hidden_size(m), presets[i].hidden);
        ck_assert_int_eq(cz_model_t_max(m), i == 0 ? 64 : i < 6 ? 1024 : 2048);
        ck_assert_int_eq(cz_model_vocab_size(m), i == 0 ? 256 : 50257);
        ck_assert_str_eq(cz_model_name(m), presets[i].name);
        cz_model_destroy(m);
    }
    open_fails("mamba", CZ_NOTFOUND,
               "mamba is neither a folder with a config.json nor a preset; czero models lists the "
               "presets");
    ck_assert_ptr_null(cz_model_from_preset("mamba"));
    ck_assert_str_eq(cz_last_error(), "\"mamba\" is not a preset; czero models lists them");
    ck_assert_ptr_null(cz_model_from_preset("gpt2-mediun"));
    ck_assert(strstr(cz_last_error(), "did you mean gpt2-medium?") != NULL);
}
END_TEST

/* Names that people bring from a hub, or half remember, lead there. */
START_TEST(names_of_no_model_are_explained)
{
    static const struct {
        const char *name, *preset, *hub; /* NULL: none is named */
    } cases[] = {
        {"llama-7B", "llama-7b", "meta-llama"},
        {"gpt-2", "gpt2", "openai-community"},
        {"distilbert-base-uncased", "distilbert-base", "distilbert"},
        {"distillbert", "distilbert-base", "distilbert"},
        {"bert-base-chinese", "bert-base", "google-bert"},
        {"bert", "bert-tiny", "google-bert"},
        {"xlm-roberta", "xlm-roberta-base", "FacebookAI"},
        {"mdeberta-x", "mdeberta-v3-base", "microsoft"},
        {"Qwen3-8B", "qwen3-8b", "Qwen"},
        {"Ministral-8B-Instruct-2410", "ministral-8b", "mistralai"},
        {"mamba", NULL, NULL},
        {"./gpt2", NULL, NULL},
        {"~/bert", NULL, NULL},
        {"a/b/gpt2", NULL, NULL},
        {"", NULL, NULL},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char preset[100], hub[100];
        snprintf(preset, sizeof preset, "did you mean the preset %s, which has random weights?",
                 cases[i].preset ? cases[i].preset : "");
        snprintf(hub, sizeof hub, "hf download %s/%s --local-dir %s", cases[i].hub, cases[i].name,
                 cases[i].name);
        open_fails(cases[i].name, CZ_NOTFOUND, "is neither a folder with a config.json nor");
        ck_assert_msg((strstr(cz_last_error(), preset) != NULL) == (cases[i].preset != NULL), "%s",
                      cz_last_error());
        ck_assert_msg((strstr(cz_last_error(), hub) != NULL) == (cases[i].hub != NULL), "%s",
                      cz_last_error());
        ck_assert_msg((strstr(cz_last_error(), "czero models") != NULL) == !cases[i].preset, "%s",
                      cz_last_error());
    }
    open_fails("Org/Name", CZ_NOTFOUND, "hf download Org/Name --local-dir Name");
}
END_TEST

START_TEST(other_folders_are_explained)
{
    const char *dir = test_tmp_make();
    char path[200], config[300];
    open_fails(dir, CZ_NOTFOUND, "is no model's folder: there is no config.json in it");
    snprintf(path, sizeof path, "%s/latest", dir);
    ck_ok(file_save(path, "global_step1", 12));
    open_fails(dir, CZ_NOTFOUND, "holds checkpoints, and no config.json: czero export");
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    static const char *const texts[] = {"{}", "{\"base_model_name_or_path\": \"Org/base\"}",
                                        "{\"base_model_name_or_path\": \"base\"}"};
    static const char *const says[] = {" is an adapter of MODEL: use --model DIR --adapter ",
                                       " is an adapter of Org/base: use --model DIR --adapter ",
                                       "/base --adapter "};
    snprintf(config, sizeof config, "%s/base", dir);
    ck_ok(file_make_dirs(config));
    snprintf(config, sizeof config, "%s/base/config.json", dir);
    ck_ok(file_save(config, "{}", 2));
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++) {
        ck_ok(file_save(path, texts[i], strlen(texts[i])));
        open_fails(dir, CZ_NOTFOUND, says[i]);
    }
    ck_ok(file_save(path, "{\"base_model_name_or_path\": 3}", 30));
    open_fails(dir, CZ_CORRUPT, "base_model_name_or_path");
    test_tmp_remove(dir);
}
END_TEST

/* ---- export -----------------------------------------------------------------------------------
 */

static cz_status fetch_source(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, off, numel, dst);
}

START_TEST(export_is_read_back)
{
    const char *tmp = test_tmp_make();
    char dir[128];
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const char *const names[] = {"\"float32\"", "\"bfloat16\"", "\"float16\""};
    const char *const sources[] = {test_fixture(GPT2), "gpt2-tiny"};
    for (size_t i = 0; i < 6; i++) {
        enum cz_dtype dtype = dtypes[i % 3];
        snprintf(dir, sizeof dir, "%s/a/%zu", tmp, i); /* parents are made, too */
        struct cz_model *m = open_ok(sources[i / 3]);
        ck_ok(model_export_hf(m, dir, dtype, fetch_source, m));
        struct cz_model *back = open_ok(dir);
        if (dtype == DTYPE_F32) same_weights(m, back);
        size_t n, n_back, n_config;
        float *w = weight(m, "transformer.wpe.weight", &n);
        float *got = weight(back, "transformer.wpe.weight", &n_back);
        ck_assert_uint_eq(n, n_back);
        for (size_t k = 0; k < n; k++) {
            float want = dtype == DTYPE_BF16  ? bf16_to_f32(f32_to_bf16(w[k]))
                         : dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(w[k]))
                                              : w[k];
            ck_assert_float_eq(got[k], want);
        }
        free(w);
        free(got);
        char *config = slurp(dir, "config.json", &n_config);
        ck_assert_msg(strstr(config, names[i % 3]) != NULL, "%s", config);
        free(config);
        struct safetensors *st; /* the tied head is not written twice */
        ck_ok(safetensors_dir_open(dir, &st));
        ck_assert_uint_eq(safetensors_count(st), 28);
        ck_assert_str_eq(safetensors_metadata(st, "format"), "pt");
        safetensors_close(st);
        cz_model_destroy(back);
        cz_model_destroy(m);
    }
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(export_keeps_the_config)
{
    const char *dir = test_tmp_make();
    struct cz_model *m = open_ok(test_fixture(GPT2));
    ck_ok(model_export_hf(m, dir, DTYPE_BF16, fetch_source, m));
    cz_model_destroy(m);
    char *path_a = file_join(test_fixture(GPT2), "config.json"),
         *path_b = file_join(dir, "config.json");
    struct json_doc *a, *b;
    ck_ok(json_load(path_a, JSON_STRICT, &a));
    ck_ok(json_load(path_b, JSON_STRICT, &b));
    size_t n_traces = 0;
    for (size_t i = 0; i < json_count(json_root(a)); i++) {
        const struct json_node *x = json_child(json_root(a), i);
        const struct json_node *y = json_get(json_root(b), json_key(x));
        n_traces += json_is_trace(x);
        ck_assert_msg((y == NULL) == json_is_trace(x), "%s", json_key(x));
        if (y && strcmp(json_key(x), "dtype") != 0) same_json_nodes(x, y, NULL);
    }
    ck_assert_uint_eq(n_traces, 1); /* _name_or_path */
    ck_assert_uint_eq(json_count(json_root(a)) - n_traces, json_count(json_root(b)));
    json_free(a);
    json_free(b);
    free(path_a);
    free(path_b);
    test_tmp_remove(dir);
}
END_TEST

static cz_status fetch_failing(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    if (param_idx > 5) return err_set(CZ_IO, 0, "the well is dry");
    return fetch_source(user, param_idx, off, numel, dst);
}

START_TEST(failed_export_leaves_nothing)
{
    const char *tmp = test_tmp_make();
    char dir[128], command[256];
    snprintf(dir, sizeof dir, "%s/out", tmp);
    struct cz_model *m = open_ok(test_fixture(GPT2));
    ck_fails(model_export_hf(m, dir, DTYPE_F32, fetch_failing, m), CZ_IO);
    ck_assert_str_eq(cz_last_error(), "the well is dry");
    ck_assert(!file_exists(dir)); /* the folder was ours */

    ck_ok(model_export_hf(m, dir, DTYPE_F32, fetch_source, m));
    ck_fails(model_export_hf(m, dir, DTYPE_BF16, fetch_failing, m), CZ_IO);
    struct cz_model *back = open_ok(dir); /* the older export still stands */
    same_weights(m, back);
    cz_model_destroy(back);
    snprintf(command, sizeof command, "test $(ls -A %s | wc -l) = 2", dir);
    ck_assert_int_eq(system(command), 0);

    snprintf(dir, sizeof dir, "%s/file", tmp);
    spill_text(tmp, "file", "in the way");
    ck_fails(model_export_hf(m, dir, DTYPE_F32, fetch_source, m), CZ_IO);
    ck_assert(strstr(cz_last_error(), dir) != NULL);
    ck_fails(model_export_hf(m, tmp, DTYPE_I32, fetch_source, m), CZ_INVALID);
    cz_model_destroy(m);
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN("model/hf", fixture_is_read_whole, every_form_of_the_weights_is_read,
          sixteen_bit_weights_are_widened, untied_head_is_a_parameter_of_its_own,
          folder_without_weights_starts_from_the_rules, bad_configs_are_named,
          bad_weights_are_named, truncated_weights_are_corrupt,
          other_weight_formats_are_not_mistaken_for_none, presets_have_the_published_sizes,
          names_of_no_model_are_explained, other_folders_are_explained, export_is_read_back,
          export_keeps_the_config, failed_export_leaves_nothing)
