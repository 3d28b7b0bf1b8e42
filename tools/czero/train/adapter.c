/* A model and its adapter as one. An adapter of a classifier brings the head along, whole, and
 * PEFT's files have no names of classes: of a model that is none, the head tells how many there
 * are. */
#include "tools/czero/train/adapter.h"

#include "base/log.h"
#include "base/text/unread.h"
#include "data/chat/chat_template.h"
#include "formats/beneath.h"
#include "formats/json/json.h"
#include "formats/safetensors/safetensors.h"
#include <czero/data.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES_MAX 100000

/* What the adapter classifies, by its task_type; CZ_TASK_AUTO: nothing. */
static enum cz_task task_of(const char *dir)
{
    struct json_doc *config;
    const char *type = "";
    if (json_load_in(dir, "adapter_config.json", JSON_STRICT, &config) != CZ_OK)
        return CZ_TASK_AUTO;
    const struct json_node *node = json_get(json_root(config), "task_type");
    if (!node || json_type(node) != JSON_STRING || json_as_string(node, &type) != CZ_OK) type = "";
    const enum cz_task task = strcmp(type, "SEQ_CLS") == 0     ? CZ_TASK_CLASSIFICATION
                              : strcmp(type, "TOKEN_CLS") == 0 ? CZ_TASK_TOKEN_CLASSIFICATION
                                                               : CZ_TASK_AUTO;
    json_free(config);
    return task;
}

/* Rows of the head's last matrix; 0: the adapter has none. */
static int64_t n_classes_of(const char *dir)
{
    static const char *const ends[] = {".classifier.out_proj.weight", ".classifier.weight",
                                       ".score.weight"};
    struct safetensors *st;
    int64_t n = 0;
    if (safetensors_open_in(dir, "adapter_model.safetensors", &st) != CZ_OK) return 0;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_info *t = safetensors_at(st, i);
        for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) {
            const size_t len = strlen(t->name), n_end = strlen(ends[k]);
            if (len > n_end && strcmp(t->name + len - n_end, ends[k]) == 0 && t->ndim == 2)
                n = t->shape[0];
        }
    }
    safetensors_close(st);
    return n > CLASSES_MAX ? 0 : n;
}

static bool is_classifier(const char *model)
{
    const struct cz_model_options look = {.size = sizeof look, .config_only = true};
    struct cz_model *probe = cz_model_open_ex(model, &look);
    const bool is_one = probe && cz_model_n_classes(probe) > 0;
    cz_model_destroy(probe);
    return is_one;
}

/* One output is a value, as in transformers; classes are called LABEL_0 and so on. */
static struct cz_model *open_with_head(const char *model, enum cz_task task, int64_t n)
{
    struct cz_model_options options = {.size = sizeof options, .task = task};
    struct cz_model *m = NULL;
    if (n == 1) {
        options.problem = CZ_PROBLEM_REGRESSION;
        return cz_model_open_ex(model, &options);
    }
    char(*names)[24] = calloc((size_t)n, sizeof *names);
    const char **labels = calloc((size_t)n, sizeof *labels);
    for (int64_t i = 0; names && labels && i < n; i++) {
        snprintf(names[i], sizeof names[i], "LABEL_%lld", (long long)i);
        labels[i] = names[i];
    }
    options.labels = labels;
    options.n_labels = (size_t)n;
    if (names && labels)
        m = cz_model_open_ex(model, &options);
    else
        err_set(CZ_NOMEM, 0, "no memory for %lld classes", (long long)n);
    free(names);
    free((void *)labels);
    return m;
}

static struct cz_model *open_for(const char *model, const char *adapter)
{
    const enum cz_task task = adapter ? task_of(adapter) : CZ_TASK_AUTO;
    const int64_t n = task != CZ_TASK_AUTO && !is_classifier(model) ? n_classes_of(adapter) : 0;
    err_clear(); /* a folder that cannot be read says so below */
    return n > 0 ? open_with_head(model, task, n) : cz_model_open(model);
}

/* transformers would load the base that the adapter names, and the adapter on it. A run's model/
 * has the config of its adapter alone. */
static cz_status say_model_alone(const char *dir)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapter_model.bin"};
    struct unread unread = {.what = "files"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (beneath_is_there(dir, names[i]))
            unread_add(&unread, names[i], "the model is taken alone; --adapter %s adds it", dir);
    return unread_report(&unread, dir);
}

cz_status adapter_find_base(const char **model, const char **adapter)
{
    static char base[PATH_MAX];
    const char *dir = *model;
    char *folder, *name;
    if (dir) TRY(model_refuse_adapter_run(dir));
    if (!dir || !beneath_is_there(dir, "adapter_config.json")) return CZ_OK;
    if (beneath_is_there(dir, "config.json")) return *adapter ? CZ_OK : say_model_alone(dir);
    if (*adapter)
        return err_set(CZ_INVALID, 0,
                       "--model %s is an adapter, and --adapter %s another: give one of them", dir,
                       *adapter);
    TRY(model_adapter_base(dir, &folder, &name));
    cz_status st = CZ_OK;
    if (!folder)
        st = err_set(CZ_NOTFOUND, 0,
                     "%s is an adapter of %s, which is no model's folder here: use --model DIR "
                     "--adapter %s",
                     dir, name ? name : "a model that it does not name", dir);
    else if (snprintf(base, sizeof base, "%s", folder) >= PATH_MAX)
        st = err_set(CZ_INVALID, 0, "%s: the path of its base is too long", dir);
    if (st == CZ_OK) {
        LOGV(LOG_INFO, SUB_MODEL, "%s is an adapter of %s", dir, base);
        *model = base;
        *adapter = dir;
    }
    free(folder);
    free(name);
    return st;
}

struct cz_model *adapter_open(const char *model, const char *adapter)
{
    struct cz_model *m = open_for(model, adapter);
    if (!m || !adapter || cz_model_add_adapter(m, adapter, false) == CZ_OK) return m;
    cz_model_destroy(m);
    return NULL;
}

const char *adapter_tokenizer(const char *given, const char *model, const char *adapter)
{
    if (given) return given;
    if (adapter && cz_tokenizer_is_in(adapter)) return adapter;
    return cz_tokenizer_is_in(model) ? model : "bytes";
}

const char *adapter_template(const char *model, const char *adapter)
{
    if (adapter && chat_template_is_in(adapter)) return adapter;
    return !cz_tokenizer_is_in(model) && chat_template_is_in(model) ? model : NULL;
}
