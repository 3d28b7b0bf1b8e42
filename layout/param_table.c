/* The table of parameters that everything else refers to by index: names, shapes, ties. Its order
 * is the model's, and checkpoints, groups and shards depend on it. */
#include "layout/param_table.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

void param_table_init(struct param_table *t)
{
    memset(t, 0, sizeof *t);
}

void param_table_free(struct param_table *t)
{
    for (size_t i = 0; i < t->n_params; i++) free(t->params[i].name);
    for (size_t i = 0; i < t->n_aliases; i++) free(t->aliases[i].name);
    free(t->params);
    free(t->aliases);
    hash_index_free(&t->param_names);
    hash_index_free(&t->alias_names);
    memset(t, 0, sizeof *t);
}

/* Capacity for one more element in *items. */
static cz_status grow(void **items, size_t item_nbytes, size_t n, size_t *cap)
{
    if (n < *cap) return CZ_OK;
    size_t want = *cap ? 2 * *cap : 64;
    void *grown = reallocarray(*items, want, item_nbytes);
    if (!grown) return err_set(CZ_NOMEM, 0, "parameter table: no memory for %zu entries", want);
    *items = grown;
    *cap = want;
    return CZ_OK;
}

struct wanted {
    const struct param_table *t;
    const char *name;
};

static bool is_param(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->t->params[item].name, w->name) == 0;
}

static bool is_alias(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->t->aliases[item].name, w->name) == 0;
}

/* Index by exact name; n_params when there is none. */
static size_t param_lookup(const struct param_table *t, const char *name)
{
    size_t i =
        hash_index_find(&t->param_names, hash_text(name), is_param, &(struct wanted){t, name});
    return i == HASH_NONE ? t->n_params : i;
}

static struct param_alias *alias_lookup(const struct param_table *t, const char *name)
{
    size_t i =
        hash_index_find(&t->alias_names, hash_text(name), is_alias, &(struct wanted){t, name});
    return i == HASH_NONE ? NULL : &t->aliases[i];
}

/* No parameter has zero elements: a shard of it could not be told from a missing one. */
static cz_status shape_numel(const char *name, int ndim, const int64_t *shape, size_t *numel)
{
    if (ndim < 1 || ndim > PARAM_NDIM_MAX)
        return err_set(CZ_INVALID, 0, "parameter %s: %d dimensions, expected 1 to %d", name, ndim,
                       PARAM_NDIM_MAX);
    size_t n = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] <= 0)
            return err_set(CZ_INVALID, 0, "parameter %s: dimension %d is %lld, expected at least 1",
                           name, d, (long long)shape[d]);
        if (size_mul(n, (size_t)shape[d], &n) != CZ_OK)
            return err_prefix("parameter %s: its shape overflows", name);
    }
    *numel = n;
    return CZ_OK;
}

/* A second declaration of a name: the same tensor, if the shapes agree. */
static cz_status tie(const struct param_table *t, size_t existing, int ndim, const int64_t *shape,
                     size_t *idx)
{
    const struct param_info *p = &t->params[existing];
    if (!(p->ndim == ndim && memcmp(p->shape, shape, (size_t)ndim * sizeof *shape) == 0))
        return err_set(CZ_INVALID, 0, "parameter %s is declared twice, with different shapes",
                       p->name);
    *idx = existing;
    return CZ_OK;
}

/* A name that was declared before is a tie by name: the model's second use of the tensor. */
cz_status param_table_add(struct param_table *t, const char *name, int ndim, const int64_t *shape,
                          enum param_init init, float init_std, size_t *idx)
{
    size_t numel = 0;
    TRY(shape_numel(name, ndim, shape, &numel));
    size_t existing = param_lookup(t, name);
    if (existing < t->n_params) return tie(t, existing, ndim, shape, idx);
    const struct param_alias *alias = alias_lookup(t, name);
    if (alias) return tie(t, alias->param_idx, ndim, shape, idx);

    TRY(grow((void **)&t->params, sizeof *t->params, t->n_params, &t->cap_params));
    struct param_info *p = &t->params[t->n_params];
    memset(p, 0, sizeof *p);
    p->name = strdup(name);
    if (!p->name) return err_set(CZ_NOMEM, 0, "parameter table: no memory for a name");
    cz_status st = hash_index_add(&t->param_names, hash_text(name), t->n_params);
    if (st != CZ_OK) {
        free(p->name);
        return st;
    }
    p->ndim = ndim;
    memcpy(p->shape, shape, (size_t)ndim * sizeof *shape);
    p->numel = numel;
    p->init = init;
    p->init_std = init_std;
    p->trainable = true;
    p->decay_hint = ndim > 1; /* biases and norms are vectors */
    *idx = t->n_params++;
    return CZ_OK;
}

/* Repeating an alias is allowed; naming another parameter is not. */
cz_status param_table_alias(struct param_table *t, const char *name, size_t param_idx)
{
    if (param_idx >= t->n_params)
        return err_set(CZ_INVALID, 0, "alias %s: there is no parameter number %zu", name,
                       param_idx);
    size_t existing = param_lookup(t, name);
    const struct param_alias *alias = alias_lookup(t, name);
    if (existing < t->n_params || (alias && alias->param_idx != param_idx))
        return err_set(CZ_INVALID, 0, "alias %s: another parameter has this name", name);
    if (alias) return CZ_OK;
    TRY(grow((void **)&t->aliases, sizeof *t->aliases, t->n_aliases, &t->cap_aliases));
    struct param_alias *a = &t->aliases[t->n_aliases];
    a->name = strdup(name);
    if (!a->name) return err_set(CZ_NOMEM, 0, "parameter table: no memory for a name");
    cz_status st = hash_index_add(&t->alias_names, hash_text(name), t->n_aliases);
    if (st != CZ_OK) {
        free(a->name);
        return st;
    }
    a->param_idx = param_idx;
    a->is_stored = false;
    t->n_aliases++;
    return CZ_OK;
}

/* Stored aliases are exported beside the tensor, for readers that do not tie the two. */
cz_status param_table_alias_stored(struct param_table *t, const char *name, size_t param_idx)
{
    TRY(param_table_alias(t, name, param_idx));
    alias_lookup(t, name)->is_stored = true;
    return CZ_OK;
}

/* For the suggestion in an error message. Levenshtein, one row at a time; names longer than the row
 * count as far away. */
static size_t name_distance(const char *a, const char *b)
{
    enum { LEN_MAX = 255 };
    size_t row[LEN_MAX + 1];
    const size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LEN_MAX || n_b > LEN_MAX) return SIZE_MAX;
    for (size_t j = 0; j <= n_b; j++) row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            size_t skip = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < skip ? replace : skip;
        }
    }
    return row[n_b];
}

/* Only on the way to an error, so its cost does not matter. */
static const char *nearest_name(const struct param_table *t, const char *name)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < t->n_params + t->n_aliases; i++) {
        const char *candidate =
            i < t->n_params ? t->params[i].name : t->aliases[i - t->n_params].name;
        size_t distance = name_distance(name, candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

bool param_table_has(const struct param_table *t, const char *name, size_t *idx)
{
    const size_t i = param_lookup(t, name);
    const struct param_alias *alias = i == t->n_params ? alias_lookup(t, name) : NULL;
    if (i == t->n_params && !alias) return false;
    *idx = alias ? alias->param_idx : i;
    return true;
}

cz_status param_table_find(const struct param_table *t, const char *name, size_t *idx)
{
    if (param_table_has(t, name, idx)) return CZ_OK;
    const char *near = nearest_name(t, name);
    return err_set(CZ_NOTFOUND, 0, "no parameter is named \"%s\"%s%s%s", name,
                   near ? " (nearest: " : "", near ? near : "", near ? ")" : "");
}

size_t param_table_numel(const struct param_table *t, bool trainable_only)
{
    size_t numel = 0;
    for (size_t i = 0; i < t->n_params; i++)
        if (t->params[i].trainable || !trainable_only) numel += t->params[i].numel;
    return numel;
}
