/* What the entry points of the router's ops refuse, on the host and on a GPU. */
#include "ops/router/router_impl.h"

static cz_status check_shape(const char *op, int64_t N, int64_t E, int64_t K)
{
    if (N < 0 || K < 1 || E < K || E > ROUTER_EXPERTS_MAX || N > INT32_MAX / K)
        return err_set(CZ_INVALID, 0,
                       "%s: N %lld, E %lld, K %lld: 1 ≤ K ≤ E ≤ %d, and N·K below 2^31", op,
                       (long long)N, (long long)E, (long long)K, ROUTER_EXPERTS_MAX);
    return CZ_OK;
}

static cz_status check_rows(const char *op, int64_t n, int64_t C)
{
    if (n < 0 || C < 0)
        return err_set(CZ_INVALID, 0, "%s: n %lld, C %lld: none negative", op, (long long)n,
                       (long long)C);
    return CZ_OK;
}

static cz_status missing(const char *op, const char *arrays)
{
    return err_set(CZ_INVALID, 0, "%s: %s are needed", op, arrays);
}

cz_status router_check(const struct router_args *a)
{
    TRY(ops_check_dtype("router_forward", a->dtype));
    TRY(check_shape("router_forward", a->N, a->E, a->K));
    if (a->N > 0 && (!a->logits || !a->probs || !a->experts || !a->weights))
        return missing("router_forward", "logits, probs, experts and weights");
    return CZ_OK;
}

cz_status router_grad_check(const struct router_grad_args *a)
{
    TRY(ops_check_dtype("router_backward", a->dtype));
    TRY(check_shape("router_backward", a->N, a->E, a->K));
    if (a->N > 0 && (!a->probs || !a->experts || !a->dweights || !a->dlogits))
        return missing("router_backward", "probs, experts, dweights and dlogits");
    return CZ_OK;
}

cz_status router_sort_check(const struct router_sort_args *a)
{
    TRY(check_shape("router_sort", a->N, a->E, a->K));
    if (!a->starts || (a->N > 0 && (!a->experts || !a->choices || !a->tokens)))
        return missing("router_sort", "experts, choices, tokens and starts");
    return CZ_OK;
}

cz_status router_balance_check(const struct router_balance_args *a)
{
    TRY(check_shape("router_balance", a->N, a->E, a->K));
    if (!a->balance || (a->N > 0 && (!a->probs || !a->experts)))
        return missing("router_balance", "probs, experts and balance");
    return CZ_OK;
}

cz_status router_balance_loss_check(const struct router_balance_loss_args *a)
{
    TRY(check_shape("router_balance_loss", 0, a->E, 1));
    if (!a->balance || !a->loss) return missing("router_balance_loss", "balance and loss");
    return CZ_OK;
}

cz_status expert_add_check(const struct expert_add_args *a)
{
    TRY(ops_check_dtype("expert_add", a->dtype));
    TRY(check_rows("expert_add", a->n, a->C));
    if (a->n == 0 || a->C == 0) return CZ_OK;
    if (!a->x || !a->tokens || !a->sum || (a->weights && !a->choices))
        return missing("expert_add", "x, tokens, sum and, with weights, choices");
    return CZ_OK;
}

cz_status expert_weigh_check(const struct expert_weigh_args *a)
{
    TRY(ops_check_dtype("expert_weigh", a->dtype));
    TRY(check_rows("expert_weigh", a->n, a->C));
    if (a->n > 0 && (!a->choices || !a->weights || !a->dweights || !a->y || !a->dy))
        return missing("expert_weigh", "choices, weights, dweights, y and dy");
    return CZ_OK;
}
