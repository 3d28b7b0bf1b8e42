/* Claims: in every family, a head that config.json ties to the embedding, but for which the files
 * hold other values, is kept as a parameter of its own, with one warning, and config.json is
 * exported without the tie; a head of equal values stays tied, in silence. So in safetensors,
 * pytorch_model.bin and shards, whatever the element that differs, NaN included. A model opened by
 * its config alone has the same parameters, in silence, unless it is told to keep to the config;
 * weights of such a folder are refused by a tied model. Of a decoder's two biases, the one that
 * transformers computes with counts. */
#include "formats/output.h"
#include "base/log.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "formats/safetensors/safetensors.h"
#include "model/model.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *fixture;
    enum cz_task task;
} families[] = {
    {"models/gpt2-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/llama", CZ_TASK_CAUSAL_LM},
    {"models/qwen2", CZ_TASK_CAUSAL_LM},
    {"models/qwen3-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/qwen3-moe-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/olmo2-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/granite-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/smollm3-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/phi3-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/mistral-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/ministral-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/gemma2-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/gemma3-variant-a", CZ_TASK_CAUSAL_LM},
    {"models/bert-variant-a", CZ_TASK_MASKED_LM},
    {"models/megatron-bert-variant-a", CZ_TASK_MASKED_LM},
    {"models/distilbert-variant-a", CZ_TASK_MASKED_LM},
    {"models/roberta-variant-a", CZ_TASK_MASKED_LM},
    {"models/xlm-roberta-variant-a", CZ_TASK_MASKED_LM},
    {"models/electra-variant-b", CZ_TASK_MASKED_LM},
    {"models/modernbert-variant-a", CZ_TASK_MASKED_LM},
    {"models/mpnet-variant-a", CZ_TASK_MASKED_LM},
    {"models/deberta-variant-a", CZ_TASK_MASKED_LM},
};

static char lines[8192];

static void keep_line(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == LOG_WARN)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
}

static struct cz_model *open_as(const char *dir, const struct cz_model_options *o)
{
    lines[0] = '\0';
    cz_log_set_sink(keep_line, NULL);
    struct cz_model *m = cz_model_open_ex(dir, o);
    cz_log_set_sink(NULL, NULL);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    return m;
}

static const char *in_dir(const char *dir, const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", dir, name);
    return path;
}

static char *text_of(const char *dir, const char *name)
{
    char path[512], *text;
    size_t nbytes;
    ck_ok(file_load_named(in_dir(dir, name, path), 1 << 20, &text, &nbytes));
    return text;
}

/* The config of a fixture, or a text, with its head tied and its classifier, if any, forgotten. */
static void write_tied_config(const char *dir, const char *config)
{
    static const char *const key = "\"tie_word_embeddings\"", *const arch = "\"architectures\"";
    char path[512], *text, edited[16384];
    text = config[0] == '{' ? strdup(config) : text_of(test_fixture(config), "config.json");
    for (char *at; (at = strstr(text, key));) memcpy(at, "\"tie_word_e_token_id\"", strlen(key));
    for (char *at; (at = strstr(text, arch));) memcpy(at, "\"arch_token_id\"", strlen(arch));
    snprintf(edited, sizeof edited, "{%s: true,%s", key, strchr(text, '{') + 1);
    ck_ok(file_save(in_dir(dir, "config.json", path), edited, strlen(edited)));
    free(text);
}

/* ---- folders ----------------------------------------------------------------------------------
 */

struct tensors {
    const char *name[256];
    const int64_t *shape[256];
    int ndim[256];
    size_t numel[256], n;
    float *values[256];
};

static void add(struct tensors *t, const char *name, const struct param_info *p, float *values)
{
    t->name[t->n] = name;
    t->shape[t->n] = p->shape;
    t->ndim[t->n] = p->ndim;
    t->numel[t->n] = p->numel;
    t->values[t->n++] = values;
}

static float *values_of(struct cz_model *m, size_t idx)
{
    const size_t numel = model_params(m)->params[idx].numel;
    float *values = malloc(numel * sizeof *values);
    ck_ok(model_read_weights(m, idx, 0, numel, values));
    return values;
}

/* All of a tied model's, and once more under the names that are tied. */
static void take(struct tensors *t, struct cz_model *m)
{
    const struct param_table *table = model_params(m);
    t->n = 0;
    for (size_t i = 0; i < table->n_params; i++)
        add(t, table->params[i].name, &table->params[i], values_of(m, i));
    for (size_t i = 0; i < table->n_aliases; i++)
        add(t, table->aliases[i].name, &table->params[table->aliases[i].param_idx],
            values_of(m, table->aliases[i].param_idx));
}

static void release(struct tensors *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->values[i]);
}

static void write_safetensors(const char *dir, const struct tensors *t, size_t max_nbytes)
{
    struct safetensors_decl decls[256];
    struct safetensors_writer *w;
    for (size_t i = 0; i < t->n; i++)
        decls[i] =
            (struct safetensors_decl){t->name[i], SAFETENSORS_F32, t->shape[i], (size_t)t->ndim[i]};
    ck_ok(safetensors_dir_create(dir, max_nbytes, decls, t->n, NULL, 0, &w));
    for (size_t i = 0; i < t->n; i++) ck_ok(safetensors_write(w, i, 0, t->numel[i], t->values[i]));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
}

/* shares: each tied name is a second view of the other's storage. */
static void write_bin(const char *dir, const struct tensors *t, size_t n_params, size_t shared_with,
                      bool shares)
{
    char path[512];
    uint64_t nbytes[256];
    size_t pickle_nbytes;
    unsigned char *pickle;
    struct pickle_writer *p = pickle_writer_create();
    pickle_ordered_dict_begin(p);
    for (size_t i = 0; i < t->n; i++) {
        const struct pickle_tensor_desc desc = {.dtype = DTYPE_F32,
                                                .storage_idx =
                                                    shares && i >= n_params ? shared_with : i,
                                                .storage_numel = t->numel[i],
                                                .ndim = t->ndim[i],
                                                .shape = t->shape[i]};
        nbytes[i] = t->numel[i] * sizeof(float);
        pickle_put_string(p, t->name[i]);
        pickle_put_tensor(p, &desc);
    }
    pickle_dict_end(p);
    ck_ok(pickle_writer_take(p, &pickle, &pickle_nbytes));
    pickle_writer_destroy(p);
    const size_t n = shares ? n_params : t->n;
    const struct pt_create_options o = {.path = in_dir(dir, "pytorch_model.bin", path),
                                        .pickle = pickle,
                                        .pickle_nbytes = pickle_nbytes,
                                        .storage_nbytes = nbytes,
                                        .n_storages = n};
    struct pt_writer *w;
    ck_ok(pt_create(&o, &w));
    for (size_t i = 0; i < n; i++) ck_ok(pt_write(w, i, 0, nbytes[i], t->values[i], NULL));
    ck_ok(pt_finish(w, true, NULL));
    pt_writer_destroy(w);
    free(pickle);
}

/* The place of the tied decoder among what take() took; *param: what it is tied to. */
static size_t head_of(const struct cz_model *m, size_t *param)
{
    const struct param_table *t = model_params(m);
    for (size_t i = 0; i < t->n_aliases; i++) {
        *param = t->aliases[i].param_idx;
        if (t->params[*param].ndim == 2) return t->n_params + i;
    }
    ck_abort_msg("%s has no tied head", cz_model_name(m));
}

static void check_values(struct cz_model *m, const char *name, const float *want)
{
    size_t idx;
    ck_ok(param_table_find(model_params(m), name, &idx));
    float *have = values_of(m, idx);
    ck_assert_msg(memcmp(have, want, model_params(m)->params[idx].numel * sizeof *have) == 0, "%s",
                  name);
    free(have);
}

static bool is_tied(struct cz_model *m, const char *head)
{
    for (size_t i = 0; i < model_params(m)->n_params; i++)
        if (strcmp(model_params(m)->params[i].name, head) == 0) return false;
    return true;
}

static bool exports_tied(const struct cz_model *m, const char *dir)
{
    char to[512];
    struct out_folder folder;
    ck_ok(out_folder_open(in_dir(dir, "exported", to), &folder));
    ck_ok(model_export_config(m, &folder, DTYPE_F32));
    out_folder_close(&folder);
    char *text = text_of(to, "config.json");
    const bool tied = strstr(text, "\"tie_word_embeddings\": true") != NULL;
    ck_assert(tied != (strstr(text, "\"tie_word_embeddings\": false") != NULL));
    free(text);
    return tied;
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static void keeps_its_head(const char *fixture, enum cz_task task)
{
    const char *dir = test_tmp_make();
    struct cz_model_options o = {.size = sizeof o, .task = task}, look = o;
    struct tensors t;
    size_t param;
    write_tied_config(dir, fixture);
    struct cz_model *m = open_as(dir, &o), *from_config;
    ck_ok(cz_model_init_from(m, NULL, 11));
    take(&t, m);
    const size_t head = head_of(m, &param), last = t.numel[head] - 1;
    const size_t n_params = model_params(m)->n_params;

    write_safetensors(dir, &t, 0);
    struct cz_model *same = open_as(dir, &o);
    ck_assert_str_eq(lines, "");
    ck_assert_uint_eq(model_params(same)->n_params, n_params);
    ck_assert(exports_tied(same, dir));
    cz_model_destroy(same);

    t.values[head][last] += 1.0f;
    write_safetensors(dir, &t, 0);
    struct cz_model *apart = open_as(dir, &o);
    ck_assert_msg(strstr(lines, t.name[head]) && strstr(lines, "is tied by config.json"), "%s",
                  lines);
    ck_assert_ptr_eq(strchr(lines, '\n') + 1, lines + strlen(lines)); /* one line */
    ck_assert_uint_eq(model_params(apart)->n_params, n_params + 1);
    check_values(apart, t.name[head], t.values[head]);
    check_values(apart, t.name[param], t.values[param]);
    ck_assert(!exports_tied(apart, dir));
    cz_model_destroy(apart);

    look.config_only = true;
    from_config = open_as(dir, &look);
    ck_assert_str_eq(lines, "");
    ck_assert_uint_eq(model_params(from_config)->n_params, n_params + 1);
    cz_model_destroy(from_config);
    look.tied_by_config = true;
    from_config = open_as(dir, &look);
    ck_assert_uint_eq(model_params(from_config)->n_params, n_params);
    cz_model_destroy(from_config);

    ck_assert_int_eq(cz_model_init_from(m, dir, 1), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), t.name[head]));
    cz_model_destroy(m);
    release(&t);
    test_tmp_remove(dir);
}

START_TEST(a_head_of_its_own_is_kept)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        keeps_its_head(families[i].fixture, families[i].task);
}
END_TEST

static const char tiny_llama[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 40, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 3001, "
    "\"max_position_embeddings\": 32}";

START_TEST(any_element_and_any_file_tells)
{
    enum { SAFETENSORS, SHARDS, BIN, SHARED_BIN, N_FORMS };
    static const size_t at[] = {0, 24, 65535, 65536, 3001 * 24 - 1}; /* around a piece */
    for (int form = 0; form < N_FORMS; form++)
        for (size_t k = 0; k <= sizeof at / sizeof at[0]; k++) {
            const char *dir = test_tmp_make();
            const bool differs = k < sizeof at / sizeof at[0] && form != SHARED_BIN;
            struct tensors t;
            size_t param;
            write_tied_config(dir, tiny_llama);
            struct cz_model *m = open_as(dir, NULL), *back;
            ck_ok(cz_model_init_from(m, NULL, 3));
            take(&t, m);
            const size_t head = head_of(m, &param), n_params = model_params(m)->n_params;
            if (differs && k == 0) t.values[head][at[k]] = t.values[param][at[k]] = NAN;
            if (differs && k > 0) t.values[head][at[k]] += k % 2 ? 1.0f : -1.0f;
            if (!differs) t.values[head][0] = t.values[param][0] = 0.0f;
            if (!differs && form != SHARED_BIN) t.values[head][0] = -0.0f;
            if (form == SAFETENSORS) write_safetensors(dir, &t, 0);
            if (form == SHARDS) write_safetensors(dir, &t, 300000);
            if (form >= BIN) write_bin(dir, &t, n_params, param, form == SHARED_BIN);
            back = open_as(dir, NULL);
            ck_assert_msg(is_tied(back, t.name[head]) == !differs, "form %d, element %zu", form, k);
            ck_assert_int_eq(lines[0] == '\0', !differs);
            cz_model_destroy(back);
            cz_model_destroy(m);
            release(&t);
            test_tmp_remove(dir);
        }
}
END_TEST

/* A vocabulary that differs is no tie, but an error about the head. */
START_TEST(a_head_of_another_shape_is_an_error)
{
    const char *dir = test_tmp_make();
    struct tensors t;
    size_t param;
    write_tied_config(dir, tiny_llama);
    struct cz_model *m = open_as(dir, NULL);
    ck_ok(cz_model_init_from(m, NULL, 3));
    take(&t, m);
    const size_t head = head_of(m, &param);
    static const int64_t fewer[] = {3000, 24};
    t.shape[head] = fewer;
    t.numel[head] = 3000 * 24;
    write_safetensors(dir, &t, 0);
    ck_assert_ptr_null(cz_model_open(dir));
    ck_assert_int_eq(cz_last_status(), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "lm_head.weight has shape (3000, 24)"));
    cz_model_destroy(m);
    release(&t);
    test_tmp_remove(dir);
}
END_TEST

/* transformers computes with decoder.bias, the other is a name of it. */
START_TEST(the_decoders_own_bias_counts)
{
    const char *dir = test_tmp_make();
    struct cz_model_options o = {.size = sizeof o, .task = CZ_TASK_MASKED_LM};
    struct tensors t;
    write_tied_config(dir, "models/bert-variant-a");
    struct cz_model *m = open_as(dir, &o), *back;
    ck_ok(cz_model_init_from(m, NULL, 3));
    take(&t, m);
    for (size_t i = 0; i < t.n; i++) {
        if (strcmp(t.name[i], "cls.predictions.bias") == 0) t.values[i][1] = 5.0f;
        if (strcmp(t.name[i], "cls.predictions.decoder.bias") == 0) t.values[i][1] = 7.0f;
    }
    write_safetensors(dir, &t, 0);
    back = open_as(dir, &o);
    size_t idx;
    ck_ok(param_table_find(model_params(back), "cls.predictions.bias", &idx));
    float *bias = values_of(back, idx);
    ck_assert(bias[1] == 7.0f);
    free(bias);
    cz_model_destroy(back);
    cz_model_destroy(m);
    release(&t);
    test_tmp_remove(dir);
}
END_TEST

/* A classifier has no use for it: nothing is logged, and the config stays tied. */
START_TEST(other_heads_do_not_ask)
{
    const char *dir = test_tmp_make();
    struct cz_model_options o = {.size = sizeof o, .task = CZ_TASK_CLASSIFICATION};
    struct tensors t;
    size_t param;
    write_tied_config(dir, tiny_llama);
    struct cz_model *m = open_as(dir, NULL), *back;
    ck_ok(cz_model_init_from(m, NULL, 3));
    take(&t, m);
    t.values[head_of(m, &param)][5] = 9.0f;
    write_safetensors(dir, &t, 0);
    back = open_as(dir, &o);
    ck_assert_ptr_null(strstr(lines, "is tied by config.json"));
    ck_assert(exports_tied(back, dir));
    cz_model_destroy(back);
    cz_model_destroy(m);
    release(&t);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("model/tied_heads", a_head_of_its_own_is_kept, any_element_and_any_file_tells,
          a_head_of_another_shape_is_an_error, the_decoders_own_bias_counts, other_heads_do_not_ask)
