/* Front door of attention on a GPU: checks, choice of row, workspace. */
#include "ops/attention/attention_cuda_impl.h"
#include "ops/attention/attention_hopper_impl.h"
#include "ops/cuda_impl.h"

#include "base/size.h"

#include <stdlib.h>

#define ALIGN         ((size_t)16)
#define HOPPER_SHARED ((size_t)227 << 10) /* of a block, where the hopper row has space */

/* ---- choice of row -----------------------------------------------------------------------------
 */

/* In elements of 16 bits: heads and positions start at 16 bytes. */
static bool lies_aligned(const void *p, int64_t stride, int64_t batch)
{
    return cuda_is_aligned(p, 16) && stride % 8 == 0 && batch % 8 == 0 && stride < 1 << 23;
}

/* Which tiles the flash row has for such heads; -1: none. */
static int flash_tiles(const struct ops *ops, const struct attention_args *a, bool backward)
{
    const struct device_info *gpu = &ops->cuda->info;
    if (a->dtype != DTYPE_BF16 && a->dtype != DTYPE_F16) return -1;
    if (a->D > 128 || a->D % 8 != 0) return -1;
    return backward ? attention_flash_backward_tiles(gpu, (int)a->D)
                    : attention_flash_forward_tiles(gpu, (int)a->D);
}

/* Whether the window hides keys: none is as far from a query as the longer of both counts. */
static bool has_window(const struct attention_args *a)
{
    return a->window > 0 && a->window < (a->Tq > a->Tk ? a->Tq : a->Tk);
}

static bool takes_flash(const struct ops *ops, const struct attention_args *a, bool backward)
{
    if (has_window(a) || a->softcap > 0 || a->documents || a->positions.n_buckets) return false;
    if (flash_tiles(ops, a, backward) < 0 || !(a->scale > 0)) return false;
    if (!lies_aligned(a->q, a->q_stride, a->q_batch) ||
        !lies_aligned(a->k, a->k_stride, a->kv_batch) ||
        !lies_aligned(a->v, a->v_stride, a->kv_batch) || !lies_aligned(a->out, a->out_stride, 0))
        return false;
    return !backward || (cuda_is_aligned(a->dout, 16) && cuda_is_aligned(a->dq, 16) &&
                         cuda_is_aligned(a->dk, 16) && cuda_is_aligned(a->dv, 16));
}

/* CZERO_CUDA_ATTENTION: which directions the hopper row takes of what both rows do. A run may use
 * both: forward leaves the same log-sums for either backward. */
static cz_status rows_asked_for(bool *hopper_forward, bool *hopper_backward)
{
    const char *asked = getenv("CZERO_CUDA_ATTENTION");
    const bool both = asked && strcmp(asked, "hopper") == 0;
    *hopper_forward = both || (asked && strcmp(asked, "hopper-forward") == 0);
    *hopper_backward = both || (asked && strcmp(asked, "hopper-backward") == 0);
    if (!asked || *hopper_forward || *hopper_backward || strcmp(asked, "flash") == 0) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "CZERO_CUDA_ATTENTION=%s: flash, hopper, hopper-forward or hopper-backward",
                   asked);
}

/* Of what the flash row takes. Its machine code is for 9.0, not for what comes after. */
static bool takes_hopper(const struct ops *ops, const struct attention_args *a, bool is_backward)
{
    const struct device_info *info = &ops->cuda->info;
    bool in_forward, in_backward;
    return rows_asked_for(&in_forward, &in_backward) == CZ_OK &&
           (is_backward ? in_backward : in_forward) && info->capability_major == 9 &&
           info->capability_minor == 0 && info->shared_block_nbytes >= HOPPER_SHARED &&
           (a->D == 64 || a->D == 128) && a->dropout_p == 0 && !a->key_mask && a->Tq > 0 &&
           a->Tk > 0;
}

/* ---- arguments ---------------------------------------------------------------------------------
 */

static uint32_t keep_threshold(float p)
{
    /* keep iff (word >> 8)·2⁻²⁴ ≥ p, as integers: word ≥ ⌈p·2²⁴⌉·2⁸ */
    const double scaled = (double)p * 0x1p24;
    uint32_t whole = (uint32_t)scaled;
    if ((double)whole < scaled) whole++;
    return whole << 8;
}

/* Kernels count positions and blocks in 32 bits. */
static cz_status check_limits(const struct attention_args *a)
{
    const int64_t T = a->Tq > a->Tk ? a->Tq : a->Tk, most = ((int64_t)1 << 30) - 1;
    if (T <= most && a->D <= most && a->B * a->H <= most / (T / 32 + 1) / (a->D / 64 + 1))
        return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "attention: %lld sequences of %lld positions with %lld heads of width %lld "
                   "exceed what a GPU accepts in one call",
                   (long long)a->B, (long long)T, (long long)a->H, (long long)a->D);
}

static struct attention_on_gpu on_gpu(const struct ops *ops, const struct attention_args *a,
                                      bool backward)
{
    struct attention_on_gpu g = {};
    g.tiles = flash_tiles(ops, a, backward);
    g.B = (int)a->B, g.Tq = (int)a->Tq, g.Tk = (int)a->Tk;
    g.H = (int)a->H, g.G = (int)a->G, g.D = (int)a->D;
    g.group = g.H / g.G;
    g.causal = a->causal;
    g.future = a->causal ? g.Tk - g.Tq : g.Tk, g.past = g.Tq;
    if (has_window(a)) {
        const int reach = (int)a->window - 1; /* to both sides of t + (Tk − Tq) */
        if (!a->causal && g.future > reach + g.Tk - g.Tq) g.future = reach + g.Tk - g.Tq;
        if (g.past > reach + g.Tq - g.Tk) g.past = reach + g.Tq - g.Tk;
    }
    g.softcap = a->softcap;
    g.documents = a->documents;
    g.query_documents = a->query_documents ? a->query_documents : a->documents;
    g.scale = a->scale, g.scale_log2 = a->scale * ATTENTION_LOG2E;
    g.key_mask = a->key_mask;
    g.q = a->q, g.k = a->k, g.v = a->v, g.out = a->out, g.dout = a->dout;
    g.new_out = a->out, g.dq = a->dq, g.dk = a->dk, g.dv = a->dv;
    g.q_stride = a->q_stride, g.k_stride = a->k_stride, g.v_stride = a->v_stride;
    g.out_stride = a->out_stride;
    g.q_batch = a->q_batch ? a->q_batch : a->Tq * a->q_stride;
    g.k_batch = a->kv_batch ? a->kv_batch : a->Tk * a->k_stride;
    g.v_batch = a->kv_batch ? a->kv_batch : a->Tk * a->v_stride;
    g.lse = a->lse;
    g.first_b = a->first_b;
    g.n_buckets = (int)a->positions.n_buckets;
    g.position_scale = a->positions.scale;
    g.table = a->positions.table;
    g.q_scores = a->positions.q_scores, g.k_scores = a->positions.k_scores;
    g.dtable = a->positions.dtable;
    g.dq_scores = a->positions.dq_scores, g.dk_scores = a->positions.dk_scores;
    g.keep_scale = 1.0f / (1.0f - a->dropout_p);
    if (a->dropout_p > 0) {
        g.threshold = keep_threshold(a->dropout_p);
        rng_key_expand(&a->rng, g.philox_key, g.philox_hi);
    }
    return g;
}

/* ---- front door --------------------------------------------------------------------------------
 */

/* What positions have in the workspace, in bytes: buckets, then dq_scores that the caller does not
 * want. */
static size_t bucket_room(const struct attention_args *a)
{
    if (a->positions.n_buckets == 0) return 0;
    return size_round_up((size_t)(a->Tq + a->Tk) * sizeof(int32_t), ALIGN);
}

static size_t position_room(const struct attention_args *a, bool backward)
{
    const size_t n_scores = backward ? attention_own_dq_scores(a) : 0;
    return bucket_room(a) + size_round_up(n_scores * sizeof(float), ALIGN);
}

/* Places of positions from an address that ALIGN divides on; sums of gradients begin with zeros. */
static cz_status take_positions(struct attention_on_gpu *g, struct ops *ops,
                                const struct attention_args *a, bool backward, char *at,
                                struct dev_stream *stream)
{
    struct device *device = ops->device;
    if (a->positions.n_buckets == 0 || a->Tk == 0) return CZ_OK;
    g->buckets = (int32_t *)(void *)at;
    TRY(attention_put_buckets(g, &a->positions, stream));
    if (!backward) return CZ_OK;
    if (attention_own_dq_scores(a) > 0) g->dq_scores = (float *)(void *)(at + bucket_room(a));
    if (g->dq_scores)
        TRY(device->ops->fill_zero(device, stream, g->dq_scores,
                                   attention_q_scores_at(a, 0, a->H, 0) * sizeof(float)));
    if (!g->dk_scores) return CZ_OK;
    return device->ops->fill_zero(device, stream, g->dk_scores,
                                  attention_k_scores_at(a, 0, a->H, 0) * sizeof(float));
}

/* Backward's workspace in bytes from an address that ALIGN divides on: delta, then what the flash
 * row needs, dq_sums where there is more than one tile of keys; then what positions have. */
struct room {
    size_t dq_sums, turns, positions, end;
};

static struct room room_of(const struct ops *ops, const struct attention_args *a)
{
    const int tiles = flash_tiles(ops, a, true);
    struct room r = {};
    r.dq_sums = size_round_up((size_t)(a->B * a->H * a->Tq) * sizeof(float), ALIGN);
    r.turns = r.positions = r.dq_sums;
    if (tiles >= 0) {
        if (attention_key_tiles((int)a->Tk) > 1)
            r.turns += attention_flash_dq_numel(tiles, a->B, a->H, a->Tq) * sizeof(float);
        r.positions = r.turns + attention_flash_turns(tiles, a->B, a->H, a->Tq) * sizeof(unsigned);
        r.positions = size_round_up(r.positions, ALIGN);
    }
    r.end = r.positions + position_room(a, true);
    return r;
}

/* The same for both rows: pointers, on which the choice depends, are not known at plan time. */
static size_t workspace(const struct ops *ops, const struct attention_args *a, bool backward)
{
    if (backward) return room_of(ops, a).end + ALIGN;
    const size_t n_partials = attention_decode_partials(a), positions = position_room(a, false);
    return n_partials || positions ? n_partials * sizeof(float) + positions + ALIGN : 0;
}

static void take_room(struct attention_on_gpu *g, const struct ops *ops,
                      const struct attention_args *a)
{
    const struct room r = room_of(ops, a);
    char *base = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
    g->delta = (float *)(void *)base;
    g->dq_sums = (float *)(void *)(base + r.dq_sums);
    g->turns = (unsigned *)(void *)(base + r.turns);
    g->n_turns = (int64_t)((r.positions - r.turns) / sizeof(unsigned));
    if (g->tiles >= 0) g->bundle = attention_flash_bundle(g, ops->cuda->info.n_multiprocessors);
}

static cz_status forward(struct ops *ops, struct dev_stream *stream, const struct attention_args *a)
{
    if (a->B == 0 || a->Tq == 0 || a->H == 0) return CZ_OK;
    TRY(attention_check(a, false, workspace(ops, a, false)));
    TRY(check_limits(a));
    struct attention_on_gpu g = on_gpu(ops, a, false);
    char *base = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
    TRY(take_positions(&g, ops, a, false, base, stream));
    if (attention_takes_decode(a)) {
        g.partials = (float *)(void *)base;
        return attention_decode_forward(&g, a->dtype, stream);
    }
    if (!takes_flash(ops, a, false)) return attention_simt_forward(&g, a->dtype, stream);
    if (takes_hopper(ops, a, false)) return attention_hopper_forward(&g, a->dtype, stream);
    return attention_flash_forward(&g, a->dtype, stream);
}

static cz_status backward(struct ops *ops, struct dev_stream *stream,
                          const struct attention_args *a)
{
    if (a->B == 0 || a->H == 0 || (a->Tq == 0 && a->Tk == 0)) return CZ_OK;
    TRY(attention_check(a, true, workspace(ops, a, true)));
    TRY(check_limits(a));
    struct attention_on_gpu g = on_gpu(ops, a, true);
    take_room(&g, ops, a);
    const struct room room = room_of(ops, a);
    char *base = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
    TRY(take_positions(&g, ops, a, true, base + room.positions, stream));
    if (!takes_flash(ops, a, true)) {
        TRY(attention_simt_backward(&g, a->dtype, stream));
        return g.n_buckets && g.dtable ? attention_sum_table(&g, stream) : CZ_OK;
    }
    if (takes_hopper(ops, a, true)) return attention_hopper_backward(&g, a->dtype, stream);
    return attention_flash_backward(&g, a->dtype, stream);
}

extern "C" cz_status attention_wire_cuda(struct ops *ops)
{
    bool hopper_forward, hopper_backward;
    ops->attention_forward = forward;
    ops->attention_backward = backward;
    ops->attention_workspace = workspace;
    return rows_asked_for(
        &hopper_forward,
        &hopper_backward); /* a name that is none is refused before anything runs */
}
