/* A model: a list of layers with copied hyper-parameters, and the table of their parameters. Layers
 * declare parameters by name; two that declare the same name share it, which is how weights are
 * tied. A model holds no weights: these are read from their source piece by piece, by whatever rank
 * owns them (weights.c). */
#include "model/model.h"

#include "base/host/entry.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text/regex.h"
#include "model/lora/lora_impl.h"
#include "model/model_impl.h"
#include "model/parts/class_head.h"
#include "model/parts/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- building ------------------------------------------------------------------------------- */

/* Declaring is the only way to a parameter: its index in the table is what a layer's arguments
 * use. */
cz_status param_list_add(struct param_list *l, const char *name, int ndim, const int64_t *shape,
                         enum param_init init, float init_std)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        size_t *grown = realloc(l->idx, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for a layer's parameters");
        l->idx = grown;
        l->cap = cap;
    }
    TRY(param_table_add(l->table, name, ndim, shape, init, init_std, &l->idx[l->n]));
    l->n++;
    return CZ_OK;
}

/* Copy one layer of the description into the model and let it declare its parameters. */
static cz_status layer_add(struct cz_model *m, const struct layer_desc *desc, size_t layer_idx)
{
    const struct layer_class *cls = desc->cls;
    if (!cls || !cls->name || !cls->declare || !cls->size || !cls->forward || !cls->backward)
        return err_set(CZ_INVALID, 0,
                       "layer %zu (%s): its class lacks a name, declare, size, forward or backward",
                       layer_idx, cls && cls->name ? cls->name : "?");
    struct model_layer *layer = &m->layers[layer_idx];
    void *hp = malloc(desc->hp_nbytes ? desc->hp_nbytes : 1);
    if (!hp) return err_set(CZ_NOMEM, 0, "no memory for a layer's hyper-parameters");
    if (desc->hp_nbytes) memcpy(hp, desc->hp, desc->hp_nbytes);
    layer->cls = cls;
    layer->hp = hp;
    layer->hp_nbytes = desc->hp_nbytes;

    struct param_list list = {.table = &m->params};
    cz_status st = cls->declare(hp, &list);
    layer->param_idx = list.idx;
    layer->n_params = list.n;
    if (st != CZ_OK) return err_prefix("layer %zu (%s)", layer_idx, cls->name);
    return CZ_OK;
}

/* A user's own chain comes through here: everything later relies on it. */
static cz_status desc_check(const struct model_desc *desc)
{
    const char *name = desc->name ? desc->name : "model";
    if (!desc->layers || desc->n_layers == 0)
        return err_set(CZ_INVALID, 0, "%s: a chain needs at least one layer", name);
    if (desc->t_max < 1)
        return err_set(CZ_INVALID, 0, "%s: t_max is %lld, expected at least 1", name,
                       (long long)desc->t_max);
    if (desc->vocab_size < 0 || desc->vocab_size > INT32_MAX || desc->n_classes < 0 ||
        desc->n_classes > CZ_CLASSES_MAX)
        return err_set(CZ_INVALID, 0, "%s: vocab_size %lld or n_classes %lld is out of range", name,
                       (long long)desc->vocab_size, (long long)desc->n_classes);
    for (size_t i = 0; i < desc->n_layers; i++) {
        bool is_last = i + 1 == desc->n_layers;
        bool has_loss = desc->layers[i].cls && (desc->layers[i].cls->flags & LAYER_LOSS) != 0;
        if (is_last != has_loss)
            return err_set(CZ_INVALID, 0,
                           is_last ? "%s: layer %zu, the last, must compute the loss"
                                   : "%s: layer %zu computes a loss but is not last",
                           name, i);
    }
    return CZ_OK;
}

/* On failure everything that was copied is freed by cz_model_destroy(). */
/* Those of a classifier follow from its head. */
static enum cz_labels labels_of(const struct model_desc *desc)
{
    const struct layer_desc *last = &desc->layers[desc->n_layers - 1];
    const struct class_head_hp *head = last->cls == &class_head_class ? last->hp : NULL;
    if (desc->n_classes == 0) return desc->labels;
    if (!head) return CZ_LABELS_CLASS;
    return head->rows == HEAD_EACH            ? CZ_LABELS_TOKEN_CLASS
           : head->loss == HEAD_SQUARED_ERROR ? CZ_LABELS_VALUES
           : head->loss == HEAD_BINARY        ? CZ_LABELS_MULTI
                                              : CZ_LABELS_CLASS;
}

cz_status model_build(const struct model_desc *desc, struct cz_model **out)
{
    *out = NULL;
    TRY(desc_check(desc));
    cz_status st = CZ_OK;
    struct cz_model *m = calloc(1, sizeof *m);
    if (!m) return err_set(CZ_NOMEM, 0, "no memory for a model");
    param_table_init(&m->params);
    m->name = strdup(desc->name ? desc->name : "model");
    m->layers = calloc(desc->n_layers, sizeof *m->layers);
    if (!m->name || !m->layers) {
        st = err_set(CZ_NOMEM, 0, "no memory for %zu layers", desc->n_layers);
        goto fail;
    }
    m->n_layers = desc->n_layers;
    m->vocab_size = desc->vocab_size;
    m->hidden_size = desc->hidden_size;
    m->n_classes = desc->n_classes;
    m->n_types = desc->n_types;
    m->n_positions = desc->n_positions;
    m->counts_positions = desc->counts_positions;
    m->unpads = desc->unpads;
    m->padding_id = desc->padding_id;
    m->labels = labels_of(desc);
    m->t_max = m->t_max_limit = m->t_context = desc->t_max;
    for (size_t i = 0; i < desc->n_layers; i++) TRY_GOTO(layer_add(m, &desc->layers[i], i), fail);
    if (m->params.n_params == 0) {
        st = err_set(CZ_INVALID, 0, "%s: its layers declare no parameter", m->name);
        goto fail;
    }
    TRY_GOTO(labels_init(m), fail);
    m->block = desc->block;
    *out = m;
    return CZ_OK;
fail:
    cz_model_destroy(m);
    return st;
}

struct cz_model *model_create(const struct model_desc *desc)
{
    struct cz_model *m;
    return model_build(desc, &m) == CZ_OK ? m : NULL;
}

void cz_model_destroy(struct cz_model *m)
{
    API_ENTRY;
    if (!m) return;
    for (size_t i = 0; i < m->n_layers; i++) {
        free((void *)m->layers[i].hp);
        free((void *)m->layers[i].param_idx);
        free((void *)m->layers[i].branches);
    }
    free(m->layers);
    lora_free(m->lora);
    weights_free(&m->weights);
    json_free(m->config);
    json_free(m->generation);
    free(m->label_names);
    free(m->block);
    param_table_free(&m->params);
    free(m->name);
    free(m);
}

/* ---- shaping -------------------------------------------------------------------------------- */

/* A longer context than the model was made for works where positions are computed, not learned;
 * t_max_limit says how far. */
bool model_is_taken(const struct cz_model *m)
{
    return m->is_taken;
}

void model_take(struct cz_model *m)
{
    m->is_taken = true;
}

cz_status cz_model_set_shape(struct cz_model *m, int64_t t_max)
{
    API_ENTRY;
    NEED(m, "model");
    if (t_max < 1 || t_max > m->t_max_limit)
        return err_set(CZ_INVALID, 0,
                       "%s: a sequence length of %lld is outside 1…%lld, the model's context",
                       m->name, (long long)t_max, (long long)m->t_max_limit);
    m->t_max = t_max;
    if (t_max > m->t_context)
        LOGV(LOG_WARN, SUB_MODEL, "%s: sequences of %lld are longer than the %lld it was made for",
             m->name, (long long)t_max, (long long)m->t_context);
    return CZ_OK;
}

/* Frozen parameters get no gradient and no states: groups are made after this. */
cz_status cz_model_freeze(struct cz_model *m, const char *regex, size_t *n_frozen)
{
    API_ENTRY;
    NEED(m, "model");
    NEED(regex, "regex");
    uint64_t work = REGEX_WORK_MAX;
    struct regex *re;
    TRY(regex_compile(regex, &work, &re));
    cz_status st = CZ_OK;
    size_t n_matched = 0, n_left = 0, n_named = 0; /* named: trained or not */
    for (int apply = 0; apply < 2; apply++) {      /* first look, then act */
        for (size_t i = 0; i < m->params.n_params && st == CZ_OK; i++) {
            struct param_info *p = &m->params.params[i];
            bool match = false;
            st = regex_match(re, p->name, strlen(p->name), false, &work, &match);
            n_named += match;
            match = match && p->trainable;
            if (apply) {
                if (match) p->trainable = false;
            } else {
                n_matched += match;
                n_left += p->trainable && !match;
            }
        }
        if (n_left == 0 || n_named == 0 || st != CZ_OK) break;
    }
    regex_free(re);
    TRY(st);
    /* Nearly always a mistyped name: training everything instead would go unnoticed. */
    if (n_named == 0)
        return err_set(CZ_INVALID, 0,
                       "freeze \"%s\": no parameter of %s has such a name; the first is %s", regex,
                       m->name, m->params.n_params > 0 ? m->params.params[0].name : "missing");
    if (n_left == 0)
        return err_set(CZ_INVALID, 0,
                       "%s: \"%s\" freezes every parameter: no trainable parameters remain",
                       m->name, regex);
    if (n_frozen) *n_frozen = n_matched;
    return CZ_OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

const char *cz_model_name(const struct cz_model *m)
{
    NEED_OR(m, "");
    return m->name;
}

int64_t cz_model_vocab_size(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return m->vocab_size;
}

int64_t cz_model_hidden_size(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return m->hidden_size;
}

int64_t cz_model_t_max(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return m->t_max;
}

int64_t cz_model_n_classes(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return m->n_classes;
}

int64_t cz_model_n_types(const struct cz_model *m)
{
    NEED_OR(m, 0);
    return m->n_types;
}

enum cz_labels cz_model_labels(const struct cz_model *m)
{
    NEED_OR(m, CZ_LABELS_NEXT);
    return m->labels;
}

bool model_is_by_row(const struct cz_model *m)
{
    return model_n_targets(m) > 0 || m->labels == CZ_LABELS_CLASS;
}

size_t model_n_labels(const struct cz_model *m, int64_t B, int64_t T)
{
    if (model_n_targets(m) > 0) return 0;
    return (size_t)(model_is_by_row(m) ? B : B * T);
}

int64_t model_n_targets(const struct cz_model *m)
{
    return m->labels == CZ_LABELS_VALUES || m->labels == CZ_LABELS_MULTI ? m->n_classes : 0;
}

int64_t model_n_positions(const struct cz_model *m)
{
    return m->n_positions > 0 ? m->n_positions : m->t_max;
}

bool model_counts_positions(const struct cz_model *m)
{
    return m->counts_positions;
}

bool model_unpads(const struct cz_model *m)
{
    bool drops = false;
    for (size_t i = 0; i < m->n_layers; i++)
        for (size_t k = 0; k < m->layers[i].n_branches; k++)
            drops |= m->layers[i].branches[k].dropout_p > 0;
    return m->unpads && !drops;
}

/* By ids, not by the mask, as transformers does. */
void model_count_positions(const struct cz_model *m, const int32_t *ids, int64_t B, int64_t T,
                           int32_t *positions)
{
    const int32_t padding = (int32_t)m->padding_id;
    for (int64_t b = 0; b < B; b++, ids += T, positions += T) {
        int32_t last = padding;
        for (int64_t t = 0; t < T; t++) positions[t] = ids[t] == padding ? padding : ++last;
    }
}

bool model_padding_agrees(const struct cz_model *m)
{
    return !m->family || !m->family->padding_differs;
}

bool model_head_norms(const struct cz_model *m)
{
    const struct model_layer *last = &m->layers[m->n_layers - 1];
    const struct class_head_hp *head = last->cls == &class_head_class ? last->hp : NULL;
    return last->cls == &model_lm_head_class || (head && head->norm_weight_name);
}

cz_status model_check_counts_hits(const struct cz_model *m)
{
    if (m->layers[m->n_layers - 1].cls == &model_lm_head_class) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "the accuracy of tokens is for causal language models");
}

const struct param_table *model_params(const struct cz_model *m)
{
    return &m->params;
}

size_t model_n_layers(const struct cz_model *m)
{
    return m->n_layers;
}

const struct model_layer *model_layer_at(const struct cz_model *m, size_t layer_idx)
{
    return &m->layers[layer_idx];
}
