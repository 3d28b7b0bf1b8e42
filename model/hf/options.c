/* What the caller wants of a model, written into its config.json: chain, checkpoint and export then
 * read one config that agrees with all of it.
 *
 * Values are replaced in the text where they stand and new members go to its end, so that lines
 * keep their numbers and messages still name the place in the user's file. */
#include "base/log.h"
#include "base/utf8.h"
#include "formats/json/json_write.h"
#include "model/hf/config_impl.h"
#include "model/model_impl.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- edits of a text ------------------------------------------------------------------------ */

/* A member and its new value, as JSON. */
struct edit {
    const char *key;
    char *value; /* owned */
};

enum { EDITS_MAX = 16 };

struct edits {
    struct edit at[EDITS_MAX];
    size_t n;
};

static void edits_free(struct edits *e)
{
    for (size_t i = 0; i < e->n; i++) free(e->at[i].value);
    e->n = 0;
}

/* Takes what `value` has written; a writer that failed is reported here. */
static cz_status edits_add(struct edits *e, const char *key, struct json_writer *value)
{
    char *text;
    TRY(json_writer_take(value, &text, NULL));
    if (e->n == EDITS_MAX) {
        free(text);
        return err_set(CZ_INVALID, 0, "more than %d changes of a config", EDITS_MAX);
    }
    e->at[e->n++] = (struct edit){key, text};
    return CZ_OK;
}

static cz_status edits_add_int(struct edits *e, const char *key, int64_t value)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    json_write_int(&w, value);
    return edits_add(e, key, &w);
}

static cz_status edits_add_null(struct edits *e, const char *key)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    json_write_null(&w);
    return edits_add(e, key, &w);
}

/* There are at most EDITS_MAX: no index is needed. */
static const struct edit *edit_of(const struct edits *e, const char *key)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->at[i].key, key) == 0) return &e->at[i];
    return NULL;
}

/* The user's bytes, unchanged: comments in strings, spacing, number formats. */
static void put_bytes(struct json_writer *w, const char *from, const char *to)
{
    json_write_bytes(w, from, (size_t)(to - from));
}

/* The root's text with the edits in it, and as many empty lines in front as it has above it. */
static void put_edited(struct json_writer *w, const struct json_node *root, const struct edits *e)
{
    size_t nbytes;
    const char *from = json_text(root, &nbytes);
    const char *end = from + nbytes - 1; /* the closing brace */
    for (int line = 1; line < json_line(root); line++) json_write_text(w, "\n");
    for (size_t i = 0; i < json_count(root); i++) {
        const struct json_node *child = json_child(root, i);
        const struct edit *edit = edit_of(e, json_key(child));
        if (!edit) continue;
        const char *old = json_text(child, &nbytes);
        put_bytes(w, from, old);
        json_write_text(w, edit->value);
        const char *to = old + nbytes;
        for (const char *c = old; c < to; c++)
            if (*c == '\n') json_write_text(w, "\n");
        from = old + nbytes;
    }
    put_bytes(w, from, end);
    /* Behind what was there; the closing brace follows. */
    bool first = json_count(root) == 0;
    for (size_t i = 0; i < e->n; i++) {
        if (json_get(root, e->at[i].key)) continue;
        json_write_format(w, "%s\"%s\": ", first ? "" : ", ", e->at[i].key);
        json_write_text(w, e->at[i].value);
        first = false;
    }
    json_write_text(w, "}");
}

/* Replace *doc by what the edits make of it. */
static cz_status edits_apply(const struct edits *e, const char *place, struct json_doc **doc)
{
    if (e->n == 0) return CZ_OK;
    struct json_writer w;
    struct json_doc *edited;
    char *text;
    size_t nbytes;
    json_writer_init(&w, 0);
    put_edited(&w, json_root(*doc), e);
    TRY(json_writer_take(&w, &text, &nbytes));
    cz_status st = json_parse(text, nbytes, place, JSON_STRICT, &edited);
    free(text);
    if (st != CZ_OK) return st;
    json_free(*doc);
    *doc = edited;
    return CZ_OK;
}

/* ---- labels --------------------------------------------------------------------------------- */

/* For sorting pointers to names. */
static int by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Two classes of one name could not be told apart in label2id, nor by a reader. */
static cz_status check_distinct(const struct cz_model_options *o)
{
    const char **sorted = malloc(o->n_labels * sizeof *sorted);
    if (!sorted) return err_set(CZ_NOMEM, 0, "no memory for %zu labels", o->n_labels);
    memcpy(sorted, o->labels, o->n_labels * sizeof *sorted);
    qsort(sorted, o->n_labels, sizeof *sorted, by_text);
    cz_status st = CZ_OK;
    for (size_t i = 1; i < o->n_labels && st == CZ_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            st = err_set(CZ_INVALID, 0, "two classes are called \"%s\"", sorted[i]);
    free(sorted);
    return st;
}

/* Both directions, as transformers writes them. */
static cz_status add_label_maps(const struct cz_model_options *o, struct edits *e)
{
    struct json_writer id2label, label2id;
    char key[24];
    json_writer_init(&id2label, 0);
    json_writer_init(&label2id, 0);
    json_begin_object(&id2label);
    json_begin_object(&label2id);
    for (size_t k = 0; k < o->n_labels; k++) {
        snprintf(key, sizeof key, "%zu", k);
        json_put_string(&id2label, key, o->labels[k]);
        json_put_int(&label2id, o->labels[k], (int64_t)k);
    }
    json_end_object(&id2label);
    json_end_object(&label2id);
    cz_status st = edits_add(e, "id2label", &id2label);
    if (st == CZ_OK) st = edits_add(e, "label2id", &label2id);
    json_writer_free(&label2id); /* in case the first failed */
    return st;
}

static cz_status check_labels(const struct cz_model_options *o, const struct model_head *head,
                              size_t least)
{
    /* Names become ids by their order, so they must differ and be UTF-8. */
    if (head->task != CZ_TASK_CLASSIFICATION && head->task != CZ_TASK_TOKEN_CLASSIFICATION)
        return err_set(CZ_INVALID, 0, "names of classes are for classification only");
    if (o->n_labels < least || o->n_labels > CZ_CLASSES_MAX)
        return err_set(CZ_INVALID, 0, "classification takes %zu to %d classes, not %zu", least,
                       CZ_CLASSES_MAX, o->n_labels);
    for (size_t k = 0; k < o->n_labels; k++)
        if (!o->labels[k] || !utf8_is_valid(o->labels[k], strlen(o->labels[k])))
            return err_set(CZ_INVALID, 0, "the name of class %zu is not UTF-8", k);
    return check_distinct(o);
}

/* The maps of labels and problem_type, of a caller that says anything about them. One class per row
 * needs no problem_type, but takes one away. */
static cz_status add_problem(const struct json_node *root, const struct cz_model_options *options,
                             const struct model_head *head, struct edits *e)
{
    static const char *const types[] = {
        [CZ_PROBLEM_REGRESSION] = "regression",
        [CZ_PROBLEM_MULTI_LABEL] = "multi_label_classification",
    };
    static const char *const value = "LABEL_0";
    struct cz_model_options o = *options;
    const bool has_type = o.problem == CZ_PROBLEM_REGRESSION || o.problem == CZ_PROBLEM_MULTI_LABEL;
    if (o.problem == CZ_PROBLEM_REGRESSION && o.n_labels == 0) {
        o.labels = &value;
        o.n_labels = 1;
    }
    if (o.n_labels == 0) return CZ_OK;
    TRY(check_labels(&o, head, has_type ? 1 : 2));
    TRY(add_label_maps(&o, e));
    if (json_get(root, "num_labels")) TRY(edits_add_int(e, "num_labels", (int64_t)o.n_labels));
    if (!has_type)
        return json_get(root, "problem_type") ? edits_add_null(e, "problem_type") : CZ_OK;
    struct json_writer w;
    json_writer_init(&w, 0);
    json_write_string(&w, types[o.problem]);
    return edits_add(e, "problem_type", &w);
}

/* ---- the head and the vocabulary ------------------------------------------------------------ */

static bool names_architecture(const struct json_node *root, const char *architecture)
{
    const struct json_node *list = config_either(root, "architectures", NULL);
    const char *name;
    return list && json_count(list) > 0 && json_type(json_child(list, 0)) == JSON_STRING &&
           json_as_string(json_child(list, 0), &name) == CZ_OK && strcmp(name, architecture) == 0;
}

/* Tokens beyond a smaller vocabulary are dropped from the config: transformers refuses such a pad
 * token. */
static cz_status set_vocab_size(const struct json_node *root, const struct cz_model_options *o,
                                struct edits *e)
{
    int64_t now = 0;
    if (o->vocab_size == 0) return CZ_OK;
    if (o->vocab_size < 0 || o->vocab_size > INT32_MAX)
        return err_set(CZ_INVALID, 0, "a vocabulary of %lld tokens is outside 1…%d",
                       (long long)o->vocab_size, INT32_MAX);
    TRY(json_opt_int(root, "vocab_size", 0, &now));
    if (now == o->vocab_size) return CZ_OK;
    TRY(edits_add_int(e, "vocab_size", o->vocab_size));
    /* Tokens beyond a smaller vocabulary would be no tokens: transformers refuses such a pad. */
    static const char *const keys[] = {"bos_token_id", "cls_token_id",  "eos_token_id",
                                       "pad_token_id", "mask_token_id", "sep_token_id"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++) {
        const struct json_node *node = json_get(root, keys[i]);
        int64_t id;
        if (!node || json_type(node) != JSON_INT || json_as_int(node, &id) != CZ_OK) continue;
        if (id >= o->vocab_size) TRY(edits_add_null(e, keys[i]));
    }
    return CZ_OK;
}

/* Only what differs is edited: a config that already says it stays byte for byte. */
cz_status options_write(const struct cz_model_options *options, const struct model_head *head,
                        bool is_preset, const char *place, struct json_doc **config)
{
    struct edits e = {.n = 0};
    cz_status st;
    const struct json_node *root = json_root(*config);
    /* Transformers chooses the class by this name. */
    if (!names_architecture(root, head->architecture)) {
        struct json_writer w;
        json_writer_init(&w, 0);
        json_begin_array(&w);
        json_write_string(&w, head->architecture);
        json_end_array(&w);
        TRY_GOTO(edits_add(&e, "architectures", &w), done);
    }
    /* What the files' own head was for gives way to what this one learns. */
    TRY_GOTO(add_problem(root, options, head, &e), done);
    if (is_preset) TRY_GOTO(set_vocab_size(root, options, &e), done);
    /* Rows could not be told from their padding without it: transformers refuses batches. */
    if (options->has_padding_id && head->reads_last && !config_either(root, "pad_token_id", NULL))
        TRY_GOTO(edits_add_int(&e, "pad_token_id", options->padding_id), done);
    TRY_GOTO(edits_apply(&e, place, config), done);
done:
    edits_free(&e);
    return st;
}

cz_status options_untie(const char *place, struct json_doc **config)
{
    struct edits e = {.n = 0};
    struct json_writer w;
    json_writer_init(&w, 0);
    json_write_bool(&w, false);
    cz_status st = edits_add(&e, "tie_word_embeddings", &w);
    if (st == CZ_OK) st = edits_apply(&e, place, config);
    edits_free(&e);
    return st;
}
