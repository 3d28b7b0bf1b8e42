/* Init rule of element e of parameter i under `seed`: normal numbers by Box-Muller, two pairs per
 * Philox block; e = 4j … 4j+3 come from block j. A pure function of (seed, i, e): any piece can be
 * made alone, by any rank, with the same bits. */
#include "model/model_impl.h"

#include "base/threads.h"

#include <math.h>
#include <string.h>

/* Four standard normals of Philox block `block`. */
static void normal_block(const uint32_t key[2], const uint32_t hi[2], uint64_t block, float z[4])
{
    uint32_t u[4];
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), hi[0], hi[1]};
    rng_philox4x32(counter, key, u);
    for (int pair = 0; pair < 2; pair++) {
        float uniform = ((float)(u[2 * pair] >> 8) + 1.0f) * 0x1p-24f; /* (0, 1] */
        float radius = sqrtf(-2.0f * logf(uniform));
        float angle = (float)(u[2 * pair + 1] >> 8) * (6.28318531f * 0x1p-24f);
        z[2 * pair] = radius * cosf(angle);
        z[2 * pair + 1] = radius * sinf(angle);
    }
}

/* dst[0 … numel) = std · normals of elements elem_off …; blocks at both ends may be partial. */
static void fill_normal(uint64_t seed, size_t param_idx, size_t elem_off, size_t numel, float std,
                        float *dst)
{
    /* A stream of its own: dropout uses step and sample numbers that stay far from these. */
    const struct rng_key rng = {seed, (uint32_t)param_idx, UINT32_MAX, UINT64_MAX};
    uint32_t key[2], hi[2];
    rng_key_expand(&rng, key, hi);
    const size_t first = elem_off / 4, last = (elem_off + numel + 3) / 4;
#pragma omp parallel for schedule(static) if (numel > 65536 && threads_count() > 1)
    for (size_t block = first; block < last; block++) {
        float z[4];
        normal_block(key, hi, block, z);
        for (size_t i = 0; i < 4; i++) {
            size_t e = 4 * block + i;
            if (e >= elem_off && e < elem_off + numel) dst[e - elem_off] = std * z[i];
        }
    }
}

/* dst = uniform numbers in [−bound, bound), from the same blocks. */
static void fill_uniform(uint64_t seed, size_t param_idx, size_t elem_off, size_t numel,
                         float bound, float *dst)
{
    const struct rng_key rng = {seed, (uint32_t)param_idx, UINT32_MAX, UINT64_MAX};
    uint32_t key[2], hi[2], u[4] = {0};
    rng_key_expand(&rng, key, hi);
    for (size_t i = 0; i < numel; i++) {
        const size_t e = elem_off + i;
        const uint32_t counter[4] = {(uint32_t)(e / 4), (uint32_t)((uint64_t)(e / 4) >> 32), hi[0],
                                     hi[1]};
        if (i == 0 || e % 4 == 0) rng_philox4x32(counter, key, u);
        dst[i] = bound * ((float)(u[e % 4] >> 8) * 0x1p-23f - 1.0f);
    }
}

/* Elements elem_off … of a table of positions; frequencies fall from 1 to 1/10000. */
static void fill_sinusoid(const struct param_info *p, size_t elem_off, size_t numel, float *dst)
{
    const size_t C = (size_t)p->shape[1];
    for (size_t i = 0; i < numel; i++) {
        size_t row = (elem_off + i) / C, c = (elem_off + i) % C;
        double angle = (double)row / pow(10000.0, 2.0 * (double)(c / 2) / (double)C);
        dst[i] = (float)(c % 2 ? cos(angle) : sin(angle));
    }
}

/* PyTorch's padding_idx: that row starts as zeros. */
static void clear_row(const struct param_info *p, size_t elem_off, size_t numel, float *dst)
{
    const size_t C = p->numel / (size_t)p->shape[0], first = (size_t)p->zero_row * C;
    for (size_t i = 0; i < numel; i++)
        if (elem_off + i >= first && elem_off + i < first + C) dst[i] = 0.0f;
}

/* The rule is in the parameter table, so that any rank can make any piece of any parameter. */
void weights_by_rule(const struct cz_model *m, size_t param_idx, size_t elem_off, size_t numel,
                     float *dst)
{
    const struct param_info *p = &m->params.params[param_idx];
    switch (p->init) {
    case PARAM_INIT_ZERO: memset(dst, 0, numel * sizeof *dst); break;
    case PARAM_INIT_ONE:
        for (size_t i = 0; i < numel; i++) dst[i] = 1.0f;
        break;
    case PARAM_INIT_NORMAL:
        fill_normal(m->weights.seed, param_idx, elem_off, numel, p->init_std, dst);
        break;
    case PARAM_INIT_SINUSOID: fill_sinusoid(p, elem_off, numel, dst); break;
    case PARAM_INIT_UNIFORM:
        fill_uniform(m->weights.seed, param_idx, elem_off, numel, p->init_std, dst);
        break;
    }
    if (p->has_zero_row) clear_row(p, elem_off, numel, dst);
}
