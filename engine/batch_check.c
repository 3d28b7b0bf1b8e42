/* What a batch may hold: ids, types, positions and labels are indices into tables, so one that is
 * outside would read or write foreign memory in a kernel. Checked once here, with the row and
 * position that a caller can look up; kernels do not check. */
#include "engine/batch_check.h"

#include <math.h>

/* The first of n values outside [0, bound) and not `other`; n when all are inside. */
static size_t first_outside(const int32_t *v, size_t n, int64_t bound, int32_t other)
{
    for (size_t i = 0; i < n; i++)
        if ((v[i] < 0 || v[i] >= bound) && v[i] != other) return i;
    return n;
}

static cz_status outside(const struct cz_batch *batch, const char *what, size_t idx, int32_t value,
                         const char *of, int64_t bound)
{
    return err_set(CZ_INVALID, 0, "%s %d in row %lld at position %lld is outside the %s of %lld",
                   what, value, (long long)idx / (long long)batch->T,
                   (long long)idx % (long long)batch->T, of, (long long)bound);
}

/* Types and positions are optional; a model without them (S = 0) ignores types. */
static cz_status check_ids(const struct cz_model *model, const struct cz_batch *batch, size_t n)
{
    const int64_t V = cz_model_vocab_size(model);
    if (!batch->ids) return err_set(CZ_INVALID, 0, "the batch has no token ids");
    size_t bad = V > 0 ? first_outside(batch->ids, n, V, 0) : n;
    if (bad < n) return outside(batch, "token", bad, batch->ids[bad], "vocabulary", V);
    const int64_t S = cz_model_n_types(model);
    bad = batch->types && S > 0 ? first_outside(batch->types, n, S, 0) : n;
    if (bad < n) return outside(batch, "token type", bad, batch->types[bad], "token types", S);
    for (size_t i = 1; batch->documents && i < n; i++)
        if (i % (size_t)batch->T != 0 && batch->documents[i] < batch->documents[i - 1])
            return err_set(CZ_INVALID, 0,
                           "document %d in row %lld at position %lld follows document %d: numbers "
                           "do not decrease in a row",
                           batch->documents[i], (long long)i / (long long)batch->T,
                           (long long)i % (long long)batch->T, batch->documents[i - 1]);
    if (!batch->positions) return CZ_OK;
    const int64_t P = model_n_positions(model);
    bad = first_outside(batch->positions, n, P, 0);
    if (bad < n) return outside(batch, "position", bad, batch->positions[bad], "context", P);
    return CZ_OK;
}

/* A row has all its targets, or NaN in front of them. */
static cz_status check_targets(const struct cz_model *model, const struct cz_batch *batch)
{
    const int64_t K = model_n_targets(model);
    const bool is_share = cz_model_labels(model) == CZ_LABELS_MULTI;
    if (!batch->targets)
        return err_set(CZ_INVALID, 0,
                       "the batch has no targets, which this model's loss is made of");
    for (int64_t b = 0; b < batch->B; b++)
        for (int64_t k = 0; k < K && !isnan(batch->targets[b * K]); k++) {
            const float t = batch->targets[b * K + k];
            if (isfinite(t) && (!is_share || (t >= 0 && t <= 1))) continue;
            return err_set(CZ_INVALID, 0, "target %lld of row %lld is %g: %s is needed",
                           (long long)k, (long long)b, (double)t,
                           is_share ? "a number from 0 to 1" : "a finite number");
        }
    return CZ_OK;
}

/* CZ_IGNORE_LABEL marks rows without a label. A classifier of rows has one label per row, other
 * models have one per token. */
static cz_status check_labels(const struct cz_model *model, const struct cz_batch *batch, size_t n)
{
    const int64_t V = cz_model_vocab_size(model), n_classes = cz_model_n_classes(model);
    if (model_n_targets(model) > 0) return check_targets(model, batch);
    if (!batch->labels) return err_set(CZ_INVALID, 0, "the batch has no labels");
    if (cz_model_labels(model) == CZ_LABELS_TOKEN_CLASS) {
        const size_t other = first_outside(batch->labels, n, n_classes, CZ_IGNORE_LABEL);
        return other < n
                   ? outside(batch, "label", other, batch->labels[other], "classes", n_classes)
                   : CZ_OK;
    }
    if (n_classes > 0) {
        const size_t B = (size_t)batch->B;
        size_t bad = first_outside(batch->labels, B, n_classes, CZ_IGNORE_LABEL);
        if (bad == B) return CZ_OK;
        return err_set(CZ_INVALID, 0, "label %d of row %zu is outside the %lld classes",
                       batch->labels[bad], bad, (long long)n_classes);
    }
    if (cz_model_labels(model) == CZ_LABELS_REPLACED) {
        const size_t other = first_outside(batch->labels, n, 2, CZ_IGNORE_LABEL);
        return other < n
                   ? outside(batch, "label", other, batch->labels[other], "kinds of tokens", 2)
                   : CZ_OK;
    }
    size_t bad = V > 0 ? first_outside(batch->labels, n, V, CZ_IGNORE_LABEL) : n;
    return bad < n ? outside(batch, "label", bad, batch->labels[bad], "vocabulary", V) : CZ_OK;
}

/* A classifier of rows reads the first position. Where transformers computes another value there
 * for padding than this model does, a row that begins with padding is refused. */
static cz_status check_mask(const struct cz_model *model, const struct cz_batch *batch)
{
    if (!batch->key_mask || !model_is_by_row(model) || model_padding_agrees(model)) return CZ_OK;
    for (int64_t b = 0; b < batch->B; b++) {
        const uint8_t *row = batch->key_mask + b * batch->T;
        int64_t n_hidden = 0;
        while (n_hidden < batch->T && !row[n_hidden]) n_hidden++;
        if (n_hidden == 0 || n_hidden == batch->T) continue;
        return err_set(CZ_UNSUPPORTED, 0,
                       "row %lld begins with padding, and %s classifies the first position: pad "
                       "rows at their ends",
                       (long long)b, cz_model_name(model));
    }
    return CZ_OK;
}

/* One that is not finite would make the loss NaN, and the message would blame a parameter. */
static cz_status check_weights(const struct cz_model *model, const struct cz_batch *batch, size_t n)
{
    const bool by_row = model_is_by_row(model);
    const size_t n_weights = by_row ? (size_t)batch->B : n, T = by_row ? 1 : (size_t)batch->T;
    for (size_t i = 0; batch->loss_weights && i < n_weights; i++) {
        if (isfinite(batch->loss_weights[i])) continue;
        return err_set(CZ_INVALID, 0, "loss weight %g in row %zu at position %zu is not finite",
                       (double)batch->loss_weights[i], i / T, i % T);
    }
    return CZ_OK;
}

cz_status batch_check(const struct cz_model *model, const struct cz_batch *batch,
                      bool labels_wanted)
{
    if (batch->B < 1 || batch->T < 1 || batch->T > cz_model_t_max(model))
        return err_set(CZ_INVALID, 0, "a batch of %lld×%lld tokens: %s takes 1 to %lld per row",
                       (long long)batch->B, (long long)batch->T, cz_model_name(model),
                       (long long)cz_model_t_max(model));
    const size_t n = (size_t)batch->B * (size_t)batch->T;
    TRY(check_ids(model, batch, n));
    TRY(check_mask(model, batch));
    TRY(check_weights(model, batch, n));
    return labels_wanted || batch->labels || batch->targets ? check_labels(model, batch, n) : CZ_OK;
}

bool batch_has_labels(const struct cz_model *model, const struct cz_batch *batch)
{
    const int64_t K = model_n_targets(model);
    const size_t n = model_n_labels(model, batch->B, batch->T);
    for (int64_t b = 0; K > 0 && b < batch->B; b++) /* its weights are per row */
        if (!isnan(batch->targets[b * K]) && (!batch->loss_weights || batch->loss_weights[b] != 0))
            return true;
    for (size_t i = 0; i < n; i++)
        if (batch->labels[i] != CZ_IGNORE_LABEL &&
            (!batch->loss_weights || batch->loss_weights[i] != 0))
            return true;
    return false;
}
