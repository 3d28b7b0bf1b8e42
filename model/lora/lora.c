/* Putting an adapter on a model: which maps get a branch, its parameters, what stays trainable.
 *
 * Families know nothing of it. A layer whose class says that its matrices are linear maps
 * (LAYER_MAPS), or which one of them is (map_name()), gets, behind its own parameters, A and B of
 * each branch, and the maps of model/parts/blocks.c find them there. */
#include "model/lora/lora_impl.h"

#include "base/host/entry.h"
#include "base/options.h"
#include "base/text/nearest.h"
#include "base/text/regex.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lora_free(struct model_lora *lora)
{
    if (!lora) return;
    lora_names_free(&lora->saved);
    for (size_t i = 0; i < lora->n_alphas; i++) free(lora->alphas[i].pattern);
    free(lora->alphas);
    safetensors_close(lora->files);
    free(lora->source);
    free(lora);
}

cz_status lora_read(const struct model_lora *lora, size_t idx, size_t elem_off, size_t numel,
                    float *dst)
{
    return safetensors_read_f32(lora->files, lora->source[idx], elem_off, numel, dst);
}

/* PEFT's files call a length's tensor as it once was called. */
const char *lora_stored_name(const char *name, char *buf, size_t nbytes)
{
    const size_t n = strlen(name), n_suffix = strlen(LORA_MAGNITUDE);
    const bool is_length = n > n_suffix && strcmp(name + n - n_suffix, LORA_MAGNITUDE) == 0;
    snprintf(buf, nbytes, "%s%.*s", LORA_PREFIX, (int)(is_length ? n - strlen(".weight") : n),
             name);
    return buf;
}

bool cz_model_has_adapter(const struct cz_model *m)
{
    NEED_OR(m, false);
    return m->lora != NULL;
}

static double alpha_of(const struct cz_lora_options *o)
{
    return o->alpha > 0 ? o->alpha : (double)(o->rank ? o->rank : LORA_RANK_DEFAULT);
}

bool model_has_lora(const struct cz_model *m, const struct cz_lora_options *o)
{
    const struct model_lora *lora = m->lora;
    return lora && lora->trained && lora->rank == (o->rank ? o->rank : LORA_RANK_DEFAULT) &&
           !(lora->alpha < alpha_of(o)) && !(lora->alpha > alpha_of(o)) &&
           !(lora->dropout < o->dropout) && !(lora->dropout > o->dropout) &&
           lora->rslora == o->rslora && lora->dora == o->dora;
}

static bool is_of_branch(const struct cz_model *m, size_t param_idx)
{
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *layer = model_layer_at(m, i);
        for (size_t b = 0; b < layer->n_branches; b++) {
            const struct layer_branch *branch = &layer->branches[b];
            if (layer->param_idx[branch->a] == param_idx ||
                layer->param_idx[branch->b] == param_idx ||
                (branch->is_dora && layer->param_idx[branch->m] == param_idx))
                return true;
        }
    }
    return false;
}

cz_status model_check_keeps_base(const struct cz_model *m)
{
    if (!m->lora) return err_set(CZ_UNSUPPORTED, 0, "%s has no adapter", cz_model_name(m));
    for (size_t i = 0; i < m->params.n_params; i++)
        if (m->params.params[i].trainable && !is_of_branch(m, i))
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s is trained, too: the model without its adapter is not what it was",
                           m->params.params[i].name);
    return CZ_OK;
}

/* ---- names ---------------------------------------------------------------------------------- */

cz_status lora_names_take(struct lora_names *names, const char *text)
{
    *names = (struct lora_names){0};
    if (!text) return CZ_OK;
    const size_t n_max = strlen(text) / 2 + 1;
    names->text = strdup(text);
    names->name = calloc(n_max, sizeof *names->name);
    if (!names->text || !names->name) {
        lora_names_free(names);
        return err_set(CZ_NOMEM, 0, "no memory for a list of modules");
    }
    char *rest = NULL;
    for (char *word = strtok_r(names->text, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest))
        names->name[names->n++] = word;
    return CZ_OK;
}

void lora_names_free(struct lora_names *names)
{
    free(names->text);
    free(names->name);
    *names = (struct lora_names){0};
}

/* As PEFT matches them, by the end of a module's name: "classifier" holds
 * "classifier.dense.weight", "bert.classifier.bias" and DistilBERT's "pre_classifier.weight". */
bool lora_names_hold(const struct lora_names *names, const char *param_name)
{
    for (size_t i = 0; i < names->n; i++) {
        const size_t n = strlen(names->name[i]);
        const char *at = n ? strstr(param_name, names->name[i]) : NULL;
        for (; at; at = strstr(at + 1, names->name[i]))
            if (at[n] == '.') return true;
    }
    return false;
}

/* ---- what can have a branch ------------------------------------------------------------------ */

/* Experts and their router are computed elsewhere, tables of positions are looked up. */
static bool is_no_map(const char *name)
{
    static const char *const parts[] = {".mlp.experts.", ".mlp.gate.", ".rel_embeddings.",
                                        ".relative_attention_bias."};
    for (size_t i = 0; i < CZ_ARRAY_LEN(parts); i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

/* The length of the module's name, 0 when the parameter is no matrix of a map. */
static int module_len(const struct param_info *p)
{
    static const char suffix[] = ".weight";
    const size_t n = strlen(p->name), n_suffix = strlen(suffix);
    if (p->ndim != 2 || is_no_map(p->name)) return 0;
    if (n <= n_suffix || n > INT32_MAX || strcmp(p->name + n - n_suffix, suffix) != 0) return 0;
    return (int)(n - n_suffix);
}

/* Whether this matrix of a layer is a map that may have a branch. */
static bool takes_branch(const struct model_layer *layer, const struct param_info *p)
{
    if (layer->cls->flags & LAYER_MAPS) return true;
    const char *name = layer->cls->map_name ? layer->cls->map_name(layer->hp) : NULL;
    return name && strcmp(name, p->name) == 0;
}

cz_status lora_targets_list(const struct cz_model *m, struct lora_target **out, size_t *n)
{
    struct lora_target *targets = calloc(m->params.n_params, sizeof *targets);
    *out = NULL;
    *n = 0;
    if (!targets) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *layer = &m->layers[i];
        const bool in_out = layer->cls->flags & LAYER_MAPS_IN_OUT;
        for (size_t slot = 0; slot < layer->n_params; slot++) {
            const struct param_info *p = &m->params.params[layer->param_idx[slot]];
            const int len = module_len(p);
            if (len == 0 || !takes_branch(layer, p)) continue;
            targets[(*n)++] = (struct lora_target){.layer_idx = i,
                                                   .slot = slot,
                                                   .name = p->name,
                                                   .name_len = len,
                                                   .n_in = p->shape[in_out ? 0 : 1],
                                                   .n_out = p->shape[in_out ? 1 : 0]};
        }
    }
    *out = targets;
    if (*n > 0) return CZ_OK;
    free(targets);
    *out = NULL;
    return err_set(CZ_UNSUPPORTED, 0, "%s: none of its layers takes an adapter", m->name);
}

/* ---- which of them do ------------------------------------------------------------------------ */

static bool ends_in_module(const struct lora_target *t, const char *name)
{
    const size_t n = strlen(name), len = (size_t)t->name_len;
    if (n > len || strncmp(t->name + len - n, name, n) != 0) return false;
    return n == len || t->name[len - n - 1] == '.';
}

/* The last part of a module's name, for a suggestion. */
static const char *last_part(const struct lora_target *t, char buf[64])
{
    int from = t->name_len;
    while (from > 0 && t->name[from - 1] != '.') from--;
    snprintf(buf, 64, "%.*s", t->name_len - from, t->name + from);
    return buf;
}

/* A name that matches nothing is nearly always a typo. */
static cz_status no_such_module(const struct cz_model *m, const struct lora_target *targets,
                                size_t n, const char *name)
{
    char known[512] = "", part[64];
    char(*parts)[64] = calloc(n, sizeof *parts);
    size_t used = 0, n_parts = 0;
    if (!parts) return err_set(CZ_NOMEM, 0, "no memory for a list of modules");
    struct nearest search = nearest_begin(name);
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        last_part(&targets[i], part);
        for (size_t k = 0; k < n_parts && !seen; k++) seen = strcmp(parts[k], part) == 0;
        if (seen || n_parts == 16) continue;
        memcpy(parts[n_parts], part, sizeof part);
        nearest_consider(&search, parts[n_parts]);
        if (used + strlen(part) + 3 < sizeof known)
            used +=
                (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", part);
        n_parts++;
    }
    cz_status st =
        search.best
            ? err_set(CZ_INVALID, 0, "%s: no linear map is called \"%.100s\"; did you mean %s?",
                      m->name, name, search.best)
            : err_set(CZ_INVALID, 0, "%s: no linear map is called \"%.100s\"; there are %s",
                      m->name, name, known);
    free(parts);
    return st;
}

/* The next range of a list of blocks such as "0-3,7"; false at its end or where it is none. */
static bool range_next(const char **at, long *first, long *last)
{
    char *end;
    errno = 0;
    if (**at < '0' || **at > '9') return false;
    *first = *last = strtol(*at, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtol(end + 1, &end, 10);
    if (errno || (*end && *end != ',') || *last < *first) return false;
    *at = *end ? end + 1 : end;
    return true;
}

static cz_status ranges_check(const char *text)
{
    long first, last;
    const char *at = text;
    if (!text) return CZ_OK;
    do {
        if (!range_next(&at, &first, &last))
            return err_set(CZ_INVALID, 0,
                           "layers of an adapter: \"%.40s\" is no list of numbers and ranges, such "
                           "as 0-3,7",
                           text);
    } while (*at);
    return CZ_OK;
}

/* The number of the block that a module is in: the first part of its name that is one. */
static long block_of(const struct lora_target *t)
{
    for (int i = 0; i < t->name_len; i++) {
        if (i > 0 && t->name[i - 1] != '.') continue;
        char *end;
        if (t->name[i] < '0' || t->name[i] > '9') continue;
        const long number = strtol(t->name + i, &end, 10);
        if (*end == '.') return number;
    }
    return -1;
}

static bool in_ranges(const char *text, const struct lora_target *t)
{
    long first, last;
    const long block = block_of(t);
    if (!text) return true;
    for (const char *at = text; *at && range_next(&at, &first, &last);)
        if (block >= first && block <= last) return true;
    return false;
}

static bool is_all_linear(const char *targets)
{
    return !targets || strcmp(targets, "all-linear") == 0;
}

/* Names have letters, digits, dots, _ and -. */
static bool is_expression(const char *targets)
{
    for (const char *c = targets; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
              strchr("._-, ", *c)))
            return true;
    return false;
}

static cz_status choose_by_name(const struct cz_model *m, struct lora_target *targets, size_t n,
                                const char *text, int64_t rank)
{
    struct lora_names names;
    TRY(lora_names_take(&names, text));
    cz_status st = names.n ? CZ_OK : err_set(CZ_INVALID, 0, "targets of an adapter: no name");
    for (size_t k = 0; k < names.n && st == CZ_OK; k++) {
        bool found = false;
        for (size_t i = 0; i < n; i++) {
            if (!ends_in_module(&targets[i], names.name[k])) continue;
            targets[i].rank = rank;
            found = true;
        }
        if (!found) st = no_such_module(m, targets, n, names.name[k]);
    }
    lora_names_free(&names);
    return st;
}

/* As PEFT's re.fullmatch. */
static cz_status choose_by_expression(const struct cz_model *m, struct lora_target *targets,
                                      size_t n, const char *text, int64_t rank)
{
    uint64_t work = REGEX_WORK_MAX;
    struct regex *re;
    bool has_any = false;
    cz_status st = regex_compile(text, &work, &re);
    for (size_t i = 0; i < n && st == CZ_OK; i++) {
        bool found = false;
        st = regex_match(re, targets[i].name, (size_t)targets[i].name_len, true, &work, &found);
        if (found) targets[i].rank = rank;
        has_any |= found;
    }
    regex_free(re);
    if (st != CZ_OK) return err_prefix("targets of an adapter");
    if (has_any) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s: the targets \"%.200s\" match no linear map; the first is %.*s, and the "
                   "whole name must match",
                   m->name, text, targets[0].name_len, targets[0].name);
}

static cz_status choose(const struct cz_model *m, const struct cz_lora_options *o, int64_t rank,
                        const struct lora_names *saved, struct lora_target *targets, size_t n)
{
    size_t n_chosen = 0;
    TRY(ranges_check(o->layers));
    if (is_all_linear(o->targets)) {
        for (size_t i = 0; i < n; i++) targets[i].rank = rank;
    } else if (is_expression(o->targets)) {
        TRY(choose_by_expression(m, targets, n, o->targets, rank));
    } else {
        TRY(choose_by_name(m, targets, n, o->targets, rank));
    }
    for (size_t i = 0; i < n; i++) {
        if (!in_ranges(o->layers, &targets[i]) || lora_names_hold(saved, targets[i].name))
            targets[i].rank = 0;
        n_chosen += targets[i].rank > 0;
    }
    if (n_chosen > 0) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: no linear map is left in layers \"%.40s\"", m->name,
                   o->layers ? o->layers : "");
}

/* ---- modules that are trained whole ---------------------------------------------------------- */

/* PEFT trains a copy of one of two tied modules and leaves the other as it is: two weights where
 * this model has one. */
static cz_status refuse_tied(const struct cz_model *m, const struct param_alias *alias)
{
    return err_set(CZ_UNSUPPORTED, 0,
                   "modules_to_save: %s is tied to %s in %s; a tied module cannot be trained "
                   "beside an adapter. Untie the model first: store both, with "
                   "\"tie_word_embeddings\": false",
                   m->params.params[alias->param_idx].name, alias->name, m->name);
}

cz_status lora_check_untied(const struct cz_model *m, const struct lora_names *saved)
{
    for (size_t i = 0; i < m->params.n_aliases; i++) {
        const struct param_alias *alias = &m->params.aliases[i];
        if (lora_names_hold(saved, m->params.params[alias->param_idx].name) ||
            lora_names_hold(saved, alias->name))
            return refuse_tied(m, alias);
    }
    return CZ_OK;
}

/* More names behind a list of them. Errors: CZ_INVALID (it is full). */
static cz_status add_names(char text[LORA_SAVED_NBYTES], const char *names, size_t n)
{
    const size_t used = strlen(text);
    if (used + n + 2 > LORA_SAVED_NBYTES)
        return err_set(CZ_INVALID, 0, "modules_to_save: more than %d bytes of names",
                       LORA_SAVED_NBYTES - 2);
    snprintf(text + used, LORA_SAVED_NBYTES - used, "%.*s,", (int)n, names);
    return CZ_OK;
}

/* Modules of a classifier's head that the model's files lack, such as a pooler: their random values
 * would be lost with the run, and the branches mean nothing to others. */
static cz_status add_absent(const struct cz_model *m, char text[LORA_SAVED_NBYTES])
{
    const struct tensor_entry *const *tensor = m->weights.tensor;
    for (size_t i = 0; tensor && i < m->params.n_params; i++) {
        const char *name = m->params.params[i].name, *end = strrchr(name, '.');
        struct lora_names so_far;
        if (tensor[i] || !end) continue;
        TRY(lora_names_take(&so_far, text));
        const bool is_there = lora_names_hold(&so_far, name);
        lora_names_free(&so_far);
        if (!is_there) TRY(add_names(text, name, (size_t)(end - name)));
    }
    return CZ_OK;
}

/* The caller's, and the head of a classifier, which PEFT trains as well. */
static cz_status take_saved(const struct cz_model *m, const char *wanted, struct lora_names *saved)
{
    static const char heads[] = "classifier,score";
    const bool classifies = m->n_classes > 0;
    char text[LORA_SAVED_NBYTES] = "";
    if (wanted) TRY(add_names(text, wanted, strlen(wanted)));
    if (classifies) TRY(add_names(text, heads, strlen(heads)));
    if (classifies) TRY(add_absent(m, text));
    TRY(lora_names_take(saved, text));
    size_t n_kept = 0;
    for (size_t k = 0; k < saved->n; k++) {
        const struct lora_names one = {.name = &saved->name[k], .n = 1};
        bool found = false, repeated = false;
        for (size_t i = 0; i < n_kept; i++)
            repeated = repeated || strcmp(saved->name[i], saved->name[k]) == 0;
        for (size_t i = 0; i < m->params.n_params; i++)
            found = found || lora_names_hold(&one, m->params.params[i].name);
        TRY(lora_check_untied(m, &one));
        const bool is_ours = classifies && (strcmp(saved->name[k], "classifier") == 0 ||
                                            strcmp(saved->name[k], "score") == 0);
        if (!found && !is_ours)
            return err_set(CZ_INVALID, 0, "modules_to_save: %s has no module \"%.100s\"", m->name,
                           saved->name[k]);
        if (found && !repeated) saved->name[n_kept++] = saved->name[k];
    }
    saved->n = n_kept;
    return CZ_OK;
}

/* ---- attaching ------------------------------------------------------------------------------- */

/* One more parameter of a layer; cols 0: a vector. *slot: its position there. */
static cz_status add_param(struct cz_model *m, struct model_layer *layer, const char *name,
                           int64_t rows, int64_t cols, enum param_init init, float bound,
                           size_t *slot)
{
    const int64_t shape[] = {rows, cols};
    const int ndim = cols > 0 ? 2 : 1;
    size_t idx;
    size_t *grown = realloc((void *)layer->param_idx, (layer->n_params + 1) * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    layer->param_idx = grown;
    TRY(param_table_add(&m->params, name, ndim, shape, init, bound, &idx));
    m->params.params[idx].is_adapter = true;
    grown[layer->n_params] = idx;
    *slot = layer->n_params++;
    return CZ_OK;
}

static cz_status add_branch(struct cz_model *m, const struct model_lora *lora,
                            const struct lora_target *t)
{
    struct model_layer *layer = &m->layers[t->layer_idx];
    char name[256];
    if (layer->n_branches == LAYER_BRANCHES_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%.*s: more than %d branches in one layer", t->name_len,
                       t->name, LAYER_BRANCHES_MAX);
    struct layer_branch *grown =
        realloc((void *)layer->branches, (layer->n_branches + 1) * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    layer->branches = grown;
    const double rank = (double)t->rank, alpha = t->alpha != 0 ? t->alpha : lora->alpha;
    struct layer_branch b = {.w = t->slot,
                             .is_dora = lora->dora,
                             .rank = t->rank,
                             .alpha = alpha,
                             .scale = (float)(alpha / (lora->rslora ? sqrt(rank) : rank)),
                             .dropout_p = (float)lora->dropout,
                             .site = (uint32_t)(LAYER_BRANCH_SITE + layer->n_branches)};
    snprintf(name, sizeof name, "%.*s.lora_A.weight", t->name_len, t->name);
    TRY(add_param(m, layer, name, t->rank, t->n_in, PARAM_INIT_UNIFORM,
                  (float)(1.0 / sqrt((double)t->n_in)), &b.a));
    snprintf(name, sizeof name, "%.*s.lora_B.weight", t->name_len, t->name);
    TRY(add_param(m, layer, name, t->n_out, t->rank, PARAM_INIT_ZERO, 0.0f, &b.b));
    snprintf(name, sizeof name, "%.*s" LORA_MAGNITUDE, t->name_len, t->name);
    if (lora->dora) /* lora_read_lengths() */
        TRY(add_param(m, layer, name, t->n_out, 0, PARAM_INIT_ONE, 0.0f, &b.m));
    grown[layer->n_branches++] = b;
    return CZ_OK;
}

/* Row by row; of a weight that is stored (in,out), by its columns. */
static cz_status read_lengths(struct cz_model *m, size_t weight_idx, bool in_out, size_t off,
                              size_t numel, float *dst)
{
    const struct param_info *w = &m->params.params[weight_idx];
    const size_t n_in = (size_t)w->shape[in_out ? 0 : 1], n_out = (size_t)w->shape[in_out ? 1 : 0];
    const size_t n_reads = in_out ? n_in : numel, each = in_out ? numel : n_in;
    cz_status st = CZ_OK;
    float *piece = malloc((each + 1) * sizeof *piece);
    double *sums = calloc(numel + 1, sizeof *sums);
    if (!piece || !sums) st = err_set(CZ_NOMEM, 0, "no memory for the lengths of %s", w->name);
    for (size_t i = 0; i < n_reads && st == CZ_OK; i++) {
        st = model_read_weights(m, weight_idx, in_out ? i * n_out + off : (off + i) * n_in, each,
                                piece);
        for (size_t k = 0; k < each && st == CZ_OK; k++)
            sums[in_out ? k : i] += (double)piece[k] * (double)piece[k];
    }
    for (size_t k = 0; k < numel && st == CZ_OK; k++) dst[k] = (float)sqrt(sums[k]);
    free(piece);
    free(sums);
    return st;
}

/* B is zero at first: the lengths are the weight's own. */
cz_status lora_read_lengths(struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                            float *dst, bool *is_magnitude)
{
    *is_magnitude = false;
    for (size_t i = 0; i < m->n_layers && m->lora->dora; i++) {
        const struct model_layer *layer = &m->layers[i];
        for (size_t k = 0; k < layer->n_branches; k++) {
            const struct layer_branch *b = &layer->branches[k];
            if (layer->param_idx[b->m] != param_idx) continue;
            *is_magnitude = true;
            return read_lengths(m, layer->param_idx[b->w], layer->cls->flags & LAYER_MAPS_IN_OUT,
                                elem_off, numel, dst);
        }
    }
    return CZ_OK;
}

/* The model's files have nothing for the new parameters. */
static cz_status grow_sources(struct cz_model *m, size_t n_before)
{
    struct weight_source *w = &m->weights;
    if (!w->tensor) return CZ_OK;
    const struct tensor_entry **grown =
        realloc((void *)w->tensor, m->params.n_params * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    for (size_t i = n_before; i < m->params.n_params; i++) grown[i] = NULL;
    w->tensor = grown;
    return CZ_OK;
}

cz_status lora_attach(struct cz_model *m, struct model_lora *lora,
                      const struct lora_target *targets, size_t n)
{
    const size_t n_before = m->params.n_params;
    m->lora = lora;
    cz_status st = CZ_OK;
    for (size_t i = 0; i < n && st == CZ_OK; i++)
        if (targets[i].rank > 0) st = add_branch(m, lora, &targets[i]);
    cz_status grown = grow_sources(m, n_before);
    TRY(st != CZ_OK ? st : grown);
    for (size_t i = 0; i < m->params.n_params; i++) {
        struct param_info *p = &m->params.params[i];
        p->trainable = lora->trained && (p->is_adapter || lora_names_hold(&lora->saved, p->name));
    }
    return CZ_OK;
}

static cz_status check_numbers(const struct cz_lora_options *o)
{
    if (o->rank < 0 || o->rank > LORA_RANK_MAX)
        return err_set(CZ_INVALID, 0, "an adapter's rank of %lld is outside 1…%lld",
                       (long long)o->rank, (long long)LORA_RANK_MAX);
    if (!(o->alpha >= 0 && o->alpha <= 1e9))
        return err_set(CZ_INVALID, 0, "an adapter's alpha of %g is outside 0…1e9", o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return err_set(CZ_INVALID, 0, "an adapter's dropout of %g is outside [0,1)", o->dropout);
    return CZ_OK;
}

cz_status lora_check_none(const struct cz_model *m)
{
    if (!m->lora) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s has an adapter already", m->name);
}

cz_status cz_model_add_lora(struct cz_model *m, const struct cz_lora_options *options)
{
    API_ENTRY;
    NEED(m, "model");
    struct cz_lora_options o;
    struct lora_target *targets = NULL;
    size_t n = 0;
    cz_status st;
    TRY(OPTIONS_TAKE(cz_lora_options, &o, options));
    TRY(lora_check_none(m));
    TRY(check_numbers(&o));
    struct model_lora *lora = calloc(1, sizeof *lora);
    if (!lora) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    lora->rank = o.rank ? o.rank : LORA_RANK_DEFAULT;
    lora->alpha = alpha_of(&o);
    lora->dropout = o.dropout;
    lora->rslora = o.rslora;
    lora->dora = o.dora;
    lora->trained = true;
    TRY_GOTO(take_saved(m, o.modules_to_save, &lora->saved), done);
    TRY_GOTO(lora_targets_list(m, &targets, &n), done);
    TRY_GOTO(choose(m, &o, lora->rank, &lora->saved, targets, n), done);
    st = lora_attach(m, lora, targets, n);
    lora = NULL;
done:
    free(targets);
    lora_free(lora);
    return st;
}
