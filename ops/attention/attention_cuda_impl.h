/* Attention on a GPU: what its entry points, its rows and their kernels share.
 *
 * Rows, chosen by the arguments alone (attention_cuda.cu):
 *   simt    fp32 arithmetic; every dtype, width, stride, alignment and option
 *   flash   tensor cores; bf16 and fp16, widths up to 128 in multiples of 8, 16-byte alignment; no
 *           soft cap, documents, positions or window that hides keys
 *   decode  fp32 arithmetic; forward of one query (of up to 4 and 128 keys), no dropout,
 *           documents or positions, widths up to 256
 * The first two compute blocks of queries by blocks of keys in shared memory and registers, so no
 * (Tq,Tk) tensor exists, and no sum depends on timing. Backward begins with delta =
 * rowsum(dout∘out), (B,H,Tq) in fp32 in the workspace. simt then has a pass for dq by blocks of
 * queries, and one for dk, dv by blocks of keys of a key head, which compute p twice; flash has the
 * second alone, and its blocks add to dq, in fp32 in the workspace, in the order of their keys. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_CUDA_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_CUDA_IMPL_H

#include "device/cuda/kernel.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_impl.h"

#define ATTENTION_LOG2E 1.44269504088896f /* exp(x) = exp2(x·this) */

/* The arguments as kernels take them: sizes fit 32 bits, distances between batch rows are set. */
struct attention_on_gpu {
    int B, Tq, Tk, H, G, D;
    int group;  /* query heads of a key head */
    int future; /* query t sees keys ≤ t + future; Tk when nothing hides later ones */
    int past;   /* and ≥ t − past; Tq without a window (not flash, as the next two) */
    float softcap;
    const int32_t *documents, *query_documents;
    bool causal;
    float scale, scale_log2; /* the latter times ATTENTION_LOG2E */
    const uint8_t *key_mask;
    const void *q, *k, *v, *out, *dout;
    void *new_out, *dq, *dk, *dv;
    int64_t q_stride, k_stride, v_stride, out_stride;
    int64_t q_batch, k_batch, v_batch;
    float *lse, *delta;
    float *dq_sums;  /* flash backward: sums of dq so far, by tiles (not read with 128 keys) */
    unsigned *turns; /* and the next number of a block, then whose turn each tile is */
    int64_t n_turns;
    int tiles;       /* flash: which of its rows of tiles */
    int bundle;      /* rows (b, g) whose tiles of keys are worked on together */
    float *partials; /* decode: what blocks leave to the kernel that joins them */
    /* dropout: keep an element iff its word ≥ threshold; 0 keeps all */
    uint32_t threshold, philox_key[2], philox_hi[2];
    float keep_scale;
    int64_t first_b;
    /* positions (simt only): R of them, 0 for none; (Tq + Tk − 1) buckets in the workspace */
    int n_buckets;
    float position_scale;
    int32_t *buckets;
    const void *table, *q_scores, *k_scores;
    float *dtable, *dq_scores, *dk_scores;
};

/* The entry point has checked everything; each of these starts one or two kernels. */
cz_status attention_simt_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                 struct dev_stream *stream);
cz_status attention_simt_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                  struct dev_stream *stream);
/* Before the two above: the buckets of positions, from host memory to a->buckets. */
cz_status attention_put_buckets(const struct attention_on_gpu *a,
                                const struct attention_positions *from, struct dev_stream *stream);
/* And behind backward: a->dtable. */
cz_status attention_sum_table(const struct attention_on_gpu *a, struct dev_stream *stream);
cz_status attention_flash_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                  struct dev_stream *stream);
cz_status attention_flash_backward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream);
/* What comes first in it: delta, and turns begin. */
cz_status attention_flash_delta(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                struct dev_stream *stream);

cz_status attention_decode_forward(const struct attention_on_gpu *a, enum cz_dtype dtype,
                                   struct dev_stream *stream);

/* Whether decode is for these arguments, and elements of its partials. */
bool attention_takes_decode(const struct attention_args *a);
size_t attention_decode_partials(const struct attention_args *a);

/* Which of its rows of tiles each takes for heads of width D (128 at most) on a device, by shared
 * memory; -1: its blocks have no space there, and the simt row runs. */
int attention_flash_forward_tiles(const struct device_info *gpu, int D);
int attention_flash_backward_tiles(const struct device_info *gpu, int D);

/* What flash backward has in its workspace besides delta: elements of dq_sums and of turns. And how
 * wide its bundles are on a device: shapes decide results, this only when blocks start. */
size_t attention_flash_dq_numel(int tiles, int64_t B, int64_t H, int64_t Tq);
size_t attention_flash_turns(int tiles, int64_t B, int64_t H, int64_t Tq);
int attention_flash_bundle(const struct attention_on_gpu *a, int n_multiprocessors);

/* ---- on the device --------------------------------------------------------------------------- */

/* Blocks of flash backward per key head; one without any key makes dq of 0. */
static __host__ __device__ inline int attention_key_tiles(int Tk)
{
    return Tk > 128 ? (Tk + 127) / 128 : 1;
}

/* Blocks of decode per key head. */
static __host__ __device__ inline int attention_decode_splits(int Tk)
{
    return Tk > 128 ? (Tk + 127) / 128 : 1;
}

/* Keys that query tq sees are [0, this), before the key mask. */
CUDA_FN int keys_seen(const struct attention_on_gpu &a, int tq)
{
    return max(0, min(a.Tk, tq + 1 + a.future));
}

/* The first of them, with a window. */
CUDA_FN int first_key(const struct attention_on_gpu &a, int tq)
{
    return max(0, tq - a.past);
}

/* A scaled score as the softmax takes it. */
CUDA_FN float capped(const struct attention_on_gpu &a, float s)
{
    return a.softcap > 0 ? a.softcap * tanhf(s / a.softcap) : s;
}

/* First query that sees key tk, before the key mask. */
CUDA_FN int first_query(const struct attention_on_gpu &a, int tk)
{
    return a.causal ? max(0, tk - a.future) : 0;
}

/* Index of dropout's element (b, h, tq, key 0). */
CUDA_FN uint64_t draw_row(const struct attention_on_gpu &a, int b, int h, int tq)
{
    return ((((uint64_t)a.first_b + b) * a.H + h) * a.Tq + tq) * a.Tk;
}

/* The four words of one Philox block (base/rng.h). */
CUDA_FN void draw_block(const struct attention_on_gpu &a, uint64_t block, uint32_t word[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = a.philox_hi[0], c3 = a.philox_hi[1];
    uint32_t k0 = a.philox_key[0], k1 = a.philox_key[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

/* Whether dropout keeps element `idx`. */
CUDA_FN bool draw_keeps(const struct attention_on_gpu &a, uint64_t idx)
{
    uint32_t word[4];
    draw_block(a, idx >> 2, word);
    const uint32_t low = idx & 1 ? word[1] : word[0], high = idx & 1 ? word[3] : word[2];
    return (idx & 2 ? high : low) >= a.threshold;
}

#endif
