/* The parameters of a decoder block: which there are, what they are called and what they do, and
 * the maps and norms that they make. Weights are stored (out,in), as torch.nn.Linear does. */
#include "model/decoder/block_impl.h"

#include <stdio.h>

/* What a role is. A weight names the role of its bias, a bias the role of its weight, so that roles
 * can be added and reordered without any arithmetic on their numbers. */
static const struct role_info {
    const char *name; /* after "model.layers.<i>." */
    enum { MAP_WEIGHT = 0, MAP_BIAS, NORM_WEIGHT, NORM_BIAS } kind;
    enum role pair; /* of a weight: its bias, N_ROLES: none; of a bias: its weight */
    enum {
        ALWAYS = 0,
        WITH_OWN_MAPS,
        WITH_FUSED_MAPS,
        WITH_ONE_MLP,
        WITH_OWN_MLP,
        WITH_GATED_MLP,
        WITH_EXPERTS,
        WITH_QKV_BIAS,
        WITH_FUSED_QKV_BIAS,
        WITH_O_BIAS,
        WITH_MLP_BIAS,
        WITH_OWN_MLP_BIAS,
        WITH_GATED_MLP_BIAS,
        WITH_FUSED_MLP_BIAS,
        WITH_QK_NORM,
        WITH_FIRST_NORM,
        WITH_FIRST_NORM_BIAS,
        WITH_NORM_BEFORE,
        WITH_NORM_BIAS,
        WITH_NORM_AFTER
    } present;
} roles[N_ROLES] = {
    /* clang-format off: one line each */
    [Q_W] = {"self_attn.q_proj.weight", MAP_WEIGHT, Q_B, WITH_OWN_MAPS},
    [Q_B] = {"self_attn.q_proj.bias", MAP_BIAS, Q_W, WITH_QKV_BIAS},
    [K_W] = {"self_attn.k_proj.weight", MAP_WEIGHT, K_B, WITH_OWN_MAPS},
    [K_B] = {"self_attn.k_proj.bias", MAP_BIAS, K_W, WITH_QKV_BIAS},
    [V_W] = {"self_attn.v_proj.weight", MAP_WEIGHT, V_B, WITH_OWN_MAPS},
    [V_B] = {"self_attn.v_proj.bias", MAP_BIAS, V_W, WITH_QKV_BIAS},
    [O_W] = {"self_attn.o_proj.weight", MAP_WEIGHT, O_B, ALWAYS},
    [O_B] = {"self_attn.o_proj.bias", MAP_BIAS, O_W, WITH_O_BIAS},
    [QKV_W] = {"self_attn.qkv_proj.weight", MAP_WEIGHT, QKV_B, WITH_FUSED_MAPS},
    [QKV_B] = {"self_attn.qkv_proj.bias", MAP_BIAS, QKV_W, WITH_FUSED_QKV_BIAS},
    [QN_W] = {"self_attn.q_norm.weight", NORM_WEIGHT, N_ROLES, WITH_QK_NORM},
    [KN_W] = {"self_attn.k_norm.weight", NORM_WEIGHT, N_ROLES, WITH_QK_NORM},
    [GATE_W] = {"mlp.gate_proj.weight", MAP_WEIGHT, GATE_B, WITH_OWN_MLP},
    [GATE_B] = {"mlp.gate_proj.bias", MAP_BIAS, GATE_W, WITH_OWN_MLP_BIAS},
    [UP_W] = {"mlp.up_proj.weight", MAP_WEIGHT, UP_B, WITH_GATED_MLP},
    [UP_B] = {"mlp.up_proj.bias", MAP_BIAS, UP_W, WITH_GATED_MLP_BIAS},
    [GATE_UP_W] = {"mlp.gate_up_proj.weight", MAP_WEIGHT, GATE_UP_B, WITH_FUSED_MAPS},
    [GATE_UP_B] = {"mlp.gate_up_proj.bias", MAP_BIAS, GATE_UP_W, WITH_FUSED_MLP_BIAS},
    [DOWN_W] = {"mlp.down_proj.weight", MAP_WEIGHT, DOWN_B, WITH_ONE_MLP},
    [DOWN_B] = {"mlp.down_proj.bias", MAP_BIAS, DOWN_W, WITH_MLP_BIAS},
    [ROUTER_W] = {"mlp.gate.weight", MAP_WEIGHT, N_ROLES, WITH_EXPERTS},
    [LN1_W] = {"input_layernorm.weight", NORM_WEIGHT, LN1_B, WITH_FIRST_NORM},
    [LN1_B] = {"input_layernorm.bias", NORM_BIAS, LN1_W, WITH_FIRST_NORM_BIAS},
    [POST1_W] = {"post_attention_layernorm.weight", NORM_WEIGHT, N_ROLES, WITH_NORM_AFTER},
    [LN2_W] = {"post_attention_layernorm.weight", NORM_WEIGHT, LN2_B, WITH_NORM_BEFORE},
    [LN2_B] = {"post_attention_layernorm.bias", NORM_BIAS, LN2_W, WITH_NORM_BIAS},
    [POST2_W] = {"post_feedforward_layernorm.weight", NORM_WEIGHT, N_ROLES, WITH_NORM_AFTER},
    /* clang-format on */
};

static bool has_role(const struct decoder_block_hp *hp, enum role role)
{
    switch (roles[role].present) {
    case WITH_OWN_MAPS: return !hp->fused_maps;
    case WITH_FUSED_MAPS: return hp->fused_maps;
    case WITH_ONE_MLP: return !has_experts(hp);
    case WITH_OWN_MLP: return !has_experts(hp) && !hp->fused_maps;
    case WITH_GATED_MLP: return !has_experts(hp) && !hp->fused_maps && !hp->plain_mlp;
    case WITH_EXPERTS: return has_experts(hp);
    case WITH_QKV_BIAS: return hp->qkv_bias && !hp->fused_maps;
    case WITH_FUSED_QKV_BIAS: return hp->qkv_bias && hp->fused_maps;
    case WITH_O_BIAS: return hp->o_bias;
    case WITH_MLP_BIAS: return hp->mlp_bias;
    case WITH_OWN_MLP_BIAS: return hp->mlp_bias && !hp->fused_maps;
    case WITH_GATED_MLP_BIAS: return hp->mlp_bias && !hp->fused_maps && !hp->plain_mlp;
    case WITH_FUSED_MLP_BIAS: return hp->mlp_bias && hp->fused_maps;
    case WITH_QK_NORM: return hp->qk_norm != QK_NORM_NONE;
    case WITH_FIRST_NORM: return has_first_norm(hp);
    case WITH_FIRST_NORM_BIAS: return has_first_norm(hp) && hp->norm_bias;
    case WITH_NORM_BEFORE: return has_norm_before(hp);
    case WITH_NORM_BIAS: return has_norm_before(hp) && hp->norm_bias;
    case WITH_NORM_AFTER: return has_norm_after(hp);
    case ALWAYS: break;
    }
    return true;
}

struct block_params block_params_of(const struct decoder_block_hp *hp, const struct layer_args *a)
{
    struct block_params p = {0};
    size_t idx = 0;
    for (int role = 0; role < N_ROLES; role++) {
        if (!has_role(hp, (enum role)role)) continue;
        p.w[role] = a->params[idx];
        p.g[role] = a->dparams ? &a->dparams[idx] : NULL;
        idx++;
    }
    p.experts = a->params + idx;
    p.expert_grads = a->dparams ? a->dparams + idx : NULL;
    return p;
}

bool block_wants(const struct block_run *r, const enum role *list)
{
    for (; *list != N_ROLES; list++)
        if (r->p.w[*list] && linear_wants_input(r->a, r->p.w[*list], r->p.g[*list])) return true;
    return false;
}

/* ---- declare -------------------------------------------------------------------------------- */

/* Of a norm: of the whole width, of all heads, or of one. */
static int64_t norm_width(const struct decoder_block_hp *hp, enum role role)
{
    if (role != QN_W && role != KN_W) return hp->C;
    if (hp->qk_norm == QK_NORM_HEADS) return hp->D;
    return hp->D * (role == QN_W ? hp->H : hp->G);
}

/* The family's own name of a weight, or NULL. */
static const char *own_name(const struct decoder_block_names *n, enum role weight)
{
    switch (weight) {
    case Q_W: return n->q;
    case K_W: return n->k;
    case V_W: return n->v;
    case GATE_W: return n->gate;
    case QKV_W: return n->qkv;
    case O_W: return n->o;
    case GATE_UP_W: return n->gate_up;
    case DOWN_W: return n->down;
    case LN1_W: return n->norm1;
    case LN2_W: return n->norm2;
    default: return NULL;
    }
}

static bool is_bias(enum role role)
{
    return roles[role].kind == MAP_BIAS || roles[role].kind == NORM_BIAS;
}

/* Where norms stand on both sides, the one in front of the MLP has another name. */
static void name_of(const struct decoder_block_hp *hp, enum role role, char *buf, size_t nbytes)
{
    const struct decoder_block_names *n = hp->names;
    const char *own = n ? own_name(n, is_bias(role) ? roles[role].pair : role) : NULL;
    const char *name = roles[role].name;
    if (role == LN2_W && has_norm_after(hp)) name = "pre_feedforward_layernorm.weight";
    if (own)
        snprintf(buf, nbytes, "%s.%d.%s.%s", n->prefix, hp->layer_idx, own,
                 is_bias(role) ? "bias" : "weight");
    else
        snprintf(buf, nbytes, "model.layers.%d.%s", hp->layer_idx, name);
}

static float std_of(const struct decoder_block_hp *hp, enum role role)
{
    const bool out = role == O_W || role == DOWN_W;
    return out && hp->out_init_std > 0 ? hp->out_init_std : hp->init_std;
}

static cz_status declare_role(const struct decoder_block_hp *hp, enum role role,
                              struct param_list *out)
{
    const struct role_info *info = &roles[role];
    char name[96];
    name_of(hp, role, name, sizeof name);
    if (info->kind == NORM_BIAS) return param_list_add(out, name, 1, &hp->C, PARAM_INIT_ZERO, 0.0f);
    if (info->kind == NORM_WEIGHT) {
        const int64_t width = norm_width(hp, role);
        return param_list_add(out, name, 1, &width,
                              hp->norm_offset == 1 ? PARAM_INIT_ZERO : PARAM_INIT_ONE, 0.0f);
    }
    const struct linear map = block_map(hp, is_bias(role) ? info->pair : role);
    const int64_t shape[] = {map.n_out, map.n_in};
    if (is_bias(role)) return param_list_add(out, name, 1, shape, PARAM_INIT_ZERO, 0.0f);
    return param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, std_of(hp, role));
}

cz_status block_declare(const void *hp_, struct param_list *out)
{
    const struct decoder_block_hp *hp = hp_;
    for (int role = 0; role < N_ROLES; role++)
        if (has_role(hp, (enum role)role)) TRY(declare_role(hp, (enum role)role, out));
    return has_experts(hp) ? experts_declare(hp, out) : CZ_OK;
}

/* ---- maps ----------------------------------------------------------------------------------- */

struct linear block_map(const struct decoder_block_hp *hp, enum role weight)
{
    const int64_t C = hp->C, F = hp->F, HD = hp->H * hp->D, GD = hp->G * hp->D;
    switch (weight) {
    case Q_W: return (struct linear){.n_in = C, .n_out = HD};
    case K_W:
    case V_W: return (struct linear){.n_in = C, .n_out = GD};
    case QKV_W: return (struct linear){.n_in = C, .n_out = HD + 2 * GD};
    case O_W: return (struct linear){.n_in = HD, .n_out = C};
    case GATE_UP_W: return (struct linear){.n_in = C, .n_out = 2 * F};
    case DOWN_W: return (struct linear){.n_in = F, .n_out = C};
    case ROUTER_W: return (struct linear){.n_in = C, .n_out = hp->n_experts};
    default: return (struct linear){.n_in = C, .n_out = F}; /* gate, up */
    }
}

/* Of several maps that read the same, all but the first add their gradient of it. */
cz_status block_maps_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                               int64_t N, size_t *nbytes_max)
{
    for (int role = 0; role < N_ROLES; role++) {
        if (roles[role].kind != MAP_WEIGHT || !has_role(hp, (enum role)role)) continue;
        const struct linear map = block_map(hp, (enum role)role);
        TRY(linear_workspace(s, &map, N, nbytes_max));
        if (s->training && (role == K_W || role == V_W || role == UP_W || role == ROUTER_W))
            TRY(linear_dx_add_workspace(s, &map, N, nbytes_max));
    }
    return has_experts(hp) ? experts_workspace(hp, s, N, nbytes_max) : CZ_OK;
}

/* NULL: the map or norm has none. */
static const void *bias_of(const struct block_run *r, enum role weight)
{
    const enum role bias = roles[weight].pair;
    return bias == N_ROLES ? NULL : r->p.w[bias];
}

static const struct param_grad *bias_grad_of(const struct block_run *r, enum role weight)
{
    const enum role bias = roles[weight].pair;
    return bias == N_ROLES ? NULL : r->p.g[bias];
}

/* Whether the bias of keys adds q·b to all scores of a query, which its softmax does not see (Σ_k
 * ds = 0): where keys are neither rotated nor normed. Its gradient is written as zero: adding up dk
 * would give rounding noise, on which Adam would act as on anything else. */
static bool bias_is_blind(const struct block_run *r, enum role weight)
{
    const struct decoder_block_hp *hp = r->hp;
    return weight == K_W && hp->no_rope && hp->qk_norm == QK_NORM_NONE && r->p.g[K_B];
}

cz_status block_map_forward(const struct block_run *r, enum role weight, const void *x, void *y)
{
    const struct linear map = block_map(r->hp, weight);
    return linear_forward(r->a, &map, r->N, x, r->p.w[weight], bias_of(r, weight), y, r->space);
}

cz_status block_map_forward_add(const struct block_run *r, enum role weight, const void *x,
                                const void *residual, void *room, void *y)
{
    const struct linear map = block_map(r->hp, weight);
    return linear_forward_add(r->a, &map, r->N, x, r->p.w[weight], bias_of(r, weight), residual,
                              room, y, r->space);
}

cz_status block_map_columns(const struct block_run *r, enum role weight, int64_t first, int64_t n,
                            int64_t n_rows, const void *x, void *y, int64_t y_stride)
{
    const struct linear map = block_map(r->hp, weight);
    return linear_columns(r->a, &map, first, n, n_rows, x, r->p.w[weight], bias_of(r, weight), y,
                          y_stride, r->space);
}

cz_status block_map_grads(const struct block_run *r, enum role weight, const void *x,
                          const void *dy)
{
    const struct linear map = block_map(r->hp, weight);
    const struct param_grad *bias = bias_grad_of(r, weight);
    if (bias_is_blind(r, weight)) {
        TRY(param_grad_zero(r->a, bias, map.n_out));
        bias = NULL;
    }
    return linear_backward(r->a, &map, r->N, x, dy, r->p.w[weight], r->p.g[weight], bias, NULL,
                           r->space);
}

cz_status block_map_input_grad(const struct block_run *r, enum role weight, const void *dy,
                               void *dx, bool accumulate)
{
    const struct linear map = block_map(r->hp, weight);
    const void *w = r->p.w[weight];
    return accumulate ? linear_dx_add(r->a, &map, r->N, dy, w, dx, r->space)
                      : linear_backward(r->a, &map, r->N, NULL, dy, w, NULL, NULL, dx, r->space);
}

/* ---- norms ---------------------------------------------------------------------------------- */

static struct norm norm_of(const struct decoder_block_hp *hp, enum role weight)
{
    return (struct norm){.rms = !hp->layer_norm,
                         .C = norm_width(hp, weight),
                         .eps = hp->eps,
                         .offset = hp->norm_offset};
}

/* Rows of a norm over N tokens: more where it takes each head by itself. */
int64_t block_norm_rows(const struct decoder_block_hp *hp, enum role weight, int64_t N)
{
    const int64_t GD = hp->G * hp->D, HD = hp->H * hp->D;
    if (weight == QN_W) return N * (HD / norm_width(hp, weight));
    if (weight == KN_W) return N * (GD / norm_width(hp, weight));
    return N;
}

void block_norms_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                           int64_t N, size_t *nbytes_max)
{
    for (int role = 0; role < N_ROLES; role++) {
        if (roles[role].kind != NORM_WEIGHT || !has_role(hp, (enum role)role)) continue;
        const struct norm norm = norm_of(hp, (enum role)role);
        norm_workspace(s, &norm, block_norm_rows(hp, (enum role)role, N), nbytes_max);
    }
}

cz_status block_norm(const struct block_run *r, enum role weight, int64_t N,
                     const struct norm_io *io)
{
    const struct norm norm = norm_of(r->hp, weight);
    return norm_forward(r->a, &norm, block_norm_rows(r->hp, weight, N), io, r->p.w[weight],
                        bias_of(r, weight));
}

cz_status block_norm_grad(const struct block_run *r, enum role weight,
                          const struct norm_grad_io *io)
{
    const struct norm norm = norm_of(r->hp, weight);
    return norm_backward(r->a, &norm, block_norm_rows(r->hp, weight, r->N), io, r->p.w[weight],
                         r->p.g[weight], bias_grad_of(r, weight), r->space);
}
