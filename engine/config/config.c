/* Loading a config, and what can be asked about it. Loading goes in four steps over one tree of
 * values: import the file, apply --set and --auto, resolve (types, defaults, derived values, checks
 * across keys), fill the typed view. Everything made from a file stands in one pool, which
 * config_free() releases at once. */
#include "engine/config/config.h"

#include "engine/config/config_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The environment chooses the older dialect for programs that cannot pass an option. */
struct config_options config_options_default(void)
{
    const char *compat = getenv("CZERO_COMPAT");
    bool older = compat && strcmp(compat, "0.16") == 0;
    return (struct config_options){.compat = older ? CONFIG_COMPAT_0_16 : CONFIG_COMPAT_0_19};
}

void config_free(struct ds_config *config)
{
    if (!config) return;
    if (config->impl) {
        json_free(config->impl->doc);
        struct cv_pool pool = config->impl->pool; /* holds impl itself */
        cv_pool_free(&pool);
    }
    free(config);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* --set and --auto make values as the file does: they count towards the pool's bound. */
static size_t options_nbytes(const struct config_options *o)
{
    size_t n = 0;
    for (size_t i = 0; i < o->n_autos; i++) n += strlen(o->autos[i]);
    for (size_t i = 0; i < o->n_sets; i++) n += strlen(o->sets[i]);
    for (size_t i = 0; i < o->n_wanted; i++) n += strlen(o->wanted[i]);
    return n;
}

/* The pool is made first and holds config_impl itself, so that half-built configs need no other
 * cleanup. */
static cz_status new_config(const struct config_options *options, const char *name, size_t nbytes,
                            struct ds_config **out)
{
    struct ds_config *config = calloc(1, sizeof *config);
    if (!config) return err_set(CZ_NOMEM, 0, "%s: no memory", name);
    struct cv_pool pool;
    cz_status st = cv_pool_init(&pool, nbytes + options_nbytes(options));
    if (st != CZ_OK) {
        free(config);
        return st;
    }
    struct config_impl *c = cv_alloc(&pool, sizeof *c);
    c->pool = pool;
    c->file = cv_text(&c->pool, "%s", name);
    c->strict = options->strict;
    c->compat = options->compat;
    c->on_gpu = options->on_gpu;
    c->world_size_given = options->world_size > 0;
    c->world_size = c->world_size_given ? options->world_size : 1;
    config->impl = c;
    config->compat = c->compat;
    config->world_size = c->world_size;
    *out = config;
    return CZ_OK;
}

/* Errors are collected, not returned at the first: see config_error(). */
static cz_status resolve(struct ds_config *config, const struct config_options *options)
{
    struct config_impl *c = config->impl;
    const struct json_node *root = json_root(c->doc);
    if (json_type(root) != JSON_OBJECT)
        return err_set(CZ_INVALID, 0, "%s: expected an object of settings, got %s", c->file,
                       json_type_name(json_type(root)));
    cz_status st = cv_import(&c->pool, root, CV_FILE, &c->given);
    if (st == CZ_CORRUPT) /* the JSON reader's word for a bad number */
        return err_set(CZ_INVALID, 0, "%s", cz_last_error());
    TRY(st);
    TRY(config_apply_sets(c, options));
    config_look_for_trainer(c);
    TRY(config_apply_wanted(c, options));
    TRY(config_apply_autos(c, options));
    if (options->trainer) config_fill_as_trainer(c, options);
    config->optimizer_added = c->optimizer_added;
    config_resolve(c);
    /* All problems in one message: a config is corrected in one go. */
    if (c->n_errors != 0) {
        err_set(CZ_INVALID, 0, "%s", c->errors[0]);
        for (size_t i = 1; i < c->n_errors; i++) err_add_line("%s", c->errors[i]);
        if (c->n_errors_dropped)
            err_add_line("%s: %zu more problems", c->file, c->n_errors_dropped);
        return CZ_INVALID;
    }
    config_fill(config);
    return CZ_OK;
}

/* Takes over `doc`. */
static cz_status load(struct json_doc *doc, const char *name, size_t nbytes,
                      const struct config_options *options, struct ds_config **out)
{
    struct ds_config *config = NULL;
    cz_status st;
    if (options->world_size < 0) {
        st = err_set(CZ_INVALID, 0, "the world size %lld is out of range; it must be at least 1",
                     (long long)options->world_size);
        goto fail;
    }
    TRY_GOTO(new_config(options, name, nbytes, &config), fail);
    config->impl->doc = doc;
    doc = NULL;
    st = resolve(config, options);
    if (config->impl->pool.no_memory) st = err_set(CZ_NOMEM, 0, "%s: no memory to read it", name);
    if (st != CZ_OK) goto fail;
    *out = config;
    return CZ_OK;
fail:
    json_free(doc);
    config_free(config);
    return st;
}

/* The bytes of the file, which bound everything made from it. */
static size_t doc_nbytes(const struct json_doc *doc)
{
    size_t n;
    json_text(json_root(doc), &n);
    return n;
}

/* Whether a path names no file that this process may read. */
static bool is_wrong_path(const char *path)
{
    struct stat info;
    return stat(path, &info) != 0 || S_ISDIR(info.st_mode) || access(path, R_OK) != 0;
}

/* A file whose reading fails is CZ_IO; a wrong path is the caller's mistake and CZ_NOTFOUND. */
cz_status config_load(const char *path, const struct config_options *options,
                      struct ds_config **out)
{
    struct config_options usual = config_options_default();
    struct json_doc *doc;
    *out = NULL;
    cz_status st = json_load(path, JSON_CONFIG, &doc);
    if (st == CZ_IO && is_wrong_path(path)) return err_set(CZ_NOTFOUND, 0, "%s", cz_last_error());
    TRY(st);
    return load(doc, path, doc_nbytes(doc), options ? options : &usual, out);
}

cz_status config_load_text(const char *text, size_t nbytes, const char *name,
                           const struct config_options *options, struct ds_config **out)
{
    struct config_options usual = config_options_default();
    struct json_doc *doc;
    *out = NULL;
    if (!name) name = "<memory>";
    TRY(json_parse(text, nbytes, name, JSON_CONFIG, &doc));
    return load(doc, name, nbytes, options ? options : &usual, out);
}

/* ---- asking --------------------------------------------------------------------------------- */

size_t config_n_notes(const struct ds_config *config)
{
    return config->impl->n_notes;
}

const struct config_note *config_note(const struct ds_config *config, size_t idx)
{
    return &config->impl->notes[idx];
}

/* Two severities: what DeepSpeed's engine would reject is invalid, what czero cannot do is
 * unsupported; an invalid config is reported as such even if both occur. */
cz_status config_check(const struct ds_config *config)
{
    const struct config_impl *c = config->impl;
    cz_status status = CZ_OK;
    for (size_t i = 0; i < c->n_notes; i++) {
        if (c->notes[i].kind == CONFIG_NOTE_ENGINE_REJECTS) status = CZ_INVALID;
        if (c->notes[i].kind == CONFIG_NOTE_UNSUPPORTED && status == CZ_OK) status = CZ_UNSUPPORTED;
    }
    size_t n = 0;
    for (size_t i = 0; i < c->n_notes; i++) {
        const struct config_note *note = &c->notes[i];
        if (note->kind != CONFIG_NOTE_ENGINE_REJECTS && note->kind != CONFIG_NOTE_UNSUPPORTED)
            continue;
        if (n++ == 0)
            err_set(status, 0, "%s", note->text);
        else
            err_add_line("%s", note->text);
    }
    return status;
}

/* A key that no file gave has no line; the path alone must do. */
const char *config_where(const struct ds_config *config, const char *path, char *buf,
                         size_t buf_nbytes)
{
    const struct config_impl *c = config->impl;
    const struct cv *value = config_at(c->given, path);
    if (value && value->node) {
        snprintf(buf, buf_nbytes, "%s:%d:%d: %s", c->file, json_line(value->node),
                 json_column(value->node), path);
    } else {
        snprintf(buf, buf_nbytes, "%s: %s", c->file, path);
    }
    return buf;
}
