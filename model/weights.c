/* Sources of weights: the files of a folder, read piece by piece, and the init rules for what the
 * files do not have. Finding is strict where a mistake would spoil a run (a trunk's tensor that is
 * absent or of another shape is an error) and lenient where a new task needs it: a head may start
 * from random values. The warning of that waits until such a value is read, because an adapter that
 * is added before may bring the head. */
#include "base/host/entry.h"
#include "base/log.h"
#include "base/text/unread.h"
#include "model/hf/tensor_files_impl.h"
#include "model/lora/lora_impl.h"
#include "model/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weights_free(struct weight_source *w)
{
    tensor_files_close(w->files);
    free(w->tensor);
    free(w->absent);
    free(w->place);
    memset(w, 0, sizeof *w);
}

/* ---- lists of names ------------------------------------------------------------------------- */

enum { LISTED_MAX = 8, LIST_NBYTES = 640 }; /* names; a message has space for no more */

/* "a, b, c and 4 more" */
struct name_list {
    char text[LIST_NBYTES];
    size_t used, n, n_shown;
};

/* Names up to a bound: a wrong folder would otherwise print hundreds. */
static void list_add(struct name_list *l, const char *name)
{
    const size_t nbytes = strlen(name) + sizeof ", ";
    l->n++;
    if (l->n_shown != l->n - 1 || l->n_shown == LISTED_MAX) return;
    if (l->used + nbytes + sizeof " and 18446744073709551615 more" > sizeof l->text) return;
    l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s%s",
                                l->n_shown ? ", " : "", name);
    l->n_shown++;
}

static const char *list_end(struct name_list *l)
{
    if (l->n > l->n_shown)
        snprintf(l->text + l->used, sizeof l->text - l->used, "%s%zu%s", l->n_shown ? " and " : "",
                 l->n - l->n_shown, l->n_shown ? " more" : " tensors");
    return l->text;
}

/* "(64, 192)" */
static const char *shape_text(const int64_t *shape, size_t ndim, char *buf, size_t buf_nbytes)
{
    size_t used = 0;
    buf[0] = '\0';
    for (size_t d = 0; d < ndim && used < buf_nbytes; d++)
        used += (size_t)snprintf(buf + used, buf_nbytes - used, "%s%lld", d ? ", " : "(",
                                 (long long)shape[d]);
    if (used < buf_nbytes) snprintf(buf + used, buf_nbytes - used, ndim ? ")" : "()");
    return buf;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Why a parameter starts from its init rule. */
enum absence { IS_THERE = 0, NOT_STORED, OTHER_SHAPE, OTHER_HEAD, N_ABSENCES };

/* Whether a parameter that the files lack gets its value from nowhere else. */
static bool stays_random(const struct cz_model *m, size_t idx)
{
    const struct weight_source *w = &m->weights;
    if (!w->absent || idx >= w->n_absent || !w->absent[idx]) return false;
    if (m->lora && lora_source(m->lora, idx)) return false;
    return !(w->trained_later && m->params.params[idx].trainable);
}

/* All of them, once: a message for each reason. */
static void warn_of_random(struct cz_model *m)
{
    static const char *const why[N_ABSENCES] = {
        "", "not in the files", "for other classes in the files", "of another head in the files"};
    struct weight_source *w = &m->weights;
    for (unsigned reason = NOT_STORED; reason < N_ABSENCES; reason++) {
        struct name_list list = {.n = 0};
        for (size_t i = 0; i < w->n_absent; i++)
            if (w->absent[i] == reason && stays_random(m, i))
                list_add(&list, m->params.params[i].name);
        if (list.n)
            LOGV(LOG_WARN, SUB_MODEL,
                 "%s: %s: %s: start from random values; train before you use them", w->place,
                 list_end(&list), why[reason]);
    }
    free(w->absent);
    w->absent = NULL;
}

void model_trained_come_later(struct cz_model *m)
{
    m->weights.trained_later = true;
}

/* Any piece of any parameter, by any rank: no rank ever holds the whole model. */
cz_status model_read_weights(struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                             float *dst)
{
    if (param_idx >= m->params.n_params)
        return err_set(CZ_INVALID, 0, "%s has %zu parameters: there is no number %zu", m->name,
                       m->params.n_params, param_idx);
    const struct param_info *p = &m->params.params[param_idx];
    if (elem_off > p->numel || numel > p->numel - elem_off)
        return err_set(CZ_INVALID, 0, "%s: elements %zu … %zu are beyond its %zu", p->name,
                       elem_off, elem_off + numel, p->numel);
    if (m->lora && lora_source(m->lora, param_idx))
        return lora_read(m->lora, param_idx, elem_off, numel, dst);
    if (m->weights.files && m->weights.tensor[param_idx])
        return tensor_files_read(m->weights.files, m->weights.tensor[param_idx], elem_off, numel,
                                 dst);
    if (stays_random(m, param_idx)) warn_of_random(m);
    bool is_magnitude = false;
    if (m->lora && p->is_adapter)
        TRY(lora_read_lengths(m, param_idx, elem_off, numel, dst, &is_magnitude));
    if (!is_magnitude) weights_by_rule(m, param_idx, elem_off, numel, dst);
    return CZ_OK;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* What a folder's files mean for a model. */
struct binding {
    const struct cz_model *m;
    const struct tensor_files *files;
    const char *place;
    bool head_is_foreign;
    const struct tensor_entry **tensor; /* (n_params) */
    unsigned char *absent;              /* (n_params) enum absence */
};

/* Under `name`, or under what the bare model calls it. */
static cz_status find_either(const struct binding *b, const char *name,
                             const struct tensor_entry **out)
{
    TRY(tensor_files_find(b->files, name, out));
    const char *prefix = b->m->family ? b->m->family->base_prefix : "";
    const size_t n = strlen(prefix);
    if (*out || !n || strncmp(name, prefix, n) != 0) return CZ_OK;
    return tensor_files_find(b->files, name + n, out);
}

/* Looks up the parameter's name, then its tied names; *out is NULL when there is none. A decoder's
 * bias has two names. Files may hold both, and transformers computes with the second one. */
static cz_status find_param(const struct binding *b, size_t idx, const struct tensor_entry **out)
{
    const struct param_table *t = &b->m->params;
    *out = NULL;
    for (size_t i = 0; t->params[idx].ndim == 1 && !*out && i < t->n_aliases; i++)
        if (t->aliases[i].param_idx == idx && !t->aliases[i].is_stored)
            TRY(find_either(b, t->aliases[i].name, out));
    if (!*out) TRY(find_either(b, t->params[idx].name, out));
    for (size_t i = 0; !*out && i < t->n_aliases; i++)
        if (t->aliases[i].param_idx == idx) TRY(find_either(b, t->aliases[i].name, out));
    const struct model_family *f = b->m->family;
    if (*out || !f || !f->tied_param || strcmp(t->params[idx].name, f->tied_param) != 0)
        return CZ_OK;
    return tensor_files_find(b->files, f->tied_elsewhere, out);
}

/* torch.save() writes tied tensors as one storage under two names: nothing is read. */
static bool is_same_storage(const struct tensor_entry *a, const struct tensor_entry *b)
{
    const struct pickle_tensor *x = a->tensor, *y = b->tensor;
    return x && y && a->pt == b->pt && x->dtype == y->dtype && x->off == y->off &&
           x->is_contiguous && y->is_contiguous && strcmp(x->key, y->key) == 0;
}

/* As PyTorch compares them: NaN equals nothing. */
static cz_status is_equal(const struct tensor_files *files, const struct tensor_entry *a,
                          const struct tensor_entry *b, bool *out)
{
    enum { PIECE = 1 << 16 };
    size_t numel = 1;
    *out = a == b;
    if (*out || a->ndim != b->ndim || memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) != 0)
        return CZ_OK;
    *out = is_same_storage(a, b);
    if (*out) return CZ_OK;
    for (size_t d = 0; d < a->ndim; d++) numel *= (size_t)a->shape[d];
    float *x = malloc(2 * PIECE * sizeof *x);
    if (!x) return err_set(CZ_NOMEM, 0, "no memory to compare tensors");
    cz_status st = CZ_OK;
    *out = true;
    for (size_t off = 0, n; off < numel && *out && st == CZ_OK; off += n) {
        n = numel - off < PIECE ? numel - off : PIECE;
        st = tensor_files_read(files, a, off, n, x);
        if (st == CZ_OK) st = tensor_files_read(files, b, off, n, x + PIECE);
        for (size_t i = 0; i < n && st == CZ_OK && *out; i++)
            *out = !(x[i] < x[PIECE + i]) && !(x[i] > x[PIECE + i]) && !isnan(x[i]) &&
                   !isnan(x[PIECE + i]);
    }
    free(x);
    return st;
}

cz_status weights_find_own_head(const struct cz_model *m, const struct tensor_files *files,
                                bool head_is_foreign, const char **name)
{
    const struct binding b = {.m = m, .files = files};
    const struct param_table *t = &m->params;
    *name = NULL;
    for (size_t i = 0; i < t->n_aliases && !head_is_foreign && !*name; i++) {
        const struct param_info *p = &t->params[t->aliases[i].param_idx];
        const struct tensor_entry *own, *other;
        bool equal;
        if (t->aliases[i].is_stored || p->ndim == 1) continue;
        TRY(find_either(&b, p->name, &own));
        TRY(find_either(&b, t->aliases[i].name, &other));
        if (!own || !other) continue;
        TRY(is_equal(files, own, other, &equal));
        if (!equal) *name = other->stored_name;
    }
    return CZ_OK;
}

static bool shape_matches(const struct param_info *p, const struct tensor_entry *e)
{
    return e->ndim == (size_t)p->ndim &&
           memcmp(e->shape, p->shape, e->ndim * sizeof *p->shape) == 0;
}

/* What a new task may start without: all that is not the base model's, and its pooler, which
 * models of other tasks are saved without. */
static bool is_of_head(const struct cz_model *m, const char *name)
{
    const char *prefix = m->family ? m->family->base_prefix : "";
    const size_t n = strlen(prefix);
    if (!n) return false;
    return strncmp(name, prefix, n) != 0 || strncmp(name + n, "pooler.", strlen("pooler.")) == 0;
}

/* Of the trunk, which all tasks share. */
static bool is_of_base(const struct cz_model *m, const char *name)
{
    const char *prefix = m->family->base_prefix;
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* A head of another task is left out by choice, not by shape: two classes there and two here may
 * mean different things. */
static cz_status bind_param(struct binding *b, size_t idx)
{
    const struct param_info *p = &b->m->params.params[idx];
    if (p->is_adapter) return CZ_OK;
    const bool may_differ = is_of_head(b->m, p->name) && !is_of_base(b->m, p->name);
    const struct tensor_entry *e;
    TRY(find_param(b, idx, &e));
    if (!e)
        b->absent[idx] = NOT_STORED;
    else if (may_differ && b->head_is_foreign)
        b->absent[idx] = OTHER_HEAD;
    else if (may_differ && b->m->labels_given && !shape_matches(p, e))
        b->absent[idx] = OTHER_SHAPE;
    if (b->absent[idx]) return CZ_OK;
    if (!e->is_weight) return tensor_files_read(b->files, e, 0, 0, NULL);
    /* Both shapes: a transposed weight is recognized by them. */
    if (!shape_matches(p, e)) {
        char have[96], want[96];
        return err_set(CZ_CORRUPT, 0, "%s: tensor %s has shape %s, the model needs %s", e->path,
                       e->stored_name, shape_text(e->shape, e->ndim, have, sizeof have),
                       shape_text(p->shape, (size_t)p->ndim, want, sizeof want));
    }
    b->tensor[idx] = e;
    return CZ_OK;
}

/* Every absent tensor of the trunk, in one sentence. */
static cz_status check_trunk(const struct binding *b)
{
    struct name_list list = {.n = 0};
    const struct param_info *last = NULL;
    for (size_t i = 0; i < b->m->params.n_params; i++) {
        const struct param_info *p = &b->m->params.params[i];
        if (!b->absent[i] || is_of_head(b->m, p->name)) continue;
        list_add(&list, p->name);
        last = p;
    }
    char want[96];
    if (list.n == 0) return CZ_OK;
    if (list.n == 1)
        return err_set(CZ_NOTFOUND, 0, "%s: the weights lack tensor %s %s", b->place, last->name,
                       shape_text(last->shape, (size_t)last->ndim, want, sizeof want));
    return err_set(CZ_NOTFOUND, 0, "%s: the weights lack %zu of the model's tensors: %s", b->place,
                   list.n, list_end(&list));
}

/* ---- telling -------------------------------------------------------------------------------- */

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Buffers and heads that real folders carry and these models have no use for. */
static bool is_known_extra(const struct cz_model *m, const char *name)
{
    static const char *const suffixes[] = {"embeddings.position_ids", "embeddings.token_type_ids",
                                           "rotary_emb.inv_freq", "attn.masked_bias"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes); i++)
        if (has_suffix(name, suffixes[i])) return true;
    for (size_t i = 0; i < m->params.n_aliases; i++) { /* under both names */
        const struct param_alias *alias = &m->params.aliases[i];
        if (strcmp(name, alias->name) == 0) return true;
        if (strcmp(name, m->params.params[alias->param_idx].name) == 0) return true;
    }
    if (!m->family) return false;
    for (const char *const *suffix = m->family->ignored_suffixes; *suffix; suffix++)
        if (has_suffix(name, *suffix)) return true;
    const char *prefix = m->family->base_prefix;
    if (begins_with(name, prefix)) name += strlen(prefix);
    return begins_with(name, "pooler.") || begins_with(name, "cls.seq_relationship.");
}

/* To look up entries that are in use. */
static int by_address(const void *left, const void *right)
{
    const struct tensor_entry *a = *(const struct tensor_entry *const *)left;
    const struct tensor_entry *b = *(const struct tensor_entry *const *)right;
    return (a > b) - (a < b);
}

/* Orders names by their first part. */
static int by_first_part(const void *left, const void *right)
{
    const char *a = *(const char *const *)left, *b = *(const char *const *)right;
    const size_t n_a = strcspn(a, "."), n_b = strcspn(b, ".");
    const int order = strncmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

/* The trunk's names without the family's prefix, by their first part; names holds all parameters.
 */
static size_t list_trunk(const struct cz_model *m, const char **names)
{
    const size_t n_prefix = strlen(m->family->base_prefix);
    size_t n = 0;
    for (size_t i = 0; i < m->params.n_params; i++)
        if (is_of_base(m, m->params.params[i].name))
            names[n++] = m->params.params[i].name + n_prefix;
    qsort(names, n, sizeof *names, by_first_part);
    return n;
}

/* Whether a tensor is a head's: its name begins with no part of the trunk ("encoder", "layers"),
 * which files of bare models name without the family's prefix. */
static bool is_elsewhere(const struct cz_model *m, const char *const *trunk, size_t n_trunk,
                         const char *name)
{
    return !is_of_base(m, name) && !bsearch(&name, trunk, n_trunk, sizeof *trunk, by_first_part);
}

/* Name the tensors that no parameter takes, but for a head of another task, which is expected to
 * stay behind: layers beyond the config's number, a second head, another model's. */
static cz_status report_unused(const struct binding *b)
{
    const size_t n = b->m->params.n_params;
    const struct tensor_entry **used = malloc(n * sizeof *used);
    const char **trunk = malloc(n * sizeof *trunk);
    if (!used || !trunk) {
        free(used);
        free(trunk);
        return err_set(CZ_NOMEM, 0, "no memory for a list of tensors");
    }
    const size_t n_trunk = b->head_is_foreign ? list_trunk(b->m, trunk) : 0;
    memcpy(used, b->tensor, n * sizeof *used);
    qsort(used, n, sizeof *used, by_address);
    struct unread unread = {.what = "tensors"};
    struct name_list heads = {.n = 0};
    for (size_t i = 0; i < tensor_files_count(b->files); i++) {
        const struct tensor_entry *e = tensor_files_at(b->files, i);
        if (is_known_extra(b->m, e->name) || bsearch(&e, used, n, sizeof *used, by_address))
            continue;
        if (b->head_is_foreign && is_elsewhere(b->m, trunk, n_trunk, e->name))
            list_add(&heads, e->stored_name);
        else
            unread_add(&unread, e->stored_name, "%s", "");
    }
    free(used);
    free(trunk);
    if (heads.n)
        LOGV(LOG_INFO, SUB_MODEL, "%s: of another head, and left out: %s", b->place,
             list_end(&heads));
    return unread_report(&unread, b->place);
}

/* ---- quantized weights ---------------------------------------------------------------------- */

/* Scales and packed codes, by the endings that quantizers give them. */
static bool is_of_quantized(const char *name)
{
    static const char *const suffixes[] = {
        ".weight_scale_inv", ".weight_scale", ".input_scale",   ".weight_zero_point", ".SCB",
        ".weight_format",    ".absmax",       ".quant_map",     ".nested_absmax",     ".qweight",
        ".qzeros",           ".scales",       ".weight_packed", ".weight_shape",      "_scales"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes); i++)
        if (has_suffix(name, suffixes[i])) return true;
    return strstr(name, ".quant_state.") != NULL;
}

/* Their weights would be read without them, and mean something else. */
static cz_status check_unquantized(const struct tensor_files *files)
{
    for (size_t i = 0; i < tensor_files_count(files); i++) {
        const struct tensor_entry *e = tensor_files_at(files, i);
        if (is_of_quantized(e->name))
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: tensor %s belongs to quantized weights, which are not read: save "
                           "the model unquantized (dequantize() of transformers)",
                           e->path, e->stored_name);
    }
    return CZ_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* All parameters are looked at before an error is reported, so that it names all of them. */
static cz_status bind_all(struct binding *b)
{
    TRY(check_unquantized(b->files));
    for (size_t i = 0; i < b->m->params.n_params; i++) TRY(bind_param(b, i));
    TRY(check_trunk(b));
    return report_unused(b);
}

/* The files stay open with the model: weights are read when ranks ask for them. */
cz_status weights_bind(struct cz_model *m, struct tensor_files *files, const char *place,
                       bool head_is_foreign)
{
    const size_t n = m->params.n_params;
    struct binding b = {.m = m, .files = files, .place = place, .head_is_foreign = head_is_foreign};
    b.tensor = calloc(n, sizeof *b.tensor);
    b.absent = calloc(n, 1);
    char *kept = strdup(place);
    cz_status st = b.tensor && b.absent && kept
                       ? bind_all(&b)
                       : err_set(CZ_NOMEM, 0, "no memory for %zu tensors", n);
    if (st != CZ_OK) {
        free(b.tensor);
        free(b.absent);
        free(kept);
        return st;
    }
    const uint64_t seed = m->weights.seed;
    weights_free(&m->weights);
    if (m->lora) m->lora->has_hash = false;
    m->weights = (struct weight_source){.files = files,
                                        .tensor = b.tensor,
                                        .seed = seed,
                                        .absent = b.absent,
                                        .n_absent = n,
                                        .place = kept};
    return CZ_OK;
}

static const struct safetensors *files_of(const struct cz_model *m)
{
    return m->weights.files ? tensor_files_safetensors(m->weights.files) : NULL;
}

size_t model_n_files(const struct cz_model *m)
{
    const struct safetensors *st = files_of(m);
    return st ? safetensors_n_files(st) : 0;
}

struct safetensors_file model_file(const struct cz_model *m, size_t file_idx)
{
    return safetensors_file(files_of(m), file_idx);
}

/* Elements that begin between two elements' places cannot be read as an array of them. */
bool model_find_in_files(const struct cz_model *m, size_t param_idx, enum cz_dtype dtype,
                         size_t *file_idx, uint64_t *file_off)
{
    const struct tensor_entry *t = files_of(m) ? m->weights.tensor[param_idx] : NULL;
    enum cz_dtype stored;
    if (!t || (m->lora && lora_source(m->lora, param_idx))) return false;
    if (!safetensors_dtype_to_base(t->info->dtype, &stored) || stored != dtype) return false;
    *file_idx = t->info->file_idx;
    *file_off = t->info->file_off;
    return t->info->file_off % dtype_size(dtype) == 0;
}

static enum cz_dtype dtype_of(const struct tensor_entry *t)
{
    if (strcmp(t->dtype_name, "BF16") == 0 || strcmp(t->dtype_name, "bfloat16") == 0)
        return DTYPE_BF16;
    if (strcmp(t->dtype_name, "F16") == 0 || strcmp(t->dtype_name, "float16") == 0)
        return DTYPE_F16;
    return DTYPE_F32;
}

enum cz_dtype model_weights_dtype(const struct cz_model *m)
{
    enum cz_dtype found = DTYPE_F32;
    bool has_any = false;
    for (size_t i = 0; m->weights.files && i < m->params.n_params; i++) {
        const struct tensor_entry *t = m->weights.tensor[i];
        if (!t) continue;
        if (has_any && dtype_of(t) != found) return DTYPE_F32;
        found = dtype_of(t);
        has_any = true;
    }
    return found;
}

bool cz_model_has_weights(const struct cz_model *m)
{
    NEED_OR(m, false);
    return m->weights.files != NULL;
}

/* Pieces that are made by a rule follow from the seed. */
void cz_model_set_seed(struct cz_model *m, uint64_t seed)
{
    if (!m) return;
    m->weights.seed = seed;
    if (m->lora) m->lora->has_hash = false;
}

/* Replaces the source; what was read before stays as it is. */
cz_status cz_model_init_from(struct cz_model *m, const char *dir, uint64_t seed)
{
    API_ENTRY;
    NEED(m, "model");
    struct tensor_files *files;
    bool head_is_foreign = false;
    if (!dir) {
        weights_free(&m->weights);
        cz_model_set_seed(m, seed);
        return CZ_OK;
    }
    const char *own = NULL;
    TRY(head_compare(m, dir, true, &head_is_foreign));
    TRY(tensor_files_open(dir, true, &files));
    cz_status st = weights_find_own_head(m, files, head_is_foreign, &own);
    if (st == CZ_OK && own)
        st = err_set(CZ_UNSUPPORTED, 0,
                     "%s: %s has values of its own, but the model's config.json ties it: write "
                     "\"tie_word_embeddings\": false there",
                     dir, own);
    if (st == CZ_OK) st = weights_bind(m, files, dir, head_is_foreign);
    if (st == CZ_OK)
        cz_model_set_seed(m, seed);
    else
        tensor_files_close(files);
    return st;
}
