/* DeepSpeed's files written from slices, read back: every tensor of every rank's dictionaries holds
 * what its source held, views and paddings are DeepSpeed's, and the manifest's entries are true. */
#include "checkpoint/read/checkpoint.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/pt/pt.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

#include <pthread.h>

static char path_text[512];

static const char *path_of(const char *dir, const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", dir, name);
    return path_text;
}

static struct pt *open_pt(const char *dir, const char *name)
{
    struct pt *pt;
    ck_ok(pt_open(path_of(dir, name), &pt));
    ck_ok(pt_verify(pt, NULL, NULL));
    return pt;
}

static struct pt *open_model(const struct rig *r, const char *dir, int rank)
{
    char name[CKPT_NAME_MAX];
    ckpt_model_file(r->c.stage, rank, name);
    return open_pt(dir, name);
}

static struct pt *open_optim(const struct rig *r, const char *dir, int rank)
{
    char name[CKPT_NAME_MAX];
    ckpt_optim_file(r->c.dtype == DTYPE_BF16, rank, name);
    return open_pt(dir, name);
}

static const struct pickle_node *get(const struct pickle_node *dict, const char *key)
{
    const struct pickle_node *node = pickle_get(dict, key);
    ck_assert_msg(node != NULL, "no key %s", key);
    return node;
}

static int64_t get_int(const struct pickle_node *dict, const char *key)
{
    int64_t value = 0;
    ck_assert_msg(pickle_to_int(get(dict, key), &value), "%s is no integer", key);
    return value;
}

/* The value under an integer key. */
static const struct pickle_node *get_at(const struct pickle_node *dict, int64_t key)
{
    int64_t found;
    for (size_t i = 0; i < dict->n_pairs; i++)
        if (pickle_to_int(dict->pairs[i].key, &found) && found == key) return dict->pairs[i].value;
    ck_abort_msg("no key %lld", (long long)key);
    return NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A tensor's elements are those of the source from element `off` on. */
static void check_tensor(const struct rig *r, const struct pt *pt, const struct pickle_node *node,
                         int rank, const struct ckpt_job *source, size_t off, size_t numel)
{
    ck_assert(pickle_is(node, PICKLE_TENSOR));
    ck_assert_uint_eq(node->tensor->numel, numel);
    ck_assert(node->tensor->dtype->has_base && node->tensor->dtype->base == source->dtype);
    float *values = malloc((numel + 1) * sizeof *values);
    ck_assert_ptr_nonnull(values);
    ck_ok(pt_read_f32(pt, node->tensor, 0, numel, values));
    for (size_t i = 0; i < numel; i++) {
        float want = rig_at(r, rank, source, off + i);
        if (memcmp(&values[i], &want, sizeof want) != 0)
            ck_abort_msg("source %d group %zu: element %zu is %g, not %g", source->source,
                         source->group, off + i, (double)values[i], (double)want);
    }
    free(values);
}

static bool is_frozen(const struct rig *r, size_t param_idx)
{
    return r->group_of[param_idx] == r->n_groups;
}

static void check_shape(const struct rig *r, size_t param_idx, const struct pickle_tensor *t)
{
    const struct param_info *info = &r->table.params[param_idx];
    ck_assert_int_eq(t->ndim, info->ndim);
    for (int d = 0; d < t->ndim; d++) ck_assert_int_eq(t->shape[d], info->shape[d]);
}

static void check_weight(const struct rig *r, const struct pt *pt, const struct pickle_node *node,
                         size_t param_idx)
{
    size_t group = r->group_of[param_idx];
    struct ckpt_job source = {.dtype = r->c.dtype, .group = group, .param_idx = param_idx};
    ck_assert(pickle_is(node, PICKLE_TENSOR));
    ck_assert(!node->tensor->requires_grad);
    if (r->c.stage == 3) {
        ck_assert_uint_eq(node->tensor->numel, 0);
        ck_assert_uint_eq(node->tensor->storage_nbytes, 0);
        return;
    }
    check_shape(r, param_idx, node->tensor);
    size_t off = 0, size = dtype_size(r->c.dtype), numel = r->table.params[param_idx].numel;
    if (is_frozen(r, param_idx)) {
        source.source = CKPT_FROM_FROZEN;
        ck_assert_uint_eq(node->tensor->storage_nbytes, numel * size);
    } else {
        const struct flat_group *flat = &r->flat[group];
        size_t pos = 0, whole = r->c.stage ? flat->numel_padded : r->c.fused ? flat->numel : numel;
        while (flat->params[pos].param_idx != param_idx) pos++;
        off = flat->params[pos].off;
        ck_assert_uint_eq(node->tensor->storage_nbytes, whole * size);
        ck_assert_uint_eq(node->tensor->off, r->c.stage || r->c.fused ? off : 0);
    }
    check_tensor(r, pt, node, 0, &source, off, numel);
}

/* ---- model_states.pt ------------------------------------------------------------------------- */

static const char *const model_keys[] = {"module",
                                         "buffer_names",
                                         "optimizer",
                                         "param_shapes",
                                         "frozen_param_shapes",
                                         "shared_params",
                                         "frozen_param_fragments",
                                         "lr_scheduler",
                                         "data_sampler",
                                         "random_ltd",
                                         "skipped_steps",
                                         "global_steps",
                                         "global_samples",
                                         "dp_world_size",
                                         "mp_world_size",
                                         "checkpoint_parallel_dimensions",
                                         "ds_config",
                                         "ds_version"};
#define N_MODEL_KEYS (sizeof model_keys / sizeof model_keys[0])

static void check_module(const struct rig *r, const struct pt *pt)
{
    const struct pickle_node *module = get(pt_root(pt), "module");
    ck_assert_str_eq(module->more->name, "OrderedDict");
    size_t at = 0;
    for (size_t i = 0; i < r->table.n_params; i++) {
        if (is_frozen(r, i) && r->c.exclude_frozen) continue;
        ck_assert_str_eq(pickle_to_string(module->pairs[at].key), r->table.params[i].name);
        check_weight(r, pt, module->pairs[at++].value, i);
    }
    for (size_t i = 0; i < r->table.n_aliases; i++) {
        const struct pickle_node *alias = get(module, r->table.aliases[i].name);
        const char *owner = r->table.params[r->table.aliases[i].param_idx].name;
        check_weight(r, pt, alias, r->table.aliases[i].param_idx);
        ck_assert_str_eq(alias->tensor->key, get(module, owner)->tensor->key);
        at++;
    }
    ck_assert_uint_eq(module->n_pairs, at);
    const struct pickle_node *metadata = pickle_get(module->more->state, "_metadata");
    ck_assert_int_eq(get_int(get(metadata, ""), "version"), 1);
    ck_assert_int_eq(get_int(get(metadata, "h.0.l1"), "version"), 1);
    ck_assert_ptr_null(pickle_get(metadata, "h.0.l1.weight"));
}

static void check_size(const struct rig *r, const struct pickle_node *dict, size_t at,
                       size_t param_idx)
{
    const struct param_info *info = &r->table.params[param_idx];
    ck_assert_uint_lt(at, dict->n_pairs);
    ck_assert_str_eq(pickle_to_string(dict->pairs[at].key), info->name);
    const struct pickle_node *size = dict->pairs[at].value;
    ck_assert_int_eq(size->kind, PICKLE_SIZE);
    ck_assert_uint_eq(size->n, (size_t)info->ndim);
    for (size_t d = 0; d < size->n; d++) ck_assert_int_eq(size->items[d]->integer, info->shape[d]);
}

static void check_param_shapes(const struct rig *r, const struct pickle_node *root)
{
    const struct pickle_node *shapes = get(root, "param_shapes");
    size_t at = 0;
    if (r->c.stage == 0) {
        ck_assert_int_eq(shapes->kind, PICKLE_NONE);
        return;
    }
    for (size_t g = 0; g < r->n_groups; g++) {
        const struct shard_group *shard = &r->shard[g];
        for (size_t i = 0; r->c.stage < 3 && i < r->flat[g].n_params; i++)
            check_size(r, shapes->items[at], i, r->flat[g].params[i].param_idx);
        for (size_t s = 0; r->c.stage == 3 && s < shard->n_sub_groups; s++) {
            const struct shard_sub_group *sub = &shard->sub_groups[s];
            for (size_t i = 0; i < sub->n_params; i++)
                check_size(r, shapes->items[at + s], i, shard->params[sub->first + i].param_idx);
        }
        at += r->c.stage < 3 ? 1 : shard->n_sub_groups;
    }
    ck_assert_uint_eq(shapes->n, at);
}

static void check_frozen(const struct rig *r, const struct pt *pt, int rank)
{
    const struct pickle_node *shapes = get(pt_root(pt), "frozen_param_shapes");
    const struct pickle_node *fragments = get(pt_root(pt), "frozen_param_fragments");
    if (r->c.stage < 2 || r->c.exclude_frozen) {
        ck_assert_int_eq(shapes->kind, PICKLE_NONE);
        ck_assert_int_eq(fragments->kind, PICKLE_NONE);
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < r->table.n_params; i++) {
        if (!is_frozen(r, i)) continue;
        check_size(r, shapes, at, i);
        const struct pickle_node *fragment = fragments->pairs[at++].value;
        if (r->c.stage == 2) {
            check_weight(r, pt, fragment, i);
            continue;
        }
        const struct ckpt_job source = {
            .source = CKPT_FROM_FROZEN, .dtype = r->c.dtype, .param_idx = i};
        check_tensor(r, pt, fragment, rank, &source, 0,
                     shard_chunk(r->table.params[i].numel, r->c.world_size));
    }
    ck_assert_uint_eq(shapes->n_pairs, at);
    ck_assert_uint_eq(fragments->n_pairs, at);
}

static void check_model(const struct rig *r, const char *dir, int rank)
{
    struct pt *pt = open_model(r, dir, rank);
    const struct pickle_node *root = pt_root(pt);
    ck_assert_uint_ge(root->n_pairs, N_MODEL_KEYS);
    for (size_t i = 0; i < N_MODEL_KEYS; i++)
        ck_assert_str_eq(pickle_to_string(root->pairs[i].key), model_keys[i]);
    check_module(r, pt);
    check_param_shapes(r, root);
    check_frozen(r, pt, rank);
    const struct pickle_node *shared = get(root, "shared_params");
    ck_assert_int_eq(shared->kind, r->c.stage ? PICKLE_DICT : PICKLE_NONE);
    if (r->c.stage) ck_assert_uint_eq(shared->n_pairs, r->c.tied && rank == 0);
    if (r->c.stage && r->c.tied && rank == 0)
        ck_assert_str_eq(pickle_to_string(get(shared, "head.weight")), "emb.weight");
    ck_assert_int_eq(get_int(get(root, "lr_scheduler"), "last_batch_iteration"), 11);
    ck_assert_int_eq(get_int(root, "global_steps"), 12);
    ck_assert_int_eq(get_int(root, "global_samples"), 480);
    ck_assert_int_eq(get_int(root, "dp_world_size"), r->c.world_size);
    const struct pickle_node *config = get(root, "ds_config");
    ck_assert_int_eq(get(config, "train_micro_batch_size_per_gpu")->kind, PICKLE_INT);
    ck_assert_int_eq(get(config, "wall_clock_breakdown")->kind, PICKLE_BOOL);
    ck_assert_int_eq(get(config, "nothing")->kind, PICKLE_NONE);
    ck_assert_str_eq(pickle_to_string(get(root, "ds_version")), CKPT_DS_VERSION);
    pt_close(pt);
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static void check_step(const struct rig *r, const struct pt *pt, const struct pickle_node *state)
{
    double step;
    if (r->groups[0].no_step) {
        ck_assert_ptr_null(pickle_get(state, "step"));
        return;
    }
    const struct pickle_node *node = get(state, "step");
    ck_assert_int_eq(node->kind, r->groups[0].step_is_tensor ? PICKLE_TENSOR : PICKLE_INT);
    ck_ok(pt_number(pt, node, &step));
    ck_assert_double_eq(step, (double)r->c.step);
}

/* state[key] of torch's dictionary holds both moments. */
static void check_states(const struct rig *r, const struct pt *pt, const struct pickle_node *torch,
                         int64_t key, const struct ckpt_job *where, int rank, size_t numel)
{
    struct ckpt_job source = *where;
    const struct pickle_node *all = get(torch, "state");
    size_t n_states = r->groups[0].n_states;
    if (r->c.step == 0 || (n_states == 0 && r->c.stage == 0)) {
        ck_assert_uint_eq(all->n_pairs, 0);
        return;
    }
    const struct pickle_node *state = get_at(all, key);
    check_step(r, pt, state);
    source.source = CKPT_FROM_STATE;
    source.dtype = DTYPE_F32;
    ck_assert_uint_eq(state->n_pairs, n_states + !r->groups[0].no_step);
    for (size_t i = 0; i < n_states; i++) {
        source.state_idx = i;
        check_tensor(r, pt, get(state, r->groups[0].states[i]), rank, &source, where->off, numel);
    }
}

static void check_param_groups(const struct rig *r, const struct pickle_node *torch,
                               const size_t *n_of_group)
{
    const struct pickle_node *groups = get(torch, "param_groups");
    int64_t running = 0;
    ck_assert_uint_eq(groups->n, r->n_groups);
    for (size_t g = 0; g < r->n_groups; g++) {
        const struct pickle_node *params = get(groups->items[g], "params");
        ck_assert_int_eq(get(groups->items[g], "betas")->kind, PICKLE_TUPLE);
        ck_assert_double_eq(get(groups->items[g], "lr")->real, 0.00025);
        ck_assert_int_eq(get(groups->items[g], "fused")->kind, PICKLE_NONE);
        ck_assert_uint_eq(params->n, n_of_group[g]);
        for (size_t i = 0; i < params->n; i++)
            ck_assert_int_eq(params->items[i]->integer, running++);
    }
}

static void check_slice_mappings(const struct rig *r, const struct pickle_node *sd, size_t group,
                                 int rank)
{
    const struct flat_group *flat = &r->flat[group];
    const struct pickle_node *map = get(sd, "param_slice_mappings")->items[group];
    size_t begin = (size_t)rank * flat->partition, pos = 0, at = 0;
    struct flat_piece piece;
    while (flat_group_next(flat, begin, begin + flat->partition, &pos, &piece)) {
        size_t param_idx = flat->params[piece.pos].param_idx;
        const struct pickle_node *address = map->pairs[at++].value;
        int64_t start, numel;
        ck_assert_str_eq(pickle_to_string(map->pairs[at - 1].key), r->table.params[param_idx].name);
        ck_assert_str_eq(address->more->name, "fragment_address");
        ck_assert(pickle_to_int(pickle_attr(address, "start"), &start));
        ck_assert(pickle_to_int(pickle_attr(address, "numel"), &numel));
        ck_assert_int_eq(start, (int64_t)piece.range_off);
        ck_assert_int_eq(numel, (int64_t)piece.numel);
    }
    ck_assert_uint_eq(map->n_pairs, at);
}

static void check_flat_group(const struct rig *r, const struct pt *pt, const struct pickle_node *sd,
                             size_t g, int rank)
{
    const struct flat_group *flat = &r->flat[g];
    size_t padding = flat_group_padding(flat, rank);
    const struct ckpt_job source = {.source = CKPT_FROM_MASTER, .dtype = DTYPE_F32, .group = g};
    const struct pickle_node *master = get(sd, "single_partition_of_fp32_groups")->items[g];
    check_tensor(r, pt, master, rank, &source, 0, flat->partition - padding);
    ck_assert_uint_eq(master->tensor->storage_nbytes, 4 * flat->partition);
    ck_assert(master->tensor->requires_grad);
    check_states(r, pt, get(sd, "base_optimizer_state"), (int64_t)g, &source, rank,
                 flat->partition);
    ck_assert_int_eq(get(sd, "group_paddings")->items[g]->integer, (int64_t)padding);
    ck_assert_int_eq(get(sd, "partition_count")->items[g]->integer, r->c.world_size);
    const struct pickle_node *pads = get(sd, "param_alignment_paddings")->items[g];
    ck_assert_uint_eq(pads->n, flat->n_params);
    size_t end = 0;
    for (size_t i = 0; i < flat->n_params; i++) {
        ck_assert_uint_eq(end, flat->params[i].off);
        end += flat->params[i].numel + (size_t)pads->items[i]->integer;
    }
    ck_assert_uint_eq(end, flat->numel);
    check_slice_mappings(r, sd, g, rank);
}

static void check_sub_groups(const struct rig *r, const struct pt *pt, const struct pickle_node *sd,
                             int rank)
{
    const struct pickle_node *masters = get(sd, "fp32_flat_groups");
    int64_t running = 0;
    size_t n_of_group[RIG_GROUPS_MAX];
    for (size_t g = 0; g < r->n_groups; g++) {
        struct ckpt_job source = {.source = CKPT_FROM_MASTER, .dtype = DTYPE_F32, .group = g};
        const struct shard_group *shard = &r->shard[g];
        n_of_group[g] = shard->n_sub_groups;
        for (size_t s = 0; s < shard->n_sub_groups; s++, running++) {
            const struct shard_sub_group *sub = &shard->sub_groups[s];
            const struct pickle_node *master = masters->items[running];
            char ds_id[64];
            check_tensor(r, pt, master, rank, &source, source.off, sub->numel);
            snprintf(ds_id, sizeof ds_id, "%zu_%zu", shard->params[sub->first].param_idx,
                     shard->params[sub->first + sub->n_params - 1].param_idx);
            ck_assert_str_eq(pickle_to_string(get(master->more->state, "ds_id")), ds_id);
            check_states(r, pt, get(sd, "optimizer_state_dict"), running, &source, rank,
                         sub->numel);
            source.off += sub->numel;
        }
    }
    ck_assert_uint_eq(masters->n, (size_t)running);
    check_param_groups(r, get(sd, "optimizer_state_dict"), n_of_group);
    ck_assert_int_eq(get_int(sd, "partition_count"), r->c.world_size);
}

static void check_scaler(const struct rig *r, const struct pickle_node *sd)
{
    const struct pickle_node *scaler = get(sd, "loss_scaler");
    bool dynamic = r->c.dtype == DTYPE_F16;
    double scale;
    ck_assert_str_eq(scaler->more->module, "deepspeed.runtime.fp16.loss_scaler");
    ck_assert_str_eq(scaler->more->name, dynamic ? "DynamicLossScaler" : "LossScaler");
    ck_assert(pickle_to_double(pickle_attr(scaler, "cur_scale"), &scale));
    ck_assert_double_eq(scale, dynamic ? 4096.0 : 1.0);
    ck_assert_int_eq(get(sd, "dynamic_loss_scale")->boolean, dynamic);
    ck_assert_int_eq(get(sd, "overflow")->boolean, false);
}

static void check_optim(const struct rig *r, const char *dir, int rank)
{
    struct pt *pt = open_optim(r, dir, rank);
    const struct pickle_node *sd = get(pt_root(pt), "optimizer_state_dict");
    const size_t one_each[RIG_GROUPS_MAX] = {1, 1};
    ck_assert_uint_eq(pt_root(pt)->n_pairs, 3);
    ck_assert_int_eq(get_int(sd, "zero_stage"), r->c.stage);
    ck_assert_str_eq(get(sd, "zero_stage")->more->name, "ZeroStageEnum");
    check_scaler(r, sd);
    if (r->c.stage == 3) {
        check_sub_groups(r, pt, sd, rank);
    } else {
        for (size_t g = 0; g < r->n_groups; g++) check_flat_group(r, pt, sd, g, rank);
        check_param_groups(r, get(sd, "base_optimizer_state"), one_each);
        ck_assert_double_eq(get(sd, "clip_grad")->real, 1.0);
    }
    pt_close(pt);
}

/* Stage 0: everything is in rank 0's model file. */
static void check_plain(const struct rig *r, const char *dir)
{
    struct pt *pt = open_model(r, dir, 0);
    const struct pickle_node *optimizer = get(pt_root(pt), "optimizer");
    bool is_wrapped = r->c.dtype != DTYPE_F32, is_flat = is_wrapped && r->c.fused;
    const struct pickle_node *torch =
        is_wrapped ? get(optimizer, "optimizer_state_dict") : optimizer;
    int64_t running = 0;
    size_t n_of_group[RIG_GROUPS_MAX];
    for (size_t g = 0; g < r->n_groups; g++) {
        struct ckpt_job source = {.source = CKPT_FROM_MASTER, .dtype = DTYPE_F32, .group = g};
        const struct flat_group *flat = &r->flat[g];
        n_of_group[g] = is_flat ? 1 : flat->n_params;
        for (size_t i = 0; i < n_of_group[g]; i++, running++) {
            size_t numel = is_flat ? flat->numel : flat->params[i].numel;
            source.off = is_flat ? 0 : flat->params[i].off;
            check_states(r, pt, torch, running, &source, 0, numel);
            if (!is_wrapped) continue;
            const struct pickle_node *masters =
                get(optimizer, is_flat ? "fp32_groups_flat" : "fp32_groups")->items[g];
            check_tensor(r, pt, is_flat ? masters : masters->items[i], 0, &source, source.off,
                         numel);
        }
    }
    check_param_groups(r, torch, n_of_group);
    ck_assert_int_eq(pickle_get(optimizer, "cur_scale") != NULL,
                     is_wrapped && (!r->c.fused || r->c.dtype == DTYPE_F16));
    ck_assert_int_eq(pickle_get(optimizer, "clip_grad") != NULL, is_flat);
    pt_close(pt);
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static size_t what_of(const char *what)
{
    if (strcmp(what, "exp_avg") == 0 || strcmp(what, "momentum_buffer") == 0) return 1;
    if (strcmp(what, "exp_avg_sq") == 0) return 2;
    return RIG_WHAT_MASTER;
}

/* The bytes under an entry are a run of the parameter's elements, from *elem on. */
static void check_entry(const struct rig *r, const unsigned char *bytes,
                        const struct manifest_tensor *t, size_t *n_seen)
{
    size_t idx;
    bool is_param = strcmp(t->what, "param") == 0 || strcmp(t->what, "frozen") == 0;
    enum cz_dtype dtype = is_param ? r->c.dtype : DTYPE_F32;
    size_t size = dtype_size(dtype), n = t->nbytes / size, *seen;
    ck_ok(param_table_find(&r->table, t->name, &idx));
    ck_assert_uint_eq(crc32_update(0, bytes + t->off, t->nbytes), t->crc);
    seen = &n_seen[4 * idx + (is_param ? 3 : what_of(t->what))];
    for (size_t i = 0; i < n; i++) {
        float want = rig_rounded(rig_value(what_of(t->what), idx, *seen + i), dtype), value;
        uint16_t half;
        memcpy(&half, bytes + t->off + i * size, sizeof half);
        memcpy(&value, bytes + t->off + i * size, size < sizeof value ? 2 : sizeof value);
        if (dtype != DTYPE_F32) value = dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
        if (value != want) ck_abort_msg("%s, %s: element %zu", t->name, t->what, *seen + i);
    }
    *seen += n;
}

/* Files are as large and sum up as the manifest says, and every element stands in one entry. */
static void check_manifest(const struct rig *r, const char *dir, const struct manifest *m)
{
    size_t n_seen[4 * RIG_PARAMS_MAX] = {0};
    for (size_t f = 0; f < m->n_files; f++) {
        char *bytes;
        size_t nbytes;
        ck_ok(file_load(path_of(dir, m->files[f].name), (size_t)1 << 28, &bytes, &nbytes));
        ck_assert_uint_eq(nbytes, m->files[f].nbytes);
        ck_assert_uint_eq(crc32_update(0, bytes, nbytes), m->files[f].crc);
        for (size_t t = 0; t < m->files[f].n_tensors; t++) {
            if (t)
                ck_assert_uint_ge(m->files[f].tensors[t].off,
                                  m->files[f].tensors[t - 1].off +
                                      m->files[f].tensors[t - 1].nbytes);
            check_entry(r, (unsigned char *)bytes, &m->files[f].tensors[t], n_seen);
        }
        free(bytes);
    }
    bool has_masters = r->c.stage > 0 || r->c.dtype != DTYPE_F32;
    for (size_t i = 0; i < r->table.n_params; i++) {
        size_t numel = r->table.params[i].numel, trained = is_frozen(r, i) ? 0 : numel;
        size_t states = r->c.step ? trained : 0;
        bool no_weight = r->c.stage == 3 ? trained > 0 || r->c.exclude_frozen
                                         : is_frozen(r, i) && r->c.exclude_frozen;
        ck_assert_uint_eq(n_seen[4 * i], has_masters ? trained : 0);
        ck_assert_uint_eq(n_seen[4 * i + 1], r->groups[0].n_states > 0 ? states : 0);
        ck_assert_uint_eq(n_seen[4 * i + 2], r->groups[0].n_states > 1 ? states : 0);
        ck_assert_uint_eq(n_seen[4 * i + 3], no_weight ? 0 : numel);
    }
}

/* ---- through the view ------------------------------------------------------------------------ */

static void check_view_elements(const struct rig *r, const struct ckpt *ck, size_t idx, int what,
                                size_t rig_what, enum cz_dtype dtype)
{
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    size_t param_idx;
    ck_ok(param_table_find(&r->table, t->name, &param_idx));
    ck_assert_uint_eq(t->numel, r->table.params[param_idx].numel);
    float *values = malloc(t->numel * sizeof *values);
    ck_assert_ptr_nonnull(values);
    ck_ok(ckpt_read(ck, idx, what, 0, t->numel, values));
    for (size_t i = 0; i < t->numel; i++)
        if (values[i] != rig_rounded(rig_value(rig_what, param_idx, i), dtype))
            ck_abort_msg("%s, what %d: element %zu", t->name, what, i);
    free(values);
}

static void save_manifest(const struct manifest *m, const char *dir)
{
    char *text;
    size_t nbytes;
    ck_ok(manifest_to_json(m, &text, &nbytes));
    FILE *f = fopen(path_of(dir, CKPT_MANIFEST), "w");
    ck_assert(f && fwrite(text, 1, nbytes, f) == nbytes);
    ck_assert_int_eq(fclose(f), 0);
    free(text);
}

/* A view of the folder as whole tensors has masters, states and steps. */
static void check_view(const struct rig *r, const char *dir, const struct manifest *m)
{
    const struct ckpt_open_options options = {.dir = dir};
    struct ckpt *ck;
    size_t n_left_out = 0;
    save_manifest(m, dir); /* at stage 0 only it tells which states are whose */
    ck_ok(ckpt_open(&options, &ck));
    const struct ckpt_info *info = ckpt_get_info(ck);
    ck_assert_int_eq(info->stage, r->c.stage);
    ck_assert_int_eq(info->world_size, r->c.world_size);
    ck_assert_uint_eq(info->n_groups, r->n_groups);
    for (size_t i = 0; i < ckpt_count(ck); i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        bool has_master = t->kind == CKPT_TRAINED && (r->c.stage || r->c.dtype != DTYPE_F32);
        check_view_elements(r, ck, i, CKPT_MASTER, 0, has_master ? DTYPE_F32 : r->c.dtype);
        for (size_t s = 0; t->kind == CKPT_TRAINED && r->c.step && s < info->n_states; s++)
            check_view_elements(r, ck, i, CKPT_STATE_0 + (int)s, 1 + s, DTYPE_F32);
    }
    for (size_t i = 0; i < r->table.n_params; i++)
        n_left_out += is_frozen(r, i) && r->c.exclude_frozen;
    ck_assert_uint_eq(ckpt_count(ck), r->table.n_params - n_left_out);
    ck_assert_uint_eq(info->n_states, r->c.step ? r->groups[0].n_states : 0);
    for (size_t g = 0; r->c.step && g < r->n_groups; g++)
        ck_assert_int_eq(ckpt_group_step(ck, g), r->groups[0].no_step ? -1 : r->c.step);
    if (r->c.tied) ck_assert_uint_eq(ckpt_find(ck, "head.weight"), ckpt_find(ck, "emb.weight"));
    ckpt_close(ck);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_case(const struct rig_case *c)
{
    const char *dir = test_tmp_make();
    struct rig r;
    struct manifest m;
    rig_init(&r, c);
    manifest_init(&m);
    m.world_size = c->world_size;
    m.stage = c->stage;
    rig_write(&r, dir, &m);
    ck_assert_uint_eq(m.n_files, c->stage == 0
                                     ? 1u
                                     : (unsigned)c->world_size * (c->stage == 3 ? 2u : 1u) +
                                           (c->stage < 3 ? 1u : 0u));
    for (int rank = 0; rank < (c->stage == 3 ? c->world_size : 1); rank++)
        check_model(&r, dir, rank);
    for (int rank = 0; c->stage > 0 && rank < c->world_size; rank++) check_optim(&r, dir, rank);
    if (c->stage == 0) check_plain(&r, dir);
    check_manifest(&r, dir, &m);
    check_view(&r, dir, &m);
    manifest_free(&m);
    rig_free(&r);
    test_tmp_remove(dir);
}

/* Every world size with four combinations of the odd features, others for the next one. */
static void check_stage(int stage)
{
    static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int world_size = 1; world_size <= 4; world_size++)
        for (unsigned k = 0; k < 4; k++) {
            unsigned bits = (3 * k + (unsigned)world_size) % 8;
            struct rig_case c = {.stage = stage,
                                 .world_size = world_size,
                                 .dtype = dtypes[((unsigned)world_size + k) % 3],
                                 .tied = bits & 1,
                                 .frozen = bits & 2,
                                 .two_groups = bits & 4,
                                 .sub_group_size = k % 2 ? 20 : 0,
                                 .step = 12};
            check_case(&c);
        }
}

START_TEST(stage_0_keeps_torchs_dictionaries)
{
    check_stage(0);
}
END_TEST

START_TEST(stage_1_keeps_partitions)
{
    check_stage(1);
}
END_TEST

START_TEST(stage_2_keeps_partitions_and_frozen_fragments)
{
    check_stage(2);
}
END_TEST

START_TEST(stage_3_keeps_chunks)
{
    check_stage(3);
}
END_TEST

START_TEST(stage_0_keeps_flat_masters_of_a_fused_optimizer)
{
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig_case c = {.stage = 0,
                             .world_size = 2,
                             .dtype = bits & 1 ? DTYPE_F16 : DTYPE_BF16,
                             .two_groups = bits & 2,
                             .frozen = true,
                             .fused = true,
                             .step = 3};
        check_case(&c);
    }
}
END_TEST

START_TEST(round_robin_order_and_alignment_are_told)
{
    for (int stage = 1; stage <= 2; stage++)
        for (unsigned bits = 1; bits < 8; bits++) {
            struct rig_case c = {.stage = stage,
                                 .world_size = 3,
                                 .dtype = DTYPE_BF16,
                                 .round_robin = bits & 1,
                                 .param_align = bits & 2 ? 8 : 0,
                                 .two_groups = bits & 4,
                                 .step = 1};
            check_case(&c);
        }
}
END_TEST

START_TEST(states_are_absent_before_the_first_step)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_case c = {.stage = stage, .world_size = 2, .dtype = DTYPE_BF16};
        check_case(&c);
    }
}
END_TEST

START_TEST(states_may_be_one_or_none_without_a_step)
{
    for (int stage = 0; stage <= 3; stage++)
        for (unsigned plain = 0; plain < 2; plain++) {
            struct rig_case c = {
                .stage = stage, .world_size = 2, .sgd = true, .plain = plain, .step = 4};
            check_case(&c);
        }
}
END_TEST

START_TEST(frozen_parameters_can_be_left_out)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_case c = {
            .stage = stage, .world_size = 2, .frozen = true, .exclude_frozen = true, .step = 1};
        check_case(&c);
    }
}
END_TEST

START_TEST(large_tensors_are_cut_into_jobs)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct rig_case c = {.stage = stage,
                             .world_size = stage == 2 ? 3 : 1,
                             .dtype = DTYPE_BF16,
                             .big = true,
                             .two_groups = true,
                             .step = 1};
        check_case(&c);
    }
}
END_TEST

START_TEST(jobs_come_parameters_first_then_tile_by_tile)
{
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 1, .world_size = 1, .big = true, .frozen = true, .step = 1};
    struct rig r;
    struct ckpt_writer *w;
    rig_init(&r, &c);
    const struct ckpt_write_options options = rig_options(&r, dir, 0);
    ck_ok(ckpt_writer_create(&options, &w));
    size_t n = ckpt_writer_n_jobs(w), i = 0;
    while (i < n && ckpt_writer_job(w, i)->source == CKPT_FROM_PARAM) i++;
    ck_assert_uint_eq(i, 2);
    while (i < n && ckpt_writer_job(w, i)->source == CKPT_FROM_FROZEN) i++;
    ck_assert_uint_eq(i, 4);
    for (size_t tile = 0; tile < 2; tile++)
        for (size_t s = 0; s < 3; s++, i++) {
            const struct ckpt_job *job = ckpt_writer_job(w, i);
            ck_assert_uint_eq(job->off, tile * CKPT_JOB_NUMEL);
            ck_assert_int_eq(job->source, s ? CKPT_FROM_STATE : CKPT_FROM_MASTER);
            ck_assert_uint_eq(job->state_idx, s ? s - 1 : 0);
        }
    ck_assert_uint_eq(i, n);
    ckpt_writer_destroy(w);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

#define N_THREADS 4

struct share {
    const struct rig *r;
    struct ckpt_writer *w;
    size_t first;
    cz_status st;
};

static void *put_share(void *arg)
{
    struct share *s = arg;
    void *buf = malloc(CKPT_JOB_NUMEL * sizeof(float));
    s->st = buf ? CZ_OK : CZ_NOMEM;
    for (size_t i = s->first; i < ckpt_writer_n_jobs(s->w) && s->st == CZ_OK; i += N_THREADS) {
        rig_fill(s->r, 0, ckpt_writer_job(s->w, i), buf);
        s->st = ckpt_writer_put(s->w, i, buf);
    }
    free(buf);
    return NULL;
}

START_TEST(jobs_may_be_done_by_several_threads)
{
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 2, .world_size = 1, .big = true, .two_groups = true, .step = 1};
    struct rig r;
    struct ckpt_writer *w;
    const struct manifest *m;
    struct share shares[N_THREADS];
    pthread_t threads[N_THREADS];
    rig_init(&r, &c);
    const struct ckpt_write_options options = rig_options(&r, dir, 0);
    ck_ok(ckpt_writer_create(&options, &w));
    ck_assert_uint_gt(ckpt_writer_n_jobs(w), N_THREADS);
    for (size_t i = 0; i < N_THREADS; i++) {
        shares[i] = (struct share){.r = &r, .w = w, .first = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, put_share, &shares[i]), 0);
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(shares[i].st, CZ_OK);
    }
    ck_ok(ckpt_writer_finish(w, &m));
    check_manifest(&r, dir, m);
    check_model(&r, dir, 0);
    check_optim(&r, dir, 0);
    ckpt_writer_destroy(w);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(client_state_follows_the_engines_keys)
{
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 1, .world_size = 1, .step = 1};
    struct rig r;
    rig_init(&r, &c);
    r.client_state = "{\"epoch\": 3, \"args\": {\"lr\": [1, 2.0], \"module\": 1}}";
    rig_write(&r, dir, NULL);
    struct pt *pt = open_model(&r, dir, 0);
    const struct pickle_node *root = pt_root(pt);
    ck_assert_uint_eq(root->n_pairs, N_MODEL_KEYS + 2);
    ck_assert_str_eq(pickle_to_string(root->pairs[11].key), "global_steps");
    ck_assert_int_eq(get_int(root, "global_steps"), 12);
    ck_assert_str_eq(pickle_to_string(root->pairs[N_MODEL_KEYS].key), "epoch");
    ck_assert_int_eq(get_int(root, "epoch"), 3);
    ck_assert_int_eq(get(get(root, "args"), "lr")->items[1]->kind, PICKLE_FLOAT);
    pt_close(pt);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(client_state_must_not_use_the_engines_keys)
{
    static const char *const bad[] = {"[1]",
                                      "3",
                                      "{",
                                      "{\"checkpoint_parallel_dimensions\": {}}",
                                      "{\"a\": 1, \"module\": null}",
                                      "{\"param_shapes\": []}",
                                      "{\"global_steps\": 99}",
                                      "{\"universal_checkpoint_info\": 1}"};
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 1, .world_size = 1, .step = 1};
    struct rig r;
    struct ckpt_writer *w;
    rig_init(&r, &c);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r.client_state = bad[i];
        const struct ckpt_write_options options = rig_options(&r, dir, 0);
        ck_fails(ckpt_writer_create(&options, &w), CZ_INVALID);
        ck_assert_ptr_null(w);
    }
    r.client_state = "{}"; /* nor is there a rank or a stage beyond the last */
    static const int places[][3] = {{0, 0, 1}, {1, 1, 1}, {-1, 1, 1}, {0, 1, 4}, {0, 1, -1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(places); i++) {
        struct ckpt_write_options options = rig_options(&r, dir, 0);
        options.rank = places[i][0], options.world_size = places[i][1];
        options.stage = places[i][2];
        ck_fails(ckpt_writer_create(&options, &w), CZ_INVALID);
        ck_assert_ptr_null(w);
    }
    struct ckpt_list left;
    ck_ok(ckpt_list_files(dir, "", &left));
    ck_assert_uint_eq(left.n, 0);
    ckpt_list_free(&left);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_is_not_finished_leaves_nothing)
{
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 3, .world_size = 2, .step = 1};
    struct rig r;
    struct ckpt_writer *w;
    const struct manifest *part;
    float buf[1024];
    rig_init(&r, &c);
    const struct ckpt_write_options options = rig_options(&r, dir, 1);
    ck_ok(ckpt_writer_create(&options, &w));
    for (size_t i = 0; i + 1 < ckpt_writer_n_jobs(w); i++) {
        rig_fill(&r, 1, ckpt_writer_job(w, i), buf);
        ck_ok(ckpt_writer_put(w, i, buf));
    }
    ck_fails(ckpt_writer_put(w, 0, buf), CZ_INVALID);
    ck_fails(ckpt_writer_put(w, ckpt_writer_n_jobs(w), buf), CZ_INVALID);
    ck_fails(ckpt_writer_finish(w, &part), CZ_INVALID);
    ckpt_writer_destroy(w);
    struct ckpt_list left;
    ck_ok(ckpt_list_files(dir, "", &left));
    ck_assert_uint_eq(left.n, 0);
    ckpt_list_free(&left);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_rank_of_stage_0_writes_nothing)
{
    const char *dir = test_tmp_make();
    struct rig_case c = {.stage = 0, .world_size = 2, .step = 1};
    struct rig r;
    struct ckpt_writer *w;
    const struct manifest *part;
    rig_init(&r, &c);
    const struct ckpt_write_options options = rig_options(&r, dir, 1);
    ck_ok(ckpt_writer_create(&options, &w));
    ck_assert_uint_eq(ckpt_writer_n_jobs(w), 0);
    ck_ok(ckpt_writer_finish(w, &part));
    ck_assert_uint_eq(part->n_files, 0);
    ckpt_writer_destroy(w);
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/ds_write", stage_0_keeps_torchs_dictionaries, stage_1_keeps_partitions,
          stage_2_keeps_partitions_and_frozen_fragments, stage_3_keeps_chunks,
          stage_0_keeps_flat_masters_of_a_fused_optimizer, round_robin_order_and_alignment_are_told,
          states_are_absent_before_the_first_step, states_may_be_one_or_none_without_a_step,
          frozen_parameters_can_be_left_out, large_tensors_are_cut_into_jobs,
          jobs_come_parameters_first_then_tile_by_tile, jobs_may_be_done_by_several_threads,
          client_state_follows_the_engines_keys, client_state_must_not_use_the_engines_keys,
          what_is_not_finished_leaves_nothing, a_rank_of_stage_0_writes_nothing)
