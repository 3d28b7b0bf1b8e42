/* The MLP half of a decoder block: m = (act(h·Wgate)∘(h·Wup))·Wdown, or plain act(h·Wgate)·Wdown.
 */
#include "model/decoder/block_impl.h"

void mlp_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                   struct scratch *s, struct mlp_kept *k)
{
    const size_t e = dtype_size(dtype);
    k->gate = scratch_take(s, N, hp->fused_maps ? 2 * hp->F : hp->F, e);
    if (hp->plain_mlp) return;
    if (!hp->fused_maps)
        k->up = scratch_take(s, N, hp->F, e);
    else if (k->gate)
        k->up = (unsigned char *)k->gate + (size_t)hp->F * e;
}

bool mlp_wants_input(const struct block_run *r)
{
    static const enum role maps[] = {GATE_W, UP_W, GATE_UP_W, ROUTER_W, N_ROLES};
    return block_wants(r, maps) || (has_experts(r->hp) && experts_want_input(r));
}

cz_status mlp_widen(const struct block_run *r, const void *h)
{
    const struct mlp_kept *k = &r->k.mlp;
    if (r->hp->fused_maps) return block_map_forward(r, GATE_UP_W, h, k->gate);
    TRY(block_map_forward(r, GATE_W, h, k->gate));
    return r->hp->plain_mlp ? CZ_OK : block_map_forward(r, UP_W, h, k->up);
}

static struct swiglu_args swiglu_over(const struct block_run *r)
{
    const int64_t F = r->hp->F;
    return (struct swiglu_args){.act = r->hp->gate,
                                .dtype = r->a->dtype,
                                .N = r->N,
                                .C = F,
                                .stride = r->hp->fused_maps ? 2 * F : F,
                                .gate = r->k.mlp.gate,
                                .up = r->k.mlp.up};
}

cz_status mlp_activate(const struct block_run *r, void *y)
{
    if (r->hp->plain_mlp)
        return activation_apply(r->a, r->hp->gate, (size_t)(r->N * r->hp->F), r->k.mlp.gate, y);
    struct swiglu_args args = swiglu_over(r);
    args.y = y;
    return ops_swiglu_forward(r->a->ops, r->a->stream, &args);
}

cz_status mlp_backward(const struct block_run *r, const void *h, const void *dout, void *dh)
{
    static const enum role down[] = {DOWN_W, N_ROLES};
    const struct mlp_kept *k = &r->k.mlp;
    const void *y = k->y ? k->y : r->s.y;
    if (block_wants(r, down) && !k->y) TRY(mlp_activate(r, r->s.y));
    TRY(block_map_grads(r, DOWN_W, y, dout));
    TRY(block_map_input_grad(r, DOWN_W, dout, r->s.y, false));
    if (r->hp->plain_mlp) {
        const size_t numel = (size_t)(r->N * r->hp->F);
        TRY(activation_grad(r->a, r->hp->gate, numel, k->gate, r->s.y, r->s.y));
        TRY(block_map_grads(r, GATE_W, h, r->s.y));
        return block_map_input_grad(r, GATE_W, r->s.y, dh, false);
    }
    struct swiglu_args args = swiglu_over(r);
    args.dy = r->s.y;
    args.dgate = k->gate;
    args.dup = k->up;
    TRY(ops_swiglu_backward(r->a->ops, r->a->stream, &args));

    if (r->hp->fused_maps) {
        TRY(block_map_grads(r, GATE_UP_W, h, k->gate));
        return block_map_input_grad(r, GATE_UP_W, k->gate, dh, false);
    }
    TRY(block_map_grads(r, GATE_W, h, k->gate));
    TRY(block_map_grads(r, UP_W, h, k->up));
    TRY(block_map_input_grad(r, GATE_W, k->gate, dh, false));
    return block_map_input_grad(r, UP_W, k->up, dh, true);
}
