/* Sources of weights: safetensors files, read piece by piece, or the init rules.
 *
 * Init rule of element e of parameter i under `seed`: normal numbers by Box-Muller, two pairs per
 * Philox block; e = 4j … 4j+3 come from block j. A pure function of (seed, i, e): any piece can be
 * made alone, by any rank, with the same bits. */
#include "base/log.h"
#include "formats/file_io.h"
#include "model/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weights_free(struct weight_source *w)
{
    safetensors_close(w->files);
    free(w->tensor);
    memset(w, 0, sizeof *w);
}

/* ---- the init rules ---------------------------------------------------------------------------
 */

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
#pragma omp parallel for schedule(static) if (numel > 65536)
    for (size_t block = first; block < last; block++) {
        float z[4];
        normal_block(key, hi, block, z);
        for (size_t i = 0; i < 4; i++) {
            size_t e = 4 * block + i;
            if (e >= elem_off && e < elem_off + numel) dst[e - elem_off] = std * z[i];
        }
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

static void clear_row(const struct param_info *p, size_t elem_off, size_t numel, float *dst)
{
    const size_t C = p->numel / (size_t)p->shape[0], first = (size_t)p->zero_row * C;
    for (size_t i = 0; i < numel; i++)
        if (elem_off + i >= first && elem_off + i < first + C) dst[i] = 0.0f;
}

static void fill_by_rule(const struct model *m, size_t param_idx, size_t elem_off, size_t numel,
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
    }
    if (p->has_zero_row) clear_row(p, elem_off, numel, dst);
}

cz_status model_read_weights(struct model *m, size_t param_idx, size_t elem_off, size_t numel,
                             float *dst)
{
    if (param_idx >= m->params.n_params)
        return err_set(CZ_INVALID, 0, "%s has %zu parameters: there is no number %zu", m->name,
                       m->params.n_params, param_idx);
    const struct param_info *p = &m->params.params[param_idx];
    if (elem_off > p->numel || numel > p->numel - elem_off)
        return err_set(CZ_INVALID, 0, "%s: elements %zu … %zu are beyond its %zu", p->name,
                       elem_off, elem_off + numel, p->numel);
    if (m->weights.files)
        return safetensors_read_f32(m->weights.files, m->weights.tensor[param_idx], elem_off, numel,
                                    dst);
    fill_by_rule(m, param_idx, elem_off, numel, dst);
    return CZ_OK;
}

/* ---- files ------------------------------------------------------------------------------------
 */

cz_status weights_open(const char *dir, bool required, struct safetensors **out)
{
    cz_status st = safetensors_dir_open(dir, out);
    if (st != CZ_NOTFOUND) return st;
    static const char *const others[] = {"model.safetensors.index.json", "pytorch_model.bin",
                                         "pytorch_model.bin.index.json", "tf_model.h5",
                                         "flax_model.msgpack"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++) {
        char *path = file_join(dir, others[i]);
        bool found = path && file_exists(path);
        free(path);
        if (found && i == 0) return st; /* an index whose shard is missing: that sentence stands */
        if (found)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s holds its weights as %s: save it as model.safetensors first", dir,
                           others[i]);
    }
    if (required) return st;
    err_clear();
    return CZ_OK;
}

static bool shape_matches(const struct param_info *p, const struct safetensors_info *t)
{
    return t->ndim == (size_t)p->ndim &&
           memcmp(t->shape, p->shape, t->ndim * sizeof *p->shape) == 0;
}

/* "(64, 192)" */
static const char *shape_text(const int64_t *shape, size_t ndim, char *buf, size_t buf_nbytes)
{
    size_t used = 0;
    buf[0] = '\0';
    for (size_t d = 0; d < ndim && used < buf_nbytes; d++)
        used += (size_t)snprintf(buf + used, buf_nbytes - used, "%s%lld", d ? ", " : "(",
                                 (long long)shape[d]);
    if (used < buf_nbytes) snprintf(buf + used, buf_nbytes - used, ndim ? ")" : "()");
    return buf;
}

/* The tensor of a parameter: under its name, the name in the bare model, or a tied name. */
static const struct safetensors_info *tensor_find(const struct model *m,
                                                  const struct safetensors *files, size_t idx)
{
    const char *name = m->params.params[idx].name;
    const struct safetensors_info *t = safetensors_find(files, name);
    const char *prefix = m->family ? m->family->base_prefix : "";
    if (!t && prefix[0] && strncmp(name, prefix, strlen(prefix)) == 0)
        t = safetensors_find(files, name + strlen(prefix));
    for (size_t i = 0; !t && i < m->params.n_aliases; i++)
        if (m->params.aliases[i].param_idx == idx)
            t = safetensors_find(files, m->params.aliases[i].name);
    return t;
}

static cz_status tensor_check(const struct param_info *p, const struct safetensors_info *t)
{
    if (!shape_matches(p, t)) {
        char have[96], want[96];
        return err_set(CZ_CORRUPT, 0, "%s: tensor %s has shape %s, the model needs %s", t->path,
                       t->name, shape_text(t->shape, t->ndim, have, sizeof have),
                       shape_text(p->shape, (size_t)p->ndim, want, sizeof want));
    }
    switch (t->dtype) {
    case SAFETENSORS_F32:
    case SAFETENSORS_BF16:
    case SAFETENSORS_F16:
    case SAFETENSORS_F64: return CZ_OK;
    default:
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: tensor %s is %s; weights may be F32, BF16, F16 or F64", t->path,
                       t->name, safetensors_dtype_name(t->dtype));
    }
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

static bool is_known_extra(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->params.n_aliases; i++)
        if (strcmp(name, m->params.aliases[i].name) == 0) return true;
    if (!m->family) return false;
    for (const char *const *suffix = m->family->ignored_suffixes; *suffix; suffix++)
        if (has_suffix(name, *suffix)) return true;
    return false;
}

/* Say which tensors of the files nobody asked for: a hint that the config does not fit. */
static void report_unused(const struct model *m, const struct safetensors *files,
                          const struct safetensors_info *const *used, const char *place)
{
    if (!log_enabled(LOG_INFO, SUB_MODEL)) return;
    size_t n_unused = 0;
    const char *first = NULL;
    for (size_t i = 0; i < safetensors_count(files); i++) {
        const struct safetensors_info *t = safetensors_at(files, i);
        bool is_used = is_known_extra(m, t->name);
        for (size_t p = 0; !is_used && p < m->params.n_params; p++) is_used = used[p] == t;
        if (is_used) continue;
        if (n_unused++ == 0) first = t->name;
    }
    if (n_unused)
        log_line(LOG_INFO, "%s: %zu tensor%s not used by this model (first: %s)", place, n_unused,
                 n_unused == 1 ? " is" : "s are", first);
}

cz_status weights_bind(struct model *m, struct safetensors *files, const char *place)
{
    const struct safetensors_info **tensor = calloc(m->params.n_params, sizeof *tensor);
    if (!tensor) return err_set(CZ_NOMEM, 0, "no memory for %zu tensors", m->params.n_params);
    cz_status st = CZ_OK;
    for (size_t i = 0; i < m->params.n_params && st == CZ_OK; i++) {
        const struct param_info *p = &m->params.params[i];
        tensor[i] = tensor_find(m, files, i);
        char want[96];
        if (!tensor[i])
            st = err_set(CZ_NOTFOUND, 0, "%s: the weights lack tensor %s %s", place, p->name,
                         shape_text(p->shape, (size_t)p->ndim, want, sizeof want));
        else
            st = tensor_check(p, tensor[i]);
    }
    if (st != CZ_OK) {
        free(tensor);
        return st;
    }
    report_unused(m, files, tensor, place);
    weights_free(&m->weights);
    m->weights.files = files;
    m->weights.tensor = tensor;
    return CZ_OK;
}

bool model_has_weights(const struct model *m)
{
    return m->weights.files != NULL;
}

cz_status model_init_from(struct model *m, const char *dir, uint64_t seed)
{
    if (!dir) {
        weights_free(&m->weights);
        m->weights.seed = seed;
        return CZ_OK;
    }
    struct safetensors *files;
    TRY(weights_open(dir, true, &files));
    cz_status st = weights_bind(m, files, dir);
    if (st != CZ_OK) safetensors_close(files);
    return st;
}
