/* czero/ops.h: each public argument struct is copied member by member into the op's own, so that
 * the ops may change their structs without changing the ABI.
 *
 * The ops check shapes and pointers themselves; checked here is only what they rely on their
 * callers for: sizes of structs, sizes that are not negative in workspace queries, which cannot
 * fail inside, and enums that a cast would let through. */
#include "api/ops_api_impl.h"

#include "base/host/entry.h"
#include "base/options.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

#include <math.h>

/* ---- taking arguments ------------------------------------------------------------------------ */

static cz_status take(const struct cz_ops *ops, void *ours, size_t nbytes, const void *theirs,
                      const char *name)
{
    if (!ops) return err_set(CZ_INVALID, 0, "ops is NULL in a call with struct %s", name);
    if (!theirs) return err_set(CZ_INVALID, 0, "args is NULL instead of a struct %s", name);
    return options_take(ours, nbytes, theirs, name);
}

/* A local copy `a` of the caller's args, a struct `tag`. */
#define TAKE(tag)                                                                                  \
    struct tag a;                                                                                  \
    TRY(take(ops, &a, sizeof a, args, #tag))

static cz_status check_out(const size_t *nbytes)
{
    return nbytes ? CZ_OK : err_set(CZ_INVALID, 0, "nbytes is NULL: there is no memory for it");
}

/* For workspace queries: what the ops do not check before they multiply. */
static cz_status check_sizes(const char *tag, const int64_t *sizes, size_t n_sizes)
{
    for (size_t i = 0; i < n_sizes; i++)
        if (sizes[i] < 0 || sizes[i] > (int64_t)1 << 31)
            return err_set(CZ_INVALID, 0, "%s: a size is %lld: each must be 0 to 2^31", tag,
                           (long long)sizes[i]);
    return CZ_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool cz_ops_on_host(const struct cz_ops *ops)
{
    return ops && ops_device(ops->ops)->ops->kind == DEVICE_HOST;
}

float cz_rng_uniform(const struct cz_rng_key *key, uint64_t idx)
{
    NEED_OR(key, NAN);
    const struct rng_key own = rng_key_in(*key);
    return rng_uniform(&own, idx);
}

cz_status cz_fill_zero(const struct cz_ops *ops, void *dst, size_t nbytes)
{
    API_ENTRY;
    if (!ops || (!dst && nbytes > 0))
        return err_set(CZ_INVALID, 0, "cz_fill_zero: %s is NULL", ops ? "dst" : "ops");
    if (nbytes == 0) return CZ_OK;
    struct device *device = ops_device(ops->ops);
    return device->ops->fill_zero(device, ops->stream, dst, nbytes);
}

cz_status cz_copy(const struct cz_ops *ops, void *dst, const void *src, size_t nbytes)
{
    API_ENTRY;
    if (!ops || ((!dst || !src) && nbytes > 0))
        return err_set(CZ_INVALID, 0, "cz_copy: %s is NULL", !ops ? "ops" : dst ? "src" : "dst");
    if (nbytes == 0) return CZ_OK;
    struct device *device = ops_device(ops->ops);
    return device->ops->copy(device, ops->stream, dst, src, nbytes);
}

/* ---- matrix product -------------------------------------------------------------------------- */

static struct matmul_args matmul_in(const struct cz_matmul_args *a)
{
    return (struct matmul_args){.m = a->m,
                                .n = a->n,
                                .k = a->k,
                                .dtype = a->dtype,
                                .c_dtype = a->c_dtype,
                                .trans_a = a->trans_a,
                                .trans_b = a->trans_b,
                                .accumulate = a->accumulate,
                                .lda = a->lda,
                                .ldb = a->ldb,
                                .ldc = a->ldc,
                                .a = a->a,
                                .b = a->b,
                                .bias = a->bias,
                                .c = a->c,
                                .workspace = a->workspace,
                                .workspace_nbytes = a->workspace_nbytes};
}

cz_status cz_matmul(const struct cz_ops *ops, const struct cz_matmul_args *args)
{
    API_ENTRY;
    TAKE(cz_matmul_args);
    const struct matmul_args in = matmul_in(&a);
    return ops_matmul(ops->ops, ops->stream, &in);
}

cz_status cz_matmul_workspace(const struct cz_ops *ops, const struct cz_matmul_args *args,
                              size_t *nbytes)
{
    API_ENTRY;
    TAKE(cz_matmul_args);
    TRY(check_out(nbytes));
    const struct matmul_args in = matmul_in(&a);
    return ops_matmul_workspace(ops->ops, &in, nbytes);
}

/* ---- normalization --------------------------------------------------------------------------- */

static struct norm_args norm_in(const struct cz_norm_args *a)
{
    return (struct norm_args){.N = a->N,
                              .C = a->C,
                              .dtype = a->dtype,
                              .eps = a->eps,
                              .x = a->x,
                              .residual = a->residual,
                              .sum = a->sum,
                              .weight = a->weight,
                              .bias = a->bias,
                              .y = a->y,
                              .mean = a->mean,
                              .rstd = a->rstd,
                              .dy = a->dy,
                              .dx = a->dx,
                              .dx_add = a->dx_add,
                              .grad_dtype = a->grad_dtype,
                              .dweight = a->dweight,
                              .dbias = a->dbias,
                              .dweight_accumulate = a->dweight_accumulate,
                              .dbias_accumulate = a->dbias_accumulate,
                              .workspace = a->workspace,
                              .workspace_nbytes = a->workspace_nbytes};
}

cz_status cz_layernorm_forward(const struct cz_ops *ops, const struct cz_norm_args *args)
{
    API_ENTRY;
    TAKE(cz_norm_args);
    const struct norm_args in = norm_in(&a);
    return ops_layernorm_forward(ops->ops, ops->stream, &in);
}

cz_status cz_layernorm_backward(const struct cz_ops *ops, const struct cz_norm_args *args)
{
    API_ENTRY;
    TAKE(cz_norm_args);
    const struct norm_args in = norm_in(&a);
    return ops_layernorm_backward(ops->ops, ops->stream, &in);
}

cz_status cz_rmsnorm_forward(const struct cz_ops *ops, const struct cz_norm_args *args)
{
    API_ENTRY;
    TAKE(cz_norm_args);
    const struct norm_args in = norm_in(&a);
    return ops_rmsnorm_forward(ops->ops, ops->stream, &in);
}

cz_status cz_rmsnorm_backward(const struct cz_ops *ops, const struct cz_norm_args *args)
{
    API_ENTRY;
    TAKE(cz_norm_args);
    const struct norm_args in = norm_in(&a);
    return ops_rmsnorm_backward(ops->ops, ops->stream, &in);
}

cz_status cz_norm_workspace(const struct cz_ops *ops, const struct cz_norm_args *args,
                            size_t *nbytes)
{
    API_ENTRY;
    TAKE(cz_norm_args);
    TRY(check_out(nbytes));
    TRY(check_sizes("cz_norm_args", (const int64_t[]){a.N, a.C}, 2));
    const struct norm_args in = norm_in(&a);
    *nbytes = ops_norm_workspace(ops->ops, &in);
    return CZ_OK;
}

/* ---- activations ----------------------------------------------------------------------------- */

_Static_assert((int)CZ_ACTIVATION_GELU_TANH == ACT_GELU_TANH &&
                   (int)CZ_ACTIVATION_GELU_ERF == ACT_GELU_ERF &&
                   (int)CZ_ACTIVATION_SILU == ACT_SILU && (int)CZ_ACTIVATION_RELU == ACT_RELU &&
                   (int)CZ_ACTIVATION_TANH == ACT_TANH &&
                   (int)CZ_ACTIVATION_QUICK_GELU == ACT_QUICK_GELU &&
                   (int)CZ_ACTIVATION_SIGMOID == ACT_SIGMOID &&
                   (int)CZ_ACTIVATION_MISH == ACT_MISH && (int)CZ_ACTIVATION_RELU2 == ACT_RELU2,
               "the op checks the range of the cast value");

static struct activation_args activation_in(const struct cz_activation_args *a)
{
    return (struct activation_args){.kind = (enum activation)a->kind,
                                    .dtype = a->dtype,
                                    .numel = a->numel,
                                    .x = a->x,
                                    .y = a->y,
                                    .dy = a->dy,
                                    .dx = a->dx};
}

cz_status cz_activation_forward(const struct cz_ops *ops, const struct cz_activation_args *args)
{
    API_ENTRY;
    TAKE(cz_activation_args);
    const struct activation_args in = activation_in(&a);
    return ops_activation_forward(ops->ops, ops->stream, &in);
}

cz_status cz_activation_backward(const struct cz_ops *ops, const struct cz_activation_args *args)
{
    API_ENTRY;
    TAKE(cz_activation_args);
    const struct activation_args in = activation_in(&a);
    return ops_activation_backward(ops->ops, ops->stream, &in);
}

static struct swiglu_args swiglu_in(const struct cz_swiglu_args *a)
{
    return (struct swiglu_args){.act = ACT_SILU,
                                .dtype = a->dtype,
                                .N = a->N,
                                .C = a->C,
                                .stride = a->stride ? a->stride : a->C,
                                .gate = a->gate,
                                .up = a->up,
                                .y = a->y,
                                .dy = a->dy,
                                .dgate = a->dgate,
                                .dup = a->dup};
}

cz_status cz_swiglu_forward(const struct cz_ops *ops, const struct cz_swiglu_args *args)
{
    API_ENTRY;
    TAKE(cz_swiglu_args);
    const struct swiglu_args in = swiglu_in(&a);
    return ops_swiglu_forward(ops->ops, ops->stream, &in);
}

cz_status cz_swiglu_backward(const struct cz_ops *ops, const struct cz_swiglu_args *args)
{
    API_ENTRY;
    TAKE(cz_swiglu_args);
    const struct swiglu_args in = swiglu_in(&a);
    return ops_swiglu_backward(ops->ops, ops->stream, &in);
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct attention_args attention_in(const struct cz_attention_args *a)
{
    return (struct attention_args){.B = a->B,
                                   .Tq = a->Tq,
                                   .Tk = a->Tk,
                                   .H = a->H,
                                   .G = a->G,
                                   .D = a->D,
                                   .dtype = a->dtype,
                                   .scale = a->scale,
                                   .causal = a->causal,
                                   .key_mask = a->key_mask,
                                   .q = a->q,
                                   .k = a->k,
                                   .v = a->v,
                                   .q_stride = a->q_stride ? a->q_stride : a->H * a->D,
                                   .k_stride = a->k_stride ? a->k_stride : a->G * a->D,
                                   .v_stride = a->v_stride ? a->v_stride : a->G * a->D,
                                   .out = a->out,
                                   .out_stride = a->out_stride ? a->out_stride : a->H * a->D,
                                   .q_batch = a->q_batch,
                                   .kv_batch = a->kv_batch,
                                   .lse = a->lse,
                                   .dropout_p = a->dropout_p,
                                   .rng = rng_key_in(a->rng),
                                   .dout = a->dout,
                                   .dq = a->dq,
                                   .dk = a->dk,
                                   .dv = a->dv,
                                   .workspace = a->workspace,
                                   .workspace_nbytes = a->workspace_nbytes};
}

/* Before the strides are made of them. */
static cz_status attention_check_sizes(const struct cz_attention_args *a)
{
    return check_sizes("cz_attention_args", (const int64_t[]){a->B, a->Tq, a->Tk, a->H, a->G, a->D},
                       6);
}

cz_status cz_attention_forward(const struct cz_ops *ops, const struct cz_attention_args *args)
{
    API_ENTRY;
    TAKE(cz_attention_args);
    TRY(attention_check_sizes(&a));
    const struct attention_args in = attention_in(&a);
    return ops_attention_forward(ops->ops, ops->stream, &in);
}

cz_status cz_attention_backward(const struct cz_ops *ops, const struct cz_attention_args *args)
{
    API_ENTRY;
    TAKE(cz_attention_args);
    TRY(attention_check_sizes(&a));
    const struct attention_args in = attention_in(&a);
    return ops_attention_backward(ops->ops, ops->stream, &in);
}

static cz_status attention_workspace(const struct cz_ops *ops, const struct cz_attention_args *args,
                                     bool backward, size_t *nbytes)
{
    TAKE(cz_attention_args);
    TRY(check_out(nbytes));
    TRY(attention_check_sizes(&a));
    if (a.G == 0 || a.H % a.G != 0)
        return err_set(CZ_INVALID, 0, "cz_attention_args: G is %lld, which does not divide H, %lld",
                       (long long)a.G, (long long)a.H);
    const struct attention_args in = attention_in(&a);
    *nbytes = ops_attention_workspace(ops->ops, &in, backward);
    return CZ_OK;
}

cz_status cz_attention_forward_workspace(const struct cz_ops *ops,
                                         const struct cz_attention_args *args, size_t *nbytes)
{
    API_ENTRY;
    return attention_workspace(ops, args, false, nbytes);
}

cz_status cz_attention_backward_workspace(const struct cz_ops *ops,
                                          const struct cz_attention_args *args, size_t *nbytes)
{
    API_ENTRY;
    return attention_workspace(ops, args, true, nbytes);
}

/* ---- embedding ------------------------------------------------------------------------------- */

static struct embedding_args embedding_in(const struct cz_embedding_args *a)
{
    return (struct embedding_args){.N = a->N,
                                   .C = a->C,
                                   .V = a->V,
                                   .dtype = a->dtype,
                                   .ids = a->ids,
                                   .has_padding = a->has_padding,
                                   .padding_id = a->padding_id,
                                   .table = a->table,
                                   .y = a->y,
                                   .accumulate = a->accumulate,
                                   .dy = a->dy,
                                   .grad_dtype = a->grad_dtype,
                                   .dtable = a->dtable,
                                   .dtable_accumulate = a->dtable_accumulate,
                                   .workspace = a->workspace,
                                   .workspace_nbytes = a->workspace_nbytes};
}

cz_status cz_embedding_forward(const struct cz_ops *ops, const struct cz_embedding_args *args)
{
    API_ENTRY;
    TAKE(cz_embedding_args);
    const struct embedding_args in = embedding_in(&a);
    return ops_embedding_forward(ops->ops, ops->stream, &in);
}

cz_status cz_embedding_backward(const struct cz_ops *ops, const struct cz_embedding_args *args)
{
    API_ENTRY;
    TAKE(cz_embedding_args);
    const struct embedding_args in = embedding_in(&a);
    return ops_embedding_backward(ops->ops, ops->stream, &in);
}

cz_status cz_embedding_workspace(const struct cz_ops *ops, const struct cz_embedding_args *args,
                                 size_t *nbytes)
{
    API_ENTRY;
    TAKE(cz_embedding_args);
    TRY(check_out(nbytes));
    TRY(check_sizes("cz_embedding_args", (const int64_t[]){a.N, a.C, a.V}, 3));
    const struct embedding_args in = embedding_in(&a);
    *nbytes = ops_embedding_workspace(ops->ops, &in);
    return CZ_OK;
}

/* ---- rotary positions ------------------------------------------------------------------------ */

cz_status cz_rope(const struct cz_ops *ops, const struct cz_rope_args *args)
{
    API_ENTRY;
    TAKE(cz_rope_args);
    const struct rope_args in = {.N = a.N,
                                 .H = a.H,
                                 .D = a.D,
                                 .dtype = a.dtype,
                                 .stride = a.stride ? a.stride : a.H * a.D,
                                 .positions = a.positions,
                                 .T = a.T,
                                 .cos = a.cos_table,
                                 .sin = a.sin_table,
                                 .x = a.x,
                                 .inverse = a.inverse};
    return ops_rope(ops->ops, ops->stream, &in);
}

cz_status cz_rope_table(const struct cz_ops *ops, const struct cz_rope_table_args *args)
{
    API_ENTRY;
    TAKE(cz_rope_table_args);
    const struct rope_table_args in = {.N = a.N,
                                       .half = a.half,
                                       .positions = a.positions,
                                       .first = a.first,
                                       .freq = a.freq,
                                       .scale = a.scale,
                                       .cos = a.cos_table,
                                       .sin = a.sin_table};
    return ops_rope_table(ops->ops, ops->stream, &in);
}

/* ---- dropout and element-wise ops ------------------------------------------------------------ */

cz_status cz_dropout(const struct cz_ops *ops, const struct cz_dropout_args *args)
{
    API_ENTRY;
    TAKE(cz_dropout_args);
    const struct dropout_args in = {.dtype = a.dtype,
                                    .numel = a.numel,
                                    .p = a.p,
                                    .rng = rng_key_in(a.rng),
                                    .first_idx = a.first_idx,
                                    .x = a.x,
                                    .y = a.y};
    return ops_dropout(ops->ops, ops->stream, &in);
}

cz_status cz_add(const struct cz_ops *ops, const struct cz_add_args *args)
{
    API_ENTRY;
    TAKE(cz_add_args);
    const struct add_args in = {.dtype = a.dtype, .numel = a.numel, .a = a.a, .b = a.b, .y = a.y};
    return ops_add(ops->ops, ops->stream, &in);
}

cz_status cz_cast_scale(const struct cz_ops *ops, const struct cz_cast_scale_args *args)
{
    API_ENTRY;
    TAKE(cz_cast_scale_args);
    const struct cast_scale_args in = {.x_dtype = a.x_dtype,
                                       .y_dtype = a.y_dtype,
                                       .numel = a.numel,
                                       .alpha = a.alpha,
                                       .x = a.x,
                                       .y = a.y};
    return ops_cast_scale(ops->ops, ops->stream, &in);
}

static struct bias_grad_args bias_grad_in(const struct cz_bias_grad_args *a)
{
    return (struct bias_grad_args){.N = a->N,
                                   .C = a->C,
                                   .dtype = a->dtype,
                                   .grad_dtype = a->grad_dtype,
                                   .dy = a->dy,
                                   .db = a->db,
                                   .accumulate = a->accumulate,
                                   .workspace = a->workspace,
                                   .workspace_nbytes = a->workspace_nbytes};
}

cz_status cz_bias_grad(const struct cz_ops *ops, const struct cz_bias_grad_args *args)
{
    API_ENTRY;
    TAKE(cz_bias_grad_args);
    const struct bias_grad_args in = bias_grad_in(&a);
    return ops_bias_grad(ops->ops, ops->stream, &in);
}

cz_status cz_bias_grad_workspace(const struct cz_ops *ops, const struct cz_bias_grad_args *args,
                                 size_t *nbytes)
{
    API_ENTRY;
    TAKE(cz_bias_grad_args);
    TRY(check_out(nbytes));
    TRY(check_sizes("cz_bias_grad_args", (const int64_t[]){a.N, a.C}, 2));
    const struct bias_grad_args in = bias_grad_in(&a);
    *nbytes = ops_bias_grad_workspace(ops->ops, &in);
    return CZ_OK;
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

static struct ce_head_args head_in(const struct cz_head_cross_entropy_args *a)
{
    return (struct ce_head_args){.N = a->N,
                                 .C = a->C,
                                 .V = a->V,
                                 .dtype = a->dtype,
                                 .x = a->x,
                                 .w = a->w,
                                 .bias = a->bias,
                                 .labels = a->labels,
                                 .loss_weights = a->loss_weights,
                                 .divisor = a->divisor,
                                 .loss = a->loss,
                                 .logits = a->logits,
                                 .dloss = a->dloss,
                                 .dx = a->dx,
                                 .grad_dtype = a->grad_dtype,
                                 .dw = a->dw,
                                 .dbias = a->dbias,
                                 .dw_accumulate = a->dw_accumulate,
                                 .dbias_accumulate = a->dbias_accumulate,
                                 .workspace = a->workspace,
                                 .workspace_nbytes = a->workspace_nbytes};
}

cz_status cz_head_cross_entropy(const struct cz_ops *ops,
                                const struct cz_head_cross_entropy_args *args)
{
    API_ENTRY;
    TAKE(cz_head_cross_entropy_args);
    const struct ce_head_args in = head_in(&a);
    return ops_ce_head(ops->ops, ops->stream, &in);
}

cz_status cz_head_cross_entropy_workspace(const struct cz_ops *ops,
                                          const struct cz_head_cross_entropy_args *args,
                                          size_t *nbytes)
{
    API_ENTRY;
    TAKE(cz_head_cross_entropy_args);
    TRY(check_out(nbytes));
    const struct ce_head_args in = head_in(&a);
    return ops_ce_head_workspace(ops->ops, &in, nbytes);
}

cz_status cz_cross_entropy(const struct cz_ops *ops, const struct cz_cross_entropy_args *args)
{
    API_ENTRY;
    TAKE(cz_cross_entropy_args);
    const struct cross_entropy_args in = {.N = a.N,
                                          .V = a.V,
                                          .logits = a.logits,
                                          .labels = a.labels,
                                          .loss_weights = a.loss_weights,
                                          .divisor = a.divisor,
                                          .loss = a.loss,
                                          .dloss = a.dloss,
                                          .dlogits = a.dlogits};
    return ops_cross_entropy(ops->ops, ops->stream, &in);
}
