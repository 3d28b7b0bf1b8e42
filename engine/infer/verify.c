/* Compares a model folder with recorded values (oracle.safetensors: inputs, logits, gradients of
 * another framework). Everything in the file is compared or refused by name: a tensor that is
 * silently left out would look verified. */
#include "engine/infer/verify.h"
#include "base/status.h"
#include "model/model.h"

#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include <czero/infer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct verifier {
    const char *device;
    struct cz_model *model;
    struct safetensors *oracle;
    struct cz_infer *infer;
    struct cz_batch batch;
    int32_t *ids, *labels, *types, *positions; /* behind batch */
    float *targets;
    uint8_t *key_mask;
    int64_t logits_shape[3];
    size_t logits_ndim, n_logits;
    float *logits;
    int64_t hidden_shape[3];
    size_t n_hidden;
    float *hidden; /* encoders: the last hidden state */
    float loss;
};

static void verifier_free(struct verifier *v)
{
    cz_infer_destroy(v->infer);
    cz_model_destroy(v->model);
    safetensors_close(v->oracle);
    free(v->ids);
    free(v->labels);
    free(v->targets);
    free(v->types);
    free(v->positions);
    free(v->key_mask);
    free(v->logits);
    free(v->hidden);
}

/* ---- in.* ----------------------------------------------------------------------------------- */

/* Integers of any width as int32. */
static cz_status read_ints(const struct verifier *v, const struct safetensors_info *t,
                           int32_t **out)
{
    enum cz_dtype dtype = DTYPE_F32;
    if (!safetensors_dtype_to_base(t->dtype, &dtype) || dtype < DTYPE_I64)
        return err_set(CZ_UNSUPPORTED, 0, "%s: %s is %s, expected integers", t->path, t->name,
                       safetensors_dtype_name(t->dtype));
    const size_t n = (size_t)t->numel, width = dtype_size(dtype);
    unsigned char *raw = malloc(n * width + 1);
    int32_t *values = malloc(n * sizeof *values + 1);
    cz_status st = raw && values ? safetensors_read(v->oracle, t, 0, n, raw)
                                 : err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
    for (size_t i = 0; i < n && st == CZ_OK; i++) {
        int64_t x = 0;
        memcpy(&x, raw + i * width, width); /* little endian, as the file */
        const bool is_signed =
            dtype == DTYPE_I64 || dtype == DTYPE_I32 || dtype == DTYPE_I16 || dtype == DTYPE_I8;
        const unsigned unused = 64 - 8 * (unsigned)width;
        if (is_signed) x = (int64_t)((uint64_t)x << unused) >> unused;
        if (x < INT32_MIN || x > INT32_MAX)
            st = err_set(CZ_INVALID, 0, "%s: %s contains %lld, which is not an id", t->path,
                         t->name, (long long)x);
        values[i] = (int32_t)x;
    }
    free(raw);
    if (st != CZ_OK) {
        free(values);
        return st;
    }
    *out = values;
    return CZ_OK;
}

static bool is_batch_shaped(const struct verifier *v, const struct safetensors_info *t)
{
    return t->ndim == 2 && t->shape[0] == v->batch.B && t->shape[1] == v->batch.T;
}

/* Both (B) and (B,1) are in use. */
static bool is_a_class_per_row(const struct verifier *v, const struct safetensors_info *t)
{
    return (t->ndim == 1 || (t->ndim == 2 && t->shape[1] == 1)) && t->shape[0] == v->batch.B;
}

/* Logits say which tokens were replaced. */
static bool detects(const struct verifier *v)
{
    return cz_model_labels(v->model) == CZ_LABELS_REPLACED;
}

/* Hugging Face's discriminators leave padding out by the mask, not by labels. */
static void ignore_padding(struct verifier *v)
{
    const int64_t n = v->batch.B * v->batch.T;
    for (int64_t i = 0; v->labels && v->key_mask && i < n; i++)
        if (!v->key_mask[i]) v->labels[i] = CZ_IGNORE_LABEL;
}

/* A number per row (B), or (B,classes). */
static cz_status read_targets(struct verifier *v, const struct safetensors_info *t)
{
    const int64_t K = model_n_targets(v->model), B = v->batch.B;
    const bool fits = t->ndim >= 1 && t->ndim <= 2 && t->shape[0] == B &&
                      (t->ndim == 1 ? K == 1 : t->shape[1] == K);
    if (!fits)
        return err_set(CZ_CORRUPT, 0, "%s: in.labels must be (%lld, %lld)", t->path, (long long)B,
                       (long long)K);
    v->targets = malloc((size_t)(B * K) * sizeof *v->targets);
    if (!v->targets) return err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
    v->batch.targets = v->targets;
    return safetensors_read_f32(v->oracle, t, 0, (size_t)(B * K), v->targets);
}

/* Hugging Face's labels stand under their own token: a language model's target of position t is
 * labels[t + 1], a masked one's is labels[t]. */
static cz_status read_labels(struct verifier *v, const struct safetensors_info *t)
{
    const int64_t B = v->batch.B, T = v->batch.T;
    const bool classes = cz_model_labels(v->model) == CZ_LABELS_CLASS;
    if (model_n_targets(v->model) > 0) return read_targets(v, t);
    if (classes ? !is_a_class_per_row(v, t) : !is_batch_shaped(v, t))
        return err_set(CZ_CORRUPT, 0, "%s: in.labels must be (%lld%s", t->path, (long long)B,
                       classes ? ")" : ", T) as in.input_ids");
    TRY(read_ints(v, t, &v->labels));
    v->batch.labels = v->labels;
    if (cz_model_labels(v->model) != CZ_LABELS_NEXT) return CZ_OK;
    for (int64_t b = 0; b < B; b++) {
        int32_t *row = v->labels + b * T;
        memmove(row, row + 1, (size_t)(T - 1) * sizeof *row);
        row[T - 1] = CZ_IGNORE_LABEL;
    }
    return CZ_OK;
}

/* An input that the model does not take is refused rather than ignored. */
static cz_status read_input(struct verifier *v, const struct safetensors_info *t)
{
    const char *what = t->name + strlen("in.");
    const bool is_positions = strcmp(what, "position_ids") == 0;
    const bool is_row = t->ndim == 2 && t->shape[0] == 1 && t->shape[1] == v->batch.T;
    if (strcmp(what, "labels") == 0) return read_labels(v, t);
    if (strcmp(what, "input_ids") != 0 && strcmp(what, "attention_mask") != 0 &&
        strcmp(what, "token_type_ids") != 0 && !is_positions)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: %s is not a known input: input_ids, labels, attention_mask, "
                       "token_type_ids, position_ids",
                       t->path, t->name);
    if (!is_batch_shaped(v, t) && !(is_positions && is_row))
        return err_set(CZ_CORRUPT, 0, "%s: %s has another shape than in.input_ids", t->path,
                       t->name);
    /* One row of positions stands for every row. */
    if (is_positions) {
        const size_t B = (size_t)v->batch.B, T = (size_t)v->batch.T;
        TRY(read_ints(v, t, &v->positions));
        if (t->numel < B * T) {
            int32_t *all = malloc(B * T * sizeof *all);
            if (!all) return err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
            for (size_t b = 0; b < B; b++) memcpy(all + b * T, v->positions, T * sizeof *all);
            free(v->positions);
            v->positions = all;
        }
        v->batch.positions = v->positions;
        return CZ_OK;
    }
    /* The file stores integers, the batch takes bytes. */
    if (strcmp(what, "attention_mask") == 0) {
        int32_t *ints;
        TRY(read_ints(v, t, &ints));
        const size_t n = (size_t)t->numel;
        v->key_mask = malloc(n + 1);
        for (size_t i = 0; v->key_mask && i < n; i++) v->key_mask[i] = ints[i] != 0;
        free(ints);
        if (!v->key_mask) return err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
        v->batch.key_mask = v->key_mask;
        return CZ_OK;
    }
    if (strcmp(what, "input_ids") == 0) return CZ_OK; /* read first */
    TRY(read_ints(v, t, &v->types));
    v->batch.types = v->types;
    return CZ_OK;
}

/* The shape of the ids is the batch's; every other input must match it. */
static cz_status read_batch(struct verifier *v, const char *path)
{
    const struct safetensors_info *ids = safetensors_find(v->oracle, "in.input_ids");
    if (!ids) return err_set(CZ_NOTFOUND, 0, "%s: there is no in.input_ids", path);
    if (ids->ndim != 2 || ids->numel == 0)
        return err_set(CZ_CORRUPT, 0, "%s: in.input_ids must be (batch, sequence)", path);
    v->batch.size = sizeof v->batch;
    v->batch.B = ids->shape[0];
    v->batch.T = ids->shape[1];
    TRY(read_ints(v, ids, &v->ids));
    v->batch.ids = v->ids;
    for (size_t i = 0; i < safetensors_count(v->oracle); i++) {
        const struct safetensors_info *t = safetensors_at(v->oracle, i);
        if (strncmp(t->name, "in.", 3) == 0) TRY(read_input(v, t));
    }
    if (detects(v)) ignore_padding(v);
    return CZ_OK;
}

/* ---- our values ----------------------------------------------------------------------------- */

/* What a decoder's head reads is not normalised yet, and so not what others call its last hidden
 * state. */
static bool is_encoder(const struct verifier *v)
{
    return !model_head_norms(v->model);
}

static bool has_labels(const struct verifier *v)
{
    return v->labels || v->targets;
}

/* Gradients are wanted when the file has labels. */
static cz_status run(struct verifier *v)
{
    const struct cz_infer_options options = {.size = sizeof options,
                                             .B = v->batch.B,
                                             .T = v->batch.T,
                                             .dtype = DTYPE_F32,
                                             .gradients = has_labels(v),
                                             .device = v->device};
    TRY(cz_infer_create(v->model, &options, &v->infer));
    /* A classifier has a row per sample (B,classes) or per token (B,T,classes), a language model
     * one per token (B,T,V), a discriminator one logit per token (B,T). */
    const int64_t n_classes = cz_model_n_classes(v->model);
    const bool classes =
        cz_model_labels(v->model) == CZ_LABELS_CLASS || model_n_targets(v->model) > 0;
    v->logits_ndim = classes || detects(v) ? 2 : 3;
    v->logits_shape[0] = v->batch.B;
    v->logits_shape[1] = classes ? n_classes : v->batch.T;
    v->logits_shape[2] = classes || detects(v) ? 1
                         : n_classes > 0       ? n_classes
                                               : cz_model_vocab_size(v->model);
    v->n_logits = (size_t)(v->logits_shape[0] * v->logits_shape[1] * v->logits_shape[2]);
    v->logits = malloc(v->n_logits * sizeof *v->logits + 1);
    if (!v->logits) return err_set(CZ_NOMEM, 0, "no memory for %zu logits", v->n_logits);
    TRY(cz_infer_forward(v->infer, &v->batch, NULL, v->logits));
    if (is_encoder(v)) {
        /* Hidden states of all positions, (B,T,C). */
        v->hidden_shape[0] = v->batch.B;
        v->hidden_shape[1] = v->batch.T;
        v->hidden_shape[2] = cz_model_hidden_size(v->model);
        v->n_hidden = (size_t)(v->hidden_shape[0] * v->hidden_shape[1] * v->hidden_shape[2]);
        v->hidden = malloc(v->n_hidden * sizeof *v->hidden + 1);
        if (!v->hidden) return err_set(CZ_NOMEM, 0, "no memory for %zu values", v->n_hidden);
        TRY(cz_infer_hidden(v->infer, &v->batch, v->hidden));
    }
    return has_labels(v) ? cz_infer_gradients(v->infer, &v->batch, &v->loss) : CZ_OK;
}

/* Positions that no key is visible to (padding in front, under a causal mask), or all padding where
 * a family computes that in another way: implementations differ in what they call the softmax of
 * nothing, and nothing reads the result. Theirs is taken. */
static void forgive_unseeing(const struct verifier *v, const float *theirs)
{
    const int64_t B = v->batch.B, T = v->batch.T;
    const bool all = !model_padding_agrees(v->model);
    if (!v->key_mask || v->logits_ndim != 3 || (is_encoder(v) && !all)) return;
    const size_t V = (size_t)v->logits_shape[2];
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            if (v->key_mask[b * T + t] && !all) break;
            if (v->key_mask[b * T + t]) continue;
            memcpy(v->logits + (size_t)(b * T + t) * V, theirs + (size_t)(b * T + t) * V,
                   V * sizeof *theirs);
        }
}

/* Our gradient of the parameter that t is named after. */
static cz_status find_gradient(const struct verifier *v, const struct safetensors_info *t,
                               const float **ours, size_t *numel)
{
    size_t idx = 0;
    if (param_table_find(model_params(v->model), t->name + strlen("grad."), &idx) != CZ_OK)
        return err_prefix("%s: %s", t->path, t->name);
    *ours = cz_infer_gradient(v->infer, idx);
    *numel = model_params(v->model)->params[idx].numel;
    return CZ_OK;
}

/* Our tensor of that name; an error when there is none, or none without labels. */
static cz_status find_ours(const struct verifier *v, const struct safetensors_info *t,
                           const float **ours, size_t *numel)
{
    *ours = NULL;
    *numel = 0;
    if (strcmp(t->name, "out.logits") == 0) {
        *ours = v->logits;
        *numel = v->n_logits;
    } else if (strcmp(t->name, "out.last_hidden_state") == 0) {
        if (!v->hidden)
            return err_set(CZ_UNSUPPORTED, 0, "%s: %s is compared for encoders only", t->path,
                           t->name);
        *ours = v->hidden;
        *numel = v->n_hidden;
    } else if (strcmp(t->name, "out.loss") == 0) {
        *ours = has_labels(v) ? &v->loss : NULL;
        *numel = 1;
    } else if (strncmp(t->name, "grad.", 5) == 0) {
        TRY(find_gradient(v, t, ours, numel));
    } else {
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: %s is not a known result: in.*, out.logits, out.last_hidden_state, "
                       "out.loss, grad.<parameter>",
                       t->path, t->name);
    }
    if (!*ours)
        return err_set(CZ_INVALID, 0, "%s: %s needs in.labels, which is missing", t->path, t->name);
    return CZ_OK;
}

/* ---- comparing ------------------------------------------------------------------------------ */

static double largest_of(const float *values, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)values[i]) <= largest))
            largest = fabs((double)values[i]); /* NaN stays */
    return largest;
}

/* The largest element of all recorded gradients. */
static cz_status largest_gradient(const struct verifier *v, double *largest)
{
    *largest = 0;
    for (size_t i = 0; i < safetensors_count(v->oracle); i++) {
        const struct safetensors_info *t = safetensors_at(v->oracle, i);
        if (strncmp(t->name, "grad.", 5) != 0) continue;
        float *values = malloc((size_t)t->numel * sizeof *values + 1);
        if (!values) return err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
        cz_status st = safetensors_read_f32(v->oracle, t, 0, (size_t)t->numel, values);
        if (st == CZ_OK) *largest = fmax(*largest, largest_of(values, (size_t)t->numel));
        free(values);
        TRY(st);
    }
    return CZ_OK;
}

/* The error relative to the tensor's largest element: relative errors of small elements say nothing
 * about a sum's rounding. */
static struct verify_row compare(const char *name, const float *ours, const float *theirs, size_t n)
{
    struct verify_row row = {.name = name, .numel = (int64_t)n};
    double largest = 1e-6, worst = 0;
    for (size_t i = 0; i < n; i++)
        if (fabs((double)theirs[i]) > largest) largest = fabs((double)theirs[i]);
    for (size_t i = 0; i < n; i++) {
        if (f32_bits(ours[i]) == f32_bits(theirs[i])) continue; /* two infinities included */
        double error = fabs((double)ours[i] - (double)theirs[i]);
        if (error <= worst) continue;
        row.worst_idx = (int64_t)i;
        worst = error;
        if (isnan(error)) break;
    }
    row.error = worst / largest;
    return row;
}

/* All rows are reported, also after one that differs. */
static cz_status compare_all(const struct verifier *v, verify_report report, void *user)
{
    size_t n_compared = 0;
    double gradient;
    TRY(largest_gradient(v, &gradient));
    for (size_t i = 0; i < safetensors_count(v->oracle); i++) {
        const struct safetensors_info *t = safetensors_at(v->oracle, i);
        const float *ours;
        size_t numel;
        if (strncmp(t->name, "in.", 3) == 0) continue;
        TRY(find_ours(v, t, &ours, &numel));
        if (t->numel != numel)
            return err_set(CZ_CORRUPT, 0, "%s: %s has %llu elements, the model gives %zu", t->path,
                           t->name, (unsigned long long)t->numel, numel);
        float *theirs = malloc(numel * sizeof *theirs + 1);
        if (!theirs) return err_set(CZ_NOMEM, 0, "no memory for %s", t->name);
        cz_status st = safetensors_read_f32(v->oracle, t, 0, numel, theirs);
        if (st == CZ_OK && ours == v->logits) forgive_unseeing(v, theirs);
        if (st == CZ_OK) {
            struct verify_row row = compare(t->name, ours, theirs, numel);
            row.is_zero = strncmp(t->name, "grad.", 5) == 0 &&
                          largest_of(theirs, numel) <= VERIFY_NOISE * gradient &&
                          largest_of(ours, numel) <= VERIFY_NOISE * gradient;
            if (row.is_zero) row.error = 0;
            report(user, &row);
        }
        free(theirs);
        TRY(st);
        n_compared++;
    }
    if (n_compared == 0)
        return err_set(CZ_INVALID, 0, "the oracle contains no tensor to compare with");
    return CZ_OK;
}

/* ---- --dump --------------------------------------------------------------------------------- */

/* One tensor of the dump. */
struct dump_item {
    char *name;
    const float *values;
    size_t numel;
};

static cz_status dump_write(const char *path, const struct safetensors_decl *decls,
                            const struct dump_item *items, size_t n)
{
    struct safetensors_writer *w;
    TRY(safetensors_create(path, decls, n, NULL, 0, &w));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < n && st == CZ_OK; i++)
        st = safetensors_write(w, i, 0, items[i].numel, items[i].values);
    if (st == CZ_OK) st = safetensors_finish(w);
    safetensors_writer_destroy(w);
    return st;
}

/* In the form of the oracle, so that two dumps can be compared with the same tool. */
static size_t dump_list(const struct verifier *v, struct safetensors_decl *decls,
                        struct dump_item *items)
{
    static const int64_t one[] = {1};
    const struct param_table *t = model_params(v->model);
    size_t n = 0;
    decls[n] =
        (struct safetensors_decl){"out.logits", SAFETENSORS_F32, v->logits_shape, v->logits_ndim};
    items[n++] = (struct dump_item){NULL, v->logits, v->n_logits};
    if (v->hidden) {
        decls[n] =
            (struct safetensors_decl){"out.last_hidden_state", SAFETENSORS_F32, v->hidden_shape, 3};
        items[n++] = (struct dump_item){NULL, v->hidden, v->n_hidden};
    }
    if (!has_labels(v)) return n;
    decls[n] = (struct safetensors_decl){"out.loss", SAFETENSORS_F32, one, 1};
    items[n++] = (struct dump_item){NULL, &v->loss, 1};
    for (size_t i = 0; i < t->n_params; i++) {
        const struct param_info *p = &t->params[i];
        const float *gradient = cz_infer_gradient(v->infer, i);
        if (!gradient) continue;
        char *name = malloc(strlen("grad.") + strlen(p->name) + 1);
        if (!name) break;
        memcpy(name, "grad.", 5);
        strcpy(name + 5, p->name);
        decls[n] = (struct safetensors_decl){name, SAFETENSORS_F32, p->shape, (size_t)p->ndim};
        items[n++] = (struct dump_item){name, gradient, p->numel};
    }
    return n;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static cz_status verify(struct verifier *v, const char *dir, const char *oracle_path,
                        const char *dump_path, verify_report report, void *user)
{
    v->model = cz_model_from_hf(dir);
    if (!v->model) return cz_last_status();
    if (beneath_is_there(dir, "adapter_config.json"))
        TRY(cz_model_add_adapter(v->model, dir, true));
    TRY(safetensors_open_in(dir, "oracle.safetensors", &v->oracle));
    TRY(read_batch(v, oracle_path));
    /* Space for the batch, where the model's positions end nowhere (rotary ones). */
    int64_t reach = v->batch.T;
    for (int64_t i = 0; v->positions && i < v->batch.B * v->batch.T; i++)
        if (v->positions[i] >= reach) reach = v->positions[i] + 1;
    if (reach > model_n_positions(v->model)) TRY(cz_model_set_shape(v->model, reach));
    TRY(run(v));
    /* Buffers for the largest possible file: every gradient, loss, logits and hidden states. */
    if (dump_path) {
        const size_t n_max = model_params(v->model)->n_params + 3;
        struct safetensors_decl *decls = calloc(n_max, sizeof *decls);
        struct dump_item *items = calloc(n_max, sizeof *items);
        cz_status st = err_set(CZ_NOMEM, 0, "no memory to write %s", dump_path);
        if (decls && items) st = dump_write(dump_path, decls, items, dump_list(v, decls, items));
        for (size_t i = 0; items && i < n_max; i++) free(items[i].name);
        free(items);
        free(decls);
        TRY(st);
    }
    return compare_all(v, report, user);
}

cz_status verify_run_on(const char *device, const char *dir, const char *dump_path,
                        verify_report report, void *user)
{
    struct verifier v = {.device = device};
    char *oracle_path = file_join(dir, "oracle.safetensors");
    if (!oracle_path) return err_set(CZ_NOMEM, 0, "no memory for a path");
    cz_status st = verify(&v, dir, oracle_path, dump_path, report, user);
    verifier_free(&v);
    free(oracle_path);
    return st;
}

cz_status verify_run(const char *dir, const char *dump_path, verify_report report, void *user)
{
    return verify_run_on(NULL, dir, dump_path, report, user);
}
