/* Models from Hugging Face folders and presets: config.json names a family, the family builds the
 * chain, model*.safetensors supplies the weights. */
#include "base/host/entry.h"
#include "base/log.h"
#include "base/options.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_unread.h"
#include "model/families.h"
#include "model/hf/config_impl.h"
#include "model/hf/tensor_files_impl.h"
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys that say nothing about a model's arithmetic, or that most families read. */
static bool is_bookkeeping(const char *key)
{
    static const char *const keys[] = {"_name_or_path", "architectures",
                                       "auto_map",      "dtype",
                                       "id2label",      "label2id",
                                       "model_type",    "num_labels",
                                       "problem_type",  "rope_parameters",
                                       "rope_scaling",  "tie_word_embeddings",
                                       "torch_dtype",   "transformers_version",
                                       "use_cache"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        if (strcmp(keys[i], key) == 0) return true;
    return strstr(key, "token_id") != NULL;
}

/* How many keys of `config` a family's preset has, too; *missing: up to `nbytes` of those that it
 * has not. −1: the family has no preset. */
static int shared_keys(const struct json_node *config, const struct model_family *f, char *missing,
                       size_t nbytes)
{
    char *text = NULL;
    struct json_doc *preset = NULL;
    size_t used = 0;
    int n = 0;
    if (!f->preset_config || f->preset_config(f->preset_example, &text) != CZ_OK ||
        json_parse(text, strlen(text), f->preset_example, JSON_STRICT, &preset) != CZ_OK) {
        free(text);
        err_clear();
        return -1;
    }
    missing[0] = '\0';
    for (size_t i = 0; i < json_count(config); i++) {
        const char *key = json_key(json_child(config, i));
        if (is_bookkeeping(key)) continue;
        if (json_get(json_root(preset), key)) {
            n++;
            continue;
        }
        const size_t len = strlen(key);
        if (used + len + 3 >= nbytes) continue;
        used += (size_t)snprintf(missing + used, nbytes - used, "%s%s", used ? ", " : "", key);
    }
    json_free(preset);
    free(text);
    return n;
}

/* The known family whose config.json has most keys of this one's. What differs is at least the keys
 * that it lacks; whether the arithmetic is the same, keys do not tell. */
static cz_status refuse_unknown(const struct json_node *config, const char *model_type)
{
    char known[512], where[512], missing[200], best_missing[200] = "";
    size_t n;
    int most = 0;
    const struct model_family *const *families = model_families(&n), *best = NULL;
    for (size_t i = 0; i < n; i++) {
        const int shared = shared_keys(config, families[i], missing, sizeof missing);
        if (shared <= most) continue;
        most = shared;
        best = families[i];
        strcpy(best_missing, missing);
    }
    json_where(json_get(config, "model_type"), where, sizeof where);
    model_type_names(known, sizeof known);
    if (most < 3)
        return err_set(CZ_UNSUPPORTED, 0, "%s: \"%s\" is not among the supported models: %s", where,
                       model_type, known);
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: \"%s\" is not among the supported models: %s. Nearest by its keys is %s, "
                   "whose config.json %s%s",
                   where, model_type, known, best->model_type,
                   best_missing[0] ? "does not have " : "has all of them", best_missing);
}

static cz_status family_of(const struct json_node *config, const struct model_family **out)
{
    const char *model_type;
    TRY(json_need_string(config, "model_type", &model_type));
    *out = model_family_find(model_type);
    if (*out) return CZ_OK;
    return refuse_unknown(config, model_type);
}

/* ---- heads ---------------------------------------------------------------------------------- */

static const struct model_head *head_for_task(const struct model_family *f, enum cz_task task)
{
    for (size_t i = 0; i < f->n_heads; i++)
        if (f->heads[i].task == task) return &f->heads[i];
    return NULL;
}

/* "GPT2LMHeadModel, GPT2Model" */
static const char *list_heads(const struct model_family *f, char *buf, size_t nbytes)
{
    size_t used = 0;
    for (size_t i = 0; i < f->n_heads && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s, ", f->heads[i].architecture);
    if (used < nbytes) snprintf(buf + used, nbytes - used, "%s", f->base_architecture);
    return buf;
}

/* The head that "architectures" name; a bare model, or no word of it, gets the first. */
static cz_status head_from_config(const struct json_node *config, const struct model_family *f,
                                  enum cz_task *out)
{
    const struct json_node *list = config_either(config, "architectures", NULL);
    const char *name = f->base_architecture;
    *out = f->heads[0].task;
    if (!list || json_count(list) == 0) return CZ_OK;
    TRY(json_as_string(json_child(list, 0), &name));
    if (strcmp(name, f->base_architecture) == 0) return CZ_OK;
    for (size_t i = 0; i < f->n_heads; i++)
        if (strcmp(f->heads[i].architecture, name) == 0) {
            *out = f->heads[i].task;
            return CZ_OK;
        }
    char known[256], why[512];
    snprintf(why, sizeof why, "%s is not among the supported heads: %s", name,
             list_heads(f, known, sizeof known));
    return config_refuse(json_child(list, 0), CZ_UNSUPPORTED, why);
}

/* Whether "architectures" name a head of a known or unknown task other than `task`. */
static bool names_other_head(const struct json_node *config, const struct model_family *f,
                             enum cz_task task)
{
    const struct json_node *list = config_either(config, "architectures", NULL);
    const char *name;
    if (!list || json_count(list) == 0 || json_type(json_child(list, 0)) != JSON_STRING ||
        json_as_string(json_child(list, 0), &name) != CZ_OK)
        return false;
    if (strcmp(name, f->base_architecture) == 0) return false;
    for (size_t i = 0; i < f->n_heads; i++)
        if (f->heads[i].task == task && strcmp(f->heads[i].architecture, name) == 0) return false;
    return true;
}

/* Whether the files hold this head, and not the model below it alone. */
static bool names_this_head(const struct json_node *config, const struct cz_model *m)
{
    const struct model_head *head = head_for_task(m->family, m->task);
    const struct json_node *list = config_either(config, "architectures", NULL);
    const char *name;
    return head && list && json_count(list) > 0 && json_type(json_child(list, 0)) == JSON_STRING &&
           json_as_string(json_child(list, 0), &name) == CZ_OK &&
           strcmp(name, head->architecture) == 0;
}

/* The files' head has as many classes as the caller named, but they were others. Classes without a
 * name are called LABEL_0 …, or by their number. */
static void warn_renamed(const struct json_node *config, const struct cz_model *m, const char *dir)
{
    const struct json_node *id2label = json_get(config, "id2label");
    const bool is_trained = names_this_head(config, m);
    char key[24], unnamed[32];
    if (!m->labels_given || (id2label && json_count(id2label) != (size_t)m->n_classes)) return;
    if (!id2label && m->n_classes != 2) return; /* transformers' default, which is not written */
    for (int64_t k = 0; k < m->n_classes; k++) {
        snprintf(key, sizeof key, "%lld", (long long)k);
        snprintf(unnamed, sizeof unnamed, "LABEL_%lld", (long long)k);
        const struct json_node *node = id2label ? json_get(id2label, key) : NULL;
        const char *old = unnamed, *now = m->label_names[k];
        if (node && (json_type(node) != JSON_STRING || json_as_string(node, &old) != CZ_OK))
            continue;
        const bool was_unnamed = strcmp(old, unnamed) == 0;
        if (strcmp(old, now) == 0 || (was_unnamed && (!is_trained || strcmp(key, now) == 0)))
            continue;
        LOGV(LOG_WARN, SUB_MODEL,
             "%s: the head was trained for \"%s\" as class %lld, which is now called \"%s\"", dir,
             old, (long long)k, now);
        return;
    }
}

cz_status head_compare(const struct cz_model *m, const char *dir, bool says, bool *is_foreign)
{
    struct json_doc *config;
    *is_foreign = false;
    if (!m->family) return CZ_OK;
    if (!beneath_is_there(dir, "config.json")) return CZ_OK;
    TRY(json_load_in(dir, "config.json", JSON_STRICT, &config));
    *is_foreign = names_other_head(json_root(config), m->family, m->task);
    if (!*is_foreign && says) warn_renamed(json_root(config), m, dir);
    json_free(config);
    return CZ_OK;
}

static cz_status head_of(const struct json_node *config, const struct model_family *f,
                         const struct cz_model_options *options, enum cz_task *out)
{
    *out = options->task;
    if (*out == CZ_TASK_AUTO) return head_from_config(config, f, out);
    if (head_for_task(f, *out)) return CZ_OK;
    static const char *const names[] = {"",
                                        "causal language models",
                                        "masked language models",
                                        "classification",
                                        "replaced tokens",
                                        "token classification"};
    char known[256], why[512];
    snprintf(why, sizeof why, "no head for %s; %s has %s", names[*out], f->model_type,
             list_heads(f, known, sizeof known));
    return config_refuse(json_get(config, "model_type"), CZ_UNSUPPORTED, why);
}

/* A model from a parsed config, which is its own afterwards, also on failure. `path`: of
 * config.json; NULL: of a preset. unread, unless NULL, takes the keys that nothing asked for. */
static cz_status model_from_config(struct json_doc *config, const char *path, const char *name,
                                   const struct cz_model_options *options, struct unread *unread,
                                   struct cz_model **out)
{
    const struct model_family *family = NULL;
    struct json_watch *watch = NULL;
    enum cz_task task;
    const char *place = path ? path : name;
    cz_status st;
    *out = NULL;
    TRY_GOTO(family_of(json_root(config), &family), done);
    TRY_GOTO(head_of(json_root(config), family, options, &task), done);
    TRY_GOTO(options_write(options, head_for_task(family, task), !path, place, &config), done);
    if (unread) TRY_GOTO(json_watch_begin(config, &watch), done);
    TRY_GOTO(family->build(json_root(config), name, task, out), done);
    (*out)->family = family;
    (*out)->task = task;
    (*out)->labels_given = options->n_labels > 0 || options->problem == CZ_PROBLEM_REGRESSION;
    (*out)->config = config;
    config = NULL;
    TRY_GOTO(labels_init(*out), done);
    if (unread) config_collect_unread(watch, family->model_type, unread);
    if (options->vocab_size > (*out)->vocab_size)
        st = err_set(CZ_INVALID, 0, "%s: a vocabulary of %lld tokens does not fit the model's %lld",
                     place, (long long)options->vocab_size, (long long)(*out)->vocab_size);
done:
    json_watch_end(watch);
    json_free(config);
    if (st != CZ_OK) {
        cz_model_destroy(*out);
        *out = NULL;
    }
    return st;
}

/* ---- folders and presets -------------------------------------------------------------------- */

static const struct cz_model_options no_options;

/* How text is generated with the model (end tokens, temperature), for programs that load an export
 * of it. The model works without it, so one that says nothing is left out; a link to elsewhere is
 * refused. */
static cz_status take_generation(struct cz_model *m, const char *dir)
{
    struct stat info;
    if (!beneath_is_there(dir, "generation_config.json")) return CZ_OK;
    if (beneath_stat(dir, "generation_config.json", &info) == CZ_CORRUPT) return CZ_CORRUPT;
    cz_status st = json_load_in(dir, "generation_config.json", JSON_STRICT, &m->generation);
    if (st == CZ_NOMEM) return st;
    if (st == CZ_OK && json_type(json_root(m->generation)) == JSON_OBJECT) return CZ_OK;
    LOGV(LOG_WARN, SUB_MODEL, "%s/generation_config.json: is not exported: %s", dir,
         st == CZ_OK ? "it is no object of JSON" : cz_last_error());
    err_clear();
    json_free(m->generation);
    m->generation = NULL;
    return CZ_OK;
}

/* Whether the config ties names of a parameter, which files may contradict. */
static bool has_ties(const struct cz_model *m)
{
    for (size_t i = 0; i < m->params.n_aliases; i++)
        if (!m->params.aliases[i].is_stored) return true;
    return false;
}

/* Weight files of the folder; with config_only, those that could contradict a tie, if they open. */
static cz_status open_weights(const struct cz_model *m, const char *dir,
                              const struct cz_model_options *options, struct tensor_files **out)
{
    *out = NULL;
    if (options->config_only && (options->tied_by_config || !has_ties(m))) return CZ_OK;
    cz_status st = tensor_files_open(dir, false, out);
    if (st == CZ_OK || st == CZ_NOMEM || !options->config_only) return st;
    err_clear();
    return CZ_OK;
}

/* transformers 5 keeps a head that differs from the embedding to which the config ties it: so does
 * the model, whose config then says so. */
static cz_status untie(struct cz_model **m, const char *path, const char *dir,
                       const struct cz_model_options *options)
{
    struct json_doc *config = (*m)->config;
    (*m)->config = NULL;
    cz_model_destroy(*m);
    *m = NULL;
    cz_status st = options_untie(path, &config);
    if (st == CZ_OK) return model_from_config(config, path, dir, options, NULL, m);
    json_free(config);
    return st;
}

/* Binds the files to the model. If the files hold their own head, an untied model replaces *m
 * first. With config_only no weights are bound. */
static cz_status take_weights(struct cz_model **m, struct tensor_files **files, const char *path,
                              const char *dir, const struct cz_model_options *options)
{
    const char *own;
    bool head_is_foreign = false;
    TRY(head_compare(*m, dir, !options->config_only, &head_is_foreign));
    TRY(weights_find_own_head(*m, *files, head_is_foreign, &own));
    if (own && !options->config_only)
        LOGV(LOG_WARN, SUB_MODEL,
             "%s: %s is tied by config.json, but the files hold other values for it: it is kept, "
             "and trained, apart; \"tie_word_embeddings\": false in config.json says so",
             dir, own);
    if (own) TRY(untie(m, path, dir, options));
    if (options->config_only) return CZ_OK;
    TRY(weights_bind(*m, *files, dir, head_is_foreign));
    *files = NULL;
    return CZ_OK;
}

static cz_status hf_open(const char *dir, const struct cz_model_options *options,
                         struct cz_model **out)
{
    *out = NULL;
    cz_status st = CZ_OK;
    struct json_doc *config = NULL;
    struct tensor_files *files = NULL;
    struct cz_model *m = NULL;
    struct unread unread = {.what = "keys"};
    char *path = file_join(dir, "config.json");
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    if (!beneath_is_there(dir, "config.json")) {
        st = err_set(CZ_NOTFOUND, 0, "%s: there is no such file", path);
        goto done;
    }
    TRY_GOTO(json_load_in(dir, "config.json", JSON_STRICT, &config), done);
    TRY_GOTO(
        model_from_config(config, path, dir, options, options->config_only ? NULL : &unread, &m),
        done);
    TRY_GOTO(unread_report(&unread, path), done);
    TRY_GOTO(open_weights(m, dir, options, &files), done);
    if (files)
        TRY_GOTO(take_weights(&m, &files, path, dir, options), done);
    else if (!options->config_only)
        LOGV(LOG_INFO, SUB_MODEL, "%s: there are no weights beside config.json", dir);
    TRY_GOTO(take_generation(m, dir), done);
    *out = m;
    m = NULL;
done:
    cz_model_destroy(m);
    tensor_files_close(files);
    free(path);
    return st;
}

struct cz_model *cz_model_from_hf_ex(const char *dir, const struct cz_model_options *options)
{
    API_ENTRY;
    struct cz_model_options ours;
    struct cz_model *m;
    if (entry_need(dir, "dir") != CZ_OK || OPTIONS_TAKE(cz_model_options, &ours, options) != CZ_OK)
        return NULL;
    return hf_open(dir, &ours, &m) == CZ_OK ? m : NULL;
}

struct cz_model *cz_model_from_hf(const char *dir)
{
    return cz_model_from_hf_ex(dir, NULL);
}

static cz_status preset_config(const char *name, char **text)
{
    size_t n;
    const struct model_family *const *families = model_families(&n);
    for (size_t i = 0; i < n; i++) {
        if (!families[i]->preset_config) continue;
        cz_status st = families[i]->preset_config(name, text);
        if (st != CZ_NOTFOUND) return st;
    }
    const char *near = model_preset_nearest(name);
    if (near)
        return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset; did you mean %s?", name, near);
    return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset; czero models lists them", name);
}

static cz_status preset_open(const char *name, const struct cz_model_options *options,
                             struct cz_model **out)
{
    *out = NULL;
    char *text;
    struct json_doc *config;
    TRY(preset_config(name, &text));
    cz_status st = json_parse(text, strlen(text), name, JSON_STRICT, &config);
    free(text);
    if (st != CZ_OK) return st;
    return model_from_config(config, NULL, name, options, NULL, out);
}

struct cz_model *cz_model_from_preset(const char *name)
{
    API_ENTRY;
    if (entry_need(name, "name") != CZ_OK) return NULL;
    struct cz_model *m;
    return preset_open(name, &no_options, &m) == CZ_OK ? m : NULL;
}

struct cz_model *cz_model_open_ex(const char *dir_or_preset, const struct cz_model_options *options)
{
    API_ENTRY;
    if (entry_need(dir_or_preset, "dir_or_preset") != CZ_OK) return NULL;
    if (beneath_is_there(dir_or_preset, "config.json"))
        return cz_model_from_hf_ex(dir_or_preset, options);
    struct cz_model_options ours;
    struct cz_model *m;
    if (OPTIONS_TAKE(cz_model_options, &ours, options) != CZ_OK) return NULL;
    if (preset_open(dir_or_preset, &ours, &m) == CZ_OK) return m;
    if (cz_last_status() != CZ_NOTFOUND) return NULL;
    model_refuse_name(dir_or_preset);
    return NULL;
}

struct cz_model *cz_model_open(const char *dir_or_preset)
{
    return cz_model_open_ex(dir_or_preset, NULL);
}
