/* DeepSpeed's own checkpoints, taken apart and written again: our files hold the same dictionaries,
 * key by key in the same order, of the same types and classes, with the same tensors in the same
 * storages. (Only module._metadata may lack modules without parameters.) Those in
 * fixtures/checkpoints/wrappers are made by tests/interop/checkpoints/ckpt_golden.py; those in
 * fixtures/runs were recorded with the runs. */
#include "checkpoint/write/ds_write.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/pt/pt.h"
#include "tests/support/check_main.h"

#include <string.h>

#define RANKS_MAX    8
#define GROUPS_MAX   2
#define SETTINGS_MAX 24

struct copy {
    char dir[1024]; /* of the tag */
    struct pt *model[RANKS_MAX], *optim[RANKS_MAX];
    int stage, world_size;
    struct param_table table;
    size_t *group_of, n_groups;
    struct flat_group flat[GROUPS_MAX];
    struct shard_group shard[GROUPS_MAX];
    struct ckpt_group groups[GROUPS_MAX];
    struct ckpt_setting settings[GROUPS_MAX][SETTINGS_MAX];
    char *config;
};

static const struct pickle_node *model_root(const struct copy *c)
{
    return pt_root(c->model[0]);
}

/* optimizer_state_dict of a rank; at stage 0 `optimizer`. */
static const struct pickle_node *optim_root(const struct copy *c, int rank)
{
    if (c->stage == 0) return pickle_get(model_root(c), "optimizer");
    return pickle_get(pt_root(c->optim[rank]), "optimizer_state_dict");
}

static const struct pickle_node *torch_root(const struct copy *c, int rank)
{
    const struct pickle_node *root = optim_root(c, rank), *inner;
    inner = pickle_get(root, c->stage == 1 || c->stage == 2 ? "base_optimizer_state"
                                                            : "optimizer_state_dict");
    return inner ? inner : root; /* stage 0 in fp32: no wrapper */
}

static int64_t get_int(const struct pickle_node *dict, const char *key)
{
    int64_t value = 0;
    ck_assert_msg(pickle_to_int(pickle_get(dict, key), &value), "%s is no integer", key);
    return value;
}

static double get_double(const struct pickle_node *dict, const char *key)
{
    double value = 0.0;
    ck_assert_msg(pickle_to_double(pickle_get(dict, key), &value), "%s is no number", key);
    return value;
}

/* ---- taking apart ---------------------------------------------------------------------------- */

static struct pt *open_in(const struct copy *c, const char *name)
{
    char path[1200];
    struct pt *pt;
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    ck_ok(pt_open(path, &pt));
    return pt;
}

static void open_files(struct copy *c, const char *dir, const char *config)
{
    struct ckpt_list list;
    char *tag;
    ck_ok(ckpt_latest_read(dir, false, &tag));
    snprintf(c->dir, sizeof c->dir, "%s/%s", dir, tag);
    free(tag);
    ck_ok(ckpt_list_files(c->dir, "_optim_states.pt", &list));
    for (size_t i = 0; i < list.n; i++) c->optim[i] = open_in(c, list.names[i]);
    c->world_size = (int)list.n;
    ckpt_list_free(&list);
    ck_ok(ckpt_list_files(c->dir, "_model_states.pt", &list));
    for (size_t i = 0; i < list.n; i++) c->model[i] = open_in(c, list.names[i]);
    ckpt_list_free(&list);
    if (c->world_size) {
        const struct pickle_node *sd = pickle_get(pt_root(c->optim[0]), "optimizer_state_dict");
        c->stage = (int)get_int(sd, "zero_stage");
    } else {
        c->world_size = (int)get_int(model_root(c), "dp_world_size");
    }
    ck_ok(file_load(config, 1 << 20, &c->config, NULL));
}

/* A number of the config's zero_optimization. */
static int64_t zero_setting(const struct copy *c, const char *key, int64_t otherwise)
{
    struct json_doc *doc;
    int64_t value = otherwise;
    ck_ok(json_parse(c->config, strlen(c->config), "ds_config", JSON_CONFIG, &doc));
    const struct json_node *node = json_get(json_get(json_root(doc), "zero_optimization"), key);
    if (node && json_type(node) == JSON_BOOL)
        value = strncmp(json_text(node, &(size_t){0}), "true", 4) == 0;
    else if (node)
        ck_ok(json_as_int(node, &value));
    json_free(doc);
    return value;
}

/* Stage 0 under FusedAdam's wrapper. */
static bool is_fused(const struct copy *c)
{
    return pickle_get(optim_root(c, 0), "fp32_groups_flat") != NULL;
}

/* The group of the n-th entry of param_shapes: at stage 3 a sub-group's. */
static size_t group_at(const struct copy *c, size_t n)
{
    const struct pickle_node *groups = pickle_get(torch_root(c, 0), "param_groups");
    size_t g = 0;
    if (c->stage < 3) return n;
    while (n >= pickle_get(groups->items[g], "params")->n)
        n -= pickle_get(groups->items[g++], "params")->n;
    return g;
}

/* The group that trains a parameter, and its shape; NULL and n_groups: none. */
static const struct pickle_node *trained_shape(const struct copy *c, const char *name,
                                               size_t *group)
{
    const struct pickle_node *shapes = pickle_get(model_root(c), "param_shapes");
    for (size_t i = 0; pickle_is(shapes, PICKLE_LIST) && i < shapes->n; i++) {
        const struct pickle_node *shape = pickle_get(shapes->items[i], name);
        *group = group_at(c, i);
        if (shape) return shape;
    }
    *group = c->n_groups;
    return NULL;
}

/* Stage 0 does not say which parameters are trained, and where: as ckpt_golden.py grouped them. */
static size_t plain_group(const struct copy *c, const char *name, int ndim)
{
    const struct pickle_node *groups = pickle_get(torch_root(c, 0), "param_groups");
    size_t n_module = pickle_get(model_root(c), "module")->n_pairs, n_trained = 0;
    for (size_t g = 0; g < groups->n; g++) n_trained += pickle_get(groups->items[g], "params")->n;
    bool has_frozen =
        is_fused(c) ? c->n_groups > 1 : n_trained + 1 < n_module; /* 1: the tied name */
    if (has_frozen && strstr(name, "fixed")) return c->n_groups;
    return c->n_groups > 1 && ndim < 2 ? 1 : 0;
}

static void add_param(struct copy *c, const char *name, const struct pickle_tensor *t)
{
    int64_t dims[PICKLE_NDIM_MAX];
    size_t group, idx;
    int ndim = t->ndim;
    const struct pickle_node *shape = trained_shape(c, name, &group);
    if (!shape) shape = pickle_get(pickle_get(model_root(c), "frozen_param_shapes"), name);
    for (int d = 0; d < ndim; d++) dims[d] = t->shape[d];
    if (shape) ndim = (int)shape->n;
    for (size_t d = 0; shape && d < shape->n; d++) dims[d] = shape->items[d]->integer;
    ck_ok(param_table_add(&c->table, name, ndim, dims, PARAM_INIT_ZERO, 0, &idx));
    c->group_of[idx] = c->stage == 0 ? plain_group(c, name, ndim) : group;
}

static void read_table(struct copy *c)
{
    const struct pickle_node *module = pickle_get(model_root(c), "module");
    param_table_init(&c->table);
    c->n_groups = pickle_get(torch_root(c, 0), "param_groups")->n;
    c->group_of = calloc(module->n_pairs, sizeof *c->group_of);
    for (size_t i = 0; i < module->n_pairs; i++) {
        const char *name = pickle_to_string(module->pairs[i].key);
        const struct pickle_tensor *t = module->pairs[i].value->tensor;
        size_t owner = i;
        for (size_t j = 0; j < i && owner == i; j++) { /* tied: the same place */
            const struct pickle_tensor *other = module->pairs[j].value->tensor;
            if (strcmp(other->key, t->key) == 0 && other->off == t->off) owner = j;
        }
        if (owner == i)
            add_param(c, name, t);
        else
            ck_ok(param_table_alias(&c->table, name, owner));
    }
}

/* The states of a group's idx-th tensor, as the optimizer numbers them. */
static const struct pickle_node *state_of(const struct copy *c, int rank, size_t group, size_t idx)
{
    const struct pickle_node *torch = torch_root(c, rank), *states = pickle_get(torch, "state");
    const struct pickle_node *dict = pickle_get(torch, "param_groups")->items[group];
    int64_t want = pickle_get(dict, "params")->items[idx]->integer, id;
    for (size_t i = 0; i < states->n_pairs; i++)
        if (pickle_to_int(states->pairs[i].key, &id) && id == want) return states->pairs[i].value;
    ck_abort_msg("no state %lld", (long long)want);
    return NULL;
}

static void read_settings(struct copy *c, size_t group)
{
    const struct pickle_node *dict = pickle_get(torch_root(c, 0), "param_groups")->items[group];
    struct ckpt_group *g = &c->groups[group];
    g->settings = c->settings[group];
    for (size_t i = 0; i < dict->n_pairs; i++) {
        const struct pickle_node *value = dict->pairs[i].value;
        struct ckpt_setting *s = &c->settings[group][g->n_settings];
        s->name = pickle_to_string(dict->pairs[i].key);
        if (strcmp(s->name, "params") == 0) continue;
        ck_assert_uint_lt(g->n_settings++, SETTINGS_MAX);
        s->kind = value->kind == PICKLE_NONE    ? CKPT_NONE
                  : value->kind == PICKLE_BOOL  ? CKPT_BOOL
                  : value->kind == PICKLE_INT   ? CKPT_INT
                  : value->kind == PICKLE_TUPLE ? CKPT_PAIR
                  : value->kind == PICKLE_LIST  ? CKPT_PAIR_LIST
                                                : CKPT_NUMBER;
        (void)pickle_to_double(value, &s->value[0]); /* None and pairs: below */
        for (size_t k = 0; k < value->n && k < 2; k++)
            ck_assert(pickle_to_double(value->items[k], &s->value[k]));
    }
}

static void read_group(struct copy *c, size_t group)
{
    size_t n = 0, *idx = calloc(c->table.n_params + 1, sizeof *idx);
    struct ckpt_group *g = &c->groups[group];
    const struct pickle_node *state = state_of(c, 0, group, 0);
    bool is_aligned = zero_setting(c, "parameter_alignment", 0) != 0;
    const struct flat_options options = {.world_size = c->world_size,
                                         .param_align = is_aligned ? 16 / sizeof(uint16_t) : 0};
    int64_t sub_group_size = zero_setting(c, "sub_group_size", 1000000000);
    double step = 1;
    for (size_t i = 0; i < c->table.n_params; i++)
        if (c->group_of[i] == group) idx[n++] = i;
    ck_ok(flat_group_init(&c->flat[group], &c->table, idx, n, &options));
    ck_ok(shard_group_init(&c->shard[group], &c->table, idx, n, c->world_size,
                           (size_t)sub_group_size));
    free(idx);
    g->flat = &c->flat[group];
    g->shard = &c->shard[group];
    g->step_is_tensor = pickle_is(pickle_get(state, "step"), PICKLE_TENSOR);
    g->no_step = pickle_get(state, "step") == NULL;
    if (!g->no_step)
        ck_ok(pt_number(c->stage ? c->optim[0] : c->model[0], pickle_get(state, "step"), &step));
    g->step = (int64_t)step;
    for (size_t i = 0; i < state->n_pairs; i++) {
        const char *name = pickle_to_string(state->pairs[i].key);
        if (strcmp(name, "step") != 0) g->states[g->n_states++] = name;
    }
    read_settings(c, group);
}

static struct ckpt_scaler read_scaler(const struct copy *c)
{
    const struct pickle_node *sd = optim_root(c, 0), *object = pickle_get(sd, "loss_scaler");
    struct ckpt_scaler s = {.scale = 1.0};
    if (pickle_to_bool(pickle_get(sd, "dynamic_loss_scale"), &s.dynamic) && s.dynamic && !object) {
        s.scale = get_double(sd, "cur_scale");
        s.iter = get_int(sd, "cur_iter");
        s.last_overflow_iter = get_int(sd, "last_overflow_iter");
        s.factor = get_double(sd, "scale_factor");
        s.window = get_int(sd, "scale_window");
        return s;
    }
    if (!object || !pickle_is(object->more->state, PICKLE_DICT)) return s;
    s.scale = get_double(object->more->state, "cur_scale");
    ck_assert(pickle_to_bool(pickle_attr(object, "dynamic"), &s.dynamic));
    if (!s.dynamic) return s;
    s.iter = get_int(object->more->state, "cur_iter");
    s.last_overflow_iter = get_int(object->more->state, "last_overflow_iter");
    s.factor = get_double(object->more->state, "scale_factor");
    s.window = get_int(object->more->state, "scale_window");
    s.min_scale = get_double(object->more->state, "min_scale");
    s.delayed_shift = get_int(object->more->state, "delayed_shift");
    s.hysteresis = get_int(object->more->state, "cur_hysteresis");
    ck_assert(
        pickle_to_bool(pickle_attr(object, "consecutive_hysteresis"), &s.consecutive_hysteresis));
    return s;
}

static void copy_open(struct copy *c, const char *dir, const char *config)
{
    memset(c, 0, sizeof *c);
    open_files(c, dir, config);
    read_table(c);
    ck_assert_uint_le(c->n_groups, GROUPS_MAX);
    for (size_t g = 0; g < c->n_groups; g++) read_group(c, g);
}

static void copy_close(struct copy *c)
{
    for (int i = 0; i < RANKS_MAX; i++) {
        pt_close(c->model[i]);
        pt_close(c->optim[i]);
    }
    for (size_t g = 0; g < c->n_groups; g++) {
        flat_group_free(&c->flat[g]);
        shard_group_free(&c->shard[g]);
    }
    param_table_free(&c->table);
    free(c->group_of);
    free(c->config);
}

/* ---- writing again --------------------------------------------------------------------------- */

static struct ckpt_write_options options_of(const struct copy *c, const char *dir, int rank)
{
    const struct pickle_node *root = model_root(c), *sd = optim_root(c, 0);
    const struct pickle_node *module = pickle_get(root, "module");
    struct ckpt_write_options o = {.dir = dir,
                                   .table = &c->table,
                                   .group_of = c->group_of,
                                   .groups = c->groups,
                                   .n_groups = c->n_groups,
                                   .stage = c->stage,
                                   .rank = rank,
                                   .world_size = c->world_size,
                                   .dtype = module->pairs[0].value->tensor->dtype->base,
                                   .state_dtype = DTYPE_F32,
                                   .master_dtype = DTYPE_F32,
                                   .scaler = read_scaler(c),
                                   .global_steps = get_int(root, "global_steps"),
                                   .global_samples = get_int(root, "global_samples"),
                                   .skipped_steps = get_int(root, "skipped_steps"),
                                   .has_scheduler = true,
                                   .ds_config_json = c->config};
    o.fp16 = o.dtype == DTYPE_F16;
    o.fused = is_fused(c);
    o.last_batch_iteration = get_int(pickle_get(root, "lr_scheduler"), "last_batch_iteration");
    if (pickle_get(sd, "clip_grad")) o.clip_grad = get_double(sd, "clip_grad");
    return o;
}

/* A group's masters and states are several tensors: by parameter, or by sub-group. */
static size_t count_items(const struct copy *c, size_t group)
{
    if (c->stage == 3) return c->shard[group].n_sub_groups;
    return c->stage == 0 && !is_fused(c) ? c->flat[group].n_params : 1;
}

/* Where item idx begins among the elements of its source. */
static size_t item_off(const struct copy *c, size_t group, size_t idx)
{
    size_t off = 0;
    if (c->stage == 0) return idx ? c->flat[group].params[idx].off : 0;
    for (size_t i = 0; i < idx; i++) off += c->shard[group].sub_groups[i].numel;
    return off;
}

static const struct pickle_tensor *item_tensor(const struct copy *c, int rank,
                                               const struct ckpt_job *job, size_t idx)
{
    const struct pickle_node *sd = optim_root(c, rank);
    size_t sub = idx;
    if (job->source == CKPT_FROM_STATE)
        return pickle_get(state_of(c, rank, job->group, idx),
                          c->groups[job->group].states[job->state_idx])
            ->tensor;
    if (is_fused(c)) return pickle_get(sd, "fp32_groups_flat")->items[job->group]->tensor;
    if (c->stage == 0) return pickle_get(sd, "fp32_groups")->items[job->group]->items[idx]->tensor;
    if (c->stage < 3)
        return pickle_get(sd, "single_partition_of_fp32_groups")->items[job->group]->tensor;
    for (size_t g = 0; g < job->group; g++) sub += c->shard[g].n_sub_groups;
    return pickle_get(sd, "fp32_flat_groups")->items[sub]->tensor;
}

/* Elements [off, off + numel) of a source at which tensor t stands from `begin` on; of those, the
 * ones that t has. (The rest is padding.) */
static void read_part(const struct pt *pt, const struct pickle_tensor *t, size_t begin,
                      const struct ckpt_job *job, unsigned char *dst)
{
    size_t from = job->off > begin ? job->off : begin;
    size_t to = job->off + job->numel < begin + t->numel ? job->off + job->numel : begin + t->numel;
    if (from >= to) return;
    ck_ok(pt_read(pt, t, from - begin, to - from, dst + (from - job->off) * t->dtype->size));
}

static void read_job(const struct copy *c, int rank, const struct ckpt_job *job, unsigned char *dst)
{
    const struct flat_group *flat = &c->flat[job->group];
    const struct pickle_node *root = pt_root(c->model[c->stage == 3 ? rank : 0]);
    const struct pickle_node *module = pickle_get(root, "module");
    if (job->source == CKPT_FROM_FROZEN) {
        const char *name = c->table.params[job->param_idx].name;
        if (c->stage == 3) module = pickle_get(root, "frozen_param_fragments");
        read_part(c->model[rank], pickle_get(module, name)->tensor, 0, job, dst);
    } else if (job->source == CKPT_FROM_PARAM) {
        for (size_t i = 0; i < flat->n_params; i++) {
            const char *name = c->table.params[flat->params[i].param_idx].name;
            read_part(c->model[0], pickle_get(module, name)->tensor, flat->params[i].off, job, dst);
        }
    } else {
        const struct pt *pt = c->stage ? c->optim[rank] : c->model[0];
        for (size_t i = 0; i < count_items(c, job->group); i++)
            read_part(pt, item_tensor(c, rank, job, i), item_off(c, job->group, i), job, dst);
    }
}

static void write_rank(const struct copy *c, const char *dir, int rank)
{
    const struct ckpt_write_options o = options_of(c, dir, rank);
    struct ckpt_writer *w;
    const struct manifest *part;
    ck_ok(ckpt_writer_create(&o, &w));
    for (size_t i = 0; i < ckpt_writer_n_jobs(w); i++) {
        const struct ckpt_job *job = ckpt_writer_job(w, i);
        unsigned char *buf = calloc(job->numel, dtype_size(job->dtype));
        read_job(c, rank, job, buf);
        ck_ok(ckpt_writer_put(w, i, buf));
        free(buf);
    }
    ck_ok(ckpt_writer_finish(w, &part));
    ckpt_writer_destroy(w);
}

/* ---- comparing ------------------------------------------------------------------------------- */

struct pair_of_files {
    const struct pt *ours, *theirs;
};

static void same(const struct pair_of_files *f, const char *where, const struct pickle_node *a,
                 const struct pickle_node *b);

static void same_tensor(const struct pair_of_files *f, const char *where,
                        const struct pickle_tensor *a, const struct pickle_tensor *b)
{
    ck_assert_msg(a->dtype == b->dtype && a->off == b->off && a->numel == b->numel &&
                      a->ndim == b->ndim && a->requires_grad == b->requires_grad &&
                      a->storage_nbytes == b->storage_nbytes && strcmp(a->key, b->key) == 0,
                  "%s: another tensor: data/%s of %llu bytes, not data/%s of %llu", where, a->key,
                  (unsigned long long)a->storage_nbytes, b->key,
                  (unsigned long long)b->storage_nbytes);
    for (int d = 0; d < a->ndim; d++)
        ck_assert_msg(a->shape[d] == b->shape[d] && a->stride[d] == b->stride[d],
                      "%s: another shape", where);
    size_t nbytes = a->numel * a->dtype->size;
    unsigned char *x = malloc(nbytes + 1), *y = malloc(nbytes + 1);
    ck_ok(pt_read(f->ours, a, 0, a->numel, x));
    ck_ok(pt_read(f->theirs, b, 0, b->numel, y));
    ck_assert_msg(memcmp(x, y, nbytes) == 0, "%s: other elements", where);
    free(x);
    free(y);
}

/* Ours may lack modules that no parameter's name implies. */
static void same_metadata(const struct pair_of_files *f, const char *where,
                          const struct pickle_node *a, const struct pickle_node *b)
{
    size_t at = 0;
    for (size_t i = 0; i < a->n_pairs; i++) {
        while (at < b->n_pairs &&
               strcmp(pickle_to_string(a->pairs[i].key), pickle_to_string(b->pairs[at].key)) != 0)
            at++;
        ck_assert_msg(at < b->n_pairs, "%s: %s is no module of theirs", where,
                      pickle_to_string(a->pairs[i].key));
        same(f, where, a->pairs[i].value, b->pairs[at].value);
    }
}

static void same_pairs(const struct pair_of_files *f, const char *where,
                       const struct pickle_node *a, const struct pickle_node *b)
{
    char path[1024];
    if (strstr(where, "_metadata") && !strstr(where, "_metadata.")) {
        same_metadata(f, where, a, b);
        return;
    }
    ck_assert_msg(a->n_pairs == b->n_pairs, "%s: %u pairs, not %u", where, a->n_pairs, b->n_pairs);
    for (size_t i = 0; i < a->n_pairs; i++) {
        const char *key = pickle_to_string(b->pairs[i].key);
        snprintf(path, sizeof path, "%s.%s", where, key ? key : "#");
        same(f, path, a->pairs[i].key, b->pairs[i].key);
        same(f, path, a->pairs[i].value, b->pairs[i].value);
    }
}

static void same(const struct pair_of_files *f, const char *where, const struct pickle_node *a,
                 const struct pickle_node *b)
{
    char path[1024];
    if (!a || !b) {
        ck_assert_msg(!a && !b, "%s: only one has it", where);
        return;
    }
    ck_assert_msg(a->kind == b->kind, "%s: %s, not %s", where, pickle_kind_name(a->kind),
                  pickle_kind_name(b->kind));
    ck_assert_msg(a->boolean == b->boolean, "%s: %d, not %d", where, a->boolean, b->boolean);
    if (a->kind == PICKLE_INT)
        ck_assert_msg(a->integer == b->integer, "%s: %lld, not %lld", where, (long long)a->integer,
                      (long long)b->integer);
    if (a->kind == PICKLE_FLOAT)
        ck_assert_msg(memcmp(&a->real, &b->real, sizeof a->real) == 0, "%s: %g, not %g", where,
                      a->real, b->real);
    if (a->kind == PICKLE_STRING || a->kind == PICKLE_BYTES || a->kind == PICKLE_LONG)
        ck_assert_msg(a->n == b->n && memcmp(a->text, b->text, a->n) == 0, "%s: '%s', not '%s'",
                      where, a->text, b->text);
    const struct pickle_more *x = a->more, *y = b->more;
    if (x->name || y->name) ck_assert_str_eq(x->name, y->name);
    if (x->module || y->module) ck_assert_str_eq(x->module, y->module);
    if (a->kind == PICKLE_TENSOR) same_tensor(f, where, a->tensor, b->tensor);
    if (a->kind == PICKLE_LIST || a->kind == PICKLE_TUPLE || a->kind == PICKLE_SIZE) {
        ck_assert_msg(a->n == b->n, "%s: %u items, not %u", where, a->n, b->n);
        for (size_t i = 0; i < a->n; i++) {
            snprintf(path, sizeof path, "%s[%zu]", where, i);
            same(f, path, a->items[i], b->items[i]);
        }
    }
    if (a->kind == PICKLE_DICT || a->kind == PICKLE_OBJECT) same_pairs(f, where, a, b);
    snprintf(path, sizeof path, "%s<args>", where);
    same(f, path, x->args, y->args);
    snprintf(path, sizeof path, "%s<state>", where);
    same(f, path, x->state, y->state);
}

static void check_file(const char *dir, const struct pt *theirs)
{
    char path[1200];
    const char *name = strrchr(pt_path(theirs), '/') + 1;
    struct pt *ours;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(pt_open(path, &ours));
    ck_ok(pt_verify(ours, NULL, NULL));
    const struct pair_of_files files = {ours, theirs};
    same(&files, name, pt_root(ours), pt_root(theirs));
    pt_close(ours);
}

static void check_folder(const char *folder, const char *config)
{
    const char *dir = test_tmp_make();
    struct copy c;
    struct ckpt_list list;
    size_t n = 0;
    copy_open(&c, folder, config);
    for (int rank = 0; rank < c.world_size; rank++) write_rank(&c, dir, rank);
    for (int i = 0; i < RANKS_MAX; i++) {
        if (c.model[i]) check_file(dir, c.model[i]);
        if (c.optim[i]) check_file(dir, c.optim[i]);
        n += (size_t)(c.model[i] != NULL) + (size_t)(c.optim[i] != NULL);
    }
    ck_ok(ckpt_list_files(dir, "", &list));
    ck_assert_uint_eq(list.n, n);
    ckpt_list_free(&list);
    copy_close(&c);
    test_tmp_remove(dir);
}

static void check_run(const char *run)
{
    char folder[256], config[256];
    snprintf(folder, sizeof folder, "runs/%s/ckpt", run);
    snprintf(config, sizeof config, "runs/%s/ds_config.json", run);
    check_folder(test_fixture(folder), test_fixture(config));
}

static void check_data(const char *name)
{
    char folder[256], config[256];
    snprintf(folder, sizeof folder, "checkpoints/wrappers/%s", name);
    snprintf(config, sizeof config, "checkpoints/wrappers/%s/ds_config.json", name);
    check_folder(test_fixture(folder), test_fixture(config));
}

START_TEST(stage_0_is_written_as_deepspeed_does)
{
    check_data("s0-fp32");
    check_data("s0-fp32-groups");
    check_data("s0-bf16-fused");
    check_data("s0-fp16-fused");
    check_data("s0-fp16-unfused");
    check_run("s0-bf16-adamw");
}
END_TEST

START_TEST(stage_1_is_written_as_deepspeed_does)
{
    check_data("s1-fp32-groups");
    check_data("s1-bf16-fused");
    check_data("s1-fp32-sgd");
    check_data("s1-fp32-adagrad");
    check_data("s1-bf16-aligned");
    check_run("s1-fp32-adamw");
    check_run("s1-fp32-dp3");
    check_run("s1-bf16-adamw-dp4");
}
END_TEST

START_TEST(stage_2_is_written_as_deepspeed_does)
{
    check_data("s2-bf16-frozen");
    check_data("s2-fp16-lion-offload");
    check_run("s2-bf16-adamw");
    check_run("s2-fp32-adamw-gas2");
    check_run("s2-fp16-dynscale");
    check_run("s2-fp32-dp3-frozen");
}
END_TEST

START_TEST(stage_3_is_written_as_deepspeed_does)
{
    check_data("s3-fp32-subgroups");
    check_data("s3-bf16-one");
    check_data("s3-fp16");
    check_run("s3-fp32-adamw");
    check_run("s3-bf16-adamw");
    check_run("s3-bf16-dp3-frozen");
    check_run("s3-bf16-cpuoffload");
}
END_TEST

TEST_MAIN("checkpoint/ds_write_fixtures", stage_0_is_written_as_deepspeed_does,
          stage_1_is_written_as_deepspeed_does, stage_2_is_written_as_deepspeed_does,
          stage_3_is_written_as_deepspeed_does)
