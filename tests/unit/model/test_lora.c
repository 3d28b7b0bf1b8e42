/* Claim: an adapter's branches stand beside the maps that were asked for, by names, by an
 * expression or by blocks, and everything else is frozen but modules_to_save; a mistyped target is
 * named. PEFT's files give the same branches back with every value; files that are cut, of another
 * shape or of another kind of adapter are refused by name, and the model stays as it was. */
#include "base/log.h"
#include "base/text/unread.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "model/model.h"
#include "tests/support/check_main.h"
#include "tests/support/small_models.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* A folder of its own: small_model() makes and removes others. */
static const char *folder(char buf[64])
{
    snprintf(buf, 64, "%s", test_tmp_make());
    return buf;
}

static size_t n_trained(const struct cz_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < model_params(m)->n_params; i++)
        n += model_params(m)->params[i].trainable;
    return n;
}

static size_t n_branches(const struct cz_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < model_n_layers(m); i++) n += model_layer_at(m, i)->n_branches;
    return n;
}

static const struct param_info *param_of(const struct cz_model *m, const char *name)
{
    size_t idx;
    ck_ok(param_table_find(model_params(m), name, &idx));
    return &model_params(m)->params[idx];
}

static struct cz_lora_options of_targets(const char *targets)
{
    return (struct cz_lora_options){
        .size = sizeof(struct cz_lora_options), .rank = 4, .targets = targets};
}

static size_t branches_with(const char *config, const struct cz_lora_options *options)
{
    struct cz_model *m = small_model(config);
    ck_ok(cz_model_add_lora(m, options));
    size_t n = n_branches(m);
    ck_assert_uint_eq(n_trained(m), 2 * n);
    cz_model_destroy(m);
    return n;
}

START_TEST(targets_are_names_expressions_or_all)
{
    struct cz_lora_options o = of_targets(NULL);
    ck_assert_uint_eq(branches_with(small_llama, NULL), 5 * 7);
    ck_assert_uint_eq(branches_with(small_llama, &o), 5 * 7);
    ck_assert_uint_eq(branches_with(small_gpt2, &o), 5 * 4);
    ck_assert_uint_eq(branches_with(small_bert, &o), 5 * 6 + 1); /* and the head's dense */
    o.layers = "0,2-3";
    ck_assert_uint_eq(branches_with(small_llama, &o), 3 * 7);
    ck_assert_uint_eq(branches_with(small_bert, &o), 3 * 6); /* a head is in no block */
    static const struct {
        const char *layers;
        size_t n;
    } ranges[] = {{"0-9", 5},   {"0-4", 5},  {"4", 1},     {"1-1", 1},  {"0,0", 1},
                  {"3-9,0", 3}, {"2-30", 3}, {"1-2,4", 3}, {"0-0,9", 1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(ranges); i++) {
        o.layers = ranges[i].layers;
        ck_assert_uint_eq(branches_with(small_llama, &o), ranges[i].n * 7);
    }
    o = of_targets("q_proj, v_proj");
    ck_assert_uint_eq(branches_with(small_llama, &o), 5 * 2);
    o = of_targets("layers.1.self_attn.q_proj");
    ck_assert_uint_eq(branches_with(small_llama, &o), 1);
    o = of_targets(".*layers\\.[0-2]\\..*_proj");
    ck_assert_uint_eq(branches_with(small_llama, &o), 3 * 7);
    o = of_targets("c_proj"); /* of attention and of the MLP */
    ck_assert_uint_eq(branches_with(small_gpt2, &o), 5 * 2);
}
END_TEST

START_TEST(shapes_scales_and_init_rules)
{
    struct cz_model *m = small_model(small_gpt2);
    struct cz_lora_options o = of_targets("c_attn");
    o.alpha = 6;
    o.dropout = 0.25;
    ck_ok(cz_model_add_lora(m, &o));
    const struct param_info *a = param_of(m, "transformer.h.1.attn.c_attn.lora_A.weight");
    const struct param_info *b = param_of(m, "transformer.h.1.attn.c_attn.lora_B.weight");
    ck_assert_int_eq(a->shape[0], 4);
    ck_assert_int_eq(a->shape[1], 24);
    ck_assert_int_eq(b->shape[0], 72);
    ck_assert_int_eq(b->shape[1], 4);
    const struct model_layer *layer = model_layer_at(m, 2);
    ck_assert_uint_eq(layer->n_branches, 1);
    ck_assert_float_eq(layer->branches[0].scale, 1.5f);
    ck_assert_float_eq(layer->branches[0].dropout_p, 0.25f);
    float values[96], again[40], zero[288];
    size_t a_idx = (size_t)(a - model_params(m)->params), b_idx = a_idx + 1;
    ck_ok(model_read_weights(m, a_idx, 0, 96, values));
    ck_ok(model_read_weights(m, a_idx, 7, 40, again));
    ck_assert_mem_eq(values + 7, again, sizeof again);
    const float bound = 0.2041242f; /* 1/√24 */
    float low = 0, high = 0;
    for (int i = 0; i < 96; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    ck_assert(low >= -bound && low < -0.8f * bound && high < bound && high > 0.8f * bound);
    ck_ok(model_read_weights(m, b_idx, 0, 288, zero));
    for (int i = 0; i < 288; i++) ck_assert_float_eq(zero[i], 0);
    cz_model_destroy(m);

    m = small_model(small_llama);
    o = of_targets("q_proj");
    o.rslora = true;
    o.alpha = 6;
    ck_ok(cz_model_add_lora(m, &o));
    ck_assert_float_eq(model_layer_at(m, 1)->branches[0].scale, 3); /* 6/√4 */
    cz_model_destroy(m);
}
END_TEST

START_TEST(lengths_begin_as_those_of_the_weight)
{
    static const char *const configs[] = {small_llama, small_gpt2};
    static const char *const weights[] = {"model.layers.1.self_attn.o_proj.weight",
                                          "transformer.h.1.attn.c_attn.weight"};
    static const char *const lengths[] = {
        "model.layers.1.self_attn.o_proj.lora_magnitude_vector.weight",
        "transformer.h.1.attn.c_attn.lora_magnitude_vector.weight"};
    for (int c = 0; c < 2; c++) {
        struct cz_model *m = small_model(configs[c]);
        struct cz_lora_options o = of_targets(NULL);
        o.dora = true;
        ck_ok(cz_model_add_lora(m, &o));
        ck_assert_uint_eq(n_trained(m), 3 * n_branches(m));
        const struct param_info *w = param_of(m, weights[c]), *v = param_of(m, lengths[c]);
        const size_t n_out = v->numel, n_in = w->numel / n_out;
        float *values = malloc(w->numel * sizeof *values), *have = malloc(n_out * sizeof *have);
        ck_assert_int_eq(v->ndim, 1);
        ck_assert_int_eq(w->shape[c], (int64_t)n_out);
        ck_ok(model_read_weights(m, (size_t)(w - model_params(m)->params), 0, w->numel, values));
        ck_ok(model_read_weights(m, (size_t)(v - model_params(m)->params), 0, 5, have));
        ck_ok(model_read_weights(m, (size_t)(v - model_params(m)->params), 5, n_out - 5, have + 5));
        for (size_t row = 0; row < n_out; row++) {
            double sum = 0;
            for (size_t i = 0; i < n_in; i++) {
                const double x = (double)values[c == 1 ? i * n_out + row : row * n_in + i];
                sum += x * x;
            }
            ck_assert_double_le(fabs((double)have[row] - sqrt(sum)), 1e-6 * sqrt(sum));
        }
        free(values);
        free(have);
        cz_model_destroy(m);
    }
}
END_TEST

static cz_status fetch_zeros(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user, (void)param_idx, (void)off;
    memset(dst, 0, numel * sizeof *dst);
    return CZ_OK;
}

/* A classifier over the files of a masked language model, which have neither pooler nor head. */
static struct cz_model *headless_classifier(void)
{
    char room[64];
    const char *dir = folder(room);
    static const char *const labels[] = {"a", "b"};
    const struct cz_model_options o = {
        .size = sizeof o, .task = CZ_TASK_CLASSIFICATION, .labels = labels, .n_labels = 2};
    struct cz_model *made = small_model(small_bert);
    ck_ok(model_export_hf(made, dir, DTYPE_F32, fetch_zeros, NULL));
    cz_model_destroy(made);
    made = cz_model_open_ex(dir, &o);
    ck_assert_msg(made != NULL, "%s", cz_last_error());
    test_tmp_remove(dir);
    return made;
}

START_TEST(modules_to_save_stay_trained)
{
    struct cz_model *m = small_model(small_classifier);
    ck_ok(cz_model_add_lora(m, NULL));
    ck_assert(param_of(m, "classifier.weight")->trainable); /* a classifier's head always */
    ck_assert(param_of(m, "classifier.bias")->trainable);
    ck_assert(!param_of(m, "bert.pooler.dense.weight")->trainable);
    ck_assert_uint_eq(n_branches(m), 5 * 6 + 1); /* with the pooler's */
    ck_assert_uint_eq(n_trained(m), 2 * n_branches(m) + 2);
    cz_model_destroy(m);

    char one_class[2000]; /* of whose kind a reward model is */
    snprintf(one_class, sizeof one_class,
             "{\"architectures\": [\"BertForSequenceClassification\"], \"id2label\": {\"0\": "
             "\"a\"}, \"label2id\": {\"a\": 0}, %s}",
             SMALL_BERT);
    m = small_model(one_class);
    ck_ok(cz_model_add_lora(m, NULL));
    ck_assert(param_of(m, "classifier.weight")->trainable);
    cz_model_destroy(m);

    m = headless_classifier(); /* its random pooler would be lost with the run */
    ck_ok(cz_model_add_lora(m, NULL));
    ck_assert(param_of(m, "bert.pooler.dense.weight")->trainable);
    ck_assert(param_of(m, "bert.pooler.dense.bias")->trainable);
    ck_assert(!param_of(m, "bert.embeddings.LayerNorm.bias")->trainable);
    ck_assert_uint_eq(n_branches(m), 5 * 6);
    ck_assert_uint_eq(n_trained(m), 2 * n_branches(m) + 4);
    cz_model_destroy(m);

    m = small_model(small_gpt2);
    struct cz_lora_options o = of_targets("c_attn");
    o.modules_to_save = "_f,h.0.ln_1"; /* the end of a module's name, as in PEFT */
    ck_ok(cz_model_add_lora(m, &o));
    ck_assert(param_of(m, "transformer.ln_f.weight")->trainable);
    ck_assert(param_of(m, "transformer.h.0.ln_1.bias")->trainable);
    ck_assert(!param_of(m, "transformer.h.1.ln_1.bias")->trainable);
    ck_assert_uint_eq(n_trained(m), 2 * n_branches(m) + 4);
    cz_model_destroy(m);
}
END_TEST

static void check_refused(const char *config, const struct cz_lora_options *o, const char *why)
{
    struct cz_model *m = small_model(config);
    const size_t before = model_params(m)->n_params;
    ck_assert_int_ne(cz_model_add_lora(m, o), CZ_OK);
    ck_assert_msg(strstr(cz_last_error(), why) != NULL, "%s", cz_last_error());
    ck_assert_uint_eq(model_params(m)->n_params, before);
    ck_assert_uint_eq(n_trained(m), before);
    ck_assert(!cz_model_has_adapter(m));
    cz_model_destroy(m);
}

START_TEST(mistakes_are_named)
{
    struct cz_lora_options o = of_targets("q_prj");
    check_refused(small_llama, &o, "did you mean q_proj?");
    o = of_targets("attention");
    check_refused(small_llama, &o, "there are q_proj, k_proj, v_proj, o_proj, gate_proj");
    const char *list = strstr(cz_last_error(), "there are ");
    ck_assert_str_eq(list,
                     "there are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
    static const char *const names[] = {"a", "z", "A", "Z", "0", "9", ".x", "_", "-"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) { /* no expressions */
        o = of_targets(names[i]);
        check_refused(small_llama, &o, "no linear map is called");
    }
    o = of_targets("q_proj$|(");
    check_refused(small_llama, &o, "is not a regular expression");
    o = of_targets("[qv]_proj"); /* whole names must match */
    check_refused(small_llama, &o, "match no linear map");
    o = of_targets(" ,");
    check_refused(small_llama, &o, "no name");
    o = of_targets(NULL);
    static const char *const lists[] = {"",    "-1",    "0-",   "2-1", "a",
                                        "1-a", "1-2-3", "1,,2", "1;2", "1-99999999999999999999",
                                        "0-:", "0-/",   "/",    ":"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(lists); i++) {
        o.layers = lists[i];
        check_refused(small_llama, &o, "no list of numbers");
    }
    o.layers = "5";
    check_refused(small_llama, &o, "no linear map is left");
    o = of_targets(NULL);
    o.rank = 1 << 17;
    check_refused(small_llama, &o, "outside 1…65536");
    o.rank = -1;
    check_refused(small_llama, &o, "outside 1…65536");
    o = of_targets(NULL);
    o.dropout = 1;
    check_refused(small_llama, &o, "outside [0,1)");
    o = of_targets(NULL);
    char long_name[1100] = "";
    memset(long_name, 'x', sizeof long_name - 1);
    o.modules_to_save = long_name;
    check_refused(small_llama, &o, "more than 1022 bytes of names");
    long_name[1022] = '\0';
    check_refused(small_llama, &o, "has no module \"xxx");
    long_name[1022 - 17] = '\0'; /* ",classifier,score" */
    check_refused(small_classifier, &o, "has no module \"xxx");
    long_name[1022 - 17] = 'x';
    check_refused(small_classifier, &o, "more than 1022 bytes of names");
    o.modules_to_save = "nothing";
    check_refused(small_llama, &o, "has no module \"nothing\"");
    o.modules_to_save = "embed_tokens"; /* tied to lm_head */
    check_refused(small_llama, &o, "is tied to lm_head.weight");
    struct cz_model *m = small_model(small_llama);
    ck_ok(cz_model_add_lora(m, NULL));
    ck_assert_int_eq(cz_model_add_lora(m, NULL), CZ_INVALID);
    ck_assert_int_eq(cz_model_add_adapter(m, ".", false), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "has an adapter already"));
    cz_model_destroy(m);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void check_base(const char *dir, const char *config, const char *name, const char *found)
{
    char path[256], *got_folder, *got_name;
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    ck_ok(file_save(path, config, strlen(config)));
    ck_ok(model_adapter_base(dir, &got_folder, &got_name));
    ck_assert_pstr_eq(got_name, name);
    ck_assert_pstr_eq(got_folder, found);
    free(got_folder);
    free(got_name);
}

/* Beside the adapter, in it, or where an absolute path says. */
START_TEST(the_base_of_an_adapter_is_found)
{
    char top[64], dir[128], base[160], path[256];
    snprintf(dir, sizeof dir, "%s/adapter", folder(top));
    ck_assert_int_eq(mkdir(dir, 0755), 0);
    snprintf(base, sizeof base, "%s/base", top);
    ck_assert_int_eq(mkdir(base, 0755), 0);
    snprintf(path, sizeof path, "%s/config.json", base);
    ck_ok(file_save(path, "{}", 2));
    char *got_folder, *got_name;
    ck_fails(model_adapter_base(dir, &got_folder, &got_name), CZ_NOTFOUND);
    ck_assert(!got_folder && !got_name);
    snprintf(path, sizeof path, "%s/../base", dir);
    check_base(dir, "{\"base_model_name_or_path\": \"base\"}", "base", path);
    check_base(dir, "{\"base_model_name_or_path\": \"other/base\"}", "other/base", NULL);
    check_base(dir, "{\"base_model_name_or_path\": \"\"}", NULL, NULL);
    check_base(dir, "{}", NULL, NULL);
    snprintf(path, sizeof path, "{\"base_model_name_or_path\": \"%s\"}", base);
    check_base(dir, path, base, base);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    ck_ok(file_save(path, "{\"base_model_name_or_path\": 5}", 30));
    ck_fails(model_adapter_base(dir, &got_folder, &got_name), CZ_CORRUPT);
    ck_assert(!got_folder && !got_name);
    test_tmp_remove(top);
}
END_TEST

/* A file of nothing below dir, and the folders on the way. */
static void touch(const char *dir, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *c = path + strlen(dir) + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        ck_assert(mkdir(path, 0755) == 0 || errno == EEXIST);
        *c = '/';
    }
    ck_ok(file_save(path, "{}", 2));
}

/* Checkpoints of an adapter are not the adapter. */
START_TEST(runs_that_train_adapters_are_refused)
{
    static const struct {
        const char *files[4], *dir;
        bool is_refused;
    } table[] = {
        {{"latest", "model/adapter_config.json"}, "", true},
        {{"latest", "model/adapter_config.json"}, "tag", true},
        {{"latest", "model/adapter_config.json"}, "model", true},
        {{"latest", "model/adapter_config.json"}, "model/", true},
        {{"best/latest", "model/adapter_config.json"}, "best", true},
        {{"best/latest", "model/adapter_config.json"}, "best/tag", true},
        {{"latest", "model/config.json"}, "", false},
        {{"latest"}, "tag", false},
        {{"model/adapter_config.json"}, "", false},
        {{"model/adapter_config.json"}, "model", false},
        {{"latest", "model/adapter_config.json", "model.safetensors"}, "", false},
        {{"latest", "model/adapter_config.json", "model.safetensors.index.json"}, "", false},
        {{"latest", "model/adapter_config.json", "adapter_model.safetensors"}, "", false},
        {{"latest", "model/adapter_config.json", "model/adapter_model.safetensors"},
         "model",
         false},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char top[64], run[96], dir[128], said[256];
        snprintf(run, sizeof run, "%s/run", folder(top));
        ck_assert_int_eq(mkdir(run, 0755), 0);
        for (int k = 0; k < 4 && table[i].files[k]; k++) touch(run, table[i].files[k]);
        if (strstr(table[i].dir, "tag")) {
            snprintf(dir, sizeof dir, "%s/x", table[i].dir);
            touch(run, dir);
        }
        snprintf(dir, sizeof dir, "%s%s%s", run, table[i].dir[0] ? "/" : "", table[i].dir);
        const cz_status st = model_refuse_adapter_run(dir);
        ck_assert_msg(st == (table[i].is_refused ? CZ_NOTFOUND : CZ_OK), "case %zu: %d", i,
                      (int)st);
        if (table[i].is_refused) {
            const bool is_model = strncmp(table[i].dir, "model", 5) == 0;
            snprintf(said, sizeof said,
                     "%s holds an adapter's checkpoint: write the adapter first, with czero export "
                     "--adapter %s%s DIR",
                     dir, is_model ? run : dir, is_model ? "/" : "");
            ck_assert_str_eq(cz_last_error(), said);
            struct cz_model *m = small_model(small_llama);
            char *base, *name;
            ck_fails(cz_model_add_adapter(m, dir, false), CZ_NOTFOUND);
            ck_assert_str_eq(cz_last_error(), said);
            ck_fails(model_adapter_base(dir, &base, &name), CZ_NOTFOUND);
            ck_assert_str_eq(cz_last_error(), said);
            cz_model_destroy(m);
        }
        test_tmp_remove(top);
    }
}
END_TEST

START_TEST(hashes_have_16_small_digits)
{
    static const struct {
        const char *text;
        bool is_hash;
        uint64_t hash;
    } table[] = {
        {"0123456789abcdef", true, 0x0123456789abcdefu},
        {"ffffffffffffffff", true, UINT64_MAX},
        {"0123456789abcde", false, 0},
        {"0123456789abcdef0", false, 0},
        {"0123456789abcdeF", false, 0},
        {"0123456789abcdeg", false, 0},
        {" 123456789abcdef", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t hash = 7;
        ck_assert_msg(model_base_hash_parse(table[i].text, &hash) == table[i].is_hash, "%s",
                      table[i].text);
        ck_assert_uint_eq(hash, table[i].is_hash ? table[i].hash : 7);
    }
}
END_TEST

/* Values that tell parameter and element apart. */
static cz_status fetch_mark(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    (void)user;
    for (size_t i = 0; i < numel; i++)
        dst[i] = (float)((param_idx * 7919 + off + i) % 65521) / 1024.0f;
    return CZ_OK;
}

START_TEST(files_give_the_adapter_back)
{
    static const char *const configs[] = {small_llama, small_gpt2, small_classifier};
    for (int c = 0; c < 3; c++) {
        char room[64];
        const char *dir = folder(room);
        struct cz_model *m = small_model(configs[c]), *back = small_model(configs[c]);
        struct cz_lora_options o = of_targets(NULL);
        o.layers = "1-3";
        o.dropout = 0.125;
        o.alpha = 5.5;
        o.rslora = c == 1;
        o.dora = c > 0;
        ck_ok(cz_model_add_lora(m, &o));
        ck_ok(model_export_adapter(m, dir, DTYPE_F32, fetch_mark, NULL));
        ck_ok(cz_model_add_adapter(back, dir, true));
        ck_assert(model_has_lora(back, &o));
        ck_assert_uint_eq(n_branches(back), n_branches(m));
        ck_assert_uint_eq(n_trained(back), n_trained(m));
        for (size_t i = 0; i < model_params(m)->n_params; i++) {
            const struct param_info *p = &model_params(m)->params[i];
            ck_assert_str_eq(p->name, model_params(back)->params[i].name);
            if (!p->trainable) continue;
            float *want = malloc(p->numel * sizeof *want), *have = malloc(p->numel * sizeof *have);
            ck_ok(fetch_mark(NULL, i, 0, p->numel, want));
            ck_ok(model_read_weights(back, i, 0, p->numel, have));
            ck_assert_mem_eq(want, have, p->numel * sizeof *want);
            free(want);
            free(have);
        }
        cz_model_destroy(m);
        cz_model_destroy(back);
        test_tmp_remove(dir);
    }
}
END_TEST

/* One adapter of rank 2 on q_proj of block 0, with an edit of its files. */
static void write_adapter(const char *dir, const char *config, const char *name,
                          const int64_t shape[2], enum safetensors_dtype dtype)
{
    static const float zeros[4096];
    static const int64_t a_shape[] = {2, 24}, b_shape[] = {24, 2};
    char path[512];
    const struct safetensors_decl decls[] = {
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", SAFETENSORS_F32, a_shape,
         2},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", SAFETENSORS_F32, b_shape,
         2},
        {name, dtype, shape, 2}};
    struct safetensors_writer *w;
    const size_t n = name ? 3 : 2;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    ck_ok(safetensors_create(path, decls, n, NULL, 0, &w));
    for (size_t i = 0; i < n; i++)
        ck_ok(safetensors_write(w, i, 0, (size_t)(decls[i].shape[0] * decls[i].shape[1]), zeros));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    ck_ok(file_save(path, config, strlen(config)));
}

/* A name that is given twice is saved once. */
START_TEST(modules_to_save_are_written_once)
{
    char room[64], path[128], *text;
    size_t n;
    const char *dir = folder(room);
    struct cz_model *m = small_model(small_classifier);
    struct cz_lora_options o = of_targets("query");
    o.modules_to_save = "pooler,LayerNorm,pooler,classifier";
    ck_ok(cz_model_add_lora(m, &o));
    ck_ok(model_export_adapter(m, dir, DTYPE_F32, fetch_mark, NULL));
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    ck_ok(file_load(path, 1 << 20, &text, &n));
    const char *list = strstr(text, "\"modules_to_save\"");
    ck_assert_ptr_nonnull(list);
    char *end = strchr(list, ']');
    ck_assert_ptr_nonnull(end);
    *end = '\0';
    size_t n_names = 0;
    for (const char *at = list + strlen("\"modules_to_save\""); (at = strchr(at, '"')); at++)
        n_names++;
    ck_assert_msg(n_names == 2 * 3, "%s", list);
    ck_assert(strstr(list, "\"pooler\"") && strstr(list, "\"LayerNorm\"") &&
              strstr(list, "\"classifier\""));
    free(text);
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

/* Merged weights are written in pieces of a MiB of elements: those of a larger map are W + BA in
 * every piece, of DoRA with the lengths of rows. */
START_TEST(large_maps_are_merged_in_pieces)
{
    enum { IN = 1100, OUT = 1000, N = IN * OUT };
    char config[800];
    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
             "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": 1, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 16, "
             "\"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "
             "\"tie_word_embeddings\": true}",
             IN, OUT);
    static float w[N], have[N], a[2 * IN], b[2 * OUT], lengths[OUT];
    for (int dora = 0; dora < 2; dora++) {
        char room[64];
        const char *dir = folder(room);
        struct cz_model *m = small_model(config), *merged;
        struct cz_lora_options o = of_targets("up_proj");
        o.rank = 2;
        o.alpha = 3;
        o.dora = dora;
        ck_ok(cz_model_add_lora(m, &o));
        ck_ok(model_export_merged(m, dir, DTYPE_F32, fetch_mark, NULL));
        merged = cz_model_open(dir);
        ck_assert_msg(merged != NULL, "%s", cz_last_error());
        size_t w_idx, a_idx, b_idx, m_idx, idx;
        const char *const up = "model.layers.0.mlp.up_proj";
        char name[128];
        snprintf(name, sizeof name, "%s.weight", up);
        ck_ok(param_table_find(model_params(m), name, &w_idx));
        ck_ok(param_table_find(model_params(merged), name, &idx));
        snprintf(name, sizeof name, "%s.lora_A.weight", up);
        ck_ok(param_table_find(model_params(m), name, &a_idx));
        snprintf(name, sizeof name, "%s.lora_B.weight", up);
        ck_ok(param_table_find(model_params(m), name, &b_idx));
        ck_ok(fetch_mark(NULL, w_idx, 0, N, w));
        ck_ok(fetch_mark(NULL, a_idx, 0, 2 * IN, a));
        ck_ok(fetch_mark(NULL, b_idx, 0, 2 * OUT, b));
        snprintf(name, sizeof name, "%s.lora_magnitude_vector.weight", up);
        if (dora) {
            ck_ok(param_table_find(model_params(m), name, &m_idx));
            ck_ok(fetch_mark(NULL, m_idx, 0, OUT, lengths));
        }
        ck_ok(model_read_weights(merged, idx, 0, N, have));
        for (int row = 0; row < OUT; row++) {
            double sum = 0, v[IN];
            for (int c = 0; c < IN; c++) {
                v[c] = (double)w[row * IN + c] + 1.5 * ((double)b[2 * row] * (double)a[c] +
                                                        (double)b[2 * row + 1] * (double)a[IN + c]);
                sum += v[c] * v[c];
            }
            const double factor = dora ? (double)lengths[row] / sqrt(sum) : 1;
            for (int c = 0; c < IN; c++) {
                const double want = factor * v[c], error = fabs((double)have[row * IN + c] - want);
                ck_assert_msg(error <= 1e-5 * fmax(1, fabs(want)), "row %d, column %d: %g, not %g",
                              row, c, (double)have[row * IN + c], want);
            }
        }
        cz_model_destroy(m);
        cz_model_destroy(merged);
        test_tmp_remove(dir);
    }
}
END_TEST

START_TEST(other_files_are_refused)
{
    static const int64_t a_shape[] = {2, 24}, wide[] = {2, 25}, none[] = {0, 24};
    static const char sound[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4}";
    static const char v_a[] = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight";
    const struct {
        const char *config, *name;
        const int64_t *shape;
        enum safetensors_dtype dtype;
        cz_status status;
        const char *why;
    } cases[] = {
        {sound, NULL, NULL, SAFETENSORS_F32, CZ_OK, ""},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": []}", NULL, NULL, SAFETENSORS_F32, CZ_OK,
         ""},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": 0.5}", NULL, NULL, SAFETENSORS_F32,
         CZ_UNSUPPORTED, "a list of names is expected"},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"q_proj\", 1]}", NULL, NULL,
         SAFETENSORS_F32, CZ_CORRUPT, "modules_to_save[1]"},
        {"{\"r\": 2}", NULL, NULL, SAFETENSORS_F32, CZ_CORRUPT, "peft_type"},
        {"{\"peft_type\": \"IA3\"}", NULL, NULL, SAFETENSORS_F32, CZ_UNSUPPORTED, "only LORA"},
        {"{\"peft_type\": \"LORA\", \"use_dora\": true}", NULL, NULL, SAFETENSORS_F32, CZ_CORRUPT,
         "has no lora_magnitude_vector"},
        {"{\"peft_type\": \"LORA\", \"bias\": \"all\"}", NULL, NULL, SAFETENSORS_F32,
         CZ_UNSUPPORTED, "biases"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"(?=a)\": 2}}", NULL, NULL,
         SAFETENSORS_F32, CZ_UNSUPPORTED, "looking ahead or behind"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"a(\": 2}}", NULL, NULL, SAFETENSORS_F32,
         CZ_CORRUPT, "is not a regular expression"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"a\": 0}}", NULL, NULL, SAFETENSORS_F32,
         CZ_UNSUPPORTED, "an alpha of 0"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"a\": \"x\"}}", NULL, NULL,
         SAFETENSORS_F32, CZ_CORRUPT, "alpha_pattern"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": 3}", NULL, NULL, SAFETENSORS_F32,
         CZ_UNSUPPORTED, "names with an alpha each"},
        {"{\"peft_type\": \"LORA\", \"lora_dropout\": 1.5}", NULL, NULL, SAFETENSORS_F32,
         CZ_CORRUPT, "out of range"},
        {"{\"peft_type\": \"LORA\", \"lora_alpha\": \"x\"}", NULL, NULL, SAFETENSORS_F32,
         CZ_CORRUPT, "lora_alpha"},
        {"[]", NULL, NULL, SAFETENSORS_F32, CZ_CORRUPT, "peft_type"},
        {"{", NULL, NULL, SAFETENSORS_F32, CZ_CORRUPT, "adapter_config.json:1"},
        {"{\"peft_type\": \"LORA\", \"alpha_pattern\": {\"((a{1,255}){1,255}){1,255}\": 2}}", NULL,
         NULL, SAFETENSORS_F32, CZ_CORRUPT, "more than 4096 states"},
        {"{\"peft_type\": \"LORA\", \"ensure_weight_tying\": true}", NULL, NULL, SAFETENSORS_F32,
         CZ_UNSUPPORTED, "ensure_weight_tying"},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"embed_tokens\"]}", NULL, NULL,
         SAFETENSORS_F32, CZ_UNSUPPORTED, "is tied to lm_head.weight"},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"lm_head\"]}", NULL, NULL,
         SAFETENSORS_F32, CZ_UNSUPPORTED, "is tied to lm_head.weight"},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"model.norm\"]}", NULL, NULL,
         SAFETENSORS_F32, CZ_CORRUPT, "modules_to_save names model.norm.weight, which is not in"},
        {sound, "base_model.model.lm_head.weight", wide, SAFETENSORS_F32, CZ_CORRUPT,
         "the model ties it to its embedding"},
        {sound, "base_model.model.model.embed_tokens.lora_embedding_A", a_shape, SAFETENSORS_F32,
         CZ_CORRUPT, "branches of embeddings"},
        {sound, "base_model.model.model.layers.0.mlp.gate.lora_A.weight", a_shape, SAFETENSORS_F32,
         CZ_CORRUPT, "no such linear map"},
        {sound, v_a, a_shape, SAFETENSORS_F32, CZ_CORRUPT, "has no partner"},
        {sound, "base_model.model.model.layers.9.self_attn.v_proj.lora_A.weight", a_shape,
         SAFETENSORS_F32, CZ_CORRUPT, "belongs to no module"},
        {sound, "base_model.model.model.embed_tokens.weight", wide, SAFETENSORS_F32, CZ_CORRUPT,
         "has another shape than the model's model.embed_tokens.weight: [2, 25], not [61, 24]: the "
         "adapter was trained on another base"},
        {sound, v_a, none, SAFETENSORS_F32, CZ_CORRUPT, "v_proj"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char room[64];
        const char *dir = folder(room);
        struct cz_model *m = small_model(small_llama);
        write_adapter(dir, cases[i].config, cases[i].name, cases[i].shape, cases[i].dtype);
        cz_status st = cz_model_add_adapter(m, dir, false);
        ck_assert_msg(st == cases[i].status, "case %zu: %d: %s", i, st, cz_last_error());
        if (st != CZ_OK)
            ck_assert_msg(strstr(cz_last_error(), cases[i].why) != NULL, "case %zu: %s", i,
                          cz_last_error());
        else
            ck_assert_uint_eq(n_trained(m), 0);
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
    struct cz_model *m = small_model(small_llama);
    char room[64];
    const char *dir = folder(room);
    ck_assert_int_eq(cz_model_add_adapter(m, dir, false), CZ_NOTFOUND);
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

/* Each expression is small enough, but all of them together take no minutes. */
START_TEST(expressions_of_a_file_have_one_bound)
{
    enum { N = 12000 };
    static char config[N * 40 + 64];
    char room[64];
    const char *dir = folder(room);
    size_t n = (size_t)sprintf(config, "{\"peft_type\": \"LORA\", \"alpha_pattern\": {");
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(config + n, "%s\"(a{1,40}){1,40}%d\": 2", i ? ", " : "", i);
    strcpy(config + n, "}}");
    struct cz_model *m = small_model(small_llama);
    write_adapter(dir, config, NULL, NULL, SAFETENSORS_F32);
    const clock_t begin = clock();
    ck_fails(cz_model_add_adapter(m, dir, false), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "alpha_pattern: regular expressions take"));
    ck_assert_int_lt((clock() - begin) / CLOCKS_PER_SEC, 3);
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

/* Methods that take from the base what A and B begin with mean nothing to the base as stored. */
START_TEST(beginnings_that_change_the_base_are_refused)
{
    static const struct {
        const char *init;
        bool rests, trains;
    } cases[] = {
        {"true", true, true},           {"false", true, true},
        {"null", true, true},           {"\"gaussian\"", true, true},
        {"\"orthogonal\"", true, true}, {"\"eva\"", true, true},
        {"\"Gaussian\"", true, true},   {"\"mica\"", true, false},
        {"\"pissa\"", false, false},    {"\"pissa_niter_4\"", false, false},
        {"\"olora\"", false, false},    {"\"OLoRA\"", false, false},
        {"\"corda\"", false, false},    {"\"loftq\"", false, false},
        {"\"lora_ga\"", false, false},  {"\"of_tomorrow\"", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int trained = 0; trained < 2; trained++) {
            char room[64], config[200];
            const char *dir = folder(room);
            const bool fits = trained ? cases[i].trains : cases[i].rests;
            struct cz_model *m = small_model(small_llama);
            snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"init_lora_weights\": %s}",
                     cases[i].init);
            write_adapter(dir, config, NULL, NULL, SAFETENSORS_F32);
            const cz_status st = cz_model_add_adapter(m, dir, trained);
            ck_assert_msg(st == (fits ? CZ_OK : CZ_UNSUPPORTED), "%s: %s", cases[i].init,
                          cz_last_error());
            if (!fits) ck_assert_ptr_nonnull(strstr(cz_last_error(), "init_lora_weights"));
            cz_model_destroy(m);
            test_tmp_remove(dir);
        }
    char room[64];
    const char *dir = folder(room);
    struct cz_model *m = small_model(small_llama);
    write_adapter(dir, "{\"peft_type\": \"LORA\", \"init_lora_weights\": 3}", NULL, NULL,
                  SAFETENSORS_F32);
    ck_assert_int_eq(cz_model_add_adapter(m, dir, false), CZ_CORRUPT);
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

static char warned[4096];

static void keep_warnings(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    const size_t n = strlen(warned);
    if (level == LOG_WARN) snprintf(warned + n, sizeof warned - n, "%s\n", line);
}

/* What is logged when an adapter is added whose A and B have one number each, at `at`; 0: none. */
static const char *said_of(const char *config, size_t a_at, size_t b_at, bool trained)
{
    static const char *const name[] = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"};
    static const int64_t shape[][2] = {{60, 24}, {24, 60}};
    const size_t at[] = {a_at, b_at};
    float values[60 * 24];
    char room[64], path[512];
    const char *dir = folder(room);
    struct safetensors_decl decls[2];
    struct safetensors_writer *w;
    struct cz_model *m = small_model(small_llama);
    for (size_t i = 0; i < 2; i++)
        decls[i] = (struct safetensors_decl){name[i], SAFETENSORS_F32, shape[i], 2};
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    ck_ok(safetensors_create(path, decls, 2, NULL, 0, &w));
    for (size_t i = 0; i < 2; i++) {
        memset(values, 0, sizeof values);
        if (at[i]) values[at[i] - 1] = -1e-30f;
        ck_ok(safetensors_write(w, i, 0, 60 * 24, values));
    }
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    ck_ok(file_save(path, config, strlen(config)));
    warned[0] = '\0';
    cz_log_set_sink(keep_warnings, NULL);
    const cz_status st = cz_model_add_adapter(m, dir, trained);
    cz_log_set_sink(NULL, NULL);
    ck_assert_msg(st == CZ_OK || unread_is_strict(), "%s", cz_last_error());
    cz_model_destroy(m);
    test_tmp_remove(dir);
    return warned;
}

START_TEST(an_adapter_that_adds_nothing_is_named)
{
    static const char sound[] = "{\"peft_type\": \"LORA\", \"r\": 60}";
    static const char zeros[] = "A or B of every branch is all zeros";
    ck_assert_str_eq(said_of(sound, 1, 1, false), "");
    ck_assert_str_eq(said_of(sound, 60 * 24, 60 * 24, false), "");
    ck_assert_str_eq(said_of(sound, 1025, 1024, false), "");
    ck_assert_ptr_nonnull(strstr(said_of(sound, 1, 0, false), zeros));
    ck_assert_ptr_nonnull(strstr(said_of(sound, 0, 1, false), zeros));
    ck_assert_str_eq(said_of(sound, 1, 0, true), "");
}
END_TEST

START_TEST(keys_that_nothing_reads_are_named)
{
    /* as PEFT 0.21 writes them, and what it says of target modules and the like */
    static const char known[] =
        "{\"alora_invocation_tokens\": null, \"alpha_pattern\": {}, \"arrow_config\": null, "
        "\"auto_mapping\": {\"base_model_class\": \"M\"}, \"base_model_name_or_path\": \"base\", "
        "\"bias\": \"none\", \"corda_config\": null, \"ensure_weight_tying\": false, "
        "\"eva_config\": {\"rho\": 2.0}, \"exclude_modules\": \"lm_head\", \"fan_in_fan_out\": "
        "true, "
        "\"inference_mode\": true, \"init_lora_weights\": true, \"layers_pattern\": \"h\", "
        "\"layers_to_transform\": [0], \"loftq_config\": {\"bits\": 4}, \"lora_alpha\": 8, "
        "\"lora_bias\": false, \"lora_dropout\": 0.0, \"megatron_config\": null, "
        "\"megatron_core\": \"megatron.core\", \"modules_to_save\": null, \"peft_type\": \"LORA\", "
        "\"peft_version\": \"0.21.2\", \"qalora_group_size\": 16, \"r\": 60, "
        "\"rank_pattern\": {\"q_proj\": 60}, \"revision\": \"main\", "
        "\"target_modules\": [\"q_proj\"], \"task_type\": \"CAUSAL_LM\", \"use_dora\": false, "
        "\"use_rslora\": false}";
    static const char more[] = "{\"peft_type\": \"LORA\",\n\"use_magic\": true,\n\"r\": 60, "
                               "\"idle\": false, \"scale_by\": 2}";
    ck_assert_str_eq(said_of(known, 1, 1, false), "");
    const char *said = said_of(more, 1, 1, false);
    ck_assert_ptr_nonnull(strstr(said, "keys of adapter_config.json that czero does not use: "
                                       "use_magic (line 2), scale_by (line 3)\n"));
    cz_set_strict(true);
    ck_assert_str_eq(said_of(more, 1, 1, false), "");
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "use_magic (line 2)"));
    cz_set_strict(false);
}
END_TEST

/* The scale of q_proj in block 0, of rank 2. */
static float scale_with(const char *alpha_pattern, bool again)
{
    char config[512], room[64], other[64];
    struct cz_model *m = small_model(small_llama);
    const char *dir = folder(room);
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, %s}",
             alpha_pattern);
    write_adapter(dir, config, NULL, NULL, SAFETENSORS_F32);
    ck_ok(cz_model_add_adapter(m, dir, true));
    if (again) { /* what is written says the same */
        struct cz_model *back = small_model(small_llama);
        ck_ok(model_export_adapter(m, folder(other), DTYPE_F32, fetch_mark, NULL));
        ck_ok(cz_model_add_adapter(back, other, true));
        cz_model_destroy(m);
        test_tmp_remove(other);
        m = back;
    }
    const float scale = model_layer_at(m, 1)->branches[0].scale;
    cz_model_destroy(m);
    test_tmp_remove(dir);
    return scale;
}

START_TEST(alphas_of_modules_are_found_as_peft_does)
{
    static const struct {
        const char *pattern;
        float scale;
    } cases[] = {
        {"\"alpha_pattern\": {}", 2},
        {"\"alpha_pattern\": null", 2},
        {"\"alpha_pattern\": {\"q_proj\": 7}", 3.5f},
        {"\"alpha_pattern\": {\"v_proj\": 7}", 2},
        {"\"alpha_pattern\": {\"proj\": 7}", 2}, /* no whole part of the name */
        {"\"alpha_pattern\": {\"self_attn.q_proj\": 7.25}", 3.625f},
        {"\"alpha_pattern\": {\"^model.layers.0.self_attn.q_proj\": 9}", 4.5f},
        {"\"alpha_pattern\": {\"^layers.0.self_attn.q_proj\": 9}", 2},
        {"\"alpha_pattern\": {\"layers\\\\.\\\\d{1,2}\\\\.(?:.*?)_proj\": 8}", 4},
        {"\"alpha_pattern\": {\"layers\\\\.[0-2]\\\\..*\": 6, \"q_proj\": 1}", 3}, /* the first */
        {"\"alpha_pattern\": {\"q_proj\": 6}, \"use_rslora\": true", 4.2426405f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int again = 0; again < 2; again++) {
            const float scale = scale_with(cases[i].pattern, again);
            ck_assert_msg(fabsf(scale - cases[i].scale) < 1e-6f, "%s: %g", cases[i].pattern,
                          (double)scale);
        }
}
END_TEST

START_TEST(a_matrix_of_another_shape_is_refused)
{
    static const int64_t shapes[][2] = {{2, 23}, {24, 2}, {3, 24}};
    for (int i = 0; i < 3; i++) {
        char room[64];
        const char *dir = folder(room);
        char path[512];
        struct cz_model *m = small_model(small_gpt2);
        static const int64_t b_shape[] = {72, 2};
        const struct safetensors_decl decls[] = {
            {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", SAFETENSORS_F32,
             shapes[i], 2},
            {"base_model.model.transformer.h.0.attn.c_attn.lora_B.weight", SAFETENSORS_F32, b_shape,
             2}};
        static const float zeros[256];
        static const char sound[] = "{\"peft_type\": \"LORA\"}";
        struct safetensors_writer *w;
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
        ck_ok(safetensors_create(path, decls, 2, NULL, 0, &w));
        for (size_t k = 0; k < 2; k++)
            ck_ok(
                safetensors_write(w, k, 0, (size_t)(decls[k].shape[0] * decls[k].shape[1]), zeros));
        ck_ok(safetensors_finish(w));
        safetensors_writer_destroy(w);
        snprintf(path, sizeof path, "%s/adapter_config.json", dir);
        ck_ok(file_save(path, sound, sizeof sound - 1));
        ck_assert_int_eq(cz_model_add_adapter(m, dir, false), CZ_CORRUPT);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "has not the shape ["));
        /* B of another rank than A is no other base's */
        ck_assert_int_eq(strstr(cz_last_error(), "trained on another base") != NULL, i < 2);
        ck_assert(!cz_model_has_adapter(m));
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
}
END_TEST

TEST_MAIN("model/lora", runs_that_train_adapters_are_refused, hashes_have_16_small_digits,
          modules_to_save_are_written_once, large_maps_are_merged_in_pieces,
          expressions_of_a_file_have_one_bound, targets_are_names_expressions_or_all,
          shapes_scales_and_init_rules, lengths_begin_as_those_of_the_weight,
          modules_to_save_stay_trained, mistakes_are_named, files_give_the_adapter_back,
          other_files_are_refused, beginnings_that_change_the_base_are_refused,
          an_adapter_that_adds_nothing_is_named, keys_that_nothing_reads_are_named,
          alphas_of_modules_are_found_as_peft_does, a_matrix_of_another_shape_is_refused,
          the_base_of_an_adapter_is_found)
