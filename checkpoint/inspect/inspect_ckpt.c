/* A tag's folder as people and programs want to see it: which run saved it, how far it was, which
 * tensors it has. Text is cut to what fits a screen, unless --all; JSON is complete. */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <string.h>

#define TENSORS_MAX 64 /* lines, unless --all */
#define FILES_MAX   24

static void put_label(struct inspect *in, const char *label)
{
    inspect_indent(in, 2);
    inspect_column(in, label, 14);
}

/* ---- head ------------------------------------------------------------------------------------ */

/* As the config of the run names it; NULL: it was not saved, or DeepSpeed got an object of torch's. */
static const char *optimizer_type(const struct ckpt *ck)
{
    const struct pickle_node *config = pickle_get(ckpt_model_states(ck), "ds_config");
    return pickle_to_string(pickle_get(pickle_get(config, "optimizer"), "type"));
}

static cz_status put_optimizer(struct inspect *in, const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (size_t g = 0; g < info->n_groups; g++) {
        const int64_t step = ckpt_group_step(ck, g);
        put_label(in, g == 0 ? "optimizer" : "");
        if (info->n_groups > 1) json_write_format(&in->w, "group %zu: ", g);
        /* "AdamW, lr 0.001, betas (0.9, 0.999), …"; what is off is left out, unless --all. */
        const struct pickle_node *group = ckpt_param_group(ck, g);
        const char *type = optimizer_type(ck);
        size_t n = type ? 1 : 0;
        if (type) inspect_puts(in, type);
        for (size_t i = 0; group && i < group->n_pairs; i++) {
            const char *key = pickle_to_string(group->pairs[i].key);
            const struct pickle_node *value = group->pairs[i].value;
            const bool is_off =
                value->kind == PICKLE_NONE || (value->kind == PICKLE_BOOL && !value->boolean);
            if (!key || strcmp(key, "params") == 0 || (is_off && !in->options->all)) continue;
            /* DeepSpeed's own files have it at 0 as well: the states say how many there were. */
            if (strcmp(key, "step") == 0 && step >= 0 && !in->options->all) continue;
            json_write_text(&in->w, n++ > 0 ? ", " : "");
            inspect_puts(in, key);
            json_write_text(&in->w, " ");
            TRY(inspect_put_node(in, NULL, value, 18));
        }
        /* Elastic files hold states without groups. */
        if (!group && !type) json_write_text(&in->w, "of a class that was not saved");
        if (!group) json_write_text(&in->w, ", without its settings");
        if (step >= 0) json_write_format(&in->w, "; %" PRId64 " updates", step);
        json_write_text(&in->w, "\n");
    }
    put_label(in, "states");
    for (size_t i = 0; i < info->n_states; i++) {
        json_write_text(&in->w, i > 0 ? ", " : "");
        inspect_puts(in, info->states[i]);
    }
    json_write_text(&in->w, info->n_states > 0 ? "\n" : "none\n");
    return CZ_OK;
}

/* Elements by kind; aliases count as names, not as tensors. */
static void put_totals(struct inspect *in, const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    uint64_t numel[3] = {0}, n[3] = {0}, n_aliases = 0;
    char size[INSPECT_SIZE_NBYTES];
    for (size_t i = 0; i < ckpt_count(ck); i++) {
        const struct ckpt_tensor *t = ckpt_at(ck, i);
        numel[t->kind] += t->numel;
        n[t->kind]++;
        n_aliases += t->n_aliases;
    }
    put_label(in, "parameters");
    json_write_format(&in->w, "%" PRIu64 " trained (%" PRIu64 " elements)", n[CKPT_TRAINED],
                      numel[CKPT_TRAINED]);
    if (n[CKPT_FROZEN] > 0)
        json_write_format(&in->w, ", %" PRIu64 " frozen (%" PRIu64 ")", n[CKPT_FROZEN],
                          numel[CKPT_FROZEN]);
    if (n[CKPT_BUFFER] > 0)
        json_write_format(&in->w, ", %" PRIu64 " buffers (%" PRIu64 ")", n[CKPT_BUFFER],
                          numel[CKPT_BUFFER]);
    if (n_aliases > 0) json_write_format(&in->w, ", %" PRIu64 " tied", n_aliases);
    if (info->n_absent > 0) json_write_format(&in->w, ", %zu not saved here", info->n_absent);
    json_write_text(&in->w, "\n");
    put_label(in, "size");
    json_write_format(&in->w, "%s in %zu file%s\n", inspect_size(info->nbytes, size), info->n_files,
                      info->n_files == 1 ? "" : "s");
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const char *kind_name(enum ckpt_kind kind)
{
    static const char *const names[] = {"trained", "frozen", "buffer"};
    return names[kind];
}

/* A tensor of a checkpoint for inspect_sum(), which knows nothing of where elements come from. */
struct tensor_of {
    const struct ckpt *ck;
    size_t idx;
    int what;
};

static cz_status read_bytes(const void *of, uint64_t off, size_t numel, void *dst)
{
    const struct tensor_of *t = of;
    return ckpt_read_raw(t->ck, t->idx, t->what, off, numel, dst);
}

static cz_status read_values(const void *of, uint64_t off, size_t numel, float *dst)
{
    const struct tensor_of *t = of;
    return ckpt_read(t->ck, t->idx, t->what, off, numel, dst);
}

/* *has false: it is not saved. */
static cz_status sum(struct inspect *in, const struct ckpt *ck, size_t idx, int what,
                     struct inspect_sums *sums, bool *has)
{
    const struct tensor_of of = {ck, idx, what};
    const struct pickle_dtype *dtype = ckpt_dtype(ck, idx, what);
    *has = dtype != NULL;
    if (!dtype) return CZ_OK;
    const struct ckpt_info *info = ckpt_get_info(ck);
    TRY(pt_count_elements(info->tag_dir, info->nbytes, &in->sums_nbytes, ckpt_at(ck, idx)->numel,
                          dtype->size));
    const struct inspect_source source = {&of, read_bytes, read_values, ckpt_at(ck, idx)->numel,
                                          dtype->size};
    return inspect_sum(&source, sums);
}

static cz_status put_state_sums(struct inspect *in, const struct ckpt *ck, size_t idx)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    struct inspect_sums sums;
    bool has;
    for (size_t s = 0; s < info->n_states; s++) {
        if (!ckpt_has_state(ck, idx, s)) continue;
        TRY(sum(in, ck, idx, CKPT_STATE_0 + (int)s, &sums, &has));
        if (!has) continue;
        json_write_text(&in->w, "\n");
        inspect_indent(in, 4);
        inspect_puts(in, info->states[s]);
        inspect_put_sums(in, &sums);
    }
    return CZ_OK;
}

/* "no exp_avg": a trained parameter without a state is a hole that a resume would meet. */
static cz_status put_tensor(struct inspect *in, const struct ckpt *ck, size_t idx, int width)
{
    char shape[INSPECT_SHAPE_NBYTES];
    struct inspect_sums sums;
    bool has;
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    inspect_indent(in, 2);
    inspect_column(in, t->name, width);
    json_write_format(&in->w, "  %-8s %-8s %s", kind_name(t->kind), t->dtype->torch_name,
                      inspect_shape(t->shape, (size_t)t->ndim, shape));
    for (size_t i = 0; i < t->n_aliases; i++) {
        json_write_text(&in->w, "  = ");
        inspect_puts(in, t->aliases[i]);
    }
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (size_t s = 0; s < info->n_states; s++)
        if (ckpt_at(ck, idx)->kind == CKPT_TRAINED && !ckpt_has_state(ck, idx, s)) {
            json_write_text(&in->w, "  no ");
            inspect_puts(in, info->states[s]);
        }
    if (in->options->sums) {
        TRY(sum(in, ck, idx, CKPT_MASTER, &sums, &has));
        if (has) inspect_put_sums(in, &sums);
        TRY(put_state_sums(in, ck, idx));
    }
    json_write_text(&in->w, "\n");
    return CZ_OK;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void put_files(struct inspect *in, const struct ckpt *ck)
{
    char size[INSPECT_SIZE_NBYTES];
    const size_t n = ckpt_get_info(ck)->n_files;
    const struct inspect_window window = inspect_window(in, n, FILES_MAX);
    json_write_text(&in->w, "files\n");
    for (size_t i = 0; i < n; i++) {
        if (i == window.head && i < window.tail_begin) {
            json_write_format(&in->w, "  … %zu more\n", window.tail_begin - window.head);
            i = window.tail_begin;
        }
        const char *path = ckpt_file_path(ck, i), *slash = strrchr(path, '/');
        json_write_format(&in->w, "  %8s  ", inspect_size(ckpt_file_nbytes(ck, i), size));
        inspect_puts(in, slash ? slash + 1 : path);
        json_write_text(&in->w, "\n");
    }
}

/* Keys of the model file that the lines above have shown already. */
static bool is_shown(const char *key)
{
    static const char *const told[] = {"module",
                                       "optimizer",
                                       "param_shapes",
                                       "frozen_param_shapes",
                                       "frozen_param_fragments",
                                       "shared_params",
                                       "buffer_names",
                                       "global_steps",
                                       "skipped_steps",
                                       "global_samples",
                                       "dp_world_size",
                                       "ds_version"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(told); i++)
        if (strcmp(key, told[i]) == 0) return true;
    return false;
}

/* Scheduler, config, client state. */
static cz_status put_others(struct inspect *in, const struct ckpt *ck)
{
    const struct pickle_node *m = ckpt_model_states(ck);
    size_t n = 0;
    for (size_t i = 0; i < m->n_pairs; i++) {
        const char *key = pickle_to_string(m->pairs[i].key);
        const struct pickle_node *value = m->pairs[i].value;
        if (!key || is_shown(key) || value->kind == PICKLE_NONE) continue;
        if (n++ == 0) json_write_text(&in->w, "also saved\n");
        inspect_indent(in, 2);
        inspect_puts(in, key);
        json_write_text(&in->w, ": ");
        TRY(inspect_put_node(in, NULL, value, 4));
        json_write_text(&in->w, "\n");
    }
    return CZ_OK;
}

static cz_status put_checkpoint(struct inspect *in, const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    inspect_puts(in, info->tag_dir);
    json_write_text(&in->w, ": checkpoint ");
    inspect_puts(in, info->tag);
    json_write_text(&in->w, "\n");
    put_label(in, "saved by");
    json_write_text(&in->w, info->is_ours ? "czero, in the format of DeepSpeed " : "DeepSpeed ");
    inspect_puts(in, info->ds_version[0] ? info->ds_version : "(version not saved)");
    json_write_text(&in->w, "\n");
    put_label(in, "ZeRO stage");
    if (info->is_universal)
        json_write_format(&in->w, "universal, made from stage %s\n",
                          info->stage == 3 ? "3" : "0-2");
    else
        json_write_format(&in->w, "%d, %d rank%s\n", info->stage, info->world_size,
                          info->world_size == 1 ? "" : "s");
    put_label(in, "model dtype");
    json_write_format(&in->w, "%s\n",
                      info->model_dtype ? info->model_dtype->torch_name : "not saved");
    static const char *const keys[] = {"global_steps", "skipped_steps", "global_samples"};
    static const char *const after[] = {"", " skipped", " samples"};
    double value;
    int n = 0;
    put_label(in, "steps");
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        if (ckpt_number(ck, pickle_get(ckpt_model_states(ck), keys[i]), &value))
            json_write_format(&in->w, "%s%.0f%s", n++ > 0 ? ", " : "", value, after[i]);
    json_write_text(&in->w, n > 0 ? "\n" : "not saved\n");
    TRY(inspect_run(in, info->tag_dir));
    TRY(put_optimizer(in, ck));
    put_totals(in, ck);
    size_t width = 0;
    const struct inspect_window window = inspect_window(in, ckpt_count(ck), TENSORS_MAX);
    for (size_t i = 0; i < ckpt_count(ck); i++)
        if (strlen(ckpt_at(ck, i)->name) > width) width = strlen(ckpt_at(ck, i)->name);
    json_write_text(&in->w, "tensors\n");
    for (size_t i = 0; i < ckpt_count(ck); i++) {
        if (i == window.head && i < window.tail_begin) {
            json_write_format(&in->w, "  … %zu more\n", window.tail_begin - window.head);
            i = window.tail_begin;
        }
        TRY(put_tensor(in, ck, i, width > 60 ? 60 : (int)width));
    }
    put_files(in, ck);
    return put_others(in, ck);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_number(struct inspect *in, const struct ckpt *ck, const char *key)
{
    double value;
    json_write_key(&in->w, key);
    if (ckpt_number(ck, pickle_get(ckpt_model_states(ck), key), &value))
        json_write_int(&in->w, (int64_t)value);
    else
        json_write_null(&in->w);
}

static cz_status json_groups(struct inspect *in, const struct ckpt *ck)
{
    inspect_json_string(in, "optimizer", optimizer_type(ck));
    json_write_key(&in->w, "groups");
    json_begin_array(&in->w);
    for (size_t g = 0; g < ckpt_get_info(ck)->n_groups; g++) {
        const int64_t step = ckpt_group_step(ck, g);
        const struct pickle_node *group = ckpt_param_group(ck, g);
        json_begin_object(&in->w);
        json_write_key(&in->w, "step");
        if (step >= 0)
            json_write_int(&in->w, step);
        else
            json_write_null(&in->w);
        json_write_key(&in->w, "settings"); /* null: elastic files */
        if (group)
            TRY(inspect_json_node(in, NULL, group));
        else
            json_write_null(&in->w);
        json_end_object(&in->w);
    }
    json_end_array(&in->w);
    return CZ_OK;
}

static void json_names(struct inspect *in, const char *key, const char *const *names, size_t n)
{
    json_write_key(&in->w, key);
    json_begin_array(&in->w);
    for (size_t i = 0; i < n; i++) inspect_json_text(in, names[i], strlen(names[i]));
    json_end_array(&in->w);
}

/* "states": each saved state of this tensor, with its sums if they were asked for. */
static cz_status json_states(struct inspect *in, const struct ckpt *ck, size_t idx)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    struct inspect_sums sums;
    bool has;
    json_write_key(&in->w, "states");
    json_begin_object(&in->w);
    for (size_t s = 0; s < info->n_states; s++) {
        if (!ckpt_has_state(ck, idx, s)) continue;
        const struct pickle_dtype *dtype = ckpt_dtype(ck, idx, CKPT_STATE_0 + (int)s);
        json_write_key(&in->w, info->states[s]);
        json_begin_object(&in->w);
        inspect_json_string(in, "dtype", dtype ? dtype->torch_name : NULL);
        if (in->options->sums) {
            TRY(sum(in, ck, idx, CKPT_STATE_0 + (int)s, &sums, &has));
            if (has) inspect_json_sums(in, &sums);
        }
        json_end_object(&in->w);
    }
    json_end_object(&in->w);
    return CZ_OK;
}

/* One tensor takes one line: thousands of them are read with line tools. */
static cz_status json_tensor(struct inspect *in, const struct ckpt *ck, size_t idx)
{
    struct inspect_sums sums;
    bool has;
    const struct ckpt_tensor *t = ckpt_at(ck, idx);
    const int indent = in->w.indent;
    json_begin_object(&in->w);
    in->w.indent = 0;
    inspect_json_string(in, "name", t->name);
    inspect_json_string(in, "kind", kind_name(t->kind));
    inspect_json_string(in, "dtype", t->dtype->torch_name);
    inspect_json_shape(in, t->shape, (size_t)t->ndim);
    json_put_int(&in->w, "numel", (int64_t)t->numel);
    if (t->kind == CKPT_TRAINED) json_put_int(&in->w, "group", (int64_t)t->group);
    json_names(in, "aliases", t->aliases, t->n_aliases);
    TRY(json_states(in, ck, idx));
    if (in->options->sums) {
        TRY(sum(in, ck, idx, CKPT_MASTER, &sums, &has));
        if (has) inspect_json_sums(in, &sums);
    }
    json_end_object(&in->w);
    in->w.indent = indent;
    return CZ_OK;
}

static void json_head(struct inspect *in, const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    inspect_json_string(in, "kind", "checkpoint");
    inspect_json_string(in, "path", info->tag_dir);
    inspect_json_string(in, "tag", info->tag);
    inspect_json_string(in, "saved_by", info->is_ours ? "czero" : "deepspeed");
    inspect_json_string(in, "ds_version", info->ds_version);
    json_put_bool(&in->w, "universal", info->is_universal);
    json_put_int(&in->w, "stage", info->stage);
    json_put_int(&in->w, "world_size", info->world_size);
    inspect_json_string(in, "model_dtype",
                        info->model_dtype ? info->model_dtype->torch_name : NULL);
    json_number(in, ck, "global_steps");
    json_number(in, ck, "skipped_steps");
    json_number(in, ck, "global_samples");
    json_names(in, "states", (const char *const *)info->states, info->n_states);
    json_names(in, "not_saved", info->absent, info->n_absent);
    json_put_int(&in->w, "nbytes", (int64_t)info->nbytes);
}

static cz_status json_checkpoint(struct inspect *in, const struct ckpt *ck)
{
    json_begin_object(&in->w);
    json_head(in, ck);
    TRY(inspect_run(in, ckpt_get_info(ck)->tag_dir));
    TRY(json_groups(in, ck));
    json_write_key(&in->w, "tensors");
    json_begin_array(&in->w);
    for (size_t i = 0; i < ckpt_count(ck); i++) TRY(json_tensor(in, ck, i));
    json_end_array(&in->w);
    json_write_key(&in->w, "files");
    json_begin_array(&in->w);
    for (size_t i = 0; i < ckpt_get_info(ck)->n_files; i++) {
        json_begin_object(&in->w);
        inspect_json_string(in, "path", ckpt_file_path(ck, i));
        json_put_int(&in->w, "nbytes", (int64_t)ckpt_file_nbytes(ck, i));
        json_end_object(&in->w);
    }
    json_end_array(&in->w);
    const struct pickle_node *m = ckpt_model_states(ck);
    json_write_key(&in->w, "others");
    json_begin_object(&in->w);
    for (size_t i = 0; i < m->n_pairs; i++) {
        const char *key = pickle_to_string(m->pairs[i].key);
        if (!key || is_shown(key)) continue;
        inspect_json_key(in, key, strlen(key));
        TRY(inspect_json_node(in, NULL, m->pairs[i].value));
    }
    json_end_object(&in->w);
    json_end_object(&in->w);
    return CZ_OK;
}

cz_status inspect_checkpoint(struct inspect *in, const struct ckpt *ck)
{
    return in->options->json ? json_checkpoint(in, ck) : put_checkpoint(in, ck);
}
