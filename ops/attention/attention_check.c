/* What every row of attention, on the host and on a GPU, asks of its arguments. Sizes are limited,
 * so that products of two stay inside int64_t. */
#include "ops/attention/attention_impl.h"

#include <math.h>
#include <string.h>

static cz_status check_shape(const struct attention_args *a)
{
    const int64_t sizes[] = {a->B, a->Tq, a->Tk, a->H, a->G, a->D};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++)
        if (sizes[i] < 0 || sizes[i] > (int64_t)1 << 31)
            return err_set(CZ_INVALID, 0,
                           "attention: B %lld, Tq %lld, Tk %lld, H %lld, G %lld, D %lld: each must "
                           "be 0 to 2^31",
                           (long long)a->B, (long long)a->Tq, (long long)a->Tk, (long long)a->H,
                           (long long)a->G, (long long)a->D);
    if (a->G == 0 || a->H % a->G != 0 || a->D == 0)
        return err_set(CZ_INVALID, 0,
                       "attention: %lld key heads of width %lld cannot serve %lld query heads",
                       (long long)a->G, (long long)a->D, (long long)a->H);
    if (!(a->dropout_p >= 0 && a->dropout_p < 1))
        return err_set(CZ_INVALID, 0, "attention: dropout_p %g is outside [0, 1)",
                       (double)a->dropout_p);
    return ops_check_dtype("attention", a->dtype);
}

static cz_status check_options(const struct attention_args *a)
{
    if (a->window < 0 || a->window > (int64_t)1 << 31)
        return err_set(CZ_INVALID, 0, "attention: a window of %lld keys is not 0 to 2^31",
                       (long long)a->window);
    if (!(a->softcap >= 0 && a->softcap < INFINITY))
        return err_set(CZ_INVALID, 0, "attention: softcap %g is not a positive number, nor 0",
                       (double)a->softcap);
    if (a->query_documents &&
        (!a->documents || a->causal || a->window > 0 || a->positions.n_buckets > 0))
        return err_set(CZ_INVALID, 0,
                       "attention: documents of queries go with documents of keys, and with "
                       "neither causal attention, a window nor positions");
    if (a->documents && !a->query_documents && a->Tq != a->Tk)
        return err_set(CZ_INVALID, 0,
                       "attention: documents are of positions that are queries and keys, not of "
                       "%lld queries and %lld keys",
                       (long long)a->Tq, (long long)a->Tk);
    return CZ_OK;
}

static cz_status check_strides(const struct attention_args *a)
{
    if (a->q_stride >= a->H * a->D && a->out_stride >= a->H * a->D && a->k_stride >= a->G * a->D &&
        a->v_stride >= a->G * a->D)
        return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "attention: strides %lld (q), %lld (k), %lld (v), %lld (out) are less than %lld "
                   "query or %lld key heads of width %lld",
                   (long long)a->q_stride, (long long)a->k_stride, (long long)a->v_stride,
                   (long long)a->out_stride, (long long)a->H, (long long)a->G, (long long)a->D);
}

/* Every bucket must be one of them, and its keys neighbours: what a GPU's threads add to a bucket
 * relies on it. */
static cz_status check_buckets(const struct attention_args *a)
{
    const struct attention_positions *p = &a->positions;
    uint64_t met[(1 << 16) / 64];
    memset(met, 0, (size_t)(p->n_buckets + 63) / 64 * sizeof *met);
    for (int64_t i = 0, before = -1; i < a->Tq + a->Tk - 1; i++) {
        const int64_t r = (int64_t)p->buckets[i] - p->first_bucket;
        if (r < 0 || r >= p->n_buckets)
            return err_set(CZ_INVALID, 0, "attention: buckets[%lld] is %d, not one of %lld from %d",
                           (long long)i, p->buckets[i], (long long)p->n_buckets, p->first_bucket);
        if (r != before && met[r / 64] >> r % 64 & 1)
            return err_set(CZ_INVALID, 0,
                           "attention: bucket %d comes again at buckets[%lld], behind others",
                           p->buckets[i], (long long)i);
        met[r / 64] |= (uint64_t)1 << r % 64;
        before = r;
    }
    return CZ_OK;
}

static cz_status check_positions(const struct attention_args *a, bool backward)
{
    const struct attention_positions *p = &a->positions;
    if (p->n_buckets == 0) return CZ_OK;
    if (p->n_buckets < 0 || p->n_buckets >= 1 << 16 || !p->buckets)
        return err_set(CZ_INVALID, 0,
                       "attention: positions need 1 to 65535 buckets, not %lld, and their numbers",
                       (long long)p->n_buckets);
    if (a->G != a->H)
        return err_set(CZ_INVALID, 0,
                       "attention: positions need as many key heads as query heads, not %lld and "
                       "%lld",
                       (long long)a->G, (long long)a->H);
    if (!isfinite(p->scale))
        return err_set(CZ_INVALID, 0, "attention: positions.scale %g is no number",
                       (double)p->scale);
    if (backward && ((p->q_scores && !p->dq_scores) || (p->k_scores && !p->dk_scores)))
        return err_set(CZ_INVALID, 0, "attention: backward needs the gradients of position scores");
    return a->Tk > 0 ? check_buckets(a) : CZ_OK;
}

cz_status attention_check(const struct attention_args *a, bool backward, size_t workspace_nbytes)
{
    TRY(check_shape(a));
    TRY(check_options(a));
    TRY(check_strides(a));
    TRY(check_positions(a, backward));
    if (!a->q || !a->out || (a->Tk > 0 && (!a->k || !a->v)))
        return err_set(CZ_INVALID, 0, "attention: q, k, v and out are needed");
    if (backward && (!a->lse || !a->dout || !a->dq || (a->Tk > 0 && (!a->dk || !a->dv))))
        return err_set(CZ_INVALID, 0, "attention: backward needs lse, dout, dq, dk and dv");
    return ops_check_workspace("attention", a->workspace, a->workspace_nbytes, workspace_nbytes);
}

static cz_status check_rise(const char *what, const int32_t *documents, int64_t B, int64_t T)
{
    for (int64_t b = 0; documents && b < B; b++, documents += T)
        for (int64_t t = 1; t < T; t++)
            if (documents[t] < documents[t - 1])
                return err_set(CZ_INVALID, 0,
                               "attention: %s[%lld,%lld] is %d after %d; numbers must not "
                               "decrease in a row",
                               what, (long long)b, (long long)t, documents[t], documents[t - 1]);
    return CZ_OK;
}

/* Rows sum over queries in a row, so those between others must see something. */
static cz_status check_present(const struct attention_args *a, int64_t b)
{
    const int32_t *own = a->query_documents + b * a->Tq, *keys = a->documents + b * a->Tk;
    for (int64_t i = 0, t = 0; i < a->Tq; i++) {
        while (t < a->Tk && keys[t] < own[i]) t++;
        if (t < a->Tk && keys[t] != own[i])
            return err_set(CZ_INVALID, 0,
                           "attention: query_documents[%lld,%lld] is %d, of which there is no key",
                           (long long)b, (long long)i, own[i]);
    }
    return CZ_OK;
}

cz_status attention_check_documents(const struct attention_args *a)
{
    TRY(check_rise("query_documents", a->query_documents, a->B, a->Tq));
    TRY(check_rise("documents", a->documents, a->B, a->Tk));
    for (int64_t b = 0; a->query_documents && b < a->B; b++) TRY(check_present(a, b));
    return CZ_OK;
}
