/* A folder of sentence-transformers lists its steps in modules.json: a transformer, how its states
 * are pooled, and what follows. czero applies the first two and Normalize; others are named. */
#include "tools/czero/embed/embed.h"

#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_unread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The last part of "sentence_transformers.models.Pooling". */
static const char *last_part(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

/* Members of the folder's small files without an effect on an embedding. */
static const struct json_harmless harmless[] = {
    {"word_embedding_dimension", NULL, NULL},
    {"embedding_dimension", NULL, NULL},
    {"include_prompt", NULL, NULL}, /* czero puts no prompt in front */
    {"__version__", NULL, NULL},
    {"prompts", NULL, NULL}, /* default_prompt_name says which one is put in front */
    {"similarity_fn_name", NULL, NULL},
    {"model_type", NULL, NULL},
    {"model_args", NULL, NULL},
    {"tokenizer_args", NULL, NULL},
    {"config_args", NULL, NULL},
    {"cache_dir", NULL, NULL},
};

/* Read a file that may be missing, and name the members that `take` did not ask for. */
static cz_status read_settings(const char *dir, const char *name,
                               cz_status (*take)(const struct json_node *, struct embed_recipe *),
                               struct embed_recipe *r, bool *found)
{
    struct unread unread = {.what = "settings"};
    struct json_watch *watch = NULL;
    struct json_doc *doc;
    TRY(json_load_object(dir, name, &doc));
    *found = doc != NULL;
    if (!doc) return CZ_OK;
    cz_status st = json_watch_begin(doc, &watch);
    if (st == CZ_OK) st = take(json_root(doc), r);
    if (st == CZ_OK) json_watch_collect(watch, harmless, CZ_ARRAY_LEN(harmless), NULL, &unread);
    json_watch_end(watch);
    json_free(doc);
    TRY(st);
    char *path = file_join(dir, name);
    st = path ? unread_report(&unread, path) : err_set(CZ_NOMEM, 0, "no memory for a path");
    free(path);
    return st;
}

static cz_status copy(char **to, const char *text)
{
    free(*to);
    *to = strdup(text);
    return *to ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for the settings of a model");
}

/* Of 1_Pooling/config.json: exactly one pooling_mode_… is true. Newer files have pooling_mode. */
static cz_status take_pooling(const struct json_node *config, struct embed_recipe *r)
{
    static const struct {
        const char *key, *name;
        enum embed_pool pool;
    } modes[] = {{"pooling_mode_cls_token", "cls", EMBED_CLS},
                 {"pooling_mode_mean_tokens", "mean", EMBED_MEAN},
                 {"pooling_mode_lasttoken", "lasttoken", EMBED_LAST}};
    size_t n_on = 0, n_known = 0;
    char other[64] = "";
    const struct json_node *mode = json_get(config, "pooling_mode");
    if (mode && json_type(mode) == JSON_STRING) {
        const char *name = "";
        TRY(json_as_string(mode, &name));
        snprintf(other, sizeof other, "%.40s", name);
        n_on = 1;
        for (size_t k = 0; k < CZ_ARRAY_LEN(modes); k++)
            if (strcmp(name, modes[k].name) == 0) n_known++, r->pool = modes[k].pool;
    }
    for (size_t i = 0; i < json_count(config); i++) {
        const struct json_node *member = json_child(config, i);
        bool on = false;
        if (strncmp(json_key(member), "pooling_mode_", 13) != 0) continue;
        TRY(json_as_bool(json_get(config, json_key(member)), &on));
        if (!on) continue;
        n_on++;
        snprintf(other, sizeof other, "%.60s", json_key(member));
        for (size_t k = 0; k < CZ_ARRAY_LEN(modes); k++)
            if (strcmp(json_key(member), modes[k].key) == 0) n_known++, r->pool = modes[k].pool;
    }
    if (n_on == 1 && n_known == 1) return CZ_OK;
    char text[128];
    snprintf(text, sizeof text, "pooling by %s",
             n_on == 0  ? "nothing"
             : n_on > 1 ? "several modes"
                        : other);
    return copy(&r->unapplied, text);
}

static cz_status read_pooling(const char *dir, const char *path, struct embed_recipe *r)
{
    char *name = file_join(path, "config.json");
    bool found;
    if (!name) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = read_settings(dir, name, take_pooling, r, &found);
    if (st == CZ_OK && !found)
        st = err_set(CZ_NOTFOUND, 0, "%s/%s: there is no such file", dir, name);
    free(name);
    return st;
}

/* sentence_bert_config.json, beside the model. */
static cz_status take_lengths(const struct json_node *root, struct embed_recipe *r)
{
    bool lowers = false;
    cz_status st = CZ_OK;
    const struct json_node *length = json_get(root, "max_seq_length");
    const struct json_node *lower = json_get(root, "do_lower_case");
    if (length && json_type(length) != JSON_NULL) st = json_as_int(length, &r->max_len);
    if (st == CZ_OK && r->max_len < 0)
        st = err_set(CZ_INVALID, 0, "%s: sentence_bert_config.json: max_seq_length is negative",
                     r->model);
    if (st == CZ_OK && lower && json_type(lower) != JSON_NULL) st = json_as_bool(lower, &lowers);
    return st == CZ_OK && lowers ? copy(&r->unapplied, "do_lower_case") : st;
}

/* A prompt in front of every text, unless a program says otherwise. */
static cz_status take_prompt(const struct json_node *root, struct embed_recipe *r)
{
    const char *name = "";
    cz_status st = CZ_OK;
    const struct json_node *given = json_get(root, "default_prompt_name");
    if (given && json_type(given) == JSON_STRING) st = json_as_string(given, &name);
    if (st == CZ_OK && *name) st = copy(&r->not_put, name);
    return st;
}

/* The model's own folder, which must be inside. */
static cz_status enter(const char *dir, const char *path, struct embed_recipe *r)
{
    int fd;
    TRY(beneath_open_folder(dir, path, &fd));
    close(fd);
    char *inside = file_join(dir, path);
    free(r->model);
    r->model = inside;
    return inside ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a path");
}

static cz_status take_modules(const char *dir, const struct json_node *list, struct embed_recipe *r)
{
    if (json_type(list) != JSON_ARRAY)
        return err_set(CZ_INVALID, 0, "%s: modules.json: a list is needed", dir);
    for (size_t i = 0; i < json_count(list); i++) {
        const char *type, *path;
        char text[128];
        TRY(json_need_string(json_child(list, i), "type", &type));
        TRY(json_need_string(json_child(list, i), "path", &path));
        const char *kind = last_part(type);
        if (strcmp(kind, "Transformer") == 0 && i == 0) {
            if (*path) TRY(enter(dir, path, r));
        } else if (strcmp(kind, "Pooling") == 0 && i == 1) {
            TRY(read_pooling(dir, path, r));
        } else if (strcmp(kind, "Normalize") == 0 && i >= 2) {
            r->normalize = true;
        } else {
            snprintf(text, sizeof text, "the module %.40s (%.40s)", path, kind);
            TRY(copy(&r->unapplied, text));
        }
    }
    if (json_count(list) < 2) return copy(&r->unapplied, "no pooling");
    return CZ_OK;
}

cz_status embed_recipe_read(const char *dir, struct embed_recipe *r)
{
    struct json_doc *doc;
    *r = (struct embed_recipe){.pool = EMBED_MEAN};
    TRY(copy(&r->model, dir));
    if (!file_exists(dir)) return CZ_OK; /* a preset */
    if (!beneath_is_there(dir, "modules.json")) return CZ_OK;
    TRY(json_load_in(dir, "modules.json", JSON_STRICT, &doc));
    r->given = true;
    cz_status st = take_modules(dir, json_root(doc), r);
    json_free(doc);
    bool found;
    if (st == CZ_OK)
        st = read_settings(r->model, "sentence_bert_config.json", take_lengths, r, &found);
    if (st == CZ_OK)
        st = read_settings(dir, "config_sentence_transformers.json", take_prompt, r, &found);
    return st;
}

void embed_recipe_free(struct embed_recipe *r)
{
    free(r->model);
    free(r->unapplied);
    free(r->not_put);
    *r = (struct embed_recipe){0};
}
