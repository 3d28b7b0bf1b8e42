/* The table of families, and the lists that are made of it. What a family is stands in its own
 * folder; a new one is that, and a word in MODEL_FAMILIES. */
#include "model/families.h"

#include "base/text/nearest.h"
#include "model/model_impl.h"

#include <stdio.h>
#include <string.h>

static const struct model_family *const families[] = {
#define ROW(family) &model_family_##family,
    MODEL_FAMILIES(ROW)
#undef ROW
};

const struct model_family *const *model_families(size_t *n)
{
    *n = CZ_ARRAY_LEN(families);
    return families;
}

const struct model_family *model_family_find(const char *model_type)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

/* One more of a list with commas, as long as there is space. */
static void add(char *buf, size_t nbytes, const char *name)
{
    const size_t used = strlen(buf);
    snprintf(buf + used, nbytes - used, "%s%s", used ? ", " : "", name);
}

const char *model_type_names(char *buf, size_t nbytes)
{
    buf[0] = '\0';
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) add(buf, nbytes, families[i]->model_type);
    return buf;
}

const char *model_family_titles(char *buf, size_t nbytes)
{
    buf[0] = '\0';
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) add(buf, nbytes, families[i]->title);
    return buf;
}

const char *model_family_title(size_t family)
{
    return family < CZ_ARRAY_LEN(families) ? families[family]->title : NULL;
}

const char *model_family_preset(size_t family, size_t idx)
{
    const struct model_family *f = families[family];
    return f->preset_name ? f->preset_name(idx) : NULL;
}

const char *model_preset_name(size_t idx)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) {
        const char *name;
        for (size_t p = 0; families[i]->preset_name && (name = families[i]->preset_name(p)); p++)
            if (idx-- == 0) return name;
    }
    return NULL;
}

const char *model_preset_names(char *buf, size_t nbytes)
{
    const char *name;
    buf[0] = '\0';
    for (size_t i = 0; (name = model_preset_name(i)); i++) add(buf, nbytes, name);
    return buf;
}

const char *model_preset_nearest(const char *name)
{
    struct nearest search = nearest_begin(name);
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) {
        const char *known;
        for (size_t p = 0; families[i]->preset_name && (known = families[i]->preset_name(p)); p++)
            nearest_consider(&search, known);
    }
    return search.best;
}

const char *model_preset_examples(char *buf, size_t nbytes)
{
    buf[0] = '\0';
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++)
        if (families[i]->preset_example) add(buf, nbytes, families[i]->preset_example);
    add(buf, nbytes, "…");
    return buf;
}
