/* What to say of a name that is neither a model's folder nor a preset: most are names on a model
 * hub, of which nothing is downloaded here, and some are folders of something else. */
#include "base/text/nearest.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "model/families.h"
#include "model/model.h"
#include "model/model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How names of known models begin, and whose they mostly are on the hub. */
static const struct stem {
    const char *begins, *owner;
} stems[] = {
    {"bert", "google-bert"},      {"distilbert", "distilbert"},
    {"roberta", "FacebookAI"},    {"xlm-roberta", "FacebookAI"},
    {"electra", "google"},        {"deberta", "microsoft"},
    {"mdeberta", "microsoft"},    {"modernbert", "answerdotai"},
    {"mpnet", "microsoft"},       {"megatron", "nvidia"},
    {"gpt2", "openai-community"}, {"llama", "meta-llama"},
    {"meta-llama", "meta-llama"}, {"tinyllama", "TinyLlama"},
    {"smollm", "HuggingFaceTB"},  {"qwen", "Qwen"},
    {"olmo", "allenai"},          {"granite", "ibm-granite"},
    {"phi", "microsoft"},         {"mistral", "mistralai"},
    {"ministral", "mistralai"},   {"gemma", "google"},
};

/* The stem that the name begins with, the longest; else the one that its first word nearly is. */
static const struct stem *stem_of(const char *name)
{
    char word[32];
    const struct stem *best = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(stems); i++) {
        const size_t n = strlen(stems[i].begins);
        if (strncasecmp(name, stems[i].begins, n) == 0 && (!best || n > strlen(best->begins)))
            best = &stems[i];
    }
    if (best) return best;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "-_."), name);
    struct nearest search = nearest_begin(word);
    for (size_t i = 0; i < CZ_ARRAY_LEN(stems); i++) nearest_consider(&search, stems[i].begins);
    for (size_t i = 0; i < CZ_ARRAY_LEN(stems); i++)
        if (search.best == stems[i].begins) best = &stems[i];
    return best;
}

/* The preset that a name most likely means: the nearest, else the family's example or its first. */
static const char *preset_for(const char *name, const struct stem *stem)
{
    size_t n;
    const struct model_family *const *families = model_families(&n);
    const char *near = model_preset_nearest(name), *preset;
    const size_t n_stem = stem ? strlen(stem->begins) : 0;
    for (size_t i = 0; !near && stem && i < n; i++) {
        preset = families[i]->preset_example;
        if (preset && strncmp(preset, stem->begins, n_stem) == 0) near = preset;
    }
    for (size_t i = 0; !near && stem && (preset = model_preset_name(i)); i++)
        if (strncmp(preset, stem->begins, n_stem) == 0) near = preset;
    return near;
}

/* "org/name", as model hubs have it, and no path. */
static bool is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash && slash != name && slash[1] != '\0' && !strchr(slash + 1, '/') &&
           strchr(".~", name[0]) == NULL && !file_exists(name);
}

/* A folder that is there holds something else. */
static cz_status refuse_folder(const char *dir)
{
    TRY(model_refuse_adapter_run(dir));
    if (beneath_is_there(dir, "adapter_config.json")) {
        char *base = NULL, *name = NULL;
        TRY(model_adapter_base(dir, &base, &name));
        const char *model = base ? base : name ? name : "MODEL";
        cz_status st =
            err_set(CZ_NOTFOUND, 0, "%s is an adapter of %s: use --model %s --adapter %s", dir,
                    model, base ? base : "DIR", dir);
        free(base);
        free(name);
        return st;
    }
    if (beneath_is_there(dir, "latest"))
        return err_set(CZ_NOTFOUND, 0,
                       "%s holds checkpoints, and no config.json: czero export %s OUT_DIR writes a "
                       "model of one; train --resume %s continues it",
                       dir, dir, dir);
    return err_set(CZ_NOTFOUND, 0, "%s is no model's folder: there is no config.json in it", dir);
}

cz_status model_refuse_name(const char *name)
{
    const bool is_bare = !strchr(name, '/') && strchr(".~", name[0]) == NULL;
    const struct stem *stem = is_bare ? stem_of(name) : NULL;
    const char *preset = is_bare ? preset_for(name, stem) : NULL;
    if (file_exists(name)) return refuse_folder(name);
    if (is_hub_name(name))
        return err_set(
            CZ_NOTFOUND, 0,
            "%s is not a folder here, but may be a name on a model hub; czero downloads nothing: "
            "hf download %s --local-dir %s (of the Python package huggingface_hub), then use ./%s",
            name, name, strchr(name, '/') + 1, strchr(name, '/') + 1);
    char random[160] = "";
    if (preset)
        snprintf(random, sizeof random, "; did you mean the preset %s, which has random weights?",
                 preset);
    if (stem)
        return err_set(CZ_NOTFOUND, 0,
                       "%s is neither a folder with a config.json nor a preset%s It may be a name "
                       "on a model hub: hf download %s/%s --local-dir %s",
                       name, preset ? random : ".", stem->owner, name, name);
    return err_set(CZ_NOTFOUND, 0, "%s is neither a folder with a config.json nor a preset%s", name,
                   preset ? random : "; czero models lists the presets");
}
