/* How many classes a config tells apart, and what they are called. The names travel with the model:
 * into checkpoints' exports, predictions and reports. */
#include "base/host/entry.h"
#include "base/size.h"
#include "model/hf/config_impl.h"
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a config that says nothing has, as in transformers. */
enum { N_CLASSES_DEFAULT = 2 };

/* *loss as it was where the key is absent or null. */
static cz_status read_problem_type(const struct json_node *config, enum head_loss *loss)
{
    static const char *const types[] = {
        [HEAD_CROSS_ENTROPY] = "single_label_classification",
        [HEAD_SQUARED_ERROR] = "regression",
        [HEAD_BINARY] = "multi_label_classification",
    };
    const char *type = NULL;
    char why[256];
    TRY(json_opt_string(config, "problem_type", types[*loss], &type));
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++) {
        if (strcmp(type, types[i]) != 0) continue;
        *loss = (enum head_loss)i;
        return CZ_OK;
    }
    snprintf(why, sizeof why, "\"%.64s\" is not supported; supported: %s, %s, %s, and null", type,
             types[0], types[1], types[2]);
    return config_refuse(json_get(config, "problem_type"), CZ_UNSUPPORTED, why);
}

/* id2label has the last word in transformers, too; num_labels stands in older and in shorter files.
 * The key problem_type is about rows; one label without it means regression to transformers. */
cz_status config_n_classes(const struct json_node *config, enum cz_task task, int64_t *out,
                           enum head_loss *loss)
{
    const bool rows = task == CZ_TASK_CLASSIFICATION;
    *out = 0;
    *loss = HEAD_CROSS_ENTROPY;
    if (!rows && task != CZ_TASK_TOKEN_CLASSIFICATION) return CZ_OK;
    const struct json_node *names = config_either(config, "id2label", NULL);
    const struct json_node *count = config_either(config, "num_labels", NULL);
    *out = N_CLASSES_DEFAULT;
    if (names) {
        TRY(json_need(config, "id2label", JSON_OBJECT, &names));
        *out = (int64_t)json_count(names);
    } else if (count) {
        TRY(json_as_int(count, out));
    }
    if (rows && *out == 1) *loss = HEAD_SQUARED_ERROR;
    if (rows) TRY(read_problem_type(config, loss));
    const int64_t least = *loss == HEAD_CROSS_ENTROPY ? 2 : 1;
    if (*out >= least && *out <= CZ_CLASSES_MAX) return CZ_OK;
    char why[160];
    snprintf(why, sizeof why, "%lld labels are outside %lld…%d", (long long)*out, (long long)least,
             CZ_CLASSES_MAX);
    return config_refuse(names ? names : count, CZ_INVALID, why);
}

cz_status config_token_dropout(const struct json_node *config, double *out)
{
    TRY(config_number(config, "hidden_dropout", 0.1, 0, 1, out));
    return config_number(config, "classifier_dropout", *out, 0, 1, out);
}

/* ---- names ---------------------------------------------------------------------------------- */

enum { DEFAULT_NAME_NBYTES = 16 }; /* "LABEL_1048575" */

/* What config.json calls class k: a string, or any other value as it is written. NULL: nothing. */
static const char *config_name(const struct json_node *id2label, const char *key, size_t *nbytes)
{
    const struct json_node *node = json_get(id2label, key);
    const char *text = NULL;
    if (!node || json_type(node) == JSON_NULL) return NULL;
    if (json_type(node) != JSON_STRING) return json_text(node, nbytes);
    if (json_as_string(node, &text) == CZ_OK) *nbytes = strlen(text);
    return text;
}

/* The name of class k, terminated, at dst (NULL: only measured). Returns its bytes. */
static size_t name_put(const struct json_node *id2label, int64_t k, char *dst)
{
    char buf[DEFAULT_NAME_NBYTES + 8];
    size_t nbytes = 0;
    snprintf(buf, sizeof buf, "%lld", (long long)k);
    const char *name = config_name(id2label, buf, &nbytes);
    if (!name) {
        nbytes = (size_t)snprintf(buf, sizeof buf, "LABEL_%lld", (long long)k);
        name = buf;
    }
    if (dst) {
        memcpy(dst, name, nbytes);
        dst[nbytes] = '\0';
    }
    return nbytes + 1;
}

/* One allocation for the table and all names: they are freed together. */
cz_status labels_init(struct cz_model *m)
{
    const int64_t n = m->n_classes;
    if (n <= 0) return CZ_OK;
    const struct json_node *id2label =
        m->config ? json_get(json_root(m->config), "id2label") : NULL;
    size_t nbytes = 0, table_nbytes;
    TRY(size_mul((size_t)n, sizeof *m->label_names, &table_nbytes));
    for (int64_t k = 0; k < n; k++) TRY(size_add(nbytes, name_put(id2label, k, NULL), &nbytes));
    TRY(size_add(nbytes, table_nbytes, &nbytes));
    char **names = malloc(nbytes);
    if (!names)
        return err_set(CZ_NOMEM, 0, "no memory for the names of %lld classes", (long long)n);
    char *text = (char *)(names + n); /* behind the table, in the same block */
    for (int64_t k = 0; k < n; k++) {
        names[k] = text;
        text += name_put(id2label, k, text);
    }
    free(m->label_names);
    m->label_names = names;
    return CZ_OK;
}

/* NULL for a class that does not exist. */
const char *cz_model_label_name(const struct cz_model *m, int64_t k)
{
    NEED_OR(m, NULL);
    return k >= 0 && k < m->n_classes && m->label_names ? m->label_names[k] : NULL;
}
