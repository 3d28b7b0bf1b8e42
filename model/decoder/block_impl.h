/* What the files of the decoder block share. The block is an attention half and an MLP half with
 * norms and residuals around both; each half knows its maps and its memory, the block which norm
 * feeds it and where its result is added. Legend: B batch, T positions, N = B·T, C width, H query
 * heads and G key heads of width D, F width of the MLP, or of each of E experts, of which a router
 * chooses K for a token. */
#ifndef CZ_MODEL_DECODER_BLOCK_IMPL_H
#define CZ_MODEL_DECODER_BLOCK_IMPL_H

#include "model/decoder/decoder_impl.h"
#include "model/parts/blocks_impl.h"

/* ---- parameters: decoder_roles.c ------------------------------------------------------------ */

/* By role, in the order of declaration. */
enum role {
    Q_W = 0,
    Q_B,
    K_W,
    K_B,
    V_W,
    V_B,
    O_W,
    O_B,
    QKV_W, /* queries, keys and values in one */
    QKV_B,
    QN_W,
    KN_W,
    GATE_W,
    GATE_B,
    UP_W,
    UP_B,
    GATE_UP_W, /* gate and up in one */
    GATE_UP_B,
    DOWN_W,
    DOWN_B,
    ROUTER_W,
    LN1_W, /* in front of attention */
    LN1_B,
    POST1_W, /* behind it */
    LN2_W,   /* in front of the MLP */
    LN2_B,
    POST2_W, /* behind it */
    N_ROLES
};

cz_status block_declare(const void *hp, struct param_list *out);

/* NULL where the block has no such parameter. Experts come after the roles: gate, up and down of
 * each. */
enum { EXPERT_GATE = 0, EXPERT_UP, EXPERT_DOWN, N_EXPERT_MAPS };
struct block_params {
    const void *w[N_ROLES];
    const struct param_grad *g[N_ROLES]; /* backward */
    const void *const *experts;          /* (E, N_EXPERT_MAPS) */
    const struct param_grad *expert_grads;
};

/* The map whose weight has this role. */
struct linear block_map(const struct decoder_block_hp *hp, enum role weight);

/* Op workspace of all maps and of all norms for N tokens. */
cz_status block_maps_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                               int64_t N, size_t *nbytes_max);
void block_norms_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                           int64_t N, size_t *nbytes_max);

static inline bool has_norm_before(const struct decoder_block_hp *hp)
{
    return hp->norms != NORMS_AFTER;
}

/* In front of attention; has_norm_before() is about the MLP. */
static inline bool has_first_norm(const struct decoder_block_hp *hp)
{
    return has_norm_before(hp) && !hp->no_first_norm;
}

static inline bool has_norm_after(const struct decoder_block_hp *hp)
{
    return hp->norms != NORMS_BEFORE;
}

static inline bool has_experts(const struct decoder_block_hp *hp)
{
    return hp->n_experts > 0;
}

/* Draws of a block: of the attention weights, of what each half adds. */
enum { SITE_ATTENTION = 0, SITE_ATTENTION_OUT, SITE_MLP_OUT };

/* ---- a call --------------------------------------------------------------------------------- */

/* Cosines and sines, (N, half) each; token n takes row n mod n_rows. */
struct rope_rows {
    float *cos, *sin;
    int64_t n_rows;
};

/* What the attention half keeps for backward. */
struct attention_kept {
    void *q, *k, *v; /* (N,HD), (N,GD), (N,GD), or columns of one (N,HD+2GD); q and k rotated, or,
                        where they are normed first, as their maps made them */
    void *att;       /* (N,HD) */
    float *lse;      /* (B,H,T) */
    float *rstd_q, *rstd_k; /* of their norms */
};

struct attention_space {
    void *q,
        *k; /* as attention reads them: normed and rotated; those kept, unless they are normed */
    void *dq, *dk, *dv; /* backward; laid out as q, k and v */
    struct rope_rows rope;
};

/* What a router keeps, for choices in the order of their experts: ops/router/router.h. */
struct experts_kept {
    float *probs, *weights;             /* (N,E), (N,K) */
    int32_t *experts;                   /* (N,K) */
    int32_t *choices, *tokens, *starts; /* (N·K), (N·K), (E+1) */
};

struct experts_space {
    void *logits;    /* (N,E), or their gradient */
    float *sum;      /* (N,C) of what experts give */
    void *x;         /* (M,C) rows of one expert, M: experts_rows(N) */
    void *dout, *dy; /* (M,C), (M,F) the same in backward */
    float *dweights; /* (N,K) backward */
    bool keeps_each; /* gate and up have rows for all choices; false: for one expert's */
};

/* What the MLP half keeps: gate and up, (N,F) each or columns of one (N,2F); y (N,F), what goes
 * into the last product, which backward makes again unless all is kept (else NULL). With experts
 * (N·K,F) each, what fills up an expert's rows behind them or over the next one's, and no y. */
struct mlp_kept {
    void *gate, *up, *y;
    struct experts_kept experts;
};

struct block_kept {
    struct attention_kept att;
    struct mlp_kept mlp;
    void *x2;    /* (N,C) norms before alone: x + attention's half */
    void *o, *m; /* (N,C) norms after: what the halves give to theirs */
    float *rstd1, *rstd_post1, *rstd2, *rstd_post2; /* (N) */
    float *mean1, *mean2;                           /* (N) of norms that subtract it */
    void *h1, *h2; /* (N,C) what the halves read, unless backward makes it again (NULL) */
};

/* Everything else that a call needs. */
struct block_space {
    void *h;      /* (N,C) in forward, (N, C or HD) in backward */
    void *branch; /* (N,C) backward: gradient of what a half gives, where it is not the block's */
    void *x2;     /* (N,C) norms after */
    void *y;      /* (N,F) activated and its gradient */
    struct experts_space experts;
    struct attention_space att; /* dead before x2 and y are made, and made again after them */
    struct scratch own;
};

struct block_run {
    const struct decoder_block_hp *hp;
    const struct layer_args *a;
    int64_t B, T, N;
    struct block_params p;
    struct block_kept k;
    struct block_space s;
    struct op_space space;
};

struct block_params block_params_of(const struct decoder_block_hp *hp, const struct layer_args *a);

/* Whether any of these gradients is asked for; the list ends with N_ROLES. */
bool block_wants(const struct block_run *r, const enum role *roles);

/* y = x·w + b */
cz_status block_map_forward(const struct block_run *r, enum role weight, const void *x, void *y);
cz_status block_map_forward_add(const struct block_run *r, enum role weight, const void *x,
                                const void *residual, void *room, void *y);
/* Gradients of weight and bias alone. */
cz_status block_map_grads(const struct block_run *r, enum role weight, const void *x,
                          const void *dy);
/* dx [+]= dy·w */
cz_status block_map_input_grad(const struct block_run *r, enum role weight, const void *dy,
                               void *dx, bool accumulate);

/* Output columns [first, first + n) alone; rows of y y_stride elements apart. */
cz_status block_map_columns(const struct block_run *r, enum role weight, int64_t first, int64_t n,
                            int64_t n_rows, const void *x, void *y, int64_t y_stride);

/* Rows of this norm over N tokens: a head is one where queries and keys are normed head by head. */
int64_t block_norm_rows(const struct decoder_block_hp *hp, enum role weight, int64_t N);
/* y = norm(x) over N tokens */
cz_status block_norm(const struct block_run *r, enum role weight, int64_t N,
                     const struct norm_io *io);
/* Backward through it over all tokens; the weight's gradient comes along. */
cz_status block_norm_grad(const struct block_run *r, enum role weight,
                          const struct norm_grad_io *io);

/* ---- the attention half: decoder_attention.c ------------------------------------------------- */

void attention_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                         struct scratch *s, struct attention_kept *k);
/* EVAL and decode: in the kept ones' place. */
void attention_take_eval(const struct decoder_block_hp *hp, int64_t N, struct scratch *s,
                         const struct attention_kept *k, struct attention_space *space);
void attention_take_train(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                          struct scratch *s, struct attention_space *space);

/* Op workspace. */
cz_status attention_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max);

/* o = attention(rope(norm(h·Wq)), …)·Wo */
cz_status attention_forward(struct block_run *r, const void *h, void *o);
/* The same for the next positions of a->cache. */
cz_status attention_decode(struct block_run *r, const void *h, void *o);
/* s.att.dq, dk, dv from the gradient of o; `datt` (N,HD) is scratch … */
cz_status attention_backward(struct block_run *r, const void *dout, void *datt);
/* … and from them the gradients of the maps and of h. dh may be h. */
cz_status attention_input_backward(const struct block_run *r, const void *h, void *dh);
bool attention_wants_input(const struct block_run *r);

/* ---- the MLP half: decoder_mlp.c --------------------------------------------------------------
 */

void mlp_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                   struct scratch *s, struct mlp_kept *k);

/* gate and up from h */
cz_status mlp_widen(const struct block_run *r, const void *h);
/* y = act(gate)∘up */
cz_status mlp_activate(const struct block_run *r, void *y);
/* Over gate and up, their gradients; dh (may be h) the gradient of h. */
cz_status mlp_backward(const struct block_run *r, const void *h, const void *dout, void *dh);
bool mlp_wants_input(const struct block_run *r);

/* ---- an MLP half of experts: decoder_experts.c ----------------------------------------------- */

cz_status experts_declare(const struct decoder_block_hp *hp, struct param_list *out);
cz_status experts_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                            int64_t N, size_t *nbytes_max);

/* Rows of one expert, of N tokens, with what fills them up. */
static inline int64_t experts_rows(int64_t N)
{
    return N + N / 8 + 16;
}

/* TRAIN keeps gate and up of each choice, EVAL those of one expert at a time. */
void experts_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                       bool keeps_each, struct scratch *s, struct mlp_kept *k);
void experts_take_space(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                        bool training, struct scratch *s, struct experts_space *space);

bool experts_want_input(const struct block_run *r);

/* What experts give for h, weighted and added up. m may be h; NULL: only what is kept is wanted. */
cz_status experts_forward(struct block_run *r, const void *h, void *m);
/* Over gate and up, their gradients; dh (may be h) the gradient of h. */
cz_status experts_backward(struct block_run *r, const void *h, const void *dout, void *dh);

#endif
