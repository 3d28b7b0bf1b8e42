/* The layout of stage 3: every parameter is split on its own into W chunks; chunks are gathered in
 * sub-groups whose states are one tensor in checkpoints (docs/deepspeed-behaviour.md, "Partitions
 * of stage 3"). */
#include "layout/shard.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* A sub-group closes after the parameter with which it reaches its size, as in DeepSpeed, so it may
 * be larger. */
static cz_status shard_add(struct shard_group *g, size_t i, size_t sub_group_size, bool *is_open)
{
    if (!*is_open) {
        g->sub_groups[g->n_sub_groups++] = (struct shard_sub_group){.first = i};
        *is_open = true;
    }
    struct shard_sub_group *sub = &g->sub_groups[g->n_sub_groups - 1];
    g->params[i].off = sub->numel;
    sub->n_params++;
    TRY(size_add(g->numel, g->params[i].chunk, &g->numel));
    sub->numel += g->params[i].chunk; /* at most g->numel */
    if (sub->numel >= sub_group_size) *is_open = false;
    return CZ_OK;
}

cz_status shard_group_init(struct shard_group *g, const struct param_table *table,
                           const size_t *param_idx, size_t n, int world_size, size_t sub_group_size)
{
    memset(g, 0, sizeof *g);
    if (world_size < 1)
        return err_set(CZ_INVALID, 0, "a world of %d ranks cannot be partitioned", world_size);
    g->world_size = world_size;
    g->n_params = n;
    g->params = calloc(n + 1, sizeof *g->params);
    g->sub_groups = calloc(n + 1, sizeof *g->sub_groups);
    cz_status st;
    if (!g->params || !g->sub_groups) {
        st = err_set(CZ_NOMEM, 0, "no memory for the layout of %zu parameters", n);
        goto fail;
    }
    bool is_open = false;
    for (size_t i = 0; i < n; i++) {
        g->params[i].param_idx = param_idx[i];
        g->params[i].chunk = shard_chunk(table->params[param_idx[i]].numel, world_size);
        TRY_GOTO(shard_add(g, i, sub_group_size, &is_open), fail);
    }
    return CZ_OK;
fail:
    shard_group_free(g);
    return st;
}

void shard_group_free(struct shard_group *g)
{
    free(g->params);
    free(g->sub_groups);
    memset(g, 0, sizeof *g);
}

/* In module order, while the sum stays below the threshold. */
size_t shard_persistent(const struct param_table *table, size_t param_threshold,
                        size_t model_threshold, bool *persistent)
{
    size_t total = 0;
    for (size_t i = 0; i < table->n_params; i++) {
        size_t numel = table->params[i].numel;
        persistent[i] = numel <= param_threshold && numel <= model_threshold - total;
        if (persistent[i]) total += numel;
    }
    return total;
}
