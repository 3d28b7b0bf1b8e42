/* Claim: what a caller wants of a model (labels, another head, a tokenizer's vocabulary) becomes
 * part of its config: valid JSON, the rest of the text untouched and on the same lines, class names
 * of any UTF-8 kept, and wishes that contradict each other refused. */
#include "model/hf/config_impl.h"
#include "model/model_impl.h"
#include "tests/support/check_main.h"

#include <string.h>

static const struct model_head classifier = {CZ_TASK_CLASSIFICATION, "ForClasses"};
static const struct model_head masked = {CZ_TASK_MASKED_LM, "ForMasked"};

/* `text` under these options. */
static cz_status write_options(const char *text, const struct cz_model_options *o,
                               const struct model_head *head, bool is_preset, struct json_doc **doc)
{
    ck_ok(json_parse(text, strlen(text), "config.json", JSON_STRICT, doc));
    return options_write(o, head, is_preset, "config.json", doc);
}

static const char *string_of(const struct json_node *object, const char *key)
{
    const char *s = NULL;
    ck_ok(json_need_string(object, key, &s));
    return s;
}

static int64_t int_of(const struct json_node *object, const char *key)
{
    int64_t n = -1;
    ck_ok(json_need_int(object, key, &n));
    return n;
}

START_TEST(sizes_are_within_their_bounds)
{
    static const char text[] =
        "{\"least\": 1, \"most\": 7, \"none\": 0, \"beyond\": 8, \"null\": null}";
    struct json_doc *doc;
    int64_t n = 99;
    ck_ok(json_parse(text, strlen(text), "config.json", JSON_STRICT, &doc));
    const struct json_node *config = json_root(doc);
    ck_ok(config_size(config, "least", NULL, 5, 7, &n));
    ck_assert_int_eq(n, 1);
    ck_ok(config_size(config, "most", NULL, 5, 7, &n));
    ck_assert_int_eq(n, 7);
    ck_ok(config_size(config, "absent", "most", 5, 7, &n));
    ck_assert_int_eq(n, 7);
    ck_ok(config_size(config, "least", "most", 5, 7, &n));
    ck_assert_int_eq(n, 1);
    ck_ok(config_size(config, "null", NULL, 5, 7, &n));
    ck_assert_int_eq(n, 5);
    ck_fails(config_size(config, "none", NULL, 5, 7, &n), CZ_INVALID);
    ck_fails(config_size(config, "beyond", NULL, 5, 7, &n), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "8 is outside 1…7"));
    json_free(doc);
}
END_TEST

START_TEST(labels_replace_what_the_config_says)
{
    const char *const names[] = {"joy", "\"so\\so\"\n", "\xe6\x82\xb2\xe3\x81\x97\xe3\x81\x84",
                                 "\xf0\x9f\x98\xa0 100%s"};
    const struct cz_model_options o = {
        .size = sizeof o, .labels = names, .n_labels = CZ_ARRAY_LEN(names)};
    struct json_doc *doc;
    ck_ok(write_options("\n{\n  \"architectures\": [\n    \"Model\"\n  ],\n"
                        "  \"id2label\": {\n    \"0\": \"a\",\n    \"1\": \"b\"\n  },\n"
                        "  \"num_labels\": 2, \"problem_type\": \"regression\",\n"
                        "  \"hidden_size\": 8e0\n}\n",
                        &o, &classifier, false, &doc));
    const struct json_node *root = json_root(doc);
    const struct json_node *id2label = json_get(root, "id2label");
    const struct json_node *label2id = json_get(root, "label2id");
    ck_assert_uint_eq(json_count(id2label), 4);
    ck_assert_uint_eq(json_count(label2id), 4);
    for (size_t k = 0; k < 4; k++) {
        ck_assert_str_eq(string_of(id2label, (const char *[]){"0", "1", "2", "3"}[k]), names[k]);
        ck_assert_int_eq(int_of(label2id, names[k]), (int64_t)k);
    }
    ck_assert_int_eq(int_of(root, "num_labels"), 4);
    ck_assert_int_eq(json_type(json_get(root, "problem_type")), JSON_NULL);
    ck_assert_uint_eq(json_count(json_get(root, "architectures")), 1);
    int64_t n = 0;
    enum head_loss loss;
    ck_ok(config_n_classes(root, CZ_TASK_CLASSIFICATION, &n, &loss));
    ck_assert_int_eq(n, 4);
    const struct json_node *hidden = json_get(root, "hidden_size");
    size_t nbytes;
    ck_assert(strncmp(json_text(hidden, &nbytes), "8e0", 3) == 0);
    ck_assert_int_eq(json_line(hidden), 11); /* as in the file */
    json_free(doc);
}
END_TEST

START_TEST(only_what_differs_is_touched)
{
    const struct cz_model_options none = {.size = sizeof none};
    struct json_doc *doc, *before;
    const char *same = "{\"architectures\": [\"ForMasked\", \"Other\"], \"x\": {}}";
    ck_ok(json_parse(same, strlen(same), "config.json", JSON_STRICT, &doc));
    before = doc;
    ck_ok(options_write(&none, &masked, true, "config.json", &doc));
    ck_assert_ptr_eq(doc, before);
    json_free(doc);
    ck_ok(write_options("{}", &none, &masked, false, &doc));
    const char *name;
    ck_ok(json_as_string(json_child(json_get(json_root(doc), "architectures"), 0), &name));
    ck_assert_str_eq(name, "ForMasked");
    json_free(doc);
    ck_ok(write_options("{\"architectures\": null, \"a\": [1,\n2]}", &none, &masked, false, &doc));
    ck_assert_uint_eq(json_count(json_get(json_root(doc), "architectures")), 1);
    ck_assert_int_eq(json_line(json_child(json_get(json_root(doc), "a"), 1)), 2);
    json_free(doc);
}
END_TEST

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Members that no option touches stand as they did, on the same lines. */
static void check_kept(const struct json_node *before, const struct json_node *after)
{
    static const char *const touched[] = {"architectures", "id2label",     "label2id",
                                          "num_labels",    "problem_type", "vocab_size",
                                          "pad_token_id"};
    for (size_t i = 0; i < json_count(before); i++) {
        const struct json_node *x = json_child(before, i), *y = json_get(after, json_key(x));
        size_t n_x, n_y;
        bool is_touched = false;
        ck_assert_msg(y != NULL, "%s is lost", json_key(x));
        ck_assert_int_eq(json_line(x), json_line(y));
        for (size_t k = 0; k < CZ_ARRAY_LEN(touched); k++)
            is_touched |= strcmp(json_key(x), touched[k]) == 0;
        const char *t_x = json_text(x, &n_x), *t_y = json_text(y, &n_y);
        ck_assert(is_touched || (n_x == n_y && memcmp(t_x, t_y, n_x) == 0));
    }
}

START_TEST(any_config_that_parses_can_be_written_into)
{
    static const char text[] =
        "\n {\"architectures\": [\n\"BertModel\"], \"id2label\": {\"0\": \"a\",\n \"1\": \"b\"},\n"
        "\"num_labels\": 2, \"vocab_size\" :\t40 ,\"pad_token_id\":39, \"x\": {\"y\": [1, {}]},\n"
        "\"problem_type\": null, \"z\": 1e5 }\n\n";
    static const char bytes[] = "{}[]\",:\n 01e\\n";
    const char *const names[] = {"x", "y", "z"};
    const struct cz_model_options o = {
        .size = sizeof o, .labels = names, .n_labels = 3, .vocab_size = 30};
    uint32_t state = 1;
    int n_written = 0;
    for (int i = 0; i < 20000; i++) {
        char copy[sizeof text];
        struct json_doc *before, *doc;
        memcpy(copy, text, sizeof text);
        for (uint32_t n = next_random(&state) % 4; n > 0; n--)
            copy[next_random(&state) % (sizeof text - 1)] =
                bytes[next_random(&state) % (sizeof bytes - 1)];
        if (json_parse(copy, strlen(copy), "c", JSON_STRICT, &before) != CZ_OK) continue;
        ck_ok(json_parse(copy, strlen(copy), "c", JSON_STRICT, &doc));
        if (json_type(json_root(doc)) == JSON_OBJECT) {
            cz_status st = options_write(&o, &classifier, true, "c", &doc);
            if (st == CZ_OK) {
                check_kept(json_root(before), json_root(doc));
                n_written++;
            } else {
                ck_assert_int_eq(st, CZ_CORRUPT); /* a vocabulary that is no number */
            }
        }
        json_free(before);
        json_free(doc);
    }
    ck_assert_int_gt(n_written, 5000);
}
END_TEST

START_TEST(wishes_that_contradict_are_refused)
{
    const char *const same[] = {"b", "a", "b"}, *const raw[] = {"a", "\xff"},
                      *const two[] = {"a", "b"};
    const struct {
        struct cz_model_options o;
        const struct model_head *head;
        const char *says;
    } cases[] = {
        {{.labels = same, .n_labels = 3}, &classifier, "two classes are called \"b\""},
        {{.labels = raw, .n_labels = 2}, &classifier, "class 1 is not UTF-8"},
        {{.labels = two, .n_labels = 1}, &classifier, "2 to 1048576 classes, not 1"},
        {{.labels = two, .n_labels = 2}, &masked, "for classification only"},
        {{.vocab_size = -3}, &masked, "vocabulary of -3"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct json_doc *doc;
        ck_fails(write_options("{\"id2label\": {}}", &cases[i].o, cases[i].head, true, &doc),
                 CZ_INVALID);
        ck_assert_msg(strstr(cz_last_error(), cases[i].says) != NULL, "%s", cz_last_error());
        ck_assert_uint_eq(json_count(json_root(doc)), 1); /* as it was */
        json_free(doc);
    }
}
END_TEST

START_TEST(number_of_classes_is_what_transformers_counts)
{
    static const struct {
        const char *text;
        int64_t n; /* 0: refused */
        const char *says;
        enum head_loss loss;
    } cases[] = {
        {"{}", 2, ""},
        {"{\"num_labels\": 5}", 5, ""},
        {"{\"num_labels\": 5, \"id2label\": {\"0\": \"x\", \"1\": \"y\", \"2\": \"z\"}}", 3, ""},
        {"{\"id2label\": null, \"num_labels\": null}", 2, ""},
        {"{\"problem_type\": \"single_label_classification\"}", 2, ""},
        {"{\"num_labels\": 1}", 1, "", HEAD_SQUARED_ERROR},
        {"{\"id2label\": {\"0\": \"LABEL_0\"}}", 1, "", HEAD_SQUARED_ERROR},
        {"{\"problem_type\": \"regression\"}", 2, "", HEAD_SQUARED_ERROR},
        {"{\"num_labels\": 1, \"problem_type\": \"single_label_classification\"}", 0,
         "1 labels are outside 2"},
        {"{\"problem_type\": \"ranking\"}", 0, "problem_type: \"ranking\" is not supported"},
        {"{\"id2label\": [\"a\", \"b\"]}", 0, "expected an object"},
        {"{\"num_labels\": 1048576}", CZ_CLASSES_MAX, ""},
        {"{\"num_labels\": 1048577}", 0, "1048577 labels"},
        {"{\"num_labels\": 0}", 0, "0 labels are outside 2"},
        {"{\"num_labels\": 99999999}", 0, "99999999 labels"},
        {"{\"num_labels\": \"two\"}", 0, "expected an integer"},
        {"{\"problem_type\": \"multi_label_classification\"}", 2, "", HEAD_BINARY},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct json_doc *doc;
        int64_t n = 0;
        enum head_loss loss;
        ck_ok(json_parse(cases[i].text, strlen(cases[i].text), "c", JSON_STRICT, &doc));
        cz_status st = config_n_classes(json_root(doc), CZ_TASK_CLASSIFICATION, &n, &loss);
        ck_assert_msg((st == CZ_OK) == (cases[i].n > 0), "%s", cases[i].text);
        if (st == CZ_OK)
            ck_assert(n == cases[i].n && loss == cases[i].loss);
        else
            ck_assert_msg(strstr(cz_last_error(), cases[i].says) != NULL, "%s", cz_last_error());
        json_free(doc);
    }
}
END_TEST

START_TEST(presets_take_the_tokenizers_vocabulary)
{
    const struct cz_model_options o = {.size = sizeof o, .vocab_size = 300};
    struct cz_model *m = cz_model_open_ex("gpt2", &o);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    ck_assert_int_eq(cz_model_vocab_size(m), 300);
    ck_assert_int_eq(json_type(json_get(json_root(m->config), "eos_token_id")), JSON_NULL);
    ck_assert_ptr_null(cz_model_label_name(m, 0));
    cz_model_destroy(m);
    /* a folder has one of its own */
    m = cz_model_open_ex(
        test_fixture("models/gpt2"),
        &(struct cz_model_options){.size = sizeof(struct cz_model_options), .vocab_size = 90});
    ck_assert_int_eq(cz_model_vocab_size(m), 97);
    cz_model_destroy(m);
    ck_assert_ptr_null(cz_model_open_ex(test_fixture("models/gpt2"), &o));
    ck_assert(strstr(cz_last_error(), "300 tokens does not fit the model's 97") != NULL);
    ck_assert_ptr_null(
        cz_model_open_ex("gpt2", &(struct cz_model_options){.size = sizeof(struct cz_model_options),
                                                            .task = CZ_TASK_MASKED_LM}));
    ck_assert(strstr(cz_last_error(), "no head for masked language models") != NULL);
}
END_TEST

START_TEST(classes_have_names)
{
    struct json_doc *doc;
    const char *text = "{\"id2label\": {\"1\": \"one\", \"2\": 7, \"0\": null}}";
    ck_ok(json_parse(text, strlen(text), "c", JSON_STRICT, &doc));
    struct cz_model m = {.n_classes = 4, .config = doc};
    ck_ok(labels_init(&m));
    const char *const want[] = {"LABEL_0", "one", "7", "LABEL_3"};
    for (int64_t k = 0; k < 4; k++) ck_assert_str_eq(cz_model_label_name(&m, k), want[k]);
    ck_assert_ptr_null(cz_model_label_name(&m, 4));
    ck_assert_ptr_null(cz_model_label_name(&m, -1));
    free(m.label_names);
    json_free(doc);
}
END_TEST

TEST_MAIN("model/options", sizes_are_within_their_bounds, labels_replace_what_the_config_says,
          only_what_differs_is_touched, any_config_that_parses_can_be_written_into,
          wishes_that_contradict_are_refused, number_of_classes_is_what_transformers_counts,
          presets_take_the_tokenizers_vocabulary, classes_have_names)
