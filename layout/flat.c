/* The flat layout of stages 1 and 2: a group's parameters one after the other, padded to a multiple
 * of 2·W elements, in W equal partitions (docs/deepspeed-behaviour.md, "Flat buffers"). Checkpoints
 * have this layout, so it must be DeepSpeed's to the element. */
#include "layout/flat.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* With an alignment each parameter begins at a multiple of it, as parameter_alignment does. */
static cz_status place(struct flat_group *g, const struct param_table *table,
                       const size_t *param_idx, size_t align)
{
    for (size_t i = 0; i < g->n_params; i++) {
        struct flat_param *p = &g->params[i];
        p->param_idx = param_idx[g->order[i]];
        p->numel = table->params[p->param_idx].numel;
        p->off = g->numel;
        if (align && g->numel % align != 0) {
            TRY(size_add(g->numel, align - g->numel % align, &p->off));
        }
        TRY(size_add(p->off, p->numel, &g->numel));
    }
    return CZ_OK;
}

cz_status flat_group_init(struct flat_group *g, const struct param_table *table,
                          const size_t *param_idx, size_t n, const struct flat_options *options)
{
    memset(g, 0, sizeof *g);
    if (options->world_size < 1)
        return err_set(CZ_INVALID, 0, "a world of %d ranks cannot be partitioned",
                       options->world_size);
    g->world_size = options->world_size;
    g->n_params = n;
    g->params = calloc(n + 1, sizeof *g->params);
    g->order = calloc(n + 1, sizeof *g->order);
    cz_status st;
    if (!g->params || !g->order) {
        st = err_set(CZ_NOMEM, 0, "no memory for the layout of %zu parameters", n);
        goto fail;
    }
    /* Flat position → position in the group. With round robin, parameter k goes into bin k mod W
     * and the bins are joined. */
    size_t n_bins = options->round_robin ? (size_t)options->world_size : 1;
    size_t at = 0;
    for (size_t bin = 0; bin < n_bins; bin++)
        for (size_t k = bin; k < n; k += n_bins) g->order[at++] = k;
    TRY_GOTO(place(g, table, param_idx, options->param_align), fail);
    size_t unit = (size_t)FLAT_ALIGN_FACTOR * (size_t)g->world_size;
    TRY_GOTO(size_add(g->numel, unit - 1, &g->numel_padded), fail);
    g->numel_padded = g->numel_padded / unit * unit;
    g->partition = g->numel_padded / (size_t)g->world_size;
    return CZ_OK;
fail:
    flat_group_free(g);
    return st;
}

void flat_group_free(struct flat_group *g)
{
    free(g->params);
    free(g->order);
    memset(g, 0, sizeof *g);
}

/* Elements of a rank's partition that no parameter has. The last ranks may have nothing else. */
size_t flat_group_padding(const struct flat_group *g, int rank)
{
    size_t begin = (size_t)rank * g->partition;
    size_t end = begin + g->partition;
    if (g->numel <= begin) return g->partition;
    return g->numel < end ? end - g->numel : 0;
}

/* The first parameter that ends after `off`. */
static size_t first_after(const struct flat_group *g, size_t off)
{
    size_t lo = 0, hi = g->n_params;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (g->params[mid].off + g->params[mid].numel <= off)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t flat_group_find(const struct flat_group *g, size_t off)
{
    size_t pos = first_after(g, off);
    return pos < g->n_params && g->params[pos].off <= off ? pos : g->n_params;
}

/* The next piece of a parameter in [begin, end). *pos 0 also begins the walk: a range that begins
 * with parameter 0 finds it again. */
bool flat_group_next(const struct flat_group *g, size_t begin, size_t end, size_t *pos,
                     struct flat_piece *out)
{
    if (*pos == 0) *pos = first_after(g, begin);
    if (*pos >= g->n_params || g->params[*pos].off >= end) return false;
    const struct flat_param *p = &g->params[*pos];
    size_t lo = p->off > begin ? p->off : begin;
    size_t hi = p->off + p->numel < end ? p->off + p->numel : end;
    *out = (struct flat_piece){
        .pos = *pos, .param_off = lo - p->off, .range_off = lo - begin, .numel = hi - lo};
    ++*pos;
    return true;
}
