/* Adapters in files, as PEFT reads and writes them: adapter_config.json says what kind of adapter
 * it is, adapter_model.safetensors holds A and B of each module, and modules_to_save whole, all
 * under "base_model.model.<name>". Which modules have a branch, and its rank, is read off the
 * tensors; of the config only what tensors do not say is read, and whatever would change the
 * computation is refused by name. */
#include "base/hash.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/text/regex.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_unread.h"
#include "formats/json/json_write.h"
#include "formats/output.h"
#include "model/lora/lora_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char config_name[] = "adapter_config.json";
static const char tensors_name[] = "adapter_model.safetensors";

/* ---- adapter_config.json --------------------------------------------------------------------- */

static cz_status refuse(const struct json_node *node, const char *why)
{
    char where[512];
    return err_set(CZ_UNSUPPORTED, 0, "%s: %s", json_where(node, where, sizeof where), why);
}

/* null, false, "", {} and [] mean that a kind of adapter is not in use. */
static bool is_off(const struct json_node *node)
{
    bool value;
    if (!node) return true;
    switch (json_type(node)) {
    case JSON_NULL: return true;
    case JSON_BOOL: return json_as_bool(node, &value) == CZ_OK && !value;
    case JSON_ARRAY:
    case JSON_OBJECT: return json_count(node) == 0;
    default: return false;
    }
}

/* What PEFT can do beside plain LoRA. */
static cz_status refuse_variants(const struct json_node *root)
{
    static const struct {
        const char *key, *why;
    } variants[] = {
        {"lora_bias", "biases of branches are not supported"},
        {"layer_replication", "replicated layers are not supported"},
        {"trainable_token_indices", "trained rows of an embedding are not supported"},
        {"target_parameters", "branches of parameters that are no module are not supported"},
        {"alora_invocation_tokens", "adapters that a token switches on are not supported"},
        {"use_qalora", "quantized adapters are not supported"},
        {"use_bdlora", "block-diagonal adapters are not supported"},
        {"arrow_config", "mixtures of adapters are not supported"},
        {"velora_config", "VeLoRA is not supported"},
        {"monteclora_config", "MonteCLoRA is not supported"},
        {"kasa_config", "KaSA is not supported"},
        {"ensure_weight_tying", "an embedding that is trained together with its head is not "
                                "supported"},
    };
    const char *bias;
    for (size_t i = 0; i < CZ_ARRAY_LEN(variants); i++) {
        const struct json_node *node = json_get(root, variants[i].key);
        if (!is_off(node)) return refuse(node, variants[i].why);
    }
    TRY(json_opt_string(root, "bias", "none", &bias));
    if (strcmp(bias, "none") == 0) return CZ_OK;
    return refuse(json_get(root, "bias"), "trained biases are not supported: \"none\" would work");
}

/* How A and B began. Some methods take away from the base's weights what A and B begin with, and
 * PEFT does so again whenever it loads the adapter: A and B mean nothing to the weights as stored.
 * MiCA leaves the base alone, but trains A only. */
static cz_status read_init(const struct json_node *root, struct model_lora *lora)
{
    static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
    const struct json_node *node = json_get(root, "init_lora_weights");
    const char *name;
    char why[256];
    if (!node || json_type(node) == JSON_NULL || json_type(node) == JSON_BOOL) return CZ_OK;
    TRY(json_as_string(node, &name));
    for (size_t i = 0; i < CZ_ARRAY_LEN(plain); i++)
        if (strcasecmp(name, plain[i]) == 0) return CZ_OK;
    if (strcasecmp(name, "mica") == 0)
        return lora->trained ? refuse(node, "\"mica\": only A of such an adapter is trained, which "
                                            "is not supported; it can be merged")
                             : CZ_OK;
    snprintf(why, sizeof why,
             "\"%.40s\" changes the base's weights when PEFT loads the adapter: merge it there "
             "(merge_and_unload), or convert it (save_pretrained with "
             "path_initial_model_for_weight_conversion)",
             name);
    return refuse(node, why);
}

/* Keys of PEFT's that are not asked for. */
static const struct json_harmless harmless[] = {
    {"auto_mapping", NULL, NULL},            /* a class of the base, by name */
    {"base_model_name_or_path", NULL, NULL}, /* the caller names the base */
    {"revision", NULL, NULL},
    {"inference_mode", NULL, NULL}, /* whether it is trained is the caller's choice */
    {"task_type", NULL, NULL},
    {"peft_version", NULL, NULL},
    {"target_modules", NULL, NULL}, /* the tensors show which modules have a branch … */
    {"exclude_modules", NULL, NULL},
    {"layers_to_transform", NULL, NULL},
    {"layers_pattern", NULL, NULL},
    {"rank_pattern", NULL, NULL},      /* … and its rank */
    {"fan_in_fan_out", NULL, NULL},    /* the base's layers show it */
    {"megatron_core", NULL, NULL},     /* a module's name, for megatron_config */
    {"qalora_group_size", NULL, NULL}, /* only with use_qalora */
    {"runtime_config", NULL, NULL},    /* where PEFT computes */
    /* how A and B began, where the base is left as it was */
    {"loftq_config", NULL, NULL},
    {"eva_config", NULL, NULL},
    {"corda_config", NULL, NULL},
    {"lora_ga_config", NULL, NULL},
};

/* A list of names, or null, as names of a struct lora_names. */
static cz_status read_names(const struct json_node *list, struct lora_names *out)
{
    struct json_writer text;
    char *names;
    if (is_off(list)) return CZ_OK;
    if (json_type(list) != JSON_ARRAY) return refuse(list, "a list of names is expected");
    json_writer_init(&text, 0);
    for (size_t i = 0; i < json_count(list); i++) {
        const char *name;
        cz_status st = json_as_string(json_child(list, i), &name);
        if (st != CZ_OK) {
            json_writer_free(&text);
            return st;
        }
        json_write_text(&text, name);
        json_write_text(&text, ",");
    }
    TRY(json_writer_take(&text, &names, NULL));
    cz_status st = lora_names_take(out, names);
    free(names);
    return st;
}

static cz_status read_alphas(const struct json_node *patterns, struct model_lora *lora)
{
    if (is_off(patterns)) return CZ_OK;
    if (json_type(patterns) != JSON_OBJECT)
        return refuse(patterns, "names with an alpha each are expected");
    const size_t n = json_count(patterns);
    lora->alphas = calloc(n, sizeof *lora->alphas);
    if (!lora->alphas) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    for (size_t i = 0; i < n; i++) {
        const struct json_node *node = json_child(patterns, i);
        struct lora_alpha *a = &lora->alphas[i];
        TRY(json_as_double(node, &a->alpha));
        if (!(fabs(a->alpha) <= 1e9) || a->alpha == 0)
            return refuse(node, "an alpha of 0, or beyond 1e9, is not supported");
        a->pattern = strdup(json_key(node));
        if (!a->pattern) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
        lora->n_alphas++;
    }
    return CZ_OK;
}

static cz_status config_read(const struct json_node *root, struct model_lora *lora)
{
    const char *kind;
    TRY(json_need_string(root, "peft_type", &kind));
    if (strcmp(kind, "LORA") != 0)
        return refuse(json_get(root, "peft_type"), "only LORA adapters are supported");
    TRY(refuse_variants(root));
    TRY(read_init(root, lora));
    TRY(json_opt_int(root, "r", 8, &lora->rank));
    TRY(json_opt_double(root, "lora_alpha", 8, &lora->alpha));
    TRY(json_opt_double(root, "lora_dropout", 0, &lora->dropout));
    TRY(json_opt_bool(root, "use_rslora", false, &lora->rslora));
    TRY(json_opt_bool(root, "use_dora", false, &lora->dora));
    if (!(lora->dropout >= 0 && lora->dropout < 1) || !(fabs(lora->alpha) <= 1e9)) {
        char where[512];
        return err_set(CZ_CORRUPT, 0, "%s: lora_alpha %g or lora_dropout %g is out of range",
                       json_where(root, where, sizeof where), lora->alpha, lora->dropout);
    }
    TRY(read_alphas(json_get(root, "alpha_pattern"), lora));
    return read_names(json_get(root, "modules_to_save"), &lora->saved);
}

/* ---- adapter_model.safetensors --------------------------------------------------------------- */

static bool is_weight(const struct safetensors_info *t)
{
    enum cz_dtype dtype;
    return t->dtype == SAFETENSORS_F64 ||
           (safetensors_dtype_to_base(t->dtype, &dtype) &&
            (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16));
}

/* "[64, 4]" */
static const char *shape_text(const int64_t *shape, size_t ndim, char *text, size_t nbytes)
{
    size_t used = (size_t)snprintf(text, nbytes, "[");
    for (size_t d = 0; d < ndim && used < nbytes; d++)
        used += (size_t)snprintf(text + used, nbytes - used, d > 0 ? ", %lld" : "%lld",
                                 (long long)shape[d]);
    if (used < nbytes) snprintf(text + used, nbytes - used, "]");
    return text;
}

#define OTHER_BASE ": the adapter was trained on another base"

/* rank: the dimension that the adapter alone decides; -1: none. */
static cz_status check_shape(const struct safetensors_info *t, const int64_t *shape, size_t ndim,
                             int rank)
{
    char here[128], there[128];
    if (t->ndim == ndim && memcmp(t->shape, shape, ndim * sizeof *shape) == 0) return CZ_OK;
    const bool is_other = t->ndim == ndim && (rank < 0 || t->shape[rank] == shape[rank]);
    return err_set(CZ_CORRUPT, 0,
                   "%s: tensor %s has not the shape %s that its module needs, but %s%s", t->path,
                   t->name, shape_text(shape, ndim, here, sizeof here),
                   shape_text(t->shape, t->ndim, there, sizeof there), is_other ? OTHER_BASE : "");
}

static cz_status check_tensor(const struct safetensors_info *t, int64_t rows, int64_t cols,
                              int rank)
{
    if (!is_weight(t))
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: tensor %s is of type %s; weights are fp32, bf16, "
                       "fp16 or fp64",
                       t->path, t->name, safetensors_dtype_name(t->dtype));
    const int64_t wanted[] = {rows, cols};
    return check_shape(t, wanted, 2, rank);
}

/* A or B of a module; NULL: it has none. */
static const struct safetensors_info *find_part(const struct model_lora *lora,
                                                const struct lora_target *t, const char *part)
{
    char name[512];
    snprintf(name, sizeof name, LORA_PREFIX "%.*s.%s", t->name_len, t->name, part);
    return safetensors_find(lora->files, name);
}

/* DoRA's lengths: one for each of the map's outputs. */
static cz_status check_lengths(const struct model_lora *lora, const struct lora_target *t,
                               const struct safetensors_info *a)
{
    const struct safetensors_info *m = find_part(lora, t, "lora_magnitude_vector");
    if (!m)
        return err_set(CZ_CORRUPT, 0, "%s: %s has no lora_magnitude_vector, which use_dora needs",
                       a->path, a->name);
    if (!is_weight(m)) return check_tensor(m, 0, 0, -1);
    return check_shape(m, &t->n_out, 1, -1);
}

/* As PEFT looks for them: the first expression that a module's name ends in, behind a dot. */
static cz_status find_alphas(const struct model_lora *lora, const char *path,
                             struct lora_target *targets, size_t n)
{
    char whole[1024];
    uint64_t work = REGEX_WORK_MAX; /* of all expressions together */
    for (size_t k = 0; k < lora->n_alphas; k++) {
        struct regex *re = NULL;
        const int len = snprintf(whole, sizeof whole, "(.*\\.)?(%s)$", lora->alphas[k].pattern);
        cz_status st = len < 0 || (size_t)len >= sizeof whole
                           ? err_set(CZ_CORRUPT, 0, "an expression of more than 1000 bytes")
                           : regex_compile(whole, &work, &re);
        for (size_t i = 0; i < n && st == CZ_OK; i++) {
            struct lora_target *t = &targets[i];
            bool found = false;
            if (t->alpha != 0) continue;
            st = regex_match(re, t->name, (size_t)t->name_len, true, &work, &found);
            if (found) t->alpha = lora->alphas[k].alpha;
        }
        regex_free(re);
        if (st == CZ_OK) continue;
        char why[512];
        snprintf(why, sizeof why, "%s", cz_last_error());
        return err_set(st == CZ_INVALID ? CZ_CORRUPT : st, 0, "%s/%s: alpha_pattern: %s", path,
                       config_name, why);
    }
    return CZ_OK;
}

/* The rank of each target that the file has, from A's rows. *n_used: tensors that were. */
static cz_status find_branches(const struct model_lora *lora, struct lora_target *targets, size_t n,
                               size_t *n_used)
{
    for (size_t i = 0; i < n; i++) {
        struct lora_target *t = &targets[i];
        const struct safetensors_info *a = find_part(lora, t, "lora_A.weight");
        const struct safetensors_info *b = find_part(lora, t, "lora_B.weight");
        if (!a && !b) continue;
        if (!a || !b)
            return err_set(CZ_CORRUPT, 0,
                           "%s: %s has no partner: A and B of a module come "
                           "together",
                           (a ? a : b)->path, (a ? a : b)->name);
        if (a->ndim != 2 || a->shape[0] < 1 || a->shape[0] > LORA_RANK_MAX)
            return err_set(CZ_CORRUPT, 0, "%s: tensor %s has a rank outside 1…%lld", a->path,
                           a->name, (long long)LORA_RANK_MAX);
        t->rank = a->shape[0];
        TRY(check_tensor(a, t->rank, t->n_in, 0));
        TRY(check_tensor(b, t->n_out, t->rank, 1));
        *n_used += 2;
        if (!lora->dora) continue;
        TRY(check_lengths(lora, t, a));
        *n_used += 1;
    }
    return CZ_OK;
}

static bool shapes_equal(const struct param_info *p, const struct safetensors_info *t)
{
    return t->ndim == (size_t)p->ndim &&
           memcmp(t->shape, p->shape, t->ndim * sizeof *t->shape) == 0;
}

/* Where each parameter comes from, now that all are in the table. */
static cz_status bind_sources(const struct cz_model *m, struct model_lora *lora, size_t *n_used)
{
    const struct param_table *table = &m->params;
    lora->source = calloc(table->n_params, sizeof *lora->source);
    if (!lora->source) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        char name[512];
        const struct safetensors_info *t =
            safetensors_find(lora->files, lora_stored_name(p->name, name, sizeof name));
        if (!t) continue;
        char here[128], there[128];
        if (!shapes_equal(p, t))
            return err_set(
                CZ_CORRUPT, 0, "%s: tensor %s has another shape than the model's %s: %s, not %s%s",
                t->path, t->name, p->name, shape_text(t->shape, t->ndim, there, sizeof there),
                shape_text(p->shape, (size_t)p->ndim, here, sizeof here),
                t->ndim == (size_t)p->ndim ? OTHER_BASE : "");
        if (!is_weight(t)) return check_tensor(t, 0, 0, -1);
        lora->source[i] = t;
        *n_used += !p->is_adapter; /* those were counted */
    }
    return CZ_OK;
}

/* Why no module takes a tensor, as far as its name tells. */
static const char *why_unused(const struct cz_model *m, const struct safetensors_info *t)
{
    const char *name = t->name, *prefix = LORA_PREFIX;
    if (strncmp(name, prefix, strlen(prefix)) == 0) name += strlen(prefix);
    for (size_t i = 0; i < m->params.n_aliases; i++)
        if (strcmp(name, m->params.aliases[i].name) == 0)
            return ": the model ties it to its embedding, so it has none of its own";
    if (strstr(name, ".lora_embedding_")) return ": branches of embeddings are not supported";
    if (strstr(name, ".lora_A.") || strstr(name, ".lora_B."))
        return ": the model has no such linear map, or none that takes a branch (docs/lora.md)";
    return "";
}

/* A tensor that nothing here takes would be lost silently. */
static cz_status report_unused(const struct cz_model *m, const struct model_lora *lora)
{
    for (size_t k = 0; k < safetensors_count(lora->files); k++) {
        const struct safetensors_info *t = safetensors_at(lora->files, k);
        bool used = false;
        for (size_t i = 0; i < m->params.n_params && !used; i++) used = lora->source[i] == t;
        if (!used)
            return err_set(CZ_CORRUPT, 0,
                           "%s: tensor %s belongs to no module of %s that takes an "
                           "adapter%s",
                           t->path, t->name, m->name, why_unused(m, t));
    }
    return CZ_OK;
}

/* A module that was trained whole, and is not in the file, would be the base's. */
static cz_status check_saved(const struct cz_model *m, const struct model_lora *lora,
                             const char *dir)
{
    for (size_t i = 0; i < m->params.n_params; i++) {
        const struct param_info *p = &m->params.params[i];
        if (p->is_adapter || lora->source[i] || !lora_names_hold(&lora->saved, p->name)) continue;
        return err_set(CZ_CORRUPT, 0, "%s/%s: modules_to_save names %s, which is not in %s", dir,
                       config_name, p->name, tensors_name);
    }
    return CZ_OK;
}

static cz_status is_zero(const struct model_lora *lora, const struct safetensors_info *t, bool *out)
{
    float piece[1024];
    *out = true;
    for (uint64_t off = 0, n; off < t->numel && *out; off += n) {
        n = t->numel - off < CZ_ARRAY_LEN(piece) ? t->numel - off : CZ_ARRAY_LEN(piece);
        TRY(safetensors_read_f32(lora->files, t, off, (size_t)n, piece));
        for (size_t i = 0; i < n && *out; i++) *out = fpclassify(piece[i]) == FP_ZERO;
    }
    return CZ_OK;
}

/* A run that trained nothing writes B as it began. An adapter at rest that adds nothing is
 * reported; one to be trained may begin so. */
static cz_status warn_of_zeros(const struct model_lora *lora, const struct lora_target *targets,
                               size_t n, const char *dir)
{
    bool a_is_zero, b_is_zero;
    if (lora->trained || lora->dora) return CZ_OK; /* lengths of rows may have been trained */
    for (size_t i = 0; i < n; i++) {
        if (targets[i].rank == 0) continue;
        TRY(is_zero(lora, find_part(lora, &targets[i], "lora_A.weight"), &a_is_zero));
        TRY(is_zero(lora, find_part(lora, &targets[i], "lora_B.weight"), &b_is_zero));
        if (!a_is_zero && !b_is_zero) return CZ_OK;
    }
    log_line(LOG_WARN,
             "%s: A or B of every branch is all zeros: the branches change nothing. Was it "
             "trained?",
             dir);
    return CZ_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The config, and in one warning the keys of it that were not asked for. */
static cz_status open_config(const char *dir, struct model_lora *lora)
{
    struct unread unread = {.what = "keys of adapter_config.json"};
    struct json_doc *config;
    struct json_watch *watch = NULL;
    TRY(json_load_in(dir, config_name, JSON_STRICT, &config));
    cz_status st = json_watch_begin(config, &watch);
    if (st == CZ_OK) st = config_read(json_root(config), lora);
    if (st == CZ_OK) {
        json_watch_collect(watch, harmless, CZ_ARRAY_LEN(harmless), NULL, &unread);
        st = unread_report(&unread, dir);
    }
    json_watch_end(watch);
    json_free(config);
    return st;
}

static cz_status open_files(const char *dir, struct model_lora *lora)
{
    TRY(model_refuse_adapter_run(dir));
    if (!beneath_is_there(dir, config_name))
        return err_set(CZ_NOTFOUND, 0, "%s has no %s: it is no adapter's folder", dir, config_name);
    TRY(open_config(dir, lora));
    if (!beneath_is_there(dir, tensors_name) && beneath_is_there(dir, "adapter_model.bin"))
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: adapter_model.bin is not supported; PEFT writes %s with "
                       "safe_serialization=True",
                       dir, tensors_name);
    TRY(safetensors_open_in(dir, tensors_name, &lora->files));
    return safetensors_check_format(lora->files);
}

/* The file is fully checked before the model changes. */
cz_status cz_model_add_adapter(struct cz_model *m, const char *dir, bool trained)
{
    API_ENTRY;
    NEED(m, "model");
    NEED(dir, "dir");
    struct lora_target *targets = NULL;
    size_t n = 0, n_used = 0;
    cz_status st;
    TRY(lora_check_none(m));
    struct model_lora *lora = calloc(1, sizeof *lora), *made = lora;
    if (!lora) return err_set(CZ_NOMEM, 0, "no memory for an adapter");
    lora->trained = trained;
    TRY_GOTO(open_files(dir, lora), done);
    TRY_GOTO(lora_check_untied(m, &lora->saved), done);
    TRY_GOTO(lora_targets_list(m, &targets, &n), done);
    TRY_GOTO(find_branches(lora, targets, n, &n_used), done);
    if (n_used == 0) {
        st = err_set(CZ_CORRUPT, 0, "%s/%s: has no branch of any linear map of %s", dir,
                     tensors_name, m->name);
        goto done;
    }
    TRY_GOTO(find_alphas(lora, dir, targets, n), done);
    TRY_GOTO(warn_of_zeros(lora, targets, n, dir), done);
    lora = NULL;
    TRY_GOTO(lora_attach(m, made, targets, n), done);
    TRY_GOTO(bind_sources(m, made, &n_used), done);
    if (n_used != safetensors_count(made->files)) TRY_GOTO(report_unused(m, made), done);
    TRY_GOTO(check_saved(m, made, dir), done);
    st =
        lora_check_base(m, made, dir); /* reads the base: the head that comes here is not missing */
done:
    free(targets);
    lora_free(lora);
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_alpha(struct json_writer *w, double alpha)
{
    if (alpha == floor(alpha) && fabs(alpha) < 1e15)
        json_write_int(w, (int64_t)alpha);
    else
        json_write_double(w, alpha);
}

/* Whole names of modules, as PEFT writes them for all-linear: no reader can mistake them. */
static void put_targets(struct json_writer *w, const struct cz_model *m)
{
    json_write_key(w, "target_modules");
    json_begin_array(w);
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *layer = &m->layers[i];
        for (size_t k = 0; k < layer->n_branches; k++) {
            const char *name = m->params.params[layer->param_idx[layer->branches[k].w]].name;
            json_write_string_n(w, name, strlen(name) - strlen(".weight"));
        }
    }
    json_end_array(w);
}

/* Ranks, or alphas, that are not the adapter's own, under whole names. */
static void put_own(struct json_writer *w, const struct cz_model *m, bool is_alpha)
{
    json_write_key(w, is_alpha ? "alpha_pattern" : "rank_pattern");
    json_begin_object(w);
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *layer = &m->layers[i];
        for (size_t k = 0; k < layer->n_branches; k++) {
            const struct layer_branch *b = &layer->branches[k];
            const char *name = m->params.params[layer->param_idx[b->w]].name;
            const bool differs = b->alpha < m->lora->alpha || b->alpha > m->lora->alpha;
            if (is_alpha ? !differs : b->rank == m->lora->rank) continue;
            json_write_key_n(w, name, strlen(name) - strlen(".weight"));
            if (is_alpha)
                write_alpha(w, b->alpha);
            else
                json_write_int(w, b->rank);
        }
    }
    json_end_object(w);
}

static void put_saved(struct json_writer *w, const struct lora_names *saved)
{
    json_write_key(w, "modules_to_save");
    if (saved->n == 0) {
        json_write_null(w);
        return;
    }
    json_begin_array(w);
    for (size_t i = 0; i < saved->n; i++) json_write_string(w, saved->name[i]);
    json_end_array(w);
}

static bool is_in_out(const struct cz_model *m)
{
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].n_branches > 0 && m->layers[i].cls->flags & LAYER_MAPS_IN_OUT) return true;
    return false;
}

const char *lora_task_type(const struct cz_model *m)
{
    switch (m->task) {
    case CZ_TASK_CAUSAL_LM: return "CAUSAL_LM";
    case CZ_TASK_CLASSIFICATION: return "SEQ_CLS";
    case CZ_TASK_TOKEN_CLASSIFICATION: return "TOKEN_CLS";
    default: return NULL;
    }
}

cz_status model_export_adapter_config(const struct cz_model *m, const struct out_folder *in)
{
    if (!m->lora) return err_set(CZ_INVALID, 0, "%s has no adapter to export", m->name);
    const struct model_lora *lora = m->lora;
    struct json_writer w;
    char *text;
    size_t nbytes;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    put_own(&w, m, true);
    json_put_string(&w, "base_model_name_or_path", m->name);
    json_put_string(&w, "bias", "none");
    json_put_bool(&w, "fan_in_fan_out", is_in_out(m));
    json_put_bool(&w, "inference_mode", true);
    json_put_bool(&w, "init_lora_weights", true);
    json_write_key(&w, "lora_alpha");
    write_alpha(&w, lora->alpha);
    json_put_double(&w, "lora_dropout", lora->dropout);
    put_saved(&w, &lora->saved);
    json_put_string(&w, "peft_type", "LORA");
    json_put_int(&w, "r", lora->rank);
    put_own(&w, m, false);
    put_targets(&w, m);
    json_put_string(&w, "task_type", lora_task_type(m));
    json_put_bool(&w, "use_dora", lora->dora);
    json_put_bool(&w, "use_rslora", lora->rslora);
    json_end_object(&w);
    json_write_text(&w, "\n");
    TRY(json_writer_take(&w, &text, &nbytes));
    cz_status st = file_save_in(in, config_name, text, nbytes);
    free(text);
    if (st != CZ_OK || m->new_ends.n == 0) return st;
    return generation_write(m, in); /* what the adapter has learnt to end with */
}

static bool is_stored(const struct cz_model *m, const struct param_info *p)
{
    return p->is_adapter || lora_names_hold(&m->lora->saved, p->name);
}

/* With the base's hash, unless its files cannot be read any more: the adapter is worth more. */
static cz_status create(struct cz_model *m, const char *path, const struct safetensors_decl *decls,
                        size_t n, struct safetensors_writer **w)
{
    uint64_t hash = 0;
    const cz_status st = model_base_hash(m, &hash);
    if (st != CZ_OK) {
        LOGV(LOG_WARN, SUB_MODEL, "%s: does not say which weights it was trained on: %s", path,
             cz_last_error());
        err_clear();
    }
    return model_create_adapter(path, decls, n, st == CZ_OK ? &hash : NULL, w);
}

static cz_status tensors_write(struct cz_model *m, const char *dir, enum cz_dtype dtype,
                               model_fetch fetch, void *user)
{
    const struct param_table *t = &m->params;
    struct safetensors_writer *w = NULL;
    size_t n = 0, n_at = 0, names_nbytes = 0;
    cz_status st;
    for (size_t i = 0; i < t->n_params; i++)
        if (is_stored(m, &t->params[i]))
            names_nbytes += sizeof LORA_PREFIX + strlen(t->params[i].name);
    struct safetensors_decl *decls = calloc(t->n_params, sizeof *decls);
    float *piece = malloc(EXPORT_PIECE_NUMEL * sizeof *piece);
    char *names = malloc(names_nbytes + 1), *at = names;
    char *path = file_join(dir, tensors_name);
    if (!decls || !piece || !names || !path) {
        st = err_set(CZ_NOMEM, 0, "no memory to export an adapter");
        goto done;
    }
    for (size_t i = 0; i < t->n_params; i++) {
        const struct param_info *p = &t->params[i];
        if (!is_stored(m, p)) continue;
        decls[n++] = (struct safetensors_decl){at, safetensors_dtype_from_base(dtype), p->shape,
                                               (size_t)p->ndim};
        lora_stored_name(p->name, at, sizeof LORA_PREFIX + strlen(p->name));
        at += strlen(at) + 1;
    }
    TRY_GOTO(create(m, path, decls, n, &w), done);
    for (size_t i = 0; i < t->n_params; i++)
        if (is_stored(m, &t->params[i]))
            TRY_GOTO(export_tensor(w, n_at++, i, &t->params[i], dtype, fetch, user, piece), done);
    TRY_GOTO(safetensors_finish(w), done);
done:
    safetensors_writer_destroy(w);
    free(path);
    free(names);
    free(piece);
    free(decls);
    return st;
}

cz_status model_export_adapter(struct cz_model *m, const char *dir, enum cz_dtype dtype,
                               model_fetch fetch, void *user)
{
    if (!m->lora) return err_set(CZ_INVALID, 0, "%s has no adapter to export", m->name);
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_F16)
        return err_set(CZ_INVALID, 0, "adapters are exported as fp32, bf16 or fp16, not %s",
                       dtype_name(dtype));
    struct out_folder folder;
    TRY(out_folder_open(dir, &folder));
    cz_status st = tensors_write(m, dir, dtype, fetch, user);
    if (st == CZ_OK) st = model_export_adapter_config(m, &folder);
    out_folder_close(&folder);
    return st;
}
