/* Claim: the weights of real folders find their parameters whatever wrote them: safetensors or
 * pytorch_model.bin, whole or in shards, with or without prefixes, under old names, tied either
 * way. A head that is not there, or for other classes, starts anew and a warning says so when it is
 * read, unless an adapter brings it; a trunk that is not complete is refused with the names of what
 * it lacks; what is not needed is listed. */
#include "base/log.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "formats/safetensors/safetensors.h"
#include "model/model.h"
#include "tests/support/check_main.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

static const char bert_config[] =
    "{\"model_type\": \"bert\", \"architectures\": [\"%s\"], \"vocab_size\": 40, "
    "\"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
    "\"intermediate_size\": 24, \"max_position_embeddings\": 12%s}";

#define CLASSIFIER "BertForSequenceClassification"

/* ---- folders ----------------------------------------------------------------------------------
 */

static char *in_dir(const char *dir, const char *name)
{
    static char path[2][512];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void spill(const char *dir, const char *name, const char *text)
{
    ck_ok(file_save(in_dir(dir, name), text, strlen(text)));
}

static void write_config(const char *dir, const char *architecture, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, bert_config, architecture, more);
    spill(dir, "config.json", text);
}

/* A tensor to write. */
struct item {
    char name[160];
    int64_t shape[4];
    int ndim;
    size_t numel;
    const char *file; /* of a sharded set */
    float *values;
};

struct items {
    struct item at[128];
    size_t n;
};

/* A model's tensors under their own names. */
static void take_items(struct items *s, struct cz_model *m)
{
    s->n = 0;
    for (size_t i = 0; i < model_params(m)->n_params; i++) {
        const struct param_info *p = &model_params(m)->params[i];
        struct item *t = &s->at[s->n++];
        *t = (struct item){.ndim = p->ndim, .numel = p->numel};
        snprintf(t->name, sizeof t->name, "%s", p->name);
        memcpy(t->shape, p->shape, sizeof t->shape);
        t->values = malloc(p->numel * sizeof *t->values);
        ck_ok(model_read_weights(m, i, 0, p->numel, t->values));
    }
}

static struct item *add_item(struct items *s, const char *name, int64_t rows, int64_t columns)
{
    struct item *t = &s->at[s->n++];
    *t = (struct item){.ndim = columns ? 2 : 1, .shape = {rows, columns}};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->numel = (size_t)(rows * (columns ? columns : 1));
    t->values = malloc(t->numel * sizeof *t->values);
    for (size_t i = 0; i < t->numel; i++) t->values[i] = 0.25f + (float)i;
    return t;
}

static void free_items(struct items *s)
{
    for (size_t i = 0; i < s->n; i++) free(s->at[i].values);
    s->n = 0;
}

static struct item *item_of(struct items *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->at[i].name, name) == 0) return &s->at[i];
    ck_abort_msg("no tensor %s", name);
}

/* Leave out what matches. */
static void drop_items(struct items *s, const char *pattern)
{
    regex_t re;
    size_t n_kept = 0;
    ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    for (size_t i = 0; i < s->n; i++) {
        if (regexec(&re, s->at[i].name, 0, NULL, 0) == 0)
            free(s->at[i].values);
        else
            s->at[n_kept++] = s->at[i];
    }
    regfree(&re);
    s->n = n_kept;
}

/* Every `from` at the beginning (`anywhere`: wherever) becomes `to`. */
static void rename_items(struct items *s, const char *from, const char *to, bool anywhere)
{
    for (size_t i = 0; i < s->n; i++) {
        char old[160], *hit;
        snprintf(old, sizeof old, "%s", s->at[i].name);
        hit = strstr(old, from);
        if (!hit || (hit != old && !anywhere)) continue;
        snprintf(s->at[i].name, sizeof s->at[i].name, "%.*s%s%s", (int)(hit - old), old, to,
                 hit + strlen(from));
    }
}

static void write_with(const char *dir, const struct items *s,
                       const struct safetensors_metadata *meta)
{
    struct safetensors_decl decls[128];
    struct safetensors_writer *w;
    for (size_t i = 0; i < s->n; i++)
        decls[i] = (struct safetensors_decl){s->at[i].name, SAFETENSORS_F32, s->at[i].shape,
                                             (size_t)s->at[i].ndim};
    ck_ok(safetensors_dir_create(dir, 0, decls, s->n, meta, meta != NULL, &w));
    for (size_t i = 0; i < s->n; i++)
        ck_ok(safetensors_write(w, i, 0, s->at[i].numel, s->at[i].values));
    ck_ok(safetensors_finish(w));
    safetensors_writer_destroy(w);
}

static void write_safetensors(const char *dir, const struct items *s)
{
    write_with(dir, s, NULL);
}

/* Those of one file, as torch.save writes a state dict. `inside`: under this key of another. */
static void write_bin(const char *dir, const char *file, const struct items *s, const char *only,
                      const char *inside)
{
    uint64_t nbytes[128];
    size_t n = 0, pickle_nbytes;
    struct pickle_writer *p = pickle_writer_create();
    if (inside) {
        pickle_dict_begin(p);
        pickle_put_string(p, "epoch");
        pickle_put_int(p, 3);
        pickle_put_string(p, inside);
    }
    pickle_ordered_dict_begin(p);
    for (size_t i = 0; i < s->n; i++) {
        if (only && strcmp(s->at[i].file, only) != 0) continue;
        const struct pickle_tensor_desc t = {.dtype = DTYPE_F32,
                                             .storage_idx = n,
                                             .storage_numel = s->at[i].numel,
                                             .ndim = s->at[i].ndim,
                                             .shape = s->at[i].shape};
        nbytes[n++] = s->at[i].numel * sizeof(float);
        pickle_put_string(p, s->at[i].name);
        pickle_put_tensor(p, &t);
    }
    pickle_dict_end(p);
    if (inside) pickle_dict_end(p);
    unsigned char *pickle;
    ck_ok(pickle_writer_take(p, &pickle, &pickle_nbytes));
    pickle_writer_destroy(p);
    const struct pt_create_options o = {.path = in_dir(dir, file),
                                        .pickle = pickle,
                                        .pickle_nbytes = pickle_nbytes,
                                        .storage_nbytes = nbytes,
                                        .n_storages = n};
    struct pt_writer *w;
    ck_ok(pt_create(&o, &w));
    n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (!only || strcmp(s->at[i].file, only) == 0) {
            ck_ok(pt_write(w, n, 0, nbytes[n], s->at[i].values, NULL));
            n++;
        }
    ck_ok(pt_finish(w, true, NULL));
    pt_writer_destroy(w);
    free(pickle);
}

static void write_bin_shards(const char *dir, struct items *s)
{
    static const char *const files[] = {"pytorch_model-00001-of-00002.bin",
                                        "pytorch_model-00002-of-00002.bin"};
    char index[8192] = "{\"weight_map\": {";
    for (size_t i = 0; i < s->n; i++) {
        s->at[i].file = files[i % 2];
        snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\": \"%s\"",
                 i ? ", " : "", s->at[i].name, s->at[i].file);
    }
    snprintf(index + strlen(index), sizeof index - strlen(index), "}}");
    spill(dir, "pytorch_model.bin.index.json", index);
    for (size_t f = 0; f < 2; f++) write_bin(dir, files[f], s, files[f], NULL);
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static char lines[8192]; /* what was logged, a line each, with its level in front */

static void keep_line(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s%s\n",
             level == LOG_WARN ? "warning: " : "", line);
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

/* As a run reads them at its start; lines come behind those of opening. */
static void read_all(struct cz_model *m)
{
    cz_log_set_sink(keep_line, NULL);
    for (size_t i = 0; i < model_params(m)->n_params; i++) {
        const size_t numel = model_params(m)->params[i].numel;
        float *w = malloc(numel * sizeof *w);
        ck_ok(model_read_weights(m, i, 0, numel, w));
        free(w);
    }
    cz_log_set_sink(NULL, NULL);
}

static void open_fails(const char *dir, const struct cz_model_options *o, cz_status want,
                       const char *says)
{
    err_clear();
    ck_assert_msg(cz_model_open_ex(dir, o) == NULL, "opened although: %s", says);
    ck_assert_msg(cz_last_status() == want, "%s: %s", cz_status_name(cz_last_status()),
                  cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "\"%s\" lacks \"%s\"", cz_last_error(),
                  says);
}

static void logged(const char *text)
{
    ck_assert_msg(strstr(lines, text) != NULL, "\"%s\" is not in:\n%s", text, lines);
}

static void not_logged(const char *text)
{
    ck_assert_msg(strstr(lines, text) == NULL, "\"%s\" is in:\n%s", text, lines);
}

static float *weight(struct cz_model *m, const char *name, size_t *numel)
{
    size_t idx;
    ck_ok(param_table_find(model_params(m), name, &idx));
    *numel = model_params(m)->params[idx].numel;
    float *w = malloc(*numel * sizeof *w);
    ck_ok(model_read_weights(m, idx, 0, *numel, w));
    return w;
}

static bool same_weight(struct cz_model *a, struct cz_model *b, const char *name)
{
    size_t n_a, n_b;
    float *x = weight(a, name, &n_a), *y = weight(b, name, &n_b);
    bool same = n_a == n_b && memcmp(x, y, n_a * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

static void same_weights(struct cz_model *a, struct cz_model *b)
{
    for (size_t i = 0; i < model_params(a)->n_params; i++) {
        const char *name = model_params(a)->params[i].name;
        ck_assert_msg(same_weight(a, b, name), "%s differs", name);
    }
}

/* A model of random weights to write down, from a folder that has none. */
static struct cz_model *source(const char *dir, const char *architecture, const char *more)
{
    write_config(dir, architecture, more);
    struct cz_model *m = open_as(dir, NULL);
    ck_ok(cz_model_init_from(m, NULL, 11));
    return m;
}

/* ---- forms ------------------------------------------------------------------------------------
 */

enum format { SAFETENSORS, BIN, BIN_SHARDS, BIN_INSIDE };

static void write_form(const char *dir, struct items *s, enum format format)
{
    if (format == SAFETENSORS)
        write_safetensors(dir, s);
    else if (format == BIN_SHARDS)
        write_bin_shards(dir, s);
    else
        write_bin(dir, "pytorch_model.bin", s, NULL, format == BIN_INSIDE ? "state_dict" : NULL);
}

static void edit_nothing(struct items *s)
{
    (void)s;
}

static void edit_bare(struct items *s)
{
    rename_items(s, "bert.", "", false);
}

static void edit_data_parallel(struct items *s)
{
    rename_items(s, "", "module.", false);
}

static void edit_compiled(struct items *s)
{
    rename_items(s, "", "_orig_mod.module.", false);
    rename_items(s, "encoder.layer.1.", "encoder.layer.1._orig_mod.", true);
}

static void edit_old(struct items *s)
{
    rename_items(s, "LayerNorm.weight", "LayerNorm.gamma", true);
    rename_items(s, "LayerNorm.bias", "LayerNorm.beta", true);
}

static void edit_old_bare(struct items *s)
{
    edit_bare(s);
    edit_old(s);
    edit_data_parallel(s);
}

static void edit_extras(struct items *s)
{
    add_item(s, "bert.embeddings.position_ids", 1, 12);
    add_item(s, "module.bert.encoder.layer.0.output.dense.weight", 3, 3); /* the plain one counts */
    add_item(s, "cls.seq_relationship.weight", 2, 16);
}

START_TEST(every_form_is_read)
{
    void (*const edits[])(struct items *) = {edit_nothing,  edit_bare, edit_data_parallel,
                                             edit_compiled, edit_old,  edit_old_bare,
                                             edit_extras};
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    for (size_t i = 0; i < CZ_ARRAY_LEN(edits); i++)
        for (int format = SAFETENSORS; format <= BIN_INSIDE; format++) {
            struct items s;
            const char *folder = test_tmp_make();
            take_items(&s, want);
            edits[i](&s);
            write_config(folder, CLASSIFIER, "");
            write_form(folder, &s, (enum format)format);
            struct cz_model *m = open_as(folder, NULL);
            ck_assert(cz_model_has_weights(m));
            same_weights(want, m);
            if (edits[i] != edit_extras)
                ck_assert_str_eq(lines, "");
            else
                ck_assert_ptr_nonnull(strstr(lines, ": tensors that czero does not use: "
                                                    "module.bert.encoder.layer.0.output.dense"
                                                    ".weight\n"));
            free_items(&s);
            cz_model_destroy(m);
            test_tmp_remove(folder);
        }
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(pieces_of_a_bin_are_what_the_whole_is)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    write_bin(dir, "pytorch_model.bin", &s, NULL, NULL);
    struct cz_model *m = open_as(dir, NULL);
    float got[7];
    for (size_t i = 0; i < model_params(m)->n_params; i++) {
        const size_t numel = model_params(m)->params[i].numel;
        for (size_t off = 0; off < numel; off += 7) {
            const size_t n = numel - off < 7 ? numel - off : 7;
            ck_ok(model_read_weights(m, i, off, n, got));
            ck_assert_mem_eq(got, s.at[i].values + off, n * sizeof *got);
        }
        ck_fails(model_read_weights(m, i, numel, 1, got), CZ_INVALID);
    }
    free_items(&s);
    cz_model_destroy(m);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(ties_are_read_under_either_name)
{
    static const char *const names[] = {"bert.embeddings.word_embeddings.weight",
                                        "cls.predictions.decoder.weight",
                                        "embeddings.word_embeddings.weight"};
    static const char *const biases[] = {"cls.predictions.bias", "cls.predictions.decoder.bias"};
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, "BertForMaskedLM", "");
    for (size_t i = 0; i < 6; i++) {
        struct items s;
        take_items(&s, want);
        rename_items(&s, names[0], names[i / 2], false);
        rename_items(&s, biases[0], biases[i % 2], false);
        write_safetensors(dir, &s);
        free_items(&s);
        struct cz_model *m = open_as(dir, NULL);
        same_weights(want, m);
        ck_assert_str_eq(lines, "");
        cz_model_destroy(m);
    }
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

static cz_status fetch(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, off, numel, dst);
}

/* ---- heads ------------------------------------------------------------------------------------
 */

START_TEST(bare_models_get_a_new_head)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, "BertModel", "");
    struct items s;
    take_items(&s, want);
    drop_items(&s, "^classifier");
    edit_bare(&s);
    write_safetensors(dir, &s);
    struct cz_model *m = open_as(dir, NULL);
    not_logged("warning: "); /* an adapter may follow */
    read_all(m);
    logged("warning: ");
    logged(": classifier.weight, classifier.bias: not in the files: start from random values; "
           "train before you use them\n");
    not_logged("does not use");
    ck_assert(cz_model_has_weights(m));
    ck_assert(same_weight(want, m, "bert.pooler.dense.weight"));
    ck_assert(!same_weight(want, m, "classifier.weight")); /* the seed is another */
    cz_model_set_seed(m, 11);
    same_weights(want, m);
    cz_model_set_seed(m, 12);
    ck_assert(!same_weight(want, m, "classifier.weight"));
    ck_assert(same_weight(want, m, "bert.embeddings.word_embeddings.weight"));
    ck_ok(cz_model_init_from(m, dir, 11)); /* the same through another door */
    same_weights(want, m);
    cz_model_destroy(m);
    m = open_as(dir, &(struct cz_model_options){.size = sizeof(struct cz_model_options),
                                                .config_only = true});
    ck_assert_str_eq(lines, "");
    ck_assert(!cz_model_has_weights(m));
    cz_model_destroy(m);

    /* a masked LM's trunk has no pooler, and its head is of no use */
    const struct cz_model_options o = {.size = sizeof o, .task = CZ_TASK_CLASSIFICATION};
    drop_items(&s, "pooler");
    add_item(&s, "cls.predictions.bias", 40, 0);
    write_safetensors(dir, &s);
    write_config(dir, "BertForMaskedLM", "");
    m = open_as(dir, &o);
    read_all(m);
    logged("bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias: "
           "not in the files");
    logged(": of another head, and left out: cls.predictions.bias\n");
    cz_model_destroy(m);
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

/* The lines of a model that is opened, gets the adapter (NULL: none) and is read. */
static void lines_with(const char *dir, const char *adapter, bool resumes)
{
    struct cz_model *m = open_as(dir, NULL);
    cz_log_set_sink(keep_line, NULL);
    if (adapter) ck_ok(cz_model_add_adapter(m, adapter, true));
    cz_log_set_sink(NULL, NULL);
    if (resumes) {
        ck_ok(cz_model_init_from(m, dir, 5)); /* as a resumed run opens its base again */
        model_trained_come_later(m);
    }
    read_all(m);
    cz_model_destroy(m);
}

START_TEST(a_head_that_an_adapter_brings_is_not_random)
{
    static const char random[] = "not in the files: start from random values";
    char adapter[512];
    const char *dir = test_tmp_make();
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    drop_items(&s, "^classifier");
    ck_ok(cz_model_add_lora(want, NULL));
    ck_ok(model_export_adapter(want, adapter, DTYPE_F32, fetch, want));
    write_safetensors(dir, &s);
    lines_with(dir, NULL, false);
    logged(random);
    lines_with(dir, adapter, false);
    ck_assert_str_eq(lines, "");
    lines_with(dir, adapter, true);
    ck_assert_str_eq(lines, "");

    struct cz_model *m = open_as(dir, NULL);
    ck_ok(cz_model_add_adapter(m, adapter, true));
    ck_assert(same_weight(want, m, "classifier.weight"));
    cz_model_destroy(m);

    /* a new adapter trains the head from random values, which a checkpoint of it replaces */
    for (int resumes = 0; resumes < 2; resumes++) {
        m = open_as(dir, NULL);
        ck_ok(cz_model_add_lora(m, NULL));
        if (resumes) model_trained_come_later(m);
        read_all(m);
        (resumes ? not_logged : logged)(random);
        cz_model_destroy(m);
    }

    /* it has no pooler: that stays random, and is all that is named */
    drop_items(&s, "pooler");
    write_safetensors(dir, &s);
    for (int resumes = 0; resumes < 2; resumes++) {
        lines_with(dir, adapter, resumes);
        logged(": bert.pooler.dense.weight, bert.pooler.dense.bias: not in the files");
        not_logged("classifier");
    }
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(labels_decide_about_the_head)
{
    const char *const three[] = {"a", "b", "c"}, *const two[] = {"x", "y"};
    const struct cz_model_options with_3 = {.size = sizeof with_3, .labels = three, .n_labels = 3};
    const struct cz_model_options with_2 = {.size = sizeof with_2, .labels = two, .n_labels = 2};
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    write_safetensors(dir, &s);
    struct cz_model *m = open_as(dir, &with_3);
    read_all(m);
    logged("classifier.weight, classifier.bias: for other classes in the files: start from random");
    ck_assert_int_eq(cz_model_n_classes(m), 3);
    ck_assert_str_eq(cz_model_label_name(m, 2), "c");
    ck_assert(same_weight(want, m, "bert.pooler.dense.weight"));
    cz_model_destroy(m);
    m = open_as(dir, &with_2); /* as many: the head is kept */
    read_all(m);
    logged("the head was trained for \"LABEL_0\" as class 0, which is now called \"x\"");
    same_weights(want, m);
    ck_assert_str_eq(cz_model_label_name(m, 0), "x");
    cz_model_destroy(m);
    const char *const numbers[] = {"0", "1"};
    m = open_as(dir, &(struct cz_model_options){.size = sizeof(struct cz_model_options),
                                                .labels = numbers,
                                                .n_labels = 2});
    not_logged("warning"); /* the classes' numbers are no other names */
    cz_model_destroy(m);

    /* not asked for, it is a config that does not fit */
    write_config(dir, CLASSIFIER, ", \"num_labels\": 3");
    open_fails(dir, NULL, CZ_CORRUPT,
               "tensor classifier.weight has shape (2, 16), the model needs (3, 16)");
    /* and a trunk of another shape always is */
    item_of(&s, "bert.pooler.dense.bias")->shape[0] = 16;
    drop_items(&s, "pooler.dense.bias");
    add_item(&s, "bert.pooler.dense.bias", 15, 0);
    write_safetensors(dir, &s);
    open_fails(dir, &with_3, CZ_CORRUPT, "bert.pooler.dense.bias has shape (15)");
    /* the other names of classes are kept, with a warning */
    free_items(&s);
    take_items(&s, want);
    write_safetensors(dir, &s);
    write_config(dir, CLASSIFIER, ", \"id2label\": {\"0\": \"y\", \"1\": \"x\"}");
    m = open_as(dir, &with_2);
    logged("warning: ");
    logged("the head was trained for \"y\" as class 0, which is now called \"x\"");
    cz_model_destroy(m);
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(heads_of_other_tasks_are_left_out)
{
    const char *const names[] = {"no", "yes"};
    const struct cz_model_options o = {
        .size = sizeof o, .task = CZ_TASK_CLASSIFICATION, .labels = names, .n_labels = 2};
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    add_item(&s, "qa_outputs.weight", 2, 16);
    write_safetensors(dir, &s);
    /* the same names and shapes, and yet another head */
    write_config(dir, "BertForQuestionAnswering", "");
    open_fails(dir, NULL, CZ_UNSUPPORTED, "BertForQuestionAnswering is not among the supported");
    struct cz_model *m = open_as(dir, &o);
    read_all(m);
    logged("classifier.weight, classifier.bias: of another head in the files: start from random");
    logged(": of another head, and left out: classifier.bias, classifier.weight, "
           "qa_outputs.weight\n");
    ck_assert(!same_weight(want, m, "classifier.weight"));
    ck_assert(same_weight(want, m, "bert.pooler.dense.weight"));
    cz_model_destroy(m);

    /* also when weights come from there later */
    write_config(dir, CLASSIFIER, "");
    m = open_as(dir, NULL);
    same_weights(want, m);
    write_config(dir, "BertForTokenClassification", "");
    ck_ok(cz_model_init_from(m, dir, 5));
    ck_assert(!same_weight(want, m, "classifier.weight"));
    ck_assert(same_weight(want, m, "bert.pooler.dense.weight"));
    cz_model_destroy(m);
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(pretraining_folders_are_masked_language_models)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, "BertForPreTraining", "");
    ck_assert_int_eq(cz_model_labels(want), CZ_LABELS_SAME);
    struct items s;
    take_items(&s, want);
    edit_old(&s);
    add_item(&s, "bert.pooler.dense.weight", 16, 16);
    add_item(&s, "cls.seq_relationship.weight", 2, 16);
    write_bin(dir, "pytorch_model.bin", &s, NULL, NULL);
    struct cz_model *m = open_as(dir, NULL);
    same_weights(want, m);
    ck_assert_str_eq(lines, "");
    free_items(&s);
    cz_model_destroy(m);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(exports_open_under_the_same_head)
{
    static const char *const names[] = {"\xe6\x80\x92", "a \"b\" \\c", ""};
    static const char *const forms[] = {"", ", \"tie_word_embeddings\": false"};
    const enum cz_task tasks[] = {CZ_TASK_CLASSIFICATION, CZ_TASK_MASKED_LM};
    for (size_t i = 0; i < 4; i++) {
        const bool classifies = i < 2;
        const struct cz_model_options o = {.size = sizeof o,
                                           .task = tasks[i / 2],
                                           .labels = names,
                                           .n_labels = classifies ? 3 : 0};
        const char *dir = test_tmp_make();
        char out[512];
        snprintf(out, sizeof out, "%s/out", dir);
        write_config(dir, "BertModel", forms[i % 2]);
        struct cz_model *m = open_as(dir, &o);
        ck_ok(model_export_hf(m, out, DTYPE_F32, fetch, m));
        struct cz_model *back = open_as(out, NULL);
        ck_assert_str_eq(lines, "");
        same_weights(m, back);
        ck_assert_int_eq(cz_model_labels(back), cz_model_labels(m));
        for (int64_t k = 0; k < cz_model_n_classes(m); k++)
            ck_assert_str_eq(cz_model_label_name(back, k), names[k]);
        struct safetensors *st;
        ck_ok(safetensors_dir_open(out, &st));
        /* transformers keeps two biases when the decoder is not tied */
        ck_assert_uint_eq(safetensors_count(st), model_params(m)->n_params + (i == 3));
        safetensors_close(st);
        cz_model_destroy(back);
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
}
END_TEST

/* ---- what is wrong ----------------------------------------------------------------------------
 */

START_TEST(missing_and_extra_weights_are_listed)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    for (int i = 2; i < 14; i++) {
        char name[64];
        snprintf(name, sizeof name, "bert.encoder.layer.%d.output.dense.weight", i);
        add_item(&s, name, 16, 24);
    }
    write_safetensors(dir, &s);
    add_item(&s, "\x1b[2Jcls", 1, 0);
    write_safetensors(dir, &s);
    struct cz_model *m = open_as(dir, NULL); /* a config of fewer layers than the files */
    logged(", bert.encoder.layer.10.output.dense.weight, ");
    logged(", bert.encoder.layer.9.output.dense.weight\n");
    logged(": tensors that czero does not use: \\x1b[2Jcls, "); /* a terminal does not obey names */
    cz_model_destroy(m);
    drop_items(&s, "embeddings.LayerNorm.bias");
    write_safetensors(dir, &s);
    open_fails(dir, NULL, CZ_NOTFOUND, "lack tensor bert.embeddings.LayerNorm.bias (16)");
    drop_items(&s, "layer.0.");
    write_safetensors(dir, &s);
    open_fails(dir, NULL, CZ_NOTFOUND,
               "lack 17 of the model's tensors: bert.embeddings.LayerNorm.bias, bert.encoder.layer."
               "0.attention.self.query.weight, ");
    ck_assert(strstr(cz_last_error(), " more") != NULL);
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

/* Codes without their scales, and numbers that are no weights, would be read as something else. */
START_TEST(quantized_and_foreign_files_are_refused)
{
    static const char *const names[] = {"bert.pooler.dense.weight_scale_inv",
                                        "bert.pooler.dense.weight_scale",
                                        "bert.pooler.dense.input_scale",
                                        "bert.pooler.dense.weight_zero_point",
                                        "bert.pooler.dense.SCB",
                                        "bert.pooler.dense.weight_format",
                                        "bert.pooler.dense.weight.absmax",
                                        "bert.pooler.dense.weight.quant_map",
                                        "bert.pooler.dense.qweight",
                                        "bert.pooler.dense.qzeros",
                                        "bert.pooler.dense.scales",
                                        "bert.pooler.dense.weight_packed",
                                        "bert.pooler.dense.weight_shape",
                                        "bert.experts.down_proj_scales",
                                        "bert.pooler.dense.weight.quant_state.bitsandbytes__nf4",
                                        "bert.pooler.dense.weight.nested_absmax"};
    static const char *const formats[] = {"pt", "np", "mlx", NULL, "tf", "flax", "p"};
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        free(add_item(&s, names[i], 16, 0)->values);
        s.at[s.n - 1].values = calloc(16, sizeof(float));
        write_safetensors(dir, &s);
        open_fails(dir, NULL, CZ_UNSUPPORTED, names[i]);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "belongs to quantized weights"));
        free(s.at[--s.n].values);
    }
    write_safetensors(dir, &s);
    write_config(dir, CLASSIFIER, ", \"quantization_config\": {\"quant_method\": \"gptq\"}");
    open_fails(dir, NULL, CZ_UNSUPPORTED, "quantized weights (gptq) are not supported");
    write_config(dir, CLASSIFIER, ", \"quantization\": {\"bits\": 4}");
    open_fails(dir, NULL, CZ_UNSUPPORTED, "quantization: quantized weights are not supported");
    write_config(dir, CLASSIFIER, ", \"compression_config\": {\"quant_method\": 3}");
    open_fails(dir, NULL, CZ_UNSUPPORTED, "compression_config: quantized weights are not");
    write_config(dir, CLASSIFIER, "");
    for (size_t i = 0; i < CZ_ARRAY_LEN(formats); i++) {
        const struct safetensors_metadata meta = {formats[i] ? "format" : "other",
                                                  formats[i] ? formats[i] : "tf"};
        write_with(dir, &s, &meta);
        if (i < 4)
            cz_model_destroy(open_as(dir, NULL));
        else
            open_fails(dir, NULL, CZ_UNSUPPORTED,
                       "model.safetensors: its tensors are of the format");
    }
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

/* Where the index is silent, two files may not disagree. */
START_TEST(a_tensor_of_two_bins_is_an_error)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    write_bin_shards(dir, &s);
    cz_model_destroy(open_as(dir, NULL));
    add_item(&s, "stray.weight", 2, 2);
    s.at[s.n - 1].file = "pytorch_model-00001-of-00002.bin";
    write_bin(dir, "pytorch_model-00001-of-00002.bin", &s, "pytorch_model-00001-of-00002.bin",
              NULL);
    cz_model_destroy(open_as(dir, NULL));
    logged(": tensors that czero does not use: stray.weight\n");
    s.at[s.n - 1].file = "pytorch_model-00002-of-00002.bin";
    write_bin(dir, "pytorch_model-00002-of-00002.bin", &s, "pytorch_model-00002-of-00002.bin",
              NULL);
    open_fails(dir, NULL, CZ_CORRUPT, "tensor stray.weight is also in");
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

/* A whole object instead of a dict. */
static void write_list_bin(const char *dir)
{
    struct pickle_writer *p = pickle_writer_create();
    struct pt_create_options o = {.path = in_dir(dir, "pytorch_model.bin")};
    struct pt_writer *w;
    unsigned char *pickle;
    pickle_list_begin(p);
    pickle_list_end(p);
    ck_ok(pickle_writer_take(p, &pickle, &o.pickle_nbytes));
    pickle_writer_destroy(p);
    o.pickle = pickle;
    ck_ok(pt_create(&o, &w));
    ck_ok(pt_finish(w, true, NULL));
    pt_writer_destroy(w);
    free(pickle);
}

START_TEST(bad_bins_are_named)
{
    const char *dir = test_tmp_make();
    struct cz_model *want = source(dir, CLASSIFIER, "");
    struct items s;
    take_items(&s, want);
    write_bin_shards(dir, &s);
    ck_assert_int_eq(remove(in_dir(dir, "pytorch_model-00002-of-00002.bin")), 0);
    open_fails(dir, NULL, CZ_NOTFOUND, "pytorch_model-00002-of-00002.bin");
    write_bin_shards(dir, &s);
    spill(dir, "pytorch_model.bin.index.json",
          "{\"weight_map\": {\"nowhere\": \"pytorch_model-00001-of-00002.bin\"}}");
    open_fails(dir, NULL, CZ_CORRUPT, "tensor nowhere should be in pytorch_model-00001");
    spill(dir, "pytorch_model.bin.index.json", "{\"weight_map\": {\"a\": \"../b.bin\"}}");
    open_fails(dir, NULL, CZ_CORRUPT, "leads out of the folder");
    spill(dir, "pytorch_model.bin.index.json", "{}");
    open_fails(dir, NULL, CZ_CORRUPT, "weight_map");

    static const struct {
        const char *file;
        cz_status status;
        const char *says;
    } cases[] = {
        {"legacy.pt", CZ_UNSUPPORTED, "legacy torch format"},
        {"deflated.pt", CZ_UNSUPPORTED, "compress"},
        {"numbers.pt", CZ_NOTFOUND, "the weights lack"},
        {"simple.pt", CZ_NOTFOUND, "the weights lack"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char *bytes;
        size_t n;
        char name[64];
        snprintf(name, sizeof name, "formats/pt/%s", cases[i].file);
        ck_ok(file_load(test_fixture(name), 1 << 24, &bytes, &n));
        ck_ok(file_save(in_dir(dir, "pytorch_model.bin"), bytes, n));
        free(bytes);
        open_fails(dir, NULL, cases[i].status, cases[i].says);
    }
    write_list_bin(dir);
    open_fails(dir, NULL, CZ_UNSUPPORTED, "contains list, not a dict of tensors");
    write_bin(dir, "pytorch_model.bin", &s, NULL, NULL);
    char *bytes;
    size_t n;
    ck_ok(file_load(in_dir(dir, "pytorch_model.bin"), 1 << 24, &bytes, &n));
    for (size_t cut = 0; cut < n; cut += n / 7) {
        ck_ok(file_save(in_dir(dir, "pytorch_model.bin"), bytes, cut));
        open_fails(dir, NULL, CZ_CORRUPT, "pytorch_model.bin");
    }
    free(bytes);
    free_items(&s);
    cz_model_destroy(want);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("model/weights", every_form_is_read, pieces_of_a_bin_are_what_the_whole_is,
          ties_are_read_under_either_name, bare_models_get_a_new_head,
          a_head_that_an_adapter_brings_is_not_random, labels_decide_about_the_head,
          heads_of_other_tasks_are_left_out, pretraining_folders_are_masked_language_models,
          exports_open_under_the_same_head, missing_and_extra_weights_are_listed,
          quantized_and_foreign_files_are_refused, a_tensor_of_two_bins_is_an_error,
          bad_bins_are_named)
