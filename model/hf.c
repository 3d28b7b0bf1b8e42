/* Models from Hugging Face folders and presets: config.json names a family, the family builds the
 * chain, model*.safetensors supplies the weights. */
#include "base/log.h"
#include "formats/file_io.h"
#include "model/gpt2_impl.h"
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct model_family *const families[] = {&model_family_gpt2};

static const struct model_family *family_find(const char *model_type)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

static cz_status family_of(const struct json_node *config, const struct model_family **out)
{
    const char *model_type;
    char where[512];
    TRY(json_need_string(config, "model_type", &model_type));
    *out = family_find(model_type);
    if (*out) return CZ_OK;
    char known[256] = "";
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 families[i]->model_type);
    return err_set(CZ_UNSUPPORTED, 0, "%s: \"%s\" is not among the supported models: %s",
                   json_where(json_get(config, "model_type"), where, sizeof where), model_type,
                   known);
}

/* A model from a parsed config; takes `config` over on success. */
static cz_status model_from_config(struct json_doc *config, const char *name, struct model **out)
{
    const struct model_family *family = NULL;
    TRY(family_of(json_root(config), &family));
    TRY(family->build(json_root(config), name, out));
    (*out)->family = family;
    (*out)->config = config;
    return CZ_OK;
}

static cz_status hf_open(const char *dir, struct model **out)
{
    *out = NULL;
    cz_status st = CZ_OK;
    struct json_doc *config = NULL;
    struct safetensors *files = NULL;
    struct model *m = NULL;
    char *path = file_join(dir, "config.json");
    if (!path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    if (!file_exists(path)) {
        st = err_set(CZ_NOTFOUND, 0, "%s: there is no such file", path);
        goto done;
    }
    TRY_GOTO(json_load(path, JSON_STRICT, &config), done);
    TRY_GOTO(model_from_config(config, dir, &m), done);
    config = NULL; /* the model's now */
    TRY_GOTO(weights_open(dir, false, &files), done);
    if (files) {
        TRY_GOTO(weights_bind(m, files, dir), done);
        files = NULL;
    } else {
        LOGV(LOG_INFO, SUB_MODEL, "%s holds no weights: starting from random ones", dir);
    }
    *out = m;
    m = NULL;
done:
    model_destroy(m);
    safetensors_close(files);
    json_free(config);
    free(path);
    return st;
}

struct model *model_from_hf(const char *dir)
{
    struct model *m;
    return hf_open(dir, &m) == CZ_OK ? m : NULL;
}

static cz_status preset_open(const char *name, struct model **out)
{
    *out = NULL;
    char *text;
    struct json_doc *config;
    TRY(gpt2_preset_config(name, &text));
    cz_status st = json_parse(text, strlen(text), name, JSON_STRICT, &config);
    free(text);
    if (st != CZ_OK) return st;
    st = model_from_config(config, name, out);
    if (st != CZ_OK) json_free(config);
    return st;
}

struct model *model_from_preset(const char *name)
{
    struct model *m;
    return preset_open(name, &m) == CZ_OK ? m : NULL;
}

struct model *model_open(const char *dir_or_preset)
{
    char *path = file_join(dir_or_preset, "config.json");
    bool is_dir = path && file_exists(path);
    free(path);
    if (is_dir) return model_from_hf(dir_or_preset);
    struct model *m = model_from_preset(dir_or_preset);
    if (!m && cz_last_status() == CZ_NOTFOUND)
        err_set(CZ_NOTFOUND, 0, "%s is neither a folder with a config.json nor a preset (%s)",
                dir_or_preset, gpt2_preset_names());
    return m;
}
