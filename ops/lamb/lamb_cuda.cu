/* Lamb on a GPU: the arithmetic of lamb_update_impl.h, a launch per batch of segments. Limits: pass
 * 0 memory where doubles run at half of fp32's rate (A100, H100), 24 bytes per element and 34
 * double-precision instructions; pass 1 memory, 16 bytes. */
#include "ops/lamb/lamb_sums_cuda_impl.h"
#include "ops/lamb/lamb_update_impl.h"

/* The arguments without what the host alone reads. */
struct lamb_tile {
    struct step_tensors t;
    const struct step_scalars *scalars;
    float eps, weight_decay;
    bool eps_inside_sqrt;
};

CUDA_FN float lamb_u(const struct lamb_tile &a, float p, float m, float v)
{
    return lamb_update_of(a.eps, a.weight_decay, a.eps_inside_sqrt, p, m, v);
}

/* ---- pass 0 -----------------------------------------------------------------------------------
 */

/* G: the type of gradients; arrays aligned alike. */
template <typename G>
__global__ void __launch_bounds__(STEP_BLOCK)
    lamb_moments_kernel(const __grid_constant__ struct lamb_tile a,
                        const __grid_constant__ struct lamb_batch batch, unsigned lead,
                        struct lamb_partial *partials)
{
    size_t begin, end;
    (void)lamb_block_range(batch, &begin, &end);
    const struct step_scalars s = *a.scalars;
    const float *p = (const float *)a.t.p + begin;
    const G *g = (const G *)a.t.g + begin;
    float *m = (float *)a.t.states[0] + begin, *v = (float *)a.t.states[1] + begin;
    const size_t numel = end - begin;
    lead = (unsigned)(lead + begin) % STEP_LANES;
    const size_t n_packs = packs_count(numel, lead, STEP_LANES);
    struct lamb_acc sum_p, sum_u;
    lamb_acc_clear(&sum_p), lamb_acc_clear(&sum_u);
    for (size_t k = threadIdx.x; k < n_packs; k += STEP_BLOCK) {
        const int64_t at = packs_at<STEP_LANES>(k, lead);
        float pk[STEP_LANES], gk[STEP_LANES], mk[STEP_LANES], vk[STEP_LANES], u[STEP_LANES];
        packs_load<STEP_LANES>(p, at, numel, pk);
        packs_load<STEP_LANES>(g, at, numel, gk);
        packs_load<STEP_LANES>(m, at, numel, mk);
        packs_load<STEP_LANES>(v, at, numel, vk);
#pragma unroll
        for (int i = 0; i < STEP_LANES; i++) {
            lamb_update_moments(&s, gk[i], &mk[i], &vk[i]);
            u[i] = packs_has(at, i, numel) ? lamb_u(a, pk[i], mk[i], vk[i]) : 0;
        }
        packs_store<STEP_LANES>(m, at, numel, mk);
        packs_store<STEP_LANES>(v, at, numel, vk);
        lamb_acc_take<STEP_LANES>(&sum_p, pk);
        lamb_acc_take<STEP_LANES>(&sum_u, u);
    }
    lamb_partial_write(&partials[blockIdx.x], &sum_p, &sum_u, 0);
}

static __global__ void __launch_bounds__(STEP_BLOCK)
    lamb_moments_any_kernel(const __grid_constant__ struct lamb_tile a,
                            const __grid_constant__ struct lamb_batch batch,
                            struct lamb_partial *partials)
{
    size_t begin, end;
    (void)lamb_block_range(batch, &begin, &end);
    const struct step_scalars s = *a.scalars;
    float *m = (float *)a.t.states[0], *v = (float *)a.t.states[1];
    struct lamb_acc sum_p, sum_u;
    lamb_acc_clear(&sum_p), lamb_acc_clear(&sum_u);
    for (size_t i = begin + threadIdx.x; i < end; i += STEP_BLOCK) {
        float p = any_load(a.t.p, a.t.p_dtype, i), mi = m[i], vi = v[i];
        lamb_update_moments(&s, any_load(a.t.g, a.t.g_dtype, i), &mi, &vi);
        m[i] = mi, v[i] = vi;
        float u = lamb_u(a, p, mi, vi);
        lamb_acc_take<1>(&sum_p, &p);
        lamb_acc_take<1>(&sum_u, &u);
    }
    lamb_partial_write(&partials[blockIdx.x], &sum_p, &sum_u, 0);
}

/* ---- pass 1 -----------------------------------------------------------------------------------
 */

/* O: the type of the parameter, float when there is none. */
template <typename O>
__global__ void __launch_bounds__(STEP_BLOCK)
    lamb_apply_kernel(const __grid_constant__ struct lamb_tile a,
                      const __grid_constant__ struct lamb_batch batch, unsigned lead,
                      const float *ratios)
{
    size_t begin, end;
    const unsigned segment = lamb_block_range(batch, &begin, &end);
    const float step = a.scalars->step_size * ratios[batch.tensor[segment]];
    float *p = (float *)a.t.p + begin;
    const float *m = (const float *)a.t.states[0] + begin;
    const float *v = (const float *)a.t.states[1] + begin;
    O *out = a.t.out ? (O *)a.t.out + begin : NULL;
    const size_t numel = end - begin;
    lead = (unsigned)(lead + begin) % STEP_LANES;
    const size_t n_packs = packs_count(numel, lead, STEP_LANES);
    for (size_t k = threadIdx.x; k < n_packs; k += STEP_BLOCK) {
        const int64_t at = packs_at<STEP_LANES>(k, lead);
        float pk[STEP_LANES], mk[STEP_LANES], vk[STEP_LANES];
        packs_load<STEP_LANES>(p, at, numel, pk);
        packs_load<STEP_LANES>(m, at, numel, mk);
        packs_load<STEP_LANES>(v, at, numel, vk);
#pragma unroll
        for (int i = 0; i < STEP_LANES; i++)
            pk[i] = lamb_update_applied(step, lamb_u(a, pk[i], mk[i], vk[i]), pk[i]);
        packs_store<STEP_LANES>(p, at, numel, pk);
        if (out) packs_store<STEP_LANES>(out, at, numel, pk);
    }
}

static __global__ void __launch_bounds__(STEP_BLOCK)
    lamb_apply_any_kernel(const __grid_constant__ struct lamb_tile a,
                          const __grid_constant__ struct lamb_batch batch, const float *ratios)
{
    size_t begin, end;
    const unsigned segment = lamb_block_range(batch, &begin, &end);
    const float step = a.scalars->step_size * ratios[batch.tensor[segment]];
    const float *m = (const float *)a.t.states[0], *v = (const float *)a.t.states[1];
    for (size_t i = begin + threadIdx.x; i < end; i += STEP_BLOCK) {
        float p = any_load(a.t.p, a.t.p_dtype, i);
        p = lamb_update_applied(step, lamb_u(a, p, m[i], v[i]), p);
        any_store(a.t.p, a.t.p_dtype, i, p);
        if (a.t.out) any_store(a.t.out, a.t.out_dtype, i, p);
    }
}

/* ---- batches ----------------------------------------------------------------------------------
 */

struct lamb_launch {
    struct ops *ops;
    struct dev_stream *stream;
    const struct lamb_args *args;
    struct lamb_tile tile;
    struct lamb_batch batch;
    bool packed;
    unsigned lead;
};

static cz_status moments_of(const struct lamb_launch *l)
{
    void *room;
    TRY(cuda_scratch(l->ops, l->stream, &room));
    struct lamb_partial *partials = (struct lamb_partial *)room;
    const struct lamb_batch *b = &l->batch;
    const unsigned blocks = b->first_block[b->n];
    if (l->packed)
        CUDA_BY_DTYPE(l->tile.t.g_dtype, G, {
            TRY(cuda_launch("lamb_moments", lamb_moments_kernel<G>, blocks, STEP_BLOCK, 0,
                            l->stream, l->tile, *b, l->lead, partials));
        });
    else
        TRY(cuda_launch("lamb_moments", lamb_moments_any_kernel, blocks, STEP_BLOCK, 0, l->stream,
                        l->tile, *b, partials));
    return cuda_launch("lamb_moments: sums", lamb_sums_kernel, b->n, STEP_BLOCK, 0, l->stream, *b,
                       (const struct lamb_partial *)partials, l->args->sums, (float *)NULL);
}

static cz_status apply_to(const struct lamb_launch *l)
{
    const struct lamb_batch *b = &l->batch;
    const unsigned blocks = b->first_block[b->n];
    if (!l->packed)
        return cuda_launch("lamb_apply", lamb_apply_any_kernel, blocks, STEP_BLOCK, 0, l->stream,
                           l->tile, *b, l->args->ratios);
    CUDA_BY_DTYPE(l->tile.t.out ? l->tile.t.out_dtype : DTYPE_F32, O, {
        return cuda_launch("lamb_apply", lamb_apply_kernel<O>, blocks, STEP_BLOCK, 0, l->stream,
                           l->tile, *b, l->lead, l->args->ratios);
    });
    return CZ_OK;
}

/* Launch after launch until all segments are through. */
static cz_status each_batch(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a,
                            cz_status (*pass)(const struct lamb_launch *))
{
    struct lamb_launch l = {
        ops, stream, a, {a->t, a->scalars, a->eps, a->weight_decay, a->eps_inside_sqrt},
        {},  false,  0};
    const int n_mp = ops->cuda->info.n_multiprocessors;
    l.packed = step_typed(&a->t) && step_aligned(&a->t, 2, &l.lead);
    for (size_t i = 0; i < a->n_segments;) {
        i += lamb_batch_take(&l.batch, a->segments + i, a->n_segments - i, n_mp);
        if (l.batch.n > 0) TRY(pass(&l));
    }
    return CZ_OK;
}

static cz_status lamb_moments(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a)
{
    TRY(lamb_check("lamb_moments", a, "sums", a->sums));
    return each_batch(ops, stream, a, moments_of);
}

static cz_status lamb_apply(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a)
{
    TRY(lamb_check("lamb_apply", a, "ratios", a->ratios));
    return each_batch(ops, stream, a, apply_to);
}

extern "C" cz_status lamb_wire_cuda(struct ops *ops)
{
    ops->lamb_moments = lamb_moments;
    ops->lamb_apply = lamb_apply;
    return CZ_OK;
}
