/* Names of a checkpoint that are not the model's: programs that wrap a model put a prefix before
 * each name, and a user may map any other. Patterns are the user's alone; names are only matched.
 */
#include "engine/state/load_impl.h"

#include "base/log.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_NBYTES = 512, N_GROUPS = 10, CANDIDATES_MAX = 8 };

/* What torch.nn.DataParallel, torch.compile, heads and PEFT put before a name … */
static const char *const wrappers[] = {"module.", "_orig_mod.", "model.", "base_model."};
/* … and what torch.compile, FSDP and activation checkpointing put inside. */
static const char *const marks[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                    "_checkpoint_wrapped_module."};

/* ---- s/REGEX/REPLACEMENT/ ------------------------------------------------------------------- */

struct load_rename {
    const char *text; /* as given */
    regex_t re;
    char replacement[NAME_NBYTES];
    bool all;
    size_t n_changed;
};

/* The part up to the delimiter, which a backslash makes an ordinary character. NULL: no end. */
static const char *take_part(const char *at, char delimiter, char out[NAME_NBYTES])
{
    size_t n = 0;
    for (; *at && *at != delimiter; at++) {
        if (at[0] == '\\' && at[1] == delimiter)
            at++;
        else if (at[0] == '\\' && at[1] && n + 2 < NAME_NBYTES)
            out[n++] = *at++;
        if (n + 1 >= NAME_NBYTES) return NULL;
        out[n++] = *at;
    }
    out[n] = '\0';
    return *at ? at + 1 : NULL;
}

static cz_status rename_open(const char *text, struct load_rename *r)
{
    char pattern[NAME_NBYTES], why[128];
    const char *at = text[0] == 's' && text[1] ? text + 2 : NULL;
    *r = (struct load_rename){.text = text};
    if (at) at = take_part(at, text[1], pattern);
    if (at) at = take_part(at, text[1], r->replacement);
    if (at && strcmp(at, "g") == 0) r->all = true;
    if (!at || (*at && !r->all))
        return err_set(CZ_INVALID, 0, "rename \"%s\": write s/REGEX/REPLACEMENT/", text);
    const int code = regcomp(&r->re, pattern, REG_EXTENDED);
    if (code == 0) return CZ_OK;
    regerror(code, &r->re, why, sizeof why);
    return err_set(CZ_INVALID, 0, "rename \"%s\": not a regular expression: %s", text, why);
}

static bool append(char *out, size_t *n, const char *text, size_t nbytes)
{
    if (nbytes >= NAME_NBYTES - *n) return false;
    memcpy(out + *n, text, nbytes);
    *n += nbytes;
    out[*n] = '\0';
    return true;
}

/* \1 to \9 and & are what the groups and the pattern matched. */
static bool append_replacement(const struct load_rename *r, const char *name,
                               const regmatch_t *found, char *out, size_t *n)
{
    for (const char *c = r->replacement; *c; c++) {
        int group = *c == '&' ? 0 : -1;
        if (*c == '\\' && c[1]) {
            c++;
            if (*c >= '1' && *c <= '9') group = *c - '0';
        }
        if (group < 0) {
            if (!append(out, n, c, 1)) return false;
        } else if (found[group].rm_so >= 0) {
            const regoff_t nbytes = found[group].rm_eo - found[group].rm_so;
            if (!append(out, n, name + found[group].rm_so, (size_t)nbytes)) return false;
        }
    }
    return true;
}

static bool apply(struct load_rename *r, char name[NAME_NBYTES])
{
    char out[NAME_NBYTES] = "";
    const char *at = name;
    regmatch_t found[N_GROUPS];
    size_t n = 0;
    bool changed = false;
    while (*at && regexec(&r->re, at, N_GROUPS, found, at == name ? 0 : REG_NOTBOL) == 0) {
        changed = true;
        if (!append(out, &n, at, (size_t)found[0].rm_so)) return false;
        if (!append_replacement(r, at, found, out, &n)) return false;
        at += found[0].rm_eo;
        if (!r->all) break;
        if (found[0].rm_eo == 0 && *at && !append(out, &n, at++, 1)) return false;
    }
    if (!append(out, &n, at, strlen(at))) return false;
    r->n_changed += changed;
    memcpy(name, out, n + 1);
    return true;
}

/* ---- prefixes ------------------------------------------------------------------------------- */

static void drop_marks(char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(marks); i++) {
        const size_t n = strlen(marks[i]);
        for (char *at = strstr(name, marks[i]); at; at = strstr(at, marks[i])) {
            if (at == name || at[-1] == '.')
                memmove(at, at + n, strlen(at + n) + 1);
            else
                at++;
        }
    }
}

/* Bytes of wrappers' names at the beginning; 0: none. */
static size_t wrapper_nbytes(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(wrappers); i++)
        if (strncmp(name, wrappers[i], strlen(wrappers[i])) == 0) return strlen(wrappers[i]);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------ */

struct load_name {
    char *text;
    size_t idx; /* of the checkpoint's tensor */
};

static int compare_names(const void *a, const void *b)
{
    const struct load_name *x = a, *y = b;
    const int order = strcmp(x->text, y->text);
    return order != 0 ? order : (x->idx > y->idx) - (x->idx < y->idx);
}

void load_names_free(struct load *l)
{
    for (size_t i = 0; i < l->n_names; i++) free(l->names[i].text);
    free(l->names);
    l->names = NULL;
    l->n_names = 0;
}

size_t load_find(const struct load *l, const char *name)
{
    if (!l->names) return ckpt_find(l->ck, name);
    size_t lo = 0, hi = l->n_names;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (strcmp(l->names[mid].text, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const bool found = lo < l->n_names && strcmp(l->names[lo].text, name) == 0;
    return found ? l->names[lo].idx : ckpt_count(l->ck);
}

struct naming {
    const char *prefix; /* NULL: names are otherwise as they are */
    size_t n_stripped;
};

static cz_status add_name(struct load *l, struct naming *how, const char *name, size_t idx)
{
    char text[NAME_NBYTES];
    bool fits = strlen(name) < sizeof text;
    if (fits) strcpy(text, name);
    for (size_t i = 0; fits && i < l->n_renames; i++) fits = apply(&l->renames[i], text);
    if (!fits) return err_set(CZ_INVALID, 0, "%s: the name, or what it becomes, is too long", name);
    if (how->prefix) {
        drop_marks(text);
        const size_t n = strlen(how->prefix);
        if (n > 0 && strncmp(text, how->prefix, n) == 0)
            memmove(text, text + n, strlen(text + n) + 1);
        how->n_stripped += strcmp(text, name) != 0;
    }
    char *copy = strdup(text);
    if (!copy) return err_set(CZ_NOMEM, 0, "no memory for the names of a checkpoint");
    l->names[l->n_names++] = (struct load_name){copy, idx};
    return CZ_OK;
}

/* Two tensors of one name: which is meant is not known. */
static cz_status check_names(const struct load *l)
{
    for (size_t i = 0; i + 1 < l->n_names; i++)
        if (strcmp(l->names[i].text, l->names[i + 1].text) == 0 &&
            l->names[i].idx != l->names[i + 1].idx)
            return err_set(CZ_INVALID, 0, "%s: %s and %s would both become %s",
                           ckpt_get_info(l->ck)->tag_dir, ckpt_at(l->ck, l->names[i].idx)->name,
                           ckpt_at(l->ck, l->names[i + 1].idx)->name, l->names[i].text);
    return CZ_OK;
}

static cz_status make_names(struct load *l, struct naming *how)
{
    size_t n = 0;
    load_names_free(l);
    for (size_t i = 0; i < l->n_renames; i++) l->renames[i].n_changed = 0;
    for (size_t i = 0; i < ckpt_count(l->ck); i++) n += 1 + ckpt_at(l->ck, i)->n_aliases;
    l->names = calloc(n + 1, sizeof *l->names);
    if (!l->names) return err_set(CZ_NOMEM, 0, "no memory for the names of a checkpoint");
    for (size_t i = 0; i < ckpt_count(l->ck); i++) {
        const struct ckpt_tensor *t = ckpt_at(l->ck, i);
        TRY(add_name(l, how, t->name, i));
        for (size_t a = 0; a < t->n_aliases; a++) TRY(add_name(l, how, t->aliases[a], i));
    }
    qsort(l->names, l->n_names, sizeof *l->names, compare_names);
    return check_names(l);
}

/* ---- what fits ------------------------------------------------------------------------------ */

static size_t count_found(const struct load *l)
{
    const struct param_table *table = model_params(l->e->desc.model);
    size_t n = 0;
    for (size_t i = 0; i < table->n_params; i++)
        n += load_find(l, table->params[i].name) < ckpt_count(l->ck);
    return n;
}

struct candidates {
    char prefix[CANDIDATES_MAX][NAME_NBYTES];
    size_t n;
};

static void consider(struct candidates *c, const char *prefix, size_t nbytes)
{
    for (size_t i = 0; i < c->n; i++)
        if (strlen(c->prefix[i]) == nbytes && strncmp(c->prefix[i], prefix, nbytes) == 0) return;
    if (c->n == CANDIDATES_MAX) return;
    snprintf(c->prefix[c->n++], NAME_NBYTES, "%.*s", (int)nbytes, prefix);
}

/* Prefixes under which the checkpoint has a parameter that is missing. */
static void find_candidates(const struct load *l, struct candidates *c)
{
    const struct param_table *table = model_params(l->e->desc.model);
    c->n = 0;
    for (size_t t = 0; t < (l->names ? l->n_names : ckpt_count(l->ck)); t++) {
        const char *theirs = l->names ? l->names[t].text : ckpt_at(l->ck, t)->name;
        char name[NAME_NBYTES];
        if (snprintf(name, sizeof name, "%s", theirs) >= (int)sizeof name) continue;
        drop_marks(name);
        for (size_t n = 0, one = 1; one > 0; n += one) {
            size_t idx;
            if (param_table_has(table, name + n, &idx) &&
                load_find(l, table->params[idx].name) == ckpt_count(l->ck))
                consider(c, name, n);
            one = wrapper_nbytes(name + n);
        }
    }
}

cz_status load_renames_open(struct load *l)
{
    const char *const *texts = l->options->renames;
    size_t n = 0;
    while (texts && texts[n]) n++;
    l->renames = calloc(n + 1, sizeof *l->renames);
    if (!l->renames) return err_set(CZ_NOMEM, 0, "no memory to rename tensors");
    for (size_t i = 0; i < n; i++) {
        TRY(rename_open(texts[i], &l->renames[i]));
        l->n_renames++;
    }
    return CZ_OK;
}

void load_renames_free(struct load *l)
{
    for (size_t i = 0; i < l->n_renames; i++) regfree(&l->renames[i].re);
    free(l->renames);
    l->renames = NULL;
    l->n_renames = 0;
}

/* A pattern that changes nothing is nearly always a typo. */
static cz_status check_renames(const struct load *l)
{
    for (size_t i = 0; i < l->n_renames; i++) {
        if (l->renames[i].n_changed == 0)
            return err_set(CZ_INVALID, 0, "rename \"%s\": no name in %s matches; the first is %s",
                           l->renames[i].text, ckpt_get_info(l->ck)->tag_dir,
                           ckpt_count(l->ck) > 0 ? ckpt_at(l->ck, 0)->name : "none");
        if (l->e->desc.comm->rank == 0)
            LOGV(LOG_INFO, SUB_CKPT, "names: %s changed %zu", l->renames[i].text,
                 l->renames[i].n_changed);
    }
    return CZ_OK;
}

/* The best of the prefixes, if there is one best; the names as they are otherwise. */
static cz_status take_prefix(struct load *l, struct naming *how)
{
    struct candidates c;
    size_t most = count_found(l), n_best = 0, best = 0;
    find_candidates(l, &c);
    for (size_t i = 0; i < c.n; i++) {
        how->prefix = c.prefix[i];
        const cz_status st = make_names(l, how);
        if (st == CZ_NOMEM) return st;
        const size_t n = st == CZ_OK ? count_found(l) : 0;
        err_clear();
        n_best = n > most ? 1 : n_best + (n == most && n_best > 0);
        if (n > most) best = i;
        if (n > most) most = n;
    }
    how->prefix = n_best == 1 ? c.prefix[best] : NULL;
    how->n_stripped = 0;
    if (c.n == 0) return CZ_OK;
    if (!how->prefix && l->n_renames == 0) {
        load_names_free(l);
        return CZ_OK;
    }
    TRY(make_names(l, how));
    if (how->prefix && l->e->desc.comm->rank == 0)
        LOGV(LOG_INFO, SUB_CKPT, "names: \"%s\" is taken off %zu names of %s",
             *how->prefix ? how->prefix : "_orig_mod. and the like", how->n_stripped,
             ckpt_get_info(l->ck)->tag_dir);
    return CZ_OK;
}

cz_status load_names(struct load *l, bool lacks_some)
{
    struct naming how = {0};
    if (l->n_renames > 0) TRY(make_names(l, &how));
    if (l->n_renames > 0 && !lacks_some) TRY(check_renames(l));
    return lacks_some ? take_prefix(l, &how) : CZ_OK;
}

/* While a checkpoint is opened its names come one by one. */
bool load_param_of(const struct load *l, const char *name, size_t *idx)
{
    const struct param_table *table = model_params(l->e->desc.model);
    char text[NAME_NBYTES];
    if (snprintf(text, sizeof text, "%s", name) >= (int)sizeof text) return false;
    for (size_t i = 0; i < l->n_renames; i++)
        if (!apply(&l->renames[i], text)) return false;
    if (param_table_has(table, text, idx)) return true;
    drop_marks(text);
    const char *at = text;
    for (size_t n = 1; n > 0; at += n) {
        if (param_table_has(table, at, idx)) return true;
        n = wrapper_nbytes(at);
    }
    return false;
}
