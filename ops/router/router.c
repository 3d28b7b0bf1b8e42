/* Mixtures of experts on the host: threads, choice of row, counting. */
#include "ops/router/router_impl.h"
#include "ops/table_impl.h"

#include <string.h>

static const struct router_row *const rows[] = {
    &router_scalar,
    &router_avx2,
    &router_avx512,
};

const struct router_row *const *router_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* An exponential costs some 10 ns. */
#define CHOOSE_GRAIN ((size_t)1024)

static cz_status router_forward(struct ops *ops, struct dev_stream *stream,
                                const struct router_args *a)
{
    (void)ops;
    (void)stream;
    TRY(router_check(a));
    OPS_IN_PARTS(ops_n_parts((size_t)(a->N * a->E), CHOOSE_GRAIN), (size_t)a->N, 1,
                 for (size_t n = begin; n < end; n++) router_choose(a, n));
    return CZ_OK;
}

static cz_status router_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct router_grad_args *a)
{
    (void)ops;
    (void)stream;
    TRY(router_grad_check(a));
    OPS_IN_PARTS(ops_n_parts((size_t)(a->N * a->E), CHOOSE_GRAIN), (size_t)a->N, 1,
                 for (size_t n = begin; n < end; n++) router_choose_grad(a, n));
    return CZ_OK;
}

/* A counting sort. Experts outside [0,E) never come out of router_forward(). */
static cz_status router_sort(struct ops *ops, struct dev_stream *stream,
                             const struct router_sort_args *a)
{
    (void)ops;
    (void)stream;
    TRY(router_sort_check(a));
    const size_t E = (size_t)a->E, n_choices = (size_t)(a->N * a->K);
    int32_t next[ROUTER_EXPERTS_MAX];
    memset(a->starts, 0, (E + 1) * sizeof *a->starts);
    for (size_t i = 0; i < n_choices; i++) {
        if (a->experts[i] < 0 || a->experts[i] >= a->E)
            return err_set(CZ_INVALID, 0, "router_sort: expert %d of choice %zu is outside 0…%lld",
                           a->experts[i], i, (long long)a->E - 1);
        a->starts[a->experts[i] + 1]++;
    }
    for (size_t e = 0; e < E; e++) {
        a->starts[e + 1] += a->starts[e];
        next[e] = a->starts[e];
    }
    for (size_t i = 0; i < n_choices; i++) {
        const int32_t place = next[a->experts[i]]++;
        a->choices[place] = (int32_t)i;
        a->tokens[place] = (int32_t)(i / (size_t)a->K);
    }
    return CZ_OK;
}

/* Expert e's count and probabilities over blocks of tokens, each in order, then block by block. */
static void balance_expert(const struct router_balance_args *a, size_t e)
{
    const int64_t per_block = ops_block_rows(a->N);
    float count = 0, sum = 0;
    for (int64_t first = 0; first < a->N; first += per_block) {
        const int64_t end = first + per_block < a->N ? first + per_block : a->N;
        float block_count = 0, block_sum = 0;
        for (int64_t n = first; n < end; n++) {
            if (a->counts && !a->counts[n]) continue;
            block_sum += a->probs[(size_t)(n * a->E) + e];
            for (int64_t k = 0; k < a->K; k++)
                block_count += a->experts[n * a->K + k] == (int32_t)e ? 1.0f : 0.0f;
        }
        count += block_count;
        sum += block_sum;
    }
    a->balance[e] += count;
    a->balance[(size_t)a->E + e] += sum;
}

static cz_status router_balance(struct ops *ops, struct dev_stream *stream,
                                const struct router_balance_args *a)
{
    (void)ops;
    (void)stream;
    TRY(router_balance_check(a));
    const size_t E = (size_t)a->E;
    OPS_IN_PARTS(ops_n_parts((size_t)(a->N * a->E * a->K), OPS_GRAIN), E, 1,
                 for (size_t e = begin; e < end; e++) balance_expert(a, e));
    int64_t counted = 0;
    for (int64_t n = 0; n < a->N; n++) counted += !a->counts || a->counts[n];
    a->balance[3 * E] += (float)counted;
    return CZ_OK;
}

static cz_status router_balance_loss(struct ops *ops, struct dev_stream *stream,
                                     const struct router_balance_loss_args *a)
{
    (void)ops;
    (void)stream;
    TRY(router_balance_loss_check(a));
    const size_t E = (size_t)a->E;
    const float *counts = a->balance, *probs = a->balance + E, n = a->balance[3 * E];
    float *dprobs = a->balance + 2 * E, sum = 0;
    for (size_t e = 0; e < E; e++) {
        const float share = n > 0 ? counts[e] / n : 0;
        const float product = n > 0 ? share * (probs[e] / n) : 0;
        dprobs[e] = n > 0 ? a->dloss * a->coef * (float)E * share / n : 0;
        sum += product;
    }
    *a->loss += a->coef * (float)E * sum;
    return CZ_OK;
}

/* Rows of one call go to different tokens: no two threads write one. */
static cz_status expert_add(struct ops *ops, struct dev_stream *stream,
                            const struct expert_add_args *a)
{
    (void)stream;
    TRY(expert_add_check(a));
    if (a->n == 0 || a->C == 0) return CZ_OK;
    const size_t C = (size_t)a->C, unit = dtype_size(a->dtype);
    int n_parts = ops_n_parts((size_t)a->n * C, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split((size_t)a->n, 1, n_parts, part, &begin, &end);
        for (size_t i = begin; i < end; i++) {
            const float w = a->weights ? a->weights[a->choices[i]] : 1.0f;
            ops->router_row->add(a->dtype, (const char *)a->x + i * C * unit, w,
                                 a->sum + (size_t)a->tokens[i] * C, C);
        }
    }
    return CZ_OK;
}

static cz_status expert_weigh(struct ops *ops, struct dev_stream *stream,
                              const struct expert_weigh_args *a)
{
    (void)stream;
    TRY(expert_weigh_check(a));
    const size_t C = (size_t)a->C, unit = dtype_size(a->dtype);
    int n_parts = ops_n_parts((size_t)a->n * C, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split((size_t)a->n, 1, n_parts, part, &begin, &end);
        for (size_t i = begin; i < end; i++) {
            const size_t choice = (size_t)a->choices[i];
            a->dweights[choice] =
                ops->router_row->weigh(a->dtype, (char *)a->y + i * C * unit,
                                       (char *)a->dy + i * C * unit, a->weights[choice], C);
        }
    }
    return CZ_OK;
}

/* ---- entry points ---------------------------------------------------------------------------- */

cz_status router_wire(struct ops *ops, uint32_t features)
{
    ops->router_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->router_forward = router_forward;
    ops->router_backward = router_backward;
    ops->router_sort = router_sort;
    ops->router_balance = router_balance;
    ops->router_balance_loss = router_balance_loss;
    ops->expert_add = expert_add;
    ops->expert_weigh = expert_weigh;
    return CZ_OK;
}
